//! Authorities of the grid: folders in the form of `/etc/grid-security/certificates`.
//!
//! `HASH.0` is a certificate, `HASH.signing_policy` the names it may issue, `HASH.r0` its revocation list. All files are
//! read when the PoP starts and when one of them changes; a file that cannot be used is noted and left out, so that one
//! bad authority does not shut out the others. `HASH` is not computed: certificates are found by their names.

use super::certificate::GridCertificate;
use super::name::Name;
use super::revocation::RevocationList;
use super::signing_policy::SigningPolicy;
use crate::identity::certificate::parse_chain;
use renkei_config::home::read_text;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Most files of a folder that are read.
const MAX_FILES: usize = 8192;
/// Largest certificate file and signing policy.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Largest revocation list.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// An authority with its files.
#[derive(Debug)]
pub struct Authority {
    /// Its certificate.
    pub certificate: GridCertificate,
    /// The file of it.
    pub file: PathBuf,
    /// The paths of its files without their last part: there are several if it is installed under several hashes.
    stems: Vec<PathBuf>,
    /// The names it may issue, if there is a file; the reason if that cannot be used.
    pub policy: Option<Result<SigningPolicy, String>>,
    /// Its revocation lists, or the reasons why they cannot be used.
    pub(super) lists: Vec<Result<RevocationList, String>>,
}

impl Authority {
    /// The list in force: the newest.
    pub(super) fn list(&self) -> Option<&RevocationList> {
        self.lists.iter().flatten().max_by_key(|list| list.since)
    }

    /// The state of its revocation list, for people.
    pub fn list_state(&self) -> String {
        match (self.list(), self.lists.iter().find_map(|list| list.as_ref().err())) {
            (Some(list), _) => match list.until {
                Some(until) => format!("good until {}", crate::identity::certificate::utc(until)),
                None => "good".into(),
            },
            (None, Some(cause)) => format!("unusable: {cause}"),
            (None, None) => "none".into(),
        }
    }
}

/// The authorities of all folders.
#[derive(Debug, Default)]
pub struct Authorities {
    /// All of them, in the order of folders and files.
    pub all: Vec<Authority>,
    /// Files that cannot be used, with the reason.
    pub problems: Vec<String>,
}

impl Authorities {
    /// Reads the folders; those that do not exist are left out.
    pub fn load(dirs: &[PathBuf], accepts_weak: bool) -> Self {
        let mut authorities = Authorities::default();
        dirs.iter().for_each(|dir| authorities.load_dir(dir, accepts_weak));
        authorities
    }

    fn load_dir(&mut self, dir: &Path, accepts_weak: bool) {
        let Ok(files) = files(dir) else { return };
        // Certificates first: lists are verified by them.
        for (file, _) in files.iter().filter(|(_, kind)| matches!(kind, Kind::Certificate)) {
            match read_certificate(file) {
                Ok(certificate) => self.add(certificate, file),
                Err(cause) => self.problems.push(format!("{}: {cause}", file.display())),
            }
        }
        for (file, kind) in &files {
            let stem = file.with_extension("");
            let is_beside = |one: &&mut Authority| one.stems.contains(&stem);
            match kind {
                Kind::Certificate => {}
                Kind::Policy => {
                    self.all.iter_mut().filter(is_beside).for_each(|one| one.policy = Some(read_policy(file)))
                }
                Kind::List => self.all.iter_mut().filter(is_beside).for_each(|one| {
                    let bytes = read_bytes(file, MAX_LIST_BYTES);
                    one.lists.push(
                        bytes.and_then(|bytes| RevocationList::read(&bytes, &one.certificate, accepts_weak)),
                    );
                }),
            }
        }
    }

    fn add(&mut self, certificate: GridCertificate, file: &Path) {
        let stem = file.with_extension("");
        match self.all.iter_mut().find(|known| known.certificate.der == certificate.der) {
            Some(known) => known.stems.push(stem),
            None => {
                let (file, stems) = (file.to_owned(), vec![stem]);
                self.all.push(Authority { certificate, file, stems, policy: None, lists: Vec::new() });
            }
        }
    }

    /// The authorities whose revocation list cannot be used, or has expired, with the reason.
    pub fn without_list(&self, now: SystemTime) -> Vec<(String, String)> {
        let cause = |one: &Authority| match one.list() {
            Some(list) => list.is_over(now).then(|| one.list_state()),
            None => (!one.lists.is_empty()).then(|| one.list_state()),
        };
        self.all.iter().filter_map(|one| Some((one.certificate.subject.to_string(), cause(one)?))).collect()
    }

    /// The authorities with a name.
    pub(super) fn named(&self, name: &Name) -> impl Iterator<Item = &Authority> {
        self.all.iter().filter(move |one| one.certificate.subject == *name)
    }
}

enum Kind {
    Certificate,
    Policy,
    List,
}

/// The files of a folder that are named by a hash, in order.
fn files(dir: &Path) -> std::io::Result<Vec<(PathBuf, Kind)>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir)?.take(MAX_FILES) {
        let path = entry?.path();
        if let Some(kind) = kind(&path) {
            found.insert(path, kind);
        }
    }
    Ok(found.into_iter().collect())
}

fn kind(path: &Path) -> Option<Kind> {
    let stem = path.file_stem()?.to_str()?;
    let is_hash = stem.len() == 8 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match path.extension().and_then(OsStr::to_str)? {
        _ if !is_hash => None,
        "signing_policy" => Some(Kind::Policy),
        number if is_number(number) => Some(Kind::Certificate),
        list if list.strip_prefix('r').is_some_and(is_number) => Some(Kind::List),
        _ => None,
    }
}

fn read_certificate(file: &Path) -> Result<GridCertificate, String> {
    let text = String::from_utf8_lossy(&read_bytes(file, MAX_TEXT_BYTES)?).into_owned();
    let chain = parse_chain(&text).map_err(|error| error.cause)?;
    let certificate = GridCertificate::read(&chain[0]).map_err(|error| error.cause)?;
    match certificate.may_certify() {
        true => Ok(certificate),
        false => Err("it is not that of an authority".into()),
    }
}

fn read_policy(file: &Path) -> Result<SigningPolicy, String> {
    let text = read_text(file, MAX_TEXT_BYTES).map_err(|error| error.cause)?;
    SigningPolicy::parse(&text.unwrap_or_default())
}

fn read_bytes(file: &Path, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|error| error.to_string())?;
    opened.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most { Err("it is too large".into()) } else { Ok(bytes) }
}
