//! The status of a volume for people: its configuration, and how its catalogue stands to its files.

use super::grant::{Grant, Grantee};
use super::settings::VolumeSettings;
use super::volume_config::id_text;
use super::{Standing, VolumeConfig};
use serde::{Deserialize, Serialize};

/// A volume as it is shown, to its administrator and, with less in it, to those who may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: String,
    /// Its home.
    pub home: String,
    /// The storage that has its plain files; empty for none.
    pub storage: String,
    /// Where in it.
    pub path: String,
    /// Whose it is.
    pub account: String,
    /// Whether the files were there before.
    pub in_place: bool,
    /// Seconds between two scans.
    pub scan_every_s: u64,
    /// Folders whose files are all held.
    #[serde(default)]
    pub hold: Vec<String>,
    /// Who may use it; those who do not manage it see what is granted to themselves.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Who manages it, beside the administrator.
    #[serde(default)]
    pub managers: Vec<Grantee>,
    /// Records that are kept at most for those who follow and do not have them.
    #[serde(default)]
    pub log_records: u64,
    /// Days for which they are kept.
    #[serde(default)]
    pub log_days: u64,
    /// How it is kept.
    #[serde(default)]
    pub care: VolumeSettings,
    /// None where no PoP runs.
    pub standing: Option<Standing>,
}

impl VolumeStatus {
    /// All that is known.
    pub fn new(name: &str, facts: &VolumeConfig, standing: Option<Standing>) -> Self {
        let facts = facts.clone();
        VolumeStatus {
            name: name.into(),
            id: id_text(&facts.id),
            home: facts.home.to_string(),
            storage: facts.storage,
            path: facts.path,
            account: facts.account,
            in_place: facts.in_place,
            scan_every_s: facts.scan_every_s,
            hold: facts.hold,
            grants: facts.grant,
            managers: facts.managers,
            log_records: facts.log_records,
            log_days: facts.log_days,
            care: facts.care,
            standing,
        }
    }

    /// What somebody sees who uses the volume and does not manage it.
    pub fn for_user(mut self, names: impl Fn(&Grantee) -> bool) -> Self {
        self.grants.retain(|grant| names(&grant.to));
        // The rest names files and owners.
        self.standing = self.standing.map(|standing| {
            let Standing { records, is_scanning, trouble, followed, .. } = standing;
            Standing { records, is_scanning, trouble, followed, ..Standing::default() }
        });
        self
    }
}
