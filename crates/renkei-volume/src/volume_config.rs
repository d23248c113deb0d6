//! The configuration of a volume at a PoP: one text file for each, `volumes/NAME.toml`.
//!
//! The administrator may read it and, with care, edit it; `renkei volume` writes it as a whole.

use super::grant::{Grant, Grantee};
use super::settings::VolumeSettings;
use renkei_catalogue::VolumeId;
use renkei_config::home::{Home, file_error, make_dir, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, SiteName, is_label};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Default interval of scans in seconds.
pub const SCAN_EVERY_S: u64 = 600;

/// Default of the log records that a home keeps at most for followers that do not have them.
pub const LOG_RECORDS: u64 = 1_000_000;

/// Default of the days for which it keeps them.
pub const LOG_DAYS: u64 = 30;

/// Largest file that is read: room for some ten thousand grants.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Mode of the files, which hold no secret.
const MODE: u32 = 0o644;

/// The configuration of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeConfig {
    /// The id of its tree.
    #[serde(serialize_with = "write_id", deserialize_with = "read_id")]
    pub id: VolumeId,
    /// The home: the site that orders its changes.
    pub home: SiteName,
    /// The storage with its plain files.
    pub storage: String,
    /// The directory in the storage, as text; empty for all of it.
    #[serde(default)]
    pub path: String,
    /// The account that owns the files, and that works for users with a grant.
    pub account: String,
    /// Whether the files existed before the volume.
    #[serde(default)]
    pub in_place: bool,
    /// Interval in seconds of scans for changes past the PoP; 0 for scans on request only.
    #[serde(default = "scan_every")]
    pub scan_every_s: u64,
    /// At a follower: the folders whose files are all held here; an empty one is the whole volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hold: Vec<String>,
    /// Grants beside the rights of local accounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grant: Vec<Grant>,
    /// The managers beside the administrator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managers: Vec<Grantee>,
    /// Log records kept at most for followers that do not have them yet.
    #[serde(default = "log_records")]
    pub log_records: u64,
    /// Days for which they are kept.
    #[serde(default = "log_days")]
    pub log_days: u64,
    /// Its settings.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub care: VolumeSettings,
}

fn is_usual(care: &VolumeSettings) -> bool {
    *care == VolumeSettings::default()
}

fn log_records() -> u64 {
    LOG_RECORDS
}

fn log_days() -> u64 {
    LOG_DAYS
}

fn scan_every() -> u64 {
    SCAN_EVERY_S
}

fn write_id<S: Serializer>(id: &VolumeId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&id_text(id))
}

fn read_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VolumeId, D::Error> {
    parse_id(&String::deserialize(deserializer)?).map_err(|error| serde::de::Error::custom(error.cause))
}

/// Parses an id that [`id_text`] wrote.
///
/// # Errors
/// `UsageInvalid`.
pub fn parse_id(text: &str) -> Result<VolumeId, Error> {
    let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32);
    let bad = || Error::new(Code::UsageInvalid, "read id", text, "an id is 32 hexadecimal digits");
    number.map(u128::to_be_bytes).ok_or_else(bad)
}

/// A volume's id as text.
pub fn id_text(id: &VolumeId) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

impl VolumeConfig {
    /// A configuration with default settings.
    pub fn new(id: VolumeId, home: SiteName, storage: &str, path: String, account: String) -> Self {
        VolumeConfig {
            id,
            home,
            storage: storage.into(),
            path,
            account,
            in_place: false,
            scan_every_s: SCAN_EVERY_S,
            hold: Vec::new(),
            grant: Vec::new(),
            managers: Vec::new(),
            log_records: LOG_RECORDS,
            log_days: LOG_DAYS,
            care: VolumeSettings::default(),
        }
    }

    /// The directory of the volume in its storage.
    ///
    /// # Errors
    /// `BadPath`.
    pub fn place(&self) -> Result<RelPath, Error> {
        RelPath::parse(self.path.as_bytes())
    }

    fn parse(text: &str, path: &std::path::Path) -> Result<Self, Error> {
        let invalid = |cause: String| Error::new(Code::ConfigInvalid, "read volume", path.display(), cause);
        let facts: VolumeConfig = toml::from_str(text).map_err(|error| invalid(error.message().into()))?;
        facts.place().map_err(|error| invalid(error.to_string()))?;
        let folders = facts.hold.iter().try_for_each(|folder| RelPath::parse(folder.as_bytes()).map(drop));
        folders.and_then(|()| facts.care.check()).map_err(|error| invalid(error.to_string()))?;
        Ok(facts)
    }

    /// Writes the file of the volume `name`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn store(&self, home: &Home, name: &str) -> Result<(), Error> {
        let text =
            toml::to_string(self).map_err(|error| Error::new(Code::Internal, "write volume", name, error))?;
        make_dir(&home.volumes_dir(), 0o755)?;
        write_file(&file(home, name)?, text.as_bytes(), MODE)
    }
}

fn file(home: &Home, name: &str) -> Result<PathBuf, Error> {
    if !is_label(name) {
        let cause = "1 to 63 of a-z, 0-9 and -, starting with a letter";
        return Err(Error::new(Code::UsageInvalid, "name volume", name, cause));
    }
    Ok(home.volumes_dir().join(format!("{name}.toml")))
}

/// The configurations of all volumes, by name.
///
/// # Errors
/// `ConfigInvalid`, and those of the file system.
pub fn load(home: &Home) -> Result<BTreeMap<String, VolumeConfig>, Error> {
    let folder = home.volumes_dir();
    let listed = match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        listed => listed.map_err(|error| file_error("list", &folder, &error))?,
    };
    let mut found = BTreeMap::new();
    for item in listed {
        let item = item.map_err(|error| file_error("list", &folder, &error))?;
        let name = item.file_name();
        let name = name.to_str().and_then(|name| name.strip_suffix(".toml")).filter(|name| is_label(name));
        let Some(name) = name else { continue };
        if let Some(text) = read_text(&item.path(), MAX_FILE_BYTES)? {
            found.insert(name.to_owned(), VolumeConfig::parse(&text, &item.path())?);
        }
    }
    Ok(found)
}

/// The configuration of one volume.
///
/// # Errors
/// `VolumeUnknown`.
pub fn find(home: &Home, name: &str) -> Result<VolumeConfig, Error> {
    load(home)?.remove(name).ok_or_else(|| unknown(name))
}

/// The error for an unknown volume.
pub fn unknown(name: &str) -> Error {
    Error::new(Code::VolumeUnknown, "look up volume", name, "")
}

/// Removes the file of a volume.
///
/// # Errors
/// `VolumeUnknown`, and those of the file system.
pub fn remove(home: &Home, name: &str) -> Result<(), Error> {
    let path = file(home, name)?;
    std::fs::remove_file(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => unknown(name),
        _ => file_error("remove", &path, &error),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    /// Runs work with the rights of the test's process.
    pub(crate) struct Here;

    impl crate::Hands for Here {
        fn uid(&self) -> Result<u32, Error> {
            Ok(rustix::process::geteuid().as_raw())
        }

        fn run(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
            work();
            Ok(())
        }
    }

    pub(crate) fn facts() -> VolumeConfig {
        let kek = SiteName::parse("kek").unwrap();
        let facts = VolumeConfig::new([7; 16], kek, "pool", "genome".into(), "alice".into());
        VolumeConfig { scan_every_s: 60, ..facts }
    }

    #[test]
    fn facts_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        assert_eq!(load(&home).unwrap(), BTreeMap::new());
        let mut facts = facts();
        facts.grant.push(Grant::parse("*@titech", "read", "2026/raw").unwrap());
        facts.store(&home, "genome").unwrap();
        std::fs::write(home.volumes_dir().join("notes.txt"), "not one").unwrap();
        assert_eq!(load(&home).unwrap(), BTreeMap::from([("genome".to_owned(), facts.clone())]));
        assert_eq!(find(&home, "genome").unwrap(), facts);
        remove(&home, "genome").unwrap();
        assert_eq!(remove(&home, "genome").unwrap_err().code, Code::VolumeUnknown);
        assert_eq!(find(&home, "genome").unwrap_err().code, Code::VolumeUnknown);
        assert_eq!(facts.store(&home, "../x").unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let good = toml::to_string(&facts()).unwrap();
        let read = |text: &str| VolumeConfig::parse(text, Path::new("x.toml")).map_err(|error| error.code);
        assert!(read(&good).is_ok());
        for (from, to) in [("genome", "../etc"), ("0707", "07"), ("kek", "KEK"), ("scan_every_s", "scan")] {
            assert_eq!(read(&good.replacen(from, to, 1)), Err(Code::ConfigInvalid), "{to}");
        }
    }
}
