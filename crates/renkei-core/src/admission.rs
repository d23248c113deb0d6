//! Admission control for unauthenticated connections, when more come than there are places.
//!
//! A *guest* is an unauthenticated connection from an address. It has to authenticate within its *patience* (a
//! timeout), which shrinks as the places fill up. A new guest always gets a place: if none is left, the oldest guest
//! of the address with the most guests is evicted. So an attacker with few addresses evicts its own connections, and
//! a peer that authenticates at once has left before its turn. Addresses that authenticated before use a second table
//! ([`Proved`] remembers them), which others cannot fill.
//!
//! Guarantees: never more guests than places; the newest guest is never evicted for itself. Non-goals: connections,
//! time and the kind of address; the caller has those.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A point in time, as the duration since a fixed one.
pub type Moment = Duration;

/// A guest, numbered in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u64);

/// Limits on guests.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Maximum number of guests; at least one.
    pub places: usize,
    /// Patience when at most a quarter of the places is taken.
    pub longest: Duration,
    /// Patience when all places are taken.
    pub shortest: Duration,
}

/// A table of guests, by addresses `K`.
pub struct Admission<K> {
    terms: Terms,
    next: u64,
    guests: BTreeMap<PeerId, PendingPeer<K>>,
    of_address: BTreeMap<K, BTreeSet<PeerId>>,
}

struct PendingPeer<K> {
    address: K,
    since: Moment,
}

/// The result of a guest's arrival.
#[derive(Debug, PartialEq, Eq)]
pub struct Entered {
    /// The new guest.
    pub guest: PeerId,
    /// The guests to disconnect: those whose patience expired, and the evicted one.
    pub ended: Vec<PeerId>,
}

impl<K: Ord + Clone> Admission<K> {
    /// An empty table.
    pub fn new(terms: Terms) -> Self {
        Admission { terms, next: 0, guests: BTreeMap::new(), of_address: BTreeMap::new() }
    }

    /// Gives a place to a guest from `address`.
    pub fn enter(&mut self, address: K, now: Moment) -> Entered {
        let mut ended = self.overdue(now);
        let guest = PeerId(self.next);
        self.next += 1;
        self.of_address.entry(address.clone()).or_default().insert(guest);
        self.guests.insert(guest, PendingPeer { address, since: now });
        while self.guests.len() > self.terms.places.max(1) {
            let Some(oldest) = self.oldest_of_the_greediest() else { break };
            self.leave(oldest);
            ended.push(oldest);
        }
        Entered { guest, ended }
    }

    /// Frees a guest's place; returns whether it had one.
    pub fn leave(&mut self, guest: PeerId) -> bool {
        let Some(PendingPeer { address, .. }) = self.guests.remove(&guest) else { return false };
        if let Some(own) = self.of_address.get_mut(&address) {
            own.remove(&guest);
            if own.is_empty() {
                self.of_address.remove(&address);
            }
        }
        true
    }

    /// Removes the guests whose patience expired. Each removal lowers the load, and so extends the patience of the
    /// rest.
    fn overdue(&mut self, now: Moment) -> Vec<PeerId> {
        let mut ended = Vec::new();
        while let Some((&oldest, guest)) = self.guests.first_key_value() {
            if now.saturating_sub(guest.since) <= self.patience() {
                break;
            }
            self.leave(oldest);
            ended.push(oldest);
        }
        ended
    }

    /// The present patience: the longest up to a quarter of the places, then linearly down to the shortest.
    pub fn patience(&self) -> Duration {
        let Terms { places, longest, shortest } = self.terms;
        let free = places.saturating_sub(self.guests.len());
        let calm = places - places / 4;
        if free >= calm {
            return longest;
        }
        let spare = longest.saturating_sub(shortest);
        let share = u32::try_from(free).unwrap_or(u32::MAX);
        shortest + spare * share / u32::try_from(calm).unwrap_or(u32::MAX)
    }

    /// The oldest guest of the address with the most guests; of several such addresses, the one whose oldest guest
    /// came first.
    fn oldest_of_the_greediest(&self) -> Option<PeerId> {
        let most = self.of_address.values().filter_map(|own| Some((own.len(), Reverse(*own.first()?)))).max();
        most.map(|(_, Reverse(oldest))| oldest)
    }

    /// Number of guests.
    pub fn len(&self) -> usize {
        self.guests.len()
    }

    /// Whether there are no guests.
    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }
}

/// Addresses from which a peer authenticated recently.
pub struct Proved<K> {
    most: usize,
    term: Duration,
    last: BTreeMap<K, Moment>,
}

impl<K: Ord + Clone> Proved<K> {
    /// Remembers at most `most` addresses, each for `term`.
    pub fn new(most: usize, term: Duration) -> Self {
        Proved { most, term, last: BTreeMap::new() }
    }

    /// A peer at this address authenticated.
    pub fn note(&mut self, address: K, now: Moment) {
        self.last.insert(address, now);
        if self.last.len() > self.most {
            let oldest = self.last.iter().min_by_key(|(_, last)| **last).map(|(address, _)| address.clone());
            oldest.map(|oldest| self.last.remove(&oldest));
        }
    }

    /// Whether a peer at this address authenticated within the term.
    pub fn is_proved(&self, address: &K, now: Moment) -> bool {
        self.last.get(address).is_some_and(|last| now.saturating_sub(*last) <= self.term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms =
        Terms { places: 100, longest: Duration::from_secs(20), shortest: Duration::from_secs(2) };

    fn ms(ms: u64) -> Moment {
        Duration::from_millis(ms)
    }

    /// Enters, and returns only the new guest.
    fn come(all: &mut Admission<u32>, address: u32, now: Moment) -> PeerId {
        all.enter(address, now).guest
    }

    #[test]
    fn timeouts_shrink_as_slots_fill_up_and_grow_again() {
        let mut all = Admission::new(TERMS);
        let guests: Vec<PeerId> = (0..25).map(|_| come(&mut all, 1, ms(0))).collect();
        assert_eq!(all.patience(), TERMS.longest);
        let more: Vec<PeerId> = (0..75).map(|_| come(&mut all, 2, ms(0))).collect();
        assert_eq!(all.patience(), TERMS.shortest);
        more.into_iter().take(38).for_each(|guest| assert!(all.leave(guest)));
        let half = all.patience();
        assert!(half > TERMS.shortest * 4 && half < TERMS.longest * 3 / 4, "{half:?}");
        assert!(all.leave(guests[0]) && !all.leave(guests[0]));
    }

    #[test]
    fn a_timed_out_peer_is_dropped_when_the_next_one_comes() {
        let mut all = Admission::new(TERMS);
        let first = come(&mut all, 1, ms(0));
        assert_eq!(all.enter(2, ms(20_000)).ended, []);
        assert_eq!(all.enter(3, ms(20_001)).ended, [first]);
        // Under load the same wait is too long.
        for address in 10..107 {
            come(&mut all, address, ms(20_002));
        }
        let ended = all.enter(4, ms(24_000)).ended;
        assert!(ended.len() >= 2 && all.len() < TERMS.places, "{ended:?}");
    }

    #[test]
    fn the_oldest_peer_of_the_busiest_address_is_dropped() {
        let mut all = Admission::new(TERMS);
        let quiet: Vec<PeerId> = (0..10).map(|address| come(&mut all, address, ms(0))).collect();
        let greedy: Vec<PeerId> = (0..60).map(|_| come(&mut all, 100, ms(1))).collect();
        for _ in 0..30 {
            come(&mut all, 200, ms(2));
        }
        assert_eq!(all.enter(300, ms(3)).ended, [greedy[0]]);
        assert_eq!(all.enter(100, ms(3)).ended, [greedy[1]]);
        assert_eq!(all.enter(200, ms(3)).ended, [greedy[2]]);
        assert!(quiet.into_iter().all(|guest| all.leave(guest)));
    }

    #[test]
    fn the_newest_peer_is_never_dropped_for_itself() {
        let mut all = Admission::new(Terms { places: 1, ..TERMS });
        let first = come(&mut all, 1, ms(0));
        let second = all.enter(1, ms(1));
        assert_eq!(second.ended, [first]);
        let third = all.enter(2, ms(2));
        assert_eq!((third.ended, all.len()), (vec![second.guest], 1));
    }

    /// Eight addresses connect again and again and stay; honest peers need 600 ms and are never evicted.
    #[test]
    fn a_slow_peer_is_admitted_during_an_attack() {
        let mut all = Admission::new(TERMS);
        let mut honest: Vec<(PeerId, Moment)> = Vec::new();
        let mut served = 0;
        for tick in 0..10_000 {
            let now = ms(tick * 2);
            let mut ended = all.enter(100 + (tick % 8) as u32, now).ended;
            if tick % 25 == 0 {
                let entered = all.enter((tick / 25 % 5) as u32, now);
                ended.extend(&entered.ended);
                honest.push((entered.guest, now));
            }
            assert!(honest.iter().all(|(guest, _)| !ended.contains(guest)), "at {now:?}");
            honest.retain(|(guest, since)| {
                let done = now - *since >= ms(600);
                if done {
                    assert!(all.leave(*guest));
                    served += 1;
                }
                !done
            });
            assert!(all.len() <= TERMS.places);
        }
        assert!(served > 300, "{served}");
    }

    #[test]
    fn an_address_is_proven_for_a_time_and_the_oldest_is_evicted_first() {
        let mut proved = Proved::new(2, Duration::from_secs(60));
        (1..=3).for_each(|address| proved.note(address, ms(address * 1000)));
        let known = |now| [1, 2, 3].map(|address| proved.is_proved(&address, now));
        assert_eq!(known(ms(4000)), [false, true, true]);
        assert_eq!(known(ms(62_500)), [false, false, true]);
    }
}
