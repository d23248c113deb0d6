//! Throttled copies: a class and a limit reach every sender, and both are kept.

use crate::federation::Federation;
use std::fs;
use std::process::Stdio;
use std::time::Instant;

const MIB: usize = 1 << 20;

/// The three ways of one file of `bytes`: up, down and between two sites.
fn ways(federation: &Federation, bytes: usize) -> [(String, String); 3] {
    let scratch = federation.scratch();
    let (file, back) = (scratch.join("file"), scratch.join("back"));
    fs::write(&file, vec![7; bytes]).unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (kek, titech) = (federation.kek.place("file"), federation.titech.place("file"));
    [(text(&file), kek.clone()), (kek.clone(), text(&back)), (kek, titech)]
}

#[test]
fn a_rate_limit_holds_for_each_sender() {
    let federation = Federation::two();
    for (from, to) in ways(&federation, 4 * MIB) {
        let started = Instant::now();
        let (status, report) = federation.titech.json(&["cp", "--limit", "4M", &from, &to]);
        let took = started.elapsed().as_secs_f64();
        assert_eq!((status, report["bytes_moved"].as_u64()), (0, Some(4 << 20)), "{report}");
        // The last piece is not waited for, and a moment's worth may have been saved.
        assert!(took > 0.9, "{from} to {to}: 4 MiB at 4 MiB/s took {took} s");
    }
}

#[test]
fn small_files_count_against_the_limit() {
    let federation = Federation::two();
    let folder = federation.scratch().join("folder");
    fs::create_dir(&folder).unwrap();
    (0..400).for_each(|index| fs::write(folder.join(index.to_string()), vec![7; 10_000]).unwrap());
    let started = Instant::now();
    let to = federation.kek.place("folder");
    federation.titech.ok(&["cp", "-r", "--limit", "4MB", folder.to_str().unwrap(), &to]);
    assert!(started.elapsed().as_secs_f64() > 0.8, "4 MB at 4 MB/s took {:?}", started.elapsed());
}

#[test]
fn a_background_copy_says_so_and_arrives() {
    let federation = Federation::two();
    for (from, to) in ways(&federation, 4 * MIB) {
        let (status, report) = federation.titech.json(&["cp", "--class", "background", &from, &to]);
        assert_eq!((status, report["class"].as_str()), (0, Some("background")), "{report}");
    }
    let sent = fs::read(federation.scratch().join("file")).unwrap();
    assert!(sent == fs::read(federation.scratch().join("back")).unwrap());
    assert!(sent == fs::read(federation.titech.root().join("file")).unwrap());
}

#[test]
fn the_status_shows_the_class() {
    let federation = Federation::two();
    let [(from, to), ..] = ways(&federation, 16 * MIB);
    let mut copy = federation.titech.command();
    copy.args(["cp", "--class", "background", "--limit", "4M", &from, &to]);
    let mut running = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut seen = None;
    while seen.is_none() && running.try_wait().unwrap().is_none() {
        let (_, status) = federation.titech.json(&["status", "kek"]);
        seen = status["transfers"][0]["class"].as_str().map(str::to_owned);
    }
    let text = federation.titech.ok(&["status", "kek"]);
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(seen.as_deref(), Some("background"));
    assert!(text.contains("  background  "), "{text}");
}
