//! Attribute certificates of VOMS (RFC 5755): the groups and roles that a virtual organisation says a user has.
//!
//! They are in an extension of the proxy, signed by the organisation's server. An LSC file, `VO/HOST.lsc` in the vomsdir,
//! names the server's certificate and its authority. An attribute certificate counts if its holder is the user of the
//! chain, it is in date, and its signature is one of that server. One that does not count is left out, with the reason.

use super::certificate::GridCertificate;
use super::der::{
    BIT_STRING, Element, GENERALIZED_TIME, INTEGER, OCTET_STRING, OID, Reader, SEQUENCE, SET, context,
    sequence, trimmed,
};
use super::lsc::LscFiles;
use super::name::Name;
use super::signature::{Signed, Unsigned};
use crate::identity::certificate::utc;
use renkei_core::identity::grid_name::canonical_fqan;
use rustls::pki_types::CertificateDer;
use std::time::SystemTime;
use x509_parser::prelude::{ASN1Time, FromDer};

/// Most attribute certificates of a proxy, attributes of one, and certificates in one.
const MAX_PARTS: usize = 64;
const MAX_FQANS: usize = 1024;
/// Encoded identifiers: attributes and certificates of VOMS, and extensions that need no action (authority key, no
/// revocation).
const FQANS: &[u8] = b"\x2b\x06\x01\x04\x01\xbe\x45\x64\x64\x04";
const CERTIFICATES: &[u8] = b"\x2b\x06\x01\x04\x01\xbe\x45\x64\x64\x0a";
const HARMLESS: [&[u8]; 2] = [b"\x55\x1d\x23", b"\x55\x1d\x38"];

/// Verifies the certificate of a server, with others that came with it, to an installed authority.
pub(super) type ServerCheck<'a> = dyn Fn(&GridCertificate, &[GridCertificate]) -> Result<(), String> + 'a;

/// An attribute certificate.
pub(super) struct AttributeCertificate<'a> {
    signed: Signed<'a>,
    holder_issuer: Name,
    holder_serial: &'a [u8],
    issuer: Name,
    since: SystemTime,
    /// The end of its validity.
    pub(super) until: SystemTime,
    /// The virtual organisation and the host of its server.
    pub(super) vo: String,
    pub(super) host: String,
    fqans: Vec<String>,
    certificates: Vec<CertificateDer<'a>>,
    has_unknown: bool,
}

/// Reads the extension; none if it is malformed.
pub(super) fn parse(extension: &[u8]) -> Option<Vec<AttributeCertificate<'_>>> {
    let parts = sequence(extension)?.all(MAX_PARTS)?;
    let lists = parts.iter().map(|part| Reader(part.content).all(MAX_PARTS)).collect::<Option<Vec<_>>>()?;
    lists.into_iter().flatten().map(|element| AttributeCertificate::parse(&element)).collect()
}

impl<'a> AttributeCertificate<'a> {
    fn parse(element: &Element<'a>) -> Option<Self> {
        let signed = Signed::read(element.raw)?;
        let mut info = sequence(signed.message)?;
        info.take(INTEGER)?;
        let mut holder = info.enter(SEQUENCE)?.enter(context(0))?;
        let holder_issuer = directory_name(holder.enter(SEQUENCE)?)?;
        let holder_serial = trimmed(holder.take(INTEGER)?.content);
        let issuer = issuer(&mut info)?;
        info.take(SEQUENCE)?;
        info.take(INTEGER)?;
        let mut validity = info.enter(SEQUENCE)?;
        let (since, until) = (instant(&mut validity)?, instant(&mut validity)?);
        let attributes = info.enter(SEQUENCE)?;
        info.take(BIT_STRING);
        let mut read = AttributeCertificate {
            signed,
            holder_issuer,
            holder_serial,
            issuer,
            since,
            until,
            vo: String::new(),
            host: String::new(),
            fqans: Vec::new(),
            certificates: Vec::new(),
            has_unknown: false,
        };
        read.read_attributes(attributes)?;
        if let Some(extensions) = info.enter(SEQUENCE) {
            read.read_extensions(extensions)?;
        }
        Some(read)
    }

    /// Attributes: `SEQUENCE { type, SET OF SEQUENCE { [0] policyAuthority, SEQUENCE OF OCTET STRING } }` each.
    fn read_attributes(&mut self, attributes: Reader<'a>) -> Option<()> {
        for attribute in attributes.all(MAX_PARTS)? {
            let mut attribute = Reader(attribute.content);
            if attribute.take(OID)?.content != FQANS {
                continue;
            }
            for value in attribute.enter(SET)?.all(MAX_PARTS)? {
                let mut value = Reader(value.content);
                if let Some(mut authority) = value.enter(context(0)) {
                    // A uniformResourceIdentifier of GeneralNames: VO://HOST:PORT.
                    let uri = std::str::from_utf8(authority.any()?.content).ok()?;
                    let (vo, place) = uri.split_once("://")?;
                    self.vo = vo.to_owned();
                    self.host = place.split(':').next().unwrap_or_default().to_owned();
                }
                for fqan in value.enter(SEQUENCE)?.all(MAX_FQANS)? {
                    self.fqans.push(canonical_fqan(std::str::from_utf8(fqan.content).ok()?)?);
                }
            }
        }
        Some(())
    }

    fn read_extensions(&mut self, extensions: Reader<'a>) -> Option<()> {
        for extension in extensions.all(MAX_PARTS)? {
            let mut extension = Reader(extension.content);
            let oid = extension.take(OID)?.content;
            let is_critical = extension.take(0x01).is_some_and(|flag| flag.content != [0]);
            let value = extension.take(OCTET_STRING)?.content;
            match oid {
                CERTIFICATES => {
                    let mut lists = sequence(value)?;
                    let list = lists.enter(SEQUENCE)?.all(MAX_PARTS)?;
                    self.certificates = list.iter().map(|one| CertificateDer::from(one.raw)).collect();
                }
                known if HARMLESS.contains(&known) => {}
                // Targets, too: this PoP has no name that they could mean.
                _ => self.has_unknown |= is_critical,
            }
        }
        Some(())
    }

    /// Whether it counts for a user; `verify_server` verifies the certificate of the server to its authority.
    ///
    /// # Errors
    /// The reason why it does not.
    pub(super) fn judge(
        &self,
        user: &GridCertificate,
        files: &LscFiles,
        at: SystemTime,
        accepts_weak: bool,
        verify_server: &ServerCheck<'_>,
    ) -> Result<Vec<String>, String> {
        if self.has_unknown {
            return Err("it has a critical extension that is not known here".into());
        }
        // Servers write the user's own name in place of the issuer, too, and so libvomsapi accepts both.
        let is_named = self.holder_issuer == user.issuer || self.holder_issuer == user.subject;
        if !is_named || self.holder_serial != user.serial {
            return Err("its holder is another certificate".into());
        }
        if at > self.until {
            return Err(format!("it expired on {}", utc(self.until)));
        }
        if at + super::chain::CLOCKS < self.since {
            return Err(format!("it is valid from {}", utc(self.since)));
        }
        let read = |der| GridCertificate::read(der).map_err(|error| error.cause);
        let certificates = self.certificates.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let [server, others @ ..] = &certificates[..] else {
            return Err("it has no certificate of its server".into());
        };
        if server.subject != self.issuer {
            return Err(format!(
                "it was issued by {}, and has the certificate of {}",
                self.issuer, server.subject
            ));
        }
        files.check(&self.vo, &self.host, &server.subject, &server.issuer)?;
        self.signed.verify(&server.spki, accepts_weak).map_err(|error| match error {
            Unsigned::Weak(digest) => format!("it is signed with {digest}"),
            Unsigned::Wrong => "its signature is not one of its server".to_owned(),
        })?;
        verify_server(server, others)?;
        Ok(self.own_fqans())
    }

    /// The attributes that are of the organisation of its server.
    fn own_fqans(&self) -> Vec<String> {
        let root = format!("/{}", self.vo);
        let is_own = |fqan: &&String| {
            fqan.strip_prefix(&root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // In a pattern `*` has a meaning.
        self.fqans.iter().filter(is_own).filter(|fqan| !fqan.contains('*')).cloned().collect()
    }
}

/// The issuer: `[0] { GeneralNames ... }`, or GeneralNames in the first version.
fn issuer(info: &mut Reader<'_>) -> Option<Name> {
    match info.enter(context(0)) {
        Some(mut second) => directory_name(second.enter(SEQUENCE)?),
        None => directory_name(info.enter(SEQUENCE)?),
    }
}

/// The one directory name of GeneralNames.
fn directory_name(names: Reader<'_>) -> Option<Name> {
    let all = names.all(1)?;
    let [name] = &all[..] else { return None };
    (name.tag == context(4)).then(|| Name::from_der(name.content)).flatten()
}

fn instant(validity: &mut Reader<'_>) -> Option<SystemTime> {
    let (_, time) = ASN1Time::from_der(validity.take(GENERALIZED_TIME)?.raw).ok()?;
    Some(super::certificate::time(time))
}
