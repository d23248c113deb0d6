//! Requests about files that a PoP makes on behalf of a user, for doors whose clients do not speak to the other side
//! themselves. Since wire 4.

use super::file::OpenFiles;
use crate::batch::batch;
use crate::path::Place;
use crate::principal::Principal;
use serde::{Deserialize, Serialize};

/// The user on whose behalf a PoP asks, and how that is proved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnBehalf {
    /// To another site: the certificate chain of a user of the asking site, leaf first, DER. The asked side judges it.
    Chain(#[serde(deserialize_with = "batch")] Vec<Vec<u8>>),
    /// To an agent of the asking site, which takes its PoP's word: a user whom the PoP has authenticated.
    Word {
        /// The user.
        user: Principal,
        /// The scope of a restricted credential, as certificates encode it (`Scope::encode`).
        scope: Option<Vec<u8>>,
    },
}

/// What is asked for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesRequest {
    /// A file session. Answer: `Opened`.
    Open(OpenFiles),
    /// As `Request::Remove`. Answer: `Done`.
    Remove {
        /// The file or directory.
        place: Place,
        /// Whether a directory is removed with its contents.
        recursive: bool,
    },
}

impl FilesRequest {
    /// The place that it is about.
    pub fn place(&self) -> &Place {
        match self {
            FilesRequest::Open(open) => &open.place,
            FilesRequest::Remove { place, .. } => place,
        }
    }
}
