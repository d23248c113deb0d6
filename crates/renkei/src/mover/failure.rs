//! How a session ends early: the first error wins, the peer is told, every thread is woken.

use crate::net::control::ControlSender;
use renkei_core::error::{Code, Error};
use renkei_core::wire::message::Control;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A broken data stream is often the echo of something the peer says on the control stream; it may take so long.
const ECHO: Duration = Duration::from_secs(2);

#[derive(Default)]
struct State {
    first: Option<Error>,
    over: bool,
    failed: Option<Instant>,
}

/// The end of one session, shared by its threads.
pub(super) struct Failure {
    state: Mutex<State>,
    /// As in the state, to be asked for each entry and unit without the lock; set while that is held.
    over: AtomicBool,
    changed: Condvar,
    control: Arc<ControlSender>,
    sockets: Vec<Arc<TcpStream>>,
}

impl Failure {
    pub(super) fn new(control: Arc<ControlSender>, sockets: Vec<Arc<TcpStream>>) -> Self {
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

    /// Ends the session with `error`, unless it has ended or the peer soon says why it ends.
    pub(super) fn set(&self, error: Error) {
        if matches!(error.code, Code::ConnectionLost | Code::Stalled) && self.wait_for(ECHO) {
            return;
        }
        self.set_now(error);
    }

    /// Ends the session with `error`, unless it has ended.
    pub(super) fn set_now(&self, error: Error) {
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
        let _ = self.control.socket().shutdown(Shutdown::Read);
        self.close_streams();
    }

    /// Ends the session in order; its streams stay open if they are `kept`.
    pub(super) fn finish(&self, kept: bool) {
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

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(super) fn first(&self) -> Option<Error> {
        self.lock().first.clone()
    }

    /// Whether what the peer says is passed over, because the session has failed. It is read on for a moment, so that the
    /// peer hears why; a peer that never stops is left then.
    ///
    /// # Errors
    /// The first one, after that moment.
    pub(super) fn passes_over(&self) -> Result<bool, Error> {
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
    pub(super) fn wait(&self) {
        let state = self.lock();
        drop(self.changed.wait_while(state, |state| !state.over));
    }

    /// Waits for the end at most so long; true if it has come.
    pub(super) fn wait_for(&self, timeout: Duration) -> bool {
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

/// A request from outside to stop a transfer; clones share it.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<StopState>>);

/// Keeps a hook registered.
pub struct Registered(Stop, u64);

impl Stop {
    fn lock(&self) -> std::sync::MutexGuard<'_, StopState> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Whether both are one.
    pub fn is_same(&self, other: &Stop) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Stops what is registered and whatever will be.
    pub fn stop(&self, error: Error) {
        let mut state = self.lock();
        state.stopped.get_or_insert_with(|| error.clone());
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        hooks.iter().for_each(|(_, hook)| hook(error.clone()));
    }

    /// Why it was stopped, if it was.
    pub fn stopped(&self) -> Option<Error> {
        self.lock().stopped.clone()
    }

    /// Fails if it was stopped, with why.
    pub fn check(&self) -> Result<(), Error> {
        self.stopped().map_or(Ok(()), Err)
    }

    /// Registers what to do when it is stopped, as long as the value returned lives.
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
