//! A grid for tests: an authority, a user, proxies, a VOMS server, in any form, also forged ones.

use super::GridTrust;
use crate::identity::certificate::{to_pem, utc};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use renkei_config::Grid;
use rustls::pki_types::CertificateDer;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time of tests, in seconds since 1970.
pub(super) const NOW: u64 = 1_800_000_000;
pub(super) const DAY: u64 = 24 * 3600;
pub(super) const CA: &str = "/C=JP/O=NII/CN=Grid CA";
pub(super) const TARO: &str = "/C=JP/O=NII/CN=Taro Yamada";
pub(super) const VOMS: &str = "/C=JP/O=KEK/CN=voms.kek.jp";
/// ecdsa-with-SHA256, and with SHA-1.
const SHA256: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x03\x02";
const SHA1: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x01";
const BASIC_CONSTRAINTS: &[u8] = b"\x55\x1d\x13";
const KEY_USAGE: &[u8] = b"\x55\x1d\x0f";
pub(super) const ALT_NAME: &[u8] = b"\x55\x1d\x11";
pub(super) const PROXY_INFO: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x01\x0e";
const VOMS_EXTENSION: &[u8] = b"\x2b\x06\x01\x04\x01\xbe\x45\x64\x64\x05";
const VOMS_FQANS: &[u8] = b"\x2b\x06\x01\x04\x01\xbe\x45\x64\x64\x04";
const VOMS_CERTIFICATES: &[u8] = b"\x2b\x06\x01\x04\x01\xbe\x45\x64\x64\x0a";
pub(super) const INHERIT: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x15\x01";
pub(super) const INDEPENDENT: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x15\x02";
pub(super) const LIMITED: &[u8] = b"\x2b\x06\x01\x04\x01\x9b\x50\x01\x01\x01\x09";

pub(super) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

/// One element of DER.
pub(super) fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    let head = match content.len() {
        0..=0x7f => vec![tag, length[3]],
        _ => vec![tag, 0x82, length[2], length[3]],
    };
    [head, content].concat()
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    der(0x30, parts)
}

/// A name, from its slash form.
pub(super) fn name(text: &str) -> Vec<u8> {
    let part = |part: &str| {
        let (kind, value) = part.split_once('=').unwrap();
        let (oid, tag): (&[u8], u8) = match kind {
            "C" => (b"\x55\x04\x06", 0x13),
            "O" => (b"\x55\x04\x0a", 0x0c),
            "OU" => (b"\x55\x04\x0b", 0x13),
            _ => (b"\x55\x04\x03", 0x0c),
        };
        let attribute = sequence(&[&der(6, &[oid]), &der(tag, &[value.as_bytes()])]);
        der(0x31, &[&attribute])
    };
    let parts: Vec<Vec<u8>> = text.split('/').skip(1).map(part).collect();
    sequence(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// A time in the form with four digits of the year.
fn instant(unix: u64) -> Vec<u8> {
    let text = utc(UNIX_EPOCH + Duration::from_secs(unix));
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    der(0x18, &[format!("{digits}Z").as_bytes()])
}

pub(super) fn extension(oid: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let flag = if critical { vec![1, 1, 0xff] } else { Vec::new() };
    sequence(&[&der(6, &[oid]), &flag, &der(4, &[value])])
}

pub(super) fn proxy_info(limit: Option<u8>, language: &[u8]) -> Vec<u8> {
    let limit = limit.map(|limit| der(2, &[&[limit]])).unwrap_or_default();
    extension(PROXY_INFO, true, &sequence(&[&limit, &sequence(&[&der(6, &[language])])]))
}

pub(super) fn key_usage(bits: u8) -> Vec<u8> {
    extension(KEY_USAGE, true, &der(3, &[&[0, bits]]))
}

/// Signs a structure.
fn signed(message: Vec<u8>, key: &KeyPair, algorithm: &[u8]) -> Vec<u8> {
    let signature = key.sign(&message).unwrap();
    let algorithm = sequence(&[&der(6, &[algorithm])]);
    sequence(&[&message, &algorithm, &der(3, &[&[0], &signature])])
}

/// A certificate with its key.
pub(super) struct Holder {
    pub(super) key: KeyPair,
    pub(super) subject: String,
    pub(super) issuer: String,
    pub(super) serial: u8,
    pub(super) certificate: CertificateDer<'static>,
}

/// The fields of a certificate to be made.
pub(super) struct Draft {
    pub(super) subject: String,
    pub(super) serial: u8,
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) extensions: Vec<Vec<u8>>,
    pub(super) weak: bool,
}

impl Draft {
    pub(super) fn of(subject: &str) -> Self {
        let (from, until) = (NOW - DAY, NOW + DAY);
        Draft { subject: subject.into(), serial: 7, from, until, extensions: Vec::new(), weak: false }
    }

    pub(super) fn with(mut self, extension: Vec<u8>) -> Self {
        self.extensions.push(extension);
        self
    }

    /// The certificate, signed by a key in the name of an issuer.
    pub(super) fn signed_by(self, issuer: &str, signer: Option<&KeyPair>) -> Holder {
        self.with_key(KeyPair::generate().unwrap(), issuer, signer)
    }

    /// The same for a key that there is already.
    pub(super) fn with_key(self, key: KeyPair, issuer: &str, signer: Option<&KeyPair>) -> Holder {
        let algorithm = if self.weak { SHA1 } else { SHA256 };
        let extensions = self.extensions.concat();
        let extensions =
            if extensions.is_empty() { extensions } else { der(0xa3, &[&sequence(&[&extensions])]) };
        let message = sequence(&[
            &der(0xa0, &[&der(2, &[&[2]])]),
            &der(2, &[&[self.serial]]),
            &sequence(&[&der(6, &[algorithm])]),
            &name(issuer),
            &sequence(&[&instant(self.from), &instant(self.until)]),
            &name(&self.subject),
            &key.subject_public_key_info(),
            &extensions,
        ]);
        let certificate = CertificateDer::from(signed(message, signer.unwrap_or(&key), algorithm));
        Holder { key, subject: self.subject, issuer: issuer.into(), serial: self.serial, certificate }
    }

    pub(super) fn by(self, issuer: &Holder) -> Holder {
        self.signed_by(&issuer.subject, Some(&issuer.key))
    }
}

impl Holder {
    /// A proxy below this certificate that inherits all rights.
    pub(super) fn proxy(&self) -> Holder {
        self.draft("123").with(proxy_info(None, INHERIT)).by(self)
    }

    /// A certificate whose name has one common name more.
    pub(super) fn draft(&self, common_name: &str) -> Draft {
        Draft::of(&format!("{}/CN={common_name}", self.subject))
    }
}

pub(super) fn authority(subject: &str) -> Draft {
    let constraints = extension(BASIC_CONSTRAINTS, true, &sequence(&[&[1, 1, 0xff]]));
    Draft { until: NOW + 365 * DAY, ..Draft::of(subject) }.with(constraints).with(key_usage(0x06))
}

/// What a VOMS server says of a user.
pub(super) struct Attributes<'a> {
    pub(super) holder: &'a Holder,
    pub(super) fqans: &'a [&'a str],
    pub(super) vo: &'a str,
    pub(super) until: u64,
    pub(super) more: Vec<u8>,
}

impl<'a> Attributes<'a> {
    pub(super) fn of(holder: &'a Holder, fqans: &'a [&'a str]) -> Self {
        Attributes { holder, fqans, vo: "belle", until: NOW + DAY, more: Vec::new() }
    }

    /// The extension of a proxy, signed by a key, with a server's certificate.
    pub(super) fn signed_by(&self, server: &Holder, key: &KeyPair) -> Vec<u8> {
        let general = |text: &str| sequence(&[&der(0xa4, &[&name(text)])]);
        let uri = der(0x86, &[format!("{}://voms.kek.jp:15020", self.vo).as_bytes()]);
        let fqans: Vec<Vec<u8>> = self.fqans.iter().map(|fqan| der(4, &[fqan.as_bytes()])).collect();
        let values = sequence(&[&der(0xa0, &[&uri]), &sequence(&[&fqans.concat()])]);
        let certificates = sequence(&[&sequence(&[&server.certificate])]);
        let algorithm = sequence(&[&der(6, &[SHA256])]);
        let info = sequence(&[
            &der(2, &[&[1]]),
            &sequence(&[&der(0xa0, &[&general(&self.holder.issuer), &der(2, &[&[self.holder.serial]])])]),
            &der(0xa0, &[&general(&server.subject)]),
            &algorithm,
            &der(2, &[&[1]]),
            &sequence(&[&instant(NOW - DAY), &instant(self.until)]),
            &sequence(&[&sequence(&[&der(6, &[VOMS_FQANS]), &der(0x31, &[&values])])]),
            &sequence(&[&extension(VOMS_CERTIFICATES, false, &certificates), &self.more]),
        ]);
        let certificate = signed(info, key, SHA256);
        extension(VOMS_EXTENSION, false, &sequence(&[&sequence(&[&certificate])]))
    }
}

/// A directory of grid files.
pub(super) struct World {
    dir: tempfile::TempDir,
    pub(super) ca: Holder,
    pub(super) taro: Holder,
    pub(super) voms: Holder,
    pub(super) config: Grid,
}

impl World {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = authority(CA).signed_by(CA, None);
        let taro = Draft::of(TARO).with(key_usage(0x80)).by(&ca);
        let voms = Draft { serial: 9, ..Draft::of(VOMS) }.by(&ca);
        let config = Grid { directory: dir.path().into(), ..Grid::default() };
        let world = World { dir, ca, taro, voms, config };
        world.install("certificates/0a1b2c3d", &world.ca);
        world.write("vomsdir/belle/voms.kek.jp.lsc", &format!("{VOMS}\n{CA}\n"));
        world
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(super) fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Installs an authority that may issue names of `/C=JP/O=NII` and `/C=JP/O=KEK`.
    pub(super) fn install(&self, stem: &str, ca: &Holder) {
        self.write(&format!("{stem}.0"), &to_pem("CERTIFICATE", &ca.certificate));
        let policy = format!(
            "access_id_CA X509 '{}'\npos_rights globus CA:sign\ncond_subjects globus '\"/C=JP/O=NII/*\" \"/C=JP/O=KEK/*\"'\n",
            ca.subject
        );
        self.write(&format!("{stem}.signing_policy"), &policy);
    }

    /// Installs a revocation list of the authority, signed by a key.
    pub(super) fn revoke(&self, serials: &[u8], until: u64, key: &KeyPair, weak: bool) {
        let algorithm = if weak { SHA1 } else { SHA256 };
        let entry = |serial: &u8| sequence(&[&der(2, &[&[*serial]]), &instant(NOW - DAY)]);
        let entries: Vec<u8> = serials.iter().flat_map(entry).collect();
        let entries = if entries.is_empty() { entries } else { sequence(&[&entries]) };
        let parts = [
            &der(2, &[&[1]])[..],
            &sequence(&[&der(6, &[algorithm])]),
            &name(CA),
            &instant(NOW - DAY),
            &instant(until),
            &entries,
        ];
        let list = signed(sequence(&parts), key, algorithm);
        self.write("certificates/0a1b2c3d.r0", &to_pem("X509 CRL", &list));
    }

    pub(super) fn trust(&self) -> GridTrust {
        GridTrust::load(&self.config)
    }
}
