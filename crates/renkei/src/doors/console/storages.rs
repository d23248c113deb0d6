//! Storages and the room in them.

use super::html::{Html, Table};
use super::page::{Page, Tab};
use crate::site::Site;
use crate::site::console::Visitor;
use crate::site::rooms::Room;
use renkei_core::units::human;
use renkei_core::wire::message::Space;
use std::sync::Arc;

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    Page::new(Tab::Storages, "Storages").part("rooms", "Room", table(site, visitor))
}

/// One row for each storage.
pub(super) fn table(site: &Arc<Site>, visitor: &Visitor) -> Html {
    let mut table = Table::new(&["Storage", "Used", "Free", "Of", "Files free", "Full"]);
    for room in site.rooms(visitor.access()) {
        let name = name(&room);
        let cells = match room.space {
            _ if room.agent == Some(true) => untold("an agent serves it"),
            _ if room.agent == Some(false) => untold("its agent is not connected"),
            Some(Ok(space)) => of_space(&space),
            Some(Err(error)) => untold(&error.to_string()),
            None => untold("not known yet"),
        };
        table.row([vec![name], cells].concat());
    }
    table.finish("Room as your account has it", "There is no storage.")
}

fn name(room: &Room) -> Html {
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
            "<meter min=\"0\" max=\"100\" high=\"90\" optimum=\"0\" value=\"{}\">{}</meter> {} %",
            &[&percent, &percent, &percent],
        ),
    ]
}

fn untold(why: &str) -> Vec<Html> {
    let mut cells = vec![Html::new(); 4];
    cells.push(Html::of("{}", &[&why]));
    cells
}
