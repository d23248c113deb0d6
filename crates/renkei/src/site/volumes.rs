//! Volumes as those who ask see them: who may open one, and as which account.
//!
//! A grant lets in whom it names, as the volume's account, into the folders it names. Whoever is mapped to an account and
//! asks for what no grant gives works as that account, with the rights it has in the file system, as in a storage. All
//! others are refused.

use super::Site;
use super::access::{Access, Opened};
use super::snapshot::Snapshot;
use crate::identity::account::Account;
use crate::mover::Stop;
use crate::store::Store;
use crate::store::narrowed::Narrowed;
use crate::volume::facts::unknown;
use crate::volume::grant::folders;
use crate::volume::{Facts, Followed, Scanned, Standing, VolumeStore};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal, Right};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::volume::VolumeStatus;
use std::sync::Arc;

impl Access {
    /// The volumes that may be used, and whether something in them may be written.
    pub(super) fn volumes(&self) -> Vec<(String, bool)> {
        let volumes = self.snapshot.volumes.iter();
        volumes.filter_map(|(name, facts)| self.use_of_volume(name, facts)).collect()
    }

    fn use_of_volume(&self, name: &str, facts: &Facts) -> Option<(String, bool)> {
        let (site, scope) = (&self.snapshot.site, &self.proof.scope);
        let may = |need, right| {
            let is_open = !self.is_guest || !folders(&facts.grant, &self.principal, need).is_empty();
            let in_scope = |permit: &renkei_core::identity::Permit| {
                permit.site == *site && permit.place.storage == name && permit.right == right
            };
            is_open && scope.as_ref().is_none_or(|scope| scope.permits().iter().any(in_scope))
        };
        let (reads, writes) = (may(Need::Read, Right::Read), may(Need::Write, Right::Write));
        let read_only = self.snapshot.storage(&facts.storage).is_ok_and(|root| root.storage.read_only);
        (reads || writes).then(|| (name.into(), writes && !read_only))
    }
}

/// The account of a volume that a grant opens to a principal, and the volume's name.
pub(super) fn granted(principal: &Principal, snapshot: &Snapshot) -> Option<(String, String)> {
    let opens = |facts: &Facts| !folders(&facts.grant, principal, Need::Look).is_empty();
    let found = snapshot.volumes.iter().find(|(_, facts)| opens(facts));
    found.map(|(name, facts)| (facts.account.clone(), name.clone()))
}

/// Opens a volume for what is needed.
pub(super) fn entered(access: &Access, facts: &Facts, place: &Place, need: Need) -> Result<Opened, Error> {
    let snapshot = &access.snapshot;
    if snapshot.follows(facts) {
        return entered_copy(access, facts, place, need);
    }
    let volume = snapshot.volume(&place.storage).ok_or_else(|| unknown(&place.storage))??;
    let storage = &snapshot.storage(&facts.storage)?.storage;
    if need == Need::Write && storage.read_only {
        let cause = format!("its storage {} was added with --read-only", facts.storage);
        return Err(Error::new(Code::ReadOnlyStorage, "open", place, cause));
    }
    let mut store: Arc<dyn Store> = Arc::new(VolumeStore::new(volume));
    let folders = folders(&facts.grant, &access.principal, need);
    let is_granted = folders.iter().any(|folder| place.path.starts_with(folder));
    if !is_granted && access.is_guest {
        let cause = format!("no grant lets you {need} it");
        return Err(Error::new(Code::NotAllowed, "open", place, cause));
    }
    if is_granted && !folders.iter().any(|folder| folder.is_root()) {
        store = Arc::new(Narrowed::new(store, folders));
    }
    let account = match (is_granted, &storage.account) {
        (true, _) => Account::lookup(&facts.account)?,
        (false, Some(name)) => Account::lookup(name)?,
        (false, None) => access.account.clone(),
    };
    account.check_servable()?;
    Ok(Opened { store: access.narrowed(store, place, need), path: place.path.clone(), account })
}

/// Opens a volume that is followed, for those to whom this site has granted it: the files' own rights are the home's.
fn entered_copy(access: &Access, facts: &Facts, place: &Place, need: Need) -> Result<Opened, Error> {
    // Who may read it hears why it cannot be changed here.
    let reads = if need == Need::Write { Need::Read } else { need };
    let folders = folders(&facts.grant, &access.principal, reads);
    if !folders.iter().any(|folder| place.path.starts_with(folder)) {
        let cause = format!("no grant of this site, which follows it, lets you {reads} it");
        return Err(Error::new(Code::NotAllowed, "open", place, cause));
    }
    if need == Need::Write {
        let cause = format!("it is followed here; change it at its home, {}:/{}", facts.home, place.storage);
        return Err(Error::new(Code::ReadOnlyStorage, "open", place, cause));
    }
    let mut store = access.snapshot.store(&place.storage)?;
    if !folders.iter().any(RelPath::is_root) {
        store = Arc::new(Narrowed::new(store, folders));
    }
    let account = Account::lookup(&facts.account)?;
    account.check_servable()?;
    Ok(Opened { store: access.narrowed(store, place, need), path: place.path.clone(), account })
}

impl Site {
    /// How it stands with a volume.
    ///
    /// # Errors
    /// `VolumeUnknown`, `StorageMissing`, `CatalogueFailed`.
    pub fn volume_standing(&self, name: &str) -> Result<Standing, Error> {
        let snapshot = self.snapshot();
        if let Some(facts) = snapshot.volumes.get(name).filter(|facts| snapshot.follows(facts)) {
            let VolumeStatus { seq, last, heard_s, trouble, .. } = self.volume_status(name, facts)?;
            let followed = Some(Followed { last, heard_s });
            return Ok(Standing { records: seq, trouble, followed, ..Standing::default() });
        }
        snapshot.volume(name).ok_or_else(|| unknown(name))??.standing()
    }

    /// Compares a volume's catalogue with its plain files now.
    ///
    /// # Errors
    /// As [`Site::volume_standing`], and why the catalogue cannot follow.
    pub fn check_volume(&self, name: &str, stop: &Stop) -> Result<Scanned, Error> {
        let volume = self.snapshot().volume(name).ok_or_else(|| unknown(name))??;
        volume.check(|| stop.check().is_ok())
    }

    /// Forgets the tree of a volume whose facts were removed.
    ///
    /// # Errors
    /// `PathExists` if there is such a volume; `CatalogueFailed`.
    pub fn forget_volume(&self, id: [u8; 16]) -> Result<(), Error> {
        let snapshot = self.snapshot();
        if let Some((name, _)) = snapshot.volumes.iter().find(|(_, facts)| facts.id == id) {
            return Err(Error::new(Code::PathExists, "forget volume", name, "it was not deleted"));
        }
        snapshot.forget_volume(id)
    }
}
