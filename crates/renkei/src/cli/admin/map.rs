//! `renkei map`: the mapping of principals to local accounts.

use super::scope_meaning::ScopeMeaning;
use crate::cli::Context;
use crate::cli::confirm::confirm;
use crate::cli::output::Report;
use crate::cli::remedy::here;
use clap::Subcommand;
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{AccountRule, Mapping, Pattern, Principal, Why};
use renkei_core::remedy::{explained, fill};
use renkei_net::identity::account::Account;
use renkei_net::identity::map;
use renkei_net::identity::token::issuers::Issuers;
use renkei_net::identity::trust::Trust;
use serde::Serialize;
use std::io::{self, Write};

/// Map users to local accounts
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei map add alice@titech alice   one user\n  renkei map add '*@kek' guest        everybody else of a site, as one account\n  renkei map add '*@riken' '*'        everybody of a site, as the account of the same name\n  renkei map deny eve@titech          nobody, whatever else is said\n  renkei map test alice@titech        who that would be, and why\n  renkei map add 'dn:/C=JP/O=NII/CN=Taro' taro\n  renkei map add 'krb:*@EXAMPLE.ORG' '*'   Kerberos users of a realm, as the account of the same name\n  renkei map test /tmp/x509up_u1000   each step of a grid proxy\n  renkei map test --scope 'storage.read:/data storage.create:/data/in'"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a rule
    Add {
        /// USER@SITE, *@SITE for all users of a site, token:ISSUER#SUBJECT, group:ISSUER#/GROUP, dn:/NAME, fqan:/VO/Role=ROLE,
        /// krb:NAME@REALM or krb:*@REALM for all users of a realm
        pattern: String,
        /// The local account, or * for the account of the user's own name
        account: String,
        /// Do not ask about an account that does not exist, root, or a site that is not known
        #[arg(long)]
        yes: bool,
    },
    /// Shut a user out, whatever other rules and grants say; with *@SITE the site's users without a rule of their own
    ///
    /// Work that runs for the user here ends within seconds. Of the own site's users the certificates stay good at partners until
    /// `renkei revoke USER@SITE`. A rule for the same user stays beside it and counts again after `map remove`.
    Deny {
        /// USER@SITE, or *@SITE for all users of a site who have no rule of their own
        pattern: String,
    },
    /// Remove a rule; of a user who was shut out, the rule that does that first
    Remove {
        /// The rule's pattern as `map list` shows it
        pattern: String,
    },
    /// List the rules
    List,
    /// Show the account of a user, and the rule that decides; fails if there is none
    Test {
        /// USER@SITE, dn:/NAME, fqan:/VO/Role=ROLE, krb:NAME@REALM, or the file of a proxy or certificate
        #[arg(required_unless_present = "scope")]
        principal: Option<String>,
        /// Show what a credential with these words may do here, such as "storage.read:/data storage.create:/data/in"
        #[arg(long, value_name = "WORDS")]
        scope: Option<String>,
    },
}

#[derive(Serialize)]
struct Changed {
    action: &'static str,
    pattern: String,
    /// The rule with the same pattern that is in force from now on.
    in_force: Option<String>,
}

#[derive(Serialize)]
struct Row {
    pattern: String,
    account: String,
    line: usize,
}

#[derive(Serialize)]
struct Listing {
    rules: Vec<Row>,
    map_own_users: bool,
}

#[derive(Serialize)]
struct Tested {
    principal: Principal,
    allowed: bool,
    account: Option<String>,
    why: Why,
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Vec<u32>,
    /// The error if a matching rule is refused: its code and message.
    refusal: Option<Refusal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<ScopeMeaning>,
}

#[derive(Serialize)]
struct Refusal {
    code: Code,
    cause: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let config = Config::load(&home)?;
    config.site(&home)?;
    let changed = |action, pattern: &String| {
        context.output.done(&Changed { action, pattern: pattern.clone(), in_force: None }).map(|()| 0)
    };
    match &args.action {
        Action::Add { pattern, account, yes } => {
            confirm(*yes, "add rule", pattern, &doubts(&home, pattern, account)?)?;
            let added = map::add(&home, pattern, account)?;
            changed(if added { "added" } else { "unchanged" }, pattern)
        }
        Action::Deny { pattern } => {
            let denied = map::deny(&home, pattern)?;
            changed(if denied { "added" } else { "unchanged" }, pattern)?;
            for user in still_in(&map::load(&home)?, pattern) {
                context.output.notice(&format!(
                    "warning: {user} has a rule of its own and still gets in; {}",
                    here(&format!("`renkei map deny {user}` shuts it out"))
                ));
            }
            Ok(0)
        }
        Action::Remove { pattern } => {
            let in_force = map::remove(&home, pattern)?.map(|rule| rule.to_string());
            context.output.done(&Changed { action: "removed", pattern: pattern.clone(), in_force })?;
            Ok(0)
        }
        Action::List => {
            let mapping = map::load(&home)?;
            let rows = mapping.rules().iter().map(|rule| Row {
                pattern: rule.pattern.to_string(),
                account: rule.account.to_string(),
                line: rule.line,
            });
            let listing = Listing { rules: rows.collect(), map_own_users: config.map_own_users };
            context.output.answer(&listing).map(|()| 0)
        }
        Action::Test { principal: None, scope } => {
            let meaning = ScopeMeaning::of(scope.as_deref().unwrap_or_default());
            context.output.answer(&meaning)?;
            Ok(meaning.exit_status())
        }
        Action::Test { principal: Some(principal), .. } if principal.starts_with("krb:") => {
            crate::cli::grid::kerberos_user::run(&map::load(&home)?, &config, principal, context)
        }
        Action::Test { principal: Some(principal), .. }
            if crate::cli::grid::mapping::is_of_grid(principal) =>
        {
            crate::cli::grid::mapping::run(&map::load(&home)?, &config, principal, context)
        }
        Action::Test { principal: Some(principal), scope } => {
            test(&map::load(&home)?, &config, principal, scope.as_deref(), context)
        }
    }
}

/// The users of a denied site who are still allowed by rules of their own.
fn still_in(mapping: &Mapping, denied: &str) -> Vec<String> {
    let Some(site) = denied.strip_prefix('*') else { return Vec::new() };
    let own = mapping.rules().iter().filter(|rule| rule.account != AccountRule::Nobody);
    let users = own.map(|rule| rule.pattern.to_string());
    users.filter(|user| !user.starts_with('*') && user.ends_with(site)).collect()
}

/// Warnings about likely mistakes in a rule.
fn doubts(home: &Home, pattern: &str, account: &str) -> Result<Vec<String>, Error> {
    let (pattern, rule) = (Pattern::parse(pattern)?, AccountRule::parse(account)?);
    let mut doubts = Vec::new();
    if let AccountRule::Named(name) = &rule {
        match Account::lookup(name) {
            Err(error) => doubts.push(format!("this machine has no account {name} ({})", error.cause)),
            Ok(found) if found.uid == 0 => {
                doubts.push(format!(
                    "{pattern} becomes {name}, who may read and change everything on this machine"
                ));
            }
            Ok(_) => {}
        }
    }
    match &pattern {
        Pattern::Users { site, .. } if Trust::load(home)?.card(site).is_none() => {
            doubts.push(format!("no site {site} is known here (`renkei trust list`)"));
        }
        Pattern::Subject { issuer, .. } | Pattern::Group { issuer, .. }
            if Issuers::load(home)?.named(issuer).is_none() =>
        {
            doubts.push(format!("no issuer {issuer} is known here (`renkei issuer list`)"));
        }
        _ => {}
    }
    Ok(doubts)
}

fn test(
    mapping: &renkei_core::identity::Mapping,
    config: &Config,
    principal: &str,
    scope: Option<&str>,
    context: &Context,
) -> Result<u8, Error> {
    let principal = Principal::parse(principal)?;
    let scope = scope.map(ScopeMeaning::of);
    let verdict = map::resolve(mapping, config, &principal);
    let outcome = map::account_of(mapping, config, &principal);
    let of_scope = scope.as_ref().map_or(0, ScopeMeaning::exit_status);
    let status = outcome.as_ref().map_or_else(|error| error.kind().exit_status(), |_| of_scope);
    let found = outcome.as_ref().ok();
    context.output.answer(&Tested {
        principal,
        allowed: outcome.is_ok(),
        account: verdict.account,
        why: verdict.why,
        uid: found.map(|account| account.uid),
        gid: found.map(|account| account.gid),
        groups: found.map(|account| account.groups.clone()).unwrap_or_default(),
        refusal: outcome.as_ref().err().map(|error| Refusal { code: error.code, cause: error.to_string() }),
        scope,
    })?;
    Ok(status)
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "rule for {} {}", self.pattern, self.action)?;
        self.in_force.iter().try_for_each(|rule| {
            writeln!(out, "  in force again: {rule}; `renkei map remove {}` removes that, too", self.pattern)
        })
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.rules {
            writeln!(out, "{:<32} {}", row.pattern, row.account)?;
        }
        Ok(())
    }
}

impl Report for Tested {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.account {
            Some(account) if self.refusal.is_some() => {
                writeln!(out, "{} is refused; the map names {account}: {}", self.principal, self.why)?;
            }
            Some(account) => writeln!(out, "{} becomes {account}: {}", self.principal, self.why)?,
            None => writeln!(out, "{} is refused: {}", self.principal, self.why)?,
        }
        if let (Some(uid), Some(gid)) = (self.uid, self.gid) {
            let groups: Vec<String> = self.groups.iter().map(u32::to_string).collect();
            writeln!(out, "  uid {uid}, gid {gid}, groups {}", groups.join(" "))?;
        }
        if let (Some(refusal), Some(_)) = (&self.refusal, &self.account) {
            writeln!(out, "  why: {}", refusal.cause)?;
            let known = [("PRINCIPAL", self.principal.to_string())];
            writeln!(out, "  what to do: {}", explained(&fill(refusal.code.row().remedy, &known)))?;
        }
        self.scope.iter().try_for_each(|scope| scope.write_text(out))
    }
}
