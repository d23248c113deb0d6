//! Rights on a path, as verbs print them.

use renkei_core::identity::Rights;
use renkei_core::path::Place;
use serde::Serialize;
use std::fmt;

/// Rights on a path and all below it.
#[derive(Serialize)]
pub(super) struct PathRights {
    rights: Vec<&'static str>,
    path: String,
}

impl PathRights {
    /// Rights on a place; without one, on all storages.
    pub(super) fn new(rights: Rights, place: Option<&Place>) -> Self {
        let path = place.map_or_else(|| "/".into(), ToString::to_string);
        PathRights { rights: rights.names().collect(), path }
    }
}

impl fmt::Display for PathRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "may {} {} and all below it", self.rights.join(", "), self.path)
    }
}
