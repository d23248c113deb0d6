//! Revocation lists of authorities: `HASH.r0`, `HASH.r1` ..., as fetch-crl writes them.

use super::certificate::{GridCertificate, time};
use super::name::Name;
use super::signature::{Signed, Unsigned};
use std::collections::HashSet;
use std::time::SystemTime;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// A list whose signature is that of its authority.
#[derive(Debug)]
pub(super) struct RevocationList {
    pub(super) since: SystemTime,
    /// The time by which the next one is due; none if the list does not say.
    pub(super) until: Option<SystemTime>,
    revoked: HashSet<Vec<u8>>,
}

impl RevocationList {
    /// Reads a list, PEM or DER, of an authority.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(super) fn read(
        bytes: &[u8],
        authority: &GridCertificate,
        accepts_weak: bool,
    ) -> Result<Self, String> {
        let decoded = pem::parse(bytes).ok().map(pem::Pem::into_contents);
        let der = decoded.as_deref().unwrap_or(bytes);
        let (_, list) = CertificateRevocationList::from_der(der)
            .map_err(|error| format!("it is no revocation list: {error}"))?;
        if Name::read(list.issuer()).is_none_or(|issuer| issuer != authority.subject) {
            return Err(format!("it is of {}", list.issuer()));
        }
        if authority.key_usage.is_some_and(|usage| !usage.signs_lists) {
            return Err("the authority's key is not for revocation lists".into());
        }
        let signed = Signed::read(der).ok_or("it is no revocation list")?;
        signed.verify(&authority.spki, accepts_weak).map_err(|error| match error {
            Unsigned::Weak(digest) => format!("it is signed with {digest}"),
            Unsigned::Wrong => "its signature is not one of the authority".to_owned(),
        })?;
        // A part of a list, or one for others' certificates, says nothing of the rest.
        if let Some(extension) =
            list.extensions().iter().find(|one| one.critical && !is_known(one.parsed_extension()))
        {
            return Err(format!("its critical extension {} is not known", extension.oid.to_id_string()));
        }
        let revoked = list
            .iter_revoked_certificates()
            .map(|one| super::der::trimmed(one.raw_serial()).to_vec())
            .collect();
        Ok(RevocationList { since: time(list.last_update()), until: list.next_update().map(time), revoked })
    }

    pub(super) fn has(&self, serial: &[u8]) -> bool {
        self.revoked.contains(serial)
    }

    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        self.until.is_some_and(|until| until < now)
    }
}

fn is_known(extension: &ParsedExtension<'_>) -> bool {
    matches!(extension, ParsedExtension::CRLNumber(_) | ParsedExtension::AuthorityKeyIdentifier(_))
}
