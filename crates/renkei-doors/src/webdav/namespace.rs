//! DELETE, MKCOL and MOVE.

use super::request::Target;
use super::{Session, empty};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_mover::Stop;
use renkei_mover::files::workspace::{Follow, Replace};

/// Executes a change.
pub(super) fn change(session: &Session, method: &Method, target: &Target) -> Result<Response, Error> {
    match method.as_str() {
        "DELETE" => delete(session, target),
        "MKCOL" => make_collection(session, target),
        _ => rename(session, target),
    }
}

/// A directory is removed with all that is in it (RFC 4918, section 9.6.1).
fn delete(session: &Session, target: &Target) -> Result<Response, Error> {
    let Session { site, access } = session;
    site.file_service().remove(access, &target.place, true, &Stop::default())?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn make_collection(session: &Session, target: &Target) -> Result<Response, Error> {
    let (files, path) = session.files(&target.place, Need::Write)?;
    match files.mkdir(&path, 0o755) {
        Ok(_) => Ok(empty(StatusCode::CREATED)),
        // RFC 4918, section 9.3.1.
        Err(error) if error.code == Code::PathExists => Ok(empty(StatusCode::METHOD_NOT_ALLOWED)),
        Err(error) if error.code == Code::PathNotFound => Ok(empty(StatusCode::CONFLICT)),
        Err(error) => Err(error),
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
    let existing = files.stat(path, Follow::No);
    let replace = if target.keeps_existing() { Replace::No } else { Replace::Yes };
    if existing.as_ref().is_ok_and(|item| item.entry.kind == EntryKind::Dir) && replace == Replace::Yes {
        return Err(Error::new(Code::PathExists, "MOVE", &to, "a directory is not replaced"));
    }
    match files.rename(from, path, replace) {
        Ok(()) if existing.is_ok() => Ok(empty(StatusCode::NO_CONTENT)),
        Ok(()) => Ok(empty(StatusCode::CREATED)),
        // The parent of the destination is missing (RFC 4918, section 9.9.4).
        Err(error) if error.code == Code::PathNotFound && files.stat(from, Follow::No).is_ok() => {
            Ok(empty(StatusCode::CONFLICT))
        }
        Err(error) => Err(error),
    }
}
