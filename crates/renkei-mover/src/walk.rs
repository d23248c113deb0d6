//! Walks a source tree, as an iterator over its entries.
//!
//! Parents come before their children. A directory is read in batches of `PART_NAMES`; the subdirectories found in a
//! batch are entered before the next batch is read. So memory does not grow with the number of names: each level of
//! the tree keeps the directories of one batch by name. A directory that fits into one batch is closed before
//! anything below it is opened; of larger ones at most `MAX_LISTINGS` stay open one within the other, and one still
//! deeper is read to its end first, keeping the names of all directories in it.
//!
//! Hard-linked files are remembered until their last name was found, in at most `MAX_LINK_BYTES`; beyond that they
//! are sent as separate files, and one failure reports that.
//!
//! Names within a batch come in inode order, which saves disk seeks. Symbolic links are never followed; temporary
//! names of unfinished copies are skipped.

use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error, SIDE_UNKNOWN};
use renkei_core::mover::filter::{Filter, Matcher};
use renkei_core::mover::plan::Origin;
use renkei_core::path::RelPath;
use renkei_store::permission_denied::unreadable;
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir, Listed, Listing, Raw};
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Names sorted and examined together.
const PART_NAMES: usize = 4096;
/// Most directories kept open while their subdirectories are read; each takes two descriptors.
const MAX_LISTINGS: usize = 32;
/// Memory for the first names of hard-linked files with names still to be found: about a million and a half files.
const MAX_LINK_BYTES: usize = 256 << 20;
/// Memory per remembered file beside its path: a slot in a half-full hash table, and the allocator's share.
const LINK_BYTES: usize = 128;

/// Cause given for names that may be sent as separate files.
const FORGOTTEN: &str = "too many hard-linked files; from here on each name may be sent as a file of its own";

/// A source to send.
pub struct Root {
    /// The directory that origins are relative to.
    pub dir: Arc<dyn Dir>,
    /// The source below `dir`; the root path for `dir` itself.
    pub from: RelPath,
    /// Its path below the destination.
    pub to: RelPath,
    /// Only the directory, without its content.
    pub alone: bool,
    /// Prefix of the paths of `dir`'s store in errors, so that they show names as the user gave them.
    pub shown: String,
}

impl Root {
    /// Completes an error of the source's store with the prefix.
    pub(super) fn name(&self, error: Error) -> Error {
        if self.shown.is_empty() || error.side != SIDE_UNKNOWN {
            return error;
        }
        let slash = if error.subject.is_empty() || self.shown.ends_with('/') { "" } else { "/" };
        Error { subject: format!("{}{slash}{}", self.shown, error.subject), ..error }
    }

    /// An error of an entry of the source, named like those of its store.
    pub(super) fn error(&self, code: Code, op: &str, path: &RelPath, cause: &str) -> Error {
        self.name(Error::new(code, op, self.in_store(path), cause))
    }

    /// A path of the source as it appears in its store's errors.
    pub(super) fn in_store(&self, path: &RelPath) -> RelPath {
        self.dir.path().join(path).unwrap_or_else(|_| path.clone())
    }
}

/// One finding of a walk.
#[derive(Debug)]
pub enum Finding {
    /// An entry, with its path at the destination.
    Entry(Origin, Entry),
    /// An entry that could not be read, by its path at the destination.
    Failed(RelPath, Error),
    /// From this file on, hard-linked files may be sent once per name; found once at most.
    LinksForgotten(RelPath, Error),
}

/// Memory limits of a walk.
struct Bounds {
    part_names: usize,
    listings: usize,
    link_bytes: usize,
}

const BOUNDS: Bounds = Bounds { part_names: PART_NAMES, listings: MAX_LISTINGS, link_bytes: MAX_LINK_BYTES };

/// The walk over all sources, as an iterator over its findings.
pub struct Walk {
    bounds: Bounds,
    roots: Arc<[Root]>,
    /// As in `cp -r`.
    recursive: bool,
    filter: Filter,
    matcher: Matcher,
    links: Links,
    /// Directories in which other sources lie.
    parents: HashSet<(usize, RelPath)>,
    /// Number of the present source, and of the next one.
    source: u32,
    next_source: u32,
    /// Base of the filter's paths.
    top: RelPath,
    /// The source is a directory that is not entered yet.
    is_outside: bool,
    /// The directories on the current path, the deepest last.
    levels: Vec<Level>,
    /// The deepest directory at the source, and at the destination.
    from: RelPath,
    to: RelPath,
    /// The finding after a notice about the same entry.
    after_notice: Option<Finding>,
}

/// A directory on the way down.
struct Level {
    /// Lengths of its paths, which are prefixes of the deepest directory's.
    from_bytes: usize,
    to_bytes: usize,
    /// The handle, as long as names are left in it.
    dir: Option<Arc<dyn Dir>>,
    /// Names of the present batch that were not examined yet.
    batch: std::vec::IntoIter<Listed>,
    /// The remainder of its listing.
    rest: Option<Listing>,
    /// Subdirectories that were found and not yet entered.
    dirs: VecDeque<Box<[u8]>>,
}

impl Iterator for Walk {
    type Item = Finding;

    fn next(&mut self) -> Option<Finding> {
        loop {
            let found = if let Some(finding) = self.after_notice.take() {
                Some(finding)
            } else if std::mem::take(&mut self.is_outside) {
                self.enter(self.from.clone(), self.to.clone())
            } else if self.levels.is_empty() {
                self.begin_source()?
            } else {
                self.step()
            };
            if found.is_some() {
                return found;
            }
        }
    }
}

impl Walk {
    /// A walk over all roots; `recursive` as in `cp -r`. Names that `filter` excludes are skipped, with all below
    /// them.
    pub fn new(roots: Arc<[Root]>, recursive: bool, filter: Filter) -> Self {
        Self::within(BOUNDS, roots, recursive, filter)
    }

    fn within(bounds: Bounds, roots: Arc<[Root]>, recursive: bool, filter: Filter) -> Self {
        Walk {
            parents: roots.iter().filter_map(|root| Some((id(root), root.from.parent()?))).collect(),
            links: Links::new(bounds.link_bytes),
            matcher: filter.matcher(),
            bounds,
            roots,
            recursive,
            filter,
            source: 0,
            next_source: 0,
            top: RelPath::root(),
            is_outside: false,
            levels: Vec::new(),
            from: RelPath::root(),
            to: RelPath::root(),
            after_notice: None,
        }
    }

    fn root(&self) -> &Root {
        &self.roots[self.source as usize]
    }

    /// Begins the next source; `None` after the last, `Some(None)` for one without a finding of its own.
    fn begin_source(&mut self) -> Option<Option<Finding>> {
        let root = self.roots.get(self.next_source as usize)?;
        self.source = self.next_source;
        self.next_source += 1;
        (self.from, self.to) = (root.from.clone(), root.to.clone());
        self.top = match self.filter.means_contents(self.source as usize) {
            true => root.from.clone(),
            false => root.from.parent().unwrap_or_default(),
        };
        Some(self.find_root())
    }

    fn find_root(&mut self) -> Option<Finding> {
        let (from, to) = (self.from.clone(), self.to.clone());
        let (entry, raw) = match self.look_at_root() {
            Ok(found) => found,
            Err(error) => return Some(self.denied(&from, to, error)),
        };
        let is_dir = entry.kind == EntryKind::Dir;
        if !self.is_in(&from, is_dir) {
            return None;
        }
        if self.holds_others() && !is_dir {
            let cause = "it was a directory a moment ago";
            return Some(self.failed(to, Error::new(Code::NotADirectory, "walk", &entry.path, cause)));
        }
        let descends = is_dir && !self.root().alone;
        if descends && !self.recursive {
            let error = Error::new(Code::IsADirectory, "walk", &entry.path, "omitted without -r");
            return Some(self.failed(to, error));
        }
        self.is_outside = descends;
        Some(self.found(from, to, entry, raw))
    }

    /// Whether other sources lie in this directory; a link that replaced it meanwhile is not sent.
    fn holds_others(&self) -> bool {
        let root = self.root();
        root.alone && self.parents.contains(&(id(root), root.from.clone()))
    }

    fn look_at_root(&self) -> Result<(Entry, Raw), Error> {
        let dir = &self.root().dir;
        let Some((parent, name)) = self.from.split() else { return dir.self_entry(Detail::Full) };
        dir.descend(&RelPath::parse(parent)?)?.entry(name, Detail::Full)
    }

    /// Does the next piece of work in the deepest directory.
    fn step(&mut self) -> Option<Finding> {
        if let Some((dir, name)) = self.next_name() {
            return self.examine(&*dir, &name);
        }
        let open = self.levels.iter().filter(|level| level.rest.is_some()).count();
        let level = self.levels.last_mut()?;
        if level.rest.is_none() {
            level.dir = None;
        } else if level.dirs.is_empty() || open > self.bounds.listings {
            return self.list();
        }
        match level.dirs.pop_front() {
            Some(name) => self.enter_child(&name),
            None => {
                self.leave();
                None
            }
        }
    }

    fn next_name(&mut self) -> Option<(Arc<dyn Dir>, Vec<u8>)> {
        let level = self.levels.last_mut()?;
        let listed = level.batch.next()?;
        Some((level.dir.clone()?, listed.name))
    }

    fn enter_child(&mut self, name: &[u8]) -> Option<Finding> {
        match self.paths_of(name) {
            Ok((from, to)) => self.enter(from, to),
            Err(error) => Some(self.failed(self.to.clone(), error)),
        }
    }

    fn enter(&mut self, from: RelPath, to: RelPath) -> Option<Finding> {
        let opened = self.root().dir.descend(&from).and_then(|dir| Ok((dir.list()?, dir)));
        let (rest, dir) = match opened {
            Ok(opened) => opened,
            Err(error) => return Some(self.denied(&from, to, error)),
        };
        self.levels.push(Level {
            from_bytes: from.as_bytes().len(),
            to_bytes: to.as_bytes().len(),
            dir: Some(dir),
            batch: Vec::new().into_iter(),
            rest: Some(rest),
            dirs: VecDeque::new(),
        });
        (self.from, self.to) = (from, to);
        None
    }

    /// An entry that could not be read, with the account that was denied and the owner.
    fn denied(&self, from: &RelPath, to: RelPath, error: Error) -> Finding {
        self.failed(to, unreadable(&*self.root().dir, from, error))
    }

    fn failed(&self, to: RelPath, error: Error) -> Finding {
        Finding::Failed(to, self.root().name(error))
    }

    fn leave(&mut self) {
        self.levels.pop();
        if let Some(level) = self.levels.last() {
            self.from = above(&self.from, level.from_bytes);
            self.to = above(&self.to, level.to_bytes);
        }
    }

    /// Lists a batch of the deepest directory.
    fn list(&mut self) -> Option<Finding> {
        let level = self.levels.last_mut()?;
        let listing = level.rest.as_mut()?;
        let batch: Result<Vec<Listed>, Error> = listing.take(self.bounds.part_names).collect();
        let mut batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                level.rest = None;
                return Some(self.failed(self.to.clone(), error));
            }
        };
        if batch.len() < self.bounds.part_names {
            level.rest = None;
        }
        batch.sort_unstable_by_key(|listed| listed.ino);
        level.batch = batch.into_iter();
        None
    }

    fn examine(&mut self, dir: &dyn Dir, name: &[u8]) -> Option<Finding> {
        if is_temp_name(name) {
            return None;
        }
        let (from, to) = match self.paths_of(name) {
            Ok(paths) => paths,
            Err(error) => return Some(self.failed(self.to.clone(), error)),
        };
        let (entry, raw) = match dir.entry(name, Detail::Full) {
            Ok(found) => found,
            Err(error) => return Some(self.denied(&from, to, vanished(error))),
        };
        if !self.is_in(&from, entry.kind == EntryKind::Dir) {
            return None;
        }
        if let (EntryKind::Dir, Some(level)) = (&entry.kind, self.levels.last_mut()) {
            level.dirs.push_back(name.into());
        }
        Some(self.found(from, to, entry, raw))
    }

    /// Whether the filter includes a path of the source; the top itself always is.
    fn is_in(&self, from: &RelPath, is_dir: bool) -> bool {
        let below = |path: &RelPath| path.below(&self.top).filter(|path| !path.is_root());
        self.matcher.is_empty()
            || below(from).is_none_or(|path| self.matcher.includes(path.as_bytes(), is_dir))
    }

    /// The paths of a name in the deepest directory.
    fn paths_of(&self, name: &[u8]) -> Result<(RelPath, RelPath), Error> {
        Ok((self.from.child(name)?, self.to.child(name)?))
    }

    fn found(&mut self, from: RelPath, to: RelPath, mut entry: Entry, raw: Raw) -> Finding {
        let mut notice = None;
        if raw.nlink > 1 && matches!(entry.kind, EntryKind::File { .. }) {
            match self.links.first_name(&raw, &to) {
                Met::Before(first) => entry.kind = EntryKind::HardLink { to: first },
                Met::First => {}
                Met::Forgotten => {
                    let error = self.root().error(Code::TooManyEntries, "remember links", &from, FORGOTTEN);
                    notice = Some(Finding::LinksForgotten(to.clone(), error));
                }
            }
        }
        entry.path = to;
        let found = Finding::Entry(Origin { source: self.source, path: from }, entry);
        match notice {
            Some(notice) => {
                self.after_notice = Some(found);
                notice
            }
            None => found,
        }
    }
}

/// Identity of the directory that a root's paths are relative to.
fn id(root: &Root) -> usize {
    Arc::as_ptr(&root.dir).cast::<()>().addr()
}

/// The ancestor of `path` whose path has this length.
fn above(path: &RelPath, bytes: usize) -> RelPath {
    RelPath::parse(&path.as_bytes()[..bytes]).expect("it was the path of a directory above")
}

/// Hard-linked files with names still to be found.
struct Links {
    first_names: HashMap<(u64, u64), First>,
    bytes: usize,
    max_bytes: usize,
    told: bool,
}

struct First {
    /// Its first name at the destination.
    path: RelPath,
    /// Number of names still to be found.
    left: u64,
}

/// Outcome of looking up a hard-linked file.
enum Met {
    /// Found before, under this name.
    Before(RelPath),
    /// Not found before, or not remembered.
    First,
    /// The first file beyond the memory limit.
    Forgotten,
}

impl Links {
    fn new(max_bytes: usize) -> Self {
        Links { first_names: HashMap::new(), bytes: 0, max_bytes, told: false }
    }

    fn first_name(&mut self, raw: &Raw, path: &RelPath) -> Met {
        match self.first_names.entry((raw.dev, raw.ino)) {
            Slot::Occupied(mut known) => {
                known.get_mut().left -= 1;
                if known.get().left > 0 {
                    return Met::Before(known.get().path.clone());
                }
                let first = known.remove().path;
                self.bytes -= LINK_BYTES + first.as_bytes().len();
                Met::Before(first)
            }
            Slot::Vacant(place) => {
                let bytes = LINK_BYTES + path.as_bytes().len();
                if self.bytes + bytes <= self.max_bytes {
                    self.bytes += bytes;
                    place.insert(First { path: path.clone(), left: raw.nlink - 1 });
                } else if !std::mem::replace(&mut self.told, true) {
                    return Met::Forgotten;
                }
                Met::First
            }
        }
    }
}

/// A listed name that is gone has vanished, unlike one that never existed.
pub fn vanished(error: Error) -> Error {
    if error.code == Code::PathNotFound { Error { code: Code::SourceVanished, ..error } } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};

    /// All findings, by kind.
    #[derive(Default)]
    struct Kept {
        entries: Vec<(Origin, Entry)>,
        failed: Vec<(RelPath, Error)>,
        forgotten: Vec<(RelPath, Error)>,
    }

    fn collect(walk: Walk) -> Kept {
        let mut kept = Kept::default();
        for finding in walk {
            match finding {
                Finding::Entry(origin, entry) => kept.entries.push((origin, entry)),
                Finding::Failed(path, error) => kept.failed.push((path, error)),
                Finding::LinksForgotten(path, error) => kept.forgotten.push((path, error)),
            }
        }
        kept
    }

    fn walk(roots: impl Into<Arc<[Root]>>, recursive: bool) -> Kept {
        collect(Walk::new(roots.into(), recursive, Filter::default()))
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn open(folder: &tempfile::TempDir) -> Arc<dyn Dir> {
        LocalStore::open(folder.path(), AccessMode::ReadOnly).unwrap().root().unwrap()
    }

    #[test]
    fn each_of_very_many_sources_has_its_number() {
        const SOURCES: u32 = (1 << 16) + 2;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "").unwrap();
        let dir = open(&folder);
        let root = |index: u32| Root {
            dir: dir.clone(),
            from: path("f"),
            to: path(&format!("f{index}")),
            alone: false,
            shown: String::new(),
        };
        let kept = walk((0..SOURCES).map(root).collect::<Vec<_>>(), true);
        assert!(kept.entries.iter().map(|(origin, _)| origin.source).eq(0..SOURCES));
    }

    fn found(bounds: Bounds, folder: &tempfile::TempDir) -> Kept {
        let root = Root {
            dir: open(folder),
            from: RelPath::root(),
            to: path("to"),
            alone: false,
            shown: String::new(),
        };
        let kept = collect(Walk::within(bounds, [root].into(), true, Filter::default()));
        assert!(kept.failed.is_empty(), "{:?}", kept.failed);
        kept
    }

    /// The paths found that end in `end`, in order.
    fn ending<'k>(kept: &'k Kept, end: &str) -> Vec<(usize, &'k [u8])> {
        let paths = kept.entries.iter().map(|(origin, _)| origin.path.as_bytes()).enumerate();
        paths.filter(|(_, path)| path.ends_with(end.as_bytes())).collect()
    }

    /// Most directories that were found and not yet entered at one time; each holds one file `f`.
    fn most_pending(kept: &Kept) -> usize {
        let (mut pending, mut most) = (0usize, 0);
        for (origin, _) in &kept.entries {
            match origin.path.as_bytes().ends_with(b"/f") {
                true => pending -= 1,
                false => pending += 1,
            }
            most = most.max(pending);
        }
        most
    }

    #[test]
    fn a_wide_directory_is_entered_part_by_part() {
        const DIRS: usize = 3 * PART_NAMES;
        let folder = tempfile::tempdir().unwrap();
        for index in 0..DIRS {
            let dir = folder.path().join(format!("d{index}"));
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join("f"), "").unwrap();
        }
        let kept = found(BOUNDS, &folder);
        assert_eq!((kept.entries.len(), ending(&kept, "/f").len()), (1 + 2 * DIRS, DIRS));
        // The top itself has no file.
        assert!(most_pending(&kept) <= PART_NAMES + 1, "{}", most_pending(&kept));
    }

    #[test]
    fn nested_wide_directories_are_walked_completely() {
        let folder = tempfile::tempdir().unwrap();
        let mut dir = folder.path().to_path_buf();
        for level in 0..6 {
            for index in 0..7 {
                std::fs::create_dir_all(dir.join(format!("d{index}/e"))).unwrap();
                std::fs::write(dir.join(format!("d{index}/e/f")), "").unwrap();
                std::fs::write(dir.join(format!("g{index}")), "").unwrap();
            }
            dir.push(format!("d{level}"));
        }
        let kept = found(Bounds { part_names: 3, listings: 2, ..BOUNDS }, &folder);
        let paths: Vec<_> = kept.entries.iter().map(|(origin, _)| origin.path.as_bytes()).collect();
        let mut seen = std::collections::HashSet::from([&b""[..]]);
        let above = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        assert!(
            paths
                .iter()
                .all(|path| seen.insert(path) | path.is_empty() && seen.contains(&path[..above(path)]))
        );
        for (origin, entry) in &kept.entries {
            assert_eq!(entry.path, path("to").join(&origin.path).unwrap());
        }
        assert_eq!((paths.len(), ending(&kept, "/f").len()), (1 + 6 * 7 * 4, 6 * 7));
    }

    #[test]
    fn a_directory_alone_is_sent_without_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("d/e")).unwrap();
        std::fs::write(folder.path().join("d/f"), "").unwrap();
        let root = |name: &str, alone| Root {
            dir: open(&folder),
            from: path(name),
            to: path(name),
            alone,
            shown: String::new(),
        };
        let kept = walk([root("d", true), root("d/f", false)], false);
        let paths: Vec<_> = kept.entries.iter().map(|(_, entry)| entry.path.to_string()).collect();
        assert_eq!((paths, kept.failed.len()), (vec!["d".to_owned(), "d/f".to_owned()], 0));
    }

    #[test]
    fn a_symlink_in_place_of_a_directory_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("other")).unwrap();
        std::fs::write(folder.path().join("other/f"), "").unwrap();
        for name in ["d", "named"] {
            std::os::unix::fs::symlink("other", folder.path().join(name)).unwrap();
        }
        let dir = open(&folder);
        let root = |name: &str, alone| Root {
            dir: dir.clone(),
            from: path(name),
            to: path(name),
            alone,
            shown: String::new(),
        };
        let kept = walk([root("d", true), root("d/f", false), root("named", true)], false);
        let paths: Vec<_> = kept.entries.iter().map(|(_, entry)| entry.path.to_string()).collect();
        assert_eq!((paths, kept.failed.len()), (vec!["named".to_owned()], 2));
    }

    fn link(folder: &tempfile::TempDir, first: &str, further: &[&str]) {
        std::fs::write(folder.path().join(first), first).unwrap();
        for name in further {
            std::fs::hard_link(folder.path().join(first), folder.path().join(name)).unwrap();
        }
    }

    fn links(kept: &Kept) -> usize {
        kept.entries.iter().filter(|(_, entry)| matches!(entry.kind, EntryKind::HardLink { .. })).count()
    }

    #[test]
    fn a_file_is_remembered_until_its_last_name() {
        let folder = tempfile::tempdir().unwrap();
        link(&folder, "a1", &["a2", "a3"]);
        for index in 0..50 {
            link(&folder, &format!("b{index}"), &[&format!("c{index}")]);
        }
        // Memory for three at a time; names of one file share an inode and so come one after the other.
        let kept = found(Bounds { link_bytes: 3 * (LINK_BYTES + 8), ..BOUNDS }, &folder);
        assert_eq!((links(&kept), kept.forgotten.len()), (52, 0));
    }

    #[test]
    fn links_over_the_limit_are_sent_as_files_with_one_failure() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        for index in 0..50 {
            link(&folder, &format!("b{index}"), &[&format!("sub/c{index}")]);
        }
        let kept = found(Bounds { link_bytes: 10 * (LINK_BYTES + "to/b10".len()), ..BOUNDS }, &folder);
        assert_eq!((kept.entries.len(), links(&kept)), (102, 10));
        let codes: Vec<Code> = kept.forgotten.iter().map(|(_, error)| error.code).collect();
        assert_eq!(codes, [Code::TooManyEntries]);
    }

    #[test]
    fn errors_name_the_source_as_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        let shown = |from: &str, shown: &str| {
            let dir = open(&folder).descend(&path("run")).unwrap();
            let root = Root { dir, from: path(from), to: path("to"), alone: false, shown: shown.into() };
            let roots: Arc<[Root]> = [root].into();
            let (to, error) = walk(roots.clone(), true).failed.pop().unwrap();
            let own = roots[0].error(Code::SourceChanged, "read", &path(from), "").subject;
            assert!(own.starts_with(&error.subject), "{own} {}", error.subject);
            (to, error.code, error.subject)
        };
        let is = |subject: &str| (path("to"), Code::PathNotFound, subject.to_owned());
        assert_eq!(shown("missing", "/data"), is("/data/run/missing"));
        assert_eq!(shown("missing", "here/"), is("here/run/missing"));
        assert_eq!(shown("sub/missing", ""), is("run/sub"));
    }
}
