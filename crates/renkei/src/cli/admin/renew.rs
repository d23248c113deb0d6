//! `renkei renew`: a fresh certificate for the PoP.

use crate::cli::Context;
use crate::cli::output::Report;
use crate::cli::queue::change;
use renkei_config::Config;
use renkei_core::error::Error;
use renkei_core::identity::Principal;
use renkei_net::identity::authority::{Authority, renew_host};
use renkei_net::identity::certificate::{unix_seconds, utc};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// Give the PoP a fresh certificate for a year, or queued transfers a fresh credential
///
/// Without ID: the PoP in this directory. With ID: your queued transfer, which works with a credential of its own for
/// some days (`delegation_days`); one that waits because it has expired goes on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Queued transfers, by the first digits (4 at least) of their ids
    #[arg(value_name = "ID")]
    ids: Vec<OsString>,
    /// Make a new key too
    #[arg(long, conflicts_with = "ids")]
    new_key: bool,
}

#[derive(Serialize)]
struct Renewed {
    principal: Principal,
    serial: String,
    expires: String,
    expires_unix: i64,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    if !args.ids.is_empty() {
        return change::renew(&args.ids, context);
    }
    let home = context.home()?;
    let authority = Authority::load(&home)?;
    let endpoints = Config::load(&home)?.announced_endpoints();
    let fresh = renew_host(&home, &authority, &endpoints, args.new_key, context.now())?;
    context.output.done(&Renewed {
        principal: fresh.principal,
        serial: fresh.serial,
        expires: utc(fresh.not_after),
        expires_unix: unix_seconds(fresh.not_after),
    })?;
    Ok(0)
}

impl Report for Renewed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "the PoP of {} has a certificate until {}", self.principal, self.expires)?;
        writeln!(out, "a running PoP uses it within seconds; it also renews it automatically in time")
    }
}
