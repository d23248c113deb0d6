//! Control messages: greeting, requests and replies, and the conversation of one transfer.

use super::buffer::{BufferStatus, Room};
use super::data::{EntryId, Ticket};
use super::file::{Changed, OpenFiles};
use super::queue::{Listed, Queued, Story, Submission};
pub use super::status::{AgentStatus, LineStatus, RelayedStatus, Status, TransferStatus};
use super::unfinished::{AboutUnfinished, UnfinishedReply};
use super::volume::{AboutVolume, VolumeReply};
use crate::entry::Entry;
use crate::error::Error;
use crate::mover::filter::Filter;
use crate::path::{Place, RelPath, SiteName};
use crate::queue::Change;
use crate::route::Way;
use serde::{Deserialize, Serialize};

/// Identity of one transfer, chosen by the client, in the logs of every side.
pub type TransferId = [u8; 16];

/// Most entries in one offer, verdict list or listing part; keeps control frames small.
pub const BATCH_ENTRIES: usize = 512;

/// Everything that travels on a control stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// First message of the side that dialled.
    Hello(Hello),
    /// First message of the side that was dialled.
    Welcome(Welcome),
    /// A request; several may be under way.
    Request {
        /// Chosen by the asker, repeated in the reply.
        id: u64,
        /// What is asked.
        request: Request,
    },
    /// An answer, or for listings a part of it.
    Reply {
        /// The request's number.
        id: u64,
        /// The answer.
        reply: Result<Reply, Error>,
    },
    /// Sender to receiver: files that may be there already.
    Offer(#[serde(deserialize_with = "batch")] Vec<OfferItem>),
    /// Receiver to sender: one verdict for each offered item, with its number, in the order of the offers.
    Verdicts(#[serde(deserialize_with = "batch")] Vec<(EntryId, Verdict)>),
    /// Receiver to sender: these entries are durable under their final names.
    Acked(Vec<IdRange>),
    /// Either side: this entry failed; the rest goes on.
    Failed(EntryFailure),
    /// Receiver to sender: these names were removed (in a dry run: would be).
    Removed(#[serde(deserialize_with = "batch")] Vec<RelPath>),
    /// Sender to client, in a dry run: these names would be sent.
    WouldSend(#[serde(deserialize_with = "batch")] Vec<RelPath>),
    /// Sender to receiver: everything was sent; what was found at the source.
    SendDone(SendDone),
    /// Receiver to sender: everything is durable or reported.
    ReceiveDone(ReceiveDone),
    /// A PoP that moves for a client: how far it is.
    Progress(Progress),
    /// A PoP that moved for a client: the end.
    Finished(Result<Summary, Error>),
    /// Either side: the transfer ends here, and why.
    Abort(Error),
    /// Is somebody there?
    Ping(u64),
    /// Yes.
    Pong(u64),
    /// First message of a side that was invited and knows no more of the site than its authority's digest: your card?
    AskCard,
    /// The text of the own site card.
    OwnCard(String),
    /// The side that was invited: here is what proves it, and the text of my card.
    Introduce {
        /// The invitation's secret.
        secret: [u8; 16],
        /// The site card.
        card: String,
    },
    /// The site of that card is trusted from now on.
    Introduced,
    /// A PoP that moves for a client: what the destination was found to be.
    Found(Found),
    /// Over a line: dial my port and open a circuit with this ticket.
    Call(Ticket),
    /// A PoP that moves for a client: these entries failed since it told last. Those of the summary are among them.
    Failures(#[serde(deserialize_with = "batch")] Vec<EntryFailure>),
    /// File session, from the side that asks: a term for the leases, from now on.
    Renew(u64),
    /// File session: that term begins when it was asked for.
    Renewed {
        /// Which question.
        number: u64,
        /// Another one than before: nothing from before is held.
        round: u64,
        /// How long it is; 0 where there are no leases.
        term_ms: u32,
        /// The round of the locks: another one than before says that all are lost.
        locks: u64,
    },
    /// File session, from the side that serves: believe nothing of this any more, and say so.
    Changed {
        /// Which call.
        number: u64,
        /// What.
        what: Changed,
    },
    /// File session: nothing of it is believed any more, up to that call.
    Settled(u64),
    /// The next request is about these names alone. It is a message of its own, so that requests without a filter are what
    /// they were.
    Filter(Filter),
    /// The next request is a push whose asker wants the names of the files that arrive.
    TellNames,
    /// A PoP that moves for a client: these files arrived since it told last, if the client asked for names.
    Arrived(#[serde(deserialize_with = "batch")] Vec<RelPath>),
}

/// The dialling side's greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest and newest version spoken.
    pub versions: (u16, u16),
    /// Program and version, for logs.
    pub software: String,
    /// The dialling side's clock, milliseconds since 1970.
    pub now_unix_ms: u64,
}

/// The dialled side's greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version both will speak.
    pub version: u16,
    /// Program and version, for logs.
    pub software: String,
    /// The site that answers.
    pub site: SiteName,
    /// Whom the site took the dialling side for.
    pub principal: String,
    /// The dialled side's clock, milliseconds since 1970.
    pub now_unix_ms: u64,
    /// The site's newest revocation list, DER; empty if it revoked nothing.
    #[serde(with = "crate::path::path_bytes")]
    pub crl: Vec<u8>,
}

/// What may be asked of a PoP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who am I here, and what may I use?
    Whoami,
    /// One entry's metadata; `None` asks for the root, the list of storages.
    Stat(Option<Place>),
    /// The directory a place leads to, links inside the storage followed.
    StatDir(Option<Place>),
    /// A directory's entries, in parts; `None` lists the storages.
    List(Option<Place>),
    /// Make a directory; `parents` makes missing ones and forgives an existing one.
    Mkdir {
        /// The directory.
        place: Place,
        /// As `mkdir -p`.
        parents: bool,
    },
    /// Remove a file or, with `recursive`, a tree.
    Remove {
        /// What.
        place: Place,
        /// Directories and all in them.
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
    /// Digest of a file's content, read from the disk.
    Checksum {
        /// The file.
        place: Place,
        /// Which digest.
        algorithm: Algorithm,
    },
    /// What the PoP is doing.
    Status,
    /// The PoP shall receive; the asker sends.
    OpenReceive(OpenReceive),
    /// The PoP shall send; the asker receives.
    OpenSend(OpenSend),
    /// Let another site's PoP send to here on the asker's behalf.
    Grant {
        /// What that PoP may open.
        open: OpenReceive,
        /// The only site that may use the grant.
        peer: SiteName,
    },
    /// The PoP shall send to another site's PoP, which granted it.
    Push {
        /// What to send.
        send: OpenSend,
        /// The receiving site.
        to: SiteName,
        /// The grant.
        grant: Ticket,
    },
    /// A host redeems a grant: as `OpenReceive`, with what was granted.
    Redeem(Ticket),
    /// A user of the PoP's own site asks for the card of a site that the PoP trusts.
    Card(SiteName),
    /// As `OpenReceive`, of a destination nobody looked at yet: the PoP looks, answers `Found`, and opens what was
    /// chosen for that, if anything was.
    OpenFound(OpenFound),
    /// The PoP shall send to another site's PoP, which it asks in the name of the asker, its own user.
    PushFound {
        /// What to send; what the sources become is in `open`.
        send: OpenSend,
        /// The receiving site.
        to: SiteName,
        /// What that site shall open.
        open: OpenFound,
    },
    /// A host asks for a user of its own site: as `OpenFound` of that user.
    ForUser {
        /// The certificates the user proved to be with, leaf first, DER.
        #[serde(deserialize_with = "batch")]
        chain: Vec<Vec<u8>>,
        /// What the user asks.
        open: OpenFound,
    },
    /// Queue these transfers; each may be handed in again, which changes nothing.
    Submit(#[serde(deserialize_with = "batch")] Vec<Submission>),
    /// A part of the asker's queued transfers.
    Transfers(Listed),
    /// All about one of them, by the first digits of its id.
    Transfer(String),
    /// Change one of them.
    Change {
        /// Which.
        id: TransferId,
        /// How.
        change: Change,
    },
    /// Give one of them a fresh credential.
    Renew(TransferId),
    /// A PoP that cannot be dialled keeps this session as its line: over it, it is called.
    Line,
    /// Let circuits to another site pass. The session is kept for it; a circuit that fails later is told by one more
    /// reply with an error.
    Through {
        /// The site they lead to.
        site: SiteName,
        /// What the circuits' tickets are made of ([`super::circuit::ticket`]).
        seed: Ticket,
        /// How many circuits at most.
        count: u16,
        /// Through how many more PoPs they may lead.
        further: u8,
    },
    /// A one-time link to the PoP's web page.
    Console,
    /// Room in the buffer for a transfer that will be handed in; asked again as long as it waits.
    Reserve {
        /// The transfer.
        transfer: TransferId,
        /// Bytes of content.
        bytes: u64,
        /// Whether it waits where there is none.
        waits: bool,
    },
    /// What is in the buffer.
    Buffer,
    /// Let circuits to the agent of one of the PoP's own storages pass, as `Through` does to a site.
    ToAgent {
        /// The storage.
        storage: String,
        /// As in `Through`.
        seed: Ticket,
        /// As in `Through`.
        count: u16,
    },
    /// A user, or the agent itself when its certificate ages, asks for the certificate of a storage's agent.
    Enlist {
        /// The storage.
        storage: String,
        /// Certificate request, PEM.
        request: String,
    },
    /// What the agent of a storage goes by.
    Terms(String),
    /// One of the texts that the terms name, from a byte on.
    Term {
        /// The agent's storage.
        storage: String,
        /// The text's name.
        name: String,
        /// Where to begin.
        offset: u64,
    },
    /// The files of one of the asker's queued transfers that failed, a part of them.
    Failures {
        /// Which.
        id: TransferId,
        /// Go on after the failure of this number; 0 for the first part.
        after: u64,
    },
    /// A PoP tells of what its site revoked: the newest list, DER.
    Revocations(#[serde(with = "crate::path::path_bytes")] Vec<u8>),
    /// About volumes.
    Volume(AboutVolume),
    /// Operations on single files below a place, on data streams, for as long as the session is kept.
    OpenFiles(OpenFiles),
    /// A mount with a credential of its own asks for a fresh one: certificate request, PEM. The answer is `Enlisted`.
    RenewMount(String),
    /// A PoP tells the newest card of its site to one that trusts it.
    TakeCard(String),
    /// What did not arrive in full.
    Unfinished(AboutUnfinished),
    /// The ways from the asked PoP to a site, each tried now.
    Ways(SiteName),
}

impl Request {
    /// The storages of the asked site that this is about, each once; none if it is about the site.
    pub fn storages(&self) -> Vec<&str> {
        let place = match self {
            Self::Stat(Some(place)) | Self::StatDir(Some(place)) | Self::List(Some(place)) => place,
            Self::Usage(place) | Self::Space(place) | Self::Checksum { place, .. } => place,
            Self::Mkdir { place, .. } | Self::Remove { place, .. } | Self::Rename { from: place, .. } => {
                place
            }
            Self::OpenReceive(open) | Self::Grant { open, .. } => &open.to,
            Self::OpenFiles(open) => &open.place,
            Self::OpenFound(open) | Self::ForUser { open, .. } => &open.to,
            Self::OpenSend(send) | Self::Push { send, .. } | Self::PushFound { send, .. } => {
                return send.storages();
            }
            Self::Unfinished(about) => return about.storage.as_deref().into_iter().collect(),
            _ => return Vec::new(),
        };
        vec![place.storage.as_str()]
    }

    /// Whether it may be for an agent to answer: about storages, or about a grant that somebody there gave.
    pub fn may_be_for_an_agent(&self) -> bool {
        matches!(self, Request::Redeem(_)) || !self.storages().is_empty()
    }
}

/// Digests a PoP can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the algorithms")]
pub enum Algorithm {
    Blake3,
    Sha256,
    Md5,
    Adler32,
    Crc32c,
}

/// How the receiver decides about names that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Existing {
    /// Replace files, as cp.
    Replace,
    /// Leave files of the same size and mtime, as rsync.
    SameStamp,
    /// Leave files of the same content, whatever their time.
    SameContent,
}

/// Options of a transfer that the receiver must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveOptions {
    /// What to do with names that exist.
    pub existing: Existing,
    /// Remove what the source does not have.
    pub delete: bool,
    /// Only say what would be done.
    pub dry_run: bool,
    /// What is not removed, because the transfer is not about it; travels before the request ([`Control::Filter`]).
    #[serde(skip)]
    pub filter: Filter,
}

impl ReceiveOptions {
    /// Those of a plain copy.
    pub fn plain(existing: Existing) -> Self {
        ReceiveOptions { existing, delete: false, dry_run: false, filter: Filter::default() }
    }
}

/// How much of the path a transfer may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// A share like that of others.
    #[default]
    Normal,
    /// What others leave.
    Background,
}

/// Opens a transfer to the PoP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenReceive {
    /// Identity for logs.
    pub transfer: TransferId,
    /// Key of the job: the same command gives the same key, and so finds its journal.
    pub job: u64,
    /// The path that the transfer's root becomes.
    pub to: Place,
    /// How to deal with what is there.
    pub options: ReceiveOptions,
    /// Shown in the status; the sender keeps to it.
    pub class: Class,
    /// Streams the asker wants at most.
    pub max_streams: u16,
    /// Rules of drop folders (`site/rule`) through which the files came, oldest first; empty for all other transfers.
    #[serde(deserialize_with = "batch")]
    pub rules: Vec<String>,
}

/// What the destination of a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// A directory.
    Dir,
    /// Something else.
    Other,
    /// Nothing.
    Nothing,
}

impl Found {
    /// All it can be.
    pub const ALL: [Found; 3] = [Found::Dir, Found::Other, Found::Nothing];
}

/// What to open if the destination is found to be something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The path in the destination's storage that the transfer's root becomes.
    pub base: RelPath,
    /// Make the destination first; it is a directory.
    pub make: bool,
    /// How to deal with what is there.
    pub options: ReceiveOptions,
    /// What each source becomes below the base, for a PoP that sends; else empty.
    pub targets: Vec<RelPath>,
}

/// Opens a transfer to a destination that is looked at first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFound {
    /// Identity for logs.
    pub transfer: TransferId,
    /// Key of the job, as in [`OpenReceive`].
    pub job: u64,
    /// The destination.
    pub to: Place,
    /// As in [`OpenReceive`].
    pub class: Class,
    /// What to open, by what is found; what is not there is not opened.
    #[serde(deserialize_with = "batch")]
    pub choices: Vec<(Found, Choice)>,
    /// Streams the asker wants at most.
    pub max_streams: u16,
    /// As in [`OpenReceive`].
    #[serde(deserialize_with = "batch")]
    pub rules: Vec<String>,
}

impl OpenFound {
    /// What was chosen for what was found.
    pub fn choice(&self, found: Found) -> Option<&Choice> {
        self.choices.iter().find(|(what, _)| *what == found).map(|(_, choice)| choice)
    }

    /// What that opens.
    pub fn receive(&self, choice: &Choice) -> OpenReceive {
        OpenReceive {
            transfer: self.transfer,
            job: self.job,
            to: Place { storage: self.to.storage.clone(), path: choice.base.clone() },
            options: choice.options.clone(),
            class: self.class,
            max_streams: self.max_streams,
            rules: self.rules.clone(),
        }
    }
}

/// Opens a transfer from the PoP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSend {
    /// Identity for logs.
    pub transfer: TransferId,
    /// What to send.
    pub sources: Vec<Source>,
    /// Descend into directories.
    pub recursive: bool,
    /// Whether every file is offered before it is sent.
    pub offers: bool,
    /// Whether it is offered with its digest.
    pub digests: bool,
    /// Only say what would be sent.
    pub dry_run: bool,
    /// Bytes per second at most, over all streams.
    pub limit: Option<u64>,
    /// How much of the path it may take.
    pub class: Class,
    /// Streams the asker wants at most.
    pub max_streams: u16,
    /// What becomes of the rest when an entry fails.
    pub on_error: OnError,
    /// What the asker receives to, if it receives.
    pub onto: Option<Onto>,
    /// What of the sources is sent; travels before the request ([`Control::Filter`]).
    #[serde(skip)]
    pub filter: Filter,
    /// Whether the names of files that arrived are told; travels before the request ([`Control::TellNames`]).
    #[serde(skip)]
    pub tell_names: bool,
}

/// What becomes of the rest of a transfer when an entry fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It is copied, and what failed is listed.
    #[default]
    Skip,
    /// It is left: the transfer ends with that failure.
    Stop,
}

/// What a receiver tells of its base, so that a sender on the same machine notices a copy of something onto itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Onto {
    /// The base and the directories above it, as far as they were looked at; each by a digest that only those who know the
    /// machine's present boot can make.
    pub lineage: Vec<[u8; 16]>,
    /// Whether what the source lacks is removed there.
    pub removes: bool,
}

impl OpenSend {
    /// A plain copy of some sources: nothing below directories, nothing offered, no limit, one stream.
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

/// One thing to send and the path below the transfer's root it becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Where it is.
    pub from: Place,
    /// What it becomes; the root itself if the path is empty.
    pub to: RelPath,
    /// A directory without what is in it; asks for no descent. Sources in it that come after it are found through it, without
    /// following a link.
    pub alone: bool,
}

/// Answers to requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing to say but that it worked.
    Done,
    /// To `Whoami`.
    Identity(Identity),
    /// To `Stat`.
    Entry(Entry),
    /// To `List`: a part, and whether more parts follow.
    Listing {
        /// Entries, names only in `path`.
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
    /// To what opens a transfer: join data streams with this.
    Opened(Opened),
    /// To `Grant`.
    Granted(Ticket),
    /// To `Push`: started; progress follows.
    Pushing,
    /// To `Card`: the card's text.
    Card(String),
    /// To `OpenFound` and `ForUser`: what is there; `Opened` follows if that was chosen.
    Found(Found),
    /// To `Submit`, in its order: that it is in the queue, or why not.
    Submitted(#[serde(deserialize_with = "batch")] Vec<Result<(), Error>>),
    /// To `Transfers`: newest first; fewer than asked for if there are no more.
    Transfers(#[serde(deserialize_with = "batch")] Vec<Queued>),
    /// To `Transfer`.
    Transfer(Box<Story>),
    /// To `Console`: what the link has to show.
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
    /// To `Failures`: each with its number, ascending; none if there are no more.
    Failures(#[serde(deserialize_with = "batch")] Vec<(u64, EntryFailure)>),
    /// To `Volume`.
    Volume(VolumeReply),
    /// To `Unfinished`.
    Unfinished(UnfinishedReply),
    /// To `Ways`: the best first.
    Ways(#[serde(deserialize_with = "batch")] Vec<TriedWay>),
}

/// How a way from a PoP to a site was found to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriedWay {
    /// The way.
    pub way: Way,
    /// Why it may work.
    pub why: String,
    /// Why it is not taken, if it is not.
    pub against: Option<String>,
    /// Why it does not lead there now; nothing as well where it is not taken.
    pub failed: Option<Error>,
}

/// What an agent goes by: what its PoP says, of the moment it says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The account whose users it serves, as the PoP names it.
    pub account: String,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// Whether users of the site become the account of the same name without a rule.
    pub map_own_users: bool,
    /// Texts to have beside it, with their digests: `map`, and `site/NAME` for each trusted site's card.
    pub texts: Vec<(String, [u8; 32])>,
}

/// Who the asker is at a PoP.
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

/// Space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes this account may still use.
    pub available_bytes: u64,
    /// Inodes in all.
    pub total_files: u64,
    /// Inodes free.
    pub free_files: u64,
}

/// A session is ready for its data streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// What data streams join with.
    pub ticket: Ticket,
    /// How many streams to open.
    pub streams: u16,
    /// Whether the sender must offer files before sending them, because some may be here already.
    pub offers: bool,
    /// Whether none is to be opened, because those of the session's last transfer are used again.
    pub kept: bool,
    /// What is received to, if the PoP receives.
    pub onto: Option<Onto>,
}

/// A file the sender could send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferItem {
    /// Its number.
    pub id: EntryId,
    /// The file.
    pub entry: Entry,
    /// Its digest, if the receiver compares content ([`Existing::SameContent`]).
    pub digest: Option<[u8; 32]>,
}

/// The receiver's word on an offered file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Send it.
    Want,
    /// It is here already.
    Have,
    /// These extents are here already; send the others. Ascending.
    Partial(Vec<SlotRange>),
    /// It cannot be received.
    Refuse(Error),
}

/// Extents `first .. first + count` of a file; a file of terabytes has too many to name each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRange {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Entry numbers `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first.
    pub first: EntryId,
    /// How many.
    pub count: u64,
}

/// An entry that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFailure {
    /// Its number; `None` if it never had one.
    pub id: Option<EntryId>,
    /// Its path below the destination.
    pub path: RelPath,
    /// Whether the content arrived all the same (only an attribute was lost).
    pub kept: bool,
    /// Why.
    pub error: Error,
}

/// What the sender found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendDone {
    /// Whether every directory could be read, so that absent names are truly absent.
    pub complete: bool,
}

/// What the receiver did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveDone {
    /// Entries removed because the source does not have them.
    pub deleted: u64,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files found so far.
    pub files_found: u64,
    /// Bytes found so far.
    pub bytes_found: u64,
    /// Whether all has been found.
    pub walk_done: bool,
    /// Files durable at the destination.
    pub files_done: u64,
    /// Bytes durable at the destination or skipped.
    pub bytes_done: u64,
    /// Bytes moved over the network.
    pub bytes_moved: u64,
}

/// The end of a transfer, as it is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Files that are at the destination now.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic and hard links.
    pub links: u64,
    /// Bytes of the files at the destination.
    pub bytes: u64,
    /// Of these, files that were there already.
    pub files_skipped: u64,
    /// Of these, bytes that were there already.
    pub bytes_skipped: u64,
    /// Bytes of content sent.
    pub bytes_moved: u64,
    /// Entries removed at the destination.
    pub deleted: u64,
    /// Devices, FIFOs and sockets passed over; listed among the failures, not counted there.
    pub special: u64,
    /// Entries that failed in all; the list may be shorter.
    pub failed: u64,
    /// The first failures, at most [`MAX_LISTED_FAILURES`] and [`MAX_LISTED_BYTES`].
    pub failures: Vec<EntryFailure>,
}

/// Reads a list of at most [`BATCH_ENTRIES`]: a few bytes of a frame could else become a hundred times as much.
pub(crate) fn batch<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    at_most::<D, T, BATCH_ENTRIES>(deserializer)
}

/// A list of at most so many items.
pub(crate) fn at_most<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Items<T, const MOST: usize>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> serde::de::Visitor<'de> for Items<T, MOST> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {MOST} items")
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MOST {
                    return Err(serde::de::Error::invalid_length(items.len() + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_seq(Items::<T, MOST>(std::marker::PhantomData))
}

/// Failures a summary lists; the others are counted and logged.
pub const MAX_LISTED_FAILURES: usize = 1000;
/// Bytes they take in a message: paths are long at times, and the message must fit one frame.
pub const MAX_LISTED_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn requests_tell_their_storages() {
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
    fn longer_lists_than_a_batch_are_refused() {
        let list = |count| encode(&Control::Verdicts(vec![(0, Verdict::Have); count]));
        assert!(decode::<Control>("verdicts", &list(BATCH_ENTRIES)).is_ok());
        assert!(decode::<Control>("verdicts", &list(BATCH_ENTRIES + 1)).is_err());
    }
}
