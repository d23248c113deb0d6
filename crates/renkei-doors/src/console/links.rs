//! The sites that this one trusts, and the ways to them.

use super::chart;
use super::html::{Html, Table};
use super::page::{Page, Tab};
use renkei_core::units::{human, milliseconds, span};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::view::Neighbour;
use renkei_site::transfer::history::Seen;
use std::sync::Arc;
use std::time::Duration;

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let neighbours = site.monitor().neighbours(visitor);
    let drawing = match neighbours.is_empty() {
        true => Html::of("<p class=\"none\">It trusts no other site that you may see.</p>", &[]),
        false => chart::map(&site.name(), &neighbours),
    };
    Page::new(Tab::Links, "Links").part("map", "Map", drawing).part("ways", "Ways", table(&neighbours))
}

/// The map alone.
pub(super) fn drawing(site: &Arc<Site>, visitor: &Visitor) -> Html {
    let neighbours = site.monitor().neighbours(visitor);
    match neighbours.is_empty() {
        true => Html::of("<p class=\"none\">It trusts no other site that you may see.</p>", &[]),
        false => chart::map(&site.name(), &neighbours),
    }
}

fn table(neighbours: &[Neighbour]) -> Html {
    let mut table = Table::new(&[
        "Site",
        "Reached at",
        "Round trip",
        "Now to it",
        "Now from it",
        "Last to it",
        "Last from it",
        "Streams kept",
    ]);
    for neighbour in neighbours {
        let Neighbour { site, kept, rates, way, .. } = neighbour;
        let text = |text: String| Html::of("{}", &[&text]);
        table.row(vec![
            text(site.to_string()),
            place(neighbour),
            text(way.round_trip.map_or("not known".into(), milliseconds)),
            text(chart::rate(rates.0)),
            text(chart::rate(rates.1)),
            text(last(way.out)),
            text(last(way.back)),
            text(format!("{} out, {} in", kept.0, kept.1)),
        ]);
    }
    table.finish("What transfers since the PoP's start told", "There is nothing to tell.")
}

/// The endpoints of a neighbour, and whether the last attempt to reach it failed.
fn place(neighbour: &Neighbour) -> Html {
    let mut html = Html::of("{}", &[&reached(neighbour)]);
    if let Some(code) = neighbour.unreached {
        html.put(" <span class=\"badly\">not reached: {}</span>", &[&code]);
    }
    html
}

/// The endpoints, and the line (reverse connection) to or from it.
fn reached(neighbour: &Neighbour) -> String {
    let line = neighbour.line.as_ref().map(|line| {
        let up = span(Duration::from_secs(line.up_s));
        let whose = if line.kept_here { "a line kept to it" } else { "a line it keeps here" };
        format!("{whose}, up for {up}")
    });
    let all: Vec<_> = neighbour.endpoints.iter().cloned().chain(line).collect();
    match all.is_empty() {
        true => "no port, and no line is up".into(),
        false => all.join(", "),
    }
}

fn last(seen: Option<Seen>) -> String {
    match seen {
        Some(Seen { rate, bytes, ended }) => {
            format!("{}, {}, {} ago", chart::rate(rate), human(bytes), span(ended.elapsed()))
        }
        None => "none".into(),
    }
}
