//! Queued transfers: the list, and of each why it stands as it does and what may be done about it.

use super::html::{Html, Table};
use super::page::{self, Page, Tab};
use super::transfers;
use crate::site::Site;
use crate::site::console::Visitor;
use crate::site::view::moment;
use renkei_core::error::{Code, Error};
use renkei_core::queue::{Change, State};
use renkei_core::units::{hex, human, span};
use renkei_core::wire::queue::{Attempt, Listed, Queued, Story};
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Ended ones in the list.
const MAX_ENDED: usize = 50;
/// Failed files that are named.
const MAX_FAILURES: usize = 50;

/// What may be asked for, with its name in an address and on a button, and in which states it makes sense.
type Button = (Change, &'static str, &'static str, &'static [State]);

/// What can be tried again.
const RETRIED: &[State] = &[State::Waiting, State::Failed, State::Cancelled, State::Partial];

/// All of them.
const BUTTONS: [Button; 4] = [
    (Change::Pause, "pause", "Pause", &[State::Queued, State::Waiting, State::Running]),
    (Change::Resume, "resume", "Resume", &[State::Paused]),
    (Change::Retry, "retry", "Try again now", RETRIED),
    (Change::Cancel, "cancel", "Cancel", &[State::Queued, State::Waiting, State::Running, State::Paused]),
];

/// The list of those that have not ended, or of the newest of those that have.
pub(super) fn table(site: &Arc<Site>, visitor: &Visitor, ended: bool) -> Html {
    let listed = Listed { ended, ..Listed::default() };
    let all = match site.transfers(visitor.access().map(|access| &access.principal), &listed) {
        Ok(all) => all,
        Err(error) => return transfers::failed(&error),
    };
    let mut table = Table::new(&["Transfer", "What", "State", "Done", "Why"]);
    let wanted = all.iter().filter(|one| one.state.is_end() == ended);
    for one in wanted.take(if ended { MAX_ENDED } else { usize::MAX }) {
        table.row(vec![link(one), what(one, visitor), state(one), done(one), why(one)]);
    }
    match ended {
        true => table.finish("Queued transfers that ended, the newest first", "None has ended."),
        false => table.finish("Queued transfers, the newest first", "Nothing is queued."),
    }
}

fn link(one: &Queued) -> Html {
    let id = hex(&one.id);
    Html::of("<a id=\"q-{}\" href=\"/console/queue/{}\"><code>{}</code></a>", &[&id, &id, &&id[..8]])
}

fn what(one: &Queued, visitor: &Visitor) -> Html {
    let mut html =
        Html::of("<bdi class=\"path\">{}</bdi> to <bdi class=\"path\">{}</bdi>", &[&one.from, &one.to]);
    if !one.label.is_empty() {
        html.put(" <small class=\"label\"><bdi>{}</bdi></small>", &[&one.label]);
    }
    if visitor.access().is_none() {
        html.put(" <small>for <bdi>{}</bdi></small>", &[&one.owner]);
    }
    html
}

fn state(one: &Queued) -> Html {
    let class = match one.state {
        State::Done => "well",
        State::Failed => "badly",
        State::Waiting | State::Partial => "partly",
        _ => "plain",
    };
    let name = if one.stopping { "stopping" } else { one.state.name() };
    Html::of("<span class=\"{}\">{}</span>", &[&class, &name])
}

fn done(one: &Queued) -> Html {
    match (&one.progress, &one.summary) {
        (Some(progress), _) => transfers::progress(progress),
        (None, Some(summary)) => Html::of("{}, {} files", &[&human(summary.bytes), &summary.files]),
        (None, None) => Html::new(),
    }
}

/// For what it waits, or why it failed.
fn why(one: &Queued) -> Html {
    let again = one.next_ms.filter(|_| one.state == State::Waiting);
    let again = again.map(|ms| format!("; tried again in {}", span(until(ms)))).unwrap_or_default();
    let failed = one.summary.as_ref().map_or(0, |summary| summary.failed);
    match &one.reason {
        _ if one.state == State::Waiting && one.needs > 0 => Html::of("waits for {} others", &[&one.needs]),
        // Of several the first says little.
        _ if failed > 1 => Html::of("{} entries failed", &[&failed]),
        Some(error) if one.state != State::Done => {
            Html::of("{}: <bdi>{}</bdi>{}", &[&error.code, &error.code.row().title, &again])
        }
        _ if failed == 1 => Html::of("1 entry failed", &[]),
        _ => Html::new(),
    }
}

fn until(ms: u64) -> Duration {
    at(ms).duration_since(SystemTime::now()).unwrap_or_default()
}

fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

// ---- one -------------------------------------------------------------------------------------------------------------

/// Makes the page of one, if the visitor may see it.
pub(super) fn one(site: &Arc<Site>, visitor: &Visitor, id: &str) -> Option<Page> {
    let who = visitor.access().map(|access| &access.principal);
    let story = site.transfer(who, id).ok()?;
    let transfer = &story.transfer;
    let page = Page::new(Tab::Transfers, format!("Queued transfer {}", &hex(&transfer.id)[..8]))
        .part("stands", "How it stands", stands(&story))
        .part("actions", "What you can do", actions(transfer, visitor))
        .part("facts", "What it is", facts(&story, visitor));
    let page = match transfers::runs_of(site, visitor, &hex(&transfer.id)) {
        Some(runs) => page.part("runs", "Its runs at this PoP", runs),
        None => page,
    };
    Some(page.part("why", "Its attempts", attempts(&story.attempts)))
}

fn stands(story: &Story) -> Html {
    let transfer = &story.transfer;
    let mut html = Html::of("<p class=\"state\">", &[]);
    html.add(state(transfer)).put("</p>", &[]).add(done(transfer));
    if transfer.needs > 0 && transfer.state == State::Waiting {
        html.put("<p>It waits for other transfers:</p>", &[]);
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
        html.add(transfers::failed(error));
    }
    if let Some(ms) = transfer.next_ms.filter(|_| transfer.state == State::Waiting) {
        html.put("<p>It is tried again in {}.</p>", &[&span(until(ms))]);
    }
    if let Some(ms) = story.link_rests_until_ms {
        html.put("<p>Nothing was reached over its link, which rests for {}.</p>", &[&span(until(ms))]);
    }
    html.add(failures(story));
    html
}

fn failures(story: &Story) -> Html {
    if story.failures.is_empty() {
        return Html::new();
    }
    let mut html = Html::of("<p class=\"partly\">Entries that failed:</p><ul>", &[]);
    for failure in story.failures.iter().take(MAX_FAILURES) {
        html.put("<li><bdi>{}</bdi>: {}</li>", &[&failure.path, &failure.error]);
    }
    let more = story.failures.len().saturating_sub(MAX_FAILURES);
    if more > 0 {
        html.put("<li>and {} more</li>", &[&more]);
    }
    html.put("</ul>", &[]);
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
    let mut html = Html::of("<dl class=\"facts\"><div><dt>What</dt><dd>", &[]);
    html.add(what(transfer, visitor)).put("</dd></div>", &[]);
    let mut fact = |name: &str, value: &dyn Display| {
        html.put("<div><dt>{}</dt><dd>{}</dd></div>", &[&name, value]);
    };
    fact("Identity", &hex(&transfer.id));
    fact("Handed in", &moment(at(transfer.submitted_ms)));
    match transfer.ended_ms {
        Some(ended) => fact("Ended", &moment(at(ended))),
        None => fact("Given up", &moment(at(transfer.deadline_ms))),
    }
    fact("Priority", &transfer.priority);
    html.put("</dl>", &[]);
    html
}

fn attempts(all: &[Attempt]) -> Html {
    let mut table = Table::new(&["Attempt", "Began", "Took", "Moved", "Files there", "End"]);
    for attempt in all.iter().rev() {
        let text = |text: String| Html::of("{}", &[&text]);
        let took = attempt.ended_ms.map_or("no end is known".into(), |ended| {
            format!("{:.1} s", Duration::from_millis(ended.saturating_sub(attempt.started_ms)).as_secs_f64())
        });
        table.row(vec![
            text(attempt.number.to_string()),
            text(moment(at(attempt.started_ms))),
            text(took),
            text(human(attempt.bytes_moved)),
            text(attempt.files_done.to_string()),
            end(attempt),
        ]);
    }
    table.finish("Attempts, the newest first", "It has not begun yet.")
}

fn end(attempt: &Attempt) -> Html {
    match (&attempt.error, attempt.ended_ms) {
        (Some(error), _) => Html::of("<span class=\"badly\"><bdi>{}</bdi></span>", &[error]),
        (None, Some(_)) => Html::of("<span class=\"well\">well</span>", &[]),
        (None, None) => Html::new(),
    }
}

/// Does what a button asks for.
///
/// # Errors
/// `TransferUnknown`, also for what is not a change; `ChangeRefused` if it does not fit the state any more.
pub(super) fn change(site: &Site, visitor: &Visitor, id: &str, wanted: &str) -> Result<(), Error> {
    let who = visitor.access().map(|access| &access.principal);
    let transfer = site.transfer(who, id)?.transfer;
    let button = BUTTONS.iter().find(|(_, name, ..)| *name == wanted);
    let unknown = || Error::new(Code::TransferUnknown, "change", wanted, "no such change");
    let (change, ..) = button.ok_or_else(unknown)?;
    site.change_transfer(visitor.access(), &transfer.id, *change)
}
