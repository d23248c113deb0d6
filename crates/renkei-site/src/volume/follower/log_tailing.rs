//! Log tailing: this site applies the records of other homes' volumes to its copies.
//!
//! A follower asks for the records after its last one and waits at the home for more (long poll); every request is
//! idempotent. Guarantee: the copy is always the tree as it was at some record of the home's log, on stable
//! storage. Reads here never wait for the home. Non-goal: content of files (`read_through`).

use super::bootstrap::take_pages;
use super::outbox_push::hand_in;
use crate::volume::VolumeService;
use crate::volume::request::{LOOK_EVERY, PATIENCE, about, ask, followed, is_followed, shorter};
use crate::volume::site_leases::spawn_lease_keepers;
use crate::workers::spawn;
use renkei_catalogue::VolumeId;
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Origin;
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::file::Changed;
use renkei_core::wire::message::Request;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Descent, MOST_RECORDS, VolumeReply};
use renkei_mover::connect::dial::Session;
use renkei_net::identity::account::Account;
use renkei_store::Store;
use renkei_store::passwd::group_name;
use renkei_volume::VolumeConfig;
use renkei_volume::creation::refuse_taken;
use renkei_volume::dir_claim::{DirectoryClaim, mark};
use renkei_volume::follower::apply::{RunAs, apply};
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::plain_file::Writer;
use renkei_volume::follower::recovery::recover;
use renkei_volume::grant::Grant;
use renkei_volume::lineage::note_followed;
use renkei_volume::settings::VolumeSettings;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pipelined requests for pages of the log, so that a long RTT is not paid for each.
const PAGES_AHEAD: u64 = 64;
/// Backoff after a failed request to a home: initial and maximum.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Maximum consecutive answers without records although the home announces more.
const MOST_EMPTY: u32 = 10;
/// Poll interval for new volumes to follow.
const TICK: Duration = Duration::from_secs(1);
/// Starts the thread that starts followers, which runs as long as the site exists.
pub fn spawn_following(site: &Arc<VolumeService>) -> Result<(), Error> {
    let site = Arc::downgrade(site);
    spawn("following", move || {
        while let Some(here) = site.upgrade() {
            let turn = here.context.workers.begin("following");
            let snapshot = here.context.last_snapshot();
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
fn begin(volumes: &Arc<VolumeService>, name: &str, facts: &VolumeConfig) {
    if !volumes.following.begin(facts.id) {
        return;
    }
    let (weak, name, followed) = (Arc::downgrade(volumes), name.to_owned(), facts.clone());
    if let Err(error) = spawn("follow", move || keep_following(&weak, &name, &followed)) {
        tracing::warn!(%error, "a volume is not followed");
        volumes.following.lock().remove(&facts.id);
    }
}

/// Follows one volume until the subscription ends.
fn keep_following(site: &Weak<VolumeService>, name: &str, facts: &VolumeConfig) {
    let mut pauses = BACKOFF.begin();
    if let Some(here) = site.upgrade()
        && let Err(error) = begin_writing(&here, name, facts)
    {
        tracing::warn!(volume = name, %error, "local changes are not submitted to the home");
    }
    while let Some(here) = site.upgrade().filter(|site| is_followed(&site.context, facts)) {
        let mut heard = false;
        let Err(error) = follow(&here, name, facts, &mut heard) else { break };
        if error.code == Code::RecordsForgotten {
            here.following.change(&facts.id, |standing| standing.is_late = true);
        }
        tracing::info!(volume = name, home = %facts.home, %error, "the home of a volume is not heard");
        here.following.change(&facts.id, |standing| standing.trouble = Some(error));
        drop(here);
        if heard {
            pauses.reset();
        }
        std::thread::sleep(pauses.next(random_number()));
    }
    if let Some(here) = site.upgrade() {
        here.following.lock().remove(&facts.id);
    }
}

/// Recovers the state of a PoP that was killed, and starts the push of local changes.
fn begin_writing(volumes: &Arc<VolumeService>, name: &str, facts: &VolumeConfig) -> Result<(), Error> {
    let (contents, account) =
        (volumes.context.snapshot().contents(name, facts)?, Account::lookup_to_lend(&facts.account)?);
    let pending = contents.pending.clone();
    if let Some(plain) = contents.plain {
        let group = group_name(account.gid).unwrap_or_else(|| account.gid.to_string());
        let writer = Writer { plain, owner: account.name.clone(), group };
        let work = move || recover(&pending, &writer);
        account.spawn("recover", work)?.join().expect("a panic aborts the process")?;
    }
    spawn_lease_keepers(volumes, name, facts, &contents.pending)?;
    let (weak, name, facts) = (Arc::downgrade(volumes), name.to_owned(), facts.clone());
    spawn("hand in", move || hand_in(&weak, &name, &facts))
}

/// Applies records as they arrive; returns without an error when the volume is no longer followed.
fn follow(
    volumes: &Arc<VolumeService>,
    name: &str,
    facts: &VolumeConfig,
    heard: &mut bool,
) -> Result<(), Error> {
    let contents = volumes.context.snapshot().contents(name, facts)?;
    let account = Account::lookup_to_lend(&facts.account)?;
    let (tree, plain) = (&contents.tree, contents.plain.as_ref().map(|plain| (plain, &account)));
    let run_as = |work: Box<dyn FnOnce() + Send>| {
        account.spawn("replicas", work)?.join().expect("a panic aborts the process");
        Ok(())
    };
    let pending = &contents.pending;
    let (mut session, found) = volumes.home_of_log(facts, tree)?;
    if let Some((incarnation, descent)) = found {
        if let Descent::Until(until) = descent {
            volumes.reconcile(&mut session, name, facts, &contents, (incarnation, until))?;
        }
        note_followed(tree, incarnation)?;
    }
    let origin = enlist(&mut session, name, facts, pending)?;
    let is_late = volumes.following.standing(&facts.id).is_late;
    if is_late || tree.position()?.seq == 0 || tree.has_late_copy()? {
        take_pages(&mut session, facts.id, tree, origin, plain, &|| is_followed(&volumes.context, facts))?;
        pending.begin_anew()?;
        volumes.holding.touch_all(&facts.id);
        pending.leases().changed_anywhere(None, &Changed { all: true, ..Changed::default() });
        volumes.following.change(&facts.id, |standing| standing.is_late = false);
    }
    tree.remove_old_copies()?;
    pending.on_connected();
    let (mut last, mut empty) = (0, 0);
    while is_followed(&volumes.context, facts) {
        let (mut seq, mut broken) = (tree.position()?.seq, None);
        let patience = match *heard {
            true if volumes.holding.has_news(&facts.id) => LOOK_EVERY,
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
                volumes.holding.touch(&facts.id, &records);
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
        volumes.read_through.note_asked(&facts.home, None);
        volumes.following.change(&facts.id, |standing| {
            (standing.last, standing.heard, standing.trouble) = (last, Some(Instant::now()), None);
        });
        volumes.ask_duties(&mut session, name, facts, seq == asked || pending.is_limited())?;
        if seq == last {
            pending.on_whole()?;
            volumes.hold_what_shall_be(name, &facts.id);
        }
        if seq == asked && pending.enlisted().is_none_or(|enlisted| !enlisted.writes) {
            // No records arrived: check whether this site has a write grant by now.
            enlist(&mut session, name, facts, pending)?;
        }
    }
    Ok(())
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

impl VolumeService {
    /// Subscribes to a volume. All users of this site may read it, until its grants say otherwise.
    ///
    /// # Errors
    /// Those of the home; `PathExists` for a name that is taken here.
    pub fn subscribe(&self, wanted: &Subscription) -> Result<(), Error> {
        let (snapshot, name) = (self.context.snapshot(), &wanted.name);
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
            refuse_taken(&storage.path.join(name), &snapshot.config, self.context.home())?;
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
        facts.store(self.context.home(), name)?;
        tracing::info!(target: "audit", volume = name, home = %wanted.home, "subscribed");
        Ok(())
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
