//! Peers that send what no correct peer sends: every message well-formed, their order and numbers by chance.

use super::disk::{Disk, Fuse};
use super::journal::JournalDisk;
use super::receiving::{Next, ReceiveEnd};
use super::tree::path;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::ids::EntryId;
use renkei_core::mover::digest::{SLOT_BYTES, whole};
use renkei_core::mover::journal::{Header, Record, State, VERSION, path_key};
use renkei_core::mover::plan::Origin;
use renkei_core::mover::receiver::{MAX_OPEN_FILES, PriorState, Receiver};
use renkei_core::mover::sender::Sender;
use renkei_core::path::RelPath;
use renkei_core::sim::chance::Chance;
use renkei_core::wire::data::{EntryHead, ExtentEnd, ExtentHead};
use renkei_core::wire::encode;
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::{
    Control, EntryFailure, Existing, IdRange, MAX_LISTED_FAILURES, OfferItem, Progress, ReceiveOptions,
    SendDone, SlotRange, Verdict,
};
use std::collections::VecDeque;
use std::time::Duration;

const ROUNDS: u64 = 400;
const STEPS: u64 = 150;

fn id(chance: &mut Chance) -> EntryId {
    match chance.below(20) {
        0 => u64::MAX,
        1 => u64::MAX - 1,
        _ => chance.below(12),
    }
}

fn some_path(chance: &mut Chance) -> RelPath {
    path(chance.pick::<&str>(&[
        "",
        "a",
        "b",
        "a/b",
        "a/b/c",
        "d",
        "d/a",
        ".rk~0000000000000001-0000000000000000",
    ]))
}

fn size(chance: &mut Chance) -> u64 {
    *chance.pick(&[0, 1, 700, 1 << 20, (1 << 20) + 1, SLOT_BYTES, 3 * SLOT_BYTES - 5, u64::MAX])
}

fn file(chance: &mut Chance) -> Entry {
    let stamp = Stamp { size: size(chance), ino: chance.below(3), ..Stamp::default() };
    let kind = EntryKind::File { stamp, sparse: chance.percent(50) };
    Entry { path: some_path(chance), meta: Meta { mode: 0o700, ..Meta::default() }, kind }
}

fn entry(chance: &mut Chance) -> Entry {
    let kind = match chance.below(5) {
        0 => EntryKind::Dir,
        1 => EntryKind::Symlink { target: b"/anywhere".to_vec() },
        2 => EntryKind::HardLink { to: some_path(chance) },
        3 => EntryKind::Special,
        _ => return file(chance),
    };
    Entry { kind, ..file(chance) }
}

fn error() -> Error {
    Error::new(Code::IoFailed, "test", "test", "made up")
}

fn failure(chance: &mut Chance) -> EntryFailure {
    let known = chance.percent(80);
    EntryFailure {
        id: known.then(|| id(chance)),
        path: some_path(chance),
        kept: chance.percent(30),
        error: error(),
    }
}

fn slots(chance: &mut Chance) -> Vec<SlotRange> {
    let number = |chance: &mut Chance| *chance.pick(&[0, 1, 2, 3, 1_000, u32::MAX]);
    (0..chance.below(5)).map(|_| SlotRange { first: number(chance), count: number(chance) }).collect()
}

fn verdict(chance: &mut Chance) -> Verdict {
    match chance.below(4) {
        0 => Verdict::Want,
        1 => Verdict::Have,
        2 => Verdict::Partial(slots(chance)),
        _ => Verdict::Refuse(error()),
    }
}

fn range(chance: &mut Chance) -> IdRange {
    IdRange { first: id(chance), count: *chance.pick(&[0, 1, 2, 12, u64::MAX]) }
}

/// One thing a receiver may say or the sender's own side may do.
fn push_sender(
    sender: &mut Sender,
    chance: &mut Chance,
    entries: &mut u64,
    offered: &mut VecDeque<EntryId>,
) -> Result<(), Error> {
    match chance.below(8) {
        0 | 1 => {
            let entry = entry(chance);
            *entries += 1;
            sender.handle_entry(Origin { source: 0, path: entry.path.clone() }, entry, None);
        }
        2 => offered.extend(sender.poll_offer().into_iter().flatten().map(|item| item.id)),
        3 => {
            let oldest = if chance.percent(90) { offered.pop_front() } else { None };
            let number = oldest.unwrap_or_else(|| id(chance));
            let verdicts = vec![(number, verdict(chance))];
            sender.handle_verdicts(verdicts)?;
        }
        4 => sender.handle_acked(&[range(chance), range(chance)])?,
        5 => sender.handle_failed(failure(chance)),
        6 => drop(sender.on_source_failed(id(chance), error())),
        _ => drop(sender.poll_unit()),
    }
    Ok(())
}

#[test]
fn a_hostile_receiver_does_not_break_a_sender() {
    let mut refused = 0;
    for seed in 0..ROUNDS {
        let mut chance = Chance::new(seed);
        let mut sender = Sender::new(chance.percent(70), chance.percent(20));
        let (mut entries, mut offered) = (0, VecDeque::new());
        for _ in 0..STEPS {
            refused += u64::from(push_sender(&mut sender, &mut chance, &mut entries, &mut offered).is_err());
        }
        sender.on_walk_done();
        let summary = sender.finish(0);
        let arrived = summary.files + summary.dirs + summary.links + summary.special;
        assert!(arrived <= entries, "seed {seed}: {arrived} of {entries}");
        assert!(summary.failures.len() <= MAX_LISTED_FAILURES);
    }
    assert!(refused > 0);
}

#[test]
fn a_long_list_of_failures_is_counted_and_not_kept() {
    let mut sender = Sender::new(false, false);
    let failure = EntryFailure { id: None, path: path("f"), kept: false, error: error() };
    (0..5_000).for_each(|_| sender.handle_failed(failure.clone()));
    let summary = sender.finish(0);
    assert_eq!((summary.failed, summary.failures.len()), (5_000, MAX_LISTED_FAILURES));
}

#[test]
fn acknowledging_the_same_again_is_refused() {
    let mut sender = Sender::new(false, false);
    let entry = Entry { path: path("d"), meta: Meta::default(), kind: EntryKind::Dir };
    sender.handle_entry(Origin { source: 0, path: path("d") }, entry, None);
    let ack = [IdRange { first: 0, count: 1 }];
    assert!(sender.handle_acked(&ack).is_ok());
    assert_eq!(sender.handle_acked(&ack).unwrap_err().code, Code::ProtocolViolation);
}

fn options(chance: &mut Chance) -> ReceiveOptions {
    let existing = *chance.pick(&[Existing::Replace, Existing::SameStamp, Existing::SameContent]);
    ReceiveOptions { delete: chance.percent(30), ..ReceiveOptions::plain(existing) }
}

fn header() -> Header {
    Header { version: VERSION, job: 1, boot: [1; 16], to: None, local: Vec::new(), account: String::new() }
}

/// A journal that says anything about the paths used here.
fn journal(chance: &mut Chance) -> State {
    let mut bytes = Vec::new();
    Record::Header(header()).write(&mut bytes);
    for _ in 0..chance.below(8) {
        let source = Stamp { size: size(chance), ino: chance.below(3), ..Stamp::default() };
        let (key, slot) = (path_key(&some_path(chance)), chance.below(4) as u32);
        Record::Slot { key, source, temp_ino: chance.below(9), slot, digest: [0; 32] }.write(&mut bytes);
    }
    State::read(&bytes).0
}

/// A frame of a data stream.
fn frame(chance: &mut Chance) -> (FrameKind, Vec<u8>) {
    match chance.below(10) {
        0..=2 => {
            let mut entry = entry(chance);
            let mut content = Vec::new();
            if let EntryKind::File { stamp, .. } = &mut entry.kind {
                stamp.size %= 3_000;
                content = vec![1; stamp.size as usize];
            }
            let digest = if chance.percent(80) { whole(&content) } else { [0; 32] };
            let mut payload = Vec::new();
            EntryHead { id: id(chance), entry, digest }.write(&mut payload, &content);
            (FrameKind::Entry, payload)
        }
        3 | 4 => {
            let head = ExtentHead { id: id(chance), entry: file(chance), slot: chance.below(3) as u32 };
            (FrameKind::Extent, encode(&head))
        }
        5 | 6 => {
            let offset = *chance.pick(&[0, 5, SLOT_BYTES - 1, SLOT_BYTES, u64::MAX]);
            (FrameKind::Raw, [&offset.to_be_bytes()[..], &[3; 9]].concat())
        }
        7 | 8 => {
            let ends = [ExtentEnd::Hole, ExtentEnd::Whole([0; 32]), ExtentEnd::Failed(error())];
            (FrameKind::ExtentEnd, encode(chance.pick(&ends)))
        }
        _ => (FrameKind::StreamEnd, Vec::new()),
    }
}

fn control(chance: &mut Chance) -> Control {
    match chance.below(5) {
        0 | 1 => {
            let item = |chance: &mut Chance| OfferItem { id: id(chance), entry: entry(chance), digest: None };
            Control::Offer((0..chance.below(4)).map(|_| item(chance)).collect())
        }
        2 => Control::Failed(failure(chance)),
        3 => Control::SendDone(SendDone { complete: chance.percent(50) }),
        _ => Control::Progress(Progress::default()),
    }
}

fn push_receiver(
    end: &mut ReceiveEnd,
    disk: &mut Disk,
    chance: &mut Chance,
    now: Duration,
) -> Result<(), Error> {
    let stream = 1 + chance.below(2) as usize;
    if chance.percent(25) {
        end.on_control(now, disk, &encode(&control(chance)))?;
    } else {
        let (kind, payload) = frame(chance);
        let mut bytes = Vec::new();
        renkei_core::wire::frame::push(&mut bytes, kind, &payload);
        end.on_frame(now, disk, stream, bytes)?;
    }
    if chance.percent(30) && end.poll(now, disk)? == Next::Sync {
        end.on_synced(now, disk)?;
    }
    Ok(())
}

#[test]
fn a_hostile_sender_does_not_break_a_receiver() {
    let mut done = 0;
    for seed in 0..ROUNDS {
        let mut chance = Chance::new(seed);
        let mut disk = Disk::new(Fuse::default(), true, 0);
        let (options, kept) = (options(&mut chance), journal(&mut chance));
        let (written, _) = JournalDisk::new(Fuse::default()).open(&header()).unwrap();
        let mut end = ReceiveEnd::new(options, written, kept, [u8::from(chance.percent(50)); 16], 2);
        for step in 0..STEPS {
            // A breach ends a real session; here it goes on, so as to get further.
            done +=
                u64::from(push_receiver(&mut end, &mut disk, &mut chance, Duration::from_secs(step)).is_ok());
            end.take_messages();
            end.write_journal().unwrap();
        }
    }
    assert!(done > ROUNDS * STEPS / 4, "{done}");
}

#[test]
fn a_sender_cannot_open_files_without_end() {
    let mut receiver = Receiver::new(options(&mut Chance::new(0)), State::default(), 20);
    let opened = (0..10_000u64).take_while(|id| {
        let stamp = Stamp { size: 2 * SLOT_BYTES, mtime: FileTime::default(), ..Stamp::default() };
        let kind = EntryKind::File { stamp, sparse: false };
        let entry = Entry { path: path(&format!("{id}")), meta: Meta::default(), kind };
        receiver.start_extent(*id, &entry, 0).is_ok()
    });
    assert_eq!(opened.count(), MAX_OPEN_FILES);
}

#[test]
fn leftovers_are_offered_once() {
    let stamp = Stamp { size: 2 * SLOT_BYTES, ..Stamp::default() };
    let mut bytes = Vec::new();
    Record::Header(header()).write(&mut bytes);
    let (key, digest) = (path_key(&path("f")), [0; 32]);
    Record::Slot { key, source: stamp, temp_ino: 5, slot: 0, digest }.write(&mut bytes);
    let mut receiver = Receiver::new(options(&mut Chance::new(0)), State::read(&bytes).0, 20);
    let kind = EntryKind::File { stamp, sparse: false };
    let entry = Entry { path: path("f"), meta: Meta::default(), kind };
    let item = OfferItem { id: 1, entry: entry.clone(), digest: None };
    let PriorState::Partial { slots, .. } = receiver.left(&item) else { panic!("left") };
    assert!(receiver.on_resumed(1, &entry, slots.clone()));
    assert_eq!(receiver.left(&item), PriorState::Nothing);
    assert!(!receiver.on_resumed(2, &entry, slots));
    assert!(
        !receiver.is_whole(2) && !receiver.on_given_up(2),
        "nothing was taken up under the second number"
    );
}
