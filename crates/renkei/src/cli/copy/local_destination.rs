//! Copies to this machine: the local destination, and its journal.

use super::copy_plan::split_local;
use super::source::not_found;
use super::transfer::Run;
use renkei_core::error::Error;
use renkei_core::mover::journal::{Header, State, VERSION};
use renkei_core::mover::layout::CopyLayout;
use renkei_core::path::RelPath;
use renkei_core::wire::message::{
    DestinationKind, Existing, Onto, OpenSend, ReceiveOptions, Request, Summary,
};
use renkei_mover::connect::dial::Session;
use renkei_mover::journal::{Journal, boot_id};
use renkei_mover::receive::{ReceiveJob, receive, unlimited};
use renkei_mover::self_copy;
use renkei_net::identity::account::Account;
use renkei_store::Store;
use renkei_store::local::{AccessMode, LocalStore};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A local destination: the directory that takes the sources, and their names in it.
struct LocalDestination {
    base: PathBuf,
    layout: CopyLayout,
    /// Whether the base must be created.
    make: bool,
    /// The target names of the sources.
    targets: Vec<RelPath>,
}

impl Run<'_> {
    /// The likely request to the sending site, unless a journal of an earlier run may change it.
    pub(super) fn likely_open_send(&self) -> Option<Request> {
        if Journal::exists(&self.context.home().ok()?.journal_dir(), self.key()) {
            return None;
        }
        let here = self.look_at_local(self.destination.local().ok()?).ok()?;
        let options = self.options(here.layout);
        let onto = onto(&here, &options);
        let open = self.open_send(self.offers(&options, false), here.targets).ok()?;
        Some(Request::OpenSend(OpenSend { onto, ..open }))
    }

    fn offers(&self, options: &ReceiveOptions, kept: bool) -> bool {
        kept || options.existing != Existing::Replace || options.dry_run
    }

    pub(super) fn down(&self, mut session: Session, announced: Option<Request>) -> Result<Summary, Error> {
        let here = self.lay_out_local(self.destination.local()?)?;
        let base = here.base.clone();
        let store =
            LocalStore::open(&base, AccessMode::ReadWrite).map_err(|error| not_found(error).at("client"))?;
        let journal = self.open_journal(&base)?;
        let kept = journal.as_ref().is_some_and(|(_, kept)| !kept.is_empty());
        let options = self.options(here.layout);
        let onto = onto(&here, &options);
        let open = self.open_send(self.offers(&options, kept), here.targets)?;
        let open = Request::OpenSend(OpenSend { onto, ..open });
        if announced.is_some_and(|announced| announced != open) {
            // The local destination changed meanwhile.
            session = self.dialler.connect(session.site())?;
        }
        let opened = session.ask_open(open)?;
        let _marker = self.keep_intent(here.layout)?;
        let streams = self.dialler.join(&mut session, &opened)?;
        let job = ReceiveJob {
            base: store.root()?,
            job: self.key(),
            options,
            journal,
            account: Account::own()?,
            max_deferred: usize::MAX,
            memory: unlimited(),
            side: "client".into(),
            root: base.display().to_string(),
            keep: None,
            within: vec![RelPath::root()],
            receive_hooks: None,
            on_digest: None,
        };
        receive(job, &mut session.control, streams, &self.watch, &self.stop)
            .map_err(|error| session.reach.blame(error).at("client"))
    }

    fn lay_out_local(&self, path: &Path) -> Result<LocalDestination, Error> {
        let here = self.look_at_local(path)?;
        if here.make {
            std::fs::create_dir(path).map_err(|error| {
                renkei_config::home::file_error("make directory", path, &error).at("client")
            })?;
        }
        Ok(here)
    }

    fn look_at_local(&self, path: &Path) -> Result<LocalDestination, Error> {
        let found = match std::fs::metadata(path) {
            Ok(data) if data.is_dir() => DestinationKind::Dir,
            Ok(_) => DestinationKind::Other,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => DestinationKind::Nothing,
            Err(error) => return Err(renkei_config::home::file_error("look at", path, &error).at("client")),
        };
        let (parent, name) = split_local(path);
        let resolved = self.form()?.resolve(found, name.is_none(), self.job.options.dry_run);
        let resolved = resolved.map_err(|error| Error { subject: self.destination.shown(), ..error })?;
        let targets = resolved.layout.targets(&self.names()?, name.as_deref())?;
        let base = if resolved.layout == CopyLayout::Into { path.to_path_buf() } else { parent };
        Ok(LocalDestination { base, layout: resolved.layout, make: resolved.make, targets })
    }

    fn options(&self, layout: CopyLayout) -> ReceiveOptions {
        let options = self.job.options.clone();
        let delete = options.delete && layout.removes();
        ReceiveOptions { delete, filter: self.filter.clone(), ..options }
    }

    fn open_journal(&self, base: &Path) -> Result<Option<(Journal, State)>, Error> {
        if self.job.options.dry_run {
            return Ok(None);
        }
        let local = std::path::absolute(base).unwrap_or_else(|_| base.to_path_buf());
        let header = Header {
            version: VERSION,
            job: self.key(),
            boot: boot_id(),
            to: None,
            local: local.as_os_str().as_bytes().to_vec(),
            account: Account::own()?.name,
        };
        let (mut journal, state) =
            Journal::open(&self.context.home()?.journal_dir(), &header, &*unlimited())?;
        journal.name(&state, self.transfer)?;
        Ok(Some((journal, state)))
    }
}

/// The destination as the sending site needs it to detect a copy onto itself; the same before and after it is
/// created.
fn onto(here: &LocalDestination, options: &ReceiveOptions) -> Option<Onto> {
    let there = if here.make { split_local(&here.base).0 } else { here.base.clone() };
    let there = LocalStore::open(&there, AccessMode::ReadOnly).and_then(|store| store.root()).ok()?;
    if here.make { self_copy::tell_within(&*there) } else { self_copy::tell(&*there, options.delete) }
}
