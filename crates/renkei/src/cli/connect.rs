//! Opens sessions for the verbs that work on other sites.

use super::Context;
use super::chosen_identity::{Chosen, choose};
use super::pop_doors::home_site;
use super::volume_path::namespace_path;
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place, SiteName, is_label, printable};
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{Dialler, Session};
use renkei_mover::connect::slow_connect::Tell;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::identity::trust::former_names;
use renkei_net::identity::trust::{Trust, home_of_user};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::Duration;

/// A dialler with this user's credentials that knows `sites`, if the user's own site does.
pub(super) fn dialler(context: &Context, sites: &[&SiteName]) -> Result<Dialler, Error> {
    let Chosen { own, at, .. } = choose(context, sites)?;
    dialler_of(context, &own, sites)?.with_credentials_at(&at)
}

/// The same with another credential.
pub(super) fn dialler_of(
    context: &Context,
    credential: &Credential,
    sites: &[&SiteName],
) -> Result<Dialler, Error> {
    let home = context.home()?;
    // A mount may have started before a site was renamed.
    former_names::install(&home)?;
    let config = Config::load(&home)?;
    let silence = config.stall_timeout();
    let home = home_of_user(&home, credential.holder()?.site())?;
    let mut trust = Trust::load(&home)?;
    for site in sites {
        if trust.card(site).is_none() {
            trust = learn(&home, credential, silence, site)?;
        }
    }
    let dialler = Dialler::new(credential, Arc::new(trust), silence)?.with_rules(config.route_rules());
    Ok(dialler.telling(tell()))
}

/// Prints the cause of a wait on the terminal.
pub(super) fn tell() -> Tell {
    Arc::new(|what: &str| eprintln!("renkei: {what}"))
}

/// Fetches the card of a site that our own site may have come to trust since the login, and stores it.
///
/// # Errors
/// `SiteUnknown` with the reason why it stays unknown.
pub(super) fn learn(
    home: &Home,
    credential: &Credential,
    silence: Duration,
    site: &SiteName,
) -> Result<Trust, Error> {
    let unknown = |cause: String| Error::new(Code::SiteUnknown, "look up site", site, cause).at("client");
    let (own, trust) = (credential.holder()?.site().clone(), Trust::load(home)?);
    if trust.own_site() == Some(&own) {
        return Err(unknown("it is not among the cards of the PoP in this directory".into()));
    }
    let dialler = Dialler::new(credential, Arc::new(trust), silence)?;
    let asked = dialler.connect(&own).and_then(|mut session| session.ask(Request::Card(site.clone())));
    let card = match asked {
        Ok(Reply::Card(text)) => SiteCard::parse(&text)?,
        Ok(other) => return Err(unexpected(&other)),
        Err(error) if error.code == Code::SiteUnknown => {
            return Err(unknown(format!("{own} does not know it either")));
        }
        Err(error) => return Err(unknown(format!("{own} could not be asked: {error}"))),
    };
    if card.site != *site.current() {
        return Err(unknown(format!("{own} gave the card of {}", card.site)));
    }
    let mut trust = Trust::load(home)?;
    trust.add(card)?;
    Ok(trust)
}

/// A session with `site`; its revocation list is stored.
pub(super) fn session(context: &Context, site: &SiteName) -> Result<Session, Error> {
    let session = dialler(context, &[site])?.connect(site)?;
    keep_revocations(&context.home()?, &session);
    Ok(session)
}

/// The home of the user's trust in a directory.
pub(super) fn user_home(home: &Home) -> Result<Home, Error> {
    let named = Credential::user_named(home).map(|user| user.site().clone());
    let site = named.or_else(|error| home_site(home)?.ok_or(error))?;
    home_of_user(home, &site)
}

/// Stores the newest revocation list that the site sent, if it verifies.
pub(super) fn keep_revocations(home: &Home, session: &Session) {
    if session.welcome.crl.is_empty() {
        return;
    }
    let merged = user_home(home)
        .and_then(|home| Trust::load(&home))
        .and_then(|mut trust| trust.merge_crl(session.site(), &session.welcome.crl));
    if let Err(error) = merged {
        tracing::debug!(%error, "revocation list not kept");
    }
}

/// Parses an argument that must name a place at a site; `/VOLUME/PATH` is one at the user's own.
pub(super) fn remote(argument: &OsStr, context: &Context) -> Result<EndpointPath, Error> {
    if let Some(path) = namespace_path(argument, context)? {
        return Ok(path);
    }
    let path = EndpointPath::parse(argument.as_bytes())?;
    path.ok_or_else(|| {
        let cause = "this command works on places at sites: write SITE:/STORAGE/PATH or /VOLUME/PATH";
        Error::new(Code::BadPath, "parse path", printable(argument.as_bytes()), cause)
    })
}

/// Parses an argument that names a place at a site or, with `SITE` alone, the site's root.
pub(super) fn site_or_place(argument: &OsStr, context: &Context) -> Result<EndpointPath, Error> {
    match argument.to_str().filter(|name| is_label(name)) {
        Some(name) => Ok(EndpointPath { site: SiteName::parse(name)?, place: None, trailing_slash: true }),
        None => remote(argument, context),
    }
}

/// The arguments, by default the user's site.
pub(super) fn own_site_if_none(paths: &[OsString], context: &Context) -> Result<Vec<OsString>, Error> {
    match paths {
        [] => Ok(vec![format!("{}:/", own_site(context)?).into()]),
        _ => Ok(paths.to_vec()),
    }
}

/// A reply that does not fit its request.
pub(super) fn unexpected(reply: &Reply) -> Error {
    violation("reply", format_args!("{reply:?}"))
}

/// The storage and path of an argument; a site's root has none.
pub(super) fn place(path: &EndpointPath) -> Result<Place, Error> {
    let none = || Error::new(Code::BadPath, "parse path", path, "name a storage: SITE:/STORAGE/PATH");
    path.place.clone().ok_or_else(none)
}

/// Parses an argument that names a site: `SITE`, `SITE:` or `SITE:/`.
pub(super) fn site_argument(argument: &OsStr) -> Result<SiteName, Error> {
    let text = printable(argument.as_bytes());
    let name = text.strip_suffix(":/").or_else(|| text.strip_suffix(':')).unwrap_or(&text);
    SiteName::parse(name)
}

/// The site of the user's certificate, else of the mount credential here, else of the PoP here, else the one site that is
/// known.
pub(super) fn own_site(context: &Context) -> Result<SiteName, Error> {
    let home = context.home()?;
    match Credential::user(&home, context.now()).or_else(|_| Credential::for_mount(&home, context.now())) {
        Ok(credential) => Ok(credential.holder()?.site().clone()),
        Err(error) => home_site(&home)?.ok_or(error),
    }
}

/// A place in the form of an argument; its bytes are preserved.
pub(super) fn written(path: &EndpointPath, slash: &str) -> OsString {
    let mut bytes = format!("{}:/", path.site).into_bytes();
    if let Some(place) = &path.place {
        bytes.extend(place.storage.as_bytes());
        if !place.path.is_root() {
            bytes.push(b'/');
            bytes.extend(place.path.as_bytes());
        }
    }
    bytes.extend(slash.as_bytes());
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Output;

    #[test]
    fn a_bare_name_is_a_site_where_places_are_expected() {
        let context = Context { output: Output::new(true, true), ..Context::default() };
        for text in ["kek", "kek:", "kek:/"] {
            assert_eq!(site_or_place(OsStr::new(text), &context).unwrap().to_string(), "kek:/");
        }
        assert_eq!(site_or_place(OsStr::new("kek:/data"), &context).unwrap().to_string(), "kek:/data");
        assert_eq!(site_or_place(OsStr::new("./kek"), &context).unwrap_err().code, Code::BadPath);
    }

    #[test]
    fn a_site_is_named_with_or_without_a_colon() {
        for text in ["kek", "kek:", "kek:/"] {
            assert_eq!(site_argument(OsStr::new(text)).unwrap().as_str(), "kek");
        }
        for text in ["", "KEK", "kek:/data", "./kek"] {
            assert_eq!(site_argument(OsStr::new(text)).unwrap_err().code, Code::UsageInvalid, "{text}");
        }
    }
}
