//! The state of uploads in parts: a file of the PoP for each, with a line about the upload and one for each part that is durable.
//!
//! The file service keeps the content of the parts; here are the names, ETags and checksums that S3 has beside them. A line
//! is synced before its part is answered. A state that nothing was added to for longer than its parts are kept is removed.

use crate::error::{refused, s3_error};
use crate::metadata::Facts;
use renkei_config::home::{file_error, make_private_dir};
use renkei_config::random::random_bytes;
use renkei_core::entry::FileTime;
use renkei_core::error::Error;
use renkei_core::units::hex;
use renkei_core::wire::uploads::UploadId;
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirEntry, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Digits of an id.
const ID_BYTES: usize = 32;
/// Parts are kept for a week after the last one came; their state a day longer.
const KEPT_FOR: Duration = Duration::from_secs(8 * 86400);
/// Most states that a request removes.
const MOST_SWEPT: usize = 16;
/// Largest state that is read: 10,000 parts that came five times each.
const MAX_BYTES: u64 = 16 << 20;

/// An upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadHead {
    /// The version of the format: 1.
    pub(crate) version: u32,
    /// The principal that began it.
    pub(crate) owner: String,
    pub(crate) bucket: String,
    pub(crate) key: String,
    /// Its number in the file service.
    pub(crate) upload: UploadId,
    pub(crate) began_unix: u64,
    pub(crate) facts: Facts,
    pub(crate) tags: String,
    /// The name of the checksum of its parts.
    pub(crate) checksum: String,
    /// Whether the checksum is that of the whole content, and not one of the parts' checksums.
    pub(crate) is_full: bool,
}

/// A part that is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UploadedPart {
    pub(crate) number: u32,
    pub(crate) size: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) md5: String,
    /// The checksum, base64.
    pub(crate) checksum: String,
}

impl UploadedPart {
    /// The time of its publication.
    pub(crate) fn time(&self) -> FileTime {
        FileTime { secs: self.mtime.0, nanos: self.mtime.1 }
    }
}

/// The state of an upload.
pub(crate) struct UploadState {
    path: PathBuf,
    pub(crate) head: UploadHead,
    /// The parts by number.
    pub(crate) parts: BTreeMap<u32, UploadedPart>,
}

impl UploadState {
    /// Stores a new upload; gives its id, and what was stored of those of the owner that are over since long.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn begin(folder: &Path, head: &UploadHead) -> S3Result<(String, Vec<UploadHead>)> {
        make_private_dir(folder).map_err(s3_error)?;
        let forgotten = sweep(folder, &head.owner);
        let id = hex(&random_bytes::<16>().map_err(s3_error)?);
        let path = folder.join(&id);
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(0o600).open(&path);
        let mut file = opened.map_err(|error| failed(&path, &error))?;
        append(&mut file, &path, head)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed(folder, &error))?;
        Ok((id, forgotten))
    }

    /// The upload with an id, of its owner.
    ///
    /// # Errors
    /// `NoSuchUpload` for one that is over, another user's, or of another key.
    pub(crate) fn find(folder: &Path, id: &str, owner: &str, bucket: &str, key: &str) -> S3Result<Self> {
        let unknown = || refused(S3ErrorCode::NoSuchUpload, "the upload is over, or is not yours");
        if id.len() != ID_BYTES || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(unknown());
        }
        let state = read(&folder.join(id)).ok_or_else(unknown)?;
        let UploadHead { owner: of, bucket: into, key: named, .. } = &state.head;
        match of == owner && into == bucket && named == key {
            true => Ok(state),
            false => Err(unknown()),
        }
    }

    /// The uploads of an owner into a bucket with their ids, in the order of keys and ids.
    ///
    /// # Errors
    /// Those of the folder.
    pub(crate) fn all(folder: &Path, owner: &str, bucket: &str) -> S3Result<Vec<(String, UploadHead)>> {
        let names = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names.map_err(|error| failed(folder, &error))?,
        };
        let mut all = Vec::new();
        for name in names.flatten() {
            let Some(state) = read(&name.path()) else { continue };
            if state.head.owner == owner && state.head.bucket == bucket {
                all.push((name.file_name().to_string_lossy().into_owned(), state.head));
            }
        }
        all.sort_by(|one, other| (&one.1.key, &one.0).cmp(&(&other.1.key, &other.0)));
        Ok(all)
    }

    /// Notes a part that is durable.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn note(&self, part: &UploadedPart) -> S3Result<()> {
        let opened = OpenOptions::new().append(true).open(&self.path);
        append(&mut opened.map_err(|error| failed(&self.path, &error))?, &self.path, part)
    }

    /// Forgets the upload.
    pub(crate) fn forget(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "the state of an upload was not removed");
        }
    }
}

fn append(file: &mut File, path: &Path, line: &impl Serialize) -> S3Result<()> {
    // Each line begins anew: the one before may be torn.
    let mut text = vec![b'\n'];
    serde_json::to_writer(&mut text, line).expect("the state is plain data");
    text.push(b'\n');
    file.write_all(&text).and_then(|()| file.sync_data()).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> s3s::S3Error {
    s3_error(Error::clone(&file_error("keep upload", path, error)))
}

/// Reads a state; none if there is none, or nothing that this version knows.
fn read(path: &Path) -> Option<UploadState> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let head: UploadHead = serde_json::from_str(lines.next()?).ok()?;
    // A torn line is that of a part which was not answered.
    let parts = lines.filter_map(|line| serde_json::from_str::<UploadedPart>(line).ok());
    let parts = parts.map(|part| (part.number, part)).collect();
    (head.version == 1).then(|| UploadState { path: path.to_owned(), head, parts })
}

/// Reads the first line of a state.
fn read_head(path: &Path) -> Option<UploadHead> {
    let lines = BufReader::new(File::open(path).ok()?.take(MAX_BYTES)).lines();
    let head = lines.map_while(Result::ok).find(|line| !line.is_empty())?;
    serde_json::from_str(&head).ok().filter(|head: &UploadHead| head.version == 1)
}

/// Removes the states of uploads whose parts are gone, a few at a time; gives those of the owner, whose account may remove their
/// folders. Those of others stay as long again, for requests of theirs.
fn sweep(folder: &Path, owner: &str) -> Vec<UploadHead> {
    let Ok(names) = std::fs::read_dir(folder) else { return Vec::new() };
    let age = |name: &DirEntry| {
        let age = name.metadata().and_then(|found| found.modified()).ok()?.elapsed().ok()?;
        (age > KEPT_FOR).then_some(age)
    };
    let mut forgotten = Vec::new();
    let mut left = MOST_SWEPT;
    for (name, age) in names.flatten().filter_map(|name| age(&name).map(|age| (name, age))) {
        if left == 0 {
            break;
        }
        match read_head(&name.path()) {
            Some(head) if head.owner == owner => forgotten.push(head),
            Some(_) if age <= KEPT_FOR * 2 => continue,
            _ => {}
        }
        let _ = std::fs::remove_file(name.path());
        left -= 1;
    }
    forgotten
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_outlives_the_process_and_is_the_owners() {
        let dir = tempfile::tempdir().unwrap();
        let head = UploadHead {
            version: 1,
            owner: "alice@kek".into(),
            bucket: "data".into(),
            key: "a/b".into(),
            upload: 7,
            began_unix: 1,
            facts: Facts::default(),
            tags: String::new(),
            checksum: "crc32".into(),
            is_full: false,
        };
        let (id, _) = UploadState::begin(dir.path(), &head).unwrap();
        let find = |owner: &str, key: &str| UploadState::find(dir.path(), &id, owner, "data", key);
        let state = find("alice@kek", "a/b").unwrap();
        let part = |md5: &str| UploadedPart {
            number: 3,
            size: 5,
            mtime: (1, 2),
            md5: md5.into(),
            checksum: "AAAAAA==".into(),
        };
        state.note(&part("first")).unwrap();
        state.note(&part("second")).unwrap();
        OpenOptions::new()
            .append(true)
            .open(&state.path)
            .unwrap()
            .write_all(b"{\"number\": 4, \"si")
            .unwrap();
        let again = find("alice@kek", "a/b").unwrap();
        assert_eq!(again.head, head);
        assert_eq!(again.parts.values().map(|part| part.md5.as_str()).collect::<Vec<_>>(), ["second"]);
        for (owner, key) in [("bob@kek", "a/b"), ("alice@kek", "a")] {
            assert_eq!(find(owner, key).map(drop).unwrap_err().code(), &S3ErrorCode::NoSuchUpload);
        }
        assert!(UploadState::find(dir.path(), "../../x", "alice@kek", "data", "a/b").is_err());
        assert_eq!(UploadState::all(dir.path(), "alice@kek", "data").unwrap().len(), 1);
        let long_ago = SystemTime::now() - KEPT_FOR - Duration::from_secs(60);
        File::options().append(true).open(&again.path).unwrap().set_modified(long_ago).unwrap();
        let other = UploadHead { key: "other".into(), ..head.clone() };
        let bobs = UploadHead { owner: "bob@kek".into(), ..other.clone() };
        assert!(UploadState::begin(dir.path(), &bobs).unwrap().1.is_empty());
        assert!(again.path.exists());
        let (id_of_other, forgotten) = UploadState::begin(dir.path(), &other).unwrap();
        assert_eq!(forgotten, std::slice::from_ref(&head));
        assert!(find("alice@kek", "a/b").is_err());
        let other = UploadState::find(dir.path(), &id_of_other, "alice@kek", "data", "other").unwrap();
        other.forget();
        let (id_of_alice, _) = UploadState::begin(dir.path(), &head).unwrap();
        let of_alice = dir.path().join(id_of_alice);
        let longer_ago = SystemTime::now() - KEPT_FOR * 2 - Duration::from_secs(60);
        File::options().append(true).open(&of_alice).unwrap().set_modified(longer_ago).unwrap();
        assert!(UploadState::begin(dir.path(), &bobs).unwrap().1.is_empty());
        assert!(!of_alice.exists());
        assert!(UploadState::all(dir.path(), "alice@kek", "data").unwrap().is_empty());
    }
}
