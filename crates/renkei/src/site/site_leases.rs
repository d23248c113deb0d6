//! Site leases over the wire: a home answers the sites that follow its volume, and a site that follows asks its home.
//!
//! A follower has three threads for each volume: one renews its leases and does what the home asks for (believe the copy no more,
//! hand in what was changed), and one each asks for a copy that is far enough and for a write lease when somebody waits for that
//! ([`crate::volume::follower::site_lease`]). Where nobody uses the volume nothing is asked. Rules: [`renkei_core::lease::site`].

use super::Site;
use super::access::Proof;
use super::log_shipping::{ask, is_followed, may, spawn};
use super::snapshot::Snapshot;
use crate::catalogue::VolumeId;
use crate::mover::Stop;
use crate::mover::dial::Session;
use crate::volume::follower::outbox::Outbox;
use crate::volume::follower::site_lease::Wanted;
use crate::volume::home::follower_registry::{follower_number, followers, names_of};
use crate::volume::{Volume, VolumeConfig};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::lease::site::LeaseAsk;
use renkei_core::namespace::Origin;
use renkei_core::path::SiteName;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Descent, VolumeReply};
use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the home holds a question for leases: several fit a term, also over a long way.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a thread looks whether it has something to do.
const TICK: Duration = Duration::from_millis(200);
/// How long a home is left alone that could not be asked: the first time, and at most.
const AGAIN_AFTER: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long a connection stays open by which nothing is asked.
const IDLE: Duration = Duration::from_secs(10);
/// How soon it is looked again whether a record has come and is settled.
const SETTLED_AFTER: Duration = Duration::from_millis(5);
/// How long the records may take that the home told of.
const RECORDS_WITHIN: Duration = Duration::from_secs(10);

// ---- at the home -----------------------------------------------------------------------------------------------------

/// Sites whose write grants were taken back are not waited for any more.
pub(super) fn forget_writers(snapshot: &Snapshot) {
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

impl Site {
    /// A volume of this site, and the number of the follower that asks about it.
    fn volume_of_follower(
        &self,
        proof: &Proof,
        id: VolumeId,
        need: Need,
    ) -> Result<(Arc<Volume>, Origin), Error> {
        let (_, tree) = self.open_for(proof, id, need)?;
        let unknown = || Error::new(Code::VolumeUnknown, "lease", "volume", "");
        let volume = self.snapshot().volume_of(id).ok_or_else(unknown)??;
        Ok((volume, follower_number(&tree, proof.principal.site())?))
    }

    /// Answers a follower that asks for its leases.
    pub(super) fn give_leases(
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

    /// Gives a follower a write lease.
    pub(super) fn give_write_lease(&self, proof: &Proof, id: VolumeId) -> Result<VolumeReply, Error> {
        let (volume, site) = self.volume_of_follower(proof, id, Need::Write)?;
        Ok(VolumeReply::WriteLease { epoch: volume.site_leases().acquire(site)? })
    }

    /// Tells a follower which record has all that was closed until now.
    pub(super) fn tell_last(&self, proof: &Proof, id: VolumeId) -> Result<VolumeReply, Error> {
        let (volume, site) = self.volume_of_follower(proof, id, Need::Read)?;
        let lost = volume.site_leases().flush(Some(site));
        volume.flush()?;
        let tree = volume.tree();
        Ok(VolumeReply::CaughtUp { last: tree.position()?.seq, lost: names_of(tree, &lost)? })
    }
}

// ---- at a site that follows ------------------------------------------------------------------------------------------

/// One volume that is followed, for a thread that asks its home.
struct Asker {
    site: Weak<Site>,
    name: String,
    facts: VolumeConfig,
    pending: Arc<Outbox>,
    flushing: Cell<Option<Flushing>>,
}

/// A flush that the home waits for, until what was changed here before is handed in.
#[derive(Clone, Copy)]
struct Flushing {
    round: u64,
    number: u64,
    /// The last change that was made here when the flush was heard of.
    made: u64,
}

/// Starts the threads that ask for leases on a volume that is followed.
pub(super) fn spawn_lease_keepers(
    site: &Arc<Site>,
    name: &str,
    facts: &VolumeConfig,
    pending: &Arc<Outbox>,
) -> Result<(), Error> {
    let asker = || Asker {
        site: Arc::downgrade(site),
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
    fn here(&self) -> Option<Arc<Site>> {
        self.site.upgrade().filter(|site| is_followed(site, &self.facts))
    }

    /// Works over one connection after the other until the volume is not followed any more.
    fn keep(&self, work: impl Fn(&Asker, &mut Option<Session>) -> Result<(), Error>) {
        let (mut session, mut pause) = (None, AGAIN_AFTER.0);
        while self.here().is_some() {
            match work(self, &mut session) {
                Ok(()) => pause = AGAIN_AFTER.0,
                Err(error) => {
                    session = None;
                    tracing::debug!(volume = self.name, home = %self.facts.home, %error, "no leases");
                    self.pending.own_lease().on_away(&error);
                    self.rest(pause);
                    pause = (pause * 2).min(AGAIN_AFTER.1);
                }
            }
        }
        self.pending.own_lease().serve(false);
        self.pending.own_lease().suspend_mounts();
    }

    /// Leaves the home alone for a while; mounts hold nothing that is over meanwhile.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            self.pending.own_lease().suspend_mounts();
            std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    /// The connection, opened if there is none.
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

    /// Asks for leases once, if anybody uses the volume, and does what the home asks for.
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

    /// Does a flush, or goes on with the one before: who writes on does not move its end.
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

    /// Waits until the home has all changes up to one, at most so long: the next question says it else.
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
            // A record is settled a moment after it is stored.
            tree.wait_beyond(seq, left.min(SETTLED_AFTER));
        }
    }

    /// Waits for somebody who wants something of the home, and asks for it.
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
                // Whoever stored it has shown it before somebody else has the turn.
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
        // Who waited for a site that is gone has a lease that is over; nobody is left to be waited for then.
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
