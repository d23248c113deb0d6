//! The state of the PoP as people and monitoring see it, and the work it does in the background.
//!
//! [`conditions`] is the list of faults, filled by [`health_checks`]; [`workers`] lists the background threads, and
//! [`periodic_checks`] has some of them. [`console`] has the visitors of the web pages; [`view`], [`inventory`] and
//! [`transfer_list`] are what the pages show.

pub mod conditions;
pub mod console;
pub mod health_checks;
pub mod inventory;
pub mod periodic_checks;
pub mod transfer_list;
pub mod view;
