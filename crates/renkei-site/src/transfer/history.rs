//! Bounded in-memory history of the transfers since the start of the PoP: progress, rates and outcomes.
//!
//! Each active transfer is sampled once a second. When it ends, its trace goes into a list of the newest ones, and
//! its rate into the statistics of the other site.

use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_core::units::{counted, human};
use renkei_core::wire::message::{Progress, Summary, TransferStatus};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

/// Rate samples kept of a transfer, one a second.
pub const RATES: usize = 60;
/// Maximum past transfers.
const MAX_PAST: usize = 500;
/// Maximum facts and failures kept of one transfer.
const MAX_FACTS: usize = 32;
const MAX_FAILURES: usize = 10;
/// Minimum interval for a rate sample.
const SHORTEST_LOOK: Duration = Duration::from_millis(200);
/// Maximum length of the text of a failure.
const MAX_TEXT_CHARS: usize = 300;

/// An event of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Time since the transfer began.
    pub after: Duration,
    /// Description.
    pub text: String,
}

/// The outcome of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It is active.
    #[default]
    Running,
    /// It has ended; the result follows in a moment.
    Ended,
    /// It is done; its summary lists no failures, the first ones are kept here.
    Done {
        /// The summary.
        summary: Summary,
        /// The first failures.
        failures: Vec<String>,
    },
    /// It failed.
    Failed(Error),
}

impl Outcome {
    fn of(result: &Result<Summary, Error>) -> Self {
        match result {
            Ok(summary) => Outcome::Done {
                failures: summary.failures.iter().take(MAX_FAILURES).map(failure_text).collect(),
                summary: Summary { failures: Vec::new(), ..summary.clone() },
            },
            Err(error) => Outcome::Failed(error.clone()),
        }
    }
}

fn failure_text(failure: &renkei_core::wire::message::EntryFailure) -> String {
    let title = failure.error.code.row().title;
    let cause = failure.error.cause_beyond(title);
    let why = if cause.is_empty() { String::new() } else { format!(" ({cause})") };
    let text = format!("{}: {}: {title}{why}", failure.path, failure.error.code);
    text.chars().take(MAX_TEXT_CHARS).collect()
}

/// Source and destination of a copy that another server takes part in, as shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The source.
    pub from: String,
    /// The destination.
    pub to: String,
    /// The protocol by which the bytes go, once it is known.
    pub by: &'static str,
}

/// Samples and events of a transfer, recorded from its start.
#[derive(Clone)]
pub(crate) struct Trace {
    peer: Option<SiteName>,
    began: SystemTime,
    since: Instant,
    looked: Instant,
    last: Progress,
    rates: VecDeque<u64>,
    facts: Vec<Fact>,
    round_trip: Option<Duration>,
    route: Option<Route>,
}

impl Trace {
    /// A trace that starts now, with a site or a client (`None`) as the peer.
    pub(crate) fn begin(peer: Option<SiteName>) -> Self {
        let now = Instant::now();
        Trace {
            peer,
            began: SystemTime::now(),
            since: now,
            looked: now,
            last: Progress::default(),
            rates: VecDeque::new(),
            facts: Vec::new(),
            round_trip: None,
            route: None,
        }
    }

    /// The trace of a third-party copy.
    pub(crate) fn between(self, route: Route) -> Self {
        Trace { route: Some(route), ..self }
    }

    /// Records an event.
    pub(crate) fn tell(&mut self, now: Instant, text: String) {
        if self.facts.len() < MAX_FACTS {
            self.facts.push(Fact { after: now - self.since, text });
        }
    }

    /// Records the protocol of a third-party copy.
    pub(crate) fn goes_by(&mut self, now: Instant, protocol: &'static str) {
        if let Some(route) = &mut self.route {
            route.by = protocol;
        }
        self.tell(now, format!("the bytes go by {protocol}"));
    }

    /// Records the RTT to the other site.
    pub(crate) fn met(&mut self, round_trip: Duration) {
        self.round_trip = Some(round_trip);
    }

    /// Samples the progress.
    pub(crate) fn look(&mut self, now: Instant, progress: Progress) {
        let seconds = (now - self.looked).as_secs_f64().max(0.001);
        let moved = progress.bytes_moved.saturating_sub(self.last.bytes_moved);
        if self.last.bytes_moved == 0 && moved > 0 {
            self.tell(now, "data moves".into());
        }
        if progress.walk_done && !self.last.walk_done {
            let files = counted(progress.files_found, "file", "files");
            let text = format!("all is found: {} in {files}", human(progress.bytes_found));
            self.tell(now, text);
        }
        self.rates.push_back((moved as f64 / seconds) as u64);
        if self.rates.len() > RATES {
            self.rates.pop_front();
        }
        (self.looked, self.last) = (now, progress);
    }

    /// The run as it is shown.
    pub(crate) fn run(&self, number: u64, status: TransferStatus, now: Instant) -> Run {
        Run {
            number,
            status,
            peer: self.peer.clone(),
            began: self.began,
            lasted: now - self.since,
            rates: self.rates.iter().copied().collect(),
            facts: self.facts.clone(),
            route: self.route.clone(),
            outcome: Outcome::Running,
        }
    }
}

/// A run: everything shown of one transfer.
#[derive(Clone, Debug)]
pub struct Run {
    /// Distinguishes runs with the same transfer id.
    pub number: u64,
    /// Identity and progress.
    pub status: TransferStatus,
    /// The other site; `None` if the peer is a client.
    pub peer: Option<SiteName>,
    /// Its start.
    pub began: SystemTime,
    /// Its duration, so far if it is active.
    pub lasted: Duration,
    /// Rate samples in bytes per second, the newest last.
    pub rates: Vec<u64>,
    /// Its events.
    pub facts: Vec<Fact>,
    /// Source and destination, if it is a third-party copy.
    pub route: Option<Route>,
    /// Its outcome.
    pub outcome: Outcome,
}

impl Run {
    /// Current rate in bytes per second: the mean of the last three samples.
    pub fn rate(&self) -> u64 {
        let newest = &self.rates[self.rates.len().saturating_sub(3)..];
        newest.iter().sum::<u64>() / (newest.len().max(1) as u64)
    }

    /// Estimated remaining time at the mean rate of the last ten samples, once the walk is done.
    pub fn left(&self) -> Option<Duration> {
        let progress = &self.status.progress;
        let newest = &self.rates[self.rates.len().saturating_sub(10)..];
        let rate = newest.iter().sum::<u64>() / (newest.len().max(1) as u64);
        let done = progress.bytes_done.max(progress.bytes_moved);
        let known = progress.walk_done && rate > 0 && self.outcome == Outcome::Running;
        known.then(|| Duration::from_secs(progress.bytes_found.saturating_sub(done) / rate))
    }

    /// Mean bytes per second over the whole run.
    pub fn mean_rate(&self) -> u64 {
        (self.status.progress.bytes_moved as f64 / self.lasted.as_secs_f64().max(0.001)) as u64
    }
}

/// The last transfer in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Mean bytes per second over the whole run.
    pub rate: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Its end.
    pub ended: Instant,
}

/// Statistics of the path to a site, measured by transfers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// The last transfer to the site.
    pub out: Option<Seen>,
    /// The last transfer from the site.
    pub back: Option<Seen>,
    /// The last RTT.
    pub round_trip: Option<Duration>,
}

/// Past runs and the statistics of each site.
#[derive(Default)]
pub(crate) struct History {
    past: VecDeque<Run>,
    ways: BTreeMap<SiteName, Way>,
}

impl History {
    /// Adds a transfer that has just ended; [`History::ended`] adds the result.
    pub(crate) fn take(&mut self, number: u64, status: TransferStatus, mut trace: Trace) {
        let now = Instant::now();
        // A sample right after the previous one would be noise.
        if trace.rates.is_empty() || now - trace.looked > SHORTEST_LOOK {
            trace.look(now, status.progress);
        }
        let run = Run { outcome: Outcome::Ended, ..trace.run(number, status, now) };
        if let Some(peer) = trace.peer {
            let way = self.ways.entry(peer).or_default();
            way.round_trip = trace.round_trip.or(way.round_trip);
        }
        self.past.push_front(run);
        self.past.truncate(MAX_PAST);
    }

    /// Records the result of the newest run with this id and direction.
    pub(crate) fn ended(&mut self, id: &str, direction: &str, result: &Result<Summary, Error>) {
        let is_it = |run: &&mut Run| {
            run.status.id == id && run.status.direction == direction && run.outcome == Outcome::Ended
        };
        let Some(run) = self.past.iter_mut().find(is_it) else { return };
        run.outcome = Outcome::of(result);
        let progress = &mut run.status.progress;
        if let Ok(summary) = result {
            // The last sample may be older than the end.
            progress.bytes_moved = summary.bytes_moved;
            (progress.files_done, progress.bytes_done) = (summary.files, summary.bytes);
            progress.files_found = progress.files_found.max(summary.files);
            progress.bytes_found = progress.bytes_found.max(summary.bytes);
            progress.walk_done = true;
        }
        let bytes = progress.bytes_moved;
        let seen = Seen { rate: run.mean_rate(), bytes, ended: Instant::now() };
        if let Some(way) = run.peer.as_ref().filter(|_| bytes > 0).and_then(|peer| self.ways.get_mut(peer)) {
            let last = if direction == "send" { &mut way.out } else { &mut way.back };
            *last = Some(seen);
        }
    }

    /// Past runs, the newest first.
    pub(crate) fn past(&self) -> impl Iterator<Item = &Run> {
        self.past.iter()
    }

    /// Statistics of the path to a site.
    pub(crate) fn way(&self, site: &SiteName) -> Way {
        self.ways.get(site).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    fn status(id: &str, moved: u64) -> TransferStatus {
        let progress = Progress { bytes_moved: moved, ..Progress::default() };
        let text = String::from;
        let (principal, direction, place) = (text("alice@kek"), text("send"), text("/data/a"));
        TransferStatus { id: id.into(), principal, direction, place, class: Default::default(), progress }
    }

    #[test]
    fn rates_are_those_of_the_last_minute() {
        let mut trace = Trace::begin(None);
        let start = trace.since;
        let at = |second: u64| start + Duration::from_secs(second);
        for second in 1..=100 {
            let progress = Progress {
                bytes_moved: second * 1000,
                bytes_found: 200_000,
                walk_done: second > 3,
                ..Progress::default()
            };
            trace.look(at(second), progress);
        }
        let mut status = status("a", 100_000);
        (status.progress.bytes_found, status.progress.walk_done) = (200_000, true);
        let run = trace.run(1, status, at(100));
        assert_eq!((run.rates.len(), run.rate(), run.mean_rate()), (RATES, 1000, 1000));
        assert_eq!(run.left(), Some(Duration::from_secs(100)));
        assert_eq!(run.facts.len(), 2, "{:?}", run.facts);
        assert_eq!(run.facts[1].after, Duration::from_secs(4));
    }

    #[test]
    fn the_newest_transfers_are_remembered_with_their_result_and_route() {
        let (mut history, kek) = (History::default(), SiteName::parse("kek").unwrap());
        for number in 0..MAX_PAST as u64 + 5 {
            history.take(number, status("a", 10), Trace::begin(Some(kek.clone())));
        }
        history.take(1000, status("b", 0), Trace::begin(None));
        let failed = Err(Error::new(Code::Cancelled, "send", "", "asked for"));
        history.ended("b", "receive", &failed);
        assert_eq!(history.past().next().unwrap().outcome, Outcome::Ended);
        history.ended("b", "send", &failed);
        let newest: Vec<_> = history.past().take(2).collect();
        assert!(matches!(newest[0].outcome, Outcome::Failed(_)));
        assert_eq!((newest[1].number, history.past().count()), (MAX_PAST as u64 + 4, MAX_PAST));
        history.ended("a", "send", &Ok(Summary { files: 3, bytes_moved: 7, ..Summary::default() }));
        let way = history.way(&kek);
        assert!(way.back.is_none() && way.out.is_some_and(|out| out.bytes == 7));
        assert_eq!(history.past().nth(1).unwrap().status.progress.files_done, 3);
    }
}
