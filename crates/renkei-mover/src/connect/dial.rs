//! Opens sessions: connects to a site, authenticates both sides, exchanges greetings, and joins data streams.
//!
//! On a long path each round trip is idle time. So the data streams are dialled while the session is still being
//! negotiated, all at once, and the first request travels with the greeting. The connection itself is made by
//! [`super::transport`]; [`super::routes`] tries the routes one after the other.
//!
//! A storage may be served by an agent. Its PoP then answers with a redirect, which the session follows
//! transparently: the caller sees one session with the site.

use super::route_context::RouteContext;
use super::slow_connect::Tell;
use super::transport::{Transport, is_network, named};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::link::controller::{initial_streams, is_far, is_long};
use renkei_core::path::SiteName;
use renkei_core::route::Rule;
use renkei_core::wire::data::{Join, Ticket};
use renkei_core::wire::frame::{self, FrameKind};
use renkei_core::wire::message::{Control, Hello, Opened, Reply, Request, Welcome};
use renkei_core::wire::wire3::DestinationReport;
use renkei_core::wire::{VERSIONS, WireVersion, encode, violation};
use renkei_net::control::{ControlReceiver, split};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::tls::{client_config, server_name_of};
use renkei_net::identity::trust::Trust;
use renkei_net::identity::verify::{expect_peer, verify_peer};
use renkei_net::socket;
use renkei_net::tls::TlsStream;
use renkei_net::{CONNECT_TIMEOUT, SOFTWARE, unix_ms};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// Most pipelined requests: small ones, whose replies fit the socket's buffers.
const ASKED_AHEAD: usize = 64;

/// Most data streams that the peer may ask for: no path needs more, and each costs memory here.
const MAX_STREAMS: u16 = 256;

/// Dials sites with one credential and one set of trusted sites.
#[derive(Clone)]
pub struct Dialler {
    config: Arc<ClientConfig>,
    trust: Arc<Trust>,
    silence: Duration,
    pub(crate) ways: RouteContext,
    /// The identity used towards relays, if it is another one.
    asker: Option<Arc<ClientConfig>>,
    /// The identities at sites that know the user by another certificate.
    own_at: BTreeMap<SiteName, Arc<ClientConfig>>,
}

/// An open session with a site.
pub struct Session {
    /// The receiving half of the control stream; it leads to the sending half.
    pub control: ControlReceiver,
    /// The site's greeting.
    pub welcome: Welcome,
    /// The transport.
    pub reach: Transport,
    /// The peer: the site's PoP, or the agent of one of its storages.
    peer: Principal,
    /// Dials the next session after a redirect.
    dialler: Dialler,
    /// Most data streams that may be wanted, and whether this side sends on them.
    wanted: (u16, bool),
    chain: Vec<CertificateDer<'static>>,
    next_request: u64,
    /// The request that was sent with the greeting, until the caller asks it.
    asked: Option<Request>,
    ahead: Dialling,
}

/// Data streams that are being dialled; they come in the order in which they are ready.
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

/// Progress of the first connection of a session.
enum Begun {
    /// It is connected, with this RTT.
    Connected(Duration),
    /// The TLS handshake is complete.
    Shaken(Box<TlsStream>),
}

/// Hints for a dialler: what to do beside the greeting.
#[derive(Clone, Debug, Default)]
pub struct DialHints {
    /// Most data streams that may be wanted.
    pub streams: u16,
    /// Whether this side sends on them.
    pub sends: bool,
    /// The first request of the session.
    pub request: Option<Request>,
}

/// Lifetime of a stream dialled ahead; the site closes those without a join after 10 s.
const FRESH: Duration = Duration::from_secs(8);
/// Backoff before a lost stream is dialled again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// While a connect, or a relayed handshake, is not answered for this long, the RTT is at least as long, and the
/// number of streams for such an RTT is dialled: a slow host on a short path costs a few unused streams.
const SIGNS: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(60), Duration::from_millis(200)];

/// Bytes that slow start carries in two round trips: 10 segments, then 20. The ticket often comes after one.
pub(crate) const PADDING_BYTES: usize = 30 * 1440;

impl Dialler {
    /// A dialler that authenticates with `credential`; `silence` is the peer's silence timeout.
    pub fn new(credential: &Credential, trust: Arc<Trust>, silence: Duration) -> Result<Self, Error> {
        let ways = RouteContext::of(&credential.holder()?);
        Ok(Dialler {
            config: client_config(credential)?,
            trust,
            silence,
            ways,
            asker: None,
            own_at: BTreeMap::new(),
        })
    }

    /// Sets the route context.
    pub fn with_ways(self, ways: RouteContext) -> Self {
        Dialler { ways, ..self }
    }

    /// Uses other credentials towards some sites.
    ///
    /// # Errors
    /// `TlsFailed`.
    pub fn with_credentials_at(mut self, all: &[(SiteName, Credential)]) -> Result<Self, Error> {
        for (site, credential) in all {
            self.own_at.insert(site.clone(), client_config(credential)?);
        }
        Ok(self)
    }

    /// Whether a site knows the user by a certificate of its own.
    pub fn has_credential_at(&self, site: &SiteName) -> bool {
        self.own_at.contains_key(site)
    }

    /// Uses another `credential` towards relays.
    pub fn passed_on_for(self, credential: &Credential) -> Result<Self, Error> {
        Ok(Dialler { asker: Some(client_config(credential)?), ..self })
    }

    /// The dialler used towards relays.
    pub(crate) fn asker(&self) -> Self {
        let config = self.asker.as_ref().unwrap_or(&self.config).clone();
        Dialler { config, ..self.clone() }
    }

    /// Sets the administrator's rules for some sites.
    pub fn with_rules(mut self, rules: BTreeMap<SiteName, Rule>) -> Self {
        self.ways.rules = rules;
        self
    }

    /// Sets the callback that reports slow attempts.
    pub fn telling(mut self, tell: Tell) -> Self {
        self.ways.tell = Some(tell);
        self
    }

    /// The trusted sites, shared.
    pub fn trust_shared(&self) -> Arc<Trust> {
        self.trust.clone()
    }

    /// The trusted sites.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Opens a session with a site, by the first route that works.
    ///
    /// # Errors
    /// `SiteUnknown`, the error of the one endpoint, or `SiteUnreachable` with the errors of several; `NoRoute`.
    pub fn connect(&self, site: &SiteName) -> Result<Session, Error> {
        self.connect_ahead(site, &DialHints::default())
    }

    /// Opens a session at one address.
    pub fn open(&self, site: &SiteName, address: SocketAddr, ahead: &DialHints) -> Result<Session, Error> {
        self.open_by(site, &Transport::Direct(address, CONNECT_TIMEOUT), ahead)
    }

    /// Opens a session with the PoP of a site by the given transport.
    pub(crate) fn open_by(
        &self,
        site: &SiteName,
        reach: &Transport,
        ahead: &DialHints,
    ) -> Result<Session, Error> {
        self.open_noting(&Principal::Host(site.clone()), reach, ahead, &mut false)
    }

    /// Sets `used` when a request that works only once is sent: a retry would only hide the first error.
    pub(crate) fn open_noting(
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
            *used = works_once(request);
            if let Some(filter) = request.filter() {
                link.send(&Control::Filter(filter.clone())).map_err(subject)?;
            }
            if request.tells_names() {
                link.send(&Control::TellNames).map_err(subject)?;
            }
            let message = Control::Request { id: 0, request: request.clone() };
            let sent = match request.since() {
                WireVersion::OLDEST => link.send(&message),
                _ => link.send_early(&message),
            };
            sent.map_err(subject)?;
        }
        let welcome = match control.recv().map_err(|error| named(error, site, reach))? {
            Control::Welcome(welcome) => welcome,
            other => return Err(violation("greeting", format_args!("{other:?}"))),
        };
        let version = agreed(site, &welcome)?;
        link.agree(version);
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
            // A peer of an older version has skipped a request that it does not know.
            asked: ahead.request.clone().filter(|request| request.since() <= version),
            ahead: streams,
        })
    }

    /// Connects and handshakes; the peer is verified to be `site`.
    pub fn secure(&self, site: &SiteName, address: SocketAddr) -> Result<TlsStream, Error> {
        let reach = Transport::Direct(address, CONNECT_TIMEOUT);
        self.secure_on(site, address, reach.connect(site)?)
    }

    /// Handshakes on a connection to that address; the peer is verified to be `site`.
    pub(crate) fn secure_on(
        &self,
        site: &SiteName,
        address: SocketAddr,
        sock: TcpStream,
    ) -> Result<TlsStream, Error> {
        self.shake(&Principal::Host(site.clone()), &Transport::Direct(address, CONNECT_TIMEOUT), sock)
    }

    fn shake(&self, peer: &Principal, reach: &Transport, sock: TcpStream) -> Result<TlsStream, Error> {
        let name = server_name_of(peer);
        let config = self.own_at.get(peer.site()).unwrap_or(&self.config).clone();
        let stream = TlsStream::connect(sock, config, name, reach.within());
        let stream = stream.map_err(|error| named(silent(error, reach), peer.site(), reach))?;
        let proved = verify_peer(&stream.peer_chain(), &self.trust, SystemTime::now())
            .map_err(|error| error.at("client"))?;
        expect_peer(&proved, peer).map_err(|error| error.at("client"))?;
        Ok(stream)
    }

    /// Connects and handshakes, and dials data streams meanwhile: a slow answer is the first sign of a long path.
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

    /// Connects and handshakes. The RTT is known once connected; through a relay or a reverse connection, only once
    /// the site has answered.
    fn begin(&self, peer: &Principal, reach: &Transport, tell: &mpsc::Sender<Result<Begun, Error>>) {
        let shaken = reach.connect(peer.site()).and_then(|sock| {
            if let Transport::Direct(..) = reach {
                // A closed channel means that the caller is gone.
                let _ = tell.send(Ok(Begun::Connected(socket::rtt(&sock))));
            }
            self.shake(peer, reach, sock)
        });
        let _ = tell.send(shaken.map(|stream| Begun::Shaken(Box::new(stream))));
    }

    /// Dials as many data streams as the site will ask for, if the RTT makes waiting for its request costly.
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
            // A stream that cannot be dialled now is dialled when needed.
            if self.dial_stream(dialling, peer, reach, ahead.sends).is_err() {
                return;
            }
        }
    }

    /// Dials one stream; `opens` to grow its congestion window with padding while it waits.
    fn dial_stream(
        &self,
        dialling: &mut Dialling,
        peer: &Principal,
        reach: &Transport,
        opens: bool,
    ) -> Result<(), Error> {
        let (dialler, peer, reach) = (self.clone(), peer.clone(), reach.clone());
        let ready = dialling.ready.clone();
        // A stream whose receiver is gone is closed.
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

    /// Opens the data streams of a session, all at once. A stream that is lost meanwhile is dialled again: the site
    /// may have exceeded its limit of connections from one address.
    ///
    /// # Errors
    /// The error of a stream, when too many were lost.
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
    /// Sends a request and waits for the reply.
    pub fn ask(&mut self, request: Request) -> Result<Reply, Error> {
        self.ask_whom_it_concerns(request)?.1
    }

    /// Sends a request to the current peer, even if another one is responsible.
    pub(crate) fn ask_here(&mut self, request: Request) -> Result<Reply, Error> {
        let id = self.send_request(request)?;
        self.reply_to(id)
    }

    /// Sends a request to the PoP or the agent responsible for it; returns the request's id and the first reply. If
    /// the responsible peer is another one than before, the session is with that peer from now on.
    pub(super) fn ask_whom_it_concerns(
        &mut self,
        request: Request,
    ) -> Result<(u64, Result<Reply, Error>), Error> {
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

    /// Whether this is a session with an agent that is not responsible for a request.
    fn is_for_the_pop(&self, request: &Request) -> bool {
        let Principal::Agent { storage, .. } = &self.peer else { return false };
        match request {
            Request::Redeem(_) => false,
            request => !request.storages().contains(&storage.as_str()),
        }
    }

    /// Whether a reply of the PoP redirects to an agent.
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
            // Sent with the greeting; the caller must ask the request that it announced.
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
        link.send(&Control::Request { id, request: request.for_version(self.version())? })?;
        Ok(id)
    }

    pub(super) fn reply_to(&mut self, id: u64) -> Result<Reply, Error> {
        self.outcome_of(id)?
    }

    /// The site's reply to a request; the outer error ends the session.
    fn outcome_of(&mut self, id: u64) -> Result<Result<Reply, Error>, Error> {
        let site = self.peer.site();
        match self.control.recv().map_err(|error| named(error, site, &self.reach))? {
            Control::Reply { id: answered, reply } if answered == id => Ok(reply),
            Control::Abort(error) => Err(error),
            other => Err(violation("reply", format_args!("{other:?}"))),
        }
    }

    /// Pipelines many requests, to save the round trip of each.
    ///
    /// The replies come in order; each request gets one, success or error.
    ///
    /// # Errors
    /// An error that ends the session, or that of `on_reply`.
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

    /// Takes replies until at most `most` are outstanding; redirected requests are sent again to the agent.
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
                    // The redirect ends this session, so the outstanding replies are read first.
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

    /// Sends a request whose reply comes in parts, and passes each part on.
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

    /// Sends a request that opens a transfer.
    pub fn ask_open(&mut self, request: Request) -> Result<Opened, Error> {
        match self.ask(request)? {
            Reply::Opened(opened) => Ok(opened),
            other => Err(violation("opening", format_args!("{other:?}"))),
        }
    }

    /// Sends a request that opens a transfer after the site has looked at its destination: `on_found` may refuse what
    /// it reports.
    ///
    /// # Errors
    /// The outer one ends the session, the inner one is the site's reply, or the error of `on_found`.
    pub fn ask_to_open(
        &mut self,
        request: Request,
        on_found: &mut dyn FnMut(DestinationReport) -> Result<(), Error>,
    ) -> Result<Result<Opened, Error>, Error> {
        let (id, mut outcome) = self.ask_whom_it_concerns(request)?;
        loop {
            match outcome {
                Ok(Reply::Opened(opened)) => return Ok(Ok(opened)),
                Ok(other) => {
                    if let Err(refused) = on_found(DestinationReport::of(other)?) {
                        return Ok(Err(refused));
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
            outcome = self.outcome_of(id)?;
        }
    }

    /// The address at which the site was reached, or the transport.
    pub fn place(&self) -> String {
        match &self.reach {
            Transport::Direct(address, _) => address.to_string(),
            Transport::Line(..) => "its line".into(),
            Transport::Through(relay_client) if relay_client.agent().is_some() => "by its agent".into(),
            Transport::Through(relay_client) => format!("through {}", relay_client.relay()),
        }
    }

    /// The peer's certificate chain.
    pub fn peer_chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The version of the wire that both sides agreed on: what is younger is not sent to this peer.
    pub fn version(&self) -> WireVersion {
        self.control.sender().version()
    }

    /// The site at the other end.
    pub fn site(&self) -> &SiteName {
        self.peer.site()
    }

    /// Whether the peer is the site's PoP, not an agent.
    pub fn is_with_the_pop(&self) -> bool {
        matches!(self.peer, Principal::Host(_))
    }
}

fn spawn_dial(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = std::thread::Builder::new().name("dial".into()).spawn(work);
    spawned.map(drop).map_err(|error| Error::new(Code::SystemCall, "start a thread", "data stream", error))
}

/// Whether a request works only once: a retry would only hide the first error.
fn works_once(request: &Request) -> bool {
    use Request::*;
    matches!(request, Redeem(_) | Push { .. } | PushCopy { .. })
}

/// The version that a site chose for the session.
fn agreed(site: &SiteName, welcome: &Welcome) -> Result<WireVersion, Error> {
    let chosen = (welcome.version, welcome.version);
    WireVersion::agree("this side", site.as_str(), chosen).map_err(|error| error.at("client"))
}

/// The greeting of this program, with the current time.
fn hello() -> Hello {
    Hello {
        versions: (*VERSIONS.start(), *VERSIONS.end()),
        software: SOFTWARE.into(),
        now_unix_ms: unix_ms(SystemTime::now()),
    }
}

/// Turns a handshake timeout into `PeerDown`.
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
