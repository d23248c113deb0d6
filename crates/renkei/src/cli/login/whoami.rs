//! `renkei whoami`: the own principals, by the certificates in the directory or as another site sees them.

use crate::cli::chosen_identity::choose;
use crate::cli::output::Report;
use crate::cli::quantity::counted;
use crate::cli::{Context, connect};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request};
use renkei_net::identity::certificate::{unix_seconds, utc};
use renkei_net::identity::credential::Credential;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::time::SystemTime;

/// Show who you are and until when; with SITE, who you are there
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Ask this site which account you work as and which storages you may use
    site: Option<OsString>,
}

#[derive(Serialize)]
struct Identity {
    principal: Principal,
    site: SiteName,
    expires: String,
    expires_unix: i64,
    serial: String,
    /// How it was got.
    source: String,
    /// The rights, if it is restricted.
    scope: Option<String>,
    #[serde(skip)]
    left: String,
}

#[derive(Serialize)]
struct Identities {
    user: Option<Identity>,
    pop: Option<Identity>,
}

/// The identity of the user at another site.
#[derive(Serialize)]
struct Mapped {
    site: SiteName,
    principal: String,
    account: String,
    rule: String,
    storages: Vec<StorageRow>,
    volumes: Vec<StorageRow>,
    endpoint: String,
    software: String,
}

#[derive(Serialize)]
struct StorageRow {
    name: String,
    writable: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    if let Some(site) = &args.site {
        context.output.answer(&ask(site, context)?)?;
        return Ok(0);
    }
    let (home, now) = (context.home()?, context.now());
    let user = choose(context, &[]);
    let pop = Credential::host(&home, now);
    // With a PoP here, a login is optional; other errors are reported.
    let user = match user {
        Err(error) if error.code == Code::NotLoggedIn && pop.is_ok() => None,
        user => {
            let user = user?;
            Some(Identity { source: user.source(), ..Identity::of(&user.own, now)? })
        }
    };
    let pop = match pop {
        Err(error) if error.code == Code::NotInitialised => None,
        // Not every user may read the PoP's key.
        Err(error) if user.is_some() && error.code != Code::CertificateExpired => None,
        pop => Some(Identity::of(&pop?, now)?),
    };
    context.output.answer(&Identities { user, pop })?;
    Ok(0)
}

fn ask(site: &OsStr, context: &Context) -> Result<Mapped, Error> {
    let mut session = connect::session(context, &connect::site_argument(site)?)?;
    let identity = match session.ask(Request::Whoami)? {
        Reply::Identity(identity) => identity,
        other => return Err(connect::unexpected(&other)),
    };
    let storage = |(name, writable): (String, bool)| StorageRow { name, writable };
    Ok(Mapped {
        site: identity.site,
        principal: identity.principal,
        account: identity.account,
        rule: identity.rule,
        storages: identity.storages.into_iter().map(storage).collect(),
        volumes: identity.volumes.into_iter().map(storage).collect(),
        endpoint: session.place(),
        software: session.welcome.software.clone(),
    })
}

impl Identity {
    fn of(credential: &Credential, now: SystemTime) -> Result<Self, Error> {
        let facts = credential.facts()?;
        let (principal, scope) = facts.holder()?;
        let scope = scope.map(ToString::to_string);
        Ok(Identity {
            site: principal.site().clone(),
            principal,
            expires: utc(facts.not_after),
            expires_unix: unix_seconds(facts.not_after),
            serial: facts.serial,
            source: "issued by the site".into(),
            scope,
            left: left(facts.not_after, now),
        })
    }
}

fn left(until: SystemTime, now: SystemTime) -> String {
    let minutes = until.duration_since(now).unwrap_or_default().as_secs() / 60;
    match minutes {
        0..120 => format!("{minutes} min"),
        120..2880 => format!("{} h", minutes / 60),
        _ => counted(minutes / 1440, "day", "days"),
    }
}

impl Report for Mapped {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} is {} at {} (rule: {})", self.principal, self.account, self.site, self.rule)?;
        let named = [(&self.storages, ""), (&self.volumes, "  volume")];
        for (rows, what) in named {
            for StorageRow { name, writable } in rows {
                let mode = if *writable { "read-write" } else { "read-only" };
                writeln!(out, "  {}:/{name}  {mode}{what}", self.site)?;
            }
        }
        Ok(())
    }
}

impl Report for Identities {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let named = [("", &self.user), ("PoP of ", &self.pop)];
        for (what, identity) in named {
            if let Some(Identity { principal, expires, left, source, scope, .. }) = identity {
                writeln!(out, "{what}{principal}  until {expires} ({left} left)")?;
                if what.is_empty() {
                    writeln!(out, "  by: {source}")?;
                }
                if let Some(scope) = scope {
                    writeln!(out, "  may {scope}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn remaining_time_is_shown_in_suitable_units() {
        let after = |secs| left(UNIX_EPOCH + Duration::from_secs(secs), UNIX_EPOCH);
        assert_eq!((after(59), after(5400), after(43_200)), ("0 min".into(), "90 min".into(), "12 h".into()));
        assert_eq!(after(365 * 86_400), "365 days");
    }
}
