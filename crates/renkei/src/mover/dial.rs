//! Opens sessions: connects to a site, proves who both sides are, greets, and joins data streams.
//!
//! On a far path each round trip is time the link stands empty. So the data streams are dialled while the session
//! is still being agreed on, all at once, and the first request travels with the greeting. How a connection to the
//! site is got, [`super::transport`] says; [`super::routes`] tries the ways one after the other.
//!
//! A storage may be served by an agent. Its PoP then answers that it is elsewhere, and the session goes there by itself:
//! whoever asks sees one session with the site.

use super::routes::RouteContext;
use super::slow_connect::Tell;
use super::transport::Transport;
use crate::identity::credential::Credential;
use crate::identity::tls::{client_config, server_name_of};
use crate::identity::trust::Trust;
use crate::identity::verify::{expect_peer, verify_peer};
use crate::net::control::{ControlReceiver, split};
use crate::net::socket;
use crate::net::tls::TlsStream;
use crate::net::{CONNECT_TIMEOUT, SOFTWARE, unix_ms};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::link::controller::{initial_streams, is_far, is_long};
use renkei_core::path::SiteName;
use renkei_core::route::Rule;
use renkei_core::wire::data::{Join, Ticket};
use renkei_core::wire::frame::{self, FrameKind};
use renkei_core::wire::message::{Control, Found, Hello, Opened, Reply, Request, Welcome};
use renkei_core::wire::{VERSIONS, encode, violation};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
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
    pub(super) ways: RouteContext,
    /// Who asks other PoPs to pass circuits on, if it is somebody else.
    asker: Option<Arc<ClientConfig>>,
}

/// An open session with a site.
pub struct Session {
    /// The receiving half of the control stream; it leads to the sending half.
    pub control: ControlReceiver,
    /// How the site greeted.
    pub welcome: Welcome,
    /// How it was reached.
    pub reach: Transport,
    /// Who is at the other end: the site's PoP, or the agent of one of its storages.
    peer: Principal,
    /// Opens the session that goes on where this one leads to.
    dialler: Dialler,
    /// Data streams that will be wanted at most, and whether this side will send on them.
    wanted: (u16, bool),
    chain: Vec<CertificateDer<'static>>,
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

/// How far the first connection of a session is.
enum Begun {
    /// It is there, and the path is so long.
    Connected(Duration),
    /// Hands are shaken.
    Shaken(Box<TlsStream>),
}

/// Hints for a dialler: what to do beside the greeting.
#[derive(Clone, Debug, Default)]
pub struct DialHints {
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

/// While a connect, or a site that others lead to, is not answered for so long, the path is at least as long, and the streams such a path needs are
/// dialled: that a host is slow to answer on a short path costs a few that are not used.
const SIGNS: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(60), Duration::from_millis(200)];

/// What slow start carries in two round trips: 10 segments, then 20. The ticket often comes after one.
pub(super) const PADDING_BYTES: usize = 30 * 1440;

impl Dialler {
    /// A dialler that shows `credential`; `silence` is how long a peer may say nothing.
    pub fn new(credential: &Credential, trust: Arc<Trust>, silence: Duration) -> Result<Self, Error> {
        let ways = RouteContext::of(&credential.holder()?);
        Ok(Dialler { config: client_config(credential)?, trust, silence, ways, asker: None })
    }

    /// The same with what else is known of the ways to sites.
    pub fn with_ways(self, ways: RouteContext) -> Self {
        Dialler { ways, ..self }
    }

    /// The same, but other PoPs are asked to pass circuits on in the name of `credential`.
    pub fn passed_on_for(self, credential: &Credential) -> Result<Self, Error> {
        Ok(Dialler { asker: Some(client_config(credential)?), ..self })
    }

    /// The dialler that asks other PoPs to pass circuits on.
    pub(super) fn asker(&self) -> Self {
        let config = self.asker.as_ref().unwrap_or(&self.config).clone();
        Dialler { config, ..self.clone() }
    }

    /// The same with the administrator's word on some sites.
    pub fn with_rules(mut self, rules: BTreeMap<SiteName, Rule>) -> Self {
        self.ways.rules = rules;
        self
    }

    /// The same, that tells somebody what it tries when that takes long.
    pub fn telling(mut self, tell: Tell) -> Self {
        self.ways.tell = Some(tell);
        self
    }

    /// The sites it knows, to keep.
    pub fn trust_shared(&self) -> Arc<Trust> {
        self.trust.clone()
    }

    /// The sites it knows.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Opens a session with a site, by the first way that works.
    ///
    /// # Errors
    /// `SiteUnknown`, what the one endpoint gave, or `SiteUnreachable` with what each of several gave; `NoRoute`.
    pub fn connect(&self, site: &SiteName) -> Result<Session, Error> {
        self.connect_ahead(site, &DialHints::default())
    }

    /// Opens a session at one address.
    pub fn open(&self, site: &SiteName, address: SocketAddr, ahead: &DialHints) -> Result<Session, Error> {
        self.open_by(site, &Transport::Direct(address, CONNECT_TIMEOUT), ahead)
    }

    /// Opens a session with the PoP of a site that is reached so.
    pub(super) fn open_by(
        &self,
        site: &SiteName,
        reach: &Transport,
        ahead: &DialHints,
    ) -> Result<Session, Error> {
        self.open_noting(&Principal::Host(site.clone()), reach, ahead, &mut false)
    }

    /// Notes in `used` when a request goes out that works once: another try would only hide why the first failed.
    pub(super) fn open_noting(
        &self,
        peer: &Principal,
        reach: &Transport,
        ahead: &DialHints,
        used: &mut bool,
    ) -> Result<Session, Error> {
        let site = peer.site();
        let subject = |error: Error| Error { subject: reach.place(site), ..error };
        let (stream, streams) = self.shake_ahead(peer, reach, ahead)?;
        let chain = stream.peer_chain();
        let (link, mut control) = split(stream, self.silence)?;
        link.send(&Control::Hello(hello())).map_err(subject)?;
        if let Some(request) = &ahead.request {
            *used = matches!(request, Request::Redeem(_) | Request::Push { .. } | Request::PushFound { .. });
            if let Some(filter) = request.filter() {
                link.send(&Control::Filter(filter.clone())).map_err(subject)?;
            }
            if request.tells_names() {
                link.send(&Control::TellNames).map_err(subject)?;
            }
            link.send(&Control::Request { id: 0, request: request.clone() }).map_err(subject)?;
        }
        let welcome = match control.recv().map_err(|error| named(error, site, reach))? {
            Control::Welcome(welcome) if VERSIONS.contains(&welcome.version) => welcome,
            Control::Welcome(welcome) => {
                let cause = format!("{site} chose version {}", welcome.version);
                return Err(Error::new(Code::VersionMismatch, "greet", site, cause));
            }
            other => return Err(violation("greeting", format_args!("{other:?}"))),
        };
        if matches!(peer, Principal::Host(_)) {
            self.ways.memory.note_clock(site, welcome.now_unix_ms);
        }
        Ok(Session {
            control,
            welcome,
            reach: reach.clone(),
            peer: peer.clone(),
            dialler: self.clone(),
            wanted: (ahead.streams, ahead.sends),
            chain,
            next_request: 0,
            asked: ahead.request.clone(),
            ahead: streams,
        })
    }

    /// Connects and shakes hands; the peer is the site it should be.
    pub fn secure(&self, site: &SiteName, address: SocketAddr) -> Result<TlsStream, Error> {
        let reach = Transport::Direct(address, CONNECT_TIMEOUT);
        self.secure_on(site, address, reach.connect(site)?)
    }

    /// Shakes hands on a connection to that address; the peer is the site it should be.
    pub(super) fn secure_on(
        &self,
        site: &SiteName,
        address: SocketAddr,
        sock: TcpStream,
    ) -> Result<TlsStream, Error> {
        self.shake(&Principal::Host(site.clone()), &Transport::Direct(address, CONNECT_TIMEOUT), sock)
    }

    fn shake(&self, peer: &Principal, reach: &Transport, sock: TcpStream) -> Result<TlsStream, Error> {
        let name = server_name_of(peer);
        let stream = TlsStream::connect(sock, self.config.clone(), name, reach.within());
        let stream = stream.map_err(|error| named(silent(error, reach), peer.site(), reach))?;
        let proved = verify_peer(&stream.peer_chain(), &self.trust, SystemTime::now())
            .map_err(|error| error.at("client"))?;
        expect_peer(&proved, peer).map_err(|error| error.at("client"))?;
        Ok(stream)
    }

    /// Connects and shakes hands, and dials data streams meanwhile: that it takes long is the first sign of a long path.
    fn shake_ahead(
        &self,
        peer: &Principal,
        reach: &Transport,
        ahead: &DialHints,
    ) -> Result<(TlsStream, Dialling), Error> {
        let mut dialling = Dialling::new();
        if ahead.streams == 0 {
            return Ok((self.shake(peer, reach, reach.connect(peer.site())?)?, dialling));
        }
        let (tell, told) = mpsc::channel();
        let begin = {
            let (dialler, peer, reach) = (self.clone(), peer.clone(), reach.clone());
            move || dialler.begin(&peer, &reach, &tell)
        };
        spawn_dial(begin)?;
        let started = Instant::now();
        let mut signs = SIGNS.iter();
        loop {
            let begun = match signs.next() {
                None => told.recv().expect("the thread tells before it ends"),
                Some(sign) => match told.recv_timeout(sign.saturating_sub(started.elapsed())) {
                    Ok(begun) => begun,
                    Err(_) => {
                        self.dial_ahead(&mut dialling, peer, reach, ahead, *sign);
                        continue;
                    }
                },
            };
            match begun? {
                Begun::Connected(rtt) => {
                    self.dial_ahead(&mut dialling, peer, reach, ahead, rtt);
                    signs = [].iter();
                }
                Begun::Shaken(stream) => return Ok((*stream, dialling)),
            }
        }
    }

    /// Connects and shakes hands. How long the path is shows when the connection is there; of one that others pass on,
    /// only when the site has answered.
    fn begin(&self, peer: &Principal, reach: &Transport, tell: &mpsc::Sender<Result<Begun, Error>>) {
        let shaken = reach.connect(peer.site()).and_then(|sock| {
            if let Transport::Direct(..) = reach {
                // Nobody waits any more where this cannot be told.
                let _ = tell.send(Ok(Begun::Connected(socket::rtt(&sock))));
            }
            self.shake(peer, reach, sock)
        });
        let _ = tell.send(shaken.map(|stream| Begun::Shaken(Box::new(stream))));
    }

    /// Dials as many data streams as the site will ask for, if it is so far that waiting for the question costs.
    fn dial_ahead(
        &self,
        dialling: &mut Dialling,
        peer: &Principal,
        reach: &Transport,
        ahead: &DialHints,
        rtt: Duration,
    ) {
        let count =
            if is_far(rtt) { initial_streams(rtt, 1, socket::bears_loss()).min(ahead.streams) } else { 0 };
        while dialling.under_way < usize::from(count) {
            // What cannot be dialled now is dialled when it is needed.
            if self.dial_stream(dialling, peer, reach, ahead.sends).is_err() {
                return;
            }
        }
    }

    /// Dials one; `opens` if it shall open its window while it waits.
    fn dial_stream(
        &self,
        dialling: &mut Dialling,
        peer: &Principal,
        reach: &Transport,
        opens: bool,
    ) -> Result<(), Error> {
        let (dialler, peer, reach) = (self.clone(), peer.clone(), reach.clone());
        let ready = dialling.ready.clone();
        // If nobody waits any more, the stream is closed.
        spawn_dial(move || drop(ready.send(dialler.dial(&peer, &reach, opens))))?;
        dialling.under_way += 1;
        Ok(())
    }

    fn dial(&self, peer: &Principal, reach: &Transport, opens: bool) -> Result<TlsStream, Error> {
        let mut stream = self.shake(peer, reach, reach.connect(peer.site())?)?;
        if opens && is_long(stream.round_trip()) {
            let mut bytes = Vec::new();
            frame::push_padding(&mut bytes, PADDING_BYTES);
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
                self.dial_stream(&mut dialling, &session.peer, &session.reach, false)?;
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
        self.ask_whom_it_concerns(request)?.1
    }

    /// Asks who is at the other end, whoever else it may concern.
    pub(super) fn ask_here(&mut self, request: Request) -> Result<Reply, Error> {
        let id = self.send_request(request)?;
        self.reply_to(id)
    }

    /// Asks the PoP, or the agent that serves what it is about; tells the request's number and the first answer. If
    /// another one has to be asked than the last time, the session is one with that from now on.
    fn ask_whom_it_concerns(&mut self, request: Request) -> Result<(u64, Result<Reply, Error>), Error> {
        if self.is_for_the_pop(&request) {
            self.turn_back(&request)?;
        }
        let again = request.may_be_for_an_agent().then(|| request.clone());
        let id = self.send_request(request)?;
        match (self.outcome_of(id)?, again) {
            (Err(error), Some(request)) if self.leads_on(&error) => {
                self.go_to_agent(&error.subject, &request)?;
                let id = self.send_request(request)?;
                Ok((id, self.outcome_of(id)?))
            }
            (outcome, _) => Ok((id, outcome)),
        }
    }

    /// Whether this is a session with an agent that a request does not concern.
    fn is_for_the_pop(&self, request: &Request) -> bool {
        let Principal::Agent { storage, .. } = &self.peer else { return false };
        match request {
            Request::Redeem(_) => false,
            request => !request.storages().contains(&storage.as_str()),
        }
    }

    /// Whether an answer of the PoP says that an agent is to be asked.
    fn leads_on(&self, error: &Error) -> bool {
        error.code == Code::WithAgent && matches!(self.peer, Principal::Host(_))
    }

    fn ahead_with(&self, request: &Request) -> DialHints {
        let (streams, sends) = self.wanted;
        DialHints { streams, sends, request: Some(request.clone()) }
    }

    fn turn_back(&mut self, request: &Request) -> Result<(), Error> {
        let ahead = self.ahead_with(request);
        *self = self.dialler.connect_ahead(self.peer.site(), &ahead)?;
        Ok(())
    }

    fn go_to_agent(&mut self, storage: &str, request: &Request) -> Result<(), Error> {
        let ahead = self.ahead_with(request);
        *self = self.dialler.connect_to_agent(self.peer.site(), storage, &self.reach, &ahead)?;
        Ok(())
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
        let link = self.control.sender();
        if let Some(filter) = request.filter() {
            link.send(&Control::Filter(filter.clone()))?;
        }
        if request.tells_names() {
            link.send(&Control::TellNames)?;
        }
        link.send(&Control::Request { id, request })?;
        Ok(id)
    }

    fn reply_to(&mut self, id: u64) -> Result<Reply, Error> {
        self.outcome_of(id)?
    }

    /// The site's answer to a request; the outer error ends the session.
    fn outcome_of(&mut self, id: u64) -> Result<Result<Reply, Error>, Error> {
        let site = self.peer.site();
        match self.control.recv().map_err(|error| named(error, site, &self.reach))? {
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
            if self.is_for_the_pop(&request) {
                self.settle(&mut waiting, 0, &mut on_reply)?;
                self.turn_back(&request)?;
            }
            self.settle(&mut waiting, ASKED_AHEAD - 1, &mut on_reply)?;
            waiting.push_back((self.send_request(request.clone())?, request));
        }
        self.settle(&mut waiting, 0, &mut on_reply)
    }

    /// Takes answers until at most so many are waited for; what an agent must be asked is asked anew.
    fn settle(
        &mut self,
        waiting: &mut VecDeque<(u64, Request)>,
        most: usize,
        on_reply: &mut dyn FnMut(Result<Reply, Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while waiting.len() > most {
            let Some((id, request)) = waiting.pop_front() else { return Ok(()) };
            match self.outcome_of(id)? {
                Err(error) if self.leads_on(&error) => {
                    // The session is left, so its other answers are taken first.
                    let answers = waiting.drain(..).map(|(id, request)| Ok((self.outcome_of(id)?, request)));
                    let answers = answers.collect::<Result<Vec<_>, Error>>()?;
                    for (outcome, request) in std::iter::once((Err(error), request)).chain(answers) {
                        let leads_on = outcome.as_ref().is_err_and(|error| error.code == Code::WithAgent);
                        on_reply(if leads_on { self.ask_whom_it_concerns(request)?.1 } else { outcome })?;
                    }
                }
                outcome => on_reply(outcome)?,
            }
        }
        Ok(())
    }

    /// Asks for something that comes in parts and hands each part on.
    pub fn ask_parts(
        &mut self,
        request: Request,
        mut on_part: impl FnMut(Vec<renkei_core::entry::Entry>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (id, mut reply) = self.ask_whom_it_concerns(request)?;
        loop {
            match reply? {
                Reply::Listing { entries, more } => {
                    on_part(entries)?;
                    if !more {
                        return Ok(());
                    }
                }
                other => return Err(violation("listing", format_args!("{other:?}"))),
            }
            reply = self.outcome_of(id)?;
        }
    }

    /// Asks to open a transfer.
    pub fn ask_open(&mut self, request: Request) -> Result<Opened, Error> {
        match self.ask(request)? {
            Reply::Opened(opened) => Ok(opened),
            other => Err(violation("opening", format_args!("{other:?}"))),
        }
    }

    /// Asks for what is opened only after the site looked: tells `on_found` what it found, which may refuse that.
    ///
    /// # Errors
    /// The outer one is the session's end, the inner one the site's answer, or that of `on_found`.
    pub fn ask_to_open(
        &mut self,
        request: Request,
        on_found: &mut dyn FnMut(Found) -> Result<(), Error>,
    ) -> Result<Result<Opened, Error>, Error> {
        let (id, mut outcome) = self.ask_whom_it_concerns(request)?;
        loop {
            match outcome {
                Ok(Reply::Found(found)) => {
                    if let Err(refused) = on_found(found) {
                        return Ok(Err(refused));
                    }
                }
                Ok(Reply::Opened(opened)) => return Ok(Ok(opened)),
                Ok(other) => return Err(violation("opening", format_args!("{other:?}"))),
                Err(error) => return Ok(Err(error)),
            }
            outcome = self.outcome_of(id)?;
        }
    }

    /// Where the site was reached: an address, or by whom.
    pub fn place(&self) -> String {
        match &self.reach {
            Transport::Direct(address, _) => address.to_string(),
            Transport::Line(_) => "its line".into(),
            Transport::Through(relay_client) if relay_client.agent().is_some() => "by its agent".into(),
            Transport::Through(relay_client) => format!("through {}", relay_client.relay()),
        }
    }

    /// The certificates the site showed.
    pub fn peer_chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The site at the other end.
    pub fn site(&self) -> &SiteName {
        self.peer.site()
    }

    /// Whether the site's PoP is at the other end, and no agent.
    pub fn is_with_the_pop(&self) -> bool {
        matches!(self.peer, Principal::Host(_))
    }
}

fn spawn_dial(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = std::thread::Builder::new().name("dial".into()).spawn(work);
    spawned.map(drop).map_err(|error| Error::new(Code::SystemCall, "start a thread", "data stream", error))
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
pub(super) fn named(error: Error, site: &SiteName, reach: &Transport) -> Error {
    if error.subject == "peer" {
        return Error { subject: reach.place(site), ..error }.at("client");
    }
    error.at("client")
}

/// What it means that nobody shook hands on a connection.
fn silent(error: Error, reach: &Transport) -> Error {
    if error.code != Code::Stalled {
        return error;
    }
    let within = reach.within().as_secs();
    let cause = format!(
        "its port takes connections, but nothing answers within {within} s: the PoP hangs or is stopped"
    );
    Error { code: Code::PeerDown, cause, ..error }
}

/// Whether the way to the peer is what failed.
pub(super) fn is_network(code: Code) -> bool {
    use Code::*;
    matches!(code, PeerDown | PortClosed | ConnectionLost | Stalled | NameUnresolved | SiteUnreachable)
        || matches!(code, NoRoute | NoLine | CallUnanswered)
}
