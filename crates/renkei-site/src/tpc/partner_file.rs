//! A file at the PoP of a trusted site, and its copy by renkei/1.
//!
//! The bytes go through a file session, which has the streams, the pacing and the read-ahead of renkei/1, is opened again when
//! it is lost, and continues where it was: so a copy works for all places that the other PoP serves. What the session
//! reads is one version, or an error; what it writes is seen there when it is published.

use super::digest::compare;
use super::pace::Pace;
use super::progress::CopyProgress;
use super::pull::Options;
use super::reach::partner;
use super::remote_url::RemoteUrl;
use crate::Context;
use crate::snapshot::Snapshot;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use percent_encoding::percent_decode_str;
use renkei_core::block::AlignedBlock;
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::file::{Freshness, Item, MAX_IO_BYTES, Precondition};
use renkei_core::wire::message::Algorithm;
use renkei_mover::Stop;
use renkei_mover::files::remote_files::RemoteFiles;
use renkei_mover::files::workspace::{Create, Follow, Reader, Workspace, Writer};
use renkei_store::checksum::{Checksum, InOrder};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Headers for the other server that say nothing of the content, beside the token.
const WITHOUT_MEANING: [&str; 4] = ["clientinfo", "repr-digest", "scitag", "user-agent"];
/// Bytes read or written at a time.
const BLOCK_BYTES: u64 = MAX_IO_BYTES as u64;

/// A file at the PoP of a trusted site.
pub(super) struct PartnerFile {
    /// The site.
    pub(super) site: SiteName,
    /// `HOST:PORT` of the PoP, as in the URL.
    pub(super) endpoint: String,
    /// The file.
    pub(super) place: Place,
    /// The token that opens it.
    pub(super) token: String,
}

impl PartnerFile {
    /// The file of a copy, if it is at a trusted site and a token alone opens it.
    pub(super) fn of(snapshot: &Snapshot, url: &RemoteUrl, headers: &HeaderMap) -> Option<Self> {
        let site = partner(snapshot, url).filter(|site| *site != snapshot.site)?;
        let place = place(&url.target)?;
        let token = token(headers)?;
        // A card has the port always.
        let endpoint = match url.host.contains(':') {
            true => format!("[{}]:{}", url.host, url.port),
            false => format!("{}:{}", url.host, url.port),
        };
        Some(PartnerFile { site, endpoint, place, token })
    }
}

/// The place of a URL's path; none where the PoP would answer otherwise than with this file.
fn place(target: &str) -> Option<Place> {
    if target.contains('?') || target.ends_with('/') {
        return None;
    }
    let decoded: Vec<u8> = percent_decode_str(target).collect();
    let place = Place::parse(&decoded).ok().flatten()?;
    (!place.path.is_root() && place.elsewhere().is_none()).then_some(place)
}

/// The bearer token, if the headers have that and nothing else with a meaning.
fn token(headers: &HeaderMap) -> Option<String> {
    let has_others =
        headers.keys().any(|name| *name != AUTHORIZATION && !WITHOUT_MEANING.contains(&name.as_str()));
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let (text, more) = (shown.next()?.to_str().ok()?, shown.next());
    let (scheme, token) = text.split_once(' ')?;
    let is_one = scheme.eq_ignore_ascii_case("bearer") && more.is_none() && !has_others;
    is_one.then(|| token.trim().to_owned())
}

/// A copy in a session.
pub(super) struct PartnerCopy<'c> {
    pub(super) file: &'c PartnerFile,
    pub(super) files: Arc<RemoteFiles>,
    /// The path in the session.
    pub(super) path: RelPath,
    pub(super) url: &'c RemoteUrl,
    pub(super) options: &'c Options,
    pub(super) progress: &'c CopyProgress,
    pub(super) stop: &'c Stop,
    pub(super) context: &'c Context,
    /// Set when the other side may have a new version, whatever follows.
    pub(super) has_effect: &'c Cell<bool>,
}

impl PartnerCopy<'_> {
    fn workspace(&self) -> Workspace {
        Workspace::new(self.files.clone())
    }

    /// Fails when the copy is stopped, or the site is trusted no longer.
    fn check(&self) -> Result<(), Error> {
        self.stop.check()?;
        self.context.last_snapshot().trust.endpoints(&self.file.site).map(drop)
    }

    fn pace(&self) -> Pace {
        Pace::of(&self.context.last_snapshot().config.tpc)
    }

    /// Fetches all bytes and compares them with the digest of the other PoP; gives the size.
    ///
    /// # Errors
    /// Those of the files at both sides, `DigestMismatch`, `ServerTooSlow`.
    pub(super) fn pull(&self, writer: &Writer) -> Result<u64, Error> {
        let reader = self.workspace().open(&self.path)?;
        reader.version()?;
        let bytes = reader.size();
        self.progress.found(bytes);
        reader.expect_order();
        let (mut sums, mut pace) = (self.sums(), self.pace());
        let (mut block, mut at) = (vec![0; BLOCK_BYTES.min(bytes) as usize], 0);
        while at < bytes {
            self.check()?;
            let part = &mut block[..BLOCK_BYTES.min(bytes - at) as usize];
            let began = Instant::now();
            let count = reader.read_at(part, at)?;
            self.judge(pace.note(count as u64, began.elapsed()))?;
            if count < part.len() {
                let cause = format!("{count} bytes at {at} in place of {}", part.len());
                let error = Error::new(Code::SourceChanged, "read", self.url, cause);
                return Err(error.at(self.file.site.as_str()));
            }
            writer.write_at(part, at)?;
            // The offsets follow one another.
            let _ = sums.update(part, at);
            at += count as u64;
            self.progress.moved(count as u64);
        }
        writer.set_len(bytes)?;
        self.progress.verifying();
        let found = sums.finish();
        self.compare_expected(&found)?;
        self.compare_there(&found, || reader.checksum(Algorithm::Adler32, Freshness::Any))?;
        Ok(bytes)
    }

    /// Sends all bytes, and compares what the other PoP has then; gives the size. What has proved to be wrong is removed
    /// where nothing was before.
    ///
    /// # Errors
    /// Those of the files at both sides, `PathExists`, `DigestMismatch`, `ServerTooSlow`; `SourceChanged` if another client
    /// replaced the file before it was compared.
    pub(super) fn push(&self, reader: &Reader) -> Result<u64, Error> {
        let (bytes, there) = (reader.size(), self.workspace());
        let condition = if self.options.overwrites { Precondition::None } else { Precondition::Absent };
        let writer = there.create(&self.path, Create { condition, ..Create::default() })?;
        let is_new = writer.found().links == 0;
        self.progress.found(bytes);
        reader.expect_order();
        let (mut sums, mut pace) = (self.sums(), self.pace());
        let (mut block, mut at) = (AlignedBlock::default(), 0);
        while at < bytes {
            self.check()?;
            block.resize(BLOCK_BYTES.min(bytes - at) as usize);
            let count = reader.read_at(&mut block, at)?;
            if count < block.len() {
                let cause = format!("{count} bytes at {at} in place of {}", block.len());
                return Err(Error::new(Code::SourceChanged, "read", &reader.item().entry.path, cause));
            }
            let _ = sums.update(&block, at);
            let began = Instant::now();
            block = writer.write_block(block, at)?;
            self.judge(pace.note(count as u64, began.elapsed()))?;
            at += count as u64;
            self.progress.moved(count as u64);
        }
        let found = sums.finish();
        self.compare_expected(&found)?;
        self.check()?;
        self.has_effect.set(true);
        let published = writer.publish(None, None)?;
        self.progress.verifying();
        let compared =
            self.compare_there(&found, || there.checksum(&self.path, Algorithm::Adler32, Freshness::Any));
        match compared {
            // Other errors say nothing of the content, nor does damage that the other PoP found itself.
            Err(error) if error.code == Code::DigestMismatch && error.op == "compare" => {
                self.clear_away(&there, &published, is_new)?;
                Err(error)
            }
            compared => compared.map(|()| bytes),
        }
    }

    /// Removes what was published and proved to be wrong, where nothing was before.
    ///
    /// # Errors
    /// `SourceChanged` if another version is there by now; nothing is removed then.
    fn clear_away(&self, there: &Workspace, published: &Item, is_new: bool) -> Result<(), Error> {
        match there.stat(&self.path, Follow::Yes) {
            Ok(present) if !is_same_version(published, &present) => {
                let cause = "another client replaced the file before it was compared";
                let error = Error::new(Code::SourceChanged, "compare", self.url, cause);
                return Err(error.at(self.file.site.as_str()));
            }
            Ok(_) if is_new => {
                let removed = there.remove(&self.path);
                tracing::info!(?removed, "what the push left is removed");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "what the push left could not be looked at, and stays"),
        }
        Ok(())
    }

    fn judge(&self, paced: Result<(), Error>) -> Result<(), Error> {
        paced.map_err(|slow| Error { subject: self.url.to_string(), ..slow }.at(self.file.site.as_str()))
    }

    /// The checksums that are compared later.
    fn sums(&self) -> InOrder {
        let mut algorithms: Vec<_> = self.options.expected.iter().map(|(algorithm, _)| *algorithm).collect();
        if self.options.verify != Some(false) {
            algorithms.push(Algorithm::Adler32);
        }
        algorithms.dedup();
        InOrder::new(&algorithms)
    }

    /// Compares with the digests that the client knows.
    fn compare_expected(&self, found: &[(Algorithm, Vec<u8>)]) -> Result<(), Error> {
        self.options
            .expected
            .iter()
            .try_for_each(|expected| compare(expected, &sum_of(expected.0, found), self.url))
    }

    /// Compares with the digest of the other PoP, as far as the token lets it be known.
    fn compare_there(
        &self,
        found: &[(Algorithm, Vec<u8>)],
        ask: impl FnOnce() -> Result<Option<Vec<u8>>, Error>,
    ) -> Result<(), Error> {
        if self.options.verify == Some(false) {
            return Ok(());
        }
        let is_required = self.options.verify == Some(true);
        match ask() {
            Ok(Some(sum)) => {
                compare(&(Algorithm::Adler32, sum), &sum_of(Algorithm::Adler32, found), self.url)
            }
            Ok(None) if is_required => {
                let cause = "it tells no digest, and the client requires a verification";
                let error = Error::new(Code::ServerAnswerWrong, "compare", self.url, cause);
                Err(error.at(self.file.site.as_str()))
            }
            Ok(None) => Ok(()),
            // The token may be good for writing alone.
            Err(error) if error.code == Code::OutOfScope && !is_required => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Whether a file has the content that it was published with, as far as attributes tell.
fn is_same_version(published: &Item, present: &Item) -> bool {
    let stamp = |item: &Item| (item.ino, item.entry.size(), item.entry.meta.mtime);
    stamp(published) == stamp(present)
}

/// A checksum of what was moved; of nothing, where nothing was.
fn sum_of(algorithm: Algorithm, found: &[(Algorithm, Vec<u8>)]) -> Vec<u8> {
    let of = found.iter().find(|(one, _)| *one == algorithm);
    of.map_or_else(|| Checksum::new(algorithm).finish(), |(_, sum)| sum.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    #[test]
    fn a_path_is_a_file_of_the_other_pop() {
        let shown = |target: &str| place(target).map(|place| place.to_string());
        assert_eq!(shown("/data/run%207/a.dat"), Some("/data/run 7/a.dat".into()));
        for other in ["/data", "/data/", "/data/a/", "/data/a?authz=x", "/", "/kek:/data/a", "/data/../a"] {
            assert_eq!(shown(other), None, "{other}");
        }
    }

    #[test]
    fn the_token_is_the_only_header_with_a_meaning() {
        let read = |headers: &[(&'static str, &'static str)]| {
            let mut all = HeaderMap::new();
            for (name, value) in headers {
                all.append(HeaderName::from_static(name), value.parse().unwrap());
            }
            token(&all)
        };
        assert_eq!(read(&[("authorization", "bearer abc"), ("scitag", "66")]), Some("abc".into()));
        for other in [
            &[][..],
            &[("authorization", "Basic abc")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer b")],
            &[("authorization", "Bearer a"), ("x-class", "tape")],
        ] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
