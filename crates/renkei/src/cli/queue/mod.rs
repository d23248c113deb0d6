//! Verbs on queued transfers, drop folders, the buffer and unfinished copies.

pub(crate) mod asker;
pub(crate) mod buffer;
pub(crate) mod change;
pub(crate) mod pace;
pub(crate) mod queued;
pub(crate) mod rule;
pub(crate) mod transfers;
pub(crate) mod unfinished;
pub(crate) mod wait;
pub(crate) mod why;
