//! PUT of a file: nothing is seen of it until all of it is durable and has the digests that were announced.

use super::digest::Expected;
use super::document::lost;
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
use renkei_core::block::AlignedBlock;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::lease::web_locks::Claim;
use renkei_mover::files::workspace::{Create, Writer};
use renkei_site::files::body::{Sink, receive};

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
            let upload = receive(upload, body, &activity, lost).await?;
            activity.run(move || upload.publish()).await
        }
        Ok(Err(refused)) => Ok(refused),
        Err(error) => missing_parent(error),
    }
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

impl Sink for Upload {
    type Error = Error;

    fn write(mut self, block: AlignedBlock) -> Result<(Self, AlignedBlock), Error> {
        let block = self.writer.write_block(block, self.written)?;
        self.expected.update(&block);
        self.written += block.len() as u64;
        Ok((self, block))
    }
}
