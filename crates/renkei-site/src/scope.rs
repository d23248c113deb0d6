//! Permitted requests of delegated credentials, and how such credentials are issued.
//!
//! A session opened with such a credential is limited to the requests that transfers need: all others are refused
//! here, including requests added later and not named here. Requests with a place are checked against the scope's
//! places where it is opened ([`super::access`]), because other PoPs may act in the principal's name.

use super::Context;
use super::access::Proof;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Right, Scope};
use renkei_core::path::SiteName;
use renkei_core::wire::copy::CopySender;
use renkei_core::wire::message::Request;
use renkei_core::wire::unfinished::{AboutUnfinished, Wish};
use renkei_mover::hex;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::delegation::{Delegation, Delegator, issue};
use renkei_net::identity::mounting;
use renkei_net::identity::verify::verify_holder;
use std::time::SystemTime;

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
        check(scope, request).map_err(|cause| {
            let error = Error::new(Code::OutOfScope, "ask", &proof.principal, cause).at(self.name().as_str());
            let transfer = hex(scope.transfer());
            tracing::warn!(target: "audit", principal = %proof.principal, transfer, %error, "refused");
            error
        })
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
    /// `OutOfScope` if that session is itself delegated, `NotAllowed` for users of other sites, and those of
    /// [`Context::authorise`].
    pub fn delegate(&self, proof: &Proof, scopes: &[Scope]) -> Result<Vec<Delegation>, Error> {
        if proof.scope.is_some() {
            let cause = "a delegated credential delegates nothing";
            return Err(Error::new(Code::OutOfScope, "delegate", &proof.principal, cause));
        }
        let access = self.authorise(proof)?;
        let authority = Authority::load(self.home())?;
        let by = Delegator { user: proof.principal.clone(), serial: proof.serial()? };
        let life = access.snapshot.config.delegation_life();
        let made = issue(self.home(), &authority, &by, scopes, SystemTime::now(), life)?;
        for delegation in &made {
            let (transfer, serial) = (hex(delegation.scope.transfer()), &delegation.serial);
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
        Request::PushFound { .. } | Request::PushCopy { .. } => false,
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

/// Checks that a request is one that transfers need, and that a site it names is part of the transfer.
fn check(scope: &Scope, request: &Request) -> Result<(), String> {
    let has = |site: &SiteName, right| match scope.names(site, right) {
        true => Ok(()),
        false => Err(format!("{site} has no such role in the transfer")),
    };
    match request {
        Request::Whoami
        | Request::Stat(Some(_))
        | Request::StatDir(Some(_))
        | Request::List(Some(_))
        | Request::Mkdir { parents: false, .. }
        | Request::Usage(_)
        | Request::Space(_)
        | Request::Checksum { .. }
        | Request::KnownChecksum { .. }
        | Request::OpenReceive(_)
        | Request::OpenSend(_)
        | Request::OpenFound(_)
        | Request::OpenCopy { by: CopySender::Asker, .. } => Ok(()),
        Request::Grant { peer, .. } | Request::OpenCopy { by: CopySender::Site(peer), .. } => {
            has(peer, Right::Read)
        }
        // The circuit reads and writes nothing in the user's name: the ends authenticate each other.
        Request::Through { site, .. } => has(site, Right::Read).or_else(|_| has(site, Right::Write)),
        Request::Push { to, .. } | Request::PushFound { to, .. } | Request::PushCopy { to, .. } => {
            has(to, Right::Write)
        }
        Request::Unfinished(AboutUnfinished { what: Wish::GiveUp { transfer, .. }, .. })
            if transfer == scope.transfer() =>
        {
            Ok(())
        }
        _ => Err("it is for a transfer, which needs nothing of the kind".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::identity::Permit;
    use renkei_core::path::{Place, RelPath};

    fn place(text: &str) -> Place {
        Place::parse(text.as_bytes()).unwrap().unwrap()
    }

    fn scope() -> Scope {
        let permit =
            |at, text, right| Permit { site: SiteName::parse(at).unwrap(), place: place(text), right };
        let permits =
            vec![permit("kek", "/raw/run7", Right::Read), permit("titech", "/data/run7", Right::Write)];
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
            Request::Submit(Vec::new()),
            Request::Terms("scratch".into()),
            Request::ToAgent { storage: "scratch".into(), seed: [0; 32], count: 1 },
        ];
        for request in others {
            assert!(!serves(&request), "{request:?}");
        }
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
            assert!(check(&scope(), &request).is_err(), "{request:?}");
        }
        let through = |site: &str| {
            let site = SiteName::parse(site).unwrap();
            check(&scope(), &Request::Through { site, seed: [0; 32], count: 1, further: 1 })
        };
        assert!(through("kek").is_ok() && through("titech").is_ok() && through("osaka").is_err());
        assert!(check(&scope(), &Request::Line).is_err());
        let unfinished =
            |what| check(&scope(), &Request::Unfinished(AboutUnfinished { storage: None, what }));
        let give_up = |transfer| unfinished(Wish::GiveUp { transfer, owner: "alice@kek".into() });
        assert!(give_up([7; 16]).is_ok() && give_up([8; 16]).is_err());
        assert!(unfinished(Wish::List).is_err() && unfinished(Wish::Drop(Vec::new())).is_err());
        check(&scope(), &Request::Whoami).unwrap();
        check(&scope(), &Request::Stat(Some(place("/raw/run7")))).unwrap();
    }
}
