//! DeleteObject and DeleteObjects. Directories that were made on the way to a key go with the last one in them (`implied`).

use crate::error::{refused, s3_error};
use crate::implied::Parents;
use crate::key::Key;
use crate::metadata::Object;
use crate::read::{meets, refuse_version};
use crate::session::Session;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::{Follow, Workspace};
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    ETagCondition,
};
use s3s::{S3ErrorCode, S3Response, S3Result};

/// Most keys of one request, as at AWS.
const MAX_KEYS: usize = 1000;

const CONDITION: &str = "a removal is conditional on If-Match alone";

/// Answers DeleteObject.
pub(crate) fn one(session: &Session, input: DeleteObjectInput) -> S3Result<S3Response<DeleteObjectOutput>> {
    refuse_version(input.version_id.as_deref())?;
    if input.if_match_last_modified_time.is_some() || input.if_match_size.is_some() {
        return Err(refused(S3ErrorCode::NotImplemented, CONDITION));
    }
    remove(session, &input.bucket, &input.key, input.if_match.as_ref())?;
    Ok(S3Response::new(DeleteObjectOutput::default()))
}

/// Answers DeleteObjects.
pub(crate) fn many(
    session: &Session,
    input: DeleteObjectsInput,
) -> S3Result<S3Response<DeleteObjectsOutput>> {
    if input.delete.objects.len() > MAX_KEYS {
        return Err(refused(
            S3ErrorCode::MalformedXML,
            format!("at most {MAX_KEYS} keys are removed at once"),
        ));
    }
    session.look_at_bucket(&input.bucket)?;
    let is_quiet = input.delete.quiet.unwrap_or(false);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for object in input.delete.objects {
        let condition = object.e_tag.map(ETagCondition::ETag);
        let is_known = match object.last_modified_time.is_some() || object.size.is_some() {
            true => Err(refused(S3ErrorCode::NotImplemented, CONDITION)),
            false => refuse_version(object.version_id.as_deref()),
        };
        let removed = is_known.and_then(|()| remove(session, &input.bucket, &object.key, condition.as_ref()));
        match removed {
            Ok(()) if is_quiet => {}
            Ok(()) => deleted.push(DeletedObject { key: Some(object.key), ..DeletedObject::default() }),
            Err(error) => errors.push(s3s::dto::Error {
                code: Some(error.code().as_str().to_owned()),
                message: error.message().map(str::to_owned),
                key: Some(object.key),
                version_id: None,
            }),
        }
    }
    let output = DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        ..DeleteObjectsOutput::default()
    };
    Ok(S3Response::new(output))
}

/// Removes a key; one that is not there is removed already.
fn remove(session: &Session, bucket: &str, key: &str, condition: Option<&ETagCondition>) -> S3Result<()> {
    let root = session.bucket(bucket)?;
    let Ok(key) = Key::parse(key) else { return Ok(()) };
    let place = key.below(&root)?;
    let (files, path) = session.files_at(&place, Need::Write).map_err(s3_error)?;
    if let Some(condition) = condition {
        expect(&files, &path, condition)?;
    }
    let removed = match (key.is_folder, kind(&files, &path)) {
        (_, Err(error)) => Err(error),
        (true, Ok(EntryKind::Dir)) => files.rmdir(&path),
        (false, Ok(EntryKind::Dir)) | (true, Ok(_)) => return Ok(()),
        (false, Ok(_)) => files.remove(&path),
    };
    match removed {
        Ok(()) => {
            drop(Parents::new(&files, &place, &path, &key));
            Ok(())
        }
        // A folder with keys in it has none of its own any more.
        Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory | Code::NotEmpty) => {
            Ok(())
        }
        Err(error) => Err(s3_error(error)),
    }
}

fn kind(files: &Workspace, path: &RelPath) -> Result<EntryKind, Error> {
    files.stat(path, Follow::No).map(|item| item.entry.kind)
}

fn expect(files: &Workspace, path: &RelPath, condition: &ETagCondition) -> S3Result<()> {
    let object = Object::find(files, path).map_err(s3_error)?;
    match meets(condition, &object.etag()) {
        true => Ok(()),
        false => Err(refused(S3ErrorCode::PreconditionFailed, "the object is another version")),
    }
}
