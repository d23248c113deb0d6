//! Messages that came with wire 4 as they were recorded; those that wire 3 has too are in `wire3.txt`.
//!
//! `RENKEI_RECORD_WIRE4=1` rewrites `wire4.txt`, which is done only before the first release that speaks wire 4. From
//! then on a line is never changed.

use crate::fixture::path;
use crate::wire3::{check_recorded, hex, open_send, options, place, site, terms_of_queued};
use renkei_core::entry::{FileTime, Stamp, Xattr};
use renkei_core::error::Error;
use renkei_core::mover::layout::{CopyForm, CopyLayout};
use renkei_core::principal::Principal;
use renkei_core::wire::copy::{CopySender, OpenCopy};
use renkei_core::wire::encode;
use renkei_core::wire::file::{
    Answer, Consistency, FileHandle, Freshness, Locality, Op, OpenFiles, Precondition, Start,
};
use renkei_core::wire::links::{AboutLink, LinkReply, LinkStatus};
use renkei_core::wire::message::{Algorithm, Class, Control, Reply, Request};
use renkei_core::wire::on_behalf::{FilesRequest, OnBehalf};
use renkei_core::wire::queue::Submission;
use renkei_core::wire::s3_key::{AboutS3Keys, S3KeyStatus, S3KeysReply};
use renkei_core::wire::uploads::{Part, UploadOp};
use serde::de::DeserializeOwned;
use std::fmt::Write;

const RECORD: &str = "RENKEI_RECORD_WIRE4";

/// A message as one of the types that have a variant for each message.
enum Message {
    Control(Control),
    Request(Request),
    Reply(Reply),
    Op(Op),
    Answer(Answer),
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Message::Control(message) => encode(message),
            Message::Request(message) => encode(message),
            Message::Reply(message) => encode(message),
            Message::Op(message) => encode(message),
            Message::Answer(message) => encode(message),
        }
    }

    fn check(&self, name: &str, line: Option<&str>) {
        match self {
            Message::Control(message) => check_recorded(name, message, line),
            Message::Request(message) => check_recorded(name, message, line),
            Message::Reply(message) => check_recorded(name, message, line),
            Message::Op(message) => check_recorded(name, message, line),
            Message::Answer(message) => check_recorded(name, message, line),
        }
    }
}

fn copy() -> OpenCopy {
    OpenCopy {
        transfer: [7; 16],
        job: u64::MAX,
        to: place("/data/in"),
        form: CopyForm { directory: true, contents: false, resumed: true },
        beside: vec![(place("/data/run7"), path("run7"))],
        options: options(),
        class: Class::Background,
        max_streams: 64,
        rules: vec!["kek/raw".into()],
    }
}

/// The messages, each with its name in the record: its type, the number of its variant, and what distinguishes it from
/// others of that variant.
fn messages() -> Vec<(String, Message)> {
    let layouts =
        [("into", CopyLayout::Into), ("as", CopyLayout::As), ("would-go-into", CopyLayout::WouldGoInto)];
    let control = layouts.map(|(name, layout)| (format!("control-31-{name}"), Control::Layout(layout)));
    let reply = layouts.map(|(name, layout)| (format!("reply-26-{name}"), Reply::Layout(layout)));
    let issued = ("reply-27".to_owned(), Reply::Token("AgEDa2Vr".into()));
    let status = LinkStatus {
        id: "3f2a91c0".into(),
        place: place("/data/run7"),
        created: 1_700_000_000,
        until: 1_700_003_600,
        limit: None,
        opens: 1,
        downloads: 300,
        bytes: u64::MAX,
        used: Some(1_700_000_001),
    };
    let links = [
        ("created", LinkReply::Created { id: "3f2a91c0".into(), path: "/~link/00/run7".into() }),
        ("all", LinkReply::All(vec![status])),
        ("revoked", LinkReply::Revoked),
    ];
    let links = links.map(|(name, reply)| (format!("reply-28-{name}"), Reply::Link(reply)));
    let key_status = S3KeyStatus {
        id: "RK07".into(),
        caveats: vec!["path:/data".into()],
        created_unix: 300,
        used_unix: Some(1 << 33),
    };
    let keys = [
        ("reply-29-created", S3KeysReply::Created { id: "RK07".into(), secret: "5f".into() }),
        ("reply-29-keys", S3KeysReply::Keys(vec![key_status])),
        ("reply-29-revoked", S3KeysReply::Revoked),
    ];
    let keys = keys.map(|(name, reply)| (name.to_owned(), Reply::S3Keys(reply)));
    let senders = [
        ("asker", CopySender::Asker),
        ("pop-for", CopySender::PopFor(vec![vec![48, 130], vec![48]])),
        ("site", CopySender::Site(site("kek"))),
    ];
    let mut requests: Vec<(String, Request)> = senders
        .map(|(name, by)| (format!("request-42-{name}"), Request::OpenCopy { copy: copy(), by }))
        .into();
    let push = Request::PushCopy { send: open_send(), to: site("titech"), copy: copy() };
    requests.push(("request-43".into(), push));
    let known = Request::KnownChecksum { place: place("/data/run7"), algorithm: Algorithm::Crc32c };
    requests.push(("request-44".into(), known));
    let (from, to) = (site("kek"), site("titech"));
    let submission = Submission { from, send: open_send(), to, copy: copy(), terms: terms_of_queued() };
    requests.push(("request-45".into(), Request::SubmitCopies(vec![submission])));
    let token =
        Request::IssueToken { caveats: vec!["path:/data".into(), "activity:LIST".into()], seconds: 3600 };
    requests.push(("request-46".into(), token));
    requests.extend(on_behalf());
    let abouts = [
        ("create", AboutLink::Create { place: place("/data/run7"), seconds: 3600, limit: Some(20) }),
        ("list", AboutLink::List),
        ("revoke", AboutLink::Revoke("3f2a91c0".into())),
    ];
    requests.extend(abouts.map(|(name, about)| (format!("request-48-{name}"), Request::Link(about))));
    let key = AboutS3Keys::Create { caveats: vec!["path:/data".into()], seconds: Some(300) };
    requests.push(("request-49-create".into(), Request::S3Keys(key)));
    requests.push(("request-49-list".into(), Request::S3Keys(AboutS3Keys::List)));
    requests.push(("request-49-revoke".into(), Request::S3Keys(AboutS3Keys::Revoke("RK07".into()))));
    let control = control.into_iter().map(|(name, message)| (name, Message::Control(message)));
    let reply = reply
        .into_iter()
        .chain([issued])
        .chain(links)
        .chain(keys)
        .map(|(name, message)| (name, Message::Reply(message)));
    let request = requests.into_iter().map(|(name, message)| (name, Message::Request(message)));
    let operation = operations().into_iter().map(|(name, message)| (name.into(), Message::Op(message)));
    let sums = [("answer-10-none", None), ("answer-10-some", Some(vec![1, 255]))];
    let sums = sums.map(|(name, sum)| (name, Answer::Checksum(sum)));
    let places = [
        ("answer-11", Answer::FileHandle(FileHandle(vec![1, 255]))),
        ("answer-12-online", Answer::Locality(Locality::Online)),
        ("answer-12-elsewhere", Answer::Locality(Locality::Elsewhere)),
    ];
    let part =
        Part { number: 300, bytes: 1 << 40, mtime: FileTime { secs: 1_700_000_000, nanos: 999_999_999 } };
    let uploads = [("answer-13", Answer::Upload(u64::MAX)), ("answer-14", Answer::Parts(vec![part]))];
    let answer = sums.into_iter().chain(places).chain(uploads);
    let answer = answer.map(|(name, answer)| (name.into(), Message::Answer(answer)));
    control.chain(request).chain(reply).chain(operation).chain(answer).collect()
}

fn on_behalf() -> [(String, Request); 2] {
    let open = OpenFiles {
        id: [1; 16],
        place: place("/scratch/run7"),
        write: true,
        max_streams: 64,
        key: [2; 16],
        leases: false,
        locks: [3; 16],
        consistency: Consistency::CloseToOpen,
    };
    let user = Principal::parse("alice@kek").unwrap();
    let word = OnBehalf::Word { user, scope: Some(vec![1, 255]) };
    let remove = FilesRequest::Remove { place: place("/data/run7"), recursive: true };
    let chain = OnBehalf::Chain(vec![vec![48, 130], vec![48]]);
    [
        ("request-47-word".into(), Request::FilesFor { user: word, request: FilesRequest::Open(open) }),
        ("request-47-chain".into(), Request::FilesFor { user: chain, request: remove }),
    ]
}

fn operations() -> [(&'static str, Op); 18] {
    let time = FileTime { secs: 1_700_000_000, nanos: 999_999_999 };
    let version = Stamp { size: 1 << 40, mtime: time, ctime: time, ino: 77 };
    let set = |value| Op::SetXattr { path: path("run7/a"), name: b"user.comment".to_vec(), value };
    let publish = |mtime, condition| Op::PublishIf { handle: 300, mtime, condition };
    let publish_with = Op::PublishWith {
        handle: 300,
        mtime: Some(time),
        condition: Precondition::Version(version),
        attributes: vec![Xattr { name: b"user.a".to_vec(), value: vec![255] }],
    };
    let upload = |op| Op::Upload { path: path("run7/a"), op };
    let complete = UploadOp::Complete {
        upload: u64::MAX,
        parts: vec![1, 300],
        condition: Precondition::Absent,
        mtime: Some(FileTime { secs: 300, nanos: 7 }),
        attributes: vec![Xattr { name: b"user.a".to_vec(), value: vec![255] }],
    };
    [
        ("op-5-only-new", Op::Draft { path: path("run7/a"), start: Start::OnlyNew, mode: 0o640 }),
        ("op-23", Op::LookFull(path("run7/a"))),
        ("op-24-set", set(Some(vec![0, 255]))),
        ("op-24-remove", set(None)),
        ("op-25-absent", publish(None, Precondition::Absent)),
        ("op-25-version", publish(Some(time), Precondition::Version(version))),
        ("op-26", Op::Checksum { handle: 300, algorithm: Algorithm::Crc32c, freshness: Freshness::Any }),
        ("op-27", Op::FileHandle(path("run7/a"))),
        ("op-28", Op::ByHandle(FileHandle(vec![1, 255]))),
        ("op-29", Op::Locality(path("run7/a"))),
        ("op-30", Op::Stage(path("run7/a"))),
        ("op-31", Op::Release(path("run7/a"))),
        ("op-32-begin", upload(UploadOp::Begin)),
        ("op-32-part", upload(UploadOp::Part { upload: u64::MAX, number: 300 })),
        ("op-32-list", upload(UploadOp::List(300))),
        ("op-32-complete", upload(complete)),
        ("op-32-abandon", upload(UploadOp::Abandon(300))),
        ("op-33", publish_with),
    ]
}

fn record() -> String {
    messages().iter().fold(String::new(), |mut text, (name, message)| {
        writeln!(text, "{name} {}", hex(&message.bytes())).unwrap();
        text
    })
}

#[test]
fn messages_of_wire_4_are_read_and_written_as_recorded() {
    if std::env::var_os(RECORD).is_some() {
        return std::fs::write("tests/it/wire4.txt", record()).unwrap();
    }
    let mut lines = include_str!("wire4.txt").lines();
    for (name, message) in messages() {
        let number: usize = name.split('-').nth(1).unwrap().parse().unwrap();
        assert_eq!(message.bytes().first().copied().map(usize::from), Some(number), "{name}");
        message.check(&name, lines.next().and_then(|line| line.strip_prefix(&format!("{name} "))));
    }
    assert_eq!(lines.next(), None);
}

/// Whether a type has a variant of this number: the bytes after it are missing, or none are needed.
fn has_variant<T: DeserializeOwned>(number: u8) -> bool {
    let unknown = |error: Error| !error.cause.contains("end of buffer");
    !renkei_core::wire::decode::<T>("variant", &[number]).err().is_some_and(unknown)
}

#[test]
fn every_message_is_recorded() {
    assert!(has_variant::<Control>(31) && has_variant::<Request>(49) && has_variant::<Reply>(29));
    assert!(has_variant::<Op>(33) && has_variant::<Answer>(14));
    assert!(!has_variant::<Control>(32), "record the new message here");
    assert!(!has_variant::<Request>(50), "record the new request here");
    assert!(!has_variant::<Reply>(30), "record the new reply here");
    assert!(!has_variant::<Op>(34) && !has_variant::<Answer>(15), "record the new operation here");
}
