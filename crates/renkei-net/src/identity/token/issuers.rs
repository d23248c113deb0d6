//! The issuers whose tokens a PoP accepts: the file issuers.toml, which `renkei issuer` writes.

use renkei_config::home::{Home, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, RelPath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest file accepted.
const MAX_BYTES: u64 = 1 << 20;
/// Mode of the file: it holds no secret.
const MODE: u32 = 0o644;

/// An issuer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    /// Its URL, as tokens name it.
    pub url: String,
    /// The place that paths of its tokens begin at; without it, `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The account of its subjects for whom the map has no rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Audiences that mean this PoP, beside its own addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audience: Vec<String>,
}

/// The issuers by their names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Issuers(pub BTreeMap<String, Issuer>);

impl Issuers {
    /// Reads the file; none without it.
    ///
    /// # Errors
    /// `ConfigInvalid`, and those of the file.
    pub fn load(home: &Home) -> Result<Self, Error> {
        let path = home.issuers_file();
        let text = read_text(&path, MAX_BYTES)?.unwrap_or_default();
        let bad = |cause: String| Error::new(Code::ConfigInvalid, "read issuers", path.display(), cause);
        let read: Issuers = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
        read.0.values().try_for_each(Issuer::check).map_err(|error| bad(error.cause))?;
        Ok(read)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn store(&self, home: &Home) -> Result<(), Error> {
        let text = toml::to_string(self).expect("issuers are plain data");
        write_file(&home.issuers_file(), text.as_bytes(), MODE)
    }

    /// The issuer with a URL.
    pub fn named(&self, url: &str) -> Option<&Issuer> {
        self.0.values().find(|issuer| issuer.url == url)
    }
}

impl Issuer {
    /// Checks its fields.
    ///
    /// # Errors
    /// `UsageInvalid`, `BadPath`.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |cause: &str| Error::new(Code::UsageInvalid, "add issuer", &self.url, cause);
        if !self.url.starts_with("https://") || self.url.contains(['#', '?', ' ']) {
            return Err(bad("an issuer is an https URL without # and ?"));
        }
        self.root().map(drop)
    }

    fn root(&self) -> Result<Option<Place>, Error> {
        self.prefix.as_deref().map_or(Ok(None), renkei_core::identity::rights::prefix)
    }

    /// The place of a path in its tokens; none for all storages.
    ///
    /// # Errors
    /// `BadPath`.
    pub fn place(&self, path: Option<Place>) -> Result<Option<Place>, Error> {
        let (Some(root), Some(path)) = (self.root()?, &path) else {
            return Ok(self.root()?.or(path));
        };
        let below = root.path.join(&RelPath::parse(path.storage.as_bytes())?)?.join(&path.path)?;
        Ok(Some(Place { path: below, storage: root.storage }))
    }
}

/// The audiences that mean a PoP with these endpoints, in the forms that clients write.
pub fn audiences(endpoints: &[String]) -> Vec<String> {
    let forms = |endpoint: &String| {
        let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host).to_owned();
        [format!("https://{endpoint}"), format!("https://{host}"), endpoint.clone(), host]
    };
    endpoints.iter().flat_map(forms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(prefix: Option<&str>) -> Issuer {
        let prefix = prefix.map(str::to_owned);
        Issuer { url: "https://issuer.example".into(), prefix, account: None, audience: Vec::new() }
    }

    #[test]
    fn paths_of_tokens_are_below_the_prefix() {
        let place = |prefix, path: &str| {
            let path = renkei_core::identity::rights::prefix(path).unwrap();
            issuer(prefix).place(path).unwrap().map(|place| place.to_string())
        };
        assert_eq!(place(Some("/data/wlcg"), "/run7/a").as_deref(), Some("/data/wlcg/run7/a"));
        assert_eq!(place(Some("/data/wlcg"), "/").as_deref(), Some("/data/wlcg"));
        assert_eq!(place(Some("/data"), "/run7").as_deref(), Some("/data/run7"));
        assert_eq!(place(None, "/data/run7").as_deref(), Some("/data/run7"));
        assert_eq!(place(None, "/"), None);
    }

    #[test]
    fn the_file_round_trips_and_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        assert_eq!(Issuers::load(&home).unwrap(), Issuers::default());
        let issuers = Issuers([("wlcg".to_owned(), issuer(Some("/data/wlcg")))].into());
        issuers.store(&home).unwrap();
        assert_eq!(Issuers::load(&home).unwrap(), issuers);
        assert!(
            issuers.named("https://issuer.example").is_some() && issuers.named("https://other").is_none()
        );
        for bad in [
            "[a]\nurl = 'http://x'",
            "[a]\nurl = 'https://x'\nprefix = 'data'",
            "[a]\nurl = 'https://x'\ncolour = 1",
        ] {
            std::fs::write(home.issuers_file(), bad).unwrap();
            assert_eq!(Issuers::load(&home).unwrap_err().code, Code::ConfigInvalid, "{bad}");
        }
    }
}
