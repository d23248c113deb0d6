//! `renkei login`: get a certificate of some hours.
//!
//! By the account on the PoP's machine, or for a token, a proxy, a Kerberos ticket, or a login at a provider of identities (`borrowed`).
//! `logout` removes what was kept, `whoami` shows it.

mod borrowed;
pub(super) mod logout;
pub(super) mod whoami;

use super::Context;
use super::login_origin;
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
    after_long_help = "Examples:\n  renkei login                               on the PoP's machine\n  renkei login --ssh alice@pop.titech.ac.jp  from elsewhere, through ssh\n  renkei login --hours 48                    for a long weekend\n  renkei login --token /run/user/1000/bt_u1000 --at pop.kek.jp:7512\n  renkei login --proxy                       with the proxy that X509_USER_PROXY names, or /tmp/x509up_uUID\n  renkei login --kerberos --at kek           with the ticket of kinit\n  renkei login --oidc https://issuer.example --client renkei --at kek"
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
    /// With a bearer token: that of a file, of standard input (-), or the one that is found (BEARER_TOKEN,
    /// BEARER_TOKEN_FILE, $XDG_RUNTIME_DIR/bt_uUID, /tmp/bt_uUID)
    #[arg(long, value_name = "FILE", group = "borrowed")]
    token: Option<Option<PathBuf>>,
    /// With a proxy certificate: that of a file, or the one that is found (X509_USER_PROXY, /tmp/x509up_uUID)
    #[arg(long, value_name = "FILE", group = "borrowed")]
    proxy: Option<Option<PathBuf>>,
    /// With the Kerberos ticket of `kinit` or of the login at this machine (KRB5CCNAME, or the default cache)
    #[arg(long, group = "borrowed")]
    kerberos: bool,
    /// At a provider of identities: an address and a code are shown, to be confirmed in any browser
    #[arg(long, value_name = "URL", group = "borrowed")]
    oidc: Option<String>,
    /// The name by which the provider knows renkei
    #[arg(long, value_name = "ID", default_value = "renkei", requires = "oidc")]
    client: String,
    /// What the provider is asked for
    #[arg(long, value_name = "WORDS", default_value = "openid offline_access", requires = "oidc")]
    scope: String,
    /// Whom the token shall be for, where the provider has to be told
    #[arg(long, value_name = "URL", requires = "oidc")]
    audience: Option<String>,
    /// The PoP to log in at: a site that is known here, or HOST:PORT [default: that of the own site]
    #[arg(long, value_name = "SITE|HOST:PORT", requires = "borrowed", conflicts_with_all = ["ssh", "pop"])]
    at: Option<String>,
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
    if args.token.is_some() || args.proxy.is_some() || args.oidc.is_some() || args.kerberos {
        let got = borrowed::login(args, context)?;
        remember(&home, args);
        context.output.done(&Done::from(got))?;
        return Ok(0);
    }
    let got = match &args.ssh {
        Some(target) => {
            let route = SshRoute { program: ssh(), target: target.clone(), pop: args.pop.clone() };
            login_by_ssh(&home, &route, args.hours, context.now())?
        }
        None => login(&home, &socket(&home, args.pop.as_deref()), args.hours, context.now())?,
    };
    login_origin::forget(&home)?;
    remember(&home, args);
    context.output.done(&Done::from(got))?;
    Ok(0)
}

/// Records the options of the login, for remedies that repeat it.
fn remember(home: &Home, args: &Args) {
    let hours = (args.hours != USER_HOURS).then(|| format!("--hours {}", args.hours));
    let ssh = args.ssh.as_ref().map(|target| format!("--ssh {target}"));
    let pop = args.pop.as_ref().map(|pop| format!("--pop {}", pop.display()));
    let file = |option: &str, file: &Option<PathBuf>| match file {
        Some(file) => format!("{option} {}", file.display()),
        None => option.to_owned(),
    };
    let token = args.token.as_ref().map(|path| file("--token", path));
    let proxy = args.proxy.as_ref().map(|path| file("--proxy", path));
    let oidc = args.oidc.as_ref().map(|url| format!("--oidc {url} --client {}", args.client));
    let kerberos = args.kerberos.then(|| "--kerberos".to_owned());
    let at = args.at.as_ref().map(|at| format!("--at {at}"));
    let options: Vec<String> =
        [ssh, pop, hours, token, proxy, kerberos, oidc, at].into_iter().flatten().collect();
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
