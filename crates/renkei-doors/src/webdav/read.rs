//! GET and HEAD of a file: one version, whole or a range, read in blocks ahead of the client.

use super::body::{NextBlock, streamed};
use super::request::{Freshness, Target, system_time, tag};
use super::{Session, empty};
use crate::http::activity::Activity;
use axum::body::Bytes;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_mover::files::workspace::Reader;
use renkei_site::Site;
use rustls::pki_types::CertificateDer;
use std::ops::Range;
use std::sync::Arc;

/// Bytes read at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// Answers GET and HEAD.
pub(super) async fn get(
    site: Arc<Site>,
    chain: Arc<[CertificateDer<'static>]>,
    target: Target,
    activity: Activity,
) -> Result<Response, Error> {
    let open = move || {
        let (files, path) = Session::open(site, chain)?.files(&target.place, Need::Read)?;
        Ok((files.open(&path)?, target))
    };
    let (reader, target) = activity.run(open).await?;
    answer(reader, &target, activity)
}

fn answer(reader: Reader, target: &Target, activity: Activity) -> Result<Response, Error> {
    let (version, size) = (reader.version()?, reader.size());
    let (tag, modified) = (tag(&version), system_time(version.mtime));
    let mut headers = HeaderMap::new();
    let mut set = |name: HeaderName, value: &str| {
        headers.insert(name, HeaderValue::from_str(value).expect("digits and letters are legal in a header"));
    };
    set(ETAG, &tag);
    set(LAST_MODIFIED, &httpdate::fmt_http_date(modified));
    set(ACCEPT_RANGES, "bytes");
    set(CONTENT_TYPE, "application/octet-stream");
    match target.judge(&tag, modified) {
        Freshness::Send => {}
        Freshness::Known => return Ok((StatusCode::NOT_MODIFIED, headers).into_response()),
        Freshness::Failed => return Ok(empty(StatusCode::PRECONDITION_FAILED)),
    }
    let (status, range) = match target.range(size, &tag) {
        Ok(None) => (StatusCode::OK, 0..size),
        Ok(Some(range)) => {
            set(CONTENT_RANGE, &format!("bytes {}-{}/{size}", range.start, range.end - 1));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        Err(()) => {
            let all = [(CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, all).into_response());
        }
    };
    set(CONTENT_LENGTH, &(range.end - range.start).to_string());
    if target.is_head {
        return Ok((status, headers).into_response());
    }
    reader.expect_order();
    Ok((status, headers, streamed(content(reader, range), activity)).into_response())
}

/// The content of a range.
fn content(reader: Reader, mut left: Range<u64>) -> NextBlock {
    Box::new(move || {
        let bytes = (left.end - left.start).min(BLOCK_BYTES);
        let offset = left.start;
        left.start += bytes;
        (bytes > 0).then(|| block(&reader, offset, bytes)).transpose()
    })
}

/// Reads a block; a version never becomes shorter, so a short one is a defect of the file system.
fn block(reader: &Reader, offset: u64, bytes: u64) -> Result<Bytes, Error> {
    let mut block = vec![0; bytes as usize];
    match reader.read_at(&mut block, offset)? {
        count if count as u64 == bytes => Ok(block.into()),
        count => {
            let cause = format!("{count} bytes at {offset} in place of {bytes}");
            Err(Error::new(Code::SourceChanged, "read", &reader.item().entry.path, cause))
        }
    }
}
