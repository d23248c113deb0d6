//! `renkei route`: the ways to sites, and why.

use super::connect::{own_site, site_argument};
use super::output::Report;
use super::{Context, connect};
use crate::config::Config;
use crate::home::Home;
use crate::identity::credential::Credential;
use crate::identity::trust::Trust;
use crate::mover::dial::Dialler;
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, SiteName};
use renkei_core::route::{Step, Way};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Show the hops by which data would go, and why
///
/// With one place: from here to its site. With two: from the site of the first to that of the second, whose PoPs talk to
/// each other. Ways are tried in the order shown; the first one that works is taken.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei route kek\n  renkei route titech:/scratch kek:/raw\n\nWhich lines are up now, \
                       `renkei status SITE` shows."
)]
pub struct Args {
    /// Where the data is, SITE or SITE:/STORAGE/PATH; with one place, where they go
    from: OsString,
    /// Where they go
    to: Option<OsString>,
}

#[derive(Serialize)]
struct Shown {
    from: String,
    to: SiteName,
    ways: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    hops: Vec<String>,
    why: String,
    against: Option<String>,
    /// Whether it is the first that may be taken.
    chosen: bool,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (from, to) = match &args.to {
        Some(to) => (Some(site_of(&args.from)?), site_of(to)?),
        None => (None, site_of(&args.from)?),
    };
    let ways = match &from {
        Some(from) if *from != to => between(from, &to, context)?,
        _ => from_here(&to, context)?,
    };
    let from = from.map_or_else(|| "here".into(), |site| site.to_string());
    context.output.answer(&Shown { ways: rows(&from, &to, ways), from, to })?;
    Ok(0)
}

/// The site of an argument that names a place or a site.
fn site_of(argument: &OsStr) -> Result<SiteName, Error> {
    match EndpointPath::parse(argument.as_bytes()) {
        Ok(Some(path)) => Ok(path.site),
        _ => site_argument(argument),
    }
}

/// The ways of this user, or of the PoP in this directory if nobody is logged in.
fn from_here(to: &SiteName, context: &Context) -> Result<Vec<Step>, Error> {
    match connect::dialler(context, &[to]) {
        Ok(dialler) => dialler.plan(to),
        Err(error) if error.code == Code::NotLoggedIn => pop(&context.home()?, context)?.plan(to),
        Err(error) => Err(error),
    }
}

fn pop(home: &Home, context: &Context) -> Result<Dialler, Error> {
    let (config, credential) = (Config::load(home)?, Credential::host(home, context.now())?);
    let dialler = Dialler::new(&credential, Arc::new(Trust::load(home)?), config.stall_timeout())?;
    Ok(dialler.with_rules(config.route_rules()))
}

/// The ways that the PoP of one site has to another, as far as the cards known here tell.
fn between(from: &SiteName, to: &SiteName, context: &Context) -> Result<Vec<Step>, Error> {
    let home = context.home()?;
    let trust = match connect::dialler(context, &[from, to]) {
        Ok(dialler) => dialler.trust_shared(),
        Err(error) if error.code == Code::NotLoggedIn => Arc::new(Trust::load(&home)?),
        Err(error) => return Err(error),
    };
    let (config, here) = (Config::load(&home)?, own_site(context).ok());
    let rules = if here.as_ref() == Some(from) { config.route_rules() } else { Default::default() };
    crate::mover::routes::plan_of_pop(from, to, &trust, &rules)
}

fn rows(from: &str, to: &SiteName, steps: Vec<Step>) -> Vec<Row> {
    let chosen = steps.iter().position(|step| step.against.is_none());
    let row = |(number, step): (usize, Step)| Row {
        hops: hops(from, to, &step.way),
        against: step.against,
        chosen: Some(number) == chosen,
        why: step.why,
    };
    steps.into_iter().enumerate().map(row).collect()
}

/// Who dials whom, one hop each.
fn hops(from: &str, to: &SiteName, way: &Way) -> Vec<String> {
    match way {
        Way::Direct => vec![format!("{from} dials {to}")],
        Way::Line => vec![format!("{to} dials {from} when it is called over its line")],
        Way::Through(relay) => {
            vec![format!("{from} dials {relay}"), format!("{relay} passes on to {to}")]
        }
    }
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.ways.is_empty() {
            return writeln!(out, "no way leads from {} to {}", self.from, self.to);
        }
        for row in &self.ways {
            let mark = if row.chosen { "->" } else { "  " };
            writeln!(out, "{mark} {}", row.hops.join(", "))?;
            writeln!(out, "     {}", row.why)?;
            if let Some(against) = &row.against {
                writeln!(out, "     not taken: {against}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_say_who_dials_whom() {
        let (kek, hub) = (SiteName::parse("kek").unwrap(), SiteName::parse("hub").unwrap());
        assert_eq!(hops("titech", &kek, &Way::Direct), ["titech dials kek"]);
        assert_eq!(hops("hub", &kek, &Way::Line), ["kek dials hub when it is called over its line"]);
        assert_eq!(hops("titech", &kek, &Way::Through(hub)), ["titech dials hub", "hub passes on to kek"]);
    }

    #[test]
    fn places_and_sites_are_both_taken() {
        for text in ["kek", "kek:", "kek:/raw/run7"] {
            assert_eq!(site_of(OsStr::new(text)).unwrap().as_str(), "kek");
        }
        assert!(site_of(OsStr::new("/raw")).is_err());
    }
}
