//! Copies as wire 3 knows them: requests of wire 4 for older peers, and requests of older peers.
//!
//! A PoP of wire 3 does not resolve layouts. It is sent the transfer for each kind that the destination may have
//! ([`OpenFound`]) and answers with the kind that it found. Everything here goes with wire 3, one release after wire 4,
//! but what reads [`SubmissionFound`]: queued transfers were stored in that form.

use super::copy::{CopySender, OpenCopy};
use super::message::{Class, Control, DestinationKind, OpenSend, ReceiveOptions, Reply, Request, Source};
use super::queue::{Submission, Terms};
use super::volume::VolumeReply;
use super::{WireVersion, violation};
use crate::batch::batch;
use crate::error::{Code, Error};
use crate::ids::TransferId;
use crate::mover::layout::{CopyForm, CopyLayout, ResolvedLayout};
use crate::namespace::{Attributes, Change, NodeId, Record, SequencedChange};
use crate::path::{Place, RelPath, SiteName};
use serde::{Deserialize, Serialize};

/// The transfer to open for one kind of destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The path in the destination's storage that the transfer's root becomes.
    pub base: RelPath,
    /// Create the destination first, as a directory.
    pub make: bool,
    /// Options of the receiver.
    pub options: ReceiveOptions,
    /// Target names of the sources below the base, in their order, for a PoP that sends; else empty.
    pub targets: Vec<RelPath>,
}

/// Opens a transfer to a destination whose kind is looked up first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFound {
    /// Identity for logs.
    pub transfer: TransferId,
    /// Key of the job, as in [`super::message::OpenReceive`].
    pub job: u64,
    /// The destination.
    pub to: Place,
    /// As in [`super::message::OpenReceive`].
    pub class: Class,
    /// The transfers to open, by kind; a kind that is absent opens nothing.
    #[serde(deserialize_with = "batch")]
    pub choices: Vec<(DestinationKind, Choice)>,
    /// Maximum number of streams the asker wants.
    pub max_streams: u16,
    /// As in [`super::message::OpenReceive`].
    #[serde(deserialize_with = "batch")]
    pub rules: Vec<String>,
}

/// A transfer to be queued, as [`Submission`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmissionFound {
    /// The site that sends.
    pub from: SiteName,
    /// The sources; their target names are in `open`.
    pub send: OpenSend,
    /// The site that receives.
    pub to: SiteName,
    /// The transfer it opens, by the kind of the destination.
    pub open: OpenFound,
    /// The conditions of its run.
    pub terms: Terms,
}

/// The report of a destination, before it opens a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationReport {
    /// What becomes of the sources.
    Layout(CopyLayout),
    /// Its kind, from a PoP of wire 3.
    Found(DestinationKind),
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
            Request::OpenCopy { .. }
            | Request::PushCopy { .. }
            | Request::KnownChecksum { .. }
            | Request::SubmitCopies(_)
            | Request::IssueToken { .. }
            | Request::FilesFor { .. }
            | Request::Link(_)
            | Request::S3Keys(_) => WireVersion::V4,
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
                let open = copy.open_found(Some(&send.targets()))?;
                Ok(Request::PushFound { send, to, open })
            }
            Request::SubmitCopies(all) => {
                let older = all.into_iter().map(SubmissionFound::of);
                older.collect::<Result<_, _>>().map(Request::Submit)
            }
            Request::FilesFor { .. } => {
                Err(lacks("it serves no files on behalf of users, which needs wire 4"))
            }
            Request::IssueToken { .. } => Err(lacks("it issues no tokens, which need wire 4")),
            Request::Link(_) => Err(lacks("it makes no links, which need wire 4")),
            Request::S3Keys(_) => Err(lacks("it has no S3 keys, which need wire 4")),
            Request::KnownChecksum { .. } => {
                Err(lacks("it tells no remembered checksums, which need wire 4"))
            }
            _ => Err(lacks("it takes several requests of wire 3")),
        }
    }

    /// The request in its newest form.
    ///
    /// # Errors
    /// `ProtocolViolation` if its choices are those of no copy.
    pub fn lifted(self) -> Result<Request, Error> {
        Ok(match self {
            Request::OpenFound(open) => {
                Request::OpenCopy { copy: open.lifted(&[])?.0, by: CopySender::Asker }
            }
            Request::ForUser { chain, open } => {
                Request::OpenCopy { copy: open.lifted(&[])?.0, by: CopySender::PopFor(chain) }
            }
            Request::PushFound { send, to, open } => {
                let (copy, names) = open.lifted(&send.sources)?;
                Request::PushCopy { send: send.with_targets(names)?, to, copy }
            }
            Request::Submit(all) => {
                let newer = all.into_iter().map(SubmissionFound::lifted);
                Request::SubmitCopies(newer.collect::<Result<_, _>>()?)
            }
            newest => newest,
        })
    }
}

impl Reply {
    /// What becomes of the sources, in the form of a version.
    pub fn layout(layout: CopyLayout, version: WireVersion) -> Self {
        if version < WireVersion::V4 { Reply::Found(layout.found()) } else { Reply::Layout(layout) }
    }
}

impl Control {
    /// As [`Reply::layout`], of a PoP that moves for a client.
    pub fn layout(layout: CopyLayout, version: WireVersion) -> Self {
        if version < WireVersion::V4 { Control::Found(layout.found()) } else { Control::Layout(layout) }
    }
}

/// The error of a request that a peer of wire 3 does not have.
fn lacks(cause: &str) -> Error {
    Error::new(Code::VersionMismatch, "ask", "peer", cause)
}

impl VolumeReply {
    /// The reply in the form of a version: wire 3 has no extended attributes.
    #[must_use]
    pub fn for_version(mut self, version: WireVersion) -> VolumeReply {
        match &mut self {
            _ if version >= WireVersion::V4 => {}
            VolumeReply::Records { records, .. } => {
                *records = std::mem::take(records).into_iter().map(Record::without_xattrs).collect();
            }
            VolumeReply::Page(page) => page.nodes.retain(|(_, node)| !node.is_xattrs()),
            _ => {}
        }
        self
    }
}

impl SequencedChange {
    /// The change in the form of a version. A home of wire 3 keeps no extended attributes, and has to refuse them, so that
    /// this is reported: it is sent a change of a node that does not exist.
    #[must_use]
    pub fn for_version(mut self, version: WireVersion) -> SequencedChange {
        if version < WireVersion::V4 && matches!(self.change, Change::SetXattr { .. }) {
            self.change = Change::SetAttributes { id: NodeId(0), attributes: Attributes::default() };
        }
        self
    }
}

impl OpenCopy {
    /// The transfer to open for each kind of destination, without those kinds that are refused. With `names`, those of
    /// the sources in a destination directory, each has their target names, for a PoP that sends.
    ///
    /// # Errors
    /// Those of [`OpenCopy::outcomes`].
    pub fn open_found(&self, names: Option<&[RelPath]>) -> Result<OpenFound, Error> {
        let choice = |(found, resolved): (DestinationKind, ResolvedLayout)| {
            let targets = names.map(|names| resolved.layout.targets(names, self.to.path.name()));
            let choice = Choice {
                base: resolved.layout.base(&self.to.path),
                make: resolved.make,
                options: self.options(resolved.layout),
                targets: targets.transpose()?.unwrap_or_default(),
            };
            Ok((found, choice))
        };
        Ok(OpenFound {
            transfer: self.transfer,
            job: self.job,
            to: self.to.clone(),
            class: self.class,
            choices: self.outcomes()?.into_iter().map(choice).collect::<Result<_, Error>>()?,
            max_streams: self.max_streams,
            rules: self.rules.clone(),
        })
    }
}

impl OpenFound {
    /// The copy that has these choices, and the names of its sources in a destination directory.
    ///
    /// # Errors
    /// `ProtocolViolation` if no copy has them.
    fn lifted(&self, sources: &[Source]) -> Result<(OpenCopy, Vec<RelPath>), Error> {
        let names = self.names(sources)?;
        let named = self.choices.iter().any(|(_, choice)| !choice.targets.is_empty());
        // Of the forms that have all of the choices, the one with the fewest others.
        let others = |form| {
            let copy = self.copy(form)?;
            let open = copy.open_found(named.then_some(&*names)).ok()?;
            let has_all = self.choices.iter().all(|choice| open.choices.contains(choice));
            has_all.then_some((open.choices.len(), copy))
        };
        let forms = (0..8_u8).map(|bits| CopyForm {
            contents: bits & 1 > 0,
            directory: bits & 2 > 0,
            resumed: bits & 4 > 0,
        });
        let (_, copy) = forms
            .filter_map(others)
            .min_by_key(|(count, _)| *count)
            .ok_or_else(|| violation("copy", "its choices are those of no copy"))?;
        Ok((copy, names))
    }

    /// The names of the sources in a destination directory: those of the choice that goes into it, else their own.
    fn names(&self, sources: &[Source]) -> Result<Vec<RelPath>, Error> {
        let mut into = self.choices.iter().filter(|(_, choice)| choice.base == self.to.path);
        match into.next() {
            Some((_, choice)) => Ok(choice.targets.clone()),
            None => {
                let own = |source: &Source| RelPath::parse(source.from.path.name().unwrap_or_default());
                sources.iter().map(own).collect()
            }
        }
    }

    fn copy(&self, form: CopyForm) -> Option<OpenCopy> {
        let (_, first) = self.choices.first()?;
        let delete = self.choices.iter().any(|(_, choice)| choice.options.delete);
        Some(OpenCopy {
            transfer: self.transfer,
            job: self.job,
            to: self.to.clone(),
            form,
            beside: Vec::new(),
            options: ReceiveOptions { delete, ..first.options.clone() },
            class: self.class,
            max_streams: self.max_streams,
            rules: self.rules.clone(),
        })
    }
}

impl SubmissionFound {
    fn of(newer: Submission) -> Result<Self, Error> {
        let open = newer.copy.open_found(Some(&newer.send.targets()))?;
        let Submission { from, send, to, terms, .. } = newer;
        Ok(SubmissionFound { from, send, to, open, terms })
    }

    /// The same as it is submitted today.
    ///
    /// # Errors
    /// `ProtocolViolation` if its choices are those of no copy.
    pub fn lifted(self) -> Result<Submission, Error> {
        let (copy, names) = self.open.lifted(&self.send.sources)?;
        let SubmissionFound { from, send, to, terms, .. } = self;
        Ok(Submission { from, send: send.with_targets(names)?, to, copy, terms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Xattr;
    use crate::namespace::memory::MemoryTree;
    use crate::namespace::tree::{Clash, decide};
    use crate::namespace::{Delta, Kind, Node, Origin};
    use crate::wire::copy::MAX_SOURCES;
    use crate::wire::message::{Algorithm, Existing};

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
        let into = (DestinationKind::Dir, choice("in/new", false, true, "run7"));
        let becomes = |found| (found, choice("in", false, false, "new"));
        assert_eq!(
            choices(false),
            [into.clone(), becomes(DestinationKind::Other), becomes(DestinationKind::Nothing)]
        );
        assert_eq!(choices(true), [into, (DestinationKind::Nothing, choice("in/new", true, true, "run7"))]);
        let beside = vec![(place("/data/in/new"), rel(""))];
        let itself = OpenCopy { beside, ..copy(true) }.open_found(None);
        assert_eq!(itself.unwrap_err().code, Code::SameFile);
    }

    #[test]
    fn a_copy_with_too_many_sources_is_refused_for_every_kind() {
        let beside = |count| vec![(place("/data/run7"), rel("run7")); count];
        let resolved = |count| OpenCopy { beside: beside(count), ..copy(true) }.resolve(DestinationKind::Dir);
        assert!(resolved(MAX_SOURCES).is_ok());
        assert_eq!(resolved(MAX_SOURCES + 1).unwrap_err().code, Code::TooManyEntries);
    }

    #[test]
    fn wire_3_is_told_of_no_extended_attributes() {
        let (origin, number) = (Origin(1), 7);
        let id = origin.id(1);
        let node = |kind| Node { kind, attributes: Attributes::default(), links: 0, changed: 3 };
        let file = node(Kind::Merged { into: id });
        let xattrs = node(Kind::Xattrs(vec![Xattr { name: b"user.a".to_vec(), value: Vec::new() }]));
        let nodes = vec![(id, Some(file)), (id.xattrs(), Some(xattrs))];
        let record = |nodes| {
            let outcome = Ok(Delta { nodes, names: Vec::new() });
            VolumeReply::Records { records: vec![Record { seq: 3, origin, number, outcome }], last: 3 }
        };
        let reply = record(nodes.clone());
        assert_eq!(reply.clone().for_version(WireVersion::V4), reply);
        assert_eq!(reply.for_version(WireVersion::V3), record(nodes[..1].to_vec()));
        let change = Change::SetXattr { id, name: b"user.a".to_vec(), value: None };
        let made = SequencedChange { origin, number, change };
        assert_eq!(made.clone().for_version(WireVersion::V4), made);
        let older = made.for_version(WireVersion::V3);
        let refused = decide(&MemoryTree::default(), 1, &older, Clash::AsWanted).unwrap_err();
        assert_eq!((older.number, refused.code), (number, Code::PathNotFound));
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
        let older_push = Request::PushFound { send, to, open: open(Some(&[rel("run7")])) };
        assert_eq!(older(push.clone()), Ok(older_push.clone()));
        assert_eq!(older_push.lifted(), Ok(push));
        assert_eq!(older(Request::Whoami), Ok(Request::Whoami));
        let known = Request::KnownChecksum { place: place("/data/a"), algorithm: Algorithm::Md5 };
        assert_eq!(known.clone().for_version(WireVersion::V4), Ok(known.clone()));
        assert_eq!(older(known).unwrap_err().code, Code::VersionMismatch);
    }

    fn submission(from: &str, to: &str, form: CopyForm, dry_run: bool) -> Submission {
        let site = |name| SiteName::parse(name).unwrap();
        let source = Source { from: place(from), to: rel("run7"), alone: false };
        let options = ReceiveOptions { dry_run, ..copy(true).options };
        let copy = OpenCopy { to: place(to), form, options, ..copy(true) };
        let send = OpenSend::plain([7; 16], vec![source]);
        Submission { from: site("kek"), send, to: site("titech"), copy, terms: Terms::default() }
    }

    #[test]
    fn what_an_older_program_asks_is_the_copy_it_means() {
        for bits in 0..16_u8 {
            let form = CopyForm { directory: bits & 1 > 0, contents: bits & 2 > 0, resumed: bits & 4 > 0 };
            for to in ["/data/in/new", "/data"] {
                let newer = submission("/raw/run7", to, form, bits & 8 > 0);
                let older = SubmissionFound::of(newer.clone()).unwrap();
                let lifted = older.clone().lifted().unwrap();
                assert_eq!(SubmissionFound::of(lifted.clone()), Ok(older), "{form:?}");
                // Other forms have the same choices as a plainer one.
                let is_told_apart = !(form.resumed || form.directory && form.contents);
                if is_told_apart && to != "/data" {
                    assert_eq!(lifted, newer);
                }
                let open = newer.copy.open_found(None).unwrap();
                let lifted = Request::OpenFound(open.clone()).lifted().unwrap();
                assert_eq!(lifted.for_version(WireVersion::V3), Ok(Request::OpenFound(open)), "{form:?}");
            }
        }
    }

    #[test]
    fn kinds_that_an_older_program_refused_change_no_name() {
        let form = CopyForm { directory: false, contents: false, resumed: false };
        let mut older = SubmissionFound::of(submission("/data/x/run7", "/data/x", form, false)).unwrap();
        older.open.choices.retain(|(found, _)| *found != DestinationKind::Dir);
        assert_eq!(older.lifted().unwrap().send.targets(), [rel("run7")]);
    }

    #[test]
    fn choices_of_no_copy_are_refused() {
        let refused = |choices| {
            let open = OpenFound { choices, ..copy(true).open_found(None).unwrap() };
            assert_eq!(Request::OpenFound(open).lifted().unwrap_err().code, Code::ProtocolViolation);
        };
        refused(Vec::new());
        refused(vec![(DestinationKind::Nothing, choice("elsewhere", false, false, "new"))]);
        refused(vec![(DestinationKind::Nothing, choice("in", false, false, "other"))]);
        refused(vec![(DestinationKind::Other, choice("in/new", false, true, "run7"))]);
    }

    #[test]
    fn an_older_program_is_told_a_kind_with_the_same_layout() {
        let told =
            |layout| match (Reply::layout(layout, WireVersion::V3), Control::layout(layout, WireVersion::V3))
            {
                (Reply::Found(found), Control::Found(same)) if found == same => found,
                other => panic!("{other:?}"),
            };
        let layouts = [CopyLayout::Into, CopyLayout::As, CopyLayout::WouldGoInto];
        assert_eq!(
            layouts.map(told),
            [DestinationKind::Dir, DestinationKind::Nothing, DestinationKind::Nothing]
        );
        assert_eq!(Reply::layout(CopyLayout::As, WireVersion::V4), Reply::Layout(CopyLayout::As));
    }
}
