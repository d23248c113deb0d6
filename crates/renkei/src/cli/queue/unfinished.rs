//! `renkei unfinished`: unfinished copies, and the space they take.

use super::queued::{SHORT, moment, until};
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::connect::{own_site, site_or_place, unexpected};
use crate::cli::many::Many;
use crate::cli::output::Report;
use crate::cli::quantity::{counted, human, span};
use renkei_catalogue::{first_digits, no_digits};
use renkei_core::error::{Code, Error};
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::unfinished::{AboutUnfinished, Unfinished, UnfinishedAction, UnfinishedReply};
use renkei_net::unix_ms;
use renkei_site::transfer::cleanup::drop_own;
use renkei_site::transfer::unfinished::{UnfinishedCopy, choose, left};
use serde::Serialize;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// The label of copies that this machine receives without a PoP.
const HERE: &str = "this machine";

/// Show copies that did not end, and the room that is kept for them; with --drop free it
///
/// A copy that was interrupted keeps, for seven days, what had arrived whole of its large files, and goes on from there when
/// its command is given again. Without SITE: those that were to arrive on this machine, and those at your own site. Yours
/// alone; with --all everybody's.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei unfinished                          on this machine and at your own site\n  renkei unfinished kek                      at kek\n  renkei unfinished kek --drop               remove all of them that do not run\n  renkei unfinished kek --drop --id 5f3a90c2 remove this one\n  renkei unfinished kek:/laptop              in a storage that an agent serves\n  renkei unfinished --all                    everybody's, as the administrator of the PoP of this machine"
)]
pub struct Args {
    /// Where they were to arrive: sites, or storages that an agent serves (SITE:/STORAGE)
    #[arg(value_name = "SITE")]
    sites: Vec<OsString>,
    /// Remove them; files that arrived whole stay
    #[arg(long)]
    drop: bool,
    /// Only these, by the first digits (4 at least) of their ids
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Everybody's at this PoP: for the administrator, on the PoP's machine
    #[arg(long, conflicts_with = "sites")]
    all: bool,
}

impl Args {
    fn wish(&self) -> UnfinishedAction {
        if self.drop { UnfinishedAction::Drop(self.ids.clone()) } else { UnfinishedAction::List }
    }

    fn is_named(&self, one: &Unfinished) -> bool {
        self.ids.is_empty() || self.ids.iter().any(|digits| names(digits, one))
    }

    /// The given ids that match one of these copies.
    fn those_in<'u>(&self, all: impl Iterator<Item = &'u Unfinished> + Clone) -> Vec<String> {
        let is_there = |digits: &&String| all.clone().any(|one| names(digits, one));
        self.ids.iter().filter(is_there).cloned().collect()
    }

    /// Fails for an id that matches no copy.
    fn expect_all_in(&self, raw: &[(String, Unfinished)]) -> Result<(), Error> {
        match self.ids.iter().find(|digits| !raw.iter().any(|(_, one)| names(digits, one))) {
            Some(digits) => {
                Err(Error::new(Code::UnfinishedUnknown, "look up", digits, no_digits(digits)).at("client"))
            }
            None => Ok(()),
        }
    }
}

/// Whether these are the first digits of its id.
fn names(digits: &str, one: &Unfinished) -> bool {
    first_digits(digits).is_some_and(|digits| one.id.starts_with(&digits))
}

#[derive(Serialize)]
struct Shown {
    unfinished: Vec<Value>,
    dropped: bool,
    failures: Vec<Value>,
    #[serde(skip)]
    raw: Vec<(String, Unfinished)>,
    /// Whether other sites were not asked.
    #[serde(skip)]
    is_here: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (mut raw, mut many) = (Vec::new(), Many::new(context));
    if args.all {
        let reply = Asker::new(context, true).all_unfinished(&args.wish())?;
        take(&mut raw, &own_site(context).map_or_else(|_| "here".into(), |site| site.to_string()), reply);
    } else {
        let sites = sites(args, &mut raw, context)?;
        many.each_argument(&sites, |many, site| {
            let reply = ask(args, site, many, context)?;
            take(&mut raw, &site.to_string_lossy(), reply);
            Ok(())
        })?;
    }
    raw.retain(|(_, one)| args.is_named(one));
    let (failures, status) = (many.failures().to_vec(), many.status());
    if failures.is_empty() {
        args.expect_all_in(&raw)?;
    }
    let unfinished = raw.iter().map(|(at, one)| one_json(at, one)).collect();
    let is_here = args.sites.is_empty() && !args.all;
    context.output.answer(&Shown { unfinished, dropped: args.drop, failures, raw, is_here })?;
    Ok(status)
}

fn take(raw: &mut Vec<(String, Unfinished)>, at: &str, reply: UnfinishedReply) {
    raw.extend(reply.listed.into_iter().map(|one| (at.to_owned(), one)));
}

/// The sites to ask; without arguments, copies on this machine are handled as well.
fn sites(
    args: &Args,
    raw: &mut Vec<(String, Unfinished)>,
    context: &Context,
) -> Result<Vec<OsString>, Error> {
    if !args.sites.is_empty() {
        return Ok(args.sites.clone());
    }
    raw.extend(here(args, context)?.into_iter().map(|one| (HERE.to_owned(), one)));
    // A user who never logged in has no copies at a site.
    Ok(own_site(context).into_iter().map(|own| own.to_string().into()).collect())
}

/// Copies to this machine, removed if requested.
fn here(args: &Args, context: &Context) -> Result<Vec<Unfinished>, Error> {
    let all = left(&context.home()?.journal_dir(), true)?;
    let told = |all: Vec<UnfinishedCopy>| all.into_iter().map(|left| left.told).collect::<Vec<_>>();
    if !args.drop {
        return Ok(told(all.into_iter().filter(UnfinishedCopy::is_told).collect()));
    }
    let named = args.those_in(all.iter().map(|left| &left.told));
    if named.is_empty() && !args.ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut dropped = Vec::new();
    for left in choose(all, &named).map_err(|error| error.at("client"))? {
        if drop_own(&left.path).map_err(|error| error.at("client"))?.is_some() {
            dropped.push(left);
        }
    }
    Ok(told(dropped))
}

fn ask(
    args: &Args,
    site: &OsString,
    many: &mut Many<'_>,
    context: &Context,
) -> Result<UnfinishedReply, Error> {
    let path = site_or_place(site, context)?;
    let storage = path.place.as_ref().map(|place| place.storage.clone());
    let mut ask = |what| match many
        .ask(&path.site, Request::Unfinished(AboutUnfinished { storage: storage.clone(), what }))?
    {
        Reply::Unfinished(reply) => Ok(reply),
        other => Err(unexpected(&other)),
    };
    if !args.drop || args.ids.is_empty() {
        return ask(args.wish());
    }
    // An id may match at one site and not at another.
    let named = args.those_in(ask(UnfinishedAction::List)?.listed.iter());
    match named.is_empty() {
        true => Ok(UnfinishedReply::default()),
        false => ask(UnfinishedAction::Drop(named)),
    }
}

fn one_json(at: &str, one: &Unfinished) -> Value {
    json!({
        "at": at,
        "id": one.id,
        "owner": one.owner,
        "to": one.to,
        "files": one.files,
        "bytes": one.bytes,
        "files_done": one.files_done,
        "written": moment(one.written_ms),
        "until": moment(one.until_ms),
        "running": one.running,
    })
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (at, one) in &self.raw {
            write_line(at, one, self.dropped, out)?;
        }
        if self.raw.is_empty() {
            let others = if self.is_here { "; `renkei unfinished SITE` looks at another site" } else { "" };
            return writeln!(out, "nothing is unfinished{others}");
        }
        if !self.dropped {
            writeln!(
                out,
                "Running the command of one again resumes it; --drop removes them and frees their space."
            )?;
        }
        Ok(())
    }
}

fn write_line(at: &str, one: &Unfinished, dropped: bool, out: &mut dyn Write) -> io::Result<()> {
    let id = &one.id[..one.id.len().min(SHORT)];
    let kept = match (one.files, one.files_done) {
        (0, 0) => "nothing stored yet".to_owned(),
        (files, done) => {
            let partial = counted(files, "partial file", "partial files");
            let done = counted(done, "file", "files");
            format!("{} kept of {partial}, {done} done", human(one.bytes))
        }
    };
    let age = Duration::from_millis(unix_ms(SystemTime::now()).saturating_sub(one.written_ms));
    let state = match (dropped, one.running) {
        (true, _) => "removed".to_owned(),
        (false, true) => "running".to_owned(),
        (false, false) => format!("stopped {} ago, kept {} more", span(age), span(until(one.until_ms))),
    };
    let owner = if one.owner.is_empty() { String::new() } else { format!("  {}", one.owner) };
    writeln!(out, "{id}  {at}:{}{owner}  {kept}  {state}", one.to)
}
