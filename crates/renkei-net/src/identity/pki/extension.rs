//! The extensions of the certificates that a site issues: the scope of a delegation, the sponsor of an agent, the grant
//! of a mount.

use super::certificate::{serial_bytes, serial_text};
use rcgen::CustomExtension;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use std::time::SystemTime;
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::X509Certificate;

/// The extension with the scope: below 2.25, where random UUIDs are free to use; its halves are two arcs, because
/// software holds an arc in 64 bits.
pub(crate) const SCOPE_OID: [u64; 4] = [2, 25, 0x5c1d_0e2b_7a9f_4c36, 0x9e4b_61d8_03f7_a5c2];

/// The extension with user and parent: below 2.25, as that of a delegation.
pub(crate) const AGENT_OID: [u64; 4] = [2, 25, 0x1f6b_93c4_58ad_4e07, 0x8d20_7e5b_c916_a34f];

/// The extension with the grant's number and the mount's name: below 2.25, as that of a delegation.
pub(crate) const MOUNT_OID: [u64; 4] = [2, 25, 0x7d02_45be_19c3_4a60, 0xb1f8_3c5d_a7e6_902d];

/// The extension of a certificate for evidence of another kind: below 2.25, as that of a delegation.
pub(crate) const BORROWED_OID: [u64; 4] = [2, 25, 0x3a9c_71d5_e204_4b8f, 0xa67e_50c1_9d38_f2b4];

/// Longest name of a mount.
const MAX_NAME: usize = 64;

/// The user for whom an agent's certificate is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sponsor {
    /// A user of the site.
    pub user: Principal,
    /// Serial of the certificate that authenticated the user.
    pub parent: String,
}

/// One mount that was granted a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The mount's name; usually that of its machine.
    pub name: String,
    /// The user as whom it uses files.
    pub user: Principal,
    /// A serial that no certificate has: the parent of all certificates issued for it.
    pub number: String,
    /// The time of the grant.
    pub since: SystemTime,
}

/// A user who proved to be one by evidence of another kind: a token, a proxy, a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borrower {
    /// A user of the site.
    pub user: Principal,
    /// The rights of the evidence, if it is restricted.
    pub scope: Option<Scope>,
    /// The number of the evidence, or the serial of the certificate behind it: with it all certificates are revoked.
    pub parent: String,
    /// The kind of the evidence, such as `token`.
    pub kind: &'static str,
}

/// The extension with parent and scope. Not critical, since today's libraries reject unknown critical extensions
/// unconditionally; the kind of name beside it keeps out programs that do not know it.
pub(crate) fn scope_extension(scope: &Scope, parent: &str) -> CustomExtension {
    let parent = serial_bytes(parent);
    let length = u8::try_from(parent.len()).expect("a serial is short");
    CustomExtension::from_oid_content(
        &SCOPE_OID,
        octet_string(&[vec![length], parent, scope.encode()].concat()),
    )
}

/// Parent and scope of a certificate, if it is a delegated one.
///
/// # Errors
/// `BadScope` if the extension is malformed, or is there twice.
pub(crate) fn read_scope(certificate: &X509Certificate<'_>) -> Result<Option<(String, Scope)>, Error> {
    let oid = Oid::from(&SCOPE_OID).expect("the arcs are legal");
    let mut found = certificate.extensions().iter().filter(|extension| extension.oid == oid);
    let Some(extension) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(bad_scope("there are two"));
    }
    let content = octets(extension.value).ok_or_else(|| bad_scope("not an octet string"))?;
    let split = split_serial(content);
    let (parent, scope) = split.ok_or_else(|| bad_scope("it names no parent"))?;
    Ok(Some((serial_text(parent), Scope::decode(scope)?)))
}

/// The error of a scope that makes its certificate invalid.
pub(crate) fn bad_scope(cause: &str) -> Error {
    Error::new(Code::BadScope, "read scope", "certificate", cause)
}

/// DER of an octet string of at most 65,535 bytes.
pub(crate) fn octet_string(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a scope is short");
    let [high, low] = length.to_be_bytes();
    let head = match length {
        0..=0x7f => vec![OCTET_STRING, low],
        0x80..=0xff => vec![OCTET_STRING, 0x81, low],
        _ => vec![OCTET_STRING, 0x82, high, low],
    };
    [head, bytes.to_vec()].concat()
}

/// Tag of an octet string (X.690, 8.7).
pub(crate) const OCTET_STRING: u8 = 4;

/// The content of an octet string that fills `der` and is encoded as by [`octet_string`].
pub(crate) fn octets(der: &[u8]) -> Option<&[u8]> {
    let start = match der.get(1)? {
        length @ 0..=0x7f => der.len().checked_sub(usize::from(*length))?,
        0x81 => 3,
        0x82 => 4,
        _ => return None,
    };
    let content = der.get(start..).filter(|content| content.len() <= usize::from(u16::MAX))?;
    (octet_string(content) == der).then_some(content)
}

/// A serial number with its length before it, and the rest.
fn split_serial(content: &[u8]) -> Option<(&[u8], &[u8])> {
    match content.split_first() {
        // RFC 5280, 4.1.2.2: at most 20 octets.
        Some((&length @ 1..=20, rest)) => rest.split_at_checked(usize::from(length)),
        _ => None,
    }
}

/// The extension with user and parent.
pub(crate) fn agent_extension(sponsor: &Sponsor) -> CustomExtension {
    let parent = serial_bytes(&sponsor.parent);
    let length = u8::try_from(parent.len()).expect("a serial is short");
    let content = [vec![length], parent, sponsor.user.to_string().into_bytes()].concat();
    CustomExtension::from_oid_content(&AGENT_OID, octet_string(&content))
}

/// User and parent of a certificate, if it is an agent's.
///
/// # Errors
/// `BadCertificate` if the extension is malformed, or is there twice.
pub(crate) fn read_agent(certificate: &X509Certificate<'_>) -> Result<Option<Sponsor>, Error> {
    let oid = Oid::from(&AGENT_OID).expect("the arcs are legal");
    let mut found = certificate.extensions().iter().filter(|extension| extension.oid == oid);
    let Some(extension) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(bad_agent("it says twice for whom it is"));
    }
    let content = octets(extension.value).ok_or_else(|| bad_agent("for whom it is, is no octet string"))?;
    let split = split_serial(content);
    let (parent, user) = split.ok_or_else(|| bad_agent("it names no parent"))?;
    let user = std::str::from_utf8(user).ok().and_then(|text| Principal::parse(text).ok());
    let user = user.filter(|user| user.user_name().is_some()).ok_or_else(|| bad_agent("it names no user"))?;
    Ok(Some(Sponsor { user, parent: serial_text(parent) }))
}

fn bad_agent(cause: &str) -> Error {
    Error::new(Code::BadCertificate, "read certificate", "agent", cause)
}

/// The extension with number and name.
pub(crate) fn mount_extension(number: &str, name: &str) -> CustomExtension {
    let number = serial_bytes(number);
    let length = u8::try_from(number.len()).expect("a serial is short");
    let content = [vec![length], number, name.as_bytes().to_vec()].concat();
    CustomExtension::from_oid_content(&MOUNT_OID, octet_string(&content))
}

/// Number and name of a certificate, if it is a mount's.
///
/// # Errors
/// `BadCertificate` if the extension is malformed, or is there twice.
pub(crate) fn read_mount(certificate: &X509Certificate<'_>) -> Result<Option<(String, String)>, Error> {
    let oid = Oid::from(&MOUNT_OID).expect("the arcs are legal");
    let mut found = certificate.extensions().iter().filter(|extension| extension.oid == oid);
    let Some(extension) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(bad_mount("it says twice for which mount it is"));
    }
    let content =
        octets(extension.value).ok_or_else(|| bad_mount("for which mount it is, is no octet string"))?;
    let split = split_serial(content);
    let (number, name) = split.ok_or_else(|| bad_mount("it has no number of a grant"))?;
    let name = std::str::from_utf8(name).ok().filter(|name| check_name(name).is_ok());
    let name = name.ok_or_else(|| bad_mount("it names no mount"))?;
    Ok(Some((serial_text(number), name.to_owned())))
}

/// The extension with number and kind of the evidence.
pub(crate) fn borrowed_extension(parent: &str, kind: &str) -> CustomExtension {
    let parent = serial_bytes(parent);
    let length = u8::try_from(parent.len()).expect("a serial is short");
    let content = [vec![length], parent, kind.as_bytes().to_vec()].concat();
    CustomExtension::from_oid_content(&BORROWED_OID, octet_string(&content))
}

/// Number and kind of the evidence that a certificate was given for, if it was.
///
/// # Errors
/// `BadCertificate` if the extension is malformed, or is there twice.
pub(crate) fn read_borrowed(certificate: &X509Certificate<'_>) -> Result<Option<(String, String)>, Error> {
    let oid = Oid::from(&BORROWED_OID).expect("the arcs are legal");
    let mut found = certificate.extensions().iter().filter(|extension| extension.oid == oid);
    let Some(extension) = found.next() else { return Ok(None) };
    let bad =
        || Error::new(Code::BadCertificate, "read certificate", "user", "the evidence behind it is unclear");
    if found.next().is_some() {
        return Err(bad());
    }
    let (parent, kind) = octets(extension.value).and_then(split_serial).ok_or_else(bad)?;
    let is_kind =
        |kind: &&str| (1..=MAX_NAME).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_lowercase());
    let kind = std::str::from_utf8(kind).ok().filter(is_kind).ok_or_else(bad)?;
    Ok(Some((serial_text(parent), kind.to_owned())))
}

fn bad_mount(cause: &str) -> Error {
    Error::new(Code::BadCertificate, "read certificate", "mount", cause)
}

/// Checks the name of a mount.
///
/// # Errors
/// `UsageInvalid`.
pub fn check_name(name: &str) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if (1..=MAX_NAME).contains(&name.len()) && name.chars().all(good) && !name.starts_with(['-', '.']) {
        return Ok(());
    }
    let cause = format!("a mount is named by 1 to {MAX_NAME} of A-Z, a-z, 0-9, `.`, `_` and `-`");
    Err(Error::new(Code::UsageInvalid, "name mount", name, cause))
}
