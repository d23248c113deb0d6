//! Inodes, changes to them, and what a power cut leaves of a change.

use super::chance::Chance;
use super::content::{Content, SECTOR_BYTES};
use crate::entry::{FileTime, Meta};
use std::collections::{BTreeMap, BTreeSet};

/// Number of an inode; a freed number is used again.
pub type Ino = u64;
/// The directory everything lies in.
pub const ROOT: Ino = 2;

/// How a run of the receiver ends without a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is gone, the machine goes on.
    Kill,
    /// The machine is gone; what was not synced may be.
    Power,
    /// The machine is gone, and so is everything that was not synced.
    PowerLosesAll,
}

/// What an inode is.
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
    /// What it is.
    pub body: Body,
    /// Mode and times.
    pub meta: Meta,
    pub(super) ctime: FileTime,
}

/// Inodes by number.
pub(super) type Tree = BTreeMap<Ino, Node>;

/// One change, as it waits to become durable.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { ino: Ino, offset: u64, bytes: Vec<u8>, at: FileTime },
    SetLen { ino: Ino, len: u64, at: FileTime },
    Meta { ino: Ino, meta: Meta },
    Names { dir: Ino, names: Vec<(Vec<u8>, Option<Ino>)>, at: FileTime },
}

impl Change {
    pub(super) fn ino(&self) -> Ino {
        match self {
            Change::Write { ino, .. } | Change::SetLen { ino, .. } | Change::Meta { ino, .. } => *ino,
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

    /// What a power cut leaves of it.
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

/// Inodes that a name leads to.
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
