//! Acceptance of another directory as that of a volume at its home, after its files were copied to another disk.
//!
//! Copies have other inode numbers, by which each file would count as written anew. A file with the size and
//! modification time that the catalogue knows is taken for the same file: node numbers, versions, digests and the log
//! stay, so followers notice nothing. The bytes are compared by `renkei verify`. Guarantee: unless it is forced, no
//! directory is accepted in which something is missing.

use super::remote_content::away_content;
use crate::diff::catalogue_dir::CatalogueDir;
use crate::dir_claim;
use crate::dir_claim::DirectoryClaim;
use crate::hands::Hands;
use crate::plain_entry::{Plain, look};
use crate::volume_config::VolumeConfig;
use crate::{VolumeLocation, Volumes, root_identity};
use renkei_catalogue::{HeldReplica, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Kind, Node, NodeId, ROOT};
use renkei_core::path::RelPath;
use renkei_store::local::LocalStore;
use renkei_store::{Dir, Store};
use std::sync::Arc;

/// Rows stored at once.
const BATCH: usize = 1000;

/// Names listed in an error.
const MOST_TOLD: usize = 5;

/// Counts of the files that the catalogue knows.
#[derive(Default)]
struct AcceptReport {
    same: u64,
    other: u64,
    missing: u64,
    examples: Vec<String>,
    rows: Rows,
}

/// Rows to be stored.
#[derive(Default)]
struct Rows {
    held: Vec<(NodeId, Option<HeldReplica>)>,
    /// Rows of files that the catalogue lists as remote and that are in the directory.
    came: Vec<(NodeId, Option<HeldReplica>)>,
}

impl AcceptReport {
    fn note(&mut self, what: &str, path: &RelPath) {
        if self.examples.len() < MOST_TOLD {
            self.examples.push(format!("{what} {path}"));
        }
    }
}

/// Result of an acceptance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Files and directories that are missing.
    pub missing: u64,
    /// Files with another size or time.
    pub other: u64,
}

impl Volumes {
    /// Accepts the present directory as the volume's; with `incomplete` also where files are missing or different.
    ///
    /// # Errors
    /// `VolumeChanged` if files are missing or different, `CatalogueFailed`, those of the file system.
    pub fn accept(
        &self,
        name: &str,
        facts: &VolumeConfig,
        at: &VolumeLocation,
        hands: &dyn Hands,
        incomplete: bool,
    ) -> Result<Taken, Error> {
        // Closed meanwhile, so that no request uses either directory; the next use opens it with the accepted one.
        self.close(facts.id);
        let tree = self.tree(facts.id)?;
        let (name, store) = (name.to_owned(), at.open_plain()?);
        Accepting { name, store, tree, at, own: DirectoryClaim::new(&facts.id, &facts.home) }
            .run(hands, incomplete)
    }
}

/// A directory to be compared with the catalogue.
struct Accepting<'a> {
    name: String,
    store: Arc<LocalStore>,
    tree: Arc<VolumeTree>,
    at: &'a VolumeLocation,
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
        let store = |Rows { held, came }| {
            self.tree.set_held(&held)?;
            self.tree.set_here(&came)
        };
        let mut found = self.go_through(&top, store)?;
        store(std::mem::take(&mut found.rows))?;
        dir_claim::take(&self.store, &self.own, self.at.access, hands)?;
        root_identity::note(&self.tree, &self.store)?;
        tracing::info!(target: "audit", volume = self.name, same = found.same, missing = found.missing, other = found.other,
            "another directory is taken for the volume's");
        Ok(Taken { missing: found.missing, other: found.other })
    }

    /// Compares all files that the catalogue lists as present; `store` gets the rows of unchanged ones.
    fn go_through(
        &self,
        top: &Arc<dyn Dir>,
        store: impl Fn(Rows) -> Result<(), Error>,
    ) -> Result<AcceptReport, Error> {
        let (mut found, mut todo) = (AcceptReport::default(), vec![(RelPath::root(), ROOT)]);
        while let Some((path, id)) = todo.pop() {
            let dir = if path.is_root() { Ok(top.clone()) } else { top.descend(&path) };
            let Ok(dir) = dir else {
                found.missing += 1;
                found.note("missing:", &path);
                continue;
            };
            let mut known = CatalogueDir::of(id, false);
            while known.peek(&self.tree)?.is_some() {
                let (name, node) = known.take();
                let Some((id, node)) = node else { break };
                // An entry whose path is too long has no plain file.
                let Ok(path) = path.child(&name) else {
                    tracing::warn!(
                        volume = self.name,
                        above = path.as_bytes().len(),
                        "a name longer than a path holds is passed over"
                    );
                    continue;
                };
                match &node.kind {
                    Kind::Dir { .. } => todo.push((path, id)),
                    Kind::File(_) => {
                        let plain = look(&*dir, &name)?;
                        if !self.has_come(&plain, (id, &node), &mut found)? {
                            self.compare(plain, &path, id, &mut found)?;
                        }
                    }
                    Kind::Symlink { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => {}
                }
                if found.rows.held.len() + found.rows.came.len() >= BATCH {
                    store(std::mem::take(&mut found.rows))?;
                }
            }
        }
        Ok(found)
    }

    /// Whether this is the content of a file that the catalogue lists as remote; it is counted as present then.
    fn has_come(
        &self,
        plain: &Option<Plain>,
        (id, node): (NodeId, &Node),
        found: &mut AcceptReport,
    ) -> Result<bool, Error> {
        let (Some(plain), Some(content)) = (plain, away_content(&self.tree, id, node)?) else {
            return Ok(false);
        };
        let (stamp, version) = (plain.stamp(), content.version);
        let is_same = (stamp.size, stamp.mtime) == (content.size, node.attributes.mtime);
        let held = self.tree.held(id)?;
        // A corrupt file stays so; a file with the size and time of the former version may be that one.
        let is_wrong = held.as_ref().is_some_and(|held| {
            held.is_lost(version) || (held.stamp.size, held.stamp.mtime) == (stamp.size, stamp.mtime)
        });
        if is_wrong || !is_same || !plain.is_kind_of(node) {
            return Ok(false);
        }
        found.same += 1;
        found.rows.came.push((id, Some(HeldReplica { version, stamp, digest: content.digest })));
        Ok(true)
    }

    fn compare(
        &self,
        plain: Option<Plain>,
        path: &RelPath,
        id: NodeId,
        found: &mut AcceptReport,
    ) -> Result<(), Error> {
        // A file without a row was written at another site and not fetched.
        let Some(held) = self.tree.held(id)? else { return Ok(()) };
        match plain {
            None => {
                found.missing += 1;
                found.note("missing:", path);
            }
            Some(plain) => {
                let stamp = plain.stamp();
                if (stamp.size, stamp.mtime) == (held.stamp.size, held.stamp.mtime) {
                    found.same += 1;
                    found.rows.held.push((id, Some(HeldReplica { stamp, ..held })));
                } else {
                    found.other += 1;
                    found.note("other:", path);
                }
            }
        }
        Ok(())
    }
}
