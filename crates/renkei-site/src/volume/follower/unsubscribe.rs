//! The end of a subscription. Unreplicated data of this site is given up only with an explicit confirmation, and stays
//! as plain files.

use crate::snapshot::Snapshot;
use crate::volume::VolumeService;
use crate::volume::replica::eviction::written;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::NodeId;
use renkei_core::path::{RelPath, SiteName};
use renkei_core::units::counted;
use renkei_volume::creation::folder;
use renkei_volume::dir_claim::{DirectoryClaim, release};
use renkei_volume::follower::unreplicated::Unreplicated;
use renkei_volume::volume_config;
use renkei_volume::volume_config::{VolumeConfig, unknown};

/// Files written here whose names the home has, but not, as far as is known, their content.
#[derive(Default)]
struct Unfetched {
    paths: Vec<RelPath>,
    /// The error of asking the home.
    away: Option<Error>,
}

impl VolumeService {
    /// Unsubscribes from a volume; returns the data that only this site had. Without `abandon` there must be none.
    ///
    /// # Errors
    /// `ChangesWait`, `VolumeUnknown`, `CatalogueFailed`; those of the connection to the home, if it is needed.
    pub fn unsubscribe(&self, name: &str, abandon: bool) -> Result<Unreplicated, Error> {
        let _one = self.managing.lock().expect("no thread panics while it holds the lock");
        let snapshot = self.context.snapshot();
        let followed = snapshot.volumes.get(name).filter(|facts| snapshot.follows(facts));
        let facts = followed.ok_or_else(|| unknown(name))?;
        let pending = snapshot.pending(name, facts)?;
        let unfetched = match self.without_content_at_home(name, facts) {
            Err(error) if !abandon => return Err(error),
            found => found.unwrap_or_else(|error| {
                tracing::warn!(volume = name, %error, "what only this site has of a volume is not known");
                Unfetched::default()
            }),
        };
        let stored = pending.flush();
        if !abandon {
            stored?;
        }
        // From here on no change is made.
        let turn = pending.turn();
        let plain = |path: &RelPath| plain_file(&snapshot, facts, path);
        let mut only = pending.only_here(plain)?;
        unfetched.paths.iter().for_each(|path| only.add_file(path, plain));
        only.is_home_away = unfetched.away.is_some();
        if !only.is_empty() && !abandon {
            return Err(match unfetched.away.filter(|_| only.changes == 0) {
                Some(away) => not_reached(name, &facts.home, only.files, away),
                None => Error::new(Code::ChangesWait, "unsubscribe", name, only.told()),
            });
        }
        volume_config::remove(self.context.home(), name)?;
        pending.stop();
        drop(turn);
        self.release_folder(&snapshot, facts);
        self.context.read_again();
        let (changes, files) = (only.changes, only.files);
        tracing::info!(target: "audit", volume = name, changes, files, "unsubscribed");
        self.forget_volume(facts.id)?;
        Ok(only)
    }

    /// Removes the marker of a volume that is no longer kept here from its directory.
    pub(crate) fn release_folder(&self, snapshot: &Snapshot, facts: &VolumeConfig) {
        let storage = snapshot.config.storage.get(&facts.storage);
        if let (Some(storage), Ok(place)) = (storage, facts.place()) {
            release(&folder(storage, &place), &DirectoryClaim::new(&facts.id, &snapshot.site));
        }
    }

    /// The unfetched files of a volume; changes that were not pushed are counted separately.
    fn without_content_at_home(&self, name: &str, facts: &VolumeConfig) -> Result<Unfetched, Error> {
        if facts.storage.is_empty() {
            return Ok(Unfetched::default());
        }
        let (_, copy) = self.own_copy(name, facts)?;
        let sent = written(&copy, &RelPath::root())?.sent;
        let (ids, away): (Vec<NodeId>, _) = match self.not_kept(&copy, &sent) {
            Ok(ids) => (ids, None),
            Err(error) => (sent.into_iter().map(|(id, _)| id).collect(), Some(error)),
        };
        let mut paths = Vec::new();
        for id in ids {
            paths.extend(copy.contents.pending.first_path(id)?);
        }
        paths.sort();
        Ok(Unfetched { paths, away })
    }
}

/// The error for an unreachable home: only its answer tells whether it has the content written here.
fn not_reached(name: &str, home: &SiteName, files: u64, away: Error) -> Error {
    let files = counted(files, "file", "files");
    let cause = format!(
        "{}; the home must say that it has the content of {files} written here: unsubscribe again when it is reached, or \
         `renkei volume unsubscribe {name} --abandon`, which lists them and leaves their contents as plain files",
        away.cause
    );
    let subject = if away.subject.starts_with(home.as_str()) { away.subject } else { home.to_string() };
    Error { op: "unsubscribe".into(), subject, cause, ..away }
}

/// The path of the plain file of a file.
fn plain_file(snapshot: &Snapshot, facts: &VolumeConfig, path: &RelPath) -> String {
    let place = facts.place().and_then(|place| place.join(path));
    let storage = snapshot.config.storage.get(&facts.storage);
    match (storage, place) {
        (Some(storage), Ok(place)) => folder(storage, &place).display().to_string(),
        _ => path.to_string(),
    }
}
