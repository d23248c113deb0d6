//! GetObject and HeadObject: one version of a file, whole or a range of it.

use crate::error::{refused, s3_error};
use crate::key::Key;
use crate::metadata::{Object, find, modified};
use crate::session::Session;
use hyper::StatusCode;
use renkei_core::identity::Need;
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::{Reader, Workspace};
use renkei_site::files::body::{Blocks, NextBlock, Progress, Streamed};
use s3s::dto::{
    ETag, ETagCondition, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, Metadata,
    StreamingBlob, Timestamp, TimestampFormat,
};
use s3s::{Body, S3Error, S3ErrorCode, S3Response, S3Result};
use std::ops::Range;
use std::sync::Arc;

/// Conditions of a request that reads.
pub(crate) struct Conditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) if_modified_since: Option<Timestamp>,
    pub(crate) if_unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Judges an object, in the order of RFC 9110, section 13.2.2.
    ///
    /// # Errors
    /// `PreconditionFailed`, `NotModified` with the ETag.
    pub(crate) fn judge(&self, object: &Object) -> S3Result<()> {
        let (etag, at) = (object.etag(), object.modified());
        let failed = || Err(refused(S3ErrorCode::PreconditionFailed, "the object is another version"));
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) if !meets(condition, &etag) => return failed(),
            (None, Some(since)) if at > *since => return failed(),
            _ => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) if meets(condition, &etag) => Err(not_modified(&etag)),
            (None, Some(since)) if at <= *since => Err(not_modified(&etag)),
            _ => Ok(()),
        }
    }
}

/// Whether an ETag meets a condition.
pub(crate) fn meets(condition: &ETagCondition, etag: &ETag) -> bool {
    condition.is_any() || condition.as_etag().is_some_and(|wanted| wanted.value() == etag.value())
}

fn not_modified(etag: &ETag) -> S3Error {
    let mut known = S3Error::new(S3ErrorCode::NotModified);
    known.set_status_code(StatusCode::NOT_MODIFIED);
    if let Ok(value) = etag.to_http_header() {
        known.set_headers([(hyper::header::ETAG, value)].into_iter().collect());
    }
    known
}

/// Answers GetObject.
pub(crate) fn get(
    session: &Session,
    input: GetObjectInput,
    progress: Arc<dyn Progress>,
) -> S3Result<S3Response<GetObjectOutput>> {
    refuse_version(input.version_id.as_deref())?;
    let key = Key::parse(&input.key).map_err(as_missing)?;
    let (files, path) = session.files(&input.bucket, &key, Need::Read)?;
    let (object, reader) = open(&files, &path, key.is_folder)?;
    Conditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        if_modified_since: input.if_modified_since,
        if_unmodified_since: input.if_unmodified_since,
    }
    .judge(&object)?;
    let range = wanted(&object, input.range.as_ref(), input.part_number)?;
    let mut output = with_content(head_of(&object, range.is_none()));
    output.tag_count = object.tag_count();
    let content = range.clone().unwrap_or(0..object.size());
    output.content_length = Some(length(&content));
    output.content_range = range.map(|range| content_range(&range, object.size()));
    let content = Streamed::new(blocks(reader, content), progress);
    output.body = Some(StreamingBlob::from(Body::http_body_unsync(content)));
    Ok(S3Response::new(output))
}

/// Answers HeadObject.
pub(crate) fn head(session: &Session, input: HeadObjectInput) -> S3Result<S3Response<HeadObjectOutput>> {
    refuse_version(input.version_id.as_deref())?;
    let key = Key::parse(&input.key).map_err(as_missing)?;
    let (files, path) = session.files(&input.bucket, &key, Need::Look)?;
    let object = find(&files, &path, key.is_folder)?;
    Conditions {
        if_match: input.if_match,
        if_none_match: input.if_none_match,
        if_modified_since: input.if_modified_since,
        if_unmodified_since: input.if_unmodified_since,
    }
    .judge(&object)?;
    let range = wanted(&object, input.range.as_ref(), input.part_number)?;
    let mut output = head_of(&object, range.is_none());
    let Some(range) = range else { return Ok(S3Response::new(output)) };
    output.content_length = Some(length(&range));
    let mut response = S3Response::new(output);
    response.status = Some(StatusCode::PARTIAL_CONTENT);
    let value = content_range(&range, object.size()).parse().expect("digits are legal in a header");
    response.headers.insert(hyper::header::CONTENT_RANGE, value);
    Ok(response)
}

/// An object and its content, of one version.
fn open(files: &Workspace, path: &RelPath, is_folder: bool) -> S3Result<(Object, Option<Reader>)> {
    let object = find(files, path, is_folder)?;
    if is_folder {
        return Ok((object, None));
    }
    let reader = files.open(path).map_err(s3_error)?;
    // The version that was opened counts; facts of another are not those of its content.
    let object = Object { item: reader.item().clone(), ..object };
    Ok((object, Some(reader)))
}

/// A key that plain files cannot hold is not there.
pub(crate) fn as_missing(error: S3Error) -> S3Error {
    match error.code() {
        S3ErrorCode::InvalidArgument => refused(S3ErrorCode::NoSuchKey, error.message().unwrap_or_default()),
        _ => error,
    }
}

/// Refuses versions: plain files have one.
pub(crate) fn refuse_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(refused(S3ErrorCode::NoSuchVersion, "plain files have one version, null")),
    }
}

/// The range that is wanted; none for all.
fn wanted(
    object: &Object,
    range: Option<&s3s::dto::Range>,
    part: Option<i32>,
) -> S3Result<Option<Range<u64>>> {
    match (range, part) {
        (Some(_), Some(_)) => Err(refused(S3ErrorCode::InvalidRequest, "ask for a range or for a part")),
        (Some(range), None) => {
            range.check(object.size()).map(Some).map_err(|_| S3Error::new(S3ErrorCode::InvalidRange))
        }
        // The parts of an upload are one content afterwards.
        (None, Some(1)) | (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(refused(S3ErrorCode::InvalidPart, "the parts were composed; there is part 1 alone"))
        }
    }
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1))
}

fn length(range: &Range<u64>) -> i64 {
    i64::try_from(range.end - range.start).unwrap_or(i64::MAX)
}

/// The head of an object; its checksum is told with all of its content.
fn head_of(object: &Object, is_whole: bool) -> HeadObjectOutput {
    let header = |name: &str| object.facts.headers.get(name).cloned();
    let sums = if is_whole { object.checksum() } else { Default::default() };
    let metadata: Metadata = object.facts.metadata.clone().into_iter().collect();
    HeadObjectOutput {
        accept_ranges: Some("bytes".into()),
        cache_control: header("cache-control"),
        checksum_crc32: sums.checksum_crc32,
        checksum_crc32c: sums.checksum_crc32c,
        checksum_crc64nvme: sums.checksum_crc64nvme,
        checksum_sha1: sums.checksum_sha1,
        checksum_sha256: sums.checksum_sha256,
        checksum_type: sums.checksum_type,
        content_disposition: header("content-disposition"),
        content_encoding: header("content-encoding"),
        content_language: header("content-language"),
        content_length: Some(length(&(0..object.size()))),
        content_type: Some(header("content-type").unwrap_or_else(|| default_type(object).into())),
        e_tag: Some(object.etag()),
        expires: header("expires").and_then(|text| Timestamp::parse(TimestampFormat::HttpDate, &text).ok()),
        last_modified: Some(modified(object.item.entry.meta.mtime)),
        metadata: (!metadata.is_empty()).then_some(metadata),
        ..HeadObjectOutput::default()
    }
}

/// The head of an object as GetObject tells it.
fn with_content(head: HeadObjectOutput) -> GetObjectOutput {
    GetObjectOutput {
        accept_ranges: head.accept_ranges,
        cache_control: head.cache_control,
        checksum_crc32: head.checksum_crc32,
        checksum_crc32c: head.checksum_crc32c,
        checksum_crc64nvme: head.checksum_crc64nvme,
        checksum_sha1: head.checksum_sha1,
        checksum_sha256: head.checksum_sha256,
        checksum_type: head.checksum_type,
        content_disposition: head.content_disposition,
        content_encoding: head.content_encoding,
        content_language: head.content_language,
        content_type: head.content_type,
        e_tag: head.e_tag,
        expires: head.expires,
        last_modified: head.last_modified,
        metadata: head.metadata,
        ..GetObjectOutput::default()
    }
}

fn default_type(object: &Object) -> &'static str {
    if object.is_folder() { "application/x-directory" } else { "binary/octet-stream" }
}

/// The blocks of a range of a file; a folder has none.
fn blocks(reader: Option<Reader>, range: Range<u64>) -> NextBlock {
    let Some(reader) = reader else { return Box::new(|| Ok(None)) };
    if range.end - range.start == reader.size() {
        reader.expect_order();
    }
    Blocks::new(reader).of(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_etags() {
        let tag = ETag::Strong("abc".into());
        assert!(meets(&ETagCondition::Any, &tag));
        assert!(meets(&ETagCondition::ETag(ETag::Strong("abc".into())), &tag));
        assert!(!meets(&ETagCondition::ETag(ETag::Strong("abd".into())), &tag));
        assert!(refuse_version(Some("3")).is_err() && refuse_version(Some("null")).is_ok());
        assert_eq!(content_range(&(5..10), 20), "bytes 5-9/20");
    }
}
