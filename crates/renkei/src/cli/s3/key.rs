//! `renkei s3 key`: the access keys of a user.

use super::super::Context;
use super::super::connect::{self, own_site, site_argument, site_or_place, unexpected};
use super::super::output::Report;
use super::super::time::utc;
use clap::Subcommand;
use renkei_core::entry::FileTime;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Rights;
use renkei_core::path::{EndpointPath, SiteName};
use renkei_core::units::parse_span;
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::s3_key::{AboutS3Keys, S3KeyStatus, S3KeysReply};
use renkei_net::identity::token::caveat::activities_for;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

/// Make, list and revoke your S3 keys
///
/// A key is a pair of an access key and a secret key, by which a program signs its requests. It can do what you can, or less;
/// it ends with its revocation, with that of the certificate by which it was made, or when you are shut out.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei s3 key create                                     for all that you may at your site\n  renkei s3 key create kek:/data/run7 --may read,list --for 30d\n  renkei s3 key list\n  renkei s3 key revoke RK5B0A2C4E6F8091A3B5"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a key; its secret is shown this once
    Create {
        /// The place that it is for: SITE, or SITE:/STORAGE/PATH; without it, your site
        place: Option<OsString>,
        /// The rights, of read, create, modify, delete, list and stage; all if not given
        #[arg(long, value_name = "RIGHTS", value_delimiter = ',', value_parser = parse_right)]
        may: Vec<Rights>,
        /// How long it is valid, as 12h or 30d; until it is revoked if not given
        #[arg(long = "for", value_name = "TIME", value_parser = parse_span)]
        validity: Option<Duration>,
        /// Good only for clients of these addresses or networks, as 192.0.2.0/24
        #[arg(long, value_name = "ADDRESSES")]
        ip: Option<String>,
    },
    /// List your keys, with their last use
    List {
        /// The site; without it, yours
        site: Option<OsString>,
    },
    /// Make a key good for nothing
    Revoke {
        /// The access key
        key: String,
        /// The site; without it, yours
        site: Option<OsString>,
    },
}

/// A new key.
#[derive(Serialize)]
struct Created {
    access_key: String,
    secret_key: String,
}

#[derive(Serialize)]
struct Listing {
    keys: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    access_key: String,
    caveats: Vec<String>,
    created: String,
    /// To a minute; none if it was not used yet.
    last_used: Option<String>,
}

#[derive(Serialize)]
struct Revoked {
    access_key: String,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Create { place, may, validity, ip } => {
            let path = place.as_ref().map(|place| site_or_place(place, context)).transpose()?;
            let site = path.as_ref().map_or_else(|| own_site(context), |path| Ok(path.site.clone()))?;
            let caveats = caveats(path.as_ref(), may, ip.as_deref())?;
            let seconds = validity.map(|validity| u32::try_from(validity.as_secs()).unwrap_or(u32::MAX));
            match ask(context, &site, AboutS3Keys::Create { caveats, seconds })? {
                S3KeysReply::Created { id, secret } => {
                    context.output.answer(&Created { access_key: id, secret_key: secret })?;
                }
                other => return Err(unexpected(&Reply::S3Keys(other))),
            }
        }
        Action::List { site } => match ask(context, &named(site.as_ref(), context)?, AboutS3Keys::List)? {
            S3KeysReply::Keys(keys) => {
                context.output.answer(&Listing { keys: keys.into_iter().map(row).collect() })?;
            }
            other => return Err(unexpected(&Reply::S3Keys(other))),
        },
        Action::Revoke { key, site } => {
            ask(context, &named(site.as_ref(), context)?, AboutS3Keys::Revoke(key.clone()))?;
            context.output.done(&Revoked { access_key: key.clone() })?;
        }
    }
    Ok(0)
}

fn named(site: Option<&OsString>, context: &Context) -> Result<SiteName, Error> {
    site.map_or_else(|| own_site(context), |site| site_argument(site))
}

fn ask(context: &Context, site: &SiteName, about: AboutS3Keys) -> Result<S3KeysReply, Error> {
    match connect::session(context, site)?.ask(Request::S3Keys(about))? {
        Reply::S3Keys(reply) => Ok(reply),
        other => Err(unexpected(&other)),
    }
}

fn caveats(path: Option<&EndpointPath>, may: &[Rights], ip: Option<&str>) -> Result<Vec<String>, Error> {
    let mut caveats = Vec::new();
    if let Some(place) = path.and_then(|path| path.place.as_ref()) {
        if std::str::from_utf8(place.path.as_bytes()).is_err() {
            let cause = "the path in a key is UTF-8";
            return Err(Error::new(Code::BadPath, "create S3 key", place, cause));
        }
        caveats.push(format!("path:{place}"));
    }
    if !may.is_empty() {
        let rights = may.iter().fold(Rights::NONE, |all, right| all | *right);
        caveats.push(format!("activity:{}", activities_for(rights)));
    }
    caveats.extend(ip.map(|networks| format!("ip:{networks}")));
    Ok(caveats)
}

fn parse_right(text: &str) -> Result<Rights, String> {
    let known = Rights::ALL.names().collect::<Vec<_>>().join(", ");
    Rights::parse(text).ok_or_else(|| format!("rights are {known}"))
}

fn row(status: S3KeyStatus) -> Row {
    let S3KeyStatus { id, caveats, created_unix, used_unix } = status;
    let time = |unix: u64| {
        let text = utc(FileTime { secs: unix.cast_signed(), nanos: 0 });
        format!("{}Z", text.split('.').next().unwrap_or_default())
    };
    Row { access_key: id, caveats, created: time(created_unix), last_used: used_unix.map(time) }
}

impl Report for Created {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "access key: {}\nsecret key: {}", self.access_key, self.secret_key)
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for Row { access_key, caveats, created, last_used } in &self.keys {
            let used = last_used.as_deref().unwrap_or("never");
            let caveats = if caveats.is_empty() { "not restricted".into() } else { caveats.join(" ") };
            writeln!(out, "{access_key}  made {created}  last used {used}  {caveats}")?;
        }
        Ok(())
    }
}

impl Report for Revoked {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} is revoked", self.access_key)
    }
}
