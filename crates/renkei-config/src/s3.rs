//! Buckets for S3 clients, beside storages and volumes.

use renkei_core::path::{Place, is_label};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The administrator's configuration of the S3 door.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3 {
    /// Names of the PoP below which buckets are hosts.
    #[serde(deserialize_with = "domains")]
    pub domains: Vec<String>,
    /// Folders that are buckets, as `NAME=/STORAGE/PATH`.
    #[serde(deserialize_with = "buckets")]
    pub buckets: Vec<String>,
}

impl S3 {
    /// The buckets that are folders, with their places.
    pub fn folders(&self) -> impl Iterator<Item = (&str, Place)> {
        self.buckets.iter().filter_map(|text| folder(text))
    }
}

fn folder(text: &str) -> Option<(&str, Place)> {
    let (name, place) =
        text.split_once('=').filter(|(name, place)| is_label(name) && place.starts_with('/'))?;
    Some((name, Place::parse(place.as_bytes()).ok()??))
}

fn buckets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let all = Vec::<String>::deserialize(deserializer)?;
    match all.iter().find(|text| folder(text).is_none()) {
        Some(text) => Err(D::Error::custom(format!("{text}: write a bucket as run7=/data/run7"))),
        None => Ok(all),
    }
}

fn domains<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let all = Vec::<String>::deserialize(deserializer)?;
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    match all.iter().find(|name| !name.split('.').all(is_part)) {
        Some(name) => Err(D::Error::custom(format!("{name}: write a name in small letters, without a port"))),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_labels_with_places() {
        let read = |text: &str| toml::from_str::<S3>(text);
        let good = read("domains = ['s3.kek.jp']\nbuckets = ['run7=/data/run7', 'all=/data']").unwrap();
        let folders: Vec<String> = good.folders().map(|(name, place)| format!("{name} {place}")).collect();
        assert_eq!(folders, ["run7 /data/run7", "all /data"]);
        for bad in
            ["buckets = ['run7']", "buckets = ['Run=/data']", "buckets = ['a=data']", "buckets = ['a=/']"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["S3.kek.jp", "s3.kek.jp:7512", "", "a..b"] {
            assert!(read(&format!("domains = ['{bad}']")).is_err(), "{bad}");
        }
    }
}
