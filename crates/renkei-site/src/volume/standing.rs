//! The standing of the volumes, and comparison of their catalogues with their files.

use super::tree_walk::locate;
use crate::access::Access;
use crate::files::{remembered_checksum, stat};
use crate::volume::VolumeService;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Kind;
use renkei_core::namespace::quota::{Limit, Use};
use renkei_core::namespace::quota_share::Room;
use renkei_core::path::Place;
use renkei_core::wire::message::Algorithm;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Duties, Tally, VolumeReply, VolumeStatus};
use renkei_mover::Stop;
use renkei_volume::settings::UseRow;
use renkei_volume::volume_config::unknown;
use renkei_volume::{Followed, Scanned, VolumeConfig, VolumeState};
use std::sync::Arc;

/// Usage of a followed volume, as the home last reported it, and the remaining quota share of this site.
fn rows_here(duties: &Duties, left: Vec<Room>) -> Vec<UseRow> {
    let all = UseRow::new(None, duties.used, duties.limit);
    let mut rows = vec![all];
    for Room { owner, most } in left {
        match owner {
            None => rows[0].handed = most,
            owner => {
                rows.push(UseRow { handed: most, ..UseRow::new(owner, Use::default(), Limit::default()) })
            }
        }
    }
    rows
}

impl VolumeService {
    /// The status of a volume.
    ///
    /// # Errors
    /// `VolumeUnknown`, `StorageMissing`, `CatalogueFailed`.
    pub fn volume_standing(&self, name: &str) -> Result<VolumeState, Error> {
        let snapshot = self.context.snapshot();
        if let Some(facts) = snapshot.volumes.get(name).filter(|facts| snapshot.follows(facts)) {
            let VolumeStatus { seq, last, heard_s, trouble, pending, .. } =
                self.volume_status(name, facts)?;
            let own = snapshot.pending(name, facts)?;
            let enlisted = own.enlisted();
            let writes = enlisted.is_some_and(|enlisted| enlisted.writes);
            let is_whole = enlisted.is_some_and(|enlisted| enlisted.is_ready);
            let (refused, waiting_s) = (own.refusals()?, own.waiting().map(|waiting| waiting.as_secs()));
            let fellows = own.fellows().iter().map(|fellow| fellow.site.to_string()).collect();
            let restored = own.reconciled()?;
            let followed =
                Followed { last, heard_s, is_whole, writes, pending, waiting_s, refused, fellows, restored };
            let followed = Some(followed);
            let holds = Some(self.holding.shown(&facts.id, facts));
            let (verified, duties) = (self.verified(facts)?, self.holding.duties(&facts.id));
            let used = rows_here(&duties, own.room_left());
            return Ok(VolumeState {
                records: seq,
                trouble,
                followed,
                holds,
                used,
                verified,
                ..VolumeState::default()
            });
        }
        let volume = snapshot.volume(name).ok_or_else(|| unknown(name))??;
        let facts = snapshot.volumes.get(name).ok_or_else(|| unknown(name))?;
        let (kept, verified) = (self.kept(facts, volume.tree())?, self.verified(facts)?);
        volume.flush()?;
        let rows = facts.care.use_rows(&volume.tree().usage()?).into_iter();
        let used = rows.map(|row| {
            let out = volume.handed(row.owner.as_deref());
            row.with_handed(out)
        });
        let used = used.collect();
        let away = snapshot.only_at(&volume)?;
        let standing = volume.standing()?;
        let trouble = standing.trouble.clone().or_else(|| self.strays.trouble(&facts.id));
        Ok(VolumeState { kept, used, verified, away, trouble, ..standing })
    }

    /// Compares a volume's catalogue with its plain files now.
    ///
    /// # Errors
    /// As [`VolumeService::volume_standing`], and those of the reconciler.
    pub fn check_volume(&self, name: &str, stop: &Stop) -> Result<Scanned, Error> {
        let check = || {
            let volume = self.context.snapshot().volume(name).ok_or_else(|| unknown(name))??;
            volume.check(|| stop.check().is_ok())
        };
        match check() {
            // The volume was reopened meanwhile, because the configuration changed.
            Err(error) if error.code == Code::Cancelled && stop.check().is_ok() => check(),
            checked => checked,
        }
    }

    /// Accepts the present directory of a volume's files as the volume's, and compares the two.
    ///
    /// # Errors
    /// `VolumeChanged` if files are missing and `incomplete` does not allow that, else as [`VolumeService::check_volume`].
    pub fn accept_volume(&self, name: &str, incomplete: bool) -> Result<Scanned, Error> {
        let snapshot = self.context.snapshot();
        if let Some(facts) = snapshot.volumes.get(name).filter(|facts| snapshot.follows(facts)) {
            let taken = snapshot.accept_copy(name, facts, incomplete)?;
            // Missing files of the pinned folders are pulled again.
            self.holding.touch_all(&facts.id);
            return Ok(taken.into());
        }
        let taken = snapshot.accept_volume(name, incomplete)?;
        // The scan that followed the reopening may have been faster than this one.
        let scanned = self.check_volume(name, &Stop::default())?;
        Ok(Scanned {
            gone: scanned.gone.max(taken.missing),
            changed: scanned.changed.max(taken.other),
            ..scanned
        })
    }

    /// The digest of a file of a volume in the catalogue; `None` if that has none of the present content, and for storages.
    ///
    /// # Errors
    /// `PathNotFound`, `IsADirectory`, and those of access to the file.
    fn catalogue_digest(&self, access: &Access, place: &Place) -> Result<Option<[u8; 32]>, Error> {
        let snapshot = self.context.snapshot();
        let Some(facts) = snapshot.volumes.get(&place.storage) else { return Ok(None) };
        let entry = access.examine(place)?.run("stat", |store, path| stat(store, path))?;
        if let Some(volume) = snapshot.volume(&place.storage) {
            volume?.flush()?;
        }
        let tree = snapshot.volume_tree(facts.id)?;
        let (id, node) = locate(&tree, &place.path)?;
        let Kind::File(content) = node.kind else {
            return Err(Error::new(Code::IsADirectory, "tell digest", place, "only files have one"));
        };
        if (entry.size(), entry.meta.mtime) != (content.size, node.attributes.mtime) {
            return Ok(None);
        }
        let held = tree.held(id)?.filter(|held| held.is_of(&content));
        Ok(content.digest.or(held.and_then(|held| held.digest)))
    }

    /// The checksum of a file that was computed when its content came, or when it was asked for, without reading the file.
    fn checksum_without_reading(
        &self,
        access: &Access,
        place: &Place,
        algorithm: Algorithm,
    ) -> Result<Option<Vec<u8>>, Error> {
        if algorithm == Algorithm::Blake3
            && let Some(digest) = self.catalogue_digest(access, place)?
        {
            return Ok(Some(digest.to_vec()));
        }
        remembered_checksum(&self.context, access, place, algorithm)
    }

    /// The same, where none is an error.
    ///
    /// # Errors
    /// `PathNotFound` if none of the present content is known.
    pub fn known_checksum(
        &self,
        access: &Access,
        place: &Place,
        algorithm: Algorithm,
    ) -> Result<Vec<u8>, Error> {
        let known = self.checksum_without_reading(access, place, algorithm)?;
        let cause = "none of the present content is known; without --known the file is read";
        known.ok_or_else(|| Error::new(Code::PathNotFound, "tell checksum", place, cause).at(access.site()))
    }

    /// Removes the tree of a volume whose configuration was removed.
    ///
    /// # Errors
    /// `PathExists` if there is such a volume; `CatalogueFailed`.
    pub fn forget_volume(&self, id: [u8; 16]) -> Result<(), Error> {
        let snapshot = self.context.snapshot();
        if let Some((name, _)) = snapshot.volumes.iter().find(|(_, facts)| facts.id == id) {
            return Err(Error::new(Code::PathExists, "forget volume", name, "it was not deleted"));
        }
        snapshot.forget_volume(id)
    }

    /// The status of a volume.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn volume_status(&self, name: &str, facts: &VolumeConfig) -> Result<VolumeStatus, Error> {
        let (snapshot, standing) = (self.context.snapshot(), self.following.standing(&facts.id));
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
            AboutVolume::Known(place) => {
                let known = self.checksum_without_reading(access, &place, Algorithm::Blake3)?;
                Ok(VolumeReply::Digest(known.and_then(|digest| digest.try_into().ok())))
            }
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
            failure.error = failure.error.clone().at(self.context.name().as_str());
        }
        Ok(VolumeReply::Tally(tally))
    }

    fn list_volumes(&self, access: &Access) -> Result<Vec<VolumeStatus>, Error> {
        let snapshot = self.context.snapshot();
        let seen = access.volumes().into_iter();
        seen.filter_map(|(name, _)| snapshot.volumes.get(&name).map(|facts| self.volume_status(&name, facts)))
            .collect()
    }
}
