//! Acceptance of another directory as that of a followed volume's replicas, after its files were copied to another disk
//! or the PoP was restored onto one.
//!
//! Replicas that the catalogue lists are looked up by size and modification time, as `home::accept_dir` does at the
//! home; the bytes are compared by `renkei verify`. Missing and different files are not held any more, and are pulled
//! again as any replica. Where this site writes, plain files that the catalogue does not know get a further name first
//! (`restore_rescue`). Guarantee: nothing in the directory is removed, and nothing that is missing counts as held.

use super::apply::{RunAs, run_one};
use super::outbox::{Listed, Outbox};
use super::restore_rescue::{Rescued, keep_unknown};
use crate::plain_entry::{Plain, look};
use crate::{Scanned, Volumes, root_identity};
use renkei_catalogue::{HeldReplica, VolumeId};
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Content, Kind, NodeId, ROOT};
use renkei_core::path::RelPath;
use renkei_core::units::counted;
use renkei_store::local::LocalStore;
use renkei_store::{Dir, Store};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Names read from the database, or rows stored, at once.
const PAGE: usize = 1000;

/// Comparison of a directory with the replica rows.
#[derive(Debug, Default)]
pub struct CopyTaken {
    /// Unchanged files.
    pub same: u64,
    /// Missing files.
    pub missing: u64,
    /// Files with another size or time.
    pub other: u64,
    /// Missing or different files that were written here.
    own: u64,
    /// Files that the catalogue does not know, with further names.
    pub rescued: Rescued,
    rows: HashMap<NodeId, Option<HeldReplica>>,
}

impl From<CopyTaken> for Scanned {
    fn from(taken: CopyTaken) -> Self {
        let CopyTaken { missing, other, rescued: Rescued { count, failed, folder }, .. } = taken;
        let mut examples = Vec::new();
        if missing + other > 0 {
            examples.push(format!(
                "{}, {other} are other files: they are not held any more",
                counted(missing, "replica is missing", "replicas are missing")
            ));
        }
        if count > 0 {
            examples.push(format!(
                "{} in the folder {folder}",
                counted(
                    count,
                    "file that the catalogue does not know is kept",
                    "files that the catalogue does not know are kept"
                )
            ));
        }
        Scanned { new: count, gone: missing, changed: other, failed, examples, ..Scanned::default() }
    }
}

impl Volumes {
    /// Accepts the present directory as that of a followed volume's replicas; with `incomplete` also where content
    /// may be missing that no other site has: of own changes in the outbox, or of files that were written here.
    ///
    /// # Errors
    /// `VolumeChanged`, `CatalogueFailed`, those of the file system.
    pub fn accept_copy(
        &self,
        id: VolumeId,
        pending: &Arc<Outbox>,
        plain: &Arc<LocalStore>,
        run_as: &RunAs<'_>,
        incomplete: bool,
    ) -> Result<CopyTaken, Error> {
        let name = &*pending.name;
        let is_other = root_identity::check(name, pending.tree(), plain).is_err();
        let turn = pending.quiet_turn()?;
        let (copy, store) = (pending.clone(), plain.clone());
        let mut taken = run_one(run_as, move || compare(&copy, &*store))??;
        if is_other && !incomplete {
            refuse_incomplete(name, pending.count(), taken.own)?;
        }
        let rows: Vec<_> = taken.rows.drain().collect();
        rows.chunks(PAGE).try_for_each(|rows| pending.tree().set_held(rows))?;
        if is_other && pending.enlisted().is_some_and(|enlisted| enlisted.writes) {
            let (copy, store) = (pending.clone(), plain.clone());
            taken.rescued = run_one(run_as, move || keep_unknown(&copy, &store))??;
        }
        if taken.rescued.failed > 0 && !incomplete {
            return Err(not_kept(name, &taken.rescued));
        }
        root_identity::note(pending.tree(), plain)?;
        self.replaced_ones().remove(&id);
        drop(turn);
        let CopyTaken { same, missing, other, rescued: Rescued { count, failed, folder }, .. } = &taken;
        tracing::info!(target: "audit", volume = name, same, missing, other, kept = count, failed, folder,
            "another directory is taken for that of the volume's replicas");
        Ok(taken)
    }
}

fn refuse_incomplete(name: &str, waiting: u64, own: u64) -> Result<(), Error> {
    let what = match (waiting, own) {
        (0, 0) => return Ok(()),
        (0, own) => counted(
            own,
            "file that was written here is missing in it or another one",
            "files that were written here are missing in it or others",
        ),
        (waiting, _) => counted(
            waiting,
            "change of this site waits for the home",
            "changes of this site wait for the home",
        ),
    };
    let cause = format!(
        "{what}, and their content may be in the directory that was here before; move that one back, or give it up with --accept --yes"
    );
    Err(Error::new(Code::VolumeChanged, "accept volume", name, cause))
}

fn not_kept(name: &str, rescued: &Rescued) -> Error {
    let cause = format!(
        "{} files or directories that the catalogue does not know could not be looked at or kept in the folder {} (the log names them): what \
         is fetched later would replace them; move them away, or give them up with --accept --yes",
        rescued.failed, rescued.folder
    );
    Error::new(Code::VolumeChanged, "accept volume", name, cause)
}

/// Compares all held files with the plain directory.
fn compare(pending: &Outbox, plain: &dyn Store) -> Result<CopyTaken, Error> {
    let (top, mut taken) = (plain.root()?, CopyTaken::default());
    // A hostile home may send a cycle of directories.
    let (mut todo, mut seen) = (vec![(RelPath::root(), ROOT)], HashSet::from([ROOT]));
    let mut passed_over = 0_u64;
    while let Some((path, id)) = todo.pop() {
        let dir = if path.is_root() { Some(top.clone()) } else { top.descend(&path).ok() };
        let mut after = None;
        loop {
            let Listed { names, next } = pending.list(id, after.as_ref(), PAGE)?;
            for (name, id, node) in names {
                match &node.kind {
                    // An entry whose path is too long has no plain file.
                    Kind::Dir { .. } if seen.insert(id) => match path.child(&name.0) {
                        Ok(path) => todo.push((path, id)),
                        Err(_) => passed_over += 1,
                    },
                    Kind::File(content) => {
                        taken.look_at(pending, dir.as_deref(), &name.0, (id, content))?;
                    }
                    _ => {}
                }
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
    }
    if passed_over > 0 {
        tracing::warn!(
            volume = &*pending.name,
            passed_over,
            "directories that are longer than a path holds have nothing here"
        );
    }
    Ok(taken)
}

impl CopyTaken {
    fn look_at(
        &mut self,
        pending: &Outbox,
        dir: Option<&dyn Dir>,
        name: &[u8],
        (id, content): (NodeId, &Content),
    ) -> Result<(), Error> {
        let Some(held) = pending.held(id)?.filter(|held| held.is_of(content)) else { return Ok(()) };
        let found = dir.map_or(Ok(None), |dir| look(dir, name))?;
        let is_same = |stamp: &Stamp| (stamp.size, stamp.mtime) == (held.stamp.size, held.stamp.mtime);
        match found.as_ref().map(Plain::stamp).filter(is_same) {
            Some(stamp) => {
                self.same += 1;
                self.rows.insert(id, Some(HeldReplica { stamp, ..held }));
            }
            None => {
                self.own += u64::from(held.is_own());
                match found {
                    Some(_) => self.other += 1,
                    None => self.missing += 1,
                }
                // Another name of the file may exist.
                self.rows.entry(id).or_insert(None);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep_tree::deep;
    use renkei_catalogue::Trees;
    use renkei_config::home::Home;
    use renkei_store::leases::LeaseTable;
    use renkei_store::local::AccessMode;

    #[test]
    fn directories_deeper_than_path_max_do_not_prevent_acceptance() {
        let folder = tempfile::tempdir().unwrap();
        let trees = Trees::open("", &Home::at(folder.path())).unwrap();
        let (tree, journal) = (trees.tree([7; 16]).unwrap(), folder.path().join("journal"));
        tree.decide(&deep()).unwrap();
        let pending = Outbox::load("v", tree.clone(), &journal, LeaseTable::default()).unwrap();
        let plain = LocalStore::open(folder.path(), AccessMode::ReadWrite).unwrap();
        let taken = compare(&pending, &plain).unwrap();
        assert_eq!((taken.same, taken.missing), (0, 0), "nothing was held");
        // Entries after the deep directories are compared.
        let (id, node) = tree.at(&RelPath::parse(b"z").unwrap()).unwrap().unwrap();
        let Kind::File(content) = node.kind else { panic!("{node:?}") };
        let held = HeldReplica { version: content.version, stamp: Stamp::default(), digest: None };
        tree.set_held(&[(id, Some(held))]).unwrap();
        assert_eq!(compare(&pending, &plain).unwrap().missing, 1);
    }
}
