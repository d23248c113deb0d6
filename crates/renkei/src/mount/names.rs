//! Names: finding, making, renaming and removing them, and what belongs to a file beside its content.

use super::Mounted;
use super::attributes::{Known, file_time};
use super::errno::Refusal;
use super::table::Table;
use crate::store::names;
use renkei_core::entry::{EntryKind, FileTime};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Alteration, Op, Start};
use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long it is believed that a name is not there: while a program goes from looking to making.
const ABSENT_TTL: Duration = Duration::from_millis(10);
/// Names of which it is believed at a time.
const MAX_ABSENT: usize = 64;

/// Names that were looked up just now and not there. Programs that make a file look first, and the kernel looks again before
/// it makes it; that it is not there is asked once.
#[derive(Default)]
pub(super) struct Absent(VecDeque<(Instant, u64, Vec<u8>)>);

impl Absent {
    fn note(&mut self, dir: u64, name: &[u8]) {
        self.0.truncate(MAX_ABSENT - 1);
        self.0.push_front((Instant::now(), dir, name.to_vec()));
    }

    fn has(&self, dir: u64, name: &[u8]) -> bool {
        let mut young = self.0.iter().take_while(|(since, ..)| since.elapsed() < ABSENT_TTL);
        young.any(|(_, at, known)| *at == dir && known == name)
    }

    /// Something was made here, or could not be.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

/// What a program wants to change of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<FileTime>,
}

impl Mounted {
    /// Finds a name; the kernel is told of it.
    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Result<(u64, Known), Refusal> {
        let ahead = self.table().child_ahead(dir, name);
        if let Some(id) = ahead {
            self.table().count(id);
            return Ok((id, self.shown(id)?));
        }
        if let Some(id) = self.believed_child(dir, name) {
            return Ok((id, self.shown(id)?));
        }
        if self.is_known_absent(dir, name) || self.absent().has(dir, name) {
            return Err(Refusal::plain(libc::ENOENT));
        }
        let (mark, item) = self.look(dir, |table| table.path_below(dir, name));
        let item = item.inspect_err(|error| {
            if error.code == Code::PathNotFound && !self.may_lease(dir) {
                self.absent().note(dir, name);
            }
        });
        let known = self.owners.known(&item?);
        let id = {
            let mut table = self.table();
            let id = table.enter(dir, name, known);
            table.count(id);
            self.believe(&mut table, id, dir, mark);
            id
        };
        Ok((id, self.shown(id)?))
    }

    pub(super) fn absent(&self) -> MutexGuard<'_, Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what was found or made under a name; the kernel is told of it.
    pub(super) fn found(&self, dir: u64, name: &[u8], known: Known) -> Result<(u64, Known), Error> {
        self.absent().forget();
        let id = {
            let mut table = self.table();
            let id = table.enter(dir, name, known);
            table.count(id);
            id
        };
        Ok((id, self.shown(id)?))
    }

    pub(super) fn make_dir(&self, dir: u64, name: &[u8], mode: u32) -> Result<(u64, Known), Refusal> {
        let mark = self.mark(dir);
        let mut is_held = false;
        let item = self.at(
            |table| table.path_below(dir, name),
            |path| {
                let op = Op::MakeDir { path: path.clone(), mode: mode & 0o7777 };
                let (answer, held) = self.ask_parted(op)?;
                is_held = held.is_some();
                super::item(answer)
            },
        )?;
        let made = self.found(dir, name, self.owners.known(&item))?;
        // It is empty, as far as nobody says otherwise.
        let mut table = self.table();
        self.believe_whole(&mut table, made.0, mark.held(is_held));
        Ok(made)
    }

    pub(super) fn make_symlink(&self, dir: u64, name: &[u8], target: &[u8]) -> Result<(u64, Known), Refusal> {
        self.make(dir, name, |path| Op::MakeSymlink { path, target: target.to_vec() })
    }

    fn make(&self, dir: u64, name: &[u8], op: impl Fn(RelPath) -> Op) -> Result<(u64, Known), Refusal> {
        let item = self.at(|table| table.path_below(dir, name), |path| self.ask_item(op(path.clone())))?;
        Ok(self.found(dir, name, self.owners.known(&item))?)
    }

    /// Makes an empty file.
    pub(super) fn make_file(&self, dir: u64, name: &[u8], mode: u32) -> Result<(u64, Known), Refusal> {
        let op = |path: &RelPath| Op::Draft { path: path.clone(), start: Start::New, mode: mode & 0o7777 };
        let (handle, item) = self.at(|table| table.path_below(dir, name), |path| self.ask_open(op(path)))?;
        self.close(handle);
        Ok(self.found(dir, name, self.owners.known(&item))?)
    }

    /// Gives a file a further name; what of it is not published yet is published first, since a version that
    /// comes later is of one name alone.
    pub(super) fn link(&self, id: u64, dir: u64, name: &[u8]) -> Result<(u64, Known), Refusal> {
        self.publish_if_open(id)?;
        let paths = |table: &Table| Ok((table.path(id)?, table.path_below(dir, name)?));
        let item =
            self.at(paths, |(from, to)| self.ask_item(Op::MakeLink { from: from.clone(), to: to.clone() }))?;
        self.absent().forget();
        let (linked, others) = {
            let mut table = self.table();
            let (linked, others) = table.link(dir, name, self.owners.known(&item));
            table.count(linked);
            (linked, others)
        };
        self.forget_attributes_of(&others);
        Ok((linked, self.shown(linked)?))
    }

    pub(super) fn remove(&self, dir: u64, name: &[u8]) -> Result<(), Refusal> {
        self.at(|table| table.path_below(dir, name), |path| self.ask(Op::Remove(path.clone())))?;
        let others = self.table().remove(dir, name);
        self.forget_attributes_of(&others);
        Ok(())
    }

    pub(super) fn remove_dir(&self, dir: u64, name: &[u8]) -> Result<(), Refusal> {
        self.at(|table| table.path_below(dir, name), |path| self.ask(Op::RemoveDir(path.clone())))?;
        self.table().remove(dir, name);
        Ok(())
    }

    pub(super) fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), replace: bool) -> Result<(), Refusal> {
        let paths = |table: &Table| Ok((table.path_below(from.0, from.1)?, table.path_below(to.0, to.1)?));
        Ok(self.at(paths, |paths| self.rename_now(from, to, paths.clone(), replace))?)
    }

    fn rename_now(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        paths: (RelPath, RelPath),
        replace: bool,
    ) -> Result<(), Error> {
        let _moving = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        self.ask(Op::Rename { from: paths.0, to: paths.1, replace })?;
        self.absent().forget();
        let others = self.table().rename(from, to);
        self.forget_attributes_of(&others);
        Ok(())
    }

    pub(super) fn read_link(&self, id: u64) -> Result<Vec<u8>, Refusal> {
        let item = self.at(|table| table.path(id), |path| self.ask_item(Op::Look(path.clone())))?;
        match item.entry.kind {
            EntryKind::Symlink { target } => Ok(target),
            _ => Err(Refusal::plain(libc::EINVAL)),
        }
    }

    /// Changes what a program wants changed; `fh` is set if it has the file open to write.
    pub(super) fn alter(&self, id: u64, wanted: Wanted, fh: Option<u64>) -> Result<Known, Refusal> {
        if let Some(size) = wanted.size {
            self.set_size(id, size, fh.is_some())?;
        }
        let mut change = self.alteration(&wanted);
        if let Some(mtime) = change.mtime
            && self.time_draft(id, mtime)?
        {
            change.mtime = None;
        }
        if change != Alteration::default() {
            self.alter_named(id, &change)?;
        }
        Ok(self.shown(id)?)
    }

    fn alteration(&self, wanted: &Wanted) -> Alteration {
        let name = |id: u32, found: Option<String>| found.unwrap_or_else(|| id.to_string());
        let given = |id: Option<u32>, own: u32| id.filter(|id| self.owners.by_name || *id != own);
        Alteration {
            mode: wanted.mode.map(|mode| mode & 0o7777),
            mtime: wanted.mtime,
            owner: given(wanted.uid, self.owners.uid).map(|uid| name(uid, names::user_name(uid))),
            group: given(wanted.gid, self.owners.gid).map(|gid| name(gid, names::group_name(gid))),
        }
    }

    fn alter_named(&self, id: u64, change: &Alteration) -> Result<(), Refusal> {
        if self.is_removed(id)? {
            return Ok(self.alter_removed(id, change)?);
        }
        let op = |path: &RelPath| Op::Alter { path: path.clone(), change: change.clone() };
        let item = self.at(|table| table.path(id), |path| self.ask_item(op(path)))?;
        let (now, mut table) = (self.owners.known(&item), self.table());
        let node = table.node(id)?;
        // The content stayed as it was, and so what the kernel has of it.
        if node.cached.is_some_and(|cached| cached.same_content(&node.known)) && node.known.size == now.size {
            node.cached = Some(now);
        }
        node.known = now;
        Ok(())
    }

    pub(super) fn is_removed(&self, id: u64) -> Result<bool, Error> {
        Ok(id != super::ROOT && self.table().node(id)?.is_removed())
    }

    /// What has no name is changed here alone: nobody else can see it.
    fn alter_removed(&self, id: u64, change: &Alteration) -> Result<(), Error> {
        let mut table = self.table();
        let known = &mut table.node(id)?.known;
        known.mode = change.mode.unwrap_or(known.mode);
        known.mtime = change.mtime.unwrap_or(known.mtime);
        Ok(())
    }
}

/// The time now, as files keep it.
pub(super) fn now() -> FileTime {
    file_time(SystemTime::now())
}
