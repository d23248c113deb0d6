//! A running lab: its process makes, holds, serves and takes down everything.
//!
//! [`run`] makes everything, calls `on_ready`, serves the control socket until it is stopped, and removes everything.
//! If a step fails, all that was made is removed; the remains of a crash are removed by the next `up` or `down`
//! ([`LabFolder::sweep`]).

use super::control::{LinkStatus, Request, SiteStatus, Snapshot};
use super::engine::{self, Chosen, Engine, device_namespace};
use super::folder::{LabFolder, State};
use super::network;
use super::shape::Shape;
use super::topology::{Gate, Topology};
use super::{namespace, pops};
use renkei_core::error::{Code, Error};
use renkei_core::lab::link::LinkCounters;
use renkei_net::identity::socket::{Peer, bind_socket, serve_socket};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Timeout for a PoP to stop after SIGTERM.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Runs a lab until `stop`, or until it is asked to stop over its socket.
///
/// `on_ready` is called when all links carry packets and all PoPs answer.
///
/// # Errors
/// `Cancelled` if it is stopped before it is ready, else the error of the step that failed.
pub fn run(
    folder: &LabFolder,
    topology: Topology,
    stop: &AtomicBool,
    on_ready: impl FnOnce(&Snapshot) -> Result<(), Error>,
) -> Result<(), Error> {
    check_machine(&topology)?;
    let _lock = folder.lock()?;
    let chosen = folder.sweep().and_then(|()| engine::choose(topology.engine));
    let served = chosen.and_then(|chosen| serve(folder, topology, chosen, stop, on_ready));
    let removed = folder.remove();
    served.and(removed)
}

/// Only root may make namespaces and devices.
pub fn need_root(lab: &str) -> Result<(), Error> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Error::new(Code::LabNeedsRoot, "work on lab", lab, "this is not root")),
    }
}

/// Checks that this machine can have labs at all; [`engine::choose`] checks the needs of an engine.
pub fn check_machine(topology: &Topology) -> Result<(), Error> {
    need_root(&topology.name)?;
    let private = topology.sites.iter().any(|site| site.gate != Gate::Open);
    for (program, needed) in [("ip", true), ("nft", private)] {
        let runs = || Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Some(error) = needed.then(runs).and_then(Result::err) {
            return Err(Error::new(Code::LabSetupFailed, "run", program, error));
        }
    }
    Ok(())
}

fn serve(
    folder: &LabFolder,
    topology: Topology,
    chosen: Chosen,
    stop: &AtomicBool,
    on_ready: impl FnOnce(&Snapshot) -> Result<(), Error>,
) -> Result<(), Error> {
    folder.write(&State::of_this_process(&topology))?;
    let _locks = make_namespaces(&topology)?;
    let engine = Engine::start(&topology, chosen)?;
    configure(&topology, engine.device_options())?;
    let pops = pops::start(folder, &topology)?;
    let emulation = Emulation {
        topology: Mutex::new(topology),
        engine,
        pops: Mutex::new(pops),
        start: Instant::now(),
        stop,
    };
    let listener = bind_socket(&folder.socket())?;
    if stop.load(Ordering::Acquire) {
        emulation.stop_pops();
        return Err(Error::new(Code::Cancelled, "start lab", folder.name(), "it was asked to stop"));
    }
    on_ready(&emulation.snapshot(folder)?)?;
    let handler = |peer: Peer, request: &Value| emulation.answer(folder, peer, request);
    let served = serve_socket(&listener, &handler, stop);
    emulation.stop_pops();
    served
}

/// Makes the namespaces of all sites and of their NAT boxes; returns the locks on them.
fn make_namespaces(topology: &Topology) -> Result<Vec<File>, Error> {
    let mut locks = Vec::new();
    for (at, site) in topology.sites.iter().enumerate() {
        let hosts = network::hosts(topology, at);
        let own = namespace::of_site(&topology.name, site.name.as_str());
        for name in std::collections::BTreeSet::from([&own, &device_namespace(topology, at)]) {
            locks.push(namespace::create(name, &hosts)?);
        }
        namespace::set_sysctl(&own, site.sysctl.iter())?;
    }
    Ok(locks)
}

/// Gives the devices their addresses and the borders their rules.
fn configure(topology: &Topology, device_options: &str) -> Result<(), Error> {
    for (at, site) in topology.sites.iter().enumerate() {
        let own = namespace::of_site(&topology.name, site.name.as_str());
        let holder = device_namespace(topology, at);
        namespace::ip(Some(&holder), &network::device_lines(topology, at))?;
        match site.gate {
            Gate::Open => {}
            Gate::Outbound => namespace::nft(&own, network::OUTBOUND_RULES)?,
            Gate::Nat => {
                let (outer, inner) = network::translation_lines(topology, at, &own, device_options);
                namespace::ip(Some(&holder), &outer)?;
                namespace::ip(Some(&own), &inner)?;
                let forward = [("net.ipv4.ip_forward".to_owned(), "1".to_owned())];
                namespace::set_sysctl(&holder, forward.iter().map(|(key, value)| (key, value)))?;
                namespace::nft(&holder, network::NAT_RULES)?;
            }
        }
    }
    Ok(())
}

/// The handler of the control socket.
struct Emulation<'a> {
    topology: Mutex<Topology>,
    engine: Engine,
    pops: Mutex<Vec<Child>>,
    start: Instant,
    stop: &'a AtomicBool,
}

impl Emulation<'_> {
    fn topology(&self) -> MutexGuard<'_, Topology> {
        self.topology.lock().expect("no thread panics with the topology: a panic aborts")
    }

    fn answer(&self, folder: &LabFolder, peer: Peer, request: &Value) -> Result<Value, Error> {
        let request = Request::deserialize(request)?;
        if peer.uid != 0 && !matches!(request, Request::Show) {
            return Err(Error::new(Code::LabNeedsRoot, "change lab", folder.name(), "this is not root"));
        }
        match request {
            Request::Show => {}
            Request::Set { links, shape } => self.set(&links, &shape)?,
            Request::Stop => self.stop.store(true, Ordering::Release),
        }
        Ok(serde_json::to_value(self.snapshot(folder)?).expect("a snapshot is plain data"))
    }

    /// Changes links; their opposite directions too, whose queues may depend on the round trip.
    fn set(&self, text: &str, shape: &Shape) -> Result<(), Error> {
        let mut topology = self.topology();
        let chosen = topology.select(text)?;
        for at in &chosen {
            topology.links[*at].shape.overlay(shape);
        }
        let ends = |at: usize| (topology.links[at].from, topology.links[at].to, topology.links[at].path);
        let back = |at: usize| (ends(at).1, ends(at).0, ends(at).2);
        for at in (0..topology.links.len())
            .filter(|at| chosen.contains(at) || chosen.iter().any(|c| back(*c) == ends(*at)))
        {
            let link = &topology.links[at];
            self.engine.set(at, link, topology.round_trip(link))?;
            if shape.mtu.is_some() {
                let holder = device_namespace(&topology, link.from);
                namespace::ip(Some(&holder), &network::route_line(link))?;
            }
        }
        Ok(())
    }

    fn snapshot(&self, folder: &LabFolder) -> Result<Snapshot, Error> {
        let topology = self.topology();
        let (counted, cpu) = self.engine.counted()?;
        let sites = topology.sites.iter().enumerate().map(|(at, _)| self.site_status(folder, &topology, at));
        let links = topology.links.iter().zip(counted);
        Ok(Snapshot {
            name: topology.name.clone(),
            engine: self.engine.name().into(),
            engine_reason: self.engine.reason().into(),
            seed: self.engine.seed(),
            pid: std::process::id(),
            uptime_s: self.start.elapsed().as_secs_f64(),
            engine_cpu_s: cpu.as_secs_f64(),
            sites: sites.collect(),
            links: links
                .map(|(link, counted)| link_status(topology.link_name(link), &link.shape, counted))
                .collect(),
        })
    }

    fn site_status(&self, folder: &LabFolder, topology: &Topology, at: usize) -> SiteStatus {
        let site = &topology.sites[at];
        SiteStatus {
            name: site.name.to_string(),
            namespace: namespace::of_site(&topology.name, site.name.as_str()),
            addresses: topology.paths_of(at).into_iter().map(|path| network::address(path, at)).collect(),
            gate: site.gate,
            storage: site.pop.then(|| pops::storage(folder, site)),
            pop_pid: site.pop.then(|| self.pop_pid(topology, at)).flatten(),
        }
    }

    /// The pid of the PoP, if it has not ended.
    fn pop_pid(&self, topology: &Topology, at: usize) -> Option<u32> {
        let mut pops = self.pops.lock().expect("no thread panics with the processes: a panic aborts");
        let number = topology.sites[..at].iter().filter(|site| site.pop).count();
        let pop = pops.get_mut(number)?;
        matches!(pop.try_wait(), Ok(None)).then(|| pop.id())
    }

    /// Sends SIGTERM to the PoPs, so that their journals are written, and waits; the sweep kills the remaining ones.
    fn stop_pops(&self) {
        let mut pops = self.pops.lock().expect("no thread panics with the processes: a panic aborts");
        for pop in pops.iter_mut() {
            // A PoP that has ended is not signalled: its pid may have been reused.
            if matches!(pop.try_wait(), Ok(None)) {
                let pid = rustix::process::Pid::from_child(pop);
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
        let start = Instant::now();
        while pops.iter_mut().any(|pop| matches!(pop.try_wait(), Ok(None))) && start.elapsed() < STOP_WITHIN {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn link_status(name: String, shape: &Shape, counted: LinkCounters) -> LinkStatus {
    LinkStatus {
        name,
        up: shape.up.unwrap_or(true),
        rate: shape.rate.unwrap_or_default(),
        delay: shape.delay.unwrap_or_default(),
        jitter: shape.jitter.unwrap_or_default(),
        loss: shape.loss.unwrap_or_default(),
        policer: shape.policer.unwrap_or_default(),
        queue: shape.queue,
        reorder: shape.reorder.unwrap_or_default(),
        mtu: shape.mtu.unwrap_or_default(),
        counted,
    }
}

impl Request {
    fn deserialize(value: &Value) -> Result<Self, Error> {
        serde_json::from_value(value.clone())
            .map_err(|error| Error::new(Code::ProtocolViolation, "read request", "control socket", error))
    }
}

/// Replaces this process by a program at a site: with its network, its host names, its PoP's directory.
pub fn exec_at(
    folder: &LabFolder,
    site: &str,
    program: &[std::ffi::OsString],
) -> Result<std::convert::Infallible, Error> {
    use std::os::unix::process::CommandExt;
    need_root(folder.name())?;
    let topology = folder.running()?.topology;
    let at = topology.site(site).ok_or_else(|| topology.unknown_site(site))?;
    namespace::enter(&namespace::of_site(&topology.name, site), site)?;
    let [name, arguments @ ..] = program else {
        return Err(Error::new(Code::UsageInvalid, "run", "", "no program is named"));
    };
    let mut command = Command::new(name);
    command.args(arguments).env("RENKEI_LAB", &topology.name).env("RENKEI_LAB_DIR", folder.base());
    if topology.sites[at].pop {
        command.env("RENKEI_DIR", folder.pop(site));
    }
    let error = command.exec();
    let code =
        if error.kind() == std::io::ErrorKind::NotFound { Code::PathNotFound } else { Code::SystemCall };
    Err(Error::new(code, "run", Path::new(name).display(), error))
}
