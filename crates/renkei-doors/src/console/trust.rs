//! The sites that this one trusts: their authorities, endpoints, reachability and changes.

use super::failure;
use super::html::{Html, Table, text};
use super::page::{Page, Tab};
use renkei_core::units::span;
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::inventory::{CardChange, Partner, Reach};
use renkei_site::status::view::moment;
use std::sync::Arc;
use std::time::Duration;

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let page = Page::new(Tab::Trust, "Trust").every(5).part(
        "sites",
        "Sites",
        table(&site.monitor().partners_seen(visitor)),
    );
    match visitor.caller().user() {
        None => page.part("changes", "Changes of cards", changes(&site.monitor().card_changes())),
        Some(_) => page,
    }
}

fn table(partners: &[Partner]) -> Html {
    let mut table = Table::new(&["Site", "Endpoints", "Reached", "Fingerprint of the authority"]);
    for partner in partners {
        let mut name = text(&partner.site);
        if partner.is_own {
            name.put(" <small>this site</small>", &[]);
        }
        let fingerprint = Html::of("<code class=\"long\">{}</code>", &[&partner.fingerprint]);
        table.row(vec![name, text(&partner.places), reached(&partner.reach), fingerprint]);
    }
    table.finish("Sites that are trusted", "It trusts no other site that you may see.")
}

fn reached(reach: &Reach) -> Html {
    match reach {
        Reach::Own => Html::new(),
        Reach::Reached(at) => Html::of("<span class=\"well\">yes</span>, {} ago", &[&span(at.elapsed())]),
        Reach::Line(line) => Html::of(
            "<span class=\"well\">yes</span>, by a line that is up for {}",
            &[&span(Duration::from_secs(line.up_s))],
        ),
        Reach::NotTried => Html::of("not dialled since the PoP started", &[]),
        Reach::Unreached(error, condition) => {
            let since =
                condition.as_ref().map(|one| format!(" since {}", moment(one.since()))).unwrap_or_default();
            let mut html = Html::of("<span class=\"badly\">no{}</span>", &[&since]);
            html.add(failure::brief(error));
            html
        }
    }
}

fn changes(all: &[CardChange]) -> Html {
    let mut table = Table::new(&["When", "Site", "Before", "After"]);
    for change in all {
        let place = |place: &Option<String>, none: &'static str| match place {
            Some(place) => text(place),
            None => Html::of("<small>{}</small>", &[&none]),
        };
        let (before, after) = (place(&change.before, "not trusted"), place(&change.after, "trust ended"));
        table.row(vec![text(moment(change.at())), text(&change.site), before, after]);
    }
    table.finish("Cards that were added, changed and removed, the newest first", "No card has changed.")
}
