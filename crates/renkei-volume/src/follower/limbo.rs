//! Limbo: own content that was removed here and that the home may still want, because another site may have given the
//! file another name before the removal came to the home.
//!
//! A removed plain file is parked until the home has ordered its removal. Then it is deleted, or linked to the names
//! that its file has. Guarantee: content that was written here and is in the volume has a plain file, after any kill.

use super::outbox::{Outbox, lock};
use super::plain_file::{Asides, HeldNow, Parted, Writer, if_there, stamp};
use super::wal::WalRecord;
use super::write_txn::{Work, WriteTxn};
use renkei_catalogue::{HeldReplica, own_version};
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Change, Kind, Node, NodeId, Origin, Record};
use renkei_core::path::RelPath;
use renkei_store::tree::{dir_of, make_dirs};
use renkei_store::{Detail, Dir, Store};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The folder of parked files, at the top of the plain files; its temporary name hides it.
const ASIDE: &[u8] = b".rk~0000006173696465-0000000000000000";

fn folder(top: &Arc<dyn Dir>) -> Result<Arc<dyn Dir>, Error> {
    match top.mkdir(ASIDE, 0o700) {
        Err(error) if error.code != Code::PathExists => Err(error),
        _ => top.child(ASIDE),
    }
}

/// Parks a plain file.
///
/// # Errors
/// Those of the file system.
pub(crate) fn park(top: &Arc<dyn Dir>, parted: Parted, dir: &dyn Dir, name: &[u8]) -> Result<(), Error> {
    dir.rename(name, &*folder(top)?, &parted.name())
}

/// A plain file that is about to be removed or replaced.
pub(crate) struct Leaving {
    parted: Parted,
    top: Arc<dyn Dir>,
    dir: Arc<dyn Dir>,
    name: Vec<u8>,
}

impl Leaving {
    /// Parks the file; returns whether it existed.
    fn leave(&self) -> Result<bool, Error> {
        match park(&self.top, self.parted, &*self.dir, &self.name) {
            Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Moves the file back.
    fn stay(&self) -> Result<(), Error> {
        folder(&self.top)?.rename(&self.parted.name(), &*self.dir, &self.name)
    }
}

/// Outcomes for parked content.
#[derive(Debug, Default)]
pub struct Fates {
    /// Content with a name again, with the node and all its paths.
    back: Vec<(Parted, NodeId, Vec<RelPath>)>,
    gone: Vec<Parted>,
}

/// Content that was moved back to a path.
pub struct Back {
    id: NodeId,
    path: RelPath,
    held: HeldReplica,
    dir: Arc<dyn Dir>,
}

impl Fates {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.back.is_empty() && self.gone.is_empty()
    }

    /// Deletes or moves the parked files; returns those that were moved back.
    pub fn take(self, plain: &dyn Store, origin: Origin) -> Vec<Back> {
        if self.is_empty() {
            return Vec::new();
        }
        let top = match plain.root().and_then(|top| Ok((folder(&top)?, top))) {
            Ok(top) => top,
            Err(error) => {
                tracing::warn!(%error, "what was put aside cannot be reached");
                return Vec::new();
            }
        };
        for parted in self.gone {
            if let Err(error) = if_there(top.0.remove_file(&parted.name())) {
                tracing::warn!(%error, "what was put aside stays there");
            }
        }
        let placed = self.back.into_iter().filter_map(|(parted, id, mut paths)| {
            let path = paths.remove(0);
            let placed = place(&top.0, &top.1, parted, &path);
            for other in paths {
                let linked = placed.as_ref().map_or(Ok(()), |(dir, _)| link(&top.1, dir, &path, &other));
                linked.unwrap_or_else(|error| tracing::warn!(%other, %error, "one more name is missing"));
            }
            match placed {
                Ok((dir, stamp)) => {
                    let version = own_version((origin, parted.number));
                    let held = HeldReplica { version, stamp, digest: None };
                    Some(Back { id, path, held, dir })
                }
                Err(error) => {
                    tracing::warn!(%path, %error, "what was written here and put aside has no place");
                    None
                }
            }
        });
        let back = placed.collect();
        // The folder is removed with the last parked file.
        let _ = top.1.remove_dir(ASIDE);
        back
    }
}

fn place(
    aside: &Arc<dyn Dir>,
    top: &Arc<dyn Dir>,
    parted: Parted,
    path: &RelPath,
) -> Result<(Arc<dyn Dir>, Stamp), Error> {
    let (parent, name) = path.split().ok_or_else(|| Error::new(Code::IsADirectory, "place", path, ""))?;
    let dir = make_dirs(top, &RelPath::parse(parent)?)?;
    aside.rename(&parted.name(), &*dir, name)?;
    // rename leaves it in place if the target is the same inode.
    if_there(aside.remove_file(&parted.name()))?;
    let (entry, _) = dir.entry(name, Detail::Basic)?;
    Ok((dir, stamp(&entry)))
}

fn link(top: &Arc<dyn Dir>, dir: &Arc<dyn Dir>, path: &RelPath, to: &RelPath) -> Result<(), Error> {
    let (parent, to_name) = to.split().unwrap_or_default();
    let to_dir = make_dirs(top, &RelPath::parse(parent)?)?;
    if_there(to_dir.remove_file(to_name))?;
    dir.hard_link(path.name().unwrap_or_default(), &*to_dir, to_name)
}

impl WriteTxn<'_> {
    /// The parked form of content that a change of this site wrote.
    pub(crate) fn parted(&self, id: NodeId, number: u64) -> Parted {
        Parted { id, beside: self.state.beside.get(&id).copied().unwrap_or(id), number }
    }

    /// The plain file to be parked before the entry of a name is removed: content that was written here and is held
    /// as such.
    pub(crate) fn leaving(
        &self,
        writer: &Writer,
        there: &Option<(NodeId, Node)>,
        dir: Option<Arc<dyn Dir>>,
        name: &[u8],
    ) -> Result<Option<Leaving>, Error> {
        let (Some((id, node)), Some(dir)) = (there, dir) else { return Ok(None) };
        let Kind::File(content) = &node.kind else { return Ok(None) };
        if node.links > 1 || content.size == 0 || content.by.0 != self.origin()? {
            return Ok(None);
        }
        let held = self.pending.held(*id)?;
        if held.is_none_or(|held| held.version != own_version(content.by)) {
            return Ok(None);
        }
        let parted = self.parted(*id, content.by.1);
        Ok(Some(Leaving { parted, top: writer.plain.root()?, dir, name: name.to_vec() }))
    }

    /// Makes changes that remove a file; see [`WriteTxn::make`].
    ///
    /// # Errors
    /// As [`WriteTxn::make`].
    pub(crate) fn make_without(
        &mut self,
        leaving: Option<Leaving>,
        changes: Vec<Change>,
        work: Work,
        plain: impl FnOnce(&mut HeldNow) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(leaving) = leaving else { return self.make(changes, work, plain) };
        let mut is_aside = false;
        self.make(changes, work, |held| {
            is_aside = leaving.leave()?;
            plain(held).inspect_err(|_| {
                if is_aside && let Err(error) = leaving.stay() {
                    tracing::warn!(%error, "a plain file that was put aside stays there");
                }
            })
        })?;
        if is_aside {
            self.note_asides([leaving.parted].into_iter());
        }
        Ok(())
    }

    /// Notes content that was just parked: it is kept until the home has ordered the changes that are pending now.
    pub(crate) fn note_asides(&mut self, parted: impl Iterator<Item = Parted>) {
        // If the folder was not read yet, the content is found with the rest.
        if let Some(asides) = &mut self.state.asides {
            let last = lock(&self.pending.progress).made;
            asides.entry(last).or_default().extend(parted);
        }
    }

    /// The outcomes for parked content after a run of records: for content whose removal the home has ordered, or for
    /// `all`.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn fates(&mut self, run: &[Record], all: bool) -> Result<Fates, Error> {
        let mut fates = Fates::default();
        let Some(asides) = self.state.asides.as_ref().filter(|asides| !asides.is_empty()) else {
            return Ok(fates);
        };
        let settled = self.pending.next_after(0).map_or(u64::MAX, |oldest| oldest - 1);
        let upto = if all { u64::MAX } else { settled };
        for (number, parted) in
            asides.range(..=upto).flat_map(|(number, all)| all.iter().map(move |one| (*number, *one)))
        {
            match place_of(self.pending, parted, self.origin()?, run)? {
                Some((id, paths)) => fates.back.push((parted, id, paths)),
                None if number <= settled => fates.gone.push(parted),
                None => {}
            }
        }
        for (parted, _, paths) in &fates.back {
            self.state.unkept.note(&WalRecord::Back(paths[0].clone(), *parted))?;
        }
        let back = fates.back.iter().map(|(parted, ..)| *parted);
        let done: BTreeSet<Parted> = fates.gone.iter().copied().chain(back).collect();
        if done.is_empty() {
            return Ok(fates);
        }
        if let Some(asides) = &mut self.state.asides {
            asides.values_mut().for_each(|all| all.retain(|parted| !done.contains(parted)));
            asides.retain(|_, all| !all.is_empty());
        }
        Ok(fates)
    }

    /// Notes the replica rows of content that was moved back.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn hold_again(&mut self, back: Vec<Back>) -> Result<(), Error> {
        if back.is_empty() {
            return Ok(());
        }
        let (mut held, mut dirs) = (Vec::new(), Vec::new());
        for Back { id, path, held: known, dir } in back {
            tracing::info!(%path, "content that was put aside has a place again");
            held.push((id, Some(known)));
            dirs.push(dir);
        }
        self.hold(held, dirs)
    }

    /// Reads the content that an earlier PoP process parked.
    pub(crate) fn find_asides(&mut self, writer: &Writer) -> Result<(), Error> {
        if self.state.asides.is_some() {
            return Ok(());
        }
        let top = writer.plain.root()?;
        let mut found = Vec::new();
        match top.child(ASIDE) {
            Ok(folder) => {
                for item in folder.list()? {
                    found.extend(Parted::parse(&item?.name));
                }
            }
            Err(error) if error.code == Code::PathNotFound => {}
            Err(error) => return Err(error),
        }
        if found.is_empty() {
            self.state.asides = Some(Asides::new());
            return Ok(());
        }
        let last = lock(&self.pending.progress).made;
        self.state.asides = Some(Asides::from([(last, found)]));
        let back = self.fates(&[], true)?.take(&*writer.plain, self.origin()?);
        self.hold_again(back)
    }
}

/// Notes the replica row of content that was moved back and not noted before a kill.
///
/// # Errors
/// `CatalogueFailed`.
pub(crate) fn hold_back(
    turn: &mut WriteTxn<'_>,
    writer: &Writer,
    path: &RelPath,
    parted: Parted,
    stamp: Stamp,
) -> Result<(), Error> {
    let origin = turn.origin()?;
    let Some((id, at)) = place_of(turn.pending, parted, origin, &[])? else { return Ok(()) };
    let size = match turn.pending.node(id)?.map(|node| node.kind) {
        Some(Kind::File(content)) => content.size,
        _ => return Ok(()),
    };
    if at.contains(path) && size == stamp.size {
        let held = HeldReplica { version: own_version((origin, parted.number)), stamp, digest: None };
        let (dir, _) = dir_of(&*writer.plain, path)?;
        turn.hold_again(vec![Back { id, path: path.clone(), held, dir }])?;
    }
    Ok(())
}

/// The node that has a parked content, and all its paths, if it has any.
pub(crate) fn place_of(
    pending: &Outbox,
    parted: Parted,
    origin: Origin,
    run: &[Record],
) -> Result<Option<(NodeId, Vec<RelPath>)>, Error> {
    let by = (origin, parted.number);
    let has_it = |node: &Node| matches!(&node.kind, Kind::File(content) if content.by == by);
    let effects = run.iter().filter_map(|record| record.outcome.as_ref().ok());
    let made = effects.flat_map(|effects| &effects.nodes);
    let made = made.filter(|(_, node)| node.as_ref().is_some_and(has_it)).map(|(id, _)| *id);
    for id in [parted.id, parted.beside].into_iter().chain(made) {
        if !pending.node(id)?.as_ref().is_some_and(has_it) {
            continue;
        }
        return Ok(paths_of(pending, id)?.map(|paths| (id, paths)));
    }
    Ok(None)
}

/// All paths of a file, if it has any.
///
/// # Errors
/// `CatalogueFailed`.
pub(crate) fn paths_of(pending: &Outbox, id: NodeId) -> Result<Option<Vec<RelPath>>, Error> {
    let mut paths = Vec::new();
    for at in pending.spots_of(id)? {
        paths.extend(pending.path_of(&at)?);
    }
    Ok(if paths.is_empty() { None } else { Some(paths) })
}
