//! A volume at a site that follows it: names and metadata from the copy of the catalogue, content from plain files of
//! this site where it holds the version that is asked for, else from a site that does.
//!
//! Guarantee: no question about names and metadata leaves the site. Non-goal: writing, which is done at the home.

use crate::catalogue::VolumeTree;
use crate::store::{Detail, Dir, Listed, Listing, Raw, ReadFile, Space, Store, TypeHint, WriteFile};
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Content, Kind, Name, Node, NodeId, ROOT, Spot};
use renkei_core::path::RelPath;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Names read from the catalogue at once.
const PAGE: usize = 1000;
/// Nodes that came with names and were not asked for yet, kept at most.
const MAX_SEEN: usize = 16 * PAGE;
/// Links followed on the way to one directory, as Linux has it.
const MAX_LINKS: u32 = 40;

/// Opens a file's content wherever it is.
pub trait Fetch: Send + Sync {
    /// Opens this version, which says that it is as `stamp`; or another one, which says what it is.
    ///
    /// # Errors
    /// Why no site that has it can be asked.
    fn open(
        &self,
        path: &RelPath,
        id: NodeId,
        content: &Content,
        stamp: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error>;
}

/// A followed volume, for one asker.
#[derive(Clone)]
pub struct FollowedStore(Arc<Followed>);

struct Followed {
    tree: Arc<VolumeTree>,
    /// The same for all directories of the volume, and no device's.
    device: u64,
    fetch: Arc<dyn Fetch>,
    /// Where it is written.
    home: String,
}

impl FollowedStore {
    /// A volume whose home is at `home`.
    pub fn new(tree: Arc<VolumeTree>, id: &[u8; 16], fetch: Arc<dyn Fetch>, home: String) -> Self {
        let device = u64::from_be_bytes(*id.first_chunk().expect("16 bytes are more than 8"));
        FollowedStore(Arc::new(Followed { tree, device, fetch, home }))
    }

    fn open(&self, id: NodeId, path: RelPath) -> Arc<dyn Dir> {
        Arc::new(FollowedDir { volume: self.0.clone(), id, path, seen: Arc::default() })
    }
}

impl Followed {
    fn child(&self, dir: NodeId, name: &[u8], path: &RelPath) -> Result<(NodeId, Node), Error> {
        let at = Spot { dir, name: Name(name.to_vec()) };
        let found = self.tree.child(&at).map_err(|error| error.under(&path.to_string()))?;
        found.ok_or_else(|| Error::new(Code::PathNotFound, "open", shown(path, name), ""))
    }

    fn node(&self, id: NodeId, path: &RelPath) -> Result<Node, Error> {
        self.tree.node(id)?.ok_or_else(|| Error::new(Code::PathNotFound, "open", path, "removed meanwhile"))
    }

    fn parent(&self, id: NodeId) -> Option<NodeId> {
        match self.tree.node(id).ok()??.kind {
            Kind::Dir { parent, .. } if id != ROOT => Some(parent),
            _ => None,
        }
    }
}

fn shown(path: &RelPath, name: &[u8]) -> String {
    path.child(name).map_or_else(|_| String::from_utf8_lossy(name).into(), |path| path.to_string())
}

fn not_a_directory(path: &RelPath, name: &[u8]) -> Error {
    Error::new(Code::NotADirectory, "open directory", shown(path, name), "")
}

impl Store for FollowedStore {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        Ok(self.open(ROOT, RelPath::root()))
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let mut todo: Vec<Vec<u8>> = names(path.as_bytes()).rev().collect();
        let (mut id, mut links) = (ROOT, 0);
        while let Some(name) = todo.pop() {
            if name == b".." {
                let outside = || Error::new(Code::OutsideStorage, "open directory", path, "a link leads out");
                id = self.0.parent(id).ok_or_else(outside)?;
                continue;
            }
            let (child, node) = self.0.child(id, &name, path)?;
            match node.kind {
                Kind::Dir { .. } => id = child,
                Kind::File(_) => return Err(not_a_directory(path, b"")),
                Kind::Symlink { target } if target.starts_with(b"/") => {
                    return Err(Error::new(Code::OutsideStorage, "open directory", path, "a link leads out"));
                }
                Kind::Symlink { target } => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Error::new(Code::BadPath, "open directory", path, "too many links"));
                    }
                    todo.extend(names(&target).rev());
                }
            }
        }
        Ok(self.open(id, path.clone()))
    }

    fn space(&self, _path: &RelPath) -> Result<Space, Error> {
        Ok(Space::default())
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
}

/// What a file shows as long as it has this content.
pub fn stamp(id: NodeId, content: &Content, mtime: FileTime) -> Stamp {
    Stamp { size: content.size, mtime, ctime: mtime, ino: id.0 }
}

type Seen = HashMap<Vec<u8>, (NodeId, Node)>;

struct FollowedDir {
    volume: Arc<Followed>,
    id: NodeId,
    path: RelPath,
    /// What a listing told beside the names: whoever lists mostly asks for each entry next.
    seen: Arc<Mutex<Seen>>,
}

impl FollowedDir {
    fn find(&self, name: &[u8]) -> Result<(NodeId, Node), Error> {
        let seen = self.seen.lock().expect("no thread panics while it holds the lock").remove(name);
        seen.map_or_else(|| self.volume.child(self.id, name, &self.path), Ok)
    }

    fn opened(&self, id: NodeId, path: RelPath) -> Arc<dyn Dir> {
        FollowedStore(self.volume.clone()).open(id, path)
    }

    fn told(&self, path: RelPath, id: NodeId, node: Node) -> (Entry, Raw) {
        let Node { kind, attributes, links, .. } = node;
        let mtime = attributes.mtime;
        let (size, kind) = match kind {
            Kind::Dir { .. } => (0, EntryKind::Dir),
            Kind::Symlink { target } => (target.len() as u64, EntryKind::Symlink { target }),
            Kind::File(content) => {
                (content.size, EntryKind::File { stamp: stamp(id, &content, mtime), sparse: false })
            }
        };
        let (mode, owner, group) = (attributes.mode, attributes.owner, attributes.group);
        let raw = Raw {
            ino: id.0,
            dev: self.volume.device,
            nlink: links.into(),
            blocks: size.div_ceil(512),
            ctime: mtime,
            ..Raw::default()
        };
        (Entry { path, meta: Meta { mode, mtime, owner, group, xattrs: Vec::new() }, kind }, raw)
    }

    fn refused<T>(&self, op: &str, name: &[u8]) -> Result<T, Error> {
        let cause = format!("it is followed here; change it at its home, {}", self.volume.home);
        Err(Error::new(Code::ReadOnlyStorage, op, shown(&self.path, name), cause))
    }
}

impl Dir for FollowedDir {
    fn path(&self) -> &RelPath {
        &self.path
    }

    fn device(&self) -> u64 {
        self.volume.device
    }

    fn lineage(&self) -> Vec<(u64, u64)> {
        let above = std::iter::successors(Some(self.id), |id| self.volume.parent(*id));
        above.take(crate::store::MAX_LINEAGE).map(|id| (self.volume.device, id.0)).collect()
    }

    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
        let (id, node) = self.find(name)?;
        if !node.is_dir() {
            return Err(not_a_directory(&self.path, name));
        }
        Ok(self.opened(id, self.path.child(name)?))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let mut id = self.id;
        for name in names(path.as_bytes()) {
            let (child, node) = self.volume.child(id, &name, &self.path)?;
            if !node.is_dir() {
                return Err(not_a_directory(&self.path, &name));
            }
            id = child;
        }
        Ok(self.opened(id, self.path.join(path)?))
    }

    fn list(&self) -> Result<Listing, Error> {
        let (volume, seen) = (self.volume.clone(), self.seen.clone());
        Ok(Box::new(Names {
            volume,
            dir: self.id,
            seen,
            page: Vec::new().into_iter(),
            last: None,
            over: false,
        }))
    }

    fn entry(&self, name: &[u8], _detail: Detail) -> Result<(Entry, Raw), Error> {
        let (id, node) = self.find(name)?;
        Ok(self.told(self.path.child(name)?, id, node))
    }

    fn self_entry(&self, _detail: Detail) -> Result<(Entry, Raw), Error> {
        Ok(self.told(self.path.clone(), self.id, self.volume.node(self.id, &self.path)?))
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        let (id, node) = self.find(name)?;
        match node.kind {
            Kind::File(content) => {
                let stamp = stamp(id, &content, node.attributes.mtime);
                self.volume.fetch.open(&self.path.child(name)?, id, &content, stamp)
            }
            Kind::Dir { .. } => Err(Error::new(Code::IsADirectory, "open", shown(&self.path, name), "")),
            Kind::Symlink { .. } => {
                Err(Error::new(Code::SpecialFile, "open", shown(&self.path, name), "a symbolic link"))
            }
        }
    }

    fn create_temp(&self, name: &[u8], _keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        self.refused("create", name)
    }

    fn open_direct(&self, _name: &[u8]) -> Option<Box<dyn WriteFile>> {
        None
    }

    fn rename(&self, from: &[u8], _to_dir: &dyn Dir, _to: &[u8]) -> Result<(), Error> {
        self.refused("rename", from)
    }

    fn rename_no_replace(&self, from: &[u8], _to_dir: &dyn Dir, _to: &[u8]) -> Result<(), Error> {
        self.refused("rename", from)
    }

    fn mkdir(&self, name: &[u8], _mode: u32) -> Result<(), Error> {
        match self.find(name) {
            Ok(_) => Err(Error::new(Code::PathExists, "make directory", shown(&self.path, name), "")),
            Err(_) => self.refused("make directory", name),
        }
    }

    fn symlink(&self, _target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.refused("make link", name)
    }

    fn hard_link(&self, name: &[u8], _to_dir: &dyn Dir, _to: &[u8]) -> Result<(), Error> {
        self.refused("make link", name)
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.refused("remove", name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.refused("remove", name)
    }

    fn set_meta(&self, name: &[u8], _meta: &Meta) -> Result<Vec<Error>, Error> {
        self.refused("set metadata", name)
    }

    fn set_own_meta(&self, _meta: &Meta) -> Result<Vec<Error>, Error> {
        self.refused("set metadata", b"")
    }

    fn is_locked(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn unlock(&self) -> Result<(), Error> {
        self.refused("unlock", b"")
    }

    fn sync_file(&self, _name: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn sync_fs(&self) -> Result<(), Error> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The names of a directory, page by page.
struct Names {
    volume: Arc<Followed>,
    dir: NodeId,
    seen: Arc<Mutex<Seen>>,
    page: std::vec::IntoIter<Listed>,
    last: Option<Name>,
    over: bool,
}

impl Names {
    fn turn(&mut self) -> Result<(), Error> {
        let page = self.volume.tree.list(self.dir, self.last.as_ref(), PAGE)?;
        self.over = page.len() < PAGE;
        self.last = page.last().map(|(name, ..)| name.clone());
        let mut seen = self.seen.lock().expect("no thread panics while it holds the lock");
        if seen.len() > MAX_SEEN {
            seen.clear();
        }
        let listed = page.into_iter().map(|(Name(name), id, node)| {
            let hint = match node.kind {
                Kind::Dir { .. } => TypeHint::Dir,
                Kind::File(_) => TypeHint::File,
                Kind::Symlink { .. } => TypeHint::Symlink,
            };
            seen.insert(name.clone(), (id, node));
            Listed { name, hint, ino: id.0 }
        });
        self.page = listed.collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl Iterator for Names {
    type Item = Result<Listed, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(listed) = self.page.next() {
                return Some(Ok(listed));
            }
            if self.over {
                return None;
            }
            if let Err(error) = self.turn() {
                self.over = true;
                return Some(Err(error));
            }
        }
    }
}
