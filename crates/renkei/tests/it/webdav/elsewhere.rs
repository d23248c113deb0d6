//! Files that the PoP does not have itself, with curl: those of its agents, of followed volumes, and of other sites.

use super::{Answer, ask, credential, curl, parse};
use crate::federation::{Federation, Site, account};
use crate::identity::borrowed::{World as Borrowers, issued};
use crate::relay::agent::{Agent, World, is_root};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a client does to one place with files, and leaves empty.
fn serves(place: &str, file: &Path, ask: &dyn Fn(&str, &[&str]) -> Answer) {
    let content = fs::read(file).unwrap();
    let upload = ["--upload-file", file.to_str().unwrap()];
    let at = |name: &str| format!("{place}/{name}");
    let shown =
        |answer: &Answer| format!("{place}: {} {}", answer.head, String::from_utf8_lossy(&answer.body));
    let made = ask(&at("run"), &["-X", "MKCOL"]);
    assert_eq!(made.status, 201, "{}", shown(&made));
    let put = ask(&at("run/a"), &upload);
    assert_eq!(put.status, 201, "{}", shown(&put));
    let got = ask(&at("run/a"), &[]);
    assert!(got.status == 200 && got.body == content, "{}", got.head);
    assert_eq!(got.header("etag"), put.header("etag"), "{place}");
    let part = ask(&at("run/a"), &["-r", "1048570-1048589"]);
    assert_eq!((part.status, &part.body[..]), (206, &content[1_048_570..1_048_590]));
    let again = ask(&at("run/a"), &[&upload[..], &["-H", "If-None-Match: *"]].concat());
    assert_eq!(again.status, 412, "{}", shown(&again));
    let sum = ask(&at("run/a"), &["--head", "-H", "Want-Digest: adler32"]);
    assert!(sum.header("digest").is_some_and(|digest| digest.starts_with("adler32=")), "{}", sum.head);
    let listed = ask(&at("run/"), &["-X", "PROPFIND", "-H", "Depth: 1"]);
    let text = String::from_utf8_lossy(&listed.body).into_owned();
    assert!(text.contains(&format!("<D:href>{place}/run/a</D:href>")), "{}", shown(&listed));
    let to = format!("Destination: {}", at("run/b"));
    let moved = ask(&at("run/a"), &["-X", "MOVE", "-H", &to]);
    assert_eq!(moved.status, 201, "{}", shown(&moved));
    let to = format!("Destination: {}", at("run/c"));
    let copied = ask(&at("run/b"), &["-X", "COPY", "-H", &to]);
    assert_eq!(copied.status, 201, "{}", shown(&copied));
    assert_eq!(ask(&at("run/a"), &[]).status, 404);
    let removed = ask(&at("run"), &["-X", "DELETE"]);
    assert_eq!(removed.status, 204, "{}", shown(&removed));
    assert_eq!(ask(&at("run/b"), &[]).status, 404);
}

fn content() -> Vec<u8> {
    (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn the_storage_of_an_agent_is_served_through_its_pop() {
    let world = World::start();
    let person = world.person(&world.titech);
    let mut agent = Agent::start(&person, &world.titech);
    let file = world.file("content", &content());
    let chain = person.dir.join("user/credential.pem");
    let by_person = |path: &str, arguments: &[&str]| {
        parse(curl(&world.titech, path, &[&["--cert", chain.to_str().unwrap()], arguments].concat()))
    };
    serves("/scratch", Path::new(&file), &by_person);
    // The agent takes the word of its PoP about what a token gives.
    let token = |may| person.ok(&["token", "titech:/scratch", "--may", may]).trim().to_owned();
    let with = |token: &str, arguments: &[&str]| {
        let header = format!("Authorization: Bearer {token}");
        parse(curl(&world.titech, "/scratch/t", &[&["-H", &header], arguments].concat()))
    };
    let (creates, reads) = (token("create"), token("read"));
    let upload = ["--upload-file", file.as_str()];
    assert_eq!(with(&reads, &upload).problem()["code"], "RK-AUTH-17");
    assert_eq!(with(&creates, &upload).status, 201);
    assert_eq!(with(&creates, &upload).problem()["code"], "RK-AUTH-17");
    assert_eq!(with(&creates, &[]).status, 403);
    assert_eq!(with(&reads, &[]).body, content());
    assert_eq!(with(&reads, &["-X", "DELETE"]).status, 403);
    assert!(agent.root.join("t").exists());
    if is_root() {
        // The PoP's administrator is another account.
        let refused = ask(&world.titech, "/scratch/t", &[]);
        assert_eq!((refused.status, refused.problem()["code"].as_str()), (403, Some("RK-AUTH-21")));
    }
    agent.kill9();
    let absent = by_person("/scratch/t", &[]);
    assert_eq!((absent.status, absent.problem()["code"].as_str()), (503, Some("RK-ROUTE-9")));
}

#[test]
fn the_agent_of_another_site_is_reached_too() {
    let world = World::start();
    let (person, other) = (world.person(&world.titech), world.person(&world.kek));
    let _agent = Agent::start(&other, &world.kek);
    let file = world.file("content", &content());
    let chain = person.dir.join("user/credential.pem");
    serves("/kek:/scratch", Path::new(&file), &|path, arguments| {
        parse(curl(&world.titech, path, &[&["--cert", chain.to_str().unwrap()], arguments].concat()))
    });
}

#[test]
fn other_sites_and_followed_volumes_are_served_too() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let file = federation.scratch().join("content");
    fs::write(&file, content()).unwrap();
    follow(titech, kek);
    for place in ["/genome", "/kek:/genome", "/kek:/data", "/data"] {
        serves(place, &file, &|path, arguments| ask(titech, path, arguments));
    }
    // Between places, through the PoP.
    fs::write(kek.root().join("far"), "far").unwrap();
    let copied = ask(titech, "/kek:/data/far", &["-X", "COPY", "-H", "Destination: /data/near"]);
    assert_eq!((copied.status, fs::read(titech.root().join("near")).unwrap()), (201, b"far".to_vec()));
    let code = |path: &str| ask(titech, path, &[]).problem()["code"].as_str().unwrap().to_owned();
    assert_eq!(code("/titech:/data/near"), "RK-AUTH-14");
    assert_eq!(code("/osaka:/data/x"), "RK-CONF-5");
    assert_eq!(code("/kek:/none/x"), "RK-STORE-16");
    // A user of kek is asked for by kek alone, and a token of titech is good there alone.
    let chain = credential(kek);
    let foreign = parse(curl(titech, "/kek:/data/far", &["--cert", chain.to_str().unwrap()]));
    assert_eq!(foreign.status, 403, "{}", foreign.head);
    let token = format!("Authorization: Bearer {}", titech.ok(&["token", "titech:/data"]).trim());
    assert_eq!(parse(curl(titech, "/kek:/data/far", &["-H", &token])).status, 403);
    assert_eq!(parse(curl(titech, "/kek:/data/far", &[])).status, 401);
    // Its own rules are those of kek.
    kek.ok(&["map", "add", "--yes", &format!("{}@titech", account()), "!"]);
    let begun = Instant::now();
    while ask(titech, "/kek:/data/far", &[]).status != 403 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is served to a user who is shut out");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_token_of_an_issuer_is_good_at_other_sites_that_accept_it() {
    let world = Borrowers::start();
    let Federation { titech, kek, .. } = &world.sites;
    let with = |token: &str, path: &str, arguments: &[&str]| {
        let header = format!("Authorization: Bearer {token}");
        parse(curl(titech, path, &[&["-H", &header], arguments].concat()))
    };
    let refused = |token: &str, path: &str, arguments: &[&str]| {
        let problem = with(token, path, arguments).problem();
        let part = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
        (part("code"), problem["error"]["side"].as_str().unwrap_or_default().to_owned())
    };
    let file = world.sites.scratch().join("content");
    fs::write(&file, content()).unwrap();
    fs::create_dir(kek.root().join("wlcg/in")).unwrap();
    let token = world.token("storage.read:/in storage.modify:/in");
    serves("/kek:/data/wlcg/in", &file, &|path, arguments| with(&token, path, arguments));
    // One certificate is used for all requests, and no right beyond the token's is there.
    let (reads, given) = (world.token("storage.read:/run7"), issued(kek));
    for _ in 0..3 {
        assert_eq!(with(&reads, "/kek:/data/wlcg/run7/a.dat", &[]).body, b"kek");
    }
    assert_eq!(issued(kek), given + 1);
    assert_eq!(refused(&reads, "/kek:/data/secret", &[]).0, "RK-AUTH-17");
    assert_eq!(refused(&reads, "/kek:/data/wlcg/run7/a.dat", &["-X", "DELETE"]).0, "RK-AUTH-17");
    // What is for titech alone is not shown to kek, nor is a macaroon.
    let own = world.issuer.token(titech, json!({"scope": "storage.read:/run7"}));
    assert_eq!(with(&own, "/data/wlcg/run7/a.dat", &[]).body, b"titech");
    let judged = || kek.logged().matches("certificate given").count();
    let before = judged();
    assert_eq!(refused(&own, "/kek:/data/wlcg/run7/a.dat", &[]), ("RK-AUTH-34".into(), "titech".into()));
    let macaroon = titech.ok(&["token", "titech:/data"]);
    assert_eq!(refused(macaroon.trim(), "/kek:/data/wlcg/run7/a.dat", &[]).0, "RK-AUTH-14");
    assert_eq!(refused(&token, "/osaka:/data/x", &[]).0, "RK-CONF-5");
    assert_eq!(judged(), before);
    assert!(!titech.logged().contains(&token) && !kek.logged().contains(&token), "a token is in a log");
    // A refusal of kek is told as such.
    kek.ok(&["issuer", "remove", "wlcg"]);
    let late = world.token("storage.read:/run7 storage.read:/in");
    assert_eq!(refused(&late, "/kek:/data/wlcg/run7/a.dat", &[]), ("RK-AUTH-35".into(), "kek".into()));
}

/// A volume of `home` that `site` follows and its users may write.
fn follow(site: &Site, home: &Site) {
    home.ok(&["volume", "create", "genome", "--storage", "data"]);
    home.ok(&["volume", "grant", "genome", &site.name, "write"]);
    let subscribe = ["volume", "subscribe", "genome", "--from", &home.name, "--storage", "data", "--account"];
    site.ok(&[&subscribe[..], &[&account()]].concat());
    site.ok(&["volume", "grant", "genome", &format!("*@{}", site.name), "write"]);
    let begun = Instant::now();
    while site.json(&["volume", "show", "genome"]).1["standing"]["followed"]["writes"] != true {
        assert!(begun.elapsed() < Duration::from_secs(45), "it may not write");
        std::thread::sleep(Duration::from_millis(50));
    }
}
