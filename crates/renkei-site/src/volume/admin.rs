//! Administration of volumes by users: volumes are created by users whom the administrator allows to, and managed
//! by their creators and named managers.
//!
//! A user's volume has the user's rights in every way: its directory is created, or must be owned, by the account
//! that the user has in the storage, and that account works for the users that the volume's grants admit. So
//! nothing is reached through a volume that its creator could not reach. The location of a volume and its owner
//! stay with the administrator.

use crate::access::{Access, Opened};
use crate::snapshot::Snapshot;
use crate::volume::VolumeService;
use renkei_core::error::{Code, Error};
use renkei_core::path::Place;
use renkei_core::wire::volume::Manage;
use renkei_mover::{Stop, fresh_id};
use renkei_volume::VolumeConfig;
use renkei_volume::config_change::{add_grant, set, take_back};
use renkei_volume::creation::{check_name, folder, make_folder, owner, refuse_overlap, relative, text};
use renkei_volume::dir_claim::{DirectoryClaim, mark};
use renkei_volume::grant::{Grant, Grantee};
use renkei_volume::volume_config;
use renkei_volume::volume_config::unknown;
use renkei_volume::volume_status::VolumeStatus;
use serde::Serialize;
use std::path::Path;

/// A request of a user to create a volume.
struct Wanted<'w> {
    name: &'w str,
    storage: &'w str,
    path: &'w str,
    in_place: bool,
    settings: &'w [(String, String)],
}

impl VolumeService {
    /// Executes a user's request on a volume; returns the result as JSON.
    ///
    /// # Errors
    /// `NotAllowed`, `VolumeUnknown`, and those of the request.
    pub(crate) fn manage_volume(
        &self,
        access: &Access,
        name: &str,
        what: &Manage,
        stop: &Stop,
    ) -> Result<String, Error> {
        if access.proof.scope.is_some() {
            let cause = "the credential of a transfer manages no volumes";
            return Err(Error::new(Code::OutOfScope, "manage volume", name, cause));
        }
        if let Manage::Show = what {
            return self.show_volume(access, name).map(told);
        }
        let principal = &access.principal;
        let done = self.change_volume(access, name, what, stop);
        match &done {
            Ok(_) => tracing::info!(target: "audit", %principal, volume = name, ?what, "managed"),
            Err(error) => tracing::warn!(target: "audit", %principal, volume = name, %error, "refused"),
        }
        done
    }

    fn change_volume(
        &self,
        access: &Access,
        name: &str,
        what: &Manage,
        stop: &Stop,
    ) -> Result<String, Error> {
        match what {
            Manage::Create { storage, path, in_place, settings } => {
                let path = path.as_deref().unwrap_or(name);
                self.make_volume(access, &Wanted { name, storage, path, in_place: *in_place, settings })?;
                self.check_volume(name, stop).map(told)
            }
            Manage::Check => {
                self.managed(access, name)?;
                self.check_volume(name, stop).map(told)
            }
            Manage::Delete => self.delete_volume(access, name).map(told),
            Manage::Set(pairs) => self.edit_volume(access, name, |facts| {
                pairs.iter().try_for_each(|(key, value)| set(facts, key, value))
            }),
            Manage::Grant { who, level, on } => {
                let grant = Grant::parse(who, level, &text(on)?)?;
                self.edit_volume(access, name, |facts| add_grant(facts, grant))
            }
            Manage::Revoke { who, on } => {
                let (who, on) = (Grantee::parse(who)?, on.as_ref().map(text).transpose()?);
                self.edit_volume(access, name, |facts| take_back(facts, &who, on.as_deref()))
            }
            Manage::Show => self.show_volume(access, name).map(told),
        }
    }

    /// The status of a volume as a user may see it.
    pub(crate) fn show_volume(&self, access: &Access, name: &str) -> Result<VolumeStatus, Error> {
        let snapshot = self.context.snapshot();
        let facts = snapshot.volumes.get(name).ok_or_else(|| unknown(name))?;
        let is_manager = manages(facts, access);
        if !is_manager && !access.volumes().iter().any(|(seen, _)| seen == name) {
            // The error does not reveal that the volume exists.
            return Err(unknown(name));
        }
        let shown = VolumeStatus::new(name, facts, Some(self.volume_standing(name)?));
        Ok(if is_manager { shown } else { shown.for_user(|to| to.names(&access.principal)) })
    }

    /// The configuration of a volume, if the user is one of its managers.
    fn managed(&self, access: &Access, name: &str) -> Result<VolumeConfig, Error> {
        let snapshot = self.context.snapshot();
        let facts = snapshot.volumes.get(name).ok_or_else(|| unknown(name))?;
        if manages(facts, access) {
            return Ok(facts.clone());
        }
        if !access.volumes().iter().any(|(seen, _)| seen == name) {
            return Err(unknown(name));
        }
        let cause = "you are not among its managers; its administrator or a manager may name you: renkei volume set \
             NAME managers=...";
        Err(Error::new(Code::NotAllowed, "manage volume", name, cause))
    }

    fn edit_volume(
        &self,
        access: &Access,
        name: &str,
        edit: impl FnOnce(&mut VolumeConfig) -> Result<(), Error>,
    ) -> Result<String, Error> {
        let _one = self.managing.lock().expect("no thread panics while it holds the lock");
        self.managed(access, name)?;
        // From the file, which may be newer than the snapshot.
        let mut facts = volume_config::find(self.context.home(), name)?;
        edit(&mut facts)?;
        facts.store(self.context.home(), name)?;
        self.context.read_again();
        Ok(told(()))
    }

    fn delete_volume(&self, access: &Access, name: &str) -> Result<(), Error> {
        let _one = self.managing.lock().expect("no thread panics while it holds the lock");
        let facts = self.managed(access, name)?;
        if self.context.snapshot().follows(&facts) {
            let cause = "it is followed here; its administrator ends that with `renkei volume unsubscribe`";
            return Err(Error::new(Code::UsageInvalid, "delete volume", name, cause));
        }
        volume_config::remove(self.context.home(), name)?;
        self.release_folder(&self.context.snapshot(), &facts);
        self.context.read_again();
        self.forget_volume(facts.id)
    }

    fn make_volume(&self, access: &Access, wanted: &Wanted<'_>) -> Result<(), Error> {
        let _one = self.managing.lock().expect("no thread panics while it holds the lock");
        let snapshot = self.context.snapshot();
        check_maker(access, &snapshot)?;
        let Wanted { name, storage, path, in_place, settings } = wanted;
        let (named, storage) = (*storage, check_name(name, storage, &snapshot.config, self.context.home())?);
        let place = Place { storage: named.into(), path: relative(Path::new(path), &storage.path)? };
        refuse_overlap(&folder(storage, &place.path), &snapshot.config, self.context.home())?;
        let opened = access.open(&place, true)?;
        let account = opened.account.clone();
        let facts = VolumeConfig::new(
            fresh_id()?,
            snapshot.site.clone(),
            &place.storage,
            text(&place.path)?,
            account.name.clone(),
        );
        let managers = vec![Grantee::One(access.principal.clone())];
        let mut facts = VolumeConfig { in_place: *in_place, managers, ..facts };
        settings.iter().try_for_each(|(key, value)| set(&mut facts, key, value))?;
        take_folder(opened, *in_place)?;
        mark(&storage.path, &place.path, &DirectoryClaim::new(&facts.id, &snapshot.site));
        facts.store(self.context.home(), name)?;
        self.context.read_again();
        Ok(())
    }
}

fn told(what: impl Serialize) -> String {
    serde_json::to_string(&what).expect("what is told of a volume is plain data")
}

pub(crate) fn manages(facts: &VolumeConfig, access: &Access) -> bool {
    facts.managers.iter().any(|named| named.names(&access.principal))
}

fn check_maker(access: &Access, snapshot: &Snapshot) -> Result<(), Error> {
    let refused =
        |cause: String| Err(Error::new(Code::NotAllowed, "create volume", &access.principal, cause));
    if !snapshot.config.volumes.may_create(&access.principal) {
        return refused(format!("`volumes.create` in config.toml of {} does not name you", snapshot.site));
    }
    if access.is_guest {
        return refused(format!("no account of {} is mapped to you", snapshot.site));
    }
    Ok(())
}

/// Creates the directory of a volume as its account, or checks that the account owns it.
fn take_folder(opened: Opened, in_place: bool) -> Result<(), Error> {
    let account = opened.account.clone();
    opened.run("create volume", move |store, path| {
        if !in_place {
            make_folder(store, path, |_| Ok(()))?;
        }
        match owner(store, path)? {
            uid if uid == account.uid => Ok(()),
            uid => {
                let cause = format!("it belongs to the account number {uid}, and you are {}", account.name);
                Err(Error::new(Code::PermissionDenied, "create volume", path, cause))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_json() {
        assert_eq!(told(()), "null");
        assert!(told(renkei_volume::Scanned::default()).contains("\"dirs\":0"));
    }
}
