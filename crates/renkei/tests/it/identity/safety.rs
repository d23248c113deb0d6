//! Authorisation: the jail, accounts, certificates. Each refusal has its own code.

use crate::federation::{Federation, Site, free_address};
use crate::relay::proxy::Proxy;
use crate::tree::{MIB, noise, path};
use crate::wire::raw;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::State;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::data::EntryHead;
use renkei_core::wire::encode;
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::{Control, Request};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::card::SiteCard;
use renkei_store::temp::temp_name;
use rustix::fs::{CWD, RenameFlags};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

const NOBODY: u32 = 65534;
const HOUR: Duration = Duration::from_secs(3600);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn needs_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    !root
}

/// The code and side of a refusal, of the whole command or of its one file.
fn refusal((status, report): (i32, Value)) -> (i32, String, String) {
    let error = if report["error"].is_null() { &report["failures"][0] } else { &report["error"] };
    let part = |key: &str| error[key].as_str().unwrap_or_else(|| panic!("{report}")).to_owned();
    assert!(!part("remedy").is_empty() && !part("cause").is_empty());
    (status, part("code"), part("side"))
}

fn refused(status: i32, code: &str, side: &str) -> (i32, String, String) {
    (status, code.into(), side.into())
}

#[test]
fn symlinks_do_not_escape_a_storage() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let outside = federation.scratch().join("outside");
    let file = federation.scratch().join("file");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), b"secret").unwrap();
    fs::write(&file, b"x").unwrap();
    symlink(&outside, kek.root().join("absolute")).unwrap();
    symlink("../scratch/outside", kek.root().join("relative")).unwrap();
    symlink(outside.join("secret"), kek.root().join("file")).unwrap();
    let here = federation.scratch().join("here");
    for link in ["absolute", "relative"] {
        let out = refused(5, "RK-STORE-11", "kek");
        let secret = kek.place(&format!("{link}/secret"));
        assert_eq!(refusal(titech.json(&["cp", &secret, text(&here)])), out, "{link}");
        assert_eq!(refusal(titech.json(&["cp", text(&file), &kek.place(&format!("{link}/new"))])), out);
        assert_eq!(refusal(titech.json(&["cp", text(&file), &kek.place(&format!("{link}/"))])), out);
        assert_eq!(refusal(titech.json(&["ls", &kek.place(&format!("{link}/"))])), out);
        assert_eq!(refusal(titech.json(&["rm", &kek.place(&format!("{link}/secret"))])), out);
    }
    // A link that is named itself is copied as a link, with or without -r at a site; its target never is.
    titech.renkei(&["cp", &kek.place("file"), text(&here)]);
    assert!(!here.exists() || fs::symlink_metadata(&here).unwrap().is_symlink());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

/// Names that climb are refused by the decoder, wherever they stand.
#[test]
fn dot_dot_is_refused_on_the_wire() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let climb = |bytes: Vec<u8>| -> Vec<u8> {
        let at = bytes.windows(2).position(|pair| pair == b"QQ").unwrap();
        [&bytes[..at], b"..", &bytes[at + 2..]].concat()
    };
    let place = || Place { storage: "data".into(), path: RelPath::parse(b"QQ/kek/config.toml").unwrap() };
    for request in [
        Request::Stat(Some(place())),
        Request::Remove { place: place(), recursive: true },
        Request::OpenReceive(raw::open_receive("a/QQ/b", 1)),
    ] {
        let mut stream = raw::greeted(titech, kek);
        let message = climb(encode(&Control::Request { id: 0, request }));
        raw::put(&mut stream, FrameKind::Control, &message).unwrap();
        assert_eq!(raw::take_refusal(&mut stream).code, Code::ProtocolViolation);
    }
    let (mut session, _, mut streams) = raw::open_upload(titech, kek, 2);
    let entry = crate::wire::hostile::small_file("QQ/escaped", 1, b"x");
    let mut payload = Vec::new();
    EntryHead { id: 0, entry, digest: *blake3::hash(b"x").as_bytes() }.write(&mut payload, b"x");
    raw::put(&mut streams[0], FrameKind::Entry, &climb(payload)).unwrap();
    let error = loop {
        match session.control.recv() {
            Ok(Control::Abort(error)) | Err(error) => break error,
            Ok(_) => {}
        }
    };
    assert_eq!((error.code, error.side.as_str()), (Code::ProtocolViolation, "kek"), "{error}");
    assert!(!kek.root().parent().unwrap().join("escaped").exists());
}

/// A directory becomes a link out of the storage and back all the time, while files go into it and come from it.
#[test]
fn a_race_with_symlinks_does_not_escape() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let scratch = federation.scratch();
    let outside = scratch.join("outside");
    fs::create_dir(&outside).unwrap();
    for index in 0..40 {
        fs::write(outside.join(format!("f{index}")), b"SECRET").unwrap();
    }
    let before = crate::tree::read(&outside);
    let source = scratch.join("source/d/sub");
    fs::create_dir_all(&source).unwrap();
    for index in 0..40 {
        fs::write(source.join(format!("f{index}")), b"public").unwrap();
    }
    let (dir, link) = (kek.root().join("d/sub"), kek.root().join("link"));
    fs::create_dir_all(&dir).unwrap();
    symlink(&outside, &link).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for round in 0..12 {
            titech.renkei(&["cp", "-r", text(&source.join("..")), &kek.place("")]);
            let here = scratch.join(format!("here{round}"));
            titech.renkei(&["cp", "-r", &kek.place("d"), text(&here)]);
            assert_no_secret(&here);
        }
        stop.store(true, Ordering::Relaxed);
    });
    crate::tree::assert_same(&before, &crate::tree::read(&outside));
}

fn assert_no_secret(dir: &Path) {
    let Ok(listed) = fs::read_dir(dir) else { return };
    for listed in listed.map(Result::unwrap) {
        let kind = listed.file_type().unwrap();
        if kind.is_dir() {
            assert_no_secret(&listed.path());
        } else if kind.is_file() {
            assert_ne!(fs::read(listed.path()).unwrap(), b"SECRET", "{:?}", listed.path());
        }
    }
}

#[test]
fn operations_run_as_the_mapped_account() {
    if needs_root() {
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["map", "remove", "root@titech"]);
    kek.ok(&["map", "add", "--yes", "root@titech", "nobody"]);
    let scratch = federation.scratch();
    fs::create_dir_all(scratch.join("tree/sub")).unwrap();
    fs::write(scratch.join("tree/small"), b"x").unwrap();
    fs::write(scratch.join("tree/sub/large"), noise(1, 3 * MIB)).unwrap();
    symlink("small", scratch.join("tree/link")).unwrap();
    let root = kek.root();
    for (name, mode, owner) in [("open", 0o777, 0), ("closed", 0o755, 0), ("secret", 0o700, 0)] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("file"), b"root's").unwrap();
        fs::set_permissions(root.join(name).join("file"), Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        chown(root.join(name), Some(owner), Some(owner)).unwrap();
    }
    titech.ok(&["cp", "-r", text(&scratch.join("tree")), &kek.place("open")]);
    for name in ["", "small", "sub", "sub/large", "link"] {
        let data = fs::symlink_metadata(root.join("open/tree").join(name)).unwrap();
        assert_eq!((data.uid(), data.gid()), (NOBODY, NOBODY), "{name}");
    }
    let denied = refused(5, "RK-STORE-5", "kek");
    let small = scratch.join("tree/small");
    assert_eq!(refusal(titech.json(&["cp", text(&small), &kek.place("closed/new")])), denied);
    assert_eq!(refusal(titech.json(&["cp", text(&small), &kek.place("closed/file")])), denied);
    assert_eq!(refusal(titech.json(&["rm", &kek.place("closed/file")])), denied);
    assert_eq!(refusal(titech.json(&["cp", &kek.place("open/file"), text(&scratch.join("got"))])), denied);
    assert_eq!(refusal(titech.json(&["ls", &kek.place("secret")])), denied);
    assert_eq!(refusal(titech.json(&["cp", &kek.place("secret/file"), text(&scratch.join("got"))])), denied);
    assert_eq!(refusal(titech.json(&["cp", &kek.place("open/file"), &titech.place("got")])), denied);
    assert!(!scratch.join("got").exists() && !titech.root().join("got").exists());
    assert_eq!(fs::read(root.join("closed/file")).unwrap(), b"root's");
    // Part of a tree cannot be read: the rest arrives, and it is said.
    let (status, report) = titech.json(&["cp", "-r", &kek.place("open"), text(&scratch.join("part"))]);
    assert_eq!((status, &report["failed"]), (23, &1.into()), "{report}");
    assert_eq!(fs::read(scratch.join("part/tree/small")).unwrap(), b"x");
}

/// Files that an upload leaves in a storage with an account of its own belong to that account, and are
/// cleaned up as it.
#[test]
fn a_storages_own_account_cleans_up() {
    if needs_root() {
        return;
    }
    let mut federation = Federation::two();
    let root = federation.kek.root().with_file_name("shared");
    fs::create_dir(&root).unwrap();
    chown(&root, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
    federation.kek.ok(&["storage", "add", "shared", text(&root), "--account", "nobody"]);
    let Federation { titech, kek, .. } = &federation;
    let mut session = raw::connect(titech, &raw::user(titech), kek).unwrap();
    let mut open = raw::open_receive("", 5);
    open.to.storage = "shared".into();
    session.ask_open(Request::OpenReceive(open)).unwrap();
    let folder = raw::home(kek).journal_dir();
    let journal = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let header = State::read(&fs::read(&journal).unwrap()).0.header.unwrap();
    assert_eq!(header.account, "nobody");
    drop(session);
    let temp = root.join(path(&temp_name(header.job, &RelPath::parse(b"x").unwrap())));
    fs::write(&temp, "part").unwrap();
    chown(&temp, Some(NOBODY), Some(NOBODY)).unwrap();
    let long_ago = SystemTime::now() - 24 * 30 * HOUR;
    fs::File::options().write(true).open(&journal).unwrap().set_modified(long_ago).unwrap();
    federation.kek.restart();
    let deadline = Instant::now() + Duration::from_secs(20);
    while temp.exists() || journal.exists() {
        assert!(Instant::now() < deadline, "{}", federation.kek.logged());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn access_is_denied_by_default() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let account = crate::federation::account();
    kek.ok(&["map", "remove", &format!("{account}@titech")]);
    let file = federation.scratch().join("file");
    fs::write(&file, b"x").unwrap();
    let denied = refused(5, "RK-AUTH-7", "kek");
    assert_eq!(refusal(titech.json(&["cp", text(&file), &kek.place("file")])), denied);
    assert_eq!(refusal(titech.json(&["ls", &kek.place("")])), denied);
    assert_eq!(refusal(titech.json(&["cp", &kek.place("file"), &titech.place("file")])), denied);
    // A PoP maps to no account either.
    let host = Credential::host(&raw::home(titech), SystemTime::now()).unwrap();
    let mut session = raw::connect(titech, &host, kek).unwrap();
    let error = raw::whoami(&mut session).unwrap_err();
    assert_eq!((error.code, error.side.as_str()), (Code::NotMapped, "kek"));
    assert_eq!(crate::tree::count(kek.root()), 0);
}

#[test]
fn a_read_only_storage_refuses_writes() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let store = federation.scratch().join("ro");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("file"), b"x").unwrap();
    kek.ok(&["storage", "add", "--read-only", "ro", text(&store)]);
    let here = federation.scratch().join("here");
    titech.ok(&["cp", "kek:/ro/file", text(&here)]);
    let denied = refused(5, "RK-STORE-8", "kek");
    assert_eq!(refusal(titech.json(&["cp", text(&here), "kek:/ro/new"])), denied);
    assert_eq!(refusal(titech.json(&["rm", "kek:/ro/file"])), denied);
    assert_eq!(refusal(titech.json(&["mkdir", "kek:/ro/dir"])), denied);
    assert_eq!(refusal(titech.json(&["cp", &titech.place("x"), "kek:/ro/new"])), denied);
    assert_eq!(refusal(titech.json(&["sync", "--delete", text(&federation.scratch()), "kek:/ro/"])), denied);
    assert_eq!(fs::read_dir(&store).unwrap().count(), 1);
}

/// A PoP that runs without privileges.
pub struct Unprivileged {
    pub dir: tempfile::TempDir,
    process: Option<Child>,
}

impl Unprivileged {
    pub fn start(befriended: &Site) -> Unprivileged {
        let dir = tempfile::tempdir().unwrap();
        chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let mut pop = Unprivileged { dir, process: None };
        let address = free_address();
        pop.ok(&["init", "--site", "cern", "--listen", &address.to_string()]);
        fs::create_dir(pop.data()).unwrap();
        chown(pop.data(), Some(NOBODY), Some(NOBODY)).unwrap();
        pop.ok(&["storage", "add", "data", text(&pop.data())]);
        let card = pop.dir.path().join("befriended.card");
        fs::write(&card, befriended.ok(&["trust", "export"])).unwrap();
        pop.ok(&["trust", "add", "--yes", text(&card)]);
        let card = befriended.dir().join("cern.card");
        fs::write(&card, pop.ok(&["trust", "export"])).unwrap();
        befriended.ok(&["trust", "add", "--yes", text(&card)]);
        let serve = pop.command().arg("serve").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        pop.process = Some(serve.unwrap());
        let start = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "the PoP does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        pop
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(crate::federation::binary());
        command.arg("--dir").arg(self.dir.path().join("pop")).uid(NOBODY).gid(NOBODY);
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn a_pop_without_privileges_serves_its_own_account_only() {
    if needs_root() {
        return;
    }
    let federation = Federation::two();
    let titech = &federation.titech;
    let cern = Unprivileged::start(titech);
    let file = federation.scratch().join("file");
    fs::write(&file, b"x").unwrap();
    cern.ok(&["map", "add", "--yes", "root@titech", "root"]);
    let denied = refused(5, "RK-AUTH-9", "cern");
    assert_eq!(refusal(titech.json(&["cp", text(&file), "cern:/data/file"])), denied);
    cern.ok(&["map", "remove", "root@titech"]);
    cern.ok(&["map", "add", "--yes", "root@titech", "nobody"]);
    titech.ok(&["cp", text(&file), "cern:/data/file"]);
    assert_eq!(fs::metadata(cern.data().join("file")).unwrap().uid(), NOBODY);
}

/// Opens a session with a credential that must be refused.
fn refused_session(site: &Site, credential: &Credential, to: &Site) -> Error {
    let error = raw::connect(site, credential, to).err().expect("refused");
    assert!(!error.cause.is_empty(), "{error}");
    error
}

#[test]
fn bad_certificates_are_refused_each_with_its_code() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let authority = Authority::load(&raw::home(titech)).unwrap();
    let account = crate::federation::account();
    let now = SystemTime::now();
    let check = |credential: &Credential, code: Code| {
        let error = refused_session(titech, credential, kek);
        assert_eq!((error.code, error.side.as_str()), (code, "kek"), "{error}");
    };
    let good = raw::issue_user(&authority, &account, 1, now);
    assert_eq!(raw::whoami(&mut raw::connect(titech, &good, kek).unwrap()).unwrap(), account);
    check(&raw::issue_user(&authority, &account, 1, now - 3 * HOUR), Code::CertificateExpired);
    check(&raw::issue_user(&authority, &account, 1, now + 3 * HOUR), Code::CertificateNotYetValid);
    let stranger = Authority::create(&SiteName::parse("cern").unwrap(), now).unwrap();
    check(&raw::issue_user(&stranger, &account, 1, now), Code::UnknownAuthority);
    // An authority that calls itself titech is not titech's.
    let impostor = Authority::create(&SiteName::parse("titech").unwrap(), now).unwrap();
    check(&raw::issue_user(&impostor, &account, 1, now), Code::UnknownAuthority);
    let (card, foreign) = foreign_name(&[&format!("renkei://titech/user/{account}")]);
    raw::trust_card(kek, &card);
    check(&foreign, Code::ForeignName);
}

/// The card of `cern`, and a credential with which its authority vouches for these names.
pub fn foreign_name(uris: &[&str]) -> (SiteCard, Credential) {
    let ca_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(rcgen::DnType::CommonName, "cern site authority");
    let ca = params.self_signed(&ca_key).unwrap().der().clone();
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    let uri = |uri: &&str| SanType::URI((*uri).to_owned().try_into().unwrap());
    params.subject_alt_names.extend(uris.iter().map(uri));
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let leaf = params.signed_by(&key, &issuer).unwrap().pem();
    let card = SiteCard {
        site: SiteName::parse("cern").unwrap(),
        endpoints: vec!["127.0.0.1:9".into()],
        via: Vec::new(),
        authority: ca,
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    (card, Credential::parse(&leaf, &key.serialize_pem(), path(b"test")).unwrap())
}

#[test]
fn revoked_certificates_are_refused_at_sites_with_the_list() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let account = crate::federation::account();
    let credential = raw::user(titech);
    raw::connect(titech, &credential, titech).unwrap();
    titech.ok(&["revoke", &format!("{account}@titech")]);
    let error = refused_session(titech, &credential, titech);
    assert_eq!((error.code, error.side.as_str()), (Code::CertificateRevoked, "titech"), "{error}");
    kek.take_card(titech);
    let error = refused_session(titech, &credential, kek);
    assert_eq!((error.code, error.side.as_str()), (Code::CertificateRevoked, "kek"), "{error}");
    let revoked = refused(6, "RK-AUTH-5", "kek");
    assert_eq!(refusal(titech.json(&["ls", &kek.place("")])), revoked);
    titech.ok(&["login"]);
    titech.ok(&["ls", &kek.place("")]);
}

/// A site learns the other's revocation list from any session with it.
#[test]
fn a_revoked_pop_is_refused() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    titech.ok(&["ls", &kek.place("")]);
    kek.ok(&["revoke", "kek", "--yes"]);
    // The PoP itself says so while it goes on with its old certificate.
    let (status, code, side) = refusal_after(titech, kek);
    assert_eq!((status, code.as_str(), side.as_str()), (6, "RK-AUTH-5", "client"));
}

/// The list comes with the first session, and counts from the second on.
fn refusal_after(titech: &Site, kek: &Site) -> (i32, String, String) {
    titech.renkei(&["ls", &kek.place("")]);
    refusal(titech.json(&["ls", &kek.place("")]))
}

/// A copy that runs from `from` to `to` (places or paths) when `shut_out` is done: how it ends.
fn ends_when(
    federation: &Federation,
    from: &str,
    to: &str,
    shut_out: impl FnOnce(),
) -> (i32, String, String) {
    let Federation { titech, kek, .. } = federation;
    let proxy = Proxy::to(kek);
    proxy.put_between(titech, kek);
    proxy.set_rate(3 * MIB as u64);
    let mut command = titech.command();
    command.args(["--json", "cp", "--retry-for", "0", from, to]).stdout(Stdio::piped());
    let copy = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while proxy.passed() < 2 * MIB as u64 {
        assert!(Instant::now() < deadline, "the copy does not begin\n{}", kek.logged());
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    shut_out();
    let output = copy.wait_with_output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "it went on for {:?}", start.elapsed());
    refusal((output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap()))
}

/// Blocking a user stops a running copy, whichever side sends.
#[test]
fn blocking_a_user_ends_running_transfers() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let account = crate::federation::account();
    let user = format!("{account}@titech");
    let here = federation.scratch().join("large");
    fs::write(&here, noise(1, 64 * MIB)).unwrap();
    fs::copy(&here, kek.root().join("large")).unwrap();
    fs::copy(&here, titech.root().join("large")).unwrap();
    let not_mapped = refused(5, "RK-AUTH-7", "kek");
    let unmap = || {
        kek.ok(&["map", "remove", &user]);
    };
    assert_eq!(ends_when(&federation, text(&here), &kek.place("up"), unmap), not_mapped);
    kek.ok(&["map", "add", "--yes", &user, &account]);
    let down = federation.scratch().join("down");
    assert_eq!(ends_when(&federation, &kek.place("large"), text(&down), unmap), not_mapped);
    kek.ok(&["map", "add", "--yes", &user, &account]);
    assert_eq!(ends_when(&federation, &titech.place("large"), &kek.place("over"), unmap), not_mapped);
    kek.ok(&["map", "add", "--yes", &user, &account]);
    // The site of the user, and of the PoP that sends, is not trusted any more.
    let distrust = || {
        kek.ok(&["trust", "remove", "titech"]);
    };
    let unknown = refused(6, "RK-AUTH-3", "kek");
    assert_eq!(ends_when(&federation, &titech.place("large"), &kek.place("across"), distrust), unknown);
    kek.take_card(titech);
    let revoke = || {
        titech.ok(&["revoke", &user]);
        kek.take_card(titech);
    };
    let revoked = refused(6, "RK-AUTH-5", "kek");
    assert_eq!(ends_when(&federation, text(&here), &kek.place("last"), revoke), revoked);
}

/// A long piece of work for a client that has gone is given up.
#[test]
fn a_request_ends_when_its_client_is_gone() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    fs::File::create(kek.root().join("huge")).unwrap().set_len(1 << 40).unwrap();
    let works = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", kek.pid())).unwrap();
        let name =
            |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("comm"));
        tasks.filter_map(|task| name(task).ok()).any(|name| name.trim() == "checksum")
    };
    let mut client = titech.command().args(["checksum", &kek.place("huge")]).spawn().unwrap();
    let wait_until = |wanted: bool| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while works() != wanted {
            assert!(Instant::now() < deadline, "{wanted}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until(true);
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until(false);
}

#[test]
fn an_endpoint_of_another_site_is_detected() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let mut export = kek.command();
    export.env("RENKEI_ENDPOINTS", titech.address.to_string()).args(["trust", "export"]);
    let card = titech.dir().join("wrong.card");
    fs::write(&card, export.output().unwrap().stdout).unwrap();
    titech.ok(&["trust", "add", "--yes", text(&card)]);
    let wrong = refused(6, "RK-AUTH-4", "client");
    assert_eq!(refusal(titech.json(&["ls", &kek.place("")])), wrong);
    assert_eq!(refusal(titech.json(&["cp", &kek.place("x"), text(&federation.scratch())])), wrong);
}

#[test]
fn clocks_and_versions_must_agree() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let now = SystemTime::now();
    for (versions, at, code) in [
        (raw::SPOKEN, now - HOUR, Code::ClockSkew),
        (raw::SPOKEN, now + HOUR, Code::ClockSkew),
        ((7, 9), now, Code::VersionMismatch),
    ] {
        let mut stream = raw::secure(titech, kek);
        raw::put(&mut stream, FrameKind::Control, &raw::hello(versions, at)).unwrap();
        let error = raw::take_refusal(&mut stream);
        assert_eq!((error.code, error.side.as_str()), (code, "kek"), "{error}");
    }
}

#[test]
fn a_clock_difference_is_reported_to_the_administrator() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let host = Credential::host(&raw::home(titech), SystemTime::now()).unwrap();
    let dialler = raw::dialler(titech, &host);
    let greet = |at: SystemTime| {
        let mut stream = dialler.secure(&raw::name(kek), kek.address).unwrap();
        raw::put(&mut stream, FrameKind::Control, &raw::hello(raw::SPOKEN, at)).unwrap();
        stream
    };
    let mut stream = greet(SystemTime::now() - HOUR);
    assert_eq!(raw::take_refusal(&mut stream).code, Code::ClockSkew);
    let found = crate::console::conditions::comes(kek, "clock", "titech");
    assert_eq!((&found["code"], &found["severity"]), (&"RK-AUTH-11".into(), &"critical".into()), "{found}");
    assert!(found["found"].as_str().unwrap().contains("behind ours"), "{found}");
    drop(greet(SystemTime::now() + Duration::from_secs(60)));
    crate::identity::administration::until("it is a warning", || {
        crate::console::conditions::comes(kek, "clock", "titech")["severity"] == "warning"
    });
    drop(greet(SystemTime::now()));
    crate::console::conditions::goes(kek, "clock", "titech");
}

#[test]
fn secrets_readable_by_others_are_refused() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let secret = raw::home(titech).user_credential();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let (status, report) = titech.json(&["ls", &kek.place("")]);
    assert_eq!((status, &report["error"]["code"]), (6, &"RK-AUTH-12".into()), "{report}");
}

#[test]
fn a_wildcard_rule_maps_to_no_system_account() {
    let dir = tempfile::tempdir().unwrap();
    let kek = Site::start(dir.path(), "kek");
    let evil = SiteName::parse("evil").unwrap();
    let authority = Authority::create(&evil, SystemTime::now()).unwrap();
    let card = SiteCard {
        site: evil,
        endpoints: vec!["pop.evil.example:7512".into()],
        via: Vec::new(),
        authority: authority.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    raw::trust_card(&kek, &card);
    kek.ok(&["map", "add", "*@evil", "*"]);
    let ask = |user: &str| {
        let credential = raw::issue_user(&authority, user, 1, SystemTime::now());
        raw::whoami(&mut raw::connect(&kek, &credential, &kek).unwrap())
    };
    for user in ["root", "daemon", "www-data", "nobody"] {
        assert_eq!(ask(user).unwrap_err().code, Code::NotMapped, "{user}");
    }
    if rustix::process::geteuid().is_root() {
        kek.ok(&["map", "add", "daemon@evil", "daemon"]);
        assert_eq!(ask("daemon").unwrap(), "daemon", "who is named is let in");
    }
}
