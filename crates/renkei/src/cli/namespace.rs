//! Paths in volumes, as users name them: `/genome/2026`, at their own site.
//!
//! Verbs that work on sites alone take every path that begins with `/` so. Where a path may also be one of this machine
//! (`cp`, `sync`, `checksum`), what is there on this machine comes first, and the user's own PoP is asked only when the
//! first name of the path is not.

use super::Context;
use super::connect::{own_site, session, unexpected};
use renkei_core::error::Error;
use renkei_core::path::{EndpointPath, Place, SiteName};
use renkei_core::wire::message::{Reply, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `/VOLUME/PATH` as a place at the user's own site; nothing for what does not begin with `/`.
pub(super) fn namespace_path(argument: &OsStr, context: &Context) -> Result<Option<EndpointPath>, Error> {
    let bytes = argument.as_bytes();
    if !bytes.starts_with(b"/") {
        return Ok(None);
    }
    Ok(Some(at(own_site(context)?, Place::parse(bytes)?, bytes)))
}

fn at(site: SiteName, place: Option<Place>, written: &[u8]) -> EndpointPath {
    let trailing_slash = written.ends_with(b"/") || written.ends_with(b"/.");
    EndpointPath { site, place, trailing_slash }
}

/// Tells volumes from local paths.
pub(super) struct Namespace<'c> {
    context: &'c Context,
    /// The user's site and its volumes, once they were asked for.
    known: Option<(SiteName, Vec<String>)>,
}

impl<'c> Namespace<'c> {
    /// Nothing asked yet.
    pub(super) fn new(context: &'c Context) -> Self {
        Namespace { context, known: None }
    }

    /// The place at a site that an argument names; nothing for a local path.
    ///
    /// # Errors
    /// Those of the path; why the user's own PoP could not be asked, where it had to be.
    pub(super) fn endpoint(&mut self, argument: &OsStr) -> Result<Option<EndpointPath>, Error> {
        let bytes = argument.as_bytes();
        if !bytes.starts_with(b"/") {
            return EndpointPath::parse(bytes);
        }
        let Ok(Some(place)) = Place::parse(bytes) else { return Ok(None) };
        if Path::new("/").join(&place.storage).symlink_metadata().is_ok() {
            return Ok(None);
        }
        // Whoever has no site has no volumes.
        let Ok(site) = own_site(self.context) else { return Ok(None) };
        let (site, volumes) = match &self.known {
            Some(known) => known,
            None => {
                let volumes = volumes(self.context, &site)?;
                self.known.insert((site, volumes))
            }
        };
        let is_volume = volumes.contains(&place.storage);
        Ok(is_volume.then(|| at(site.clone(), Some(place), bytes)))
    }
}

fn volumes(context: &Context, site: &SiteName) -> Result<Vec<String>, Error> {
    match session(context, site)?.ask(Request::Whoami)? {
        Reply::Identity(identity) => Ok(identity.volumes.into_iter().map(|(name, _)| name).collect()),
        other => Err(unexpected(&other)),
    }
}
