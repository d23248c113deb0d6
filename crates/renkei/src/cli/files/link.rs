//! `renkei link`: addresses for people without an account.

use crate::cli::Context;
use crate::cli::admin::console::endpoint;
use crate::cli::connect::{self, own_site, place, remote, site_argument, unexpected};
use crate::cli::output::Report;
use clap::Subcommand;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::units::{human, parse_span};
use renkei_core::wire::links::{AboutLink, LinkReply, LinkStatus};
use renkei_core::wire::message::{Reply, Request};
use renkei_net::identity::certificate::utc;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

/// Make a link with which anybody reads a file or folder with a browser
///
/// Whoever has the link reads what you can read at that place, until it expires or you take it back; nobody can write with it. It
/// ends as well when your access ends, or the file is gone.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_long_help = "Examples:\n  renkei link kek:/data/run7/a.dat --for 7d\n  renkei link kek:/data/run7 --for 30d     a folder, with all below it\n  renkei link kek:/data/run7/a.dat --limit 1\n  renkei link list kek                     how often each was used\n  renkei link revoke 3f2a91c0 kek"
)]
pub struct Args {
    /// The file or directory: SITE:/STORAGE/PATH
    #[arg(required = true)]
    place: Option<OsString>,
    /// How long it is valid, as 12h or 7d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_span, default_value = "7d")]
    validity: Duration,
    /// The most downloads; each request for content counts, as does one that goes on with a broken download
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List your links, and how often each was used
    List {
        /// The site [default: your own]
        site: Option<OsString>,
    },
    /// Take a link back
    Revoke {
        /// Its id
        id: String,
        /// The site [default: your own]
        site: Option<OsString>,
    },
}

/// A new link.
#[derive(Serialize)]
struct Made {
    url: String,
    id: String,
}

/// The links of the user at a site.
#[derive(Serialize)]
struct Listing {
    site: SiteName,
    links: Vec<LinkRow>,
}

#[derive(Serialize)]
struct LinkRow {
    id: String,
    place: String,
    created_unix: u64,
    until_unix: u64,
    expired: bool,
    limit: Option<u32>,
    opens: u64,
    downloads: u64,
    bytes: u64,
    used_unix: Option<u64>,
}

/// A link that was taken back.
#[derive(Serialize)]
struct Revoked {
    id: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match (&args.action, &args.place) {
        (Some(Action::List { site }), _) => context.output.answer(&list(site.as_ref(), context)?)?,
        (Some(Action::Revoke { id, site }), _) => {
            context.output.answer(&revoke(id, site.as_ref(), context)?)?
        }
        (None, Some(place)) => context.output.answer(&make(args, place, context)?)?,
        (None, None) => return Err(Error::new(Code::UsageInvalid, "make link", "", "no place is named")),
    }
    Ok(0)
}

fn make(args: &Args, at: &OsString, context: &Context) -> Result<Made, Error> {
    let path = remote(at, context)?;
    let seconds = u32::try_from(args.validity.as_secs()).unwrap_or(u32::MAX);
    let about = AboutLink::Create { place: place(&path)?, seconds, limit: args.limit };
    let mut session = connect::session(context, &path.site)?;
    match session.ask(Request::Link(about))? {
        Reply::Link(LinkReply::Created { id, path }) => {
            let (endpoint, _) = endpoint(&session, context)?;
            Ok(Made { url: format!("https://{endpoint}{path}"), id })
        }
        other => Err(unexpected(&other)),
    }
}

fn site_or_own(site: Option<&OsString>, context: &Context) -> Result<SiteName, Error> {
    site.map_or_else(|| own_site(context), |site| site_argument(site))
}

fn list(site: Option<&OsString>, context: &Context) -> Result<Listing, Error> {
    let site = site_or_own(site, context)?;
    match connect::session(context, &site)?.ask(Request::Link(AboutLink::List))? {
        Reply::Link(LinkReply::All(all)) => {
            let now = context.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            Ok(Listing { site, links: all.into_iter().map(|link| row(link, now)).collect() })
        }
        other => Err(unexpected(&other)),
    }
}

fn row(link: LinkStatus, now: u64) -> LinkRow {
    let LinkStatus { id, place, created, until, limit, opens, downloads, bytes, used } = link;
    LinkRow {
        id,
        place: place.to_string(),
        created_unix: created,
        until_unix: until,
        expired: until <= now,
        limit,
        opens,
        downloads,
        bytes,
        used_unix: used,
    }
}

fn revoke(id: &str, site: Option<&OsString>, context: &Context) -> Result<Revoked, Error> {
    let site = site_or_own(site, context)?;
    match connect::session(context, &site)?.ask(Request::Link(AboutLink::Revoke(id.into())))? {
        Reply::Link(LinkReply::Revoked) => Ok(Revoked { id: id.into() }),
        other => Err(unexpected(&other)),
    }
}

impl Report for Made {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.url)
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let time = |seconds: u64| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        for link in &self.links {
            let state = if link.expired { "expired" } else { "until" };
            writeln!(out, "{}  {}  {state} {}", link.id, link.place, time(link.until_unix))?;
            let limit = link.limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
            let used = link.used_unix.map_or("never used".to_owned(), |used| format!("last {}", time(used)));
            let (opens, downloads, bytes) = (link.opens, link.downloads, human(link.bytes));
            writeln!(out, "    opened {opens}, downloads {downloads}{limit}, {bytes}, {used}")?;
        }
        Ok(())
    }
}

impl Report for Revoked {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} is taken back", self.id)
    }
}
