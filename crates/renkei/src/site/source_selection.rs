//! Source selection: which site is asked for content that is not here, in which order
//! (`renkei_core::namespace::source`), with a backoff for sites that failed a moment ago.
//!
//! A follower asks the home first, unless another one has the folder and a clearly better path; the home asks the site
//! that wrote a file first. Path quality is known from this site's own transfers. A reader whose source is lost in the
//! middle continues at the next one that has the same version.

use super::Site;
use super::read_through::ReadThrough;
use crate::store::ReadFile;
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::source::{self, Fellow};
use renkei_core::path::{RelPath, SiteName};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a site that could not be asked is asked last.
const FAILS_FOR: Duration = Duration::from_secs(30);
/// A transfer of fewer bytes tells of its beginning and not of the way.
pub(super) const TELLING_BYTES: u64 = 1 << 20;

/// Sites that could not be asked, since when, and why.
#[derive(Default)]
pub(super) struct Failing(Mutex<HashMap<SiteName, (Instant, Error)>>);

impl Failing {
    fn lock(&self) -> MutexGuard<'_, HashMap<SiteName, (Instant, Error)>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether a site could not be asked a moment ago.
    fn has(&self, site: &SiteName) -> bool {
        self.lock().get(site).is_some_and(|(at, _)| at.elapsed() < FAILS_FOR)
    }

    /// Why it could not be asked, if that was after a moment.
    pub(super) fn since(&self, site: &SiteName, moment: Instant) -> Option<Error> {
        self.lock().get(site).filter(|(at, _)| *at >= moment).map(|(_, error)| error.clone())
    }

    /// Notes how asking it went.
    pub(super) fn note(&self, site: &SiteName, error: Option<&Error>) {
        let mut all = self.lock();
        match error.filter(|error| is_of_the_way(error, site)) {
            Some(error) => drop(all.insert(site.clone(), (Instant::now(), error.clone()))),
            None => drop(all.remove(site)),
        }
    }
}

/// Whether a site could not be reached, or was lost; what it says itself of others is no sign of that.
pub(super) fn is_of_the_way(error: &Error, site: &SiteName) -> bool {
    error.code.row().id.starts_with("RK-NET-") && error.side != site.as_str()
}

/// What asking one site after the other told.
#[derive(Default)]
pub(super) struct Tried(Vec<(SiteName, Error)>);

impl Tried {
    /// A site did not give it.
    pub(super) fn note(&mut self, site: &SiteName, error: Error) {
        tracing::debug!(%site, %error, "content does not arrive from a site");
        self.0.push((site.clone(), error));
    }

    /// Why none of them gave it.
    pub(super) fn into_error(self, subject: &str) -> Error {
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

impl Site {
    /// The sites that may have what is at a path of a volume, in the order in which they are asked; `first` is the first by its
    /// part. Those that are not trusted here are left out.
    pub(super) fn sources(
        &self,
        first: Option<&SiteName>,
        fellows: &[Fellow],
        path: &RelPath,
    ) -> Vec<SiteName> {
        let snapshot = self.last_snapshot();
        let others = fellows.iter().filter(|fellow| {
            let site = &fellow.site;
            Some(site) != first && *site != snapshot.site && snapshot.trust.endpoints(site).is_ok()
        });
        let source = |site: &SiteName, is_first, has_all| {
            let way = self.transfers.way(site);
            let rate = way.back.filter(|seen| seen.bytes >= TELLING_BYTES).map(|seen| seen.rate);
            let fails = snapshot.fetching.failing().has(site);
            source::Source { site: site.clone(), is_first, has_all, rate, round_trip: way.round_trip, fails }
        };
        let first = first.map(|site| source(site, true, true));
        let others = others.map(|fellow| source(&fellow.site, false, fellow.has(path)));
        source::order(first.into_iter().chain(others).collect())
    }

    /// Which sites were asked for content that none of them gave, for people.
    pub(super) fn told_asked(&self, sites: &[SiteName]) -> String {
        let snapshot = self.last_snapshot();
        let is_failing = |site: &SiteName| snapshot.fetching.failing().has(site);
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

    /// Notes how asking a site for content went.
    pub(super) fn note_asked(&self, site: &SiteName, error: Option<&Error>) {
        self.last_snapshot().fetching.failing().note(site, error);
    }
}

fn names(sites: &[&SiteName]) -> String {
    sites.iter().map(|site| site.as_str()).collect::<Vec<_>>().join(", ")
}

/// A file of a volume that sites are asked for.
pub(super) struct Wish<'w> {
    /// The volume.
    pub(super) name: &'w str,
    /// Where in it.
    pub(super) path: &'w RelPath,
    /// The version that is wanted, as it shows.
    pub(super) stamp: Stamp,
}

impl ReadThrough {
    /// Opens a file at the first of some sites that gives it. `first` may say that it is another version by now.
    ///
    /// # Errors
    /// Why none of them gives it, with all their names.
    pub(super) fn open_at_any(
        self: &Arc<Self>,
        wish: &Wish<'_>,
        first: Option<&SiteName>,
        sites: Vec<SiteName>,
    ) -> Result<Box<dyn ReadFile>, Error> {
        let (mut tried, mut sites) = (Tried::default(), VecDeque::from(sites));
        while let Some(site) = sites.pop_front() {
            match self.open_at(wish, &site, Some(&site) == first) {
                Ok(file) => {
                    let stamp = file.stamp()?;
                    let rest = if stamp.may_be(&wish.stamp) { sites } else { VecDeque::new() };
                    let (name, path) = (wish.name.to_owned(), wish.path.clone());
                    let (fetching, state) = (self.clone(), Mutex::new((Arc::from(file), rest)));
                    return Ok(Box::new(Anywhere { fetching, name, path, stamp, state }));
                }
                Err(error) => tried.note(&site, error),
            }
        }
        Err(tried.into_error(&wish.path.to_string()))
    }

    fn open_at(&self, wish: &Wish<'_>, site: &SiteName, any: bool) -> Result<Box<dyn ReadFile>, Error> {
        let opened = self.open(wish.name, site, wish.path, wish.stamp);
        self.failing().note(site, opened.as_ref().err());
        let file = opened?;
        if !any && !file.stamp()?.may_be(&wish.stamp) {
            return Err(Error::new(Code::SourceChanged, "open", wish.path, "it has another version"));
        }
        Ok(file)
    }
}

/// A file at one of several sites.
struct Anywhere {
    fetching: Arc<ReadThrough>,
    name: String,
    path: RelPath,
    stamp: Stamp,
    /// Where it is read, and who may be asked after that one.
    state: Mutex<(Arc<dyn ReadFile>, VecDeque<SiteName>)>,
}

impl Anywhere {
    fn file(&self) -> Arc<dyn ReadFile> {
        self.state.lock().expect("no thread panics while it holds the lock").0.clone()
    }

    /// Goes on at the next site, unless somebody else did; fails as `failed` did if there is none.
    fn go_on(&self, at: &Arc<dyn ReadFile>, failed: Error) -> Result<(), Error> {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        if !Arc::ptr_eq(&state.0, at) {
            return Ok(());
        }
        let wish = Wish { name: &self.name, path: &self.path, stamp: self.stamp };
        while let Some(site) = state.1.pop_front() {
            match self.fetching.open_at(&wish, &site, false) {
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
