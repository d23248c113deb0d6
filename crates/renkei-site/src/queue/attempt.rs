//! One attempt of a queued transfer, in a thread of its own.
//!
//! It does what a client would do: it asks the destination what is there, has it grant a place, and has the source push.
//! So the data goes from site to site, and the user's PoP only controls and follows the transfer. The state of the
//! destination is stored before anything is sent; the end of an attempt is stored before it is reported.

use super::Queue;
use super::state::{Active, With};
use crate::submission::{now_ms, read_spec};
use crate::transfer::push::no_choice;
use renkei_catalogue::{Row, hex_id};
use renkei_core::error::{Code, Error, Kind};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::path::SiteName;
use renkei_core::queue::{Event, Link};
use renkei_core::units::counted;
use renkei_core::wire::message::{
    Choice, Control, EntryFailure, Existing, Found, OpenReceive, OpenSend, Progress, ReceiveOptions, Reply,
    Request, Summary,
};
use renkei_core::wire::queue::{Attempt, Submission, Verify};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{DialHints, Dialler, Session};
use renkei_mover::connect::route_context::RouteContext;
use renkei_mover::progress::Note;
use renkei_net::identity::delegation::Delegation;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Retry interval for storing the end of an attempt while the catalogue fails.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// Maximum listed failures of one transfer; all are counted.
const MAX_FAILURES: u64 = 100_000;

/// One attempt.
pub(crate) struct Run<'a> {
    pub(crate) room: &'a Arc<Queue>,
    pub(crate) row: Row,
    pub(super) link: Link,
    pub(super) active: Active,
    pub(super) attempt: Attempt,
    /// Number of failures stored in the catalogue.
    pub(super) listed: Cell<u64>,
}

impl Run<'_> {
    pub(super) fn run(mut self) {
        let id = hex_id(&self.row.id);
        let span = tracing::info_span!(
            "queued",
            transfer = id,
            owner = self.row.owner,
            attempt = self.attempt.number
        );
        let _entered = span.enter();
        tracing::info!("begins");
        let before = self.files_before();
        let outcome = self.attempt();
        match &outcome {
            Ok(summary) => tracing::info!(files = summary.files, failed = summary.failed, "done"),
            Err(error) => tracing::warn!(%error, "failed"),
        }
        self.rest_or_wake(&outcome);
        let progress = self.active.watch.look();
        self.attempt.ended_ms = Some(now_ms());
        self.attempt.bytes_moved = progress.bytes_moved;
        self.attempt.files_done = progress.files_done;
        self.attempt.error = outcome.as_ref().err().cloned();
        // Blocks that a full target did not keep are no progress.
        let kept = !matches!(&outcome, Err(error) if error.kind() == Kind::NoSpace);
        let further = progress.files_done > before || (kept && progress.bytes_moved >= SLOT_BYTES);
        // The row loses its credential when it ends; the clean-up needs it.
        let credential = self.room.state.catalogue().and_then(|all| all.credential(&self.row.id));
        self.store_end(outcome, further, progress);
        self.room.state.active().remove(&self.row.id);
        self.room.state.load().end(&self.row.owner, &self.link);
        self.room.state.ring();
        self.free_room(credential.ok().flatten());
    }

    /// Releases the files in the buffer of a transfer that has ended, now that this is stored, and starts the
    /// clean-up of a cancelled one.
    fn free_room(&self, credential: Option<Vec<u8>>) {
        if let Ok(Some(row)) = self.room.state.catalogue().and_then(|catalogue| catalogue.load(&self.row.id))
        {
            self.room.buffer.leave_buffer(&row);
            self.room.cleanup.give_up(&row, credential);
        }
    }

    /// The most files that any earlier attempt had done.
    fn files_before(&self) -> u64 {
        let attempts = self.room.state.catalogue().and_then(|catalogue| catalogue.attempts(&self.row.id));
        attempts.map_or(0, |all| all.iter().map(|attempt| attempt.files_done).max().unwrap_or(0))
    }

    /// Backs off from a link on which an attempt failed as unavailable and moved no bytes; any other outcome ends
    /// the backoff.
    fn rest_or_wake(&self, outcome: &Result<Summary, Error>) {
        let mut load = self.room.state.load();
        match outcome {
            Err(error) if error.kind() == Kind::Unavailable && self.active.watch.look().bytes_moved == 0 => {
                load.rest(&self.link, now_ms());
            }
            _ => load.wake(&self.link),
        }
    }

    /// Stores how the attempt ended; retries while the catalogue fails, because the result is known nowhere else.
    fn store_end(&self, outcome: Result<Summary, Error>, further: bool, progress: Progress) {
        let event = match outcome {
            Err(_) if self.room.state.is_stopping() => Event::Interrupted,
            Err(error) if error.code == Code::DelegationExpired => Event::NoCredential(error),
            outcome => Event::Ended { outcome, further },
        };
        let with = With { attempt: Some(&self.attempt), ..With::default() };
        let reached = |row: &mut Row| {
            row.reached = Some(progress);
            Ok(())
        };
        loop {
            match self.room.state.happen(&self.row.id, &event, &reached, &with) {
                Ok(row) => return tracing::info!(state = row.course.state.name(), "stored"),
                Err(error) if error.code == Code::CatalogueFailed && !self.room.state.is_stopping() => {
                    tracing::error!(%error, "the end of an attempt is not stored yet");
                    std::thread::sleep(STORE_EVERY);
                }
                Err(error) => return tracing::error!(%error, "the end of an attempt was not stored"),
            }
        }
    }

    fn attempt(&mut self) -> Result<Summary, Error> {
        let spec = read_spec(&self.row)?;
        let snapshot = self.room.context.snapshot();
        self.room.partners.await_new_name(&snapshot, [&spec.from, &spec.to])?;
        let delegation = self.delegation()?;
        // Relays authenticate this PoP: the delegated credential is for the two sites alone.
        let dialler =
            Dialler::new(&delegation.credential, snapshot.trust.clone(), snapshot.config.stall_timeout())?
                .with_ways(RouteContext {
                    trying: self.active.trying.clone(),
                    ..self.room.relay.ways(&snapshot)
                })
                .passed_on_for(&snapshot.credential)?;
        let side = snapshot.site.to_string();
        let ended = self.transfer(&dialler, &spec).map_err(|error| match error.side.as_str() {
            "client" => Error { side, ..error },
            _ => error.at(&side),
        });
        ended.map_err(|error| of_relay(error, [&snapshot.site, &spec.from, &spec.to]))
    }

    /// The delegation of the user, if it is still valid.
    pub(crate) fn delegation(&self) -> Result<Delegation, Error> {
        let kept = self.room.state.catalogue()?.credential(&self.row.id)?;
        let none = || {
            let cause = "it has none any more; `renkei renew ID` gives it one";
            Error::new(Code::DelegationExpired, "work for", &self.row.owner, cause)
        };
        let delegation = Delegation::from_bytes(&kept.ok_or_else(none)?)?;
        self.room.context.check_delegation(&delegation)?;
        let _ = self.active.shown.set((delegation.credential.chain.clone(), SystemTime::now()));
        Ok(delegation)
    }

    fn transfer(&mut self, dialler: &Dialler, spec: &Submission) -> Result<Summary, Error> {
        let (mut target, now) = self.reach(dialler, spec)?;
        let spec = &now;
        let found = match self.row.course.found {
            Some(found) => found,
            None => self.store_found(target.find(&spec.open.to)?)?,
        };
        self.active.stop.check()?;
        let choice = spec.open.choice(found).ok_or_else(|| no_choice(found))?;
        if choice.make {
            make(&mut target, spec)?;
        }
        let open = spec.open.receive(choice);
        let summary = self.push(dialler, &mut target, spec, choice, open.clone(), false)?;
        if spec.terms.verify == Verify::Both && summary.failed == 0 {
            drop(target);
            self.compare(dialler, spec, choice, open)?;
        }
        Ok(summary)
    }

    /// Stores what the destination is before anything is done there; a value stored before takes precedence.
    fn store_found(&mut self, found: Found) -> Result<Found, Error> {
        let queue = &self.room.state;
        self.row = queue.happen(&self.row.id, &Event::Found(found), &|_| Ok(()), &With::default())?;
        Ok(self.row.course.found.unwrap_or(found))
    }

    /// Has the source push to the place that the destination grants.
    pub(crate) fn push(
        &self,
        dialler: &Dialler,
        target: &mut Session,
        spec: &Submission,
        choice: &Choice,
        open: OpenReceive,
        dry_run: bool,
    ) -> Result<Summary, Error> {
        let grant = match target.ask(Request::Grant { open, peer: spec.from.clone() })? {
            Reply::Granted(grant) => grant,
            other => return Err(violation("reply", format_args!("{other:?}"))),
        };
        let mut send = OpenSend { dry_run, digests: spec.send.digests || dry_run, ..spec.send.clone() };
        for (source, target) in send.sources.iter_mut().zip(&choice.targets) {
            source.to = target.clone();
        }
        let push = Request::Push { send, to: spec.to.clone(), grant };
        let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
        let mut source = dialler.connect_ahead(&spec.from, &ahead)?;
        match source.ask(push)? {
            Reply::Pushing => self.follow(&mut source),
            other => Err(violation("reply", format_args!("{other:?}"))),
        }
    }

    /// Follows the source until it reports the end; tells it to stop when that is requested.
    fn follow(&self, source: &mut Session) -> Result<Summary, Error> {
        let link = source.control.sender();
        let _hook = self.active.stop.on_stop(move |error| drop(link.send(&Control::Abort(error))));
        loop {
            match source.control.recv()? {
                Control::Progress(progress) => self.active.watch.set(progress),
                Control::WouldSend(paths) => self.active.watch.note_would_send(paths),
                Control::Removed(_) | Control::Found(_) => {}
                Control::Failures(failures) => self.list(&failures),
                Control::Finished(ended) => return ended,
                other => return Err(violation("push", format_args!("{other:?}"))),
            }
        }
    }

    /// Stores failed files up to the limit. A failure that cannot be stored is counted all the same.
    fn list(&self, failures: &[EntryFailure]) {
        let room = MAX_FAILURES.saturating_sub(self.listed.get());
        let listed = &failures[..failures.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let catalogue = self.room.state.catalogue();
        match catalogue.and_then(|all| all.add_failures(&self.row.id, self.listed.get(), listed)) {
            Ok(()) => self.listed.set(self.listed.get() + listed.len() as u64),
            Err(error) => tracing::warn!(%error, "failures are not listed"),
        }
    }

    /// Verifies content by a dry run that compares digests: it must find nothing to send.
    fn compare(
        &self,
        dialler: &Dialler,
        spec: &Submission,
        choice: &Choice,
        open: OpenReceive,
    ) -> Result<(), Error> {
        let seen = self.active.watch.look();
        let options = ReceiveOptions { dry_run: true, ..ReceiveOptions::plain(Existing::SameContent) };
        let mut target = dialler.connect(&spec.to)?;
        self.active.watch.take_notes();
        self.push(dialler, &mut target, spec, choice, OpenReceive { options, ..open }, true)?;
        self.active.watch.set(seen);
        let differ = self.active.watch.take_notes();
        let Some(Note::WouldSend(first)) = differ.first() else { return Ok(()) };
        let cause =
            format!("{}, the first is {first}", counted(differ.len(), "file differs", "files differ"));
        Err(Error::new(Code::DigestMismatch, "compare", spec.to.as_str(), cause).at(spec.to.as_str()))
    }
}

/// Converts a refusal by a relay to the transient `NoRoute`: another route may open, or the relay's configuration
/// change.
fn of_relay(error: Error, ends: [&SiteName; 3]) -> Error {
    let refused = matches!(error.kind(), Kind::Identity | Kind::Permission);
    match SiteName::parse(&error.side) {
        Ok(side) if refused && !ends.contains(&&side) => {
            Error::new(Code::NoRoute, "go through", &side, &error).at(side.as_str())
        }
        _ => error,
    }
}

/// Creates the destination; idempotent, as an earlier attempt may have created it.
fn make(target: &mut Session, spec: &Submission) -> Result<(), Error> {
    match target.ask(Request::Mkdir { place: spec.open.to.clone(), parents: false }) {
        Ok(_) => Ok(()),
        Err(error) if error.code == Code::PathExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_in_between_ends_no_transfer() {
        let [home, from, to] = ["home", "from", "to"].map(|name| SiteName::parse(name).unwrap());
        let seen = |code, side: &str| {
            let error = of_relay(Error::new(code, "greet", "", "").at(side), [&home, &from, &to]);
            (error.code, error.side)
        };
        assert_eq!(seen(Code::UnknownAuthority, "hub"), (Code::NoRoute, "hub".into()));
        assert_eq!(seen(Code::RelayRefused, "hub"), (Code::NoRoute, "hub".into()));
        for (code, side) in [
            (Code::UnknownAuthority, "to"),
            (Code::NotMapped, "from"),
            (Code::CertificateRevoked, "home"),
            (Code::PathNotFound, "hub"),
        ] {
            assert_eq!(seen(code, side), (code, side.into()));
        }
    }
}
