//! Drop folders: what each forwards, its last run, and its errors.

use super::failure;
use super::html::{Html, Table, counted, text};
use super::page::{Page, Tab};
use super::transfers::encoded;
use renkei_config::Then;
use renkei_core::units::span;
use renkei_site::Site;
use renkei_site::status::inventory::DropFolder;
use renkei_site::status::view::moment;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Makes the page, for the administrator.
pub(super) fn page(site: &Arc<Site>) -> Page {
    let mut table = Table::new(&["Rule", "Folders", "State", "Last run", "Last queued"]);
    for folder in site.monitor().drop_folders_seen() {
        table.row(row(&folder));
    }
    let none = "There is no drop folder; `renkei rule add` makes one.";
    Page::new(Tab::Rules, "Drop folders").every(5).part("rules", "Rules", table.finish("Drop folders", none))
}

fn row(folder: &DropFolder) -> Vec<Html> {
    let DropFolder { name, rule, state, .. } = folder;
    let then = match rule.then {
        Then::Keep => "files stay",
        Then::Remove => "files that arrived are removed",
    };
    let mut named = text(name);
    named.put(" <small>{}; complete after {}</small>", &[&then, &span(Duration::from_secs(rule.settle_s))]);
    let looked = state
        .looked
        .map_or("not yet".into(), |at| format!("{}, {} in the folder", ago(at), files(state.files)));
    let queued = state.queued.map_or("not since the PoP started".to_owned(), |(at, number)| {
        format!("{}, {}", files(number), moment(at))
    });
    let folders =
        Html::of("<bdi class=\"path\">{}</bdi> to <bdi class=\"path\">{}</bdi>", &[&rule.from, &rule.to]);
    vec![named, folders, standing(folder), text(looked), text(queued)]
}

fn files(number: usize) -> String {
    counted(number as u64, "file", "files")
}

fn standing(folder: &DropFolder) -> Html {
    let mut html = match &folder.state.trouble {
        Some(error) => {
            let mut html = Html::of("<span class=\"badly\">fails</span>", &[]);
            html.add(failure::brief(error));
            html
        }
        None if folder.state.looked.is_none() => Html::of("<span>starting</span> ", &[]),
        None => Html::of("<span class=\"well\">works</span> ", &[]),
    };
    let link = format!("/console/transfers?label={}", encoded(&folder.label));
    let under_way = counted(folder.state.under_way as u64, "transfer", "transfers");
    html.put("<a id=\"r-{}\" href=\"{}\">{} under way</a>", &[&folder.name, &link, &under_way]);
    html
}

fn ago(at: SystemTime) -> String {
    format!("{} ago", span(at.elapsed().unwrap_or_default()))
}
