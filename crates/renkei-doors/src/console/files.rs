//! The storages and volumes whose files are open to the visitor.

use super::failure;
use super::html::{Html, Table};
use super::page::{Page, Tab, files_of_users};
use renkei_core::entry::Entry;
use renkei_core::error::Error;
use renkei_core::path::printable;
use renkei_site::Site;
use renkei_site::access::Access;
use renkei_site::status::console::Visitor;
use std::sync::{Arc, Mutex};

/// Makes the page.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let content = match visitor.caller().user().map(|access| storages(site, access)) {
        None => files_of_users(),
        Some(Err(error)) => failure::whole(&error),
        Some(Ok(all)) => table(&all),
    };
    Page::new(Tab::Files, "Files").still("places", "Storages and volumes", content)
}

fn storages(site: &Arc<Site>, access: &Access) -> Result<Vec<Entry>, Error> {
    let all: Arc<Mutex<Vec<Entry>>> = Arc::default();
    let listed = all.clone();
    let lock =
        |all: &Mutex<Vec<Entry>>, part| all.lock().expect("no thread panics with it").extend::<Vec<_>>(part);
    site.file_service().list(access, None, move |part| {
        lock(&listed, part);
        Ok(())
    })?;
    Ok(std::mem::take(&mut *all.lock().expect("no thread panics with it")))
}

fn table(all: &[Entry]) -> Html {
    let mut table = Table::new(&["Name"]);
    for entry in all {
        let name = printable(entry.path.as_bytes());
        table.row(vec![Html::of("<a href=\"/{}/\"><bdi>{}</bdi></a>", &[&name, &name])]);
    }
    table.finish("Storages and volumes", "Nothing is open to your account.")
}
