//! The fields of a certificate in a chain of the grid. Nothing here is a decision about trust.

use super::der::{INTEGER, OID, SEQUENCE, sequence, small, trimmed};
use super::name::Name;
use super::signature::{Signed, Unsigned};
use crate::identity::certificate::parse;
use renkei_core::error::{Code, Error};
use rustls::pki_types::CertificateDer;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::extensions::{ParsedExtension, X509Extension};
use x509_parser::prelude::{ASN1Time, X509Certificate, X509Version};

/// Largest certificate accepted: one with many attributes.
pub(super) const MAX_BYTES: usize = 256 * 1024;
/// ProxyCertInfo (RFC 3820, 3.8), and the extension of drafts before it.
const PROXY: &str = "1.3.6.1.5.5.7.1.14";
const DRAFT_PROXY: &str = "1.3.6.1.4.1.3536.1.222";
/// The attribute certificates of VOMS.
const VOMS: &str = "1.3.6.1.4.1.8005.100.100.5";
/// Encoded languages of proxy policies: inheritAll and independent (RFC 3820, 3.8.2), limited (Globus).
const INHERIT_ALL: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x15\x01";
const INDEPENDENT: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x15\x02";
const LIMITED: &[u8] = b"\x2b\x06\x01\x04\x01\x9b\x50\x01\x01\x01\x09";

/// The rights that a proxy has of its issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    InheritAll,
    Limited,
    Independent,
    Other,
}

/// The form of a proxy certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyForm {
    /// By RFC 3820, with the number of proxies that may follow.
    Rfc3820 { below: Option<u32>, language: Language },
    /// Of a draft before the RFC (Globus 3).
    Draft,
    /// Named `CN=proxy` or `CN=limited proxy` (Globus 2).
    Legacy,
}

/// A certificate in a chain of the grid.
#[derive(Clone, Debug)]
pub struct GridCertificate {
    pub(super) der: CertificateDer<'static>,
    /// The subject.
    pub subject: Name,
    /// The issuer.
    pub issuer: Name,
    /// The serial, without leading zero bytes.
    pub(super) serial: Vec<u8>,
    /// Start of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
    /// SubjectPublicKeyInfo, DER.
    pub(super) spki: Vec<u8>,
    pub(super) is_authority: bool,
    pub(super) is_version_1: bool,
    pub(super) path_length: Option<u32>,
    /// Whether its key may sign data, and certificates; none without restriction.
    pub(super) key_usage: Option<KeyUse>,
    /// Whether it is for clients of TLS; none without restriction.
    pub(super) for_clients: Option<bool>,
    pub(super) proxy: Option<ProxyForm>,
    pub(super) has_other_names: bool,
    /// A critical extension that is not known here.
    pub(super) unknown: Option<String>,
    /// The content of the extension of VOMS.
    pub(super) attributes: Option<Vec<u8>>,
}

/// The uses of a key that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyUse {
    pub(super) signs: bool,
    pub(super) certifies: bool,
    pub(super) signs_lists: bool,
}

impl GridCertificate {
    /// Reads a certificate.
    ///
    /// # Errors
    /// `BadCertificate`, `ProxyRefused` for a malformed extension of proxies.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, Error> {
        if der.len() > MAX_BYTES {
            return Err(bad("it is too large"));
        }
        let read = parse(der)?;
        let name = |name| Name::read(name).ok_or_else(|| bad("its name has too many parts"));
        let mut certificate = GridCertificate {
            der: der.clone().into_owned(),
            subject: name(read.subject())?,
            issuer: name(read.issuer())?,
            serial: trimmed(read.raw_serial()).to_vec(),
            not_before: time(read.validity().not_before),
            not_after: time(read.validity().not_after),
            spki: read.public_key().raw.to_vec(),
            is_authority: false,
            is_version_1: read.version() == X509Version::V1,
            path_length: None,
            key_usage: None,
            for_clients: None,
            proxy: None,
            has_other_names: false,
            unknown: None,
            attributes: None,
        };
        certificate.read_extensions(&read)?;
        if certificate.proxy.is_none() && certificate.has_legacy_name() {
            certificate.proxy = Some(ProxyForm::Legacy);
        }
        Ok(certificate)
    }

    fn read_extensions(&mut self, read: &X509Certificate<'_>) -> Result<(), Error> {
        let extensions = read.extensions();
        let twice = |(index, one): (usize, &X509Extension<'_>)| {
            extensions[..index].iter().any(|other| other.oid == one.oid)
        };
        if extensions.iter().enumerate().any(twice) {
            return Err(bad("it has an extension twice"));
        }
        extensions.iter().try_for_each(|extension| self.read_extension(extension))
    }

    fn read_extension(&mut self, extension: &X509Extension<'_>) -> Result<(), Error> {
        let oid = extension.oid.to_id_string();
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(constraints) => {
                self.is_authority = constraints.ca;
                self.path_length = constraints.path_len_constraint;
            }
            ParsedExtension::KeyUsage(usage) => {
                let (signs, certifies, signs_lists) =
                    (usage.digital_signature(), usage.key_cert_sign(), usage.crl_sign());
                self.key_usage = Some(KeyUse { signs, certifies, signs_lists });
            }
            ParsedExtension::ExtendedKeyUsage(usage) => {
                self.for_clients = Some(usage.any || usage.client_auth)
            }
            ParsedExtension::SubjectAlternativeName(_) | ParsedExtension::IssuerAlternativeName(_) => {
                self.has_other_names = true;
            }
            ParsedExtension::ParseError { .. } => {
                return Err(bad(format!("its extension {oid} is malformed")));
            }
            ParsedExtension::CertificatePolicies(_)
            | ParsedExtension::NSCertType(_)
            | ParsedExtension::CRLDistributionPoints(_) => {}
            _ => match oid.as_str() {
                PROXY => self.proxy = Some(proxy_form(extension)?),
                DRAFT_PROXY => self.proxy = Some(ProxyForm::Draft),
                VOMS => self.attributes = Some(extension.value.to_vec()),
                _ if extension.critical => self.unknown = Some(oid),
                _ => {}
            },
        }
        Ok(())
    }

    /// Whether it is named as proxies of Globus 2 are, below its issuer.
    fn has_legacy_name(&self) -> bool {
        let name = self.subject.common_name_below(&self.issuer);
        matches!(name, Some(b"proxy" | b"limited proxy"))
    }

    /// Whether it was signed by a key.
    pub(super) fn verify_by(&self, spki: &[u8], accepts_weak: bool) -> Result<(), Unsigned> {
        Signed::read(&self.der).ok_or(Unsigned::Wrong)?.verify(spki, accepts_weak)
    }

    /// Whether issuer and subject are one.
    pub(super) fn is_own_issuer(&self) -> bool {
        self.subject == self.issuer
    }

    /// Whether its key may sign certificates, as that of an authority; some roots are older than the mark of those.
    pub(super) fn may_certify(&self) -> bool {
        let is_old_root = self.is_version_1 && self.is_own_issuer();
        is_old_root || self.is_authority && self.key_usage.is_none_or(|usage| usage.certifies)
    }
}

/// Reads ProxyCertInfo: `SEQUENCE { INTEGER OPTIONAL, SEQUENCE { language, policy OPTIONAL } }`.
fn proxy_form(extension: &X509Extension<'_>) -> Result<ProxyForm, Error> {
    let refused = |cause: &str| Error::new(Code::ProxyRefused, "read certificate", "proxy", cause);
    if !extension.critical {
        return Err(refused("its extension is not critical"));
    }
    parse_proxy_info(extension.value).ok_or_else(|| refused("its extension is malformed"))
}

/// The content of ProxyCertInfo.
pub(super) fn parse_proxy_info(value: &[u8]) -> Option<ProxyForm> {
    let mut content = sequence(value)?;
    let below = match content.take(INTEGER) {
        Some(number) => Some(small(number.content)?),
        None => None,
    };
    let language = match content.enter(SEQUENCE)?.take(OID)?.content {
        INHERIT_ALL => Language::InheritAll,
        LIMITED => Language::Limited,
        INDEPENDENT => Language::Independent,
        _ => Language::Other,
    };
    content.is_empty().then_some(ProxyForm::Rfc3820 { below, language })
}

pub(super) fn time(time: ASN1Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

pub(super) fn bad(cause: impl std::fmt::Display) -> Error {
    Error::new(Code::BadCertificate, "read certificate", "", cause)
}
