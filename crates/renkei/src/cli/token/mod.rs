//! `renkei token`: bearer tokens for programs that speak HTTP.

pub(super) mod issuer;

use super::Context;
use super::connect::{self, place, remote, unexpected};
use super::output::Report;
use super::path_rights::PathRights;
use clap::Subcommand;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Rights;
use renkei_core::units::parse_span;
use renkei_core::wire::message::{Reply, Request};
use renkei_net::identity::token::bearer::Holder;
use renkei_net::identity::token::caveat::{Restrictions, activities_for, below};
use renkei_net::identity::token::macaroon::Macaroon;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::time::Duration;

/// Longest token read from standard input.
const MAX_INPUT_BYTES: u64 = 64 << 10;

/// Make a token, with which a program reads or writes a place over HTTP
///
/// The token is a macaroon: whoever has it can do at that place what you can, as far as --may says, until it expires. Its
/// holder can restrict it further, and no more. `renkei revoke SERIAL` of the certificate by which it was asked for takes
/// it back.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_long_help = "Examples:\n  renkei token kek:/data/run7 --may read,list --for 1h\n  renkei token kek:/data/in --may create --for 12h --ip 192.0.2.0/24\n  curl -H \"Authorization: Bearer $(renkei token kek:/data/run7)\" https://pop.kek.jp:7512/data/run7/a.dat\n  renkei token inspect TOKEN        what a token says; - reads it from standard input"
)]
pub struct Args {
    /// The file or directory: SITE:/STORAGE/PATH
    #[arg(required = true)]
    place: Option<OsString>,
    /// The rights, of read, create, modify, delete, list and stage
    #[arg(long, value_name = "RIGHTS", value_delimiter = ',', value_parser = parse_right, default_value = "read,list")]
    may: Vec<Rights>,
    /// How long it is valid, as 30m, 12h or 7d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_span, default_value = "1h")]
    validity: Duration,
    /// Good only for clients of these addresses or networks, as 192.0.2.0/24
    #[arg(long, value_name = "ADDRESSES")]
    ip: Option<String>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what a token says; its signature is not verified
    Inspect {
        /// The token; - reads it from standard input
        token: String,
    },
}

/// A new token.
#[derive(Serialize)]
struct Issued {
    token: String,
}

/// What a token says.
#[derive(Serialize)]
struct Inspected {
    site: String,
    principal: Option<String>,
    serial: Option<String>,
    caveats: Vec<String>,
    #[serde(flatten)]
    allowed: PathRights,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match (&args.action, &args.place) {
        (Some(Action::Inspect { token }), _) => context.output.answer(&inspect(token)?)?,
        (None, Some(place)) => context.output.answer(&Issued { token: issue(args, place, context)? })?,
        (None, None) => return Err(Error::new(Code::UsageInvalid, "issue token", "", "no place is named")),
    }
    Ok(0)
}

fn issue(args: &Args, at: &OsString, context: &Context) -> Result<String, Error> {
    let path = remote(at, context)?;
    let rights = args.may.iter().fold(Rights::NONE, |all, right| all | *right);
    let place = place(&path)?;
    let mut caveats = vec![below(&place)?, format!("activity:{}", activities_for(rights))];
    caveats.extend(args.ip.as_ref().map(|networks| format!("ip:{networks}")));
    let seconds = u32::try_from(args.validity.as_secs()).unwrap_or(u32::MAX);
    match connect::session(context, &path.site)?.ask(Request::IssueToken { caveats, seconds })? {
        Reply::Token(token) => Ok(token),
        other => Err(unexpected(&other)),
    }
}

fn inspect(token: &str) -> Result<Inspected, Error> {
    let token = Macaroon::parse(read(token)?.trim())?;
    let holder = Holder::parse(&token.identifier);
    let restrictions = Restrictions::of(token.caveats.iter().map(String::as_str))?;
    Ok(Inspected {
        site: token.location,
        principal: holder.as_ref().map(|holder| holder.principal.to_string()),
        serial: holder.and_then(|holder| holder.serial),
        allowed: PathRights::new(restrictions.rights, restrictions.place.as_ref()),
        caveats: token.caveats,
    })
}

fn read(token: &str) -> Result<String, Error> {
    let mut text = token.to_owned();
    if token == "-" {
        text.clear();
        let read = io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut text);
        read.map_err(|error| Error::new(Code::UsageInvalid, "read token", "standard input", error))?;
    }
    Ok(text)
}

fn parse_right(text: &str) -> Result<Rights, String> {
    let all = Rights::ALL;
    let known = all.names().collect::<Vec<_>>().join(", ");
    Rights::parse(text).ok_or_else(|| format!("rights are {known}"))
}

impl Report for Issued {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.token)
    }
}

impl Report for Inspected {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let unknown = || "somebody".to_owned();
        writeln!(out, "in the name of {} at {}", self.principal.clone().unwrap_or_else(unknown), self.site)?;
        if let Some(serial) = &self.serial {
            writeln!(out, "asked for by certificate {serial}")?;
        }
        writeln!(out, "{}", self.allowed)?;
        self.caveats.iter().try_for_each(|caveat| writeln!(out, "  {caveat}"))
    }
}
