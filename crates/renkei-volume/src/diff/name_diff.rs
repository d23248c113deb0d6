//! The diff of one name: the change that follows when the plain tree and the catalogue differ.

use super::catalogue_dir::CatalogueDir;
use super::tree_diff::{Holds, OWN, Of, Place, TreeDiff};
use crate::plain_entry::{Plain, is_same_content};
use renkei_catalogue::HeldReplica;
use renkei_core::entry::{EntryKind, FileTime};
use renkei_core::error::Error;
use renkei_core::namespace::xattrs::changes_of;
use renkei_core::namespace::{Attributes, Base, Change, Content, Dentry, Kind, Name, NewKind, Node, NodeId};
use renkei_core::path::RelPath;
use renkei_store::{Detail, Dir};

/// Mode bit without which the attributes of a file cannot be read by its owner either.
const OWNER_READS: u32 = 0o400;

impl TreeDiff {
    /// Adds a new name to the catalogue; returns its path if it is a directory.
    pub(crate) fn make(
        &mut self,
        place: &Place,
        path: &RelPath,
        plain: &Plain,
    ) -> Result<Option<RelPath>, Error> {
        let Some(kind) = plain.kind() else { return Ok(None) };
        let at = place.spot(path.name().unwrap_or_default());
        self.tally.new += 1;
        self.tally.note("new", path);
        self.batch.touched.insert(place.path.clone(), place.id);
        if let Some(id) = self.twin(plain)? {
            let time = plain.entry.meta.mtime;
            self.change(Change::Link { id, at, time })?;
            return Ok(None);
        }
        let (id, attributes) = (self.draw()?, plain.attributes());
        let (is_dir, stamp) = (kind == NewKind::Dir, plain.stamp());
        let digest = if kind == NewKind::File { self.digests.take(path, &stamp) } else { None };
        let (kind, is_file) = match kind {
            NewKind::File => (NewKind::Content { size: stamp.size, digest }, true),
            kind => (kind, false),
        };
        let number = self.change(Change::Make { id, at, kind, attributes, keep_both: false })?;
        if is_dir || is_file {
            self.update_xattrs(&*place.dir, plain, id, true)?;
        }
        if is_dir {
            self.batch.ids.insert(path.clone(), id);
            self.batch.fresh.insert(id);
            return Ok(Some(path.clone()));
        }
        if is_file {
            self.batch.held.push(Holds { id, of: Of::Change(number), stamp, digest });
            self.remember_links(id, plain);
        }
        Ok(None)
    }

    /// The node of a file with several hard links, if one of its names is known.
    fn twin(&mut self, plain: &Plain) -> Result<Option<NodeId>, Error> {
        let is_file = matches!(plain.entry.kind, EntryKind::File { .. });
        if !is_file || plain.raw.nlink < 2 {
            return Ok(None);
        }
        let Some(id) = self.links.get(&(plain.raw.dev, plain.raw.ino)).copied() else { return Ok(None) };
        if self.batch.gone.contains(&id) {
            return Ok(None);
        }
        let pending = self.batch.held.iter().rev().find(|holds| holds.id == id).map(|holds| holds.stamp);
        let stamp = match pending {
            Some(stamp) => Some(stamp),
            None => self.tree.held(id)?.map(|held| held.stamp),
        };
        // The inode number may have been reused for another file.
        Ok(stamp.filter(|stamp| stamp.ino == plain.raw.ino).map(|_| id))
    }

    /// Adds a new content of a file.
    pub(crate) fn set_content(
        &mut self,
        path: &RelPath,
        id: NodeId,
        base: Base,
        plain: &Plain,
    ) -> Result<(), Error> {
        let (stamp, mtime) = (plain.stamp(), plain.entry.meta.mtime);
        let (size, digest) = (stamp.size, self.digests.take(path, &stamp));
        let number = self.change(Change::SetContent { id, base, size, digest, mtime, beside: None })?;
        self.batch.held.push(Holds { id, of: Of::Change(number), stamp, digest });
        self.remember_links(id, plain);
        Ok(())
    }

    fn remember_links(&mut self, id: NodeId, plain: &Plain) {
        if plain.raw.nlink > 1 {
            self.links.insert((plain.raw.dev, plain.raw.ino), id);
        }
    }

    /// Updates a name that both trees have.
    pub(crate) fn update(
        &mut self,
        place: &Place,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        node: Node,
    ) -> Result<(), Error> {
        let mut has_new_xattrs = plain.entry.kind == EntryKind::Dir;
        if let Kind::File(content) = &node.kind {
            if let Some(twin) = self.twin(plain)?.filter(|twin| *twin != id) {
                tracing::debug!(node = id.0, other = twin.0, "another name of another file");
                self.remove(place, path, id, &node)?;
                return self.make(place, path, plain).map(drop);
            }
            let held = self.held(id)?;
            let is_other = held.as_ref().is_some_and(|held| held.stamp.ino != plain.raw.ino);
            if is_other && node.links > 1 {
                self.remove(place, path, id, &node)?;
                return self.make(place, path, plain).map(drop);
            }
            // The file was reconciled by another name.
            if plain.raw.nlink > 1 && !self.batch.settled.insert(id) {
                return Ok(());
            }
            // Setting one changes the ctime.
            has_new_xattrs = held.as_ref().is_none_or(|held| held.stamp != plain.stamp());
            if self.update_content(path, plain, id, &node, content, held)? {
                let attributes = Attributes { mtime: plain.entry.meta.mtime, ..node.attributes };
                self.update_attributes(path, plain, id, &attributes, false)?;
                return self.update_xattrs(&*place.dir, plain, id, false);
            }
        } else if plain.entry.kind == EntryKind::Dir {
            self.batch.ids.insert(path.clone(), id);
            if self.batch.touched.contains_key(path) {
                return Ok(());
            }
        }
        self.update_attributes(path, plain, id, &node.attributes, true)?;
        if has_new_xattrs { self.update_xattrs(&*place.dir, plain, id, false) } else { Ok(()) }
    }

    /// Takes over the extended attributes of an entry of the plain tree, if they differ. Those of a file that its owner
    /// may not read stay as they are.
    pub(crate) fn update_xattrs(
        &mut self,
        dir: &dyn Dir,
        plain: &Plain,
        id: NodeId,
        is_new: bool,
    ) -> Result<(), Error> {
        let full = match plain.entry.path.name() {
            _ if plain.entry.meta.mode & OWNER_READS == 0 => return Ok(()),
            Some(name) if plain.entry.path != *dir.path() => dir.entry(name, Detail::Full),
            _ => dir.self_entry(Detail::Full),
        };
        // An entry that is gone by now is compared again.
        let Ok((entry, _)) = full else { return Ok(()) };
        let known = if is_new { Vec::new() } else { self.tree.xattrs(id)? };
        let mut changes = changes_of(id, &known, &entry.meta.xattrs).into_iter();
        changes.try_for_each(|change| self.change(change).map(drop))
    }

    /// Updates the content; returns whether it is new.
    fn update_content(
        &mut self,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        node: &Node,
        content: &Content,
        held: Option<HeldReplica>,
    ) -> Result<bool, Error> {
        let stamp = plain.stamp();
        let is_same = match &held {
            Some(held) => held.version == content.version && is_same_content(&held.stamp, &stamp),
            // A kill came between the change and its replica row.
            None => (content.size, node.attributes.mtime) == (stamp.size, stamp.mtime),
        };
        if !is_same {
            self.tally.changed += 1;
            self.tally.note("changed", path);
            self.set_content(path, id, content.base(), plain)?;
            return Ok(true);
        }
        if held.is_none() {
            let (of, digest) = (Of::Version(content.version), content.digest);
            self.batch.held.push(Holds { id, of, stamp, digest });
        }
        self.remember_links(id, plain);
        Ok(false)
    }

    /// Takes over the attributes of the plain tree, if they differ.
    pub(crate) fn update_attributes(
        &mut self,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        known: &Attributes,
        counts: bool,
    ) -> Result<(), Error> {
        let attributes = self.attributes(id, plain, Some(known));
        if attributes == *known {
            return Ok(());
        }
        if counts {
            self.tally.attributes += 1;
            self.tally.note("attributes", path);
        }
        self.change(Change::SetAttributes { id, attributes }).map(drop)
    }

    /// The attributes of a node. A node that another site created belongs to the volume's account in the plain tree,
    /// and keeps the owner that the catalogue names.
    pub(crate) fn attributes(&self, id: NodeId, plain: &Plain, known: Option<&Attributes>) -> Attributes {
        let attributes = plain.attributes();
        let is_others = id.drawn().is_some_and(|(origin, _)| origin != OWN);
        match known {
            Some(known) if is_others && self.uid == Some(plain.raw.uid) => {
                let (owner, group) = (known.owner.clone(), known.group.clone());
                Attributes { owner, group, ..attributes }
            }
            _ => attributes,
        }
    }

    /// Removes a name from the catalogue, with all entries below it.
    pub(crate) fn remove(
        &mut self,
        place: &Place,
        path: &RelPath,
        id: NodeId,
        node: &Node,
    ) -> Result<(), Error> {
        self.tally.gone += 1;
        self.tally.note("gone", path);
        self.batch.touched.insert(place.path.clone(), place.id);
        let (at, time) = (place.spot(path.name().unwrap_or_default()), node.attributes.mtime);
        if !node.is_dir() {
            if node.links == 1 {
                self.batch.gone.insert(id);
            }
            return self.change(Change::Remove { at, seen: None, time }).map(drop);
        }
        self.batch.ids.retain(|below, _| !below.starts_with(path));
        self.batch.touched.retain(|below, _| !below.starts_with(path));
        self.batch.doubtful.retain(|below, _| !below.starts_with(path));
        self.remove_tree(at, id, time)
    }

    fn remove_tree(&mut self, at: Dentry, id: NodeId, time: FileTime) -> Result<(), Error> {
        let mut levels = vec![(at, CatalogueDir::of(id, self.batch.fresh.contains(&id)), false)];
        while let Some((_, known, keeps)) = levels.last_mut() {
            let dir = known.dir;
            if known.peek(&self.tree)?.is_none() {
                if let Some((at, _, keeps)) = levels.pop() {
                    self.end_level(levels.last_mut().map(|(_, _, keeps)| keeps), dir, at, keeps, time)?;
                }
                continue;
            }
            let (name, node) = known.take();
            let at = Dentry { dir, name: Name(name) };
            match node {
                Some((id, node)) if node.is_dir() => levels.push((at, CatalogueDir::of(id, false), false)),
                Some((id, node)) if self.keeps(id, &node)? => *keeps = true,
                _ => drop(self.change(Change::Remove { at, seen: None, time })?),
            }
            self.decide_if_full()?;
        }
        Ok(())
    }

    /// Removes a removed directory from the catalogue, unless it has remote content.
    fn end_level(
        &mut self,
        above: Option<&mut bool>,
        dir: NodeId,
        at: Dentry,
        keeps: bool,
        time: FileTime,
    ) -> Result<(), Error> {
        if !keeps {
            self.batch.gone.insert(dir);
            return self.change(Change::RemoveDir { at, time }).map(drop);
        }
        if let Some(above) = above {
            *above = true;
        }
        self.keep_dir(dir);
        Ok(())
    }
}
