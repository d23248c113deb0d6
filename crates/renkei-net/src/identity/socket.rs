//! The local socket: one JSON line as request, one JSON line as reply, and the kernel identifies the peer.
//!
//! Any local process may connect (mode 666); authority comes from SO_PEERCRED alone. Blocking code on threads of its
//! own. Guarantees: a line over 64 KiB, a client that is silent for 5 s and more than a few clients of one account at
//! a time are refused, so that no client can block the socket for others. A reply is `{"ok":...}` or
//! `{"error":{...}}`.

use renkei_config::home::{file_error, make_dir};
use renkei_core::error::{Code, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest request line.
pub const LINE_LIMIT: usize = 64 * 1024;
/// Longest reply a client accepts: a federation's cards.
const REPLY_LIMIT: usize = 32 * 1024 * 1024;
/// Timeout for one request to arrive, and for its reply to leave.
const PATIENCE: Duration = Duration::from_secs(5);
/// After so long a waiting client is told that the PoP does not respond.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Interval at which the accepting thread checks whether it should stop.
const STOP_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// Maximum of open connections, of all accounts and of one.
const MAX_OPEN: usize = 256;
const MAX_OPEN_PER_UID: usize = 16;
/// The op of requests that are answered with a descriptor.
pub const LEND: &str = "lend";
/// Longest path in a socket address (sun_path, 108 with its NUL).
const MAX_ADDRESS: usize = 107;

/// The credentials of the peer, from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user id when it connected.
    pub uid: u32,
    /// Effective group id when it connected.
    pub gid: u32,
    /// Process id.
    pub pid: i32,
}

/// The server side of the socket.
pub trait Handler: Sync {
    /// Answers one request, an object with the field `op`. Called on several threads concurrently; may block.
    fn handle(&self, peer: Peer, request: &Value) -> Result<Value, Error>;

    /// Answers a request with the op [`LEND`] with a descriptor.
    fn lend(&self, _peer: Peer, _request: &Value) -> Result<OwnedFd, Error> {
        Err(Error::new(
            Code::ProtocolViolation,
            "answer",
            "local socket",
            "no account may be used for other users here",
        ))
    }
}

impl<F: Fn(Peer, &Value) -> Result<Value, Error> + Sync> Handler for F {
    fn handle(&self, peer: Peer, request: &Value) -> Result<Value, Error> {
        self(peer, request)
    }
}

/// The form of a reply.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok(Value),
    Error(Error),
}

/// Binds the socket, mode 666; a stale one is replaced, a live one is not.
pub fn bind_socket(path: &Path) -> Result<UnixListener, Error> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    make_dir(dir, 0o755)?;
    if connect(path).is_ok() {
        return Err(Error::new(Code::AddressInUse, "listen", path.display(), "another PoP answers there"));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file_error("replace socket", path, &error));
        }
        _ => {}
    }
    let bound = Address::of(path).and_then(|address| UnixListener::bind(&address.path));
    let listener = bound.map_err(|error| file_error("listen", path, &error))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o666))
        .map_err(|error| file_error("open socket to all", path, &error))?;
    Ok(listener)
}

/// A path short enough for a socket address: through an open directory descriptor where the real one is too long.
struct Address {
    path: PathBuf,
    _dir: Option<OwnedFd>,
}

impl Address {
    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= MAX_ADDRESS {
            return Ok(Address { path: path.into(), _dir: None });
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        let dir = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let name = path.file_name().unwrap_or_default();
        let short = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        Ok(Address { path: short, _dir: Some(dir) })
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    Address::of(path).and_then(|address| UnixStream::connect(&address.path))
}

/// Serves until `stop`; returns when the last request is answered, at most some seconds later.
pub fn serve_socket(listener: &UnixListener, handler: &dyn Handler, stop: &AtomicBool) -> Result<(), Error> {
    let broken = |error: io::Error| Error::new(Code::SystemCall, "accept", "local socket", error);
    listener.set_nonblocking(true).map_err(broken)?;
    let open = Open::default();
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Acquire) {
            let Some(stream) = accept(listener).map_err(broken)? else { continue };
            let Some(slot) = open.take_slot(&stream) else { continue };
            let serve = || serve_one(stream, slot, handler);
            if let Err(error) =
                std::thread::Builder::new().name("local-api".into()).spawn_scoped(scope, serve)
            {
                tracing::warn!(%error, "no thread for a local request");
            }
        }
        Ok(())
    })
}

fn accept(listener: &UnixListener) -> io::Result<Option<UnixStream>> {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    match poll(&mut fds, Some(&STOP_CHECK)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(errno) => return Err(errno.into()),
    }
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if is_passing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Transient failures or those of one connection, not of the listener.
fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::EAGAIN, libc::EINTR, libc::ECONNABORTED, libc::EMFILE, libc::ENFILE, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
}

/// Connection counts by uid, to keep one account from taking all seats.
#[derive(Default)]
struct Open(Mutex<HashMap<u32, usize>>);

struct Slot<'a> {
    open: &'a Open,
    peer: Peer,
}

impl Open {
    fn take_slot(&self, stream: &UnixStream) -> Option<Slot<'_>> {
        let credentials = rustix::net::sockopt::socket_peercred(stream).ok()?;
        let peer = Peer {
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
            pid: credentials.pid.as_raw_nonzero().get(),
        };
        let mut seats = self.0.lock().expect("no thread panics with the seats");
        let of_uid = seats.get(&peer.uid).copied().unwrap_or(0);
        if of_uid >= MAX_OPEN_PER_UID || seats.values().sum::<usize>() >= MAX_OPEN {
            return None;
        }
        seats.insert(peer.uid, of_uid + 1);
        Some(Slot { open: self, peer })
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut seats = self.open.0.lock().expect("no thread panics with the seats");
        if let Some(count) = seats.get_mut(&self.peer.uid) {
            *count -= 1;
        }
        seats.retain(|_, count| *count > 0);
    }
}

fn serve_one(mut stream: UnixStream, slot: Slot<'_>, handler: &dyn Handler) {
    let (reply, lent) = match read_line(&mut stream, LINE_LIMIT, Some(PATIENCE)) {
        Ok(line) => answer(&line, slot.peer, handler),
        Err(error) => (Reply::Error(error), None),
    };
    let mut text = serde_json::to_string(&reply).expect("a reply is plain data");
    text.push('\n');
    let sent =
        stream.set_write_timeout(Some(PATIENCE)).and_then(|()| send(&mut stream, text.as_bytes(), lent));
    if let Err(error) = sent {
        tracing::debug!(%error, uid = slot.peer.uid, "a local reply was not taken");
    }
}

fn answer(line: &str, peer: Peer, handler: &dyn Handler) -> (Reply, Option<OwnedFd>) {
    let request = serde_json::from_str::<Value>(line)
        .map_err(|error| Error::new(Code::ProtocolViolation, "read request", "local socket", error));
    let answered = request.and_then(|request| match request["op"].as_str() {
        Some(LEND) => handler.lend(peer, &request).map(|lent| (Value::Null, Some(lent))),
        _ => handler.handle(peer, &request).map(|value| (value, None)),
    });
    match answered {
        Ok((value, lent)) => (Reply::Ok(value), lent),
        Err(error) => (Reply::Error(error), None),
    }
}

/// Sends a reply, with a descriptor beside its first bytes if there is one (SCM_RIGHTS).
fn send(stream: &mut UnixStream, text: &[u8], lent: Option<OwnedFd>) -> io::Result<()> {
    let Some(lent) = lent else { return stream.write_all(text) };
    let (mut space, lent) = ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [lent.as_fd()]);
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&lent));
    let sent = rustix::net::sendmsg(&*stream, &[IoSlice::new(text)], &mut beside, SendFlags::NOSIGNAL)?;
    stream.write_all(&text[sent..])
}

/// Asks the PoP behind the socket at `path` for a descriptor.
///
/// # Errors
/// The PoP does not answer, or the errors of its reply.
pub fn borrow(path: &Path, request: &Value) -> Result<OwnedFd, Error> {
    let mut stream = connect(path).map_err(|error| not_running(path, &error))?;
    let lost = |error: io::Error| Error::new(Code::ConnectionLost, "ask", path.display(), error);
    stream.set_read_timeout(Some(PATIENCE)).and_then(|()| writeln!(stream, "{request}")).map_err(lost)?;
    let (mut space, mut text) =
        ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], vec![0; LINE_LIMIT]);
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let (mut parts, flags) = ([IoSliceMut::new(&mut text)], RecvFlags::CMSG_CLOEXEC);
    let got =
        rustix::net::recvmsg(&stream, &mut parts, &mut beside, flags).map_err(|errno| lost(errno.into()))?;
    let lent = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut lent) => lent.next(),
        _ => None,
    });
    if let Some(lent) = lent {
        return Ok(lent);
    }
    text.truncate(got.bytes);
    let start = String::from_utf8_lossy(&text).into_owned();
    let rest = if start.ends_with('\n') {
        String::new()
    } else {
        read_line(&mut stream, LINE_LIMIT, Some(PATIENCE))?
    };
    parse_reply(&format!("{}{rest}", start.trim_end()))?;
    Err(Error::new(Code::ProtocolViolation, "read reply", "local socket", "no descriptor came with it"))
}

/// Reads up to a newline or the end, at most `limit` bytes, all within `patience`.
fn read_line(stream: &mut UnixStream, limit: usize, patience: Option<Duration>) -> Result<String, Error> {
    let fail = |code, cause: &dyn std::fmt::Display| Error::new(code, "read line", "local socket", cause);
    let start = Instant::now();
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = patience.map(|patience| patience.saturating_sub(start.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(fail(Code::Stalled, &"no whole line within 5 s"));
        }
        stream.set_read_timeout(left).map_err(|error| fail(Code::SystemCall, &error))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => line.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(fail(Code::ConnectionLost, &error)),
        }
        if let Some(end) = line.iter().position(|&b| b == b'\n') {
            line.truncate(end);
            break;
        }
        if line.len() > limit {
            return Err(fail(Code::FrameTooLarge, &format!("a line is at most {limit} bytes")));
        }
    }
    String::from_utf8(line).map_err(|error| fail(Code::ProtocolViolation, &error))
}

/// Sends a request to the PoP behind the socket at `path`. A reply may take long; a PoP that does not respond at all
/// is reported on standard error after 3 s.
///
/// # Errors
/// The PoP does not answer, or the errors of its reply.
pub fn request(path: &Path, request: &Value) -> Result<Value, Error> {
    let mut stream = connect(path).map_err(|error| not_running(path, &error))?;
    let lost = |error: io::Error| Error::new(Code::ConnectionLost, "ask", path.display(), error);
    writeln!(stream, "{request}").map_err(lost)?;
    let mut told = false;
    while !is_readable(&stream, TELL_AFTER).map_err(lost)? {
        if !std::mem::replace(&mut told, true) {
            let most = TELL_AFTER + PATIENCE;
            eprintln!(
                "renkei: the PoP does not answer yet; waiting {} s at most if it stays so",
                most.as_secs()
            );
        }
        if !is_alive(path).map_err(lost)? {
            let cause = "it takes connections, but answers nothing: the PoP hangs or is stopped";
            return Err(Error::new(Code::PeerDown, "ask", path.display(), cause));
        }
    }
    parse_reply(&read_line(&mut stream, REPLY_LIMIT, None)?)
}

/// Whether the PoP responds: it refuses an unknown op at once.
fn is_alive(path: &Path) -> io::Result<bool> {
    let mut stream = connect(path)?;
    writeln!(stream, "{{\"op\": \"alive\"}}")?;
    is_readable(&stream, PATIENCE)
}

fn is_readable(stream: &UnixStream, within: Duration) -> io::Result<bool> {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Parses a reply line.
pub fn parse_reply(line: &str) -> Result<Value, Error> {
    match serde_json::from_str(line) {
        Ok(Reply::Ok(value)) => Ok(value),
        Ok(Reply::Error(error)) => Err(error),
        Err(error) => Err(Error::new(Code::ProtocolViolation, "read reply", "local socket", error)),
    }
}

/// The reply line for an outcome.
pub fn reply_line(outcome: Result<Value, Error>) -> String {
    let reply = outcome.map_or_else(Reply::Error, Reply::Ok);
    serde_json::to_string(&reply).expect("a reply is plain data")
}

fn not_running(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Error::new(Code::PopNotRunning, "connect", path.display(), error)
        }
        _ => file_error("connect", path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_unresponsive_socket_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        // The kernel accepts connections, and no process reads.
        let _listener = UnixListener::bind(&path).unwrap();
        let begin = Instant::now();
        let error = request(&path, &json!({"op": "status"})).unwrap_err();
        assert!(error.code == Code::PeerDown && error.cause.contains("hangs or is stopped"), "{error}");
        assert!(begin.elapsed() >= TELL_AFTER + PATIENCE);
    }

    fn echo(peer: Peer, request: &Value) -> Result<Value, Error> {
        match request["op"].as_str() {
            Some("who") => Ok(json!({"uid": peer.uid, "pid": peer.pid})),
            Some(op) => Err(Error::new(Code::UsageInvalid, "dispatch", op, "no such op")),
            None => Err(Error::new(Code::UsageInvalid, "dispatch", "", "no op")),
        }
    }

    /// Runs `test` against a served socket in a directory whose path is `depth` characters longer than usual.
    fn served(depth: usize, test: impl FnOnce(&Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d".repeat(depth.max(1))).join("renkei.sock");
        let listener = bind_socket(&path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve_socket(&listener, &echo, &stop));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&path)));
            stop.store(true, Ordering::Release);
            serving.join().unwrap().unwrap();
            outcome.unwrap();
        });
    }

    #[test]
    fn peer_credentials_come_from_the_kernel() {
        served(1, |path| {
            let reply = request(path, &json!({"op": "who"})).unwrap();
            assert_eq!(reply["uid"], rustix::process::geteuid().as_raw());
            assert_eq!(reply["pid"], std::process::id());
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        });
    }

    struct Lender(std::fs::File);

    impl Handler for Lender {
        fn handle(&self, _: Peer, _: &Value) -> Result<Value, Error> {
            Ok(Value::Null)
        }

        fn lend(&self, _: Peer, request: &Value) -> Result<OwnedFd, Error> {
            match request["name"].as_str() {
                Some("f") => Ok(self.0.try_clone().unwrap().into()),
                _ => Err(Error::new(Code::PathNotFound, "lend", "", "")),
            }
        }
    }

    #[test]
    fn descriptors_are_passed() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("renkei.sock"), dir.path().join("f"));
        std::fs::write(&file, "content").unwrap();
        let (listener, stop) = (bind_socket(&socket).unwrap(), AtomicBool::new(false));
        let lender = Lender(std::fs::File::open(&file).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| serve_socket(&listener, &lender, &stop));
            let lent = borrow(&socket, &json!({"op": LEND, "name": "f"})).unwrap();
            assert_eq!(std::io::read_to_string(std::fs::File::from(lent)).unwrap(), "content");
            let refused =
                |op, name: &str| borrow(&socket, &json!({"op": op, "name": name})).unwrap_err().code;
            assert_eq!(refused(LEND, "g"), Code::PathNotFound);
            assert_eq!(refused("other", "f"), Code::ProtocolViolation);
            stop.store(true, Ordering::Release);
        });
    }

    #[test]
    fn errors_arrive_with_their_code() {
        served(1, |path| {
            let error = request(path, &json!({"op": "fly"})).unwrap_err();
            assert_eq!((error.code, error.subject.as_str()), (Code::UsageInvalid, "fly"));
            let send = |bytes: &[u8]| {
                let mut stream = connect(path).unwrap();
                stream.write_all(bytes).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                parse_reply(&read_line(&mut stream, REPLY_LIMIT, None).unwrap()).unwrap_err().code
            };
            assert_eq!(send(b"garbage\n"), Code::ProtocolViolation);
            assert_eq!(send(b""), Code::ProtocolViolation);
            assert_eq!(send(b"\xff\n"), Code::ProtocolViolation);
            // One byte over the limit, so that everything is read before the refusal.
            assert_eq!(send(&vec![b'x'; LINE_LIMIT + 1]), Code::FrameTooLarge);
        });
    }

    #[test]
    fn one_account_cannot_take_all_slots() {
        served(1, |path| {
            let silent: Vec<_> = (0..MAX_OPEN_PER_UID).map(|_| connect(path).unwrap()).collect();
            assert!(request(path, &json!({"op": "who"})).is_err());
            drop(silent);
            let start = Instant::now();
            while request(path, &json!({"op": "who"})).is_err() {
                assert!(start.elapsed() < Duration::from_secs(20), "seats are not given back");
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn long_paths_work() {
        served(200, |path| {
            assert!(path.as_os_str().len() > MAX_ADDRESS);
            request(path, &json!({"op": "who"})).unwrap();
        });
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("renkei.sock");
        let first = bind_socket(&path).unwrap();
        assert_eq!(bind_socket(&path).unwrap_err().code, Code::AddressInUse);
        drop(first);
        let _second = bind_socket(&path).unwrap();
        let none = request(&dir.path().join("none.sock"), &json!({})).unwrap_err();
        assert_eq!(none.code, Code::PopNotRunning);
    }
}
