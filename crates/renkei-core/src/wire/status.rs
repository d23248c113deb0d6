//! What a PoP tells of itself.

use super::message::{Class, Progress};
use crate::identity::Principal;
use crate::path::SiteName;
use serde::{Deserialize, Serialize};

/// What a PoP is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Program version.
    pub software: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Control sessions open now.
    pub sessions: u32,
    /// Transfers running now, those the asker may see.
    pub transfers: Vec<TransferStatus>,
    /// Lines between this PoP and others.
    pub lines: Vec<LineStatus>,
    /// For whom circuits pass through this PoP, those the asker may see.
    pub relayed: Vec<RelayedStatus>,
    /// The storages that agents serve.
    pub agents: Vec<AgentStatus>,
}

/// A storage that an agent serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The storage.
    pub storage: String,
    /// The account that may run the agent, and whose users it serves.
    pub account: String,
    /// Seconds since it is connected; `None` while it is not.
    pub up_s: Option<u64>,
}

/// A line that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineStatus {
    /// The site at the other end.
    pub site: SiteName,
    /// Whether this PoP keeps it, because it cannot be dialled; else the other does.
    pub kept_here: bool,
    /// Seconds since it is up.
    pub up_s: u64,
}

/// Circuits that pass through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedStatus {
    /// For whom.
    pub principal: String,
    /// Where they lead: a site, or an agent of this one.
    pub to: Principal,
    /// Open now.
    pub circuits: u32,
    /// Bytes passed, both ways.
    pub bytes: u64,
}

/// One running transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferStatus {
    /// Identity, hex.
    pub id: String,
    /// For whom.
    pub principal: String,
    /// `receive` or `send`.
    pub direction: String,
    /// The place at this site.
    pub place: String,
    /// How much of the path it may take.
    pub class: Class,
    /// How far it is.
    pub progress: Progress,
}
