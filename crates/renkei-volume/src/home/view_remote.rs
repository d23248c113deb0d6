//! The view of remote content, for users of a volume at its home.
//!
//! Names, sizes and times are the catalogue's; content is read at the site that has it; names are changed in the
//! catalogue by the reconciler, at once. Permissions are those of a local file that is owned by the volume's account.

use super::corrupt::is_spoiled;
use super::remote_content::{Wanted, away_content};
use super::view::VolumeDir;
use crate::Volume;
use crate::follower::view::stamp;
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Change, Content, Dentry, Kind, Name, Node, NodeId, ROOT};
use renkei_core::path::RelPath;
use renkei_store::temp::{is_temp_name, temp_name};
use renkei_store::{Detail, Listed, Listing, Raw, ReadFile, TypeHint};
use std::collections::HashSet;

/// Names read from the catalogue at once.
const PAGE: usize = 1000;
/// Mode bit for reading by others.
const OTHERS_READ: u32 = 0o004;
/// Key of the temporary name that probes whether names in a directory may be changed.
const PROBE: u64 = 0x7072_6f62_6500;

/// A remote file.
pub(crate) struct AwayFile {
    pub(crate) at: Dentry,
    pub(crate) id: NodeId,
    pub(crate) node: Node,
    pub(crate) content: Content,
    stamp: Stamp,
    /// Whether the plain file exists and is corrupt.
    pub(crate) is_wrong: bool,
}

impl AwayFile {
    /// The entry of the file, as the catalogue has it.
    pub(crate) fn told(self, path: RelPath, dev: u64) -> (Entry, Raw) {
        let Node { attributes, links, .. } = self.node;
        let raw = Raw {
            ino: self.id.0,
            dev,
            nlink: links.into(),
            blocks: 0,
            ctime: self.stamp.ctime,
            ..Raw::default()
        };
        let meta = Meta {
            mode: attributes.mode,
            mtime: attributes.mtime,
            owner: attributes.owner,
            group: attributes.group,
            xattrs: Vec::new(),
        };
        (Entry { path, meta, kind: EntryKind::File { stamp: self.stamp, sparse: false } }, raw)
    }
}

/// The path of a name in a directory, for messages.
pub(crate) fn shown_path(dir: &RelPath, name: &[u8]) -> String {
    dir.child(name).map_or_else(|_| String::from_utf8_lossy(name).into(), |path| path.to_string())
}

impl VolumeDir {
    /// The directory's node, if it may have remote content.
    pub(crate) fn node_with_away(&self) -> Result<Option<NodeId>, Error> {
        if !self.volume.shared.away.is_any() {
            return Ok(None);
        }
        Ok(self.node_id()?.filter(|node| self.volume.shared.away.has(*node)))
    }

    fn node_id(&self) -> Result<Option<NodeId>, Error> {
        if let Some(node) = self.node.get() {
            return Ok(Some(*node));
        }
        let found = dir_at(&self.volume, &self.real)?;
        Ok(found.map(|node| *self.node.get_or_init(|| node)))
    }

    /// The file of a name, if it is remote. A file that was replaced a moment ago is local, though the catalogue does
    /// not know that yet.
    pub(crate) fn away(&self, name: &[u8]) -> Result<Option<AwayFile>, Error> {
        if is_temp_name(name) {
            return Ok(None);
        }
        let Some(dir) = self.node_with_away()? else { return Ok(None) };
        // Before the catalogue is read, which may take the replacement in meanwhile.
        let replaced = self.replaced(name)?;
        let at = Dentry { dir, name: Name(name.to_vec()) };
        let Some((id, node)) = self.volume.tree.child(&at)? else { return Ok(None) };
        let Some(content) = away_content(&self.volume.tree, id, &node)?.cloned() else { return Ok(None) };
        if replaced == Some(content.version) {
            return Ok(None);
        }
        let stamp = stamp(id, &content, node.attributes.mtime);
        let is_wrong = is_spoiled(&self.volume.tree, id, &node)?;
        Ok(Some(AwayFile { at, id, node, content, stamp, is_wrong }))
    }

    fn replaced(&self, name: &[u8]) -> Result<Option<u64>, Error> {
        Ok(self.volume.shared.notes.replacing().replaced(&self.real.child(name)?))
    }

    /// The same before a change of the file: waits until the catalogue knows of a replacement, since the change is
    /// made either to the plain file or to the catalogue.
    pub(crate) fn away_to_change(&self, name: &[u8]) -> Result<Option<AwayFile>, Error> {
        if !is_temp_name(name) && self.volume.shared.away.is_any() && self.replaced(name)?.is_some() {
            self.volume.flush()?;
        }
        self.away(name)
    }

    /// Stores that the file of a name is about to replace a remote version, so that it is recognised after a kill.
    pub(crate) fn note_successor(&self, from: &[u8], away: &AwayFile) -> Result<(), Error> {
        let ino = self.inner.entry(from, Detail::Basic)?.1.ino;
        let replacing = self.volume.shared.notes.replacing();
        replacing.note(&self.volume.tree, (away.id, away.content.version, ino))
    }

    /// A name of this directory in the catalogue.
    pub(crate) fn spot(&self, name: &[u8]) -> Result<Dentry, Error> {
        let missing = || Error::new(Code::PathNotFound, "look up", &self.real, "not in the catalogue yet");
        Ok(Dentry { dir: self.node_id()?.ok_or_else(missing)?, name: Name(name.to_vec()) })
    }

    /// The plain names, followed by those of remote files without a plain file.
    pub(crate) fn list_with_away(&self, dir: NodeId) -> Result<Listing, Error> {
        let plain: Vec<Listed> = self.inner.list()?.collect::<Result<_, _>>()?;
        let known: HashSet<&[u8]> = plain.iter().map(|listed| &*listed.name).collect();
        let (mut away, mut last) = (Vec::new(), None);
        loop {
            let page = self.volume.tree.list(dir, last.as_ref(), PAGE)?;
            let is_last = page.len() < PAGE;
            for (name, id, node) in &page {
                let is_away = || away_content(&self.volume.tree, *id, node).map(|content| content.is_some());
                if !known.contains(&*name.0) && matches!(node.kind, Kind::File(_)) && is_away()? {
                    away.push(Listed { name: name.0.clone(), hint: TypeHint::File, ino: id.0 });
                }
            }
            last = page.last().map(|(name, ..)| name.clone());
            if is_last {
                break;
            }
        }
        Ok(Box::new(plain.into_iter().chain(away).map(Ok)))
    }

    /// Opens a remote file at a site that holds it.
    pub(crate) fn open_away(&self, name: &[u8], away: &AwayFile) -> Result<Box<dyn ReadFile>, Error> {
        let shown = shown_path(&self.real, name);
        if away.is_wrong {
            // The permissions of the plain file apply.
            self.inner.open_read(name)?;
        } else if !self.may_read_away(away) {
            return Err(Error::new(Code::PermissionDenied, "open", shown, ""));
        }
        let nowhere = || Error::new(Code::SourceChanged, "open", &shown, "its content is at another site");
        let elsewhere = self.elsewhere.as_ref().ok_or_else(nowhere)?;
        let path = self.real.child(name)?;
        let wanted = Wanted { path: &path, id: away.id, content: &away.content, stamp: away.stamp };
        elsewhere.open(&wanted).map_err(|error| match away.is_wrong {
            true => {
                let cause = format!("the disk here returns other bytes than were written; {}", error.cause);
                Error { code: Code::DigestMismatch, cause, ..error }
            }
            false => error,
        })
    }

    fn may_read_away(&self, away: &AwayFile) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_owner = own == 0 || self.volume.shared.hands.uid().is_ok_and(|uid| uid == own);
        is_owner || away.node.attributes.mode & OTHERS_READ != 0
    }

    /// Refuses a name that a remote file has.
    pub(crate) fn check_free(&self, name: &[u8]) -> Result<(), Error> {
        match self.away(name)? {
            None => Ok(()),
            Some(_) => Err(Error::new(Code::PathExists, "make", shown_path(&self.real, name), "")),
        }
    }

    /// Refuses to remove a directory with remote files.
    pub(crate) fn check_holds_nothing(&self, name: &[u8]) -> Result<(), Error> {
        let (shared, path) = (&self.volume.shared, self.real.child(name)?);
        if !shared.away.is_any() {
            return Ok(());
        }
        let Some(dir) = dir_at(&self.volume, &path)?.filter(|dir| shared.away.has(*dir)) else {
            return Ok(());
        };
        let mut last = None;
        loop {
            let page = self.volume.tree.list(dir, last.as_ref(), PAGE)?;
            for (_, id, node) in &page {
                if away_content(&self.volume.tree, *id, node)?.is_some() {
                    return Err(Error::new(Code::NotEmpty, "remove", &path, ""));
                }
            }
            if page.len() < PAGE {
                return Ok(());
            }
            last = page.last().map(|(name, ..)| name.clone());
        }
    }

    /// Refuses callers without permission to change names in this directory, by creating and removing a temporary
    /// one.
    pub(crate) fn check_writable(&self, name: &[u8]) -> Result<(), Error> {
        let probe = temp_name(PROBE, &self.real.child(name)?);
        self.inner.symlink(b".", &probe)?;
        self.inner.remove_file(&probe)
    }

    /// Makes a change in the catalogue.
    pub(crate) fn change_away(&self, change: Change) -> Result<(), Error> {
        // The change may need names that are dirty and not in the catalogue yet.
        self.volume.flush()?;
        Volume::change_away(&self.volume.shared, change)
    }
}

/// The node of the directory at a path without symbolic links.
fn dir_at(volume: &Volume, path: &RelPath) -> Result<Option<NodeId>, Error> {
    if path.is_root() {
        return Ok(Some(ROOT));
    }
    Ok(volume.tree.at(path)?.filter(|(_, node)| node.is_dir()).map(|(id, _)| id))
}
