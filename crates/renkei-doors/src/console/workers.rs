//! The background threads.

use super::failure;
use super::html::{Html, Table, text};
use super::page::{Page, Tab};
use renkei_core::units::{milliseconds, span};
use renkei_site::Site;
use renkei_site::status::view::moment;
use renkei_site::workers::Worker;
use std::sync::Arc;
use std::time::Duration;

/// A turn that lasts longer is highlighted.
const LONG: Duration = Duration::from_secs(60);

/// Makes the page, for the administrator.
pub(super) fn page(site: &Arc<Site>) -> Page {
    let mut table = Table::new(&["Worker", "Task", "State", "Last turn", "Took", "Turns"]);
    for worker in site.monitor().workers() {
        table.row(row(&worker));
    }
    let html = table.finish("Threads that work in the background", "None has begun.");
    Page::new(Tab::Workers, "Workers").every(2).part("workers", "Background work", html)
}

fn row(worker: &Worker) -> Vec<Html> {
    let ended = worker.ended.map_or("not yet".into(), moment);
    let took = worker.ended.map_or(String::new(), |_| milliseconds(worker.took));
    vec![
        text(&worker.name),
        Html::marked(&worker.task),
        state(worker),
        text(ended),
        text(took),
        text(worker.turns),
    ]
}

fn state(worker: &Worker) -> Html {
    match (&worker.trouble, worker.busy) {
        (_, Some(busy)) if busy > LONG => {
            Html::of("<span class=\"badly\">in one turn for {}</span>", &[&span(busy)])
        }
        (Some(error), _) => {
            let mut html = Html::of("<span class=\"badly\">in trouble</span>", &[]);
            html.add(failure::brief(error));
            html
        }
        (None, Some(_)) => Html::of("<span>working</span>", &[]),
        (None, None) => Html::of("<span class=\"well\">idle</span>", &[]),
    }
}
