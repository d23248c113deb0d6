//! The output of `renkei lab show`, `set` and `list`.

use crate::cli::Context;
use crate::cli::output::Report;
use crate::cli::quantity::{bit_rate, counted, human, span};
use renkei_core::error::Error;
use renkei_lab::control::{LinkStatus, SiteStatus, Snapshot, snapshot};
use renkei_lab::folder::LabFolder;
use renkei_lab::shape::Queue;
use renkei_lab::topology::Gate;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// The interval over which the current rate is measured.
const MEASURE: Duration = Duration::from_millis(500);
/// Refresh interval of `--watch`.
const EVERY: Duration = Duration::from_secs(1);

/// A lab with the rates of its links.
#[derive(Serialize)]
struct Shown {
    name: String,
    engine: String,
    engine_reason: String,
    seed: Option<u64>,
    pid: u32,
    uptime_s: f64,
    engine_cpu_s: f64,
    sites: Vec<SiteStatus>,
    links: Vec<Measured>,
}

/// A link and its rate between two snapshots.
#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    link: LinkStatus,
    rate_now_bits: f64,
}

pub(crate) fn show(folder: &LabFolder, watch: bool, context: &Context) -> Result<u8, Error> {
    let mut before = snapshot(folder)?;
    let mut pause = MEASURE;
    loop {
        std::thread::sleep(pause);
        let now = snapshot(folder)?;
        if watch && !context.output.is_json() && io::stdout().is_terminal() {
            // Cursor home, and clear to the end of the screen.
            print!("\x1b[H\x1b[J");
        }
        context.output.answer(&Shown::between(&before, now.clone()))?;
        if !watch || reader_left() {
            return Ok(0);
        }
        (before, pause) = (now, EVERY);
    }
}

/// Whether standard output is a pipe whose reader has closed it.
fn reader_left() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let polled = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && watched[0].revents().contains(PollFlags::ERR)
}

impl Shown {
    fn between(before: &Snapshot, now: Snapshot) -> Self {
        let passed = (now.uptime_s - before.uptime_s).max(1e-3);
        let earlier = |link: &LinkStatus| {
            before.links.iter().find(|old| old.name == link.name).map_or(0, |old| old.counted.bytes)
        };
        let measured = |link: LinkStatus| {
            let bytes = link.counted.bytes.saturating_sub(earlier(&link));
            Measured { rate_now_bits: bytes as f64 * 8.0 / passed, link }
        };
        Shown {
            name: now.name,
            engine: now.engine,
            engine_reason: now.engine_reason,
            seed: now.seed,
            pid: now.pid,
            uptime_s: now.uptime_s,
            engine_cpu_s: now.engine_cpu_s,
            sites: now.sites,
            links: now.links.into_iter().map(measured).collect(),
        }
    }
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let up = span(Duration::from_secs_f64(self.uptime_s));
        let Shown { name, engine, engine_reason, pid, engine_cpu_s, .. } = self;
        let seed = self.seed.map(|seed| format!("  seed {seed}")).unwrap_or_default();
        writeln!(
            out,
            "lab {name}  engine {engine} ({engine_reason})  process {pid}  up {up}  engine CPU {engine_cpu_s:.1} s{seed}\n"
        )?;
        let width = self.sites.iter().map(|site| site.name.len()).max().unwrap_or(0).max(4);
        writeln!(out, "{:<width$}  {:<15}  {:<8}  PoP", "site", "address", "border")?;
        self.sites.iter().try_for_each(|site| writeln!(out, "{}", site_line(site, width)))?;
        let width = self.links.iter().map(|measured| measured.link.name.len()).max().unwrap_or(0).max(4);
        writeln!(
            out,
            "\n{:<width$}  {:>10}  {:>10}  {:>12}  {:>10}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}  {:>8}",
            "link", "rate", "delay", "now", "loss", "queue", "peak", "lost", "overflow", "policed", "dropped"
        )?;
        self.links.iter().try_for_each(|measured| writeln!(out, "{}", measured.line(width)))
    }
}

fn site_line(site: &SiteStatus, width: usize) -> String {
    let address = site.addresses.first().map(ToString::to_string).unwrap_or_default();
    let border = match site.gate {
        Gate::Open => "open",
        Gate::Outbound => "outbound",
        Gate::Nat => "nat",
    };
    let pop = match (site.pop_pid, &site.storage) {
        (Some(pid), Some(storage)) => format!("process {pid}, data in {}", storage.display()),
        (None, Some(_)) => "ended".into(),
        (_, None) => "none".into(),
    };
    format!("{:<width$}  {address:<15}  {border:<8}  {pop}", site.name)
}

impl Measured {
    fn line(&self, width: usize) -> String {
        let LinkStatus { name, rate, delay, loss, counted, up, .. } = &self.link;
        let now = if *up { bit_rate(self.rate_now_bits) } else { "down".into() };
        let (queue, peak) = (human(counted.queue_bytes), human(counted.queue_peak_bytes));
        // Padded as text: the units' own formatting ignores widths.
        let (rate, delay, loss) = (rate.to_string(), delay.to_string(), loss.to_string());
        format!(
            "{name:<width$}  {rate:>10}  {delay:>10}  {now:>12}  {loss:>10}  {queue:>8}  {peak:>8}  {:>8}  {:>8}  {:>8}  {:>8}",
            counted.lost, counted.overflowed, counted.policed, counted.dropped
        )
    }
}

/// The links after `set`.
#[derive(Serialize)]
pub(crate) struct Changed {
    name: String,
    links: Vec<LinkStatus>,
}

impl Changed {
    pub(crate) fn new(snapshot: Snapshot, chosen: &str, folder: &LabFolder) -> Result<Self, Error> {
        let topology = folder.state()?.topology;
        let names: Vec<String> =
            topology.select(chosen)?.into_iter().map(|at| topology.link_name(&topology.links[at])).collect();
        let links = snapshot.links.into_iter().filter(|link| names.contains(&link.name)).collect();
        Ok(Changed { name: snapshot.name, links })
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.links.iter().try_for_each(|link| writeln!(out, "{}", settings(link)))
    }
}

fn settings(link: &LinkStatus) -> String {
    let LinkStatus { name, up, rate, delay, jitter, loss, policer, reorder, mtu, .. } = link;
    if !up {
        return format!("{name}  down");
    }
    let queue = link.queue.as_ref().map_or_else(|| "default".into(), Queue::to_string);
    format!(
        "{name}  rate {rate}  delay {delay}  jitter {jitter}  loss {loss}  policer {policer}  queue {queue}  reorder {reorder}  mtu {mtu}"
    )
}

/// The labs of this machine.
#[derive(Serialize)]
pub(crate) struct Listing {
    labs: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    running: bool,
    sites: usize,
    pid: Option<i32>,
}

impl Listing {
    pub(crate) fn read() -> Self {
        let row = |name: String| {
            let state = LabFolder::of(&name).and_then(|folder| folder.state()).ok();
            let running = state.as_ref().is_some_and(|state| state.is_alive());
            let sites = state.as_ref().map_or(0, |state| state.topology.sites.len());
            Row { name, running, sites, pid: state.filter(|_| running).map(|state| state.pid) }
        };
        Listing { labs: LabFolder::all().into_iter().map(row).collect() }
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for Row { name, sites, pid, .. } in &self.labs {
            match pid {
                Some(pid) => {
                    writeln!(out, "{name:<24} running, {}, process {pid}", counted(sites, "site", "sites"))?;
                }
                None => writeln!(
                    out,
                    "{name:<24} left over from a crash; `renkei lab down --lab {name}` removes it"
                )?,
            }
        }
        Ok(())
    }
}
