//! The work of a site that follows a volume: its outbox goes to the home, its copy of the tree comes from there.
//!
//! [`log_tailing`] applies the records of the home ([`following`]: how far), `outbox_push` sends own changes,
//! `bootstrap` takes the tree in pages, `restored_home` continues with the log of a restored home, `unsubscribe` ends
//! the subscription.

pub(crate) mod bootstrap;
pub mod following;
pub mod log_tailing;
pub(crate) mod outbox_push;
pub(crate) mod restored_home;
pub(crate) mod unsubscribe;
