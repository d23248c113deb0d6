//! `renkei invite`: one line for another site's administrator.

use crate::cli::Context;
use crate::cli::output::Report;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::certificate::utc;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::invitation;
use renkei_net::identity::trust::invitation::{LONGEST_LIFE, Open};
use serde::Serialize;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

/// Invite another site: print one line that lets the two trust each other
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The line holds a secret: send it by a way on which nobody else reads it. It works for one site, \
                       which gives it to `renkei join`.\n\nExamples:\n  renkei invite\n  renkei invite --hours 2\n  \
                       renkei invite --list\n  renkei invite --cancel 5f3a90c2"
)]
pub struct Args {
    /// Hours until it expires, at most 720
    #[arg(long, default_value_t = 24, value_name = "HOURS")]
    hours: u32,
    /// List the invitations instead
    #[arg(long, conflicts_with = "cancel")]
    list: bool,
    /// End an invitation that was not used
    #[arg(long, value_name = "ID")]
    cancel: Option<String>,
}

#[derive(Serialize)]
struct Invited {
    site: SiteName,
    id: String,
    expires: String,
    expires_unix: i64,
    invitation: String,
}

#[derive(Serialize)]
struct Listing {
    invitations: Vec<Open>,
}

#[derive(Serialize)]
struct Cancelled {
    cancelled: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.cancel {
        Some(id) => cancel(id, context)?,
        None if args.list => {
            let invitations = invitation::list(&context.home()?, context.now())?;
            context.output.answer(&Listing { invitations })?;
        }
        None => invite(args.hours, context)?,
    }
    Ok(0)
}

fn invite(hours: u32, context: &Context) -> Result<(), Error> {
    let life = Duration::from_secs(3600 * u64::from(hours));
    if life.is_zero() || life > LONGEST_LIFE {
        let cause = format!("1 to {} hours", LONGEST_LIFE.as_secs() / 3600);
        return Err(Error::new(Code::UsageInvalid, "invite", "--hours", cause));
    }
    let (home, now) = (context.home()?, context.now());
    let trust = Trust::load(&home)?;
    let none = || Error::new(Code::NotInitialised, "invite", home.config_dir().display(), "");
    let card = trust.own_card().ok_or_else(none)?;
    let (made, open) = invitation::give(&home, card, life, now)?;
    context.output.answer(&Invited {
        site: made.site.clone(),
        id: open.id,
        expires: shown(open.expires_unix),
        expires_unix: open.expires_unix,
        invitation: made.to_string(),
    })
}

fn cancel(id: &str, context: &Context) -> Result<(), Error> {
    if invitation::cancel(&context.home()?, id)? {
        return context.output.done(&Cancelled { cancelled: id.into() });
    }
    let cause = "there is no such invitation; `renkei invite --list` shows them";
    Err(Error::new(Code::UsageInvalid, "cancel invitation", id, cause))
}

fn shown(unix: i64) -> String {
    utc(UNIX_EPOCH + Duration::from_secs(u64::try_from(unix).unwrap_or(0)))
}

impl Report for Invited {
    /// The line alone goes to standard output, so that it can be piped.
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.invitation)?;
        eprintln!("One other site can use this until {}; there: renkei join LINE", self.expires);
        Ok(())
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.invitations.iter().try_for_each(|open| {
            let state = if open.used { "used" } else { "open" };
            writeln!(out, "{}  {state}  until {}", open.id, shown(open.expires_unix))
        })
    }
}

impl Report for Cancelled {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "invitation {} cancelled", self.cancelled)
    }
}
