//! Unfinished copies: their owners, the space they take, and removing them.

use super::failure;
use super::html::{Html, Table, counted, size, text};
use super::page::{self, Page, Tab};
use renkei_core::error::{Code, Error};
use renkei_core::wire::unfinished::{AboutUnfinished, Unfinished, UnfinishedAction, UnfinishedReply};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::view::moment;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Digits of an id that are shown.
const SHORT: usize = 8;

/// Makes the page: all copies for the administrator, the own ones for a user.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let page = Page::new(Tab::Unfinished, "Unfinished copies").every(5);
    match see_to(site, visitor, UnfinishedAction::List) {
        Ok(reply) => page.part("unfinished", "Unfinished", list(&reply.listed, visitor)),
        Err(error) => page.part("unfinished", "Unfinished", failure::whole(&error)),
    }
}

fn see_to(site: &Site, visitor: &Visitor, what: UnfinishedAction) -> Result<UnfinishedReply, Error> {
    match visitor.caller().user() {
        None => site.transfers().all_unfinished(&what),
        Some(access) => site.transfers().unfinished(access, &AboutUnfinished { storage: None, what }),
    }
}

fn list(all: &[Unfinished], visitor: &Visitor) -> Html {
    let mut table =
        Table::new(&["Copy", "To", "Whose", "Room taken", "Last written", "Kept until", "Action"]);
    for one in all {
        table.row(row(one, visitor));
    }
    let mut html = Html::of(
        "<p>A copy that was interrupted keeps what had arrived of it for seven days, and goes on from there when its \
         command is given again. Dropping frees the room; files that arrived whole stay.</p>",
        &[],
    );
    if all.iter().any(|one| !one.running) {
        html.put("<form method=\"post\" action=\"/console/unfinished/drop\">", &[])
            .add(page::token(visitor))
            .put("<button id=\"drop-all\">Drop all that do not run</button></form>", &[]);
    }
    html.add(table.finish("Copies that did not end", "Nothing is unfinished."));
    html
}

fn row(one: &Unfinished, visitor: &Visitor) -> Vec<Html> {
    let at = |ms: u64| text(moment(UNIX_EPOCH + Duration::from_millis(ms)));
    let id = Html::of("<code>{}</code>", &[&&one.id[..one.id.len().min(SHORT)]]);
    let room = format!(
        "{} in {}; arrived whole: {}",
        size(one.bytes),
        counted(one.files, "file", "files"),
        one.files_done
    );
    let kept = if one.running { Html::of("running", &[]) } else { at(one.until_ms) };
    vec![id, text(&one.to), text(&one.owner), text(room), at(one.written_ms), kept, button(one, visitor)]
}

fn button(one: &Unfinished, visitor: &Visitor) -> Html {
    if one.running {
        return Html::of("<small>it runs</small>", &[]);
    }
    let mut html = Html::of("<form method=\"post\" action=\"/console/unfinished/{}/drop\">", &[&one.id]);
    html.add(page::token(visitor)).put("<button id=\"drop-{}\">Drop</button></form>", &[&one.id]);
    html
}

/// Drops one copy, or all that do not run.
///
/// # Errors
/// `UnfinishedUnknown`, also for a copy of another owner; `UnfinishedRuns`, and errors of removing a file.
pub(super) fn drop_them(site: &Site, visitor: &Visitor, id: Option<&str>) -> Result<(), Error> {
    // An empty id is refused: no id means all copies.
    if id.is_some_and(str::is_empty) {
        return Err(Error::new(Code::UnfinishedUnknown, "look up", "", ""));
    }
    see_to(site, visitor, UnfinishedAction::Drop(id.map(str::to_owned).into_iter().collect())).map(drop)
}
