//! Queued transfers between two other sites whose destination cannot be reached: their files are brought to the buffer
//! here, hop one, and forwarded when the destination is back, hop two.
//!
//! Both hops are pushes like those of any attempt. The state of a transfer is the buffer's alone: once all files
//! have arrived, verified and durable, the piece is sealed, and every later attempt sends from it, whatever happens
//! to the source. Before that an attempt reads from the source, so that a kill in the middle costs only time: hop
//! one resumes at the block.
//!
//! Only plain copies are spilled. The differences that `sync` needs are known to the destination alone.

use super::Queue;
use super::attempt::Run;
use crate::access::account_name;
use crate::buffer::Reservation;
use crate::submission::now_ms;
use renkei_core::buffer::{Answer, place, source, split};
use renkei_core::error::{Code, Error, Kind};
use renkei_core::identity::{Need, Principal};
use renkei_core::wire::buffer::RoomState;
use renkei_core::wire::message::{
    Existing, OpenReceive, OpenSend, ReceiveOptions, Reply, Request, Source, Summary,
};
use renkei_core::wire::queue::{Attempt, Submission};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{Dialler, Session};

/// Time after which a waiting request expires if it is not repeated, in milliseconds; attempts are at most 5
/// minutes apart.
const PATIENCE_MS: u64 = 10 * 60 * 1000;

/// Whether it is a plain copy, independent of the state of the destination.
fn is_plain(spec: &Submission) -> bool {
    let options = &spec.copy.options;
    options.existing == Existing::Replace && !options.delete
}

/// The start of the oldest of the last consecutive attempts that failed as unavailable and moved nothing.
fn unreachable_since(attempts: &[Attempt]) -> Option<u64> {
    let in_vain = |attempt: &&Attempt| {
        let unavailable = attempt.error.as_ref().is_some_and(|error| error.kind() == Kind::Unavailable);
        attempt.bytes_moved == 0 && (unavailable || attempt.ended_ms.is_none())
    };
    attempts.iter().rev().take_while(in_vain).last().map(|attempt| attempt.started_ms)
}

impl Queue {
    /// Whether a transfer may be spilled here if its destination is unreachable.
    pub(crate) fn spills(&self, spec: &Submission) -> bool {
        let (home, snapshot) = (self.context.name(), self.context.last_snapshot());
        let config = &snapshot.config.buffer;
        let wanted = config.size_mib > 0 && config.spill_after_s > 0;
        wanted && spec.from != home && spec.to != home && is_plain(spec)
    }
}

impl Run<'_> {
    /// A session with the destination, and the transfer to send: from the buffer if it is sealed there. If the
    /// destination has been unreachable for long, the files are brought to the buffer first.
    pub(crate) fn reach(&self, dialler: &Dialler, spec: &Submission) -> Result<(Session, Submission), Error> {
        if let Some(buffered) = self.out_of_buffer(spec) {
            return Ok((dialler.connect(&spec.to)?, buffered));
        }
        match dialler.connect(&spec.to) {
            Ok(session) => Ok((session, spec.clone())),
            Err(error) if self.is_to_spill(spec, &error)? => {
                self.fill(dialler, spec, &error)?;
                let buffered = self.out_of_buffer(spec).ok_or(error)?;
                Ok((dialler.connect(&spec.to)?, buffered))
            }
            Err(error) => Err(error),
        }
    }

    /// The transfer with the buffer as its source, if it is sealed there.
    fn out_of_buffer(&self, spec: &Submission) -> Option<Submission> {
        let home = self.room.context.name();
        let id = &spec.send.transfer;
        let (held, kept) = self.room.buffer.buffer().ok()?.held_by(id)?;
        if spec.from == home || !kept.sealed || held.leaving {
            return None;
        }
        let buffered = |(number, old): (usize, &Source)| Source { from: source(id, number), ..old.clone() };
        let sources = spec.send.sources.iter().enumerate().map(buffered).collect();
        Some(Submission { from: home, send: OpenSend { sources, ..spec.send.clone() }, ..spec.clone() })
    }

    fn is_to_spill(&self, spec: &Submission, error: &Error) -> Result<bool, Error> {
        if error.kind() != Kind::Unavailable || !self.room.spills(spec) {
            return Ok(false);
        }
        let home = self.room.context.name();
        let (id, scope) = (&spec.send.transfer, self.delegation()?.scope);
        if !scope.allows(&home, &place(id), Need::Write.rights()) {
            return Ok(false);
        }
        if self.room.buffer.buffer()?.held_by(id).is_some() {
            // Hop one was begun before, and is resumed.
            return Ok(true);
        }
        let since = unreachable_since(&self.room.state.catalogue()?.attempts(id)?);
        let after_ms = self.room.context.last_snapshot().config.buffer.spill_after_s.saturating_mul(1000);
        Ok(since.is_some_and(|since| now_ms().saturating_sub(since) >= after_ms))
    }

    /// Runs hop one.
    fn fill(&self, dialler: &Dialler, spec: &Submission, unreachable: &Error) -> Result<(), Error> {
        // A failure of hop one is reported, and the transfer continues to wait for its destination.
        let waits = |error: Error| match error.code {
            Code::Cancelled => error,
            _ => {
                let cause =
                    format!("{}; it could not be brought to the buffer either: {error}", unreachable.cause);
                Error { cause, ..unreachable.clone() }
            }
        };
        let bytes = self.size_at_source(dialler, spec).map_err(waits)?;
        self.reserve(spec, bytes).map_err(waits)?;
        tracing::info!(bytes, "the destination is out of reach, brought to the buffer");
        let summary = self.push_to_buffer(dialler, spec).map_err(waits)?;
        if let Some(failed) = summary.failures.first() {
            return Err(waits(failed.error.clone()));
        }
        let owner = Principal::parse(&self.row.owner)?;
        let keep_ms = self.room.buffer.keep_ms();
        self.room.buffer.buffer()?.seal(&spec.send.transfer, &owner, now_ms().saturating_add(keep_ms))?;
        tracing::info!("all of it is in the buffer");
        Ok(())
    }

    /// Bytes of content of all sources.
    fn size_at_source(&self, dialler: &Dialler, spec: &Submission) -> Result<u64, Error> {
        let mut session = dialler.connect(&spec.from)?;
        let mut bytes = 0_u64;
        for source in spec.send.sources.iter().filter(|source| !source.alone) {
            bytes = match session.ask(Request::Usage(source.from.clone()))? {
                Reply::Usage(usage) => bytes.saturating_add(usage.bytes),
                other => return Err(violation("reply", format_args!("{other:?}"))),
            };
        }
        Ok(bytes)
    }

    fn reserve(&self, spec: &Submission, bytes: u64) -> Result<(), Error> {
        let (owner, now) = (Principal::parse(&self.row.owner)?, now_ms());
        let snapshot = self.room.context.snapshot();
        let (account, _) = account_name(&owner, &snapshot)?;
        let until = now.saturating_add(self.room.buffer.keep_ms());
        let wanted = Reservation::new(&owner, &account, bytes, now, until);
        let buffer = snapshot.buffer()?;
        let Answer::Waits(shortage) = buffer.reserve(spec.send.transfer, wanted, now + PATIENCE_MS)? else {
            return Ok(());
        };
        let cause = buffer.room(&owner, bytes, RoomState::Waits(shortage)).waits(&snapshot.site);
        let error = Error::new(Code::BufferFull, "reserve", &owner, cause.unwrap_or_default());
        Err(error.at(snapshot.site.as_str()))
    }

    fn push_to_buffer(&self, dialler: &Dialler, spec: &Submission) -> Result<Summary, Error> {
        let (home, id) = (self.room.context.name(), &spec.send.transfer);
        let names = (0..spec.send.sources.len()).map(|number| split(&source(id, number)));
        let names = names.flatten().map(|(_, name)| name).collect();
        let open = OpenReceive {
            transfer: *id,
            job: spec.copy.job,
            to: place(id),
            options: ReceiveOptions::plain(Existing::Replace),
            class: spec.copy.class,
            max_streams: spec.copy.max_streams,
            rules: Vec::new(),
        };
        let send = spec.send.clone().with_targets(names)?;
        let grant = dialler.connect(&home)?.grant(open, &spec.from)?;
        self.push(dialler, &spec.from, &home, send, grant).map_err(|error| match error.code {
            Code::NoSpace | Code::QuotaExceeded if error.side == home.as_str() => {
                Error { code: Code::BufferDiskFull, ..error }
            }
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, bytes_moved: u64, code: Option<Code>) -> Attempt {
        Attempt {
            number,
            started_ms: u64::from(number) * 1000,
            ended_ms: code.map(|_| u64::from(number) * 1000 + 1),
            bytes_moved,
            files_done: 0,
            error: code.map(|code| Error::new(code, "connect", "kek", "")),
        }
    }

    #[test]
    fn unreachability_is_counted_from_the_first_of_the_latest_failures() {
        let lost = Some(Code::ConnectionLost);
        assert_eq!(unreachable_since(&[]), None);
        let now = attempt(9, 0, None);
        assert_eq!(unreachable_since(&[attempt(1, 0, lost), attempt(2, 0, lost), now.clone()]), Some(1000));
        assert_eq!(unreachable_since(&[attempt(1, 0, lost), attempt(2, 7, lost), now.clone()]), Some(9000));
        let denied = Some(Code::NotMapped);
        assert_eq!(unreachable_since(&[attempt(1, 0, denied), attempt(2, 0, lost), now]), Some(2000));
    }
}
