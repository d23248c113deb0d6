//! Messages between sites about volumes: followers, the log, and changes submitted to the home.

use super::types::Space;
use crate::batch::{BATCH_ENTRIES, batch};
use crate::error::Error;
use crate::lease::site::{LeaseAsk, LeaseGiven};
use crate::mover::summary::EntryFailure;
use crate::namespace::page::{Page, Reached};
use crate::namespace::placement::{Reason, Why};
use crate::namespace::quota::{Limit, Use};
use crate::namespace::quota_share::{QuotaShare, ShareRequest};
use crate::namespace::source::Fellow;
use crate::namespace::{NodeId, Origin, Record, SequencedChange};
use crate::path::{Place, RelPath, SiteName};
use serde::{Deserialize, Serialize};

/// A volume's id, the same at all sites.
pub type VolumeId = [u8; 16];

/// Id of a volume's log: a new one after each restore of its home.
pub type Incarnation = [u8; 16];

/// Most records of one answer.
pub const MOST_RECORDS: u32 = BATCH_ENTRIES as u32;

/// Changes in one `Submit` at most.
pub const MOST_CHANGES: usize = BATCH_ENTRIES;

/// Versions in one `Kept` at most.
pub const MOST_VERSIONS: usize = BATCH_ENTRIES;

/// Requests about volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AboutVolume {
    /// The volumes that the asker may see. Answer: `Volumes`.
    List,
    /// A PoP asks for its site to follow a volume whose home is the asked site. Answer: `Followed`.
    Follow(String),
    /// A follower asks for the records after one. Answer: `Records`.
    Log {
        /// The volume.
        volume: VolumeId,
        /// The last record that the asker has.
        after: u64,
        /// Timeout of the long poll if there are none, milliseconds.
        patience_ms: u32,
    },
    /// A follower submits changes, in the order of their numbers; those that the log already has are skipped
    /// (idempotent). Answer: `Taken`; their outcomes are in the log.
    Submit {
        /// The volume.
        volume: VolumeId,
        /// The changes.
        #[serde(deserialize_with = "batch")]
        changes: Vec<SequencedChange>,
    },
    /// The site shall hold replicas of the files at a place and below it. Answer: `Tally`.
    Replicate(Place),
    /// The site shall evict its replicas there. Answer: `Tally` of the evicted ones.
    Evict(Place),
    /// Scrubs the replicas there: each is read and compared with its digest; a wrong one is no longer held. Answer:
    /// `Tally` of the good ones, and the others as failures.
    Verify {
        /// The place.
        place: Place,
        /// Whether wrong ones are replicated again.
        repair: bool,
    },
    /// Asks for the sites that hold the files at a place and below it. Answer: `Whereabouts`.
    Where(Place),
    /// A follower asks the home which other sites hold files at a path and below it. Answer: `Holders`.
    Holders {
        /// The volume.
        volume: VolumeId,
        /// The path in it.
        path: RelPath,
    },
    /// The home, or another follower, asks a follower which files there it holds. Answer: `Tally`.
    Held {
        /// The volume.
        volume: VolumeId,
        /// The path in it.
        path: RelPath,
    },
    /// A follower asks the home, before it evicts, whether it has these versions of files, so that the follower's are
    /// not the last copies. Answer: `Kept`.
    Kept {
        /// The volume.
        volume: VolumeId,
        /// Files, each with the version of its content.
        #[serde(deserialize_with = "batch")]
        versions: Vec<(NodeId, u64)>,
    },
    /// A user asks to manage the volume of a name, or to create one. Answer: `Told`.
    Manage {
        /// Its name.
        name: String,
        /// The request.
        what: Manage,
    },
    /// A follower that bootstraps asks for the next page of a snapshot of the tree. Answer: `Page`.
    Page {
        /// The volume.
        volume: VolumeId,
        /// Cursor: the end of the previous page; `None` for the first.
        after: Option<Reached>,
    },
    /// The BLAKE3 of a file from the catalogue, without reading the file. Answer: `Digest`.
    Known(Place),
    /// A follower reports to the home which files it holds and its free room, and asks for its duties. Answer:
    /// `Duties`.
    Duties {
        /// The volume.
        volume: VolumeId,
        /// The follower's report.
        offer: Offer,
    },
    /// A PoP asks for the digests that another one recorded for these versions of files. Answer: `Digests`.
    Digests {
        /// The volume.
        volume: VolumeId,
        /// Files, each with the version of its content.
        #[serde(deserialize_with = "batch")]
        versions: Vec<(NodeId, u64)>,
    },
    /// A follower asks the home whether its log is still the one that it followed. Answer: `Lineage`.
    Lineage {
        /// The volume.
        volume: VolumeId,
        /// The incarnation that the asker followed, if it knows one.
        incarnation: Option<Incarnation>,
        /// The last record that the asker has.
        after: u64,
        /// BLAKE3 of that record, if it is known.
        mark: Option<[u8; 32]>,
    },
    /// A follower asks the home for its site leases. Answer: `Leases`, at once if there is something to do, otherwise
    /// after the patience.
    Leases {
        /// The volume.
        volume: VolumeId,
        /// The request.
        ask: LeaseAsk,
        /// Timeout of the long poll if there is nothing to do, milliseconds.
        patience_ms: u32,
    },
    /// A follower asks for a write lease. Answer: `WriteLease`.
    AcquireLease {
        /// The volume.
        volume: VolumeId,
    },
    /// A follower without a read lease asks for the record it must reach to see all that was closed anywhere until
    /// now. Answer: `CaughtUp`.
    CatchUp {
        /// The volume.
        volume: VolumeId,
    },
}

/// Requests of a user that creates volumes or manages one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manage {
    /// Show its settings and its status.
    Show,
    /// Create it.
    Create {
        /// The storage that has its plain files.
        storage: String,
        /// The directory, below the storage's root or absolute; `None` for the volume's name.
        path: Option<String>,
        /// Whether the directory is there and becomes the volume.
        in_place: bool,
        /// Its initial settings, by key, as in `Set`.
        #[serde(deserialize_with = "batch")]
        settings: Vec<(String, String)>,
    },
    /// Change its settings, by key.
    Set(#[serde(deserialize_with = "batch")] Vec<(String, String)>),
    /// Grant access to a principal.
    Grant {
        /// The principal or pattern: `alice@titech`, `*@titech`, `titech`.
        who: String,
        /// The level: `read`, `write`.
        level: String,
        /// The folder; empty for the whole volume.
        on: RelPath,
    },
    /// Revoke grants.
    Revoke {
        /// The principal or pattern, as it was granted.
        who: String,
        /// Only of this folder.
        on: Option<RelPath>,
    },
    /// Reconcile its catalogue with its plain files now.
    Check,
    /// Delete the volume; its plain files stay.
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
        /// The origin number of the site's changes.
        origin: Origin,
        /// Whether it may write to the volume.
        writes: bool,
    },
    /// A batch of the log's records.
    Records {
        /// The records, without gaps.
        #[serde(deserialize_with = "batch")]
        records: Vec<Record>,
        /// The last record of the log.
        last: u64,
    },
    /// The changes are in the log.
    Taken,
    /// The files that the request was carried out for.
    Tally(Tally),
    /// The places of files.
    Whereabouts(Whereabouts),
    /// The files that each site holds, or the error of asking it.
    Holders(#[serde(deserialize_with = "batch")] Vec<(SiteName, Result<Tally, Error>)>),
    /// For each version whether the home has it.
    Kept(#[serde(deserialize_with = "batch")] Vec<bool>),
    /// The settings or the findings, in JSON as `renkei volume --json` prints it.
    Told(String),
    /// A page of the tree.
    Page(Box<Page>),
    /// A digest, if it is known.
    Digest(Option<[u8; 32]>),
    /// The duties of a follower.
    Duties(Duties),
    /// For each version its BLAKE3, if recorded.
    Digests(#[serde(deserialize_with = "batch")] Vec<Option<[u8; 32]>>),
    /// The identity of the home's log.
    Lineage {
        /// Its incarnation.
        incarnation: Incarnation,
        /// The relation of the asker's records to it.
        descent: Descent,
    },
    /// Site leases, for a term from the moment of the request.
    Leases {
        /// The leases and the recalls.
        given: LeaseGiven,
        /// The lost sites: changes closed there may be missing.
        #[serde(deserialize_with = "batch")]
        lost: Vec<SiteName>,
    },
    /// A write lease, for a term from the moment of the request.
    WriteLease {
        /// Its epoch.
        epoch: u64,
    },
    /// The position that a copy must reach.
    CaughtUp {
        /// The record.
        last: u64,
        /// The lost sites: changes closed there may be missing.
        #[serde(deserialize_with = "batch")]
        lost: Vec<SiteName>,
    },
}

/// Relation of a follower's records to the log of its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Descent {
    /// They are a prefix of this log.
    Same,
    /// The logs diverge after this record.
    Until(u64),
}

/// A follower's report to its home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Whether it accepts replicas that the home places there.
    pub accepts: bool,
    /// Bytes of free room for replicas.
    pub free_bytes: u64,
    /// Folders that it replicates by its own decision.
    #[serde(deserialize_with = "batch")]
    pub keeps: Vec<RelPath>,
    /// Its progress with the folders of its duties.
    #[serde(deserialize_with = "batch")]
    pub held: Vec<Holding>,
    /// Its request for a share of the volume's quota, if it writes.
    pub claim: Option<ShareRequest>,
}

/// Progress of a site with a folder of its duties.
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
    /// Files that it does not hold in the version of that record.
    pub missing_files: u64,
    /// Bytes of them.
    pub missing_bytes: u64,
    /// The error that holds it up.
    pub trouble: Option<Error>,
}

impl Holding {
    /// The state of an empty folder.
    pub fn nothing(folder: RelPath) -> Self {
        Holding { folder, seq: 0, files: 0, bytes: 0, missing_files: 0, missing_bytes: 0, trouble: None }
    }
}

/// The duties of a follower, as its home decided them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// Folders whose files it shall hold.
    #[serde(deserialize_with = "batch")]
    pub folders: Vec<RelPath>,
    /// Whether replication is paused.
    pub is_paused: bool,
    /// The volume's use.
    pub used: Use,
    /// The volume's quota.
    pub limit: Limit,
    /// The free space at the home, bounded by the limits.
    pub space: Space,
    /// The follower's share of the quota, if it asked for one.
    pub allowance: Option<QuotaShare>,
    /// The peer followers that serve their replicas.
    #[serde(deserialize_with = "batch")]
    pub fellows: Vec<Fellow>,
}

/// Replication state of a folder with a policy, as the home knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The folder, as text; empty for the whole volume.
    pub folder: String,
    /// Replicas wanted, including the home's.
    pub replicas: u32,
    /// Files below it, as far as that is known.
    pub files: u64,
    /// Upper bound of the files that have fewer: sites report how many they lack, not which.
    pub short: u64,
    /// Replicas for which no site was found.
    pub unplaced: u32,
    /// The sites that hold it or should.
    #[serde(deserialize_with = "batch")]
    pub sites: Vec<KeptAt>,
}

/// Progress of a site with a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAt {
    /// The site.
    pub site: SiteName,
    /// The reason why it was skipped, if it was.
    pub passed: Option<Why>,
    /// Files that it lacks, if it has reported.
    pub missing_files: Option<u64>,
    /// Bytes of them.
    pub missing_bytes: Option<u64>,
    /// Seconds since its last report, if there was one.
    pub heard_s: Option<u64>,
    /// The error that holds it up.
    pub trouble: Option<Error>,
    /// The reason why it was chosen, if it was.
    pub reason: Option<Reason>,
    /// Measured bytes per second to it, if known.
    pub rate: Option<u64>,
    /// Bytes of free room, if it has reported.
    pub free_bytes: Option<u64>,
}

/// Counts of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Total number of files that failed.
    pub failed: u64,
    /// The first failures.
    #[serde(deserialize_with = "batch")]
    pub failures: Vec<EntryFailure>,
}

/// The sites that hold the files of a place, as the asked site knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// All of them.
    pub all: Tally,
    /// The home, which has all of them.
    pub home: SiteName,
    /// The asked site.
    pub here: SiteName,
    /// The files that the asked site holds in their present version.
    pub held: Tally,
    /// The files that other sites hold, or the error of asking them.
    #[serde(deserialize_with = "batch")]
    pub others: Vec<(SiteName, Result<Tally, Error>)>,
    /// At the home: replication state of the policies on folders there, above and below.
    #[serde(deserialize_with = "batch")]
    pub kept: Vec<Kept>,
}

/// Status of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: VolumeId,
    /// Its home.
    pub home: SiteName,
    /// The last record of the log that is known here.
    pub seq: u64,
    /// At a follower: the last record that the home reported.
    pub last: u64,
    /// At a follower: own changes in the outbox that the home has not ordered yet.
    pub pending: u64,
    /// At a follower: seconds since the home was last reached, if it ever was.
    pub heard_s: Option<u64>,
    /// At a follower: the error of the last attempt to reach it.
    pub trouble: Option<Error>,
}
