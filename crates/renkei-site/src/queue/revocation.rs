//! Revocation at the home of queued transfers: attempts whose credential was revoked are stopped.

use super::state::{Active, QueueState, Shown};
use crate::snapshot::Snapshot;
use crate::transfer::active::stop_soon;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_net::identity::verify::verify_holder;
use std::collections::BTreeSet;

impl QueueState {
    /// Stops attempts whose credential was revoked; returns the sites of all attempts.
    pub(crate) fn judge(&self, now: &Snapshot) -> BTreeSet<SiteName> {
        let all: Vec<Active> = self.active().values().cloned().collect();
        for active in &all {
            let refused = active.shown.get().and_then(|shown| check(shown, now).err());
            if let Some(error) = refused.filter(|_| active.stop.stopped().is_none()) {
                tracing::warn!(target: "audit", %error, "a queued transfer is stopped");
                stop_soon(active.stop.clone(), error.at(now.site.as_str()));
            }
        }
        all.into_iter().flat_map(|active| active.sites).collect()
    }
}

/// Checks an attempt's credential, as of the time it was shown: expiry meanwhile does not stop a running attempt.
fn check((chain, at): &Shown, now: &Snapshot) -> Result<(), Error> {
    verify_holder(chain, &now.trust, *at).map(drop)
}
