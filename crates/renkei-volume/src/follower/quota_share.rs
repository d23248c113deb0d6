//! The quota share of this site: the part of a followed volume's quotas that its home granted to this site (escrow).
//!
//! The home grants it a share (`renkei_core::namespace::quota_share`), which is kept beside the copy. Each change
//! reserves what it adds before anything is done. A change that does not fit waits for the next grant, if the home is
//! reachable. Guarantee: a kill at any moment leaves less free space in the share rather than more.

use super::outbox::{Outbox, ReserveState, lock};
use renkei_catalogue::TreeNote;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::quota_share::{Allowed, Charge, QuotaShare, Room, ShareRequest, charge};
use renkei_core::namespace::{Change, Kind, Node, NodeId, SequencedChange};
use renkei_core::wire::decode;
use renkei_store::Space;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The note in the tree with the last share.
pub(crate) const ALLOWANCE: TreeNote<QuotaShare> = TreeNote::of("allowance", &[decode]);
/// Longest wait of a change for a grant of the home.
const PATIENCE: Duration = Duration::from_secs(5);

impl Outbox {
    /// Resumes with the stored share, less what pending changes use of it.
    pub(crate) fn resume_room<'c>(
        &self,
        changes: impl Iterator<Item = &'c SequencedChange>,
    ) -> Result<(), Error> {
        self.set_allowance(ALLOWANCE.read(&self.tree)?, changes)
    }

    fn set_allowance<'c>(
        &self,
        told: Option<QuotaShare>,
        changes: impl Iterator<Item = &'c SequencedChange>,
    ) -> Result<(), Error> {
        let is_limited = told.as_ref().is_some_and(|told| !told.rooms.is_empty());
        let charges = if is_limited { self.charges(changes)? } else { Vec::new() };
        lock(&self.rooms.state).allowed = Allowed::resume(told, charges.into_iter());
        self.rooms.is_limited.store(is_limited, Ordering::Release);
        Ok(())
    }

    /// The additions of pending changes.
    fn charges<'c>(
        &self,
        changes: impl Iterator<Item = &'c SequencedChange>,
    ) -> Result<Vec<(u64, Charge)>, Error> {
        let changes: Vec<&SequencedChange> = changes.collect();
        let written = changes.iter().filter_map(|made| match &made.change {
            Change::SetContent { id, .. } => Some(*id),
            _ => None,
        });
        let known = self.tree.nodes(&written.collect::<Vec<_>>())?;
        let mut sizes: HashMap<NodeId, u64> = known.iter().map(|(id, node)| (*id, size(node))).collect();
        let mut charges = Vec::new();
        for made in changes {
            let one = charge(&made.change, |id| sizes.get(&id).copied().unwrap_or_default());
            charges.extend(one.map(|one| (made.number, one)));
            if let Change::SetContent { id, size, .. } = &made.change {
                sizes.insert(*id, *size);
            }
        }
        Ok(charges)
    }

    /// Serialises requests to the home.
    pub fn asking(&self) -> MutexGuard<'_, ()> {
        lock(&self.rooms.asking)
    }

    /// The share request for the home; none if this site does not write.
    pub fn claim(&self) -> Option<ShareRequest> {
        self.enlisted().filter(|enlisted| enlisted.writes)?;
        let mut state = lock(&self.rooms.state);
        state.is_said = true;
        Some(state.allowed.claim(&state.more))
    }

    /// Takes a share that the home granted.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn hear_allowance(&self, told: QuotaShare) -> Result<(), Error> {
        if self.is_limited() && !told.rooms.is_empty() {
            lock(&self.rooms.state).allowed.hear(told);
        } else if !told.rooms.is_empty() || self.is_limited() {
            // Either there were no quotas when the pending changes were made, or the last one was removed.
            let _turn = self.turn();
            let changes: Vec<SequencedChange> =
                self.seen().follower.iter().flat_map(|follower| follower.pending(0).cloned()).collect();
            self.set_allowance(Some(told), changes.iter())?;
        }
        let kept = {
            let mut state = lock(&self.rooms.state);
            if state.is_said {
                state.more.clear();
                state.heard += 1;
            }
            state.allowed.told().cloned()
        };
        let stored = kept.map_or(Ok(()), |kept| self.keep_allowance(&kept));
        self.rooms.moved.notify_all();
        stored
    }

    fn keep_allowance(&self, told: &QuotaShare) -> Result<(), Error> {
        if ALLOWANCE.read(&self.tree)?.as_ref() == Some(told) {
            return Ok(());
        }
        ALLOWANCE.write(&self.tree, told)
    }

    /// The log has own changes up to `number`, and the home counts them. Stored before the changes leave the outbox.
    pub(crate) fn settle_room(&self, number: u64) -> Result<(), Error> {
        if !self.is_limited() {
            return Ok(());
        }
        let kept = {
            let mut state = lock(&self.rooms.state);
            state.allowed.settle(number);
            state.allowed.told().cloned()
        };
        kept.map_or(Ok(()), |kept| self.keep_allowance(&kept))
    }

    /// Reserves the additions of changes with numbers from `number` on.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn take_room<'c>(
        &self,
        number: u64,
        changes: impl Iterator<Item = &'c Change>,
    ) -> Result<(), Error> {
        if !self.is_limited() {
            return Ok(());
        }
        let mut charges = Vec::new();
        for change in changes {
            let before = match change {
                Change::SetContent { id, .. } => self.node(*id)?.map_or(0, |node| size(&node)),
                _ => 0,
            };
            charges.push(charge(change, |_| before));
        }
        let mut state = lock(&self.rooms.state);
        state.allowed.take(number, &charges).map_err(|cause| {
            state.more = charges.into_iter().flatten().collect();
            state.is_said = false;
            self.call();
            Error::new(Code::QuotaExceeded, "write", &self.name, cause)
        })
    }

    /// Cancels the reservations of changes from `number` on, which were not made.
    pub(crate) fn give_back_room(&self, number: u64) {
        if self.is_limited() {
            lock(&self.rooms.state).allowed.give_back(number);
        }
    }

    /// Whether the volume has quotas, as far as this site knows.
    pub fn is_limited(&self) -> bool {
        self.rooms.is_limited.load(Ordering::Acquire)
    }

    /// Whether a change waits for a grant.
    pub fn wants_room(&self) -> bool {
        self.is_limited() && !lock(&self.rooms.state).more.is_empty()
    }

    /// The home is unreachable: no change waits for it.
    pub fn on_unheard(&self) {
        lock(&self.rooms.state).more.clear();
        self.rooms.moved.notify_all();
    }

    /// Waits for the home's answer to a request; false if none comes.
    pub(crate) fn await_room(&self) -> bool {
        let state = lock(&self.rooms.state);
        if state.more.is_empty() {
            // The answer came in between.
            return true;
        }
        let heard = state.heard;
        let is_open = |state: &mut ReserveState| state.heard == heard && !state.more.is_empty();
        let waited = self.rooms.moved.wait_timeout_while(state, PATIENCE, is_open);
        waited.expect("no thread panics while it holds the lock").0.heard != heard
    }

    /// The space of the file system, narrowed to the share of an owner.
    pub(crate) fn narrow(&self, space: Space, owner: &str) -> Space {
        let ours = |room: &Room| room.owner.as_deref().is_none_or(|limited| limited == owner);
        self.room_left().iter().filter(|room| ours(room)).fold(space, |space, Room { most, .. }| Space {
            available_bytes: most.bytes.map_or(space.available_bytes, |left| space.available_bytes.min(left)),
            free_files: most.files.map_or(space.free_files, |left| space.free_files.min(left)),
            ..space
        })
    }

    /// The rest of the share, by quota.
    pub fn room_left(&self) -> Vec<Room> {
        lock(&self.rooms.state).allowed.left()
    }
}

fn size(node: &Node) -> u64 {
    match &node.kind {
        Kind::File(content) => content.size,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_catalogue::Trees;
    use renkei_config::home::Home;
    use renkei_core::entry::FileTime;
    use renkei_core::namespace::quota::Limit;
    use renkei_core::namespace::{Attributes, Dentry, NewKind, Origin, ROOT};
    use renkei_store::leases::LeaseTable;

    fn make() -> Change {
        let (owner, group, mtime) = ("alice".into(), "genomics".into(), FileTime::default());
        let attributes = Attributes { mode: 0o644, owner, group, mtime };
        let at = Dentry { dir: ROOT, name: "f".into() };
        Change::Make { id: Origin(1).id(1), at, kind: NewKind::File, attributes, keep_both: true }
    }

    #[test]
    fn an_answer_to_an_earlier_claim_does_not_answer_a_later_one() {
        let top = tempfile::tempdir().unwrap();
        let trees = Trees::open("", &Home::at(top.path())).unwrap();
        let (tree, journal) = (trees.tree([7; 16]).unwrap(), top.path().join("journal"));
        let pending = Outbox::load("v", tree, &journal, LeaseTable::default()).unwrap();
        pending.enlist(Origin(1), true).unwrap();
        let told = |raised, files| {
            let most = Limit { files: Some(files), bytes: None };
            QuotaShare { raised, after: 0, rooms: vec![Room { owner: None, most }] }
        };
        pending.hear_allowance(told(1, 0)).unwrap();
        // A request is under way when a change does not fit.
        assert!(pending.claim().is_some());
        assert_eq!(pending.take_room(1, [make()].iter()).unwrap_err().code, Code::QuotaExceeded);
        pending.hear_allowance(told(2, 0)).unwrap();
        assert!(pending.wants_room(), "the home has not been asked for it");
        assert!(pending.claim().is_some());
        pending.hear_allowance(told(3, 1)).unwrap();
        assert!(!pending.wants_room() && pending.await_room());
        pending.take_room(1, [make()].iter()).unwrap();
    }
}
