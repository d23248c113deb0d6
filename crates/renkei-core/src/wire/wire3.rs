//! Copies towards a peer of wire 3: the requests of wire 4 as it knows them.
//!
//! A PoP of wire 3 does not resolve layouts. It is sent the transfer for each kind that the destination may have
//! ([`OpenFound`]) and answers with the kind that it found. Everything here goes with wire 3, one release after wire 4;
//! only [`OpenCopy::open_found`] stays for as long as queued transfers are stored in that form.

use super::copy::{CopySender, OpenCopy};
use super::message::{Choice, Found, OpenFound, Reply, Request};
use super::{WireVersion, violation};
use crate::error::{Code, Error};
use crate::mover::layout::Placement;
use crate::path::RelPath;

/// The report of a destination, before it opens a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// What becomes of the sources.
    Placed(Placement),
    /// Its kind, from a PoP of wire 3.
    Found(Found),
}

impl Destination {
    /// Reads it from a reply that comes before `Opened` or `Granted`.
    ///
    /// # Errors
    /// `ProtocolViolation` for any other reply.
    pub fn of(reply: Reply) -> Result<Self, Error> {
        match reply {
            Reply::Placed(placement) => Ok(Destination::Placed(placement)),
            Reply::Found(found) => Ok(Destination::Found(found)),
            other => Err(violation("opening", format_args!("{other:?}"))),
        }
    }

    /// What becomes of the sources of a copy.
    ///
    /// # Errors
    /// Those of [`OpenCopy::place`].
    pub fn placement(self, copy: &OpenCopy) -> Result<Placement, Error> {
        match self {
            Destination::Placed(placement) => Ok(placement),
            Destination::Found(found) => copy.place(found).map(|placed| placed.placement),
        }
    }
}

impl Request {
    /// The oldest version of the wire that has this request.
    pub fn since(&self) -> WireVersion {
        match self {
            Request::OpenCopy { .. } | Request::PushCopy { .. } => WireVersion::V4,
            _ => WireVersion::V3,
        }
    }

    /// The request in the form of a version; it may be answered with `Found` in place of `Placed`.
    ///
    /// # Errors
    /// `VersionMismatch` if that version takes several requests for it.
    pub fn for_version(self, version: WireVersion) -> Result<Request, Error> {
        if self.since() <= version {
            return Ok(self);
        }
        match self {
            Request::OpenCopy { copy, by: CopySender::Asker } => {
                Ok(Request::OpenFound(copy.open_found(None)?))
            }
            Request::OpenCopy { copy, by: CopySender::PopFor(chain) } => {
                Ok(Request::ForUser { chain, open: copy.open_found(None)? })
            }
            Request::PushCopy { send, to, copy } => {
                let names: Vec<RelPath> = send.sources.iter().map(|source| source.to.clone()).collect();
                Ok(Request::PushFound { send, to, open: copy.open_found(Some(&names))? })
            }
            _ => Err(Error::new(Code::VersionMismatch, "ask", "peer", "it takes several requests of wire 3")),
        }
    }
}

impl OpenCopy {
    /// The transfer to open for each kind of destination, without those kinds that are refused. With `names`, those of
    /// the sources in a destination directory, each has their target names, for a PoP that sends.
    ///
    /// # Errors
    /// The error of the kind that is refused for the plainest reason, if all are.
    pub fn open_found(&self, names: Option<&[RelPath]>) -> Result<OpenFound, Error> {
        let choices = Found::ALL.map(|found| self.choice(found, names).map(|choice| (found, choice)));
        if choices.iter().all(Result::is_err) {
            let errors = || choices.iter().filter_map(|choice| choice.as_ref().err());
            let plainest = errors().find(|error| error.code == Code::SameFile).or(errors().next());
            return Err(plainest.cloned().unwrap_or_else(|| violation("copy", "no kind of destination")));
        }
        Ok(OpenFound {
            transfer: self.transfer,
            job: self.job,
            to: self.to.clone(),
            class: self.class,
            choices: choices.into_iter().filter_map(Result::ok).collect(),
            max_streams: self.max_streams,
            rules: self.rules.clone(),
        })
    }

    fn choice(&self, found: Found, names: Option<&[RelPath]>) -> Result<Choice, Error> {
        let placed = self.place(found)?;
        let targets = names.map(|names| placed.placement.targets(names, self.to.path.name()));
        Ok(Choice {
            base: placed.placement.base(&self.to.path),
            make: placed.make,
            options: self.options(placed.placement),
            targets: targets.transpose()?.unwrap_or_default(),
        })
    }
}
