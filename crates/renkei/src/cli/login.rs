//! `renkei login`: get a certificate of some hours.

use super::Context;
use super::output::{Report, print};
use renkei_config::Config;
use renkei_config::home::{Home, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_net::identity::authority::{MAX_USER_HOURS, USER_HOURS};
use renkei_net::identity::certificate::{unix_seconds, utc};
use renkei_net::identity::login::{LoggedIn, SshRoute, forward, login, login_by_ssh};
use renkei_net::identity::socket::{LINE_LIMIT, reply_line};
use renkei_net::identity::trust::Added;
use serde::Serialize;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Get a certificate of some hours from the PoP of your site
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei login                               on the PoP's machine\n  renkei login --ssh alice@pop.titech.ac.jp  from elsewhere, through ssh\n  renkei login --hours 48                    for a long weekend"
)]
pub struct Args {
    /// Go through ssh to the PoP's machine; the program is ssh, or what RENKEI_SSH names
    #[arg(long, value_name = "USER@HOST", conflicts_with = "csr_stdin")]
    ssh: Option<String>,
    /// Directory or socket of the PoP; with --ssh, on that machine [default: that of --dir, else the service's]
    #[arg(long, value_name = "DIR|SOCKET")]
    pop: Option<PathBuf>,
    /// Life of the certificate in hours
    #[arg(long, value_name = "N", default_value_t = USER_HOURS,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_USER_HOURS)))]
    hours: u32,
    /// Read a certificate request and print the PoP's reply: what --ssh runs on the PoP's machine
    #[arg(long)]
    csr_stdin: bool,
}

#[derive(Serialize)]
struct Done {
    principal: Principal,
    expires: String,
    expires_unix: i64,
    sites: Vec<Site>,
}

#[derive(Serialize)]
struct Site {
    site: SiteName,
    change: Added,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    if args.csr_stdin {
        return relay(&home, args);
    }
    let got = match &args.ssh {
        Some(target) => {
            let route = SshRoute { program: ssh(), target: target.clone(), pop: args.pop.clone() };
            login_by_ssh(&home, &route, args.hours, context.now())?
        }
        None => login(&home, &socket(&home, args.pop.as_deref()), args.hours, context.now())?,
    };
    remember(&home, args);
    context.output.done(&Done::from(got))?;
    Ok(0)
}

/// Records the options of the login, for remedies that repeat it.
fn remember(home: &Home, args: &Args) {
    let hours = (args.hours != USER_HOURS).then(|| format!("--hours {}", args.hours));
    let ssh = args.ssh.as_ref().map(|target| format!("--ssh {target}"));
    let pop = args.pop.as_ref().map(|pop| format!("--pop {}", pop.display()));
    let options: Vec<String> = [ssh, pop, hours].into_iter().flatten().collect();
    if let Err(error) = write_file(&home.login_file(), options.join(" ").as_bytes(), 0o600) {
        tracing::debug!(%error, "how the login was made is not noted");
    }
}

/// Forwards a request from standard input to the PoP; the reply, success or error, is one line for the other end.
fn relay(home: &Home, args: &Args) -> Result<u8, Error> {
    let mut request = String::new();
    let read = io::stdin().lock().take(LINE_LIMIT as u64).read_to_string(&mut request);
    read.map_err(|error| Error::new(Code::IoFailed, "read request", "standard input", error))?;
    let outcome = forward(&socket(home, args.pop.as_deref()), &request, args.hours);
    let status = outcome.as_ref().map_or_else(|error| error.kind().exit_status(), |_| 0);
    let line = format!("{}\n", reply_line(outcome));
    print(line.as_bytes())?;
    Ok(status)
}

/// The ssh program.
pub(super) fn ssh() -> String {
    std::env::var("RENKEI_SSH").unwrap_or_else(|_| "ssh".into())
}

/// The PoP's socket: the named one, that of the own directory if it has a PoP, else the service's.
pub(super) fn socket(home: &Home, pop: Option<&Path>) -> PathBuf {
    match pop {
        Some(dir) if dir.is_dir() => Home::at(dir).socket(),
        Some(socket) => socket.into(),
        None if home.socket().exists() || has_pop(home) => home.socket(),
        None => Home::system_socket(),
    }
}

/// Whether a directory is that of a PoP, running or not: then no other PoP is asked instead.
fn has_pop(home: &Home) -> bool {
    Config::load(home).is_ok_and(|config| config.site.is_some())
}

impl From<LoggedIn> for Done {
    fn from(got: LoggedIn) -> Self {
        Done {
            principal: got.principal,
            expires: utc(got.not_after),
            expires_unix: unix_seconds(got.not_after),
            sites: got.sites.into_iter().map(|(site, change)| Site { site, change }).collect(),
        }
    }
}

impl Report for Done {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "logged in as {} until {}", self.principal, self.expires)?;
        for Site { site, change } in &self.sites {
            let change = match change {
                Added::New => "now known",
                Added::Replaced => "has a new authority",
                Added::Renamed => "is the new name of a known site",
                Added::Updated | Added::Same => "has a new card",
            };
            writeln!(out, "  site {site} {change}")?;
        }
        Ok(())
    }
}
