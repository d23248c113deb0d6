//! Prefetch of whole files: the files that come next in a directory that is read file by file.
//!
//! A program that copies a tree opens a file, reads it, closes it and opens the next; over a long path it would wait
//! for each. So when files of a directory were read to their ends in sequence, the next ones are requested before
//! they are opened, up to the BDP of the path. A prefetched file is used if it is of the version that `open` finds;
//! under a lease the version is known without a request.
//!
//! The sequence depends on the program. `cp` sorts by inode number, which saves disk seeks; `tar` takes the order of
//! the listing; shells and `rsync` sort by name. All three orders are tracked, and the one that matches the reads is
//! followed.

use super::read_ahead::{Extent, most_under_way, parts};
use super::remote_files::RemoteFiles;
use super::rpc::RpcConnection;
use renkei_core::entry::EntryKind;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Item, Op};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most directories whose listings are kept.
const MAX_LISTS: usize = 256;
/// Most names that are kept, of all listings together.
pub(crate) const MAX_NAMES: usize = 100_000;
/// A read that skips no more files than this, or is late by no more, is in order: programs skip files, or read
/// several at a time.
const NEAR: usize = 4;
/// This many files in order may be chance.
const CHANCE: usize = 1;
/// A prefetched file that is unused for this long was requested too early: it holds memory, and its attributes soon
/// expire (`look_ttl` of a mount is half a second by default).
const EARLY: Duration = Duration::from_millis(125);
/// Largest file that is prefetched: read-ahead serves larger ones.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The listings that are tracked, and the extents that were requested.
#[derive(Default)]
pub(crate) struct Prefetcher {
    /// Most recently used first.
    lists: VecDeque<List>,
    peeked: HashMap<RelPath, VecDeque<Extent>>,
    /// Number of files that had been prefetched when they were opened.
    foreseen: u64,
}

/// The files of a directory.
struct List {
    dir: RelPath,
    files: Vec<Listed>,
    places: HashMap<Vec<u8>, usize>,
    /// Empty until the first of the files was read.
    orders: Vec<Order>,
    /// The order in which files are read.
    followed: Option<usize>,
}

struct Listed {
    name: Vec<u8>,
    number: u64,
    bytes: u64,
}

/// An order in which files may be read.
struct Order {
    files: Vec<usize>,
    /// Position in the order of each file.
    places: Vec<usize>,
    /// The furthest position that was read, and how many files up to it were in order.
    last: usize,
    in_order: usize,
    /// Position up to which files were requested, and up to which they are given up.
    asked: usize,
    passed: usize,
}

/// Whether the reader keeps to an order.
#[derive(Debug, PartialEq, Eq)]
enum AccessPattern {
    /// It keeps to the followed order.
    Sequential,
    /// It has changed to another order.
    Turned,
    /// It keeps to none.
    Random,
}

impl Order {
    fn new(files: Vec<usize>) -> Self {
        let mut places = vec![0; files.len()];
        files.iter().enumerate().for_each(|(place, file)| places[*file] = place);
        Order { files, places, last: usize::MAX, in_order: 0, asked: 0, passed: 0 }
    }

    /// Notes that a file was read.
    fn on_read(&mut self, file: usize) {
        let place = self.places[file];
        if self.last != usize::MAX && place <= self.last && self.last - place <= NEAR {
            return;
        }
        let skipped = place.wrapping_sub(self.last.wrapping_add(1));
        self.in_order = if skipped < NEAR { self.in_order + 1 } else { 0 };
        self.last = place;
        self.asked = self.asked.max(place + 1);
    }
}

impl List {
    fn new(dir: RelPath, files: Vec<Listed>) -> Self {
        let places = files.iter().enumerate().map(|(place, file)| (file.name.clone(), place)).collect();
        List { dir, files, places, orders: Vec::new(), followed: None }
    }

    /// By inode number, as listed, and by name.
    fn orders(&self) -> Vec<Order> {
        let listed: Vec<usize> = (0..self.files.len()).collect();
        let (mut by_number, mut by_name) = (listed.clone(), listed.clone());
        by_number.sort_by_key(|file| self.files[*file].number);
        by_name.sort_by_key(|file| &self.files[*file].name);
        [by_number, listed, by_name].map(Order::new).into()
    }

    /// Notes that a file was read to its end; `None` if it is not in the listing.
    fn on_read(&mut self, name: &[u8]) -> Option<AccessPattern> {
        let file = *self.places.get(name)?;
        if self.orders.is_empty() {
            self.orders = self.orders();
        }
        self.orders.iter_mut().for_each(|order| order.on_read(file));
        if self.followed.is_some_and(|followed| self.orders[followed].in_order > CHANCE) {
            return Some(AccessPattern::Sequential);
        }
        let most = self.orders.iter().map(|order| order.in_order).max().filter(|most| *most > CHANCE);
        self.followed = most.and_then(|most| self.orders.iter().position(|order| order.in_order == most));
        let Some(followed) = self.followed else { return Some(AccessPattern::Random) };
        let order = &mut self.orders[followed];
        (order.asked, order.passed) = (order.last + 1, order.last.saturating_sub(NEAR));
        Some(AccessPattern::Turned)
    }

    /// Files that were skipped since the last call.
    fn passed(&mut self) -> Vec<RelPath> {
        let Some(order) = self.followed.map(|followed| &mut self.orders[followed]) else { return Vec::new() };
        let passed = order.passed..order.last.saturating_sub(NEAR).max(order.passed);
        order.passed = passed.end;
        let names = order.files[passed].iter().map(|file| &self.files[*file].name);
        names.filter_map(|name| self.dir.child(name).ok()).collect()
    }

    /// Files that were requested and come after the last one read.
    fn asked(&self) -> impl Iterator<Item = RelPath> {
        let order = self.followed.map(|followed| &self.orders[followed]);
        let files =
            order.into_iter().flat_map(|order| order.files.get(order.last + 1..order.asked)).flatten();
        files.filter_map(|file| self.dir.child(&self.files[*file].name).ok())
    }

    /// The files that are likely next, until `held` bytes in flight and theirs reach `most`.
    fn next(&mut self, mut held: u64, most: u64) -> Vec<(RelPath, u64)> {
        let mut next = Vec::new();
        let Some(order) = self.followed.map(|followed| &mut self.orders[followed]) else { return next };
        while let Some(Listed { name, bytes, .. }) =
            order.files.get(order.asked).map(|file| &self.files[*file])
        {
            if *bytes > MAX_FILE_BYTES || held + bytes > most {
                break;
            }
            held += bytes;
            order.asked += 1;
            if let (1.., Ok(path)) = (*bytes, self.dir.child(name)) {
                next.push((path, *bytes));
            }
        }
        next
    }
}

impl Prefetcher {
    /// Takes in a directory's listing.
    pub(crate) fn on_list(&mut self, dir: &RelPath, items: &[Item]) {
        let files = items.iter().filter(|item| matches!(item.entry.kind, EntryKind::File { .. }));
        let listed = files.filter_map(|item| {
            let name = item.entry.path.name()?.to_vec();
            Some(Listed { name, number: item.ino, bytes: item.entry.size() })
        });
        self.lists.retain(|list| list.dir != *dir);
        if items.len() <= MAX_NAMES {
            self.lists.push_front(List::new(dir.clone(), listed.collect()));
        }
        let names = |lists: &VecDeque<List>| lists.iter().map(|list| list.files.len()).sum::<usize>();
        while self.lists.len() > MAX_LISTS || names(&self.lists) > MAX_NAMES {
            self.lists.pop_back();
        }
    }

    /// The attributes of a prefetched file that arrived less than `within` ago.
    pub(crate) fn item(&self, path: &RelPath, within: Duration) -> Option<Item> {
        let replied = self.peeked.get(path)?.front()?.pending.replied()?;
        match &replied.answer {
            Answer::Peeked { item, .. } if replied.at.elapsed() < within => Some(item.clone()),
            _ => None,
        }
    }

    /// Takes the prefetched extents of a file that is opened now.
    pub(crate) fn take(&mut self, path: &RelPath) -> VecDeque<Extent> {
        let extents = self.peeked.remove(path).unwrap_or_default();
        self.foreseen += u64::from(!extents.is_empty());
        extents
    }

    /// Takes back extents that turned out not to be the whole current file.
    pub(crate) fn give_back(&mut self, files: &RemoteFiles, path: &RelPath, extents: VecDeque<Extent>) {
        self.foreseen -= 1;
        let asked_again = self.peeked.insert(path.clone(), extents);
        asked_again.into_iter().flatten().for_each(|extent| let_go(files, &extent));
    }

    /// Number of files that had been prefetched when they were opened.
    pub(crate) fn foreseen(&self) -> u64 {
        self.foreseen
    }

    /// Notes that a file was read to its end, and prefetches the next ones if that is in order.
    pub(crate) fn on_read(&mut self, files: &RemoteFiles, conn: &RpcConnection, path: &RelPath) {
        let (Some(dir), Some(name)) = (path.parent(), path.name()) else { return };
        let Some(at) = self.lists.iter().position(|list| list.dir == dir) else { return };
        let Some(mut list) = self.lists.remove(at) else { return };
        let pattern = list.on_read(name);
        if matches!(pattern, Some(AccessPattern::Turned | AccessPattern::Random)) {
            self.drop_all(files);
        }
        if matches!(pattern, Some(AccessPattern::Turned | AccessPattern::Sequential)) {
            self.ask_next(files, conn, &mut list);
        }
        self.lists.push_front(list);
    }

    fn ask_next(&mut self, files: &RemoteFiles, conn: &RpcConnection, list: &mut List) {
        for path in list.passed() {
            let extents = self.peeked.remove(&path);
            extents.into_iter().flatten().for_each(|extent| let_go(files, &extent));
        }
        if self.is_early(list) {
            return;
        }
        let held = self.peeked.values().flatten().map(|extent| extent.range.end - extent.range.start).sum();
        let most = most_under_way(conn).min(files.memory() / 2);
        for (path, size) in list.next(held, most) {
            let extents = parts(0, size).map(|range| {
                let bytes = range.end - range.start;
                files.held.fetch_add(bytes, Ordering::Relaxed);
                let op = Op::Peek { path: path.clone(), offset: range.start, bytes: bytes as u32 };
                Extent::new(range, conn.begin(&op, None))
            });
            self.peeked.insert(path.clone(), extents.collect());
        }
    }

    /// Whether the next file has been unused for long.
    fn is_early(&self, list: &List) -> bool {
        let next = list.asked().find_map(|path| self.peeked.get(&path)?.front());
        let replied = next.and_then(|extent| extent.pending.replied());
        replied.is_some_and(|replied| replied.at.elapsed() > EARLY)
    }

    /// Invalidates what was prefetched at a changed path or below it.
    pub(crate) fn forget(&mut self, files: &RemoteFiles, path: &RelPath) {
        self.peeked.retain(|peeked, extents| {
            let stays = !peeked.starts_with(path);
            if !stays {
                extents.iter().for_each(|extent| let_go(files, extent));
            }
            stays
        });
    }

    /// Discards all that was prefetched and not opened.
    fn drop_all(&mut self, files: &RemoteFiles) {
        self.peeked.drain().flat_map(|(_, extents)| extents).for_each(|extent| let_go(files, &extent));
    }
}

fn let_go(files: &RemoteFiles, extent: &Extent) {
    files.held.fetch_sub(extent.range.end - extent.range.start, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of 100 bytes whose listing is sorted by neither number nor name: by number they are `c f a d e b`.
    fn list() -> List {
        let numbers = [("e", 5), ("a", 3), ("f", 2), ("c", 1), ("b", 6), ("d", 4)];
        let files = numbers.map(|(name, number)| Listed { name: name.into(), number, bytes: 100 });
        List::new(RelPath::parse(b"x").unwrap(), files.into())
    }

    /// A hundred files whose names ascend as their numbers descend, listed as `00 37 74 11 48 85 22` and so on.
    fn many() -> List {
        let files = (0..100).map(|place| place * 37 % 100).map(|name| Listed {
            name: format!("{name:02}").into(),
            number: 99 - name,
            bytes: 1,
        });
        List::new(RelPath::parse(b"x").unwrap(), files.collect())
    }

    fn read(list: &mut List, names: &str) -> Vec<Option<AccessPattern>> {
        names.split(' ').map(|name| list.on_read(name.as_bytes())).collect()
    }

    fn next(list: &mut List, most: u64) -> String {
        let next: Vec<_> = list.next(0, most).iter().map(|(path, _)| path.to_string()).collect();
        next.join(" ").replace("x/", "")
    }

    #[test]
    fn the_prediction_depends_on_the_order_of_reading() {
        for (names, expected) in [
            ("50 51 52", "53 54 55"),
            ("50 49 48", "47 46 45"),
            ("70 07 44", "81 18 55"),
            ("00 01", "02 03 04"),
            ("99 98", "97 96 95"),
            ("00 37", "74 11 48"),
        ] {
            let mut list = many();
            assert_eq!(read(&mut list, names).pop(), Some(Some(AccessPattern::Turned)), "{names}");
            assert_eq!(next(&mut list, 3), expected);
        }
    }

    #[test]
    fn each_file_is_prefetched_once_and_as_many_as_fit() {
        let mut list = list();
        assert_eq!(read(&mut list, "c f"), [Some(AccessPattern::Random), Some(AccessPattern::Turned)]);
        assert_eq!(next(&mut list, 250), "a d");
        assert!(list.next(200, 250).is_empty());
        assert_eq!(read(&mut list, "a"), [Some(AccessPattern::Sequential)]);
        assert_eq!(list.next(100, 250).len(), 1);
        assert_eq!(
            read(&mut list, "d e"),
            [Some(AccessPattern::Sequential), Some(AccessPattern::Sequential)]
        );
        assert_eq!((next(&mut list, 250), next(&mut list, 250)), ("b".into(), String::new()));
    }

    #[test]
    fn empty_files_are_skipped_and_large_ones_end_prefetching() {
        let mut list = list();
        list.files[1].bytes = 0;
        list.files[0].bytes = MAX_FILE_BYTES + 1;
        read(&mut list, "c f");
        assert_eq!(next(&mut list, u64::MAX), "d");
        assert_eq!(
            (read(&mut list, "e").pop(), next(&mut list, 250)),
            (Some(Some(AccessPattern::Sequential)), "b".into())
        );
    }

    #[test]
    fn a_reversed_order_is_followed_and_jumps_are_not() {
        let mut list = many();
        read(&mut list, "99 98 97");
        assert_eq!(next(&mut list, 2), "96 95");
        let turned = [Some(AccessPattern::Random), Some(AccessPattern::Random), Some(AccessPattern::Turned)];
        assert_eq!(read(&mut list, "10 11 12"), turned);
        assert_eq!(next(&mut list, 2), "13 14");
        assert!(read(&mut list, "60 20 80 40").iter().all(|pattern| *pattern == Some(AccessPattern::Random)));
        assert_eq!((next(&mut list, 9), list.on_read(b"none")), (String::new(), None));
    }

    #[test]
    fn skipped_files_are_reported_once() {
        let mut list = many();
        read(&mut list, "00 01");
        let shown = |paths: Vec<RelPath>| paths.iter().map(RelPath::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!((list.next(0, 10).len(), shown(list.passed())), (10, String::new()));
        assert_eq!(shown(list.asked().collect()), "x/02 x/03 x/04 x/05 x/06 x/07 x/08 x/09 x/10 x/11");
        read(&mut list, "03 05 07");
        assert_eq!(shown(list.passed()), "x/00 x/01 x/02");
        assert_eq!(shown(list.asked().collect()), "x/08 x/09 x/10 x/11");
        read(&mut list, "06 08");
        assert_eq!((shown(list.passed()), shown(list.passed())), ("x/03".into(), String::new()));
        read(&mut list, "09 10 11");
        assert_eq!(list.asked().count(), 0);
    }

    #[test]
    fn concurrent_reads_count_as_sequential() {
        let mut list = many();
        read(&mut list, "00 02 01");
        assert_eq!(
            (list.on_read(b"03"), next(&mut list, 2).as_str()),
            (Some(AccessPattern::Sequential), "04 05")
        );
        assert!(
            read(&mut list, "06 04 05 08 07")
                .iter()
                .all(|pattern| *pattern == Some(AccessPattern::Sequential))
        );
        assert_eq!(next(&mut list, 2), "09 10");
    }
}
