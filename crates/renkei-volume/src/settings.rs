//! The settings of a volume: replication policy, scrub rate, quotas. Part of `volumes/NAME.toml`; a setting is written
//! as `KEY=VALUE`, also over the wire.

use renkei_core::error::{Code, Error};
use renkei_core::namespace::placement;
use renkei_core::namespace::quota::{self, ByOwner, Limit, Use};
use renkei_core::path::{RelPath, SiteName};
use renkei_core::units::{parse_bytes, parse_rate, parse_span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// Seconds without a message after which a site counts as lost, by default: a day, so that a restart, a night without
/// power or a cut line does not have a volume copied.
const REPAIR_AFTER_S: u64 = 86_400;

/// The settings of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolumeSettings {
    /// Seconds without a message after which a site counts as lost and its replicas are placed at others.
    pub repair_after_s: u64,
    /// Scrub rate in bytes a second; 0 for never. By default all files are read within about a month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_rate: Option<u64>,
    /// Whether background replication and scrub are paused.
    #[serde(skip_serializing_if = "is_no")]
    pub is_paused: bool,
    /// At a follower: whether it ignores the replication policies of the home.
    #[serde(skip_serializing_if = "is_no")]
    pub refuses_policy: bool,
    /// At the home: the replication policies of folders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policy: Vec<Policy>,
    /// At the home: the quotas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<Quota>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_no(value: &bool) -> bool {
    !value
}

impl Default for VolumeSettings {
    fn default() -> Self {
        VolumeSettings {
            repair_after_s: REPAIR_AFTER_S,
            verify_rate: None,
            is_paused: false,
            refuses_policy: false,
            policy: Vec::new(),
            quota: Vec::new(),
        }
    }
}

/// The replication policy of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The folder, with all below it; empty for the whole volume.
    #[serde(default)]
    pub folder: String,
    /// Number of replicas, including that of the home.
    pub replicas: u32,
    /// Preferred sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<SiteName>,
}

/// The quota of one owner, or of the whole volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The owner's name in the volume; none for the whole volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Bytes of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Files, directories and symbolic links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
}

/// Usage and quota of one owner, or of the whole volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseRow {
    /// The owner's name in the volume; none for the whole volume.
    pub owner: Option<String>,
    /// Files, directories and symbolic links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Quota of files.
    pub limit_files: Option<u64>,
    /// Quota of bytes.
    pub limit_bytes: Option<u64>,
    /// The unused part of quota shares: at the home of all writing sites, at a writing site its own.
    #[serde(default)]
    pub handed: Limit,
}

impl UseRow {
    /// The row of an owner, or of the whole volume.
    pub fn new(owner: Option<String>, used: Use, limit: Limit) -> Self {
        let (Use { files, bytes }, Limit { files: limit_files, bytes: limit_bytes }) = (used, limit);
        UseRow { owner, files, bytes, limit_files, limit_bytes, handed: Limit::default() }
    }

    /// Adds the unused part of granted shares, where there is a quota.
    pub fn with_handed(self, out: Use) -> Self {
        let files = self.limit_files.map(|_| out.files);
        UseRow { handed: Limit { files, bytes: self.limit_bytes.map(|_| out.bytes) }, ..self }
    }
}

fn invalid(text: &str, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::UsageInvalid, "set", text, cause)
}

impl VolumeSettings {
    /// Validates the settings.
    ///
    /// # Errors
    /// `BadPath`.
    pub fn check(&self) -> Result<(), Error> {
        self.policy.iter().try_for_each(|policy| RelPath::parse(policy.folder.as_bytes()).map(drop))
    }

    /// The silence after which a site counts as lost.
    pub fn repair_after(&self) -> Duration {
        Duration::from_secs(self.repair_after_s)
    }

    /// The policies with their parsed folders, in the order that `set` keeps: parent folders first.
    pub fn policies(&self) -> Vec<placement::Policy> {
        let policy = |policy: &Policy| {
            let folder = RelPath::parse(policy.folder.as_bytes()).ok()?;
            Some(placement::Policy { folder, replicas: policy.replicas, at: policy.at.clone() })
        };
        self.policy.iter().filter_map(policy).collect()
    }

    /// The quotas.
    pub fn quotas(&self) -> Vec<quota::Quota> {
        let limit = |quota: &Quota| Limit { files: quota.files, bytes: quota.bytes };
        let quota = |quota: &Quota| quota::Quota { owner: quota.owner.clone(), limit: limit(quota) };
        self.quota.iter().map(quota).collect()
    }

    /// Usage and quotas: the whole volume first, then by owner.
    pub fn use_rows(&self, used: &ByOwner) -> Vec<UseRow> {
        let quotas = self.quotas();
        let limit = |owner: Option<&str>| {
            let quota = quotas.iter().find(|quota| quota.owner.as_deref() == owner);
            quota.map_or_else(Limit::default, |quota| quota.limit)
        };
        let all = used.values().fold(Use::default(), |all, one| all.changed((*one).into()));
        let owners: BTreeSet<&String> =
            used.keys().chain(quotas.iter().filter_map(|quota| quota.owner.as_ref())).collect();
        let row = |owner: &String| {
            let used = used.get(owner).copied().unwrap_or_default();
            UseRow::new(Some(owner.clone()), used, limit(Some(owner)))
        };
        std::iter::once(UseRow::new(None, all, limit(None))).chain(owners.into_iter().map(row)).collect()
    }

    /// Changes one setting; false if the key is none of these. After a colon, some keys name a folder or an owner:
    /// `replicas:/raw`, `quota_bytes:alice`.
    ///
    /// # Errors
    /// `UsageInvalid`.
    pub fn set(&mut self, key: &str, text: &str) -> Result<bool, Error> {
        let (name, of) = key.split_once(':').map_or((key, None), |(name, of)| (name, Some(of)));
        match name {
            "replicas" | "at" => return self.set_policy(of.unwrap_or(""), name, text).map(|()| true),
            "quota_bytes" | "quota_files" => return self.set_limit(of, name, text).map(|()| true),
            _ if of.is_some() => return Ok(false),
            "repair_after" => {
                self.repair_after_s = parse_span(text).map_err(|cause| invalid(text, cause))?.as_secs();
            }
            "verify_rate" => self.verify_rate = parse_verify_rate(text)?,
            "policy" => self.refuses_policy = !yes(key, text)?,
            "paused" => self.is_paused = yes(key, text)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_policy(&mut self, folder: &str, key: &str, text: &str) -> Result<(), Error> {
        if key == "replicas" {
            let count: u32 = text.parse().map_err(|_| invalid(text, "write a number of replicas"))?;
            return self.change_policy(folder, |policy| policy.replicas = count);
        }
        let names = text.split(',').filter(|name| !name.is_empty());
        let at: Vec<SiteName> = names.map(SiteName::parse).collect::<Result<_, _>>()?;
        self.change_policy(folder, |policy| {
            if policy.replicas == 0 {
                policy.replicas = at.len() as u32;
            }
            policy.at = at;
        })
    }

    /// Changes one number of a quota and keeps the other; a quota without numbers is removed.
    fn set_limit(&mut self, owner: Option<&str>, key: &str, text: &str) -> Result<(), Error> {
        if owner.is_some_and(|owner| owner.is_empty() || owner.contains('@')) {
            return Err(invalid(key, "name the account that the user has at the home"));
        }
        let number = match (text, key) {
            ("none", _) => None,
            (_, "quota_bytes") => Some(parse_bytes(text).map_err(|cause| invalid(text, cause))?),
            _ => Some(text.parse().map_err(|_| invalid(text, "write a number, or none"))?),
        };
        let owner = owner.map(str::to_owned);
        let known = self.quota.iter().position(|quota| quota.owner == owner);
        let mut quota = match known {
            Some(at) => self.quota.remove(at),
            None => Quota { owner, bytes: None, files: None },
        };
        *(if key == "quota_bytes" { &mut quota.bytes } else { &mut quota.files }) = number;
        if quota.bytes.is_some() || quota.files.is_some() {
            self.quota.push(quota);
            self.quota.sort_by(|a, b| a.owner.cmp(&b.owner));
        }
        Ok(())
    }

    /// Changes the policy of a folder; a policy of 0 replicas is removed.
    fn change_policy(&mut self, folder: &str, change: impl FnOnce(&mut Policy)) -> Result<(), Error> {
        let path = RelPath::parse_lenient(folder.as_bytes())?;
        let folder = String::from_utf8(path.as_bytes().to_vec());
        let folder = folder.map_err(|_| invalid(&path.to_string(), "its name must be UTF-8"))?;
        let known = self.policy.iter().position(|policy| policy.folder == folder);
        let mut policy = match known {
            Some(at) => self.policy.remove(at),
            None => Policy { folder, replicas: 0, at: Vec::new() },
        };
        change(&mut policy);
        if policy.replicas > 0 {
            self.policy.push(policy);
            self.policy.sort_by(|a, b| a.folder.cmp(&b.folder));
        }
        Ok(())
    }
}

fn yes(key: &str, text: &str) -> Result<bool, Error> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(invalid(text, format!("write {key}=yes or {key}=no"))),
    }
}

/// Parses `month`, `0` or `never`, or a rate.
fn parse_verify_rate(text: &str) -> Result<Option<u64>, Error> {
    match text {
        "month" => Ok(None),
        "0" | "never" => Ok(Some(0)),
        _ => parse_rate(text).map(Some).map_err(|cause| invalid(text, format!("{cause}; or month, or 0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_changed_one_by_one() {
        let mut care = VolumeSettings::default();
        for (key, text) in [
            ("replicas", "2"),
            ("at", "nig,titech"),
            ("at:/raw", "kek,titech,nig"),
            ("verify_rate", "20MB/s"),
            ("repair_after", "2h"),
            ("policy", "no"),
            ("paused", "yes"),
        ] {
            assert!(care.set(key, text).unwrap(), "{key}");
        }
        let told: Vec<_> =
            care.policy.iter().map(|one| (one.folder.as_str(), one.replicas, one.at.len())).collect();
        assert_eq!(told, [("", 2, 2), ("raw", 3, 3)]);
        assert_eq!((care.verify_rate, care.repair_after_s), (Some(20_000_000), 7200));
        assert!(care.refuses_policy && care.is_paused);
        care.set("replicas:raw/", "0").unwrap();
        care.set("verify_rate", "month").unwrap();
        assert_eq!((care.policy.len(), care.verify_rate), (1, None));
        assert!(!care.set("hold", "/").unwrap() && !care.set("policy:/x", "no").unwrap());
        for (key, text) in [("replicas", "x"), ("at", "NIG"), ("verify_rate", "fast"), ("policy", "maybe")] {
            assert_ne!(care.set(key, text).unwrap_err().code, Code::Internal, "{key}");
        }
        let text = toml::to_string(&care).unwrap();
        assert_eq!(toml::from_str::<VolumeSettings>(&text).unwrap(), care, "{text}");
        assert_eq!(toml::from_str::<VolumeSettings>("").unwrap(), VolumeSettings::default());
    }

    #[test]
    fn a_limit_without_numbers_is_no_limit() {
        let mut care = VolumeSettings::default();
        for (key, text) in [("quota_bytes:alice", "5K"), ("quota_files", "7"), ("quota_bytes:alice", "6K")] {
            assert!(care.set(key, text).unwrap(), "{key}");
        }
        assert_eq!((care.quota.len(), care.quota[1].bytes), (2, Some(6 << 10)));
        let text = toml::to_string(&care).unwrap();
        assert_eq!(toml::from_str::<VolumeSettings>(&text).unwrap(), care, "{text}");
        assert!(care.set("quota_bytes:alice@kek", "5").is_err() && care.set("quota_files", "many").is_err());
        care.set("quota_bytes:alice", "none").unwrap();
        assert_eq!(
            care.quotas(),
            [quota::Quota { owner: None, limit: Limit { files: Some(7), bytes: None } }]
        );
    }
}
