//! Bodies: content that is made block by block ahead of the client, and documents in requests.

use crate::http::activity::Activity;
use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame};
use renkei_core::error::{Code, Error};
use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Makes the next block of a body, or none at its end; blocks.
pub(crate) type NextBlock = Box<dyn FnMut() -> Result<Option<Bytes>, Error> + Send>;

/// The size of the next block of a body: large for a fast client; small for a slow one, of which there may be thousands.
pub(super) struct BlockSize {
    bytes: usize,
    since: Instant,
}

impl BlockSize {
    const LEAST: usize = 32 << 10;
    /// Larger ones leave the caches of the processor before they are sent.
    const MOST: usize = 512 << 10;
    /// A client that takes a block in less time gets larger ones, in more than eight times as much smaller ones.
    const SOON: Duration = Duration::from_millis(25);

    pub(super) fn new() -> Self {
        BlockSize { bytes: Self::LEAST, since: Instant::now() }
    }

    /// Bytes of the present block.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The client has taken or sent a block.
    pub(super) fn on_block(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.since);
        self.since = now;
        if took < Self::SOON {
            self.bytes = Self::MOST.min(self.bytes * 2);
        } else if took > Self::SOON * 8 {
            self.bytes = Self::LEAST.max(self.bytes / 2);
        }
    }
}

/// Blocks whose memory is used again once the client has taken them.
///
/// New memory for each block costs more than reading it: the kernel zeroes it page by page.
#[derive(Clone, Default)]
pub(super) struct BlockPool(Arc<Mutex<Vec<Vec<u8>>>>);

/// A block of a pool.
struct Block {
    bytes: Vec<u8>,
    pool: BlockPool,
}

impl BlockPool {
    /// A block of `size` bytes that `fill` writes to.
    ///
    /// # Errors
    /// Those of `fill`.
    pub(super) fn block(
        &self,
        size: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<Bytes, Error> {
        let used = self.free().pop();
        let mut block = Block { bytes: used.unwrap_or_default(), pool: self.clone() };
        block.bytes.resize(size, 0);
        fill(&mut block.bytes)?;
        Ok(Bytes::from_owner(block))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().expect("no thread panics with it")
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.pool.free().push(take(&mut self.bytes));
    }
}

/// A body whose next block is made while the client takes the one before.
pub(crate) fn streamed(next: NextBlock, activity: Activity) -> Body {
    let made = Some(make(next, &activity));
    Body::new(Streamed { made, activity })
}

type Made = (NextBlock, Result<Option<Bytes>, Error>);

fn make(mut next: NextBlock, activity: &Activity) -> JoinHandle<Made> {
    activity.spawn(move || {
        let block = next();
        (next, block)
    })
}

struct Streamed {
    /// The block that is being made; none at the end.
    made: Option<JoinHandle<Made>>,
    activity: Activity,
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
        self.made = matches!(block, Ok(Some(_))).then(|| make(next, &self.activity));
        // The status is sent already: on an error the connection ends before the announced length.
        Poll::Ready(
            block
                .inspect_err(|error| tracing::warn!(%error, "content is cut short"))
                .transpose()
                .map(|block| block.map(Frame::data)),
        )
    }
}

/// Longest document in a request.
const MAX_DOCUMENT_BYTES: usize = 256 << 10;

/// A request's body that is a document.
///
/// # Errors
/// `TooManyEntries` if it is too long; `ConnectionLost`.
pub(crate) async fn document(mut body: Body, activity: &Activity) -> Result<Vec<u8>, Error> {
    let mut document = Vec::new();
    while let Some(data) = next_data(&mut body).await? {
        activity.step();
        document.extend_from_slice(&data);
        if document.len() > MAX_DOCUMENT_BYTES {
            let cause = format!("a body of XML has at most {MAX_DOCUMENT_BYTES} bytes");
            return Err(Error::new(Code::TooManyEntries, "read request", "", cause));
        }
    }
    Ok(document)
}

/// The next data of a body; none at its end.
pub(super) async fn next_data(body: &mut Body) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        let lost = |error| Error::new(Code::ConnectionLost, "read request", "", error);
        match frame.transpose().map_err(lost)?.map(Frame::into_data) {
            Some(Ok(data)) => return Ok(Some(data)),
            // Trailers.
            Some(Err(_)) => {}
            None => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_large_for_fast_clients_and_small_for_slow_ones() {
        let mut size = BlockSize::new();
        let mut now = size.since;
        let mut after = |took: Duration, size: &mut BlockSize| {
            now += took;
            size.on_block(now);
            size.bytes()
        };
        let fast: Vec<usize> = (0..6).map(|_| after(Duration::from_millis(1), &mut size)).collect();
        assert_eq!((fast[0], fast[5]), (64 << 10, BlockSize::MOST));
        assert_eq!(after(Duration::from_millis(100), &mut size), BlockSize::MOST);
        let slow: Vec<usize> = (0..7).map(|_| after(Duration::from_secs(1), &mut size)).collect();
        assert_eq!((slow[0], slow[6]), (BlockSize::MOST / 2, BlockSize::LEAST));
    }

    #[test]
    fn the_memory_of_a_block_is_used_again() {
        let pool = BlockPool::default();
        let block = |size, byte| {
            pool.block(size, |block| {
                block.fill(byte);
                Ok(())
            })
        };
        let first = block(4096, 1).unwrap();
        let memory = first.as_ptr();
        let part = first.slice(4000..);
        drop(first);
        assert_ne!(block(4096, 2).unwrap().as_ptr(), memory);
        assert_eq!(part[..], [1; 96]);
        drop(part);
        let again = block(1000, 3).unwrap();
        assert_eq!((again.len(), again[0]), (1000, 3));
    }
}
