//! What moves a lab's packets: the wire, with a TAP device for each site on each path.
//!
//! Translates the topology's shapes into the wire's parameters and its counters into those that are shown.

use super::control::Counted;
use super::network::mac;
use super::tap::{Tap, TapParams};
use super::topology::{Gate, Link, Topology};
use super::wire::{LinkEnds, Port, Wire, WireOptions};
use super::{namespace, network, shape};
use renkei_core::error::Error;
use renkei_core::lab::link::LinkCounters;
use renkei_core::lab::params::{LinkParams, Loss, Queue};
use std::time::Duration;

/// A running engine; its devices go with it.
pub struct Engine {
    wire: Wire,
}

impl Engine {
    /// Makes the devices in the namespaces, which must exist, and starts to move packets.
    pub fn start(topology: &Topology) -> Result<Engine, Error> {
        let places: Vec<(usize, usize)> = (0..topology.sites.len())
            .flat_map(|site| topology.paths_of(site).into_iter().map(move |path| (site, path)))
            .collect();
        let ports =
            places.iter().map(|(site, path)| port(topology, *site, *path)).collect::<Result<_, _>>()?;
        let place = |site, path| {
            let of_port = places.iter().position(|place| *place == (site, path));
            of_port.expect("a site has a port on each path it has a link on")
        };
        let links = topology.links.iter().map(|link| LinkEnds {
            from: place(link.from, link.path),
            to: place(link.to, link.path),
            params: params(link, topology.round_trip(link)),
        });
        Ok(Engine { wire: Wire::start(ports, links.collect(), WireOptions::default())? })
    }

    /// Changes a link while packets move.
    pub fn set(&self, at: usize, link: &Link, round_trip: Duration) -> Result<(), Error> {
        self.wire.set(at, params(link, round_trip))
    }

    /// What each link carried and dropped, in the order of the topology, and the engine's CPU time.
    pub fn counted(&self) -> Result<(Vec<Counted>, Duration), Error> {
        let snapshot = self.wire.snapshot()?;
        Ok((snapshot.links.iter().map(counted).collect(), snapshot.cpu))
    }
}

fn counted(counters: &LinkCounters) -> Counted {
    Counted {
        packets: counters.packets,
        bytes: counters.bytes,
        lost: counters.lost,
        overflowed: counters.overflowed,
        dropped: counters.dropped,
        reordered: counters.reordered,
        queue_bytes: counters.queue_bytes,
        queue_peak_bytes: counters.queue_peak_bytes,
    }
}

/// The namespace that holds the devices of a site: its own, or that of the box before it.
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

/// A link's shape as the wire takes it.
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
        queue: queue(shape, round_trip),
        reorder: shape.reorder.unwrap_or_default().0,
        up: shape.up.unwrap_or(true),
    }
}

/// A part of the bandwidth-delay product in bytes, at least two packets; without a rate nothing queues.
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
