//! Kerberos tickets, with a KDC of this machine, curl as HTTP client, and renkei's own verbs.

use super::{Answer, curl, parse};
use crate::federation::{Federation, Site, account, free_address};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const REALM: &str = "EXAMPLE.ORG";
const PASSWORD: &str = "secret";
/// How long a KDC, or the notice of a change, may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A realm with its KDC, which ends with it.
struct Realm {
    dir: PathBuf,
    kdc: Child,
}

impl Realm {
    /// Starts the KDC of a realm with the users taro, hana and daemon, and a keytab for 127.0.0.1 and localhost.
    fn start(dir: &Path) -> Realm {
        let dir = dir.join("realm");
        std::fs::create_dir_all(&dir).unwrap();
        let address = free_address();
        let shown = dir.display();
        let client = format!(
            "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n \
             dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n\
             [realms]\n {REALM} = {{\n  kdc = {address}\n }}\n"
        );
        std::fs::write(dir.join("krb5.conf"), &client).unwrap();
        let strict = client.replace("[libdefaults]\n", "[libdefaults]\n clockskew = 1\n");
        std::fs::write(dir.join("strict.conf"), strict).unwrap();
        let server = format!(
            "[kdcdefaults]\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n\
             [realms]\n {REALM} = {{\n  database_name = {shown}/principal\n  key_stash_file = {shown}/stash\n  \
             acl_file = {shown}/acl\n  max_life = 10h\n }}\n"
        );
        std::fs::write(dir.join("kdc.conf"), server).unwrap();
        let with = |program: &str| {
            let mut command = Command::new(program);
            command.env("KRB5_CONFIG", dir.join("krb5.conf")).env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
            // Where Debian has the programs of servers.
            command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
            command
        };
        let run = |program: &str, arguments: &[&str]| {
            let output = with(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{program}: {output:?}");
        };
        run("kdb5_util", &["create", "-s", "-r", REALM, "-P", "master"]);
        for service in ["HTTP/127.0.0.1", "HTTP/localhost", "HTTP/other", "host/localhost"] {
            run("kadmin.local", &["addprinc", "-randkey", service]);
        }
        for user in ["taro", "hana", "daemon"] {
            run("kadmin.local", &["addprinc", "-pw", PASSWORD, user]);
        }
        let keytab = dir.join("keytab");
        let services = ["HTTP/127.0.0.1", "HTTP/localhost", "host/localhost"];
        run("kadmin.local", &[&["ktadd", "-k", keytab.to_str().unwrap()][..], &services].concat());
        let log = std::fs::File::create(dir.join("kdc.log")).unwrap();
        let kdc = with("krb5kdc").arg("-n").stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let realm = Realm { dir, kdc };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < PATIENCE, "the KDC does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        realm
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Lets the PoP of a site accept tickets.
    fn trusted_by(&self, site: &mut Site) {
        self.trusted_with(site, "krb5.conf");
    }

    fn trusted_with(&self, site: &mut Site, krb5: &str) {
        let path = site.dir().join("config.toml");
        let config = std::fs::read_to_string(&path).unwrap();
        if !config.contains("[kerberos]") {
            let more = format!("{config}\n[kerberos]\nkeytab = '{}'\n", self.path("keytab").display());
            std::fs::write(path, more).unwrap();
        }
        // The environment of a site lives as long as the test.
        let krb5: &'static str = self.path(krb5).display().to_string().leak();
        site.environment.retain(|(name, _)| *name != "KRB5_CONFIG");
        site.environment.push(("KRB5_CONFIG", krb5));
        site.restart();
    }

    /// A command that has the tickets of a cache.
    fn with_cache(&self, mut command: Command, cache: &str) -> Command {
        command.env("KRB5_CONFIG", self.path("krb5.conf"));
        command.env("KRB5CCNAME", format!("FILE:{}", self.path(cache).display()));
        command
    }

    /// Gets a ticket for a user, named as its cache.
    fn kinit(&self, user: &str, cache: &str, life: &str) {
        let mut kinit = self.with_cache(Command::new("kinit"), cache);
        let mut kinit =
            kinit.args(["-l", life, user]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        writeln!(kinit.stdin.take().unwrap(), "{PASSWORD}").unwrap();
        assert!(kinit.wait().unwrap().success());
    }

    /// Asks a PoP with curl, as the holder of a cache.
    fn curl(&self, site: &Site, cache: &str, path: &str, arguments: &[&str]) -> Answer {
        let mut curl = self.with_cache(Command::new("curl"), cache);
        curl.args(["--silent", "--show-error", "--insecure", "--max-time", "60", "--http1.1", "--include"]);
        curl.args(["--negotiate", "-u", ":"]).args(arguments);
        parse(curl.arg(format!("https://{}{path}", site.address)).output().unwrap())
    }

    /// The token that curl sends to a server, for a service at a host.
    fn token(&self, cache: &str, service: &str, host: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut curl = self.with_cache(Command::new("curl"), cache);
        curl.args(["--silent", "--max-time", "60", "--negotiate", "-u", ":", "--service-name", service]);
        curl.args(["--resolve", &format!("{host}:{port}:127.0.0.1"), &format!("http://{host}:{port}/")]);
        let mut curl = curl.stdout(Stdio::null()).spawn().unwrap();
        let mut stream = listener.accept().unwrap().0;
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        drop(stream);
        curl.wait().unwrap();
        let token = head.iter().find_map(|line| line.strip_prefix("Authorization: Negotiate "));
        token.unwrap_or_else(|| panic!("no token: {head:?}")).to_owned()
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

/// Sends a token as it is.
fn show(site: &Site, token: &str, arguments: &[&str]) -> Answer {
    let header = format!("Authorization: Negotiate {token}");
    parse(curl(site, "/data/a", &[&["-H", &header], arguments].concat()))
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.problem()["code"].as_str().unwrap().to_owned())
}

fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.into())
}

/// A PoP with a file, and a realm whose tickets it accepts.
fn pop() -> (tempfile::TempDir, Site, Realm) {
    let (dir, mut site) = super::pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let realm = Realm::start(dir.path());
    realm.trusted_by(&mut site);
    (dir, site, realm)
}

#[test]
fn a_ticket_opens_the_files_of_the_mapped_account() {
    let (dir, site, realm) = pop();
    realm.kinit("taro", "taro", "1h");
    assert_eq!(code(&realm.curl(&site, "taro", "/data/a", &[])), refused(403, "RK-AUTH-7"));
    site.ok(&["map", "add", "--yes", "krb:taro@EXAMPLE.ORG", &account()]);
    let got = realm.curl(&site, "taro", "/data/a", &[]);
    assert_eq!((got.status, &got.body[..]), (200, &b"hello"[..]));
    assert_eq!(got.header("persistent-auth"), Some("false"));
    assert!(
        got.header("www-authenticate").is_some_and(|reply| reply.starts_with("Negotiate ")),
        "{}",
        got.head
    );
    let file = dir.path().join("new");
    std::fs::write(&file, "new").unwrap();
    // Several requests over one connection.
    let put = realm.curl(&site, "taro", "/data/{b,c}", &["--upload-file", file.to_str().unwrap()]);
    assert_eq!(put.status, 201, "{}", put.head);
    assert_eq!(std::fs::read(site.root().join("c")).unwrap(), b"new");
    let log = site.logged();
    assert!(log.contains("taro@EXAMPLE.ORG") && log.contains("authorised"), "{log}");

    let told = site.ok(&["map", "test", "krb:taro@EXAMPLE.ORG"]);
    assert!(told.starts_with(&format!("taro@EXAMPLE.ORG becomes {}: rule", account())), "{told}");
    let (status, told) = site.json(&["map", "test", "krb:hana@EXAMPLE.ORG"]);
    assert_eq!((status, &told["refusal"]["code"]), (5, &"RK-AUTH-7".into()), "{told}");
    // A rule for all leads to no account of the system.
    site.ok(&["map", "add", "krb:*@EXAMPLE.ORG", "*"]);
    realm.kinit("daemon", "daemon", "1h");
    assert_eq!(code(&realm.curl(&site, "daemon", "/data/a", &[])), refused(403, "RK-AUTH-7"));
    // Blocking reaches the principal, and the user whose account it has.
    site.ok(&["map", "deny", "krb:taro@EXAMPLE.ORG"]);
    let blocked = realm.curl(&site, "taro", "/data/a", &[]);
    assert_eq!(code(&blocked), refused(403, "RK-AUTH-26"));
    site.ok(&["map", "remove", "krb:taro@EXAMPLE.ORG"]);
    assert_eq!(realm.curl(&site, "taro", "/data/a", &[]).status, 200);
    site.ok(&["map", "deny", &format!("{}@kek", account())]);
    assert_eq!(code(&realm.curl(&site, "taro", "/data/a", &[])), refused(403, "RK-AUTH-26"));
}

#[test]
fn tokens_that_are_not_good_are_refused_with_their_codes() {
    let (_dir, mut site, realm) = pop();
    site.ok(&["map", "add", "--yes", "krb:taro@EXAMPLE.ORG", &account()]);
    realm.kinit("taro", "taro", "1h");
    let token = realm.token("taro", "HTTP", "localhost");
    assert_eq!(show(&site, &token, &[]).status, 200);
    assert_eq!(code(&show(&site, &token, &[])), refused(401, "RK-AUTH-59"));
    for (service, host) in [("HTTP", "other"), ("host", "localhost")] {
        let token = realm.token("taro", service, host);
        assert_eq!(code(&show(&site, &token, &[])), refused(401, "RK-AUTH-61"), "{service}/{host}");
    }
    let whole = BASE64_STANDARD.decode(realm.token("taro", "HTTP", "localhost")).unwrap();
    let bad =
        [b"NTLMSSP\0".to_vec(), vec![7; 300], whole[..100].to_vec()].map(|bad| BASE64_STANDARD.encode(bad));
    for bad in bad.iter().map(String::as_str).chain(["*"]) {
        let answer = show(&site, bad, &[]);
        assert_eq!(code(&answer), refused(401, "RK-AUTH-57"), "{bad}");
        assert!(!answer.head.to_ascii_lowercase().contains("www-authenticate: negotiate"), "{}", answer.head);
    }
    // A page of another server may not use what a browser has.
    let token = realm.token("taro", "HTTP", "localhost");
    let foreign = show(&site, &token, &["-X", "DELETE", "-H", "Origin: https://elsewhere.example"]);
    assert_eq!(code(&foreign), refused(403, "RK-AUTH-14"));
    assert!(site.root().join("a").exists());
    // A ticket that has ended is not good for the time that clocks may differ by.
    realm.kinit("taro", "short", "6s");
    let token = realm.token("short", "HTTP", "localhost");
    let late = realm.token("taro", "HTTP", "localhost");
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(code(&show(&site, &token, &[])), refused(401, "RK-AUTH-58"));
    realm.trusted_with(&mut site, "strict.conf");
    assert_eq!(code(&show(&site, &late, &[])), refused(401, "RK-AUTH-60"));
}

#[test]
fn tickets_are_offered_where_there_is_a_keytab() {
    let (_dir, site, realm) = pop();
    let offers = |site: &Site, arguments: &[&str]| {
        let answer = parse(curl(site, "/data/a", arguments));
        assert_eq!(answer.status, 401);
        answer.head.lines().any(|line| line.eq_ignore_ascii_case("www-authenticate: negotiate"))
    };
    assert!(offers(&site, &[]));
    assert!(!offers(&site, &["-H", "Accept: text/html"]), "no dialog of a browser");
    let doctor = || {
        let (_, told) = site.json(&["doctor"]);
        let mut checks = told["checks"].as_array().unwrap().clone();
        checks.retain(|check| check["found"].to_string().contains("keytab"));
        checks
    };
    assert_eq!(doctor()[0]["level"], "ok");
    // The keys are read again; without them the administrator learns why.
    std::fs::rename(realm.path("keytab"), realm.path("away")).unwrap();
    let start = Instant::now();
    while offers(&site, &[]) {
        assert!(start.elapsed() < PATIENCE, "the keytab is read again");
        std::thread::sleep(Duration::from_millis(200));
    }
    realm.kinit("taro", "taro", "1h");
    assert_eq!(code(&realm.curl(&site, "taro", "/data/a", &[])), refused(401, "RK-AUTH-56"));
    assert_eq!(doctor()[0]["level"], "warn");
}

#[test]
fn verbs_work_with_a_ticket() {
    let mut sites = Federation::two();
    let scratch = sites.scratch();
    let realm = Realm::start(&scratch);
    for site in [&mut sites.titech, &mut sites.kek] {
        realm.trusted_by(site);
        site.ok(&["map", "add", "--yes", "krb:taro@EXAMPLE.ORG", &account()]);
        std::fs::write(site.root().join("a"), site.name.as_bytes()).unwrap();
    }
    let user = scratch.join("user");
    std::fs::create_dir(&user).unwrap();
    let kek = &sites.kek;
    let run = |cache: &str, arguments: &[&str]| -> Output {
        let command = kek.command_in(&user);
        realm.with_cache(command, cache).args(arguments).output().unwrap()
    };
    let ok = |cache: &str, arguments: &[&str]| {
        let Output { status, stdout, stderr } = run(cache, arguments);
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    };
    let code = |cache: &str, arguments: &[&str]| {
        let output = run(cache, &[&["--json"], arguments].concat());
        let told = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let told: Value = serde_json::from_slice(told).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let code = told["error"]["code"].as_str().or_else(|| told["failures"][0]["code"].as_str());
        code.unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    for site in [&sites.titech, kek] {
        let card = scratch.join(format!("{}.site", site.name));
        std::fs::write(&card, site.ok(&["trust", "export"])).unwrap();
        ok("none", &["trust", "add", "--yes", card.to_str().unwrap()]);
    }
    assert_eq!(code("none", &["ls", "kek:/data"]), "RK-AUTH-13");
    assert_eq!(code("none", &["login", "--kerberos", "--at", "kek"]), "RK-AUTH-55");
    // The ticket is found, and each site gives a certificate for it.
    realm.kinit("taro", "taro", "1h");
    assert_eq!(ok("taro", &["ls", "kek:/data"]), "a\n");
    ok("taro", &["cp", "titech:/data/a", "kek:/data/from-titech"]);
    assert_eq!(std::fs::read(kek.root().join("from-titech")).unwrap(), b"titech");
    let said = ok("taro", &["whoami"]);
    assert!(said.contains("by: ticket of FILE:") && said.contains("(taro@EXAMPLE.ORG)"), "{said}");
    // One that the sites do not map leaves the user without a login, and says why.
    realm.kinit("hana", "hana", "1h");
    assert_eq!(code("hana", &["ls", "kek:/data"]), "RK-AUTH-13");
    let told = String::from_utf8(run("hana", &["ls", "kek:/data"]).stderr).unwrap();
    assert!(told.contains("RK-AUTH-7"), "{told}");

    // The certificate of a login ends with the ticket, and is good without it.
    let said = ok("taro", &["login", "--kerberos", "--at", "kek"]);
    assert!(said.starts_with(&format!("logged in as {}@kek until ", account())), "{said}");
    let lines = std::fs::read_to_string(kek.dir().join("state/issued")).unwrap();
    let words: Vec<&str> = lines.lines().last().unwrap().split(' ').collect();
    let end: u64 = words[2].parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(end <= now + 3600, "the ticket has an hour");
    assert_eq!(ok("none", &["cat", "titech:/data/a"]), "titech");
    let said = ok("none", &["whoami"]);
    assert!(said.contains("by: login with the ticket of FILE:"), "{said}");
    // It is revoked with the principal, who then gets no other.
    kek.ok(&["revoke", words[3]]);
    assert_eq!(code("none", &["ls", "kek:/data"]), "RK-AUTH-5");
    assert_eq!(code("taro", &["login", "--kerberos", "--at", "kek"]), "RK-AUTH-5");
}
