//! Files that are likely opened next: those that come after the last ones in a directory that is read file by file.
//!
//! A program that copies a tree opens a file, reads it, closes it and opens the next; over a long path it would wait for each.
//! So when files of a list were read to their ends one after the other, those that follow are asked for before they are
//! opened, as far as the path holds. `open` itself is asked as always: what was brought counts if it is of the version
//! that `open` found.

use super::ahead::{Extent, most_under_way, parts};
use super::far::FarFiles;
use super::lane::Link;
use renkei_core::entry::EntryKind;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Item, Op};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Directories whose lists are remembered.
const MAX_LISTS: usize = 8;
/// Names of one list that are remembered; a longer one is not.
pub(super) const MAX_NAMES: usize = 100_000;
/// Who skips no more than this goes through the list in order.
const NEAR: usize = 4;
/// Larger files are not brought before they are opened: reading ahead serves them.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What is known of lists, and what was asked for.
#[derive(Default)]
pub(super) struct Coming {
    lists: VecDeque<List>,
    peeked: HashMap<RelPath, VecDeque<Extent>>,
}

/// The files of a directory, in the order of its list.
struct List {
    dir: RelPath,
    files: Vec<(Vec<u8>, u64)>,
    places: HashMap<Vec<u8>, usize>,
    /// The file that was read last, and how many were in order up to there.
    last: usize,
    in_order: usize,
    /// Up to where files were asked for.
    asked: usize,
}

impl List {
    fn new(dir: RelPath, files: Vec<(Vec<u8>, u64)>) -> Self {
        let places = files.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
        List { dir, files, places, last: usize::MAX, in_order: 0, asked: 0 }
    }

    /// Notes that a file was read to its end; tells whether files are read in order.
    fn on_read(&mut self, name: &[u8]) -> Option<bool> {
        let place = *self.places.get(name)?;
        let skipped = place.wrapping_sub(self.last.wrapping_add(1));
        self.in_order = match () {
            () if place == self.last => self.in_order,
            () if skipped < NEAR => self.in_order + 1,
            () => 0,
        };
        self.last = place;
        self.asked = self.asked.max(place + 1);
        Some(self.in_order >= 2)
    }

    /// The files that are likely next, whose first `held` bytes are on their way already, up to so many bytes.
    fn next(&mut self, mut held: u64, most: u64) -> Vec<(RelPath, u64)> {
        let mut next = Vec::new();
        while let Some((name, size)) = self.files.get(self.asked) {
            if *size > MAX_FILE_BYTES || held + size > most {
                break;
            }
            held += size;
            self.asked += 1;
            if let (1.., Ok(path)) = (*size, self.dir.child(name)) {
                next.push((path, *size));
            }
        }
        next
    }
}

impl Coming {
    /// Takes in what a directory has.
    pub(super) fn on_list(&mut self, dir: &RelPath, items: &[Item]) {
        let files = items.iter().filter(|item| matches!(item.entry.kind, EntryKind::File { .. }));
        let named = files.filter_map(|item| Some((item.entry.path.name()?.to_vec(), item.entry.size())));
        self.lists.retain(|list| list.dir != *dir);
        self.lists.truncate(MAX_LISTS - 1);
        if items.len() <= MAX_NAMES {
            self.lists.push_front(List::new(dir.clone(), named.collect()));
        }
    }

    /// What a file was when some of it came, less than `within` ago.
    pub(super) fn item(&self, path: &RelPath, within: Duration) -> Option<Item> {
        let replied = self.peeked.get(path)?.front()?.pending.replied()?;
        match &replied.answer {
            Answer::Peeked { item, .. } if replied.at.elapsed() < within => Some(item.clone()),
            _ => None,
        }
    }

    /// What was asked for of a file that is opened now.
    pub(super) fn take(&mut self, path: &RelPath) -> VecDeque<Extent> {
        self.peeked.remove(path).unwrap_or_default()
    }

    /// A file was read to its end: asks for those that come next, if that is in order.
    pub(super) fn on_read(&mut self, files: &FarFiles, link: &Link, path: &RelPath) {
        let (Some(dir), Some(name)) = (path.parent(), path.name()) else { return };
        let Some(list) = self.lists.iter_mut().find(|list| list.dir == dir) else { return };
        match list.on_read(name) {
            Some(true) => {}
            Some(false) => {
                list.asked = 0;
                return self.drop_all(files);
            }
            None => return,
        }
        let held = self.peeked.values().flatten().map(|extent| extent.range.end - extent.range.start).sum();
        let most = most_under_way(link).min(files.memory() / 2);
        for (path, size) in list.next(held, most) {
            let extents = parts(0, size).map(|range| {
                let bytes = range.end - range.start;
                files.held.fetch_add(bytes, Ordering::Relaxed);
                let op = Op::Peek { path: path.clone(), offset: range.start, bytes: bytes as u32 };
                Extent::new(range, link.begin(&op, None))
            });
            self.peeked.insert(path.clone(), extents.collect());
        }
    }

    /// Lets all go that was asked for and not opened.
    fn drop_all(&mut self, files: &FarFiles) {
        for extent in self.peeked.drain().flat_map(|(_, extents)| extents) {
            files.held.fetch_sub(extent.range.end - extent.range.start, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        let files = (0..6).map(|number| (vec![b'a' + number], u64::from(number % 2) * 100)).collect();
        List::new(RelPath::parse(b"d").unwrap(), files)
    }

    fn shown(next: &[(RelPath, u64)]) -> Vec<String> {
        next.iter().map(|(path, _)| path.to_string()).collect()
    }

    #[test]
    fn files_after_those_read_in_order_are_next() {
        let mut list = list();
        assert_eq!(["a", "b"].map(|name| list.on_read(name.as_bytes())), [Some(false), Some(true)]);
        assert_eq!(shown(&list.next(0, 150)), ["d/d"]);
        assert!(list.next(100, 150).is_empty());
        assert_eq!((list.on_read(b"d"), list.on_read(b"d")), (Some(true), Some(true)));
        assert_eq!(shown(&list.next(0, 150)), ["d/f"]);
    }

    #[test]
    fn who_jumps_is_not_read_ahead_for() {
        let mut list = list();
        for name in ["a", "b", "c", "d"] {
            list.on_read(name.as_bytes());
        }
        assert_eq!((list.on_read(b"a"), list.on_read(b"x")), (Some(false), None));
    }
}
