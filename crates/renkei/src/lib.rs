//! The program `renkei`: the command line, and the daemon of a PoP or an agent.
//!
//! [`cli`] has one file for each verb, in folders by subject. [`daemon`] is the only place that wires a PoP together:
//! port, doors, local socket, site and signals. Everything else is in the crates below, of which this one may use all.

pub mod cli;
pub mod daemon;
