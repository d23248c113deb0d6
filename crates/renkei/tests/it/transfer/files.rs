//! File sessions against a real PoP: many callers on several streams, PoPs that are killed, users that are revoked, and
//! clients that talk nonsense.

use crate::federation::{Federation, Site, account};
use crate::relay::proxy::Proxy;
use crate::tree::{MIB, noise};
use crate::wire::raw;
use crate::wire::raw::PATIENCE;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::data::Ticket;
use renkei_core::wire::decode;
use renkei_core::wire::file::{
    Answer, Consistency, Files, Handle, Locality, MAX_IO_BYTES, Op, OpenFiles, Start, begin_frame,
};
use renkei_core::wire::frame::{FrameKind, IDLE, head};
use renkei_core::wire::message::Request;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use renkei_mover::files::workspace::{Create, Workspace};
use renkei_mover::files::workspace_suite;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How soon something that is not waited for must have happened; generous, for busy machines.
const SOON: Duration = Duration::from_secs(20);

fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn far(at: &Site, of: &Site, path: &str, write: bool) -> RemoteDir {
    let dialler = raw::dialler(at, &raw::user(at));
    RemoteDir { dialler, site: raw::name(of), place: raw::place(path), write }
}

fn open(federation: &Federation, path: &str, when_lost: WhenLost) -> RemoteFiles {
    let Federation { titech, kek, .. } = federation;
    RemoteFiles::open(far(titech, kek, path, true), Config { when_lost, ..Config::default() }).unwrap()
}

fn handle(answer: Result<Answer, Error>) -> Handle {
    match answer.unwrap() {
        Answer::Opened { handle, .. } => handle,
        other => panic!("{other:?}"),
    }
}

fn draft(files: &RemoteFiles, path: &str, start: Start) -> Handle {
    handle(files.operate(Op::Draft { path: rel(path), start, mode: 0o644 }, b""))
}

fn publish(files: &RemoteFiles, handle: Handle) -> Result<Answer, Error> {
    files.operate(Op::Publish { handle, mtime: None }, b"")
}

fn read_all(files: &RemoteFiles, handle: Handle, at_once: usize) -> Result<Vec<u8>, Error> {
    let (mut all, mut buf) = (Vec::new(), vec![0; at_once]);
    loop {
        match files.read(handle, all.len() as u64, &mut buf)? {
            0 => return Ok(all),
            count => all.extend_from_slice(&buf[..count]),
        }
    }
}

#[test]
fn many_callers_read_and_write_concurrently() {
    let federation = Federation::two();
    let kek = &federation.kek;
    fs::create_dir(kek.root().join("d")).unwrap();
    let files = open(&federation, "/data/d", WhenLost::Fail(PATIENCE));
    assert!(files.streams() > 1);
    let (_, status) = kek.json(&["status"]);
    assert_eq!(status["transfers"][0]["direction"], "files");
    std::thread::scope(|scope| {
        for number in 0..6_u64 {
            let files = &files;
            scope.spawn(move || {
                let (name, content) = (format!("f{number}"), noise(number, 5 * MIB + number as usize));
                let file = draft(files, &name, Start::New);
                for (part, at) in content.chunks(100_000).zip((0..).step_by(100_000)) {
                    files.operate(Op::Write { handle: file, offset: at }, part).unwrap();
                }
                // Written bytes are read back, even before they are published.
                let mut seen = [0; 10];
                assert_eq!(files.read(file, 123_456, &mut seen).unwrap(), 10);
                assert_eq!(seen, content[123_456..123_466]);
                publish(files, file).unwrap();
                files.operate(Op::Close(file), b"").unwrap();
                let file = handle(files.operate(Op::Open(rel(&name)), b""));
                assert!(read_all(files, file, 64 << 10).unwrap() == content);
                // Here and there, beyond the end, and backwards.
                for at in [4 * MIB, 17, 3 * MIB + 5, 5 * MIB - 3, 5 * MIB + 100] {
                    let mut buf = [0; 1000];
                    let count = files.read(file, at as u64, &mut buf).unwrap();
                    assert_eq!(buf[..count], content[at.min(content.len())..(at + 1000).min(content.len())]);
                }
                files.operate(Op::Close(file), b"").unwrap();
            });
        }
    });
    for number in 0..6 {
        assert!(
            fs::read(kek.root().join(format!("d/f{number}"))).unwrap()
                == noise(number, 5 * MIB + number as usize)
        );
    }
    assert_eq!(fs::read_dir(kek.root().join("d")).unwrap().count(), 6);
}

#[test]
fn a_hundred_thousand_requests_are_pipelined() {
    let federation = Federation::two();
    fs::write(federation.kek.root().join("f"), "12345").unwrap();
    let files = open(&federation, "/data", WhenLost::Fail(PATIENCE));
    let ops = (0..100_000).map(|number| Op::Look(rel(if number % 2 == 0 { "f" } else { "none" })));
    let mut answered = 0;
    let on_answer = |answer: Result<Answer, Error>| {
        match answer {
            Ok(Answer::Item(item)) => assert!(answered % 2 == 0 && item.entry.size() == 5),
            Err(error) => assert!(answered % 2 == 1 && error.code == Code::PathNotFound, "{error}"),
            Ok(other) => panic!("{other:?}"),
        }
        answered += 1;
        Ok(())
    };
    files.ask_each(ops, on_answer).unwrap();
    assert_eq!(answered, 100_000);
}

#[test]
fn errors_name_the_path_and_the_site() {
    let federation = Federation::two();
    let files = open(&federation, "/data", WhenLost::Fail(PATIENCE));
    let missing = files.operate(Op::Open(rel("no/file")), b"").unwrap_err();
    assert_eq!((missing.code, missing.side.as_str()), (Code::PathNotFound, "kek"));
    assert!(missing.subject.starts_with("/data/no"), "{missing}");
    assert_eq!(files.operate(Op::Close(77), b"").unwrap_err().code, Code::NotOpen);
    let reader =
        RemoteFiles::open(far(&federation.titech, &federation.kek, "/data", false), Config::default());
    let refused = reader.unwrap().operate(Op::MakeDir { path: rel("d"), mode: 0o755 }, b"").unwrap_err();
    assert_eq!(refused.code, Code::ReadOnlyStorage);
    let nowhere =
        RemoteFiles::open(far(&federation.titech, &federation.kek, "/data/none", false), Config::default());
    assert_eq!(nowhere.err().unwrap().code, Code::PathNotFound);
}

#[test]
fn open_files_are_reopened_after_a_kill_of_the_pop() {
    let mut federation = Federation::two();
    let root = federation.kek.root().to_owned();
    let content = noise(1, 3 * MIB);
    fs::write(root.join("same"), &content).unwrap();
    fs::write(root.join("other"), &content).unwrap();
    let files = open(&federation, "/data", WhenLost::Wait);
    let same = handle(files.operate(Op::Open(rel("same")), b""));
    let other = handle(files.operate(Op::Open(rel("other")), b""));
    let (written, clean) = (draft(&files, "written", Start::New), draft(&files, "clean", Start::New));
    files.operate(Op::Write { handle: written, offset: 0 }, &content[..MIB]).unwrap();
    let mut buf = vec![0; MIB];
    files.read(same, 0, &mut buf).unwrap();
    federation.kek.kill9();
    fs::write(root.join("fresh"), "").unwrap();
    fs::rename(root.join("fresh"), root.join("other")).unwrap();
    std::thread::scope(|scope| {
        // It waits for the PoP to come back.
        let waits = scope.spawn(|| read_all(&files, same, 300_000).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished());
        federation.kek.restart();
        assert!(waits.join().unwrap() == content);
    });
    assert_eq!(files.read(other, 0, &mut buf).unwrap_err().code, Code::SourceChanged);
    files.operate(Op::Write { handle: written, offset: MIB as u64 }, b"and more").unwrap();
    publish(&files, written).unwrap();
    assert!(fs::read(root.join("written")).unwrap() == [&content[..MIB], b"and more"].concat());
    files.operate(Op::Write { handle: clean, offset: 0 }, b"after all").unwrap();
    publish(&files, clean).unwrap();
    assert_eq!(fs::read_to_string(root.join("clean")).unwrap(), "after all");
}

#[test]
fn a_writer_survives_a_broken_connection() {
    let federation = Federation::two();
    let proxy = Proxy::to(&federation.kek);
    proxy.put_between(&federation.titech, &federation.kek);
    let files = open(&federation, "/data", WhenLost::Wait);
    let content = noise(7, 24 * MIB);
    let file = draft(&files, "f", Start::New);
    for (number, part) in content.chunks(100_000).enumerate() {
        if number % 80 == 40 {
            proxy.cut();
        }
        let offset = 100_000 * number as u64;
        files.operate(Op::Write { handle: file, offset }, part).unwrap();
    }
    // The last cut has been noticed by then: a rename that was under way is an error.
    files.operate(Op::Look(rel("f")), b"").unwrap();
    files.operate(Op::Rename { from: rel("f"), to: rel("g"), replace: false }, b"").unwrap();
    proxy.cut();
    publish(&files, file).unwrap();
    assert!(fs::read(federation.kek.root().join("g")).unwrap() == content);
    drop(files);
    let start = Instant::now();
    while crate::tree::count(federation.kek.root()) > 1 {
        assert!(start.elapsed() < SOON, "something is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_draft_missing_at_the_site_is_reported_as_lost() {
    let mut federation = Federation::two();
    let root = federation.kek.root().to_owned();
    let files = open(&federation, "/data", WhenLost::Wait);
    let (written, unsent) = (draft(&files, "written", Start::New), draft(&files, "unsent", Start::New));
    files.operate(Op::Write { handle: written, offset: 0 }, b"unpublished").unwrap();
    files.read(written, 0, &mut [0; 4]).unwrap();
    files.operate(Op::Write { handle: unsent, offset: 0 }, b"kept here").unwrap();
    federation.kek.kill9();
    for left in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        if left.file_name().unwrap().as_encoded_bytes().starts_with(b".rk~") {
            fs::remove_file(left).unwrap();
        }
    }
    federation.kek.restart();
    for _ in 0..2 {
        assert_eq!(publish(&files, written).unwrap_err().code, Code::DraftLost);
    }
    publish(&files, unsent).unwrap();
    assert_eq!(fs::read_to_string(root.join("written")).unwrap(), "", "no half of it");
    assert_eq!(fs::read_to_string(root.join("unsent")).unwrap(), "kept here");
}

#[test]
fn a_no_wait_caller_gets_the_lost_connection_as_an_error() {
    let mut federation = Federation::two();
    let files = open(&federation, "/data", WhenLost::Fail(Duration::from_millis(300)));
    federation.kek.kill9();
    let start = Instant::now();
    let lost = files.operate(Op::Look(RelPath::root()), b"").unwrap_err();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(matches!(lost.code, Code::PortClosed | Code::ConnectionLost | Code::SiteUnreachable), "{lost}");
}

#[test]
fn an_unmapped_user_loses_access_at_once() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let files = open(&federation, "/data", WhenLost::Wait);
    let file = draft(&files, "f", Start::New);
    files.operate(Op::Write { handle: file, offset: 0 }, b"unpublished").unwrap();
    files.read(file, 0, &mut [0; 4]).unwrap();
    kek.ok(&["map", "remove", &format!("{}@{}", account(), titech.name)]);
    let start = Instant::now();
    let refused = loop {
        match files.operate(Op::Look(RelPath::root()), b"") {
            Ok(_) => assert!(start.elapsed() < SOON, "it goes on"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(refused.code, Code::NotMapped, "{refused}");
    assert_eq!(publish(&files, file).unwrap_err().code, Code::NotMapped);
    // Unpublished writes are gone completely.
    while crate::tree::count(kek.root()) > 1 {
        assert!(start.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read(kek.root().join("f")).unwrap(), b"");
}

#[test]
fn an_orderly_end_leaves_no_draft_and_no_journal() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let files = open(&federation, "/data", WhenLost::Wait);
    let file = draft(&files, "f", Start::Empty);
    files.operate(Op::Write { handle: file, offset: 0 }, &noise(1, MIB)).unwrap();
    files.read(file, 0, &mut [0; 4]).unwrap();
    assert_eq!(crate::tree::count(kek.root()), 1);
    let journals = || fs::read_dir(raw::home(kek).journal_dir()).unwrap().count();
    assert_eq!(journals(), 1);
    drop(files);
    let start = Instant::now();
    while crate::tree::count(kek.root()) + journals() > 0 {
        assert!(start.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(kek.json(&["status"]).1["transfers"].as_array().unwrap().is_empty());
}

static NEXT_KEY: AtomicU8 = AtomicU8::new(1);

/// A session opened by hand: the ticket, and its connection.
fn opened(federation: &Federation) -> (renkei_mover::connect::dial::Session, Ticket) {
    let Federation { titech, kek, .. } = federation;
    let mut session = raw::connect(titech, &raw::user(titech), kek).unwrap();
    let open = OpenFiles {
        id: [9; 16],
        place: raw::place("/data"),
        write: true,
        max_streams: 1,
        key: [NEXT_KEY.fetch_add(1, Ordering::Relaxed); 16],
        leases: false,
        locks: [9; 16],
        consistency: Consistency::default(),
    };
    let ticket = session.ask_open(Request::OpenFiles(open)).unwrap().ticket;
    (session, ticket)
}

#[test]
fn a_malformed_stream_ends_only_its_session() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    fs::write(kek.root().join("f"), "content").unwrap();
    let good = open(&federation, "/data", WhenLost::Fail(Duration::ZERO));
    let file = handle(good.operate(Op::Open(rel("f")), b""));
    let frame =
        |op: &Op, content: &[u8]| [begin_frame(FrameKind::Op, op, content.len()), content.to_vec()].concat();
    let large = vec![0; MAX_IO_BYTES as usize + 1];
    let write = Op::Write { handle: 1, offset: 0 };
    let mut attacks = vec![
        frame(&Op::Space, b"content of nothing"),
        frame(&write, &large),
        [&head(FrameKind::Op, 3)[..], &[0; 3]].concat(),
        [&head(FrameKind::Op, 8)[..], &[255; 8]].concat(),
        [&head(FrameKind::Op, 8)[..], &[0, 0, 0, 4, 250, 250, 250, 250]].concat(),
        [&head(FrameKind::Answer, 5)[..], &[0, 0, 0, 1, 0]].concat(),
        [&head(FrameKind::Control, 5)[..], &[0; 5]].concat(),
        [&head(FrameKind::Extent, 0)[..]].concat(),
        // A path that leads out, as no correct client can write it.
        frame_of(&[0, 5, b'.', b'.', b'/', b'.', b'.']),
    ];
    for seed in 0..20 {
        attacks.push(frame_of(&noise(seed, 200)));
        attacks.push(noise(seed, 5000));
    }
    for (number, attack) in attacks.into_iter().enumerate() {
        let (session, ticket) = opened(&federation);
        let mut stream = raw::secure(titech, kek);
        raw::join(&mut stream, ticket);
        stream.write_all(&IDLE).unwrap();
        stream.write_all(&frame(&Op::Look(rel("f")), b"")).unwrap();
        let (kind, payload) = raw::take(&mut stream).unwrap();
        assert_eq!(kind, FrameKind::Answer);
        assert!(matches!(decode("answer", &payload[4..]), Ok(Answer::Item(_))));
        let _ = stream.write_all(&attack);
        let _ = stream.write_all(&frame(&Op::Space, b""));
        // Noise may be an operation that is refused; then the session goes on and this one answers.
        while let Ok((kind, _)) = raw::take(&mut stream) {
            assert_eq!(kind, FrameKind::Answer, "attack {number}");
            stream.shutdown();
        }
        drop(session);
    }
    let mut buf = [0; 7];
    assert_eq!(good.read(file, 0, &mut buf).unwrap(), 7);
    assert_eq!((kek.pid(), &buf), (pid, b"content"));
    assert!(!kek.logged().contains("panicked"), "{}", kek.logged());
}

/// An operation's frame with these bytes in the operation's place.
fn frame_of(op: &[u8]) -> Vec<u8> {
    [&head(FrameKind::Op, 4 + op.len())[..], &(op.len() as u32).to_be_bytes(), op].concat()
}

#[test]
fn handles_of_another_session_are_refused() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    fs::write(kek.root().join("f"), "content").unwrap();
    let ask = |stream: &mut renkei_net::tls::TlsStream, op: &Op| -> Answer {
        stream.write_all(&begin_frame(FrameKind::Op, op, 0)).unwrap();
        let (_, payload) = raw::take(stream).unwrap();
        let length = u32::from_be_bytes(*payload.first_chunk().unwrap()) as usize;
        decode("answer", &payload[4..4 + length]).unwrap()
    };
    let joined = || {
        let (session, ticket) = opened(&federation);
        let mut stream = raw::secure(titech, kek);
        raw::join(&mut stream, ticket);
        (session, stream)
    };
    let ((_one, mut first), (_two, mut second)) = (joined(), joined());
    let Answer::Opened { handle, .. } = ask(&mut first, &Op::Open(rel("f"))) else { panic!() };
    let read = Op::Read { handle, offset: 0, bytes: 7 };
    assert_eq!(ask(&mut first, &read), Answer::Data(7));
    let refused = ask(&mut second, &read);
    assert!(matches!(&refused, Answer::Failed(error) if error.code == Code::NotOpen), "{refused:?}");
    let too_much = Op::Read { handle, offset: 0, bytes: MAX_IO_BYTES + 1 };
    let refused = ask(&mut first, &too_much);
    assert!(
        matches!(&refused, Answer::Failed(error) if error.code == Code::ProtocolViolation),
        "{refused:?}"
    );
}

#[test]
fn cat_and_put_carry_bytes_between_programs_and_sites() {
    use std::io::Write;
    use std::process::Stdio;
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let content = noise(3, 3 * MIB + 17);
    let mut put = titech
        .command()
        .args(["put", "--mode", "600", &kek.place("f")])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    put.stdin.take().unwrap().write_all(&content).unwrap();
    assert!(put.wait().unwrap().success());
    assert!(fs::read(kek.root().join("f")).unwrap() == content);
    fs::create_dir(kek.root().join("d")).unwrap();
    std::os::unix::fs::symlink("../f", kek.root().join("d/link")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", kek.root().join("out")).unwrap();
    let here = federation.scratch().join("here");
    fs::write(&here, "and this").unwrap();
    let output = titech.command().args(["cat", &kek.place("d/link")]).arg(&here).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout == [&content[..], b"and this"].concat());
    for (path, status) in [("none", 3), ("d", 4), ("out", 5)] {
        let output = titech.command().args(["cat", &kek.place(path)]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
    }
}

/// A workspace at a site, for titech's user.
pub fn workspace(from: &Site, of: &Site, place: &str) -> Workspace {
    Workspace::new(Arc::new(RemoteFiles::open(far(from, of, place, true), Config::default()).unwrap()))
}

#[test]
fn a_storage_of_another_site_passes_the_suite() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    fs::create_dir(kek.root().join("place")).unwrap();
    let workspace = workspace(titech, kek, "/data/place");
    workspace_suite::all(&workspace);
    workspace_suite::checksums_on_demand(&workspace);
    if workspace_suite::takes_attributes(kek.root()) {
        workspace_suite::attributes_of_users(&workspace);
    }
    workspace_suite::conditions(&workspace);
    drop(workspace);
    let begun = Instant::now();
    // The PoP removes the leftovers of a session after its end.
    while fs::read_dir(kek.root().join("place")).unwrap().count() > 0 {
        assert!(begun.elapsed() < SOON, "something is left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_volume_passes_the_suite_at_its_home_and_where_it_is_followed() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    let home = workspace(titech, kek, "/genome");
    workspace_suite::all(&home);
    workspace_suite::checksums_on_demand(&home);
    if workspace_suite::takes_attributes(kek.root()) {
        workspace_suite::attributes_of_users(&home);
    }
    let account = account();
    titech.ok(&[
        "volume",
        "subscribe",
        "genome",
        "--from",
        "kek",
        "--storage",
        "data",
        "--account",
        &account,
    ]);
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    let begun = Instant::now();
    while titech.json(&["volume", "show", "genome"]).1["standing"]["followed"]["writes"] != true {
        assert!(begun.elapsed() < Duration::from_secs(45), "it may not write");
        std::thread::sleep(Duration::from_millis(50));
    }
    let followed = workspace(titech, titech, "/genome");
    workspace_suite::all(&followed);
    workspace_suite::checksums_on_demand(&followed);
    // Content that this site does not have is brought, and given up.
    let (file, plain) = (rel("far"), titech.root().join("genome/far"));
    let far = home.create(&file, Create::default()).unwrap();
    far.write_at(b"content", 0).unwrap();
    far.publish(None, None).unwrap();
    for _ in 0..2 {
        assert_eq!(followed.locality(&file), Ok(Locality::Elsewhere));
        followed.stage(&file).unwrap();
        assert_eq!(followed.locality(&file), Ok(Locality::Online));
        assert_eq!(fs::read(&plain).unwrap(), b"content");
        followed.release(&file).unwrap();
        assert!(!plain.exists());
    }
    let own = followed.create(&rel("own"), Create::default()).unwrap();
    own.publish(None, None).unwrap();
    assert_eq!(followed.locality(&rel("own")), Ok(Locality::Online));
    if workspace_suite::takes_attributes(kek.root()) {
        workspace_suite::attributes_of_users(&followed);
    }
}
