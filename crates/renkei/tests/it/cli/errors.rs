//! Every failure that users meet, brought about by real means: its code, its side, its remedy, its exit status.

use crate::federation::{Federation, Site, free_address};
use crate::relay::proxy::Proxy;
use crate::tree::{MIB, noise};
use crate::wire::raw;
use renkei_core::path::SiteName;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::trust::card::SiteCard;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command twice, as text and as JSON, and checks that both report the same failure.
fn assert_fails(site: &Site, arguments: &[&str], status: i32, code: &str, side: &str) -> Value {
    let (found, report) = site.json(arguments);
    let error = if report["error"].is_null() { &report["failures"][0] } else { &report["error"] };
    assert_eq!((found, error["code"].as_str()), (status, Some(code)), "{arguments:?}: {report}");
    assert_eq!(error["side"], side, "{arguments:?}: {report}");
    for part in ["title", "remedy", "op"] {
        assert!(error[part].as_str().is_some_and(|text| !text.is_empty()), "{part}: {report}");
    }
    let output = site.renkei(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{said}");
    for part in [code, side, error["remedy"].as_str().unwrap()] {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    error.clone()
}

/// A file to send.
fn file(federation: &Federation) -> PathBuf {
    let file = federation.scratch().join("file");
    fs::write(&file, b"content").unwrap();
    file
}

#[test]
fn wrong_paths() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let (file, here) = (file(&federation), federation.scratch());
    let file = text(&file);
    let fails = |arguments: &[&str], status, code, side| assert_fails(titech, arguments, status, code, side);
    fails(&["cp", text(&here.join("none")), &kek.place("")], 3, "RK-STORE-1", "client");
    fails(&["cp", "-r", text(&here.join("none/")), &kek.place("")], 3, "RK-STORE-1", "client");
    fails(&["cp", &kek.place("none"), text(&here)], 3, "RK-STORE-1", "kek");
    fails(&["cp", &kek.place("none"), &titech.place("")], 3, "RK-STORE-1", "kek");
    fails(&["cp", file, &kek.place("no/such/dir/")], 3, "RK-STORE-1", "kek");
    fails(&["cp", file, &kek.place("no/such/name")], 3, "RK-STORE-1", "kek");
    fails(&["cp", &kek.place("none"), text(&here.join("no/such/name"))], 3, "RK-STORE-1", "client");
    fails(&["cp", file, "kek:/nothing/x"], 3, "RK-STORE-16", "kek");
    fails(&["cp", file, "kek:data/x"], 2, "RK-STORE-19", "client");
    fails(&["cp", file, "kek:/data/../x"], 2, "RK-STORE-19", "client");
    let card = fails(&["trust", "add", file], 2, "RK-CONF-4", "client");
    assert_eq!(card["subject"], file, "{card}");
    fails(&["cp", file, "nosite:/data/x"], 3, "RK-CONF-5", "client");
    fails(&["cp", file, text(&here.join("copy"))], 2, "RK-CONF-6", "client");
    fs::write(kek.root().join("plain"), b"x").unwrap();
    fails(&["cp", file, &kek.place("plain/x")], 4, "RK-STORE-3", "kek");
    fails(&["cp", file, &kek.place("plain/")], 4, "RK-STORE-3", "kek");
    fails(&["cp", text(&here), &kek.place("dir")], 4, "RK-STORE-4", "client");
}

/// Errors of a source show its path as the user gave it, whichever end reads it.
#[test]
fn sources_are_named_as_they_were_given() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let here = federation.scratch();
    let missing = here.join("none");
    for dir in [kek.root(), &here] {
        fs::create_dir(dir.join("run")).unwrap();
        fs::write(dir.join("run/f"), b"x").unwrap();
    }
    let subject = |arguments: &[&str], status, code, side| {
        let error = assert_fails(titech, arguments, status, code, side);
        error["subject"].as_str().unwrap().to_owned()
    };
    let to = text(&here);
    assert_eq!(subject(&["cp", &kek.place("none"), to], 3, "RK-STORE-1", "kek"), "/data/none");
    assert_eq!(subject(&["cp", &kek.place("run/none"), to], 3, "RK-STORE-1", "kek"), "/data/run/none");
    assert_eq!(subject(&["cp", &kek.place("run"), to], 4, "RK-STORE-4", "kek"), "/data/run");
    let up = subject(&["cp", "-r", text(&missing), &kek.place("")], 3, "RK-STORE-1", "client");
    assert_eq!(up, text(&missing));
    let run = here.join("run");
    let up = subject(&["cp", text(&run), &kek.place("new")], 4, "RK-STORE-4", "client");
    assert_eq!(up, text(&run));
}

#[test]
fn wrong_arguments() {
    let federation = Federation::two();
    let titech = &federation.titech;
    let fails = |arguments: &[&str], said: &str| {
        let error = assert_fails(titech, arguments, 2, "RK-CONF-6", "client");
        assert!(error["cause"].as_str().unwrap().contains(said), "{error}");
    };
    fails(&["cp"], "<SOURCE>");
    fails(&["cp", "--frob", "a", "kek:/data"], "--frob");
    fails(&["frob"], "unrecognized subcommand");
    fails(&["sync", "a", "b", "c"], "'c'");
    fails(&["cp", "--limit", "80Mb", "a", "kek:/data"], "MB or Mbit");
    fails(&["ls", "-R", "-d", "kek:/data"], "cannot be used with");
    fails(&["init", "--site", "x", "--listen", "here"], "here");
}

#[test]
fn names_too_long_for_the_target_are_refused() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let file = file(&federation);
    // The file system takes 255 bytes and so does the protocol; a longer name can only be in the argument.
    let long = "x".repeat(256);
    assert_fails(titech, &["cp", text(&file), &kek.place(&long)], 2, "RK-STORE-9", "client");
    let short = "x".repeat(255);
    titech.ok(&["cp", text(&file), &kek.place(&short)]);
}

/// Runs a command of the machine; whether it is there and succeeds.
fn system(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A file system mounted as long as the value lives.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts with a command; `None` where the machine does not have or allow it.
    pub fn by(at: &Path, program: &str, arguments: &[&str]) -> Option<Mounted> {
        fs::create_dir_all(at).unwrap();
        system(program, arguments).then(|| Mounted(at.into()))
    }

    /// A file system in memory; `None`, said aloud, where mounting is not allowed.
    pub fn tmpfs(at: &Path, options: &str) -> Option<Mounted> {
        let mounted = Mounted::by(at, "mount", &["-t", "tmpfs", "-o", options, "tmpfs", text(at)]);
        if mounted.is_none() {
            eprintln!("SKIPPED: cannot mount");
        }
        mounted
    }

    /// A file system of its own, made in a file by a command.
    pub fn image(at: &Path, make: &[&str], options: &str) -> Option<Mounted> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(128 << 20).unwrap();
        let arguments = [&make[1..], &[text(image.path())]].concat();
        let options = format!("loop,{options}");
        let mount = || Mounted::by(at, "mount", &["-o", &options, text(image.path()), text(at)]);
        system(make[0], &arguments).then(mount).flatten()
    }

    pub fn remount(&self, options: &str) {
        assert!(system("mount", &["-o", &format!("remount,{options}"), text(&self.0)]));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = system("umount", &["-l", text(&self.0)]) || system("fusermount", &["-uz", text(&self.0)]);
    }
}

/// An encrypted folder, in which names take more bytes below than above.
fn encrypted(at: &Path, below: &Path) -> Option<Mounted> {
    fs::create_dir_all(below).unwrap();
    Mounted::by(at, "encfs", &["--standard", "--extpass=echo secret", text(below), text(at)])
}

#[test]
fn names_too_long_for_an_encrypted_folder() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let (scratch, at) = (federation.scratch(), kek.root().join("vault"));
    let Some(_vault) = encrypted(&at, &scratch.join("below")) else {
        return eprintln!("SKIPPED: needs encfs and FUSE");
    };
    let (tree, long) = (scratch.join("tree"), "x".repeat(200));
    fs::create_dir_all(tree.join("dir")).unwrap();
    for name in ["a", &long, "z", "dir/f", &format!("dir/{long}")] {
        fs::write(tree.join(name), name).unwrap();
    }
    let (one, there) = (tree.join(&long), kek.place(&format!("vault/{long}")));
    assert_fails(titech, &["cp", text(&one), &there], 2, "RK-STORE-9", "kek");
    let (status, report) = titech.json(&["cp", "-r", text(&tree), &kek.place("vault/copy")]);
    let failures = report["failures"].as_array().unwrap();
    assert_eq!((status, failures.len(), report["files"].as_u64()), (23, 2, Some(3)), "{report}");
    assert!(failures.iter().all(|failure| failure["code"] == "RK-STORE-9"), "{report}");
    for name in ["a", "z", "dir/f"] {
        assert_eq!(fs::read_to_string(at.join("copy").join(name)).unwrap(), name);
    }
    // The other way the side is the client's.
    fs::write(kek.root().join(&long), b"x").unwrap();
    let here = scratch.join("here");
    let Some(_here) = encrypted(&here, &scratch.join("below-here")) else { panic!("a moment ago it went") };
    assert_fails(titech, &["cp", &kek.place(&long), text(&here)], 2, "RK-STORE-9", "client");
}

#[test]
fn a_full_disk_is_reported_and_the_copy_resumes_with_more_space() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let Some(small) = Mounted::tmpfs(&kek.root().join("small"), "size=40m") else { return };
    let source = federation.scratch().join("source");
    fs::create_dir(&source).unwrap();
    for index in 0..6 {
        fs::write(source.join(format!("f{index}")), noise(index, 9 * MIB)).unwrap();
    }
    let arguments = ["cp", "-r", text(&source), &kek.place("small/copy")];
    assert_fails(titech, &arguments, 7, "RK-STORE-6", "kek");
    small.remount("size=100m");
    let (status, report) = titech.json(&arguments);
    assert_eq!(status, 0, "{report}");
    assert!(report["bytes_moved"].as_u64().unwrap() < 54 * MIB as u64, "nothing was kept: {report}");
    let copy = crate::tree::read(&kek.root().join("small/copy"));
    crate::tree::assert_same_content(&crate::tree::read(&source), &copy);
    // Down to a full disk, the side is the client's.
    let here = federation.scratch().join("here");
    let Some(_full) = Mounted::tmpfs(&here, "size=4m") else { return };
    assert_fails(titech, &["cp", &kek.place("small/copy/f0"), text(&here)], 7, "RK-STORE-6", "client");
}

#[test]
fn a_file_system_that_is_read_only() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let Some(mounted) = Mounted::tmpfs(&kek.root().join("ro"), "size=4m") else { return };
    mounted.remount("ro");
    assert_fails(titech, &["cp", text(&file(&federation)), &kek.place("ro/x")], 5, "RK-STORE-8", "kek");
}

/// ext4 with 4 MiB of free space, owned by `nobody`.
fn user_quota(at: &Path) -> Option<Mounted> {
    let make = ["mkfs.ext4", "-q", "-O", "quota", "-E", "quotatype=usrquota"];
    let mounted = Mounted::image(at, &make, "usrquota")?;
    system("setquota", &["-u", "nobody", "4096", "4096", "0", "0", text(at)]).then_some(mounted)
}

/// btrfs with room for 4 MiB in all: not every kernel has the quotas of users.
fn tree_quota(at: &Path) -> Option<Mounted> {
    let mounted = Mounted::image(at, &["mkfs.btrfs", "-q"], "noatime")?;
    let set = |arguments: &[&str]| system("btrfs", &[arguments, &[text(at)]].concat());
    (set(&["quota", "enable"]) && set(&["qgroup", "limit", "4M"])).then_some(mounted)
}

/// Disk quotas of a real file system, of whichever kind this machine has.
#[test]
fn quota_exceeded() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let at = kek.root().join("quota");
    let Some(_mounted) = user_quota(&at).or_else(|| tree_quota(&at)) else {
        return eprintln!("SKIPPED: needs root, loop devices and quotas: setquota with ext4, or btrfs");
    };
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(&at, open.clone()).unwrap();
    fs::set_permissions(kek.root().parent().unwrap(), open).unwrap();
    kek.ok(&["map", "remove", "root@titech"]);
    kek.ok(&["map", "add", "--yes", "root@titech", "nobody"]);
    let tree = federation.scratch().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("small"), noise(1, MIB)).unwrap();
    fs::write(tree.join("large"), noise(2, 10 * MIB)).unwrap();
    let large = tree.join("large");
    assert_fails(titech, &["cp", text(&large), &kek.place("quota/x")], 7, "RK-STORE-7", "kek");
    assert!(!at.join("x").exists());
    assert_fails(titech, &["cp", "-r", text(&tree), &kek.place("quota/tree")], 7, "RK-STORE-7", "kek");
}

#[test]
fn a_storage_whose_root_is_gone() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let gone = federation.scratch().join("gone");
    fs::create_dir(&gone).unwrap();
    kek.ok(&["storage", "add", "gone", text(&gone)]);
    fs::remove_dir_all(&gone).unwrap();
    let file = file(&federation);
    let (status, report) = titech.json(&["cp", "--retry-for", "0", text(&file), "kek:/gone/x"]);
    let code = report["error"]["code"].as_str().unwrap();
    assert!(status != 0 && ["RK-STORE-17", "RK-STORE-1"].contains(&code), "{report}");
}

/// Lets `titech` look for kek at another address.
fn redirect(titech: &Site, kek: &Site, to: SocketAddr) {
    let card = titech.dir().join("redirected.card");
    let mut export = kek.command();
    export.env("RENKEI_ENDPOINTS", to.to_string()).args(["trust", "export"]);
    fs::write(&card, export.output().unwrap().stdout).unwrap();
    titech.ok(&["trust", "add", "--yes", text(&card)]);
}

#[test]
fn a_port_that_is_closed() {
    let mut federation = Federation::two();
    federation.kek.kill9();
    let Federation { titech, kek, .. } = &federation;
    let file = file(&federation);
    assert_fails(titech, &["cp", text(&file), &kek.place("x")], 8, "RK-NET-2", "client");
    assert_fails(titech, &["ls", &kek.place("")], 8, "RK-NET-2", "client");
    // From another site's view, the site that could not reach it is named.
    assert_fails(titech, &["cp", &kek.place("x"), &titech.place("y")], 8, "RK-NET-2", "client");
}

/// A service of another kind, for some connections.
fn serve(mut answer: impl FnMut(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().take(8).map_while(Result::ok).for_each(&mut answer));
    address
}

/// Greetings of other services.
fn serve_nonsense(answer: &'static [u8]) -> SocketAddr {
    serve(|mut sock| {
        let mut bytes = [0; 64];
        let _ = sock.read(&mut bytes);
        let _ = sock.write_all(answer);
        // Bytes that are unread at the close would discard the answer.
        let _ = sock.shutdown(std::net::Shutdown::Write);
        let _ = sock.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = std::io::copy(&mut sock, &mut std::io::sink());
    })
}

#[test]
fn another_service_on_the_port() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let file = file(&federation);
    for answer in [&b"SSH-2.0-OpenSSH_9.6\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        redirect(titech, kek, serve_nonsense(answer));
        assert_fails(titech, &["cp", text(&file), &kek.place("x")], 2, "RK-WIRE-5", "client");
    }
}

/// A TLS service that does not know renkei/1.
#[test]
fn another_tls_service_on_the_port() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = rustls::ServerConfig::builder_with_provider(renkei_net::identity::tls::provider());
    let mut config = builder
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = std::sync::Arc::new(config);
    let address = serve(move |mut sock| {
        let mut tls = rustls::ServerConnection::new(config.clone()).unwrap();
        let _ = rustls::Stream::new(&mut tls, &mut sock).read(&mut [0; 16]);
    });
    redirect(titech, kek, address);
    assert_fails(titech, &["ls", &kek.place("")], 6, "RK-AUTH-10", "client");
}

/// A host that does not answer at all: a socket whose backlog is full drops further connections.
#[test]
fn a_host_that_does_not_answer() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let full = |_| TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let held: Vec<_> = (0..4).map(full).collect();
    assert!(held.iter().any(Result::is_err), "the queue is not full");
    redirect(titech, kek, address);
    let start = Instant::now();
    let (status, report) = titech.json(&["ls", &kek.place("")]);
    assert_eq!((status, &report["error"]["code"]), (8, &"RK-NET-1".into()), "{report}");
    assert_eq!(report["error"]["side"], "client");
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
}

#[test]
fn a_name_that_does_not_resolve() {
    let federation = Federation::two();
    let titech = &federation.titech;
    let authority = Authority::create(&SiteName::parse("cern").unwrap(), SystemTime::now()).unwrap();
    let card = SiteCard {
        site: SiteName::parse("cern").unwrap(),
        endpoints: vec!["no-such-host.invalid:7512".into()],
        via: Vec::new(),
        authority: authority.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    raw::trust_card(titech, &card);
    assert_fails(titech, &["ls", "cern:/data"], 8, "RK-NET-5", "client");
    // Several endpoints, none of which can be reached: one code, all causes.
    let closed = || free_address().to_string();
    raw::trust_card(titech, &SiteCard { endpoints: vec![closed(), closed()], ..card });
    let error = assert_fails(titech, &["ls", "cern:/data"], 8, "RK-NET-7", "client");
    assert_eq!(error["cause"].as_str().unwrap().matches("RK-NET-2").count(), 2, "{error}");
}

/// A copy of 64 MiB to kek that has come as far as a proxy lets it.
fn stuck_copy(federation: &Federation, passes: usize, prepare: impl FnOnce(&mut Command)) -> (Proxy, Child) {
    let Federation { titech, kek, .. } = federation;
    let large = federation.scratch().join("large");
    fs::write(&large, noise(1, 64 * MIB)).unwrap();
    let proxy = Proxy::to(kek);
    proxy.put_between(titech, kek);
    proxy.allow(passes as u64);
    let mut command = titech.command();
    command.args(["cp", text(&large), &kek.place("x")]).stdout(Stdio::piped()).stderr(Stdio::piped());
    prepare(&mut command);
    let copy = command.spawn().unwrap();
    proxy.wait_until_used_up();
    (proxy, copy)
}

/// The exit status and the report of a copy.
fn report_of(copy: Child) -> (Option<i32>, Value) {
    let output = copy.wait_with_output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

/// A peer that stops answering in the middle, as a machine under too much load does.
#[test]
fn a_peer_that_stalls() {
    let federation = Federation::two();
    let start = Instant::now();
    let (proxy, copy) = stuck_copy(&federation, 4 * MIB, |command| {
        command.env("RENKEI_STALL_TIMEOUT_S", "2").args(["--json", "--retry-for", "0"]);
    });
    let pid = rustix::process::Pid::from_raw(federation.kek.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    proxy.open();
    let (status, report) = report_of(copy);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(status, Some(8), "{report}");
    assert_eq!(report["error"]["code"], "RK-NET-4", "{report}");
    assert_eq!(report["error"]["side"], "client", "{report}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// A connection that is cut is tried again; when that does not help, it is said.
#[test]
fn a_connection_that_is_lost() {
    let mut federation = Federation::two();
    let (proxy, copy) = stuck_copy(&federation, 4 * MIB, |command| {
        command.args(["--json", "--retry-for", "1"]);
    });
    federation.kek.kill9();
    proxy.open();
    proxy.cut();
    let (status, report) = report_of(copy);
    let code = report["error"]["code"].as_str().unwrap();
    assert_eq!(status, Some(8), "{report}");
    assert!(["RK-NET-2", "RK-NET-3"].contains(&code), "{report}");
}

/// Ctrl-C stops in order and says how to go on.
#[test]
fn an_interrupted_copy_says_how_to_resume() {
    let federation = Federation::two();
    let (proxy, copy) = stuck_copy(&federation, 20 * MIB, |_| {});
    let pid = rustix::process::Pid::from_child(&copy);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    proxy.open();
    let output = copy.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("RK-MOVE-5") && said.contains("same command again"), "{said}");
    let Federation { titech, kek, .. } = &federation;
    titech.ok(&["cp", text(&federation.scratch().join("large")), &kek.place("x")]);
    assert_eq!(fs::read(kek.root().join("x")).unwrap(), noise(1, 64 * MIB));
}

#[test]
fn not_logged_in_and_no_pop() {
    let federation = Federation::two();
    let titech = &federation.titech;
    fs::remove_file(raw::home(titech).user_credential()).unwrap();
    assert_fails(titech, &["ls", "kek:/data"], 6, "RK-AUTH-13", "client");
}

#[test]
fn a_full_disk_is_reported_with_the_path_that_was_given() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let Some(_small) = Mounted::tmpfs(&kek.root().join("small"), "size=4m") else { return };
    let mut command = titech.command();
    command.args(["put", &kek.place("small/x")]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut put = command.spawn().unwrap();
    let mut input = put.stdin.take().unwrap();
    // It may end before all is written.
    let _ = input.write_all(&noise(1, 8 * MIB));
    drop(input);
    let output = put.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{told}");
    assert!(told.contains("/data/small/x (at kek") && !told.contains(".rk~"), "{told}");
    assert!(!told.contains("resumes"), "{told}");
}
