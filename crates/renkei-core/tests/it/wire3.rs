//! Messages of wire 3 as they were recorded: they are read and written the same for as long as it is spoken.
//!
//! `wire3.txt` has a line for each message, its name and its bytes. A line is never changed; a message that goes with
//! wire 3 takes its line with it.

use crate::fixture::path;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::lease::locks::{Hold, Span};
use renkei_core::mover::filter::{Filter, Rule};
use renkei_core::path::{Place, SiteName};
use renkei_core::queue::{Change, State};
use renkei_core::route::Way;
use renkei_core::wire::buffer::{BufferStatus, Room, RoomState};
use renkei_core::wire::data::{EntryHead, ExtentEnd, ExtentHead, Join};
use renkei_core::wire::file::{Alteration, Answer, Changed, Consistency, Item, Op, OpenFiles, Start};
use renkei_core::wire::message::*;
use renkei_core::wire::queue::{Listed, Queued, Story, Terms as Conditions, Verify};
use renkei_core::wire::unfinished::{AboutUnfinished, UnfinishedAction, UnfinishedReply};
use renkei_core::wire::volume::{AboutVolume, VolumeReply};
use renkei_core::wire::wire3::{Choice, OpenFound, SubmissionFound};
use renkei_core::wire::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};

pub(crate) fn place(text: &str) -> Place {
    Place::parse(text.as_bytes()).unwrap().unwrap()
}

pub(crate) fn site(name: &str) -> SiteName {
    SiteName::parse(name).unwrap()
}

fn error() -> Error {
    Error::new(Code::PathNotFound, "open", "/data/run7", "os error 2").at("kek")
}

fn time() -> FileTime {
    FileTime { secs: 1_700_000_000, nanos: 999_999_999 }
}

fn entry() -> Entry {
    let stamp = Stamp { size: 1 << 40, mtime: time(), ctime: time(), ino: 77 };
    let xattrs = vec![Xattr { name: b"user.comment".to_vec(), value: vec![0, 255] }];
    let meta = Meta { mode: 0o4755, mtime: time(), owner: "alice".into(), group: "users".into(), xattrs };
    Entry { path: path("run7/\u{e9}.dat"), meta, kind: EntryKind::File { stamp, sparse: true } }
}

fn item() -> Item {
    Item { entry: entry(), ino: 77, links: 2, blocks: 8, ctime: time() }
}

fn failure() -> EntryFailure {
    EntryFailure { id: Some(300), path: path("a/b"), kept: true, error: error() }
}

fn progress() -> Progress {
    Progress { files_found: 1, bytes_found: 2, walk_done: true, files_done: 3, bytes_done: 4, bytes_moved: 5 }
}

fn summary() -> Summary {
    let failures = vec![failure()];
    Summary { files: 1, dirs: 2, links: 3, bytes: 1 << 50, failed: 1, failures, ..Summary::default() }
}

pub(crate) fn options() -> ReceiveOptions {
    ReceiveOptions { delete: true, dry_run: true, ..ReceiveOptions::plain(Existing::SameContent) }
}

fn open_receive() -> OpenReceive {
    OpenReceive {
        transfer: [7; 16],
        job: u64::MAX,
        to: place("/data/in"),
        options: options(),
        class: Class::Background,
        max_streams: 64,
        rules: vec!["kek/raw".into()],
    }
}

pub(crate) fn open_send() -> OpenSend {
    let source = Source { from: place("/data/run7"), to: path("run7"), alone: true };
    let onto = Onto { lineage: vec![[3; 16]], removes: true };
    OpenSend {
        recursive: true,
        offers: true,
        digests: true,
        dry_run: true,
        limit: Some(1 << 30),
        class: Class::Background,
        max_streams: 8,
        on_error: OnError::Stop,
        onto: Some(onto),
        ..OpenSend::plain([7; 16], vec![source])
    }
}

fn open_found() -> OpenFound {
    let choice = |make| Choice { base: path("in"), make, options: options(), targets: vec![path("run7")] };
    OpenFound {
        transfer: [7; 16],
        job: 7,
        to: place("/data/in"),
        class: Class::Normal,
        choices: vec![(DestinationKind::Dir, choice(false)), (DestinationKind::Nothing, choice(true))],
        max_streams: 64,
        rules: Vec::new(),
    }
}

fn submission() -> SubmissionFound {
    let (from, to) = (site("kek"), site("titech"));
    SubmissionFound { from, send: open_send(), to, open: open_found(), terms: terms_of_queued() }
}

pub(crate) fn terms_of_queued() -> Conditions {
    Conditions {
        deadline_ms: Some(1),
        priority: -3,
        after: vec![[1; 16]],
        label: "nightly".into(),
        verify: Verify::Both,
        notify: "https://example.org/".into(),
        origin: "[pc] run7".into(),
    }
}

fn queued() -> Queued {
    Queued {
        id: [7; 16],
        owner: "alice@kek".into(),
        from: "kek:/data/run7".into(),
        to: "titech:/data/in".into(),
        state: State::Partial,
        stopping: true,
        reason: Some(error()),
        next_ms: Some(1),
        needs: 2,
        submitted_ms: 3,
        deadline_ms: 4,
        ended_ms: None,
        attempts: 5,
        priority: -1,
        class: Class::Normal,
        label: String::new(),
        progress: Some(progress()),
        summary: Some(summary()),
        buffered: None,
    }
}

fn requests() -> Vec<Request> {
    use Request::*;
    let at = || place("/data/run7");
    vec![
        Whoami,
        Stat(Some(at())),
        StatDir(None),
        List(Some(at())),
        Mkdir { place: at(), parents: true },
        Remove { place: at(), recursive: true },
        Rename { from: at(), to: place("/data/run8") },
        Usage(at()),
        Space(at()),
        Checksum { place: at(), algorithm: Algorithm::Crc32c },
        Status,
        OpenReceive(open_receive()),
        OpenSend(open_send()),
        Grant { open: open_receive(), peer: site("kek") },
        Push { send: open_send(), to: site("titech"), grant: [9; 32] },
        Redeem([9; 32]),
        Card(site("kek")),
        OpenFound(open_found()),
        PushFound { send: open_send(), to: site("titech"), open: open_found() },
        ForUser { chain: vec![vec![48, 130], vec![48]], open: open_found() },
        Submit(vec![submission()]),
        Transfers(Listed { ended: true, label: Some("nightly".into()), before: Some((5, [7; 16])) }),
        Transfer("0707".into()),
        Change { id: [7; 16], change: self::Change::Retry },
        Renew([7; 16]),
        Line,
        Through { site: site("kek"), seed: [4; 32], count: 64, further: 1 },
        Console,
        Reserve { transfer: [7; 16], bytes: 1 << 40, waits: true },
        Buffer,
        ToAgent { storage: "tape".into(), seed: [4; 32], count: 1 },
        Enlist { storage: "tape".into(), request: "PEM".into() },
        Terms("tape".into()),
        Term { storage: "tape".into(), name: "map".into(), offset: 300 },
        Failures { id: [7; 16], after: 512 },
        Revocations(vec![48, 3]),
        Volume(AboutVolume::Log { volume: [2; 16], after: 300, patience_ms: 30_000 }),
        OpenFiles(self::OpenFiles {
            id: [7; 16],
            place: at(),
            write: true,
            max_streams: 4,
            key: [5; 16],
            leases: true,
            locks: [6; 16],
            consistency: Consistency::Strict,
        }),
        RenewMount("PEM".into()),
        TakeCard("card".into()),
        Unfinished(AboutUnfinished {
            storage: Some("data".into()),
            what: UnfinishedAction::GiveUp { transfer: [7; 16], owner: "alice@kek".into() },
        }),
        Ways(site("kek")),
    ]
}

fn replies() -> Vec<Reply> {
    use Reply::*;
    let room = self::Room { standing: RoomState::HandedIn, wanted: 1, size: 2, charged: 3, own: 4, quota: 5 };
    let buffer = BufferStatus {
        site: site("kek"),
        size: 1,
        quota: 2,
        charged: 3,
        written: 4,
        owners: vec![("alice@kek".into(), 5)],
        pieces: Vec::new(),
        waiting: Vec::new(),
    };
    vec![
        Done,
        Identity(self::Identity {
            principal: "alice@kek".into(),
            site: site("titech"),
            account: "alice".into(),
            rule: "line 3".into(),
            storages: vec![("data".into(), true)],
            volumes: vec![("genome".into(), false)],
        }),
        Entry(entry()),
        Listing { entries: vec![entry()], more: true },
        Usage(self::Usage { bytes: 1, allocated_bytes: 2, files: 3, dirs: 4 }),
        Space(self::Space { total_bytes: 1, available_bytes: 2, total_files: 3, free_files: 4 }),
        Checksum(vec![1, 2, 3]),
        Status(self::Status { software: "renkei 0.1.0".into(), uptime_s: 5, ..Default::default() }),
        Opened(self::Opened { ticket: [9; 32], streams: 4, offers: true, kept: true, onto: None }),
        Granted([9; 32]),
        Pushing,
        Card("card".into()),
        Found(self::DestinationKind::Nothing),
        Submitted(vec![Ok(()), Err(error())]),
        Transfers(vec![queued()]),
        Transfer(Box::new(Story {
            transfer: queued(),
            after: vec![([1; 16], State::Done)],
            attempts: Vec::new(),
            failures: vec![failure()],
            link_rests_until_ms: Some(9),
        })),
        Console("secret".into()),
        Room(room),
        Buffer(buffer),
        Enlisted("PEM".into()),
        Terms(self::Terms {
            account: "alice".into(),
            read_only: true,
            map_own_users: true,
            texts: vec![("map".into(), [1; 32])],
        }),
        Term { bytes: vec![1], more: true },
        Failures(vec![(3, failure())]),
        Volume(VolumeReply::WriteLease { epoch: 5 }),
        Unfinished(UnfinishedReply { listed: Vec::new(), dropped: true }),
        Ways(vec![TriedWay {
            way: Way::Through(site("kek")),
            why: "card".into(),
            against: Some("far".into()),
            failed: Some(error()),
        }]),
    ]
}

fn controls() -> Vec<Control> {
    use Control::*;
    let offer = OfferItem { id: 5, entry: entry(), digest: Some([8; 32]) };
    let partial = Verdict::Partial(vec![SlotRange { first: 1, count: 2 }]);
    let verdicts =
        vec![(1, Verdict::Want), (2, Verdict::Have), (3, partial), (300, Verdict::Refuse(error()))];
    let changed = self::Changed { names: vec![(7, b"f".to_vec())], nodes: vec![9], all: true };
    let pattern = self::Filter {
        rules: vec![Rule { includes: true, pattern: b"*.root".to_vec() }],
        contents: vec![true, false],
    };
    vec![
        Hello(self::Hello { versions: (3, 3), software: "renkei 0.1.0".into(), now_unix_ms: 1 << 40 }),
        Welcome(self::Welcome {
            version: 3,
            software: "renkei 0.1.0".into(),
            site: site("kek"),
            principal: "alice@titech".into(),
            now_unix_ms: 1 << 40,
            crl: vec![48, 130],
        }),
        Request { id: 300, request: self::Request::Whoami },
        Reply { id: 300, reply: Err(error()) },
        Offer(vec![offer]),
        Verdicts(verdicts),
        Acked(vec![IdRange { first: 1, count: 300 }]),
        Failed(failure()),
        Removed(vec![path("a/b")]),
        WouldSend(vec![path("a/b")]),
        SendDone(self::SendDone { complete: true }),
        ReceiveDone(self::ReceiveDone { deleted: 3 }),
        Progress(progress()),
        Finished(Ok(summary())),
        Abort(error()),
        Ping(1),
        Pong(2),
        AskCard,
        OwnCard("card".into()),
        Introduce { secret: [1; 16], card: "card".into() },
        Introduced,
        Found(self::DestinationKind::Dir),
        Call([9; 32]),
        Failures(vec![failure()]),
        Renew(5),
        Renewed { number: 1, round: 2, term_ms: 3000, locks: 4 },
        Changed { number: 6, what: changed },
        Settled(7),
        Filter(pattern),
        TellNames,
        Arrived(vec![path("a/b")]),
    ]
}

fn ops() -> Vec<Op> {
    use Op::*;
    let at = || path("d/f");
    let span = Span { start: 1, end: u64::MAX, hold: Hold::Exclusive, pid: 7 };
    let change = Alteration {
        mode: Some(0o644),
        mtime: Some(time()),
        owner: Some("alice".into()),
        group: Some("users".into()),
    };
    vec![
        Look(at()),
        OpenDir(at()),
        ReadDir(3),
        Open(at()),
        Read { handle: 3, offset: 1 << 45, bytes: 1 << 20 },
        Draft { path: at(), start: Start::Content, mode: 0o600 },
        Write { handle: 3, offset: 1 << 45 },
        SetLen { handle: 3, bytes: 5 },
        Publish { handle: 3, mtime: Some(time()) },
        Close(3),
        Alter { path: at(), change },
        MakeDir { path: at(), mode: 0o755 },
        MakeSymlink { path: at(), target: b"/x".to_vec() },
        MakeLink { from: at(), to: path("e") },
        Remove(at()),
        RemoveDir(at()),
        Rename { from: at(), to: path("e"), replace: true },
        Space,
        Lock { path: at(), owner: u64::MAX, span },
        FindLock { path: at(), owner: 0, span },
        Resume { path: at(), handle: 3, mode: 0o600 },
        Peek { path: at(), offset: 5, bytes: 6 },
        Await { handle: 3, writes: 300 },
    ]
}

fn answers() -> Vec<Answer> {
    use Answer::*;
    let span = Span { start: 1, end: 2, hold: Hold::Shared, pid: 7 };
    vec![
        Done,
        Item(item()),
        Opened { handle: 9, item: item() },
        Items { items: vec![item()], more: true },
        Data(1 << 20),
        Space(renkei_core::wire::message::Space { total_bytes: 1, ..Default::default() }),
        Failed(error()),
        Held { answer: Box::new(Done), dirs: vec![item()] },
        Locked(Some(span)),
        Peeked { item: item(), bytes: 5 },
    ]
}

/// The recorded lines, by name.
fn recorded() -> BTreeMap<&'static str, &'static str> {
    include_str!("wire3.txt").lines().filter_map(|line| line.split_once(' ')).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Checks a message against its line.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, message: &T) {
    check_recorded(name, message, recorded().get(name).copied());
}

/// Checks a message against its recorded bytes, which are printed if there are none.
pub(crate) fn check_recorded<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    name: &str,
    message: &T,
    line: Option<&str>,
) {
    let bytes = hex(&encode(message));
    let Some(line) = line else { panic!("{name} is not recorded; its line would be\n{name} {bytes}") };
    assert_eq!(bytes, line, "{name} is written in another way: {message:?}");
    assert_eq!(decode::<T>(name, &bytes_of(line)).as_ref(), Ok(message), "{name} is read in another way");
}

/// Checks a message for each variant, in the order of their numbers.
fn check_all<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: &str, messages: &[T]) {
    for (number, message) in messages.iter().enumerate() {
        assert_eq!(encode(message).first().copied().map(usize::from), Some(number), "{message:?}");
        check(&format!("{kind}-{number}"), message);
    }
    let lines = recorded().keys().filter(|name| name.starts_with(&format!("{kind}-"))).count();
    assert_eq!(lines, messages.len(), "lines of {kind}");
}

#[test]
fn messages_of_wire_3_are_unchanged() {
    check_all("control", &controls());
    check_all("request", &requests());
    check_all("reply", &replies());
    check_all("op", &ops());
    check_all("answer", &answers());
}

#[test]
fn frames_of_data_streams_are_unchanged() {
    check("join", &Join { ticket: [9; 32], index: 3 });
    check("entry", &EntryHead { id: 300, entry: entry(), digest: [8; 32] });
    check("extent", &ExtentHead { id: 300, entry: entry(), slot: 5 });
    check("extent-end", &ExtentEnd::Whole([8; 32]));
    let kinds = [
        EntryKind::Dir,
        EntryKind::Symlink { target: b"/x".to_vec() },
        EntryKind::HardLink { to: path("a") },
        EntryKind::Special,
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        check(&format!("kind-{number}"), &kind);
    }
}
