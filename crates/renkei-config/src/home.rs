//! The locations of a PoP's or a user's configuration, keys, state and socket, and how those files are written.
//!
//! One directory (`--dir D`) holds everything and may be both a PoP's and a user's; the trust of a user of another
//! site, and the files of a named identity (`--identity`), are then in `user/` and `identities/`. Without it, root
//! uses `/etc/renkei`, `/var/lib/renkei` and `/run/renkei`, other users the XDG folders.
//!
//! Guarantees: a file written here is complete or absent ([`write_file`]); directories with secrets have mode 700.
//! Non-goal: the content of the files.

use renkei_core::error::{Code, Error};
use renkei_core::path::{SiteName, is_label};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The directories of one PoP or user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    config: PathBuf,
    state: PathBuf,
    runtime: PathBuf,
    /// The named identity of its user; `None` for the default one.
    identity: Option<String>,
}

impl Home {
    /// Selects by `--dir`, else `RENKEI_DIR`, else by the user of the process.
    pub fn select(dir: Option<&Path>) -> Result<Self, Error> {
        let dir = dir.map(Path::to_path_buf).or_else(|| variable("RENKEI_DIR").map(PathBuf::from));
        match dir {
            Some(dir) => Ok(Home::at(&absolute(&dir)?)),
            None if rustix::process::geteuid().is_root() => Ok(Home::system()),
            None => Home::xdg(&variable),
        }
    }

    /// Everything in one directory.
    pub fn at(dir: &Path) -> Self {
        Home { config: dir.into(), state: dir.join("state"), runtime: dir.join("run"), identity: None }
    }

    /// The directories of the PoP that a machine runs as a service.
    pub fn system() -> Self {
        let [config, state, runtime] = ["/etc/renkei", "/var/lib/renkei", "/run/renkei"].map(PathBuf::from);
        Home { config, state, runtime, identity: None }
    }

    fn xdg(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let user_home = variable("HOME").map(PathBuf::from);
        let folder = |name: &str, below_home: &str| {
            variable(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
                .or_else(|| user_home.as_ref().map(|home| home.join(below_home)))
                .map(|path| path.join("renkei"))
        };
        let missing = || Error::new(Code::UsageInvalid, "select directory", "HOME", "not set; give --dir");
        let config = folder("XDG_CONFIG_HOME", ".config").ok_or_else(missing)?;
        let state = folder("XDG_STATE_HOME", ".local/state").ok_or_else(missing)?;
        let runtime = match variable("XDG_RUNTIME_DIR") {
            Some(dir) => PathBuf::from(dir).join("renkei"),
            None => state.join("run"),
        };
        Ok(Home { config, state, runtime, identity: None })
    }

    /// Selects another identity of its user: `name`, else RENKEI_IDENTITY, else the default one.
    ///
    /// # Errors
    /// `UsageInvalid` for an invalid name.
    pub fn with_identity(self, name: Option<&str>) -> Result<Self, Error> {
        let identity = match name {
            Some(name) => Some(name.to_owned()),
            None => variable("RENKEI_IDENTITY").map(|name| name.to_string_lossy().into_owned()),
        };
        match identity.as_deref().filter(|name| !is_label(name)) {
            Some(name) => {
                let cause = "an identity is named by 1 to 63 of a-z, 0-9 and -, starting with a letter";
                Err(Error::new(Code::UsageInvalid, "select identity", name, cause))
            }
            None => Ok(Home { identity, ..self }),
        }
    }

    /// Whether a named identity is selected.
    pub fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// The user's own directories, which must not mix with the trust of a PoP in this directory.
    pub fn of_user(&self) -> Home {
        let user = match &self.identity {
            Some(name) => Path::new("identities").join(name),
            None => "user".into(),
        };
        Home {
            config: self.config.join(&user),
            state: self.state.join(&user),
            runtime: self.runtime.clone(),
            identity: None,
        }
    }

    /// The socket of the PoP that a machine runs as a service.
    pub fn system_socket() -> PathBuf {
        Home::system().socket()
    }

    /// The directory of the configuration, given by `--dir`.
    pub fn config_dir(&self) -> &Path {
        &self.config
    }

    /// The PoP's configuration.
    pub fn config_file(&self) -> PathBuf {
        self.config.join("config.toml")
    }

    /// Keys and certificates of the PoP; mode 700.
    pub fn pki_dir(&self) -> PathBuf {
        self.config.join("pki")
    }

    /// Certificate of the site's authority.
    pub fn ca_cert(&self) -> PathBuf {
        self.pki_dir().join("ca.pem")
    }

    /// Key of the site's authority.
    pub fn ca_key(&self) -> PathBuf {
        self.pki_dir().join("ca.key")
    }

    /// Key of the next authority, until its certificate is in place.
    pub fn ca_next_key(&self) -> PathBuf {
        self.pki_dir().join("ca-next.key")
    }

    /// The handover of the previous authority to the site's authority of this number.
    pub fn handover_file(&self, number: u32) -> PathBuf {
        self.pki_dir().join(format!("handover-{number}.toml"))
    }

    /// The issuers whose tokens the PoP accepts.
    pub fn issuers_file(&self) -> PathBuf {
        self.config.join("issuers.toml")
    }

    /// Key that signs the tokens of the PoP.
    pub fn token_key(&self) -> PathBuf {
        self.pki_dir().join("token.key")
    }

    /// The S3 keys of users.
    pub fn s3_key_dir(&self) -> PathBuf {
        self.state_dir().join("s3-keys")
    }

    /// State of uploads in parts by S3.
    pub fn s3_upload_dir(&self) -> PathBuf {
        self.state_dir().join("s3-uploads")
    }

    /// Certificate of the PoP.
    pub fn host_cert(&self) -> PathBuf {
        self.pki_dir().join("host.pem")
    }

    /// Certificate of the PoP under the former name of its site, for partners that do not know the new one.
    pub fn former_host_cert(&self) -> PathBuf {
        self.pki_dir().join("host-former.pem")
    }

    /// Key of the PoP.
    pub fn host_key(&self) -> PathBuf {
        self.pki_dir().join("host.key")
    }

    /// Site cards of the trusted sites.
    pub fn trust_dir(&self) -> PathBuf {
        self.config.join("trust")
    }

    /// The former names of renamed sites.
    pub fn former_names_file(&self) -> PathBuf {
        self.trust_dir().join("former-names")
    }

    /// The table principal -> account.
    pub fn map_file(&self) -> PathBuf {
        self.config.join("map")
    }

    /// The configuration of each volume.
    pub fn volumes_dir(&self) -> PathBuf {
        self.config.join("volumes")
    }

    /// Serials of certificates that the site's authority revoked.
    pub fn revoked_file(&self) -> PathBuf {
        self.pki_dir().join("revoked")
    }

    /// The options of the user's last login.
    pub fn login_file(&self) -> PathBuf {
        self.of_user().config.join("login")
    }

    /// Origin of the user's credential, if it was not got by the account: the file of a token, a provider.
    pub fn login_origin(&self) -> PathBuf {
        self.of_user().config.join("login-origin.json")
    }

    /// Certificates that were got for tokens and proxies, until they end; mode 700.
    pub fn borrowed_dir(&self) -> PathBuf {
        self.of_user().state.join("borrowed")
    }

    /// A user's certificate chain and key; mode 600 in a directory of mode 700.
    pub fn user_credential(&self) -> PathBuf {
        self.of_user().config.join("credential.pem")
    }

    /// The credential of this directory's mounts, as [`Home::user_credential`].
    pub fn mount_credential(&self) -> PathBuf {
        self.of_user().config.join("mount.pem")
    }

    /// The mounts that were granted credentials of their own.
    pub fn mounts_file(&self) -> PathBuf {
        self.config.join("mount-credentials")
    }

    /// State of the daemon and the client; mode 700.
    pub fn state_dir(&self) -> &Path {
        &self.state
    }

    /// Revocation lists of the trusted sites.
    pub fn crl_dir(&self) -> PathBuf {
        self.state.join("crl")
    }

    /// The revocation list of one site.
    pub fn crl_file(&self, site: &SiteName) -> PathBuf {
        self.crl_dir().join(format!("{site}.crl"))
    }

    /// Serial, principal and expiry of every certificate issued here.
    pub fn issued_file(&self) -> PathBuf {
        self.state.join("issued")
    }

    /// The history of changed cards of other sites.
    pub fn cards_file(&self) -> PathBuf {
        self.state_dir().join("cards.jsonl")
    }

    /// Digest of the site's card, and the partners that have not taken it yet.
    pub fn told_file(&self) -> PathBuf {
        self.state.join("told-cards")
    }

    /// The name of this PoP among those that share a catalogue.
    pub fn runner_file(&self) -> PathBuf {
        self.state.join("runner")
    }

    /// The recorded identity of each storage.
    pub fn storages_dir(&self) -> PathBuf {
        self.state.join("storages")
    }

    /// Marker: the state was restored from a backup and the PoP has not run since.
    pub fn restored_file(&self) -> PathBuf {
        self.state.join("restored")
    }

    /// Journals of transfers.
    pub fn journal_dir(&self) -> PathBuf {
        self.state.join("journal")
    }

    /// Checksums that were computed on demand.
    pub fn checksum_dir(&self) -> PathBuf {
        self.state.join("checksums")
    }

    /// Directory of the socket; every user of the machine may enter it.
    pub fn runtime_dir(&self) -> &Path {
        &self.runtime
    }

    /// The socket for local users.
    pub fn socket(&self) -> PathBuf {
        self.runtime.join("renkei.sock")
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn absolute(dir: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(dir).map_err(|error| file_error("select directory", dir, &error))
}

/// Creates a directory and its missing parents with `mode`; the mode of an existing one is kept.
pub fn make_dir(path: &Path, mode: u32) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| file_error("create directory", path, &error))
}

/// Creates a directory for secrets: mode 700, even if it existed with a wider one.
pub fn make_private_dir(path: &Path) -> Result<(), Error> {
    make_dir(path, 0o700)?;
    let metadata = path.metadata().map_err(|error| file_error("inspect directory", path, &error))?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
        .map_err(|error| file_error("close directory", path, &error))
}

/// Atomically replaces a file: temporary name, fsync, rename, fsync of the directory.
///
/// The file never exists with a wider mode than `mode`, whatever the umask.
pub fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let temp = temp_path(path);
    let written = write_temp(&temp, bytes, mode).and_then(|()| std::fs::rename(&temp, path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&temp);
        return Err(file_error("write", path, &error));
    }
    let parent = path.parent().unwrap_or(Path::new("/"));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(|error| file_error("sync", parent, &error))
}

fn temp_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.{:?}.new", std::process::id(), std::thread::current().id()));
    path.with_file_name(name)
}

fn write_temp(temp: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // Leftover of an earlier process with the same id.
    let _ = std::fs::remove_file(temp);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(temp, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes)?;
    file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    file.sync_all()
}

/// Opens a regular file, no link, FIFO or device: others may have write access to its directory, and reading from a
/// FIFO may block for ever.
///
/// # Errors
/// Those of the system; `InvalidData` if it is no regular file.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")),
    }
}

/// Reads a text file of at most `limit` bytes; `None` if there is none.
pub fn read_text(path: &Path, limit: u64) -> Result<Option<String>, Error> {
    use io::Read;
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_error("read", path, &error)),
    };
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).map_err(|error| file_error("read", path, &error))?;
    if text.len() as u64 > limit {
        return Err(Error::new(Code::ConfigInvalid, "read", path.display(), "the file is too large"));
    }
    Ok(Some(text))
}

/// Appends a line to a file that only its owner can read, creating it if it is missing; a partial last line, left
/// by a full disk or a power cut, is terminated first.
///
/// # Errors
/// Those of the file system.
pub fn append_line(path: &Path, line: &str) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let end = if ends_whole(&file)? { "" } else { "\n" };
    file.write_all(format!("{end}{line}").as_bytes())?;
    Ok(file)
}

/// Writes records after the first `end` bytes of a file, all of them or none, and returns the new end. A partial
/// record, as a full disk leaves it, would hide or shift those after it.
///
/// # Errors
/// Those of the file system.
pub fn append_whole(file: &File, end: u64, records: &[u8]) -> io::Result<u64> {
    match file.write_all_at(records, end) {
        Ok(()) => Ok(end + records.len() as u64),
        Err(error) => {
            // If truncation fails, the next records overwrite the partial one.
            let _ = file.set_len(end);
            Err(error)
        }
    }
}

/// Whether a file is empty or its last line is terminated.
fn ends_whole(file: &File) -> io::Result<bool> {
    let (length, mut last) = (file.metadata()?.len(), [b'\n']);
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    Ok(last == [b'\n'])
}

/// Converts an I/O error of a file or directory of renkei's own.
pub fn file_error(op: &str, path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::PathNotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        io::ErrorKind::AlreadyExists => Code::PathExists,
        io::ErrorKind::NotADirectory => Code::NotADirectory,
        io::ErrorKind::IsADirectory => Code::IsADirectory,
        io::ErrorKind::StorageFull => Code::NoSpace,
        io::ErrorKind::QuotaExceeded => Code::QuotaExceeded,
        io::ErrorKind::ReadOnlyFilesystem => Code::ReadOnlyStorage,
        io::ErrorKind::InvalidData => Code::ConfigInvalid,
        _ => Code::IoFailed,
    };
    Error::new(code, op, path.display(), error)
}

/// A file and an offset after which `bytes` bytes can be written: longer writes are cut short, as on a full disk.
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)] // a fixture that cannot be made fails the test
pub fn file_with_room(bytes: u64) -> (File, u64) {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    /// A multiple of the page size, up to which the kernel writes before it meets the seal.
    const LENGTH: u64 = 1 << 16;
    let file = File::from(memfd_create("room", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(LENGTH).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    (file, LENGTH - bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn one_directory_holds_everything() {
        let home = Home::at(Path::new("/x"));
        assert_eq!(home.config_file(), Path::new("/x/config.toml"));
        assert_eq!(home.socket(), Path::new("/x/run/renkei.sock"));
        assert_eq!(home.journal_dir(), Path::new("/x/state/journal"));
        assert!(Home::select(Some(Path::new("relative"))).unwrap().config_dir().is_absolute());
    }

    #[test]
    fn xdg_variables_are_honoured_and_have_defaults() {
        let home = Home::xdg(&|name| (name == "HOME").then(|| "/home/a".into())).unwrap();
        assert_eq!(home.config_file(), Path::new("/home/a/.config/renkei/config.toml"));
        assert_eq!(home.socket(), Path::new("/home/a/.local/state/renkei/run/renkei.sock"));
        let home = Home::xdg(&|name| Some(format!("/{name}").into())).unwrap();
        assert_eq!(home.config_dir(), Path::new("/XDG_CONFIG_HOME/renkei"));
        assert_eq!(home.socket(), Path::new("/XDG_RUNTIME_DIR/renkei/renkei.sock"));
        assert_eq!(Home::xdg(&|_| None).unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn files_are_replaced_atomically_with_their_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_file(&path, b"one", 0o644).unwrap();
        assert_eq!(mode(&path), 0o644);
        write_file(&path, b"two", 0o600).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o600));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(write_file(&path, b"x", 0o600).unwrap_err().code, Code::IsADirectory);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn records_that_do_not_fit_leave_no_part() {
        let (file, end) = file_with_room(10);
        assert_eq!(append_whole(&file, end, b"01234").unwrap(), end + 5);
        assert!(append_whole(&file, end + 5, b"012345").is_err());
        assert_eq!(file.metadata().unwrap().len(), end + 5);
    }

    #[test]
    fn private_directories_are_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        make_dir(&path, 0o755).unwrap();
        make_private_dir(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn large_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap().as_deref(), Some("12345"));
        assert_eq!(read_text(&path, 4).unwrap_err().code, Code::ConfigInvalid);
        assert_eq!(read_text(&dir.path().join("none"), 4).unwrap(), None);
    }
}
