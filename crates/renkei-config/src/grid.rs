//! The configuration of grid certificates, and the places of the usual files.

use super::{Web, absolute_or_empty};
use serde::{Deserialize, Deserializer, Serialize};
use std::path::{Path, PathBuf};

/// Whether a file beside an authority must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequiredFiles {
    /// Without it, certificates of the authority are refused.
    Require,
    /// It is used where it is.
    IfPresent,
}

/// The configuration of grid certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grid {
    /// The directory with the usual files; empty for none.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub directory: PathBuf,
    /// More folders with authorities.
    #[serde(deserialize_with = "absolute_paths")]
    pub authorities: Vec<PathBuf>,
    /// The grid-mapfile; empty for that of the directory.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub mapfile: PathBuf,
    /// The voms-mapfile; empty for that of the directory.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub voms_mapfile: PathBuf,
    /// The directory of LSC files; empty for that of the directory.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub vomsdir: PathBuf,
    /// The host certificate; empty for that of the directory.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub host_certificate: PathBuf,
    /// The private key of it.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub host_key: PathBuf,
    /// Whether each authority needs a revocation list.
    pub revocation: RequiredFiles,
    /// Whether each authority needs a signing policy.
    pub signing_policy: RequiredFiles,
    /// Whether signatures with SHA-1 are accepted.
    pub weak_digests: bool,
}

impl Default for Grid {
    fn default() -> Self {
        Grid {
            directory: "/etc/grid-security".into(),
            authorities: Vec::new(),
            mapfile: PathBuf::new(),
            voms_mapfile: PathBuf::new(),
            vomsdir: PathBuf::new(),
            host_certificate: PathBuf::new(),
            host_key: PathBuf::new(),
            revocation: RequiredFiles::IfPresent,
            signing_policy: RequiredFiles::Require,
            weak_digests: false,
        }
    }
}

impl Grid {
    /// The folders with authorities, whether they exist or not.
    pub fn authority_dirs(&self) -> Vec<PathBuf> {
        self.usual("certificates").into_iter().chain(self.authorities.iter().cloned()).collect()
    }

    /// The grid-mapfile.
    pub fn mapfile(&self) -> Option<PathBuf> {
        self.named(&self.mapfile, "grid-mapfile")
    }

    /// The voms-mapfile.
    pub fn voms_mapfile(&self) -> Option<PathBuf> {
        self.named(&self.voms_mapfile, "voms-mapfile")
    }

    /// The directory of LSC files.
    pub fn vomsdir(&self) -> Option<PathBuf> {
        self.named(&self.vomsdir, "vomsdir")
    }

    /// The host certificate with its key: the configured one, else that of the directory if this process can read
    /// it.
    pub fn host(&self) -> Web {
        if !self.host_certificate.as_os_str().is_empty() || !self.host_key.as_os_str().is_empty() {
            return Web {
                certificate: self.host_certificate.clone(),
                key: self.host_key.clone(),
                ..Web::default()
            };
        }
        let is_readable = |path: &PathBuf| std::fs::File::open(path).is_ok();
        let (certificate, key) = (self.usual("hostcert.pem"), self.usual("hostkey.pem"));
        match (certificate.filter(is_readable), key.filter(is_readable)) {
            (Some(certificate), Some(key)) => Web { certificate, key, ..Web::default() },
            _ => Web::default(),
        }
    }

    fn named(&self, path: &Path, usual: &str) -> Option<PathBuf> {
        if path.as_os_str().is_empty() { self.usual(usual) } else { Some(path.into()) }
    }

    /// A file of the directory.
    fn usual(&self, name: &str) -> Option<PathBuf> {
        (!self.directory.as_os_str().is_empty()).then(|| self.directory.join(name))
    }
}

fn absolute_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let texts = super::OneOrMany::read(deserializer, "\"/PATH\"")?;
    let paths: Vec<PathBuf> = texts.into_iter().map(PathBuf::from).collect();
    match paths.iter().find(|path| !path.is_absolute()) {
        None => Ok(paths),
        Some(path) => Err(serde::de::Error::custom(format!("`{}` is not an absolute path", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_files_are_below_the_directory() {
        let grid: Grid = toml::from_str("directory = '/g'\nmapfile = '/m'\nauthorities = '/a'").unwrap();
        assert_eq!(grid.authority_dirs(), [Path::new("/g/certificates"), Path::new("/a")]);
        assert_eq!(grid.mapfile().unwrap(), Path::new("/m"));
        assert_eq!(grid.voms_mapfile().unwrap(), Path::new("/g/voms-mapfile"));
        let none: Grid = toml::from_str("directory = ''").unwrap();
        assert!(none.authority_dirs().is_empty() && none.mapfile().is_none() && none.vomsdir().is_none());
        assert_eq!(none.host(), Web::default());
        for bad in ["directory = 'g'", "authorities = ['a']", "revocation = 'never'", "colour = 1"] {
            assert!(toml::from_str::<Grid>(bad).is_err(), "{bad}");
        }
    }
}
