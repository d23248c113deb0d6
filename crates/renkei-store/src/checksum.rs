//! Checksums of content: BLAKE3 and the algorithms that grids and clouds ask for.

use renkei_core::error::Error;
use renkei_core::wire::message::Algorithm;
use sha2::Digest as _;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// A checksum that is computed while content passes, from its first byte to its last.
pub struct Checksum(State);

enum State {
    Blake3(Box<blake3::Hasher>),
    Sha256(sha2::Sha256),
    Md5(md5::Md5),
    Adler32(simd_adler32::Adler32),
    Crc32c(crc_fast::Digest),
}

impl Checksum {
    /// The checksum of no content yet.
    pub fn new(algorithm: Algorithm) -> Self {
        Checksum(match algorithm {
            Algorithm::Blake3 => State::Blake3(Box::default()),
            Algorithm::Sha256 => State::Sha256(sha2::Sha256::new()),
            Algorithm::Md5 => State::Md5(md5::Md5::new()),
            Algorithm::Adler32 => State::Adler32(simd_adler32::Adler32::new()),
            Algorithm::Crc32c => State::Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi)),
        })
    }

    /// Adds the bytes that follow.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Blake3(state) => drop(state.update(bytes)),
            State::Sha256(state) => state.update(bytes),
            State::Md5(state) => state.update(bytes),
            State::Adler32(state) => state.write(bytes),
            State::Crc32c(state) => state.update(bytes),
        }
    }

    /// The checksum of content that is read in order, up to the read that gives nothing.
    ///
    /// # Errors
    /// Those of `read`, which fills a buffer from an offset.
    pub fn of(
        algorithm: Algorithm,
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Error>,
    ) -> Result<Vec<u8>, Error> {
        let (mut sum, mut buf, mut at) = (Checksum::new(algorithm), vec![0; READ_BYTES], 0);
        loop {
            match read(&mut buf, at)? {
                0 => return Ok(sum.finish()),
                count => {
                    sum.update(&buf[..count]);
                    at += count as u64;
                }
            }
        }
    }

    /// The checksum, in the byte order in which it is printed.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            State::Blake3(state) => state.finalize().as_bytes().to_vec(),
            State::Sha256(state) => state.finalize().to_vec(),
            State::Md5(state) => state.finalize().to_vec(),
            State::Adler32(state) => state.finish().to_be_bytes().to_vec(),
            State::Crc32c(state) => (state.finalize() as u32).to_be_bytes().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(algorithm: Algorithm, parts: &[&[u8]]) -> String {
        let mut sum = Checksum::new(algorithm);
        parts.iter().for_each(|part| sum.update(part));
        sum.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The check values of the algorithms' specifications, for "123456789" and for "abc".
    #[test]
    fn checksums_are_those_of_the_specifications() {
        let nine: &[&[u8]] = &[b"1234", b"", b"56789"];
        assert_eq!(hex(Algorithm::Crc32c, nine), "e3069283");
        assert_eq!(hex(Algorithm::Adler32, nine), "091e01de");
        assert_eq!(hex(Algorithm::Md5, &[b"abc"]), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            hex(Algorithm::Sha256, &[b"a", b"bc"]),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(Algorithm::Blake3, &[b"abc"]),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
    }
}
