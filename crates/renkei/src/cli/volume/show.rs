//! `renkei volume show`: the state of a volume, and of its catalogue relative to its files.

use super::replica_status::{write_care, write_holds, write_kept, write_verified};
use crate::cli::output::Report;
use crate::cli::quantity::{counted, human};
use crate::cli::time::local;
use crate::cli::{Context, login};
use renkei_config::home::Home;
use renkei_core::entry::FileTime;
use renkei_core::error::{Code, Error};
use renkei_core::units::milliseconds;
use renkei_net::identity::socket;
use renkei_volume::follower::outbox::Refusal;
use renkei_volume::follower::restored_home::RestoreReport;
use renkei_volume::grant::{Grant, Level};
use renkei_volume::volume_config;
use renkei_volume::volume_config::VolumeConfig;
use renkei_volume::volume_status::VolumeStatus;
use renkei_volume::{Followed, Scanned, VolumeState};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// Maximum of names of each kind that are shown of a reconciliation after a restore.
const SHOWN: usize = 10;

/// Sends a request to the PoP of this directory.
pub(crate) fn ask<T: DeserializeOwned>(home: &Home, request: Value) -> Result<T, Error> {
    let answer = socket::request(&login::socket(home, None), &request)?;
    serde_json::from_value(answer)
        .map_err(|error| Error::new(Code::ProtocolViolation, "read reply", "local socket", error))
}

pub(crate) fn show(name: &str, home: &Home, context: &Context) -> Result<u8, Error> {
    let (shown, trouble) = shown(name, &volume_config::find(home, name)?, home);
    context.output.answer(&shown)?;
    if let Some(error) = trouble.filter(|_| !context.output.is_json()) {
        eprintln!("catalogue  not known: {error}");
    }
    Ok(0)
}

/// The status of a volume with its standing from the PoP, or the error of the PoP.
pub(crate) fn shown(name: &str, facts: &VolumeConfig, home: &Home) -> (VolumeStatus, Option<Error>) {
    match ask::<VolumeState>(home, json!({"op": "volume", "act": "standing", "name": name})) {
        Ok(standing) => (VolumeStatus::new(name, facts, Some(standing)), None),
        Err(error) => (VolumeStatus::new(name, facts, None), Some(error)),
    }
}

impl Report for VolumeStatus {
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
        for who in &self.managers {
            writeln!(out, "manager    {who}")?;
        }
        for folder in &self.hold {
            writeln!(out, "holds      /{folder}")?;
        }
        match self.scan_every_s {
            _ if self.standing.as_ref().is_some_and(|standing| standing.followed.is_some()) => {}
            0 => writeln!(out, "scans      when the PoP starts, and with `renkei volume check`")?,
            seconds => writeln!(out, "scans      every {seconds} s")?,
        }
        let is_followed = self.standing.as_ref().is_some_and(|standing| standing.followed.is_some());
        write_care(&self.care, is_followed, out)?;
        match &self.standing {
            Some(standing) => write_standing(standing, &self.home, out),
            None => Ok(()),
        }
    }
}

fn write_standing(standing: &VolumeState, home: &str, out: &mut dyn Write) -> io::Result<()> {
    for only in &standing.away {
        let (files, bytes) = (counted(only.files, "file", "files"), human(only.bytes));
        match only.site == home {
            true => {
                writeln!(out, "corrupt    {files}, {bytes}: not served until another site has sent them")?
            }
            false => writeln!(out, "elsewhere  {files}, {bytes}, only at {}", only.site)?,
        }
    }
    if let Some(followed) = &standing.followed {
        writeln!(out, "records    {} of {}", standing.records, followed.last)?;
        match followed.heard_s {
            Some(seconds) => writeln!(out, "home       heard {seconds} s ago")?,
            None => writeln!(out, "home       not heard since the PoP started")?,
        }
        if !followed.is_whole {
            writeln!(out, "tree       not here yet")?;
        }
        if !followed.fellows.is_empty() {
            writeln!(out, "others     {}: content is also fetched from there", followed.fellows.join(", "))?;
        }
        if let Some(restored) = &followed.restored {
            write_restored(restored, home, out)?;
        }
        write_own_changes(followed, out)?;
        if let Some(holds) = &standing.holds {
            write_holds(holds, out)?;
        }
        return write_trouble(standing, out);
    }
    write_kept(&standing.kept, out)?;
    writeln!(out, "records    {}", standing.records)?;
    match (standing.watched, standing.is_full) {
        (Some(count), false) => writeln!(out, "watched    {}", counted(count, "directory", "directories"))?,
        (Some(count), true) => {
            let why =
                "the kernel's limit of watches is reached (fs.inotify.max_user_watches); scans find the rest";
            writeln!(out, "watched    {}: {why}", counted(count, "directory", "directories"))?;
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

/// The state of changes that are made at this site first.
fn write_own_changes(followed: &Followed, out: &mut dyn Write) -> io::Result<()> {
    match (followed.pending, followed.waiting_s) {
        _ if !followed.writes && followed.pending == 0 => writeln!(out, "changes    at its home alone")?,
        (0, _) => writeln!(out, "changes    all are with the home")?,
        (count, Some(seconds)) => {
            writeln!(out, "changes    {count} wait for the home, the oldest for {seconds} s")?;
        }
        (count, None) => writeln!(out, "changes    {count} wait for the home")?,
    }
    for Refusal { number, change, error, .. } in &followed.refused {
        writeln!(out, "refused    {number}, {change}: {error}")?;
    }
    Ok(())
}

fn write_trouble(standing: &VolumeState, out: &mut dyn Write) -> io::Result<()> {
    write_verified(&standing.verified, out)?;
    match &standing.trouble {
        Some(error) => writeln!(out, "trouble    {error}"),
        None => Ok(()),
    }
}

fn write_scan(scan: &Scanned, out: &mut dyn Write) -> io::Result<()> {
    let took = milliseconds(Duration::from_millis(scan.took_ms));
    let Scanned { dirs, new, gone, changed, attributes, failed, .. } = scan;
    write!(out, "last scan  {} in {took}: ", counted(dirs, "directory", "directories"))?;
    writeln!(
        out,
        "{new} new, {gone} removed, {changed} changed, {attributes} with other attributes, {failed} failed"
    )
}

/// The report of the reconciliation with a home that was restored from a backup.
fn write_restored(restored: &RestoreReport, home: &str, out: &mut dyn Write) -> io::Result<()> {
    let RestoreReport { at_unix, records_before, records_now, .. } = restored;
    writeln!(
        out,
        "restored   {home}, noticed {}: its log ended at {records_now} and {records_before} had been followed",
        local(FileTime { secs: *at_unix as i64, nanos: 0 }, "%Y-%m-%d %H:%M")
    )?;
    for (what, names) in [
        ("only here, submitted to the home", &restored.kept),
        ("newer here, submitted to the home", &restored.renewed),
        ("differed, kept beside the home's", &restored.beside),
        ("removed here, so also there", &restored.removed),
        ("no longer at either site", &restored.lost),
        ("only here, put aside below the volume's directory", &restored.aside),
    ] {
        if names.count > 0 {
            writeln!(out, "           {} {what}:", names.count)?;
            names.paths.iter().take(SHOWN).try_for_each(|path| writeln!(out, "             {path}"))?;
            let more = names.count.saturating_sub(SHOWN as u64);
            if more > 0 {
                writeln!(out, "             and {more} more (--json lists 100)")?;
            }
        }
    }
    Ok(())
}
