//! The replicas in `renkei volume show` and `renkei where`: the policies, their fulfilment, and background work.

use crate::cli::quantity::{bit_rate, counted, human, span};
use crate::cli::time::local;
use renkei_core::entry::FileTime;
use renkei_core::namespace::placement::{Reason, Why};
use renkei_core::wire::volume::{Kept, KeptAt};
use renkei_volume::settings::VolumeSettings;
use renkei_volume::{Holds, Verified};
use std::io::{self, Write};
use std::time::Duration;

/// Writes the settings.
pub(crate) fn write_care(care: &VolumeSettings, is_followed: bool, out: &mut dyn Write) -> io::Result<()> {
    for policy in &care.policy {
        let at: Vec<&str> = policy.at.iter().map(|site| site.as_str()).collect();
        let at = if at.is_empty() { String::new() } else { format!(", first at {}", at.join(",")) };
        writeln!(
            out,
            "policy     /{}: {}{at}",
            policy.folder,
            counted(policy.replicas, "replica", "replicas")
        )?;
    }
    if !care.policy.is_empty() {
        let silence = span(Duration::from_secs(care.repair_after_s));
        writeln!(out, "lost       is a site that is silent for {silence}")?;
    }
    if is_followed && care.refuses_policy {
        writeln!(out, "policy     nothing is held because the home wants it")?;
    }
    match care.verify_rate {
        None => {}
        Some(0) => writeln!(out, "verified   only on request")?,
        Some(rate) => writeln!(out, "verified   {}/s", human(rate))?,
    }
    if care.is_paused {
        writeln!(out, "paused     nothing is brought or verified in the background")?;
    }
    Ok(())
}

/// Writes how the policies of folders are fulfilled.
pub(crate) fn write_kept(kept: &[Kept], out: &mut dyn Write) -> io::Result<()> {
    for one in kept {
        let Kept { folder, replicas, files, short, unplaced, sites } = one;
        let replicas = counted(replicas, "replica", "replicas");
        let files = counted(files, "file has", "files have");
        match short {
            0 => writeln!(out, "kept       /{folder}: all {files} {replicas}")?,
            short => {
                writeln!(out, "kept       /{folder}: up to {short} of {files} fewer than {replicas}")?;
            }
        }
        for at in sites {
            writeln!(out, "           {:<16} {}", at.site.as_str(), told(at))?;
        }
        if *unplaced > 0 {
            writeln!(out, "           {unplaced} more: no site that follows can take it")?;
        }
    }
    Ok(())
}

fn told(at: &KeptAt) -> String {
    let silent = || {
        at.heard_s.map_or("never heard".into(), |s| format!("not heard for {}", span(Duration::from_secs(s))))
    };
    let missing = match (at.missing_files, at.missing_bytes) {
        (Some(0), _) => "holds all".to_owned(),
        (Some(files), bytes) => {
            format!("lacks {}, {}", counted(files, "file", "files"), human(bytes.unwrap_or(0)))
        }
        _ => "has not reported its replicas yet".into(),
    };
    let missing: String = [Some(missing), why(at)].into_iter().flatten().collect::<Vec<_>>().join("; ");
    match (at.passed, &at.trouble) {
        (Some(Why::Lost), _) => format!("lost: {}", silent()),
        (Some(Why::NotFollowing), _) => "does not follow the volume".into(),
        (Some(Why::Refuses), _) => {
            "takes nothing: it has no storage for it, or its administrator refuses".into()
        }
        (Some(Why::NoRoom), _) => format!("has no room; {missing}"),
        (None, Some(error)) => format!("{missing}: {error}"),
        (None, None) => missing,
    }
}

/// The reason why a site was chosen, and its known way and free space.
fn why(at: &KeptAt) -> Option<String> {
    let reason = match at.reason? {
        Reason::Named => "named",
        Reason::Anyway => "holds it anyway",
        Reason::Before => "chosen before",
        Reason::Way => "chosen for its way and room",
        Reason::StandsIn => "holds replicas until others have all of them",
    };
    let rate = at.rate.map_or_else(|| "way not measured".into(), |rate| bit_rate(rate as f64 * 8.0));
    let free = at.free_bytes.map_or_else(String::new, |free| format!(", {} free", human(free)));
    Some(format!("{reason} ({rate}{free})"))
}

/// Writes the folders held in the background.
pub(crate) fn write_holds(holds: &Holds, out: &mut dyn Write) -> io::Result<()> {
    for folder in &holds.by_policy {
        writeln!(out, "holds      /{folder} by the home's policy")?;
    }
    let (files, bytes) = (counted(holds.files_to_go, "file", "files"), human(holds.bytes_to_go));
    let rate = holds.rate.map_or_else(String::new, |rate| format!(", {}", bit_rate(rate as f64 * 8.0)));
    match holds {
        Holds { is_paused: true, .. } => {
            writeln!(out, "bringing   nothing for now: it is paused here or at the home")?
        }
        Holds { is_running: true, .. } => writeln!(out, "bringing   {files}, {bytes} to go{rate}")?,
        Holds { files_to_go: 0, .. } => {}
        _ => writeln!(out, "missing    {files}, {bytes}")?,
    }
    match &holds.trouble {
        Some(error) => writeln!(out, "missing    because {error}"),
        None => Ok(()),
    }
}

/// Writes the result of verifying.
pub(crate) fn write_verified(verified: &Verified, out: &mut dyn Write) -> io::Result<()> {
    let Verified { files, bytes, wrong, .. } = verified;
    if let Some(ended) = verified.ended_unix {
        let at = local(FileTime { secs: ended as i64, nanos: 0 }, "%Y-%m-%d %H:%M");
        let files = counted(files, "file", "files");
        writeln!(out, "verified   {files}, {} until {at}: {wrong} corrupt", human(*bytes))?;
    }
    if verified.is_under_way {
        let (bytes, wrong) = (human(verified.bytes_now), verified.wrong_now);
        let files = counted(verified.files_now, "file", "files");
        writeln!(out, "verifying  {files}, {bytes} so far: {wrong} corrupt")?;
    }
    verified.examples.iter().try_for_each(|(path, error)| writeln!(out, "corrupt    /{path}: {error}"))
}
