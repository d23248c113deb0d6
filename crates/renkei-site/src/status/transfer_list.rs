//! One list of all transfers that a visitor of the console may see, the newest first: those of the queue, and those
//! that clients and other PoPs run here.
//!
//! A queued transfer is one entry, however many attempts it had. A page is made in bounded time: for a selective
//! search of a long queue a limited number of rows is examined, and the page carries the cursor to continue from.

use super::Monitor;
use super::console::Visitor;
use crate::transfer::history::{Outcome, Run};
use renkei_catalogue::{Catalogue, Listing, hex_id, parse_id};
use renkei_core::error::{Code, Error};
use renkei_core::queue::State;
use renkei_core::wire::message::{EntryFailure, TransferId};
use renkei_core::wire::queue::{Listed, Queued};
use renkei_net::unix_ms;
use std::cmp::Reverse;
use std::fmt;

/// Entries of one page.
const PAGE: usize = 50;
/// Rows of the queue read in one batch, and the maximum examined for one page.
const BATCH: usize = 128;
const MOST_ROWS: usize = 2048;
/// Failures shown of a transfer with failed files.
const SHOWN_FAILURES: usize = 3;

/// Filter and cursor of a page.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only transfers in this state.
    pub state: Option<State>,
    /// Only transfers with this label, if it is not empty.
    pub label: String,
    /// Only transfers whose text contains these words.
    pub search: String,
    /// Only transfers after this cursor.
    pub before: Option<Cursor>,
}

/// A cursor: a place in the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    ms: u64,
    key: String,
}

impl Cursor {
    /// Parses the displayed form.
    pub fn parse(text: &str) -> Option<Self> {
        let (ms, key) = text.split_once('-')?;
        Some(Cursor { ms: ms.parse().ok()?, key: key.into() })
    }

    /// The cursor for the queue; at the same moment a run sorts before a queued transfer.
    fn of_queue(&self) -> (u64, TransferId) {
        let id = self.key.get(..32).and_then(parse_id).unwrap_or_default();
        (self.ms, id)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.key)
    }
}

/// One transfer of the list.
pub enum Entry {
    /// A queued transfer, with its first failures.
    Queued(Box<Queued>, Vec<EntryFailure>),
    /// A run of a client or another PoP.
    Run(Box<Run>),
}

impl Entry {
    fn cursor(&self) -> Cursor {
        match self {
            Entry::Queued(one, _) => Cursor { ms: one.submitted_ms, key: hex_id(&one.id) },
            Entry::Run(run) => cursor_of(run),
        }
    }
}

fn cursor_of(run: &Run) -> Cursor {
    Cursor { ms: unix_ms(run.began), key: format!("{}-{}", run.status.id, run.number) }
}

/// A page of the list.
#[derive(Default)]
pub struct Page {
    /// The transfers.
    pub entries: Vec<Entry>,
    /// The cursor of the next page, if there is one.
    pub older: Option<Cursor>,
    /// The error because of which queued transfers are missing, if they are.
    pub trouble: Option<Error>,
}

impl Monitor {
    /// A page of the transfers that a visitor may see.
    pub fn transfer_page(&self, visitor: &Visitor, wanted: &Wanted) -> Page {
        let (queued, upto, trouble) = match self.queued_part(visitor, wanted) {
            Ok((queued, upto)) => (queued, upto, None),
            Err(error) => (Vec::new(), None, Some(error)),
        };
        let runs = self.runs_part(visitor, wanted);
        let mut entries: Vec<Entry> =
            queued.into_iter().map(|one| Entry::Queued(Box::new(one), Vec::new())).collect();
        entries.extend(runs.into_iter().map(|run| Entry::Run(Box::new(run))));
        entries.sort_by_cached_key(|entry| Reverse(entry.cursor()));
        // Entries after the last examined row belong to the next page.
        if let Some(upto) = &upto {
            entries.retain(|entry| entry.cursor() >= *upto);
        }
        let is_more = entries.len() > PAGE;
        entries.truncate(PAGE);
        let older = if is_more { entries.last().map(Entry::cursor) } else { upto };
        entries.iter_mut().for_each(|entry| self.add_failures(entry));
        Page { entries, older, trouble }
    }

    /// Enough of the queue for a page, and the cursor of the last examined row if there may be more.
    fn queued_part(
        &self,
        visitor: &Visitor,
        wanted: &Wanted,
    ) -> Result<(Vec<Queued>, Option<Cursor>), Error> {
        let catalogue = self.queue.state.catalogue()?;
        let owner = visitor.caller().user().map(|access| access.principal.to_string());
        let mut listed = Listed {
            ended: wanted.state.is_none_or(State::is_end),
            label: Some(wanted.label.clone()).filter(|label| !label.is_empty()),
            before: wanted.before.as_ref().map(Cursor::of_queue),
        };
        let (mut found, mut looked) = (Vec::new(), 0);
        loop {
            let listing =
                Listing { owner: owner.as_deref(), listed: &listed, state: wanted.state, limit: BATCH };
            let rows = catalogue.list(&listing)?;
            looked += rows.len();
            for row in &rows {
                let told = self.queue.told(row)?;
                if fits(&wanted.search, &words_of(&told)) {
                    found.push(told);
                }
            }
            let last = rows.last().map(|row| Cursor { ms: row.submitted_ms, key: hex_id(&row.id) });
            match last {
                Some(last) if rows.len() == BATCH => {
                    if found.len() > PAGE || looked >= MOST_ROWS {
                        return Ok((found, Some(last)));
                    }
                    listed.before = Some(last.of_queue());
                }
                _ => return Ok((found, None)),
            }
        }
    }

    /// Runs that do not belong to a transfer of this queue, enough for a page.
    fn runs_part(&self, visitor: &Visitor, wanted: &Wanted) -> Vec<Run> {
        if !wanted.label.is_empty() {
            return Vec::new();
        }
        let catalogue = self.queue.state.catalogue().ok();
        let mut runs = self.runs(visitor);
        runs.retain(|run| {
            wanted.state.is_none_or(|state| state_of(run) == state)
                && wanted.before.as_ref().is_none_or(|before| cursor_of(run) < *before)
                && fits(&wanted.search, &words_of_run(run))
        });
        runs.sort_by_cached_key(|run| Reverse(cursor_of(run)));
        let is_queued = |run: &Run| catalogue.is_some_and(|catalogue| is_in(catalogue, &run.status.id));
        runs.into_iter().filter(|run| !is_queued(run)).take(PAGE + 1).collect()
    }

    fn add_failures(&self, entry: &mut Entry) {
        let Entry::Queued(one, failures) = entry else { return };
        if one.summary.as_ref().is_some_and(|summary| summary.failed > 0)
            && let Ok(catalogue) = self.queue.state.catalogue()
        {
            let first = catalogue.failures(&one.id, 0, SHOWN_FAILURES).unwrap_or_default();
            *failures = first.into_iter().map(|(_, failure)| failure).collect();
        }
    }
}

fn is_in(catalogue: &Catalogue, id: &str) -> bool {
    parse_id(id).is_some_and(|id| catalogue.states(&[id]).is_ok_and(|found| !found.is_empty()))
}

/// The state of a run as a [`State`] of the queue.
pub fn state_of(run: &Run) -> State {
    match &run.outcome {
        Outcome::Running => State::Running,
        Outcome::Done { summary, .. } if summary.failed > 0 => State::Partial,
        Outcome::Done { .. } | Outcome::Ended => State::Done,
        Outcome::Failed(error) if error.code == Code::Cancelled => State::Cancelled,
        Outcome::Failed(_) => State::Failed,
    }
}

fn words_of(one: &Queued) -> String {
    let reason = one.reason.as_ref().map(Error::to_string).unwrap_or_default();
    [&hex_id(&one.id), &one.from, &one.to, &one.label, &one.owner, &reason].map(String::as_str).join("\n")
}

fn words_of_run(run: &Run) -> String {
    let peer = run.peer.as_ref().map(ToString::to_string).unwrap_or_default();
    let reason = match &run.outcome {
        Outcome::Failed(error) => error.to_string(),
        _ => String::new(),
    };
    [&run.status.id, &run.status.place, &run.status.principal, &peer, &reason].map(String::as_str).join("\n")
}

/// Whether the text contains all words of the search, ignoring case.
fn fits(search: &str, text: &str) -> bool {
    let text = text.to_lowercase();
    search.to_lowercase().split_whitespace().all(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_list_is_read_as_it_is_shown() {
        let id = "0123456789abcdef0123456789abcdef";
        let cursor = Cursor { ms: 7, key: format!("{id}-12") };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor.clone()));
        assert_eq!(cursor.of_queue(), (7, parse_id(id).unwrap()));
        assert_eq!((Cursor::parse("x-1"), Cursor::parse("7")), (None, None));
        assert_eq!(Cursor::parse("7-ä").unwrap().of_queue().1, TransferId::default());
    }

    #[test]
    fn all_words_are_searched_for() {
        assert!(fits("", "x") && fits("RK-NET alice", "alice@kek\nRK-NET-3: closed"));
        assert!(!fits("alice bob", "alice@kek"));
    }
}
