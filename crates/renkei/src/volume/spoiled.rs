//! Plain files at the home that were found wrong: they show nothing of a change, and have other bytes than they had.
//!
//! Such a file is given out to nobody from then on. It is listed as away, by a change of the home's own, so that its content
//! is read at another site that holds it and comes from there; until then it stays in its place. Whoever changes it makes a
//! new version, and whoever removes it removes it, as with any plain file.

use super::Volume;
use super::away::Ask;
use super::compare::{Compare, OWN};
use super::keeper::Keeper;
use super::paths::Paths;
use super::plain::{Plain, is_same_content};
use crate::catalogue::{Away, Held, VolumeTree};
use renkei_core::entry::Stamp;
use renkei_core::error::Error;
use renkei_core::namespace::{Kind, Node, NodeId};
use renkei_core::path::RelPath;
use std::collections::HashMap;

/// What reading a plain file at the home told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Which node.
    pub id: NodeId,
    /// The version that it should be.
    pub version: u64,
    /// The state that the plain file had.
    pub stamp: Stamp,
    /// The digest that it should have.
    pub digest: [u8; 32],
    /// Whether it has another one.
    pub is_wrong: bool,
}

impl Volume {
    /// Takes what reading plain files told: those that are wrong are given out no more, those that are right again are.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn judge(&self, judged: Vec<Judged>) -> Result<(), Error> {
        if judged.is_empty() { Ok(()) } else { self.shared.notes.ask(Ask::Judge(judged)) }
    }
}

/// Whether the plain file of a node was found wrong, and no other came in its place yet.
pub(super) fn is_spoiled(tree: &VolumeTree, id: NodeId, node: &Node) -> Result<bool, Error> {
    let Kind::File(content) = &node.kind else { return Ok(false) };
    Ok(tree.held(id)?.is_some_and(|held| held.expected(content.version).is_some()))
}

impl Compare {
    /// Whether a plain file is the one that was found wrong; its attributes are its owner's all the same.
    pub(super) fn is_left_wrong(
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

impl Keeper {
    /// Notes what reading plain files told, as far as they are as they were then.
    pub(super) fn judge(&mut self, judged: Vec<Judged>) -> Result<(), Error> {
        let ids: Vec<NodeId> = judged.iter().map(|one| one.id).collect();
        let (tree, spots) = (self.tree.clone(), self.tree.names_of(&ids)?);
        let mut paths = Paths::of_tree(&tree, HashMap::new());
        let named: Result<Vec<Option<RelPath>>, Error> =
            spots.values().flatten().map(|spot| paths.of(spot)).collect();
        // What somebody changed meanwhile is another version after this.
        self.bring(&named?.into_iter().flatten().collect::<Vec<_>>())?;
        let (mut wrong, mut away, mut right) = (Vec::new(), Vec::new(), Vec::new());
        for Judged { id, version, stamp, digest, is_wrong } in judged {
            let Some(Node { kind: Kind::File(content), .. }) = tree.node(id)? else { continue };
            let Some(held) = tree.held(id)? else { continue };
            if content.version != version || !is_same_content(&held.stamp, &stamp) {
                continue;
            }
            match (is_wrong, held.expected(version)) {
                (true, None) if held.is_of(&content) => {
                    let size = content.size;
                    away.push(Away { id, version, origin: OWN, size });
                    wrong.push((id, Some(Held { stamp, ..Held::spoiled(version, digest) })));
                }
                (false, Some(_)) => {
                    right.push((id, Some(Held { version, stamp, digest: Some(digest) })));
                }
                _ => {}
            }
        }
        self.shared.away.add(spots.values().flatten().map(|spot| spot.dir));
        // Listed first: what is listed and right does no harm, and is found when the volume is opened.
        self.tree.set_away(&away)?;
        self.tree.set_held(&wrong)?;
        if !right.is_empty() {
            self.tree.set_here(&right)?;
        }
        self.forget_if_none()
    }

    /// Takes those off the list of what is away that are not wrong: a kill came between the two.
    pub(super) fn forget_right(&self, listed: &[Away]) -> Result<(), Error> {
        let mut right = Vec::new();
        for away in listed.iter().filter(|away| away.origin == OWN) {
            let Some(Node { kind: Kind::File(content), .. }) = self.tree.node(away.id)? else { continue };
            let held = self.tree.held(away.id)?.filter(|held| held.is_of(&content));
            right.extend(held.map(|held| (away.id, Some(held))));
        }
        if right.is_empty() { Ok(()) } else { self.tree.set_here(&right) }
    }
}
