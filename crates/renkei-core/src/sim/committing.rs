//! Carries out the actions of the receiver's state machine on a simulated disk: sync, rename, sync, acknowledge, and
//! the final steps, as the daemon's committing thread does.

use super::disk::Disk;
use super::receiving::{JOB, ReceiveEnd, TEMP_PREFIX_BYTES, is_temp_name, make_place, temp_name};
use crate::error::{Code, Error};
use crate::mover::receiver::{Action, Done, PendingDir, PendingLink, ranges};
use crate::path::RelPath;
use crate::wire::message::{Control, ReceiveDone};
use std::time::Duration;

/// Most files that are synced one by one.
const SINGLE_SYNCS: usize = 16;

/// The committer's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Poll again when something was written, or after this time.
    Wait(Option<Duration>),
    /// A sync is in progress; call [`ReceiveEnd::on_synced`] when it has finished.
    Sync,
    /// Poll again at once.
    Again,
    /// The sender was notified of completion.
    Done,
}

impl ReceiveEnd {
    /// Carries out the next action of the state machine.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn poll(&mut self, now: Duration, disk: &mut Disk) -> Result<Next, Error> {
        match self.receiver.poll(now) {
            Action::Wait(until) => return Ok(Next::Wait(until)),
            Action::Sync { written, renamed } => {
                self.sync(disk, &written, &renamed)?;
                self.syncing = Some((written, renamed));
                return Ok(Next::Sync);
            }
            Action::MakeLinks(links) => {
                links.iter().try_for_each(|link| self.make_link(now, disk, link))?;
            }
            Action::RemoveOthers => self.remove_others(disk)?,
            Action::SetDirs(dirs) => {
                self.remove_left(disk)?;
                dirs.iter().try_for_each(|dir| self.set_dir(now, disk, dir))?;
            }
            Action::Done => {
                if self.has_unsynced {
                    disk.sync_all()?;
                }
                self.out.push(Control::ReceiveDone(ReceiveDone { deleted: self.deleted }));
                return Ok(Next::Done);
            }
        }
        Ok(Next::Again)
    }

    /// The last sync has finished.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_synced(&mut self, now: Duration, disk: &mut Disk) -> Result<(), Error> {
        let (written, renamed) = self.syncing.take().expect("a sync is under way");
        let synced = self.receiver.on_synced(written, renamed);
        if !synced.acknowledge.is_empty() {
            let ids = synced.acknowledge.iter().map(|done| done.id).collect();
            self.out.push(Control::Acked(ranges(ids)));
            self.acknowledged.extend(synced.acknowledge.into_iter().map(|done| done.path));
        }
        for done in synced.rename {
            match self.rename(disk, &done.path) {
                Ok(()) => self.receiver.on_renamed(now, done),
                Err(error) => self.on_entry_failed(disk, done.id, &done.path, error)?,
            }
        }
        Ok(())
    }

    fn rename(&self, disk: &mut Disk, path: &RelPath) -> Result<(), Error> {
        let temp = temp_name(JOB, path);
        let (dir, name) = disk.place(path)?;
        disk.rename(dir, &temp, name).inspect_err(|_| drop(disk.remove_file(dir, &temp)))
    }

    fn sync(&self, disk: &mut Disk, written: &[Done], renamed: &[Done]) -> Result<(), Error> {
        if written.len() + renamed.len() > SINGLE_SYNCS {
            return disk.sync_all();
        }
        for done in written {
            let (dir, _) = disk.place(&done.path)?;
            let ino = disk.entry(dir, &temp_name(JOB, &done.path))?.ino;
            disk.sync(ino)?;
        }
        renamed.iter().try_for_each(|done| sync_name(disk, done))
    }

    fn make_link(&mut self, now: Duration, disk: &mut Disk, link: &PendingLink) -> Result<(), Error> {
        match self.try_link(disk, link) {
            Ok(()) => {
                let done = Done { id: link.id, path: link.path.clone(), copy_of: None };
                self.receiver.on_placed(now, done);
                Ok(())
            }
            Err(error) => self.on_entry_failed(disk, link.id, &link.path, error),
        }
    }

    fn try_link(&self, disk: &mut Disk, link: &PendingLink) -> Result<(), Error> {
        let missing = |error: Error| match error.code {
            Code::PathNotFound => Error { code: Code::HardLinkTarget, ..error },
            _ => error,
        };
        if self.receiver.has_failed(&link.to) {
            return Err(Error::new(Code::HardLinkTarget, "link", &link.to, "the first name did not arrive"));
        }
        let temp = temp_name(JOB, &link.path);
        let (first_dir, first_name) = disk.place(&link.to).map_err(missing)?;
        let first = disk.entry(first_dir, first_name).map_err(missing)?.ino;
        let (dir, name) = make_place(disk, &link.path)?;
        let _ = disk.remove_file(dir, &temp);
        disk.hard_link(first, dir, &temp)?;
        let renamed = disk.rename(dir, &temp, name);
        // Renaming onto another hard link of the same file does nothing and leaves the temporary name.
        let _ = disk.remove_file(dir, &temp);
        renamed
    }

    fn set_dir(&mut self, now: Duration, disk: &mut Disk, dir: &PendingDir) -> Result<(), Error> {
        match disk.descend(&dir.path).and_then(|ino| disk.set_meta(ino, &dir.meta)) {
            Ok(()) => {
                let done = Done { id: dir.id, path: dir.path.clone(), copy_of: None };
                self.receiver.on_placed(now, done);
                Ok(())
            }
            Err(error) => self.on_entry_failed(disk, dir.id, &dir.path, error),
        }
    }

    /// Removes temporary files that an earlier run left, also of sources that no longer exist.
    fn remove_left(&self, disk: &mut Disk) -> Result<(), Error> {
        if !self.receiver.continues_job() {
            return Ok(());
        }
        let prefix = &temp_name(JOB, &RelPath::root())[..TEMP_PREFIX_BYTES];
        for (path, _) in disk.walk() {
            if path.name().is_some_and(|name| name.starts_with(prefix)) {
                let (dir, name) = disk.place(&path)?;
                disk.remove_file(dir, name)?;
            }
        }
        Ok(())
    }

    fn remove_others(&mut self, disk: &mut Disk) -> Result<(), Error> {
        let mut pending = vec![RelPath::root()];
        while let Some(path) = pending.pop() {
            let dir = disk.descend(&path)?;
            for (name, ino) in disk.list(dir)? {
                let child = path.child(&name)?;
                if is_temp_name(&name) {
                    continue;
                }
                if !self.receiver.is_named(&child) {
                    self.deleted += 1;
                    self.out.push(Control::Removed(vec![child]));
                    disk.remove_tree(dir, &name)?;
                } else if disk.list(ino).is_ok() {
                    pending.push(child);
                }
            }
        }
        Ok(())
    }
}

/// Makes a name durable: syncs its directory and all ancestors, and a directory itself, too.
fn sync_name(disk: &mut Disk, done: &Done) -> Result<(), Error> {
    let mut at = if done.copy_of.is_none() { Some(done.path.clone()) } else { done.path.parent() };
    while let Some(path) = at {
        if let Ok(dir) = disk.descend(&path) {
            disk.sync(dir)?;
        }
        at = path.parent();
    }
    Ok(())
}
