//! The site leases of a followed volume at this site (rules: [`renkei_core::lease::site`]): an open or an
//! acknowledgement of a change waits here until the home was asked, if that is necessary.
//!
//! Requests are sent by threads of the site (`renkei_site::volume::site_leases`), which take them from here and note
//! the answers. Requests of many openers that wait are coalesced. While the home is not reachable no request waits: the
//! site goes on with its copy, and reports that.

use renkei_core::error::{Code, Error};
use renkei_core::lease::Moment;
use renkei_core::lease::site::{IDLE, LeaseAsk, LeaseDuty, LeaseGiven, SiteLease, TERM};
use renkei_core::path::SiteName;
use renkei_store::leases;
use renkei_store::leases::LeaseTable;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Timeout of a request to the home, after which the home counts as unreachable.
const WITHIN: Duration = Duration::from_secs(10);
/// Time before the end of the site's read lease at which its mounts must hold no leases: their own terms end first.
const MOUNTS_END_BEFORE: Duration = leases::TERM.saturating_add(Duration::from_millis(200));
/// Time after the last use during which leases are renewed, so that an unused volume costs no messages.
const USED_FOR: Duration = Duration::from_secs(30);

/// A request to the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A copy with all changes that were closed until now.
    Copy,
    /// A write lease.
    WriteLease,
}

/// The leases of this site on one volume.
pub struct FollowerLease {
    state: Mutex<State>,
    changed: Condvar,
    begun: Instant,
    mounts: Arc<LeaseTable>,
}

struct State {
    lease: SiteLease,
    /// Whether threads send the requests.
    is_served: bool,
    copy: Round,
    write_lease: Round,
    /// The error that makes the home unreachable.
    away: Option<Error>,
    lost: Vec<SiteName>,
    used: Moment,
}

/// Sequence numbers of requests of one kind, for coalescing.
#[derive(Clone, Copy, Default)]
struct Round {
    asked: u64,
    done: u64,
}

impl FollowerLease {
    /// No lease yet; `mounts` hold leases on names only while the copy may be read without asking.
    pub fn new(mounts: Arc<LeaseTable>) -> Self {
        let state = State {
            lease: SiteLease::new(TERM, IDLE),
            is_served: false,
            copy: Round::default(),
            write_lease: Round::default(),
            away: None,
            lost: Vec::new(),
            used: Moment::ZERO,
        };
        FollowerLease { state: Mutex::new(state), changed: Condvar::new(), begun: Instant::now(), mounts }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    /// Returns when the copy has all that was closed anywhere before; returns whether the home had to be asked.
    ///
    /// # Errors
    /// `SiteLost` names a site that is unreachable: its changes may be missing in the copy.
    pub fn catch_up(&self) -> Result<bool, Error> {
        let mut state = self.state();
        if !state.is_served {
            return Ok(false);
        }
        state.used = self.now();
        let had_to_ask = !state.lease.may_read(self.now());
        if had_to_ask {
            state = self.await_home(state, Wanted::Copy)?;
        }
        match state.lost.first() {
            Some(_) => Err(lost_error(&state.lost)),
            None => Ok(had_to_ask),
        }
    }

    /// Returns when changes made here may be acknowledged: no other site may read a copy without them, or the home is
    /// unreachable and this site goes on alone.
    pub fn acknowledge(&self) {
        let mut state = self.state();
        let now = self.now();
        state.used = now;
        state.lease.on_changed(now);
        if state.is_served && !state.lease.may_write(now) {
            // A site that is cut off accepts writes all the same.
            drop(self.await_home(state, Wanted::WriteLease));
        }
    }

    fn await_home<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        wanted: Wanted,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let deadline = self.now() + WITHIN;
        let ticket = {
            let round = state.round(wanted);
            round.asked += 1;
            round.asked
        };
        self.changed.notify_all();
        loop {
            if state.round(wanted).done >= ticket || !state.is_served {
                return Ok(state);
            }
            if let Some(away) = &state.away {
                return Err(away.clone());
            }
            let left = deadline.saturating_sub(self.now());
            if left.is_zero() {
                let error = Error::new(Code::SiteLost, "ask the home", "volume", "it did not answer in time");
                state.away = Some(error.clone());
                return Err(error);
            }
            state = self.changed.wait_timeout(state, left).expect("no thread panics while it holds it").0;
        }
    }

    /// The lost sites, whose changes may be missing here.
    pub fn lost(&self) -> Vec<SiteName> {
        self.state().lost.clone()
    }

    // ---- for the threads that ask ---------------------------------------------------------------------------------

    /// Tells whether threads send requests from now on.
    pub fn serve(&self, is_served: bool) {
        let mut state = self.state();
        (state.is_served, state.used) = (is_served, self.now());
        drop(state);
        self.changed.notify_all();
    }

    /// Whether leases should be renewed: the volume is mounted or was used recently, or the site has a write lease.
    pub fn is_used(&self) -> bool {
        let is_mounted = self.mounts.counts().0 > 0;
        let state = self.state();
        is_mounted || state.lease.has_write_lease() || self.now() < state.used + USED_FOR
    }

    /// Waits for a use of the volume, at most `within`.
    pub fn await_use(&self, within: Duration) {
        if !self.is_used() {
            let state = self.state();
            drop(self.changed.wait_timeout(state, within).expect("no thread panics while it holds it"));
        }
    }

    /// Waits for a request of a kind, at most `within`; returns its number for [`FollowerLease::on_done`].
    pub fn await_wanted(&self, wanted: Wanted, within: Duration) -> Option<u64> {
        let is_idle = |state: &mut State| state.is_served && state.round(wanted).is_idle();
        let waited = self.changed.wait_timeout_while(self.state(), within, is_idle);
        let mut state = waited.expect("no thread panics while it holds the lock").0;
        let round = state.round(wanted);
        (!round.is_idle()).then_some(round.asked)
    }

    /// Answers the requests up to a number.
    pub fn on_done(&self, wanted: Wanted, asked: u64) {
        self.on_reached();
        self.state().round(wanted).done = asked;
        self.changed.notify_all();
    }

    /// The home is reachable again. Mounts used the copy while it was not; their leases are suspended before any
    /// request waits for the home again.
    fn on_reached(&self) {
        if self.state().away.is_some() {
            self.mounts.suspend(true);
            self.state().away = None;
        }
    }

    /// The current time of the clock of the leases.
    pub fn moment(&self) -> Moment {
        self.now()
    }

    /// The next request to the home, and its time.
    pub fn ask(&self, seq: u64, is_handed_in: bool) -> (LeaseAsk, Moment) {
        let now = self.now();
        (self.state().lease.ask(seq, is_handed_in, now), now)
    }

    /// Takes the home's answer; returns the duties to be done before the next request.
    pub fn on_given(&self, asked: Moment, given: &LeaseGiven, lost: Vec<SiteName>) -> LeaseDuty {
        self.on_reached();
        let duty = {
            let mut state = self.state();
            state.lost = lost;
            state.lease.on_given(asked, given)
        };
        self.changed.notify_all();
        self.suspend_mounts();
        if let Some(number) = duty.revoke {
            self.state().lease.on_revoked(number);
        }
        LeaseDuty { revoke: None, ..duty }
    }

    /// Takes the lost sites from an answer to an opener.
    pub fn on_caught_up(&self, lost: Vec<SiteName>) {
        self.state().lost = lost;
    }

    /// All changes that the flush asked for are handed in.
    pub fn on_flushed(&self, number: u64) {
        self.state().lease.on_flushed(number);
    }

    /// Notes an acquired write lease; returns whether it is still valid.
    pub fn on_acquired(&self, asked: Moment, epoch: u64) -> bool {
        let mut state = self.state();
        state.lease.on_acquired(asked, epoch);
        state.lease.may_write(self.now())
    }

    /// Notes that the home is unreachable.
    pub fn on_away(&self, error: &Error) {
        self.state().away = Some(error.clone());
        self.changed.notify_all();
    }

    /// Suspends the leases of mounts unless the site's read lease outlasts them, or the home is unreachable.
    pub fn suspend_mounts(&self) {
        let is_suspended = {
            let state = self.state();
            let must_ask = state.lease.reads_for(self.now()) < MOUNTS_END_BEFORE;
            state.is_served && state.away.is_none() && must_ask
        };
        self.mounts.suspend(is_suspended);
    }
}

impl State {
    fn round(&mut self, wanted: Wanted) -> &mut Round {
        match wanted {
            Wanted::Copy => &mut self.copy,
            Wanted::WriteLease => &mut self.write_lease,
        }
    }
}

impl Round {
    fn is_idle(&self) -> bool {
        self.done >= self.asked
    }
}

/// The sites whose changes may be missing.
pub fn lost_error(lost: &[SiteName]) -> Error {
    let names: Vec<&str> = lost.iter().map(SiteName::as_str).collect();
    let cause = format!("{} changed the volume and is not reached since", names.join(", "));
    Error::new(Code::SiteLost, "catch up", "volume", cause)
}
