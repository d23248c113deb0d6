//! Taking another directory for that of a volume, after its files were copied to another disk.
//!
//! Copies have other inode numbers, by which each file would count as written anew. What has the size and the time of modification
//! that the catalogue knows is taken for what it was: numbers, versions, digests and the log stay, so followers notice nothing.
//! Whether the bytes are the same tells `renkei verify`. Guarantee: unless told to, nothing is taken where something is missing.

use super::away::Hands;
use super::claim::{self, DirectoryClaim};
use super::facts::Facts;
use super::known::Known;
use super::plain::look;
use super::{Site, Volumes, top};
use crate::catalogue::{Held, VolumeTree};
use crate::store::local::LocalStore;
use crate::store::{Dir, Store};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Kind, NodeId, ROOT};
use renkei_core::path::RelPath;
use std::sync::Arc;

/// Rows that are stored at once.
const BATCH: usize = 1000;

/// Names that are told.
const MOST_TOLD: usize = 5;

/// What was found of the files that the catalogue knows.
#[derive(Default)]
struct Found {
    same: u64,
    other: u64,
    missing: u64,
    examples: Vec<String>,
    /// What is to be stored.
    rows: Vec<(NodeId, Option<Held>)>,
}

impl Found {
    fn note(&mut self, what: &str, path: &RelPath) {
        if self.examples.len() < MOST_TOLD {
            self.examples.push(format!("{what} {path}"));
        }
    }
}

/// What was accepted as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Files and directories that are missing.
    pub missing: u64,
    /// Files with another size or time.
    pub other: u64,
}

impl Volumes {
    /// Takes the directory that is there for the volume's; with `incomplete` also where files are missing or others.
    ///
    /// # Errors
    /// `VolumeChanged` if it is not complete, `CatalogueFailed`, those of the file system.
    pub fn accept(
        &self,
        name: &str,
        facts: &Facts,
        at: &Site,
        hands: &dyn Hands,
        incomplete: bool,
    ) -> Result<Taken, Error> {
        // What comes meanwhile would be compared with one directory or the other; it is opened anew with the one that is accepted.
        self.close(facts.id);
        let tree = self.tree(facts.id)?;
        let (name, store) = (name.to_owned(), at.open_plain()?);
        Accepting { name, store, tree, at, own: DirectoryClaim::new(&facts.id, &facts.home) }
            .run(hands, incomplete)
    }
}

/// A directory that is compared with the catalogue.
struct Accepting<'a> {
    name: String,
    store: Arc<LocalStore>,
    tree: Arc<VolumeTree>,
    at: &'a Site,
    own: DirectoryClaim,
}

impl Accepting<'_> {
    fn run(&self, hands: &dyn Hands, incomplete: bool) -> Result<Taken, Error> {
        let top = self.store.root()?;
        let found = self.go_through(&top, |_| Ok(()))?;
        if found.missing + found.other > 0 && !incomplete {
            let (missing, other, all) =
                (found.missing, found.other, found.same + found.missing + found.other);
            let cause = format!(
                "of {all} files and directories {missing} are missing and {other} have another size or time ({}); copy what is \
                 missing, or take it as it is, which removes it for all sites, with --accept --yes",
                found.examples.join(", ")
            );
            return Err(Error::new(Code::VolumeChanged, "accept volume", &self.name, cause));
        }
        let mut found = self.go_through(&top, |rows| self.tree.set_held(rows))?;
        self.tree.set_held(&std::mem::take(&mut found.rows))?;
        claim::take(&self.store, &self.own, self.at.access, hands)?;
        top::note(&self.tree, &self.store)?;
        tracing::info!(target: "audit", volume = self.name, same = found.same, missing = found.missing, other = found.other,
            "another directory is taken for the volume's");
        Ok(Taken { missing: found.missing, other: found.other })
    }

    /// Looks at all that the catalogue knows and has here; `store` is given rows for what is the same.
    fn go_through(
        &self,
        top: &Arc<dyn Dir>,
        store: impl Fn(&[(NodeId, Option<Held>)]) -> Result<(), Error>,
    ) -> Result<Found, Error> {
        let (mut found, mut todo) = (Found::default(), vec![(RelPath::root(), ROOT)]);
        while let Some((path, id)) = todo.pop() {
            let dir = if path.is_root() { Ok(top.clone()) } else { top.descend(&path) };
            let Ok(dir) = dir else {
                found.missing += 1;
                found.note("missing:", &path);
                continue;
            };
            let mut known = Known::of(id, false);
            while known.peek(&self.tree)?.is_some() {
                let (name, node) = known.take();
                let Some((id, node)) = node else { break };
                let path = path.child(&name)?;
                match node.kind {
                    Kind::Dir { .. } => todo.push((path, id)),
                    Kind::File(_) => self.look_at(&*dir, &name, &path, id, &mut found)?,
                    Kind::Symlink { .. } | Kind::Merged { .. } => {}
                }
                if found.rows.len() >= BATCH {
                    store(&std::mem::take(&mut found.rows))?;
                }
            }
        }
        Ok(found)
    }

    fn look_at(
        &self,
        dir: &dyn Dir,
        name: &[u8],
        path: &RelPath,
        id: NodeId,
        found: &mut Found,
    ) -> Result<(), Error> {
        // What is not here was written at another site and has not come.
        let Some(held) = self.tree.held(id)? else { return Ok(()) };
        match look(dir, name)? {
            None => {
                found.missing += 1;
                found.note("missing:", path);
            }
            Some(plain) => {
                let stamp = plain.stamp();
                if (stamp.size, stamp.mtime) == (held.stamp.size, held.stamp.mtime) {
                    found.same += 1;
                    found.rows.push((id, Some(Held { stamp, ..held })));
                } else {
                    found.other += 1;
                    found.note("other:", path);
                }
            }
        }
        Ok(())
    }
}
