//! `renkei route`: the ways to sites, and why one is chosen.

use super::connect::{own_site, session, site_argument, unexpected};
use super::output::Report;
use super::{Context, connect};
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::{EndpointPath, SiteName};
use renkei_core::route::{Step, Way};
use renkei_core::wire::message::{Reply, Request, TriedWay};
use renkei_mover::connect::dial::Dialler;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Show the hops by which data would go, and why
///
/// With one place: from here to its site. With two: from the site of the first to that of the second, whose PoPs talk to
/// each other. Ways are tried in the order shown; the first one that works is taken. Each of them is tried now, from here or
/// by the PoP of the first place, and failures are shown; if none works, the exit status is 8. Where a place is named, its
/// site is asked whether an agent has it; of an agent's ways the cards tell.
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

/// Exit status if no way works now, as for an unreachable site.
const NO_WAY: u8 = 8;

#[derive(Serialize)]
struct Shown {
    from: String,
    to: SiteName,
    ways: Vec<Row>,
    /// The reason why they were not tested.
    untested: Option<String>,
}

#[derive(Serialize)]
struct Row {
    hops: Vec<String>,
    why: String,
    against: Option<String>,
    /// The reason why it does not work now.
    failed: Option<String>,
    /// Whether it is the first permitted one that did not fail.
    chosen: bool,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (from, to) = match &args.to {
        Some(to) => (Some(end_of(&args.from, context)?), end_of(to, context)?),
        None => (None, end_of(&args.from, context)?),
    };
    let (ways, untested) = match &from {
        Some(from) if from.site() != to.site() => between(from, to.site(), context)?,
        _ => (from_here(to.site(), context)?, None),
    };
    let from = from.as_ref().map_or_else(|| "here".into(), named);
    let ways = rows(&from, &to, ways);
    let leads = ways.iter().any(|way| way.chosen);
    context.output.answer(&Shown { ways, from, to: to.site().clone(), untested })?;
    Ok(if leads { 0 } else { NO_WAY })
}

/// The holder of a named place: the PoP of a site, or an agent of it, if the site can be asked.
fn end_of(argument: &OsStr, context: &Context) -> Result<Principal, Error> {
    let site = site_of(argument)?;
    let place = EndpointPath::parse(argument.as_bytes()).ok().flatten().and_then(|path| path.place);
    let Some(place) = place else { return Ok(Principal::Host(site)) };
    let status = session(context, &site).and_then(|mut session| session.ask(Request::Status));
    match status {
        Ok(Reply::Status(status)) if status.agents.iter().any(|agent| agent.storage == place.storage) => {
            Principal::agent(&site, &place.storage)
        }
        _ => Ok(Principal::Host(site)),
    }
}

fn named(end: &Principal) -> String {
    match end {
        Principal::Agent { site, storage } => format!("the agent of {site}:/{storage}"),
        end => end.to_string(),
    }
}

/// The site of an argument that names a place or a site.
fn site_of(argument: &OsStr) -> Result<SiteName, Error> {
    match EndpointPath::parse(argument.as_bytes()) {
        Ok(Some(path)) => Ok(path.site),
        _ => site_argument(argument),
    }
}

/// The ways of this user, or of the PoP in this directory without a login.
fn from_here(to: &SiteName, context: &Context) -> Result<Vec<TriedWay>, Error> {
    match connect::dialler(context, &[to]) {
        Ok(dialler) => dialler.test_ways(to),
        Err(error) if error.code == Code::NotLoggedIn => match pop(&context.home()?, context) {
            Err(none) if none.code == Code::NotInitialised => Err(error),
            pop => pop?.test_ways(to),
        },
        Err(error) => Err(error),
    }
}

fn pop(home: &Home, context: &Context) -> Result<Dialler, Error> {
    let (config, credential) = (Config::load(home)?, Credential::host(home, context.now())?);
    let dialler = Dialler::new(&credential, Arc::new(Trust::load(home)?), config.stall_timeout())?;
    Ok(dialler.with_rules(config.route_rules()))
}

/// The ways from one site to another: tested by its PoP, or derived from the cards known here, with the reason why
/// not tested.
fn between(
    from: &Principal,
    to: &SiteName,
    context: &Context,
) -> Result<(Vec<TriedWay>, Option<String>), Error> {
    let asked = match from {
        Principal::Host(site) => {
            session(context, site).and_then(|mut session| match session.ask(Request::Ways(to.clone()))? {
                Reply::Ways(ways) => Ok(ways),
                other => Err(unexpected(&other)),
            })
        }
        agent => Err(Error::new(Code::Unsupported, "test ways", named(agent), "agents are not asked")),
    };
    match asked {
        Ok(ways) => Ok((ways, None)),
        Err(error) => Ok((as_cards_tell(from, to, context)?, Some(error.to_string()))),
    }
}

fn as_cards_tell(from: &Principal, to: &SiteName, context: &Context) -> Result<Vec<TriedWay>, Error> {
    let home = context.home()?;
    let trust = match connect::dialler(context, &[from.site(), to]) {
        Ok(dialler) => dialler.trust_shared(),
        Err(error) if error.code == Code::NotLoggedIn => Arc::new(Trust::load(&home)?),
        Err(error) => return Err(error),
    };
    let is_own = own_site(context).is_ok_and(|here| *from == Principal::Host(here));
    let rules = if is_own { Config::load(&home)?.route_rules() } else { Default::default() };
    let steps = renkei_mover::connect::routes::plan_of(from, to, &trust, &rules)?;
    let told = |Step { way, why, against, .. }: Step| TriedWay { way, why, against, failed: None };
    Ok(steps.into_iter().map(told).collect())
}

fn rows(from: &str, to: &Principal, ways: Vec<TriedWay>) -> Vec<Row> {
    let chosen = ways.iter().position(|way| way.against.is_none() && way.failed.is_none());
    let row = |(number, TriedWay { way, why, against, failed }): (usize, TriedWay)| Row {
        failed: failed.map(|error| error.to_string()),
        hops: hops(from, to.site(), &way).into_iter().chain(last_hop(to)).collect(),
        against,
        chosen: Some(number) == chosen,
        why,
    };
    ways.into_iter().enumerate().map(row).collect()
}

/// The connections of a way, one hop each.
fn hops(from: &str, to: &SiteName, way: &Way) -> Vec<String> {
    match way {
        Way::Direct => vec![format!("{from} connects to {to}")],
        Way::Line => vec![format!("{to} connects to {from} when called over its line")],
        Way::Through(relay) => {
            vec![format!("{from} connects to {relay}"), format!("{relay} relays to {to}")]
        }
    }
}

/// The hop from the PoP to the agent that serves the place.
fn last_hop(to: &Principal) -> Option<String> {
    match to {
        Principal::Agent { site, .. } => {
            Some(format!("{} connects to {site} when called over its line", named(to)))
        }
        _ => None,
    }
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.ways.is_empty() {
            return writeln!(out, "there is no route from {} to {}", self.from, self.to);
        }
        for row in &self.ways {
            let mark = if row.chosen { "->" } else { "  " };
            writeln!(out, "{mark} {}", row.hops.join(", "))?;
            writeln!(out, "     {}", row.why)?;
            if let Some(against) = &row.against {
                writeln!(out, "     not taken: {against}")?;
            }
            if let Some(failed) = &row.failed {
                writeln!(out, "     failed just now: {failed}")?;
            }
        }
        if let Some(untested) = &self.untested {
            writeln!(out, "these are as the cards say, and were not tried: {untested}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_show_the_direction_of_dialling() {
        let (kek, hub) = (SiteName::parse("kek").unwrap(), SiteName::parse("hub").unwrap());
        assert_eq!(hops("titech", &kek, &Way::Direct), ["titech connects to kek"]);
        assert_eq!(hops("hub", &kek, &Way::Line), ["kek connects to hub when called over its line"]);
        assert_eq!(hops("titech", &kek, &Way::Through(hub)), ["titech connects to hub", "hub relays to kek"]);
        let agent = Principal::agent(&kek, "scratch").unwrap();
        let last = "the agent of kek:/scratch connects to kek when called over its line";
        assert_eq!(last_hop(&agent).as_deref(), Some(last));
        assert_eq!(last_hop(&Principal::Host(kek)), None);
    }

    #[test]
    fn places_and_sites_are_accepted() {
        for text in ["kek", "kek:", "kek:/raw/run7"] {
            assert_eq!(site_of(OsStr::new(text)).unwrap().as_str(), "kek");
        }
        assert!(site_of(OsStr::new("/raw")).is_err());
    }
}
