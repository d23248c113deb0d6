//! Completions of a shell, requested by a real bash.

use crate::federation::{Federation, Site};
use std::process::Command;

/// The completions of bash for the last of `words`, as in a terminal.
fn offered(site: &Site, words: &[&str]) -> Vec<String> {
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_renkei"));
    let script = "source <(renkei completion bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; \
                  _clap_complete_renkei renkei \"${!#}\" \"\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .args(words)
        .env("PATH", path)
        .env("RENKEI_DIR", site.dir())
        .output()
        .unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).filter(|l| !l.is_empty()).collect()
}

#[test]
fn bash_completes_verbs_sites_places_and_transfers() {
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    std::fs::create_dir(kek.root().join("run7")).unwrap();
    std::fs::write(kek.root().join("run7/a.dat"), "a").unwrap();
    std::fs::write(kek.root().join("run8.dat"), "b").unwrap();
    assert_eq!(offered(titech, &["renkei", "checks"]), ["checksum"]);
    assert!(offered(titech, &["renkei", "cp", "--dry"]).contains(&"--dry-run".to_owned()));
    assert_eq!(offered(titech, &["renkei", "ls", "k"]), ["kek:/"]);
    assert_eq!(offered(titech, &["renkei", "ls", "kek:/d"]), ["kek:/data/"]);
    assert_eq!(
        offered(titech, &["renkei", "ls", "kek:/data/run"]),
        ["kek:/data/run7/", "kek:/data/run8.dat"]
    );
    assert!(offered(titech, &["renkei", "cp", "kek:/data/run7/"]).contains(&"kek:/data/run7/a.dat".into()));
    std::fs::create_dir(kek.root().join("a b")).unwrap();
    std::fs::write(kek.root().join("a b/c d.dat"), "c").unwrap();
    for typed in ["kek:/data/a\\ b/", "'kek:/data/a b/", "\"kek:/data/a b/c"] {
        assert_eq!(offered(titech, &["renkei", "ls", typed]), ["kek:/data/a b/c d.dat"], "{typed}");
    }
    assert_eq!(offered(titech, &["renkei", "doctor", "ke"]), ["kek"]);
    let id = titech.ok(&["cp", "--detach", &titech.place("none"), &kek.place("x")]);
    let id = id.split_whitespace().next().unwrap();
    assert!(offered(titech, &["renkei", "why", ""]).iter().any(|offer| id.starts_with(offer)), "{id}");
    // A site that is unreachable has no completions and does not delay the shell.
    assert!(offered(titech, &["renkei", "ls", "nowhere:/"]).is_empty());
}
