//! Third-party copies in the lists of transfers: they are not queued here, but are transfers of the users all the same.

use super::Queue;
use crate::access::Caller;
use crate::transfer::history::{Outcome, Route, Run};
use renkei_catalogue::{hex_id, parse_id};
use renkei_core::error::{Code, Error};
use renkei_core::queue::State;
use renkei_core::wire::message::TransferId;
use renkei_core::wire::queue::{Attempt, Listed, Queued, Story};
use renkei_net::unix_ms;

impl Queue {
    /// The third-party copies that belong on a page: all on the first one, newest first.
    pub(super) fn copies(&self, caller: Caller<'_>, listed: &Listed) -> Vec<Queued> {
        if listed.before.is_some() {
            return Vec::new();
        }
        let runs = self.runs_of(caller).into_iter();
        runs.filter(|run| listed.ended || run.outcome == Outcome::Running)
            .filter_map(|run| queued(&run))
            .filter(|copy| listed.label.as_ref().is_none_or(|label| *label == copy.label))
            .collect()
    }

    /// The details of a third-party copy, by a prefix of its id, if exactly one has it.
    pub(super) fn copy_story(&self, caller: Caller<'_>, digits: &str) -> Option<Story> {
        let mut found = self.runs_of(caller).into_iter().filter(|run| run.status.id.starts_with(digits));
        let run = found.next().filter(|_| found.next().is_none() && !digits.is_empty())?;
        Some(Story {
            transfer: queued(&run)?,
            after: Vec::new(),
            attempts: vec![attempt(&run)],
            failures: Vec::new(),
            link_rests_until_ms: None,
        })
    }

    /// Cancels a running third-party copy of the caller; whether there was one.
    pub(super) fn cancel_copy(&self, caller: Caller<'_>, id: &TransferId) -> bool {
        let id = hex_id(id);
        let is_it = |run: &Run| run.status.id == id && run.outcome == Outcome::Running;
        let is_there = self.runs_of(caller).iter().any(is_it);
        if is_there {
            let error = Error::new(Code::Cancelled, "copy", &id[..8], "cancelled");
            self.transfers.active.stop_of(&id, None, &error.at(self.context.name().as_str()));
        }
        is_there
    }

    /// The third-party copies that a caller may see.
    fn runs_of(&self, caller: Caller<'_>) -> Vec<Run> {
        let owner = caller.principal().map(ToString::to_string);
        let mut runs = self
            .transfers
            .active
            .runs(|status| owner.as_ref().is_none_or(|owner| *owner == status.principal));
        runs.retain(|run| run.route.is_some());
        runs
    }
}

fn reason(run: &Run) -> Option<Error> {
    match &run.outcome {
        Outcome::Failed(error) => Some(error.clone()),
        _ => None,
    }
}

fn ended_ms(run: &Run) -> Option<u64> {
    (run.outcome != Outcome::Running).then(|| unix_ms(run.began + run.lasted))
}

fn state(run: &Run) -> State {
    match &run.outcome {
        // No connection was made yet and none moved a byte: it waits for its turn.
        Outcome::Running if run.status.progress.files_found == 0 => State::Queued,
        Outcome::Running => State::Running,
        Outcome::Done { .. } | Outcome::Ended => State::Done,
        Outcome::Failed(error) if error.code == Code::Cancelled => State::Cancelled,
        Outcome::Failed(_) => State::Failed,
    }
}

/// A copy as a transfer of the queue is listed.
fn queued(run: &Run) -> Option<Queued> {
    let Route { from, to, by } = run.route.clone()?;
    let summary = match &run.outcome {
        Outcome::Done { summary, .. } => Some(summary.clone()),
        _ => None,
    };
    Some(Queued {
        id: parse_id(&run.status.id)?,
        owner: run.status.principal.clone(),
        from,
        to,
        state: state(run),
        stopping: false,
        reason: reason(run),
        next_ms: None,
        needs: 0,
        submitted_ms: unix_ms(run.began),
        deadline_ms: 0,
        ended_ms: ended_ms(run),
        attempts: 1,
        priority: 0,
        class: run.status.class,
        // Users see here which way it goes.
        label: by.into(),
        progress: Some(run.status.progress),
        summary,
        buffered: None,
    })
}

fn attempt(run: &Run) -> Attempt {
    Attempt {
        number: 1,
        started_ms: unix_ms(run.began),
        ended_ms: ended_ms(run),
        bytes_moved: run.status.progress.bytes_moved,
        files_done: run.status.progress.files_done,
        error: reason(run),
    }
}
