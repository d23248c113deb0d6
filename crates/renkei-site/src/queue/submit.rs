//! Submission: what is accepted into the queue, with a credential for each transfer.

use super::Queue;
use crate::access::Access;
use crate::submission::{lane, now_ms, read_spec, refused, short, unknown, write_spec};
use renkei_catalogue::{New, Put, hex_id};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_core::wire::copy::MAX_SOURCES;
use renkei_core::wire::encode;
use renkei_core::wire::message::TransferId;
use renkei_core::wire::queue::{MAX_AFTER, MAX_LABEL_BYTES, MAX_ORIGIN_BYTES, Submission, Terms};
use renkei_net::identity::delegation::Delegation;
use std::collections::{HashMap, HashSet};

const DAY_MS: u64 = 24 * 3600 * 1000;

/// One answer for each submission of a batch, and the rows and scopes of the accepted ones.
type Screened = (Vec<Result<(), Error>>, Vec<(usize, New, Scope)>);

impl Queue {
    /// Queues transfers for a user of this site; the result has one answer for each, in order.
    ///
    /// # Errors
    /// `NotAllowed` for users of other sites, `CatalogueFailed`.
    pub fn submit(&self, access: &Access, all: Vec<Submission>) -> Result<Vec<Result<(), Error>>, Error> {
        let owner = &access.principal;
        self.context.is_own_user(owner)?;
        let catalogue = self.state.catalogue()?;
        let (mut answers, mut good) = self.screen(&owner.to_string(), &all)?;
        good.retain(|(at, _, _)| {
            let sealed = self.buffer.seal_sources(owner, &all[*at]);
            let is_sealed = sealed.is_ok();
            answers[*at] = sealed;
            is_sealed
        });
        let scopes: Vec<Scope> = good.iter().map(|(_, _, scope)| scope.clone()).collect();
        for ((_, row, _), made) in good.iter_mut().zip(self.context.delegate(&access.proof, &scopes)?) {
            row.credential = made.to_bytes();
        }
        // Submissions that others of the batch depend on are inserted first.
        let good = in_order(good.into_iter().map(|(at, row, _)| (at, row)).collect());
        let rows: Vec<New> = good.iter().map(|(_, row)| row.clone()).collect();
        for ((at, row), put) in good.iter().zip(catalogue.submit(&rows)?) {
            answers[*at] = match put {
                Put::Conflict if self.is_stored(owner, &all[*at])? => Ok(()),
                put => answer(row, put),
            };
        }
        self.buffer.keep_sources(&all, &answers);
        let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
        tracing::info!(target: "audit", principal = %owner, accepted, refused = all.len() - accepted, "queued");
        self.state.ring();
        Ok(answers)
    }

    /// Validates each submission of a batch by itself; rows, with their indices in it, for the valid ones.
    fn screen(&self, owner: &str, all: &[Submission]) -> Result<Screened, Error> {
        let snapshot = self.context.snapshot();
        let limits = &snapshot.config.queue;
        let room = limits.max_queued_user.saturating_sub(self.state.catalogue()?.open_of(owner)?);
        let in_circle = in_circle(all);
        let (mut answers, mut good) = (Vec::with_capacity(all.len()), Vec::new());
        for (at, submission) in all.iter().enumerate() {
            let id = &submission.send.transfer;
            let checked = match in_circle.contains(id) {
                true => Err(Error::new(Code::DependencyCycle, "submit", short(id), "")),
                false => check(submission, &snapshot.trust).and_then(|()| has_room(good.len(), room, owner)),
            };
            let checked = checked.and_then(|()| self.check_notify(&submission.terms.notify));
            let checked = checked.and_then(|()| self.scope(submission)).map(|scope| {
                good.push((at, new_row(owner, submission, limits.deadline_days), scope));
            });
            answers.push(checked);
        }
        Ok((answers, good))
    }

    /// The scope of a transfer's credential: read its sources, write its targets, and bring them to the buffer here
    /// if that may be needed.
    fn scope(&self, submission: &Submission) -> Result<Scope, Error> {
        let scope = Scope::of_transfer(submission)?;
        match self.spills(submission) {
            // A scope with no room for the extra permits stays as it is; the transfer is then not spilled.
            true => Ok(scope
                .with_own(&self.context.name(), renkei_core::buffer::place(&submission.send.transfer))
                .unwrap_or(scope)),
            false => Ok(scope),
        }
    }

    /// Whether a transfer is stored as it is submitted; rows of earlier versions have other digests.
    fn is_stored(&self, owner: &Principal, submission: &Submission) -> Result<bool, Error> {
        let row = self.state.catalogue()?.load(&submission.send.transfer)?;
        let row = row.filter(|row| row.owner == owner.to_string());
        let stored = row.map(|row| read_spec(&row)).transpose()?;
        Ok(stored.is_some_and(|stored| undated(stored) == undated(submission.clone())))
    }

    /// A fresh credential for the user's own transfer.
    pub(super) fn delegate_again(&self, access: &Access, id: &TransferId) -> Result<Vec<u8>, Error> {
        let row = self.state.catalogue()?.load(id)?;
        let row = row.filter(|row| row.owner == access.principal.to_string());
        let row = row.ok_or_else(|| unknown(&short(id)))?;
        let made = self.context.delegate(&access.proof, &[self.scope(&read_spec(&row)?)?])?;
        Ok(made.first().map(Delegation::to_bytes).unwrap_or_default())
    }
}

fn answer(row: &New, put: Put) -> Result<(), Error> {
    let refused = |code, cause| Err(Error::new(code, "submit", short(&row.id), cause));
    match put {
        Put::There => Ok(()),
        Put::Conflict => refused(Code::SubmissionConflict, String::new()),
        Put::Unknown(other) => {
            refused(Code::TransferUnknown, format!("it shall wait for {}", hex_id(&other)))
        }
        Put::Abandoned(other) => {
            refused(Code::DependencyFailed, format!("{} has already failed or was cancelled", hex_id(&other)))
        }
    }
}

fn new_row(owner: &str, submission: &Submission, deadline_days: u64) -> New {
    let (submitted_ms, terms) = (now_ms(), &submission.terms);
    New {
        id: submission.send.transfer,
        owner: owner.into(),
        lane: lane(owner, submission),
        label: terms.label.clone(),
        priority: terms.priority,
        submitted_ms,
        digest: digest(owner, submission),
        spec: write_spec(submission),
        deadline_ms: terms.deadline_ms.unwrap_or(submitted_ms + deadline_days * DAY_MS),
        after: terms.after.clone(),
        credential: Vec::new(),
        notify: terms.notify.clone(),
    }
}

/// The digest that tells whether two submissions are identical: all fields but the deadline, which is reckoned from
/// the submission.
fn digest(owner: &str, submission: &Submission) -> [u8; 32] {
    let filter = &submission.send.filter;
    *blake3::hash(&encode(&(owner, undated(submission.clone()), filter))).as_bytes()
}

/// The submission without its deadline.
fn undated(submission: Submission) -> Submission {
    Submission { terms: Terms { deadline_ms: None, ..submission.terms }, ..submission }
}

fn has_room(taken: usize, room: u64, owner: &str) -> Result<(), Error> {
    if (taken as u64) < room {
        return Ok(());
    }
    Err(Error::new(Code::QueueFull, "submit", owner, ""))
}

/// Validates a submission by itself.
fn check(submission: &Submission, trust: &renkei_net::identity::trust::Trust) -> Result<(), Error> {
    let Submission { from, send, to, copy, terms } = submission;
    let refused = |cause: &str| Err(refused(Code::NotQueueable, &send.transfer, cause));
    if send.transfer != copy.transfer {
        return refused("its two halves have different ids");
    }
    if send.dry_run || copy.options.dry_run {
        return refused("a dry run is not queued");
    }
    if send.sources.is_empty() || send.sources.len() > MAX_SOURCES {
        return refused("it has no sources, or too many");
    }
    let too_long = terms.label.len() > MAX_LABEL_BYTES || terms.origin.len() > MAX_ORIGIN_BYTES;
    if too_long || terms.after.len() > MAX_AFTER {
        return refused("its label is too long, or it waits for too many others");
    }
    trust.endpoints(from).and_then(|_| trust.endpoints(to)).map(drop)
}

/// The submissions of a batch in a dependency cycle, or that depend on one.
fn in_circle(all: &[Submission]) -> HashSet<TransferId> {
    let mut left: HashMap<TransferId, &[TransferId]> =
        all.iter().map(|one| (one.send.transfer, one.terms.after.as_slice())).collect();
    loop {
        let free: Vec<TransferId> = left
            .iter()
            .filter(|(_, after)| !after.iter().any(|other| left.contains_key(other)))
            .map(|(id, _)| *id)
            .collect();
        if free.is_empty() {
            return left.into_keys().collect();
        }
        left.retain(|id, _| !free.contains(id));
    }
}

/// Topological order: each submission after those of the batch it depends on; there is no cycle.
fn in_order(mut left: Vec<(usize, New)>) -> Vec<(usize, New)> {
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let ids: HashSet<TransferId> = left.iter().map(|(_, row)| row.id).collect();
        let (later, now): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(_, row)| row.after.iter().any(|other| ids.contains(other)));
        ordered.extend(now);
        left = later;
    }
    ordered
}
