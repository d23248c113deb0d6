//! Which servers a copy may reach, and how they are verified.
//!
//! The addresses of a name are looked up once and the connection goes to one that was judged, so a name that changes
//! meanwhile leads nowhere else. The authority of a trusted site certifies that site's endpoints alone.

use super::remote_url::RemoteUrl;
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::route::servers::{Server, may_reach};
use renkei_net::identity::tls::web_config_with;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::web_connection::WebServer;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, SystemTime};

/// The trusted site that has an endpoint at this server, the own one included.
fn card<'s>(snapshot: &'s Snapshot, url: &RemoteUrl) -> Option<&'s SiteCard> {
    let cards = snapshot.trust.list().chain(snapshot.trust.own_card());
    let mut cards = cards.filter(|card| card.endpoints.iter().any(|endpoint| url.is_at(endpoint)));
    cards.next()
}

/// The name of that site.
pub(super) fn partner(snapshot: &Snapshot, url: &RemoteUrl) -> Option<SiteName> {
    card(snapshot, url).map(|card| card.site.clone())
}

/// Whether a redirect from one URL to another may take the user's headers along.
pub(super) fn takes_token(snapshot: &Snapshot, from: &RemoteUrl, to: &WebServer) -> bool {
    let server = Server { host: &to.host, port: to.port, address: to.address.ip() };
    from.host == to.host || snapshot.config.tpc.token_patterns().iter().any(|pattern| pattern.has(server))
}

/// The server of a URL, at an address that may be reached.
///
/// # Errors
/// `NameUnresolved`, `ServerNotAllowed`.
pub(super) fn server(snapshot: &Snapshot, url: &RemoteUrl) -> Result<WebServer, Error> {
    let card = card(snapshot, url);
    let addresses = look_up(url)?;
    let patterns = snapshot.config.tpc.host_patterns();
    let is_allowed = |address: &&SocketAddr| {
        let server = Server { host: &url.host, port: url.port, address: address.ip() };
        card.is_some() || may_reach(&patterns, server)
    };
    let Some(address) = addresses.iter().find(is_allowed) else {
        let cause = match addresses.first() {
            Some(address) if patterns.iter().any(|pattern| !pattern.is_explicit()) => {
                format!("{} is an address inside, and the host is not listed by itself", address.ip())
            }
            _ => "it is not among `tpc.hosts`".into(),
        };
        return Err(Error::new(Code::ServerNotAllowed, "connect", url, cause));
    };
    let (config, now) = (&snapshot.config, SystemTime::now());
    let authorities: Vec<_> = card.into_iter().flat_map(|card| card.authorities(now)).cloned().collect();
    let folder = Some(config.tpc.authorities.as_path()).filter(|folder| !folder.as_os_str().is_empty());
    Ok(WebServer {
        host: url.host.clone(),
        port: url.port,
        address: *address,
        tls: web_config_with(&authorities, folder)?,
        first_byte: Duration::from_secs(config.tpc.first_byte_timeout_s),
        stall: Duration::from_secs(config.stall_timeout_s),
    })
}

fn look_up(url: &RemoteUrl) -> Result<Vec<SocketAddr>, Error> {
    let unknown =
        |cause: &dyn std::fmt::Display| Error::new(Code::NameUnresolved, "look up", &url.host, cause);
    let found = (url.host.as_str(), url.port).to_socket_addrs().map_err(|error| unknown(&error))?;
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err(unknown(&"no address")) } else { Ok(found) }
}
