//! File locks: owners of ranges, and conflicts.
//!
//! A file is identified by the directory and the name it had when it was first locked, so that all its versions,
//! which have different inodes, share their locks. Whole-file locks (`flock`) and range locks (`fcntl`) conflict, as
//! over NFS.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A locked file: device and inode number of its directory, and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey {
    /// The file system.
    pub device: u64,
    /// The directory's inode number.
    pub dir: u64,
    /// The name in it.
    pub name: Vec<u8>,
}

/// A lock owner: a client, and an owner there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The client.
    pub client: u64,
    /// The owner's number at that client.
    pub owner: u64,
}

/// Kind of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// Shared (read) lock.
    Shared,
    /// Exclusive (write) lock.
    Exclusive,
    /// Unlock.
    Nothing,
}

/// A range and its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// The last one.
    pub end: u64,
    /// The kind of lock.
    pub hold: Hold,
    /// The process id on the owner's machine.
    pub pid: u32,
}

/// All locks.
#[derive(Debug, Default)]
pub struct Locks(BTreeMap<FileKey, Vec<(Owner, Span)>>);

impl Locks {
    /// The first lock that conflicts with a wanted one.
    pub fn conflict(&self, key: &FileKey, owner: Owner, wanted: &Span) -> Option<Span> {
        let held = self.0.get(key)?;
        let in_way = |other: &Span| {
            let overlaps = other.start <= wanted.end && wanted.start <= other.end;
            let excludes = other.hold == Hold::Exclusive || wanted.hold == Hold::Exclusive;
            overlaps && excludes && wanted.hold != Hold::Nothing
        };
        held.iter().find(|(whose, span)| *whose != owner && in_way(span)).map(|(_, span)| *span)
    }

    /// Locks or unlocks a range; replaces the owner's earlier locks on it.
    ///
    /// # Errors
    /// The conflicting lock; nothing has changed then.
    pub fn set(&mut self, key: &FileKey, owner: Owner, wanted: &Span) -> Result<(), Span> {
        if let Some(other) = self.conflict(key, owner, wanted) {
            return Err(other);
        }
        let held = self.0.entry(key.clone()).or_default();
        let (own, others): (Vec<_>, Vec<_>) = held.drain(..).partition(|(whose, _)| *whose == owner);
        *held = others;
        held.extend(own.into_iter().flat_map(|(_, span)| rest(span, wanted)).map(|span| (owner, span)));
        if wanted.hold != Hold::Nothing {
            held.push((owner, *wanted));
        }
        if held.is_empty() {
            self.0.remove(key);
        }
        Ok(())
    }

    /// Whether an unlock would leave two ranges of one.
    pub fn splits(&self, key: &FileKey, owner: Owner, wanted: &Span) -> bool {
        let is_inside = |span: &Span| span.start < wanted.start && wanted.end < span.end;
        self.0
            .get(key)
            .is_some_and(|held| held.iter().any(|(whose, span)| *whose == owner && is_inside(span)))
    }

    /// Releases all locks of a client.
    pub fn end_client(&mut self, client: u64) {
        self.0.retain(|_, held| {
            held.retain(|(owner, _)| owner.client != client);
            !held.is_empty()
        });
    }

    /// Number of locks.
    pub fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

/// The remainder of a range after another one is subtracted.
fn rest(span: Span, out: &Span) -> impl Iterator<Item = Span> {
    let before =
        (span.start < out.start).then(|| Span { end: span.end.min(out.start.saturating_sub(1)), ..span });
    let after =
        (span.end > out.end).then(|| Span { start: span.start.max(out.end.saturating_add(1)), ..span });
    before.into_iter().chain(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::chance::Chance;

    fn key() -> FileKey {
        FileKey { device: 1, dir: 2, name: b"f".to_vec() }
    }

    fn owner(client: u64) -> Owner {
        Owner { client, owner: 1 }
    }

    fn span(start: u64, end: u64, hold: Hold) -> Span {
        Span { start, end, hold, pid: 1 }
    }

    #[test]
    fn whole_files_exclude_one_another() {
        let mut locks = Locks::default();
        let whole = |hold| span(0, u64::MAX, hold);
        locks.set(&key(), owner(1), &whole(Hold::Shared)).unwrap();
        locks.set(&key(), owner(2), &whole(Hold::Shared)).unwrap();
        assert!(locks.set(&key(), owner(1), &whole(Hold::Exclusive)).is_err());
        locks.end_client(2);
        locks.set(&key(), owner(1), &whole(Hold::Exclusive)).unwrap();
        assert_eq!(locks.set(&key(), owner(2), &whole(Hold::Shared)), Err(whole(Hold::Exclusive)));
        locks.set(&key(), owner(1), &whole(Hold::Nothing)).unwrap();
        assert_eq!(locks.count(), 0);
    }

    /// Compares with a model that has one lock per byte.
    #[test]
    fn range_locks_agree_with_a_model_of_bytes() {
        const BYTES: u64 = 16;
        for seed in 0..300 {
            let (mut chance, mut locks) = (Chance::new(seed), Locks::default());
            let mut model = [[Hold::Nothing; BYTES as usize]; 3];
            for _ in 0..60 {
                let (who, start) = (chance.below(3) as usize, chance.below(BYTES));
                let end = start + chance.below(BYTES - start);
                let hold = *chance.pick(&[Hold::Shared, Hold::Exclusive, Hold::Nothing]);
                let range = start as usize..=end as usize;
                let clashes = |other: &Hold| match hold {
                    Hold::Nothing => false,
                    Hold::Shared => *other == Hold::Exclusive,
                    Hold::Exclusive => *other != Hold::Nothing,
                };
                let others = (0..3).filter(|other| *other != who);
                let is_free = !others.flat_map(|other| &model[other][range.clone()]).any(clashes);
                let set = locks.set(&key(), owner(who as u64), &span(start, end, hold));
                assert_eq!(set.is_ok(), is_free, "seed {seed}");
                if is_free {
                    model[who][range].fill(hold);
                }
            }
        }
    }
}
