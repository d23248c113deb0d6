//! The attribute and name cache of the mount: attributes and names that are valid under a lease.
//!
//! An entry is valid, here and in the kernel, until the site calls it back, the lease ends, or an operation of this
//! mount changes it. Callbacks arrive on the thread of the session, which invalidates the entry here and in the
//! kernel before it returns. An answer that was in flight when a callback came is used once and not cached.

use super::Mounted;
use super::attributes::InodeAttr;
use super::inodes::{InodeTable, ROOT, has_several_names};
use fuser::FileType;
use renkei_core::error::Error;
pub(super) use renkei_core::lease::holder::Mark;
use renkei_core::lease::holder::Recent;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Changed, Files, Item, Op};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The attribute cache of a mount; entries are in the inode table.
pub(super) struct AttrCache {
    files: Arc<dyn Files>,
    /// How long the kernel caches attributes of a place without leases.
    ttl: Duration,
    recent: Mutex<Recent>,
}

impl AttrCache {
    /// An empty cache.
    pub(super) fn new(files: Arc<dyn Files>, ttl: Duration) -> Self {
        AttrCache { files, ttl, recent: Mutex::default() }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mark taken before a request about an entry below a name of the root.
    pub(super) fn mark(&self, name: Option<&[u8]>) -> Mark {
        let age = self.files.lessor(name).map_or(0, |lessor| lessor.age());
        Mark { age, count: self.recent().count(), is_held: false }
    }

    /// Whether the site grants leases there, or that is not known yet.
    fn may_lease(&self, name: Option<&[u8]>) -> bool {
        self.files.lessor(name).is_some_and(|lessor| lessor.is_leasing() != Some(false))
    }

    /// The lock round there; 0 while it is not known.
    pub(super) fn lock_round(&self, name: Option<&[u8]>) -> u64 {
        self.files.lessor(name).map_or(1, |lessor| lessor.lock_round())
    }

    /// How much longer an entry of this epoch is valid.
    fn left(&self, name: Option<&[u8]>, age: u64) -> Option<Duration> {
        let until = self.files.lessor(name)?.until(age)?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }
}

/// The name of the entry of the root to which a path leads.
pub(super) fn top_name(path: &RelPath) -> Option<&[u8]> {
    path.components().next()
}

impl Mounted {
    /// Subscribes to callbacks of changes.
    pub(super) fn listen(self: &Arc<Self>) {
        let mounted = Arc::downgrade(self);
        self.files.listen(Box::new(move |changed| {
            if let Some(mounted) = mounted.upgrade() {
                mounted.on_changed(changed);
            }
        }));
    }

    /// Whether the site of a file grants leases, or that is not known yet.
    pub(super) fn may_lease(&self, id: u64) -> bool {
        self.attr_cache.may_lease(self.table().top(id))
    }

    /// A mark taken before a request about a file, or names in it.
    pub(super) fn mark(&self, id: u64) -> Mark {
        self.attr_cache.mark(self.table().top(id))
    }

    /// How long the kernel may cache the attributes of a file that it gets now.
    pub(super) fn ttl(&self, id: u64) -> Duration {
        let mut table = self.table();
        if !self.attr_cache.may_lease(table.top(id)) {
            return self.ttl_without_lease(&mut table, id);
        }
        let attr_epoch =
            table.node(id).ok().and_then(|node| node.attr_epoch.filter(|_| is_kernel_cacheable(&node.known)));
        attr_epoch.and_then(|age| self.attr_cache.left(table.top(id), age)).unwrap_or_default()
    }

    /// The same for the entry of a name.
    pub(super) fn ttl_of_name(&self, id: u64) -> Duration {
        let ttl = self.ttl(id);
        self.set_looked_up(id, ttl);
        ttl
    }

    /// How long the kernel may cache attributes that a change of its own returned: they may arrive after the callback
    /// of another change.
    pub(super) fn ttl_of_change(&self, id: u64) -> Duration {
        let ttl = self.ttl_of_attributes(id);
        self.set_looked_up(id, ttl);
        ttl
    }

    /// The same for attributes alone.
    pub(super) fn ttl_of_attributes(&self, id: u64) -> Duration {
        let mut table = self.table();
        match self.attr_cache.may_lease(table.top(id)) {
            true => Duration::ZERO,
            false => self.ttl_without_lease(&mut table, id),
        }
    }

    /// The TTL without leases; zero for hard links: a lookup returns the number of the name, but `getattr` the one
    /// that all names share.
    fn ttl_without_lease(&self, table: &mut InodeTable, id: u64) -> Duration {
        let is_shared = table.node(id).is_ok_and(|node| has_several_names(&node.known));
        if is_shared { Duration::ZERO } else { self.attr_cache.ttl }
    }

    fn set_looked_up(&self, id: u64, ttl: Duration) {
        if let Ok(node) = self.table().node(id) {
            node.is_looked_up = ttl.is_zero();
        }
    }

    /// Whether the cached attributes of a file are valid.
    pub(super) fn is_attr_cached(&self, id: u64) -> Result<bool, Error> {
        let mut table = self.table();
        let attr_epoch = table.node(id)?.attr_epoch;
        Ok(attr_epoch.is_some_and(|age| self.attr_cache.left(table.top(id), age).is_some()))
    }

    /// The file of a name, if that is cached and valid; counted as a lookup of the kernel.
    pub(super) fn cached_child(&self, dir: u64, name: &[u8]) -> Option<u64> {
        // Atomically: else the kernel may forget the file before it is told of it again.
        let mut table = self.table();
        let id = table.child(dir, name)?;
        let age = table.node(id).ok()?.attr_epoch?;
        self.attr_cache.left(table.top(id), age)?;
        table.count(id);
        Some(id)
    }

    /// Whether the cached listing of a directory is valid and does not have the name.
    pub(super) fn is_known_absent(&self, dir: u64, name: &[u8]) -> bool {
        let mut table = self.table();
        table.child(dir, name).is_none() && self.is_listing_complete(&mut table, dir)
    }

    /// Whether the listing of a directory is cached and valid, with the attributes of its names.
    pub(super) fn is_listing_cached(&self, dir: u64) -> bool {
        self.is_listing_complete(&mut self.table(), dir)
    }

    fn is_listing_complete(&self, table: &mut InodeTable, dir: u64) -> bool {
        let listing_epoch = table.node(dir).ok().and_then(|node| node.listing_epoch);
        listing_epoch.is_some_and(|age| self.attr_cache.left(table.top(dir), age).is_some())
    }

    /// Looks at the path of a file or of a name in it, and returns the mark taken before the request.
    pub(super) fn look(
        &self,
        id: u64,
        path: impl Fn(&InodeTable) -> Result<RelPath, Error>,
    ) -> (Mark, Result<Item, Error>) {
        let mark = self.mark(id);
        let mut is_held = false;
        let found = self.at(path, |path| {
            let (answer, held) = self.ask_parted(Op::Look(path.clone()))?;
            is_held = held.is_some();
            super::item(answer)
        });
        (mark.held(is_held), found)
    }

    /// Caches the attributes of a file in a directory, if no callback about it came since they were asked for.
    pub(super) fn cache_attr(&self, table: &mut InodeTable, id: u64, dir: u64, mark: Mark) {
        let attr_epoch = self.cacheable_epoch(table, dir, mark, |changed, dir_ino, table| {
            changed.concerns(dir_ino, |name| table.child(dir, name) == Some(id), table.ino(id))
        });
        let is_last = self.cacheable_epoch(table, dir, mark, |changed, dir_ino, table| {
            changed.concerns_name(dir_ino, |name| table.child(dir, name) == Some(id))
        });
        if let Ok(node) = table.node(dir)
            && is_last.is_none()
        {
            // The name may be missing in a listing that was cached before.
            node.listing_epoch = None;
        }
        if let Ok(node) = table.node(id)
            && !node.is_ahead()
        {
            node.attr_epoch = attr_epoch.filter(|_| is_attr_cacheable(&node.known));
        }
    }

    /// Caches the listing of a directory as complete.
    pub(super) fn cache_listing(&self, table: &mut InodeTable, dir: u64, mark: Mark) {
        let listing_epoch =
            self.cacheable_epoch(table, dir, mark, |changed, dir_ino, _| changed.concerns_names_of(dir_ino));
        if let Ok(node) = table.node(dir) {
            node.listing_epoch = listing_epoch;
        }
    }

    fn cacheable_epoch(
        &self,
        table: &InodeTable,
        dir: u64,
        mark: Mark,
        concerns: impl Fn(&Changed, u64, &InodeTable) -> bool,
    ) -> Option<u64> {
        let dir_ino = table.ino(dir);
        mark.learnable(&self.attr_cache.recent(), |changed| concerns(changed, dir_ino, table))
    }

    /// Handles a callback of the site: on return the changed entries are invalid in the kernel and in this mount.
    fn on_changed(&self, changed: &Changed) {
        self.attr_cache.recent().add(changed.clone());
        let touched = self.table().invalidate(changed);
        let Some(cache) = self.cache.get() else { return };
        for id in touched {
            cache.invalidate_told(id, || id != ROOT && self.table().is_told(id));
        }
    }

    /// An operation was done here: the entries that it changed are invalidated, except for the directories whose
    /// attributes are in the answer. The returned mark tells since when attributes of the first name must be free of
    /// callbacks to be cached.
    pub(super) fn on_done(&self, paths: &[RelPath], dirs: Option<Vec<Item>>, mark: Mark) -> Option<Mark> {
        if !paths.iter().any(|path| self.attr_cache.may_lease(top_name(path))) {
            return None;
        }
        let (mut touched, mut since) = (Vec::new(), None);
        {
            let mut table = self.table();
            for (number, path) in paths.iter().enumerate() {
                let Some((dir, name)) = table.place(path) else { continue };
                let known = dirs.as_ref().and_then(|dirs| dirs.get(number));
                // The name may have been in another directory by then.
                let known = known.filter(|item| item.ino == table.ino(dir));
                let attr_epoch = known.and_then(|_| {
                    self.cacheable_epoch(&table, dir, mark.held(true), |changed, ino, table| {
                        changed.dirs().contains(&ino) || table.concerns_name_of(dir, changed)
                    })
                });
                // The file may have another name, of which the known one is the old one.
                let nodes = table.child(dir, &name).map(|id| table.ino(id)).into_iter().collect();
                let changed = Changed { nodes, ..Changed::name(table.ino(dir), &name) };
                let is_same = |changed: &Changed, ino, _: &InodeTable| {
                    changed.concerns_name(ino, |other| other == name)
                };
                let is_last = self.cacheable_epoch(&table, dir, mark.held(true), is_same).is_some();
                let listing_epoch =
                    table.node(dir).ok().and_then(|node| node.listing_epoch).filter(|_| is_last);
                touched.extend(table.invalidate(&changed));
                let count = {
                    let mut recent = self.attr_cache.recent();
                    recent.add(changed);
                    recent.count()
                };
                if number == 0 && is_last && known.is_some() {
                    since = Some(Mark { count, ..mark.held(true) });
                }
                if let (Ok(node), Some(item)) = (table.node(dir), known) {
                    (node.known, node.attr_epoch, node.listing_epoch) =
                        (self.owners.attr(item), attr_epoch, listing_epoch);
                }
            }
        }
        if let Some(cache) = self.cache.get() {
            touched.into_iter().for_each(|id| {
                cache.invalidate(id);
            });
        }
        since
    }
}

/// Whether attributes may be cached by name: a hard link may be changed by another name.
fn is_attr_cacheable(known: &InodeAttr) -> bool {
    known.kind == FileType::Directory || known.links <= 1
}

/// Whether the kernel asks for a file's attributes whenever it uses its name, so that it detects that another site
/// has another file there. It does not for symbolic links.
fn is_kernel_cacheable(known: &InodeAttr) -> bool {
    known.kind != FileType::Symlink
}

#[cfg(test)]
mod tests {
    use super::super::name_ops::SetAttr;
    use super::*;
    use renkei_core::wire::file::{Answer, Handle, Lessor, Listener};
    use renkei_mover::files::local_files::LocalFiles;
    use renkei_store::leases::{LeaseHolder, LeaseTable};
    use renkei_store::local::{AccessMode, LocalStore};
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A site that grants leases on a local directory, without losses.
    struct Near {
        local_files: LocalFiles,
        asked: AtomicU64,
        lease: Arc<Lease>,
        /// Runs after an operation was done and before its answer arrives.
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    #[derive(Default)]
    struct Lease(OnceLock<Listener>);

    impl Lessor for Lease {
        fn is_leasing(&self) -> Option<bool> {
            Some(true)
        }

        fn age(&self) -> u64 {
            1
        }

        fn until(&self, age: u64) -> Option<Instant> {
            (age == 1).then(|| Instant::now() + Duration::from_secs(60))
        }

        fn lock_round(&self) -> u64 {
            1
        }
    }

    impl Files for Near {
        fn lessor(&self, _: Option<&[u8]>) -> Option<Arc<dyn Lessor>> {
            Some(self.lease.clone())
        }

        fn listen(&self, listener: Listener) {
            assert!(self.lease.0.set(listener).is_ok());
        }

        fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let answer = self.local_files.operate(op, content);
            let meanwhile = self.meanwhile.lock().unwrap().take();
            meanwhile.into_iter().for_each(|happens| happens());
            answer
        }

        fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
            self.local_files.read(handle, offset, buf)
        }

        /// All content counts as prefetched.
        fn open_brought(&self, path: &RelPath, is_known: &dyn Fn(&Item) -> bool) -> Option<Handle> {
            match self.local_files.operate(Op::Open(path.clone()), b"").ok()?.parted().0 {
                Answer::Opened { handle, item } if is_known(&item) => Some(handle),
                _ => None,
            }
        }
    }

    struct Bench {
        mounted: Arc<Mounted>,
        near: Arc<Near>,
        top: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Bench {
            let top = tempfile::tempdir().unwrap();
            std::fs::create_dir(top.path().join("d")).unwrap();
            std::fs::write(top.path().join("d/f"), "one").unwrap();
            let store = Arc::new(LocalStore::open(top.path(), AccessMode::ReadWrite).unwrap());
            let holder: Arc<LeaseHolder> = Arc::new(Arc::new(LeaseTable::default()).join().unwrap());
            let local_files = LocalFiles::new(store, RelPath::root(), true).unwrap().held_by(holder);
            let near = Arc::new(Near {
                local_files,
                asked: AtomicU64::new(0),
                lease: Arc::default(),
                meanwhile: Mutex::default(),
            });
            let mounted = Arc::new(Mounted::new(near.clone(), Duration::from_secs(1)).unwrap());
            mounted.listen();
            Bench { mounted, near, top }
        }

        /// The result of a call, and the number of requests to the site that it took.
        fn asks<T>(&self, work: impl FnOnce(&Mounted) -> T) -> (T, u64) {
            let before = self.near.asked.load(Ordering::Relaxed);
            let done = work(&self.mounted);
            (done, self.near.asked.load(Ordering::Relaxed) - before)
        }

        fn tell(&self, changed: &Changed) {
            self.near.lease.0.get().unwrap()(changed);
        }

        fn ino(&self, path: &str) -> u64 {
            std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(self.top.path().join(path)).unwrap())
        }

        fn list(&self, dir: u64) -> Vec<Vec<u8>> {
            let fh = self.mounted.open_dir(dir).unwrap();
            let mut names = Vec::new();
            let add = |_: u64, line: &super::super::listing::Dirent| {
                names.push(line.name.clone());
                false
            };
            self.mounted.list(fh, 2, add).unwrap();
            self.mounted.close_dir(fh);
            names
        }
    }

    #[test]
    fn leased_attributes_are_fetched_once_until_they_change() {
        let bench = Bench::new();
        let ((d, _), _) = bench.asks(|mounted| mounted.lookup(ROOT, b"d").unwrap());
        let ((f, known), asked) = bench.asks(|mounted| mounted.lookup(d, b"f").unwrap());
        assert_eq!((known.size, asked), (3, 1));
        assert_eq!(bench.asks(|mounted| mounted.lookup(d, b"f").unwrap()).1, 0);
        assert_eq!(bench.asks(|mounted| mounted.look_at(f).unwrap()).1, 0);
        assert!(bench.mounted.ttl(f) > Duration::from_secs(30));
        std::fs::write(bench.top.path().join("d/f"), "three").unwrap();
        bench.tell(&Changed::name(bench.ino("d"), b"f"));
        assert_eq!(bench.mounted.ttl(f), Duration::ZERO);
        let (known, asked) = bench.asks(|mounted| mounted.look_at(f).unwrap());
        assert_eq!((known.size, asked), (5, 1));
        bench.tell(&Changed { nodes: vec![bench.ino("d/f")], ..Changed::default() });
        assert_eq!(bench.asks(|mounted| mounted.look_at(f).unwrap()).1, 1);
        bench.tell(&Changed { all: true, ..Changed::default() });
        assert_eq!(bench.asks(|mounted| mounted.look_at(f).unwrap()).1, 1);
    }

    #[test]
    fn a_leased_and_prefetched_version_is_opened_without_a_request() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        let (f, _) = bench.mounted.lookup(d, b"f").unwrap();
        let read = || {
            bench.asks(|mounted| {
                let (fh, flags) = mounted.open(f, fuser::OpenFlags(libc::O_RDONLY)).unwrap();
                let mut buf = [0; 10];
                let count = mounted.read(fh, 0, &mut buf).unwrap();
                let is_cached = flags.contains(fuser::FopenFlags::FOPEN_KEEP_CACHE);
                (String::from_utf8(buf[..count].to_vec()).unwrap(), is_cached)
            })
        };
        assert_eq!((read(), read()), ((("one".into(), false), 0), (("one".into(), true), 0)));
        // The callback is in flight: the prefetched content is of another version than the known one.
        std::fs::write(bench.top.path().join("d/f"), "three").unwrap();
        assert_eq!(read(), (("three".into(), false), 1));
        bench.tell(&Changed::name(bench.ino("d"), b"f"));
        assert_eq!(read(), (("three".into(), true), 1));
        bench.mounted.look_at(f).unwrap();
        assert_eq!(read(), (("three".into(), true), 0));
    }

    #[test]
    fn a_name_found_to_be_another_file_is_fetched_again_before_the_callback() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        let (f, _) = bench.mounted.lookup(d, b"f").unwrap();
        let flags = fuser::OpenFlags(libc::O_RDONLY);
        // The `release` of this handle is still outstanding as well.
        let (old, _) = bench.mounted.open(f, flags).unwrap();
        std::fs::write(bench.top.path().join("new"), "two").unwrap();
        std::fs::rename(bench.top.path().join("new"), bench.top.path().join("d/f")).unwrap();
        assert_eq!(bench.mounted.open(f, flags).unwrap_err().number, libc::ESTALE);
        // The kernel repeats the lookup so, once.
        let (again, _) = bench.mounted.lookup(d, b"f").unwrap();
        let (new, _) = bench.mounted.open(again, flags).unwrap();
        let read = |fh| {
            let mut buf = [0; 10];
            let count = bench.mounted.read(fh, 0, &mut buf).unwrap();
            String::from_utf8(buf[..count].to_vec()).unwrap()
        };
        assert_eq!((read(old), read(new)), ("one".into(), "two".into()));
    }

    #[test]
    fn a_retried_open_gets_the_looked_up_version_despite_a_newer_one() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        let look = || bench.mounted.lookup(d, b"f").unwrap().0;
        let replace = |text: &str| {
            std::fs::write(bench.top.path().join("new"), text).unwrap();
            std::fs::rename(bench.top.path().join("new"), bench.top.path().join("d/f")).unwrap();
        };
        let flags = fuser::OpenFlags(libc::O_RDONLY);
        let open = |thread, id| bench.mounted.open_by(thread, id, flags).map_err(|refusal| refusal.number);
        let read = |fh| {
            let mut buf = [0; 10];
            let count = bench.mounted.read(fh, 0, &mut buf).unwrap();
            String::from_utf8(buf[..count].to_vec()).unwrap()
        };
        let one = look();
        let (first, _) = open(1, one).unwrap();
        replace("two");
        assert_eq!(open(2, one).unwrap_err(), libc::ESTALE);
        // The kernel repeats the lookup for thread 2; before it opens, another thread opens the file that was found.
        let two = look();
        let (second, _) = open(3, two).unwrap();
        replace("three");
        // The first try of another thread gets the error.
        assert_eq!(open(4, two).unwrap_err(), libc::ESTALE);
        let (third, opened) = open(2, two).unwrap();
        assert!(opened.contains(fuser::FopenFlags::FOPEN_KEEP_CACHE));
        assert_eq!([first, second, third].map(read), ["one", "two", "two"]);
        // Its own next `open` is a first try again.
        assert_eq!(open(2, two).unwrap_err(), libc::ESTALE);
        bench.mounted.release(second);
        assert_eq!(read(third), "two");
        bench.mounted.release(third);
        let (fourth, _) = open(4, look()).unwrap();
        assert_eq!([first, fourth].map(read), ["one", "three"]);
    }

    #[test]
    fn a_listed_directory_is_complete_in_the_cache() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        assert_eq!(bench.list(d), [b"f".to_vec()]);
        let (missing, asked) = bench.asks(|mounted| mounted.lookup(d, b"none").unwrap_err().number);
        assert_eq!((missing, asked), (libc::ENOENT, 0));
        assert_eq!(bench.asks(|_| bench.list(d)), (vec![b"f".to_vec()], 0));
        // A directory made here is in the cached listing; one made elsewhere may not be.
        let (made, _) = bench.asks(|mounted| mounted.make_dir(d, b"e", 0o755).unwrap().0);
        assert_eq!(bench.asks(|_| bench.list(d)), (vec![b"e".to_vec(), b"f".to_vec()], 0));
        assert_eq!(bench.asks(|mounted| mounted.lookup(made, b"x").is_err()), (true, 0), "it is new");
        bench.mounted.remove(d, b"f").unwrap();
        assert_eq!(bench.asks(|_| bench.list(d)), (vec![b"e".to_vec()], 0));
        std::fs::write(bench.top.path().join("d/none"), "").unwrap();
        bench.tell(&Changed::name(bench.ino("d"), b"none"));
        assert!(bench.asks(|mounted| mounted.lookup(d, b"none").is_ok()).0);
        let mut names = bench.list(d);
        names.sort();
        assert_eq!(names, [b"e".to_vec(), b"none".to_vec()]);
        // Entries that the kernel forgot are not known here either.
        let (id, _) = bench.mounted.lookup(d, b"none").unwrap();
        bench.mounted.table().forget(id, 9);
        assert!(bench.asks(|mounted| mounted.lookup(d, b"none").is_ok()).0);
    }

    #[test]
    fn the_inode_of_a_new_version_gets_the_callback_too() {
        let bench = Bench::new();
        let (f, _) = {
            let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
            bench.mounted.lookup(d, b"f").unwrap()
        };
        let flags = fuser::OpenFlags(libc::O_WRONLY);
        let (fh, _) = bench.mounted.open(f, flags).unwrap();
        bench.mounted.write(fh, 0, b"new version", false).unwrap();
        bench.mounted.flush(fh).unwrap();
        bench.mounted.release(fh);
        assert_eq!(bench.mounted.look_at(f).unwrap().size, 11);
        assert!(bench.mounted.is_attr_cached(f).unwrap());
        bench.tell(&Changed { nodes: vec![bench.ino("d/f")], ..Changed::default() });
        assert!(!bench.mounted.is_attr_cached(f).unwrap());
    }

    #[test]
    fn a_created_file_is_cached_unless_a_callback_came() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        let make = |name: &[u8]| bench.mounted.create(d, name, 0o600, libc::O_WRONLY).unwrap();
        let ((id, known, fh, _), asked) = bench.asks(|_| make(b"new"));
        assert_eq!((known.size, known.mode, asked), (0, 0o600, 1));
        assert_eq!(bench.asks(|mounted| mounted.look_at(id).unwrap()).1, 0);
        assert_eq!(bench.asks(|mounted| mounted.lookup(d, b"new").unwrap()).1, 0);
        bench.mounted.release(fh);
        // The file is changed elsewhere after it was created and before the answer arrives here.
        let (near, dir) = (bench.near.clone(), bench.ino("d"));
        *bench.near.meanwhile.lock().unwrap() = Some(Box::new(move || {
            near.lease.0.get().unwrap()(&Changed::name(dir, b"other"));
        }));
        let (id, ..) = make(b"other");
        assert_eq!(bench.asks(|mounted| mounted.look_at(id).unwrap()).1, 1);
    }

    #[test]
    fn a_file_closed_here_and_changed_elsewhere_is_opened_in_its_new_version() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        let (f, _) = bench.mounted.lookup(d, b"f").unwrap();
        let (fh, _) = bench.mounted.open(f, fuser::OpenFlags(libc::O_RDWR)).unwrap();
        bench.mounted.write(fh, 0, b"ours", false).unwrap();
        // The last `close`; the `release` of the kernel comes later.
        bench.mounted.flush(fh).unwrap();
        std::fs::write(bench.top.path().join("d/f"), "theirs").unwrap();
        bench.tell(&Changed { nodes: vec![bench.ino("d/f")], ..Changed::default() });
        let (found, known) = bench.mounted.lookup(d, b"f").unwrap();
        assert_eq!((found, known.size), (f, 6));
        let read = |fh| {
            let mut buf = [0; 10];
            let count = bench.mounted.read(fh, 0, &mut buf).unwrap();
            String::from_utf8(buf[..count].to_vec()).unwrap()
        };
        let (reader, flags) = bench.mounted.open(f, fuser::OpenFlags(libc::O_RDONLY)).unwrap();
        assert!(!flags.contains(fuser::FopenFlags::FOPEN_KEEP_CACHE));
        assert_eq!(read(reader), "theirs");
        let (writer, _) = bench.mounted.open(f, fuser::OpenFlags(libc::O_RDWR)).unwrap();
        assert_eq!(read(writer), "theirs");
        bench.mounted.write(writer, 6, b", too", false).unwrap();
        bench.mounted.flush(writer).unwrap();
        [fh, reader, writer].into_iter().for_each(|fh| bench.mounted.release(fh));
        assert_eq!(std::fs::read_to_string(bench.top.path().join("d/f")).unwrap(), "theirs, too");
    }

    #[test]
    fn a_root_of_another_name_is_cached() {
        let bench = Bench::new();
        bench.mounted.look_at(ROOT).unwrap();
        assert_eq!(bench.asks(|mounted| mounted.look_at(ROOT).unwrap()).1, 0);
        bench.tell(&Changed::name(bench.ino(""), b"x"));
        assert_eq!(bench.asks(|mounted| mounted.look_at(ROOT).unwrap()).1, 1);
        assert!(Path::new(bench.top.path()).exists());
    }

    #[test]
    fn a_name_removed_elsewhere_is_in_no_listing() {
        let bench = Bench::new();
        std::fs::write(bench.top.path().join("d/g"), "two").unwrap();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        assert_eq!(bench.list(d).len(), 2);
        std::fs::remove_file(bench.top.path().join("d/g")).unwrap();
        bench.tell(&Changed::name(bench.ino("d"), b"g"));
        assert_eq!(bench.list(d), [b"f".to_vec()]);
        assert_eq!(bench.asks(|_| bench.list(d)), (vec![b"f".to_vec()], 0));
        assert_eq!(bench.asks(|mounted| mounted.lookup(d, b"g").is_err()), (true, 0));
    }

    #[test]
    fn a_directory_renamed_during_a_create_is_not_cached_by_its_old_name() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        let (from, to) = (bench.top.path().join("d"), bench.top.path().join("e"));
        let (near, top) = (bench.near.clone(), bench.ino(""));
        *bench.near.meanwhile.lock().unwrap() = Some(Box::new(move || {
            std::fs::rename(from, to).unwrap();
            let names = ["d", "e"].map(|name| (top, name.into())).into();
            near.lease.0.get().unwrap()(&Changed { names, ..Changed::default() });
        }));
        bench.mounted.make_dir(d, b"made", 0o755).unwrap();
        assert_eq!(bench.asks(|mounted| mounted.lookup(ROOT, b"d").is_err()), (true, 1));
        assert!(bench.mounted.lookup(ROOT, b"e").is_ok());
    }

    #[test]
    fn a_file_changed_by_its_new_name_is_not_cached_by_its_old_one() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        bench.mounted.lookup(d, b"f").unwrap();
        // The callback is in flight.
        std::fs::rename(bench.top.path().join("d/f"), bench.top.path().join("d/g")).unwrap();
        let (g, _) = bench.mounted.lookup(d, b"g").unwrap();
        assert_eq!(bench.asks(|mounted| mounted.lookup(d, b"f").is_ok()), (true, 0));
        bench.mounted.alter(g, SetAttr { mode: Some(0o600), ..SetAttr::default() }, None).unwrap();
        assert_eq!(bench.asks(|mounted| mounted.lookup(d, b"f").is_err()), (true, 1));
    }

    #[test]
    fn a_rename_onto_an_uncached_link_of_the_same_file_removes_no_name() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        assert_eq!(bench.list(d), [b"f".to_vec()]);
        // The callback is in flight.
        std::fs::hard_link(bench.top.path().join("d/f"), bench.top.path().join("g")).unwrap();
        bench.mounted.rename((d, b"f"), (ROOT, b"g"), true).unwrap();
        let (found, asked) = bench.asks(|mounted| mounted.lookup(d, b"f").is_ok());
        assert_eq!((found, asked), (true, 1));
        bench.mounted.remove(ROOT, b"g").unwrap();
        assert_eq!(bench.list(d), [b"f".to_vec()]);
        bench.mounted.rename((d, b"f"), (d, b"g"), true).unwrap();
        assert_eq!(bench.asks(|mounted| mounted.lookup(d, b"f").is_err()), (true, 0), "it is gone");
    }

    #[test]
    fn a_create_in_a_replaced_directory_is_not_cached_in_the_new_one() {
        let bench = Bench::new();
        let (d, _) = bench.mounted.lookup(ROOT, b"d").unwrap();
        std::fs::rename(bench.top.path().join("d"), bench.top.path().join("e")).unwrap();
        std::fs::create_dir(bench.top.path().join("d")).unwrap();
        bench.tell(&Changed::name(bench.ino(""), b"d"));
        bench.mounted.make_dir(d, b"made", 0o755).unwrap();
        let (found, asked) = bench.asks(|mounted| mounted.lookup(ROOT, b"d").unwrap());
        assert_eq!((found.1.ino, asked), (bench.ino("d"), 1));
    }
}
