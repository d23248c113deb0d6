//! The registry of followers at the home: a note in the volume's tree gives each site that follows a number.

use renkei_catalogue::{TreeNote, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Origin;
use renkei_core::path::SiteName;
use renkei_core::wire::decode;
use std::collections::{BTreeMap, BTreeSet};

/// The note in the home's tree with the followers.
pub(crate) const FOLLOWERS: TreeNote<Followers> = TreeNote::of("followers", &[decode]);

/// Followers with the origins of their changes.
pub type Followers = BTreeMap<SiteName, Origin>;

/// The followers, with their origins.
///
/// # Errors
/// `CatalogueFailed`.
pub fn followers(tree: &VolumeTree) -> Result<Followers, Error> {
    Ok(FOLLOWERS.read(tree)?.unwrap_or_default())
}

/// The names of the followers with these origins.
///
/// # Errors
/// `CatalogueFailed`.
pub fn names_of(tree: &VolumeTree, origins: &BTreeSet<Origin>) -> Result<Vec<SiteName>, Error> {
    if origins.is_empty() {
        return Ok(Vec::new());
    }
    let named = followers(tree)?.into_iter().filter(|(_, origin)| origins.contains(origin));
    Ok(named.map(|(site, _)| site).collect())
}

/// The site with an origin number.
///
/// # Errors
/// `SourceChanged` if no follower has it.
pub fn site_of(tree: &VolumeTree, origin: Origin) -> Result<SiteName, Error> {
    let known = followers(tree)?.into_iter().find(|(_, number)| *number == origin);
    let nobody =
        || Error::new(Code::SourceChanged, "fetch", origin.0, "the site that wrote it does not follow");
    known.map(|(site, _)| site).ok_or_else(nobody)
}

/// The origin of a follower.
///
/// # Errors
/// `NotAllowed` if the site does not follow.
pub fn follower_number(tree: &VolumeTree, site: &SiteName) -> Result<Origin, Error> {
    let unknown = || Error::new(Code::NotAllowed, "change volume", site, "it does not follow");
    followers(tree)?.get(site).copied().ok_or_else(unknown)
}

/// The origin of a site's changes, assigned once and the same from then on; the home's own is 0.
///
/// # Errors
/// `TooManyEntries` if all numbers are used.
pub fn number_follower(tree: &VolumeTree, site: &SiteName) -> Result<Origin, Error> {
    let mut known = followers(tree)?;
    if let Some(origin) = known.get(site) {
        return Ok(*origin);
    }
    let last = known.values().map(|origin| origin.0).max().unwrap_or(0);
    let full = || Error::new(Code::TooManyEntries, "follow", site, "the limit of followers is reached");
    let origin = last.checked_add(1).map(Origin).filter(|origin| *origin != Origin::HOME).ok_or_else(full)?;
    known.insert(site.clone(), origin);
    FOLLOWERS.write(tree, &known)?;
    Ok(origin)
}
