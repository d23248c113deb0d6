//! Enrolment: two sites exchange cards over the wire by means of an invitation.
//!
//! The invited site dials. It asks for the card first and continues only if that is the card of the inviting site
//! and the peer has the key of a PoP of that site: the secret is sent to no other peer. Then it sends the secret
//! and its own card, by which the inviting site verifies the certificate of the connection. Guarantee: neither side
//! trusts the other before both have proved their identity. Non-goal: mapping; the users of a trusted site have no
//! account until the administrator gives them one.

use super::Partners;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error, Retry};
use renkei_core::path::SiteName;
use renkei_core::wire::message::Control;
use renkei_core::wire::violation;
use renkei_mover::connect::dial::Dialler;
use renkei_mover::connect::transport::{Transport, resolve};
use renkei_net::CONNECT_TIMEOUT;
use renkei_net::control::split;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::tls::{client_config, server_name};
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::identity::trust::invitation;
use renkei_net::identity::trust::invitation::{Invitation, Secret};
use renkei_net::identity::trust::{Added, Trust};
use renkei_net::identity::verify::{expect_site, verify_peer};
use renkei_net::tls::TlsStream;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::SystemTime;

impl Partners {
    /// The card for any peer that asks; it holds nothing secret.
    pub fn own_card(&self) -> Result<String, Error> {
        let snapshot = self.context.snapshot();
        let none = || Error::new(Code::NotInitialised, "give card", &snapshot.site, "");
        Ok(without_list(snapshot.trust.own_card().ok_or_else(none)?).to_text())
    }

    /// Trusts the site of `card`, received with an invitation's secret over a connection with `chain`.
    ///
    /// # Errors
    /// `InvitationRefused`; `CardInvalid`, `CardConflict`, and those of [`verify_peer`], with the invitation still
    /// open.
    pub fn introduce(
        &self,
        chain: &[CertificateDer<'static>],
        secret: &Secret,
        card: &str,
    ) -> Result<SiteName, Error> {
        let (card, now) = (SiteCard::parse(card)?, SystemTime::now());
        prove(chain, &card, self.context.home(), now)?;
        let mut trust = Trust::load(self.context.home())?;
        refuse_own(&trust, &card)?;
        trust.compare(&card)?;
        let (site, fingerprint) = (card.site.clone(), card.fingerprint());
        invitation::take(self.context.home(), secret, &card, now)?;
        trust.add(card)?;
        tracing::info!(target: "audit", %site, fingerprint, "trusted: it came with an invitation");
        Ok(site)
    }
}

/// Enrols the PoP in `home` at the inviting site; returns that site's card and whether it was new. With `reverse`,
/// the other site is told that this one cannot be dialled and keeps a line to it.
///
/// # Errors
/// Those of [`Partners::introduce`] and of the network; nothing was changed here in that case.
pub fn join(
    home: &Home,
    invitation: &Invitation,
    reverse: bool,
    now: SystemTime,
) -> Result<(SiteCard, Added), Error> {
    let mut trust = Trust::load(home)?;
    let none = || Error::new(Code::NotInitialised, "join", home.config_dir().display(), "");
    let mut own = trust.own_card().ok_or_else(none)?.clone();
    if reverse && !own.via.contains(&invitation.site) {
        own.via.push(invitation.site.clone());
    }
    let own = without_list(&own);
    let credential = Credential::host(home, now)?;
    let (card, added) = go(home, &credential, invitation, &own, &mut trust)?;
    if reverse {
        renkei_config::add_reverse(home, &invitation.site)?;
    }
    Ok((card, added))
}

/// Tries all endpoints and relays in the invitation.
fn go(
    home: &Home,
    credential: &Credential,
    invitation: &Invitation,
    own: &SiteCard,
    trust: &mut Trust,
) -> Result<(SiteCard, Added), Error> {
    let mut last = None;
    for endpoint in &invitation.endpoints {
        for address in resolve(endpoint).unwrap_or_else(|error| {
            last = Some(error);
            Vec::new()
        }) {
            match ask(home, credential, invitation, own, trust, &Transport::Direct(address, CONNECT_TIMEOUT))
            {
                Ok(card) => return trust.add(card.clone()).map(|added| (card, added)),
                Err(error) if error.retry() == Retry::Later => last = Some(error),
                Err(error) => return Err(error),
            }
        }
    }
    for relay in &invitation.via {
        let dialler = Dialler::new(credential, Arc::new(Trust::load(home)?), CONNECT_TIMEOUT)?;
        let asked = dialler.reach_through(relay, &invitation.site).and_then(|reach| {
            let asked = ask(home, credential, invitation, own, trust, &reach);
            asked.map_err(|error| if error.side.is_empty() { reach.explain(error) } else { error })
        });
        match asked {
            Ok(card) => return trust.add(card.clone()).map(|added| (card, added)),
            Err(error) => last = Some(error),
        }
    }
    let nowhere = || Error::new(Code::SiteUnreachable, "join", &invitation.site, "it has no address");
    Err(last.unwrap_or_else(nowhere))
}

/// The exchange, as seen by the invited site.
fn ask(
    home: &Home,
    credential: &Credential,
    invitation: &Invitation,
    own: &SiteCard,
    trust: &Trust,
    reach: &Transport,
) -> Result<SiteCard, Error> {
    let site = &invitation.site;
    let sock = reach.connect(site)?;
    let stream = TlsStream::connect(sock, client_config(credential)?, server_name(site), CONNECT_TIMEOUT)?;
    let chain = stream.peer_chain();
    let (link, mut control) = split(stream, CONNECT_TIMEOUT)?;
    link.send(&Control::AskCard)?;
    let card = match control.recv()? {
        Control::OwnCard(text) => SiteCard::parse(&text)?,
        other => return Err(violation("introduction", format_args!("{other:?}"))),
    };
    invitation.check(&card)?;
    prove(&chain, &card, home, SystemTime::now())?;
    refuse_own(trust, &card)?;
    trust.compare(&card)?;
    link.send(&Control::Introduce { secret: invitation.secret, card: own.to_text() })?;
    match control.recv()? {
        Control::Introduced => Ok(card),
        other => Err(violation("introduction", format_args!("{other:?}"))),
    }
}

/// Verifies that the peer with `chain` is a PoP of the site of `card`, by that card alone.
fn prove(
    chain: &[CertificateDer<'static>],
    card: &SiteCard,
    home: &Home,
    now: SystemTime,
) -> Result<(), Error> {
    let trust = Trust::only(home, card.clone());
    expect_site(&verify_peer(chain, &trust, now)?, &card.site)
}

fn refuse_own(trust: &Trust, card: &SiteCard) -> Result<(), Error> {
    if trust.own_site() != Some(&card.site) {
        return Ok(());
    }
    let cause = format!("both sites have the name {}; names must differ in a federation", card.site);
    Err(Error::new(Code::CardConflict, "introduce", &card.site, cause))
}

/// The card for another site. Revocation lists may be large, and travel with each session's greeting.
pub(crate) fn without_list(card: &SiteCard) -> SiteCard {
    SiteCard { revocation_list: None, ..card.for_others() }
}
