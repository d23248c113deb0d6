//! `renkei volume quota`: usage and limits of a volume.

use super::remote::Far;
use super::show::ask;
use crate::cli::Context;
use crate::cli::output::Report;
use crate::cli::quantity::{counted, human};
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::namespace::quota::Limit;
use renkei_core::wire::volume::Manage;
use renkei_net::identity::map;
use renkei_volume::settings::UseRow;
use renkei_volume::volume_config;
use renkei_volume::volume_config::VolumeConfig;
use renkei_volume::volume_status::VolumeStatus;
use renkei_volume::{VolumeState, config_change};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

/// Show how much is in a volume and how much may be, or set a limit
///
/// A file beyond a limit is refused before it is seen. Limits are set at the volume's home. Sites that write first have
/// shares of what is left; AT SITES says what they may still add.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei volume quota genome\n  renkei volume quota genome --total --bytes 10TB\n  \
                       renkei volume quota genome --user alice@titech --bytes 500G --files 1000000\n  \
                       renkei volume quota genome --user alice --bytes none"
)]
pub struct Args {
    /// Name of the volume
    pub(crate) name: String,
    /// A limit for one owner: an account of the home, or NAME@SITE for the account that this user becomes
    #[arg(long, value_name = "USER", conflicts_with = "total")]
    user: Option<String>,
    /// A limit for all together [default]
    #[arg(long)]
    total: bool,
    /// Bytes of files, as 500G or 10TB; `none` for no limit
    #[arg(long, value_name = "SIZE")]
    bytes: Option<String>,
    /// Files, directories and symbolic links; `none` for no limit
    #[arg(long, value_name = "COUNT")]
    files: Option<String>,
}

#[derive(Serialize)]
struct Quotas {
    volume: String,
    used: Vec<UseRow>,
}

/// In the directory of the PoP.
pub(crate) fn run(args: &Args, home: &Home, context: &Context) -> Result<u8, Error> {
    let mut facts = volume_config::find(home, &args.name)?;
    if args.bytes.is_some() || args.files.is_some() {
        set(args, &mut facts, home)?;
    }
    let standing: VolumeState = ask(home, json!({"op": "volume", "act": "standing", "name": args.name}))?;
    context.output.answer(&Quotas { volume: args.name.clone(), used: standing.used })?;
    Ok(0)
}

/// At a site, by a user who manages the volume.
pub(crate) fn run_far(args: &Args, mut far: Far, context: &Context) -> Result<u8, Error> {
    let settings = settings(args, args.user.as_deref());
    if !settings.is_empty() {
        far.done(Manage::Set(settings))?;
    }
    let shown: VolumeStatus = far.ask(Manage::Show)?;
    let used = shown.standing.map(|standing| standing.used).unwrap_or_default();
    context.output.answer(&Quotas { volume: shown.name, used })?;
    Ok(0)
}

/// Sets the given limits; the others stay.
fn set(args: &Args, facts: &mut VolumeConfig, home: &Home) -> Result<(), Error> {
    let config = Config::load(home)?;
    if facts.home != *config.site(home)? {
        let cause = format!("its home is {}; limits are set there", facts.home);
        return Err(Error::new(Code::UsageInvalid, "set quota", &args.name, cause));
    }
    let owner = args.user.as_deref().map(|user| owner(user, home, &config)).transpose()?;
    settings(args, owner.as_deref())
        .iter()
        .try_for_each(|(key, text)| config_change::set(facts, key, text))?;
    facts.store(home, &args.name)
}

/// The given limits as settings.
fn settings(args: &Args, owner: Option<&str>) -> Vec<(String, String)> {
    let key = |what: &str| owner.map_or_else(|| what.to_owned(), |owner| format!("{what}:{owner}"));
    let given = [("quota_bytes", &args.bytes), ("quota_files", &args.files)];
    given.into_iter().filter_map(|(what, text)| Some((key(what), text.clone()?))).collect()
}

/// The owner name of a user's files.
fn owner(user: &str, home: &Home, config: &Config) -> Result<String, Error> {
    if !user.contains('@') {
        return Ok(user.into());
    }
    let principal = Principal::parse(user)?;
    map::account_of(&map::load(home)?, config, &principal).map(|account| account.name)
}

impl Report for Quotas {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let is_handed = self.used.iter().any(|row| row.handed != Limit::default());
        let title = if is_handed { "  AT SITES" } else { "" };
        writeln!(
            out,
            "{:<16} {:>8} {:>8} {:>12} {:>12}{title}  {}",
            "OWNER", "BYTES", "LIMIT", "FILES", "LIMIT", self.volume
        )?;
        self.used.iter().try_for_each(|row| write_row(row, is_handed, out))
    }
}

fn write_row(row: &UseRow, is_handed: bool, out: &mut dyn Write) -> io::Result<()> {
    let none = || "-".to_owned();
    let bytes = row.limit_bytes.map_or_else(none, human);
    let files = row.limit_files.map_or_else(none, |count| count.to_string());
    let owner = row.owner.as_deref().unwrap_or("(all)");
    write!(out, "{owner:<16} {:>8} {bytes:>8} {:>12} {files:>12}", human(row.bytes), row.files)?;
    let handed = [row.handed.bytes.map(human), row.handed.files.map(|count| counted(count, "file", "files"))];
    let handed: Vec<String> = handed.into_iter().flatten().collect();
    if is_handed { writeln!(out, "  {}", handed.join(", ")) } else { writeln!(out) }
}
