//! `renkei site rename`: the site gets another name, which partners take over automatically.

use super::rotate_authority::{Overlap, named, partners_of};
use crate::cli::Context;
use crate::cli::confirm::confirm;
use crate::cli::output::Report;
use crate::cli::quantity::counted;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::authority::rotation;
use renkei_net::identity::authority::rotation::Outcome;
use renkei_net::identity::certificate::{unix_seconds, utc};
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::former_names;
use serde::Serialize;
use std::io::{self, Write};

const OP: &str = "rename site";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new name: 1 to 63 of a-z, 0-9 and -, starting with a letter
    name: String,
    #[command(flatten)]
    overlap: Overlap,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Serialize)]
struct Renamed {
    site: SiteName,
    /// All previous names of the site.
    former: Vec<String>,
    outcome: Outcome,
    fingerprint: String,
    /// Until when certificates under the former name are valid.
    former_until: String,
    former_until_unix: i64,
    /// Partners that get the new name.
    partners: Vec<SiteName>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (home, now) = (context.home()?, context.now());
    let partners = partners_of(&home)?;
    let is_new =
        Trust::load(&home).is_ok_and(|trust| trust.own_site().is_some_and(|site| site.as_str() != args.name));
    let warnings = if is_new { warnings(&partners, args.overlap.keep_days) } else { Vec::new() };
    confirm(args.yes, OP, &args.name, &warnings)?;
    let outcome = rotation::rename(&home, &args.name, args.overlap.duration(), now)?;
    former_names::install(&home)?;
    let card = Trust::load(&home)?.own_card().cloned();
    let none = || Error::new(Code::Internal, OP, &args.name, "there is no hand-over");
    let card = card.ok_or_else(none)?;
    let until = card.handover.as_ref().ok_or_else(none)?.until();
    let names = former_names::read(&home)?;
    let former = names.iter().filter(|(_, current)| *current == card.site.as_str());
    context.output.done(&Renamed {
        fingerprint: card.fingerprint(),
        former: former.map(|(former, _)| former.to_owned()).collect(),
        outcome,
        former_until: utc(until),
        former_until_unix: unix_seconds(until),
        partners,
        site: card.site,
    })?;
    Ok(0)
}

/// Warnings before the renaming.
fn warnings(partners: &[SiteName], days: u64) -> Vec<String> {
    let users = format!(
        "users, agents and mounts go on with their certificates for {} at most; the next `renkei login` gives one with the new name",
        counted(days, "day", "days")
    );
    let told = "is told the new name by the PoP; if that cannot be reached for so long, its administrator takes the new card by hand";
    let partners = (!partners.is_empty()).then(|| format!("{} {told}", named(partners)));
    let name = "the former name cannot be given back: it means this site from now on".to_owned();
    [users].into_iter().chain(partners).chain([name]).collect()
}

impl Report for Renamed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Renamed { site, fingerprint, former_until, .. } = self;
        let what = match self.outcome {
            Outcome::Completed => "an interrupted renaming was completed; the site is now called",
            _ => "the site is now called",
        };
        writeln!(out, "{what} {site}, formerly {}", self.former.join(", "))?;
        writeln!(out, "  {fingerprint}")?;
        writeln!(
            out,
            "certificates under the former name stay valid until {former_until}, unless they expire earlier"
        )?;
        if !self.partners.is_empty() {
            writeln!(
                out,
                "the PoP tells {}; `renkei status` shows those that have not taken the new name yet",
                named(&self.partners)
            )?;
        }
        writeln!(out, "next: users run `renkei login` within that time")
    }
}
