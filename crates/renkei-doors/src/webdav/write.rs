//! PUT of a file: nothing is seen of it until all of it is durable and has the digests that were announced.

use super::body::{BlockSize, next_data};
use super::digest::Expected;
use super::error::missing_parent;
use super::locks::refusal;
use super::multistatus::empty;
use super::request::{Target, tag};
use super::session::Session;
use crate::http::activity::Activity;
use axum::body::Body;
use axum::http::header::ETAG;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::lease::web_locks::Claim;
use renkei_mover::files::workspace::{Create, Writer};
use std::mem::replace;
use std::time::Instant;

const NO_PANIC: &str = "a panic aborts the process";

/// An upload after a block, and the block's memory.
type Written = Result<(Upload, Vec<u8>), Error>;

/// A file that is being written.
struct Upload {
    session: Session,
    target: Target,
    writer: Writer,
    expected: Expected,
    written: u64,
}

/// Answers PUT.
pub(super) async fn put(
    session: Session,
    target: Target,
    body: Body,
    activity: Activity,
) -> Result<Response, Error> {
    let open = move || Upload::begin(session, target);
    // The client that waits for `100 Continue` sends nothing before this.
    match activity.run(open).await {
        Ok(Ok(upload)) => {
            let upload = receive(upload, body, &activity).await?;
            activity.run(move || upload.publish()).await
        }
        Ok(Err(refused)) => Ok(refused),
        Err(error) => missing_parent(error),
    }
}

/// Writes the body: a block while the next one arrives.
async fn receive(upload: Upload, mut body: Body, activity: &Activity) -> Result<Upload, Error> {
    let begun: Written = Ok((upload, Vec::new()));
    let mut writing = activity.spawn(|| begun);
    let (mut block, mut size) = (Vec::new(), BlockSize::new());
    while let Some(data) = next_data(&mut body).await? {
        activity.step();
        block.extend_from_slice(&data);
        if block.len() >= size.bytes() {
            size.on_block(Instant::now());
            let (upload, free) = writing.await.expect(NO_PANIC)?;
            let full = replace(&mut block, free);
            writing = activity.spawn(move || upload.write(full));
        }
    }
    let (upload, _) = writing.await.expect(NO_PANIC)?;
    activity.run(move || upload.write(block)).await.map(|(upload, _)| upload)
}

impl Upload {
    /// The upload, or the response to a client that did not show the tokens of locks.
    fn begin(session: Session, target: Target) -> Result<Result<Self, Response>, Error> {
        if target.slash {
            return Err(Error::new(Code::IsADirectory, "PUT", &target.place, "the path ends with a slash"));
        }
        let expected = Expected::of(&target.headers)?;
        let condition = target.precondition()?;
        let (files, path) = session.files(&target.place, Need::Write)?;
        let writer = files.create(&path, Create { condition, ..Create::default() })?;
        let upload = Upload { session, target, writer, expected, written: 0 };
        Ok(match upload.refusal()? {
            Some(refused) => Err(refused),
            None => Ok(upload),
        })
    }

    /// Whether there is no file of that name yet.
    fn is_new(&self) -> bool {
        self.writer.found().links == 0
    }

    fn refusal(&self) -> Result<Option<Response>, Error> {
        let claim = Claim { place: self.target.place.clone(), is_tree: false, is_name: self.is_new() };
        refusal(&self.session, &self.target, &[claim])
    }

    fn write(mut self, block: Vec<u8>) -> Written {
        let mut block = self.writer.write_block(block, self.written)?;
        self.expected.update(&block);
        self.written += block.len() as u64;
        block.clear();
        Ok((self, block))
    }

    fn publish(self) -> Result<Response, Error> {
        if let Some(length) = self.target.length().filter(|length| *length != self.written) {
            let cause = format!("{} bytes arrived of {length}", self.written);
            return Err(Error::new(Code::ConnectionLost, "PUT", "", cause));
        }
        // Somebody may have locked it since.
        if let Some(refused) = self.refusal()? {
            return Ok(refused);
        }
        let is_new = self.is_new();
        let digest = self.expected.finish(&self.target.place)?;
        let item = self.writer.publish(None, None)?;
        let mut response = empty(if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT });
        if let EntryKind::File { stamp, .. } = item.entry.kind {
            let tag = HeaderValue::from_str(&tag(&stamp)).expect("digits and letters are legal in a header");
            response.headers_mut().insert(ETAG, tag);
        }
        response.headers_mut().extend(digest);
        Ok(response)
    }
}
