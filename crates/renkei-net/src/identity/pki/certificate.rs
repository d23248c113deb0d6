//! Parsing of certificates: names, dates, serial. Nothing here is a decision about trust.

use super::extension;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

/// How far certificates are backdated.
pub(crate) const BACKDATED: Duration = Duration::from_secs(5 * 60);

/// The parsed fields of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The URI names of renkei's scheme, unchecked.
    pub names: Vec<String>,
    /// Lower-case hexadecimal without leading zero bytes.
    pub serial: String,
    /// The issuer's name, for messages.
    pub issuer: String,
    /// Start of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
    /// The scope to which a delegated certificate is restricted.
    pub scope: Option<Scope>,
    /// Of a delegated certificate or an agent's: the serial of the certificate by which it was requested; of a
    /// mount's: the number of its grant.
    pub parent: Option<String>,
    /// The name of the mount, if it is a mount's.
    pub mount: Option<String>,
    /// The user for whom an agent's certificate was made.
    pub sponsor: Option<Principal>,
    /// The kind of the evidence for which a user got it, such as `token`, if not for a login.
    pub borrowed: Option<String>,
}

impl Facts {
    /// Reads a certificate.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, Error> {
        let certificate = parse(der)?;
        let (parent, scope) = extension::read_scope(&certificate)?.unzip();
        let sponsor = extension::read_agent(&certificate)?;
        let (granted, mount) = extension::read_mount(&certificate)?.unzip();
        let (evidence, borrowed) = extension::read_borrowed(&certificate)?.unzip();
        Ok(Facts {
            names: renkei_names(&certificate)?,
            serial: serial_text(certificate.raw_serial()),
            issuer: certificate.issuer().to_string(),
            not_before: to_system_time(certificate.validity().not_before),
            not_after: to_system_time(certificate.validity().not_after),
            is_authority: certificate.is_ca(),
            scope,
            parent: parent
                .or_else(|| sponsor.as_ref().map(|sponsor| sponsor.parent.clone()))
                .or(granted)
                .or(evidence),
            borrowed,
            mount,
            sponsor: sponsor.map(|sponsor| sponsor.user),
        })
    }

    /// The end of validity of a parsed certificate.
    pub(crate) fn read_end(certificate: &X509Certificate<'_>) -> SystemTime {
        to_system_time(certificate.validity().not_after)
    }

    /// The one principal the certificate names; a delegated certificate, which is not for every use, is refused.
    pub fn principal(&self) -> Result<Principal, Error> {
        let principal = Principal::parse_uri(self.name()?).map_err(|error| bad(error.cause))?;
        if matches!(principal, Principal::Agent { .. }) != self.sponsor.is_some() {
            return Err(bad("the name of an agent and for whom it is belong together"));
        }
        if self.borrowed.is_some() && principal.user_name().is_none() {
            return Err(bad("it was given for evidence of a user, and names none"));
        }
        match self.scope {
            None => Ok(principal),
            Some(_) => Err(extension::bad_scope("it has a scope and the name of a certificate without one")),
        }
    }

    /// The one principal the certificate names, and the scope of a delegated one.
    pub fn holder(&self) -> Result<(Principal, Option<&Scope>), Error> {
        let Ok(principal) = Principal::parse_delegated_uri(self.name()?) else {
            return Ok((self.principal()?, None));
        };
        match &self.scope {
            Some(scope) => Ok((principal, Some(scope))),
            None => Err(extension::bad_scope("it has none")),
        }
    }

    /// Whether two thirds of its lifetime have passed: time to renew it where that needs no interaction.
    pub fn is_late(&self, now: SystemTime) -> bool {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_after.duration_since(now).unwrap_or_default() < life / 3
    }

    fn name(&self) -> Result<&str, Error> {
        match &self.names[..] {
            [name] => Ok(name),
            [] => Err(bad("it names no renkei principal")),
            _ => Err(bad("it names more than one renkei principal")),
        }
    }
}

/// The host names and addresses that a certificate is for.
///
/// # Errors
/// `BadCertificate`.
pub fn hosts(der: &CertificateDer<'_>) -> Result<Vec<String>, Error> {
    let certificate = parse(der)?;
    let Some(names) = certificate.subject_alternative_name().map_err(bad)? else { return Ok(Vec::new()) };
    let host = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d]).to_string()),
            ref bytes => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
        },
        _ => None,
    };
    Ok(names.value.general_names.iter().filter_map(host).collect())
}

/// Parses DER; nothing may follow the certificate.
pub(crate) fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(bad("bytes follow the certificate")),
        Err(error) => Err(bad(format!("not a certificate: {error}"))),
    }
}

fn renkei_names(certificate: &X509Certificate<'_>) -> Result<Vec<String>, Error> {
    let names = certificate.subject_alternative_name().map_err(bad)?;
    let Some(names) = names else { return Ok(Vec::new()) };
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) if Principal::is_uri(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    Ok(names.value.general_names.iter().filter_map(uri).collect())
}

/// The public key of a certificate, DER: it stays the same when the certificate is renewed.
pub fn public_key(der: &CertificateDer<'_>) -> Result<Vec<u8>, Error> {
    Ok(parse(der)?.public_key().raw.to_vec())
}

/// The certificates of a PEM text, in order; at least one.
pub fn parse_chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().map_err(bad)?;
    if chain.is_empty() {
        return Err(bad("no certificate in the text"));
    }
    Ok(chain)
}

/// PEM text of DER bytes.
pub fn to_pem(label: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, der), config)
}

/// A serial number as lower-case hexadecimal without leading zero bytes.
pub fn serial_text(bytes: &[u8]) -> String {
    let start = bytes.iter().position(|&b| b != 0).unwrap_or(bytes.len());
    hex(&bytes[start..], "")
}

/// Bytes as lower-case hexadecimal with `separator` between them.
pub fn hex(bytes: &[u8], separator: &str) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(separator)
}

/// A time for people: `2026-11-21 20:26:00 UTC`.
pub fn utc(time: SystemTime) -> String {
    let Ok(time) = ASN1Time::from_timestamp(unix_seconds(time)) else { return "far away".into() };
    let t = time.to_datetime();
    let (month, day) = (u8::from(t.month()), t.day());
    format!("{:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", t.year(), t.hour(), t.minute(), t.second())
}

/// Seconds since 1970; negative before.
pub fn unix_seconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |secs| -secs),
    }
}

fn to_system_time(time: ASN1Time) -> SystemTime {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

fn bad(cause: impl std::fmt::Display) -> Error {
    Error::new(Code::BadCertificate, "read certificate", "", cause)
}

/// Parses a serial in the form of [`Facts::serial`].
pub fn parse_serial(text: &str) -> Result<String, Error> {
    let serial = text.replace(':', "").to_ascii_lowercase();
    let hex = serial.bytes().all(|b| b.is_ascii_hexdigit());
    // RFC 5280, 4.1.2.2: at most 20 octets.
    if hex && serial.len().is_multiple_of(2) && (2..=40).contains(&serial.len()) {
        return Ok(serial);
    }
    Err(Error::new(Code::UsageInvalid, "parse serial", text, "a serial is 1 to 20 bytes in hexadecimal"))
}

/// The bytes of a validated serial.
pub fn serial_bytes(serial: &str) -> Vec<u8> {
    let pairs = serial.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or_default());
    pairs.map(|pair| u8::from_str_radix(pair, 16).expect("checked hexadecimal")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_readable() {
        assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(1_795_292_760)), "2026-11-21 20:26:00 UTC");
        assert_eq!(utc(UNIX_EPOCH - Duration::from_secs(1)), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn serials_have_one_form() {
        assert_eq!(serial_text(&[0, 0, 0x0a, 0xff]), "0aff");
        assert_eq!(serial_text(&[0]), "");
    }

    #[test]
    fn garbage_is_refused() {
        for garbage in [&b""[..], b"\x30", b"\x30\x03abc", &[0x30; 300]] {
            let error = Facts::read(&CertificateDer::from(garbage)).unwrap_err();
            assert_eq!(error.code, Code::BadCertificate);
        }
        assert_eq!(parse_chain("hello").unwrap_err().code, Code::BadCertificate);
    }

    #[test]
    fn serials_are_checked() {
        assert_eq!(parse_serial("0A:ff").unwrap(), "0aff");
        for bad in ["", "0", "xy", "alice@kek", &"00".repeat(21)] {
            assert!(parse_serial(bad).is_err(), "{bad}");
        }
    }
}
