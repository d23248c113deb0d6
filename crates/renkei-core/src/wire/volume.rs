//! What sites say to each other about volumes: who follows one, its log, and changes for it.

use super::message::{EntryFailure, Space, batch};
use crate::error::Error;
use crate::lease::site::{LeaseAsk, LeaseGiven};
use crate::namespace::page::{Page, Reached};
use crate::namespace::placement::{Reason, Why};
use crate::namespace::quota::{Limit, Use};
use crate::namespace::quota_share::{QuotaShare, ShareRequest};
use crate::namespace::source::Fellow;
use crate::namespace::{NodeId, Origin, Record, SequencedChange};
use crate::path::{Place, RelPath, SiteName};
use serde::{Deserialize, Serialize};

/// A volume's number, the same at all sites.
pub type VolumeId = [u8; 16];

/// A log of a volume: another one after each restore of its home.
pub type Incarnation = [u8; 16];

/// Records that one answer brings at most.
pub const MOST_RECORDS: u32 = super::message::BATCH_ENTRIES as u32;

/// Changes in one `Submit` at most.
pub const MOST_CHANGES: usize = super::message::BATCH_ENTRIES;

/// Versions in one `Kept` at most.
pub const MOST_VERSIONS: usize = super::message::BATCH_ENTRIES;

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
        changes: Vec<SequencedChange>,
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
    /// The home, or another site that follows, asks a follower what of that it holds. Answer: `Tally`.
    Held {
        /// The volume.
        volume: VolumeId,
        /// Where in it.
        path: RelPath,
    },
    /// A follower asks the home whether it has these versions of files itself, so that the follower's are not the only
    /// ones. Answer: `Kept`.
    Kept {
        /// The volume.
        volume: VolumeId,
        /// Files, each with the version of its content.
        #[serde(deserialize_with = "batch")]
        versions: Vec<(NodeId, u64)>,
    },
    /// A user asks for something to be done with the volume of a name, or for one to be made. Answer: `Told`.
    Manage {
        /// Its name.
        name: String,
        /// What.
        what: Manage,
    },
    /// A follower that comes late asks for the part of the tree after one. Answer: `Page`.
    Page {
        /// The volume.
        volume: VolumeId,
        /// Where the part before ended; none for the first.
        after: Option<Reached>,
    },
    /// The BLAKE3 of a file as the catalogue has it, without reading the file. Answer: `Digest`.
    Known(Place),
    /// A follower tells the home what it holds and could hold, and asks what it shall. Answer: `Duties`.
    Duties {
        /// The volume.
        volume: VolumeId,
        /// What it tells.
        offer: Offer,
    },
    /// A PoP asks which digests another one noted of these versions of files. Answer: `Digests`.
    Digests {
        /// The volume.
        volume: VolumeId,
        /// Files, each with the version of its content.
        #[serde(deserialize_with = "batch")]
        versions: Vec<(NodeId, u64)>,
    },
    /// A follower asks the home whether its log is the one that was followed. Answer: `Lineage`.
    Lineage {
        /// The volume.
        volume: VolumeId,
        /// The incarnation that the asker followed, if it ever heard of one.
        incarnation: Option<Incarnation>,
        /// The last record that it has.
        after: u64,
        /// BLAKE3 of that record, if it is known.
        mark: Option<[u8; 32]>,
    },
    /// A follower asks the home for its site leases. Answer: `Leases`, as soon as there is something to do, else after a while.
    Leases {
        /// The volume.
        volume: VolumeId,
        /// What it asks.
        ask: LeaseAsk,
        /// How long to wait if there is nothing to do, milliseconds.
        patience_ms: u32,
    },
    /// A follower asks for a write lease. Answer: `WriteLease`.
    AcquireLease {
        /// The volume.
        volume: VolumeId,
    },
    /// A follower without a read lease asks which record has all that was closed anywhere until now. Answer: `CaughtUp`.
    CatchUp {
        /// The volume.
        volume: VolumeId,
    },
}

/// What a user may ask for who makes volumes or manages one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manage {
    /// To be told what is known of it, and how it stands.
    Show,
    /// To make it.
    Create {
        /// The storage that has its plain files.
        storage: String,
        /// The directory, below the storage's root or absolute; the volume's name if it is none.
        path: Option<String>,
        /// Whether the directory is there and becomes the volume.
        in_place: bool,
        /// What is known of it from the beginning, by key, as in `Set`.
        #[serde(deserialize_with = "batch")]
        settings: Vec<(String, String)>,
    },
    /// To change what is known of it, by key.
    Set(#[serde(deserialize_with = "batch")] Vec<(String, String)>),
    /// To let somebody in.
    Grant {
        /// `alice@titech`, `*@titech`, `titech`.
        who: String,
        /// `read`, `write`.
        level: String,
        /// The folder; empty for all of it.
        on: RelPath,
    },
    /// To take grants back.
    Revoke {
        /// As it was granted.
        who: String,
        /// Of this folder alone.
        on: Option<RelPath>,
    },
    /// To compare its catalogue with its plain files now.
    Check,
    /// To forget it; its plain files stay.
    Delete,
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
    /// For each version whether the home has it.
    Kept(#[serde(deserialize_with = "batch")] Vec<bool>),
    /// What is known of a volume, or what was found, in JSON as `renkei volume --json` prints it.
    Told(String),
    /// A part of the tree.
    Page(Box<Page>),
    /// A digest, if it is known.
    Digest(Option<[u8; 32]>),
    /// What a follower shall hold.
    Duties(Duties),
    /// For each version its BLAKE3, if that was noted.
    Digests(#[serde(deserialize_with = "batch")] Vec<Option<[u8; 32]>>),
    /// Which log the home has.
    Lineage {
        /// Its incarnation.
        incarnation: Incarnation,
        /// How the asker's records stand to it.
        descent: Descent,
    },
    /// Site leases, for a term from the moment of the question.
    Leases {
        /// What is given, and what is to be done.
        given: LeaseGiven,
        /// The lost sites: what they closed may be missing.
        #[serde(deserialize_with = "batch")]
        lost: Vec<SiteName>,
    },
    /// A write lease, for a term from the moment of the question.
    WriteLease {
        /// Its epoch.
        epoch: u64,
    },
    /// How far a copy must be.
    CaughtUp {
        /// The record.
        last: u64,
        /// The lost sites: what they closed may be missing.
        #[serde(deserialize_with = "batch")]
        lost: Vec<SiteName>,
    },
}

/// How the records that a follower has stand to the log of its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Descent {
    /// They are of this log.
    Same,
    /// Those up to this record are; later ones are of another log.
    Until(u64),
}

/// What a follower tells its home of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Whether it takes what the home gives it to hold.
    pub accepts: bool,
    /// Bytes for which it has room.
    pub free_bytes: u64,
    /// Folders that it holds by its own will.
    #[serde(deserialize_with = "batch")]
    pub keeps: Vec<RelPath>,
    /// How far it is with what it shall hold.
    #[serde(deserialize_with = "batch")]
    pub held: Vec<Holding>,
    /// What it wants to add under the limits of the volume, if it writes.
    pub claim: Option<ShareRequest>,
}

/// How far a site is with a folder that it shall hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The folder.
    pub folder: RelPath,
    /// The record up to which it looked.
    pub seq: u64,
    /// Files below it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Those of the files that it does not hold in the version of that record.
    pub missing_files: u64,
    /// Bytes of them.
    pub missing_bytes: u64,
    /// Why it does not come further.
    pub trouble: Option<Error>,
}

impl Holding {
    /// Of a folder with nothing in it.
    pub fn nothing(folder: RelPath) -> Self {
        Holding { folder, seq: 0, files: 0, bytes: 0, missing_files: 0, missing_bytes: 0, trouble: None }
    }
}

/// What a follower shall do, as its home has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// Folders whose files it shall hold.
    #[serde(deserialize_with = "batch")]
    pub folders: Vec<RelPath>,
    /// Whether nothing is to be brought for now.
    pub is_paused: bool,
    /// What is in the volume.
    pub used: Use,
    /// How much may be.
    pub limit: Limit,
    /// The room at the home, as far as limits leave it.
    pub space: Space,
    /// What the follower may add, if it asked for it.
    pub allowance: Option<QuotaShare>,
    /// The other sites that follow, which give out what they hold.
    #[serde(deserialize_with = "batch")]
    pub fellows: Vec<Fellow>,
}

/// How a folder of which replicas are asked for is kept, as the home knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The folder, as text; empty for the whole volume.
    pub folder: String,
    /// Replicas that there shall be, the home's among them.
    pub replicas: u32,
    /// Files below it, as far as that is known.
    pub files: u64,
    /// Files that have fewer, at most: sites tell how many they lack, and not which.
    pub short: u64,
    /// Replicas that no site was found for.
    pub unplaced: u32,
    /// The sites that hold it or should.
    #[serde(deserialize_with = "batch")]
    pub sites: Vec<KeptAt>,
}

/// How far a site is with a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAt {
    /// The site.
    pub site: SiteName,
    /// Why it was passed over, if it was.
    pub passed: Option<Why>,
    /// Files that it does not hold, if it has told.
    pub missing_files: Option<u64>,
    /// Bytes of them.
    pub missing_bytes: Option<u64>,
    /// Seconds since it was heard, if it ever was.
    pub heard_s: Option<u64>,
    /// Why it does not come further.
    pub trouble: Option<Error>,
    /// Why it was chosen, if it was.
    pub reason: Option<Reason>,
    /// Bytes a second on the way to it, if that was measured.
    pub rate: Option<u64>,
    /// Bytes for which it has room, if it has told.
    pub free_bytes: Option<u64>,
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
    /// At the home: how what is asked for folders there, above and below is kept.
    #[serde(deserialize_with = "batch")]
    pub kept: Vec<Kept>,
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
