//! Reused threads that work as accounts: a small operation costs no new thread and no change of identity.
//!
//! A thread keeps the identity it has assumed, and takes jobs of that account alone; an account whose groups have changed is
//! another one. Idle threads end after [`IDLE`]. A job may block: while all threads of an account are busy, further ones
//! are started.

use super::account::Account;
use renkei_core::error::Error;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum idle threads of one account; more end at once.
const MOST_IDLE: usize = 16;

/// Longest name of a thread in Linux, in bytes.
const MOST_NAME: usize = 15;
/// The name of a thread without a job.
const IDLE_NAME: &CStr = c"account";

type Job = Box<dyn FnOnce() + Send>;

/// The threads of this process.
static POOL: LazyLock<AccountPool> = LazyLock::new(AccountPool::default);

#[derive(Default)]
struct AccountPool(Mutex<State>);

#[derive(Default)]
struct State {
    last: u64,
    idle: HashMap<Account, Vec<Worker>>,
}

/// A thread that waits for jobs.
struct Worker {
    number: u64,
    jobs: Sender<Job>,
}

impl Account {
    /// Runs work as the account on a reused thread, which has the name of the work meanwhile, and waits for it.
    ///
    /// # Errors
    /// That of the work; `AccountNotServed`, or `SystemCall` if no thread could be started.
    pub fn run<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, done) = sync_channel(1);
        let name = CString::new(&name[..name.len().min(MOST_NAME)]).unwrap_or_default();
        let job = move || {
            show_name(&name);
            let worked = work();
            show_name(IDLE_NAME);
            drop(answer.send(worked));
        };
        POOL.submit(self, Box::new(job))?;
        done.recv().expect("a panic aborts the process")
    }
}

/// Names the calling thread, as `top -H` and debuggers show it.
fn show_name(name: &CStr) {
    if let Err(error) = rustix::thread::set_name(name) {
        tracing::debug!(%error, ?name, "a thread has no name");
    }
}

impl AccountPool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Gives a job to an idle thread, else to a new one.
    fn submit(&'static self, account: &Account, job: Job) -> Result<(), Error> {
        let idle = self.state().idle.get_mut(account).and_then(Vec::pop);
        match idle {
            Some(worker) => {
                worker.jobs.send(job).expect("a thread that is taken from the pool waits for its job")
            }
            None => self.start(account, job)?,
        }
        Ok(())
    }

    fn start(&'static self, account: &Account, first: Job) -> Result<(), Error> {
        let number = {
            let mut state = self.state();
            state.last += 1;
            state.last
        };
        let own = account.clone();
        // A thread that is started by one that works as an account has more of that than its identity: it is not reused.
        let is_clean = rustix::process::geteuid() == rustix::process::getuid();
        let body = move || {
            let (jobs, queue) = channel();
            first();
            while is_clean && self.park(&own, Worker { number, jobs: jobs.clone() }) {
                let Some(job) = self.next(&own, number, &queue) else { return };
                job();
            }
        };
        account.spawn("account", body).map(drop)
    }

    /// Offers a thread for further jobs; `false` if there are enough.
    fn park(&self, account: &Account, worker: Worker) -> bool {
        let mut state = self.state();
        let idle = state.idle.entry(account.clone()).or_default();
        if idle.len() >= MOST_IDLE {
            return false;
        }
        idle.push(worker);
        true
    }

    /// The next job of a parked thread; none if it was idle for too long.
    fn next(&self, account: &Account, number: u64, queue: &Receiver<Job>) -> Option<Job> {
        if let Ok(job) = queue.recv_timeout(IDLE) {
            return Some(job);
        }
        let mut state = self.state();
        let idle = state.idle.entry(account.clone()).or_default();
        let parked = idle.iter().position(|worker| worker.number == number);
        if let Some(at) = parked {
            idle.remove(at);
        }
        if idle.is_empty() {
            state.idle.remove(account);
        }
        drop(state);
        match parked {
            Some(_) => None,
            // It was taken meanwhile, and its job is on the way.
            None => queue.recv().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;
    use std::collections::HashSet;
    use std::sync::{Arc, Barrier};
    use std::thread::{ThreadId, current};

    fn thread_of(account: &Account) -> ThreadId {
        account.run("test", || Ok(current().id())).unwrap()
    }

    #[test]
    fn threads_are_reused_by_their_account_only() {
        let own = Account::own().unwrap();
        // Groups that no other test has, so that the threads are this test's alone.
        let account =
            |group: u32| Account { groups: vec![group], name: format!("pool-{group}"), ..own.clone() };
        let (one, other) = (account(4_000_001), account(4_000_002));
        let mut seen = HashSet::from([thread_of(&one)]);
        assert!(!seen.contains(&current().id()));
        // A thread parks itself after it has answered.
        let again = (0..1000).any(|_| !seen.insert(thread_of(&one)));
        assert!(again && !seen.contains(&thread_of(&other)));
    }

    #[test]
    fn jobs_that_block_do_not_wait_for_one_another() {
        let account = Account { name: "pool-barrier".into(), ..Account::own().unwrap() };
        let all = Arc::new(Barrier::new(8));
        let callers = (0..8).map(|_| {
            let (account, all) = (account.clone(), all.clone());
            std::thread::spawn(move || {
                let work = move || {
                    all.wait();
                    Ok(current().id())
                };
                account.run("test", work).unwrap()
            })
        });
        let callers: Vec<_> = callers.collect();
        let threads: HashSet<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        assert_eq!(threads.len(), 8);
    }

    #[test]
    fn a_reserved_thread_waits_for_its_job() {
        let (account, pool) = (Account::own().unwrap(), AccountPool::default());
        let (jobs, queue) = channel::<Job>();
        // It is not in the list any more, and the list of its account is gone, too.
        jobs.send(Box::new(|| {})).unwrap();
        let late = queue.try_recv().unwrap();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(IDLE + Duration::from_millis(200));
            jobs.send(late).is_ok()
        });
        assert!(pool.next(&account, 1, &queue).is_some());
        assert!(sender.join().unwrap());
    }

    #[test]
    fn errors_and_refused_accounts_are_returned() {
        let own = Account::own().unwrap();
        let failed = own.run("test", || Err::<(), _>(Error::new(Code::PathNotFound, "open", "x", "")));
        assert_eq!(failed.unwrap_err().code, Code::PathNotFound);
        let nobody = Account { uid: u32::MAX - 1, groups: vec![1; 70_000], ..own };
        assert!(nobody.run("test", || Ok(())).is_err());
    }
}
