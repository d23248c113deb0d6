//! Storages and their space, and the buffer.

use super::html::{Html, Table};
use super::page::{Page, Tab};
use renkei_core::units::hex;
use renkei_core::units::human;
use renkei_core::wire::buffer::{BufferStatus, Stage};
use renkei_core::wire::message::{Space, TransferId};
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::free_space::StorageSpace;
use std::sync::Arc;

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let page = Page::new(Tab::Storages, "Storages").part("rooms", "Room", table(site, visitor));
    match site.buffer().buffer_status(visitor.caller()) {
        Ok(buffer) => page.part("buffer", "Buffer", buffer_table(&buffer)).part(
            "pieces",
            "In the buffer",
            pieces(&buffer),
        ),
        // The PoP has no buffer.
        Err(_) => page,
    }
}

/// Use of the buffer, by owner.
fn buffer_table(buffer: &BufferStatus) -> Html {
    let mut table = Table::new(&["Whose", "Reserved", "Of"]);
    let text = |bytes| Html::of("{}", &[&human(bytes)]);
    table.row(vec![Html::of("all", &[]), text(buffer.charged), text(buffer.size)]);
    for (owner, bytes) in &buffer.owners {
        table.row(vec![named(owner), text(*bytes), text(buffer.quota)]);
    }
    table.finish("Files of queued transfers on their way", "")
}

fn named(owner: &str) -> Html {
    match owner {
        "" => Html::of("nobody", &[]),
        owner => Html::of("<bdi>{}</bdi>", &[&owner]),
    }
}

/// The transfers in the buffer, and those that wait for space.
fn pieces(buffer: &BufferStatus) -> Html {
    let mut table = Table::new(&["Transfer", "Whose", "Reserved", "There", "State"]);
    let text = |bytes| Html::of("{}", &[&human(bytes)]);
    for piece in &buffer.pieces {
        let stage = match piece.stage {
            Stage::Filling => "coming",
            Stage::Whole => "to be forwarded",
            Stage::Leaving => "being removed",
        };
        let cells = [text(piece.charged), text(piece.written), Html::of("{}", &[&stage])];
        let id = if piece.stage == Stage::Whole { linked(&piece.id) } else { plain(&piece.id) };
        table.row([vec![id, named(&piece.owner)], cells.to_vec()].concat());
    }
    for waiter in &buffer.waiting {
        let cells = [text(waiter.bytes), text(0), Html::of("waits for room", &[])];
        table.row([vec![plain(&waiter.id), named(&waiter.owner)], cells.to_vec()].concat());
    }
    table.finish("Room of each transfer", "Nothing is in the buffer.")
}

/// The id of a transfer without a link, as it may not be in the queue.
fn plain(id: &TransferId) -> Html {
    Html::of("<code>{}</code>", &[&&hex(id)[..8]])
}

fn linked(id: &TransferId) -> Html {
    let id = hex(id);
    Html::of("<a href=\"/console/queue/{}\"><code>{}</code></a>", &[&id, &&id[..8]])
}

/// One row for each storage.
pub(super) fn table(site: &Arc<Site>, visitor: &Visitor) -> Html {
    let mut table = Table::new(&["Storage", "Used", "Free", "Of", "Files free", "State"]);
    for room in site.monitor().rooms(visitor.caller()) {
        let name = name(&room);
        let cells = match room.space {
            _ if room.agent == Some(true) => untold("an agent serves it"),
            _ if room.agent == Some(false) => failed("its agent is not connected"),
            Some(Ok(space)) => of_space(&space),
            Some(Err(error)) => failed(&error.to_string()),
            None => untold("not known yet"),
        };
        table.row([vec![name], cells].concat());
    }
    table.finish("Room as your account has it", "There is no storage.")
}

fn name(room: &StorageSpace) -> Html {
    let mut name = Html::of("<bdi>{}</bdi>", &[&room.name]);
    if room.read_only {
        name.put(" <small>read-only</small>", &[]);
    }
    if let Some(path) = &room.path {
        name.put(" <small><bdi>{}</bdi></small>", &[path]);
    }
    name
}

fn of_space(space: &Space) -> Vec<Html> {
    let used = space.total_bytes.saturating_sub(space.available_bytes);
    let percent = (used as f64 * 100.0 / space.total_bytes.max(1) as f64).ceil();
    let text = |bytes| Html::of("{}", &[&human(bytes)]);
    vec![
        text(used),
        text(space.available_bytes),
        text(space.total_bytes),
        Html::of("{}", &[&space.free_files]),
        Html::of(
            "<meter min=\"0\" max=\"100\" high=\"90\" optimum=\"0\" value=\"{}\">{}</meter> {} % full",
            &[&percent, &percent, &percent],
        ),
    ]
}

fn untold(why: &str) -> Vec<Html> {
    without_room(Html::of("{}", &[&why]))
}

fn failed(why: &str) -> Vec<Html> {
    without_room(Html::of("<span class=\"badly\">{}</span>", &[&why]))
}

fn without_room(state: Html) -> Vec<Html> {
    [vec![Html::new(); 4], vec![state]].concat()
}
