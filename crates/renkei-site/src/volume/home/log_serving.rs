//! Log serving: the home of a volume answers the PoPs that follow it, with records, snapshot pages, digests and leases.

use crate::access::Proof;
use crate::volume::VolumeService;
use crate::volume::request::{LOOK_EVERY, PATIENCE, may, shorter};
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::namespace::page::{MOST_ROWS, Page, Reached};
use renkei_core::namespace::{Change, Kind, NodeId, Origin, Record, SequencedChange};
use renkei_core::wire::volume::{AboutVolume, MOST_RECORDS, VolumeReply};
use renkei_core::wire::{encode, parts, violation};
use renkei_mover::Stop;
use renkei_volume::VolumeConfig;
use renkei_volume::home::follower_registry::{follower_number, followers, number_follower};
use renkei_volume::lineage::Claim;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum bytes of a snapshot page, far below the largest frame.
const PAGE_BYTES: usize = 1 << 20;

impl VolumeService {
    /// Answers a request of another site's PoP about a volume of this site.
    ///
    /// # Errors
    /// `NotAllowed`, `VolumeUnknown`, `CatalogueFailed`.
    pub fn about_volume(
        self: &Arc<Self>,
        proof: &Proof,
        about: AboutVolume,
        stop: &Stop,
    ) -> Result<VolumeReply, Error> {
        match about {
            AboutVolume::Follow(name) => self.enlist_follower(proof, &name),
            AboutVolume::Log { volume, after, patience_ms } => {
                self.read_through.note_asked(proof.principal.site(), None);
                self.collect_from(volume, proof.principal.site());
                // A long poll confirms all records before it; pipelined requests do not.
                if patience_ms > 0
                    && let Ok((facts, tree)) = self.open_for(proof, volume, Need::Read)
                {
                    let (site, last) = (proof.principal.site(), tree.position()?.seq);
                    if after > last {
                        return Err(shorter("volume", &facts.home, after, last));
                    }
                    self.confirmed.on_follower(volume, site, after);
                }
                let tree = || {
                    let (facts, tree) = self.open_for(proof, volume, Need::Read)?;
                    let has_news = self.has_news(proof.principal.site(), &facts, &tree);
                    Ok((tree, has_news))
                };
                wait_for_records(tree, after, Duration::from_millis(patience_ms.into()), stop)
            }
            AboutVolume::Submit { volume, changes } => {
                let tree = self.tree_for(proof, volume, Need::Write)?;
                let origin = follower_number(&tree, proof.principal.site())?;
                check_changes(&changes, origin)?;
                let opened =
                    self.context.snapshot().volume_of(volume).ok_or_else(|| no_such("change volume"))??;
                opened.submit(changes)?;
                self.collect_from(volume, proof.principal.site());
                Ok(VolumeReply::Taken)
            }
            AboutVolume::Kept { volume, versions } => {
                let tree = self.tree_for(proof, volume, Need::Read)?;
                kept(&tree, &versions).map(VolumeReply::Kept)
            }
            AboutVolume::Holders { volume, path } => {
                let tree = self.tree_for(proof, volume, Need::Read)?;
                self.holders(&tree, volume, &path, Some(proof.principal.site())).map(VolumeReply::Holders)
            }
            AboutVolume::Page { volume, after } => {
                let tree = self.tree_for(proof, volume, Need::Read)?;
                page_that_fits(&tree, after.as_ref()).map(VolumeReply::Page)
            }
            AboutVolume::Held { volume, path } => {
                self.held_for_others(proof, volume, &path).map(VolumeReply::Tally)
            }
            AboutVolume::Duties { volume, offer } => {
                let (facts, tree) = self.open_for(proof, volume, Need::Read)?;
                self.duties(proof, &facts, &tree, offer).map(VolumeReply::Duties)
            }
            AboutVolume::Digests { volume, versions } => {
                let tree = match self.context.snapshot().volume_of(volume) {
                    Some(_) => self.tree_for(proof, volume, Need::Read)?,
                    None => self.tree_for_others(proof, volume)?,
                };
                noted_digests(&tree, &versions).map(VolumeReply::Digests)
            }
            AboutVolume::Leases { volume, ask, patience_ms } => {
                self.give_leases(proof, volume, &ask, Duration::from_millis(patience_ms.into()), stop)
            }
            AboutVolume::AcquireLease { volume } => self.give_write_lease(proof, volume),
            AboutVolume::CatchUp { volume } => self.tell_last(proof, volume),
            AboutVolume::Lineage { volume, incarnation, after, mark } => {
                let tree = self.tree_for(proof, volume, Need::Read)?;
                self.tell_lineage(proof.principal.site(), volume, &tree, &Claim { incarnation, after, mark })
            }
            other => Err(violation("volume", format_args!("{other:?} of a PoP"))),
        }
    }

    fn enlist_follower(&self, proof: &Proof, name: &str) -> Result<VolumeReply, Error> {
        let snapshot = self.context.snapshot();
        let unknown = || Error::new(Code::VolumeUnknown, "follow", name, "");
        let facts = snapshot.volumes.get(name).filter(|facts| !snapshot.follows(facts));
        let facts = facts.ok_or_else(unknown)?;
        let (volume, writes) = (facts.id, may(facts, &proof.principal, Need::Write));
        let tree = self.tree_for(proof, volume, Need::Read)?;
        let _one = self.numbering.lock().expect("no thread panics while it holds the lock");
        let is_new = !followers(&tree)?.contains_key(proof.principal.site());
        let origin = number_follower(&tree, proof.principal.site())?;
        if is_new {
            self.placing.tell_all(volume);
        }
        tracing::info!(target: "audit", principal = %proof.principal, volume = name, "follows");
        Ok(VolumeReply::Followed { volume, origin, writes })
    }

    /// The tree of a volume of this site, for a follower's PoP that has the permission.
    fn tree_for(&self, proof: &Proof, id: VolumeId, need: Need) -> Result<Arc<VolumeTree>, Error> {
        self.open_for(proof, id, need).map(|(_, tree)| tree)
    }

    /// The same, with the volume's configuration.
    pub(crate) fn open_for(
        &self,
        proof: &Proof,
        id: VolumeId,
        need: Need,
    ) -> Result<(VolumeConfig, Arc<VolumeTree>), Error> {
        let (snapshot, principal) = (self.context.snapshot(), &proof.principal);
        let own = snapshot.volumes.iter().find(|(_, facts)| facts.id == id && !snapshot.follows(facts));
        let unknown = || Error::new(Code::VolumeUnknown, "follow", "volume", "");
        let (name, facts) = own.ok_or_else(unknown)?;
        if !may(facts, principal, need) {
            let cause = format!(
                "renkei volume grant {name} {principal} {}",
                if need == Need::Write { "write" } else { "read" }
            );
            let error =
                Error::new(Code::NotAllowed, "follow", name, format!("its administrator may give: {cause}"));
            tracing::warn!(target: "audit", %principal, %error, "refused");
            return Err(error);
        }
        let volume = snapshot.volume(name).ok_or_else(unknown)??;
        Ok((facts.clone(), volume.tree().clone()))
    }
}

/// Whether the plain files here are these versions.
fn kept(tree: &VolumeTree, versions: &[(NodeId, u64)]) -> Result<Vec<bool>, Error> {
    let held = tree.held_of(&versions.iter().map(|(id, _)| *id).collect::<Vec<_>>())?;
    Ok(versions
        .iter()
        .map(|(id, version)| held.get(id).is_some_and(|held| held.version == *version))
        .collect())
}

/// The digests of these versions that are known here.
fn noted_digests(tree: &VolumeTree, versions: &[(NodeId, u64)]) -> Result<Vec<Option<[u8; 32]>>, Error> {
    let ids: Vec<NodeId> = versions.iter().map(|(id, _)| *id).collect();
    let (nodes, held) = (tree.nodes(&ids)?, tree.held_of(&ids)?);
    let noted = |(id, version): &(NodeId, u64)| {
        let Some(Kind::File(content)) = nodes.get(id).map(|node| &node.kind) else { return None };
        let held = held.get(id).filter(|held| held.is_of(content) || held.expected(*version).is_some());
        let noted = content.digest.or(held.and_then(|held| held.digest));
        noted.filter(|_| content.version == *version)
    };
    Ok(versions.iter().map(noted).collect())
}

fn no_such(op: &str) -> Error {
    Error::new(Code::VolumeUnknown, op, "volume", "")
}

/// Long poll for records, with the permission checked again each round; returns early if there is other news for
/// the follower.
fn wait_for_records(
    tree: impl Fn() -> Result<(Arc<VolumeTree>, bool), Error>,
    after: u64,
    patience: Duration,
    stop: &Stop,
) -> Result<VolumeReply, Error> {
    let until = Instant::now() + patience.min(2 * PATIENCE);
    loop {
        stop.check()?;
        let (tree, has_news) = tree()?;
        let records: Vec<Record> = tree.log(after, MOST_RECORDS as usize)?;
        // Only as many as fit in one message.
        let records = parts(records, MOST_RECORDS as usize).into_iter().next().unwrap_or_default();
        let left = until.saturating_duration_since(Instant::now());
        if !records.is_empty() || left.is_zero() || has_news {
            let last = tree.position()?.seq;
            return Ok(VolumeReply::Records { records, last });
        }
        tree.wait_beyond(after, left.min(LOOK_EVERY));
    }
}

/// A snapshot page with as many rows as fit in one message.
fn page_that_fits(tree: &VolumeTree, after: Option<&Reached>) -> Result<Box<Page>, Error> {
    let mut page = tree.page(after, MOST_ROWS)?;
    loop {
        let (rows, size) = (page.rows(), encode(&page).len());
        if rows <= 1 || size <= PAGE_BYTES {
            return Ok(Box::new(page));
        }
        // The proportional number of rows, minus a margin, since rows differ in size.
        page.cut((rows * PAGE_BYTES / size).saturating_mul(15) / 16);
    }
}

/// Checks that changes are of the site that sends them, and that new nodes are of its range: the number of another
/// site's range would collide when that site assigns it.
fn check_changes(changes: &[SequencedChange], origin: Origin) -> Result<(), Error> {
    if let Some(other) = changes.iter().find(|made| made.origin != origin) {
        return Err(violation("volume", format_args!("a change of origin {}", other.origin.0)));
    }
    let is_other = |id: &NodeId| id.drawn().is_none_or(|(whose, _)| whose != origin);
    match changes.iter().filter_map(|made| new_node(&made.change)).find(is_other) {
        Some(id) => Err(violation("volume", format_args!("a new node {}, which it may not give", id.0))),
        None => Ok(()),
    }
}

/// The id that a change assigns to a new node, if any.
fn new_node(change: &Change) -> Option<NodeId> {
    match change {
        Change::Make { id, .. } => Some(*id),
        Change::SetContent { beside: Some(beside), .. } => Some(beside.id),
        _ => None,
    }
}
