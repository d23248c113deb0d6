//! Relayed traffic: circuits through this PoP, reverse connections that others keep to it, and agents.

pub mod agent_client;
pub mod agents;
pub mod circuits;
pub(crate) mod pace;
pub mod reverse_connections;
