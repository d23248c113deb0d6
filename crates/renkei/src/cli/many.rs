//! Several paths in one command: one session per site, continuing after a failure.
//!
//! A command with one path fails as that path fails. With several, each failure is printed at once (with `--json`:
//! listed under `failures`), the others continue, and the exit status is that of the failures, 23 if they differ.

use crate::cli::output::{error_json, is_reader_gone};
use crate::cli::{Context, connect};
use renkei_core::error::{Error, Kind};
use renkei_core::path::{EndpointPath, SiteName, printable};
use renkei_core::wire::message::{Reply, Request};
use renkei_mover::connect::dial::Session;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// The state of such a command.
pub(crate) struct Many<'c> {
    context: &'c Context,
    sessions: BTreeMap<SiteName, Result<Session, Error>>,
    failures: Vec<serde_json::Value>,
    status: u8,
}

impl<'c> Many<'c> {
    /// The initial state.
    pub(crate) fn new(context: &'c Context) -> Self {
        Many { context, sessions: BTreeMap::new(), failures: Vec::new(), status: 0 }
    }

    /// Does `work` on each path at a site.
    ///
    /// # Errors
    /// The failure of the only path.
    pub(crate) fn each(
        &mut self,
        paths: &[OsString],
        mut work: impl FnMut(&mut Self, &EndpointPath) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.each_argument(paths, |many, path| work(many, &connect::remote(path, many.context)?))
    }

    /// Does `work` on each argument, of any kind, until the reader of its output is gone; errors as in
    /// [`Many::each`].
    pub(crate) fn each_argument(
        &mut self,
        paths: &[OsString],
        mut work: impl FnMut(&mut Self, &OsString) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for path in paths {
            match work(self, path) {
                Err(error) if is_reader_gone(&error) => break,
                Err(error) if paths.len() == 1 => return Err(error.at("client")),
                Err(error) => self.fail(printable(path.as_bytes()), &error.at("client")),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Prints and counts a failure.
    pub(crate) fn fail(&mut self, path: String, error: &Error) {
        let mut json = error_json(error)["error"].take();
        json["path"] = path.into();
        let status = error.kind().exit_status();
        self.status = match self.failures.is_empty() || self.status == status {
            true => status,
            false => Kind::Partial.exit_status(),
        };
        self.failures.push(json);
        if !self.context.output.is_json() {
            self.context.output.error(error);
        }
    }

    /// The session with a site; one that could not be opened is not retried.
    pub(crate) fn session(&mut self, site: &SiteName) -> Result<&mut Session, Error> {
        if !self.sessions.contains_key(site) {
            self.sessions.insert(site.clone(), connect::session(self.context, site));
        }
        let session = self.sessions.get_mut(site).expect("just put there");
        session.as_mut().map_err(|error| error.clone())
    }

    /// Sends a request to a site; a lost session is reopened for the next request.
    pub(crate) fn ask(&mut self, site: &SiteName, request: Request) -> Result<Reply, Error> {
        let outcome = self.session(site)?.ask(request);
        self.keep_or_drop(site, outcome)
    }

    /// Sends a request without a result.
    pub(crate) fn ask_done(&mut self, site: &SiteName, request: Request) -> Result<(), Error> {
        match self.ask(site, request)? {
            Reply::Done => Ok(()),
            other => Err(connect::unexpected(&other)),
        }
    }

    /// Passes an outcome on and drops the session if the outcome means that it is lost.
    pub(crate) fn keep_or_drop<T>(&mut self, site: &SiteName, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome
            && error.side == "client"
        {
            self.sessions.remove(site);
        }
        outcome
    }

    /// The failures so far, as `--json` lists them.
    pub(crate) fn failures(&self) -> &[serde_json::Value] {
        &self.failures
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Output;
    use renkei_core::error::Code;

    fn context() -> Context {
        Context { output: Output::new(true, true), ..Context::default() }
    }

    fn failing(path: &OsString) -> Result<(), Error> {
        match path.to_str() {
            Some("a") => Ok(()),
            Some("b") => Err(Error::new(Code::PathNotFound, "stat", "b", "")),
            _ => Err(Error::new(Code::PermissionDenied, "stat", "c", "")),
        }
    }

    fn status(paths: &[&str]) -> Result<(u8, usize), Error> {
        let paths: Vec<OsString> = paths.iter().map(OsString::from).collect();
        let context = context();
        let mut many = Many::new(&context);
        many.each_argument(&paths, |_, path| failing(path))?;
        Ok((many.status(), many.failures().len()))
    }

    #[test]
    fn the_status_is_that_of_the_failures() {
        assert_eq!(status(&["a", "a"]).unwrap(), (0, 0));
        assert_eq!(status(&["a", "b", "a"]).unwrap(), (3, 1));
        assert_eq!(status(&["b", "b"]).unwrap(), (3, 2));
        assert_eq!(status(&["b", "c", "b"]).unwrap(), (23, 3));
        assert_eq!(status(&["b"]).unwrap_err().code, Code::PathNotFound);
    }

    #[test]
    fn a_local_path_is_no_place_at_a_site() {
        let context = context();
        let error = Many::new(&context).each(&["etc/passwd".into()], |_, _| Ok(())).unwrap_err();
        assert_eq!((error.code, error.side.as_str()), (Code::BadPath, "client"));
        assert!(error.cause.contains("SITE:/STORAGE/PATH"));
    }
}
