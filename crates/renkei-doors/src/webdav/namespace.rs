//! DELETE, MKCOL, MOVE and COPY.

use super::copy;
use super::error::missing_parent;
use super::locks::refusal;
use super::multistatus::empty;
use super::request::Target;
use super::session::Session;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::lease::web_locks::Claim;
use renkei_core::path::{Place, RelPath};
use renkei_mover::Stop;
use renkei_mover::files::workspace::Replace;

/// Executes a change, if no lock forbids it.
pub(super) fn change(session: &Session, method: &Method, target: &Target) -> Result<Response, Error> {
    if let Some(refused) = refusal(session, target, &claims(method, target)?)? {
        return Ok(refused);
    }
    match method.as_str() {
        "DELETE" => delete(session, target),
        "MKCOL" => make_collection(session, target),
        "COPY" => copy::answer(session, target),
        _ => rename(session, target),
    }
}

/// What a method changes.
fn claims(method: &Method, target: &Target) -> Result<Vec<Claim>, Error> {
    let claim = |place: &Place| Claim { place: place.clone(), is_tree: true, is_name: true };
    Ok(match method.as_str() {
        "COPY" => vec![claim(&target.destination()?)],
        "MOVE" => vec![claim(&target.place), claim(&target.destination()?)],
        _ => vec![claim(&target.place)],
    })
}

/// A directory is removed with all that is in it (RFC 4918, section 9.6.1).
fn delete(session: &Session, target: &Target) -> Result<Response, Error> {
    let files = session.site.file_service();
    files.remove(&session.access, &target.place, true, &Stop::default())?;
    files.web_locks().forget_below(&target.place);
    Ok(empty(StatusCode::NO_CONTENT))
}

fn make_collection(session: &Session, target: &Target) -> Result<Response, Error> {
    if target.has_body() {
        return Ok(empty(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let (files, path) = session.files(&target.place, Need::Write)?;
    match files.mkdir(&path, 0o755) {
        Ok(_) => Ok(empty(StatusCode::CREATED)),
        // RFC 4918, section 9.3.1.
        Err(error) if error.code == Code::PathExists => Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
        Err(error) => missing_parent(error),
    }
}

fn rename(session: &Session, target: &Target) -> Result<Response, Error> {
    let to = target.destination()?;
    if to.storage != target.place.storage {
        let cause = format!("{to} is in another storage");
        return Err(Error::new(Code::CrossDevice, "MOVE", &target.place, cause));
    }
    let root = Place { storage: to.storage.clone(), path: RelPath::root() };
    let files = session.site.files(&session.access, &root, Need::Write)?;
    let (from, path) = (&target.place.path, &to.path);
    let item = copy::lstat(&files, from)?;
    let was_there = copy::make_room(session, target, &to, item.entry.kind == EntryKind::Dir)?;
    let replace = if target.keeps_existing() { Replace::No } else { Replace::Yes };
    match files.rename(from, path, replace) {
        Ok(()) => {
            session.site.file_service().web_locks().forget_below(&target.place);
            Ok(empty(if was_there { StatusCode::NO_CONTENT } else { StatusCode::CREATED }))
        }
        Err(error) => missing_parent(error),
    }
}
