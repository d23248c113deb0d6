//! `renkei trust`: exchange of site cards.

use crate::cli::Context;
use crate::cli::output::Report;
use clap::Subcommand;
use renkei_config::home::file_error;
use renkei_config::{allow_private, disallow_private};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::route;
use renkei_net::identity::certificate::utc;
use renkei_net::identity::trust::card::{MAX_CARD_BYTES, SiteCard};
use renkei_net::identity::trust::{Added, Trust};
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Exchange site cards with other sites
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei trust export > titech.site   the card to send to the other site\n  renkei trust add kek.site           the card that came; compare the fingerprint by telephone\n  renkei trust ca list                the grid authorities, and their revocation lists"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the card of this site, to be given to others
    Export {
        /// Print the card of this trusted site instead
        site: Option<String>,
    },
    /// Trust the site of a card; shows the fingerprint and asks
    Add {
        /// The card's file, or - for standard input
        file: PathBuf,
        /// Do not ask: the fingerprint was compared
        #[arg(long)]
        yes: bool,
    },
    /// Let others be led through this PoP to a site's PoPs at addresses inside: loopback, link-local, private
    AllowPrivate {
        /// Name of the site
        site: String,
    },
    /// List the trusted sites
    List,
    /// End the trust in a site
    Remove {
        /// Name of the site
        site: String,
    },
    /// Trust the authorities of a folder in the form of /etc/grid-security/certificates
    Ca {
        #[command(subcommand)]
        action: crate::cli::grid::authorities::Action,
    },
}

#[derive(Serialize)]
struct Row {
    site: SiteName,
    own: bool,
    endpoints: Vec<String>,
    via: Vec<SiteName>,
    #[serde(skip)]
    places: String,
    fingerprint: String,
    /// Until when certificates of the previous authority are valid, during an overlap.
    previous_until: Option<String>,
    revocation_list: Option<u64>,
}

#[derive(Serialize)]
struct Listing {
    sites: Vec<Row>,
}

#[derive(Serialize)]
struct Exported {
    site: SiteName,
    fingerprint: String,
    card: String,
}

#[derive(Serialize)]
struct Changed {
    site: SiteName,
    fingerprint: Option<String>,
    action: &'static str,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    if let Action::Ca { action } = &args.action {
        return crate::cli::grid::authorities::run(action, &home, context);
    }
    // An identity has a trust of its own, which its logins fill.
    let home = if home.has_identity() { home.of_user() } else { home };
    let mut trust = Trust::load(&home)?;
    match &args.action {
        Action::Export { site } => export(&trust, site.as_deref(), context),
        Action::Add { file, yes } => add(&mut trust, file, *yes, context),
        Action::AllowPrivate { site } => allow(&trust, site, context),
        Action::List => list(&trust, context),
        Action::Ca { .. } => Ok(0),
        Action::Remove { site } => {
            let site = SiteName::parse(site)?;
            trust.remove(&site)?;
            // A site trusted later under that name has to be allowed anew.
            disallow_private(&home, site.as_str())?;
            context.output.done(&Changed { site, fingerprint: None, action: "removed" })?;
            Ok(0)
        }
    }
}

fn export(trust: &Trust, site: Option<&str>, context: &Context) -> Result<u8, Error> {
    let site = match site {
        Some(name) => SiteName::parse(name)?,
        None => {
            let none = || Error::new(Code::NotInitialised, "export card", "", "this directory has no site");
            trust.own_site().ok_or_else(none)?.clone()
        }
    };
    let card = trust.export(&site).ok_or_else(|| Error::new(Code::SiteUnknown, "export card", &site, ""))?;
    let fingerprint = card.fingerprint();
    context.output.answer(&Exported { site, fingerprint, card: card.for_others().to_text() })?;
    Ok(0)
}

fn add(trust: &mut Trust, file: &Path, yes: bool, context: &Context) -> Result<u8, Error> {
    let unreadable = |error| Error { subject: file.display().to_string(), ..error };
    let card = SiteCard::parse(&read_card(file)?).map_err(unreadable)?;
    let (site, fingerprint) = (card.site.clone(), card.fingerprint());
    if trust.compare_given(&card)? != Added::Same && !yes {
        confirm(&card, trust.card(&site), file)?;
    }
    let places = inside(&card);
    let action = word(trust.add_given(card)?);
    if action != word(Added::Same) && !places.is_empty() {
        eprintln!(
            "renkei: {site} is at {}, a private address; this PoP relays there only after `renkei trust allow-private {site}`",
            places.join(", ")
        );
    }
    context.output.done(&Changed { site, fingerprint: Some(fingerprint), action })?;
    Ok(0)
}

/// The endpoints of a card with private addresses.
fn inside(card: &SiteCard) -> Vec<String> {
    let is_inside = |endpoint: &&String| {
        let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host);
        host == "localhost" || host.trim_matches(['[', ']']).parse().is_ok_and(route::is_inside)
    };
    card.endpoints.iter().filter(is_inside).cloned().collect()
}

fn allow(trust: &Trust, site: &str, context: &Context) -> Result<u8, Error> {
    let site = SiteName::parse(site)?;
    trust.endpoints(&site)?;
    allow_private(&context.home()?, site.as_str())?;
    context.output.done(&Changed { site, fingerprint: None, action: "allowed inside" })?;
    Ok(0)
}

/// The effect of a card, for reports.
pub(crate) fn word(added: Added) -> &'static str {
    match added {
        Added::New => "added",
        Added::Updated => "updated",
        Added::Replaced => "authority replaced",
        Added::Renamed => "renamed",
        Added::Same => "unchanged",
    }
}

fn read_card(file: &Path) -> Result<String, Error> {
    let limit = MAX_CARD_BYTES as u64 + 1;
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|opened| opened.take(limit).read_to_string(&mut text))
    };
    read.map(|_| text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Error::new(Code::CardInvalid, "read site card", file.display(), error),
        _ => file_error("read site card", file, &error),
    })
}

/// Shows the site to be trusted, or the new endpoints of a known one, and asks on the terminal.
fn confirm(card: &SiteCard, known: Option<&SiteCard>, file: &Path) -> Result<(), Error> {
    let refuse = |cause: &str| Err(Error::new(Code::UsageInvalid, "add site card", &card.site, cause));
    eprintln!("site         {}", card.site);
    if let Some(known) = known {
        eprintln!("reached at   {} till now", known.places());
        if known.authority != card.authority {
            eprintln!("fingerprint  {} till now; it handed over to the other one", known.fingerprint());
        }
    }
    eprintln!("reached at   {}", card.places());
    eprintln!("fingerprint  {}", card.fingerprint());
    let (what, question) = match known {
        Some(known) if known.authority == card.authority => {
            ("endpoints", "Did the site say that it is reached there now? [y/N] ")
        }
        _ => ("fingerprint", "Did the site confirm this fingerprint by telephone or in person? [y/N] "),
    };
    if file == Path::new("-") || !io::stdin().is_terminal() {
        let cause = format!(
            "there is no terminal for the confirmation; compare the {what} with the site, then add --yes"
        );
        return refuse(&cause);
    }
    eprint!("{question}");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" if read.is_ok() => Ok(()),
        _ => refuse("not confirmed; nothing was changed"),
    }
}

fn list(trust: &Trust, context: &Context) -> Result<u8, Error> {
    let row = |card: &SiteCard| Row {
        site: card.site.clone(),
        own: trust.own_site() == Some(&card.site),
        endpoints: card.endpoints.clone(),
        via: card.via.clone(),
        places: card.places(),
        fingerprint: card.fingerprint(),
        previous_until: previous_until(card),
        revocation_list: trust.revocation_list(&card.site).map(|(number, _)| number),
    };
    context.output.answer(&Listing { sites: trust.list().map(row).collect() })?;
    Ok(0)
}

fn previous_until(card: &SiteCard) -> Option<String> {
    let live = card.handover.as_ref().filter(|handover| handover.is_live(SystemTime::now()));
    live.map(|handover| utc(handover.until()))
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.sites {
            let own = if row.own { "  (this site)" } else { "" };
            writeln!(out, "{:<16} {}{own}", row.site.as_str(), row.places)?;
            writeln!(out, "  {}", row.fingerprint)?;
            if let Some(until) = &row.previous_until {
                writeln!(out, "  new authority; certificates of the previous one are valid until {until}")?;
            }
        }
        Ok(())
    }
}

impl Report for Exported {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self.card.as_bytes())
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let fingerprint = self.fingerprint.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
        writeln!(out, "site {} {}{fingerprint}", self.site, self.action)
    }
}
