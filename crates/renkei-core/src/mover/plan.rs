//! The sender's queue: turns entries into units of work.
//!
//! Entries arrive in the order of the walk and are numbered. Small ones are gathered into packs, large files are
//! divided into extents that any stream may take. If the destination may already have some files, files are offered
//! first and queued when the verdict wants them; everything else is queued at once, so no entry waits for another.

use super::digest::slot_count;
use super::offer::{OfferItem, SlotRange, Verdict};
use crate::batch::BATCH_ENTRIES;
use crate::entry::{Entry, EntryKind};
use crate::ids::EntryId;
use crate::path::RelPath;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Largest file sent whole inside one frame.
pub const SMALL_FILE_BYTES: u64 = 1 << 20;
/// Content of one pack: large enough that a stream rarely asks, small enough for load balancing.
pub const PACK_BYTES: u64 = 1 << 20;
/// Most entries of one pack.
pub const PACK_ENTRIES: usize = 128;
/// Entries queued before the walk has to wait (back-pressure).
pub const MAX_QUEUED: usize = 8192;

/// Location of an entry at the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The index of the transfer's source.
    pub source: u32,
    /// The path below that source's root.
    pub path: RelPath,
}

/// An entry with its number and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its number.
    pub id: EntryId,
    /// The location to read it from.
    pub origin: Origin,
    /// The entry, with its path relative to the destination.
    pub entry: Entry,
}

/// A unit of work of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Send these entries whole.
    Pack(Vec<Item>),
    /// Send one extent.
    Extent {
        /// The file.
        item: Arc<Item>,
        /// The slot of the extent.
        slot: u32,
    },
}

struct Large {
    item: Arc<Item>,
    next: u32,
    /// Extents that the receiver already has, ascending.
    present: VecDeque<SlotRange>,
}

/// Queue between the walk and the streams.
pub struct Plan {
    offers: bool,
    next_id: EntryId,
    to_offer: Vec<Item>,
    offered: VecDeque<Item>,
    pack: Vec<Item>,
    pack_bytes: u64,
    packs: VecDeque<Vec<Item>>,
    large: VecDeque<Large>,
    queued: usize,
    walk_done: bool,
    digests: HashMap<EntryId, [u8; 32]>,
}

impl Plan {
    /// An empty plan; `offers` if the receiver asked to be offered files first.
    pub fn new(offers: bool) -> Self {
        Plan {
            offers,
            next_id: 0,
            to_offer: Vec::new(),
            offered: VecDeque::new(),
            pack: Vec::new(),
            pack_bytes: 0,
            packs: VecDeque::new(),
            large: VecDeque::new(),
            queued: 0,
            walk_done: false,
            digests: HashMap::new(),
        }
    }

    /// Whether the walk should go on or wait.
    pub fn wants_entries(&self) -> bool {
        self.queued < MAX_QUEUED
    }

    /// Takes an entry from the walk and numbers it. `digest` is for receivers that compare content.
    pub fn handle_entry(&mut self, origin: Origin, entry: Entry, digest: Option<[u8; 32]>) -> EntryId {
        let id = self.next_id;
        self.next_id += 1;
        self.queued += 1;
        let item = Item { id, origin, entry };
        if self.offers && matches!(item.entry.kind, EntryKind::File { .. }) {
            self.digests.extend(digest.map(|digest| (id, digest)));
            self.to_offer.push(item);
        } else {
            self.enqueue(item, Vec::new());
        }
        id
    }

    /// The walk is complete.
    pub fn on_walk_done(&mut self) {
        self.walk_done = true;
        self.close_pack();
    }

    /// The next batch to offer; waits for a full batch only while the walk goes on and offers are outstanding.
    pub fn poll_offer(&mut self) -> Option<Vec<OfferItem>> {
        let full = self.to_offer.len() >= BATCH_ENTRIES;
        if self.to_offer.is_empty() || !(full || self.walk_done || self.offered.is_empty()) {
            return None;
        }
        let count = self.to_offer.len().min(BATCH_ENTRIES);
        let batch: Vec<Item> = self.to_offer.drain(..count).collect();
        let digests = &mut self.digests;
        let offer = |item: &Item| OfferItem {
            id: item.id,
            entry: item.entry.clone(),
            digest: digests.remove(&item.id),
        };
        let offers = batch.iter().map(offer).collect();
        self.offered.extend(batch);
        Some(offers)
    }

    /// Takes the verdict on the oldest offered file, which must be `id`; `None` if it is not.
    pub fn handle_verdict(&mut self, id: EntryId, verdict: &Verdict) -> Option<Item> {
        let item = self.offered.pop_front_if(|oldest| oldest.id == id)?;
        match verdict {
            Verdict::Want => self.enqueue(item.clone(), Vec::new()),
            Verdict::Partial(slots) => {
                self.enqueue(item.clone(), slots.clone());
            }
            Verdict::Have | Verdict::Refuse(_) => self.queued -= 1,
        }
        if self.walk_done && self.offered.is_empty() && self.to_offer.is_empty() {
            self.close_pack();
        }
        Some(item)
    }

    fn enqueue(&mut self, item: Item, mut present: Vec<SlotRange>) {
        if item.entry.size() > SMALL_FILE_BYTES {
            present.sort_unstable_by_key(|range| range.first);
            self.large.push_back(Large { item: Arc::new(item), next: 0, present: present.into() });
            return;
        }
        // The destination itself goes first: no other entry can be written before it exists.
        let is_destination = item.entry.path.is_root();
        self.pack_bytes += item.entry.size();
        self.pack.push(item);
        if is_destination || self.pack_bytes >= PACK_BYTES || self.pack.len() >= PACK_ENTRIES {
            self.close_pack();
        }
    }

    fn close_pack(&mut self) {
        if !self.pack.is_empty() {
            self.packs.push_back(std::mem::take(&mut self.pack));
            self.pack_bytes = 0;
        }
    }

    /// The next unit; packs first, so that many files are in flight while large ones fill the path. A partial pack is
    /// handed out rather than leaving a stream idle.
    pub fn poll_unit(&mut self) -> Option<Unit> {
        if self.packs.is_empty() && self.large.is_empty() {
            self.close_pack();
        }
        if let Some(pack) = self.packs.pop_front() {
            self.queued -= pack.len();
            return Some(Unit::Pack(pack));
        }
        self.poll_extent()
    }

    /// Whether the next unit will not grow any more: a pack that is not full may.
    pub fn has_whole_unit(&self) -> bool {
        !(self.packs.is_empty() && self.large.is_empty()) || self.walk_done && !self.pack.is_empty()
    }

    /// Whether a pack is being filled.
    pub fn is_gathering(&self) -> bool {
        !self.pack.is_empty()
    }

    fn poll_extent(&mut self) -> Option<Unit> {
        loop {
            let large = self.large.front_mut()?;
            while let Some(range) = large.present.pop_front_if(|range| range.first <= large.next) {
                large.next = large.next.max(range.first.saturating_add(range.count));
            }
            if large.next < slot_count(large.item.entry.size()) {
                large.next += 1;
                return Some(Unit::Extent { item: large.item.clone(), slot: large.next - 1 });
            }
            self.queued -= 1;
            self.large.pop_front();
        }
    }

    /// Drops the entries for which `is_lost` and that are not handed out yet.
    pub fn drop_items(&mut self, is_lost: impl Fn(&Entry) -> bool) -> Vec<Item> {
        let mut dropped = Vec::new();
        let mut sift =
            |items: &mut Vec<Item>| dropped.extend(items.extract_if(.., |item| is_lost(&item.entry)));
        sift(&mut self.to_offer);
        sift(&mut self.pack);
        self.packs.iter_mut().for_each(&mut sift);
        self.packs.retain(|pack| !pack.is_empty());
        self.pack_bytes = self.pack.iter().map(|item| item.entry.size()).sum();
        // Extents that were handed out already are in flight; the receiver discards them.
        let is_lost = |large: &Large| is_lost(&large.item.entry);
        dropped.extend(self.large.iter().filter(|large| is_lost(large)).map(|large| (*large.item).clone()));
        self.large.retain(|large| !is_lost(large));
        self.queued -= dropped.len();
        for item in &dropped {
            self.digests.remove(&item.id);
        }
        dropped
    }

    /// Drops the extents of a file that are not handed out yet.
    pub fn drop_file(&mut self, id: EntryId) {
        let before = self.large.len();
        self.large.retain(|large| large.item.id != id);
        self.queued -= before - self.large.len();
    }

    /// Whether every entry was found and handed out.
    pub fn is_empty(&self) -> bool {
        self.walk_done && self.queued == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Meta, Stamp};
    use crate::mover::digest::SLOT_BYTES;

    fn file(size: u64) -> Entry {
        let stamp = Stamp { size, ..Stamp::default() };
        let path = RelPath::parse(format!("f{size}").as_bytes()).unwrap();
        Entry { path, meta: Meta::default(), kind: EntryKind::File { stamp, sparse: false } }
    }

    fn add(plan: &mut Plan, size: u64) -> EntryId {
        plan.handle_entry(Origin { source: 0, path: RelPath::root() }, file(size), None)
    }

    fn drain(plan: &mut Plan) -> Vec<Unit> {
        std::iter::from_fn(|| plan.poll_unit()).collect()
    }

    #[test]
    fn small_files_are_packed_and_large_ones_cut() {
        let mut plan = Plan::new(false);
        for _ in 0..PACK_ENTRIES + 5 {
            add(&mut plan, 10);
        }
        add(&mut plan, 2 * SLOT_BYTES + 1);
        plan.on_walk_done();
        let units = drain(&mut plan);
        let extents = units.iter().filter(|unit| matches!(unit, Unit::Extent { .. })).count();
        assert_eq!((units.len() - extents, extents), (2, 3));
        assert!(plan.is_empty());
    }

    #[test]
    fn a_pack_is_complete_when_full_or_at_the_end_of_the_walk() {
        let mut plan = Plan::new(false);
        let seen = |plan: &Plan| (plan.is_gathering(), plan.has_whole_unit());
        assert_eq!(seen(&plan), (false, false));
        for _ in 1..PACK_ENTRIES {
            add(&mut plan, 10);
        }
        assert_eq!(seen(&plan), (true, false));
        add(&mut plan, 10);
        assert_eq!(seen(&plan), (false, true));
        assert!(plan.poll_unit().is_some() && !plan.has_whole_unit());
        add(&mut plan, 10);
        plan.on_walk_done();
        assert!(plan.has_whole_unit());
        add(&mut plan, 2 * SLOT_BYTES);
        drain(&mut plan);
        assert_eq!(seen(&plan), (false, false));
    }

    #[test]
    fn only_offered_files_wait_for_their_verdict() {
        let mut plan = Plan::new(true);
        add(&mut plan, 10);
        add(&mut plan, 4 * SLOT_BYTES);
        plan.handle_entry(
            Origin { source: 0, path: RelPath::root() },
            Entry { path: RelPath::parse(b"d").unwrap(), meta: Meta::default(), kind: EntryKind::Dir },
            None,
        );
        assert_eq!(drain(&mut plan).len(), 1, "the directory goes at once");
        assert_eq!(plan.poll_offer().unwrap().len(), 2);
        assert!(plan.handle_verdict(1, &Verdict::Have).is_none(), "out of order");
        plan.on_walk_done();
        assert!(!plan.is_empty());
        plan.handle_verdict(0, &Verdict::Have).unwrap();
        let here = |first| SlotRange { first, count: 1 };
        plan.handle_verdict(1, &Verdict::Partial(vec![here(2), here(0)])).unwrap();
        let slots: Vec<_> = drain(&mut plan)
            .into_iter()
            .map(|unit| match unit {
                Unit::Extent { slot, .. } => slot,
                Unit::Pack(_) => panic!("no pack expected"),
            })
            .collect();
        assert_eq!(slots, [1, 3]);
        assert!(plan.is_empty());
        assert!(plan.handle_verdict(1, &Verdict::Have).is_none());
    }

    #[test]
    fn the_destination_is_sent_before_any_extent() {
        let mut plan = Plan::new(false);
        let origin = Origin { source: 0, path: RelPath::root() };
        let root = Entry { path: RelPath::root(), meta: Meta::default(), kind: EntryKind::Dir };
        let id = plan.handle_entry(origin, root, None);
        add(&mut plan, 2 * SLOT_BYTES);
        let first = plan.poll_unit();
        assert!(matches!(first, Some(Unit::Pack(items)) if items.len() == 1 && items[0].id == id));
    }

    #[test]
    fn a_failed_file_is_dropped() {
        let mut plan = Plan::new(false);
        let id = add(&mut plan, 4 * SLOT_BYTES);
        plan.on_walk_done();
        plan.poll_unit().unwrap();
        plan.drop_file(id);
        assert!(plan.is_empty() && plan.poll_unit().is_none());
    }

    #[test]
    fn the_walk_is_throttled() {
        let mut plan = Plan::new(false);
        while plan.wants_entries() {
            add(&mut plan, 1);
        }
        assert_eq!(plan.queued, MAX_QUEUED);
        plan.poll_unit();
        assert!(plan.wants_entries());
    }
}
