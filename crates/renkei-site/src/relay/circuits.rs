//! Circuits relayed by this PoP: permissions, destinations, statistics.
//!
//! A session requests circuits to a site; connections that present one of its tickets are coupled to a connection
//! to that site, over the best route from here, and their bytes are relayed unseen. A connection may arrive a
//! moment before the session's request: it waits, counted among unauthenticated connections, and is refused if no
//! request follows in time. Guarantees: only principals the configuration lets, only to trusted sites, no more than
//! `limits.max_circuits`; a ticket works once; when the session ends, its unused tickets are revoked; the far end
//! has proved to be a PoP of that site ([`renkei_mover::connect::targets`]). Non-goal: inspecting the relayed data.

use super::Relay;
use super::pace::Paced;
use crate::Counters;
use crate::access::{Proof, one_share};
use crate::snapshot::Snapshot;
use renkei_config::Relay as RelayPolicy;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::link::controller::is_far;
use renkei_core::route::Way;
use renkei_core::wire::circuit::{MAX_CIRCUITS, MAX_FURTHER, ticket};
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{Control, RelayedStatus};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::Dialler;
use renkei_mover::connect::route_context::{Proofs, RouteContext, Targets};
use renkei_mover::connect::transport::Transport;
use renkei_net::control::ControlSender;
use renkei_net::socket::{keep_alive, prepare_sending, rtt};
use renkei_net::splice::couple;
use renkei_net::tls::lost;
use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Timeout of a connection for the request of its session.
const SPOKEN_FOR_WITHIN: Duration = Duration::from_secs(10);
/// Idle timeout of a circuit.
const IDLE: Duration = Duration::from_secs(600);
/// Stack size of a circuit's thread, which does one handshake and has shallow calls otherwise.
const STACK_BYTES: usize = 1 << 20;

/// A request for circuits.
pub struct CircuitRequest {
    /// The destination: the PoP of a site, or an agent of this one.
    pub to: Principal,
    /// The seed of their tickets.
    pub seed: Ticket,
    /// Maximum number of circuits.
    pub count: u16,
    /// Maximum number of further relays.
    pub further: u8,
    /// The id of the request, for failure replies.
    pub id: u64,
}

/// Permission for the circuits of one session.
pub(crate) struct RelayPermit {
    principal: Principal,
    asked: CircuitRequest,
    link: Arc<ControlSender>,
    open: AtomicU32,
    paced: Arc<Paced>,
    /// The route to the site, if a further PoP relays them.
    onward: Mutex<Option<Transport>>,
    /// Whether its session has ended.
    over: AtomicBool,
    /// Whether its circuits must end too.
    cut: AtomicBool,
}

/// A connection whose ticket is not known yet.
struct Early {
    sock: TcpStream,
    received: Vec<u8>,
    since: Instant,
    place: Box<dyn Send>,
}

/// All circuits of the PoP.
#[derive(Default)]
pub(crate) struct Circuits {
    state: Mutex<State>,
    proofs: Arc<Proofs>,
}

#[derive(Default)]
struct State {
    permits: Vec<Arc<RelayPermit>>,
    tickets: HashMap<Ticket, Arc<RelayPermit>>,
    early: HashMap<Ticket, Early>,
}

/// The permission of a session; its unused tickets are revoked on drop.
pub struct Passing<'a> {
    all: &'a Circuits,
    permit: Arc<RelayPermit>,
}

/// Counts an open circuit while it lives.
struct Open(Arc<RelayPermit>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RelayPermit {
    fn new(principal: Principal, asked: CircuitRequest, link: Arc<ControlSender>) -> Self {
        let (open, paced, onward) = (AtomicU32::new(0), Arc::default(), Mutex::default());
        let (over, cut) = (AtomicBool::new(false), AtomicBool::new(false));
        RelayPermit { principal, asked, link, open, paced, onward, over, cut }
    }
}

impl RelayPermit {
    /// A connection to the destination. If a further PoP relays it, one session there requests all circuits.
    fn dial(&self, dialler: &Dialler) -> Result<(TcpStream, Transport), Error> {
        let to = self.asked.to.site();
        let steps = dialler.plan(to)?;
        let best = steps.iter().find(|step| step.against.is_none());
        if !best.is_some_and(|step| matches!(step.way, Way::Through(_))) {
            return dialler.circuit(to);
        }
        let known = {
            let mut onward =
                self.onward.lock().expect("no thread panics while it holds the lock: a panic aborts");
            match &*onward {
                Some(reach) => reach.clone(),
                None => {
                    let (sock, reach) = dialler.circuit(to)?;
                    *onward = Some(reach.clone());
                    return Ok((sock, reach));
                }
            }
        };
        known.connect(to).map(|sock| (sock, known)).or_else(|_| dialler.circuit(to))
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        state.tickets.retain(|_, permit| !Arc::ptr_eq(permit, &self.permit));
        let bytes = self.permit.paced.bytes.load(Ordering::Relaxed);
        let (principal, to) = (&self.permit.principal, &self.permit.asked.to);
        tracing::info!(target: "audit", %principal, %to, bytes, "circuits end");
        self.permit.over.store(true, Ordering::Relaxed);
        // Open circuits continue; the permit is listed until the last of them has ended.
        state.forget_ended();
    }
}

impl State {
    fn forget_ended(&mut self) {
        let is_used = |permit: &RelayPermit| {
            !permit.over.load(Ordering::Relaxed) || permit.open.load(Ordering::Relaxed) > 0
        };
        self.permits.retain(|permit| is_used(permit));
    }
}

impl Circuits {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Registers the tickets of a permit; returns connections that arrived before.
    fn grant(&self, permit: Arc<RelayPermit>) -> (Passing<'_>, Vec<Early>) {
        let mut state = self.lock();
        let mut came = Vec::new();
        for index in 0..permit.asked.count {
            let ticket = ticket(&permit.asked.seed, index);
            match state.early.remove(&ticket) {
                Some(early) => came.push(early),
                None => drop(state.tickets.insert(ticket, permit.clone())),
            }
        }
        state.permits.push(permit.clone());
        (Passing { all: self, permit }, came)
    }

    /// Redeems the ticket of a connection; if it is unknown the connection waits.
    fn take(&self, ticket: Ticket, early: Early) -> Option<(Arc<RelayPermit>, Early)> {
        let mut state = self.lock();
        if let Some(permit) = state.tickets.remove(&ticket) {
            return Some((permit, early));
        }
        state.early.insert(ticket, early);
        None
    }

    /// Closes connections whose tickets were not announced in time, and counts them.
    pub(crate) fn refuse_late(&self) -> u64 {
        let mut state = self.lock();
        state.forget_ended();
        let before = state.early.len();
        state.early.retain(|_, early| early.since.elapsed() < SPOKEN_FOR_WITHIN);
        (before - state.early.len()) as u64
    }

    /// Closes a connection that still waits.
    fn give_up(&self, ticket: &Ticket) {
        let early = self.lock().early.remove(ticket);
        drop(early);
    }

    /// Status of the relayed circuits of principals that `shown` accepts.
    pub(crate) fn list(&self, shown: impl Fn(&Principal) -> bool) -> Vec<RelayedStatus> {
        let status = |permit: &Arc<RelayPermit>| RelayedStatus {
            principal: permit.principal.to_string(),
            to: permit.asked.to.clone(),
            circuits: permit.open.load(Ordering::Relaxed),
            bytes: permit.paced.bytes.load(Ordering::Relaxed),
        };
        self.lock().permits.iter().filter(|permit| shown(&permit.principal)).map(status).collect()
    }

    /// Ends the circuits for which `not` is true.
    pub(crate) fn end(&self, not: impl Fn(&Principal, &Principal) -> bool) {
        let state = self.lock();
        for permit in state.permits.iter().filter(|permit| not(&permit.principal, &permit.asked.to)) {
            permit.cut.store(true, Ordering::Relaxed);
            permit.link.shutdown();
        }
    }

    /// Counts one more circuit, within the limits.
    fn enter(&self, permit: &Arc<RelayPermit>, limit: u64) -> Result<Open, Error> {
        let state = self.lock();
        let open = |of: &dyn Fn(&RelayPermit) -> bool| -> u64 {
            let counts = state.permits.iter().filter(|permit| of(permit));
            counts.map(|permit| u64::from(permit.open.load(Ordering::Relaxed))).sum()
        };
        let share = one_share(usize::try_from(limit).unwrap_or(usize::MAX)) as u64;
        if open(&|_| true) >= limit || open(&|other| other.principal == permit.principal) >= share {
            let cause = format!("at most {limit} at a time, {share} of one principal");
            return Err(Error::new(Code::CircuitLimit, "pass on", &permit.asked.to, cause));
        }
        permit.open.fetch_add(1, Ordering::Relaxed);
        Ok(Open(permit.clone()))
    }
}

/// Checks whether the configuration lets this principal use circuits.
fn may_pass(principal: &Principal, asked: &CircuitRequest, now: &Snapshot) -> Result<(), Error> {
    let refused = |cause: String| Err(Error::new(Code::RelayRefused, "pass on", principal, cause));
    if asked.count > MAX_CIRCUITS || asked.further > MAX_FURTHER {
        return Err(violation("circuits", format_args!("{} of them", asked.count)));
    }
    match now.config.relay {
        RelayPolicy::None => return refused("`relay` is `none`".into()),
        RelayPolicy::Own if *principal.site() != now.site => {
            return refused(format!("`relay` is `own`: only users of {} may", now.site));
        }
        RelayPolicy::Own | RelayPolicy::Trusted => {}
    }
    if *asked.to.site() == now.site {
        return refused("a circuit to this site cannot be relayed further".into());
    }
    now.trust.endpoints(asked.to.site()).map(drop)
}

impl Relay {
    /// Relays circuits for a session, as long as the returned value lives.
    ///
    /// # Errors
    /// `RelayRefused`, `SiteUnknown`, `ProtocolViolation`.
    pub fn pass_circuits(
        self: &Arc<Self>,
        proof: &Proof,
        asked: CircuitRequest,
        link: Arc<ControlSender>,
    ) -> Result<Passing<'_>, Error> {
        let (snapshot, principal) = (self.context.snapshot(), proof.principal.clone());
        may_pass(&principal, &asked, &snapshot).inspect_err(|error| {
            tracing::warn!(target: "audit", %principal, to = %asked.to, %error, "circuits refused");
        })?;
        Ok(self.grant_circuits(proof, asked, link))
    }

    pub(crate) fn grant_circuits(
        self: &Arc<Self>,
        proof: &Proof,
        asked: CircuitRequest,
        link: Arc<ControlSender>,
    ) -> Passing<'_> {
        let principal = proof.principal.clone();
        tracing::info!(target: "audit", %principal, to = %asked.to, "circuits may pass");
        let permit = Arc::new(RelayPermit::new(principal, asked, link));
        let (passing, came) = self.circuits.grant(permit.clone());
        came.into_iter().for_each(|early| self.spawn_circuit(permit.clone(), early));
        passing
    }

    /// Takes a connection that began with a preface: it answers a call, uses a ticket, or waits for the request
    /// with its ticket. `received` are the bytes after the preface; `place` is held while it waits.
    pub fn circuit_came(
        self: &Arc<Self>,
        ticket: Ticket,
        sock: TcpStream,
        received: Vec<u8>,
        place: Box<dyn Send>,
    ) {
        let sock = match received.is_empty() {
            // A called PoP sends nothing before the caller does.
            true => match self.reverse_registry.answer(&ticket, sock) {
                Ok(()) => return,
                Err(sock) => sock,
            },
            false => sock,
        };
        let early = Early { sock, received, since: Instant::now(), place };
        if let Some((permit, early)) = self.circuits.take(ticket, early) {
            self.spawn_circuit(permit, early);
        }
    }

    /// Closes the waiting connection with this ticket, to free its place.
    pub fn circuit_given_up(&self, ticket: &Ticket) {
        self.circuits.give_up(ticket);
    }

    fn spawn_circuit(self: &Arc<Self>, permit: Arc<RelayPermit>, early: Early) {
        let relay = self.clone();
        let work = move || {
            let Early { sock, received, place, .. } = early;
            drop(place);
            if let Err(error) = relay.pass_on(&permit, sock, &received) {
                let error = of_here(error, relay.context.name().as_str());
                tracing::info!(to = %permit.asked.to, principal = %permit.principal, %error, "a circuit failed");
                let _ = permit.link.send(&Control::Reply { id: permit.asked.id, reply: Err(error) });
            }
        };
        let thread = std::thread::Builder::new().name("circuit".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(work) {
            tracing::warn!(%error, "cannot start a thread for a circuit");
        }
    }

    /// Connects to the destination and relays bytes until the circuit ends.
    ///
    /// # Errors
    /// Those of the connection; a later end of the circuit is no failure of this PoP.
    fn pass_on(&self, permit: &Arc<RelayPermit>, near: TcpStream, received: &[u8]) -> Result<(), Error> {
        let snapshot = self.context.snapshot();
        let _open = self.circuits.enter(permit, snapshot.config.limits.max_circuits)?;
        let (far, reach) = self.onward(permit, &snapshot)?;
        let (near, far) = (Arc::new(near), Arc::new(far));
        for sock in [&near, &far] {
            prepare(sock);
        }
        (&*far).write_all(received).map_err(|error| lost("send", &error))?;
        let on_bytes = |count| {
            permit.paced.bytes.fetch_add(count, Ordering::Relaxed);
            Counters::add(&self.context.counters.relayed_bytes_total, count);
        };
        on_bytes(received.len() as u64);
        Counters::add(&self.context.counters.circuits_total, 1);
        let _shared = permit.paced.share(&near, &far);
        // The session may end before its circuits; they are cut only when a principal is no longer trusted.
        let is_stopped = || permit.cut.load(Ordering::Relaxed);
        if let Err(error) = couple(&near, &far, IDLE, is_stopped, on_bytes) {
            tracing::debug!(to = %permit.asked.to, %error, "a circuit broke");
        }
        // If the next relay could not connect, it sends the reason.
        reach.and_then(|reach| reach.word()).map_or(Ok(()), Err)
    }

    /// A connection to the destination, with the route unless an agent was called.
    fn onward(&self, permit: &RelayPermit, now: &Snapshot) -> Result<(TcpStream, Option<Transport>), Error> {
        match &permit.asked.to {
            agent @ Principal::Agent { .. } => self.call_agent(agent).map(|far| (far, None)),
            _ => {
                let ways = RouteContext {
                    further: permit.asked.further,
                    targets: Some(self.targets(now)),
                    ..self.ways(now)
                };
                let (far, reach) = permit.dial(&self.dialler(now)?.with_ways(ways))?;
                Ok((far, Some(reach)))
            }
        }
    }

    fn targets(&self, now: &Snapshot) -> Targets {
        Targets { inside: now.config.relay_private.clone(), proofs: self.circuits.proofs.clone() }
    }
}

fn prepare(sock: &TcpStream) {
    let _ = sock.set_nodelay(true);
    prepare_sending(sock, is_far(rtt(sock)));
    keep_alive(sock);
}

/// Attributes a failure of this PoP as a client to this site.
fn of_here(error: Error, site: &str) -> Error {
    match error.side.as_str() {
        "client" => Error { side: site.into(), ..error },
        _ => error.at(site),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_mover::testing::{PATIENCE, connections};
    use renkei_net::control::split;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicUsize;

    /// A permit for `count` circuits to a site, with tickets of its own.
    fn permit(principal: &str, seed: u8, count: u16, link: &Arc<ControlSender>) -> Arc<RelayPermit> {
        let to = Principal::parse("osaka").unwrap();
        let asked = CircuitRequest { to, seed: [seed; 32], count, further: 0, id: 1 };
        Arc::new(RelayPermit::new(Principal::parse(principal).unwrap(), asked, link.clone()))
    }

    /// Counts itself as long as it lives.
    struct Place(Arc<AtomicUsize>);

    impl Drop for Place {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A connection that has just arrived and holds a place.
    fn early(places: &Arc<AtomicUsize>) -> Early {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        places.fetch_add(1, Ordering::Relaxed);
        Early { sock, received: Vec::new(), since: Instant::now(), place: Box::new(Place(places.clone())) }
    }

    fn link() -> (Arc<ControlSender>, TlsEnds) {
        let (near, far) = connections(1).remove(0);
        let (link, receiver) = split(near, PATIENCE).unwrap();
        (link, (Box::new(receiver), Box::new(far)))
    }

    type TlsEnds = (Box<renkei_net::control::ControlReceiver>, Box<renkei_net::tls::TlsStream>);

    #[test]
    fn a_ticket_works_once_and_ends_with_its_session() {
        let (circuits, places, (link, _ends)) = (Circuits::default(), Arc::default(), link());
        let (passing, came) = circuits.grant(permit("alice@kek", 1, 2, &link));
        assert!(came.is_empty());
        assert!(circuits.take(ticket(&[1; 32], 0), early(&places)).is_some());
        assert!(circuits.take(ticket(&[1; 32], 0), early(&places)).is_none(), "it was used");
        assert!(circuits.take(ticket(&[1; 32], 2), early(&places)).is_none(), "only two were given");
        drop(passing);
        assert!(circuits.take(ticket(&[1; 32], 1), early(&places)).is_none(), "its session has ended");
    }

    #[test]
    fn an_early_circuit_waits_for_its_permit_or_a_timeout() {
        let (circuits, places, (link, _ends)) = (Circuits::default(), Arc::default(), link());
        for index in 0..2 {
            assert!(circuits.take(ticket(&[1; 32], index), early(&places)).is_none());
        }
        assert!(circuits.take([9; 32], early(&places)).is_none());
        let (_passing, came) = circuits.grant(permit("alice@kek", 1, 2, &link));
        assert_eq!((came.len(), places.load(Ordering::Relaxed)), (2, 3));
        drop(came);
        assert_eq!((circuits.refuse_late(), places.load(Ordering::Relaxed)), (0, 1));
        let late = Instant::now() - SPOKEN_FOR_WITHIN;
        circuits.lock().early.values_mut().for_each(|early| early.since = late);
        assert_eq!((circuits.refuse_late(), places.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn no_more_are_open_than_the_limit_and_half_of_them_for_one() {
        let (circuits, (link, _ends)) = (Circuits::default(), link());
        let [one, two, bob] = [("alice@kek", 1), ("alice@kek", 2), ("bob@titech", 3)]
            .map(|(who, seed)| permit(who, seed, 8, &link));
        let _passing: Vec<_> = [&one, &two, &bob].map(|permit| circuits.grant(permit.clone())).into();
        let enter = |permit: &Arc<RelayPermit>| circuits.enter(permit, 4);
        let (first, _second) = (enter(&one).unwrap(), enter(&two).unwrap());
        let code = |permit: &Arc<RelayPermit>| enter(permit).err().map(|error| error.code);
        assert_eq!(code(&one), Some(Code::CircuitLimit), "half of them, over both sessions");
        let _others = [enter(&bob).unwrap(), enter(&bob).unwrap()];
        assert_eq!(code(&bob), Some(Code::CircuitLimit));
        drop(first);
        assert_eq!(code(&two), None, "a place came free");
    }

    #[test]
    fn relayed_transfers_are_listed_until_their_last_circuit_ends() {
        let (circuits, (link, _ends)) = (Circuits::default(), link());
        let permit = permit("alice@kek", 1, 1, &link);
        let (passing, _) = circuits.grant(permit.clone());
        let open = circuits.enter(&permit, 4).unwrap();
        permit.paced.bytes.fetch_add(7, Ordering::Relaxed);
        drop(passing);
        let [listed] = &circuits.list(|_| true)[..] else { panic!("the circuit goes on") };
        assert_eq!((listed.circuits, listed.bytes, listed.principal.as_str()), (1, 7, "alice@kek"));
        assert!(circuits.list(|principal| principal.user_name() == Some("bob")).is_empty());
        drop(open);
        circuits.refuse_late();
        assert!(circuits.list(|_| true).is_empty());
    }

    #[test]
    fn circuits_of_untrusted_sites_are_closed() {
        let (circuits, (link, _ends)) = (Circuits::default(), link());
        let [alice, bob] =
            [("alice@kek", 1), ("bob@titech", 2)].map(|(who, seed)| permit(who, seed, 1, &link));
        let _passing = [&alice, &bob].map(|permit| circuits.grant(permit.clone()));
        circuits.end(|principal, _| principal.site().as_str() == "titech");
        assert!(!alice.cut.load(Ordering::Relaxed) && bob.cut.load(Ordering::Relaxed));
    }
}
