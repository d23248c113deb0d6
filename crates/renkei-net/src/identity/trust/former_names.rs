//! The former names of renamed sites, as a PoP or a user keeps them: `trust/former-names`.
//!
//! A process installs them at its start; from then on all names that it parses are mapped to the current ones. A PoP
//! that learns another former name while it runs restarts ([`has_more`]). Cards and revocation lists under a former
//! name are skipped by [`crate::identity::trust`], and removed at the next start ([`tidy`]). Non-goal: authorising a renaming,
//! see there.

use super::{card_files, is_of_former_name, remove_file};
use renkei_config::home::{Home, file_error, make_dir, read_text, write_file};
use renkei_core::error::Error;
use renkei_core::former_names::FormerNames;
use renkei_core::path::SiteName;

/// Largest file accepted.
const MAX_BYTES: u64 = 1 << 20;
const HEAD: &str = "# Sites that were renamed: the former name and that of today. Written by renkei.\n";

/// The former names in the file of a directory.
///
/// # Errors
/// Errors of the file.
pub fn read(home: &Home) -> Result<FormerNames, Error> {
    FormerNames::parse(&read_text(&home.former_names_file(), MAX_BYTES)?.unwrap_or_default())
}

/// Installs the former names of a PoP and its user in this process.
///
/// # Errors
/// Errors of the files.
pub fn install(home: &Home) -> Result<(), Error> {
    for home in [home, &home.of_user()] {
        read(home)?.install();
    }
    Ok(())
}

/// Records a former name.
///
/// # Errors
/// `ConfigInvalid` if the new name is a former one, and errors of the file.
pub(crate) fn note(home: &Home, former: &str, current: &SiteName) -> Result<(), Error> {
    let mut names = read(home)?;
    if names.current(former) == Some(current.as_str()) {
        return Ok(());
    }
    names.add(former, current.as_str())?;
    make_dir(&home.trust_dir(), 0o755)?;
    write_file(&home.former_names_file(), (HEAD.to_owned() + &names.to_text()).as_bytes(), 0o644)
}

/// Whether a directory has former names that were not known when a process started.
///
/// # Errors
/// Errors of the file.
pub fn has_more(home: &Home, at_start: &FormerNames) -> Result<bool, Error> {
    Ok(read(home)?.iter().any(|(former, current)| at_start.current(former) != Some(current)))
}

/// Removes cards under former names, and renames revocation lists to the current names.
///
/// # Errors
/// Errors of the files.
pub fn tidy(home: &Home) -> Result<(), Error> {
    for (former, current) in read(home)?.iter() {
        let (old, new) = (list_file(home, former), list_file(home, current));
        if old.exists() && !new.exists() {
            std::fs::rename(&old, &new).map_err(|error| file_error("rename", &old, &error))?;
        }
        remove_file(&old)?;
    }
    card_files(&home.trust_dir())?
        .iter()
        .filter(|path| is_of_former_name(path))
        .try_for_each(|path| remove_file(path))
}

fn list_file(home: &Home, site: &str) -> std::path::PathBuf {
    home.crl_dir().join(format!("{site}.crl"))
}
