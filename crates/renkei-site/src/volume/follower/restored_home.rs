//! Detection of restored homes: a follower finds that the home's log is not the one it followed, and continues with
//! the new one.
//!
//! The home is asked each time a connection for records or own changes is opened: a log is not replaced during one.
//! The condition is reported at both ends as long as it lasts, with its code.

use super::bootstrap::take_another;
use crate::snapshot::Snapshot;
use crate::volume::VolumeService;
use crate::volume::request::{ask, is_followed};
use crate::volume_content::Contents;
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::file::Changed;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Descent, Incarnation, VolumeReply};
use renkei_mover::connect::dial::Session;
use renkei_mover::fresh_id;
use renkei_net::identity::account::Account;
use renkei_volume::VolumeConfig;
use renkei_volume::follower::apply::RunAs;
use renkei_volume::follower::outbox::{Enlisted, note_restored};
use renkei_volume::follower::restore_rescue::{Rescued, keep_unknown};
use renkei_volume::follower::restored_home::{RestoreReport, Terms};
use renkei_volume::lineage::{Claim, Lineage, claim, former_claims, mark_at};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Followers with records of another log of a volume than the current one that have not reconciled yet.
#[derive(Default)]
pub(crate) struct Strays {
    sites: Mutex<BTreeMap<(VolumeId, SiteName), Error>>,
}

impl Strays {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(VolumeId, SiteName), Error>> {
        self.sites.lock().expect("no thread panics while it holds the lock")
    }

    /// The first error of a volume.
    pub(crate) fn trouble(&self, volume: &VolumeId) -> Option<Error> {
        self.lock().iter().find(|((of, _), _)| of == volume).map(|(_, error)| error.clone())
    }
}

impl VolumeService {
    /// At the home: tells a follower how its records relate to the log.
    pub(crate) fn tell_lineage(
        &self,
        site: &SiteName,
        volume: VolumeId,
        tree: &VolumeTree,
        claim: &Claim,
    ) -> Result<VolumeReply, Error> {
        let lineage = Lineage::of_home(tree, fresh_id()?)?;
        let last = tree.position()?.seq;
        let here = if claim.after <= last { mark_at(tree, claim.after)? } else { None };
        let descent = lineage.judge(claim, last, here);
        let key = (volume, site.clone());
        match descent {
            Descent::Same => drop(self.strays.lock().remove(&key)),
            Descent::Until(until) => {
                let after = claim.after;
                let cause = format!(
                    "{site} followed another log up to record {after}, this one ends at {last}, and they are one up to {until}; \
                     {site} compares the trees and hands in what only it has"
                );
                let error = Error::new(Code::HistoryDiffers, "give records", site, cause);
                if self.strays.lock().insert(key, error.clone()).is_none() {
                    tracing::warn!(target: "audit", %error, "a site followed another log of a volume");
                }
            }
        }
        Ok(VolumeReply::Lineage { incarnation: lineage.now, descent })
    }

    /// Connects to the home of a followed volume and asks how its log relates to the one that was followed; `None`
    /// from a home that is too old to answer.
    pub(crate) fn home_of_log(
        &self,
        facts: &VolumeConfig,
        tree: &VolumeTree,
    ) -> Result<(Session, Option<(Incarnation, Descent)>), Error> {
        let connect = || self.relay.dialler(&self.context.snapshot())?.connect(&facts.home);
        let mut session = connect()?;
        let own = claim(tree)?;
        match ask_lineage(&mut session, facts, &own) {
            // Without any records there is nothing to compare.
            Ok((now, _)) if own.after == 0 => Ok((session, Some((now, Descent::Same)))),
            Ok((now, Descent::Until(0))) => {
                let until = common_before(&mut session, facts, tree, now)?;
                Ok((session, Some((now, Descent::Until(until)))))
            }
            Ok(found) => Ok((session, Some(found))),
            Err(error) if error.code == Code::ProtocolViolation => Ok((connect()?, None)),
            Err(error) => Err(error),
        }
    }

    /// At a follower: compares the copy with the home's current tree, and continues with the latter.
    pub(crate) fn reconcile(
        self: &Arc<Self>,
        session: &mut Session,
        name: &str,
        facts: &VolumeConfig,
        contents: &Contents,
        (incarnation, until): (Incarnation, u64),
    ) -> Result<(), Error> {
        let (tree, pending) = (&contents.tree, &contents.pending);
        let seq = tree.position()?.seq;
        let cause =
            format!("record {seq} was followed, and the logs are one up to {until}; the trees are compared");
        let error = Error::new(Code::HistoryDiffers, "follow", name, cause).at(self.context.name().as_str());
        tracing::warn!(target: "audit", volume = name, home = %facts.home, %error, "the home has another log");
        self.following.note_trouble(&facts.id, error);
        let VolumeReply::Followed { volume, origin, writes } =
            ask(session, AboutVolume::Follow(name.into()))?
        else {
            return Err(violation("follow", "another answer"));
        };
        if volume != facts.id {
            return Err(Error::new(
                Code::VolumeUnknown,
                "follow",
                name,
                "its home has another volume of that name",
            ));
        }
        let go_on = || is_followed(&self.context, facts);
        let Some(late) = take_another(session, volume, tree, origin, &go_on)? else { return Ok(()) };
        let account = Account::lookup_to_lend(&facts.account)?;
        let run_as = |work: Box<dyn FnOnce() + Send>| {
            account.spawn("reconcile", work)?.join().expect("a panic aborts the process");
            Ok(())
        };
        let plain = contents.plain.as_ref().map(|plain| (plain, &run_as as &RunAs<'_>));
        let writes = writes && plain.is_some();
        let terms = Terms { enlisted: Enlisted { origin, writes, is_ready: true }, incarnation, until };
        let report = pending.quiet_turn()?.reconcile(&late, terms, plain)?;
        tell(name, &report);
        self.holding.touch_all(&facts.id);
        pending.leases().changed_anywhere(None, &Changed { all: true, ..Changed::default() });
        pending.call();
        // Tells the home that the copy is reconciled.
        let Claim { incarnation, after, mark } = claim(tree)?;
        ask(session, AboutVolume::Lineage { volume, incarnation, after, mark })?;
        Ok(())
    }

    /// After a restore: volumes of this site start a new incarnation of their logs, and followed ones assign no
    /// numbers before they have received all records.
    ///
    /// # Errors
    /// `CatalogueFailed`; the next start tries again.
    pub fn begin_after_restore(&self) -> Result<(), Error> {
        let marker = self.context.home().restored_file();
        if !marker.exists() {
            return Ok(());
        }
        let snapshot = self.context.last_snapshot();
        for (name, facts) in &snapshot.volumes {
            let tree = snapshot.volume_tree(facts.id)?;
            match snapshot.follows(facts) {
                true => {
                    note_restored(&tree)?;
                    if let Err(error) = rescue_copy(&snapshot, name, facts) {
                        tracing::error!(volume = name, %error, "what was acknowledged here after the backup is not looked for");
                    }
                }
                false => Lineage::restored(&tree, fresh_id()?)?,
            }
            tracing::info!(target: "audit", volume = name, "continues after a restore");
        }
        std::fs::remove_file(&marker)
            .map_err(|error| renkei_config::home::file_error("remove", &marker, &error))
    }
}

/// Keeps a copy of plain files written here that the restored copy does not know.
fn rescue_copy(snapshot: &Snapshot, name: &str, facts: &VolumeConfig) -> Result<(), Error> {
    if !snapshot.pending(name, facts)?.enlisted().is_some_and(|enlisted| enlisted.writes) {
        return Ok(());
    }
    let contents = snapshot.contents(name, facts)?;
    let (pending, Some(plain)) = (contents.pending, contents.plain) else { return Ok(()) };
    let account = Account::lookup_to_lend(&facts.account)?;
    let work = move || keep_unknown(&pending, &plain);
    let rescued = account.spawn("rescue", work)?.join().expect("a panic aborts the process")?;
    let Rescued { count, failed, folder } = rescued;
    if count + failed > 0 {
        tracing::warn!(
            target: "audit",
            volume = name,
            count,
            failed,
            folder,
            "files that the restored catalogue does not know are kept in this folder of the volume's directory; what is not in the volume \
             once all is there was acknowledged after the backup"
        );
    }
    Ok(())
}

/// Logs the report.
fn tell(name: &str, report: &RestoreReport) {
    let RestoreReport { kept, renewed, beside, removed, lost, aside, .. } = report;
    tracing::warn!(
        target: "audit",
        volume = name,
        kept = kept.count,
        renewed = renewed.count,
        beside = beside.count,
        removed = removed.count,
        lost = lost.count,
        aside = aside.count,
        "the copy continues with the home's present log"
    );
}

/// Asks the home for the relation of its log to the records of a follower, and for its incarnation.
fn ask_lineage(
    session: &mut Session,
    facts: &VolumeConfig,
    claim: &Claim,
) -> Result<(Incarnation, Descent), Error> {
    let Claim { incarnation, after, mark } = *claim;
    match ask(session, AboutVolume::Lineage { volume: facts.id, incarnation, after, mark })? {
        VolumeReply::Lineage { incarnation, descent } => Ok((incarnation, descent)),
        other => Err(violation("lineage", format_args!("{other:?}"))),
    }
}

/// The record up to which the home's log `now` equals one that was followed before the present one; 0 if it equals
/// none.
fn common_before(
    session: &mut Session,
    facts: &VolumeConfig,
    tree: &VolumeTree,
    now: Incarnation,
) -> Result<u64, Error> {
    for former in former_claims(tree)? {
        if former.incarnation == Some(now) {
            // The home does not report a restore of it, so the common record is unknown.
            break;
        }
        match ask_lineage(session, facts, &former)? {
            (_, Descent::Same) => return Ok(former.after),
            (_, Descent::Until(until)) if until > 0 => return Ok(until.min(former.after)),
            (_, Descent::Until(_)) => {}
        }
    }
    Ok(0)
}
