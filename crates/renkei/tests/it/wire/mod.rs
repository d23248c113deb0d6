//! The wire between real namespaces, checked with ping, iperf3 and its counters. Needs root and /dev/net/tun; says so
//! where it has neither.

pub(crate) mod adversary;
pub(crate) mod hostile;
pub(crate) mod raw;
pub(crate) mod records;
mod versions;

use renkei_core::lab::params::{LinkParams, Loss, Queue};
use renkei_lab::tap::{Tap, TapParams};
use renkei_lab::wire::{LinkEnds, Port, Snapshot, Wire, WireOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Site 1.
const FAR: &str = "10.77.0.2";

/// Additional round-trip time by the wire and the two kernels; without optimisation it is slower.
const OVERHEAD_MS: f64 = if cfg!(debug_assertions) { 0.6 } else { 0.2 };

/// How often something is measured that other work on the machine can disturb.
const TRIES: u32 = 3;

/// Numbers the sites of this process.
static SITES: AtomicU32 = AtomicU32::new(0);

/// Sites joined all to all by links of the same kind, site n with the address 10.77.0.(n + 1).
struct Net {
    names: Vec<String>,
    wire: Option<Wire>,
}

impl Net {
    /// `None`, with a word why, where namespaces or TAP devices cannot be made.
    fn new(sites: usize, params: &LinkParams) -> Option<Net> {
        if let Some(why) = missing() {
            eprintln!("skipped: {why}");
            return None;
        }
        let first = SITES.fetch_add(sites as u32, Ordering::Relaxed);
        let name = |at: usize| format!("rk-wire-{}-{}", std::process::id(), first as usize + at);
        let mut net = Net { names: (0..sites).map(name).collect(), wire: None };
        let ports = net.names.iter().enumerate().map(|(at, name)| port(at, name)).collect();
        let pairs = (0..sites).flat_map(|from| (0..sites).map(move |to| (from, to)));
        let links = pairs.filter(|(from, to)| from != to);
        let links = links.map(|(from, to)| LinkEnds { from, to, params: params.clone() }).collect();
        net.wire = Some(Wire::start(ports, links, WireOptions::default()).unwrap());
        Some(net)
    }

    fn wire(&self) -> &Wire {
        self.wire.as_ref().unwrap()
    }

    fn snapshot(&self) -> Snapshot {
        self.wire().snapshot().unwrap()
    }

    /// A program at a site.
    fn at(&self, site: usize, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[site], program]).args(args).stdin(Stdio::null());
        command
    }

    fn run(&self, site: usize, program: &str, args: &[&str]) -> Output {
        self.at(site, program, args).output().unwrap()
    }

    /// Least round trip in ms and share of answers, of pings from site 0 to site 1.
    fn ping(&self, count: u32, interval_s: f64) -> (f64, f64) {
        let (count_text, interval) = (count.to_string(), interval_s.to_string());
        let out = self.run(0, "ping", &["-q", "-c", &count_text, "-i", &interval, "-W", "2", FAR]);
        let text = String::from_utf8(out.stdout).unwrap();
        let received: f64 = between(&text, "transmitted, ", " received").parse().unwrap();
        let least = text
            .split("rtt min/avg/max/mdev = ")
            .nth(1)
            .map_or(f64::NAN, |tail| tail.split('/').next().unwrap().parse().unwrap());
        (least, received / f64::from(count))
    }

    /// The JSON report of iperf3 at site 0 for a run to site 1.
    fn iperf3(&self, args: &[&str]) -> serde_json::Value {
        let mut server = Server(
            self.at(1, "iperf3", &["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).spawn().unwrap(),
        );
        server.wait_until_it_listens();
        let out = self.run(0, "iperf3", &[&["-c", FAR, "-J"], args].concat());
        let said = String::from_utf8(out.stdout).unwrap();
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.wire = None;
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Why no site can be made here.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root");
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("needs /dev/net/tun");
    }
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    if !has("ip") || !has("ping") || !has("iperf3") {
        return Some("needs ip, ping and iperf3");
    }
    // A container's root may not make namespaces.
    let name = format!("rk-wire-{}-probe", std::process::id());
    let can =
        |verb| Command::new("ip").args(["netns", verb, &name]).output().is_ok_and(|out| out.status.success());
    let allowed = can("add") && can("del");
    (!allowed).then_some("needs the right to make network namespaces")
}

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn wait_until_it_listens(&mut self) {
        use std::io::{BufRead, BufReader};
        let mut lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("listening")), "iperf3 did not start");
        // Its later output needs a reader.
        std::thread::spawn(move || lines.count());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    text.split(before).nth(1).and_then(|tail| tail.split(after).next()).unwrap_or_else(|| panic!("{text}"))
}

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

fn mac(site: usize) -> [u8; 6] {
    [2, 0, 0x72, 0x6b, 0, site as u8]
}

fn port(site: usize, name: &str) -> Port {
    ip(&format!("netns add {name}"));
    let namespace = PathBuf::from("/run/netns").join(name);
    let params = TapParams { namespace: Some(&namespace), name: "eth0", mac: mac(site), mtu: 1500 };
    let tap = Tap::create(&params).unwrap();
    ip(&format!("-n {name} addr add 10.77.0.{}/24 dev eth0", site + 1));
    for device in ["lo", "eth0"] {
        ip(&format!("-n {name} link set {device} up"));
    }
    Port { tap, mac: mac(site), network: 0 }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn number(report: &serde_json::Value, path: &str) -> f64 {
    report
        .pointer(path)
        .and_then(serde_json::Value::as_f64)
        .unwrap_or_else(|| panic!("no {path} in {report}"))
}

/// How often it is looked again for a moment in which the machine has no other work.
const MOMENTS: u32 = 20;

/// The least round trip is made by the wire; the others also wait for a busy machine.
#[test]
fn round_trip_times_are_as_configured() {
    for delay in [Duration::from_micros(100), ms(5), ms(50), ms(175)] {
        let Some(net) = Net::new(2, &LinkParams { delay, ..LinkParams::default() }) else { return };
        net.ping(2, 0.2);
        let set = delay.as_secs_f64() * 2e3;
        let (mut least, mut moments) = (f64::INFINITY, 0);
        while least >= set * 1.02 + OVERHEAD_MS {
            assert!(moments < MOMENTS, "{least} ms instead of {set}");
            let (found, share) = net.ping(20, 0.05);
            assert_eq!(share, 1.0);
            (least, moments) = (least.min(found), moments + 1);
        }
        assert!(least >= set, "{least} ms instead of {set}");
    }
}

#[test]
fn tcp_reaches_the_configured_rate() {
    for rate in [20_000_000, 200_000_000] {
        let params = LinkParams { rate: Some(rate), delay: ms(2), ..LinkParams::default() };
        let Some(net) = Net::new(2, &params) else { return };
        net.ping(2, 0.2);
        // The TCP payload of packets of 1514 bytes.
        let payload = rate as f64 * 1448.0 / 1514.0;
        let mut ratio = 0.0;
        for _ in 0..TRIES {
            let report = net.iperf3(&["-t", "3", "-O", "1", "-C", "cubic"]);
            ratio = number(&report, "/end/sum_received/bits_per_second") / payload;
            if ratio > 0.98 {
                break;
            }
        }
        assert!((0.98..1.02).contains(&ratio), "{ratio} of {rate} bit/s");
    }
}

#[test]
fn losses_are_single_packets_at_the_configured_rate() {
    let loss = Loss::Random(0.01);
    let params = LinkParams { rate: Some(200_000_000), delay: ms(1), loss, ..LinkParams::default() };
    let Some(net) = Net::new(2, &params) else { return };
    let report = net.iperf3(&["-t", "3", "-P", "4"]);
    let link = &net.snapshot().links[0];
    let share = link.lost as f64 / (link.lost + link.packets) as f64;
    let error = (0.01 / (link.lost + link.packets) as f64).sqrt();
    assert!((share - 0.01).abs() < 5.0 * error, "{share} among {} packets", link.packets);
    // TCP sees packets go missing one by one: it sends again about as many as were lost.
    let again = number(&report, "/end/sum_sent/retransmits");
    assert!(again < 1.3 * link.lost as f64 + 50.0, "{again} sent again for {} lost", link.lost);
}

#[test]
fn bytes_survive_segmentation() {
    let params = LinkParams {
        rate: Some(300_000_000),
        delay: ms(1),
        loss: Loss::Bursty { share: 0.005, burst: 3.0 },
        reorder: 0.005,
        queue: Some(Queue::Packets(200)),
        ..LinkParams::default()
    };
    let Some(net) = Net::new(2, &params) else { return };
    let script = "import socket,hashlib\ns=socket.create_server(('',5001))\nprint('listening',flush=True)\n\
                  c=s.accept()[0]\nh=hashlib.sha256()\n\
                  while d:=c.recv(1<<20): h.update(d)\nc.sendall(h.digest())";
    let mut server = Server(net.at(1, "python3", &["-c", script]).stdout(Stdio::piped()).spawn().unwrap());
    server.wait_until_it_listens();
    let client = format!(
        "import socket,hashlib,random\nd=random.Random(5).randbytes(8<<20)\n\
         c=socket.create_connection(('{FAR}',5001))\nc.sendall(d)\nc.shutdown(1)\n\
         assert c.recv(99)==hashlib.sha256(d).digest()"
    );
    let out = net.run(0, "python3", &["-c", &client]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let counters = net.snapshot();
    let link = &counters.links[0];
    assert!(link.lost > 0 && link.reordered > 0, "{link:?}");
    // A wrong checksum would show as such in the receiver's kernel.
    let wrong = net.run(1, "cat", &["/proc/net/snmp"]);
    let tcp = String::from_utf8(wrong.stdout).unwrap();
    let last = tcp.lines().rfind(|line| line.starts_with("Tcp:")).unwrap();
    assert_eq!(last.split(' ').next_back(), Some("0"), "InCsumErrors: {tcp}");
}

#[test]
fn a_link_that_is_down_drops_everything() {
    let params = LinkParams { delay: ms(1), ..LinkParams::default() };
    let Some(net) = Net::new(2, &params) else { return };
    assert_eq!(net.ping(3, 0.1).1, 1.0);
    net.wire().set(0, LinkParams { up: false, ..params.clone() }).unwrap();
    assert_eq!(net.ping(1, 0.1).1, 0.0);
    assert!(net.snapshot().links[0].dropped > 0);
    net.wire().set(0, params).unwrap();
    assert_eq!(net.ping(3, 0.1).1, 1.0);
}

#[test]
fn sites_reach_each_other_over_their_own_links_only() {
    let Some(net) = Net::new(3, &LinkParams { delay: ms(1), ..LinkParams::default() }) else { return };
    let out = net.run(2, "ping", &["-q", "-c", "3", "-i", "0.1", FAR]);
    assert!(out.status.success());
    let counters = net.snapshot();
    // Links are listed by sender: 0 to 1, 0 to 2, 1 to 0, 1 to 2, 2 to 0, 2 to 1.
    let packets: Vec<_> = counters.links.iter().map(|link| link.packets).collect();
    assert!(packets[3] >= 3 && packets[5] >= 3, "{packets:?}");
    // A broadcast for the address, or the kernel's greetings at start, but none of the answers.
    assert!(counters.ports[0].sent_frames < 60, "{counters:?}");
    assert!(counters.cpu < counters.elapsed, "{counters:?}");
}

#[test]
fn invalid_links_are_refused() {
    let Some(net) = Net::new(2, &LinkParams::default()) else { return };
    let bad = LinkParams { rate: Some(1), ..LinkParams::default() };
    assert!(net.wire().set(0, bad).unwrap_err().cause.contains("rate"));
    assert!(net.wire().set(9, LinkParams::default()).unwrap_err().cause.contains("no such link"));
    let error = Wire::start(
        Vec::new(),
        vec![LinkEnds { from: 0, to: 1, params: LinkParams::default() }],
        WireOptions::default(),
    );
    assert!(error.unwrap_err().cause.contains("no such port"));
}
