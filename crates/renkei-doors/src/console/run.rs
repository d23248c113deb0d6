//! One run of a transfer at this PoP, and tables of runs.

use super::html::{Facts, Html, Table, counted, size};
use super::page::{Page, Tab};
use super::{chart, failure};
use renkei_core::units::{human, span};
use renkei_core::wire::message::{Class, Progress, Summary};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::view::moment;
use renkei_site::transfer::history::{Outcome, Run};
use std::sync::Arc;

/// Maximum of ended runs of one transfer that are shown.
const MAX_ROWS: usize = 100;

/// The table of running transfers.
pub(super) fn running(runs: &[&Run], visitor: &Visitor) -> Html {
    let mut table = Table::new(&["Transfer", "What", "Done", "Rate", "Left"]);
    for run in runs {
        let mut speed = Html::of("<span class=\"rate\">{}</span>", &[&chart::rate(run.rate())]);
        speed.add(chart::curve(&run.rates, "spark"));
        let left = run.left().map_or("not known yet".into(), span);
        let cells = vec![link(run), what(run, visitor), progress(&run.status.progress), speed];
        table.row([cells, vec![Html::of("{}", &[&left])]].concat());
    }
    table.finish("Running transfers", "No transfer runs.")
}

fn ended(runs: &[&Run], visitor: &Visitor) -> Html {
    let mut table = Table::new(&["Transfer", "What", "Began", "Duration", "Moved", "Rate", "Result"]);
    for run in runs.iter().take(MAX_ROWS) {
        let text = |text: String| Html::of("{}", &[&text]);
        table.row(vec![
            link(run),
            what(run, visitor),
            text(moment(run.began)),
            text(took(run)),
            text(human(run.status.progress.bytes_moved)),
            text(chart::rate(run.mean_rate())),
            end(&run.outcome),
        ]);
    }
    table.finish("Transfers since the PoP's start, the newest first", "None has ended since the PoP's start.")
}

pub(super) fn took(run: &Run) -> String {
    match run.lasted.as_secs() {
        0 => format!("{:.1} s", run.lasted.as_secs_f64()),
        _ => span(run.lasted),
    }
}

/// The key of a run in links.
fn key(run: &Run) -> String {
    format!("{}-{}", run.status.id, run.number)
}

pub(super) fn link(run: &Run) -> Html {
    let (key, short) = (key(run), run.status.id.get(..8).unwrap_or(&run.status.id));
    Html::of("<a id=\"t-{}\" href=\"/console/transfers/{}\"><code>{}</code></a>", &[&key, &key, &short])
}

/// Direction, place, the other side, and for the administrator the owner.
pub(super) fn what(run: &Run, visitor: &Visitor) -> Html {
    let status = &run.status;
    let to_or_from = if status.direction == "send" { "to" } else { "from" };
    let other = run.peer.as_ref().map_or("a client".into(), |site| site.to_string());
    let mut html = Html::of(
        "{} <bdi class=\"path\">{}</bdi> {} {}",
        &[&status.direction, &status.place, &to_or_from, &other],
    );
    if status.class == Class::Background {
        html.put(" <small>background</small>", &[]);
    }
    if visitor.caller().is_administrator() {
        html.put(" <small>for <bdi>{}</bdi></small>", &[&status.principal]);
    }
    html
}

/// The progress as a bar and in numbers.
pub(super) fn progress(progress: &Progress) -> Html {
    let done = progress.bytes_done.max(progress.bytes_moved).min(progress.bytes_found);
    let more = if progress.walk_done { "" } else { "+" };
    let mut html = Html::new();
    if progress.walk_done && progress.bytes_found > 0 {
        html.put("<progress max=\"{}\" value=\"{}\">{}</progress> ", &[&progress.bytes_found, &done, &done]);
    }
    html.put(
        "<span class=\"numbers\">{} of {}{}, files: {} of {}{}</span>",
        &[
            &human(done),
            &size(progress.bytes_found),
            &more,
            &progress.files_done,
            &progress.files_found,
            &more,
        ],
    );
    html
}

pub(super) fn end(outcome: &Outcome) -> Html {
    match outcome {
        Outcome::Running => Html::of("<span>running</span>", &[]),
        Outcome::Ended => Html::of("<span>done</span>", &[]),
        Outcome::Done { summary, .. } if summary.failed > 0 => {
            Html::of("<span class=\"partly\">partial: {} failed</span>", &[&summary.failed])
        }
        Outcome::Done { .. } => Html::of("<span class=\"well\">done</span>", &[]),
        Outcome::Failed(error) => Html::of("<span class=\"badly\">{}</span>", &[&error.code]),
    }
}

/// Makes the page of one run, if the visitor may see it.
pub(super) fn one(site: &Arc<Site>, visitor: &Visitor, wanted: &str) -> Option<Page> {
    let run = site.monitor().runs(visitor).into_iter().find(|run| key(run) == wanted)?;
    let short = run.status.id.get(..8).unwrap_or(&run.status.id);
    Some(
        Page::new(Tab::Transfers, format!("Transfer {short}"))
            .part("how", "State", stands(&run))
            .part("facts", "Details", facts(&run, visitor))
            .part("why", "Events", happenings(&run)),
    )
}

/// The runs of a transfer at this PoP, if there are any.
pub(super) fn runs_of(site: &Site, visitor: &Visitor, id: &str) -> Option<Html> {
    let runs: Vec<_> = site.monitor().runs(visitor).into_iter().filter(|run| run.status.id == id).collect();
    let (now, past): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.outcome == Outcome::Running);
    let mut html = Html::new();
    if !now.is_empty() {
        html.add(running(&now, visitor));
    }
    if !past.is_empty() {
        html.add(ended(&past, visitor));
    }
    (!html.is_empty()).then_some(html)
}

fn stands(run: &Run) -> Html {
    let mut html = progress(&run.status.progress);
    let left = run.left().map(|left| format!(", {} left", span(left))).unwrap_or_default();
    match &run.outcome {
        Outcome::Running => {
            html.put("<p class=\"rate\">{}{}</p>", &[&chart::rate(run.rate()), &left]);
        }
        Outcome::Ended => {
            html.put("<p>Done.</p>", &[]);
        }
        Outcome::Done { summary, failures } => {
            html.add(done(summary, failures));
        }
        Outcome::Failed(error) => {
            html.add(failure::whole(error));
        }
    }
    let most = run.rates.iter().copied().max().unwrap_or(0);
    html.put("<figure>", &[]).add(chart::curve(&run.rates, "curve")).put(
        "<figcaption>Rate of the last minute it ran, at most {}</figcaption></figure>",
        &[&chart::rate(most)],
    );
    html
}

fn done(summary: &Summary, failures: &[String]) -> Html {
    if summary.failed == 0 {
        return Html::of("<p class=\"well\">Done: all of it arrived.</p>", &[]);
    }
    let mut html = Html::of("<p class=\"partly\">Partial. Entries that failed: {}</p>", &[&summary.failed]);
    html.add(failed_entries(failures, summary.failed));
    html
}

/// The first failed entries, of `all`.
pub(super) fn failed_entries(failures: &[String], all: u64) -> Html {
    let mut html = Html::of("<ul class=\"failures\">", &[]);
    for failure in failures {
        html.put("<li><bdi>{}</bdi></li>", &[failure]);
    }
    let more = all.saturating_sub(failures.len() as u64);
    if more > 0 {
        html.put("<li>and {} more</li>", &[&more]);
    }
    html.put("</ul>", &[]);
    html
}

fn facts(run: &Run, visitor: &Visitor) -> Html {
    let mut facts = Facts::new();
    facts
        .add("What", what(run, visitor))
        .text("Id", &run.status.id)
        .text("Began", &moment(run.began))
        .text("Duration", &took(run))
        .text("Moved", &human(run.status.progress.bytes_moved))
        .text("Mean rate", &chart::rate(run.mean_rate()));
    facts.finish()
}

fn happenings(run: &Run) -> Html {
    let mut html = Html::of("<ol class=\"story\"><li><b>{}</b> began</li>", &[&moment(run.began)]);
    for fact in &run.facts {
        html.put("<li><b>after {} s</b> {}</li>", &[&format!("{:.1}", fact.after.as_secs_f64()), &fact.text]);
    }
    let after = format!("{:.1}", run.lasted.as_secs_f64());
    match &run.outcome {
        Outcome::Running => {
            let quiet = run.rates.iter().rev().take_while(|rate| **rate == 0).count();
            if quiet >= 5 {
                html.put("<li><b>now</b> nothing has moved for {} s</li>", &[&quiet]);
            }
        }
        Outcome::Ended => {}
        Outcome::Done { summary, .. } => {
            let Summary { files, bytes, files_skipped, deleted, .. } = summary;
            html.put(
                "<li><b>after {} s</b> done: {}, {}; {} were there before; {} removed</li>",
                &[&after, &counted(files, "file", "files"), &human(*bytes), files_skipped, deleted],
            );
        }
        Outcome::Failed(error) => {
            html.put("<li><b>after {} s</b> failed: {}</li>", &[&after, &error.code.row().title]);
        }
    }
    html.put("</ol>", &[]);
    html
}
