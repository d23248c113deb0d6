//! Operations on single files, as a mount needs them.
//!
//! A *file session* is opened for one place at a site. Its data streams carry operations one way and answers the
//! other, in the same order on each stream; streams are independent of each other, and a handle opened on one is
//! valid on all. Paths are relative to the place.
//!
//! Written content goes to a *draft*: a new version of the file that is invisible until it is published. A reader
//! that opened the file before keeps reading the version it opened (snapshot).

use super::frame::{FrameKind, HEAD_BYTES, head};
use super::types::{Algorithm, Space};
use super::uploads::{Part, UploadId, UploadOp, parts};
use super::version::WireVersion;
use super::{decode, encode, violation};
use crate::batch::batch;
use crate::block::AlignedBlock;
use crate::entry::{Entry, FileTime, Meta, Stamp, Xattr};
use crate::error::{Code, Error};
use crate::ids::TransferId;
pub use crate::invalidation::Changed;
use crate::lease::locks::Span;
use crate::name_table::{NameTable, NamesFrom};
use crate::path::{Place, RelPath, path_bytes};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An open file, directory or draft of a file session; chosen by the server.
pub type Handle = u64;

/// Most bytes that one operation reads or writes.
pub const MAX_IO_BYTES: u32 = 1 << 20;

/// Most bytes of an encoded operation, apart from the content it writes.
pub const MAX_OP_BYTES: usize = 128 << 10;

/// Bytes of the length field before an operation or an answer in its frame's payload.
pub const LENGTH_BYTES: usize = 4;

/// Opens a file session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFiles {
    /// Identity for logs.
    pub id: TransferId,
    /// The directory that becomes the root.
    pub place: Place,
    /// Whether the session may write.
    pub write: bool,
    /// Maximum number of streams the asker wants.
    pub max_streams: u16,
    /// A secret of the asker, the same in each session that resumes a lost one: it identifies the drafts that the
    /// lost session left, and permits passing descriptors on the site's own machine.
    pub key: SessionKey,
    /// Whether the asker wants leases on the answers, where they are available.
    pub leases: bool,
    /// The client id that owns the session's locks: the same in all sessions that the asker opens one after the
    /// other.
    pub locks: [u8; 16],
    /// The consistency of opens with changes of other sites.
    pub consistency: Consistency,
}

/// The changes an open must see of those that were closed through the PoPs of other sites before it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// The changes that have been replicated to this site.
    Relaxed,
    /// All of them (close-to-open). While a site needed for that is unreachable, only the replicated ones, and this
    /// is reported.
    #[default]
    CloseToOpen,
    /// All of them; otherwise the open fails.
    Strict,
}

/// The secret that identifies a file session.
pub type SessionKey = [u8; 16];

/// Operations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Looks up a path; a link at its end is not followed (`lstat`). Answer: `Item`.
    Look(RelPath),
    /// Opens a directory to list it. Answer: `Opened`.
    OpenDir(RelPath),
    /// The next batch of entries of an open directory. Answer: `Items`.
    ReadDir(Handle),
    /// Opens a file for reading, at its present version. Answer: `Opened`.
    Open(RelPath),
    /// Reads from an open file or a draft. Answer: `Data`, fewer bytes only at the end of the file.
    Read {
        /// The open file or draft.
        handle: Handle,
        /// The offset.
        offset: u64,
        /// Number of bytes, at most [`MAX_IO_BYTES`].
        bytes: u32,
    },
    /// Begins a new version of a file. Answer: `Opened`.
    Draft {
        /// The file.
        path: RelPath,
        /// The initial content.
        start: Start,
        /// Permission bits of a file that is new.
        mode: u32,
    },
    /// Writes into a draft; the bytes follow the operation. Answer: `Done`.
    Write {
        /// The draft.
        handle: Handle,
        /// The offset.
        offset: u64,
    },
    /// Truncates or extends a draft. Answer: `Done`.
    SetLen {
        /// The draft.
        handle: Handle,
        /// The new length in bytes.
        bytes: u64,
    },
    /// Makes a draft durable and atomically the file's content; the draft can then be written further, for the next
    /// version. Answer: `Item`.
    Publish {
        /// The draft.
        handle: Handle,
        /// The modification time to set; otherwise that of the draft's last write.
        mtime: Option<FileTime>,
    },
    /// Closes a handle; the unpublished content of a draft is discarded. Answer: `Done`.
    Close(Handle),
    /// Changes metadata. Answer: `Item`.
    Alter {
        /// The entry; a link is not followed.
        path: RelPath,
        /// The change.
        change: Alteration,
    },
    /// Makes a directory. Answer: `Item`.
    MakeDir {
        /// The path.
        path: RelPath,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a symbolic link. Answer: `Item`.
    MakeSymlink {
        /// The path.
        path: RelPath,
        /// The target.
        #[serde(with = "path_bytes")]
        target: Vec<u8>,
    },
    /// Makes a hard link. Answer: `Item`.
    MakeLink {
        /// An existing name of the file.
        from: RelPath,
        /// The new one.
        to: RelPath,
    },
    /// Removes a name of anything but a directory. Answer: `Done`.
    Remove(RelPath),
    /// Removes an empty directory. Answer: `Done`.
    RemoveDir(RelPath),
    /// Renames. Answer: `Done`.
    Rename {
        /// The old name.
        from: RelPath,
        /// The new name.
        to: RelPath,
        /// Whether an existing entry at the new name is replaced.
        replace: bool,
    },
    /// Space of the file system. Answer: `Space`.
    Space,
    /// Locks or unlocks a range of a file. Answer: `Done`.
    Lock {
        /// The file.
        path: RelPath,
        /// The lock owner among the asker's programs.
        owner: u64,
        /// The range and the kind of lock.
        span: Span,
    },
    /// Finds a lock that conflicts with a wanted one. Answer: `Locked`.
    FindLock {
        /// The file.
        path: RelPath,
        /// The lock owner that asks.
        owner: u64,
        /// The wanted lock.
        span: Span,
    },
    /// Resumes a draft of a lost session, with all acknowledged writes. Answer: `Opened`, with the same handle.
    Resume {
        /// The file's current name.
        path: RelPath,
        /// The draft.
        handle: Handle,
        /// Permission bits of a file that is new.
        mode: u32,
    },
    /// Reads from a file without opening it, from its present version. Answer: `Peeked`.
    Peek {
        /// The file.
        path: RelPath,
        /// The offset.
        offset: u64,
        /// Number of bytes, at most [`MAX_IO_BYTES`].
        bytes: u32,
    },
    /// Write barrier: waits until `writes` writes to a draft of this session are done, on any stream, so that later
    /// operations on this stream see them. Answer: `Done`.
    Await {
        /// The draft.
        handle: Handle,
        /// Number of all writes requested so far.
        writes: u64,
    },
    /// Since wire 4: looks up a path as `Look`, with its extended attributes and access lists. Answer: `Item`.
    LookFull(RelPath),
    /// Since wire 4: sets an extended attribute or an access list. Answer: `Item`.
    SetXattr {
        /// The entry; a link is not followed.
        path: RelPath,
        /// The name with its prefix: `user.` or `system.posix_acl_`.
        #[serde(with = "path_bytes")]
        name: Vec<u8>,
        /// The value; none removes it, whether or not it is there.
        value: Option<Vec<u8>>,
    },
    /// Since wire 4: as `Publish`, on a condition that is checked in the same step. Answer: `Item`.
    PublishIf {
        /// The draft.
        handle: Handle,
        /// As that of `Publish`.
        mtime: Option<FileTime>,
        /// The condition.
        condition: Precondition,
    },
    /// The checksum of an open file. Answer: `Checksum`. Since wire 4.
    Checksum {
        /// The open file.
        handle: Handle,
        /// The algorithm.
        algorithm: Algorithm,
        /// Whether the content may or must be read.
        freshness: Freshness,
    },
    /// Since wire 4: names the file at a path independently of that path. Answer: `FileHandle`.
    FileHandle(RelPath),
    /// Since wire 4: finds the file of a handle. Answer: `Item`, with its present path.
    ByHandle(FileHandle),
    /// Since wire 4: where the content of a file is. Answer: `Locality`.
    Locality(RelPath),
    /// Since wire 4: brings the content of a file to this site. Answer: `Done`, when it is there.
    Stage(RelPath),
    /// Since wire 4: gives up content that was brought, if another site has it. Answer: `Done`.
    Release(RelPath),
    /// Since wire 4: an operation on the uploads in parts of a file.
    Upload {
        /// The file.
        path: RelPath,
        /// The operation.
        op: UploadOp,
    },
    /// Since wire 4: as `PublishIf`, with extended attributes that users may set. Answer: `Item`.
    PublishWith {
        /// The draft.
        handle: Handle,
        /// As that of `Publish`.
        mtime: Option<FileTime>,
        /// The condition.
        condition: Precondition,
        /// The attributes, in place of those of the same names; an empty value stands for none.
        #[serde(deserialize_with = "batch")]
        attributes: Vec<Xattr>,
    },
}

/// Most bytes of a [`FileHandle`].
pub const MAX_FILE_HANDLE_BYTES: usize = 64;

/// Identifies a file as long as it exists, also after restarts; only the place that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileHandle(#[serde(with = "path_bytes")] pub Vec<u8>);

/// Where the content of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locality {
    /// At the asked site, where it is read at once.
    Online,
    /// At other sites, from which reads fetch it.
    Elsewhere,
}

/// Where a checksum comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// It was remembered when the content came, or when it was last computed; the content is not read.
    Known,
    /// The same, or the content is read.
    Any,
    /// The content is read.
    Read,
}

impl Op {
    /// The oldest version of the wire that has it.
    pub fn since(&self) -> WireVersion {
        match self {
            Op::LookFull(_) | Op::SetXattr { .. } | Op::PublishIf { .. } | Op::Checksum { .. } => {
                WireVersion::V4
            }
            Op::Draft { start: Start::OnlyNew, .. } | Op::PublishWith { .. } => WireVersion::V4,
            Op::FileHandle(_) | Op::ByHandle(_) => WireVersion::V4,
            Op::Locality(_) | Op::Stage(_) | Op::Release(_) | Op::Upload { .. } => WireVersion::V4,
            _ => WireVersion::V3,
        }
    }

    /// The names that it changes, as far as its own arguments tell.
    pub fn changed_paths(&self) -> Vec<&RelPath> {
        match self {
            Op::Draft { path, start: Start::New, .. } | Op::Alter { path, .. } => vec![path],
            Op::MakeDir { path, .. } | Op::MakeSymlink { path, .. } | Op::SetXattr { path, .. } => vec![path],
            Op::MakeLink { from, to } | Op::Rename { from, to, .. } => vec![from, to],
            Op::Remove(path) | Op::RemoveDir(path) => vec![path],
            Op::Upload { path, op: UploadOp::Complete { .. } } => vec![path],
            _ => Vec::new(),
        }
    }

    /// Whether it changes names or attributes that are visible to others.
    pub fn changes(&self) -> bool {
        let is_publication =
            matches!(self, Op::Publish { .. } | Op::PublishIf { .. } | Op::PublishWith { .. });
        is_publication || !self.changed_paths().is_empty()
    }
}

/// The condition under which a draft may be published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precondition {
    /// Always.
    #[default]
    None,
    /// The name is free (`If-None-Match: *`).
    Absent,
    /// The file has this version (`If-Match`).
    Version(Stamp),
}

/// The initial content of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// Empty, and the name must be free: the file is created at once, empty.
    New,
    /// Empty, whether or not the file exists.
    Empty,
    /// The file's present content.
    Content,
    /// Since wire 4: empty, and the name must be free, now and when the draft is published.
    OnlyNew,
}

/// A change of metadata; fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alteration {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Time of last modification.
    pub mtime: Option<FileTime>,
    /// Owner's account name.
    pub owner: Option<String>,
    /// Group's name.
    pub group: Option<String>,
}

impl Alteration {
    /// Metadata with the change applied, to be set; no extended attributes are.
    pub fn applied_to(&self, before: &Meta) -> Meta {
        Meta {
            mode: self.mode.unwrap_or(before.mode) & 0o7777,
            mtime: self.mtime.unwrap_or(before.mtime),
            owner: self.owner.clone().unwrap_or_else(|| before.owner.clone()),
            group: self.group.clone().unwrap_or_else(|| before.group.clone()),
            xattrs: Vec::new(),
        }
    }
}

/// An entry with its inode attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The entry; in a directory's list its path is the name alone.
    pub entry: Entry,
    /// Inode number: unique and stable as long as the entry exists.
    pub ino: u64,
    /// Number of hard links.
    pub links: u64,
    /// Blocks of 512 bytes allocated.
    pub blocks: u64,
    /// Time of last change of content or metadata.
    pub ctime: FileTime,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Success without further data.
    Done,
    /// The entry.
    Item(Item),
    /// An open handle.
    Opened {
        /// The handle.
        handle: Handle,
        /// The entry.
        item: Item,
    },
    /// A batch of a directory's entries.
    Items {
        /// Entries.
        #[serde(deserialize_with = "batch")]
        items: Vec<Item>,
        /// Whether more batches follow.
        more: bool,
    },
    /// Number of bytes that follow the answer.
    Data(u32),
    /// Space of the file system.
    Space(Space),
    /// The operation failed.
    Failed(Error),
    /// An answer under a lease: the names and attributes in it may be cached until a callback invalidates them.
    Held {
        /// The answer.
        answer: Box<Answer>,
        /// The directories that the operation changed, with their new attributes.
        dirs: Vec<Item>,
    },
    /// A conflicting lock of another owner, if there is one.
    Locked(Option<Span>),
    /// Content that follows the answer.
    Peeked {
        /// The file's entry when the bytes were read.
        item: Item,
        /// Number of bytes.
        bytes: u32,
    },
    /// A checksum; none if none of the present content is known. Since wire 4.
    Checksum(Option<Vec<u8>>),
    /// The handle of a file. Since wire 4.
    FileHandle(FileHandle),
    /// Where the content is. Since wire 4.
    Locality(Locality),
    /// The upload that was begun. Since wire 4.
    Upload(UploadId),
    /// The parts of an upload, in the order of their numbers. Since wire 4.
    Parts(#[serde(deserialize_with = "parts")] Vec<Part>),
}

impl Answer {
    /// Number of bytes that follow it; `None` for answers without content.
    pub fn data_bytes(&self) -> Option<u32> {
        match self {
            Answer::Data(bytes) | Answer::Peeked { bytes, .. } => Some(*bytes),
            _ => None,
        }
    }

    /// The answer itself, and the changed directories if it is under a lease.
    pub fn parted(self) -> (Answer, Option<Vec<Item>>) {
        match self {
            Answer::Held { answer, dirs } => (*answer, Some(dirs)),
            answer => (answer, None),
        }
    }

    /// The answer itself.
    pub fn plain(&self) -> &Answer {
        match self {
            Answer::Held { answer, .. } => answer,
            answer => answer,
        }
    }

    /// The opposite of [`Answer::parted`].
    pub fn joined(self, held: Option<Vec<Item>>) -> Answer {
        match held {
            Some(dirs) => Answer::Held { answer: Box::new(self), dirs },
            None => self,
        }
    }
}

/// The beginning of a frame: all of it but the `content_bytes` that follow.
pub fn begin_frame<T: Serialize>(kind: FrameKind, value: &T, content_bytes: usize) -> Vec<u8> {
    let value = encode(value);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + LENGTH_BYTES + value.len());
    bytes.extend_from_slice(&head(kind, LENGTH_BYTES + value.len() + content_bytes));
    bytes.extend_from_slice(&(value.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&value);
    bytes
}

/// Splits a payload length into the bytes of the operation or answer and those of the content.
///
/// # Errors
/// `ProtocolViolation` if no correct peer sends such a frame.
pub fn divide(
    payload_bytes: usize,
    length: [u8; LENGTH_BYTES],
    most: usize,
) -> Result<(usize, usize), Error> {
    let value_bytes = u32::from_be_bytes(length) as usize;
    let rest = payload_bytes.checked_sub(LENGTH_BYTES).and_then(|rest| rest.checked_sub(value_bytes));
    match rest {
        Some(content) if value_bytes <= most && content <= MAX_IO_BYTES as usize => {
            Ok((value_bytes, content))
        }
        _ => Err(violation("file session", format_args!("{value_bytes} of {payload_bytes} bytes"))),
    }
}

/// Decodes an operation; only `Write` has content.
pub fn parse_op(bytes: &[u8], content_bytes: usize) -> Result<Op, Error> {
    let op: Op = decode("operation", bytes)?;
    if content_bytes > 0 && !matches!(op, Op::Write { .. }) {
        return Err(violation("operation", "content that nothing is done with"));
    }
    Ok(op)
}

/// The variant number of [`Answer::Held`] on the wire.
const HELD: u32 = 7;

/// Decodes an answer. An answer under a lease contains a plain one: nested ones are refused before decoding, because
/// the recursion would be as deep as the sender wants.
pub fn parse_answer(bytes: &[u8]) -> Result<Answer, Error> {
    let after_held = |bytes| match postcard::take_from_bytes::<u32>(bytes) {
        Ok((HELD, rest)) => Some(rest),
        _ => None,
    };
    match after_held(bytes).and_then(after_held) {
        Some(_) => Err(violation("answer", "a lease on a lease")),
        None => decode("answer", bytes),
    }
}

/// Callback that receives invalidations.
pub type Listener = Box<dyn Fn(&Changed) + Send + Sync>;

/// Grants leases and sends invalidations.
pub trait Lessor: Send + Sync {
    /// Whether there are leases at this place; `None` if that is not known yet.
    fn is_leasing(&self) -> Option<bool>;

    /// The current age: cached answers are tagged with the age in which they were obtained.
    fn age(&self) -> u64;

    /// Expiry of answers that were obtained in that age and not invalidated since.
    fn until(&self, age: u64) -> Option<Instant>;

    /// The round of the site's locks; 0 until known. A different one than before says that all locks are lost.
    fn lock_round(&self) -> u64;
}

/// How far below a directory changes are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Its own names.
    One,
    /// All below it.
    Tree,
}

/// Changes in a watched directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The names that came, went or changed.
    pub paths: Vec<RelPath>,
    /// Whether there were more, so that the directory must be listed.
    pub is_incomplete: bool,
}

/// A watched directory.
pub trait Watch: Send {
    /// Waits for changes; none after a timeout, and sometimes before.
    ///
    /// # Errors
    /// The watch has ended.
    fn next(&mut self, at_most: Duration) -> Result<Changes, Error>;
}

/// Executes operations: a local store, or a file session with another site.
pub trait Files: Send + Sync {
    /// The lessor for changes below a name of the root, or of the root itself, if there is one.
    fn lessor(&self, _name: Option<&[u8]>) -> Option<Arc<dyn Lessor>> {
        None
    }

    /// Registers the callback for invalidations; the callback returns only after the caches are invalidated.
    fn listen(&self, _listener: Listener) {}

    /// Executes an operation; `content` is the content of a `Write`.
    ///
    /// # Errors
    /// The error of the operation.
    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error>;

    /// Executes a `Write` of a block, and returns its memory: it is not copied where another thread writes it.
    ///
    /// # Errors
    /// As `operate`.
    fn write_block(
        &self,
        draft: Handle,
        offset: u64,
        block: AlignedBlock,
    ) -> Result<(Answer, AlignedBlock), Error> {
        let answer = self.operate(Op::Write { handle: draft, offset }, &block)?;
        Ok((answer, block))
    }

    /// Reads into `buf`; returns fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// As `operate`.
    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;

    /// Sets the condition under which a draft is published from now on; it is checked in the same step.
    ///
    /// # Errors
    /// `VersionMismatch` towards a PoP of wire 3; `Unsupported` where nothing is checked; `NotOpen`.
    fn require(&self, _draft: Handle, _condition: Precondition) -> Result<(), Error> {
        Err(Error::new(
            Code::Unsupported,
            "set precondition",
            "file session",
            "no conditions are checked here",
        ))
    }

    /// Sets extended attributes that a draft has when it is published, in place of those of the same names; an empty value
    /// stands for none.
    ///
    /// # Errors
    /// `VersionMismatch` towards a PoP of wire 3; `Unsupported` where none are kept; `PermissionDenied` for those that users may
    /// not set, at the latest when it is published; `NotOpen`.
    fn describe(&self, _draft: Handle, _attributes: Vec<Xattr>) -> Result<(), Error> {
        let cause = "no attributes of drafts are kept here";
        Err(Error::new(Code::Unsupported, "set attributes", "file session", cause))
    }

    /// The names in a directory from a place on, without their attributes; none where they do not come without them.
    ///
    /// # Errors
    /// As those of `OpenDir` and `ReadDir`.
    fn names(&self, _dir: &RelPath, _from: &NamesFrom) -> Result<Option<Arc<NameTable>>, Error> {
        Ok(None)
    }

    /// The entries of these names in a directory, each as by `LookFull` and none for one that is missing; none at all where
    /// they are looked up one by one.
    ///
    /// # Errors
    /// As those of `LookFull`; `NotADirectory` also for a symbolic link to a directory.
    fn look_at_names(&self, _dir: &RelPath, _names: &[Vec<u8>]) -> Result<Option<Vec<Option<Item>>>, Error> {
        Ok(None)
    }

    /// Watches a directory, where the files tell of changes.
    ///
    /// # Errors
    /// `Unsupported`, and those of `operate`.
    fn watch(&self, dir: &RelPath, _depth: Depth) -> Result<Box<dyn Watch>, Error> {
        Err(Error::new(Code::Unsupported, "watch", dir, "no changes are told at this place"))
    }

    /// Hints that an open file is read sequentially from start to end.
    fn expect_order(&self, _file: Handle) {}

    /// Opens a file for reading without a request, if all of its content was prefetched and `is_known` accepts that
    /// version.
    fn open_brought(&self, _path: &RelPath, _is_known: &dyn Fn(&Item) -> bool) -> Option<Handle> {
        None
    }

    /// A descriptor of the plain file behind an open file, if it is on this machine and may be read directly.
    fn descriptor(&self, _handle: Handle) -> Option<OwnedFd> {
        None
    }

    /// Space below a name of the root, or of the root itself.
    ///
    /// # Errors
    /// As `operate`.
    fn space(&self, _name: Option<&[u8]>) -> Result<Answer, Error> {
        self.operate(Op::Space, &[])
    }

    /// Whether the server can be reached; tries once to connect where that failed before.
    ///
    /// # Errors
    /// The error that operations would retry on.
    fn reach(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Fences off the asker: no name changes any more on its behalf, except by an operation that already runs.
    fn fence(&self) {}

    /// Closes the session in order: the server learns that no more requests come and that the client dropped its
    /// cache.
    fn end(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_round_trip() {
        let op = Op::Write { handle: 7, offset: 1 << 40 };
        let frame = begin_frame(FrameKind::Op, &op, 5);
        let payload_bytes =
            super::super::frame::parse_head(*frame.first_chunk().unwrap()).unwrap().payload_bytes;
        let (length, rest) = frame[HEAD_BYTES..].split_first_chunk().unwrap();
        let divided = divide(payload_bytes, *length, MAX_OP_BYTES).unwrap();
        assert_eq!((divided, rest.len()), ((rest.len(), 5), rest.len()));
        assert_eq!(parse_op(rest, 5).unwrap(), op);
        assert!(parse_op(&encode(&Op::Space), 1).is_err());
        let too_long = (MAX_OP_BYTES as u32 + 1).to_be_bytes();
        assert!(divide(1 << 20, too_long, MAX_OP_BYTES).is_err());
        assert!(divide(3, [0; 4], MAX_OP_BYTES).is_err() && divide(8, [0, 0, 0, 5], MAX_OP_BYTES).is_err());
        assert!(divide(5 + MAX_IO_BYTES as usize, [0; 4], MAX_OP_BYTES).is_err());
    }

    proptest! {
        #[test]
        fn decoders_accept_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse_op(&bytes, 0);
            let _ = parse_answer(&bytes);
        }
    }

    #[test]
    fn nested_answers_are_not_decoded() {
        let held = Answer::Done.joined(Some(Vec::new()));
        assert_eq!(parse_answer(&encode(&held)).unwrap(), held);
        let twice = Answer::Held { answer: Box::new(held), dirs: Vec::new() };
        assert!(parse_answer(&encode(&twice)).is_err());
        // Nested as deep as a frame is long, in both encodings of the number.
        assert!(parse_answer(&[7; 1 << 20]).is_err());
        assert!(parse_answer(&[0x87, 0x00].repeat(1 << 19)).is_err());
    }
}
