//! How the login was made, if not by the account: with it the certificate is renewed, as long as the identity behind it
//! stands.
//!
//! The file login-origin.json has mode 600, because it may have the token with which a provider renews a login.

use super::Context;
use super::pop_doors::{doors, take};
use renkei_config::home::{Home, file_error};
use renkei_core::error::{Code, Error};
use renkei_net::identity::borrowed::device::Provider;
use renkei_net::identity::borrowed::discovery::{Found, Origin, proxy_file, ticket, token, token_file};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::kerberos;
use renkei_net::identity::secret;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A ticket that ends later by less gives no certificate that is worth asking for.
const MARGIN: Duration = Duration::from_secs(60);

/// How a login was made.
#[derive(Default, Deserialize, Serialize)]
pub(super) struct LoginOrigin {
    /// What was shown.
    pub(super) origin: Option<Origin>,
    /// Where, as it was named.
    pub(super) at: Option<String>,
    /// How a provider renews it.
    pub(super) refreshed: Option<Refreshed>,
}

/// What renews a login at a provider.
#[derive(Deserialize, Serialize)]
pub(super) struct Refreshed {
    pub(super) issuer: String,
    pub(super) client: String,
    /// Secret.
    pub(super) token: String,
}

/// Records how a login was made.
pub(super) fn keep(home: &Home, made: &LoginOrigin) -> Result<(), Error> {
    let text = serde_json::to_string(made).expect("it is plain data");
    secret::write(&home.login_origin(), &text)
}

/// Forgets how the login before was made.
pub(super) fn forget(home: &Home) -> Result<(), Error> {
    let path = home.login_origin();
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(file_error("remove", &path, &error)),
        _ => Ok(()),
    }
}

fn read(home: &Home) -> Option<LoginOrigin> {
    let text = secret::read(&home.login_origin()).ok().flatten()?;
    serde_json::from_str(&text).ok()
}

/// How the login was made, for people.
pub(super) fn source(home: &Home) -> String {
    match read(home).and_then(|made| made.origin) {
        None => "login".into(),
        Some(Origin { kind, from, holder }) => {
            let holder = holder.map(|holder| format!(" ({holder})")).unwrap_or_default();
            format!("login with the {kind} of {from}{holder}")
        }
    }
}

/// The credential of the login; one that was made with an identity of another kind is renewed when it is late and that
/// identity is newer.
///
/// # Errors
/// Those of [`Credential::user`].
pub(super) fn renewed(context: &Context) -> Result<Credential, Error> {
    let (home, now) = (context.home()?, context.now());
    let kept = Credential::user(&home, now);
    let is_late = match &kept {
        Ok(kept) => kept.facts()?.is_late(now),
        Err(error) => error.code == Code::CertificateExpired,
    };
    let Some(made) = read(&home).filter(|_| is_late) else { return kept };
    match (again(&home, made, now), kept) {
        (Ok(true), kept) => Credential::user(&home, now).or(kept),
        (Ok(false), kept) => kept,
        (Err(error), Ok(kept)) => {
            tracing::info!(%error, "the login was not renewed");
            Ok(kept)
        }
        (Err(error), Err(_)) => Err(error),
    }
}

/// Gets a new certificate with a newer token; false if there is none.
fn again(home: &Home, mut made: LoginOrigin, now: SystemTime) -> Result<bool, Error> {
    let Some(found) = newer(home, &mut made)? else { return Ok(false) };
    let doors = doors(home, made.at.as_deref())?;
    take(&doors, &found.shown()?, home, &home.user_credential(), now)?;
    made.origin = Some(found.origin);
    keep(home, &made)?;
    Ok(true)
}

fn newer(home: &Home, made: &mut LoginOrigin) -> Result<Option<Found>, Error> {
    if let Some(Refreshed { issuer, client, token: refresh }) = &mut made.refreshed {
        let tokens = Provider::find(issuer, client)?.refresh(refresh)?;
        let found = token(tokens.access, issuer.clone(), true);
        if let Some(next) = tokens.refresh {
            *refresh = next;
            // The one before may be void by now, whatever comes of the rest.
            keep(home, made)?;
        }
        return Ok(Some(found));
    }
    let Some(Origin { kind, from, holder }) = &made.origin else { return Ok(None) };
    if kind == "ticket" {
        return Ok(newer_ticket(home, holder.as_deref()));
    }
    let file = Path::new(from);
    if !file.is_absolute() || !is_newer(file, &home.user_credential()) {
        return Ok(None);
    }
    match kind.as_str() {
        "token" => token_file(file).map(Some),
        _ => proxy_file(file).map(Some),
    }
}

/// The ticket of the same principal, if it ends later than the certificate.
fn newer_ticket(home: &Home, holder: Option<&str>) -> Option<Found> {
    let held =
        kerberos::held(SystemTime::now()).ok().filter(|held| Some(held.principal.as_str()) == holder)?;
    let kept = Credential::in_file(&home.user_credential()).ok().flatten();
    let ends = kept.and_then(|kept| kept.facts().ok()).map(|facts| facts.not_after);
    ends.is_none_or(|ends| ends + MARGIN < held.end).then(|| ticket(held))
}

fn is_newer(file: &Path, than: &Path) -> bool {
    let written = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    written(file).is_some_and(|written_at| written(than).is_none_or(|than| written_at > than))
}
