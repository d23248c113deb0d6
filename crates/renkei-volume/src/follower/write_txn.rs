//! The write transaction of a followed volume: a single writer at a time makes changes, or takes in records of the
//! home.

use super::outbox::{Item, Outbox, State, lock};
use super::plain_file::{HeldNow, PlainEntry};
use super::wal::{Sign, WalRecord};
use renkei_catalogue::{HeldReplica, TreeReader, own_version};
use renkei_core::error::{Code, Error};
use renkei_core::lease::HolderId;
use renkei_core::namespace::follower::Follower;
use renkei_core::namespace::invalidations::Invalidations;
use renkei_core::namespace::overlay::Layer;
use renkei_core::namespace::{Change, Dentry, NodeId, Origin, Record, SequencedChange};
use renkei_core::wire::file::Changed;
use renkei_store::Dir;
use std::sync::{Arc, MutexGuard};

/// Node numbers drawn at once.
const DRAW: u64 = 1024;

/// The work of a change beside the tree.
#[derive(Default)]
pub(crate) struct Work {
    /// The sign by which recovery sees that plain files were changed.
    pub(crate) sign: Option<Sign>,
    /// Replica rows after the change.
    pub(crate) held: HeldNow,
    /// Directories of plain files in which names change.
    pub(crate) dirs: Vec<Arc<dyn Dir>>,
}

/// A write transaction: the holder of the write lock.
pub struct WriteTxn<'p> {
    pub(crate) pending: &'p Outbox,
    pub(crate) state: MutexGuard<'p, State>,
    /// The lease holder that makes the change, if any.
    pub(crate) by: Option<HolderId>,
}

impl Outbox {
    /// Takes the write lock. No other thread changes the view until the transaction ends.
    pub fn turn(&self) -> WriteTxn<'_> {
        WriteTxn { pending: self, state: lock(&self.turn), by: None }
    }

    /// Takes the write lock when all changes made before are stored.
    ///
    /// # Errors
    /// The error that keeps changes from being stored.
    pub fn quiet_turn(&self) -> Result<WriteTxn<'_>, Error> {
        loop {
            self.flush()?;
            let turn = self.turn();
            let progress = lock(&self.progress);
            if progress.queue.is_empty() && !progress.is_storing {
                drop(progress);
                return Ok(turn);
            }
        }
    }
}

impl WriteTxn<'_> {
    /// The number of the next change.
    pub(crate) fn next_number(&self) -> Result<u64, Error> {
        let seen = self.pending.seen();
        seen.follower.as_ref().map(|follower| follower.number() + 1).ok_or_else(unknown)
    }

    /// The origin of this site's changes.
    pub(crate) fn origin(&self) -> Result<Origin, Error> {
        self.pending.seen().follower.as_ref().map(Follower::origin).ok_or_else(unknown)
    }

    /// Draws the number of a new node.
    pub(crate) fn draw(&mut self) -> Result<NodeId, Error> {
        let origin = self.origin()?;
        if self.state.ids.is_empty() {
            self.state.ids = self.pending.tree.draw(origin, DRAW)?;
        }
        Ok(origin.id(self.state.ids.next().unwrap_or_default()))
    }

    /// The node that gets the content of a file in case of a conflict.
    pub(crate) fn beside(&mut self, id: NodeId) -> Result<NodeId, Error> {
        if let Some(beside) = self.state.beside.get(&id) {
            return Ok(*beside);
        }
        let beside = self.draw()?;
        self.state.beside.insert(id, beside);
        Ok(beside)
    }

    /// Makes changes, in this order and with consecutive numbers: decides them, runs `plain` on the plain files,
    /// which may correct the replica rows, and shows them. They are stored soon.
    ///
    /// # Errors
    /// The reason why they cannot be made, or the error of `plain`; nothing was changed then.
    pub(crate) fn make(
        &mut self,
        changes: Vec<Change>,
        work: Work,
        plain: impl FnOnce(&mut HeldNow) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let weighed = {
            let seen = self.pending.seen();
            let asked = TreeReader::of(&self.pending.tree);
            let weighed = seen.follower.as_ref().ok_or_else(unknown)?.weigh(&asked, changes);
            asked.check()?;
            weighed?
        };
        let changes: Vec<SequencedChange> = weighed.made.iter().map(|(made, _)| made.clone()).collect();
        let first = changes.first().map_or(0, |made| made.number);
        self.pending.take_room(first, changes.iter().map(|made| &made.change))?;
        let Work { sign, mut held, dirs } = work;
        let noted = self.state.unkept.note(&WalRecord::Made(changes.clone(), held.clone(), sign.clone()));
        if let Err(error) = noted.and_then(|()| plain(&mut held)) {
            self.pending.give_back_room(first);
            self.state.unkept.note(&WalRecord::Undone(first))?;
            return Err(error);
        }
        let last = changes.last().map_or(0, |made| made.number);
        let news = Invalidations::of_made(&weighed.made);
        self.pending.show(|seen| {
            if let Some(follower) = &mut seen.follower {
                follower.make(weighed);
            }
            seen.held.extend(held.iter().map(|(id, held)| (*id, (held.clone(), last))));
            seen.note_time(last);
        });
        // After the change is shown: a lease that is given later already covers it.
        if self.pending.leases.is_held() {
            let (told, leases) = (self.pending.told(&news), &self.pending.leases);
            match news.is_anywhere {
                true => leases.changed_anywhere(self.by, &told),
                false => leases.changed(self.by, &told),
            }
        }
        let mut progress = lock(&self.pending.progress);
        progress.made = last;
        progress.queue.push_back(Item { changes, held, sign, dirs });
        self.pending.moved.notify_all();
        Ok(())
    }

    /// Notes replica rows without a change; they are stored after these directories of plain files are synced.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn hold(&mut self, held: HeldNow, dirs: Vec<Arc<dyn Dir>>) -> Result<(), Error> {
        let item = Item { changes: Vec::new(), held, sign: None, dirs };
        self.state.unkept.note(&item.did())?;
        self.store_soon(vec![item]);
        Ok(())
    }

    /// Shows the replica rows of work that was done, and queues it for storing.
    pub(crate) fn store_soon(&self, items: Vec<Item>) {
        let mut progress = lock(&self.pending.progress);
        let made = progress.made;
        self.pending.show(|seen| {
            let held = items.iter().flat_map(|item| &item.held);
            seen.held.extend(held.map(|(id, held)| (*id, (held.clone(), made))));
        });
        progress.queue.extend(items);
        self.pending.moved.notify_all();
    }

    /// The version in the replica row for a change of this site.
    pub(crate) fn own(&self, number: u64) -> Result<u64, Error> {
        Ok(own_version((self.origin()?, number)))
    }

    /// Makes a temporary name stand for an existing file.
    pub(crate) fn set_alias(&mut self, temp: &[u8], id: NodeId) {
        self.state.aliases.insert(temp.to_vec(), id);
    }

    /// Takes the file for which a temporary name stands.
    pub(crate) fn take_alias(&mut self, temp: &[u8]) -> Option<NodeId> {
        self.state.aliases.remove(temp)
    }

    /// Logs the plain files that may move by records that are about to be stored.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn note_found(&mut self, found: &[PlainEntry]) -> Result<(), Error> {
        if found.is_empty() { Ok(()) } else { self.state.unkept.note(&WalRecord::Follows(found.to_vec())) }
    }

    /// Logs that the plain files of stored records are moved.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn note_followed(&mut self) -> Result<(), Error> {
        self.state.unkept.note(&WalRecord::Followed)?;
        let progress = lock(&self.pending.progress);
        match !progress.is_storing && progress.queue.is_empty() {
            true => self.state.unkept.keep_only(std::iter::empty()),
            false => Ok(()),
        }
    }

    // ---- records -----------------------------------------------------------------------------------------------------

    /// Whether the effects of these records are in the view already.
    pub(crate) fn expects(&self, records: &[Record]) -> bool {
        self.pending.seen().follower.as_ref().is_some_and(|follower| follower.expects(records))
    }

    /// Whether records of other sites do not interfere with own pending changes.
    pub(crate) fn is_apart_from(&self, records: &[Record]) -> bool {
        self.pending.seen().follower.as_ref().is_none_or(|follower| follower.is_apart_from(records))
    }

    /// The names that pending changes touch or refer to, and all names of files that they write, link or unlink.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn own_spots(&self) -> Result<Vec<Dentry>, Error> {
        let (mut spots, mut ids) = {
            let seen = self.pending.seen();
            let Some(follower) = &seen.follower else { return Ok(Vec::new()) };
            let wanted = follower.pending(0).flat_map(|made| made.change.spots());
            let spots: Vec<Dentry> = follower.layer().all_names().chain(wanted).cloned().collect();
            let written = follower.pending(0).filter_map(|made| match made.change {
                Change::SetContent { id, .. } | Change::Link { id, .. } => Some(id),
                _ => None,
            });
            (spots, written.collect::<Vec<_>>())
        };
        let there = self.pending.tree.children(&spots)?.into_values();
        ids.extend(there.filter(|(_, node)| !node.is_dir() && node.links > 1).map(|(id, _)| id));
        spots.extend(self.pending.tree.names_of(&ids)?.into_values().flatten());
        Ok(spots)
    }

    /// Applies records to the copy, together with replica rows, and rebases pending changes over it.
    ///
    /// # Errors
    /// `CatalogueFailed`, `ProtocolViolation`.
    pub fn follow(
        &mut self,
        records: &[Record],
        held: &[(NodeId, Option<HeldReplica>)],
    ) -> Result<(), Error> {
        let (pending, origin) = (self.pending, self.origin()?);
        let own = records.iter().filter(|record| record.origin == origin).map(|record| record.number);
        own.max().map_or(Ok(()), |last| pending.settle_room(last))?;
        pending.tree.follow_with(origin, records, held)?;
        let (mut refused, merged) = (Vec::new(), pending.merged());
        let stale = pending.show(|seen| {
            let Some(follower) = &mut seen.follower else { return Ok(None) };
            for record in records {
                let followed = follower.handle(record.clone())?;
                refused.extend(followed.and_then(|followed| followed.refused));
            }
            let stale = follower.is_stale().then(|| follower.clone());
            seen.merged.settle_records(records);
            seen.forget_times();
            Ok::<_, Error>(stale)
        })?;
        if let Some(mut follower) = stale {
            pending.rebase(&mut follower)?;
            let news = pending.show(|seen| {
                let before = seen.follower.replace(follower).map(|before| before.layer().clone());
                let after = seen.follower.as_ref().map(Follower::layer);
                seen.merged.lay(after.unwrap_or(&Layer::default()));
                Invalidations::of_laying(&before.unwrap_or_default(), after.unwrap_or(&Layer::default()))
            });
            if !news.is_empty() {
                pending.leases.changed_anywhere(None, &pending.told(&news));
            }
        }
        if merged != pending.merged() {
            // Names that were shown in one directory are in another one now.
            pending.leases.changed_anywhere(None, &Changed { all: true, ..Changed::default() });
        }
        if pending.count() == 0 {
            self.state.beside.clear();
        }
        if !refused.is_empty() {
            let told: Vec<String> = refused.iter().map(|one| pending.describe(&one.change)).collect();
            pending.note_refusals(&refused.into_iter().zip(told).collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

fn unknown() -> Error {
    Error::new(Code::VolumeUnknown, "change", "volume", "its home has not sent this site its number yet")
}
