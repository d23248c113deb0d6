//! The sending side of one session: what was found, what is under way, what the receiver said of it.

use super::digest::slot_range;
use super::plan::{Item, Origin, Plan, Unit};
use crate::entry::{Entry, EntryKind};
use crate::error::{Code, Error};
use crate::path::RelPath;
use crate::wire::data::EntryId;
use crate::wire::message::{
    EntryFailure, IdRange, MAX_LISTED_BYTES, MAX_LISTED_FAILURES, OfferItem, Progress, SlotRange, Summary,
    Verdict,
};
use std::collections::HashMap;

/// What an entry counts as once it is settled.
#[derive(Clone, Debug)]
struct Open {
    path: RelPath,
    bytes: u64,
    counts_as: Class,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    File,
    Dir,
    Link,
}

/// The state machine of a sender.
pub struct Sender {
    plan: Plan,
    dry_run: bool,
    would_send: Vec<RelPath>,
    open: HashMap<EntryId, Open>,
    walk_complete: bool,
    walk_done: bool,
    progress: Progress,
    summary: Summary,
    /// Bytes the listed failures take in a message.
    listed_bytes: usize,
}

impl Sender {
    /// A sender that has found nothing yet; in a dry run wanted files are noted and not sent.
    pub fn new(offers: bool, dry_run: bool) -> Self {
        Sender {
            plan: Plan::new(offers),
            dry_run,
            would_send: Vec::new(),
            open: HashMap::new(),
            walk_complete: true,
            walk_done: false,
            progress: Progress::default(),
            summary: Summary::default(),
            listed_bytes: 0,
        }
    }

    /// Whether the walk should go on or wait.
    pub fn wants_entries(&self) -> bool {
        self.plan.wants_entries()
    }

    /// Takes an entry the walk found; special files are reported and not sent.
    pub fn handle_entry(&mut self, origin: Origin, entry: Entry, digest: Option<[u8; 32]>) {
        let counts_as = match entry.kind {
            EntryKind::File { .. } => Class::File,
            EntryKind::Dir => Class::Dir,
            EntryKind::Symlink { .. } | EntryKind::HardLink { .. } => Class::Link,
            EntryKind::Special => {
                let error = Error::new(Code::SpecialFile, "walk", &entry.path, "skipped");
                self.summary.special += 1;
                return self.list(EntryFailure { id: None, path: entry.path, kept: false, error });
            }
        };
        let open = Open { path: entry.path.clone(), bytes: entry.size(), counts_as };
        if counts_as == Class::File {
            self.progress.files_found += 1;
            self.progress.bytes_found = self.progress.bytes_found.saturating_add(open.bytes);
        }
        let id = self.plan.handle_entry(origin, entry, digest);
        self.open.insert(id, open);
    }

    /// The walk could not read something.
    pub fn on_walk_failed(&mut self, path: RelPath, error: Error) {
        self.walk_complete = false;
        self.fail(EntryFailure { id: None, path, kept: false, error });
    }

    /// Nothing more will be found.
    pub fn on_walk_done(&mut self) {
        self.walk_done = true;
        self.progress.walk_done = true;
        self.plan.on_walk_done();
    }

    /// Whether every directory could be read.
    pub fn walk_complete(&self) -> bool {
        self.walk_complete
    }

    /// The next batch to offer.
    pub fn poll_offer(&mut self) -> Option<Vec<OfferItem>> {
        self.plan.poll_offer()
    }

    /// Takes the receiver's verdicts, in the order of the offers.
    ///
    /// # Errors
    /// `ProtocolViolation` for a verdict on nothing.
    pub fn handle_verdicts(&mut self, verdicts: Vec<(EntryId, Verdict)>) -> Result<(), Error> {
        for (id, verdict) in verdicts {
            let wanted = matches!(verdict, Verdict::Want | Verdict::Partial(_));
            let held_back = self.dry_run && wanted;
            let item = self.plan.handle_verdict(id, if held_back { &Verdict::Have } else { &verdict });
            let item =
                item.ok_or_else(|| crate::wire::violation("verdict", "not on the oldest offered file"))?;
            if held_back {
                self.settle(item.id);
                self.would_send.push(item.entry.path);
            } else {
                self.settle_verdict(&item, verdict);
            }
        }
        Ok(())
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
                let size = item.entry.size();
                for SlotRange { first, count } in ranges {
                    let start = slot_range(first, size).start;
                    let end = slot_range(first.saturating_add(count), size).start.min(size);
                    let bytes = end.saturating_sub(start);
                    self.summary.bytes_skipped = self.summary.bytes_skipped.saturating_add(bytes);
                }
            }
            Verdict::Refuse(error) => {
                let path = item.entry.path.clone();
                self.handle_failed(EntryFailure { id: Some(item.id), path, kept: false, error });
            }
        }
    }

    /// The next unit for whichever stream asks.
    pub fn poll_unit(&mut self) -> Option<Unit> {
        self.plan.poll_unit()
    }

    /// Whether everything was found and handed out.
    pub fn is_handed_out(&self) -> bool {
        self.plan.is_empty()
    }

    /// A stream sent so many bytes of content.
    pub fn on_bytes_moved(&mut self, bytes: u64) {
        self.progress.bytes_moved += bytes;
    }

    /// An entry could not be read at the source; gives what the receiver must be told before the sending is done,
    /// so that it makes no link to an old file under that name. The failure is counted here.
    pub fn on_source_failed(&mut self, id: EntryId, error: Error) -> Option<EntryFailure> {
        self.plan.drop_file(id);
        let open = self.open.remove(&id)?;
        let failure = EntryFailure { id: Some(id), path: open.path, kept: false, error };
        self.fail(failure.clone());
        Some(failure)
    }

    /// The receiver acknowledged: durable and verified.
    ///
    /// # Errors
    /// `ProtocolViolation` for numbers never given.
    pub fn handle_acked(&mut self, ranges: &[IdRange]) -> Result<(), Error> {
        for range in ranges {
            for id in range.first..range.first.saturating_add(range.count) {
                // Stops at the first that is not open, so that no peer can make this loop longer than its entries.
                if !self.settle(id) {
                    return Err(crate::wire::violation("acknowledgement", "of entries not under way"));
                }
            }
        }
        Ok(())
    }

    /// Counts an entry as arrived; false if it is not under way.
    fn settle(&mut self, id: EntryId) -> bool {
        let Some(open) = self.open.remove(&id) else { return false };
        match open.counts_as {
            Class::Dir => self.summary.dirs += 1,
            Class::Link => self.summary.links += 1,
            Class::File => {
                self.summary.files += 1;
                self.summary.bytes = self.summary.bytes.saturating_add(open.bytes);
                self.progress.files_done += 1;
                self.progress.bytes_done = self.progress.bytes_done.saturating_add(open.bytes);
            }
        }
        true
    }

    /// The receiver could not take an entry, or only without some attribute.
    pub fn handle_failed(&mut self, failure: EntryFailure) {
        if let Some(id) = failure.id.filter(|_| !failure.kept) {
            self.plan.drop_file(id);
            if self.open.remove(&id).is_none() {
                return;
            }
        }
        self.fail(failure);
    }

    fn fail(&mut self, failure: EntryFailure) {
        self.summary.failed += 1;
        self.list(failure);
    }

    fn list(&mut self, failure: EntryFailure) {
        if self.summary.failures.len() >= MAX_LISTED_FAILURES {
            return;
        }
        let bytes = crate::wire::encode(&failure).len();
        if self.listed_bytes + bytes <= MAX_LISTED_BYTES {
            self.listed_bytes += bytes;
            self.summary.failures.push(failure);
        }
    }

    /// Whether every entry found is acknowledged or failed.
    pub fn is_settled(&self) -> bool {
        self.walk_done && self.open.is_empty()
    }

    /// How far the transfer is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The end; entries the receiver never spoke of count as lost.
    pub fn finish(mut self, deleted: u64) -> Summary {
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        open.sort_unstable_by_key(|(id, _)| *id);
        for (id, open) in open {
            let error = Error::new(Code::ConnectionLost, "acknowledge", &open.path, "never acknowledged");
            self.fail(EntryFailure { id: Some(id), path: open.path, kept: false, error });
        }
        Summary { deleted, bytes_moved: self.progress.bytes_moved, ..self.summary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Meta, Stamp};

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { path: RelPath::parse(name.as_bytes()).unwrap(), meta: Meta::default(), kind }
    }

    fn file(name: &str, size: u64) -> Entry {
        let stamp = Stamp { size, ..Stamp::default() };
        entry(name, EntryKind::File { stamp, sparse: false })
    }

    fn add(sender: &mut Sender, entry: Entry) {
        sender.handle_entry(Origin { source: 0, path: entry.path.clone() }, entry, None);
    }

    #[test]
    fn a_transfer_settles_when_all_is_acknowledged() {
        let mut sender = Sender::new(false, false);
        add(&mut sender, entry("d", EntryKind::Dir));
        add(&mut sender, file("d/f", 10));
        add(&mut sender, entry("d/p", EntryKind::Special));
        sender.on_walk_done();
        assert!(sender.poll_unit().is_some() && sender.is_handed_out() && !sender.is_settled());
        sender.handle_acked(&[IdRange { first: 0, count: 2 }]).unwrap();
        assert!(sender.is_settled());
        let summary = sender.finish(0);
        assert_eq!((summary.files, summary.dirs, summary.bytes), (1, 1, 10));
        assert_eq!((summary.failed, summary.special, summary.failures.len()), (0, 1, 1));
    }

    #[test]
    fn acknowledgements_of_nothing_are_violations() {
        let mut sender = Sender::new(false, false);
        assert!(sender.handle_acked(&[IdRange { first: 0, count: u64::MAX }]).is_err());
        assert!(sender.handle_verdicts(vec![(0, Verdict::Have)]).is_err());
    }

    #[test]
    fn what_was_never_acknowledged_counts_as_failed() {
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
        // Short ones between the long ones still find room.
        for number in 0..2 * MAX_LISTED_FAILURES {
            sender.handle_failed(if number % 3 == 0 { short.clone() } else { long.clone() });
        }
        let summary = sender.finish(0);
        assert_eq!(summary.failed, 2 * MAX_LISTED_FAILURES as u64);
        assert!(summary.failures.len() > 100, "{}", summary.failures.len());
        let message = crate::wire::encode(&crate::wire::message::Control::Finished(Ok(summary)));
        assert!(message.len() <= crate::wire::frame::MAX_PAYLOAD_BYTES, "{}", message.len());
    }

    #[test]
    fn a_lost_attribute_does_not_lose_the_file() {
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
}
