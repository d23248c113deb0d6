//! `renkei site rotate-authority`: the site gets a new authority, which partners take over automatically.

use crate::cli::Context;
use crate::cli::confirm::confirm;
use crate::cli::output::Report;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::authority::rotation;
use renkei_net::identity::authority::rotation::Outcome;
use renkei_net::identity::certificate::{unix_seconds, utc};
use renkei_net::identity::handover::LONGEST_OVERLAP;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::card::SiteCard;
use renkei_site::partners::updates as partner_updates;
use serde::Serialize;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);
const LONGEST_DAYS: u64 = LONGEST_OVERLAP.as_secs() / DAY.as_secs();

/// For how long both authorities are good.
#[derive(Debug, clap::Args)]
pub(crate) struct Overlap {
    /// Days for which certificates of the previous authority stay valid, 1 to 365
    #[arg(long, value_name = "DAYS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=LONGEST_DAYS))]
    pub(crate) keep_days: u64,
}

impl Overlap {
    pub(crate) fn duration(&self) -> Duration {
        u32::try_from(self.keep_days).map_or(LONGEST_OVERLAP, |days| DAY * days)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    overlap: Overlap,
    /// No overlap, for a compromised key: its certificates are refused at once, and partners take the new card by hand
    #[arg(long, conflicts_with_all = ["keep_days", "finish"])]
    now: bool,
    /// End the overlap of a rotation that is under way
    #[arg(long, conflicts_with = "keep_days")]
    finish: bool,
    /// Do not ask for confirmation when partners will have to take the new card by hand
    #[arg(long)]
    yes: bool,
}

#[derive(Serialize)]
struct Rotated {
    site: SiteName,
    outcome: Outcome,
    fingerprint: String,
    /// Until when the previous authority is valid.
    previous_until: String,
    previous_until_unix: i64,
    /// Whether it still is.
    overlap: bool,
    /// Partners that have not taken over the new authority, as far as the PoP knows.
    not_taken_over: Vec<SiteName>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (home, now) = (context.home()?, context.now());
    let (card, not_taken_over) = standing(&home)?;
    let site = card.site.clone();
    let op = "rotate authority";
    let outcome = if args.finish {
        confirm(args.yes, op, site.as_str(), &left_behind(&not_taken_over))?;
        rotation::finish(&home, now)?
    } else if args.now {
        confirm(args.yes, op, site.as_str(), &cut_off(&partners_of(&home)?))?;
        rotation::rotate(&home, Duration::ZERO, now)?
    } else {
        rotation::rotate(&home, args.overlap.duration(), now)?
    };
    let mut report = report(&home, outcome, now)?;
    if args.finish {
        // The end of the overlap changes the card, which no partner has yet; all but these know the authority.
        report.not_taken_over = not_taken_over;
    }
    context.output.done(&report)?;
    Ok(0)
}

/// The site's current card, and the partners that have not taken it over.
fn standing(home: &Home) -> Result<(SiteCard, Vec<SiteName>), Error> {
    let trust = Trust::load(home)?;
    let none = || Error::new(Code::NotInitialised, "rotate authority", home.config_dir().display(), "");
    let card = trust.own_card().ok_or_else(none)?.clone();
    // Before the first round of the PoP, no partner has it.
    let untold = partner_updates::untold(home, &card);
    let all = || trust.list().map(|one| one.site.clone()).filter(|site| *site != card.site).collect();
    let not_taken_over = untold.map_or_else(all, |sites| sites.into_iter().collect());
    Ok((card, not_taken_over))
}

pub(crate) fn partners_of(home: &Home) -> Result<Vec<SiteName>, Error> {
    let trust = Trust::load(home)?;
    let sites = trust.list().map(|card| card.site.clone());
    Ok(sites.filter(|site| trust.own_site() != Some(site)).collect())
}

pub(crate) fn named(sites: &[SiteName]) -> String {
    sites.iter().map(SiteName::as_str).collect::<Vec<_>>().join(", ")
}

fn left_behind(sites: &[SiteName]) -> Vec<String> {
    let warning = || {
        format!(
            "{} has not taken over the new authority yet, and will need the new card by hand",
            named(sites)
        )
    };
    if sites.is_empty() { Vec::new() } else { vec![warning()] }
}

fn cut_off(partners: &[SiteName]) -> Vec<String> {
    let users = "users, mounts and queued transfers of this site need new certificates immediately: `renkei login`, `renkei \
                 mount-credential grant`, `renkei renew ID`";
    let partners = match partners.is_empty() {
        true => None,
        false => Some(format!(
            "{} will refuse this site until its administrator has added the new card by hand",
            named(partners)
        )),
    };
    partners.into_iter().chain([users.to_owned()]).collect()
}

fn report(home: &Home, outcome: Outcome, now: SystemTime) -> Result<Rotated, Error> {
    let (card, not_taken_over) = standing(home)?;
    let none = || Error::new(Code::Internal, "rotate authority", &card.site, "there is no hand-over");
    let handover = card.handover.as_ref().ok_or_else(none)?;
    Ok(Rotated {
        fingerprint: card.fingerprint(),
        outcome,
        previous_until: utc(handover.until()),
        previous_until_unix: unix_seconds(handover.until()),
        overlap: handover.is_live(now),
        not_taken_over,
        site: card.site,
    })
}

impl Report for Rotated {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Rotated { site, fingerprint, previous_until, .. } = self;
        let what = match self.outcome {
            Outcome::Rotated => "has a new authority",
            Outcome::Completed => "has a new authority; an interrupted rotation was completed",
            Outcome::UnderWay => "has a rotation in progress; nothing was changed",
            Outcome::Finished => "has ended the overlap of its authorities",
        };
        writeln!(out, "site {site} {what}")?;
        writeln!(out, "  {fingerprint}")?;
        match self.overlap {
            true => self.write_overlap(out),
            false => {
                writeln!(out, "certificates of the previous authority are invalid since {previous_until}")?;
                self.write_by_hand(out)
            }
        }
    }
}

impl Rotated {
    fn write_overlap(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "certificates of the previous authority stay valid until {}, unless they expire earlier",
            self.previous_until
        )?;
        match self.not_taken_over.is_empty() {
            true => writeln!(out, "all partners have taken over the new authority"),
            false => {
                let waiting = named(&self.not_taken_over);
                writeln!(out, "partners that have not taken over the new authority yet: {waiting}")?;
                writeln!(out, "the PoP tells them; `renkei status` shows the remaining ones")
            }
        }
    }

    fn write_by_hand(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.not_taken_over.is_empty() {
            return Ok(());
        }
        let site = &self.site;
        writeln!(out, "give the new card by hand to {}:", named(&self.not_taken_over))?;
        writeln!(out, "  renkei trust export > {site}.site   here")?;
        writeln!(out, "  renkei trust add {site}.site        there; compare the fingerprint by telephone")
    }
}
