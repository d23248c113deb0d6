//! Proxies that a user delegates to this PoP: the key is made here, the user signs a proxy for it.

use super::chain;
use super::{GridTrust, GridUser};
use crate::identity::certificate::parse_chain;
use crate::identity::credential::{Credential, generate_key};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};
use renkei_core::error::{Code, Error};
use rustls::pki_types::PrivateKeyDer;
use std::time::SystemTime;

const OP: &str = "take proxy";

/// A key that waits for its proxy.
pub struct ProxyKey(KeyPair);

/// A proxy with its key.
pub struct DelegatedProxy {
    /// The chain and the key.
    pub credential: Credential,
    /// The name of its user, in slash form.
    pub dn: String,
    /// The attributes that count, in order.
    pub fqans: Vec<String>,
    /// Whether it is a limited proxy.
    pub is_limited: bool,
    /// The time at which the first certificate of the chain expires.
    pub until: SystemTime,
}

impl ProxyKey {
    /// Makes a key.
    ///
    /// # Errors
    /// `Internal`.
    pub fn generate() -> Result<Self, Error> {
        generate_key().map(ProxyKey)
    }

    /// The certificate request for it, PEM; the signer sets the name.
    ///
    /// # Errors
    /// `Internal`.
    pub fn request(&self) -> Result<String, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.0).and_then(|request| request.pem());
        request.map_err(|error| Error::new(Code::Internal, "make request", "", error))
    }

    /// Joins the key with the proxy that was signed for it, given with the certificates above it as PEM, leaf first.
    ///
    /// # Errors
    /// Those of [`GridTrust::judge`]; `ProxyRefused` for a certificate of another key, or one that is no proxy.
    pub fn join(&self, pem: &str, trust: &GridTrust, at: SystemTime) -> Result<DelegatedProxy, Error> {
        let chain = parse_chain(pem)?;
        let user = trust.judge(&chain, at)?;
        let refused = |cause: &str| Err(Error::new(Code::ProxyRefused, OP, &user.dn, cause));
        let leaf = chain::read(&chain[..1])?.remove(0);
        if leaf.proxy.is_none() {
            return refused("it is no proxy");
        }
        if leaf.spki != self.0.subject_public_key_info() {
            return refused("it is for another key than that of the request");
        }
        let key = PrivateKeyDer::try_from(self.0.serialize_der())
            .map_err(|error| Error::new(Code::Internal, OP, &user.dn, error))?;
        let GridUser { dn, fqans, is_limited, until, .. } = user;
        Ok(DelegatedProxy { credential: Credential { chain, key }, dn, fqans, is_limited, until })
    }
}
