//! Bodies of HTTP for the doors: content that is read ahead of the client, and content that is written while more arrives.
//!
//! All work that blocks is done on threads of the runtime that may block. A body that is sent has two blocks of memory
//! (`BlockPool`), one of which is filled while the client takes the other; one that arrives has two as well, of which one is
//! written. Their size follows the speed of the client (`BlockSize`). Each block, each operation and each authenticated
//! request is told to the connection's [`Progress`], by which the door knows idle connections.

use hyper::body::{Body, Bytes, Frame};
use renkei_core::block::AlignedBlock;
use renkei_core::error::{Code, Error};
use renkei_mover::files::workspace::Reader;
use std::future::poll_fn;
use std::mem::{replace, take};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

const NO_PANIC: &str = "a panic aborts the process";

/// The progress of a connection, which is closed if it has none.
pub trait Progress: Send + Sync + 'static {
    /// Notes that a block came or went.
    fn step(&self);
    /// Notes that an operation begins.
    fn enter(&self);
    /// Notes that an operation ended.
    fn leave(&self);
    /// Notes that a request was authenticated.
    fn authenticated(&self);
}

impl<P: Progress + ?Sized> Progress for Arc<P> {
    fn step(&self) {
        (**self).step();
    }

    fn enter(&self) {
        (**self).enter();
    }

    fn leave(&self) {
        (**self).leave();
    }

    fn authenticated(&self) {
        (**self).authenticated();
    }
}

/// Starts work on a thread that may block.
pub fn spawn<P: Progress + Clone, T: Send + 'static>(
    progress: &P,
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

/// Runs work on a thread that may block.
pub async fn run<P: Progress + Clone, T: Send + 'static>(
    progress: &P,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    Running::new(progress, work).done().await
}

/// Work on a thread that may block. If nobody waits for its result any more, that is dropped on such a thread, too: a file
/// that is being written asks an agent to remove it.
struct Running<T: Send + 'static>(Option<JoinHandle<T>>);

impl<T: Send + 'static> Running<T> {
    fn new<P: Progress + Clone>(progress: &P, work: impl FnOnce() -> T + Send + 'static) -> Self {
        Running(Some(spawn(progress, work)))
    }

    /// The result. The work goes on if the future is dropped.
    async fn done(mut self) -> T {
        let done = self.0.as_mut().expect("it is taken once").await.expect(NO_PANIC);
        self.0 = None;
        done
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) else { return };
        runtime.spawn(async move {
            if let Ok(done) = work.await {
                tokio::task::spawn_blocking(move || drop(done));
            }
        });
    }
}

/// The size of the next block of a body: large for a fast client; small for a slow one, of which there may be thousands.
struct BlockSize {
    bytes: usize,
    since: Instant,
}

impl BlockSize {
    const LEAST: usize = 32 << 10;
    /// Larger ones leave the caches of the processor before they are sent.
    const MOST: usize = 512 << 10;
    /// A client that takes a block in less time gets larger ones, in more than eight times as much smaller ones.
    const SOON: Duration = Duration::from_millis(25);

    fn new() -> Self {
        BlockSize { bytes: Self::LEAST, since: Instant::now() }
    }

    /// Bytes of the present block.
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// The client has taken or sent a block.
    fn on_block(&mut self, now: Instant) {
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
struct BlockPool(Arc<Mutex<Vec<Vec<u8>>>>);

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
    fn block(&self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), Error>) -> Result<Bytes, Error> {
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

/// Content of a file in blocks for a client.
pub struct Blocks {
    reader: Reader,
    pool: BlockPool,
    size: BlockSize,
}

impl Blocks {
    /// The content of an open file.
    pub fn new(reader: Reader) -> Self {
        Blocks { reader, pool: BlockPool::default(), size: BlockSize::new() }
    }

    /// Reads the next block of a range, which becomes shorter by it; none at its end. Blocks.
    ///
    /// # Errors
    /// Those of the files; `SourceChanged` if the file was cut.
    pub fn next(&mut self, range: &mut Range<u64>) -> Result<Option<Bytes>, Error> {
        if range.is_empty() {
            return Ok(None);
        }
        self.size.on_block(Instant::now());
        let at = range.start;
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let bytes = left.min(self.size.bytes());
        // A version never becomes shorter, so a short one is a defect of the file system or a plain file that was cut.
        let block = self.pool.block(bytes, |block| match self.reader.read_at(block, at)? {
            count if count == bytes => Ok(()),
            count => {
                let cause = format!("{count} bytes at {at} in place of {bytes}");
                Err(Error::new(Code::SourceChanged, "read", &self.reader.item().entry.path, cause))
            }
        })?;
        range.start += bytes as u64;
        Ok(Some(block))
    }

    /// The blocks of one range.
    pub fn of(mut self, mut range: Range<u64>) -> NextBlock {
        Box::new(move || self.next(&mut range))
    }
}

/// Makes the next block of a body, or none at its end; blocks.
pub type NextBlock = Box<dyn FnMut() -> Result<Option<Bytes>, Error> + Send>;

/// A body whose next block is made while the client takes the one before.
pub struct Streamed<P> {
    /// The block that is being made; none at the end.
    made: Option<JoinHandle<Made>>,
    progress: P,
}

type Made = (NextBlock, Result<Option<Bytes>, Error>);

impl<P: Progress + Clone> Streamed<P> {
    /// Begins to make the first block.
    pub fn new(next: NextBlock, progress: P) -> Self {
        Streamed { made: Some(make(next, &progress)), progress }
    }
}

fn make(mut next: NextBlock, progress: &(impl Progress + Clone)) -> JoinHandle<Made> {
    spawn(progress, move || {
        let block = next();
        (next, block)
    })
}

impl<P: Progress + Clone + Unpin> Body for Streamed<P> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(made) = &mut self.made else { return Poll::Ready(None) };
        let (next, block) = ready!(Pin::new(made).poll(context)).expect(NO_PANIC);
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

/// The next data of a body; none at its end.
///
/// # Errors
/// Those of the body.
pub async fn next_data<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> Result<Option<Bytes>, B::Error> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match frame.transpose()?.map(Frame::into_data) {
            Some(Ok(data)) => return Ok(Some(data)),
            // Trailers.
            Some(Err(_)) => {}
            None => return Ok(None),
        }
    }
}

/// Takes content block by block; blocks.
pub trait Sink: Send + Sized + 'static {
    /// Why it takes none.
    type Error: Send + 'static;

    /// Takes the next block, and gives its memory back.
    ///
    /// # Errors
    /// Those of the content's place; nothing follows then.
    fn write(self, block: AlignedBlock) -> Result<(Self, AlignedBlock), Self::Error>;
}

/// Passes a body to a sink: a block is written while the next one arrives. All but the last have a power of two of bytes, so
/// that they may be written past the page cache. The sink gets one block at least, which may be empty.
///
/// # Errors
/// Those of the sink; `lost` makes them of those of the body.
pub async fn receive<S, B, P>(
    sink: S,
    mut body: B,
    progress: &P,
    lost: impl Fn(B::Error) -> S::Error,
) -> Result<S, S::Error>
where
    S: Sink,
    B: Body<Data = Bytes> + Unpin,
    P: Progress + Clone,
{
    let begun = Ok((sink, AlignedBlock::default()));
    let mut writing = Running::new(progress, || begun);
    let mut block = AlignedBlock::default();
    let mut size = BlockSize::new();
    while let Some(mut data) = next_data(&mut body).await.map_err(&lost)? {
        progress.step();
        while !data.is_empty() {
            let count = block.fill(&data, size.bytes());
            data = data.slice(count..);
            if block.len() < size.bytes() {
                break;
            }
            size.on_block(Instant::now());
            let (sink, free) = writing.done().await?;
            let full = replace(&mut block, free);
            block.clear();
            writing = Running::new(progress, move || sink.write(full));
        }
    }
    let (sink, _) = writing.done().await?;
    run(progress, move || sink.write(block)).await.map(|(sink, _)| sink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Counted {
        steps: AtomicU64,
        running: AtomicU64,
    }

    impl Progress for Counted {
        fn step(&self) {
            self.steps.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self) {
            self.running.fetch_add(1, Ordering::Relaxed);
        }

        fn leave(&self) {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }

        fn authenticated(&self) {}
    }

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

    /// Content that arrives in frames.
    struct Frames(VecDeque<Bytes>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }
    }

    /// A sink that refuses content behind its bound.
    struct Bounded {
        content: Vec<u8>,
        blocks: usize,
        bound: usize,
    }

    impl Sink for Bounded {
        type Error = usize;

        fn write(mut self, block: AlignedBlock) -> Result<(Self, AlignedBlock), usize> {
            self.content.extend_from_slice(&block);
            self.blocks += 1;
            match self.content.len() > self.bound {
                true => Err(self.content.len()),
                false => Ok((self, block)),
            }
        }
    }

    async fn received(frames: &[&[u8]], bound: usize) -> Result<Bounded, usize> {
        let frames = Frames(frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect());
        let sink = Bounded { content: Vec::new(), blocks: 0, bound };
        receive(sink, frames, &Arc::new(Counted::default()), |error| match error {}).await
    }

    #[tokio::test]
    async fn what_arrives_is_written_in_order_and_a_refusal_ends_it() {
        let part = |byte: u8| vec![byte; BlockSize::LEAST];
        let all: Vec<Vec<u8>> = (0..20).map(part).collect();
        let frames: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let sink = received(&frames, usize::MAX).await.unwrap_or_else(|_| panic!("it has no bound"));
        assert_eq!(sink.content, all.concat());
        assert!((2..=21).contains(&sink.blocks), "{}", sink.blocks);
        let refused = received(&frames, BlockSize::LEAST).await.map(drop);
        assert!(refused.is_err_and(|bytes| bytes > BlockSize::LEAST));
        let empty = received(&[], 0).await.unwrap_or_else(|_| panic!("nothing is refused"));
        assert_eq!((empty.content.len(), empty.blocks), (0, 1));
    }

    /// A sink that tells on which thread it is dropped.
    struct Told(std::sync::mpsc::Sender<std::thread::ThreadId>);

    impl Sink for Told {
        type Error = &'static str;

        fn write(self, block: AlignedBlock) -> Result<(Self, AlignedBlock), &'static str> {
            Ok((self, block))
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    /// A body that breaks off, or waits for ever.
    struct Broken(bool);

    impl Body for Broken {
        type Data = Bytes;
        type Error = ();

        fn poll_frame(
            self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, ()>>> {
            if self.0 { Poll::Ready(Some(Err(()))) } else { Poll::Pending }
        }
    }

    #[tokio::test]
    async fn what_is_broken_off_is_dropped_on_a_thread_that_may_block() {
        for breaks_off in [true, false] {
            let (tell, told) = std::sync::mpsc::channel();
            let progress = Arc::new(Counted::default());
            let mut receiving = Box::pin(receive(Told(tell), Broken(breaks_off), &progress, |()| "lost"));
            let polled = poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context))).await;
            assert_eq!(polled.is_ready(), breaks_off);
            drop((polled, receiving));
            let thread = run(&progress, move || told.recv_timeout(Duration::from_secs(30)).unwrap()).await;
            assert_ne!(thread, std::thread::current().id());
        }
    }

    #[tokio::test]
    async fn a_body_ends_with_its_blocks_or_with_an_error() {
        for is_cut in [false, true] {
            let mut blocks = VecDeque::from([Bytes::from_static(b"one"), Bytes::from_static(b"two")]);
            let next: NextBlock = Box::new(move || match blocks.pop_front() {
                None if is_cut => Err(Error::new(Code::SourceChanged, "read", "x", "cut")),
                block => Ok(block),
            });
            let progress = Arc::new(Counted::default());
            let mut body = Streamed::new(next, progress.clone());
            let mut content = Vec::new();
            let end = loop {
                match next_data(&mut body).await {
                    Ok(Some(data)) => content.extend_from_slice(&data),
                    end => break end,
                }
            };
            assert_eq!((&content[..], end.is_err()), (&b"onetwo"[..], is_cut));
            assert_eq!(progress.running.load(Ordering::Relaxed), 0);
        }
    }
}
