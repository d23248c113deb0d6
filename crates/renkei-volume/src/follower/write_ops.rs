//! Write operations on a followed volume at this site: plain files first, then the changes that they mean.
//!
//! Content is written beside the file under a temporary name, which is in no catalogue; the rename to the file's name
//! is the change. Directories of plain files are made when something is written into them.

use super::plain_file::{HeldNow, Writer, if_there, now, of_plain_dir, stamp};
use super::recovery::recover_left;
use super::view::{FollowedDir, Over, is_shown, shown, stamp as version_stamp};
use super::wal::Sign;
use super::write_txn::{Work, WriteTxn};
use renkei_catalogue::HeldReplica;
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::tree::beside_name;
use renkei_core::namespace::xattrs::changes_of;
use renkei_core::namespace::{
    Attributes, Base, Beside, Change, Dentry, Kind, Name, NewKind, Node, NodeId, ROOT,
};
use renkei_core::path::RelPath;
use renkei_store::temp::is_temp_name;
use renkei_store::tree::{make_dirs, make_dirs_as};
use renkei_store::{Detail, Dir, Replaced, Store};
use std::sync::Arc;

/// Bits of a mode that mkdir clears, whatever umask the process has.
const UMASK: u32 = 0o022;
/// Alternative names tried for a conflict copy.
const MAX_BESIDE: u32 = 1000;

impl FollowedDir {
    fn spot(&self, name: &[u8]) -> Dentry {
        Dentry { dir: self.id(), name: Name(name.to_vec()) }
    }

    fn expect_node(&self, op: &str, name: &[u8]) -> Result<(NodeId, Node), Error> {
        let found = self.volume.pending.child(&self.spot(name))?;
        found.ok_or_else(|| Error::new(Code::PathNotFound, op, shown(&self.path, name), ""))
    }

    /// The directory of plain files, created if it is missing.
    pub(crate) fn plain_dir(&self, writer: &Writer) -> Result<Arc<dyn Dir>, Error> {
        if let Some(dir) = self.plain.get() {
            return Ok(dir.clone());
        }
        let _turn = self.volume.pending.turn();
        let mode_of = |path: &RelPath| self.volume.pending.mode_of_dir(path);
        let dir = make_dirs_as(&writer.plain.root()?, &self.real_now()?, &mode_of)?;
        Ok(self.plain.get_or_init(|| dir).clone())
    }

    /// The same, if it exists.
    pub(crate) fn plain_if_there(&self, writer: &Writer) -> Option<Arc<dyn Dir>> {
        let open = || writer.plain.root()?.descend(&self.real_now()?);
        self.plain.get().cloned().or_else(|| open().ok())
    }

    /// The path without symbolic links, by the current names.
    pub(crate) fn real_now(&self) -> Result<RelPath, Error> {
        let pending = &self.volume.pending;
        let mut id = ROOT;
        for name in self.real.components() {
            let at = Dentry { dir: id, name: Name(name.to_vec()) };
            id = pending.child(&at)?.map_or(NodeId(0), |(id, _)| id);
        }
        if id == self.id() {
            return Ok(self.real.clone());
        }
        let gone = || Error::new(Code::PathNotFound, "open directory", &self.path, "it was removed");
        let Some(Kind::Dir { parent, .. }) = pending.node(self.id())?.map(|node| node.kind) else {
            return Err(gone());
        };
        let name = pending.name_in(parent, self.id())?.ok_or_else(gone)?;
        pending.path_of(&Dentry { dir: parent, name })?.ok_or_else(gone)
    }

    /// Takes the write lock and recovers the changes of a killed PoP.
    fn turn(&self, writer: &Writer) -> Result<WriteTxn<'_>, Error> {
        let mut turn = WriteTxn { by: self.volume.holder, ..self.volume.pending.turn() };
        recover_left(&mut turn, writer)?;
        Ok(turn)
    }

    /// Publishes a temporary file under its name, or under that of a conflict copy.
    pub(crate) fn publish(
        &self,
        temp: &[u8],
        to: &FollowedDir,
        name: &[u8],
        over: Over,
    ) -> Result<Replaced, Error> {
        let writer = self.writer("rename", name)?;
        let (plain, to_plain) = (self.plain_dir(writer)?, to.plain_dir(writer)?);
        if is_temp_name(name) {
            // A part of an upload: the volume does not know it.
            return plain.rename(temp, &*to_plain, name).map(|()| Replaced::default());
        }
        let mut turn = self.turn(writer)?;
        let there = self.volume.pending.child(&to.spot(name))?;
        if there.is_some() && matches!(over, Over::Nothing) {
            return Err(Error::new(Code::PathExists, "rename", shown(&to.path, name), ""));
        }
        let beside = to.place_of_version(&turn, name, &there, &over)?;
        let (name, there) = match &beside {
            Some(beside) => (&beside[..], None),
            None => (name, there),
        };
        let alias = turn.take_alias(temp);
        if alias.is_some() && alias == there.as_ref().map(|(id, _)| *id) {
            return Ok(Replaced::default());
        }
        let leaving = match (&there, alias) {
            // A new version of the same file.
            (Some((_, node)), None) if is_file(node) => None,
            _ => turn.leaving(writer, &there, Some(to_plain.clone()), name)?,
        };
        let found = plain.entry(temp, Detail::Full);
        let ino = found.as_ref().map_or(0, |(_, raw)| raw.ino);
        let mut fresh = match alias {
            Some(id) => Fresh::link(id, to.spot(name), there)?,
            None => Fresh::of(&mut turn, writer, to.spot(name), &found?.0, there)?,
        };
        fresh.held.retain(|(id, _)| Some(*id) != alias);
        let sign = Some(Sign::Wrote(to.real_now()?.child(name)?, ino));
        let work = Work { sign, held: fresh.held, dirs: vec![to_plain.clone()] };
        let put = || put_in_place(&*plain, temp, &*to_plain, name, alias.is_some());
        turn.make_without(leaving, fresh.changes, work, |_| put())?;
        // While the write lock is held, the name has this version.
        let stamp = match self.volume.pending.child(&to.spot(name))? {
            Some((id, Node { kind: Kind::File(content), attributes, .. })) => {
                Some(version_stamp(id, &content, attributes.mtime))
            }
            _ => None,
        };
        Ok(Replaced { stamp, beside })
    }

    /// The name of the conflict copy, if another site's version came in that the writer has not seen.
    fn place_of_version(
        &self,
        turn: &WriteTxn<'_>,
        name: &[u8],
        there: &Option<(NodeId, Node)>,
        over: &Over,
    ) -> Result<Option<Vec<u8>>, Error> {
        let (Over::Seen(seen), Some((id, Node { kind: Kind::File(content), .. }))) = (over, there) else {
            return Ok(None);
        };
        let origin = turn.origin()?;
        if content.by.0 == origin || is_shown(seen, *id, content) {
            return Ok(None);
        }
        let (name, by) = (Name(name.to_vec()), (origin, turn.next_number()?));
        for count in 0..MAX_BESIDE {
            let Name(beside) = beside_name(&name, by, count);
            if self.volume.pending.child(&self.spot(&beside))?.is_none() {
                tracing::info!(path = %self.path, name = ?String::from_utf8_lossy(&beside), "both versions were kept");
                return Ok(Some(beside));
            }
        }
        Err(Error::new(
            Code::PathExists,
            "publish",
            shown(&self.path, &name.0),
            "and so are all alternative names",
        ))
    }

    /// Makes a directory.
    pub(crate) fn make_dir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        let writer = self.writer("make directory", name)?;
        let mut turn = self.turn(writer)?;
        let (id, attributes) = (turn.draw()?, writer.attributes(mode & !UMASK, now()));
        let made = Change::Make { id, at: self.spot(name), kind: NewKind::Dir, attributes, keep_both: true };
        if let Some(holder) = self.volume.holder {
            // Before any entry can be created in it.
            self.volume.pending.leases().hold_made(holder, id.0, || true);
        }
        let made = turn.make(vec![made], Work::default(), |_| Ok(()));
        made.map_err(|error| self.about("make directory", name, error))
    }

    /// Creates a symbolic link; under a temporary name only the plain one.
    pub(crate) fn make_symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        let writer = self.writer("make link", name)?;
        let plain = self.plain_dir(writer)?;
        if is_temp_name(name) {
            return plain.symlink(target, name);
        }
        let mut turn = self.turn(writer)?;
        let (id, attributes) = (turn.draw()?, writer.attributes(0o777, now()));
        let kind = NewKind::Symlink(target.to_vec());
        let made = Change::Make { id, at: self.spot(name), kind, attributes, keep_both: true };
        let work = Work { dirs: vec![plain.clone()], ..Work::default() };
        let made = turn.make(vec![made], work, |_| {
            // A plain entry of that name is not in the catalogue.
            if_there(plain.remove_file(name))?;
            plain.symlink(target, name)
        });
        made.map_err(|error| self.about("make link", name, error))
    }

    /// Adds a hard link to a file.
    pub(crate) fn make_link(&self, name: &[u8], to: &FollowedDir, to_name: &[u8]) -> Result<(), Error> {
        let writer = self.writer("make link", to_name)?;
        let to_plain = to.plain_dir(writer)?;
        let plain = self.plain_if_there(writer);
        let mut turn = self.turn(writer)?;
        let (id, node) = self.expect_node("make link", name)?;
        if node.is_dir() {
            return Err(Error::new(Code::IsADirectory, "make link", shown(&self.path, name), ""));
        }
        let link = || match &plain {
            Some(plain) => if_there(plain.hard_link(name, &*to_plain, to_name)),
            None => Ok(()),
        };
        if is_temp_name(to_name) {
            link()?;
            turn.set_alias(to_name, id);
            return Ok(());
        }
        let change = Change::Link { id, at: to.spot(to_name), time: now() };
        let work = Work { dirs: vec![to_plain.clone()], ..Work::default() };
        let made = turn.make(vec![change], work, |_| {
            if_there(to_plain.remove_file(to_name))?;
            link()
        });
        made.map_err(|error| self.about("make link", to_name, error))
    }

    /// Removes a file or symbolic link.
    pub(crate) fn remove(&self, name: &[u8]) -> Result<(), Error> {
        let writer = self.writer("remove", name)?;
        if is_temp_name(name) {
            let alias = self.volume.pending.turn().take_alias(name);
            let removed = self.plain_dir(writer)?.remove_file(name);
            return if alias.is_some() { if_there(removed) } else { removed };
        }
        let plain = self.plain_if_there(writer);
        let mut turn = self.turn(writer)?;
        let (id, node) = self.expect_node("remove", name)?;
        let held = if node.links <= 1 { vec![(id, None)] } else { Vec::new() };
        let leaving = turn.leaving(writer, &Some((id, node)), plain.clone(), name)?;
        let change = Change::Remove { at: self.spot(name), seen: None, time: now() };
        let sign = Some(Sign::Gone(self.real_now()?.child(name)?));
        let made = turn.make_without(leaving, vec![change], Work { sign, held, dirs: Vec::new() }, |_| {
            plain.map_or(Ok(()), |plain| if_there(plain.remove_file(name)))
        });
        made.map_err(|error| self.about("remove", name, error))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_empty(&self, name: &[u8]) -> Result<(), Error> {
        let writer = self.writer("remove", name)?;
        let plain = self.plain_if_there(writer);
        let mut turn = self.turn(writer)?;
        let change = Change::RemoveDir { at: self.spot(name), time: now() };
        let made = turn.make(vec![change], Work::default(), |_| {
            // Other entries of the plain directory are not of the volume, and stay.
            let removed = plain.map_or(Ok(()), |plain| plain.remove_dir(name));
            removed.unwrap_or_else(|error| tracing::debug!(%error, "a plain directory could not be removed"));
            Ok(())
        });
        made.map_err(|error| self.about("remove", name, error))
    }

    /// Renames an entry.
    pub(crate) fn move_to(
        &self,
        name: &[u8],
        to: &FollowedDir,
        to_name: &[u8],
        replace: bool,
    ) -> Result<(), Error> {
        let writer = self.writer("rename", name)?;
        let plain = self.plain_if_there(writer);
        let mut turn = self.turn(writer)?;
        let (id, _) = self.expect_node("rename", name)?;
        let there = self.volume.pending.child(&to.spot(to_name))?;
        let same = there.as_ref().is_some_and(|(other, _)| *other == id);
        let held = there.iter().filter(|(other, node)| *other != id && !node.is_dir() && node.links <= 1);
        let held: HeldNow = held.map(|(other, _)| (*other, None)).collect();
        let leaving = match same {
            true => None,
            false => turn.leaving(writer, &there, to.plain_if_there(writer), to_name)?,
        };
        let (from, at) = (self.spot(name), to.spot(to_name));
        let change = Change::Rename { from, to: at, replace, seen: None, time: now() };
        let sign = if same { None } else { Some(Sign::Gone(self.real_now()?.child(name)?)) };
        let plain_to = to.real_now()?;
        let made =
            turn.make_without(leaving, vec![change], Work { sign, held, dirs: Vec::new() }, |_| match same {
                true => Ok(()),
                false => move_plain(writer, plain.as_deref(), name, &plain_to, to_name),
            });
        made.map_err(|error| self.about("rename", name, error))
    }

    /// Sets the metadata of a name.
    pub(crate) fn set_meta_of(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        let writer = self.writer("set metadata", name)?;
        if is_temp_name(name) {
            return self.plain_dir(writer)?.set_meta(name, meta);
        }
        let plain = self.plain_if_there(writer);
        let mut turn = self.turn(writer)?;
        let (id, node) = self.expect_node("set metadata", name)?;
        let held = self.volume.pending.held(id)?;
        let attributes = with(&node.attributes, meta);
        if attributes == node.attributes {
            return Ok(Vec::new());
        }
        let held = held.filter(|held| matches!(&node.kind, Kind::File(content) if held.is_of(content)));
        let (mut work, change) = (Work::default(), Change::SetAttributes { id, attributes });
        if let (Some(_), Some(held)) = (&plain, &held) {
            let stamp = Stamp { mtime: meta.mtime, ..held.stamp };
            work.sign = Some(Sign::Dated(self.real_now()?.child(name)?, meta.mtime));
            work.held = vec![(id, Some(HeldReplica { stamp, ..held.clone() }))];
        }
        turn.make(vec![change], work, |known| {
            if let Some(plain) = plain.as_ref().filter(|_| node.is_dir()) {
                return if_there(plain.set_meta(name, &of_plain_dir(meta)).map(drop));
            }
            let Some((plain, held)) = plain.zip(held) else { return Ok(()) };
            if_there(plain.set_meta(name, &Meta { xattrs: Vec::new(), ..meta.clone() }).map(drop))?;
            let stamp = plain.entry(name, Detail::Basic).map(|(entry, _)| stamp(&entry));
            *known = vec![(id, stamp.ok().map(|stamp| HeldReplica { stamp, ..held }))];
            Ok(())
        })?;
        Ok(Vec::new())
    }

    /// Sets the metadata of this directory.
    pub(crate) fn set_meta_here(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        let writer = self.writer("set metadata", b"")?;
        let plain = self.plain_if_there(writer);
        let mut turn = self.turn(writer)?;
        let node = self.volume.node(self.id(), &self.path)?;
        let attributes = with(&node.attributes, meta);
        if attributes == node.attributes {
            return Ok(Vec::new());
        }
        turn.make(vec![Change::SetAttributes { id: self.id(), attributes }], Work::default(), |_| {
            plain.map_or(Ok(()), |plain| plain.set_own_meta(&of_plain_dir(meta)).map(drop))
        })?;
        Ok(Vec::new())
    }

    /// Sets an extended attribute of a name, or of this directory if the name is empty.
    pub(crate) fn set_xattr_of(&self, name: &[u8], xattr: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let writer = self.writer("set attribute", name)?;
        let mut turn = self.turn(writer)?;
        let id = match name.is_empty() {
            true => self.id(),
            false => self.expect_node("set attribute", name)?.0,
        };
        let change = Change::SetXattr { id, name: xattr.to_vec(), value: value.map(<[u8]>::to_vec) };
        let made = turn.make(vec![change], Work::default(), |_| Ok(()));
        made.map_err(|error| self.about("set attribute", name, error))
    }

    fn about(&self, op: &str, name: &[u8], error: Error) -> Error {
        // The rules know nodes and names, not paths.
        Error { op: op.into(), subject: shown(&self.path, name), ..error }
    }
}

/// Renames the plain file of a new version to its name.
fn put_in_place(
    plain: &dyn Dir,
    temp: &[u8],
    to: &dyn Dir,
    name: &[u8],
    is_alias: bool,
) -> Result<(), Error> {
    match plain.rename(temp, to, name) {
        Err(error) if error.code == Code::PathNotFound && is_alias => if_there(to.remove_file(name)),
        // A plain directory that the volume does not know.
        Err(error) if error.code == Code::IsADirectory => {
            to.remove_dir(name)?;
            plain.rename(temp, to, name)
        }
        done => done,
    }
}

/// Renames a plain file or directory, if it exists; an existing target is removed in any case.
fn move_plain(
    writer: &Writer,
    plain: Option<&dyn Dir>,
    name: &[u8],
    to: &RelPath,
    to_name: &[u8],
) -> Result<(), Error> {
    let root = writer.plain.root()?;
    let is_there = plain.is_some_and(|plain| plain.entry(name, Detail::Basic).is_ok());
    match plain.filter(|_| is_there) {
        Some(plain) => plain.rename(name, &*make_dirs(&root, to)?, to_name),
        None => if_there(root.descend(to).and_then(|dir| dir.remove_file(to_name))),
    }
}

/// Attributes with new metadata; the owner and group do not change.
fn with(attributes: &Attributes, meta: &Meta) -> Attributes {
    Attributes { mode: meta.mode & 0o7777, mtime: meta.mtime, ..attributes.clone() }
}

/// The changes that make a plain file part of the volume.
pub(crate) struct Fresh {
    pub(crate) changes: Vec<Change>,
    pub(crate) held: HeldNow,
}

impl Fresh {
    /// A further name of an existing file.
    fn link(id: NodeId, at: Dentry, there: Option<(NodeId, Node)>) -> Result<Self, Error> {
        let mut fresh = Fresh { changes: Vec::new(), held: Vec::new() };
        fresh.make_room(&at, there)?;
        fresh.changes.push(Change::Link { id, at, time: now() });
        Ok(fresh)
    }

    /// A plain file or symbolic link.
    pub(crate) fn of(
        turn: &mut WriteTxn<'_>,
        writer: &Writer,
        at: Dentry,
        plain: &Entry,
        there: Option<(NodeId, Node)>,
    ) -> Result<Self, Error> {
        let attributes = writer.attributes(plain.meta.mode, plain.meta.mtime);
        let mut fresh = Fresh { changes: Vec::new(), held: Vec::new() };
        match (&plain.kind, there) {
            (EntryKind::File { stamp, .. }, Some((id, node))) if node.links == 1 && is_file(&node) => {
                fresh.write(turn, id, &node, at, *stamp, attributes)?;
            }
            (EntryKind::File { stamp, .. }, there) => {
                fresh.make_room(&at, there)?;
                fresh.make_file(turn, at, *stamp, attributes)?;
            }
            (EntryKind::Symlink { target }, there) => {
                fresh.make_room(&at, there)?;
                let (id, kind) = (turn.draw()?, NewKind::Symlink(target.clone()));
                fresh.changes.push(Change::Make { id, at, kind, attributes, keep_both: true });
            }
            _ => {
                let name = String::from_utf8_lossy(&at.name.0).into_owned();
                return Err(Error::new(Code::SpecialFile, "publish", name, "no file"));
            }
        }
        if let (EntryKind::File { .. }, Some((id, _))) = (&plain.kind, fresh.held.last()) {
            let before = turn.pending.xattrs(*id)?;
            fresh.changes.extend(changes_of(*id, &before, &plain.meta.xattrs));
        }
        Ok(fresh)
    }

    /// Removes the existing entry of the name.
    fn make_room(&mut self, at: &Dentry, there: Option<(NodeId, Node)>) -> Result<(), Error> {
        let Some((id, node)) = there else { return Ok(()) };
        if node.is_dir() {
            let name = String::from_utf8_lossy(&at.name.0).into_owned();
            return Err(Error::new(Code::IsADirectory, "publish", name, ""));
        }
        if node.links <= 1 {
            self.held.push((id, None));
        }
        self.changes.push(Change::Remove { at: at.clone(), seen: None, time: now() });
        Ok(())
    }

    fn make_file(
        &mut self,
        turn: &mut WriteTxn<'_>,
        at: Dentry,
        stamp: Stamp,
        attributes: Attributes,
    ) -> Result<(), Error> {
        let id = turn.draw()?;
        let mut number = turn.next_number()? + self.changes.len() as u64;
        self.changes.push(Change::Make {
            id,
            at: at.clone(),
            kind: NewKind::File,
            attributes: attributes.clone(),
            keep_both: true,
        });
        if stamp.size > 0 {
            let beside = Beside { id: turn.beside(id)?, at, attributes };
            self.changes.push(content(id, Base::Own(number), stamp, beside));
            number += 1;
        }
        self.hold(turn, id, number, stamp)
    }

    /// A new version of a file.
    fn write(
        &mut self,
        turn: &mut WriteTxn<'_>,
        id: NodeId,
        node: &Node,
        at: Dentry,
        stamp: Stamp,
        attributes: Attributes,
    ) -> Result<(), Error> {
        let Kind::File(before) = &node.kind else { return Ok(()) };
        let Attributes { owner, group, .. } = node.attributes.clone();
        let attributes = Attributes { owner, group, ..attributes };
        let beside = Beside { id: turn.beside(id)?, at, attributes: attributes.clone() };
        self.changes.push(content(id, before.base(), stamp, beside));
        if attributes.mode != node.attributes.mode {
            self.changes.push(Change::SetAttributes { id, attributes });
        }
        let number = turn.next_number()?;
        self.hold(turn, id, number, stamp)
    }

    fn hold(&mut self, turn: &WriteTxn<'_>, id: NodeId, number: u64, stamp: Stamp) -> Result<(), Error> {
        let version = turn.own(number)?;
        self.held.push((id, Some(HeldReplica { version, stamp, digest: None })));
        Ok(())
    }
}

fn content(id: NodeId, base: Base, stamp: Stamp, beside: Beside) -> Change {
    let Stamp { size, mtime, .. } = stamp;
    Change::SetContent { id, base, size, digest: None, mtime, beside: Some(beside) }
}

fn is_file(node: &Node) -> bool {
    matches!(node.kind, Kind::File(_))
}
