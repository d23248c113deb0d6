//! Queued transfers between real PoPs: handed in, run when nobody is there, and told about.

use crate::federation::{Federation, Site};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);

/// Hands a copy over; gives its id.
fn detach(site: &Site, arguments: &[&str]) -> String {
    let mut all = vec!["cp", "--detach"];
    all.extend(arguments);
    site.ok(&all).trim().to_owned()
}

/// A transfer as `why --json` tells it.
fn why(site: &Site, id: &str) -> Value {
    let (status, told) = site.json(&["why", id]);
    assert_eq!(status, 0, "{told}");
    told
}

/// Waits until `wanted` holds for a transfer.
fn until(site: &Site, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let told = why(site, id);
        if wanted(&told) {
            return told;
        }
        assert!(start.elapsed() < WITHIN, "{told:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until it has ended; gives the exit status of `wait`.
fn ended(site: &Site, id: &str) -> i32 {
    site.renkei(&["wait", "--timeout", "60", id]).status.code().unwrap()
}

/// A tree with some of everything.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    for n in 0..50 {
        fs::write(root.join(format!("sub/{n}")), vec![n as u8; 1000 * n]).unwrap();
    }
    fs::write(root.join("big"), vec![7; 20 << 20]).unwrap();
    std::os::unix::fs::symlink("big", root.join("link")).unwrap();
}

fn same(a: &Path, b: &Path) {
    let output = std::process::Command::new("diff").arg("-r").arg(a).arg(b).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_copy_that_was_handed_over_is_done_when_nobody_is_there() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    tree(&titech.root().join("run"));
    // Sent by the user's own site, received by it, and within it.
    for (home, from, to) in [(titech, titech, kek), (kek, titech, kek), (titech, titech, titech)] {
        let name = format!("to-{}-by-{}", to.name, home.name);
        let id = detach(home, &["-r", "--label", "first", &from.place("run"), &to.place(&name)]);
        assert_eq!(id.len(), 32);
        assert_eq!(ended(home, &id), 0, "{:#}", why(home, &id));
        same(&titech.root().join("run"), &to.root().join(&name));
        let told = why(home, &id[..8]);
        assert_eq!((&told["state"], &told["label"]), (&"done".into(), &"first".into()));
        assert_eq!((told["summary"]["files"].as_u64(), told["story"][0]["error"].as_str()), (Some(51), None));
    }
    let listed = titech.ok(&["transfers", "--ended"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(titech.ok(&["transfers"]).is_empty());
}
