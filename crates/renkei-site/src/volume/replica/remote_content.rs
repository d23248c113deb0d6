//! The volumes of a PoP as the source of content that is not here.

use crate::volume::VolumeService;
use crate::volume_content::{RemoteContent, WantedFile};
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::error::Error;
use renkei_core::namespace::source::Fellow;
use renkei_core::path::SiteName;
use renkei_mover::files::remote_files::RemoteFiles;
use renkei_store::{ReadFile, Space};
use renkei_volume::home::follower_registry::site_of;
use renkei_volume::{Wanted, writer};
use std::sync::Arc;

impl RemoteContent for VolumeService {
    fn open_away(
        &self,
        name: &str,
        tree: &VolumeTree,
        wanted: &Wanted<'_>,
    ) -> Result<Box<dyn ReadFile>, Error> {
        let wrote = site_of(tree, writer(wanted.content)).ok();
        let sites = self.holders_in_order(name, tree, wrote.as_ref(), wanted.path)?;
        let wish = WantedFile { name, path: wanted.path, stamp: wanted.stamp };
        self.read_through.open_at_any(&wish, wrote.as_ref(), sites)
    }

    fn open_followed(
        &self,
        wish: &WantedFile<'_>,
        home: &SiteName,
        fellows: &[Fellow],
    ) -> Result<Box<dyn ReadFile>, Error> {
        let sites = self.read_through.sources(Some(home), fellows, wish.path);
        self.read_through.open_at_any(wish, Some(home), sites)
    }

    fn space(&self, volume: &VolumeId) -> Space {
        self.holding.duties(volume).space
    }

    fn session(&self, name: &str, at: &SiteName) -> Result<Arc<RemoteFiles>, Error> {
        self.read_through.session(name, at)
    }
}
