//! `renkei trust ca`: folders with authorities of the grid.

use crate::cli::Context;
use crate::cli::output::Report;
use clap::Subcommand;
use renkei_config::home::Home;
use renkei_config::{Config, add_grid_authorities, remove_grid_authorities};
use renkei_core::error::{Code, Error};
use renkei_net::identity::certificate::utc;
use renkei_net::identity::grid::{Authority, GridTrust};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Add a folder; its files are read again when they change
    Add {
        /// The folder, with HASH.0, HASH.signing_policy and HASH.r0
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// List the folders and their authorities
    List,
    /// Remove a folder
    Remove {
        /// The folder as `trust ca list` shows it
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

#[derive(Serialize)]
struct Row {
    name: String,
    file: PathBuf,
    until: String,
    signing_policy: String,
    revocation_list: String,
}

#[derive(Serialize)]
struct Listing {
    folders: Vec<PathBuf>,
    authorities: Vec<Row>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Changed {
    folder: PathBuf,
    action: &'static str,
    authorities: usize,
}

pub(crate) fn run(action: &Action, home: &Home, context: &Context) -> Result<u8, Error> {
    let config = Config::load(home)?;
    config.site(home)?;
    match action {
        Action::Add { folder } => add(folder, home, context),
        Action::Remove { folder } => {
            let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
            remove_grid_authorities(home, &folder)?;
            context.output.done(&Changed { folder, action: "removed", authorities: 0 }).map(|()| 0)
        }
        Action::List => {
            let trust = GridTrust::load(&config.grid);
            let folders = config.grid.authority_dirs().into_iter().filter(|dir| dir.is_dir());
            let problems = trust.authorities.problems.iter().chain(&trust.problems).cloned();
            let listing = Listing {
                folders: folders.collect(),
                authorities: trust.authorities.all.iter().map(row).collect(),
                problems: problems.collect(),
            };
            context.output.answer(&listing).map(|()| 0)
        }
    }
}

fn add(dir: &Path, home: &Home, context: &Context) -> Result<u8, Error> {
    let unusable = |cause: &str| Error::new(Code::UsageInvalid, "add authorities", dir.display(), cause);
    let folder = std::path::absolute(dir).map_err(|error| unusable(&error.to_string()))?;
    let authorities =
        renkei_net::identity::grid::Authorities::load(std::slice::from_ref(&folder), false).all.len();
    if authorities == 0 {
        return Err(unusable(
            "no authority is there: certificates are named by a hash, as 0a1b2c3d.0 (`openssl rehash`)",
        ));
    }
    let action = if add_grid_authorities(home, &folder)? { "added" } else { "unchanged" };
    context.output.done(&Changed { folder, action, authorities }).map(|()| 0)
}

fn row(one: &Authority) -> Row {
    let signing_policy = match &one.policy {
        Some(Ok(_)) => "good".into(),
        Some(Err(cause)) => format!("unusable: {cause}"),
        None => "none".into(),
    };
    Row {
        name: one.certificate.subject.to_string(),
        file: one.file.clone(),
        until: utc(one.certificate.not_after),
        signing_policy,
        revocation_list: one.list_state(),
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.folders.iter().try_for_each(|folder| writeln!(out, "folder {}", folder.display()))?;
        for row in &self.authorities {
            writeln!(out, "{}", row.name)?;
            writeln!(out, "  {}, until {}", row.file.display(), row.until)?;
            writeln!(
                out,
                "  signing policy {}; revocation list {}",
                row.signing_policy, row.revocation_list
            )?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(out, "not used: {problem}"))
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.action {
            "removed" => writeln!(out, "folder {} removed", self.folder.display()),
            action => {
                writeln!(out, "folder {} {action}: {} authorities", self.folder.display(), self.authorities)
            }
        }
    }
}
