//! Replicas: the plain files of followed volumes that this site holds.
//!
//! Replicas arrive by transfers from the home or from another site that holds them (`pull`). Then they are
//! compared with the catalogue, and those that match its versions count as held. Guarantee: a replica that is not
//! held is never served, and one found corrupt is not held. Eviction is in `eviction`.

use super::pull::{Came, How, Lacking};
use crate::access::Access;
use crate::snapshot::Snapshot;
use crate::transfer::Watch;
use crate::volume::VolumeService;
use crate::volume::tree_walk::{Counts as _, WalkedFile, each_file, each_held, each_page, locate, no_volume};
use crate::volume::verdict::{Checked, Read, Verdict, check, found_wrong, lost, verify_one};
use crate::volume_content::Contents;
use renkei_catalogue::{HeldReplica, VolumeTree};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Kind, Node, NodeId};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::volume::{Holding, Tally};
use renkei_mover::Stop;
use renkei_net::identity::account::Account;
use renkei_store::local::LocalStore;
use renkei_store::tree::dir_of;
use renkei_store::tree::make_dirs_as;
use renkei_store::{Detail, Dir, Store};
use renkei_volume::VolumeConfig;
use renkei_volume::follower::outbox::Outbox;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum files that one transfer lists by name; beyond it the transfer walks their folder.
const MAX_NAMED: usize = 1000;
/// Maximum rounds of one request that fetch files changed meanwhile.
const ROUNDS: u32 = 3;
/// Timeout for a local change to reach the home, and the poll interval.
const SENT_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A followed volume, opened for its replicas.
pub(crate) struct Copy {
    pub(crate) name: String,
    pub(crate) facts: VolumeConfig,
    pub(crate) contents: Contents,
    pub(crate) account: Account,
}

impl VolumeService {
    /// Pulls replicas of the files at a place and below it.
    ///
    /// # Errors
    /// Those of the home and of a transfer; `NotAllowed` for guests, and without a storage for replicas.
    pub fn replicate(&self, access: &Access, place: &Place, stop: &Stop) -> Result<Tally, Error> {
        let copy = self.copy(access, place)?;
        self.hold_below(access, &copy, &place.path, &|_, _| (), stop).map(|(_, tally)| tally)
    }

    /// Pulls replicas of all files at a path and below it, on behalf of the PoP itself; `begin` is called with the
    /// missing files when their transfer is about to begin.
    ///
    /// # Errors
    /// As [`VolumeService::replicate`].
    pub(crate) fn hold_in_background(
        &self,
        name: &str,
        facts: &VolumeConfig,
        path: &RelPath,
        begin: &dyn Fn(Holding, &Watch),
        stop: &Stop,
    ) -> Result<Holding, Error> {
        let (access, copy) = self.own_copy(name, facts)?;
        self.hold_below(&access, &copy, path, begin, stop).map(|(found, _)| found)
    }

    /// Pulls replicas of those of some files that lie in a folder, on behalf of the PoP itself; returns how many
    /// are still missing.
    ///
    /// # Errors
    /// As [`VolumeService::replicate`].
    pub(crate) fn hold_some(
        &self,
        name: &str,
        facts: &VolumeConfig,
        folder: &RelPath,
        ids: &BTreeSet<NodeId>,
        begin: &dyn Fn(Holding, &Watch),
        stop: &Stop,
    ) -> Result<usize, Error> {
        let (access, copy) = self.own_copy(name, facts)?;
        let (found, files) = lacking_of(&copy.contents.pending, folder, ids)?;
        if files.is_empty() {
            return Ok(0);
        }
        let watch = Watch::default();
        begin(found, &watch);
        self.mend(&access, &copy, folder, &files, (&watch, stop)).map(|left| left.len())
    }

    /// Opens a followed volume on behalf of the PoP itself.
    pub(crate) fn own_copy(&self, name: &str, facts: &VolumeConfig) -> Result<(Access, Copy), Error> {
        let (snapshot, account) = (self.context.snapshot(), Account::lookup_to_lend(&facts.account)?);
        let access = Access::of_the_pop(snapshot.clone(), &account);
        let contents = snapshot.contents(name, facts)?;
        let copy = Copy { name: name.into(), facts: facts.clone(), contents, account };
        Ok((access, copy))
    }

    /// Pulls missing files, in several rounds if the volume changes meanwhile.
    fn hold_below(
        &self,
        access: &Access,
        copy: &Copy,
        path: &RelPath,
        begin: &dyn Fn(Holding, &Watch),
        stop: &Stop,
    ) -> Result<(Holding, Tally), Error> {
        let mut found = self.hold_once(access, copy, path, begin, stop)?;
        for _ in 1..ROUNDS {
            if found.0.missing_files == 0 {
                break;
            }
            found = self.hold_once(access, copy, path, begin, stop)?;
        }
        Ok(found)
    }

    fn hold_once(
        &self,
        access: &Access,
        copy: &Copy,
        path: &RelPath,
        begin: &dyn Fn(Holding, &Watch),
        stop: &Stop,
    ) -> Result<(Holding, Tally), Error> {
        let plain = copy.plain()?;
        let (tree, pending) = (copy.contents.tree.clone(), &copy.contents.pending);
        let (found, lacking) = missing(&tree, pending, path)?;
        let watch = Watch::default();
        let mut tally = Tally { files: found.files, bytes: found.bytes, ..Tally::default() };
        if found.missing_files == 0 {
            return Ok((found, tally));
        }
        begin(found.clone(), &watch);
        self.pull_from_any(access, copy, path, lacking, (&watch, stop), |came| {
            let (plain, tree, below) = (plain.clone(), tree.clone(), path.clone());
            let (came, stop) = (came.clone(), stop.clone());
            tally = copy.run("adopt", move || adopt_all(&plain, &tree, &below, &came, &stop))?;
            Ok(if tally.failed == 0 { None } else { Some(missing(&copy.contents.tree, pending, path)?.1) })
        })?;
        let missing_bytes = found.bytes.saturating_sub(tally.bytes);
        let trouble = tally.failures.first().map(|failure| failure.error.clone());
        Ok((Holding { missing_files: tally.failed, missing_bytes, trouble, ..found }, tally))
    }

    /// Reads the plain files at a place and below it that this site holds, and compares them with their digests;
    /// where no digest was known it is stored now. Corrupt files are no longer served.
    ///
    /// # Errors
    /// As [`VolumeService::evict`]; with `repair` as [`VolumeService::replicate`].
    pub fn verify(&self, access: &Access, place: &Place, repair: bool, stop: &Stop) -> Result<Tally, Error> {
        let snapshot = self.context.snapshot();
        let facts = snapshot.volumes.get(&place.storage).ok_or_else(|| no_volume(place))?;
        if !snapshot.follows(facts) {
            return self.verify_at_home(access, place, facts, repair, stop);
        }
        let copy = self.copy(access, place)?;
        let (plain, tree) = (copy.plain()?, copy.contents.tree.clone());
        let (path, stopped) = (place.path.clone(), stop.clone());
        let only_here = self.only_here(&copy, &path)?;
        let (tally, wrong) = copy.run("verify", move || {
            let mut wrong = Vec::new();
            let tally = verify_below(
                &tree,
                &path,
                &stopped,
                |found| check(&*plain, found),
                |found, known| {
                    if only_here.contains(&found.id) && is_there(&plain, &found.path) {
                        // A modified only copy is better than none.
                        return Ok(());
                    }
                    give_up(&*plain, &tree, found, known)?;
                    wrong.push((found.path.clone(), known));
                    Ok(())
                },
            )?;
            Ok((tally, wrong))
        })?;
        let left = match repair {
            true => self.mend(access, &copy, &RelPath::root(), &wrong, (&Watch::default(), stop)),
            // Pinned folders are reconciled in the background anyway.
            false => Ok(wrong.iter().map(|(path, _)| path.clone()).collect()),
        };
        self.holding.touch_all(&facts.id);
        let wrong = wrong.into_iter().map(|(path, _)| path).collect();
        let fates = Fates { wrong, left: left?.into_iter().collect() };
        let fellows = copy.contents.pending.fellows();
        Ok(fates.told(tally, repair, |path| {
            self.read_through.told_asked(&self.read_through.sources(Some(&copy.facts.home), &fellows, path))
        }))
    }

    /// Fetches files again that the scrub found corrupt, on behalf of the PoP itself.
    ///
    /// # Errors
    /// As [`VolumeService::replicate`].
    pub(crate) fn repair_in_background(
        &self,
        name: &str,
        facts: &VolumeConfig,
        wrong: &[Wrong],
    ) -> Result<(), Error> {
        let (access, copy) = self.own_copy(name, facts)?;
        self.give_up_own(&copy, wrong)?;
        let how = (&Watch::default(), &Stop::default());
        let left = self.mend(&access, &copy, &RelPath::root(), wrong, how)?;
        tracing::info!(target: "audit", volume = name, files = wrong.len(), left = left.len(), "brought anew");
        Ok(())
    }

    /// Gives up corrupt replicas that were written here, if the home has their content.
    fn give_up_own(&self, copy: &Copy, wrong: &[Wrong]) -> Result<(), Error> {
        let (plain, tree) = (copy.plain()?, copy.contents.tree.clone());
        let (mut own, mut versions) = (Vec::new(), Vec::new());
        for (path, known) in wrong {
            let Ok((id, node)) = locate(&tree, path) else { continue };
            let Kind::File(content) = node.kind.clone() else { continue };
            if tree.held(id)?.is_some_and(|held| held.is_own()) && !copy.contents.pending.is_unsent(id) {
                versions.push((id, content.version));
                own.push((WalkedFile { id, path: path.clone(), content, node }, *known));
            }
        }
        let only_here = self.not_kept(copy, &versions).unwrap_or_else(|error| {
            tracing::info!(%error, "a corrupt file that was written here is kept");
            versions.iter().map(|(id, _)| *id).collect()
        });
        own.retain(|(found, _)| !only_here.contains(&found.id));
        copy.run("give up", move || {
            own.iter().try_for_each(|(found, known)| give_up(&*plain, &tree, found, *known))
        })
    }

    /// Pulls files by name, many in one transfer; returns those that are still missing.
    fn mend(
        &self,
        access: &Access,
        copy: &Copy,
        below: &RelPath,
        files: &[Wrong],
        how: How<'_>,
    ) -> Result<Vec<RelPath>, Error> {
        let mut all_left = Vec::new();
        for part in files.chunks(MAX_NAMED) {
            let mut left = part.to_vec();
            let pulled = self.pull_from_any(access, copy, below, named(&left), how, |came| {
                let (plain, tree, part) = (copy.plain()?, copy.contents.tree.clone(), left.clone());
                let (came, stop) = (came.clone(), how.1.clone());
                left = copy.run("adopt", move || adopt_each(&plain, &tree, &part, &came, &stop))?;
                Ok(if left.is_empty() { None } else { Some(named(&left)) })
            });
            pulled?;
            all_left.extend(left.into_iter().map(|(path, _)| path));
        }
        Ok(all_left)
    }

    /// Opens the volume of a place, if this site holds replicas of it.
    pub(crate) fn copy(&self, access: &Access, place: &Place) -> Result<Copy, Error> {
        let snapshot = self.context.snapshot();
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
        let account = Account::lookup_to_lend(&facts.account)?;
        account.check_servable()?;
        let contents = snapshot.contents(&place.storage, facts)?;
        await_sent(&contents, &place.path)?;
        let (name, facts) = (place.storage.clone(), facts.clone());
        Ok(Copy { name, facts, contents, account })
    }
}

/// The plain files of a volume of this site.
pub(crate) fn plain_of_home(snapshot: &Snapshot, facts: &VolumeConfig) -> Result<Arc<dyn Store>, Error> {
    Ok(Arc::new(snapshot.storage(&facts.storage)?.local()?.below(&facts.place()?)?))
}

impl Copy {
    pub(crate) fn plain(&self) -> Result<Arc<LocalStore>, Error> {
        let none = || {
            let cause = "it was subscribed to without --storage";
            Error::new(Code::NotAllowed, "replicate", format!("/{}", self.name), cause)
        };
        self.contents.plain.clone().ok_or_else(none)
    }

    /// Runs work as the account that owns the replicas.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.account.run(name, work)
    }

    /// Opens the directory of the replicas and creates the parent directories of some paths.
    pub(crate) fn make_base(&self, paths: &[RelPath]) -> Result<Arc<dyn Dir>, Error> {
        let (plain, pending) = (self.plain()?, self.contents.pending.clone());
        let above: BTreeSet<RelPath> = paths.iter().filter_map(RelPath::parent).collect();
        self.run("open", move || {
            let root = plain.root()?;
            let mode_of = |path: &RelPath| pending.mode_of_dir(path);
            above.iter().try_for_each(|path| make_dirs_as(&root, path, &mode_of).map(drop))?;
            Ok(root)
        })
    }
}

/// The files among `ids` that lie in a folder and are not held, with their expected digests where a replica was
/// found corrupt.
fn lacking_of(
    pending: &Outbox,
    folder: &RelPath,
    ids: &BTreeSet<NodeId>,
) -> Result<(Holding, Vec<Wrong>), Error> {
    let (tree, ids) = (pending.tree(), ids.iter().copied().collect::<Vec<_>>());
    let (mut found, mut files) = (Holding::nothing(folder.clone()), Vec::new());
    let (nodes, names, held) = (tree.nodes(&ids)?, tree.names_of(&ids)?, tree.held_of(&ids)?);
    for id in ids {
        let Some(Node { kind: Kind::File(content), .. }) = nodes.get(&id) else { continue };
        let held = held.get(&id);
        if held.is_some_and(|held| held.is_of(content)) || pending.is_unsent(id) {
            continue;
        }
        for spot in names.get(&id).map(Vec::as_slice).unwrap_or_default() {
            let Some(path) = pending.path_of(spot)?.filter(|path| path.starts_with(folder)) else { continue };
            found.missing_files += 1;
            found.missing_bytes = found.missing_bytes.saturating_add(content.size);
            files.push((path, held.and_then(|held| held.expected(content.version))));
        }
    }
    Ok((found, files))
}

/// A request for files by name.
fn named(wrong: &[Wrong]) -> Lacking {
    Lacking::Files(wrong.iter().map(|(path, _)| path.clone()).collect())
}

/// The missing files at a path and below it: listed by name, unless they are too many.
fn missing(tree: &VolumeTree, pending: &Outbox, path: &RelPath) -> Result<(Holding, Lacking), Error> {
    let (mut paths, mut found) = (Vec::new(), Holding::nothing(path.clone()));
    each_held(tree, path, &mut |file, is_held| {
        found.files += 1;
        found.bytes = found.bytes.saturating_add(file.content.size);
        // Content written here and not yet pushed to the home is newer.
        if !is_held && !pending.is_unsent(file.id) {
            found.missing_files += 1;
            found.missing_bytes = found.missing_bytes.saturating_add(file.content.size);
            if paths.len() <= MAX_NAMED {
                paths.push(file.path);
            }
        }
    })?;
    let lacking = if paths.len() <= MAX_NAMED { Lacking::Files(paths) } else { Lacking::Below(path.clone()) };
    Ok((found, lacking))
}

/// Marks as held the plain files at a path and below it that match the catalogue; held ones stay as they are.
fn adopt_all(
    plain: &LocalStore,
    tree: &VolumeTree,
    path: &RelPath,
    came: &Came,
    stop: &Stop,
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_page(tree, path, &mut |page| {
        stop.check()?;
        let known = tree.held_of(&page.iter().map(|found| found.id).collect::<Vec<_>>())?;
        let mut adopted = Vec::new();
        for found in page {
            let before = known.get(&found.id);
            if before.is_some_and(|held| held.is_of(&found.content)) {
                tally.count(&found);
                continue;
            }
            let digest = before.and_then(|held| held.expected(found.content.version));
            match adopt(plain, &found, before, came)
                .and_then(|held| with_digest(plain, &found, held, digest, stop))
            {
                Ok(held) => {
                    tally.count(&found);
                    adopted.push((found.id, Some(held)));
                }
                Err(error) if error.code == Code::Cancelled => return Err(error),
                Err(error) => {
                    drop_if_wrong(plain, &found.path, &error);
                    tally.fail(&found.path, error);
                }
            }
        }
        tree.set_held(&adopted)
    })?;
    Ok(tally)
}

/// Marks as held those of some plain files that match the catalogue and returns the others. Where a digest is known
/// the file is read: a fetched replica may be as corrupt as the one before.
fn adopt_each(
    plain: &LocalStore,
    tree: &VolumeTree,
    files: &[Wrong],
    came: &Came,
    stop: &Stop,
) -> Result<Vec<Wrong>, Error> {
    let (mut left, mut adopted) = (Vec::new(), Vec::new());
    for (path, digest) in files {
        let found = match locate(tree, path) {
            Ok((id, node)) => match node.kind.clone() {
                Kind::File(content) => WalkedFile { id, path: path.clone(), content, node },
                _ => continue,
            },
            // It was removed from the volume meanwhile.
            Err(error) if error.code == Code::PathNotFound => continue,
            Err(error) => return Err(error),
        };
        let before = tree.held(found.id)?;
        match adopt(plain, &found, before.as_ref(), came)
            .and_then(|held| with_digest(plain, &found, held, *digest, stop))
        {
            Ok(held) => adopted.push((found.id, Some(held))),
            Err(error) if error.code == Code::Cancelled => return Err(error),
            Err(error) => {
                tracing::warn!(%path, %error, "a corrupt file could not be repaired");
                drop_if_wrong(plain, path, &error);
                left.push((path.clone(), *digest));
            }
        }
    }
    tree.set_held(&adopted)?;
    Ok(left)
}

/// Removes a file that arrived corrupt: the next transfer would take it for unchanged.
fn drop_if_wrong(plain: &LocalStore, path: &RelPath, error: &Error) {
    if error.code == Code::DigestMismatch {
        let _ = dir_of(plain, path).and_then(|(dir, name)| dir.remove_file(name));
    }
}

/// Checks a plain file against its expected digest, if one is known. A file that was there already is read:
/// matching size and mtime tell nothing of its bytes.
fn with_digest(
    plain: &LocalStore,
    found: &WalkedFile,
    held: HeldReplica,
    digest: Option<[u8; 32]>,
    stop: &Stop,
) -> Result<HeldReplica, Error> {
    let path = &found.path;
    let wanted = digest.or(found.content.digest.filter(|_| held.digest.is_none()));
    let Some(digest) = wanted else { return Ok(held) };
    let (has, was_received) = match held.digest {
        Some(has) => (has, true),
        None => (check(plain, &Checked { path, held: &held, stop })?.0, false),
    };
    if has != digest {
        return Err(not_as_known(path, was_received));
    }
    Ok(HeldReplica { digest: Some(digest), ..held })
}

/// The error for a plain file that differs from its digest; `was_received` says that the transfer computed it.
fn not_as_known(path: &RelPath, was_received: bool) -> Error {
    let cause = match was_received {
        true => "the received data differs from the file's digest: the replica at the source is corrupt too",
        false => {
            "the file that is here, with the size and time of the version, differs from the file's digest: it is corrupt, or was changed"
        }
    };
    Error::new(Code::DigestMismatch, "repair", path, cause)
}

/// Waits until a local change has reached the home: before, no other site can know of it.
///
/// # Errors
/// `Stalled` on timeout; `CatalogueFailed`.
pub(crate) fn await_sent(contents: &Contents, path: &RelPath) -> Result<(), Error> {
    let Contents { tree, pending, .. } = contents;
    let until = Instant::now() + SENT_WITHIN;
    while tree.at(path)?.is_none() && pending.at(path)?.is_some() {
        if Instant::now() > until {
            let cause = "it was made here, and the home has not heard of it yet";
            return Err(Error::new(Code::Stalled, "look up", path, cause));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Outcome of the repair of corrupt files.
struct Fates {
    /// Corrupt files, no longer served.
    wrong: BTreeSet<RelPath>,
    /// Those that could not be fetched again.
    left: BTreeSet<RelPath>,
}

impl Fates {
    /// The tally of a check with the outcome added to each failure; `asked` names the sites that were asked for a
    /// file.
    fn told(&self, mut tally: Tally, repair: bool, asked: impl Fn(&RelPath) -> String) -> Tally {
        for failure in &mut tally.failures {
            let (path, error) = (&failure.path, &failure.error);
            failure.error = match (self.wrong.contains(path), self.left.contains(path)) {
                (false, _) => lost(error, "no other site has a replica, so the file is left unchanged"),
                (true, false) => found_wrong(error, "it was fetched again from another site"),
                (true, true) if repair => lost(error, &asked(path)),
                (true, true) => found_wrong(error, "it is no longer served"),
            };
        }
        tally
    }
}

/// The held state of a plain file that matches the version in the catalogue.
fn adopt(
    plain: &LocalStore,
    found: &WalkedFile,
    before: Option<&HeldReplica>,
    came: &Came,
) -> Result<HeldReplica, Error> {
    let (dir, name) = dir_of(plain, &found.path)?;
    let (entry, _) = dir.entry(name, Detail::Basic)?;
    match entry.kind {
        EntryKind::File { stamp, .. }
            if (stamp.size, stamp.mtime) == (found.content.size, found.node.attributes.mtime)
                && !before.is_some_and(|held| held.is_other(&found.content, &stamp)) =>
        {
            let digest = came.check(&found.path, &found.content)?;
            Ok(HeldReplica { version: found.content.version, stamp, digest })
        }
        _ => {
            let cause = "it has changed at its home; replicate it again";
            Err(Error::new(Code::SourceChanged, "replicate", &found.path, cause))
        }
    }
}

/// Verifies the held files at a path and below it: `check` reads a file and returns its digest, `on_wrong` gives up
/// a corrupt one.
fn verify_below(
    tree: &VolumeTree,
    path: &RelPath,
    stop: &Stop,
    check: impl Fn(&Checked<'_>) -> Result<Read, Error>,
    mut on_wrong: impl FnMut(&WalkedFile, Option<[u8; 32]>) -> Result<(), Error>,
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    each_file(tree, path, &mut |found| match verify_one(tree, &found, stop, &check)? {
        Verdict::NotHeld => match tree.held(found.id)?.filter(|held| held.is_lost(found.content.version)) {
            Some(held) => {
                let cause = "it was found missing or corrupt before, and has not been fetched again";
                tally.fail(&found.path, Error::new(Code::ReplicaWrong, "verify", &found.path, cause));
                on_wrong(&found, held.digest)
            }
            None => Ok(()),
        },
        Verdict::Good => {
            tally.count(&found);
            Ok(())
        }
        Verdict::Wrong(error, known) => {
            tally.fail(&found.path, error);
            on_wrong(&found, known)
        }
    })?;
    Ok(tally)
}

/// A corrupt file, with the expected digest.
pub(crate) type Wrong = (RelPath, Option<[u8; 32]>);

fn is_there(plain: &LocalStore, path: &RelPath) -> bool {
    let looked = dir_of(plain, path).and_then(|(dir, name)| dir.entry(name, Detail::Basic));
    !looked.is_err_and(|error| matches!(error.code, Code::PathNotFound | Code::NotADirectory))
}

/// Gives up a corrupt replica: it is no longer held, and its expected digest is kept for the next one. The caller
/// ensures that it is not the only copy.
pub(crate) fn give_up(
    plain: &dyn Store,
    tree: &VolumeTree,
    found: &WalkedFile,
    known: Option<[u8; 32]>,
) -> Result<(), Error> {
    let version = found.content.version;
    let lost =
        known.map_or_else(|| HeldReplica::lost(version), |digest| HeldReplica::spoiled(version, digest));
    tree.set_held(&[(found.id, Some(lost))])?;
    let _ = dir_of(plain, &found.path).and_then(|(dir, name)| dir.remove_file(name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_is_not_reported_as_received() {
        let path = RelPath::parse(b"run/a").unwrap();
        let (here, received) = (not_as_known(&path, false), not_as_known(&path, true));
        assert_eq!((here.code, received.code), (Code::DigestMismatch, Code::DigestMismatch));
        assert!(here.cause.starts_with("the file that is here") && !here.cause.contains("source"), "{here}");
        assert!(received.cause.contains("the replica at the source is corrupt too"), "{received}");
    }
}
