//! The hand-over (key rollover) from a site's authority to the next one.
//!
//! The certificate of an authority that is not the site's first has an extension with its origin: the site, its
//! sequence number, its predecessor (SHA-256), and until when the predecessor's certificates are valid. The
//! predecessor signs a cross-certificate: name and key of the new one, until the same time (RFC 4210, 4.4, "new with
//! old"). So a peer that trusts the old authority can verify the new one, and a peer that knows the new one alone
//! accepts the certificates of the old one.
//!
//! A card also has earlier hand-overs, so that a site that was offline during several of them can follow from the
//! authority it knows to the current one. Each authority names its predecessor by digest: the newest one determines
//! the whole chain.
//!
//! Guarantees: a hand-over is bound to one site, these two authorities and this direction. Non-goal: protection where
//! the old key is compromised; its holder can hand over, too (docs/security.md).

use super::certificate::{BACKDATED, Facts, hex, parse, parse_chain, to_pem, utc};
use super::extension::{octet_string, octets};
use rcgen::CustomExtension;
use renkei_core::error::{Code, Error};
use renkei_core::path::{SiteName, is_label};
use renkei_core::wire::{decode, encode};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::oid_registry::Oid;
use x509_parser::prelude::X509Certificate;

/// The extension with the origin: below 2.25, as that of a delegation.
const ORIGIN_OID: [u64; 4] = [2, 25, 0x3f9a_17c4_52be_4d08, 0x2a6d_5f10_c97b_43e5];
/// The extension with the previous name of the site, if the site was renamed with this authority.
const FORMER_NAME_OID: [u64; 4] = [2, 25, 0x3f9a_17c4_52be_4d08, 0x5c81_0e37_b46a_49d2];
/// Version of the extension.
const VERSION: u8 = 1;
/// The suffix after a site's name in the common name of its authority.
pub(crate) const AUTHORITY_OF: &str = " site authority";
/// Longest overlap, in which two authorities of a site are valid.
pub const LONGEST_OVERLAP: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum of hand-overs in a card beside the newest one: with overlaps of a month, those of most of a year at least.
pub(crate) const MAX_EARLIER: usize = 8;

/// The origin of an authority, from its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    version: u8,
    pub(crate) site: SiteName,
    /// The sequence number; the first authority of a site, which has no origin, is number 1.
    pub(crate) number: u32,
    /// SHA-256 of the predecessor's certificate.
    previous: [u8; 32],
    /// Until when certificates of the predecessor are valid, at most.
    until_unix: u64,
}

/// The hand-over from the previous authority to the one of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Certificate of the previous authority.
    pub previous: CertificateDer<'static>,
    /// The cross-certificate: name and key of the new authority, signed by the previous one.
    pub cross: CertificateDer<'static>,
    /// Until when certificates of the previous one are valid, seconds since 1970.
    pub until_unix: u64,
}

/// The text form in a card.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandoverText {
    previous: String,
    cross: String,
    until_unix: u64,
}

impl Origin {
    /// The origin of the authority that succeeds `previous`.
    pub(crate) fn after(
        site: &SiteName,
        previous: &CertificateDer<'_>,
        until_unix: u64,
    ) -> Result<Self, Error> {
        let number = number_of(previous)?.saturating_add(1);
        let digest = Sha256::digest(previous).into();
        Ok(Origin { version: VERSION, site: site.clone(), number, previous: digest, until_unix })
    }

    /// The extension of the certificate.
    pub(crate) fn extension(&self) -> CustomExtension {
        CustomExtension::from_oid_content(&ORIGIN_OID, octet_string(&encode(self)))
    }

    /// The origin of an authority's certificate, if it is not the first of its site.
    ///
    /// # Errors
    /// `BadCertificate` if the extension is malformed, or is there twice.
    pub(crate) fn read(authority: &CertificateDer<'_>) -> Result<Option<Self>, Error> {
        Self::of(&parse(authority)?)
    }

    fn of(certificate: &X509Certificate<'_>) -> Result<Option<Self>, Error> {
        let Some(content) = extension(certificate, &ORIGIN_OID)? else { return Ok(None) };
        let origin: Origin = decode("origin", content).map_err(|error| bad_extension(&error.cause))?;
        match origin.version {
            VERSION => Ok(Some(origin)),
            other => Err(bad_extension(&format!("version {other}, this renkei knows {VERSION}"))),
        }
    }
}

/// The content of an extension of an authority's certificate.
fn extension<'c>(certificate: &X509Certificate<'c>, oid: &[u64]) -> Result<Option<&'c [u8]>, Error> {
    let oid = Oid::from(oid).expect("the arcs are legal");
    let mut found = certificate.extensions().iter().filter(|extension| extension.oid == oid);
    let Some(extension) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(bad_extension("it says twice which authority it follows"));
    }
    octets(extension.value).map(Some).ok_or_else(|| bad_extension("not an octet string"))
}

fn bad_extension(cause: &str) -> Error {
    Error::new(Code::BadCertificate, "read certificate", "origin", cause)
}

/// The extension of an authority under which the site was renamed.
pub(crate) fn former_name_extension(name: &SiteName) -> CustomExtension {
    CustomExtension::from_oid_content(&FORMER_NAME_OID, octet_string(name.as_str().as_bytes()))
}

/// The name that the site had under the previous authority, if that was another one; not mapped to the current name,
/// even where it is known as a former name.
///
/// # Errors
/// `BadCertificate`.
pub fn former_name(authority: &CertificateDer<'_>) -> Result<Option<String>, Error> {
    let certificate = parse(authority)?;
    let Some(content) = extension(&certificate, &FORMER_NAME_OID)? else { return Ok(None) };
    let name = std::str::from_utf8(content).ok().filter(|name| is_label(name));
    name.map(|name| Some(name.to_owned()))
        .ok_or_else(|| bad_extension("its former name is not that of a site"))
}

/// The sequence number of an authority of its site.
///
/// # Errors
/// `BadCertificate`.
pub(crate) fn number_of(authority: &CertificateDer<'_>) -> Result<u32, Error> {
    Ok(Origin::read(authority)?.map_or(1, |origin| origin.number))
}

impl Handover {
    /// Checks all that needs no clock: both authorities signed, for this site, in this direction.
    ///
    /// # Errors
    /// `CardInvalid`.
    pub(crate) fn check(&self, site: &SiteName, authority: &CertificateDer<'_>) -> Result<(), Error> {
        let bad = |cause: &str| {
            Error::new(
                Code::CardInvalid,
                "read hand-over",
                site,
                format!("its hand-over is invalid: {cause}"),
            )
        };
        let unreadable = |error: Error| bad(&error.cause);
        let (new, old) = (parse(authority).map_err(unreadable)?, parse(&self.previous).map_err(unreadable)?);
        let cross = parse(&self.cross).map_err(unreadable)?;
        let origin = Origin::of(&new).map_err(unreadable)?;
        let origin = origin.ok_or_else(|| bad("the authority says of itself that it is the first"))?;
        if origin.site != *site {
            return Err(bad(&format!("the authority is that of {}", origin.site)));
        }
        if origin.previous != <[u8; 32]>::from(Sha256::digest(&self.previous)) {
            return Err(bad("the authority says that it follows another one"));
        }
        let number = Origin::of(&old).map_err(unreadable)?.map_or(1, |origin| origin.number);
        if origin.number <= number {
            return Err(bad("it goes back to an older authority"));
        }
        if self.until_unix > origin.until_unix {
            return Err(bad("it lasts longer than the authority says"));
        }
        if cross.public_key().raw != new.public_key().raw || cross.subject() != new.subject() {
            return Err(bad("what the authority before signed is another key or name"));
        }
        let is_signed =
            cross.issuer() == old.subject() && cross.verify_signature(Some(old.public_key())).is_ok();
        match is_signed && cross.is_ca() && old.is_ca() {
            true => Ok(()),
            false => Err(bad("the authority before did not sign it")),
        }
    }

    /// Whether both authorities are valid at that time.
    pub fn is_live(&self, at: SystemTime) -> bool {
        at < self.until()
    }

    /// Until when certificates of the previous authority are valid.
    pub fn until(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.until_unix)).unwrap_or(UNIX_EPOCH)
    }

    /// The merge of two hand-overs to the same authority: an earlier end is adopted, never a later one.
    pub(crate) fn or_shorter(self, told: Option<&Handover>) -> Handover {
        match told {
            Some(told) if told.until_unix < self.until_unix && told.previous == self.previous => told.clone(),
            _ => self,
        }
    }

    pub(crate) fn to_text(&self) -> HandoverText {
        HandoverText {
            previous: to_pem("CERTIFICATE", &self.previous),
            cross: to_pem("CERTIFICATE", &self.cross),
            until_unix: self.until_unix,
        }
    }
}

/// Checks that `known` handed over, by one or more of these hand-overs of a card, the newest first. With a time, all
/// of them have to be valid then; without one, expired ones count.
///
/// # Errors
/// `CardConflict` if it did not, `AuthorityReplaced` if it did and the overlap is over.
pub(crate) fn lead<'h>(
    site: &SiteName,
    known: &CertificateDer<'_>,
    handovers: impl Iterator<Item = &'h Handover>,
    at: Option<SystemTime>,
) -> Result<(), Error> {
    let refused = |code, cause: String| Err(Error::new(code, "take over authority", site, cause));
    let mut ended = None;
    for (later, handover) in handovers.enumerate() {
        if at.is_some_and(|at| !handover.is_live(at)) {
            ended = Some(utc(handover.until()));
        }
        if handover.previous != *known {
            continue;
        }
        return match ended {
            Some(end) => {
                let cause = format!("the authority known here was replaced, and the overlap ended on {end}");
                refused(Code::AuthorityReplaced, cause)
            }
            None if later > 0 => refuse_expired(site, known),
            None => Ok(()),
        };
    }
    refused(Code::CardConflict, "the hand-over that it shows is not by the authority known here".into())
}

/// An expired authority's signature starts no chain of several hand-overs.
fn refuse_expired(site: &SiteName, known: &CertificateDer<'_>) -> Result<(), Error> {
    let end = Facts::read_end(&parse(known)?);
    if SystemTime::now() <= end {
        return Ok(());
    }
    let cause =
        format!("it was replaced more than once since, and the authority known here expired on {}", utc(end));
    Err(Error::new(Code::CardConflict, "take over authority", site, cause))
}

/// Checks the hand-overs of a card, without a clock: each leads to the authority that signed the next one.
///
/// # Errors
/// `CardInvalid`.
pub(crate) fn check_all(
    site: &SiteName,
    authority: &CertificateDer<'_>,
    newest: Option<&Handover>,
    earlier: &[Handover],
) -> Result<(), Error> {
    let bad = |cause: &str| Err(Error::new(Code::CardInvalid, "read hand-over", site, cause));
    let Some(newest) = newest else {
        return if earlier.is_empty() { Ok(()) } else { bad("it has earlier hand-overs and no newest one") };
    };
    newest.check(site, authority)?;
    if earlier.len() > MAX_EARLIER {
        return bad("it has too many earlier hand-overs");
    }
    let (site, mut to) = (name_before(site, authority)?, (authority, &newest.previous));
    for handover in earlier {
        if !may_follow(to.0, to.1)? {
            return bad("a hand-over without an overlap, or under another name, is in the middle of others");
        }
        handover.check(&site, to.1)?;
        to = (to.1, &handover.previous);
    }
    Ok(())
}

/// The name that a site had under the predecessor of this authority.
pub(crate) fn name_before(site: &SiteName, authority: &CertificateDer<'_>) -> Result<SiteName, Error> {
    former_name(authority)?.map_or_else(|| Ok(site.clone()), |former| SiteName::parse(&former))
}

/// Whether a chain may continue from the hand-over to `authority` with the one to `previous`. It ends where an
/// authority was replaced without any overlap, as after a compromise of its key, and where the site was renamed.
pub(crate) fn may_follow(
    authority: &CertificateDer<'_>,
    previous: &CertificateDer<'_>,
) -> Result<bool, Error> {
    Ok(had_overlap(authority)? && had_overlap(previous)? && former_name(previous)?.is_none())
}

/// Whether an authority's certificate grants its predecessor an overlap.
fn had_overlap(authority: &CertificateDer<'_>) -> Result<bool, Error> {
    let certificate = parse(authority)?;
    let Some(origin) = Origin::of(&certificate)? else { return Ok(false) };
    let start = certificate.validity().not_before.timestamp().unsigned_abs() + BACKDATED.as_secs();
    Ok(origin.until_unix > start)
}

impl HandoverText {
    /// Parses the certificates; their content is not checked here.
    pub(crate) fn into_handover(self) -> Result<Handover, Error> {
        let one = |pem: &str| Ok(parse_chain(pem)?.remove(0));
        let (previous, cross) = (one(&self.previous)?, one(&self.cross)?);
        Ok(Handover { previous, cross, until_unix: self.until_unix })
    }
}

/// Checks that the certificate of an authority is that of the site in the configuration.
///
/// # Errors
/// `SiteRenamed`.
pub(crate) fn check_name(site: &SiteName, authority: &CertificateDer<'_>) -> Result<(), Error> {
    let certificate = parse(authority)?;
    let named = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    match named.and_then(|name| name.split_once(AUTHORITY_OF)) {
        Some((own, _)) if own != site.as_str() => {
            let mut cause =
                format!("config.toml has `site = \"{site}\"`, pki/ca.pem is the authority of {own}");
            if former_name(authority)?.as_deref() == Some(site.as_str()) {
                cause += &format!(
                    ": the site was renamed at another PoP of it; with pki/handover-{}.toml from there beside it, restart this one",
                    number_of(authority)?
                );
            }
            Err(Error::new(Code::SiteRenamed, "read authority", site, cause))
        }
        // An authority made elsewhere has no such name and is accepted.
        _ => Ok(()),
    }
}

/// SHA-256 of an authority's certificate, as people compare it: `SHA256:ab:cd:...`.
pub fn fingerprint(authority: &CertificateDer<'_>) -> String {
    format!("SHA256:{}", hex(&Sha256::digest(authority), ":"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::Authority;
    use crate::identity::credential::KeyRequest;
    use crate::identity::tests::{card, damaged, site};
    use crate::identity::trust::card::SiteCard;
    use crate::identity::trust::{Added, Trust};
    use crate::identity::verify::verify_peer;
    use proptest::prelude::*;
    use renkei_config::home::Home;
    use renkei_core::identity::Principal;
    use std::sync::LazyLock;

    const DAY: Duration = Duration::from_secs(86_400);

    /// A site that replaces its authority, and a partner that knows the first one.
    struct Here {
        first: Authority,
        second: Authority,
        /// The card of the site once it has the second one.
        card: SiteCard,
        /// The same with an expired hand-over.
        ended: SiteCard,
        trust: Trust,
        now: SystemTime,
        dir: tempfile::TempDir,
    }

    fn here() -> Here {
        let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let first = Authority::create(&site("kek"), now).unwrap();
        let made = first.succeed(&site("kek"), 30 * DAY, now).unwrap();
        let handed = SiteCard { handover: Some(made.handover.clone()), ..card(&made.next) };
        let until_unix = made.handover.until_unix - 31 * 86_400;
        let over = Handover { cross: made.notice, until_unix, ..made.handover };
        let ended = SiteCard { handover: Some(over), ..handed.clone() };
        let mut trust = Trust::load(&Home::at(dir.path())).unwrap();
        trust.add(card(&first)).unwrap();
        Here { first, second: made.next, card: handed, ended, trust, now, dir }
    }

    fn user(authority: &Authority, now: SystemTime) -> Vec<CertificateDer<'static>> {
        let request = KeyRequest::generate().unwrap().request;
        parse_chain(&authority.issue_user("alice", &request, 100, now).unwrap().pem).unwrap()
    }

    fn judge(chain: &[CertificateDer<'_>], trust: &Trust, at: SystemTime) -> Result<Principal, Code> {
        verify_peer(chain, trust, at).map_err(|error| error.code)
    }

    fn taken(card: &SiteCard) -> Result<SiteCard, Error> {
        SiteCard::parse(&card.to_text())
    }

    #[test]
    fn a_partner_accepts_both_authorities_until_the_overlap_ends() {
        let mut here = here();
        let alice = Principal::parse("alice@kek").unwrap();
        let (old, new) = (user(&here.first, here.now), user(&here.second, here.now));
        assert_eq!(judge(&old, &here.trust, here.now), Ok(alice.clone()));
        assert_eq!(judge(&new, &here.trust, here.now), Ok(alice.clone()), "before it was told");
        assert_eq!(here.trust.add(taken(&here.card).unwrap()).unwrap(), Added::Replaced);
        assert_eq!(here.trust.add(here.card.clone()).unwrap(), Added::Same);
        for chain in [&old, &new, &new[..1].to_vec()] {
            assert_eq!(judge(chain, &here.trust, here.now), Ok(alice.clone()));
        }
        let late = here.now + 31 * DAY;
        let (old, new) = (user(&here.first, late), user(&here.second, late));
        assert_eq!(judge(&old, &here.trust, late), Err(Code::CertificateExpired));
        assert_eq!(judge(&new, &here.trust, late), Ok(alice));
    }

    #[test]
    fn a_partner_that_is_too_late_accepts_the_card_by_hand() {
        let mut here = here();
        let late = here.now + 31 * DAY;
        let error = verify_peer(&user(&here.second, late), &here.trust, late).unwrap_err();
        assert_eq!(error.code, Code::AuthorityReplaced);
        assert!(error.cause.contains("kek has replaced its authority"), "{error}");
        assert_eq!(here.trust.add(here.ended.clone()).unwrap_err().code, Code::AuthorityReplaced);
        assert_eq!(here.trust.add_given(taken(&here.ended).unwrap()).unwrap(), Added::Replaced);
        judge(&user(&here.second, late), &here.trust, late).unwrap();
    }

    #[test]
    fn a_partner_learns_the_new_name_of_a_site() {
        let mut here = here();
        let made = here.first.succeed(&site("tsukuba"), 30 * DAY, here.now).unwrap();
        let renamed = SiteCard { handover: Some(made.handover.clone()), ..card(&made.next) };
        assert_eq!(former_name(&renamed.authority).unwrap().as_deref(), Some("kek"));
        let home = Home::at(here.dir.path());
        assert_eq!(here.trust.compare(&taken(&renamed).unwrap()).unwrap(), Added::Renamed);
        assert_eq!(here.trust.add(taken(&renamed).unwrap()).unwrap(), Added::Renamed);
        assert_eq!(
            crate::identity::trust::former_names::read(&home).unwrap().current("kek"),
            Some("tsukuba")
        );
        let mut before = Trust::empty(&Home::at(&here.dir.path().join("before")));
        before.add(card(&here.first)).unwrap();
        let refused = verify_peer(&user(&made.next, here.now), &before, here.now).unwrap_err();
        assert_eq!(refused.code, Code::AuthorityReplaced);
        assert!(refused.cause.contains("kek is called tsukuba now"), "{refused}");
        let alice = user(&made.next, here.now);
        assert_eq!(judge(&alice, &here.trust, here.now), Ok(Principal::parse("alice@tsukuba").unwrap()));
        // Presented again, also after a kill before the name was recorded.
        std::fs::remove_file(home.former_names_file()).unwrap();
        assert_eq!(here.trust.add(renamed).unwrap(), Added::Renamed);
        assert_eq!(
            crate::identity::trust::former_names::read(&home).unwrap().current("kek"),
            Some("tsukuba")
        );
    }

    #[test]
    fn a_site_cannot_take_the_name_of_another() {
        let mut here = here();
        // An impostor claims the former name kek.
        let impostor = Authority::create(&site("kek"), here.now).unwrap();
        let forged = impostor.succeed(&site("tsukuba"), 30 * DAY, here.now).unwrap();
        let forged = SiteCard { handover: Some(forged.handover), ..card(&forged.next) };
        assert_eq!(here.trust.add(taken(&forged).unwrap()).unwrap_err().code, Code::CardConflict);
        assert_eq!(here.trust.add_given(forged).unwrap_err().code, Code::CardConflict);
        // The former kek claims the name of a site that is known.
        let osaka = Authority::create(&site("osaka"), here.now).unwrap();
        here.trust.add(card(&osaka)).unwrap();
        let made = here.first.succeed(&site("osaka"), 30 * DAY, here.now).unwrap();
        let renamed = SiteCard { handover: Some(made.handover), ..card(&made.next) };
        assert_eq!(here.trust.add_given(renamed).unwrap_err().code, Code::CardConflict);
        assert_eq!(&here.trust.card(&site("osaka")).unwrap().authority, osaka.certificate());
        // The former name of another site is not even recorded.
        assert!(former_names_of_cards(&here).is_empty());
    }

    fn former_names_of_cards(here: &Here) -> String {
        crate::identity::trust::former_names::read(&Home::at(here.dir.path())).unwrap().to_text()
    }

    #[test]
    fn a_shortened_overlap_stays_short() {
        let mut here = here();
        let old = user(&here.first, here.now);
        here.trust.add(here.card.clone()).unwrap();
        assert_eq!(here.trust.add(here.ended.clone()).unwrap(), Added::Updated);
        assert_eq!(judge(&old, &here.trust, here.now), Err(Code::CertificateExpired));
        // The card from before the early end is presented again.
        assert_eq!(here.trust.add(here.card.clone()).unwrap(), Added::Same);
        assert_eq!(judge(&old, &here.trust, here.now), Err(Code::CertificateExpired));
    }

    #[test]
    fn only_the_former_authority_can_hand_over() {
        let mut here = here();
        let impostor = Authority::create(&site("kek"), here.now).unwrap();
        let forged = impostor.succeed(&site("kek"), 30 * DAY, here.now).unwrap();
        let forged = SiteCard { handover: Some(forged.handover), ..card(&forged.next) };
        assert_eq!(here.trust.add(taken(&forged).unwrap()).unwrap_err().code, Code::CardConflict);
        assert_eq!(here.trust.add_given(forged.clone()).unwrap_err().code, Code::CardConflict);
        // Not the previous authority either, once the new one is in force.
        here.trust.add(here.card.clone()).unwrap();
        let again = here.first.succeed(&site("kek"), 30 * DAY, here.now).unwrap();
        let again = SiteCard { handover: Some(again.handover), ..card(&again.next) };
        assert_eq!(here.trust.add(taken(&again).unwrap()).unwrap_err().code, Code::CardConflict);
        let known = here.trust.card(&site("kek")).unwrap();
        assert_eq!(&known.authority, here.second.certificate());
    }

    #[test]
    fn a_rotation_cannot_be_reversed() {
        let mut here = here();
        here.trust.add(here.card.clone()).unwrap();
        assert_eq!(here.trust.add(card(&here.first)).unwrap_err().code, Code::CardConflict, "replayed");
        let own = here.card.handover.clone().unwrap();
        let back = Handover { previous: here.second.certificate().clone(), ..own };
        let back = SiteCard { handover: Some(back), ..card(&here.first) };
        assert_eq!(taken(&back).unwrap_err().code, Code::CardInvalid);
    }

    #[test]
    fn an_altered_hand_over_is_refused() {
        let here = here();
        let good = here.card.handover.clone().unwrap();
        let other = here.first.succeed(&site("kek"), 30 * DAY, here.now).unwrap().handover;
        let unsigned = Handover { cross: here.second.certificate().clone(), ..good.clone() };
        let longer = Handover { until_unix: good.until_unix + 1, ..good.clone() };
        let foreign = Handover { previous: other.cross.clone(), ..good.clone() };
        let of_other_key = Handover { cross: other.cross, ..good };
        for altered in [unsigned, longer, foreign, of_other_key] {
            let altered = SiteCard { handover: Some(altered), ..here.card.clone() };
            assert_eq!(taken(&altered).unwrap_err().code, Code::CardInvalid);
        }
        // For another site.
        let renamed = SiteCard { site: site("titech"), ..here.card.clone() };
        let error = taken(&renamed).unwrap_err();
        assert!(error.code == Code::CardInvalid && error.cause.contains("that of kek"), "{error}");
        taken(&here.card).unwrap();
    }

    /// A card of the newest of some authorities, with all hand-overs to it.
    fn chained(made: &[&crate::identity::authority::Succession]) -> SiteCard {
        let mut handovers: Vec<Handover> = made.iter().rev().map(|one| one.handover.clone()).collect();
        let newest = handovers.remove(0);
        let next = &made.last().unwrap().next;
        SiteCard { handover: Some(newest), earlier: handovers, ..card(next) }
    }

    #[test]
    fn an_offline_partner_follows_a_chain_of_rotations() {
        let mut here = here();
        let (kek, keep) = (site("kek"), 30 * DAY);
        let second = here.first.succeed(&kek, keep, here.now).unwrap();
        let third = second.next.succeed(&kek, keep, here.now).unwrap();
        let renamed = third.next.succeed(&site("tsukuba"), keep, here.now).unwrap();
        let whole = chained(&[&second, &third]);
        assert_eq!(taken(&whole).unwrap(), whole);
        assert_eq!(here.trust.compare(&whole).unwrap(), Added::Replaced, "all of them are good");
        let to_new_name = taken(&chained(&[&second, &third, &renamed])).unwrap();
        assert_eq!(here.trust.compare(&to_new_name).unwrap(), Added::Renamed);
        // One of them is expired: refused by itself, accepted from a trusted source.
        let mut over = whole.clone();
        over.earlier[0].until_unix = 1;
        assert_eq!(here.trust.add(taken(&over).unwrap()).unwrap_err().code, Code::AuthorityReplaced);
        assert_eq!(here.trust.add_given(taken(&over).unwrap()).unwrap(), Added::Replaced);
        assert_eq!(here.trust.compare(&whole).unwrap(), Added::Updated);
        assert_eq!(here.trust.add_given(card(&here.first)).unwrap_err().code, Code::CardConflict, "back");
        // Of the older authorities only the previous one may still issue.
        assert_eq!(judge(&user(&here.first, here.now), &here.trust, here.now), Err(Code::UnknownAuthority));
        judge(&user(&second.next, here.now), &here.trust, here.now).unwrap();
    }

    #[test]
    fn a_chain_has_only_predecessors_of_the_newest_authority() {
        let here = here();
        let (kek, keep) = (site("kek"), 30 * DAY);
        let second = here.first.succeed(&kek, keep, here.now).unwrap();
        let third = second.next.succeed(&kek, keep, here.now).unwrap();
        let at_once = second.next.succeed(&kek, Duration::ZERO, here.now).unwrap();
        let after = at_once.next.succeed(&kek, keep, here.now).unwrap();
        let renamed = here.first.succeed(&site("tsukuba"), keep, here.now).unwrap();
        let after_name = renamed.next.succeed(&site("tsukuba"), keep, here.now).unwrap();
        let other = here.first.succeed(&kek, keep, here.now).unwrap();
        let swapped = SiteCard { earlier: vec![other.handover.clone()], ..chained(&[&second, &third]) };
        let headless = SiteCard { handover: None, ..chained(&[&second, &third]) };
        let endless = SiteCard {
            earlier: vec![second.handover.clone(); MAX_EARLIER + 1],
            ..chained(&[&second, &third])
        };
        let bad = [
            chained(&[&other, &third]),
            chained(&[&second, &at_once]),
            chained(&[&second, &at_once, &after]),
            chained(&[&renamed, &after_name]),
            swapped,
            headless,
            endless,
        ];
        for (which, card) in bad.iter().enumerate() {
            assert_eq!(taken(card).map_err(|error| error.code), Err(Code::CardInvalid), "{which}");
        }
    }

    #[test]
    fn an_expired_authority_begins_no_chain() {
        let dir = tempfile::tempdir().unwrap();
        let (kek, now) = (site("kek"), SystemTime::now());
        let first = Authority::create(&kek, now - 3_700 * DAY).unwrap();
        let second = first.succeed(&kek, 30 * DAY, now - 60 * DAY).unwrap();
        let third = second.next.succeed(&kek, 30 * DAY, now - 10 * DAY).unwrap();
        let mut trust = Trust::empty(&Home::at(dir.path()));
        trust.add(card(&first)).unwrap();
        let refused = trust.add_given(taken(&chained(&[&second, &third])).unwrap()).unwrap_err();
        assert!(refused.code == Code::CardConflict && refused.cause.contains("expired on"), "{refused}");
        trust.add_given(taken(&chained(&[&second])).unwrap()).unwrap();
        trust.add_given(taken(&chained(&[&second, &third])).unwrap()).unwrap();
    }

    proptest! {
        #[test]
        fn a_damaged_card_never_gives_another_authority(at in any::<usize>(), how in 0_u8..12) {
            static F: LazyLock<SiteCard> = LazyLock::new(|| here().card);
            let text = String::from_utf8_lossy(&damaged(F.to_text().as_bytes(), at, how)).into_owned();
            let good = F.handover.as_ref().unwrap();
            if let Ok(card) = SiteCard::parse(&text) {
                prop_assert_eq!(&card.authority, &F.authority);
                let is_less = card.handover.is_none_or(|one| {
                    one.previous == good.previous && one.until_unix <= good.until_unix
                });
                prop_assert!(is_less, "{}", text);
            }
        }
    }

    #[test]
    fn one_list_revokes_certificates_of_both_authorities() {
        let mut here = here();
        let (old, new) = (user(&here.first, here.now), user(&here.second, here.now));
        let serial = |chain: &[CertificateDer<'_>]| {
            let serial = crate::identity::certificate::Facts::read(&chain[0]).unwrap().serial;
            crate::identity::authority::issued::Revoked { serial, moment: here.now }
        };
        let before = here.first.sign_list(&[serial(&old)], 90, here.now).unwrap();
        here.trust.merge_crl(&site("kek"), &before).unwrap();
        here.trust.add(here.card.clone()).unwrap();
        assert_eq!(judge(&old, &here.trust, here.now), Err(Code::CertificateRevoked), "by the list before");
        judge(&new, &here.trust, here.now).unwrap();
        // A list of the current authority supersedes any of the previous one.
        let list = here.second.sign_list(&[serial(&old), serial(&new)], 7, here.now).unwrap();
        assert!(here.trust.merge_crl(&site("kek"), &list).unwrap());
        let empty = here.first.sign_list(&[], 99, here.now).unwrap();
        assert!(!here.trust.merge_crl(&site("kek"), &empty).unwrap());
        for chain in [&old, &new] {
            assert_eq!(judge(chain, &here.trust, here.now), Err(Code::CertificateRevoked));
        }
        let read_again = Trust::load(&Home::at(here.dir.path())).unwrap();
        assert_eq!(judge(&old, &read_again, here.now), Err(Code::CertificateRevoked));
    }

    #[test]
    fn a_list_of_an_authority_replaced_twice_is_skipped() {
        let mut here = here();
        let kek = site("kek");
        let list = here.first.sign_list(&[], 5, here.now).unwrap();
        here.trust.merge_crl(&kek, &list).unwrap();
        here.trust.add(here.card.clone()).unwrap();
        let third = here.second.succeed(&site("kek"), 30 * DAY, here.now).unwrap();
        let third = SiteCard { handover: Some(third.handover), ..card(&third.next) };
        assert_eq!(here.trust.add(taken(&third).unwrap()).unwrap(), Added::Replaced);
        assert_eq!(here.trust.revocation_list(&kek), None);
        assert_eq!(Trust::load(&Home::at(here.dir.path())).unwrap().revocation_list(&kek), None);
    }
}
