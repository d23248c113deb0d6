//! Own content that was removed here and that the home may still want: another site may have given the file another name before
//! the removal came to the home.
//!
//! A plain file that goes is put aside until the home has put its removal in order. Then it is removed, or it gets the place
//! that its file has. Guarantee: what was written here and is in the volume has a plain file, whatever is killed.

use super::followed::Writer;
use super::pending::{Item, Pending, lock};
use super::plain::is_same_content;
use super::turn::{Turn, Work};
use super::unkept::Did;
use super::writing::{HeldNow, if_there, stamp};
use crate::catalogue::{Held, own_version};
use crate::store::tree::{dir_of, make_dirs};
use crate::store::{Detail, Dir, Store};
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Change, Kind, Node, NodeId, Origin, Record};
use renkei_core::path::RelPath;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The folder of what is put aside, in the top of the plain files: a temporary name, so that nobody sees it.
const ASIDE: &[u8] = b".rk~0000006173696465-0000000000000000";

/// A content that was put aside: the file, the one where the home puts it if it lost its place, and the number of the change
/// that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Parted {
    id: NodeId,
    beside: NodeId,
    number: u64,
}

impl Parted {
    fn name(self) -> Vec<u8> {
        format!("{:016x}-{:016x}-{:016x}", self.id.0, self.beside.0, self.number).into_bytes()
    }

    fn parse(name: &[u8]) -> Option<Self> {
        let parts = std::str::from_utf8(name).ok()?.split('-');
        let numbers: Vec<u64> =
            parts.map(|part| u64::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
        let [id, beside, number] = numbers[..] else { return None };
        Some(Parted { id: NodeId(id), beside: NodeId(beside), number })
    }
}

fn folder(top: &Arc<dyn Dir>) -> Result<Arc<dyn Dir>, Error> {
    match top.mkdir(ASIDE, 0o700) {
        Err(error) if error.code != Code::PathExists => Err(error),
        _ => top.child(ASIDE),
    }
}

/// Puts aside what lies under a name from which records moved it before a kill; it gets its place with all that is aside.
///
/// # Errors
/// `CatalogueFailed`, and those of the file system.
pub(super) fn part(turn: &Turn<'_>, writer: &Writer, path: &RelPath, parted: Parted) -> Result<(), Error> {
    let origin = turn.origin()?;
    let Some((id, to)) = place_of(turn.pending, parted, origin, &[])? else { return Ok(()) };
    let held = turn.pending.held(id)?.filter(|held| held.version == own_version((origin, parted.number)));
    let Some(held) = held.filter(|_| to != *path) else { return Ok(()) };
    let Ok((dir, name)) = dir_of(&*writer.plain, path) else { return Ok(()) };
    match dir.entry(name, Detail::Basic) {
        Ok((entry, _)) if is_same_content(&held.stamp, &stamp(&entry)) => {}
        _ => return Ok(()),
    }
    tracing::info!(%path, %to, "what records moved before a kill follows");
    dir.rename(name, &*folder(&writer.plain.root()?)?, &parted.name())
}

/// A plain file that is about to go.
pub(super) struct Leaving {
    parted: Parted,
    top: Arc<dyn Dir>,
    dir: Arc<dyn Dir>,
    name: Vec<u8>,
}

impl Leaving {
    /// Puts it aside; whether it was there.
    fn leave(&self) -> Result<bool, Error> {
        match self.dir.rename(&self.name, &*folder(&self.top)?, &self.parted.name()) {
            Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Puts it back.
    fn stay(&self) -> Result<(), Error> {
        folder(&self.top)?.rename(&self.parted.name(), &*self.dir, &self.name)
    }
}

/// What is aside, by the last change after which it is looked for.
pub(super) type Asides = BTreeMap<u64, Vec<Parted>>;

/// What becomes of what is aside.
#[derive(Default)]
pub struct Fates {
    back: Vec<(Parted, NodeId, RelPath)>,
    gone: Vec<Parted>,
}

/// What has its place again.
pub struct Back {
    id: NodeId,
    path: RelPath,
    held: Held,
    dir: Arc<dyn Dir>,
}

impl Fates {
    /// Whether there is nothing to be done.
    pub fn is_empty(&self) -> bool {
        self.back.is_empty() && self.gone.is_empty()
    }

    /// Does it in the plain files; tells what has its place again.
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
        let placed = self.back.into_iter().filter_map(|(parted, id, path)| {
            let placed = place(&top.0, &top.1, parted, &path);
            match placed {
                Ok((dir, stamp)) => {
                    let version = own_version((origin, parted.number));
                    let held = Held { version, stamp, digest: None };
                    Some(Back { id, path, held, dir })
                }
                Err(error) => {
                    tracing::warn!(%path, %error, "what was written here and put aside has no place");
                    None
                }
            }
        });
        let back = placed.collect();
        // The last one takes the folder along.
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
    let (entry, _) = dir.entry(name, Detail::Basic)?;
    Ok((dir, stamp(&entry)))
}

impl Turn<'_> {
    /// The content of a file that a change of this site wrote.
    pub(super) fn parted(&self, id: NodeId, number: u64) -> Parted {
        Parted { id, beside: self.state.beside.get(&id).copied().unwrap_or(id), number }
    }

    /// What is to be put aside before the file of a name goes: content that was written here and is held as such.
    pub(super) fn leaving(
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

    /// Makes changes by which a file goes; see [`Turn::make`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn make_without(
        &mut self,
        leaving: Option<Leaving>,
        changes: Vec<Change>,
        work: Work,
        plain: impl FnOnce() -> Result<HeldNow, Error>,
    ) -> Result<(), Error> {
        let Some(leaving) = leaving else { return self.make(changes, work, plain) };
        let mut is_aside = false;
        self.make(changes, work, || {
            is_aside = leaving.leave()?;
            plain().inspect_err(|_| {
                if is_aside && let Err(error) = leaving.stay() {
                    tracing::warn!(%error, "a plain file that was put aside stays there");
                }
            })
        })?;
        if is_aside {
            let last = lock(&self.pending.progress).made;
            self.state.asides.get_or_insert_default().entry(last).or_default().push(leaving.parted);
        }
        Ok(())
    }

    /// What becomes of what is aside, after a run of records: of what the home has decided, or of `all`.
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
                Some((id, path)) => fates.back.push((parted, id, path)),
                None if number <= settled => fates.gone.push(parted),
                None => {}
            }
        }
        for (.., path) in &fates.back {
            self.state.unkept.note(&Did::Wrote(path.clone(), 0))?;
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

    /// Notes what has its place again.
    pub fn hold_again(&mut self, back: Vec<Back>) {
        if back.is_empty() {
            return;
        }
        let mut progress = lock(&self.pending.progress);
        let made = progress.made;
        self.pending.show(|seen| {
            seen.held.extend(back.iter().map(|back| (back.id, (Some(back.held.clone()), made))));
        });
        for Back { id, path, held, dir } in back {
            tracing::info!(%path, "content that was removed here is in the volume under another name");
            let did = Some(Did::Wrote(path, 0));
            let held = vec![(id, Some(held))];
            progress.queue.push_back(Item { changes: Vec::new(), held, did, dirs: vec![dir] });
        }
        self.pending.moved.notify_all();
    }

    /// Finds what a PoP that ended had put aside.
    pub(super) fn find_asides(&mut self, writer: &Writer) -> Result<(), Error> {
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
        self.hold_again(back);
        Ok(())
    }
}

/// The file that has a content which was put aside, and where it is, if there is one.
fn place_of(
    pending: &Pending,
    parted: Parted,
    origin: Origin,
    run: &[Record],
) -> Result<Option<(NodeId, RelPath)>, Error> {
    let by = (origin, parted.number);
    let has_it = |node: &Node| matches!(&node.kind, Kind::File(content) if content.by == by);
    let effects = run.iter().filter_map(|record| record.outcome.as_ref().ok());
    let made = effects.flat_map(|effects| &effects.nodes);
    let made = made.filter(|(_, node)| node.as_ref().is_some_and(has_it)).map(|(id, _)| *id);
    for id in [parted.id, parted.beside].into_iter().chain(made) {
        if !pending.node(id)?.as_ref().is_some_and(has_it) {
            continue;
        }
        let at = pending.spot_of(id)?;
        let path = at.map_or(Ok(None), |at| pending.path_of(&at))?;
        return Ok(path.map(|path| (id, path)));
    }
    Ok(None)
}
