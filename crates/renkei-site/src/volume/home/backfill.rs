//! Backfill at the home of a volume: content that followers wrote is fetched from them soon, in the order of the
//! log, one transfer at a time. The site that wrote it is asked first, then others that may have it.
//!
//! A transfer brings many files into a folder beside the volume's; the volume's reconciler moves each into its
//! place if it is the version in the catalogue. A follower that asks for the log is reachable: then content that it
//! alone has is requested again. Guarantee: content in its place is verified and durable, and missing content stays
//! listed as remote, after any kill.

use super::backfill_state::BackfillOutcome;
use crate::access::Access;
use crate::files::checksum;
use crate::snapshot::Snapshot;
use crate::transfer::Watch;
use crate::volume::VolumeService;
use crate::volume::replica::pull::Pull;
use renkei_catalogue::{AwayAt, OWN, VolumeId, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Origin;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::message::{Algorithm, Source};
use renkei_mover::Stop;
use renkei_net::identity::account::Account;
use renkei_store::tree::{dir_of, remove_tree};
use renkei_store::{Detail, Dir, Store};
use renkei_volume::home::follower_registry::site_of;
use renkei_volume::volume_config::unknown;
use renkei_volume::{Arrived, AwayFound, INCOMING, OnlyAt, Volume, VolumeConfig};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Maximum files of one transfer.
const PAGE: usize = 1000;
/// Delay before new content is fetched, so that files written in sequence are fetched together.
const GATHER: Duration = Duration::from_millis(200);
/// Distinguishes job keys of backfills from those of replica pulls.
const JOB: u64 = 0x6177_6179_0000_0000;

impl VolumeService {
    /// The sites that may have content that the home lacks, the writer first.
    pub(crate) fn holders_in_order(
        &self,
        name: &str,
        tree: &VolumeTree,
        wrote: Option<&SiteName>,
        path: &RelPath,
    ) -> Result<Vec<SiteName>, Error> {
        let snapshot = self.context.last_snapshot();
        let facts = snapshot.volumes.get(name).ok_or_else(|| unknown(name))?;
        Ok(self.read_through.sources(wrote, &self.fellows(facts, tree, None)?, path))
    }

    /// Starts the backfill of a volume of this site; one of its followers was just heard from.
    pub(crate) fn collect_from(self: &Arc<Self>, id: VolumeId, heard: &SiteName) {
        let snapshot = self.context.last_snapshot();
        let named = snapshot.volumes.iter().find(|(_, facts)| facts.id == id && !snapshot.follows(facts));
        let Some((name, facts)) = named.filter(|(_, facts)| !facts.care.is_paused) else { return };
        let Some(Ok(volume)) = snapshot.volume(name) else { return };
        if !volume.is_any_away() || !self.collecting.begin(id, heard) {
            return;
        }
        let (weak, name, facts) = (Arc::downgrade(self), name.clone(), facts.clone());
        let work = move || keep_collecting(&weak, &name, &facts, &volume);
        if let Err(error) = std::thread::Builder::new().name("collect".into()).spawn(work) {
            tracing::warn!(%error, "nothing is brought to the home");
            while self.collecting.goes_on(id) {}
        }
    }
}

fn keep_collecting(volumes: &Weak<VolumeService>, name: &str, facts: &VolumeConfig, volume: &Arc<Volume>) {
    while let Some(here) = volumes.upgrade().filter(|here| here.collecting.goes_on(facts.id)) {
        if let Err(error) = collect(&here, name, facts, volume) {
            tracing::warn!(volume = name, %error, "not all is brought that other sites wrote");
        }
        drop(here);
        std::thread::sleep(GATHER);
    }
}

/// One pass over all remote content.
pub(crate) fn collect(
    site: &VolumeService,
    name: &str,
    facts: &VolumeConfig,
    volume: &Arc<Volume>,
) -> Result<(), Error> {
    let mut after = 0;
    while let Some((last, found)) = volume.find_away(after, PAGE)? {
        if site.context.last_snapshot().volumes.get(name).is_some_and(|now| now.care.is_paused) {
            return Ok(());
        }
        after = last;
        let mut by_site: BTreeMap<Origin, Vec<AwayFound>> = BTreeMap::new();
        found.into_iter().for_each(|found| by_site.entry(found.origin).or_default().push(found));
        for (origin, found) in by_site {
            bring_from_any(site, name, facts, volume, origin, found)?;
        }
    }
    if volume.is_any_away() {
        return Ok(());
    }
    // Leftovers in the folder are superseded versions.
    let (plain, account) = (volume.plain().clone(), Account::lookup_to_lend(&facts.account)?);
    let work = move || plain.root().and_then(|root| remove_tree(&*root, INCOMING));
    match account.spawn("collect", work)?.join().expect("a panic aborts the process") {
        Err(error) if error.code != Code::PathNotFound => Err(error),
        _ => Ok(()),
    }
}

/// Fetches files that one site wrote, from it or from others that have them.
fn bring_from_any(
    volumes: &VolumeService,
    name: &str,
    facts: &VolumeConfig,
    volume: &Arc<Volume>,
    origin: Origin,
    found: Vec<AwayFound>,
) -> Result<(), Error> {
    let wrote = site_of(volume.tree(), origin).ok();
    let mut left = replaceable(facts, volume, found)?;
    for from in volumes.holders_in_order(name, volume.tree(), wrote.as_ref(), &RelPath::root())? {
        if left.is_empty() || !volumes.collecting.may_ask(facts.id, &from, origin) {
            continue;
        }
        let wanted = left.len();
        let brought = bring(volumes, name, facts, volume, &from, &mut left);
        volumes.read_through.note_asked(&from, brought.as_ref().err());
        let asked = match &brought {
            _ if left.len() < wanted && brought.is_ok() => BackfillOutcome::Gave,
            // The writer has the content, or a newer version whose record arrives soon.
            Ok(()) if wrote.as_ref() != Some(&from) => BackfillOutcome::Lacks,
            _ => BackfillOutcome::Failed,
        };
        volumes.collecting.note(facts.id, &from, origin, asked);
        if let Err(error) = brought {
            tracing::info!(volume = name, %from, %error, "new content of a follower does not arrive");
        }
    }
    Ok(())
}

/// Files that may be moved into place: a corrupt plain file is replaced only if its owner stays the same.
fn replaceable(
    facts: &VolumeConfig,
    volume: &Volume,
    found: Vec<AwayFound>,
) -> Result<Vec<AwayFound>, Error> {
    let account = Account::lookup_to_lend(&facts.account)?;
    if account.uid == 0 || found.iter().all(|found| !found.is_wrong) {
        return Ok(found);
    }
    let (plain, uid) = (volume.plain().clone(), account.uid);
    let owns = move |found: &AwayFound| {
        let looked = dir_of(&*plain, &found.path).and_then(|(dir, name)| dir.entry(name, Detail::Basic));
        looked.is_ok_and(|(_, raw)| raw.uid == uid)
    };
    let work = move || found.into_iter().filter(|found| !found.is_wrong || owns(found)).collect();
    Ok(account.spawn("collect", work)?.join().expect("a panic aborts the process"))
}

/// Fetches files from one site and has them moved into place; files that did not arrive stay in `wanted`.
fn bring(
    volumes: &VolumeService,
    name: &str,
    facts: &VolumeConfig,
    volume: &Arc<Volume>,
    from: &SiteName,
    wanted: &mut Vec<AwayFound>,
) -> Result<(), Error> {
    let (snapshot, account) = (volumes.context.snapshot(), Account::lookup_to_lend(&facts.account)?);
    let access = Access::of_the_pop(snapshot, &account);
    let plain = volume.plain().clone();
    let base =
        account.spawn("collect", move || folder(&*plain))?.join().expect("a panic aborts the process")?;
    let sources = wanted.iter().map(|found| {
        let to = RelPath::root().child(&found.name)?;
        let from = Place { storage: name.into(), path: found.path.clone() };
        Ok(Source { from, to, alone: false })
    });
    let sources: Vec<Source> = sources.collect::<Result<_, Error>>()?;
    let incoming = RelPath::root().child(INCOMING)?;
    let to = Place { storage: facts.storage.clone(), path: facts.place()?.join(&incoming)? };
    let key = u64::from_le_bytes(*facts.id.first_chunk().expect("16 bytes are more than 8"));
    let shown = format!("content of /{name}");
    let pull = Pull { from, name, id: facts.id, job: key ^ JOB, to, shown, recursive: false };
    let (to, how) = ((base.clone(), None), (&Watch::default(), &Stop::default()));
    let pulled = volumes.pull_into(&access, &account, &pull, to, sources, how);
    // Files that arrived before an interruption are there.
    let (found, checked) = (wanted.clone(), move |found: &AwayFound| is_right(&*base, found));
    let arrived = account.spawn("collect", move || {
        let right = found.iter().filter(|found| checked(found));
        right
            .map(|found| Arrived { id: found.id, version: found.version, name: found.name.clone() })
            .collect()
    })?;
    let arrived: Vec<Arrived> = arrived.join().expect("a panic aborts the process");
    wanted.retain(|found| arrived.iter().all(|one| one.id != found.id));
    if !arrived.is_empty() {
        volume.place(arrived)?;
    }
    pulled
}

/// Whether a received file has the digest in the catalogue, if there is one; a corrupt one is removed.
fn is_right(incoming: &dyn Dir, found: &AwayFound) -> bool {
    let Ok(file) = incoming.open_read(&found.name) else { return false };
    let Some(digest) = found.digest else { return true };
    let read = Ok(file);
    match read.and_then(|file| checksum(&*file, Algorithm::Blake3, &Stop::default())) {
        Ok(read) if read == digest => true,
        Ok(_) => {
            tracing::warn!(path = %found.path, "what came is not what was written; it is asked for again");
            let _ = incoming.remove_file(&found.name);
            false
        }
        // It did not arrive.
        Err(_) => false,
    }
}

/// The folder for incoming files.
fn folder(plain: &dyn Store) -> Result<Arc<dyn Dir>, Error> {
    let root = plain.root()?;
    match root.mkdir(INCOMING, 0o700) {
        Err(error) if error.code != Code::PathExists => Err(error),
        _ => root.child(INCOMING),
    }
}

impl Snapshot {
    /// Remote content of a volume of this site, by site.
    pub(crate) fn only_at(&self, volume: &Volume) -> Result<Vec<OnlyAt>, Error> {
        let told = volume.away_by_site()?.into_iter().map(|AwayAt { origin, count, bytes }| {
            let site = match origin {
                OWN => self.site.to_string(),
                _ => site_of(volume.tree(), origin)
                    .map_or_else(|_| origin.0.to_string(), |site| site.to_string()),
            };
            OnlyAt { site, files: count, bytes }
        });
        Ok(told.collect())
    }
}
