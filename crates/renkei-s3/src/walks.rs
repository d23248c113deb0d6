//! Walks that wait for the next page: it goes on where the one before ended, without reading wide folders again.
//!
//! A walk is kept for a minute, for the key that signed, and used once. A page without one begins anew behind its last key.

use crate::walk::Walk;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most walks that are kept, of one key and of all.
const MOST_OF_KEY: usize = 4;
const MOST: usize = 16;
/// A walk that remembers more entries is not kept: with the others it is some 200 MB.
const MOST_ENTRIES: usize = 200_000;
/// For so long the client may take for a page.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// The page that a walk waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NextPage {
    /// The key that signed.
    pub(crate) signer: Arc<str>,
    pub(crate) bucket: String,
    pub(crate) prefix: String,
    pub(crate) delimiter: String,
    /// The last key of the page before.
    pub(crate) after: String,
}

struct Waiting {
    page: NextPage,
    walk: Walk,
    since: Instant,
}

/// The walks of the process.
static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

fn waiting() -> MutexGuard<'static, Vec<Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The walk that waits for a page.
pub(crate) fn take(page: &NextPage) -> Option<Walk> {
    let mut all = waiting();
    let at = all.iter().position(|one| one.page == *page && one.since.elapsed() < KEPT_FOR)?;
    Some(all.remove(at).walk)
}

/// Keeps a walk for a page, in place of one that waited for the same.
pub(crate) fn keep(page: NextPage, walk: Walk) {
    if walk.len() > MOST_ENTRIES {
        return;
    }
    let mut gone = Vec::new();
    {
        let mut all = waiting();
        gone.extend(all.extract_if(.., |one| one.page == page || one.since.elapsed() >= KEPT_FOR));
        let of_key = all.iter().filter(|one| one.page.signer == page.signer).count();
        if of_key >= MOST_OF_KEY {
            let oldest = all.iter().position(|one| one.page.signer == page.signer);
            gone.extend(oldest.map(|at| all.remove(at)));
        } else if all.len() >= MOST {
            gone.push(all.remove(0));
        }
        all.push(Waiting { page, walk, since: Instant::now() });
    }
    // Directories are closed outside the lock.
    drop(gone);
}
