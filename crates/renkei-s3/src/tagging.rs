//! Tags of objects, in the extended attribute `user.s3.tags`, in the form of a query.

use crate::error::{refused, s3_error};
use crate::key::Key;
use crate::metadata::{TAGS, find};
use crate::read::{as_missing, refuse_version};
use crate::session::Session;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use renkei_core::identity::Need;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
};
use s3s::{S3ErrorCode, S3Response, S3Result};

/// Most tags of an object, and most characters of their names and values, as at AWS.
const MAX_TAGS: usize = 10;
const MAX_KEY: usize = 128;
const MAX_VALUE: usize = 256;

/// The tags of a header in the form in which they are kept.
///
/// # Errors
/// `InvalidTag`.
pub(crate) fn of_header(header: Option<&str>) -> S3Result<String> {
    let tags = parse(header.unwrap_or_default());
    check(&tags)?;
    Ok(text(&tags))
}

fn parse(text: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

fn text(tags: &[(String, String)]) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> =
        tags.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value))).collect();
    pairs.join("&")
}

fn check(tags: &[(String, String)]) -> S3Result<()> {
    let is_long = |(key, value): &(String, String)| {
        key.is_empty() || key.chars().count() > MAX_KEY || value.chars().count() > MAX_VALUE
    };
    let mut keys: Vec<&String> = tags.iter().map(|(key, _)| key).collect();
    keys.sort();
    keys.dedup();
    if tags.len() > MAX_TAGS || keys.len() < tags.len() || tags.iter().any(is_long) {
        let message = "an object has at most 10 tags, each of another name, of 128 and 256 characters";
        return Err(refused(S3ErrorCode::InvalidTag, message));
    }
    Ok(())
}

/// Answers GetObjectTagging.
pub(crate) fn get(
    session: &Session,
    input: GetObjectTaggingInput,
) -> S3Result<S3Response<GetObjectTaggingOutput>> {
    refuse_version(input.version_id.as_deref())?;
    let key = Key::parse(&input.key).map_err(as_missing)?;
    let (files, path) = session.files(&input.bucket, &key, Need::Look)?;
    let object = find(&files, &path, key.is_folder)?;
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    let tag_set = parse(&object.tags).into_iter().map(tag).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

/// Answers PutObjectTagging.
pub(crate) fn put(
    session: &Session,
    input: PutObjectTaggingInput,
) -> S3Result<S3Response<PutObjectTaggingOutput>> {
    refuse_version(input.version_id.as_deref())?;
    let pair = |tag: Tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default());
    let tags: Vec<_> = input.tagging.tag_set.into_iter().map(pair).collect();
    check(&tags)?;
    set(session, &input.bucket, &input.key, &text(&tags))?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

/// Answers DeleteObjectTagging.
pub(crate) fn delete(
    session: &Session,
    input: DeleteObjectTaggingInput,
) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
    refuse_version(input.version_id.as_deref())?;
    set(session, &input.bucket, &input.key, "")?;
    Ok(S3Response::new(DeleteObjectTaggingOutput::default()))
}

fn set(session: &Session, bucket: &str, key: &str, tags: &str) -> S3Result<()> {
    let key = Key::parse(key).map_err(as_missing)?;
    let (files, path) = session.files(bucket, &key, Need::Write)?;
    find(&files, &path, key.is_folder)?;
    match tags {
        "" => files.remove_xattr(&path, TAGS),
        tags => files.set_xattr(&path, TAGS, tags.as_bytes()),
    }
    .map_err(s3_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_round_trip_within_their_bounds() {
        assert_eq!(of_header(Some("a=1&b%20c=d+e")).unwrap(), "a=1&b%20c=d%20e");
        assert_eq!(parse("a=1&b%20c=d%20e")[1], ("b c".into(), "d e".into()));
        assert_eq!(of_header(None).unwrap(), "");
        let many: String = (0..11).map(|number| format!("t{number}=x&")).collect();
        for bad in [many.as_str(), "a=1&a=2", "=x", &format!("a={}", "v".repeat(257))] {
            assert_eq!(of_header(Some(bad)).unwrap_err().code(), &S3ErrorCode::InvalidTag, "{bad}");
        }
    }
}
