//! Access to volumes: which principals may open one, and as which account.
//!
//! A grant admits the principals it names, as the volume's account, to the folders it names. A principal with a
//! mapped account that requests a place outside its grants works as that account, with the rights it has in the
//! file system, as in a storage. All others are refused.

use super::replica::service::{locate, no_volume};
use crate::Site;
use crate::access::{Access, Opened};
use crate::files::stat;
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal, Right};
use renkei_core::namespace::Kind;
use renkei_core::namespace::quota::{Limit, Use};
use renkei_core::namespace::quota_share::Room;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::volume::{Duties, VolumeStatus};
use renkei_mover::Stop;
use renkei_net::identity::account::Account;
use renkei_store::Store;
use renkei_store::passwd::group_name;
use renkei_store::scoped::ScopedStore;
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::view::Writer;
use renkei_volume::grant::folders;
use renkei_volume::settings::UseRow;
use renkei_volume::volume_config::unknown;
use renkei_volume::{Followed, Scanned, Standing, VolumeConfig};
use std::sync::Arc;

impl Access {
    /// The usable volumes, and whether each is writable, at least in part.
    pub(crate) fn volumes(&self) -> Vec<(String, bool)> {
        let volumes = self.snapshot.volumes.iter();
        volumes.filter_map(|(name, facts)| self.use_of_volume(name, facts)).collect()
    }

    fn use_of_volume(&self, name: &str, facts: &VolumeConfig) -> Option<(String, bool)> {
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

/// The account and the name of a volume that a principal is granted access to, or that it manages.
pub(crate) fn granted(principal: &Principal, snapshot: &Snapshot) -> Option<(String, String)> {
    let manages = |facts: &VolumeConfig| facts.managers.iter().any(|named| named.names(principal));
    let opens = |name: &str, facts: &VolumeConfig| {
        is_sister(principal, snapshot, name, facts)
            || manages(facts)
            || !folders(&facts.grant, principal, Need::Look).is_empty()
    };
    let found = snapshot.volumes.iter().find(|(name, facts)| opens(name, facts));
    found.map(|(name, facts)| (facts.account.clone(), name.clone()))
}

/// Whether the principal is the PoP of a followed volume's home or of another follower, which may read the replicas
/// here.
pub(crate) fn is_sister(
    principal: &Principal,
    snapshot: &Snapshot,
    name: &str,
    facts: &VolumeConfig,
) -> bool {
    let Principal::Host(site) = principal else { return false };
    let is_fellow = || {
        let pending = snapshot.pending(name, facts);
        pending.is_ok_and(|pending| pending.fellows().iter().any(|fellow| fellow.site == *site))
    };
    snapshot.follows(facts) && *site != snapshot.site && (*site == facts.home || is_fellow())
}

/// Opens a volume for a need.
pub(crate) fn entered(
    access: &Access,
    facts: &VolumeConfig,
    place: &Place,
    need: Need,
) -> Result<Opened, Error> {
    let snapshot = &access.snapshot;
    if need != Need::Write && is_sister(&access.principal, snapshot, &place.storage, facts) {
        return entered_by_sister(access, facts, place, need);
    }
    if snapshot.follows(facts) {
        return entered_copy(access, facts, place, need);
    }
    // The open directory is the one at the path.
    snapshot.storage(&facts.storage)?.local()?;
    let volume = snapshot.volume_in_place(&place.storage, facts).ok_or_else(|| unknown(&place.storage))??;
    let storage = &snapshot.storage(&facts.storage)?.storage;
    if need == Need::Write && storage.read_only {
        let cause = format!("its storage {} was added with --read-only", facts.storage);
        return Err(Error::new(Code::ReadOnlyStorage, "open", place, cause));
    }
    let mut store = snapshot.volume_store(&place.storage, volume)?;
    catch_up(access, || store.catch_up());
    let folders = folders(&facts.grant, &access.principal, need);
    let is_granted = folders.iter().any(|folder| place.path.starts_with(folder));
    if !is_granted && access.is_guest {
        let cause = format!("no grant lets you {need} it");
        return Err(Error::new(Code::NotAllowed, "open", place, cause));
    }
    if is_granted && !folders.iter().any(|folder| folder.is_root()) {
        store = Arc::new(ScopedStore::new(store, folders));
    }
    let account = access.working_as(match is_granted {
        true => Some(&facts.account),
        false => storage.account.as_deref(),
    })?;
    account.check_servable()?;
    Ok(Opened { store: access.narrowed(store, place, need), path: place.path.clone(), account })
}

/// Waits until changes closed at other sites before are visible here; a site that cannot be reached is reported as
/// a condition.
fn catch_up(access: &Access, work: impl FnOnce() -> Result<bool, Error>) {
    if !matches!(access.principal, Principal::Host(_))
        && let Err(error) = work()
    {
        tracing::debug!(%error, "what is opened is as far as it came here");
    }
}

/// Opens a followed volume for principals with a grant of this site: the files' own rights apply at the home.
fn entered_copy(access: &Access, facts: &VolumeConfig, place: &Place, need: Need) -> Result<Opened, Error> {
    let pending = access.snapshot.pending(&place.storage, facts)?;
    let may_write = pending.enlisted().is_some_and(|enlisted| enlisted.writes) && !facts.storage.is_empty();
    // A reader without write access gets the specific reason.
    let needed = if need == Need::Write && !may_write { Need::Read } else { need };
    let folders = folders(&facts.grant, &access.principal, needed);
    if !folders.iter().any(|folder| place.path.starts_with(folder)) {
        let cause = format!("no grant of this site, which follows it, lets you {needed} it");
        return Err(Error::new(Code::NotAllowed, "open", place, cause));
    }
    if !pending.enlisted().is_some_and(|enlisted| enlisted.is_ready) {
        let cause = format!("it is on its way from {}", facts.home);
        return Err(Error::new(Code::TreeNotHere, "open", place, cause));
    }
    catch_up(access, || pending.own_lease().catch_up());
    let account = access.working_as(Some(&facts.account))?;
    account.check_servable()?;
    let writer = match need {
        Need::Write => Some(writer(access, facts, place, &pending)?),
        _ => None,
    };
    let mut store: Arc<dyn Store> = Arc::new(access.snapshot.followed(&place.storage, facts, writer)?);
    if !folders.iter().any(RelPath::is_root) {
        store = Arc::new(ScopedStore::new(store, folders));
    }
    Ok(Opened { store: access.narrowed(store, place, need), path: place.path.clone(), account })
}

/// The writer for changes of a followed volume.
fn writer(access: &Access, facts: &VolumeConfig, place: &Place, pending: &Outbox) -> Result<Writer, Error> {
    let name = &place.storage;
    let refused = |cause: String| Error::new(Code::ReadOnlyStorage, "open", place, cause);
    let at_home = format!("change it at its home, {}:/{name}", facts.home);
    if !pending.enlisted().is_some_and(|enlisted| enlisted.writes) {
        return Err(refused(format!("{} lets this site read it alone; {at_home}", facts.home)));
    }
    let contents = access.snapshot.contents(name, facts)?;
    let plain = contents
        .plain
        .ok_or_else(|| refused(format!("it was subscribed to without --storage; {at_home}")))?;
    let storage = &access.snapshot.storage(&facts.storage)?.storage;
    if storage.read_only {
        return Err(refused(format!("its storage {} was added with --read-only", facts.storage)));
    }
    let account = if access.is_guest { Account::lookup(&facts.account)? } else { access.account.clone() };
    let group = group_name(account.gid).unwrap_or_else(|| account.gid.to_string());
    Ok(Writer { plain, owner: account.name, group })
}

/// Opens for another site with the volume the replicas held here, without read-through to further sites.
fn entered_by_sister(
    access: &Access,
    facts: &VolumeConfig,
    place: &Place,
    need: Need,
) -> Result<Opened, Error> {
    let store: Arc<dyn Store> = Arc::new(access.snapshot.followed_here(&place.storage, facts)?);
    let account = Account::lookup_to_lend(&facts.account)?;
    account.check_servable()?;
    Ok(Opened { store: access.narrowed(store, place, need), path: place.path.clone(), account })
}

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

impl Site {
    /// The status of a volume.
    ///
    /// # Errors
    /// `VolumeUnknown`, `StorageMissing`, `CatalogueFailed`.
    pub fn volume_standing(&self, name: &str) -> Result<Standing, Error> {
        let snapshot = self.snapshot();
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
            return Ok(Standing {
                records: seq,
                trouble,
                followed,
                holds,
                used,
                verified,
                ..Standing::default()
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
        Ok(Standing { kept, used, verified, away, trouble, ..standing })
    }

    /// Compares a volume's catalogue with its plain files now.
    ///
    /// # Errors
    /// As [`Site::volume_standing`], and those of the reconciler.
    pub fn check_volume(&self, name: &str, stop: &Stop) -> Result<Scanned, Error> {
        let check = || {
            let volume = self.snapshot().volume(name).ok_or_else(|| unknown(name))??;
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
    /// `VolumeChanged` if files are missing and `incomplete` does not allow that, else as [`Site::check_volume`].
    pub fn accept_volume(&self, name: &str, incomplete: bool) -> Result<Scanned, Error> {
        let snapshot = self.snapshot();
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

    /// The digest of a file in the catalogue, without reading the file; `None` if it is unknown for the present
    /// content.
    ///
    /// # Errors
    /// `VolumeUnknown`, `PathNotFound`, `IsADirectory`, and those of access to the file.
    pub(crate) fn known_digest(&self, access: &Access, place: &Place) -> Result<Option<[u8; 32]>, Error> {
        let snapshot = self.snapshot();
        let facts = snapshot.volumes.get(&place.storage).ok_or_else(|| no_volume(place))?;
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

    /// Removes the tree of a volume whose configuration was removed.
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
