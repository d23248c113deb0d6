//! What a thread may give away of the rights of the account it works as.
//!
//! An account works for principals of its own, who may do here whatever it may, and for others: whom a grant on a volume
//! lets in, who uses a storage that has an account, the site from which a replica comes. Those others name owners,
//! groups, access lists and set-id bits as they like, and would have them from an account that may set them: from root all.
//! So a thread that works for others is *lent*, for good, and applies none of these: what it makes belongs to its account.
//! As with its uid, that goes by the thread; guarantee: `metadata::apply` asks here each time. Non-goal: reading.

use std::cell::Cell;

thread_local! {
    static IS_LENT: Cell<bool> = const { Cell::new(false) };
    static KEEPS_ACLS: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread work for others from now on.
pub fn lend() {
    IS_LENT.set(true);
}

/// Whether the calling thread works for others.
pub fn is_lent() -> bool {
    IS_LENT.get()
}

/// Whether the access lists that are applied now may be.
pub(super) fn may_set_acls() -> bool {
    !IS_LENT.get() || KEEPS_ACLS.get()
}

/// Does some work in which access lists come from the plain file whose new version is published, not from a sender.
pub(super) fn keeping_acls<T>(work: impl FnOnce() -> T) -> T {
    let before = KEEPS_ACLS.replace(true);
    let done = work();
    KEEPS_ACLS.set(before);
    done
}
