//! A cache of the paths of directories, by node number.

use renkei_catalogue::VolumeTree;
use renkei_core::error::Error;
use renkei_core::namespace::{Dentry, NodeId, ROOT};
use renkei_core::path::RelPath;
use std::collections::{HashMap, HashSet};

/// Paths of directories in a tree, as far as they were looked up.
pub(crate) struct NodePaths<'t> {
    tree: &'t VolumeTree,
    known: HashMap<NodeId, Option<RelPath>>,
    /// Last names of directories that are not in the tree any more.
    gone: HashMap<NodeId, Dentry>,
}

/// Directories with their names, the lowest first, and the path of the parent of the last one.
type Climbed = (Vec<(NodeId, Dentry)>, Option<RelPath>);

impl<'t> NodePaths<'t> {
    /// The paths in a tree, and of directories that were removed from it.
    pub(crate) fn of_tree(tree: &'t VolumeTree, gone: HashMap<NodeId, Dentry>) -> Self {
        NodePaths { tree, known: HashMap::new(), gone }
    }

    /// The path of a name; none if its directory is not known, or if the path is too long: a hostile site may nest
    /// directories deeper than a path can hold, and no plain file is there.
    pub(crate) fn of(&mut self, spot: &Dentry) -> Result<Option<RelPath>, Error> {
        Ok(self.of_dir(spot.dir)?.and_then(|dir| dir.child(&spot.name.0).ok()))
    }

    /// The path of a directory.
    pub(crate) fn of_dir(&mut self, dir: NodeId) -> Result<Option<RelPath>, Error> {
        if dir == ROOT {
            return Ok(Some(RelPath::root()));
        }
        if let Some(known) = self.known.get(&dir) {
            return Ok(known.clone());
        }
        let (above, mut path) = self.climb(dir)?;
        for (dir, spot) in above.into_iter().rev() {
            path = path.and_then(|path| path.child(&spot.name.0).ok());
            self.known.insert(dir, path.clone());
        }
        self.known.entry(dir).or_insert(None);
        Ok(self.known[&dir].clone())
    }

    /// The names of a directory and of its ancestors whose paths are not cached, and the path above them; none if the
    /// root is not reached, as in a cycle of directories.
    fn climb(&self, dir: NodeId) -> Result<Climbed, Error> {
        let (mut above, mut seen, mut at) = (Vec::new(), HashSet::new(), dir);
        while at != ROOT {
            if let Some(known) = self.known.get(&at) {
                return Ok((above, known.clone()));
            }
            let named = self.tree.names_of(&[at])?.remove(&at).and_then(|mut names| names.pop());
            match named.or_else(|| self.gone.get(&at).cloned()) {
                Some(spot) if seen.insert(at) => {
                    let next = spot.dir;
                    above.push((at, spot));
                    at = next;
                }
                _ => return Ok((above, None)),
            }
        }
        Ok((above, Some(RelPath::root())))
    }
}
