//! The formats of the values in columns.
//!
//! A format that changes gets a reader for its new version at the end of its list, and keeps those before
//! ([`renkei_core::format`](mod@renkei_core::format)).

use super::database::DatabaseError;
use renkei_core::error::Code;
use renkei_core::format::Format;
use renkei_core::namespace::{Change, Kind, Node, Record, SequencedChange};
use renkei_core::queue::Job;
use renkei_core::wire::decode;
use renkei_core::wire::message::{EntryFailure, Progress};
use renkei_core::wire::queue::Attempt;
use serde::Serialize;

/// A value in a column.
pub(super) trait Stored: Serialize + Sized + 'static {
    /// Its format.
    const FORMAT: Format<Self>;

    /// The oldest version that has the value, in which it is written: earlier versions of renkei read it.
    fn version(&self) -> u8 {
        Self::FORMAT.version()
    }
}

impl Stored for Job {
    const FORMAT: Format<Self> = Format::numbered("course of a transfer", &[decode]);
}

impl Stored for Progress {
    const FORMAT: Format<Self> = Format::numbered("progress of a transfer", &[decode]);
}

impl Stored for Attempt {
    const FORMAT: Format<Self> = Format::numbered("attempt of a transfer", &[decode]);
}

impl Stored for EntryFailure {
    const FORMAT: Format<Self> = Format::numbered("failed file of a transfer", &[decode]);
}

impl Stored for Node {
    const FORMAT: Format<Self> = Format::numbered("node of a volume", &[decode, decode]);

    /// Version 2 has extended attributes.
    fn version(&self) -> u8 {
        if matches!(self.kind, Kind::Xattrs(_)) { 2 } else { 1 }
    }
}

impl Stored for Record {
    const FORMAT: Format<Self> = Format::numbered("record of a volume", &[decode, decode]);

    fn version(&self) -> u8 {
        let nodes = self.outcome.iter().flat_map(|effects| &effects.nodes);
        nodes.filter_map(|(_, node)| Some(node.as_ref()?.version())).max().unwrap_or(1)
    }
}

impl Stored for SequencedChange {
    const FORMAT: Format<Self> = Format::numbered("change of a volume", &[decode, decode]);

    fn version(&self) -> u8 {
        if matches!(self.change, Change::SetXattr { .. }) { 2 } else { 1 }
    }
}

/// The bytes of a value for a column.
pub(super) fn pack<T: Stored>(value: &T) -> Vec<u8> {
    T::FORMAT.encode_as(value.version(), value)
}

/// The value of a column.
pub(super) fn unpack<T: Stored>(bytes: &[u8]) -> Result<T, DatabaseError> {
    T::FORMAT.decode(bytes).map_err(|error| match error.code {
        Code::FormatNewer => DatabaseError::Newer(error),
        _ => DatabaseError::Invalid(error.cause),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeldReplica;
    use crate::tree_pages::Coming;
    use renkei_core::entry::{FileTime, Stamp, Xattr};
    use renkei_core::error::Error;
    use renkei_core::format::check;
    use renkei_core::namespace::page::{Extent, Reached};
    use renkei_core::namespace::{
        Attributes, Base, Beside, Change, Content, Delta, Dentry, Kind, NewKind, NodeId, Origin, RemovedName,
    };
    use renkei_core::path::RelPath;
    use renkei_core::queue::{Requested, State};
    use renkei_core::wire::message::{DestinationKind, Summary};

    /// Values as earlier versions wrote them, one a line.
    const RECORDED: &str = include_str!("../tests/formats.txt");

    /// Each version of a kind has the value in the same bytes.
    fn recorded<T: Stored + Clone + PartialEq + std::fmt::Debug>(name: &str, value: T) {
        check(RECORDED, name, &T::FORMAT, &vec![value; T::FORMAT.version().into()]);
    }

    fn time() -> FileTime {
        FileTime { secs: 1_700_000_000, nanos: 999_999_999 }
    }

    fn error() -> Error {
        Error::new(Code::PathNotFound, "open", "/data/run7", "os error 2").at("kek")
    }

    fn failure() -> EntryFailure {
        let path = RelPath::parse(b"a/b").unwrap();
        EntryFailure { id: Some(300), path, kept: true, error: error() }
    }

    fn attributes() -> Attributes {
        Attributes { mode: 0o4755, owner: "alice".into(), group: "users".into(), mtime: time() }
    }

    fn at(name: &str) -> Dentry {
        Dentry { dir: NodeId(5), name: name.into() }
    }

    fn node(kind: Kind) -> Node {
        Node { kind, attributes: attributes(), links: 2, changed: 300 }
    }

    fn kinds() -> [Kind; 5] {
        let content = Content { size: 1 << 40, digest: Some([8; 32]), by: (Origin(3), 4), version: 9 };
        [
            Kind::Dir { names: 3, parent: NodeId(1) },
            Kind::File(content),
            Kind::Symlink { target: b"/x".to_vec() },
            Kind::Merged { into: NodeId(6) },
            Kind::Xattrs(vec![Xattr { name: b"user.a".to_vec(), value: vec![0, 255] }]),
        ]
    }

    fn changes() -> Vec<Change> {
        let (id, time) = (NodeId(u64::MAX), time());
        let beside = Beside { id: NodeId(7), at: at("f"), attributes: attributes() };
        let seen = Some(RemovedName { id: NodeId(7), content: Some(Base::Version(3)) });
        vec![
            Change::Make { id, at: at("f"), kind: NewKind::File, attributes: attributes(), keep_both: true },
            Change::Link { id, at: at("f"), time },
            Change::Remove { at: at("f"), seen, time },
            Change::RemoveDir { at: at("d"), time },
            Change::Rename { from: at("f"), to: at("g"), replace: true, seen: None, time },
            Change::SetAttributes { id, attributes: attributes() },
            Change::SetContent {
                id,
                base: Base::Own(5),
                size: 7,
                digest: Some([8; 32]),
                mtime: time,
                beside: Some(beside),
            },
            Change::SetXattr { id, name: b"user.a".to_vec(), value: Some(vec![0, 255]) },
        ]
    }

    #[test]
    fn transfers_are_read_and_written_as_ever() {
        let progress = Progress {
            files_found: 1,
            bytes_found: 2,
            walk_done: true,
            files_done: 3,
            bytes_done: 4,
            bytes_moved: 5,
        };
        let summary =
            Summary { files: 1, bytes: 1 << 50, failed: 1, failures: vec![failure()], ..Summary::default() };
        let job = Job {
            state: State::Partial,
            reason: Some(error()),
            next_ms: Some(1),
            attempts: 2,
            in_vain: 3,
            found: Some(DestinationKind::Dir),
            wish: Some(Requested::Cancel),
            ended_ms: Some(5),
            summary: Some(summary),
            ..Job::submitted(4, 1_700_000_000_000)
        };
        let attempt = Attempt {
            number: 1,
            started_ms: 2,
            ended_ms: Some(3),
            bytes_moved: 4,
            files_done: 5,
            error: Some(error()),
        };
        recorded("course", job);
        recorded("progress", progress);
        recorded("attempt", attempt);
        recorded("failure", failure());
    }

    #[test]
    fn trees_are_read_and_written_as_ever() {
        for (kind, number) in kinds().into_iter().zip(0..) {
            recorded(&format!("node-{number}"), node(kind));
        }
        for (change, number) in changes().into_iter().zip(0..) {
            let name = format!("change-{number}");
            recorded(&name, SequencedChange { origin: Origin(300), number: 7, change });
        }
        let nodes =
            vec![(NodeId(5), Some(node(Kind::Dir { names: 1, parent: NodeId(1) }))), (NodeId(6), None)];
        let names = vec![(at("f"), Some(NodeId(7))), (at("g"), None)];
        for (name, outcome) in [("record", Ok(Delta { nodes, names })), ("refused", Err(error()))] {
            recorded(name, Record { seq: 300, origin: Origin(2), number: 3, outcome });
        }
        let stamp = Stamp { size: 3, mtime: time(), ctime: time(), ino: 77 };
        recorded("replica", HeldReplica { version: 1 << 63, stamp, digest: Some([8; 32]) });
        let extent = Extent { seq: 1, taken: [(Origin(2), 3)].into(), given: [(Origin(2), 4)].into() };
        recorded("pages", Coming { extent, until: 5, next: Reached::Name(at("f")) });
    }

    #[test]
    fn only_values_with_extended_attributes_are_of_the_version_that_has_them() {
        let versions: Vec<u8> = kinds().into_iter().map(|kind| pack(&node(kind))[0]).collect();
        assert_eq!(versions, [1, 1, 1, 1, 2]);
        let record = |kind| {
            let nodes = vec![(NodeId(5), Some(node(kind))), (NodeId(6), None)];
            let outcome = Ok(Delta { nodes, names: Vec::new() });
            pack(&Record { seq: 300, origin: Origin(2), number: 3, outcome })[0]
        };
        assert_eq!(kinds().map(record), [1, 1, 1, 1, 2]);
        let change = |change| pack(&SequencedChange { origin: Origin(300), number: 7, change })[0];
        assert_eq!(changes().into_iter().map(change).filter(|version| *version == 2).count(), 1);
    }

    #[test]
    fn a_mark_is_read_and_written_as_ever() {
        check(RECORDED, "mark", crate::MARK.format(), &[(300, [8; 32])]);
    }

    #[test]
    fn a_newer_value_is_an_error_that_says_so() {
        let newer = Node::FORMAT.encode_as(3, &"x");
        assert!(
            matches!(unpack::<Node>(&newer), Err(DatabaseError::Newer(error)) if error.code == Code::FormatNewer)
        );
        assert!(matches!(unpack::<Node>(&[1]), Err(DatabaseError::Invalid(_))));
    }
}
