//! Log shipping: the home of a volume serves records of its log to followers, and this site tails the logs of other
//! homes' volumes into its copies.
//!
//! A follower asks for the records after its last one and waits at the home for more (long poll); every request is
//! idempotent. Guarantee: the copy is always the tree as it was at some record of the home's log, on stable
//! storage. Reads here never wait for the home. Non-goal: content of files (`read_through`).

use super::follower::bootstrap::take_pages;
use super::follower::outbox_push::hand_in;
use super::site_leases::spawn_lease_keepers;
use crate::Site;
use crate::access::{Access, Proof};
use crate::snapshot::Snapshot;
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::namespace::page::{MOST_ROWS, Page, Reached};
use renkei_core::namespace::{Change, Kind, NodeId, Origin, Record, SequencedChange};
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::file::Changed;
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::volume::{AboutVolume, Descent, MOST_RECORDS, Tally, VolumeReply, VolumeStatus};
use renkei_core::wire::{encode, parts, violation};
use renkei_mover::Stop;
use renkei_mover::connect::dial::Session;
use renkei_net::identity::account::Account;
use renkei_store::Store;
use renkei_store::passwd::group_name;
use renkei_volume::VolumeConfig;
use renkei_volume::creation::refuse_taken;
use renkei_volume::dir_claim::{DirectoryClaim, mark};
use renkei_volume::follower::apply::{RunAs, apply};
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::recovery::recover;
use renkei_volume::follower::view::Writer;
use renkei_volume::grant::{Grant, folders};
use renkei_volume::home::follower_registry::{follower_number, followers, number_follower};
use renkei_volume::lineage::{Claim, note_followed};
use renkei_volume::settings::VolumeSettings;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Duration of a long poll for records, which also serves as a keep-alive.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pipelined requests for pages of the log, so that a long RTT is not paid for each.
const PAGES_AHEAD: u64 = 64;
/// Poll interval of the log: a daemon that shares the database sends no notifications of its writes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Backoff after a failed request to a home: initial and maximum.
const AGAIN_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Maximum consecutive answers without records although the home announces more.
const MOST_EMPTY: u32 = 10;
/// Poll interval for new volumes to follow.
const TICK: Duration = Duration::from_secs(1);
/// Maximum bytes of a snapshot page, far below the largest frame.
const PAGE_BYTES: usize = 1 << 20;

/// The replication state of a followed volume.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// The last record announced by the home.
    pub last: u64,
    /// The last contact with the home.
    pub heard: Option<Instant>,
    /// The current error.
    pub trouble: Option<Error>,
    /// Whether the home has truncated records that are needed here.
    is_late: bool,
}

/// The volumes that this site follows.
#[derive(Default)]
pub(crate) struct Following {
    volumes: Mutex<HashMap<VolumeId, Standing>>,
    /// Held while a follower is assigned its number.
    numbering: Mutex<()>,
}

impl Following {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Standing>> {
        self.volumes.lock().expect("no thread panics while it holds the lock")
    }

    /// Adds a volume; false if it is followed already.
    fn begin(&self, id: VolumeId) -> bool {
        let mut volumes = self.lock();
        let is_new = !volumes.contains_key(&id);
        volumes.entry(id).or_default();
        is_new
    }

    fn change(&self, id: &VolumeId, change: impl FnOnce(&mut Standing)) {
        if let Some(standing) = self.lock().get_mut(id) {
            change(standing);
        }
    }

    /// Records why a volume cannot be followed at the moment.
    pub(crate) fn note_trouble(&self, id: &VolumeId, error: Error) {
        self.change(id, |standing| standing.trouble = Some(error));
    }

    /// The replication state of a volume.
    pub(crate) fn standing(&self, id: &VolumeId) -> Standing {
        self.lock().get(id).cloned().unwrap_or_default()
    }
}

/// Starts the thread that starts followers, which runs as long as the site exists.
pub fn spawn_following(site: &Arc<Site>) -> Result<(), Error> {
    let site = Arc::downgrade(site);
    spawn("following", move || {
        while let Some(here) = site.upgrade() {
            let turn = here.context.workers.begin("following");
            let snapshot = here.last_snapshot();
            for (name, facts) in followed(&snapshot) {
                begin(&here, name, facts);
                if here.following.standing(&facts.id).heard.is_some() {
                    here.hold_what_shall_be(name, &facts.id);
                }
            }
            here.read_through.close_idle();
            drop(turn);
            drop((here, snapshot));
            std::thread::sleep(TICK);
        }
    })
}

/// Starts following a volume, unless it is followed already.
fn begin(site: &Arc<Site>, name: &str, facts: &VolumeConfig) {
    if !site.following.begin(facts.id) {
        return;
    }
    let (weak, name, followed) = (Arc::downgrade(site), name.to_owned(), facts.clone());
    if let Err(error) = spawn("follow", move || keep_following(&weak, &name, &followed)) {
        tracing::warn!(%error, "a volume is not followed");
        site.following.lock().remove(&facts.id);
    }
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", name, error))
}

fn followed(snapshot: &Snapshot) -> impl Iterator<Item = (&String, &VolumeConfig)> {
    snapshot.volumes.iter().filter(|(_, facts)| snapshot.follows(facts))
}

pub(crate) fn is_followed(site: &Site, facts: &VolumeConfig) -> bool {
    followed(&site.last_snapshot()).any(|(_, now)| now.id == facts.id && now.home == facts.home)
}

/// Follows one volume until the subscription ends.
fn keep_following(site: &Weak<Site>, name: &str, facts: &VolumeConfig) {
    let mut pause = AGAIN_AFTER.0;
    if let Some(here) = site.upgrade()
        && let Err(error) = begin_writing(&here, name, facts)
    {
        tracing::warn!(volume = name, %error, "local changes are not submitted to the home");
    }
    while let Some(here) = site.upgrade().filter(|site| is_followed(site, facts)) {
        let mut heard = false;
        let Err(error) = follow(&here, name, facts, &mut heard) else { break };
        if error.code == Code::RecordsForgotten {
            here.following.change(&facts.id, |standing| standing.is_late = true);
        }
        tracing::info!(volume = name, home = %facts.home, %error, "the home of a volume is not heard");
        here.following.change(&facts.id, |standing| standing.trouble = Some(error));
        drop(here);
        pause = if heard { AGAIN_AFTER.0 } else { (pause * 2).min(AGAIN_AFTER.1) };
        std::thread::sleep(pause);
    }
    if let Some(here) = site.upgrade() {
        here.following.lock().remove(&facts.id);
    }
}

/// Recovers the state of a PoP that was killed, and starts the push of local changes.
fn begin_writing(site: &Arc<Site>, name: &str, facts: &VolumeConfig) -> Result<(), Error> {
    let (contents, account) =
        (site.snapshot().contents(name, facts)?, Account::lookup_to_lend(&facts.account)?);
    let pending = contents.pending.clone();
    if let Some(plain) = contents.plain {
        let group = group_name(account.gid).unwrap_or_else(|| account.gid.to_string());
        let writer = Writer { plain, owner: account.name.clone(), group };
        let work = move || recover(&pending, &writer);
        account.spawn("recover", work)?.join().expect("a panic aborts the process")?;
    }
    spawn_lease_keepers(site, name, facts, &contents.pending)?;
    let (weak, name, facts) = (Arc::downgrade(site), name.to_owned(), facts.clone());
    spawn("hand in", move || hand_in(&weak, &name, &facts))
}

/// Applies records as they arrive; returns without an error when the volume is no longer followed.
fn follow(site: &Arc<Site>, name: &str, facts: &VolumeConfig, heard: &mut bool) -> Result<(), Error> {
    let contents = site.snapshot().contents(name, facts)?;
    let account = Account::lookup_to_lend(&facts.account)?;
    let (tree, plain) = (&contents.tree, contents.plain.as_ref().map(|plain| (plain, &account)));
    let run_as = |work: Box<dyn FnOnce() + Send>| {
        account.spawn("replicas", work)?.join().expect("a panic aborts the process");
        Ok(())
    };
    let pending = &contents.pending;
    let (mut session, found) = site.home_of_log(facts, tree)?;
    if let Some((incarnation, descent)) = found {
        if let Descent::Until(until) = descent {
            site.reconcile(&mut session, name, facts, &contents, (incarnation, until))?;
        }
        note_followed(tree, incarnation)?;
    }
    let origin = enlist(&mut session, name, facts, pending)?;
    let is_late = site.following.standing(&facts.id).is_late;
    if is_late || tree.position()?.seq == 0 || tree.has_late_copy()? {
        take_pages(&mut session, facts.id, tree, origin, plain, &|| is_followed(site, facts))?;
        pending.begin_anew()?;
        site.holding.touch_all(&facts.id);
        pending.leases().changed_anywhere(None, &Changed { all: true, ..Changed::default() });
        site.following.change(&facts.id, |standing| standing.is_late = false);
    }
    tree.remove_old_copies()?;
    pending.on_connected();
    let (mut last, mut empty) = (0, 0);
    while is_followed(site, facts) {
        let (mut seq, mut broken) = (tree.position()?.seq, None);
        let patience = match *heard {
            true if site.holding.has_news(&facts.id) => LOOK_EVERY,
            true => PATIENCE,
            // The last record of the home is not known yet.
            false => Duration::ZERO,
        };
        let asked = seq;
        session.ask_each(pages(facts.id, seq, last, patience), |reply| {
            let VolumeReply::Records { records, last: now } = about(reply?)? else {
                return Err(violation("log", "another answer"));
            };
            last = now;
            let follows = records.first().is_none_or(|first| first.seq == seq + 1);
            if broken.is_none() && follows {
                seq += records.len() as u64;
                let plain = plain.map(|(plain, _)| (plain, &run_as as &RunAs<'_>));
                broken = apply(pending, origin, &records, plain).err();
                site.holding.touch(&facts.id, &records);
            }
            Ok(())
        })?;
        broken.map_or(Ok(()), Err)?;
        if last < seq {
            return Err(shorter(name, &facts.home, seq, last));
        }
        // A record added while the answer was prepared arrives with the next one.
        empty = if seq == asked && last > seq { empty + 1 } else { 0 };
        if empty > MOST_EMPTY {
            return Err(violation("log", "no records, though it says that there are more"));
        }
        *heard = true;
        site.read_through.note_asked(&facts.home, None);
        site.following.change(&facts.id, |standing| {
            (standing.last, standing.heard, standing.trouble) = (last, Some(Instant::now()), None);
        });
        site.ask_duties(&mut session, name, facts, seq == asked || pending.is_limited())?;
        if seq == last {
            pending.on_whole()?;
            site.hold_what_shall_be(name, &facts.id);
        }
        if seq == asked && pending.enlisted().is_none_or(|enlisted| !enlisted.writes) {
            // No records arrived: check whether this site has a write grant by now.
            enlist(&mut session, name, facts, pending)?;
        }
    }
    Ok(())
}

/// The error for a home whose log ends before the last record of the copy.
pub(crate) fn shorter(name: &str, home: &SiteName, seq: u64, last: u64) -> Error {
    let cause = format!("record {seq} was followed, and the log of {home} ends at {last}");
    Error::new(Code::HistoryDiffers, "follow", name, cause)
}

/// The requests after a record: several pages ahead of their answers if there are known to be more, else one long
/// poll. After a page with fewer records than the maximum the answers ahead are useless.
fn pages(volume: VolumeId, seq: u64, last: u64, patience: Duration) -> impl Iterator<Item = Request> {
    let page = u64::from(MOST_RECORDS);
    let count = last.saturating_sub(seq).div_ceil(page).clamp(1, PAGES_AHEAD);
    let patience_ms = if count > 1 { 0 } else { patience.as_millis() as u32 };
    (0..count).map(move |number| {
        Request::Volume(AboutVolume::Log { volume, after: seq + number * page, patience_ms })
    })
}

/// Registers this site with the home and records its number and permissions.
fn enlist(
    session: &mut Session,
    name: &str,
    facts: &VolumeConfig,
    pending: &Outbox,
) -> Result<Origin, Error> {
    match ask(session, AboutVolume::Follow(name.into()))? {
        VolumeReply::Followed { volume, origin, writes } if volume == facts.id => {
            pending.enlist(origin, writes)?;
            Ok(origin)
        }
        VolumeReply::Followed { .. } => {
            let cause = format!(
                "{} has another volume of that name now; unsubscribe and subscribe again",
                facts.home
            );
            Err(Error::new(Code::VolumeUnknown, "follow", name, cause))
        }
        other => Err(violation("follow", format_args!("{other:?}"))),
    }
}

/// Sends a request about a volume to a PoP.
pub(crate) fn ask(session: &mut Session, about: AboutVolume) -> Result<VolumeReply, Error> {
    self::about(session.ask(Request::Volume(about))?)
}

pub(crate) fn about(reply: Reply) -> Result<VolumeReply, Error> {
    match reply {
        Reply::Volume(reply) => Ok(reply),
        other => Err(violation("volume", format_args!("{other:?}"))),
    }
}

/// A request of an administrator to follow a volume of another site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Subscription {
    /// The volume's name, the same here.
    pub name: String,
    /// Its home.
    pub home: SiteName,
    /// The storage for replicas; empty for none.
    pub storage: String,
    /// The account that owns the replicas.
    pub account: String,
    /// The pinned folders.
    pub hold: Vec<String>,
    /// Whether policies of the home are refused.
    #[serde(default)]
    pub refuses_policy: bool,
}

impl Site {
    /// Subscribes to a volume. All users of this site may read it, until its grants say otherwise.
    ///
    /// # Errors
    /// Those of the home; `PathExists` for a name that is taken here.
    pub fn subscribe(&self, wanted: &Subscription) -> Result<(), Error> {
        let (snapshot, name) = (self.snapshot(), &wanted.name);
        if snapshot.volumes.contains_key(name) || snapshot.storages.contains_key(name) {
            return Err(Error::new(
                Code::PathExists,
                "subscribe",
                name,
                "a volume or storage here has that name",
            ));
        }
        if wanted.home == snapshot.site {
            return Err(Error::new(Code::UsageInvalid, "subscribe", name, "its home is this site"));
        }
        if let Some(storage) = snapshot.config.storage.get(&wanted.storage) {
            refuse_taken(&storage.path.join(name), &snapshot.config, self.home())?;
        }
        let mut session = self.relay.dialler(&snapshot)?.connect(&wanted.home)?;
        let VolumeReply::Followed { volume, .. } = ask(&mut session, AboutVolume::Follow(name.clone()))?
        else {
            return Err(violation("follow", "another answer"));
        };
        if !wanted.storage.is_empty() {
            let account = Account::lookup_to_lend(&wanted.account)?;
            let store = snapshot.storage(&wanted.storage)?.store()?;
            make_folder(&account, store, name)?;
            let root = &snapshot.storage(&wanted.storage)?.storage.path;
            mark(root, &RelPath::parse(name.as_bytes())?, &DirectoryClaim::new(&volume, &snapshot.site));
        }
        let path = if wanted.storage.is_empty() { String::new() } else { name.clone() };
        let grant = vec![Grant::parse(&format!("*@{}", snapshot.site), "read", "")?];
        let (home, account) = (wanted.home.clone(), wanted.account.clone());
        let facts = VolumeConfig {
            hold: wanted.hold.clone(),
            grant,
            care: VolumeSettings { refuses_policy: wanted.refuses_policy, ..VolumeSettings::default() },
            ..VolumeConfig::new(volume, home, &wanted.storage, path, account)
        };
        facts.store(self.home(), name)?;
        tracing::info!(target: "audit", volume = name, home = %wanted.home, "subscribed");
        Ok(())
    }

    /// The status of a volume.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn volume_status(&self, name: &str, facts: &VolumeConfig) -> Result<VolumeStatus, Error> {
        let (snapshot, standing) = (self.snapshot(), self.following.standing(&facts.id));
        let (tree, is_followed) = (snapshot.volume_tree(facts.id)?, snapshot.follows(facts));
        let seq = tree.position()?.seq;
        Ok(VolumeStatus {
            name: name.into(),
            id: facts.id,
            home: facts.home.clone(),
            seq,
            last: standing.last.max(seq),
            pending: if is_followed { snapshot.pending(name, facts)?.count() } else { 0 },
            heard_s: standing.heard.map(|heard| heard.elapsed().as_secs()),
            trouble: standing.trouble,
        })
    }

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
                let opened = self.snapshot().volume_of(volume).ok_or_else(|| no_such("change volume"))??;
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
                let tree = match self.snapshot().volume_of(volume) {
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

    /// Answers a user of volumes here.
    ///
    /// # Errors
    /// As the operations.
    pub fn about_volume_for(
        self: &Arc<Self>,
        access: &Access,
        about: AboutVolume,
        stop: &Stop,
    ) -> Result<VolumeReply, Error> {
        match about {
            AboutVolume::List => self.list_volumes(access).map(VolumeReply::Volumes),
            AboutVolume::Replicate(place) => self.here(self.replicate(access, &place, stop)),
            AboutVolume::Evict(place) => self.here(self.evict(access, &place, stop)),
            AboutVolume::Verify { place, repair } => self.here(self.verify(access, &place, repair, stop)),
            AboutVolume::Where(place) => self.whereabouts(access, &place).map(VolumeReply::Whereabouts),
            AboutVolume::Known(place) => self.known_digest(access, &place).map(VolumeReply::Digest),
            AboutVolume::Manage { name, what } => {
                self.manage_volume(access, &name, &what, stop).map(VolumeReply::Told)
            }
            other => Err(violation("volume", format_args!("{other:?} of a user"))),
        }
    }

    /// A result of this site, which becomes the side of every failure.
    fn here(&self, done: Result<Tally, Error>) -> Result<VolumeReply, Error> {
        let mut tally = done?;
        for failure in &mut tally.failures {
            failure.error = failure.error.clone().at(self.name().as_str());
        }
        Ok(VolumeReply::Tally(tally))
    }

    fn list_volumes(&self, access: &Access) -> Result<Vec<VolumeStatus>, Error> {
        let snapshot = self.snapshot();
        let seen = access.volumes().into_iter();
        seen.filter_map(|(name, _)| snapshot.volumes.get(&name).map(|facts| self.volume_status(&name, facts)))
            .collect()
    }

    fn enlist_follower(&self, proof: &Proof, name: &str) -> Result<VolumeReply, Error> {
        let snapshot = self.snapshot();
        let unknown = || Error::new(Code::VolumeUnknown, "follow", name, "");
        let facts = snapshot.volumes.get(name).filter(|facts| !snapshot.follows(facts));
        let facts = facts.ok_or_else(unknown)?;
        let (volume, writes) = (facts.id, may(facts, &proof.principal, Need::Write));
        let tree = self.tree_for(proof, volume, Need::Read)?;
        let _one = self.following.numbering.lock().expect("no thread panics while it holds the lock");
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
        let (snapshot, principal) = (self.snapshot(), &proof.principal);
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

pub(crate) fn may(facts: &VolumeConfig, principal: &Principal, need: Need) -> bool {
    matches!(principal, Principal::Host(_))
        && folders(&facts.grant, principal, need).iter().any(RelPath::is_root)
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

/// Creates the directory of the replicas, as the account that will own them.
fn make_folder(account: &Account, store: Arc<dyn Store>, name: &str) -> Result<(), Error> {
    let name = name.to_owned();
    let work = move || match store.root()?.mkdir(name.as_bytes(), 0o755) {
        Err(error) if error.code != Code::PathExists => Err(error),
        // A symbolic link in its place is not followed.
        _ => store.root()?.child(name.as_bytes()).map(drop),
    };
    account.spawn("subscribe", work)?.join().expect("a panic aborts the process")
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
