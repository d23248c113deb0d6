//! The state of the scrub: the volumes that are being read, and the checkpoint of each pass.

use renkei_catalogue::{TreeNote, VolumeId, VolumeTree};
use renkei_core::error::Error;
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use renkei_volume::Verified;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The note with the checkpoint in the tree.
pub(crate) const NOTE: TreeNote<ScrubRun> = TreeNote::of("verified", &[decode]);
/// Duration of a pass if no rate is set.
pub(super) const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// Pause between two passes at a configured rate.
const PAUSE: Duration = Duration::from_secs(60);

/// Running passes of all volumes, and when the next may begin.
#[derive(Default)]
pub(crate) struct Scrubber {
    running: Mutex<HashMap<VolumeId, Option<Instant>>>,
}

impl Scrubber {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Option<Instant>>> {
        self.running.lock().expect("no thread panics while it holds the lock")
    }
}

/// The checkpoint of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScrubRun {
    /// The last file that was read, during a pass.
    pub(crate) after: Option<RelPath>,
    pub(crate) is_under_way: bool,
    pub(crate) began_unix: u64,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// The first corrupt files of this pass, and their total number.
    pub(crate) wrong: Vec<(RelPath, Error)>,
    pub(crate) wrong_files: u64,
    /// The previous pass: its end, good files and bytes, and corrupt files.
    pub(crate) last: Option<(u64, u64, u64, u64)>,
    /// The rate configured when it began.
    pub(crate) rate: Option<u64>,
}

pub(super) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl ScrubRun {
    pub(super) fn load(tree: &VolumeTree) -> Result<Self, Error> {
        Ok(NOTE.read(tree)?.unwrap_or_default())
    }

    pub(super) fn save(&self, tree: &VolumeTree) -> Result<(), Error> {
        NOTE.write(tree, self)
    }

    /// Whether a pass should begin or continue.
    pub(super) fn is_due(&self, rate: Option<u64>) -> bool {
        if self.rate != rate {
            return true;
        }
        let pause = if rate.is_some() { PAUSE } else { MONTH };
        let begun = if rate.is_some() { self.last.map_or(0, |(ended, ..)| ended) } else { self.began_unix };
        self.is_under_way || self.last.is_none() || unix_now() >= begun.saturating_add(pause.as_secs())
    }

    pub(super) fn shown(&self) -> Verified {
        let (ended_unix, files, bytes, wrong) = self.last.unwrap_or_default();
        let listed = self.wrong.iter().map(|(path, error)| (path.to_string(), error.clone()));
        Verified {
            ended_unix: self.last.map(|_| ended_unix),
            files,
            bytes,
            wrong,
            is_under_way: self.is_under_way,
            files_now: self.files,
            bytes_now: self.bytes,
            wrong_now: self.wrong_files,
            examples: listed.collect(),
        }
    }
}
