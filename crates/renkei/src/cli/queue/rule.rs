//! `renkei rule`: drop folders, from which a PoP forwards files that other tools put there.

use crate::cli::Context;
use crate::cli::output::Report;
use clap::Subcommand;
use renkei_config::{Config, Rule, SETTLE_S, Then, add_rule, remove_rule};
use renkei_core::error::{Code, Error};
use renkei_core::path::EndpointPath;
use renkei_core::wire::message::Class;
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

/// Forward files that are put into a folder to another site
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Forward every file that is put into a folder, when it is complete, with the rights of its owner
    ///
    /// Whatever tool puts it there: scp, sftp, rsync, cp, an instrument. A file is complete when nobody has it open
    /// for writing and it stayed as it is for a while. Names that begin with a dot, and those that end in .part,
    /// .partial, .filepart or .crdownload, are left alone.
    Add {
        /// Name of the rule, which its transfers carry as a label
        name: String,
        /// The folder, as SITE:/STORAGE/PATH of this site
        from: OsString,
        /// The folder it is forwarded to, as SITE:/STORAGE/PATH
        to: OsString,
        /// How long a file must stay as it is to count as complete, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = SETTLE_S, value_parser = clap::value_parser!(u64).range(1..))]
        settle: u64,
        /// Remove a file from the folder when it has arrived
        #[arg(long)]
        remove: bool,
        /// Use only the bandwidth that others leave
        #[arg(long)]
        background: bool,
    },
    /// List the rules
    List,
    /// Remove a rule; its running transfers continue
    Remove {
        /// Name of the rule
        name: String,
    },
}

#[derive(Serialize)]
struct Row {
    name: String,
    from: String,
    to: String,
    settle_s: u64,
    then: Then,
    class: Class,
}

#[derive(Serialize)]
struct Listing {
    rules: Vec<Row>,
}

#[derive(Serialize)]
struct Changed {
    action: &'static str,
    name: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Add { name, from, to, settle, remove, background } => {
            let rule = Rule {
                from: place("add rule", from)?,
                to: place("add rule", to)?,
                settle_s: *settle,
                then: if *remove { Then::Remove } else { Then::Keep },
                class: if *background { Class::Background } else { Class::Normal },
            };
            add(name, &rule, context)
        }
        Action::List => list(context),
        Action::Remove { name } => {
            remove_rule(&context.home()?, name)?;
            changed("removed", name, context)
        }
    }
}

fn place(op: &str, text: &OsString) -> Result<EndpointPath, Error> {
    let bad = || Error::new(Code::UsageInvalid, op, text.display(), "write SITE:/STORAGE/PATH");
    EndpointPath::parse(text.as_bytes())?.filter(|path| path.place.is_some()).ok_or_else(bad)
}

fn add(name: &str, rule: &Rule, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let config = Config::load(&home)?;
    config.site(&home)?;
    config.check_rule(name, rule)?;
    add_rule(&home, name, rule)?;
    changed("added", name, context)
}

fn changed(action: &'static str, name: &str, context: &Context) -> Result<u8, Error> {
    context.output.done(&Changed { action, name: name.into() })?;
    Ok(0)
}

fn list(context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let config = Config::load(&home)?;
    config.site(&home)?;
    let row = |(name, rule): (String, Rule)| Row {
        name,
        from: rule.from.to_string(),
        to: rule.to.to_string(),
        settle_s: rule.settle_s,
        then: rule.then,
        class: rule.class,
    };
    context.output.answer(&Listing { rules: config.rule.into_iter().map(row).collect() })?;
    Ok(0)
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.rules {
            let then = if row.then == Then::Remove { ", then removed" } else { "" };
            let class = if row.class == Class::Background { ", background" } else { "" };
            writeln!(
                out,
                "{:<16} {} -> {}  after {} s{then}{class}",
                row.name, row.from, row.to, row.settle_s
            )?;
        }
        Ok(())
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "rule {} {}", self.name, self.action)
    }
}
