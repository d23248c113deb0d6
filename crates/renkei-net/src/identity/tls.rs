//! TLS: the only module that builds rustls configurations.
//!
//! TLS 1.3 only, AES-128-GCM first (the fastest where the CPU has AES). On `renkei/1` both sides present a
//! certificate, and the handshake itself checks one thing only: possession of the certificate's private key. The
//! certificate is verified right after the handshake by [`super::verify::verify_peer`], which both sides must call
//! before they act on any message of the peer. A refusal then travels as a coded error with cause and remedy, where a
//! TLS alert could say no more than "bad certificate" - and an expired certificate would look like a broken network.
//!
//! Guarantees: no anonymous peer passes a `renkei/1` handshake; resumed connections (data streams) carry the identity
//! of the first. Non-goal: HTTP, see [`super::web`]; no client certificate is requested there.

use super::certificate::public_key;
use super::credential::Credential;
pub use super::credential::provider;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// ALPN of daemons and the command line.
pub const RENKEI_ALPN: &[u8] = renkei_core::wire::ALPN;
/// ALPN of HTTP, preferred first.
pub const HTTP_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Tickets sent per handshake: each resumes one data stream, and streams bring tickets of their own.
const TICKETS: usize = 4;
/// Size of the client's session cache, in peers.
const REMEMBERED_PEERS: usize = 256;

/// The server side of `renkei/1`.
pub fn server_config(credential: &Credential) -> Result<Arc<ServerConfig>, Error> {
    server_config_with(credential, None)
}

/// The same for a site that may be dialled by a former name, with its certificate under that (SNI).
pub fn server_config_with(
    credential: &Credential,
    former: Option<&(String, Credential)>,
) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let verifier = Arc::new(ProofOfPossession::new(true));
    let own = certified(credential)?;
    let former = former.map(|(name, former)| Ok((dns_name(name), certified(former)?))).transpose()?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(ByName { own, former }));
    config.alpn_protocols = vec![RENKEI_ALPN.to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(failed)?;
    config.send_tls13_tickets = TICKETS;
    // Data streams seal their records themselves (docs/design/0008).
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// The client side of `renkei/1`. Keep it for all streams of a session: it caches the tickets.
pub fn client_config(credential: &Credential) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let verifier = ServerVerifier::new(AnyChain);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .and_then(|builder| {
            let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
            builder.with_client_auth_cert(credential.chain.clone(), credential.key.clone_key())
        })
        .map_err(failed)?;
    config.alpn_protocols = vec![RENKEI_ALPN.to_vec()];
    config.resumption = Resumption::in_memory_sessions(REMEMBERED_PEERS);
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// The usual files of the system's web authorities; `SSL_CERT_FILE` names another file.
const WEB_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The web authorities of this machine.
pub(super) fn web_roots() -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    let named = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let mut files = named.into_iter().chain(WEB_AUTHORITIES.map(Into::into));
    if let Some(text) = files.find_map(|file| std::fs::read(file).ok()) {
        let all = pem::parse_many(text).unwrap_or_default().into_iter();
        roots.add_parsable_certificates(all.map(|one| CertificateDer::from(one.into_contents())));
    }
    roots
}

/// The client side for web servers, verified by the machine's web authorities.
pub fn web_config() -> Result<Arc<ClientConfig>, Error> {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    Ok(Arc::new(builder.with_root_certificates(web_roots()).with_no_client_auth()))
}

/// The same for HTTP/1.1, with further authorities: given ones, and those in the PEM files of a folder.
///
/// # Errors
/// `ConfigInvalid` if the folder cannot be read.
pub fn web_config_with(
    authorities: &[CertificateDer<'static>],
    folder: Option<&Path>,
) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = web_roots();
    roots.add_parsable_certificates(authorities.iter().cloned());
    if let Some(folder) = folder {
        roots.add_parsable_certificates(authorities_in(folder)?);
    }
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Largest file of authorities that is read.
const MAX_AUTHORITIES_BYTES: u64 = 4 << 20;

/// The certificates in a folder as grid sites have it; files of other kinds, as lists of revoked ones, are passed over.
fn authorities_in(folder: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bad = |error| Error::new(Code::ConfigInvalid, "read authorities", folder.display(), error);
    let mut found = Vec::new();
    for item in std::fs::read_dir(folder).map_err(bad)? {
        let path = item.map_err(bad)?.path();
        let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let is_small =
            path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_AUTHORITIES_BYTES);
        if matches!(kind, "pem" | "crt" | "0") && is_small {
            let all = pem::parse_many(std::fs::read(&path).unwrap_or_default()).unwrap_or_default();
            let certificates = all.into_iter().filter(|one| one.tag() == "CERTIFICATE");
            found.extend(certificates.map(|one| CertificateDer::from(one.into_contents())));
        }
    }
    Ok(found)
}

/// The server name (SNI) to ask for: the key of the session cache, not verified.
pub fn server_name(site: &SiteName) -> ServerName<'static> {
    server_name_of(&Principal::Host(site.clone()))
}

/// Presents the certificate under the site's former name to clients that ask for it by SNI.
#[derive(Debug)]
struct ByName {
    own: Arc<CertifiedKey>,
    former: Option<(String, Arc<CertifiedKey>)>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let former = self.former.iter().find(|(name, _)| hello.server_name() == Some(name));
        Some(former.map_or(&self.own, |(_, key)| key).clone())
    }
}

/// A credential in the form of rustls.
pub(super) fn certified(credential: &Credential) -> Result<Arc<CertifiedKey>, Error> {
    let (chain, key) = (credential.chain.clone(), credential.key.clone_key());
    CertifiedKey::from_der(chain, key, &provider()).map(Arc::new).map_err(failed)
}

/// The server name of a site's PoPs. A site's name may end with `-`, a DNS label may not.
fn dns_name(site: &str) -> String {
    format!("{site}x.renkei.internal")
}

/// As [`server_name`], of a PoP or an agent: each has its own entry in the session cache.
pub fn server_name_of(peer: &Principal) -> ServerName<'static> {
    let name = match peer {
        Principal::Agent { site, storage } => format!("{storage}x.{}", dns_name(site.as_str())),
        peer => dns_name(peer.site().as_str()),
    };
    ServerName::try_from(name)
        .or_else(|_| ServerName::try_from("renkei.internal"))
        .expect("a constant legal name")
}

/// Presents a chain of any kind: that of a proxy has an extension by which libraries refuse it, and the server judges it.
#[derive(Debug)]
pub(crate) struct Presented(Arc<CertifiedKey>);

impl Presented {
    /// A chain with its key.
    ///
    /// # Errors
    /// `TlsFailed`.
    pub(crate) fn new(credential: &Credential) -> Result<Self, Error> {
        let key = provider().key_provider.load_private_key(credential.key.clone_key()).map_err(failed)?;
        Ok(Presented(Arc::new(CertifiedKey::new(credential.chain.clone(), key))))
    }
}

impl ResolvesClientCert for Presented {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A configuration that presents a chain of any kind to the server, and shares no sessions with others.
///
/// # Errors
/// `TlsFailed`.
pub fn presenting(config: &ClientConfig, credential: &Credential) -> Result<Arc<ClientConfig>, Error> {
    let mut config = config.clone();
    config.client_auth_cert_resolver = Arc::new(Presented::new(credential)?);
    config.resumption = Resumption::in_memory_sessions(8);
    Ok(Arc::new(config))
}

fn failed(error: rustls::Error) -> Error {
    Error::new(Code::TlsFailed, "prepare TLS", "", error)
}

/// Verifies that the peer has the key of its certificate; see the module's introduction for the chain.
#[derive(Debug)]
struct ProofOfPossession {
    algorithms: WebPkiSupportedAlgorithms,
    /// Whether a client must present a certificate.
    is_mandatory: bool,
}

impl ProofOfPossession {
    fn new(is_mandatory: bool) -> Self {
        ProofOfPossession { algorithms: provider().signature_verification_algorithms, is_mandatory }
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".into()))
    }

    /// Verifies by the key alone: the library refuses certificates with extensions that it does not know, as proxies
    /// have.
    fn verify(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let bad = |_| rustls::Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
        let key = SubjectPublicKeyInfoDer::from(public_key(certificate).map_err(bad)?);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

/// The judgement of a server's chain during the handshake.
pub(super) trait ChainJudge: Debug + Send + Sync {
    /// Accepts the chain or gives the error that ends the handshake.
    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error>;
}

/// Accepts every chain: the caller verifies it after the handshake.
#[derive(Debug)]
struct AnyChain;

impl ChainJudge for AnyChain {
    fn judge(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: UnixTime,
    ) -> Result<(), rustls::Error> {
        Ok(())
    }
}

/// A client's verifier of servers: TLS 1.3, possession of the key, and a judgement of the chain.
#[derive(Debug)]
pub(super) struct ServerVerifier<J> {
    proof: ProofOfPossession,
    /// The judgement, which may keep its verdict.
    pub(super) chain: J,
}

impl<J: ChainJudge> ServerVerifier<J> {
    pub(super) fn new(chain: J) -> Arc<Self> {
        Arc::new(ServerVerifier { proof: ProofOfPossession::new(true), chain })
    }
}

impl<J: ChainJudge> ServerCertVerifier for ServerVerifier<J> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.chain.judge(leaf, others, name, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        ProofOfPossession::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.proof.verify(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.proof.algorithms.supported_schemes()
    }
}

/// A server's verifier of clients that may have no certificate.
pub(super) fn optional_client() -> Arc<dyn ClientCertVerifier> {
    Arc::new(ProofOfPossession::new(false))
}

impl ClientCertVerifier for ProofOfPossession {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // No hints: a client has one certificate, and the list would grow with the federation.
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
