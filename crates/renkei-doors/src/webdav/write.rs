//! PUT of a file: nothing is seen of it until all of it is durable.

use super::request::{Target, tag};
use super::{Session, empty};
use crate::http::activity::Activity;
use axum::body::{Body, Bytes};
use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use hyper::body::Body as _;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_mover::files::workspace::{Create, Writer};
use renkei_site::Site;
use rustls::pki_types::CertificateDer;
use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;

/// Bytes written at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// Answers PUT.
pub(super) async fn put(
    site: Arc<Site>,
    chain: Arc<[CertificateDer<'static>]>,
    target: Target,
    body: Body,
    activity: Activity,
) -> Result<Response, Error> {
    let expected = target.length();
    let open = move || begin(&Session::open(site, chain)?, &target);
    // The client that waits for `100 Continue` sends nothing before this.
    let writer = Arc::new(activity.run(open).await?);
    let is_new = writer.found().links == 0;
    let written = receive(&writer, body, &activity).await?;
    if let Some(expected) = expected.filter(|expected| *expected != written) {
        let cause = format!("{written} bytes arrived of {expected}");
        return Err(Error::new(Code::ConnectionLost, "PUT", "", cause));
    }
    let publish = move || {
        let writer = Arc::into_inner(writer).expect("no block is being written any more");
        writer.publish(None, None)
    };
    let item = activity.run(publish).await?;
    let mut response = empty(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT });
    if let EntryKind::File { stamp, .. } = item.entry.kind {
        let tag = HeaderValue::from_str(&tag(&stamp)).expect("digits and letters are legal in a header");
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Begins a new version.
fn begin(session: &Session, target: &Target) -> Result<Writer, Error> {
    if target.slash {
        return Err(Error::new(Code::IsADirectory, "PUT", &target.place, "the path ends with a slash"));
    }
    let (files, path) = session.files(&target.place, Need::Write)?;
    files.create(&path, Create { condition: target.precondition()?, ..Create::default() })
}

/// Writes the body; gives its length.
async fn receive(writer: &Arc<Writer>, mut body: Body, activity: &Activity) -> Result<u64, Error> {
    let (mut block, mut offset) = (Vec::with_capacity(BLOCK_BYTES), 0);
    while let Some(data) = next_data(&mut body).await? {
        activity.step();
        block.extend_from_slice(&data);
        if block.len() >= BLOCK_BYTES {
            offset += write(writer, take(&mut block), offset, activity).await?;
        }
    }
    if !block.is_empty() {
        offset += write(writer, block, offset, activity).await?;
    }
    Ok(offset)
}

async fn write(writer: &Arc<Writer>, block: Vec<u8>, offset: u64, activity: &Activity) -> Result<u64, Error> {
    let writer = writer.clone();
    activity.run(move || writer.write_at(&block, offset).map(|()| block.len() as u64)).await
}

/// The next data of a body; none at its end.
async fn next_data(body: &mut Body) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        let lost = |error| Error::new(Code::ConnectionLost, "PUT", "", error);
        match frame.transpose().map_err(lost)?.map(hyper::body::Frame::into_data) {
            Some(Ok(data)) => return Ok(Some(data)),
            // Trailers.
            Some(Err(_)) => {}
            None => return Ok(None),
        }
    }
}
