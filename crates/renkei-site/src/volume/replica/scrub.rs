//! Scrub: the plain files of volumes are read in the background and compared with their digests.
//!
//! Corruption on a disk is not seen until the file is read, and a replica that is never read may be corrupt
//! unnoticed. So every volume with plain files here is read from end to end, one file after the other in the order
//! of names, at the rate that is set, or so that a pass takes about a month: often enough that two corrupt copies
//! of a file at a time are rare, and seldom enough that the load is not noticed (a petabyte in a month is 400
//! MB/s). It yields to other readers (idle class of I/O), continues where it was after a restart, and keeps its
//! results. A corrupt file is not served and is fetched again, at the home from a site that holds it (`repair`).

use super::scrub_state::{MONTH, ScrubRun, unix_now};
use crate::volume::VolumeService;
use crate::volume::replica::service::{Wrong, give_up, plain_of_home};
use crate::volume::tree_walk::{WalkedFile, no_volume};
use crate::volume::verdict::judge;
use crate::volume::verdict::{Checked, Verdict, check_through, verify_one};
use crate::workers::spawn;
use renkei_catalogue::VolumeTree;
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Dentry, Kind, Name, Node, NodeId, ROOT};
use renkei_core::path::{Place, RelPath};
use renkei_mover::Stop;
use renkei_store::{ReadFile, Store};
use renkei_volume::{FileVerdict, Verified, VolumeConfig};
use rustix::fd::BorrowedFd;
use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Minimum rate if none is set, in bytes per second: a small volume is read in one go and not a file a day.
const LEAST_RATE: u64 = 1 << 20;
/// Poll interval for due passes and changed settings.
const TICK: Duration = Duration::from_secs(1);
/// Checkpoint interval.
const SAVE_EVERY: Duration = Duration::from_secs(30);
/// Interval of repairs: corrupt replicas are fetched in batches.
const REPAIR_EVERY: Duration = Duration::from_secs(5);
/// Maximum listed corrupt files.
const MAX_LISTED: usize = 100;
/// Page size of catalogue reads.
const PAGE: usize = 1000;

/// Starts the scrub thread, which runs as long as the site exists.
pub fn spawn_verifying(site: &Arc<VolumeService>) -> Result<(), Error> {
    let site = Arc::downgrade(site);
    spawn("verifying", move || {
        while let Some(here) = site.upgrade() {
            let turn = here.context.workers.begin("verifying");
            let snapshot = here.context.last_snapshot();
            snapshot.volumes.iter().for_each(|(name, facts)| here.begin_pass(name, facts));
            drop(turn);
            drop((here, snapshot));
            std::thread::sleep(TICK);
        }
    })
}

impl VolumeService {
    /// Progress and results of the scrub of a volume.
    pub(crate) fn verified(&self, facts: &VolumeConfig) -> Result<Verified, Error> {
        Ok(ScrubRun::load(&*self.context.snapshot().volume_tree(facts.id)?)?.shown())
    }

    /// Starts or resumes a pass, unless one is running or none is due.
    fn begin_pass(self: &Arc<Self>, name: &str, facts: &VolumeConfig) {
        let is_wanted =
            !facts.storage.is_empty() && !facts.care.is_paused && facts.care.verify_rate != Some(0);
        let is_free = !matches!(self.verifying.lock().get(&facts.id), Some(None));
        if !is_wanted || !is_free {
            return;
        }
        match self.context.last_snapshot().volume_tree(facts.id).and_then(|tree| ScrubRun::load(&tree)) {
            Ok(run) if run.is_due(facts.care.verify_rate) => {}
            _ => return,
        }
        if matches!(self.verifying.lock().get(&facts.id), Some(Some(again)) if Instant::now() < *again) {
            return;
        }
        self.verifying.lock().insert(facts.id, None);
        let (site, named, of) = (Arc::downgrade(self), name.to_owned(), facts.clone());
        let spawned = spawn("verify", move || {
            let ended = pass(&site, &named, &of);
            if let Err(error) = &ended {
                tracing::info!(volume = named, %error, "verifying is interrupted");
            }
            if let Some(site) = site.upgrade() {
                let again = Instant::now() + if ended.is_ok() { TICK } else { 10 * TICK };
                site.verifying.lock().insert(of.id, Some(again));
            }
        });
        if spawned.is_err() {
            self.verifying.lock().remove(&facts.id);
        }
    }
}

/// The state of a running pass.
struct Pass {
    volumes: Weak<VolumeService>,
    name: String,
    facts: VolumeConfig,
    tree: Arc<VolumeTree>,
    plain: Arc<dyn Store>,
    is_home: bool,
    pace: Pace,
    run: ScrubRun,
    saved: Instant,
    /// Corrupt replicas not fetched again yet, and since when.
    to_repair: Vec<Wrong>,
    since: Instant,
}

/// Reads the rest of a pass, as the account of the volume.
fn pass(volumes: &Weak<VolumeService>, name: &str, facts: &VolumeConfig) -> Result<(), Error> {
    let gone = || no_volume(&Place { storage: name.into(), path: RelPath::root() });
    let here = volumes.upgrade().ok_or_else(gone)?;
    let snapshot = here.context.snapshot();
    let is_home = !snapshot.follows(facts);
    let account = renkei_net::identity::account::Account::lookup_to_lend(&facts.account)?;
    let tree = snapshot.volume_tree(facts.id)?;
    let plain: Arc<dyn Store> = match is_home {
        true => plain_of_home(&snapshot, facts)?,
        false => snapshot.contents(name, facts)?.plain.ok_or_else(gone)?,
    };
    let mut run = ScrubRun::load(&tree)?;
    if !run.is_under_way {
        run = ScrubRun { last: run.last, is_under_way: true, began_unix: unix_now(), ..ScrubRun::default() };
    }
    run.rate = facts.care.verify_rate;
    run.save(&tree)?;
    let rate = match facts.care.verify_rate {
        Some(rate) => rate,
        None => LEAST_RATE
            .max(crate::volume::tree_walk::count(&tree, &RelPath::root())?.1.bytes / MONTH.as_secs()),
    };
    drop((here, snapshot));
    let pace =
        Pace { rate, due: Instant::now(), volumes: volumes.clone(), name: name.into(), facts: facts.clone() };
    let pass = Pass {
        volumes: volumes.clone(),
        name: name.into(),
        facts: facts.clone(),
        tree,
        plain,
        is_home,
        pace,
        run,
        saved: Instant::now(),
        to_repair: Vec::new(),
        since: Instant::now(),
    };
    let work = move || {
        be_idle();
        pass.run()
    };
    account.spawn("verify", work)?.join().expect("a panic aborts the process")
}

impl Pass {
    fn run(mut self) -> Result<(), Error> {
        let (tree, after) = (self.tree.clone(), self.run.after.clone().unwrap_or_default());
        let read = each_after(&tree, &after, &mut |found| self.verify(found));
        let repaired = self.repair();
        if read.is_ok() {
            let ScrubRun { files, bytes, wrong_files, .. } = self.run;
            tracing::info!(target: "audit", volume = self.name, files, bytes, wrong = wrong_files, "verified");
            self.run.last = Some((unix_now(), files, bytes, wrong_files));
            (self.run.is_under_way, self.run.after) = (false, None);
        }
        self.run.save(&self.tree)?;
        read.and(repaired)
    }

    fn verify(&mut self, found: WalkedFile) -> Result<(), Error> {
        self.pace.check()?;
        let (plain, pace) = (self.plain.clone(), Arc::new(Mutex::new(self.pace.clone())));
        let paced = |file| Box::new(Paced { file, pace: pace.clone() }) as Box<dyn ReadFile>;
        let check = |checked: &Checked<'_>| check_through(&*plain, checked, paced);
        let (told, judged) = match self.is_home {
            true => judge(&self.tree, &*self.plain, &found, &Stop::default(), check)?,
            false => (verify_one(&self.tree, &found, &Stop::default(), check)?, None),
        };
        self.pace.due = pace.lock().expect("no thread panics while it holds the lock").due;
        self.tell_volume(judged)?;
        match told {
            Verdict::NotHeld => {}
            Verdict::Good => {
                self.run.files += 1;
                self.run.bytes = self.run.bytes.saturating_add(found.content.size);
            }
            Verdict::Wrong(error, known) => self.on_wrong(&found, error, known)?,
        }
        self.run.after = Some(found.path);
        if self.saved.elapsed() > SAVE_EVERY {
            self.run.save(&self.tree)?;
            self.saved = Instant::now();
        }
        if !self.to_repair.is_empty() && self.since.elapsed() > REPAIR_EVERY {
            self.repair()?;
        }
        Ok(())
    }

    /// Passes a verdict to the volume at its home.
    fn tell_volume(&self, judged: Option<FileVerdict>) -> Result<(), Error> {
        let volume = self.volumes.upgrade().and_then(|site| site.context.snapshot().volume(&self.name));
        match volume {
            Some(volume) if judged.is_some() => volume?.judge(judged.into_iter().collect()),
            _ => Ok(()),
        }
    }

    fn on_wrong(&mut self, found: &WalkedFile, error: Error, known: Option<[u8; 32]>) -> Result<(), Error> {
        tracing::warn!(target: "audit", volume = self.name, path = %found.path, %error, "a file is corrupt");
        self.run.wrong_files += 1;
        if self.run.wrong.len() < MAX_LISTED {
            self.run.wrong.push((found.path.clone(), error));
        }
        self.run.save(&self.tree)?;
        // A file written here is given up only after the home confirms that it has the content.
        if !self.is_home && !self.tree.held(found.id)?.is_some_and(|held| held.is_own()) {
            give_up(&*self.plain, &self.tree, found, known)?;
        }
        if self.to_repair.is_empty() {
            self.since = Instant::now();
        }
        self.to_repair.push((found.path.clone(), known));
        Ok(())
    }

    /// Fetches corrupt replicas again.
    fn repair(&mut self) -> Result<(), Error> {
        let wrong = std::mem::take(&mut self.to_repair);
        if wrong.is_empty() || self.is_home {
            return Ok(());
        }
        let Some(site) = self.volumes.upgrade() else { return Ok(()) };
        // In a thread of the PoP's own account: this one cannot read the key for connections.
        let (name, facts) = (self.name.clone(), self.facts.clone());
        spawn("repair", move || {
            if let Err(error) = site.repair_in_background(&name, &facts, &wrong) {
                tracing::warn!(volume = name, %error, "corrupt replicas could not be fetched again");
            }
            // The reconciler checks again, whatever the outcome.
            site.holding.look_again(&facts.id);
        })
    }
}

/// Rate limit of a pass, and the check whether it may continue.
#[derive(Clone)]
struct Pace {
    rate: u64,
    /// The earliest time of the next read.
    due: Instant,
    volumes: Weak<VolumeService>,
    name: String,
    facts: VolumeConfig,
}

impl Pace {
    /// Fails if the pass must end: the setting changed, or the volume is gone.
    fn check(&self) -> Result<(), Error> {
        let wanted = |site: Arc<VolumeService>| {
            let snapshot = site.context.last_snapshot();
            let now = snapshot.volumes.get(&self.name).filter(|now| now.id == self.facts.id)?;
            let same = (now.care.verify_rate, now.care.is_paused) == (self.facts.care.verify_rate, false);
            same.then_some(())
        };
        let ends =
            || Error::new(Code::Cancelled, "verify", &self.name, "another rate was set, or it is paused");
        self.volumes.upgrade().and_then(wanted).ok_or_else(ends)
    }

    /// Waits until `bytes` more may be read.
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate.max(1) as f64);
        // No credit accumulates while the reader is delayed by something else.
        self.due = self.due.max(Instant::now()) + cost;
        loop {
            let left = self.due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(TICK));
            self.check()?;
        }
    }
}

/// A rate-limited file.
struct Paced {
    file: Box<dyn ReadFile>,
    pace: Arc<Mutex<Pace>>,
}

impl ReadFile for Paced {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.file.stamp()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let count = self.file.read_at(buf, offset)?;
        self.pace.lock().expect("no thread panics while it holds the lock").take(count)?;
        Ok(count)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.file.next_data(from)
    }

    fn advise_sequential(&self, range: Range<u64>) {
        self.file.advise_sequential(range);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_writer(&self) -> bool {
        self.file.has_writer()
    }
}

/// Sets this thread's I/O class to idle.
fn be_idle() {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: the call takes three numbers and touches no memory; 0 is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
    if done != 0 {
        tracing::debug!("the class of I/O could not be set");
    }
}

/// The remaining entries of a directory.
struct Level {
    dir: NodeId,
    path: RelPath,
    page: VecDeque<(Name, NodeId, Node)>,
    last: Option<Name>,
    is_over: bool,
}

impl Level {
    fn begin(dir: NodeId, path: RelPath, last: Option<Name>) -> Self {
        Level { dir, path, page: VecDeque::new(), last, is_over: false }
    }

    fn next(&mut self, tree: &VolumeTree) -> Result<Option<(Name, NodeId, Node)>, Error> {
        if self.page.is_empty() && !self.is_over {
            let page = tree.list(self.dir, self.last.as_ref(), PAGE)?;
            self.is_over = page.len() < PAGE;
            self.last = page.last().map(|(name, ..)| name.clone()).or(self.last.take());
            self.page = page.into();
        }
        Ok(self.page.pop_front())
    }
}

/// Calls `work` for all files after a path, in the order of names, whether that path still exists or not.
fn each_after(
    tree: &VolumeTree,
    after: &RelPath,
    work: &mut dyn FnMut(WalkedFile) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut levels = vec![Level::begin(ROOT, RelPath::root(), None)];
    // The directories of a home's records may form a cycle.
    let (mut seen, mut passed_over) = (HashSet::from([ROOT]), 0_u64);
    for name in after.components() {
        let Some(level) = levels.last_mut() else { break };
        let name = Name(name.to_vec());
        level.last = Some(name.clone());
        let (dir, path) = (level.dir, level.path.child(&name.0)?);
        match tree.child(&Dentry { dir, name })? {
            Some((id, node)) if node.is_dir() && seen.insert(id) => levels.push(Level::begin(id, path, None)),
            _ => break,
        }
    }
    while let Some(level) = levels.last_mut() {
        let Some((name, id, node)) = level.next(tree)? else {
            levels.pop();
            continue;
        };
        // A path beyond the maximum length is unreachable.
        let Ok(path) = level.path.child(&name.0) else {
            passed_over += 1;
            continue;
        };
        match node.kind.clone() {
            Kind::Dir { .. } if seen.insert(id) => levels.push(Level::begin(id, path, None)),
            Kind::File(content) => work(WalkedFile { id, path, content, node })?,
            Kind::Dir { .. } | Kind::Symlink { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => {}
        }
    }
    if passed_over > 0 {
        tracing::warn!(passed_over, "names that are longer than a path holds are not verified");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_catalogue::Trees;
    use renkei_config::home::Home;
    use renkei_volume::deep_tree::{DEEPEST, deep};

    #[test]
    fn directories_deeper_than_path_max_do_not_end_a_scrub() {
        let folder = tempfile::tempdir().unwrap();
        let trees = Trees::open("", &Home::at(folder.path())).unwrap();
        let tree = trees.tree([7; 16]).unwrap();
        tree.decide(&deep()).unwrap();
        let files = |after: &RelPath| {
            let mut files = Vec::new();
            let told = each_after(&tree, after, &mut |found| {
                files.push(found.path.to_string());
                Ok(())
            });
            told.map(|()| files).unwrap()
        };
        assert_eq!(files(&RelPath::root()), ["z"]);
        // A pass stopped in the deepest directory continues after it.
        let deepest = vec![vec![b'x'; 255]; DEEPEST as usize].join(&b'/');
        assert_eq!(files(&RelPath::parse(&deepest).unwrap()), ["z"]);
    }
}
