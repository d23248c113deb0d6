//! One attempt of a queued transfer, in a thread of its own.
//!
//! It does what a client would do: it has the destination grant the copy, and the source push. So the data goes from site
//! to site, and the user's PoP only controls and follows the transfer. The layout that the destination chose is stored
//! before anything is sent; the end of an attempt is stored before it is reported.

use super::Queue;
use super::state::{Active, With};
use crate::submission::{now_ms, read_spec};
use renkei_catalogue::{Row, hex_id};
use renkei_core::error::{Code, Error, Kind};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::mover::layout::CopyLayout;
use renkei_core::path::SiteName;
use renkei_core::queue::{Event, Link};
use renkei_core::units::counted;
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{
    Control, EntryFailure, Existing, OpenSend, Progress, ReceiveOptions, Request, Summary,
};
use renkei_core::wire::queue::{Attempt, Submission, Verify};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{DialHints, Dialler};
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
                Ok(row) => return tracing::info!(state = row.job.state.name(), "stored"),
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
        let (mut target, spec) = self.reach(dialler, spec)?;
        let first = self.first_layout(&spec);
        let (layout, grant) = target.grant_copy(&spec.copy.again(first), &spec.from)?;
        if first.is_some_and(|first| first != layout) {
            let cause = "the directory that the copy went into is there no longer";
            return Err(Error::new(Code::PathNotFound, "open", &spec.copy.to, cause).at(spec.to.as_str()));
        }
        self.store_layout(layout)?;
        self.active.stop.check()?;
        drop(target);
        let send = named(&spec, layout)?;
        let summary = self.push(dialler, &spec.from, &spec.to, send, grant)?;
        if spec.terms.verify == Verify::Both && summary.failed == 0 {
            self.compare(dialler, &spec, layout)?;
        }
        Ok(summary)
    }

    /// The layout that an earlier attempt had.
    fn first_layout(&self, spec: &Submission) -> Option<CopyLayout> {
        let resolved = spec.copy.resolve(self.row.job.found?);
        resolved.ok().map(|resolved| resolved.layout)
    }

    /// Stores the layout before anything is sent; one stored before takes precedence.
    fn store_layout(&mut self, layout: CopyLayout) -> Result<(), Error> {
        let (queue, found) = (&self.room.state, Event::Found(layout.found()));
        self.row = queue.happen(&self.row.id, &found, &|_| Ok(()), &With::default())?;
        Ok(())
    }

    /// Has the source push to the place that the destination granted.
    pub(crate) fn push(
        &self,
        dialler: &Dialler,
        from: &SiteName,
        to: &SiteName,
        send: OpenSend,
        grant: Ticket,
    ) -> Result<Summary, Error> {
        let push = Request::Push { send, to: to.clone(), grant };
        let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
        let mut source = dialler.connect_ahead(from, &ahead)?;
        source.push(push, &self.active.watch, &self.active.stop, &mut |message| {
            match message {
                Control::Removed(_) => {}
                Control::Failures(failures) => self.list(&failures),
                other => return Err(violation("push", format_args!("{other:?}"))),
            }
            Ok(())
        })
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
    fn compare(&self, dialler: &Dialler, spec: &Submission, layout: CopyLayout) -> Result<(), Error> {
        let seen = self.active.watch.look();
        let options = ReceiveOptions { dry_run: true, ..ReceiveOptions::plain(Existing::SameContent) };
        let copy = OpenCopy { options, ..spec.copy.again(Some(layout)) };
        let (layout, grant) = dialler.connect(&spec.to)?.grant_copy(&copy, &spec.from)?;
        let send = OpenSend { dry_run: true, digests: true, ..named(spec, layout)? };
        self.active.watch.take_notes();
        self.push(dialler, &spec.from, &spec.to, send, grant)?;
        self.active.watch.set(seen);
        let differ = self.active.watch.take_notes();
        let Some(Note::WouldSend(first)) = differ.first() else { return Ok(()) };
        let cause =
            format!("{}, the first is {first}", counted(differ.len(), "file differs", "files differ"));
        Err(Error::new(Code::DigestMismatch, "compare", spec.to.as_str(), cause).at(spec.to.as_str()))
    }
}

/// The sources with their target names in a layout.
fn named(spec: &Submission, layout: CopyLayout) -> Result<OpenSend, Error> {
    let targets = layout.targets(&spec.send.targets(), spec.copy.to.path.name())?;
    spec.send.clone().with_targets(targets)
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
