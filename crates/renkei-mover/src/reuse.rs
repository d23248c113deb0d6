//! Reuse of a session by the next one between the same two daemons: its data streams, open and in sync, and the state
//! of the congestion controller.
//!
//! Streams are reused only after a session that ended well. Neither end then has data in flight on them: the sender
//! has sent the end marker of each, the receiver has read it.

use crate::lock;
use renkei_core::link::controller::Controller;
use renkei_net::tls::TlsStream;
use std::sync::Mutex;

/// The streams and the controller that a session leaves for the next one.
#[derive(Default)]
pub struct ReusableSession {
    streams: Mutex<Vec<TlsStream>>,
    controller: Mutex<Option<Controller>>,
}

impl ReusableSession {
    /// Begins with the congestion controller of an earlier session.
    pub fn holding(controller: Option<Controller>) -> Self {
        ReusableSession { streams: Mutex::default(), controller: Mutex::new(controller) }
    }

    pub(super) fn put(&self, stream: TlsStream) {
        lock(&self.streams).push(stream);
    }

    pub(super) fn put_controller(&self, controller: Controller) {
        *lock(&self.controller) = Some(controller);
    }

    /// Takes the streams out.
    pub fn take(&self) -> Vec<TlsStream> {
        std::mem::take(&mut lock(&self.streams))
    }

    /// Takes the congestion controller out.
    pub fn take_controller(&self) -> Option<Controller> {
        lock(&self.controller).take()
    }
}
