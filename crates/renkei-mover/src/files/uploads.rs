//! Uploads in parts over a store: each part is a temporary file next to the destination, under the key of the upload.
//!
//! Parts survive the open-file table and the process. The caller keeps a journal with the key, by which the parts of
//! an abandoned upload are found. Parts are composed by the file system (copy_file_range, reflink) into a draft, which is
//! published as any other.

use super::draft::{Beginning, Draft, Target};
use super::local_files::{LocalFiles, Open, item_or_nothing};
use renkei_config::random::random_bytes;
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Handle, Item, Precondition};
use renkei_core::wire::uploads::{MAX_PART, Part, UploadId, Uploads};
use renkei_core::wire::violation;
use renkei_store::Detail;
use renkei_store::temp::{refuse_temp_names, temp_job, temp_name};
use std::collections::HashMap;

/// Permission bits of parts, and of a file that is new.
const PART_MODE: u32 = 0o600;
const FILE_MODE: u32 = 0o644;

impl Uploads for LocalFiles {
    fn begin(&self, path: &RelPath) -> Result<UploadId, Error> {
        self.expect_writing()?;
        refuse_temp_names("make", path)?;
        let target = self.target(path)?;
        // A directory of that name, or a missing one on the way, is reported before content comes.
        item_or_nothing(&target, path, FILE_MODE).and_then(|found| match found.entry.kind {
            EntryKind::Dir => Err(Error::new(Code::IsADirectory, "upload", path, "")),
            _ => Ok(()),
        })?;
        random_bytes().map(u64::from_le_bytes)
    }

    fn begin_part(&self, path: &RelPath, upload: UploadId, number: u32) -> Result<(Handle, Item), Error> {
        self.expect_writing()?;
        let name = part_name(path, upload, number)?;
        let target = Target { name, ..self.target(path)? };
        let handle = self.next_handle();
        let temp = draft_name(path, upload, handle)?;
        let item = item_or_nothing(&target, path, PART_MODE)?;
        let draft = Draft::begin(target, temp, Beginning::Empty, PART_MODE, None)?;
        self.insert(handle, Open::Draft(draft))?;
        Ok((handle, item))
    }

    fn parts(&self, path: &RelPath, upload: UploadId) -> Result<Vec<Part>, Error> {
        let dir = self.target(path)?.dir;
        let names = (1..=MAX_PART).map(|number| Ok((part_name(path, upload, number)?, number)));
        let numbers = names.collect::<Result<HashMap<_, _>, Error>>()?;
        let mut parts = Vec::new();
        for listed in dir.list()? {
            let Some(number) = numbers.get(&listed?.name).copied() else { continue };
            let name = part_name(path, upload, number)?;
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
        condition: Precondition,
    ) -> Result<Item, Error> {
        self.expect_writing()?;
        if parts.is_empty() || parts.windows(2).any(|pair| pair[0] >= pair[1]) {
            let cause = "its parts are named once each, in the order of their numbers";
            return Err(Error::new(Code::UsageInvalid, "complete", path, cause));
        }
        let target = self.target(path)?;
        let handle = self.next_handle();
        let temp = draft_name(path, upload, handle)?;
        let draft = Draft::begin(target.clone(), temp, Beginning::Empty, FILE_MODE, None)?;
        draft.require(condition);
        let mut end = 0;
        for number in parts {
            let part = target.dir.open_read(&part_name(path, upload, *number)?);
            let part = part.map_err(|error| missing(error, path, *number))?;
            end += draft.append(&*part, end)?;
        }
        self.insert(handle, Open::Draft(draft))?;
        let published = self.publish(handle, None);
        let closed = self.close(handle);
        let published = published?;
        closed?;
        self.remove_parts(path, upload)?;
        match published {
            Answer::Item(item) => Ok(item),
            other => Err(violation("answer", format_args!("{other:?}"))),
        }
    }

    fn abandon(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        self.expect_writing()?;
        self.remove_parts(path, upload)
    }
}

impl LocalFiles {
    /// Removes the parts of an upload, and drafts of parts that a killed process left.
    fn remove_parts(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
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
        dir.sync()
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
