//! LSC files: which certificate a VOMS server has. `VOMSDIR/VO/HOST.lsc` has the subject and, on the next line, the
//! issuer; several of them are divided by a line `------ NEXT CHAIN ------`.

use super::name::Name;
use renkei_config::home::read_text;
use renkei_core::identity::grid_name::canonical_dn;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest file read, and most files.
const MAX_BYTES: u64 = 64 * 1024;
const MAX_FILES: usize = 4096;

/// Subject and issuer of a server's certificate.
type Chain = (String, String);

/// All LSC files.
#[derive(Debug, Default)]
pub(super) struct LscFiles(BTreeMap<(String, String), Vec<Chain>>);

impl LscFiles {
    /// Reads the files of a vomsdir; those that cannot be used are noted.
    pub(super) fn load(dir: &Path, problems: &mut Vec<String>) -> Self {
        let mut files = LscFiles::default();
        for path in paths(dir).into_iter().take(MAX_FILES) {
            let text = read_text(&path, MAX_BYTES).ok().flatten().unwrap_or_default();
            let vo = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            let host = path.file_stem().unwrap_or_default().to_string_lossy();
            match parse(&text) {
                Some(chains) => drop(files.0.insert((vo.into_owned(), host.into_owned()), chains)),
                None => {
                    problems.push(format!("{}: not a subject and an issuer, a line each", path.display()))
                }
            }
        }
        files
    }

    /// Checks that the server of an organisation has a certificate with these names.
    pub(super) fn check(&self, vo: &str, host: &str, subject: &Name, issuer: &Name) -> Result<(), String> {
        let chains = self.0.get(&(vo.to_owned(), host.to_owned()));
        let chains = chains.ok_or_else(|| format!("there is no file {vo}/{host}.lsc"))?;
        let shown = (subject.to_string(), issuer.to_string());
        match chains.contains(&shown) {
            true => Ok(()),
            false => Err(format!("{vo}/{host}.lsc does not name {} of {}", shown.0, shown.1)),
        }
    }
}

/// The LSC files of a vomsdir, in order.
pub(super) fn paths(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = entries(dir).iter().flat_map(|vo| entries(vo)).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "lsc"));
    paths.sort();
    paths
}

/// The paths in a directory; none if it cannot be read.
pub(super) fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

fn parse(text: &str) -> Option<Vec<Chain>> {
    let mut chains = Vec::new();
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    for chain in lines.split(|line| line.contains("NEXT CHAIN")).filter(|chain| !chain.is_empty()) {
        let [subject, issuer, ..] = chain else { return None };
        chains.push((canonical_dn(subject)?, canonical_dn(issuer)?));
    }
    (!chains.is_empty()).then_some(chains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_servers_and_their_authorities() {
        let two = "/C=JP/CN=voms.kek.jp\n/C=JP/CN=CA\n\n------ NEXT CHAIN ------\n/C=JP/CN=b/Email=x\n/C=JP/CN=CA\n";
        let chains = parse(two).unwrap();
        assert_eq!(chains.len(), 2);
        assert_eq!(chains[1].0, "/C=JP/CN=b/emailAddress=x");
        for bad in ["", "/CN=a\n", "a\nb\n"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
