//! Inodes, changes to them, and the effect of a power cut on a change.

use super::content::{Content, SECTOR_BYTES};
use renkei_core::entry::{FileTime, Meta};
use renkei_core::sim::chance::Chance;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Inode number; a freed number is reused.
pub type Ino = u64;
/// The root directory.
pub const ROOT: Ino = 2;

/// How the receiver crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed, the machine goes on.
    Kill,
    /// The machine loses power; changes that were not synced may be lost.
    Power,
    /// The machine loses power, and all changes that were not synced are lost.
    PowerLosesAll,
}

/// The type and content of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Dir(BTreeMap<Vec<u8>, Ino>),
    /// A symbolic link.
    Symlink(Vec<u8>),
}

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its type and content.
    pub body: Body,
    /// Mode and times.
    pub meta: Meta,
    pub(super) ctime: FileTime,
}

/// Inodes by number.
pub(super) type Tree = BTreeMap<Ino, Node>;

/// A change that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { ino: Ino, offset: u64, bytes: Vec<u8>, at: FileTime },
    SetLen { ino: Ino, len: u64, at: FileTime },
    Free { ino: Ino, range: Range<u64>, at: FileTime },
    Meta { ino: Ino, meta: Meta },
    Names { dir: Ino, names: Vec<(Vec<u8>, Option<Ino>)>, at: FileTime },
}

impl Change {
    pub(super) fn ino(&self) -> Ino {
        match self {
            Change::Write { ino, .. }
            | Change::SetLen { ino, .. }
            | Change::Free { ino, .. }
            | Change::Meta { ino, .. } => *ino,
            Change::Names { dir, .. } => *dir,
        }
    }

    pub(super) fn apply(&self, tree: &mut Tree) {
        let Some(node) = tree.get_mut(&self.ino()) else { return };
        match (self, &mut node.body) {
            (Change::Write { offset, bytes, at, .. }, Body::File(content)) => {
                content.write(*offset, bytes);
                node.meta.mtime = *at;
            }
            (Change::SetLen { len, at, .. }, Body::File(content)) => {
                content.set_len(*len);
                node.meta.mtime = *at;
            }
            (Change::Free { range, at, .. }, Body::File(content)) => {
                content.free(range);
                node.meta.mtime = *at;
            }
            (Change::Names { names, at, .. }, Body::Dir(entries)) => {
                for (name, ino) in names {
                    match ino {
                        Some(ino) => entries.insert(name.clone(), *ino),
                        None => entries.remove(name),
                    };
                }
                node.meta.mtime = *at;
            }
            (Change::Meta { meta, .. }, _) => node.meta = meta.clone(),
            _ => {}
        }
    }

    /// The part of it that survives a power cut.
    pub(super) fn survivor(self, crash: Crash, chance: &mut Chance) -> Option<Change> {
        if crash == Crash::PowerLosesAll || chance.percent(40) {
            return None;
        }
        match self {
            Change::Write { ino, offset, mut bytes, at } if chance.percent(30) => {
                let sectors = (offset + bytes.len() as u64) / SECTOR_BYTES - offset / SECTOR_BYTES;
                let cut = (offset / SECTOR_BYTES + chance.below(sectors + 1)) * SECTOR_BYTES;
                bytes.truncate(cut.saturating_sub(offset) as usize);
                (!bytes.is_empty()).then_some(Change::Write { ino, offset, bytes, at })
            }
            whole => Some(whole),
        }
    }
}

/// Inodes that are reachable by name.
pub(super) fn reachable(tree: &Tree) -> BTreeSet<Ino> {
    let mut found = BTreeSet::new();
    let mut pending = vec![ROOT];
    while let Some(ino) = pending.pop() {
        let Some(node) = tree.get(&ino) else { continue };
        if let Body::Dir(names) = &node.body {
            pending.extend(names.values());
        }
        found.insert(ino);
    }
    found
}
