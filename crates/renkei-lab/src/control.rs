//! The requests and replies of a lab's control socket.

use super::folder::LabFolder;
use super::shape::{Delay, Loss, Mtu, Policer, Queue, Rate, Shape, Share};
use super::topology::Gate;
use renkei_core::error::{Code, Error};
use renkei_core::lab::link::LinkCounters;
use renkei_net::identity::socket;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// The state and the counters.
    Show,
    /// Overlay a shape on the named links.
    Set {
        /// Links as `a..b`, `a->b` or `a`, with `/PATH` or without.
        links: String,
        /// The settings to change.
        shape: Shape,
    },
    /// End the lab.
    Stop,
}

/// A snapshot of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The lab's name.
    pub name: String,
    /// The engine: `wire` or `kernel`.
    pub engine: String,
    /// The reason for the choice of the engine.
    pub engine_reason: String,
    /// The random seed of the wire; the kernel does not tell its own.
    pub seed: Option<u64>,
    /// The lab's process.
    pub pid: u32,
    /// Uptime in seconds.
    pub uptime_s: f64,
    /// CPU time that the engine has used, in seconds; the kernel's own work is not in it.
    pub engine_cpu_s: f64,
    /// The sites.
    pub sites: Vec<SiteStatus>,
    /// The directed links.
    pub links: Vec<LinkStatus>,
}

/// A snapshot of a site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Its name.
    pub name: String,
    /// Its network namespace.
    pub namespace: String,
    /// Its addresses, one per path.
    pub addresses: Vec<Ipv4Addr>,
    /// The traffic that its border lets in.
    pub gate: Gate,
    /// The folder of its storage, if it has a PoP.
    pub storage: Option<PathBuf>,
    /// The pid of its PoP, if it has one that runs.
    pub pop_pid: Option<u32>,
}

/// A snapshot of a directed link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Its name, as `kek->titech`.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Its capacity.
    pub rate: Rate,
    /// Its one-way delay.
    pub delay: Delay,
    /// Maximum deviation of a packet's delay.
    pub jitter: Delay,
    /// Its loss.
    pub loss: Loss,
    /// Its policer.
    #[serde(default)]
    pub policer: Policer,
    /// Its queue limit as configured; none is the engine's default.
    pub queue: Option<Queue>,
    /// Share of packets that are reordered.
    pub reorder: Share,
    /// Largest IP packet.
    pub mtu: Mtu,
    /// Its counters since the lab came up. Packets are counted as on a cable: segments of a frame that the kernel
    /// left whole (GSO) count one by one.
    #[serde(flatten)]
    pub counted: LinkCounters,
}

/// Sends a request to a running lab.
///
/// # Errors
/// `LabUnknown` if there is no such lab, `LabDied` if its process has ended, else the error of the lab's reply.
pub fn ask(folder: &LabFolder, request: &Request) -> Result<serde_json::Value, Error> {
    let request = serde_json::to_value(request).expect("a request is plain data");
    socket::request(&folder.socket(), &request).map_err(|error| match error.code {
        Code::PopNotRunning if !folder.exists() => {
            Error::new(Code::LabUnknown, "find lab", folder.name(), "there is no such lab")
        }
        Code::PopNotRunning => Error::new(Code::LabDied, "ask lab", folder.name(), error.cause),
        _ => error,
    })
}

/// Requests a snapshot of a running lab.
pub fn snapshot(folder: &LabFolder) -> Result<Snapshot, Error> {
    let answer = ask(folder, &Request::Show)?;
    serde_json::from_value(answer)
        .map_err(|error| Error::new(Code::Internal, "read answer", folder.name(), error))
}
