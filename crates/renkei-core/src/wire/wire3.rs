//! Copies towards a peer of wire 3: the requests of wire 4 as it knows them.
//!
//! A PoP of wire 3 does not resolve layouts. It is sent the transfer for each kind that the destination may have
//! ([`OpenFound`]) and answers with the kind that it found. Everything here goes with wire 3, one release after wire 4;
//! only [`OpenCopy::open_found`] stays for as long as queued transfers are stored in that form.

use super::copy::{CopySender, OpenCopy};
use super::message::{Choice, OpenFound, Reply, Request};
use super::{WireVersion, violation};
use crate::error::{Code, Error};
use crate::mover::layout::{CopyLayout, Found};
use crate::path::RelPath;

/// The report of a destination, before it opens a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationReport {
    /// What becomes of the sources.
    Layout(CopyLayout),
    /// Its kind, from a PoP of wire 3.
    Found(Found),
}

impl DestinationReport {
    /// Reads it from a reply that comes before `Opened` or `Granted`.
    ///
    /// # Errors
    /// `ProtocolViolation` for any other reply.
    pub fn of(reply: Reply) -> Result<Self, Error> {
        match reply {
            Reply::Layout(layout) => Ok(DestinationReport::Layout(layout)),
            Reply::Found(found) => Ok(DestinationReport::Found(found)),
            other => Err(violation("opening", format_args!("{other:?}"))),
        }
    }

    /// What becomes of the sources of a copy.
    ///
    /// # Errors
    /// Those of [`OpenCopy::resolve`].
    pub fn layout(self, copy: &OpenCopy) -> Result<CopyLayout, Error> {
        match self {
            DestinationReport::Layout(layout) => Ok(layout),
            DestinationReport::Found(found) => copy.resolve(found).map(|resolved| resolved.layout),
        }
    }
}

impl Request {
    /// The oldest version of the wire that has this request.
    pub fn since(&self) -> WireVersion {
        match self {
            Request::OpenCopy { .. } | Request::PushCopy { .. } | Request::KnownChecksum { .. } => {
                WireVersion::V4
            }
            _ => WireVersion::V3,
        }
    }

    /// The request in the form of a version; it may be answered with `Found` in place of `Layout`.
    ///
    /// # Errors
    /// `VersionMismatch` if that version takes several requests for it, or has none.
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
            Request::KnownChecksum { .. } => {
                Err(lacks("it tells no remembered checksums, which need wire 4"))
            }
            _ => Err(lacks("it takes several requests of wire 3")),
        }
    }
}

/// The error of a request that a peer of wire 3 does not have.
fn lacks(cause: &str) -> Error {
    Error::new(Code::VersionMismatch, "ask", "peer", cause)
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
        let resolved = self.resolve(found)?;
        let targets = names.map(|names| resolved.layout.targets(names, self.to.path.name()));
        Ok(Choice {
            base: resolved.layout.base(&self.to.path),
            make: resolved.make,
            options: self.options(resolved.layout),
            targets: targets.transpose()?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::layout::CopyForm;
    use crate::path::Place;
    use crate::wire::copy::MAX_SOURCES;
    use crate::wire::message::Algorithm;
    use crate::wire::message::{Class, Existing, OpenSend, ReceiveOptions, Source};

    fn place(text: &str) -> Place {
        Place::parse(text.as_bytes()).unwrap().unwrap()
    }

    fn rel(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn copy(directory: bool) -> OpenCopy {
        OpenCopy {
            transfer: [7; 16],
            job: 7,
            to: place("/data/in/new"),
            form: CopyForm { directory, contents: false, resumed: false },
            beside: Vec::new(),
            options: ReceiveOptions { delete: true, ..ReceiveOptions::plain(Existing::Replace) },
            class: Class::Normal,
            max_streams: 1,
            rules: Vec::new(),
        }
    }

    fn choice(base: &str, make: bool, delete: bool, target: &str) -> Choice {
        let options = ReceiveOptions { delete, ..ReceiveOptions::plain(Existing::Replace) };
        Choice { base: rel(base), make, options, targets: vec![rel(target)] }
    }

    #[test]
    fn a_copy_has_a_choice_for_each_kind_that_is_not_refused() {
        let choices = |directory| copy(directory).open_found(Some(&[rel("run7")])).unwrap().choices;
        let into = (Found::Dir, choice("in/new", false, true, "run7"));
        let becomes = |found| (found, choice("in", false, false, "new"));
        assert_eq!(choices(false), [into.clone(), becomes(Found::Other), becomes(Found::Nothing)]);
        assert_eq!(choices(true), [into, (Found::Nothing, choice("in/new", true, true, "run7"))]);
        let beside = vec![(place("/data/in/new"), rel(""))];
        let itself = OpenCopy { beside, ..copy(true) }.open_found(None);
        assert_eq!(itself.unwrap_err().code, Code::SameFile);
    }

    #[test]
    fn a_copy_with_too_many_sources_is_refused_for_every_kind() {
        let beside = |count| vec![(place("/data/run7"), rel("run7")); count];
        let resolved = |count| OpenCopy { beside: beside(count), ..copy(true) }.resolve(Found::Dir);
        assert!(resolved(MAX_SOURCES).is_ok());
        assert_eq!(resolved(MAX_SOURCES + 1).unwrap_err().code, Code::TooManyEntries);
    }

    #[test]
    fn newer_requests_have_a_form_of_wire_3_or_none() {
        let by = |by| Request::OpenCopy { copy: copy(true), by };
        let older = |request: Request| request.for_version(WireVersion::V3);
        let open = |names: Option<&[RelPath]>| copy(true).open_found(names).unwrap();
        assert_eq!(older(by(CopySender::Asker)), Ok(Request::OpenFound(open(None))));
        let chain = vec![vec![48]];
        let for_user = Request::ForUser { chain: chain.clone(), open: open(None) };
        assert_eq!(older(by(CopySender::PopFor(chain))), Ok(for_user));
        let to = crate::path::SiteName::parse("kek").unwrap();
        let granted = older(by(CopySender::Site(to.clone())));
        assert_eq!(granted.unwrap_err().code, Code::VersionMismatch);
        let source = Source { from: place("/data/run7"), to: rel("run7"), alone: false };
        let send = OpenSend::plain([7; 16], vec![source]);
        let push = Request::PushCopy { send: send.clone(), to: to.clone(), copy: copy(true) };
        assert_eq!(push.clone().for_version(WireVersion::V4), Ok(push.clone()));
        assert_eq!(older(push), Ok(Request::PushFound { send, to, open: open(Some(&[rel("run7")])) }));
        assert_eq!(older(Request::Whoami), Ok(Request::Whoami));
        let known = Request::KnownChecksum { place: place("/data/a"), algorithm: Algorithm::Md5 };
        assert_eq!(known.clone().for_version(WireVersion::V4), Ok(known.clone()));
        assert_eq!(older(known).unwrap_err().code, Code::VersionMismatch);
    }
}
