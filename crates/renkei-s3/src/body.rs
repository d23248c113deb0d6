//! Bodies: content that comes in blocks, and content that is read ahead of the client; work that blocks is done on threads
//! of its own.

use crate::error::refused;
use hyper::StatusCode;
use hyper::body::{Body as _, Bytes, Frame};
use renkei_core::error::Error;
use s3s::dto::StreamingBlob;
use s3s::{Body, S3Error, S3ErrorCode, S3Result};
use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::task::JoinHandle;

/// Bytes read or written at a time.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// The progress of a connection, which is closed if it has none.
pub trait Progress: Send + Sync + 'static {
    /// A block came or went.
    fn step(&self);
    /// An operation begins.
    fn enter(&self);
    /// An operation ended.
    fn leave(&self);
    /// A request was authenticated.
    fn authenticated(&self);
}

/// Runs work on a thread that may block.
pub(crate) async fn run<T: Send + 'static>(
    progress: &Arc<dyn Progress>,
    work: impl FnOnce() -> S3Result<T> + Send + 'static,
) -> S3Result<T> {
    spawn(progress, work).await.expect("a panic aborts the process")
}

fn spawn<T: Send + 'static>(
    progress: &Arc<dyn Progress>,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let progress = progress.clone();
    progress.enter();
    tokio::task::spawn_blocking(move || {
        let done = work();
        progress.leave();
        done
    })
}

/// Takes content block by block; blocks.
pub(crate) trait Sink: Send + Sized + 'static {
    /// Takes the next block.
    fn write(self, block: &[u8]) -> S3Result<Self>;
}

/// Passes a body to a sink.
///
/// # Errors
/// Those of the sink; `IncompleteBody`, `SignatureDoesNotMatch`, `XAmzContentSHA256Mismatch` of the body.
pub(crate) async fn receive<S: Sink>(
    mut sink: S,
    body: Option<StreamingBlob>,
    progress: &Arc<dyn Progress>,
) -> S3Result<S> {
    let mut body = body.map(Body::from).unwrap_or_default();
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    while let Some(data) = next_data(&mut body).await? {
        progress.step();
        block.extend_from_slice(&data);
        if block.len() >= BLOCK_BYTES {
            let full = take(&mut block);
            sink = run(progress, move || sink.write(&full)).await?;
        }
    }
    run(progress, move || sink.write(&block)).await
}

async fn next_data(body: &mut Body) -> S3Result<Option<Bytes>> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame.transpose().map_err(|error| lost(&*error))?.map(Frame::into_data) {
            Some(Ok(data)) => return Ok(Some(data)),
            Some(Err(_)) => {}
            None => return Ok(None),
        }
    }
}

/// The error of a body: its signatures and hashes are verified while it is read.
fn lost(error: &(dyn std::error::Error + Send + Sync)) -> S3Error {
    let told = error.to_string();
    let (code, status) = if told.contains("SignatureMismatch") {
        (S3ErrorCode::SignatureDoesNotMatch, StatusCode::FORBIDDEN)
    } else if told.contains("Sha256Mismatch") {
        (S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()), StatusCode::BAD_REQUEST)
    } else {
        (S3ErrorCode::IncompleteBody, StatusCode::BAD_REQUEST)
    };
    let message = format!("the content that came is not what was signed or announced: {told}");
    let mut refused = refused(code, message);
    refused.set_status_code(status);
    refused
}

/// Makes the next block of a body, or none at its end; blocks.
pub(crate) type NextBlock = Box<dyn FnMut() -> Result<Option<Bytes>, Error> + Send>;

/// A body whose next block is made while the client takes the one before.
pub(crate) fn streamed(next: NextBlock, progress: Arc<dyn Progress>) -> StreamingBlob {
    let made = Some(make(next, &progress));
    StreamingBlob::from(Body::http_body_unsync(Streamed { made, progress }))
}

type Made = (NextBlock, Result<Option<Bytes>, Error>);

fn make(mut next: NextBlock, progress: &Arc<dyn Progress>) -> JoinHandle<Made> {
    spawn(progress, move || {
        let block = next();
        (next, block)
    })
}

struct Streamed {
    /// The block that is being made; none at the end.
    made: Option<JoinHandle<Made>>,
    progress: Arc<dyn Progress>,
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(made) = &mut self.made else { return Poll::Ready(None) };
        let Poll::Ready(made) = Pin::new(made).poll(context) else { return Poll::Pending };
        let (next, block) = made.expect("a panic aborts the process");
        self.made = matches!(block, Ok(Some(_))).then(|| make(next, &self.progress));
        // The status is sent already: on an error the connection ends before the announced length.
        Poll::Ready(
            block
                .inspect_err(|error| tracing::warn!(%error, "content is cut short"))
                .transpose()
                .map(|block| block.map(Frame::data)),
        )
    }
}
