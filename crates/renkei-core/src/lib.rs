//! The rules and state machines of renkei, without clock, randomness, sockets, files or database.
//!
//! A tour: [`error`] has every failure, [`path`] and [`entry`] the nouns, [`former_names`] what renamed sites were called, [`wire`] what travels between two
//! daemons, [`mover`] the state machines of one transfer, [`link`] the control of a path, [`route`] the ways to a site,
//! [`identity`] the rules that turn a principal into an account, [`queue`] what becomes of a transfer that was handed in,
//! [`buffer`] the room in a relay's buffer, [`namespace`] the tree of a volume (no verb uses it yet), [`drop_folder`] what of a drop folder is complete, [`units`] sizes and rates as
//! people read them, [`lease`] who is told of changes before they are acknowledged,
//! [`admission`] who of those that prove nothing may stay,
//! [`lab`] what an emulated link does to a frame, and [`sim`] runs the transfer on a virtual clock.

pub mod admission;
pub mod buffer;
pub mod drop_folder;
pub mod entry;
pub mod error;
pub mod former_names;
pub mod identity;
pub mod lab;
pub mod lease;
pub mod link;
pub mod mover;
pub mod namespace;
pub mod path;
pub mod queue;
pub mod remedy;
pub mod route;
pub mod sim;
pub mod units;
pub mod wire;
