//! The sending side of one session: entries found, entries in flight, verdicts and acknowledgements of the receiver.
//!
//! Memory is bounded by windows, however large the tree. Files and symbolic links are acknowledged during the
//! transfer, so at most [`MAX_UNACKNOWLEDGED`] of them are in flight and the walk waits for the oldest
//! (back-pressure). Directories and hard links are acknowledged at the end; only their numbers are kept, one bit
//! each.

use super::closed::Closed;
use super::digest::slot_range;
use super::offer::{IdRange, OfferItem, SlotRange, Verdict};
use super::plan::{Item, Origin, Plan, Unit};
use super::summary::{EntryFailure, MAX_LISTED_BYTES, MAX_LISTED_FAILURES, Progress, Summary};
use crate::entry::{Entry, EntryKind};
use crate::error::{Code, Error};
use crate::ids::EntryId;
use crate::path::RelPath;
use std::collections::{BTreeMap, HashMap};

/// Window of files and symbolic links found and not yet acknowledged: larger than the receiver's queue for syncs, so
/// that the walk waits for the window only when the receiver is behind. They take about 40 MB.
pub const MAX_UNACKNOWLEDGED: usize = 1 << 18;
/// Failures queued for individual reports; further ones are only counted in the summary.
const MAX_UNTOLD: usize = 1 << 16;

/// A file or symbolic link in flight.
#[derive(Clone, Debug)]
struct Open {
    path: RelPath,
    /// Size of a file; `None` for a link.
    bytes: Option<u64>,
    /// Bytes of it received by an earlier run, which count as done already.
    present: u64,
}

/// A bitmap of entry numbers.
#[derive(Default)]
struct Ids {
    words: BTreeMap<EntryId, u64>,
}

impl Ids {
    fn insert(&mut self, id: EntryId) {
        *self.words.entry(id / 64).or_default() |= 1 << (id % 64);
    }

    /// Removes a number; false if it is not in the set.
    fn remove(&mut self, id: EntryId) -> bool {
        let Some(word) = self.words.get_mut(&(id / 64)) else { return false };
        let was_in = *word & (1 << (id % 64)) != 0;
        *word &= !(1 << (id % 64));
        if *word == 0 {
            self.words.remove(&(id / 64));
        }
        was_in
    }

    fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn len(&self) -> u64 {
        self.words.values().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The state machine of a sender.
pub struct Sender {
    plan: Plan,
    dry_run: bool,
    would_send: Vec<RelPath>,
    /// Files that arrived since the last [`Sender::take_arrived`], if names are wanted.
    arrived: Option<Vec<RelPath>>,
    open: HashMap<EntryId, Open>,
    dirs: Ids,
    hard_links: Ids,
    walk_complete: bool,
    walk_done: bool,
    progress: Progress,
    summary: Summary,
    /// Encoded bytes of the listed failures.
    listed_bytes: usize,
    /// Failures since the last [`Sender::take_failures`].
    untold: Vec<EntryFailure>,
    stops_at_first: bool,
    first: Option<Error>,
    /// Directories of the destination that accept no entries.
    closed: Closed,
}

impl Sender {
    /// A sender that has found nothing yet; in a dry run wanted files are listed, not sent.
    pub fn new(offers: bool, dry_run: bool) -> Self {
        Sender {
            plan: Plan::new(offers),
            dry_run,
            would_send: Vec::new(),
            arrived: None,
            open: HashMap::new(),
            dirs: Ids::default(),
            hard_links: Ids::default(),
            walk_complete: true,
            walk_done: false,
            progress: Progress::default(),
            summary: Summary::default(),
            listed_bytes: 0,
            untold: Vec::new(),
            stops_at_first: false,
            first: None,
            closed: Closed::default(),
        }
    }

    /// The same, aborting at the first failure.
    pub fn stopping_at_first(self) -> Self {
        Sender { stops_at_first: true, ..self }
    }

    /// The same, recording the names of files that arrive.
    pub fn noting_names(self) -> Self {
        Sender { arrived: Some(Vec::new()), ..self }
    }

    /// Takes the names of files that arrived since the last call.
    pub fn take_arrived(&mut self) -> Vec<RelPath> {
        self.arrived.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether the first failure aborts it.
    pub fn stops_at_first(&self) -> bool {
        self.stops_at_first
    }

    /// The first failure, if the transfer aborts with it.
    pub fn broken(&self) -> Option<&Error> {
        self.first.as_ref().filter(|_| self.stops_at_first)
    }

    /// Takes the failures since the last call.
    pub fn take_failures(&mut self) -> Vec<EntryFailure> {
        std::mem::take(&mut self.untold)
    }

    /// Whether the walk should go on or wait.
    pub fn wants_entries(&self) -> bool {
        self.plan.wants_entries() && self.open.len() < MAX_UNACKNOWLEDGED
    }

    /// Takes an entry from the walk. A special file is reported, not sent: returns the failure to send to the
    /// receiver before `SendDone`, so that it knows that the source has that name.
    pub fn handle_entry(
        &mut self,
        origin: Origin,
        entry: Entry,
        digest: Option<[u8; 32]>,
    ) -> Option<EntryFailure> {
        let open = match entry.kind {
            EntryKind::File { stamp, .. } => {
                self.progress.files_found += 1;
                self.progress.bytes_found = self.progress.bytes_found.saturating_add(stamp.size);
                Some(Open { path: entry.path.clone(), bytes: Some(stamp.size), present: 0 })
            }
            EntryKind::Symlink { .. } => Some(Open { path: entry.path.clone(), bytes: None, present: 0 }),
            EntryKind::Dir | EntryKind::HardLink { .. } => None,
            EntryKind::Special => {
                let error = Error::new(Code::SpecialFile, "walk", &entry.path, "skipped");
                return Some(self.handle_special(entry.path, error));
            }
        };
        let is_dir = entry.kind == EntryKind::Dir;
        if !is_dir && self.closed.holds(&entry.path) {
            self.closed.count(&entry.path);
            return None;
        }
        let id = self.plan.handle_entry(origin, entry, digest);
        match open {
            Some(open) => drop(self.open.insert(id, open)),
            None if is_dir => self.dirs.insert(id),
            None => self.hard_links.insert(id),
        }
        None
    }

    /// Reports a special file; returns the failure for the receiver, as [`Sender::handle_entry`].
    pub fn handle_special(&mut self, path: RelPath, error: Error) -> EntryFailure {
        let failure = EntryFailure { id: None, path, kept: false, error };
        self.summary.special += 1;
        self.list(failure.clone());
        failure
    }

    /// The walk could not read a file or directory.
    pub fn on_walk_failed(&mut self, path: RelPath, error: Error) {
        self.walk_complete = false;
        self.fail(EntryFailure { id: None, path, kept: false, error });
    }

    /// The walk is complete.
    pub fn on_walk_done(&mut self) {
        self.walk_done = true;
        self.progress.walk_done = true;
        self.plan.on_walk_done();
    }

    /// Whether every directory was read.
    pub fn walk_complete(&self) -> bool {
        self.walk_done && self.walk_complete
    }

    /// The next batch to offer.
    pub fn poll_offer(&mut self) -> Option<Vec<OfferItem>> {
        self.plan.poll_offer()
    }

    /// Takes the receiver's verdicts, in the order of the offers.
    ///
    /// # Errors
    /// `ProtocolViolation` for a verdict that is not on the oldest offered file.
    pub fn handle_verdicts(&mut self, verdicts: Vec<(EntryId, Verdict)>) -> Result<(), Error> {
        for (id, verdict) in verdicts {
            let wanted = matches!(verdict, Verdict::Want | Verdict::Partial(_));
            let held_back = self.dry_run && wanted;
            let item = self.plan.handle_verdict(id, if held_back { &Verdict::Have } else { &verdict });
            let item =
                item.ok_or_else(|| crate::encoding::violation("verdict", "not on the oldest offered file"))?;
            if held_back {
                self.settle(item.id);
                self.would_send.push(item.entry.path);
            } else {
                self.settle_verdict(&item, verdict);
            }
        }
        self.drop_closed();
        Ok(())
    }

    /// Drops queued entries below directories that accept none.
    fn drop_closed(&mut self) {
        if self.closed.is_empty() {
            return;
        }
        let closed = &self.closed;
        let is_lost = |entry: &Entry| entry.kind != EntryKind::Dir && closed.holds(&entry.path);
        for item in self.plan.drop_items(is_lost) {
            self.open.remove(&item.id);
            self.hard_links.remove(item.id);
            self.closed.count(&item.entry.path);
        }
    }

    /// Takes the names a dry run would have sent since the last call.
    pub fn take_would_send(&mut self) -> Vec<RelPath> {
        std::mem::take(&mut self.would_send)
    }

    fn settle_verdict(&mut self, item: &Item, verdict: Verdict) {
        match verdict {
            Verdict::Want => {}
            Verdict::Have => {
                self.summary.files_skipped += 1;
                self.summary.bytes_skipped = self.summary.bytes_skipped.saturating_add(item.entry.size());
                self.settle(item.id);
            }
            Verdict::Partial(ranges) => {
                let (size, mut present) = (item.entry.size(), 0u64);
                for SlotRange { first, count } in ranges {
                    let start = slot_range(first, size).start;
                    let end = slot_range(first.saturating_add(count), size).start.min(size);
                    let bytes = end.saturating_sub(start);
                    self.summary.bytes_skipped = self.summary.bytes_skipped.saturating_add(bytes);
                    present = present.saturating_add(bytes).min(size);
                }
                if let Some(open) = self.open.get_mut(&item.id) {
                    open.present = present;
                    self.progress.bytes_done = self.progress.bytes_done.saturating_add(present);
                }
            }
            Verdict::Refuse(error) => {
                let path = item.entry.path.clone();
                self.handle_failed(EntryFailure { id: Some(item.id), path, kept: false, error });
            }
        }
    }

    /// The next unit, for the stream that asks.
    pub fn poll_unit(&mut self) -> Option<Unit> {
        self.plan.poll_unit()
    }

    /// Whether the next unit will not grow any more.
    pub fn has_whole_unit(&self) -> bool {
        self.plan.has_whole_unit()
    }

    /// Whether a pack of small entries is being filled.
    pub fn is_gathering(&self) -> bool {
        self.plan.is_gathering()
    }

    /// Whether everything was found and handed out to streams.
    pub fn is_handed_out(&self) -> bool {
        self.plan.is_empty()
    }

    /// A stream sent this many bytes of content.
    pub fn on_bytes_moved(&mut self, bytes: u64) {
        self.progress.bytes_moved += bytes;
    }

    /// An entry could not be read at the source; returns the failure to send to the receiver before `SendDone`, so
    /// that it makes no link to an old file under that name. The failure is counted here.
    pub fn on_source_failed(&mut self, id: EntryId, error: Error) -> Option<EntryFailure> {
        self.plan.drop_file(id);
        let open = self.open.remove(&id)?;
        self.forget_present(&open);
        let failure = EntryFailure { id: Some(id), path: open.path, kept: false, error };
        self.fail(failure.clone());
        Some(failure)
    }

    /// Takes the receiver's acknowledgements: durable and verified.
    ///
    /// # Errors
    /// `ProtocolViolation` for numbers that are not in flight.
    pub fn handle_acked(&mut self, ranges: &[IdRange]) -> Result<(), Error> {
        for range in ranges {
            for id in range.first..range.first.saturating_add(range.count) {
                // Stops at the first that is not open, so that no peer can make this loop longer than its entries.
                self.note_arrived(id);
                if !self.settle(id) {
                    return Err(crate::encoding::violation("acknowledgement", "of entries not under way"));
                }
            }
        }
        Ok(())
    }

    fn note_arrived(&mut self, id: EntryId) {
        if let (Some(arrived), Some(open)) = (&mut self.arrived, self.open.get(&id)) {
            arrived.push(open.path.clone());
        }
    }

    /// Counts an entry as arrived; false if it is not in flight.
    fn settle(&mut self, id: EntryId) -> bool {
        let Some(open) = self.open.remove(&id) else { return self.settle_deferred(id) };
        match open.bytes {
            None => self.summary.links += 1,
            Some(bytes) => {
                self.summary.files += 1;
                self.summary.bytes = self.summary.bytes.saturating_add(bytes);
                self.progress.files_done += 1;
                let come = bytes.saturating_sub(open.present);
                self.progress.bytes_done = self.progress.bytes_done.saturating_add(come);
            }
        }
        true
    }

    fn settle_deferred(&mut self, id: EntryId) -> bool {
        let (dir, link) = (self.dirs.remove(id), self.hard_links.remove(id));
        self.summary.dirs += u64::from(dir);
        self.summary.links += u64::from(link);
        dir || link
    }

    /// The receiver could not store an entry, or only without some attribute. A failure under the path of an ancestor
    /// directory says that the directory accepts no entries.
    pub fn handle_failed(&mut self, failure: EntryFailure) {
        let Some(id) = failure.id.filter(|_| !failure.kept) else { return self.fail(failure) };
        self.plan.drop_file(id);
        let open = self.open.remove(&id);
        open.iter().for_each(|open| self.forget_present(open));
        match open {
            Some(open) if open.path == failure.path => self.fail_one(failure),
            Some(open) => self.fail_closed(Some(open.path), failure),
            // Their names are not kept: such a failure may be of the entry or of its directory.
            None if self.dirs.remove(id) || self.hard_links.remove(id) => match failure.error.code {
                Code::PermissionDenied | Code::NotADirectory => self.fail_closed(None, failure),
                _ => self.fail_one(failure),
            },
            None => {}
        }
    }

    /// The bytes of a failed file received by an earlier run do not count.
    fn forget_present(&mut self, open: &Open) {
        self.progress.bytes_done = self.progress.bytes_done.saturating_sub(open.present);
    }

    /// Counts a failure of a single entry; it is not reported if its directory accepts no entries.
    fn fail_one(&mut self, failure: EntryFailure) {
        match self.closed.holds(&failure.path) {
            true => self.closed.count(&failure.path),
            false => self.fail(failure),
        }
    }

    /// A directory accepts no entries, including `entry`.
    fn fail_closed(&mut self, entry: Option<RelPath>, failure: EntryFailure) {
        let is_new = !self.closed.holds(&failure.path) && self.closed.insert(&failure.path);
        if let Some(entry) = entry.filter(|entry| entry.starts_with(&failure.path)) {
            self.closed.insert_between(&failure.path, &entry);
            self.closed.count(&entry);
        }
        if is_new {
            self.fail(failure);
        }
        self.drop_closed();
    }

    fn fail(&mut self, failure: EntryFailure) {
        self.summary.failed += 1;
        self.first.get_or_insert_with(|| failure.error.clone());
        self.list(failure);
    }

    fn list(&mut self, failure: EntryFailure) {
        if self.untold.len() < MAX_UNTOLD {
            self.untold.push(failure.clone());
        }
        if self.summary.failures.len() >= MAX_LISTED_FAILURES {
            return;
        }
        let bytes = crate::encoding::encode(&failure).len();
        if self.listed_bytes + bytes <= MAX_LISTED_BYTES {
            self.listed_bytes += bytes;
            self.summary.failures.push(failure);
        }
    }

    /// Whether every entry found is acknowledged or failed.
    pub fn is_settled(&self) -> bool {
        self.walk_done && self.open.is_empty() && self.dirs.is_empty() && self.hard_links.is_empty()
    }

    /// The progress of the transfer.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the result; entries without any reply of the receiver count as lost.
    pub fn finish(self, deleted: u64) -> Summary {
        self.finish_telling(deleted).0
    }

    /// The same, with the failures not taken yet.
    pub fn finish_telling(mut self, deleted: u64) -> (Summary, Vec<EntryFailure>) {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        open.sort_unstable_by_key(|(id, _)| *id);
        for (id, open) in open {
            let error = Error::new(Code::ConnectionLost, "acknowledge", &open.path, "never acknowledged");
            self.fail(EntryFailure { id: Some(id), path: open.path, kept: false, error });
        }
        self.fail_deferred();
        for (dir, count) in self.closed.counts().iter().filter(|(_, count)| *count > 0) {
            let told = self.summary.failures.iter_mut().chain(&mut self.untold);
            for failure in told.filter(|failure| failure.path == *dir && !failure.kept) {
                let entries = if *count == 1 { "entry" } else { "entries" };
                failure.error.cause = format!("{}; {count} {entries} in it not copied", failure.error.cause);
            }
        }
        (Summary { deleted, bytes_moved: self.progress.bytes_moved, ..self.summary }, self.untold)
    }

    /// Counts the directories and hard links without any reply of the receiver; their names are not kept.
    fn fail_deferred(&mut self) {
        let lost = self.dirs.len() + self.hard_links.len();
        if lost > 0 {
            let cause = format!("{lost} of the directories and hard links were never acknowledged");
            let error = Error::new(Code::ConnectionLost, "acknowledge", "", cause);
            self.summary.failed += lost;
            self.first.get_or_insert_with(|| error.clone());
            self.list(EntryFailure { id: None, path: RelPath::root(), kept: false, error });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Meta, Stamp};
    use crate::mover::digest::SLOT_BYTES;

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { path: RelPath::parse(name.as_bytes()).unwrap(), meta: Meta::default(), kind }
    }

    fn file(name: &str, size: u64) -> Entry {
        let stamp = Stamp { size, ..Stamp::default() };
        entry(name, EntryKind::File { stamp, sparse: false })
    }

    fn add(sender: &mut Sender, entry: Entry) -> Option<EntryFailure> {
        sender.handle_entry(Origin { source: 0, path: entry.path.clone() }, entry, None)
    }

    #[test]
    fn a_transfer_settles_when_everything_is_acknowledged() {
        let mut sender = Sender::new(false, false);
        add(&mut sender, entry("d", EntryKind::Dir));
        add(&mut sender, file("d/f", 10));
        let told = add(&mut sender, entry("d/p", EntryKind::Special)).unwrap();
        assert_eq!((told.path.as_bytes(), told.error.code), (&b"d/p"[..], Code::SpecialFile));
        sender.on_walk_done();
        assert!(sender.poll_unit().is_some() && sender.is_handed_out() && !sender.is_settled());
        sender.handle_acked(&[IdRange { first: 0, count: 2 }]).unwrap();
        assert!(sender.is_settled());
        let summary = sender.finish(0);
        assert_eq!((summary.files, summary.dirs, summary.bytes), (1, 1, 10));
        assert_eq!((summary.failed, summary.special, summary.failures.len()), (0, 1, 1));
    }

    #[test]
    fn failures_are_reported_once_and_stop_on_error_ends_at_the_first() {
        let gone = || Error::new(Code::SourceVanished, "open", "f", "");
        for stops in [false, true] {
            let sender = Sender::new(false, false);
            let mut sender = if stops { sender.stopping_at_first() } else { sender };
            add(&mut sender, file("f", 10));
            add(&mut sender, entry("p", EntryKind::Special));
            assert!(sender.broken().is_none(), "what is passed over is no failure");
            sender.on_source_failed(0, gone());
            sender.on_walk_failed(RelPath::root(), Error::new(Code::PermissionDenied, "list", "", ""));
            assert_eq!(sender.broken().map(|error| error.code), stops.then_some(Code::SourceVanished));
            let codes: Vec<Code> = sender.take_failures().iter().map(|failure| failure.error.code).collect();
            assert_eq!(codes, [Code::SpecialFile, Code::SourceVanished, Code::PermissionDenied]);
            assert!(sender.take_failures().is_empty());
        }
    }

    #[test]
    fn unexpected_acknowledgements_are_violations() {
        let mut sender = Sender::new(false, false);
        assert!(sender.handle_acked(&[IdRange { first: 0, count: u64::MAX }]).is_err());
        assert!(sender.handle_verdicts(vec![(0, Verdict::Have)]).is_err());
    }

    #[test]
    fn unacknowledged_files_count_as_failed() {
        let mut sender = Sender::new(false, false);
        add(&mut sender, file("f", 10));
        sender.on_walk_done();
        let summary = sender.finish(0);
        assert_eq!((summary.files, summary.failed), (0, 1));
        assert_eq!(summary.failures[0].error.code, Code::ConnectionLost);
    }

    #[test]
    fn failures_of_the_longest_paths_fit_the_last_message() {
        let mut sender = Sender::new(false, false);
        let long = vec![b"\x01".repeat(255); 127].join(&b'/');
        let [short, long] = [b"short", &long[..]].map(|path| {
            let path = RelPath::parse(path).unwrap();
            let error = Error::new(Code::PermissionDenied, "create", &path, "EACCES");
            EntryFailure { id: None, path, kept: false, error }
        });
        // Short ones between the long ones still fit.
        for number in 0..2 * MAX_LISTED_FAILURES {
            sender.handle_failed(if number % 3 == 0 { short.clone() } else { long.clone() });
        }
        let summary = sender.finish(0);
        assert_eq!(summary.failed, 2 * MAX_LISTED_FAILURES as u64);
        assert!(summary.failures.len() > 100, "{}", summary.failures.len());
        let message = crate::encoding::encode(&crate::wire::message::Control::Finished(Ok(summary)));
        assert!(message.len() <= crate::wire::frame::MAX_PAYLOAD_BYTES, "{}", message.len());
    }

    #[test]
    fn an_unwritable_directory_is_one_failure_and_gets_no_more_files() {
        let denied = |id, path: &str| {
            let path = RelPath::parse(path.as_bytes()).unwrap();
            let error = Error::new(Code::PermissionDenied, "create", &path, "EACCES");
            EntryFailure { id: Some(id), path, kept: false, error }
        };
        let mut sender = Sender::new(false, false);
        add(&mut sender, entry("d", EntryKind::Dir));
        add(&mut sender, file("d/sent", 10));
        add(&mut sender, file("d/sub/sent", 10));
        while sender.poll_unit().is_some() {}
        for waits in ["d/waits", "d/sub/waits", "open"] {
            add(&mut sender, file(waits, 10));
        }
        sender.handle_failed(denied(1, "d"));
        // A subdirectory of it cannot be made, as one of its files shows.
        sender.handle_failed(denied(2, "d"));
        add(&mut sender, file("d/found later", 10));
        add(&mut sender, entry("d/link", EntryKind::HardLink { to: RelPath::root() }));
        add(&mut sender, entry("d/new", EntryKind::Dir));
        let unit = sender.poll_unit().unwrap();
        let Unit::Pack(items) = unit else { panic!("one pack") };
        let paths: Vec<&[u8]> = items.iter().map(|item| item.entry.path.as_bytes()).collect();
        assert_eq!(paths, [&b"open"[..], b"d/new"]);
        sender.handle_failed(denied(items[1].id, "d"));
        sender.handle_acked(&[IdRange { first: 0, count: 1 }]).unwrap();
        sender.handle_acked(&[IdRange { first: items[0].id, count: 1 }]).unwrap();
        sender.on_walk_done();
        assert!(sender.is_settled() && sender.is_handed_out());
        let summary = sender.finish(0);
        assert_eq!((summary.files, summary.failed, summary.failures.len()), (1, 1, 1));
        assert_eq!(summary.failures[0].error.cause, "EACCES; 6 entries in it not copied");
    }

    #[test]
    fn a_resumed_file_begins_at_its_offset() {
        let mut sender = Sender::new(true, false);
        let size = 10 * SLOT_BYTES;
        for name in ["f", "g"] {
            add(&mut sender, file(name, size));
        }
        sender.on_walk_done();
        sender.poll_offer().unwrap();
        let present = || Verdict::Partial(vec![SlotRange { first: 0, count: 9 }]);
        sender.handle_verdicts(vec![(0, present()), (1, present())]).unwrap();
        assert_eq!(sender.progress().bytes_done, 18 * SLOT_BYTES);
        sender.handle_acked(&[IdRange { first: 0, count: 1 }]).unwrap();
        assert_eq!(sender.progress().bytes_done, 19 * SLOT_BYTES);
        sender.on_source_failed(1, Error::new(Code::SourceVanished, "open", "g", ""));
        assert_eq!(sender.progress().bytes_done, size);
    }

    #[test]
    fn a_failed_attribute_does_not_fail_the_file() {
        let mut sender = Sender::new(false, false);
        add(&mut sender, file("f", 10));
        sender.on_walk_done();
        let error = Error::new(Code::Unsupported, "set attribute", "f", "EOPNOTSUPP");
        let path = RelPath::parse(b"f").unwrap();
        sender.handle_failed(EntryFailure { id: Some(0), path, kept: true, error });
        sender.handle_acked(&[IdRange { first: 0, count: 1 }]).unwrap();
        let summary = sender.finish(0);
        assert_eq!((summary.files, summary.failed), (1, 1));
    }

    #[test]
    fn the_walk_waits_for_unacknowledged_files() {
        let mut sender = Sender::new(false, false);
        for _ in 0..MAX_UNACKNOWLEDGED {
            add(&mut sender, file("f", 1));
            sender.poll_unit().unwrap();
        }
        assert!(!sender.wants_entries());
        sender.handle_acked(&[IdRange { first: 7, count: 1 }]).unwrap();
        assert!(sender.wants_entries());
    }

    #[test]
    fn directories_and_hard_links_are_deferred_without_blocking_the_walk() {
        const EACH: u64 = 2 * MAX_UNACKNOWLEDGED as u64;
        let to = RelPath::parse(b"f").unwrap();
        let mut sender = Sender::new(false, false);
        for _ in 0..EACH {
            add(&mut sender, entry("d", EntryKind::Dir));
            add(&mut sender, entry("l", EntryKind::HardLink { to: to.clone() }));
            sender.poll_unit().unwrap();
        }
        sender.on_walk_done();
        assert!(sender.wants_entries());
        sender.handle_acked(&[IdRange { first: 1, count: 2 * EACH - 2 }]).unwrap();
        assert!(!sender.is_settled());
        assert!(sender.handle_acked(&[IdRange { first: 1, count: 1 }]).is_err(), "acknowledged before");
        let summary = sender.finish(0);
        assert_eq!((summary.dirs, summary.links, summary.failed), (EACH - 1, EACH - 1, 2));
        assert_eq!(summary.failures.len(), 1);
    }
}
