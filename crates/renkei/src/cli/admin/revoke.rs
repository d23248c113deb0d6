//! `renkei revoke`: revokes certificates.

use crate::cli::Context;
use crate::cli::confirm::confirm;
use crate::cli::output::Report;
use renkei_config::home::{Home, read_text};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::authority::issued;
use renkei_net::identity::certificate::parse_serial;
use renkei_net::identity::certificate::{Facts, parse_chain};
use serde::Serialize;
use std::io::{self, Write};

/// Take back certificates this site issued
#[derive(Debug, clap::Args)]
pub struct Args {
    /// USER@SITE, the site's own name for its PoPs, or a serial number
    #[arg(value_name = "PRINCIPAL|SERIAL")]
    what: String,
    /// Do not ask about the certificate of the site's own PoPs
    #[arg(long)]
    yes: bool,
}

#[derive(Serialize)]
struct Revoked {
    what: String,
    serials: Vec<String>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (home, now) = (context.home()?, context.now());
    let authority = Authority::load(&home)?;
    let named = args.what.contains('@') || args.what == authority.site().as_str();
    let serials: Vec<String> = if named {
        check_own(&Principal::parse(&args.what)?, &authority)?;
        issued::find(&home, &args.what, now)?
    } else {
        vec![parse_serial(&args.what)?]
    };
    let serials = issued::with_children(&home, serials, now)?;
    confirm(args.yes, "revoke", &args.what, &own_pop(&home, &serials, &authority)?)?;
    if !serials.is_empty() {
        authority.revoke(&home, &serials, now)?;
    }
    context.output.done(&Revoked { what: args.what.clone(), serials })?;
    Ok(0)
}

/// Warnings if the PoP's own certificate is among them.
fn own_pop(home: &Home, serials: &[String], authority: &Authority) -> Result<Vec<String>, Error> {
    let pem = read_text(&home.host_cert(), 256 * 1024)?;
    let shown = pem.map(|pem| Facts::read(&parse_chain(&pem)?[0])).transpose()?.map(|facts| facts.serial);
    if !serials.iter().any(|serial| Some(serial) == shown.as_ref()) {
        return Ok(Vec::new());
    }
    let site = authority.site();
    Ok(vec![format!(
        "the PoP of {site} proves itself by this certificate: partners and users refuse it at once, until `renkei renew \
         --new-key` here"
    )])
}

fn check_own(principal: &Principal, authority: &Authority) -> Result<(), Error> {
    if principal.site() == authority.site() {
        return Ok(());
    }
    let cause = format!(
        "only {} itself can take its certificates back; `renkei map deny` shuts its users out here",
        principal.site()
    );
    Err(Error::new(Code::UsageInvalid, "revoke", principal, cause))
}

impl Report for Revoked {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.serials.is_empty() {
            return writeln!(out, "{} has no certificate that is still valid", self.what);
        }
        for serial in &self.serials {
            writeln!(out, "revoked {serial}")?;
        }
        writeln!(out, "A user can log in again: shut out who must not with `renkei map`.")
    }
}
