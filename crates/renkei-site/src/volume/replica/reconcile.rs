//! Reconciliation of replicas at a follower: missing replicas are pulled in the background. Folders pinned by the
//! administrator (`hold`) and those assigned by the home's policies, as far as the site accepts them, are treated
//! alike.
//!
//! One thread for each volume pulls missing files as long as there are any; a changed setting stops it at once. The
//! result is reported to the home with the next request, and shown in the volume's status.

use super::reconcile_state::{AGAIN_AFTER, Look, Run, kept, wanted};
use crate::transfer::active::stop_soon;
use crate::volume::VolumeService;
use crate::volume::request::ask;
use renkei_catalogue::VolumeId;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::NodeId;
use renkei_core::path::RelPath;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Holding, Offer, VolumeReply};
use renkei_mover::Stop;
use renkei_mover::connect::dial::Session;
use renkei_mover::progress::Watch;
use renkei_store::Store;
use renkei_volume::VolumeConfig;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of requests to the home when nothing changed.
const ASK_EVERY: Duration = Duration::from_secs(10);

impl VolumeService {
    /// Exchanges the report of this site for its duties at the home, if that is due or `is_idle` says that the home
    /// had nothing else.
    pub(crate) fn ask_duties(
        self: &Arc<Self>,
        session: &mut Session,
        name: &str,
        facts: &VolumeConfig,
        is_idle: bool,
    ) -> Result<(), Error> {
        let Some(facts) = self.context.snapshot().volumes.get(name).filter(|now| now.id == facts.id).cloned()
        else {
            return Ok(());
        };
        let pending = self.context.snapshot().pending(name, &facts)?;
        let is_due = self.holding.change(&facts.id, |state| {
            is_idle
                || pending.wants_room()
                || state.has_news
                || state.asked.is_none_or(|at| at.elapsed() >= ASK_EVERY)
        });
        if !is_due {
            return Ok(());
        }
        let _one = pending.asking();
        let offer = Offer { claim: pending.claim(), ..self.offer(name, &facts) };
        let duties = match ask(session, AboutVolume::Duties { volume: facts.id, offer })? {
            VolumeReply::Duties(duties) => duties,
            other => return Err(violation("duties", format_args!("{other:?}"))),
        };
        duties.allowance.clone().map_or(Ok(()), |told| pending.hear_allowance(told))?;
        self.context.snapshot().pending(name, &facts)?.set_fellows(&duties.fellows)?;
        self.holding.change(&facts.id, |state| {
            if state.duties.folders != duties.folders {
                tracing::info!(target: "audit", volume = name, folders = ?duties.folders, "the home wants held here");
            }
            (state.asked, state.duties) = (Some(Instant::now()), duties);
        });
        Ok(())
    }

    fn offer(&self, name: &str, facts: &VolumeConfig) -> Offer {
        let contents = self.context.snapshot().contents(name, facts).ok();
        let plain = contents.and_then(|contents| contents.plain);
        let space = plain.and_then(|plain| plain.space(&RelPath::root()).ok());
        let accepts = space.is_some() && !facts.care.refuses_policy;
        let held = self.holding.change(&facts.id, |state| {
            state.has_news = false;
            state.held.values().cloned().collect()
        });
        let free_bytes = space.map_or(0, |space| space.available_bytes);
        Offer { accepts, free_bytes, keeps: kept(facts), held, claim: None }
    }

    /// Starts the reconciliation of the folders to hold, beside the log shipping, unless nothing changed since the
    /// last one; stops a running one whose folders changed.
    pub(crate) fn hold_what_shall_be(self: &Arc<Self>, name: &str, id: &VolumeId) {
        // The folders to hold may have changed since the volume was opened.
        let snapshot = self.context.snapshot();
        let Some(facts) = snapshot.volumes.get(name).filter(|now| now.id == *id) else { return };
        let begun = self.holding.change(id, |state| {
            let folders = wanted(state, facts);
            if let Some(run) = &state.run {
                if run.folders != folders {
                    let cause = "other folders are to be held, or none for now";
                    stop_soon(run.stop.clone(), Error::new(Code::Cancelled, "hold", name, cause));
                }
                return None;
            }
            state.held.retain(|folder, _| folders.contains(folder));
            // Evicted files have to be pulled again once the folder is wanted again.
            state.done.take_if(|(_, of)| *of != folders);
            if folders.is_empty() || state.again.is_some_and(|again| Instant::now() < again) {
                return None;
            }
            let look = state.next_look(&folders);
            if matches!(look, Look::Nothing) {
                return None;
            }
            let upto = state.touched.upto;
            let stop = Stop::default();
            state.run = Some(Run { folders: folders.clone(), stop: stop.clone(), part: None });
            Some((folders, stop, look, upto))
        });
        let Some((folders, stop, look, upto)) = begun else { return };
        let (site, named, facts, of) = (Arc::downgrade(self), name.to_owned(), facts.clone(), *id);
        let work = move || {
            if let Some(site) = site.upgrade() {
                match look {
                    Look::At(ids) => site.hold_touched(&named, &facts, &folders, (&ids, upto), &stop),
                    _ => site.hold_folders(&named, &facts, &folders, &stop),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("hold".into()).spawn(work) {
            tracing::warn!(%error, "nothing is held");
            self.holding.change(&of, |state| state.run = None);
        }
    }

    /// Checks files touched by records, and pulls the missing ones.
    fn hold_touched(
        &self,
        name: &str,
        facts: &VolumeConfig,
        folders: &[RelPath],
        (ids, upto): (&BTreeSet<NodeId>, u64),
        stop: &Stop,
    ) {
        let begin = |found: Holding, watch: &Watch| self.holding.begins_some(&facts.id, &found, watch);
        let left = folders.iter().try_fold(0, |left, folder| {
            stop.check()?;
            Ok(left + self.hold_some(name, facts, folder, ids, &begin, stop)?)
        });
        self.holding.change(&facts.id, |state| {
            state.run = None;
            match left {
                Ok(0) => state.advance(upto),
                Ok(_) => (state.done, state.again) = (None, Some(Instant::now() + AGAIN_AFTER)),
                Err(error) => state.on_failed(name, &error),
            }
        });
    }

    fn hold_folders(&self, name: &str, facts: &VolumeConfig, folders: &[RelPath], stop: &Stop) {
        let began = Instant::now();
        let held = self.context.snapshot().volume_tree(facts.id).and_then(|tree| {
            let seq = tree.position()?.seq;
            let mut is_whole = true;
            for folder in folders {
                stop.check()?;
                is_whole &= self.hold_folder(name, facts, folder, seq, stop)?;
            }
            Ok((seq, is_whole))
        });
        self.holding.change(&facts.id, |state| {
            state.run = None;
            match held {
                Ok((seq, true)) => {
                    state.done = Some((seq, folders.to_vec()));
                    state.looked = Some((Instant::now(), began.elapsed(), seq));
                }
                Ok((_, false)) => (state.done, state.again) = (None, Some(Instant::now() + AGAIN_AFTER)),
                Err(error) => state.on_failed(name, &error),
            }
        });
    }

    /// Pulls the missing files of a folder and records the result; whether all of them are held.
    fn hold_folder(
        &self,
        name: &str,
        facts: &VolumeConfig,
        folder: &RelPath,
        seq: u64,
        stop: &Stop,
    ) -> Result<bool, Error> {
        let begin =
            |found: Holding, watch: &Watch| self.holding.begins(&facts.id, Holding { seq, ..found }, watch);
        let found = match self.hold_in_background(name, facts, folder, &begin, stop) {
            Ok(found) => found,
            // The folder does not exist yet, or no longer: nothing is missing.
            Err(error) if error.code == Code::PathNotFound => Holding::nothing(folder.clone()),
            Err(error) => {
                self.holding.change(&facts.id, |state| {
                    if let Some(held) = state.held.get_mut(folder) {
                        held.trouble = Some(error.clone());
                        state.has_news = true;
                    }
                });
                return Err(error);
            }
        };
        let is_whole = found.missing_files == 0;
        self.holding.note(&facts.id, Holding { seq, ..found });
        Ok(is_whole)
    }
}
