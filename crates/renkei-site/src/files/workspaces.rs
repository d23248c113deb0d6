//! The file service of the PoP: authorised workspaces, for doors.
//!
//! A workspace is opened for a principal and a place, as a file session is: the access is checked, and checked again when
//! the configuration, trust or mapping changes (grants on folders, where a place is opened). A workspace whose access ended
//! refuses all further operations.
//! Operations run on threads of the account that the place is opened as. Each change is noted in the audit log.

use super::FileService;
use crate::access::Access;
use crate::snapshot::Snapshot;
use crate::{Context, Counters};
use renkei_core::block::AlignedBlock;
use renkei_core::entry::Xattr;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::identity::{Need, Principal};
use renkei_core::name_table::{NameTable, NamesFrom};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::file::{Answer, Changes, Depth, Files, Handle, Item, Op, Precondition, Watch};
use renkei_core::wire::uploads::UploadOp;
use renkei_mover::files::local_files::LocalFiles;
use renkei_mover::files::workspace::Workspace;
use renkei_mover::{Stop, fresh_id};
use renkei_net::identity::account::Account;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// The open workspaces.
#[derive(Default)]
pub(crate) struct Workspaces(Mutex<Vec<Weak<Authorised>>>);

/// What a workspace was opened for.
pub(super) struct Authorised {
    pub(super) access: Access,
    place: Place,
    /// The PoP or agent that has the files, if they are not here.
    served_by: Option<Principal>,
    stop: Stop,
    /// Whether the last judgement refused it.
    refused: AtomicBool,
    /// The last configuration by which it was judged to be valid.
    judged: Mutex<Arc<Snapshot>>,
}

impl Workspaces {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Authorised>>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// The open ones; closed ones are forgotten.
    fn all(&self) -> Vec<Arc<Authorised>> {
        let mut all = self.lock();
        all.retain(|one| one.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends those whose access was refused twice: a file may be read while it is rewritten.
    pub(crate) fn judge(&self, now: &Arc<Snapshot>) {
        for one in self.all() {
            let refused = one.judge(now).err();
            let again = one.refused.swap(refused.is_some(), Ordering::AcqRel);
            if let (Some(error), true) = (refused, again) {
                tracing::warn!(target: "audit", principal = %one.access.principal, place = %one.place, %error, "ended");
                one.stop.stop(error);
            }
        }
    }

    /// Ends all.
    pub(crate) fn stop_all(&self, error: &Error) {
        self.all().into_iter().for_each(|one| one.stop.stop(error.clone()));
    }
}

impl Authorised {
    /// Fails with the reason if the access has ended.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.stop.check().map_err(|error| error.at(self.access.site()))
    }

    /// Judges the access by a configuration, once. No file system is touched: the watch thread must not wait for one.
    fn judge(&self, now: &Arc<Snapshot>) -> Result<(), Error> {
        let mut judged = self.judged.lock().expect("no thread panics while it holds the lock");
        if !Arc::ptr_eq(&judged, now) {
            self.access.judge_again(now)?;
            self.expect_server(now)?;
            *judged = now.clone();
        }
        Ok(())
    }

    /// Checks that the PoP or agent that has the files may still be asked.
    fn expect_server(&self, now: &Snapshot) -> Result<(), Error> {
        match &self.served_by {
            Some(Principal::Agent { storage, .. }) if now.agent_of(storage) != Some(&self.access.mapped) => {
                let cause = format!("that of {}, no longer", self.access.mapped);
                Err(Error::new(Code::NotAgentsAccount, "open", storage, cause))
            }
            Some(Principal::Host(site)) if now.trust.card(site).is_none() => {
                Err(Error::new(Code::SiteUnknown, "open", site, "it is not trusted here"))
            }
            _ => Ok(()),
        }
    }

    /// Notes a change in the audit log, with the account that makes it, if it is one of this site.
    pub(super) fn audit(&self, op: &Op, account: Option<&str>) {
        let Some(path) = op.changed_paths().first().copied().or(noted_path(op)) else { return };
        let Authorised { access, place, .. } = self;
        let path = place.path.join(path).unwrap_or_default();
        let place = Place { storage: place.storage.clone(), path };
        tracing::info!(target: "audit", principal = %access.principal, transfer = access.proof.transfer(), account,
            op = name(op), %place, "file operation");
    }
}

impl FileService {
    /// The files of a storage and the path in them; where only folders of it are open to the principal, those of the
    /// path's parent, or of the path itself.
    ///
    /// # Errors
    /// As [`FileService::open`].
    pub fn open_around(
        &self,
        access: &Access,
        place: &Place,
        need: Need,
    ) -> Result<(Workspace, RelPath), Error> {
        let at = |path| Place { storage: place.storage.clone(), path };
        match (self.open(access, &at(RelPath::root()), need), place.path.parent(), place.path.name()) {
            (Ok(files), _, _) => Ok((files, place.path.clone())),
            // Another site or an agent that is not reached is not asked again.
            (Err(error), ..) if error.kind() == Kind::Unavailable => Err(error),
            (Err(_), Some(parent), Some(name)) => match self.open(access, &at(parent), need) {
                Ok(files) => Ok((files, RelPath::root().child(name)?)),
                // The folder itself may be what is open.
                Err(error) => match self.open(access, place, need) {
                    Ok(files) => Ok((files, RelPath::root())),
                    Err(_) => Err(error),
                },
            },
            (Err(error), _, _) => Err(error),
        }
    }

    /// The files of a place, for a principal that needs them to look at, to list, to read or to write.
    ///
    /// # Errors
    /// `OutOfScope`, `NotMapped`, `StorageUnknown`, `StorageMissing`, `ReadOnlyStorage`, and those of opening a directory;
    /// for the storage of an agent `AgentAbsent`, `NotAgentsAccount`; for a place of another site (`/SITE:/STORAGE/PATH`)
    /// `NotAllowed`, `SiteUnknown` and those of the connection.
    pub fn open(&self, access: &Access, place: &Place, need: Need) -> Result<Workspace, Error> {
        let side = |error: Error| error.at(access.site());
        if let Some(far) = self.far_place(access, place).map_err(side)? {
            return self.open_far(access, place, far, need);
        }
        let opened = access.open_files(place, need)?;
        let account = opened.0.account.clone();
        let locker = self.locker(access, &place.storage, fresh_id().map_err(side)?).map_err(side)?;
        let local = Arc::new(self.local_files(access, (place, need), opened, locker).map_err(side)?);
        let authorised = self.authorised(access, place, None)?;
        let (context, root) = (self.context.clone(), format!("/{}", place.storage));
        Ok(Workspace::new(Arc::new(AccountFiles { context, local: Some(local), account, root, authorised })))
    }

    /// Registers what a workspace is opened for, so that it ends with the rights to it.
    pub(super) fn authorised(
        &self,
        access: &Access,
        place: &Place,
        served_by: Option<Principal>,
    ) -> Result<Arc<Authorised>, Error> {
        let authorised = Arc::new(Authorised {
            access: access.clone(),
            place: place.clone(),
            served_by,
            stop: Stop::default(),
            refused: AtomicBool::new(false),
            judged: Mutex::new(access.snapshot.clone()),
        });
        self.workspaces.lock().push(Arc::downgrade(&authorised));
        // Rights may have changed since the access was made.
        authorised.judge(&self.context.last_snapshot()).map_err(|error| error.at(access.site()))?;
        Ok(authorised)
    }
}

/// The files of a workspace: each operation is checked, noted and executed as the account.
struct AccountFiles {
    context: Arc<Context>,
    /// Some until it is dropped.
    local: Option<Arc<LocalFiles>>,
    account: Account,
    /// The storage, for the subjects of errors.
    root: String,
    authorised: Arc<Authorised>,
}

impl AccountFiles {
    /// Checks, counts and executes work as the account.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LocalFiles) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.begin()?;
        self.execute(work)
    }

    /// Executes work as the account, once it was checked.
    fn execute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LocalFiles) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let local = self.local().clone();
        let done = self.account.run("files", move || work(&local));
        done.map_err(|error| self.told(error))
    }

    /// Checks and counts an operation.
    fn begin(&self) -> Result<(), Error> {
        self.authorised.check()?;
        Counters::add(&self.context.counters.file_operations_total, 1);
        Ok(())
    }

    fn local(&self) -> &Arc<LocalFiles> {
        self.local.as_ref().expect("it is open until it is dropped")
    }

    fn told(&self, error: Error) -> Error {
        error.under(&self.root).at(self.authorised.access.site())
    }
}

impl Files for AccountFiles {
    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        self.begin()?;
        self.authorised.audit(&op, Some(&self.account.name));
        Counters::add(&self.context.counters.file_bytes_total, content.len() as u64);
        // The thread of the account outlives no call, but that cannot be told to the compiler.
        let content = content.to_vec();
        self.execute(move |local| local.operate(op, &content))
    }

    fn write_block(
        &self,
        draft: Handle,
        offset: u64,
        block: AlignedBlock,
    ) -> Result<(Answer, AlignedBlock), Error> {
        Counters::add(&self.context.counters.file_bytes_total, block.len() as u64);
        self.run(move |local| {
            let answer = local.operate(Op::Write { handle: draft, offset }, &block)?;
            Ok((answer, block))
        })
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        self.begin()?;
        // The account has opened the file; to read it, its thread is not needed.
        if let Some(read) = self.local().read_plain(handle, offset, buf) {
            let count = read.map_err(|error| self.told(error))?;
            Counters::add(&self.context.counters.file_bytes_total, count as u64);
            return Ok(count);
        }
        let bytes = buf.len();
        let read = self.execute(move |local| {
            let mut read = vec![0; bytes];
            let count = local.read(handle, offset, &mut read)?;
            read.truncate(count);
            Ok(read)
        })?;
        Counters::add(&self.context.counters.file_bytes_total, read.len() as u64);
        buf[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }

    fn names(&self, dir: &RelPath, from: &NamesFrom) -> Result<Option<Arc<NameTable>>, Error> {
        let (dir, from) = (dir.clone(), from.clone());
        self.run(move |local| local.names(&dir, &from))
    }

    fn look_at_names(&self, dir: &RelPath, names: &[Vec<u8>]) -> Result<Option<Vec<Option<Item>>>, Error> {
        let (dir, names) = (dir.clone(), names.to_vec());
        self.run(move |local| local.look_at_names(&dir, &names))
    }

    fn watch(&self, dir: &RelPath, depth: Depth) -> Result<Box<dyn Watch>, Error> {
        let dir = dir.clone();
        let inner = self.run(move |local| local.watch(&dir, depth))?;
        let (account, authorised) = (self.account.clone(), self.authorised.clone());
        Ok(Box::new(AccountWatch { inner: Some(inner), account, authorised }))
    }

    // What is only noted for the publication needs no thread of the account.
    fn require(&self, draft: Handle, condition: Precondition) -> Result<(), Error> {
        self.begin()?;
        self.local().require(draft, condition).map_err(|error| self.told(error))
    }

    fn describe(&self, draft: Handle, attributes: Vec<Xattr>) -> Result<(), Error> {
        self.begin()?;
        self.local().describe(draft, attributes).map_err(|error| self.told(error))
    }

    fn descriptor(&self, handle: Handle) -> Option<OwnedFd> {
        self.run(move |local| Ok(local.descriptor(handle))).ok().flatten()
    }
}

/// A watch of a workspace: directories that are new are opened as the account.
struct AccountWatch {
    /// Some but while the account works on it.
    inner: Option<Box<dyn Watch>>,
    account: Account,
    authorised: Arc<Authorised>,
}

impl Watch for AccountWatch {
    fn next(&mut self, at_most: Duration) -> Result<Changes, Error> {
        let ended = || Error::new(Code::NotOpen, "watch", &self.authorised.place, "it failed before");
        let mut inner = self.inner.take().ok_or_else(ended)?;
        let (inner, changes) = self.account.run("watch", move || {
            let changes = inner.next(at_most);
            Ok((inner, changes))
        })?;
        self.inner = Some(inner);
        // What changed while the access ended is not told.
        self.authorised.check().and(changes)
    }
}

impl Drop for AccountFiles {
    fn drop(&mut self) {
        // Drafts that were not published are removed as the account; nothing else needs its thread.
        let Some(local) = self.local.take().filter(|local| local.open_count() > 0) else { return };
        let closed = self.account.run("close", move || {
            drop(local);
            Ok(())
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "the files of a workspace were not closed as their account");
        }
    }
}

/// The path of an operation that changes no name at once, and is noted all the same.
fn noted_path(op: &Op) -> Option<&RelPath> {
    match op {
        Op::Draft { path, .. } | Op::Stage(path) | Op::Release(path) => Some(path),
        Op::Upload { path, op: UploadOp::Begin } => Some(path),
        _ => None,
    }
}

/// The name of a change in the audit log.
fn name(op: &Op) -> &'static str {
    match op {
        Op::Draft { .. } | Op::Upload { op: UploadOp::Complete { .. }, .. } => "write",
        Op::Upload { .. } => "upload",
        Op::Alter { .. } => "setattr",
        Op::SetXattr { .. } => "setxattr",
        Op::MakeDir { .. } => "mkdir",
        Op::MakeSymlink { .. } => "symlink",
        Op::MakeLink { .. } => "link",
        Op::Remove(_) => "remove",
        Op::RemoveDir(_) => "rmdir",
        Op::Rename { .. } => "rename",
        Op::Stage(_) => "stage",
        Op::Release(_) => "release",
        _ => "operation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Site;
    use renkei_config::Config;
    use renkei_core::identity::{Permit, Rights, Scope};
    use renkei_mover::files::workspace::{Create, Follow, ListFrom};
    use renkei_mover::files::{workspace_suite, workspace_suite_places};
    use renkei_net::identity::authority::Authority;
    use renkei_net::identity::credential::KeyRequest;

    /// A PoP with a storage, and alice's access as the account of this process.
    fn pop(dir: &std::path::Path) -> (Arc<Site>, Access) {
        let (home, data) = crate::snapshot::tests::site(dir);
        std::fs::create_dir(data).unwrap();
        let own = Account::own().unwrap().name;
        std::fs::write(home.map_file(), format!("alice@kek {own}\n")).unwrap();
        let authority = Authority::load(&home).unwrap();
        let now = std::time::SystemTime::now();
        let key = KeyRequest::generate().unwrap();
        let issued = authority.issue_user("alice", &key.request, 12, now).unwrap();
        let chain = renkei_net::identity::certificate::parse_chain(&issued.pem).unwrap();
        let site = Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
        let access = site
            .authorise(&site.authenticate(crate::evidence::Evidence::Chain(chain.into())).unwrap())
            .unwrap();
        (site, access)
    }

    fn place(path: &str) -> Place {
        Place { storage: "data".into(), path: RelPath::parse(path.as_bytes()).unwrap() }
    }

    #[test]
    fn a_storage_passes_the_suite() {
        let dir = tempfile::tempdir().unwrap();
        let (site, access) = pop(dir.path());
        let workspace = site.files(&access, &place(""), Need::Write).unwrap();
        workspace_suite::all(&workspace);
        workspace_suite::conditions(&workspace);
        workspace_suite::checksums_on_demand(&workspace);
        workspace_suite_places::changes(&workspace);
        if workspace_suite::takes_attributes(dir.path()) {
            workspace_suite::attributes_of_users(&workspace);
            workspace_suite::attributes_of_drafts(&workspace);
        }
        drop(workspace);
        let left = std::fs::read_dir(dir.path().join("data")).unwrap().map(|item| item.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), [".rk~storage"], "more than the marker is left");
        assert!(site.files.workspaces.all().is_empty());
    }

    #[test]
    fn a_volume_passes_the_suite_at_its_home() {
        let dir = tempfile::tempdir().unwrap();
        let (site, access) = pop(dir.path());
        std::fs::create_dir(dir.path().join("data/genome")).unwrap();
        let (id, own) = ("07".repeat(16), Account::own().unwrap().name);
        let facts = format!(
            "id = {id:?}\nhome = \"kek\"\nstorage = \"data\"\npath = \"genome\"\naccount = {own:?}\n"
        );
        std::fs::create_dir_all(site.home().volumes_dir()).unwrap();
        std::fs::write(site.home().volumes_dir().join("genome.toml"), facts).unwrap();
        site.context.read_again();
        let access = site.authorise(&access.proof).unwrap();
        let genome = Place { storage: "genome".into(), path: RelPath::root() };
        let workspace = site.files(&access, &genome, Need::Write).unwrap();
        workspace_suite::all(&workspace);
        workspace_suite_places::changes(&workspace);
    }

    #[test]
    fn an_upload_outlives_the_pop_and_is_found_by_the_clean_up() {
        let dir = tempfile::tempdir().unwrap();
        let (site, access) = pop(dir.path());
        let of = RelPath::parse(b"f").unwrap();
        let hidden = || {
            let names = std::fs::read_dir(dir.path().join("data")).unwrap();
            names.filter(|name| name.as_ref().unwrap().file_name() != ".rk~storage").count()
        };
        let ids = [1, 2].map(|_| {
            let workspace = site.files(&access, &place(""), Need::Write).unwrap();
            let upload = workspace.create_upload(&of).unwrap();
            let part = upload.put_part(7, None).unwrap();
            part.write_at(b"content", 0).unwrap();
            part.publish(None, None).unwrap();
            upload.id()
        });
        let home = site.home().clone();
        drop(site);
        assert_eq!(hidden(), 2);
        let site = Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
        let workspace = site.files(&access, &place(""), Need::Write).unwrap();
        let upload = workspace.upload(&of, ids[0]).unwrap();
        assert_eq!(upload.parts().unwrap().len(), 1);
        assert_eq!(upload.complete(&[7], Precondition::Absent).unwrap().entry.size(), 7);
        assert_eq!(upload.parts().unwrap_err().code, Code::NotOpen);
        crate::transfer::cleanup::clean_up_job(&site.context, ids[1]);
        assert_eq!(hidden(), 1, "the file alone");
        let gone = workspace.upload(&of, ids[1]).unwrap().put_part(1, None);
        assert_eq!(gone.map(drop).unwrap_err().code, Code::NotOpen);
    }

    #[test]
    fn a_credential_that_creates_writes_new_files_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (site, mut access) = pop(dir.path());
        std::fs::write(dir.path().join("data/old"), "old").unwrap();
        let permit = Permit { site: site.name(), place: place(""), rights: Rights::CREATE };
        access.proof.scope = Some(Arc::new(Scope::of_rights(vec![permit]).unwrap()));
        let workspace = site.files(&access, &place(""), Need::Write).unwrap();
        let path = |name: &str| RelPath::parse(name.as_bytes()).unwrap();
        let upload = |name: &str| {
            let upload = workspace.create_upload(&path(name)).unwrap();
            let part = upload.put_part(1, None).unwrap();
            part.write_at(b"content", 0).unwrap();
            part.publish(None, None).unwrap();
            assert_eq!(upload.parts().unwrap().len(), 1);
            upload
        };
        assert_eq!(upload("new").complete(&[1], Precondition::None).unwrap().entry.size(), 7);
        assert_eq!(upload("newer").complete(&[1], Precondition::Absent).unwrap().entry.size(), 7);
        let refused = upload("old");
        assert_eq!(refused.complete(&[1], Precondition::None).unwrap_err().code, Code::OutOfScope);
        refused.abandon().unwrap();
        let late = workspace.create(&path("late"), Create::default()).unwrap();
        std::fs::write(dir.path().join("data/late"), "other").unwrap();
        assert_eq!(late.publish(None, None).unwrap_err().code, Code::PathExists);
        let code = |create| workspace.create(&path("old"), create).map(drop).unwrap_err().code;
        assert_eq!(code(Create::default()), Code::OutOfScope);
        let absent = Create { condition: Precondition::Absent, ..Create::default() };
        assert_eq!(code(absent), Code::PathExists);
        assert_eq!(std::fs::read(dir.path().join("data/old")).unwrap(), b"old");
    }

    #[test]
    fn a_handle_outlives_the_pop() {
        let dir = tempfile::tempdir().unwrap();
        let (site, access) = pop(dir.path());
        let workspace = site.files(&access, &place(""), Need::Write).unwrap();
        std::fs::create_dir_all(dir.path().join("data/a/b")).unwrap();
        std::fs::write(dir.path().join("data/a/b/f"), "content").unwrap();
        let handle = workspace.handle(&RelPath::parse(b"a/b/f").unwrap()).unwrap();
        drop(workspace);
        let home = site.home().clone();
        drop(site);
        std::fs::rename(dir.path().join("data/a/b/f"), dir.path().join("data/a/g")).unwrap();
        let site = Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
        let workspace = site.files(&access, &place(""), Need::Look).unwrap();
        assert_eq!(workspace.by_handle(&handle).unwrap().entry.path, RelPath::parse(b"a/g").unwrap());
    }

    #[test]
    fn reading_does_not_permit_writing_and_errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (site, access) = pop(dir.path());
        let workspace = site.files(&access, &place(""), Need::Read).unwrap();
        let refused = workspace.create(&RelPath::parse(b"x").unwrap(), Create::default());
        assert_eq!(refused.map(drop).unwrap_err().code, Code::ReadOnlyStorage);
        let missing = workspace.open(&RelPath::parse(b"dir/x").unwrap()).map(drop).unwrap_err();
        assert_eq!(
            (missing.code, missing.subject.as_str(), missing.side.as_str()),
            (Code::PathNotFound, "/data/dir", "kek")
        );
        assert_eq!(
            site.files(&access, &place("none"), Need::Read).map(drop).unwrap_err().code,
            Code::PathNotFound
        );
    }

    #[test]
    fn a_workspace_ends_with_its_rights() {
        let dir = tempfile::tempdir().unwrap();
        let (site, access) = pop(dir.path());
        let workspace = site.files(&access, &place(""), Need::Write).unwrap();
        let writer = workspace.create(&RelPath::parse(b"x").unwrap(), Create::default()).unwrap();
        std::fs::write(dir.path().join("data/y"), "y").unwrap();
        let reader = workspace.open(&RelPath::parse(b"y").unwrap()).unwrap();
        let operations = || site.context.counters.file_operations_total.load(Ordering::Relaxed);
        let before = operations();
        assert_eq!((reader.read_at(&mut [0; 9], 0).unwrap(), operations() - before), (1, 2));
        std::fs::write(site.home().map_file(), "bob@kek root\n").unwrap();
        site.context.read_again();
        site.judge(&site.last_snapshot());
        workspace.list(&RelPath::root(), Follow::Yes, ListFrom::default()).unwrap();
        site.judge(&site.last_snapshot());
        let ended = workspace.list(&RelPath::root(), Follow::Yes, ListFrom::default()).unwrap_err();
        assert_eq!(ended.code, Code::NotMapped);
        assert_eq!(writer.write_at(b"late", 0).unwrap_err().code, Code::NotMapped);
        assert_eq!(reader.read_at(&mut [0; 1], 0).unwrap_err().code, Code::NotMapped);
        assert_eq!(site.files(&access, &place(""), Need::Read).map(drop).unwrap_err().code, Code::NotMapped);
    }

    #[test]
    fn a_restricted_credential_works_within_its_scope_and_that_of_a_transfer_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (site, mut access) = pop(dir.path());
        std::fs::create_dir(dir.path().join("data/in")).unwrap();
        let permit = Permit { site: site.name(), place: place("in"), rights: Rights::CREATE };
        let scope = Scope::of_rights(vec![permit.clone()]).unwrap();
        access.proof.scope = Some(Arc::new(scope));
        assert_eq!(
            site.files(&access, &place("out"), Need::Write).map(drop).unwrap_err().code,
            Code::OutOfScope
        );
        // From above, the way to the place of the scope is open, and nothing else.
        let above = site.files(&access, &place(""), Need::Write).unwrap();
        let other = above.mkdir(&RelPath::parse(b"out").unwrap(), 0o755).unwrap_err();
        assert_eq!(other.code, Code::OutOfScope);
        above.mkdir(&RelPath::parse(b"in/below").unwrap(), 0o755).unwrap();
        let workspace = site.files(&access, &place("in"), Need::Write).unwrap();
        let name = RelPath::parse(b"sub").unwrap();
        workspace.mkdir(&name, 0o755).unwrap();
        assert_eq!(workspace.rmdir(&name).unwrap_err().code, Code::OutOfScope);
        for (rights, stages, reads) in
            [(Rights::STAGE, Ok(()), Err(Code::OutOfScope)), (Rights::READ, Err(Code::OutOfScope), Ok(()))]
        {
            std::fs::write(dir.path().join("data/in/f"), "x").unwrap();
            let scope = Scope::of_rights(vec![Permit { rights, ..permit.clone() }]).unwrap();
            access.proof.scope = Some(Arc::new(scope));
            let workspace = site.files(&access, &place("in"), Need::Look).unwrap();
            let file = RelPath::parse(b"f").unwrap();
            assert_eq!(workspace.stage(&file).map_err(|error| error.code), stages);
            assert_eq!(workspace.open(&file).map(drop).map_err(|error| error.code), reads);
            let handle = workspace.handle(&file).unwrap();
            assert_eq!(workspace.by_handle(&handle).unwrap().entry.path, file);
        }
        access.proof.scope = Some(Arc::new(Scope::new([7; 16], vec![permit]).unwrap()));
        assert_eq!(
            site.files(&access, &place("in"), Need::Write).map(drop).unwrap_err().code,
            Code::OutOfScope
        );
    }
}
