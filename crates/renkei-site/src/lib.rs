//! The facade of a PoP: every operation that a door, the command line or an API may ask for.
//!
//! A request comes in as a [`Principal`] proved by the door; [`Site::authorise`] turns it into an [`Access`]: a local
//! account and the current [`Snapshot`]. All file work is then done by threads that run as that account. Files the
//! administrator changes (configuration, mapping, trust) take effect with the next request.
//!
//! [`Context`] is the state that all services share. Each service is a room, a struct that owns its state and knows the
//! context and the rooms below it, not the site: [`Relay`](relay::Relay), [`Partners`](partners::Partners), [`Transfers`],
//! [`VolumeService`], [`BufferService`], [`Queue`], [`DropFolders`], [`FileService`], [`ThirdPartyCopies`], [`Monitor`],
//! [`Links`](links::Links) and
//! [`Console`](status::console::Console), made in this order. The site itself judges their work when the configuration
//! changes, and stops them. Uses: all crates below but `renkei-mount` and `renkei-lab`. Non-goals: protocols, which are the
//! doors'.

pub mod access;
mod admission;
pub mod agent;
mod borrowing;
pub mod buffer;
mod checksum_cache;
pub mod context;
pub mod evidence;
pub mod files;
pub mod links;
mod own_threads;
pub mod partners;
pub mod peer;
pub mod queue;
pub mod relay;
mod s3_keys;
pub mod scope;
pub mod snapshot;
pub mod status;
pub mod storage;
#[cfg(test)]
mod stored_tests;
mod submission;
pub mod token;
mod token_issuing;
pub mod tpc;
pub mod transfer;
pub mod volume;
mod volume_access;
mod volume_content;
pub mod workers;

pub use context::{Context, Counters};

use access::{Access, Proof};
use buffer::api::BufferService;
use evidence::Evidence;
use files::FileService;
use queue::Queue;
use queue::drop_folders::DropFolders;
use queue::state::QueueState;
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::path::{Place, SiteName};
use renkei_mover::files::workspace::Workspace;
use snapshot::Snapshot;
use status::Monitor;
use status::periodic_checks::{LOOK_EVERY, spawn_checks};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use tpc::ThirdPartyCopies;
use transfer::Transfers;
use transfer::active::ActiveTransfers;
use volume::VolumeService;
use volume::site_leases::forget_writers;

/// A running PoP.
pub struct Site {
    context: Arc<Context>,
    /// Open control sessions of each principal.
    pub sessions: Mutex<HashMap<Principal, usize>>,
    pub(crate) transfers: Arc<Transfers>,
    partners: Arc<partners::Partners>,
    queue: Arc<Queue>,
    drop_folders: Arc<DropFolders>,
    buffer: Arc<BufferService>,
    files: Arc<FileService>,
    copies: Arc<ThirdPartyCopies>,
    pub(crate) relay: Arc<relay::Relay>,
    pub(crate) volumes: Arc<VolumeService>,
    links: links::Links,
    console: status::console::Console,
    monitor: Arc<Monitor>,
}

impl Site {
    /// Opens the PoP in `home` with `config`.
    pub fn open(home: Home, config: Config) -> Result<Arc<Self>, Error> {
        let snapshot = Snapshot::load(&home, config)?;
        let remote = snapshot.remote.clone();
        let context = Arc::new(Context::new(home, snapshot));
        let relay = Arc::new(relay::Relay::new(&context));
        let partners = Arc::new(partners::Partners::new(&context, &relay));
        let active: Arc<ActiveTransfers> = Arc::default();
        let transfers = Arc::new(Transfers::new(&context, &relay, &active));
        let volumes = Arc::new(VolumeService::new(&context, &relay, &active));
        let weak: Weak<VolumeService> = Arc::downgrade(&volumes);
        remote.fill(weak);
        let state: Arc<QueueState> = Arc::default();
        let buffer = Arc::new(BufferService::new(&context, state.clone()));
        let queue = Arc::new(Queue::new(&context, &relay, &partners, &transfers, &buffer, &state));
        let drop_folders = Arc::new(DropFolders::new(&context, &transfers, &queue));
        let files = Arc::new(FileService::new(&context, &relay, &transfers, volumes.clone()));
        let monitor =
            Arc::new(Monitor::new(&context, &relay, &partners, &transfers, &volumes, &queue, &drop_folders));
        let copies = Arc::new(ThirdPartyCopies::new(&context, &relay, &active));
        let site = Arc::new(Site {
            sessions: Mutex::default(),
            relay,
            partners,
            transfers,
            volumes,
            queue,
            drop_folders,
            buffer,
            files,
            links: links::Links::new(&context, &state),
            copies,
            console: status::console::Console::new(&context),
            monitor,
            context,
        });
        Ok(site)
    }

    /// The state that all services share.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Circuits, reverse connections and agents.
    pub fn relay(&self) -> &Arc<relay::Relay> {
        &self.relay
    }

    /// The volumes.
    pub fn volumes(&self) -> &Arc<VolumeService> {
        &self.volumes
    }

    /// The transfers.
    pub fn transfers(&self) -> &Arc<Transfers> {
        &self.transfers
    }

    /// The files.
    pub fn file_service(&self) -> &Arc<FileService> {
        &self.files
    }

    /// Copies between this PoP and other web servers.
    pub fn third_party_copies(&self) -> &Arc<ThirdPartyCopies> {
        &self.copies
    }

    /// The files of a place ([`FileService::open`]).
    ///
    /// # Errors
    /// `OutOfScope`, `NotMapped`, `StorageUnknown`, `StorageMissing`, `ReadOnlyStorage`, and those of opening a directory.
    pub fn files(&self, access: &Access, place: &Place, need: Need) -> Result<Workspace, Error> {
        self.files.open(access, place, need)
    }

    /// The queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The drop folders.
    pub fn drop_folders(&self) -> &Arc<DropFolders> {
        &self.drop_folders
    }

    /// The buffer.
    pub fn buffer(&self) -> &Arc<BufferService> {
        &self.buffer
    }

    /// The sites that this one trusts.
    pub fn partners(&self) -> &Arc<partners::Partners> {
        &self.partners
    }

    /// What the PoP tells of itself.
    pub fn monitor(&self) -> &Arc<Monitor> {
        &self.monitor
    }

    /// Links for people without an account.
    pub fn links(&self) -> &links::Links {
        &self.links
    }

    /// Visitors of the web pages.
    pub fn console(&self) -> &status::console::Console {
        &self.console
    }

    /// The PoP's directories.
    pub fn home(&self) -> &Home {
        self.context.home()
    }

    /// The current configuration; changed files are reloaded ([`Context::snapshot`]).
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.context.snapshot()
    }

    /// The last loaded configuration, without a look at the files ([`Context::last_snapshot`]).
    pub fn last_snapshot(&self) -> Arc<Snapshot> {
        self.context.last_snapshot()
    }

    /// The site's name.
    pub fn name(&self) -> SiteName {
        self.context.name()
    }

    /// Authenticates the holder of some evidence ([`Context::authenticate`]).
    ///
    /// # Errors
    /// Those of the evidence; `PopStopping` while the PoP restarts under another name.
    pub fn authenticate(&self, evidence: Evidence) -> Result<Proof, Error> {
        self.context.authenticate(evidence)
    }

    /// The card of a trusted site, for a user of this site, who trusts the sites that it trusts.
    ///
    /// # Errors
    /// `NotAllowed` for all other principals, `SiteUnknown`.
    pub fn card(&self, proof: &Proof, site: &SiteName) -> Result<String, Error> {
        let (snapshot, principal) = (self.snapshot(), &proof.principal);
        if principal.user_name().is_none() || *principal.site() != snapshot.site {
            let cause = format!("only users of {} learn from it whom it trusts", snapshot.site);
            return Err(Error::new(Code::NotAllowed, "give card", principal, cause));
        }
        let unknown = || Error::new(Code::SiteUnknown, "give card", site, "");
        snapshot.trust.export(site).map(|card| card.to_text()).ok_or_else(unknown)
    }

    /// Authorises a principal ([`Context::authorise`]).
    ///
    /// # Errors
    /// `NotMapped`, `AccountUnknown`, `AccountNotServed`.
    pub fn authorise(&self, proof: &Proof) -> Result<Access, Error> {
        self.context.authorise(proof)
    }

    /// Starts the threads of the checks, which run as long as the PoP lives: the one that reads changed files here, the
    /// others in [`status`].
    pub fn spawn_watch(self: &Arc<Self>) -> Result<(), Error> {
        self.context.spawn_every(self, "watch", LOOK_EVERY, |site| site.judge(&site.snapshot()))?;
        spawn_checks(&self.monitor)
    }

    /// Re-evaluates running transfers, sessions and circuits against a new configuration and ends those it forbids.
    fn judge(&self, now: &Arc<Snapshot>) {
        self.transfers.judge(now);
        self.files.workspaces.judge(now);
        self.partners.distribute_revocations(now, self.queue.state.judge(now));
        forget_writers(now);
        self.relay.judge(now);
    }

    /// Takes the newest revocation list of a site from its PoP.
    ///
    /// # Errors
    /// `NotAllowed` from any other peer, `BadCertificate` if the site's authority did not sign it.
    pub fn take_revocations(&self, proof: &Proof, list: &[u8]) -> Result<(), Error> {
        if self.partners.take_revocations(proof, list)? {
            // Running work is checked against it at once.
            self.judge(&self.snapshot());
        }
        Ok(())
    }

    /// Stops all transfers; each can be resumed.
    pub fn stop_all(&self) {
        let error =
            Error::new(Code::PopStopping, "shut down", self.name(), "a restart or shutdown was asked for");
        let error = error.at(self.name().as_str());
        self.queue.stop(&error);
        self.transfers.stop_all(&error);
        self.files.workspaces.stop_all(&error);
    }
}
