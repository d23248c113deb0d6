//! Requests to the PoP that has the queue: the user's own site over the network, or as its administrator the local
//! socket.

use crate::cli::connect::{own_site, session, unexpected};
use crate::cli::{Context, login};
use renkei_core::error::Error;
use renkei_core::queue::Change;
use renkei_core::wire::buffer::{BufferStatus, Room};
use renkei_core::wire::message::{EntryFailure, Reply, Request, TransferId};
use renkei_core::wire::queue::{Listed, Queued, Story, Submission};
use renkei_core::wire::unfinished::{UnfinishedAction, UnfinishedReply};
use renkei_core::wire::{decode, violation};
use renkei_mover::connect::dial::Session;
use renkei_net::identity::socket;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The client of a queue.
pub(crate) struct Asker<'c> {
    context: &'c Context,
    /// As the administrator of the PoP of this machine.
    all: bool,
    session: Option<Session>,
}

impl<'c> Asker<'c> {
    /// With `all`, as the administrator, who sees the transfers of all users.
    pub(crate) fn new(context: &'c Context, all: bool) -> Self {
        Asker { context, all, session: None }
    }

    /// One page of the list.
    pub(crate) fn transfers(&mut self, listed: &Listed) -> Result<Vec<Queued>, Error> {
        if self.all {
            return ask_socket(self.context, &json!({"op": "transfers", "listed": listed}));
        }
        match self.ask(Request::Transfers(listed.clone()))? {
            Reply::Transfers(transfers) => Ok(transfers),
            other => Err(unexpected(&other)),
        }
    }

    /// The whole list.
    pub(crate) fn all_transfers(&mut self, listed: &Listed) -> Result<Vec<Queued>, Error> {
        let (mut all, mut listed) = (Vec::new(), listed.clone());
        loop {
            let part = self.transfers(&listed)?;
            let Some(last) = part.last() else { return Ok(all) };
            listed.before = Some((last.submitted_ms, last.id));
            all.extend(part);
        }
    }

    /// The history of one, by the first digits of its id.
    pub(crate) fn story(&mut self, digits: &str) -> Result<Story, Error> {
        if self.all {
            return ask_socket(self.context, &json!({"op": "transfer", "id": digits}));
        }
        match self.ask(Request::Transfer(digits.into()))? {
            Reply::Transfer(story) => Ok(*story),
            other => Err(unexpected(&other)),
        }
    }

    /// One page of a transfer's failed files, each with its number: those after a number.
    pub(crate) fn failures(&mut self, id: TransferId, after: u64) -> Result<Vec<(u64, EntryFailure)>, Error> {
        if self.all {
            return ask_socket(self.context, &json!({"op": "failures", "id": id, "after": after}));
        }
        match self.ask(Request::Failures { id, after })? {
            Reply::Failures(failures) => Ok(failures),
            other => Err(unexpected(&other)),
        }
    }

    /// Changes the state of one.
    pub(crate) fn change(&mut self, id: TransferId, change: Change) -> Result<(), Error> {
        if self.all {
            return ask_socket(self.context, &json!({"op": "change", "id": id, "change": change}));
        }
        match self.ask(Request::Change { id, change })? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Renews the credential of one.
    pub(crate) fn renew(&mut self, id: TransferId) -> Result<(), Error> {
        match self.ask(Request::Renew(id))? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Submits one.
    pub(crate) fn submit(&mut self, submission: Submission) -> Result<(), Error> {
        match self.ask(Request::SubmitCopies(vec![submission]))? {
            Reply::Submitted(mut answers) if answers.len() == 1 => answers.remove(0),
            other => Err(unexpected(&other)),
        }
    }

    /// Requests space in the buffer.
    pub(crate) fn reserve(&mut self, transfer: TransferId, bytes: u64, waits: bool) -> Result<Room, Error> {
        match self.ask(Request::Reserve { transfer, bytes, waits })? {
            Reply::Room(room) => Ok(room),
            other => Err(unexpected(&other)),
        }
    }

    /// The content of the buffer.
    pub(crate) fn buffer(&mut self) -> Result<BufferStatus, Error> {
        if self.all {
            return ask_socket(self.context, &json!({"op": "buffer"}));
        }
        match self.ask(Request::Buffer)? {
            Reply::Buffer(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// The unfinished copies of all users at the PoP of this machine, for its administrator.
    pub(crate) fn all_unfinished(&self, what: &UnfinishedAction) -> Result<UnfinishedReply, Error> {
        ask_socket(self.context, &json!({"op": "unfinished", "what": what}))
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Error> {
        let session = match &mut self.session {
            Some(session) => session,
            none => none.insert(session(self.context, &own_site(self.context)?)?),
        };
        let reply = session.ask(request);
        // A lost session is reopened for the next request.
        if reply.as_ref().is_err_and(|error| error.side == "client") {
            self.session = None;
        }
        reply
    }
}

/// Asks the PoP of this machine by its local socket.
pub(crate) fn ask_socket<T: DeserializeOwned>(context: &Context, request: &Value) -> Result<T, Error> {
    let path = login::socket(&context.home()?, None);
    let answer = socket::request(&path, request)?;
    let text = answer.as_str().unwrap_or_default();
    let byte = |at: usize| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    decode("reply", &bytes.ok_or_else(|| violation("reply", "not hexadecimal"))?)
}
