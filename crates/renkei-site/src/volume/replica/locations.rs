//! The locations of replicas: which sites hold files of a volume, as each site reports at the moment of the
//! request.
//!
//! The home knows its followers, so it asks them; a follower asks the home. No list is kept that could be out of
//! date. A site that does not answer within seconds is reported as unknown, with the reason.

use crate::access::{Access, Proof};
use crate::files::staging::Replicas;
use crate::snapshot::Snapshot;
use crate::volume::VolumeService;
use crate::volume::replica::service::await_sent;
use crate::volume::request::ask;
use crate::volume::tree_walk::{count, no_volume};
use crate::volume_access::is_sister;
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::namespace::Kind;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::file::Locality;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Tally, VolumeReply, Whereabouts};
use renkei_mover::Stop;
use renkei_volume::VolumeConfig;
use renkei_volume::home::follower_registry::followers;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Timeout for the answers of all sites together.
const WITHIN: Duration = Duration::from_secs(5);

type Holders = Vec<(SiteName, Result<Tally, Error>)>;

impl Replicas for VolumeService {
    fn locality(&self, place: &Place) -> Result<Locality, Error> {
        let snapshot = self.context.last_snapshot();
        let facts = snapshot.volumes.get(&place.storage).ok_or_else(|| no_volume(place))?;
        let pending = snapshot.pending(&place.storage, facts)?;
        let gone = || Error::new(Code::PathNotFound, "look up", place, "");
        let (id, node) = pending.at(&place.path)?.ok_or_else(gone)?;
        let Kind::File(content) = node.kind else { return Ok(Locality::Online) };
        let is_held = pending.held(id)?.is_some_and(|held| held.is_of(&content));
        Ok(if is_held { Locality::Online } else { Locality::Elsewhere })
    }

    fn replicate(&self, access: &Access, place: &Place) -> Result<Tally, Error> {
        VolumeService::replicate(self, access, place, &Stop::default())
    }

    fn evict(&self, access: &Access, place: &Place) -> Result<Tally, Error> {
        VolumeService::evict(self, access, place, &Stop::default())
    }
}

impl VolumeService {
    /// The locations of the files at a place and below it.
    ///
    /// # Errors
    /// `CatalogueFailed`, `PathNotFound`.
    pub fn whereabouts(self: &Arc<Self>, access: &Access, place: &Place) -> Result<Whereabouts, Error> {
        access.open(place, false)?;
        let snapshot = self.context.snapshot();
        let facts = snapshot.volumes.get(&place.storage).ok_or_else(|| no_volume(place))?;
        let tree = snapshot.volume_tree(facts.id)?;
        if snapshot.follows(facts) {
            await_sent(&snapshot.contents(&place.storage, facts)?, &place.path)?;
        }
        let (all, held) = count(&tree, &place.path)?;
        let (held, others) = match snapshot.follows(facts) {
            true => (held, self.other_holders(facts, &place.path)),
            false => (held, self.holders(&tree, facts.id, &place.path, None)?),
        };
        let mut kept = if snapshot.follows(facts) { Vec::new() } else { self.kept(facts, &tree)? };
        let concerns = |folder: &RelPath| place.path.starts_with(folder) || folder.starts_with(&place.path);
        kept.retain(|kept| RelPath::parse(kept.folder.as_bytes()).is_ok_and(|folder| concerns(&folder)));
        Ok(Whereabouts { all, home: facts.home.clone(), here: snapshot.site.clone(), held, others, kept })
    }

    /// The other holders of files, as the home reports; empty if it is unreachable.
    fn other_holders(&self, facts: &VolumeConfig, path: &RelPath) -> Holders {
        let asked = || {
            let mut session = self.relay.dialler(&self.context.snapshot())?.connect(&facts.home)?;
            match ask(&mut session, AboutVolume::Holders { volume: facts.id, path: path.clone() })? {
                VolumeReply::Holders(holders) => Ok(holders),
                other => Err(violation("holders", format_args!("{other:?}"))),
            }
        };
        asked().unwrap_or_else(|error: Error| {
            tracing::debug!(%error, "the home does not say who holds what");
            Vec::new()
        })
    }

    /// Asks the followers of a volume of this site, all but one, what they hold.
    pub(crate) fn holders(
        self: &Arc<Self>,
        tree: &VolumeTree,
        volume: VolumeId,
        path: &RelPath,
        but: Option<&SiteName>,
    ) -> Result<Holders, Error> {
        let sites: Vec<SiteName> = followers(tree)?.into_keys().filter(|site| Some(site) != but).collect();
        let (told, hears) = mpsc::channel();
        for follower in &sites {
            let (site, told) = (self.clone(), told.clone());
            let (follower, about) = (follower.clone(), AboutVolume::Held { volume, path: path.clone() });
            let work = move || drop(told.send((follower.clone(), site.ask_holder(&follower, about))));
            let spawned = std::thread::Builder::new().name("holders".into()).spawn(work);
            spawned.map_err(|error| Error::new(Code::SystemCall, "start thread", "holders", error))?;
        }
        drop(told);
        let until = Instant::now() + WITHIN;
        let left = || until.saturating_duration_since(Instant::now());
        let mut holders: Holders = std::iter::from_fn(|| hears.recv_timeout(left()).ok()).collect();
        for site in sites {
            if !holders.iter().any(|(other, _)| *other == site) {
                let silent = Error::new(Code::Stalled, "ask", &site, "no answer yet");
                holders.push((site, Err(silent)));
            }
        }
        let own = count(tree, path)?;
        holders.push((self.context.name(), Ok(if tree.away(0, 1)?.is_empty() { own.0 } else { own.1 })));
        holders.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(holders)
    }

    fn ask_holder(&self, follower: &SiteName, about: AboutVolume) -> Result<Tally, Error> {
        let asked = || {
            let mut session = self.relay.dialler(&self.context.snapshot())?.connect(follower)?;
            match ask(&mut session, about)? {
                VolumeReply::Tally(tally) => Ok(tally),
                other => Err(violation("held", format_args!("{other:?}"))),
            }
        };
        asked().map_err(|error| match error.side.as_str() {
            // In this conversation the PoP is the client.
            "client" => Error { side: self.context.name().to_string(), ..error },
            _ => error,
        })
    }

    /// Reports to another site with the volume what this site holds of it.
    pub(crate) fn held_for_others(
        &self,
        proof: &Proof,
        id: VolumeId,
        path: &RelPath,
    ) -> Result<Tally, Error> {
        let tree = self.tree_for_others(proof, id)?;
        Ok(count(&tree, path)?.1)
    }

    /// The copy of a followed volume, for the PoPs of its home and of other followers.
    pub(crate) fn tree_for_others(&self, proof: &Proof, id: VolumeId) -> Result<Arc<VolumeTree>, Error> {
        let snapshot = self.context.snapshot();
        snapshot.volume_tree(of_sister(&snapshot, &proof.principal, id)?.id)
    }
}

/// A followed volume, if the principal is its home or another follower.
fn of_sister<'s>(
    snapshot: &'s Snapshot,
    principal: &Principal,
    id: VolumeId,
) -> Result<&'s VolumeConfig, Error> {
    let mut followed = snapshot.volumes.iter().filter(|(_, facts)| facts.id == id && snapshot.follows(facts));
    let unknown = || Error::new(Code::VolumeUnknown, "tell what is held", "volume", "");
    let (name, facts) = followed.next().ok_or_else(unknown)?;
    if is_sister(principal, snapshot, name, facts) {
        return Ok(facts);
    }
    let cause = "only its home and its followers may ask";
    Err(Error::new(Code::NotAllowed, "tell what is held", principal, cause))
}
