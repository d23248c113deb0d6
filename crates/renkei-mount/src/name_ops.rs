//! Operations on names: lookup, create, rename and remove, and changes of attributes.

use super::Mounted;
use super::attributes::InodeAttr;
use super::errno::FuseError;
use super::inodes::InodeTable;
use super::negative_cache::NegativeCache;
use renkei_core::entry::{EntryKind, FileTime};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Alteration, Op, Start};
use renkei_store::passwd;
use std::sync::{MutexGuard, PoisonError};

/// A setattr request: the attributes that a program changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SetAttr {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<FileTime>,
}

impl Mounted {
    /// Looks a name up; counted as a lookup of the kernel.
    pub(super) fn lookup(&self, dir: u64, name: &[u8]) -> Result<(u64, InodeAttr), FuseError> {
        let ahead = self.table().child_ahead(dir, name);
        if let Some(id) = ahead {
            self.table().count(id);
            return Ok((id, self.shown(id)?));
        }
        if let Some(id) = self.cached_child(dir, name) {
            return Ok((id, self.shown(id)?));
        }
        if self.is_known_absent(dir, name) || self.negative_cache().has(dir, name) {
            return Err(FuseError::plain(libc::ENOENT));
        }
        let (mark, item) = self.look(dir, |table| table.path_below(dir, name));
        let item = item.inspect_err(|error| {
            if error.code == Code::PathNotFound && !self.may_lease(dir) {
                self.negative_cache().note(dir, name);
            }
        });
        let known = self.owners.attr(&item?);
        let id = {
            let mut table = self.table();
            let id = table.enter(dir, name, known);
            table.count(id);
            self.cache_attr(&mut table, id, dir, mark);
            id
        };
        Ok((id, self.shown(id)?))
    }

    pub(super) fn negative_cache(&self) -> MutexGuard<'_, NegativeCache> {
        self.negative_cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the file that was found or created under a name; counted as a lookup of the kernel.
    pub(super) fn found(&self, dir: u64, name: &[u8], known: InodeAttr) -> Result<(u64, InodeAttr), Error> {
        self.negative_cache().forget();
        let id = {
            let mut table = self.table();
            let id = table.enter(dir, name, known);
            table.count(id);
            id
        };
        Ok((id, self.shown(id)?))
    }

    pub(super) fn make_dir(&self, dir: u64, name: &[u8], mode: u32) -> Result<(u64, InodeAttr), FuseError> {
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
        let made = self.found(dir, name, self.owners.attr(&item))?;
        // The new directory is empty until a callback says otherwise.
        let mut table = self.table();
        self.cache_listing(&mut table, made.0, mark.held(is_held));
        Ok(made)
    }

    pub(super) fn make_symlink(
        &self,
        dir: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<(u64, InodeAttr), FuseError> {
        self.make(dir, name, |path| Op::MakeSymlink { path, target: target.to_vec() })
    }

    fn make(&self, dir: u64, name: &[u8], op: impl Fn(RelPath) -> Op) -> Result<(u64, InodeAttr), FuseError> {
        let item = self.at(|table| table.path_below(dir, name), |path| self.ask_item(op(path.clone())))?;
        Ok(self.found(dir, name, self.owners.attr(&item))?)
    }

    /// Creates an empty file.
    pub(super) fn make_file(&self, dir: u64, name: &[u8], mode: u32) -> Result<(u64, InodeAttr), FuseError> {
        let op = |path: &RelPath| Op::Draft { path: path.clone(), start: Start::New, mode: mode & 0o7777 };
        let (handle, item) = self.at(|table| table.path_below(dir, name), |path| self.ask_open(op(path)))?;
        self.close(handle);
        Ok(self.found(dir, name, self.owners.attr(&item))?)
    }

    /// Makes a hard link; the draft of the file is published first, since a version that comes later belongs to one
    /// name alone.
    pub(super) fn link(&self, id: u64, dir: u64, name: &[u8]) -> Result<(u64, InodeAttr), FuseError> {
        self.publish_if_open(id)?;
        let paths = |table: &InodeTable| Ok((table.path(id)?, table.path_below(dir, name)?));
        let item =
            self.at(paths, |(from, to)| self.ask_item(Op::MakeLink { from: from.clone(), to: to.clone() }))?;
        self.negative_cache().forget();
        let (linked, others) = {
            let mut table = self.table();
            let (linked, others) = table.link(dir, name, self.owners.attr(&item));
            table.count(linked);
            (linked, others)
        };
        self.invalidate_attrs_of(&others);
        Ok((linked, self.shown(linked)?))
    }

    pub(super) fn remove(&self, dir: u64, name: &[u8]) -> Result<(), FuseError> {
        self.at(|table| table.path_below(dir, name), |path| self.ask(Op::Remove(path.clone())))?;
        let others = self.table().remove(dir, name);
        self.invalidate_attrs_of(&others);
        Ok(())
    }

    pub(super) fn remove_dir(&self, dir: u64, name: &[u8]) -> Result<(), FuseError> {
        self.at(|table| table.path_below(dir, name), |path| self.ask(Op::RemoveDir(path.clone())))?;
        self.table().remove(dir, name);
        Ok(())
    }

    pub(super) fn rename(
        &self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        replace: bool,
    ) -> Result<(), FuseError> {
        let paths =
            |table: &InodeTable| Ok((table.path_below(from.0, from.1)?, table.path_below(to.0, to.1)?));
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
        self.negative_cache().forget();
        let others = self.table().rename(from, to);
        self.invalidate_attrs_of(&others);
        Ok(())
    }

    pub(super) fn read_link(&self, id: u64) -> Result<Vec<u8>, FuseError> {
        let item = self.at(|table| table.path(id), |path| self.ask_item(Op::Look(path.clone())))?;
        match item.entry.kind {
            EntryKind::Symlink { target } => Ok(target),
            _ => Err(FuseError::plain(libc::EINVAL)),
        }
    }

    /// Changes attributes as a program requests; `fh` is set if it has the file open to write.
    pub(super) fn alter(&self, id: u64, wanted: SetAttr, fh: Option<u64>) -> Result<InodeAttr, FuseError> {
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

    fn alteration(&self, wanted: &SetAttr) -> Alteration {
        let name = |id: u32, found: Option<String>| found.unwrap_or_else(|| id.to_string());
        let given = |id: Option<u32>, own: u32| id.filter(|id| self.owners.by_name || *id != own);
        Alteration {
            mode: wanted.mode.map(|mode| mode & 0o7777),
            mtime: wanted.mtime,
            owner: given(wanted.uid, self.owners.uid).map(|uid| name(uid, passwd::user_name(uid))),
            group: given(wanted.gid, self.owners.gid).map(|gid| name(gid, passwd::group_name(gid))),
        }
    }

    fn alter_named(&self, id: u64, change: &Alteration) -> Result<(), FuseError> {
        if self.is_removed(id)? {
            return Ok(self.alter_removed(id, change)?);
        }
        let op = |path: &RelPath| Op::Alter { path: path.clone(), change: change.clone() };
        let item = self.at(|table| table.path(id), |path| self.ask_item(op(path)))?;
        let (now, mut table) = (self.owners.attr(&item), self.table());
        let node = table.node(id)?;
        // The content is unchanged, so the kernel's cache of it stays valid.
        if node.cached.is_some_and(|cached| cached.same_content(&node.known)) && node.known.size == now.size {
            node.cached = Some(now);
        }
        node.known = now;
        Ok(())
    }

    pub(super) fn is_removed(&self, id: u64) -> Result<bool, Error> {
        Ok(id != super::ROOT && self.table().node(id)?.is_removed())
    }

    /// A removed file is changed here alone: it is not visible elsewhere.
    fn alter_removed(&self, id: u64, change: &Alteration) -> Result<(), Error> {
        let mut table = self.table();
        let known = &mut table.node(id)?.known;
        known.mode = change.mode.unwrap_or(known.mode);
        known.mtime = change.mtime.unwrap_or(known.mtime);
        Ok(())
    }
}
