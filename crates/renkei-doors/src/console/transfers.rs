//! All transfers in one list: running, queued, waiting, paused and ended ones, with a filter and a search that need
//! no script.

use super::html::{Html, Table};
use super::page::{Page, Tab};
use super::{chart, failure, queued, run};
use renkei_core::queue::State;
use renkei_core::units::{hex, span};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::transfer_list::{Cursor, Entry, Wanted, state_of};
use renkei_site::status::view::moment;
use renkei_site::transfer::history::{Outcome, Run};
use serde::Deserialize;
use std::sync::Arc;

/// Maximum length of a filter's text.
const MAX_TEXT_CHARS: usize = 200;

/// The fields of the form.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Filter {
    state: String,
    label: String,
    q: String,
    before: String,
}

impl Filter {
    fn wanted(&self) -> Wanted {
        let text = |text: &str| text.trim().chars().take(MAX_TEXT_CHARS).collect::<String>();
        Wanted {
            state: State::parse(&self.state),
            label: text(&self.label),
            search: text(&self.q),
            before: Cursor::parse(&self.before),
        }
    }

    fn is_set(&self) -> bool {
        let wanted = self.wanted();
        wanted.state.is_some() || !wanted.label.is_empty() || !wanted.search.is_empty()
    }

    /// The address of the page from the cursor on, or of the first page.
    fn link(&self, before: Option<&Cursor>) -> String {
        let before = before.map(Cursor::to_string).unwrap_or_default();
        let pairs = [("state", &self.state), ("label", &self.label), ("q", &self.q), ("before", &before)];
        let set = pairs.into_iter().filter(|(_, value)| !value.is_empty());
        let query: Vec<String> = set.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        format!("/console/transfers?{}", query.join("&"))
    }
}

/// A value as it stands in a query (RFC 3986, section 2.3: all but unreserved characters are encoded).
pub(super) fn encoded(value: &str) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte))
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor, filter: &Filter) -> Page {
    let wanted = filter.wanted();
    let listed = site.monitor().transfer_page(visitor, &wanted);
    let running: Vec<Run> =
        site.monitor().runs(visitor).into_iter().filter(|run| run.outcome == Outcome::Running).collect();
    let mut html = Html::new();
    if let Some(error) = &listed.trouble {
        html.put("<p class=\"badly\">Queued transfers cannot be listed:</p>", &[]).add(failure::whole(error));
    }
    let mut table = Table::new(&["Transfer", "What", "State", "Progress", "Since", "Cause and remedy"]);
    for entry in &listed.entries {
        table.row(match entry {
            Entry::Queued(one, failures) => {
                let running = running.iter().find(|run| run.status.id == hex(&one.id));
                let mut progress = queued::progress(one);
                progress.add(running.map(pace).unwrap_or_default());
                let since = moment(queued::at(one.submitted_ms));
                let state = queued::state(one);
                let cause = queued::cause(one, failures);
                vec![
                    queued::link(one),
                    queued::what(one, visitor),
                    state,
                    progress,
                    Html::of("{}", &[&since]),
                    cause,
                ]
            }
            Entry::Run(one) => of_run(one, visitor),
        });
    }
    let none = match (filter.is_set(), &listed.older) {
        (_, Some(_)) => "None of those that were looked at fits; older ones may.",
        (true, None) => "No transfer fits.",
        (false, None) => "There is no transfer.",
    };
    html.add(table.finish("Transfers, the newest first", none)).add(paging(filter, listed.older.as_ref()));
    Page::new(Tab::Transfers, "Transfers").still("filter", "Filter", form(filter)).part("list", "List", html)
}

fn of_run(run: &Run, visitor: &Visitor) -> Vec<Html> {
    let mut progress = run::progress(&run.status.progress);
    if run.outcome == Outcome::Running {
        progress.add(pace(run));
    }
    let cause = match &run.outcome {
        Outcome::Failed(error) => failure::brief(error),
        Outcome::Done { summary, failures } if summary.failed > 0 => {
            run::failed_entries(&failures[..failures.len().min(3)], summary.failed)
        }
        _ => Html::new(),
    };
    let since = Html::of("{}", &[&moment(run.began)]);
    vec![
        run::link(run),
        run::what(run, visitor),
        queued::state_name(state_of(run), false),
        progress,
        since,
        cause,
    ]
}

/// The rate and the time left.
fn pace(run: &Run) -> Html {
    let left = run.left().map(|left| format!(", {} left", span(left))).unwrap_or_default();
    Html::of(" <span class=\"numbers\">{}{}</span>", &[&chart::rate(run.rate()), &left])
}

fn form(filter: &Filter) -> Html {
    let mut html = Html::of(
        "<form class=\"filter\" method=\"get\" action=\"/console/transfers\"><label>State <select name=\"state\">\
         <option value=\"\">all</option>",
        &[],
    );
    for state in State::ALL {
        match state.name() == filter.state {
            true => html.put("<option selected>{}</option>", &[&state.name()]),
            false => html.put("<option>{}</option>", &[&state.name()]),
        };
    }
    html.put(
        "</select></label><label>Label <input name=\"label\" value=\"{}\" maxlength=\"200\"></label><label>Search \
         <input type=\"search\" name=\"q\" value=\"{}\" maxlength=\"200\" placeholder=\"path, site, user, id or code\">\
         </label><button>Show</button> <a href=\"/console/transfers\">Show all</a></form>",
        &[&filter.label, &filter.q],
    );
    html
}

fn paging(filter: &Filter, older: Option<&Cursor>) -> Html {
    let mut html = Html::new();
    if !filter.before.is_empty() {
        html.put("<a id=\"newest\" href=\"{}\">Newest</a> ", &[&filter.link(None)]);
    }
    if let Some(older) = older {
        html.put("<a id=\"older\" href=\"{}\">Older</a>", &[&filter.link(Some(older))]);
    }
    if html.is_empty() {
        return html;
    }
    let mut nav = Html::of("<nav class=\"paging\" aria-label=\"Parts of the list\">", &[]);
    nav.add(html).put("</nav>", &[]);
    nav
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_kept_in_the_links() {
        let filter = Filter { state: "failed".into(), label: "run 7&x=\"".into(), ..Filter::default() };
        assert_eq!(filter.link(None), "/console/transfers?state=failed&label=run%207%26x%3D%22");
        let cursor = Cursor::parse("7-abc").unwrap();
        assert!(filter.link(Some(&cursor)).ends_with("&before=7-abc"));
        assert!(filter.is_set() && !Filter { state: "nonsense".into(), ..Filter::default() }.is_set());
    }
}
