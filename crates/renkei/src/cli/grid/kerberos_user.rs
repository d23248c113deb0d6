//! `renkei map test` of a Kerberos principal.

use crate::cli::Context;
use crate::cli::output::Report;
use renkei_config::Config;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Mapping, Why};
use renkei_net::identity::account::Account;
use renkei_net::identity::kerberos;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Tested {
    kerberos: String,
    allowed: bool,
    account: Option<String>,
    why: Option<Why>,
    refusal: Option<Refusal>,
}

#[derive(Serialize)]
struct Refusal {
    code: Code,
    cause: String,
}

pub(crate) fn run(
    mapping: &Mapping,
    config: &Config,
    principal: &str,
    context: &Context,
) -> Result<u8, Error> {
    let kerberos = principal.trim_start_matches("krb:").to_owned();
    let outcome = kerberos::account(&kerberos, mapping, config);
    let servable =
        outcome.as_ref().map_err(Clone::clone).and_then(|(name, _)| Account::lookup(name)?.check_servable());
    let status = servable.as_ref().map_or_else(|error| error.kind().exit_status(), |()| 0);
    let (account, why) = outcome.ok().unzip();
    let refusal = servable.err().map(|error| Refusal { code: error.code, cause: error.to_string() });
    let allowed = refusal.is_none();
    context.output.answer(&Tested { kerberos, allowed, account, why, refusal })?;
    Ok(status)
}

impl Report for Tested {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        match (&self.account, &self.why, &self.refusal) {
            (Some(account), Some(why), None) => writeln!(out, "{} becomes {account}: {why}", self.kerberos),
            (_, _, Some(refusal)) => writeln!(out, "{} is refused: {}", self.kerberos, refusal.cause),
            _ => Ok(()),
        }
    }
}
