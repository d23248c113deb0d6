//! Health checks: one function for each kind of condition, all in `SOURCES`.
//!
//! A check reads the PoP's own state and never blocks: the list of [`super::conditions`] is only as fresh as the
//! slowest of them. To add a check, write a function and add it to `SOURCES`. The pairs of `what` and `name` are
//! unique in the findings of one run.

use super::Monitor;
use super::conditions::{Finding, Severity};
use crate::access::Caller;
use crate::partners::probes::MAX_SKEW;
use crate::snapshot::Snapshot;
use crate::status::free_space::StorageSpace;
use crate::submission::read_lane;
use crate::volume::request::may;
use renkei_catalogue::{Listing, Row};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::identity::{Need, Principal};
use renkei_core::path::SiteName;
use renkei_core::queue::State;
use renkei_core::remedy::fill;
use renkei_core::units::{counted, human, span};
use renkei_core::wire::message::Space;
use renkei_core::wire::queue::Listed;
use renkei_net::identity::certificate::{Facts as Certificate, utc};
use renkei_net::identity::verify::verify_peer;
use renkei_volume::VolumeConfig;
use renkei_volume::follower::site_lease::lost_error;
use renkei_volume::home::follower_registry::{followers, names_of};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A health check.
pub(crate) type Source = fn(&Arc<Monitor>, &Snapshot) -> Vec<Finding>;

/// All health checks.
pub(crate) const SOURCES: &[Source] = &[
    configuration,
    listening,
    certificates,
    rotation,
    web,
    host_certificate,
    grid_lists,
    kerberos,
    storages,
    own_disk,
    buffer,
    lines,
    partners,
    clocks,
    volumes_here,
    volumes_followed,
    followers_behind,
    queue,
    rules,
];

const DAY: Duration = Duration::from_secs(86_400);
/// Remaining lifetimes at which a certificate is reported, with the urgency.
const CERTIFICATE_ENDS: [(Duration, Severity); 3] = [
    (DAY, Severity::Critical),
    (Duration::from_secs(7 * 86_400), Severity::Warning),
    (Duration::from_secs(30 * 86_400), Severity::Info),
];
/// A file system below both the share and the bytes of free space is reported; the second pair is critical.
const LITTLE_ROOM: (f64, u64) = (0.05, 100 << 30);
const NO_ROOM: (f64, u64) = (0.01, 10 << 30);
/// Hold for a line that is down: it is reopened within seconds.
const LINE_DOWN_FOR: Duration = Duration::from_secs(3);
/// Grace period after the start for other PoPs to open their lines.
const LINES_COME_WITHIN: Duration = Duration::from_secs(30);
/// Hold for a silent home: longer than a restart takes.
const HOME_SILENT_FOR: Duration = Duration::from_secs(10);
/// Silence of a follower that is reported: it polls every three seconds, and 30 s after a failure.
const FOLLOWER_SILENT_FOR: Duration = Duration::from_secs(40);
/// Age of unpushed changes of a follower that is reported.
const CHANGES_WAIT_FOR: Duration = Duration::from_secs(120);
/// Hold for waiting transfers: after a first failure they are retried within seconds.
const QUEUE_WAITS_FOR: Duration = Duration::from_secs(10);
/// Hold for the web certificate: certificate and key are written one after the other.
const BOTH_WRITTEN_WITHIN: Duration = Duration::from_secs(3);
/// Maximum transfers of the queue that are checked.
const MOST_TRANSFERS: usize = 256;

/// A changed configuration that cannot be loaded.
fn configuration(monitor: &Arc<Monitor>, _: &Snapshot) -> Vec<Finding> {
    let unusable = monitor.context.unusable();
    let Some(last) = &*unusable else { return Vec::new() };
    let finding = Finding::of("configuration", "", Severity::Critical, &last.error);
    let words = "a changed configuration file is invalid; the previous state stays in force until the PoP is restarted";
    vec![finding.saying(words)]
}

/// A changed `listen`, which takes effect at the next start.
fn listening(_: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let Some((in_force, wanted)) = snapshot.listening.pending() else { return Vec::new() };
    let list = |all: &[SocketAddr]| all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    let cause = format!(
        "`listen` names {}, and the PoP goes on with {} until it is restarted; partners are not told another address before",
        list(wanted),
        list(in_force)
    );
    let error = Error::new(Code::ListenPending, "listen", "config.toml", cause);
    vec![Finding::of("configuration", "listen", Severity::Warning, &error)]
}

/// Expiring certificates of the PoP, of its authority and of the partners' authorities, and a revoked one of the
/// PoP.
fn certificates(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let now = SystemTime::now();
    let own = snapshot.credential.facts().ok();
    let own = own.and_then(|facts| {
        certificate_ends("host", facts.not_after, now, renewal_of_host(monitor.context.home()))
    });
    let authorities = snapshot.trust.list().filter_map(|card| {
        let end = Certificate::read(&card.authority).ok()?.not_after;
        let remedy = match card.site == snapshot.site {
            true => "`renkei site rotate-authority`".to_owned(),
            false => format!("ask {} for its new card, then `renkei trust add CARD`", card.site),
        };
        certificate_ends(&format!("authority of {}", card.site), end, now, &remedy)
    });
    let judged = verify_peer(&snapshot.credential.chain, &snapshot.trust, now);
    let revoked = judged.err().filter(|error| error.code == Code::CertificateRevoked).map(|error| {
        let remedy = "partners refuse this PoP; if its machine is in good hands: `renkei renew --new-key`";
        Finding::of("certificate", "host", Severity::Critical, &error).mended_by(remedy)
    });
    own.into_iter().chain(authorities).chain(revoked).collect()
}

/// A rotation of the authority in progress, and partners that refused the new one and need its card by hand.
fn rotation(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let Some(handover) = snapshot.trust.own_card().and_then(|card| card.handover.as_ref()) else {
        return Vec::new();
    };
    let untold = monitor.partners.untold().clone();
    let until = utc(handover.until());
    let mut found = Vec::new();
    if handover.is_live(SystemTime::now()) {
        let waiting: Vec<_> = untold.keys().map(SiteName::as_str).collect();
        let partners = match waiting.is_empty() {
            true => "all partners have taken over the new authority".to_owned(),
            false => format!("not taken over yet by {}", waiting.join(", ")),
        };
        let cause = format!("certificates of the previous authority are valid until {until}; {partners}");
        let error = Error::new(Code::AuthorityRotating, "look", &snapshot.site, cause);
        found.push(Finding::of("authority", "", Severity::Info, &error));
    }
    let left = untold.iter().filter_map(|(partner, error)| Some((partner, error.as_ref()?)));
    let left = left.filter(|(_, error)| refuses_authority(error.code));
    found.extend(left.map(|(partner, error)| {
        let own = &snapshot.site;
        Finding::of("authority", partner.as_str(), Severity::Warning, error)
            .saying(&format!("{partner} has not taken over the new authority of this site, and needs its card by hand"))
            .mended_by(format!(
                "here `renkei trust export > {own}.site`; at {partner} `renkei trust add {own}.site`, with the fingerprint \
                 compared by telephone"
            ))
    }));
    found
}

fn refuses_authority(code: Code) -> bool {
    matches!(code, Code::AuthorityReplaced | Code::UnknownAuthority | Code::CardConflict | Code::NotAllowed)
}

/// The certificate for browsers: an unusable one, and the expiry of the one in use.
fn web(_: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let unusable = snapshot.web.trouble().map(|error| {
        let words = match snapshot.web.used() {
            Some(_) => "the web certificate cannot be used; browsers see the one before",
            None => "the web certificate cannot be used; browsers see the site's own",
        };
        let remedy =
            "`web.certificate` and `web.key` name PEM files that belong together; the key's mode is 600";
        let finding = Finding::of("configuration", "web", Severity::Warning, &error).saying(words);
        finding.mended_by(remedy).lasting(BOTH_WRITTEN_WITHIN)
    });
    let ends = snapshot.web.used().and_then(|used| {
        let remedy = "renew it where it was made; the PoP reads the new files by itself";
        certificate_ends("web", used.not_after, SystemTime::now(), remedy)
    });
    unusable.into_iter().chain(ends).collect()
}

/// The host certificate of the grid: an unusable one, and the expiry of the one in use.
fn host_certificate(_: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let unusable = snapshot.host.trouble().map(|error| {
        let remedy = "`grid.host_certificate` and `grid.host_key`, or hostcert.pem and hostkey.pem in `grid.directory`, belong together; \
                      the key is readable by the PoP's account alone";
        let finding = Finding::of("configuration", "host certificate", Severity::Warning, &error);
        finding.saying("the host certificate of the grid cannot be used").mended_by(remedy).lasting(BOTH_WRITTEN_WITHIN)
    });
    let ends = snapshot.host.used().and_then(|used| {
        let remedy = "renew it at its authority; the PoP reads the new files by itself";
        certificate_ends("grid host", used.not_after, SystemTime::now(), remedy)
    });
    unusable.into_iter().chain(ends).collect()
}

/// Authorities of the grid whose users are all refused, because the revocation list cannot be used.
fn grid_lists(_: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let unusable = snapshot.grid.authorities.without_list(SystemTime::now());
    let Some((first, cause)) = unusable.first() else { return Vec::new() };
    let all = counted(unusable.len(), "authority", "authorities");
    let error = Error::new(Code::RevocationListExpired, "look", first, cause);
    vec![
        Finding::of("grid", "revocation lists", Severity::Warning, &error)
            .saying(&format!("of {all}, the first")),
    ]
}

/// A keytab that the administrator chose and that cannot be used.
fn kerberos(_: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let chosen = snapshot.kerberos.trouble().filter(|_| snapshot.config.kerberos.is_chosen());
    let finding = |error: &Error| Finding::of("configuration", "kerberos", Severity::Warning, error);
    chosen.map(finding).into_iter().collect()
}

/// The finding for a certificate that expires at `end`, if that is soon.
pub fn certificate_ends(name: &str, end: SystemTime, now: SystemTime, remedy: &str) -> Option<Finding> {
    let left = end.duration_since(now).unwrap_or_default();
    let (_, severity) = CERTIFICATE_ENDS.iter().find(|(within, _)| left < *within)?;
    let (code, verb) = match left.is_zero() {
        true => (Code::CertificateExpired, "ended"),
        false => (Code::CertificateEnds, "ends"),
    };
    let error = Error::new(code, "look", "", format!("it {verb} on {}", utc(end)));
    Some(Finding::of("certificate", name, *severity, &error).mended_by(remedy))
}

/// Storages that are missing, hang or are low on space, and disconnected agents.
fn storages(monitor: &Arc<Monitor>, _: &Snapshot) -> Vec<Finding> {
    monitor.rooms(Caller::Administrator).iter().filter_map(storage).collect()
}

fn storage(room: &StorageSpace) -> Option<Finding> {
    let name = &room.name;
    if room.agent == Some(false) {
        let error = Error::new(Code::AgentAbsent, "look", name, "");
        let remedy = "start `renkei agent` in the network where the storage is";
        return Some(Finding::of("agent", name, Severity::Warning, &error).mended_by(remedy));
    }
    match &room.space {
        Some(Err(error)) => {
            let remedy = remedy_of_storage(error, name);
            Some(Finding::of("storage", name, Severity::Critical, error).mended_by(remedy))
        }
        _ if room.hanging.is_some() => {
            let error = Error::new(Code::NoProgress, "look", name, "the file system does not answer");
            let finding = Finding::of("storage", name, Severity::Critical, &error);
            Some(finding.mended_by("look whether its file system or its server hangs: `df`, `dmesg`"))
        }
        Some(Ok(space)) if !room.read_only => room_low(name, space),
        _ => None,
    }
}

/// The remedy for a storage.
fn remedy_of_storage(error: &Error, storage: &str) -> String {
    match error.code {
        Code::StorageUnknown => {
            format!("`renkei storage add {storage} PATH`, with the directory that it was")
        }
        code => fill(code.row().remedy, &[("STORAGE", storage.into())]),
    }
}

/// The remedy for a volume in that storage.
fn remedy_of_volume(error: &Error, volume: &str, storage: &str) -> String {
    match error.code {
        Code::VolumeChanged => fill(error.code.row().remedy, &[("VOLUME", volume.into())]),
        _ => remedy_of_storage(error, storage),
    }
}

/// The remedy for an expiring certificate of a PoP: only its authority's key can issue another.
pub fn renewal_of_host(home: &Home) -> &'static str {
    match home.ca_key().exists() {
        true => "`renkei renew`",
        false => "bring pki/ca.key back from where it is kept, then `renkei renew`",
    }
}

/// The finding for a file system that is low on space.
pub fn room_low(name: &str, space: &Space) -> Option<Finding> {
    let is_below = |(share, bytes): (f64, u64)| {
        (space.available_bytes as f64) < space.total_bytes as f64 * share && space.available_bytes < bytes
    };
    let has_few_files = space.total_files > 0 && space.free_files < space.total_files / 100;
    let severity = match (is_below(NO_ROOM), is_below(LITTLE_ROOM), has_few_files) {
        (true, ..) => Severity::Critical,
        (_, true, _) | (.., true) => Severity::Warning,
        _ => return None,
    };
    let (free, total) = (human(space.available_bytes), human(space.total_bytes));
    let mut cause = format!("{free} of {total} are free");
    if has_few_files {
        cause = format!("{cause}, and names for {}", counted(space.free_files, "more file", "more files"));
    }
    let error = Error::new(Code::RoomLow, "look", "", cause);
    Some(Finding::of("room", name, severity, &error))
}

/// Free space for the PoP's own state.
fn own_disk(monitor: &Arc<Monitor>, _: &Snapshot) -> Vec<Finding> {
    let dir = monitor.context.home().state_dir();
    let Ok(seen) = rustix::fs::statvfs(dir) else { return Vec::new() };
    let space = Space {
        total_bytes: seen.f_blocks * seen.f_frsize,
        available_bytes: seen.f_bavail * seen.f_frsize,
        total_files: seen.f_files,
        free_files: seen.f_favail,
    };
    let remedy = format!("free space in {}: the queue and the volumes need it", dir.display());
    room_low("state", &space).map(|finding| finding.mended_by(remedy)).into_iter().collect()
}

/// Transfers that wait for space in the buffer.
fn buffer(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let waiting = match snapshot.buffer() {
        Ok(buffer) => buffer.waiting().len(),
        Err(error) if error.code == Code::BufferMissing => 0,
        Err(error) => return vec![Finding::of("buffer", "", Severity::Warning, &error)],
    };
    let waits = counted(waiting, "transfer waits", "transfers wait");
    let error = Error::new(Code::BufferFull, "look", monitor.context.name(), format!("{waits} for room"));
    let full = || {
        let finding = Finding::of("buffer", "", Severity::Warning, &error).lasting(QUEUE_WAITS_FOR);
        finding.mended_by("`renkei buffer --all` shows who has how much; `buffer.size_mib` is its size")
    };
    (waiting > 0).then(full).into_iter().collect()
}

/// Lines that this PoP keeps to others.
fn lines(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    monitor
        .relay
        .own_lines
        .up()
        .iter()
        .for_each(|hub| monitor.conditions.forget_before("line", hub.as_str()));
    let down = monitor.relay.own_lines.down(&snapshot.config.reverse).into_iter();
    let finding = |(hub, error): (SiteName, Option<Error>)| {
        let words = format!("the line to {hub} is down, so others do not reach this PoP over it");
        let silent = || Error::new(Code::PeerDown, "keep line", &hub, "no answer yet");
        let error = error.unwrap_or_else(silent);
        Finding::of("line", hub.as_str(), Severity::Critical, &error)
            .saying(&words)
            .mended_by(format!("`renkei doctor {hub}` tests each step of the connection"))
            .lasting(LINE_DOWN_FOR)
    };
    down.map(finding).collect()
}

/// Trusted sites whose last connection failed, and those that keep a line to this PoP and have none.
fn partners(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    monitor.partners.probe_idle(snapshot);
    let mut failed = monitor.partners.unreached(snapshot, &monitor.conditions.remembered("partner"));
    let is_reached = |partner: &&SiteName| {
        monitor.relay.memory.reached(partner).is_some() && !failed.contains_key(*partner)
    };
    for partner in snapshot.trust.list().map(|card| &card.site).filter(is_reached) {
        monitor.conditions.forget_before("partner", partner.as_str());
    }
    if monitor.context.started().elapsed() > LINES_COME_WITHIN {
        for other in snapshot.trust.list().filter(|card| card.via.contains(&snapshot.site)) {
            let has_line = monitor.relay.reverse_registry.has_line(&Principal::Host(other.site.clone()));
            let only_by_line = other.endpoints.is_empty() && other.via.len() == 1;
            if only_by_line && !has_line {
                let error = Error::new(Code::NoLine, "connect", &other.site, "");
                failed.entry(other.site.clone()).or_insert(error);
            }
        }
    }
    // Hubs to which this PoP keeps a line are covered by the check of lines.
    failed.retain(|partner, _| !snapshot.config.reverse.contains(partner));
    let finding = |(partner, error): (&SiteName, &Error)| {
        Finding::of("partner", partner.as_str(), Severity::Warning, error)
            .saying(&format!("{partner} is not reached"))
            .mended_by(format!("`renkei doctor {partner}` tests each step of the connection"))
    };
    failed.iter().map(finding).collect()
}

/// Partners with a clock skew.
fn clocks(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let differing = monitor.partners.differing_clocks(snapshot);
    let one_way = |sign: i64| differing.values().filter(|ahead_ms| ahead_ms.signum() == sign).count();
    let finding = |(partner, ahead_ms): (&SiteName, &i64)| {
        let apart = Duration::from_millis(ahead_ms.unsigned_abs());
        let cause = format!(
            "the clock of {partner} is {} {} ours; from {} s on, sites refuse each other",
            span(apart),
            if *ahead_ms > 0 { "ahead of" } else { "behind" },
            MAX_SKEW.as_secs()
        );
        let severity = if apart >= MAX_SKEW { Severity::Critical } else { Severity::Warning };
        let whose =
            if one_way(ahead_ms.signum()) > 1 { "set the clock of this machine" } else { "set both clocks" };
        let error = Error::new(Code::ClockSkew, "compare", partner, cause);
        Finding::of("clock", partner.as_str(), severity, &error).mended_by(format!("{whose} by NTP"))
    };
    differing.iter().map(finding).collect()
}

/// Volumes of this site whose catalogue does not follow the files.
fn volumes_here(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let own = snapshot.volumes.iter().filter(|(_, facts)| !snapshot.follows(facts));
    let lost = own.clone().filter_map(|(name, _)| {
        let volume = snapshot.volume(name)?.ok()?;
        lost_sites(name, &names_of(volume.tree(), &volume.site_leases().lost()).ok()?)
    });
    let finding = |(name, facts): (&String, &VolumeConfig)| {
        let standing = snapshot.volume(name)?.and_then(|volume| volume.standing());
        let trouble = standing.map_or_else(Some, |standing| standing.trouble);
        let error = trouble.or_else(|| monitor.volumes.strays.trouble(&facts.id))?;
        let remedy = remedy_of_volume(&error, name, &facts.storage);
        let remedy = match error.code {
            Code::VolumeChanged => remedy,
            _ => format!("{remedy}; then `renkei volume check {name}`"),
        };
        Some(Finding::of("volume", name, Severity::Critical, &error).mended_by(remedy))
    };
    own.clone().filter_map(finding).chain(lost).collect()
}

/// Volumes of other homes: failures to follow them, and to hold the required replicas.
fn volumes_followed(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    let followed = snapshot.volumes.iter().filter(|(_, facts)| snapshot.follows(facts));
    followed.flat_map(|(name, facts)| followed_volume(monitor, snapshot, name, facts)).collect()
}

fn followed_volume(
    monitor: &Arc<Monitor>,
    snapshot: &Snapshot,
    name: &str,
    facts: &VolumeConfig,
) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(error) = monitor.volumes.following.standing(&facts.id).trouble {
        let severity = if error.kind() == Kind::Unavailable { Severity::Warning } else { Severity::Critical };
        let words = format!("{} is no longer followed", facts.home);
        let finding = Finding::of("volume", name, severity, &error).saying(&words).lasting(HOME_SILENT_FOR);
        found.push(match error.kind() == Kind::NotFound || error.code == Code::VolumeChanged {
            true => finding.mended_by(remedy_of_volume(&error, name, &facts.storage)),
            false => finding,
        });
    }
    if let Some(error) = snapshot.replaced(facts) {
        let words = "what is held here is missing or another file";
        let finding = Finding::of("volume", name, Severity::Warning, &error).saying(words);
        found.push(finding.mended_by(remedy_of_volume(&error, name, &facts.storage)));
    }
    if let Some(error) = monitor.volumes.holding.shown(&facts.id, facts).trouble {
        let words = "required replicas do not arrive";
        let finding = Finding::of("replicas", name, Severity::Warning, &error).saying(words);
        found.push(finding.mended_by(format!("`renkei volume show {name}` says which")));
    }
    let pending = match snapshot.pending(name, facts) {
        Ok(pending) => pending,
        Err(error) => {
            found.push(Finding::of("changes", name, Severity::Critical, &error));
            return found;
        }
    };
    found.extend(lost_sites(name, &pending.own_lease().lost()));
    if pending.waiting().is_some_and(|waiting| waiting > CHANGES_WAIT_FOR) {
        let cause = format!(
            "{} for {}",
            counted(pending.count(), "change made here waits", "changes made here wait"),
            facts.home
        );
        let error = Error::new(Code::NoProgress, "hand in", name, cause);
        let finding = Finding::of("changes", name, Severity::Warning, &error);
        found.push(
            finding.mended_by(format!("`renkei doctor {}` and `renkei volume show {name}`", facts.home)),
        );
    }
    found
}

/// The finding for sites lost with changes of a volume that may be missing.
fn lost_sites(volume: &str, lost: &[SiteName]) -> Option<Finding> {
    let first = lost.first()?;
    let words = "what a site closed may be missing here";
    let finding = Finding::of("volume", volume, Severity::Warning, &lost_error(lost)).saying(words);
    Some(finding.mended_by(format!("`renkei doctor {first}` tests each step of the connection to it")))
}

/// At the home: followers that have stopped asking for records.
fn followers_behind(monitor: &Arc<Monitor>, snapshot: &Snapshot) -> Vec<Finding> {
    // A volume in trouble answers no follower, and is reported itself.
    let is_well = |name: &str| {
        snapshot
            .volume(name)
            .and_then(Result::ok)
            .and_then(|volume| volume.standing().ok()?.trouble)
            .is_none()
    };
    let own = snapshot.volumes.iter().filter(|(name, facts)| !snapshot.follows(facts) && is_well(name));
    own.flat_map(|(name, facts)| {
        let known = snapshot.volume_tree(facts.id).and_then(|tree| followers(&tree)).unwrap_or_default();
        let behind = known.into_keys().filter(|follower| {
            let last =
                monitor.volumes.confirmed.last(facts.id, follower).unwrap_or(monitor.context.started());
            last.elapsed() > FOLLOWER_SILENT_FOR && may(facts, &Principal::Host(follower.clone()), Need::Read)
        });
        behind.map(|follower| behind_finding(name, &follower)).collect::<Vec<_>>()
    })
    .collect()
}

fn behind_finding(volume: &str, follower: &SiteName) -> Finding {
    let cause = format!("{follower} follows /{volume} and has not asked for what is new");
    let error = Error::new(Code::NoProgress, "follow", volume, cause);
    let name = format!("{volume} at {follower}");
    Finding::of("follower", &name, Severity::Warning, &error).mended_by(format!(
        "check the PoP of {follower} (`renkei doctor {follower}`); if it no longer follows: `renkei volume revoke {volume} {follower}`"
    ))
}

/// An unusable catalogue, and transfers that wait after a failed attempt.
fn queue(monitor: &Arc<Monitor>, _: &Snapshot) -> Vec<Finding> {
    if let Some(error) = monitor.queue.state.trouble() {
        let words = "the queue is stopped: no transfer is started";
        return vec![Finding::of("queue", "", Severity::Critical, &error).saying(words)];
    }
    let Ok(catalogue) = monitor.queue.state.catalogue() else { return Vec::new() };
    let listed = Listed::default();
    let rows =
        match catalogue.list(&Listing { owner: None, listed: &listed, state: None, limit: MOST_TRANSFERS }) {
            Ok(rows) => rows,
            Err(error) => return vec![Finding::of("queue", "", Severity::Critical, &error)],
        };
    waiting_by_link(&rows).into_iter().map(|(link, waits)| waits.finding(&link)).collect()
}

/// Transfers of one link that wait after a failed attempt.
struct Waits {
    count: usize,
    error: Error,
    site: SiteName,
}

impl Waits {
    fn finding(&self, link: &str) -> Finding {
        let words = match self.count {
            1 => format!("a transfer from {link} waits"),
            count => format!("{count} transfers from {link} wait"),
        };
        Finding::of("queue", link, Severity::Warning, &self.error)
            .saying(&words)
            .mended_by(format!(
                "`renkei transfers --all` lists them; `renkei doctor {}` tests the way",
                self.site
            ))
            .lasting(QUEUE_WAITS_FOR)
    }
}

fn waiting_by_link(rows: &[Row]) -> BTreeMap<String, Waits> {
    let mut links: BTreeMap<String, Waits> = BTreeMap::new();
    for row in rows {
        let job = &row.job;
        let was_tried = job.state == State::Waiting && job.attempts > 0;
        // Waiting for a limit is normal.
        let reason = job.reason.as_ref().filter(|error| was_tried && error.kind() != Kind::Limit);
        let (Some(error), Some((_, link))) = (reason, read_lane(&row.lane)) else { continue };
        let waits = links.entry(format!("{} to {}", link.from, link.to));
        // The error's side is where the transfer runs; its subject tells which end fails.
        let of_source = error.subject.split(' ').next() == Some(link.from.as_str());
        let site = if of_source { link.from } else { link.to };
        waits.or_insert_with(|| Waits { count: 0, error: error.clone(), site }).count += 1;
    }
    links
}

/// Drop folders with errors.
fn rules(monitor: &Arc<Monitor>, _: &Snapshot) -> Vec<Finding> {
    let finding = |(name, error): (String, Error)| {
        let finding = Finding::of("rule", &name, Severity::Warning, &error);
        let remedy = match error.code {
            Code::PathNotFound => format!("make the folder again, or `renkei rule remove {name}`"),
            _ => format!("{}; `renkei transfers --all --ended --label 'rule {name}'`", finding.remedy),
        };
        finding.saying("a drop folder is not forwarded as it should be").mended_by(remedy)
    };
    let troubles =
        monitor.drop_folders.states().into_iter().filter_map(|(name, state)| Some((name, state.trouble?)));
    troubles.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_becomes_more_urgent_as_its_end_comes_near() {
        let now = SystemTime::now();
        let at =
            |days: u64| certificate_ends("host", now + DAY * days as u32 - DAY / 2, now, "`renkei renew`");
        assert_eq!(at(32), None);
        let severities: Vec<Severity> = [30, 7, 1].iter().map(|days| at(*days).unwrap().severity).collect();
        assert_eq!(severities, [Severity::Info, Severity::Warning, Severity::Critical]);
        assert_eq!(at(1).unwrap().code, Code::CertificateEnds);
        let ended = certificate_ends("host", now - DAY, now, "`renkei renew`").unwrap();
        assert_eq!((ended.code, ended.severity), (Code::CertificateExpired, Severity::Critical));
    }

    #[test]
    fn space_is_low_by_share_and_by_bytes() {
        let severity = |available_bytes, total_bytes| {
            let space = Space { available_bytes, total_bytes, total_files: 0, free_files: 0 };
            room_low("data", &space).map(|finding| finding.severity)
        };
        assert_eq!(severity(60 << 20, 1 << 30), None);
        assert_eq!(severity(40 << 20, 1 << 30), Some(Severity::Warning));
        assert_eq!(severity(4 << 20, 1 << 30), Some(Severity::Critical));
        // One percent of a petabyte is enough space.
        assert_eq!(severity(10 << 40, 1 << 50), None);
        let few = Space { available_bytes: 1 << 40, total_bytes: 1 << 40, total_files: 1000, free_files: 5 };
        assert!(room_low("data", &few).unwrap().found.contains("5 more files"));
    }
}
