//! All verbs with identities of another kind: tokens of an issuer, a certificate that is shown, logins at a provider.

use super::tokens::Issuer;
use crate::federation::{Federation, Site, account};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Two sites that accept tokens of an issuer, and a user with a directory of the own, who has cards and no login.
pub(crate) struct World {
    pub(crate) sites: Federation,
    pub(crate) issuer: Issuer,
    user: PathBuf,
    dir: tempfile::TempDir,
}

impl World {
    pub(crate) fn start() -> World {
        let dir = tempfile::tempdir().unwrap();
        let mut sites = Federation::two();
        let issuer = Issuer::start(dir.path());
        let user = dir.path().join("user");
        fs::create_dir(&user).unwrap();
        for site in [&mut sites.titech, &mut sites.kek] {
            issuer.trusted_by(site);
            site.restart();
            let (url, account) = (issuer.url.as_str(), account());
            site.ok(&["issuer", "add", "wlcg", url, "--prefix", "/data/wlcg", "--account", &account]);
            fs::create_dir_all(site.root().join("wlcg/run7")).unwrap();
            fs::write(site.root().join("wlcg/run7/a.dat"), site.name.as_bytes()).unwrap();
            fs::write(site.root().join("secret"), "x").unwrap();
        }
        World { sites, issuer, user, dir }
    }

    /// Gives the user the card of a site.
    fn take_card(&self, site: &Site) {
        let card = self.dir.path().join(format!("{}.site", site.name));
        fs::write(&card, site.ok(&["trust", "export"])).unwrap();
        self.ok(&[], &["trust", "add", "--yes", card.to_str().unwrap()]);
    }

    fn with_cards() -> World {
        let world = World::start();
        world.take_card(&world.sites.titech);
        world.take_card(&world.sites.kek);
        world
    }

    /// A token for both sites.
    pub(crate) fn token(&self, scope: &str) -> String {
        let (titech, kek) = (&self.sites.titech, &self.sites.kek);
        let audience = json!([format!("https://{}", titech.address), format!("https://{}", kek.address)]);
        self.issuer.token(kek, json!({"scope": scope, "aud": audience}))
    }

    fn command(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Command {
        let mut command = self.sites.kek.command_in(&self.user);
        command.env("XDG_RUNTIME_DIR", self.dir.path()).env("SSL_CERT_FILE", &self.issuer.authority);
        command.envs(variables.iter().copied()).args(arguments);
        command
    }

    fn ok(&self, variables: &[(&str, &str)], arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(variables, arguments).output().unwrap();
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    fn code(&self, variables: &[(&str, &str)], arguments: &[&str]) -> String {
        let output = self.command(variables, arguments).arg("--json").output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let told = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let told: Value = serde_json::from_slice(told).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let code = told["error"]["code"].as_str().or_else(|| told["failures"][0]["code"].as_str());
        code.unwrap_or_else(|| panic!("{told}")).into()
    }

    /// The kept certificates.
    fn kept(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.user.join("state/user/borrowed")).into_iter().flatten();
        files.map(|file| file.unwrap().path()).collect()
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Certificates that a site has issued so far.
pub(crate) fn issued(site: &Site) -> usize {
    fs::read_to_string(site.dir().join("state/issued")).unwrap().lines().count()
}

#[test]
fn verbs_work_with_a_token_at_both_sites() {
    let world = World::with_cards();
    let token = world.token("storage.read:/run7 storage.modify:/in");
    let with: &[(&str, &str)] = &[("BEARER_TOKEN", &token)];
    for site in [&world.sites.titech, &world.sites.kek] {
        fs::create_dir(site.root().join("wlcg/in")).unwrap();
    }
    assert_eq!(world.ok(with, &["ls", "titech:/data/wlcg/run7"]), "a.dat\n");
    let before = issued(&world.sites.titech);
    assert_eq!(world.ok(with, &["cat", "titech:/data/wlcg/run7/a.dat"]), "titech");
    assert_eq!(issued(&world.sites.titech), before, "the certificate is kept");
    // Third-party copies, in both directions, and to and from this machine.
    world.ok(with, &["cp", "titech:/data/wlcg/run7/a.dat", "kek:/data/wlcg/in/from-titech"]);
    world.ok(with, &["cp", "-r", "kek:/data/wlcg/run7", "titech:/data/wlcg/in/"]);
    assert_eq!(fs::read(world.sites.kek.root().join("wlcg/in/from-titech")).unwrap(), b"titech");
    assert_eq!(fs::read(world.sites.titech.root().join("wlcg/in/run7/a.dat")).unwrap(), b"kek");
    let file = world.dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    world.ok(with, &["cp", file.to_str().unwrap(), "kek:/data/wlcg/in/mine"]);
    world.ok(with, &["rm", "kek:/data/wlcg/in/mine"]);
    // No more than the scope.
    for beyond in [
        ["ls", "kek:/data"],
        ["cat", "kek:/data/secret"],
        ["rm", "kek:/data/wlcg/run7/a.dat"],
        ["mkdir", "titech:/data/wlcg/run7/new"],
    ] {
        assert_eq!(world.code(with, &beyond), "RK-AUTH-17", "{beyond:?}");
    }
    let kept = world.kept();
    assert_eq!(kept.len(), 2, "{kept:?}");
    for file in kept {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let said = world.ok(with, &["whoami"]);
    assert!(said.contains("by: token of BEARER_TOKEN (s-1 of https://localhost:"), "{said}");
    assert!(said.contains("may ") && !said.contains(&token), "{said}");
    let log = world.sites.titech.logged();
    assert!(log.contains("certificate given") && !log.contains(&token), "no token is in the log");
}

#[test]
fn tokens_that_are_not_good_are_refused_with_their_codes() {
    let world = World::with_cards();
    let kek = &world.sites.kek;
    for (claims, code) in [
        (json!({"exp": 1_000_000_000, "scope": "storage.read:/"}), "RK-AUTH-31"),
        (json!({"aud": "https://elsewhere.example", "scope": "storage.read:/"}), "RK-AUTH-34"),
        (json!({"sub": "s-2", "scope": "openid"}), "RK-AUTH-7"),
        (json!({"iss": "https://other.example", "scope": "storage.read:/"}), "RK-AUTH-35"),
        (json!({"scope": "storage.read"}), "RK-AUTH-30"),
    ] {
        let token = world.issuer.token(kek, claims.clone());
        assert_eq!(world.code(&[("BEARER_TOKEN", &token)], &["ls", "kek:/data/wlcg"]), code, "{claims}");
    }
    assert!(world.kept().is_empty());
    assert_eq!(world.code(&[("BEARER_TOKEN_FILE", "/none")], &["ls", "kek:/data"]), "RK-AUTH-55");
    assert_eq!(world.code(&[], &["ls", "kek:/data"]), "RK-AUTH-13");
    assert_eq!(world.code(&[("RENKEI_CREDENTIAL", "token")], &["ls", "kek:/data"]), "RK-AUTH-55");
    let token = world.token("storage.read:/");
    let switched_off = [("BEARER_TOKEN", token.as_str()), ("RENKEI_CREDENTIAL", "login")];
    assert_eq!(world.code(&switched_off, &["ls", "kek:/data/wlcg"]), "RK-AUTH-13");
}

#[test]
fn a_certificate_ends_with_its_token_and_is_revoked_with_it() {
    let world = World::with_cards();
    let token = world.token("storage.read:/run7");
    let with: &[(&str, &str)] = &[("BEARER_TOKEN", &token)];
    world.ok(with, &["ls", "kek:/data/wlcg/run7"]);
    let lines = fs::read_to_string(world.sites.kek.dir().join("state/issued")).unwrap();
    let words: Vec<&str> = lines.lines().last().unwrap().split(' ').collect();
    let end: u64 = words[2].parse().unwrap();
    assert!(end <= now() + 600, "the token has ten minutes");
    world.sites.kek.ok(&["revoke", words[3]]);
    assert_eq!(world.code(with, &["ls", "kek:/data/wlcg/run7"]), "RK-AUTH-5");
    fs::remove_dir_all(world.user.join("state/user/borrowed")).unwrap();
    assert_eq!(world.code(with, &["ls", "kek:/data/wlcg/run7"]), "RK-AUTH-5");
}

#[test]
fn a_login_with_a_token_is_kept_and_removed() {
    let world = World::start();
    let kek = &world.sites.kek;
    let (file, address) = (world.dir.path().join("token"), kek.address.to_string());
    // It is late from the beginning: a newer one is taken when there is one.
    let claims = json!({"scope": "storage.read:/run7", "exp": now() + 100});
    fs::write(&file, world.issuer.token(kek, claims)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let login = ["login", "--token", file.to_str().unwrap(), "--at", &address];
    assert_eq!(world.code(&[], &login), "RK-AUTH-12");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    // The PoP is not known yet: the token is sent to nobody.
    assert_eq!(world.code(&[], &login), "RK-AUTH-54");
    assert_eq!(world.code(&[], &["login", "--token", file.to_str().unwrap(), "--at", "kek"]), "RK-CONF-5");
    world.take_card(kek);
    let said = world.ok(&[], &login);
    assert!(said.starts_with(&format!("logged in as {}@kek until ", account())), "{said}");
    assert!(said.contains("site titech now known"), "{said}");
    assert_eq!(world.ok(&[], &["ls", "kek:/data/wlcg/run7"]), "a.dat\n");
    // The word of the home site counts where no certificate of the own is given.
    assert_eq!(world.code(&[], &["ls", "titech:/data/wlcg/run7"]), "RK-AUTH-17");
    let said = world.ok(&[], &["whoami"]);
    assert!(said.contains(&format!("by: login with the token of {}", file.display())), "{said}");
    assert_eq!(world.code(&[], &["ls", "kek:/data/wlcg"]), "RK-AUTH-17");
    fs::write(&file, world.token("storage.read:/")).unwrap();
    assert_eq!(world.ok(&[], &["ls", "kek:/data/wlcg"]), "run7\n");
    let origin = world.user.join("user/login-origin.json");
    assert_eq!(origin.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(world.ok(&[], &["logout"]), "logged out\n");
    assert!(!origin.exists());
    assert_eq!(world.code(&[], &["ls", "kek:/data"]), "RK-AUTH-13");
}

#[test]
fn a_chain_is_shown_as_client_certificate() {
    let world = World::with_cards();
    let kek = &world.sites.kek;
    let chain = kek.dir().join("user/credential.pem");
    let with: &[(&str, &str)] = &[("X509_USER_PROXY", chain.to_str().unwrap())];
    assert_eq!(world.ok(with, &["cat", "kek:/data/wlcg/run7/a.dat"]), "kek");
    world.ok(with, &["login", "--proxy", "--at", "kek"]);
    assert_eq!(world.ok(&[], &["cat", "titech:/data/wlcg/run7/a.dat"]), "titech");
    let said = world.ok(&[], &["whoami"]);
    assert!(said.contains("by: login with the proxy of "), "{said}");
}

#[test]
fn queued_transfers_go_on_within_the_scope() {
    let world = World::with_cards();
    let kek = &world.sites.kek;
    kek.ok(&["map", "add", "--yes", &format!("token:{}#s-9", world.issuer.url), &account()]);
    kek.ok(&["issuer", "remove", "wlcg"]);
    kek.ok(&["issuer", "add", "wlcg", &world.issuer.url, "--account", &account()]);
    // A token that says nothing of storage stands for its subject, whose home site vouches for the transfer.
    let whole = world.issuer.token(kek, json!({"sub": "s-9", "scope": "openid"}));
    let with: &[(&str, &str)] = &[("BEARER_TOKEN", &whole)];
    world.ok(with, &["ls", "kek:/data/wlcg/run7"]);
    world.ok(with, &["login", "--token", "--at", "kek"]);
    let queued = world.ok(&[], &["cp", "--detach", "kek:/data/wlcg/run7/a.dat", "titech:/data/wlcg/queued"]);
    let id = queued.split_whitespace().last().unwrap_or_default();
    world.ok(&[], &["wait", id.trim_matches('`')]);
    assert_eq!(fs::read(world.sites.titech.root().join("wlcg/queued")).unwrap(), b"kek");
    // A restricted one is good where its scope is.
    let part = world
        .issuer
        .token(kek, json!({"scope": "storage.read:/data/wlcg/run7 storage.modify:/data/wlcg/out"}));
    let with: &[(&str, &str)] = &[("BEARER_TOKEN", &part)];
    let beyond = ["cp", "--detach", "kek:/data/wlcg/run7/a.dat", "titech:/data/wlcg/queued2"];
    assert_eq!(world.code(with, &beyond), "RK-AUTH-17");
    fs::create_dir(kek.root().join("wlcg/out")).unwrap();
    world.ok(with, &["cp", "--detach", "kek:/data/wlcg/run7/a.dat", "kek:/data/wlcg/out/b"]);
    let (copied, start) = (kek.root().join("wlcg/out/b"), Instant::now());
    while !copied.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", kek.logged());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks the endpoint of a site with curl; gives the status and the answer.
fn post(site: &Site, token: Option<&str>, body: &str) -> (u16, Value) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--insecure", "--max-time", "60", "--http1.1", "--write-out", "\n%{http_code}"]);
    curl.args(token.iter().flat_map(|token| ["-H".to_owned(), format!("Authorization: Bearer {token}")]));
    curl.args(["--data-binary", body]);
    let output =
        curl.arg(format!("https://{}/.well-known/renkei/certificate", site.address)).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn the_endpoint_gives_nothing_to_strangers_and_withstands_a_flood() {
    let world = World::start();
    let kek = &world.sites.kek;
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
    let body = json!({ "csr": request }).to_string();
    let token = world.token("storage.read:/run7");
    // A request that was overheard is of no use without what is shown with it, nor with another token.
    assert_eq!(post(kek, None, &body).0, 401);
    let (status, first) = post(kek, Some(&token), &body);
    assert_eq!(status, 200, "{first}");
    assert!(first["certificate"].as_str().unwrap().contains("BEGIN CERTIFICATE"));
    let (status, told) = post(kek, Some(&format!("{token}x")), &body);
    assert_eq!((status, &told["code"]), (401, &"RK-AUTH-36".into()), "{told}");
    for bad in ["", "{}", r#"{"csr": "x"}"#] {
        let (status, told) = post(kek, Some(&token), bad);
        assert!((400..500).contains(&status), "{bad}: {told}");
    }
    let (status, _) = post(kek, Some(&token), &json!({ "csr": "x".repeat(100_000) }).to_string());
    assert_eq!(status, 400);
    let refused = (0..40).map(|_| post(kek, Some(&token), &body)).find(|(status, _)| *status != 200);
    let (status, told) = refused.expect("a flood is stopped");
    assert_eq!((status, &told["code"]), (429, &"RK-AUTH-50".into()), "{told}");
}

#[test]
fn a_login_at_a_provider_is_confirmed_in_a_browser_and_renewed() {
    let world = World::with_cards();
    // The first token is late from the beginning.
    let claims =
        [json!({"scope": "storage.read:/run7", "exp": now() + 100}), json!({"scope": "storage.read:/"})];
    let tokens = claims.map(|claims| world.issuer.token(&world.sites.kek, claims));
    world.issuer.answer_devices(&[
        json!({"error": "authorization_pending"}),
        json!({"access_token": tokens[0], "token_type": "Bearer", "refresh_token": "r-1"}),
    ]);
    let login = ["login", "--oidc", &world.issuer.url, "--at", "kek"];
    let output = world.command(&[], &login).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("/device in a browser and confirm the code AB-CD"), "{said}");
    let file = world.user.join("user/login-origin.json");
    assert!(fs::read_to_string(&file).unwrap().contains("r-1"));
    // The provider renews it, and the next refresh token replaces the one before.
    world.issuer.answer_devices(&[json!({"access_token": tokens[1], "refresh_token": "r-2"})]);
    assert_eq!(world.ok(&[], &["ls", "kek:/data/wlcg"]), "run7\n");
    let origin = fs::read_to_string(&file).unwrap();
    assert!(origin.contains("r-2") && !origin.contains("r-1"));
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!world.ok(&[], &["--json", "whoami"]).contains("r-2"));
    let asked = world.issuer.asked();
    assert!(asked.iter().any(|form| form.contains("refresh_token=r-1")), "{asked:?}");
    assert!(
        asked.iter().any(|form| form.contains("client_id=renkei") && form.contains("scope=openid")),
        "{asked:?}"
    );
    for (answers, code) in [
        (vec![json!({"error": "access_denied"})], "RK-AUTH-51"),
        (vec![json!({"error": "expired_token"})], "RK-AUTH-52"),
        (vec![json!({"error": "invalid_client"})], "RK-AUTH-53"),
    ] {
        world.issuer.answer_devices(&answers);
        assert_eq!(world.code(&[], &login), code);
    }
}
