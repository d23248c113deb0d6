//! One entry of a plain tree, as the file system has it.

use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Attributes, Kind, NewKind, Node};
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir, Raw, passwd};

/// The entry of the plain tree under a name.
pub(super) struct Plain {
    pub(super) entry: Entry,
    pub(super) raw: Raw,
}

impl Plain {
    /// The attributes as a node of the catalogue has them.
    pub(super) fn attributes(&self) -> Attributes {
        let Raw { uid, gid, .. } = self.raw;
        Attributes {
            mode: self.entry.meta.mode,
            owner: passwd::user_name(uid).unwrap_or_else(|| uid.to_string()),
            group: passwd::group_name(gid).unwrap_or_else(|| gid.to_string()),
            mtime: self.entry.meta.mtime,
        }
    }

    /// The kind of a new node for it; none for entries that are not in catalogues.
    pub(super) fn kind(&self) -> Option<NewKind> {
        match &self.entry.kind {
            EntryKind::File { .. } => Some(NewKind::File),
            EntryKind::Dir => Some(NewKind::Dir),
            EntryKind::Symlink { target } => Some(NewKind::Symlink(target.clone())),
            EntryKind::HardLink { .. } | EntryKind::Special => None,
        }
    }

    /// The stamp of a file.
    pub(super) fn stamp(&self) -> Stamp {
        match self.entry.kind {
            EntryKind::File { stamp, .. } => stamp,
            _ => Stamp::default(),
        }
    }

    /// Whether a node of the catalogue may become this entry and stay the same node.
    pub(super) fn is_kind_of(&self, node: &Node) -> bool {
        match (&self.entry.kind, &node.kind) {
            (EntryKind::File { .. }, Kind::File(_)) | (EntryKind::Dir, Kind::Dir { .. }) => true,
            (EntryKind::Symlink { target }, Kind::Symlink { target: known }) => target == known,
            _ => false,
        }
    }
}

/// Metadata of a plain file or directory for these attributes.
pub(super) fn meta(attributes: &Attributes) -> Meta {
    Meta { mode: attributes.mode, mtime: attributes.mtime, ..Meta::default() }
}

/// The state of a name: ctime, inode number and size.
pub(super) type Seen = (FileTime, u64, u64);

/// The state of a name.
pub(super) fn seen(plain: &Option<Plain>) -> Option<Seen> {
    plain.as_ref().map(|plain| (plain.raw.ctime, plain.raw.ino, plain.entry.size()))
}

/// Whether a file has the same content, as far as can be told without reading it.
pub(super) fn is_same_content(a: &Stamp, b: &Stamp) -> bool {
    (a.size, a.mtime, a.ino) == (b.size, b.mtime, b.ino)
}

/// The entry of the plain tree under a name; none for entries that are not in catalogues.
pub(super) fn look(dir: &dyn Dir, name: &[u8]) -> Result<Option<Plain>, Error> {
    if is_temp_name(name) {
        return Ok(None);
    }
    match dir.entry(name, Detail::Basic) {
        Ok((entry, raw)) => Ok(Some(Plain { entry, raw }).filter(|plain| plain.kind().is_some())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.code, Code::PathNotFound | Code::NotADirectory)
}
