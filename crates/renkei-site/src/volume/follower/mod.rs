//! The work of a site that follows a volume: its outbox goes to the home, its copy of the tree comes from there.

pub(crate) mod bootstrap;
pub(crate) mod outbox_push;
pub(crate) mod restored_home;
pub(crate) mod unsubscribe;
