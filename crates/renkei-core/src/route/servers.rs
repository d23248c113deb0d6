//! Patterns of servers that the PoP may connect to because a user named them (against SSRF).
//!
//! `*` is every server at a public address. A pattern that names a host, an address or a network also allows addresses
//! inside the site's own network (`inside`): an administrator wrote it down.

use std::net::IpAddr;

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPattern {
    hosts: Hosts,
    /// None for all ports.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    All,
    Host(String),
    /// All names that end so, with the dot.
    Below(String),
    Network(IpAddr, u32),
}

/// What a server is to the patterns.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Its name or address as in a URL, without brackets.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// An address that the name leads to.
    pub address: IpAddr,
}

impl ServerPattern {
    /// Parses `*`, `HOST`, `HOST:PORT`, `*.DOMAIN`, an address or a network (`10.0.0.0/8`).
    pub fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(ServerPattern { hosts: Hosts::All, port: None });
        }
        if let Some((address, bits)) = network(text) {
            return Some(ServerPattern { hosts: Hosts::Network(address, bits), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if let Some((address, bits)) = network(host) {
            return Some(ServerPattern { hosts: Hosts::Network(address, bits), port });
        }
        let (name, is_below) = host.strip_prefix("*.").map_or((host, false), |name| (name, true));
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
        let name = Some(name.to_ascii_lowercase()).filter(|name| !name.is_empty() && is_name(name))?;
        let hosts = if is_below { Hosts::Below(format!(".{name}")) } else { Hosts::Host(name) };
        Some(ServerPattern { hosts, port })
    }

    /// Whether it has this server.
    pub fn has(&self, server: Server<'_>) -> bool {
        let host = server.host.to_ascii_lowercase();
        let is_host = match &self.hosts {
            Hosts::All => true,
            Hosts::Host(name) => *name == host,
            Hosts::Below(end) => host.ends_with(end.as_str()),
            Hosts::Network(network, bits) => is_in(*network, *bits, server.address),
        };
        is_host && self.port.is_none_or(|port| port == server.port)
    }

    /// Whether it names servers rather than allowing all.
    pub fn is_explicit(&self) -> bool {
        self.hosts != Hosts::All
    }
}

/// Whether a server may be reached: one that a pattern names at any address, others with `*` at public ones.
pub fn may_reach(patterns: &[ServerPattern], server: Server<'_>) -> bool {
    let is_inside = super::inside::is_inside(server.address.to_canonical());
    patterns.iter().any(|pattern| (pattern.is_explicit() || !is_inside) && pattern.has(server))
}

fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
    (bits <= most).then_some((address, bits))
}

fn is_in(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    let cut = |address: u128, width: u32| address.checked_shr(width - bits).unwrap_or(0);
    match (network, address.to_canonical()) {
        (IpAddr::V4(own), IpAddr::V4(other)) => {
            cut(u32::from(own).into(), 32) == cut(u32::from(other).into(), 32)
        }
        (IpAddr::V6(own), IpAddr::V6(other)) => cut(own.into(), 128) == cut(other.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(patterns: &[&str], host: &str, port: u16, address: &str) -> bool {
        let patterns: Vec<_> = patterns.iter().map(|text| ServerPattern::parse(text).unwrap()).collect();
        may_reach(&patterns, Server { host, port, address: address.parse().unwrap() })
    }

    #[test]
    fn addresses_inside_are_reached_only_if_they_are_named() {
        for address in ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1", "::ffff:127.0.0.1"] {
            assert!(!may(&["*"], "metadata", 443, address), "{address}");
            assert!(may(&["metadata"], "metadata", 443, address), "{address}");
        }
        assert!(may(&["*"], "eos.example.org", 443, "203.0.113.7"));
        assert!(!may(&[], "eos.example.org", 443, "203.0.113.7"));
        assert!(
            may(&["10.0.0.0/8"], "pool7", 443, "10.2.3.4") && !may(&["10.0.0.0/8"], "x", 443, "11.0.0.1")
        );
    }

    #[test]
    fn patterns_are_for_hosts_domains_and_ports() {
        let at = "203.0.113.7";
        assert!(may(&["*.cern.ch"], "EOS.cern.ch", 8443, at) && !may(&["*.cern.ch"], "cern.ch", 443, at));
        assert!(!may(&["*.cern.ch"], "evilcern.ch", 443, at));
        assert!(may(&["a:8443"], "a", 8443, at) && !may(&["a:8443"], "a", 443, at));
        assert!(may(&["[2001:db8::1]:8443"], "2001:db8::1", 8443, "2001:db8::1"));
        for bad in ["", "a:x", "https://a", "a*", "*.", "10.0.0.0/33", "a b"] {
            assert_eq!(ServerPattern::parse(bad), None, "{bad}");
        }
    }
}
