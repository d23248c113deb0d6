//! `renkei cancel`, `pause`, `resume` and `retry`: change queued transfers.

use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::many::Many;
use crate::cli::output::Report;
use renkei_catalogue::{hex_id, parse_id};
use renkei_core::error::{Code, Error};
use renkei_core::queue::Change;
use renkei_core::wire::message::TransferId;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io::{self, Write};

/// Which transfers to change.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The transfers, by the first digits (4 at least) of their ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<OsString>,
    /// Also somebody else's: for the administrator, on the PoP's machine
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Changed {
    change: &'static str,
    #[serde(skip)]
    shown: &'static str,
    transfers: Vec<String>,
    failures: Vec<Value>,
}

pub(crate) fn run(change: Change, args: &Args, context: &Context) -> Result<u8, Error> {
    let (name, shown) = match change {
        Change::Cancel => ("cancel", "cancelled"),
        Change::Pause => ("pause", "paused"),
        Change::Resume => ("resume", "resumed"),
        Change::Retry => ("retry", "retried"),
    };
    each(&args.ids, args.all, (name, shown), context, |asker, id| asker.change(id, change))
}

/// `renkei renew ID`: renews the credentials of transfers.
pub(crate) fn renew(ids: &[OsString], context: &Context) -> Result<u8, Error> {
    each(ids, false, ("renew", "renewed"), context, |asker, id| asker.renew(id))
}

fn each(
    ids: &[OsString],
    all: bool,
    (change, shown): (&'static str, &'static str),
    context: &Context,
    work: impl Fn(&mut Asker<'_>, TransferId) -> Result<(), Error>,
) -> Result<u8, Error> {
    let (mut many, mut asker, mut transfers) = (Many::new(context), Asker::new(context, all), Vec::new());
    many.each_argument(ids, |_, id| {
        let digits = id.to_str().unwrap_or_default();
        let found = match asker.story(digits) {
            Ok(story) => story.transfer.id,
            // An upload in the buffer that was not submitted has no history.
            Err(error) if error.code == Code::TransferUnknown => {
                parse_id(digits).ok_or_else(|| named(error, id))?
            }
            Err(error) => return Err(error),
        };
        work(&mut asker, found).map_err(|error| named(error, id))?;
        transfers.push(hex_id(&found));
        Ok(())
    })?;
    context.output.done(&Changed { change, shown, transfers, failures: many.failures().to_vec() })?;
    Ok(many.status())
}

/// Shows the id as typed where the error does not identify the transfer otherwise.
fn named(error: Error, id: &OsString) -> Error {
    match error.code {
        Code::TransferUnknown | Code::ChangeRefused => {
            Error { subject: id.to_string_lossy().into_owned(), ..error }
        }
        _ => error,
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.transfers.iter().try_for_each(|id| writeln!(out, "{}  {id}", self.shown))
    }
}
