//! A tree for tests that is deeper than a path can be, as a hostile site may create one.

use renkei_core::entry::FileTime;
use renkei_core::namespace::{
    Attributes, Change, Dentry, Name, NewKind, NodeId, Origin, ROOT, SequencedChange,
};

const HOME: Origin = Origin(0);
/// Number of names of 255 bytes in the longest path.
pub const DEEPEST: u64 = 128;
const FILE: NewKind = NewKind::Content { size: 0, digest: None };

/// Nested directories, two more than a path can hold, followed by a file in the root.
pub fn deep() -> Vec<SequencedChange> {
    let attributes =
        Attributes { mode: 0o755, owner: String::new(), group: String::new(), mtime: FileTime::default() };
    let make = |number: u64, dir: NodeId, name: Vec<u8>, kind| {
        let (id, at) = (HOME.id(number), Dentry { dir, name: Name(name) });
        let change = Change::Make { id, at, kind, attributes: attributes.clone(), keep_both: false };
        SequencedChange { origin: HOME, number, change }
    };
    let above = |number: u64| if number == 1 { ROOT } else { HOME.id(number - 1) };
    let dirs = (1..=DEEPEST + 2).map(|number| make(number, above(number), vec![b'x'; 255], NewKind::Dir));
    let file = make(DEEPEST + 3, ROOT, b"z".to_vec(), FILE);
    dirs.chain([file]).collect()
}
