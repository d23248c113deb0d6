//! The certificate that HTTP clients get, and a check of it as by a browser.
//!
//! The administrator may configure a certificate that browsers accept. It is loaded when the PoP starts and whenever
//! its files change; if the files are invalid, the previous one stays in use. A client that asks for a host that the
//! certificate does not name gets the site's own, so that monitoring by the site's authority keeps working.
//! `renkei/1` always uses the site's own. The host certificate of a grid site is a second one of that kind: clients that
//! offer HTTP/2 are browsers and see the web certificate first, others see the host certificate first.

use super::certificate::{Facts, hosts, parse_chain};
use super::credential::Credential;
use super::tls::{ChainJudge, ServerVerifier};
use super::{secret, tls};
use renkei_config::Web;
use renkei_config::home::read_text;
use renkei_core::error::{Code, Error};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, ServerConfig, WantsVerifier};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Largest chain accepted.
const MAX_CHAIN_BYTES: u64 = 256 * 1024;
/// Timeout for a PoP to present its certificate in the check.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);

/// The web certificate in use.
#[derive(Debug)]
pub struct WebCredential {
    key: Arc<CertifiedKey>,
    /// The hosts that it names.
    pub hosts: Vec<String>,
    /// The end of its validity.
    pub not_after: SystemTime,
    /// Its serial.
    pub serial: String,
}

impl WebCredential {
    fn load(chain: &Path, key: &Path) -> Result<Self, Error> {
        let missing = |path: &Path| {
            Error::new(Code::ConfigInvalid, "read web certificate", path.display(), "there is no such file")
        };
        let text = read_text(chain, MAX_CHAIN_BYTES)?.ok_or_else(|| missing(chain))?;
        let secret = secret::read(key)?.ok_or_else(|| missing(key))?;
        let credential = Credential::parse(&text, &secret, chain)?;
        let (facts, hosts) = (credential.facts()?, hosts(&credential.chain[0])?);
        let Facts { not_after, serial, .. } = facts;
        Ok(WebCredential { key: tls::certified(&credential)?, hosts, not_after, serial })
    }

    /// Whether it is valid for this host, a name or an address.
    pub fn is_for(&self, host: &str) -> bool {
        let leaf = self.key.cert.first().map(webpki::EndEntityCert::try_from);
        let (Some(Ok(leaf)), Ok(name)) = (leaf, ServerName::try_from(host)) else { return false };
        leaf.verify_is_valid_for_subject_name(&name).is_ok()
    }

    /// Whether it names an address: browsers that open one send no SNI.
    fn is_for_addresses(&self) -> bool {
        self.hosts.iter().any(|host| host.parse::<IpAddr>().is_ok())
    }
}

/// The hosts that the certificate in a file names; none where it cannot be read.
pub fn hosts_in_file(path: &Path) -> Vec<String> {
    let text = read_text(path, MAX_CHAIN_BYTES).ok().flatten().unwrap_or_default();
    let chain = parse_chain(&text).unwrap_or_default();
    chain.first().and_then(|leaf| hosts(leaf).ok()).unwrap_or_default()
}

/// The identity of a state of the two files, to detect changes.
type Mark = (Web, Vec<Option<(SystemTime, u64, u64)>>);

#[derive(Debug, Default)]
struct State {
    mark: Option<Mark>,
    used: Option<Arc<WebCredential>>,
    trouble: Option<Error>,
}

/// The certificate for HTTP clients, with its configuration and reloading.
#[derive(Debug, Default)]
pub struct WebCertificate(Mutex<State>);

impl WebCertificate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// The certificate in use, if there is one.
    pub fn used(&self) -> Option<Arc<WebCredential>> {
        self.lock().used.clone()
    }

    /// The reason why the configured one cannot be used, if it cannot.
    pub fn trouble(&self) -> Option<Error> {
        self.lock().trouble.clone()
    }

    /// Reloads the files if they changed, or could not be used the last time.
    pub fn look(&self, web: &Web) {
        let mark = mark(web);
        {
            let state = self.lock();
            if state.trouble.is_none() && state.mark.as_ref() == Some(&mark) {
                return;
            }
        }
        // Without the lock: handshakes do not wait for the disk.
        let files = web.files();
        let loaded =
            files.and_then(|files| files.map(|(chain, key)| WebCredential::load(chain, key)).transpose());
        let mut state = self.lock();
        match loaded {
            Ok(used) => {
                if let Some(used) = &used {
                    tracing::info!(hosts = used.hosts.join(", "), "the web certificate was read");
                }
                (state.used, state.trouble) = (used.map(Arc::new), None);
            }
            Err(error) => {
                if state.trouble.as_ref() != Some(&error) {
                    tracing::error!(%error, "the web certificate cannot be used; the one before stays");
                }
                state.trouble = Some(error);
            }
        }
        state.mark = Some(mark);
    }
}

fn mark(web: &Web) -> Mark {
    let of = |path: &Path| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len(), data.ino()))
    };
    (web.clone(), vec![of(&web.certificate), of(&web.key)])
}

/// The server side of HTTP for clients that offer HTTP/2: browsers, which would ask their user for a certificate if one
/// were requested. Of `others` the first certificate that fits is shown.
///
/// # Errors
/// `TlsFailed`.
pub fn http_config(own: &Credential, others: &[&Arc<WebCertificate>]) -> Result<Arc<ServerConfig>, Error> {
    let mut config = http_builder()?.with_no_client_auth().with_cert_resolver(chosen(own, others)?);
    config.alpn_protocols = tls::HTTP_ALPN.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}

/// The server side of HTTP for all other clients: a certificate is requested, and not required. It is verified as that
/// of a `renkei/1` client, after the handshake. Of `others` the first certificate that fits is shown.
///
/// # Errors
/// `TlsFailed`.
pub fn http_config_with_clients(
    own: &Credential,
    others: &[&Arc<WebCertificate>],
) -> Result<Arc<ServerConfig>, Error> {
    let builder = http_builder()?.with_client_cert_verifier(tls::optional_client());
    let mut config = builder.with_cert_resolver(chosen(own, others)?);
    config.alpn_protocols = vec![tls::HTTP_ALPN[1].to_vec()];
    Ok(Arc::new(config))
}

fn http_builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, Error> {
    ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| Error::new(Code::TlsFailed, "prepare TLS", "", error))
}

fn chosen(own: &Credential, others: &[&Arc<WebCertificate>]) -> Result<Arc<Chosen>, Error> {
    let others = others.iter().map(|one| Arc::clone(one)).collect();
    Ok(Arc::new(Chosen { own: tls::certified(own)?, others }))
}

/// Resolves the first of the configured certificates that names the host that a client asks for, else the site's own.
#[derive(Debug)]
struct Chosen {
    own: Arc<CertifiedKey>,
    others: Vec<Arc<WebCertificate>>,
}

impl ResolvesServerCert for Chosen {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_meant = |web: &Arc<WebCredential>| match hello.server_name() {
            Some(host) => web.is_for(host),
            None => web.is_for_addresses(),
        };
        let meant = self.others.iter().find_map(|one| one.used().filter(is_meant));
        Some(meant.map_or_else(|| self.own.clone(), |one| one.key.clone()))
    }
}

// ---- the check as by a browser ---------------------------------------------------------------------------------------

/// The certificate that a PoP presents to browsers.
pub struct SeenCertificate {
    /// The certificates, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The reason why a browser with the authorities of this machine would warn, if it would.
    pub doubt: Option<String>,
}

/// Performs the handshake of a browser that opens `https://HOST:...` at an address.
///
/// # Errors
/// `SiteUnreachable` if nothing answers there, `TlsFailed`.
pub fn see_as_browser(address: SocketAddr, host: &str) -> Result<SeenCertificate, Error> {
    let lost =
        |error: std::io::Error| Error::new(Code::SiteUnreachable, "ask for certificate", address, error);
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| Error::new(Code::TlsFailed, "ask for certificate", host, error))?;
    let verifier = ServerVerifier::new(Judge::new());
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| Error::new(Code::TlsFailed, "prepare TLS", "", error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut tls = ClientConnection::new(Arc::new(config), name)
        .map_err(|error| Error::new(Code::TlsFailed, "prepare TLS", "", error))?;
    let mut sock = TcpStream::connect_timeout(&address, SHOWN_WITHIN).map_err(lost)?;
    sock.set_read_timeout(Some(SHOWN_WITHIN)).map_err(lost)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut sock).map_err(lost)?;
    }
    let chain = tls.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned());
    Ok(SeenCertificate { chain: chain.collect(), doubt: verifier.chain.doubt() })
}

/// Verifies as a browser does, records the verdict and accepts everything: only the certificate is wanted, no data is
/// sent.
#[derive(Debug)]
struct Judge {
    browser: Option<Arc<WebPkiServerVerifier>>,
    doubt: Mutex<Option<String>>,
}

impl Judge {
    fn new() -> Self {
        let provider = tls::provider();
        let browser =
            WebPkiServerVerifier::builder_with_provider(Arc::new(tls::web_roots()), provider).build();
        Judge { browser: browser.ok(), doubt: Mutex::default() }
    }

    fn doubt(&self) -> Option<String> {
        self.doubt.lock().expect("no thread panics while it holds the lock: a panic aborts").clone()
    }
}

impl ChainJudge for Judge {
    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        // Browsers ignore expired intermediates, such as the cross-certificate after an overlap.
        let others: Vec<_> = others.iter().filter(|other| !is_over(other, now)).cloned().collect();
        let judged = match &self.browser {
            Some(browser) => browser.verify_server_cert(leaf, &others, name, &[], now).map_err(words),
            None => Err("this machine knows no authorities of the web".to_owned()),
        };
        *self.doubt.lock().expect("no thread panics while it holds the lock: a panic aborts") = judged.err();
        Ok(())
    }
}

fn is_over(certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
    Facts::read(certificate)
        .is_ok_and(|facts| facts.not_after < UNIX_EPOCH + Duration::from_secs(now.as_secs()))
}

/// A verdict in words for people.
fn words(error: rustls::Error) -> String {
    use rustls::CertificateError::*;
    match error {
        rustls::Error::InvalidCertificate(UnknownIssuer) => {
            "no authority that browsers know signed it".into()
        }
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => "it has expired".into(),
        rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => {
            "it is not valid yet".into()
        }
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => {
            "it is for another host".into()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::rotation;
    use crate::identity::tests::pop_at;
    use std::os::unix::fs::OpenOptionsExt;

    fn write(path: &Path, text: &str) {
        let file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path);
        std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
    }

    fn pair(web: &Web, host: &str) {
        let made = rcgen::generate_simple_self_signed([host.to_owned()]).unwrap();
        write(&web.certificate, &made.cert.pem());
        write(&web.key, &made.signing_key.serialize_pem());
    }

    #[test]
    fn a_finished_overlap_does_not_report_a_certificate_as_expired() {
        let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let (home, first) = pop_at(dir.path(), "kek", now);
        rotation::rotate(&home, Duration::from_secs(60), now).unwrap();
        rotation::finish(&home, now).unwrap();
        let chain = Credential::host(&home, now).unwrap().chain;
        assert!(is_over(&chain[1], UnixTime::now()), "what is shown behind it is over");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(first.certificate().clone()).unwrap();
        let browser = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), tls::provider()).build();
        let judge = Judge { browser: browser.ok(), ..Judge::new() };
        let name = ServerName::try_from("kek.example").unwrap();
        judge.judge(&chain[0], &chain[1..], &name, UnixTime::now()).unwrap();
        assert_eq!(judge.doubt().unwrap(), "no authority that browsers know signed it");
    }

    #[test]
    fn an_unusable_key_pair_leaves_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
        let web = Web { certificate, key, ..Web::default() };
        let one = WebCertificate::default();
        let hosts = || one.used().map(|used| used.hosts.clone()).unwrap_or_default();
        one.look(&web);
        assert!(one.used().is_none() && one.trouble().unwrap().code == Code::ConfigInvalid);
        pair(&web, "*.kek.example");
        one.look(&web);
        assert_eq!((hosts(), one.trouble()), (vec!["*.kek.example".to_owned()], None));
        assert!(one.used().unwrap().is_for("pop.kek.example") && !one.used().unwrap().is_for("kek.example"));
        write(&web.key, &rcgen::KeyPair::generate().unwrap().serialize_pem());
        one.look(&web);
        assert_eq!(hosts(), ["*.kek.example"]);
        assert_eq!(one.trouble().unwrap().code, Code::BadCertificate);
        pair(&web, "other.example");
        one.look(&web);
        assert_eq!((hosts(), one.trouble()), (vec!["other.example".to_owned()], None));
        one.look(&Web::default());
        assert!(one.used().is_none() && one.trouble().is_none());
    }
}
