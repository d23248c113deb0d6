//! Checks whether another account could change the files by which a PoP authorises: its configuration, the mapping,
//! the cards of trusted sites and the volumes. Keys are checked where they are read.

use super::check::Checks;
use renkei_config::home::Home;
use renkei_core::path::quoted;
use renkei_store::passwd::user_name;
use renkei_store::strict_modes::{Exposed, ExposedBy, exposed};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) fn check(home: &Home, checks: &mut Checks) {
    let what = "configuration files";
    // The caller may be another account than the PoP's.
    let pop = home.state_dir().metadata().map_or_else(|_| geteuid().as_raw(), |state| state.uid());
    let found = read_by_pop(home).into_iter().filter_map(|path| exposed(&path, &[pop]));
    let found: BTreeMap<PathBuf, ExposedBy> = found.map(|Exposed { path, how }| (path, how)).collect();
    let name = user_name(pop).unwrap_or_else(|| pop.to_string());
    if found.is_empty() {
        checks.ok(what, format!("only {} may write them", writers(&name)));
    }
    for (path, how) in found {
        let typed = remedy(home, &path, how, &name);
        checks.fail(what, Exposed { path, how }.to_string(), typed);
    }
}

/// The files and directories by which the PoP authorises, and its programs.
fn read_by_pop(home: &Home) -> Vec<PathBuf> {
    let (trust, volumes) = (home.trust_dir(), home.volumes_dir());
    let inside =
        |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let listed: Vec<PathBuf> = inside(&trust).chain(inside(&volumes)).collect();
    let own = [home.config_dir().to_owned(), home.config_file(), home.map_file(), trust, volumes];
    own.into_iter().chain(listed).collect()
}

fn writers(pop: &str) -> String {
    if pop == "root" { pop.into() } else { format!("root and {pop}") }
}

fn remedy(home: &Home, path: &Path, how: ExposedBy, pop: &str) -> String {
    let shown = quoted(&path.to_string_lossy());
    let look = "look through what the PoP reads there, then";
    match how {
        // A parent directory of another owner is not the PoP's to change.
        _ if !path.starts_with(home.config_dir()) => {
            format!(
                "move what the PoP reads to a place below directories that only {} may write",
                writers(pop)
            )
        }
        ExposedBy::Owner(_) => format!("{look} `chown {pop} {shown}`"),
        ExposedBy::Mode(_) => format!("{look} `chmod go-w {shown}`"),
        ExposedBy::Link => format!("put a file or directory in its place: `ls -l {shown}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir_all, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, chown};

    fn told(home: &Home) -> String {
        let mut checks = Checks::default();
        check(home, &mut checks);
        serde_json::to_string(&checks).unwrap()
    }

    fn pop(dir: &Path) -> Home {
        let home = Home::at(dir);
        for folder in [home.trust_dir(), home.volumes_dir(), home.state_dir().into()] {
            create_dir_all(&folder).unwrap();
            set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        }
        set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
        for file in files(&home) {
            write(&file, "").unwrap();
            set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        }
        home
    }

    fn files(home: &Home) -> [PathBuf; 4] {
        let (card, volume) = (home.trust_dir().join("kek.site"), home.volumes_dir().join("genome.toml"));
        [home.config_file(), home.map_file(), card, volume]
    }

    #[test]
    fn files_writable_by_others_fail() {
        let dir = tempfile::tempdir().unwrap();
        let home = pop(dir.path());
        assert!(told(&home).contains(r#""fail":0"#), "{}", told(&home));
        let dirs = [home.config_dir().to_owned(), home.trust_dir(), home.volumes_dir()];
        let with_modes = |paths: &[PathBuf], modes: [u32; 2], good: u32| {
            for (path, mode) in paths.iter().flat_map(|path| modes.map(|mode| (path, mode))) {
                set_permissions(path, Permissions::from_mode(mode)).unwrap();
                let (told, shown) = (told(&home), path.display());
                assert!(
                    told.contains(&format!("{shown} may be written by other accounts (mode {mode:o})")),
                    "{told}"
                );
                assert!(told.contains(&format!("`chmod go-w {shown}`")), "{told}");
                set_permissions(path, Permissions::from_mode(good)).unwrap();
            }
        };
        with_modes(&files(&home), [0o666, 0o646], 0o644);
        // With the sticky bit, other users may still add cards.
        with_modes(&dirs, [0o777, 0o1777], 0o755);
        assert!(told(&home).contains(r#""fail":0"#), "{}", told(&home));
    }

    #[test]
    fn a_directory_inside_one_of_others_should_be_moved() {
        let dir = tempfile::tempdir().unwrap();
        let home = pop(&dir.path().join("shared/pop"));
        set_permissions(dir.path().join("shared"), Permissions::from_mode(0o777)).unwrap();
        let told = told(&home);
        assert!(told.contains("/shared may be written by other accounts (mode 777)"), "{told}");
        assert!(told.contains("move what the PoP reads") && !told.contains("chmod"), "{told}");
        assert!(told.contains(r#""fail":1"#), "{told}");
    }

    #[test]
    fn files_owned_by_others_fail() {
        if !geteuid().is_root() {
            return eprintln!("SKIPPED: only root gives files away");
        }
        let dir = tempfile::tempdir().unwrap();
        let home = pop(dir.path());
        for path in files(&home) {
            chown(&path, Some(65_534), None).unwrap();
            let (told, shown) = (told(&home), path.display());
            assert!(told.contains(&format!("{shown} belongs to the account number 65534")), "{told}");
            assert!(told.contains(&format!("`chown root {shown}`")), "{told}");
            chown(&path, Some(0), None).unwrap();
        }
        // A group of other users.
        chown(home.map_file(), None, Some(65_534)).unwrap();
        set_permissions(home.map_file(), Permissions::from_mode(0o664)).unwrap();
        assert!(told(&home).contains("(mode 664)"), "{}", told(&home));
    }
}
