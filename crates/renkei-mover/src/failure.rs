//! Early end of a session: the first error wins, the peer is notified, every thread is woken.

use renkei_core::error::{Code, Error};
use renkei_core::wire::message::Control;
use renkei_net::control::ControlSender;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long the peer's own `Abort` may take to arrive on the control stream: a broken data stream is often its
/// consequence.
const ECHO: Duration = Duration::from_secs(2);

#[derive(Default)]
struct State {
    first: Option<Error>,
    over: bool,
    failed: Option<Instant>,
}

/// The way to the peer's control stream.
pub(crate) trait Peer: Send + Sync {
    /// Sends one message.
    fn send(&self, message: &Control) -> Result<(), Error>;

    /// Makes a thread that waits for messages return.
    fn stop_reading(&self);
}

impl Peer for ControlSender {
    fn send(&self, message: &Control) -> Result<(), Error> {
        ControlSender::send(self, message)
    }

    fn stop_reading(&self) {
        let _ = self.socket().shutdown(Shutdown::Read);
    }
}

/// The end of one session, shared by its threads.
pub(crate) struct Failure {
    state: Mutex<State>,
    /// Mirror of `State::over`, read without the lock for each entry and unit; written while the lock is held.
    over: AtomicBool,
    changed: Condvar,
    control: Arc<dyn Peer>,
    sockets: Vec<Arc<TcpStream>>,
}

impl Failure {
    pub(crate) fn new(control: Arc<dyn Peer>, sockets: Vec<Arc<TcpStream>>) -> Self {
        Failure {
            state: Mutex::default(),
            over: AtomicBool::new(false),
            changed: Condvar::new(),
            control,
            sockets,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Ends the session with `error`, unless it has ended or the peer soon reports its own reason.
    pub(crate) fn set(&self, error: Error) {
        if matches!(error.code, Code::ConnectionLost | Code::Stalled) && self.wait_for(ECHO) {
            return;
        }
        self.set_now(error);
    }

    /// Ends the session with `error` at once, unless it has ended.
    pub(crate) fn set_now(&self, error: Error) {
        {
            let mut state = self.lock();
            if state.over {
                return;
            }
            state.first = Some(error.clone());
            state.over = true;
            state.failed = Some(Instant::now());
            self.over.store(true, Ordering::Release);
        }
        self.changed.notify_all();
        let _ = self.control.send(&Control::Abort(error));
        self.control.stop_reading();
        self.close_streams();
    }

    /// Ends the session in order; its data streams stay open if `kept`.
    pub(crate) fn finish(&self, kept: bool) {
        {
            let mut state = self.lock();
            state.over = true;
            self.over.store(true, Ordering::Release);
        }
        self.changed.notify_all();
        if !kept {
            self.close_streams();
        }
    }

    fn close_streams(&self) {
        for socket in &self.sockets {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn first(&self) -> Option<Error> {
        self.lock().first.clone()
    }

    /// Whether messages of the peer are ignored because the session has failed. They are read for a moment more, so
    /// that the peer receives the `Abort`; a peer that never stops is disconnected after that.
    ///
    /// # Errors
    /// The session's first error, once that time has passed.
    pub(crate) fn passes_over(&self) -> Result<bool, Error> {
        if !self.is_over() {
            return Ok(false);
        }
        let state = self.lock();
        match (&state.first, state.failed) {
            (Some(first), Some(failed)) if failed.elapsed() > ECHO => Err(first.clone()),
            (first, _) => Ok(first.is_some()),
        }
    }

    /// Waits for the end.
    pub(crate) fn wait(&self) {
        let state = self.lock();
        drop(self.changed.wait_while(state, |state| !state.over));
    }

    /// Waits for the end for at most `timeout`; true if the session has ended.
    pub(crate) fn wait_for(&self, timeout: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| !state.over);
        waited.expect("no thread panics while it holds the lock").0.over
    }
}

type Hook = Box<dyn Fn(Error) + Send>;

#[derive(Default)]
struct StopState {
    stopped: Option<Error>,
    hooks: Vec<(u64, Hook)>,
    next: u64,
}

/// A stop request for a transfer, made from outside; clones share it.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<StopState>>);

/// Keeps a hook registered until dropped.
pub struct Registered(Stop, u64);

impl Stop {
    fn lock(&self) -> std::sync::MutexGuard<'_, StopState> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Whether both are clones of one request.
    pub fn is_same(&self, other: &Stop) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Calls the registered hooks; hooks registered later are called at once.
    pub fn stop(&self, error: Error) {
        let mut state = self.lock();
        state.stopped.get_or_insert_with(|| error.clone());
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        hooks.iter().for_each(|(_, hook)| hook(error.clone()));
    }

    /// The reason of the stop, if stopped.
    pub fn stopped(&self) -> Option<Error> {
        self.lock().stopped.clone()
    }

    /// Fails with the reason, if stopped.
    pub fn check(&self) -> Result<(), Error> {
        self.stopped().map_or(Ok(()), Err)
    }

    /// Registers a hook to call on a stop, as long as the returned value lives.
    pub fn on_stop(&self, hook: impl Fn(Error) + Send + 'static) -> Registered {
        let mut state = self.lock();
        if let Some(error) = state.stopped.clone() {
            drop(state);
            hook(error);
            return Registered(self.clone(), u64::MAX);
        }
        let id = state.next;
        state.next += 1;
        state.hooks.push((id, Box::new(hook)));
        Registered(self.clone(), id)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.lock().hooks.retain(|(id, _)| *id != self.1);
    }
}
