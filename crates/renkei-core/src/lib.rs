//! The rules and state machines of renkei, without clock, randomness, sockets, files or database.
//!
//! A tour: [`error`] has every failure, [`path`], [`entry`], [`ids`] and [`principal`] the basic types,
//! [`former_names`] the aliases of renamed sites, [`format`](mod@format) the formats of stored values, [`encoding`] and
//! [`batch`] the binary form of values, [`block`] memory for content, [`backoff`] the pauses of retries, [`wire`] the protocol between two daemons,
//! [`mover`] the state machines of one transfer, [`link`] the congestion control of a path, [`route`] the ways to a
//! site, [`identity`] the mapping of principals to accounts, [`queue`] the queue of submitted transfers, [`buffer`] the
//! reservations in a PoP's buffer, [`namespace`] the tree of a volume, [`drop_folder`] the detection of complete files
//! in a drop folder, [`units`] sizes and rates in human-readable form, [`lease`] leases with callbacks before a change
//! is acknowledged, [`invalidation`] what the callbacks say, [`admission`] the admission control of unauthenticated
//! connections, [`lab`] the impairments of an emulated link, and [`sim`] runs the transfer on a virtual clock. It uses
//! no other crate of renkei.

pub mod admission;
pub mod backoff;
pub mod batch;
pub mod block;
pub mod buffer;
pub mod drop_folder;
pub mod encoding;
pub mod entry;
pub mod error;
pub mod format;
pub mod former_names;
pub mod identity;
pub mod ids;
pub mod invalidation;
pub mod lab;
pub mod lease;
pub mod link;
pub mod mover;
pub mod name_table;
pub mod namespace;
pub mod path;
pub mod principal;
pub mod queue;
pub mod remedy;
pub mod route;
pub mod sim;
pub mod units;
pub mod wire;
