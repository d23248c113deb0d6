//! `renkei mount`: files of sites as a file system of this machine.

use super::Context;
use super::connect::{dialler, place, remote};
use super::output::Report;
use crate::home::{file_error, make_dir};
use crate::mount::Options;
use crate::mount::point::{self, Stop};
use crate::mover::far::{self, Config, Far, FarFiles};
use renkei_core::error::{Code, Error};
use renkei_core::path::printable;
use renkei_core::wire::file::Files;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long a lost site is tried before calls fail, if they are to fail.
const FAIL_AFTER: Duration = Duration::from_secs(2);

/// Show files of a site as a file system of this machine
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The mount goes on in the background until `renkei umount`; --foreground keeps it here. docs/mount.md says what is \
                       promised, and has lines for /etc/fstab and systemd.\n\nExamples:\n  renkei mount kek:/data/run7 ~/run7\n  \
                       renkei mount --read-only kek:/data /mnt/kek\n  renkei umount ~/run7"
)]
pub struct Args {
    /// SITE:/STORAGE/PATH; /VOLUME/PATH is at your own site
    #[arg(value_name = "SITE:/PATH")]
    source: OsString,
    /// An empty directory of this machine
    #[arg(value_name = "MOUNTPOINT")]
    point: PathBuf,
    /// Let nothing be changed
    #[arg(long)]
    read_only: bool,
    /// Stay until it is unmounted, and log here
    #[arg(long)]
    foreground: bool,
    /// Let other users of this machine in, whose access the modes of the files decide; they act as you at the site
    #[arg(long)]
    allow_other: bool,
    /// What programs get when the site is not reached: wait until it is, or fail with an I/O error
    #[arg(long, value_name = "HOW", default_value = "wait")]
    when_lost: WhenLost,
    /// How long the kernel believes what it knows of a file that is not opened, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    attr_ttl: Duration,
    /// Tell the process that started this one how it went
    #[arg(long, hide = true)]
    tell: bool,
}

/// What becomes of calls when the site is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhenLost {
    /// They wait.
    Wait,
    /// They fail.
    Fail,
}

/// What is told when a mount is there.
#[derive(Serialize, Deserialize)]
struct Started {
    source: String,
    mount_point: PathBuf,
    process: u32,
    log: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|time| *time <= Duration::from_secs(86_400)).ok_or("seconds from 0 to 86400".into())
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    if !args.foreground {
        let started = in_background(args, context)?;
        context.output.done(&started)?;
        return Ok(0);
    }
    let outcome = serve(args, context);
    if let (true, Err(error)) = (args.tell, &outcome) {
        let _ = tell(error);
    }
    outcome.map(|()| 0)
}

// ---- in the foreground -----------------------------------------------------------------------------------------------

fn serve(args: &Args, context: &Context) -> Result<(), Error> {
    if args.tell {
        // The end of the terminal is not the end of the mount.
        let _ = rustix::process::setsid();
    }
    let (files, source) = files(args, context)?;
    let options = Options {
        source: source.clone(),
        point: absolute(&args.point)?,
        is_read_only: args.read_only,
        allow_other: args.allow_other,
        attr_ttl: args.attr_ttl,
    };
    let stop = Stop::default();
    end_on_signal(&stop)?;
    let started =
        Started { source, mount_point: options.point.clone(), process: std::process::id(), log: None };
    point::run(files, &options, &stop, || match args.tell {
        true => tell(&started),
        false => context.output.done(&started),
    })
}

/// Who does the operations, and the name of what is mounted.
fn files(args: &Args, context: &Context) -> Result<(Arc<dyn Files>, String), Error> {
    let path = remote(&args.source, context)?;
    let (site, place) = (path.site.clone(), place(&path)?);
    let far = Far { dialler: dialler(context, &[&site])?, site, place, write: !args.read_only };
    let when_lost = match args.when_lost {
        WhenLost::Wait => far::WhenLost::Wait,
        WhenLost::Fail => far::WhenLost::Fail(FAIL_AFTER),
    };
    Ok((Arc::new(FarFiles::open(far, Config { when_lost, ..Config::default() })?), path.to_string()))
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| file_error("find", path, &error))
}

/// Ends in order when the process is told to end.
fn end_on_signal(stop: &Stop) -> Result<(), Error> {
    let stop = stop.clone();
    ctrlc::set_handler(move || {
        let lost = stop.stop();
        std::process::exit(i32::from(lost > 0));
    })
    .map_err(|error| Error::new(Code::SystemCall, "wait for signals", "", error))
}

// ---- in the background -----------------------------------------------------------------------------------------------

/// Starts the process of the mount and waits for its first line: that it is there, or an error.
fn in_background(args: &Args, context: &Context) -> Result<Started, Error> {
    let (log, path) = log(args, context)?;
    let failed = |error: io::Error| Error::new(Code::SystemCall, "start mount", args.point.display(), error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    if let Some(dir) = &context.dir {
        command.arg("--dir").arg(dir);
    }
    command.arg("-v").args(args.words());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    if let Ok(started) = serde_json::from_str::<Started>(&line) {
        return Ok(Started { log: Some(path), ..started });
    }
    let _ = child.wait();
    let died = |_| {
        let words = fs::read_to_string(&path).unwrap_or_default();
        let cause = format!("its process ended and said: {}", words.lines().last().unwrap_or_default());
        Error::new(Code::MountFailed, "mount", args.point.display(), cause)
    };
    Err(serde_json::from_str::<Error>(&line).unwrap_or_else(died))
}

impl Args {
    /// The words that say the same to another process.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["mount".into(), "--foreground".into(), "--tell".into()];
        let flags = [("--read-only", self.read_only), ("--allow-other", self.allow_other)];
        words.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.into()));
        let when_lost = if self.when_lost == WhenLost::Wait { "wait" } else { "fail" };
        words.extend(["--when-lost".into(), when_lost.into()]);
        words.extend(["--attr-ttl".into(), self.attr_ttl.as_secs_f64().to_string().into(), "--".into()]);
        words.extend([self.source.clone(), self.point.clone().into()]);
        words
    }
}

/// Where the process of a mount logs: one file for each mount point, begun anew each time.
fn log(args: &Args, context: &Context) -> Result<(File, PathBuf), Error> {
    let folder = context.home()?.state_dir().join("mounts");
    make_dir(&folder, 0o700)?;
    let point = absolute(&args.point)?;
    let name = printable(point.as_os_str().as_bytes()).replace(['/', '\\'], "-");
    // A file name may have 255 bytes.
    let name: String =
        name.trim_matches('-').chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
    let path = folder.join(format!("{name}.log"));
    Ok((File::create(&path).map_err(|error| file_error("create", &path, &error))?, path))
}

/// Says something to the process that started this one, on one line.
fn tell(value: &impl Serialize) -> Result<(), Error> {
    let line = serde_json::to_string(value).expect("what is told is plain data");
    writeln!(io::stdout(), "{line}").map_err(|error| {
        Error::new(Code::Cancelled, "mount", "", format!("the command that asked ended: {error}"))
    })
}

impl Report for Started {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} is at {}", self.source, self.mount_point.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Args {
        Line::try_parse_from([&["x"], words].concat()).map(|line| line.args).unwrap()
    }

    #[test]
    fn another_process_is_told_the_same() {
        let args =
            parse(&["--read-only", "--when-lost", "fail", "--attr-ttl", "0.5", "--", "kek:/data", "-x"]);
        let words = args.words();
        let text: Vec<_> = words.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
        let again = parse(&text);
        assert!(again.foreground && again.tell && again.read_only && !again.allow_other);
        assert_eq!((again.when_lost, again.attr_ttl), (WhenLost::Fail, Duration::from_millis(500)));
        assert_eq!((again.source, again.point), (args.source, args.point));
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert!(["-1", "x", "1e9", "nan"].iter().all(|text| seconds(text).is_err()));
    }
}
