//! Third-party copies over HTTP (HTTP-TPC): COPY with `Source` or `Destination` at another server.
//!
//! The door reads the request (`request`), opens the file here for the client, and shows the progress of the copy
//! (`markers`); the copy itself is [`renkei_site::tpc`]'s. What is wrong with the file here is answered by a status, at once;
//! what goes wrong on the way is the last line of the progress. The copy is stopped when the connection is closed.
//! `delegation` takes proxies of users, which copies present to the other server.

pub(crate) mod delegation;
mod markers;
mod request;

use crate::http::activity::Activity;
use crate::webdav::error::missing_parent;
use crate::webdav::locks::refusal;
use crate::webdav::request::Target;
use crate::webdav::session::Session;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use markers::Markers;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::lease::web_locks::Claim;
use renkei_core::wire::file::Precondition;
use renkei_mover::files::workspace::Create;
use renkei_net::identity::credential::Credential;
use renkei_site::tpc::{Copy, LocalFile};
use request::{Direction, Presented, Request};
use std::slice;
use std::sync::Arc;

/// The media type of the progress.
const TYPE: &str = "text/perf-marker-stream";

/// Answers COPY between this server and another one.
pub(crate) async fn answer(session: Session, target: Target, activity: Activity) -> Result<Response, Error> {
    let mut request = Request::parse(&target)?;
    match proxy(&session, request.presented)? {
        Some(proxy) => request.copy.credential = Some(proxy),
        None if request.presented == Presented::Always => return Ok(delegation::wanted(&target)),
        None => {}
    }
    let open = move || start(session, target, request);
    match activity.run(open).await? {
        Err(refused) => Ok(refused),
        Ok(copy) => {
            let body = Body::new(Markers::new(copy, activity));
            Ok((StatusCode::ACCEPTED, [(CONTENT_TYPE, TYPE)], body).into_response())
        }
    }
}

/// The proxy that is presented to the other server, if its user has delegated one.
fn proxy(session: &Session, presented: Presented) -> Result<Option<Arc<Credential>>, Error> {
    let find = || session.site.third_party_copies().delegations.proxy(&session.proof);
    match presented {
        Presented::Never => Ok(None),
        // Users without a grid certificate delegate none.
        Presented::IfDelegated => Ok(find().ok().flatten()),
        Presented::Always => find(),
    }
}

/// Opens the file here and starts the copy; the inner error is a response.
fn start(session: Session, target: Target, request: Request) -> Result<Result<Copy, Response>, Error> {
    if target.slash {
        return Err(Error::new(Code::IsADirectory, "COPY", &target.place, "the path ends with a slash"));
    }
    let session = Arc::new(session);
    let file = match request.direction {
        Direction::Push => {
            let (files, path) = session.files(&target.place, Need::Read)?;
            let reader = files.open(&path)?;
            // A directory is no file, which is said before the copy begins.
            reader.version()?;
            LocalFile::Read(Box::new(reader))
        }
        Direction::Pull => match written(&session, target, request.copy.options.overwrites) {
            Ok(Ok(file)) => file,
            Ok(Err(refused)) => return Ok(Err(refused)),
            Err(error) => return missing_parent(error).map(Err),
        },
    };
    session.site.third_party_copies().start(&session.access, file, request.copy).map(Ok)
}

fn written(
    session: &Arc<Session>,
    target: Target,
    overwrites: bool,
) -> Result<Result<LocalFile, Response>, Error> {
    let (files, path) = session.files(&target.place, Need::Write)?;
    let condition = if overwrites { Precondition::None } else { Precondition::Absent };
    let writer = files.create(&path, Create { condition, ..Create::default() })?;
    let claim = Claim { place: target.place.clone(), is_tree: false, is_name: writer.found().links == 0 };
    if let Some(refused) = refusal(session, &target, slice::from_ref(&claim))? {
        return Ok(Err(refused));
    }
    let session = session.clone();
    let may_publish = move || match refusal(&session, &target, slice::from_ref(&claim))? {
        Some(_) => {
            Err(Error::new(Code::LockHeld, "COPY", &target.place, "it was locked while it was copied"))
        }
        None => Ok(()),
    };
    Ok(Ok(LocalFile::Written(Box::new(writer), Box::new(may_publish))))
}
