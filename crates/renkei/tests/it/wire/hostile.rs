//! A peer that sends garbage to the port, with or without a credential, harms no other.

use crate::federation::{Federation, Site};
use crate::tree::{MIB, noise};
use crate::wire::raw;
use crate::wire::raw::PATIENCE;
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::mover::receiver::MAX_OPEN_FILES;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::data::{EntryHead, ExtentEnd, ExtentHead};
use renkei_core::wire::frame::{FrameKind, MAX_PAYLOAD_BYTES};
use renkei_core::wire::message::{
    Control, EntryFailure, IdRange, OfferItem, OpenSend, Request, SendDone, Source, Verdict,
};
use renkei_core::wire::{decode, encode};
use renkei_net::identity::authority::Authority;
use renkei_net::tls::TlsStream;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

/// Memory a PoP may have gained after an attack: some buffers and what its allocator keeps.
const MAX_GAIN_MIB: u64 = 400;

/// An entry of a file that fits into one frame.
pub fn small_file(path: &str, size: u64, _content: &[u8]) -> Entry {
    let stamp = Stamp { size, ..Stamp::default() };
    let path = RelPath::parse(path.as_bytes()).unwrap();
    Entry {
        path,
        meta: Meta { mode: 0o644, ..Meta::default() },
        kind: EntryKind::File { stamp, sparse: false },
    }
}

/// Resident memory of a site's PoP, in MiB.
pub fn memory(site: &Site) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", site.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// The PoP is alive, the same process as before, with little memory, and serves.
fn assert_unharmed(federation: &Federation, pid: u32) {
    let Federation { titech, kek, .. } = federation;
    assert_eq!(kek.pid(), pid);
    let file = federation.scratch().join("good");
    fs::write(&file, noise(1, 2 * MIB)).unwrap();
    titech.ok(&["cp", file.to_str().unwrap(), &kek.place("good")]);
    assert_eq!(fs::read(kek.root().join("good")).unwrap(), noise(1, 2 * MIB));
    assert!(memory(kek) < MAX_GAIN_MIB, "{} MiB", memory(kek));
    assert!(!kek.logged().contains("panicked"), "{}", kek.logged());
}

/// The bytes of a peer until it closes the connection.
fn answer(mut sock: TcpStream) -> String {
    sock.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let _ = sock.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn garbage_before_the_handshake_closes_the_connection() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let pid = kek.pid();
    let connect = || TcpStream::connect(kek.address).unwrap();
    let mut sock = connect();
    sock.write_all(b"GET / HTTP/1.1\r\nHost: kek\r\n\r\n").unwrap();
    let said = answer(sock);
    assert!(said.starts_with("HTTP/1.0 400") && said.contains("RK-WIRE-5"), "{said}");
    for seed in 0..60 {
        let mut sock = connect();
        let mut bytes = noise(seed, 3000);
        if seed % 2 == 0 {
            // The head of a TLS handshake record, so that the rest is looked at.
            bytes[..5].copy_from_slice(&[22, 3, 1, (seed % 16) as u8, 200]);
        }
        let _ = sock.write_all(&bytes);
        let _ = sock.shutdown(std::net::Shutdown::Write);
        drop(answer(sock));
    }
    // Silent connections, or with only the first byte of a handshake, block no other.
    let idle: Vec<TcpStream> = (0..400).map(|_| connect()).collect();
    let mut slow: Vec<TcpStream> = (0..60).map(|_| connect()).collect();
    slow.iter_mut().for_each(|sock| sock.write_all(&[22]).unwrap());
    assert_unharmed(&federation, pid);
    drop((idle, slow));
}

/// TLS without a certificate of the client's ends the handshake; a plain HTTPS client gets an answer.
#[test]
fn the_protocol_needs_a_client_certificate() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let (ended, said) = fetch(kek, b"renkei/1", "/healthz");
    assert!(ended.is_err() && said.is_empty(), "{ended:?} {said}");
    let (_, said) = fetch(kek, b"http/1.1", "/healthz");
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}

/// A TLS client that shows no certificate.
fn anonymous(site: &Site, alpn: &[u8]) -> rustls::ClientConnection {
    let authority = renkei_net::identity::authority::Authority::load(&raw::home(site)).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.certificate().clone()).unwrap();
    let provider = renkei_net::identity::tls::provider();
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    rustls::ClientConnection::new(config.into(), name).unwrap()
}

/// Asks for a page; returns the end of the connection, and the bytes received.
pub fn fetch(site: &Site, alpn: &[u8], page: &str) -> (std::io::Result<usize>, String) {
    let mut tls = anonymous(site, alpn);
    let mut sock = TcpStream::connect(site.address).unwrap();
    sock.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut sock);
    let request = format!("GET {page} HTTP/1.1\r\nHost: kek\r\nConnection: close\r\n\r\n");
    // A refusal may come before everything is written; the end is read below.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    (ended, String::from_utf8_lossy(&answer).into_owned())
}

/// Connections from another address of the loopback than everybody else's, each with its first bytes sent.
fn strangers(site: &Site, count: usize, first: impl Fn() -> Vec<u8>) -> Vec<TcpStream> {
    strangers_of(site, 2, count, first)
}

fn strangers_of(site: &Site, host: u8, count: usize, first: impl Fn() -> Vec<u8>) -> Vec<TcpStream> {
    let connect = |_| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
        socket.connect_timeout(&site.address.into(), PATIENCE).unwrap();
        let mut sock = TcpStream::from(socket);
        // One that was closed at once takes no more.
        let _ = sock.write_all(&first());
        sock
    };
    (0..count).map(connect).collect()
}

/// Lets this process have some thousand connections open; `false` if it may not.
fn raise_open_files() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < 3000) {
        eprintln!("skipped: needs 3000 open files");
        return false;
    }
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    true
}

/// Copies while strangers are there, and finds it as fast as ever.
fn assert_not_delayed(federation: &Federation, pid: u32) {
    let start = Instant::now();
    assert_unharmed(federation, pid);
    assert!(start.elapsed() < Duration::from_secs(6), "it took {:?}", start.elapsed());
}

#[test]
fn one_address_cannot_keep_others_out() {
    if !raise_open_files() {
        return;
    }
    let federation = Federation::two();
    let kek = &federation.kek;
    let pid = kek.pid();
    let silent = strangers(kek, 1500, Vec::new);
    assert_not_delayed(&federation, pid);
    let (_, metrics) = fetch(kek, b"http/1.1", "/metrics");
    let closed = metrics.lines().find_map(|line| line.strip_prefix("renkei_connections_over_share_total "));
    assert!(closed.is_some_and(|count| count.parse::<u64>().unwrap() > 400), "{metrics}");
    drop(silent);
    // Connections that begin a handshake, and never complete it.
    let hello = || {
        let mut bytes = Vec::new();
        anonymous(kek, b"renkei/1").write_tls(&mut bytes).unwrap();
        bytes
    };
    let slow = strangers(kek, 400, hello);
    assert_not_delayed(&federation, pid);
    drop(slow);
}

/// Strangers of several addresses that begin a handshake and stay silent, as many as they like.
#[test]
fn silent_handshakes_of_eight_addresses_delay_nobody() {
    if !raise_open_files() {
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let list = |count: usize| {
        let mut took: Vec<Duration> = (0..count)
            .map(|_| {
                let start = Instant::now();
                titech.ok(&["ls", &kek.place("")]);
                start.elapsed()
            })
            .collect();
        took.sort();
        took[took.len() - 1]
    };
    let (alone, before) = (list(20), memory(kek));
    let hello = || {
        let mut bytes = Vec::new();
        anonymous(kek, b"renkei/1").write_tls(&mut bytes).unwrap();
        bytes
    };
    let silent: Vec<_> = (2..10).map(|host| strangers_of(kek, host, 125, hello)).collect();
    let (attacked, after) = (list(20), memory(kek));
    // During the attack: dropped connections come again.
    let again: Vec<_> = (2..10).map(|host| strangers_of(kek, host, 40, hello)).collect();
    let attacked = attacked.max(list(10));
    assert!(attacked < Duration::from_secs(1).max(4 * alone), "{attacked:?}, {alone:?} alone");
    assert!(after < before + 64, "{after} MiB, {before} before");
    drop((silent, again));
    assert_unharmed(&federation, kek.pid());
}

/// A file of the PoP that cannot be read to its end, as on a file system that hangs, does not stop the port.
#[test]
fn a_hanging_disk_does_not_block_the_port() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let map = kek.dir().join("map");
    fs::remove_file(&map).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &map,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for _ in 0..4 {
        let (_, said) = fetch(kek, b"http/1.1", "/healthz");
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    }
}

#[test]
fn idle_sessions_do_not_stop_a_transfer() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    // Hand shaken, nothing said; and greeted, nothing asked: together fewer than the limit of sessions.
    let silent: Vec<TlsStream> = (0..60).map(|_| raw::secure(titech, kek)).collect();
    let greeted: Vec<TlsStream> = (0..60).map(|_| raw::greeted(titech, kek)).collect();
    assert_unharmed(&federation, pid);
    drop((silent, greeted));
}

#[test]
fn too_many_sessions_are_refused_and_end() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let credential = raw::user(titech);
    let mut open = Vec::new();
    let refused = loop {
        match raw::connect(titech, &credential, kek) {
            Ok(session) => open.push(session),
            Err(error) => break error,
        }
        assert!(open.len() <= 256);
    };
    assert_eq!((refused.code, refused.side.as_str()), (Code::TooManySessions, "kek"), "{refused}");
    drop(open);
    let deadline = Instant::now() + PATIENCE;
    while raw::connect(titech, &credential, kek).is_err() {
        assert!(Instant::now() < deadline, "sessions that ended still count");
    }
    assert_unharmed(&federation, kek.pid());
}

#[test]
fn a_site_with_many_users_leaves_sessions_for_others() {
    let mut federation = Federation::two();
    let config = federation.kek.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[limits]\nmax_sessions = 16\n")).unwrap();
    federation.kek.restart();
    let Federation { titech, kek, .. } = &federation;
    let authority = Authority::load(&raw::home(titech)).unwrap();
    let mut open = Vec::new();
    let refused = loop {
        let user = raw::issue_user(&authority, &format!("user{}", open.len()), 1, SystemTime::now());
        match raw::connect(titech, &user, kek) {
            Ok(session) => open.push(session),
            Err(error) => break error,
        }
        assert!(open.len() <= 12, "they are more than three quarters");
    };
    assert_eq!(refused.code, Code::TooManySessions, "{refused}");
    assert!(refused.cause.contains("12 of one other site"), "{refused}");
    // Its own users, and those of others, have the rest.
    kek.ok(&["ls", "kek:/data"]);
    drop(open);
}

/// The reply of the PoP to one frame after the handshake or the greeting.
fn says(stream: &mut TlsStream, bytes: &[u8]) -> Error {
    let _ = stream.write_all(bytes);
    raw::take_refusal(stream)
}

#[test]
fn malformed_frames_end_only_their_session() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    let oversize = [1, 0xff, 0xff, 0xff, 0xff];
    let long_hello = [1, 0, 0, 0x20, 0];
    assert_eq!(says(&mut raw::secure(titech, kek), &oversize).code, Code::FrameTooLarge);
    assert_eq!(says(&mut raw::secure(titech, kek), &long_hello).code, Code::FrameTooLarge);
    assert_eq!(says(&mut raw::greeted(titech, kek), &oversize).code, Code::FrameTooLarge);
    assert_eq!(says(&mut raw::greeted(titech, kek), &[99, 0, 0, 0, 0]).code, Code::ProtocolViolation);
    assert_eq!(says(&mut raw::secure(titech, kek), &[16, 0, 0, 0, 0]).code, Code::ProtocolViolation);
    // Random frames of every kind, with random contents.
    for seed in 0..150u64 {
        let mut stream = if seed % 3 == 0 { raw::secure(titech, kek) } else { raw::greeted(titech, kek) };
        let kind = [1, 2, 3, 16, 17, 18, 19, 20, 200][seed as usize % 9];
        let payload = noise(seed, (seed * 37 % 4000) as usize);
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&payload);
        let _ = stream.write_all(&bytes);
        stream.socket().shutdown(std::net::Shutdown::Write).unwrap();
        drop(raw::take_refusal(&mut stream));
    }
    assert_unharmed(&federation, pid);
}

/// Messages that are well formed and come at the wrong time, or claim too much.
#[test]
fn unexpected_messages_end_only_their_session() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    let failure = EntryFailure {
        id: Some(u64::MAX),
        path: RelPath::root(),
        kept: false,
        error: Error::new(Code::Internal, "x", "y", "z"),
    };
    let messages = [
        Control::Acked(vec![IdRange { first: 0, count: u64::MAX }]),
        Control::Acked(vec![IdRange { first: u64::MAX, count: u64::MAX }]),
        Control::Verdicts(vec![(0, Verdict::Have); 1000]),
        Control::Failed(failure),
        Control::SendDone(SendDone { complete: true }),
        Control::Request { id: 1, request: Request::Redeem([9; 32]) },
        Control::Offer(vec![OfferItem { id: 0, entry: small_file("x", 1, b""), digest: None }]),
    ];
    for message in messages {
        let mut stream = raw::greeted(titech, kek);
        raw::put(&mut stream, FrameKind::Control, &encode(&message)).unwrap();
        stream.socket().shutdown(std::net::Shutdown::Write).unwrap();
        drop(raw::take_refusal(&mut stream));
    }
    // Counts larger than the frame that holds them.
    for tag in 0..=16u8 {
        let mut stream = raw::greeted(titech, kek);
        let payload = [&[tag][..], &[0xff; 9], &[0x7f; 40]].concat();
        raw::put(&mut stream, FrameKind::Control, &payload).unwrap();
        stream.socket().shutdown(std::net::Shutdown::Write).unwrap();
        drop(raw::take_refusal(&mut stream));
    }
    // An unknown ticket.
    let mut stream = raw::secure(titech, kek);
    raw::join(&mut stream, [5; 32]);
    assert_eq!(raw::take_refusal(&mut stream).code, Code::TicketRefused);
    assert_unharmed(&federation, pid);
}

/// Thousands of requests at once, whose answers are not read until all are sent.
#[test]
fn a_flood_of_requests_is_answered_or_disconnected() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    for index in 0..200 {
        fs::write(kek.root().join(format!("file-{index}")), b"").unwrap();
    }
    let mut stream = raw::greeted(titech, kek);
    stream.bear_silence(Duration::from_secs(3)).unwrap();
    let place = Some(Place { storage: "data".into(), path: RelPath::root() });
    let list = encode(&Control::Request { id: 1, request: Request::List(place) });
    let sent = (0..20_000).take_while(|_| raw::put(&mut stream, FrameKind::Control, &list).is_ok()).count();
    assert!(sent > 100, "{sent}");
    assert!(memory(kek) < MAX_GAIN_MIB, "{} MiB after {sent} requests", memory(kek));
    assert_unharmed(&federation, pid);
    drop(stream);
    // A request with very many parts.
    let mut session = raw::connect(titech, &raw::user(titech), kek).unwrap();
    let place = || Place { storage: "data".into(), path: RelPath::root() };
    let source = || Source { from: place(), to: RelPath::root(), alone: false };
    let plain = OpenSend::plain([1; 16], (0..100_000).map(|_| source()).collect());
    let send = OpenSend { recursive: true, max_streams: u16::MAX, ..plain };
    assert_eq!(session.ask_open(Request::OpenSend(send)).unwrap_err().code, Code::TooManyEntries);
    let beside = vec![(place(), RelPath::root()); 100_000];
    let copy = OpenCopy { beside, ..raw::open_copy("/data") };
    let refused = session.open_copy(&copy, |_| Ok(())).unwrap_err();
    assert_eq!(refused.code, Code::TooManyEntries, "{refused}");
    drop(session);
    assert_unharmed(&federation, pid);
}

/// The result of an upload whose first data stream carries `frames`.
fn upload(federation: &Federation, job: u64, frames: &[(FrameKind, Vec<u8>)]) -> Error {
    let Federation { titech, kek, .. } = federation;
    let (mut session, _, mut streams) = raw::open_upload(titech, kek, job);
    for (kind, payload) in frames {
        if raw::put(&mut streams[0], *kind, payload).is_err() {
            break;
        }
    }
    loop {
        match session.control.recv() {
            Ok(Control::Abort(error)) | Err(error) => return error,
            Ok(Control::Failed(failure)) => return failure.error,
            Ok(_) => {}
        }
    }
}

fn extent(id: u64, path: &str, size: u64, slot: u32) -> (FrameKind, Vec<u8>) {
    (FrameKind::Extent, encode(&ExtentHead { id, entry: small_file(path, size, b""), slot }))
}

fn bytes_at(offset: u64, bytes: &[u8]) -> (FrameKind, Vec<u8>) {
    (FrameKind::Raw, [&offset.to_be_bytes()[..], bytes].concat())
}

fn whole(digest: [u8; 32]) -> (FrameKind, Vec<u8>) {
    (FrameKind::ExtentEnd, encode(&ExtentEnd::Whole(digest)))
}

fn entry(id: u64, entry: Entry, digest: [u8; 32], content: &[u8]) -> (FrameKind, Vec<u8>) {
    let mut payload = Vec::new();
    EntryHead { id, entry, digest }.write(&mut payload, content);
    (FrameKind::Entry, payload)
}

#[test]
fn uploads_that_break_the_rules_end_with_a_code() {
    let federation = Federation::two();
    let pid = federation.kek.pid();
    const LARGE: u64 = 40 << 20;
    let violation = Code::ProtocolViolation;
    let mut job = 100;
    let mut check = |frames: &[(FrameKind, Vec<u8>)], code: Code| {
        job += 1;
        let error = upload(&federation, job, frames);
        assert_eq!((error.code, error.side.as_str()), (code, "kek"), "upload {job}: {error}");
    };
    check(&[extent(0, "a", LARGE, (LARGE / SLOT_BYTES) as u32)], violation);
    check(&[extent(0, "a", LARGE, u32::MAX)], violation);
    check(&[extent(0, "a", LARGE, 0), extent(0, "a", LARGE, 1)], violation);
    check(&[extent(0, "a", LARGE, 0), bytes_at(LARGE, b"beyond")], violation);
    check(&[extent(0, "a", LARGE, 0), bytes_at(SLOT_BYTES, b"another's")], violation);
    check(&[extent(0, "a", LARGE, 0), bytes_at(8192, b"x"), bytes_at(0, b"back")], violation);
    check(&[extent(0, "a", LARGE, 0), bytes_at(u64::MAX, b"wraps")], violation);
    check(&[bytes_at(0, b"of nothing")], violation);
    check(&[whole([0; 32])], violation);
    check(&[extent(0, "a", LARGE, 0), bytes_at(0, b"x"), whole([1; 32])], Code::DigestMismatch);
    check(&[extent(0, "a", LARGE, 0), (FrameKind::StreamEnd, vec![])], violation);
    check(&[entry(0, small_file("s", 1, b""), [0; 32], b"x")], Code::DigestMismatch);
    check(&[entry(0, small_file("s", 9, b""), [0; 32], b"x")], violation);
    check(&[(FrameKind::Entry, vec![0xff; 100])], violation);
    check(&[(FrameKind::Entry, vec![])], violation);
    check(&[(FrameKind::Extent, vec![0; 3])], violation);
    check(&[(FrameKind::Raw, vec![0; 3])], violation);
    check(&[(FrameKind::Control, vec![0; 30])], violation);
    check(&[(FrameKind::Join, vec![0; 40])], violation);
    let special = Entry { kind: EntryKind::Special, ..small_file("dev", 0, b"") };
    check(&[entry(0, special, [0; 32], b"")], violation);
    let renamed = [extent(0, "a", LARGE, 0), bytes_at(0, b"x"), whole(*blake3::hash(b"x").as_bytes())];
    let another = [&renamed[..2], &[whole([0; 32]), extent(0, "b", LARGE, 1)]].concat();
    check(&another, Code::DigestMismatch);
    // A second entry of a name that is being written.
    let hole = whole(renkei_core::mover::digest::SlotHasher::new(0, LARGE).finish());
    check(&[extent(0, "a", LARGE, 0), hole.clone(), extent(1, "a", LARGE, 0)], Code::NameTaken);
    let small = entry(1, small_file("a", 1, b"x"), *blake3::hash(b"x").as_bytes(), b"x");
    check(&[extent(0, "a", LARGE, 0), hole, small], Code::NameTaken);
    let many: Vec<_> = (0..MAX_OPEN_FILES as u64 + 1)
        .flat_map(|id| {
            let digest = renkei_core::mover::digest::SlotHasher::new(0, LARGE).finish();
            [extent(id, &format!("many/f{id}"), LARGE, 0), whole(digest)]
        })
        .collect();
    check(&many, Code::TooManyEntries);
    assert_unharmed(&federation, pid);
    let left = fs::read_dir(federation.kek.root()).unwrap().map(|listed| listed.unwrap().file_name());
    let whole_files: Vec<_> = left.filter(|name| !name.to_string_lossy().starts_with(".rk~")).collect();
    assert!(whole_files.iter().all(|name| name == "good" || name == "many"), "{whole_files:?}");
}

/// Lets a PoP's transfers have so much memory.
fn limit_memory(site: &mut Site, mib: u64) {
    let path = site.dir().join("config.toml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{config}\n[limits]\nmax_memory_mib = {mib}\n")).unwrap();
    site.restart();
}

/// How a session ends.
fn end_of(mut session: renkei_mover::connect::dial::Session) -> Error {
    loop {
        if let Ok(Control::Abort(error)) | Err(error) = session.control.recv() {
            return error;
        }
    }
}

/// Entries whose metadata the receiver must keep until the end, more than memory may hold.
#[test]
fn deferred_metadata_is_bounded() {
    let mut federation = Federation::two();
    limit_memory(&mut federation.kek, 120);
    let Federation { titech, kek, .. } = &federation;
    let (pid, before) = (kek.pid(), memory(kek));
    let (session, _, mut streams) = raw::open_upload(titech, kek, 7);
    let value = noise(3, 400_000);
    let meta =
        Meta { mode: 0o755, xattrs: vec![Xattr { name: b"user.x".to_vec(), value }], ..Meta::default() };
    let mut most = 0;
    for id in 0..4000u64 {
        let path = RelPath::parse(format!("d{id}").as_bytes()).unwrap();
        let directory = Entry { path, meta: meta.clone(), kind: EntryKind::Dir };
        let (kind, payload) = entry(id, directory, [0; 32], b"");
        if raw::put(&mut streams[0], kind, &payload).is_err() {
            break;
        }
        most = most.max(memory(kek));
        assert!(most < before + 120, "{most} MiB after {id} directories, {before} before");
    }
    drop(streams);
    let error = end_of(session);
    assert_eq!((error.code, error.side.as_str()), (Code::TooManyEntries, "kek"), "{error}");
    assert_unharmed(&federation, pid);
}

/// Names that a receiver must remember, so as not to remove them, without end.
#[test]
fn deferred_names_are_bounded() {
    let mut federation = Federation::two();
    limit_memory(&mut federation.kek, 48);
    let Federation { titech, kek, .. } = &federation;
    let (pid, before) = (kek.pid(), memory(kek));
    let (session, _, streams) = raw::open_upload(titech, kek, 8);
    let control = session.control.sender();
    let failed = |number: u32| {
        let path = RelPath::parse(number.to_string().as_bytes()).unwrap();
        let error = Error::new(Code::IoFailed, "", "", "");
        control.send(&Control::Failed(EntryFailure { id: None, path, kept: false, error }))
    };
    let sent = (0..10_000_000).take_while(|number| failed(*number).is_ok()).count();
    assert!((100_000..5_000_000).contains(&sent), "{sent}");
    assert!(memory(kek) < before + 60, "{} MiB, {before} before", memory(kek));
    let error = end_of(session);
    assert_eq!((error.code, error.side.as_str()), (Code::TooManyEntries, "kek"), "{error}");
    drop(streams);
    assert_unharmed(&federation, pid);
}

/// An upload that stops in the middle is given up; the session's memory and threads go.
#[test]
fn an_endless_upload_does_not_block_others() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    let held: Vec<_> = (0..8)
        .map(|job| {
            let (session, opened, mut streams) = raw::open_upload(titech, kek, 50 + job);
            let (kind, payload) = extent(0, &format!("held{job}"), 40 << 20, 0);
            raw::put(&mut streams[0], kind, &payload).unwrap();
            let (kind, payload) = bytes_at(0, &noise(1, MIB));
            raw::put(&mut streams[0], kind, &payload).unwrap();
            // Half a frame.
            streams[0].write_all(&[18, 0, 0x10]).unwrap();
            (session, opened, streams)
        })
        .collect();
    assert_unharmed(&federation, pid);
    drop(held);
    assert!(kek.root().join("good").exists() && !kek.root().join("held0").exists());
}

/// A frame as long as allowed, and many of them, take no more memory than one.
#[test]
fn large_frames_need_little_memory() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let pid = kek.pid();
    let payload = vec![0xff; MAX_PAYLOAD_BYTES];
    for _ in 0..40 {
        let mut stream = raw::greeted(titech, kek);
        let _ = raw::put(&mut stream, FrameKind::Control, &payload);
        let error = raw::take_refusal(&mut stream);
        assert!(matches!(error.code, Code::ProtocolViolation | Code::ConnectionLost), "{error}");
    }
    // Optional frames are skipped without a message.
    let mut stream = raw::greeted(titech, kek);
    for _ in 0..40 {
        stream.write_all(&[0x90, 0, 0x10, 0, 0]).unwrap();
        stream.write_all(&vec![0; 0x10_0000]).unwrap();
    }
    let request = encode(&Control::Request { id: 3, request: Request::Whoami });
    raw::put(&mut stream, FrameKind::Control, &request).unwrap();
    let (_, payload) = raw::take(&mut stream).unwrap();
    assert!(matches!(decode("reply", &payload), Ok(Control::Reply { id: 3, reply: Ok(_) })));
    assert_unharmed(&federation, pid);
}
