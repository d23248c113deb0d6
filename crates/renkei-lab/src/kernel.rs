//! The kernel engine: the sites' devices are veth pairs that meet in a transit namespace; `netem` and `htb` shape the
//! traffic.
//!
//! In the transit namespace, `rk-LAB._transit`, each path is a bridge with static addresses that floods nothing. The
//! disciplines are described in [`super::discipline`]; the programs `ip`, `bridge` and `tc` of iproute2 set them up.
//! The devices pass packets one by one (`gso_max_segs 1`), so that a loss is that of one packet.
//!
//! Counters are those of the disciplines. Where one is replaced, since that is the only way to drop its queue or to
//! change its kind, its last counts are kept here. Nothing runs in this process, so there is nothing to stop: all
//! goes with the namespaces.

use super::discipline::{self, Place, Side, same_kind};
use super::engine::device_namespace;
use super::namespace::{self, bridge, ip, tc};
use super::network::{address, device_mtu, mac_text};
use super::topology::{Link, Topology};
use renkei_core::error::{Code, Error};
use renkei_core::lab::link::LinkCounters;
use renkei_core::lab::params::LinkParams;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The destination of the probe's class.
const PROBED: Ipv4Addr = Ipv4Addr::new(10, 75, 0, 2);

/// A running kernel engine.
pub struct Kernel {
    transit: String,
    lines: Mutex<Vec<Line>>,
}

/// One directed link.
struct Line {
    /// The namespace of the sending site's device.
    sender: String,
    way: Place,
    queue: Place,
    mtu: u32,
    params: LinkParams,
    /// Counts of replaced disciplines.
    before: LinkCounters,
}

/// The counters of a discipline in the output of `tc -s -j qdisc show`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Counted {
    packets: u64,
    bytes: u64,
    drops: u64,
    qlen: u64,
    backlog: u64,
}

#[derive(Deserialize)]
struct Row {
    dev: String,
    handle: String,
    #[serde(flatten)]
    counted: Counted,
}

/// The disciplines of a namespace, by device and handle.
type Table = HashMap<(String, String), Counted>;

impl Kernel {
    /// Whether this machine's kernel supports it: makes one of each in a namespace that ends with the thread.
    ///
    /// # Errors
    /// `LabSetupFailed` with the error of `ip` or `tc`.
    pub fn probe() -> Result<(), Error> {
        namespace::in_new_network("rk-probe", || {
            let devices = "link add rk0 type veth peer name rk1 gso_max_segs 1\nlink add rk2 type bridge\n";
            ip(None, devices)?;
            let place = Place { device: "rk0".into(), site: 1 };
            let params =
                LinkParams { reorder: 0.1, delay: Duration::from_millis(1), ..LinkParams::default() };
            let class = place.add_class(&discipline::rate(None, 1500), Side::Destination, PROBED);
            let way = place.add(&discipline::way(&params, 1500));
            let queue = place.replace(&discipline::queue(&params));
            tc(None, &[discipline::root("rk0"), class, way, queue].concat())
        })
    }

    /// Makes the devices in the sites' namespaces, which must exist, and those between them; also returns the lock on
    /// the transit namespace.
    pub fn start(topology: &Topology, params: Vec<LinkParams>) -> Result<(Kernel, File), Error> {
        let transit = namespace::of_transit(&topology.name);
        let lock = namespace::create(&transit, "127.0.0.1 localhost\n")?;
        ip(Some(&transit), &(0..topology.paths()).map(bridge_lines).collect::<String>())?;
        for site in 0..topology.sites.len() {
            join(topology, &transit, site)?;
        }
        let lines = topology.links.iter().zip(params).map(|(link, params)| Line::new(topology, link, params));
        let kernel = Kernel { transit, lines: Mutex::new(lines.collect()) };
        kernel.shape(topology)?;
        Ok((kernel, lock))
    }

    /// Sets up the disciplines of all links.
    fn shape(&self, topology: &Topology) -> Result<(), Error> {
        let lines = self.lines();
        for (site, _) in topology.sites.iter().enumerate() {
            let holder = device_namespace(topology, site);
            let of_site = topology.links.iter().zip(lines.iter()).filter(|(link, _)| link.from == site);
            let ways = of_site.map(|(link, line)| line.add_way(address(link.path, link.to)));
            tc(
                Some(&holder),
                &(roots(topology, site, |path| format!("eth{path}")) + &ways.collect::<String>()),
            )?;
        }
        let ports = (0..topology.sites.len()).map(|site| roots(topology, site, |path| port(site, path)));
        let queues = topology.links.iter().zip(lines.iter());
        let queues = queues.map(|(link, line)| line.add_queue(address(link.path, link.from)));
        tc(Some(&self.transit), &ports.chain(queues).collect::<String>())
    }

    /// Changes a link while packets move; returns when the change is in effect.
    pub fn set(&self, at: usize, params: LinkParams, mtu: u32) -> Result<(), Error> {
        let mut lines = self.lines();
        let line = &mut lines[at];
        let (way, queue) = line.changes(&params, mtu);
        // The counters are read before a discipline is replaced.
        let (held_way, held_queue) = (table(&line.sender)?, table(&self.transit)?);
        tc(Some(&line.sender), &way.lines)?;
        tc(Some(&self.transit), &queue.lines)?;
        if way.anew {
            line.keep_way(counted(&held_way, &line.way));
        }
        if queue.anew {
            line.keep_queue(counted(&held_queue, &line.queue));
        }
        (line.params, line.mtu) = (params, mtu);
        Ok(())
    }

    /// The counters of each link, in the order of the topology.
    pub fn counters(&self) -> Result<Vec<LinkCounters>, Error> {
        let lines = self.lines();
        let mut tables: HashMap<&str, Table> = HashMap::new();
        for name in lines.iter().map(|line| line.sender.as_str()).chain([self.transit.as_str()]) {
            if !tables.contains_key(name) {
                tables.insert(name, table(name)?);
            }
        }
        let transit = &tables[self.transit.as_str()];
        let of_line = |line: &Line| {
            line.counters(counted(&tables[line.sender.as_str()], &line.way), counted(transit, &line.queue))
        };
        Ok(lines.iter().map(of_line).collect())
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().expect("no thread panics with the links: a panic aborts")
    }
}

// ---- devices ---------------------------------------------------------------------------------------------------------

/// The transit namespace's device that leads to a site.
fn port(site: usize, path: usize) -> String {
    format!("s{}p{path}", site + 1)
}

fn bridge_lines(path: usize) -> String {
    format!(
        "link add br{path} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set br{path} addrgenmode none up\n"
    )
}

/// Connects a site to the bridges of its paths.
fn join(topology: &Topology, transit: &str, site: usize) -> Result<(), Error> {
    let holder = device_namespace(topology, site);
    let (mut links, mut addresses) = (String::new(), String::new());
    for path in topology.paths_of(site) {
        let (port, mtu, mac) = (port(site, path), device_mtu(topology, site, path), mac_text(path, site));
        links.push_str(&format!(
            "link add {port} mtu {mtu} type veth peer name eth{path} mtu {mtu} address {mac} gso_max_segs 1 \
             netns {holder}\n\
             link set {port} master br{path} addrgenmode none up\n\
             link set {port} type bridge_slave learning off flood off mcast_flood off bcast_flood off\n"
        ));
        addresses.push_str(&format!("fdb replace {mac} dev {port} master static\n"));
    }
    ip(Some(transit), &links)?;
    bridge(transit, &addresses)
}

/// The root disciplines of a site's devices, or of those that lead to it.
fn roots(topology: &Topology, site: usize, device: impl Fn(usize) -> String) -> String {
    topology.paths_of(site).into_iter().map(|path| discipline::root(&device(path))).collect()
}

// ---- one link --------------------------------------------------------------------------------------------------------

/// The lines that change one discipline of a link.
struct Change {
    lines: String,
    /// Whether the discipline is replaced.
    anew: bool,
}

impl Line {
    fn new(topology: &Topology, link: &Link, params: LinkParams) -> Line {
        Line {
            sender: device_namespace(topology, link.from),
            way: Place { device: format!("eth{}", link.path), site: link.to },
            queue: Place { device: port(link.to, link.path), site: link.from },
            mtu: link.shape.mtu(),
            params,
            before: LinkCounters::default(),
        }
    }

    fn add_way(&self, to: Ipv4Addr) -> String {
        let class = self.way.add_class(&discipline::rate(None, self.mtu), Side::Destination, to);
        class + &self.way.add(&discipline::way(&self.params, self.mtu))
    }

    fn add_queue(&self, from: Ipv4Addr) -> String {
        let class = self.queue.add_class(&discipline::rate(self.params.rate, self.mtu), Side::Source, from);
        class + &self.queue.add(&discipline::queue(&self.params))
    }

    /// The changes of the way and of the queue for other parameters. A link that goes down or comes up loses its
    /// packets in flight and queued.
    fn changes(&self, params: &LinkParams, mtu: u32) -> (Change, Change) {
        let turned = self.params.up != params.up;
        let way = discipline::way(params, mtu);
        let way = if turned { self.way.replace(&way) } else { self.way.change(&way) };
        let queue = discipline::queue(params);
        let anew = turned || !same_kind(&queue, &discipline::queue(&self.params));
        let queue = if anew { self.queue.replace(&queue) } else { self.queue.change(&queue) };
        let rate = self.queue.change_rate(&discipline::rate(params.rate, mtu));
        (Change { lines: way, anew: turned }, Change { lines: rate + &queue, anew })
    }

    /// Keeps the counts of a replaced way; its queued packets are lost.
    fn keep_way(&mut self, way: Counted) {
        let before = if self.params.up { &mut self.before.lost } else { &mut self.before.dropped };
        *before += way.drops;
        self.before.dropped += way.qlen;
    }

    fn keep_queue(&mut self, queue: Counted) {
        self.before.packets += queue.packets;
        self.before.bytes += queue.bytes;
        self.before.overflowed += queue.drops;
        self.before.dropped += queue.qlen;
    }

    /// The link's counters, including those of its current disciplines.
    fn counters(&self, way: Counted, queue: Counted) -> LinkCounters {
        let (lost, dropped) = if self.params.up { (way.drops, 0) } else { (0, way.drops) };
        let before = &self.before;
        LinkCounters {
            frames: before.packets + queue.packets,
            packets: before.packets + queue.packets,
            bytes: before.bytes + queue.bytes,
            lost: before.lost + lost,
            overflowed: before.overflowed + queue.drops,
            dropped: before.dropped + dropped,
            queue_bytes: queue.backlog,
            delay_ns: u64::try_from(self.params.delay.as_nanos()).unwrap_or(u64::MAX),
            ..LinkCounters::default()
        }
    }
}

// ---- counters --------------------------------------------------------------------------------------------------------

/// The counters of all disciplines of a namespace.
fn table(namespace: &str) -> Result<Table, Error> {
    let text = namespace::tc_show(namespace)?;
    parse_table(&text).map_err(|error| Error::new(Code::Internal, "read tc", namespace, error))
}

fn parse_table(text: &str) -> Result<Table, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_str(text)?;
    Ok(rows.into_iter().map(|row| ((row.dev, row.handle), row.counted)).collect())
}

fn counted(table: &Table, place: &Place) -> Counted {
    table.get(&(place.device.clone(), place.handle())).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn line(fields: &str) -> Line {
        let text = format!(
            "name = 't'\n[[site]]\nname = 'a'\n[[site]]\nname = 'b'\nprivate = 'nat'\n\
             [[link]]\nbetween = ['a', 'b']\npath = 1\n{fields}"
        );
        let topology = Topology::parse(&text, Path::new("t.toml"), None).unwrap();
        Line::new(&topology, &topology.links[1], LinkParams::default())
    }

    #[test]
    fn a_link_is_at_its_sender_and_before_its_receiver() {
        let line = line("");
        assert_eq!((line.sender.as_str(), line.way.device.as_str()), ("rk-t.b.nat", "eth1"));
        assert_eq!((line.queue.device.as_str(), line.queue.handle().as_str()), ("s1p1", "11:"));
        assert!(line.add_way(address(1, 0)).contains("match ip dst 10.75.1.1/32 flowid 1:10\n"));
        assert!(line.add_queue(address(1, 1)).contains("match ip src 10.75.1.2/32 flowid 1:11\n"));
    }

    #[test]
    fn only_changed_qdiscs_are_replaced() {
        let line = line("");
        let of = |params| {
            let (way, queue) = line.changes(&params, 1500);
            assert_eq!((way.anew, queue.anew), (way.lines.contains(" del "), queue.lines.contains(" del ")));
            (way.anew, queue.anew)
        };
        let same = LinkParams::default;
        assert_eq!(of(LinkParams { rate: Some(1_000_000), ..same() }), (false, false));
        assert_eq!(of(LinkParams { up: false, ..same() }), (true, true));
        let packets = Some(renkei_core::lab::params::Queue::Packets(9));
        assert_eq!(of(LinkParams { rate: Some(1_000_000), queue: packets, ..same() }), (false, true));
    }

    /// Output of Linux 6.1 and iproute2 6.1.
    #[test]
    fn counters_are_read_as_tc_prints_them() {
        let text = r#"[{"kind":"htb","handle":"1:","dev":"eth0","root":true,"refcnt":2,"options":{"r2q":10},
            "bytes":9,"packets":9,"drops":0,"overlimits":0,"requeues":0,"backlog":0,"qlen":0},
            {"kind":"netem","handle":"10:","dev":"eth0","parent":"1:10","options":{"limit":1000},
            "bytes":3000,"packets":2,"drops":5,"overlimits":0,"requeues":0,"backlog":1514,"qlen":1}]"#;
        let table = parse_table(text).unwrap();
        let way = counted(&table, &Place { device: "eth0".into(), site: 0 });
        assert_eq!((way.bytes, way.packets, way.drops, way.backlog, way.qlen), (3000, 2, 5, 1514, 1));
        assert_eq!(counted(&table, &Place { device: "eth1".into(), site: 0 }).packets, 0);
    }

    #[test]
    fn counters_survive_the_qdisc() {
        let mut line = line("");
        let way = Counted { drops: 3, qlen: 4, ..Counted::default() };
        let queue = Counted { packets: 10, bytes: 1000, drops: 2, qlen: 1, backlog: 60 };
        line.keep_way(way);
        line.keep_queue(queue);
        line.params.up = false;
        let now = line.counters(Counted { drops: 7, ..Counted::default() }, Counted::default());
        assert_eq!((now.packets, now.bytes, now.lost, now.overflowed), (10, 1000, 3, 2));
        assert_eq!((now.dropped, now.queue_bytes), (4 + 1 + 7, 0));
        // Packets dropped while the link was down still count when it is up again.
        line.keep_way(Counted { drops: 7, ..Counted::default() });
        line.params.up = true;
        assert_eq!(line.counters(Counted::default(), Counted::default()).dropped, 12);
    }
}
