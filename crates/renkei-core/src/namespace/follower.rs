//! A site that follows a volume: a copy of the tree, and its own changes over it until the home has put them in order.
//!
//! The copy is kept by whoever drives this (in memory, or in a database); here is what lies over it. Changes made here
//! are decided against what is seen here, shown at once, and kept until the log has them. When records come, the
//! copy moves on and the changes that are left are laid over it anew.

use super::overlay::Layer;
use super::tree::{Clash, Tree, decide};
use super::{Change, Effects, Name, Node, NodeId, Numbered, Origin, Record, Spot};
use crate::error::{Code, Error};
use std::collections::VecDeque;

/// What became of a change made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its number.
    pub number: u64,
    /// The change.
    pub change: Change,
    /// Why the home refused it.
    pub error: Error,
}

/// What a record asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// What to apply to the copy, together with the record's number.
    pub effects: Effects,
    /// A change of this site's that was refused.
    pub refused: Option<Refused>,
}

/// Changes made here that are not in the log yet.
#[derive(Clone, Debug)]
pub struct Follower {
    origin: Origin,
    /// The last record in the copy.
    seq: u64,
    /// The last change made here.
    number: u64,
    pending: VecDeque<Numbered>,
    layer: Layer,
    /// The copy moved on below the layer.
    is_stale: bool,
}

impl Follower {
    /// Goes on with a copy up to record `seq`, and with the changes that were `pending`, the last one made having had
    /// `number`.
    pub fn resume(origin: Origin, seq: u64, number: u64, pending: VecDeque<Numbered>) -> Self {
        let is_stale = !pending.is_empty();
        Follower { origin, seq, number, pending, layer: Layer::default(), is_stale }
    }

    /// The last record in the copy.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The last change made here.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Changes that the home has not put in order yet, from the `after`-th of them on.
    pub fn pending(&self, after: u64) -> impl Iterator<Item = &Numbered> {
        self.pending.iter().filter(move |sent| sent.number > after)
    }

    /// The tree as it is seen here.
    pub fn view<'a, T: Tree>(&'a mut self, copy: &'a T) -> Seen<'a, T> {
        self.lay_anew(copy);
        Seen { layer: &self.layer, copy }
    }

    /// Makes a change, to be sent; gives it with its number, to be stored first.
    ///
    /// # Errors
    /// As [`decide`], by what is seen here.
    pub fn submit(&mut self, copy: &impl Tree, change: Change) -> Result<Numbered, Error> {
        let made = Numbered { origin: self.origin, number: self.number + 1, change };
        let effects = decide(&self.view(copy), 0, &made, Clash::Refuse)?;
        self.layer.add(effects);
        self.number = made.number;
        self.pending.push_back(made.clone());
        Ok(made)
    }

    /// Takes the next record; nothing for one that is in the copy already.
    ///
    /// # Errors
    /// `ProtocolViolation` for one that does not follow, or that tells of a change never made here.
    pub fn handle(&mut self, record: Record) -> Result<Option<Followed>, Error> {
        let bad = |cause: String| Error::new(Code::ProtocolViolation, "volume", "record", cause);
        if record.seq <= self.seq {
            return Ok(None);
        }
        if record.seq != self.seq + 1 {
            return Err(bad(format!("{} after {}", record.seq, self.seq)));
        }
        let own = match record.origin == self.origin {
            true => Some(
                self.pending
                    .pop_front_if(|made| made.number == record.number)
                    .ok_or_else(|| bad(format!("change {} was not made here", record.number)))?,
            ),
            false => None,
        };
        self.seq = record.seq;
        self.is_stale = true;
        Ok(Some(match (record.outcome, own) {
            (Ok(effects), _) => Followed { effects, refused: None },
            (Err(error), own) => {
                let refused = own.map(|Numbered { number, change, .. }| Refused { number, change, error });
                Followed { effects: Effects::default(), refused }
            }
        }))
    }

    /// Lays the pending changes over the copy as it is now. One that cannot be done any more is not shown; the home says
    /// what becomes of it.
    fn lay_anew(&mut self, copy: &impl Tree) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.layer = Layer::default();
        for made in &self.pending {
            if let Ok(effects) = decide(&Seen { layer: &self.layer, copy }, 0, made, Clash::AsWanted) {
                self.layer.add(effects);
            }
        }
    }
}

/// A copy with a layer over it, both elsewhere.
pub struct Seen<'a, T> {
    layer: &'a Layer,
    copy: &'a T,
}

impl<T: Tree> Tree for Seen<'_, T> {
    fn node(&self, id: NodeId) -> Option<Node> {
        self.layer.node(self.copy, id)
    }

    fn child(&self, at: &Spot) -> Option<NodeId> {
        self.layer.child(self.copy, at)
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        self.layer.list(self.copy, dir, after, most)
    }
}
