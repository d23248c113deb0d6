//! Third-party copies between the PoPs of sites that trust each other: by renkei/1, or by HTTP where that is not possible.

use super::credential;
use super::tpc::{copy, last_line, names, running, token, until};
use crate::federation::{Federation, Site};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

/// Above the size from which on a copy is worth a certificate.
const LARGE_BYTES: usize = 65 << 20;
const ALL: &str = "read,list,create,modify,delete";

fn url(site: &Site, path: &str) -> String {
    format!("https://{}/data/{path}", site.address)
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Has the PoP of `site` pull a file or push it; gives the last line.
fn tell(site: &Site, path: &str, header: &str, token: &str, more: &[&str]) -> String {
    let token = format!("TransferHeaderAuthorization: Bearer {token}");
    let answer = copy(site, &format!("/data/{path}"), &[&[header, &token], more].concat());
    assert_eq!(answer.status, 202, "{}", answer.head);
    last_line(&answer)
}

fn pull(to: &Site, path: &str, from: &Site, source: &str, token: &str) -> String {
    tell(to, path, &format!("Source: {}", url(from, source)), token, &["RequireChecksumVerification: true"])
}

fn push(from: &Site, path: &str, to: &Site, target: &str, token: &str) -> String {
    tell(from, path, &format!("Destination: {}", url(to, target)), token, &[])
}

/// The protocol of the newest copy.
fn protocol(site: &Site) -> String {
    let (_, listed) = site.json(&["transfers", "--ended"]);
    listed["transfers"][0]["label"].as_str().unwrap().to_owned()
}

#[test]
fn the_bytes_go_by_renkei() {
    let sites = Federation::two();
    let (titech, kek) = (&sites.titech, &sites.kek);
    let (large, small) = (content(LARGE_BYTES), content(1000));
    fs::write(kek.root().join("large"), &large).unwrap();
    fs::write(kek.root().join("small"), &small).unwrap();
    let shown = token(kek, ALL);
    assert_eq!(pull(titech, "a", kek, "large", &shown), "success: Created", "{}", titech.logged());
    assert!(fs::read(titech.root().join("a")).unwrap() == large);
    assert_eq!(protocol(titech), "renkei/1", "{}", titech.logged());
    assert!(kek.logged().contains("file session"), "{}", kek.logged());
    // The session is there: small files go by it, too.
    assert_eq!(pull(titech, "b", kek, "small", &shown), "success: Created");
    assert_eq!(
        (protocol(titech), fs::read(titech.root().join("b")).unwrap()),
        ("renkei/1".into(), small.clone())
    );
    assert_eq!(push(titech, "a", kek, "back", &shown), "success: Created", "{}", titech.logged());
    assert!(fs::read(kek.root().join("back")).unwrap() == large);
    assert_eq!(protocol(titech), "renkei/1", "{}", titech.logged());
    // A token that is for one small file is not worth a certificate.
    assert_eq!(pull(titech, "c", kek, "small", &token(kek, "read")), "success: Created");
    assert_eq!((protocol(titech), fs::read(titech.root().join("c")).unwrap()), ("HTTP".into(), small));
    let (_, listed) = titech.json(&["transfers", "--ended"]);
    let id = listed["transfers"][1]["id"].as_str().unwrap();
    let why = titech.ok(&["why", id]);
    assert!(why.contains("[renkei/1]") && why.contains("https://"), "{why}");
    assert_eq!(names(titech), ["a", "b", "c"]);
    assert_eq!(names(kek), ["back", "large", "small"]);
}

#[test]
fn a_token_reaches_no_further_than_by_http() {
    let sites = Federation::two();
    let (titech, kek) = (&sites.titech, &sites.kek);
    let large = content(LARGE_BYTES);
    for dir in ["run7", "other"] {
        fs::create_dir(kek.root().join(dir)).unwrap();
        fs::write(kek.root().join(dir).join("large"), &large).unwrap();
    }
    fs::write(titech.root().join("new"), &large).unwrap();
    let shown = |path: &str, may: &str| {
        kek.ok(&["token", &format!("{}:/data/{path}", kek.name), "--may", may]).trim().to_owned()
    };
    let reads = shown("run7", "read");
    assert_eq!(pull(titech, "a", kek, "run7/large", &reads), "success: Created", "{}", titech.logged());
    assert_eq!(protocol(titech), "renkei/1", "{}", titech.logged());
    // The session of that token is open.
    let line = pull(titech, "b", kek, "other/large", &reads);
    assert!(line.starts_with("failure: RK-TPC-2: ") && line.contains("403"), "{line}");
    let line = push(titech, "new", kek, "run7/new", &reads);
    assert!(line.starts_with("failure: RK-TPC-2: ") && line.contains("403"), "{line}");
    let creates = shown("run7", "create");
    assert_eq!(push(titech, "new", kek, "run7/new", &creates), "success: Created", "{}", titech.logged());
    assert_eq!(protocol(titech), "renkei/1", "{}", titech.logged());
    let line = push(titech, "new", kek, "run7/large", &creates);
    assert!(line.starts_with("failure: RK-TPC-2: "), "{line}");
    let line = push(titech, "new", kek, "other/new", &creates);
    assert!(line.starts_with("failure: RK-TPC-2: "), "{line}");
    // A token for a file alone, and not for the one beside it.
    let one = shown("run7/large", "read");
    assert_eq!(pull(titech, "one", kek, "run7/large", &one), "success: Created", "{}", titech.logged());
    assert_eq!(protocol(titech), "renkei/1", "{}", titech.logged());
    let line = pull(titech, "b", kek, "run7/new", &one);
    assert!(line.starts_with("failure: RK-TPC-2: ") && line.contains("403"), "{line}");
    assert_eq!(names(titech), ["a", "new", "one"]);
    assert!(fs::read(kek.root().join("run7/large")).unwrap() == large);
    assert!(!kek.root().join("other/new").exists());
}

#[test]
fn where_no_certificate_is_given_the_bytes_go_by_http() {
    let mut sites = Federation::two();
    sites.kek.environment = vec![("RENKEI_BORROWED_HOURS", "0")];
    sites.kek.restart();
    let (titech, kek) = (&sites.titech, &sites.kek);
    let large = content(LARGE_BYTES);
    fs::write(kek.root().join("large"), &large).unwrap();
    assert_eq!(
        pull(titech, "a", kek, "large", &token(kek, "read")),
        "success: Created",
        "{}",
        titech.logged()
    );
    assert!(fs::read(titech.root().join("a")).unwrap() == large);
    assert_eq!(protocol(titech), "HTTP");
    assert_eq!(push(titech, "a", kek, "b", &token(kek, ALL)), "success: Created", "{}", titech.logged());
    assert_eq!(protocol(titech), "HTTP");
    // No token at all.
    let line = last_line(&copy(titech, "/data/b", &[&format!("Source: {}", url(kek, "large"))]));
    assert!(line.starts_with("failure: RK-TPC-2: ") && line.contains("401"), "{line}");
}

#[test]
fn digests_of_the_client_are_compared() {
    let sites = Federation::two();
    let (titech, kek) = (&sites.titech, &sites.kek);
    fs::write(kek.root().join("large"), vec![7; LARGE_BYTES]).unwrap();
    let (source, shown) = (format!("Source: {}", url(kek, "large")), token(kek, ALL));
    let line = tell(titech, "a", &source, &shown, &["Digest: adler32=00000001"]);
    assert!(line.starts_with("failure: RK-MOVE-3: ") && line.contains("adler32 00000001"), "{line}");
    assert!(names(titech).is_empty());
    fs::write(titech.root().join("b"), vec![7; LARGE_BYTES]).unwrap();
    let target = format!("Destination: {}", url(kek, "b"));
    let line = tell(titech, "b", &target, &shown, &["Repr-Digest: adler=:AnQBOw==:"]);
    assert!(line.starts_with("failure: RK-MOVE-3: "), "{line}");
    assert_eq!(names(kek), ["large"]);
}

/// Begins a pull of a file that takes some seconds.
fn begin(to: &Site, from: &Site, source: &str) -> Child {
    Command::new("curl")
        .args(["--silent", "--insecure", "--http1.1", "--max-time", "300", "-X", "COPY", "--cert"])
        .arg(credential(to))
        .args(["-H", &format!("Source: {}", url(from, source))])
        .args(["-H", &format!("TransferHeaderAuthorization: Bearer {}", token(from, "read"))])
        .arg(url(to, "a"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn moves(site: &Site) -> bool {
    running(site).iter().any(|one| one["progress"]["bytes_moved"].as_u64() > Some(8 << 20))
}

#[test]
fn a_cut_copy_goes_on_and_ends_by_cancel_and_without_trust() {
    let mut sites = Federation::two();
    // Holes: reading them costs little.
    let bytes = 700 << 20;
    File::create(sites.kek.root().join("holes")).unwrap().set_len(bytes).unwrap();
    let curl = begin(&sites.titech, &sites.kek, "holes");
    until("the copy moves data", || moves(&sites.titech));
    sites.kek.kill9();
    sites.kek.restart();
    let text = String::from_utf8(curl.wait_with_output().unwrap().stdout).unwrap();
    let titech = &sites.titech;
    assert!(text.ends_with("success: Created\n"), "{text}\n{}", titech.logged());
    assert_eq!(protocol(titech), "renkei/1");
    assert!(titech.logged().contains("file session opened again"), "{}", titech.logged());
    assert_eq!(fs::metadata(titech.root().join("a")).unwrap().len(), bytes);
    // Nothing came twice.
    let moved =
        text.lines().filter_map(|line| line.trim().strip_prefix("Stripe Bytes Transferred: ")).next_back();
    assert_eq!(moved.unwrap(), bytes.to_string());

    fs::remove_file(titech.root().join("a")).unwrap();
    let curl = begin(titech, &sites.kek, "holes");
    until("the copy moves data", || moves(titech));
    let id = running(titech)[0]["id"].as_str().unwrap().to_owned();
    titech.ok(&["cancel", &id]);
    let text = String::from_utf8(curl.wait_with_output().unwrap().stdout).unwrap();
    assert!(text.lines().last().unwrap().starts_with("aborted: RK-MOVE-5"), "{text}");
    let (_, why) = titech.json(&["why", &id]);
    assert_eq!((&why["state"], &why["label"]), (&"cancelled".into(), &"renkei/1".into()), "{why}");
    until("nothing is left", || names(titech).is_empty());

    let curl = begin(titech, &sites.kek, "holes");
    until("the copy moves data", || moves(titech));
    titech.ok(&["trust", "remove", "kek"]);
    let text = String::from_utf8(curl.wait_with_output().unwrap().stdout).unwrap();
    assert!(text.lines().last().unwrap().starts_with("failure: RK-"), "{text}");
    until("nothing is left", || names(titech).is_empty());
}
