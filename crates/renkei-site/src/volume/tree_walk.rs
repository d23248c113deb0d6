//! The files of a volume at a place and below it, as the copy of its catalogue has them.

use renkei_catalogue::VolumeTree;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Content, Kind, Node, NodeId};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::message::EntryFailure;
use renkei_core::wire::volume::Tally;
use std::collections::HashSet;

/// Page size of catalogue reads and batch size of updates.
const PAGE: usize = 1000;
/// Maximum listed failures.
const MAX_LISTED: usize = 100;

/// A file of the catalogue.
pub(crate) struct WalkedFile {
    pub(crate) id: NodeId,
    pub(crate) path: RelPath,
    pub(crate) content: Content,
    pub(crate) node: Node,
}

/// Counters of files and failures.
pub(crate) trait Counts {
    /// Counts a file.
    fn count(&mut self, found: &WalkedFile);
    /// Counts a failure.
    fn fail(&mut self, path: &RelPath, error: Error);
}

impl Counts for Tally {
    fn count(&mut self, found: &WalkedFile) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(found.content.size);
    }

    fn fail(&mut self, path: &RelPath, error: Error) {
        self.failed += 1;
        if self.failures.len() < MAX_LISTED {
            self.failures.push(EntryFailure { id: None, path: path.clone(), kept: false, error });
        }
    }
}

/// The node at a path, as the home's records have it.
pub(crate) fn locate(tree: &VolumeTree, path: &RelPath) -> Result<(NodeId, Node), Error> {
    tree.at(path)?.ok_or_else(|| Error::new(Code::PathNotFound, "look up", path, ""))
}

pub(crate) fn no_volume(place: &Place) -> Error {
    Error::new(
        Code::VolumeUnknown,
        "look up volume",
        &place.storage,
        "replicas are those of volumes; this is a storage or does not exist",
    )
}

/// Calls `work` for all files at a path and below it.
pub(crate) fn each_file(
    tree: &VolumeTree,
    path: &RelPath,
    work: &mut dyn FnMut(WalkedFile) -> Result<(), Error>,
) -> Result<(), Error> {
    each_page(tree, path, &mut |page| page.into_iter().try_for_each(&mut *work))
}

/// The same, with whether the current version is held.
pub(crate) fn each_held(
    tree: &VolumeTree,
    path: &RelPath,
    work: &mut dyn FnMut(WalkedFile, bool),
) -> Result<(), Error> {
    each_page(tree, path, &mut |page| {
        if page.is_empty() {
            return Ok(());
        }
        let held = tree.held_of(&page.iter().map(|found| found.id).collect::<Vec<_>>())?;
        for found in page {
            let is_held = held.get(&found.id).is_some_and(|held| held.is_of(&found.content));
            work(found, is_held);
        }
        Ok(())
    })
}

/// Calls `work` for the files at a path and below it, page by page.
pub(crate) fn each_page(
    tree: &VolumeTree,
    path: &RelPath,
    work: &mut dyn FnMut(Vec<WalkedFile>) -> Result<(), Error>,
) -> Result<(), Error> {
    let (id, node) = locate(tree, path)?;
    if let Kind::File(content) = node.kind.clone() {
        return work(vec![WalkedFile { id, path: path.clone(), content, node }]);
    }
    let mut dirs = vec![(id, path.clone())];
    // The directories of a home's records may form a cycle.
    let mut seen = HashSet::from([id]);
    while let Some((dir, above)) = dirs.pop() {
        let mut last = None;
        loop {
            let page = tree.list(dir, last.as_ref(), PAGE)?;
            let is_last = page.len() < PAGE;
            let mut files = Vec::new();
            for (name, id, node) in page {
                // A path beyond the maximum length is unreachable.
                let Ok(path) = above.child(&name.0) else {
                    last = Some(name);
                    continue;
                };
                match node.kind.clone() {
                    Kind::Dir { .. } if seen.insert(id) => dirs.push((id, path)),
                    Kind::Dir { .. } => {}
                    Kind::File(content) => files.push(WalkedFile { id, path, content, node }),
                    Kind::Symlink { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => {}
                }
                last = Some(name);
            }
            work(files)?;
            if is_last {
                break;
            }
        }
    }
    Ok(())
}

/// Counts all files at a path and below it, and the held ones.
pub(crate) fn count(tree: &VolumeTree, path: &RelPath) -> Result<(Tally, Tally), Error> {
    let (mut all, mut held) = (Tally::default(), Tally::default());
    each_held(tree, path, &mut |found, is_held| {
        all.count(&found);
        if is_held {
            held.count(&found);
        }
    })?;
    Ok((all, held))
}
