//! Links, as people without an account use them: with curl and with a browser.

use super::{Answer, curl, parse, pop};
use crate::console::browser::Browser;
use crate::federation::Site;
use renkei_config::home::Home;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Makes a link; gives its path and its id.
fn link(site: &Site, place: &str, arguments: &[&str]) -> (String, String) {
    let (code, made) = site.json(&[&["link", place], arguments].concat());
    assert_eq!(code, 0, "{made}");
    let url = made["url"].as_str().unwrap();
    let path = url.strip_prefix(&format!("https://{}", site.address)).unwrap();
    (path.to_owned(), made["id"].as_str().unwrap().to_owned())
}

fn stranger(site: &Site, path: &str, arguments: &[&str]) -> Answer {
    parse(curl(site, path, arguments))
}

/// The only link that the user has.
fn listed(site: &Site) -> Value {
    let (code, all) = site.json(&["link", "list", "kek"]);
    assert_eq!((code, all["links"].as_array().map(Vec::len)), (0, Some(1)), "{all}");
    all["links"][0].clone()
}

fn wait_for_bytes(site: &Site, bytes: u64) {
    let begun = Instant::now();
    while listed(site)["bytes"] != bytes {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", listed(site));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_link_is_used_counted_and_taken_back() {
    let (_dir, site) = pop();
    std::fs::create_dir(site.root().join("run7")).unwrap();
    std::fs::write(site.root().join("run7/a b.dat"), "content").unwrap();
    let (path, id) = link(&site, "kek:/data/run7/a b.dat", &["--for", "2h"]);
    assert!(path.starts_with("/~link/") && path.ends_with("/a%20b.dat"), "{path}");
    assert_eq!(listed(&site)["used_unix"], json!(null));
    let got = stranger(&site, &path, &[]);
    assert_eq!((got.status, &got.body[..]), (200, &b"content"[..]));
    assert_eq!(got.header("content-disposition"), Some("attachment; filename*=UTF-8''a%20b.dat"));
    assert_eq!(got.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(stranger(&site, &path, &["-r", "1-2"]).body, b"on");
    let page = stranger(&site, &path, &["-H", "Accept: text/html"]);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    wait_for_bytes(&site, 9);
    let told = listed(&site);
    assert_eq!((&told["opens"], &told["downloads"], &told["id"]), (&json!(1), &json!(2), &json!(id)));
    assert!(
        told["used_unix"].as_u64().is_some() && told["until_unix"].as_u64() > told["created_unix"].as_u64()
    );
    // Neither a change nor another place is open to it.
    for method in ["PUT", "DELETE", "MKCOL", "MOVE", "PROPFIND", "POST"] {
        let refused = stranger(&site, &path, &["-X", method]);
        assert_eq!(
            (refused.status, refused.header("allow")),
            (405, Some("OPTIONS, GET, HEAD, POST")),
            "{method}"
        );
    }
    let secret = path.rsplit_once('/').unwrap().0;
    for other in ["/~link/", "/~link/00/a", &format!("{secret}x/a"), &secret.replace("/~link/", "/")] {
        assert!(matches!(stranger(&site, other, &[]).status, 401 | 404), "{other}");
    }
    site.ok(&["link", "revoke", &id, "kek"]);
    let gone = stranger(&site, &path, &[]);
    assert_eq!(gone.status, 404);
    let text = String::from_utf8(gone.body).unwrap();
    assert!(text.contains("was taken back") && !text.contains("run7"), "{text}");
    assert_ne!(site.json(&["link", "revoke", &id, "kek"]).0, 0);
}

#[test]
fn a_folder_is_read_below_the_link_and_nowhere_else() {
    let (_dir, site) = pop();
    std::fs::create_dir_all(site.root().join("run7/raw")).unwrap();
    std::fs::write(site.root().join("run7/raw/a"), "deep").unwrap();
    std::fs::write(site.root().join("secret"), "no").unwrap();
    std::os::unix::fs::symlink("../secret", site.root().join("run7/out")).unwrap();
    let (path, _) = link(&site, "kek:/data/run7", &[]);
    assert_eq!(stranger(&site, &format!("{path}/raw/a"), &[]).body, b"deep");
    for below in ["/../secret", "/%2e%2e/secret", "/out", "/none"] {
        let refused = stranger(&site, &format!("{path}{below}"), &["--path-as-is"]);
        assert!(matches!(refused.status, 403 | 404), "{below} {}", refused.head);
        assert!(!refused.body.ends_with(b"no"));
    }
    let archive = stranger(&site, &format!("{path}/?archive"), &[]);
    assert_eq!((archive.status, archive.header("content-type")), (200, Some("application/x-tar")));
    assert!(archive.body.windows(4).any(|bytes| bytes == b"deep"));
    let mut browser = Browser::start();
    browser.open(&format!("https://{}{path}", site.address));
    browser.wait_for(
        "location.pathname.endsWith('/run7/') && document.querySelector('a.folder')?.innerText == 'raw'",
    );
    browser.value("document.querySelector('a.folder').click()");
    browser.wait_for(
        "location.pathname.endsWith('/run7/raw/') && document.querySelector('a.file')?.innerText == 'a'",
    );
    assert_eq!(
        browser.value("[...document.querySelectorAll('.crumbs li')].map((one) => one.innerText)"),
        json!(["run7", "raw"])
    );
    assert_eq!(browser.value("document.querySelector('[data-act]')"), json!(null), "a link offers changes");
    browser.value("document.querySelector('a.file').click()");
    browser.wait_for("document.querySelector('pre')?.innerText == 'deep'");
}

#[test]
fn a_link_ends_with_its_downloads_with_the_file_and_with_its_owner() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("a"), "content").unwrap();
    let (limited, _) = link(&site, "kek:/data/a", &["--limit", "2"]);
    let page = stranger(&site, &limited, &["-H", "Accept: text/html"]);
    let text = String::from_utf8(page.body).unwrap();
    assert!(text.contains("2 downloads are left") && !text.contains("<pre"), "{text}");
    for _ in 0..2 {
        assert_eq!(stranger(&site, &limited, &[]).status, 200);
    }
    assert_eq!(stranger(&site, &limited, &[]).status, 410);
    assert_eq!(stranger(&site, &limited, &["-H", "Accept: text/html"]).status, 410);

    let (path, _) = link(&site, "kek:/data/a", &[]);
    let content = std::fs::read(site.root().join("a")).unwrap();
    std::fs::remove_file(site.root().join("a")).unwrap();
    assert_eq!(stranger(&site, &path, &[]).status, 404);
    std::fs::write(site.root().join("a"), content).unwrap();
    assert_eq!(stranger(&site, &path, &[]).status, 200);
    let user = site.json(&["whoami"]).1["user"]["principal"].as_str().unwrap().to_owned();
    site.ok(&["map", "deny", &user]);
    let begun = Instant::now();
    while stranger(&site, &path, &[]).status != 403 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the link outlives its owner's access");
        std::thread::sleep(Duration::from_millis(50));
    }
    let refused = stranger(&site, &path, &["-H", "Accept: text/html"]);
    let text = String::from_utf8(refused.body).unwrap();
    assert!(text.contains("who made it may not read this") && !text.contains(&user), "{text}");
    assert!(!std::fs::read_to_string(Home::at(site.dir()).map_file()).unwrap().is_empty());
}

#[test]
fn what_cannot_be_linked_is_refused() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("a"), "content").unwrap();
    assert_ne!(site.json(&["link", "kek:/data/none"]).0, 0);
    assert_ne!(site.json(&["link", "kek:/data/a", "--for", "400d"]).0, 0);
    assert_ne!(site.json(&["link", "kek:/data/a", "--limit", "0"]).0, 0);
    assert_eq!(site.json(&["link", "list", "kek"]).1["links"], json!([]));
}

#[test]
fn the_space_report_is_for_users_and_for_all_where_it_is_public() {
    let (_dir, mut site) = pop();
    assert_eq!(stranger(&site, "/srr.json", &[]).status, 401);
    let report = super::ask(&site, "/srr.json", &[]);
    let told: Value = serde_json::from_slice(&report.body).unwrap();
    let service = &told["storageservice"];
    assert_eq!((&service["name"], &service["implementation"]), (&json!("kek"), &json!("renkei")));
    let share = &service["storageshares"][0];
    assert_eq!((&share["name"], &share["path"]), (&json!("data"), &json!(["/data"])));
    assert!(
        share["totalsize"].as_u64() >= share["usedsize"].as_u64() && share["usedsize"].is_u64(),
        "{share}"
    );
    assert_eq!(service["storagecapacity"]["online"]["totalsize"], share["totalsize"]);
    let config = Home::at(site.dir()).config_file();
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n[web]\npublic_space_report = true\n")).unwrap();
    site.restart();
    assert_eq!(stranger(&site, "/srr.json", &[]).status, 200);
    assert_eq!(stranger(&site, "/srr.json", &["-X", "PUT"]).header("allow"), Some("GET, HEAD"));
}
