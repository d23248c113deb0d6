//! `renkei doctor SITE`: each step of the way to a site, in the order in which it can fail.

use super::check::Checks;
use super::check_login;
use super::kernel::Buffers;
use crate::cli::Context;
use crate::cli::connect::{keep_revocations, learn, tell, unexpected, user_home};
use crate::cli::quantity::{human, milliseconds, span};
use renkei_config::Config;
use renkei_core::entry::EntryKind;
use renkei_core::error::Error;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::message::{Reply, Request};
use renkei_mover::connect::dial::{DialHints, Dialler, Session};
use renkei_mover::connect::slow_connect::SlowConnectReporter;
use renkei_mover::connect::transport::{resolve, unreachable};
use renkei_net::identity::certificate::{Facts, utc};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use renkei_net::socket::rtt;
use renkei_net::{CONNECT_TIMEOUT, unix_ms};
use renkei_site::partners::probes::SKEW_WORTH_A_WORD;
use renkei_site::status::health_checks::certificate_ends;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Checks the way to `site`.
pub(crate) fn check(site: &SiteName, context: &Context, checks: &mut Checks) -> Result<(), Error> {
    let home = context.home()?;
    let silence = Config::load(&home)?.stall_timeout();
    let user_home = user_home(&home).unwrap_or_else(|_| home.clone());
    let mut trust = Trust::load(&user_home)?;
    if trust.card(site).is_none() {
        let learnt = Credential::user(&home, context.now())
            .and_then(|credential| learn(&user_home, &credential, silence, site));
        match learnt {
            Ok(learnt) => trust = learnt,
            Err(error) => checks.error("trust", &error),
        }
    }
    let Some(card) = trust.card(site) else { return Ok(()) };
    checks.ok("trust", format!("the card of {site} is here, fingerprint {}", card.fingerprint()));
    let (endpoints, via) = (card.endpoints.clone(), card.via.clone());
    let dialler = match check_login(&home, context, checks) {
        Some(credential) => Some(Dialler::new(&credential, Arc::new(trust), silence)?.telling(tell())),
        None => None,
    };
    let mut session = None;
    for endpoint in &endpoints {
        let opened = check_endpoint(site, endpoint, dialler.as_ref(), checks);
        session = session.or(opened);
    }
    if endpoints.is_empty() {
        session = check_circuit(site, &via, dialler.as_ref(), checks);
    }
    match session {
        Some(mut session) => {
            keep_revocations(&home, &session);
            check_session(&mut session, checks);
        }
        None if dialler.is_none() => {
            checks.warn(
                "session",
                "not tried, for nobody is logged in here",
                "`renkei login`, then the same again",
            );
        }
        None => checks.fail("session", format!("{site} cannot be worked with"), "correct what failed above"),
    }
    Ok(())
}

/// Checks a site that cannot be dialled: the PoPs that relay to it, and whether one does now.
fn check_circuit(
    site: &SiteName,
    via: &[SiteName],
    dialler: Option<&Dialler>,
    checks: &mut Checks,
) -> Option<Session> {
    let names: Vec<&str> = via.iter().map(SiteName::as_str).collect();
    checks.ok("route", format!("{site} accepts no connections and keeps lines to {}", names.join(", ")));
    match dialler?.connect(site) {
        Ok(session) => {
            checks.ok("circuit", format!("{site} answers {}", session.place()));
            Some(session)
        }
        Err(error) => {
            checks.error("circuit", &error);
            None
        }
    }
}

fn check_endpoint(
    site: &SiteName,
    endpoint: &str,
    dialler: Option<&Dialler>,
    checks: &mut Checks,
) -> Option<Session> {
    let addresses = match resolve(endpoint) {
        Ok(addresses) => addresses,
        Err(error) => {
            checks.error(&format!("{endpoint} name"), &error);
            return None;
        }
    };
    let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    checks.ok(&format!("{endpoint} name"), format!("resolves to {}", shown.join(", ")));
    let mut session = None;
    let patience = SlowConnectReporter::new(&tell());
    for address in addresses {
        patience.trying(format!(
            "{address} does not answer yet; waiting {} s at most",
            CONNECT_TIMEOUT.as_secs()
        ));
        if let Err(error) = check_port(address, checks) {
            checks.error(&format!("{address} port"), &error);
        } else if let Some(dialler) = dialler {
            session = session.or(check_address(site, address, dialler, checks));
        }
    }
    session
}

fn check_port(address: SocketAddr, checks: &mut Checks) -> Result<(), Error> {
    let start = Instant::now();
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
        .map_err(|error| Error { subject: address.to_string(), ..unreachable(&error).at("client") })?;
    checks.ok(&format!("{address} port"), format!("open, connected in {}", milliseconds(start.elapsed())));
    Ok(())
}

/// Checks TLS, certificate and greeting.
fn check_address(
    site: &SiteName,
    address: SocketAddr,
    dialler: &Dialler,
    checks: &mut Checks,
) -> Option<Session> {
    let what = |step: &str| format!("{address} {step}");
    let chain = match dialler.secure(site, address) {
        Ok(stream) => stream.peer_chain(),
        Err(error) => {
            checks.error(&what("TLS"), &error);
            return None;
        }
    };
    checks.ok(&what("TLS"), format!("TLS 1.3; the certificate is that of the PoP of {site}"));
    match chain.first().map(Facts::read) {
        Some(Ok(facts)) => check_end(&what("certificate"), &facts, checks),
        Some(Err(error)) => checks.error(&what("certificate"), &error),
        None => {}
    }
    let asked = SystemTime::now();
    let session = match dialler.open(site, address, &DialHints::default()) {
        Ok(session) => session,
        Err(error) => {
            checks.error(&what("greeting"), &error);
            return None;
        }
    };
    let welcome = &session.welcome;
    checks.ok(&what("greeting"), format!("{} speaks renkei/{}", welcome.software, welcome.version));
    check_skew(&what("clock"), asked, welcome.now_unix_ms, checks);
    Some(session)
}

fn check_end(what: &str, facts: &Facts, checks: &mut Checks) {
    let left = facts.not_after.duration_since(SystemTime::now()).unwrap_or_default();
    let found =
        format!("valid from {} until {} ({})", utc(facts.not_before), utc(facts.not_after), span(left));
    let remedy = "the site's administrator should `renkei renew`";
    match certificate_ends("host", facts.not_after, SystemTime::now(), remedy) {
        None => checks.ok(what, found),
        Some(finding) => checks.ends(what, found, finding),
    }
}

/// Checks the clock skew; the site's clock was read between `asked` and now.
fn check_skew(what: &str, asked: SystemTime, theirs_ms: u64, checks: &mut Checks) {
    let (before, after) = (unix_ms(asked), unix_ms(SystemTime::now()));
    let skew = match theirs_ms {
        theirs if theirs < before => Duration::from_millis(before - theirs),
        theirs => Duration::from_millis(theirs.saturating_sub(after)),
    };
    let found = match skew.is_zero() {
        true => format!("equal to ours within {}", milliseconds(Duration::from_millis(after - before))),
        false => {
            format!("{} {} ours", milliseconds(skew), if theirs_ms < before { "behind" } else { "ahead of" })
        }
    };
    match skew > SKEW_WORTH_A_WORD {
        true => checks.warn(what, found, "set both clocks by NTP; at five minutes sites refuse each other"),
        false => checks.ok(what, found),
    }
}

fn check_session(session: &mut Session, checks: &mut Checks) {
    let storages = match session.ask(Request::Whoami) {
        Ok(Reply::Identity(identity)) => {
            let found = format!("{} is {} (rule: {})", identity.principal, identity.account, identity.rule);
            checks.ok("mapping", found);
            identity.storages
        }
        Ok(other) => return checks.error("mapping", &unexpected(&other)),
        Err(error) => return checks.error("mapping", &error),
    };
    if storages.is_empty() {
        checks.warn("storages", "the site offers none", "ask its administrator for `renkei storage add`");
    }
    for (name, writable) in storages {
        if let Err(error) = check_storage(session, &name, writable, checks) {
            checks.error(&format!("storage {name}"), &error);
        }
    }
    check_path(session, checks);
}

fn check_storage(
    session: &mut Session,
    name: &str,
    writable: bool,
    checks: &mut Checks,
) -> Result<(), Error> {
    let place = Place { storage: name.into(), path: RelPath::root() };
    match session.ask(Request::StatDir(Some(place.clone())))? {
        Reply::Entry(entry) if entry.kind == EntryKind::Dir => {}
        other => return Err(unexpected(&other)),
    }
    let space = match session.ask(Request::Space(place))? {
        Reply::Space(space) => space,
        other => return Err(unexpected(&other)),
    };
    let mode = if writable { "read-write" } else { "read-only" };
    let found = format!("{mode}, {} of {} free", human(space.available_bytes), human(space.total_bytes));
    checks.ok(&format!("storage {name}"), found);
    Ok(())
}

/// Checks the round trip, and the local TCP buffers for it.
fn check_path(session: &Session, checks: &mut Checks) {
    let rtt = rtt(session.control.sender().socket());
    checks.ok("round trip", milliseconds(rtt));
    match Buffers::read() {
        Some(buffers) => buffers.judge("TCP buffers here", rtt, checks),
        None => checks.ok("TCP buffers here", "cannot be read"),
    }
}
