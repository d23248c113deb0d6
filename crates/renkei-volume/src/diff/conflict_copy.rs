//! The diff of a name whose content is remote: another site has the current version, and the plain tree has an older
//! one or nothing.
//!
//! An older version stays until the current one is fetched. A file that was created in its place without knowledge of
//! that version becomes a conflict copy, under a name that says so.

use super::tree_diff::{Holds, OWN, Of, Place, TreeDiff};
use crate::plain_entry::{Plain, is_same_content};
use renkei_catalogue::Away;
use renkei_core::entry::Stamp;
use renkei_core::error::Error;
use renkei_core::namespace::{Attributes, Base, Change, Kind, NewKind, Node, NodeId, Record};
use renkei_core::path::RelPath;
use std::collections::HashMap;

impl TreeDiff {
    /// Whether a node is remote, so that the plain tree need not have it.
    pub(crate) fn is_away(&self, id: NodeId, node: &Node) -> Result<bool, Error> {
        match &node.kind {
            Kind::File(content) if content.by.0 == OWN => Ok(false),
            // A corrupt file exists in the plain tree: removing it is a removal.
            Kind::File(content) => Ok(self.held(id)?.is_none_or(|held| {
                held.version != content.version && held.expected(content.version).is_none()
            })),
            _ => Ok(self.unplaced.contains(&id)),
        }
    }

    /// Compares a plain file with a remote one; false if it is to be compared as any local one.
    pub(crate) fn update_away(
        &mut self,
        place: &Place,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        node: &Node,
    ) -> Result<bool, Error> {
        let (stamp, held) = (plain.stamp(), self.held(id)?);
        let content = match &node.kind {
            Kind::File(content) => content,
            _ if plain.is_kind_of(node) => {
                self.unplaced.remove(&id);
                self.batch.arrived.push(id);
                return Ok(false);
            }
            _ => return self.make_beside(place, path, plain).map(|()| true),
        };
        if plain.kind() != Some(NewKind::File) {
            return self.make_beside(place, path, plain).map(|()| true);
        }
        if held.is_some_and(|held| is_same_content(&held.stamp, &stamp)) {
            return Ok(true);
        }
        let is_empty = (content.size, stamp.size) == (0, 0) && stamp.mtime == node.attributes.mtime;
        if is_empty || self.is_placed(id, content.version, &stamp) {
            // The file was placed, and that was not noted.
            let (of, digest) = (Of::Version(content.version), content.digest);
            self.batch.held.push(Holds { id, of, stamp, digest });
            self.batch.arrived.push(id);
            return Ok(true);
        }
        let is_successor = self.replacing.version(path) == Some(content.version)
            || self.replacing.is_noted(&(id, content.version, stamp.ino));
        if is_successor {
            self.tally.changed += 1;
            self.tally.note("changed", path);
            self.set_content(path, id, Base::Version(content.version), plain)?;
            let attributes = Attributes { mtime: plain.entry.meta.mtime, ..node.attributes.clone() };
            self.update_attributes(path, plain, id, &attributes, false)?;
            return Ok(true);
        }
        self.make_beside(place, path, plain).map(|()| true)
    }

    /// Whether a plain file is the one that was fetched as a version; equal size and time do not prove that.
    fn is_placed(&self, id: NodeId, version: u64, stamp: &Stamp) -> bool {
        self.placing.get(&id).is_some_and(|placing| placing.contains(&(version, stamp.ino)))
    }

    /// Makes a node of its own for an entry that was created in place of a remote one.
    fn make_beside(&mut self, place: &Place, path: &RelPath, plain: &Plain) -> Result<(), Error> {
        let Some(kind) = plain.kind() else { return Ok(()) };
        self.tally.new += 1;
        self.tally.note("conflict", path);
        self.batch.touched.insert(place.path.clone(), place.id);
        let is_file = kind == NewKind::File;
        let (id, at, attributes) =
            (self.draw()?, place.spot(path.name().unwrap_or_default()), plain.attributes());
        let number = self.change(Change::Make { id, at, kind, attributes, keep_both: true })?;
        if is_file {
            self.set_content(path, id, Base::Own(number), plain)?;
        }
        self.batch.aside.push((number, path.clone()));
        Ok(())
    }

    /// Renames conflict copies to the names in their records.
    pub(crate) fn move_aside(&mut self, aside: &[(u64, RelPath)], records: &[Record]) {
        let by_number: HashMap<u64, &Record> = records.iter().map(|record| (record.number, record)).collect();
        for (number, path) in aside {
            let effects = by_number.get(number).and_then(|record| record.outcome.as_ref().ok());
            let name = effects.and_then(|effects| effects.names.iter().find(|(_, id)| id.is_some()));
            let Some(((spot, _), (dir, old))) = name.zip(self.plain_of(path)) else { continue };
            tracing::info!(%path, name = ?String::from_utf8_lossy(&spot.name.0), "both versions were kept");
            if let Err(error) = dir.rename_no_replace(&old, &*dir, &spot.name.0) {
                self.tally.fail(path, &error);
            }
        }
    }

    /// Whether a node stays in the catalogue when the plain tree has lost its directory: a remote file.
    pub(crate) fn keeps(&mut self, id: NodeId, node: &Node) -> Result<bool, Error> {
        Ok(matches!(node.kind, Kind::File(_)) && self.is_away(id, node)?)
    }

    /// Keeps a removed directory that has remote content in the catalogue; it is created again.
    pub(crate) fn keep_dir(&mut self, id: NodeId) {
        self.unplaced.insert(id);
        self.batch.lost.push(id);
    }

    /// Stores the directories that must be created again.
    pub(crate) fn store_lost(&self, lost: &[NodeId]) -> Result<(), Error> {
        if lost.is_empty() {
            return Ok(());
        }
        let version = self.tree.position()?.seq;
        let rows: Vec<Away> = lost.iter().map(|id| Away { id: *id, version, origin: OWN, size: 0 }).collect();
        self.tree.set_away(&rows)
    }
}
