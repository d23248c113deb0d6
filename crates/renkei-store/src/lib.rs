//! Storage backends: one trait, a local file system behind it, and a wrapper that injects faults.
//!
//! A [`Store`] is a jail: nothing outside its root can be read or written through it, whatever symbolic links, `..` or
//! races are tried. Work is done on handles, as with openat: a [`Dir`] names one directory for as long as it lives, and
//! every call takes one name in it. Calls block, take `&self` and share no lock, so that many threads may work on one
//! store; those threads' own credentials (set by the caller) decide what is allowed.
//!
//! [`Dir::entry`] returns and [`WriteFile::set_meta`] takes the same [`Meta`], so a tree that is read entry by entry
//! and written entry by entry is a faithful copy: modes with set-id bits, mtimes in ns, `user.*` attributes, POSIX
//! ACLs, and ownership where the account may give it.
//!
//! Guarantees: no symbolic link is followed but by [`Store::dir`], and there only inside the root; a FIFO or device
//! swapped in cannot hang a call; every error names the operation and the path. Non-goals: atime, file capabilities,
//! `trusted.*` and `security.*` attributes, mandatory locks.
//!
//! [`local`] is the store on a file system, with its jail; [`fault`] and [`scoped`] wrap another store. [`marker`]
//! recognises a directory under any path, [`leases`] and [`locks`] are the tables of their kind, [`errno`] maps the
//! system's errors. Uses: `renkei-core`. The contract of a store is tested in `renkei-volume` (`store_conformance`), on
//! volumes as well.

pub mod checksum;
pub mod errno;
pub mod fault;
mod file;
mod group_sync;
mod jail;
pub mod leases;
mod listing;
pub mod local;
pub mod locks;
pub mod marker;
pub mod metadata;
pub mod names;
pub mod passwd;
pub mod permission_denied;
pub mod privileges;
pub mod scoped;
pub mod setuid_files;
pub mod strict_modes;
pub mod temp;
pub mod tree;

use checksum::Checksums;
use leases::LeaseTable;
use renkei_core::entry::{Entry, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::lease::HolderId;
use renkei_core::path::{RelPath, printable};
use renkei_core::wire::message::Algorithm;
pub use renkei_core::wire::message::Space;
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

pub use renkei_core::block::DIRECT_ALIGN;

/// Most directories of a lineage: trees that people make are less deep.
pub const MAX_LINEAGE: usize = 256;

/// A store of files, and its root.
pub trait Store: Send + Sync {
    /// Opens the root.
    fn root(&self) -> Result<Arc<dyn Dir>, Error>;

    /// Opens a directory, following symbolic links that stay inside the store.
    ///
    /// The path may be longer than the system's PATH_MAX.
    ///
    /// # Errors
    /// `OutsideStorage` for a link that leads out, `NotADirectory` and `PathNotFound` as usual.
    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error>;

    /// The free space of the file system that holds `path`.
    fn space(&self, path: &RelPath) -> Result<Space, Error>;

    /// The leases on this store; none where not all changes are seen.
    fn leases(&self) -> Option<Arc<LeaseTable>> {
        None
    }

    /// The same store for a lease holder, which gets no callbacks for its own changes.
    fn held_by(&self, _holder: HolderId) -> Option<Arc<dyn Store>> {
        None
    }

    /// Returns when all leases on names changed through this store are revoked or expired.
    fn settle(&self) {}

    /// Returns when a subsequent open sees all changes that were closed before, at any site (close-to-open); tells
    /// whether a request was needed for that.
    ///
    /// # Errors
    /// `SiteLost` names an unreachable site; local files can be opened all the same.
    fn catch_up(&self) -> Result<bool, Error> {
        Ok(false)
    }
}

/// One open directory.
pub trait Dir: Any + Send + Sync {
    /// The path it was opened under, for messages and [`Entry::path`].
    fn path(&self) -> &RelPath;

    /// The device number, equal for directories of one file system.
    fn device(&self) -> u64;

    /// Device and inode of this directory and of each one above it, also above the store, as far as the account gets
    /// and up to [`MAX_LINEAGE`].
    fn lineage(&self) -> Vec<(u64, u64)>;

    /// Opens a subdirectory; a symbolic link is `NotADirectory`.
    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error>;

    /// Opens a directory any number of levels down; a symbolic link anywhere is `NotADirectory`.
    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error>;

    /// Lists the names, in the file system's order, without `.` and `..`, reading on as the caller asks.
    fn list(&self) -> Result<Listing, Error>;

    /// What the directory is until its names change. None where that cannot be told: it was changed a moment ago, and another
    /// change could leave the same times; its times do not tell of all changes; its names come from elsewhere, too.
    fn version(&self) -> Option<DirVersion> {
        None
    }

    /// The attributes of `name`, never following it; [`Entry::path`] is this directory's path and the name.
    ///
    /// The kind is never `HardLink`: a tree walker detects those by `Raw::{dev, ino, nlink}`.
    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error>;

    /// The attributes of this directory itself.
    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error>;

    /// A number that tells `name`, or this directory if the name is empty, from files that had its inode number
    /// before; 0 where inode numbers are not used again, and where it is not known.
    ///
    /// # Errors
    /// As [`Dir::entry`].
    fn generation(&self, _name: &[u8]) -> Result<u64, Error> {
        Ok(0)
    }

    /// Opens a regular file for reading; anything else is refused.
    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error>;

    /// Opens a file of mode 600 for writing, new or (if `keep_existing`) with the content it has.
    ///
    /// An obstacle that is not a regular file with one name, owned by this account, is replaced by a new empty file;
    /// a directory is `IsADirectory`.
    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error>;

    /// Opens the temporary file `name` for direct I/O, if the file system supports it; such writes must be aligned to
    /// [`DIRECT_ALIGN`] in memory, offset and length.
    fn open_direct(&self, name: &[u8]) -> Option<Box<dyn WriteFile>>;

    /// Notes the digest of content that is to get this name, in a file with the attributes `stamp`, for stores that
    /// keep digests.
    fn note_content(&self, _name: &[u8], _stamp: &Stamp, _digest: &[u8; 32]) {}

    /// The checksums that files which come here are to be remembered with; none where that is not kept.
    fn checksums(&self) -> &[Algorithm] {
        &[]
    }

    /// Renames, replacing `to`. `to_dir` must be of the same store, else `CrossDevice`.
    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error>;

    /// Renames unless `to` exists, which is `PathExists`.
    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error>;

    /// Replaces `to` by a new version, written under the temporary name `from`; it was derived from the version
    /// `seen`, if known. A store in which several sites write names it a conflict copy if another site's version was
    /// published in between, so that both are kept.
    fn replace(
        &self,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        _seen: Option<&Stamp>,
    ) -> Result<Replaced, Error> {
        self.rename(from, to_dir, to).map(|()| Replaced::default())
    }

    /// Makes a directory; the umask applies to `mode`, as it does for mkdir.
    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error>;

    /// Makes a symbolic link `name` with `target` as its content, which is not validated.
    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error>;

    /// Gives the file `name` a further name; a symbolic link itself is linked, not its target.
    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error>;

    /// Removes anything but a directory.
    fn remove_file(&self, name: &[u8]) -> Result<(), Error>;

    /// Removes an empty directory.
    fn remove_dir(&self, name: &[u8]) -> Result<(), Error>;

    /// Applies metadata to `name` without following it; see [`WriteFile::set_meta`].
    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error>;

    /// Sets an extended attribute or an access list of `name`, or of this directory if the name is empty; without a
    /// value it is removed, if it is there. `Unsupported` where none are kept.
    fn set_xattr(&self, name: &[u8], xattr: &[u8], _value: Option<&[u8]>) -> Result<(), Error> {
        let cause = format!("{}: no extended attributes are kept here", printable(xattr));
        Err(Error::new(Code::Unsupported, "set attribute", errno::subject(self.path(), name), cause))
    }

    /// Applies metadata to this directory; see [`WriteFile::set_meta`].
    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error>;

    /// Whether this account owns the directory and its mode denies the owner to list, enter or change it.
    fn is_locked(&self) -> Result<bool, Error>;

    /// Adds the owner's rwx bits to this directory's mode; the other bits stay.
    fn unlock(&self) -> Result<(), Error>;

    /// Returns when content and metadata of the file `name` are durable, regardless of the writer.
    fn sync_file(&self, name: &[u8]) -> Result<(), Error>;

    /// Returns when this directory's names are durable. Threads that ask at the same time share a sync.
    fn sync(&self) -> Result<(), Error>;

    /// Returns when a file's content and this directory's names are durable.
    fn sync_with(&self, file: &dyn WriteFile) -> Result<(), Error> {
        file.sync_all()?;
        self.sync()
    }

    /// Whether a new file may get its name before its content is durable: readers that trust the names must compare
    /// them with the files after a crash.
    fn names_first(&self) -> bool {
        false
    }

    /// Returns when everything written so far to this directory's file system is durable.
    fn sync_fs(&self) -> Result<(), Error>;

    /// The descriptor of the plain directory, if there is one; it may be without the right to read (O_PATH).
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The concrete type, for downcasts: two directories of one store recognise each other.
    fn as_any(&self) -> &dyn Any;
}

/// A file open for reading.
pub trait ReadFile: Send + Sync {
    /// The file's current stamp.
    fn stamp(&self) -> Result<Stamp, Error>;

    /// Fills `buf` from `offset`; fewer bytes only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error>;

    /// Finds the first range at or after `from` that is not a hole; `None` when there is none.
    ///
    /// A file system without holes gives the rest of the file.
    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error>;

    /// Hints that `range` will be read from start to end.
    fn advise_sequential(&self, range: Range<u64>);

    /// The underlying descriptor, if any: for operations that the kernel performs between two descriptors (reflink,
    /// copy_file_range).
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The remembered checksums of the present content; none if it was changed since, or none were remembered.
    fn known_checksums(&self) -> Checksums {
        Checksums::new()
    }

    /// Remembers checksums of the content that it has with the size and mtime of `content`, where that can be kept.
    fn remember_checksums(&self, _content: &Stamp, _sums: &Checksums) {}

    /// Whether any process has the file open for writing, as far as the file system can tell; asked by the file's
    /// owner.
    fn has_writer(&self) -> bool;

    /// Whether it is an immutable version, identified by its stamp.
    fn is_version(&self) -> bool {
        false
    }
}

/// A file open for writing.
pub trait WriteFile: Send + Sync {
    /// The file's current stamp.
    fn stamp(&self) -> Result<Stamp, Error>;

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), Error>;

    /// Reads back what was written, as [`ReadFile::read_at`].
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error>;

    /// Finds data in written content, like [`ReadFile::next_data`].
    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        let size = self.stamp()?.size;
        Ok((from < size).then_some(from..size))
    }

    /// Truncates or extends the file; the extension is a hole.
    fn set_len(&self, len: u64) -> Result<(), Error>;

    /// Allocates `range` so that writes there cannot run out of space, where the file system can.
    fn allocate(&self, range: Range<u64>) -> Result<(), Error>;

    /// Bytes that an ordinary account, or the calling one if it is root, could still allocate; `None` where the file
    /// system allocates nothing ahead, or does not tell.
    fn room(&self) -> Option<u64>;

    /// Deallocates `range` (punches a hole); a no-op where the file system cannot.
    fn free(&self, range: Range<u64>);

    /// Applies metadata and returns the attributes that could not be kept, one error each.
    ///
    /// Attributes that are not in `meta` stay. Owner and group are set where the account may, else silently left;
    /// set-id bits are dropped unless the file belongs to the named owner (and group). A thread that works for others
    /// ([`privileges`]) changes no owner, and sets no access lists and no set-id bits that are not there.
    fn set_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error>;

    /// As [`ReadFile::remember_checksums`]; tells whether they are remembered.
    fn remember_checksums(&self, _content: &Stamp, _sums: &Checksums) -> bool {
        false
    }

    /// Starts writeback of `range` without waiting for it.
    fn start_writeback(&self, range: Range<u64>);

    /// Returns when the content is durable (fdatasync).
    fn sync_data(&self) -> Result<(), Error>;

    /// The descriptor behind it, as [`ReadFile::descriptor`].
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns when content and metadata are durable (fsync).
    fn sync_all(&self) -> Result<(), Error>;
}

/// The result of publishing a new version of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The name of the conflict copy, if it was published as one.
    pub beside: Option<Vec<u8>>,
    /// The file's stamp after publication; none if that is the stamp of the written file.
    pub stamp: Option<Stamp>,
}

/// The names in a directory, read lazily.
pub type Listing = Box<dyn Iterator<Item = Result<Listed, Error>> + Send>;

/// A directory with the names that it has had since its last change. After another change it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirVersion {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub ino: u64,
    /// Time of the last change of its names.
    pub mtime: FileTime,
    /// Time of the last change of its names or attributes.
    pub ctime: FileTime,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name, any bytes but NUL and `/`.
    pub name: Vec<u8>,
    /// Its type, if the listing has it.
    pub hint: TypeHint,
    /// Inode number; reading in inode order saves disk seeks.
    pub ino: u64,
}

/// The type of a listed name, if the file system keeps it in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeHint {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device.
    Special,
    /// Unknown; ask [`Dir::entry`].
    Unknown,
}

/// How much of an entry to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The fields of one stat call; no names of owner and group, no attributes.
    Basic,
    /// Everything in [`Meta`].
    Full,
}

/// Fields of the inode that are not transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    /// Inode number.
    pub ino: u64,
    /// Device number.
    pub dev: u64,
    /// Number of names.
    pub nlink: u64,
    /// Blocks of 512 bytes in use.
    pub blocks: u64,
    /// Numeric user id.
    pub uid: u32,
    /// Numeric group id.
    pub gid: u32,
    /// Time of last change of content or metadata.
    pub ctime: FileTime,
}
