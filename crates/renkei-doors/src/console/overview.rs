//! The first page: the state of the PoP.

use super::html::Html;
use super::page::{Page, Tab};
use super::{chart, links, run, storages};
use renkei_core::units::span;
use renkei_site::Site;
use renkei_site::status::conditions::Condition;
use renkei_site::status::console::Visitor;
use renkei_site::status::view::{Overview, moment};
use renkei_site::transfer::history::Outcome;
use std::sync::Arc;

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let overview = site.monitor().overview(visitor);
    let runs = site.monitor().runs(visitor);
    let running: Vec<_> = runs.iter().filter(|run| run.outcome == Outcome::Running).collect();
    let rate: u64 = running.iter().map(|run| run.rate()).sum();
    let mut page = Page::new(Tab::Overview, format!("PoP of {}", overview.site));
    if !overview.warnings.is_empty() {
        page = page.part("warnings", "Needs attention", warnings(&overview.warnings));
    }
    page.part("pop", "This PoP", facts(&overview, running.len(), rate))
        .part("running", "Running transfers", run::running(&running, visitor))
        .part("storages", "Storages", storages::table(site, visitor))
        .part("sites", "Sites", links::drawing(site, visitor))
}

fn warnings(all: &[Condition]) -> Html {
    let mut html = Html::of("<ul class=\"warnings\">", &[]);
    for condition in all {
        let Condition { severity, found, remedy, .. } = condition;
        let (about, since) = (condition.subject(), moment(condition.since()));
        let parts: [&dyn std::fmt::Display; 4] = [&severity.name(), &about, found, &since];
        html.put("<li>{}, {}: <strong>{}</strong> <small>since {}</small><br>", &parts);
        html.add(Html::marked(remedy)).put("</li>", &[]);
    }
    html.put("</ul>", &[]);
    html
}

fn facts(overview: &Overview, running: usize, rate: u64) -> Html {
    let mut html = Html::of("<dl class=\"facts\">", &[]);
    let mut fact = |name: &str, value: &dyn std::fmt::Display| {
        html.put("<div><dt>{}</dt><dd>{}</dd></div>", &[&name, value]);
    };
    fact("Software", &overview.software);
    fact("Up for", &span(overview.uptime));
    fact("Sessions", &overview.sessions);
    fact("Transfers running", &running);
    fact("Rate now", &chart::rate(rate));
    if let Some((done, failed)) = overview.ended {
        fact("Transfers since the start", &format!("{done} done, {failed} failed"));
    }
    html.put("</dl>", &[]);
    html
}
