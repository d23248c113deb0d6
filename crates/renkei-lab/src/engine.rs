//! The engine that moves a lab's packets: the wire, with a TAP device for each site on each path, or the kernel's own
//! disciplines.
//!
//! Chooses between the two, and translates the topology's shapes into their parameters.

use super::kernel::Kernel;
use super::network::mac;
use super::tap::{Tap, TapParams};
use super::topology::{EngineChoice, Gate, Link, Topology};
use super::wire::{LinkEnds, Port, Wire, WireOptions};
use super::{namespace, network, shape};
use renkei_core::error::{Code, Error};
use renkei_core::lab::link::LinkCounters;
use renkei_core::lab::params::{LinkParams, Loss, Queue};
use std::fs::File;
use std::time::{Duration, SystemTime};

/// The device that TAP devices come from.
const TUN: &str = "/dev/net/tun";

/// The chosen engine of a lab, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    is_kernel: bool,
    reason: String,
}

/// Chooses an engine that this machine supports.
///
/// # Errors
/// `TunMissing` if the wire is required, `LabSetupFailed` if the kernel engine is required and not possible.
pub fn choose(choice: EngineChoice) -> Result<Chosen, Error> {
    let chosen = |is_kernel, reason: String| Chosen { is_kernel, reason };
    match choice {
        EngineChoice::Wire => need_tun().map(|()| chosen(false, "asked for".into())),
        EngineChoice::Kernel => Kernel::probe().map_err(short).map(|()| chosen(true, "asked for".into())),
        EngineChoice::Auto => match need_tun() {
            Ok(()) => Ok(chosen(false, "the default".into())),
            // On a machine that supports neither, the error is that of the default engine.
            Err(no_tun) => {
                Kernel::probe().map_err(|_| no_tun).map(|()| chosen(true, "no TAP devices".into()))
            }
        },
    }
}

/// The error of the kernel engine, without the lines that were tried.
fn short(error: Error) -> Error {
    let words = error.cause.split_once("; ").map_or(error.cause.as_str(), |(words, _)| words);
    let words = words.trim_start_matches("Error: ").trim_end_matches('.').to_owned();
    Error { cause: words, ..error }
}

fn need_tun() -> Result<(), Error> {
    let opened = File::options().read(true).write(true).open(TUN);
    opened.map(drop).map_err(|error| Error::new(Code::TunMissing, "open", TUN, error))
}

/// A running engine; its devices go with it or with the namespaces.
pub struct Engine {
    mover: Mover,
    reason: String,
}

enum Mover {
    Wire { wire: Wire, seed: u64 },
    Kernel { kernel: Kernel, _lock: File },
}

impl Engine {
    /// Makes the devices in the namespaces, which must exist, and starts to move packets.
    pub fn start(topology: &Topology, chosen: Chosen) -> Result<Engine, Error> {
        let Chosen { is_kernel, reason } = chosen;
        let mover = if is_kernel { start_kernel(topology)? } else { start_wire(topology)? };
        Ok(Engine { mover, reason })
    }

    /// `wire` or `kernel`.
    pub fn name(&self) -> &'static str {
        match self.mover {
            Mover::Wire { .. } => "wire",
            Mover::Kernel { .. } => "kernel",
        }
    }

    /// The reason for its choice.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The random seed; the kernel does not tell its own.
    pub fn seed(&self) -> Option<u64> {
        match self.mover {
            Mover::Wire { seed, .. } => Some(seed),
            Mover::Kernel { .. } => None,
        }
    }

    /// Options of devices within a site, so that no frame of many packets (GSO) is lost as a whole.
    pub fn device_options(&self) -> &'static str {
        match self.mover {
            Mover::Wire { .. } => "",
            Mover::Kernel { .. } => "gso_max_segs 1",
        }
    }

    /// Changes a link while packets move.
    pub fn set(&self, at: usize, link: &Link, round_trip: Duration) -> Result<(), Error> {
        let params = params(link, round_trip);
        match &self.mover {
            Mover::Wire { wire, .. } => wire.set(at, params),
            Mover::Kernel { .. } if params.policer.is_some() => Err(no_policer()),
            Mover::Kernel { kernel, .. } => kernel.set(at, params, link.shape.mtu()),
        }
    }

    /// The counters of each link, in the order of the topology, and the engine's CPU time.
    pub fn counted(&self) -> Result<(Vec<LinkCounters>, Duration), Error> {
        match &self.mover {
            Mover::Wire { wire, .. } => wire.snapshot().map(|snapshot| (snapshot.links, snapshot.cpu)),
            Mover::Kernel { kernel, .. } => Ok((kernel.counters()?, Duration::ZERO)),
        }
    }
}

fn start_kernel(topology: &Topology) -> Result<Mover, Error> {
    let of_link = |link| params(link, topology.round_trip(link));
    let params: Vec<_> = topology.links.iter().map(of_link).collect();
    if params.iter().any(|params| params.policer.is_some()) {
        return Err(no_policer());
    }
    let (kernel, lock) = Kernel::start(topology, params)?;
    Ok(Mover::Kernel { kernel, _lock: lock })
}

/// The error of a policer that the kernel engine would have to apply.
fn no_policer() -> Error {
    Error::new(Code::UsageInvalid, "shape links", "policer", "only the engine `wire` has policers")
}

fn start_wire(topology: &Topology) -> Result<Mover, Error> {
    let places: Vec<(usize, usize)> = (0..topology.sites.len())
        .flat_map(|site| topology.paths_of(site).into_iter().map(move |path| (site, path)))
        .collect();
    let ports = places.iter().map(|(site, path)| port(topology, *site, *path)).collect::<Result<_, _>>()?;
    let place = |site, path| {
        let of_port = places.iter().position(|place| *place == (site, path));
        of_port.expect("a site has a port on each path it has a link on")
    };
    let links = topology.links.iter().map(|link| LinkEnds {
        from: place(link.from, link.path),
        to: place(link.to, link.path),
        params: params(link, topology.round_trip(link)),
    });
    let seed = topology.seed.unwrap_or_else(seed_of_now);
    let wire = Wire::start(ports, links.collect(), WireOptions { seed, ..WireOptions::default() })?;
    Ok(Mover::Wire { wire, seed })
}

/// A different seed each time; short enough to be written down.
fn seed_of_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff_ffff)
}

/// The namespace that has the devices of a site: its own, or that of its NAT box.
pub fn device_namespace(topology: &Topology, site: usize) -> String {
    let name = topology.sites[site].name.as_str();
    match topology.sites[site].gate {
        Gate::Nat => namespace::of_gateway(&topology.name, name),
        Gate::Open | Gate::Outbound => namespace::of_site(&topology.name, name),
    }
}

fn port(topology: &Topology, site: usize, path: usize) -> Result<Port, Error> {
    let handle = namespace::handle(&device_namespace(topology, site));
    let tap = Tap::create(&TapParams {
        namespace: Some(&handle),
        name: &format!("eth{path}"),
        mac: mac(path, site),
        mtu: network::device_mtu(topology, site, path),
    })?;
    Ok(Port { tap, mac: mac(path, site), network: path })
}

/// A link's shape as parameters of the engines.
fn params(link: &Link, round_trip: Duration) -> LinkParams {
    let shape = &link.shape;
    let loss = match shape.loss {
        None => Loss::None,
        Some(loss) if loss.share == 0.0 => Loss::None,
        Some(loss) if loss.burst > 1.0 => Loss::Bursty { share: loss.share, burst: loss.burst },
        Some(loss) => Loss::Random(loss.share),
    };
    LinkParams {
        rate: shape.rate(),
        delay: shape.delay(),
        jitter: shape.jitter.unwrap_or_default().0,
        loss,
        policer: shape.policer.unwrap_or_default().0,
        queue: queue(shape, round_trip),
        reorder: shape.reorder.unwrap_or_default().0,
        up: shape.up.unwrap_or(true),
    }
}

/// A fraction of the bandwidth-delay product in bytes, at least two packets; without a rate nothing queues.
fn queue(shape: &shape::Shape, round_trip: Duration) -> Option<Queue> {
    match (shape.queue?, shape.rate()) {
        (shape::Queue::Bytes(bytes), _) => Some(Queue::Bytes(bytes)),
        (shape::Queue::Packets(packets), _) => Some(Queue::Packets(packets)),
        (shape::Queue::Bdp(_), None) => None,
        (shape::Queue::Bdp(part), Some(rate)) => {
            let bytes = rate as f64 / 8.0 * round_trip.as_secs_f64() * part;
            Some(Queue::Bytes((bytes as u64).max(2 * u64::from(shape.mtu() + 14))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::lab::policer::Policer;
    use std::path::Path;

    fn links(fields: &str) -> Topology {
        let text = format!(
            "name = 't'\n[[site]]\nname = 'a'\n[[site]]\nname = 'b'\n[[link]]\nbetween = ['a', 'b']\n{fields}"
        );
        Topology::parse(&text, Path::new("t.toml"), None).unwrap()
    }

    fn params_of(fields: &str) -> LinkParams {
        let topology = links(fields);
        params(&topology.links[0], topology.round_trip(&topology.links[0]))
    }

    #[test]
    fn a_reason_is_short() {
        let cause = "Error: Specified qdisc kind is unknown.; Command failed -:3; asked for: qdisc add";
        let error = Error::new(Code::LabSetupFailed, "run", "tc -batch -", cause);
        assert_eq!(short(error).cause, "Specified qdisc kind is unknown");
    }

    #[test]
    fn shapes_become_parameters() {
        let given =
            params_of("rate = '1G'\nrtt = '10ms'\njitter = '1ms'\nloss = '1% burst 4'\nreorder = '2%'\n");
        assert_eq!(given.rate, Some(1_000_000_000));
        assert_eq!((given.delay, given.jitter), (Duration::from_millis(5), Duration::from_millis(1)));
        assert_eq!((given.loss, given.reorder), (Loss::Bursty { share: 0.01, burst: 4.0 }, 0.02));
        assert!(given.up && given.queue.is_none());
        assert_eq!(params_of("loss = 0\n").loss, Loss::None);
        assert_eq!(params_of("loss = 0.25\n").loss, Loss::Random(0.25));
        assert!(!params_of("up = false\n").up);
        let policer = Policer { rate: 500_000_000, burst: 64_000 };
        assert_eq!(params_of("policer = '500M burst 64KB'\n").policer, Some(policer));
        assert_eq!(params_of("policer = 'none'\n").policer, None);
    }

    #[test]
    fn a_queue_in_bdp_follows_the_round_trip() {
        let queue = |fields: &str| params_of(fields).queue;
        assert_eq!(queue("rate = '1G'\nrtt = '10ms'\nqueue = '1 BDP'\n"), Some(Queue::Bytes(1_250_000)));
        assert_eq!(queue("rate = '1G'\nrtt = '10ms'\nqueue = '0.01 BDP'\n"), Some(Queue::Bytes(12_500)));
        assert_eq!(queue("rate = '1M'\nrtt = '1ms'\nqueue = '0.01 BDP'\n"), Some(Queue::Bytes(3028)));
        assert_eq!(queue("rtt = '1ms'\nqueue = '1 BDP'\n"), None);
        assert_eq!(queue("queue = '100p'\n"), Some(Queue::Packets(100)));
    }
}
