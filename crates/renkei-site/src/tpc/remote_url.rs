//! The URL of a file at another web server.

use hyper::Uri;
use renkei_core::error::{Code, Error};
use std::fmt;

/// Longest URL: those that are signed have long queries.
const MAX_URL_BYTES: usize = 8192;

/// An `https` URL. Its query may hold a credential and is never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    /// The name or address, an IPv6 address without brackets, in lower case.
    pub(super) host: String,
    pub(super) port: u16,
    /// The path with the query.
    pub(super) target: String,
}

impl RemoteUrl {
    /// Parses an absolute URL.
    ///
    /// # Errors
    /// `UsageInvalid` for anything but `https` (`davs` is the same), and for a URL with a user.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut shown = text.split(['?', '#']).next().unwrap_or_default();
        if shown.contains('@') {
            // Its password would be shown.
            shown = "a URL that names a user";
        }
        let bad = |cause: &str| Error::new(Code::UsageInvalid, "read URL", shown, cause);
        if text.len() > MAX_URL_BYTES {
            return Err(bad("it is too long"));
        }
        let uri: Uri = text.parse().map_err(|_| bad("it is no URL"))?;
        match uri.scheme_str() {
            Some("https" | "davs") => {}
            Some(other) => return Err(bad(&format!("{other} is not served: only https"))),
            None => return Err(bad("it has no scheme and host")),
        }
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it names a user"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        match authority.port_u16() {
            _ if host.is_empty() => Err(bad("it has no host")),
            Some(0) => Err(bad("port 0 is no port")),
            port => Ok(RemoteUrl { host, port: port.unwrap_or(443), target }),
        }
    }

    /// The URL that a `Location` at this one leads to.
    ///
    /// # Errors
    /// `ServerAnswerWrong` for anything but an absolute `https` URL or an absolute path.
    pub(super) fn follow(&self, location: &str) -> Result<Self, Error> {
        if location.starts_with('/') && !location.starts_with("//") {
            let uri: Result<Uri, _> = location.parse();
            return match uri {
                Ok(_) => Ok(RemoteUrl { target: location.into(), ..self.clone() }),
                Err(error) => Err(self.astray(&error.to_string())),
            };
        }
        RemoteUrl::parse(location)
            .map_err(|error| self.astray(&format!("{}: {}", error.subject, error.cause)))
    }

    fn astray(&self, cause: &str) -> Error {
        let cause = format!("it redirects where the PoP does not follow: {cause}");
        Error::new(Code::ServerAnswerWrong, "follow", self, cause).at(&self.host)
    }

    /// Host and port, as in the header `Host` and in the card of a site.
    pub(super) fn authority(&self) -> String {
        match (self.host.contains(':'), self.port) {
            (true, 443) => format!("[{}]", self.host),
            (true, port) => format!("[{}]:{port}", self.host),
            (false, 443) => self.host.clone(),
            (false, port) => format!("{}:{port}", self.host),
        }
    }

    /// Whether an endpoint of a site card is this server.
    pub(super) fn is_at(&self, endpoint: &str) -> bool {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        endpoint.eq_ignore_ascii_case(&format!("{host}:{}", self.port))
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "https://{}{path}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_their_queries_not_shown() {
        let url = RemoteUrl::parse("davs://EOS.cern.ch:8443/a%20b?authz=secret").unwrap();
        assert_eq!(
            (url.host.as_str(), url.port, url.target.as_str()),
            ("eos.cern.ch", 8443, "/a%20b?authz=secret")
        );
        assert_eq!(url.to_string(), "https://eos.cern.ch:8443/a%20b");
        let number = RemoteUrl::parse("https://[::1]/x").unwrap();
        assert_eq!((number.authority().as_str(), number.is_at("[::1]:443")), ("[::1]", true));
        for bad in ["http://a/x", "https://u:p@a/x", "/x", "https:///x", "https://a:0/", "gsiftp://a/x", "x"]
        {
            let error = RemoteUrl::parse(bad).unwrap_err();
            assert_eq!(error.code, Code::UsageInvalid, "{bad}");
        }
        for secret in ["http://a/x?authz=secret", "https://u:secret@a/x", "u:secret@a/x"] {
            assert!(!RemoteUrl::parse(secret).unwrap_err().to_string().contains("secret"), "{secret}");
        }
    }

    #[test]
    fn redirects_lead_to_https_alone() {
        let url = RemoteUrl::parse("https://a/x").unwrap();
        assert_eq!(url.follow("/y?z").unwrap().target, "/y?z");
        assert_eq!(url.follow("https://b:1/y").unwrap().authority(), "b:1");
        for bad in ["http://a/y", "//b/y", "y", ""] {
            assert_eq!(url.follow(bad).unwrap_err().code, Code::ServerAnswerWrong, "{bad}");
        }
    }
}
