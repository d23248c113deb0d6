//! The client of a relay: circuits through another PoP, or from a PoP to an agent of its site.
//!
//! One session with the relay requests all circuits of a connection to the site at once, and is kept as long as they
//! may be wanted. Their tickets are derived from a seed of this side, so that the first circuit is dialled while the
//! session is still being opened: the relay holds it until it knows the ticket. An error that the relay reports later
//! (the site is unreachable from there) is the root cause when a circuit fails.

use super::dial::{DialHints, Dialler, Session};
use super::transport::{Transport, named};
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::circuit::{MAX_CIRCUITS, preface, ticket};
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{Control, Request};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long to wait for the relay's error after a circuit failed.
const WORD_WITHIN: Duration = Duration::from_secs(5);

/// The same after a granted circuit failed.
const SOON: Duration = Duration::from_secs(1);

/// A relay's grant of circuits to one site, or to one agent of its own site.
pub struct RelayClient {
    relay: SiteName,
    /// Transport to the relay.
    by: Transport,
    /// The storage whose agent the circuits lead to, if any.
    agent: Option<String>,
    seed: Ticket,
    next: AtomicU16,
    word: Arc<Word>,
}

/// State of the session with the relay, as reported by it.
#[derive(Default)]
struct Word {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The relay has granted the circuits.
    granted: bool,
    /// Circuits dialled before the grant: they are shut down if it is refused.
    early: Vec<TcpStream>,
    /// The latest error of a circuit or of the session.
    error: Option<Error>,
    /// The client was dropped, and the session is not needed any more.
    over: bool,
    /// Shuts down the session, once it is open.
    end: Option<Box<dyn FnOnce() + Send>>,
}

impl Word {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    fn say(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Has a circuit shut down if the relay refuses or does not answer: otherwise it would hang until a timeout.
    fn ends_with_no(&self, sock: &TcpStream) -> Result<(), Error> {
        let mut state = self.lock();
        match &state.error {
            _ if state.granted => Ok(()),
            Some(error) => Err(error.clone()),
            None => {
                state.early.extend(sock.try_clone());
                Ok(())
            }
        }
    }

    /// Records that the session failed.
    fn say_no(&self, error: Error) {
        self.say(|state| {
            state.error = Some(error);
            for sock in state.early.drain(..) {
                // The circuit may be closed already.
                let _ = sock.shutdown(Shutdown::Both);
            }
        });
    }
}

impl Drop for RelayClient {
    fn drop(&mut self) {
        let mut state = self.word.lock();
        state.over = true;
        if let Some(end) = state.end.take() {
            end();
        }
    }
}

impl RelayClient {
    /// Asks the PoP of `relay`, reached by the given transport, for circuits to `site`; a refusal shows when the
    /// first is used.
    pub(crate) fn ask(
        dialler: &Dialler,
        relay: &SiteName,
        by: Transport,
        site: &SiteName,
        further: u8,
    ) -> Result<Arc<RelayClient>, Error> {
        let site = site.clone();
        Self::begin(dialler, relay, by, None, |seed| Request::Through {
            site,
            seed,
            count: MAX_CIRCUITS,
            further,
        })
    }

    /// Asks the PoP of `site`, reached by the given transport, for circuits to the agent of one of its storages.
    pub(crate) fn ask_for_agent(
        dialler: &Dialler,
        site: &SiteName,
        by: Transport,
        storage: &str,
    ) -> Result<Arc<RelayClient>, Error> {
        let agent = Some(storage.to_owned());
        let storage = storage.to_owned();
        Self::begin(dialler, site, by, agent, |seed| Request::ToAgent { storage, seed, count: MAX_CIRCUITS })
    }

    fn begin(
        dialler: &Dialler,
        relay: &SiteName,
        by: Transport,
        agent: Option<String>,
        request: impl FnOnce(Ticket) -> Request,
    ) -> Result<Arc<RelayClient>, Error> {
        let (seed, word) = (random_bytes()?, Arc::new(Word::default()));
        let (next, said) = (AtomicU16::new(0), word.clone());
        let relay_client = RelayClient { relay: relay.clone(), by: by.clone(), agent, seed, next, word };
        let (request, dialler, relay) = (request(seed), dialler.clone(), relay.clone());
        let talk = move || talk(&dialler, &relay, &by, request, &said);
        let spawned = std::thread::Builder::new().name("passage".into()).spawn(talk);
        spawned.map_err(|error| Error::new(Code::SystemCall, "start a thread", "circuit", error))?;
        Ok(Arc::new(relay_client))
    }

    /// The site whose PoP relays.
    pub fn relay(&self) -> &SiteName {
        &self.relay
    }

    /// The storage of the agent that the circuits lead to, if they lead to one.
    pub fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// Connects one more circuit.
    pub(crate) fn connect(&self) -> Result<TcpStream, Error> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= MAX_CIRCUITS {
            let cause = format!("{MAX_CIRCUITS} of one session were used");
            return Err(Error::new(Code::CircuitLimit, "connect", &self.relay, cause));
        }
        let mut sock = self.by.connect(&self.relay)?;
        let sent = sock.write_all(&preface(&ticket(&self.seed, index)));
        sent.map_err(|error| named(renkei_net::tls::lost("send", &error), &self.relay, &self.by))?;
        self.word.ends_with_no(&sock)?;
        Ok(sock)
    }

    /// The relay's error for a failed circuit, if it reports one; waits for it, because a circuit may end a moment
    /// earlier.
    pub(crate) fn word(&self) -> Option<Error> {
        let until = Instant::now() + WORD_WITHIN;
        let mut state = self.word.lock();
        loop {
            if state.error.is_some() {
                return state.error.clone();
            }
            // The failure of a granted circuit is reported right after; a session that is still being opened may take
            // longer.
            let patience = if state.granted { SOON } else { WORD_WITHIN };
            let left = until.saturating_duration_since(Instant::now()).min(patience);
            let waited = self.word.changed.wait_timeout(state, left);
            let (fresh, waited) = waited.expect("no thread panics while it holds the lock");
            state = fresh;
            if waited.timed_out() {
                return None;
            }
        }
    }
}

/// Opens the session and listens on it until it ends.
fn talk(dialler: &Dialler, relay: &SiteName, by: &Transport, request: Request, word: &Word) {
    let ahead = DialHints { request: Some(request.clone()), ..DialHints::default() };
    let opened = dialler.open_by(relay, by, &ahead);
    let outcome = opened.and_then(|session| listen(session, request, word));
    if let Err(error) = outcome {
        word.say_no(error);
    }
}

fn listen(mut session: Session, request: Request, word: &Word) -> Result<(), Error> {
    let link = session.control.sender();
    word.say(|state| state.end = Some(Box::new(move || link.shutdown())));
    if word.lock().over {
        return Ok(());
    }
    session.ask_here(request)?;
    word.say(|state| {
        state.granted = true;
        state.early.clear();
    });
    loop {
        if let Control::Reply { reply: Err(error), .. } = session.control.recv()? {
            word.say(|state| state.error = Some(error));
        }
    }
}
