//! What a lab's process can be asked over its control socket, and what it answers.

use super::folder::LabFolder;
use super::shape::{Delay, Loss, Mtu, Queue, Rate, Shape, Share};
use super::topology::Gate;
use crate::identity::socket;
use renkei_core::error::{Code, Error};
use renkei_core::lab::link::LinkCounters;
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// What is there, and the counters.
    Show,
    /// Lay a shape over the links that are named.
    Set {
        /// As `a..b`, `a->b` or `a`, with `/PATH` or without.
        links: String,
        /// What is to change.
        shape: Shape,
    },
    /// End the lab.
    Stop,
}

/// A lab at a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The lab's name.
    pub name: String,
    /// What moves the packets: `wire` or `kernel`.
    pub engine: String,
    /// Why it is this one.
    pub engine_reason: String,
    /// What decides the wire's chances; the kernel does not say what decides its own.
    pub seed: Option<u64>,
    /// The lab's process.
    pub pid: u32,
    /// For how long it has been up, in seconds.
    pub uptime_s: f64,
    /// CPU that the engine has used, in seconds; the kernel's own work is not in it.
    pub engine_cpu_s: f64,
    /// The sites.
    pub sites: Vec<SiteStatus>,
    /// The directed links.
    pub links: Vec<LinkStatus>,
}

/// A site at a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteStatus {
    /// Its name.
    pub name: String,
    /// Its network namespace.
    pub namespace: String,
    /// Its address on each path it has.
    pub addresses: Vec<Ipv4Addr>,
    /// What its border lets in.
    pub gate: Gate,
    /// The folder of its storage, if it has a PoP.
    pub storage: Option<PathBuf>,
    /// The process of its PoP, if it has one and it runs.
    pub pop_pid: Option<u32>,
}

/// A directed link at a moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// As `kek->titech`.
    pub name: String,
    /// Whether it carries anything.
    pub up: bool,
    /// Its capacity.
    pub rate: Rate,
    /// Its one-way delay.
    pub delay: Delay,
    /// How far a packet's delay may be from that.
    pub jitter: Delay,
    /// Its loss.
    pub loss: Loss,
    /// Its queue as it was asked for; none is the engine's default.
    pub queue: Option<Queue>,
    /// Share of packets that overtake.
    pub reorder: Share,
    /// Largest IP packet.
    pub mtu: Mtu,
    /// What it carried and dropped since the lab came up. Packets are what would be on a cable: parts of a frame that
    /// the kernel left whole count one by one.
    #[serde(flatten)]
    pub counted: LinkCounters,
}

/// Asks a running lab.
///
/// # Errors
/// `LabUnknown` if there is no such lab, `LabDied` if its process has ended, else what the lab answered.
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

/// Asks a running lab what is there.
pub fn snapshot(folder: &LabFolder) -> Result<Snapshot, Error> {
    let answer = ask(folder, &Request::Show)?;
    serde_json::from_value(answer)
        .map_err(|error| Error::new(Code::Internal, "read answer", folder.name(), error))
}
