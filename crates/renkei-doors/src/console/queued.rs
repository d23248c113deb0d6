//! Queued transfers: the cells of the list, and the page of one with its causes and actions.

use super::html::{Facts, Html, Table, counted, size};
use super::page::{self, Page, Tab};
use super::{failure, run};
use renkei_core::error::{Code, Error};
use renkei_core::queue::{Change, State};
use renkei_core::units::{hex, human, span};
use renkei_core::wire::message::EntryFailure;
use renkei_core::wire::queue::{Attempt, Queued, Story};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::view::moment;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum of failed files that are listed.
const MAX_FAILURES: usize = 50;

/// A change, its name in the path, its label on the button, and the states in which it makes sense.
type Button = (Change, &'static str, &'static str, &'static [State]);

/// The states from which a transfer can be retried.
const RETRIED: &[State] = &[State::Waiting, State::Failed, State::Cancelled, State::Partial];

/// All buttons.
const BUTTONS: [Button; 4] = [
    (Change::Pause, "pause", "Pause", &[State::Queued, State::Waiting, State::Running]),
    (Change::Resume, "resume", "Resume", &[State::Paused]),
    (Change::Retry, "retry", "Try again now", RETRIED),
    (Change::Cancel, "cancel", "Cancel", &[State::Queued, State::Waiting, State::Running, State::Paused]),
];

/// A link to the page of a transfer.
pub(super) fn link(one: &Queued) -> Html {
    let id = hex(&one.id);
    Html::of("<a id=\"q-{}\" href=\"/console/queue/{}\"><code>{}</code></a>", &[&id, &id, &&id[..8]])
}

/// Source and destination, the label, and for the administrator the owner.
pub(super) fn what(one: &Queued, visitor: &Visitor) -> Html {
    let mut html =
        Html::of("<bdi class=\"path\">{}</bdi> to <bdi class=\"path\">{}</bdi>", &[&one.from, &one.to]);
    if !one.label.is_empty() {
        html.put(" <small class=\"label\"><bdi>{}</bdi></small>", &[&one.label]);
    }
    if visitor.caller().is_administrator() {
        html.put(" <small>for <bdi>{}</bdi></small>", &[&one.owner]);
    }
    html
}

/// The name of its state.
pub(super) fn state(one: &Queued) -> Html {
    state_name(one.state, one.stopping)
}

/// The name of a state.
pub(super) fn state_name(state: State, is_stopping: bool) -> Html {
    let class = match state {
        State::Done => "well",
        State::Failed => "badly",
        State::Waiting | State::Partial => "partly",
        _ => "plain",
    };
    let name = if is_stopping { "stopping" } else { state.name() };
    Html::of("<span class=\"{}\">{}</span>", &[&class, &name])
}

/// The progress.
pub(super) fn progress(one: &Queued) -> Html {
    match (&one.progress, &one.summary) {
        (Some(progress), _) => run::progress(progress),
        (None, Some(summary)) => {
            Html::of("{} in {}", &[&size(summary.bytes), &counted(summary.files, "file", "files")])
        }
        (None, None) => Html::new(),
    }
}

/// The reason why it waits, or why it failed, with the remedy.
pub(super) fn cause(one: &Queued, failures: &[EntryFailure]) -> Html {
    let mut html = Html::new();
    if one.state == State::Waiting && one.needs > 0 {
        html.put("Waits for other transfers: {}", &[&one.needs]);
        return html;
    }
    let failed = one.summary.as_ref().map_or(0, |summary| summary.failed);
    match &one.reason {
        _ if failed > 0 && !failures.is_empty() => {
            html.add(failure::entries(failures, failed));
        }
        Some(error) if one.state != State::Done => {
            html.add(failure::brief(error));
        }
        _ => {}
    }
    if let Some(ms) = one.next_ms.filter(|_| one.state == State::Waiting) {
        html.put(" <small>Tried again in {}</small>", &[&span(until(ms))]);
    }
    html
}

fn until(ms: u64) -> Duration {
    at(ms).duration_since(SystemTime::now()).unwrap_or_default()
}

/// A time of the catalogue.
pub(super) fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

// ---- one -------------------------------------------------------------------------------------------------------------

/// Makes the page of one transfer, if the visitor may see it.
pub(super) fn one(site: &Arc<Site>, visitor: &Visitor, id: &str) -> Option<Page> {
    let story = site.queue().transfer(visitor.caller(), id).ok()?;
    let transfer = &story.transfer;
    let page = Page::new(Tab::Transfers, format!("Queued transfer {}", &hex(&transfer.id)[..8]))
        .part("stands", "State", stands(&story))
        .part("actions", "Actions", actions(transfer, visitor))
        .part("facts", "Details", facts(&story, visitor));
    let page = match run::runs_of(site, visitor, &hex(&transfer.id)) {
        Some(runs) => page.part("runs", "Runs at this PoP", runs),
        None => page,
    };
    Some(page.part("why", "Attempts", attempts(&story.attempts, &story.transfer)))
}

fn stands(story: &Story) -> Html {
    let transfer = &story.transfer;
    let mut html = Html::of("<p class=\"state\">", &[]);
    html.add(state(transfer)).put("</p>", &[]).add(progress(transfer));
    if transfer.needs > 0 && transfer.state == State::Waiting {
        html.put("<p>Waits for other transfers:</p>", &[]);
    }
    if !story.after.is_empty() {
        html.put("<ul>", &[]);
        for (id, state) in &story.after {
            let id = hex(id);
            html.put(
                "<li><a id=\"a-{}\" href=\"/console/queue/{}\"><code>{}</code></a> {}</li>",
                &[&id, &id, &&id[..8], &state.name()],
            );
        }
        html.put("</ul>", &[]);
    }
    if let Some(error) = transfer.reason.as_ref().filter(|_| transfer.state != State::Done) {
        html.add(failure::whole(error));
    }
    if let Some(ms) = transfer.next_ms.filter(|_| transfer.state == State::Waiting) {
        html.put("<p>Tried again in {}.</p>", &[&span(until(ms))]);
    }
    if let Some(ms) = story.link_rests_until_ms {
        html.put(
            "<p>Nothing was reached over its link; the next attempt there is in {}.</p>",
            &[&span(until(ms))],
        );
    }
    html.add(failures(story));
    html
}

fn failures(story: &Story) -> Html {
    if story.failures.is_empty() {
        return Html::new();
    }
    let told = story.transfer.summary.as_ref().map_or(0, |summary| summary.failed);
    let all = told.max(story.failures.len() as u64);
    let mut html = Html::of("<p class=\"partly\">Entries that failed: {}</p>", &[&all]);
    html.add(failure::entries(&story.failures[..story.failures.len().min(MAX_FAILURES)], all));
    html
}

fn actions(transfer: &Queued, visitor: &Visitor) -> Html {
    let mut html = Html::new();
    let fitting =
        BUTTONS.iter().filter(|(.., states)| states.contains(&transfer.state) && !transfer.stopping);
    for (_, name, shown, _) in fitting {
        html.put("<form method=\"post\" action=\"/console/queue/{}/{}\">", &[&hex(&transfer.id), name])
            .add(page::token(visitor))
            .put("<button id=\"do-{}\">{}</button></form> ", &[name, shown]);
    }
    match html.is_empty() {
        true => Html::of("<p class=\"none\">Nothing now.</p>", &[]),
        false => html,
    }
}

fn facts(story: &Story, visitor: &Visitor) -> Html {
    let transfer = &story.transfer;
    let mut facts = Facts::new();
    facts
        .add("What", what(transfer, visitor))
        .text("Id", &hex(&transfer.id))
        .text("Submitted", &moment(at(transfer.submitted_ms)));
    match transfer.ended_ms {
        Some(ended) => facts.text("Ended", &moment(at(ended))),
        None => facts.text("Deadline", &moment(at(transfer.deadline_ms))),
    };
    if let Some(buffered) = &transfer.buffered {
        let part = if buffered.whole { "all of it" } else { "so far" };
        facts
            .text("In the buffer", &format!("{} at {}, {part}", human(buffered.bytes), buffered.site))
            .text("Kept there until", &moment(at(buffered.until_ms)));
    }
    facts.text("Priority", &transfer.priority);
    facts.finish()
}

fn attempts(all: &[Attempt], transfer: &Queued) -> Html {
    let mut table = Table::new(&["Attempt", "Began", "Duration", "Moved", "Files there", "Result"]);
    for attempt in all.iter().rev() {
        let text = |text: String| Html::of("{}", &[&text]);
        let took = attempt.ended_ms.map_or("not known".into(), |ended| {
            format!("{:.1} s", Duration::from_millis(ended.saturating_sub(attempt.started_ms)).as_secs_f64())
        });
        table.row(vec![
            text(attempt.number.to_string()),
            text(moment(at(attempt.started_ms))),
            text(took),
            text(human(attempt.bytes_moved)),
            text(attempt.files_done.to_string()),
            end(attempt, transfer),
        ]);
    }
    table.finish("Attempts, the newest first", "There was no attempt yet.")
}

/// How an attempt ended; a complete one may have failed entries.
fn end(attempt: &Attempt, transfer: &Queued) -> Html {
    let last = (attempt.number == transfer.attempts).then_some(transfer.summary.as_ref()).flatten();
    let failed = last.map_or(0, |summary| summary.failed);
    match (&attempt.error, attempt.ended_ms) {
        (Some(error), _) => Html::of("<span class=\"badly\"><bdi>{}</bdi></span>", &[error]),
        (None, Some(_)) if failed > 0 => {
            Html::of("<span class=\"partly\">failed entries: {}</span>", &[&failed])
        }
        (None, Some(_)) => Html::of("<span class=\"well\">done</span>", &[]),
        (None, None) => Html::new(),
    }
}

/// Carries out the change of a button.
///
/// # Errors
/// `TransferUnknown`, also for an unknown change; `ChangeRefused` if it does not fit the state any more.
pub(super) fn change(site: &Site, visitor: &Visitor, id: &str, wanted: &str) -> Result<(), Error> {
    let transfer = site.queue().transfer(visitor.caller(), id)?.transfer;
    let button = BUTTONS.iter().find(|(_, name, ..)| *name == wanted);
    let unknown = || Error::new(Code::TransferUnknown, "change", wanted, "no such change");
    let (change, ..) = button.ok_or_else(unknown)?;
    site.queue().change_transfer(visitor.caller(), &transfer.id, *change)
}
