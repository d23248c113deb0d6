//! Submissions as the catalogue stores them, and the errors that name a transfer by its id.
//!
//! The queue and the buffer share them; the rows themselves are in `renkei_catalogue`.

use renkei_catalogue::{Row, hex_id};
use renkei_core::error::{Code, Error};
use renkei_core::format::Format;
use renkei_core::mover::filter::Filter;
use renkei_core::path::SiteName;
use renkei_core::queue::Link;
use renkei_core::wire::decode;
use renkei_core::wire::message::TransferId;
use renkei_core::wire::queue::Submission;
use renkei_core::wire::wire3::SubmissionFound;
use renkei_net::unix_ms;
use std::time::SystemTime;

/// The format of a submission: in the form of wire 3 in version 1, with its filter in version 2, as a copy with its
/// filter in version 3.
pub(crate) const SPEC: Format<Submission> = Format::numbered(
    "submission",
    &[
        |kind, bytes| decode::<SubmissionFound>(kind, bytes)?.lifted(),
        |kind, bytes| {
            let (found, filter): (SubmissionFound, Filter) = decode(kind, bytes)?;
            Ok(filtered(found.lifted()?, &filter))
        },
        |kind, bytes| {
            let (submission, filter) = decode(kind, bytes)?;
            Ok(filtered(submission, &filter))
        },
    ],
);

fn filtered(mut submission: Submission, filter: &Filter) -> Submission {
    submission.set_filter(filter);
    submission
}

/// The short form of an id, for messages.
pub(crate) fn short(id: &TransferId) -> String {
    hex_id(id)[..8].to_owned()
}

/// The error for a prefix of several ids; it lists those given in full.
pub(crate) fn ambiguous(digits: &str, ids: impl Iterator<Item = String>) -> Error {
    let ids: Vec<String> = ids.collect();
    Error::new(Code::IdAmbiguous, "look up", digits, format!("it may be {}", ids.join(", ")))
}

/// The error for an id that no transfer has.
pub(crate) fn unknown(id: &str) -> Error {
    Error::new(Code::TransferUnknown, "look up", id, "")
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    unix_ms(SystemTime::now())
}

/// Decodes the submission of a row.
pub(crate) fn read_spec(row: &Row) -> Result<Submission, Error> {
    SPEC.decode(&row.spec)
}

/// Encodes a submission for a row.
pub(crate) fn write_spec(submission: &Submission) -> Vec<u8> {
    SPEC.encode_as(3, &(submission, &submission.send.filter))
}

/// The lane of a transfer: its owner and link.
pub(crate) fn lane(owner: &str, submission: &Submission) -> String {
    format!("{owner}\n{}\n{}", submission.from, submission.to)
}

/// Decodes the owner and the link of a lane.
pub(crate) fn read_lane(lane: &str) -> Option<(String, Link)> {
    let mut parts = lane.split('\n');
    let owner = parts.next()?.to_owned();
    let (from, to) = (SiteName::parse(parts.next()?).ok()?, SiteName::parse(parts.next()?).ok()?);
    Some((owner, Link { from, to }))
}

/// The error of a refused submission.
pub(crate) fn refused(code: Code, id: &TransferId, cause: &str) -> Error {
    Error::new(code, "submit", short(id), cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_lane_names_owner_and_link() {
        let (owner, link) = read_lane(&lane("alice@kek", &crate::stored_tests::submission())).unwrap();
        assert_eq!((&*owner, link.from.as_str(), link.to.as_str()), ("alice@kek", "kek", "titech"));
        assert!(read_lane("alice@kek").is_none());
    }

    #[test]
    fn ids_of_errors_are_short_and_ambiguous_ones_are_listed() {
        assert_eq!(refused(Code::NotQueueable, &[7; 16], "").subject, "07070707");
        let ids = ["07aa", "07bb"].map(str::to_owned).into_iter();
        assert_eq!(ambiguous("07", ids).cause, "it may be 07aa, 07bb");
    }
}
