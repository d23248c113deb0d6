//! Operations on single names at sites: one file session per named directory.

use super::cat::split;
use crate::cli::Context;
use crate::cli::connect::{dialler, place};
use renkei_core::error::Error;
use renkei_core::path::{EndpointPath, Place, RelPath, SiteName};
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles};
use renkei_mover::files::workspace::Workspace;
use std::collections::HashMap;
use std::sync::Arc;

/// The file sessions of one command.
pub(crate) struct FileSessions<'c> {
    context: &'c Context,
    open: HashMap<(SiteName, Place), Workspace>,
}

impl<'c> FileSessions<'c> {
    /// Without open sessions.
    pub(crate) fn new(context: &'c Context) -> Self {
        FileSessions { context, open: HashMap::new() }
    }

    /// The session of the parent directory of `path`, and the name there; a storage itself has none.
    pub(crate) fn parent_of(&mut self, path: &EndpointPath) -> Result<(&Workspace, RelPath), Error> {
        let (dir, name) = split(&place(path)?)?;
        let key = (path.site.clone(), dir.clone());
        if !self.open.contains_key(&key) {
            let dialler = dialler(self.context, &[&path.site])?;
            let far = RemoteDir { dialler, site: path.site.clone(), place: dir, write: true };
            let files = RemoteFiles::open(far, Config::default())?;
            self.open.insert(key.clone(), Workspace::new(Arc::new(files)));
        }
        Ok((&self.open[&key], name))
    }
}
