//! Checksums of content that comes: those of S3 (CRC-32, CRC-32C, CRC-64/NVME, SHA-1, SHA-256) and MD5, which is the ETag.
//!
//! A checksum is announced in a header, or in a trailer behind the content. One that differs from what came is `BadDigest`,
//! and nothing of the content is seen then.

use crate::error::refused;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use renkei_core::units::hex;
use s3s::checksum::ChecksumHasher;
use s3s::dto::{Checksum, ChecksumAlgorithm, ChecksumType};
use s3s::{S3ErrorCode, S3Result, TrailingHeaders};

/// The header of a checksum without its algorithm.
const HEADER: &str = "x-amz-checksum-";

/// What a client announced about content.
#[derive(Default)]
pub(crate) struct Announced {
    /// Checksums in headers.
    pub(crate) sums: Checksum,
    /// `x-amz-sdk-checksum-algorithm`, or that of an upload in parts.
    pub(crate) algorithm: Option<ChecksumAlgorithm>,
    /// `Content-MD5`.
    pub(crate) md5: Option<String>,
    /// The name of the header in the trailer.
    pub(crate) trailer: Option<String>,
    /// The trailers, once the content has been read.
    pub(crate) trailers: Option<TrailingHeaders>,
}

/// Sums that follow content.
pub(crate) struct Sums {
    announced: Announced,
    md5: Md5,
    hasher: ChecksumHasher,
}

/// The sums of content, in the form of answers.
pub(crate) struct Summed {
    /// MD5, hexadecimal.
    pub(crate) md5: String,
    pub(crate) checksum: Checksum,
}

/// MD5, hexadecimal.
pub(crate) fn md5_hex(bytes: &[u8]) -> String {
    hex(&Md5::digest(bytes))
}

impl Sums {
    /// Sums that will be compared with what is announced.
    ///
    /// # Errors
    /// `InvalidRequest` for an algorithm that is not known; `InvalidDigest` for an MD5 that is none.
    pub(crate) fn new(announced: Announced) -> S3Result<Self> {
        let is_md5 = |text: &String| STANDARD.decode(text).is_ok_and(|bytes| bytes.len() == 16);
        if announced.md5.as_ref().is_some_and(|text| !is_md5(text)) {
            return Err(refused(S3ErrorCode::InvalidDigest, "Content-MD5 is no MD5 in base64"));
        }
        let hasher = hasher(&announced)?;
        Ok(Sums { announced, md5: Md5::new(), hasher })
    }

    /// Follows content.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.hasher.update(bytes);
    }

    /// Compares the sums with those announced, and gives them.
    ///
    /// # Errors
    /// `BadDigest`; `InvalidRequest` for a trailer that did not come.
    pub(crate) fn finish(self) -> S3Result<Summed> {
        let Sums { announced, md5, hasher } = self;
        let (md5, mut checksum) = (md5.finalize(), hasher.finalize());
        if announced.md5.is_some_and(|wanted| wanted != STANDARD.encode(md5)) {
            return Err(bad("Content-MD5"));
        }
        for (name, wanted) in values(&announced.sums) {
            expect(name, wanted.as_deref(), &checksum)?;
        }
        if let Some(name) = announced.trailer.as_deref().and_then(|header| header.strip_prefix(HEADER)) {
            let trailers = announced.trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
            let wanted = trailers.get(format!("{HEADER}{name}")).and_then(|value| value.to_str().ok());
            let missing =
                || refused(S3ErrorCode::InvalidRequest, format!("the trailer {HEADER}{name} is missing"));
            expect(name, Some(wanted.ok_or_else(missing)?), &checksum)?;
        }
        checksum.checksum_type = Some(ChecksumType::from_static(ChecksumType::FULL_OBJECT));
        Ok(Summed { md5: hex(&md5), checksum })
    }
}

fn bad(what: &str) -> s3s::S3Error {
    refused(S3ErrorCode::BadDigest, format!("the {what} you specified did not match what we received"))
}

fn expect(name: &str, wanted: Option<&str>, found: &Checksum) -> S3Result<()> {
    let found = values(found).into_iter().find(|(one, _)| *one == name).and_then(|(_, sum)| sum.as_deref());
    match wanted {
        Some(wanted) if found != Some(wanted) => Err(bad(name)),
        _ => Ok(()),
    }
}

/// All checksums by name.
pub(crate) fn values(sums: &Checksum) -> [(&'static str, &Option<String>); 5] {
    [
        ("crc32", &sums.checksum_crc32),
        ("crc32c", &sums.checksum_crc32c),
        ("crc64nvme", &sums.checksum_crc64nvme),
        ("sha1", &sums.checksum_sha1),
        ("sha256", &sums.checksum_sha256),
    ]
}

/// The sums that are wanted: those announced; without any, CRC-64/NVME, as at AWS.
fn hasher(announced: &Announced) -> S3Result<ChecksumHasher> {
    let mut hasher = ChecksumHasher::default();
    let given =
        values(&announced.sums).into_iter().filter(|(_, sum)| sum.is_some()).map(|(name, _)| name.to_owned());
    let trailer =
        announced.trailer.as_deref().and_then(|header| header.strip_prefix(HEADER)).map(str::to_owned);
    let algorithm = announced.algorithm.as_ref().map(|algorithm| algorithm.as_str().to_ascii_lowercase());
    let mut names: Vec<String> = given.chain(trailer).chain(algorithm).collect();
    if names.is_empty() {
        names.push("crc64nvme".into());
    }
    for name in names {
        match name.as_str() {
            "crc32" => hasher.crc32 = Some(Default::default()),
            "crc32c" => hasher.crc32c = Some(Default::default()),
            "crc64nvme" => hasher.crc64nvme = Some(Default::default()),
            "sha1" => hasher.sha1 = Some(Default::default()),
            "sha256" => hasher.sha256 = Some(Default::default()),
            other => {
                let message = format!("checksums are CRC32, CRC32C, CRC64NVME, SHA1 and SHA256, not {other}");
                return Err(refused(S3ErrorCode::InvalidRequest, message));
            }
        }
    }
    Ok(hasher)
}

/// The name of the header that comes as a trailer, if a checksum does.
pub(crate) fn trailer(headers: &hyper::HeaderMap) -> Option<String> {
    let value = headers.get("x-amz-trailer")?.to_str().ok()?.trim().to_ascii_lowercase();
    value.starts_with(HEADER).then_some(value)
}

/// The checksum of content that was composed of parts: that of the parts' checksums, with their number.
pub(crate) fn composite(name: &str, parts: &[Vec<u8>]) -> S3Result<String> {
    let algorithm = Some(ChecksumAlgorithm::from(name.to_ascii_uppercase()));
    let mut hasher = hasher(&Announced { algorithm, ..Announced::default() })?;
    parts.iter().for_each(|part| hasher.update(part));
    let all = hasher.finalize();
    let sum = values(&all).into_iter().find(|(one, _)| *one == name).and_then(|(_, sum)| sum.clone());
    Ok(format!("{}-{}", sum.unwrap_or_default(), parts.len()))
}

/// A part's sum and length.
pub(crate) struct Piece {
    pub(crate) sum: Vec<u8>,
    pub(crate) bytes: u64,
}

/// The checksum of content from those of its pieces, one after the other; none for sums that do not combine.
pub(crate) fn combined(name: &str, pieces: &[Piece]) -> Option<String> {
    use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc32IsoHdlc, Crc64Nvme};
    let (algorithm, width) = match name {
        "crc32" => (Crc32IsoHdlc, 4),
        "crc32c" => (Crc32Iscsi, 4),
        "crc64nvme" => (Crc64Nvme, 8),
        _ => return None,
    };
    let number = |sum: &[u8]| sum.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let mut pieces = pieces.iter();
    let first = number(&pieces.next()?.sum);
    let all = pieces.fold(first, |all, piece| {
        crc_fast::checksum_combine(algorithm, all, number(&piece.sum), piece.bytes)
    });
    Some(STANDARD.encode(&all.to_be_bytes()[8 - width..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(announced: Announced) -> S3Result<Summed> {
        let mut sums = Sums::new(announced)?;
        sums.update(b"hel");
        sums.update(b"lo");
        sums.finish()
    }

    #[test]
    fn announced_checksums_are_compared() {
        let plain = sums(Announced::default()).unwrap();
        assert_eq!(plain.md5, "5d41402abc4b2a76b9719d911017c592");
        assert!(plain.checksum.checksum_crc64nvme.is_some() && plain.checksum.checksum_sha1.is_none());
        let crc = |sum: &str| {
            let given = Checksum { checksum_crc32: Some(sum.into()), ..Checksum::default() };
            sums(Announced { sums: given, ..Announced::default() }).map(drop)
        };
        crc("NhCmhg==").unwrap();
        assert_eq!(crc("NhCmhQ==").unwrap_err().code(), &S3ErrorCode::BadDigest);
        let md5 = |sum: &str| sums(Announced { md5: Some(sum.into()), ..Announced::default() }).map(drop);
        md5("XUFAKrxLKna5cZ2REBfFkg==").unwrap();
        assert_eq!(md5("AAAAAAAAAAAAAAAAAAAAAA==").unwrap_err().code(), &S3ErrorCode::BadDigest);
        assert_eq!(md5("hello").unwrap_err().code(), &S3ErrorCode::InvalidDigest);
        let late = Announced { trailer: Some("x-amz-checksum-sha256".into()), ..Announced::default() };
        assert_eq!(sums(late).map(drop).unwrap_err().code(), &S3ErrorCode::InvalidRequest);
    }

    #[test]
    fn sums_of_parts_become_those_of_the_whole() {
        for name in ["crc32", "crc32c", "crc64nvme"] {
            let sum = |text: &str| {
                let algorithm = Some(ChecksumAlgorithm::from(name.to_ascii_uppercase()));
                let mut sums = Sums::new(Announced { algorithm, ..Announced::default() }).unwrap();
                sums.update(text.as_bytes());
                let all = sums.finish().unwrap().checksum;
                values(&all).into_iter().find(|(one, _)| *one == name).unwrap().1.clone().unwrap()
            };
            let piece =
                |text: &str| Piece { sum: STANDARD.decode(sum(text)).unwrap(), bytes: text.len() as u64 };
            let pieces = [piece("hel"), piece("l"), piece("o")];
            assert_eq!(combined(name, &pieces), Some(sum("hello")), "{name}");
        }
        assert!(combined("sha256", &[]).is_none());
        assert!(composite("sha1", &[vec![1], vec![2]]).unwrap().ends_with("=-2"));
    }
}
