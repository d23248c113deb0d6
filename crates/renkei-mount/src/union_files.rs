//! The union of all storages and volumes of a site as one tree: each is a directory of the top, by its name.
//!
//! Operations below a name go to the file session of that storage or volume, which is opened at the first access. The top
//! itself is read-only.

use renkei_core::entry::{Entry, EntryKind, FileTime, Meta};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Changed, Files, Handle, Item, Lessor, Listener, Op};
use renkei_core::wire::message::Space;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Bits of the inode numbers of entries.
const INO_BITS: u32 = 62;

/// Opens the files of a storage or volume.
pub type OpenPart = Box<dyn Fn(&str) -> Result<Arc<dyn Files>, Error> + Send + Sync>;

/// Lists the current names.
pub type Names = Box<dyn Fn() -> Result<Vec<String>, Error> + Send + Sync>;

/// The union of all parts.
pub struct UnionFiles {
    names: Names,
    open: OpenPart,
    parts: Mutex<Vec<(String, Arc<dyn Files>)>>,
    /// The listener for changes of all parts.
    listener: OnceLock<Arc<Listener>>,
    open_ones: Mutex<HashMap<Handle, Open>>,
    next: AtomicU64,
}

/// The target of an open handle.
enum Open {
    /// A listing of the top: the items not read yet.
    Top(Vec<Item>),
    /// A handle of a part: the part's number, and the handle there.
    Part(usize, Handle),
}

/// The target of a path.
enum At {
    Top,
    Part(usize, RelPath),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

impl UnionFiles {
    /// The tree of the names that `names` lists.
    pub fn new(names: Names, open: OpenPart) -> Self {
        let (parts, open_ones, next) = (Mutex::default(), Mutex::default(), AtomicU64::new(1));
        UnionFiles { names, open, parts, listener: OnceLock::new(), open_ones, next }
    }

    fn at(&self, path: &RelPath) -> Result<At, Error> {
        let Some(name) = path.components().next() else { return Ok(At::Top) };
        let rest = path.as_bytes().get(name.len() + 1..).unwrap_or_default();
        let missing = || Error::new(Code::PathNotFound, "look up", path, "");
        let name = std::str::from_utf8(name).map_err(|_| missing())?;
        Ok(At::Part(self.part(name).map_err(|error| hidden(error, path))?, RelPath::parse(rest)?))
    }

    /// The number of a part, which is opened on first use.
    fn part(&self, name: &str) -> Result<usize, Error> {
        if let Some(number) = number_of(&lock(&self.parts), name) {
            return Ok(number);
        }
        // Opened without the lock: other requests do not wait.
        let files = (self.open)(name)?;
        let mut parts = lock(&self.parts);
        Ok(number_of(&parts, name).unwrap_or_else(|| {
            self.tell_of(parts.len(), &*files);
            parts.push((name.to_owned(), files));
            parts.len() - 1
        }))
    }

    /// Forwards changes of a part to the listener.
    fn tell_of(&self, number: usize, files: &dyn Files) {
        let Some(listener) = self.listener.get().cloned() else { return };
        let own = move |ino: u64| own_ino(number, ino);
        files.listen(Box::new(move |changed| {
            let names = changed.names.iter().map(|(dir, name)| (own(*dir), name.clone())).collect();
            let nodes = changed.nodes.iter().map(|node| own(*node)).collect();
            listener(&Changed { names, nodes, all: changed.all });
        }));
    }

    fn files(&self, number: usize) -> Result<Arc<dyn Files>, Error> {
        let files = lock(&self.parts).get(number).map(|(_, files)| files.clone());
        files.ok_or_else(|| Error::new(Code::NotOpen, "look up", "handle", ""))
    }

    fn keep(&self, open: Open) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.open_ones).insert(handle, open);
        handle
    }

    /// The part of a handle, and the handle there.
    fn held(&self, handle: Handle) -> Result<(usize, Handle), Error> {
        match lock(&self.open_ones).get(&handle) {
            Some(Open::Part(number, inner)) => Ok((*number, *inner)),
            _ => Err(Error::new(Code::NotOpen, "look up", "handle", "")),
        }
    }

    /// Runs an operation on one path; `op` builds it from the path in the part.
    fn on_path(
        &self,
        path: &RelPath,
        content: &[u8],
        op: impl FnOnce(RelPath) -> Op,
    ) -> Result<Answer, Error> {
        match self.at(path)? {
            At::Top => Err(fixed(path)),
            At::Part(number, rest) => self.in_part(number, op(rest), content),
        }
    }

    /// Runs an operation on two paths of the same part.
    fn on_paths(
        &self,
        (from, to): (&RelPath, &RelPath),
        op: impl FnOnce(RelPath, RelPath) -> Op,
    ) -> Result<Answer, Error> {
        match (self.at(from)?, self.at(to)?) {
            (At::Part(a, from), At::Part(b, to)) if a == b => self.in_part(a, op(from, to), &[]),
            (At::Part(..), At::Part(..)) => {
                let cause = "from one storage or volume into another one";
                Err(Error::new(Code::CrossDevice, "rename", from, cause))
            }
            _ => Err(fixed(from)),
        }
    }

    fn on_handle(
        &self,
        handle: Handle,
        content: &[u8],
        op: impl FnOnce(Handle) -> Op,
    ) -> Result<Answer, Error> {
        let (number, inner) = self.held(handle)?;
        self.in_part(number, op(inner), content)
    }

    fn in_part(&self, number: usize, op: Op, content: &[u8]) -> Result<Answer, Error> {
        Ok(self.own(number, self.files(number)?.operate(op, content)?))
    }

    /// The answer of a part, with handles and inode numbers of the union.
    fn own(&self, number: usize, answer: Answer) -> Answer {
        let own = |item: Item| Item { ino: own_ino(number, item.ino), ..item };
        match answer {
            Answer::Item(item) => Answer::Item(own(item)),
            Answer::Opened { handle, item } => {
                Answer::Opened { handle: self.keep(Open::Part(number, handle)), item: own(item) }
            }
            Answer::Items { items, more } => {
                Answer::Items { items: items.into_iter().map(own).collect(), more }
            }
            Answer::Held { answer, dirs } => Answer::Held {
                answer: Box::new(self.own(number, *answer)),
                dirs: dirs.into_iter().map(own).collect(),
            },
            other => other,
        }
    }

    fn open_top(&self) -> Result<Answer, Error> {
        let mut names = (self.names)()?;
        names.sort();
        let items = names.iter().map(|name| Ok(folder(RelPath::parse(name.as_bytes())?)));
        let items = items.collect::<Result<Vec<_>, Error>>()?;
        Ok(Answer::Opened { handle: self.keep(Open::Top(items)), item: folder(RelPath::root()) })
    }

    fn read_dir(&self, handle: Handle) -> Result<Answer, Error> {
        if let Some(Open::Top(items)) = lock(&self.open_ones).get_mut(&handle) {
            return Ok(Answer::Items { items: std::mem::take(items), more: false });
        }
        self.on_handle(handle, &[], Op::ReadDir)
    }

    fn close(&self, handle: Handle) -> Result<Answer, Error> {
        match lock(&self.open_ones).remove(&handle) {
            Some(Open::Part(number, inner)) => self.in_part(number, Op::Close(inner), &[]),
            Some(Open::Top(_)) => Ok(Answer::Done),
            None => Err(Error::new(Code::NotOpen, "close", "handle", "")),
        }
    }
}

fn number_of(parts: &[(String, Arc<dyn Files>)], name: &str) -> Option<usize> {
    parts.iter().position(|(known, _)| known == name)
}

/// A storage that the user may not use is reported as not found.
fn hidden(error: Error, path: &RelPath) -> Error {
    match error.code {
        Code::StorageUnknown | Code::VolumeUnknown => Error::new(Code::PathNotFound, "look up", path, ""),
        _ => error,
    }
}

fn fixed(path: &RelPath) -> Error {
    let cause = "storages and volumes are made with `renkei storage` and `renkei volume`";
    Error::new(Code::PermissionDenied, "change", path, cause)
}

/// An inode number for an entry of a part that is unlikely to collide with those of other parts: each part's begin at
/// a hashed offset. Their order is kept, since programs read files in the order of inode numbers, and the mover reads
/// ahead in the same.
fn own_ino(part: usize, ino: u64) -> u64 {
    let mut first = (part as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    first = (first ^ (first >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    first = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (first ^ (first >> 31)).wrapping_add(ino) & (u64::MAX >> (u64::BITS - INO_BITS))
}

/// The item of the top, or of a name in it before that was looked at.
fn folder(path: RelPath) -> Item {
    let digest = blake3::hash(path.as_bytes());
    let number = u64::from_be_bytes(*digest.as_bytes().first_chunk().expect("32 bytes are more than 8"));
    let meta = Meta { mode: 0o555, ..Meta::default() };
    Item {
        entry: Entry { path, meta, kind: EntryKind::Dir },
        ino: number >> (u64::BITS - INO_BITS),
        links: 2,
        blocks: 0,
        ctime: FileTime::default(),
    }
}

impl Files for UnionFiles {
    fn space(&self, name: Option<&[u8]>) -> Result<Answer, Error> {
        match self.at(&RelPath::parse(name.unwrap_or_default())?)? {
            At::Part(number, _) => self.in_part(number, Op::Space, &[]),
            // Each part has its own capacity.
            At::Top => Ok(Answer::Space(Space::default())),
        }
    }

    fn lessor(&self, name: Option<&[u8]>) -> Option<Arc<dyn Lessor>> {
        let parts = lock(&self.parts);
        let number = number_of(&parts, std::str::from_utf8(name?).ok()?)?;
        parts[number].1.lessor(None)
    }

    fn listen(&self, listener: Listener) {
        let parts = lock(&self.parts);
        if self.listener.set(Arc::new(listener)).is_ok() {
            parts.iter().enumerate().for_each(|(number, (_, files))| self.tell_of(number, &**files));
        }
    }

    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        match op {
            Op::Look(path) => match self.at(&path)? {
                At::Top => Ok(Answer::Item(folder(path))),
                At::Part(number, rest) => self.in_part(number, Op::Look(rest), content),
            },
            Op::OpenDir(path) => match self.at(&path)? {
                At::Top => self.open_top(),
                At::Part(number, rest) => self.in_part(number, Op::OpenDir(rest), content),
            },
            Op::ReadDir(handle) => self.read_dir(handle),
            Op::Close(handle) => self.close(handle),
            Op::Space => self.space(None),
            Op::Open(path) => self.on_path(&path, content, Op::Open),
            Op::Draft { path, start, mode } => {
                self.on_path(&path, content, |path| Op::Draft { path, start, mode })
            }
            Op::Alter { path, change } => self.on_path(&path, content, |path| Op::Alter { path, change }),
            Op::MakeDir { path, mode } => self.on_path(&path, content, |path| Op::MakeDir { path, mode }),
            Op::MakeSymlink { path, target } => {
                self.on_path(&path, content, |path| Op::MakeSymlink { path, target })
            }
            Op::Remove(path) => self.on_path(&path, content, Op::Remove),
            Op::RemoveDir(path) => self.on_path(&path, content, Op::RemoveDir),
            Op::MakeLink { from, to } => self.on_paths((&from, &to), |from, to| Op::MakeLink { from, to }),
            Op::Rename { from, to, replace } => {
                self.on_paths((&from, &to), |from, to| Op::Rename { from, to, replace })
            }
            Op::Read { handle, offset, bytes } => {
                self.on_handle(handle, content, |handle| Op::Read { handle, offset, bytes })
            }
            Op::Lock { path, owner, span } => self.on_path(&path, &[], |path| Op::Lock { path, owner, span }),
            Op::FindLock { path, owner, span } => {
                self.on_path(&path, &[], |path| Op::FindLock { path, owner, span })
            }
            Op::Write { handle, offset } => {
                self.on_handle(handle, content, |handle| Op::Write { handle, offset })
            }
            Op::SetLen { handle, bytes } => {
                self.on_handle(handle, content, |handle| Op::SetLen { handle, bytes })
            }
            Op::Publish { handle, mtime } => {
                self.on_handle(handle, content, |handle| Op::Publish { handle, mtime })
            }
            Op::PublishIf { handle, mtime, condition } => {
                self.on_handle(handle, content, |handle| Op::PublishIf { handle, mtime, condition })
            }
            Op::PublishWith { handle, mtime, condition, attributes } => {
                self.on_handle(handle, content, |handle| Op::PublishWith {
                    handle,
                    mtime,
                    condition,
                    attributes,
                })
            }
            Op::Await { handle, writes } => {
                self.on_handle(handle, content, |handle| Op::Await { handle, writes })
            }
            Op::LookFull(path) => self.on_path(&path, content, Op::LookFull),
            Op::SetXattr { path, name, value } => {
                self.on_path(&path, content, |path| Op::SetXattr { path, name, value })
            }
            Op::Upload { path, op } => self.on_path(&path, content, |path| Op::Upload { path, op }),
            Op::Checksum { handle, algorithm, freshness } => {
                self.on_handle(handle, content, |handle| Op::Checksum { handle, algorithm, freshness })
            }
            Op::Locality(path) => self.on_path(&path, content, Op::Locality),
            Op::Stage(path) => self.on_path(&path, content, Op::Stage),
            Op::Release(path) => self.on_path(&path, content, Op::Release),
            Op::FileHandle(_) | Op::ByHandle(_) => {
                let cause = "each part of a mount has handles of its own";
                Err(Error::new(Code::Unsupported, "find file", "handle", cause))
            }
            Op::Resume { path, .. } | Op::Peek { path, .. } => Err(fixed(&path)),
        }
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let (number, inner) = self.held(handle)?;
        self.files(number)?.read(inner, offset, buf)
    }

    fn open_brought(&self, path: &RelPath, is_known: &dyn Fn(&Item) -> bool) -> Option<Handle> {
        let At::Part(number, rest) = self.at(path).ok()? else { return None };
        let is_own = |item: &Item| is_known(&Item { ino: own_ino(number, item.ino), ..item.clone() });
        let inner = self.files(number).ok()?.open_brought(&rest, &is_own)?;
        Some(self.keep(Open::Part(number, inner)))
    }

    fn descriptor(&self, handle: Handle) -> Option<OwnedFd> {
        let (number, inner) = self.held(handle).ok()?;
        self.files(number).ok()?.descriptor(inner)
    }

    fn end(&self) {
        let parts = lock(&self.parts).clone();
        parts.iter().for_each(|(_, files)| files.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::wire::file::Start;
    use renkei_mover::files::local_files::LocalFiles;
    use renkei_store::local::{AccessMode, LocalStore};

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn whole(top: &std::path::Path) -> UnionFiles {
        let top = top.to_path_buf();
        ["a", "b"].iter().for_each(|name| std::fs::create_dir(top.join(name)).unwrap());
        let open = move |name: &str| {
            let unknown = |_| Error::new(Code::StorageUnknown, "open", name, "");
            let store = LocalStore::open(&top.join(name), AccessMode::ReadWrite).map_err(unknown)?;
            Ok(Arc::new(LocalFiles::new(Arc::new(store), RelPath::root(), true)?) as Arc<dyn Files>)
        };
        UnionFiles::new(Box::new(|| Ok(vec!["b".into(), "a".into()])), Box::new(open))
    }

    fn names(whole: &UnionFiles, at: &str) -> Vec<String> {
        let Answer::Opened { handle, .. } = whole.operate(Op::OpenDir(path(at)), &[]).unwrap() else {
            panic!()
        };
        let mut found = Vec::new();
        while let Answer::Items { items, more } = whole.operate(Op::ReadDir(handle), &[]).unwrap() {
            found.extend(items.iter().map(|item| item.entry.path.to_string()));
            if !more {
                break;
            }
        }
        whole.operate(Op::Close(handle), &[]).unwrap();
        found.sort();
        found
    }

    #[test]
    fn parts_are_folders_of_the_top() {
        let dir = tempfile::tempdir().unwrap();
        let whole = whole(dir.path());
        assert_eq!(names(&whole, ""), ["a", "b"]);
        let draft = Op::Draft { path: path("a/f"), start: Start::New, mode: 0o644 };
        let Answer::Opened { handle, .. } = whole.operate(draft, &[]).unwrap() else { panic!() };
        whole.operate(Op::Write { handle, offset: 0 }, b"hello").unwrap();
        whole.operate(Op::Publish { handle, mtime: None }, &[]).unwrap();
        whole.operate(Op::Close(handle), &[]).unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/f")).unwrap(), b"hello");
        assert_eq!((names(&whole, "a"), names(&whole, "b")), (vec!["f".to_owned()], vec![]));
        let Answer::Opened { handle, .. } = whole.operate(Op::Open(path("a/f")), &[]).unwrap() else {
            panic!()
        };
        let mut buf = [0; 9];
        assert_eq!(whole.read(handle, 1, &mut buf), Ok(4));
        let room = |name: Option<&[u8]>| match whole.space(name).unwrap() {
            Answer::Space(space) => space.total_bytes,
            other => panic!("{other:?}"),
        };
        assert!(room(Some(b"a")) > 0 && room(None) == 0);
    }

    #[test]
    fn inode_numbers_of_a_part_stay_ordered_and_distinct() {
        let numbers = |part| [2, 3, 1000, 1 << 40].map(|ino| own_ino(part, ino));
        let all: Vec<_> = (0..10).map(numbers).collect();
        assert!(all.iter().all(|part| part.is_sorted() && part.iter().all(|number| *number < 1 << INO_BITS)));
        let different: std::collections::HashSet<_> = all.iter().flatten().collect();
        assert_eq!(different.len(), 40);
    }

    #[test]
    fn the_top_is_read_only_and_parts_are_separate() {
        let dir = tempfile::tempdir().unwrap();
        let whole = whole(dir.path());
        std::fs::write(dir.path().join("a/f"), "x").unwrap();
        let code = |op| whole.operate(op, &[]).unwrap_err().code;
        assert_eq!(code(Op::Look(path("none/x"))), Code::PathNotFound);
        assert_eq!(code(Op::MakeDir { path: RelPath::root(), mode: 0o755 }), Code::PermissionDenied);
        let rename = |to: &str| Op::Rename { from: path("a/f"), to: path(to), replace: true };
        assert_eq!(code(rename("b/f")), Code::CrossDevice);
        whole.operate(rename("a/g"), &[]).unwrap();
        assert!(dir.path().join("a/g").exists());
        let read = whole.read(77, 0, &mut [0]);
        assert_eq!(read.unwrap_err().code, Code::NotOpen);
    }
}
