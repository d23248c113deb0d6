//! Unfinished incoming transfers: listing them, and removing abandoned ones.
//!
//! The receivers' journals are the source; a user sees and removes the user's own, the administrator all. A
//! cancelled transfer is removed by its id, in its owner's name: with the credential that the owner delegated for
//! it, or by the PoP of the owner's site, which acts for its users. An active transfer is not removed: it is
//! stopped first.

use super::Transfers;
use super::cleanup::{ABANDONED_AFTER, drop_one};
use crate::access::{Access, Proof};
use crate::submission::ambiguous;
use renkei_catalogue::{first_digits, no_digits};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::mover::journal::Brief;
use renkei_core::wire::message::{BATCH_ENTRIES, TransferId};
use renkei_core::wire::unfinished::{
    AboutUnfinished, MAX_NAMED, Unfinished, UnfinishedAction, UnfinishedReply,
};
use renkei_mover::hex;
use renkei_mover::journal::{list, look};
use renkei_net::unix_ms;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Timeout for a stopped receiver to release its journal.
const LET_GO_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A journal and its listed form.
pub struct UnfinishedCopy {
    /// Path of the journal.
    pub path: PathBuf,
    /// The listed form.
    pub told: Unfinished,
    brief: Brief,
}

impl UnfinishedCopy {
    /// Whether it is listed: it is active, or there is something to resume. A copy that failed before anything was
    /// stored left no more than its name.
    pub fn is_told(&self) -> bool {
        self.told.running || self.told.files + self.told.files_done > 0
    }
}

impl Transfers {
    /// Lists a user's unfinished transfers here, or removes them.
    ///
    /// # Errors
    /// `UnfinishedUnknown`, `IdAmbiguous`, `UnfinishedRuns`, and errors of the removal.
    pub fn unfinished(&self, access: &Access, about: &AboutUnfinished) -> Result<UnfinishedReply, Error> {
        let owner = access.principal.to_string();
        let answer = match &about.what {
            UnfinishedAction::GiveUp { transfer, .. } => self.give_up_here(transfer, &owner),
            what => self.see_to_unfinished(Some(&owner), what),
        };
        answer.map_err(|error| error.at(access.site()))
    }

    /// [`Transfers::unfinished`] for the administrator, for all owners.
    pub fn all_unfinished(&self, what: &UnfinishedAction) -> Result<UnfinishedReply, Error> {
        let answer = match what {
            UnfinishedAction::GiveUp { transfer, owner } => self.give_up_here(transfer, owner),
            what => self.see_to_unfinished(None, what),
        };
        answer.map_err(|error| error.at(self.context.name().as_str()))
    }

    /// Removes a cancelled transfer at the request of the PoP of its owner's site.
    ///
    /// # Errors
    /// `NotAllowed` for users of other sites, and for all other requests.
    pub fn give_up_for(&self, proof: &Proof, about: &AboutUnfinished) -> Result<UnfinishedReply, Error> {
        let refused = |cause: &str| Err(Error::new(Code::NotAllowed, "give up", &proof.principal, cause));
        let (Principal::Host(site), UnfinishedAction::GiveUp { transfer, owner }) =
            (&proof.principal, &about.what)
        else {
            return refused("a PoP may cancel transfers of its users and nothing else");
        };
        match Principal::parse(owner) {
            Ok(user) if user.user_name().is_some() && user.site() == site => {
                self.give_up_here(transfer, owner)
            }
            _ => refused("it is no user of that site"),
        }
    }

    /// Stops a cancelled transfer, if it is active here, and removes its data.
    pub(crate) fn give_up_here(&self, transfer: &TransferId, owner: &str) -> Result<UnfinishedReply, Error> {
        let id = hex(transfer);
        let error = Error::new(Code::Cancelled, "receive", &id, "cancelled by its owner");
        self.active.stop_of(&id, Some(owner), &error);
        let all = left(&self.context.home().journal_dir(), false)?;
        let is_meant = |left: &UnfinishedCopy| {
            left.brief.transfer == Some(*transfer) && left.brief.owner.as_deref() == Some(owner)
        };
        let meant: Vec<UnfinishedCopy> = all.into_iter().filter(is_meant).collect();
        for left in &meant {
            let removed = self.drop_when_let_go(&left.path)?;
            tracing::info!(target: "audit", transfer = id, owner, removed, "cancelled: partial data was removed");
        }
        Ok(UnfinishedReply { listed: meant.into_iter().map(|left| left.told).collect(), dropped: true })
    }

    fn drop_when_let_go(&self, path: &Path) -> Result<u64, Error> {
        let deadline = Instant::now() + LET_GO_WITHIN;
        loop {
            match drop_one(&self.context, path) {
                Ok(Some(removed)) => return Ok(removed),
                Ok(None) if Instant::now() > deadline => {
                    let cause = "its receiver does not end";
                    return Err(Error::new(Code::TransferBusy, "give up", path.display(), cause));
                }
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                // It ended by itself, or was removed concurrently.
                Err(_) if !path.exists() => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }

    fn see_to_unfinished(
        &self,
        owner: Option<&str>,
        what: &UnfinishedAction,
    ) -> Result<UnfinishedReply, Error> {
        let mut all = left(&self.context.home().journal_dir(), false)?;
        // A journal that names no owner is left to the administrator.
        all.retain(|left| owner.is_none_or(|owner| left.brief.owner.as_deref() == Some(owner)));
        let UnfinishedAction::Drop(named) = what else {
            all.retain(UnfinishedCopy::is_told);
            all.truncate(BATCH_ENTRIES);
            let listed = all.into_iter().map(|left| left.told).collect();
            return Ok(UnfinishedReply { listed, dropped: false });
        };
        let mut chosen = choose(all, named)?;
        chosen.truncate(BATCH_ENTRIES);
        let mut listed = Vec::new();
        for UnfinishedCopy { path, told, .. } in chosen {
            match drop_one(&self.context, &path)? {
                Some(removed) => {
                    let (id, owner, by) = (&told.id, &told.owner, owner.unwrap_or("the administrator"));
                    tracing::info!(target: "audit", id, owner, by, removed, "dropped");
                    listed.push(told);
                }
                // A new run has just resumed it.
                None if named.is_empty() => {}
                None => return Err(runs(&told)),
            }
        }
        Ok(UnfinishedReply { listed, dropped: true })
    }
}

/// The transfers with these id prefixes, or without any all that are not active.
///
/// # Errors
/// `UnfinishedUnknown`, `IdAmbiguous`, `UnfinishedRuns`.
pub fn choose(mut all: Vec<UnfinishedCopy>, named: &[String]) -> Result<Vec<UnfinishedCopy>, Error> {
    if named.is_empty() {
        all.retain(|left| !left.told.running);
        return Ok(all);
    }
    let mut chosen: Vec<UnfinishedCopy> = Vec::new();
    for text in named.iter().take(MAX_NAMED) {
        let digits = first_digits(text).ok_or_else(|| unknown(text))?;
        let (mut of_it, others): (Vec<UnfinishedCopy>, Vec<UnfinishedCopy>) =
            all.into_iter().partition(|left| left.told.id.starts_with(&digits));
        all = others;
        match of_it.pop() {
            // One transfer may have a journal for each of its storages.
            Some(one) if of_it.iter().all(|other| other.told.id == one.told.id) => of_it.push(one),
            Some(one) => {
                of_it.push(one);
                return Err(ambiguous(&digits, of_it.into_iter().map(|left| left.told.id)));
            }
            None if chosen.iter().any(|left| left.told.id.starts_with(&digits)) => {}
            None => return Err(unknown(text)),
        }
        if let Some(running) = of_it.iter().find(|left| left.told.running) {
            return Err(runs(&running.told));
        }
        chosen.append(&mut of_it);
    }
    Ok(chosen)
}

fn unknown(text: &str) -> Error {
    Error::new(Code::UnfinishedUnknown, "look up", text, no_digits(text))
}

fn runs(told: &Unfinished) -> Error {
    Error::new(Code::UnfinishedRuns, "drop", &told.id, format!("it writes to {}", told.to))
}

/// The journals of a folder, oldest first: those of a PoP's storages, or those of `local` folders. Journals of
/// mounts are left out: the mounts resume them.
pub fn left(folder: &Path, local: bool) -> Result<Vec<UnfinishedCopy>, Error> {
    let mut all = Vec::new();
    for path in list(folder) {
        // An unreadable journal does not hide the others.
        let found = look(&path).unwrap_or_else(|error| {
            tracing::warn!(code = %error.code, %error, "a journal is passed over");
            None
        });
        let Some((brief, running)) = found else { continue };
        let Some(header) = &brief.header else { continue };
        let is_copy = brief.transfer.is_some() || brief.files() + brief.files_done > 0;
        if header.to.is_none() != local || !is_copy {
            continue;
        }
        let to = match &header.to {
            Some(place) => place.to_string(),
            None => String::from_utf8_lossy(&header.local).into_owned(),
        };
        let written = path.metadata().and_then(|data| data.modified());
        let written_ms = written.map_or(0, unix_ms);
        let told = Unfinished {
            id: brief.transfer.as_ref().map_or_else(|| format!("{:016x}", header.job), |id| hex(id)),
            owner: brief.owner.clone().unwrap_or_default(),
            to,
            files: brief.files(),
            bytes: brief.bytes(),
            files_done: brief.files_done,
            written_ms,
            until_ms: written_ms + ABANDONED_AFTER.as_millis() as u64,
            running,
        };
        all.push(UnfinishedCopy { path, told, brief });
    }
    all.sort_by(|a, b| (a.told.written_ms, &a.told.id).cmp(&(b.told.written_ms, &b.told.id)));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_of(id: &str, running: bool) -> UnfinishedCopy {
        let told = Unfinished {
            id: id.into(),
            owner: "alice@kek".into(),
            to: "/data/run7".into(),
            files: 1,
            bytes: 1,
            files_done: 0,
            written_ms: 1,
            until_ms: 2,
            running,
        };
        UnfinishedCopy { path: PathBuf::from(id), told, brief: Brief::default() }
    }

    #[test]
    fn a_copy_without_stored_data_is_listed_only_while_it_runs() {
        let of = |running, files, files_done| {
            let left = left_of("aaaa01", running);
            UnfinishedCopy { told: Unfinished { files, files_done, ..left.told }, ..left }
        };
        assert!(!of(false, 0, 0).is_told());
        assert!([of(true, 0, 0), of(false, 1, 0), of(false, 0, 1)].iter().all(UnfinishedCopy::is_told));
    }

    fn chosen(all: &[(&str, bool)], named: &[&str]) -> Result<Vec<String>, Code> {
        let all = all.iter().map(|(id, running)| left_of(id, *running)).collect();
        let named: Vec<String> = named.iter().map(|digits| (*digits).to_owned()).collect();
        let chosen = choose(all, &named).map_err(|error| error.code)?;
        Ok(chosen.into_iter().map(|left| left.told.id).collect())
    }

    #[test]
    fn named_transfers_are_selected_and_running_ones_are_not() {
        let all = [("aaaa01", false), ("aaaa02", true), ("bbbb01", false), ("bbbb01", false)];
        assert_eq!(chosen(&all, &[]).unwrap(), ["aaaa01", "bbbb01", "bbbb01"]);
        assert_eq!(chosen(&all, &["BBBB"]).unwrap(), ["bbbb01", "bbbb01"]);
        assert_eq!(chosen(&all, &["aaaa01", "aaaa0"]), Err(Code::UnfinishedRuns));
        assert_eq!(chosen(&all, &["bbbb", "bbbb01"]).unwrap(), ["bbbb01", "bbbb01"]);
        assert_eq!(chosen(&all, &["aaaa"]), Err(Code::IdAmbiguous));
        for none in ["cccc", "aaa", "bbbx", ""] {
            assert_eq!(chosen(&all, &[none]), Err(Code::UnfinishedUnknown), "{none}");
        }
    }

    #[test]
    fn an_ambiguous_id_lists_its_matches() {
        let all = ["aaaa01", "aaaa02"].map(|id| left_of(id, false));
        let error = choose(all.into(), &["AAAA".into()]).err().unwrap();
        assert_eq!(error.cause, "it may be aaaa01, aaaa02");
        let error = choose(Vec::new(), &["aaa".into()]).err().unwrap();
        assert_eq!(
            (&*error.subject, &*error.cause),
            ("aaa", "write at least 4 of an id's hexadecimal digits")
        );
    }
}
