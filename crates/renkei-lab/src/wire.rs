//! The wire: one thread that moves frames between the sites' interfaces by the links' rules.
//!
//! A frame read from one port is offered to the link to the port with its destination address, on the same network;
//! broadcasts and unknown addresses go to all ports of the network. When it is due it is written to the other port,
//! which passes it through the receiving kernel's TCP at once, so that a large part of the receiver's cost is
//! accounted to this thread. Frames are read whole, held once and written from where they were read to.
//!
//! Guarantees: order is kept on each link, except for reordered packets; memory in flight is bounded by
//! [`WireOptions::memory_bytes`], and frames beyond it are dropped and counted. Under load frames that come within
//! `MERGE` of one another share a wake-up, so one is late by about that much, never early. Non-goals: firewalls and
//! address translation, which the kernel does in a site's namespace.

use super::buffers::Buffers;
use super::tap::Tap;
use renkei_core::error::{Code, Error};
use renkei_core::lab::link::{Link, LinkCounters};
use renkei_core::lab::params::LinkParams;
use renkei_core::lab::segment::{self, MAX_BUFFER, Shape, VNET_HEADER};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, poll};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Batching delay of a wake-up under load.
const MERGE: Duration = Duration::from_micros(50);
/// Load means so many frames in a [`LOAD_WINDOW_NS`].
const MUCH_FRAMES: usize = 30;
/// The window over which the load is measured.
const LOAD_WINDOW_NS: u64 = 1_000_000;
/// A round that moved so many frames continues without waiting.
const BUSY_FRAMES: usize = 16;
/// Batch of frames read from one port before the others have their turn.
const READS: usize = 16;
/// Batch of frames written to one port before reading again.
const WRITES: usize = 32;
/// Real-time priority: the wire pre-empts programs that keep the processor busy, as a real one would not wait for
/// them.
const PRIORITY: libc::c_int = 1;
/// Not due.
const NEVER: u64 = u64::MAX;
/// The event of a command; those of ports have their index.
const COMMAND: u64 = u64::MAX;

/// A site's interface on one network.
#[derive(Debug)]
pub struct Port {
    /// The interface.
    pub tap: Tap,
    /// Its hardware address, the destination of frames.
    pub mac: [u8; 6],
    /// Frames cross between ports of the same network only.
    pub network: usize,
}

/// One direction of a link between two ports, by their index in the list of ports.
#[derive(Clone, Debug)]
pub struct LinkEnds {
    /// The port whose frames it carries.
    pub from: usize,
    /// The port they go to.
    pub to: usize,
    /// Its parameters.
    pub params: LinkParams,
}

/// Options of the whole wire.
#[derive(Clone, Debug)]
pub struct WireOptions {
    /// Limit of memory for frames in flight on all links together.
    pub memory_bytes: usize,
    /// The random seed.
    pub seed: u64,
}

impl Default for WireOptions {
    fn default() -> Self {
        // Twice 87 MB in flight each way, with room for buffers that are not full.
        WireOptions { memory_bytes: 1 << 30, seed: 1 }
    }
}

/// The counters of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// Frames the site sent.
    pub sent_frames: u64,
    /// Frames the site received.
    pub received_frames: u64,
    /// Frames its interface refused: it was down or out of memory.
    pub refused_frames: u64,
    /// Frames without a link to their destination, or malformed ones.
    pub unroutable_frames: u64,
    /// Whether the interface is gone with its namespace.
    pub gone: bool,
}

/// All counters at one time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the wire started.
    pub elapsed: Duration,
    /// The wire's CPU time, including the kernel's work on its behalf.
    pub cpu: Duration,
    /// Memory of frames in flight.
    pub memory_bytes: usize,
    /// In the order of the links at the start.
    pub links: Vec<LinkCounters>,
    /// In the order of the ports at the start.
    pub ports: Vec<PortCounters>,
}

enum Command {
    Set(usize, Box<LinkParams>, Sender<()>),
    Snapshot(Sender<Snapshot>),
    Stop,
}

/// A running wire; it stops when this is dropped.
#[derive(Debug)]
pub struct Wire {
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    links: usize,
}

impl Wire {
    /// Starts moving frames.
    ///
    /// # Errors
    /// `UsageInvalid` if a link names an unknown port, itself or another network, or has invalid parameters;
    /// `SystemCall` if the kernel refuses a descriptor.
    pub fn start(ports: Vec<Port>, links: Vec<LinkEnds>, options: WireOptions) -> Result<Wire, Error> {
        check(&ports, &links)?;
        let (bell, count, (commands, inbox)) = (Arc::new(new_bell()?), links.len(), channel());
        let epoll = watch(&ports, &bell)?;
        let wake = Arc::clone(&bell);
        let run = move || Worker::new(ports, links, &options, epoll, wake, inbox).run();
        let thread = std::thread::Builder::new().name("wire".into()).spawn(run);
        let thread = thread.map_err(|cause| Error::new(Code::SystemCall, "spawn", "wire", cause))?;
        Ok(Wire { commands, bell, thread: Some(thread), links: count })
    }

    /// Changes a link, by its index in the list of links; returns when the change is in effect.
    ///
    /// # Errors
    /// `UsageInvalid` for invalid parameters, `Internal` if the wire has ended.
    pub fn set(&self, link: usize, params: LinkParams) -> Result<(), Error> {
        params
            .check()
            .map_err(|cause| Error::new(Code::UsageInvalid, "set", format!("link {link}"), cause))?;
        if link >= self.links {
            return Err(Error::new(
                Code::UsageInvalid,
                "set",
                format!("link {link}"),
                "there is no such link",
            ));
        }
        self.ask(|reply| Command::Set(link, Box::new(params), reply))
    }

    /// A snapshot of all counters.
    ///
    /// # Errors
    /// `Internal` if the wire has ended.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.ask(Command::Snapshot)
    }

    /// Stops the wire; its interfaces are removed.
    pub fn stop(self) {}

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, Error> {
        let ended = || Error::new(Code::Internal, "command", "wire", "the wire has ended");
        let (reply, answer) = channel();
        self.commands.send(command(reply)).map_err(|_| ended())?;
        self.ring();
        answer.recv().map_err(|_| ended())
    }

    fn ring(&self) {
        // It can fail only when the counter is full, and then the wire has been woken.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn check(ports: &[Port], links: &[LinkEnds]) -> Result<(), Error> {
    for (index, link) in links.iter().enumerate() {
        let wrong = |cause: &str| Error::new(Code::UsageInvalid, "start", format!("link {index}"), cause);
        let (Some(from), Some(to)) = (ports.get(link.from), ports.get(link.to)) else {
            return Err(wrong("there is no such port"));
        };
        if link.from == link.to || from.network != to.network {
            return Err(wrong("a link joins two ports of one network"));
        }
        link.params.check().map_err(|cause| wrong(&cause))?;
    }
    Ok(())
}

fn refused(op: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::new(Code::SystemCall, op, "wire", errno)
}

fn new_bell() -> Result<OwnedFd, Error> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))
}

fn watch(ports: &[Port], bell: &OwnedFd) -> Result<OwnedFd, Error> {
    let watched = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused("epoll"))?;
    let event = |data| epoll::EventData::new_u64(data);
    epoll::add(&watched, bell, event(COMMAND), epoll::EventFlags::IN).map_err(refused("epoll"))?;
    for (index, port) in ports.iter().enumerate() {
        epoll::add(&watched, &port.tap, event(index as u64), epoll::EventFlags::IN)
            .map_err(refused("epoll"))?;
    }
    Ok(watched)
}

/// A link with its destination port.
struct Line {
    link: Link<Vec<u8>>,
    to: usize,
}

/// The ports of one network, and the links between them.
#[derive(Default)]
struct Routes {
    /// Port by network and address.
    ports: HashMap<(usize, [u8; 6]), usize>,
    /// For each port, the link to each other port it reaches.
    links: Vec<Vec<Option<usize>>>,
}

impl Routes {
    fn new(ports: &[Port], links: &[LinkEnds]) -> Routes {
        let mut table = vec![vec![None; ports.len()]; ports.len()];
        for (index, link) in links.iter().enumerate() {
            table[link.from][link.to] = Some(index);
        }
        let port = |(index, port): (usize, &Port)| ((port.network, port.mac), index);
        Routes { ports: ports.iter().enumerate().map(port).collect(), links: table }
    }

    /// The port of an address; none for a broadcast or an unknown one.
    fn port(&self, network: usize, mac: &[u8]) -> Option<usize> {
        let mac = <[u8; 6]>::try_from(mac).ok()?;
        self.ports.get(&(network, mac)).copied()
    }
}

/// Frames moved in the last complete window, and in the current one.
#[derive(Default)]
struct Load {
    until: u64,
    last: usize,
    this: usize,
}

impl Load {
    fn add(&mut self, now: u64, frames: usize) {
        if now >= self.until {
            // After a pause the last window does not count.
            self.last = if now < self.until + LOAD_WINDOW_NS { self.this } else { 0 };
            (self.this, self.until) = (0, now + LOAD_WINDOW_NS);
        }
        self.this += frames;
    }

    fn is_much(&self) -> bool {
        self.last.max(self.this) >= MUCH_FRAMES
    }
}

/// The state of the thread.
struct Worker {
    ports: Vec<Port>,
    lines: Vec<Line>,
    /// For each link the due time of its next frame.
    dues: Vec<u64>,
    routes: Routes,
    buffers: Buffers,
    counters: Vec<PortCounters>,
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
    inbox: Receiver<Command>,
    began: Instant,
    stopping: bool,
}

impl Worker {
    fn new(
        ports: Vec<Port>,
        links: Vec<LinkEnds>,
        options: &WireOptions,
        epoll: OwnedFd,
        bell: Arc<OwnedFd>,
        inbox: Receiver<Command>,
    ) -> Worker {
        let routes = Routes::new(&ports, &links);
        let line = |(index, link): (usize, LinkEnds)| Line {
            link: Link::new(link.params, options.seed.wrapping_add(index as u64)),
            to: link.to,
        };
        Worker {
            dues: vec![NEVER; links.len()],
            counters: vec![PortCounters::default(); ports.len()],
            lines: links.into_iter().enumerate().map(line).collect(),
            ports,
            routes,
            buffers: Buffers::new(options.memory_bytes),
            epoll,
            bell,
            inbox,
            began: Instant::now(),
            stopping: false,
        }
    }

    /// Nanoseconds since the wire started.
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn run(mut self) {
        // Timers as precise as the clock; where the kernel refuses, the wire works, only less precisely.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        go_before_others();
        let mut events = Vec::with_capacity(self.ports.len() + 1);
        let (mut moved, mut load) = (0, Load::default());
        while !self.stopping {
            if load.is_much() && (1..BUSY_FRAMES).contains(&moved) {
                std::thread::sleep(MERGE.min(self.time_left().unwrap_or(MERGE)));
            }
            self.wait(&mut events, moved >= BUSY_FRAMES);
            moved = self.handle(&events) + self.deliver();
            load.add(self.now(), moved);
        }
    }

    /// Waits until a port has a frame, a frame is due or a command came; with `is_busy` it polls without waiting.
    fn wait(&self, events: &mut Vec<epoll::Event>, is_busy: bool) {
        if !is_busy {
            let timeout = self.time_left().map(|left| Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            // Unlike epoll's own, this timeout counts nanoseconds on every kernel.
            let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref());
        }
        events.clear();
        // An interrupted call returns nothing; the next round polls again.
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&none));
    }

    /// Time until the next frame is due.
    fn time_left(&self) -> Option<Duration> {
        let next = self.dues.iter().copied().min().filter(|due| *due != NEVER)?;
        Some(Duration::from_nanos(next.saturating_sub(self.now())))
    }

    /// Reads frames from the ports; returns their number.
    fn handle(&mut self, events: &[epoll::Event]) -> usize {
        let mut moved = 0;
        for event in events {
            match { event.data }.u64() {
                COMMAND => self.handle_commands(),
                port => moved += self.receive(port as usize),
            }
        }
        moved
    }

    fn receive(&mut self, port: usize) -> usize {
        for count in 0..READS {
            let mut frame = self.buffers.take(MAX_BUFFER);
            match self.ports[port].tap.read(&mut frame) {
                Ok(true) => self.forward(port, frame),
                Ok(false) => {
                    self.buffers.give(frame);
                    return count;
                }
                Err(_) => {
                    self.buffers.give(frame);
                    self.on_gone(port);
                    return count;
                }
            }
        }
        READS
    }

    /// A port whose namespace is gone is not polled again.
    fn on_gone(&mut self, port: usize) {
        self.counters[port].gone = true;
        let _ = epoll::delete(&self.epoll, &self.ports[port].tap);
    }

    // ---- from port to link -------------------------------------------------------------------------------------------

    fn forward(&mut self, from: usize, frame: Vec<u8>) {
        self.counters[from].sent_frames += 1;
        let frame = self.buffers.shrink(frame);
        let Some(shape) = Shape::parse(&frame) else {
            self.counters[from].unroutable_frames += 1;
            return self.buffers.give(frame);
        };
        let network = self.ports[from].network;
        match self.routes.port(network, &frame[VNET_HEADER..VNET_HEADER + 6]) {
            Some(to) => self.forward_to(from, to, &shape, frame),
            None => self.flood(from, &shape, frame),
        }
    }

    fn forward_to(&mut self, from: usize, to: usize, shape: &Shape, frame: Vec<u8>) {
        match self.routes.links[from][to] {
            Some(link) => self.offer(link, shape, frame),
            None => {
                self.counters[from].unroutable_frames += 1;
                self.buffers.give(frame);
            }
        }
    }

    fn flood(&mut self, from: usize, shape: &Shape, frame: Vec<u8>) {
        for to in 0..self.ports.len() {
            if let Some(link) = self.routes.links[from][to] {
                let mut copy = self.buffers.take(frame.len());
                copy.extend_from_slice(&frame);
                self.offer(link, shape, copy);
            }
        }
        self.buffers.give(frame);
    }

    fn offer(&mut self, link: usize, shape: &Shape, frame: Vec<u8>) {
        let (now, buffers) = (self.now(), &mut self.buffers);
        let line = &mut self.lines[link].link;
        if !buffers.has_room(frame.len()) {
            line.on_dropped(shape.segments);
            return buffers.give(frame);
        }
        let used = line.offer(now, shape, frame, |frame, packets| {
            let mut part = buffers.take(shape.cut_length(&packets));
            segment::cut(frame, shape, packets, &mut part);
            part
        });
        self.dues[link] = line.next_due().unwrap_or(NEVER);
        if let Some(frame) = used {
            self.buffers.give(frame);
        }
    }

    // ---- from link to port -------------------------------------------------------------------------------------------

    /// Writes the frames that are due; returns their number.
    fn deliver(&mut self) -> usize {
        let mut moved = 0;
        for link in 0..self.lines.len() {
            if self.dues[link] != NEVER && self.dues[link] <= self.now() {
                moved += self.deliver_from(link);
            }
        }
        moved
    }

    fn deliver_from(&mut self, link: usize) -> usize {
        let (now, line) = (self.now(), &mut self.lines[link]);
        let (tap, counters) = (&self.ports[line.to].tap, &mut self.counters[line.to]);
        let mut moved = 0;
        while moved < WRITES
            && let Some(frame) = line.link.poll_arrived(now)
        {
            let taken = tap.write(&frame);
            counters.received_frames += u64::from(taken);
            counters.refused_frames += u64::from(!taken);
            self.buffers.give(frame);
            moved += 1;
        }
        self.dues[link] = line.link.next_due().unwrap_or(NEVER);
        moved
    }

    // ---- commands ----------------------------------------------------------------------------------------------------

    fn handle_commands(&mut self) {
        // The eventfd is only a counter; the commands are in the inbox.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Set(link, params, reply) => {
                    self.set(link, *params);
                    let _ = reply.send(());
                }
                Command::Snapshot(reply) => drop(reply.send(self.snapshot())),
                Command::Stop => self.stopping = true,
            }
        }
    }

    fn set(&mut self, link: usize, params: LinkParams) {
        let (now, buffers) = (self.now(), &mut self.buffers);
        let line = &mut self.lines[link].link;
        line.set(now, params, |frame| buffers.give(frame));
        self.dues[link] = line.next_due().unwrap_or(NEVER);
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.now();
        Snapshot {
            elapsed: Duration::from_nanos(now),
            cpu: thread_cpu(),
            memory_bytes: self.buffers.used(),
            links: self.lines.iter().map(|line| line.link.counters(now)).collect(),
            ports: self.counters.clone(),
        }
    }
}

/// Makes this thread a real-time one, at the lowest such priority. It sleeps whenever nothing is due, and the kernel
/// (real-time throttling) leaves other programs their share even if it did not.
fn go_before_others() {
    let param = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads one sched_param at the address; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const param) };
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec at the address, and knows this clock since 2.6.12.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_forgotten_after_a_pause() {
        let mut load = Load::default();
        load.add(0, MUCH_FRAMES - 3);
        assert!(!load.is_much());
        load.add(10, 3);
        assert!(load.is_much());
        load.add(LOAD_WINDOW_NS, 1);
        assert!(load.is_much(), "the window before had much");
        load.add(2 * LOAD_WINDOW_NS, 1);
        assert!(!load.is_much());
        load.add(2 * LOAD_WINDOW_NS, MUCH_FRAMES);
        load.add(9 * LOAD_WINDOW_NS, 1);
        assert!(!load.is_much());
    }

    #[test]
    fn invalid_links_are_refused_before_a_thread_starts() {
        let link = LinkEnds { from: 0, to: 1, params: LinkParams::default() };
        let error = Wire::start(Vec::new(), vec![link], WireOptions::default()).unwrap_err();
        assert_eq!((error.code, error.cause.as_str()), (Code::UsageInvalid, "there is no such port"));
    }

    #[test]
    fn a_wire_of_nothing_answers_and_stops() {
        let wire = Wire::start(Vec::new(), Vec::new(), WireOptions::default()).unwrap();
        assert_eq!(wire.snapshot().unwrap().links.len(), 0);
        assert_eq!(wire.set(0, LinkParams::default()).unwrap_err().code, Code::UsageInvalid);
        wire.stop();
    }
}
