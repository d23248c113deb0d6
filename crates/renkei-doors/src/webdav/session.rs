//! An authenticated client, and the files that are open to it.

use renkei_core::error::Error;
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_mover::files::workspace::Workspace;
use renkei_site::Site;
use renkei_site::access::{Access, Proof};
use renkei_site::evidence::Evidence;
use std::sync::Arc;

/// An authenticated client, for one request.
pub(crate) struct Session {
    pub(crate) site: Arc<Site>,
    pub(crate) access: Access,
    pub(crate) proof: Proof,
}

impl Session {
    /// Authenticates and authorises the client. Blocks: files of the PoP are read.
    pub(crate) fn open(site: Arc<Site>, evidence: Evidence) -> Result<Self, Error> {
        let proof = site.authenticate(evidence)?;
        let access = site.authorise(&proof)?;
        Ok(Session { site, access, proof })
    }

    /// The files of a storage and the path in them; where only folders of it are open to the client, those of the
    /// path's parent.
    pub(crate) fn files(&self, place: &Place, need: Need) -> Result<(Workspace, RelPath), Error> {
        self.site.file_service().open_around(&self.access, place, need)
    }
}
