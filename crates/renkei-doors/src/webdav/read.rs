//! GET and HEAD of a file: one version, whole or ranges of it.

use super::digest::Wanted;
use super::multistatus::empty;
use super::request::{Freshness, Target, system_time, tag};
use super::session::Session;
use crate::http::activity::Activity;
use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use renkei_config::random::random_bytes;
use renkei_core::error::Error;
use renkei_core::identity::Need;
use renkei_core::units::hex;
use renkei_core::wire::file;
use renkei_mover::files::workspace::Reader;
use renkei_site::files::body::{Blocks, NextBlock, Streamed};
use std::collections::VecDeque;
use std::ops::Range;

/// The media type of content.
const TYPE: &str = "application/octet-stream";

/// A file that is asked for, with the digest that the client wants.
struct ReadRequest {
    reader: Reader,
    digest: Option<(HeaderName, HeaderValue)>,
}

/// Answers GET and HEAD.
pub(super) async fn get(session: Session, target: Target, activity: Activity) -> Result<Response, Error> {
    let open = move || {
        let (files, path) = session.files(&target.place, Need::Read)?;
        let reader = files.open(&path)?;
        let digest = match Wanted::of(&target.headers) {
            Some(wanted) => {
                let sum = reader.checksum(wanted.algorithm, file::Freshness::Any)?;
                sum.map(|sum| wanted.header(&sum))
            }
            None => None,
        };
        Ok((ReadRequest { reader, digest }, target))
    };
    let (asked, target) = activity.run(open).await?;
    answer(asked, &target, activity)
}

fn answer(asked: ReadRequest, target: &Target, activity: Activity) -> Result<Response, Error> {
    let ReadRequest { reader, digest } = asked;
    let (version, size) = (reader.version()?, reader.size());
    let (tag, modified) = (tag(&version), system_time(version.mtime));
    let mut headers = HeaderMap::new();
    headers.extend(digest);
    let mut set = |name: HeaderName, value: &str| {
        headers.insert(name, HeaderValue::from_str(value).expect("digits and letters are legal in a header"));
    };
    set(ETAG, &tag);
    set(LAST_MODIFIED, &httpdate::fmt_http_date(modified));
    set(ACCEPT_RANGES, "bytes");
    set(CONTENT_TYPE, TYPE);
    match target.judge(&tag, modified) {
        Freshness::Send => {}
        Freshness::Known => return Ok((StatusCode::NOT_MODIFIED, headers).into_response()),
        Freshness::Failed => return Ok(empty(StatusCode::PRECONDITION_FAILED)),
    }
    let Ok(ranges) = target.ranges(size, &tag) else {
        let all = [(CONTENT_RANGE, format!("bytes */{size}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, all).into_response());
    };
    let (status, pieces) = match &ranges[..] {
        [] => (StatusCode::OK, vec![Piece::Content(0..size)]),
        [range] => {
            set(CONTENT_RANGE, &content_range(range, size));
            (StatusCode::PARTIAL_CONTENT, vec![Piece::Content(range.clone())])
        }
        ranges => {
            let boundary = hex(&random_bytes::<16>()?);
            set(CONTENT_TYPE, &format!("multipart/byteranges; boundary={boundary}"));
            (StatusCode::PARTIAL_CONTENT, parts(ranges, size, &boundary))
        }
    };
    set(CONTENT_LENGTH, &pieces.iter().map(Piece::bytes).sum::<u64>().to_string());
    if target.is_head {
        return Ok((status, headers).into_response());
    }
    reader.expect_order();
    Ok((status, headers, Body::new(Streamed::new(content(reader, pieces), activity))).into_response())
}

fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}

/// A piece of a body.
enum Piece {
    Text(String),
    Content(Range<u64>),
}

impl Piece {
    fn bytes(&self) -> u64 {
        match self {
            Piece::Text(text) => text.len() as u64,
            Piece::Content(range) => range.end - range.start,
        }
    }
}

/// Several ranges in one body (RFC 9110, section 14.6).
fn parts(ranges: &[Range<u64>], size: u64, boundary: &str) -> Vec<Piece> {
    let part = |range: &Range<u64>| {
        let of = content_range(range, size);
        let head = format!("\r\n--{boundary}\r\nContent-Type: {TYPE}\r\nContent-Range: {of}\r\n\r\n");
        [Piece::Text(head), Piece::Content(range.clone())]
    };
    let end = Piece::Text(format!("\r\n--{boundary}--\r\n"));
    ranges.iter().flat_map(part).chain([end]).collect()
}

/// The content of pieces.
fn content(reader: Reader, pieces: Vec<Piece>) -> NextBlock {
    let (mut pieces, mut blocks) = (VecDeque::from(pieces), Blocks::new(reader));
    Box::new(move || {
        while let Some(piece) = pieces.pop_front() {
            match piece {
                Piece::Text(text) => return Ok(Some(text.into())),
                Piece::Content(mut range) => {
                    if let Some(block) = blocks.next(&mut range)? {
                        pieces.push_front(Piece::Content(range));
                        return Ok(Some(block));
                    }
                }
            }
        }
        Ok(None)
    })
}
