//! Scrub: the plain files of volumes are read in the background and compared with their digests.
//!
//! Corruption on a disk is not seen until the file is read, and a replica nobody reads is not known to be one. So every
//! volume with plain files here is read from end to end, one file after the other in the order of names, at the rate
//! that is set, or so that a pass takes about a month: often enough that two corrupt copies of a file at a time are
//! rare, and seldom enough that the load is not noticed (a petabyte in a month is 400 MB/s). It gives way to other
//! readers (idle class of I/O), continues where it was after a restart, and keeps its results. A corrupt file is not
//! served and is fetched again, at the home from a site that holds it (`repair`).

use super::Site;
use super::log_shipping::spawn;
use super::repair::judge;
use super::replicas::{
    Checked, Found, Verdict, Wrong, check_through, give_up, no_volume, plain_of_home, verify_one,
};
use crate::catalogue::{VolumeId, VolumeTree};
use crate::mover::Stop;
use crate::store::{ReadFile, Store};
use crate::volume::{FileVerdict, Verified, VolumeConfig};
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Dentry, Kind, Name, Node, NodeId, ROOT};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::{decode, encode};
use rustix::fd::BorrowedFd;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Under which key the tree has how far it is.
const NOTE: &str = "verified";
/// How long a pass takes where no rate is set.
const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// The least rate where none is set, bytes a second: a small volume is read in one go and not a file a day.
const LEAST_RATE: u64 = 1 << 20;
/// Pause between the ends of two passes at a rate that is set.
const PAUSE: Duration = Duration::from_secs(60);
/// How often it is looked what there is to do, and whether what is being done still shall be.
const TICK: Duration = Duration::from_secs(1);
/// How often it is kept how far it is.
const SAVE_EVERY: Duration = Duration::from_secs(30);
/// How long wrong replicas are gathered before they are brought anew.
const REPAIR_EVERY: Duration = Duration::from_secs(5);
/// Wrong files that are listed.
const MAX_LISTED: usize = 100;
/// Names read from the catalogue at once.
const PAGE: usize = 1000;

/// The passes of all volumes.
#[derive(Default)]
pub(crate) struct Scrubber {
    running: Mutex<HashMap<VolumeId, Option<Instant>>>,
}

impl Scrubber {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Option<Instant>>> {
        self.running.lock().expect("no thread panics while it holds the lock")
    }
}

/// How far it is, as it is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Course {
    /// The last file that was read, while a pass is under way.
    after: Option<RelPath>,
    is_under_way: bool,
    began_unix: u64,
    files: u64,
    bytes: u64,
    /// The first of the wrong ones of this pass, and how many there were.
    wrong: Vec<(RelPath, Error)>,
    wrong_files: u64,
    /// The pass before: when it ended, how many files and bytes were good, and how many files were not.
    last: Option<(u64, u64, u64, u64)>,
    /// The rate that was set when it began.
    rate: Option<u64>,
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Course {
    fn load(tree: &VolumeTree) -> Result<Self, Error> {
        tree.note(NOTE)?.map_or_else(|| Ok(Course::default()), |bytes| decode("verified", &bytes))
    }

    fn save(&self, tree: &VolumeTree) -> Result<(), Error> {
        tree.set_note(NOTE, &encode(self))
    }

    /// Whether a pass is to begin or to go on.
    fn is_due(&self, rate: Option<u64>) -> bool {
        if self.rate != rate {
            return true;
        }
        let pause = if rate.is_some() { PAUSE } else { MONTH };
        let begun = if rate.is_some() { self.last.map_or(0, |(ended, ..)| ended) } else { self.began_unix };
        self.is_under_way || self.last.is_none() || unix_now() >= begun.saturating_add(pause.as_secs())
    }

    fn shown(&self) -> Verified {
        let (ended_unix, files, bytes, wrong) = self.last.unwrap_or_default();
        let listed = self.wrong.iter().map(|(path, error)| (path.to_string(), error.clone()));
        Verified {
            ended_unix: self.last.map(|_| ended_unix),
            files,
            bytes,
            wrong,
            is_under_way: self.is_under_way,
            files_now: self.files,
            bytes_now: self.bytes,
            wrong_now: self.wrong_files,
            examples: listed.collect(),
        }
    }
}

/// Verifies as long as the site is there.
pub fn spawn_verifying(site: &Arc<Site>) -> Result<(), Error> {
    let site = Arc::downgrade(site);
    spawn("verifying", move || {
        while let Some(here) = site.upgrade() {
            let turn = here.workers.begin("verifying");
            let snapshot = here.last_snapshot();
            snapshot.volumes.iter().for_each(|(name, facts)| here.begin_pass(name, facts));
            drop(turn);
            drop((here, snapshot));
            std::thread::sleep(TICK);
        }
    })
}

impl Site {
    /// How far verifying a volume is.
    pub(super) fn verified(&self, facts: &VolumeConfig) -> Result<Verified, Error> {
        Ok(Course::load(&*self.snapshot().volume_tree(facts.id)?)?.shown())
    }

    /// Begins a pass, or goes on with one, unless that is done or there is none to be done.
    fn begin_pass(self: &Arc<Self>, name: &str, facts: &VolumeConfig) {
        let is_wanted =
            !facts.storage.is_empty() && !facts.care.is_paused && facts.care.verify_rate != Some(0);
        let is_free = !matches!(self.verifying.lock().get(&facts.id), Some(None));
        if !is_wanted || !is_free {
            return;
        }
        match self.last_snapshot().volume_tree(facts.id).and_then(|tree| Course::load(&tree)) {
            Ok(course) if course.is_due(facts.care.verify_rate) => {}
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

/// What one pass works with.
struct Pass {
    site: Weak<Site>,
    name: String,
    facts: VolumeConfig,
    tree: Arc<VolumeTree>,
    plain: Arc<dyn Store>,
    is_home: bool,
    pace: Pace,
    course: Course,
    saved: Instant,
    /// Wrong replicas that were not brought anew yet, since when.
    to_repair: Vec<Wrong>,
    since: Instant,
}

/// Reads what is left of a pass, as the account of the volume.
fn pass(site: &Weak<Site>, name: &str, facts: &VolumeConfig) -> Result<(), Error> {
    let gone = || no_volume(&Place { storage: name.into(), path: RelPath::root() });
    let here = site.upgrade().ok_or_else(gone)?;
    let snapshot = here.snapshot();
    let is_home = !snapshot.follows(facts);
    let account = crate::identity::account::Account::lookup_to_lend(&facts.account)?;
    let tree = snapshot.volume_tree(facts.id)?;
    let plain: Arc<dyn Store> = match is_home {
        true => plain_of_home(&snapshot, facts)?,
        false => snapshot.contents(name, facts)?.plain.ok_or_else(gone)?,
    };
    let mut course = Course::load(&tree)?;
    if !course.is_under_way {
        course =
            Course { last: course.last, is_under_way: true, began_unix: unix_now(), ..Course::default() };
    }
    course.rate = facts.care.verify_rate;
    course.save(&tree)?;
    let rate = match facts.care.verify_rate {
        Some(rate) => rate,
        None => LEAST_RATE.max(super::replicas::count(&tree, &RelPath::root())?.1.bytes / MONTH.as_secs()),
    };
    drop((here, snapshot));
    let pace =
        Pace { rate, due: Instant::now(), site: site.clone(), name: name.into(), facts: facts.clone() };
    let pass = Pass {
        site: site.clone(),
        name: name.into(),
        facts: facts.clone(),
        tree,
        plain,
        is_home,
        pace,
        course,
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
        let (tree, after) = (self.tree.clone(), self.course.after.clone().unwrap_or_default());
        let read = each_after(&tree, &after, &mut |found| self.verify(found));
        let repaired = self.repair();
        if read.is_ok() {
            let Course { files, bytes, wrong_files, .. } = self.course;
            tracing::info!(target: "audit", volume = self.name, files, bytes, wrong = wrong_files, "verified");
            self.course.last = Some((unix_now(), files, bytes, wrong_files));
            (self.course.is_under_way, self.course.after) = (false, None);
        }
        self.course.save(&self.tree)?;
        read.and(repaired)
    }

    fn verify(&mut self, found: Found) -> Result<(), Error> {
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
                self.course.files += 1;
                self.course.bytes = self.course.bytes.saturating_add(found.content.size);
            }
            Verdict::Wrong(error, known) => self.on_wrong(&found, error, known)?,
        }
        self.course.after = Some(found.path);
        if self.saved.elapsed() > SAVE_EVERY {
            self.course.save(&self.tree)?;
            self.saved = Instant::now();
        }
        if !self.to_repair.is_empty() && self.since.elapsed() > REPAIR_EVERY {
            self.repair()?;
        }
        Ok(())
    }

    /// Tells the volume at its home what reading a file told.
    fn tell_volume(&self, judged: Option<FileVerdict>) -> Result<(), Error> {
        let volume = self.site.upgrade().and_then(|site| site.snapshot().volume(&self.name));
        match volume {
            Some(volume) if judged.is_some() => volume?.judge(judged.into_iter().collect()),
            _ => Ok(()),
        }
    }

    fn on_wrong(&mut self, found: &Found, error: Error, known: Option<[u8; 32]>) -> Result<(), Error> {
        tracing::warn!(target: "audit", volume = self.name, path = %found.path, %error, "a file is corrupt");
        self.course.wrong_files += 1;
        if self.course.wrong.len() < MAX_LISTED {
            self.course.wrong.push((found.path.clone(), error));
        }
        self.course.save(&self.tree)?;
        // Of what was written here the home is asked first, if it has it.
        if !self.is_home && !self.tree.held(found.id)?.is_some_and(|held| held.is_own()) {
            give_up(&*self.plain, &self.tree, found, known)?;
        }
        if self.to_repair.is_empty() {
            self.since = Instant::now();
        }
        self.to_repair.push((found.path.clone(), known));
        Ok(())
    }

    /// Has what was wrong brought anew.
    fn repair(&mut self) -> Result<(), Error> {
        let wrong = std::mem::take(&mut self.to_repair);
        if wrong.is_empty() || self.is_home {
            return Ok(());
        }
        let Some(site) = self.site.upgrade() else { return Ok(()) };
        // From a thread of the PoP's own account: this one has no key to dial with.
        let (name, facts) = (self.name.clone(), self.facts.clone());
        spawn("repair", move || {
            if let Err(error) = site.repair_in_background(&name, &facts, &wrong) {
                tracing::warn!(volume = name, %error, "corrupt replicas could not be fetched again");
            }
            // What must be held is looked for again, whatever became of it.
            site.holding.look_again(&facts.id);
        })
    }
}

/// At which rate files are read, and whether they still shall be.
#[derive(Clone)]
struct Pace {
    rate: u64,
    /// When the next byte may be read.
    due: Instant,
    site: Weak<Site>,
    name: String,
    facts: VolumeConfig,
}

impl Pace {
    /// Fails when the pass is to end: the setting is another one, or the volume is gone.
    fn check(&self) -> Result<(), Error> {
        let wanted = |site: Arc<Site>| {
            let snapshot = site.last_snapshot();
            let now = snapshot.volumes.get(&self.name).filter(|now| now.id == self.facts.id)?;
            let same = (now.care.verify_rate, now.care.is_paused) == (self.facts.care.verify_rate, false);
            same.then_some(())
        };
        let ends =
            || Error::new(Code::Cancelled, "verify", &self.name, "another rate was set, or it is paused");
        self.site.upgrade().and_then(wanted).ok_or_else(ends)
    }

    /// Waits until so many bytes may be read.
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate.max(1) as f64);
        // What was not used up while something else held it up is not caught up with.
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

/// A file that is read at a pace.
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

/// Lets this thread's reads wait for all others'.
fn be_idle() {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_IDLE: libc::c_int = 3 << 13;
    // SAFETY: the call takes three numbers and touches no memory; 0 is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, CLASS_IDLE) };
    if done != 0 {
        tracing::debug!("the class of I/O could not be set");
    }
}

/// The rest of a directory.
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

/// Hands on all files after one, in the order of names, whether that one is still there or not.
fn each_after(
    tree: &VolumeTree,
    after: &RelPath,
    work: &mut dyn FnMut(Found) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut levels = vec![Level::begin(ROOT, RelPath::root(), None)];
    // What a home says of directories may be a circle.
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
        // What is longer than a path is nowhere.
        let Ok(path) = level.path.child(&name.0) else {
            passed_over += 1;
            continue;
        };
        match node.kind.clone() {
            Kind::Dir { .. } if seen.insert(id) => levels.push(Level::begin(id, path, None)),
            Kind::File(content) => work(Found { id, path, content, node })?,
            Kind::Dir { .. } | Kind::Symlink { .. } | Kind::Merged { .. } => {}
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
    use crate::catalogue::Trees;
    use crate::home::Home;
    use crate::volume::deep_tree::{DEEPEST, deep};

    #[test]
    fn directories_deeper_than_a_path_end_no_pass() {
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
        // One that was stopped in the deepest goes on behind it.
        let deepest = vec![vec![b'x'; 255]; DEEPEST as usize].join(&b'/');
        assert_eq!(files(&RelPath::parse(&deepest).unwrap()), ["z"]);
    }
}
