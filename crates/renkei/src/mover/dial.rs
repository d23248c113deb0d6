//! Opens sessions: connects to a site, proves who both sides are, greets, and joins data streams.
//!
//! On a far path each round trip is time the link stands empty. So the data streams are dialled while the session
//! is still being agreed on, all at once, and the first request travels with the greeting.

use crate::identity::credential::Credential;
use crate::identity::tls::{client_config, server_name};
use crate::identity::trust::Trust;
use crate::identity::verify::{expect_site, verify_peer};
use crate::net::control::{ControlReceiver, split};
use crate::net::socket;
use crate::net::tls::{TlsStream, lost};
use crate::net::{CONNECT_TIMEOUT, SOFTWARE, unix_ms};
use renkei_core::error::{Code, Error};
use renkei_core::link::controller::{initial_streams, is_far, is_long};
use renkei_core::path::SiteName;
use renkei_core::wire::data::{Join, Ticket};
use renkei_core::wire::frame::{self, FrameKind};
use renkei_core::wire::message::{Control, Hello, Opened, Reply, Request, Welcome};
use renkei_core::wire::{VERSIONS, encode, violation};
use rustls::ClientConfig;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// Requests sent before the first of them is answered: small ones, whose replies fit the socket's buffers.
const ASKED_AHEAD: usize = 64;

/// Data streams the other side may ask for: no path needs more, and each costs memory here.
const MAX_STREAMS: u16 = 256;

/// Who dials, and whom it trusts.
#[derive(Clone)]
pub struct Dialler {
    config: Arc<ClientConfig>,
    trust: Arc<Trust>,
    silence: Duration,
}

/// An open session with a site.
pub struct Session {
    /// The receiving half of the control stream; it leads to the sending half.
    pub control: ControlReceiver,
    /// How the site greeted.
    pub welcome: Welcome,
    /// Where it was reached.
    pub endpoint: SocketAddr,
    site: SiteName,
    next_request: u64,
    /// The request that was sent with the greeting, until somebody asks it.
    asked: Option<Request>,
    ahead: Dialling,
}

/// Data streams on their way; they come in the order they are ready.
struct Dialling {
    since: Instant,
    under_way: usize,
    ready: mpsc::Sender<Result<TlsStream, Error>>,
    streams: mpsc::Receiver<Result<TlsStream, Error>>,
}

impl Dialling {
    fn new() -> Self {
        let (ready, streams) = mpsc::channel();
        Dialling { since: Instant::now(), under_way: 0, ready, streams }
    }

    fn next(&mut self) -> Result<TlsStream, Error> {
        self.under_way -= 1;
        self.streams.recv().expect("it holds a sender itself")
    }
}

/// What to do beside the greeting.
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// Data streams that will be wanted at most.
    pub streams: u16,
    /// Whether this side will send on them.
    pub sends: bool,
    /// The first request that will be asked.
    pub request: Option<Request>,
}

/// A stream dialled ahead is used within this time; the site closes those that say nothing after 10 s.
const FRESH: Duration = Duration::from_secs(8);
/// Pause before a stream that was lost is dialled again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What slow start carries in two round trips: 10 segments, then 20. The ticket often comes after one.
const PADDING_BYTES: usize = 30 * 1440;

impl Dialler {
    /// A dialler that shows `credential`; `silence` is how long a peer may say nothing.
    pub fn new(credential: &Credential, trust: Arc<Trust>, silence: Duration) -> Result<Self, Error> {
        Ok(Dialler { config: client_config(credential)?, trust, silence })
    }

    /// The sites it knows.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Opens a session at the first of the site's endpoints that answers.
    ///
    /// # Errors
    /// `SiteUnknown`, what the one endpoint gave, or `SiteUnreachable` with what each of several gave.
    pub fn connect(&self, site: &SiteName) -> Result<Session, Error> {
        self.connect_ahead(site, &Ahead::default())
    }

    /// Opens a session as [`Dialler::connect`] does, and does what will be needed beside the greeting.
    pub fn connect_ahead(&self, site: &SiteName, ahead: &Ahead) -> Result<Session, Error> {
        let mut failures = Vec::new();
        let mut used = false;
        for endpoint in self.trust.endpoints(site)? {
            match self.connect_to(site, endpoint, ahead, &mut used) {
                Ok(session) => return Ok(session),
                Err(error) if used => return Err(error),
                Err(error) => failures.push(error),
            }
        }
        if failures.len() == 1 {
            return Err(failures.remove(0));
        }
        let refused = failures.iter().position(|error| !is_network(error.code));
        if let Some(refused) = refused {
            return Err(failures.swap_remove(refused));
        }
        let causes: Vec<String> = failures.iter().map(Error::to_string).collect();
        Err(Error::new(Code::SiteUnreachable, "connect", site, causes.join("; ")).at("client"))
    }

    fn connect_to(
        &self,
        site: &SiteName,
        endpoint: &str,
        ahead: &Ahead,
        used: &mut bool,
    ) -> Result<Session, Error> {
        let mut last = None;
        for address in resolve(endpoint)? {
            match self.open_noting(site, address, ahead, used) {
                Ok(session) => return Ok(session),
                Err(error) if is_network(error.code) && !*used => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(Code::NameUnresolved, "resolve", endpoint, "no address")))
    }

    /// Opens a session at one address.
    pub fn open(&self, site: &SiteName, address: SocketAddr, ahead: &Ahead) -> Result<Session, Error> {
        self.open_noting(site, address, ahead, &mut false)
    }

    /// Notes in `used` when a request goes out that works once: another try would only hide why the first failed.
    fn open_noting(
        &self,
        site: &SiteName,
        address: SocketAddr,
        ahead: &Ahead,
        used: &mut bool,
    ) -> Result<Session, Error> {
        let subject = |error: Error| Error { subject: format!("{site} at {address}"), ..error };
        let sock = reach(site, address)?;
        let streams = self.dial_ahead(site, address, &sock, ahead);
        let stream = self.shake(site, address, sock)?;
        let (link, mut control) = split(stream, self.silence)?;
        link.send(&Control::Hello(hello())).map_err(subject)?;
        if let Some(request) = &ahead.request {
            *used = matches!(request, Request::Redeem(_) | Request::Push { .. });
            link.send(&Control::Request { id: 0, request: request.clone() }).map_err(subject)?;
        }
        let welcome = match control.recv().map_err(|error| named(error, site, address))? {
            Control::Welcome(welcome) if VERSIONS.contains(&welcome.version) => welcome,
            Control::Welcome(welcome) => {
                let cause = format!("{site} chose version {}", welcome.version);
                return Err(Error::new(Code::VersionMismatch, "greet", site, cause));
            }
            other => return Err(violation("greeting", format_args!("{other:?}"))),
        };
        Ok(Session {
            control,
            welcome,
            endpoint: address,
            site: site.clone(),
            next_request: 0,
            asked: ahead.request.clone(),
            ahead: streams,
        })
    }

    /// Connects and shakes hands; the peer is the site it should be.
    pub fn secure(&self, site: &SiteName, address: SocketAddr) -> Result<TlsStream, Error> {
        self.shake(site, address, reach(site, address)?)
    }

    fn shake(&self, site: &SiteName, address: SocketAddr, sock: TcpStream) -> Result<TlsStream, Error> {
        let stream = TlsStream::connect(sock, self.config.clone(), server_name(site), CONNECT_TIMEOUT);
        let stream = stream.map_err(|error| named(error, site, address))?;
        let peer = verify_peer(&stream.peer_chain(), &self.trust, SystemTime::now())
            .map_err(|error| error.at("client"))?;
        expect_site(&peer, site).map_err(|error| error.at("client"))?;
        Ok(stream)
    }

    /// Dials as many data streams as the site will ask for, if it is so far that waiting for the question costs.
    fn dial_ahead(&self, site: &SiteName, address: SocketAddr, sock: &TcpStream, ahead: &Ahead) -> Dialling {
        let rtt = socket::rtt(sock);
        let count = if is_far(rtt) { initial_streams(rtt, 1).min(ahead.streams) } else { 0 };
        let padding = if ahead.sends && is_long(rtt) { PADDING_BYTES } else { 0 };
        let mut dialling = Dialling::new();
        for _ in 0..count {
            // What cannot be dialled now is dialled when it is needed.
            let _ = self.dial_stream(&mut dialling, site, address, padding);
        }
        dialling
    }

    fn dial_stream(
        &self,
        dialling: &mut Dialling,
        site: &SiteName,
        address: SocketAddr,
        padding: usize,
    ) -> Result<(), Error> {
        let (dialler, site, ready) = (self.clone(), site.clone(), dialling.ready.clone());
        // If nobody waits any more, the stream is closed.
        let dial = move || drop(ready.send(dialler.dial(&site, address, padding)));
        let spawned = std::thread::Builder::new().name("dial".into()).spawn(dial);
        spawned.map_err(|error| Error::new(Code::SystemCall, "start a thread", "data stream", error))?;
        dialling.under_way += 1;
        Ok(())
    }

    fn dial(&self, site: &SiteName, address: SocketAddr, padding: usize) -> Result<TlsStream, Error> {
        let mut stream = self.secure(site, address)?;
        if padding > 0 {
            let mut bytes = Vec::new();
            frame::push_padding(&mut bytes, padding);
            stream.write_all(&bytes)?;
        }
        Ok(stream)
    }

    /// Opens the data streams of a session, all at once. A stream that is lost on the way is dialled again: the site
    /// may have had no place for it while others came from the same address.
    ///
    /// # Errors
    /// What a stream gave when too many were lost.
    pub fn join(&self, session: &mut Session, opened: &Opened) -> Result<Vec<TlsStream>, Error> {
        if opened.streams > MAX_STREAMS {
            return Err(violation("opening", format_args!("{} data streams", opened.streams)));
        }
        let wanted = usize::from(opened.streams.max(1));
        let ahead = std::mem::replace(&mut session.ahead, Dialling::new());
        let mut dialling = if ahead.since.elapsed() < FRESH { ahead } else { Dialling::new() };
        let (mut streams, mut again) = (Vec::with_capacity(wanted), 2 * wanted);
        while streams.len() < wanted {
            while dialling.under_way < wanted - streams.len() {
                self.dial_stream(&mut dialling, &session.site, session.endpoint, 0)?;
            }
            let joined = dialling.next().and_then(|stream| {
                self.join_one(stream, &opened.ticket, u16::try_from(streams.len()).unwrap_or(u16::MAX))
            });
            match joined {
                Ok(stream) => streams.push(stream),
                Err(error) if again > 0 && is_network(error.code) => {
                    again -= 1;
                    std::thread::sleep(AGAIN_AFTER);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(streams)
    }

    fn join_one(&self, mut stream: TlsStream, ticket: &Ticket, index: u16) -> Result<TlsStream, Error> {
        stream.bear_silence(self.silence)?;
        let mut bytes = Vec::new();
        frame::push(&mut bytes, FrameKind::Join, &encode(&Join { ticket: *ticket, index }));
        stream.write_all(&bytes)?;
        Ok(stream)
    }
}

impl Session {
    /// Asks and waits for the answer.
    pub fn ask(&mut self, request: Request) -> Result<Reply, Error> {
        let id = self.send_request(request)?;
        self.reply_to(id)
    }

    fn send_request(&mut self, request: Request) -> Result<u64, Error> {
        let id = self.next_request;
        self.next_request += 1;
        if let Some(asked) = self.asked.take() {
            // It travelled with the greeting; whoever said so asks it first.
            return if asked == request {
                Ok(id)
            } else {
                Err(violation("request", "not the one announced"))
            };
        }
        self.control.sender().send(&Control::Request { id, request })?;
        Ok(id)
    }

    fn reply_to(&mut self, id: u64) -> Result<Reply, Error> {
        self.outcome_of(id)?
    }

    /// The site's answer to a request; the outer error ends the session.
    fn outcome_of(&mut self, id: u64) -> Result<Result<Reply, Error>, Error> {
        let site = self.site.clone();
        match self.control.recv().map_err(|error| named(error, &site, self.endpoint))? {
            Control::Reply { id: answered, reply } if answered == id => Ok(reply),
            Control::Abort(error) => Err(error),
            other => Err(violation("reply", format_args!("{other:?}"))),
        }
    }

    /// Asks many things, some ahead of their answers so that the way there and back is not waited for each time.
    ///
    /// The answers come in order; each is one reply, good or bad.
    ///
    /// # Errors
    /// What ends the session, or what `on_reply` returns.
    pub fn ask_each(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        mut on_reply: impl FnMut(Result<Reply, Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut waiting = VecDeque::with_capacity(ASKED_AHEAD);
        for request in requests {
            if waiting.len() == ASKED_AHEAD
                && let Some(id) = waiting.pop_front()
            {
                on_reply(self.outcome_of(id)?)?;
            }
            waiting.push_back(self.send_request(request)?);
        }
        for id in waiting {
            on_reply(self.outcome_of(id)?)?;
        }
        Ok(())
    }

    /// Asks for something that comes in parts and hands each part on.
    pub fn ask_parts(
        &mut self,
        request: Request,
        mut on_part: impl FnMut(Vec<renkei_core::entry::Entry>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let id = self.send_request(request)?;
        loop {
            match self.reply_to(id)? {
                Reply::Listing { entries, more } => {
                    on_part(entries)?;
                    if !more {
                        return Ok(());
                    }
                }
                other => return Err(violation("listing", format_args!("{other:?}"))),
            }
        }
    }

    /// Asks to open a transfer.
    pub fn ask_open(&mut self, request: Request) -> Result<Opened, Error> {
        match self.ask(request)? {
            Reply::Opened(opened) => Ok(opened),
            other => Err(violation("opening", format_args!("{other:?}"))),
        }
    }

    /// The site at the other end.
    pub fn site(&self) -> &SiteName {
        &self.site
    }
}

/// Connects to an address of a site.
pub fn reach(site: &SiteName, address: SocketAddr) -> Result<TcpStream, Error> {
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
        .map_err(|error| named(unreachable(&error), site, address))
}

/// The greeting of this program, now.
fn hello() -> Hello {
    Hello {
        versions: (*VERSIONS.start(), *VERSIONS.end()),
        software: SOFTWARE.into(),
        now_unix_ms: unix_ms(SystemTime::now()),
    }
}

/// Names the peer in an error of the network that does not know it.
fn named(error: Error, site: &SiteName, address: SocketAddr) -> Error {
    if error.subject == "peer" {
        return Error { subject: format!("{site} at {address}"), ..error }.at("client");
    }
    error.at("client")
}

/// The addresses behind an endpoint `HOST:PORT`.
pub fn resolve(endpoint: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = endpoint.to_socket_addrs();
    let found =
        found.map_err(|error| Error::new(Code::NameUnresolved, "resolve", endpoint, error).at("client"));
    found.map(Iterator::collect)
}

/// What a failed connect means.
pub fn unreachable(error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::ConnectionRefused => Code::PortClosed,
        io::ErrorKind::ConnectionReset => Code::ConnectionLost,
        _ => Code::PeerDown,
    };
    Error { code, op: "connect".into(), ..lost("connect", error) }
}

fn is_network(code: Code) -> bool {
    use Code::*;
    matches!(code, PeerDown | PortClosed | ConnectionLost | Stalled | NameUnresolved | SiteUnreachable)
}
