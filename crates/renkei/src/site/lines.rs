//! Lines: sessions that PoPs which cannot be dialled keep to this one, and those this one keeps to others.

use super::Site;
use super::access::Proof;
use super::snapshot::Snapshot;
use crate::identity::verify::verify_holder;
use crate::mover::dial::Dialler;
use crate::mover::reach::Reach;
use crate::mover::routes::Ways;
use crate::net::control::{ControlReceiver, ControlSender};
use crate::net::socket::give_up_after;
use crate::net::switchboard::{LINE_SILENCE, Listed};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::route::Way;
use renkei_core::wire::message::{LineStatus, Reply, Request};
use renkei_core::wire::violation;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Instant, SystemTime};

/// A line this PoP keeps, from its own end.
pub struct KeptLine {
    /// Calls come here.
    pub control: ControlReceiver,
    /// Where the other PoP's port is.
    pub address: SocketAddr,
}

/// Sessions that are held open for what comes, with whoever is at their other end.
#[derive(Default)]
pub(crate) struct Held(Mutex<Vec<(Proof, Weak<ControlSender>)>>);

/// The lines this PoP keeps now.
#[derive(Default)]
pub(crate) struct OwnLines(Mutex<Vec<(SiteName, Instant)>>);

/// Lists a line as kept for as long as it lives.
pub struct Keeping<'a>(&'a OwnLines, SiteName);

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        self.0.lock().retain(|(site, _)| *site != self.1);
    }
}

impl OwnLines {
    fn lock(&self) -> MutexGuard<'_, Vec<(SiteName, Instant)>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }
}

impl Held {
    pub(super) fn add(&self, proof: &Proof, link: &Arc<ControlSender>) {
        let mut held = self.0.lock().expect("no thread panics while it holds the lock");
        held.retain(|(_, link)| link.strong_count() > 0);
        held.push((proof.clone(), Arc::downgrade(link)));
    }

    /// Closes the sessions of those who are not trusted any more.
    pub(super) fn look(&self, now: &Snapshot) {
        let mut held = self.0.lock().expect("no thread panics while it holds the lock");
        held.retain(|(proof, link)| {
            let Some(link) = link.upgrade() else { return false };
            let good = verify_holder(&proof.chain, &now.trust, SystemTime::now());
            if let Err(error) = &good {
                tracing::info!(principal = %proof.principal, %error, "a line or passage is closed");
                link.shutdown();
            }
            good.is_ok()
        });
    }
}

impl Site {
    /// A dialler in the name of this PoP, which knows the lines that lead here.
    pub(super) fn dialler(&self, snapshot: &Snapshot) -> Result<Dialler, Error> {
        let silence = snapshot.config.stall_timeout();
        let dialler = Dialler::new(&snapshot.credential, snapshot.trust.clone(), silence)?;
        Ok(dialler.with_ways(self.ways(snapshot)))
    }

    pub(super) fn ways(&self, snapshot: &Snapshot) -> Ways {
        Ways {
            switchboard: Some(self.switchboard.clone()),
            rules: snapshot.config.route_rules(),
            memory: self.memory.clone(),
            ..Ways::of(&Principal::Host(snapshot.site.clone()))
        }
    }

    /// Takes a session as the line of a PoP, as long as what is returned lives.
    ///
    /// # Errors
    /// `NotAllowed` for anybody but the PoP of another site.
    pub fn take_line(&self, proof: &Proof, link: &Arc<ControlSender>) -> Result<Listed<'_>, Error> {
        match &proof.principal {
            Principal::Host(site) if *site != self.name() => {
                tracing::info!(target: "audit", %site, "line up");
                Ok(self.switchboard.list(site, link.clone()))
            }
            other => {
                let cause = "only the PoP of another site keeps a line to this one";
                Err(Error::new(Code::NotAllowed, "keep line", other, cause))
            }
        }
    }

    /// Has a session closed when its peer is not trusted any more.
    pub fn hold(&self, proof: &Proof, link: &Arc<ControlSender>) {
        self.held.add(proof, link);
    }

    /// Opens a line to the PoP of `hub`.
    pub fn open_line(&self, hub: &SiteName) -> Result<KeptLine, Error> {
        let snapshot = self.snapshot();
        let mut ways = self.ways(&snapshot);
        // A line is dialled, whatever the ways to the site are otherwise.
        ways.rules.remove(hub);
        ways.further = 0;
        ways.switchboard = None;
        let mut session = self.dialler(&snapshot)?.with_ways(ways).connect(hub)?;
        let Reach::Direct(address, _) = session.reach else {
            let cause = format!("{} is not dialled", Way::Direct);
            return Err(Error::new(Code::NoRoute, "keep line", hub, cause));
        };
        match session.ask(Request::Line)? {
            Reply::Done => {}
            other => return Err(violation("line", format_args!("{other:?}"))),
        }
        let chain = session.peer_chain().into();
        let proof =
            Proof { principal: Principal::Host(hub.clone()), scope: None, chain, at: SystemTime::now() };
        let mut control = session.control;
        let link = control.sender();
        give_up_after(link.socket(), Some(LINE_SILENCE));
        control.bear_silence(LINE_SILENCE)?;
        self.held.add(&proof, &link);
        Ok(KeptLine { control, address })
    }

    /// Lists a line to `hub` as up, as long as what is returned lives.
    pub fn keep_line(&self, hub: &SiteName) -> Keeping<'_> {
        self.own_lines.lock().push((hub.clone(), Instant::now()));
        Keeping(&self.own_lines, hub.clone())
    }

    pub(super) fn line_status(&self) -> Vec<LineStatus> {
        let of_others = self.switchboard.lines().into_iter().map(|line| LineStatus {
            site: line.site.clone(),
            kept_here: false,
            up_s: line.since.elapsed().as_secs(),
        });
        let own = self.own_lines.lock().clone().into_iter().map(|(site, since)| LineStatus {
            site,
            kept_here: true,
            up_s: since.elapsed().as_secs(),
        });
        own.chain(of_others).collect()
    }
}
