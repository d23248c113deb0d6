//! Control messages: handshake, requests and replies, and the messages of one transfer.

use super::buffer::{BufferStatus, Room};
use super::copy::{CopySender, OpenCopy};
use super::data::Ticket;
use super::file::{Changed, OpenFiles};
use super::links::{AboutLink, LinkReply};
use super::on_behalf::{FilesRequest, OnBehalf};
use super::queue::{Listed, Queued, Story, Submission};
use super::s3_key::{AboutS3Keys, S3KeysReply};
pub use super::status::{AgentStatus, LineStatus, RelayedStatus, Status, TransferStatus};
use super::unfinished::{AboutUnfinished, UnfinishedReply};
use super::violation;
use super::volume::{AboutVolume, VolumeReply};
use crate::batch::batch;
use crate::entry::Entry;
use crate::error::Error;
use crate::ids::EntryId;
use crate::mover::filter::Filter;
use crate::mover::layout::CopyLayout;
use crate::path::{Place, RelPath, SiteName};
use crate::queue::Change;
use crate::route::Way;
use crate::wire::wire3::OpenFound;
use crate::wire::wire3::SubmissionFound;
use serde::{Deserialize, Serialize};

pub use super::types::{Algorithm, Class, Space};
pub use crate::batch::BATCH_ENTRIES;
pub use crate::ids::TransferId;
pub use crate::mover::layout::DestinationKind;
pub use crate::mover::offer::{Existing, IdRange, OfferItem, ReceiveOptions, SlotRange, Verdict};
pub use crate::mover::summary::{EntryFailure, MAX_LISTED_BYTES, MAX_LISTED_FAILURES, Progress, Summary};

/// Every message of a control stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// First message of the side that dialled.
    Hello(Hello),
    /// First message of the side that was dialled.
    Welcome(Welcome),
    /// A request; several may be in flight.
    Request {
        /// Request id chosen by the asker, echoed in the reply.
        id: u64,
        /// The request.
        request: Request,
    },
    /// A reply; a listing is replied to in several parts.
    Reply {
        /// The id of the request.
        id: u64,
        /// The result.
        reply: Result<Reply, Error>,
    },
    /// Sender to receiver: files that the receiver may already have.
    Offer(#[serde(deserialize_with = "batch")] Vec<OfferItem>),
    /// Receiver to sender: one verdict for each offered item, with its number, in the order of the offers.
    Verdicts(#[serde(deserialize_with = "batch")] Vec<(EntryId, Verdict)>),
    /// Receiver to sender: these entries are durable under their final names.
    Acked(Vec<IdRange>),
    /// Either side: this entry failed; the transfer continues.
    Failed(EntryFailure),
    /// Receiver to sender: these names were removed (in a dry run: would be).
    Removed(#[serde(deserialize_with = "batch")] Vec<RelPath>),
    /// Sender to client, in a dry run: these names would be sent.
    WouldSend(#[serde(deserialize_with = "batch")] Vec<RelPath>),
    /// Sender to receiver: everything was sent; the result of the walk of the source.
    SendDone(SendDone),
    /// Receiver to sender: everything is durable or reported.
    ReceiveDone(ReceiveDone),
    /// A PoP that moves for a client: the progress.
    Progress(Progress),
    /// A PoP that moved for a client: the result.
    Finished(Result<Summary, Error>),
    /// Either side: the transfer is aborted with this error.
    Abort(Error),
    /// Keep-alive request.
    Ping(u64),
    /// Keep-alive reply.
    Pong(u64),
    /// First message of an invited side that knows only the digest of the site's authority: asks for the site card.
    AskCard,
    /// Reply to `AskCard`: the text of the own site card.
    OwnCard(String),
    /// The invited side proves its invitation and sends the text of its own card.
    Introduce {
        /// The invitation's secret.
        secret: [u8; 16],
        /// The site card.
        card: String,
    },
    /// The site of that card is trusted from now on.
    Introduced,
    /// A PoP that moves for a client: the kind of the destination.
    Found(DestinationKind),
    /// Over a line: the called side shall dial this PoP's port and open a circuit with this ticket.
    Call(Ticket),
    /// A PoP that moves for a client: entries that failed since the last such message. The failures of the summary
    /// are among them.
    Failures(#[serde(deserialize_with = "batch")] Vec<EntryFailure>),
    /// File session, from the client: renews the lease term; the number of the request.
    Renew(u64),
    /// File session, from the server: the term, which starts when the client asked.
    Renewed {
        /// The number of the `Renew` answered.
        number: u64,
        /// The round of the leases: a different one than before invalidates everything held from before.
        round: u64,
        /// Length of the term; 0 where there are no leases.
        term_ms: u32,
        /// The round of the locks: a different one than before says that all locks are lost.
        locks: u64,
    },
    /// File session, from the server: a callback; the client invalidates this and acknowledges with `Settled`.
    Changed {
        /// The number of the callback.
        number: u64,
        /// The changes.
        what: Changed,
    },
    /// File session, from the client: everything up to that callback is invalidated.
    Settled(u64),
    /// The filter of the next request. It is a message of its own, so that requests without a filter keep their
    /// encoding.
    Filter(Filter),
    /// The next request is a push whose asker subscribes to the names of the files that arrive.
    TellNames,
    /// A PoP that moves for a client: files that arrived since the last such message, if the client asked for names.
    Arrived(#[serde(deserialize_with = "batch")] Vec<RelPath>),
    /// A PoP that moves for a client, since wire 4: what becomes of the sources, in answer to `PushCopy`.
    Layout(CopyLayout),
}

/// The dialling side's half of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest and newest version spoken.
    pub versions: (u16, u16),
    /// Program and version, for logs.
    pub software: String,
    /// The dialling side's clock, milliseconds since 1970.
    pub now_unix_ms: u64,
}

/// The dialled side's half of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The negotiated version.
    pub version: u16,
    /// Program and version, for logs.
    pub software: String,
    /// The dialled site.
    pub site: SiteName,
    /// The principal that the site authenticated the dialling side as.
    pub principal: String,
    /// The dialled side's clock, milliseconds since 1970.
    pub now_unix_ms: u64,
    /// The site's newest revocation list, DER; empty if it revoked nothing.
    #[serde(with = "crate::path::path_bytes")]
    pub crl: Vec<u8>,
}

/// Requests to a PoP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The asker's own identity at the PoP, and the storages it may use.
    Whoami,
    /// One entry's metadata; `None` asks for the root, the list of storages.
    Stat(Option<Place>),
    /// Metadata of the directory a place resolves to, following links inside the storage.
    StatDir(Option<Place>),
    /// A directory's entries, in parts; `None` lists the storages.
    List(Option<Place>),
    /// Make a directory; `parents` makes missing ones and accepts an existing one.
    Mkdir {
        /// The directory.
        place: Place,
        /// As `mkdir -p`.
        parents: bool,
    },
    /// Remove a file or, with `recursive`, a tree.
    Remove {
        /// The file or directory.
        place: Place,
        /// Whether a directory is removed with its contents.
        recursive: bool,
    },
    /// Rename within a storage.
    Rename {
        /// The old name.
        from: Place,
        /// The new name.
        to: Place,
    },
    /// Space used by a tree.
    Usage(Place),
    /// Space of the file system below a place.
    Space(Place),
    /// Digest of a file's content, computed by reading the file.
    Checksum {
        /// The file.
        place: Place,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The status of the PoP.
    Status,
    /// Opens a transfer in which the PoP receives and the asker sends.
    OpenReceive(OpenReceive),
    /// Opens a transfer in which the PoP sends and the asker receives.
    OpenSend(OpenSend),
    /// Lets another site's PoP send to the asked one on the asker's behalf.
    Grant {
        /// The transfer that PoP may open.
        open: OpenReceive,
        /// The only site that may use the grant.
        peer: SiteName,
    },
    /// The PoP shall send to another site's PoP, with a grant from that one.
    Push {
        /// The sources.
        send: OpenSend,
        /// The receiving site.
        to: SiteName,
        /// The grant.
        grant: Ticket,
    },
    /// A host redeems a grant: as `OpenReceive`, with the granted transfer.
    Redeem(Ticket),
    /// A user of the PoP's own site asks for the card of a site that the PoP trusts.
    Card(SiteName),
    /// Of wire 3, replaced by `OpenCopy`: as `OpenReceive`, for a destination whose kind the asker does not know. The
    /// PoP looks at it, answers `Found`, and opens the transfer chosen for that kind, if there is one.
    OpenFound(OpenFound),
    /// Of wire 3, replaced by `PushCopy`: the PoP shall send to another site's PoP, which it asks with `ForUser` on
    /// behalf of the asker, a user of its own site.
    PushFound {
        /// The sources; their target names are in `open`.
        send: OpenSend,
        /// The receiving site.
        to: SiteName,
        /// The transfer that site shall open.
        open: OpenFound,
    },
    /// Of wire 3, replaced by `OpenCopy`: a host asks on behalf of a user of its own site, as `OpenFound` from that user.
    ForUser {
        /// The user's certificate chain, leaf first, DER.
        #[serde(deserialize_with = "batch")]
        chain: Vec<Vec<u8>>,
        /// The user's request.
        open: OpenFound,
    },
    /// Of wire 3, replaced by `SubmitCopies`.
    Submit(#[serde(deserialize_with = "batch")] Vec<SubmissionFound>),
    /// A page of the asker's queued transfers.
    Transfers(Listed),
    /// The details of one of them, by a prefix of its id.
    Transfer(String),
    /// Change one of them.
    Change {
        /// The transfer.
        id: TransferId,
        /// The change.
        change: Change,
    },
    /// Give one of them a fresh credential.
    Renew(TransferId),
    /// A PoP that cannot be dialled keeps this session open as its line: the asked PoP sends it `Call` over it.
    Line,
    /// Relay circuits to another site. The session stays open for it; a circuit that fails later is reported by one
    /// more reply with an error.
    Through {
        /// The site they lead to.
        site: SiteName,
        /// The seed that the circuits' tickets are derived from ([`super::circuit::ticket`]).
        seed: Ticket,
        /// Maximum number of circuits.
        count: u16,
        /// Number of further PoPs that the circuits may pass through.
        further: u8,
    },
    /// A one-time link to the PoP's web page.
    Console,
    /// Reserves room in the buffer for a transfer to be submitted later; repeated as long as it waits.
    Reserve {
        /// The transfer.
        transfer: TransferId,
        /// Bytes of content.
        bytes: u64,
        /// Whether it waits if there is no room.
        waits: bool,
    },
    /// The contents of the buffer.
    Buffer,
    /// Relay circuits to the agent of one of the PoP's own storages, as `Through` does to a site.
    ToAgent {
        /// The storage.
        storage: String,
        /// As in `Through`.
        seed: Ticket,
        /// As in `Through`.
        count: u16,
    },
    /// A user, or the agent itself before its certificate expires, asks for the certificate of a storage's agent.
    Enlist {
        /// The storage.
        storage: String,
        /// Certificate request, PEM.
        request: String,
    },
    /// The terms of the agent of a storage.
    Terms(String),
    /// One of the texts that the terms name, from an offset on.
    Term {
        /// The agent's storage.
        storage: String,
        /// The text's name.
        name: String,
        /// The offset, in bytes.
        offset: u64,
    },
    /// A page of the files that failed of one of the asker's queued transfers.
    Failures {
        /// The transfer.
        id: TransferId,
        /// Cursor: continue after the failure of this number; 0 for the first page.
        after: u64,
    },
    /// A PoP sends its site's newest revocation list, DER.
    Revocations(#[serde(with = "crate::path::path_bytes")] Vec<u8>),
    /// About volumes.
    Volume(AboutVolume),
    /// Operations on single files below a place, on data streams, for as long as the session is kept.
    OpenFiles(OpenFiles),
    /// A mount with a credential of its own renews it: certificate request, PEM. The answer is `Enlisted`.
    RenewMount(String),
    /// A PoP sends the newest card of its site to one that trusts it.
    TakeCard(String),
    /// About unfinished copies.
    Unfinished(AboutUnfinished),
    /// The ways from the asked PoP to a site, each probed now.
    Ways(SiteName),
    /// Since wire 4: opens a copy whose layout the asked PoP, its destination, resolves. It answers `Layout`, and then
    /// as the sender of the copy needs it.
    OpenCopy {
        /// The copy.
        copy: OpenCopy,
        /// The side that sends it.
        by: CopySender,
    },
    /// Since wire 4: the PoP shall send to another site's PoP, which it asks with `OpenCopy` on behalf of the asker, a
    /// user of its own site.
    PushCopy {
        /// The sources; each target is its name in a destination directory.
        send: OpenSend,
        /// The receiving site.
        to: SiteName,
        /// The copy that site shall open.
        copy: OpenCopy,
    },
    /// Since wire 4: the checksum of a file that was computed when its content came, without reading the file. Answer:
    /// `Checksum`.
    KnownChecksum {
        /// The file.
        place: Place,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// Since wire 4: queue these transfers; idempotent for each of them. Answer: `Submitted`.
    SubmitCopies(#[serde(deserialize_with = "batch")] Vec<Submission>),
    /// Since wire 4: a user asks for a macaroon. Answer: `Token`.
    IssueToken {
        /// Its caveats.
        #[serde(deserialize_with = "batch")]
        caveats: Vec<String>,
        /// Its validity, in seconds.
        seconds: u32,
    },
    /// Since wire 4: a PoP asks for files on behalf of a user. The answer is that of the request.
    FilesFor {
        /// The user.
        user: OnBehalf,
        /// What the user wants.
        request: FilesRequest,
    },
    /// Since wire 4: about links. Answer: `Link`.
    Link(AboutLink),
    /// Since wire 4: about the S3 keys of the user. Answer: `S3Keys`.
    S3Keys(AboutS3Keys),
}

impl Request {
    /// The storages of the asked site that the request names, each once; empty if it is about the site.
    pub fn storages(&self) -> Vec<&str> {
        let place = match self {
            Self::Stat(Some(place)) | Self::StatDir(Some(place)) | Self::List(Some(place)) => place,
            Self::Usage(place) | Self::Space(place) | Self::Checksum { place, .. } => place,
            Self::KnownChecksum { place, .. } => place,
            Self::Mkdir { place, .. } | Self::Remove { place, .. } | Self::Rename { from: place, .. } => {
                place
            }
            Self::OpenReceive(open) | Self::Grant { open, .. } => &open.to,
            Self::OpenFiles(open) => &open.place,
            Self::FilesFor { request, .. } => request.place(),
            Self::OpenCopy { copy, .. } => &copy.to,
            Self::OpenSend(send) | Self::Push { send, .. } | Self::PushCopy { send, .. } => {
                return send.storages();
            }
            Self::Unfinished(about) => return about.storage.as_deref().into_iter().collect(),
            _ => return Vec::new(),
        };
        vec![place.storage.as_str()]
    }

    /// Whether an agent may have to answer it: it names a storage, or redeems a grant that an agent may have issued.
    pub fn may_be_for_an_agent(&self) -> bool {
        matches!(self, Request::Redeem(_)) || !self.storages().is_empty()
    }
}

/// Opens a transfer in which the PoP receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenReceive {
    /// Identity for logs.
    pub transfer: TransferId,
    /// Key of the job: repeating the same command gives the same key, so that its journal is found.
    pub job: u64,
    /// The path that the transfer's root becomes.
    pub to: Place,
    /// Options of the receiver.
    pub options: ReceiveOptions,
    /// Shown in the status; the sender obeys it.
    pub class: Class,
    /// Maximum number of streams the asker wants.
    pub max_streams: u16,
    /// Rules of drop folders (`site/rule`) through which the files came, oldest first; empty for all other transfers.
    #[serde(deserialize_with = "batch")]
    pub rules: Vec<String>,
}

/// Opens a transfer in which the PoP sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSend {
    /// Identity for logs.
    pub transfer: TransferId,
    /// The sources, at most [`super::copy::MAX_SOURCES`].
    pub sources: Vec<Source>,
    /// Descend into directories.
    pub recursive: bool,
    /// Whether every file is offered before it is sent.
    pub offers: bool,
    /// Whether it is offered with its digest.
    pub digests: bool,
    /// Dry run: only report the names.
    pub dry_run: bool,
    /// Rate limit in bytes per second, over all streams.
    pub limit: Option<u64>,
    /// The share of the path it may take.
    pub class: Class,
    /// Maximum number of streams the asker wants.
    pub max_streams: u16,
    /// Whether the transfer continues after an entry fails.
    pub on_error: OnError,
    /// The asker's base, if the asker receives.
    pub onto: Option<Onto>,
    /// The filter on the sources; travels before the request ([`Control::Filter`]).
    #[serde(skip)]
    pub filter: Filter,
    /// Whether the names of files that arrived are reported; travels before the request ([`Control::TellNames`]).
    #[serde(skip)]
    pub tell_names: bool,
}

/// Handling of the other entries after one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The other entries are copied, and the failures are listed.
    #[default]
    Skip,
    /// The transfer ends with that failure.
    Stop,
}

/// Description of a receiver's base, by which a sender on the same machine detects a copy of a tree onto itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Onto {
    /// The base and the directories above it, as far as they were looked at; each as a digest keyed with a secret of
    /// the machine's present boot.
    pub lineage: Vec<[u8; 16]>,
    /// Whether entries that the source lacks are removed there.
    pub removes: bool,
}

impl OpenSend {
    /// A plain copy of some sources: no recursion, no offers, no rate limit, one stream.
    pub fn plain(transfer: TransferId, sources: Vec<Source>) -> Self {
        OpenSend {
            transfer,
            sources,
            recursive: false,
            offers: false,
            digests: false,
            dry_run: false,
            limit: None,
            class: Class::Normal,
            max_streams: 1,
            on_error: OnError::Skip,
            onto: None,
            filter: Filter::default(),
            tell_names: false,
        }
    }

    /// The target of each source.
    pub fn targets(&self) -> Vec<RelPath> {
        self.sources.iter().map(|source| source.to.clone()).collect()
    }

    /// The same with these targets.
    ///
    /// # Errors
    /// `ProtocolViolation` for another number of them than of sources.
    pub fn with_targets(mut self, targets: Vec<RelPath>) -> Result<Self, Error> {
        if targets.len() != self.sources.len() {
            return Err(violation("sources", "another number of names than of sources"));
        }
        self.sources.iter_mut().zip(targets).for_each(|(source, target)| source.to = target);
        Ok(self)
    }

    /// The storages of the sources, each once.
    pub fn storages(&self) -> Vec<&str> {
        let mut storages: Vec<&str> = Vec::new();
        for source in &self.sources {
            if !storages.contains(&source.from.storage.as_str()) {
                storages.push(&source.from.storage);
            }
        }
        storages
    }
}

/// A source and its target path below the transfer's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The source's place.
    pub from: Place,
    /// The target path; empty for the root itself.
    pub to: RelPath,
    /// Send a directory without its entries and without descending. Later sources inside it are opened relative to
    /// it, without following a link.
    pub alone: bool,
}

/// Answers to requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Success without further data.
    Done,
    /// To `Whoami`.
    Identity(Identity),
    /// To `Stat`.
    Entry(Entry),
    /// To `List`: a part, and whether more parts follow.
    Listing {
        /// Entries, with names only in `path`.
        #[serde(deserialize_with = "batch")]
        entries: Vec<Entry>,
        /// Whether more parts follow.
        more: bool,
    },
    /// To `Usage`.
    Usage(Usage),
    /// To `Space`.
    Space(Space),
    /// To `Checksum`: the digest, in the algorithm's own byte order.
    Checksum(#[serde(with = "crate::path::path_bytes")] Vec<u8>),
    /// To `Status`.
    Status(Status),
    /// To the requests that open a transfer: parameters of the data streams.
    Opened(Opened),
    /// To `Grant`.
    Granted(Ticket),
    /// To `Push`: the transfer started; progress messages follow.
    Pushing,
    /// To `Card`: the card's text.
    Card(String),
    /// To `OpenFound` and `ForUser`: the kind of the destination; `Opened` follows if a choice was given for it.
    Found(DestinationKind),
    /// To `Submit` and `SubmitCopies`, in their order: whether each is queued, or the error.
    Submitted(#[serde(deserialize_with = "batch")] Vec<Result<(), Error>>),
    /// To `Transfers`: newest first; fewer than a full page if there are no more.
    Transfers(#[serde(deserialize_with = "batch")] Vec<Queued>),
    /// To `Transfer`.
    Transfer(Box<Story>),
    /// To `Console`: the secret of the link.
    Console(String),
    /// To `Reserve`.
    Room(Room),
    /// To `Buffer`.
    Buffer(BufferStatus),
    /// To `Enlist`: the certificate, PEM.
    Enlisted(String),
    /// To `Terms`.
    Terms(Terms),
    /// To `Term`: a part of the text, and whether more follows.
    Term {
        /// The part.
        #[serde(with = "crate::path::path_bytes")]
        bytes: Vec<u8>,
        /// Whether more follows.
        more: bool,
    },
    /// To `Failures`: each with its number, ascending; empty if there are no more.
    Failures(#[serde(deserialize_with = "batch")] Vec<(u64, EntryFailure)>),
    /// To `Volume`.
    Volume(VolumeReply),
    /// To `Unfinished`.
    Unfinished(UnfinishedReply),
    /// To `Ways`: the best first.
    Ways(#[serde(deserialize_with = "batch")] Vec<TriedWay>),
    /// To `OpenCopy`: what becomes of the sources; `Opened` or `Granted` follows.
    Layout(CopyLayout),
    /// To `IssueToken`: the token's text.
    Token(String),
    /// To `Link`.
    Link(LinkReply),
    /// To `S3Keys`.
    S3Keys(S3KeysReply),
}

/// The result of probing one way from a PoP to a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedWay {
    /// The way.
    pub way: Way,
    /// The reason why it is a candidate.
    pub why: String,
    /// The reason why it is not used, if it is not.
    pub against: Option<String>,
    /// The error of the probe; `None` as well if the way is not used.
    pub failed: Option<Error>,
}

/// The terms of an agent: the PoP's configuration for it at the moment of the reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The account whose users it serves, as the PoP names it.
    pub account: String,
    /// Whether the storage is read-only.
    pub read_only: bool,
    /// Whether users of the site map to the account of the same name without a rule.
    pub map_own_users: bool,
    /// Texts that the agent needs as well, with their digests: `map`, and `site/NAME` for each trusted site's card.
    pub texts: Vec<(String, [u8; 32])>,
}

/// The asker's identity at a PoP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The principal of the certificate.
    pub principal: String,
    /// The site.
    pub site: SiteName,
    /// The local account it maps to.
    pub account: String,
    /// The rule that mapped it.
    pub rule: String,
    /// Storages and whether they may be written.
    pub storages: Vec<(String, bool)>,
    /// Volumes and whether something in them may be written.
    pub volumes: Vec<(String, bool)>,
}

/// Space used by a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of content, hard links counted once.
    pub bytes: u64,
    /// Bytes of disk blocks.
    pub allocated_bytes: u64,
    /// Files.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
}

/// Parameters of the data streams of an opened session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The ticket that data streams join with.
    pub ticket: Ticket,
    /// Number of streams to open.
    pub streams: u16,
    /// Whether the sender must offer files before sending them, because the receiver may already have some.
    pub offers: bool,
    /// Whether no stream is to be opened, because the session's last transfer left its streams for reuse.
    pub kept: bool,
    /// The receiver's base, if the PoP receives.
    pub onto: Option<Onto>,
}

/// Result of the sender's walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendDone {
    /// Whether every directory could be read, so that absent names are truly absent.
    pub complete: bool,
}

/// Result of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveDone {
    /// Entries removed because the source does not have them.
    pub deleted: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn requests_name_their_storages() {
        let place = |text: &str| Place::parse(text.as_bytes()).unwrap().unwrap();
        let source = |text: &str| Source { from: place(text), to: RelPath::root(), alone: false };
        let send = OpenSend::plain([0; 16], vec![source("/a/1"), source("/b/1"), source("/a/2")]);
        assert_eq!(Request::OpenSend(send).storages(), ["a", "b"]);
        let rename = Request::Rename { from: place("/a/1"), to: place("/c/1") };
        assert_eq!(rename.storages(), ["a"]);
        for of_the_site in [Request::Whoami, Request::List(None), Request::Status, Request::Line] {
            assert!(!of_the_site.may_be_for_an_agent(), "{of_the_site:?}");
        }
        assert!(Request::Redeem([0; 32]).may_be_for_an_agent() && rename.may_be_for_an_agent());
    }

    #[test]
    fn lists_longer_than_a_batch_are_refused() {
        let list = |count| encode(&Control::Verdicts(vec![(0, Verdict::Have); count]));
        assert!(decode::<Control>("verdicts", &list(BATCH_ENTRIES)).is_ok());
        assert!(decode::<Control>("verdicts", &list(BATCH_ENTRIES + 1)).is_err());
    }
}
