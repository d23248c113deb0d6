//! The queue as users see it: pages of it, and one transfer in detail.

use super::Queue;
use crate::access::Caller;
use crate::submission::{ambiguous, now_ms, read_spec, unknown};
use crate::transfer::jobs::places_at;
use renkei_catalogue::{Listing, Row, first_digits, hex_id, no_digits};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::queue::Link;
use renkei_core::wire::message::{BATCH_ENTRIES, EntryFailure, TransferId};
use renkei_core::wire::parts;
use renkei_core::wire::queue::{Listed, Queued, Story};

/// Page size of a list.
const PART: usize = 256;

impl Queue {
    /// A page of the queue: a user's own transfers, or all for the administrator.
    pub fn list(&self, caller: Caller<'_>, listed: &Listed) -> Result<Vec<Queued>, Error> {
        let who = caller.principal();
        let owner = who.map(Principal::to_string);
        let listing =
            Listing { owner: owner.as_deref(), listed, state: None, limit: PART.min(BATCH_ENTRIES) };
        let rows = self.state.catalogue()?.list(&listing)?;
        let mut page = self.copies(caller, listed);
        for row in &rows {
            page.push(self.told(row)?);
        }
        Ok(page)
    }

    /// Details of one transfer, by a prefix of its id.
    ///
    /// # Errors
    /// `TransferUnknown`, `IdAmbiguous`.
    pub fn transfer(&self, caller: Caller<'_>, digits: &str) -> Result<Story, Error> {
        let who = caller.principal();
        let catalogue = self.state.catalogue()?;
        let row = match self.find_one(who, digits) {
            Err(error) if error.code == Code::TransferUnknown => {
                return self.copy_story(caller, digits).ok_or(error);
            }
            found => found?,
        };
        let spec = read_spec(&row)?;
        let link = Link { from: spec.from.clone(), to: spec.to.clone() };
        let link_rests_until_ms = self.state.load().rests_until(&link, now_ms());
        let failures = self.failures(Caller::Administrator, &row.id, 0)?;
        Ok(Story {
            transfer: self.told(&row)?,
            after: catalogue.states(&spec.terms.after)?,
            attempts: catalogue.attempts(&row.id)?,
            failures: failures.into_iter().map(|(_, failure)| failure).collect(),
            link_rests_until_ms: link_rests_until_ms.filter(|_| !row.job.state.is_end()),
        })
    }

    /// A page of the failed files of a transfer: those after a number.
    ///
    /// # Errors
    /// `TransferUnknown`.
    pub fn failures(
        &self,
        caller: Caller<'_>,
        id: &TransferId,
        after: u64,
    ) -> Result<Vec<(u64, EntryFailure)>, Error> {
        let who = caller.principal();
        let row = self.find_one(who, &hex_id(id))?;
        let listed = self.state.catalogue()?.failures(&row.id, after, BATCH_ENTRIES)?;
        // Only as many as fit in one message: names can be long.
        Ok(parts(listed, BATCH_ENTRIES).into_iter().next().unwrap_or_default())
    }

    /// The only transfer whose id has this prefix.
    fn find_one(&self, who: Option<&Principal>, digits: &str) -> Result<Row, Error> {
        let none = || Error { cause: no_digits(digits), ..unknown(digits) };
        let digits = first_digits(digits).ok_or_else(none)?;
        let owner = who.map(Principal::to_string);
        let mut found = self.state.catalogue()?.find(&digits, owner.as_deref())?;
        match found.len() {
            0 => Err(unknown(&digits)),
            1 => Ok(found.remove(0)),
            _ => Err(ambiguous(&digits, found.iter().map(|row| hex_id(&row.id)))),
        }
    }

    /// The transfer as it is listed.
    pub(crate) fn told(&self, row: &Row) -> Result<Queued, Error> {
        let spec = read_spec(row)?;
        let active = self.state.active().get(&row.id).cloned();
        let job = row.job.clone();
        let reached = row.reached.filter(|_| !job.state.is_end());
        let from = match spec.terms.origin.as_str() {
            "" => places_at(&spec.from, &spec.send),
            origin => origin.to_owned(),
        };
        Ok(Queued {
            id: row.id,
            owner: row.owner.clone(),
            from,
            to: format!("{}:{}", spec.to, spec.copy.to),
            state: job.state,
            stopping: job.wish.is_some(),
            reason: match &active {
                Some(active) => active.trying.look().map(|silent| silent.at(self.context.name().as_str())),
                None => job.reason,
            },
            next_ms: job.next_ms,
            needs: job.needs,
            submitted_ms: row.submitted_ms,
            deadline_ms: job.deadline_ms,
            ended_ms: job.ended_ms,
            attempts: job.attempts,
            priority: spec.terms.priority,
            class: spec.send.class,
            label: spec.terms.label,
            progress: active.map(|active| active.watch.look()).or(reached),
            summary: job.summary,
            buffered: self.buffer.buffered(&row.id),
        })
    }
}
