//! Fixtures for tests, here and in crates above.
#![allow(clippy::unwrap_used)] // a fixture that cannot be made fails the test

use super::authority::Authority;
use super::trust::card::SiteCard;
use renkei_core::path::SiteName;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A time all tests share, in whole seconds as certificates have them.
pub fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_292_760)
}

/// A site by its name.
pub fn site(name: &str) -> SiteName {
    SiteName::parse(name).unwrap()
}

/// The card of an authority, with one endpoint.
pub fn card(authority: &Authority) -> SiteCard {
    SiteCard {
        site: authority.site().clone(),
        endpoints: vec![format!("{}.example:7512", authority.site())],
        via: Vec::new(),
        authority: authority.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    }
}
