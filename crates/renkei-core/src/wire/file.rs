//! Operations on single files, as a mount needs them.
//!
//! A *file session* is opened for one place at a site. Its data streams carry operations one way and answers the other,
//! on each stream in the same order; streams are independent of each other, and what is opened on one may be used on
//! all. Paths are relative to the place.
//!
//! Content that is written goes to a *draft*: a new version of the file that nobody sees before it is published. Who opened
//! the file before goes on reading the version he opened.

use super::message::{Space, batch};
use crate::entry::{Entry, FileTime};
use crate::error::Error;
use crate::path::{RelPath, path_bytes};
use serde::{Deserialize, Serialize};

/// An open file, directory or draft of a file session; chosen by the side that serves.
pub type Handle = u64;

/// Most bytes that one operation reads or writes.
pub const MAX_IO_BYTES: u32 = 1 << 20;

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
