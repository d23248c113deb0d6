//! A store that fails on demand and keeps a log, around any other store.
//!
//! It answers two questions of tests: what happens when the nth write finds the disk full, and whether data is
//! synced before it is renamed and acknowledged. Events carry the moments they began and ended, so that with
//! many threads "before" means that one call returned before the other was made.

use super::{Detail, Dir, Listing, Raw, ReadFile, Replaced, Space, Store, WriteFile};
use renkei_core::entry::{Entry, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

/// The operations of a store that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the trait's method of that name")]
pub enum Op {
    OpenDir,
    Space,
    List,
    Entry,
    OpenRead,
    ReadAt,
    NextData,
    Stamp,
    CreateTemp,
    WriteAt,
    SetLen,
    Allocate,
    StartWriteback,
    SetMeta,
    Unlock,
    SyncData,
    SyncAll,
    SyncFile,
    Rename,
    RenameNoReplace,
    MakeDir,
    Symlink,
    HardLink,
    RemoveFile,
    RemoveDir,
    SyncDir,
    SyncFs,
}

impl Op {
    /// Whether the operation changes the store or makes a change durable.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Op::OpenDir
                | Op::Space
                | Op::List
                | Op::Entry
                | Op::OpenRead
                | Op::ReadAt
                | Op::NextData
                | Op::Stamp
        )
    }
}

/// One call that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The operation.
    pub op: Op,
    /// The path it was applied to.
    pub path: RelPath,
    /// The other path of a rename or link.
    pub to: Option<RelPath>,
    /// The bytes read, written or hinted at; for `SetLen` from 0 to the new length.
    pub range: Range<u64>,
    /// The failure, injected or real.
    pub failed: Option<Code>,
    /// The moment the call was made.
    pub began: u64,
    /// The moment it returned; no two moments are equal.
    pub ended: u64,
}

impl Event {
    /// Whether this call had returned when the other was made.
    pub fn precedes(&self, other: &Event) -> bool {
        self.ended < other.began
    }
}

/// Which of the calls that match a fault fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The nth alone, counted from 1.
    Nth(u64),
    /// The nth and all that follow.
    From(u64),
    /// Those after this many bytes; the call that crosses the mark writes up to it, then fails.
    AfterBytes(u64),
}

/// A failure to inject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operation; `None` for all that change the store, as if the machine stopped.
    pub op: Option<Op>,
    /// The path; `None` for all.
    pub path: Option<RelPath>,
    /// Which of the matching calls.
    pub when: When,
    /// How they fail.
    pub code: Code,
}

impl Fault {
    /// Lets the nth call of `op` fail.
    pub fn nth(op: Op, n: u64, code: Code) -> Self {
        Fault { op: Some(op), path: None, when: When::Nth(n), code }
    }

    /// Lets every call of `op` fail.
    pub fn every(op: Op, code: Code) -> Self {
        Fault { op: Some(op), path: None, when: When::From(1), code }
    }

    /// Lets writes fail after `bytes` were written.
    pub fn after_bytes(bytes: u64, code: Code) -> Self {
        Fault { op: Some(Op::WriteAt), path: None, when: When::AfterBytes(bytes), code }
    }

    /// Lets the nth change and everything after it fail, as if the machine stopped there.
    pub fn stop_at(n: u64) -> Self {
        Fault { op: None, path: None, when: When::From(n), code: Code::IoFailed }
    }

    /// Confines the fault to one path.
    pub fn on(mut self, path: RelPath) -> Self {
        self.path = Some(path);
        self
    }

    fn matches(&self, op: Op, path: &RelPath) -> bool {
        self.op.map_or(op.changes(), |wanted| wanted == op)
            && self.path.as_ref().is_none_or(|wanted| wanted == path)
    }
}

/// Wraps a store.
pub struct FaultStore<S> {
    inner: S,
    plan: Arc<Plan>,
}

impl<S: Store> FaultStore<S> {
    /// Wraps `inner`; without faults it only keeps the log.
    pub fn new(inner: S) -> Self {
        FaultStore { inner, plan: Arc::default() }
    }

    /// Adds a fault; its count begins now.
    pub fn inject(&self, fault: Fault) {
        self.plan.state().faults.push(Armed { fault, calls: 0, bytes: 0 });
    }

    /// Has the next call of `op` wait at both barriers before it is made.
    pub fn pause(&self, op: Op, at: [Arc<Barrier>; 2]) {
        self.plan.state().pause = Some((op, at));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.plan.state().faults.clear();
    }

    /// The calls that have returned, in that order.
    pub fn events(&self) -> Vec<Event> {
        self.plan.state().events.clone()
    }

    /// Empties the log and returns what was in it.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.plan.state().events)
    }
}

#[derive(Default)]
struct Plan(Mutex<State>);

#[derive(Default)]
struct State {
    faults: Vec<Armed>,
    events: Vec<Event>,
    clock: u64,
    pause: Option<(Op, [Arc<Barrier>; 2])>,
}

struct Armed {
    fault: Fault,
    calls: u64,
    bytes: u64,
}

impl Armed {
    /// Counts a call and returns how many of its bytes still go through if it is to fail.
    fn strike(&mut self, len: u64) -> Option<u64> {
        self.calls += 1;
        let before = self.bytes;
        self.bytes = before.saturating_add(len);
        match self.fault.when {
            When::Nth(n) => (self.calls == n).then_some(0),
            When::From(n) => (self.calls >= n).then_some(0),
            When::AfterBytes(mark) => (self.bytes > mark).then(|| mark.saturating_sub(before)),
        }
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn strike(&mut self, op: Op, path: &RelPath, len: u64) -> Option<(Code, u64)> {
        let matching = self.faults.iter_mut().filter(|armed| armed.fault.matches(op, path));
        // Every fault counts the call; the one that lets the fewest bytes through decides.
        let struck: Vec<_> =
            matching.filter_map(|armed| armed.strike(len).map(|bytes| (armed.fault.code, bytes))).collect();
        struck.into_iter().min_by_key(|&(_, bytes)| bytes)
    }
}

/// A call about to be made.
struct Call<'a> {
    op: Op,
    path: &'a RelPath,
    to: Option<RelPath>,
    range: Range<u64>,
}

impl<'a> Call<'a> {
    fn new(op: Op, path: &'a RelPath) -> Self {
        Call { op, path, to: None, range: 0..0 }
    }

    fn bytes(op: Op, path: &'a RelPath, range: Range<u64>) -> Self {
        Call { op, path, to: None, range }
    }
}

impl Plan {
    /// The state; a test that panicked while holding it left it whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<T>(&self, call: Call<'_>, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.run_torn(call, |let_through| match let_through {
            None => Some(work()),
            Some(_) => None,
        })
    }

    /// Makes a call that may be cut short: `work` gets the bytes to let through before a failure.
    fn run_torn<T>(
        &self,
        call: Call<'_>,
        work: impl FnOnce(Option<u64>) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let (began, struck, pause) = {
            let mut state = self.state();
            let len = call.range.end.saturating_sub(call.range.start);
            let pause = state.pause.take_if(|(paused, _)| *paused == call.op);
            (state.tick(), state.strike(call.op, call.path, len), pause)
        };
        for barrier in pause.iter().flat_map(|(_, at)| at) {
            barrier.wait();
        }
        let done = work(struck.map(|(_, let_through)| let_through));
        let result = match (struck, done) {
            (None, Some(result)) => result,
            (struck, _) => Err(injected(struck.map_or(Code::Internal, |(code, _)| code), &call)),
        };
        self.log(call, began, result.as_ref().err().map(|error| error.code));
        result
    }

    fn log(&self, call: Call<'_>, began: u64, failed: Option<Code>) {
        let mut state = self.state();
        let ended = state.tick();
        let Call { op, path, to, range } = call;
        state.events.push(Event { op, path: path.clone(), to, range, failed, began, ended });
    }
}

fn injected(code: Code, call: &Call<'_>) -> Error {
    Error::new(code, &format!("{:?}", call.op), call.path, "injected by a test")
}

impl<S: Store> Store for FaultStore<S> {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        let path = RelPath::root();
        let inner = self.plan.run(Call::new(Op::OpenDir, &path), || self.inner.root())?;
        Ok(Arc::new(FaultDir { inner, plan: self.plan.clone() }))
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let inner = self.plan.run(Call::new(Op::OpenDir, path), || self.inner.dir(path))?;
        Ok(Arc::new(FaultDir { inner, plan: self.plan.clone() }))
    }

    fn space(&self, path: &RelPath) -> Result<Space, Error> {
        self.plan.run(Call::new(Op::Space, path), || self.inner.space(path))
    }
}

struct FaultDir {
    inner: Arc<dyn Dir>,
    plan: Arc<Plan>,
}

impl FaultDir {
    /// Runs an operation on this directory itself.
    fn own<T>(&self, op: Op, work: impl FnOnce(&dyn Dir) -> Result<T, Error>) -> Result<T, Error> {
        self.plan.run(Call::new(op, self.inner.path()), || work(&*self.inner))
    }

    /// Runs an operation on a name in it.
    fn on<T>(
        &self,
        op: Op,
        name: &[u8],
        work: impl FnOnce(&dyn Dir) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let path = self.inner.path().child(name)?;
        self.plan.run(Call::new(op, &path), || work(&*self.inner))
    }

    /// Runs an operation between two names.
    fn between(
        &self,
        op: Op,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        work: impl FnOnce(&dyn Dir, &dyn Dir) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let path = self.inner.path().child(from)?;
        let call = Call { to: Some(to_dir.path().child(to)?), ..Call::new(op, &path) };
        let there = to_dir.as_any().downcast_ref::<FaultDir>().map_or(to_dir, |dir| &*dir.inner);
        self.plan.run(call, || work(&*self.inner, there))
    }

    fn wrap(&self, inner: Arc<dyn Dir>) -> Arc<dyn Dir> {
        Arc::new(FaultDir { inner, plan: self.plan.clone() })
    }
}

impl Dir for FaultDir {
    fn path(&self) -> &RelPath {
        self.inner.path()
    }

    fn device(&self) -> u64 {
        self.inner.device()
    }

    fn lineage(&self) -> Vec<(u64, u64)> {
        self.inner.lineage()
    }

    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
        Ok(self.wrap(self.on(Op::OpenDir, name, |dir| dir.child(name))?))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let whole = self.inner.path().join(path)?;
        let inner = self.plan.run(Call::new(Op::OpenDir, &whole), || self.inner.descend(path))?;
        Ok(self.wrap(inner))
    }

    fn list(&self) -> Result<Listing, Error> {
        self.own(Op::List, |dir| dir.list())
    }

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        self.on(Op::Entry, name, |dir| dir.entry(name, detail))
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        self.own(Op::Entry, |dir| dir.self_entry(detail))
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        let inner = self.on(Op::OpenRead, name, |dir| dir.open_read(name))?;
        Ok(Box::new(FaultFile { inner, path: self.inner.path().child(name)?, plan: self.plan.clone() }))
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        let inner = self.on(Op::CreateTemp, name, |dir| dir.create_temp(name, keep_existing))?;
        Ok(Box::new(FaultFile { inner, path: self.inner.path().child(name)?, plan: self.plan.clone() }))
    }

    fn open_direct(&self, _name: &[u8]) -> Option<Box<dyn WriteFile>> {
        // Every write must be logged and may be made to fail, so there is one write path only.
        None
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.between(Op::Rename, from, to_dir, to, |here, there| here.rename(from, there, to))
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        let work = |here: &dyn Dir, there: &dyn Dir| here.rename_no_replace(from, there, to);
        self.between(Op::RenameNoReplace, from, to_dir, to, work)
    }

    fn replace(
        &self,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        seen: Option<&Stamp>,
    ) -> Result<Replaced, Error> {
        let mut replaced = Replaced::default();
        self.between(Op::Rename, from, to_dir, to, |here, there| {
            replaced = here.replace(from, there, to, seen)?;
            Ok(())
        })?;
        Ok(replaced)
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.on(Op::MakeDir, name, |dir| dir.mkdir(name, mode))
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.on(Op::Symlink, name, |dir| dir.symlink(target, name))
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.between(Op::HardLink, name, to_dir, to, |here, there| here.hard_link(name, there, to))
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.on(Op::RemoveFile, name, |dir| dir.remove_file(name))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.on(Op::RemoveDir, name, |dir| dir.remove_dir(name))
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        self.on(Op::SetMeta, name, |dir| dir.set_meta(name, meta))
    }

    fn set_xattr(&self, name: &[u8], xattr: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        self.on(Op::SetMeta, name, |dir| dir.set_xattr(name, xattr, value))
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.own(Op::SetMeta, |dir| dir.set_own_meta(meta))
    }

    fn is_locked(&self) -> Result<bool, Error> {
        self.own(Op::Entry, |dir| dir.is_locked())
    }

    fn unlock(&self) -> Result<(), Error> {
        self.own(Op::Unlock, |dir| dir.unlock())
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        self.on(Op::SyncFile, name, |dir| dir.sync_file(name))
    }

    fn sync(&self) -> Result<(), Error> {
        self.own(Op::SyncDir, |dir| dir.sync())
    }

    fn names_first(&self) -> bool {
        self.inner.names_first()
    }

    fn sync_fs(&self) -> Result<(), Error> {
        self.own(Op::SyncFs, |dir| dir.sync_fs())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FaultFile<F: ?Sized> {
    inner: Box<F>,
    path: RelPath,
    plan: Arc<Plan>,
}

impl<F: ?Sized> FaultFile<F> {
    fn on<T>(&self, op: Op, work: impl FnOnce(&F) -> Result<T, Error>) -> Result<T, Error> {
        self.plan.run(Call::new(op, &self.path), || work(&self.inner))
    }

    fn bytes<T>(
        &self,
        op: Op,
        range: Range<u64>,
        work: impl FnOnce(&F) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.plan.run(Call::bytes(op, &self.path, range), || work(&self.inner))
    }
}

fn span(buf: &[u8], offset: u64) -> Range<u64> {
    offset..offset.saturating_add(buf.len() as u64)
}

impl ReadFile for FaultFile<dyn ReadFile> {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.on(Op::Stamp, |file| file.stamp())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.bytes(Op::ReadAt, span(buf, offset), |file| file.read_at(buf, offset))
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.on(Op::NextData, |file| file.next_data(from))
    }

    fn advise_sequential(&self, range: Range<u64>) {
        self.inner.advise_sequential(range);
    }

    fn has_writer(&self) -> bool {
        self.inner.has_writer()
    }
}

impl WriteFile for FaultFile<dyn WriteFile> {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.on(Op::Stamp, |file| file.stamp())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), Error> {
        let call = Call::bytes(Op::WriteAt, &self.path, span(buf, offset));
        self.plan.run_torn(call, |let_through| {
            let len = let_through.map_or(buf.len(), |bytes| buf.len().min(bytes as usize));
            Some(self.inner.write_at(&buf[..len], offset))
        })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.bytes(Op::ReadAt, span(buf, offset), |file| file.read_at(buf, offset))
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.bytes(Op::SetLen, 0..len, |file| file.set_len(len))
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        self.bytes(Op::Allocate, range.clone(), |file| file.allocate(range))
    }

    fn room(&self) -> Option<u64> {
        self.inner.room()
    }

    fn free(&self, range: Range<u64>) {
        self.inner.free(range);
    }

    fn set_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.on(Op::SetMeta, |file| file.set_meta(meta))
    }

    fn start_writeback(&self, range: Range<u64>) {
        // A hint cannot fail, so a fault here only shows in the log.
        let _ = self.bytes(Op::StartWriteback, range.clone(), |file| {
            file.start_writeback(range);
            Ok(())
        });
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.on(Op::SyncData, |file| file.sync_data())
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.on(Op::SyncAll, |file| file.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::{AccessMode, LocalStore};
    use super::*;

    fn store() -> (tempfile::TempDir, FaultStore<LocalStore>) {
        let dir = tempfile::tempdir().unwrap();
        let inner = LocalStore::open(dir.path(), AccessMode::ReadWrite).unwrap();
        (dir, FaultStore::new(inner))
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_nth_call_fails_and_no_other() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        store.inject(Fault::nth(Op::WriteAt, 2, Code::QuotaExceeded));
        let file = root.create_temp(b"f", false).unwrap();
        file.write_at(b"one", 0).unwrap();
        assert_eq!(file.write_at(b"two", 3).unwrap_err().code, Code::QuotaExceeded);
        file.write_at(b"two", 3).unwrap();
    }

    #[test]
    fn a_full_disk_takes_the_bytes_that_fit() {
        let (keep, store) = store();
        let file = store.root().unwrap().create_temp(b"f", false).unwrap();
        store.inject(Fault::after_bytes(5, Code::NoSpace));
        file.write_at(b"abc", 0).unwrap();
        assert_eq!(file.write_at(b"def", 3).unwrap_err().code, Code::NoSpace);
        assert_eq!(file.write_at(b"ghi", 6).unwrap_err().code, Code::NoSpace);
        assert_eq!(std::fs::read(keep.path().join("f")).unwrap(), b"abcde");
        store.clear_faults();
        file.write_at(b"f", 5).unwrap();
    }

    #[test]
    fn a_stopped_machine_changes_nothing_more_but_can_be_read() {
        let (keep, store) = store();
        let root = store.root().unwrap();
        store.inject(Fault::stop_at(2));
        root.mkdir(b"a", 0o700).unwrap();
        assert_eq!(root.mkdir(b"b", 0o700).unwrap_err().code, Code::IoFailed);
        assert_eq!(root.remove_dir(b"a").unwrap_err().code, Code::IoFailed);
        assert!(keep.path().join("a").exists() && !keep.path().join("b").exists());
        assert_eq!(root.list().unwrap().count(), 1);
    }

    #[test]
    fn faults_can_be_confined_to_a_path() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        store.inject(Fault::every(Op::MakeDir, Code::PermissionDenied).on(path("bad")));
        root.mkdir(b"good", 0o700).unwrap();
        assert_eq!(root.mkdir(b"bad", 0o700).unwrap_err().code, Code::PermissionDenied);
    }

    #[test]
    fn the_log_tells_the_order() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        store.take_events();
        let file = root.create_temp(b"t", false).unwrap();
        file.write_at(b"data", 0).unwrap();
        file.sync_all().unwrap();
        root.rename(b"t", &*root, b"f").unwrap();
        root.sync().unwrap();
        assert_eq!(root.remove_file(b"none").unwrap_err().code, Code::PathNotFound);
        let events = store.events();
        let ops: Vec<Op> = events.iter().map(|event| event.op).collect();
        assert_eq!(ops, [Op::CreateTemp, Op::WriteAt, Op::SyncAll, Op::Rename, Op::SyncDir, Op::RemoveFile]);
        assert!(events.windows(2).all(|pair| pair[0].precedes(&pair[1])));
        assert_eq!(events[1].range, 0..4);
        assert_eq!((&events[3].path, &events[3].to), (&path("t"), &Some(path("f"))));
        assert_eq!(events[5].failed, Some(Code::PathNotFound));
    }
}
