//! Requests about the S3 keys of a user: pairs of an access key and a secret, by which S3 requests are signed.

use crate::batch::batch;
use serde::{Deserialize, Serialize};

/// What a user asks of a PoP about own S3 keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AboutS3Keys {
    /// A new key. Answer: `Created`.
    Create {
        /// Its restrictions, in the form of a token's caveats; none for all that its owner may.
        #[serde(deserialize_with = "batch")]
        caveats: Vec<String>,
        /// Its validity, in seconds; none until it is revoked.
        seconds: Option<u32>,
    },
    /// The user's keys. Answer: `Keys`.
    List,
    /// An end to the key with this id. Answer: `Revoked`.
    Revoke(String),
}

/// The answers to [`AboutS3Keys`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum S3KeysReply {
    /// The new key, whose secret is told this once.
    Created {
        /// The access key.
        id: String,
        /// The secret key.
        secret: String,
    },
    /// The keys, the oldest first.
    Keys(#[serde(deserialize_with = "batch")] Vec<S3KeyStatus>),
    /// The key is good no more.
    Revoked,
}

/// An S3 key without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3KeyStatus {
    /// The access key.
    pub id: String,
    /// Its restrictions, in the form of a token's caveats.
    #[serde(deserialize_with = "batch")]
    pub caveats: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub created_unix: u64,
    /// When it was used last, to a minute, if it was.
    pub used_unix: Option<u64>,
}
