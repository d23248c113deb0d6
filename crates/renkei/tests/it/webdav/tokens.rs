//! Tokens in place of certificates, with curl.

use super::{Answer, ask, curl, parse, pop};
use crate::federation::{Site, account};
use crate::identity::tokens::Issuer;
use serde_json::json;

/// Sends a request with a token.
fn with_token(site: &Site, token: &str, path: &str, arguments: &[&str]) -> Answer {
    let header = format!("Authorization: Bearer {token}");
    parse(curl(site, path, &[&["-H", &header], arguments].concat()))
}

fn issued(site: &Site, place: &str, may: &str) -> String {
    site.ok(&["token", place, "--may", may]).trim().to_owned()
}

#[test]
fn a_macaroon_opens_its_place_and_no_other() {
    let (dir, site) = pop();
    std::fs::create_dir_all(site.root().join("run7")).unwrap();
    std::fs::write(site.root().join("run7/a"), "hello").unwrap();
    std::fs::write(site.root().join("secret"), "no").unwrap();
    let token = issued(&site, "kek:/data/run7", "read,list");
    assert_eq!(with_token(&site, &token, "/data/run7/a", &[]).body, b"hello");
    let listed = with_token(&site, &token, "/data/run7/", &["-X", "PROPFIND", "-H", "Depth: 1"]);
    assert_eq!(listed.status, 207, "{}", listed.head);
    for path in ["/data/secret", "/data/run70", "/data/run7/../secret"] {
        let refused = with_token(&site, &token, path, &["--path-as-is"]);
        assert!(matches!(refused.status, 400 | 403), "{path} {}", refused.head);
    }
    let file = dir.path().join("new");
    std::fs::write(&file, "new").unwrap();
    let upload = ["--upload-file", file.to_str().unwrap()];
    let refused = with_token(&site, &token, "/data/run7/b", &upload);
    assert_eq!((refused.status, refused.problem()["code"].as_str()), (403, Some("RK-AUTH-17")));
    assert_eq!(with_token(&site, &token, "/data/run7/a", &["-X", "DELETE"]).status, 403);

    let one = issued(&site, "kek:/data/run7/a", "read");
    assert_eq!(with_token(&site, &one, "/data/run7/a", &[]).body, b"hello");
    assert_eq!(with_token(&site, &one, "/data/run7/", &["-X", "PROPFIND"]).status, 403);
    let creates = issued(&site, "kek:/data/run7", "create");
    let made =
        with_token(&site, &creates, "/data/run7/b", &[&upload[..], &["-H", "If-None-Match: *"]].concat());
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    assert_eq!(std::fs::read(site.root().join("run7/b")).unwrap(), b"new");
    // Nothing is replaced by a token that creates.
    assert_eq!(with_token(&site, &creates, "/data/run7/a", &upload).status, 403);
    assert_eq!(std::fs::read(site.root().join("run7/a")).unwrap(), b"hello");
    assert_eq!(with_token(&site, &creates, "/data/run7/c", &upload).status, 201);
}

#[test]
fn tokens_come_as_passwords_and_in_urls_too() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let token = issued(&site, "kek:/data", "read");
    let password = format!("anybody:{token}");
    assert_eq!(parse(curl(&site, "/data/a", &["--user", &password])).body, b"hello");
    assert_eq!(parse(curl(&site, &format!("/data/a?authz={token}"), &[])).body, b"hello");
    // HTTP/2, where no certificate is asked for: a client that offers the groups of a browser gets it, no other.
    let header = format!("Authorization: Bearer {token}");
    for (groups, version) in [("X25519:P-256:P-384", "HTTP/2 200"), ("X25519:X448", "HTTP/1.1 200")] {
        let output = curl(&site, "/data/a", &["--http2", "--curves", groups, "-H", &header]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with(version) && text.ends_with("hello"), "{output:?}");
    }
    for bad in ["AgEDa2Vr", "x.y.z", &format!("{token}A")] {
        let refused = with_token(&site, bad, "/data/a", &[]);
        assert_eq!((refused.status, refused.problem()["code"].as_str()), (401, Some("RK-AUTH-30")), "{bad}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"kek\""));
    }
    std::fs::remove_file(renkei_config::home::Home::at(site.dir()).token_key()).unwrap();
    assert_eq!(with_token(&site, &token, "/data/a", &[]).status, 401);
}

#[test]
fn macaroons_are_issued_over_http() {
    let (_dir, site) = pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let kind = ["-X", "POST", "-H", "Content-Type: application/macaroon-request", "--data"];
    let body = r#"{"caveats": ["activity:DOWNLOAD"], "validity": "PT10M"}"#;
    let answer = ask(&site, "/data/a", &[&kind[..], &[body]].concat());
    assert_eq!(answer.status, 200, "{}", answer.head);
    let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let token = told["macaroon"].as_str().unwrap();
    let target = format!("https://{}/data/a", site.address);
    assert_eq!(told["uri"]["target"], json!(target));
    assert_eq!(told["uri"]["targetWithMacaroon"], json!(format!("{target}?authz={token}")));
    assert_eq!(with_token(&site, token, "/data/a", &[]).body, b"hello");
    // Its holder gets a narrower one, and none for another place.
    let narrower = r#"{"caveats": ["ip:192.0.2.0/24"]}"#;
    let answer = with_token(&site, token, "/data/a", &[&kind[..], &[narrower]].concat());
    let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let refused = with_token(&site, told["macaroon"].as_str().unwrap(), "/data/a", &[]);
    assert_eq!((refused.status, refused.problem()["code"].as_str()), (401, Some("RK-AUTH-32")));
    assert_eq!(with_token(&site, token, "/data/b", &[&kind[..], &[body]].concat()).status, 403);
    for bad in ["{", r#"{"caveats": ["issuer:kek"]}"#, r#"{"validity": "60"}"#, r#"{"validity": "PT9000H"}"#]
    {
        let refused = ask(&site, "/data/a", &[&kind[..], &[bad]].concat());
        assert!(matches!(refused.status, 400 | 401), "{bad} {}", refused.head);
    }
    assert_eq!(parse(curl(&site, "/data/a", &[&kind[..], &[body]].concat())).status, 401);
}

#[test]
fn tokens_of_an_issuer_open_what_their_scopes_say() {
    let (dir, mut site) = pop();
    std::fs::create_dir_all(site.root().join("wlcg/run7")).unwrap();
    std::fs::write(site.root().join("wlcg/run7/a"), "hello").unwrap();
    let issuer = Issuer::start(dir.path());
    issuer.trusted_by(&mut site);
    site.restart();
    let token = issuer.token(&site, json!({"scope": "storage.read:/run7 storage.create:/in"}));
    let get = |token: &str| with_token(&site, token, "/data/wlcg/run7/a", &[]);
    let refused = get(&token);
    assert_eq!((refused.status, refused.problem()["code"].as_str()), (401, Some("RK-AUTH-35")));
    site.ok(&["issuer", "add", "wlcg", &issuer.url, "--prefix", "/data/wlcg", "--account", &account()]);
    assert_eq!(get(&token).body, b"hello");
    // The scope makes its own directory, as the profile has it.
    let made = with_token(&site, &token, "/data/wlcg/in/", &["-X", "MKCOL"]);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    assert_eq!(with_token(&site, &token, "/data/wlcg/out/", &["-X", "MKCOL"]).status, 403);
    let expired = get(&issuer.token(&site, json!({"exp": 1, "scope": "storage.read:/run7"})));
    assert_eq!((expired.status, expired.problem()["code"].as_str()), (401, Some("RK-AUTH-31")));
    drop(issuer);
    site.restart();
    // The keys are remembered across a restart, while the issuer is down.
    assert_eq!(with_token(&site, &token, "/data/wlcg/run7/a", &[]).body, b"hello");
}

#[test]
fn a_root_is_what_the_holder_of_a_macaroon_sees() {
    let (dir, site) = pop();
    std::fs::create_dir_all(site.root().join("run 7")).unwrap();
    std::fs::write(site.root().join("run 7/a"), "hello").unwrap();
    std::fs::write(site.root().join("a"), "no").unwrap();
    let body = json!({"caveats": ["root:/data/run 7", "home:/data/run 7"], "validity": "PT5M"}).to_string();
    let ask_for = |path: &str, body: &str| {
        let kind = "Content-Type: application/macaroon-request";
        ask(&site, path, &["-X", "POST", "-H", kind, "--data-binary", body])
    };
    let told: serde_json::Value = serde_json::from_slice(&ask_for("/data/run%207", &body).body).unwrap();
    let token = told["macaroon"].as_str().unwrap();
    assert_eq!(told["uri"]["target"], format!("https://{}/", site.address));
    let with = |path: &str, arguments: &[&str]| with_token(&site, token, path, arguments);
    assert_eq!(with("/a", &[]).body, b"hello");
    let listed = with("/", &["-X", "PROPFIND", "-H", "Depth: 1"]);
    let text = String::from_utf8(listed.body).unwrap();
    assert!(text.contains("<D:href>/</D:href>") && text.contains("<D:href>/a</D:href>"), "{text}");
    let file = dir.path().join("new");
    std::fs::write(&file, "new").unwrap();
    assert_eq!(with("/b", &["--upload-file", file.to_str().unwrap()]).status, 201);
    let to = format!("Destination: https://{}/c", site.address);
    assert_eq!(with("/b", &["-X", "MOVE", "-H", &to]).status, 201);
    assert_eq!(std::fs::read(site.root().join("run 7/c")).unwrap(), b"new");
    for outside in ["/data/a", "/../a", "/data/run%207/a", "/%2e%2e/a"] {
        let refused = with(outside, &["--path-as-is"]);
        assert!(matches!(refused.status, 400 | 403 | 404), "{outside}: {}", refused.head);
    }
    for bad in ["root:/other", "door:/data", "home:x"] {
        let refused = ask_for("/data/run%207", &json!({"caveats": [bad]}).to_string());
        assert!(matches!(refused.status, 400..=403), "{bad}: {}", refused.head);
    }
}
