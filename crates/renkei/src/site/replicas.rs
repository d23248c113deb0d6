//! Replicas: the plain files of followed volumes that this site holds.
//!
//! They come by a transfer from the home, like any other: verified, durable, resumed where it stopped. Then they are compared
//! with the catalogue, and those count as held that are what it names. Guarantee: a replica that is not held is never given
//! out, and one that was found to be wrong is not held. The home has every file, so that no replica is the last.

use super::Site;
use super::access::Access;
use super::fetching::Contents;
use super::files::checksum;
use super::running::Running;
use super::snapshot::Snapshot;
use super::transfer::{Watch, running};
use crate::catalogue::{Held, VolumeTree};
use crate::identity::account::Account;
use crate::mover::receive::{ReceiveJob, receive, unlimited};
use crate::mover::{Stop, fresh_id, hex};
use crate::store::local::LocalStore;
use crate::store::{Detail, Dir, Store};
use crate::volume::Facts;
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Content, Kind, Name, Node, NodeId, ROOT, Spot};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::message::{
    Algorithm, Class, EntryFailure, Existing, OpenReceive, OpenSend, ReceiveOptions, Request, Source,
};
use renkei_core::wire::volume::Tally;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Names read from the catalogue, and files noted in it, at once.
const PAGE: usize = 1000;
/// Files that one transfer names each; where more are missing it goes through their folder.
const MAX_NAMED: usize = 1000;
/// How often what changed meanwhile is brought within one request.
const ROUNDS: u32 = 3;
/// Failures that are listed.
const MAX_LISTED: usize = 100;
/// Data streams at most; the home decides.
const MAX_STREAMS: u16 = 64;

/// A followed volume, opened for its replicas.
struct Copy {
    name: String,
    facts: Facts,
    contents: Contents,
    account: Account,
}

/// A file of the catalogue.
pub(super) struct Found {
    id: NodeId,
    path: RelPath,
    content: Content,
    node: Node,
}

impl Site {
    /// Holds replicas of the files at a place and below it.
    ///
    /// # Errors
    /// What the home says, and those of a transfer; `NotAllowed` where nothing is held.
    pub fn replicate(&self, access: &Access, place: &Place, stop: &Stop) -> Result<Tally, Error> {
        let copy = self.copy(access, place)?;
        self.hold_below(access, &copy, &place.path, stop)
    }

    /// Holds replicas of all files below the folders that the administrator wants held here; whether all of them are.
    ///
    /// # Errors
    /// As [`Site::replicate`].
    pub(super) fn hold_all(&self, name: &str, facts: &Facts, stop: &Stop) -> Result<bool, Error> {
        let (snapshot, account) = (self.snapshot(), Account::lookup(&facts.account)?);
        let access = Access::of_the_pop(snapshot.clone(), &account);
        let contents = snapshot.contents(name, facts)?;
        let copy = Copy { name: name.into(), facts: facts.clone(), contents, account };
        let mut is_whole = true;
        for folder in &facts.hold {
            is_whole &=
                self.hold_below(&access, &copy, &RelPath::parse(folder.as_bytes())?, stop)?.failed == 0;
        }
        Ok(is_whole)
    }

    /// Brings what is missing; again, if the volume went on meanwhile.
    fn hold_below(&self, access: &Access, copy: &Copy, path: &RelPath, stop: &Stop) -> Result<Tally, Error> {
        let mut tally = Tally::default();
        for _ in 0..ROUNDS {
            tally = self.hold_once(access, copy, path, stop)?;
            if tally.failed == 0 {
                break;
            }
        }
        Ok(tally)
    }

    fn hold_once(&self, access: &Access, copy: &Copy, path: &RelPath, stop: &Stop) -> Result<Tally, Error> {
        let plain = copy.plain()?;
        let tree = copy.contents.tree.clone();
        match missing(&tree, path)? {
            Some(sources) if sources.is_empty() => return count_held(&tree, path),
            Some(sources) => self.pull(access, copy, sources, false, stop)?,
            None => self.pull(access, copy, vec![path.clone()], true, stop)?,
        }
        let (path, stop) = (path.clone(), stop.clone());
        copy.run("adopt", move || adopt_all(&plain, &tree, &path, &stop))
    }

    /// Holds no replicas at a place and below it any more.
    ///
    /// # Errors
    /// `CatalogueFailed`, and those of the file system.
    pub fn evict(&self, access: &Access, place: &Place, stop: &Stop) -> Result<Tally, Error> {
        let copy = self.copy(access, place)?;
        let plain = copy.plain()?;
        let (tree, path, stop) = (copy.contents.tree.clone(), place.path.clone(), stop.clone());
        copy.run("evict", move || {
            let mut tally = Tally::default();
            each_file(&tree, &path, &mut |found| {
                stop.check()?;
                if tree.held(found.id)?.is_none() {
                    return Ok(());
                }
                // Nobody is given it from here on, whether it can be removed or not.
                tree.set_held(&[(found.id, None)])?;
                let removed = dir_of(&*plain, &found.path).and_then(|(dir, name)| dir.remove_file(name));
                match removed {
                    Err(error) if error.code != Code::PathNotFound => tally.fail(&found.path, error),
                    _ => tally.count(&found),
                }
                Ok(())
            })?;
            Ok(tally)
        })
    }

    /// Reads the plain files at a place and below it that this site holds, and compares them with their digests; of those
    /// that had none the digest is kept now. A replica that is wrong is not held any more; at the home it is told.
    ///
    /// # Errors
    /// As [`Site::evict`]; with `repair` as [`Site::replicate`].
    pub fn verify(&self, access: &Access, place: &Place, repair: bool, stop: &Stop) -> Result<Tally, Error> {
        let snapshot = self.snapshot();
        let facts = snapshot.volumes.get(&place.storage).ok_or_else(|| no_volume(place))?;
        if !snapshot.follows(facts) {
            return self.verify_at_home(access, place, facts, stop);
        }
        let copy = self.copy(access, place)?;
        let (plain, tree) = (copy.plain()?, copy.contents.tree.clone());
        let (path, stopped) = (place.path.clone(), stop.clone());
        let tally = copy.run("verify", move || {
            verify_below(
                &tree,
                &path,
                &stopped,
                |found| check(&*plain, found),
                |found| {
                    tree.set_held(&[(found.id, None)])?;
                    let _ = dir_of(&*plain, &found.path).and_then(|(dir, name)| dir.remove_file(name));
                    Ok(())
                },
            )
        })?;
        for failure in tally.failures.iter().filter(|_| repair) {
            self.replicate(
                access,
                &Place { storage: place.storage.clone(), path: failure.path.clone() },
                stop,
            )?;
        }
        Ok(tally)
    }

    /// At the home nothing is taken away: the plain file is the volume's only one as far as the home knows.
    fn verify_at_home(
        &self,
        access: &Access,
        place: &Place,
        facts: &Facts,
        stop: &Stop,
    ) -> Result<Tally, Error> {
        let opened = access.open(place, false)?;
        let snapshot = self.snapshot();
        let volume = snapshot.volume(&place.storage).ok_or_else(|| no_volume(place))??;
        volume.flush()?;
        let tree = snapshot.volume_tree(facts.id)?;
        let stop = stop.clone();
        opened.run("verify", move |store, path| {
            verify_below(&tree, path, &stop, |found| check(store, found), |_| Ok(()))
        })
    }

    /// The volume that a place lies in, if replicas of it are held here.
    fn copy(&self, access: &Access, place: &Place) -> Result<Copy, Error> {
        let snapshot = self.snapshot();
        let facts = snapshot.volumes.get(&place.storage).ok_or_else(|| no_volume(place))?;
        if !snapshot.follows(facts) {
            let cause = format!("{} is its home, which has every file", snapshot.site);
            return Err(Error::new(Code::UsageInvalid, "replicate", place, cause));
        }
        access.open(place, false)?;
        if access.is_guest {
            let cause = "what this site holds is the business of those who have an account here";
            return Err(Error::new(Code::NotAllowed, "replicate", place, cause));
        }
        let account = Account::lookup(&facts.account)?;
        account.check_servable()?;
        let contents = snapshot.contents(&place.storage, facts)?;
        Ok(Copy { name: place.storage.clone(), facts: facts.clone(), contents, account })
    }

    /// Has the home send what is there and not here.
    fn pull(
        &self,
        access: &Access,
        copy: &Copy,
        paths: Vec<RelPath>,
        recursive: bool,
        stop: &Stop,
    ) -> Result<(), Error> {
        let options = ReceiveOptions { existing: Existing::SameStamp, delete: false, dry_run: false };
        let to = Place { storage: copy.facts.storage.clone(), path: copy.facts.place()? };
        // One at a time, and the next goes on where one stopped.
        let job = u64::from_le_bytes(*copy.facts.id.first_chunk().expect("16 bytes are more than 8"));
        let open = OpenReceive {
            transfer: fresh_id()?,
            job,
            to,
            options: options.clone(),
            class: Class::Normal,
            max_streams: MAX_STREAMS,
            rules: Vec::new(),
        };
        let watch = Watch::default();
        let entry = self.listed_pull(access, copy, &open, &watch, stop);
        let _listed = self.transfers.enter(job, entry)?;
        let base = copy.make_base(&paths)?;
        let journal = self.open_journal(access, &copy.account, &open, job, &*unlimited())?;
        let from = |path: &RelPath| Place { storage: copy.name.clone(), path: path.clone() };
        let sources = paths.iter().map(|path| Source { from: from(path), to: path.clone(), alone: false });
        let plain = OpenSend::plain(open.transfer, sources.collect());
        let send = OpenSend { recursive, offers: true, max_streams: MAX_STREAMS, ..plain };
        let dialler = self.dialler(&self.snapshot())?;
        let mut session = dialler.connect(&copy.facts.home)?;
        let opened = session.ask_open(Request::OpenSend(send))?;
        let streams = dialler.join(&mut session, &opened)?;
        let job = ReceiveJob {
            base,
            job,
            options,
            journal,
            account: copy.account.clone(),
            max_deferred: access.snapshot.config.limits.max_entries as usize,
            memory: unlimited(),
            side: access.site().into(),
            root: format!("/{}", copy.name),
            keep: None,
            within: vec![RelPath::root()],
            custodian: None,
        };
        let ended = receive(job, &mut session.control, streams, &watch, stop);
        self.note_end(&hex(&open.transfer), "receive", &ended);
        ended.map(drop)
    }

    /// What is shown of a pull while it runs; it ends when the volume is followed no more.
    fn listed_pull(
        &self,
        access: &Access,
        copy: &Copy,
        open: &OpenReceive,
        watch: &Watch,
        stop: &Stop,
    ) -> Running {
        let shown = format!("replicas of /{}", copy.name);
        let entry = running(access, open.transfer, "receive", shown, open.class, watch, stop);
        let (name, id) = (copy.name.clone(), copy.facts.id);
        let judge = move |now: &Arc<Snapshot>| match now.volumes.get(&name) {
            Some(facts) if facts.id == id => now.trust.endpoints(&facts.home).map(drop),
            _ => Err(Error::new(Code::VolumeUnknown, "replicate", &name, "it is not followed any more")),
        };
        Running { judge: Arc::new(judge), ..entry }
    }
}

pub(super) fn no_volume(place: &Place) -> Error {
    Error::new(Code::VolumeUnknown, "look up volume", &place.storage, "")
}

impl Copy {
    fn plain(&self) -> Result<Arc<LocalStore>, Error> {
        let none = || {
            let cause = "it was subscribed to without --storage";
            Error::new(Code::NotAllowed, "replicate", format!("/{}", self.name), cause)
        };
        self.contents.plain.clone().ok_or_else(none)
    }

    /// Does some work as the account whose files the replicas are.
    fn run<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.account.spawn(name, work)?.join().expect("a panic aborts the process")
    }

    /// Opens the directory of the replicas, and makes those above some paths.
    fn make_base(&self, paths: &[RelPath]) -> Result<Arc<dyn Dir>, Error> {
        let plain = self.plain()?;
        let above: BTreeSet<RelPath> = paths.iter().filter_map(RelPath::parent).collect();
        self.run("open", move || {
            let root = plain.root()?;
            above.iter().try_for_each(|path| make_dirs(&root, path).map(drop))?;
            Ok(root)
        })
    }
}

/// Opens a directory, made with those above it if they are missing.
pub(super) fn make_dirs(root: &Arc<dyn Dir>, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
    let mut dir = root.clone();
    for name in path.components() {
        match dir.mkdir(name, 0o755) {
            Err(error) if error.code != Code::PathExists => return Err(error),
            _ => dir = dir.child(name)?,
        }
    }
    Ok(dir)
}

/// Whether the version of now is held.
fn is_held(tree: &VolumeTree, found: &Found) -> Result<bool, Error> {
    Ok(tree.held(found.id)?.is_some_and(|held| held.version == found.content.version))
}

/// The files at a path and below it that are not held; `None` if they are too many to name each.
fn missing(tree: &VolumeTree, path: &RelPath) -> Result<Option<Vec<RelPath>>, Error> {
    let mut paths = Vec::new();
    each_file(tree, path, &mut |found| {
        if paths.len() <= MAX_NAMED && !is_held(tree, &found)? {
            paths.push(found.path);
        }
        Ok(())
    })?;
    Ok((paths.len() <= MAX_NAMED).then_some(paths))
}

pub(super) fn count_held(tree: &VolumeTree, path: &RelPath) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_file(tree, path, &mut |found| {
        if is_held(tree, &found)? {
            tally.count(&found);
        }
        Ok(())
    })?;
    Ok(tally)
}

/// Notes which plain files at a path and below it are what the catalogue names.
fn adopt_all(plain: &LocalStore, tree: &VolumeTree, path: &RelPath, stop: &Stop) -> Result<Tally, Error> {
    let (mut tally, mut adopted) = (Tally::default(), Vec::new());
    each_file(tree, path, &mut |found| {
        stop.check()?;
        match adopt(plain, &found) {
            Ok(held) => {
                tally.count(&found);
                adopted.push((found.id, Some(held)));
            }
            Err(error) => tally.fail(&found.path, error),
        }
        if adopted.len() >= PAGE { tree.set_held(&std::mem::take(&mut adopted)) } else { Ok(()) }
    })?;
    tree.set_held(&adopted)?;
    Ok(tally)
}

/// Adds up.
pub(super) trait Counts {
    /// One more file.
    fn count(&mut self, found: &Found);
    /// One for which it was not done.
    fn fail(&mut self, path: &RelPath, error: Error);
}

impl Counts for Tally {
    fn count(&mut self, found: &Found) {
        self.files += 1;
        self.bytes += found.content.size;
    }

    fn fail(&mut self, path: &RelPath, error: Error) {
        self.failed += 1;
        if self.failures.len() < MAX_LISTED {
            self.failures.push(EntryFailure { id: None, path: path.clone(), kept: false, error });
        }
    }
}

/// The node at a path.
fn locate(tree: &VolumeTree, path: &RelPath) -> Result<(NodeId, Node), Error> {
    let missing = || Error::new(Code::PathNotFound, "look up", path, "");
    let mut at = (ROOT, tree.node(ROOT)?.ok_or_else(missing)?);
    for name in path.components() {
        at = tree.child(&Spot { dir: at.0, name: Name(name.to_vec()) })?.ok_or_else(missing)?;
    }
    Ok(at)
}

/// Hands on all files at a path and below it.
pub(super) fn each_file(
    tree: &VolumeTree,
    path: &RelPath,
    work: &mut dyn FnMut(Found) -> Result<(), Error>,
) -> Result<(), Error> {
    let (id, node) = locate(tree, path)?;
    if let Kind::File(content) = node.kind.clone() {
        return work(Found { id, path: path.clone(), content, node });
    }
    let mut dirs = vec![(id, path.clone())];
    while let Some((dir, above)) = dirs.pop() {
        let mut last = None;
        loop {
            let page = tree.list(dir, last.as_ref(), PAGE)?;
            let is_last = page.len() < PAGE;
            for (name, id, node) in page {
                let path = above.child(&name.0)?;
                match node.kind.clone() {
                    Kind::Dir { .. } => dirs.push((id, path)),
                    Kind::File(content) => work(Found { id, path, content, node })?,
                    Kind::Symlink { .. } => {}
                }
                last = Some(name);
            }
            if is_last {
                break;
            }
        }
    }
    Ok(())
}

/// The directory of a plain file, and its name there.
pub(super) fn dir_of<'p>(plain: &dyn Store, path: &'p RelPath) -> Result<(Arc<dyn Dir>, &'p [u8]), Error> {
    let (parent, name) = path.split().ok_or_else(|| Error::new(Code::IsADirectory, "open", path, ""))?;
    Ok((plain.root()?.descend(&RelPath::parse(parent)?)?, name))
}

/// What is known of a plain file that is the version which the catalogue names.
fn adopt(plain: &LocalStore, found: &Found) -> Result<Held, Error> {
    let (dir, name) = dir_of(plain, &found.path)?;
    let (entry, _) = dir.entry(name, Detail::Basic)?;
    match entry.kind {
        EntryKind::File { stamp, .. }
            if (stamp.size, stamp.mtime) == (found.content.size, found.node.attributes.mtime) =>
        {
            Ok(Held { version: found.content.version, stamp, digest: found.content.digest })
        }
        _ => {
            let cause = "it changed at its home meanwhile; replicate it again";
            Err(Error::new(Code::SourceChanged, "replicate", &found.path, cause))
        }
    }
}

/// Verifies what is held at a path and below it: `check` reads a file and tells its digest, `on_wrong` does away with one.
fn verify_below(
    tree: &VolumeTree,
    path: &RelPath,
    stop: &Stop,
    check: impl Fn(&Checked<'_>) -> Result<[u8; 32], Error>,
    on_wrong: impl Fn(&Found) -> Result<(), Error>,
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_file(tree, path, &mut |found| {
        let held = tree.held(found.id)?.filter(|held| held.version == found.content.version);
        let Some(held) = held else { return Ok(()) };
        let known = held.digest.or(found.content.digest);
        match check(&Checked { path: &found.path, held: &held, stop }) {
            Ok(digest) if known.is_none_or(|known| known == digest) => {
                if held.digest.is_none() {
                    tree.set_held(&[(found.id, Some(Held { digest: Some(digest), ..held }))])?;
                }
                tally.count(&found);
                return Ok(());
            }
            Ok(_) => {
                let cause = "the disk gives other bytes than it took";
                tally.fail(&found.path, Error::new(Code::DigestMismatch, "verify", &found.path, cause));
            }
            Err(error) if error.code == Code::Cancelled => return Err(error),
            Err(error) => tally.fail(&found.path, error),
        }
        tracing::warn!(path = %found.path, "a plain file of a volume is wrong");
        on_wrong(&found)
    })?;
    Ok(tally)
}

/// A file that is to be read.
struct Checked<'a> {
    path: &'a RelPath,
    held: &'a Held,
    stop: &'a Stop,
}

/// The digest of a plain file that is as it was when it was noted.
fn check(plain: &dyn Store, checked: &Checked<'_>) -> Result<[u8; 32], Error> {
    let (dir, name) = dir_of(plain, checked.path)?;
    let file = dir.open_read(name)?;
    let facts = |stamp: &Stamp| (stamp.size, stamp.mtime, stamp.ino);
    if facts(&file.stamp()?) != facts(&checked.held.stamp) {
        let cause = "somebody changed the plain file";
        return Err(Error::new(Code::DigestMismatch, "verify", checked.path, cause));
    }
    let digest = checksum(&*file, Algorithm::Blake3, checked.stop)?;
    Ok(*digest.first_chunk().expect("BLAKE3 has 32 bytes"))
}
