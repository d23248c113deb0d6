//! The registry of reverse connections (lines) that other sites and own agents keep to this PoP, and the dial-back over
//! them.
//!
//! A PoP that cannot be dialled keeps a session open, its line. To connect to it, this PoP sends a call with a fresh
//! ticket over the line; the called PoP dials this PoP's port and shows the ticket, and the connection is handed to the
//! waiting caller. A ticket works once, and for [`ANSWER_WITHIN`].

use super::control::ControlSender;
use super::socket;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::Control;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Timeout of the called PoP's dial-back.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Silence timeout of a line: a host that vanished is detected after this.
pub const LINE_SILENCE: Duration = Duration::from_secs(8);
/// Most calls in progress, of all sites.
const MAX_CALLS: usize = 1024;
/// Most lines of one site: one that is being replaced, and those of several daemons.
const MAX_LINES_OF_ONE: usize = 4;
/// Most lines of one agent: two would serve different folders.
const MAX_LINES_OF_AGENT: usize = 1;

/// A reverse connection that is up.
pub struct ReverseConnection {
    /// The principal that keeps it: the PoP of a site, or an agent.
    pub keeper: Principal,
    /// When it was registered.
    pub since: Instant,
    link: Arc<ControlSender>,
}

/// All reverse connections, and the calls that wait for a dial-back.
#[derive(Default)]
pub struct ReverseRegistry {
    lines: Mutex<Vec<Arc<ReverseConnection>>>,
    calls: Mutex<HashMap<Ticket, mpsc::SyncSender<TcpStream>>>,
}

/// Keeps a line registered until dropped.
pub struct Registration<'a>(&'a ReverseRegistry, Arc<ReverseConnection>);

/// Removes a call at its end, answered or not.
struct Called<'a>(&'a ReverseRegistry, Ticket);

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        lock(&self.0.lines).retain(|line| !Arc::ptr_eq(line, &self.1));
    }
}

impl Drop for Called<'_> {
    fn drop(&mut self) {
        lock(&self.0.calls).remove(&self.1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a lock: a panic aborts")
}

impl ReverseRegistry {
    /// Registers a line; beyond the limit of a keeper, its oldest line is closed.
    pub fn list(&self, keeper: &Principal, link: Arc<ControlSender>) -> Registration<'_> {
        socket::give_up_after(link.socket(), Some(LINE_SILENCE));
        let most = match keeper {
            Principal::Agent { .. } => MAX_LINES_OF_AGENT,
            _ => MAX_LINES_OF_ONE,
        };
        let line = Arc::new(ReverseConnection { keeper: keeper.clone(), since: Instant::now(), link });
        let mut lines = lock(&self.lines);
        let own = lines.iter().filter(|line| line.keeper == *keeper).count();
        if own >= most
            && let Some(oldest) = lines.iter().position(|line| line.keeper == *keeper)
        {
            lines.remove(oldest).link.shutdown();
        }
        lines.push(line.clone());
        drop(lines);
        Registration(self, line)
    }

    /// The registered lines.
    pub fn lines(&self) -> Vec<Arc<ReverseConnection>> {
        lock(&self.lines).clone()
    }

    /// Whether a principal keeps a line to this PoP now.
    pub fn has_line(&self, keeper: &Principal) -> bool {
        lock(&self.lines).iter().any(|line| line.keeper == *keeper)
    }

    /// Calls the keeper of a line and waits for its connection.
    ///
    /// # Errors
    /// `NoLine`, `CallUnanswered`, `TooManySessions` if too many calls are in progress; all of them transient.
    pub fn call(&self, keeper: &Principal, ticket: Ticket) -> Result<TcpStream, Error> {
        let (answer, answered) = mpsc::sync_channel(1);
        let _called = self.note(keeper, ticket, answer)?;
        // The newest line is the one most likely to be alive.
        let line = lock(&self.lines).iter().rev().find(|line| line.keeper == *keeper).cloned();
        let line = line.ok_or_else(|| Error::new(Code::NoLine, "call", keeper, "no line is up"))?;
        let lost = |error: Error| Error::new(Code::NoLine, "call", keeper, error.cause);
        line.link.send(&Control::Call(ticket)).map_err(lost)?;
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            let look = Duration::from_millis(200).min(until.saturating_duration_since(Instant::now()));
            match answered.recv_timeout(look) {
                Ok(sock) => return Ok(sock),
                Err(RecvTimeoutError::Timeout) if !self.has_line(keeper) => {
                    return Err(Error::new(Code::NoLine, "call", keeper, "its line was lost"));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => {
                    let cause = format!("nothing came within {} s", ANSWER_WITHIN.as_secs());
                    return Err(Error::new(Code::CallUnanswered, "call", keeper, cause));
                }
            }
        }
    }

    fn note(
        &self,
        keeper: &Principal,
        ticket: Ticket,
        answer: mpsc::SyncSender<TcpStream>,
    ) -> Result<Called<'_>, Error> {
        let mut calls = lock(&self.calls);
        if calls.len() >= MAX_CALLS {
            let cause = format!("{MAX_CALLS} calls are under way");
            return Err(Error::new(Code::TooManySessions, "call", keeper, cause));
        }
        calls.insert(ticket, answer);
        Ok(Called(self, ticket))
    }

    /// Hands a connection to the caller that waits for the ticket; returns it if none does.
    pub fn answer(&self, ticket: &Ticket, sock: TcpStream) -> Result<(), TcpStream> {
        let Some(answer) = lock(&self.calls).remove(ticket) else { return Err(sock) };
        // If the caller has just given up, the connection is closed.
        let _ = answer.try_send(sock);
        Ok(())
    }

    /// Closes the lines for which `is_bad` is true.
    pub fn close(&self, is_bad: impl Fn(&ReverseConnection) -> bool) {
        lock(&self.lines).iter().filter(|line| is_bad(line)).for_each(|line| line.link.shutdown());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn site(name: &str) -> Principal {
        Principal::parse(name).unwrap()
    }

    #[test]
    fn a_dial_back_needs_a_line() {
        let board = ReverseRegistry::default();
        assert_eq!(board.call(&site("kek"), [1; 32]).unwrap_err().code, Code::NoLine);
        assert!(lock(&board.calls).is_empty() && !board.has_line(&site("kek")));
    }

    #[test]
    fn a_ticket_works_once_and_only_while_a_request_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dial = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let board = ReverseRegistry::default();
        let (answer, answered) = mpsc::sync_channel(1);
        let called = board.note(&site("kek"), [1; 32], answer).unwrap();
        assert!(board.answer(&[2; 32], dial()).is_err(), "guessed");
        board.answer(&[1; 32], dial()).unwrap();
        assert!(board.answer(&[1; 32], dial()).is_err(), "shown again");
        answered.try_recv().unwrap();
        drop(called);
        let (answer, _answered) = mpsc::sync_channel(1);
        drop(board.note(&site("kek"), [3; 32], answer).unwrap());
        assert!(board.answer(&[3; 32], dial()).is_err(), "nobody waits any more");
    }
}
