//! Grants: the users and sites that may use a volume beside the accounts of its site.

use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::path::{RelPath, SiteName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Access level of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Listing and reading.
    Read,
    /// Writing, too.
    Write,
}

/// The grantee: users or a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Grantee {
    /// A user, `alice@titech`; or a site, `titech`, whose PoP may follow the volume and decides on its own users.
    One(Principal),
    /// All users of a site, `*@titech`.
    Site(SiteName),
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The grantee.
    pub to: Grantee,
    /// The access level.
    pub level: Level,
    /// The folder, with all below it; empty for the whole volume.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub on: String,
}

impl Grantee {
    /// Parses a grantee.
    ///
    /// # Errors
    /// `UsageInvalid`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if let Some(site) = text.strip_prefix("*@") {
            return SiteName::parse(site).map(Grantee::Site);
        }
        match Principal::parse(text)? {
            Principal::Agent { .. } => {
                let cause =
                    "write NAME@SITE, *@SITE for all users of a site, or SITE for it to follow the volume";
                Err(Error::new(Code::UsageInvalid, "grant", text, cause))
            }
            principal => Ok(Grantee::One(principal)),
        }
    }

    /// Whether the grantee is users, and not a site as such.
    pub fn is_users(&self) -> bool {
        !matches!(self, Grantee::One(principal) if principal.user_name().is_none())
    }

    /// Whether a principal is covered.
    pub fn names(&self, principal: &Principal) -> bool {
        match self {
            Grantee::One(user) => user == principal,
            Grantee::Site(site) => principal.user_name().is_some() && principal.site() == site,
        }
    }
}

impl TryFrom<String> for Grantee {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        Grantee::parse(&text)
    }
}

impl From<Grantee> for String {
    fn from(to: Grantee) -> String {
        to.to_string()
    }
}

impl fmt::Display for Grantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grantee::One(principal) => principal.fmt(f),
            Grantee::Site(site) => write!(f, "*@{site}"),
        }
    }
}

impl Level {
    /// Parses a level.
    ///
    /// # Errors
    /// `UsageInvalid`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "read" => Ok(Level::Read),
            "write" => Ok(Level::Write),
            _ => Err(Error::new(Code::UsageInvalid, "grant", text, "write `read` or `write`")),
        }
    }

    fn allows(self, need: Need) -> bool {
        self == Level::Write || need != Need::Write
    }
}

impl Grant {
    /// Parses a grant.
    ///
    /// # Errors
    /// `UsageInvalid`, `BadPath`.
    pub fn parse(to: &str, level: &str, on: &str) -> Result<Self, Error> {
        RelPath::parse(on.as_bytes())?;
        Ok(Grant { to: Grantee::parse(to)?, level: Level::parse(level)?, on: on.into() })
    }
}

/// The folders that grants open to a principal for a need; a grant with an invalid folder opens nothing.
pub fn folders(grants: &[Grant], principal: &Principal, need: Need) -> Vec<RelPath> {
    let given = |grant: &&Grant| grant.to.names(principal) && grant.level.allows(need);
    grants.iter().filter(given).filter_map(|grant| RelPath::parse(grant.on.as_bytes()).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_covers_its_principals_and_paths() {
        let grants = [
            Grant::parse("*@titech", "read", "").unwrap(),
            Grant::parse("alice@titech", "write", "in").unwrap(),
        ];
        let paths = |who: &str, need| {
            let found = folders(&grants, &Principal::parse(who).unwrap(), need);
            found.iter().map(|path| path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths("alice@titech", Need::Read), ["", "in"]);
        assert_eq!(paths("alice@titech", Need::Write), ["in"]);
        assert_eq!(paths("bob@titech", Need::Examine), [""]);
        for (who, need) in [
            ("bob@titech", Need::Write),
            ("bob@kek", Need::Look),
            ("titech", Need::Look),
            ("titech/x", Need::Look),
        ] {
            assert!(paths(who, need).is_empty(), "{who}");
        }
    }

    #[test]
    fn grants_without_a_principal_are_refused() {
        for to in ["titech/scratch", "*", "*@", "@titech", "*@KEK", ""] {
            assert!(Grantee::parse(to).is_err(), "{to}");
        }
        assert!(Grant::parse("*@kek", "own", "").is_err());
        assert!(Grant::parse("*@kek", "read", "/abs").is_err());
        assert!(Grant::parse("*@kek", "read", "a/../b").is_err());
    }
}
