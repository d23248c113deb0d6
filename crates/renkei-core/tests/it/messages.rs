//! Messages of file sessions, leases, locks and volumes with some bytes of them spoilt: refused, or read as something that can be
//! written and read again.

use crate::fixture::path;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta};
use renkei_core::error::{Code, Error};
use renkei_core::lease::locks::{Hold, Span};
use renkei_core::namespace::{
    Attributes, Base, Beside, Change, Delta, Dentry, Kind, Name, NewKind, Node, NodeId, Origin, ROOT, Record,
    SequencedChange,
};
use renkei_core::sim::chance::Chance;
use renkei_core::wire::file::{
    Alteration, Answer, Changed, Item, Op, Precondition, Start, parse_answer, parse_op,
};
use renkei_core::wire::message::Control;
use renkei_core::wire::uploads::{Part, UploadOp};
use renkei_core::wire::volume::AboutVolume;
use renkei_core::wire::{decode, encode};

const SPOILT: u64 = 3000;

fn span() -> Span {
    Span { start: 1, end: u64::MAX, hold: Hold::Exclusive, pid: 7 }
}

fn item() -> Item {
    let entry = Entry { path: path("d/f"), meta: Meta::default(), kind: EntryKind::Dir };
    Item { entry, ino: 1 << 40, links: 2, blocks: 8, ctime: FileTime { secs: -1, nanos: 5 } }
}

fn attributes() -> Attributes {
    let mtime = FileTime { secs: 1 << 33, nanos: 999_999_999 };
    Attributes { mode: 0o644, owner: "alice".into(), group: "users".into(), mtime }
}

fn ops() -> Vec<Op> {
    let at = || path("d/f");
    vec![
        Op::Look(at()),
        Op::Draft { path: at(), start: Start::Content, mode: 0o600 },
        Op::Write { handle: 3, offset: 1 << 45 },
        Op::Alter { path: at(), change: Alteration { mode: Some(0o7777), ..Alteration::default() } },
        Op::Rename { from: at(), to: path("e"), replace: true },
        Op::Lock { path: at(), owner: u64::MAX, span: span() },
        Op::FindLock { path: at(), owner: 0, span: span() },
        Op::LookFull(at()),
        Op::PublishIf { handle: 3, mtime: None, condition: Precondition::Absent },
        Op::PublishWith { handle: 3, mtime: None, condition: Precondition::None, attributes: Vec::new() },
        Op::SetXattr { path: at(), name: b"user.a".to_vec(), value: Some(vec![0, 255]) },
        Op::Upload {
            path: at(),
            op: UploadOp::Complete {
                upload: 3,
                parts: vec![1, 7],
                condition: Precondition::None,
                mtime: None,
                attributes: Vec::new(),
            },
        },
    ]
}

fn answers() -> Vec<Answer> {
    vec![
        Answer::Items { items: vec![item(), item()], more: true }.joined(Some(vec![item()])),
        Answer::Locked(Some(span())),
        Answer::Failed(Error::new(Code::LockLost, "use", "d/f", "gone")),
        Answer::Opened { handle: 9, item: item() },
        Answer::Parts(vec![Part { number: 7, bytes: 1 << 45, mtime: FileTime { secs: -1, nanos: 1 } }]),
    ]
}

fn controls() -> Vec<Control> {
    let what = Changed { names: vec![(7, b"f".to_vec()), (8, Vec::new())], nodes: vec![9], all: false };
    let renewed = Control::Renewed { number: 1, round: 2, term_ms: 3000, locks: 4 };
    vec![Control::Renew(5), renewed, Control::Changed { number: 6, what }, Control::Settled(u64::MAX)]
}

fn changes() -> Vec<Change> {
    let (id, at) = (Origin(2).id(5), Dentry { dir: ROOT, name: Name(vec![0xff, b'a']) });
    let (time, digest) = (attributes().mtime, Some([3; 32]));
    let beside = Some(Beside { id, at: at.clone(), attributes: attributes() });
    let kind = NewKind::Symlink(b"/x".to_vec());
    vec![
        Change::Make { id, at: at.clone(), kind, attributes: attributes(), keep_both: true },
        Change::Rename { from: at.clone(), to: at.clone(), replace: false, seen: None, time },
        Change::SetContent { id, base: Base::Own(4), size: 1 << 50, digest, mtime: time, beside },
        Change::Remove { at, seen: None, time },
    ]
}

fn records() -> Vec<Record> {
    let node =
        Node { kind: Kind::Dir { names: 3, parent: ROOT }, attributes: attributes(), links: 2, changed: 8 };
    let effects = Delta {
        nodes: vec![(NodeId(9), Some(node)), (NodeId(10), None)],
        names: vec![(Dentry { dir: ROOT, name: Name::from("n") }, Some(NodeId(9)))],
    };
    let refused = Err(Error::new(Code::NotEmpty, "remove", "d", ""));
    let record = |outcome| Record { seq: 1 << 60, origin: Origin(3), number: 4, outcome };
    vec![record(Ok(effects)), record(refused)]
}

/// Decodes encoded messages, also after some bytes were changed.
fn spoil<T: serde::Serialize + PartialEq + std::fmt::Debug>(
    values: Vec<T>,
    read: impl Fn(&[u8]) -> Result<T, Error>,
) {
    for value in values {
        let bytes = encode(&value);
        assert_eq!(read(&bytes).unwrap(), value);
        let mut chance = Chance::new(bytes.len() as u64);
        for _ in 0..SPOILT {
            let mut spoilt = bytes.clone();
            for _ in 0..=chance.below(3) {
                let at = chance.below(spoilt.len() as u64) as usize;
                match chance.below(3) {
                    0 => spoilt[at] = chance.draw() as u8,
                    1 => spoilt.truncate(at + 1),
                    _ => spoilt.insert(at, *chance.pick(&[0, 1, 7, 0x7f, 0x80, 0xff])),
                }
            }
            if let Ok(other) = read(&spoilt) {
                assert_eq!(read(&encode(&other)).unwrap(), other, "{spoilt:?}");
            }
        }
    }
}

#[test]
fn corrupt_messages_are_refused_or_decoded() {
    spoil(ops(), |bytes| parse_op(bytes, 0));
    spoil(answers(), parse_answer);
    spoil(controls(), |bytes| decode("control", bytes));
    spoil(records(), |bytes| decode("record", bytes));
    let number = |change| SequencedChange { origin: Origin(1), number: 1, change };
    let changes = changes().into_iter().map(number).collect();
    spoil(vec![AboutVolume::Submit { volume: Default::default(), changes }], |bytes| decode("volume", bytes));
}
