//! What S3 knows of an object beside its content, in the extended attribute `user.s3.object` of the plain file.
//!
//! It names the content that it is about by length and modification time: a file that was changed in another way has no
//! stored ETag and checksum any more, and gets an ETag from its version.

use crate::error::s3_error;
use renkei_core::entry::{EntryKind, FileTime, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::Item;
use renkei_mover::files::workspace::Workspace;
use s3s::S3Result;
use s3s::dto::{Checksum, ChecksumType, ETag, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

/// The attribute with the facts of an object.
pub(crate) const OBJECT: &[u8] = b"user.s3.object";
/// The attribute with its tags, in the form of a query.
pub(crate) const TAGS: &[u8] = b"user.s3.tags";
/// Most bytes of user metadata, as at AWS.
pub(crate) const MAX_METADATA_BYTES: usize = 2048;
/// The ETag of a folder: the MD5 of nothing.
const EMPTY_MD5: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// The facts of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// The version of the format: 1.
    version: u32,
    /// Length of the content that the ETag and the checksum are of.
    size: u64,
    /// Its modification time, seconds and nanoseconds.
    mtime: (i64, u32),
    etag: String,
    /// A checksum, by the name of its header without `x-amz-checksum-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<(String, String)>,
    /// Headers that are given back as they came, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
    /// User metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
}

/// An object as it is now.
pub(crate) struct Object {
    pub(crate) item: Item,
    /// The stored facts, of whatever content.
    pub(crate) facts: Facts,
    pub(crate) tags: String,
}

impl Facts {
    /// Facts for content that is published with a modification time.
    pub(crate) fn of(mut self, size: u64, mtime: FileTime, etag: String, checksum: &Checksum) -> Self {
        self.version = 1;
        self.size = size;
        self.mtime = (mtime.secs, mtime.nanos);
        self.etag = etag;
        self.checksum = named(checksum);
        self
    }

    /// The attributes of the file; empty values for none.
    pub(crate) fn attributes(&self, tags: &str) -> Vec<Xattr> {
        let object = serde_json::to_vec(self).expect("facts are plain data");
        [(OBJECT, object), (TAGS, tags.as_bytes().to_vec())]
            .map(|(name, value)| Xattr { name: name.to_vec(), value })
            .into()
    }

    /// Whether nothing was stored.
    pub(crate) fn is_missing(&self) -> bool {
        self.version == 0
    }

    fn is_of(&self, stamp: &Stamp) -> bool {
        self.size == stamp.size
            && self.mtime == (stamp.mtime.secs, stamp.mtime.nanos)
            && !self.etag.is_empty()
    }
}

/// The one checksum of a set.
fn named(sums: &Checksum) -> Option<(String, String)> {
    let all = [
        ("crc64nvme", &sums.checksum_crc64nvme),
        ("crc32c", &sums.checksum_crc32c),
        ("crc32", &sums.checksum_crc32),
        ("sha256", &sums.checksum_sha256),
        ("sha1", &sums.checksum_sha1),
    ];
    all.into_iter().find_map(|(name, sum)| sum.as_ref().map(|sum| (name.to_owned(), sum.clone())))
}

impl Object {
    /// The object at a path; a directory is one, too.
    ///
    /// # Errors
    /// `PathNotFound`, and those of the files.
    pub(crate) fn find(files: &Workspace, path: &RelPath) -> Result<Self, Error> {
        files.stat_full(path).map(Object::of)
    }

    /// The object of an entry with its attributes.
    pub(crate) fn of(item: Item) -> Self {
        let xattrs = &item.entry.meta.xattrs;
        let value =
            |name: &[u8]| xattrs.iter().find(|xattr| xattr.name == name).map(|xattr| &xattr.value[..]);
        let facts = value(OBJECT).and_then(|value| serde_json::from_slice(value).ok()).unwrap_or_default();
        let tags = value(TAGS).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default();
        Object { item, facts, tags }
    }

    /// Whether it is a directory.
    pub(crate) fn is_folder(&self) -> bool {
        self.item.entry.kind == EntryKind::Dir
    }

    /// Length in bytes.
    pub(crate) fn size(&self) -> u64 {
        if self.is_folder() { 0 } else { self.item.entry.size() }
    }

    fn stamp(&self) -> Stamp {
        match self.item.entry.kind {
            EntryKind::File { stamp, .. } => stamp,
            _ => Stamp::default(),
        }
    }

    /// The ETag: that of the last change by S3, if the file was not changed since, else one of the file's version.
    pub(crate) fn etag(&self) -> ETag {
        if self.is_folder() {
            return ETag::Strong(EMPTY_MD5.into());
        }
        let stamp = self.stamp();
        match self.facts.is_of(&stamp) {
            true => ETag::Strong(self.facts.etag.clone()),
            false => ETag::Strong(etag_of_version(&stamp)),
        }
    }

    /// The checksum, if it is known of the present content.
    pub(crate) fn checksum(&self) -> Checksum {
        let mut sums = Checksum::default();
        let Some((name, sum)) = self.facts.checksum.clone().filter(|_| self.facts.is_of(&self.stamp()))
        else {
            return sums;
        };
        let kind = if sum.contains('-') { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT };
        sums.checksum_type = Some(ChecksumType::from_static(kind));
        match name.as_str() {
            "crc64nvme" => sums.checksum_crc64nvme = Some(sum),
            "crc32c" => sums.checksum_crc32c = Some(sum),
            "crc32" => sums.checksum_crc32 = Some(sum),
            "sha256" => sums.checksum_sha256 = Some(sum),
            _ => sums.checksum_sha1 = Some(sum),
        }
        sums
    }

    /// When it was changed last.
    pub(crate) fn modified(&self) -> Timestamp {
        modified(self.item.entry.meta.mtime)
    }

    /// The number of its tags.
    pub(crate) fn tag_count(&self) -> Option<i32> {
        let count = self.tags.split('&').filter(|tag| !tag.is_empty()).count();
        (count > 0).then(|| i32::try_from(count).unwrap_or(i32::MAX))
    }
}

/// The last second of the year 9999, the last that HTTP can write.
const LAST_SECOND: u64 = 253_402_300_799;

/// A file's time as S3 shows it: whole seconds, which HTTP has, so that all answers agree.
pub(crate) fn modified(time: FileTime) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(u64::try_from(time.secs).unwrap_or(0).min(LAST_SECOND)))
}

/// The ETag of a version that S3 did not write: no MD5, which its form tells (as that of an upload in parts).
fn etag_of_version(stamp: &Stamp) -> String {
    let Stamp { size, mtime, ctime, ino } = stamp;
    let text = format!("{size} {}.{} {}.{} {ino}", mtime.secs, mtime.nanos, ctime.secs, ctime.nanos);
    format!("{}-1", crate::checksum::md5_hex(text.as_bytes()))
}

/// Renkei's time of now, as a file keeps it.
pub(crate) fn now() -> FileTime {
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    FileTime { secs: now.as_secs().cast_signed(), nanos: now.subsec_nanos() }
}

/// Finds an object by its key.
///
/// # Errors
/// `NoSuchKey` for a file with the key of a folder and the other way round.
pub(crate) fn find(files: &Workspace, path: &RelPath, is_folder: bool) -> S3Result<Object> {
    let missing = || s3_error(Error::new(Code::PathNotFound, "find", path, "there is no such key"));
    let object = match Object::find(files, path) {
        // A name on the way is that of a file.
        Err(error) if error.code == Code::NotADirectory => return Err(missing()),
        found => found.map_err(s3_error)?,
    };
    match (object.is_folder() == is_folder, &object.item.entry.kind) {
        (true, EntryKind::Dir | EntryKind::File { .. }) => Ok(object),
        _ => Err(missing()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::{Entry, Meta};

    fn object(facts: Facts, stamp: Stamp) -> Object {
        let meta = Meta { mtime: stamp.mtime, ..Meta::default() };
        let entry = Entry { path: RelPath::root(), meta, kind: EntryKind::File { stamp, sparse: false } };
        let item = Item { entry, ino: stamp.ino, links: 1, blocks: 1, ctime: stamp.ctime };
        Object { item, facts, tags: String::new() }
    }

    #[test]
    fn an_etag_goes_with_the_content_it_was_stored_for() {
        let mtime = FileTime { secs: 1_700_000_000, nanos: 5 };
        let stamp = Stamp { size: 3, mtime, ..Stamp::default() };
        let sums = Checksum { checksum_crc32: Some("AAAAAA==".into()), ..Checksum::default() };
        let facts = Facts::default().of(3, mtime, "900150983cd24fb0d6963f7d28e17f72".into(), &sums);
        let same = object(facts.clone(), stamp);
        assert_eq!(same.etag().value(), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(same.checksum().checksum_crc32.as_deref(), Some("AAAAAA=="));
        let changed =
            object(facts.clone(), Stamp { mtime: FileTime { secs: 1_700_000_001, nanos: 0 }, ..stamp });
        assert!(changed.etag().value().ends_with("-1"));
        assert_eq!(changed.checksum().checksum_crc32, None);
        assert_ne!(changed.etag(), object(facts, Stamp { size: 4, ..stamp }).etag());
    }

    #[test]
    fn facts_are_text_in_an_attribute() {
        let mut facts = Facts::default().of(1, FileTime::default(), "e".into(), &Checksum::default());
        facts.metadata.insert("colour".into(), "blue".into());
        let stored = facts.attributes("a=b");
        assert_eq!(serde_json::from_slice::<Facts>(&stored[0].value).unwrap(), facts);
        assert_eq!(stored[1].value, b"a=b");
    }
}
