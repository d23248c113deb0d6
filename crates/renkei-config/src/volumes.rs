//! The users who may create volumes at a site, beside its administrator.

use super::OneOrMany;
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The administrator's configuration of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Volumes {
    /// Who may make volumes: `NAME@SITE`, or `*@SITE` for all users of a site.
    #[serde(deserialize_with = "users")]
    pub create: Vec<String>,
    /// The account of new volumes whose directory is root's and for which none was named; empty for none.
    pub account: String,
}

impl Volumes {
    /// Whether a user may create volumes.
    pub fn may_create(&self, principal: &Principal) -> bool {
        principal.user_name().is_some() && self.create.iter().any(|named| names(named, principal))
    }
}

fn names(named: &str, principal: &Principal) -> bool {
    match named.strip_prefix("*@") {
        Some(site) => site == principal.site().as_str(),
        None => named == principal.to_string(),
    }
}

fn users<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let form = "\"NAME@SITE\" or \"*@SITE\"";
    let texts = OneOrMany::read(deserializer, form)?;
    match texts.iter().find(|text| !is_user(text)) {
        Some(bad) => Err(D::Error::custom(format!("`{bad}` is not {form}"))),
        None => Ok(texts),
    }
}

fn is_user(text: &str) -> bool {
    match text.strip_prefix("*@") {
        Some(site) => SiteName::parse(site).is_ok(),
        None => Principal::parse(text).is_ok_and(|principal| principal.user_name().is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_principals_may_make_volumes() {
        let volumes: Volumes = toml::from_str("create = ['alice@kek', '*@titech']").unwrap();
        let may = |who: &str| volumes.may_create(&Principal::parse(who).unwrap());
        assert!(may("alice@kek") && may("bob@titech"));
        assert!(!may("bob@kek") && !may("alice@nig") && !may("titech") && !may("titech/scratch"));
        assert!(!Volumes::default().may_create(&Principal::parse("alice@kek").unwrap()));
        for bad in ["kek", "*", "*@KEK", "alice@", "kek/data"] {
            assert!(toml::from_str::<Volumes>(&format!("create = '{bad}'")).is_err(), "{bad}");
        }
    }
}
