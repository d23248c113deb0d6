//! Paths in volumes at the user's own site: `/genome/2026`.
//!
//! Verbs that work on sites alone take every path that begins with `/` as one. Where a path may also be local (`cp`,
//! `sync`, `checksum`), existing local paths take precedence, and the user's own PoP is asked only if the first
//! component of the path does not exist locally.

use crate::cli::Context;
use crate::cli::connect::{own_site, session, unexpected};
use renkei_core::error::Error;
use renkei_core::path::{EndpointPath, Place, SiteName};
use renkei_core::wire::message::{Reply, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `/VOLUME/PATH` as a place at the user's own site; none for other paths.
pub(crate) fn namespace_path(argument: &OsStr, context: &Context) -> Result<Option<EndpointPath>, Error> {
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

/// Distinguishes volumes from local paths.
pub(crate) struct Namespace<'c> {
    context: &'c Context,
    /// The user's site and its volumes, once requested.
    known: Option<(SiteName, Vec<String>)>,
}

impl<'c> Namespace<'c> {
    /// Without a request yet.
    pub(crate) fn new(context: &'c Context) -> Self {
        Namespace { context, known: None }
    }

    /// The place at a site that an argument names; none for a local path.
    ///
    /// # Errors
    /// Errors of the path; those of asking the user's own PoP, where that is necessary.
    pub(crate) fn endpoint(&mut self, argument: &OsStr) -> Result<Option<EndpointPath>, Error> {
        let bytes = argument.as_bytes();
        if !bytes.starts_with(b"/") {
            return EndpointPath::parse(bytes);
        }
        let Ok(Some(place)) = Place::parse(bytes) else { return Ok(None) };
        if Path::new("/").join(&place.storage).symlink_metadata().is_ok() {
            return Ok(None);
        }
        // A user without a site has no volumes.
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
