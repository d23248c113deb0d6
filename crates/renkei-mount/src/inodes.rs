//! The inode table: the files the kernel knows of, by number.
//!
//! Each inode has the name it was found under, so that its path follows from the directories above it: renaming a
//! directory moves all that is below with one change. The number of an inode is the one it has at the other side,
//! unless another inode has that here; it stays until the kernel forgets the inode, also when a new version gives the
//! file another number there. Hard links of one file have a number each, since a version that is written belongs to
//! one name alone.
//!
//! Owns no open files and does no I/O. Bounded by the kernel's own table: each entry goes when the kernel forgets it.

use super::attributes::InodeAttr;
use super::open_inode::OpenInode;
use fuser::FileType;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::Changed;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of the mount's root.
pub(super) const ROOT: u64 = 1;
/// Start of the range of numbers that no file system uses.
const OWN_NUMBERS: u64 = 1 << 63;

type Name = Box<[u8]>;

/// The inodes by number.
pub(super) struct InodeTable {
    nodes: HashMap<u64, Inode>,
    /// Files whose number here differs from the one at the other side, by the latter.
    others: HashMap<u64, Vec<u64>>,
    /// The number that all hard links of a file show, by its number at the other side; see
    /// [`InodeTable::shown_number`].
    shared: HashMap<u64, u64>,
    shared_numbers: HashSet<u64>,
    next_own: u64,
    /// Number of directory renames.
    pub(super) moves: u64,
}

/// One file or directory.
pub(super) struct Inode {
    /// The kernel's lookup count: lookups less forgets.
    lookups: u64,
    /// Parent directory and name; none once the file is removed.
    name: Option<(u64, Name)>,
    children: HashMap<Name, u64>,
    /// The attributes known last.
    pub(super) known: InodeAttr,
    /// The lease epoch of these attributes, if they are valid until a callback.
    pub(super) attr_epoch: Option<u64>,
    /// The lease epoch in which the listing was complete, if it is.
    pub(super) listing_epoch: Option<u64>,
    /// Whether the kernel repeats the lookup of the name before each use (its TTL is zero).
    pub(super) is_looked_up: bool,
    /// How many of its children were dropped here.
    pub(super) losses: u64,
    /// The number of the listing in which it was seen last.
    pub(super) listed: u64,
    /// The version that the kernel's cache has.
    pub(super) cached: Option<InodeAttr>,
    /// The state of its content while it is open.
    pub(super) content: Option<Arc<OpenInode>>,
}

impl InodeTable {
    /// A table with the root alone.
    pub(super) fn new(root: InodeAttr) -> Self {
        let mut table = InodeTable {
            nodes: HashMap::new(),
            others: HashMap::new(),
            shared: HashMap::new(),
            shared_numbers: HashSet::new(),
            next_own: OWN_NUMBERS,
            moves: 0,
        };
        table.nodes.insert(ROOT, Inode::new(root));
        table.enter_other(ROOT, root.ino);
        table
    }

    /// Number of inodes.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// An inode by number.
    ///
    /// # Errors
    /// `PathNotFound`: the kernel never names an inode it was not told of; this guards against a defect.
    pub(super) fn node(&mut self, id: u64) -> Result<&mut Inode, Error> {
        self.nodes.get_mut(&id).ok_or_else(|| gone(id))
    }

    /// The path of a file.
    ///
    /// # Errors
    /// `PathNotFound` if it was removed.
    pub(super) fn path(&self, id: u64) -> Result<RelPath, Error> {
        let (mut names, mut at) = (Vec::new(), id);
        while at != ROOT {
            let node = self.nodes.get(&at).ok_or_else(|| gone(id))?;
            let (parent, name) = node.name.as_ref().ok_or_else(|| gone(id))?;
            names.push(&**name);
            at = *parent;
        }
        names.reverse();
        RelPath::parse(&names.join(&b'/'))
    }

    /// The name of the entry of the root below which a file lies.
    pub(super) fn top(&self, id: u64) -> Option<&[u8]> {
        let (mut at, mut top) = (id, None);
        while at != ROOT {
            let (parent, name) = self.nodes.get(&at)?.name.as_ref()?;
            (at, top) = (*parent, Some(&**name));
        }
        top
    }

    /// The path of a name in a directory.
    pub(super) fn path_below(&self, dir: u64, name: &[u8]) -> Result<RelPath, Error> {
        self.path(dir)?.child(name)
    }

    /// The directory of a file.
    pub(super) fn parent(&self, id: u64) -> u64 {
        self.nodes.get(&id).and_then(|node| node.name.as_ref()).map_or(ROOT, |(parent, _)| *parent)
    }

    /// The inode of a name, as far as the kernel knows.
    pub(super) fn child(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.nodes.get(&dir)?.children.get(name).copied()
    }

    /// The inode of a name, if it has unpublished data here.
    pub(super) fn child_ahead(&self, dir: u64, name: &[u8]) -> Option<u64> {
        let id = self.child(dir, name)?;
        self.nodes.get(&id).filter(|node| node.is_ahead()).map(|_| id)
    }

    /// Enters the file that was found under a name, and returns its number. A different file that had the name before
    /// loses it, but stays for its open handles.
    pub(super) fn enter(&mut self, dir: u64, name: &[u8], known: InodeAttr) -> u64 {
        if let Some(id) = self.child(dir, name) {
            if self.nodes.get_mut(&id).is_some_and(|node| node.takes(known)) {
                return id;
            }
            self.detach(dir, name);
        }
        let id = self.add(known);
        self.name(id, dir, name);
        id
    }

    fn add(&mut self, known: InodeAttr) -> u64 {
        let is_taken = |ino| self.nodes.contains_key(ino) || self.shared_numbers.contains(ino);
        let is_own = self.shared.get(&known.ino) == Some(&known.ino) && !self.nodes.contains_key(&known.ino);
        let is_free = known.ino > ROOT && known.ino < OWN_NUMBERS && (is_own || !is_taken(&known.ino));
        let id = if is_free { known.ino } else { self.own_number() };
        self.nodes.insert(id, Inode::new(known));
        self.enter_other(id, known.ino);
        id
    }

    fn enter_other(&mut self, id: u64, ino: u64) {
        if id != ino {
            self.others.entry(ino).or_default().push(id);
        }
    }

    fn leave_other(&mut self, id: u64, ino: u64) {
        if let Some(ids) = self.others.get_mut(&ino) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.others.remove(&ino);
            }
        }
        // The inode may go on under its number as another file.
        let goes_on = self.nodes.contains_key(&id) && self.shared.get(&ino) == Some(&id);
        if (goes_on || self.ids(ino).is_empty())
            && let Some(number) = self.shared.remove(&ino)
        {
            self.shared_numbers.remove(&number);
        }
    }

    fn own_number(&mut self) -> u64 {
        self.next_own += 1;
        self.next_own
    }

    fn name(&mut self, id: u64, dir: u64, name: &[u8]) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.name = Some((dir, name.into()));
        if let Some(parent) = self.nodes.get_mut(&dir) {
            parent.children.insert(name.into(), id);
        }
    }

    /// Detaches a name that leads to another file by now: the old inode keeps its path, where its draft has to be
    /// published.
    fn detach(&mut self, dir: u64, name: &[u8]) {
        if let Some(id) = self.nodes.get_mut(&dir).and_then(|node| node.children.remove(name)) {
            self.drop_if_unused(id);
        }
    }

    /// A hard link was made, and the file has these attributes now; returns the number of the new name, and those of
    /// its other names.
    pub(super) fn link(&mut self, dir: u64, name: &[u8], known: InodeAttr) -> (u64, Vec<u64>) {
        let id = self.enter(dir, name, known);
        // An inode that is open may be of an earlier version, of which only the link count changes.
        let correct = |node: &mut Inode| {
            node.takes(known);
            node.known.links = known.links;
        };
        (id, self.correct(known.ino, id, correct))
    }

    /// A name was removed; returns the numbers of the file's other names.
    pub(super) fn remove(&mut self, dir: u64, name: &[u8]) -> Vec<u64> {
        let Some(id) = self.nodes.get_mut(&dir).and_then(|node| node.children.remove(name)) else {
            return Vec::new();
        };
        let Some(node) = self.nodes.get_mut(&id) else { return Vec::new() };
        node.name = None;
        node.lose_link();
        let ino = node.known.ino;
        let others = self.correct(ino, id, Inode::lose_link);
        self.drop_if_unused(id);
        others
    }

    /// Corrects the attributes of a file at all its names but one; returns their numbers.
    fn correct(&mut self, ino: u64, but: u64, correct: impl Fn(&mut Inode)) -> Vec<u64> {
        let mut others = self.ids(ino);
        others.retain(|id| *id != but);
        for id in &others {
            self.nodes.entry(*id).and_modify(&correct);
        }
        others
    }

    /// A file was renamed, and a file that had the new name is removed; returns the numbers of the latter's other
    /// names.
    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Vec<u64> {
        let (moved, replaced) = (self.child(from.0, from.1), self.child(to.0, to.1));
        let is_same =
            moved.zip(replaced).is_some_and(|(moved, replaced)| self.ino(moved) == self.ino(replaced));
        let has_others =
            moved.and_then(|id| self.nodes.get(&id)).is_none_or(|node| has_several_names(&node.known));
        if from == to || is_same || has_others {
            // The names that the directories have now are not known.
            for dir in [from.0, to.0] {
                self.nodes.entry(dir).and_modify(|node| node.listing_epoch = None);
            }
        }
        if from == to {
            return Vec::new();
        }
        let others = match replaced.filter(|_| is_same) {
            // Two names of one file: rename(2) does nothing at the site, but in the kernel the new name gets the
            // inode of the old one.
            Some(replaced) => {
                self.name(replaced, from.0, from.1);
                Vec::new()
            }
            None => {
                let others = self.remove(to.0, to.1);
                if let Some(dir) = self.nodes.get_mut(&from.0) {
                    dir.children.remove(from.1);
                }
                others
            }
        };
        if let Some(id) = moved {
            let is_dir = self.nodes.get(&id).is_some_and(|node| node.known.kind == FileType::Directory);
            self.moves += u64::from(is_dir);
            self.name(id, to.0, to.1);
        }
        self.drop_if_unused(from.0);
        others
    }

    /// A new version of a file was published from here, under its name alone; returns the other names of the previous
    /// version.
    pub(super) fn publish(&mut self, id: u64, known: InodeAttr) -> Vec<u64> {
        let Some(node) = self.nodes.get_mut(&id) else { return Vec::new() };
        let before = node.known.ino;
        (node.known, node.cached, node.attr_epoch) = (known, Some(known), None);
        self.leave_other(id, before);
        self.enter_other(id, known.ino);
        match before == known.ino {
            true => Vec::new(),
            false => self.correct(before, id, Inode::lose_link),
        }
    }

    /// A file became another inode at the other side, as when another site's version arrived: possible if it has one
    /// name, no unpublished data and at most the caller as user. Returns whether it was accepted as this file.
    pub(super) fn becomes(&mut self, id: u64, known: InodeAttr) -> bool {
        let is_file = |known: &InodeAttr| known.kind == FileType::RegularFile && known.links <= 1;
        let Some(node) = self.nodes.get(&id) else { return false };
        let Some((dir, name)) = &node.name else { return false };
        let is_alone = node.users() <= 1;
        let is_named = self.child(*dir, name) == Some(id);
        if !is_named || !is_alone || node.is_ahead() || !is_file(&node.known) || !is_file(&known) {
            return false;
        }
        let before = node.known.ino;
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.known, node.attr_epoch) = (known, None);
        }
        self.leave_other(id, before);
        self.enter_other(id, known.ino);
        true
    }

    /// Counts a lookup of the kernel.
    pub(super) fn count(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
        }
    }

    /// The same, if the file still has that name.
    pub(super) fn count_if(&mut self, dir: u64, name: &[u8], id: u64) -> bool {
        let is_there = self.child(dir, name) == Some(id);
        if is_there {
            self.count(id);
        }
        is_there
    }

    /// The kernel forgot a file: its lookup count decreases by `times`.
    pub(super) fn forget(&mut self, id: u64, times: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(times);
            self.drop_if_unused(id);
        }
    }

    /// Drops an unused inode, and the directories that were kept for it alone.
    pub(super) fn drop_if_unused(&mut self, id: u64) {
        let mut at = vec![id];
        while let Some(id) = at.pop() {
            if id == ROOT || !self.nodes.get(&id).is_some_and(Inode::is_unused) {
                continue;
            }
            let Some(node) = self.nodes.remove(&id) else { continue };
            self.leave_other(id, node.known.ino);
            if let Some((dir, name)) = node.name {
                self.unlist(dir, &name, id);
                at.push(dir);
            }
        }
    }

    fn unlist(&mut self, dir: u64, name: &[u8], id: u64) {
        if let Some(parent) = self.nodes.get_mut(&dir)
            && parent.children.get(name) == Some(&id)
        {
            parent.children.remove(name);
            parent.losses += 1;
            parent.listing_epoch = None;
        }
    }

    // ---- validity ------------------------------------------------------------------------------------------------------

    /// The number a file has at the other side.
    pub(super) fn ino(&self, id: u64) -> u64 {
        self.nodes.get(&id).map_or(0, |node| node.known.ino)
    }

    /// The number that programs see: the same one at each hard link of a file, so that they recognise it as one file.
    /// It is that of the name that was known first, as long as the file has several names.
    pub(super) fn shown_number(&mut self, id: u64) -> u64 {
        let Some(node) = self.nodes.get(&id).filter(|node| has_several_names(&node.known)) else { return id };
        let ino = node.known.ino;
        if let Some(number) = self.shared.get(&ino) {
            return *number;
        }
        let number = self.ids(ino).first().copied().unwrap_or(id);
        self.shared.insert(ino, number);
        self.shared_numbers.insert(number);
        number
    }

    /// Whether the kernel may know a file: its lookup count is not zero.
    pub(super) fn is_told(&self, id: u64) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.lookups > 0)
    }

    /// The directory and name of a path, as far as the kernel knows.
    pub(super) fn place(&self, path: &RelPath) -> Option<(u64, Vec<u8>)> {
        let (parent, name) = (path.parent()?, path.name()?);
        let dir = parent.components().try_fold(ROOT, |dir, name| self.child(dir, name))?;
        Some((dir, name.to_vec()))
    }

    /// Whether the name in the path of a file was changed.
    pub(super) fn concerns_name_of(&self, id: u64, changed: &Changed) -> bool {
        let Some((dir, name)) = self.nodes.get(&id).and_then(|node| node.name.as_ref()) else { return false };
        let ino = self.ino(*dir);
        changed.names.iter().any(|(at, known)| *at == ino && (known.is_empty() || **known == **name))
    }

    /// Names of a directory and their inodes, in order.
    pub(super) fn names(&self, dir: u64) -> Vec<(Vec<u8>, u64)> {
        let children = self.nodes.get(&dir).map(|node| &node.children);
        let names = children.into_iter().flatten().map(|(name, id)| (name.to_vec(), *id));
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Invalidates the entries that a callback names; returns the files concerned that the kernel may know.
    pub(super) fn invalidate(&mut self, changed: &Changed) -> Vec<u64> {
        let mut concerned = Vec::new();
        if changed.all {
            concerned.extend(self.nodes.keys());
        }
        for (dir_ino, name) in &changed.names {
            for dir in self.ids(*dir_ino) {
                concerned.push(dir);
                let Some(node) = self.nodes.get_mut(&dir) else { continue };
                node.listing_epoch = None;
                match name.is_empty() {
                    true => concerned.extend(node.children.values()),
                    false => concerned.extend(node.children.get(&name[..])),
                }
            }
        }
        concerned.extend(changed.nodes.iter().flat_map(|ino| self.ids(*ino)));
        concerned.sort_unstable();
        concerned.dedup();
        for id in &concerned {
            if let Some(node) = self.nodes.get_mut(id) {
                node.attr_epoch = None;
            }
        }
        concerned.retain(|id| *id == ROOT || self.is_told(*id));
        concerned
    }

    /// Detaches the names of a directory that a complete listing did not have.
    pub(super) fn keep_listed(&mut self, dir: u64, listing: u64) {
        let stays = |node: &Inode| node.listed == listing || node.is_ahead();
        let was_listed = |id: &u64| self.nodes.get(id).is_some_and(stays);
        let children = self.nodes.get(&dir).map(|node| &node.children);
        let gone = children.into_iter().flatten().filter(|(_, id)| !was_listed(id));
        let gone: Vec<Name> = gone.map(|(name, _)| name.clone()).collect();
        gone.iter().for_each(|name| self.detach(dir, name));
    }

    /// The inodes that have a number at the other side.
    fn ids(&self, ino: u64) -> Vec<u64> {
        let own = self.nodes.get(&ino).filter(|node| node.known.ino == ino).map(|_| ino);
        own.into_iter().chain(self.others.get(&ino).into_iter().flatten().copied()).collect()
    }

    /// All open files.
    pub(super) fn open(&self) -> Vec<(u64, Arc<OpenInode>)> {
        self.nodes.iter().filter_map(|(id, node)| Some((*id, node.content.clone()?))).collect()
    }
}

impl Inode {
    fn new(known: InodeAttr) -> Self {
        Inode {
            lookups: 0,
            name: None,
            children: HashMap::new(),
            known,
            attr_epoch: None,
            listing_epoch: None,
            is_looked_up: false,
            losses: 0,
            listed: 0,
            cached: None,
            content: None,
        }
    }

    fn lose_link(&mut self) {
        self.known.links = self.known.links.saturating_sub(1);
    }

    /// Number of users of the open file.
    pub(super) fn users(&self) -> usize {
        self.content.as_ref().map_or(0, |content| content.users.load(Ordering::Relaxed))
    }

    /// Whether the file that was found is this one; then its attributes are updated. An inode with unpublished data
    /// stays as it is, even if the file is written elsewhere.
    fn takes(&mut self, known: InodeAttr) -> bool {
        if self.is_ahead() {
            return true;
        }
        let is_same = self.known.is_file(&known, self.users() > 0);
        if is_same {
            self.known = known;
        }
        is_same
    }

    /// Whether there is unpublished data here.
    pub(super) fn is_ahead(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.is_ahead())
    }

    /// Whether the file was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.name.is_none()
    }

    fn is_unused(&self) -> bool {
        self.lookups == 0 && self.children.is_empty() && self.content.is_none()
    }
}

/// Whether a file has hard links.
pub(super) fn has_several_names(known: &InodeAttr) -> bool {
    known.kind == FileType::RegularFile && known.links > 1
}

fn gone(id: u64) -> Error {
    Error::new(Code::PathNotFound, "find", format_args!("file {id}"), "it was removed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::FileTime;

    fn known(ino: u64, kind: FileType, links: u32) -> InodeAttr {
        let time = FileTime::default();
        InodeAttr {
            ino,
            kind,
            size: 0,
            blocks: 0,
            mode: 0o644,
            links,
            uid: 0,
            gid: 0,
            mtime: time,
            ctime: time,
        }
    }

    fn file(ino: u64) -> InodeAttr {
        known(ino, FileType::RegularFile, 1)
    }

    fn dir(ino: u64) -> InodeAttr {
        known(ino, FileType::Directory, 2)
    }

    fn told(table: &mut InodeTable, parent: u64, name: &[u8], known: InodeAttr) -> u64 {
        let id = table.enter(parent, name, known);
        table.count(id);
        id
    }

    fn path(table: &InodeTable, id: u64) -> String {
        table.path(id).unwrap().to_string()
    }

    #[test]
    fn a_renamed_directory_moves_its_entries() {
        let mut table = InodeTable::new(dir(2));
        let a = told(&mut table, ROOT, b"a", dir(10));
        let b = told(&mut table, a, b"b", dir(11));
        let f = told(&mut table, b, b"f", file(12));
        table.rename((ROOT, b"a"), (ROOT, b"z"));
        assert_eq!(path(&table, f), "z/b/f");
        assert_eq!((table.child(ROOT, b"a"), table.child(ROOT, b"z")), (None, Some(a)));
        table.rename((a, b"b"), (ROOT, b"b"));
        assert_eq!(path(&table, f), "b/f");
    }

    #[test]
    fn forgotten_inodes_are_removed_with_their_parents() {
        let mut table = InodeTable::new(dir(2));
        let a = told(&mut table, ROOT, b"a", dir(10));
        let f = told(&mut table, a, b"f", file(11));
        table.count(f);
        table.forget(a, 1);
        assert_eq!(table.len(), 3, "the directory of a known file stays");
        table.forget(f, 1);
        assert_eq!(table.len(), 3);
        table.forget(f, 1);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn another_file_of_the_same_name_is_another_file() {
        let mut table = InodeTable::new(dir(2));
        let old = told(&mut table, ROOT, b"f", file(10));
        assert_eq!(table.enter(ROOT, b"f", file(10)), old);
        let new = told(&mut table, ROOT, b"f", file(11));
        assert_ne!(old, new);
        assert_eq!(table.child(ROOT, b"f"), Some(new));
        assert_eq!(path(&table, old), "f", "what is written there still has a place to go");
        table.forget(old, 1);
        assert_eq!(table.child(ROOT, b"f"), Some(new));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn each_name_of_a_file_is_written_independently() {
        let mut table = InodeTable::new(dir(2));
        let two = known(10, FileType::RegularFile, 2);
        let a = told(&mut table, ROOT, b"a", file(10));
        let (b, others) = table.link(ROOT, b"b", two);
        table.count(b);
        assert_eq!(others, [a]);
        assert_eq!((path(&table, a).as_str(), path(&table, b).as_str()), ("a", "b"));
        let links = |table: &mut InodeTable| [a, b].map(|id| table.node(id).unwrap().known.links);
        assert_eq!(links(&mut table), [2, 2]);
        assert_eq!([b, a].map(|id| table.shown_number(id)), [10, 10], "programs see that it is one file");
        // The new version belongs to the first name alone.
        assert_eq!(table.publish(a, file(20)), [b]);
        assert_eq!((path(&table, a).as_str(), path(&table, b).as_str()), ("a", "b"));
        assert_eq!(links(&mut table), [1, 1]);
        let shown = [a, b].map(|id| table.shown_number(id));
        assert_ne!(shown[0], shown[1]);
    }

    #[test]
    fn names_of_one_file_share_an_inode_number() {
        let mut table = InodeTable::new(dir(2));
        // A file that keeps the number it had before its new version.
        let a = told(&mut table, ROOT, b"a", file(10));
        table.publish(a, file(11));
        let three = known(10, FileType::RegularFile, 3);
        let [b, c] = [b"b", b"c"].map(|name| told(&mut table, ROOT, name, three));
        let number = table.shown_number(c);
        assert_eq!((number, table.shown_number(b)), (b, b));
        assert_ne!(number, table.shown_number(a));
        // The kernel forgets the name whose number is shown.
        table.forget(b, 1);
        let d = told(&mut table, ROOT, b"d", three);
        assert_eq!([c, d].map(|id| table.shown_number(id)), [number, number]);
        // A new version under one name is another file.
        table.publish(d, file(12));
        assert_eq!(table.shown_number(c), number);
        assert_ne!(table.shown_number(d), number);
        [c, d, a].into_iter().for_each(|id| table.forget(id, 1));
        assert_eq!((table.len(), table.shared.len(), table.shared_numbers.len()), (1, 0, 0));
    }

    #[test]
    fn removing_a_name_lowers_the_link_count_of_the_others() {
        let mut table = InodeTable::new(dir(2));
        let three = known(10, FileType::RegularFile, 3);
        let [a, b, c] = [b"a", b"b", b"c"].map(|name| told(&mut table, ROOT, name, three));
        assert_eq!(table.remove(ROOT, b"a"), [b, c]);
        assert_eq!([b, c].map(|id| table.node(id).unwrap().known.links), [2, 2]);
        let d = told(&mut table, ROOT, b"d", file(11));
        assert_eq!(table.rename((ROOT, b"d"), (ROOT, b"b")), [a, c], "who has the first one open as well");
        assert_eq!((table.node(c).unwrap().known.links, path(&table, d).as_str()), (1, "b"));
    }

    #[test]
    fn removed_inodes_have_no_path() {
        let mut table = InodeTable::new(dir(2));
        let f = told(&mut table, ROOT, b"f", file(10));
        table.remove(ROOT, b"f");
        assert_eq!(table.path(f).unwrap_err().code, Code::PathNotFound);
        assert_eq!(table.node(f).unwrap().known.links, 0);
        let again = told(&mut table, ROOT, b"f", file(10));
        assert_ne!(again, f, "a number in use is not given again");
        table.forget(f, 1);
        assert_eq!(table.child(ROOT, b"f"), Some(again));
    }

    #[test]
    fn a_rename_over_a_file_removes_it_and_between_links_does_nothing() {
        let mut table = InodeTable::new(dir(2));
        let a = told(&mut table, ROOT, b"a", file(10));
        let b = told(&mut table, ROOT, b"b", file(11));
        table.rename((ROOT, b"a"), (ROOT, b"b"));
        assert!(table.node(b).unwrap().is_removed());
        assert_eq!((path(&table, a).as_str(), table.child(ROOT, b"a")), ("b", None));
        let two = known(12, FileType::RegularFile, 2);
        let [c, d] = [b"c", b"d"].map(|name| told(&mut table, ROOT, name, two));
        table.rename((ROOT, b"c"), (ROOT, b"d"));
        // The kernel has the first file under the new name now, and looks up the old one.
        assert_eq!((table.child(ROOT, b"c"), table.child(ROOT, b"d")), (Some(d), Some(c)));
        assert_eq!((path(&table, c).as_str(), path(&table, d).as_str()), ("d", "c"));
    }

    #[test]
    fn a_rename_of_an_uncached_name_marks_directories_incomplete() {
        let mut table = InodeTable::new(dir(2));
        let a = told(&mut table, ROOT, b"a", dir(10));
        for dir in [ROOT, a] {
            table.node(dir).unwrap().listing_epoch = Some(1);
        }
        table.rename((a, b"f"), (ROOT, b"f"));
        assert!([ROOT, a].iter().all(|dir| table.node(*dir).unwrap().listing_epoch.is_none()));
    }
}
