//! Corrupt plain files at the home: files without a visible change whose bytes differ from their digest.
//!
//! Such a file is not served any more. A change of the home's own lists it as remote content, so that reads go to
//! another site that holds it, and the repaired content comes from there; until then the file stays in its place.
//! Writing it makes a new version, and removing it removes it, as with any plain file.

use super::node_paths::NodePaths;
use super::reconciler::Reconciler;
use crate::Volume;
use crate::diff::tree_diff::{OWN, TreeDiff};
use crate::plain_entry::{Plain, is_same_content};
use crate::reconciler_requests::{Ask, FileVerdict};
use renkei_catalogue::{Away, HeldReplica, VolumeTree};
use renkei_core::error::Error;
use renkei_core::namespace::{Kind, Node, NodeId};
use renkei_core::path::RelPath;
use std::collections::HashMap;

impl Volume {
    /// Takes verdicts on plain files: corrupt files are not served any more, and repaired ones are again.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn judge(&self, judged: Vec<FileVerdict>) -> Result<(), Error> {
        if judged.is_empty() { Ok(()) } else { self.shared.notes.ask(Ask::Judge(judged)) }
    }
}

/// Whether the plain file of a node is corrupt and was not replaced yet.
pub(crate) fn is_spoiled(tree: &VolumeTree, id: NodeId, node: &Node) -> Result<bool, Error> {
    let Kind::File(content) = &node.kind else { return Ok(false) };
    Ok(tree.held(id)?.is_some_and(|held| held.expected(content.version).is_some()))
}

impl TreeDiff {
    /// Whether a plain file is the corrupt one; its attributes are taken over all the same.
    pub(crate) fn is_left_wrong(
        &mut self,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        node: &Node,
    ) -> Result<bool, Error> {
        let Kind::File(content) = &node.kind else { return Ok(false) };
        let spoiled = self.held(id)?.filter(|held| held.expected(content.version).is_some());
        if spoiled.is_none_or(|held| !is_same_content(&held.stamp, &plain.stamp())) {
            return Ok(false);
        }
        self.update_attributes(path, plain, id, &node.attributes, true).map(|()| true)
    }
}

impl Reconciler {
    /// Stores verdicts on plain files that are unchanged since they were read.
    pub(crate) fn judge(&mut self, judged: Vec<FileVerdict>) -> Result<(), Error> {
        let ids: Vec<NodeId> = judged.iter().map(|one| one.id).collect();
        let (tree, spots) = (self.tree.clone(), self.tree.names_of(&ids)?);
        let mut paths = NodePaths::of_tree(&tree, HashMap::new());
        let named: Result<Vec<Option<RelPath>>, Error> =
            spots.values().flatten().map(|spot| paths.of(spot)).collect();
        // A file that was changed meanwhile has another version after this.
        self.bring(&named?.into_iter().flatten().collect::<Vec<_>>())?;
        let (mut wrong, mut away, mut right) = (Vec::new(), Vec::new(), Vec::new());
        for FileVerdict { id, version, stamp, digest, is_wrong } in judged {
            let Some(Node { kind: Kind::File(content), .. }) = tree.node(id)? else { continue };
            let Some(held) = tree.held(id)? else { continue };
            if content.version != version || !is_same_content(&held.stamp, &stamp) {
                continue;
            }
            match (is_wrong, held.expected(version)) {
                (true, None) if held.is_of(&content) => {
                    let size = content.size;
                    away.push(Away { id, version, origin: OWN, size });
                    wrong.push((id, Some(HeldReplica { stamp, ..HeldReplica::spoiled(version, digest) })));
                }
                (false, Some(_)) => {
                    right.push((id, Some(HeldReplica { version, stamp, digest: Some(digest) })));
                }
                _ => {}
            }
        }
        self.shared.away.add(spots.values().flatten().map(|spot| spot.dir));
        // The list of remote content first: a listed file that is not corrupt does no harm, and is removed from the
        // list when the volume is opened.
        self.tree.set_away(&away)?;
        self.tree.set_held(&wrong)?;
        if !right.is_empty() {
            self.tree.set_here(&right)?;
        }
        self.forget_if_none()
    }

    /// Removes files from the list of remote content that are not corrupt: a kill came between the two writes.
    pub(crate) fn forget_right(&self, listed: &[Away]) -> Result<(), Error> {
        let mut right = Vec::new();
        for away in listed.iter().filter(|away| away.origin == OWN) {
            let Some(Node { kind: Kind::File(content), .. }) = self.tree.node(away.id)? else { continue };
            let held = self.tree.held(away.id)?.filter(|held| held.is_of(&content));
            right.extend(held.map(|held| (away.id, Some(held))));
        }
        if right.is_empty() { Ok(()) } else { self.tree.set_here(&right) }
    }
}
