//! Secrets that associate connections: tickets for data streams of a session, grants for pushes by other sites.

use super::Stop;
use crate::access::{Access, one_share};
use crate::relay::agents::{Mark, put_mark};
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::data::{Join, Ticket};
use renkei_core::wire::message::{Control, Onto, OpenReceive, Opened, Reply};
use renkei_mover::receive::Allowance;
use renkei_net::control::ControlReceiver;
use renkei_net::socket;
use renkei_net::tls::TlsStream;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::mpsc::{self, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum buffers of one data stream: at a receiver ciphertext in and out (0.6 MiB), the largest entry (2 MiB) and
/// a block (1 MiB); a sender has less.
pub(super) const STREAM_BYTES: u64 = 4 << 20;
/// Timeout of a session for its data streams.
const JOIN_WITHIN: Duration = Duration::from_secs(60);
/// Interval at which a waiting session checks for a stop or a disconnected client.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Lifetime of a grant.
const REDEEM_WITHIN: Duration = Duration::from_secs(600);
/// Maximum outstanding grants.
const MAX_GRANTS: usize = 4096;

/// Answers `request` with the ticket.
pub(crate) fn offer_streams(
    waiting: &Waiting<'_>,
    (offers, onto): (bool, Option<Onto>),
    kept: bool,
    request: u64,
    control: &ControlReceiver,
) -> Result<(), Error> {
    let opened = Opened { ticket: waiting.ticket, streams: waiting.streams, offers, kept, onto };
    control.sender().send(&Control::Reply { id: request, reply: Ok(Reply::Opened(opened)) })?;
    tracing::info!(streams = waiting.streams, offers, kept, "opened");
    Ok(())
}

/// Issued tickets: sessions that wait for their data streams or use them.
#[derive(Clone, Default)]
pub struct Tickets(Arc<Mutex<HashMap<Ticket, Issued>>>);

/// The streams of one session.
struct Issued {
    join: mpsc::SyncSender<TlsStream>,
    streams: u16,
    /// Its other memory, in units of streams.
    kept: usize,
    principal: Principal,
}

impl Issued {
    fn used(&self) -> usize {
        usize::from(self.streams).saturating_add(self.kept)
    }
}

/// A session's ticket and its joined streams; dropping it revokes the ticket.
pub struct Waiting<'a> {
    tickets: &'a Tickets,
    /// The ticket for the client.
    pub ticket: Ticket,
    /// The number of streams that may join.
    pub streams: u16,
    joined: mpsc::Receiver<TlsStream>,
}

impl Tickets {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ticket, Issued>> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Issues a ticket for `wanted` streams, or for half of the remaining ones if that is fewer, so that the next
    /// session gets some too. All sessions together have at most `limit`, those of `principal` at most half of it,
    /// so no principal starves the others.
    ///
    /// # Errors
    /// `OutOfMemory` if not a single stream is left.
    pub fn issue(&self, principal: &Principal, wanted: u16, limit: usize) -> Result<Waiting<'_>, Error> {
        let ticket = random_bytes()?;
        let mut issued = self.lock();
        let used = |of: &dyn Fn(&Issued) -> bool| -> usize {
            issued.values().filter(|issued| of(issued)).map(Issued::used).sum()
        };
        let own_left = one_share(limit).saturating_sub(used(&|issued| issued.principal == *principal));
        let used = used(&|_| true);
        let left = limit.saturating_sub(used).min(own_left);
        let streams = u16::try_from(left.div_ceil(2)).unwrap_or(u16::MAX).min(wanted);
        if streams == 0 {
            let cause = format!(
                "transfers take the memory of {used} data streams, as much as `limits.max_memory_mib` allows to one \
                 or all"
            );
            return Err(Error::new(Code::OutOfMemory, "open", "data streams", cause));
        }
        let (join, joined) = mpsc::sync_channel(usize::from(streams));
        issued.insert(ticket, Issued { join, streams, kept: 0, principal: principal.clone() });
        Ok(Waiting { tickets: self, ticket, streams, joined })
    }

    /// Charges `bytes` in total to a session beside its streams, under the limits of [`Tickets::issue`].
    fn keep(&self, ticket: &Ticket, bytes: u64, limit: usize) -> Result<(), Error> {
        let kept = usize::try_from(bytes.div_ceil(STREAM_BYTES)).unwrap_or(usize::MAX);
        let mut issued = self.lock();
        let Some(own) = issued.get(ticket) else { return Ok(()) };
        let others = |of: &dyn Fn(&Issued) -> bool| -> usize {
            issued
                .iter()
                .filter(|(other, issued)| *other != ticket && of(issued))
                .map(|(_, i)| i.used())
                .sum()
        };
        let wanted = kept.saturating_add(usize::from(own.streams));
        let principals = others(&|other| other.principal == own.principal);
        let (all, share) = (others(&|_| true), one_share(limit));
        let refused = |code, cause| Err(Error::new(code, "receive", "entries", cause));
        if wanted > share {
            let cause = "its names, links and directories alone take more memory than `limits.max_memory_mib` allows \
                         to one principal; copy parts of the tree one after the other, or raise it";
            return refused(Code::TooManyEntries, cause);
        }
        if wanted.saturating_add(principals) > share || wanted.saturating_add(all) > limit {
            let cause = "with other transfers its entries take more than `limits.max_memory_mib` allows to one or all";
            return refused(Code::OutOfMemory, cause);
        }
        if let Some(own) = issued.get_mut(ticket) {
            own.kept = kept;
        }
        Ok(())
    }

    /// Streams and other memory of all sessions, in units of streams.
    pub fn used(&self) -> usize {
        self.lock().values().map(Issued::used).sum()
    }

    /// Hands a stream to the session it belongs to.
    ///
    /// # Errors
    /// `TicketRefused`, with the stream, so that its peer can be told.
    pub fn join(&self, join: &Join, stream: TlsStream) -> Result<(), (Error, Box<TlsStream>)> {
        let waiting = self.lock().get(&join.ticket).map(|issued| issued.join.clone());
        let (cause, stream) = match waiting {
            None => ("no session waits for it", stream),
            Some(waiting) => match waiting.try_send(stream) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(stream) | TrySendError::Disconnected(stream)) => {
                    ("the session has all its streams", stream)
                }
            },
        };
        Err((Error::new(Code::TicketRefused, "join", "data stream", cause), Box::new(stream)))
    }
}

impl Waiting<'_> {
    /// The memory allowance of the session beside its streams, valid as long as its ticket.
    pub fn allowance(&self, limit: usize) -> Allowance {
        let (tickets, ticket) = (self.tickets.clone(), self.ticket);
        Box::new(move |bytes| tickets.keep(&ticket, bytes, limit))
    }

    /// Waits for all streams of the client at the other end of `control`.
    ///
    /// # Errors
    /// `Stalled` on timeout; `ConnectionLost` as soon as the client has disconnected, so that it holds no share any
    /// longer.
    pub fn gather(&self, stop: &Stop, control: &TcpStream) -> Result<Vec<TlsStream>, Error> {
        let deadline = Instant::now() + JOIN_WITHIN;
        (0..self.streams).map(|_| self.next(deadline, stop, control)).collect()
    }

    /// The next stream. Gives up early on a stop or a disconnected client, so that a newer run of the transfer does
    /// not wait.
    fn next(&self, deadline: Instant, stop: &Stop, control: &TcpStream) -> Result<TlsStream, Error> {
        loop {
            match self.joined.recv_timeout(LOOK_EVERY) {
                Ok(stream) => return Ok(stream),
                Err(_) if Instant::now() > deadline => {
                    let cause = format!("they did not arrive within {} s", JOIN_WITHIN.as_secs());
                    return Err(Error::new(Code::Stalled, "join", "data streams", cause));
                }
                Err(_) if socket::is_left(control) => {
                    let cause = "it left before its data streams came";
                    return Err(Error::new(Code::ConnectionLost, "join", "peer", cause));
                }
                Err(_) => stop.check()?,
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.tickets.lock().remove(&self.ticket);
    }
}

struct Grant {
    access: Access,
    open: OpenReceive,
    peer: SiteName,
    until: Instant,
}

/// Grants: permissions for other sites' PoPs to push here on a user's behalf.
#[derive(Default)]
pub struct Grants(Mutex<HashMap<Ticket, Grant>>);

impl Grants {
    /// Grants `peer` one use of `access` for `open`. The ticket ends with `mark`, if there is one.
    pub fn give(
        &self,
        access: Access,
        open: OpenReceive,
        peer: SiteName,
        mark: Option<&Mark>,
    ) -> Result<Ticket, Error> {
        let mut ticket = random_bytes()?;
        if let Some(mark) = mark {
            put_mark(&mut ticket, mark);
        }
        let mut grants = self.0.lock().expect("no thread panics while it holds the lock");
        let now = Instant::now();
        grants.retain(|_, grant| grant.until > now);
        let own = grants.values().filter(|grant| grant.access.principal == access.principal).count();
        if grants.len() >= MAX_GRANTS || own >= one_share(MAX_GRANTS) {
            return Err(Error::new(Code::TooManySessions, "grant", peer, "too many grants wait"));
        }
        grants.insert(ticket, Grant { access, open, peer, until: now + REDEEM_WITHIN });
        Ok(ticket)
    }

    /// Redeems, and thereby removes, a grant of `peer`.
    pub fn redeem(&self, ticket: &Ticket, peer: &SiteName) -> Result<(Access, OpenReceive), Error> {
        let mut grants = self.0.lock().expect("no thread panics while it holds the lock");
        let refused = |cause| Error::new(Code::TicketRefused, "redeem", peer, cause);
        let good =
            grants.get(ticket).is_some_and(|grant| grant.peer == *peer && grant.until > Instant::now());
        if !good {
            return Err(refused("no such grant for this site"));
        }
        let grant = grants.remove(ticket).ok_or_else(|| refused("no such grant"))?;
        Ok((grant.access, grant.open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn streams_of_a_lost_client_are_not_awaited() {
        let tickets = Tickets::default();
        let waiting = tickets.issue(&Principal::parse("alice@kek").unwrap(), 2, 20).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let control = listener.accept().unwrap().0;
        let start = Instant::now();
        drop(client);
        assert_eq!(waiting.gather(&Stop::default(), &control).err().unwrap().code, Code::ConnectionLost);
        assert!(start.elapsed() < JOIN_WITHIN / 2);
    }

    #[test]
    fn one_principal_leaves_streams_for_the_others() {
        let tickets = Tickets::default();
        let [alice, bob] = ["alice@kek", "bob@kek"].map(|name| Principal::parse(name).unwrap());
        let mut own: Vec<_> = (0..4).map(|_| tickets.issue(&alice, 4, 20).unwrap()).collect();
        assert_eq!(own.iter().map(|session| session.streams).collect::<Vec<_>>(), [4, 3, 2, 1]);
        assert_eq!(tickets.issue(&alice, 4, 20).err().unwrap().code, Code::OutOfMemory);
        assert_eq!(tickets.issue(&bob, 4, 20).unwrap().streams, 4);
        own.remove(0);
        assert_eq!(tickets.issue(&alice, 16, 20).unwrap().streams, 2);
    }

    #[test]
    fn a_user_has_many_sessions_on_a_long_path() {
        let tickets = Tickets::default();
        let alice = Principal::parse("alice@kek").unwrap();
        let own: Vec<_> = (0..7).map(|_| tickets.issue(&alice, 32, 170).unwrap()).collect();
        assert_eq!(own.iter().map(|session| session.streams).collect::<Vec<_>>(), [32, 27, 13, 7, 3, 2, 1]);
    }

    #[test]
    fn pooled_streams_of_a_session_count() {
        let tickets = Tickets::default();
        let [alice, bob] = ["alice@kek", "bob@kek"].map(|name| Principal::parse(name).unwrap());
        let first = tickets.issue(&alice, 2, 20).unwrap();
        let keep = first.allowance(20);
        keep(5 * STREAM_BYTES).unwrap();
        keep(8 * STREAM_BYTES).unwrap();
        // This is over the share of one principal even without others.
        assert_eq!(keep(8 * STREAM_BYTES + 1).unwrap_err().code, Code::TooManyEntries);
        assert_eq!(tickets.issue(&alice, 1, 20).err().unwrap().code, Code::OutOfMemory);
        keep(STREAM_BYTES).unwrap();
        let second = tickets.issue(&alice, 4, 20).unwrap();
        assert_eq!(second.streams, 4);
        // This is over the share only together with the second session.
        assert_eq!(keep(6 * STREAM_BYTES).unwrap_err().code, Code::OutOfMemory);
        let others = tickets.issue(&bob, 5, 20).unwrap();
        keep(4 * STREAM_BYTES).unwrap();
        assert_eq!(others.allowance(20)(6 * STREAM_BYTES).unwrap_err().code, Code::TooManyEntries);
        drop(first);
        assert_eq!(tickets.issue(&alice, 8, 20).unwrap().streams, 3);
    }
}
