//! Places for connections of unauthenticated peers.
//!
//! `core::admission` has the policy: each new connection gets a place, and where none is left the oldest connection
//! of the address with the most connections is ended. An IPv6 address counts as its /64 network, all of which one
//! machine may use. Addresses from which a peer authenticated within a day have a table of places of their own. HTTP
//! clients and sites that come with an invitation have one each, so that no kind starves another. An HTTP connection
//! with an authenticated request may last for days: it moves to a table without a timeout.

use renkei_core::admission::{Admission, Moment, PeerId, Proved, Terms};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Timeout for a peer's first message: several round trips of the longest paths, each lost twice.
const GREETED_WITHIN: Duration = Duration::from_secs(20);
/// The same under pressure, where all places are taken: three round trips of half a second, and a little.
const GREETED_UNDER_PRESSURE: Duration = Duration::from_secs(2);
/// Places of a table of connections before their first message; each costs a task and about 20 KiB.
const MAX_GREETING: usize = 1024;
/// Maximum of concurrent HTTP connections without an authenticated request, and their lifetime.
const MAX_HTTP: usize = 128;
const HTTP_WITHIN: Duration = Duration::from_secs(70);
/// Maximum of concurrent HTTP connections of authenticated clients; each costs up to 6 MiB while it moves data fast.
const MAX_HTTP_CLIENTS: usize = 4096;
/// Maximum of concurrent introductions of invited sites; each costs a thread.
const MAX_INTRODUCED: usize = 32;
/// Maximum of concurrent certificate verifications; each costs a thread for a moment.
const MAX_JUDGED: usize = 64;
/// How long an address counts as proved, and how many such addresses are remembered.
const PROVED_FOR: Duration = Duration::from_secs(24 * 3600);
const MAX_PROVED: usize = 4096;
/// Interval of logging that connections are ended to make room.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The table of places of a connection, by its phase and origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    /// Unauthenticated, from an unknown address.
    Unknown,
    /// Unauthenticated, from an address where a peer has authenticated before.
    Known,
    /// HTTP, before a request was authenticated.
    Http,
    /// HTTP, of an authenticated client.
    HttpClients,
    /// The introduction of an invited site.
    Introduced,
}

impl Table {
    const ALL: [Table; 5] =
        [Table::Unknown, Table::Known, Table::Http, Table::HttpClients, Table::Introduced];

    fn terms(self) -> Terms {
        let terms = |places, longest, shortest| Terms { places, longest, shortest };
        match self {
            Table::Unknown | Table::Known => terms(MAX_GREETING, GREETED_WITHIN, GREETED_UNDER_PRESSURE),
            Table::Http => terms(MAX_HTTP, HTTP_WITHIN, GREETED_UNDER_PRESSURE),
            Table::HttpClients => terms(MAX_HTTP_CLIENTS, Duration::MAX, Duration::MAX),
            Table::Introduced => terms(MAX_INTRODUCED, GREETED_WITHIN, GREETED_UNDER_PRESSURE),
        }
    }
}

/// Ends a connection that is evicted.
type End = Box<dyn FnOnce() + Send>;

/// All connections of unauthenticated peers.
#[derive(Clone)]
pub(super) struct PendingPeers {
    state: Arc<Mutex<State>>,
    judged: Arc<Semaphore>,
    started: Instant,
}

struct State {
    tables: [Places; Table::ALL.len()],
    proved: Proved<IpAddr>,
    ended: u64,
    said: Option<Instant>,
}

/// One table, with the callbacks that end its connections.
struct Places {
    admission: Admission<IpAddr>,
    ends: HashMap<PeerId, Option<End>>,
}

/// A connection's place; released on drop.
pub struct Slot {
    all: PendingPeers,
    machine: IpAddr,
    table: Table,
    guest: PeerId,
    judged: Option<OwnedSemaphorePermit>,
}

impl PendingPeers {
    pub(super) fn new() -> Self {
        let places = |table: Table| Places { admission: Admission::new(table.terms()), ends: HashMap::new() };
        let state = State {
            tables: Table::ALL.map(places),
            proved: Proved::new(MAX_PROVED, PROVED_FOR),
            ended: 0,
            said: None,
        };
        PendingPeers {
            state: Arc::new(Mutex::new(state)),
            judged: Arc::new(Semaphore::new(MAX_JUDGED)),
            started: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// Gives a connection a place; others may be evicted for it.
    pub(super) fn let_in(&self, address: IpAddr) -> Slot {
        let (machine, now) = (machine(address), self.now());
        let mut state = self.lock();
        let table = if state.proved.is_proved(&machine, now) { Table::Known } else { Table::Unknown };
        let (guest, ends) = state.enter(table, machine, None, now);
        drop(state);
        end_all(ends);
        Slot { all: self.clone(), machine, table, guest, judged: None }
    }

    /// Number of connections that were evicted to make room, or because they took too long under pressure.
    pub(super) fn ended(&self) -> u64 {
        self.lock().ended
    }
}

impl State {
    fn places(&mut self, table: Table) -> &mut Places {
        &mut self.tables[table as usize]
    }

    /// Gives a place; returns the callbacks that end the evicted connections, to be called without the lock.
    fn enter(&mut self, table: Table, machine: IpAddr, end: Option<End>, now: Moment) -> (PeerId, Vec<End>) {
        let places = self.places(table);
        let entered = places.admission.enter(machine, now);
        places.ends.insert(entered.guest, end);
        let gone: Vec<_> = entered.ended.iter().filter_map(|guest| places.ends.remove(guest)).collect();
        if !gone.is_empty() {
            self.ended += gone.len() as u64;
            self.say(table, machine);
        }
        (entered.guest, gone.into_iter().flatten().collect())
    }

    fn say(&mut self, table: Table, machine: IpAddr) {
        if self.said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            return;
        }
        self.said = Some(Instant::now());
        let ended = self.ended;
        tracing::warn!(
            waiting_for = ?table, newest = %machine, ended,
            "unauthenticated connections were closed: the oldest of the address with most of them first"
        );
    }
}

fn end_all(ends: Vec<End>) {
    ends.into_iter().for_each(|end| end());
}

impl Slot {
    /// Sets how the connection is ended if it is evicted; it is ended at once if it has been already.
    pub(super) fn end_by(&self, end: impl FnOnce() + Send + 'static) {
        let mut state = self.all.lock();
        match state.places(self.table).ends.get_mut(&self.guest) {
            Some(place) => *place = Some(Box::new(end)),
            None => {
                drop(state);
                end();
            }
        }
    }

    /// Waits for a permit to verify the certificate, which costs a thread.
    pub(super) async fn be_judged(mut self) -> Self {
        // The semaphore is never closed.
        self.judged = self.all.judged.clone().acquire_owned().await.ok();
        self
    }

    /// The peer is authenticated: its address is remembered as proved.
    pub(super) fn prove(self) {
        let now = self.all.now();
        self.all.lock().proved.note(self.machine, now);
    }

    /// Moves the connection to the table of HTTP.
    pub(super) fn into_http(self) -> Self {
        self.change(Table::Http)
    }

    /// Moves the connection to the table of authenticated HTTP clients.
    pub(super) fn into_http_client(self) -> Self {
        // Each authenticated request comes here; the lock is that of all connections.
        if self.table == Table::HttpClients {
            return self;
        }
        let now = self.all.now();
        self.all.lock().proved.note(self.machine, now);
        self.change(Table::HttpClients)
    }

    /// Moves the connection to the table of introductions.
    pub(super) fn into_introduced(self) -> Self {
        self.change(Table::Introduced)
    }

    fn change(mut self, table: Table) -> Self {
        if self.table == table {
            return self;
        }
        let now = self.all.now();
        let mut state = self.all.lock();
        let before = state.places(self.table);
        // An evicted connection is ended already.
        if before.admission.leave(self.guest) {
            let end = before.ends.remove(&self.guest).flatten();
            let (guest, ends) = state.enter(table, self.machine, end, now);
            drop(state);
            (self.table, self.guest) = (table, guest);
            end_all(ends);
        } else {
            drop(state);
        }
        self.judged = None;
        self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        let places = state.places(self.table);
        places.admission.leave(self.guest);
        let end = places.ends.remove(&self.guest);
        drop(state);
        // Dropped without the lock: the callback may own another slot.
        drop(end);
    }
}

/// The unit that counts as one machine: an IPv4 address, an IPv6 network of 64 bits.
fn machine(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A connection that increments `ended` when it is evicted.
    fn come(pending: &PendingPeers, address: &str, ended: &Arc<AtomicUsize>) -> Slot {
        let slot = pending.let_in(address.parse().unwrap());
        let ended = ended.clone();
        slot.end_by(move || count(&ended));
        slot
    }

    fn count(ended: &AtomicUsize) {
        ended.fetch_add(1, Ordering::Relaxed);
    }

    fn taken(pending: &PendingPeers, table: Table) -> usize {
        pending.lock().places(table).admission.len()
    }

    #[test]
    fn one_network_displaces_only_itself() {
        let (pending, [quiet, greedy]) = (PendingPeers::new(), [(); 2].map(|()| Arc::default()));
        let other = come(&pending, "192.0.2.1", &quiet);
        let address = |host: usize| format!("2001:db8::{host:x}");
        let slots: Vec<Slot> =
            (0..MAX_GREETING + 100).map(|host| come(&pending, &address(host), &greedy)).collect();
        let counts = [&quiet, &greedy].map(|ended| ended.load(Ordering::Relaxed));
        assert_eq!((counts, pending.ended()), ([0, 101], 101));
        assert_eq!(taken(&pending, Table::Unknown), MAX_GREETING);
        drop((slots, other));
        assert!(pending.lock().tables.iter().all(|places| places.ends.is_empty()));
    }

    #[test]
    fn authenticated_peers_have_reserved_slots() {
        let (pending, [quiet, greedy]) = (PendingPeers::new(), [(); 2].map(|()| Arc::default()));
        come(&pending, "192.0.2.1", &quiet).prove();
        let again = come(&pending, "192.0.2.1", &quiet);
        assert_eq!((again.table, taken(&pending, Table::Unknown)), (Table::Known, 0));
        // From as many addresses as there are places, one connection each.
        let address = |host: usize| format!("198.51.{}.{}", host / 250, host % 250);
        let slots: Vec<Slot> =
            (0..MAX_GREETING + 10).map(|host| come(&pending, &address(host), &greedy)).collect();
        assert_eq!([&quiet, &greedy].map(|ended| ended.load(Ordering::Relaxed)), [0, 10]);
        drop(slots);
    }

    #[test]
    fn each_kind_has_its_own_slots_and_releases_them() {
        let (pending, ended) = (PendingPeers::new(), Arc::default());
        let pages: Vec<Slot> =
            (0..=MAX_HTTP).map(|_| come(&pending, "192.0.2.1", &ended).into_http()).collect();
        assert_eq!((ended.load(Ordering::Relaxed), taken(&pending, Table::Unknown)), (1, 0));
        let introduced = come(&pending, "192.0.2.1", &ended).into_introduced();
        assert_eq!((ended.load(Ordering::Relaxed), taken(&pending, Table::Introduced)), (1, 1));
        drop((pages, introduced));
        assert_eq!((taken(&pending, Table::Http), taken(&pending, Table::Introduced)), (0, 0));
    }

    #[test]
    fn authenticated_http_clients_are_not_ended_by_others() {
        let (pending, [own, others]) = (PendingPeers::new(), [(); 2].map(|()| Arc::default()));
        let client = come(&pending, "192.0.2.1", &own).into_http().into_http_client();
        let again = client.into_http_client();
        let pages: Vec<Slot> =
            (0..2 * MAX_HTTP).map(|_| come(&pending, "192.0.2.1", &others).into_http()).collect();
        assert_eq!([&own, &others].map(|ended| ended.load(Ordering::Relaxed)), [0, MAX_HTTP]);
        let days = Duration::from_secs(30 * 24 * 3600);
        assert!(pending.lock().places(Table::HttpClients).admission.patience() > days);
        drop((pages, again));
        assert_eq!(taken(&pending, Table::HttpClients), 0);
    }

    #[test]
    fn a_peer_dropped_before_its_end_is_registered_ends_then() {
        let (pending, ended) = (PendingPeers::new(), Arc::default());
        let first = pending.let_in("192.0.2.1".parse().unwrap());
        let slots: Vec<Slot> = (0..MAX_GREETING).map(|_| come(&pending, "192.0.2.1", &ended)).collect();
        assert_eq!((pending.ended(), ended.load(Ordering::Relaxed)), (1, 0));
        let late = ended.clone();
        first.end_by(move || count(&late));
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        drop(slots);
    }

    #[tokio::test]
    async fn handshakes_are_limited_by_the_number_of_threads() {
        let (pending, ended) = (PendingPeers::new(), Arc::default());
        let mut judged = Vec::new();
        for _ in 0..MAX_JUDGED {
            judged.push(come(&pending, "192.0.2.1", &ended).be_judged().await);
        }
        let next = come(&pending, "192.0.2.2", &ended).be_judged();
        let mut next = std::pin::pin!(next);
        let within = Duration::from_millis(20);
        assert!(tokio::time::timeout(within, next.as_mut()).await.is_err());
        judged.pop().unwrap().prove();
        assert!(tokio::time::timeout(GREETED_WITHIN, next).await.is_ok());
    }
}
