//! Opens sessions for the verbs that work on other sites.

use super::Context;
use crate::config::Config;
use crate::home::Home;
use crate::identity::credential::Credential;
use crate::identity::trust::Trust;
use crate::mover::dial::{Dialler, Session};
use renkei_core::error::Error;
use renkei_core::path::{EndpointPath, SiteName};
use renkei_core::wire::message::Reply;
use renkei_core::wire::violation;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// A dialler that shows this user's credential.
pub(super) fn dialler(context: &Context) -> Result<Dialler, Error> {
    let home = context.home()?;
    let credential = Credential::user(&home, context.now())?;
    let silence = Config::load(&home)?.stall_timeout();
    Dialler::new(&credential, Arc::new(Trust::load(&home)?), silence)
}

/// A session with `site`, and the site's revocation list taken over.
pub(super) fn session(context: &Context, site: &SiteName) -> Result<Session, Error> {
    let session = dialler(context)?.connect(site)?;
    keep_revocations(&context.home()?, &session);
    Ok(session)
}

/// Keeps the newest revocation list the site sent, if it is good.
pub(super) fn keep_revocations(home: &Home, session: &Session) {
    if session.welcome.crl.is_empty() {
        return;
    }
    let merged =
        Trust::load(home).and_then(|mut trust| trust.merge_crl(session.site(), &session.welcome.crl));
    if let Err(error) = merged {
        tracing::debug!(%error, "revocation list not kept");
    }
}

/// Takes an argument that must name a place at a site.
pub(super) fn remote(argument: &OsStr) -> Result<EndpointPath, Error> {
    let path = EndpointPath::parse(argument.as_bytes())?;
    path.ok_or_else(|| {
        let shown = renkei_core::path::printable(argument.as_bytes());
        Error::new(renkei_core::error::Code::BadPath, "parse path", shown, "write SITE:/STORAGE/PATH")
    })
}

/// A reply that does not fit its request.
pub(super) fn unexpected(reply: &Reply) -> Error {
    violation("reply", format_args!("{reply:?}"))
}
