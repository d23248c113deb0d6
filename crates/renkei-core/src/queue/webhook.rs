//! Webhook URLs: the allowed ones, and the retries of a delivery.
//!
//! Users choose the URL that the PoP connects to, so an administrator has to allow it (against SSRF), by prefixes
//! that are compared component by component. A URL that a server may parse differently than it is compared here is
//! refused.

use super::job::pause_ms;

/// Longest URL.
pub const MAX_ADDRESS_BYTES: usize = 2048;
/// How long a delivery is retried.
const TRIED_FOR_MS: u64 = 24 * 3600 * 1000;

/// An `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether it uses TLS with server authentication.
    pub https: bool,
    /// Host name or address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path with the query, from its first slash on.
    pub path: String,
}

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_ADDRESS_BYTES {
            return Err(format!("longer than {MAX_ADDRESS_BYTES} bytes"));
        }
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err("write http://HOST/... or https://HOST/...".into()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = parse_authority(authority, if https { 443 } else { 80 })?;
        let path = if path.is_empty() { "/" } else { path };
        check_path(path)?;
        Ok(Address { https, host, port, path: path.into() })
    }

    /// Whether it is allowed by `prefix`: the same server, and a path below the prefix's.
    pub fn is_within(&self, prefix: &Address) -> bool {
        let server = |address: &Address| (address.https, address.host.to_ascii_lowercase(), address.port);
        let Some(rest) = self.path.strip_prefix(prefix.path.as_str()) else { return false };
        let whole = rest.is_empty() || prefix.path.ends_with('/') || rest.starts_with(['/', '?']);
        server(self) == server(prefix) && whole
    }

    /// The host and, if not the default, the port, as in an HTTP request.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.https, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

fn parse_authority(text: &str, usual: u16) -> Result<(String, u16), String> {
    let bad = || format!("`{text}` is not HOST or HOST:PORT");
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => {
            host.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            (host, port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| bad())?,
        None if port.is_empty() => usual,
        None => return Err(bad()),
    };
    match !host.is_empty() && host.len() <= 253 && host.chars().all(plain) && port != 0 {
        true => Ok((host.into(), port)),
        false => Err(bad()),
    }
}

/// Refuses a path that could inject a line into the request, or that a server may resolve differently.
fn check_path(path: &str) -> Result<(), String> {
    if let Some(odd) = path.chars().find(|c| !c.is_ascii_graphic() || "\"<>\\^`{|}#".contains(*c)) {
        return Err(format!("{odd:?} does not belong in an address; write it as %XX"));
    }
    let path = path.split('?').next().unwrap_or_default().to_ascii_lowercase().replace("%2e", ".");
    let climbs = path.contains("%2f")
        || path.contains("%5c")
        || path.split('/').any(|part| matches!(part, "." | ".."));
    if climbs { Err("a path with `.`, `..` or encoded slashes".into()) } else { Ok(()) }
}

/// The time of the next delivery attempt after this many failures; `None` when retries are exhausted.
pub fn next_try_ms(since_ms: u64, now_ms: u64, failures: u32) -> Option<u64> {
    let next = now_ms + pause_ms(failures.saturating_sub(1));
    (next <= since_ms + TRIED_FOR_MS).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn addresses_are_read() {
        let told = address("https://hooks.example.org/a/b?c=d");
        assert_eq!((told.https, told.host.as_str(), told.port), (true, "hooks.example.org", 443));
        assert_eq!((told.path.as_str(), told.authority().as_str()), ("/a/b?c=d", "hooks.example.org"));
        let number = address("http://[::1]:8080");
        assert_eq!((number.host.as_str(), number.path.as_str()), ("::1", "/"));
        assert_eq!(number.authority(), "[::1]:8080");
        for bad in [
            "ftp://h/",
            "https://",
            "https://h:0/",
            "https://h:x/",
            "https://user@h/",
            "https://h/a b",
            "https://h/a\r\nX: y",
            "https://h/a/../b",
            "https://h/a/%2E%2e/b",
            "https://h/a%2fb",
            "https://h/a#b",
            "https://h/\u{e9}",
            "https://[::1/",
            "https://[1]/",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        assert!(Address::parse(&format!("https://h/{}", "x".repeat(MAX_ADDRESS_BYTES))).is_err());
    }

    #[test]
    fn a_prefix_allows_addresses_below_it() {
        let within = |one: &str, prefix: &str| address(one).is_within(&address(prefix));
        for good in
            ["https://H.org/hook", "https://h.org/hook/x", "https://h.org/hook?x", "https://h.org:443/hook"]
        {
            assert!(within(good, "https://h.org/hook"), "{good}");
        }
        for bad in [
            "http://h.org/hook",
            "https://h.org/hooked",
            "https://h.org/",
            "https://h.org:444/hook",
            "https://h.org.evil/hook",
        ] {
            assert!(!within(bad, "https://h.org/hook"), "{bad}");
        }
        assert!(within("https://h.org/any", "https://h.org"));
        assert!(within("https://h.org/hook/x", "https://h.org/hook/"));
        assert!(!within("https://h.org/hook", "https://h.org/hook/"));
    }

    #[test]
    fn a_webhook_is_retried_for_a_day() {
        assert_eq!(next_try_ms(0, 100, 1), Some(1100));
        assert_eq!(next_try_ms(0, 100, 3), Some(4100));
        assert_eq!(next_try_ms(0, TRIED_FOR_MS, 1), None);
    }
}
