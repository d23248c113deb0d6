//! A credential that is restricted to rights on path prefixes, for no transfer.

use crate::federation::Site;
use crate::wire::raw;
use renkei_core::error::Code;
use renkei_core::identity::{Permit, Rights, Scope};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Files, Op, Start};
use renkei_core::wire::message::{Algorithm, OpenReceive, Reply, Request};
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::delegation::{Delegator, issue};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

const READ: Rights = Rights::READ.and(Rights::LIST);
const MODIFY: Rights = Rights::CREATE.and(Rights::MODIFY).and(Rights::DELETE);

/// A site with some files, and a credential of its user for some places there.
struct Restricted {
    site: Site,
    credential: Credential,
    _dir: tempfile::TempDir,
}

impl Restricted {
    fn to(permits: &[(&str, Rights)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::start(dir.path(), "kek");
        for (path, text) in [("raw/f", "of raw"), ("raw2/f", "of raw2"), ("in/old", "old"), ("other/f", "x")]
        {
            let path = site.root().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        symlink("../other", site.root().join("raw/out")).unwrap();
        let permit = |(path, rights): &(&str, Rights)| Permit {
            site: raw::name(&site),
            place: raw::place(path),
            rights: *rights,
        };
        let scope = Scope::of_rights(permits.iter().map(permit).collect()).unwrap();
        let own = raw::user(&site).facts().unwrap();
        let by = Delegator { user: own.principal().unwrap(), serial: own.serial };
        let (home, day) = (raw::home(&site), Duration::from_secs(86_400));
        let authority = Authority::load(&home).unwrap();
        let made = issue(&home, &authority, &by, &[scope], SystemTime::now(), day).unwrap().remove(0);
        Restricted { site, credential: made.credential, _dir: dir }
    }

    fn ask(&self, request: Request) -> Result<Reply, Code> {
        let mut session = raw::connect(&self.site, &self.credential, &self.site).unwrap();
        session.ask(request).map_err(|error| error.code)
    }

    fn refused(&self, request: Request) {
        let shown = format!("{request:?}");
        assert_eq!(self.ask(request), Err(Code::OutOfScope), "{shown}");
    }

    fn files(&self, path: &str) -> RemoteFiles {
        let dialler = raw::dialler(&self.site, &self.credential);
        let far = RemoteDir { dialler, site: raw::name(&self.site), place: raw::place(path), write: true };
        let config = Config { when_lost: WhenLost::Fail(raw::PATIENCE), ..Config::default() };
        RemoteFiles::open(far, config).unwrap()
    }
}

fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn remove(path: &str, recursive: bool) -> Request {
    Request::Remove { place: raw::place(path), recursive }
}

fn mkdir(path: &str) -> Request {
    Request::Mkdir { place: raw::place(path), parents: false }
}

fn rename(from: &str, to: &str) -> Request {
    Request::Rename { from: raw::place(from), to: raw::place(to) }
}

#[test]
fn requests_need_the_rights_of_the_table() {
    let with = Restricted::to(&[
        ("/data/raw", READ),
        ("/data/in", Rights::CREATE),
        ("/data/in/mine", MODIFY | Rights::LIST),
    ]);
    with.ask(Request::Stat(Some(raw::place("/data/raw/f")))).unwrap();
    with.ask(Request::List(Some(raw::place("/data/raw")))).unwrap();
    let digest = |path| Request::Checksum { place: raw::place(path), algorithm: Algorithm::Sha256 };
    with.ask(digest("/data/raw/f")).unwrap();
    for path in ["/data/raw2", "/data", "/data/other"] {
        with.refused(Request::Stat(Some(raw::place(path))));
        with.refused(Request::List(Some(raw::place(path))));
    }
    assert_eq!(with.ask(Request::List(Some(raw::place("/data/raw/out")))), Err(Code::NotADirectory));
    // Create gives new names, and neither a listing nor a removal.
    with.ask(mkdir("/data/in/new")).unwrap();
    with.ask(Request::Stat(Some(raw::place("/data/in/old")))).unwrap();
    with.refused(Request::List(Some(raw::place("/data/in"))));
    with.refused(digest("/data/in/old"));
    with.refused(remove("/data/in/old", false));
    with.refused(rename("/data/in/old", "/data/in/x"));
    let receive = |path, options| OpenReceive { to: raw::place(path), options, ..raw::open_receive("", 7) };
    with.refused(Request::OpenReceive(receive("/data/in/new", raw::open_receive("", 7).options)));
    with.refused(mkdir("/data/raw/new"));
    // All of it in one place.
    with.ask(mkdir("/data/in/mine")).unwrap();
    with.ask(mkdir("/data/in/mine/a")).unwrap();
    with.ask(rename("/data/in/mine/a", "/data/in/mine/b")).unwrap();
    with.refused(rename("/data/in/mine/b", "/data/in/b"));
    with.ask(remove("/data/in/mine/b", true)).unwrap();
    for request in [Request::Status, Request::List(None), Request::Buffer, Request::Console] {
        with.refused(request);
    }
    assert!(fs::read(with.site.root().join("in/old")).is_ok());
}

#[test]
fn a_file_session_checks_each_operation() {
    let with = Restricted::to(&[("/data/raw", READ), ("/data/in", Rights::CREATE)]);
    let files = with.files("/data/in");
    let code = |op| files.operate(op, b"").unwrap_err().code;
    let draft = |path: &str, start| Op::Draft { path: rel(path), start, mode: 0o644 };
    assert!(matches!(files.operate(draft("new", Start::New), b""), Ok(Answer::Opened { .. })));
    assert_eq!(code(draft("old", Start::New)), Code::PathExists);
    assert_eq!(code(draft("old", Start::Empty)), Code::OutOfScope);
    assert_eq!(code(draft("old", Start::Content)), Code::OutOfScope);
    assert_eq!(code(Op::Open(rel("old"))), Code::OutOfScope);
    assert_eq!(code(Op::OpenDir(RelPath::root())), Code::OutOfScope);
    assert_eq!(code(Op::Remove(rel("old"))), Code::OutOfScope);
    let rename = Op::Rename { from: rel("old"), to: rel("x"), replace: false };
    let refused = files.operate(rename, b"").unwrap_err();
    assert_eq!(refused.subject, "/data/in/old");
    assert!(refused.cause.starts_with("to modify it"), "{refused}");
    files.operate(Op::MakeDir { path: rel("sub"), mode: 0o755 }, b"").unwrap();
    files.operate(Op::Look(rel("old")), b"").unwrap();
    let read = with.files("/data/raw");
    assert!(read.operate(Op::Open(rel("f")), b"").is_ok());
    assert!(read.operate(Op::Open(rel("out/f")), b"").is_err());
    assert_eq!(read.operate(Op::Remove(rel("f")), b"").unwrap_err().code, Code::OutOfScope);
    assert_eq!(fs::read(with.site.root().join("in/old")).unwrap(), b"old");
}

#[test]
fn a_file_session_above_the_places_of_a_scope_reaches_these_alone() {
    let with = Restricted::to(&[("/data/raw/f", READ), ("/data/in", Rights::CREATE)]);
    let files = with.files("/data");
    let code = |op| files.operate(op, b"").unwrap_err().code;
    files.operate(Op::Open(rel("raw/f")), b"").unwrap();
    files.operate(Op::MakeDir { path: rel("in/sub"), mode: 0o755 }, b"").unwrap();
    for outside in ["raw", "raw/out", "other"] {
        assert_eq!(code(Op::Look(rel(outside))), Code::OutOfScope, "{outside}");
        assert_eq!(code(Op::MakeDir { path: rel(outside), mode: 0o755 }), Code::OutOfScope, "{outside}");
    }
    assert_eq!(code(Op::OpenDir(RelPath::root())), Code::OutOfScope);
    assert_eq!(code(Op::OpenDir(rel("raw"))), Code::OutOfScope);
    assert_eq!(code(Op::Remove(rel("raw/f"))), Code::OutOfScope);
    let out = Op::Rename { from: rel("in/sub"), to: rel("sub"), replace: false };
    assert_eq!(code(out), Code::OutOfScope);
    let dialler = raw::dialler(&with.site, &with.credential);
    let beside =
        RemoteDir { dialler, site: raw::name(&with.site), place: raw::place("/data/in2"), write: false };
    let refused = RemoteFiles::open(beside, Config::default()).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::OutOfScope);
}

#[test]
fn the_words_of_a_scope_are_explained() {
    let with = Restricted::to(&[("/data", READ)]);
    let words = "storage.read:/data storage.create:/data/in storage.poll:/data";
    let (status, shown) = with.site.json(&["map", "test", "--scope", words]);
    assert_ne!(status, 0);
    assert_eq!(shown["allowed"][1]["path"], "/data/in", "{shown}");
    assert_eq!(shown["allowed"][1]["rights"][0], "create");
    assert_eq!(shown["refused"][0]["word"], "storage.poll:/data");
    assert_eq!(with.site.json(&["map", "test", "--scope", "storage.stage:/data"]).0, 0);
}
