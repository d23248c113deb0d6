//! An authenticated identity: a site's PoP, a user of a site, or the agent that serves one of its storages.

use crate::error::{Code, Error};
use crate::path::{SiteName, is_label, printable};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Longest user name, in bytes.
pub const MAX_USER_BYTES: usize = 64;
/// Scheme of the URI that names a principal in certificates.
const URI_SCHEME: &str = "renkei://";

/// An authenticated identity. Text form: `alice@titech` for a user, `titech` for a site's PoP, `titech/scratch` for
/// the agent of a storage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Principal {
    /// A PoP of the site.
    Host(SiteName),
    /// A user whom the site vouches for.
    User {
        /// The site.
        site: SiteName,
        /// The user's name there.
        name: String,
    },
    /// The agent that serves a storage which its site's PoP cannot reach.
    Agent {
        /// The site.
        site: SiteName,
        /// The storage's name there.
        storage: String,
    },
}

impl Principal {
    /// A user of a site.
    pub fn user(site: &SiteName, name: &str) -> Result<Self, Error> {
        if is_user_name(name) {
            return Ok(Principal::User { site: site.clone(), name: name.into() });
        }
        Err(bad_principal(name, "a user name is 1 to 64 of A-Z, a-z, 0-9, ., _ and -, not starting with -"))
    }

    /// The agent of a storage.
    pub fn agent(site: &SiteName, storage: &str) -> Result<Self, Error> {
        if is_label(storage) {
            return Ok(Principal::Agent { site: site.clone(), storage: storage.into() });
        }
        Err(bad_principal(storage, "an agent is named by its storage: a-z, 0-9 and -"))
    }

    /// Parses `alice@titech`, `titech` or `titech/scratch`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if let Some((name, site)) = text.split_once('@') {
            return Principal::user(&SiteName::parse(site)?, name);
        }
        match text.split_once('/') {
            Some((site, storage)) => Principal::agent(&SiteName::parse(site)?, storage),
            None => Ok(Principal::Host(SiteName::parse(text)?)),
        }
    }

    /// Parses the name in a certificate: `renkei://titech/host`, `renkei://titech/user/alice` or
    /// `renkei://titech/agent/scratch`.
    pub fn parse_uri(uri: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = uri.strip_prefix(URI_SCHEME).unwrap_or_default().split('/').collect();
        match parts[..] {
            [site, "host"] => Ok(Principal::Host(SiteName::parse(site)?)),
            [site, "user", name] => Principal::user(&SiteName::parse(site)?, name),
            [site, "agent", storage] => Principal::agent(&SiteName::parse(site)?, storage),
            _ => Err(bad_principal(
                uri,
                "a certificate's name is renkei://SITE/host, renkei://SITE/user/NAME or renkei://SITE/agent/STORAGE",
            )),
        }
    }

    /// Parses the name in a delegated certificate: `renkei://titech/delegated/alice`. A peer without support for
    /// delegation refuses it as an invalid name.
    pub fn parse_delegated_uri(uri: &str) -> Result<Self, Error> {
        let parts: Vec<&str> = uri.strip_prefix(URI_SCHEME).unwrap_or_default().split('/').collect();
        match parts[..] {
            [site, "delegated", name] => Principal::user(&SiteName::parse(site)?, name),
            _ => Err(bad_principal(uri, "a delegated certificate's name is renkei://SITE/delegated/NAME")),
        }
    }

    /// The name in delegated certificates; `None` for all but users, which alone can delegate.
    pub fn to_delegated_uri(&self) -> Option<String> {
        self.user_name().map(|name| format!("{URI_SCHEME}{}/delegated/{name}", self.site()))
    }

    /// Whether `uri` claims to name a principal, well formed or not.
    pub fn is_uri(uri: &str) -> bool {
        uri.starts_with(URI_SCHEME)
    }

    /// The name in certificates.
    pub fn to_uri(&self) -> String {
        match self {
            Principal::Host(site) => format!("{URI_SCHEME}{site}/host"),
            Principal::User { site, name } => format!("{URI_SCHEME}{site}/user/{name}"),
            Principal::Agent { site, storage } => format!("{URI_SCHEME}{site}/agent/{storage}"),
        }
    }

    /// The same with its site's current name, if the site was renamed since this was read.
    pub fn current(&self) -> Cow<'_, Principal> {
        let Cow::Owned(site) = self.site().current() else { return Cow::Borrowed(self) };
        Cow::Owned(match self {
            Principal::Host(_) => Principal::Host(site),
            Principal::User { name, .. } => Principal::User { site, name: name.clone() },
            Principal::Agent { storage, .. } => Principal::Agent { site, storage: storage.clone() },
        })
    }

    /// The site that vouches for the principal.
    pub fn site(&self) -> &SiteName {
        match self {
            Principal::Host(site) | Principal::User { site, .. } | Principal::Agent { site, .. } => site,
        }
    }

    /// The user's name; `None` for a PoP and for an agent.
    pub fn user_name(&self) -> Option<&str> {
        match self {
            Principal::Host(_) | Principal::Agent { .. } => None,
            Principal::User { name, .. } => Some(name),
        }
    }
}

/// Whether `text` can be a user's name: 1 to 64 of `A-Za-z0-9._-`, not starting with `-`.
pub fn is_user_name(text: &str) -> bool {
    (1..=MAX_USER_BYTES).contains(&text.len())
        && !text.starts_with('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn bad_principal(text: &str, why: &str) -> Error {
    let shown: String = printable(text.as_bytes()).chars().take(200).collect();
    Error::new(Code::UsageInvalid, "parse principal", shown, why)
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Host(site) => write!(f, "{site}"),
            Principal::User { site, name } => write!(f, "{name}@{site}"),
            Principal::Agent { site, storage } => write!(f, "{site}/{storage}"),
        }
    }
}

impl TryFrom<String> for Principal {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        Principal::parse(&text)
    }
}

impl From<Principal> for String {
    fn from(principal: Principal) -> String {
        principal.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_round_trip() {
        for text in ["alice@titech", "titech", "A.b_c-9@kek", "titech/scratch"] {
            let principal = Principal::parse(text).unwrap();
            assert_eq!(principal.to_string(), text);
            assert_eq!(Principal::parse_uri(&principal.to_uri()).unwrap(), principal);
            let json = serde_json::to_string(&principal).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Principal>(&json).unwrap(), principal);
        }
        assert_eq!(Principal::parse("alice@kek").unwrap().site().as_str(), "kek");
    }

    #[test]
    fn odd_names_are_refused() {
        let long = format!("{}@kek", "a".repeat(65));
        for bad in [
            "",
            "@kek",
            "-a@kek",
            "a@",
            "a@b@kek",
            "a b@kek",
            "a/b@kek",
            "*@kek",
            "\u{e9}@kek",
            "kek/",
            "/a",
            "kek/a/b",
            "kek/A",
            &long,
        ] {
            assert!(Principal::parse(bad).is_err(), "{bad}");
        }
        assert!(Principal::parse(&format!("{}@kek", "a".repeat(64))).is_ok());
    }

    #[test]
    fn delegated_names_differ_from_plain_ones() {
        let alice = Principal::parse("alice@kek").unwrap();
        let uri = alice.to_delegated_uri().unwrap();
        assert_eq!(Principal::parse_delegated_uri(&uri).unwrap(), alice);
        assert!(Principal::is_uri(&uri) && Principal::parse_uri(&uri).is_err());
        assert_eq!(Principal::parse("kek").unwrap().to_delegated_uri(), None);
        for bad in [&alice.to_uri(), "renkei://kek/delegated", "renkei://kek/delegated/", "renkei://kek/host"]
        {
            assert!(Principal::parse_delegated_uri(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn odd_uris_are_refused() {
        for bad in [
            "renkei://kek",
            "renkei://kek/user",
            "renkei://kek/user/a/b",
            "renkei://kek/user/-a",
            "renkei://kek/agent/",
            "renkei://kek/agent/a/b",
        ] {
            assert!(Principal::is_uri(bad) && Principal::parse_uri(bad).is_err(), "{bad}");
        }
        assert!(Principal::parse_uri("https://kek/host").is_err());
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_round_trips(text in "\\PC{0,80}") {
            if let Ok(principal) = Principal::parse(&text) {
                prop_assert_eq!(principal.to_string(), text.clone());
            }
            let _ = Principal::parse_uri(&text);
        }
    }
}
