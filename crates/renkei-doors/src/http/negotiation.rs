//! What a connection has begun to prove with Kerberos: an authentication may take several requests.

use renkei_net::identity::kerberos::Pending;
use std::sync::{Arc, Mutex};

/// The authentication that a connection has begun and not finished.
#[derive(Clone, Default)]
pub(crate) struct Negotiation(Arc<Mutex<Option<Pending>>>);

impl Negotiation {
    /// Takes it, to go on with it or to end it.
    pub(crate) fn take(&self) -> Option<Pending> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts").take()
    }

    /// Keeps it until the next request.
    pub(crate) fn keep(&self, pending: Pending) {
        *self.0.lock().expect("no thread panics while it holds the lock: a panic aborts") = Some(pending);
    }
}
