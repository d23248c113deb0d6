//! The identity that a verb works with: what a variable names, else the login, else what lies about on the machine.
//!
//! A token, a proxy or a Kerberos ticket is shown to each site that the verb is about; each gives a certificate of its own, which is kept
//! until it ends (state/borrowed, mode 600, by the digest of what was shown and the site). Where a site gives none, the
//! word of the home site counts, as for any of its users.

use super::Context;
use super::login_origin;
use super::pop_doors::{door_of, home_site, known, take};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::borrowed::discovery::{Environment, Found, Kinds, Origin, VARIABLE};
use renkei_net::identity::borrowed::number_of;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::kerberos;
use renkei_net::identity::trust::home_of_user;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Least age of a kept certificate that is asked for again before its end.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

/// The kind of an identity that is a Kerberos ticket.
const TICKET: &str = "ticket";

/// The identity of a verb.
pub(super) struct Chosen {
    /// The certificate of the login or of the home site.
    pub(super) own: Credential,
    /// Certificates of sites that gave one of their own.
    pub(super) at: Vec<(SiteName, Credential)>,
    /// What was found, if it is not the login.
    origin: Option<Origin>,
    /// How the login was made.
    login: String,
}

impl Chosen {
    /// Where it came from, for people.
    pub(super) fn source(&self) -> String {
        match &self.origin {
            None => self.login.clone(),
            Some(Origin { kind, from, holder: Some(holder) }) => format!("{kind} of {from} ({holder})"),
            Some(Origin { kind, from, holder: None }) => format!("{kind} of {from}"),
        }
    }
}

/// The identity for work at some sites; for none, that of the home site.
///
/// # Errors
/// `NotLoggedIn`, `CertificateExpired`; those of the sites that refused a token or proxy.
pub(super) fn choose(context: &Context, sites: &[&SiteName]) -> Result<Chosen, Error> {
    let kinds = Kinds::parse(std::env::var(VARIABLE).unwrap_or_default().trim())?;
    let named = with_environment(|machine| machine.named(kinds))?;
    let (home, now) = (context.home()?, context.now());
    let mut none = None;
    if named.is_none() && matches!(kinds, Kinds::Any | Kinds::Login) {
        match login_origin::renewed(context) {
            Ok(own) => {
                let login = login_origin::source(&home);
                return Ok(Chosen { own, at: Vec::new(), origin: None, login });
            }
            Err(error) if kinds == Kinds::Login || !is_absent(&error) => return Err(error),
            Err(error) => none = Some(error),
        }
    }
    let found = named.or_else(|| with_environment(|machine| machine.lying_about(kinds, now)));
    match found {
        Some(found) if found.origin.kind == TICKET && none.is_some() => {
            let without = |error: Error| missed(none, &error);
            borrow(context, &home, found, sites).map_err(without)
        }
        Some(found) => borrow(context, &home, found, sites),
        None => Err(none.unwrap_or_else(|| {
            let cause = "RENKEI_CREDENTIAL names its kind, and none was found";
            Error::new(Code::NoSuchIdentity, "find identity", "client", cause)
        })),
    }
}

/// What the variables of this process and the files of this machine say.
pub(super) fn with_environment<T>(look: impl FnOnce(&Environment<'_>) -> T) -> T {
    let variable = |name: &str| std::env::var(name).ok();
    let notice = |error: &Error| eprintln!("renkei: {} is passed over: {}", error.subject, error.cause);
    let uid = rustix::process::geteuid().as_raw();
    let ticket = || kerberos::held(SystemTime::now()).ok();
    look(&Environment {
        variable: &variable,
        temp: PathBuf::from("/tmp"),
        uid,
        notice: &notice,
        ticket: &ticket,
    })
}

/// The error of a client that has no login, and a ticket that its machine gave it and the site did not take.
fn missed(none: Option<Error>, refused: &Error) -> Error {
    let mut error = none.unwrap_or_else(|| refused.clone());
    error.cause = format!("{}; the Kerberos ticket did not help: {refused}", error.cause);
    error
}

/// Whether an error means that there is no login.
fn is_absent(error: &Error) -> bool {
    matches!(error.code, Code::NotLoggedIn | Code::CertificateExpired)
}

fn borrow(context: &Context, home: &Home, found: Found, sites: &[&SiteName]) -> Result<Chosen, Error> {
    let own_site = home_site(home)?;
    // Where nothing says which site is meant, the first one that takes it.
    let any = if sites.is_empty() && own_site.is_none() { known(home)? } else { Vec::new() };
    let mut wanted: Vec<&SiteName> = sites.iter().copied().chain(&any).collect();
    if wanted.is_empty() {
        wanted.extend(own_site.as_ref());
    }
    wanted.dedup();
    let (mut at, mut refused) = (Vec::new(), None);
    for site in &wanted {
        match certificate(context, home, &found, site) {
            Ok(credential) => at.push(((*site).clone(), credential)),
            Err(error) => drop(refused.get_or_insert(error)),
        }
        if !any.is_empty() && !at.is_empty() {
            break;
        }
    }
    let of_home = |at: &[(SiteName, Credential)]| {
        at.iter().find(|(site, _)| Some(site) == own_site.as_ref()).map(|(_, credential)| credential.clone())
    };
    let mut own = of_home(&at);
    if let (None, Some(_), Some(site)) = (&own, &refused, &own_site)
        && !wanted.contains(&site)
    {
        own = certificate(context, home, &found, site).ok();
    }
    let own = own.or_else(|| at.first().map(|(_, credential)| credential.clone()));
    match own {
        Some(own) => Ok(Chosen { own, at, origin: Some(found.origin), login: String::new() }),
        None => Err(refused.unwrap_or_else(|| no_home(&found))),
    }
}

fn no_home(found: &Found) -> Error {
    let option = if found.origin.kind == TICKET { "kerberos" } else { found.origin.kind.as_str() };
    let cause = format!(
        "a {} was found ({}), and no site is known that would take it: `renkei login --{option} --at HOST:PORT` names its PoP",
        found.origin.kind, found.origin.from
    );
    Error::new(Code::NotLoggedIn, "find identity", "client", cause)
}

/// The certificate of a site for what was found: a kept one, else a new one.
fn certificate(context: &Context, home: &Home, found: &Found, site: &SiteName) -> Result<Credential, Error> {
    let site = &site.current();
    let shown = format!("{}\0{}\0{site}", found.origin.kind, found.text);
    let file = home.borrowed_dir().join(format!("{}.pem", number_of(shown.as_bytes())));
    let now = context.now();
    let kept =
        Credential::in_file(&file)?.filter(|kept| kept.facts().is_ok_and(|facts| facts.not_after > now));
    if let Some(kept) = kept {
        let is_late = kept.facts()?.is_late(now) && age(&file, now) > AGAIN_AFTER;
        if !is_late {
            return Ok(kept);
        }
        // It may be the token that ends: then this one is good as long.
        return Ok(fetch(context, home, found, site, &file).unwrap_or(kept));
    }
    remove_ended(&home.borrowed_dir(), now);
    fetch(context, home, found, site, &file)
}

fn fetch(
    context: &Context,
    home: &Home,
    found: &Found,
    site: &SiteName,
    file: &Path,
) -> Result<Credential, Error> {
    let introduces = home_site(home)?.is_some_and(|own| *own.current() == *site);
    let doors = door_of(&home_of_user(home, site)?, site, introduces)?;
    take(&doors, &found.shown()?, home, file, context.now())?;
    let none =
        || Error::new(Code::NotLoggedIn, "read credential", file.display(), "it was removed meanwhile");
    Credential::in_file(file)?.ok_or_else(none)
}

fn age(file: &Path, now: SystemTime) -> Duration {
    let written = std::fs::metadata(file).and_then(|file| file.modified());
    written.ok().and_then(|written| now.duration_since(written).ok()).unwrap_or_default()
}

/// Removes kept certificates that have ended.
fn remove_ended(dir: &Path, now: SystemTime) {
    for file in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let kept = Credential::in_file(&file).ok().flatten().and_then(|kept| kept.facts().ok());
        if kept.is_some_and(|facts| facts.not_after <= now)
            && let Err(error) = std::fs::remove_file(&file)
        {
            tracing::debug!(%error, file = %file.display(), "an old certificate stays");
        }
    }
}
