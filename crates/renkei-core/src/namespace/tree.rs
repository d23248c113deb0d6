//! The semantics of changes.

use super::overlay::Overlay;
use super::xattrs::with_xattr;
use super::{
    Attributes, Base, Beside, Change, Content, Delta, Dentry, Kind, Name, NewKind, Node, NodeId, Origin,
    ROOT, RemovedName, SequencedChange, is_name,
};
use crate::entry::FileTime;
use crate::error::{Code, Error};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Longest name, as in POSIX file systems.
pub const MAX_NAME_BYTES: usize = 255;

/// Maximum nesting of directories: a rename checks all ancestors of its target.
pub const MAX_DEPTH: usize = 4096;

/// Most conflict names that are tried.
const MAX_BESIDE: u32 = 1000;

/// A volume's nodes and names.
pub trait Tree {
    /// Looks a node up.
    fn node(&self, id: NodeId) -> Option<Node>;

    /// Looks a name up.
    fn child(&self, at: &Dentry) -> Option<NodeId>;

    /// Up to `most` names of a directory after `after`, in byte order.
    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)>;
}

/// Treatment of a change that conflicts with an earlier one of another site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// It is refused: its maker sees the other one.
    Refuse,
    /// As the change itself says (conflict copy or merge): it was already acknowledged.
    AsWanted,
}

/// Decides the effects of a change on a tree, as record `seq`.
///
/// # Errors
/// The errors of POSIX for the same call; `RenamedIntoItself`; `ContentConflict`. The tree is not changed.
pub fn decide(tree: &impl Tree, seq: u64, made: &SequencedChange, clash: Clash) -> Result<Delta, Error> {
    let by = (made.origin, made.number);
    let mut draft = Draft { tree: Overlay::over(tree), seq, by, clash };
    if let Change::SetAttributes { id, attributes } = &made.change
        && let Some(into) = merged_into(tree, *id)
    {
        draft.set_time(into, attributes.mtime)?;
        return Ok(draft.tree.into_effects());
    }
    match &*meant(tree, &made.change) {
        Change::Make { id, at, kind, attributes, keep_both } => {
            draft.make(*id, at, kind, attributes, *keep_both)
        }
        Change::Link { id, at, time } => draft.link(*id, at, *time),
        Change::Remove { at, seen, time } => draft.remove(at, *seen, *time),
        Change::RemoveDir { at, time } => draft.remove_dir(at, *time),
        Change::Rename { from, to, replace, seen, time } => {
            draft.rename(from, to, replace.then_some(*seen), *time)
        }
        Change::SetAttributes { id, attributes } => draft.set_attributes(*id, attributes),
        Change::SetContent { id, base, size, digest, mtime, beside } => {
            let content = Content { version: seq, by, size: *size, digest: *digest };
            draft.set_content(*id, *base, content, *mtime, beside.as_ref())
        }
        Change::SetXattr { id, name, value } => {
            draft.set_xattr(merged_into(tree, *id).unwrap_or(*id), name, value.as_deref())
        }
    }?;
    Ok(draft.tree.into_effects())
}

/// The directory that this one was merged into, if it was.
fn merged_into(tree: &impl Tree, dir: NodeId) -> Option<NodeId> {
    tree.node(dir)?.merged_into()
}

/// Resolves the directory of a name through a merge.
pub fn meant_spot(tree: &impl Tree, at: &Dentry) -> Dentry {
    Dentry { dir: merged_into(tree, at.dir).unwrap_or(at.dir), name: at.name.clone() }
}

/// Directories that changes create over an existing one, as far as can be told before they are decided: they will be
/// merged into it.
pub fn merging<'c>(tree: &impl Tree, changes: impl Iterator<Item = &'c Change>) -> BTreeMap<NodeId, NodeId> {
    let mut known = BTreeMap::new();
    for change in changes {
        if let Change::Make { id, at, kind: NewKind::Dir, .. } = change {
            let dir = known.get(&at.dir).copied().or_else(|| merged_into(tree, at.dir)).unwrap_or(at.dir);
            let there = tree.child(&Dentry { dir, name: at.name.clone() });
            let into = there.filter(|into| into != id && tree.node(*into).is_some_and(|node| node.is_dir()));
            known.extend(into.map(|into| (*id, into)));
        }
    }
    known
}

/// The change with its directories resolved through merges.
fn meant<'c>(tree: &impl Tree, change: &'c Change) -> Cow<'c, Change> {
    let is_moved = change.spots().into_iter().any(|at| merged_into(tree, at.dir).is_some());
    let mut change = Cow::Borrowed(change);
    if is_moved {
        change.to_mut().spots_mut().into_iter().for_each(|at| *at = meant_spot(tree, at));
    }
    change
}

fn refused(code: Code, op: &str, subject: impl ToString) -> Error {
    Error::new(code, op, subject.to_string(), "")
}

fn shown(name: &Name) -> String {
    String::from_utf8_lossy(&name.0).into_owned()
}

/// Separator between a name and the id of the change in a conflict name.
const BESIDE: &str = ".conflict-";

/// The conflict name: composed of the name and the change's origin and number; `count` candidates before it were
/// taken.
pub fn beside_name(name: &Name, (origin, number): (Origin, u64), count: u32) -> Name {
    let mut mark = format!("{BESIDE}{}-{number}", origin.0);
    if count > 0 {
        mark += &format!("-{count}");
    }
    let kept = name.0.len().min(MAX_NAME_BYTES - mark.len());
    Name([&name.0[..kept], mark.as_bytes()].concat())
}

/// Whether `name` is a conflict name of `other`.
pub fn is_beside(name: &[u8], other: &[u8]) -> bool {
    let Some(at) = name.windows(BESIDE.len()).rposition(|part| part == BESIDE.as_bytes()) else {
        return false;
    };
    other.starts_with(&name[..at]) && name != other
}

/// Checks that a name is valid.
fn check_name(name: &Name) -> Result<(), Error> {
    let bytes = &name.0;
    if bytes.len() > MAX_NAME_BYTES {
        return Err(refused(Code::NameTooLong, "name", shown(name)));
    }
    if !is_name(bytes) {
        return Err(refused(Code::BadPath, "name", shown(name)));
    }
    Ok(())
}

struct Draft<'t, T: Tree> {
    tree: Overlay<&'t T>,
    seq: u64,
    /// The change's origin, and its number there.
    by: (Origin, u64),
    clash: Clash,
}

impl<T: Tree> Draft<'_, T> {
    fn node(&self, id: NodeId) -> Result<Node, Error> {
        self.tree
            .node(id)
            .filter(|node| !node.is_xattrs())
            .ok_or_else(|| refused(Code::PathNotFound, "look up", format_args!("node {}", id.0)))
    }

    fn child(&self, at: &Dentry) -> Result<(NodeId, Node), Error> {
        self.dir(at.dir)?;
        let id =
            self.tree.child(at).ok_or_else(|| refused(Code::PathNotFound, "look up", shown(&at.name)))?;
        Ok((id, self.node(id)?))
    }

    fn dir(&self, id: NodeId) -> Result<Node, Error> {
        let node = self.node(id)?;
        if node.is_dir() { Ok(node) } else { Err(refused(Code::NotADirectory, "look up", id.0)) }
    }

    fn put(&mut self, id: NodeId, node: Node) {
        self.tree.put_node(id, Some(Node { changed: self.seq, ..node }));
    }

    /// Adjusts a directory's counts of names and of subdirectories.
    fn touch_dir(&mut self, id: NodeId, names: i64, dirs: i32, time: FileTime) -> Result<(), Error> {
        let mut dir = self.dir(id)?;
        if let Kind::Dir { names: count, .. } = &mut dir.kind {
            *count = count.saturating_add_signed(names);
        }
        dir.links = dir.links.saturating_add_signed(dirs);
        dir.attributes.mtime = time;
        self.put(id, dir);
        Ok(())
    }

    /// Enters a free name for a node.
    fn enter(&mut self, at: &Dentry, id: NodeId, is_dir: bool, time: FileTime) -> Result<(), Error> {
        check_name(&at.name)?;
        self.dir(at.dir)?;
        if self.tree.child(at).is_some() {
            return Err(refused(Code::PathExists, "make", shown(&at.name)));
        }
        self.touch_dir(at.dir, 1, i32::from(is_dir), time)?;
        self.tree.put_name(at.clone(), Some(id));
        Ok(())
    }

    /// Frees a name.
    fn leave(&mut self, at: &Dentry, is_dir: bool, time: FileTime) -> Result<(), Error> {
        self.touch_dir(at.dir, -1, -i32::from(is_dir), time)?;
        self.tree.put_name(at.clone(), None);
        Ok(())
    }

    fn make(
        &mut self,
        id: NodeId,
        at: &Dentry,
        kind: &NewKind,
        attributes: &Attributes,
        keep_both: bool,
    ) -> Result<(), Error> {
        if self.tree.node(id).is_some() || id == ROOT {
            return Err(refused(Code::PathExists, "make", format_args!("node {}", id.0)));
        }
        let content = |size, digest| Kind::File(Content { version: self.seq, by: self.by, size, digest });
        let (kind, links) = match kind {
            NewKind::Dir => (Kind::Dir { names: 0, parent: at.dir }, 2),
            NewKind::File => (content(0, None), 1),
            NewKind::Content { size, digest } => (content(*size, *digest), 1),
            NewKind::Symlink(target) => (Kind::Symlink { target: target.clone() }, 1),
        };
        let is_dir = links == 2;
        if is_dir && keep_both && self.clash == Clash::AsWanted && self.merges(id, at, attributes) {
            return Ok(());
        }
        let at = if keep_both && self.clash == Clash::AsWanted { self.free_beside(at)? } else { at.clone() };
        self.enter(&at, id, is_dir, attributes.mtime)?;
        self.put(id, Node { kind, attributes: attributes.clone(), links, changed: self.seq });
        Ok(())
    }

    /// Merges a new directory into an existing one of that name, which later changes in it then use. Returns whether
    /// there was one.
    fn merges(&mut self, id: NodeId, at: &Dentry, attributes: &Attributes) -> bool {
        let there =
            self.tree.child(at).filter(|there| self.tree.node(*there).is_some_and(|node| node.is_dir()));
        let Some(into) = there else { return false };
        let (kind, attributes) = (Kind::Merged { into }, attributes.clone());
        self.put(id, Node { kind, attributes, links: 0, changed: self.seq });
        true
    }

    /// The name itself if it is free, otherwise a conflict name.
    fn free_beside(&self, at: &Dentry) -> Result<Dentry, Error> {
        if self.tree.child(at).is_none() {
            return Ok(at.clone());
        }
        for count in 0..MAX_BESIDE {
            let (origin, number) = self.by;
            // The name is deterministic: it is the same at every site.
            let beside = Dentry { dir: at.dir, name: beside_name(&at.name, (origin, number), count) };
            if self.tree.child(&beside).is_none() {
                return Ok(beside);
            }
        }
        Err(refused(Code::PathExists, "make", shown(&at.name)))
    }

    fn link(&mut self, id: NodeId, at: &Dentry, time: FileTime) -> Result<(), Error> {
        let mut node = self.node(id)?;
        if node.is_dir() || node.merged_into().is_some() {
            return Err(refused(Code::IsADirectory, "link", shown(&at.name)));
        }
        self.enter(at, id, false, time)?;
        node.links += 1;
        self.put(id, node);
        Ok(())
    }

    /// Removes a node, with its extended attributes.
    fn end(&mut self, id: NodeId) {
        self.tree.put_node(id, None);
        if self.tree.node(id.xattrs()).is_some() {
            self.tree.put_node(id.xattrs(), None);
        }
    }

    /// Decrements the link count of a file or symbolic link, and removes the node at zero.
    fn unlink(&mut self, id: NodeId, mut node: Node) {
        node.links -= 1;
        if node.links == 0 {
            self.end(id);
        } else {
            self.put(id, node);
        }
    }

    fn remove(&mut self, at: &Dentry, seen: Option<RemovedName>, time: FileTime) -> Result<(), Error> {
        let (id, node) = self.child(at)?;
        if node.is_dir() {
            return Err(refused(Code::IsADirectory, "remove", shown(&at.name)));
        }
        if seen.is_some_and(|seen| !self.is_as_seen(id, &node, seen)) {
            return Err(refused(Code::ContentConflict, "remove", shown(&at.name)));
        }
        self.leave(at, false, time)?;
        self.unlink(id, node);
        Ok(())
    }

    /// Whether the remover saw the node and its present content. The content of a node with other names is not
    /// checked: it stays.
    fn is_as_seen(&self, id: NodeId, node: &Node, seen: RemovedName) -> bool {
        let knows_content = node.links > 1 || seen.content.is_none_or(|base| self.is_at(node, base));
        id == seen.id && knows_content
    }

    fn remove_dir(&mut self, at: &Dentry, time: FileTime) -> Result<(), Error> {
        let (id, node) = self.child(at)?;
        match node.kind {
            Kind::Dir { names: 0, .. } => {}
            Kind::Dir { .. } => return Err(refused(Code::NotEmpty, "remove", shown(&at.name))),
            _ => return Err(refused(Code::NotADirectory, "remove", shown(&at.name))),
        }
        self.leave(at, true, time)?;
        self.end(id);
        Ok(())
    }

    fn rename(
        &mut self,
        from: &Dentry,
        to: &Dentry,
        replace: Option<Option<RemovedName>>,
        time: FileTime,
    ) -> Result<(), Error> {
        let (id, node) = self.child(from)?;
        self.dir(to.dir)?;
        if node.is_dir() && self.is_within(to.dir, id)? {
            return Err(refused(Code::RenamedIntoItself, "rename", shown(&from.name)));
        }
        if let Some(other) = self.tree.child(to) {
            let Some(seen) = replace else {
                return Err(refused(Code::PathExists, "rename", shown(&to.name)));
            };
            if other == id {
                // Two hard links to the same file: both stay, as in POSIX.
                return Ok(());
            }
            self.replace(to, other, seen, node.is_dir(), time)?;
        }
        self.leave(from, node.is_dir(), time)?;
        self.enter(to, id, node.is_dir(), time)?;
        if let Kind::Dir { names, .. } = self.node(id)?.kind {
            self.put(id, Node { kind: Kind::Dir { names, parent: to.dir }, ..node });
        }
        Ok(())
    }

    /// Removes the entry that a rename replaces.
    fn replace(
        &mut self,
        at: &Dentry,
        other: NodeId,
        seen: Option<RemovedName>,
        by_dir: bool,
        time: FileTime,
    ) -> Result<(), Error> {
        match (by_dir, self.node(other)?.is_dir()) {
            (true, false) => Err(refused(Code::NotADirectory, "rename", shown(&at.name))),
            (false, true) => Err(refused(Code::IsADirectory, "rename", shown(&at.name))),
            (true, true) => self.remove_dir(at, time),
            (false, false) => self.remove(at, seen, time),
        }
    }

    /// Whether `dir` is `above` or a descendant of it.
    fn is_within(&self, dir: NodeId, above: NodeId) -> Result<bool, Error> {
        let mut at = dir;
        for _ in 0..MAX_DEPTH {
            if at == above {
                return Ok(true);
            }
            match self.dir(at)?.kind {
                Kind::Dir { parent, .. } if at != ROOT => at = parent,
                _ => return Ok(false),
            }
        }
        Err(refused(Code::NameTooLong, "rename", "more directories than are allowed above each other"))
    }

    /// For a directory that was merged into another one, only the mtime is applied.
    fn set_time(&mut self, id: NodeId, mtime: FileTime) -> Result<(), Error> {
        let node = self.dir(id)?;
        self.put(id, Node { attributes: Attributes { mtime, ..node.attributes }, ..node });
        Ok(())
    }

    fn set_attributes(&mut self, id: NodeId, attributes: &Attributes) -> Result<(), Error> {
        let node = self.node(id)?;
        self.put(id, Node { attributes: attributes.clone(), ..node });
        Ok(())
    }

    fn set_xattr(&mut self, id: NodeId, name: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        if let Kind::Symlink { .. } = self.node(id)?.kind {
            return Err(refused(Code::Unsupported, "set attribute", "a symbolic link has none"));
        }
        let before = self.tree.node(id.xattrs()).map(Node::into_xattrs).unwrap_or_default();
        let after = with_xattr(before.clone(), name, value)?;
        if after == before {
            return Ok(());
        }
        match after.is_empty() {
            true => self.tree.put_node(id.xattrs(), None),
            false => {
                let (kind, attributes) = (Kind::Xattrs(after), Attributes::default());
                self.put(id.xattrs(), Node { kind, attributes, links: 0, changed: self.seq });
            }
        }
        Ok(())
    }

    fn set_content(
        &mut self,
        id: NodeId,
        base: Base,
        content: Content,
        mtime: FileTime,
        beside: Option<&Beside>,
    ) -> Result<(), Error> {
        let beside = beside.filter(|_| self.clash == Clash::AsWanted);
        match (self.tree.node(id), beside) {
            (Some(node), _) if self.is_at(&node, base) => {
                let attributes = Attributes { mtime, ..node.attributes };
                self.put(id, Node { kind: Kind::File(content), attributes, ..node });
                Ok(())
            }
            (Some(node), _) if node.is_dir() || node.merged_into().is_some() => {
                Err(refused(Code::IsADirectory, "write", id.0))
            }
            (Some(Node { kind: Kind::Symlink { .. }, .. }), _) => {
                Err(refused(Code::BadPath, "write", format_args!("node {}, a symbolic link", id.0)))
            }
            (_, Some(beside)) => self.keep_beside(beside, base, content),
            (None, None) => Err(refused(Code::PathNotFound, "write", format_args!("node {}", id.0))),
            (Some(_), None) => Err(refused(Code::ContentConflict, "write", format_args!("node {}", id.0))),
        }
    }

    /// Whether a file still has the content that a write is based on.
    fn is_at(&self, node: &Node, base: Base) -> bool {
        let Kind::File(content) = &node.kind else { return false };
        match base {
            Base::Version(version) => content.version == version && version > 0,
            Base::Own(number) => content.by == (self.by.0, number),
        }
    }

    /// Makes a conflict copy for content whose base was superseded; in the root directory if its own is gone.
    fn keep_beside(&mut self, beside: &Beside, base: Base, content: Content) -> Result<(), Error> {
        let id = match self.tree.node(beside.id) {
            // An earlier write already made the conflict copy.
            Some(node) if self.is_at(&node, base) => {
                self.put(beside.id, Node { kind: Kind::File(content), ..node });
                return Ok(());
            }
            Some(_) => Origin::HOME.id(self.seq),
            None => beside.id,
        };
        let is_there = self.tree.node(beside.at.dir).is_some_and(|dir| dir.is_dir());
        let dir = if is_there { beside.at.dir } else { ROOT };
        let at = Dentry { dir, name: beside.at.name.clone() };
        self.make(id, &at, &NewKind::File, &beside.attributes, true)?;
        let made = self.node(id)?;
        self.put(id, Node { kind: Kind::File(content), ..made });
        Ok(())
    }
}
