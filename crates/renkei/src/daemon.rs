//! The daemon of a PoP or an agent: the only place that wires port, doors, local socket, site and signals together.

use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::wire::encode;
use renkei_core::wire::message::Status;
use renkei_doors::line::spawn_lines;
use renkei_doors::port;
use renkei_doors::port::Door;
use renkei_mover::fd_limit::raise_limit;
use renkei_mover::hex;
use renkei_net::identity::account::Account;
use renkei_net::identity::login::grant;
use renkei_net::identity::mounting;
use renkei_net::identity::socket::{Handler, Peer, bind_socket, serve_socket};
use renkei_net::identity::trust::former_names;
use renkei_site::Site;
use renkei_site::access::Caller;
use renkei_site::agent::Export;
use renkei_site::buffer::api::spawn_buffer;
use renkei_site::files::file_sessions::spawn_draft_sweep;
use renkei_site::partners::renewal::{renew_at_start, spawn_renewal};
use renkei_site::partners::updates::spawn_partners;
use renkei_site::queue::cancel_cleanup::spawn_giving_up;
use renkei_site::queue::drop_folders::spawn_rules;
use renkei_site::queue::scheduler::spawn_queue;
use renkei_site::queue::webhooks::spawn_notices;
use renkei_site::status::conditions::spawn_conditions;
use renkei_site::tpc::spawn_session_sweep;
use renkei_site::transfer::Stop;
use renkei_site::transfer::cleanup::spawn_cleanup;
use renkei_site::volume::follower::log_tailing::spawn_following;
use renkei_site::volume::replica::scrub::spawn_verifying;
use renkei_volume::volume_config::parse_id;
use serde_json::Value;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use tokio::signal::unix::{SignalKind, signal};

/// The reason why a PoP or an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It received a signal to stop.
    Stopped,
    /// A site was renamed, this one or another; the process has to restart.
    SiteRenamed,
}

/// Runs the PoP in `home` until SIGTERM or SIGINT, or until a site is renamed.
///
/// `on_ready` is called with the bound addresses when everything listens.
pub fn run(home: Home, config: Config, on_ready: impl FnOnce(&Site, &[SocketAddr])) -> Result<Ended, Error> {
    raise_limit();
    former_names::tidy(&home)?;
    renew_at_start(&home, &config, SystemTime::now())?;
    let site = Site::open(home, config)?;
    let socket = bind_socket(&site.home().socket())?;
    site.volumes().begin_after_restore()?;
    spawn_draft_sweep(site.file_service())?;
    spawn_session_sweep(site.third_party_copies())?;
    spawn_cleanup(site.context())?;
    site.spawn_watch()?;
    spawn_renewal(site.context())?;
    spawn_partners(site.partners())?;
    spawn_queue(site.queue())?;
    spawn_giving_up(site.queue().cancel_cleanup())?;
    spawn_notices(site.queue())?;
    spawn_rules(site.drop_folders())?;
    spawn_buffer(site.buffer())?;
    spawn_following(site.volumes())?;
    spawn_verifying(site.volumes())?;
    spawn_conditions(site.monitor())?;
    let listen = site.last_snapshot().config.listen.clone();
    serve_both(&site, &socket, &listen, on_ready)
}

/// Runs an agent until it is stopped: the same engine, without a port, a queue and rules.
///
/// # Errors
/// Permanent refusals of the PoP at the start; `AddressInUse` if another process serves the same storage from this
/// directory.
pub fn run_agent(mut export: Export, on_ready: impl FnOnce(&Site)) -> Result<Ended, Error> {
    raise_limit();
    export.make_home()?;
    let socket = bind_socket(&export.home().socket())?;
    export.begin()?;
    let home = export.home().clone();
    let config = Config::load(&home)?;
    let site = Site::open(home, config)?;
    spawn_draft_sweep(site.file_service())?;
    spawn_cleanup(site.context())?;
    site.spawn_watch()?;
    export.spawn(site.transfers())?;
    serve_both(&site, &socket, &[], |site, _| on_ready(site))
}

/// Serves the local socket and the port, if there is one, until the process is stopped.
fn serve_both(
    site: &Arc<Site>,
    socket: &UnixListener,
    listen: &[SocketAddr],
    on_ready: impl FnOnce(&Site, &[SocketAddr]),
) -> Result<Ended, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::new(Code::SystemCall, "start runtime", "", error))?;
    let stop = AtomicBool::new(false);
    let failed = |error| Error::new(Code::SystemCall, "start thread", "socket", error);
    let served = std::thread::scope(|scope| {
        let local = || {
            if let Err(error) = serve_socket(socket, &Local { site: site.clone() }, &stop) {
                tracing::error!(%error, "the local socket failed");
            }
        };
        std::thread::Builder::new().name("socket".into()).spawn_scoped(scope, local).map_err(failed)?;
        let served = runtime.block_on(serve(site.clone(), listen, on_ready));
        stop.store(true, Ordering::Release);
        served
    });
    let _ = std::fs::remove_file(site.home().socket());
    served
}

async fn serve(
    site: Arc<Site>,
    listen: &[SocketAddr],
    on_ready: impl FnOnce(&Site, &[SocketAddr]),
) -> Result<Ended, Error> {
    let failed = |error: std::io::Error| Error::new(Code::SystemCall, "wait for signals", "", error);
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hup = signal(SignalKind::hangup()).map_err(failed)?;
    let mut addresses = Vec::new();
    let door = Door::new(&site);
    for address in listen {
        let listener = port::listen(*address).await?;
        addresses.push(listener.local_addr().map_err(failed)?);
        tokio::spawn(door.clone().accept(listener));
    }
    site.context().note_listening();
    spawn_lines(door)?;
    on_ready(&site, &addresses);
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let ended = loop {
        tokio::select! {
            _ = term.recv() => break Ended::Stopped,
            _ = int.recv() => break Ended::Stopped,
            () = site.context().restart.notified() => break Ended::SiteRenamed,
            // The watch thread reloads changed files within a second.
            _ = hup.recv() => {}
        }
    };
    match ended {
        Ended::Stopped => tracing::info!("stopping"),
        Ended::SiteRenamed => tracing::info!(target: "audit", "a site was renamed; starting again"),
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let stopping = site.clone();
    let _ = tokio::task::spawn_blocking(move || stopping.stop_all()).await;
    Ok(ended)
}

/// Decodes a field of a request.
fn field<T: serde::de::DeserializeOwned>(request: &Value, name: &str) -> Result<T, Error> {
    serde_json::from_value(request[name].clone())
        .map_err(|error| Error::new(Code::ProtocolViolation, "read request", name, error))
}

/// Encodes a reply about transfers as it travels between PoPs: names in it need not be text.
fn told(value: &impl serde::Serialize) -> Value {
    Value::String(hex(&encode(value)))
}

/// Handler of the local socket.
struct Local {
    site: Arc<Site>,
}

impl Handler for Local {
    fn handle(&self, peer: Peer, request: &Value) -> Result<Value, Error> {
        match request["op"].as_str().unwrap_or_default() {
            "login" => grant(self.site.home(), peer, request, SystemTime::now()),
            "grant_mount" => self.grant_mount(peer, request),
            "status" => self.status_and_conditions(peer),
            "transfers" | "transfer" | "failures" | "change" => self.queue(peer, request),
            "buffer" => self.buffer(peer),
            "workers" => {
                only_administrator(peer, "of the background threads")?;
                Ok(told(&self.site.monitor().workers()))
            }
            "storages" => {
                only_administrator(peer, "of the storages")?;
                Ok(serde_json::to_value(self.site.monitor().served())
                    .expect("what is told of storages is plain data"))
            }
            "unfinished" => {
                only_administrator(peer, "of what is unfinished")?;
                Ok(told(&self.site.transfers().all_unfinished(&field(request, "what")?)?))
            }
            "released" => {
                only_administrator(peer, "of the storages")?;
                Ok(self.site.monitor().await_release(&field::<PathBuf>(request, "path")?).into())
            }
            "console" => self.console(peer).map(Value::from),
            "volume" => self.volume(peer, request),
            "subscribe" => {
                only_administrator(peer, "volumes")?;
                self.site.volumes().subscribe(&field(request, "subscription")?).map(Value::from)
            }
            op => Err(Error::new(Code::ProtocolViolation, "answer", "local socket", format!("no op `{op}`"))),
        }
    }

    fn lend(&self, peer: Peer, request: &Value) -> Result<OwnedFd, Error> {
        self.site.file_service().lend(peer.uid, &field(request, "key")?, field(request, "handle")?)
    }
}

impl Local {
    /// The administrator sees and changes all transfers; other users connect over the network, where their
    /// certificate identifies them.
    fn queue(&self, peer: Peer, request: &Value) -> Result<Value, Error> {
        only_administrator(peer, "transfers")?;
        let site = &self.site;
        Ok(match request["op"].as_str().unwrap_or_default() {
            "transfers" => told(&site.queue().list(Caller::Administrator, &field(request, "listed")?)?),
            "transfer" => {
                told(&site.queue().transfer(Caller::Administrator, &field::<String>(request, "id")?)?)
            }
            "failures" => told(&site.queue().failures(
                Caller::Administrator,
                &field(request, "id")?,
                field(request, "after")?,
            )?),
            _ => told(&site.queue().change_transfer(
                Caller::Administrator,
                &field(request, "id")?,
                field(request, "change")?,
            )?),
        })
    }

    /// Only the administrator grants mounts credentials of their own, which the mounts renew themselves.
    fn grant_mount(&self, peer: Peer, request: &Value) -> Result<Value, Error> {
        if !is_administrator(peer) {
            let cause = format!(
                "uid {} is not the administrator; work as root or as the account of the PoP, with --ssh as its user",
                peer.uid
            );
            return Err(Error::new(Code::NotAllowed, "grant mount credential", "local socket", cause));
        }
        let reply = mounting::grant(self.site.home(), request, SystemTime::now());
        self.site.context().read_again();
        reply
    }

    /// The status of the PoP, and for the administrator the active conditions.
    fn status_and_conditions(&self, peer: Peer) -> Result<Value, Error> {
        let mut told = serde_json::to_value(self.status(peer)?).expect("a status is plain data");
        if is_administrator(peer) {
            told["conditions"] =
                serde_json::to_value(self.site.monitor().conditions()).expect("they are plain data");
        }
        Ok(told)
    }

    /// The administrator sees all transfers, other users their own.
    fn status(&self, peer: Peer) -> Result<Status, Error> {
        let mut status = self.site.monitor().status(Caller::Administrator);
        if !is_administrator(peer) {
            let account = Account::lookup_uid(peer.uid)?;
            let own = format!("{}@{}", account.name, self.site.name());
            status.transfers.retain(|transfer| transfer.principal == own);
            status.relayed.retain(|relayed| relayed.principal == own);
            status.agents.retain(|agent| agent.account == account.name);
            status.lines.clear();
        }
        Ok(status)
    }

    /// The administrator sees the pieces of all owners.
    fn buffer(&self, peer: Peer) -> Result<Value, Error> {
        only_administrator(peer, "of the buffer")?;
        Ok(told(&self.site.buffer().buffer_status(Caller::Administrator)?))
    }

    /// Volumes as the administrator sees and changes them; other users see through the network those they may open.
    fn volume(&self, peer: Peer, request: &Value) -> Result<Value, Error> {
        only_administrator(peer, "of a volume")?;
        let (site, name) = (&self.site, || field::<String>(request, "name"));
        let answer = match request["act"].as_str().unwrap_or_default() {
            "check" => serde_json::to_value(site.volumes().check_volume(&name()?, &Stop::default())?),
            "accept" => {
                let incomplete = request["incomplete"] == Value::Bool(true);
                serde_json::to_value(site.volumes().accept_volume(&name()?, incomplete)?)
            }
            "unsubscribe" => serde_json::to_value(
                site.volumes().unsubscribe(&name()?, request["abandon"] == Value::Bool(true))?,
            ),
            "forget" => {
                return site
                    .volumes()
                    .forget_volume(parse_id(&field::<String>(request, "id")?)?)
                    .map(|()| Value::Null);
            }
            _ => serde_json::to_value(site.volumes().volume_standing(&name()?)?),
        };
        Ok(answer.expect("what is told of a volume is plain data"))
    }

    /// The secret of a console link for the administrator; other users need a certificate.
    fn console(&self, peer: Peer) -> Result<String, Error> {
        if is_administrator(peer) {
            return self.site.console().issue_link(Caller::Administrator);
        }
        let cause = "not the account of the PoP; with a certificate, give your site: renkei console SITE";
        Err(Error::new(Code::PermissionDenied, "open console", format!("uid {}", peer.uid), cause))
    }
}

fn only_administrator(peer: Peer, what: &str) -> Result<(), Error> {
    if is_administrator(peer) {
        return Ok(());
    }
    let cause = format!("only the administrator sees all {what}; leave out --all");
    Err(Error::new(Code::NotAllowed, "answer", "local socket", cause))
}

/// Whether the caller is the account of the PoP, or root.
fn is_administrator(peer: Peer) -> bool {
    peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw()
}
