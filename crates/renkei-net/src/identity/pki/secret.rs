//! Files that only their owner may read: keys and credentials.
//!
//! Guarantees: a secret is written atomically with mode 600 from its first byte; a file that others could read, or
//! that another user owns, is refused with `SecretExposed`, because it must be considered compromised.

use renkei_config::home::{file_error, make_private_dir, write_file};
use renkei_core::error::{Code, Error};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Largest secret file accepted: a chain and a key are a few kilobytes.
const MAX_BYTES: u64 = 256 * 1024;

/// Writes a secret into a directory of mode 700, which is made if missing.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    make_private_dir(path.parent().unwrap_or(Path::new("/")))?;
    write_file(path, text.as_bytes(), 0o600)
}

/// Reads a secret; `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<String>, Error> {
    read_with(path, OFlags::empty())
}

/// The same from a directory where others can make files: a link is not followed.
pub fn read_in_public(path: &Path) -> Result<Option<String>, Error> {
    read_with(path, OFlags::NOFOLLOW)
}

fn read_with(path: &Path, further: OFlags) -> Result<Option<String>, Error> {
    // Not blocking: opening a FIFO must not hang.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | further;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(file_error("read secret", path, &io::Error::from(errno))),
    };
    check(&file, path)?;
    let mut text = String::new();
    let read = file.take(MAX_BYTES).read_to_string(&mut text);
    read.map_err(|error| file_error("read secret", path, &error))?;
    Ok(Some(text))
}

/// Checks the open file, not the name, to exclude a race (TOCTOU).
fn check(file: &File, path: &Path) -> Result<(), Error> {
    let metadata = file.metadata().map_err(|error| file_error("read secret", path, &error))?;
    let exposed = |cause: String| Err(Error::new(Code::SecretExposed, "read secret", path.display(), cause));
    let reader = rustix::process::geteuid().as_raw();
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return exposed("not a regular file of a sensible size".into());
    }
    if metadata.mode() & 0o077 != 0 {
        return exposed(format!("its mode is {:o}, it must be 600", metadata.mode() & 0o7777));
    }
    if metadata.uid() != reader && metadata.uid() != 0 {
        return exposed(format!("it belongs to uid {}, not to uid {reader} or root", metadata.uid()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn round_trips_with_closed_modes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("user/key");
        write(&path, "secret").unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o7777, 0o700);
        assert_eq!(read(&path).unwrap().as_deref(), Some("secret"));
        assert_eq!(read(&dir.path().join("none")).unwrap(), None);
    }

    #[test]
    fn a_file_readable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write(&path, "secret").unwrap();
        for mode in [0o640, 0o604, 0o644, 0o601] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err();
            assert_eq!(error.code, Code::SecretExposed, "{mode:o}");
            assert!(error.cause.contains(&format!("{mode:o}")), "{error}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert!(read(&path).unwrap().is_some());
    }

    #[test]
    fn a_file_of_another_owner_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root to make a file of another owner");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write(&path, "secret").unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert_eq!(read(&path).unwrap_err().code, Code::SecretExposed);
    }

    #[test]
    fn special_files_are_refused_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from(0o600), 0)
            .unwrap();
        assert_eq!(read(&fifo).unwrap_err().code, Code::SecretExposed);
        assert_eq!(read(dir.path()).unwrap_err().code, Code::SecretExposed);
    }
}
