//! `renkei map test` of a name or attribute of the grid, and of the file of a proxy: each step, and the account.

use crate::cli::Context;
use crate::cli::output::Report;
use renkei_config::Config;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Mapping, Pattern, Principal, Why};
use renkei_net::identity::account::Account;
use renkei_net::identity::grid::{GridTrust, GridUser, read_chain};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

#[derive(Serialize)]
struct Tested {
    /// The name in the certificate; empty if only an attribute was given.
    dn: String,
    fqans: Vec<String>,
    /// The steps that were good, in order.
    steps: Vec<String>,
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

/// Whether the argument of `map test` is of the grid.
pub(crate) fn is_of_grid(principal: &str) -> bool {
    let is_named = principal.starts_with("dn:") || principal.starts_with("fqan:");
    is_named || Principal::parse(principal).is_err() && Path::new(principal).is_file()
}

pub(crate) fn run(
    mapping: &Mapping,
    config: &Config,
    principal: &str,
    context: &Context,
) -> Result<u8, Error> {
    let trust = GridTrust::load(&config.grid);
    let mut steps = Vec::new();
    let user = user(&trust, principal, &mut |step| steps.push(step));
    let outcome = user.as_ref().map_err(Clone::clone).and_then(|user| trust.account(user, mapping));
    let servable =
        outcome.as_ref().map_err(Clone::clone).and_then(|(name, _)| Account::lookup(name)?.check_servable());
    let status = servable.as_ref().map_or_else(|error| error.kind().exit_status(), |()| 0);
    let (dn, fqans) = user.map(|user| (user.dn, user.fqans)).unwrap_or_default();
    let (account, why) = outcome.ok().unzip();
    let refusal = servable.err().map(|error| Refusal { code: error.code, cause: error.to_string() });
    let allowed = refusal.is_none();
    context.output.answer(&Tested { dn, fqans, steps, allowed, account, why, refusal })?;
    Ok(status)
}

/// The user of a name, an attribute or a file.
fn user(trust: &GridTrust, principal: &str, tell: &mut dyn FnMut(String)) -> Result<GridUser, Error> {
    let (dn, fqans) = match Pattern::parse(principal) {
        Ok(Pattern::Dn(dn)) => (dn, Vec::new()),
        Ok(Pattern::Fqan(fqan)) => (String::new(), vec![fqan]),
        Err(error) if !Path::new(principal).is_file() => return Err(error),
        _ => return trust.explain(&read_chain(Path::new(principal))?, SystemTime::now(), tell),
    };
    Ok(GridUser { dn, fqans, is_limited: false, until: SystemTime::now(), warnings: Vec::new() })
}

impl Report for Tested {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.steps.iter().try_for_each(|step| writeln!(out, "  {step}"))?;
        let name = if self.dn.is_empty() { self.fqans.join(" ") } else { self.dn.clone() };
        match (&self.account, &self.why, &self.refusal) {
            (Some(account), Some(why), None) => writeln!(out, "{name} becomes {account}: {why}"),
            (_, _, Some(refusal)) => writeln!(out, "{name} is refused: {}", refusal.cause),
            _ => Ok(()),
        }
    }
}
