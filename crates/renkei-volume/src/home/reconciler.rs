//! The reconciler: the thread that brings the catalogue of a volume up to date with its plain tree.
//!
//! It compares dirty names within 100 ms. In between it scans the whole tree periodically, one directory at a time,
//! so that a flush of dirty names never waits for a scan.

use super::away_dirs::AwayDirs;
use super::dirty_names::{DirtyNames, Job, Taken};
use super::name_lock::NameLock;
use super::quota::Quotas;
use super::site_leases::HomeLeases;
use super::watch::Watch;
use crate::diff::arrived_digests::ArrivedDigests;
use crate::diff::scan_counts::ScanCounts;
use crate::diff::tree_diff::TreeDiff;
use crate::hands::Hands;
use renkei_catalogue::VolumeTree;
use renkei_core::error::Error;
use renkei_core::lease::HolderId;
use renkei_core::path::RelPath;
use renkei_core::wire::file::Changed;
use renkei_store::leases::LeaseTable;
use renkei_store::{Detail, Dir};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Pause before a failed scan is retried.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);

/// Dirty names that are prefetched at once.
const PART: usize = 1000;

/// Directories of renamed trees that are compared at once.
const MOST_AT_ONCE: usize = 64;

/// State that the reconciler shares with the users of the volume.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) notes: DirtyNames,
    pub(crate) scan_every_s: AtomicU64,
    pub(crate) watch: Option<Watch>,
    pub(crate) away: AwayDirs,
    pub(crate) hands: Arc<dyn Hands>,
    pub(crate) digests: Arc<ArrivedDigests>,
    pub(crate) quotas: Quotas,
    pub(crate) leases: Arc<LeaseTable>,
    pub(crate) site_leases: HomeLeases,
    pub(crate) names: NameLock,
    told: Mutex<Told>,
}

/// Status of the reconciler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    /// The last complete scan.
    pub(crate) scan: Option<Scan>,
    /// Whether a scan is under way.
    pub(crate) is_scanning: bool,
    /// The error that keeps the catalogue from following the files.
    pub(crate) trouble: Option<Error>,
}

/// A complete scan.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(crate) ended: SystemTime,
    pub(crate) took: Duration,
    pub(crate) dirs: u64,
    pub(crate) tally: ScanCounts,
}

impl Shared {
    pub(crate) fn new(
        name: &str,
        scan_every_s: u64,
        watch: Option<Watch>,
        hands: Arc<dyn Hands>,
        leases: Arc<LeaseTable>,
        site_leases: HomeLeases,
    ) -> Self {
        let scan_every_s = AtomicU64::new(scan_every_s);
        let (notes, away, quotas, digests) = Default::default();
        let (names, told) = Default::default();
        let name = name.into();
        Shared {
            name,
            notes,
            scan_every_s,
            watch,
            away,
            hands,
            digests,
            quotas,
            leases,
            site_leases,
            names,
            told,
        }
    }

    /// Returns when no lease allows reading an older state than the change: of mounts at this home, and of other
    /// sites.
    pub(crate) fn settle(&self, holder: Option<HolderId>) {
        self.leases.settle(holder);
        self.site_leases.change_here();
    }

    fn told_mut(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no thread panics while it holds the lock")
    }

    /// The current status.
    pub(crate) fn told(&self) -> Told {
        self.told_mut().clone()
    }

    fn scan_every(&self) -> Option<Duration> {
        let seconds = self.scan_every_s.load(Ordering::Relaxed);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }
}

/// The scan that is under way.
struct Running {
    /// The last scan request when it began.
    number: u64,
    started: Instant,
    dirs: u64,
}

/// The reconciler of one volume.
pub(crate) struct Reconciler {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tree: Arc<VolumeTree>,
    pub(crate) top: Arc<dyn Dir>,
    pub(crate) compare: TreeDiff,
    /// Directories to be compared.
    pub(crate) todo: Vec<RelPath>,
    running: Option<Running>,
    scan_at: Option<Instant>,
    begun: u64,
}

impl Reconciler {
    /// A reconciler of the tree below `top`; it begins with a scan.
    pub(crate) fn new(shared: Arc<Shared>, tree: Arc<VolumeTree>, top: Arc<dyn Dir>) -> Self {
        let compare =
            TreeDiff::new(tree.clone(), top.clone(), shared.digests.clone(), shared.notes.replacing());
        let scan_at = Some(Instant::now());
        Reconciler { shared, tree, top, compare, todo: Vec::new(), running: None, scan_at, begun: 0 }
    }

    /// Runs until the volume is closed.
    pub(crate) fn run(mut self) {
        if !self.recover_at_last() {
            return;
        }
        loop {
            let is_busy = self.running.is_some() || !self.todo.is_empty();
            match self.shared.notes.next(is_busy, self.scan_at, self.begun) {
                Job::Stop => return,
                Job::Ask(asked) => {
                    self.on_ask(asked);
                    self.count_again();
                }
                Job::Notes(taken) => self.on_notes(taken),
                Job::Scan => self.begin_scan(),
                Job::Step => self.step(),
            }
        }
    }

    /// Changes past the volume's store count for its quotas, too.
    fn count_again(&self) {
        if let Err(error) = self.shared.quotas.settle(&Vec::new(), &self.tree) {
            tracing::warn!(volume = self.shared.name, %error, "what is in the volume is not known");
        }
    }

    fn on_notes(&mut self, taken: Taken) {
        // The counts so far belong to the scan under way.
        let during_scan = std::mem::take(&mut self.compare.tally);
        let reserved = self.shared.quotas.taken(&taken.own);
        let stored = self.compare.commit().and_then(|()| self.compare_noted(&taken));
        let stored = stored.and_then(|()| self.shared.quotas.settle(&reserved, &self.tree));
        if self.compare.tally.failed > 0 {
            let examples = self.compare.tally.examples.join("; ");
            tracing::warn!(volume = self.shared.name, examples, "not all that changed is in the catalogue");
        }
        self.compare.tally = during_scan;
        match stored {
            Ok(()) => {
                self.shared.notes.on_stored(&taken);
                // Remote or corrupt files may have been replaced or removed.
                let forgotten = if self.shared.away.is_any() { self.forget_if_none() } else { Ok(()) };
                self.set_trouble(forgotten.err());
            }
            Err(error) => {
                self.give_up(&error);
                self.shared.quotas.put_back(reserved);
                self.shared.notes.on_failed(taken, &error);
            }
        }
    }

    fn compare_noted(&mut self, taken: &Taken) -> Result<(), Error> {
        let mut own = taken.own.clone();
        for (from, to) in &taken.moved {
            self.compare.follow_move(from, to)?;
            own.extend([from.clone(), to.clone()]);
        }
        let paths: Vec<RelPath> = own.iter().cloned().collect();
        for part in paths.chunks(PART) {
            self.compare.read_ahead(part)?;
            for path in part {
                // New directories only need a watch: their entries are dirty names of their own.
                self.compare.bring(path)?.iter().for_each(|dir| self.watch(dir));
            }
            self.compare.commit_if_full()?;
        }
        self.look_into_moved(taken)?;
        for path in &taken.foreign {
            if own.contains(path) {
                if !taken.left.contains_key(path) && !self.shared.notes.holds(path) {
                    self.call_back(path);
                }
            } else if !self.compare.is_as_seen(path) {
                self.call_back(path);
                self.todo.extend(self.compare.bring(path)?);
            }
        }
        for (path, left) in taken.left.iter().filter(|_| self.shared.leases.is_held()) {
            // A later writer through the volume invalidates the leases itself.
            if !self.shared.notes.holds(path) && !self.compare.is_as(path, *left) {
                self.call_back(path);
            }
        }
        self.compare.commit()
    }

    /// Invalidates leases on a name that was changed past renkei.
    fn call_back(&self, path: &RelPath) {
        if !self.shared.leases.is_held() {
            return;
        }
        let dir_of = |path: &RelPath| Ok(self.top.descend(path)?.self_entry(Detail::Basic)?.1.ino);
        let own: Result<u64, Error> = dir_of(path);
        let (parent, name) = (path.parent().unwrap_or_default(), path.name().unwrap_or_default());
        let above: Result<u64, Error> = dir_of(&parent);
        // For a removed directory the invalidation of its parent is enough.
        let mut changed = above.map(|dir| Changed::name(dir, name)).unwrap_or_default();
        changed.nodes.extend(own);
        if !changed.dirs().is_empty() {
            self.shared.leases.changed(None, &changed);
        }
    }

    /// Compares renamed directories, which may have been compared in the middle of the rename, and watches them under
    /// their new paths.
    fn look_into_moved(&mut self, taken: &Taken) -> Result<(), Error> {
        let mut moved: Vec<RelPath> = taken.moved.iter().map(|(_, to)| to.clone()).collect();
        for _ in 0..MOST_AT_ONCE {
            let Some(dir) = moved.pop() else { break };
            self.watch(&dir);
            moved.extend(self.compare.look_into(&dir, |_| false)?);
        }
        // The rest of a large tree is compared later: it was renamed as a whole.
        self.todo.extend(moved);
        Ok(())
    }

    fn watch(&self, dir: &RelPath) {
        if let Some(watch) = &self.shared.watch {
            watch.add(dir);
        }
    }

    // ---- scans -------------------------------------------------------------------------------------------------------

    fn begin_scan(&mut self) {
        let number = self.shared.notes.scans_asked();
        self.begun = number;
        self.todo = vec![RelPath::root()];
        self.running = Some(Running { number, started: Instant::now(), dirs: 0 });
        self.compare.tally = ScanCounts::default();
        self.shared.told_mut().is_scanning = true;
    }

    /// Compares one directory.
    fn step(&mut self) {
        let Some(dir) = self.todo.pop() else { return self.end_scan() };
        // Before the comparison, so that later changes are reported.
        self.watch(&dir);
        let notes = &self.shared.notes;
        match self.compare.look_into(&dir, |path| notes.holds(path)) {
            Ok(below) => {
                self.todo.extend(below);
                self.count_again();
                if let Some(running) = &mut self.running {
                    running.dirs += 1;
                }
                if self.todo.is_empty() {
                    self.end_scan();
                }
            }
            Err(error) => self.give_up(&error),
        }
    }

    fn end_scan(&mut self) {
        if let Err(error) = self.compare.commit() {
            return self.give_up(&error);
        }
        self.make_missing();
        let Some(running) = self.running.take() else { return };
        let tally = std::mem::take(&mut self.compare.tally);
        let took = running.started.elapsed();
        tracing::info!(volume = self.shared.name, dirs = running.dirs, ?took, ?tally, "scanned");
        let scan = Scan { ended: SystemTime::now(), took, dirs: running.dirs, tally };
        {
            let mut told = self.shared.told_mut();
            (told.scan, told.is_scanning, told.trouble) = (Some(scan), false, None);
        }
        self.scan_at = self.shared.scan_every().map(|every| Instant::now() + every);
        self.shared.notes.end_scan(running.number);
    }

    /// Drops the batch after a failed write of the catalogue: a later scan finds all lost changes.
    pub(crate) fn give_up(&mut self, error: &Error) {
        tracing::warn!(volume = self.shared.name, %error, "the catalogue does not follow the files");
        self.compare.forget();
        self.todo.clear();
        self.scan_at = Some(Instant::now() + PAUSE);
        self.set_trouble(Some(error.clone()));
        if let Some(running) = self.running.take() {
            self.shared.told_mut().is_scanning = false;
            self.shared.notes.end_scan(running.number);
        }
    }

    pub(crate) fn set_trouble(&self, trouble: Option<Error>) {
        self.shared.told_mut().trouble = trouble;
    }
}
