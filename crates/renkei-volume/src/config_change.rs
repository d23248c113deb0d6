//! Changes of a volume's configuration that its managers may make, locally or over the wire.

use super::VolumeConfig;
use super::grant::{Grant, Grantee};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;

/// The valid keys, for messages.
const KEYS: &str = "`scan_every_s`, `managers`, `log_records`, `log_days`, `verify_rate`, `replicas`, `at`, `repair_after`, \
                    `hold`, `policy` and `paused`";

fn invalid(subject: impl std::fmt::Display, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::UsageInvalid, "set", subject, cause)
}

/// Splits `KEY=VALUE`.
///
/// # Errors
/// `UsageInvalid`.
pub fn pair(text: &str) -> Result<(String, String), Error> {
    let (key, value) = text.split_once('=').ok_or_else(|| invalid(text, "write KEY=VALUE"))?;
    Ok((key.into(), value.into()))
}

/// Sets a key that managers of the volume may set.
///
/// # Errors
/// `UsageInvalid`, `BadPath`.
pub fn set(facts: &mut VolumeConfig, key: &str, text: &str) -> Result<(), Error> {
    match key {
        "scan_every_s" => facts.scan_every_s = number(key, text)?,
        "log_records" => facts.log_records = number(key, text)?,
        "log_days" => facts.log_days = number(key, text)?,
        "managers" => facts.managers = managers(text)?,
        "hold" if facts.storage.is_empty() => {
            return Err(invalid(key, "it was subscribed to without --storage"));
        }
        "hold" => facts.hold = folders(text)?,
        _ if facts.care.set(key, text)? => {}
        _ => return Err(invalid(key, format_args!("there is {KEYS}"))),
    }
    Ok(())
}

fn number(key: &str, text: &str) -> Result<u64, Error> {
    text.parse().map_err(|_| invalid(key, "write a whole number"))
}

/// Parses a list of managers, `alice@kek,*@kek`.
fn managers(text: &str) -> Result<Vec<Grantee>, Error> {
    let manager = |text: &str| {
        let who = Grantee::parse(text.trim())?;
        if who.is_users() { Ok(who) } else { Err(invalid(text, "write NAME@SITE or *@SITE")) }
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(manager).collect()
}

/// Parses a list of folders of a volume, `/2026/raw,/public`.
///
/// # Errors
/// `BadPath`.
pub fn folders(text: &str) -> Result<Vec<String>, Error> {
    let folder = |text: &str| {
        let path = RelPath::parse_lenient(text.as_bytes())?;
        Ok(String::from_utf8_lossy(path.as_bytes()).into_owned())
    };
    text.split(',').filter(|text| !text.is_empty()).map(folder).collect()
}

/// Adds a grant; it replaces one to the same grantee for the same folder.
///
/// # Errors
/// `UsageInvalid` for a grant of a single folder to a site as such.
pub fn add_grant(facts: &mut VolumeConfig, grant: Grant) -> Result<(), Error> {
    if !grant.to.is_users() && !grant.on.is_empty() {
        let cause = format!(
            "a site follows a volume as a whole; without a folder it may, or give the folder to its users (*@{})",
            grant.to
        );
        return Err(Error::new(Code::UsageInvalid, "grant", &grant.to, cause));
    }
    facts.grant.retain(|other| other.to != grant.to || other.on != grant.on);
    facts.grant.push(grant);
    Ok(())
}

/// Revokes the grants to a grantee, for one folder or for all.
///
/// # Errors
/// `PathNotFound` if there is no such grant.
pub fn take_back(facts: &mut VolumeConfig, who: &Grantee, on: Option<&str>) -> Result<(), Error> {
    let before = facts.grant.len();
    facts.grant.retain(|grant| grant.to != *who || on.is_some_and(|on| grant.on != on));
    if facts.grant.len() == before {
        return Err(Error::new(Code::PathNotFound, "revoke", who, "there is no such grant"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::volume_config::tests::facts;
    use super::*;

    #[test]
    fn settings_are_written_and_read_back() {
        let mut facts = facts();
        for (key, text) in [("managers", "bob@kek, *@titech"), ("log_records", "7"), ("hold", "/a,/b/c/")] {
            set(&mut facts, key, text).unwrap();
        }
        assert_eq!(
            facts.managers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["bob@kek", "*@titech"]
        );
        assert_eq!((facts.log_records, facts.hold.as_slice()), (7, &["a".to_owned(), "b/c".into()][..]));
        for (key, text) in [
            ("managers", "titech"),
            ("log_days", "-1"),
            ("account", "root"),
            ("storage", "x"),
            ("hold", "/../x"),
        ] {
            assert!(set(&mut facts, key, text).is_err(), "{key}={text}");
        }
        facts.storage.clear();
        assert_eq!(set(&mut facts, "hold", "/").unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn grants_to_sites_are_for_whole_volumes_only() {
        let mut facts = facts();
        let mut grant = |to: &str, on: &str| add_grant(&mut facts, Grant::parse(to, "read", on).unwrap());
        assert_eq!(grant("titech", "public").unwrap_err().code, Code::UsageInvalid);
        grant("titech", "").unwrap();
        grant("*@titech", "public").unwrap();
        grant("*@titech", "public").unwrap();
        assert_eq!(facts.grant.len(), 2);
        take_back(&mut facts, &Grantee::parse("titech").unwrap(), Some("public")).unwrap_err();
        take_back(&mut facts, &Grantee::parse("*@titech").unwrap(), None).unwrap();
        assert_eq!(facts.grant.len(), 1);
    }
}
