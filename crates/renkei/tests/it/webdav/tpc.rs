//! Third-party copies: between PoPs by davix and curl, and with servers that misbehave.

use super::{Answer, ask, credential, pop};
use crate::federation::{Federation, Site, free_address};
use renkei_config::home::Home;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// What the other server does with a request: its head, and the number of requests of the method before.
type Conduct = dyn Fn(&str, usize, &mut Stream) + Send + Sync;

/// Another web server, which does as a test tells it. Its threads end with the process.
struct OtherServer {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// A certificate for `localhost` in a folder of authorities.
struct WebAuthority {
    folder: PathBuf,
    /// The private key, PEM.
    key: String,
    tls: Arc<ServerConfig>,
}

impl WebAuthority {
    fn new(dir: &Path) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let made =
            rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        let folder = dir.join("authorities");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("web.pem"), made.pem()).unwrap();
        std::fs::write(folder.join("web.r0"), "a list of revoked certificates").unwrap();
        let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let tls = ServerConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into());
        let tls = tls.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let tls = Arc::new(tls.with_single_cert(vec![made.der().clone()], secret).unwrap());
        WebAuthority { folder, key: key.serialize_pem(), tls }
    }

    fn serve(&self, conduct: impl Fn(&str, usize, &mut Stream) + Send + Sync + 'static) -> OtherServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}/f?authz=hidden", listener.local_addr().unwrap().port());
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, tls, conduct) =
            (requests.clone(), self.tls.clone(), Arc::<Conduct>::from(Box::new(conduct) as Box<Conduct>));
        std::thread::spawn(move || {
            for sock in listener.incoming() {
                let connection = ServerConnection::new(tls.clone()).unwrap();
                let (seen, conduct) = (seen.clone(), conduct.clone());
                let stream = StreamOwned::new(connection, sock.unwrap());
                std::thread::spawn(move || serve(stream, &seen, &*conduct));
            }
        });
        OtherServer { url, requests }
    }

    /// A PoP that trusts it and may reach this machine by its name.
    fn pop(&self, more: &[(&'static str, &'static str)]) -> (tempfile::TempDir, Site) {
        let (dir, mut site) = pop();
        let folder = Box::leak(self.folder.display().to_string().into_boxed_str());
        site.environment = vec![("RENKEI_TPC_HOSTS", "*,localhost"), ("RENKEI_TPC_AUTHORITIES", folder)];
        site.environment.extend(more);
        site.restart();
        (dir, site)
    }
}

impl OtherServer {
    fn seen(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(mut stream: Stream, seen: &Mutex<Vec<String>>, conduct: &Conduct) {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let method = head.split(' ').next().unwrap().to_owned();
        let mut all = seen.lock().unwrap();
        let before = all.iter().filter(|one| one.starts_with(&format!("{method} "))).count();
        all.push(head.clone());
        drop(all);
        conduct(&head, before, &mut stream);
        if stream.flush().is_err() {
            return;
        }
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn say(stream: &mut Stream, status: &str, headers: &[(&str, &str)]) {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n{lines}\r\n").as_bytes());
}

/// Answers HEAD and GET as a good server does; GET sends at most `most` bytes of the body.
fn give(head: &str, stream: &mut Stream, content: &[u8], tag: &str, most: usize) {
    let (from, status) = match header(head, "range").and_then(|range| range.strip_prefix("bytes=")) {
        Some(range) => (range.split('-').next().unwrap().parse().unwrap(), "206 Partial Content"),
        None => (0, "200 OK"),
    };
    let (length, total) = ((content.len() - from).to_string(), content.len());
    let range = format!("bytes {from}-{}/{total}", total - 1);
    let mut headers = vec![("Content-Length", &*length), ("ETag", tag), ("Accept-Ranges", "bytes")];
    if status.starts_with("206") {
        headers.push(("Content-Range", &range));
    }
    say(stream, status, &headers);
    if head.starts_with("GET") {
        let end = content.len().min(from.saturating_add(most));
        let _ = stream.write_all(&content[from..end]);
        let _ = stream.flush();
        if end < content.len() {
            // The connection is cut.
            let _ = stream.sock.shutdown(std::net::Shutdown::Both);
        }
    }
}

pub(super) fn copy(site: &Site, path: &str, headers: &[&str]) -> Answer {
    let mut arguments = vec!["-X", "COPY"];
    headers.iter().for_each(|header| arguments.extend(["-H", header]));
    ask(site, path, &arguments)
}

pub(super) fn last_line(answer: &Answer) -> String {
    let text = String::from_utf8_lossy(&answer.body);
    text.lines().last().unwrap_or_default().to_owned()
}

/// Pulls from another server; gives the last line.
fn pull(site: &Site, other: &OtherServer, path: &str) -> String {
    let answer =
        copy(site, path, &[&format!("Source: {}", other.url), "TransferHeaderAuthorization: Bearer token"]);
    assert_eq!(answer.status, 202, "{}", answer.head);
    last_line(&answer)
}

/// The names in the storage, hidden ones included, without its marker.
pub(super) fn names(site: &Site) -> Vec<String> {
    let all = std::fs::read_dir(site.root()).unwrap().map(|item| item.unwrap().file_name());
    let mut all: Vec<String> = all.map(|name| name.into_string().unwrap()).collect();
    all.retain(|name| name != ".rk~storage");
    all.sort();
    all
}

pub(super) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn token(site: &Site, may: &str) -> String {
    site.ok(&["token", &format!("{}:/data", site.name), "--may", may]).trim().to_owned()
}

#[test]
fn davix_copies_between_pops_in_both_modes() {
    let sites = Federation::two();
    let content: Vec<u8> = (0..18_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(sites.kek.root().join("a.dat"), &content).unwrap();
    let run = |active: &Site, passive: &Site, may: &str, mode: &str, from: &str, to: &str| {
        let header = format!("TransferHeaderAuthorization: Bearer {}", token(passive, may));
        let run = Command::new("davix-cp")
            .args(["--insecure", "--cert", credential(active).to_str().unwrap(), "-H", &header])
            .args(["-H", "Credential: none", "--copy-mode", mode, from, to])
            .output()
            .unwrap();
        let text = [&run.stdout[..], &run.stderr].concat();
        assert!(run.status.success(), "{}\n{}", String::from_utf8_lossy(&text), active.logged());
    };
    let url = |site: &Site, name: &str| format!("davs://{}/data/{name}", site.address);
    let (titech, kek) = (&sites.titech, &sites.kek);
    run(titech, kek, "read,list", "pull", &url(kek, "a.dat"), &url(titech, "b.dat"));
    assert!(std::fs::read(titech.root().join("b.dat")).unwrap() == content);
    run(titech, kek, "read,list,create,modify,delete", "push", &url(titech, "b.dat"), &url(kek, "c.dat"));
    assert!(std::fs::read(kek.root().join("c.dat")).unwrap() == content);
    let (_, listed) = titech.json(&["transfers", "--ended"]);
    let states: Vec<_> = listed["transfers"].as_array().unwrap().iter().map(|one| &one["state"]).collect();
    assert_eq!(states, ["done", "done"], "{listed}");
    let labels: Vec<_> = listed["transfers"].as_array().unwrap().iter().map(|one| &one["label"]).collect();
    assert_eq!(labels, ["renkei/1", "renkei/1"], "{}", titech.logged());
    let id = listed["transfers"][0]["id"].as_str().unwrap();
    let why = titech.ok(&["why", id]);
    assert!(why.contains("b.dat") && why.contains("https://"), "{why}");
    assert!(titech.logged().contains("third-party copy ended"));
}

/// Copies from one URL to another with a token for each, checksums and four streams, as FTS does.
const GFAL2: &str = "
import gfal2, sys
source, destination, of_source, of_destination = sys.argv[1:]
context = gfal2.creat_context()
context.set_opt_boolean('HTTP PLUGIN', 'INSECURE', True)
for url, token in (source, of_source), (destination, of_destination):
    context.cred_set(url.rsplit('/', 1)[0], context.cred_new('BEARER', token))
how = context.transfer_parameters()
how.overwrite, how.nbstreams = True, 4
how.set_checksum(gfal2.checksum_mode.both, 'ADLER32', '')
how.event_callback = lambda event: print(event.stage, event.description)
context.filecopy(how, source, destination)
";

#[test]
fn gfal2_copies_between_pops_in_both_modes() {
    let sites = Federation::two();
    let content: Vec<u8> = (0..18_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(sites.kek.root().join("a"), &content).unwrap();
    let script = sites.scratch().join("copy.py");
    std::fs::write(&script, GFAL2).unwrap();
    let run = |from: (&Site, &str), to: (&Site, &str), mode: &str| {
        let url = |(site, name): (&Site, &str)| format!("davs://{}/data/{name}", site.address);
        let all = "read,list,create,modify,delete";
        // The module is that of Debian.
        let run = Command::new("/usr/bin/python3")
            .arg(&script)
            .args([url(from), format!("{}?copy_mode={mode}", url(to)), token(from.0, all), token(to.0, all)])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&[&run.stdout[..], &run.stderr].concat()).into_owned();
        assert!(run.status.success() && text.contains(&format!("3rd {mode}")), "{text}");
    };
    run((&sites.kek, "a"), (&sites.titech, "b"), "pull");
    assert!(std::fs::read(sites.titech.root().join("b")).unwrap() == content);
    run((&sites.titech, "b"), (&sites.kek, "c"), "push");
    assert!(std::fs::read(sites.kek.root().join("c")).unwrap() == content);
}

#[test]
fn what_is_wrong_with_the_request_is_a_status() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("a"), "here").unwrap();
    std::fs::create_dir(site.root().join("d")).unwrap();
    let source = "Source: https://192.0.2.1/x";
    let status = |path: &str, headers: &[&str]| copy(&site, path, headers).status;
    assert_eq!(status("/data/b", &[source, "Destination: https://192.0.2.2/y"]), 400);
    assert_eq!(status("/data/b", &[]), 400);
    assert_eq!(status("/data/b", &["Source: http://192.0.2.1/x"]), 400);
    assert_eq!(status("/data/b", &[source, "Credential: oauth"]), 400);
    // Who shows no grid certificate cannot delegate a proxy.
    assert_eq!(status("/data/b", &[source, "Credential: gridsite"]), 403);
    assert_eq!(status("/data/none/b", &[source]), 409);
    assert_eq!(status("/data/d", &[source]), 409);
    assert_eq!(status("/data/a", &[source, "Overwrite: F"]), 412);
    assert_eq!(status("/data/none", &["Destination: https://192.0.2.2/y"]), 404);
    // The own host is no other server.
    let own = format!("Source: https://{}/data/a", site.address);
    assert_eq!(status("/data/own", &[&own]), 201);
    assert_eq!(std::fs::read_to_string(site.root().join("own")).unwrap(), "here");
    assert_eq!(names(&site), ["a", "d", "own"]);
}

#[test]
fn servers_inside_are_not_reached_unless_they_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let other = web.serve(|head, _, stream| give(head, stream, b"secret", "\"1\"", usize::MAX));
    let (_dir, site) = pop();
    for url in [&*other.url, "https://169.254.169.254/latest", "https://[::1]/x", "https://10.0.0.1/x"] {
        let line = last_line(&copy(&site, "/data/a", &[&format!("Source: {url}")]));
        assert!(line.starts_with("failure: RK-TPC-1: "), "{url}: {line}");
    }
    assert!(other.seen().is_empty() && names(&site).is_empty());
    // Listed, and the authority is not known: no request is made.
    let mut site = site;
    site.environment = vec![("RENKEI_TPC_HOSTS", "localhost")];
    site.restart();
    assert!(pull(&site, &other, "/data/a").starts_with("failure: RK-AUTH-10: "));
    assert!(other.seen().is_empty());
}

#[test]
fn a_pull_goes_on_where_the_connection_was_cut() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let served = content.clone();
    let other = web.serve(move |head, before, stream| {
        give(head, stream, &served, "\"1\"", if before < 2 { 1_500_000 } else { usize::MAX });
    });
    let (_dir, site) = web.pop(&[]);
    assert_eq!(pull(&site, &other, "/data/a"), "success: Created");
    assert!(std::fs::read(site.root().join("a")).unwrap() == content);
    let seen = other.seen();
    let ranges: Vec<_> = seen.iter().filter_map(|head| header(head, "range")).collect();
    assert!(ranges.len() >= 2 && ranges.iter().all(|range| *range != "bytes=0-3999999"), "{ranges:?}");
    for head in &seen {
        assert_eq!(header(head, "authorization"), Some("Bearer token"));
        assert!(header(head, "if-match") == Some("\"1\"") || head.starts_with("HEAD"), "{head}");
    }
}

#[test]
fn two_versions_are_never_mixed_and_wrong_bytes_never_seen() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let content = vec![7; 3_000_000];
    let (_dir, site) = web.pop(&[("RENKEI_STALL_TIMEOUT_S", "1")]);
    let changes = {
        let content = content.clone();
        web.serve(move |head, before, stream| {
            let tag = if head.starts_with("GET") && before > 0 { "\"2\"" } else { "\"1\"" };
            give(head, stream, &content, tag, if before == 0 { 1_200_000 } else { usize::MAX });
        })
    };
    let line = pull(&site, &changes, "/data/a");
    assert!(line.starts_with("failure: RK-MOVE-1: ") && line.contains("localhost"), "{line}");
    let lies = web.serve(move |head, _, stream| {
        let headers = [("Content-Length", "5"), ("Digest", "adler32=00000001")];
        say(stream, "200 OK", &headers);
        if head.starts_with("GET") {
            let _ = stream.write_all(b"hello");
        }
    });
    let line = pull(&site, &lies, "/data/a");
    assert!(line.starts_with("failure: RK-MOVE-3: ") && line.contains("adler32 00000001"), "{line}");
    let shrinks = web.serve(|head, _, stream| {
        let length = if head.starts_with("HEAD") { "50" } else { "5" };
        say(stream, "200 OK", &[("Content-Length", length)]);
        let _ = stream.write_all(if head.starts_with("HEAD") { b"" } else { b"hello" });
    });
    assert!(pull(&site, &shrinks, "/data/a").starts_with("failure: RK-MOVE-1: "));
    let refuses = web.serve(|head, _, stream| {
        let body = if head.starts_with("HEAD") { "" } else { "not you\r\nsuccess: Created" };
        say(stream, "403 Forbidden", &[("Content-Length", &body.len().to_string())]);
        let _ = stream.write_all(body.as_bytes());
    });
    let line = pull(&site, &refuses, "/data/a");
    assert!(
        line.starts_with("failure: RK-TPC-2: ") && line.contains("HTTP 403") && !line.contains("hidden"),
        "{line}"
    );
    let stalls = web.serve(|head, _, stream| {
        say(stream, "200 OK", &[("Content-Length", "5")]);
        if head.starts_with("GET") {
            let _ = stream.write_all(b"hel");
            let _ = stream.flush();
            std::thread::sleep(Duration::from_secs(3));
            let _ = stream.sock.shutdown(std::net::Shutdown::Both);
        }
    });
    let line = pull(&site, &stalls, "/data/a");
    assert!(line.starts_with("failure: RK-NET-4: ") && line.contains("no data within 1 s"), "{line}");
    assert!(names(&site).is_empty(), "{:?}", names(&site));
}

#[test]
fn a_server_that_drips_bytes_keeps_no_place() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let (_dir, site) =
        web.pop(&[("RENKEI_TPC_SLOW_WINDOW_S", "2"), ("RENKEI_TPC_MIN_BYTES_PER_S", "100000")]);
    let head = [("Content-Length", "1000000"), ("ETag", "\"1\"")];
    let drips = web.serve(move |request, _, stream| {
        say(stream, "200 OK", &head);
        while request.starts_with("GET") && stream.write_all(b"x").and_then(|()| stream.flush()).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let line = pull(&site, &drips, "/data/a");
    assert!(line.starts_with("failure: RK-TPC-5: ") && line.contains("localhost"), "{line}");
    // One that cuts each connection after a few bytes makes progress, too.
    let content = vec![7; 1_000_000];
    let cuts = web.serve(move |head, _, stream| give(head, stream, &content, "\"1\"", 10));
    let line = pull(&site, &cuts, "/data/a");
    assert!(line.starts_with("failure: RK-TPC-5: "), "{line}");
    assert!(names(&site).is_empty(), "{:?}", names(&site));
}

#[test]
fn redirects_take_the_token_to_no_other_host() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    // The same machine by another name that its certificate does not have: nothing is sent there at all.
    let plain = web.serve(|_, _, stream| {
        say(stream, "302 Found", &[("Location", "http://localhost/x"), ("Content-Length", "0")]);
    });
    let (_dir, site) = web.pop(&[]);
    let line = pull(&site, &plain, "/data/a");
    assert!(line.starts_with("failure: RK-TPC-4: ") && line.contains("http is not served"), "{line}");
    let inside = web.serve(|_, _, stream| {
        say(stream, "307 Go", &[("Location", "https://169.254.169.254/x"), ("Content-Length", "0")]);
    });
    assert!(pull(&site, &inside, "/data/a").starts_with("failure: RK-TPC-1: "));
    // A PoP as the target: another host, so the token stays behind and the PoP refuses.
    let titech = Site::start(dir.path(), "titech");
    site.befriend(&titech);
    std::fs::write(titech.root().join("x"), "content").unwrap();
    let target = format!("https://{}/data/x", titech.address);
    let elsewhere = web.serve({
        let target = target.clone();
        move |_, _, stream| say(stream, "307 Go", &[("Location", &target), ("Content-Length", "0")])
    });
    let line = pull(&site, &elsewhere, "/data/a");
    assert!(line.starts_with("failure: RK-TPC-2: ") && line.contains("HTTP 401"), "{line}");
    // With a credential in the URL, as servers that redirect give it.
    let signed = format!("{target}?authz={}", token(&titech, "read"));
    let signing = web.serve(move |_, _, stream| {
        say(stream, "307 Go", &[("Location", &signed), ("Content-Length", "0")]);
    });
    assert_eq!(pull(&site, &signing, "/data/a"), "success: Created");
    assert_eq!(std::fs::read_to_string(site.root().join("a")).unwrap(), "content");
}

/// Sends the first bytes of a file and then nothing more.
fn endless(web: &WebAuthority) -> (OtherServer, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let ends = ended.clone();
    let other = web.serve(move |head, _, stream| {
        say(stream, "200 OK", &[("Content-Length", "1000000000")]);
        if head.starts_with("GET") {
            let _ = stream.write_all(&[0; 3 << 20]);
            let _ = stream.flush();
            // Until the other side closes the connection.
            let _ = stream.read(&mut [0]);
            ends.fetch_add(1, Ordering::SeqCst);
        }
    });
    (other, ended)
}

fn begin(site: &Site, other: &OtherServer) -> Child {
    Command::new("curl")
        .args(["--silent", "--insecure", "--http1.1", "-X", "COPY", "--cert"])
        .arg(credential(site))
        .args(["-H", &format!("Source: {}", other.url)])
        .arg(format!("https://{}/data/a", site.address))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(super) fn running(site: &Site) -> Vec<serde_json::Value> {
    site.json(&["transfers"]).1["transfers"].as_array().unwrap().clone()
}

#[test]
fn a_copy_ends_with_its_client_and_by_cancel() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let (other, ended) = endless(&web);
    let (_dir, site) = web.pop(&[]);
    let mut curl = begin(&site, &other);
    until("the copy moves data", || {
        running(&site).iter().any(|one| one["progress"]["bytes_moved"].as_u64() > Some(1 << 20))
    });
    assert!(!site.root().join("a").exists());
    curl.kill().unwrap();
    curl.wait().unwrap();
    until("the copy ends with its client", || running(&site).is_empty());
    until("its connection is closed", || ended.load(Ordering::SeqCst) == 1);
    until("nothing is left", || names(&site).is_empty());

    let curl = begin(&site, &other);
    until("the copy is listed", || !running(&site).is_empty());
    let id = running(&site)[0]["id"].as_str().unwrap().to_owned();
    site.ok(&["cancel", &id]);
    let output = curl.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().last().unwrap().starts_with("aborted: RK-MOVE-5"), "{text}");
    assert!(text.contains("\n    Stripe Bytes Transferred: "), "{text}");
    assert!(names(&site).is_empty());
    let (_, why) = site.json(&["why", &id]);
    assert_eq!(why["state"], "cancelled", "{why}");
}

#[test]
fn a_killed_pop_shows_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let (other, _) = endless(&web);
    let (_dir, mut site) = web.pop(&[]);
    std::fs::write(site.root().join("a"), "before").unwrap();
    let mut curl = begin(&site, &other);
    until("the copy moves data", || {
        running(&site).iter().any(|one| one["progress"]["bytes_moved"].as_u64() > Some(1 << 20))
    });
    site.kill9();
    curl.wait().unwrap();
    site.restart();
    assert_eq!(std::fs::read_to_string(site.root().join("a")).unwrap(), "before");
    assert_eq!(ask(&site, "/data/a", &[]).body, b"before");
}

#[test]
fn copies_beyond_the_limit_wait() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let (other, _) = endless(&web);
    let quick = web.serve(|head, _, stream| give(head, stream, b"quick", "\"1\"", usize::MAX));
    let (_dir, site) = web.pop(&[("RENKEI_TPC_MAX_RUNNING_USER", "1")]);
    let mut curl = begin(&site, &other);
    until("the copy runs", || running(&site).iter().any(|one| one["state"] == "running"));
    std::thread::scope(|scope| {
        let second = scope.spawn(|| copy(&site, "/data/b", &[&format!("Source: {}", quick.url)]));
        until("the second one waits", || running(&site).iter().any(|one| one["state"] == "queued"));
        curl.kill().unwrap();
        curl.wait().unwrap();
        let answer = second.join().unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.contains("Stripe Status: QUEUED") && text.ends_with("success: Created\n"), "{text}");
    });
}

#[test]
fn a_push_that_fails_leaves_nothing_there() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let other = web.serve(|head, before, stream| {
        if head.starts_with("PUT") {
            assert_eq!(header(head, "expect"), Some("100-continue"));
            say(stream, "100 Continue", &[]);
            let mut body = vec![0; header(head, "content-length").unwrap().parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            assert!(body.iter().all(|byte| *byte == 5));
            return say(stream, "201 Created", &[("Content-Length", "0")]);
        }
        match (head.starts_with("HEAD"), before) {
            (true, 0) => say(stream, "404 Not Found", &[("Content-Length", "0")]),
            (true, _) => {
                say(stream, "200 OK", &[("Content-Length", "2500000"), ("Digest", "adler32=00000001")])
            }
            _ => say(stream, "204 No Content", &[]),
        }
    });
    let (_dir, site) = web.pop(&[]);
    std::fs::write(site.root().join("a"), vec![5; 2_500_000]).unwrap();
    let answer = copy(&site, "/data/a", &[&format!("Destination: {}", other.url), "Overwrite: F"]);
    let line = last_line(&answer);
    assert!(line.starts_with("failure: RK-MOVE-3: "), "{line}\n{}", site.logged());
    let seen = other.seen();
    let methods: Vec<_> = seen.iter().map(|head| head.split(' ').next().unwrap()).collect();
    assert_eq!(methods, ["HEAD", "PUT", "HEAD", "DELETE"]);
    assert_eq!(header(&seen[1], "if-none-match"), Some("*"));
}

#[test]
fn a_push_that_is_refused_removes_nothing_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let other = web.serve(|head, _, stream| {
        let status = if head.starts_with("HEAD") { "404 Not Found" } else { "412 Precondition Failed" };
        say(stream, status, &[("Content-Length", "0")]);
    });
    let (_dir, site) = web.pop(&[]);
    for content in [&[][..], &[5; 1000]] {
        std::fs::write(site.root().join("a"), content).unwrap();
        let answer = copy(&site, "/data/a", &[&format!("Destination: {}", other.url), "Overwrite: F"]);
        assert!(last_line(&answer).starts_with("failure: RK-TPC-"), "{}", site.logged());
    }
    let seen = other.seen();
    let methods: Vec<_> = seen.iter().map(|head| head.split(' ').next().unwrap()).collect();
    assert_eq!(methods, ["HEAD", "PUT", "HEAD", "PUT"]);
}

/// An XRootD server that serves HTTP with copies between servers, of its data directory.
struct Xrootd {
    process: Child,
    port: u16,
    data: PathBuf,
}

impl Xrootd {
    /// Starts it with the certificate of a web authority; it trusts that and the authority of a site.
    fn start(dir: &Path, web: &WebAuthority, site: &Site) -> Self {
        let home = dir.join("xrootd");
        let data = home.join("data");
        std::fs::create_dir_all(&data).unwrap();
        let own = std::fs::read_to_string(web.folder.join("web.pem")).unwrap();
        let authority = std::fs::read_to_string(Home::at(site.dir()).ca_cert()).unwrap();
        std::fs::write(home.join("authorities.pem"), format!("{own}{authority}")).unwrap();
        std::fs::write(home.join("key.pem"), &web.key).unwrap();
        std::fs::write(home.join("cert.pem"), own).unwrap();
        let [port, http] = [free_address().port(), free_address().port()];
        let at = home.display();
        let config = format!(
            "all.export /\noss.localroot {at}/data\nall.adminpath {at}/admin\nall.pidpath {at}/admin\n\
             xrd.port {port}\nxrd.tls {at}/cert.pem {at}/key.pem\nxrd.tlsca certfile {at}/authorities.pem\n\
             xrd.protocol http:{http} libXrdHttp.so\nhttp.desthttps yes\n\
             http.exthandler xrdtpc libXrdHttpTPC.so\nxrootd.chksum max 2 adler32 md5\n"
        );
        std::fs::write(home.join("config"), config).unwrap();
        let mut command = Command::new("xrootd");
        command.arg("-c").arg(home.join("config")).arg("-l").arg(home.join("log"));
        let user = rustix::process::getuid();
        if user.is_root() {
            // It refuses to run as root.
            command.args(["-R", "nobody"]);
            let given = Command::new("chown").args(["-R", "nobody"]).arg(&home).status().unwrap();
            assert!(given.success());
            std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::fs::set_permissions(home.join("key.pem"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Xrootd { process, port: http, data };
        until("xrootd listens", || TcpStream::connect(("127.0.0.1", http)).is_ok());
        server
    }

    fn url(&self, name: &str) -> String {
        format!("https://localhost:{}/{name}", self.port)
    }
}

impl Drop for Xrootd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn xrootd_is_the_other_server_and_the_active_one() {
    let dir = tempfile::tempdir().unwrap();
    let web = WebAuthority::new(dir.path());
    let (_dir, site) = web.pop(&[]);
    let xrootd = Xrootd::start(dir.path(), &web, &site);
    let content: Vec<u8> = (0..17_500_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(site.root().join("a"), &content).unwrap();
    let header = "RequireChecksumVerification: true";
    let pushed = copy(&site, "/data/a", &[&format!("Destination: {}", xrootd.url("b")), header]);
    assert_eq!(last_line(&pushed), "success: Created", "{}", site.logged());
    assert!(std::fs::read(xrootd.data.join("b")).unwrap() == content);
    let pulled = copy(&site, "/data/c", &[&format!("Source: {}", xrootd.url("b")), header]);
    assert_eq!(last_line(&pulled), "success: Created", "{}", site.logged());
    assert!(std::fs::read(site.root().join("c")).unwrap() == content);
    // XRootD pulls from the PoP and pushes to it, an empty file, too.
    std::fs::write(xrootd.data.join("empty"), "").unwrap();
    let told = |name: &str, header: String| {
        let output = Command::new("curl")
            .args(["--silent", "--insecure", "--max-time", "60", "-X", "COPY", "-H", "Credential: none"])
            .args([
                "-H",
                &format!("TransferHeaderAuthorization: Bearer {}", token(&site, "read,create,modify")),
            ])
            .args(["-H", &header])
            .arg(xrootd.url(name))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = told("d", format!("Source: https://{}/data/a", site.address));
    assert!(text.contains("success: Created"), "{text}");
    assert!(std::fs::read(xrootd.data.join("d")).unwrap() == content);
    let text = told("b", format!("Destination: https://{}/data/e", site.address));
    assert!(text.contains("success: Created"), "{text}");
    assert!(std::fs::read(site.root().join("e")).unwrap() == content);
    let text = told("empty", format!("Destination: https://{}/data/empty", site.address));
    assert!(text.contains("success: Created"), "{text}");
    assert_eq!(std::fs::read(site.root().join("empty")).unwrap(), b"");
}
