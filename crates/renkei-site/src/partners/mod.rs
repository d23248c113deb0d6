//! Partner sites: what this site tells them, and what it learns of them.
//!
//! [`enrolment`] exchanges cards by an invitation, [`updates`] sends changes of this site's card and revocation list,
//! [`probes`] finds whether a partner can be reached, [`renewal`] renews the PoP's own certificate, [`revocation`]
//! stops work on revoked ones. Certificates and trust themselves are in `renkei_net::identity`.

pub mod enrolment;
pub mod probes;
pub mod renewal;
pub mod revocation;
pub mod updates;

use crate::Context;
use crate::relay::Relay;
use probes::PartnerProbes;
use std::sync::{Arc, Mutex};
use updates::Untold;

/// The sites that this one trusts.
pub struct Partners {
    context: Arc<Context>,
    relay: Arc<Relay>,
    probing: PartnerProbes,
    untold: Mutex<Untold>,
    /// Number of the own revocation list that was distributed last.
    told_list: Mutex<Option<u64>>,
}

impl Partners {
    /// The partners, none of them probed or told anything yet.
    pub(crate) fn new(context: &Arc<Context>, relay: &Arc<Relay>) -> Self {
        Partners {
            context: context.clone(),
            relay: relay.clone(),
            probing: PartnerProbes::default(),
            untold: Mutex::default(),
            told_list: Mutex::default(),
        }
    }
}
