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
