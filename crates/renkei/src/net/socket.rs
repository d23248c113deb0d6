//! What the kernel knows of a connection, and the pace it is told to keep.

use renkei_core::link::controller::Sample;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The pace of a connection nobody slows down.
const UNPACED: u64 = u64::MAX;

/// The kernel's count of acknowledged bytes and its estimate of the round trip; zeros if it does not tell.
pub fn sample(sock: &TcpStream) -> Sample {
    let info = tcp_info(sock);
    Sample { acked_bytes: info.tcpi_bytes_acked, rtt: Duration::from_micros(u64::from(info.tcpi_rtt)) }
}

/// The kernel's estimate of a connection's round trip.
pub fn rtt(sock: &TcpStream) -> Duration {
    sample(sock).rtt
}

/// Whether the peer has closed the connection, or it is broken.
pub fn is_left(sock: &TcpStream) -> bool {
    let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(sock, left)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..)) && fds[0].revents().intersects(left)
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

/// Lets the kernel send at most so many bytes per second, evenly spaced; `None` ends that.
pub fn pace(sock: &TcpStream, bytes_per_s: Option<u64>) {
    let rate = bytes_per_s.unwrap_or(UNPACED);
    let length = size_of::<u64>() as libc::socklen_t;
    let value = (&raw const rate).cast();
    // SAFETY: the descriptor lives as long as `sock`; the kernel reads `length` bytes of `rate`. A kernel before
    // 5.0 refuses 64 bits; the stream is then unpaced, which is what it was.
    unsafe { libc::setsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, value, length) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    #[test]
    fn the_kernel_counts_what_was_acknowledged() {
        let (mut near, mut far) = pair();
        near.write_all(&[1; 5000]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        let end = Instant::now() + Duration::from_secs(5);
        while sample(&near).acked_bytes < 5000 {
            assert!(Instant::now() < end, "{:?}", sample(&near));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_peer_that_leaves_is_noticed() {
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
    fn a_pace_is_kept() {
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
