//! Kernel metrics of a connection, and its pacing and congestion control.

use renkei_core::link::controller::Sample;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The pacing rate of an unpaced connection.
const UNPACED: u64 = u64::MAX;

/// The kernel's TCP counters of a connection; zeros if unavailable.
pub fn sample(sock: &TcpStream) -> Sample {
    let info = tcp_info(sock);
    let micros = |number: u32| Duration::from_micros(u64::from(number));
    let bytes = |packets: u32| u64::from(packets) * u64::from(info.tcpi_snd_mss);
    // Retransmitting a burst of losses takes seconds, and the path may have recovered by then: a loss counts once
    // detected.
    let not_yet_resent = bytes(info.tcpi_lost.saturating_sub(info.tcpi_retrans));
    Sample {
        delivered_bytes: bytes(info.tcpi_delivered),
        lost_bytes: info.tcpi_bytes_retrans + not_yet_resent,
        rtt: micros(info.tcpi_rtt),
        min_rtt: micros(info.tcpi_min_rtt),
    }
}

/// The kernel's RTT estimate of a connection.
pub fn rtt(sock: &TcpStream) -> Duration {
    sample(sock).rtt
}

/// Whether the peer has closed the connection, or it is broken.
pub fn is_left(sock: &TcpStream) -> bool {
    let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(sock, left)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..)) && fds[0].revents().intersects(left)
}

/// Sets TCP_USER_TIMEOUT: the connection fails when sent data is unacknowledged for so long; `None` restores the
/// default.
pub fn give_up_after(sock: &TcpStream, silence: Option<Duration>) {
    let ms = silence.map_or(0, |silence| libc::c_uint::try_from(silence.as_millis()).unwrap_or(0));
    set(sock, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &ms);
}

/// Enables TCP keep-alive on a connection, so that a vanished peer is detected within two minutes.
pub fn keep_alive(sock: &TcpStream) {
    let probes = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    // Without it, the limit on idle circuits closes the connection later.
    let _ = socket2::SockRef::from(sock).set_tcp_keepalive(&probes);
}

fn tcp_info(sock: &TcpStream) -> libc::tcp_info {
    // SAFETY: tcp_info is plain numbers, for which all zeros is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let target = (&raw mut info).cast();
    // SAFETY: the descriptor lives as long as `sock`; the kernel writes at most `length` bytes to `info`, and an
    // older kernel fewer, which leaves zeros.
    unsafe { libc::getsockopt(sock.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, target, &raw mut length) };
    info
}

/// Whether the environment disables pacing, to measure its effect.
fn is_unpaced() -> bool {
    static TOLD: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("RENKEI_UNPACED").is_some_and(|told| told == "1"));
    *TOLD
}

/// Sets the pacing rate in bytes per second; `None` removes it.
pub fn pace(sock: &TcpStream, bytes_per_s: Option<u64>) {
    if is_unpaced() {
        return;
    }
    // A kernel before 5.0 refuses 64 bits; the stream then stays unpaced.
    set(sock, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes_per_s.unwrap_or(UNPACED));
}

/// Segments of a bounded write.
const BOUNDED_SEGMENTS: usize = 4;

/// Most bytes of a stream's data that the kernel may hand to the device at once; shared by its writer and its pacer.
#[derive(Clone, Debug, Default)]
pub struct WriteBound(Arc<AtomicUsize>);

impl WriteBound {
    /// Bounds the writes to a connection to a few segments, or frees them.
    pub fn set(&self, sock: &TcpStream, is_bounded: bool) {
        if !is_unpaced() {
            let bytes = if is_bounded { BOUNDED_SEGMENTS * tcp_info(sock).tcpi_snd_mss as usize } else { 0 };
            self.0.store(bytes, Ordering::Relaxed);
        }
    }

    /// Writes all of `bytes`. Bounded writes are records of their own, which the kernel does not join.
    pub(super) fn write_all(&self, mut sock: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        let most = self.0.load(Ordering::Relaxed);
        if most == 0 {
            return sock.write_all(bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let part = &rest[..rest.len().min(most)];
            match send(sock, part, SendFlags::EOR | SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Unsent bytes kept in the kernel: two writes of a stream, so that the connection never waits for the thread, and
/// the remaining data can still be given to another stream.
const UNSENT_BYTES: libc::c_int = 1 << 20;
/// Send buffer for a path whose BDP per stream exceeds the kernel's own limit.
const SEND_BUFFER_BYTES: libc::c_int = 256 << 20;

/// Whether this process may use BBR, which does not take loss for congestion.
pub fn bears_loss() -> bool {
    static BEARS: LazyLock<bool> = LazyLock::new(|| {
        let sock = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        sock.is_ok_and(|sock| set(&TcpStream::from(sock), libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"bbr"))
    });
    *BEARS
}

/// Prepares a connection that will send much data: BBR, which does not take loss for congestion, and a send buffer of
/// the BDP. Settings that the kernel or the process's privileges do not allow are left unchanged.
pub fn prepare_sending(sock: &TcpStream, far: bool) {
    set(sock, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &UNSENT_BYTES);
    if !far {
        return;
    }
    set(sock, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"bbr");
    // Setting the buffer disables the kernel's autotuning: only where that gives no less.
    if !set(sock, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES)
        && allowed_buffer() > tuned_buffer()
    {
        set(sock, libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER_BYTES);
    }
}

/// Restarts BBR on a connection that uses it: it begins in STARTUP again, with the kernel's congestion window and
/// minimum RTT. That avoids PROBE_RTT, which BBR enters every 10 s to look for a shorter RTT (half a second without
/// data on a long path, and on all streams at once, for they began together), and lets it double its rate again where
/// a pacing rate that was too low ended STARTUP. For streams that are paced, or were until now.
pub fn restart_bbr(sock: &TcpStream) {
    if has_bbr(sock) {
        set(sock, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"reno");
        set(sock, libc::IPPROTO_TCP, libc::TCP_CONGESTION, b"bbr");
    }
}

/// Replaces BBR by a loss-based congestion control: Reno, which doubles its window until the first loss whatever the
/// RTTs are, and CUBIC from then on.
pub fn leave_bbr(sock: &TcpStream, has_lost: bool) {
    let [now, next]: [&[u8]; 2] = if has_lost { [b"reno\0", b"cubic"] } else { [b"bbr\0", b"reno"] };
    if congestion_control(sock).starts_with(now) {
        set(sock, libc::IPPROTO_TCP, libc::TCP_CONGESTION, next);
    }
}

/// Whether a connection's congestion control is BBR.
pub fn has_bbr(sock: &TcpStream) -> bool {
    congestion_control(sock).starts_with(b"bbr\0")
}

/// The name of a connection's congestion control, padded with zeros.
fn congestion_control(sock: &TcpStream) -> [u8; 16] {
    let mut name = [0; 16];
    let mut length = name.len() as libc::socklen_t;
    let (level, target) = (libc::IPPROTO_TCP, name.as_mut_ptr().cast());
    // SAFETY: the descriptor lives as long as `sock`; the kernel writes at most `length` bytes to `name`.
    unsafe { libc::getsockopt(sock.as_raw_fd(), level, libc::TCP_CONGESTION, target, &raw mut length) };
    name
}

fn set<T: ?Sized>(sock: &TcpStream, level: libc::c_int, option: libc::c_int, value: &T) -> bool {
    let length = size_of_val(value) as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the descriptor lives as long as `sock`; the kernel reads `length` bytes of `value`, plain numbers or
    // text, and refuses options that it does not know.
    unsafe { libc::setsockopt(sock.as_raw_fd(), level, option, value, length) == 0 }
}

/// Limit of a send buffer set by a process: the kernel doubles the allowed value.
fn allowed_buffer() -> u64 {
    2 * kernel_number("net/core/wmem_max", 0)
}

/// Limit of an autotuned send buffer.
fn tuned_buffer() -> u64 {
    kernel_number("net/ipv4/tcp_wmem", 2)
}

fn kernel_number(setting: &str, column: usize) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/{setting}")).unwrap_or_default();
    text.split_whitespace().nth(column).and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::time::Instant;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    #[test]
    fn the_kernel_counts_received_bytes() {
        let (mut near, mut far) = pair();
        near.write_all(&[1; 5000]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        while sample(&near).delivered_bytes < 5000 {
            assert!(Instant::now() < end, "{:?}", sample(&near));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_closed_connection_is_detected() {
        let (near, far) = pair();
        assert!(!is_left(&near));
        drop(far);
        let end = Instant::now() + Duration::from_secs(5);
        while !is_left(&near) {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
    }

    #[test]
    fn bounded_writes_carry_all() {
        let (near, mut far) = pair();
        let (bound, sent) = (WriteBound::default(), (0..300_000u32).map(|at| at as u8).collect::<Vec<_>>());
        bound.set(&near, true);
        let most = bound.0.load(Ordering::Relaxed);
        assert!(most > 0 && most < 1 << 20, "{most}");
        let mut read = vec![0; 2 * sent.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bound.write_all(&near, &sent).unwrap();
                bound.set(&near, false);
                bound.write_all(&near, &sent).unwrap();
            });
            far.read_exact(&mut read).unwrap();
        });
        assert!(read == [&sent[..], &sent[..]].concat());
    }

    #[test]
    fn a_pacing_rate_is_kept() {
        let (mut near, mut far) = pair();
        pace(&near, Some(4 << 20));
        let reader = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
        let started = Instant::now();
        near.write_all(&vec![0; 4 << 20]).unwrap();
        drop(near);
        assert_eq!(reader.join().unwrap(), 4 << 20);
        let took = started.elapsed();
        assert!(took > Duration::from_millis(500), "4 MiB at 4 MiB/s took {took:?}");
    }
}
