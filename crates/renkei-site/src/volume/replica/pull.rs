//! Pulls of replicas: transfers of a volume's files to this site from its home, from the site that wrote them, or from
//! another one that holds them.
//!
//! They are transfers like any other: verified, durable, resumed where they stopped. The caller compares the result
//! with the catalogue, and missing files are pulled from the next site (`source_selection`).

use super::source_selection::Tried;
use crate::access::Access;
use crate::snapshot::Snapshot;
use crate::transfer::Watch;
use crate::transfer::active::Running;
use crate::transfer::history::Trace;
use crate::transfer::jobs::{note_end, open_journal, running};
use crate::volume::VolumeService;
use crate::volume::replica::service::Copy;
use crate::volume::request::ask;
use crate::volume::tree_walk::{each_file, locate};
use renkei_catalogue::VolumeId;
use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::path_key;
use renkei_core::namespace::{Content, Kind, Node};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::message::{
    BATCH_ENTRIES, Class, Existing, OpenReceive, OpenSend, ReceiveOptions, Request, Source,
};
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, VolumeReply};
use renkei_mover::hooks::OnDigest;
use renkei_mover::receive::{ReceiveJob, receive, unlimited};
use renkei_mover::{Stop, fresh_id, hex};
use renkei_net::identity::account::Account;
use renkei_store::Dir;
use renkei_volume::follower::replica_guard::ReplicaGuard;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum files of one transfer whose digests are compared with the catalogue's.
const MOST_CAME: usize = 1 << 20;
/// Maximum data streams; the sender decides.
const MAX_STREAMS: u16 = 64;

/// The digests of files received from a site, by the hash of their paths; at most [`MOST_CAME`].
pub(crate) struct Came {
    from: SiteName,
    digests: Mutex<HashMap<[u8; 16], [u8; 32]>>,
    /// The digests that the source recorded, for files without one in the catalogue.
    noted: Mutex<HashMap<[u8; 16], [u8; 32]>>,
}

impl Came {
    /// An empty set.
    pub(crate) fn of(from: &SiteName) -> Arc<Self> {
        Arc::new(Came { from: from.clone(), digests: Mutex::default(), noted: Mutex::default() })
    }

    fn all(&self) -> MutexGuard<'_, HashMap<[u8; 16], [u8; 32]>> {
        self.digests.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether nothing was received.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// The callback that records digests.
    fn on_digest(self: &Arc<Self>) -> OnDigest {
        let came = self.clone();
        Arc::new(move |path, digest| {
            let mut all = came.all();
            if all.len() < MOST_CAME {
                all.insert(path_key(path), *digest);
            }
        })
    }

    /// The digest of a received file, if known, after a comparison with the catalogue's or the source's.
    ///
    /// # Errors
    /// `DigestMismatch`.
    pub(crate) fn check(&self, path: &RelPath, content: &Content) -> Result<Option<[u8; 32]>, Error> {
        let came = self.all().get(&path_key(path)).copied();
        let noted = self.noted.lock().expect("no thread panics while it holds the lock");
        let noted = noted.get(&path_key(path)).copied();
        match (came, content.digest.or(noted)) {
            (Some(came), Some(known)) if came != known => {
                let cause = format!(
                    "the data from {} differs from the data written: a disk returns other bytes",
                    self.from
                );
                Err(Error::new(Code::DigestMismatch, "replicate", path, cause))
            }
            _ => Ok(came),
        }
    }
}

/// A transfer of a volume's files to this site.
pub(crate) struct Pull<'a> {
    /// The source site.
    pub(crate) from: &'a SiteName,
    /// The volume.
    pub(crate) name: &'a str,
    /// The volume's id.
    pub(crate) id: VolumeId,
    /// The job key, by which it is resumed.
    pub(crate) job: u64,
    /// The destination.
    pub(crate) to: Place,
    /// Its description while it runs.
    pub(crate) shown: String,
    /// Whether it is recursive.
    pub(crate) recursive: bool,
}

/// The missing files of a followed volume.
pub(crate) enum Lacking {
    /// These files.
    Files(Vec<RelPath>),
    /// The missing files of a folder.
    Below(RelPath),
}

/// The progress and the stop handle of a transfer.
pub(crate) type How<'h> = (&'h Watch, &'h Stop);

impl VolumeService {
    /// Pulls the missing files of a followed volume, from one site after the other until none is missing. `adopt`
    /// takes the received files and returns what is still missing.
    ///
    /// # Errors
    /// `Cancelled`, those of `adopt`, and, if files are missing in the end and the home did not answer, why sites
    /// could not be asked.
    pub(crate) fn pull_from_any(
        &self,
        access: &Access,
        copy: &Copy,
        path: &RelPath,
        lacking: Lacking,
        how: How<'_>,
        mut adopt: impl FnMut(&Arc<Came>) -> Result<Option<Lacking>, Error>,
    ) -> Result<(), Error> {
        let (mut tried, mut lacking, mut is_told) = (Tried::default(), lacking, false);
        let fellows = copy.contents.pending.fellows();
        for from in self.read_through.sources(Some(&copy.facts.home), &fellows, path) {
            let known = from == copy.facts.home
                || matches!(lacking, Lacking::Files(_))
                || fellows.iter().any(|fellow| fellow.site == from && fellow.has(path));
            // A site without the folder would refuse its files one by one.
            if !known && !self.holds_any(copy, &from, path, &mut tried) {
                continue;
            }
            let came = Came::of(&from);
            let pulled = self.pull(access, copy, &from, &lacking, &came, how);
            how.1.check()?;
            self.read_through.note_asked(&from, pulled.as_ref().err());
            match pulled {
                Err(error) => {
                    tried.note(&from, error);
                    if came.is_empty() {
                        continue;
                    }
                }
                Ok(()) => is_told |= from == copy.facts.home,
            }
            if let Err(error) = self.ask_digests(copy, &from, &lacking, &came) {
                tracing::info!(%from, %error, "digests that a site noted are not known");
            }
            match adopt(&came)? {
                None => return Ok(()),
                Some(left) => lacking = left,
            }
        }
        // Files that the home was asked for and did not send are reported one by one.
        if is_told { Ok(()) } else { Err(tried.into_error(&format!("/{}/{path}", copy.name))) }
    }

    /// Asks a site for the digests it recorded of files received from it: its disk may return other bytes than were
    /// written, and the catalogue does not have all digests.
    fn ask_digests(&self, copy: &Copy, from: &SiteName, lacking: &Lacking, came: &Came) -> Result<(), Error> {
        let (mut paths, mut versions) = (Vec::new(), Vec::new());
        let mut add = |path: &RelPath, id, content: &Content| {
            let key = path_key(path);
            if content.digest.is_none() && came.all().contains_key(&key) {
                paths.push(key);
                versions.push((id, content.version));
            }
        };
        match lacking {
            Lacking::Files(paths) => {
                for path in paths {
                    if let Ok((id, Node { kind: Kind::File(content), .. })) =
                        locate(&copy.contents.tree, path)
                    {
                        add(path, id, &content);
                    }
                }
            }
            Lacking::Below(path) => each_file(&copy.contents.tree, path, &mut |found| {
                add(&found.path, found.id, &found.content);
                Ok(())
            })?,
        }
        if versions.is_empty() {
            return Ok(());
        }
        let mut session = self.relay.dialler(&self.context.snapshot())?.connect(from)?;
        for (paths, versions) in paths.chunks(BATCH_ENTRIES).zip(versions.chunks(BATCH_ENTRIES)) {
            let about = AboutVolume::Digests { volume: copy.facts.id, versions: versions.to_vec() };
            let noted = match ask(&mut session, about)? {
                VolumeReply::Digests(noted) if noted.len() == versions.len() => noted,
                other => return Err(violation("digests", format_args!("{other:?}"))),
            };
            let noted = paths.iter().zip(noted).filter_map(|(path, digest)| Some((*path, digest?)));
            came.noted.lock().expect("no thread panics while it holds the lock").extend(noted);
        }
        Ok(())
    }

    /// Whether another follower holds any file at a path and below it.
    fn holds_any(&self, copy: &Copy, from: &SiteName, path: &RelPath, tried: &mut Tried) -> bool {
        let held = || {
            let mut session = self.relay.dialler(&self.context.snapshot())?.connect(from)?;
            let about = AboutVolume::Held { volume: copy.facts.id, path: path.clone() };
            match ask(&mut session, about)? {
                VolumeReply::Tally(tally) => Ok(tally.files > 0),
                other => Err(violation("held", format_args!("{other:?}"))),
            }
        };
        held().unwrap_or_else(|error: Error| {
            self.read_through.note_asked(from, Some(&error));
            tried.note(from, error);
            false
        })
    }

    /// Pulls from a site the files it has and this site lacks.
    fn pull(
        &self,
        access: &Access,
        copy: &Copy,
        from: &SiteName,
        lacking: &Lacking,
        came: &Arc<Came>,
        how: How<'_>,
    ) -> Result<(), Error> {
        let (paths, recursive) = match lacking {
            Lacking::Files(paths) => (paths.as_slice(), false),
            Lacking::Below(path) => (std::slice::from_ref(path), true),
        };
        let to = Place { storage: copy.facts.storage.clone(), path: copy.facts.place()? };
        // One at a time; with the same job key the next one resumes an interrupted one.
        let job = u64::from_le_bytes(*copy.facts.id.first_chunk().expect("16 bytes are more than 8"));
        let (name, shown) = (copy.name.as_str(), format!("replicas of /{}", copy.name));
        let pull = Pull { from, name, id: copy.facts.id, job, to, shown, recursive };
        let base = ReplicaGuard::over(copy.make_base(paths)?, copy.contents.pending.clone());
        let from = |path: &RelPath| Place { storage: copy.name.clone(), path: path.clone() };
        let sources = paths.iter().map(|path| Source { from: from(path), to: path.clone(), alone: false });
        let on_digest = Some(came.on_digest());
        self.pull_into(access, &copy.account, &pull, (base, on_digest), sources.collect(), how)
    }
    /// Pulls files of a volume from a site into a directory that lacks them.
    pub(crate) fn pull_into(
        &self,
        access: &Access,
        account: &Account,
        pull: &Pull<'_>,
        (base, on_digest): (Arc<dyn Dir>, Option<OnDigest>),
        sources: Vec<Source>,
        (watch, stop): (&Watch, &Stop),
    ) -> Result<(), Error> {
        let options = ReceiveOptions::plain(Existing::SameStamp);
        let job = pull.job;
        let open = OpenReceive {
            transfer: fresh_id()?,
            job,
            to: pull.to.clone(),
            options: options.clone(),
            class: Class::Normal,
            max_streams: MAX_STREAMS,
            rules: Vec::new(),
        };
        let _turn = self.holding.take_turn(&pull.id, stop)?;
        let entry = self.listed_pull(access, pull, &open, watch, stop);
        let listed = self.transfers.enter(job, entry)?;
        let journal = open_journal(&self.context, access, account, &open, job, &*unlimited())?;
        let plain = OpenSend::plain(open.transfer, sources);
        let send = OpenSend { recursive: pull.recursive, offers: true, max_streams: MAX_STREAMS, ..plain };
        let dialler = self.relay.dialler(&self.context.snapshot())?;
        let mut session = dialler.connect(pull.from)?;
        let opened = session.ask_open(Request::OpenSend(send))?;
        let streams = dialler.join(&mut session, &opened)?;
        listed.tell(format!("data streams open: {}", streams.len()), session.control.round_trip());
        let job = ReceiveJob {
            base,
            job,
            options,
            journal,
            account: account.clone(),
            max_deferred: access.snapshot.config.limits.max_entries as usize,
            memory: unlimited(),
            side: access.site().into(),
            root: format!("/{}", pull.name),
            keep: None,
            within: vec![RelPath::root()],
            receive_hooks: None,
            on_digest,
        };
        let ended = receive(job, &mut session.control, streams, watch, stop);
        note_end(&self.context, &self.transfers, &hex(&open.transfer), "receive", &ended);
        ended.map(drop)
    }

    /// The entry of a pull in the list of active transfers; it ends when the volume is no longer followed.
    fn listed_pull(
        &self,
        access: &Access,
        pull: &Pull<'_>,
        open: &OpenReceive,
        watch: &Watch,
        stop: &Stop,
    ) -> Running {
        let into = (pull.shown.clone(), vec![pull.name.to_owned()]);
        let entry = running(access, open.transfer, "receive", into, open.class, (watch, stop));
        let (name, id, from) = (pull.name.to_owned(), pull.id, pull.from.clone());
        let trace = Trace::begin(Some(from.clone()));
        let judge = move |now: &Arc<Snapshot>| match now.volumes.get(&name) {
            Some(facts) if facts.id == id => now.trust.endpoints(&from).map(drop),
            _ => Err(Error::new(Code::VolumeUnknown, "replicate", &name, "it no longer exists here")),
        };
        Running { judge: Arc::new(judge), trace, ..entry }
    }
}
