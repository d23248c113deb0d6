//! The status of a PoP.

use super::types::Class;
use crate::mover::summary::Progress;
use crate::path::SiteName;
use crate::principal::Principal;
use serde::{Deserialize, Serialize};

/// The status of a PoP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Program version.
    pub software: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Open control sessions.
    pub sessions: u32,
    /// Running transfers that the asker may see.
    pub transfers: Vec<TransferStatus>,
    /// Lines between this PoP and others.
    pub lines: Vec<LineStatus>,
    /// Relayed circuits that the asker may see, by principal.
    pub relayed: Vec<RelayedStatus>,
    /// The storages served by agents.
    pub agents: Vec<AgentStatus>,
}

/// A storage that an agent serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The storage.
    pub storage: String,
    /// The account that may run the agent, and whose users it serves.
    pub account: String,
    /// Seconds since it connected; `None` while it is not connected.
    pub up_s: Option<u64>,
}

/// A line that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineStatus {
    /// The site at the other end.
    pub site: SiteName,
    /// Whether this PoP keeps it open, because it cannot be dialled; otherwise the other one does.
    pub kept_here: bool,
    /// Seconds since it came up.
    pub up_s: u64,
}

/// Relayed circuits of one principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedStatus {
    /// The principal they are relayed for.
    pub principal: String,
    /// Their destination: a site, or an agent of this one.
    pub to: Principal,
    /// Open circuits.
    pub circuits: u32,
    /// Bytes relayed, both ways.
    pub bytes: u64,
}

/// One running transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferStatus {
    /// Transfer id, hexadecimal.
    pub id: String,
    /// The principal it runs for.
    pub principal: String,
    /// `receive` or `send`.
    pub direction: String,
    /// The place at this site.
    pub place: String,
    /// The share of the path it may take.
    pub class: Class,
    /// Its progress.
    pub progress: Progress,
}
