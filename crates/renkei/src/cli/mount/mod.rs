//! `renkei mount`: files of sites as a file system of this machine, which `renkei_mount` serves.
//!
//! This folder gives the mount its files: a file session of `renkei_mover`, or a store of this machine. `umount` ends a
//! mount, `credential` keeps the certificate of mounts without a logged-in user, `fstab` is `mount.renkei`.

pub(crate) mod credential;
pub(crate) mod fstab;
pub(crate) mod umount;

use super::Context;
use super::connect::{dialler, dialler_of, own_site, site_or_place, unexpected};
use super::login::socket;
use super::mount::credential::spawn_renewal;
use super::output::Report;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use renkei_config::home::{file_error, make_dir};
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place, RelPath, SiteName, printable};
use renkei_core::wire::file::{Consistency, Files};
use renkei_core::wire::message::{Identity, Reply, Request};
use renkei_mount::Options;
use renkei_mount::mountpoint;
use renkei_mount::mountpoint::Stop;
use renkei_mount::preflight;
use renkei_mount::union_files::UnionFiles;
use renkei_mover::files::remote_files;
use renkei_mover::files::remote_files::{Config, FreshDialler, RemoteDir, RemoteFiles, until_it_passes};
use renkei_net::identity::credential::Credential;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How long a lost site is retried before calls fail, with `--when-lost fail`.
const FAIL_AFTER: Duration = Duration::from_secs(2);

/// Show files of a site as a file system of this machine
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "The mount goes on in the background until `renkei umount`; --foreground keeps it here. docs/mount.md says what is \
                       promised, and has lines for /etc/fstab and systemd.\n\nExamples:\n  renkei mount kek:/data/run7 ~/run7\n  renkei mount \
                       ~/renkei --volume genome\n  renkei mount /mnt/renkei\n  renkei mount --read-only kek:/data /mnt/kek\n  renkei umount ~/run7"
)]
pub struct Args {
    /// The place to mount, and an empty directory of this machine; without SITE:/PATH all storages and volumes of your own site
    ///
    /// SITE:/STORAGE/PATH; /VOLUME/PATH is at your own site, SITE:/ is all that a site has.
    #[arg(value_names = ["SITE:/PATH", "MOUNTPOINT"], num_args = 1..=2, required = true)]
    paths: Vec<OsString>,
    /// This volume of your own site, as /NAME
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Let nothing be changed
    #[arg(long)]
    read_only: bool,
    /// Stay until it is unmounted, and log here
    #[arg(long)]
    foreground: bool,
    /// Let other users of this machine in, whose access the modes of the files decide; they act as you at the site
    #[arg(long)]
    allow_other: bool,
    /// The behaviour of calls while the site is not reached: wait until it is, or fail with an I/O error
    #[arg(long, value_name = "HOW", default_value = "wait")]
    when_lost: WhenLost,
    /// How long the kernel caches attributes of a file that is not opened, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    attr_ttl: Duration,
    /// The state that `close` of a written file waits for: that it is on stable storage at the site, or nothing
    ///
    /// With `early` many small files go in much faster. A failure to publish is then in the log and the attribute
    /// user.renkei.error alone; other sites see a file a moment later; `fsync` and `renkei umount` still wait.
    #[arg(long, value_name = "WHEN", default_value = "durable")]
    close: Close,
    /// Versions that `open` sees of files closed at other sites: always the newest, or those that have come to the site
    ///
    /// Of volumes only. With `close-to-open` an open waits for the home where it has to; a site that is not reached is told by `renkei
    /// status` and files are as far as they came; with `strict` the open fails then (RK-NS-13). `relaxed` never waits.
    #[arg(long, value_name = "HOW", default_value = "close-to-open")]
    consistency: Sees,
    /// The place that decides about locks (flock, fcntl): the site, for all its mounts, or the kernel, for the programs of this mount
    #[arg(long, value_name = "WHO", default_value = "site")]
    locks: Locks,
    /// Mount over a directory that has files, which are hidden until it is unmounted
    #[arg(long)]
    non_empty: bool,
    /// Tell the process that started this one how it went
    #[arg(long, hide = true)]
    tell: bool,
}

/// The behaviour of calls when the site is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WhenLost {
    /// They wait.
    Wait,
    /// They fail.
    Fail,
}

/// The state that `close` waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Close {
    /// Stable storage at the site.
    Durable,
    /// Nothing.
    Early,
}

/// The changes of other sites that an open sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sees {
    /// All that was closed before, as far as the sites are reached.
    CloseToOpen,
    /// All that was closed before, or the open fails.
    Strict,
    /// The changes that have come to the site.
    Relaxed,
}

impl Sees {
    fn consistency(self) -> Consistency {
        match self {
            Sees::CloseToOpen => Consistency::CloseToOpen,
            Sees::Strict => Consistency::Strict,
            Sees::Relaxed => Consistency::Relaxed,
        }
    }
}

/// The place that decides about locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Locks {
    /// The site; a volume's home.
    Site,
    /// The kernel of this machine.
    Local,
}

/// The message of a started mount.
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
    if !args.tell && !args.non_empty {
        preflight::check(args.point())?;
    }
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

impl Args {
    /// The source; none for everything at the user's own site.
    fn source(&self) -> Result<Option<OsString>, Error> {
        let volume = self.volume.as_ref().map(|name| format!("/{name}").into());
        match (&self.paths[..], volume) {
            ([_], volume) => Ok(volume),
            ([source, _], None) => Ok(Some(source.clone())),
            _ => {
                let cause = "with --volume, name only the mount point";
                Err(Error::new(Code::UsageInvalid, "mount", self.point().display(), cause))
            }
        }
    }

    fn point(&self) -> &Path {
        Path::new(self.paths.last().expect("at least one is asked for"))
    }
}

fn serve(args: &Args, context: &Context) -> Result<(), Error> {
    if args.tell {
        // Detached from the terminal's session, so that its end does not end the mount.
        let _ = rustix::process::setsid();
    }
    let (files, source, is_read_only) = files(args, context)?;
    spawn_renewal(context)?;
    let options = Options {
        source: source.clone(),
        point: absolute(args.point())?,
        is_read_only,
        allow_other: args.allow_other,
        attr_ttl: args.attr_ttl,
        closes_early: args.close == Close::Early,
        locks_at_site: args.locks == Locks::Site,
        ends_process: true,
    };
    let stop = Stop::default();
    end_on_signal(&stop)?;
    let started =
        Started { source, mount_point: options.point.clone(), process: std::process::id(), log: None };
    mountpoint::run(files, &options, &stop, || match args.tell {
        true => tell(&started),
        false => context.output.done(&started),
    })
}

/// The file operations, the name of the source, and whether it is read-only.
fn files(args: &Args, context: &Context) -> Result<(Arc<dyn Files>, String, bool), Error> {
    let path = match args.source()? {
        Some(source) => site_or_place(&source, context)?,
        None => EndpointPath { site: own_site(context)?, place: None, trailing_slash: true },
    };
    let opening = Opening {
        fresh: fresh_dialler(context, &path.site),
        site: path.site.clone(),
        write: !args.read_only,
        attr_ttl: args.attr_ttl,
        consistency: args.consistency.consistency(),
        lender: socket(&context.home()?, None),
        when_lost: match args.when_lost {
            WhenLost::Wait => remote_files::WhenLost::Wait,
            WhenLost::Fail => remote_files::WhenLost::Fail(FAIL_AFTER),
        },
    };
    let Some(place) = &path.place else {
        // A user without access gets the error now.
        (opening.fresh)()?;
        let names = {
            let opening = opening.clone();
            move || until_it_passes(opening.when_lost, || opening.names())
        };
        let open = move |name: &str| {
            let place = Place { storage: name.into(), path: RelPath::root() };
            until_it_passes(opening.when_lost, || opening.open(place.clone())).map(|(files, _)| files)
        };
        let whole = UnionFiles::new(Box::new(names), Box::new(open));
        return Ok((Arc::new(whole), path.to_string(), args.read_only));
    };
    let (files, is_read_only) = opening.open(place.clone())?;
    Ok((files, path.to_string(), is_read_only))
}

/// A dialler with the current credential: that of this directory's mounts, else the user's.
fn fresh_dialler(context: &Context, site: &SiteName) -> FreshDialler {
    let (context, site) = (context.clone(), site.clone());
    Arc::new(move || {
        let home = context.home()?;
        match Credential::of_mount(&home)? {
            Some(_) => dialler_of(&context, &Credential::for_mount(&home, context.now())?, &[&site]),
            None => dialler(&context, &[&site]),
        }
    })
}

/// How file sessions with a site are opened.
#[derive(Clone)]
struct Opening {
    fresh: FreshDialler,
    site: SiteName,
    write: bool,
    when_lost: remote_files::WhenLost,
    attr_ttl: Duration,
    consistency: Consistency,
    /// The socket of this machine's PoP.
    lender: PathBuf,
}

impl Opening {
    /// Opens a place, read-only where it cannot be changed; also returns whether it is.
    fn open(&self, place: Place) -> Result<(Arc<dyn Files>, bool), Error> {
        let open = |write: bool| -> Result<Arc<dyn Files>, Error> {
            let (dialler, site) = ((self.fresh)()?, self.site.clone());
            let far = RemoteDir { dialler, site, place: place.clone(), write };
            let lender = self.lender.clone();
            // The kernel caches it for some time after that; leased attributes are never stale.
            let look_ttl = self.attr_ttl / 2;
            let Opening { when_lost, consistency, .. } = *self;
            let config = Config { when_lost, look_ttl, leases: true, consistency, ..Config::default() };
            let files =
                RemoteFiles::open(far, config)?.with_lender(lender).with_fresh_dialler(self.fresh.clone());
            Ok(Arc::new(files))
        };
        match open(self.write) {
            Err(error) if self.write && refuses_writing(error.code) => {
                tracing::info!(%error, "it can only be read");
                Ok((open(false)?, true))
            }
            opened => Ok((opened?, !self.write)),
        }
    }

    /// The storages and volumes that the user may use now.
    fn names(&self) -> Result<Vec<String>, Error> {
        match (self.fresh)()?.connect(&self.site)?.ask(Request::Whoami)? {
            Reply::Identity(Identity { storages, volumes, .. }) => {
                Ok(storages.into_iter().chain(volumes).map(|(name, _)| name).collect())
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn refuses_writing(code: Code) -> bool {
    matches!(code, Code::ReadOnlyStorage | Code::NotAllowed | Code::OutOfScope)
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|error| file_error("find", path, &error))
}

/// Shuts down in order on SIGINT and SIGTERM.
fn end_on_signal(stop: &Stop) -> Result<(), Error> {
    let stop = stop.clone();
    ctrlc::set_handler(move || {
        let lost = stop.stop();
        std::process::exit(i32::from(lost > 0));
    })
    .map_err(|error| Error::new(Code::SystemCall, "wait for signals", "", error))
}

// ---- in the background -----------------------------------------------------------------------------------------------

/// Starts the process of the mount and waits for its first line: that it is mounted, or an error.
fn in_background(args: &Args, context: &Context) -> Result<Started, Error> {
    let (log, path) = log(args, context)?;
    let failed =
        |error: io::Error| Error::new(Code::SystemCall, "start mount", args.point().display(), error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    if let Some(dir) = &context.dir {
        command.arg("--dir").arg(dir);
    }
    if let Some(identity) = &context.identity {
        command.arg("--identity").arg(identity);
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
        Error::new(Code::MountFailed, "mount", args.point().display(), cause)
    };
    Err(serde_json::from_str::<Error>(&line).unwrap_or_else(died))
}

impl Args {
    /// Whether this process is the mount.
    pub(super) fn stays(&self) -> bool {
        self.foreground
    }

    /// The command line that repeats the options for another process.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["mount".into(), "--foreground".into(), "--tell".into()];
        let flags = [("--read-only", self.read_only), ("--allow-other", self.allow_other)];
        words.extend(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag.into()));
        let when_lost = if self.when_lost == WhenLost::Wait { "wait" } else { "fail" };
        let locks = if self.locks == Locks::Site { "site" } else { "local" };
        words.extend(["--when-lost".into(), when_lost.into(), "--locks".into(), locks.into()]);
        let consistency = self.consistency.to_possible_value();
        let consistency = consistency.as_ref().map(PossibleValue::get_name);
        words.extend(consistency.into_iter().flat_map(|name| ["--consistency".into(), name.into()]));
        if self.close == Close::Early {
            words.extend(["--close".into(), "early".into()]);
        }
        words.extend(self.volume.iter().flat_map(|name| ["--volume".into(), name.into()]));
        words.extend(["--attr-ttl".into(), self.attr_ttl.as_secs_f64().to_string().into(), "--".into()]);
        words.extend(self.paths.clone());
        words
    }
}

/// The log of a mount's process: one file for each mount point, truncated each time.
fn log(args: &Args, context: &Context) -> Result<(File, PathBuf), Error> {
    let folder = context.home()?.state_dir().join("mounts");
    make_dir(&folder, 0o700)?;
    let point = absolute(args.point())?;
    let name = printable(point.as_os_str().as_bytes()).replace(['/', '\\'], "-");
    // A file name may have 255 bytes.
    let name: String =
        name.trim_matches('-').chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
    let path = folder.join(format!("{name}.log"));
    Ok((File::create(&path).map_err(|error| file_error("create", &path, &error))?, path))
}

/// Sends a message to the process that started this one, on one line.
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
    fn the_background_process_gets_the_same_options() {
        let args = parse(&[
            "--read-only",
            "--when-lost",
            "fail",
            "--attr-ttl",
            "0.5",
            "--close",
            "early",
            "--",
            "kek:/data",
            "-x",
        ]);
        let words = args.words();
        let text: Vec<_> = words.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
        let again = parse(&text);
        assert!(again.foreground && again.tell && again.read_only && !again.allow_other);
        assert_eq!((again.when_lost, again.attr_ttl), (WhenLost::Fail, Duration::from_millis(500)));
        assert_eq!((again.paths, again.close), (args.paths, Close::Early));
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        assert!(["-1", "x", "1e9", "nan"].iter().all(|text| seconds(text).is_err()));
    }
}
