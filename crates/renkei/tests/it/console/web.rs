//! The web certificate: set, reloaded, refused, and reported by `renkei console`.

use crate::console::{PATIENCE, get};
use crate::federation::{Federation, Site};
use crate::wire::records::TrustsAll;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use renkei_net::identity::tls::provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use sha2::{Digest, Sha256};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const HOST: &str = "pop.kek.example";

/// An authority of the web, as this test has it.
struct Web {
    authority: CertifiedIssuer<'static, KeyPair>,
    certificate: PathBuf,
    key: PathBuf,
}

impl Web {
    fn new(site: &Site) -> Web {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(site.dir().join("web-authority.pem"), authority.pem()).unwrap();
        Web { authority, certificate: site.dir().join("web.pem"), key: site.dir().join("web.key") }
    }

    /// Writes a fresh certificate and key; gives the digest of the certificate.
    fn issue(&self) -> Vec<u8> {
        let key = KeyPair::generate().unwrap();
        let made =
            CertificateParams::new(vec![HOST.into()]).unwrap().signed_by(&key, &self.authority).unwrap();
        fs::write(&self.certificate, made.pem()).unwrap();
        self.write_key(&key);
        Sha256::digest(made.der()).to_vec()
    }

    fn write_key(&self, key: &KeyPair) {
        fs::write(&self.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&self.key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// Names the files in the configuration.
    fn set(&self, site: &Site) {
        let path = site.dir().join("config.toml");
        let text = fs::read_to_string(&path).unwrap();
        let (certificate, key) = (self.certificate.display(), self.key.display());
        fs::write(&path, format!("{text}\n[web]\ncertificate = '{certificate}'\nkey = '{key}'\n")).unwrap();
    }
}

/// The digest of the certificate for a protocol and a host name.
fn shown(site: &Site, host: &str, protocol: &[u8]) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsAll))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut sock = TcpStream::connect(site.address).unwrap();
    sock.set_read_timeout(Some(PATIENCE)).unwrap();
    while tls.peer_certificates().is_none() {
        tls.complete_io(&mut sock).unwrap();
    }
    Sha256::digest(&tls.peer_certificates().unwrap()[0]).to_vec()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn browsers_see_the_web_certificate_and_it_is_reloaded() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    let web = Web::new(kek);
    let own = shown(kek, HOST, b"http/1.1");
    let first = web.issue();
    web.set(kek);
    wait_until("it is shown", || shown(kek, HOST, b"h2") == first);
    // Clients that ask for another host, or speak renkei/1, see the site's own certificate; renkei continues to work.
    assert_eq!(shown(kek, "kek.internal", b"http/1.1"), own);
    assert_eq!(shown(kek, "127.0.0.1", b"http/1.1"), own);
    assert_eq!(shown(kek, HOST, b"renkei/1"), own);
    assert!(titech.ok(&["ls", &kek.root_place()]).is_empty());
    let pid = kek.pid();
    let second = web.issue();
    wait_until("a renewed one is shown", || shown(kek, HOST, b"http/1.1") == second);
    // A key that does not belong to it: the former pair stays, and the administrator gets a condition.
    web.write_key(&KeyPair::generate().unwrap());
    let told = || {
        let (_, status) = kek.json(&["status"]);
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["what"] == "configuration")
    };
    wait_until("a condition is told", || told().is_some());
    assert_eq!(told().unwrap()["name"], "web");
    assert!(get(kek, "/healthz", "").body.contains("\"warning\""));
    assert_eq!(shown(kek, HOST, b"http/1.1"), second);
    let third = web.issue();
    wait_until("the repaired certificate is shown", || {
        shown(kek, HOST, b"http/1.1") == third && told().is_none()
    });
    assert_eq!(kek.pid(), pid);
}

#[test]
fn a_bad_key_pair_at_the_start_does_not_stop_the_pop() {
    let mut federation = Federation::two();
    let web = Web::new(&federation.kek);
    web.set(&federation.kek);
    federation.kek.stop();
    federation.kek.restart();
    let kek = &federation.kek;
    assert_eq!(get(kek, "/console", "").status, 401);
    wait_until("a condition is told", || get(kek, "/healthz", "").body.contains("\"configuration\""));
}

#[test]
fn the_link_explains_the_browser_warning_if_there_is_one() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let hex = |digest: &[u8], between: &str| {
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(between)
    };
    let said = |site: &Site, arguments: &[&str]| {
        let output = site.renkei(arguments);
        assert!(output.status.success());
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let own = shown(kek, "127.0.0.1", b"http/1.1");
    for (site, arguments) in [(kek, &["console"][..]), (&federation.titech, &["console", "kek"])] {
        let [link, help] = said(site, arguments);
        assert!(link.starts_with(&format!("https://{}/console/login?t=", kek.address)), "{link}");
        assert!(help.contains(&hex(&own, ":").to_uppercase()) && help.contains(&hex(&own, "")), "{help}");
        assert!(help.contains("The browser will warn") && help.contains("web.certificate"), "{help}");
    }
    let web = Web::new(kek);
    let digest = web.issue();
    web.set(kek);
    wait_until("it is shown", || shown(kek, HOST, b"http/1.1") == digest);
    let mut command = kek.command();
    command.args(["--json", "console"]).env("SSL_CERT_FILE", kek.dir().join("web-authority.pem"));
    let output = command.output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["warning"], serde_json::Value::Null, "{told}");
    assert_eq!(told["fingerprint"], hex(&digest, ":").as_str(), "{told}");
    let named = format!("https://{HOST}:{}/console/login?t=", kek.address.port());
    assert!(told["url"].as_str().unwrap().starts_with(&named), "{told}");
}
