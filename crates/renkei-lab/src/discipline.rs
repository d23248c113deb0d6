//! Link parameters as `tc` commands: the lines that make and change the kernel's queueing disciplines.
//!
//! A directed link has two places. The sending site's device has a class for each destination site, with a `netem`
//! that delays, loses and reorders: its *way*. The device that leads to the receiving site, in the lab's transit
//! namespace, has a class for each source site, whose `htb` rate is the link's and whose `bfifo` or `pfifo` is the
//! link's queue. In this order because `netem` orphans the packets in the sender's kernel: TCP small queues would
//! else keep the queue before its own link from filling. Packets that belong to no link are dropped at either place.
//!
//! Pure text; [`super::kernel`] carries it out. Source: tc-netem(8), tc-htb(8), tc-fifo(8), tc-u32(8).

use renkei_core::lab::params::{LinkParams, Loss, Queue};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The rate of an unlimited class: far above what a machine carries.
const UNLIMITED_BITS: u64 = 1_000_000_000_000;
/// The burst of a class after idling; timers are late by less.
const BURST: Duration = Duration::from_millis(1);
/// Minimum limit of a way in packets, beyond the bandwidth-delay product.
const WAY_PACKETS: u64 = 10_000;
/// The rate for which a way is dimensioned when its link has none.
const ROOM_BITS: u64 = 10_000_000_000;
/// The queue limit of a link without a rate: packets do not wait there.
const OPEN_QUEUE_BYTES: u64 = 64_000_000;
/// Number of the first site's class; below are the root and the class of unmatched packets.
const FIRST_CLASS: usize = 0x10;

/// One class of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: String,
    /// The index in the topology of the site at the other end.
    pub site: usize,
}

/// The address of a packet that selects its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

impl Place {
    fn number(&self) -> usize {
        FIRST_CLASS + self.site
    }

    /// The handle of its discipline, as `tc` shows it.
    pub fn handle(&self) -> String {
        format!("{:x}:", self.number())
    }

    fn class(&self) -> String {
        format!("dev {} parent 1: classid 1:{:x}", self.device, self.number())
    }

    fn leaf(&self) -> String {
        format!("dev {} parent 1:{:x} handle {}", self.device, self.number(), self.handle())
    }

    /// Adds a class with a rate, and the filter of its packets.
    pub fn add_class(&self, rate: &str, side: Side, address: Ipv4Addr) -> String {
        let word = if side == Side::Source { "src" } else { "dst" };
        format!(
            "class add {} {rate}\nfilter add dev {} parent 1: protocol ip prio 1 u32 match ip {word} {address}/32 \
             flowid 1:{:x}\n",
            self.class(),
            self.device,
            self.number()
        )
    }

    /// Changes the rate of the class.
    pub fn change_rate(&self, rate: &str) -> String {
        format!("class change {} {rate}\n", self.class())
    }

    /// Adds a discipline to the class.
    pub fn add(&self, discipline: &str) -> String {
        format!("qdisc add {} {discipline}\n", self.leaf())
    }

    /// Changes the discipline in the class; it must be of the same kind.
    pub fn change(&self, discipline: &str) -> String {
        format!("qdisc change {} {discipline}\n", self.leaf())
    }

    /// Replaces the discipline of the class; packets queued in the old one are lost.
    pub fn replace(&self, discipline: &str) -> String {
        format!("qdisc del {}\n{}", self.leaf(), self.add(discipline))
    }
}

/// The root of a device's classes; unmatched packets are dropped.
pub fn root(device: &str) -> String {
    let rate = rate(None, 0);
    format!(
        "qdisc add dev {device} root handle 1: htb default 1\nclass add dev {device} parent 1: classid 1:1 {rate}\n\
         qdisc add dev {device} parent 1:1 handle 2: netem loss 100% limit 1\n"
    )
}

/// The rate of a class, in bit/s; `mtu` is the largest IP packet.
pub fn rate(bits: Option<u64>, mtu: u32) -> String {
    let (bits, packet) = (bits.unwrap_or(UNLIMITED_BITS), u64::from(mtu.max(1500)) + 14);
    let burst = (u128::from(bits) * BURST.as_nanos() / 8_000_000_000).max(2 * u128::from(packet));
    format!("htb rate {bits}bit ceil {bits}bit burst {burst}b cburst {burst}b quantum {packet}")
}

/// The discipline of a link's way; a link that is down loses all packets.
pub fn way(params: &LinkParams, mtu: u32) -> String {
    if !params.up {
        return "netem limit 1 loss 100%".into();
    }
    let mut text = format!(
        "netem limit {} delay {} {} rate {UNLIMITED_BITS}bit",
        room(params, mtu),
        microseconds(params.delay),
        microseconds(params.jitter)
    );
    // The rate above keeps packets in order in spite of jitter: netem then schedules each after the previous one.
    text.push_str(&loss(params.loss));
    if params.reorder > 0.0 && !params.delay.is_zero() {
        text.push_str(&format!(" reorder {}", percent(params.reorder)));
    }
    text
}

fn loss(loss: Loss) -> String {
    match loss {
        Loss::None => String::new(),
        Loss::Random(share) => format!(" loss {}", percent(share)),
        Loss::Bursty { share, .. } if share >= 1.0 => " loss 100%".into(),
        Loss::Bursty { share, burst } => {
            let leave = 1.0 / burst.max(1.0);
            let enter = (leave * share / (1.0 - share)).min(1.0);
            format!(" loss gemodel {} {}", percent(enter), percent(leave))
        }
    }
}

/// Most versions of `tc` know no nanoseconds, but fractions of a microsecond.
fn microseconds(time: Duration) -> String {
    let nanos = time.as_nanos();
    format!("{}.{:03}us", nanos / 1000, nanos % 1000)
}

/// To the kernel's own precision, 2^-32.
fn percent(share: f64) -> String {
    format!("{:.8}%", share * 100.0)
}

/// Packet limit of a way: twice the bandwidth-delay product, and some.
fn room(params: &LinkParams, mtu: u32) -> u64 {
    let bits = u128::from(params.rate.unwrap_or(ROOM_BITS));
    let bytes = 2 * bits * (params.delay + params.jitter).as_nanos() / 8_000_000_000;
    let packets = u64::try_from(bytes).unwrap_or(u64::MAX) / u64::from(mtu + 14);
    (packets + WAY_PACKETS).min(u64::from(u32::MAX))
}

/// The discipline of a link's queue.
pub fn queue(params: &LinkParams) -> String {
    match (params.rate, params.queue_limit()) {
        (None, _) => format!("bfifo limit {OPEN_QUEUE_BYTES}"),
        (_, Queue::Bytes(bytes)) => format!("bfifo limit {}", bytes.min(u64::from(u32::MAX))),
        (_, Queue::Packets(packets)) => format!("pfifo limit {packets}"),
    }
}

/// Whether one discipline can be changed into the other in place.
pub fn same_kind(one: &str, other: &str) -> bool {
    one.split(' ').next() == other.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> LinkParams {
        let (rate, delay) = (Some(2_000_000_000), Duration::from_millis(175));
        LinkParams { rate, delay, ..LinkParams::default() }
    }

    #[test]
    fn a_queue_has_space_for_packets_in_flight() {
        let text = way(&params(), 1500);
        assert_eq!(text, "netem limit 67793 delay 175000.000us 0.000us rate 1000000000000bit");
        assert!(way(&LinkParams { rate: None, ..params() }, 1500).contains("limit 298969 "));
        assert_eq!(microseconds(Duration::from_nanos(50_007)), "50.007us");
        assert!(way(&LinkParams::default(), 1500).starts_with("netem limit 10000 delay 0.000us 0.000us "));
    }

    #[test]
    fn losses_are_random_or_bursty() {
        let of = |loss| way(&LinkParams { loss, ..params() }, 1500);
        assert!(of(Loss::Random(1e-4)).ends_with(" loss 0.01000000%"));
        // Gilbert: share = p / (p + r), burst = 1 / r.
        assert!(
            of(Loss::Bursty { share: 0.01, burst: 8.0 }).ends_with(" loss gemodel 0.12626263% 12.50000000%")
        );
        assert!(of(Loss::Bursty { share: 1.0, burst: 8.0 }).ends_with(" loss 100%"));
        assert_eq!(way(&LinkParams { up: false, ..params() }, 1500), "netem limit 1 loss 100%");
    }

    #[test]
    fn without_delay_nothing_can_overtake() {
        let of = |delay| way(&LinkParams { reorder: 0.02, delay, ..params() }, 1500);
        assert!(of(Duration::from_millis(5)).ends_with(" reorder 2.00000000%"));
        assert!(!of(Duration::ZERO).contains("reorder"));
    }

    #[test]
    fn queues_are_in_bytes_or_packets() {
        let of = |queue_limit| queue(&LinkParams { queue: queue_limit, ..params() });
        assert_eq!(of(None), "bfifo limit 87500000");
        assert_eq!(of(Some(Queue::Bytes(25_000))), "bfifo limit 25000");
        assert_eq!(of(Some(Queue::Packets(100))), "pfifo limit 100");
        assert_eq!(queue(&LinkParams::default()), "bfifo limit 64000000");
        assert!(same_kind("bfifo limit 1", "bfifo limit 2") && !same_kind("bfifo limit 1", "pfifo limit 1"));
    }

    #[test]
    fn a_rate_has_a_millisecond_of_burst_or_two_packets() {
        let text = rate(Some(1_000_000_000), 1500);
        assert_eq!(
            text,
            "htb rate 1000000000bit ceil 1000000000bit burst 125000b cburst 125000b quantum 1514"
        );
        assert!(rate(Some(1_000_000), 9000).contains("burst 18028b"));
    }

    #[test]
    fn a_class_matches_the_packets_of_one_site() {
        let place = Place { device: "eth2".into(), site: 249 };
        assert_eq!(place.handle(), "109:");
        let lines = place.add_class("htb rate 1bit", Side::Destination, Ipv4Addr::new(10, 75, 2, 250));
        let mut lines = lines.lines();
        assert_eq!(lines.next(), Some("class add dev eth2 parent 1: classid 1:109 htb rate 1bit"));
        let filter =
            "filter add dev eth2 parent 1: protocol ip prio 1 u32 match ip dst 10.75.2.250/32 flowid 1:109";
        assert_eq!((lines.next(), lines.next()), (Some(filter), None));
        assert_eq!(
            place.change("netem loss 1%"),
            "qdisc change dev eth2 parent 1:109 handle 109: netem loss 1%\n"
        );
    }
}
