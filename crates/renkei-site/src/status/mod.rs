//! The state of the PoP as people and monitoring see it, and the work it does in the background.

pub mod conditions;
pub mod console;
pub mod health_checks;
pub mod inventory;
pub mod periodic_checks;
pub mod transfer_list;
pub mod view;
pub mod workers;
