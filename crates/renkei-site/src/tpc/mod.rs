//! Third-party copies (HTTP-TPC): a file goes between this PoP and another web server, and the client only watches.
//!
//! [`ThirdPartyCopies`] is the room. The door opens the file here for the client and starts a copy with it; the copy has a
//! thread, waits for its turn (`slots`), and is in the list of transfers from its start. `pull` and `push` move the bytes;
//! `other_server` makes their requests, `reach` judges which servers may be reached, `progress` is what the client sees. Where the
//! other server is the PoP of a trusted site, the bytes go by renkei/1 (`partner_file`, in a session of `partner_sessions`).
//!
//! Guarantees: nothing of a pull is seen before all of it is here and has the digest of the source; a copy that is stopped or
//! fails leaves nothing. A copy does not outlive the PoP, for its client does not either. Source: the WLCG HTTP-TPC
//! specification (twiki.cern.ch LCG/HttpTpcTechnical).

mod delegation;
mod digest;
mod firefly;
mod other_server;
mod pace;
mod partner_file;
mod partner_sessions;
mod progress;
mod pull;
mod push;
mod reach;
mod remote_url;
mod slots;

pub use delegation::{Delegations, ProxyRequest};
pub use digest::digests;
pub use other_server::Ends;
pub use progress::{CopyProgress, Seen, Stage};
pub use pull::Options;
pub use remote_url::RemoteUrl;

use crate::Context;
use crate::access::Access;
use crate::relay::Relay;
use crate::transfer::active::{ActiveTransfers, Listed};
use crate::transfer::history::{Route, Trace};
use crate::transfer::jobs::{note_end, running};
use firefly::{Firefly, Way};
use hyper::{HeaderMap, Method};
use other_server::{ListedConnection, OtherServer};
use partner_file::{PartnerCopy, PartnerFile};
use partner_sessions::PartnerSessions;
use pull::Pull;
use push::Push;
use renkei_core::error::{Code, Error};
use renkei_core::path::Place;
use renkei_core::wire::message::{Class, Summary};
use renkei_mover::files::workspace::{Reader, Writer};
use renkei_mover::{Stop, fresh_id, hex};
use renkei_net::identity::credential::Credential;
use renkei_net::web_connection::Cancel;
use slots::{Limits, Slots, Turn};
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;

/// Threads that drive the connections of all copies.
const WORKERS: usize = 4;

/// The runtime of the connections; it may be dropped anywhere.
struct Connections(Option<Runtime>);

impl Drop for Connections {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The third-party copies of a PoP.
pub struct ThirdPartyCopies {
    context: Arc<Context>,
    active: Arc<ActiveTransfers>,
    slots: Arc<Slots>,
    partners: PartnerSessions,
    /// Made with the first copy.
    connections: Mutex<Option<Connections>>,
    /// The proxies that users delegated.
    pub delegations: Delegations,
}

/// Says whether a file may still be replaced: it may have been locked since the copy began.
pub type MayPublish = Box<dyn Fn() -> Result<(), Error> + Send>;

/// The file of a copy at this site.
pub enum LocalFile {
    /// It is written (a pull), if it still may be when all has arrived.
    Written(Box<Writer>, MayPublish),
    /// It is read (a push).
    Read(Box<Reader>),
}

impl LocalFile {
    fn direction(&self) -> &'static str {
        match self {
            LocalFile::Written(..) => "pull",
            LocalFile::Read(_) => "push",
        }
    }
}

/// A copy that a client asks for.
pub struct CopyRequest {
    /// The file here.
    pub place: Place,
    /// The file there.
    pub url: RemoteUrl,
    /// The headers for the other server.
    pub headers: HeaderMap,
    /// The proxy that its user delegated, to be presented to the other server.
    pub credential: Option<Arc<Credential>>,
    /// What else the client wants.
    pub options: Options,
    /// `experiment << 6 | activity`, to tell the networks.
    pub scitag: Option<u16>,
    /// What the client says of itself, for the log.
    pub client_info: String,
}

/// A copy that was started. Dropping it stops the copy.
pub struct Copy {
    /// How far it is.
    pub progress: CopyProgress,
    /// Gives the result when it has ended.
    pub ended: oneshot::Receiver<Result<(), Error>>,
    stop: Stop,
}

impl Drop for Copy {
    fn drop(&mut self) {
        let cause = "the client closed the connection of its COPY";
        self.stop.stop(Error::new(Code::Cancelled, "copy", "", cause));
    }
}

/// A copy in its thread.
struct Work {
    room: Arc<ThirdPartyCopies>,
    access: Access,
    file: LocalFile,
    request: CopyRequest,
    id: [u8; 16],
    turn: Turn,
    progress: CopyProgress,
    stop: Stop,
}

impl ThirdPartyCopies {
    /// A PoP without copies.
    pub(crate) fn new(context: &Arc<Context>, relay: &Arc<Relay>, active: &Arc<ActiveTransfers>) -> Self {
        ThirdPartyCopies {
            partners: PartnerSessions::new(context, relay),
            delegations: Delegations::new(context),
            context: context.clone(),
            active: active.clone(),
            slots: Arc::default(),
            connections: Mutex::default(),
        }
    }

    /// Starts a copy with a file that was opened for the client.
    ///
    /// # Errors
    /// `ServerNotAllowed` where the administrator allows no such server; `SystemCall` if no thread can be started;
    /// `TooManyUnfinished` where too many copies of the user wait.
    pub fn start(
        self: &Arc<Self>,
        access: &Access,
        file: LocalFile,
        request: CopyRequest,
    ) -> Result<Copy, Error> {
        let turn = self.slots.queue(&access.principal.to_string())?;
        let (tell, ended) = oneshot::channel();
        let (progress, stop) = (CopyProgress::default(), Stop::default());
        let (room, id) = (self.clone(), fresh_id()?);
        let (shared, access) = (progress.clone(), access.clone());
        let work = Work { room, access, file, request, id, turn, progress: shared, stop: stop.clone() };
        let thread = std::thread::Builder::new().name("tpc".into());
        let spawned = thread.spawn(move || {
            // The client may have gone.
            let _ = tell.send(work.run());
        });
        spawned.map_err(|error| Error::new(Code::SystemCall, "start thread", "tpc", error))?;
        Ok(Copy { progress, ended, stop })
    }

    /// Closes the sessions with other PoPs that no copy has used for a while.
    fn close_idle(&self) {
        self.partners.close_idle();
    }

    fn runtime(&self) -> Result<Handle, Error> {
        let mut connections = self.connections.lock().expect("no thread panics while it holds the lock");
        if connections.is_none() {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(WORKERS)
                .thread_name("tpc connections")
                .enable_all()
                .build();
            let runtime =
                runtime.map_err(|error| Error::new(Code::SystemCall, "start threads", "tpc", error))?;
            *connections = Some(Connections(Some(runtime)));
        }
        let runtime = connections.as_ref().and_then(|connections| connections.0.as_ref());
        Ok(runtime.expect("it was made above").handle().clone())
    }

    fn limits(&self) -> Limits {
        let tpc = &self.context.last_snapshot().config.tpc;
        let count = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        Limits { all: count(tpc.max_running), user: count(tpc.max_running_user) }
    }
}

/// Starts the thread that closes idle sessions with other PoPs.
///
/// # Errors
/// `SystemCall`.
pub fn spawn_session_sweep(room: &Arc<ThirdPartyCopies>) -> Result<(), Error> {
    room.context.spawn_every(room, "copies", partner_sessions::IDLE / 2, ThirdPartyCopies::close_idle)
}

impl Work {
    fn run(self) -> Result<(), Error> {
        let (id, direction) = (hex(&self.id), self.file.direction());
        let span = tracing::info_span!("tpc", transfer = id, principal = %self.access.principal);
        let _entered = span.enter();
        let (principal, account) = (&self.access.principal, &self.access.account.name);
        let (url, place) = (&self.request.url, &self.request.place);
        let client = &self.request.client_info;
        tracing::info!(target: "audit", %principal, account, direction, %place, %url, client, "third-party copy");
        let (room, side) = (self.room.clone(), self.room.context.name());
        let (shown, by) = (format!("{place}"), principal.to_string());
        let result = self.listed().map_err(|error| error.at(side.as_str()));
        note_end(&room.context, &room.active, &id, direction, &result);
        let (error, bytes) = match &result {
            Ok(summary) => (None, summary.bytes),
            Err(error) => (Some(error.to_string()), 0),
        };
        tracing::info!(target: "audit", principal = by, direction, place = shown, bytes, error, "third-party copy ended");
        result.map(drop)
    }

    /// Runs the copy as an entry of the list of transfers.
    fn listed(self) -> Result<Summary, Error> {
        let snapshot = self.room.context.last_snapshot();
        let (url, place) = (&self.request.url, &self.request.place);
        let here = format!("{}:{place}", snapshot.site);
        let (from, to) = match &self.file {
            LocalFile::Written(..) => (url.to_string(), here),
            LocalFile::Read(_) => (here, url.to_string()),
        };
        let shown = (place.to_string(), vec![place.storage.clone()]);
        let (watch, direction) = (&self.progress.watch, self.file.direction());
        let mut entry = running(&self.access, self.id, direction, shown, Class::Normal, (watch, &self.stop));
        entry.trace = Trace::begin(reach::partner(&snapshot, url)).between(Route { from, to, by: "" });
        let active = self.room.active.clone();
        let listed = active.enter(active.fresh_key(), entry)?;
        self.in_turn(&listed)
    }

    /// Waits for its turn and moves the bytes.
    fn in_turn(self, listed: &Listed<'_>) -> Result<Summary, Error> {
        let room = self.room.clone();
        let _slot = self.turn.wait(|| room.limits(), &self.stop)?;
        self.progress.starts();
        let cancel = Cancel::default();
        let cancelled = cancel.clone();
        let _hook = self.stop.on_stop(move |error| cancelled.cancel(error));
        let other = self.other_server(cancel)?;
        let mut kept = None;
        let bytes = match self.by_renkei(&other, listed, &mut kept) {
            Some(done) => done?,
            None => {
                listed.goes_by("HTTP");
                self.by_http(&other, kept)?
            }
        };
        if let LocalFile::Written(writer, may_publish) = self.file {
            self.stop.check()?;
            may_publish()?;
            writer.publish(None, None)?;
        }
        Ok(Summary { files: 1, bytes, bytes_moved: bytes, ..Summary::default() })
    }

    fn by_http(&self, other: &OtherServer, kept: Option<ListedConnection>) -> Result<u64, Error> {
        let (options, progress, stop) = (&self.request.options, &self.progress, &self.stop);
        match &self.file {
            LocalFile::Read(reader) => Push { other, reader, options, progress, stop }.run(),
            LocalFile::Written(writer, _) => {
                Pull { other, writer, options, progress, stop, kept: Mutex::new(kept) }.run()
            }
        }
    }

    /// Moves the bytes by renkei/1; none where that is not possible, or failed before a byte moved. A connection for HTTP is
    /// kept then, if there is one.
    fn by_renkei(
        &self,
        other: &OtherServer,
        listed: &Listed<'_>,
        kept: &mut Option<ListedConnection>,
    ) -> Option<Result<u64, Error>> {
        let snapshot = self.room.context.last_snapshot();
        // Networks are told of connections of HTTP alone.
        let (url, headers) = (&self.request.url, &self.request.headers);
        let file = PartnerFile::of(&snapshot, url, headers).filter(|_| other.firefly.is_none())?;
        let is_write = matches!(self.file, LocalFile::Read(_));
        let size = || match &self.file {
            LocalFile::Read(reader) => reader.size(),
            LocalFile::Written(..) => self.size_there(other, kept),
        };
        let (files, path) =
            self.room.partners.find(&self.access.principal, &file, is_write, &self.stop, size)?;
        *kept = None;
        listed.goes_by("renkei/1");
        let context = &*self.room.context;
        let (options, progress, stop) = (&self.request.options, &self.progress, &self.stop);
        let has_effect = Cell::new(false);
        let copy = PartnerCopy {
            file: &file,
            files,
            path,
            url,
            options,
            progress,
            stop,
            context,
            has_effect: &has_effect,
        };
        let done = match &self.file {
            LocalFile::Read(reader) => copy.push(reader),
            LocalFile::Written(writer, _) => copy.pull(writer),
        };
        match done {
            Err(error) if !has_effect.get() && self.may_begin_again(&error) => {
                tracing::info!(%error, "not by renkei/1; the bytes go by HTTP");
                None
            }
            done => Some(done),
        }
    }

    /// Whether HTTP may be tried after an error of renkei/1.
    fn may_begin_again(&self, error: &Error) -> bool {
        error.code != Code::DigestMismatch && self.stop.stopped().is_none() && self.progress.look().bytes == 0
    }

    /// The size that the other server tells, without a digest; 0 if it tells none. The connection is kept.
    fn size_there(&self, other: &OtherServer, kept: &mut Option<ListedConnection>) -> u64 {
        if self.request.options.no_head {
            return 0;
        }
        let Ok(answer) = other.ask(&Method::HEAD, &HeaderMap::new(), None, None) else { return 0 };
        let size = answer.length().filter(|_| answer.head.status().is_success()).unwrap_or(0);
        *kept = Some(answer.connection);
        size
    }

    fn other_server(&self, cancel: Cancel) -> Result<OtherServer, Error> {
        let collector = self.room.context.last_snapshot().config.tpc.firefly.clone();
        let way = match self.file {
            LocalFile::Written(..) => Way::In,
            LocalFile::Read(_) => Way::Out,
        };
        let tag = self.request.scitag.filter(|_| !collector.is_empty());
        Ok(OtherServer {
            context: self.room.context.clone(),
            runtime: self.room.runtime()?,
            cancel,
            url: self.request.url.clone(),
            headers: self.request.headers.clone(),
            credential: self.request.credential.clone(),
            firefly: tag.map(|tag| Firefly { collector, tag, way }),
            connections: self.progress.connections.clone(),
        })
    }
}
