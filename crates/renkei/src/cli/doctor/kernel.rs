//! Limits of this machine's kernel on a fast connection with a long RTT.
//!
//! A stream moves at most one window per RTT; the window is the part of the socket buffer that the kernel leaves for
//! data (`tcp_adv_win_scale`, half of it by default).

use super::check::Checks;
use crate::cli::quantity::{bit_rate, human, milliseconds};
use std::fmt::Display;
use std::time::Duration;

/// The RTTs for which rates are reported: across a continent, and across the Pacific or by satellite links.
const DISTANCES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(350)];
/// A single stream should reach this rate at the first of them.
const WANTED_BITS: f64 = 1e9;
/// The recommended buffer, here and in docs/operations.md: the BDP of 10 Gbit/s at 100 ms, of which the kernel uses
/// half.
const RECOMMENDED_BUFFER: u64 = 256 << 20;
/// The kernel's default maxima, receiving and sending; smaller values were configured.
const KERNEL_BUFFERS: (u64, u64) = (6 << 20, 4 << 20);
/// Listen backlog: a lower value is too little; the recommended value.
const SOMAXCONN: (u64, u64) = (1024, 4096);
/// Descriptors of a busy PoP, for sessions, streams and open files: a lower value is too little; the recommended
/// value.
const OPEN_FILES: (u64, u64) = (65_536, 1_048_576);
/// The recommended sysctl file of an administrator.
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-renkei.conf";
/// The status of an unsynchronised clock (adjtimex(2)).
const TIME_ERROR: i32 = 5;

/// The maximum autotuned buffers of a TCP socket, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffers {
    receive: u64,
    send: u64,
    /// `tcp_adv_win_scale`.
    scale: i32,
}

impl Buffers {
    /// Reads the limits; `None` where /proc does not have them.
    pub(crate) fn read() -> Option<Self> {
        let third = |name: &str| sysctl(name)?.split_whitespace().nth(2)?.parse().ok();
        let scale = sysctl("net/ipv4/tcp_adv_win_scale").and_then(|text| text.trim().parse().ok());
        Some(Buffers {
            receive: third("net/ipv4/tcp_rmem")?,
            send: third("net/ipv4/tcp_wmem")?,
            scale: scale.unwrap_or(1),
        })
    }

    /// Bytes that one stream can have in flight.
    fn window(&self) -> u64 {
        let buffer = self.receive.min(self.send);
        match self.scale {
            scale @ 1..=31 => buffer - (buffer >> scale),
            scale @ -31..=0 => buffer >> -scale,
            _ => buffer / 2,
        }
    }

    /// Maximum rate of one stream, in bits per second.
    pub(crate) fn single_stream(&self, rtt: Duration) -> f64 {
        self.window() as f64 * 8.0 / rtt.as_secs_f64().max(1e-6)
    }

    /// The recommended settings, the same everywhere.
    pub(crate) fn remedy() -> String {
        format!(
            "for one fast stream over a long way put into {SYSCTL_FILE}: net.core.rmem_max = {RECOMMENDED_BUFFER}, \
             net.core.wmem_max = {RECOMMENDED_BUFFER}, net.ipv4.tcp_rmem = 4096 131072 {RECOMMENDED_BUFFER}, \
             net.ipv4.tcp_wmem = 4096 65536 {RECOMMENDED_BUFFER}; then `sysctl --system`"
        )
    }

    /// Checks whether one stream is fast enough at `rtt`, and reports its rate.
    pub(crate) fn judge(&self, what: &str, rtt: Duration, checks: &mut Checks) {
        let found = format!(
            "buffers up to {} receiving, {} sending: one stream reaches at most {} at {}",
            human(self.receive),
            human(self.send),
            bit_rate(self.single_stream(rtt)),
            milliseconds(rtt)
        );
        let (receive, send) = KERNEL_BUFFERS;
        match self.single_stream(rtt) >= WANTED_BITS {
            true => checks.ok(what, found),
            false if self.receive < receive || self.send < send => checks.warn(what, found, Self::remedy()),
            // renkei uses several streams where one is too slow.
            false => checks.advise(what, found, Self::remedy()),
        }
    }
}

/// Checks this machine.
pub(crate) fn check(checks: &mut Checks) {
    check_buffers(checks);
    check_congestion_control(checks);
    check_queue(checks);
    check_backlog(checks);
    check_open_files(checks);
    check_openat2(checks);
    check_clock(checks);
}

fn sysctl(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/{name}")).ok()
}

fn unknown(checks: &mut Checks, what: &str, source: impl Display) {
    checks.advise(what, format!("{source} cannot be read"), "check it on the host if this is a container");
}

fn check_buffers(checks: &mut Checks) {
    let Some(buffers) = Buffers::read() else {
        return unknown(checks, "TCP buffers", "/proc/sys/net/ipv4/tcp_rmem");
    };
    for rtt in DISTANCES {
        buffers.judge(&format!("TCP buffers at {}", milliseconds(rtt)), rtt, checks);
    }
}

fn check_congestion_control(checks: &mut Checks) {
    let Some(available) = sysctl("net/ipv4/tcp_available_congestion_control") else {
        return unknown(checks, "BBR", "/proc/sys/net/ipv4/tcp_available_congestion_control");
    };
    let available = available.trim();
    match available.split_whitespace().any(|name| name == "bbr") {
        true => checks.ok("BBR", "available"),
        false => checks.advise(
            "BBR",
            format!("the kernel has {available} loaded"),
            "on long paths with loss: modprobe tcp_bbr, and put it into /etc/modules-load.d/renkei.conf",
        ),
    }
}

fn check_queue(checks: &mut Checks) {
    match sysctl("net/core/default_qdisc").as_deref().map(str::trim) {
        Some("fq") => checks.ok("queue", "fq, which paces exactly"),
        Some(other) => checks.advise(
            "queue",
            format!("new interfaces get {other}; streams are paced by TCP's own timers"),
            format!(
                "to pace long fast streams more exactly put net.core.default_qdisc = fq into {SYSCTL_FILE}"
            ),
        ),
        None => unknown(checks, "queue", "/proc/sys/net/core/default_qdisc"),
    }
}

fn check_backlog(checks: &mut Checks) {
    let limit = sysctl("net/core/somaxconn").and_then(|text| text.trim().parse::<u64>().ok());
    match limit {
        Some(limit) if limit >= SOMAXCONN.0 => checks.ok("connection backlog", format!("somaxconn {limit}")),
        Some(limit) => checks.warn(
            "connection backlog",
            format!("somaxconn {limit}"),
            format!("put net.core.somaxconn = {} into {SYSCTL_FILE}", SOMAXCONN.1),
        ),
        None => unknown(checks, "connection backlog", "/proc/sys/net/core/somaxconn"),
    }
}

fn check_open_files(checks: &mut Checks) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.maximum {
        Some(most) if most < OPEN_FILES.0 => checks.warn(
            "open files",
            format!("at most {most}"),
            format!("allow {}: LimitNOFILE in the systemd unit, or /etc/security/limits.conf", OPEN_FILES.1),
        ),
        Some(most) => checks.ok("open files", format!("at most {most}")),
        None => checks.ok("open files", "no limit"),
    }
}

fn check_openat2(checks: &mut Checks) {
    use renkei_store::local::{AccessMode, LocalStore};
    match LocalStore::open(std::path::Path::new("/"), AccessMode::ReadOnly) {
        Ok(_) => checks.ok("storage jail", "the kernel has openat2"),
        Err(error) => checks.error("storage jail", &error),
    }
}

fn check_clock(checks: &mut Checks) {
    // SAFETY: a timex is plain numbers, for which all zeros is a value; modes 0 asks and sets nothing.
    let mut now: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure, which lives as long as the call.
    let state = unsafe { libc::adjtimex(&raw mut now) };
    let synchronise = "set the clock by NTP: timedatectl set-ntp true, or chrony";
    match state {
        -1 => unknown(checks, "clock", "the clock's state"),
        TIME_ERROR => checks.warn("clock", "the kernel takes it for not synchronised", synchronise),
        _ => {
            let error = Duration::from_micros(u64::try_from(now.esterror).unwrap_or(0));
            checks.ok("clock", format!("synchronised, estimated error {}", milliseconds(error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_from_window_and_round_trip() {
        let buffers = Buffers { receive: 6 << 20, send: 4 << 20, scale: 1 };
        assert_eq!(buffers.window(), 2 << 20);
        let rate = buffers.single_stream(Duration::from_millis(100));
        assert!((rate - 167.77e6).abs() < 1e5, "{rate}");
        assert_eq!(Buffers { scale: -2, ..buffers }.window(), 1 << 20);
        assert_eq!(Buffers { scale: 0, ..buffers }.window(), 4 << 20);
    }

    #[test]
    fn recommended_buffers_are_fast_enough() {
        for rtt in DISTANCES {
            let buffers = Buffers { receive: RECOMMENDED_BUFFER, send: RECOMMENDED_BUFFER, scale: 1 };
            assert!(buffers.single_stream(rtt) >= WANTED_BITS);
        }
    }

    #[test]
    fn kernel_defaults_are_fine_and_less_is_not() {
        let level = |receive, send| {
            let mut checks = Checks::default();
            Buffers { receive, send, scale: 1 }.judge("buffers", DISTANCES[0], &mut checks);
            serde_json::to_value(&checks).unwrap()["checks"][0]["level"].clone()
        };
        assert_eq!((level(6 << 20, 4 << 20), level(1 << 20, 4 << 20)), ("ok".into(), "warn".into()));
    }

    #[test]
    fn the_machine_can_be_checked() {
        let mut checks = Checks::default();
        check(&mut checks);
        let json = serde_json::to_value(&checks).unwrap();
        assert!(json["checks"].as_array().unwrap().len() >= 7, "{json}");
    }
}
