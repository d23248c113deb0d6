//! Operations on files and directories, each executed as the account of the principal.
//!
//! [`file_sessions`] serves clients that work on single files for longer; `remote_locks` asks the home for locks in a
//! followed volume. `workspaces` are for doors, also on places of agents (`far_files`) and other sites; `body` is their content
//! as bodies of HTTP. The operations themselves are in `renkei_store` and `renkei_mover::files`.

pub mod body;
mod certificates_elsewhere;
mod far_files;
mod far_sessions;
pub mod file_sessions;
pub(crate) mod remote_locks;
pub(crate) mod staging;
mod uploads;
pub(crate) mod workspaces;

use super::access::Access;
use crate::Context;
use crate::relay::Relay;
use crate::transfer::Transfers;
use certificates_elsewhere::CertificatesElsewhere;
use far_sessions::FarSessions;
use file_sessions::{FdPassing, LeftDrafts};
use renkei_core::entry::{Entry, EntryKind, Meta};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Rights;
use renkei_core::lease::Moment;
use renkei_core::lease::web_locks::WebLocks;
use renkei_core::mover::layout::CopyLayout;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::message::{Algorithm, BATCH_ENTRIES, DestinationKind, OpenReceive, Space, Usage};
use renkei_mover::Stop;
use renkei_mover::files::checksum_on_demand::{compute, known};
use renkei_store::checksum::Checksum;
use renkei_store::locks::LockTable;
use renkei_store::permission_denied::{Attempt, refused};
use renkei_store::temp::is_temp_name;
use renkei_store::temp::refuse_temp_names;
use renkei_store::tree::{disk_usage, remove_tree_while};
use renkei_store::{Detail, Dir, ReadFile, Store};
use staging::Replicas;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;
use workspaces::Workspaces;

/// The files of a PoP.
pub struct FileService {
    context: Arc<Context>,
    relay: Arc<Relay>,
    transfers: Arc<Transfers>,
    locks: Arc<LockTable>,
    lending: FdPassing,
    left_drafts: LeftDrafts,
    web_locks: Mutex<WebLocks>,
    started: Instant,
    volumes: Arc<dyn Replicas>,
    pub(crate) workspaces: Workspaces,
    far_sessions: FarSessions,
    certificates_elsewhere: CertificatesElsewhere,
}

impl FileService {
    /// The files of a PoP, none of them open.
    pub(crate) fn new(
        context: &Arc<Context>,
        relay: &Arc<Relay>,
        transfers: &Arc<Transfers>,
        volumes: Arc<dyn Replicas>,
    ) -> Self {
        FileService {
            volumes,
            context: context.clone(),
            relay: relay.clone(),
            transfers: transfers.clone(),
            locks: Arc::default(),
            lending: FdPassing::default(),
            left_drafts: LeftDrafts::default(),
            web_locks: Mutex::default(),
            started: Instant::now(),
            workspaces: Workspaces::default(),
            far_sessions: FarSessions::default(),
            certificates_elsewhere: CertificatesElsewhere::default(),
        }
    }

    /// The time by which [`FileService::web_locks`] end.
    pub fn web_time(&self) -> Moment {
        self.started.elapsed()
    }

    /// The write locks of HTTP clients; a restart forgets them.
    pub fn web_locks(&self) -> MutexGuard<'_, WebLocks> {
        self.web_locks.lock().expect("no thread panics while it holds the lock")
    }

    /// One entry's metadata; the root and each storage show as directories.
    pub fn stat(&self, access: &Access, place: Option<Place>) -> Result<Entry, Error> {
        let Some(place) = place else { return Ok(folder(RelPath::root())) };
        at(
            access,
            &place,
            access.look(&place)?.run("stat", |store, path| read(store, path, stat(store, path))),
        )
    }

    /// The directory that a place resolves to; symbolic links inside the storage are followed.
    pub fn stat_dir(&self, access: &Access, place: Option<Place>) -> Result<Entry, Error> {
        let Some(place) = place else { return Ok(folder(RelPath::root())) };
        let work = |store: &dyn Store, path: &RelPath| {
            let entry = store.dir(path).and_then(|dir| dir.self_entry(Detail::Full));
            Ok(read(store, path, entry)?.0)
        };
        at(access, &place, access.look(&place)?.run("stat", work))
    }

    /// Examines the destination of a copy and resolves its layout; a directory that the sources go into is created if it
    /// is missing.
    ///
    /// # Errors
    /// Those of [`OpenCopy::resolve`], [`FileService::stat_dir`] and [`FileService::mkdir`].
    pub fn resolve_copy(&self, access: &Access, copy: &OpenCopy) -> Result<(CopyLayout, OpenReceive), Error> {
        let found = self.found(access, &copy.to)?;
        let resolved = copy.resolve(found).map_err(|error| error.at(access.site()))?;
        if resolved.make {
            match self.mkdir(access, &copy.to, false) {
                // Another copy into it was opened at the same time.
                Err(error) if error.code == Code::PathExists => {}
                made => made?,
            }
        }
        Ok((resolved.layout, copy.receive(resolved.layout)))
    }

    fn found(&self, access: &Access, destination: &Place) -> Result<DestinationKind, Error> {
        match self.stat_dir(access, Some(destination.clone())) {
            Ok(Entry { kind: EntryKind::Dir, .. }) => Ok(DestinationKind::Dir),
            Ok(_) => Ok(DestinationKind::Other),
            Err(error) if error.code == Code::NotADirectory => Ok(DestinationKind::Other),
            Err(error) if error.code == Code::PathNotFound => Ok(DestinationKind::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Lists a directory, or the storages, in pages of at most [`BATCH_ENTRIES`].
    pub fn list(
        &self,
        access: &Access,
        place: Option<Place>,
        on_part: impl FnMut(Vec<Entry>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let Some(place) = place else { return list_storages(access, on_part) };
        at(
            access,
            &place,
            access.examine(&place)?.run("list", |store, path| {
                let listed = store.dir(path).and_then(|dir| list(&*dir, on_part));
                read(store, path, listed)
            }),
        )
    }

    /// Creates a directory.
    pub fn mkdir(&self, access: &Access, place: &Place, parents: bool) -> Result<(), Error> {
        audit(access, "mkdir", place);
        let work =
            move |store: &dyn Store, path: &RelPath| settled(store, &[path], make_dir(store, path, parents));
        at(access, place, access.open_to_change(place, Rights::CREATE)?.run("mkdir", work))
    }

    /// Removes a file, or with `recursive` a tree; a stop ends it early, with the rest left in place.
    pub fn remove(&self, access: &Access, place: &Place, recursive: bool, stop: &Stop) -> Result<(), Error> {
        if let Some(far) = self.far_place(access, place)? {
            audit_by(access, None, "remove", place);
            return self.remove_far(far, recursive);
        }
        audit(access, "remove", place);
        let stop = stop.clone();
        let work = move |store: &dyn Store, path: &RelPath| {
            settled(store, &[path], remove(store, path, recursive, &stop))
        };
        let rights = if recursive { Rights::DELETE | Rights::LIST } else { Rights::DELETE };
        at(access, place, access.open_to_change(place, rights)?.run("remove", work))
    }

    /// Renames within one storage, replacing an existing file.
    pub fn rename(&self, access: &Access, from: &Place, to: &Place) -> Result<(), Error> {
        audit(access, "rename", from);
        if from.storage != to.storage {
            let cause = format!("{from} and {to} are in different storages");
            return Err(Error::new(Code::CrossDevice, "rename", from, cause).at(access.site()));
        }
        refuse_temp_names("rename", &to.path).map_err(|error| error.at(access.site()))?;
        // A grant for the one name does not imply one for the other.
        access.open(to, true)?;
        let to = to.path.clone();
        let work = move |store: &dyn Store, from: &RelPath| {
            let renamed = rename(store, from, &to);
            settled(store, &[from, &target(store, from, to)], renamed)
        };
        at(access, from, access.open_to_change(from, Rights::MODIFY)?.run("rename", work))
    }

    /// Space used by a tree; can be stopped.
    pub fn usage(&self, access: &Access, place: &Place, stop: &Stop) -> Result<Usage, Error> {
        let stop = stop.clone();
        let work = move |store: &dyn Store, path: &RelPath| read(store, path, usage(store, path, &stop));
        at(access, place, access.examine(place)?.run("usage", work))
    }

    /// Space of the file system below a place.
    pub fn space(&self, access: &Access, place: &Place) -> Result<Space, Error> {
        space(access, place)
    }

    /// Checksum of the current content of a file; can be stopped.
    pub fn checksum(
        &self,
        access: &Access,
        place: &Place,
        algorithm: Algorithm,
        stop: &Stop,
    ) -> Result<Vec<u8>, Error> {
        let (stop, cache) = (stop.clone(), self.context.checksums.of(&place.storage));
        let work = move |store: &dyn Store, path: &RelPath| {
            let opened = parent(store, path).and_then(|(dir, name)| dir.open_read(name));
            compute(&*read(store, path, opened)?, algorithm, Some(&*cache), &|| stop.check())
        };
        at(access, place, access.open_to_digest(place)?.run("checksum", work))
    }
}

/// Space of the file system below a place.
pub(crate) fn space(access: &Access, place: &Place) -> Result<Space, Error> {
    let work = |store: &dyn Store, path: &RelPath| store.space(path);
    at(access, place, access.look(place)?.run("space", work))
}

/// The checksum that is remembered of the present content of a file.
pub(crate) fn remembered_checksum(
    context: &Context,
    access: &Access,
    place: &Place,
    algorithm: Algorithm,
) -> Result<Option<Vec<u8>>, Error> {
    let cache = context.checksums.of(&place.storage);
    let work = move |store: &dyn Store, path: &RelPath| {
        let opened = parent(store, path).and_then(|(dir, name)| dir.open_read(name));
        known(&*read(store, path, opened)?, algorithm, Some(&*cache))
    };
    at(access, place, access.open_to_digest(place)?.run("checksum", work))
}

/// The result of a change of names, returned when no client caches the old state any more.
fn settled(store: &dyn Store, paths: &[&RelPath], done: Result<(), Error>) -> Result<(), Error> {
    store.settle();
    done.map_err(|error| told(store, Attempt::Name, paths, error))
}

/// The result of a read; a permission error is completed with the mode or owner that caused it.
fn read<T>(store: &dyn Store, path: &RelPath, outcome: Result<T, Error>) -> Result<T, Error> {
    outcome.map_err(|error| told(store, Attempt::Read, &[path], error))
}

fn told(store: &dyn Store, attempt: Attempt, paths: &[&RelPath], error: Error) -> Error {
    match store.root() {
        Ok(root) if error.code == Code::PermissionDenied => refused(&*root, attempt, paths, error),
        _ => error,
    }
}

/// Completes an error with the storage and the site.
fn at<T>(access: &Access, place: &Place, result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| error.under(&format!("/{}", place.storage)).at(access.site()))
}

fn audit(access: &Access, op: &str, place: &Place) {
    audit_by(access, Some(&access.account.name), op, place);
}

/// Notes a change with the account that makes it, if it is one of this site.
fn audit_by(access: &Access, account: Option<&str>, op: &str, place: &Place) {
    let (principal, transfer) = (&access.principal, access.proof.transfer());
    tracing::info!(target: "audit", %principal, transfer, account, op, %place, "file operation");
}

/// The parent directory of a path, and the name in it.
fn parent<'p>(store: &dyn Store, path: &'p RelPath) -> Result<(Arc<dyn Dir>, &'p [u8]), Error> {
    let Some((parent, name)) = path.split() else {
        return Err(Error::new(Code::IsADirectory, "open", path, "the storage's root"));
    };
    Ok((store.dir(&RelPath::parse(parent)?)?, name))
}

/// Metadata of an entry of any store.
pub fn stat(store: &dyn Store, path: &RelPath) -> Result<Entry, Error> {
    if path.is_root() {
        return Ok(store.root()?.self_entry(Detail::Full)?.0);
    }
    let (dir, name) = parent(store, path)?;
    Ok(dir.entry(name, Detail::Full)?.0)
}

fn folder(path: RelPath) -> Entry {
    Entry { path, meta: Meta { mode: 0o755, ..Meta::default() }, kind: EntryKind::Dir }
}

fn list_storages(
    access: &Access,
    mut on_part: impl FnMut(Vec<Entry>) -> Result<(), Error>,
) -> Result<(), Error> {
    let storages = access.snapshot.storages.keys().filter(|name| access.may_see(name)).cloned();
    let names = storages.chain(access.volumes().into_iter().map(|(name, _)| name));
    on_part(names.map(|name| Ok(folder(RelPath::parse(name.as_bytes())?))).collect::<Result<_, Error>>()?)
}

/// Passes on the entries of a directory, without temporary files of unfinished copies.
fn list(dir: &dyn Dir, mut on_part: impl FnMut(Vec<Entry>) -> Result<(), Error>) -> Result<(), Error> {
    let mut part = Vec::new();
    for listed in dir.list()? {
        let name = listed?.name;
        if is_temp_name(&name) {
            continue;
        }
        match dir.entry(&name, Detail::Full) {
            Ok((entry, _)) => part.push(Entry { path: RelPath::parse(&name)?, ..entry }),
            Err(error) if error.code == Code::PathNotFound => {}
            Err(error) => return Err(error),
        }
        if part.len() == BATCH_ENTRIES {
            on_part(std::mem::take(&mut part))?;
        }
    }
    on_part(part)
}

/// Creates a directory in any store, as mkdir or `mkdir -p`.
pub fn make_dir(store: &dyn Store, path: &RelPath, parents: bool) -> Result<(), Error> {
    if !parents {
        let (dir, name) = parent(store, path)?;
        // A transfer into it is acknowledged as durable, and does not sync its parent.
        return dir.mkdir(name, 0o777).and_then(|()| dir.sync());
    }
    let mut at = RelPath::root();
    for name in path.components() {
        let dir = store.dir(&at)?;
        at = at.child(name)?;
        match dir.mkdir(name, 0o777) {
            Err(error) if error.code != Code::PathExists => return Err(error),
            Err(_) => {}
            Ok(()) => dir.sync()?,
        }
    }
    store.dir(&at).map(drop)
}

fn remove(store: &dyn Store, path: &RelPath, recursive: bool, stop: &Stop) -> Result<(), Error> {
    if path.is_root() {
        let cause = "a storage itself is never removed; name what is in it";
        return Err(Error::new(Code::UsageInvalid, "remove", "/", cause));
    }
    let (dir, name) = parent(store, path)?;
    match recursive {
        true => remove_tree_while(&*dir, name, &|| stop.check()).map(drop),
        false => dir.remove_file(name),
    }
}

fn rename(store: &dyn Store, from: &RelPath, to: &RelPath) -> Result<(), Error> {
    let (from_dir, from_name) = parent(store, from)?;
    let into_dir = store.dir(to).ok();
    match (into_dir, to.split()) {
        (Some(dir), _) => from_dir.rename(from_name, &*dir, from_name),
        (None, Some((parent, name))) => {
            from_dir.rename(from_name, &*store.dir(&RelPath::parse(parent)?)?, name)
        }
        (None, None) => {
            Err(Error::new(Code::StorageMissing, "rename", to, "the storage's root no longer exists"))
        }
    }
}

/// The new path of a rename: inside `to` if that is a directory, else `to` itself.
fn target(store: &dyn Store, from: &RelPath, to: RelPath) -> RelPath {
    let within = from.name().and_then(|name| to.child(name).ok());
    within.filter(|_| store.dir(&to).is_ok()).unwrap_or(to)
}

fn usage(store: &dyn Store, path: &RelPath, stop: &Stop) -> Result<Usage, Error> {
    let entry = stat(store, path)?;
    if entry.kind == EntryKind::Dir {
        let used = disk_usage(&store.dir(path)?, &|| stop.check())?;
        let (files, dirs) = (used.files, used.dirs);
        return Ok(Usage { bytes: used.bytes, allocated_bytes: used.allocated, files, dirs });
    }
    let (dir, name) = parent(store, path)?;
    let (entry, raw) = dir.entry(name, Detail::Basic)?;
    Ok(Usage { bytes: entry.size(), allocated_bytes: raw.blocks * 512, files: 1, dirs: 0 })
}

/// Checksum of an open file up to its end; can be stopped.
pub fn checksum(file: &dyn ReadFile, algorithm: Algorithm, stop: &Stop) -> Result<Vec<u8>, Error> {
    Checksum::of(algorithm, |buf, at| stop.check().and_then(|()| file.read_at(buf, at)))
}
