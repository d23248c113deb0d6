//! The bytes of a pull: ranges of the file at the other server are fetched by several streams and written where they belong.
//!
//! Two versions are never mixed: a file is fetched in ranges, and a fetch resumed, only where the server gives a strong
//! `ETag` that each answer is compared with, or a digest of the whole. Else one stream reads it in order, from the start again
//! after a failure. Bytes are seen when all have arrived and the digest is right.

use super::digest::{Digest, WANTED, compare, digests};
use super::other_server::{Answer, ListedConnection, OtherServer};
use super::pace::Pace;
use super::progress::CopyProgress;
use hyper::header::{HeaderMap, HeaderName, HeaderValue, IF_MATCH, RANGE};
use hyper::{Method, StatusCode};
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error, Retry};
use renkei_core::wire::message::Algorithm;
use renkei_mover::Stop;
use renkei_mover::files::workspace::Writer;
use renkei_store::checksum::{Checksum, InOrder};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Files from this size on are fetched by several streams.
const PARALLEL_BYTES: u64 = 64 << 20;
/// Shortest and longest range of a stream.
const EXTENT_BYTES: Range<u64> = 16 << 20..256 << 20;
/// Most ranges of a file: the length is the other server's word.
const MAX_EXTENTS: u64 = 1 << 16;
/// Streams of a large file, unless the client asks for another number; and the most of them.
const STREAMS: u16 = 4;
const MAX_STREAMS: u16 = 16;
/// Bytes written at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Failures of a stream without progress between them.
const MAX_FAILURES: u32 = 4;
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(20));

/// What the client wants of a copy.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Streams that the client asks for.
    pub streams: Option<u16>,
    /// Whether the digest must be compared: `Some(false)` if it need not even be asked for.
    pub verify: Option<bool>,
    /// Whether the other server is not asked by HEAD.
    pub no_head: bool,
    /// Whether an existing file at the destination is replaced.
    pub overwrites: bool,
    /// Digests that the client knows.
    pub expected: Vec<Digest>,
}

/// What is known of the file.
#[derive(Debug, Default)]
struct Source {
    size: Option<u64>,
    tag: Option<String>,
    digests: Vec<Digest>,
    takes_ranges: bool,
}

impl Source {
    fn of(answer: &Answer) -> Self {
        let tag = answer.header("etag").filter(|tag| tag.starts_with('"'));
        Source {
            size: answer.length(),
            tag: tag.map(str::to_owned),
            digests: digests(answer.head.headers()),
            // Some servers, as XRootD, do not say that they take them.
            takes_ranges: answer.header("accept-ranges") != Some("none"),
        }
    }

    /// Whether parts of it may be put together.
    fn is_one_version(&self) -> bool {
        self.tag.is_some() || !self.digests.is_empty()
    }
}

/// A pull.
pub(super) struct Pull<'p> {
    pub(super) other: &'p OtherServer,
    pub(super) writer: &'p Writer,
    pub(super) options: &'p Options,
    pub(super) progress: &'p CopyProgress,
    pub(super) stop: &'p Stop,
    /// The connection of the last HEAD, for the request after it.
    pub(super) kept: Mutex<Option<ListedConnection>>,
}

/// The ranges that are still to be fetched, and the checksums of what came in order.
struct Plan {
    source: Source,
    /// Whether one stream fetches all.
    is_single: bool,
    /// Whether the server sent all of the file in place of a range.
    ignores_ranges: AtomicBool,
    todo: Mutex<Vec<Range<u64>>>,
    sums: Mutex<Option<InOrder>>,
    failed: Mutex<Option<Error>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pull<'_> {
    /// Fetches all bytes and compares them with the digests; gives the size.
    ///
    /// # Errors
    /// Those of the other server, of the files, `DigestMismatch`, `SourceChanged`.
    pub(super) fn run(&self) -> Result<u64, Error> {
        let mut source = self.look()?;
        source.digests.extend(self.options.expected.iter().cloned());
        source.digests.dedup();
        if self.options.verify == Some(true) && source.digests.is_empty() {
            let cause = "it tells no digest, and the client requires a verification";
            let error = Error::new(Code::ServerAnswerWrong, "HEAD", &self.other.url, cause);
            return Err(error.at(&self.other.url.host));
        }
        self.progress.found(source.size.unwrap_or(0));
        let streams = self.streams(&source);
        let algorithms: Vec<Algorithm> = source.digests.iter().map(|(algorithm, _)| *algorithm).collect();
        let mut plan = Plan {
            todo: Mutex::new(extents(source.size, streams)),
            source,
            is_single: streams == 1,
            ignores_ranges: AtomicBool::new(false),
            sums: Mutex::new(Some(InOrder::new(&algorithms))),
            failed: Mutex::default(),
        };
        let mut fetched = self.fetch_all(&plan, streams);
        if *plan.ignores_ranges.get_mut() {
            tracing::info!("the server takes no ranges: one stream reads all");
            plan.is_single = true;
            plan.failed = Mutex::default();
            self.begin_again(&plan, &mut self.progress.look().bytes);
            fetched = self.fetch_all(&plan, 1);
        }
        let bytes = fetched?;
        self.verify(&plan, bytes)?;
        Ok(bytes)
    }

    /// Asks for size, version and digest.
    fn look(&self) -> Result<Source, Error> {
        if self.options.no_head {
            return Ok(Source::default());
        }
        let mut extra = HeaderMap::new();
        if self.options.verify != Some(false) {
            extra.insert(HeaderName::from_static("want-digest"), HeaderValue::from_static(WANTED));
        }
        let mut pauses = BACKOFF.begin();
        for _ in 1..MAX_FAILURES {
            match self.look_once(&extra) {
                Err(error) if self.is_retried(&error) => self.pause(&error, pauses.next(random_number()))?,
                done => return done,
            }
        }
        self.look_once(&extra)
    }

    fn look_once(&self, extra: &HeaderMap) -> Result<Source, Error> {
        let answer = self.other.ask(&Method::HEAD, extra, lock(&self.kept).take(), None)?;
        match answer.head.status().as_u16() {
            200 | 204 if answer.length().is_some_and(|size| i64::try_from(size).is_err()) => {
                Err(answer.wrong("it tells a length that no file has"))
            }
            200 | 204 => {
                let source = Source::of(&answer);
                *lock(&self.kept) = Some(answer.connection);
                Ok(source)
            }
            // Servers without HEAD are read in order.
            405 | 501 => Ok(Source::default()),
            _ => Err(answer.refused()),
        }
    }

    fn streams(&self, source: &Source) -> u16 {
        let is_large = source.size.is_some_and(|size| size >= PARALLEL_BYTES);
        match is_large && source.takes_ranges && source.is_one_version() {
            true => self.options.streams.unwrap_or(STREAMS).clamp(1, MAX_STREAMS),
            false => 1,
        }
    }

    fn fetch_all(&self, plan: &Plan, streams: u16) -> Result<u64, Error> {
        if streams == 1 {
            let mut kept = lock(&self.kept).take();
            return self.fetch_range(plan, 0..plan.source.size.unwrap_or(u64::MAX), &mut kept);
        }
        std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..streams)
                .map(|_| {
                    let named = std::thread::Builder::new().name("tpc stream".into());
                    named.spawn_scoped(scope, || self.run_stream(plan))
                })
                .collect();
            let threads = spawned.into_iter().filter_map(Result::ok).collect::<Vec<_>>();
            threads.into_iter().for_each(|thread| drop(thread.join()));
        });
        // Where no thread could be started, this one does the work.
        self.run_stream(plan);
        match lock(&plan.failed).take() {
            Some(error) => Err(error),
            None => Ok(plan.source.size.unwrap_or(0)),
        }
    }

    /// Fetches ranges until none is left or one failed.
    fn run_stream(&self, plan: &Plan) {
        let mut kept = lock(&self.kept).take();
        while lock(&plan.failed).is_none() {
            let Some(range) = lock(&plan.todo).pop() else { return };
            if let Err(error) = self.fetch_range(plan, range, &mut kept) {
                lock(&plan.failed).get_or_insert(error);
            }
        }
    }

    /// Fetches a range, whatever connections break meanwhile; gives its end.
    fn fetch_range(
        &self,
        plan: &Plan,
        range: Range<u64>,
        kept: &mut Option<ListedConnection>,
    ) -> Result<u64, Error> {
        let (mut at, mut failures, mut pauses) = (range.start, 0, BACKOFF.begin());
        let mut pace = Pace::of(&self.other.context.last_snapshot().config.tpc);
        loop {
            let before = at;
            let error = match self.fetch(plan, &mut at, range.end, (&mut *kept, &mut pace)) {
                Ok(()) => return Ok(at),
                Err(error) => error,
            };
            if lock(&plan.failed).is_some() || !self.is_retried(&error) {
                return Err(error);
            }
            let is_whole = range.start == 0 && range.end == plan.source.size.unwrap_or(u64::MAX);
            if is_whole && !plan.source.is_one_version() {
                // Bytes of another version may follow.
                self.begin_again(plan, &mut at);
            } else if at > before {
                failures = 0;
                pauses.reset();
            }
            failures += 1;
            if failures > MAX_FAILURES {
                return Err(error);
            }
            let pause = pauses.next(random_number());
            self.pause(&error, pause)?;
        }
    }

    fn too_slow(&self, slow: Error) -> Error {
        Error { op: "GET".into(), subject: self.other.url.to_string(), ..slow }.at(&self.other.url.host)
    }

    /// All bytes come once more, from the first on.
    fn begin_again(&self, plan: &Plan, at: &mut u64) {
        self.progress.moved_back(*at);
        *at = 0;
        *lock(&plan.sums) = None;
    }

    fn is_retried(&self, error: &Error) -> bool {
        error.retry() == Retry::Later
            && !matches!(error.code, Code::Cancelled | Code::ServerTooSlow)
            && self.stop.stopped().is_none()
    }

    /// Waits before the next attempt, unless the copy is stopped.
    fn pause(&self, error: &Error, pause: Duration) -> Result<(), Error> {
        tracing::info!(%error, ?pause, "trying again");
        let until = Instant::now() + pause;
        while Instant::now() < until {
            self.stop.check()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        self.stop.check()
    }

    /// One request for the bytes from `at` to the end of a range; `at` follows what was written.
    fn fetch(
        &self,
        plan: &Plan,
        at: &mut u64,
        end: u64,
        (kept, pace): (&mut Option<ListedConnection>, &mut Pace),
    ) -> Result<(), Error> {
        if *at == end && end > 0 {
            return Ok(());
        }
        let source = &plan.source;
        let is_rest = *at > 0 || source.size.is_some_and(|size| end < size);
        let began = Instant::now();
        let answer =
            self.other.ask(&Method::GET, &conditions(source, *at, end, is_rest), kept.take(), None)?;
        pace.answered(began.elapsed()).map_err(|slow| self.too_slow(slow))?;
        let end = match answer.head.status().as_u16() {
            200 if !is_rest => whole(&answer, source)?,
            // Ranges are optional (RFC 9110, section 14.2).
            200 if plan.is_single => {
                self.begin_again(plan, at);
                whole(&answer, source)?
            }
            206 if is_rest => part(&answer, source, *at..end)?,
            200 => {
                plan.ignores_ranges.store(true, Ordering::Relaxed);
                return Err(answer.wrong("it sent all of the file in place of a range"));
            }
            206 => return Err(answer.wrong("it sent a part of the file in place of all")),
            _ => return Err(answer.refused()),
        };
        same_version(&answer, source)?;
        *kept = Some(self.receive(plan, answer, (at, end), pace)?);
        Ok(())
    }

    /// Writes the body of an answer.
    fn receive(
        &self,
        plan: &Plan,
        answer: Answer,
        (at, end): (&mut u64, Option<u64>),
        pace: &mut Pace,
    ) -> Result<ListedConnection, Error> {
        let (mut connection, mut block) = (answer.connection, Vec::with_capacity(BLOCK_BYTES));
        let ended = loop {
            self.stop.check()?;
            let began = Instant::now();
            let piece = connection.inner.next_piece();
            let bytes = piece.as_ref().ok().and_then(Option::as_ref).map_or(0, |piece| piece.len() as u64);
            if let Err(slow) = pace.note(bytes, began.elapsed()) {
                break Err(self.too_slow(slow));
            }
            match piece {
                Ok(Some(piece)) => block.extend_from_slice(&piece),
                Ok(None) => break Ok(()),
                Err(error) => break Err(self.other.blame(error, &answer.url)),
            }
            if block.len() >= BLOCK_BYTES {
                self.write(plan, &block, at)?;
                block.clear();
            }
        };
        // What arrived before a failure need not come again.
        self.write(plan, &block, at)?;
        ended?;
        if end.is_some_and(|end| end != *at) {
            let cause = format!("the content ended at byte {at}");
            return Err(Error::new(Code::ConnectionLost, "GET", &answer.url, cause).at(&answer.url.host));
        }
        Ok(connection)
    }

    fn write(&self, plan: &Plan, block: &[u8], at: &mut u64) -> Result<(), Error> {
        self.writer.write_at(block, *at)?;
        let mut sums = lock(&plan.sums);
        if sums.as_mut().is_some_and(|sums| !sums.update(block, *at)) {
            *sums = None;
        }
        drop(sums);
        *at += block.len() as u64;
        self.progress.moved(block.len() as u64);
        Ok(())
    }

    /// Compares what arrived with the digests; content that did not come in order is read back.
    fn verify(&self, plan: &Plan, bytes: u64) -> Result<(), Error> {
        self.writer.set_len(bytes)?;
        if plan.source.digests.is_empty() {
            return Ok(());
        }
        self.progress.verifying();
        let in_order = lock(&plan.sums).take().filter(|sums| sums.end() == bytes);
        let known = in_order.map(InOrder::finish).unwrap_or_default();
        for expected in &plan.source.digests {
            let of = known.iter().find(|(algorithm, _)| *algorithm == expected.0);
            let found = match of {
                Some((_, sum)) => sum.clone(),
                None => Checksum::of(expected.0, |buf, offset| {
                    self.stop.check()?;
                    self.writer.read_at(buf, offset)
                })?,
            };
            compare(expected, &found, &self.other.url)?;
        }
        Ok(())
    }
}

/// The ranges of a file, the first one last: they are taken from the end of the list.
fn extents(size: Option<u64>, streams: u16) -> Vec<Range<u64>> {
    let Some(size) = size else { return Vec::new() };
    let extent = (size / (u64::from(streams) * 4)).clamp(EXTENT_BYTES.start, EXTENT_BYTES.end);
    let extent = extent.max(size / MAX_EXTENTS + 1);
    let starts = (0..size).step_by(extent as usize);
    let mut all: Vec<_> = starts.map(|start| start..size.min(start.saturating_add(extent))).collect();
    all.reverse();
    all
}

fn conditions(source: &Source, at: u64, end: u64, is_rest: bool) -> HeaderMap {
    let mut extra = HeaderMap::new();
    let mut set = |name: HeaderName, text: String| {
        if let Ok(value) = HeaderValue::from_str(&text) {
            extra.insert(name, value);
        }
    };
    set(hyper::header::ACCEPT_ENCODING, "identity".into());
    if is_rest {
        set(RANGE, if end == u64::MAX { format!("bytes={at}-") } else { format!("bytes={at}-{}", end - 1) });
    }
    if let Some(tag) = &source.tag {
        set(IF_MATCH, tag.clone());
    }
    extra
}

/// The end of a body that is all of the file, if it is announced.
fn whole(answer: &Answer, source: &Source) -> Result<Option<u64>, Error> {
    if answer.header("content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return Err(answer.wrong("it sent the content in another coding"));
    }
    match (answer.length(), source.size) {
        (Some(now), Some(before)) if now != before => Err(changed(answer, before, now)),
        (now, before) => Ok(now.or(before)),
    }
}

/// The end of a body that is a part of the file.
fn part(answer: &Answer, source: &Source, wanted: Range<u64>) -> Result<Option<u64>, Error> {
    let none = || answer.wrong("it sent another range than was asked for");
    let sent = answer.header("content-range").and_then(ContentRange::parse).ok_or_else(none)?;
    if let (Some(total), Some(size)) = (sent.total, source.size)
        && total != size
    {
        return Err(changed(answer, size, total));
    }
    match sent.is_all_of(&wanted) {
        true => Ok(Some(sent.end)),
        false => Err(none()),
    }
}

/// The bytes that a part says it has.
struct ContentRange {
    start: u64,
    end: u64,
    /// The length of the file, if the server knows it.
    total: Option<u64>,
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let end = last.trim().parse::<u64>().ok()?.checked_add(1)?;
        Some(ContentRange { start: first.trim().parse().ok()?, end, total: total.trim().parse().ok() })
    }

    /// Whether it is the range that was asked for; one without an end reaches to that of the file.
    fn is_all_of(&self, wanted: &Range<u64>) -> bool {
        let end = if wanted.end == u64::MAX { self.total } else { Some(wanted.end) };
        self.start == wanted.start && self.start < self.end && Some(self.end) == end
    }
}

fn changed(answer: &Answer, before: u64, now: u64) -> Error {
    let cause = format!("its length was {before} bytes and is {now}");
    Error::new(Code::SourceChanged, "GET", &answer.url, cause).at(&answer.url.host)
}

fn same_version(answer: &Answer, source: &Source) -> Result<(), Error> {
    match (answer.header("etag"), &source.tag) {
        (Some(now), Some(before)) if now != before => {
            let cause = format!("its ETag was {before} and is {now}");
            Err(Error::new(Code::SourceChanged, "GET", &answer.url, cause).at(&answer.url.host))
        }
        // Nothing else tells whether a part is of the same version.
        (None, Some(_))
            if source.digests.is_empty() && answer.head.status() == StatusCode::PARTIAL_CONTENT =>
        {
            Err(answer.wrong("it sent a part without the ETag of the file, and tells no digest"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_cover_the_file_once_and_begin_at_its_start() {
        for (size, streams) in
            [(1, 1), (64 << 20, 4), (10_000_000_001, 16), (EXTENT_BYTES.start, 2), (u64::MAX, 1)]
        {
            let all = extents(Some(size), streams);
            let mut at = 0;
            for extent in all.iter().rev() {
                assert!(extent.start == at && extent.end > at);
                at = extent.end;
            }
            assert!(at == size && all.len() as u64 <= MAX_EXTENTS);
        }
        assert!(extents(Some(0), 1).is_empty());
    }

    #[test]
    fn a_part_is_the_range_that_was_asked_for() {
        let is = |text: &str, wanted: Range<u64>| {
            ContentRange::parse(text).is_some_and(|sent| sent.is_all_of(&wanted))
        };
        assert!(is("bytes 5-9/10", 5..10) && is("bytes 5-9/*", 5..10) && is("bytes 5-9/20", 5..10));
        assert!(is("bytes 5-9/10", 5..u64::MAX));
        for short in ["bytes 5-8/10", "bytes 5-9/*", "bytes 5-9/x", "bytes 6-9/10", "bytes 9-5/10"] {
            assert!(!is(short, 5..u64::MAX), "{short}");
        }
        for other in
            ["bytes 5-8/10", "bytes 4-9/10", "5-9/10", "bytes */10", "bytes 5-18446744073709551615/*"]
        {
            assert!(!is(other, 5..10), "{other}");
        }
    }
}
