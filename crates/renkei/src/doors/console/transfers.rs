//! Transfers: those that run, those that ended, and the story of one.

use super::html::{Html, Table};
use super::page::{Page, Tab};
use super::{chart, queued};
use crate::site::Site;
use crate::site::console::Visitor;
use crate::site::history::{Outcome, Run};
use crate::site::view::moment;
use renkei_core::error::Error;
use renkei_core::units::{human, span};
use renkei_core::wire::message::{Class, Progress, Summary};
use std::sync::Arc;

/// Ended transfers on the page.
const MAX_ROWS: usize = 100;

/// Makes the page of all.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let runs = site.runs(visitor);
    let (now, past): (Vec<_>, Vec<_>) = runs.iter().partition(|run| run.outcome == Outcome::Running);
    Page::new(Tab::Transfers, "Transfers")
        .part("queue", "Queue", queued::table(site, visitor, false))
        .part("running", "Running", running(&now, visitor))
        .part("done", "Ended in the queue", queued::table(site, visitor, true))
        .part("ended", "Ended since the start", ended(&past, visitor))
}

/// The table of those that run.
pub(super) fn running(runs: &[&Run], visitor: &Visitor) -> Html {
    let mut table = Table::new(&["Transfer", "What", "Done", "Rate", "Left"]);
    for run in runs {
        let mut speed = Html::of("<span class=\"rate\">{}</span>", &[&chart::rate(run.rate())]);
        speed.add(chart::curve(&run.rates, "spark"));
        let left = run.left().map_or("not known yet".into(), span);
        let cells = vec![link(run), what(run, visitor), progress(&run.status.progress), speed];
        table.row([cells, vec![Html::of("{}", &[&left])]].concat());
    }
    table.finish("Transfers that run now", "No transfer runs.")
}

fn ended(runs: &[&Run], visitor: &Visitor) -> Html {
    let mut table = Table::new(&["Transfer", "What", "Began", "Took", "Moved", "Rate", "End"]);
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

fn took(run: &Run) -> String {
    match run.lasted.as_secs() {
        0 => format!("{:.1} s", run.lasted.as_secs_f64()),
        _ => span(run.lasted),
    }
}

/// What names a transfer in a link.
fn key(run: &Run) -> String {
    format!("{}-{}", run.status.id, run.number)
}

fn link(run: &Run) -> Html {
    let (key, short) = (key(run), run.status.id.get(..8).unwrap_or(&run.status.id));
    Html::of("<a id=\"t-{}\" href=\"/console/transfers/{}\"><code>{}</code></a>", &[&key, &key, &short])
}

/// Direction, place, the other side, and for the administrator whose it is.
fn what(run: &Run, visitor: &Visitor) -> Html {
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
    if visitor.access().is_none() {
        html.put(" <small>for <bdi>{}</bdi></small>", &[&status.principal]);
    }
    html
}

/// A bar and the same in numbers.
pub(super) fn progress(progress: &Progress) -> Html {
    let done = progress.bytes_done.max(progress.bytes_moved).min(progress.bytes_found);
    let more = if progress.walk_done { "" } else { "+" };
    let mut html = Html::new();
    if progress.walk_done && progress.bytes_found > 0 {
        html.put("<progress max=\"{}\" value=\"{}\">{}</progress> ", &[&progress.bytes_found, &done, &done]);
    }
    html.put(
        "<span class=\"numbers\">{} of {}{}, {} of {}{} files</span>",
        &[
            &human(done),
            &human(progress.bytes_found),
            &more,
            &progress.files_done,
            &progress.files_found,
            &more,
        ],
    );
    html
}

fn end(outcome: &Outcome) -> Html {
    match outcome {
        Outcome::Running => Html::of("<span>runs</span>", &[]),
        Outcome::Ended => Html::of("<span>ended</span>", &[]),
        Outcome::Done { summary, .. } if summary.failed > 0 => {
            Html::of("<span class=\"partly\">{} failed</span>", &[&summary.failed])
        }
        Outcome::Done { .. } => Html::of("<span class=\"well\">well</span>", &[]),
        Outcome::Failed(error) => Html::of("<span class=\"badly\">{}</span>", &[&error.code]),
    }
}

// ---- one -------------------------------------------------------------------------------------------------------------

/// Makes the page of one, if the visitor may see it.
pub(super) fn one(site: &Arc<Site>, visitor: &Visitor, wanted: &str) -> Option<Page> {
    let run = site.runs(visitor).into_iter().find(|run| key(run) == wanted)?;
    let short = run.status.id.get(..8).unwrap_or(&run.status.id);
    Some(
        Page::new(Tab::Transfers, format!("Transfer {short}"))
            .part("how", "How it stands", stands(&run))
            .part("facts", "What it is", facts(&run, visitor))
            .part("why", "Its story", happenings(&run)),
    )
}

/// Those of one identity that this PoP took part in, if there are any.
pub(super) fn runs_of(site: &Site, visitor: &Visitor, id: &str) -> Option<Html> {
    let runs: Vec<_> = site.runs(visitor).into_iter().filter(|run| run.status.id == id).collect();
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
            html.put("<p>It has ended.</p>", &[]);
        }
        Outcome::Done { summary, failures } => {
            html.add(done(summary, failures));
        }
        Outcome::Failed(error) => {
            html.add(failed(error));
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
    let mut html = Html::of("<p class=\"well\">It came to its end.</p>", &[]);
    if summary.failed > 0 {
        html = Html::of(
            "<p class=\"partly\">It came to its end, but not all arrived; failed: {}</p><ul>",
            &[&summary.failed],
        );
        for failure in failures {
            html.put("<li><bdi>{}</bdi></li>", &[failure]);
        }
        html.put("</ul>", &[]);
    }
    html
}

/// The code, the first cause and what to do.
pub(super) fn failed(error: &Error) -> Html {
    let row = error.code.row();
    Html::of(
        "<p class=\"badly\"><strong>{}: {}</strong></p><dl class=\"facts\"><div><dt>Where</dt><dd>{}</dd></div>\
         <div><dt>Step</dt><dd>{} <bdi>{}</bdi></dd></div><div><dt>Cause</dt><dd><bdi>{}</bdi></dd></div>\
         <div><dt>What to do</dt><dd>{}</dd></div></dl>",
        &[&row.id, &row.title, &error.side, &error.op, &error.subject, &error.cause, &row.remedy],
    )
}

fn facts(run: &Run, visitor: &Visitor) -> Html {
    let mut html = Html::of("<dl class=\"facts\"><div><dt>What</dt><dd>", &[]);
    html.add(what(run, visitor)).put("</dd></div>", &[]);
    let mut fact = |name: &str, value: &dyn std::fmt::Display| {
        html.put("<div><dt>{}</dt><dd>{}</dd></div>", &[&name, value]);
    };
    fact("Identity", &run.status.id);
    fact("Began", &moment(run.began));
    fact("Lasted", &took(run));
    fact("Moved", &human(run.status.progress.bytes_moved));
    fact("Mean rate", &chart::rate(run.mean_rate()));
    html.put("</dl>", &[]);
    html
}

fn happenings(run: &Run) -> Html {
    let mut html = Html::of("<ol class=\"story\"><li><b>{}</b> it began</li>", &[&moment(run.began)]);
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
                "<li><b>after {} s</b> it came to its end: {} files with {} are there, {} of them were before; {} \
                 removed</li>",
                &[&after, files, &human(*bytes), files_skipped, deleted],
            );
        }
        Outcome::Failed(error) => {
            html.put("<li><b>after {} s</b> it failed: {}</li>", &[&after, &error.code.row().title]);
        }
    }
    html.put("</ol>", &[]);
    html
}
