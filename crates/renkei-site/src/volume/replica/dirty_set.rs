//! The dirty set of a follower: files changed by records since the last check of the pinned folders, so that a
//! record costs a check of its own files, and not of a whole folder.

use renkei_core::namespace::{Kind, Node, NodeId, Record};
use std::collections::BTreeSet;

/// Maximum files checked individually; with more of them the folders are checked in full.
const MOST: usize = 10_000;

/// Changed files of the pinned folders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DirtySet {
    /// Files with new content or a new name.
    pub(crate) files: BTreeSet<NodeId>,
    /// Whether any file may have changed.
    pub(crate) all: bool,
    /// The last record included.
    pub(crate) upto: u64,
}

impl DirtySet {
    /// Adds the changes of applied records.
    pub(crate) fn note(&mut self, records: &[Record]) {
        for record in records {
            self.upto = self.upto.max(record.seq);
            let Ok(effects) = &record.outcome else { continue };
            let node = |id: &NodeId| effects.nodes.iter().find(|(node, _)| node == id)?.1.as_ref();
            let is_new =
                |node: &Node| matches!(&node.kind, Kind::File(content) if content.version == record.seq);
            let written = effects.nodes.iter().filter(|(_, node)| node.as_ref().is_some_and(is_new));
            self.files.extend(written.map(|(id, _)| *id));
            let is_rename = effects.names.iter().any(|(_, id)| id.is_none());
            for id in effects.names.iter().filter_map(|(_, id)| id.as_ref()) {
                match node(id).is_some_and(Node::is_dir) {
                    // A renamed directory takes its descendants along.
                    true => self.all |= is_rename,
                    false => {
                        self.files.insert(*id);
                    }
                }
            }
        }
        if self.files.len() > MOST {
            (self.all, self.files) = (true, BTreeSet::new());
        }
    }

    /// Takes the changes; `upto` stays.
    pub(crate) fn take(&mut self) -> BTreeSet<NodeId> {
        self.all = false;
        std::mem::take(&mut self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::FileTime;
    use renkei_core::namespace::{Attributes, Content, Delta, Dentry, Origin, ROOT};

    fn record(seq: u64, nodes: Vec<(u64, Kind)>, names: &[(&str, Option<u64>)]) -> Record {
        let (owner, group) = (String::new(), String::new());
        let attributes = Attributes { mode: 0, owner, group, mtime: FileTime::default() };
        let node = |kind| Node { kind, attributes: attributes.clone(), links: 1, changed: seq };
        let nodes = nodes.into_iter().map(|(id, kind)| (NodeId(id), Some(node(kind)))).collect();
        let spot = |name: &str| Dentry { dir: ROOT, name: name.into() };
        let names = names.iter().map(|(name, id)| (spot(name), id.map(NodeId))).collect();
        Record { seq, origin: Origin(0), number: seq, outcome: Ok(Delta { nodes, names }) }
    }

    fn file(version: u64) -> Kind {
        Kind::File(Content { version, by: (Origin(0), version), size: 1, digest: None })
    }

    fn dir() -> Kind {
        Kind::Dir { names: 0, parent: ROOT }
    }

    #[test]
    fn new_content_and_new_names_of_files_are_examined() {
        let mut touched = DirtySet::default();
        touched.note(&[
            record(1, vec![(10, file(1))], &[("made", Some(10))]),
            record(2, vec![(11, file(1))], &[]),
            record(3, vec![(1, dir())], &[("from", None), ("to", Some(12))]),
            record(4, vec![(13, dir())], &[("folder", Some(13))]),
        ]);
        let files = [10, 12].map(NodeId).into();
        assert_eq!(touched, DirtySet { files, all: false, upto: 4 });
        touched.take();
        touched.note(&[record(5, vec![(13, dir())], &[("folder", None), ("moved", Some(13))])]);
        assert_eq!((touched.all, touched.files.len(), touched.upto), (true, 0, 5));
    }
}
