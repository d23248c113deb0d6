//! Conditions: faults of this PoP in one list, shown by `/healthz`, `/metrics`, `status`, `doctor` and the console.
//!
//! [`super::health_checks`] find them; this module records since when they hold. A thread runs the checks every two
//! seconds, so that readers of the list wait for no disk. The start times are kept in the PoP's directory, and
//! survive a restart. Non-goal: faults of one transfer or one user alone.

use super::Monitor;
use super::health_checks::SOURCES;
use renkei_config::home::{Home, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::format::newer;
use renkei_core::remedy;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Interval of the checks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time without a completed check after which the list itself is reported.
const BLIND_AFTER: Duration = Duration::from_secs(60);
/// Grace period after a restart for conditions from before it to be found again.
const REMEMBERED: Duration = Duration::from_secs(120);
/// Version of the file of start times.
const VERSION: u32 = 1;
/// Maximum size of that file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The urgency of a condition, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Everything works; it needs attention in the next weeks.
    Info,
    /// A degradation, now or within days.
    Warning,
    /// An outage for users, now or within a day.
    Critical,
}

impl Severity {
    /// All of them.
    pub const ALL: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Critical];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// The finding of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of its subject: `storage`, `line`, `volume` ...
    pub what: &'static str,
    /// The name of its subject.
    pub name: String,
    /// Its urgency.
    pub severity: Severity,
    /// The code of the root cause.
    pub code: Code,
    /// A description, which stays the same as long as nothing changes.
    pub found: String,
    /// The remedy.
    pub remedy: String,
    /// Minimum duration before it counts.
    pub hold: Duration,
}

impl Finding {
    /// A finding for a subject that failed with an error.
    pub fn of(what: &'static str, name: &str, severity: Severity, error: &Error) -> Self {
        let (found, remedy) = (error.to_string(), remedy::of(error));
        Finding { what, name: name.into(), severity, code: error.code, found, remedy, hold: Duration::ZERO }
    }

    /// Prefixes the description.
    pub fn saying(mut self, words: &str) -> Self {
        self.found = format!("{words}: {}", self.found);
        self
    }

    /// Replaces the remedy.
    pub fn mended_by(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Sets how long it must persist before it counts.
    pub fn lasting(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }
}

/// An active condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The kind of its subject: `storage`, `line`, `volume` ...
    pub what: String,
    /// The name of its subject.
    pub name: String,
    /// Its urgency.
    pub severity: Severity,
    /// The code of the root cause.
    pub code: Code,
    /// The description.
    pub found: String,
    /// The remedy.
    pub remedy: String,
    /// Its start, seconds since 1970.
    pub since_unix: u64,
}

impl Condition {
    /// Its start.
    pub fn since(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.since_unix)
    }

    /// Its duration.
    pub fn lasts(&self, now: SystemTime) -> Duration {
        now.duration_since(self.since()).unwrap_or_default()
    }

    /// Its subject, for display.
    pub fn subject(&self) -> String {
        if self.name.is_empty() { self.what.clone() } else { format!("{} {}", self.what, self.name) }
    }

    /// The form for unauthenticated clients: no path, no name, no cause.
    pub fn for_strangers(&self) -> String {
        format!("{}: {}", self.what, self.code)
    }
}

/// A finding with its start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Noted {
    condition: Condition,
    /// Whether it has persisted long enough to count.
    counts: bool,
}

/// The stored start of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Since {
    what: String,
    name: String,
    code: Code,
    since_unix: u64,
}

/// The file of start times.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    conditions: Vec<Since>,
}

/// All known conditions.
#[derive(Default)]
struct State {
    noted: Vec<Noted>,
    /// Conditions from before the restart that were not found again yet.
    before: Vec<Since>,
    /// The content of the file.
    kept: Vec<Since>,
    looked: Option<Instant>,
}

/// The list of conditions.
#[derive(Default)]
pub(crate) struct Conditions(Mutex<State>);

/// Starts the thread of the health checks, which runs as long as the PoP lives.
pub fn spawn_conditions(room: &Arc<Monitor>) -> Result<(), Error> {
    match read_since(room.context.home()) {
        Ok(before) => room.conditions.remember(before),
        Err(error) => tracing::warn!(%error, "the start times of conditions are not read"),
    }
    let weak = Arc::downgrade(room);
    let work = move || {
        while let Some(room) = weak.upgrade() {
            let turn = room.context.workers.begin("conditions");
            room.look_at_conditions();
            drop(turn);
            drop(room);
            std::thread::sleep(LOOK_EVERY);
        }
    };
    let thread = std::thread::Builder::new().name("conditions".into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "conditions", error))
}

impl Monitor {
    /// Active conditions, the most urgent first, then the oldest.
    pub fn conditions(&self) -> Vec<Condition> {
        let (mut all, looked) = self.conditions.shown();
        let seen = looked.unwrap_or(self.context.started());
        if seen.elapsed() > BLIND_AFTER {
            all.push(blind(seen));
        }
        all.sort_by_key(|one| (std::cmp::Reverse(one.severity), one.since_unix));
        all
    }

    fn look_at_conditions(self: &Arc<Self>) {
        let snapshot = self.context.last_snapshot();
        let found = SOURCES.iter().flat_map(|source| source(self, &snapshot)).collect();
        let is_early = self.context.started().elapsed() < REMEMBERED;
        let changed = self.conditions.take(found, unix_now(), is_early);
        if let Some(since) = changed
            && let Err(error) = keep_since(self.context.home(), since)
        {
            tracing::warn!(%error, "the start times of conditions are not stored");
        }
    }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The condition that the health checks themselves hang.
fn blind(seen: Instant) -> Condition {
    Condition {
        what: "conditions".into(),
        name: String::new(),
        severity: Severity::Critical,
        code: Code::NoProgress,
        found: "the PoP has not looked at itself: something it asks does not answer".into(),
        remedy: "look whether the catalogue's database or disk hangs, then restart the PoP".into(),
        since_unix: unix_now().saturating_sub(seen.elapsed().as_secs()),
    }
}

impl Conditions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    fn remember(&self, before: Vec<Since>) {
        let mut state = self.lock();
        (state.before, state.kept) = (before.clone(), before);
    }

    fn shown(&self) -> (Vec<Condition>, Option<Instant>) {
        let state = self.lock();
        let counting = state.noted.iter().filter(|noted| noted.counts);
        (counting.map(|noted| noted.condition.clone()).collect(), state.looked)
    }

    /// Forgets a condition from before the restart, because its subject was seen to be well: a failure now is a new
    /// one.
    pub(crate) fn forget_before(&self, what: &str, name: &str) {
        self.lock().before.retain(|one| one.what != what || one.name != name);
    }

    /// The subjects of a kind with conditions from before the restart that were not found again yet.
    pub(crate) fn remembered(&self, what: &str) -> Vec<String> {
        let state = self.lock();
        state.before.iter().filter(|one| one.what == what).map(|one| one.name.clone()).collect()
    }

    /// Takes the findings of one run; returns the start times to store, if they changed.
    fn take(&self, found: Vec<Finding>, now_unix: u64, is_early: bool) -> Option<Vec<Since>> {
        let mut state = self.lock();
        let mut before = std::mem::take(&mut state.noted);
        for finding in found {
            let noted = state.note(finding, &mut before, now_unix);
            state.noted.push(noted);
        }
        before.iter().filter(|noted| noted.counts).for_each(|noted| tell("over", &noted.condition));
        if !is_early {
            state.before.clear();
        }
        state.looked = Some(Instant::now());
        let counting = state.noted.iter().filter(|noted| noted.counts).map(|noted| since(&noted.condition));
        let kept: Vec<Since> = counting.chain(state.before.iter().cloned()).collect();
        let is_other = kept != state.kept;
        state.kept.clone_from(&kept);
        is_other.then_some(kept)
    }
}

impl State {
    /// Records a finding; its start is taken from the previous run, or from before the restart.
    fn note(&mut self, finding: Finding, before: &mut Vec<Noted>, now_unix: u64) -> Noted {
        let Finding { what, name, severity, code, found, remedy, hold } = finding;
        let last = position(before, what, &name, code, |noted| {
            let Condition { what, name, code, .. } = &noted.condition;
            (what, name, *code)
        });
        let last = last.map(|at| before.swap_remove(at));
        let kept = position(&self.before, what, &name, code, |one| (&one.what, &one.name, one.code));
        let kept = kept.map(|at| self.before.swap_remove(at));
        let since_kept = kept.as_ref().map(|kept| kept.since_unix);
        let since_unix =
            last.as_ref().map(|last| last.condition.since_unix).into_iter().chain(since_kept).min();
        let since_unix = since_unix.unwrap_or(now_unix);
        let counted = kept.is_some() || last.is_some_and(|last| last.counts);
        let counts = counted || now_unix.saturating_sub(since_unix) >= hold.as_secs();
        let condition = Condition { what: what.into(), name, severity, code, found, remedy, since_unix };
        if counts && !counted {
            tell("began", &condition);
        }
        Noted { condition, counts }
    }
}

/// The position of the entry with the same subject and code, else with the same subject: its cause may have
/// changed.
fn position<T>(
    all: &[T],
    what: &str,
    name: &str,
    code: Code,
    key: impl Fn(&T) -> (&String, &String, Code),
) -> Option<usize> {
    let is_same = |one: &T| {
        let (its_what, its_name, _) = key(one);
        its_what == what && its_name == name
    };
    let exact = all.iter().position(|one| is_same(one) && key(one).2 == code);
    exact.or_else(|| all.iter().position(is_same))
}

/// Logs a change.
fn tell(change: &str, condition: &Condition) {
    let Condition { severity, code, found, remedy, .. } = condition;
    let (about, severity) = (condition.subject(), severity.name());
    match change {
        "over" => tracing::info!(about, %code, "condition cleared"),
        _ => tracing::warn!(about, severity, %code, found, remedy, "a condition began"),
    }
}

fn since(condition: &Condition) -> Since {
    let Condition { what, name, code, since_unix, .. } = condition.clone();
    Since { what, name, code, since_unix }
}

fn since_file(home: &Home) -> PathBuf {
    home.state_dir().join("conditions.json")
}

/// The stored start times; none if they cannot be read, since nothing depends on them.
///
/// # Errors
/// `FormatNewer`.
fn read_since(home: &Home) -> Result<Vec<Since>, Error> {
    let text = read_text(&since_file(home), MAX_FILE_BYTES).ok().flatten().unwrap_or_default();
    let version =
        serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|kept| kept["version"].as_u64());
    match version {
        Some(version) if version > u64::from(VERSION) => Err(newer("conditions.json", version, VERSION)),
        _ => Ok(serde_json::from_str::<Kept>(&text).map(|kept| kept.conditions).unwrap_or_default()),
    }
}

/// Stores the start times, but not over those of a newer version.
fn keep_since(home: &Home, conditions: Vec<Since>) -> Result<(), Error> {
    read_since(home)?;
    let text = serde_json::to_vec(&Kept { version: VERSION, conditions }).expect("it is plain data");
    write_file(&since_file(home), &text, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(name: &str, code: Code, hold_s: u64) -> Finding {
        let error = Error::new(code, "look", name, "");
        Finding::of("line", name, Severity::Warning, &error).lasting(Duration::from_secs(hold_s))
    }

    fn shown(conditions: &Conditions) -> Vec<(String, Code, u64)> {
        let (all, _) = conditions.shown();
        all.into_iter().map(|one| (one.name, one.code, one.since_unix)).collect()
    }

    #[test]
    fn a_condition_keeps_its_begin_when_its_cause_changes() {
        let conditions = Conditions::default();
        conditions.take(vec![finding("hub", Code::PeerDown, 0)], 100, false);
        conditions.take(vec![finding("hub", Code::PortClosed, 0)], 110, false);
        assert_eq!(shown(&conditions), [("hub".into(), Code::PortClosed, 100)]);
        conditions.take(Vec::new(), 120, false);
        conditions.take(vec![finding("hub", Code::PeerDown, 0)], 130, false);
        assert_eq!(shown(&conditions), [("hub".into(), Code::PeerDown, 130)]);
    }

    #[test]
    fn a_condition_that_was_absent_since_the_restart_begins_again() {
        let conditions = Conditions::default();
        let before = |name: &str| Since {
            what: "line".into(),
            name: name.into(),
            code: Code::PeerDown,
            since_unix: 50,
        };
        conditions.remember(vec![before("hub"), before("other")]);
        conditions.take(Vec::new(), 100, true);
        conditions.forget_before("line", "hub");
        conditions.take(["hub", "other"].map(|name| finding(name, Code::PeerDown, 0)).into(), 110, true);
        assert_eq!(
            shown(&conditions),
            [("hub".into(), Code::PeerDown, 110), ("other".into(), Code::PeerDown, 50)]
        );
    }

    #[test]
    fn conditions_with_a_minimum_duration_are_shown_after_it() {
        let conditions = Conditions::default();
        let look = |at| drop(conditions.take(vec![finding("hub", Code::PeerDown, 10)], at, false));
        look(100);
        look(109);
        assert!(shown(&conditions).is_empty());
        look(110);
        assert_eq!(shown(&conditions), [("hub".into(), Code::PeerDown, 100)]);
    }

    #[test]
    fn a_restart_keeps_begins_and_drops_ended_conditions() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::create_dir(home.state_dir()).unwrap();
        let before = Conditions::default();
        let both = vec![finding("hub", Code::PeerDown, 0), finding("kek", Code::PeerDown, 0)];
        let kept = before.take(both, 100, false).unwrap();
        assert!(
            before
                .take(vec![finding("hub", Code::PeerDown, 0), finding("kek", Code::PeerDown, 0)], 101, false)
                .is_none()
        );
        keep_since(&home, kept).unwrap();

        let after = Conditions::default();
        after.remember(read_since(&home).unwrap());
        assert_eq!(after.remembered("line"), ["hub", "kek"]);
        // It counts at once although it has a hold: it persisted before the restart.
        assert!(after.take(vec![finding("kek", Code::PortClosed, 10)], 200, true).is_some());
        assert_eq!(shown(&after), [("kek".into(), Code::PortClosed, 100)]);
        let kept = after.take(vec![finding("kek", Code::PortClosed, 10)], 400, false).unwrap();
        assert_eq!(kept.len(), 1);
        assert!(after.remembered("line").is_empty());
    }

    #[test]
    fn an_unreadable_file_is_replaced_and_one_of_a_newer_version_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::create_dir(home.state_dir()).unwrap();
        assert!(read_since(&home).unwrap().is_empty());
        std::fs::write(since_file(&home), "{").unwrap();
        assert!(read_since(&home).unwrap().is_empty());
        keep_since(&home, Vec::new()).unwrap();
        let newer = "{\"version\":9,\"since\":{}}";
        std::fs::write(since_file(&home), newer).unwrap();
        assert_eq!(read_since(&home).unwrap_err().code, Code::FormatNewer);
        assert_eq!(keep_since(&home, Vec::new()).unwrap_err().code, Code::FormatNewer);
        assert_eq!(std::fs::read_to_string(since_file(&home)).unwrap(), newer);
    }
}
