//! The one table that maps the system's error numbers to renkei's codes.
//!
//! The same number means different things at different steps (EXDEV: out of the jail, or another disk), so the table
//! has two keys. A number that is not in it becomes `SystemCall`, with the system's own message as the cause.

use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use rustix::io::Errno;
use std::{fmt, io};

/// The operation that the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Finding a directory below the root.
    Resolve,
    /// Opening a file by its last name.
    Open,
    /// Creating, renaming or removing a name.
    Name,
    /// Creating a link, symbolic or hard.
    Link,
    /// Reading, writing or syncing content.
    Data,
    /// Reading or setting metadata.
    Meta,
}

/// The code of an error number at `step`.
pub fn code_of(errno: Errno, step: Step) -> Code {
    at_step(errno, step).unwrap_or_else(|| anywhere(errno))
}

/// Error numbers whose meaning depends on the step.
fn at_step(errno: Errno, step: Step) -> Option<Code> {
    Some(match (errno, step) {
        (Errno::XDEV, Step::Resolve | Step::Open) => Code::OutsideStorage,
        (Errno::LOOP, Step::Resolve) => Code::NotADirectory,
        (Errno::LOOP, _) => Code::OutsideStorage,
        // A file system without links returns EPERM; vfat refuses names with EINVAL.
        (Errno::PERM, Step::Link) => Code::Unsupported,
        (Errno::INVAL, Step::Open | Step::Name | Step::Link | Step::Meta) => Code::Unsupported,
        // Attributes: too large for the file system, or an unsupported value.
        (Errno::TOOBIG | Errno::RANGE | Errno::OVERFLOW, Step::Meta) => Code::Unsupported,
        (Errno::NXIO | Errno::NODEV, Step::Open) => Code::SpecialFile,
        (Errno::STALE, Step::Resolve) => Code::StorageMissing,
        _ => return None,
    })
}

/// Error numbers with the same meaning at every step.
fn anywhere(errno: Errno) -> Code {
    match errno {
        Errno::NOENT | Errno::STALE => Code::PathNotFound,
        Errno::EXIST => Code::PathExists,
        Errno::NOTDIR => Code::NotADirectory,
        Errno::ISDIR => Code::IsADirectory,
        Errno::ACCESS | Errno::PERM | Errno::NOKEY | Errno::KEYEXPIRED | Errno::KEYREVOKED => {
            Code::PermissionDenied
        }
        Errno::NOSPC => Code::NoSpace,
        Errno::DQUOT => Code::QuotaExceeded,
        Errno::ROFS => Code::ReadOnlyStorage,
        Errno::NAMETOOLONG => Code::NameTooLong,
        Errno::IO | Errno::REMOTEIO | Errno::UCLEAN | Errno::BADMSG | Errno::HWPOISON | Errno::NOMEDIUM => {
            Code::IoFailed
        }
        Errno::XDEV => Code::CrossDevice,
        Errno::NOTEMPTY => Code::NotEmpty,
        Errno::MFILE | Errno::NFILE => Code::TooManyOpenFiles,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::ILSEQ | Errno::FBIG | Errno::MLINK => Code::Unsupported,
        Errno::NOTCONN | Errno::SHUTDOWN | Errno::HOSTDOWN | Errno::HOSTUNREACH | Errno::TIMEDOUT => {
            Code::StorageMissing
        }
        Errno::NOMEM => Code::OutOfMemory,
        _ => Code::SystemCall,
    }
}

/// The error of a call on `subject` that the system refused.
#[cold]
pub fn error(errno: Errno, step: Step, op: &str, subject: impl fmt::Display) -> Error {
    Error::new(code_of(errno, step), op, subject, io::Error::from(errno))
}

/// The path of a name in a directory, of any length; made printable only when an error shows it.
pub struct Subject(Vec<u8>);

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str(".") } else { f.write_str(&printable(&self.0)) }
    }
}

/// Names `name` in `dir`, or `dir` itself if the name is empty.
pub fn subject(dir: &RelPath, name: &[u8]) -> Subject {
    let dir = dir.as_bytes();
    let slash: &[u8] = if dir.is_empty() || name.is_empty() { b"" } else { b"/" };
    Subject([dir, slash, name].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        use Step::*;
        let rows = [
            (Errno::NOENT, Resolve, Code::PathNotFound),
            (Errno::EXIST, Name, Code::PathExists),
            (Errno::NOTDIR, Resolve, Code::NotADirectory),
            (Errno::ISDIR, Open, Code::IsADirectory),
            (Errno::ACCESS, Open, Code::PermissionDenied),
            (Errno::PERM, Meta, Code::PermissionDenied),
            (Errno::PERM, Link, Code::Unsupported),
            (Errno::NOSPC, Data, Code::NoSpace),
            (Errno::DQUOT, Data, Code::QuotaExceeded),
            (Errno::ROFS, Name, Code::ReadOnlyStorage),
            (Errno::NAMETOOLONG, Name, Code::NameTooLong),
            (Errno::IO, Data, Code::IoFailed),
            (Errno::XDEV, Resolve, Code::OutsideStorage),
            (Errno::XDEV, Name, Code::CrossDevice),
            (Errno::XDEV, Link, Code::CrossDevice),
            (Errno::LOOP, Resolve, Code::NotADirectory),
            (Errno::LOOP, Open, Code::OutsideStorage),
            (Errno::NOTEMPTY, Name, Code::NotEmpty),
            (Errno::MFILE, Open, Code::TooManyOpenFiles),
            (Errno::NFILE, Resolve, Code::TooManyOpenFiles),
            (Errno::OPNOTSUPP, Meta, Code::Unsupported),
            (Errno::INVAL, Name, Code::Unsupported),
            (Errno::INVAL, Data, Code::SystemCall),
            (Errno::FBIG, Data, Code::Unsupported),
            (Errno::STALE, Resolve, Code::StorageMissing),
            (Errno::STALE, Data, Code::PathNotFound),
            (Errno::NOTCONN, Data, Code::StorageMissing),
            (Errno::NXIO, Open, Code::SpecialFile),
            (Errno::NOMEM, Open, Code::OutOfMemory),
            (Errno::BUSY, Name, Code::SystemCall),
        ];
        for (errno, step, code) in rows {
            assert_eq!(code_of(errno, step), code, "{errno:?} at {step:?}");
        }
    }

    #[test]
    fn an_error_names_the_path_and_the_system_words() {
        let dir = RelPath::parse(b"run7/raw").unwrap();
        let error = error(Errno::NOSPC, Step::Data, "write", subject(&dir, b"a\xff"));
        assert_eq!((error.subject.as_str(), error.op.as_str()), ("run7/raw/a\\xff", "write"));
        assert!(error.cause.contains("No space left on device"), "{}", error.cause);
        assert_eq!(subject(&RelPath::root(), b"").to_string(), ".");
    }
}
