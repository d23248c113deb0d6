//! Site cards: exchanged by the administrators of two sites so that the sites can trust each other.
//!
//! A small TOML text with the site's name, its endpoints, the certificate of its authority and, if it has revoked
//! certificates, its revocation list. The fingerprint line is SHA-256 of the authority's certificate; people compare
//! it out of band (telephone). A card whose fingerprint does not match is refused. Non-goal: secrecy; a card holds
//! nothing secret.

use crate::identity::certificate::{parse, parse_chain, to_pem};
use crate::identity::handover;
use crate::identity::handover::{Handover, HandoverText, MAX_EARLIER};
use renkei_config::is_endpoint;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Version of the format.
const VERSION: u32 = 1;
/// Largest card accepted; room for a list of about 20,000 revoked certificates.
pub const MAX_CARD_BYTES: usize = 1 << 20;
/// Maximum of endpoints in a card.
const MAX_ENDPOINTS: usize = 16;

/// A site card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteCard {
    /// The site.
    pub site: SiteName,
    /// `host:port` of its PoPs, in the order to try them; for a site with `via`, known to its own users alone.
    pub endpoints: Vec<String>,
    /// Sites whose PoPs it keeps lines to, because it cannot be dialled.
    pub via: Vec<SiteName>,
    /// Certificate of its authority.
    pub authority: CertificateDer<'static>,
    /// The hand-over from its previous authority, if it is not the site's first.
    pub handover: Option<Handover>,
    /// The hand-overs before that one that may be followed, the newest first; for sites that were offline during it.
    pub earlier: Vec<Handover>,
    /// Its revocation list, DER; not verified here.
    pub revocation_list: Option<Vec<u8>>,
}

/// The text form.
#[derive(Serialize, Deserialize)]
struct CardText {
    version: u32,
    site: SiteName,
    fingerprint: String,
    endpoints: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    via: Vec<SiteName>,
    ca: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crl: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handover: Option<HandoverText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<HandoverText>,
}

impl SiteCard {
    /// Parses and checks a card.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_CARD_BYTES {
            return Err(invalid("", format!("it is larger than {MAX_CARD_BYTES} bytes")));
        }
        check_version(text)?;
        let raw: CardText =
            toml::from_str(text).map_err(|error| invalid("", error.to_string().trim_end()))?;
        let card = raw.into_card()?;
        check_authority(&card)?;
        Ok(card)
    }

    /// The card as text, with a heading for people.
    pub fn to_text(&self) -> String {
        let raw = CardText {
            version: VERSION,
            site: self.site.clone(),
            fingerprint: self.fingerprint(),
            endpoints: self.endpoints.clone(),
            via: self.via.clone(),
            ca: to_pem("CERTIFICATE", &self.authority),
            crl: self.revocation_list.as_ref().map(|der| to_pem("X509 CRL", der)),
            handover: self.handover.as_ref().map(Handover::to_text),
            earlier: self.earlier.iter().map(Handover::to_text).collect(),
        };
        let body = toml::to_string(&raw).expect("a card is plain data");
        format!(
            "# renkei site card of {}: give it to `renkei trust add` at another site.\n\
             # Compare the fingerprint with the site's administrator by telephone, not by the channel that this file came through.\n\
             {body}",
            self.site
        )
    }

    /// The card as other sites get it: without the endpoints of a site that cannot be dialled.
    pub fn for_others(&self) -> SiteCard {
        let endpoints = if self.via.is_empty() { self.endpoints.clone() } else { Vec::new() };
        SiteCard { endpoints, ..self.clone() }
    }

    /// The endpoints and hubs of the site, for people.
    pub fn places(&self) -> String {
        let through = self.via.iter().map(|site| format!("through {site}"));
        self.endpoints.iter().cloned().chain(through).collect::<Vec<_>>().join(", ")
    }

    /// The certificates of the authorities that may issue names of the site at a time, the newest first.
    pub fn authorities(&self, at: SystemTime) -> impl Iterator<Item = &CertificateDer<'static>> {
        let live = self.handover.iter().filter(move |handover| handover.is_live(at));
        std::iter::once(&self.authority).chain(live.map(|handover| &handover.previous))
    }

    /// The hand-overs that led to the authority, the newest first.
    pub fn handovers(&self) -> impl Iterator<Item = &Handover> {
        self.handover.iter().chain(&self.earlier)
    }

    /// SHA-256 of the authority's certificate: `SHA256:ab:cd:...`.
    pub fn fingerprint(&self) -> String {
        handover::fingerprint(&self.authority)
    }
}

impl CardText {
    fn into_card(self) -> Result<SiteCard, Error> {
        let site = self.site;
        let bad = |cause: &str| invalid(site.as_str(), cause);
        let places = self.endpoints.len() + self.via.len();
        let places_good = (1..=MAX_ENDPOINTS).contains(&places);
        if !places_good || !self.endpoints.iter().all(|endpoint| is_endpoint(endpoint)) {
            return Err(bad("its endpoints are not 1 to 16 of HOST:PORT, or sites in `via`"));
        }
        let chain = parse_chain(&self.ca).map_err(|error| bad(&error.cause))?;
        let [authority] = <[_; 1]>::try_from(chain).map_err(|_| bad("it has more than one certificate"))?;
        let revocation_list =
            self.crl.map(|pem| parse_list(&pem)).transpose().map_err(|cause| bad(&cause))?;
        let handover = self.handover.map(HandoverText::into_handover).transpose();
        let handover = handover.map_err(|error| bad(&error.cause))?;
        let earlier = self.earlier.into_iter().take(MAX_EARLIER + 1).map(HandoverText::into_handover);
        let earlier = earlier.collect::<Result<_, _>>().map_err(|error| bad(&error.cause))?;
        let (endpoints, via) = (self.endpoints, self.via);
        let card =
            SiteCard { site: site.clone(), endpoints, via, authority, handover, earlier, revocation_list };
        if !card.fingerprint().eq_ignore_ascii_case(&self.fingerprint) {
            return Err(bad("the fingerprint is not that of the certificate: the card was altered"));
        }
        Ok(card)
    }
}

/// Checks the version first, so that a newer card is reported as such and not as invalid.
fn check_version(text: &str) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Version {
        version: Option<u32>,
    }
    let head: Version = toml::from_str(text).map_err(|error| invalid("", error.to_string().trim_end()))?;
    match head.version {
        Some(VERSION) => Ok(()),
        Some(other) => Err(invalid("", format!("it has version {other}, this renkei knows {VERSION}"))),
        None => Err(invalid("", "it has no `version`; is it a site card?")),
    }
}

fn parse_list(pem: &str) -> Result<Vec<u8>, String> {
    CertificateRevocationListDer::from_pem_slice(pem.as_bytes())
        .map(|der| der.to_vec())
        .map_err(|error| format!("its revocation list cannot be read: {error}"))
}

fn check_authority(card: &SiteCard) -> Result<(), Error> {
    let bad = |cause: &str| invalid(card.site.as_str(), cause);
    let certificate = parse(&card.authority).map_err(|error| bad(&error.cause))?;
    let may_sign = certificate.key_usage().ok().flatten().is_none_or(|usage| usage.value.key_cert_sign());
    if !certificate.is_ca() || !may_sign {
        return Err(bad("its certificate is not that of an authority"));
    }
    if certificate.issuer() != certificate.subject() || certificate.verify_signature(None).is_err() {
        return Err(bad("its authority did not sign itself"));
    }
    handover::check_all(&card.site, &card.authority, card.handover.as_ref(), &card.earlier)
}

fn invalid(site: &str, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::CardInvalid, "read site card", site, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::Authority;
    use crate::identity::credential::KeyRequest;
    use crate::identity::tests::{card, now, site};

    #[test]
    fn text_round_trips() {
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let mut card = card(&authority);
        assert_eq!(SiteCard::parse(&card.to_text()).unwrap(), card);
        card.revocation_list = Some(authority.sign_list(&[], 7, now()).unwrap());
        let text = card.to_text();
        assert_eq!(SiteCard::parse(&text).unwrap(), card);
        assert!(text.contains(&card.fingerprint()) && card.fingerprint().starts_with("SHA256:"));
    }

    #[test]
    fn a_card_without_an_endpoint_names_its_hubs() {
        let mut card = card(&Authority::create(&site("kek"), now()).unwrap());
        card.via = vec![site("hub")];
        let inside = SiteCard::parse(&card.to_text()).unwrap();
        assert_eq!((inside.endpoints.len(), &inside.via), (1, &card.via));
        let outside = SiteCard::parse(&card.for_others().to_text()).unwrap();
        assert_eq!((outside.endpoints.len(), &outside.via), (0, &card.via));
        assert_eq!(outside.places(), "through hub");
        card.via.clear();
        card.endpoints.clear();
        assert_eq!(SiteCard::parse(&card.to_text()).unwrap_err().code, Code::CardInvalid);
    }

    #[test]
    fn altered_cards_are_refused() {
        let text = card(&Authority::create(&site("kek"), now()).unwrap()).to_text();
        let other = card(&Authority::create(&site("kek"), now()).unwrap());
        let swapped = text.replace(&fingerprint_of(&text), &other.fingerprint());
        assert!(SiteCard::parse(&swapped).unwrap_err().cause.contains("altered"));
        for (from, to) in [
            ("version = 1", "version = 2"),
            ("version = 1", ""),
            ("site = \"kek\"", "site = \"K\""),
            ("kek.example:7512", "kek.example"),
            ("BEGIN CERTIFICATE", "BEGIN NOTHING"),
        ] {
            let altered = text.replace(from, to);
            assert_ne!(altered, text);
            assert_eq!(SiteCard::parse(&altered).unwrap_err().code, Code::CardInvalid, "{from}");
        }
        assert_eq!(SiteCard::parse(&"#".repeat(MAX_CARD_BYTES + 1)).unwrap_err().code, Code::CardInvalid);
    }

    fn fingerprint_of(text: &str) -> String {
        SiteCard::parse(text).unwrap().fingerprint()
    }

    #[test]
    fn a_certificate_that_is_no_authority_is_refused() {
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let request = KeyRequest::generate().unwrap();
        let issued = authority.issue_user("alice", &request.request, 1, now()).unwrap();
        let mut forged = card(&authority);
        forged.authority = parse_chain(&issued.pem).unwrap().remove(0);
        let error = SiteCard::parse(&forged.to_text()).unwrap_err();
        assert!(error.cause.contains("not that of an authority"), "{error}");
    }
}
