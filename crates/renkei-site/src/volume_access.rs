//! Access to volumes: which principals may open one, and as which account.
//!
//! A grant admits the principals it names, as the volume's account, to the folders it names. A principal with a
//! mapped account that requests a place outside its grants works as that account, with the rights it has in the
//! file system, as in a storage. All others are refused.

use crate::access::{Access, Opened};
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::path::{Place, RelPath};
use renkei_net::identity::account::Account;
use renkei_store::Store;
use renkei_store::passwd::group_name;
use renkei_store::scoped::ScopedStore;
use renkei_volume::VolumeConfig;
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::plain_file::Writer;
use renkei_volume::grant::folders;
use renkei_volume::volume_config::unknown;
use std::sync::Arc;

impl Access {
    /// The usable volumes, and whether each is writable, at least in part.
    pub(crate) fn volumes(&self) -> Vec<(String, bool)> {
        let volumes = self.snapshot.volumes.iter();
        volumes.filter_map(|(name, facts)| self.use_of_volume(name, facts)).collect()
    }

    fn use_of_volume(&self, name: &str, facts: &VolumeConfig) -> Option<(String, bool)> {
        let (site, scope) = (&self.snapshot.site, &self.proof.scope);
        let may = |need| {
            let is_open = !self.is_guest || !folders(&facts.grant, &self.principal, need).is_empty();
            is_open && scope.as_ref().is_none_or(|scope| scope.paths(site, name, need).next().is_some())
        };
        let (reads, writes) = (may(Need::Read), may(Need::Write));
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
