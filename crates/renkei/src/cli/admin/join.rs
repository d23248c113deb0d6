//! `renkei join`: accepts another site's invitation.

use super::trust;
use crate::cli::Context;
use crate::cli::output::Report;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::trust::invitation::Invitation;
use renkei_site::partners::enrolment;
use serde::Serialize;
use std::io::{self, Read, Write};

/// Take up another site's invitation: the two sites trust each other then
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Both sites know each other's card afterwards. The users of the other have no account here until \
                       `renkei map add` gives them one.\n\nExamples:\n  renkei join kek@pop.kek.example:7512/1f0c...\n  \
                       ssh admin@pop.kek.example renkei invite | renkei join -"
)]
pub struct Args {
    /// The line that `renkei invite` printed at the other site, or - to read it from standard input
    line: String,
    /// This PoP cannot be dialled from outside: keep a line to that site, over which others reach it
    #[arg(long)]
    reverse: bool,
}

#[derive(Serialize)]
struct Joined {
    site: SiteName,
    fingerprint: String,
    endpoints: Vec<String>,
    action: &'static str,
    #[serde(skip)]
    option: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let invitation: Invitation = line(&args.line)?.parse()?;
    let joined = enrolment::join(&context.home()?, &invitation, args.reverse, context.now());
    let (card, added) = joined.map_err(|error| error.at("client"))?;
    context.output.answer(&Joined {
        fingerprint: card.fingerprint(),
        site: card.site,
        endpoints: card.endpoints,
        action: trust::word(added),
        option: context.option(),
    })?;
    Ok(0)
}

/// The invitation line. Arguments are visible to all users of a machine; standard input is not.
pub(crate) fn line(argument: &str) -> Result<String, Error> {
    if argument != "-" {
        return Ok(argument.into());
    }
    let mut text = String::new();
    let read = io::stdin().lock().take(64 << 10).read_to_string(&mut text);
    read.map_err(|error| Error::new(Code::InvitationRefused, "read invitation", "standard input", error))?;
    Ok(text)
}

impl Report for Joined {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Joined { site, fingerprint, .. } = self;
        writeln!(out, "{site} and this site trust each other now  {fingerprint}")?;
        let option = if self.option.is_empty() { String::new() } else { format!(" {}", self.option) };
        writeln!(out, "`renkei{option} map add 'USER@{site}' ACCOUNT` gives a user of {site} an account here")
    }
}
