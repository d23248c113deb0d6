//! The home of a volume: orders the changes.

use super::tree::{Clash, Tree, decide};
use super::{Origin, Record, SequencedChange};
use crate::encoding::violation;
use crate::error::Error;
use std::collections::BTreeMap;

/// The home's position in the log; stored together with each record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Home {
    seq: u64,
    /// The last change of each origin that is in the log.
    taken: BTreeMap<Origin, u64>,
}

impl Home {
    /// Resumes after record `seq`, with the last change of each origin in the log.
    pub fn resume(seq: u64, taken: BTreeMap<Origin, u64>) -> Self {
        Home { seq, taken }
    }

    /// The last record.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The last change of an origin that is in the log.
    pub fn taken(&self, origin: Origin) -> u64 {
        self.taken.get(&origin).copied().unwrap_or(0)
    }

    /// Decides a change; returns the record to store, apply and send, or `None` if the log already has it
    /// (idempotent). A refused change has a record too: its origin waits for it.
    ///
    /// # Errors
    /// `ProtocolViolation` if there is a gap before the change's number.
    pub fn handle(&mut self, tree: &impl Tree, sent: &SequencedChange) -> Result<Option<Record>, Error> {
        let taken = self.taken(sent.origin);
        if sent.number <= taken {
            return Ok(None);
        }
        if sent.number != taken + 1 {
            let cause = format!("change {} after {taken}", sent.number);
            return Err(violation("volume", cause));
        }
        let seq = self.seq + 1;
        let outcome = decide(tree, seq, sent, Clash::AsWanted);
        self.seq = seq;
        self.taken.insert(sent.origin, sent.number);
        Ok(Some(Record { seq, origin: sent.origin, number: sent.number, outcome }))
    }
}
