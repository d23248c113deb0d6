//! The PoP's own certificate, renewed long before its end, without a restart.
//!
//! Where the authority is beside the PoP nothing else is needed: the fresh certificate is a changed file, which the PoP reads as
//! any, and partners believe it because they know the authority. Also when other endpoints are announced, because plain HTTPS
//! clients look for these names in it, and when the site has another authority (`identity::rotation`). Guarantee: the key stays. Non-goal: a PoP without the authority's key, which is told
//! what to do by its conditions.

use super::Site;
use super::snapshot::Snapshot;
use super::watch::spawn_every;
use crate::config::Config;
use crate::home::{Home, read_text};
use crate::identity::authority::{Authority, Issued, host_names, renew_host};
use crate::identity::certificate::{Facts, hosts, parse_chain, utc};
use crate::identity::rotation;
use renkei_core::error::Error;
use rustls::pki_types::CertificateDer;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How often the PoP looks at its certificate, which it has in memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a renewal that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Pause after one that worked: whatever seems due again at once is not, and each certificate is on record for ever.
const REST: Duration = Duration::from_secs(600);

/// Renews what is due before the PoP reads it, also a certificate that has expired; without the authority nothing is done.
///
/// # Errors
/// Those of the files.
pub fn renew_at_start(home: &Home, config: &Config, now: SystemTime) -> Result<(), Error> {
    let Some(pem) = read_text(&home.host_cert(), 256 * 1024)? else { return Ok(()) };
    if let Err(error) = complete_rotation(home, now) {
        tracing::error!(code = %error.code, %error, "the change of the authority is not completed");
    }
    let leaf = parse_chain(&pem)?.remove(0);
    renew_if_due(home, config, &leaf, now).map(drop)
}

/// Starts the thread that renews the PoP's certificate as long as it lives.
pub fn spawn_renewal(site: &Arc<Site>) -> Result<(), Error> {
    let rests: Mutex<Option<(Instant, Duration)>> = Mutex::default();
    let rotations: Mutex<Option<Instant>> = Mutex::default();
    let look = move |site: &Site| {
        look_at_rotation(site, &mut rotations.lock().unwrap_or_else(PoisonError::into_inner));
        let mut rests = rests.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = site.last_snapshot();
        if rests.is_some_and(|(since, pause)| since.elapsed() < pause) {
            return;
        }
        let Some(leaf) = snapshot.credential.chain.first() else { return };
        let renewed = renew_if_due(site.home(), &snapshot.config, leaf, SystemTime::now());
        site.workers.note("renewal", renewed.as_ref().err().cloned());
        *rests = match renewed {
            Ok(None) => None,
            Ok(Some(_)) => {
                site.read_again();
                Some((Instant::now(), REST))
            }
            Err(error) => {
                let remedy = renkei_core::remedy::of(&error);
                tracing::error!(code = %error.code, %error, remedy, "the PoP's certificate is not renewed");
                Some((Instant::now(), AGAIN_AFTER))
            }
        };
    };
    spawn_every(site, "renewal", LOOK_EVERY, look)
}

/// Whether the PoP shows, or has signed its list by, another authority than that of now.
fn is_of_rotation(now: &Snapshot) -> bool {
    let Some(card) = now.trust.own_card().filter(|_| !now.is_agent()) else { return false };
    let is_old = rotation::is_old(&now.credential.chain, &card.authority, card.handover.as_ref());
    is_old || !now.trust.list_is_of_now(&now.site)
}

/// Completes a rotation, unless that failed a moment ago.
fn look_at_rotation(site: &Site, failed: &mut Option<Instant>) {
    if failed.is_some_and(|at| at.elapsed() < AGAIN_AFTER) || !is_of_rotation(&site.last_snapshot()) {
        return;
    }
    *failed = match complete_rotation(site.home(), SystemTime::now()) {
        Ok(()) => None,
        Err(error) => {
            tracing::error!(code = %error.code, %error, "the change of the authority is not completed");
            Some(Instant::now())
        }
    };
}

/// Does what a killed `renkei site rotate-authority` has left, where the authority's key is.
fn complete_rotation(home: &Home, now: SystemTime) -> Result<(), Error> {
    if rotation::complete(home, now)? {
        tracing::info!(target: "audit", "the change of the site's authority was completed");
    }
    Ok(())
}

fn renew_if_due(
    home: &Home,
    config: &Config,
    leaf: &CertificateDer<'_>,
    now: SystemTime,
) -> Result<Option<Issued>, Error> {
    let endpoints = config.announced_endpoints();
    let facts = Facts::read(leaf)?;
    let other_hosts =
        !host_names(&endpoints).iter().all(|host| hosts(leaf).is_ok_and(|had| had.contains(host)));
    // A clock that was ahead has made one that nobody takes yet.
    let is_early = now < facts.not_before;
    if !(facts.is_late(now) || is_early || other_hosts) || !home.ca_key().exists() {
        return Ok(None);
    }
    let fresh = renew_host(home, &Authority::load(home)?, &endpoints, false, now)?;
    let (serial, until) = (&fresh.serial, utc(fresh.not_after));
    tracing::info!(target: "audit", serial, until, other_hosts, "the PoP's certificate was renewed");
    Ok(Some(fresh))
}
