//! Errors on pages: the code, the first cause and what to do, in full or for a row of a table.

use super::html::{Facts, Html};
use renkei_core::error::Error;
use renkei_core::wire::message::EntryFailure;
use std::fmt::Display;

/// All of it.
pub(super) fn whole(error: &Error) -> Html {
    let row = error.code.row();
    let mut html = Html::of("<p class=\"badly\"><strong>{}: {}</strong></p>", &[&row.id, &row.title]);
    let mut facts = Facts::new();
    facts
        .text("Where", &error.side)
        .add("Step", Html::of("{} <bdi>{}</bdi>", &[&error.op, &error.subject]))
        .text("Cause", &error.cause)
        .text("What to do", &row.remedy);
    html.add(facts.finish());
    html
}

/// The same for a row.
pub(super) fn brief(error: &Error) -> Html {
    let row = error.code.row();
    let mut html = Html::of("<p class=\"cause\"><strong>{}: {}</strong>", &[&row.id, &row.title]);
    html.put(" <bdi>{}</bdi>", &[&step(error)]).put(" <small>{}</small></p>", &[&row.remedy]);
    html
}

/// Where it happened and why.
fn step(error: &Error) -> String {
    let side = if error.side.is_empty() { String::new() } else { format!(" at {}", error.side) };
    let cause = if error.cause.is_empty() { String::new() } else { format!(": {}", error.cause) };
    format!("{} {}{side}{cause}", error.op, error.subject)
}

/// Entries of a tree that failed, each with its code, of `failed` in all.
pub(super) fn entries(failures: &[EntryFailure], failed: u64) -> Html {
    let line = |failure: &EntryFailure| (failure.path.to_string(), short(&failure.error));
    list(failures.iter().map(line), failures.len() as u64, failed)
}

fn short(error: &Error) -> String {
    let row = error.code.row();
    match error.cause.is_empty() {
        true => format!("{}: {}", row.id, row.title),
        false => format!("{}: {} ({})", row.id, row.title, error.cause),
    }
}

fn list<P: Display, W: Display>(lines: impl Iterator<Item = (P, W)>, shown: u64, all: u64) -> Html {
    let mut html = Html::of("<ul class=\"failures\">", &[]);
    for (path, why) in lines {
        html.put("<li><bdi class=\"path\">{}</bdi> <bdi>{}</bdi></li>", &[&path, &why]);
    }
    let more = all.saturating_sub(shown);
    if more > 0 {
        html.put("<li>and {} more</li>", &[&more]);
    }
    html.put("</ul>", &[]);
    html
}
