//! Types that several messages share.

use serde::{Deserialize, Serialize};

/// The share of the path's capacity that a transfer may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// An equal share, in competition with other traffic.
    #[default]
    Normal,
    /// The capacity that other traffic leaves unused.
    Background,
}

/// Space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes still available to this account.
    pub available_bytes: u64,
    /// Inodes in total; 0 where they are not counted.
    pub total_files: u64,
    /// Inodes free.
    pub free_files: u64,
}

/// Digests a PoP can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the algorithms")]
pub enum Algorithm {
    Blake3,
    Sha256,
    Md5,
    Adler32,
    Crc32c,
}

impl Algorithm {
    /// All, with the names that configurations and commands use.
    pub const NAMES: [(Self, &'static str); 5] = [
        (Self::Blake3, "blake3"),
        (Self::Sha256, "sha256"),
        (Self::Md5, "md5"),
        (Self::Adler32, "adler32"),
        (Self::Crc32c, "crc32c"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The algorithm of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(algorithm, _)| *algorithm)
    }
}
