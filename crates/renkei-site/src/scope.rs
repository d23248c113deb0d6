//! Permitted requests of restricted credentials, and how such credentials are issued.
//!
//! `renkei_core::identity::rights` has the table of the rights that each kind of request needs; kinds that it does not
//! name are refused, including those added later. The credential of a transfer is limited to the kinds that transfers
//! need. Places are checked again where they are opened ([`super::access`]), because other PoPs may act in the
//! principal's name.

use super::Context;
use super::access::Proof;
use super::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::rights::{Needed, rights_for};
use renkei_core::identity::{Permit, Scope};
use renkei_core::wire::message::{Request, TransferId};
use renkei_core::wire::unfinished::{AboutUnfinished, UnfinishedAction};
use renkei_mover::hex;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::delegation::{Delegation, Delegator, issue};
use renkei_net::identity::mounting;
use renkei_net::identity::verify::verify_holder;
use std::time::{Duration, SystemTime};

impl Context {
    /// Checks whether the holder of this proof may make this request; its places are checked later.
    ///
    /// # Errors
    /// `OutOfScope`; `NotAllowed` at an agent.
    pub fn admit(&self, proof: &Proof, request: &Request) -> Result<(), Error> {
        let snapshot = self.last_snapshot();
        if snapshot.is_agent() && !serves(request) {
            let cause = "an agent serves its storage and nothing else; ask the PoP of the site";
            return Err(
                Error::new(Code::NotAllowed, "ask", &proof.principal, cause).at(snapshot.site.as_str())
            );
        }
        if let Some(mount) = proof.mount().filter(|_| !is_for_mounts(request)) {
            let cause = format!(
                "the credential of mount {mount} is for using files and nothing else; `renkei login`"
            );
            let error = Error::new(Code::OutOfScope, "ask", &proof.principal, cause).at(self.name().as_str());
            tracing::warn!(target: "audit", principal = %proof.principal, mount, %error, "refused");
            return Err(error);
        }
        let Some(scope) = &proof.scope else { return Ok(()) };
        let needed = needed(scope, request).map_err(|cause| {
            let error = Error::new(Code::OutOfScope, "ask", &proof.principal, cause).at(self.name().as_str());
            let transfer = proof.transfer();
            tracing::warn!(target: "audit", principal = %proof.principal, transfer, %error, "refused");
            error
        })?;
        let site = &snapshot.site;
        if let Some((rights, place)) =
            needed.target.filter(|(rights, place)| !scope.writes_in(site, place, *rights))
        {
            return Err(proof.out_of_scope(site, place, rights));
        }
        needed.places.into_iter().try_for_each(|(any_of, place)| proof.check(site, place, any_of))
    }

    /// Issues a new certificate to the mount with this proof.
    ///
    /// # Errors
    /// `MountNotGranted`; those of [`Context::authorise`].
    pub fn renew_mount(&self, proof: &Proof, request: &str) -> Result<String, Error> {
        let principal = self.authorise(proof)?.principal;
        let facts = proof.facts()?;
        let (mount, Some(number)) = (facts.mount, facts.parent.filter(|_| proof.mount().is_some())) else {
            let cause = "only a mount's own credential is renewed so";
            return Err(Error::new(Code::NotAllowed, "renew mount credential", principal, cause));
        };
        let fresh = mounting::renew(self.home(), &number, request, SystemTime::now())?;
        tracing::info!(target: "audit", %principal, mount, serial = fresh.serial, "mount credential renewed");
        Ok(fresh.pem)
    }

    /// Issues a credential for each transfer that a user of this site queues at the PoP, or a new one for a
    /// transfer whose credential expired. The user is present: `proof` is that of the user's own session.
    ///
    /// # Errors
    /// `OutOfScope` if that session is itself for a transfer, `NotAllowed` for users of other sites, and those of
    /// [`Context::authorise`].
    pub fn delegate(&self, proof: &Proof, scopes: &[Scope]) -> Result<Vec<Delegation>, Error> {
        if proof.transfer().is_some() {
            let cause = "the credential of a transfer delegates nothing";
            return Err(Error::new(Code::OutOfScope, "delegate", &proof.principal, cause));
        }
        let scopes = scopes.iter().map(|scope| narrowed(proof, scope)).collect::<Result<Vec<_>, Error>>()?;
        let access = self.authorise(proof)?;
        let life = delegated_life(proof, &access.snapshot, SystemTime::now())?;
        let authority = Authority::load(self.home())?;
        let by = Delegator { user: proof.principal.clone(), serial: proof.serial()? };
        let made = issue(self.home(), &authority, &by, &scopes, SystemTime::now(), life)?;
        for delegation in &made {
            let transfer = delegation.scope.transfer().map(|transfer| hex(transfer));
            let serial = &delegation.serial;
            tracing::info!(target: "audit", principal = %by.user, transfer, serial, scope = %delegation.scope, "delegated");
        }
        Ok(made)
    }

    /// Checks a delegated credential against the current configuration of this site. The mapping of its user is
    /// checked by each site where it is used.
    ///
    /// # Errors
    /// `DelegationExpired`, `CertificateRevoked`.
    pub fn check_delegation(&self, delegation: &Delegation) -> Result<(), Error> {
        let snapshot = self.snapshot();
        let good = verify_holder(&delegation.credential.chain, &snapshot.trust, SystemTime::now());
        good.map(drop).map_err(|error| error.at(snapshot.site.as_str()))
    }
}

/// Whether an agent serves a request; all others are for its PoP.
fn serves(request: &Request) -> bool {
    match request {
        Request::Whoami | Request::Redeem(_) => true,
        // An agent acts for no users at other sites: those need a grant.
        Request::PushCopy { .. } => false,
        request => !request.storages().is_empty(),
    }
}

/// The requests of mounts.
fn is_for_mounts(request: &Request) -> bool {
    match request {
        Request::Whoami | Request::OpenFiles(_) | Request::Card(_) | Request::RenewMount(_) => true,
        // Circuits to sites and agents that cannot be dialled.
        Request::Through { .. } | Request::ToAgent { .. } => true,
        _ => false,
    }
}

/// The life of a delegation by this proof: with a certificate for a token or the like, some hours beyond its end.
fn delegated_life(proof: &Proof, now: &Snapshot, at: SystemTime) -> Result<Duration, Error> {
    let (config, facts) = (&now.config, proof.facts()?);
    let longest = config.delegation_life();
    if facts.borrowed.is_none() {
        return Ok(longest);
    }
    let until = facts.not_after + config.borrowed_queue_life();
    let left = until.duration_since(at).unwrap_or_default();
    match left.is_zero() {
        false => Ok(left.min(longest)),
        true => {
            let cause = "its certificate ends now, and `borrowed_queue_hours` gives transfers nothing more";
            Err(Error::new(Code::CertificateExpired, "delegate", &proof.principal, cause))
        }
    }
}

/// The scope of a delegation by this proof: never wider than its own.
fn narrowed(proof: &Proof, scope: &Scope) -> Result<Scope, Error> {
    let Some(own) = &proof.scope else { return Ok(scope.clone()) };
    let lacks = |permit: &&Permit| !own.permits().iter().any(|given| given.site == permit.site);
    match scope.permits().iter().find(lacks) {
        None => scope.narrowed(own),
        Some(Permit { site, place, .. }) => {
            let cause = format!(
                "its scope gives no rights at {site}: {own}; `renkei cp` without the queue asks {site} itself"
            );
            Err(Error::new(Code::OutOfScope, "delegate", place, cause))
        }
    }
}

/// What a request needs of a scope, if it may be made with it at all.
fn needed<'a>(scope: &Scope, request: &'a Request) -> Result<Needed<'a>, String> {
    if let Some(transfer) = scope.transfer() {
        if gives_up(request, transfer) {
            return Ok(Needed::default());
        }
        if !is_for_transfers(request) {
            return Err("it is for a transfer, which needs nothing of the kind".into());
        }
    }
    let needed =
        rights_for(request).ok_or("it is restricted to rights on places, and this is no use of them")?;
    match needed.partner {
        // Another site decides what it accepts: the scope of a token knows only the site that judged it.
        Some(_) if scope.transfer().is_none() => Ok(Needed { partner: None, ..needed }),
        Some((any_of, site)) if !any_of.iter().any(|rights| scope.names(site, *rights)) => {
            Err(format!("{site} has no such role in its scope"))
        }
        _ => Ok(needed),
    }
}

fn gives_up(request: &Request, own: &TransferId) -> bool {
    matches!(request, Request::Unfinished(AboutUnfinished { what: UnfinishedAction::GiveUp { transfer, .. }, .. }) if transfer == own)
}

/// The requests with which transfers are done.
fn is_for_transfers(request: &Request) -> bool {
    match request {
        Request::Mkdir { parents, .. } => !parents,
        Request::Remove { .. }
        | Request::Rename { .. }
        | Request::OpenFiles(_)
        | Request::SubmitCopies(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::identity::Rights;
    use renkei_core::path::{Place, RelPath, SiteName};

    fn place(text: &str) -> Place {
        Place::parse(text.as_bytes()).unwrap().unwrap()
    }

    fn scope() -> Scope {
        let read = Rights::READ | Rights::LIST;
        let write = Rights::CREATE | Rights::MODIFY | Rights::DELETE | Rights::LIST;
        let permit =
            |at, text, rights| Permit { site: SiteName::parse(at).unwrap(), place: place(text), rights };
        let permits = vec![permit("kek", "/raw/run7", read), permit("titech", "/data/run7", write)];
        Scope::new([7; 16], permits).unwrap()
    }

    #[test]
    fn an_agent_serves_only_its_storage() {
        let place = || Place { storage: "scratch".into(), path: RelPath::root() };
        for request in [Request::Whoami, Request::Stat(Some(place())), Request::Redeem([0; 32])] {
            assert!(serves(&request), "{request:?}");
        }
        let others = [
            Request::Line,
            Request::Console,
            Request::Status,
            Request::List(None),
            Request::SubmitCopies(Vec::new()),
            Request::Terms("scratch".into()),
            Request::ToAgent { storage: "scratch".into(), seed: [0; 32], count: 1 },
        ];
        for request in others {
            assert!(!serves(&request), "{request:?}");
        }
    }

    #[test]
    fn a_restricted_credential_delegates_no_more_than_it_has() {
        let alice = renkei_core::identity::Principal::parse("alice@kek").unwrap();
        let proof = |scope: Option<Scope>| Proof {
            principal: alice.clone(),
            scope: scope.map(std::sync::Arc::new),
            evidence: crate::evidence::Evidence::Uid(0),
            at: SystemTime::now(),
        };
        assert_eq!(narrowed(&proof(None), &scope()).unwrap(), scope());
        let kek = SiteName::parse("kek").unwrap();
        let own = Permit { site: kek.clone(), place: place("/raw/run7/a"), rights: Rights::READ };
        let own = proof(Some(Scope::of_rights(vec![own]).unwrap()));
        // It has no rights at the other site.
        assert_eq!(narrowed(&own, &scope()).unwrap_err().code, Code::OutOfScope);
        let at_kek = scope().permits().iter().filter(|permit| permit.site == kek).cloned().collect();
        let made = narrowed(&own, &Scope::new([7; 16], at_kek).unwrap()).unwrap();
        assert_eq!(made.transfer(), scope().transfer());
        assert!(made.allows(&kek, &place("/raw/run7/a/x"), Rights::READ));
        assert!(!made.allows(&kek, &place("/raw/run7/b"), Rights::NONE));
        assert!(!made.names(&SiteName::parse("titech").unwrap(), Rights::NONE));
    }

    #[test]
    fn requests_that_no_transfer_needs_are_refused() {
        let refused = [
            Request::Stat(None),
            Request::StatDir(None),
            Request::List(None),
            Request::Mkdir { place: place("/data/run7"), parents: true },
            Request::Remove { place: place("/data/run7"), recursive: true },
            Request::Rename { from: place("/raw/run7"), to: place("/raw/run7/x") },
            Request::Status,
            Request::Redeem([0; 32]),
            Request::Card(SiteName::parse("kek").unwrap()),
        ];
        for request in refused {
            assert!(needed(&scope(), &request).is_err(), "{request:?}");
        }
        let through = |site: &str| {
            let site = SiteName::parse(site).unwrap();
            needed(&scope(), &Request::Through { site, seed: [0; 32], count: 1, further: 1 }).map(drop)
        };
        assert!(through("kek").is_ok() && through("titech").is_ok() && through("osaka").is_err());
        assert!(needed(&scope(), &Request::Line).is_err());
        let unfinished =
            |what| needed(&scope(), &Request::Unfinished(AboutUnfinished { storage: None, what })).map(drop);
        let give_up = |transfer| unfinished(UnfinishedAction::GiveUp { transfer, owner: "alice@kek".into() });
        assert!(give_up([7; 16]).is_ok() && give_up([8; 16]).is_err());
        assert!(
            unfinished(UnfinishedAction::List).is_err()
                && unfinished(UnfinishedAction::Drop(Vec::new())).is_err()
        );
        needed(&scope(), &Request::Whoami).unwrap();
        needed(&scope(), &Request::Stat(Some(place("/raw/run7")))).unwrap();
    }
}
