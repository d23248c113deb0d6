//! Threads with the identity of the PoP, for what threads of accounts need of it.
//!
//! A thread that is started by one of an account cannot become the PoP's again. So one thread, which the PoP starts
//! itself, starts those that do such work.

use renkei_core::error::Error;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::{Builder, spawn};

type Job = Box<dyn FnOnce() + Send>;

/// The thread that starts others; it ends with this value.
pub(crate) struct OwnThreads(Sender<Job>);

impl OwnThreads {
    /// Starts it; the caller has the identity of the PoP.
    pub(crate) fn start() -> Self {
        let (jobs, queue) = channel::<Job>();
        let start_each = move || queue.into_iter().for_each(|job| drop(spawn(job)));
        Builder::new()
            .name("own".into())
            .spawn(start_each)
            .expect("a process that begins can start a thread");
        OwnThreads(jobs)
    }

    /// Does some work with the identity of the PoP, and waits for it.
    ///
    /// # Errors
    /// That of the work.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, done) = sync_channel(1);
        let job = Box::new(move || drop(answer.send(work())));
        self.0.send(job).expect("the thread ends with this value");
        done.recv().expect("a panic aborts the process")
    }
}
