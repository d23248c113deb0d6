//! Grid certificates with programs that people use: openssl makes them, voms-proxy-fake attributes, curl and davix show
//! them.

use super::{Answer, ask, curl, parse, pop};
use crate::federation::{Federation, Site, account};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARO: &str = "/C=JP/O=NII/CN=Taro Yamada";

/// How long a PoP may take to notice a change.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// An authority, users and a VOMS server.
struct Grid {
    dir: PathBuf,
    hash: String,
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Grid {
    /// Makes the files of a grid site in a directory, for a PoP that reads them.
    fn new(dir: &Path, site: &Site) -> Self {
        let mut grid = Grid { dir: dir.join("grid"), hash: String::new() };
        std::fs::create_dir_all(grid.path("certificates")).unwrap();
        std::fs::create_dir_all(grid.path("vomsdir/belle")).unwrap();
        grid.write("client", "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n");
        grid.write("server", "subjectAltName=DNS:pop.kek.example\n");
        grid.write("proxy", "proxyCertInfo=critical,language:id-ppl-inheritAll\n");
        let make = [
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-keyout", "ca.key", "-out",
            "ca.pem",
        ];
        grid.openssl(&[&make[..], &["-subj", "/C=JP/O=NII/CN=Grid CA"]].concat());
        grid.hash = grid.openssl(&["x509", "-hash", "-noout", "-in", "ca.pem"]).trim().to_owned();
        std::fs::copy(grid.path("ca.pem"), grid.path(&format!("certificates/{}.0", grid.hash))).unwrap();
        grid.issue("taro", TARO, "client", "ca", "2");
        grid.issue("voms", "/C=JP/O=KEK/CN=voms.kek.jp", "client", "ca", "2");
        grid.write(
            &format!("certificates/{}.signing_policy", grid.hash),
            "access_id_CA X509 '/C=JP/O=NII/CN=Grid CA'\npos_rights globus CA:sign\ncond_subjects globus '\"/C=JP/*\"'\n",
        );
        grid.write("vomsdir/belle/voms.kek.jp.lsc", "/C=JP/O=KEK/CN=voms.kek.jp\n/C=JP/O=NII/CN=Grid CA\n");
        read_by(site, &grid.dir);
        grid
    }

    /// Makes the same files for another PoP.
    fn copied_for(&self, site: &Site) {
        let dir = self.path("other");
        std::fs::create_dir(&dir).unwrap();
        for folder in ["certificates", "vomsdir"] {
            let copied = Command::new("cp").arg("-r").arg(self.path(folder)).arg(&dir).output();
            succeeded(&copied.unwrap());
        }
        read_by(site, &dir);
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).unwrap();
    }

    fn openssl(&self, arguments: &[&str]) -> String {
        succeeded(&Command::new("openssl").args(arguments).current_dir(&self.dir).output().unwrap())
    }

    /// Makes NAME.key and NAME.pem, issued by another pair.
    fn issue(&self, name: &str, subject: &str, extensions: &str, issuer: &str, days: &str) {
        let of = |kind: &str| format!("{name}.{kind}");
        self.openssl(&[
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            subject,
            "-keyout",
            &of("key"),
            "-out",
            &of("csr"),
        ]);
        let (ca, key) = (format!("{issuer}.pem"), format!("{issuer}.key"));
        let sign =
            ["x509", "-req", "-in", &of("csr"), "-CA", &ca, "-CAkey", &key, "-CAcreateserial", "-days", days];
        self.openssl(&[&sign[..], &["-extfile", extensions, "-out", &of("pem")]].concat());
        std::fs::set_permissions(self.path(&of("key")), PermissionsExt::from_mode(0o600)).unwrap();
    }

    /// The file of a proxy: certificate, key, certificate of the user.
    fn proxy(&self) -> PathBuf {
        self.issue("px", &format!("{TARO}/CN=1234"), "proxy", "taro", "1");
        let parts =
            ["px.pem", "px.key", "taro.pem"].map(|file| std::fs::read_to_string(self.path(file)).unwrap());
        self.secret("x509up", &parts.concat())
    }

    fn secret(&self, file: &str, text: &str) -> PathBuf {
        self.write(file, text);
        std::fs::set_permissions(self.path(file), PermissionsExt::from_mode(0o600)).unwrap();
        self.path(file)
    }

    /// The file of a proxy with attributes, as voms-proxy-init makes it.
    fn voms_proxy(&self, fqan: &str) -> PathBuf {
        let mut make = Command::new("voms-proxy-fake");
        make.args([
            "-cert",
            "taro.pem",
            "-key",
            "taro.key",
            "-certdir",
            "certificates",
            "-hostcert",
            "voms.pem",
        ]);
        make.args([
            "-hostkey",
            "voms.key",
            "-voms",
            "belle",
            "-uri",
            "voms.kek.jp:15020",
            "-fqan",
            fqan,
            "-rfc",
        ]);
        make.args(["-hours", "1", "-bits", "2048", "-out", "voms-proxy.pem"]).current_dir(&self.dir);
        succeeded(&make.output().unwrap());
        self.path("voms-proxy.pem")
    }

    /// Whether a PoP shows a certificate of this authority for a host.
    fn vouches_for(&self, site: &Site, host: &str) -> bool {
        let (port, capath) = (site.address.port(), self.path("certificates"));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--http1.1", "--max-time", "60", "--capath", capath.to_str().unwrap()]);
        curl.arg("--resolve").arg(format!("{host}:{port}:127.0.0.1"));
        curl.arg(format!("https://{host}:{port}/healthz")).output().unwrap().status.success()
    }

    /// Revokes the certificate of Taro.
    fn revoke(&self) {
        self.write("index.txt", "");
        self.write("number", "01\n");
        self.write("ca.cnf", "[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\ncrlnumber=number\ndefault_md=sha256\ndefault_crl_days=1\n");
        let own = ["ca", "-config", "ca.cnf", "-keyfile", "ca.key", "-cert", "ca.pem"];
        self.openssl(&[&own[..], &["-revoke", "taro.pem"]].concat());
        self.openssl(&[&own[..], &["-gencrl", "-out", &format!("certificates/{}.r0", self.hash)]].concat());
    }
}

/// Has a PoP read the files of a directory.
fn read_by(site: &Site, dir: &Path) {
    let config = std::fs::read_to_string(site.dir().join("config.toml")).unwrap();
    let more = format!("{config}\n[grid]\ndirectory = '{}'\n", dir.display());
    std::fs::write(site.dir().join("config.toml"), more).unwrap();
}

/// Waits until the PoP has noticed a change of files, which it looks for every 5 seconds.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not seen: {what}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

fn get(site: &Site, credential: &Path) -> Answer {
    parse(curl(site, "/data/a", &["--cert", credential.to_str().unwrap()]))
}

fn refusal(site: &Site, credential: &Path) -> String {
    let answer = get(site, credential);
    assert!(matches!(answer.status, 401 | 403), "{}", answer.head);
    answer.problem()["code"].as_str().unwrap().to_owned()
}

#[test]
fn a_proxy_opens_the_files_of_the_mapped_account() {
    let (dir, site) = pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let grid = Grid::new(dir.path(), &site);
    let proxy = grid.proxy();
    assert_eq!(refusal(&site, &proxy), "RK-AUTH-7");
    site.ok(&["map", "add", &format!("dn:{TARO}"), &account(), "--yes"]);
    assert_eq!(get(&site, &proxy).body, b"hello");
    let told = site.ok(&["map", "test", proxy.to_str().unwrap()]);
    assert!(told.contains("installed here") && told.contains(&format!("becomes {}", account())), "{told}");
    let log = site.logged();
    assert!(log.contains("Taro Yamada") && log.contains("authorised"), "{log}");

    let file = dir.path().join("new");
    std::fs::write(&file, "new").unwrap();
    let davix = |program: &str, arguments: &[&str]| {
        let own = ["--insecure", "--cert", proxy.to_str().unwrap()];
        succeeded(&Command::new(program).args(own).args(arguments).output().unwrap())
    };
    let url = |path: &str| format!("davs://{}/data/{path}", site.address);
    davix("davix-put", &[file.to_str().unwrap(), &url("b")]);
    assert!(davix("davix-ls", &[&url("")]).contains('b'));
    assert_eq!(std::fs::read(site.root().join("b")).unwrap(), b"new");

    grid.revoke();
    eventually("the certificate is revoked", || get(&site, &proxy).status != 200);
    assert_eq!(refusal(&site, &proxy), "RK-AUTH-44");
    let told = site.ok(&["trust", "ca", "list"]);
    assert!(told.contains("/C=JP/O=NII/CN=Grid CA") && told.contains("revocation list good until"), "{told}");
}

#[test]
fn the_verbs_of_renkei_work_with_a_proxy() {
    let (dir, site) = pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let grid = Grid::new(dir.path(), &site);
    site.ok(&["map", "add", &format!("dn:{TARO}"), &account(), "--yes"]);
    let (card, user) = (dir.path().join("kek.site"), dir.path().join("user"));
    std::fs::write(&card, site.ok(&["trust", "export"])).unwrap();
    std::fs::create_dir(&user).unwrap();
    let run = |proxy: Option<&Path>, arguments: &[&str]| {
        let mut command = site.command_in(&user);
        command.env("XDG_RUNTIME_DIR", dir.path()).args(arguments);
        command.envs(proxy.map(|path| ("X509_USER_PROXY", path))).output().unwrap()
    };
    succeeded(&run(None, &["trust", "add", "--yes", card.to_str().unwrap()]));
    let (proxy, file) = (grid.proxy(), dir.path().join("b"));
    std::fs::write(&file, "mine").unwrap();
    assert_eq!(succeeded(&run(Some(&proxy), &["ls", "kek:/data"])), "a\n");
    succeeded(&run(Some(&proxy), &["cp", file.to_str().unwrap(), "kek:/data/b"]));
    assert_eq!(std::fs::read(site.root().join("b")).unwrap(), b"mine");
    let told = succeeded(&run(Some(&proxy), &["whoami"]));
    assert!(told.contains(&format!("{}@kek", account())) && told.contains("by: proxy of"), "{told}");
    // As a login it is there without the variable, until the logout.
    succeeded(&run(None, &["login", "--proxy", proxy.to_str().unwrap(), "--at", "kek"]));
    assert_eq!(succeeded(&run(None, &["cat", "kek:/data/b"])), "mine");
    succeeded(&run(None, &["logout"]));
    assert!(!run(None, &["ls", "kek:/data"]).status.success());
}

#[test]
fn attributes_of_voms_lead_to_the_account_of_the_voms_mapfile() {
    let (dir, site) = pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let grid = Grid::new(dir.path(), &site);
    let proxy = grid.voms_proxy("/belle/Role=production/Capability=NULL");
    assert_eq!(refusal(&site, &proxy), "RK-AUTH-7");
    grid.write("voms-mapfile", &format!("\"/belle/Role=production\" {}\n", account()));
    eventually("the voms-mapfile is read", || get(&site, &proxy).status == 200);
    let told = site.ok(&["map", "test", proxy.to_str().unwrap()]);
    assert!(told.contains("attribute /belle/Role=production"), "{told}");
    // Without the file of the server the attributes do not count.
    std::fs::remove_file(grid.path("vomsdir/belle/voms.kek.jp.lsc")).unwrap();
    eventually("the LSC file is gone", || get(&site, &proxy).status != 200);
    let answer = get(&site, &proxy);
    assert!(String::from_utf8_lossy(&answer.body).contains("there is no file belle/voms.kek.jp.lsc"));
    grid.write("grid-mapfile", &format!("\"{TARO}\" {},other\n", account()));
    eventually("the grid-mapfile is read", || get(&site, &proxy).status == 200);
}

#[test]
fn grid_clients_see_the_host_certificate() {
    let (dir, site) = pop();
    let grid = Grid::new(dir.path(), &site);
    grid.issue("hostcert", "/C=JP/O=KEK/CN=pop.kek.example", "server", "ca", "2");
    std::fs::rename(grid.path("hostcert.key"), grid.path("hostkey.pem")).unwrap();
    eventually("the host certificate is read", || grid.vouches_for(&site, "pop.kek.example"));
}

#[test]
fn folders_of_authorities_are_added() {
    let (dir, site) = pop();
    std::fs::write(site.root().join("a"), "hello").unwrap();
    let grid = Grid::new(dir.path(), &site);
    site.ok(&["map", "add", &format!("dn:{TARO}"), &account(), "--yes"]);
    let other = dir.path().join("authorities");
    std::fs::rename(grid.path("certificates"), &other).unwrap();
    let proxy = grid.proxy();
    eventually("the authority is gone", || get(&site, &proxy).status != 200);
    site.ok(&["trust", "ca", "add", other.to_str().unwrap()]);
    assert_eq!(get(&site, &proxy).body, b"hello");
    site.ok(&["trust", "ca", "remove", other.to_str().unwrap()]);
    assert_ne!(get(&site, &proxy).status, 200);
}

#[test]
fn a_delegated_proxy_is_presented_to_the_other_server() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let grid = Grid::new(&federation.scratch(), titech);
    grid.copied_for(kek);
    // Programs of GridSite verify the server, and davix looks for the mark of proxies behind another extension.
    grid.write("local", "subjectAltName=DNS:localhost\n");
    grid.issue("hostcert", "/C=JP/O=KEK/CN=localhost", "local", "ca", "2");
    std::fs::rename(grid.path("hostcert.key"), grid.path("hostkey.pem")).unwrap();
    grid.write(
        "proxy",
        "keyUsage=critical,digitalSignature\nproxyCertInfo=critical,language:id-ppl-inheritAll\n",
    );
    let proxy = grid.proxy();
    let proxy = proxy.to_str().unwrap();
    for site in [titech, kek] {
        site.ok(&["map", "add", &format!("dn:{TARO}"), &account(), "--yes"]);
    }
    std::fs::write(titech.root().join("a"), "hello").unwrap();
    let destination = format!("Destination: https://{}/data/b", kek.address);
    let gridsite = ["-X", "COPY", "-H", "Credential: gridsite", "-H", &destination];
    let push = || parse(curl(titech, "/data/a", &[&["--cert", proxy], &gridsite[..]].concat()));
    eventually("the authority is read", || push().status == 302);
    eventually("the other PoP reads it, too", || get(kek, Path::new(proxy)).status == 404);
    eventually("the host certificate is read", || grid.vouches_for(titech, "localhost"));
    let asked = push();
    assert_eq!(asked.header("location"), Some(format!("https://{}/data/a", titech.address).as_str()));
    let endpoint = format!("https://{}/gridsite-delegation", titech.address);
    assert_eq!(asked.header("x-delegate-to"), Some(endpoint.as_str()));

    // davix is asked for a proxy, delegates it and repeats the COPY.
    let (port, capath) = (titech.address.port(), grid.path("certificates"));
    let capath = capath.to_str().unwrap();
    let from = format!("davs://localhost:{port}/data/a");
    let to = format!("davs://{}/data/b", kek.address);
    let copy = ["--cert", proxy, "--capath", capath, "--copy-mode", "push", "-H", "Credential: gridsite"];
    let copied = Command::new("davix-cp").args(copy).args([&from, &to]).output().unwrap();
    assert!(copied.status.success(), "{copied:?}: {}", titech.logged());
    assert_eq!(std::fs::read_to_string(kek.root().join("b")).unwrap(), "hello");
    assert!(kek.logged().contains("Taro Yamada"), "{}", kek.logged());
    let listed = parse(curl(titech, "/gridsite-delegation", &["--cert", proxy]));
    let listed: serde_json::Value = serde_json::from_slice(&listed.body).unwrap();
    assert_eq!(listed["delegations"][0]["id"], "1234", "{listed}");

    // Without a word about it the proxy is used, too, and with a word against it not.
    let plain = ["-X", "COPY", "-H", &destination];
    let with = |more: &[&str]| {
        let answer = parse(curl(titech, "/data/a", &[&["--cert", proxy], &plain[..], more].concat()));
        String::from_utf8(answer.body).unwrap()
    };
    assert!(with(&[]).ends_with("success: Created\n"));
    assert!(with(&["-H", "X-No-Delegate: true"]).contains("failure: "));

    let gridsite_client = |arguments: &[&str]| {
        let mut client = Command::new("htproxyput");
        client.args(["--capath", capath, "--cert", proxy, "--key", proxy]).args(arguments);
        client.arg(format!("https://localhost:{port}/gridsite-delegation")).output().unwrap()
    };
    let ends = succeeded(&gridsite_client(&["--unixtime", "--delegation-id", "1234"]));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(ends.trim().parse::<u64>().unwrap() > now + 3600, "{ends}");
    // The proxies that it makes itself are signed by SHA-1; it does not read what it is told about them, others do.
    let call = |operation: &str, parts: &str| {
        let names = "xmlns:d='http://www.gridsite.org/namespaces/delegation-2'";
        let body = format!(
            "<Body><d:{operation} {names}><delegationID>weak</delegationID>{parts}</d:{operation}></Body>"
        );
        let call = format!("<Envelope xmlns='http://schemas.xmlsoap.org/soap/envelope/'>{body}</Envelope>");
        let answer = parse(curl(titech, "/gridsite-delegation", &["--cert", proxy, "--data-binary", &call]));
        String::from_utf8(answer.body).unwrap()
    };
    let give = |digest: &str| {
        let asked = call("getProxyReq", "");
        let end = "-----END CERTIFICATE REQUEST-----";
        let request = &asked[asked.find("-----BEGIN").unwrap()..asked.find(end).unwrap() + end.len()];
        grid.write("asked.csr", &format!("{request}\n"));
        let sign =
            ["x509", "-req", "-in", "asked.csr", "-CA", "taro.pem", "-CAkey", "taro.key", "-CAcreateserial"];
        let name = format!("{TARO}/CN=77");
        let more = ["-days", "1", "-subj", &name, "-extfile", "proxy", "-out", "given.pem", digest];
        grid.openssl(&[&sign[..], &more].concat());
        let chain = ["given.pem", "taro.pem"].map(|file| std::fs::read_to_string(grid.path(file)).unwrap());
        call("putProxy", &format!("<proxy>{}</proxy>", chain.concat()))
    };
    let refused = give("-sha1");
    assert!(refused.contains("DelegationException") && refused.contains("SHA-1"), "{refused}");
    assert!(!gridsite_client(&["--unixtime", "--delegation-id", "weak"]).status.success());
    let taken = give("-sha256");
    assert!(taken.contains("putProxyResponse"), "{taken}");
    succeeded(&gridsite_client(&["--unixtime", "--delegation-id", "weak"]));
    succeeded(&gridsite_client(&["--destroy", "--delegation-id", "weak"]));
    succeeded(&gridsite_client(&["--destroy", "--delegation-id", "1234"]));
    assert!(!gridsite_client(&["--unixtime", "--delegation-id", "1234"]).status.success());
    assert_eq!(push().status, 302);

    // Garbage gets a fault, and who has no grid certificate delegates nothing.
    for body in ["", "x", "<Envelope/>", &"<a>".repeat(10_000)] {
        let answer = parse(curl(titech, "/gridsite-delegation", &["--cert", proxy, "--data-binary", body]));
        assert_eq!(answer.status, 500, "{}", answer.head);
        assert!(String::from_utf8_lossy(&answer.body).contains("DelegationException"));
    }
    let own = ask(titech, "/data/a", &gridsite);
    assert_eq!((own.status, own.problem()["code"].as_str()), (403, Some("RK-AUTH-14")));
    assert_eq!(parse(curl(titech, "/gridsite-delegation", &["--data-binary", "x"])).status, 401);
}
