//! Ending a subscription. What was written here and is nowhere else is given up only by who says so, and stays as plain files.

use super::Site;
use super::snapshot::Snapshot;
use crate::volume::claim::{DirectoryClaim, release};
use crate::volume::creation::folder;
use crate::volume::facts::{self, Facts, unknown};
use crate::volume::only_here::OnlyHere;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;

impl Site {
    /// Follows a volume no more; gives what only this site had of it. Without `abandon` that must be nothing.
    ///
    /// # Errors
    /// `ChangesWait`, `VolumeUnknown`, `CatalogueFailed`.
    pub fn unsubscribe(&self, name: &str, abandon: bool) -> Result<OnlyHere, Error> {
        let _one = self.managing.lock().expect("no thread panics while it holds the lock");
        let snapshot = self.snapshot();
        let followed = snapshot.volumes.get(name).filter(|facts| snapshot.follows(facts));
        let facts = followed.ok_or_else(|| unknown(name))?;
        let pending = snapshot.pending(name, facts)?;
        let files = match self.without_content_at_home(name, facts) {
            Err(error) if !abandon => return Err(error),
            found => found.unwrap_or_else(|error| {
                tracing::warn!(volume = name, %error, "what only this site has of a volume is not known");
                Vec::new()
            }),
        };
        let stored = pending.flush();
        if !abandon {
            stored?;
        }
        // Nobody changes anything from here on.
        let turn = pending.turn();
        let plain = |path: &RelPath| plain_file(&snapshot, facts, path);
        let mut only = pending.only_here(plain)?;
        files.iter().for_each(|path| only.add_file(path, plain));
        if !only.is_empty() && !abandon {
            return Err(Error::new(Code::ChangesWait, "unsubscribe", name, only.told()));
        }
        facts::remove(self.home(), name)?;
        pending.stop();
        drop(turn);
        self.release_folder(&snapshot, facts);
        self.read_again();
        let (changes, files) = (only.changes, only.files);
        tracing::info!(target: "audit", volume = name, changes, files, "unsubscribed");
        self.forget_volume(facts.id)?;
        Ok(only)
    }

    /// Takes the marker of a volume that is not kept here any more out of its directory.
    pub(super) fn release_folder(&self, snapshot: &Snapshot, facts: &Facts) {
        let storage = snapshot.config.storage.get(&facts.storage);
        if let (Some(storage), Ok(place)) = (storage, facts.place()) {
            release(&folder(storage, &place), &DirectoryClaim::new(&facts.id, &snapshot.site));
        }
    }

    /// Files that were written here, of which the home has the name and is not known to have the content.
    fn without_content_at_home(&self, name: &str, facts: &Facts) -> Result<Vec<RelPath>, Error> {
        if facts.storage.is_empty() {
            return Ok(Vec::new());
        }
        let (_, copy) = self.own_copy(name, facts)?;
        let pending = &copy.contents.pending;
        let only = self.only_here(&copy, &RelPath::root())?;
        // Those that the home has not heard of are among the changes that wait.
        let known = only.into_iter().filter(|id| !pending.is_unsent(*id));
        let mut paths = Vec::new();
        for id in known {
            paths.extend(pending.first_path(id)?);
        }
        paths.sort();
        Ok(paths)
    }
}

/// Where the plain file of a path is.
fn plain_file(snapshot: &Snapshot, facts: &Facts, path: &RelPath) -> String {
    let place = facts.place().and_then(|place| place.join(path));
    let storage = snapshot.config.storage.get(&facts.storage);
    match (storage, place) {
        (Some(storage), Ok(place)) => folder(storage, &place).display().to_string(),
        _ => path.to_string(),
    }
}
