//! `renkei console`: a one-time link to a PoP's web page.

use super::connect::{own_site, session, site_argument, unexpected, user_home};
use super::output::Report;
use super::{Context, login};
use crate::config::Config;
use crate::identity::certificate::hex;
use crate::identity::credential::Credential;
use crate::identity::socket;
use crate::identity::trust::Trust;
use crate::mover::dial::Session;
use crate::mover::reach::{Reach, resolve};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io::{self, Write};

/// Print a link to the web page of a PoP
///
/// In the PoP's own directory and without SITE: as its administrator, who sees everybody's transfers. Else as you, with
/// your transfers at SITE.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The link works once, within five minutes; the browser then stays logged in for 12 hours. The browser does not \
                       know the site's certificate and will say so: compare the fingerprint.\n\nExamples:\n  renkei console\n  \
                       renkei console kek"
)]
pub struct Args {
    /// The site whose page to open [default: the PoP of this directory, else your site]
    site: Option<OsString>,
}

#[derive(Serialize)]
struct Link {
    url: String,
    fingerprint: String,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let config = Config::load(&context.home()?)?;
    let link = match &args.site {
        None if config.site.is_some() => of_administrator(&config, context)?,
        None => of_user(&own_site(context)?, context)?,
        Some(site) => of_user(&site_argument(site)?, context)?,
    };
    context.output.answer(&link)?;
    Ok(0)
}

fn of_administrator(config: &Config, context: &Context) -> Result<Link, Error> {
    let home = context.home()?;
    let path = login::socket(&home, None);
    let answer = socket::request(&path, &json!({"op": "console"}))?;
    let secret = answer.as_str().ok_or_else(|| {
        Error::new(Code::ProtocolViolation, "read reply", path.display(), "it is not a link's secret")
    })?;
    let endpoint = config.announced_endpoints().into_iter().next().unwrap_or_default();
    let credential = Credential::host(&home, context.now())?;
    Ok(Link::new(&endpoint, secret, &credential.chain))
}

fn of_user(site: &SiteName, context: &Context) -> Result<Link, Error> {
    let mut session = session(context, site)?;
    match session.ask(Request::Console)? {
        Reply::Console(secret) => {
            let endpoint = endpoint(&session, context)?;
            Ok(Link::new(&endpoint, &secret, session.peer_chain()))
        }
        other => Err(unexpected(&other)),
    }
}

/// The name under which the site was reached, else its address.
fn endpoint(session: &Session, context: &Context) -> Result<String, Error> {
    let home = context.home()?;
    let trust = Trust::load(&user_home(&home).unwrap_or(home))?;
    let Reach::Direct(address, _) = session.reach else {
        let cause =
            "a browser cannot reach its PoP, which takes no connections; use one on the PoP's machine";
        return Err(Error::new(Code::NoRoute, "make link", session.site(), cause));
    };
    let reached = |endpoint: &&String| resolve(endpoint).is_ok_and(|all| all.contains(&address));
    let named = trust.endpoints(session.site())?.iter().find(reached).cloned();
    Ok(named.unwrap_or_else(|| address.to_string()))
}

impl Link {
    fn new(endpoint: &str, secret: &str, chain: &[CertificateDer<'_>]) -> Self {
        let fingerprint = chain.first().map(|own| hex(&Sha256::digest(own), ":")).unwrap_or_default();
        Link { url: format!("https://{endpoint}/console/login?t={secret}"), fingerprint }
    }
}

impl Report for Link {
    /// The link alone goes to standard output, so that it can be piped.
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.url)?;
        eprintln!("Works once, within five minutes. SHA-256 of the certificate: {}", self.fingerprint);
        Ok(())
    }
}
