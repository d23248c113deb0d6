//! Reverse connections (lines): sessions that PoPs without a reachable port and agents keep to this one, and those that
//! this one keeps to others.

use super::Relay;
use super::agents::{check_agent, may_stay};
use crate::access::Proof;
use crate::evidence::Evidence;
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::route::Way;
use renkei_core::wire::message::{LineStatus, Reply, Request};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::Dialler;
use renkei_mover::connect::route_context::RouteContext;
use renkei_mover::connect::transport::Transport;
use renkei_net::control::{ControlReceiver, ControlSender};
use renkei_net::identity::credential::Credential;
use renkei_net::reverse_registry::{LINE_SILENCE, Registration};
use renkei_net::socket::give_up_after;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Instant, SystemTime};

/// The keeper's end of a line of this PoP.
pub struct KeptLine {
    /// The control stream on which calls arrive.
    pub control: ControlReceiver,
    /// The address of the other PoP's port.
    pub address: SocketAddr,
}

/// Open sessions of lines and circuits, with the proof of each peer.
#[derive(Default)]
pub(crate) struct ReverseConnections(Mutex<Vec<(Proof, Weak<ControlSender>)>>);

/// The lines this PoP keeps: those that are up, and those that are down.
#[derive(Default)]
pub(crate) struct OwnLines(Mutex<Ups>);

#[derive(Default)]
struct Ups {
    up: Vec<(SiteName, Instant)>,
    /// Lines that are down, with the error, once it is known.
    down: BTreeMap<SiteName, Option<Error>>,
}

/// Lists a line as up while it lives.
pub struct Keeping<'a>(&'a OwnLines, SiteName);

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        let mut lines = self.0.lock();
        lines.up.retain(|(site, _)| *site != self.1);
        lines.down.entry(self.1.clone()).or_default();
    }
}

impl OwnLines {
    fn lock(&self) -> MutexGuard<'_, Ups> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// The sites to which a line is up.
    pub(crate) fn up(&self) -> Vec<SiteName> {
        self.lock().up.iter().map(|(site, _)| site.clone()).collect()
    }

    /// The lines to these sites that are down, with the error, if it is known.
    pub(crate) fn down(&self, wanted: &[SiteName]) -> Vec<(SiteName, Option<Error>)> {
        let lines = self.lock();
        let down = |hub: &SiteName| Some((hub.clone(), lines.down.get(hub)?.clone()));
        wanted.iter().filter_map(down).collect()
    }
}

impl ReverseConnections {
    pub(crate) fn add(&self, proof: &Proof, link: &Arc<ControlSender>) {
        let mut held = self.0.lock().expect("no thread panics while it holds the lock");
        held.retain(|(_, link)| link.strong_count() > 0);
        held.push((proof.clone(), Arc::downgrade(link)));
    }

    /// Whether a peer with the same name and another key holds a session.
    fn has_rival(&self, proof: &Proof) -> bool {
        let held = self.0.lock().expect("no thread panics while it holds the lock");
        let mut alive = held.iter().filter(|(_, link)| link.strong_count() > 0);
        let key = proof.public_key();
        alive.any(|(other, _)| other.principal == proof.principal && other.public_key() != key)
    }

    /// Closes the sessions of peers that are no longer trusted; returns the agents among them.
    pub(crate) fn look(&self, now: &Snapshot) -> Vec<Principal> {
        let mut left = Vec::new();
        let mut held = self.0.lock().expect("no thread panics while it holds the lock");
        held.retain(|(proof, link)| {
            let Some(link) = link.upgrade() else { return false };
            let good = may_stay(proof, now);
            if let Err(error) = &good {
                tracing::info!(principal = %proof.principal, %error, "a line or passage is closed");
                link.shutdown();
                if matches!(proof.principal, Principal::Agent { .. }) {
                    left.push(proof.principal.clone());
                }
            }
            good.is_ok()
        });
        left
    }
}

impl Relay {
    /// A dialler with the credential of this PoP, which knows the lines to it.
    pub(crate) fn dialler(&self, snapshot: &Snapshot) -> Result<Dialler, Error> {
        self.dialler_with(snapshot, &snapshot.credential)
    }

    /// The same with the former name of the site, as long as there may be partners that do not know the new one.
    pub(crate) fn dialler_to_untold(&self, snapshot: &Snapshot) -> Result<Dialler, Error> {
        self.dialler_with(snapshot, snapshot.former_credential.as_ref().unwrap_or(&snapshot.credential))
    }

    fn dialler_with(&self, snapshot: &Snapshot, credential: &Credential) -> Result<Dialler, Error> {
        let silence = snapshot.config.stall_timeout();
        let dialler = Dialler::new(credential, snapshot.trust.clone(), silence)?;
        Ok(dialler.with_ways(self.ways(snapshot)))
    }

    pub(crate) fn ways(&self, snapshot: &Snapshot) -> RouteContext {
        RouteContext {
            reverse_registry: Some(self.reverse_registry.clone()),
            rules: snapshot.config.route_rules(),
            memory: self.memory.clone(),
            ..RouteContext::of(&snapshot.principal)
        }
    }

    /// Registers a session as the line of a PoP or an agent, as long as the returned value lives.
    ///
    /// # Errors
    /// `NotAllowed` for all but the PoPs of other sites and agents of this one, `AgentRefused`.
    pub fn take_line(&self, proof: &Proof, link: &Arc<ControlSender>) -> Result<Registration<'_>, Error> {
        let keeper = &proof.principal;
        match keeper {
            Principal::Host(site) if *site != self.context.name() => {}
            Principal::Agent { site, .. } if *site == self.context.name() => self.check_alone(proof)?,
            other => {
                let cause = "only the PoP of another site and agents of this one keep a line to it";
                return Err(Error::new(Code::NotAllowed, "keep line", other, cause));
            }
        }
        tracing::info!(target: "audit", %keeper, "line up");
        Ok(self.reverse_registry.list(keeper, link.clone()))
    }

    fn check_alone(&self, proof: &Proof) -> Result<(), Error> {
        check_agent(proof, &self.context.snapshot())?;
        match self.held.has_rival(proof) {
            false => Ok(()),
            true => {
                let cause = "another agent serves it now; this one takes over when that has ended";
                Err(Error::new(Code::AgentRefused, "keep line", &proof.principal, cause))
            }
        }
    }

    /// Registers a session to be closed when its peer is no longer trusted.
    pub fn hold(&self, proof: &Proof, link: &Arc<ControlSender>) {
        self.held.add(proof, link);
    }

    /// Opens a line to the PoP of `hub`.
    pub fn open_line(&self, hub: &SiteName) -> Result<KeptLine, Error> {
        let snapshot = self.context.snapshot();
        let mut ways = self.ways(&snapshot);
        // A line is always dialled directly, whatever the routing rules for the site.
        ways.rules.remove(hub);
        ways.further = 0;
        ways.reverse_registry = None;
        let mut session = self.dialler(&snapshot)?.with_ways(ways).connect(hub)?;
        let Transport::Direct(address, _) = session.reach else {
            let cause = format!("{} is not dialled", Way::Direct);
            return Err(Error::new(Code::NoRoute, "keep line", hub, cause));
        };
        match session.ask(Request::Line)? {
            Reply::Done => {}
            other => return Err(violation("line", format_args!("{other:?}"))),
        }
        let evidence = Evidence::Chain(session.peer_chain().into());
        let proof =
            Proof { principal: Principal::Host(hub.clone()), scope: None, evidence, at: SystemTime::now() };
        let mut control = session.control;
        let link = control.sender();
        give_up_after(link.socket(), Some(LINE_SILENCE));
        control.bear_silence(LINE_SILENCE)?;
        self.held.add(&proof, &link);
        Ok(KeptLine { control, address })
    }

    /// Lists a line to `hub` as up, as long as the returned value lives.
    pub fn keep_line(&self, hub: &SiteName) -> Keeping<'_> {
        let mut lines = self.own_lines.lock();
        lines.up.push((hub.clone(), Instant::now()));
        lines.down.remove(hub);
        drop(lines);
        Keeping(&self.own_lines, hub.clone())
    }

    /// Records that a line is down, with the error once it is known.
    pub fn line_is_down(&self, hub: &SiteName, error: Option<&Error>) {
        let mut lines = self.own_lines.lock();
        let why = lines.down.entry(hub.clone()).or_default();
        *why = error.cloned().or_else(|| why.take());
    }

    /// Status of the lines that are up, for the sites that `is_told` accepts.
    pub(crate) fn line_status(&self, is_told: impl Fn(&SiteName) -> bool) -> Vec<LineStatus> {
        let lines = self.reverse_registry.lines();
        let of_others = lines.iter().filter(|line| matches!(line.keeper, Principal::Host(_)));
        let of_others = of_others.map(|line| LineStatus {
            site: line.keeper.site().clone(),
            kept_here: false,
            up_s: line.since.elapsed().as_secs(),
        });
        let own = self.own_lines.lock().up.clone().into_iter().map(|(site, since)| LineStatus {
            site,
            kept_here: true,
            up_s: since.elapsed().as_secs(),
        });
        own.chain(of_others).filter(|line| is_told(&line.site)).collect()
    }
}
