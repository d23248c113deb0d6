//! Certificates: those of the PoP, of the web and of authorities, and those that this site's authority issued and
//! revoked.

use super::failure;
use super::html::{Html, Table, text};
use super::page::{Page, Tab};
use renkei_core::units::span;
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use renkei_site::status::inventory::{Inventory, Mount, OwnCertificate};
use renkei_site::status::view::moment;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Maximum rows of a table.
const MAX_ROWS: usize = 200;
/// Before its end a certificate is shown as one that expires soon.
const SOON: Duration = Duration::from_secs(7 * 86_400);

/// Makes the page: all certificates for the administrator, the own ones for a user.
pub(super) fn page(site: &Arc<Site>, visitor: &Visitor) -> Page {
    let mut page = Page::new(Tab::Certificates, "Certificates");
    if visitor.caller().is_administrator() {
        page = page.still("own", "Of this PoP and of authorities", own(&site.monitor().own_certificates()));
    }
    match site.monitor().issued_certificates(visitor) {
        Ok(inventory) => {
            page = page.still("issued", "Issued by this site", issued(&inventory)).still(
                "revoked",
                "Revoked",
                revoked(&inventory),
            );
        }
        Err(error) => page = page.still("issued", "Issued by this site", failure::whole(&error)),
    }
    match site.monitor().mounts_seen(visitor) {
        Ok(all) => page.still("mounts", "Mounts", mounts(&all)),
        Err(error) => page.still("mounts", "Mounts", failure::whole(&error)),
    }
}

fn own(all: &[OwnCertificate]) -> Html {
    let mut table = Table::new(&["Certificate", "Valid until", "Hosts or fingerprint", "Serial"]);
    for one in all {
        let until = one.until.map_or(Html::of("not known", &[]), until);
        table.row(vec![text(&one.name), until, long(&one.about), long(&one.serial)]);
    }
    table.finish("Certificates in use", "There is none.")
}

fn long(value: &str) -> Html {
    Html::of("<code class=\"long\">{}</code>", &[&value])
}

fn until(end: SystemTime) -> Html {
    match end.duration_since(SystemTime::now()) {
        Ok(left) if left < SOON => {
            Html::of("{} <span class=\"partly\">in {}</span>", &[&moment(end), &span(left)])
        }
        Ok(left) => Html::of("{} <small>in {}</small>", &[&moment(end), &span(left)]),
        Err(_) => Html::of("{} <span class=\"badly\">ended</span>", &[&moment(end)]),
    }
}

/// The end of a certificate that its holder renews, often within hours.
fn short_lived(end: SystemTime) -> Html {
    let left = end.duration_since(SystemTime::now()).unwrap_or_default();
    Html::of("{} <small>in {}</small>", &[&moment(end), &span(left)])
}

fn issued(inventory: &Inventory) -> Html {
    let mut table = Table::new(&["Principal", "Valid until", "Certificates", "Serial of the last"]);
    for holder in inventory.holders.iter().take(MAX_ROWS) {
        let (end, serial) = &holder.until;
        table.row(vec![text(&holder.principal), short_lived(*end), text(holder.count), long(serial)]);
    }
    let mut html = table.finish("Valid certificates by principal", "None is valid now.");
    html.add(more(inventory.holders.len()));
    if inventory.delegated > 0 {
        html.put("<p>And {} credentials of queued transfers and mounts.</p>", &[&inventory.delegated]);
    }
    html
}

fn more(all: usize) -> Html {
    match all.saturating_sub(MAX_ROWS) {
        0 => Html::new(),
        more => Html::of("<p>And {} more.</p>", &[&more]),
    }
}

fn revoked(inventory: &Inventory) -> Html {
    let mut table = Table::new(&["Serial", "When", "Principal"]);
    for (one, whose) in inventory.revoked.iter().take(MAX_ROWS) {
        let whose =
            whose.as_ref().map_or("not on record: a mount's grant, or of before".into(), ToString::to_string);
        table.row(vec![long(&one.serial), text(moment(one.moment)), text(whose)]);
    }
    let mut html = table.finish("Certificates that were revoked, the newest first", "None was revoked.");
    html.add(more(inventory.revoked.len()));
    html
}

fn mounts(all: &[Mount]) -> Html {
    let mut table = Table::new(&["Mount", "User", "Granted", "Valid until"]);
    for one in all.iter().take(MAX_ROWS) {
        let end = one.until.map_or(Html::of("not known", &[]), short_lived);
        table.row(vec![text(&one.name), text(&one.user), text(moment(one.since)), end]);
    }
    table.finish("Mounts with credentials of their own", "No mount has a credential of its own.")
}
