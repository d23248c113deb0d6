//! The trust store: the own site's card, the cards in `trust/`, and the newest revocation list of each site.
//!
//! Guarantees: a card never silently replaces one with another fingerprint; a revocation list is accepted only if the
//! site's own authority signed it and its number is higher than that of the known one. A card with another authority
//! replaces one only if the authority known here handed over to it ([`super::handover`]), while the overlap lasts or
//! if it comes from a trusted source. Non-goal: verifying peers, see [`super::verify`].

pub mod card;
pub mod card_history;
pub mod former_names;
pub mod invitation;

use super::certificate::{parse, parse_chain};
use super::handover::{Handover, check_name, former_name, lead, number_of};
use super::pki::handover_file::{handover_to, handovers_before};
use super::trust::card::{MAX_CARD_BYTES, SiteCard};
use super::trust::card_history::{CardChange, note};
use renkei_config::Config;
use renkei_config::home::{Home, file_error, make_dir, make_private_dir, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

/// Largest revocation list accepted.
pub const MAX_LIST_BYTES: usize = 1 << 20;

/// A revocation list whose signature was verified.
#[derive(Debug)]
pub struct RevocationList {
    /// Whether the site's current authority signed it, not the previous one; then its number. A later list is higher.
    rank: (bool, u64),
    der: Vec<u8>,
    parsed: webpki::CertRevocationList<'static>,
}

/// The effect of adding a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Added {
    /// The site was not known.
    New,
    /// The site was known by the same authority; its endpoints or hand-overs changed.
    Updated,
    /// The site was known by another authority, which handed over to this one.
    Replaced,
    /// The site was known by another name, whose authority handed over to this one.
    Renamed,
    /// No change.
    Same,
}

/// The home of a user's trust in `site`: that of the PoP of the same site, else a separate one. The PoP of another
/// site must not trust the sites that a login brings.
///
/// # Errors
/// Errors of the PoP's files.
pub fn home_of_user(home: &Home, site: &SiteName) -> Result<Home, Error> {
    let is_apart = home.has_identity() || own_card(home)?.is_some_and(|card| card.site != *site);
    Ok(if is_apart { home.of_user() } else { home.clone() })
}

/// The trusted sites.
#[derive(Debug)]
pub struct Trust {
    home: Home,
    own: Option<SiteName>,
    cards: BTreeMap<SiteName, SiteCard>,
    lists: BTreeMap<SiteName, RevocationList>,
}

impl Trust {
    /// An empty trust store.
    pub fn empty(home: &Home) -> Self {
        Trust { home: home.clone(), own: None, cards: BTreeMap::new(), lists: BTreeMap::new() }
    }

    /// Trust in the site of one card, in memory only.
    pub fn only(home: &Home, card: SiteCard) -> Self {
        Trust { cards: BTreeMap::from([(card.site.clone(), card)]), ..Trust::empty(home) }
    }

    /// Reads the PoP's own site, if `home` has a PoP, and all cards and lists.
    pub fn load(home: &Home) -> Result<Self, Error> {
        let mut trust = Trust::empty(home);
        for path in card_files(&home.trust_dir())?.iter().filter(|path| !is_of_former_name(path)) {
            let card = read_card(path)?;
            trust.cards.insert(card.site.clone(), card);
        }
        if let Some(card) = own_card(home)? {
            trust.own = Some(card.site.clone());
            trust.cards.insert(card.site.clone(), card);
        }
        trust.load_lists()?;
        Ok(trust)
    }

    fn load_lists(&mut self) -> Result<(), Error> {
        for card in self.cards.values() {
            let path = self.home.crl_file(&card.site);
            let kept = read_list(&path)?.filter(|der| !is_of_older(card, der));
            let kept = kept.map(|der| RevocationList::check(card, der)).transpose()?;
            let carried =
                card.revocation_list.clone().map(|der| RevocationList::check(card, der)).transpose()?;
            let newest = [kept, carried].into_iter().flatten().max_by_key(|list| list.rank);
            if let Some(list) = newest {
                self.lists.insert(card.site.clone(), list);
            }
        }
        Ok(())
    }

    /// The site of the PoP in this directory, if there is one.
    pub fn own_site(&self) -> Option<&SiteName> {
        self.own.as_ref()
    }

    /// Makes the own card announce these endpoints, in memory only.
    pub fn announce(&mut self, endpoints: &[String]) {
        if let Some(card) = self.own.as_ref().and_then(|own| self.cards.get_mut(own)) {
            card.endpoints = endpoints.to_vec();
        }
    }

    /// The own site's card.
    pub fn own_card(&self) -> Option<&SiteCard> {
        self.card(self.own_site()?)
    }

    /// The cards of all trusted sites, the own one among them, by name.
    pub fn list(&self) -> impl Iterator<Item = &SiteCard> {
        self.cards.values()
    }

    /// A site's card, also by a name that it had when this process started.
    pub fn card(&self, site: &SiteName) -> Option<&SiteCard> {
        self.cards.get(&*site.current())
    }

    /// A site's card to be handed on: with the newest revocation list.
    pub fn export(&self, site: &SiteName) -> Option<SiteCard> {
        let mut card = self.card(site)?.clone();
        card.revocation_list = self.lists.get(&card.site).map(|list| list.der.clone());
        Some(card)
    }

    /// The endpoints of a site's PoPs.
    pub fn endpoints(&self, site: &SiteName) -> Result<&[String], Error> {
        let unknown = || Error::new(Code::SiteUnknown, "look up site", site, "");
        self.card(site).map(|card| &card.endpoints[..]).ok_or_else(unknown)
    }

    /// A site's revocation list and its number.
    pub fn revocation_list(&self, site: &SiteName) -> Option<(u64, &[u8])> {
        self.lists.get(site).map(|list| (list.rank.1, &list.der[..]))
    }

    /// Whether the known list of a site is signed by its current authority; true without a list.
    pub fn list_is_of_now(&self, site: &SiteName) -> bool {
        self.lists.get(site).is_none_or(|list| list.rank.0)
    }

    /// Whether the known list of a site has a serial. An unreadable entry counts as this one.
    pub fn is_revoked(&self, site: &SiteName, serial: &[u8]) -> bool {
        self.parsed_list(site).is_some_and(|list| !matches!(list.find_serial(serial), Ok(None)))
    }

    pub(super) fn parsed_list(&self, site: &SiteName) -> Option<&webpki::CertRevocationList<'static>> {
        self.lists.get(site).map(|list| &list.parsed)
    }

    /// Adds a site to the trust and stores its card.
    ///
    /// # Errors
    /// `CardConflict` if the site is known by another authority that did not hand over to this one,
    /// `AuthorityReplaced` if the overlap is over; nothing is changed then.
    pub fn add(&mut self, card: SiteCard) -> Result<Added, Error> {
        self.keep(card, Some(SystemTime::now()))
    }

    /// The same for a card from a trusted source: a person who compared the fingerprint, or the own site's PoP at a
    /// login. Expired hand-overs count then.
    ///
    /// # Errors
    /// `CardConflict`.
    pub fn add_given(&mut self, card: SiteCard) -> Result<Added, Error> {
        self.keep(card, None)
    }

    fn keep(&mut self, card: SiteCard, at: Option<SystemTime>) -> Result<Added, Error> {
        let carried = card.revocation_list.clone();
        let (added, card) = self.merge(card, at)?;
        if added != Added::Same && self.own.as_ref() != Some(&card.site) {
            make_dir(&self.home.trust_dir(), 0o755)?;
            write_file(&card_path(&self.home, &card.site), card.to_text().as_bytes(), 0o644)?;
            if let Some(former) = self.under_former_name(&card)?.filter(|_| added == Added::Renamed) {
                // The card under that name stays for processes that do not know of the renaming yet.
                former_names::note(&self.home, former.site.as_str(), &card.site)?;
            }
            let before = self.cards.insert(card.site.clone(), card.clone());
            note(&self.home, &CardChange::new(&card.site, before.as_ref(), Some(&card)));
            self.rank_list(&card)?;
        }
        if let Some(der) = carried {
            self.merge_crl(&card.site, &der)?;
        }
        Ok(added)
    }

    /// The card of the site under its former name.
    fn under_former_name(&self, card: &SiteCard) -> Result<Option<&SiteCard>, Error> {
        let former = former_name(&card.authority)?;
        Ok(former.and_then(|former| self.cards.values().find(|known| known.site.as_str() == former)))
    }

    /// Ranks the known list anew: it ranks lower once the authority that signed it was replaced.
    fn rank_list(&mut self, card: &SiteCard) -> Result<(), Error> {
        let Some(known) = self.lists.remove(&card.site) else { return Ok(()) };
        if !is_of_older(card, &known.der) {
            self.lists.insert(card.site.clone(), RevocationList::check(card, known.der)?);
        }
        Ok(())
    }

    /// The effect that adding `card` would have.
    ///
    /// # Errors
    /// As [`Trust::add`].
    pub fn compare(&self, card: &SiteCard) -> Result<Added, Error> {
        self.merge(card.clone(), Some(SystemTime::now())).map(|(added, _)| added)
    }

    /// The same for a card from a trusted source.
    ///
    /// # Errors
    /// As [`Trust::add_given`].
    pub fn compare_given(&self, card: &SiteCard) -> Result<Added, Error> {
        self.merge(card.clone(), None).map(|(added, _)| added)
    }

    /// The effect that adding `card` would have, and the card after it. Without a time, expired hand-overs count.
    pub fn merge(&self, card: SiteCard, at: Option<SystemTime>) -> Result<(Added, SiteCard), Error> {
        if let Some(der) = &card.revocation_list {
            RevocationList::check(&card, der.clone())?;
        }
        let is_free = self.cards.get(&card.site).is_none_or(|other| other.authority == card.authority);
        if let Some(known) = self.under_former_name(&card)?.filter(|_| is_free) {
            follow(known, &card, at)?;
            return Ok((Added::Renamed, card));
        }
        let Some(known) = self.cards.get(&card.site) else { return Ok((Added::New, card)) };
        if known.authority != card.authority {
            follow(known, &card, at)?;
            return Ok((Added::Replaced, card));
        }
        // An ended overlap stays ended, even if an older card is presented.
        let handover = known.handover.clone().map(|handover| handover.or_shorter(card.handover.as_ref()));
        let earlier = if handover.is_some() { card.earlier.clone() } else { Vec::new() };
        let same = known.endpoints == card.endpoints
            && known.via == card.via
            && known.handover == handover
            && known.earlier == earlier;
        Ok((if same { Added::Same } else { Added::Updated }, SiteCard { handover, earlier, ..card }))
    }

    /// Removes a site from the trust.
    pub fn remove(&mut self, site: &SiteName) -> Result<(), Error> {
        if self.own.as_ref() == Some(site) {
            let cause = "a PoP always trusts its own site";
            return Err(Error::new(Code::UsageInvalid, "remove site", site, cause));
        }
        let Some(before) = self.cards.remove(site) else {
            return Err(Error::new(Code::SiteUnknown, "remove site", site, ""));
        };
        invitation::cancel_used(&self.home, site)?;
        self.lists.remove(site);
        remove_file(&card_path(&self.home, site))?;
        note(&self.home, &CardChange::new(site, Some(&before), None));
        remove_file(&self.home.crl_file(site))
    }

    /// Stores a revocation list of `site` if it verifies and is newer than the known one; returns whether it did.
    pub fn merge_crl(&mut self, site: &SiteName, der: &[u8]) -> Result<bool, Error> {
        let unknown = || Error::new(Code::SiteUnknown, "take revocation list", site, "");
        let list = RevocationList::check(self.cards.get(site).ok_or_else(unknown)?, der.to_vec())?;
        if self.lists.get(site).is_some_and(|known| known.rank >= list.rank) {
            return Ok(false);
        }
        make_private_dir(self.home.state_dir())?;
        make_private_dir(&self.home.crl_dir())?;
        write_file(&self.home.crl_file(site), der, 0o644)?;
        self.lists.insert(site.clone(), list);
        Ok(true)
    }
}

impl RevocationList {
    /// Verifies that the current or the previous authority of `card` signed the list.
    fn check(card: &SiteCard, der: Vec<u8>) -> Result<Self, Error> {
        let bad = |cause: String| Error::new(Code::BadCertificate, "read revocation list", &card.site, cause);
        let list = parse_list(&der).map_err(bad)?;
        let is_of = |authority: &CertificateDer<'_>| -> Result<bool, Error> {
            let authority = parse(authority)?;
            let is_signed = list.verify_signature(authority.public_key()).is_ok();
            Ok(list.issuer() == authority.subject() && is_signed)
        };
        let is_of_now = is_of(&card.authority)?;
        let is_of_previous =
            card.handover.as_ref().map_or(Ok(false), |handover| is_of(&handover.previous))?;
        if !is_of_now && !is_of_previous {
            return Err(bad("the site's authority did not sign it".into()));
        }
        let number = list_number(&der)?;
        let parsed =
            webpki::OwnedCertRevocationList::from_der(&der).map_err(|error| bad(error.to_string()))?;
        Ok(RevocationList { rank: (is_of_now, number), der, parsed: parsed.into() })
    }
}

/// Whether the issuer of a stored list is an older authority that is not known any more, so that it cannot be
/// verified.
fn is_of_older(card: &SiteCard, der: &[u8]) -> bool {
    let names = |authority: &CertificateDer<'_>, list: &CertificateRevocationList<'_>| {
        parse(authority).is_ok_and(|authority| authority.subject() == list.issuer())
    };
    let mut known = std::iter::once(&card.authority).chain(card.handover.iter().map(|one| &one.previous));
    let Ok(list) = parse_list(der) else { return false };
    let is_older = number_of(&card.authority).is_ok_and(|number| number > 1)
        && !known.any(|authority| names(authority, &list));
    if is_older {
        tracing::warn!(site = %card.site, "a revocation list of an authority that was replaced twice is passed over");
    }
    is_older
}

/// Checks that the authority of `known` handed over to that of `card`.
fn follow(known: &SiteCard, card: &SiteCard, at: Option<SystemTime>) -> Result<(), Error> {
    let both = || format!("known {}, the card has {}", known.fingerprint(), card.fingerprint());
    if card.handover.is_none() {
        return Err(Error::new(Code::CardConflict, "add site card", &card.site, both()));
    }
    let led = lead(&card.site, &known.authority, card.handovers(), at);
    led.map_err(|error| Error { cause: format!("{}; {}", error.cause, both()), ..error })
}

fn parse_list(der: &[u8]) -> Result<CertificateRevocationList<'_>, String> {
    if der.len() > MAX_LIST_BYTES {
        return Err(format!("it is larger than {MAX_LIST_BYTES} bytes"));
    }
    match CertificateRevocationList::from_der(der) {
        Ok(([], list)) => Ok(list),
        Ok(_) => Err("bytes follow the list".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// The number of a revocation list, not verified.
pub(super) fn list_number(der: &[u8]) -> Result<u64, Error> {
    let bad = |cause: String| Error::new(Code::BadCertificate, "read revocation list", "", cause);
    let list = parse_list(der).map_err(bad)?;
    let number = list.crl_number().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| bad("it has no usable number".into()))
}

fn card_path(home: &Home, site: &SiteName) -> PathBuf {
    home.trust_dir().join(format!("{site}.site"))
}

/// Whether a card is stored under a former name of its site.
pub(super) fn is_of_former_name(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    SiteName::parse(stem).is_ok_and(|site| site.as_str() != stem)
}

pub(super) fn card_files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("read trust", dir, &error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| file_error("read trust", dir, &error))?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|extension| extension == "site") && !hidden {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_card(path: &Path) -> Result<SiteCard, Error> {
    let text = read_text(path, MAX_CARD_BYTES as u64)?.unwrap_or_default();
    let bad = |cause: String| Error::new(Code::CardInvalid, "read trust", path.display(), cause);
    let card = SiteCard::parse(&text).map_err(|error| bad(error.cause))?;
    if path.file_stem().and_then(|stem| stem.to_str()) != Some(card.site.as_str()) {
        return Err(bad(format!("the card is of site {}; add cards with `renkei trust add`", card.site)));
    }
    Ok(card)
}

/// The card of the PoP in `home`, made from its configuration; `None` if there is no PoP.
fn own_card(home: &Home) -> Result<Option<SiteCard>, Error> {
    let config = Config::load(home)?;
    let (Some(site), Some(pem)) = (&config.site, read_text(&home.ca_cert(), 64 * 1024)?) else {
        return Ok(None);
    };
    let authority = parse_chain(&pem)?.remove(0);
    check_name(site, &authority)?;
    let handover: Option<Handover> = handover_to(home, site, &authority)?;
    let earlier = match &handover {
        Some(newest) => handovers_before(home, site, &authority, newest)?,
        None => Vec::new(),
    };
    let (endpoints, via) = (config.announced_endpoints(), config.reverse.clone());
    let revocation_list = None;
    Ok(Some(SiteCard { site: site.clone(), endpoints, via, authority, handover, earlier, revocation_list }))
}

fn read_list(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::read(path) {
        Ok(der) => Ok(Some(der)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file_error("read revocation list", path, &error)),
    }
}

pub(super) fn remove_file(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file_error("remove", path, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::Authority;
    use crate::identity::tests::{card, now, pop, site};

    #[test]
    fn cards_are_stored_updated_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let mut kek = card(&Authority::create(&site("kek"), now()).unwrap());
        let mut trust = Trust::load(&home).unwrap();
        assert_eq!(trust.add(kek.clone()).unwrap(), Added::New);
        assert_eq!(trust.add(kek.clone()).unwrap(), Added::Same);
        kek.endpoints = vec!["new.example:1".into()];
        assert_eq!(trust.add(kek.clone()).unwrap(), Added::Updated);
        kek.via = vec![site("osaka")];
        assert_eq!(trust.add(kek.clone()).unwrap(), Added::Updated);
        let mut trust = Trust::load(&home).unwrap();
        assert_eq!(trust.endpoints(&kek.site).unwrap(), ["new.example:1"]);
        trust.remove(&kek.site).unwrap();
        assert_eq!(trust.remove(&kek.site).unwrap_err().code, Code::SiteUnknown);
        assert_eq!(Trust::load(&home).unwrap().list().count(), 0);
    }

    #[test]
    fn another_fingerprint_never_replaces_a_card() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let first = card(&Authority::create(&site("kek"), now()).unwrap());
        let mut trust = Trust::empty(&home);
        trust.add(first.clone()).unwrap();
        let other = card(&Authority::create(&site("kek"), now()).unwrap());
        assert_eq!(trust.add(other).unwrap_err().code, Code::CardConflict);
        assert_eq!(Trust::load(&home).unwrap().card(&first.site), Some(&first));
    }

    #[test]
    fn a_pop_trusts_its_own_site() {
        let dir = tempfile::tempdir().unwrap();
        let (home, authority) = pop(dir.path(), "kek");
        let mut trust = Trust::load(&home).unwrap();
        assert_eq!(trust.own_site(), Some(&site("kek")));
        assert_eq!(&trust.card(&site("kek")).unwrap().authority, authority.certificate());
        assert_eq!(trust.remove(&site("kek")).unwrap_err().code, Code::UsageInvalid);
        let other = card(&Authority::create(&site("kek"), now()).unwrap());
        assert_eq!(trust.add(other).unwrap_err().code, Code::CardConflict);
    }

    #[test]
    fn only_newer_lists_of_the_right_authority_count() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let impostor = Authority::create(&site("kek"), now()).unwrap();
        let mut trust = Trust::empty(&home);
        trust.add(card(&authority)).unwrap();
        let list = |number| authority.sign_list(&[], number, now()).unwrap();
        assert!(trust.merge_crl(&site("kek"), &list(5)).unwrap());
        assert!(!trust.merge_crl(&site("kek"), &list(5)).unwrap());
        assert!(!trust.merge_crl(&site("kek"), &list(4)).unwrap());
        let forged = impostor.sign_list(&[], 9, now()).unwrap();
        assert_eq!(trust.merge_crl(&site("kek"), &forged).unwrap_err().code, Code::BadCertificate);
        assert_eq!(trust.merge_crl(&site("kek"), b"garbage").unwrap_err().code, Code::BadCertificate);
        assert_eq!(trust.merge_crl(&site("osaka"), &list(6)).unwrap_err().code, Code::SiteUnknown);
        let mut trust = Trust::load(&home).unwrap();
        assert_eq!(trust.revocation_list(&site("kek")).unwrap().0, 5);
        assert!(trust.merge_crl(&site("kek"), &list(6)).unwrap());
    }

    #[test]
    fn a_card_brings_its_list() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let mut kek = card(&authority);
        kek.revocation_list = Some(authority.sign_list(&[], 3, now()).unwrap());
        Trust::empty(&home).add(kek.clone()).unwrap();
        let trust = Trust::load(&home).unwrap();
        assert_eq!(trust.revocation_list(&kek.site).unwrap().0, 3);
        assert_eq!(trust.export(&kek.site).unwrap(), kek);
    }

    #[test]
    fn a_misnamed_or_broken_card_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::create_dir(home.trust_dir()).unwrap();
        let path = home.trust_dir().join("osaka.site");
        std::fs::write(&path, card(&Authority::create(&site("kek"), now()).unwrap()).to_text()).unwrap();
        let error = Trust::load(&home).unwrap_err();
        assert_eq!((error.code, error.subject), (Code::CardInvalid, path.display().to_string()));
    }
}
