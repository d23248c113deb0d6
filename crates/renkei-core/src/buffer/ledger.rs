//! Reservations of room in the buffer: made before a transfer starts, charged to its owner until the last of its
//! bytes is off the disk.
//!
//! A transfer asks for room. It gets it at once, or waits in FIFO order: no request overtakes one that waits for
//! space, so that a large one is not starved by small ones; one that waits for its owner's quota blocks no other.
//! Reserved bytes are charged whether written or not; `write` is called before each write and never lets more onto
//! the disk than is charged. A leaving transfer (delivered, cancelled, expired, without an owner) is charged until
//! its files are gone. No transfer holds room while it waits for more: growing is granted at once or refused, so that
//! there is no deadlock.
//!
//! Times are milliseconds since 1970. Non-goals: files, and the order in which buffered transfers are forwarded.

use crate::error::{Code, Error};
use crate::ids::TransferId;
use crate::principal::Principal;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

const OP: &str = "reserve";

/// Limits of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in total.
    pub capacity: u64,
    /// Quota of one owner in bytes.
    pub quota: u64,
}

/// Answer to a request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The room is reserved.
    Granted,
    /// The request waits; [`Ledger::poll`] reports when it is granted.
    Waits(Shortage),
}

/// The reason why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shortage {
    /// The buffer lacks this many bytes.
    Space(u64),
    /// The owner's other transfers exceed the quota by this many bytes.
    Quota(u64),
    /// Earlier requests are waiting.
    Turn,
}

/// A persisted reservation, for recovery after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistedReservation {
    /// The transfer.
    pub id: TransferId,
    /// The owner that is charged.
    pub owner: Principal,
    /// Bytes reserved.
    pub bytes: u64,
    /// Its expiry.
    pub until_ms: u64,
}

/// Disk usage found after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// The transfer.
    pub id: TransferId,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// The room held by a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The transfer.
    pub id: TransferId,
    /// The owner that is charged; `None` for orphaned files.
    pub owner: Option<Principal>,
    /// Bytes charged.
    pub reserved: u64,
    /// Bytes on the disk.
    pub written: u64,
    /// Its expiry.
    pub until_ms: u64,
    /// Whether its files are being removed.
    pub leaving: bool,
}

/// A request that waits for room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The transfer.
    pub id: TransferId,
    /// The owner that asks.
    pub owner: Principal,
    /// Bytes wanted.
    pub bytes: u64,
    /// The shortage it waits for.
    pub shortage: Shortage,
}

/// The room of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    /// `None` for orphaned files.
    owner: Option<Principal>,
    reserved: u64,
    written: u64,
    until_ms: u64,
    leaving: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct QueuedRequest {
    id: TransferId,
    owner: Principal,
    bytes: u64,
    until_ms: u64,
}

/// All reservations of one buffer, and the queue of waiting requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    limits: Limits,
    holds: BTreeMap<TransferId, Hold>,
    waiting: VecDeque<QueuedRequest>,
    /// Granted after waiting, and not reported yet.
    granted: Vec<TransferId>,
}

impl Ledger {
    /// An empty buffer.
    pub fn new(limits: Limits) -> Self {
        Ledger { limits, holds: BTreeMap::new(), waiting: VecDeque::new(), granted: Vec::new() }
    }

    /// Recovers the buffer after a restart. Orphaned files on the disk are marked as leaving; known transfers are
    /// charged as before, or more if the disk has more.
    pub fn recover(limits: Limits, known: Vec<PersistedReservation>, found: &[DiskUsage]) -> Self {
        let mut ledger = Ledger::new(limits);
        for PersistedReservation { id, owner, bytes, until_ms } in known {
            let hold = Hold { owner: Some(owner), reserved: bytes, written: 0, until_ms, leaving: false };
            ledger.holds.insert(id, hold);
        }
        for DiskUsage { id, bytes } in found {
            let hold = ledger.holds.entry(*id).or_insert(Hold {
                owner: None,
                reserved: 0,
                written: 0,
                until_ms: 0,
                leaving: true,
            });
            hold.written = *bytes;
            hold.reserved = hold.reserved.max(*bytes);
        }
        ledger
    }

    /// Requests room for a transfer. Idempotent, unless a repeated request is for more.
    ///
    /// # Errors
    /// `BufferTooSmall` if it can never fit. `BufferFull` if a held reservation cannot grow now. `TransferBusy` while
    /// an earlier one of the transfer is leaving. `NotAllowed` if it belongs to another owner.
    pub fn ask(
        &mut self,
        id: TransferId,
        owner: &Principal,
        bytes: u64,
        until_ms: u64,
    ) -> Result<Answer, Error> {
        self.check_fits_ever(owner, bytes)?;
        self.granted.retain(|told| *told != id);
        if let Some(hold) = self.holds.get(&id) {
            let (same, leaving) = (hold.owner.as_ref() == Some(owner), hold.leaving);
            return match (same, leaving) {
                (true, false) => self.grow(&id, owner, bytes).map(|()| Answer::Granted),
                (true, true) => {
                    Err(refused(Code::TransferBusy, owner, "what it kept before is being removed"))
                }
                (false, _) => {
                    Err(refused(Code::NotAllowed, owner, "another owner has room for that transfer"))
                }
            };
        }
        let wish = QueuedRequest { id, owner: owner.clone(), bytes, until_ms };
        match self.waiting.iter().position(|other| other.id == id) {
            Some(at) if self.waiting[at].owner == *owner => self.waiting[at] = wish,
            Some(_) => return Err(refused(Code::NotAllowed, owner, "another owner waits for that transfer")),
            None => self.waiting.push_back(wish),
        }
        let shortage = self.settle().into_iter().find(|(waits, _)| *waits == id);
        self.granted.retain(|told| *told != id);
        Ok(shortage.map_or(Answer::Granted, |(_, shortage)| Answer::Waits(shortage)))
    }

    /// Grants the requests that fit now, and returns the shortage of each that still waits.
    fn settle(&mut self) -> Vec<(TransferId, Shortage)> {
        let (mut short, mut turn) = (Vec::new(), false);
        for wish in std::mem::take(&mut self.waiting) {
            let shortage = match self.shortage(&wish.owner, wish.bytes) {
                Some(Shortage::Quota(missing)) => Shortage::Quota(missing),
                Some(shortage) if !turn => {
                    turn = true;
                    shortage
                }
                _ if turn => Shortage::Turn,
                _ => {
                    let QueuedRequest { id, owner, bytes, until_ms } = wish;
                    self.granted.push(id);
                    let owner = Some(owner);
                    self.holds
                        .insert(id, Hold { owner, reserved: bytes, written: 0, until_ms, leaving: false });
                    continue;
                }
            };
            short.push((wish.id, shortage));
            self.waiting.push_back(wish);
        }
        short
    }

    /// The requests granted after waiting, and those that can never fit because the limits were lowered.
    pub fn poll(&mut self) -> Vec<(TransferId, Result<(), Error>)> {
        let mut told = Vec::new();
        for wish in std::mem::take(&mut self.waiting) {
            match self.check_fits_ever(&wish.owner, wish.bytes) {
                Ok(()) => self.waiting.push_back(wish),
                Err(never) => told.push((wish.id, Err(never))),
            }
        }
        self.settle();
        told.extend(self.granted.drain(..).map(|id| (id, Ok(()))));
        told
    }

    /// The shortage that a request waits for; `None` if it does not wait.
    pub fn waits_for(&self, id: &TransferId) -> Option<Shortage> {
        let at = self.waiting.iter().position(|wish| wish.id == *id)?;
        let blocked =
            |wish: &QueuedRequest| matches!(self.shortage(&wish.owner, wish.bytes), Some(Shortage::Space(_)));
        let own = self.shortage(&self.waiting[at].owner, self.waiting[at].bytes);
        match own {
            Some(Shortage::Quota(_)) => own,
            _ if self.waiting.iter().take(at).any(blocked) => Some(Shortage::Turn),
            own => own.or(Some(Shortage::Turn)),
        }
    }

    /// Permits `bytes` more to be written for a transfer; to be called before the write.
    ///
    /// # Errors
    /// `BufferFull` if its room is used up, and for a transfer without room.
    pub fn write(&mut self, id: &TransferId, bytes: u64) -> Result<(), Error> {
        let full = |cause: String| Error::new(Code::BufferFull, "write", "buffer", cause);
        let hold = self.holds.get_mut(id).filter(|hold| !hold.leaving);
        let hold = hold.ok_or_else(|| full("nothing is reserved for the transfer".into()))?;
        match hold.written.checked_add(bytes) {
            Some(written) if written <= hold.reserved => hold.written = written,
            _ => {
                return Err(full(format!(
                    "the {} bytes reserved for the transfer are used up",
                    hold.reserved
                )));
            }
        }
        Ok(())
    }

    /// Sets the bytes of a transfer found on the disk, capped at its reservation.
    pub fn counted(&mut self, id: &TransferId, bytes: u64) {
        if let Some(hold) = self.holds.get_mut(id) {
            hold.written = bytes.min(hold.reserved);
        }
    }

    /// The upload of a transfer is complete: its unused reservation is released.
    pub fn seal(&mut self, id: &TransferId) {
        if let Some(hold) = self.holds.get_mut(id) {
            hold.reserved = hold.written;
        }
    }

    /// Bytes of a transfer were delivered and removed from the disk.
    pub fn delivered(&mut self, id: &TransferId, bytes: u64) {
        if let Some(hold) = self.holds.get_mut(id) {
            let bytes = bytes.min(hold.written);
            (hold.written, hold.reserved) = (hold.written - bytes, hold.reserved - bytes);
        }
    }

    /// A transfer no longer needs its room: delivered or cancelled. Its files are to be removed now; returns whether
    /// there may be any. A waiting request is dropped.
    pub fn leave(&mut self, id: &TransferId) -> bool {
        self.waiting.retain(|wish| wish.id != *id);
        self.granted.retain(|told| told != id);
        let Some(hold) = self.holds.get_mut(id) else { return false };
        (hold.leaving, hold.reserved) = (true, hold.written);
        true
    }

    /// The files of a leaving transfer are removed.
    pub fn gone(&mut self, id: &TransferId) {
        if self.holds.get(id).is_some_and(|hold| hold.leaving) {
            self.holds.remove(id);
        }
    }

    /// Expires reservations, whose transfers become leaving, and waiting requests, which are dropped; returns both.
    pub fn expire(&mut self, now_ms: u64) -> Vec<TransferId> {
        let held = self.holds.iter().filter(|(_, hold)| !hold.leaving && hold.until_ms <= now_ms);
        let mut over: Vec<TransferId> = held.map(|(id, _)| *id).collect();
        over.extend(self.waiting.iter().filter(|wish| wish.until_ms <= now_ms).map(|wish| wish.id));
        for id in &over {
            self.leave(id);
        }
        over
    }

    /// The transfers whose files are to be removed.
    pub fn leaving(&self) -> Vec<TransferId> {
        self.holds.iter().filter(|(_, hold)| hold.leaving).map(|(id, _)| *id).collect()
    }

    /// Extends the expiry of a transfer at least to `until_ms`.
    pub fn keep(&mut self, id: &TransferId, until_ms: u64) {
        if let Some(hold) = self.holds.get_mut(id) {
            hold.until_ms = hold.until_ms.max(until_ms);
        }
    }

    /// All reservations.
    pub fn held(&self) -> Vec<Charge> {
        let held = |(id, hold): (&TransferId, &Hold)| {
            let Hold { owner, reserved, written, until_ms, leaving } = hold.clone();
            Charge { id: *id, owner, reserved, written, until_ms, leaving }
        };
        self.holds.iter().map(held).collect()
    }

    /// The reservation of one transfer.
    pub fn held_by(&self, id: &TransferId) -> Option<Charge> {
        let Hold { owner, reserved, written, until_ms, leaving } = self.holds.get(id)?.clone();
        Some(Charge { id: *id, owner, reserved, written, until_ms, leaving })
    }

    /// All waiting requests, in FIFO order.
    pub fn waiting(&self) -> Vec<Waiting> {
        let waiting = |wish: &QueuedRequest| {
            let QueuedRequest { id, owner, bytes, .. } = wish.clone();
            Waiting { id, owner, bytes, shortage: self.waits_for(&id).unwrap_or(Shortage::Turn) }
        };
        self.waiting.iter().map(waiting).collect()
    }

    /// The present limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes charged in total.
    pub fn used(&self) -> u64 {
        self.holds.values().map(|hold| hold.reserved).sum()
    }

    /// Bytes charged to one owner.
    pub fn used_by(&self, owner: &Principal) -> u64 {
        let own = self.holds.values().filter(|hold| hold.owner.as_ref() == Some(owner));
        own.map(|hold| hold.reserved).sum()
    }

    /// Bytes charged to each owner; `None` for orphaned files.
    pub fn owners(&self) -> BTreeMap<Option<Principal>, u64> {
        let mut owners = BTreeMap::new();
        for hold in self.holds.values() {
            *owners.entry(hold.owner.clone()).or_default() += hold.reserved;
        }
        owners
    }

    /// Changes the limits; existing reservations stay, even above them.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    fn grow(&mut self, id: &TransferId, owner: &Principal, bytes: u64) -> Result<(), Error> {
        let reserved = self.holds.get(id).map_or(0, |hold| hold.reserved);
        let more = bytes.saturating_sub(reserved);
        let waits =
            |wish: &QueuedRequest| matches!(self.shortage(&wish.owner, wish.bytes), Some(Shortage::Space(_)));
        if more > 0 && (self.shortage(owner, more).is_some() || self.waiting.iter().any(waits)) {
            return Err(refused(Code::BufferFull, owner, format!("no room for {more} bytes more")));
        }
        if let Some(hold) = self.holds.get_mut(id) {
            hold.reserved += more;
        }
        Ok(())
    }

    /// The shortage that keeps `bytes` more from being reserved for an owner now.
    fn shortage(&self, owner: &Principal, bytes: u64) -> Option<Shortage> {
        let over = |used: u64, limit: u64| used.saturating_add(bytes).saturating_sub(limit);
        let (quota, space) =
            (over(self.used_by(owner), self.limits.quota), over(self.used(), self.limits.capacity));
        match (quota, space) {
            (0, 0) => None,
            (0, missing) => Some(Shortage::Space(missing)),
            (missing, _) => Some(Shortage::Quota(missing)),
        }
    }

    fn check_fits_ever(&self, owner: &Principal, bytes: u64) -> Result<(), Error> {
        let most = self.limits.capacity.min(self.limits.quota);
        if bytes <= most {
            return Ok(());
        }
        Err(refused(Code::BufferTooSmall, owner, format!("{bytes} bytes, it holds {most} of one owner")))
    }
}

fn refused(code: Code, owner: &Principal, cause: impl std::fmt::Display) -> Error {
    Error::new(code, OP, owner, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { capacity: 100, quota: 60 };

    fn who(name: &str) -> Principal {
        Principal::parse(&format!("{name}@kek")).unwrap()
    }

    fn id(number: u8) -> TransferId {
        [number; 16]
    }

    fn ask(ledger: &mut Ledger, number: u8, owner: &str, bytes: u64) -> Result<Answer, Code> {
        ledger.ask(id(number), &who(owner), bytes, 1000).map_err(|error| error.code)
    }

    #[test]
    fn space_is_charged_from_the_reservation_to_the_removal() {
        let mut ledger = Ledger::new(LIMITS);
        assert_eq!(ask(&mut ledger, 1, "alice", 50), Ok(Answer::Granted));
        assert_eq!((ledger.used(), ledger.used_by(&who("alice")), ledger.used_by(&who("bob"))), (50, 50, 0));
        ledger.write(&id(1), 30).unwrap();
        ledger.write(&id(1), 20).unwrap();
        assert_eq!(ledger.write(&id(1), 1).unwrap_err().code, Code::BufferFull);
        ledger.delivered(&id(1), 15);
        assert_eq!(ledger.used(), 35);
        assert!(ledger.leave(&id(1)));
        assert_eq!((ledger.used(), ledger.leaving()), (35, vec![id(1)]));
        assert_eq!(ledger.write(&id(1), 0).unwrap_err().code, Code::BufferFull);
        assert_eq!(ask(&mut ledger, 1, "alice", 5), Err(Code::TransferBusy));
        ledger.gone(&id(1));
        assert_eq!((ledger.used(), ledger), (0, Ledger::new(LIMITS)));
    }

    #[test]
    fn unused_space_is_released_when_an_upload_is_complete() {
        let mut ledger = Ledger::new(LIMITS);
        ask(&mut ledger, 1, "alice", 50).unwrap();
        ledger.write(&id(1), 10).unwrap();
        ledger.seal(&id(1));
        assert_eq!(ledger.used(), 10);
        // A reservation that is not leaving is never dropped.
        ledger.gone(&id(1));
        assert_eq!(ledger.used(), 10);
    }

    #[test]
    fn repeated_reservations_count_once_and_may_grow() {
        let mut ledger = Ledger::new(LIMITS);
        for (bytes, used) in [(20, 20), (20, 20), (10, 20), (45, 45)] {
            assert_eq!(ask(&mut ledger, 1, "alice", bytes), Ok(Answer::Granted));
            assert_eq!(ledger.used(), used);
        }
        assert_eq!(ask(&mut ledger, 1, "bob", 20), Err(Code::NotAllowed));
        assert_eq!(ask(&mut ledger, 2, "bob", 50), Ok(Answer::Granted));
        assert_eq!(ask(&mut ledger, 1, "alice", 55), Err(Code::BufferFull));
        assert_eq!(ledger.used(), 95);
    }

    #[test]
    fn requests_that_never_fit_are_refused() {
        let mut ledger = Ledger::new(LIMITS);
        assert_eq!(ask(&mut ledger, 1, "alice", 61), Err(Code::BufferTooSmall));
        assert_eq!(ask(&mut ledger, 1, "alice", u64::MAX), Err(Code::BufferTooSmall));
        ask(&mut ledger, 1, "alice", 60).unwrap();
        ask(&mut ledger, 2, "bob", 60).unwrap();
        ledger.set_limits(Limits { capacity: 50, quota: 50 });
        let [(refused, error)] = &ledger.poll()[..] else { panic!() };
        assert_eq!((*refused, error.as_ref().unwrap_err().code), (id(2), Code::BufferTooSmall));
        assert_eq!((ledger.used(), ledger.waits_for(&id(2))), (60, None));
    }

    #[test]
    fn requests_for_space_are_first_in_first_out_and_a_quota_blocks_only_its_user() {
        let mut ledger = Ledger::new(LIMITS);
        ask(&mut ledger, 1, "alice", 50).unwrap();
        assert_eq!(ask(&mut ledger, 2, "alice", 20), Ok(Answer::Waits(Shortage::Quota(10))));
        assert_eq!(ask(&mut ledger, 3, "bob", 60), Ok(Answer::Waits(Shortage::Space(10))));
        assert_eq!(ask(&mut ledger, 4, "carol", 5), Ok(Answer::Waits(Shortage::Turn)));
        assert_eq!(ask(&mut ledger, 1, "alice", 51), Err(Code::BufferFull), "nor does who grows");
        assert_eq!(ledger.waits_for(&id(4)), Some(Shortage::Turn));
        assert!(ledger.poll().is_empty());
        ledger.leave(&id(3));
        assert_eq!(ledger.poll(), [(id(4), Ok(()))]);
        assert_eq!(ask(&mut ledger, 3, "bob", 45), Ok(Answer::Granted));
        ledger.leave(&id(1));
        ledger.gone(&id(1));
        assert_eq!(ledger.poll(), [(id(2), Ok(()))]);
        assert_eq!(ledger.used(), 70);
    }

    #[test]
    fn a_waiter_that_gets_space_on_another_request_is_notified() {
        let mut ledger = Ledger::new(LIMITS);
        ask(&mut ledger, 1, "alice", 60).unwrap();
        assert_eq!(ask(&mut ledger, 2, "bob", 60), Ok(Answer::Waits(Shortage::Space(20))));
        ledger.leave(&id(1));
        ledger.gone(&id(1));
        assert_eq!(ask(&mut ledger, 3, "carol", 10), Ok(Answer::Granted));
        assert_eq!(ledger.poll(), [(id(2), Ok(()))]);
        assert!(ledger.poll().is_empty());
    }

    #[test]
    fn reservations_and_waiters_are_listed() {
        let mut ledger = Ledger::new(LIMITS);
        ledger.ask(id(1), &who("alice"), 50, 10).unwrap();
        ledger.ask(id(2), &who("bob"), 60, 10).unwrap();
        ledger.write(&id(1), 7).unwrap();
        ledger.keep(&id(1), 20);
        ledger.keep(&id(1), 5);
        ledger.keep(&id(2), 99);
        let held = Charge {
            id: id(1),
            owner: Some(who("alice")),
            reserved: 50,
            written: 7,
            until_ms: 20,
            leaving: false,
        };
        assert_eq!((ledger.held_by(&id(1)), ledger.held_by(&id(2))), (Some(held.clone()), None));
        assert_eq!(ledger.held(), [held]);
        let waiting = Waiting { id: id(2), owner: who("bob"), bytes: 60, shortage: Shortage::Space(10) };
        assert_eq!((ledger.waiting(), ledger.limits()), (vec![waiting], LIMITS));
        assert_eq!(ledger.expire(10), [id(2)], "who waits is kept no longer");
        assert_eq!(ledger.expire(20), [id(1)]);
    }

    #[test]
    fn expired_reservations_are_removed() {
        let mut ledger = Ledger::new(LIMITS);
        ledger.ask(id(1), &who("alice"), 50, 10).unwrap();
        ledger.ask(id(2), &who("bob"), 60, 10).unwrap();
        ledger.ask(id(3), &who("carol"), 50, 30).unwrap();
        ledger.write(&id(1), 7).unwrap();
        assert!(ledger.expire(9).is_empty());
        assert_eq!(ledger.expire(10), [id(1), id(2)]);
        assert_eq!((ledger.leaving(), ledger.used_by(&who("alice"))), (vec![id(1)], 7));
        assert_eq!(ledger.poll(), [(id(3), Ok(()))]);
        assert!(ledger.expire(10).is_empty());
    }

    #[test]
    fn charges_are_rebuilt_from_the_disk_after_a_crash() {
        let known = |number, owner, bytes| PersistedReservation {
            id: id(number),
            owner: who(owner),
            bytes,
            until_ms: 5,
        };
        let found = |number, bytes| DiskUsage { id: id(number), bytes };
        let all = vec![known(1, "alice", 50), known(2, "bob", 10)];
        let mut ledger = Ledger::recover(LIMITS, all, &[found(1, 20), found(2, 12), found(9, 30)]);
        assert_eq!((ledger.used_by(&who("alice")), ledger.used_by(&who("bob")), ledger.used()), (50, 12, 92));
        assert_eq!(ledger.owners().get(&None), Some(&30));
        assert_eq!(ledger.leaving(), [id(9)]);
        ledger.write(&id(1), 30).unwrap();
        assert_eq!(ledger.write(&id(1), 1).unwrap_err().code, Code::BufferFull);
        ledger.gone(&id(9));
        assert_eq!(ledger.used(), 62);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask(u8, u64, u64),
        Write(u8, u64),
        Seal(u8),
        Delivered(u8, u64),
        Leave(u8),
        Remove,
        Expire(u64),
        Poll,
        Crash,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let number = 0..6_u8;
        let step = prop_oneof![
            3 => (number.clone(), 0..70_u64, 0..50_u64).prop_map(|(n, b, t)| Step::Ask(n, b, t)),
            4 => (number.clone(), 0..40_u64).prop_map(|(n, b)| Step::Write(n, b)),
            1 => number.clone().prop_map(Step::Seal),
            2 => (number.clone(), 0..40_u64).prop_map(|(n, b)| Step::Delivered(n, b)),
            2 => number.prop_map(Step::Leave),
            2 => Just(Step::Remove),
            1 => (0..50_u64).prop_map(Step::Expire),
            2 => Just(Step::Poll),
            1 => Just(Step::Crash),
        ];
        proptest::collection::vec(step, 0..80)
    }

    /// A model of the disk, beside the ledger.
    struct World {
        ledger: Ledger,
        disk: BTreeMap<TransferId, u64>,
        now: u64,
    }

    impl World {
        fn step(&mut self, step: Step) {
            match step {
                // A transfer has one owner.
                Step::Ask(number, bytes, time) => {
                    let owner = who(["alice", "bob", "carol"][usize::from(number % 3)]);
                    let _ = self.ledger.ask(id(number), &owner, bytes, self.now + time);
                }
                Step::Write(number, bytes) => {
                    if self.ledger.write(&id(number), bytes).is_ok() {
                        *self.disk.entry(id(number)).or_default() += bytes;
                    }
                }
                Step::Seal(number) => self.ledger.seal(&id(number)),
                Step::Delivered(number, bytes) => {
                    let had = self.disk.get(&id(number)).copied().unwrap_or(0);
                    let bytes = bytes.min(had);
                    self.disk.entry(id(number)).and_modify(|left| *left -= bytes);
                    self.ledger.delivered(&id(number), bytes);
                }
                Step::Leave(number) => {
                    self.ledger.leave(&id(number));
                }
                Step::Remove => {
                    for id in self.ledger.leaving() {
                        self.disk.remove(&id);
                        self.ledger.gone(&id);
                    }
                }
                Step::Expire(time) => {
                    self.now += time;
                    self.ledger.expire(self.now);
                }
                Step::Poll => drop(self.ledger.poll()),
                Step::Crash => self.crash(),
            }
        }

        /// Leaving transfers are not persisted, and waiting ones ask again.
        fn crash(&mut self) {
            let kept = self.ledger.holds.iter().filter(|(_, hold)| !hold.leaving);
            let known = kept.filter_map(|(id, hold)| {
                let owner = hold.owner.clone()?;
                Some(PersistedReservation { id: *id, owner, bytes: hold.reserved, until_ms: hold.until_ms })
            });
            let found: Vec<DiskUsage> =
                self.disk.iter().map(|(id, bytes)| DiskUsage { id: *id, bytes: *bytes }).collect();
            self.ledger = Ledger::recover(LIMITS, known.collect(), &found);
        }

        fn check(&self) -> Result<(), TestCaseError> {
            prop_assert!(self.ledger.used() <= LIMITS.capacity);
            for name in ["alice", "bob", "carol"] {
                prop_assert!(self.ledger.used_by(&who(name)) <= LIMITS.quota);
            }
            prop_assert_eq!(self.ledger.owners().values().sum::<u64>(), self.ledger.used());
            for (id, bytes) in &self.disk {
                let charged = self.ledger.holds.get(id).map_or(0, |hold| hold.reserved);
                prop_assert!(*bytes <= charged, "{} bytes on the disk, {} charged", bytes, charged);
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn the_disk_has_no_more_than_is_charged_and_all_waiters_are_served(all in steps()) {
            let mut world = World { ledger: Ledger::new(LIMITS), disk: BTreeMap::new(), now: 0 };
            for step in all {
                world.step(step);
                world.check()?;
            }
            // All holders release their room, until no request waits.
            for _ in 0..10 {
                let held: Vec<TransferId> = world.ledger.holds.keys().copied().collect();
                for id in held {
                    world.ledger.leave(&id);
                }
                world.step(Step::Remove);
                world.step(Step::Poll);
                world.check()?;
            }
            prop_assert!(world.ledger.waiting.is_empty());
            prop_assert!(world.disk.is_empty() && world.ledger.used() == 0);
        }
    }
}
