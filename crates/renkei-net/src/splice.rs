//! Relays bytes between two connections without copying them to user space: `splice(2)` through a pipe each way.
//!
//! One thread serves a circuit, both directions. The bytes in flight in the pipes are bounded, a side that does not
//! read holds the other back by TCP's flow control (back-pressure), and the end of one direction is relayed as a
//! half-close. When one connection breaks, the other is shut down too.

use super::tls::lost;
use renkei_core::error::{Code, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Size of a pipe, if the kernel grants it: a quarter of a megabyte keeps the calls few.
const PIPE_BYTES: usize = 256 << 10;
/// Interval at which an idle circuit checks whether it was stopped.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// One direction.
struct Half<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    pipe: (OwnedFd, OwnedFd),
    /// Bytes in the pipe.
    held: usize,
    /// `from` has reached its end.
    ended: bool,
    /// The end was relayed to `to`.
    told: bool,
}

/// Outcome of an attempt to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Some(u64),
    Nothing,
}

impl<'a> Half<'a> {
    fn new(from: &'a TcpStream, to: &'a TcpStream) -> Result<Self, Error> {
        let pipe = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)
            .map_err(|error| Error::new(Code::TooManyOpenFiles, "open a pipe", "circuit", error))?;
        // A smaller pipe works too.
        let _ = fcntl_setpipe_size(&pipe.1, PIPE_BYTES);
        Ok(Half { from, to, pipe, held: 0, ended: false, told: false })
    }

    /// Moves the bytes that are available now.
    fn pass(&mut self) -> Result<Moved, Error> {
        if !self.ended && self.held < PIPE_BYTES {
            match splice_some(self.from, &self.pipe.1)? {
                Some(0) => self.ended = true,
                Some(count) => self.held += count,
                None => {}
            }
        }
        let mut moved = 0;
        while self.held > 0 {
            match splice_some(&self.pipe.0, self.to)? {
                Some(count @ 1..) => {
                    self.held -= count;
                    moved += count as u64;
                }
                _ => break,
            }
        }
        if self.ended && self.held == 0 && !self.told {
            self.told = true;
            // The peer may have closed already.
            let _ = self.to.shutdown(Shutdown::Write);
        }
        Ok(if moved > 0 { Moved::Some(moved) } else { Moved::Nothing })
    }

    fn wants(&self) -> (PollFlags, PollFlags) {
        let reads = if self.ended || self.held > 0 { PollFlags::empty() } else { PollFlags::IN };
        (reads, if self.held > 0 { PollFlags::OUT } else { PollFlags::empty() })
    }
}

fn splice_some(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd) -> Result<Option<usize>, Error> {
    match splice(from, None, to, None, PIPE_BYTES, SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(lost("pass on", &error.into())),
    }
}

/// Relays bytes both ways until both directions have ended, one connection breaks, nothing moves for `idle`, or
/// `is_stopped`; `on_bytes` gets the number of bytes relayed.
pub fn couple(
    near: &TcpStream,
    far: &TcpStream,
    idle: Duration,
    is_stopped: impl Fn() -> bool,
    on_bytes: impl Fn(u64),
) -> Result<(), Error> {
    let outcome = pass_both(near, far, idle, is_stopped, on_bytes);
    for sock in [near, far] {
        let _ = sock.shutdown(Shutdown::Both);
    }
    outcome
}

fn pass_both(
    near: &TcpStream,
    far: &TcpStream,
    idle: Duration,
    is_stopped: impl Fn() -> bool,
    on_bytes: impl Fn(u64),
) -> Result<(), Error> {
    for sock in [near, far] {
        sock.set_nonblocking(true).map_err(|error| lost("pass on", &error))?;
    }
    let mut halves = [Half::new(near, far)?, Half::new(far, near)?];
    let mut moved_at = Instant::now();
    while !halves.iter().all(|half| half.told) {
        let mut any = false;
        for half in &mut halves {
            if let Moved::Some(count) = half.pass()? {
                on_bytes(count);
                any = true;
            }
        }
        if any {
            moved_at = Instant::now();
            continue;
        }
        if is_stopped() {
            return Err(Error::new(Code::Cancelled, "pass on", "circuit", "it was closed here"));
        }
        if moved_at.elapsed() >= idle {
            let cause = format!("nothing passed for {} s", idle.as_secs());
            return Err(Error::new(Code::Stalled, "pass on", "circuit", cause));
        }
        wait(near, far, &halves)?;
    }
    Ok(())
}

fn wait(near: &TcpStream, far: &TcpStream, halves: &[Half<'_>; 2]) -> Result<(), Error> {
    let [(near_in, far_out), (far_in, near_out)] = [halves[0].wants(), halves[1].wants()];
    let mut fds = [PollFd::new(near, near_in | near_out), PollFd::new(far, far_in | far_out)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_EVERY.subsec_nanos()) };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(lost("pass on", &error.into())),
    }
    // POLLERR is reported by every poll: without this check, a broken connection that is only written to would spin.
    match fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR)) {
        true => Err(Error::new(Code::ConnectionLost, "pass on", "circuit", "one side broke off")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    /// Couples two connections and passes their outer ends to `work`; returns the number of bytes and the outcome.
    fn coupled(idle: Duration, work: impl FnOnce(TcpStream, TcpStream)) -> (u64, Result<(), Error>) {
        let ((left, near), (right, far)) = (pair(), pair());
        let passed = AtomicU64::new(0);
        let on_bytes = |count| {
            passed.fetch_add(count, Ordering::Relaxed);
        };
        let outcome = thread::scope(|scope| {
            let circuit = scope.spawn(|| couple(&near, &far, idle, || false, on_bytes));
            work(left, right);
            circuit.join().unwrap()
        });
        (passed.into_inner(), outcome)
    }

    #[test]
    fn bytes_and_ends_are_forwarded_both_ways() {
        let content: Vec<u8> = (0..3 << 20).map(|n: u32| ((n * 31) >> 3) as u8).collect();
        let (passed, outcome) = coupled(Duration::from_secs(20), |mut left, mut right| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    left.write_all(&content).unwrap();
                    left.shutdown(Shutdown::Write).unwrap();
                    let mut answer = Vec::new();
                    left.read_to_end(&mut answer).unwrap();
                    assert_eq!(answer, b"thank you");
                });
                let mut received = Vec::new();
                right.read_to_end(&mut received).unwrap();
                assert!(received == content);
                right.write_all(b"thank you").unwrap();
                right.shutdown(Shutdown::Write).unwrap();
            });
        });
        assert_eq!((passed, outcome), ((3 << 20) + 9, Ok(())));
    }

    #[test]
    fn when_one_side_breaks_the_other_ends() {
        let (_, outcome) = coupled(Duration::from_secs(20), |left, mut right| {
            socket2::SockRef::from(&left).set_linger(Some(Duration::ZERO)).unwrap();
            drop(left);
            assert!(matches!(right.read(&mut [0; 8]), Ok(0) | Err(_)));
        });
        assert_eq!(outcome.unwrap_err().code, Code::ConnectionLost);
    }

    #[test]
    fn idle_and_stopped_circuits_end() {
        let (_, outcome) = coupled(Duration::from_millis(50), |_left, mut right| {
            assert_eq!(right.read(&mut [0; 8]).unwrap(), 0);
        });
        assert_eq!(outcome.unwrap_err().code, Code::Stalled);
        let ((_left, near), (_right, far)) = (pair(), pair());
        let stop = AtomicBool::new(true);
        let outcome = couple(&near, &far, LOOK_EVERY * 9, || stop.load(Ordering::Relaxed), |_| ());
        assert_eq!(outcome.unwrap_err().code, Code::Cancelled);
    }
}
