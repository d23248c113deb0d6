//! `renkei volume subscribe`: has this site follow a volume of another one.

use super::output::Report;
use super::volume::folders;
use super::{Context, login};
use crate::identity::account::Account;
use crate::identity::socket;
use crate::site::following::Subscription;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

/// Follow a volume of another site, which has granted it to this one
///
/// The names and metadata of all its files are kept here from now on, so that looking at them never leaves the site; content
/// comes from the volume's home, or from replicas here (--storage, `renkei replicate`). The users of this site may read it; `renkei
/// volume grant` lets in others.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The volume; it has the same name here
    volume: String,
    /// Its home
    #[arg(long, value_name = "SITE")]
    from: String,
    /// The storage whose directory of the volume's name is to hold replicas
    #[arg(long, value_name = "STORAGE")]
    storage: Option<String>,
    /// Hold replicas of all files below a folder, also of those to come; without FOLDER of the whole volume
    #[arg(long, value_name = "/FOLDER", num_args = 0..=1, default_missing_value = "/", requires = "storage")]
    hold: Option<String>,
    /// The account whose files the replicas are; else yours
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
}

#[derive(Serialize)]
struct Subscribed<'a> {
    volume: &'a str,
    home: &'a str,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let subscription = Subscription {
        name: args.volume.clone(),
        home: SiteName::parse(&args.from)?,
        storage: args.storage.clone().unwrap_or_default(),
        hold: args.hold.as_deref().map_or_else(|| Ok(Vec::new()), folders)?,
        account: args.account.clone().map_or_else(|| Account::own().map(|own| own.name), Ok)?,
    };
    let path = login::socket(&context.home()?, None);
    socket::request(&path, &json!({"op": "subscribe", "subscription": subscription}))?;
    context.output.answer(&Subscribed { volume: &args.volume, home: &args.from })?;
    Ok(0)
}

impl Report for Subscribed<'_> {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "/{} of {} is followed here", self.volume, self.home)
    }
}
