//! Source selection: the order in which sites are asked for remote content (`renkei_core::namespace::source`), with
//! a backoff for sites that failed recently.
//!
//! A follower asks the home first, unless another follower has the folder and a clearly better path; the home asks
//! the site that wrote a file first. Path quality is known from this site's own transfers. A reader that loses its
//! source in the middle continues at the next one that has the same version.

use super::read_through::ReadThrough;
use crate::volume_content::WantedFile;
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::source::{self, Fellow};
use renkei_core::path::{RelPath, SiteName};
use renkei_store::ReadFile;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Duration for which a failed site is asked last.
const FAILS_FOR: Duration = Duration::from_secs(30);
/// The rate of a smaller transfer reflects its start-up and not the path.
pub(crate) const TELLING_BYTES: u64 = 1 << 20;

/// Sites whose last request failed, with time and error.
#[derive(Default)]
pub(crate) struct Failing(Mutex<HashMap<SiteName, (Instant, Error)>>);

impl Failing {
    fn lock(&self) -> MutexGuard<'_, HashMap<SiteName, (Instant, Error)>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether the last request to a site failed recently.
    fn has(&self, site: &SiteName) -> bool {
        self.lock().get(site).is_some_and(|(at, _)| at.elapsed() < FAILS_FOR)
    }

    /// The error of a request to the site that failed at or after `moment`.
    pub(crate) fn since(&self, site: &SiteName, moment: Instant) -> Option<Error> {
        self.lock().get(site).filter(|(at, _)| *at >= moment).map(|(_, error)| error.clone())
    }

    /// Records the outcome of a request.
    pub(crate) fn note(&self, site: &SiteName, error: Option<&Error>) {
        let mut all = self.lock();
        match error.filter(|error| is_of_the_way(error, site)) {
            Some(error) => drop(all.insert(site.clone(), (Instant::now(), error.clone()))),
            None => drop(all.remove(site)),
        }
    }
}

/// Whether an error means that a site was unreachable or lost; an error it reports itself about other sites does
/// not.
pub(crate) fn is_of_the_way(error: &Error, site: &SiteName) -> bool {
    error.code.row().id.starts_with("RK-NET-") && error.side != site.as_str()
}

/// The errors of sites asked one after the other.
#[derive(Default)]
pub(crate) struct Tried(Vec<(SiteName, Error)>);

impl Tried {
    /// Records the error of a site.
    pub(crate) fn note(&mut self, site: &SiteName, error: Error) {
        tracing::debug!(%site, %error, "content does not arrive from a site");
        self.0.push((site.clone(), error));
    }

    /// The combined error.
    pub(crate) fn into_error(self, subject: &str) -> Error {
        let rest: Vec<String> = self
            .0
            .iter()
            .skip(1)
            .map(|(site, error)| format!("{site}: {} {}", error.code, error.cause))
            .collect();
        let Some((site, error)) = self.0.into_iter().next() else {
            let cause = "its content is not here, and no other site is known that may have it";
            return Error::new(Code::SourceChanged, "fetch", subject, cause);
        };
        let cause = match rest.is_empty() {
            true => format!("its content is at {site} and not here; {}", error.cause),
            false => format!("its content is not here; {site}: {}; {}", error.cause, rest.join("; ")),
        };
        Error { subject: subject.into(), cause, ..error }
    }
}

impl ReadThrough {
    /// The sites that may have the content at a path of a volume, in the order in which they are asked; `first` is
    /// the preferred one by its role. Sites that are not trusted here are left out.
    pub(crate) fn sources(
        &self,
        first: Option<&SiteName>,
        fellows: &[Fellow],
        path: &RelPath,
    ) -> Vec<SiteName> {
        let snapshot = self.context.last_snapshot();
        let others = fellows.iter().filter(|fellow| {
            let site = &fellow.site;
            Some(site) != first && *site != snapshot.site && snapshot.trust.endpoints(site).is_ok()
        });
        let source = |site: &SiteName, is_first, has_all| {
            let way = self.transfers.way(site);
            let rate = way.back.filter(|seen| seen.bytes >= TELLING_BYTES).map(|seen| seen.rate);
            let fails = self.failing().has(site);
            source::Source { site: site.clone(), is_first, has_all, rate, round_trip: way.round_trip, fails }
        };
        let first = first.map(|site| source(site, true, true));
        let others = others.map(|fellow| source(&fellow.site, false, fellow.has(path)));
        source::order(first.into_iter().chain(others).collect())
    }

    /// The sites asked in vain for content, for display.
    pub(crate) fn told_asked(&self, sites: &[SiteName]) -> String {
        let is_failing = |site: &SiteName| self.failing().has(site);
        let (away, asked): (Vec<&SiteName>, Vec<_>) = sites.iter().partition(|site| is_failing(site));
        match (names(&asked), names(&away)) {
            (asked, away) if asked.is_empty() && away.is_empty() => {
                "no other site is known that may have it".into()
            }
            (asked, away) if away.is_empty() => format!("{asked} did not give it"),
            (asked, away) if asked.is_empty() => format!("{away} not reached"),
            (asked, away) => format!("{asked} did not give it; {away} not reached"),
        }
    }

    /// Records the outcome of a request for content.
    pub(crate) fn note_asked(&self, site: &SiteName, error: Option<&Error>) {
        self.failing().note(site, error);
    }
}

fn names(sites: &[&SiteName]) -> String {
    sites.iter().map(|site| site.as_str()).collect::<Vec<_>>().join(", ")
}

impl ReadThrough {
    /// Opens a file at the first of some sites that has it. Only `first` may return a newer version.
    ///
    /// # Errors
    /// The combined error of all sites.
    pub(crate) fn open_at_any(
        self: &Arc<Self>,
        wanted: &WantedFile<'_>,
        first: Option<&SiteName>,
        sites: Vec<SiteName>,
    ) -> Result<Box<dyn ReadFile>, Error> {
        let (mut tried, mut sites) = (Tried::default(), VecDeque::from(sites));
        while let Some(site) = sites.pop_front() {
            match self.open_at(wanted, &site, Some(&site) == first) {
                Ok(file) => {
                    let stamp = file.stamp()?;
                    let rest = if stamp.may_be(&wanted.stamp) { sites } else { VecDeque::new() };
                    let (name, path) = (wanted.name.to_owned(), wanted.path.clone());
                    let (fetching, state) = (self.clone(), Mutex::new((Arc::from(file), rest)));
                    return Ok(Box::new(Anywhere { fetching, name, path, stamp, state }));
                }
                Err(error) => tried.note(&site, error),
            }
        }
        Err(tried.into_error(&wanted.path.to_string()))
    }

    fn open_at(
        &self,
        wanted: &WantedFile<'_>,
        site: &SiteName,
        any: bool,
    ) -> Result<Box<dyn ReadFile>, Error> {
        let opened = self.open(wanted.name, site, wanted.path, wanted.stamp);
        self.failing().note(site, opened.as_ref().err());
        let file = opened?;
        if !any && !file.stamp()?.may_be(&wanted.stamp) {
            return Err(Error::new(Code::SourceChanged, "open", wanted.path, "it has another version"));
        }
        Ok(file)
    }
}

/// A file available at several sites, with failover.
struct Anywhere {
    fetching: Arc<ReadThrough>,
    name: String,
    path: RelPath,
    stamp: Stamp,
    /// The current source, and the sites to fail over to.
    state: Mutex<(Arc<dyn ReadFile>, VecDeque<SiteName>)>,
}

impl Anywhere {
    fn file(&self) -> Arc<dyn ReadFile> {
        self.state.lock().expect("no thread panics while it holds the lock").0.clone()
    }

    /// Fails over to the next site, unless another reader did; returns `failed` if there is none.
    fn go_on(&self, at: &Arc<dyn ReadFile>, failed: Error) -> Result<(), Error> {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        if !Arc::ptr_eq(&state.0, at) {
            return Ok(());
        }
        let wanted = WantedFile { name: &self.name, path: &self.path, stamp: self.stamp };
        while let Some(site) = state.1.pop_front() {
            match self.fetching.open_at(&wanted, &site, false) {
                Ok(file) => {
                    tracing::info!(path = %self.path, %site, %failed, "reading continues at another site");
                    state.0 = Arc::from(file);
                    return Ok(());
                }
                Err(error) => tracing::debug!(%site, %error, "reading cannot continue there"),
            }
        }
        Err(failed)
    }
}

impl ReadFile for Anywhere {
    fn stamp(&self) -> Result<Stamp, Error> {
        Ok(self.stamp)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        loop {
            let file = self.file();
            match file.read_at(buf, offset) {
                Err(error) => self.go_on(&file, error)?,
                read => return read,
            }
        }
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.file().next_data(from)
    }

    fn advise_sequential(&self, range: Range<u64>) {
        self.file().advise_sequential(range);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_writer(&self) -> bool {
        false
    }

    fn is_version(&self) -> bool {
        true
    }
}
