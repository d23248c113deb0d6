//! `renkei mount-credential`: credentials of mounts without a logged-in user, and their renewal.

use crate::cli::Context;
use crate::cli::connect::dialler_of;
use crate::cli::login;
use crate::cli::login::socket;
use crate::cli::output::{Report, print};
use crate::cli::remedy::REVOKE;
use clap::Subcommand;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::violation;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::authority::issued;
use renkei_net::identity::authority::rotation::is_of_another;
use renkei_net::identity::certificate::{unix_seconds, utc};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::login::SshRoute;
use renkei_net::identity::mounting;
use renkei_net::identity::socket::{LINE_LIMIT, reply_line};
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::identity::trust::former_names;
use renkei_net::identity::trust::{Added, Trust, home_of_user};
use serde::Serialize;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Interval at which a mount asks its site for changed cards: an overlap of two authorities lasts a day at least.
const CARDS_EVERY: Duration = Duration::from_secs(3600);
/// Interval at which a mount checks whether its credential is due for renewal.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Give mounts of /etc/fstab a credential of their own, which renews itself; list and revoke them
///
/// The mounts of one directory (`--dir`) share one credential. It is for one user of the site and good for using files alone; the key
/// is made where the mount is. A mount that runs renews it; a machine that is off for less than 30 days needs nothing.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei mount-credential grant node17 --user alice                    on the PoP's machine\n  renkei mount-credential grant node17 --user alice --ssh root@kek-pop  on the machine of the mount\n  renkei mount-credential list                                         at the PoP: who has one, until when\n  renkei mount-credential revoke node17                                at the PoP"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Give the mounts of this directory a credential, as the PoP's administrator
    Grant {
        /// Name of the mount: that of its machine, usually; one that has the name already loses its credential
        name: String,
        /// The user of the site as whom the mount uses files
        #[arg(long)]
        user: String,
        /// Go through ssh to the PoP's machine, as its administrator; the program is ssh, or what RENKEI_SSH names
        #[arg(long, value_name = "USER@HOST", conflicts_with = "csr_stdin")]
        ssh: Option<String>,
        /// Directory or socket of the PoP; with --ssh, on that machine [default: that of --dir, else the service's]
        #[arg(long, value_name = "DIR|SOCKET")]
        pop: Option<PathBuf>,
        /// Read a certificate request and print the PoP's reply: what --ssh runs on the PoP's machine
        #[arg(long)]
        csr_stdin: bool,
    },
    /// List the mounts that the PoP in this directory gave one
    List,
    /// Take back the credential of a mount: it ends within seconds
    Revoke {
        /// Name of the mount
        name: String,
    },
}

#[derive(Serialize)]
struct Granted {
    mount: String,
    principal: Principal,
    expires: String,
    expires_unix: i64,
    file: PathBuf,
}

#[derive(Serialize)]
struct Revoked {
    mount: String,
    principal: Principal,
}

#[derive(Serialize)]
struct Row {
    mount: String,
    principal: Principal,
    granted: String,
    granted_unix: i64,
    expires: Option<String>,
    expires_unix: Option<i64>,
    /// Whether it was revoked together with its user's certificates.
    revoked: bool,
}

#[derive(Serialize)]
struct Listing {
    mounts: Vec<Row>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    match &args.action {
        Action::Grant { name, user, ssh, pop, csr_stdin } => {
            let request = mounting::CredentialRequest { name, user };
            let at = socket(&home, pop.as_deref());
            if *csr_stdin {
                return relay(&request, &at);
            }
            let got = match ssh {
                Some(target) => {
                    let route = SshRoute { program: login::ssh(), target: target.clone(), pop: pop.clone() };
                    request.take_by_ssh(&home, &route, context.now())?
                }
                None => request.take(&home, &at, context.now())?,
            };
            context.output.done(&Granted {
                mount: name.clone(),
                principal: got.principal,
                expires: utc(got.not_after),
                expires_unix: unix_seconds(got.not_after),
                file: home.mount_credential(),
            })?;
        }
        Action::List => context.output.answer(&listing(&home)?)?,
        Action::Revoke { name } => {
            let gone = mounting::revoke(&home, name, context.now())?.ok_or_else(|| unknown(name))?;
            context.output.done(&Revoked { mount: gone.name, principal: gone.user })?;
        }
    }
    Ok(0)
}

fn unknown(name: &str) -> Error {
    let cause =
        "no mount of that name has a credential; `renkei mount-credential list` shows those that have";
    Error::new(Code::PathNotFound, REVOKE, name, cause)
}

/// Forwards a request from standard input to the PoP; the reply, success or error, is one line for the other end.
fn relay(request: &mounting::CredentialRequest<'_>, at: &std::path::Path) -> Result<u8, Error> {
    let mut line = String::new();
    let read = io::stdin().lock().take(LINE_LIMIT as u64).read_to_string(&mut line);
    read.map_err(|error| Error::new(Code::IoFailed, "read request", "standard input", error))?;
    let outcome = request.forward(at, &line);
    let status = outcome.as_ref().map_or_else(|error| error.kind().exit_status(), |_| 0);
    print(format!("{}\n", reply_line(outcome)).as_bytes())?;
    Ok(status)
}

fn listing(home: &Home) -> Result<Listing, Error> {
    // Fails unless there is a PoP here.
    Authority::load(home)?;
    let taken_back = issued::revoked(home)?;
    let row = |grant: mounting::Grant| -> Result<Row, Error> {
        let until = mounting::valid_until(home, &grant.number)?;
        Ok(Row {
            revoked: taken_back.iter().any(|revoked| revoked.serial == grant.number),
            mount: grant.name,
            principal: grant.user,
            granted: utc(grant.since),
            granted_unix: unix_seconds(grant.since),
            expires: until.map(utc),
            expires_unix: until.map(unix_seconds),
        })
    };
    Ok(Listing { mounts: mounting::list(home)?.into_iter().map(row).collect::<Result<_, _>>()? })
}

impl Report for Granted {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "mount {} has a credential as {} until {}", self.mount, self.principal, self.expires)?;
        writeln!(out, "It is in {}; a mount that runs renews it.", self.file.display())
    }
}

impl Report for Revoked {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "mount {} no longer has a credential ({})", self.mount, self.principal)
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.mounts {
            let state = match (&row.expires, row.revoked) {
                (_, true) => "revoked with its user's certificates".into(),
                (Some(expires), false) => format!("until {expires}"),
                (None, false) => "never issued".into(),
            };
            writeln!(out, "{:<24} {:<24} {state}", row.mount, row.principal.to_string())?;
        }
        Ok(())
    }
}

// ---- renewal of a running mount
// --------------------------------------------------------------------------------------

/// Starts the thread that renews the credential of this directory's mounts while the process lives.
pub(crate) fn spawn_renewal(context: &Context) -> Result<(), Error> {
    let context = context.clone();
    let (mut last, mut asked) = (None, None::<Instant>);
    let work = move || loop {
        let look = |asked: &mut Option<Instant>| {
            if asked.is_none_or(|at| at.elapsed() >= CARDS_EVERY) {
                take_cards(&context)?;
                *asked = Some(Instant::now());
            }
            renew_if_due(&context)
        };
        match look(&mut asked) {
            Ok(()) => last = None,
            Err(error) => {
                if last.as_ref() != Some(&error) {
                    let remedy = error.code.row().remedy;
                    tracing::warn!(code = %error.code, %error, remedy, "the mount's credential is not renewed");
                }
                last = Some(error);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let thread = std::thread::Builder::new().name("renewal".into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "renewal", error))
}

/// Whether the site has replaced the authority that signed it: then it may become invalid before its end.
fn is_of_authority_before(home: &Home, credential: &Credential) -> Result<bool, Error> {
    let site = credential.principal()?.site().clone();
    let trust = Trust::load(&home_of_user(home, &site)?)?;
    Ok(trust.card(&site).is_some_and(|card| is_of_another(&credential.chain[0], &card.authority)))
}

/// Fetches changed cards of the sites that are known here, as a login would: a mount has no logins.
fn take_cards(context: &Context) -> Result<(), Error> {
    let home = context.home()?;
    let Some(credential) = Credential::of_mount(&home)? else { return Ok(()) };
    let site = credential.principal()?.site().clone();
    let mut trust = Trust::load(&home_of_user(&home, &site)?)?;
    let mut session = dialler_of(context, &credential, &[&site])?.connect(&site)?;
    let known: Vec<SiteName> = trust.list().map(|card| card.site.clone()).collect();
    for other in known {
        let card = match session.ask(Request::Card(other.clone())) {
            Ok(Reply::Card(text)) => SiteCard::parse(&text)?,
            Ok(reply) => return Err(violation("card", format_args!("{reply:?}"))),
            // The site does not trust it any more; a mount of it gets the error there.
            Err(error) if error.code == Code::SiteUnknown => continue,
            Err(error) => return Err(error),
        };
        match trust.add(card)? {
            Added::Same | Added::New => {}
            Added::Renamed => {
                former_names::install(&home)?;
                tracing::info!(site = %other, "its new name was taken over");
            }
            added => tracing::info!(site = %other, ?added, "a changed card was taken"),
        }
    }
    Ok(())
}

fn renew_if_due(context: &Context) -> Result<(), Error> {
    let (home, now) = (context.home()?, SystemTime::now());
    let Some(credential) = Credential::of_mount(&home)? else { return Ok(()) };
    let is_due = mounting::is_due(&credential, now)? || is_of_authority_before(&home, &credential)?;
    if !is_due {
        return Ok(());
    }
    let (site, key) = (credential.principal()?.site().clone(), mounting::request_again(&home)?);
    let dialler = dialler_of(context, &credential, &[&site])?;
    let pem = match dialler.connect(&site)?.ask(Request::RenewMount(key.request.clone()))? {
        Reply::Enlisted(pem) => pem,
        other => return Err(violation("renewal", format_args!("{other:?}"))),
    };
    let until = mounting::keep(&home, &pem, &key)?;
    tracing::info!(until = utc(until), "the mount's credential was renewed");
    Ok(())
}
