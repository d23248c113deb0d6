//! Walks a source tree and passes its entries to a sink as they are found.
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
use std::collections::{HashMap, HashSet};
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

/// Receives the findings of a walk.
pub trait Sink {
    /// An entry, with its path at the destination; false stops the walk.
    fn on_entry(&mut self, origin: Origin, entry: Entry) -> bool;
    /// An entry that could not be read; false stops the walk.
    fn on_failed(&mut self, path: RelPath, error: Error) -> bool;
    /// From this file on, hard-linked files may be sent once per name; called once.
    fn on_links_forgotten(&mut self, path: RelPath, error: Error);
}

/// Walks all roots; `recursive` as in `cp -r`. Names that `filter` excludes are skipped, with all below them.
pub fn walk(roots: &[Root], recursive: bool, filter: &Filter, sink: &mut dyn Sink) {
    walk_within(&BOUNDS, roots, recursive, filter, sink);
}

/// Memory limits of a walk.
struct Bounds {
    part_names: usize,
    listings: usize,
    link_bytes: usize,
}

const BOUNDS: Bounds = Bounds { part_names: PART_NAMES, listings: MAX_LISTINGS, link_bytes: MAX_LINK_BYTES };

fn walk_within(bounds: &Bounds, roots: &[Root], recursive: bool, filter: &Filter, sink: &mut dyn Sink) {
    let (mut links, matcher) = (Links::new(bounds.link_bytes), filter.matcher());
    let parents: HashSet<_> = roots.iter().filter_map(|root| Some((id(root), root.from.parent()?))).collect();
    for (source, root) in (0u32..).zip(roots) {
        let (from, to) = (root.from.clone(), root.to.clone());
        let top = match filter.means_contents(source as usize) {
            true => root.from.clone(),
            false => root.from.parent().unwrap_or_default(),
        };
        let links = &mut links;
        let matcher = &matcher;
        let holds_others = root.alone && parents.contains(&(id(root), from.clone()));
        let levels = Vec::new();
        let mut walk =
            Walk { bounds, sink, links, root, source, matcher, top, holds_others, levels, from, to };
        if !walk.run(recursive) {
            return;
        }
    }
}

/// Identity of the directory that a root's paths are relative to.
fn id(root: &Root) -> *const () {
    Arc::as_ptr(&root.dir).cast()
}

/// The walk of one root.
struct Walk<'a> {
    bounds: &'a Bounds,
    sink: &'a mut dyn Sink,
    links: &'a mut Links,
    root: &'a Root,
    source: u32,
    matcher: &'a Matcher,
    /// Base of the filter's paths.
    top: RelPath,
    /// Whether other roots lie in this directory; a link that replaced it meanwhile is not sent.
    holds_others: bool,
    /// The directories on the current path, the deepest last.
    levels: Vec<Level>,
    /// The deepest directory at the source, and at the destination.
    from: RelPath,
    to: RelPath,
}

/// A directory on the way down.
struct Level {
    /// Lengths of its paths, which are prefixes of the deepest directory's.
    from_bytes: usize,
    to_bytes: usize,
    /// Subdirectories that were found and not yet entered, the next one last.
    dirs: Vec<Box<[u8]>>,
    /// The remainder of its listing.
    rest: Option<(Listing, Arc<dyn Dir>)>,
}

impl Walk<'_> {
    fn run(&mut self, recursive: bool) -> bool {
        let (entry, raw) = match self.look_at_root() {
            Ok(found) => found,
            Err(error) => return self.deny(&self.from.clone(), self.to.clone(), error),
        };
        let is_dir = entry.kind == EntryKind::Dir;
        if !self.is_in(&self.from, is_dir) {
            return true;
        }
        if self.holds_others && !is_dir {
            let error =
                Error::new(Code::NotADirectory, "walk", &entry.path, "it was a directory a moment ago");
            return self.fail(self.to.clone(), error);
        }
        let descends = is_dir && !self.root.alone;
        if descends && !recursive {
            let error = Error::new(Code::IsADirectory, "walk", &entry.path, "omitted without -r");
            return self.fail(self.to.clone(), error);
        }
        let (from, to) = (self.from.clone(), self.to.clone());
        self.entry(from.clone(), to.clone(), entry, raw)
            && (!descends || self.enter(from, to) && self.descend())
    }

    fn look_at_root(&self) -> Result<(Entry, Raw), Error> {
        let Some((parent, name)) = self.from.split() else { return self.root.dir.self_entry(Detail::Full) };
        self.root.dir.descend(&RelPath::parse(parent)?)?.entry(name, Detail::Full)
    }

    /// Walks all below the root, depth first.
    fn descend(&mut self) -> bool {
        while let Some(level) = self.levels.last_mut() {
            let goes_on = if let Some(name) = level.dirs.pop() {
                self.enter_child(&name)
            } else if let Some((listing, dir)) = level.rest.take() {
                self.list(listing, dir)
            } else {
                self.leave();
                true
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    fn enter_child(&mut self, name: &[u8]) -> bool {
        match self.paths_of(name) {
            Ok((from, to)) => self.enter(from, to),
            Err(error) => self.fail(self.to.clone(), error),
        }
    }

    fn enter(&mut self, from: RelPath, to: RelPath) -> bool {
        match self.root.dir.descend(&from).and_then(|dir| Ok((dir.list()?, dir))) {
            Ok(rest) => {
                let (from_bytes, to_bytes) = (from.as_bytes().len(), to.as_bytes().len());
                self.levels.push(Level { from_bytes, to_bytes, dirs: Vec::new(), rest: Some(rest) });
                (self.from, self.to) = (from, to);
                true
            }
            Err(error) => self.deny(&from, to, error),
        }
    }

    /// Reports an entry that could not be read, with the account that was denied and the owner.
    fn deny(&mut self, from: &RelPath, to: RelPath, error: Error) -> bool {
        let error = unreadable(&*self.root.dir, from, error);
        self.fail(to, error)
    }

    fn leave(&mut self) {
        self.levels.pop();
        if let Some(level) = self.levels.last() {
            self.from = above(&self.from, level.from_bytes);
            self.to = above(&self.to, level.to_bytes);
        }
    }

    /// Lists a batch of the deepest directory, or all that is left of it if too many are open.
    fn list(&mut self, mut listing: Listing, dir: Arc<dyn Dir>) -> bool {
        loop {
            let part: Result<Vec<Listed>, Error> = listing.by_ref().take(self.bounds.part_names).collect();
            let mut part = match part {
                Ok(part) => part,
                Err(error) => return self.fail(self.to.clone(), error),
            };
            part.sort_unstable_by_key(|listed| listed.ino);
            if !part.iter().all(|listed| self.name(&*dir, &listed.name)) {
                return false;
            }
            let at_end = part.len() < self.bounds.part_names;
            let open = self.levels.iter().filter(|level| level.rest.is_some()).count();
            if at_end || open < self.bounds.listings {
                let Some(level) = self.levels.last_mut() else { return true };
                level.dirs.reverse();
                level.rest = (!at_end).then_some((listing, dir));
                return true;
            }
        }
    }

    fn name(&mut self, dir: &dyn Dir, name: &[u8]) -> bool {
        if is_temp_name(name) {
            return true;
        }
        let (from, to) = match self.paths_of(name) {
            Ok(paths) => paths,
            Err(error) => return self.fail(self.to.clone(), error),
        };
        let (entry, raw) = match dir.entry(name, Detail::Full) {
            Ok(found) => found,
            Err(error) => return self.deny(&from, to, vanished(error)),
        };
        if !self.is_in(&from, entry.kind == EntryKind::Dir) {
            return true;
        }
        if let (EntryKind::Dir, Some(level)) = (&entry.kind, self.levels.last_mut()) {
            level.dirs.push(name.into());
        }
        self.entry(from, to, entry, raw)
    }

    /// Whether the filter includes a path of the source; the top itself always is.
    fn is_in(&self, from: &RelPath, is_dir: bool) -> bool {
        let below = |path: &RelPath| path.below(&self.top).filter(|path| !path.is_root());
        self.matcher.is_empty()
            || below(from).is_none_or(|path| self.matcher.includes(path.as_bytes(), is_dir))
    }

    fn fail(&mut self, to: RelPath, error: Error) -> bool {
        let error = self.root.name(error);
        self.sink.on_failed(to, error)
    }

    /// The paths of a name in the deepest directory.
    fn paths_of(&self, name: &[u8]) -> Result<(RelPath, RelPath), Error> {
        Ok((self.from.child(name)?, self.to.child(name)?))
    }

    fn entry(&mut self, from: RelPath, to: RelPath, mut entry: Entry, raw: Raw) -> bool {
        if raw.nlink > 1 && matches!(entry.kind, EntryKind::File { .. }) {
            match self.links.first_name(&raw, &to) {
                Met::Before(first) => entry.kind = EntryKind::HardLink { to: first },
                Met::First => {}
                Met::Forgotten => {
                    let error = self.root.error(Code::TooManyEntries, "remember links", &from, FORGOTTEN);
                    self.sink.on_links_forgotten(to.clone(), error);
                }
            }
        }
        entry.path = to;
        self.sink.on_entry(Origin { source: self.source, path: from }, entry)
    }
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

    /// Collects all findings.
    #[derive(Default)]
    struct Kept {
        entries: Vec<(Origin, Entry)>,
        failed: Vec<(RelPath, Error)>,
        forgotten: Vec<(RelPath, Error)>,
    }

    impl Sink for Kept {
        fn on_entry(&mut self, origin: Origin, entry: Entry) -> bool {
            self.entries.push((origin, entry));
            true
        }

        fn on_failed(&mut self, path: RelPath, error: Error) -> bool {
            self.failed.push((path, error));
            true
        }

        fn on_links_forgotten(&mut self, path: RelPath, error: Error) {
            self.forgotten.push((path, error));
        }
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
        let roots: Vec<Root> = (0..SOURCES).map(root).collect();
        let mut kept = Kept::default();
        walk(&roots, true, &Filter::default(), &mut kept);
        assert!(kept.entries.iter().map(|(origin, _)| origin.source).eq(0..SOURCES));
    }

    fn found(bounds: &Bounds, folder: &tempfile::TempDir) -> Kept {
        let mut kept = Kept::default();
        let root = Root {
            dir: open(folder),
            from: RelPath::root(),
            to: path("to"),
            alone: false,
            shown: String::new(),
        };
        walk_within(bounds, &[root], true, &Filter::default(), &mut kept);
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
        let kept = found(&BOUNDS, &folder);
        assert_eq!((kept.entries.len(), ending(&kept, "/f").len()), (1 + 2 * DIRS, DIRS));
        // The top itself has no file.
        assert!(most_pending(&kept) <= PART_NAMES + 1, "{}", most_pending(&kept));
    }

    #[test]
    fn wide_directories_within_wide_ones_are_found_whole() {
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
        let kept = found(&Bounds { part_names: 3, listings: 2, ..BOUNDS }, &folder);
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
    fn a_directory_alone_comes_without_what_is_in_it() {
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
        let mut kept = Kept::default();
        walk(&[root("d", true), root("d/f", false)], false, &Filter::default(), &mut kept);
        let paths: Vec<_> = kept.entries.iter().map(|(_, entry)| entry.path.to_string()).collect();
        assert_eq!((paths, kept.failed.len()), (vec!["d".to_owned(), "d/f".to_owned()], 0));
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_not_sent_for_it() {
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
        let mut kept = Kept::default();
        let roots = [root("d", true), root("d/f", false), root("named", true)];
        walk(&roots, false, &Filter::default(), &mut kept);
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
        let kept = found(&Bounds { link_bytes: 3 * (LINK_BYTES + 8), ..BOUNDS }, &folder);
        assert_eq!((links(&kept), kept.forgotten.len()), (52, 0));
    }

    #[test]
    fn beyond_the_bound_names_become_files_and_one_failure_says_so() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        for index in 0..50 {
            link(&folder, &format!("b{index}"), &[&format!("sub/c{index}")]);
        }
        let kept = found(&Bounds { link_bytes: 10 * (LINK_BYTES + "to/b10".len()), ..BOUNDS }, &folder);
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
            let mut kept = Kept::default();
            walk(std::slice::from_ref(&root), true, &Filter::default(), &mut kept);
            let (to, error) = kept.failed.pop().unwrap();
            let own = root.error(Code::SourceChanged, "read", &path(from), "").subject;
            assert!(own.starts_with(&error.subject), "{own} {}", error.subject);
            (to, error.code, error.subject)
        };
        let is = |subject: &str| (path("to"), Code::PathNotFound, subject.to_owned());
        assert_eq!(shown("missing", "/data"), is("/data/run/missing"));
        assert_eq!(shown("missing", "here/"), is("here/run/missing"));
        assert_eq!(shown("sub/missing", ""), is("run/sub"));
    }
}
