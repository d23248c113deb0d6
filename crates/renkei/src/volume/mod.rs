//! Volumes: a directory of plain files and a catalogue of it, at the home of the volume and at the sites that follow
//! it.
//!
//! Both roles open a volume as a [`Store`], so readers and writers of places are readers and writers of volumes. The
//! home (`home`) reconciles the catalogue with its plain files within 100 ms and appends each change to the log. A
//! follower (`follower`) tails that log into its copy of the catalogue and keeps its own changes in an outbox over the
//! copy. `diff` compares a plain tree with a catalogue. The files here are shared: configuration, grants, ownership of
//! directories, lineage of the log. Guarantee: what was flushed is in the catalogue and its log. Non-goal: transfers of
//! replicas, which are the site's.

pub mod config_change;
pub mod creation;
#[cfg(test)]
pub(crate) mod deep_tree;
pub mod diff;
pub mod dir_claim;
pub mod follower;
pub mod grant;
pub mod home;
pub mod lineage;
mod plain_entry;
mod root_identity;
pub mod settings;
pub mod volume_config;
pub mod volume_status;

pub use home::corrupt::FileVerdict;
pub use home::remote_content::{
    Arrived, AwayFound, Elsewhere, Hands, INCOMING, Wanted, away_content, writer,
};
pub use home::view::VolumeStore;
pub use volume_config::VolumeConfig;

use crate::catalogue::{OWN, Trees, VolumeId, VolumeTree};
use crate::home::{Home, make_private_dir};
use crate::store::Store;
use crate::store::leases::{self, LeaseTable};
use crate::store::local::{AccessMode, LocalStore};
use crate::store::marker::{Identity, identity_at};
use dir_claim::DirectoryClaim;
use follower::outbox::{Outbox, Refusal};
use follower::restored_home::RestoreReport;
use home::reconciler::{Reconciler, Shared};
use home::site_leases::HomeLeases;
use home::watch::Watch;
use lineage::{Lineage, fresh_incarnation};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Origin;
use renkei_core::namespace::quota::Use;
use renkei_core::namespace::quota_share::{QuotaShare, ShareRequest};
use renkei_core::path::RelPath;
use renkei_core::wire::volume::Kept;
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
    /// Which database, as the configuration names it.
    named: String,
    open: Mutex<Open>,
    /// Directories of replicas that are marked as this site's own.
    claimed: Mutex<HashMap<VolumeId, Identity>>,
    /// Volumes that are only read here, with another directory in place of their replicas'.
    replaced: Mutex<HashMap<VolumeId, Error>>,
}

#[derive(Default)]
struct Open {
    trees: Option<Arc<Trees>>,
    volumes: HashMap<VolumeId, Arc<Volume>>,
    /// Own changes of those that are followed.
    pending: HashMap<VolumeId, Arc<Outbox>>,
    /// Those that were deleted, so that nobody who has not heard of it makes them anew.
    forgotten: HashSet<VolumeId>,
}

/// Where a volume's plain files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeLocation {
    /// The root of the storage.
    pub root: PathBuf,
    /// The directory in it.
    pub path: RelPath,
    /// Whether the storage may be changed.
    pub access: AccessMode,
    /// Which directory the root of the storage is, where that is known: another one under the path is not opened.
    pub identity: Option<Identity>,
}

/// A volume that is open.
pub struct Volume {
    at: VolumeLocation,
    store: Arc<LocalStore>,
    tree: Arc<VolumeTree>,
    shared: Arc<Shared>,
}

/// How it stands with a volume, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The last record of its log.
    pub records: u64,
    /// Whether a scan is under way.
    pub is_scanning: bool,
    /// Why the catalogue does not follow the files, if it does not.
    pub trouble: Option<Error>,
    /// Directories of which the kernel tells changes at once; none where it tells nothing.
    pub watched: Option<u64>,
    /// Whether the kernel gives no more watches, so that the rest is scanned alone.
    pub is_full: bool,
    /// The last scan, if there was one.
    pub scan: Option<Scanned>,
    /// Where it is followed: how it stands with the home.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub followed: Option<Followed>,
    /// At the home: what other sites wrote and have alone.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub away: Vec<OnlyAt>,
    /// Where it is followed: what is held in the background.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub holds: Option<Holds>,
    /// At its home: how folders are kept of which replicas are asked for.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub kept: Vec<Kept>,
    /// How much is in it, and may be.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub used: Vec<UseRow>,
    /// What verifying in the background told.
    #[serde(default)]
    pub verified: Verified,
}

/// What one site has alone of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyAt {
    /// The site.
    pub site: String,
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// What reading all plain files of a volume told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// When the last whole pass ended, in seconds since 1970.
    pub ended_unix: Option<u64>,
    /// Good files in it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that were wrong.
    pub wrong: u64,
    /// Whether a pass is under way.
    pub is_under_way: bool,
    /// Good files in the pass that is under way, else in the last one.
    pub files_now: u64,
    /// Bytes of them.
    pub bytes_now: u64,
    /// Files that were wrong in it.
    pub wrong_now: u64,
    /// The first of those.
    pub examples: Vec<(String, Error)>,
}

/// What a site that follows a volume holds in the background.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    /// Folders that the home's policies want held here, as far as they are.
    pub by_policy: Vec<String>,
    /// Whether nothing is brought for now.
    pub is_paused: bool,
    /// Whether something is being brought.
    pub is_running: bool,
    /// Files that are to be held and are not.
    pub files_to_go: u64,
    /// Bytes of them.
    pub bytes_to_go: u64,
    /// Bytes a second, while a transfer runs.
    pub rate: Option<u64>,
    /// Why it does not come further.
    pub trouble: Option<Error>,
}

/// How a site that follows a volume stands with its home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    /// The last record that the home told of.
    pub last: u64,
    /// Seconds since the home was heard, if it was since the PoP started.
    pub heard_s: Option<u64>,
    /// Whether all of its tree has come here.
    #[serde(default)]
    pub is_whole: bool,
    /// Whether this site may change the volume.
    pub writes: bool,
    /// Own changes that the home does not have yet.
    pub pending: u64,
    /// Seconds since the oldest of them was seen to wait.
    pub waiting_s: Option<u64>,
    /// Own changes that the home refused, the last ones.
    pub refused: Vec<Refusal>,
    /// The other sites that follow, as far as the home told: they give out what they hold.
    #[serde(default)]
    pub fellows: Vec<String>,
    /// What was done when the home was found to be restored from a backup, the last time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub restored: Option<RestoreReport>,
}

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scanned {
    /// When it ended, in seconds since 1970.
    pub ended_unix: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Directories.
    pub dirs: u64,
    /// Names that the catalogue did not have.
    pub new: u64,
    /// Names that were gone.
    pub gone: u64,
    /// Files with other content.
    pub changed: u64,
    /// Other modes, owners or times alone.
    pub attributes: u64,
    /// What could not be looked at or stored.
    pub failed: u64,
    /// Some of all these.
    pub examples: Vec<String>,
    /// Whether the count of what is in the volume was wrong, and was set right.
    #[serde(default)]
    pub was_miscounted: bool,
}

impl Volumes {
    /// None is open yet; their trees are in the database that is `named`.
    pub fn new(home: &Home, named: &str) -> Self {
        let (home, named) = (home.clone(), named.into());
        Volumes { home, named, open: Mutex::default(), claimed: Mutex::default(), replaced: Mutex::default() }
    }

    fn replaced_ones(&self) -> MutexGuard<'_, HashMap<VolumeId, Error>> {
        self.replaced.lock().expect("no thread panics while it holds the lock")
    }

    /// Why the directory of a volume that is only read here is not the one that it was, until it is accepted.
    pub fn replaced(&self, id: &VolumeId) -> Option<Error> {
        self.replaced_ones().get(id).cloned()
    }

    fn open_ones(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no thread panics while it holds the lock")
    }

    /// The tree of a volume, made if it is not there.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn tree(&self, id: VolumeId) -> Result<Arc<VolumeTree>, Error> {
        self.trees(&mut self.open_ones())?.tree(id)
    }

    /// The own changes of a volume that is followed, over the copy of its tree.
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

    /// Where it is noted what was done to plain files of a followed volume.
    fn journal(&self, id: VolumeId) -> PathBuf {
        self.home.state_dir().join("volumes").join(format!("{}.unkept", volume_config::id_text(&id)))
    }

    /// The leases on a volume; a file tells the next PoP whether anybody holds some.
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

    /// Opens a volume, or gives the one that is open.
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

    /// Closes a volume and forgets its tree; the plain files stay.
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
        // It may never have been there.
        let _ = std::fs::remove_file(self.journal(id));
        let _ = std::fs::remove_file(self.lease_note(id));
        match &open.trees {
            Some(trees) => trees.remove(id),
            None => Trees::open(&self.named, &self.home)?.remove(id),
        }
    }

    /// Makes sure that the directory of a followed volume's replicas is nobody else's, and marks it. Where this site writes it is
    /// the one that it was, too: something may be in that one alone. Where it reads, another one is used and is a condition.
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

    /// Closes a volume in whose place is another directory now; it is opened anew when it is asked for.
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

    /// Closes those that are not there any more.
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
    /// Opens the plain files and starts the keeper.
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
        // Once, before anybody asks: two who asked at a time would hear of two logs.
        let fresh = fresh_incarnation()?;
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

    /// Whether the plain files are what is at their path now.
    pub fn is_in_place(&self) -> bool {
        let there = identity_at(&self.at.root.join(OsStr::from_bytes(self.at.path.as_bytes())));
        there.ok() == self.store.identity().ok()
    }

    /// The leases of sites that follow it.
    pub fn site_leases(&self) -> &HomeLeases {
        &self.shared.site_leases
    }

    /// Its plain files.
    pub fn plain(&self) -> &Arc<LocalStore> {
        &self.store
    }

    /// Its catalogue.
    pub fn tree(&self) -> &Arc<VolumeTree> {
        &self.tree
    }

    /// Returns when all that was changed through the volume is in the catalogue and its log.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.notes.flush()
    }

    /// Does something that makes plain files durable while the catalogue is brought up to date, and returns when both are.
    ///
    /// # Errors
    /// Those of either.
    fn flush_with(&self, sync: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let asked = self.shared.notes.ask_all();
        sync()?;
        asked.map_or(Ok(()), |asked| self.shared.notes.wait(&asked))
    }

    /// Hands a site that writes first what it may add; only `writers` have such shares.
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

    /// What such sites may still add under a limit.
    pub fn handed(&self, owner: Option<&str>) -> Use {
        self.shared.quotas.handed(owner)
    }

    /// Goes through the whole tree now, and returns when that is done or `go_on` says no.
    ///
    /// # Errors
    /// Why the catalogue does not follow the files; `Cancelled`.
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

    /// How it stands.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn standing(&self) -> Result<Standing, Error> {
        let (told, watch) = (self.shared.told(), &self.shared.watch);
        Ok(Standing {
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

/// The directory of a volume's plain files.
/// A number of a node that no earlier run of the PoP has given, whatever the tree was restored from: it grows with the clock, faster
/// than files are made for long.
fn least_number() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() << 12
}

fn folder(at: &VolumeLocation) -> PathBuf {
    at.root.join(Path::new(std::ffi::OsStr::from_bytes(at.path.as_bytes())))
}
