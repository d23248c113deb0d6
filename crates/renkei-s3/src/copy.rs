//! CopyObject: a file is copied by the PoP, with its metadata and tags or new ones.

use crate::checksum::{Announced, Summed, Sums};
use crate::error::{refused, s3_error};
use crate::key::Key;
use crate::metadata::{Facts, Object, find, modified};
use crate::read::{Conditions, as_missing, refuse_version};
use crate::session::Session;
use crate::write::{Content, WriteConditions, create, new_object, publish, refuse_extras};
use renkei_core::block::AlignedBlock;
use renkei_core::identity::Need;
use renkei_mover::files::workspace::{Reader, Writer};
use s3s::dto::{
    ChecksumAlgorithm, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, ETag,
    MetadataDirective, TaggingDirective,
};
use s3s::{S3ErrorCode, S3Response, S3Result};
use std::ops::Range;

/// Bytes copied at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// The object that is copied, open.
pub(crate) struct Source {
    pub(crate) object: Object,
    pub(crate) reader: Reader,
    bucket: String,
    key: String,
}

/// Opens the source of a copy.
///
/// # Errors
/// `NoSuchKey`, `NoSuchBucket`, `PreconditionFailed`; `NotImplemented` for access points.
pub(crate) fn open_source(
    session: &Session,
    source: &CopySource,
    conditions: &Conditions,
) -> S3Result<Source> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(refused(S3ErrorCode::NotImplemented, "there are no access points"));
    };
    refuse_version(version_id.as_deref())?;
    let parsed = Key::parse(key).map_err(as_missing)?;
    let (files, path) = session.files(bucket, &parsed, Need::Read)?;
    let object = find(&files, &path, parsed.is_folder)?;
    let reader = files.open(&path).map_err(s3_error)?;
    let object = Object { item: reader.item().clone(), ..object };
    conditions.judge(&object).map_err(|error| match error.code() {
        // Nothing is known to the client of a copy.
        S3ErrorCode::NotModified => refused(S3ErrorCode::PreconditionFailed, "the source is that version"),
        _ => error,
    })?;
    Ok(Source { object, reader, bucket: bucket.to_string(), key: key.to_string() })
}

/// Copies a range of a file into another; follows the content with sums.
///
/// # Errors
/// Those of the files.
pub(crate) fn copy_range(
    reader: &Reader,
    writer: &Writer,
    range: Range<u64>,
    sums: &mut Sums,
) -> S3Result<u64> {
    let mut block = AlignedBlock::default();
    let mut at = range.start;
    while at < range.end {
        block.resize(usize::try_from(range.end - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES));
        let count = reader.read_at(&mut block, at).map_err(s3_error)?;
        if count == 0 {
            return Err(refused(S3ErrorCode::OperationAborted, "the source was cut while it was copied"));
        }
        block.resize(count);
        block = writer.write_block(block, at - range.start).map_err(s3_error)?;
        sums.update(&block);
        at += count as u64;
    }
    Ok(at - range.start)
}

/// Answers CopyObject.
pub(crate) fn answer(
    session: &Session,
    mut input: CopyObjectInput,
    destination: &WriteConditions,
) -> S3Result<S3Response<CopyObjectOutput>> {
    refuse_extras(
        input.storage_class.as_ref(),
        input.acl.as_ref(),
        &[
            ("encryption", input.server_side_encryption.is_some() || input.sse_customer_algorithm.is_some()),
            ("a redirect of a website", input.website_redirect_location.is_some()),
        ],
    )?;
    let conditions = Conditions {
        if_match: input.copy_source_if_match.clone(),
        if_none_match: input.copy_source_if_none_match.clone(),
        if_modified_since: input.copy_source_if_modified_since.clone(),
        if_unmodified_since: input.copy_source_if_unmodified_since.clone(),
    };
    let source = open_source(session, &input.copy_source, &conditions)?;
    let is_replaced = is(input.metadata_directive.as_ref().map(MetadataDirective::as_str));
    let is_onto_itself = source.bucket == input.bucket && source.key == input.key;
    if is_onto_itself && !is_replaced && !is(input.tagging_directive.as_ref().map(TaggingDirective::as_str)) {
        let message = "a copy of an object onto itself changes its metadata or tags";
        return Err(refused(S3ErrorCode::InvalidRequest, message));
    }
    let algorithm = input.checksum_algorithm.clone().or_else(|| algorithm_of(&source.object));
    let key = Key::parse(&input.key)?;
    if key.is_folder || source.object.is_folder() {
        let message = "folders are made with PutObject, and not copied";
        return Err(refused(S3ErrorCode::InvalidArgument, message));
    }
    let (facts, tags) = described(&source.object, &mut input, is_replaced)?;
    let place = session.place(&input.bucket, &key)?;
    let (files, path) = session.files_at(&place, Need::Write).map_err(s3_error)?;
    let condition = destination.judge(&files, &path)?;
    let (mut parents, writer) = create(&files, (&place, &path), &key, condition).map_err(s3_error)?;
    let mut sums = Sums::new(Announced { algorithm, ..Announced::default() })?;
    source.reader.expect_order();
    let size = copy_range(&source.reader, &writer, 0..source.reader.size(), &mut sums)?;
    let Summed { md5, checksum } = sums.finish()?;
    let content = Content { facts, tags: &tags, size, etag: md5.clone(), checksum: &checksum };
    let item = publish(&files, &path, writer, content)?;
    parents.keep();
    let result = CopyObjectResult {
        checksum_crc32: checksum.checksum_crc32,
        checksum_crc32c: checksum.checksum_crc32c,
        checksum_crc64nvme: checksum.checksum_crc64nvme,
        checksum_sha1: checksum.checksum_sha1,
        checksum_sha256: checksum.checksum_sha256,
        checksum_type: checksum.checksum_type,
        e_tag: Some(ETag::Strong(md5)),
        last_modified: Some(modified(item.entry.meta.mtime)),
    };
    Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() }))
}

fn is(directive: Option<&str>) -> bool {
    directive == Some("REPLACE")
}

fn algorithm_of(object: &Object) -> Option<ChecksumAlgorithm> {
    let sums = object.checksum();
    let known = crate::checksum::values(&sums).into_iter().find(|(_, sum)| sum.is_some());
    known.map(|(name, _)| ChecksumAlgorithm::from(name.to_ascii_uppercase()))
}

/// The facts and tags of the copy: those of the source, or new ones.
fn described(source: &Object, input: &mut CopyObjectInput, is_replaced: bool) -> S3Result<(Facts, String)> {
    let (facts, tags) = new_object!(input).facts()?;
    let facts = if is_replaced { facts } else { source.facts.clone() };
    let has_new_tags = is(input.tagging_directive.as_ref().map(TaggingDirective::as_str));
    Ok((facts, if has_new_tags { tags } else { source.tags.clone() }))
}
