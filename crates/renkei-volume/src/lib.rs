//! Volumes: a directory of plain files with a catalogue of it, at the volume's home and at its followers.
//!
//! Both roles open a volume as a [`Store`], so code that works on stores works on volumes. The home (`home`) reconciles
//! the catalogue with its plain files within 100 ms and appends each change to the log. A follower (`follower`) tails
//! that log into its copy of the catalogue and keeps its own changes in an outbox over the copy. `diff` compares a
//! plain tree with a catalogue. The files here are shared: configuration, grants, ownership of directories, lineage of
//! the log. Uses: `renkei-core`, `renkei-store`, `renkei-config`, `renkei-catalogue`. Guarantee: flushed changes are in
//! the catalogue and its log. Non-goal: the network; the site ships logs and pulls replicas.

pub mod config_change;
pub mod creation;
#[cfg(any(test, feature = "testing"))]
pub mod deep_tree;
pub mod diff;
pub mod dir_claim;
pub mod follower;
pub mod grant;
mod hands;
pub mod home;
pub mod lineage;
mod plain_entry;
mod reconciler_requests;
mod root_identity;
pub mod settings;
#[cfg(test)]
mod store_conformance;
#[cfg(test)]
mod stored_tests;
pub mod volume_config;
pub mod volume_status;

pub use hands::Hands;
pub use home::remote_content::{AwayFound, Elsewhere, INCOMING, Wanted, away_content, writer};
pub use home::view::VolumeStore;
pub use reconciler_requests::{Arrived, FileVerdict};
pub use volume_config::VolumeConfig;

use dir_claim::DirectoryClaim;
use follower::outbox::{Outbox, Refusal};
use follower::restored_home::RestoreReport;
use home::reconciler::{Reconciler, Shared};
use home::site_leases::HomeLeases;
use home::watch::Watch;
use lineage::Lineage;
use renkei_catalogue::{OWN, Trees, VolumeId, VolumeTree};
use renkei_config::home::{Home, make_private_dir};
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Origin;
use renkei_core::namespace::quota::Use;
use renkei_core::namespace::quota_share::{QuotaShare, ShareRequest};
use renkei_core::path::RelPath;
use renkei_core::wire::volume::Kept;
use renkei_store::Store;
use renkei_store::leases;
use renkei_store::leases::LeaseTable;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::marker::{Identity, identity_at};
use serde::{Deserialize, Serialize};
use settings::UseRow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The volumes that a PoP has open.
pub struct Volumes {
    home: Home,
    /// The database, as the configuration names it.
    named: String,
    open: Mutex<Open>,
    /// Identities of the replica directories that this site has claimed.
    claimed: Mutex<HashMap<VolumeId, Identity>>,
    /// Volumes that this site only reads and whose replica directory was replaced by another one.
    replaced: Mutex<HashMap<VolumeId, Error>>,
}

#[derive(Default)]
struct Open {
    trees: Option<Arc<Trees>>,
    volumes: HashMap<VolumeId, Arc<Volume>>,
    /// Outboxes of the followed volumes.
    pending: HashMap<VolumeId, Arc<Outbox>>,
    /// Deleted volumes, so that a caller with an outdated configuration does not create them anew.
    forgotten: HashSet<VolumeId>,
}

/// Location of a volume's plain files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLocation {
    /// Root of the storage.
    pub root: PathBuf,
    /// Directory in the storage.
    pub path: RelPath,
    /// Whether the storage may be changed.
    pub access: AccessMode,
    /// Identity of the storage's root directory, if known: another directory under that path is not opened.
    pub identity: Option<Identity>,
}

/// A volume that is open.
pub struct Volume {
    at: VolumeLocation,
    store: Arc<LocalStore>,
    tree: Arc<VolumeTree>,
    shared: Arc<Shared>,
}

/// Status of a volume, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// The last record of the volume's log.
    pub records: u64,
    /// Whether a scan is under way.
    pub is_scanning: bool,
    /// The error that keeps the catalogue from following the files.
    pub trouble: Option<Error>,
    /// Directories that inotify watches; none if no watch could be opened.
    pub watched: Option<u64>,
    /// Whether the kernel's limit of watches is reached, so that the other directories are found by scans only.
    pub is_full: bool,
    /// The last scan, if there was one.
    pub scan: Option<Scanned>,
    /// On a follower: its replication state relative to the home.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub followed: Option<Followed>,
    /// At the home: content that exists at one other site only.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub away: Vec<OnlyAt>,
    /// On a follower: background replication.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holds: Option<Holds>,
    /// At the home: for each folder with a replication policy, its replicas.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub kept: Vec<Kept>,
    /// Usage and quotas.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub used: Vec<UseRow>,
    /// Results of the background scrub.
    #[serde(default)]
    pub verified: Verified,
}

/// Content of a volume that only one site has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyAt {
    /// The site.
    pub site: String,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Results of reading all plain files of a volume (scrub).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// End of the last whole pass, in seconds since 1970.
    pub ended_unix: Option<u64>,
    /// Good files in that pass.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Corrupt files in that pass.
    pub wrong: u64,
    /// Whether a pass is under way.
    pub is_under_way: bool,
    /// Good files in the pass under way, or else in the last one.
    pub files_now: u64,
    /// Their bytes.
    pub bytes_now: u64,
    /// Corrupt files in the same pass.
    pub wrong_now: u64,
    /// The first of the corrupt files.
    pub examples: Vec<(String, Error)>,
}

/// Background replication at a site that follows a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// Folders that the home's policies place at this site, if it accepts them.
    pub by_policy: Vec<String>,
    /// Whether replication is paused.
    pub is_paused: bool,
    /// Whether a transfer runs.
    pub is_running: bool,
    /// Files that this site should hold and does not.
    pub files_to_go: u64,
    /// Their bytes.
    pub bytes_to_go: u64,
    /// Bytes a second of the transfer that runs.
    pub rate: Option<u64>,
    /// The error that stops progress.
    pub trouble: Option<Error>,
}

/// Replication state of a follower relative to its home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The last record that the home announced.
    pub last: u64,
    /// Seconds since the last message of the home, if one came since the PoP started.
    pub heard_s: Option<u64>,
    /// Whether the copy of the tree is complete.
    #[serde(default)]
    pub is_whole: bool,
    /// Whether this site may change the volume.
    pub writes: bool,
    /// Own changes that the home has not ordered yet.
    pub pending: u64,
    /// Age of the oldest of these changes in seconds, at most the time since the PoP started.
    pub waiting_s: Option<u64>,
    /// The last own changes that the home refused.
    pub refused: Vec<Refusal>,
    /// Peers: the other followers that the home named; they serve the replicas that they hold.
    #[serde(default)]
    pub fellows: Vec<String>,
    /// Report of the last reconciliation with a home that was restored from a backup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub restored: Option<RestoreReport>,
}

/// Result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scanned {
    /// End of the scan, in seconds since 1970.
    pub ended_unix: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// Directories.
    pub dirs: u64,
    /// Names that the catalogue did not have.
    pub new: u64,
    /// Names that were removed.
    pub gone: u64,
    /// Files with other content.
    pub changed: u64,
    /// Names of which only the mode, owner or time differed.
    pub attributes: u64,
    /// Names that could not be examined or stored.
    pub failed: u64,
    /// Some names of each of these counts.
    pub examples: Vec<String>,
    /// Whether the usage counts of the volume were wrong and were corrected.
    #[serde(default)]
    pub was_miscounted: bool,
}

impl Volumes {
    /// Opens no volume yet; the trees are in the database that is `named`.
    pub fn new(home: &Home, named: &str) -> Self {
        let (home, named) = (home.clone(), named.into());
        Volumes { home, named, open: Mutex::default(), claimed: Mutex::default(), replaced: Mutex::default() }
    }

    fn replaced_ones(&self) -> MutexGuard<'_, HashMap<VolumeId, Error>> {
        self.replaced.lock().expect("no thread panics while it holds the lock")
    }

    /// The error of a read-only volume whose replica directory was replaced, until the new directory is accepted.
    pub fn replaced(&self, id: &VolumeId) -> Option<Error> {
        self.replaced_ones().get(id).cloned()
    }

    fn open_ones(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no thread panics while it holds the lock")
    }

    /// The tree of a volume, created if it does not exist.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn tree(&self, id: VolumeId) -> Result<Arc<VolumeTree>, Error> {
        self.trees(&mut self.open_ones())?.tree(id)
    }

    /// The outbox of a followed volume, over the copy of its tree.
    ///
    /// # Errors
    /// `CatalogueFailed`, and those of the file system.
    pub fn pending(&self, name: &str, id: VolumeId) -> Result<Arc<Outbox>, Error> {
        let mut open = self.open_ones();
        if let Some(pending) = open.pending.get(&id) {
            return Ok(pending.clone());
        }
        let tree = self.trees(&mut open)?.tree(id)?;
        make_private_dir(&self.home.state_dir().join("volumes"))?;
        let pending = Outbox::open(name, tree, &self.journal(id), self.lease_table(id))?;
        open.pending.insert(id, pending.clone());
        Ok(pending)
    }

    /// The file of the write-ahead log of a followed volume.
    fn journal(&self, id: VolumeId) -> PathBuf {
        self.home.state_dir().join("volumes").join(format!("{}.unkept", volume_config::id_text(&id)))
    }

    /// The lease table of a volume; a file tells the next PoP process whether any lease was held.
    fn lease_table(&self, id: VolumeId) -> LeaseTable {
        LeaseTable::noted_in(self.lease_note(id), leases::TERM, leases::MOST)
    }

    fn lease_note(&self, id: VolumeId) -> PathBuf {
        self.home.state_dir().join("volumes").join(format!("{}.leased", volume_config::id_text(&id)))
    }

    fn trees(&self, open: &mut Open) -> Result<Arc<Trees>, Error> {
        Ok(match &open.trees {
            Some(trees) => trees.clone(),
            None => open.trees.insert(Arc::new(Trees::open(&self.named, &self.home)?)).clone(),
        })
    }

    /// Opens a volume, or returns the open one.
    ///
    /// # Errors
    /// `StorageMissing`, `CatalogueFailed`.
    pub fn open(
        &self,
        name: &str,
        facts: &VolumeConfig,
        at: &VolumeLocation,
        hands: Arc<dyn Hands>,
    ) -> Result<Arc<Volume>, Error> {
        let mut open = self.open_ones();
        if open.forgotten.contains(&facts.id) {
            return Err(volume_config::unknown(name));
        }
        if let Some(volume) = open.volumes.get(&facts.id).filter(|volume| volume.at == *at) {
            volume.shared.scan_every_s.store(facts.scan_every_s, Ordering::Relaxed);
            volume.shared.quotas.set(facts.care.quotas(), &volume.tree)?;
            return Ok(volume.clone());
        }
        let trees = self.trees(&mut open)?;
        make_private_dir(&self.home.state_dir().join("volumes"))?;
        let leases = self.lease_table(facts.id);
        let volume = Arc::new(Volume::open(name, facts, at, trees.tree(facts.id)?, hands, leases)?);
        open.volumes.insert(facts.id, volume.clone());
        Ok(volume)
    }

    /// Closes a volume and removes its tree; the plain files stay.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn forget(&self, id: VolumeId) -> Result<(), Error> {
        let mut open = self.open_ones();
        open.forgotten.insert(id);
        if let Some(volume) = open.volumes.remove(&id) {
            volume.close();
        }
        if let Some(pending) = open.pending.remove(&id) {
            pending.stop();
        }
        // The files may never have existed.
        let _ = std::fs::remove_file(self.journal(id));
        let _ = std::fs::remove_file(self.lease_note(id));
        match &open.trees {
            Some(trees) => trees.remove(id),
            None => Trees::open(&self.named, &self.home)?.remove(id),
        }
    }

    /// Checks that the replica directory of a followed volume is not claimed for another volume or site, and marks
    /// it. A site that writes is refused another directory than before, since that one may have the only copy of
    /// something; a site that only reads uses it and reports a condition.
    ///
    /// # Errors
    /// `DirectoryTaken`, `StorageMissing`, `VolumeChanged`, `CatalogueFailed`.
    pub fn claim(
        &self,
        pending: &Outbox,
        id: VolumeId,
        own: &DirectoryClaim,
        (plain, access): (&Arc<LocalStore>, AccessMode),
        hands: &dyn Hands,
    ) -> Result<(), Error> {
        let claimed = || self.claimed.lock().expect("no thread panics while it holds the lock");
        let identity = plain.identity().ok();
        if identity.is_some() && claimed().get(&id).copied() == identity {
            return Ok(());
        }
        let checked = root_identity::check(&pending.name, pending.tree(), plain);
        if pending.enlisted().is_some_and(|enlisted| enlisted.writes) {
            checked.clone()?;
        }
        dir_claim::take(plain, own, access, hands)?;
        match checked {
            Ok(()) => {
                self.replaced_ones().remove(&id);
                root_identity::note(pending.tree(), plain)?;
            }
            Err(error) => drop(self.replaced_ones().insert(id, error)),
        }
        claimed().extend(identity.map(|identity| (id, identity)));
        Ok(())
    }

    /// Closes a volume whose directory was replaced; the next use opens it anew.
    pub fn close_if_moved(&self, id: VolumeId, now: impl FnOnce() -> Result<LocalStore, Error>) {
        let open = self.open_ones().volumes.get(&id).cloned();
        let Some(volume) = open else { return };
        let is_there = now().map(|now| now.identity().ok() == volume.store.identity().ok());
        if !is_there.unwrap_or(false) {
            tracing::warn!(volume = volume.shared.name, "another directory, or none, is in its place");
            drop(volume);
            self.close(id);
        }
    }

    /// Closes a volume whose storage cannot be used now.
    pub fn close(&self, id: VolumeId) {
        if let Some(volume) = self.open_ones().volumes.remove(&id) {
            volume.close();
        }
    }

    /// Closes the volumes that do not exist any more.
    pub fn keep_only(&self, is_there: impl Fn(&VolumeId) -> bool) {
        let mut open = self.open_ones();
        let gone: Vec<VolumeId> = open.volumes.keys().filter(|id| !is_there(id)).copied().collect();
        for id in gone {
            if let Some(volume) = open.volumes.remove(&id) {
                volume.close();
            }
        }
        open.pending.retain(|id, pending| {
            let stays = is_there(id);
            if !stays {
                pending.stop();
            }
            stays
        });
    }
}

impl VolumeLocation {
    /// Opens the root of the storage.
    fn open_root(&self) -> Result<LocalStore, Error> {
        let root = LocalStore::open(&self.root, self.access)?;
        let is_other = |identity| root.identity().is_ok_and(|found| found != identity);
        match self.identity.is_some_and(is_other) {
            true => {
                let cause = "another directory was put there a moment ago";
                Err(Error::new(Code::StorageChanged, "open storage", self.root.display(), cause))
            }
            false => Ok(root),
        }
    }

    /// Opens the directory of the plain files.
    fn open_plain(&self) -> Result<Arc<LocalStore>, Error> {
        let missing = |error: Error| match error.code {
            Code::PathNotFound => Error { code: Code::StorageMissing, ..error },
            _ => error,
        };
        Ok(Arc::new(self.open_root()?.below(&self.path).map_err(missing)?))
    }
}

impl Volume {
    /// Opens the plain files and starts the threads of the reconciler and the watch.
    pub fn open(
        name: &str,
        facts: &VolumeConfig,
        at: &VolumeLocation,
        tree: Arc<VolumeTree>,
        hands: Arc<dyn Hands>,
        leases: LeaseTable,
    ) -> Result<Self, Error> {
        let store = at.open_plain()?;
        let own = DirectoryClaim::new(&facts.id, &facts.home);
        root_identity::check(name, &tree, &store)?;
        dir_claim::take(&store, &own, at.access, &*hands)?;
        root_identity::note(&tree, &store)?;
        let watch =
            Watch::open(folder(at)).inspect_err(|error| tracing::warn!(%error, name, "nothing is watched"));
        // Before the first request: two concurrent ones would create two incarnations of the log.
        let fresh = random_bytes()?;
        Lineage::of_home(&tree, fresh)?;
        let leases = Arc::new(leases);
        let site_leases = HomeLeases::open(tree.clone(), leases.clone(), HomeLeases::round(&fresh))?;
        let shared = Arc::new(Shared::new(name, facts.scan_every_s, watch.ok(), hands, leases, site_leases));
        shared.quotas.resume_handed(&tree)?;
        shared.quotas.set(facts.care.quotas(), &tree)?;
        tree.give_from(OWN, least_number())?;
        let volume = Volume { at: at.clone(), store, tree, shared };
        volume.start()?;
        Ok(volume)
    }

    fn start(&self) -> Result<(), Error> {
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into()).spawn(work);
            thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", name, error))
        };
        let keeper = Reconciler::new(self.shared.clone(), self.tree.clone(), self.store.root()?);
        spawn("volume", Box::new(|| keeper.run()))?;
        let shared = self.shared.clone();
        spawn(
            "volume watch",
            Box::new(move || {
                if let Some(watch) = &shared.watch {
                    watch.run(&shared.notes);
                }
            }),
        )
    }

    fn close(&self) {
        self.shared.notes.stop();
        if let Some(watch) = &self.shared.watch {
            watch.stop();
        }
    }

    /// Whether the path still leads to the directory of the plain files.
    pub fn is_in_place(&self) -> bool {
        let there = identity_at(&self.at.root.join(OsStr::from_bytes(self.at.path.as_bytes())));
        there.ok() == self.store.identity().ok()
    }

    /// The leases of the sites that follow this volume.
    pub fn site_leases(&self) -> &HomeLeases {
        &self.shared.site_leases
    }

    /// The plain files.
    pub fn plain(&self) -> &Arc<LocalStore> {
        &self.store
    }

    /// The catalogue.
    pub fn tree(&self) -> &Arc<VolumeTree> {
        &self.tree
    }

    /// Returns when all changes made through the volume are in the catalogue and its log.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.notes.flush()
    }

    /// Runs `sync`, which makes plain files durable, while the reconciler updates the catalogue; returns when both
    /// are done.
    ///
    /// # Errors
    /// The errors of `sync` and of the catalogue.
    fn flush_with(&self, sync: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let asked = self.shared.notes.ask_all();
        sync()?;
        asked.map_or(Ok(()), |asked| self.shared.notes.wait(&asked))
    }

    /// Grants a writing site its quota share; the shares of sites that are not among `writers` are dropped.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn hand(
        &self,
        origin: Origin,
        claim: &ShareRequest,
        writers: &[Origin],
    ) -> Result<QuotaShare, Error> {
        self.shared.quotas.hand(&self.tree, origin, claim, writers)
    }

    /// The unused part of all granted shares under a limit.
    pub fn handed(&self, owner: Option<&str>) -> Use {
        self.shared.quotas.handed(owner)
    }

    /// Scans the whole tree; returns when the scan has ended or `go_on` returns false.
    ///
    /// # Errors
    /// The error that keeps the catalogue from following the files; `Cancelled`.
    pub fn check(&self, go_on: impl Fn() -> bool) -> Result<Scanned, Error> {
        self.flush()?;
        let number = self.shared.notes.ask_scan();
        if !self.shared.notes.wait_scan(number, go_on) {
            return Err(Error::new(Code::Cancelled, "check", &self.shared.name, ""));
        }
        let was_wrong = self.tree.recount()?;
        self.shared.quotas.settle(&Vec::new(), &self.tree)?;
        let standing = self.standing()?;
        match standing.trouble {
            Some(error) => Err(error),
            None => Ok(Scanned { was_miscounted: was_wrong, ..standing.scan.unwrap_or_default() }),
        }
    }

    /// The status of the volume.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn standing(&self) -> Result<VolumeState, Error> {
        let (told, watch) = (self.shared.told(), &self.shared.watch);
        Ok(VolumeState {
            records: self.tree.position()?.seq,
            is_scanning: told.is_scanning,
            trouble: told.trouble,
            watched: watch.as_ref().map(|watch| watch.count() as u64),
            is_full: watch.as_ref().is_some_and(Watch::is_full),
            scan: told.scan.map(Scanned::from),
            followed: None,
            away: Vec::new(),
            holds: None,
            kept: Vec::new(),
            used: Vec::new(),
            verified: Verified::default(),
        })
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.close();
    }
}

impl From<home::reconciler::Scan> for Scanned {
    fn from(scan: home::reconciler::Scan) -> Self {
        let diff::scan_counts::ScanCounts { new, gone, changed, attributes, failed, examples } = scan.tally;
        let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Scanned {
            ended_unix: scan.ended.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            took_ms: whole(scan.took),
            dirs: scan.dirs,
            new,
            gone,
            changed,
            attributes,
            failed,
            examples,
            was_miscounted: false,
        }
    }
}

/// Lower bound of new node numbers. It grows with the clock, by 4096 a second, faster than files are created over a
/// long time, so it is above all numbers of earlier runs, also where the tree was restored from a backup.
fn least_number() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() << 12
}

/// The directory of a volume's plain files.
fn folder(at: &VolumeLocation) -> PathBuf {
    at.root.join(Path::new(std::ffi::OsStr::from_bytes(at.path.as_bytes())))
}
