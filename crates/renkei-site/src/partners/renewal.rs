//! Renewal of the PoP's own certificate, long before it expires, without a restart.
//!
//! If the authority's key is on the PoP's machine nothing else is needed: the new certificate is a changed file, which
//! the PoP reloads, and partners accept it because they know the authority. It is also renewed when the announced
//! endpoints change, because plain HTTPS clients look for these names in it, and when the site has another authority
//! (`renkei_net::identity::authority::rotation`). Guarantee: the key stays. Non-goal: a PoP without the authority's
//! key, whose conditions tell the administrator what to do.

use crate::Context;
use crate::snapshot::Snapshot;
use renkei_config::Config;
use renkei_config::home::{Home, read_text};
use renkei_core::error::Error;
use renkei_net::identity::authority::rotation;
use renkei_net::identity::authority::{Authority, Issued, host_names, renew_host};
use renkei_net::identity::certificate::{Facts, hosts, parse_chain, utc};
use rustls::pki_types::CertificateDer;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Interval at which the loaded certificate is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Retry interval after a failed renewal.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Pause after a successful renewal: bounds a renewal loop, since each certificate is on record for ever.
const REST: Duration = Duration::from_secs(600);

/// Renews a certificate that is due before the PoP reads it, even an expired one; without the authority's key
/// nothing is done.
///
/// # Errors
/// Those of the files.
pub fn renew_at_start(home: &Home, config: &Config, now: SystemTime) -> Result<(), Error> {
    let Some(pem) = read_text(&home.host_cert(), 256 * 1024)? else { return Ok(()) };
    if let Err(error) = complete_rotation(home, now) {
        tracing::error!(code = %error.code, %error, "the change of the authority is not completed");
    }
    let leaf = parse_chain(&pem)?.remove(0);
    let authority = read_text(&home.ca_cert(), 64 * 1024)?.map(|pem| parse_chain(&pem)).transpose()?;
    let authority = authority.as_ref().and_then(|chain| chain.first());
    renew_if_due(home, config, Pair { leaf: &leaf, authority }, now).map(drop)
}

/// Starts the renewal thread, which runs as long as the PoP lives.
pub fn spawn_renewal(context: &Arc<Context>) -> Result<(), Error> {
    let rests: Mutex<Option<(Instant, Duration)>> = Mutex::default();
    let rotations: Mutex<Option<Instant>> = Mutex::default();
    let look = move |context: &Context| {
        look_at_rotation(context, &mut rotations.lock().unwrap_or_else(PoisonError::into_inner));
        let mut rests = rests.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = context.last_snapshot();
        if rests.is_some_and(|(since, pause)| since.elapsed() < pause) {
            return;
        }
        let Some(leaf) = snapshot.credential.chain.first() else { return };
        let authority = snapshot.trust.own_card().map(|card| &card.authority);
        let pair = Pair { leaf, authority };
        let renewed = renew_if_due(context.home(), &snapshot.config, pair, SystemTime::now());
        context.workers.note("renewal", renewed.as_ref().err().cloned());
        *rests = match renewed {
            Ok(None) => None,
            Ok(Some(_)) => {
                context.read_again();
                Some((Instant::now(), REST))
            }
            Err(error) => {
                let remedy = renkei_core::remedy::of(&error);
                tracing::error!(code = %error.code, %error, remedy, "the PoP's certificate is not renewed");
                Some((Instant::now(), AGAIN_AFTER))
            }
        };
    };
    context.spawn_every(context, "renewal", LOOK_EVERY, look)
}

/// Whether the PoP's certificate or its revocation list is signed by another authority than the current one.
fn is_of_rotation(now: &Snapshot) -> bool {
    let Some(card) = now.trust.own_card().filter(|_| !now.is_agent()) else { return false };
    let is_old = rotation::is_old(&now.credential.chain, &card.authority, card.handover.as_ref());
    is_old || !now.trust.list_is_of_now(&now.site)
}

/// Completes a rotation, unless the last attempt failed within `AGAIN_AFTER`.
fn look_at_rotation(context: &Context, failed: &mut Option<Instant>) {
    if failed.is_some_and(|at| at.elapsed() < AGAIN_AFTER) || !is_of_rotation(&context.last_snapshot()) {
        return;
    }
    *failed = match complete_rotation(context.home(), SystemTime::now()) {
        Ok(()) => None,
        Err(error) => {
            tracing::error!(code = %error.code, %error, "the change of the authority is not completed");
            Some(Instant::now())
        }
    };
}

/// Completes an interrupted `renkei site rotate-authority`, if the authority's key is here.
fn complete_rotation(home: &Home, now: SystemTime) -> Result<(), Error> {
    if rotation::complete(home, now)? {
        tracing::info!(target: "audit", "the change of the site's authority was completed");
    }
    Ok(())
}

/// The PoP's certificate and that of its authority, if known.
#[derive(Clone, Copy)]
struct Pair<'c> {
    leaf: &'c CertificateDer<'static>,
    authority: Option<&'c CertificateDer<'static>>,
}

impl Pair<'_> {
    /// Whether a new certificate would not be valid for longer, because it would expire with the authority.
    fn is_last(&self, end: SystemTime) -> bool {
        self.authority
            .and_then(|authority| Facts::read(authority).ok())
            .is_some_and(|authority| end >= authority.not_after)
    }
}

fn renew_if_due(
    home: &Home,
    config: &Config,
    pair: Pair<'_>,
    now: SystemTime,
) -> Result<Option<Issued>, Error> {
    let (leaf, endpoints) = (pair.leaf, config.announced_endpoints());
    let facts = Facts::read(leaf)?;
    let is_late = facts.is_late(now) && !pair.is_last(facts.not_after);
    let other_hosts =
        !host_names(&endpoints).iter().all(|host| hosts(leaf).is_ok_and(|had| had.contains(host)));
    // A certificate from a clock that was ahead is not valid yet.
    let is_early = now < facts.not_before;
    if !(is_late || is_early || other_hosts) || !home.ca_key().exists() {
        return Ok(None);
    }
    let fresh = renew_host(home, &Authority::load(home)?, &endpoints, false, now)?;
    let (serial, until) = (&fresh.serial, utc(fresh.not_after));
    tracing::info!(target: "audit", serial, until, other_hosts, "the PoP's certificate was renewed");
    Ok(Some(fresh))
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::path::SiteName;

    const DAY: Duration = Duration::from_secs(86_400);

    /// Whether a certificate is renewed 300 days after an authority of that age issued it.
    fn is_renewed(age: Duration) -> bool {
        let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let home = Home::at(dir.path());
        let authority = Authority::create(&SiteName::parse("kek").unwrap(), now - age).unwrap();
        authority.store(&home).unwrap();
        std::fs::write(home.config_file(), "site = 'kek'\nendpoints = ['127.0.0.1:7512']").unwrap();
        let config = Config::load(&home).unwrap();
        let old = renew_host(&home, &authority, &config.announced_endpoints(), false, now).unwrap();
        let chain = parse_chain(&old.pem).unwrap();
        let pair = Pair { leaf: &chain[0], authority: Some(authority.certificate()) };
        renew_if_due(&home, &config, pair, now + 300 * DAY).unwrap().is_some()
    }

    #[test]
    fn certificates_that_end_with_their_authority_are_not_renewed_repeatedly() {
        assert!(is_renewed(365 * DAY));
        // The authority, which is valid for ten years, has 310 days left.
        assert!(!is_renewed(3_340 * DAY));
    }
}
