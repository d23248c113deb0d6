//! Every operation of the open-file table on a local store: its effect on the disk, and its refusals.

use super::local_files::{LocalFiles, MAX_OPEN};
use renkei_core::block::AlignedBlock;
use renkei_core::entry::{EntryKind, FileTime};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Alteration, Answer, Files, Handle, Item, Op, Start};
use renkei_store::fault::{Fault, FaultStore, Op as Call};
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::privileges;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

struct Bench {
    keep: tempfile::TempDir,
    local_files: LocalFiles,
}

impl Bench {
    /// An open-file table on `base` of a store.
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        fs::create_dir(keep.path().join("base")).unwrap();
        let local_files = local_files(keep.path(), true);
        Bench { keep, local_files }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.keep.path().join("base").join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    /// All names in the base, temporary ones too.
    fn names(&self) -> Vec<String> {
        let listed = fs::read_dir(self.at("")).unwrap();
        let mut names: Vec<_> =
            listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn done(&self, op: Op) -> Answer {
        self.local_files.operate(op, b"").unwrap()
    }

    fn code(&self, op: Op) -> Code {
        self.local_files.operate(op, b"").unwrap_err().code
    }

    fn item(&self, op: Op) -> Item {
        match self.done(op) {
            Answer::Item(item) => item,
            other => panic!("{other:?}"),
        }
    }

    fn open(&self, op: Op) -> Handle {
        match self.done(op) {
            Answer::Opened { handle, .. } => handle,
            other => panic!("{other:?}"),
        }
    }

    fn draft(&self, path: &str, start: Start) -> Handle {
        self.open(Op::Draft { path: rel(path), start, mode: 0o640 })
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8]) {
        assert_eq!(self.local_files.operate(Op::Write { handle, offset }, bytes).unwrap(), Answer::Done);
    }

    fn read(&self, handle: Handle, offset: u64, most: usize) -> Result<Vec<u8>, Error> {
        let mut buf = vec![0; most];
        let count = self.local_files.read(handle, offset, &mut buf)?;
        buf.truncate(count);
        Ok(buf)
    }

    fn publish(&self, handle: Handle) -> Item {
        self.item(Op::Publish { handle, mtime: None })
    }
}

fn local_files(at: &Path, is_writable: bool) -> LocalFiles {
    let store = Arc::new(LocalStore::open(at, AccessMode::ReadWrite).unwrap());
    LocalFiles::new(store, rel("base"), is_writable).unwrap()
}

fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn size(item: &Item) -> u64 {
    item.entry.size()
}

#[test]
fn stat_and_listing_show_entries_and_hide_temporary_names() {
    let bench = Bench::new();
    fs::create_dir(bench.at("sub")).unwrap();
    fs::write(bench.at("sub/a"), "hello").unwrap();
    symlink("../no/where", bench.at("sub/link")).unwrap();
    fs::write(bench.at("sub/.rk~0000000000000001-0000000000000002"), "").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"n\xff\xfe");
    fs::write(bench.at("sub").join(odd), "odd").unwrap();
    let item = bench.item(Op::Look(rel("sub/a")));
    let metadata = fs::metadata(bench.at("sub/a")).unwrap();
    assert_eq!((size(&item), item.ino, item.links), (5, metadata.ino(), 1));
    assert_eq!((item.entry.path.clone(), item.entry.meta.mode), (rel("sub/a"), metadata.mode() & 0o7777));
    assert!(!item.entry.meta.owner.is_empty() || metadata.uid() != 0);
    let link = bench.item(Op::Look(rel("sub/link"))).entry.kind;
    assert_eq!(link, EntryKind::Symlink { target: b"../no/where".to_vec() });
    assert_eq!(bench.item(Op::Look(RelPath::root())).entry.kind, EntryKind::Dir);
    let raw = RelPath::parse(b"sub/n\xff\xfe").unwrap();
    assert_eq!(size(&bench.item(Op::Look(raw))), 3);
    let handle = bench.open(Op::OpenDir(rel("sub")));
    let Answer::Items { items, more } = bench.done(Op::ReadDir(handle)) else { panic!() };
    let mut names: Vec<_> = items.iter().map(|item| item.entry.path.as_bytes().to_vec()).collect();
    names.sort();
    assert_eq!((names, more), (vec![b"a".to_vec(), b"link".to_vec(), b"n\xff\xfe".to_vec()], false));
    assert_eq!(bench.done(Op::ReadDir(handle)), Answer::Items { items: Vec::new(), more: false });
    bench.done(Op::Close(handle));
    assert_eq!(bench.code(Op::ReadDir(handle)), Code::NotOpen);
    assert_eq!(bench.code(Op::Look(rel("none"))), Code::PathNotFound);
    assert_eq!(bench.code(Op::OpenDir(rel("sub/a"))), Code::NotADirectory);
    assert_eq!(bench.code(Op::OpenDir(rel("sub/link"))), Code::NotADirectory);
}

#[test]
fn a_long_directory_is_paged() {
    let bench = Bench::new();
    for number in 0..1200 {
        fs::write(bench.at(&format!("{number}")), "").unwrap();
    }
    let handle = bench.open(Op::OpenDir(RelPath::root()));
    let (mut seen, mut parts) = (std::collections::HashSet::new(), 0);
    loop {
        let Answer::Items { items, more } = bench.done(Op::ReadDir(handle)) else { panic!() };
        parts += 1;
        assert!(items.into_iter().all(|item| seen.insert(item.entry.path)));
        if !more {
            break;
        }
    }
    assert_eq!((seen.len(), parts), (1200, 3));
}

#[test]
fn an_open_file_is_read_in_the_opened_version() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "first").unwrap();
    let reader = bench.open(Op::Open(rel("f")));
    let draft = bench.draft("f", Start::Empty);
    bench.write(draft, 0, b"second version");
    assert_eq!(bench.text("f"), "first");
    assert_eq!(size(&bench.publish(draft)), 14);
    assert_eq!(bench.read(reader, 0, 99).unwrap(), b"first");
    bench.done(Op::Remove(rel("f")));
    assert_eq!(bench.read(reader, 2, 2).unwrap(), b"rs");
    assert_eq!(bench.read(reader, 99, 2).unwrap(), b"");
    assert_eq!(bench.code(Op::Open(rel("f"))), Code::PathNotFound);
    fs::create_dir(bench.at("d")).unwrap();
    symlink("f", bench.at("l")).unwrap();
    assert_eq!(bench.code(Op::Open(rel("d"))), Code::IsADirectory);
    assert!(bench.local_files.operate(Op::Open(rel("l")), b"").is_err());
    assert_eq!(bench.read(draft, 0, 6).unwrap(), b"second");
}

#[test]
fn a_large_file_of_aligned_blocks_has_all_of_them() {
    let bench = Bench::new();
    let handle = bench.draft("large", Start::Empty);
    let (mut content, mut block) = (Vec::new(), AlignedBlock::default());
    let mut write = |offset: u64, bytes: &[u8]| {
        let mut own = std::mem::take(&mut block);
        own.clear();
        own.fill(bytes, bytes.len());
        block = bench.local_files.write_block(handle, offset, own).unwrap().1;
    };
    for number in 0..40 {
        let bytes = vec![number; 512 << 10];
        write(content.len() as u64, &bytes);
        content.extend(bytes);
    }
    // One that is not aligned, and one over blocks that were written past the page cache.
    write(content.len() as u64, b"the end");
    content.extend(b"the end");
    write(17 << 20, &[77; 512 << 10]);
    content[17 << 20..][..512 << 10].fill(77);
    bench.write(handle, (18 << 20) + 1, b"small");
    content[(18 << 20) + 1..][..5].copy_from_slice(b"small");
    bench.publish(handle);
    assert!(fs::read(bench.at("large")).unwrap() == content, "the content differs");
    assert_eq!(bench.names(), ["large"]);
    // The next version begins with a new temporary file.
    write(17 << 20, &[78; 512 << 10]);
    content[17 << 20..][..512 << 10].fill(78);
    bench.publish(handle);
    assert!(fs::read(bench.at("large")).unwrap() == content, "the content of the next version differs");
}

#[test]
fn a_new_file_is_there_at_once_and_only_once() {
    let bench = Bench::new();
    let draft = bench.draft("f", Start::New);
    assert_eq!((bench.text("f").as_str(), bench.names()), ("", vec!["f".to_string()]));
    assert_eq!(fs::metadata(bench.at("f")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(bench.code(Op::Draft { path: rel("f"), start: Start::New, mode: 0 }), Code::PathExists);
    bench.write(draft, 3, b"x");
    assert_eq!(bench.text("f"), "");
    assert_eq!(bench.publish(draft).entry.meta.mode, 0o640);
    assert_eq!((bench.text("f").as_str(), bench.names()), ("\0\0\0x", vec!["f".to_string()]));
    // The next version begins with this one.
    bench.write(draft, 0, b"abc");
    assert_eq!(bench.text("f"), "\0\0\0x");
    bench.publish(draft);
    assert_eq!(bench.text("f"), "abcx");
    bench.done(Op::Close(draft));
    assert_eq!((bench.names(), bench.local_files.open_count()), (vec!["f".to_string()], 0));
}

#[test]
fn a_draft_with_content_keeps_what_is_not_written_and_its_holes() {
    let bench = Bench::new();
    let sparse = fs::File::create(bench.at("f")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"middle", 32 << 20).unwrap();
    fs::set_permissions(bench.at("f"), fs::Permissions::from_mode(0o4751)).unwrap();
    let draft = bench.draft("f", Start::Content);
    assert_eq!(bench.names(), ["f"], "nothing is copied before it is written to");
    assert_eq!(bench.read(draft, 32 << 20, 6).unwrap(), b"middle");
    bench.write(draft, 5, b"new");
    let item = bench.publish(draft);
    assert_eq!((size(&item), item.entry.meta.mode), (64 << 20, 0o751));
    assert!(item.blocks < 8192, "{} blocks", item.blocks);
    // The same through the file handle of the draft.
    bench.write(draft, 64 << 20, b"end");
    let item = bench.publish(draft);
    assert_eq!(size(&item), (64 << 20) + 3);
    assert!(item.blocks < 8192, "{} blocks", item.blocks);
    assert_eq!(bench.read(draft, 32 << 20, 6).unwrap(), b"middle");
    assert_eq!(bench.read(draft, 5, 3).unwrap(), b"new");
    assert_eq!(
        bench.code(Op::Draft { path: rel("none"), start: Start::Content, mode: 0 }),
        Code::PathNotFound
    );
}

#[test]
fn lengths_and_times_are_as_requested() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "0123456789").unwrap();
    let draft = bench.draft("f", Start::Content);
    bench.done(Op::SetLen { handle: draft, bytes: 4 });
    let mtime = FileTime { secs: 1_234_567, nanos: 89 };
    let item = bench.item(Op::Publish { handle: draft, mtime: Some(mtime) });
    assert_eq!((size(&item), item.entry.meta.mtime), (4, mtime));
    // Nothing was written since: the same version, with another mtime.
    let later = FileTime { secs: 2_345_678, nanos: 9 };
    let again = bench.item(Op::Publish { handle: draft, mtime: Some(later) });
    assert_eq!((again.ino, again.entry.meta.mtime), (item.ino, later));
    bench.done(Op::SetLen { handle: draft, bytes: 6 });
    bench.publish(draft);
    assert_eq!(bench.text("f"), "0123\0\0");
}

#[test]
fn dropped_drafts_leave_nothing() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "old").unwrap();
    for start in [Start::Empty, Start::Content] {
        let draft = bench.draft("f", start);
        bench.write(draft, 0, b"lost");
        assert_eq!(bench.names().len(), 2);
        bench.done(Op::Close(draft));
    }
    let draft = bench.draft("new", Start::Empty);
    assert_eq!(bench.code(Op::Look(rel("new"))), Code::PathNotFound);
    bench.write(draft, 0, b"lost");
    let Bench { keep, local_files } = bench;
    drop(local_files);
    let left: Vec<_> = fs::read_dir(keep.path().join("base")).unwrap().collect();
    assert_eq!(left.len(), 1);
    assert_eq!(fs::read_to_string(keep.path().join("base/f")).unwrap(), "old");
}

#[test]
fn drafts_of_a_lost_session_are_resumed_by_the_next() {
    let mut bench = Bench::new();
    let (top, left) = (bench.keep.path().to_owned(), Arc::new(AtomicUsize::new(0)));
    let next = |job| local_files(&top, true).leaving(job, left.clone());
    bench.local_files = next(7);
    let (kept, closed) = (bench.draft("f", Start::New), bench.draft("g", Start::Empty));
    bench.write(kept, 2, b"first");
    bench.write(closed, 0, b"given up");
    bench.done(Op::Close(closed));
    bench.local_files = next(7);
    assert_eq!((left.load(Ordering::Relaxed), bench.names().len()), (1, 2));
    let resume = |name: &str, handle| Op::Resume { path: rel(name), handle, mode: 0o640 };
    assert_eq!(bench.code(resume("f", closed)), Code::DraftLost);
    assert_eq!(bench.open(resume("f", kept)), kept);
    assert_eq!(bench.code(resume("f", kept)), Code::DraftLost);
    bench.write(kept, 7, b" and more");
    bench.publish(kept);
    assert_eq!(bench.text("f"), "\0\0first and more");
    bench.write(kept, 0, b"again");
    bench.local_files = next(8);
    assert_eq!(bench.code(resume("f", kept)), Code::DraftLost, "another session's");
    bench.local_files = local_files(&top, true);
    assert_eq!(bench.code(resume("f", kept)), Code::DraftLost);
}

#[test]
fn a_lost_session_changes_no_name_and_the_next_resumes_its_draft() {
    let mut bench = Bench::new();
    let (top, left) = (bench.keep.path().to_owned(), Arc::new(AtomicUsize::new(0)));
    bench.local_files = local_files(&top, true).leaving(7, left.clone());
    fs::write(bench.at("f"), "newer").unwrap();
    let draft = bench.draft("f", Start::Empty);
    bench.write(draft, 0, b"of the one who is gone");
    bench.local_files.fence();
    let (from, to) = (rel("f"), rel("g"));
    let alter = Op::Alter { path: rel("f"), change: Alteration { mode: Some(0), ..Alteration::default() } };
    let publish = Op::Publish { handle: draft, mtime: None };
    for op in [publish, Op::Rename { from, to, replace: true }, Op::Remove(rel("f")), alter] {
        assert_eq!(bench.code(op), Code::ConnectionLost);
    }
    assert_eq!(bench.text("f"), "newer");
    bench.local_files = local_files(&top, true).leaving(7, left);
    assert_eq!(bench.open(Op::Resume { path: rel("f"), handle: draft, mode: 0 }), draft);
    bench.publish(draft);
    assert_eq!(bench.text("f"), "of the one who is gone");
}

#[test]
fn a_publication_waiting_for_the_disk_is_dropped_with_its_session() {
    let keep = tempfile::tempdir().unwrap();
    fs::create_dir(keep.path().join("base")).unwrap();
    let at = keep.path().join("base/f");
    fs::write(&at, "newer").unwrap();
    let store = FaultStore::new(LocalStore::open(keep.path(), AccessMode::ReadWrite).unwrap());
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    store.pause(Call::SyncAll, [begun.clone(), end.clone()]);
    let local_files = LocalFiles::new(Arc::new(store), rel("base"), true).unwrap();
    let opened =
        local_files.operate(Op::Draft { path: rel("f"), start: Start::Empty, mode: 0 }, b"").unwrap();
    let Answer::Opened { handle, .. } = opened else { panic!() };
    local_files.operate(Op::Write { handle, offset: 0 }, b"older").unwrap();
    std::thread::scope(|scope| {
        let published = scope.spawn(|| local_files.operate(Op::Publish { handle, mtime: None }, b""));
        begun.wait();
        local_files.fence();
        end.wait();
        assert_eq!(published.join().unwrap().unwrap_err().code, Code::ConnectionLost);
    });
    assert_eq!(fs::read_to_string(&at).unwrap(), "newer");
}

#[test]
fn a_draft_follows_its_file_and_has_nowhere_to_go_when_that_is_removed() {
    let bench = Bench::new();
    fs::create_dir(bench.at("d")).unwrap();
    let rename = |from: &str, to: &str| Op::Rename { from: rel(from), to: rel(to), replace: true };
    let draft = bench.draft("d/f", Start::New);
    bench.write(draft, 0, b"first");
    bench.done(rename("d/f", "d/g"));
    bench.done(rename("d", "e"));
    bench.publish(draft);
    assert_eq!(bench.text("e/g"), "first");
    bench.done(rename("e/g", "h"));
    bench.write(draft, 0, b"again");
    bench.publish(draft);
    assert_eq!((bench.text("h"), bench.names()), ("again".into(), vec!["e".to_string(), "h".to_string()]));
    bench.write(draft, 0, b"never");
    bench.done(Op::Remove(rel("h")));
    assert_eq!(bench.code(Op::Publish { handle: draft, mtime: None }), Code::PathNotFound);
    bench.done(Op::Close(draft));
    assert_eq!(bench.names(), ["e"]);
    // A file that is replaced by a rename is gone too.
    fs::write(bench.at("x"), "x").unwrap();
    let draft = bench.draft("y", Start::New);
    bench.write(draft, 0, b"y");
    bench.done(rename("x", "y"));
    assert_eq!(bench.code(Op::Publish { handle: draft, mtime: None }), Code::PathNotFound);
    assert_eq!(bench.text("y"), "x");
}

#[test]
fn names_are_made_linked_renamed_and_removed() {
    let bench = Bench::new();
    let dir = bench.item(Op::MakeDir { path: rel("d"), mode: 0o777 });
    assert_eq!((dir.entry.kind, dir.entry.meta.mode & 0o777), (EntryKind::Dir, 0o777));
    assert_eq!(bench.code(Op::MakeDir { path: rel("d"), mode: 0o777 }), Code::PathExists);
    bench.item(Op::MakeSymlink { path: rel("d/l"), target: b"\xff/x".to_vec() });
    assert_eq!(fs::read_link(bench.at("d/l")).unwrap().as_os_str().as_bytes(), b"\xff/x");
    fs::write(bench.at("f"), "f").unwrap();
    assert_eq!(bench.item(Op::MakeLink { from: rel("f"), to: rel("d/g") }).links, 2);
    let rename = |from: &str, to: &str, replace| Op::Rename { from: rel(from), to: rel(to), replace };
    assert_eq!(bench.code(rename("f", "d/l", false)), Code::PathExists);
    assert_eq!(bench.code(rename("d", "d/d", true)), Code::RenamedIntoItself);
    assert_eq!(bench.code(rename("none", "f", true)), Code::PathNotFound);
    bench.done(rename("f", "d/l", true));
    assert_eq!(bench.text("d/l"), "f");
    assert_eq!(bench.code(Op::RemoveDir(rel("d"))), Code::NotEmpty);
    assert_eq!(bench.code(Op::Remove(rel("d"))), Code::IsADirectory);
    for name in ["d/l", "d/g"] {
        bench.done(Op::Remove(rel(name)));
    }
    bench.done(Op::RemoveDir(rel("d")));
    assert!(bench.names().is_empty());
    for op in [Op::RemoveDir(RelPath::root()), Op::Open(RelPath::root()), Op::Remove(RelPath::root())] {
        assert_eq!(bench.code(op), Code::BadPath);
    }
    assert!(matches!(bench.done(Op::Space), Answer::Space(space) if space.total_bytes > 0));
}

#[test]
fn metadata_is_set_in_part() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "f").unwrap();
    let before = bench.item(Op::Look(rel("f")));
    let alter = |change: Alteration| Op::Alter { path: rel("f"), change };
    let mode = bench.item(alter(Alteration { mode: Some(0o600), ..Alteration::default() }));
    assert_eq!((mode.entry.meta.mode, mode.entry.meta.mtime), (0o600, before.entry.meta.mtime));
    let mtime = FileTime { secs: 77, nanos: 5 };
    let time = bench.item(alter(Alteration { mtime: Some(mtime), ..Alteration::default() }));
    assert_eq!((time.entry.meta.mode, time.entry.meta.mtime), (0o600, mtime));
    let owner = Some("no such account".to_string());
    assert_eq!(bench.code(alter(Alteration { owner, ..Alteration::default() })), Code::PermissionDenied);
    let top = Op::Alter {
        path: RelPath::root(),
        change: Alteration { mode: Some(0o711), ..Alteration::default() },
    };
    assert_eq!(bench.item(top).entry.meta.mode, 0o711);
}

#[test]
fn handles_are_bounded_and_belong_to_their_session() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "f").unwrap();
    let file = bench.open(Op::Open(rel("f")));
    assert_eq!(bench.code(Op::ReadDir(file)), Code::NotOpen);
    assert_eq!(
        bench.local_files.operate(Op::Write { handle: file, offset: 0 }, b"x").unwrap_err().code,
        Code::NotOpen
    );
    assert_eq!(bench.code(Op::Publish { handle: file, mtime: None }), Code::NotOpen);
    let dir = bench.open(Op::OpenDir(RelPath::root()));
    assert_eq!(bench.read(dir, 0, 1).unwrap_err().code, Code::NotOpen);
    let other = local_files(bench.keep.path(), true);
    assert_eq!(other.read(file, 0, &mut [0]).unwrap_err().code, Code::NotOpen);
    let draft = bench.draft("f", Start::Empty);
    let large = vec![0; (1 << 20) + 1];
    let refused = bench.local_files.operate(Op::Write { handle: draft, offset: 0 }, &large).unwrap_err();
    assert_eq!(refused.code, Code::ProtocolViolation);
    for _ in 3..MAX_OPEN {
        bench.draft("f", Start::Content);
    }
    assert_eq!(bench.code(Op::Open(rel("f"))), Code::TooManyOpenFiles);
    let new = Op::Draft { path: rel("g"), start: Start::New, mode: 0o600 };
    assert_eq!(bench.code(new), Code::TooManyOpenFiles);
    assert_eq!(bench.code(Op::Look(rel("g"))), Code::PathNotFound);
}

#[test]
fn a_read_only_session_changes_nothing() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "f").unwrap();
    let local_files = local_files(bench.keep.path(), false);
    let code = |op: Op| local_files.operate(op, b"").unwrap_err().code;
    for op in [
        Op::Draft { path: rel("f"), start: Start::Content, mode: 0 },
        Op::Alter { path: rel("f"), change: Alteration::default() },
        Op::MakeDir { path: rel("d"), mode: 0 },
        Op::Remove(rel("f")),
        Op::Rename { from: rel("f"), to: rel("g"), replace: false },
    ] {
        assert_eq!(code(op), Code::ReadOnlyStorage);
    }
    assert!(local_files.operate(Op::Open(rel("f")), b"").is_ok());
}

#[test]
fn a_failed_publication_leaves_the_old_version_and_no_temporary_file() {
    let keep = tempfile::tempdir().unwrap();
    fs::create_dir(keep.path().join("base")).unwrap();
    let at = keep.path().join("base/f");
    for (call, fails_at) in [(Call::WriteAt, "write"), (Call::SyncAll, "publish"), (Call::Rename, "publish")]
    {
        fs::write(&at, "old").unwrap();
        let store = FaultStore::new(LocalStore::open(keep.path(), AccessMode::ReadWrite).unwrap());
        store.inject(Fault::nth(call, 1, Code::IoFailed));
        let local_files = LocalFiles::new(Arc::new(store), rel("base"), true).unwrap();
        let opened =
            local_files.operate(Op::Draft { path: rel("f"), start: Start::Empty, mode: 0 }, b"").unwrap();
        let Answer::Opened { handle, .. } = opened else { panic!() };
        let written = local_files.operate(Op::Write { handle, offset: 0 }, b"new");
        let published = local_files.operate(Op::Publish { handle, mtime: None }, b"");
        let failed = if fails_at == "write" { written } else { published };
        assert_eq!(failed.unwrap_err().code, Code::IoFailed);
        if fails_at == "publish" {
            assert_eq!(fs::read_to_string(&at).unwrap(), "old");
            // A retry is possible.
            local_files.operate(Op::Publish { handle, mtime: None }, b"").unwrap();
            assert_eq!(fs::read_to_string(&at).unwrap(), "new");
        }
        drop(local_files);
        assert_eq!(fs::read_dir(keep.path().join("base")).unwrap().count(), 1);
    }
}

#[test]
fn attributes_forbidden_to_an_account_change_nothing() {
    let bench = Bench::new();
    fs::write(bench.at("f"), "content").unwrap();
    fs::set_permissions(bench.at("f"), fs::Permissions::from_mode(0o600)).unwrap();
    let alter = |mode, mtime| Op::Alter {
        path: rel("f"),
        change: Alteration { mode: Some(mode), mtime, ..Alteration::default() },
    };
    let state = || {
        let found = fs::metadata(bench.at("f")).unwrap();
        (found.mode() & 0o7777, found.mtime(), found.mtime_nsec())
    };
    let before = state();
    std::thread::scope(|scope| {
        let work = || {
            privileges::lend();
            for mode in [0o4755, 0o2755, 0o6600] {
                let mtime = Some(FileTime { secs: 7, nanos: 7 });
                assert_eq!(bench.code(alter(mode, mtime)), Code::PermissionDenied, "{mode:o}");
                assert_eq!(state(), before, "{mode:o}");
            }
            bench.done(alter(0o755, None));
        };
        scope.spawn(work).join().unwrap();
    });
    assert_eq!(state().0, 0o755);
    // Its owner may.
    bench.done(alter(0o4755, None));
    assert_eq!(state().0, 0o4755);
}
