//! Queued transfers of very many files, and of users who share a PoP.

use crate::federation::{Federation, Site, account};
use crate::queue::{detach, session, submission, submit, until, why};
use crate::wire::raw;
use renkei_net::identity::authority::Authority;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Instant, SystemTime};

/// Files in a directory of the tree.
const IN_ONE: usize = 1000;
/// Of so many files, one cannot be read.
const ONE_OF: usize = 100;
/// Memory that each PoP may have taken at most, whatever the number of files.
const MAX_MIB: u64 = 400;

/// Lets everybody enter the folder of a federation's sites.
fn open(federation: &Federation) {
    let all = fs::Permissions::from_mode(0o777);
    let parent = federation.titech.root().parent().unwrap();
    [parent, federation.titech.root(), federation.kek.root()]
        .iter()
        .for_each(|path| fs::set_permissions(path, all.clone()).unwrap());
}

/// Whether this is root, which reads everything and so must send as another account.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A tree of small files, of which some are readable by root only, or by no account.
fn tree(root: &Path, files: usize) {
    let closed = fs::Permissions::from_mode(if is_root() { 0o600 } else { 0 });
    for n in 0..files {
        let dir = root.join(format!("d{}", n / IN_ONE));
        if n % IN_ONE == 0 {
            fs::create_dir_all(&dir).unwrap();
        }
        let file = dir.join(format!("f{n}"));
        fs::write(&file, n.to_string()).unwrap();
        if n % ONE_OF == 0 {
            fs::set_permissions(&file, closed.clone()).unwrap();
        }
    }
}

/// The most memory a process ever had, in MiB.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// The output of a command that must succeed.
fn told(site: &Site, arguments: &[&str]) -> Value {
    let (status, told) = site.json(arguments);
    assert_eq!(status, 0, "{told}");
    told
}

/// Prints the time; `RENKEI_FILES=1000000` measures with as many.
#[test]
fn unreadable_files_are_all_listed_and_the_others_arrive() {
    let files: usize =
        std::env::var("RENKEI_FILES").map_or(10_000, |number| number.parse().expect("a number"));
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    open(&federation);
    if is_root() {
        titech.ok(&["map", "add", "--yes", "root@titech", "daemon"]);
    }
    tree(&titech.root().join("run"), files);
    let (unreadable, start) = (files / ONE_OF, Instant::now());
    let id = detach(titech, &["-r", &titech.place("run"), &kek.place("run")]);
    let wait = titech.renkei(&["wait", "--timeout", "3000", &id]);
    let took = start.elapsed();
    assert_eq!(wait.status.code(), Some(23), "{:#}", why(titech, &id));
    let short = why(titech, &id);
    let count = |told: &Value, field: &str| told["summary"][field].as_u64().unwrap() as usize;
    assert_eq!((count(&short, "files"), count(&short, "failed")), (files - unreadable, unreadable));
    assert_eq!((&short["state"], &short["reason"]["code"]), (&"partial".into(), &"RK-MOVE-4".into()));
    let start = Instant::now();
    let whole = told(titech, &["status", "--failures", &id]);
    let listing = start.elapsed();
    let failures = whole["failures"].as_array().unwrap();
    let mut paths: Vec<&str> = failures.iter().map(|one| one["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), unreadable);
    assert!(failures.iter().all(|one| one["code"] == "RK-STORE-5" && one["side"] == "titech"));
    let text = titech.ok(&["why", "--failures", &id]);
    assert_eq!(text.lines().filter(|line| line.starts_with("  failed ")).count(), unreadable);
    let peaks = [titech, kek].map(|site| peak(site.pid()));
    let rate = files as f64 / took.as_secs_f64();
    println!(
        "{files} files, {unreadable} unreadable: {took:.1?} ({rate:.0}/s), listed in {listing:.1?}, at most {} MiB at \
         the source and {} MiB at the destination",
        peaks[0], peaks[1]
    );
    assert!(peaks.iter().all(|peak| *peak < MAX_MIB), "{peaks:?} MiB");
    retry_sends_only_failed_files(titech, kek, &id, files);
}

fn retry_sends_only_failed_files(titech: &Site, kek: &Site, id: &str, files: usize) {
    for n in (0..files).step_by(ONE_OF) {
        let file = titech.root().join(format!("run/d{}/f{n}", n / IN_ONE));
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    titech.ok(&["retry", id]);
    assert_eq!(
        titech.renkei(&["wait", "--timeout", "3000", id]).status.code(),
        Some(0),
        "{:#}",
        why(titech, id)
    );
    let told = why(titech, id);
    let field = |name: &str| told["summary"][name].as_u64().unwrap() as usize;
    assert_eq!((field("files"), field("files_skipped")), (files, files - files / ONE_OF));
    assert!(told["failures"].as_array().unwrap().is_empty(), "{told:#}");
    let peaks = [titech, kek].map(|site| peak(site.pid()));
    println!("tried again: at most {} MiB at the source and {} MiB at the destination", peaks[0], peaks[1]);
    assert!(peaks.iter().all(|peak| *peak < MAX_MIB), "{peaks:?} MiB");
    assert_eq!(fs::read_to_string(kek.root().join("run/d0/f0")).unwrap(), "0");
}

/// Those that run and those that have not ended, of each owner.
fn open_of<'t>(told: &'t Value, owner: &str) -> (usize, usize) {
    let all = told["transfers"].as_array().unwrap();
    let own = || all.iter().filter(|one| one["owner"].as_str().is_some_and(|name: &'t str| name == owner));
    (own().filter(|one| one["state"] == "running").count(), own().count())
}

#[test]
fn a_small_late_job_of_another_user_is_done_early() {
    if !is_root() {
        return eprintln!("SKIPPED: this is not root, whose PoP alone serves other accounts");
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    open(&federation);
    kek.ok(&["map", "add", "--yes", "daemon@titech", "daemon"]);
    let config = titech.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    let limits = "[queue]\nmax_running = 7\nmax_running_user = 4\nmax_running_link = 6\n";
    fs::write(&config, format!("{text}\n{limits}")).unwrap();
    for name in ["f", "g"] {
        fs::write(titech.root().join(name), vec![7; 1 << 20]).unwrap();
    }
    let slow = |n: u32, name: &str| {
        let mut one = submission(n, name);
        one.send.limit = Some(4 << 20);
        one
    };
    let authority = Authority::load(&raw::home(titech)).unwrap();
    let daemon = raw::issue_user(&authority, "daemon", 1, SystemTime::now());
    let mut daemon = raw::connect(titech, &daemon, titech).unwrap();
    let many = (0..200).map(|n| slow(n, "f")).collect();
    assert!(submit(&mut session(titech), many).iter().all(Result::is_ok));
    until(titech, "00000000", |told| told["state"] != "queued");
    let few = (1000..1005).map(|n| slow(n, "g")).collect();
    assert!(submit(&mut daemon, few).iter().all(Result::is_ok));
    let (owners, start) = ([format!("{}@titech", account()), "daemon@titech".to_owned()], Instant::now());
    let mut together = 0;
    let left = loop {
        let (_, told) = titech.json(&["transfers", "--all"]);
        let [(first, left), (second, late)] = [&owners[0], &owners[1]].map(|owner| open_of(&told, owner));
        assert!(first <= 4 && second <= 4 && first + second <= 6, "{first} and {second} run at once");
        together = together.max(first + second);
        if late == 0 {
            break left;
        }
        assert!(start.elapsed().as_secs() < 60, "{told:#}");
    };
    println!("when the 5 were done after {:.1?}, {left} of the 200 were left", start.elapsed());
    assert!(left >= 100 && together > 4, "{left} of 200 are left, {together} ran at once");
    (1000..1005)
        .for_each(|n| assert_eq!(fs::metadata(kek.root().join(format!("g-{n}"))).unwrap().len(), 1 << 20));
}
