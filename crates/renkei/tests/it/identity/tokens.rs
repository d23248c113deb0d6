//! Tokens: macaroons of the PoP, and JSON web tokens of an issuer that serves its keys over HTTPS.

use crate::federation::{Site, account as account_name};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

/// A token issuer on this machine. It serves its keys until it is dropped.
pub(crate) struct Issuer {
    pub(crate) url: String,
    /// Its web authority, for `SSL_CERT_FILE`.
    pub(crate) authority: PathBuf,
    key: EncodingKey,
    ends: Arc<AtomicBool>,
    address: std::net::SocketAddr,
    devices: Arc<Mutex<Devices>>,
}

/// The device flow (RFC 8628) of the issuer: the answers that its token endpoint gives, in order, and the forms it got.
#[derive(Default)]
struct Devices {
    answers: VecDeque<Value>,
    asked: Vec<String>,
}

impl Issuer {
    pub(crate) fn start(dir: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!("https://localhost:{}", address.port());
        let web_key = rcgen::KeyPair::generate().unwrap();
        let web =
            rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&web_key).unwrap();
        let authority = dir.join("issuer.pem");
        std::fs::write(&authority, web.pem()).unwrap();
        let key = EncodingKey::from_ec_der(&rcgen::KeyPair::generate().unwrap().serialize_der());
        let mut public = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        public.common.key_id = Some("k1".into());
        let keys = serde_json::to_string(&JwkSet { keys: vec![public] }).unwrap();
        let metadata = json!({
            "issuer": url, "jwks_uri": format!("{url}/keys"), "token_endpoint": format!("{url}/token"),
            "device_authorization_endpoint": format!("{url}/authorise"),
        });
        let prompt = json!({
            "device_code": "d-1", "user_code": "AB-CD", "verification_uri": format!("{url}/device"),
            "expires_in": 30, "interval": 1,
        });
        let pages = Pages { metadata: metadata.to_string(), keys, prompt: prompt.to_string() };
        let secret = PrivateKeyDer::try_from(web_key.serialize_der()).unwrap();
        let tls = ServerConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into());
        let tls = tls.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let tls = Arc::new(tls.with_single_cert(vec![web.der().clone()], secret).unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let devices = Arc::new(Mutex::new(Devices::default()));
        let served = devices.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                let connection = ServerConnection::new(tls.clone()).unwrap();
                let _ = serve(StreamOwned::new(connection, stream.unwrap()), &pages, &served);
            }
        });
        Issuer { url, authority, key, ends, address, devices }
    }

    /// Sets the answers of the token endpoint.
    pub(crate) fn answer_devices(&self, answers: &[Value]) {
        self.devices.lock().unwrap().answers = answers.iter().cloned().collect();
    }

    /// The forms that were posted.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.devices.lock().unwrap().asked.clone()
    }

    /// A token with these claims beside the usual ones.
    pub(crate) fn token(&self, site: &Site, claims: Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut all = json!({
            "iss": self.url, "sub": "s-1", "aud": format!("https://{}", site.address), "wlcg.ver": "1.0",
            "exp": now + 600, "nbf": now - 60, "iat": now - 60, "jti": "1",
        });
        for (name, value) in claims.as_object().unwrap() {
            all[name] = value.clone();
        }
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::ES256) };
        encode(&header, &all, &self.key).unwrap()
    }

    /// Lets the programs of a site trust the issuer's web server.
    pub(crate) fn trusted_by(&self, site: &mut Site) {
        let file: &'static str = Box::leak(self.authority.to_str().unwrap().into());
        site.environment.push(("SSL_CERT_FILE", file));
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
    }
}

/// The documents of an issuer.
struct Pages {
    metadata: String,
    keys: String,
    prompt: String,
}

fn serve(mut stream: impl Read + Write, pages: &Pages, devices: &Mutex<Devices>) -> std::io::Result<()> {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    while !is_whole(&text) {
        match stream.read(&mut part)? {
            0 => return Ok(()),
            count => text.extend_from_slice(&part[..count]),
        }
    }
    let text = String::from_utf8_lossy(&text);
    let mut devices = devices.lock().unwrap();
    if let Some((_, form)) = text.split_once("\r\n\r\n").filter(|(_, form)| !form.is_empty()) {
        devices.asked.push(form.into());
    }
    let (status, body) = match text.split(' ').nth(1).unwrap_or_default() {
        "/.well-known/openid-configuration" => ("200 OK", pages.metadata.clone()),
        "/keys" => ("200 OK", pages.keys.clone()),
        "/authorise" => ("200 OK", pages.prompt.clone()),
        "/token" => {
            let pending = || json!({"error": "authorization_pending"});
            let answer = devices.answers.pop_front().unwrap_or_else(pending);
            let status = if answer["error"].is_null() { "200 OK" } else { "400 Bad Request" };
            (status, answer.to_string())
        }
        _ => ("404 Not Found", String::new()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Whether a request has come with its body.
fn is_whole(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}

#[test]
fn tokens_of_an_issuer_are_explained_and_refused_with_codes() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), "kek");
    let issuer = Issuer::start(dir.path());
    issuer.trusted_by(&mut site);
    let account = account_name();
    let token = issuer.token(&site, json!({"scope": "openid storage.read:/run7 storage.create:/in"}));
    assert_eq!(code(&site, &["issuer", "test", &token]), "RK-AUTH-35");
    site.ok(&["issuer", "add", "wlcg", &issuer.url, "--prefix", "/data/wlcg", "--account", &account]);
    let text = site.ok(&["issuer", "test", &token]);
    assert!(text.contains(&format!("s-1 of {} is {account} here", issuer.url)), "{text}");
    assert!(text.contains("may read, list /data/wlcg/run7 and all below it"), "{text}");
    assert!(text.contains("may create /data/wlcg/in and all below it"), "{text}");
    for (claims, expected) in [
        (json!({"exp": 1}), "RK-AUTH-31"),
        (json!({"nbf": 9_000_000_000_u64}), "RK-AUTH-33"),
        (json!({"aud": "https://elsewhere"}), "RK-AUTH-34"),
        (json!({"scope": "openid"}), "RK-AUTH-7"),
        (json!({"scope": "storage.read"}), "RK-AUTH-30"),
    ] {
        assert_eq!(code(&site, &["issuer", "test", &issuer.token(&site, claims)]), expected);
    }
    let [head, claims, _] = token.split('.').collect::<Vec<_>>()[..] else { panic!("{token}") };
    let signature = "A".repeat(86);
    assert_eq!(code(&site, &["issuer", "test", &format!("{head}.{claims}.{signature}")]), "RK-AUTH-36");
    // What is known of an issuer stays good while it is down.
    drop(issuer);
    site.ok(&["issuer", "test", &token]);
    let pattern = format!("token:{}#s-1", issuer_url(&text));
    site.ok(&["map", "deny", &pattern]);
    assert_eq!(code(&site, &["issuer", "test", &token]), "RK-AUTH-26");
    site.ok(&["map", "remove", &pattern]);
    site.ok(&["issuer", "remove", "wlcg"]);
    assert_eq!(code(&site, &["issuer", "test", &token]), "RK-AUTH-35");
}

/// The code of a command that fails.
fn code(site: &Site, arguments: &[&str]) -> String {
    let (status, told) = site.json(arguments);
    assert_ne!(status, 0, "{told}");
    told["error"]["code"].as_str().unwrap().into()
}

fn issuer_url(text: &str) -> &str {
    text.split(' ').nth(2).unwrap()
}

#[test]
fn a_macaroon_says_what_it_allows() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    let token =
        site.ok(&["token", "kek:/data/run7", "--may", "read,create", "--for", "2h", "--ip", "192.0.2.0/24"]);
    let text = site.ok(&["token", "inspect", token.trim()]);
    let account = account_name();
    assert!(text.starts_with(&format!("in the name of {account}@kek at kek\n")), "{text}");
    assert!(text.contains("may read, create /data/run7 and all below it"), "{text}");
    assert!(text.contains("  ip:192.0.2.0/24\n") && text.contains("  before:20"), "{text}");
    assert_eq!(code(&site, &["token", "kek:/data/run7", "--for", "8d"]), "RK-CONF-6");
    assert_eq!(code(&site, &["token", "kek:/data/run7", "--ip", "here"]), "RK-AUTH-30");
    assert_eq!(code(&site, &["token", "inspect", "AgEDa2Vr"]), "RK-AUTH-30");
}
