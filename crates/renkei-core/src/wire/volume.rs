//! What sites say to each other about volumes: who follows one, its log, and changes for it.

use super::message::{EntryFailure, batch};
use crate::error::Error;
use crate::namespace::{Numbered, Origin, Record};
use crate::path::{Place, RelPath, SiteName};
use serde::{Deserialize, Serialize};

/// A volume's number, the same at all sites.
pub type VolumeId = [u8; 16];

/// Records that one answer brings at most.
pub const MOST_RECORDS: u32 = super::message::BATCH_ENTRIES as u32;

/// What may be asked about volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AboutVolume {
    /// Those that the asker may see. Answer: `Volumes`.
    List,
    /// A PoP asks for its site to follow a volume, whose home the asked site is. Answer: `Followed`.
    Follow(String),
    /// A follower asks for the records after one. Answer: `Records`.
    Log {
        /// The volume.
        volume: VolumeId,
        /// The last record that the asker has.
        after: u64,
        /// How long to wait if there are none, milliseconds.
        patience_ms: u32,
    },
    /// A follower hands in changes, in the order of their numbers; those that the log has already are passed over.
    /// Answer: `Taken`; what became of them is in the log.
    Submit {
        /// The volume.
        volume: VolumeId,
        /// The changes.
        #[serde(deserialize_with = "batch")]
        changes: Vec<Numbered>,
    },
    /// The site shall hold replicas of the files at a place and below it. Answer: `Tally`.
    Replicate(Place),
    /// The site shall hold no replicas there any more. Answer: `Tally` of those that went.
    Evict(Place),
    /// The replicas there are read and compared; a wrong one is not held any more. Answer: `Tally` of the good ones, and
    /// the others as failures.
    Verify {
        /// Where.
        place: Place,
        /// Whether those that were wrong are replicated again.
        repair: bool,
    },
    /// Where the files at a place and below it are. Answer: `Whereabouts`.
    Where(Place),
    /// A follower asks the home which other sites hold files at a path and below it. Answer: `Holders`.
    Holders {
        /// The volume.
        volume: VolumeId,
        /// Where in it.
        path: RelPath,
    },
    /// The home asks a follower what of that it holds. Answer: `Tally`.
    Held {
        /// The volume.
        volume: VolumeId,
        /// Where in it.
        path: RelPath,
    },
}

/// Answers to [`AboutVolume`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeReply {
    /// Volumes, by name.
    Volumes(#[serde(deserialize_with = "batch")] Vec<VolumeStatus>),
    /// The site follows.
    Followed {
        /// The volume.
        volume: VolumeId,
        /// The number of the site's changes in it.
        origin: Origin,
        /// Whether it may change the volume.
        writes: bool,
    },
    /// A part of the log.
    Records {
        /// The records, without gaps.
        #[serde(deserialize_with = "batch")]
        records: Vec<Record>,
        /// The last record of the log.
        last: u64,
    },
    /// The changes are in the log.
    Taken,
    /// What was done.
    Tally(Tally),
    /// Where files are.
    Whereabouts(Whereabouts),
    /// What each site holds, or why that is not known.
    Holders(#[serde(deserialize_with = "batch")] Vec<(SiteName, Result<Tally, Error>)>),
}

/// Replicas in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that it was not done for, in all.
    pub failed: u64,
    /// The first of them.
    #[serde(deserialize_with = "batch")]
    pub failures: Vec<EntryFailure>,
}

/// Where the files of a place are, as the asked site knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// All of them.
    pub all: Tally,
    /// The home, which has all.
    pub home: SiteName,
    /// The asked site.
    pub here: SiteName,
    /// Those that it holds in the version of now.
    pub held: Tally,
    /// What other sites hold, or why that is not known.
    #[serde(deserialize_with = "batch")]
    pub others: Vec<(SiteName, Result<Tally, Error>)>,
}

/// A volume as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: VolumeId,
    /// Its home.
    pub home: SiteName,
    /// The last record that is known here.
    pub seq: u64,
    /// At a follower: the last one that the home told of.
    pub last: u64,
    /// At a follower: own changes that the home does not have yet.
    pub pending: u64,
    /// At a follower: seconds since the home was heard, if it ever was.
    pub heard_s: Option<u64>,
    /// At a follower: why it is not heard.
    pub trouble: Option<Error>,
}
