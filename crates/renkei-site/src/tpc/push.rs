//! The bytes of a push: one PUT to the other server, which is then asked for what it has.

use super::digest::{WANTED, compare, digests};
use super::other_server::{Answer, OtherServer, Upload};
use super::progress::CopyProgress;
use super::pull::Options;
use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use renkei_core::error::{Code, Error};
use renkei_core::wire::file::Freshness;
use renkei_core::wire::message::Algorithm;
use renkei_mover::Stop;
use renkei_mover::files::workspace::Reader;
use renkei_net::web_connection::Cancel;
use renkei_store::checksum::{Checksum, InOrder};
use std::cell::{Cell, RefCell};

/// Bytes read at a time.
const BLOCK_BYTES: u64 = 1 << 20;

/// A push.
pub(super) struct Push<'p> {
    pub(super) other: &'p OtherServer,
    pub(super) reader: &'p Reader,
    pub(super) options: &'p Options,
    pub(super) progress: &'p CopyProgress,
    pub(super) stop: &'p Stop,
}

/// What was at the destination before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Something,
    Unknown,
}

/// What was sent.
struct Put {
    adler32: Vec<u8>,
    /// The strong ETag that the other server gave it.
    tag: Option<String>,
}

fn strong_tag(answer: &Answer) -> Option<String> {
    answer.header("etag").filter(|tag| tag.starts_with('"')).map(str::to_owned)
}

impl Push<'_> {
    /// Sends all bytes and compares what the other server has then; gives the size. What a failed PUT left, or what has
    /// proved to be wrong, is removed where nothing was before.
    ///
    /// # Errors
    /// Those of the other server and of the files, `PathExists`, `DigestMismatch`; `SourceChanged` if another client
    /// replaced the file before it was compared.
    pub(super) fn run(&self) -> Result<u64, Error> {
        let bytes = self.reader.size();
        self.progress.found(bytes);
        let before = self.look()?;
        let sent = Cell::new(false);
        let is_new = before == Before::Nothing;
        let put = self.put(bytes, &sent).inspect_err(|_| {
            if sent.get() && is_new {
                self.remove(None);
            }
        })?;
        let tag = RefCell::new(None);
        let compared = self.verify(bytes, &put, &tag);
        // Other errors say nothing of the content.
        if compared.as_ref().is_err_and(|error| error.code == Code::DigestMismatch) {
            let tag = tag.into_inner();
            if let (Some(put), Some(there)) = (&put.tag, &tag)
                && put != there
            {
                let cause = format!("its ETag was {put} and is {there}: another client replaced the file");
                let error = Error::new(Code::SourceChanged, "compare", &self.other.url, cause);
                return Err(error.at(&self.other.url.host));
            }
            if is_new {
                self.remove(tag.as_deref());
            }
        }
        compared.map(|()| bytes)
    }

    fn look(&self) -> Result<Before, Error> {
        if self.options.no_head {
            return Ok(Before::Unknown);
        }
        let answer = self.other.ask(&Method::HEAD, &HeaderMap::new(), None, None)?;
        match answer.head.status().as_u16() {
            404 | 410 => Ok(Before::Nothing),
            200..=299 if !self.options.overwrites => {
                let cause = "the client asked to keep it (Overwrite: F)";
                Err(Error::new(Code::PathExists, "HEAD", &answer.url, cause).at(&answer.url.host))
            }
            200..=299 => Ok(Before::Something),
            // The token may be good for writing alone.
            401 | 403 | 405 | 501 => Ok(Before::Unknown),
            _ => Err(answer.refused()),
        }
    }

    /// Sends the content.
    fn put(&self, bytes: u64, sent: &Cell<bool>) -> Result<Put, Error> {
        let (at, sums) = (Cell::new(0), RefCell::new(InOrder::new(&[Algorithm::Adler32])));
        let mut restart = || {
            self.progress.moved_back(at.replace(0));
            sums.replace(InOrder::new(&[Algorithm::Adler32]));
        };
        let mut next = || {
            self.stop.check()?;
            let block = self.block(at.get(), bytes)?;
            let Some(block) = block else { return Ok(None) };
            sent.set(true);
            // The offsets follow one another.
            let _ = sums.borrow_mut().update(&block, at.get());
            at.set(at.get() + block.len() as u64);
            self.progress.moved(block.len() as u64);
            Ok(Some(block))
        };
        self.reader.expect_order();
        let upload = Upload { bytes, restart: &mut restart, next: &mut next };
        let answer = self.other.ask(&Method::PUT, &self.put_headers(bytes), None, Some(upload))?;
        if answer.head.status().is_client_error() {
            // Nothing was taken: what is there now, another client made.
            sent.set(false);
        }
        if !answer.head.status().is_success() {
            return Err(answer.refused());
        }
        sent.set(true);
        if at.get() != bytes {
            return Err(answer.wrong("it accepted the file before all of it was sent"));
        }
        let sum = sums.into_inner().finish().pop().map(|(_, sum)| sum);
        let adler32 = sum.unwrap_or_else(|| Checksum::new(Algorithm::Adler32).finish());
        Ok(Put { adler32, tag: strong_tag(&answer) })
    }

    fn put_headers(&self, bytes: u64) -> HeaderMap {
        let mut extra = HeaderMap::new();
        extra.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
        extra.insert(EXPECT, HeaderValue::from_static("100-continue"));
        if !self.options.overwrites {
            extra.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        extra
    }

    fn block(&self, offset: u64, end: u64) -> Result<Option<Bytes>, Error> {
        if offset == end {
            return Ok(None);
        }
        let mut block = vec![0; BLOCK_BYTES.min(end - offset) as usize];
        let count = self.reader.read_at(&mut block, offset)?;
        if count < block.len() {
            let cause = format!("{count} bytes at {offset} in place of {}", block.len());
            return Err(Error::new(Code::SourceChanged, "read", &self.reader.item().entry.path, cause));
        }
        Ok(Some(block.into()))
    }

    /// Compares size and digest of what the other server has with what was sent; `tag` gets the tag of what it has.
    fn verify(&self, bytes: u64, put: &Put, tag: &RefCell<Option<String>>) -> Result<(), Error> {
        if self.options.no_head {
            return Ok(());
        }
        self.progress.verifying();
        let mut extra = HeaderMap::new();
        if self.options.verify != Some(false) {
            extra.insert(HeaderName::from_static("want-digest"), HeaderValue::from_static(WANTED));
        }
        let answer = self.other.ask(&Method::HEAD, &extra, None, None)?;
        let is_required = self.options.verify == Some(true);
        match answer.head.status().as_u16() {
            200 | 204 => {}
            // The token may be good for writing alone.
            401 | 403 | 405 | 501 if !is_required => return Ok(()),
            _ => return Err(answer.refused()),
        }
        tag.replace(strong_tag(&answer));
        if let Some(there) = answer.length().filter(|there| *there != bytes) {
            let cause = format!("{bytes} bytes were sent, {there} are there");
            return Err(Error::new(Code::DigestMismatch, "compare", &answer.url, cause).at(&answer.url.host));
        }
        self.compare_digests(&answer, &put.adler32, is_required)
    }

    fn compare_digests(&self, answer: &Answer, adler32: &[u8], is_required: bool) -> Result<(), Error> {
        let mut told = digests(answer.head.headers());
        if told.is_empty() && is_required {
            return Err(answer.wrong("it tells no digest, and the client requires a verification"));
        }
        told.extend(self.options.expected.iter().cloned());
        for expected in &told {
            let own = match expected.0 {
                Algorithm::Adler32 => Some(adler32.to_vec()),
                algorithm => self.reader.checksum(algorithm, Freshness::Any)?,
            };
            if let Some(own) = own {
                compare(expected, &own, &answer.url)?;
            }
        }
        Ok(())
    }

    /// Removes what a failed push left, as far as the other server lets it; with a tag only the version that has it.
    fn remove(&self, tag: Option<&str>) {
        let mut extra = HeaderMap::new();
        if let Some(tag) = tag.and_then(|tag| HeaderValue::from_str(tag).ok()) {
            extra.insert(IF_MATCH, tag);
        }
        let other = OtherServer { cancel: Cancel::default(), ..self.other.clone() };
        match other.ask(&Method::DELETE, &extra, None, None) {
            Ok(answer) if !answer.head.status().is_success() => {
                tracing::warn!(status = %answer.head.status(), "what the push left could not be removed");
            }
            Ok(answer) => tracing::info!(status = %answer.head.status(), "what the push left is removed"),
            Err(error) => tracing::warn!(%error, "what the push left could not be removed"),
        }
    }
}
