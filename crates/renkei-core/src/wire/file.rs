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
use crate::path::{Place, RelPath, path_bytes};
use serde::{Deserialize, Serialize};

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
}

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

/// Whoever does operations: a store here, or a file session with another site.
pub trait Files: Send + Sync {
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
            let _ = decode::<Answer>("answer", &bytes);
        }
    }
}
