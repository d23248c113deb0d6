//! Identifiers of a transfer and its entries.

/// Identifier of one transfer, chosen by the client, in the logs of every side.
pub type TransferId = [u8; 16];

/// Number of an entry within one session, counted by the sender from 0.
pub type EntryId = u64;
