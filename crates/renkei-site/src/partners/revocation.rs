//! Revocation: work that runs on a revoked certificate is stopped at every site that takes part.
//!
//! The home PoP of a transfer holds its credential. When that is revoked it stops the attempt, and with it the push
//! at the sending site; and it distributes its new revocation list to the sites of all running attempts, by which
//! each of them checks its own running work. So a transfer ends even if the stop request of the home PoP does not
//! arrive.

use super::Partners;
use super::enrolment::without_list;
use crate::access::Proof;
use crate::snapshot::Snapshot;
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::Request;
use renkei_mover::connect::dial::Dialler;
use renkei_net::identity::trust::Trust;
use std::collections::BTreeSet;
use std::time::Duration;

/// Attempts to reach a site, with exponential backoff.
const TRIES: u32 = 6;
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(16));

impl Partners {
    /// Distributes a changed revocation list to these sites.
    pub(crate) fn distribute_revocations(&self, now: &Snapshot, sites: BTreeSet<SiteName>) {
        if let Some(list) = self.news(now) {
            for site in sites.into_iter().filter(|site| *site != now.site) {
                self.tell_list(now, site, list.clone());
            }
        }
    }

    /// The site's revocation list, if it changed since the last check.
    fn news(&self, now: &Snapshot) -> Option<Vec<u8>> {
        let (number, list) = now.trust.revocation_list(&now.site)?;
        let mut told = self.told_list.lock().expect("no thread panics while it holds the lock");
        let before = told.replace(number);
        // Attempts start after the PoP, and are checked against all earlier revocations.
        before.is_none_or(|before| before < number).then(|| list.to_vec())
    }

    fn tell_list(&self, now: &Snapshot, to: SiteName, list: Vec<u8>) {
        let dialler = match self.relay.dialler(now) {
            Ok(dialler) => dialler,
            Err(error) => return tracing::warn!(%error, "a revocation list is not distributed"),
        };
        let card = now.trust.own_card().map(|card| without_list(card).to_text()).unwrap_or_default();
        let tell = move || match tell(&dialler, &to, &list, &card) {
            Ok(()) => tracing::info!(target: "audit", site = %to, "distributed the revocation list"),
            Err(error) => tracing::warn!(%error, "a revocation list was not distributed"),
        };
        if let Err(error) = std::thread::Builder::new().name("revoked".into()).spawn(tell) {
            tracing::warn!(%error, "no thread to distribute a revocation list");
        }
    }

    /// Takes the newest revocation list of a site from its PoP; whether it is newer than the known one.
    ///
    /// # Errors
    /// `NotAllowed` from any other peer, `BadCertificate` if the site's authority did not sign it.
    pub(crate) fn take_revocations(&self, proof: &Proof, list: &[u8]) -> Result<bool, Error> {
        let Principal::Host(site) = &proof.principal else {
            let cause = "a PoP distributes only the revocation list of its own site";
            return Err(Error::new(Code::NotAllowed, "take revocation list", &proof.principal, cause));
        };
        let is_newer = Trust::load(self.context.home())?.merge_crl(site, list)?;
        if is_newer {
            tracing::info!(target: "audit", %site, "its newer revocation list was taken");
        }
        Ok(is_newer)
    }
}

/// Sends the list, with retries. A site that does not know the authority which signed the list is sent the card
/// first.
fn tell(dialler: &Dialler, to: &SiteName, list: &[u8], card: &str) -> Result<(), Error> {
    let mut pauses = BACKOFF.begin();
    for _ in 1..TRIES {
        let told =
            dialler.connect(to).and_then(|mut session| session.ask(Request::Revocations(list.to_vec())));
        match told {
            Ok(_) => return Ok(()),
            Err(error) if error.code == Code::BadCertificate => {
                let taken =
                    dialler.connect(to).and_then(|mut session| session.ask(Request::TakeCard(card.into())));
                tracing::debug!(?taken, "a site is told the card before the list");
            }
            Err(error) => tracing::debug!(%error, "a revocation list is distributed again"),
        }
        std::thread::sleep(pauses.next(random_number()));
    }
    dialler.connect(to)?.ask(Request::Revocations(list.to_vec())).map(drop)
}
