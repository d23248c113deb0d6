//! Credentials: a certificate chain and its private key, of the PoP or of a user.
//!
//! A user's credential is one PEM file of mode 600. The key is generated where it is used and never leaves the
//! machine; a login sends a certificate request.

use super::certificate::{Facts, parse_chain, utc};
use super::secret;
use rcgen::{CertificateParams, KeyPair};
use renkei_config::home::{Home, read_text};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// A chain, leaf first, and the leaf's key.
#[derive(Debug)]
pub struct Credential {
    /// The certificates.
    pub chain: Vec<CertificateDer<'static>>,
    /// The private key.
    pub key: PrivateKeyDer<'static>,
}

impl Credential {
    /// The PoP's credential; fails if there is no PoP or the certificate is not valid now.
    pub fn host(home: &Home, now: SystemTime) -> Result<Self, Error> {
        let (certificate, key) = (home.host_cert(), home.host_key());
        let chain = read_text(&certificate, 256 * 1024)?.ok_or_else(|| no_pop(&certificate))?;
        let key = secret::read(&key)?.ok_or_else(|| no_pop(&key))?;
        Self::parse(&chain, &key, &certificate)?.checked(now)
    }

    /// The user's credential; fails if there was no login or the certificate is not valid now.
    pub fn user(home: &Home, now: SystemTime) -> Result<Self, Error> {
        Self::of_user(home)?.checked(now)
    }

    /// The principal of the user's certificate, valid or not.
    pub fn user_named(home: &Home) -> Result<Principal, Error> {
        Self::of_user(home)?.holder()
    }

    fn of_user(home: &Home) -> Result<Self, Error> {
        Self::in_one_file(&home.user_credential())
    }

    /// The credential of the mounts of this directory, else the user's; if neither is valid now, the error of the
    /// first.
    pub fn for_mount(home: &Home, now: SystemTime) -> Result<Self, Error> {
        match Self::of_mount(home)?.map(|mount| mount.checked(now)) {
            None => Self::user(home, now),
            Some(Ok(mount)) => Ok(mount),
            Some(Err(error)) => Self::user(home, now).map_err(|_| error),
        }
    }

    /// The credential of the mounts of this directory, valid or not, if they have one.
    pub fn of_mount(home: &Home) -> Result<Option<Self>, Error> {
        let path = home.mount_credential();
        if path.exists() { Self::in_one_file(&path).map(Some) } else { Ok(None) }
    }

    /// A user's credential in another file than that of the login, if it is there; valid or not.
    pub fn in_file(path: &Path) -> Result<Option<Self>, Error> {
        secret::read(path)?.map(|text| Self::parse(&text, &text, path)).transpose()
    }

    fn in_one_file(path: &Path) -> Result<Self, Error> {
        let text = secret::read(path)?.ok_or_else(|| {
            Error::new(Code::NotLoggedIn, "read credential", path.display(), "there is no such file")
        })?;
        Self::parse(&text, &text, path)
    }

    /// Parses PEM texts and checks that key and leaf match.
    pub fn parse(chain: &str, key: &str, origin: &Path) -> Result<Self, Error> {
        let bad =
            |cause: String| Error::new(Code::BadCertificate, "read credential", origin.display(), cause);
        let chain = parse_chain(chain).map_err(|error| bad(error.cause))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| bad(error.to_string()))?;
        Self::paired(chain, key).map_err(|error| bad(error.cause))
    }

    /// Makes a credential of a chain and a key, which must match.
    pub(crate) fn paired(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, Error> {
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider()).map_err(|error| {
            let cause = format!("key and certificate do not belong together: {error}");
            Error::new(Code::BadCertificate, "read credential", "", cause)
        })?;
        Ok(Credential { chain, key })
    }

    /// The fields of the leaf.
    pub fn facts(&self) -> Result<Facts, Error> {
        Facts::read(&self.chain[0])
    }

    /// The principal of the leaf; a delegated certificate is refused.
    pub fn principal(&self) -> Result<Principal, Error> {
        self.facts()?.principal()
    }

    /// The principal of the leaf, also of a delegated certificate.
    pub fn holder(&self) -> Result<Principal, Error> {
        self.facts()?.holder().map(|(principal, _)| principal)
    }

    fn checked(self, now: SystemTime) -> Result<Self, Error> {
        let facts = self.facts()?;
        let who = self.holder()?;
        if now > facts.not_after {
            let cause = format!("it expired on {}; now it is {}", utc(facts.not_after), utc(now));
            return Err(Error::new(Code::CertificateExpired, "read credential", who, cause));
        }
        if now < facts.not_before {
            let cause = format!("it is valid from {}; now it is {}", utc(facts.not_before), utc(now));
            return Err(Error::new(Code::CertificateNotYetValid, "read credential", who, cause));
        }
        Ok(self)
    }
}

impl Clone for Credential {
    fn clone(&self) -> Self {
        Credential { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// A fresh key and a certificate request for it.
pub struct KeyRequest {
    /// Private key, PEM; secret.
    pub key: String,
    /// Certificate request, PEM; without a name, which the authority sets.
    pub request: String,
}

impl KeyRequest {
    /// Makes a key and its request.
    pub fn generate() -> Result<Self, Error> {
        Self::of(&generate_key()?)
    }

    /// Makes a request for an existing key, in PEM; certificates may precede it.
    pub fn again(text: &str) -> Result<Self, Error> {
        let key = text.find("-----BEGIN PRIVATE KEY").map_or(text, |at| &text[at..]);
        let bad = |error: rcgen::Error| Error::new(Code::BadCertificate, "read key", "", error);
        Self::of(&KeyPair::from_pem(key).map_err(bad)?)
    }

    fn of(key: &KeyPair) -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(key).and_then(|request| request.pem()).map_err(defect)?;
        Ok(KeyRequest { key: key.serialize_pem(), request })
    }
}

/// A fresh ECDSA key on P-256.
pub fn generate_key() -> Result<KeyPair, Error> {
    KeyPair::generate().map_err(defect)
}

fn defect(error: rcgen::Error) -> Error {
    Error::new(Code::Internal, "make key", "", error)
}

fn no_pop(path: &Path) -> Error {
    Error::new(Code::NotInitialised, "read credential", path.display(), "there is no such file")
}

/// The crypto provider in use.
pub fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::{login, now, pop};
    use std::time::Duration;

    #[test]
    fn the_host_credential_is_checked_for_dates() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = pop(dir.path(), "kek");
        let credential = Credential::host(&home, now()).unwrap();
        assert_eq!(credential.principal().unwrap().to_string(), "kek");
        let in_two_years = now() + Duration::from_secs(2 * 365 * 86400);
        let error = Credential::host(&home, in_two_years).unwrap_err();
        assert_eq!(error.code, Code::CertificateExpired);
        assert!(error.cause.contains(" UTC"), "{error}");
        let error = Credential::host(&home, now() - Duration::from_secs(3600)).unwrap_err();
        assert_eq!(error.code, Code::CertificateNotYetValid);
    }

    #[test]
    fn a_credential_needs_a_login_or_a_pop() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        assert_eq!(Credential::user(&home, now()).unwrap_err().code, Code::NotLoggedIn);
        assert_eq!(Credential::host(&home, now()).unwrap_err().code, Code::NotInitialised);
    }

    #[test]
    fn a_request_can_be_repeated_for_the_same_key() {
        let dir = tempfile::tempdir().unwrap();
        let (_, authority) = pop(dir.path(), "kek");
        let first = KeyRequest::generate().unwrap();
        let again = KeyRequest::again(&first.key).unwrap();
        let pem = authority.issue_user("alice", &again.request, 1, now()).unwrap().pem;
        Credential::parse(&pem, &first.key, dir.path()).unwrap();
        assert_eq!(KeyRequest::again("no key").err().unwrap().code, Code::BadCertificate);
    }

    #[test]
    fn key_and_certificate_must_belong_together() {
        let dir = tempfile::tempdir().unwrap();
        let (_, authority) = pop(dir.path(), "kek");
        let (pem, key) = login(&authority, "alice");
        Credential::parse(&pem, &key, dir.path()).unwrap();
        let other = KeyRequest::generate().unwrap().key;
        assert_eq!(Credential::parse(&pem, &other, dir.path()).unwrap_err().code, Code::BadCertificate);
    }
}
