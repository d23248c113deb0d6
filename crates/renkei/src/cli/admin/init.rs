//! `renkei init`: makes a PoP.

use super::{join, storage};
use crate::cli::Context;
use crate::cli::output::Report;
use renkei_config::home::{Home, file_error, make_dir, make_private_dir, write_file};
use renkei_config::{Config, template};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::authority::{Authority, renew_host};
use renkei_net::identity::map;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::invitation::Invitation;
use renkei_site::partners::enrolment;
use serde::Serialize;
use std::io::{self, Write};
use std::net::SocketAddr;

/// Make a PoP: configuration, site authority and host certificate
///
/// The same command can be given again: existing files stay, missing ones are made, also after it was killed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the site: 1 to 63 of a-z, 0-9 and -, starting with a letter
    #[arg(long, value_name = "NAME")]
    site: String,
    /// Address to listen on; repeatable [default: 0.0.0.0:7512]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// HOST:PORT under which other sites reach the PoP; repeatable [default: derived from --listen]
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Vec<String>,
    /// Share a directory under a name; repeatable
    #[arg(long, value_name = "NAME=PATH")]
    storage: Vec<String>,
    /// This PoP cannot be dialled from outside: take up the invitation of a site that can, and keep a line to it
    #[arg(long, value_name = "LINE")]
    reverse: Option<String>,
}

#[derive(Serialize)]
struct Made {
    site: SiteName,
    dir: String,
    listen: Vec<SocketAddr>,
    endpoints: Vec<String>,
    fingerprint: String,
    /// Whether it was made by this command.
    #[serde(skip)]
    is_new: bool,
    /// Whether the endpoints are a guess.
    #[serde(skip)]
    derived: bool,
    #[serde(skip)]
    places: String,
    /// The option that selects this directory again; empty for the default one.
    #[serde(skip)]
    option: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let site = SiteName::parse(&args.site)?;
    // Errors of the arguments show before anything is made.
    let invitation =
        args.reverse.as_deref().map(|text| join::line(text)?.parse::<Invitation>()).transpose()?;
    let storages =
        args.storage.iter().map(|argument| storage::named(argument)).collect::<Result<Vec<_>, _>>()?;
    let is_new = make(&home, &site, args, context)?;
    for (name, storage) in &storages {
        let there = Config::load(&home)?.storage.get(name).is_some_and(|there| there.path == storage.path);
        if !there {
            storage::add_and_record(name, storage, &home)?;
        }
    }
    if let Some(invitation) = invitation
        && !Config::load(&home)?.reverse.contains(&invitation.site)
    {
        enrolment::join(&home, &invitation, true, context.now()).map_err(|error| half(error, &site))?;
    }
    let config = Config::load(&home)?;
    let trust = Trust::load(&home)?;
    let card = trust.card(&site).ok_or_else(|| Error::new(Code::Internal, "init", &site, "no own card"))?;
    let option = context.dir.as_ref().map(|dir| format!(" --dir {}", dir.display())).unwrap_or_default();
    context.output.done(&Made {
        dir: home.config_dir().display().to_string(),
        is_new,
        derived: config.endpoints.is_empty() && config.reverse.is_empty(),
        places: card.places(),
        listen: config.listen,
        endpoints: card.endpoints.clone(),
        fingerprint: card.fingerprint(),
        site,
        option,
    })?;
    Ok(0)
}

/// The error if the PoP is made, but not the line to its hub.
fn half(error: Error, site: &SiteName) -> Error {
    let cause = format!("{}; the PoP of {site} is made: run the same command again", error.cause);
    Error { cause, ..error }.at("client")
}

/// Makes everything; the configuration comes last, because its presence marks a PoP. An interrupted `init` is
/// completed. Returns whether there was anything to make.
fn make(home: &Home, site: &SiteName, args: &Args, context: &Context) -> Result<bool, Error> {
    let path = home.config_file();
    if path.exists() {
        return check_same(home, site, args).map(|()| false);
    }
    let text = template(site, &args.listen, &args.endpoint);
    let config = Config::parse(&text, &path)?;
    make_dir(home.config_dir(), 0o755)?;
    make_private_dir(home.state_dir())?;
    make_private_dir(&home.journal_dir())?;
    make_dir(&home.trust_dir(), 0o755)?;
    let authority = authority(home, site, context)?;
    renew_host(home, &authority, &config.announced_endpoints(), false, context.now())?;
    if !home.map_file().exists() {
        write_file(&home.map_file(), map::TEMPLATE.as_bytes(), 0o644)?;
    }
    write_file(&path, text.as_bytes(), 0o644)?;
    Ok(true)
}

/// The site's authority: a new one, or that of an interrupted `init` of the same site.
fn authority(home: &Home, site: &SiteName, context: &Context) -> Result<Authority, Error> {
    match (home.ca_key().exists(), home.ca_cert().exists()) {
        (true, true) => return Authority::load_of(home, site),
        // A key without its certificate was never used.
        (true, false) => {
            let path = home.ca_key();
            std::fs::remove_file(&path).map_err(|error| file_error("remove", &path, &error))?;
        }
        _ => {}
    }
    let authority = Authority::create(site, context.now())?;
    authority.store(home)?;
    Ok(authority)
}

/// Checks that the existing PoP is the requested one.
fn check_same(home: &Home, site: &SiteName, args: &Args) -> Result<(), Error> {
    let config = Config::load(home)?;
    let other =
        |what: String| Err(Error::new(Code::AlreadyInitialised, "init", home.config_file().display(), what));
    match config.site(home)? {
        own if own != site => return other(format!("it is of site {own}")),
        _ => {}
    }
    if !args.listen.is_empty() && args.listen != config.listen {
        return other("`listen` in it is another one; change it there".into());
    }
    if !args.endpoint.is_empty() && args.endpoint != config.endpoints {
        return other("`endpoints` in it are other ones; change them there".into());
    }
    Authority::load_of(home, site).map(drop)
}

impl Made {
    /// The login command of a user whose own directory is not the PoP's.
    fn login(&self) -> String {
        if self.option.is_empty() {
            "renkei login".into()
        } else {
            format!("renkei login --pop {}", self.dir)
        }
    }
}

impl Report for Made {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (site, option) = (&self.site, &self.option);
        let what = if self.is_new { "is ready in" } else { "was there already, in" };
        writeln!(out, "The PoP of site {site} {what} {}.", self.dir)?;
        writeln!(out, "  reached at   {}", self.places)?;
        if self.derived {
            writeln!(
                out,
                "               other sites must be able to resolve and reach this; else set `endpoints`"
            )?;
            writeln!(out, "               in config.toml, then `renkei{option} renew`")?;
        }
        writeln!(out, "  fingerprint  {}", self.fingerprint)?;
        writeln!(out, "\nNext:")?;
        let next = [
            (format!("renkei{option} storage add NAME PATH"), "share a directory"),
            (format!("renkei{option} serve"), "start the PoP"),
            (self.login(), "as any user of this machine: get a certificate"),
            (format!("renkei{option} invite"), "one line for another site; there: renkei join LINE"),
            (
                format!("renkei{option} map add 'USER@OTHER' ACCOUNT"),
                "which account a user of that site works as here",
            ),
        ];
        let width = next.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
        next.iter().try_for_each(|(command, what)| writeln!(out, "  {command:<width$}  {what}"))
    }
}
