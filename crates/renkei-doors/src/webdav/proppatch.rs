//! PROPPATCH: all changes of properties, or none (RFC 4918, section 9.2).

use super::dead_properties;
use super::error::{invalid, status};
use super::locks::refusal;
use super::multistatus::{document, href, status_line};
use super::properties::is_live;
use super::request::Target;
use super::session::Session;
use super::xml::Element;
use axum::http::StatusCode;
use axum::response::Response;
use renkei_core::entry::EntryKind;
use renkei_core::error::Error;
use renkei_core::identity::Need;
use renkei_core::lease::web_locks::Claim;
use renkei_core::path::{Place, RelPath};
use renkei_mover::files::workspace::{Follow, Workspace};
use std::sync::{Mutex, PoisonError};

/// Held while properties are read and written again.
static CHANGING: Mutex<()> = Mutex::new(());

/// A change of one property.
struct Change<'a> {
    property: &'a Element,
    is_set: bool,
}

/// Answers PROPPATCH.
pub(super) fn answer(session: &Session, target: &Target, body: &[u8]) -> Result<Response, Error> {
    let root = Element::parse(body)?;
    let changes = changes(&root)?;
    let (files, path) = session.files(&target.place, Need::Write)?;
    let is_dir = files.stat(&path, Follow::Yes)?.entry.kind == EntryKind::Dir;
    let claim = Claim { place: target.place.clone(), is_tree: false, is_name: false };
    if let Some(refused) = refusal(session, target, &[claim])? {
        return Ok(refused);
    }
    let kept = match changes.iter().any(|change| is_live(&change.property.name)) {
        true => StatusCode::FAILED_DEPENDENCY,
        false => apply(&files, &path, &changes).map_or_else(|error| refused_by(&error), |()| StatusCode::OK),
    };
    Ok(told(&target.place, is_dir, &changes, kept))
}

/// The status of properties that cannot be kept: a place without attributes has no room for them.
fn refused_by(error: &Error) -> StatusCode {
    match status(error) {
        StatusCode::BAD_REQUEST => StatusCode::INSUFFICIENT_STORAGE,
        status => status,
    }
}

fn changes(root: &Element) -> Result<Vec<Change<'_>>, Error> {
    if !root.name.is_dav("propertyupdate") {
        return Err(invalid("the document is no propertyupdate"));
    }
    let mut changes = Vec::new();
    for part in root.elements().filter(|part| part.name.is_dav("set") || part.name.is_dav("remove")) {
        let is_set = part.name.is_dav("set");
        let properties = part.child("prop").ok_or_else(|| invalid("set and remove have a prop"))?;
        changes.extend(properties.elements().map(|property| Change { property, is_set }));
    }
    Ok(changes)
}

/// Applies changes in their order.
fn apply(files: &Workspace, path: &RelPath, changes: &[Change<'_>]) -> Result<(), Error> {
    let _one_at_a_time = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = dead_properties::read(files, path)?;
    for Change { property, is_set } in changes {
        all.retain(|one| one.name != property.name);
        all.extend(is_set.then(|| (*property).clone()));
    }
    dead_properties::write(files, path, &all)
}

/// The response, with the status of the properties that can be changed.
fn told(place: &Place, is_dir: bool, changes: &[Change<'_>], kept: StatusCode) -> Response {
    let parts = changes.iter().map(|Change { property, .. }| {
        let (status, why) = match is_live(&property.name) {
            true => (StatusCode::FORBIDDEN, "<D:error><D:cannot-modify-protected-property/></D:error>"),
            false => (kept, ""),
        };
        let (name, status) = (property.name.empty(), status_line(status));
        format!("<D:propstat><D:prop>{name}</D:prop>{status}{why}</D:propstat>")
    });
    let (href, parts) = (href(place, is_dir), parts.collect::<String>());
    let markup =
        format!("<D:multistatus xmlns:D=\"DAV:\"><D:response>{href}{parts}</D:response></D:multistatus>");
    document(StatusCode::MULTI_STATUS, &markup)
}
