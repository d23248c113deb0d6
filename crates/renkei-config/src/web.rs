//! The configured certificate for browsers and other HTTP clients, in place of the site's own.

use super::absolute_or_empty;
use renkei_core::error::{Code, Error};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The administrator's configuration of the HTTP door.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Web {
    /// The chain, PEM, leaf first; empty for the certificate of the site.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub certificate: PathBuf,
    /// The private key of it, PEM.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub key: PathBuf,
    /// Whether everybody may read the space report.
    pub public_space_report: bool,
}

impl Web {
    /// The files of certificate and key; `None` if unset.
    ///
    /// # Errors
    /// `ConfigInvalid` for one without the other.
    pub fn files(&self) -> Result<Option<(&Path, &Path)>, Error> {
        let missing = |set: &str, missing: &str| {
            let cause = format!("`web.{set}` is set and `web.{missing}` is not");
            Err(Error::new(Code::ConfigInvalid, "read configuration", "web", cause))
        };
        match (self.certificate.as_os_str().is_empty(), self.key.as_os_str().is_empty()) {
            (true, true) => Ok(None),
            (false, false) => Ok(Some((&self.certificate, &self.key))),
            (false, true) => missing("certificate", "key"),
            (true, false) => missing("key", "certificate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_come_together() {
        let files = |text: &str| {
            let web: Web = toml::from_str(text).unwrap();
            web.files().map(|files| files.is_some()).map_err(|error| error.cause)
        };
        assert_eq!(files(""), Ok(false));
        assert_eq!(files("certificate = '/a'\nkey = '/b'"), Ok(true));
        assert!(files("certificate = '/a'").unwrap_err().contains("`web.key` is not"));
        assert!(files("key = '/a'").unwrap_err().contains("`web.certificate` is not"));
        assert!(toml::from_str::<Web>("key = 'a'").is_err());
    }
}
