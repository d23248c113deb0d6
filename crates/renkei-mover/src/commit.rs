//! Performs the actions of the receiver's state machine: sync, rename, sync, acknowledge, and the end.

use super::dest_dirs::DestDirs;
use super::receive::Session;
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::mover::receiver::{Action, Done, PendingDir, PendingLink, ranges};
use renkei_core::path::RelPath;
use renkei_core::wire::message::{Control, Existing, ReceiveDone};
use renkei_core::wire::parts;
use renkei_store::Dir;
use renkei_store::checksum::read_back;
use renkei_store::temp::{is_temp_name, temp_job};
use renkei_store::tree::remove_tree;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Up to this number, files are synced one by one; beyond it one sync of the whole file system is cheaper.
const SINGLE_SYNCS: usize = 16;

/// Runs until every entry is durable or reported.
pub(super) fn run(session: &Session) -> Result<(), Error> {
    let mut places = session.places();
    while let Some(action) = session.next_action() {
        match action {
            Action::Sync { mut written, renamed } => {
                sync(session, &mut places, &mut written, &renamed)?;
                on_synced(session, &mut places, written, renamed)?;
            }
            action => {
                if perform(session, &mut places, action)? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Performs an action other than a sync; true after the last one.
pub(super) fn perform(session: &Session, places: &mut DestDirs, action: Action) -> Result<bool, Error> {
    match action {
        Action::Wait(_) | Action::Sync { .. } => {}
        Action::MakeLinks(links) => links.iter().try_for_each(|link| make_link(session, places, link))?,
        Action::RemoveOthers => remove_others(session)?,
        Action::SetDirs(dirs) => {
            remove_left(session, &dirs)?;
            dirs.iter().try_for_each(|dir| set_dir(session, dir))?;
        }
        Action::Done => {
            sync_found(session)?;
            let done = ReceiveDone { deleted: session.deleted() };
            session.control.send(&Control::ReceiveDone(done))?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Acknowledges what is durable under its final name, and renames what is durable under its temporary one.
pub(super) fn on_synced(
    session: &Session,
    places: &mut DestDirs,
    written: Vec<Done>,
    renamed: Vec<Done>,
) -> Result<(), Error> {
    let synced = session.receiver(|receiver| receiver.on_synced(written, renamed));
    if !synced.acknowledge.is_empty() {
        let ids = synced.acknowledge.iter().map(|done| done.id).collect();
        for part in parts(ranges(ids), usize::MAX) {
            session.control.send(&Control::Acked(part))?;
        }
    }
    // A file that has left its temporary name can only be resumed if the journal has all its extents.
    session.write_journal()?;
    for done in synced.rename {
        match rename(places, &done.path) {
            Ok(()) => {
                session.note_arrived(&done.path);
                session.receiver(|receiver| receiver.on_renamed(session.now(), done));
            }
            Err(error) => session.on_entry_failed(done.id, &done.path, error)?,
        }
    }
    Ok(())
}

/// Makes the files that were found in place durable: an earlier run may have ended before it synced them.
fn sync_found(session: &Session) -> Result<(), Error> {
    match session.existing() {
        Existing::SameStamp | Existing::SameContent if !session.dry_run() => session.base().sync_fs(),
        _ => Ok(()),
    }
}

/// Makes files and names durable.
pub(super) fn sync(
    session: &Session,
    places: &mut DestDirs,
    written: &mut [Done],
    renamed: &[Done],
) -> Result<(), Error> {
    // The order of discovery groups the files of a directory: each directory is opened once.
    written.sort_unstable_by_key(|done| done.id);
    if session.dry_run() {
        return Ok(());
    }
    if written.len() + renamed.len() <= SINGLE_SYNCS {
        for done in &*written {
            let temp = places.temp(&done.path);
            let place = places.find(&done.path)?;
            place.dir.sync_file(&temp)?;
        }
        for done in renamed {
            sync_name(session, places, done)?;
        }
        return sync_above(session, renamed);
    }
    for dir in file_systems(session, places, written.iter().chain(renamed))?.into_values() {
        dir.sync_fs()?;
    }
    Ok(())
}

/// Makes a final name durable: the parent directory, and for a directory also itself.
fn sync_name(session: &Session, places: &mut DestDirs, done: &Done) -> Result<(), Error> {
    if done.copy_of.is_none()
        && let Ok(dir) = session.base().descend(&done.path)
    {
        dir.sync()?;
    }
    if done.path.is_root() { Ok(()) } else { places.find(&done.path)?.dir.sync() }
}

/// Makes the names of the ancestors durable too: they may have been created just now.
fn sync_above(session: &Session, renamed: &[Done]) -> Result<(), Error> {
    let mut above = BTreeSet::new();
    for done in renamed {
        let mut at = done.path.parent();
        while let Some(dir) = at.and_then(|dir| dir.parent()) {
            at = above.insert(dir.clone()).then_some(dir);
        }
    }
    above.iter().try_for_each(|dir| session.base().descend(dir)?.sync())
}

/// One directory of each file system that was written to.
fn file_systems<'d>(
    session: &Session,
    places: &mut DestDirs,
    all: impl Iterator<Item = &'d Done>,
) -> Result<HashMap<u64, Arc<dyn Dir>>, Error> {
    let mut found = HashMap::from([(session.base().device(), session.base().clone())]);
    let mut last = RelPath::root();
    for done in all {
        let parent = done.path.parent().unwrap_or_default();
        if parent != last {
            let dir = places.find(&done.path)?.dir;
            found.insert(dir.device(), dir);
            last = parent;
        }
    }
    Ok(found)
}

fn rename(places: &mut DestDirs, path: &RelPath) -> Result<(), Error> {
    let temp = places.temp(path);
    let place = places.find(path)?;
    let renamed = place.dir.rename(&temp, &*place.dir, place.name);
    renamed.inspect_err(|_| drop(place.dir.remove_file(&temp)))?;
    remember_checksums(&*place.dir, place.name);
    Ok(())
}

/// Remembers the checksums of a file, where the store asks for some. They are no part of the promise.
fn remember_checksums(dir: &dyn Dir, name: &[u8]) {
    let wanted = dir.checksums();
    if !wanted.is_empty()
        && let Err(error) = dir.open_read(name).and_then(|file| read_back(&*file, wanted))
    {
        tracing::debug!(%error, "checksums of a file are not remembered");
    }
}

fn make_link(session: &Session, places: &mut DestDirs, link: &PendingLink) -> Result<(), Error> {
    let done = Done { id: link.id, path: link.path.clone(), copy_of: None };
    let linked = match session.receiver(|receiver| receiver.has_failed(&link.to)) {
        true => Err(Error::new(Code::HardLinkTarget, "link", &link.to, "it failed")),
        false => try_link(places, link),
    };
    match linked {
        Ok(()) => session.on_placed(done),
        Err(error) => session.on_entry_failed(link.id, &link.path, error)?,
    }
    Ok(())
}

fn try_link(places: &mut DestDirs, link: &PendingLink) -> Result<(), Error> {
    let temp = places.temp(&link.path);
    let missing = |error: Error| match error.code {
        Code::PathNotFound => Error { code: Code::HardLinkTarget, ..error },
        _ => error,
    };
    let first = places.find(&link.to).map_err(missing)?;
    let (first_dir, first_name) = (first.dir, first.name);
    let place = places.make(&link.path)?;
    let _ = place.dir.remove_file(&temp);
    first_dir.hard_link(first_name, &*place.dir, &temp).map_err(missing)?;
    let renamed = place.dir.rename(&temp, &*place.dir, place.name);
    // Renaming onto another name of the same file does nothing and leaves the temporary name.
    let _ = place.dir.remove_file(&temp);
    renamed
}

fn set_dir(session: &Session, pending: &PendingDir) -> Result<(), Error> {
    if session.receiver(|receiver| receiver.is_refused(&pending.path)) {
        // It refuses writes, which was reported; unset attributes are no further news.
        session.on_placed(Done { id: pending.id, path: pending.path.clone(), copy_of: None });
        return Ok(());
    }
    let set = session.base().descend(&pending.path).and_then(|dir| dir.set_own_meta(&pending.meta));
    match set {
        Ok(lost) => {
            session.report_lost(pending.id, &pending.path, lost)?;
            session.on_placed(Done { id: pending.id, path: pending.path.clone(), copy_of: None });
            Ok(())
        }
        Err(error) => session.on_entry_failed(pending.id, &pending.path, error),
    }
}

/// Removes temporary files that an earlier run left of sources that are gone by now.
fn remove_left(session: &Session, dirs: &[PendingDir]) -> Result<(), Error> {
    if session.dry_run() || !session.receiver(|receiver| receiver.continues_job()) {
        return Ok(());
    }
    remove_temps(session, session.base().as_ref())?;
    dirs.iter().try_for_each(|dir| match session.base().descend(&dir.path) {
        Ok(dir) => remove_temps(session, &*dir),
        // Reported where its metadata is set.
        Err(_) => Ok(()),
    })
}

fn remove_temps(session: &Session, dir: &dyn Dir) -> Result<(), Error> {
    for listed in dir.list()? {
        let name = listed?.name;
        if temp_job(&name) == Some(session.job()) {
            dir.remove_file(&name)?;
        }
    }
    Ok(())
}

/// Removes entries that the source does not have, directory by directory; entries outside the filter stay.
fn remove_others(session: &Session) -> Result<(), Error> {
    let matcher = session.options().filter.matcher();
    let mut pending = vec![RelPath::root()];
    // Directories to remove if all in them was removed.
    let mut emptied = Vec::new();
    while let Some(path) = pending.pop() {
        let dir = match session.base().descend(&path) {
            Ok(dir) => dir,
            Err(error) if error.code == Code::PathNotFound => continue,
            Err(error) => return Err(error),
        };
        for listed in dir.list()? {
            let name = listed?.name;
            let child = path.child(&name)?;
            if is_temp_name(&name) {
                continue;
            }
            let entry = match dir.entry(&name, renkei_store::Detail::Basic) {
                Ok((entry, _)) => entry,
                Err(error) if error.code == Code::PathNotFound => continue,
                Err(error) => return Err(error),
            };
            let is_dir = entry.kind == EntryKind::Dir;
            if !matcher.is_empty() && !matcher.includes(child.as_bytes(), is_dir) {
                continue;
            }
            let (named, failed) =
                session.receiver(|receiver| (receiver.is_named(&child), receiver.has_failed(&child)));
            if !named && is_dir && !matcher.is_empty() {
                emptied.push(child.clone());
                pending.push(child);
            } else if !named {
                remove_one(session, &*dir, &name, &child, &entry)?;
            } else if is_dir && !failed {
                // A failed entry may be no directory at the source, which then says nothing about the content of this
                // one.
                pending.push(child);
            }
        }
    }
    emptied.iter().rev().try_for_each(|path| remove_emptied(session, path))
}

/// Removes a directory whose entries were removed, unless some had to stay.
fn remove_emptied(session: &Session, path: &RelPath) -> Result<(), Error> {
    let Some((parent, name)) = path.split() else { return Ok(()) };
    let dir = session.base().descend(&RelPath::parse(parent)?)?;
    let removed = if session.dry_run() { Ok(()) } else { dir.remove_dir(name) };
    match removed {
        Ok(()) => session.on_removed(path.clone()),
        Err(error) if matches!(error.code, Code::NotEmpty | Code::PathNotFound) => Ok(()),
        Err(error) => session.report_kept(path, error),
    }
}

fn remove_one(
    session: &Session,
    dir: &dyn Dir,
    name: &[u8],
    path: &RelPath,
    entry: &Entry,
) -> Result<(), Error> {
    let removed = match entry.kind {
        _ if session.dry_run() => Ok(()),
        EntryKind::Dir => remove_tree(dir, name).map(drop),
        _ => dir.remove_file(name),
    };
    match removed {
        Ok(()) => session.on_removed(path.clone()),
        Err(error) if error.code == Code::PathNotFound => Ok(()),
        // The others can be removed all the same.
        Err(error) => session.report_kept(path, error),
    }
}
