//! A delegated credential permits the operations of its scope, at every site, and no others.

use crate::federation::{Site, account};
use crate::tree::{MIB, noise};
use crate::wire::raw;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Permit, Principal, Rights, Scope};
use renkei_core::mover::filter::Filter;
use renkei_core::mover::layout::CopyForm;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::WireVersion;
use renkei_core::wire::copy::{CopySender, OpenCopy};
use renkei_core::wire::message::{
    Algorithm, Class, Control, Existing, OnError, OpenReceive, OpenSend, ReceiveOptions, Reply, Request,
    Source, Summary,
};
use renkei_mover::Stop;
use renkei_mover::connect::dial::Session;
use renkei_mover::progress::Watch;
use renkei_mover::send::{SendJob, send};
use renkei_mover::walk::Root;
use renkei_net::identity::account::Account;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::delegation::{Delegation, Delegator, issue};
use renkei_net::identity::trust::card::SiteCard;
use renkei_store::Store;
use renkei_store::local::{AccessMode, LocalStore};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const TRANSFER: [u8; 16] = [0xab; 16];
const READ: Rights = Rights::READ.and(Rights::LIST);
const WRITE: Rights = Rights::CREATE.and(Rights::MODIFY).and(Rights::DELETE).and(Rights::LIST);
const DAY: Duration = Duration::from_secs(86_400);

/// The user's own site, a source and a destination, each trusting the others.
struct Three {
    titech: Site,
    kek: Site,
    osaka: Site,
    dir: tempfile::TempDir,
}

impl Three {
    fn start() -> Three {
        let dir = tempfile::tempdir().unwrap();
        let [titech, kek, osaka] = ["titech", "kek", "osaka"].map(|name| Site::start(dir.path(), name));
        for (one, other) in [(&titech, &kek), (&titech, &osaka), (&kek, &osaka)] {
            one.befriend(other);
            other.befriend(one);
        }
        let sources = ["run7/sub", "run70", "other"];
        sources.iter().for_each(|dir| fs::create_dir_all(kek.root().join(dir)).unwrap());
        for file in ["run7/f", "run7/sub/g", "run70/f", "other/secret"] {
            fs::write(kek.root().join(file), file).unwrap();
        }
        symlink("../other", kek.root().join("run7/out")).unwrap();
        fs::create_dir(osaka.root().join("in")).unwrap();
        Three { titech, kek, osaka, dir }
    }

    /// A credential by which the user of titech leaves a transfer to its PoP.
    fn delegate_from(&self, permits: &[(&str, &str, Rights)], now: SystemTime) -> Delegation {
        let permit = |(at, path, rights): &(&str, &str, Rights)| Permit {
            site: SiteName::parse(at).unwrap(),
            place: place(path),
            rights: *rights,
        };
        let scope = Scope::new(TRANSFER, permits.iter().map(permit).collect()).unwrap();
        let own = raw::user(&self.titech).facts().unwrap();
        let by = Delegator { user: own.principal().unwrap(), serial: own.serial };
        let home = raw::home(&self.titech);
        let authority = Authority::load(&home).unwrap();
        issue(&home, &authority, &by, &[scope], now, 7 * DAY).unwrap().remove(0)
    }

    fn delegate(&self, permits: &[(&str, &str, Rights)]) -> Delegation {
        self.delegate_from(permits, SystemTime::now())
    }

    /// From kek to osaka.
    fn usual(&self) -> Delegation {
        self.delegate(&USUAL)
    }

    fn connect(&self, with: &Delegation, to: &Site) -> Result<Session, Error> {
        raw::connect(&self.titech, &with.credential, to)
    }

    /// The answer of a site to one request.
    fn ask(&self, with: &Delegation, to: &Site, request: Request) -> Result<Reply, Error> {
        self.connect(with, to).unwrap().ask(request)
    }

    fn refusal(&self, with: &Delegation, to: &Site, request: Request) -> Code {
        let shown = format!("{request:?}");
        let refused = self.ask(with, to, request).err().unwrap_or_else(|| panic!("{shown} was answered"));
        assert_eq!(refused.side, to.name, "{refused}");
        refused.code
    }
}

const USUAL: [(&str, &str, Rights); 2] = [("kek", "/data/run7", READ), ("osaka", "/data/in/run7", WRITE)];

fn place(text: &str) -> Place {
    Place::parse(text.as_bytes()).unwrap().unwrap()
}

fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn options(delete: bool) -> ReceiveOptions {
    ReceiveOptions { delete, ..ReceiveOptions::plain(Existing::Replace) }
}

fn receive_at(to: &str, delete: bool) -> OpenReceive {
    OpenReceive { to: place(to), options: options(delete), ..raw::open_receive("", 7) }
}

fn send_from(from: &str, to: &str) -> OpenSend {
    let source = Source { from: place(from), to: rel(to), alone: false };
    OpenSend { recursive: true, max_streams: 2, ..OpenSend::plain(TRANSFER, vec![source]) }
}

fn grant(to: &str, peer: &Site) -> Request {
    Request::Grant { open: receive_at(to, false), peer: raw::name(peer) }
}

fn copy_to(to: &str, by: CopySender) -> Request {
    Request::OpenCopy { copy: raw::open_copy(to), by }
}

fn grant_copy(to: &str, peer: &Site) -> Request {
    copy_to(to, CopySender::Site(raw::name(peer)))
}

/// Follows a push to its end.
fn pushed(mut session: Session, request: Request) -> Result<Summary, Error> {
    assert_eq!(session.ask(request)?, Reply::Pushing);
    loop {
        match session.control.recv()? {
            Control::Finished(ended) => return ended,
            Control::Progress(_) | Control::Found(_) | Control::Layout(_) | Control::Failures(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_transfer_runs_with_its_credential_and_without_its_user() {
    let three = &Three::start();
    let with = &three.usual();
    let at_osaka = |request| three.ask(with, &three.osaka, request);
    let missing = at_osaka(Request::StatDir(Some(place("/data/in/run7")))).unwrap_err();
    assert_eq!(missing.code, Code::PathNotFound);
    let Reply::Granted(ticket) = at_osaka(grant("/data/in", &three.kek)).unwrap() else { panic!() };
    let push =
        Request::Push { send: send_from("/data/run7", "run7"), to: raw::name(&three.osaka), grant: ticket };
    let summary = pushed(three.connect(with, &three.kek).unwrap(), push).unwrap();
    assert_eq!((summary.files, summary.links, summary.failed), (2, 1, 0), "{summary:?}");
    let there = three.osaka.root().join("in/run7");
    assert_eq!(fs::read_to_string(there.join("sub/g")).unwrap(), "run7/sub/g");
    assert_eq!(fs::read_link(there.join("out")).unwrap(), Path::new("../other"));
    for site in [&three.kek, &three.osaka] {
        let audited = site.logged().lines().any(|line| {
            line.contains("authorised")
                && line.contains(&format!("{}@titech", account()))
                && line.contains(&"ab".repeat(16))
        });
        assert!(audited, "the audit names the transfer\n{}", site.logged());
    }
}

#[test]
fn whoami_shows_the_scope() {
    let three = &Three::start();
    let with = &three.usual();
    let identity = |site| match three.ask(with, site, Request::Whoami) {
        Ok(Reply::Identity(identity)) => identity,
        other => panic!("{other:?}"),
    };
    let at_osaka = identity(&three.osaka);
    assert_eq!(at_osaka.principal, format!("{}@titech", account()));
    assert!(at_osaka.rule.contains("write osaka:/data/in/run7"), "{}", at_osaka.rule);
    assert_eq!(at_osaka.storages, [("data".to_owned(), true)]);
    assert_eq!(identity(&three.kek).storages, [("data".to_owned(), false)]);
    assert!(identity(&three.titech).storages.is_empty());
}

#[test]
fn only_the_source_is_readable() {
    let three = &Three::start();
    let more = three.dir.path().join("more");
    fs::create_dir_all(more.join("run7")).unwrap();
    three.kek.ok(&["storage", "add", "more", more.to_str().unwrap()]);
    let with = &three.usual();
    let at = |text: &str| Some(place(text));
    for good in [
        Request::Stat(at("/data/run7")),
        Request::Stat(at("/data/run7/sub/g")),
        // The link itself, which is not followed.
        Request::Stat(at("/data/run7/out")),
        Request::StatDir(at("/data/run7/sub")),
        Request::Usage(place("/data/run7")),
        Request::Space(place("/data/run7")),
        Request::Checksum { place: place("/data/run7/f"), algorithm: Algorithm::Sha256 },
    ] {
        let answer = three.ask(with, &three.kek, good.clone());
        assert!(answer.is_ok(), "{good:?}: {answer:?}");
    }
    let sha = Algorithm::Sha256;
    let refused = |request| assert_eq!(three.refusal(with, &three.kek, request), Code::OutOfScope);
    for bad in ["/data", "/data/run70", "/data/run70/f", "/data/other/secret", "/data/ru", "/more/run7"] {
        refused(Request::Stat(at(bad)));
        refused(Request::StatDir(at(bad)));
        refused(Request::List(at(bad)));
        refused(Request::Usage(place(bad)));
        refused(Request::Space(place(bad)));
        refused(Request::Checksum { place: place(bad), algorithm: sha });
        refused(Request::OpenSend(send_from(bad, "x")));
    }
    [Request::Stat(None), Request::StatDir(None), Request::List(None)].into_iter().for_each(refused);
    let two = OpenSend {
        sources: [send_from("/data/run7", "a"), send_from("/data/other", "b")].map(|s| s.sources).concat(),
        ..send_from("/data/run7", "a")
    };
    refused(Request::OpenSend(two));
}

#[test]
fn symlinks_do_not_escape_a_scope() {
    let three = &Three::start();
    let with = &three.usual();
    let refusal = |request| three.refusal(with, &three.kek, request);
    let (through, sha) = (place("/data/run7/out/secret"), Algorithm::Sha256);
    assert_eq!(refusal(Request::Stat(Some(through.clone()))), Code::NotADirectory);
    assert_eq!(refusal(Request::StatDir(Some(place("/data/run7/out")))), Code::NotADirectory);
    assert_eq!(refusal(Request::List(Some(place("/data/run7/out")))), Code::NotADirectory);
    assert_eq!(refusal(Request::Checksum { place: through, algorithm: sha }), Code::NotADirectory);
    assert_eq!(refusal(Request::OpenSend(send_from("/data/run7/out/secret", "x"))), Code::NotADirectory);
    // The same at the destination: a link to the directory above, in which the transfer has a name.
    fs::create_dir(three.osaka.root().join("in/run7")).unwrap();
    symlink("..", three.osaka.root().join("in/run7/up")).unwrap();
    let up = three.refusal(with, &three.osaka, Request::OpenReceive(receive_at("/data/in/run7/up", false)));
    assert_eq!(up, Code::NotADirectory);
    // A link that the scope itself names is the user's own word.
    symlink("../run7/sub", three.kek.root().join("other/named")).unwrap();
    let named = three.delegate(&[("kek", "/data/other/named", READ)]);
    three.ask(&named, &three.kek, Request::Stat(Some(place("/data/other/named/g")))).unwrap();
}

#[test]
fn a_source_is_read_only_and_a_destination_write_only() {
    let three = &Three::start();
    let with = &three.usual();
    let source = |request| assert_eq!(three.refusal(with, &three.kek, request), Code::OutOfScope);
    source(Request::Mkdir { place: place("/data/run7/new"), parents: false });
    source(Request::Remove { place: place("/data/run7/f"), recursive: false });
    source(Request::Rename { from: place("/data/run7/f"), to: place("/data/run7/g") });
    source(Request::OpenReceive(receive_at("/data/run7", false)));
    source(grant("/data/run7", &three.osaka));
    source(copy_to("/data/run7/new", CopySender::Asker));
    source(grant_copy("/data/run7/new", &three.osaka));
    fs::create_dir(three.osaka.root().join("in/run7")).unwrap();
    fs::write(three.osaka.root().join("in/run7/old"), "old").unwrap();
    let target = |request| assert_eq!(three.refusal(with, &three.osaka, request), Code::OutOfScope);
    target(Request::OpenSend(send_from("/data/in/run7", "x")));
    target(Request::Remove { place: place("/data/in/run7"), recursive: true });
    target(Request::Rename { from: place("/data/in/run7/old"), to: place("/data/new") });
    target(Request::Mkdir { place: place("/data/in/other"), parents: false });
    target(Request::Mkdir { place: place("/data/in/run7/a/b"), parents: true });
    target(Request::OpenReceive(receive_at("/data", false)));
    target(Request::OpenReceive(receive_at("/data/in/other", false)));
    // Entries beside the destination would be removed.
    target(Request::OpenReceive(receive_at("/data/in", true)));
    target(grant("/data", &three.kek));
    for bad in ["/data", "/data/in/other"] {
        target(copy_to(bad, CopySender::Asker));
        target(grant_copy(bad, &three.kek));
    }
    assert!(!three.osaka.root().join("in/other").exists() && !three.kek.root().join("run7/new").exists());
    three
        .ask(with, &three.osaka, Request::Mkdir { place: place("/data/in/run7/a"), parents: false })
        .unwrap();
}

#[test]
fn a_credential_is_refused_at_other_sites() {
    let three = &Three::start();
    let with = &three.usual();
    let grants = |peer| three.ask(with, &three.osaka, grant("/data/in/run7/", peer));
    fs::create_dir(three.osaka.root().join("in/run7")).unwrap();
    assert!(grants(&three.kek).is_ok());
    assert_eq!(grants(&three.titech).unwrap_err().code, Code::OutOfScope);
    let refused = |request| assert_eq!(three.refusal(with, &three.osaka, request), Code::OutOfScope);
    refused(grant_copy("/data/in/run7", &three.titech));
    refused(copy_to("/data/in/run7", CopySender::PopFor(Vec::new())));
    let push = |to| Request::Push { send: send_from("/data/run7", "x"), to: raw::name(to), grant: [1; 32] };
    assert_eq!(three.refusal(with, &three.kek, push(&three.titech)), Code::OutOfScope);
    let (send, copy) = (send_from("/data/run7", "x"), raw::open_copy("/data/in/run7"));
    let push = Request::PushCopy { send, to: raw::name(&three.titech), copy };
    assert_eq!(three.refusal(with, &three.kek, push), Code::OutOfScope);
    let refused = |request| assert_eq!(three.refusal(with, &three.titech, request), Code::OutOfScope);
    refused(Request::Stat(Some(place("/data/run7"))));
    refused(Request::OpenReceive(receive_at("/data", false)));
    for request in [Request::Status, Request::Card(raw::name(&three.kek)), Request::Redeem([0; 32])] {
        refused(request.clone());
        assert_eq!(three.refusal(with, &three.kek, request), Code::OutOfScope);
    }
}

/// A sender may name anything; the receiving site enforces the scope.
#[test]
fn uploads_outside_the_destination_are_refused() {
    let three = &Three::start();
    let with = &three.usual();
    fs::write(three.osaka.root().join("in/evil"), "as it was").unwrap();
    let tree = three.dir.path().join("tree");
    for dir in ["run7", "run70"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
        fs::write(tree.join(dir).join("f"), dir).unwrap();
    }
    fs::write(tree.join("evil"), "changed").unwrap();
    symlink("f", tree.join("link")).unwrap();
    let dialler = raw::dialler(&three.titech, &with.credential);
    let mut session = dialler.connect(&raw::name(&three.osaka)).unwrap();
    let opened = session.ask_open(Request::OpenReceive(receive_at("/data/in", false))).unwrap();
    let streams = dialler.join(&mut session, &opened).unwrap();
    let source = LocalStore::open(&tree, AccessMode::ReadOnly).unwrap();
    let root = |name: &str| Root {
        dir: source.root().unwrap(),
        from: rel(name),
        to: rel(name),
        alone: false,
        shown: String::new(),
    };
    let job = SendJob {
        roots: ["run7", "run70", "evil", "link"].map(root).into(),
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
        account: Account::own().unwrap(),
        keep: None,
        compare: None,
    };
    let summary = send(job, &mut session.control, streams, &Watch::default(), &Stop::default()).unwrap();
    let refused =
        |failure: &&renkei_core::wire::message::EntryFailure| failure.error.code == Code::OutOfScope;
    let mut names: Vec<String> =
        summary.failures.iter().filter(refused).map(|failure| failure.path.to_string()).collect();
    names.sort();
    assert_eq!(names, ["evil", "link", "run70", "run70/f"], "{summary:?}");
    let there = three.osaka.root().join("in");
    assert_eq!(fs::read_to_string(there.join("run7/f")).unwrap(), "run7");
    assert_eq!(fs::read_to_string(there.join("evil")).unwrap(), "as it was");
    let mut left: Vec<_> = fs::read_dir(&there).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["evil", "run7"]);
}

/// A push by the user's own site in the user's name.
fn push_copy(from: &str, to: &str, osaka: &Site) -> Request {
    let form = CopyForm { directory: false, contents: false, resumed: false };
    let copy = OpenCopy { form, max_streams: 2, ..raw::open_copy(to) };
    Request::PushCopy { send: send_from(from, "src"), to: raw::name(osaka), copy }
}

const OWN: [(&str, &str, Rights); 2] = [("titech", "/data/src", READ), ("osaka", "/data/in/copy", WRITE)];

#[test]
fn a_push_in_the_users_name_keeps_the_scope() {
    let three = &Three::start();
    let with = &three.delegate(&OWN);
    fs::write(three.titech.root().join("src"), "content").unwrap();
    fs::write(three.titech.root().join("secret"), "secret").unwrap();
    for version in [WireVersion::V3, WireVersion::V4] {
        let push = |from, to| {
            let session = three.connect(with, &three.titech).unwrap();
            pushed(session, push_copy(from, to, &three.osaka).for_version(version).unwrap())
        };
        let refused = |from, to, side| {
            let error = push(from, to).unwrap_err();
            assert_eq!((error.code, error.side.as_str()), (Code::OutOfScope, side), "{error}");
        };
        refused("/data/secret", "/data/in/copy", "titech");
        refused("/data/src", "/data/in/other", "osaka");
        assert!(fs::read_dir(three.osaka.root().join("in")).unwrap().next().is_none());
        assert_eq!(push("/data/src", "/data/in/copy").unwrap().failed, 0);
        assert_eq!(fs::read_to_string(three.osaka.root().join("in/copy")).unwrap(), "content");
        fs::remove_file(three.osaka.root().join("in/copy")).unwrap();
    }
    let log = three.osaka.logged();
    let asked = log.lines().any(|line| line.contains("asked for") && line.contains(&"ab".repeat(16)));
    assert!(asked, "the audit names the transfer\n{log}");
}

/// A copy into a storage or directory: its own attributes are visible, its other entries are not.
#[test]
fn a_destination_directory_shows_no_other_entries() {
    let three = &Three::start();
    let permits =
        [("kek", "/data/run7", READ), ("osaka", "/data", Rights::NONE), ("osaka", "/data/run7", WRITE)];
    let with = &three.delegate(&permits);
    let root = || Some(place("/data"));
    three.ask(with, &three.osaka, Request::StatDir(root())).unwrap();
    three.ask(with, &three.osaka, grant("/data", &three.kek)).unwrap();
    let refused = |request| assert_eq!(three.refusal(with, &three.osaka, request), Code::OutOfScope);
    refused(Request::List(root()));
    refused(Request::Usage(place("/data")));
    refused(Request::Stat(Some(place("/data/in"))));
    refused(Request::OpenSend(send_from("/data", "x")));
}

#[test]
fn credentials_are_refused_before_and_after_their_validity() {
    let three = &Three::start();
    let now = SystemTime::now();
    let code = |issued: SystemTime, to: &Site| {
        let session = three.connect(&three.delegate_from(&USUAL, issued), to);
        session.err().map(|error| (error.code, error.side))
    };
    assert_eq!(code(now, &three.kek), None);
    // A site whose clock is a little behind.
    assert_eq!(code(now + Duration::from_secs(240), &three.kek), None);
    assert_eq!(
        code(now + Duration::from_secs(900), &three.kek),
        Some((Code::CertificateNotYetValid, "kek".into()))
    );
    for site in [&three.kek, &three.osaka, &three.titech] {
        assert_eq!(code(now - 8 * DAY, site), Some((Code::DelegationExpired, site.name.clone())));
    }
    let expired = three.delegate_from(&USUAL, now - 8 * DAY);
    let trust = renkei_net::identity::trust::Trust::load(&raw::home(&three.titech)).unwrap();
    assert_eq!(expired.check(&trust, now).unwrap_err().code, Code::DelegationExpired);
}

#[test]
fn blocking_a_user_ends_delegated_credentials() {
    let three = &Three::start();
    let user = format!("{}@titech", account());
    let with = &three.usual();
    let code = |site| three.connect(with, site).err().map(|error| error.code);
    three.kek.ok(&["map", "remove", &user]);
    let stat = Request::Stat(Some(place("/data/run7")));
    assert_eq!(three.refusal(with, &three.kek, stat), Code::NotMapped);
    // By the serial of the certificate that the user asked by, then by the user's name.
    let own = raw::user(&three.titech).facts().unwrap().serial;
    three.titech.ok(&["revoke", &own]);
    assert_eq!(code(&three.titech), Some(Code::CertificateRevoked));
    three.titech.ok(&["login"]);
    let again = &three.usual();
    assert!(three.connect(again, &three.titech).is_ok());
    three.titech.ok(&["revoke", &user]);
    assert_eq!(three.connect(again, &three.titech).err().unwrap().code, Code::CertificateRevoked);
    // Another site knows when the list has come.
    assert_eq!(code(&three.osaka), None);
    three.osaka.take_card(&three.titech);
    assert_eq!(code(&three.osaka), Some(Code::CertificateRevoked));
    assert_eq!(three.connect(again, &three.osaka).err().unwrap().code, Code::CertificateRevoked);
}

#[test]
fn revoking_a_credential_ends_running_transfers() {
    let three = &Three::start();
    let with = &three.delegate(&OWN);
    fs::write(three.titech.root().join("src"), noise(1, 40 * MIB)).unwrap();
    let request = match push_copy("/data/src", "/data/in/copy", &three.osaka) {
        Request::PushCopy { send, to, copy } => {
            Request::PushCopy { send: OpenSend { limit: Some(MIB as u64), ..send }, to, copy }
        }
        other => other,
    };
    let session = three.connect(with, &three.titech).unwrap();
    let started = Instant::now();
    let ended = std::thread::scope(|scope| {
        let running = scope.spawn(|| pushed(session, request));
        let opened =
            || three.osaka.logged().lines().any(|line| line.contains("opened") && line.contains("receive"));
        while !opened() {
            assert!(started.elapsed() < Duration::from_secs(20), "{}", three.osaka.logged());
            std::thread::sleep(Duration::from_millis(20));
        }
        three.titech.ok(&["revoke", &with.serial]);
        running.join().unwrap()
    });
    assert_eq!(ended.unwrap_err().code, Code::CertificateRevoked);
    assert!(started.elapsed() < Duration::from_secs(25), "it went on for {:?}", started.elapsed());
}

#[test]
fn only_the_users_authority_can_delegate() {
    let three = &Three::start();
    let now = SystemTime::now();
    let forger = Authority::create(&raw::name(&three.titech), now).unwrap();
    let scope = three.usual().scope;
    let user = Principal::user(&raw::name(&three.titech), &account()).unwrap();
    let forge = |authority: &Authority, user: Principal| {
        let by = Delegator { user, serial: "0a".into() };
        let home = renkei_config::home::Home::at(&three.dir.path().join("forger"));
        issue(&home, authority, &by, std::slice::from_ref(&scope), now, DAY)
    };
    let forged = forge(&forger, user.clone()).unwrap().remove(0);
    let code = |forged: &Delegation| three.connect(forged, &three.kek).err().map(|error| error.code);
    assert_eq!(code(&forged), Some(Code::UnknownAuthority));
    let card = SiteCard {
        site: SiteName::parse("nagoya").unwrap(),
        endpoints: vec!["nagoya.example:7512".into()],
        via: Vec::new(),
        authority: forger.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    raw::trust_card(&three.kek, &card);
    assert_eq!(code(&forged), Some(Code::ForeignName));
    let osaka = Authority::load(&raw::home(&three.osaka)).unwrap();
    assert_eq!(forge(&osaka, user).unwrap_err().code, Code::NotAllowed);
}

/// The key counts, not only the contents of the certificate: a site shows a chain it saw in the name of its
/// holder.
#[test]
fn a_site_that_has_seen_a_credential_cannot_use_it() {
    let three = &Three::start();
    let with = &three.usual();
    let kek = Credential::host(&raw::home(&three.kek), SystemTime::now()).unwrap();
    let chain: Vec<_> = with.credential.chain.iter().map(|certificate| certificate.to_vec()).collect();
    let mut session = raw::connect(&three.kek, &kek, &three.osaka).unwrap();
    let copy = copy_to("/data/in/run7", CopySender::PopFor(chain));
    for version in [WireVersion::V3, WireVersion::V4] {
        let refused = session.ask(copy.clone().for_version(version).unwrap()).unwrap_err();
        assert_eq!(refused.code, Code::NotAllowed, "{refused}");
    }
}
