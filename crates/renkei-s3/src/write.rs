//! PutObject, and forms that are posted: nothing is seen of an object until all of it is durable and has the checksums that
//! were announced.

use crate::checksum::{Announced, Summed, Sums, trailer};
use crate::error::{meanwhile, refused, s3_error};
use crate::implied::{DIR_MODE, IMPLIED, Parents};
use crate::key::Key;
use crate::metadata::{Facts, MAX_METADATA_BYTES, OBJECT, Object, now};
use crate::read::meets;
use crate::session::Session;
use crate::tagging;
use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use renkei_core::block::AlignedBlock;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::file::{Item, Precondition};
use renkei_mover::files::workspace::{Create, Follow, Workspace, Writer, version};
use renkei_site::files::body::Sink;
use s3s::dto::{
    Checksum, ETag, ETagCondition, Metadata, ObjectCannedACL, PutObjectInput, PutObjectOutput, StorageClass,
    Timestamp, TimestampFormat,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

/// An object that is being written.
pub(crate) struct PutUpload {
    files: Workspace,
    path: RelPath,
    /// None for a folder.
    writer: Option<Writer>,
    /// Behind the writer, for they go only when its temporary file is gone.
    parents: Parents,
    sums: Sums,
    facts: Facts,
    tags: String,
    written: u64,
    length: Option<u64>,
}

/// The headers of an object that is new, of whatever operation.
pub(crate) struct NewObject {
    pub(crate) headers: Vec<(&'static str, Option<String>)>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) tagging: Option<String>,
}

impl NewObject {
    /// The facts and the tags of the object.
    ///
    /// # Errors
    /// `MetadataTooLarge`, `InvalidTag`.
    pub(crate) fn facts(self) -> S3Result<(Facts, String)> {
        let mut facts = Facts::default();
        for (name, value) in self.headers {
            facts
                .headers
                .extend(value.filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value)));
        }
        facts.metadata.extend(self.metadata.unwrap_or_default());
        let bytes: usize = facts.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_METADATA_BYTES {
            let message = format!("user metadata has at most {MAX_METADATA_BYTES} bytes");
            return Err(refused(S3ErrorCode::MetadataTooLarge, message));
        }
        Ok((facts, tagging::of_header(self.tagging.as_deref())?))
    }
}

/// The headers of an object that is new, taken from the input of an operation that makes one: the types of s3s have the same
/// fields.
macro_rules! new_object {
    ($input:ident) => {
        $crate::write::NewObject {
            headers: vec![
                ("content-type", $input.content_type.take()),
                ("cache-control", $input.cache_control.take()),
                ("content-disposition", $input.content_disposition.take()),
                ("content-encoding", $crate::write::encoding($input.content_encoding.take())),
                ("content-language", $input.content_language.take()),
                ("expires", $crate::write::http_date($input.expires.take())),
            ],
            metadata: $input.metadata.take(),
            tagging: $input.tagging.take(),
        }
    };
}
pub(crate) use new_object;

/// The encoding of content, without that of its transport.
pub(crate) fn encoding(text: Option<String>) -> Option<String> {
    let text = text?;
    let kept: Vec<&str> = text.split(',').map(str::trim).filter(|one| *one != "aws-chunked").collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// A time in the form of its header.
pub(crate) fn http_date(time: Option<Timestamp>) -> Option<String> {
    let mut text = Vec::new();
    time?.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

/// Refuses what plain files do not have.
///
/// # Errors
/// `InvalidStorageClass`, `AccessControlListNotSupported`, `NotImplemented`.
pub(crate) fn refuse_extras(
    class: Option<&StorageClass>,
    acl: Option<&ObjectCannedACL>,
    others: &[(&str, bool)],
) -> S3Result<()> {
    if class.is_some_and(|class| class.as_str() != StorageClass::STANDARD) {
        return Err(refused(S3ErrorCode::InvalidStorageClass, "there is one storage class, STANDARD"));
    }
    if acl.is_some_and(|acl| !matches!(acl.as_str(), "private" | "bucket-owner-full-control")) {
        let message = "access is by the modes and access lists of the site's files";
        return Err(refused(S3ErrorCode::AccessControlListNotSupported, message));
    }
    match others.iter().find(|(_, is_asked)| *is_asked) {
        Some((what, _)) => Err(refused(S3ErrorCode::NotImplemented, format!("{what} is not supported"))),
        None => Ok(()),
    }
}

/// The conditions of a request that writes.
pub(crate) struct WriteConditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
}

impl WriteConditions {
    /// Those in the headers of a request.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no ETag.
    pub(crate) fn of(headers: &HeaderMap) -> S3Result<Self> {
        let condition = |name: HeaderName| match headers.get(&name).map(|value| value.as_bytes()) {
            None => Ok(None),
            Some(value) => ETagCondition::parse_http_header(value).map(Some).map_err(|error| {
                refused(S3ErrorCode::InvalidArgument, format!("{name} is no ETag and no *: {error}"))
            }),
        };
        Ok(WriteConditions { if_match: condition(IF_MATCH)?, if_none_match: condition(IF_NONE_MATCH)? })
    }

    /// The condition under which the object at a path may be replaced.
    ///
    /// # Errors
    /// `PreconditionFailed`, `NoSuchKey`, `NotImplemented`.
    pub(crate) fn judge(&self, files: &Workspace, path: &RelPath) -> S3Result<Precondition> {
        match (&self.if_match, &self.if_none_match) {
            (None, None) => Ok(Precondition::None),
            (None, Some(condition)) if condition.is_any() => Ok(Precondition::Absent),
            (None, Some(_)) | (Some(_), Some(_)) => Err(refused(
                S3ErrorCode::NotImplemented,
                "a write is conditional on If-None-Match: * or on If-Match",
            )),
            (Some(condition), None) => {
                let object = Object::find(files, path).map_err(s3_error)?;
                match meets(condition, &object.etag()) {
                    true => version(&object.item).map(Precondition::Version).map_err(s3_error),
                    false => Err(refused(S3ErrorCode::PreconditionFailed, "the object is another version")),
                }
            }
        }
    }
}

/// Begins a file, whose directories are made; they go again unless they are kept. They come first, so that the caller's
/// variables drop the file before them: its temporary file would keep them.
///
/// # Errors
/// `KeyConflict` where a name on the way is that of a file, and those of the files.
pub(crate) fn create(
    files: &Workspace,
    (place, path): (&Place, &RelPath),
    key: &Key,
    condition: Precondition,
) -> Result<(Parents, Writer), Error> {
    let parents = Parents::new(files, place, path, key);
    let writer = parents.with(|| files.create(path, Create { condition, ..Create::default() }))?;
    Ok((parents, writer))
}

impl PutUpload {
    /// Begins an object.
    ///
    /// # Errors
    /// Those of the key, the conditions and the files.
    pub(crate) fn begin(session: &Session, request: S3Request<PutObjectInput>) -> S3Result<Self> {
        let S3Request { mut input, headers, trailing_headers, .. } = request;
        refuse_extras_of(&input)?;
        let trailer = trailer(&headers);
        let sums = Sums::new(Announced { trailer, trailers: trailing_headers, ..announced(&mut input) })?;
        let (facts, tags) = new_object!(input).facts()?;
        let key = Key::parse(&input.key)?;
        let place = session.place(&input.bucket, &key)?;
        let (files, path) = session.files_at(&place, Need::Write).map_err(s3_error)?;
        let conditions =
            WriteConditions { if_match: input.if_match.take(), if_none_match: input.if_none_match.take() };
        let condition = conditions.judge(&files, &path)?;
        let (parents, writer) = match key.is_folder {
            true if condition != Precondition::None => {
                return Err(refused(S3ErrorCode::NotImplemented, "folders are made without conditions"));
            }
            true => (Parents::new(&files, &place, &path, &key), None),
            false => {
                let (parents, writer) = create(&files, (&place, &path), &key, condition).map_err(s3_error)?;
                (parents, Some(writer))
            }
        };
        let length = input.content_length.and_then(|length| u64::try_from(length).ok());
        Ok(PutUpload { files, path, writer, parents, sums, facts, tags, written: 0, length })
    }

    /// Publishes the object.
    ///
    /// # Errors
    /// `IncompleteBody`, `BadDigest`, and those of the files: nothing of it is seen then.
    pub(crate) fn publish(mut self) -> S3Result<S3Response<PutObjectOutput>> {
        if self.length.is_some_and(|length| length != self.written) {
            return Err(refused(S3ErrorCode::IncompleteBody, "fewer bytes came than were announced"));
        }
        let Summed { md5, checksum } = self.sums.finish()?;
        let facts = self.facts;
        match self.writer.take() {
            None => make_folder(&self.files, &self.path, &self.parents, &facts, &self.tags)?,
            Some(writer) => {
                let content = Content {
                    facts,
                    tags: &self.tags,
                    size: self.written,
                    etag: md5.clone(),
                    checksum: &checksum,
                };
                publish(&self.files, &self.path, writer, content)?;
            }
        }
        self.parents.keep();
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(ETag::Strong(md5)),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            checksum_type: checksum.checksum_type,
            ..PutObjectOutput::default()
        }))
    }
}

fn refuse_extras_of(input: &PutObjectInput) -> S3Result<()> {
    let others = [
        ("encryption by keys of the client", input.sse_customer_algorithm.is_some()),
        ("encryption", input.server_side_encryption.is_some()),
        ("a redirect of a website", input.website_redirect_location.is_some()),
        ("a write at an offset", input.write_offset_bytes.is_some()),
        ("a lock of an object", input.object_lock_mode.is_some()),
    ];
    refuse_extras(input.storage_class.as_ref(), input.acl.as_ref(), &others)
}

/// What the headers of a request announce about its content.
fn announced(input: &mut PutObjectInput) -> Announced {
    Announced {
        sums: Checksum {
            checksum_crc32: input.checksum_crc32.take(),
            checksum_crc32c: input.checksum_crc32c.take(),
            checksum_crc64nvme: input.checksum_crc64nvme.take(),
            checksum_sha1: input.checksum_sha1.take(),
            checksum_sha256: input.checksum_sha256.take(),
            checksum_type: None,
        },
        algorithm: input.checksum_algorithm.take(),
        md5: input.content_md5.take(),
        ..Announced::default()
    }
}

impl Sink for PutUpload {
    type Error = S3Error;

    fn write(mut self, block: AlignedBlock) -> S3Result<(Self, AlignedBlock)> {
        let block = match &self.writer {
            Some(writer) => writer.write_block(block, self.written).map_err(s3_error)?,
            None if block.is_empty() => block,
            None => {
                let message = "a key that ends with a slash is a folder, which has no content";
                return Err(refused(S3ErrorCode::InvalidArgument, message));
            }
        };
        self.sums.update(&block);
        self.written += block.len() as u64;
        Ok((self, block))
    }
}

/// What a file is published with.
pub(crate) struct Content<'a> {
    pub(crate) facts: Facts,
    pub(crate) tags: &'a str,
    pub(crate) size: u64,
    pub(crate) etag: String,
    pub(crate) checksum: &'a Checksum,
}

/// Publishes a file with the facts of the object, in one step.
///
/// # Errors
/// Those of the files; `NotImplemented` where user metadata or tags were not kept.
pub(crate) fn publish(
    files: &Workspace,
    path: &RelPath,
    writer: Writer,
    content: Content<'_>,
) -> S3Result<Item> {
    let Content { facts, tags, size, etag, checksum } = content;
    let mtime = now();
    let facts = facts.of(size, mtime, etag, checksum);
    writer.describe(facts.attributes(tags)).map_err(s3_error)?;
    let item = writer.publish(Some(mtime), None).map_err(meanwhile)?;
    expect_kept(files, path, &facts, tags)?;
    Ok(item)
}

/// Checks that what a client wants to be kept was kept: file systems may have no extended attributes.
pub(crate) fn expect_kept(files: &Workspace, path: &RelPath, facts: &Facts, tags: &str) -> S3Result<()> {
    if facts.metadata.is_empty() && tags.is_empty() {
        return Ok(());
    }
    match Object::find(files, path) {
        // Another client may have written since.
        Ok(object) if !object.facts.is_missing() => Ok(()),
        Err(error) if error.code == Code::PathNotFound => Ok(()),
        _ => {
            let message = "the content is stored, but the file system keeps no metadata or tags";
            Err(refused(S3ErrorCode::NotImplemented, message))
        }
    }
}

fn make_folder(
    files: &Workspace,
    path: &RelPath,
    parents: &Parents,
    facts: &Facts,
    tags: &str,
) -> S3Result<()> {
    let xattrs = facts.clone().of(0, now(), String::new(), &Checksum::default()).attributes(tags);
    // The facts of an object come first: with them it stays when the last key in it goes, marked or not.
    let keep = || {
        let given = xattrs.iter().filter(|xattr| xattr.name == OBJECT || !xattr.value.is_empty());
        given.into_iter().try_for_each(|xattr| files.set_xattr(path, &xattr.name, &xattr.value))?;
        files.remove_xattr(path, IMPLIED)
    };
    // The folder may be removed between the steps: it is made again then.
    let make = || {
        match files.mkdir(path, DIR_MODE) {
            Err(error) if error.code == Code::PathExists => {
                if files.stat(path, Follow::Yes)?.entry.kind != EntryKind::Dir {
                    let cause = "a key without the slash is there";
                    return Err(Error::new(Code::NotADirectory, "make directory", path, cause));
                }
            }
            made => drop(made?),
        }
        match keep() {
            Err(error) if error.code != Code::Unsupported => Err(error),
            _ => Ok(()),
        }
    };
    parents.with(make).map_err(meanwhile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_the_transport_is_not_that_of_the_content() {
        assert_eq!(encoding(Some("aws-chunked".into())), None);
        assert_eq!(encoding(Some("aws-chunked, gzip".into())).as_deref(), Some("gzip"));
        assert_eq!(encoding(None), None);
    }

    #[test]
    fn metadata_has_a_bound() {
        let new = |bytes: usize| NewObject {
            headers: vec![("content-type", Some("text/plain".into())), ("cache-control", None)],
            metadata: Some([("a".to_owned(), "b".repeat(bytes))].into_iter().collect()),
            tagging: None,
        };
        let (facts, _) = new(MAX_METADATA_BYTES - 1).facts().unwrap();
        assert_eq!(facts.headers.len(), 1);
        assert_eq!(new(MAX_METADATA_BYTES).facts().unwrap_err().code(), &S3ErrorCode::MetadataTooLarge);
    }
}
