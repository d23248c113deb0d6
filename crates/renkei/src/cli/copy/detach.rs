//! `--detach`: submits a copy to the queue of the user's own PoP, and returns.

use super::copy_plan::Direction;
use super::options::Detach;
use super::transfer::Run;
use super::upload;
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::connect::own_site;
use crate::cli::output::Report;
use renkei_catalogue::hex_id;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::path::SiteName;
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::message::OpenSend;
use renkei_core::wire::queue::{Submission, Terms};
use serde::Serialize;
use std::io::{self, Write};

/// Attempts of a submission over lost connections; the id makes it idempotent.
const TRIES: u32 = 3;

#[derive(Serialize)]
struct Queued {
    transfer: String,
    site: String,
}

impl Run<'_> {
    /// The submission with which a PoP runs it unattended, with default terms.
    ///
    /// # Errors
    /// `NotQueueable` if the destination is on this machine; the error why no destination can be planned.
    fn submission(&self) -> Result<Submission, Error> {
        let Direction::Between(from, _) = &self.direction else {
            return Err(not_to_here(self.destination.shown()));
        };
        self.submission_from(from, self.open_send(false, self.names()?)?)
    }

    /// The same, of sources at a site.
    pub(crate) fn submission_from(&self, from: &SiteName, send: OpenSend) -> Result<Submission, Error> {
        let to = self.direction.to().ok_or_else(|| not_to_here(self.destination.shown()))?;
        let copy = self.open_copy()?;
        let at_site = |error: Error| Error { subject: format!("{to}:{}", error.subject), ..error };
        copy.outcomes().map_err(at_site)?;
        // A copy onto itself is refused by the site at that time, with its code.
        let copy = OpenCopy { beside: Vec::new(), ..copy };
        Ok(Submission { from: from.clone(), send, to: to.clone(), copy, terms: Terms::default() })
    }
}

/// Submits a copy and prints its id.
pub(crate) fn hand_over(run: Run<'_>, detach: &Detach, context: &Context) -> Result<u8, Error> {
    if let Direction::Up(_) = run.direction {
        return upload::hand_over(run, detach, context);
    }
    let mut asker = Asker::new(context, false);
    let terms = detach.terms(&mut asker, context)?;
    hand_in(&mut asker, &Submission { terms, ..run.submission()? }, context)
}

/// Submits a transfer and prints its id.
pub(crate) fn hand_in(
    asker: &mut Asker<'_>,
    submission: &Submission,
    context: &Context,
) -> Result<u8, Error> {
    let mut tries = 1;
    loop {
        match asker.submit(submission.clone()) {
            Ok(()) => break,
            Err(error) if error.kind() == Kind::Unavailable && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
    let transfer = hex_id(&submission.send.transfer);
    context.output.answer(&Queued { transfer, site: own_site(context)?.to_string() })?;
    Ok(0)
}

impl Report for Queued {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.transfer)
    }
}

/// The error of a copy that cannot be submitted.
fn not_to_here(shown: impl std::fmt::Display) -> Error {
    let cause = "it is a path of this machine, which may not be reachable when the copy runs";
    Error::new(Code::NotQueueable, "queue", shown, cause)
}
