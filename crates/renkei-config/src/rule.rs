//! The rules of drop folders, and the checks between them.

use super::Config;
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place};
use renkei_core::wire::message::Class;
use serde::{Deserialize, Serialize};

/// A rule of a drop folder: files that other tools put there are forwarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The folder, in a storage of this site.
    #[serde(with = "endpoint_path")]
    pub from: EndpointPath,
    /// The folder it is forwarded to.
    #[serde(with = "endpoint_path")]
    pub to: EndpointPath,
    /// How long a file must stay as it is to count as complete, in seconds.
    #[serde(default = "default_settle", deserialize_with = "super::at_least_one")]
    pub settle_s: u64,
    /// What becomes of a file that arrived.
    #[serde(default)]
    pub then: Then,
    /// How much of the path it may take.
    #[serde(default)]
    pub class: Class,
}

/// The action on a forwarded file in the drop folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// It stays.
    #[default]
    Keep,
    /// It is removed.
    Remove,
}

/// The default time for which a file must stay unchanged: longer than a pause in an interactive copy.
pub const SETTLE_S: u64 = 10;

fn default_settle() -> u64 {
    SETTLE_S
}

/// A place at a site, as text.
mod endpoint_path {
    use renkei_core::path::EndpointPath;
    use serde::Deserialize;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &EndpointPath, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(path)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<EndpointPath, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bad = |cause: &str| D::Error::custom(format!("`{text}` is not SITE:/STORAGE/PATH: {cause}"));
        match EndpointPath::parse(text.as_bytes()) {
            Ok(Some(path)) if path.place.is_some() => Ok(path),
            Ok(_) => Err(bad("it names no storage")),
            Err(error) => Err(bad(&error.cause)),
        }
    }
}

impl Config {
    /// Checks that `rule` can be put in force as `name`, beside the existing ones.
    ///
    /// # Errors
    /// `UsageInvalid` if its folder is not of this site, `StorageUnknown`, `RuleCycle` if files would return.
    pub fn check_rule(&self, name: &str, rule: &Rule) -> Result<(), Error> {
        let error = |code, cause: String| Error::new(code, "check rule", name, cause);
        if Some(&rule.from.site) != self.site.as_ref() {
            let cause = format!("{} is not of this site: a PoP watches its own folders", rule.from);
            return Err(error(Code::UsageInvalid, cause));
        }
        for path in [&rule.from, &rule.to].into_iter().filter(|path| path.site == rule.from.site) {
            let place = place(path);
            if !self.storage.contains_key(&place.storage) {
                return Err(error(Code::StorageUnknown, format!("{path} is in no storage of config.toml")));
            }
        }
        let mut chain = vec![name.to_owned()];
        if self.leads_back(name, rule, &rule.to, &mut chain) {
            let cause = format!("files would come back to {}: {}", rule.from, chain.join(" -> "));
            return Err(error(Code::RuleCycle, cause));
        }
        Ok(())
    }

    /// Whether files put at `at` reach the folder of `rule`, by the rules of this site.
    fn leads_back(&self, name: &str, rule: &Rule, at: &EndpointPath, chain: &mut Vec<String>) -> bool {
        if overlap(at, &rule.from) {
            chain.push(name.to_owned());
            return true;
        }
        for (next, other) in &self.rule {
            if chain.contains(next) || !overlap(at, &other.from) {
                continue;
            }
            chain.push(next.clone());
            if self.leads_back(name, rule, &other.to, chain) {
                return true;
            }
            chain.pop();
        }
        false
    }
}

/// The place of a rule's path, which always exists.
fn place(path: &EndpointPath) -> &Place {
    path.place.as_ref().expect("what is read as a rule names a storage")
}

/// Whether one of two folders at sites is the other or an ancestor of it.
fn overlap(one: &EndpointPath, other: &EndpointPath) -> bool {
    one.site == other.site && is_within(place(one), place(other))
}

/// Whether one of two folders is the other or an ancestor of it.
pub fn is_within(one: &Place, other: &Place) -> bool {
    let nested = one.path.starts_with(&other.path) || other.path.starts_with(&one.path);
    one.storage == other.storage && nested
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const SITE: &str = "site = 'kek'\n[storage.data]\npath = '/data'\n[storage.pool]\npath = '/pool'\n";

    fn rule(from: &str, to: &str) -> Rule {
        let text = format!("from = '{from}'\nto = '{to}'");
        toml::from_str(&text).unwrap()
    }

    fn check(there: &str, from: &str, to: &str) -> Result<(), Error> {
        let config = Config::parse(&format!("{SITE}{there}"), Path::new("config.toml")).unwrap();
        config.check_rule("new", &rule(from, to))
    }

    #[test]
    fn a_rule_watches_a_folder_of_an_existing_storage_of_this_site() {
        check("", "kek:/data/drop", "titech:/raw").unwrap();
        check("", "kek:/data/drop", "kek:/pool/drop").unwrap();
        assert_eq!(check("", "titech:/data", "kek:/data").unwrap_err().code, Code::UsageInvalid);
        assert_eq!(check("", "kek:/none", "titech:/raw").unwrap_err().code, Code::StorageUnknown);
        assert_eq!(check("", "kek:/data", "kek:/none").unwrap_err().code, Code::StorageUnknown);
    }

    #[test]
    fn circular_rules_are_refused() {
        for to in ["kek:/data/drop", "kek:/data/drop/out", "kek:/data"] {
            assert_eq!(check("", "kek:/data/drop", to).unwrap_err().code, Code::RuleCycle, "{to}");
        }
        let there = "[rule.a]\nfrom = 'kek:/pool/a'\nto = 'kek:/pool/b'\n\
                     [rule.b]\nfrom = 'kek:/pool/b/in'\nto = 'kek:/data/drop'\n";
        let error = check(there, "kek:/data/drop", "kek:/pool/a/x").unwrap_err();
        assert_eq!(error.code, Code::RuleCycle);
        assert!(error.cause.ends_with("new -> a -> b -> new"), "{error}");
        check(there, "kek:/data/drop", "kek:/pool/c").unwrap();
        check(there, "kek:/data/other", "kek:/pool/a").unwrap();
    }
}
