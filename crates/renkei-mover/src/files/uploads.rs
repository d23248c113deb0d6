//! Uploads in parts over a store: each part is a temporary file next to the destination, under the key of the upload.
//!
//! Parts survive the open-file table and the process. In a volume they are plain files that its catalogue does not know, at
//! a follower beside its drafts. A journal with the key, by which the parts of an abandoned upload are found, is kept by
//! the caller ([`UploadJournals`]). Parts are composed by the file system (copy_file_range, reflink) into a draft, which is
//! published as any other.

use super::draft::{Beginning, Draft, Target};
use super::local_files::{LocalFiles, Open, item_or_nothing};
use renkei_config::random::random_bytes;
use renkei_core::entry::{Entry, EntryKind, FileTime, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Handle, Precondition};
use renkei_core::wire::uploads::{MAX_PART, Part, UploadId, UploadOp};
use renkei_store::Detail;
use renkei_store::temp::{temp_job, temp_name};
use std::collections::HashMap;

/// Permission bits of parts, and of a file that is new.
const PART_MODE: u32 = 0o600;
const FILE_MODE: u32 = 0o644;

/// How a file is published.
struct PublishedAs {
    condition: Precondition,
    mtime: Option<FileTime>,
    attributes: Vec<Xattr>,
}

/// Keeps account of the uploads of one user below a place.
pub trait UploadJournals: Send + Sync {
    /// Notes that an upload of the file at `path` begins.
    ///
    /// # Errors
    /// The reason why no more can be begun.
    fn begin(&self, path: &RelPath, upload: UploadId) -> Result<(), Error>;

    /// Notes that an upload goes on.
    ///
    /// # Errors
    /// `NotOpen` if it is over, or not this user's.
    fn renew(&self, path: &RelPath, upload: UploadId) -> Result<(), Error>;

    /// Notes that an upload is over, and its parts are gone.
    fn end(&self, upload: UploadId);
}

impl Open {
    pub(super) fn as_draft(&self) -> Option<&Draft> {
        match self {
            Open::Draft(draft) => Some(draft),
            _ => None,
        }
    }
}

impl LocalFiles {
    /// Performs an operation on the uploads of a file.
    pub(super) fn upload(&self, path: &RelPath, op: UploadOp) -> Result<Answer, Error> {
        match op {
            UploadOp::Begin => self.begin_upload(path).map(Answer::Upload),
            UploadOp::Part { upload, number } => self.begin_part(path, upload, number),
            UploadOp::List(upload) => self.parts(path, upload).map(Answer::Parts),
            UploadOp::Complete { upload, parts, condition, mtime, attributes } => {
                self.complete(path, upload, &parts, PublishedAs { condition, mtime, attributes })
            }
            UploadOp::Abandon(upload) => self.end_upload(path, upload).map(|()| Answer::Done),
        }
    }

    fn begin_upload(&self, path: &RelPath) -> Result<UploadId, Error> {
        let target = self.target(path)?;
        // A directory of that name, or a missing one on the way, is reported before content comes.
        item_or_nothing(&target, path, FILE_MODE).and_then(|found| match found.entry.kind {
            EntryKind::Dir => Err(Error::new(Code::IsADirectory, "upload", path, "")),
            _ => Ok(()),
        })?;
        let upload = u64::from_le_bytes(random_bytes()?);
        self.journals.as_ref().map_or(Ok(()), |journals| journals.begin(path, upload))?;
        Ok(upload)
    }

    fn renew(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        self.journals.as_ref().map_or(Ok(()), |journals| journals.renew(path, upload))
    }

    fn begin_part(&self, path: &RelPath, upload: UploadId, number: u32) -> Result<Answer, Error> {
        self.renew(path, upload)?;
        let name = part_name(path, upload, number)?;
        let target = Target { name, ..self.target(path)? };
        let handle = self.next_handle();
        let temp = draft_name(path, upload, handle)?;
        let item = item_or_nothing(&target, path, PART_MODE)?;
        let draft = Draft::begin(target, temp, Beginning::Empty, PART_MODE, None)?;
        self.insert(handle, Open::Draft(draft))?;
        Ok(Answer::Opened { handle, item })
    }

    fn parts(&self, path: &RelPath, upload: UploadId) -> Result<Vec<Part>, Error> {
        self.renew(path, upload)?;
        let dir = self.target(path)?.dir;
        let names = (1..=MAX_PART).map(|number| Ok((part_name(path, upload, number)?, number)));
        let numbers = names.collect::<Result<HashMap<_, _>, Error>>()?;
        let mut parts = Vec::new();
        for listed in dir.list()? {
            let name = listed?.name;
            let Some(number) = numbers.get(&name).copied() else { continue };
            if let Entry { kind: EntryKind::File { stamp, .. }, .. } = dir.entry(&name, Detail::Basic)?.0 {
                parts.push(Part { number, bytes: stamp.size, mtime: stamp.mtime });
            }
        }
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    fn complete(
        &self,
        path: &RelPath,
        upload: UploadId,
        parts: &[u32],
        published_as: PublishedAs,
    ) -> Result<Answer, Error> {
        let PublishedAs { condition, mtime, attributes } = published_as;
        if parts.is_empty() || parts.windows(2).any(|pair| pair[0] >= pair[1]) {
            let cause = "its parts are named once each, in the order of their numbers";
            return Err(Error::new(Code::UsageInvalid, "complete", path, cause));
        }
        self.renew(path, upload)?;
        let target = self.target(path)?;
        let handle = self.next_handle();
        let temp = draft_name(path, upload, handle)?;
        let draft = Draft::begin(target.clone(), temp, Beginning::Empty, FILE_MODE, None)?;
        draft.require(condition);
        draft.describe(attributes)?;
        let mut end = 0;
        for number in parts {
            let part = target.dir.open_read(&part_name(path, upload, *number)?);
            let part = part.map_err(|error| missing(error, path, *number))?;
            end += draft.append(&*part, end)?;
        }
        self.insert(handle, Open::Draft(draft))?;
        let published = self.publish(handle, mtime);
        let closed = self.close(handle);
        let published = published?;
        closed?;
        self.end_upload(path, upload)?;
        Ok(published)
    }

    /// Removes the parts of an upload, and drafts of parts that a killed process left.
    fn end_upload(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        self.renew(path, upload)?;
        let dir = self.target(path)?.dir;
        for listed in dir.list()? {
            let name = listed?.name;
            if temp_job(&name) != Some(upload) {
                continue;
            }
            match dir.remove_file(&name) {
                Err(error) if error.code != Code::PathNotFound => return Err(error),
                _ => {}
            }
        }
        dir.sync()?;
        if let Some(journals) = &self.journals {
            journals.end(upload);
        }
        Ok(())
    }
}

/// The name of a part: that of a temporary file of the job `upload`.
fn part_name(path: &RelPath, upload: UploadId, number: u32) -> Result<Vec<u8>, Error> {
    if !(1..=MAX_PART).contains(&number) {
        let cause = format!("part {number}: they are numbered from 1 to {MAX_PART}");
        return Err(Error::new(Code::UsageInvalid, "upload", path, cause));
    }
    Ok(temp_name(upload, &path.child(format!("part-{number}").as_bytes())?))
}

fn draft_name(path: &RelPath, upload: UploadId, handle: Handle) -> Result<Vec<u8>, Error> {
    Ok(temp_name(upload, &path.child(format!("draft-{handle}").as_bytes())?))
}

fn missing(error: Error, path: &RelPath, number: u32) -> Error {
    match error.code {
        Code::PathNotFound => {
            Error::new(Code::PathNotFound, "complete", path, format!("part {number} has not come"))
        }
        _ => error,
    }
}
