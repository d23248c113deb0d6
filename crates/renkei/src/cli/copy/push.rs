//! Copies between sites, which the source's PoP pushes.

use super::transfer::Run;
use crate::cli::connect;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::copy::CopySender;
use renkei_core::wire::message::{Control, Request, Summary};
use renkei_core::wire::violation;
use renkei_core::wire::wire3::DestinationReport;
use renkei_mover::connect::dial::{DialHints, Session};
use renkei_mover::connect::slow_connect::SlowConnectReporter;
use std::fs::File;

impl Run<'_> {
    /// Has the source's PoP push, in the name of the user's own site if that is the source's, else with a grant of the
    /// destination.
    pub(super) fn between(
        &self,
        from: &SiteName,
        to: &SiteName,
        connected: &mut bool,
    ) -> Result<Summary, Error> {
        if let Some(summary) = self.push_as_own_user(from, to, connected)? {
            return Ok(summary);
        }
        // A connection counts as established when both sessions are open.
        let copy = self.open_copy()?;
        let request = Request::OpenCopy { copy: copy.clone(), by: CopySender::Site(from.clone()) };
        let ahead = DialHints { streams: 0, sends: false, request: Some(request) };
        let (layout, grant) = self.connect(to, &ahead)?.grant_copy(&copy, from)?;
        let _marker = self.keep_intent(layout)?;
        let targets = layout.targets(&self.names()?, copy.to.path.name())?;
        let push = Request::Push { send: self.open_send(false, targets)?, to: to.clone(), grant };
        let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
        let session = self.connect(from, &ahead)?;
        *connected = true;
        self.push(session, push, |_| Ok(None))
    }

    /// Has the user's own site request the push in the user's name; `None` if it may not, and the user must request
    /// it.
    fn push_as_own_user(
        &self,
        from: &SiteName,
        to: &SiteName,
        connected: &mut bool,
    ) -> Result<Option<Summary>, Error> {
        // Its word does not count where the destination knows the user by a certificate of its own.
        if from == to || self.dialler.has_credential_at(to) || connect::own_site(self.context)? != *from {
            return Ok(None);
        }
        let copy = self.open_copy()?;
        let send = self.open_send(false, self.names()?)?;
        let push = Request::PushCopy { send, to: to.clone(), copy: copy.clone() };
        let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
        let session = self.connect(from, &ahead)?;
        let mut found = false;
        let patience = SlowConnectReporter::new(&connect::tell());
        patience
            .trying(format!("{to} does not answer {from} yet; `renkei route {from} {to}` tests the ways"));
        let mut patience = Some(patience);
        let pushed = self.push(session, push, |destination| {
            (*connected, patience, found) = (true, None, true);
            self.keep_intent(destination.layout(&copy)?)
        });
        match pushed {
            Err(error) if !found && wants_the_user(error.code) => Ok(None),
            pushed => pushed.map(Some),
        }
    }

    /// Follows a push to its end; `on_layout` gets the report of its destination, and its result is held meanwhile.
    fn push(
        &self,
        mut session: Session,
        push: Request,
        mut on_layout: impl FnMut(DestinationReport) -> Result<Option<File>, Error>,
    ) -> Result<Summary, Error> {
        let mut _marker = None;
        session.push(push, &self.watch, &self.stop, &mut |message| {
            match message {
                Control::Layout(layout) => _marker = on_layout(DestinationReport::Layout(layout))?,
                Control::Found(found) => _marker = on_layout(DestinationReport::Found(found))?,
                Control::Removed(paths) => self.watch.note_removed(paths),
                Control::Arrived(paths) => self.watch.note_arrived(paths),
                // The summary lists the first of them.
                Control::Failures(_) => {}
                other => return Err(violation("push", format_args!("{other:?}"))),
            }
            Ok(())
        })
    }
}

/// Whether a PoP that may not ask in the user's name, or does not know how, leaves it to the user.
fn wants_the_user(code: Code) -> bool {
    matches!(code, Code::NotAllowed | Code::ProtocolViolation)
}
