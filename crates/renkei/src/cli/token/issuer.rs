//! `renkei issuer`: the issuers whose tokens the PoP accepts.

use crate::cli::Context;
use crate::cli::output::Report;
use crate::cli::path_rights::PathRights;
use clap::Subcommand;
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Rights;
use renkei_core::path::Place;
use renkei_net::identity::account::Account;
use renkei_net::identity::map;
use renkei_net::identity::token::acceptance::Acceptance;
use renkei_net::identity::token::issuers::{Issuer, Issuers, audiences};
use renkei_net::identity::token::jwt::{Claims, Grant};
use renkei_net::identity::token::keys::IssuerKeys;
use serde::Serialize;
use std::io::{self, Write};

/// Accept tokens of other services: WLCG tokens, SciTokens, access tokens of RFC 9068
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei issuer add wlcg https://issuer.example --prefix /data/wlcg --account wlcg001   tokens with scopes, as one account\n  renkei issuer add wlcg https://issuer.example       only subjects and groups that the map names\n  renkei map add 'group:https://issuer.example#/wlcg/xfers' xfers\n  renkei issuer test TOKEN                            what a token may do here, or why not"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Accept the tokens of an issuer
    Add {
        /// A name for it here
        name: String,
        /// Its URL, as its tokens name it
        url: String,
        /// The place that paths of its tokens begin at, as /data/wlcg; without it, paths begin with a storage
        #[arg(long, value_name = "PATH")]
        prefix: Option<String>,
        /// The account of subjects for whom the map has no rule; without it, those are refused
        #[arg(long)]
        account: Option<String>,
        /// A further audience that means this PoP
        #[arg(long, value_name = "AUDIENCE")]
        audience: Vec<String>,
    },
    /// List the issuers
    List,
    /// Accept the tokens of an issuer no more
    Remove {
        /// Its name here
        name: String,
    },
    /// Show what a token may do here, or why it is refused
    Test {
        /// The token
        token: String,
    },
}

#[derive(Serialize)]
struct Listing {
    issuers: Issuers,
}

#[derive(Serialize)]
struct Changed {
    action: &'static str,
    name: String,
}

/// What a token may do here.
#[derive(Serialize)]
struct Tested {
    issuer: String,
    subject: String,
    groups: Vec<String>,
    account: String,
    rule: String,
    /// None if it is not restricted.
    rights: Option<Vec<PathRights>>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let config = Config::load(&home)?;
    config.site(&home)?;
    let mut issuers = Issuers::load(&home)?;
    match &args.action {
        Action::Add { name, url, prefix, account, audience } => {
            let (url, prefix) = (url.clone(), prefix.clone());
            let issuer = Issuer { url, prefix, account: account.clone(), audience: audience.clone() };
            add(&mut issuers, name, issuer)?;
            issuers.store(&home)?;
            context.output.done(&Changed { action: "added", name: name.clone() })?;
        }
        Action::List => context.output.answer(&Listing { issuers })?,
        Action::Remove { name } => {
            let unknown =
                || Error::new(Code::IssuerUnknown, "remove issuer", name, "`renkei issuer list` shows them");
            issuers.0.remove(name).ok_or_else(unknown)?;
            issuers.store(&home)?;
            context.output.done(&Changed { action: "removed", name: name.clone() })?;
        }
        Action::Test { token } => context.output.answer(&test(&home, &config, &issuers, token, context)?)?,
    }
    Ok(0)
}

fn add(issuers: &mut Issuers, name: &str, issuer: Issuer) -> Result<(), Error> {
    issuer.check()?;
    issuer.account.as_deref().map(Account::lookup).transpose()?;
    if let Some((known, _)) =
        issuers.0.iter().find(|(known, other)| *known == name || other.url == issuer.url)
    {
        let cause = format!("{known} is that already; `renkei issuer remove {known}` first");
        return Err(Error::new(Code::PathExists, "add issuer", name, cause));
    }
    issuers.0.insert(name.to_owned(), issuer);
    Ok(())
}

fn test(
    home: &Home,
    config: &Config,
    issuers: &Issuers,
    token: &str,
    context: &Context,
) -> Result<Tested, Error> {
    let claims = Claims::read(token.trim())?;
    let keys = IssuerKeys::new(home);
    let (mapping, audiences) = (map::load(home)?, audiences(&config.announced_endpoints()));
    let acceptance = Acceptance { issuers, keys: &keys, mapping: &mapping, audiences };
    let grant = acceptance.verify(&claims, token.trim(), context.now())?;
    let Grant { account, rule, capabilities } = grant;
    let allowed = |(rights, place): &(Rights, Option<Place>)| PathRights::new(*rights, place.as_ref());
    Ok(Tested {
        groups: claims.groups().to_vec(),
        issuer: claims.issuer,
        subject: claims.subject,
        account,
        rule,
        rights: capabilities.map(|all| all.iter().map(allowed).collect()),
    })
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} {}", self.action, self.name)
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (name, issuer) in &self.issuers.0 {
            let prefix = issuer.prefix.as_deref().unwrap_or("/");
            let account = issuer.account.as_deref().unwrap_or("by the map");
            writeln!(out, "{name}  {}  below {prefix}  account: {account}", issuer.url)?;
        }
        Ok(())
    }
}

impl Report for Tested {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} of {} is {} here ({})", self.subject, self.issuer, self.account, self.rule)?;
        match &self.rights {
            None => writeln!(out, "may do what that account can"),
            Some(rights) => rights.iter().try_for_each(|rights| writeln!(out, "{rights}")),
        }
    }
}
