//! The mover between two threads over a store that keeps a log and fails on demand: the order of operations, and the
//! state after failures.

use crate::tree::{self, MIB, assert_same, noise};
use renkei_core::error::{Code, Error};
use renkei_core::mover::filter::Filter;
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::message::{Class, Existing, OnError, Progress, ReceiveOptions, Summary};
use renkei_mover::Stop;
use renkei_mover::progress::Watch;
use renkei_mover::receive::{ReceiveJob, receive, unlimited};
use renkei_mover::send::{SendJob, send};
use renkei_mover::walk::Root;
use renkei_net::control::split;
use renkei_net::identity::account::Account;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::{Credential, generate_key};
use renkei_net::identity::tls::{client_config, server_config, server_name};
use renkei_net::tls::TlsStream;
use renkei_store::Store;
use renkei_store::fault::{Event, Fault, FaultStore, Op};
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::temp::is_temp_name;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime};

const PATIENCE: Duration = Duration::from_secs(20);
/// Data streams of a transfer here.
const STREAMS: usize = 2;

/// A connection over loopback, both ends.
fn connection(host: &Credential, site: &SiteName) -> (TlsStream, TlsStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let server = server_config(host).unwrap();
    let accepting = std::thread::spawn(move || TlsStream::accept(accepted, server, &[], PATIENCE).unwrap());
    let client = TlsStream::connect(sock, client_config(host).unwrap(), server_name(site), PATIENCE).unwrap();
    (client, accepting.join().unwrap())
}

fn credential(site: &SiteName) -> Credential {
    let authority = Authority::create(site, SystemTime::now()).unwrap();
    let key = generate_key().unwrap();
    let issued = authority.issue_host(&key, &[], SystemTime::now()).unwrap();
    Credential::parse(&issued.pem, &key.serialize_pem(), Path::new("test")).unwrap()
}

#[test]
fn queued_bytes_are_sent_with_the_next_write() {
    let site = SiteName::parse("kek").unwrap();
    let (mut near, mut far) = connection(&credential(&site), &site);
    far.bear_silence(Duration::from_millis(200)).unwrap();
    let mut bytes = [0; 6];
    near.queue(b"abc").unwrap();
    assert_eq!(far.read_exact(&mut bytes[..1]).unwrap_err().code, Code::Stalled);
    far.bear_silence(PATIENCE).unwrap();
    near.write_all(b"def").unwrap();
    far.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"abcdef");
    near.queue(b"abc").unwrap();
    near.flush().unwrap();
    far.read_exact(&mut bytes[..3]).unwrap();
    // More than is queued goes at once, and in order.
    let (start_bytes, more_bytes) = (9 << 10, 300 << 10);
    let (start, more) = (noise(1, start_bytes), noise(2, more_bytes));
    near.queue(&start).unwrap();
    near.queue(&start).unwrap();
    let reading = std::thread::spawn(move || {
        let mut all = vec![0; 2 * start_bytes + more_bytes];
        far.read_exact(&mut all).map(|()| all)
    });
    near.write_all(&more).unwrap();
    assert!(reading.join().unwrap().unwrap() == [&start[..], &start, &more].concat());
}

/// The reports of both ends, and the acknowledgements of the sender.
struct Outcome {
    sent: Result<Summary, Error>,
    received: Result<Summary, Error>,
    told: Progress,
}

/// Sends the tree in `from` into `store`.
fn transfer(from: &Path, store: &dyn Store) -> Outcome {
    transfer_as(&Account::own().unwrap(), from, store)
}

/// Sends the tree in `from` into `store`; an account reads and writes.
fn transfer_as(account: &Account, from: &Path, store: &dyn Store) -> Outcome {
    let site = SiteName::parse("kek").unwrap();
    let host = credential(&site);
    let (control, far_control) = connection(&host, &site);
    let (streams, far_streams) = (0..STREAMS).map(|_| connection(&host, &site)).unzip();
    let source = LocalStore::open(from, AccessMode::ReadOnly).unwrap();
    let root = Root {
        dir: source.root().unwrap(),
        from: RelPath::root(),
        to: RelPath::root(),
        alone: false,
        shown: String::new(),
    };
    let job = SendJob {
        roots: vec![root],
        recursive: true,
        offers: false,
        digests: false,
        dry_run: false,
        limit: None,
        class: Class::Normal,
        on_error: OnError::Skip,
        onto: None,
        filter: Filter::default(),
        side: "client".into(),
        account: account.clone(),
        keep: None,
        compare: None,
    };
    let receive_job = ReceiveJob {
        base: store.root().unwrap(),
        job: 7,
        options: ReceiveOptions::plain(Existing::Replace),
        journal: None,
        max_deferred: 1000,
        memory: unlimited(),
        root: "/data".into(),
        account: account.clone(),
        side: "kek".into(),
        keep: None,
        within: vec![RelPath::root()],
        receive_hooks: None,
        on_digest: None,
    };
    let watch = Watch::default();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            let (_, mut control) = split(far_control, PATIENCE).unwrap();
            receive(receive_job, &mut control, far_streams, &Watch::default(), &Stop::default())
        });
        let (_, mut control) = split(control, PATIENCE).unwrap();
        let sent = send(job, &mut control, streams, &watch, &Stop::default());
        Outcome { sent, received: receiving.join().unwrap(), told: watch.look() }
    })
}

/// Small and large files, links and directories: everything that is committed in its own way.
fn make_source(top: &Path) {
    fs::create_dir_all(top.join("d/e")).unwrap();
    for (index, name) in ["a", "b", "d/c", "d/e/f"].into_iter().enumerate() {
        fs::write(top.join(name), noise(index as u64, 1000)).unwrap();
    }
    fs::write(top.join("d/large"), noise(9, 17 * MIB)).unwrap();
    fs::write(top.join("middle"), noise(8, 2 * MIB)).unwrap();
    std::os::unix::fs::symlink("a", top.join("d/l")).unwrap();
    fs::hard_link(top.join("a"), top.join("d/h")).unwrap();
}

/// Whether `sync` makes the content of the file at `path` last.
fn syncs_content(sync: &Event, path: &RelPath) -> bool {
    let succeeded = sync.failed.is_none();
    let of_file = matches!(sync.op, Op::SyncData | Op::SyncAll | Op::SyncFile) && sync.path == *path;
    succeeded && (of_file || sync.op == Op::SyncFs)
}

/// Whether `sync` makes the name `path` last.
fn syncs_name(sync: &Event, path: &RelPath) -> bool {
    let of_dir = sync.op == Op::SyncDir && Some(&sync.path) == path.parent().as_ref();
    sync.failed.is_none() && (of_dir || sync.op == Op::SyncFs)
}

/// The renames of files to their final names that went well.
fn final_renames(events: &[Event]) -> impl Iterator<Item = &Event> {
    events.iter().filter(|event| {
        let temp = event.path.name().is_some_and(is_temp_name);
        event.op == Op::Rename && event.failed.is_none() && temp
    })
}

/// Fails if a file got its final name before its last change was synced.
fn assert_content_before_name(events: &[Event]) {
    for rename in final_renames(events) {
        let changes = events.iter().filter(|event| {
            event.path == rename.path
                && matches!(event.op, Op::WriteAt | Op::SetLen | Op::SetMeta | Op::Allocate)
        });
        let Some(last) = changes.max_by_key(|event| event.ended) else { continue };
        let synced = events
            .iter()
            .any(|sync| syncs_content(sync, &rename.path) && last.precedes(sync) && sync.precedes(rename));
        let is_link = !events.iter().any(|event| event.op == Op::CreateTemp && event.path == rename.path);
        assert!(synced || is_link, "{} was renamed before it was synced", rename.path);
    }
}

/// Number of files with durable final names, whatever happens next.
fn durable_files(events: &[Event]) -> u64 {
    let lasts = |rename: &&Event| {
        let to = rename.to.as_ref().unwrap();
        let is_file = events.iter().any(|event| event.op == Op::CreateTemp && event.path == rename.path);
        is_file && events.iter().any(|sync| syncs_name(sync, to) && rename.precedes(sync))
    };
    final_renames(events).filter(lasts).count() as u64
}

fn prepared() -> (tempfile::TempDir, FaultStore<LocalStore>) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("from")).unwrap();
    fs::create_dir(dir.path().join("to")).unwrap();
    make_source(&dir.path().join("from"));
    let store = FaultStore::new(LocalStore::open(&dir.path().join("to"), AccessMode::ReadWrite).unwrap());
    (dir, store)
}

#[test]
fn files_are_synced_before_the_rename_and_before_the_acknowledgement() {
    let (dir, store) = prepared();
    let outcome = transfer(&dir.path().join("from"), &store);
    let summary = outcome.sent.unwrap();
    assert_eq!((summary.files, summary.failed), (6, 0), "{summary:?}");
    assert_eq!(outcome.received.unwrap(), summary);
    assert_same(&tree::read(&dir.path().join("from")), &tree::read(&dir.path().join("to")));
    let events = store.events();
    assert_content_before_name(&events);
    assert_eq!(durable_files(&events), 6);
    // After the last sync there are only changes that need no sync.
    let last_change =
        events.iter().filter(|event| event.op.changes() && !is_sync(event.op)).map(|e| e.ended).max();
    let last_sync = events.iter().filter(|event| is_sync(event.op)).map(|event| event.began).max();
    assert!(last_sync > last_change, "{last_sync:?} {last_change:?}");
}

fn is_sync(op: Op) -> bool {
    matches!(op, Op::SyncData | Op::SyncAll | Op::SyncFile | Op::SyncDir | Op::SyncFs)
}

/// The machine stops at every single change in turn: acknowledged files are on the disk. Disks and parallel file
/// systems write whole blocks at their own boundaries best.
#[test]
fn large_files_are_written_in_whole_aligned_blocks() {
    let (dir, store) = prepared();
    let from = dir.path().join("one");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("f"), noise(1, 9 * MIB + 5000)).unwrap();
    transfer(&from, &store).sent.unwrap();
    let events = store.take_events();
    let mut written: Vec<_> =
        events.iter().filter(|event| event.op == Op::WriteAt).map(|event| event.range.clone()).collect();
    written.sort_unstable_by_key(|range| range.start);
    let mib = MIB as u64;
    let mut expected: Vec<_> = (0..9).map(|index| index * mib..(index + 1) * mib).collect();
    expected.push(9 * mib..9 * mib + 5000);
    assert_eq!(written, expected);
}

#[test]
fn a_crash_at_any_moment_loses_nothing_acknowledged() {
    let (dir, store) = prepared();
    transfer(&dir.path().join("from"), &store).sent.unwrap();
    let changes = store.events().iter().filter(|event| event.op.changes()).count() as u64;
    assert!(changes > 40, "{changes}");
    let mut partly = 0;
    for at in 1..=changes {
        let to = dir.path().join(format!("to{at}"));
        fs::create_dir(&to).unwrap();
        let store = FaultStore::new(LocalStore::open(&to, AccessMode::ReadWrite).unwrap());
        store.inject(Fault::stop_at(at));
        let outcome = transfer(&dir.path().join("from"), &store);
        let events = store.events();
        assert_content_before_name(&events);
        let durable = durable_files(&events);
        assert!(outcome.told.files_done <= durable, "stop at {at}: {:?}, {durable} durable", outcome.told);
        partly += u64::from(outcome.told.files_done > 0);
        if let Ok(summary) = outcome.sent {
            assert!(at > changes / 2 || summary.failed > 0, "stop at {at}: {summary:?}");
        }
        fs::remove_dir_all(&to).unwrap();
    }
    eprintln!("{changes} moments, {partly} with something acknowledged before");
}

/// A failure of one call: the right code, on the right side, and no file that differs under a final name.
#[test]
fn failures_keep_their_code_and_leave_no_bad_file() {
    let cases = [
        (Op::WriteAt, 1, Code::NoSpace, true),
        (Op::WriteAt, 7, Code::NoSpace, true),
        (Op::WriteAt, 3, Code::QuotaExceeded, true),
        (Op::WriteAt, 5, Code::IoFailed, false),
        (Op::Allocate, 1, Code::NoSpace, true),
        (Op::CreateTemp, 2, Code::QuotaExceeded, true),
        (Op::CreateTemp, 2, Code::NameTooLong, false),
        (Op::MakeDir, 1, Code::NoSpace, true),
        (Op::SetMeta, 2, Code::IoFailed, false),
        (Op::Rename, 1, Code::IoFailed, false),
        (Op::Rename, 3, Code::NoSpace, true),
        (Op::SyncFile, 1, Code::IoFailed, true),
        (Op::SyncFile, 2, Code::NoSpace, true),
        (Op::SyncDir, 1, Code::IoFailed, true),
        (Op::HardLink, 1, Code::IoFailed, false),
        (Op::Symlink, 1, Code::Unsupported, false),
    ];
    for (op, nth, code, ends) in cases {
        let (dir, store) = prepared();
        store.inject(Fault::nth(op, nth, code));
        let outcome = transfer(&dir.path().join("from"), &store);
        assert!(
            store.events().iter().any(|event| event.failed == Some(code)),
            "{op:?} {nth} was not reached"
        );
        let case = format!("{op:?} {nth} {code:?}");
        match outcome.sent {
            Err(error) => {
                assert!(ends, "{case}: {error}");
                assert_eq!((error.code, error.side.as_str()), (code, "kek"), "{case}: {error}");
                assert_eq!(outcome.received.unwrap_err().code, code, "{case}");
            }
            Ok(summary) => {
                assert!(!ends, "{case}: {summary:?}");
                let codes: Vec<Code> = summary.failures.iter().map(|failure| failure.error.code).collect();
                assert!(codes.contains(&code), "{case}: {summary:?}");
                assert!(summary.failures.iter().all(|failure| failure.error.side == "kek"), "{case}");
            }
        }
        assert_final_names_are_whole(&dir.path().join("from"), &dir.path().join("to"), &case);
    }
}

/// Every file under a final name has the source's content.
fn assert_final_names_are_whole(from: &Path, to: &Path, case: &str) {
    let mut pending = vec![to.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for listed in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = listed.file_name();
            if listed.file_type().unwrap().is_dir() {
                pending.push(listed.path());
            } else if listed.file_type().unwrap().is_file()
                && !is_temp_name(std::os::unix::ffi::OsStrExt::as_bytes(name.as_os_str()))
            {
                let source = from.join(listed.path().strip_prefix(to).unwrap());
                let same = fs::read(source).unwrap() == fs::read(listed.path()).unwrap();
                assert!(same, "{case}: {name:?} differs");
            }
        }
    }
}

fn give_to_nobody(top: &Path, nobody: &Account) {
    let mut pending = vec![top.to_path_buf()];
    while let Some(path) = pending.pop() {
        std::os::unix::fs::lchown(&path, Some(nobody.uid), Some(nobody.gid)).unwrap();
        if path.symlink_metadata().unwrap().is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|listed| listed.unwrap().path()));
        }
    }
}

/// A tree with read-only directories is copied over its earlier copy, by an account that modes hold back.
#[test]
fn a_read_only_tree_is_copied_again_by_an_ordinary_account() {
    use std::os::unix::fs::PermissionsExt;
    if !Account::own().unwrap().name.eq("root") {
        return eprintln!("skipped: needs root to become another account");
    }
    let nobody = Account::lookup("nobody").unwrap();
    let (dir, store) = prepared();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(dir.path(), 0o755);
    // So many files at the top that both streams bring some.
    (0..4000).for_each(|n| fs::write(from.join(format!("n{n}")), noise(n, 900)).unwrap());
    for (locked, mode) in [("d/e", 0o500), ("d", 0o555), ("", 0o555)] {
        set_mode(&from.join(locked), mode);
    }
    give_to_nobody(dir.path(), &nobody);
    for round in 0..2 {
        let outcome = transfer_as(&nobody, &from, &store);
        let summary = outcome.sent.unwrap();
        assert_eq!((summary.files, summary.failed), (4006, 0), "{round}: {summary:?}");
        assert_same(&tree::read(&from), &tree::read(&to));
    }
}
