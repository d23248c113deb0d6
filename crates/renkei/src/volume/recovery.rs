//! After a kill: what was done to plain files of a followed volume and not stored becomes a change, and what was stored and not
//! done is done.

use super::aside::part;
use super::followed::Writer;
use super::pending::{Pending, Turn};
use super::plain::is_same_content;
use super::turn::Work;
use super::unkept::{Anchor, Did};
use super::writing::{Fresh, now, stamp};
use crate::store::tree::{dir_of, make_dirs};
use crate::store::{Detail, Store};
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::Error;
use renkei_core::namespace::{Change, Kind, Name, NewKind, Node, NodeId, ROOT, Spot};
use renkei_core::path::RelPath;

/// Brings into the volume what a PoP that was killed had written and not stored.
///
/// # Errors
/// `CatalogueFailed`, and those of the file system.
pub fn recover(pending: &Pending, writer: &Writer) -> Result<(), Error> {
    recover_left(&mut pending.turn(), writer)
}

/// Makes changes of what a PoP that was killed had done to plain files and not stored, and does with plain files what it
/// had stored and not done.
///
/// # Errors
/// `CatalogueFailed`, and those of the file system.
pub(super) fn recover_left(turn: &mut Turn<'_>, writer: &Writer) -> Result<(), Error> {
    for did in turn.take_left() {
        let recovered = match &did {
            Did::Wrote(path, ino) => recover_file(turn, writer, path, *ino),
            Did::Moved(from, to) => recover_move(turn, writer, from, to),
            Did::Gone(path) => recover_removal(turn, writer, path),
            Did::At(path, Anchor::Own(parted)) => part(turn, writer, path, *parted),
            Did::At(path, Anchor::Dir(id)) => recover_dir(turn, writer, path, *id),
        };
        match recovered {
            Ok(()) => tracing::debug!(?did, "looked at what was left"),
            Err(error) => tracing::warn!(?did, %error, "what was done to a plain file is not in the volume"),
        }
    }
    turn.find_asides(writer)
}

/// What is seen at a path.
fn locate(turn: &Turn<'_>, path: &RelPath) -> Result<Option<(NodeId, Node)>, Error> {
    let pending = turn.pending;
    let mut at = pending.node(ROOT)?.map(|node| (ROOT, node));
    for name in path.components() {
        let Some((dir, _)) = at else { return Ok(None) };
        at = pending.child(&Spot { dir, name: Name(name.to_vec()) })?;
    }
    Ok(at)
}

fn look(writer: &Writer, path: &RelPath) -> Option<(Entry, u64)> {
    let (dir, name) = dir_of(&*writer.plain, path).ok()?;
    dir.entry(name, Detail::Basic).ok().map(|(entry, raw)| (entry, raw.ino))
}

/// Whether a plain file is what is known of a node here.
fn is_held(turn: &Turn<'_>, id: NodeId, plain: &Entry) -> Result<bool, Error> {
    let held = turn.pending.held(id)?;
    Ok(held.is_some_and(|held| is_same_content(&held.stamp, &stamp(plain))))
}

fn recover_file(turn: &mut Turn<'_>, writer: &Writer, path: &RelPath, ino: u64) -> Result<(), Error> {
    let Some((plain, found)) = look(writer, path) else { return Ok(()) };
    let there = locate(turn, path)?;
    let is_known = match &there {
        Some((id, _)) => is_held(turn, *id, &plain)?,
        None => false,
    };
    let is_same_link = match (&plain.kind, there.as_ref().map(|(_, node)| &node.kind)) {
        (EntryKind::Symlink { target }, Some(Kind::Symlink { target: known })) => target == known,
        _ => false,
    };
    if (ino != 0 && found != ino) || is_known || is_same_link {
        return Ok(());
    }
    let (parent, name) = path.split().unwrap_or_default();
    let dir = recover_dirs(turn, writer, &RelPath::parse(parent)?)?;
    let at = Spot { dir, name: Name(name.to_vec()) };
    let fresh = Fresh::of(turn, writer, at, &plain, there)?;
    tracing::info!(%path, "a file that was written before a kill is in the volume");
    let (plain_dir, _) = dir_of(&*writer.plain, path)?;
    turn.make(fresh.changes, Work { did: None, dirs: vec![plain_dir] }, || Ok(fresh.held))
}

/// The directory at a path, made if it is missing.
fn recover_dirs(turn: &mut Turn<'_>, writer: &Writer, path: &RelPath) -> Result<NodeId, Error> {
    let mut dir = ROOT;
    for name in path.components() {
        let at = Spot { dir, name: Name(name.to_vec()) };
        dir = match turn.pending.child(&at)? {
            Some((id, _)) => id,
            None => {
                let (id, attributes) = (turn.draw()?, writer.attributes(0o755, now()));
                let made = Change::Make { id, at, kind: NewKind::Dir, attributes, keep_both: true };
                turn.make(vec![made], Work::default(), || Ok(Vec::new()))?;
                id
            }
        };
    }
    Ok(dir)
}

fn recover_move(turn: &mut Turn<'_>, writer: &Writer, from: &RelPath, to: &RelPath) -> Result<(), Error> {
    let (old, new) = (locate(turn, from)?, locate(turn, to)?);
    let (plain_old, plain_new) = (look(writer, from), look(writer, to));
    let is_of = |node: &Option<(NodeId, Node)>, plain: &Option<(Entry, u64)>| match (node, plain) {
        (Some((_, node)), Some((plain, _))) if node.is_dir() => Ok(plain.kind == EntryKind::Dir),
        (Some((id, _)), Some((plain, _))) => is_held(turn, *id, plain),
        _ => Ok(false),
    };
    let (Some((from_dir, from_name)), Some((to_dir, to_name))) = (from.split(), to.split()) else {
        return Ok(());
    };
    if plain_old.is_none() && is_of(&old, &plain_new)? && !is_of(&new, &plain_new)? {
        let dir = |path: &[u8]| Ok::<_, Error>(locate(turn, &RelPath::parse(path)?)?.map(|(id, _)| id));
        let (Some(from_dir), Some(to_dir)) = (dir(from_dir)?, dir(to_dir)?) else { return Ok(()) };
        let from = Spot { dir: from_dir, name: Name(from_name.to_vec()) };
        let to = Spot { dir: to_dir, name: Name(to_name.to_vec()) };
        let change = Change::Rename { from, to, replace: true, seen: None, time: now() };
        return turn.make(vec![change], Work::default(), || Ok(Vec::new()));
    }
    if is_of(&new, &plain_old)? && !is_of(&new, &plain_new)? {
        let root = writer.plain.root()?;
        let dir = make_dirs(&root, &RelPath::parse(to_dir)?)?;
        return root.descend(&RelPath::parse(from_dir)?)?.rename(from_name, &*dir, to_name);
    }
    Ok(())
}

/// A directory that records renamed before a kill gets its plain one.
fn recover_dir(turn: &Turn<'_>, writer: &Writer, path: &RelPath, id: NodeId) -> Result<(), Error> {
    let Some(to) = turn.pending.path_of_dir(id)?.filter(|to| to != path) else { return Ok(()) };
    let is_dir = |path| look(writer, path).is_some_and(|(entry, _)| entry.kind == EntryKind::Dir);
    let (Some((from_dir, from)), Some((to_dir, name))) = (path.split(), to.split()) else { return Ok(()) };
    if !is_dir(path) || look(writer, &to).is_some() || locate(turn, path)?.is_some() {
        return Ok(());
    }
    let root = writer.plain.root()?;
    let dir = make_dirs(&root, &RelPath::parse(to_dir)?)?;
    root.descend(&RelPath::parse(from_dir)?)?.rename(from, &*dir, name)
}

fn recover_removal(turn: &mut Turn<'_>, writer: &Writer, path: &RelPath) -> Result<(), Error> {
    let Some((id, node)) = locate(turn, path)? else { return Ok(()) };
    let is_own = turn.pending.held(id)?.is_some_and(|held| held.is_own());
    let Some((parent, name)) = path.split().filter(|_| is_own && !node.is_dir()) else { return Ok(()) };
    if look(writer, path).is_some() {
        return Ok(());
    }
    let Some((dir, _)) = locate(turn, &RelPath::parse(parent)?)? else { return Ok(()) };
    let change = Change::Remove { at: Spot { dir, name: Name(name.to_vec()) }, seen: None, time: now() };
    turn.make(vec![change], Work::default(), || Ok(vec![(id, None)]))
}
