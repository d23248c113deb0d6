//! The S3 door, with boto3 as a client; `client.py` has the checks.

use crate::federation::{Federation, Site, account};
use crate::relay::agent::{Agent, World};
use crate::volume::following::subscribe;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// An S3 key.
struct Key {
    access: String,
    secret: String,
}

/// The folder of the Python packages that scripts/setup installs; none if they are not there.
fn packages() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let found = Some(cache.join("renkei-tools/python")).filter(|folder| folder.join("boto3").exists());
    if found.is_none() {
        eprintln!("skipped: no boto3 in {}", cache.join("renkei-tools/python").display());
    }
    found
}

/// Makes an S3 key of the site's user.
fn key(site: &Site, arguments: &[&str]) -> Key {
    made(site.json(&[&["s3", "key", "create"], arguments].concat()))
}

fn made((status, told): (i32, Value)) -> Key {
    assert_eq!(status, 0, "{told}");
    let field = |name: &str| told[name].as_str().unwrap().to_owned();
    Key { access: field("access_key"), secret: field("secret_key") }
}

/// Runs a check with boto3; gives its output.
fn boto3(packages: &Path, site: &Site, bucket: &str, key: &Key, check: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/s3/client.py");
    let run = Command::new("python3")
        .env("PYTHONPATH", packages)
        .env("PYTHONWARNINGS", "ignore")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .arg(script)
        .args([&format!("https://{}", site.address), bucket, &key.access, &key.secret])
        .args(check)
        .output()
        .unwrap();
    assert!(run.status.success(), "{check:?}: {}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

fn pop() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    (dir, site)
}

/// The names in a storage's root that are no objects of a test.
fn names(site: &Site) -> Vec<String> {
    let names =
        fs::read_dir(site.root()).unwrap().map(|name| name.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != ".rk~storage").collect();
    names.sort();
    names
}

#[test]
fn objects_of_a_storage_are_plain_files() {
    let Some(packages) = packages() else { return };
    let (_dir, site) = pop();
    let key = key(&site, &[]);
    for check in ["objects", "names", "checksums", "lists", "parts", "presigned", "hostile"] {
        boto3(&packages, &site, "data", &key, &[check]);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while names(&site) != Vec::<String>::new() {
        assert!(Instant::now() < deadline, "left: {:?}", names(&site));
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_changes_behind_the_door_gets_another_etag() {
    let Some(packages) = packages() else { return };
    let (_dir, site) = pop();
    let key = key(&site, &[]);
    let etag = boto3(&packages, &site, "data", &key, &["put", "run7/a", "hello"]);
    assert_eq!(fs::read_to_string(site.root().join("run7/a")).unwrap(), "hello");
    fs::write(site.root().join("run7/a"), "other").unwrap();
    boto3(&packages, &site, "data", &key, &["changed", "run7/a", etag.trim()]);
    assert_eq!(boto3(&packages, &site, "data", &key, &["get", "run7/a"]), "other");
    // Files that S3 never saw are objects, those that lead out are not.
    fs::write(site.root().join("plain"), "plain").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", site.root().join("out")).unwrap();
    assert_eq!(boto3(&packages, &site, "data", &key, &["get", "plain"]), "plain");
    assert_eq!(boto3(&packages, &site, "data", &key, &["listed"]).trim(), r#"["plain", "run7/a"]"#);
    boto3(&packages, &site, "data", &key, &["denied", "AccessDenied", "out"]);
}

#[test]
fn keys_are_restricted_listed_and_revoked() {
    let Some(packages) = packages() else { return };
    let (_dir, mut site) = pop();
    fs::create_dir(site.root().join("run7")).unwrap();
    fs::write(site.root().join("run7/a"), "a").unwrap();
    fs::write(site.root().join("secret"), "secret").unwrap();
    let reader = key(&site, &["kek:/data/run7", "--may", "read,list", "--for", "1h"]);
    assert_eq!(boto3(&packages, &site, "data", &reader, &["get", "run7/a"]), "a");
    boto3(&packages, &site, "data", &reader, &["denied", "AccessDenied", "secret"]);
    boto3(&packages, &site, "data", &reader, &["denied_put", "AccessDenied", "run7/b"]);
    let listed = site.ok(&["s3", "key", "list"]);
    assert!(listed.contains(&reader.access) && listed.contains("path:/data/run7"), "{listed}");
    assert!(!listed.contains(&reader.secret) && !site.logged().contains(&reader.secret));
    let (_, told) = site.json(&["s3", "key", "list"]);
    assert!(told["keys"][0]["created"].is_string(), "{told}");
    // A key outlives a restart, and not its revocation.
    site.restart();
    assert_eq!(boto3(&packages, &site, "data", &reader, &["get", "run7/a"]), "a");
    site.ok(&["s3", "key", "revoke", &reader.access]);
    boto3(&packages, &site, "data", &reader, &["denied", "InvalidAccessKeyId", "run7/a"]);
    assert_eq!(site.json(&["s3", "key", "revoke", &reader.access]).0, 6);
    // A user who is shut out has no keys any more.
    let all = key(&site, &[]);
    assert_eq!(boto3(&packages, &site, "data", &all, &["get", "secret"]), "secret");
    site.ok(&["map", "deny", &format!("{}@kek", account())]);
    boto3(&packages, &site, "data", &all, &["denied", "AccessDenied", "secret"]);
}

#[test]
fn folders_and_hosts_are_buckets_where_the_administrator_names_them() {
    let Some(packages) = packages() else { return };
    let (_dir, mut site) = pop();
    site.environment = vec![("RENKEI_S3_BUCKETS", "run7=/data/run7"), ("RENKEI_S3_DOMAINS", "s3.kek.jp")];
    site.restart();
    fs::create_dir(site.root().join("run7")).unwrap();
    let key = key(&site, &[]);
    boto3(&packages, &site, "run7", &key, &["put", "in/a", "hello"]);
    assert_eq!(fs::read_to_string(site.root().join("run7/in/a")).unwrap(), "hello");
    assert_eq!(boto3(&packages, &site, "run7", &key, &["listed"]).trim(), r#"["in/a"]"#);
    assert_eq!(boto3(&packages, &site, "data", &key, &["listed"]).trim(), r#"["run7/in/a"]"#);
    boto3(&packages, &site, "run7", &key, &["virtual", "s3.kek.jp"]);
    boto3(&packages, &site, "none", &key, &["denied", "NoSuchBucket", "a"]);
}

#[test]
fn volumes_are_buckets_at_their_home_and_where_they_are_followed() {
    let Some(packages) = packages() else { return };
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    fs::create_dir(kek.root().join("genome")).unwrap();
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    let at_home = key(kek, &[]);
    for check in ["objects", "names", "checksums", "parts"] {
        boto3(&packages, kek, "genome", &at_home, &[check]);
    }
    subscribe(titech);
    let followed = key(titech, &[]);
    let etag = boto3(&packages, kek, "genome", &at_home, &["put", "2026/x", "from home"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !boto3(&packages, titech, "genome", &followed, &["listed"]).contains("2026/x") {
        assert!(Instant::now() < deadline, "the follower does not see the key");
    }
    assert_eq!(boto3(&packages, titech, "genome", &followed, &["get", "2026/x"]), "from home");
    assert!(!etag.is_empty());
    // From now on users of the follower write.
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    while titech.renkei(&["mkdir", "titech:/genome/writes"]).status.code() != Some(4) {
        assert!(Instant::now() < deadline, "the follower does not write");
    }
    for check in ["objects", "names", "checksums", "parts"] {
        boto3(&packages, titech, "genome", &followed, &["clear"]);
        boto3(&packages, titech, "genome", &followed, &[check]);
    }
}

#[test]
fn the_storage_of_an_agent_is_a_bucket() {
    let Some(packages) = packages() else { return };
    let world = World::start();
    let (person, site) = (world.person(&world.titech), &world.titech);
    let mut agent = Agent::start(&person, site);
    let key = made(person.json(&["s3", "key", "create"]));
    for check in ["objects", "names", "checksums", "parts", "presigned", "hostile"] {
        boto3(&packages, site, "scratch", &key, &["clear"]);
        boto3(&packages, site, "scratch", &key, &[check]);
    }
    // Plain files there; what S3 keeps of them is with them, for any PoP.
    let etag = boto3(&packages, site, "scratch", &key, &["put", "run7/a", "hello"]);
    assert_eq!(fs::read_to_string(agent.root.join("run7/a")).unwrap(), "hello");
    assert_eq!(boto3(&packages, site, "scratch", &key, &["get", "run7/a"]), "hello");
    fs::write(agent.root.join("run7/a"), "other").unwrap();
    boto3(&packages, site, "scratch", &key, &["changed", "run7/a", etag.trim()]);
    let reader = made(person.json(&["s3", "key", "create", "titech:/scratch/run7", "--may", "read,list"]));
    assert_eq!(boto3(&packages, site, "scratch", &reader, &["get", "run7/a"]), "other");
    boto3(&packages, site, "scratch", &reader, &["denied_put", "AccessDenied", "run7/b"]);
    agent.kill9();
    boto3(&packages, site, "scratch", &key, &["denied", "ServiceUnavailable", "run7/a"]);
}
