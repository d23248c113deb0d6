//! Operations on single files, as a mount needs them.
//!
//! A *file session* is opened for one place at a site. Its data streams carry operations one way and answers the other,
//! on each stream in the same order; streams are independent of each other, and what is opened on one may be used on
//! all. Paths are relative to the place.
//!
//! Content that is written goes to a *draft*: a new version of the file that nobody sees before it is published. Who opened
//! the file before goes on reading the version he opened.

use super::frame::{FrameKind, HEAD_BYTES, head};
use super::message::{Space, TransferId, batch};
use super::{decode, encode, violation};
use crate::entry::{Entry, FileTime};
use crate::error::Error;
use crate::lease::locks::Span;
use crate::path::{Place, RelPath, path_bytes};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// An open file, directory or draft of a file session; chosen by the side that serves.
pub type Handle = u64;

/// Most bytes that one operation reads or writes.
pub const MAX_IO_BYTES: u32 = 1 << 20;

/// Most bytes that an operation may take beside what it writes.
pub const MAX_OP_BYTES: usize = 128 << 10;

/// Bytes before an operation or an answer in its frame's payload.
pub const LENGTH_BYTES: usize = 4;

/// Opens a file session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFiles {
    /// Identity for logs.
    pub id: TransferId,
    /// The directory that becomes the root.
    pub place: Place,
    /// Whether anything may be changed.
    pub write: bool,
    /// Streams the asker wants at most.
    pub max_streams: u16,
    /// A secret of the asker, the same in each session that goes on with one that was lost: by it what such a one left is
    /// found again, and descriptors are lent on the site's own machine.
    pub key: SessionKey,
    /// Whether the asker wants to hold leases on what it is told, where there are any.
    pub leases: bool,
    /// The asker's own number, the same in all sessions that it opens one after the other: whose the locks are.
    pub locks: [u8; 16],
    /// What of other sites' changes an open has to see.
    pub consistency: Consistency,
}

/// What an open has to see of changes that were closed through the PoPs of other sites before it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// What has come to this site.
    Relaxed,
    /// All of them. While a site that is needed for that is not reached, what has come to this site; that is told.
    #[default]
    CloseToOpen,
    /// All of them; else the open fails.
    Strict,
}

/// The secret that a file session is known by.
pub type SessionKey = [u8; 16];

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// What a path is; a link at its end is not followed. Answer: `Item`.
    Look(RelPath),
    /// Opens a directory to list it. Answer: `Opened`.
    OpenDir(RelPath),
    /// The next entries of an open directory. Answer: `Items`.
    ReadDir(Handle),
    /// Opens a file for reading: this version of it. Answer: `Opened`.
    Open(RelPath),
    /// Reads from an open file or a draft. Answer: `Data`, fewer bytes only at the end of the file.
    Read {
        /// What.
        handle: Handle,
        /// From where.
        offset: u64,
        /// How much, at most [`MAX_IO_BYTES`].
        bytes: u32,
    },
    /// Begins a new version of a file. Answer: `Opened`.
    Draft {
        /// The file.
        path: RelPath,
        /// What becomes of what is there.
        start: Start,
        /// Permission bits of a file that is new.
        mode: u32,
    },
    /// Writes into a draft; the bytes follow the operation. Answer: `Done`.
    Write {
        /// The draft.
        handle: Handle,
        /// Where.
        offset: u64,
    },
    /// Cuts or extends a draft. Answer: `Done`.
    SetLen {
        /// The draft.
        handle: Handle,
        /// To so many bytes.
        bytes: u64,
    },
    /// Makes what a draft holds durable and the file's content; the draft can be written on, for the next version.
    /// Answer: `Item`.
    Publish {
        /// The draft.
        handle: Handle,
        /// The time of modification it gets; else that of its last write.
        mtime: Option<FileTime>,
    },
    /// Closes what is open; what a draft holds and was not published is lost. Answer: `Done`.
    Close(Handle),
    /// Changes metadata. Answer: `Item`.
    Alter {
        /// Of what; a link itself is changed.
        path: RelPath,
        /// How.
        change: Alteration,
    },
    /// Makes a directory. Answer: `Item`.
    MakeDir {
        /// Where.
        path: RelPath,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a symbolic link. Answer: `Item`.
    MakeSymlink {
        /// Where.
        path: RelPath,
        /// What it leads to.
        #[serde(with = "path_bytes")]
        target: Vec<u8>,
    },
    /// Gives a file a further name. Answer: `Item`.
    MakeLink {
        /// A name it has.
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
        /// The name now.
        from: RelPath,
        /// The name then.
        to: RelPath,
        /// Whether something may have it.
        replace: bool,
    },
    /// Room. Answer: `Space`.
    Space,
    /// Locks a range of a file, or gives it up. Answer: `Done`.
    Lock {
        /// The file.
        path: RelPath,
        /// Who, among the asker's programs.
        owner: u64,
        /// Which range, and how.
        span: Span,
    },
    /// Who stands in the way of a lock. Answer: `Locked`.
    FindLock {
        /// The file.
        path: RelPath,
        /// Who asks.
        owner: u64,
        /// What he would want.
        span: Span,
    },
    /// Takes up a draft of a session that was lost: what was written and acknowledged is there. Answer: `Opened`, with the
    /// same handle.
    Resume {
        /// The file as it is named now.
        path: RelPath,
        /// The draft.
        handle: Handle,
        /// Permission bits of a file that is new.
        mode: u32,
    },
    /// Reads from a file that nobody has opened yet, of the version it has now. Answer: `Peeked`.
    Peek {
        /// What.
        path: RelPath,
        /// From where.
        offset: u64,
        /// How much, at most [`MAX_IO_BYTES`].
        bytes: u32,
    },
    /// Waits until so many writes to a draft are done that were asked for in this session, on whatever streams: what
    /// comes next on this stream finds them. Answer: `Done`.
    Await {
        /// The draft.
        handle: Handle,
        /// All that were asked for so far.
        writes: u64,
    },
}

impl Op {
    /// The names that it changes, as far as it says so itself.
    pub fn changed_paths(&self) -> Vec<&RelPath> {
        match self {
            Op::Draft { path, start: Start::New, .. } | Op::Alter { path, .. } => vec![path],
            Op::MakeDir { path, .. } | Op::MakeSymlink { path, .. } => vec![path],
            Op::MakeLink { from, to } | Op::Rename { from, to, .. } => vec![from, to],
            Op::Remove(path) | Op::RemoveDir(path) => vec![path],
            _ => Vec::new(),
        }
    }

    /// Whether it changes what others see, names or attributes.
    pub fn changes(&self) -> bool {
        matches!(self, Op::Publish { .. }) || !self.changed_paths().is_empty()
    }
}

/// What a draft begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// Nothing, and the name must be free: the file is made at once, empty.
    New,
    /// Nothing, whatever is there.
    Empty,
    /// The content that is there.
    Content,
}

/// A change of metadata; what is `None` stays.
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

/// An entry as a file system shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The entry; in a directory's list its path is the name alone.
    pub entry: Entry,
    /// A number that is its own as long as it is there.
    pub ino: u64,
    /// Number of names.
    pub links: u64,
    /// Blocks of 512 bytes in use.
    pub blocks: u64,
    /// Time of last change of content or metadata.
    pub ctime: FileTime,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It was done.
    Done,
    /// What there is.
    Item(Item),
    /// Open.
    Opened {
        /// What to use it by.
        handle: Handle,
        /// What it is.
        item: Item,
    },
    /// A part of a directory.
    Items {
        /// Entries.
        #[serde(deserialize_with = "batch")]
        items: Vec<Item>,
        /// Whether more follow.
        more: bool,
    },
    /// So many bytes follow the answer.
    Data(u32),
    /// Room.
    Space(Space),
    /// It failed.
    Failed(Error),
    /// An answer under a lease: what it says of names and attributes holds until the asker is told of a change.
    Held {
        /// The answer.
        answer: Box<Answer>,
        /// The directories that the operation changed, as they were after it.
        dirs: Vec<Item>,
    },
    /// What somebody else has locked, if he does.
    Locked(Option<Span>),
    /// So many bytes follow the answer.
    Peeked {
        /// What the file was when they were read.
        item: Item,
        /// How many.
        bytes: u32,
    },
}

impl Answer {
    /// How many bytes follow it; none if it is not of a kind that has any.
    pub fn data_bytes(&self) -> Option<u32> {
        match self {
            Answer::Data(bytes) | Answer::Peeked { bytes, .. } => Some(*bytes),
            _ => None,
        }
    }

    /// The answer itself, and if it is under a lease the directories that were changed.
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

/// What has changed at a place, by the numbers of its entries ([`Item::ino`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Names, each with the number of its directory; an empty one is all of them. What a directory has beside its names
    /// changed as well.
    pub names: Vec<(u64, Vec<u8>)>,
    /// What entries are, under whichever name.
    pub nodes: Vec<u64>,
    /// Anything.
    pub all: bool,
}

/// Most that one message about changes names; what is more is told as anything.
pub const MAX_CHANGED: usize = 4096;

impl Changed {
    /// One name.
    pub fn name(dir: u64, name: &[u8]) -> Self {
        Changed { names: vec![(dir, name.to_vec())], ..Changed::default() }
    }

    /// The directories in question.
    pub fn dirs(&self) -> Vec<u64> {
        self.names.iter().map(|(dir, _)| *dir).chain(self.nodes.iter().copied()).collect()
    }

    /// Whether it concerns what was found under a name, the number of its directory being `dir` and its own `own`.
    pub fn concerns(&self, dir: u64, is_name: impl Fn(&[u8]) -> bool, own: u64) -> bool {
        let is_of = |(at, _): &(u64, Vec<u8>)| *at == own;
        self.concerns_name(dir, is_name) || self.names.iter().any(is_of) || self.nodes.contains(&own)
    }

    /// Whether it concerns what a name of a directory leads to.
    pub fn concerns_name(&self, dir: u64, is_name: impl Fn(&[u8]) -> bool) -> bool {
        let is_it = |(at, name): &(u64, Vec<u8>)| *at == dir && (name.is_empty() || is_name(name));
        self.all || self.names.iter().any(is_it)
    }

    /// Whether it concerns which names a directory has.
    pub fn concerns_names_of(&self, dir: u64) -> bool {
        self.all || self.names.iter().any(|(at, _)| *at == dir)
    }

    /// Takes in what another one says.
    pub fn merge(&mut self, other: &Changed) {
        self.all |= other.all;
        if self.all
            || self.names.len() + other.names.len() > MAX_CHANGED
            || self.nodes.len() + other.nodes.len() > MAX_CHANGED
        {
            *self = Changed { all: true, ..Changed::default() };
            return;
        }
        for name in &other.names {
            // As one name is often changed several times in a row.
            if self.names.last() != Some(name) {
                self.names.push(name.clone());
            }
        }
        self.nodes.extend(&other.nodes);
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

/// How a payload of so many bytes is divided: those of the operation or answer, and those of the content.
///
/// # Errors
/// `ProtocolViolation` if no correct peer sends it so.
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

/// Reads an operation; only what writes has content.
pub fn parse_op(bytes: &[u8], content_bytes: usize) -> Result<Op, Error> {
    let op: Op = decode("operation", bytes)?;
    if content_bytes > 0 && !matches!(op, Op::Write { .. }) {
        return Err(violation("operation", "content that nothing is done with"));
    }
    Ok(op)
}

/// The number of [`Answer::Held`] on the wire.
const HELD: u32 = 7;

/// Reads an answer. One under a lease has a plain one in it: others would be read within each other, as deep as their sender
/// wants.
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

/// Who is told of changes.
pub type Listener = Box<dyn Fn(&Changed) + Send + Sync>;

/// Whoever tells of changes.
pub trait Lessor: Send + Sync {
    /// Whether there are leases at this place; none if that is not known yet.
    fn is_leasing(&self) -> Option<bool>;

    /// In which age what is learnt now is learnt.
    fn age(&self) -> u64;

    /// Up to when what was learnt in that age, and not changed since, may be believed.
    fn until(&self, age: u64) -> Option<Instant>;

    /// The round in which the site's locks are; 0 until that is known. Another one than before says that all are lost.
    fn lock_round(&self) -> u64;
}

/// Whoever does operations: a store here, or a file session with another site.
pub trait Files: Send + Sync {
    /// Who tells of changes below a name of the root, or of the root itself, if anybody does.
    fn lessor(&self, _name: Option<&[u8]>) -> Option<Arc<dyn Lessor>> {
        None
    }

    /// Says who is to be told of changes: he believes nothing of them any more when he returns.
    fn listen(&self, _listener: Listener) {}

    /// Does one; `content` is what `Write` writes.
    ///
    /// # Errors
    /// What the operation failed with.
    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error>;

    /// Reads into `buf`; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// As `operate`.
    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error>;

    /// Opens a file to read without asking for it, if all of its content was brought before and `is_known` says that this is
    /// the version.
    fn open_brought(&self, _path: &RelPath, _is_known: &dyn Fn(&Item) -> bool) -> Option<Handle> {
        None
    }

    /// The plain file behind a file that is open for reading, if it is on this machine and may be read directly.
    fn descriptor(&self, _handle: Handle) -> Option<OwnedFd> {
        None
    }

    /// Room below a name of the root, or of the root itself.
    ///
    /// # Errors
    /// As `operate`.
    fn space(&self, _name: Option<&[u8]>) -> Result<Answer, Error> {
        self.operate(Op::Space, &[])
    }

    /// Whether it can be asked now; one try is made where it could not be before.
    ///
    /// # Errors
    /// For what else would be waited.
    fn reach(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Says that whoever asked is gone: no name changes any more for what he asked, unless it is changing now.
    fn fence(&self) {}

    /// Ends it in order: whoever serves it hears that nothing more is asked, and that nothing is believed that he told.
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
        fn decoders_take_anything(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse_op(&bytes, 0);
            let _ = parse_answer(&bytes);
        }
    }

    #[test]
    fn answers_are_not_read_within_each_other() {
        let held = Answer::Done.joined(Some(Vec::new()));
        assert_eq!(parse_answer(&encode(&held)).unwrap(), held);
        let twice = Answer::Held { answer: Box::new(held), dirs: Vec::new() };
        assert!(parse_answer(&encode(&twice)).is_err());
        // As deep as a frame is long, in either way to write the number.
        assert!(parse_answer(&[7; 1 << 20]).is_err());
        assert!(parse_answer(&[0x87, 0x00].repeat(1 << 19)).is_err());
    }
}
