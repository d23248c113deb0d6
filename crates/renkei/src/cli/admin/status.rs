//! `renkei status`: the activities of a PoP.

use crate::cli::asker::ask_socket;
use crate::cli::connect::{session, site_argument, unexpected};
use crate::cli::output::Report;
use crate::cli::quantity::{counted, human, span};
use crate::cli::queue::why;
use crate::cli::remedy::here;
use crate::cli::{Context, login};
use renkei_catalogue::first_digits;
use renkei_config::Config;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::message::{
    AgentStatus, Class, Progress, RelayedStatus, Reply, Request, Status, TransferStatus,
};
use renkei_net::identity::socket;
use renkei_site::status::conditions::Condition;
use renkei_site::workers::Worker;
use serde::Serialize;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Show the activity of a PoP: sessions and running transfers
///
/// Without SITE: the PoP of this machine, with everybody's transfers. With SITE: that site's, with yours. With the id
/// of a queued transfer: how that stands.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The site to ask, or the first digits (4 at least) of a queued transfer's id [default: the PoP of this machine]
    #[arg(value_name = "SITE|ID")]
    site: Option<OsString>,
    /// Of a queued transfer: list every file that failed
    #[arg(long, requires = "site")]
    failures: bool,
    /// List the background threads of the PoP of this machine
    #[arg(long, conflicts_with_all = ["site", "failures"])]
    workers: bool,
}

#[derive(Serialize)]
struct Shown {
    site: Option<String>,
    #[serde(flatten)]
    status: Status,
    /// The conditions that need attention; for the administrator of the PoP alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Vec<Condition>>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    if let Some(digits) =
        args.site.as_deref().and_then(OsStr::to_str).filter(|text| first_digits(text).is_some())
    {
        match why::tell(digits, false, false, args.failures, context) {
            // The argument may be the name of a site, too.
            Err(unknown) if unknown.code == Code::TransferUnknown && !args.failures => {
                let shown = SiteName::parse(digits).and_then(|site| of_site(&site, context));
                return answer(shown.map_err(|_| unknown)?, context);
            }
            told => return told,
        }
    }
    if args.failures {
        let cause = "--failures is for a queued transfer; write the first digits of its id";
        return Err(Error::new(Code::UsageInvalid, "show status", "--failures", cause));
    }
    if args.workers {
        context.output.answer(&workers(context)?)?;
        return Ok(0);
    }
    let shown = match &args.site {
        None => local(context)?,
        Some(site) => of_site(&site_argument(site)?, context)?,
    };
    answer(shown, context)
}

fn answer(shown: Shown, context: &Context) -> Result<u8, Error> {
    context.output.answer(&shown)?;
    Ok(0)
}

/// The status of a site, with the user's transfers.
fn of_site(site: &SiteName, context: &Context) -> Result<Shown, Error> {
    match session(context, site)?.ask(Request::Status)? {
        Reply::Status(status) => Ok(Shown { site: Some(site.to_string()), status, conditions: None }),
        other => Err(unexpected(&other)),
    }
}

fn local(context: &Context) -> Result<Shown, Error> {
    let home = context.home()?;
    let path = login::socket(&home, None);
    let mut answer = socket::request(&path, &json!({"op": "status"}))?;
    let conditions: Option<Vec<Condition>> = serde_json::from_value(answer["conditions"].take()).ok();
    // The PoP does not know the `--dir` of its directory here.
    let typed_here = |condition: Condition| Condition { remedy: here(&condition.remedy), ..condition };
    let conditions = conditions.map(|all| all.into_iter().map(typed_here).collect());
    let status = serde_json::from_value(answer)
        .map_err(|error| Error::new(Code::ProtocolViolation, "read reply", path.display(), error))?;
    // Also with an invalid configuration while the PoP runs: that is among its conditions.
    let site = Config::load(&home).ok().and_then(|config| config.site).map(|site| site.to_string());
    Ok(Shown { site, status, conditions })
}

/// The background threads as they are shown.
#[derive(Serialize)]
struct ShownWorkers {
    workers: Vec<ShownWorker>,
}

/// One background thread; times in seconds since 1970.
#[derive(Serialize)]
struct ShownWorker {
    name: String,
    task: String,
    turns: u64,
    last_run_unix: Option<u64>,
    last_run_ms: u64,
    next_run_unix: Option<u64>,
    busy_s: Option<u64>,
    backlog: Option<u64>,
    error: Option<Error>,
}

fn workers(context: &Context) -> Result<ShownWorkers, Error> {
    let workers: Vec<Worker> = ask_socket(context, &json!({"op": "workers"}))?;
    let unix = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let shown = |worker: Worker| ShownWorker {
        name: worker.name,
        task: worker.task,
        turns: worker.turns,
        last_run_unix: worker.ended.map(unix),
        last_run_ms: u64::try_from(worker.took.as_millis()).unwrap_or(u64::MAX),
        next_run_unix: worker.next.map(unix),
        busy_s: worker.busy.map(|busy| busy.as_secs()),
        backlog: worker.backlog,
        error: worker.trouble,
    };
    Ok(ShownWorkers { workers: workers.into_iter().map(shown).collect() })
}

impl Report for ShownWorkers {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for worker in &self.workers {
            let ShownWorker { name, task, turns, last_run_unix, last_run_ms, .. } = worker;
            let last = match (worker.busy_s, last_run_unix) {
                (Some(busy), _) => format!("working for {}", span(Duration::from_secs(busy))),
                (None, Some(at)) => {
                    format!(
                        "{} ago, took {last_run_ms} ms",
                        span(Duration::from_secs(now.saturating_sub(*at)))
                    )
                }
                (None, None) => "not yet".into(),
            };
            let due = worker.backlog.map(|due| format!("  {due} due")).unwrap_or_default();
            writeln!(out, "{name:<11} {last:<28} turns {turns}{due}  {task}")?;
            if let Some(error) = &worker.error {
                writeln!(out, "{:<11} {error}", "")?;
            }
        }
        Ok(())
    }
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Status { software, uptime_s, sessions, transfers, lines, relayed, agents } = &self.status;
        let site = self.site.as_ref().map(|site| format!("{site}  ")).unwrap_or_default();
        let up = span(Duration::from_secs(*uptime_s));
        writeln!(out, "{site}{software}  up {up}  sessions {sessions}  transfers {}", transfers.len())?;
        let now = SystemTime::now();
        for condition in self.conditions.iter().flatten() {
            let Condition { severity, found, remedy, .. } = condition;
            let (about, lasts) = (condition.subject(), span(condition.lasts(now)));
            writeln!(out, "  {}  {about}  for {lasts}  {found} - {remedy}", severity.name())?;
        }
        for line in lines {
            let to = if line.kept_here { "kept to" } else { "from" };
            writeln!(out, "  line {to} {}  up {}", line.site, span(Duration::from_secs(line.up_s)))?;
        }
        for AgentStatus { storage, account, up_s } in agents {
            let state = match up_s {
                Some(up_s) => format!("up {}", span(Duration::from_secs(*up_s))),
                None => "not connected".into(),
            };
            writeln!(out, "  agent of {storage}  {account}  {state}")?;
        }
        for passing in relayed {
            let RelayedStatus { principal, to, circuits, bytes } = passing;
            writeln!(out, "  passed on  {principal}  to {to}  connections {circuits}  {}", human(*bytes))?;
        }
        transfers.iter().try_for_each(|transfer| writeln!(out, "  {}", line(transfer)))
    }
}

fn line(transfer: &TransferStatus) -> String {
    let TransferStatus { id, principal, direction, place, class, progress } = transfer;
    let short = id.get(..8).unwrap_or(id);
    let class = match class {
        Class::Normal => "",
        Class::Background => "  background",
    };
    let told = if direction == "files" { files_text(progress) } else { progress_text(progress) };
    format!("{short}  {direction:<7}  {principal}  {place}{class}  {told}")
}

/// The counters of a file session.
fn files_text(progress: &Progress) -> String {
    let operations = counted(progress.files_done, "operation", "operations");
    format!("{operations}  {}", human(progress.bytes_moved))
}

fn progress_text(progress: &Progress) -> String {
    let more = if progress.walk_done { "" } else { "+" };
    let done = progress.bytes_done.max(progress.bytes_moved);
    let percent = match progress.bytes_found {
        0 => String::new(),
        found => format!("  {} %", done.min(found) * 100 / found),
    };
    let found = counted(format_args!("{}{more}", progress.files_found), "file", "files");
    format!(
        "{}/{found}  {} of {}{more}{percent}",
        progress.files_done,
        human(done),
        human(progress.bytes_found)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_one_line() {
        let progress = Progress {
            files_found: 40,
            bytes_found: 4096,
            walk_done: false,
            files_done: 10,
            bytes_done: 1024,
            bytes_moved: 2048,
        };
        assert_eq!(progress_text(&progress), "10/40+ files  2.0K of 4.0K+  50 %");
        assert_eq!(progress_text(&Progress::default()), "0/0+ files  0 of 0+");
    }
}
