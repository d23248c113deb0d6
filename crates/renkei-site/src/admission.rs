//! Admission: who a peer is, and what account it has here.
//!
//! A door gives the evidence that a peer showed; [`Context::authenticate`] makes a [`Proof`] of it, and
//! [`Context::authorise`] an [`Access`] by the mapping of now. Both need the configuration alone, so all rooms can use
//! them. What a delegated credential may ask for is in [`super::scope`].

use super::Context;
use super::access::{Access, Proof};
use super::evidence::Evidence;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use std::sync::Arc;
use std::time::SystemTime;

impl Context {
    /// Authenticates the holder of some evidence.
    ///
    /// # Errors
    /// Those of the evidence; `PopStopping` while the PoP restarts under another name.
    pub fn authenticate(&self, evidence: Evidence) -> Result<Proof, Error> {
        let (snapshot, at) = (self.snapshot(), SystemTime::now());
        if self.restarts() {
            // Under the former name it would refuse permanently what the new one allows.
            let cause = "a site was renamed, and the PoP starts again";
            return Err(Error::new(Code::PopStopping, "authenticate", "", cause).at(snapshot.site.as_str()));
        }
        let (principal, scope) =
            evidence.judge(&snapshot, at).map_err(|error| error.at(snapshot.site.as_str()))?;
        Ok(Proof { principal, scope: scope.map(Arc::new), evidence, at })
    }

    /// Authorises a principal: its local account and permissions.
    ///
    /// # Errors
    /// `NotMapped`, `AccountUnknown`, `AccountNotServed`.
    pub fn authorise(&self, proof: &Proof) -> Result<Access, Error> {
        let snapshot = self.snapshot();
        let (side, principal) = (snapshot.site.clone(), &proof.principal);
        let access = Access::new(proof, snapshot).map_err(|error| error.at(side.as_str()));
        let transfer = proof.transfer();
        match &access {
            Ok(access) => {
                let (account, holder) = (&access.account.name, proof.holder());
                tracing::info!(target: "audit", %principal, transfer, holder, account, "authorised");
            }
            Err(error) => tracing::warn!(target: "audit", %principal, transfer, %error, "refused"),
        }
        access
    }

    /// Checks that a principal may use the queue and the buffer, which are for users of this site.
    ///
    /// # Errors
    /// `NotAllowed`.
    pub(crate) fn is_own_user(&self, owner: &Principal) -> Result<(), Error> {
        let own = self.name();
        if owner.user_name().is_some() && *owner.site() == own {
            return Ok(());
        }
        let cause = format!("the queue of {own} is for the users of {own}; yours is at {}", owner.site());
        Err(Error::new(Code::NotAllowed, "use queue", owner, cause))
    }
}
