//! Errors on pages: the code, the first cause and what to do, in full or for a row of a table.

use super::html::{Facts, Html};
use renkei_core::error::Error;
use renkei_core::remedy;
use renkei_core::wire::message::EntryFailure;
use std::collections::BTreeMap;

/// The whole error.
pub(crate) fn whole(error: &Error) -> Html {
    let row = error.code.row();
    let mut html = Html::of("<p class=\"badly\"><strong>{}: {}</strong></p>", &[&row.id, &row.title]);
    let mut facts = Facts::new();
    if !error.side.is_empty() {
        facts.text("Where", &error.side);
    }
    facts.add("Step", Html::of("{} <bdi>{}</bdi>", &[&error.op, &error.subject]));
    if !error.cause.is_empty() {
        facts.text("Cause", &error.cause);
    }
    facts.add("What to do", Html::marked(&remedy::of(error)));
    html.add(facts.finish());
    html
}

/// The error in brief, for a row of a table.
pub(super) fn brief(error: &Error) -> Html {
    let row = error.code.row();
    let mut html = Html::of("<p class=\"cause\"><strong>{}: {}</strong>", &[&row.id, &row.title]);
    html.put(" <bdi>{}</bdi> <small>", &[&step(error)])
        .add(Html::marked(&remedy::of(error)))
        .put("</small></p>", &[]);
    html
}

/// The step, side and cause of an error.
fn step(error: &Error) -> String {
    let side = if error.side.is_empty() { String::new() } else { format!(" at {}", error.side) };
    let cause = error.cause_beyond(error.code.row().title);
    let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
    format!("{} {}{side}{cause}", error.op, error.subject)
}

/// Entries of a tree that failed, each with its code, of `failed` in all; and the remedy for each code.
pub(super) fn entries(failures: &[EntryFailure], failed: u64) -> Html {
    let mut html = Html::of("<ul class=\"failures\">", &[]);
    let mut remedies = BTreeMap::new();
    for EntryFailure { path, error, .. } in failures {
        remedies.insert(error.code.row().id, remedy::of(error));
        html.put("<li><bdi class=\"path\">{}</bdi> <bdi>{}</bdi></li>", &[path, &short(error)]);
    }
    let more = failed.saturating_sub(failures.len() as u64);
    if more > 0 {
        html.put("<li>and {} more</li>", &[&more]);
    }
    html.put("</ul>", &[]);
    for (code, remedy) in remedies {
        html.put("<p class=\"cause\"><small>{}: ", &[&code])
            .add(Html::marked(&remedy))
            .put("</small></p>", &[]);
    }
    html
}

fn short(error: &Error) -> String {
    let row = error.code.row();
    match error.cause_beyond(row.title) {
        "" => format!("{}: {}", row.id, row.title),
        cause => format!("{}: {} ({cause})", row.id, row.title),
    }
}
