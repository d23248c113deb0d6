//! `renkei volume show`: what is known of a volume, and how its catalogue stands to its files.

use super::output::Report;
use super::{Context, login};
use crate::home::Home;
use crate::identity::socket;
use crate::volume::facts::{self, Facts, id_text};
use crate::volume::grant::{Grant, Level};
use crate::volume::{Scanned, Standing};
use renkei_core::error::{Code, Error};
use renkei_core::units::milliseconds;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// A volume as it is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    pub(super) name: String,
    id: String,
    pub(super) home: String,
    pub(super) storage: String,
    pub(super) path: String,
    pub(super) account: String,
    in_place: bool,
    scan_every_s: u64,
    hold: Vec<String>,
    grants: Vec<Grant>,
    /// None where no PoP runs.
    standing: Option<Standing>,
    #[serde(skip)]
    trouble: Option<Error>,
    #[serde(skip)]
    is_followed: bool,
}

/// Asks the PoP of this directory.
pub(super) fn ask<T: DeserializeOwned>(home: &Home, request: Value) -> Result<T, Error> {
    let answer = socket::request(&login::socket(home, None), &request)?;
    serde_json::from_value(answer)
        .map_err(|error| Error::new(Code::ProtocolViolation, "read reply", "local socket", error))
}

pub(super) fn show(name: &str, home: &Home, context: &Context) -> Result<u8, Error> {
    context.output.answer(&Shown::new(name, facts::find(home, name)?, home))?;
    Ok(0)
}

impl Shown {
    /// With what the PoP tells, if one runs.
    pub(super) fn new(name: &str, facts: Facts, home: &Home) -> Self {
        let standing = ask::<Standing>(home, json!({"op": "volume", "act": "standing", "name": name}));
        let (standing, trouble) = match standing {
            Ok(standing) => (Some(standing), None),
            Err(error) => (None, Some(error)),
        };
        Shown {
            name: name.into(),
            id: id_text(&facts.id),
            home: facts.home.to_string(),
            storage: facts.storage,
            path: facts.path,
            account: facts.account,
            in_place: facts.in_place,
            scan_every_s: facts.scan_every_s,
            is_followed: standing.as_ref().is_some_and(|standing| standing.followed.is_some()),
            hold: facts.hold,
            grants: facts.grant,
            standing,
            trouble,
        }
    }
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "name       {}", self.name)?;
        writeln!(out, "id         {}", self.id)?;
        writeln!(out, "home       {}", self.home)?;
        let how = if self.in_place { " (in place)" } else { "" };
        match self.storage.as_str() {
            "" => writeln!(out, "files      at its home; no replicas here")?,
            storage => writeln!(out, "files      {storage}:/{}{how}", self.path)?,
        }
        writeln!(out, "account    {}", self.account)?;
        for Grant { to, level, on } in &self.grants {
            let level = if *level == Level::Read { "read" } else { "write" };
            writeln!(out, "grant      {to} {level} /{on}")?;
        }
        for folder in &self.hold {
            writeln!(out, "holds      /{folder}")?;
        }
        match self.scan_every_s {
            _ if self.is_followed => {}
            0 => writeln!(out, "scans      when the PoP starts, and with `renkei volume check`")?,
            seconds => writeln!(out, "scans      every {seconds} s")?,
        }
        match &self.standing {
            Some(standing) => write_standing(standing, out),
            None => match &self.trouble {
                Some(error) => writeln!(out, "catalogue  not known: {error}"),
                None => Ok(()),
            },
        }
    }
}

fn write_standing(standing: &Standing, out: &mut dyn Write) -> io::Result<()> {
    if let Some(followed) = &standing.followed {
        writeln!(out, "records    {} of {}", standing.records, followed.last)?;
        match followed.heard_s {
            Some(seconds) => writeln!(out, "home       heard {seconds} s ago")?,
            None => writeln!(out, "home       not heard since the PoP started")?,
        }
        return write_trouble(standing, out);
    }
    writeln!(out, "records    {}", standing.records)?;
    match (standing.watched, standing.is_full) {
        (Some(count), false) => writeln!(out, "watched    {count} directories")?,
        (Some(count), true) => {
            let why = "the kernel gives no more watches (fs.inotify.max_user_watches); scans find the rest";
            writeln!(out, "watched    {count} directories: {why}")?;
        }
        (None, _) => writeln!(out, "watched    nothing; scans find what others change")?,
    }
    match &standing.scan {
        Some(scan) => write_scan(scan, out)?,
        None => writeln!(out, "last scan  none yet")?,
    }
    if standing.is_scanning {
        writeln!(out, "scanning   now")?;
    }
    write_trouble(standing, out)
}

fn write_trouble(standing: &Standing, out: &mut dyn Write) -> io::Result<()> {
    match &standing.trouble {
        Some(error) => writeln!(out, "trouble    {error}"),
        None => Ok(()),
    }
}

fn write_scan(scan: &Scanned, out: &mut dyn Write) -> io::Result<()> {
    let took = milliseconds(Duration::from_millis(scan.took_ms));
    let Scanned { dirs, new, gone, changed, attributes, failed, .. } = scan;
    write!(out, "last scan  {dirs} directories in {took}: ")?;
    writeln!(out, "{new} new, {gone} gone, {changed} changed, {attributes} other attributes, {failed} failed")
}
