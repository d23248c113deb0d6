//! The status of a volume for people: its configuration, and the state of its catalogue.

use super::grant::{Grant, Grantee};
use super::settings::VolumeSettings;
use super::volume_config::id_text;
use super::{VolumeConfig, VolumeState};
use serde::{Deserialize, Serialize};

/// The status of a volume, for its administrator and, with less in it, for its users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Its home.
    pub home: String,
    /// The storage with its plain files; empty if it has none.
    pub storage: String,
    /// The directory in the storage.
    pub path: String,
    /// The account that owns the files.
    pub account: String,
    /// Whether the files existed before the volume.
    pub in_place: bool,
    /// Interval of scans in seconds.
    pub scan_every_s: u64,
    /// Folders whose files are all held here.
    #[serde(default)]
    pub hold: Vec<String>,
    /// The grants; for users who are no managers only those that name them.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// The managers beside the administrator.
    #[serde(default)]
    pub managers: Vec<Grantee>,
    /// Log records kept at most for followers that do not have them.
    #[serde(default)]
    pub log_records: u64,
    /// Days for which they are kept.
    #[serde(default)]
    pub log_days: u64,
    /// Its settings.
    #[serde(default)]
    pub care: VolumeSettings,
    /// Its runtime status; none if no PoP runs.
    pub standing: Option<VolumeState>,
}

impl VolumeStatus {
    /// The complete status.
    pub fn new(name: &str, facts: &VolumeConfig, standing: Option<VolumeState>) -> Self {
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

    /// The status for users of the volume who are no managers.
    pub fn for_user(mut self, names: impl Fn(&Grantee) -> bool) -> Self {
        self.grants.retain(|grant| names(&grant.to));
        // The other fields name files and owners.
        self.standing = self.standing.map(|standing| {
            let VolumeState { records, is_scanning, trouble, followed, .. } = standing;
            VolumeState { records, is_scanning, trouble, followed, ..VolumeState::default() }
        });
        self
    }
}
