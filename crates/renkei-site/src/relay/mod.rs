//! Relayed traffic: circuits through this PoP, reverse connections that others keep to it, and agents.
//!
//! [`circuits`] permits and makes circuits, at the rates of `pace`; [`reverse_connections`] lists the sessions of sites
//! without a reachable port. [`agents`] is the PoP's half of an agent, [`agent_client`] the agent's.

pub mod agent_client;
pub mod agents;
pub mod circuits;
pub(crate) mod pace;
pub mod reverse_connections;
