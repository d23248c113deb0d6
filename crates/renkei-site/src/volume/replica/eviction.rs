//! Eviction of replicas, except those whose content no other site is known to have.
//!
//! Content that this site wrote stays until the home has fetched it. The home is asked about the versions in
//! question only; while it is unreachable, they stay.

use crate::access::Access;
use crate::volume::VolumeService;
use crate::volume::replica::service::Copy;
use crate::volume::request::ask;
use crate::volume::tree_walk::{Counts, WalkedFile, each_file, each_page};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::NodeId;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, MOST_VERSIONS, Tally, VolumeReply};
use renkei_mover::Stop;
use renkei_store::tree::dir_of;
use std::collections::HashSet;

impl VolumeService {
    /// Evicts the replicas at a place and below it.
    ///
    /// # Errors
    /// `CatalogueFailed`, and those of the file system. Only copies are listed as failures.
    pub fn evict(&self, access: &Access, place: &Place, stop: &Stop) -> Result<Tally, Error> {
        let copy = self.copy(access, place)?;
        let plain = copy.plain()?;
        let only_here = self.only_here(&copy, &place.path)?;
        let (tree, path, stop) = (copy.contents.tree.clone(), place.path.clone(), stop.clone());
        copy.run("evict", move || {
            let mut tally = Tally::default();
            each_file(&tree, &path, &mut |found| {
                stop.check()?;
                if tree.held(found.id)?.is_none() {
                    return Ok(());
                }
                if only_here.contains(&found.id) {
                    tally.fail(&found.path, only_copy(&found.path));
                    return Ok(());
                }
                // From here on it is not served, whether it can be removed or not.
                tree.set_held(&[(found.id, None)])?;
                let removed = dir_of(&*plain, &found.path).and_then(|(dir, name)| dir.remove_file(name));
                match removed {
                    Err(error) if error.code != Code::PathNotFound => tally.fail(&found.path, error),
                    _ => tally.count(&found),
                }
                Ok(())
            })?;
            Ok(tally)
        })
    }

    /// The files at a path and below it that were written here and whose content the home is not known to have.
    pub(crate) fn only_here(&self, copy: &Copy, path: &RelPath) -> Result<HashSet<NodeId>, Error> {
        let Written { unsent: mut only, sent } = written(copy, path)?;
        match self.not_kept(copy, &sent) {
            Ok(ids) => only.extend(ids),
            Err(error) => {
                tracing::info!(%error, "the home does not say what it has of what was written here");
                only.extend(sent.into_iter().map(|(id, _)| id));
            }
        }
        Ok(only)
    }

    /// The versions whose content the home lacks.
    pub(crate) fn not_kept(&self, copy: &Copy, versions: &[(NodeId, u64)]) -> Result<Vec<NodeId>, Error> {
        let mut missing = Vec::new();
        if versions.is_empty() {
            return Ok(missing);
        }
        let mut session = self.relay.dialler(&self.context.snapshot())?.connect(&copy.facts.home)?;
        for versions in versions.chunks(MOST_VERSIONS) {
            let about = AboutVolume::Kept { volume: copy.facts.id, versions: versions.to_vec() };
            let kept = match ask(&mut session, about)? {
                VolumeReply::Kept(kept) if kept.len() == versions.len() => kept,
                other => return Err(violation("kept", format_args!("{other:?}"))),
            };
            let pairs = versions.iter().zip(kept);
            missing.extend(pairs.filter(|(_, is_kept)| !is_kept).map(|((id, _), _)| *id));
        }
        Ok(missing)
    }
}

/// The files at a path and below it that were written and are held here.
#[derive(Default)]
pub(crate) struct Written {
    /// Files whose changes the home has not received.
    pub(crate) unsent: HashSet<NodeId>,
    /// The versions of the other files.
    pub(crate) sent: Vec<(NodeId, u64)>,
}

pub(crate) fn written(copy: &Copy, path: &RelPath) -> Result<Written, Error> {
    let (tree, pending) = (&copy.contents.tree, &copy.contents.pending);
    let mut written = Written::default();
    let mut sort = |page: Vec<WalkedFile>| {
        let held = tree.held_of(&page.iter().map(|found| found.id).collect::<Vec<_>>())?;
        for found in page {
            let is_own = held.get(&found.id).is_some_and(|held| held.is_own());
            if pending.is_unsent(found.id) {
                written.unsent.insert(found.id);
            } else if is_own {
                written.sent.push((found.id, found.content.version));
            }
        }
        Ok(())
    };
    each_page(tree, path, &mut |page| if page.is_empty() { Ok(()) } else { sort(page) })?;
    Ok(written)
}

fn only_copy(path: &RelPath) -> Error {
    let cause = "it was written here, and its home is not known to have it yet";
    Error::new(Code::OnlyCopy, "evict", path, cause)
}
