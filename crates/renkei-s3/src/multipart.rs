//! Uploads in parts: each part is durable when it is answered; the file is composed of them in one step.

use crate::checksum::{Announced, Piece, Summed, Sums, combined, composite, md5_hex, trailer, values};
use crate::copy::{copy_range, open_source};
use crate::error::{meanwhile, refused, s3_error};
use crate::implied::Parents;
use crate::key::Key;
use crate::list::owner;
use crate::metadata::{modified, now};
use crate::read::Conditions;
use crate::session::Session;
use crate::upload_state::{UploadHead, UploadState, UploadedPart, unix_now};
use crate::write::{WriteConditions, expect_kept, new_object, refuse_extras};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use renkei_core::block::AlignedBlock;
use renkei_core::entry::FileTime;
use renkei_core::error::Code;
use renkei_core::identity::Need;
use renkei_core::wire::file::Item;
use renkei_core::wire::uploads::MAX_PART;
use renkei_mover::files::workspace::{Upload, Writer};
use renkei_site::files::body::Sink;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, Checksum, ChecksumAlgorithm, ChecksumType,
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, CopyPartResult,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, ETag, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListPartsInput, ListPartsOutput, MultipartUpload, Part, Timestamp,
    UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

/// Shortest part but for the last one, as at AWS.
const MIN_PART_BYTES: u64 = 5 << 20;
/// Most parts and uploads of a page, as at AWS.
const MAX_LISTED: i32 = 1000;

fn folder(session: &Session) -> PathBuf {
    session.site.home().s3_upload_dir()
}

/// A checksum by its name.
fn sum_named(name: &str, sum: String) -> Checksum {
    let mut sums = Checksum::default();
    match name {
        "crc32" => sums.checksum_crc32 = Some(sum),
        "crc32c" => sums.checksum_crc32c = Some(sum),
        "sha1" => sums.checksum_sha1 = Some(sum),
        "sha256" => sums.checksum_sha256 = Some(sum),
        _ => sums.checksum_crc64nvme = Some(sum),
    }
    sums
}

fn value_of(name: &str, sums: &Checksum) -> String {
    let found = values(sums).into_iter().find(|(one, _)| *one == name);
    found.and_then(|(_, sum)| sum.clone()).unwrap_or_default()
}

/// Answers CreateMultipartUpload.
pub(crate) fn begin(
    session: &Session,
    mut input: CreateMultipartUploadInput,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    refuse_extras(
        input.storage_class.as_ref(),
        input.acl.as_ref(),
        &[
            ("encryption", input.server_side_encryption.is_some() || input.sse_customer_algorithm.is_some()),
            ("a redirect of a website", input.website_redirect_location.is_some()),
        ],
    )?;
    let key = Key::parse(&input.key)?;
    if key.is_folder {
        return Err(refused(S3ErrorCode::InvalidArgument, "a key that ends with a slash is a folder"));
    }
    let (checksum, is_full) = sums_of(input.checksum_algorithm.as_ref(), input.checksum_type.as_ref())?;
    let (facts, tags) = new_object!(input).facts()?;
    let place = session.place(&input.bucket, &key)?;
    let (files, path) = session.files_at(&place, Need::Write).map_err(s3_error)?;
    let mut parents = Parents::new(&files, &place, &path, &key);
    let upload = parents.with(|| files.create_upload(&path)).map_err(s3_error)?;
    let head = UploadHead {
        version: 1,
        owner: session.access.principal.to_string(),
        bucket: input.bucket.clone(),
        key: input.key.clone(),
        upload: upload.id(),
        began_unix: unix_now(),
        facts,
        tags,
        checksum,
        is_full,
    };
    let (id, forgotten) = UploadState::begin(&folder(session), &head)?;
    parents.keep();
    forgotten.iter().for_each(|head| drop(parents_of(session, head)));
    let kind = if is_full { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id),
        checksum_type: input.checksum_algorithm.as_ref().map(|_| ChecksumType::from_static(kind)),
        checksum_algorithm: input.checksum_algorithm,
        ..CreateMultipartUploadOutput::default()
    }))
}

/// The directories on the way to the key of an upload.
fn parents_of(session: &Session, head: &UploadHead) -> S3Result<Parents> {
    let key = Key::parse(&head.key)?;
    let place = session.place(&head.bucket, &key)?;
    let (files, path) = session.files_at(&place, Need::Write).map_err(s3_error)?;
    Ok(Parents::new(&files, &place, &path, &key))
}

/// The checksum of an upload's parts, and whether that of the whole is made of them; without one, CRC-64/NVME.
fn sums_of(algorithm: Option<&ChecksumAlgorithm>, kind: Option<&ChecksumType>) -> S3Result<(String, bool)> {
    let name = algorithm.map_or("crc64nvme".to_owned(), |algorithm| algorithm.as_str().to_ascii_lowercase());
    let (combines, composes) = match name.as_str() {
        "crc64nvme" => (true, false),
        "crc32" | "crc32c" => (true, true),
        "sha1" | "sha256" => (false, true),
        other => {
            return Err(refused(S3ErrorCode::InvalidRequest, format!("there is no checksum {other}")));
        }
    };
    let is_full = kind.map_or(!composes, |kind| kind.as_str() == ChecksumType::FULL_OBJECT);
    match (is_full && combines) || (!is_full && composes) {
        true => Ok((name, is_full)),
        false => Err(refused(S3ErrorCode::InvalidRequest, format!("{name} has no checksum of that type"))),
    }
}

/// An upload that is going on.
struct Ongoing {
    state: UploadState,
    upload: Upload,
    /// They are kept by each operation of the upload that succeeds.
    parents: Parents,
}

impl Ongoing {
    fn find(session: &Session, bucket: &str, key: &str, id: &str) -> S3Result<Self> {
        let owner = session.access.principal.to_string();
        let state = UploadState::find(&folder(session), id, &owner, bucket, key)?;
        let key = Key::parse(key)?;
        let place = session.place(bucket, &key)?;
        let (files, path) = session.files_at(&place, Need::Write).map_err(s3_error)?;
        let parents = Parents::new(&files, &place, &path, &key);
        // They may have gone with the last key in them meanwhile.
        let upload = parents.with(|| files.upload(&path, state.head.upload)).map_err(s3_error)?;
        Ok(Ongoing { state, upload, parents })
    }

    fn begin_part(&self, number: i32) -> S3Result<(u32, Writer)> {
        let number = u32::try_from(number).ok().filter(|number| (1..=MAX_PART).contains(number));
        let number = number.ok_or_else(|| {
            refused(S3ErrorCode::InvalidArgument, format!("parts are numbered from 1 to {MAX_PART}"))
        })?;
        let begin = || self.upload.put_part(number, None);
        Ok((number, self.parents.with(begin).map_err(over)?))
    }

    fn algorithm(&self) -> ChecksumAlgorithm {
        ChecksumAlgorithm::from(self.state.head.checksum.to_ascii_uppercase())
    }

    /// Publishes a part, and notes it.
    fn end_part(&mut self, number: u32, writer: Writer, sums: &Summed, size: u64) -> S3Result<UploadedPart> {
        let item = writer.publish(None, None).map_err(over)?;
        self.parents.keep();
        let mtime = item.entry.meta.mtime;
        let part = UploadedPart {
            number,
            size,
            mtime: (mtime.secs, mtime.nanos),
            md5: sums.md5.clone(),
            checksum: value_of(&self.state.head.checksum, &sums.checksum),
        };
        self.state.note(&part)?;
        Ok(part)
    }
}

/// The error of the file service for an upload that is over.
fn over(error: renkei_core::error::Error) -> s3s::S3Error {
    match error.code {
        Code::NotOpen => refused(S3ErrorCode::NoSuchUpload, error.to_string()),
        _ => meanwhile(error),
    }
}

/// A part that is being written.
pub(crate) struct PartUpload {
    writer: Writer,
    /// Behind the writer, whose temporary file keeps the directories.
    ongoing: Ongoing,
    number: u32,
    sums: Sums,
    written: u64,
    length: Option<u64>,
}

impl PartUpload {
    /// Begins a part.
    ///
    /// # Errors
    /// `NoSuchUpload`, `InvalidArgument`, and those of the files.
    pub(crate) fn begin(session: &Session, request: S3Request<UploadPartInput>) -> S3Result<Self> {
        let input = request.input;
        let ongoing = Ongoing::find(session, &input.bucket, &input.key, &input.upload_id)?;
        let sums = Sums::new(Announced {
            sums: Checksum {
                checksum_crc32: input.checksum_crc32,
                checksum_crc32c: input.checksum_crc32c,
                checksum_crc64nvme: input.checksum_crc64nvme,
                checksum_sha1: input.checksum_sha1,
                checksum_sha256: input.checksum_sha256,
                checksum_type: None,
            },
            algorithm: Some(ongoing.algorithm()),
            md5: input.content_md5,
            trailer: trailer(&request.headers),
            trailers: request.trailing_headers,
        })?;
        let (number, writer) = ongoing.begin_part(input.part_number)?;
        let length = input.content_length.and_then(|length| u64::try_from(length).ok());
        Ok(PartUpload { writer, ongoing, number, sums, written: 0, length })
    }

    /// Publishes the part.
    ///
    /// # Errors
    /// `IncompleteBody`, `BadDigest`, and those of the files.
    pub(crate) fn publish(mut self) -> S3Result<S3Response<UploadPartOutput>> {
        if self.length.is_some_and(|length| length != self.written) {
            return Err(refused(S3ErrorCode::IncompleteBody, "fewer bytes came than were announced"));
        }
        let summed = self.sums.finish()?;
        self.ongoing.end_part(self.number, self.writer, &summed, self.written)?;
        let Summed { md5, checksum } = summed;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(ETag::Strong(md5)),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..UploadPartOutput::default()
        }))
    }
}

impl Sink for PartUpload {
    type Error = S3Error;

    fn write(mut self, block: AlignedBlock) -> S3Result<(Self, AlignedBlock)> {
        let block = self.writer.write_block(block, self.written).map_err(s3_error)?;
        self.sums.update(&block);
        self.written += block.len() as u64;
        Ok((self, block))
    }
}

/// Answers UploadPartCopy.
pub(crate) fn copy_part(
    session: &Session,
    input: UploadPartCopyInput,
) -> S3Result<S3Response<UploadPartCopyOutput>> {
    let conditions = Conditions {
        if_match: input.copy_source_if_match,
        if_none_match: input.copy_source_if_none_match,
        if_modified_since: input.copy_source_if_modified_since,
        if_unmodified_since: input.copy_source_if_unmodified_since,
    };
    let mut ongoing = Ongoing::find(session, &input.bucket, &input.key, &input.upload_id)?;
    let source = open_source(session, &input.copy_source, &conditions)?;
    let range = match input.copy_source_range.as_deref() {
        None => 0..source.reader.size(),
        Some(text) => copied_range(text, source.reader.size())?,
    };
    let (number, writer) = ongoing.begin_part(input.part_number)?;
    let mut sums = Sums::new(Announced { algorithm: Some(ongoing.algorithm()), ..Announced::default() })?;
    let size = copy_range(&source.reader, &writer, range, &mut sums)?;
    let summed = sums.finish()?;
    let part = ongoing.end_part(number, writer, &summed, size)?;
    let Summed { md5, checksum } = summed;
    let result = CopyPartResult {
        e_tag: Some(ETag::Strong(md5)),
        last_modified: Some(modified(part.time())),
        checksum_crc32: checksum.checksum_crc32,
        checksum_crc32c: checksum.checksum_crc32c,
        checksum_crc64nvme: checksum.checksum_crc64nvme,
        checksum_sha1: checksum.checksum_sha1,
        checksum_sha256: checksum.checksum_sha256,
    };
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        ..UploadPartCopyOutput::default()
    }))
}

/// `bytes=FIRST-LAST`, both of which are in the source.
fn copied_range(text: &str, size: u64) -> S3Result<Range<u64>> {
    let range = text.strip_prefix("bytes=").and_then(|text| text.split_once('-'));
    let range =
        range.and_then(|(first, last)| Some(first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?));
    match range {
        Some(range) if range.start < range.end && range.end <= size => Ok(range),
        _ => Err(refused(S3ErrorCode::InvalidArgument, "the range is bytes=FIRST-LAST of the source")),
    }
}

/// Answers AbortMultipartUpload.
pub(crate) fn abort(
    session: &Session,
    input: &AbortMultipartUploadInput,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let ongoing = Ongoing::find(session, &input.bucket, &input.key, &input.upload_id)?;
    match ongoing.upload.abandon() {
        // Its parts went with their week.
        Err(error) if error.code != Code::NotOpen => return Err(s3_error(error)),
        _ => ongoing.state.forget(),
    }
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// The parts that a client names, as they came.
fn named_parts(state: &UploadState, upload: &Upload, named: &[CompletedPart]) -> S3Result<Vec<UploadedPart>> {
    let invalid = |message: String| refused(S3ErrorCode::InvalidPart, message);
    if named.is_empty() {
        return Err(refused(S3ErrorCode::MalformedXML, "no part is named"));
    }
    let kept = upload.parts().map_err(over)?;
    let mut parts: Vec<UploadedPart> = Vec::new();
    for part in named {
        let number = part.part_number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        if parts.last().is_some_and(|before| before.number >= number) {
            return Err(refused(
                S3ErrorCode::InvalidPartOrder,
                "parts are named in the order of their numbers",
            ));
        }
        let came = state.parts.get(&number).ok_or_else(|| invalid(format!("part {number} has not come")))?;
        let is_kept =
            kept.iter().any(|one| one.number == number && one.bytes == came.size && one.mtime == came.time());
        let is_it = part.e_tag.as_ref().is_none_or(|tag| tag.value() == came.md5);
        if !is_kept || !is_it {
            return Err(invalid(format!("part {number} is another than was answered")));
        }
        let given = Checksum {
            checksum_crc32: part.checksum_crc32.clone(),
            checksum_crc32c: part.checksum_crc32c.clone(),
            checksum_crc64nvme: part.checksum_crc64nvme.clone(),
            checksum_sha1: part.checksum_sha1.clone(),
            checksum_sha256: part.checksum_sha256.clone(),
            checksum_type: None,
        };
        let given = value_of(&state.head.checksum, &given);
        if !given.is_empty() && given != came.checksum {
            return Err(invalid(format!("the checksum of part {number} is another")));
        }
        parts.push(came.clone());
    }
    let (_, others) = parts.split_last().expect("a part is named");
    match others.iter().find(|part| part.size < MIN_PART_BYTES) {
        Some(part) => {
            let message = format!("part {} is shorter than 5 MiB, and not the last", part.number);
            Err(refused(S3ErrorCode::EntityTooSmall, message))
        }
        None => Ok(parts),
    }
}

/// The ETag of an upload in parts: the MD5 of the parts' MD5, and their number.
fn etag_of(parts: &[UploadedPart]) -> String {
    let nibble = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
    let bytes = parts.iter().flat_map(|part| part.md5.as_bytes().chunks(2));
    let bytes: Vec<u8> = bytes.map(|pair| nibble(pair[0]) << 4 | nibble(pair[pair.len() - 1])).collect();
    format!("{}-{}", md5_hex(&bytes), parts.len())
}

/// The checksum of the whole.
fn checksum_of(head: &UploadHead, parts: &[UploadedPart]) -> S3Result<Checksum> {
    let raw = |part: &UploadedPart| STANDARD.decode(&part.checksum).unwrap_or_default();
    let pieces: Vec<Piece> = parts.iter().map(|part| Piece { sum: raw(part), bytes: part.size }).collect();
    let sum = match head.is_full {
        true => combined(&head.checksum, &pieces).unwrap_or_default(),
        false => composite(&head.checksum, &parts.iter().map(raw).collect::<Vec<_>>())?,
    };
    Ok(sum_named(&head.checksum, sum))
}

/// Compares the whole with what the client announced.
fn expect_whole(input: &CompleteMultipartUploadInput, checksum: &Checksum, size: u64) -> S3Result<()> {
    let given = Checksum {
        checksum_crc32: input.checksum_crc32.clone(),
        checksum_crc32c: input.checksum_crc32c.clone(),
        checksum_crc64nvme: input.checksum_crc64nvme.clone(),
        checksum_sha1: input.checksum_sha1.clone(),
        checksum_sha256: input.checksum_sha256.clone(),
        checksum_type: None,
    };
    let is_other = |(name, sum): (&str, &Option<String>)| {
        sum.as_ref().is_some_and(|sum| *sum != value_of(name, checksum))
    };
    if values(&given).into_iter().any(is_other) {
        return Err(refused(S3ErrorCode::BadDigest, "the checksum is not that of the parts"));
    }
    match input.mpu_object_size.is_some_and(|wanted| u64::try_from(wanted) != Ok(size)) {
        true => Err(refused(S3ErrorCode::InvalidRequest, "the parts have another length together")),
        false => Ok(()),
    }
}

/// Answers CompleteMultipartUpload.
pub(crate) fn complete(
    session: &Session,
    mut input: CompleteMultipartUploadInput,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let Ongoing { state, upload, mut parents } =
        Ongoing::find(session, &input.bucket, &input.key, &input.upload_id)?;
    let named = input.multipart_upload.take().and_then(|all| all.parts).unwrap_or_default();
    let parts = named_parts(&state, &upload, &named)?;
    let (etag, checksum) = (etag_of(&parts), checksum_of(&state.head, &parts)?);
    let size: u64 = parts.iter().map(|part| part.size).sum();
    expect_whole(&input, &checksum, size)?;
    let (files, path) = session.files(&input.bucket, &Key::parse(&input.key)?, Need::Write)?;
    let conditions =
        WriteConditions { if_match: input.if_match.take(), if_none_match: input.if_none_match.take() };
    let condition = conditions.judge(&files, &path)?;
    let mtime: FileTime = now();
    let facts = state.head.facts.clone().of(size, mtime, etag.clone(), &checksum);
    let numbers: Vec<u32> = parts.iter().map(|part| part.number).collect();
    let attributes = facts.attributes(&state.head.tags);
    let _: Item = upload.complete_with(&numbers, condition, Some(mtime), attributes).map_err(over)?;
    parents.keep();
    state.forget();
    expect_kept(&files, &path, &facts, &state.head.tags)?;
    let kind = if state.head.is_full { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    Ok(S3Response::new(CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: Some(ETag::Strong(etag)),
        checksum_crc32: checksum.checksum_crc32,
        checksum_crc32c: checksum.checksum_crc32c,
        checksum_crc64nvme: checksum.checksum_crc64nvme,
        checksum_sha1: checksum.checksum_sha1,
        checksum_sha256: checksum.checksum_sha256,
        checksum_type: Some(ChecksumType::from_static(kind)),
        ..CompleteMultipartUploadOutput::default()
    }))
}

/// Answers ListParts.
pub(crate) fn list_parts(session: &Session, input: ListPartsInput) -> S3Result<S3Response<ListPartsOutput>> {
    let owner_name = session.access.principal.to_string();
    let state =
        UploadState::find(&folder(session), &input.upload_id, &owner_name, &input.bucket, &input.key)?;
    let (files, path) = session.files(&input.bucket, &Key::parse(&input.key)?, Need::Write)?;
    match files.upload(&path, state.head.upload).and_then(|upload| upload.parts()) {
        // The directory of the key went with the last key in it; parts lie elsewhere.
        Err(error) if error.code == Code::PathNotFound => {}
        kept => drop(kept.map_err(over)?),
    }
    let most = input.max_parts.unwrap_or(MAX_LISTED).clamp(0, MAX_LISTED);
    let after = input.part_number_marker.unwrap_or(0);
    let part = |part: &UploadedPart| {
        let sums = sum_named(&state.head.checksum, part.checksum.clone());
        Part {
            part_number: i32::try_from(part.number).ok(),
            size: i64::try_from(part.size).ok(),
            e_tag: Some(ETag::Strong(part.md5.clone())),
            last_modified: Some(modified(part.time())),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
        }
    };
    let rest: Vec<Part> =
        state.parts.values().map(part).filter(|part| part.part_number > Some(after)).collect();
    let is_truncated = rest.len() > usize::try_from(most).unwrap_or_default();
    let parts: Vec<Part> = rest.into_iter().take(usize::try_from(most).unwrap_or_default()).collect();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        part_number_marker: Some(after),
        next_part_number_marker: parts.last().and_then(|part| part.part_number).filter(|_| is_truncated),
        is_truncated: Some(is_truncated),
        max_parts: Some(most),
        parts: Some(parts),
        owner: Some(owner(session)),
        checksum_algorithm: Some(ChecksumAlgorithm::from(state.head.checksum.to_ascii_uppercase())),
        ..ListPartsOutput::default()
    }))
}

/// Answers ListMultipartUploads: those of the client.
pub(crate) fn list_uploads(
    session: &Session,
    input: ListMultipartUploadsInput,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    session.look_at_bucket(&input.bucket)?;
    if input.delimiter.is_some() {
        return Err(refused(S3ErrorCode::NotImplemented, "uploads are listed without a delimiter"));
    }
    let owner_name = session.access.principal.to_string();
    let prefix = input.prefix.clone().unwrap_or_default();
    let marker = (input.key_marker.clone().unwrap_or_default(), input.upload_id_marker.clone());
    let is_behind = |id: &String, key: &String| match &marker {
        (after, Some(after_id)) => (key, id) > (after, after_id),
        (after, None) => key > after,
    };
    let all = UploadState::all(&folder(session), &owner_name, &input.bucket)?;
    let most = input.max_uploads.unwrap_or(MAX_LISTED).clamp(0, MAX_LISTED);
    let rest = all.into_iter().filter(|(id, head)| head.key.starts_with(&prefix) && is_behind(id, &head.key));
    let mut rest: Vec<MultipartUpload> = rest.map(|(id, head)| upload_of(session, id, head)).collect();
    let is_truncated = rest.len() > usize::try_from(most).unwrap_or_default();
    rest.truncate(usize::try_from(most).unwrap_or_default());
    let last = rest.last().filter(|_| is_truncated);
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        next_key_marker: last.and_then(|upload| upload.key.clone()),
        next_upload_id_marker: last.and_then(|upload| upload.upload_id.clone()),
        key_marker: input.key_marker,
        upload_id_marker: input.upload_id_marker,
        prefix: input.prefix,
        is_truncated: Some(is_truncated),
        max_uploads: Some(most),
        uploads: Some(rest),
        ..ListMultipartUploadsOutput::default()
    }))
}

fn upload_of(session: &Session, id: String, head: UploadHead) -> MultipartUpload {
    MultipartUpload {
        upload_id: Some(id),
        key: Some(head.key),
        initiated: Some(Timestamp::from(UNIX_EPOCH + Duration::from_secs(head.began_unix))),
        owner: Some(owner(session)),
        ..MultipartUpload::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etag_is_that_of_aws() {
        let part = |md5: &str| UploadedPart {
            number: 1,
            size: 1,
            mtime: (0, 0),
            md5: md5.into(),
            checksum: String::new(),
        };
        // The MD5 of the 16 bytes of the MD5 of nothing.
        let one = etag_of(&[part("d41d8cd98f00b204e9800998ecf8427e")]);
        assert_eq!(one, "59adb24ef3cdbe0297f05b395827453f-1");
    }

    #[test]
    fn types_of_checksums_fit_their_algorithms() {
        let of = |name: &str, kind: Option<&'static str>| {
            let algorithm = ChecksumAlgorithm::from(name.to_owned());
            sums_of(Some(&algorithm), kind.map(ChecksumType::from_static).as_ref())
                .map(|(_, is_full)| is_full)
                .ok()
        };
        assert_eq!(of("CRC32", None), Some(false));
        assert_eq!(of("CRC32", Some("FULL_OBJECT")), Some(true));
        assert_eq!(of("CRC64NVME", None), Some(true));
        assert_eq!(of("SHA256", Some("FULL_OBJECT")), None);
        assert_eq!(of("CRC64NVME", Some("COMPOSITE")), None);
        assert_eq!(of("MD4", None), None);
        assert!(copied_range("bytes=0-9", 10).is_ok() && copied_range("bytes=0-10", 10).is_err());
        assert!(copied_range(&format!("bytes=0-{}", u64::MAX), 10).is_err());
    }
}
