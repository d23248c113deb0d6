//! The lines (reverse connections) of a PoP that cannot be dialled: one session to each configured hub, kept up until
//! it ends.
//!
//! Over a line the hub calls; this PoP dials the hub's port, sends the call's ticket, and serves the connection as if
//! it had come to its own port. A lost line is detected within seconds and reopened with exponential backoff. Changes
//! of `reverse` in config.toml take effect within a second.

use super::port::Door;
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::circuit::preface;
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::Control;
use renkei_core::wire::violation;
use renkei_net::CONNECT_TIMEOUT;
use renkei_net::control::ControlSender;
use renkei_net::tls::lost;
use renkei_site::Site;
use renkei_site::relay::reverse_connections::KeptLine;
use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval of comparing the lines with the configuration.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Backoff before a lost line is reopened.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(8));
/// A line that was up for so long resets the backoff.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// Calls answered concurrently over one line; more are ignored.
const MAX_ANSWERS: usize = 256;

/// The handle of the thread that keeps one line.
#[derive(Default)]
struct Keeper {
    stopped: AtomicBool,
    link: Mutex<Option<Arc<ControlSender>>>,
}

impl Keeper {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<ControlSender>>> {
        self.link.lock().expect("no thread panics while it holds the lock")
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        if let Some(link) = &*self.lock() {
            link.shutdown();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

/// Starts the thread that keeps the lines.
pub fn spawn_lines(door: Door) -> Result<(), Error> {
    let mut keepers: HashMap<SiteName, Arc<Keeper>> = HashMap::new();
    let work = move || loop {
        let turn = door.site().context().workers.begin("lines");
        let wanted = door.site().last_snapshot().config.reverse.clone();
        keepers.retain(|hub, keeper| {
            let stays = wanted.contains(hub);
            if !stays {
                keeper.stop();
            }
            stays
        });
        for hub in wanted {
            if !keepers.contains_key(&hub)
                && let Some(keeper) = start(&door, &hub)
            {
                keepers.insert(hub, keeper);
            }
        }
        drop(turn);
        std::thread::sleep(LOOK_EVERY);
    };
    let thread = std::thread::Builder::new().name("lines".into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "lines", error))
}

fn start(door: &Door, hub: &SiteName) -> Option<Arc<Keeper>> {
    let keeper = Arc::new(Keeper::default());
    let (door, hub, own) = (door.clone(), hub.clone(), keeper.clone());
    let started = std::thread::Builder::new().name("line".into()).spawn(move || keep(&door, &hub, &own));
    match started {
        Ok(_) => Some(keeper),
        Err(error) => {
            tracing::error!(%error, "the thread of a reverse connection cannot be started; tried again soon");
            None
        }
    }
}

fn keep(door: &Door, hub: &SiteName, keeper: &Keeper) {
    let mut pauses = BACKOFF.begin();
    door.site().relay().line_is_down(hub, None);
    while !keeper.is_stopped() {
        let since = Instant::now();
        let Err(error) = keep_once(door, hub, keeper);
        *keeper.lock() = None;
        tracing::info!(%hub, %error, "no line");
        door.site().relay().line_is_down(hub, Some(&error));
        if since.elapsed() > GOOD_AFTER {
            pauses.reset();
        }
        std::thread::sleep(pauses.next(random_number()));
    }
}

/// Keeps the line until it is lost.
fn keep_once(door: &Door, hub: &SiteName, keeper: &Keeper) -> Result<std::convert::Infallible, Error> {
    let site: &Site = door.site();
    let KeptLine { mut control, address } = site.relay().open_line(hub)?;
    *keeper.lock() = Some(control.sender());
    if keeper.is_stopped() {
        return Err(Error::new(Code::Cancelled, "keep line", hub, "it is no longer needed"));
    }
    let _listed = site.relay().keep_line(hub);
    tracing::info!(%hub, "line up");
    let answers = Arc::new(AtomicUsize::new(0));
    loop {
        match control.recv()? {
            Control::Call(ticket) => answer(door, hub, address, ticket, &answers),
            other => return Err(violation("line", format_args!("{other:?}"))),
        }
    }
}

/// Dials in a thread of its own, so that the next call need not wait.
fn answer(door: &Door, hub: &SiteName, address: SocketAddr, ticket: Ticket, answers: &Arc<AtomicUsize>) {
    if answers.fetch_add(1, Ordering::Relaxed) >= MAX_ANSWERS {
        answers.fetch_sub(1, Ordering::Relaxed);
        return tracing::warn!(%hub, "too many calls at a time");
    }
    let (door, hub, answers) = (door.clone(), hub.clone(), answers.clone());
    let work = move || {
        match dial(address, &ticket) {
            Ok(sock) => door.adopt(sock, address, hub),
            Err(error) => tracing::info!(%hub, %error, "a call could not be answered"),
        }
        answers.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("answer".into()).spawn(work) {
        tracing::warn!(%error, "cannot start a thread for a call");
    }
}

fn dial(address: SocketAddr, ticket: &Ticket) -> Result<TcpStream, Error> {
    let failed = |error: std::io::Error| lost("answer call", &error);
    let mut sock = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(failed)?;
    sock.write_all(&preface(ticket)).map_err(failed)?;
    Ok(sock)
}
