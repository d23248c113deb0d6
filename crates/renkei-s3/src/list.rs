//! ListObjects of both versions, in pages.

use crate::error::{refused, s3_error};
use crate::metadata::Object;
use crate::session::Session;
use crate::walk::{Found, Walk, Wanted, is_gone};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::RelPath;
use renkei_core::wire::file::Item;
use renkei_mover::files::workspace::Workspace;
use s3s::dto::{
    CommonPrefix, EncodingType, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    ObjectStorageClass, Owner,
};
use s3s::{S3ErrorCode, S3Response, S3Result};

/// Most keys of a page, as at AWS.
const MAX_KEYS: i32 = 1000;
/// What is encoded with `encoding-type=url`: all but what AWS leaves.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/').remove(b'*');

/// What a page is asked for.
struct PageOf {
    bucket: String,
    prefix: String,
    delimiter: String,
    after: Option<String>,
    most: usize,
    has_owner: bool,
    is_encoded: bool,
}

/// A page.
#[derive(Default)]
struct Page {
    objects: Vec<s3s::dto::Object>,
    prefixes: Vec<String>,
    /// The last key or prefix, if more follow.
    next: Option<String>,
}

impl Page {
    fn len(&self) -> usize {
        self.objects.len() + self.prefixes.len()
    }
}

impl PageOf {
    fn text(&self, text: &str) -> String {
        match self.is_encoded {
            true => utf8_percent_encode(text, ENCODED).to_string(),
            false => text.to_owned(),
        }
    }

    fn read(&self, session: &Session) -> S3Result<Page> {
        let root = session.bucket(&self.bucket)?;
        let (files, dir) = session.files_at(&root, Need::Examine).map_err(|error| match error.code {
            Code::PathNotFound => refused(S3ErrorCode::NoSuchBucket, error.to_string()),
            _ => s3_error(error),
        })?;
        if self.most == 0 {
            return Ok(Page::default());
        }
        let (prefix, after) = (self.prefix.clone(), self.after.clone());
        let wanted = Wanted { prefix, after, is_flat: self.delimiter == "/" };
        let mut walk = Walk::begin(files, &dir, wanted).map_err(s3_error)?;
        let mut page = Page::default();
        let mut keys = Vec::new();
        let mut last = self.after.clone();
        while let Some(found) = walk.next().map_err(s3_error)? {
            let found = self.rolled_up(found);
            let key = match &found {
                Found::Key { key, .. } | Found::Prefix(key) => key.clone(),
            };
            // More keys of a prefix that was told.
            if matches!(found, Found::Prefix(_)) && last.as_ref() == Some(&key) {
                continue;
            }
            if keys.len() + page.prefixes.len() == self.most {
                page.next = last;
                break;
            }
            match found {
                Found::Key { key, path } => keys.push((key, path)),
                Found::Prefix(prefix) => page.prefixes.push(self.text(&prefix)),
            }
            last = Some(key);
        }
        page.objects = self.objects(walk.files(), &keys, session)?;
        Ok(page)
    }

    /// A key with a delimiter other than the slash is told as the prefix that it is behind.
    fn rolled_up(&self, found: Found) -> Found {
        if let Found::Key { key, .. } = &found {
            let rest = &key[self.prefix.len()..];
            if let Some(at) = rest.find(&self.delimiter).filter(|_| !self.delimiter.is_empty()) {
                let end = self.prefix.len() + at + self.delimiter.len();
                return Found::Prefix(key[..end].to_owned());
            }
        }
        found
    }

    /// The objects of a page; those of one folder are looked at together. Keys that are gone since are left out.
    fn objects(
        &self,
        files: &Workspace,
        keys: &[(String, RelPath)],
        session: &Session,
    ) -> S3Result<Vec<s3s::dto::Object>> {
        let mut objects = Vec::new();
        for keys in keys.chunk_by(|(_, a), (_, b)| a.parent() == b.parent()) {
            for ((key, _), object) in keys.iter().zip(found(files, keys).map_err(s3_error)?) {
                let Some(object) = object.filter(|object| object.is_folder() == key.ends_with('/')) else {
                    continue;
                };
                objects.push(s3s::dto::Object {
                    key: Some(self.text(key)),
                    e_tag: Some(object.etag()),
                    last_modified: Some(object.modified()),
                    size: Some(i64::try_from(object.size()).unwrap_or(i64::MAX)),
                    storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                    owner: self.has_owner.then(|| owner(session)),
                    ..s3s::dto::Object::default()
                });
            }
        }
        Ok(objects)
    }

    fn prefixes(page: &mut Page) -> Option<Vec<CommonPrefix>> {
        let all = std::mem::take(&mut page.prefixes);
        Some(all.into_iter().map(|prefix| CommonPrefix { prefix: Some(prefix) }).collect())
    }
}

/// The objects of keys in one folder; none for what is gone.
fn found(files: &Workspace, keys: &[(String, RelPath)]) -> Result<Vec<Option<Object>>, Error> {
    let folder = keys.first().and_then(|(_, path)| path.parent());
    let names: Option<Vec<_>> = keys.iter().map(|(_, path)| path.name().map(<[u8]>::to_vec)).collect();
    let items = match (folder, names) {
        (Some(folder), Some(names)) => files.stat_names(&folder, &names)?,
        // The top of the files has no name.
        _ => vec![None; keys.len()],
    };
    let one = |((_, path), item): (&(String, RelPath), Option<Item>)| match item {
        Some(item) if matches!(item.entry.kind, EntryKind::File { .. } | EntryKind::Dir) => {
            Ok(Some(Object::of(item)))
        }
        None if !path.is_root() => Ok(None),
        // A symbolic link is what it leads to.
        _ => match Object::find(files, path) {
            Err(error) if is_gone(&error) => Ok(None),
            found => found.map(Some),
        },
    };
    keys.iter().zip(items).map(one).collect()
}

/// The owner of all that a client sees: the client.
pub(crate) fn owner(session: &Session) -> Owner {
    let name = session.access.principal.to_string();
    Owner { id: Some(name.clone()), display_name: Some(name) }
}

fn most(asked: Option<i32>) -> S3Result<i32> {
    match asked.unwrap_or(MAX_KEYS) {
        negative if negative < 0 => Err(refused(S3ErrorCode::InvalidArgument, "max-keys is not negative")),
        most => Ok(most.min(MAX_KEYS)),
    }
}

fn is_url(encoding: Option<&EncodingType>) -> S3Result<bool> {
    match encoding.map(EncodingType::as_str) {
        None => Ok(false),
        Some("url") => Ok(true),
        Some(_) => Err(refused(S3ErrorCode::InvalidArgument, "the encoding type is url")),
    }
}

fn read_token(token: &str) -> S3Result<String> {
    let bad = || refused(S3ErrorCode::InvalidArgument, "the continuation token is none of this PoP");
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_| bad())?;
    String::from_utf8(bytes).map_err(|_| bad())
}

/// Answers ListObjectsV2.
pub(crate) fn second(
    session: &Session,
    input: ListObjectsV2Input,
) -> S3Result<S3Response<ListObjectsV2Output>> {
    let max_keys = most(input.max_keys)?;
    let after = match &input.continuation_token {
        Some(token) => Some(read_token(token)?),
        None => input.start_after.clone().filter(|key| !key.is_empty()),
    };
    let page_of = PageOf {
        bucket: input.bucket.clone(),
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        after,
        most: usize::try_from(max_keys).unwrap_or_default(),
        has_owner: input.fetch_owner.unwrap_or(false),
        is_encoded: is_url(input.encoding_type.as_ref())?,
    };
    let mut page = page_of.read(session)?;
    let told = |text: Option<String>| text.map(|text| page_of.text(&text));
    Ok(S3Response::new(ListObjectsV2Output {
        key_count: Some(i32::try_from(page.len()).unwrap_or(MAX_KEYS)),
        common_prefixes: PageOf::prefixes(&mut page),
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.map(|next| URL_SAFE_NO_PAD.encode(next)),
        contents: Some(page.objects),
        name: Some(input.bucket),
        prefix: told(input.prefix),
        delimiter: told(input.delimiter),
        max_keys: Some(max_keys),
        continuation_token: input.continuation_token,
        start_after: told(input.start_after),
        encoding_type: input.encoding_type,
        ..ListObjectsV2Output::default()
    }))
}

/// Answers ListObjects.
pub(crate) fn first(session: &Session, input: ListObjectsInput) -> S3Result<S3Response<ListObjectsOutput>> {
    let max_keys = most(input.max_keys)?;
    let page_of = PageOf {
        bucket: input.bucket.clone(),
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: input.delimiter.clone().unwrap_or_default(),
        after: input.marker.clone().filter(|key| !key.is_empty()),
        most: usize::try_from(max_keys).unwrap_or_default(),
        has_owner: true,
        is_encoded: is_url(input.encoding_type.as_ref())?,
    };
    let mut page = page_of.read(session)?;
    let told = |text: Option<String>| text.map(|text| page_of.text(&text));
    Ok(S3Response::new(ListObjectsOutput {
        common_prefixes: PageOf::prefixes(&mut page),
        is_truncated: Some(page.next.is_some()),
        next_marker: told(page.next),
        contents: Some(page.objects),
        name: Some(input.bucket),
        prefix: told(input.prefix),
        delimiter: told(input.delimiter),
        marker: Some(page_of.text(&input.marker.unwrap_or_default())),
        max_keys: Some(max_keys),
        encoding_type: input.encoding_type,
        ..ListObjectsOutput::default()
    }))
}
