//! Signatures of certificates, revocation lists and attribute certificates, which have one outer form.
//!
//! The library that judges chains of sites refuses issuers that are no authority, which proxies have; here only its
//! algorithms are used. A digest that is no longer safe is told from a wrong signature.

use super::der::{BIT_STRING, SEQUENCE, sequence};
use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, UnparsedPublicKey};

/// Object identifiers of signatures with digests that are no longer safe, as they are encoded.
const WEAK: [(&[u8], &str); 6] = [
    (SHA1_RSA, "SHA-1"),
    (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04", "MD5"),
    (b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x02", "MD2"),
    (b"\x06\x07\x2a\x86\x48\xce\x3d\x04\x01", "SHA-1"),
    (b"\x06\x07\x2a\x86\x48\xce\x38\x04\x03", "SHA-1"),
    (b"\x06\x05\x2b\x0e\x03\x02\x1d", "SHA-1"),
];
/// sha1WithRSAEncryption.
const SHA1_RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05";

/// The reason why a signature is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsigned {
    /// The digest is no longer safe.
    Weak(&'static str),
    /// The signature is not one of the key, or of a kind that is not known.
    Wrong,
}

/// A signed structure: certificate, revocation list or attribute certificate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed<'a> {
    /// The bytes that are signed.
    pub(super) message: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Reads the outer form, which fills `der`.
    pub(super) fn read(der: &'a [u8]) -> Option<Self> {
        let mut outer = sequence(der)?;
        let message = outer.take(SEQUENCE)?.raw;
        let algorithm = outer.take(SEQUENCE)?.content;
        let signature = bits(outer.take(BIT_STRING)?.content)?;
        outer.is_empty().then_some(Signed { message, algorithm, signature })
    }

    /// Verifies it by a public key (SubjectPublicKeyInfo, DER).
    pub(super) fn verify(&self, spki: &[u8], accepts_weak: bool) -> Result<(), Unsigned> {
        let (kind, key) = public_key(spki).ok_or(Unsigned::Wrong)?;
        if let Some((oid, name)) = WEAK.iter().find(|(oid, _)| self.algorithm.starts_with(oid)) {
            return match accepts_weak && *oid == SHA1_RSA {
                true => self.verify_sha1(key),
                false => Err(Unsigned::Weak(name)),
            };
        }
        let fits = |algorithm: &&&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
            algorithm.signature_alg_id().as_ref() == self.algorithm
                && algorithm.public_key_alg_id().as_ref() == kind
        };
        let mut fitting = webpki::ALL_VERIFICATION_ALGS.iter().filter(fits);
        match fitting.any(|one| one.verify_signature(key, self.message, self.signature).is_ok()) {
            true => Ok(()),
            false => Err(Unsigned::Wrong),
        }
    }

    fn verify_sha1(&self, key: &[u8]) -> Result<(), Unsigned> {
        let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, key);
        key.verify(self.message, self.signature).map_err(|_| Unsigned::Wrong)
    }
}

/// Algorithm and key of a SubjectPublicKeyInfo.
fn public_key(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut content = sequence(spki)?;
    let kind = content.take(SEQUENCE)?.content;
    Some((kind, bits(content.take(BIT_STRING)?.content)?))
}

/// The bytes of a bit string of whole bytes.
fn bits(content: &[u8]) -> Option<&[u8]> {
    content.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
}

/// Whether a structure has the outer form, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(super) fn is_well_formed(der: &[u8]) -> bool {
    Signed::read(der).is_some_and(|signed| !signed.message.is_empty())
}
