//! The records of issued and of revoked certificates: two text files of one line per certificate.
//!
//! `issued`: `SERIAL PRINCIPAL EXPIRY`, and for a delegated certificate also the serial of its parent, whose
//! revocation covers it; `revoked`: `SERIAL TIME`, times in seconds since 1970. Both are append-only; a line is one
//! write in append mode, so that the daemon and a command may write concurrently. The file of issued certificates is
//! the audit trail of who could act when.

use super::Issued;
use crate::identity::certificate::unix_seconds;
use renkei_config::home::{Home, append_line, file_error, make_private_dir};
use renkei_core::error::Error;
use renkei_core::identity::Principal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One issued certificate.
struct Entry {
    serial: String,
    principal: Principal,
    not_after: SystemTime,
    /// Serial of the certificate by which a delegated one was requested.
    parent: Option<String>,
}

/// One revoked certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Lower-case hexadecimal.
    pub serial: String,
    /// The time of the revocation.
    pub moment: SystemTime,
}

/// Records a certificate before it is handed out.
pub fn note(home: &Home, issued: &Issued) -> Result<(), Error> {
    let line = format!("{} {} {}\n", issued.serial, issued.principal, unix_seconds(issued.not_after));
    append(&home.issued_file(), &line)
}

/// Records certificates delegated by the holder of `parent`, before the first is used; one write for all.
pub fn note_delegated(home: &Home, issued: &[&Issued], parent: &str) -> Result<(), Error> {
    let line = |issued: &&Issued| {
        format!("{} {} {} {parent}\n", issued.serial, issued.principal, unix_seconds(issued.not_after))
    };
    append(&home.issued_file(), &issued.iter().map(line).collect::<String>())
}

/// The serials to revoke so that all certificates of `what`, a principal or a serial, become invalid.
///
/// For a principal, delegated certificates are revoked by their parent, which may have expired itself: the list of
/// parents is short, however many transfers are queued.
pub fn find(home: &Home, what: &str, now: SystemTime) -> Result<Vec<String>, Error> {
    let serial = what.replace(':', "").to_ascii_lowercase();
    let mut found: Vec<String> = Vec::new();
    each_line(&home.issued_file(), |words| {
        let Some(entry) = parse_entry(words).filter(|entry| entry.not_after >= now) else { return };
        let is_users = entry.principal.to_string() == what;
        let is_parents = entry.parent.as_ref() == Some(&serial);
        if !is_users && !is_parents && entry.serial != serial {
            return;
        }
        let meant = match is_users || is_parents {
            true => entry.parent.unwrap_or(entry.serial),
            false => entry.serial,
        };
        if !found.contains(&meant) {
            found.push(meant);
        }
    })?;
    Ok(found)
}

/// Serials with those of all certificates that were given for one of them, at any remove: what was made with such a
/// certificate is known by its serial. Those that have ended are left out, unless one below is still valid.
///
/// # Errors
/// Errors of the file.
pub fn with_children(home: &Home, mut all: Vec<String>, now: SystemTime) -> Result<Vec<String>, Error> {
    let mut family: BTreeSet<String> = all.iter().cloned().collect();
    let mut below = Vec::new();
    // The line of a parent stands before those of its children.
    each_line(&home.issued_file(), |words| {
        let Some(Entry { serial, parent: Some(parent), not_after, .. }) = parse_entry(words) else { return };
        if family.contains(&parent) && family.insert(serial.clone()) {
            below.push((serial, parent, not_after >= now));
        }
    })?;
    let mut parents = BTreeSet::new();
    for (serial, parent, is_valid) in below.into_iter().rev() {
        if is_valid || parents.contains(&serial) {
            parents.insert(parent);
            all.push(serial);
        }
    }
    Ok(all)
}

/// A principal with valid certificates that were not revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The principal: a user, an agent, the PoP.
    pub principal: Principal,
    /// Number of its certificates.
    pub count: u64,
    /// The end of the last one's validity, and its serial.
    pub until: (SystemTime, String),
}

/// The valid certificates, and the revoked ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Valid certificates by principal.
    pub holders: Vec<Holder>,
    /// Number of credentials of queued transfers and mounts, which are revoked with their parents.
    pub delegated: u64,
    /// The revoked certificates, newest first, with the principal if it is on record.
    pub revoked: Vec<(Revoked, Option<Principal>)>,
}

/// Reads the records, of one principal only if one is named.
///
/// # Errors
/// Errors of the files.
pub fn inventory(home: &Home, of: Option<&Principal>, now: SystemTime) -> Result<Inventory, Error> {
    let mut taken: BTreeMap<String, (Revoked, Option<Principal>)> =
        revoked(home)?.into_iter().map(|one| (one.serial.clone(), (one, None))).collect();
    let (mut holders, mut delegated) = (BTreeMap::<String, Holder>::new(), 0);
    each_line(&home.issued_file(), |words| {
        let Some(entry) = parse_entry(words).filter(|entry| of.is_none_or(|of| entry.principal == *of))
        else {
            return;
        };
        if let Some((_, whose)) = taken.get_mut(&entry.serial) {
            *whose = Some(entry.principal);
            return;
        }
        let is_over = entry.not_after < now || entry.parent.as_ref().is_some_and(|by| taken.contains_key(by));
        let is_agent = matches!(entry.principal, Principal::Agent { .. });
        match is_over {
            true => {}
            false if entry.parent.is_some() && !is_agent => delegated += 1,
            false => enter(&mut holders, entry),
        }
    })?;
    let mut revoked: Vec<_> =
        taken.into_values().filter(|(_, whose)| of.is_none() || whose.is_some()).collect();
    revoked.sort_by_key(|(one, _)| std::cmp::Reverse(one.moment));
    Ok(Inventory { holders: holders.into_values().collect(), delegated, revoked })
}

fn enter(holders: &mut BTreeMap<String, Holder>, entry: Entry) {
    let Entry { principal, serial, not_after, .. } = entry;
    let until = (not_after, serial);
    let fresh = || Holder { principal: principal.clone(), count: 0, until: until.clone() };
    let holder = holders.entry(principal.to_string()).or_insert_with(fresh);
    holder.count += 1;
    if until.0 > holder.until.0 {
        holder.until = until;
    }
}

/// The end of validity of the newest certificate with this `parent`.
pub fn newest_of(home: &Home, parent: &str) -> Result<Option<SystemTime>, Error> {
    let mut newest = None;
    each_line(&home.issued_file(), |words| {
        if let Some(entry) = parse_entry(words).filter(|entry| entry.parent.as_deref() == Some(parent)) {
            newest = newest.max(Some(entry.not_after));
        }
    })?;
    Ok(newest)
}

/// Records a revocation.
pub fn note_revoked(home: &Home, serial: &str, now: SystemTime) -> Result<(), Error> {
    append(&home.revoked_file(), &format!("{serial} {}\n", unix_seconds(now)))
}

/// All revoked certificates, each once.
pub fn revoked(home: &Home) -> Result<Vec<Revoked>, Error> {
    let mut list: Vec<Revoked> = Vec::new();
    each_line(&home.revoked_file(), |words| {
        let [serial, moment] = words else { return };
        if let Some(moment) = parse_time(moment)
            && list.iter().all(|known| known.serial != *serial)
        {
            list.push(Revoked { serial: (*serial).to_owned(), moment });
        }
    })?;
    Ok(list)
}

fn parse_entry(words: &[&str]) -> Option<Entry> {
    let ([serial, principal, not_after], parent) = match words {
        [own @ .., parent] if own.len() == 3 => (own.first_chunk()?, Some((*parent).to_owned())),
        own => (own.first_chunk().filter(|_| own.len() == 3)?, None),
    };
    let principal = Principal::parse(principal).ok()?;
    Some(Entry { serial: (*serial).to_owned(), principal, not_after: parse_time(not_after)?, parent })
}

fn parse_time(text: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(text.parse().ok()?))
}

fn append(path: &Path, line: &str) -> Result<(), Error> {
    make_private_dir(path.parent().unwrap_or(Path::new("/")))?;
    append_line(path, line)
        .and_then(|file| file.sync_data())
        .map_err(|error| file_error("append", path, &error))
}

fn each_line(path: &Path, mut handle: impl FnMut(&[&str])) -> Result<(), Error> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(file_error("read", path, &error)),
    };
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| file_error("read", path, &error))?;
        handle(&line.split_whitespace().collect::<Vec<_>>());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(serial: &str, principal: &str, not_after: u64) -> Issued {
        Issued {
            pem: String::new(),
            serial: serial.into(),
            principal: Principal::parse(principal).unwrap(),
            not_after: UNIX_EPOCH + Duration::from_secs(not_after),
        }
    }

    #[test]
    fn finds_certificates_that_may_still_be_valid() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let now = UNIX_EPOCH + Duration::from_secs(100);
        assert!(find(&home, "alice@kek", now).unwrap().is_empty());
        for (serial, who, until) in
            [("0a", "alice@kek", 99), ("0b", "alice@kek", 101), ("0c", "bob@kek", 101), ("0d", "kek", 200)]
        {
            note(&home, &issued(serial, who, until)).unwrap();
        }
        let serials = |what| find(&home, what, now).unwrap();
        assert_eq!(serials("alice@kek"), ["0b"]);
        assert_eq!(serials("0C"), ["0c"]);
        assert_eq!(serials("kek"), ["0d"]);
    }

    #[test]
    fn a_line_torn_by_a_full_disk_damages_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let now = UNIX_EPOCH + Duration::from_secs(100);
        note_revoked(&home, "0a", now).unwrap();
        let mut file = std::fs::File::options().append(true).open(home.revoked_file()).unwrap();
        std::io::Write::write_all(&mut file, b"0b").unwrap();
        note_revoked(&home, "0c", now).unwrap();
        let serials: Vec<String> = revoked(&home).unwrap().into_iter().map(|one| one.serial).collect();
        assert_eq!(serials, ["0a", "0c"]);
    }

    #[test]
    fn delegated_certificates_are_revoked_with_their_parent() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let delegated = ["0c", "0d"].map(|serial| issued(serial, "alice@kek", 900));
        note(&home, &issued("0a", "alice@kek", 200)).unwrap();
        note(&home, &issued("0b", "alice@kek", 200)).unwrap();
        note_delegated(&home, &delegated.each_ref(), "0a").unwrap();
        let serials = |what, at: u64| find(&home, what, UNIX_EPOCH + Duration::from_secs(at)).unwrap();
        assert_eq!(serials("alice@kek", 100), ["0a", "0b"]);
        // One has expired, and a certificate delegated by it has not.
        assert_eq!(serials("alice@kek", 500), ["0a"]);
        assert!(serials("alice@kek", 901).is_empty());
        assert_eq!((serials("0c", 100), serials("0b", 100)), (vec!["0c".into()], vec!["0b".to_owned()]));
        append(&home.issued_file(), "0e alice@kek 900 0f more\n").unwrap();
        assert_eq!(serials("alice@kek", 500), ["0a"]);
    }

    #[test]
    fn certificates_given_for_others_are_revoked_with_them() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        for (serial, until, parent) in
            [("1a", 200, "0a"), ("1b", 50, "0a"), ("2a", 50, "1a"), ("3a", 200, "2a"), ("1c", 200, "0b")]
        {
            note_delegated(&home, &[&issued(serial, "alice@kek", until)], parent).unwrap();
        }
        let now = UNIX_EPOCH + Duration::from_secs(100);
        let all = |serial: &str| with_children(&home, vec![serial.into()], now).unwrap();
        // 2a has ended, and 3a below it has not.
        assert_eq!(all("0a"), ["0a", "3a", "2a", "1a"]);
        assert_eq!((all("3a"), all("0b")), (vec!["3a".to_owned()], vec!["0b".into(), "1c".into()]));
    }

    #[test]
    fn a_torn_line_is_skipped_and_revocations_count_once() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let now = UNIX_EPOCH + Duration::from_secs(7);
        note_revoked(&home, "0a", now).unwrap();
        note_revoked(&home, "0a", now + Duration::from_secs(1)).unwrap();
        append(&home.revoked_file(), "0b\n").unwrap();
        assert_eq!(revoked(&home).unwrap(), [Revoked { serial: "0a".into(), moment: now }]);
    }
}
