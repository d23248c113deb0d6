//! Site leases over the wire: a home answers its followers, and a follower asks its home.
//!
//! A follower has three threads for each volume: one renews its leases and carries out the home's recalls (stop
//! using the copy, push local changes), and one each, on demand, requests a copy that is up to date and a write
//! lease ([`renkei_volume::follower::site_lease`]). For unused volumes nothing is requested. Rules:
//! [`renkei_core::lease::site`].

use crate::access::Proof;
use crate::snapshot::Snapshot;
use crate::volume::VolumeService;
use crate::volume::request::{ask, is_followed, may};
use crate::workers::spawn;
use renkei_catalogue::VolumeId;
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::lease::site::LeaseAsk;
use renkei_core::namespace::Origin;
use renkei_core::path::SiteName;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Descent, VolumeReply};
use renkei_mover::Stop;
use renkei_mover::connect::dial::Session;
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::site_lease::Wanted;
use renkei_volume::home::follower_registry::{follower_number, followers, names_of};
use renkei_volume::{Volume, VolumeConfig};
use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Duration of a long poll for leases: several fit a term, even at a high RTT.
const PATIENCE: Duration = Duration::from_millis(500);
/// Poll interval of the threads.
const TICK: Duration = Duration::from_millis(200);
/// Backoff while a home is unreachable: initial and maximum.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// Idle timeout of a connection.
const IDLE: Duration = Duration::from_secs(10);
/// Poll interval for the settlement of a received record.
const SETTLED_AFTER: Duration = Duration::from_millis(5);
/// Timeout for records that the home announced.
const RECORDS_WITHIN: Duration = Duration::from_secs(10);

// ---- at the home ------------------------------------------------------------------------------------------

/// Forgets the write leases of sites whose write grants were revoked.
pub(crate) fn forget_writers(snapshot: &Snapshot) {
    for (name, facts) in &snapshot.volumes {
        let Some(Ok(volume)) = (!snapshot.follows(facts)).then(|| snapshot.volume(name)).flatten() else {
            continue;
        };
        let leases = volume.site_leases();
        let Ok(known) = followers(volume.tree()) else { continue };
        let may_write = |site: &SiteName| may(facts, &Principal::Host(site.clone()), Need::Write);
        for (_, origin) in known.into_iter().filter(|(site, _)| !may_write(site)) {
            let forgotten = leases.forget(origin);
            forgotten
                .unwrap_or_else(|error| tracing::warn!(volume = name, %error, "a lease is not forgotten"));
        }
    }
}

impl VolumeService {
    /// A volume of this site, and the number of the follower that asks about it.
    fn volume_of_follower(
        &self,
        proof: &Proof,
        id: VolumeId,
        need: Need,
    ) -> Result<(Arc<Volume>, Origin), Error> {
        let (_, tree) = self.open_for(proof, id, need)?;
        let unknown = || Error::new(Code::VolumeUnknown, "lease", "volume", "");
        let volume = self.context.snapshot().volume_of(id).ok_or_else(unknown)??;
        Ok((volume, follower_number(&tree, proof.principal.site())?))
    }

    /// Answers a lease request of a follower.
    pub(crate) fn give_leases(
        &self,
        proof: &Proof,
        id: VolumeId,
        ask: &LeaseAsk,
        patience: Duration,
        stop: &Stop,
    ) -> Result<VolumeReply, Error> {
        let (volume, site) = self.volume_of_follower(proof, id, Need::Read)?;
        let (given, lost) = volume.site_leases().renew(site, ask, patience, || stop.check())?;
        Ok(VolumeReply::Leases { given, lost: names_of(volume.tree(), &lost)? })
    }

    /// Grants a follower a write lease.
    pub(crate) fn give_write_lease(&self, proof: &Proof, id: VolumeId) -> Result<VolumeReply, Error> {
        let (volume, site) = self.volume_of_follower(proof, id, Need::Write)?;
        Ok(VolumeReply::WriteLease { epoch: volume.site_leases().acquire(site)? })
    }

    /// Flushes the volume for a follower; the reply names the record that covers everything closed until now.
    pub(crate) fn tell_last(&self, proof: &Proof, id: VolumeId) -> Result<VolumeReply, Error> {
        let (volume, site) = self.volume_of_follower(proof, id, Need::Read)?;
        let lost = volume.site_leases().flush(Some(site));
        volume.flush()?;
        let tree = volume.tree();
        Ok(VolumeReply::CaughtUp { last: tree.position()?.seq, lost: names_of(tree, &lost)? })
    }
}

// ---- at a site that follows -------------------------------------------------------------------------------

/// The requester of one of the threads, for one followed volume.
struct Asker {
    volumes: Weak<VolumeService>,
    name: String,
    facts: VolumeConfig,
    pending: Arc<Outbox>,
    flushing: Cell<Option<Flushing>>,
}

/// A flush that the home waits for: the changes made here before it must be pushed.
#[derive(Clone, Copy)]
struct Flushing {
    round: u64,
    number: u64,
    /// The last local change when the flush was requested.
    made: u64,
}

/// Starts the lease threads of a followed volume.
pub(crate) fn spawn_lease_keepers(
    volumes: &Arc<VolumeService>,
    name: &str,
    facts: &VolumeConfig,
    pending: &Arc<Outbox>,
) -> Result<(), Error> {
    let asker = || Asker {
        volumes: Arc::downgrade(volumes),
        name: name.into(),
        facts: facts.clone(),
        pending: pending.clone(),
        flushing: Cell::new(None),
    };
    pending.own_lease().serve(true);
    let (renewing, copying, writing) = (asker(), asker(), asker());
    spawn("leases", move || renewing.keep(Asker::renew))?;
    spawn("catch up", move || copying.keep(|asker, session| asker.answer(session, Wanted::Copy)))?;
    spawn("write lease", move || writing.keep(|asker, session| asker.answer(session, Wanted::WriteLease)))
}

impl Asker {
    /// The site, as long as it follows the volume.
    fn here(&self) -> Option<Arc<VolumeService>> {
        self.volumes.upgrade().filter(|site| is_followed(&site.context, &self.facts))
    }

    /// Works over successive connections until the volume is no longer followed.
    fn keep(&self, work: impl Fn(&Asker, &mut Option<Session>) -> Result<(), Error>) {
        let (mut session, mut pauses) = (None, BACKOFF.begin());
        while self.here().is_some() {
            match work(self, &mut session) {
                Ok(()) => pauses.reset(),
                Err(error) => {
                    session = None;
                    tracing::debug!(volume = self.name, home = %self.facts.home, %error, "no leases");
                    self.pending.own_lease().on_away(&error);
                    self.rest(pauses.next(random_number()));
                }
            }
        }
        self.pending.own_lease().serve(false);
        self.pending.own_lease().suspend_mounts();
    }

    /// Backs off from the home; expired leases of mounts are suspended meanwhile.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            self.pending.own_lease().suspend_mounts();
            std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// The connection; opened if there is none.
    fn connected<'s>(&self, session: &'s mut Option<Session>) -> Result<&'s mut Session, Error> {
        if let Some(session) = session {
            return Ok(session);
        }
        let here = self.here().ok_or_else(|| Error::new(Code::PopStopping, "lease", &self.name, ""))?;
        let (opened, found) = here.home_of_log(&self.facts, self.pending.tree())?;
        if let Some((_, Descent::Until(until))) = found {
            let cause = format!("the logs are one up to record {until} alone");
            return Err(Error::new(Code::HistoryDiffers, "lease", &self.name, cause));
        }
        Ok(session.insert(opened))
    }

    /// Requests leases once, if the volume is in use, and does what the home asks for.
    fn renew(&self, session: &mut Option<Session>) -> Result<(), Error> {
        let (lease, pending) = (self.pending.own_lease(), &self.pending);
        lease.suspend_mounts();
        if !lease.is_used() && pending.count() == 0 {
            *session = None;
            lease.await_use(Duration::from_secs(1));
            return Ok(());
        }
        let session = self.connected(session)?;
        let (ask_for, asked) = lease.ask(pending.tree().position()?.seq, pending.count() == 0);
        let question = AboutVolume::Leases {
            volume: self.facts.id,
            ask: ask_for,
            patience_ms: PATIENCE.as_millis() as u32,
        };
        let (given, lost) = match ask(session, question)? {
            VolumeReply::Leases { given, lost } => (given, lost),
            other => return Err(violation("leases", format_args!("{other:?}"))),
        };
        lease.on_given(asked, &given, lost).flush.map_or(Ok(()), |number| self.flush(given.round, number))
    }

    /// Begins a flush, or continues the previous one of the round: later writes do not move its end.
    fn flush(&self, round: u64, number: u64) -> Result<(), Error> {
        let before = self.flushing.get().filter(|before| before.round == round);
        let new = || Flushing { round, number, made: self.pending.last_made() };
        let flushing = before.unwrap_or_else(new);
        self.flushing.set(Some(flushing));
        if self.is_handed_in(flushing.made, TICK)? {
            self.pending.own_lease().on_flushed(flushing.number);
            self.flushing.set(None);
        }
        Ok(())
    }

    /// Waits until the home has all changes up to one, at most for `within`; else the next request checks again.
    fn is_handed_in(&self, made: u64, within: Duration) -> Result<bool, Error> {
        self.pending.flush()?;
        let until = Instant::now() + within;
        let tree = self.pending.tree();
        loop {
            let seq = tree.position()?.seq;
            if self.pending.next_after(0).is_none_or(|oldest| oldest > made) {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            // A record is settled shortly after it is stored.
            tree.wait_beyond(seq, left.min(SETTLED_AFTER));
        }
    }

    /// Waits for a local request, and forwards it to the home.
    fn answer(&self, session: &mut Option<Session>, wanted: Wanted) -> Result<(), Error> {
        let lease = self.pending.own_lease();
        let Some(ticket) = lease.await_wanted(wanted, IDLE) else {
            *session = None;
            return Ok(());
        };
        let session = self.connected(session)?;
        match wanted {
            Wanted::Copy => self.catch_up(session)?,
            Wanted::WriteLease => self.acquire(session)?,
        }
        lease.on_done(wanted, ticket);
        Ok(())
    }

    fn catch_up(&self, session: &mut Session) -> Result<(), Error> {
        let (last, lost) = match ask(session, AboutVolume::CatchUp { volume: self.facts.id })? {
            VolumeReply::CaughtUp { last, lost } => (last, lost),
            other => return Err(violation("catch up", format_args!("{other:?}"))),
        };
        self.pending.own_lease().on_caught_up(lost);
        let (tree, until) = (self.pending.tree(), Instant::now() + RECORDS_WITHIN);
        loop {
            let seq = tree.position()?.seq;
            if seq >= last {
                // The thread that stored the record has applied it before it releases the turn.
                drop(self.pending.turn());
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let cause = format!("record {last} is told of, and {seq} is the last that came");
                return Err(Error::new(Code::SiteLost, "catch up", &self.name, cause));
            }
            tree.wait_beyond(seq, left.min(SETTLED_AFTER));
        }
    }

    fn acquire(&self, session: &mut Session) -> Result<(), Error> {
        let lease = self.pending.own_lease();
        // The home may have waited for a lost site so long that the first lease has expired; a second request does
        // not wait for it.
        for _ in 0..2 {
            let asked = lease.moment();
            match ask(session, AboutVolume::AcquireLease { volume: self.facts.id })? {
                VolumeReply::WriteLease { epoch } if lease.on_acquired(asked, epoch) => return Ok(()),
                VolumeReply::WriteLease { .. } => {}
                other => return Err(violation("lease", format_args!("{other:?}"))),
            }
        }
        Err(Error::new(Code::SiteLost, "lease", &self.name, "the answers took longer than a term"))
    }
}
