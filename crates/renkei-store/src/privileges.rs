//! Privileges of a thread: whether it may set owners, access lists and set-id bits with the rights of its account.
//!
//! An account works for principals of its own, which may do here whatever it may, and for others: principals admitted
//! by a grant on a volume, users of a storage that has an account, the site from which a replica comes. Those others
//! name owners, groups, access lists and set-id bits as they like, and would get them from an account that may set
//! them: from root all. So a thread that works for others is *lent*, for good, and applies none of these: the files
//! it makes belong to its account. Like the uid, this is per thread; guarantee: `metadata::apply` checks it each
//! time. Non-goal: reading.

use std::cell::Cell;

thread_local! {
    static IS_LENT: Cell<bool> = const { Cell::new(false) };
    static KEEPS_ACLS: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as working for others from now on.
pub fn lend() {
    IS_LENT.set(true);
}

/// Whether the calling thread works for others.
pub fn is_lent() -> bool {
    IS_LENT.get()
}

/// Whether the calling thread may set access lists now.
pub(super) fn may_set_acls() -> bool {
    !IS_LENT.get() || KEEPS_ACLS.get()
}

/// Runs `work`, in which access lists come from the plain file whose new version is published, not from a sender.
pub fn keeping_acls<T>(work: impl FnOnce() -> T) -> T {
    let before = KEEPS_ACLS.replace(true);
    let done = work();
    KEEPS_ACLS.set(before);
    done
}
