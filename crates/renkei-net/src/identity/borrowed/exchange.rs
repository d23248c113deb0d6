//! The client's half: evidence is shown to a PoP over HTTPS, a certificate comes back.
//!
//! The PoP proves to be that of the site by the card that is known here, else by the authorities of the web; a token is
//! sent to nobody else. The private key is made here and stays here.

use super::PATH;
use crate::http_client::{Answer, post_for_answer};
use crate::identity::credential::{Credential, KeyRequest};
use crate::identity::kerberos::token_for;
use crate::identity::login::{LoggedIn, keep_at};
use crate::identity::tls::{ChainJudge, Presented, ServerVerifier, provider, server_name, web_roots};
use crate::identity::trust::Trust;
use crate::identity::trust::card::SiteCard;
use crate::identity::verify::{expect_site, verify_peer};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::queue::webhook::Address;
use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Largest answer accepted: a federation's cards.
const MAX_ANSWER_BYTES: usize = 32 << 20;
const OP: &str = "get certificate";

/// The evidence that is shown.
pub enum Shown {
    /// A bearer token.
    Token(String),
    /// A certificate chain with its key: a proxy, or any other that the PoP accepts.
    Chain(Credential),
    /// The Kerberos ticket of a principal, in the cache of this machine.
    Ticket(String),
}

/// The PoP that is asked.
pub struct Door {
    /// `HOST:PORT`.
    pub endpoint: String,
    /// The site whose card proves it, with the trusted sites; else the authorities of the web do.
    pub known: Option<(SiteName, Arc<Trust>)>,
    /// Whether the cards of other sites, and former names, are taken from it too, as at a login.
    pub introduces: bool,
}

impl Door {
    /// Gets a certificate and stores it in a file, with the cards of the sites that the PoP trusts if it introduces
    /// them, else with its own.
    ///
    /// # Errors
    /// `EndpointNotTrusted`, `SiteUnreachable`; those of the PoP, which it answers with; those of the reply.
    pub fn take(&self, shown: &Shown, home: &Home, file: &Path, now: SystemTime) -> Result<LoggedIn, Error> {
        let key = KeyRequest::generate()?;
        let mut reply = self.ask(shown, &key.request)?;
        if let (false, Some((site, _))) = (self.introduces, &self.known) {
            self.user_of(site, &reply, &key, file)?;
            keep_own_card(&mut reply, site);
        }
        keep_at(home, file, &key, reply, now)
    }

    /// Gets a certificate that is not stored: for one piece of work, by a PoP of a known site.
    ///
    /// # Errors
    /// As [`Door::take`].
    pub fn credential(&self, shown: &Shown) -> Result<Credential, Error> {
        let Some((site, _)) = &self.known else {
            return Err(Error::new(Code::EndpointNotTrusted, OP, &self.endpoint, "its site is not known"));
        };
        let key = KeyRequest::generate()?;
        let reply = self.ask(shown, &key.request)?;
        self.user_of(site, &reply, &key, Path::new(&self.endpoint))
    }

    /// The certificate of a reply; it must be that of a user of the site that was asked.
    fn user_of(
        &self,
        site: &SiteName,
        reply: &Value,
        key: &KeyRequest,
        file: &Path,
    ) -> Result<Credential, Error> {
        let certificate = reply["certificate"].as_str().unwrap_or_default();
        let given = Credential::parse(certificate, &key.key, file)?;
        let holder = given.holder()?;
        if holder.user_name().is_some() && holder.site() == site {
            return Ok(given);
        }
        let cause = format!("the PoP of {site} gave a certificate of {holder}, no user of its site");
        Err(Error::new(Code::ProtocolViolation, OP, &self.endpoint, cause))
    }

    fn ask(&self, shown: &Shown, request: &str) -> Result<Value, Error> {
        let bad = |cause: String| Error::new(Code::UsageInvalid, OP, &self.endpoint, cause);
        let address = Address::parse(&format!("https://{}{PATH}", self.endpoint)).map_err(bad)?;
        let name = match &self.known {
            Some((site, _)) => server_name(site),
            None => ServerName::try_from(address.host.clone()).map_err(|error| bad(error.to_string()))?,
        };
        let verifier = ServerVerifier::new(Judge::new(self.known.clone()));
        let tls = config(verifier.clone(), shown)?;
        let no_ticket = RefCell::new(None);
        // Called when the server has proved to be the PoP: no ticket is asked for by the word of another.
        let authorization = || match shown {
            Shown::Token(token) => Ok(Some(format!("Bearer {token}"))),
            Shown::Ticket(principal) => match token_for(&address.host, principal) {
                Ok(token) => Ok(Some(format!("Negotiate {}", BASE64_STANDARD.encode(token)))),
                Err(error) => {
                    let cause = error.to_string();
                    no_ticket.replace(Some(error));
                    Err(cause)
                }
            },
            Shown::Chain(_) => Ok(None),
        };
        let headers = [("content-type", "application/json")];
        let body = json!({ "csr": request }).to_string();
        match post_for_answer(&address, &name, &headers, &authorization, body, &tls, MAX_ANSWER_BYTES) {
            Ok(answer) => self.read(&answer),
            Err(cause) => Err(match (verifier.chain.refused(), no_ticket.take()) {
                (_, Some(error)) => error,
                (Some(refused), None) => Error::new(Code::EndpointNotTrusted, OP, &self.endpoint, refused),
                (None, None) => Error::new(Code::SiteUnreachable, OP, &self.endpoint, cause),
            }),
        }
    }

    fn read(&self, answer: &Answer) -> Result<Value, Error> {
        let read: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if answer.status == 200 && read["certificate"].is_string() {
            return Ok(read);
        }
        let told = serde_json::from_value::<Error>(read["error"].clone());
        Err(told.unwrap_or_else(|_| {
            let cause = format!(
                "it answered {} and no certificate; is it a PoP of renkei that gives some?",
                answer.status
            );
            Error::new(Code::NotRenkei, OP, &self.endpoint, cause)
        }))
    }
}

/// Leaves of the cards of a reply that of a site, and no former names.
fn keep_own_card(reply: &mut Value, site: &SiteName) {
    if let Some(cards) = reply["cards"].as_array_mut() {
        let is_own = |text: &str| SiteCard::parse(text).is_ok_and(|card| card.site == *site);
        cards.retain(|card| card.as_str().is_some_and(is_own));
    }
    reply["former_names"] = json!([]);
}

fn config(verifier: Arc<ServerVerifier<Judge>>, shown: &Shown) -> Result<Arc<ClientConfig>, Error> {
    let failed = |error: rustls::Error| Error::new(Code::TlsFailed, "prepare TLS", "", error);
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match shown {
        Shown::Token(_) | Shown::Ticket(_) => builder.with_no_client_auth(),
        Shown::Chain(credential) => builder.with_client_cert_resolver(Arc::new(Presented::new(credential)?)),
    };
    // Clients that offer HTTP/2 are not asked for a certificate.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Verifies that the server is the PoP, before anything is sent to it.
#[derive(Debug)]
struct Judge {
    known: Option<(SiteName, Arc<Trust>)>,
    web: Option<Arc<WebPkiServerVerifier>>,
    refused: Mutex<Option<String>>,
}

impl Judge {
    fn new(known: Option<(SiteName, Arc<Trust>)>) -> Self {
        let web = WebPkiServerVerifier::builder_with_provider(Arc::new(web_roots()), provider()).build().ok();
        Judge { known, web, refused: Mutex::default() }
    }

    fn refused(&self) -> Option<String> {
        self.refused.lock().expect("no thread panics while it holds the lock: a panic aborts").clone()
    }

    fn verdict(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), String> {
        if let Some((site, trust)) = &self.known {
            let chain = [std::slice::from_ref(leaf), others].concat();
            let at = UNIX_EPOCH + Duration::from_secs(now.as_secs());
            let proved = verify_peer(&chain, trust, at).and_then(|peer| expect_site(&peer, site));
            return proved.map_err(|error| format!("{}: {}", error.code.row().title, error.cause));
        }
        match &self.web {
            Some(web) => web
                .verify_server_cert(leaf, others, name, &[], now)
                .map(drop)
                .map_err(|error| error.to_string()),
            None => Err("this machine knows no authorities of the web, and no card of the site".into()),
        }
    }
}

impl ChainJudge for Judge {
    fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        self.verdict(leaf, others, name, now).map_err(|cause| {
            *self.refused.lock().expect("no thread panics while it holds the lock: a panic aborts") =
                Some(cause.clone());
            rustls::Error::General(cause)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::Authority;
    use crate::identity::tests::{card, now, site};

    #[test]
    fn a_partner_gives_its_own_card_alone() {
        let own = |name: &str| card(&Authority::create(&site(name), now()).unwrap()).to_text();
        let mut reply = json!({
            "certificate": "", "cards": [own("kek"), own("titech"), "no card", 7], "former_names": [["old", "kek"]]
        });
        let expected = reply["cards"][0].clone();
        keep_own_card(&mut reply, &site("kek"));
        assert_eq!(reply["cards"], json!([expected]));
        assert_eq!(reply["former_names"], json!([]));
    }

    #[test]
    fn a_partner_gives_certificates_of_its_own_users_alone() {
        let titech = Authority::create(&site("titech"), now()).unwrap();
        let door = Door { endpoint: "kek.example:443".into(), known: None, introduces: false };
        let key = KeyRequest::generate().unwrap();
        let issued = titech.issue_user("alice", &key.request, 1, now()).unwrap();
        let reply = json!({ "certificate": issued.pem });
        let check = |name: &str| door.user_of(&site(name), &reply, &key, Path::new("own.pem")).map(drop);
        assert_eq!(check("kek").unwrap_err().code, Code::ProtocolViolation);
        check("titech").unwrap();
    }
}
