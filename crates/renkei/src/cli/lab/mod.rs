//! `renkei lab`: an emulated federation on this machine, which `renkei_lab` runs. `show` prints it.

pub(crate) mod show;

use super::Context;
use super::lab::show as lab_show;
use super::lab::show::Listing;
use super::output::Report;
use clap::{Subcommand, ValueEnum};
use renkei_config::home::{file_error, make_dir};
use renkei_core::error::{Code, Error};
use renkei_lab::control::{Request, Snapshot, ask};
use renkei_lab::emulation;
use renkei_lab::folder::LabFolder;
use renkei_lab::pops::last_words;
use renkei_lab::shape::{Delay, Loss, Mtu, Policer, Queue, Rate, Shape, Share};
use renkei_lab::topology::{EngineChoice, Topology};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Timeout for a lab to stop, its PoPs included.
const STOP_WITHIN: Duration = Duration::from_secs(30);

/// Emulate a federation on this machine: sites, links, PoPs
///
/// Needs root. docs/lab.md has the fields of a topology file.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei lab up lab/seven-sites.toml                  start it\n  renkei lab run kek -- ping -c 3 titech              any program, at a site\n  renkei lab run kek -- renkei cp run7 titech:/data/  a copy over the emulated link\n  renkei lab set titech..nagoya --rate 40M --loss 0.1%\n  renkei lab set 'nagoya->titech' --down\n  renkei lab show --watch\n  renkei lab down                                     leaves nothing behind"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a lab; returns when all links carry packets and all PoPs answer
    Up {
        /// The topology
        file: PathBuf,
        /// Another name than the file's
        #[arg(long, value_name = "NAME")]
        lab: Option<String>,
        /// Stay, and take the lab down when this command is stopped
        #[arg(long)]
        foreground: bool,
        #[command(flatten)]
        packets: Packets,
    },
    /// Run a program at a site; its exit status and signals are the program's own
    Run {
        #[command(flatten)]
        lab: Which,
        /// Name of the site
        site: String,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<OsString>,
    },
    /// Change links while packets cross them
    Set {
        #[command(flatten)]
        lab: Which,
        /// SITE..SITE for both directions, SITE->SITE for one, SITE for all of a site; with /PATH only that path
        links: String,
        #[command(flatten)]
        change: Change,
    },
    /// Show sites and links: settings, present rate, queue, drops
    Show {
        #[command(flatten)]
        lab: Which,
        /// Show it again every second until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// List the labs of this machine
    List,
    /// End a lab and all that runs in it, or remove the leftovers of a crash
    Down {
        #[command(flatten)]
        lab: Which,
    },
    /// Run as a lab's process, which `up` starts
    #[command(hide = true)]
    Emulate {
        /// The topology
        file: PathBuf,
        /// The lab's name
        #[arg(long)]
        lab: String,
        #[command(flatten)]
        packets: Packets,
    },
}

/// Settings that differ from the file.
#[derive(Debug, clap::Args)]
struct Packets {
    /// Engine that moves the packets, instead of that in the file: the kernel's netem and htb, or the wire
    #[arg(long, value_enum)]
    engine: Option<EngineChoice>,
    /// The seed of the wire's random events; the same seed gives the same events
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
}

impl Packets {
    fn read(&self, file: &Path, name: Option<&str>) -> Result<Topology, Error> {
        let mut topology = Topology::read(file, name)?;
        topology.engine = self.engine.unwrap_or(topology.engine);
        topology.seed = self.seed.or(topology.seed);
        Ok(topology)
    }

    /// The options as arguments for another process.
    fn arguments(&self) -> Vec<String> {
        let engine = self.engine.and_then(|engine| engine.to_possible_value());
        let engine = engine.map(|value| format!("--engine={}", value.get_name()));
        engine.into_iter().chain(self.seed.map(|seed| format!("--seed={seed}"))).collect()
    }
}

/// Which lab is meant.
#[derive(Debug, clap::Args)]
struct Which {
    /// Name of the lab; also RENKEI_LAB [default: the only one there is]
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
}

impl Which {
    fn folder(&self) -> Result<LabFolder, Error> {
        self.lab.as_ref().map_or_else(LabFolder::only, |name| LabFolder::of(name))
    }
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Change {
    /// Capacity, as 40M, 1.5G or unlimited
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// One-way delay, as 5ms
    #[arg(long, value_name = "TIME")]
    delay: Option<Delay>,
    /// Most that a packet may be early or late, as 0.5ms
    #[arg(long, value_name = "TIME")]
    jitter: Option<Delay>,
    /// Packets lost, as 0.1% or '0.1% burst 8'
    #[arg(long, value_name = "SHARE")]
    loss: Option<Loss>,
    /// Rate beyond which packets are dropped, as '500M burst 64KB', or none
    #[arg(long, value_name = "POLICER")]
    policer: Option<Policer>,
    /// Room before the link, as 256KB, 1000p or '0.5 BDP'
    #[arg(long, value_name = "SIZE")]
    queue: Option<Queue>,
    /// Packets that overtake, as 0.1%
    #[arg(long, value_name = "SHARE")]
    reorder: Option<Share>,
    /// Largest IP packet in bytes
    #[arg(long, value_name = "BYTES")]
    mtu: Option<Mtu>,
    /// Cut the link
    #[arg(long, conflicts_with = "up")]
    down: bool,
    /// Mend the link
    #[arg(long)]
    up: bool,
}

impl Change {
    fn shape(&self) -> Shape {
        let Change { rate, delay, jitter, loss, policer, queue, reorder, mtu, .. } = *self;
        let up = (self.up || self.down).then_some(self.up);
        Shape { rate, delay, jitter, loss, policer, queue, reorder, mtu, up }
    }
}

#[derive(Serialize)]
struct Started {
    name: String,
    engine: String,
    engine_reason: String,
    pid: u32,
    sites: Vec<String>,
    pops: Vec<String>,
    log: Option<PathBuf>,
}

#[derive(Serialize)]
struct Ended {
    name: String,
    action: &'static str,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Up { file, lab, foreground, packets } => {
            up(file, lab.as_deref(), packets, *foreground, context)
        }
        Action::Run { lab, site, program } => {
            emulation::exec_at(&lab.folder()?, site, program).map(|never| match never {})
        }
        Action::Set { lab, links, change } => set(&lab.folder()?, links, change, context),
        Action::Show { lab, watch } => lab_show::show(&lab.folder()?, *watch, context),
        Action::List => context.output.answer(&Listing::read()).map(|()| 0),
        Action::Down { lab } => down(&lab.folder()?, context),
        Action::Emulate { file, lab, packets } => emulate(file, lab, packets),
    }
}

// ---- up --------------------------------------------------------------------------------------------------------------

fn up(
    file: &Path,
    name: Option<&str>,
    packets: &Packets,
    foreground: bool,
    context: &Context,
) -> Result<u8, Error> {
    let topology = packets.read(file, name)?;
    emulation::check_machine(&topology)?;
    let folder = LabFolder::of(&topology.name)?;
    if foreground {
        let stop = stop_on_signal()?;
        emulation::run(&folder, topology, &stop, |snapshot| {
            context.output.done(&Started::new(snapshot, None))
        })?;
        return Ok(0);
    }
    // Fails at once, before anything is changed, if the lab runs already.
    drop(folder.lock()?);
    let snapshot = start_process(file, packets, &folder)?;
    context.output.done(&Started::new(&snapshot, Some(folder.log())))?;
    Ok(0)
}

fn stop_on_signal() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::Release))
        .map_err(|error| Error::new(Code::SystemCall, "wait for signals", "", error))?;
    Ok(stop)
}

/// Starts the lab's process and waits for its first line: a snapshot, or an error.
fn start_process(file: &Path, packets: &Packets, folder: &LabFolder) -> Result<Snapshot, Error> {
    let failed = |error: io::Error| Error::new(Code::SystemCall, "start lab", folder.name(), error);
    make_dir(&folder.path(), 0o755)?;
    let log = File::create(folder.log()).map_err(|error| file_error("create", &folder.log(), &error))?;
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["-v", "lab", "emulate", "--lab", folder.name()])
        .args(packets.arguments())
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if let Ok(snapshot) = serde_json::from_str(&line) {
        return Ok(snapshot);
    }
    let _ = child.wait();
    let words = last_words(&folder.log());
    if let Ok(_lock) = folder.lock() {
        folder.remove()?;
    }
    let died = |_| Error::new(Code::LabDied, "start lab", folder.name(), format!("it said: {words}"));
    Err(serde_json::from_str::<Error>(&line).unwrap_or_else(died))
}

/// The lab's process: in a session of its own, so that the end of a terminal does not end it.
fn emulate(file: &Path, name: &str, packets: &Packets) -> Result<u8, Error> {
    let _ = rustix::process::setsid();
    let started = || {
        let topology = packets.read(file, Some(name))?;
        let stop = stop_on_signal()?;
        emulation::run(&LabFolder::of(name)?, topology, &stop, tell)
    };
    let outcome = started();
    if let Err(error) = &outcome {
        let _ = tell(error);
    }
    outcome.map(|()| 0)
}

/// Sends a message to the process that started this one, on one line.
///
/// # Errors
/// `Cancelled` if it is gone: the user would not know of the lab.
fn tell(value: &impl Serialize) -> Result<(), Error> {
    let line = serde_json::to_string(value).expect("what is told is plain data");
    writeln!(io::stdout(), "{line}").map_err(|error| {
        Error::new(Code::Cancelled, "start lab", "", format!("the command that asked ended: {error}"))
    })
}

impl Started {
    fn new(snapshot: &Snapshot, log: Option<PathBuf>) -> Self {
        let pops = snapshot.sites.iter().filter(|site| site.pop_pid.is_some()).map(|site| site.name.clone());
        Started {
            name: snapshot.name.clone(),
            engine: snapshot.engine.clone(),
            engine_reason: snapshot.engine_reason.clone(),
            pid: snapshot.pid,
            sites: snapshot.sites.iter().map(|site| site.name.clone()).collect(),
            pops: pops.collect(),
            log,
        }
    }
}

impl Report for Started {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let names = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(", ") };
        writeln!(out, "lab {} is up, process {}", self.name, self.pid)?;
        writeln!(out, "  engine {} ({})", self.engine, self.engine_reason)?;
        writeln!(out, "  sites  {}", names(&self.sites))?;
        writeln!(out, "  PoPs   {}", names(&self.pops))?;
        if let Some(log) = &self.log {
            writeln!(out, "  log    {}", log.display())?;
        }
        let (first, last) = (&self.sites[0], &self.sites[self.sites.len() - 1]);
        let lab = format!("--lab {}", self.name);
        writeln!(
            out,
            "\nNext:\n  renkei lab run {lab} {first} -- ping -c 3 {last}\n  renkei lab show {lab}\n  renkei lab down {lab}"
        )
    }
}

// ---- set and down ----------------------------------------------------------------------------------------------------

fn set(folder: &LabFolder, links: &str, change: &Change, context: &Context) -> Result<u8, Error> {
    let answer = ask(folder, &Request::Set { links: links.into(), shape: change.shape() })?;
    let snapshot: Snapshot = serde_json::from_value(answer)
        .map_err(|error| Error::new(Code::Internal, "read answer", folder.name(), error))?;
    context.output.done(&lab_show::Changed::new(snapshot, links, folder)?)?;
    Ok(0)
}

fn down(folder: &LabFolder, context: &Context) -> Result<u8, Error> {
    emulation::need_root(folder.name())?;
    if !folder.exists() {
        return Err(Error::new(Code::LabUnknown, "end lab", folder.name(), "there is no such lab"));
    }
    let mut asked = StopRequest::Nobody;
    let start = Instant::now();
    let lock = loop {
        asked.stop(folder);
        match folder.lock() {
            Err(error) if error.code == Code::LabRunning && start.elapsed() < 2 * STOP_WITHIN => {
                if let Some(state) = folder.running().ok().filter(|_| start.elapsed() > STOP_WITHIN) {
                    state.signal(rustix::process::Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => break outcome?,
        }
    };
    folder.remove()?;
    drop(lock);
    let action = if asked != StopRequest::Nobody { "ended" } else { "removed what was left" };
    context.output.done(&Ended { name: folder.name().into(), action })?;
    Ok(0)
}

/// How the lab was asked to stop: a lab that is still starting may have no state yet, then no socket.
#[derive(PartialEq, Eq)]
enum StopRequest {
    Nobody,
    /// By a signal to this pid.
    Process(i32),
    /// Over its socket; it has replied.
    Lab,
}

impl StopRequest {
    /// Asks the lab to stop, unless it was asked already.
    fn stop(&mut self, folder: &LabFolder) {
        if *self == StopRequest::Lab {
            return;
        }
        if ask(folder, &Request::Stop).is_ok() {
            *self = StopRequest::Lab;
        } else if let Some(state) =
            folder.running().ok().filter(|state| *self != StopRequest::Process(state.pid))
        {
            state.signal(rustix::process::Signal::TERM);
            *self = StopRequest::Process(state.pid);
        }
    }
}

impl Report for Ended {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "lab {}: {}", self.name, self.action)
    }
}
