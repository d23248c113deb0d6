//! Third-party copies: which servers are reached, and how many copies run.

use super::{OneOrMany, absolute_or_empty, at_least_one};
use renkei_core::route::servers::ServerPattern;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::path::PathBuf;

/// The administrator's configuration of third-party copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tpc {
    /// The servers that are reached; a trusted site's are beside these.
    #[serde(deserialize_with = "servers")]
    pub hosts: Vec<String>,
    /// A folder of certificates of authorities; empty for none.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub authorities: PathBuf,
    /// Servers to which a redirect may take the token of the user along.
    #[serde(deserialize_with = "servers")]
    pub token_hosts: Vec<String>,
    /// Copies at a time.
    #[serde(deserialize_with = "at_least_one")]
    pub max_running: u64,
    /// Of these, one user's.
    #[serde(deserialize_with = "at_least_one")]
    pub max_running_user: u64,
    /// Timeout for the beginning of an answer, in seconds.
    #[serde(deserialize_with = "at_least_one")]
    pub first_byte_timeout_s: u64,
    /// Least rate of the other server, in bytes a second; 0 for none.
    pub min_bytes_per_s: u64,
    /// The time over which it is measured, in seconds.
    #[serde(deserialize_with = "at_least_one")]
    pub slow_window_s: u64,
    /// The collector of fireflies, `HOST:PORT`; empty for none.
    #[serde(deserialize_with = "collector")]
    pub firefly: String,
}

impl Default for Tpc {
    fn default() -> Self {
        Tpc {
            hosts: vec!["*".into()],
            authorities: PathBuf::new(),
            token_hosts: Vec::new(),
            max_running: 32,
            max_running_user: 16,
            first_byte_timeout_s: 300,
            min_bytes_per_s: 10_240,
            slow_window_s: 120,
            firefly: String::new(),
        }
    }
}

impl Tpc {
    /// The patterns of [`Tpc::hosts`].
    pub fn host_patterns(&self) -> Vec<ServerPattern> {
        patterns(&self.hosts)
    }

    /// The patterns of [`Tpc::token_hosts`].
    pub fn token_patterns(&self) -> Vec<ServerPattern> {
        patterns(&self.token_hosts)
    }
}

fn patterns(texts: &[String]) -> Vec<ServerPattern> {
    texts.iter().filter_map(|text| ServerPattern::parse(text)).collect()
}

fn servers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = OneOrMany::read(deserializer, "\"HOST\"")?;
    match texts.iter().find(|text| ServerPattern::parse(text).is_none()) {
        Some(bad) => Err(D::Error::custom(format!(
            "`{bad}` is not `*`, HOST, HOST:PORT, `*.DOMAIN`, an address or a network"
        ))),
        None => Ok(texts),
    }
}

fn collector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_one = |text: &str| {
        text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    match text.is_empty() || is_one(&text) {
        true => Ok(text),
        false => Err(D::Error::custom(format!("`{text}` is not HOST:PORT"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_patterns() {
        let read = |text: &str| toml::from_str::<Tpc>(text).map_err(|error| error.to_string());
        assert_eq!(read("").unwrap(), Tpc::default());
        let tpc = read("hosts = ['*.cern.ch', '10.0.0.0/8', 'a:8443']\nfirefly = 'collector:10514'").unwrap();
        assert_eq!(tpc.host_patterns().len(), 3);
        for bad in ["hosts = ['https://a']", "hosts = ['a*']", "firefly = 'x'", "max_running = 0"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
