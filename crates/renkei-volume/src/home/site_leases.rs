//! The site leases of a volume at its home, with a clock and threads that wait (rules: [`renkei_core::lease::site`]).
//!
//! Handlers of followers' requests and writers at the home call this; each call returns when the sites that it concerns
//! have answered or their leases have expired. While another site has a write lease, mounts at the home hold no leases
//! on names, so that each of their opens asks. The tree keeps a note of the leases, so that they survive a restart of
//! the home.

use renkei_catalogue::{TreeNote, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::lease::Moment;
use renkei_core::lease::site::{Awaited, IDLE, LeaseAsk, LeaseGiven, SiteLeases, TERM};
use renkei_core::namespace::Origin;
use renkei_core::wire::decode;
use renkei_store::leases::LeaseTable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The note in the tree that a restarted home needs.
pub(crate) const NOTE: TreeNote<Note> = TreeNote::of("site leases", &[decode]);
/// Timeout of an open for a site that answers and does not hand in its changes: then the site counts as lost.
const FLUSH_WITHIN: Duration = Duration::from_secs(10);
/// Longest time that one request of a site is held (long poll).
const MOST_PATIENCE: Duration = Duration::from_secs(3);

/// The persistent state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// Whether any lease was ever given.
    pub(crate) is_used: bool,
    /// Sites whose write leases were not returned.
    pub(crate) writers: Vec<Origin>,
}

/// The site leases of one volume.
pub struct HomeLeases {
    tree: Arc<VolumeTree>,
    mounts: Arc<LeaseTable>,
    leases: Mutex<State>,
    changed: Condvar,
    begun: Instant,
    /// Whether any lease was given, by this process or an earlier one: a fast path for changes.
    is_used: AtomicBool,
}

struct State {
    leases: SiteLeases,
    noted: Note,
}

impl HomeLeases {
    /// A random round that no earlier process of the home had.
    pub fn round(random: &[u8; 16]) -> u64 {
        // Zero is the round of a site that has heard of no home.
        u64::from_le_bytes(*random.first_chunk().expect("16 bytes are more than 8")) | 1
    }

    /// The leases of a volume; `round` differs at each start.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn open(tree: Arc<VolumeTree>, mounts: Arc<LeaseTable>, round: u64) -> Result<Self, Error> {
        let noted = NOTE.read(&tree)?.unwrap_or_default();
        let leases = SiteLeases::new(TERM, IDLE, round);
        let leases = match noted.is_used {
            true => leases.after_another(&noted.writers, Moment::ZERO),
            false => leases,
        };
        let is_used = AtomicBool::new(noted.is_used);
        let leases = Mutex::new(State { leases, noted });
        let home =
            HomeLeases { tree, mounts, leases, changed: Condvar::new(), begun: Instant::now(), is_used };
        home.suspend_mounts();
        Ok(home)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.leases.lock().expect("no thread panics while it holds the lock")
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::SeqCst)
    }

    /// Stores the persistent state before any site is told.
    fn note(&self, state: &mut State) -> Result<(), Error> {
        let note = Note { is_used: true, writers: state.leases.writers() };
        if state.noted != note {
            NOTE.write(&self.tree, &note)?;
            state.noted = note;
        }
        Ok(())
    }

    /// Suspends the leases of mounts at this home on names while another site has a write lease.
    fn suspend_mounts(&self) {
        let may_read = self.state().leases.may_read_here(self.now());
        self.mounts.suspend(!may_read);
    }

    /// Waits until all awaited sites have answered, or for `within`.
    fn wait(&self, mut awaited: Awaited, within: Duration) -> Awaited {
        let deadline = self.now() + within;
        let mut state = self.state();
        loop {
            let now = self.now();
            let Some(until) = state.leases.wait_until(&mut awaited, now) else { return awaited };
            if now >= deadline {
                return awaited;
            }
            let pause = until.min(deadline).saturating_sub(now);
            state = self.changed.wait_timeout(state, pause).expect("no thread panics while it holds it").0;
        }
    }

    /// Renews the leases of a site. Returns as soon as there is news for it (long poll).
    ///
    /// # Errors
    /// `CatalogueFailed`, and the error of `go_on`.
    pub fn renew(
        &self,
        site: Origin,
        ask: &LeaseAsk,
        patience: Duration,
        go_on: impl Fn() -> Result<(), Error>,
    ) -> Result<(LeaseGiven, BTreeSet<Origin>), Error> {
        let until = self.now() + patience.min(MOST_PATIENCE);
        // Before the position of the log is read: every later change waits for this site's answer.
        self.is_used.store(true, Ordering::SeqCst);
        let mut state = self.state();
        state.leases.on_answers(site, ask, self.now());
        self.changed.notify_all();
        while !state.leases.has_news(site, ask) && self.now() < until {
            go_on()?;
            let pause = until.saturating_sub(self.now()).min(Duration::from_millis(500));
            state = self.changed.wait_timeout(state, pause).expect("no thread panics while it holds it").0;
        }
        // Before the lease is given: its log is at least as long.
        let last = self.tree.position()?.seq;
        let (given, now) = (state.leases.renew(site, ask, last, self.now()), self.now());
        self.note(&mut state)?;
        let lost = state.leases.lost(Some(site), &Awaited::default(), now);
        drop(state);
        self.changed.notify_all();
        self.suspend_mounts();
        Ok((given, lost))
    }

    /// Revokes read leases after a change at the home. Returns when no other site may read a copy without it.
    pub fn change_here(&self) {
        if !self.is_used() {
            return;
        }
        let awaited = self.state().leases.change_here(self.now());
        self.changed.notify_all();
        self.wait(awaited, 2 * TERM);
    }

    /// Acquires a write lease for a site. Returns its epoch when no other site may read a copy without the site's
    /// changes.
    ///
    /// # Errors
    /// `CatalogueFailed`; `SiteLost` if the lease has expired by then.
    pub fn acquire(&self, site: Origin) -> Result<u64, Error> {
        self.is_used.store(true, Ordering::SeqCst);
        let (epoch, awaited) = {
            let mut state = self.state();
            let acquired = state.leases.acquire(site, self.now());
            self.note(&mut state)?;
            acquired
        };
        self.changed.notify_all();
        self.suspend_mounts();
        self.wait(awaited, 2 * TERM);
        match self.state().leases.has_lease(site, epoch, self.now()) {
            true => Ok(epoch),
            false => Err(Error::new(Code::SiteLost, "acquire lease", "volume", "it took longer than a term")),
        }
    }

    /// Has sites with write leases hand in their changes. Returns when all that they closed until now is in the log,
    /// with the lost sites. The asker is a site or, if none is named, the home itself.
    pub fn flush(&self, asker: Option<Origin>) -> BTreeSet<Origin> {
        if !self.is_used() {
            return BTreeSet::new();
        }
        let awaited = self.state().leases.flush(asker, self.now());
        self.changed.notify_all();
        let mut awaited = self.wait(awaited, FLUSH_WITHIN);
        awaited.give_up();
        self.suspend_mounts();
        self.state().leases.lost(asker, &awaited, self.now())
    }

    /// Whether opens at the home see all that was closed anywhere, without asking other sites.
    pub fn may_read_here(&self) -> bool {
        !self.is_used() || self.state().leases.may_read_here(self.now())
    }

    /// The sites that are lost, for an open at the home.
    pub fn lost(&self) -> BTreeSet<Origin> {
        if !self.is_used() {
            return BTreeSet::new();
        }
        self.state().leases.lost(None, &Awaited::default(), self.now())
    }

    /// Drops the lease of a site that may not write any more; no one waits for it from then on.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn forget(&self, site: Origin) -> Result<(), Error> {
        let mut state = self.state();
        if state.leases.forget(site) {
            self.note(&mut state)?;
            self.changed.notify_all();
        }
        Ok(())
    }
}
