//! Relayed traffic: circuits through this PoP, reverse connections that others keep to it, and agents.
//!
//! [`circuits`] permits and makes circuits, at the rates of `pace`; [`reverse_connections`] lists the sessions of sites
//! without a reachable port, and makes diallers, which know them. [`agents`] is the PoP's half of an agent.

pub mod agents;
pub mod circuits;
pub(crate) mod pace;
pub mod reverse_connections;

use crate::access::Caller;
use crate::snapshot::Snapshot;
use crate::{Context, Counters};
use circuits::Circuits;
use renkei_core::path::SiteName;
use renkei_core::wire::message::Status;
use renkei_mover::connect::route_context::ReachabilityCache;
use renkei_net::reverse_registry::ReverseRegistry;
use reverse_connections::{OwnLines, ReverseConnections};
use std::sync::Arc;

/// The relay of a PoP.
pub struct Relay {
    context: Arc<Context>,
    circuits: Circuits,
    /// The lines to this PoP.
    pub(crate) reverse_registry: Arc<ReverseRegistry>,
    /// Reachability of other sites.
    pub memory: ReachabilityCache,
    held: ReverseConnections,
    pub(crate) own_lines: OwnLines,
}

impl Relay {
    /// A relay without connections.
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Relay {
            context: context.clone(),
            circuits: Circuits::default(),
            reverse_registry: Arc::default(),
            memory: ReachabilityCache::default(),
            held: ReverseConnections::default(),
            own_lines: OwnLines::default(),
        }
    }

    /// Fills in the lines, circuits and agents that the caller may see.
    pub(crate) fn add_status(&self, caller: Caller<'_>, status: &mut Status) {
        let access = caller.user();
        status.lines = self.line_status(|site| access.is_none_or(|access| access.principal.site() == site));
        status.relayed =
            self.circuits.list(|principal| access.is_none_or(|access| access.principal == *principal));
        status.agents = self.agent_status(|storage| access.is_none_or(|access| access.may_see(storage)));
    }

    /// Ends lines and circuits that a new configuration forbids.
    pub(crate) fn judge(&self, now: &Snapshot) {
        let left = self.held.look(now);
        let trusted = |site: &SiteName| now.trust.card(site).is_some();
        self.circuits
            .end(|principal, to| !trusted(principal.site()) || !trusted(to.site()) || left.contains(to));
        Counters::add(&self.context.counters.tickets_refused_total, self.circuits.refuse_late());
    }
}
