//! Places for connections of peers that have not proved who they are.
//!
//! There are so many in all, and each address has a share of them, so that one machine cannot keep the others out. An
//! IPv6 address counts as its /64 network, all of which one machine may use.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at a time that wait for a place or have not sent their first message; each costs a task and 4 KiB.
const MAX_GREETING: usize = 4096;
/// `renkei/1` connections at a time that have not proved who they are; each costs a thread.
const MAX_UNPROVED: usize = 256;
/// HTTP connections at a time.
const MAX_HTTP: usize = 128;
/// Connections of one address, of all kinds.
const MAX_OF_ONE: usize = MAX_GREETING / 8;
/// Places one address may have, to prove who it is: several long paths' worth of data streams dialled at once.
const MAX_UNPROVED_OF_ONE: usize = MAX_UNPROVED / 2;
/// Places one address may have for HTTP.
const MAX_HTTP_OF_ONE: usize = MAX_HTTP / 2;

/// All connections of strangers.
#[derive(Clone)]
pub(super) struct Strangers {
    greeting: Arc<Semaphore>,
    places: Places,
    sources: Arc<Mutex<HashMap<IpAddr, Source>>>,
}

/// Places to work in, of each kind.
#[derive(Clone)]
struct Places {
    unproved: Arc<Semaphore>,
    http: Arc<Semaphore>,
}

impl Places {
    fn new(unproved: usize, http: usize) -> Self {
        Places { unproved: Arc::new(Semaphore::new(unproved)), http: Arc::new(Semaphore::new(http)) }
    }

    fn of_kind(&self, renkei: bool) -> Arc<Semaphore> {
        if renkei { self.unproved.clone() } else { self.http.clone() }
    }
}

/// The connections of one address.
struct Source {
    open: usize,
    places: Places,
}

/// A connection that was let in, to say what it wants.
pub(super) struct Guest {
    room: OwnedSemaphorePermit,
    share: Share,
}

/// A connection's part of its address's share.
struct Share {
    all: Strangers,
    address: IpAddr,
    places: Places,
}

/// A place to work in; given back when the peer has proved who it is, or has ended.
pub struct Seat {
    _of_all: OwnedSemaphorePermit,
    _of_its_own: OwnedSemaphorePermit,
    _share: Share,
}

impl Strangers {
    pub(super) fn new() -> Self {
        Strangers {
            greeting: Arc::new(Semaphore::new(MAX_GREETING)),
            places: Places::new(MAX_UNPROVED, MAX_HTTP),
            sources: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Source>> {
        self.sources.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Waits for room for one more connection.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.greeting.clone().acquire_owned().await.ok()
    }

    /// Lets a connection in; `None` if its address has its share.
    pub(super) fn let_in(&self, address: IpAddr, room: OwnedSemaphorePermit) -> Option<Guest> {
        let address = machine(address);
        let mut sources = self.lock();
        let source = sources
            .entry(address)
            .or_insert_with(|| Source { open: 0, places: Places::new(MAX_UNPROVED_OF_ONE, MAX_HTTP_OF_ONE) });
        if source.open >= MAX_OF_ONE {
            return None;
        }
        source.open += 1;
        let share = Share { all: self.clone(), address, places: source.places.clone() };
        Some(Guest { room, share })
    }
}

impl Guest {
    /// Waits for a place of its kind, first among those of its address.
    pub(super) async fn seat(self, renkei: bool) -> Option<Seat> {
        let Guest { room, share } = self;
        let of_its_own = share.places.of_kind(renkei).acquire_owned().await.ok()?;
        let of_all = share.all.places.of_kind(renkei).acquire_owned().await.ok()?;
        drop(room);
        Some(Seat { _of_all: of_all, _of_its_own: of_its_own, _share: share })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut sources = self.all.lock();
        if let Some(source) = sources.get_mut(&self.address) {
            source.open -= 1;
            if source.open == 0 {
                sources.remove(&self.address);
            }
        }
    }
}

/// What counts as one machine: an IPv4 address, an IPv6 network of 64 bits.
fn machine(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn guest(strangers: &Strangers, address: &str) -> Option<Guest> {
        strangers.let_in(address.parse().unwrap(), strangers.room().await.unwrap())
    }

    #[tokio::test]
    async fn one_address_has_its_share_and_no_more() {
        let strangers = Strangers::new();
        let mut guests = Vec::new();
        while let Some(guest) = guest(&strangers, "192.0.2.1").await {
            guests.push(guest);
        }
        assert_eq!(guests.len(), MAX_OF_ONE);
        assert!(guest(&strangers, "::ffff:192.0.2.1").await.is_none());
        assert!(guest(&strangers, "192.0.2.2").await.is_some());
        guests.pop();
        assert!(guest(&strangers, "192.0.2.1").await.is_some());
        drop(guests);
        assert!(strangers.lock().is_empty());
        assert_eq!(strangers.greeting.available_permits(), MAX_GREETING);
    }

    #[tokio::test]
    async fn one_network_cannot_take_all_places() {
        let strangers = Strangers::new();
        let mut seats = Vec::new();
        for host in 0..MAX_UNPROVED_OF_ONE {
            seats.push(guest(&strangers, &format!("2001:db8::{host:x}")).await.unwrap().seat(true).await);
        }
        let within = Duration::from_millis(50);
        let soon = |guest: Guest| tokio::time::timeout(within, guest.seat(true));
        let page = guest(&strangers, "2001:db8::ffff:1").await.unwrap().seat(false);
        assert!(tokio::time::timeout(within, page).await.unwrap().is_some(), "HTTP has places of its own");
        assert!(soon(guest(&strangers, "2001:db8::ffff:1").await.unwrap()).await.is_err());
        assert!(soon(guest(&strangers, "2001:db8:0:1::1").await.unwrap()).await.unwrap().is_some());
        seats.pop();
        assert!(soon(guest(&strangers, "2001:db8::ffff:1").await.unwrap()).await.unwrap().is_some());
    }
}
