//! `renkei console`: a one-time link to a PoP's web page.

use crate::cli::connect::{own_site, session, site_argument, unexpected, user_home};
use crate::cli::output::Report;
use crate::cli::{Context, login};
use renkei_config::Config;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request};
use renkei_mover::connect::dial::Session;
use renkei_mover::connect::transport::{Transport, resolve};
use renkei_net::identity::certificate::hex;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::socket;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::web::{SeenCertificate, hosts_in_file, see_as_browser};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Print a link to the web page of a PoP
///
/// In the PoP's own directory and without SITE: as its administrator, who sees everybody's transfers. Else as you, with
/// your transfers at SITE.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The link works once, within five minutes; the browser then stays logged in for 12 hours.\n\nA browser does not \
                       know the site's own certificate and warns. Go on only if the certificate that it shows has the fingerprint that is \
                       printed here. Where `web.certificate` and `web.key` in config.toml name a certificate that browsers know, there is \
                       no warning.\n\nExamples:\n  renkei console\n  \
                       renkei console kek"
)]
pub struct Args {
    /// The site whose page to open [default: the PoP of this directory, else your site]
    site: Option<OsString>,
}

#[derive(Serialize)]
struct Link {
    url: String,
    /// SHA-256 of the certificate that the browser gets.
    fingerprint: String,
    /// The reason why the browser will warn, as far as it can be told from here; none if it will not.
    warning: Option<String>,
    /// The host for which a certificate would prevent the warning.
    #[serde(skip)]
    host: String,
    /// Whether the reader can configure one.
    #[serde(skip)]
    is_administrator: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
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
    let credential = Credential::host(&home, context.now())?;
    let (endpoint, seen) = endpoint_for_browsers(config);
    Ok(Link { is_administrator: true, ..Link::new(&endpoint, secret, seen, &credential.chain) })
}

/// The first endpoint without a browser warning, also under a name of the web certificate; else the first.
fn endpoint_for_browsers(config: &Config) -> (String, Option<SeenCertificate>) {
    let mut endpoints = config.announced_endpoints();
    let port = endpoints.first().and_then(|first| first.rsplit_once(':')).map(|(_, port)| port.to_owned());
    let named = hosts_in_file(&config.web.certificate).into_iter().filter(|host| !host.starts_with('*'));
    endpoints.extend(named.zip(port.into_iter().cycle()).map(|(host, port)| format!("{host}:{port}")));
    let see = |endpoint: &String| {
        let mut own = config.listen.iter().map(reached_at);
        own.find_map(|address| see_as_browser(address, host_of(endpoint)).ok())
    };
    let mut seen: Vec<_> = endpoints.iter().map(|endpoint| (endpoint.clone(), see(endpoint))).collect();
    let is_good = |(_, seen): &(String, Option<SeenCertificate>)| {
        seen.as_ref().is_some_and(|seen| seen.doubt.is_none())
    };
    let best = seen.iter().position(is_good).unwrap_or(0);
    if seen.is_empty() { (String::new(), None) } else { seen.swap_remove(best) }
}

/// The local address of a PoP with this listen address.
fn reached_at(listen: &SocketAddr) -> SocketAddr {
    let own: IpAddr = if listen.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(if listen.ip().is_unspecified() { own } else { listen.ip() }, listen.port())
}

fn host_of(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn of_user(site: &SiteName, context: &Context) -> Result<Link, Error> {
    let mut session = session(context, site)?;
    match session.ask(Request::Console)? {
        Reply::Console(secret) => {
            let (endpoint, address) = endpoint(&session, context)?;
            let seen = see_as_browser(address, host_of(&endpoint)).ok();
            Ok(Link::new(&endpoint, &secret, seen, session.peer_chain()))
        }
        other => Err(unexpected(&other)),
    }
}

/// The name under which the site was reached, else its address; and the address.
pub(crate) fn endpoint(session: &Session, context: &Context) -> Result<(String, SocketAddr), Error> {
    let home = context.home()?;
    let trust = Trust::load(&user_home(&home).unwrap_or(home))?;
    let Transport::Direct(address, _) = session.reach else {
        let cause =
            "a browser cannot reach its PoP, which takes no connections; use one on the PoP's machine";
        return Err(Error::new(Code::NoRoute, "make link", session.site(), cause));
    };
    let reached = |endpoint: &&String| resolve(endpoint).is_ok_and(|all| all.contains(&address));
    let named = trust.endpoints(session.site())?.iter().find(reached).cloned();
    Ok((named.unwrap_or_else(|| address.to_string()), address))
}

impl Link {
    /// A link, with the certificate that a browser gets; if that could not be fetched, the one of the session.
    fn new(endpoint: &str, secret: &str, seen: Option<SeenCertificate>, own: &[CertificateDer<'_>]) -> Self {
        let leaf = seen.as_ref().map_or(own.first(), |seen| seen.chain.first());
        let fingerprint = leaf.map(|leaf| hex(&Sha256::digest(leaf), ":")).unwrap_or_default();
        let unknown = || Some("no authority that browsers know signed it".to_owned());
        Link {
            url: format!("https://{endpoint}/console/login?t={secret}"),
            fingerprint,
            warning: seen.map_or_else(unknown, |seen| seen.doubt),
            host: host_of(endpoint).into(),
            is_administrator: false,
        }
    }
}

impl Report for Link {
    /// The link alone goes to standard output, so that it can be piped.
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.url)?;
        eprintln!("The link works once, within five minutes.");
        match &self.warning {
            Some(warning) => self.explain(warning),
            None => eprintln!("The PoP shows a certificate that browsers know; SHA-256 {}", self.fingerprint),
        }
        Ok(())
    }
}

impl Link {
    /// Explains how to pass the browser's warning, and how to prevent it.
    fn explain(&self, warning: &str) {
        let Link { fingerprint, host, .. } = self;
        eprintln!("The browser will warn about the certificate: {warning}.");
        eprintln!("  Look at the certificate in the warning. If its SHA-256 fingerprint is this one, go on:");
        eprintln!("    Firefox, Safari   {}", fingerprint.to_uppercase());
        eprintln!("    Chrome, Edge      {}", fingerprint.replace(':', ""));
        eprintln!("  Firefox: Advanced..., View Certificate; then Accept the Risk and Continue.");
        eprintln!("  Chrome, Edge: Not secure, Certificate details; then Advanced, Proceed.");
        eprintln!("  If it is another one, somebody is in between: close the page.");
        match self.is_administrator {
            true => eprintln!(
                "To be rid of the warning set `web.certificate` and `web.key` in config.toml: a certificate for {host} that \
                 browsers know."
            ),
            false => eprintln!(
                "The warning goes when the administrator of the PoP sets `web.certificate` in config.toml for {host}."
            ),
        }
    }
}
