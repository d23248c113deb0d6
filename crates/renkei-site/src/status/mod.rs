//! The state of the PoP as people and monitoring see it, and the work it does in the background.
//!
//! [`conditions`] is the list of faults, filled by [`health_checks`]; [`periodic_checks`] are some of
//! the background threads, and [`free_space`] is a cache. [`console`] has the visitors of the web pages; [`view`], [`inventory`] and
//! [`transfer_list`] are what the pages show.

pub mod conditions;
pub mod console;
pub mod free_space;
pub mod health_checks;
pub mod inventory;
pub mod periodic_checks;
pub mod transfer_list;
pub mod view;
