//! A TCP proxy between two sites, which can be slow, be closed after a number of bytes, and cut all connections.

#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::federation::Site;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes forwarded at a time; small, so that the rate is even.
const PART_BYTES: usize = 16 << 10;

/// Forwards connections to one address as long as it lives.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    target: SocketAddr,
}

struct State {
    open: Vec<TcpStream>,
    /// Bytes that may still pass; `None` for any number.
    allowance: Option<u64>,
    /// Bytes a second, over all connections; 0 for as fast as it goes.
    rate: u64,
    free_from: Instant,
    passed: u64,
    /// Bytes after which one bit is changed, once.
    flip_after: Option<u64>,
    accepted: u64,
    ended: bool,
}

impl Proxy {
    /// A proxy to `site`'s port.
    pub fn to(site: &Site) -> Proxy {
        Proxy::to_address(site.address)
    }

    /// A proxy to an address.
    pub fn to_address(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            open: Vec::new(),
            allowance: None,
            rate: 0,
            free_from: Instant::now(),
            passed: 0,
            flip_after: None,
            accepted: 0,
            ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), target });
        let accepting = shared.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        Proxy { address, shared }
    }

    /// Lets `client` reach `site` through this proxy from now on.
    pub fn put_between(&self, client: &Site, site: &Site) {
        let card = client.dir().join("proxied.card");
        let exported = site
            .command()
            .env("RENKEI_ENDPOINTS", self.address.to_string())
            .args(["trust", "export"])
            .output();
        std::fs::write(&card, exported.unwrap().stdout).unwrap();
        client.ok(&["trust", "add", "--yes", card.to_str().unwrap()]);
    }

    /// Lets only so many more bytes pass.
    pub fn allow(&self, bytes: u64) {
        self.shared.change(|state| state.allowance = Some(bytes));
    }

    /// Lets everything pass.
    pub fn open(&self) {
        self.shared.change(|state| state.allowance = None);
    }

    /// Sets the rate in bytes a second.
    pub fn set_rate(&self, rate: u64) {
        self.shared.change(|state| state.rate = rate);
    }

    /// Waits until nothing more may pass.
    pub fn wait_until_used_up(&self) {
        let state = self.shared.lock();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, Duration::from_secs(60), |state| state.allowance != Some(0));
        assert!(!waited.unwrap().1.timed_out(), "too few bytes came");
    }

    /// Changes one bit after so many more bytes.
    pub fn flip_after(&self, bytes: u64) {
        self.shared.change(|state| state.flip_after = Some(state.passed + bytes));
    }

    /// Bytes that passed so far.
    pub fn passed(&self) -> u64 {
        self.shared.lock().passed
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// Cuts all connections that are open.
    pub fn cut(&self) {
        self.shared.change(State::cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.ended = true;
            state.cut();
        });
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn cut(&mut self) {
        for sock in self.open.drain(..) {
            let _ = sock.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for sock in listener.incoming() {
            if self.lock().ended {
                return;
            }
            let Ok(sock) = sock else { continue };
            let Ok(onward) = TcpStream::connect(self.target) else { continue };
            let _ = (sock.set_nodelay(true), onward.set_nodelay(true));
            let mut state = self.lock();
            state.accepted += 1;
            for (from, to) in [(&sock, &onward), (&onward, &sock)] {
                state.open.push(from.try_clone().unwrap());
                let (shared, from, to) = (self.clone(), from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || shared.forward(from, to));
            }
        }
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut part = vec![0; PART_BYTES];
        while let Ok(count @ 1..) = from.read(&mut part) {
            self.flip(&mut part[..count]);
            if !self.wait_for_room(count) || to.write_all(&part[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
    }

    fn flip(&self, part: &mut [u8]) {
        let mut state = self.lock();
        // In a full part, so that it is data and no handshake.
        if state.flip_after.is_some_and(|at| state.passed >= at) && part.len() == PART_BYTES {
            state.flip_after = None;
            part[PART_BYTES / 2] ^= 1;
        }
    }

    /// Waits until `count` bytes may pass; false if the proxy has ended.
    fn wait_for_room(&self, count: usize) -> bool {
        let mut state = self.lock();
        while !state.ended && state.allowance == Some(0) {
            state = self.changed.wait(state).unwrap();
        }
        state.allowance = state.allowance.map(|left| left.saturating_sub(count as u64));
        state.passed += count as u64;
        if state.allowance == Some(0) {
            self.changed.notify_all();
        }
        let go = state.free_from.max(Instant::now());
        if state.rate > 0 {
            state.free_from = go + Duration::from_secs_f64(count as f64 / state.rate as f64);
        }
        let ended = state.ended;
        drop(state);
        std::thread::sleep(go.saturating_duration_since(Instant::now()));
        !ended
    }
}
