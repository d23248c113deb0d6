//! The PoPs that a token or a proxy is shown to: those of a site by its card, or one that was named.

use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::path::{SiteName, is_label};
use renkei_net::identity::borrowed::exchange::{Door, Shown};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::login::LoggedIn;
use renkei_net::identity::trust::{Trust, home_of_user};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// The site whose user one is without a login: that of the last login, of the PoP here, or the only one that is known.
pub(super) fn home_site(home: &Home) -> Result<Option<SiteName>, Error> {
    if let Ok(principal) = Credential::user_named(home) {
        return Ok(Some(principal.site().clone()));
    }
    if let Some(site) = Config::load(home)?.site {
        return Ok(Some(site));
    }
    let mut known = known(home)?;
    Ok(if known.len() == 1 { known.pop() } else { None })
}

/// The sites whose cards are here.
pub(super) fn known(home: &Home) -> Result<Vec<SiteName>, Error> {
    Ok(Trust::load(home)?.list().map(|card| card.site.clone()).collect())
}

/// Shows evidence to the first PoP that answers, and stores the certificate.
///
/// # Errors
/// Those of the PoP; if none can be reached, the error of the last one.
pub(super) fn take(
    doors: &[Door],
    shown: &Shown,
    home: &Home,
    file: &Path,
    now: SystemTime,
) -> Result<LoggedIn, Error> {
    let mut last = Error::new(
        Code::SiteUnreachable,
        "get certificate",
        "",
        "the site's card has no endpoint: `renkei login --ssh USER@HOST`",
    );
    for door in doors {
        match door.take(shown, home, file, now) {
            Err(error) if error.code == Code::SiteUnreachable => last = error.at("client"),
            taken => return taken,
        }
    }
    Err(last)
}

/// The PoPs of a login.
pub(super) fn doors(home: &Home, at: Option<&str>) -> Result<Vec<Door>, Error> {
    match at {
        Some(endpoint) if !is_label(endpoint) => Ok(vec![door_at(home, endpoint)?]),
        Some(site) => door_of_user(home, &SiteName::parse(site)?),
        None => {
            let none = || {
                Error::new(
                    Code::UsageInvalid,
                    "log in",
                    "client",
                    "no site is known here; name its PoP: --at HOST:PORT",
                )
            };
            door_of_user(home, &home_site(home)?.ok_or_else(none)?)
        }
    }
}

fn door_of_user(home: &Home, site: &SiteName) -> Result<Vec<Door>, Error> {
    door_of(&home_of_user(home, site)?, site, true)
}

/// The PoPs of a site by its card in a directory; cards of other sites are taken from them if they introduce.
pub(super) fn door_of(home: &Home, site: &SiteName, introduces: bool) -> Result<Vec<Door>, Error> {
    let trust = Arc::new(Trust::load(home)?);
    let unknown =
        || Error::new(Code::SiteUnknown, "look up site", site, "there is no card of it here").at("client");
    let card = trust.card(site).ok_or_else(unknown)?;
    let door = |endpoint: &String| Door {
        endpoint: endpoint.clone(),
        known: Some((card.site.clone(), trust.clone())),
        introduces,
    };
    Ok(card.endpoints.iter().map(door).collect())
}

/// The PoP at an address: proved by the card that names the address, else by the authorities of the web.
fn door_at(home: &Home, endpoint: &str) -> Result<Door, Error> {
    let trust = Trust::load(home)?;
    let card = trust.list().find(|card| card.endpoints.iter().any(|known| known == endpoint));
    let site = card.map(|card| card.site.clone());
    let known = site.map(|site| (site, Arc::new(trust)));
    Ok(Door { endpoint: endpoint.into(), known, introduces: true })
}
