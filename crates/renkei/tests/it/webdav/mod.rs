//! Files over HTTP, with curl as a client.

mod changes;
mod clients;
mod elsewhere;
mod grid;
mod kerberos;
mod links;
mod tokens;
mod tpc;
mod tpc_partners;

use crate::federation::Site;
use renkei_config::home::Home;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A response as curl shows it.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn curl(site: &Site, path: &str, arguments: &[&str]) -> Output {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--insecure", "--max-time", "60", "--http1.1", "--include"]);
    curl.args(arguments).arg(format!("https://{}{path}", site.address)).output().unwrap()
}

/// The certificate chain and the key of the site's user, in one file.
fn credential(site: &Site) -> PathBuf {
    Home::at(site.dir()).user_credential()
}

/// Sends a request with the certificate of the site's user.
fn ask(site: &Site, path: &str, arguments: &[&str]) -> Answer {
    parse(curl(site, path, &[&["--cert", credential(site).to_str().unwrap()], arguments].concat()))
}

fn parse(output: Output) -> Answer {
    assert!(output.status.success(), "{output:?}");
    let mut rest = &output.stdout[..];
    loop {
        let end = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(rest[..end].to_vec()).unwrap();
        let status = head[9..12].parse().unwrap();
        rest = &rest[end + 4..];
        if status != 100 {
            return Answer { status, head, body: rest.to_vec() };
        }
    }
}

fn pop() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    (dir, site)
}

fn upload(site: &Site, path: &str, file: &Path, arguments: &[&str]) -> Answer {
    ask(site, path, &[&["--upload-file", file.to_str().unwrap()], arguments].concat())
}

#[test]
fn a_file_is_put_read_renamed_and_removed() {
    let (dir, site) = pop();
    let content: Vec<u8> = (0..3_500_000_u32).flat_map(u32::to_le_bytes).collect();
    let file = dir.path().join("content");
    std::fs::write(&file, &content).unwrap();

    assert_eq!(ask(&site, "/data/run%207/", &["-X", "MKCOL"]).status, 201);
    assert_eq!(ask(&site, "/data/run%207/", &["-X", "MKCOL"]).status, 405);
    assert_eq!(ask(&site, "/data/none/run/", &["-X", "MKCOL"]).status, 409);
    let put = upload(&site, "/data/run%207/a", &file, &[]);
    assert_eq!(put.status, 201, "{}", put.head);
    assert_eq!(std::fs::read(site.root().join("run 7/a")).unwrap(), content);
    assert_eq!(upload(&site, "/data/run%207/a", &file, &["-H", "Transfer-Encoding: chunked"]).status, 204);

    let got = ask(&site, "/data/run%207/a", &[]);
    assert_eq!((got.status, got.body.len()), (200, content.len()));
    assert_eq!(got.body, content);
    let head = ask(&site, "/data/run%207/a", &["--head"]);
    assert_eq!(head.header("content-length"), Some(content.len().to_string().as_str()));
    assert!(head.header("last-modified").is_some() && head.body.is_empty());
    let part = ask(&site, "/data/run%207/a", &["-r", "1048570-1048589"]);
    assert_eq!((part.status, &part.body[..]), (206, &content[1_048_570..1_048_590]));
    assert_eq!(part.header("content-range"), Some(&*format!("bytes 1048570-1048589/{}", content.len())));
    assert_eq!(ask(&site, "/data/run%207/a", &["-r", "99999999-"]).status, 416);

    let to = format!("Destination: https://{}/data/b", site.address);
    assert_eq!(ask(&site, "/data/run%207/a", &["-X", "MOVE", "-H", &to]).status, 201);
    assert_eq!(ask(&site, "/data/run%207/a", &[]).status, 404);
    assert_eq!(ask(&site, "/data/b", &["-X", "DELETE"]).status, 204);
    assert_eq!(ask(&site, "/data/run%207", &["-X", "DELETE"]).status, 204);
    assert!(!site.root().join("run 7").exists());
    assert_eq!(ask(&site, "/data/run%207", &["-X", "DELETE"]).status, 404);
}

#[test]
fn conditions_keep_what_another_client_wrote() {
    let (dir, site) = pop();
    let file = dir.path().join("content");
    std::fs::write(&file, "one").unwrap();
    let created = upload(&site, "/data/a", &file, &["-H", "If-None-Match: *"]);
    assert_eq!(created.status, 201);
    assert_eq!(upload(&site, "/data/a", &file, &["-H", "If-None-Match: *"]).status, 412);
    let tag = ask(&site, "/data/a", &["--head"]).header("etag").unwrap().to_owned();
    assert_eq!(created.header("etag"), Some(&*tag));
    assert_eq!(ask(&site, "/data/a", &["-H", &format!("If-None-Match: {tag}")]).status, 304);
    std::fs::write(&file, "second").unwrap();
    let expect = format!("If-Match: {tag}");
    assert_eq!(upload(&site, "/data/a", &file, &["-H", &expect]).status, 204);
    let stale = upload(&site, "/data/a", &file, &["-H", &expect]);
    assert_eq!((stale.status, stale.problem()["code"].as_str()), (412, Some("RK-STORE-32")));
    std::fs::write(site.root().join("b"), "b").unwrap();
    let to = format!("Destination: https://{}/data/b", site.address);
    assert_eq!(ask(&site, "/data/a", &["-X", "MOVE", "-H", &to, "-H", "Overwrite: F"]).status, 412);
    assert_eq!(std::fs::read_to_string(site.root().join("b")).unwrap(), "b");
}

#[test]
fn strangers_learn_nothing_and_errors_have_code_and_remedy() {
    let (dir, site) = pop();
    std::fs::write(site.root().join("secret"), "secret").unwrap();
    for path in ["/data/secret", "/data/none", "/none/x"] {
        let refused = parse(curl(&site, path, &[]));
        assert_eq!((refused.status, refused.problem()["code"].as_str()), (401, Some("RK-AUTH-14")), "{path}");
        assert_eq!(refused.problem()["detail"], parse(curl(&site, "/data/other", &[])).problem()["detail"]);
    }
    let missing = ask(&site, "/data/none", &[]);
    assert_eq!(missing.status, 404);
    assert_eq!(missing.problem()["code"], "RK-STORE-1");
    assert!(missing.problem()["remedy"].as_str().unwrap().contains("renkei ls"));
    assert_eq!(ask(&site, "/data/%2e%2e/etc/passwd", &["--path-as-is"]).status, 400);
    assert_eq!(ask(&site, "/data/x", &["-X", "PATCH"]).status, 405);
    std::os::unix::fs::symlink("/etc/passwd", site.root().join("out")).unwrap();
    assert_eq!(ask(&site, "/data/out", &[]).status, 403);
    assert_eq!(upload(&site, "/data/none/a", &credential(&site), &[]).status, 409);
    // The user of a site that is not trusted.
    let other = Site::start(dir.path(), "osaka");
    let refused = parse(curl(&site, "/data/secret", &["--cert", credential(&other).to_str().unwrap()]));
    assert_eq!((refused.status, refused.problem()["code"].as_str()), (403, Some("RK-AUTH-3")));
}

#[test]
fn an_upload_that_ends_early_leaves_nothing() {
    let (_dir, site) = pop();
    let announced = ["-X", "PUT", "-H", "Content-Length: 1000", "--data-binary", "short", "--max-time", "2"];
    let (chain, key) = (site.dir().join("user.pem"), site.dir().join("user.key"));
    let own = ["--cert", chain.to_str().unwrap(), "--key", key.to_str().unwrap()];
    assert!(!curl(&site, "/data/a", &[&own[..], &announced].concat()).status.success());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while std::fs::read_dir(site.root()).unwrap().count() > 1 {
        assert!(std::time::Instant::now() < deadline, "a draft is left");
        std::thread::yield_now();
    }
    assert!(!site.root().join("a").exists());
}
