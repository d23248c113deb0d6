//! Keeps the plain files of replicas under the names that their volume gives them: what is removed there goes here, what
//! is renamed there is renamed here.
//!
//! The catalogue is written first. A kill in between leaves a plain file that nobody is given any more; `replicate` of
//! its folder finds the names again, and brings what has none of its own.

use super::replicas::{dir_of, make_dirs};
use crate::catalogue::VolumeTree;
use crate::identity::account::Account;
use crate::store::Store;
use crate::store::local::LocalStore;
use crate::store::tree::remove_tree;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Effects, Kind, NodeId, Origin, ROOT, Record, Spot};
use renkei_core::path::RelPath;
use std::collections::HashMap;
use std::sync::Arc;

/// What is to be done with plain files.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Remove(RelPath),
    Rename(RelPath, RelPath),
}

/// Stores what records did, and follows it with the plain files.
///
/// # Errors
/// `CatalogueFailed`, `ProtocolViolation`; what happens to plain files is logged.
pub(super) fn apply(
    tree: &VolumeTree,
    origin: Origin,
    records: &[Record],
    plain: Option<(&Arc<LocalStore>, &Account)>,
) -> Result<(), Error> {
    let Some((plain, account)) = plain else { return tree.follow(origin, records) };
    for run in runs(records) {
        let (steps, gone) = steps(tree, run)?;
        tree.follow(origin, run)?;
        if !gone.is_empty() {
            tree.set_held(&gone.into_iter().map(|id| (id, None)).collect::<Vec<_>>())?;
        }
        if !steps.is_empty() {
            let plain = plain.clone();
            let work = move || steps.iter().for_each(|step| take(&plain, step));
            account.spawn("replicas", work)?.join().expect("a panic aborts the process");
        }
    }
    Ok(())
}

/// Cuts records so that a rename stands alone: the paths of all others can be told from the tree before their run.
fn runs(records: &[Record]) -> impl Iterator<Item = &[Record]> {
    records.chunk_by(|a, b| !renames(a) && !renames(b))
}

fn renames(record: &Record) -> bool {
    record.outcome.as_ref().is_ok_and(|effects| {
        let frees = effects.names.iter().any(|(_, id)| id.is_none());
        frees && effects.names.iter().any(|(_, id)| id.is_some())
    })
}

/// What a run does to plain files, and which nodes it ends.
fn steps(tree: &VolumeTree, run: &[Record]) -> Result<(Vec<Step>, Vec<NodeId>), Error> {
    let (mut steps, mut gone, mut paths) = (Vec::new(), Vec::new(), Paths { tree, known: HashMap::new() });
    for effects in run.iter().filter_map(|record| record.outcome.as_ref().ok()) {
        for (spot, _) in effects.names.iter().filter(|(_, id)| id.is_none()) {
            let Some((id, _)) = tree.child(spot)? else { continue };
            let Some(path) = paths.of(spot)? else { continue };
            steps.push(match new_name(effects, id) {
                Some(to) => match paths.of(to)? {
                    Some(to) => Step::Rename(path, to),
                    None => Step::Remove(path),
                },
                None => Step::Remove(path),
            });
        }
        gone.extend(effects.nodes.iter().filter(|(_, node)| node.is_none()).map(|(id, _)| *id));
    }
    Ok((steps, gone))
}

fn new_name(effects: &Effects, node: NodeId) -> Option<&Spot> {
    effects.names.iter().find(|(_, id)| *id == Some(node)).map(|(spot, _)| spot)
}

/// The paths of a tree as it is before a run.
struct Paths<'t> {
    tree: &'t VolumeTree,
    /// Of directories.
    known: HashMap<NodeId, Option<RelPath>>,
}

impl Paths<'_> {
    /// The path of a name; `None` if its directory is not in the tree.
    fn of(&mut self, spot: &Spot) -> Result<Option<RelPath>, Error> {
        self.of_dir(spot.dir)?.map(|dir| dir.child(&spot.name.0)).transpose()
    }

    fn of_dir(&mut self, dir: NodeId) -> Result<Option<RelPath>, Error> {
        if dir == ROOT {
            return Ok(Some(RelPath::root()));
        }
        if let Some(known) = self.known.get(&dir) {
            return Ok(known.clone());
        }
        let path = match self.tree.node(dir)?.map(|node| node.kind) {
            Some(Kind::Dir { parent, .. }) => match self.tree.name_in(parent, dir)? {
                Some(name) => self.of(&Spot { dir: parent, name })?,
                None => None,
            },
            _ => None,
        };
        self.known.insert(dir, path.clone());
        Ok(path)
    }
}

/// Does one step; a plain file that is not there is as good as done.
fn take(plain: &LocalStore, step: &Step) {
    let done = match step {
        Step::Remove(path) => remove(plain, path),
        // Without a replica of what is renamed, that of what was there is wrong all the same.
        Step::Rename(from, to) => match rename(plain, from, to) {
            Err(error) if is_missing(&error) => remove(plain, to),
            done => done,
        },
    };
    if let Err(error) = done.or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) }) {
        tracing::warn!(%error, ?step, "a plain file of a volume could not follow");
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.code, Code::PathNotFound | Code::NotADirectory)
}

fn remove(plain: &LocalStore, path: &RelPath) -> Result<(), Error> {
    let (dir, name) = dir_of(plain, path)?;
    match dir.remove_file(name) {
        Err(error) if error.code == Code::IsADirectory => remove_tree(&*dir, name).map(drop),
        done => done,
    }
}

fn rename(plain: &LocalStore, from: &RelPath, to: &RelPath) -> Result<(), Error> {
    let (from_dir, from_name) = dir_of(plain, from)?;
    // Whatever is in the way had that name before.
    let _ = remove(plain, to);
    let (parent, to_name) = to.split().ok_or_else(|| Error::new(Code::IsADirectory, "rename", to, ""))?;
    let to_dir = make_dirs(&plain.root()?, &RelPath::parse(parent)?)?;
    from_dir.rename(from_name, &*to_dir, to_name)
}
