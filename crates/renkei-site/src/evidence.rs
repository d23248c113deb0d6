//! Evidence in, principal out: what a peer shows to prove who it is, and how that is judged, at first and again.
//!
//! A PoP's word about a user counts at the agents of its site ([`PopWord`]). Further kinds of evidence (SSH keys) are further variants; what stands on a
//! [`Proof`] need not know them.

use crate::access::Proof;
use crate::snapshot::Snapshot;
use crate::token::{ShownS3Key, ShownToken};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_net::identity::account::Account;
use renkei_net::identity::borrowed::number_of;
use renkei_net::identity::certificate::Facts;
use renkei_net::identity::grid::{self, claimed_name, is_grid_chain};
use renkei_net::identity::kerberos::Ticket;
use renkei_net::identity::verify::verify_holder;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::SystemTime;

/// What a peer shows.
#[derive(Clone)]
pub enum Evidence {
    /// A certificate chain, leaf first; the peer proved to possess its key in a TLS handshake.
    Chain(Arc<[CertificateDer<'static>]>),
    /// A certificate chain of the grid, leaf first; the peer proved to possess its key in a TLS handshake.
    Grid(Arc<[CertificateDer<'static>]>),
    /// The uid of a process of this machine, as the kernel reports it of a local socket.
    Uid(u32),
    /// A bearer token.
    Token(ShownToken),
    /// A session of the console, with what its user showed to get it.
    Session(Arc<Proof>),
    /// The word of this agent's PoP.
    Word(PopWord),
    /// An S3 key whose secret signed the request.
    S3Key(ShownS3Key),
    /// A Kerberos ticket, which was verified when it was shown.
    Kerberos(Arc<Ticket>),
}

/// What can be told of evidence of any kind.
pub(crate) struct EvidenceFacts {
    /// The kind, as written into certificates that are given for it.
    pub(crate) kind: &'static str,
    /// The number with which certificates that are given for it are revoked.
    pub(crate) number: String,
    /// The end of its validity, if it has one: of a chain, that of its leaf.
    pub(crate) ends: Option<SystemTime>,
    /// The end of what may be made with it, if it is good for hours alone: evidence of another system, or a certificate
    /// that was given for such.
    pub(crate) bound: Option<SystemTime>,
    /// Whose token, key or grid certificate it is, as logged.
    pub(crate) holder: Option<String>,
    /// Whether it is exchanged for a certificate.
    pub(crate) gets_certificate: bool,
}

impl EvidenceFacts {
    /// Those of evidence without an end.
    fn new(kind: &'static str, number: String) -> Self {
        EvidenceFacts { kind, number, ends: None, bound: None, holder: None, gets_certificate: true }
    }

    /// Those of evidence of another system, with which nothing is made that lasts longer.
    fn of_hours(kind: &'static str, number: String, ends: Option<SystemTime>) -> Self {
        EvidenceFacts { ends, bound: ends, ..Self::new(kind, number) }
    }

    fn held_by(self, holder: Option<String>) -> Self {
        EvidenceFacts { holder, ..self }
    }
}

/// The word of a PoP, at an agent of its site, about a user whom the PoP has authenticated. It is good as long as the
/// PoP's certificate is.
#[derive(Clone)]
pub struct PopWord {
    /// The PoP's certificate chain, leaf first; the PoP proved to possess its key in a TLS handshake.
    pub pop: Arc<[CertificateDer<'static>]>,
    /// The user.
    pub user: Principal,
    /// The scope of a restricted credential.
    pub scope: Option<Scope>,
}

impl PopWord {
    fn judge(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        let (pop, _) = verify_holder(&self.pop, &now.trust, at)?;
        if now.is_agent() && pop == Principal::Host(now.site.clone()) && self.user.user_name().is_some() {
            return Ok((self.user.current().into_owned(), self.scope.clone()));
        }
        let cause = format!("on the word of {pop}, which counts for users at agents of its own site alone");
        Err(Error::new(Code::NotAllowed, "authenticate", &self.user, cause))
    }
}

impl Evidence {
    /// A certificate chain that the peer showed in a handshake: of a site, or of the grid.
    pub fn of_chain(chain: Arc<[CertificateDer<'static>]>) -> Self {
        match is_grid_chain(&chain) {
            true => Evidence::Grid(chain),
            false => Evidence::Chain(chain),
        }
    }

    /// The certificate chain of a site, leaf first; empty for other kinds.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        match self {
            Evidence::Chain(chain) => chain,
            Evidence::Session(earlier) => earlier.chain(),
            _ => &[],
        }
    }

    /// The bearer token, if it is one.
    pub(crate) fn token(&self) -> Option<&ShownToken> {
        match self {
            Evidence::Token(shown) => Some(shown),
            Evidence::Session(earlier) => earlier.evidence.token(),
            Evidence::Chain(_)
            | Evidence::Grid(_)
            | Evidence::Uid(_)
            | Evidence::Word(_)
            | Evidence::S3Key(_)
            | Evidence::Kerberos(_) => None,
        }
    }

    /// What can be told of it.
    ///
    /// # Errors
    /// `BadCertificate`.
    pub(crate) fn facts(&self) -> Result<EvidenceFacts, Error> {
        match self {
            Evidence::Chain(chain) => {
                let leaf = chain.first().map(Facts::read).transpose()?;
                let ends = leaf.as_ref().map(|leaf| leaf.not_after);
                let is_borrowed = leaf.as_ref().is_some_and(|leaf| leaf.borrowed.is_some());
                let number = leaf.map_or_else(|| number_of(&[]), |leaf| leaf.parent.unwrap_or(leaf.serial));
                let bound = ends.filter(|_| is_borrowed);
                Ok(EvidenceFacts { ends, bound, ..EvidenceFacts::new("certificate", number) })
            }
            Evidence::Grid(chain) => {
                let number = number_of(&grid::user_certificate(chain)?);
                let ends = grid::ends(chain, SystemTime::now())?;
                Ok(EvidenceFacts::of_hours("grid", number, ends).held_by(claimed_name(chain)))
            }
            Evidence::Uid(uid) => Ok(EvidenceFacts::new("account", number_of(&uid.to_be_bytes()))),
            Evidence::Token(shown) => {
                let facts = EvidenceFacts::of_hours("token", shown.number(), shown.ends());
                Ok(facts.held_by(Some(shown.holder())))
            }
            Evidence::Session(earlier) => earlier.evidence.facts(),
            Evidence::Word(word) => {
                let number = number_of(word.user.to_string().as_bytes());
                Ok(EvidenceFacts { gets_certificate: false, ..EvidenceFacts::new("word", number) })
            }
            Evidence::S3Key(shown) => {
                let facts = EvidenceFacts::new("key", number_of(shown.id.as_bytes()));
                let holder = Some(format!("S3 key {}", shown.id));
                Ok(EvidenceFacts { gets_certificate: false, holder, ..facts })
            }
            Evidence::Kerberos(ticket) => {
                // Its holder gets new tickets at will, and with some KDCs in any case of the name, so all of the principal
                // have one number.
                let number = number_of(format!("krb:{}", ticket.principal.to_lowercase()).as_bytes());
                let facts = EvidenceFacts::of_hours("kerberos", number, Some(ticket.end));
                Ok(facts.held_by(Some(ticket.principal.clone())))
            }
        }
    }

    /// The principal that the evidence proves, by a configuration, and its scope if it is a delegated one. A certificate
    /// is judged by its validity at the time `at`.
    ///
    /// # Errors
    /// Those of [`verify_holder`], [`GridTrust::judge`](renkei_net::identity::grid::GridTrust::judge), its `account`,
    /// [`ShownToken::judge`] and [`Ticket::account`]; `AccountUnknown` for a uid without a name; `NotAllowed` for the word of
    /// another than the PoP of this agent.
    pub(crate) fn judge(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        match self {
            Evidence::Chain(chain) => verify_holder(chain, &now.trust, at),
            // The error names what is missing: a principal of a site.
            Evidence::Grid(chain) if now.grid.is_empty() => verify_holder(chain, &now.trust, at),
            Evidence::Grid(chain) => {
                let user = now.grid.judge(chain, at)?;
                let (account, _) = now.grid.account(&user, &now.mapping)?;
                Ok((Principal::user(&now.site, &account)?, None))
            }
            Evidence::Uid(uid) => {
                let account = Account::lookup_uid(*uid)?;
                Ok((Principal::user(&now.site, &account.name)?, None))
            }
            Evidence::Token(shown) => shown.judge(now, at),
            // A certificate may expire while its session goes on, as in a transfer.
            Evidence::Session(earlier) => earlier.evidence.judge(now, earlier.at),
            Evidence::Word(word) => word.judge(now, at),
            Evidence::S3Key(shown) => shown.judge(now, at),
            Evidence::Kerberos(ticket) => {
                let account = ticket.account(&now.mapping, &now.config, at)?;
                Ok((Principal::user(&now.site, &account)?, None))
            }
        }
    }

    /// Whether the evidence that proved a principal is still good.
    ///
    /// # Errors
    /// As [`Evidence::judge`]; `NotMapped` if it proves another principal by now.
    pub(crate) fn judge_again(&self, was: &Principal, now: &Snapshot, at: SystemTime) -> Result<(), Error> {
        let shown = match self {
            Evidence::Session(earlier) => return earlier.evidence.judge_again(was, now, earlier.at),
            Evidence::Token(shown) => return shown.judge_again(was, now, at),
            // They name the principal themselves.
            Evidence::Chain(_) | Evidence::Word(_) => return self.judge(now, at).map(drop),
            Evidence::Uid(uid) => format!("uid {uid}"),
            Evidence::Grid(_) => "the certificate".into(),
            Evidence::S3Key(_) => "the S3 key".into(),
            Evidence::Kerberos(_) => "the Kerberos ticket".into(),
        };
        let (principal, _) = self.judge(now, at)?;
        match principal == *was {
            true => Ok(()),
            false => {
                let cause = format!("{shown} is for {principal} by now");
                Err(Error::new(Code::NotMapped, "authenticate", was, cause))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_config::Config;

    #[test]
    fn the_uid_of_a_process_proves_a_user_of_the_own_site() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = crate::snapshot::tests::site(dir.path());
        let site = crate::Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
        let own = Account::own().unwrap();
        let proof = site.authenticate(Evidence::Uid(own.uid)).unwrap();
        assert_eq!(proof.principal.to_string(), format!("{}@kek", own.name));
        assert!(proof.scope.is_none() && proof.evidence.chain().is_empty());
        let (now, at) = (site.last_snapshot(), SystemTime::now());
        proof.evidence.judge_again(&proof.principal, &now, at).unwrap();
        let other = Principal::parse("alice@kek").unwrap();
        assert_eq!(proof.evidence.judge_again(&other, &now, at).unwrap_err().code, Code::NotMapped);
        let nobody = site.authenticate(Evidence::Uid(4_000_000_000)).map(drop).unwrap_err();
        assert_eq!(nobody.code, Code::AccountUnknown);
        assert!(site.authenticate(Evidence::Chain(Arc::new([]))).is_err());
    }

    #[test]
    fn the_tickets_of_a_principal_have_one_number_in_any_case() {
        let number = |principal: &str| {
            let ticket = Ticket { principal: principal.into(), end: SystemTime::now() };
            Evidence::Kerberos(Arc::new(ticket)).facts().unwrap().number
        };
        assert_eq!(number("eve@AD.EXAMPLE"), number("EVE@AD.EXAMPLE"));
        assert_ne!(number("eve@AD.EXAMPLE"), number("eva@AD.EXAMPLE"));
    }

    #[test]
    fn a_pop_takes_no_word_about_users() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = crate::snapshot::tests::site(dir.path());
        let site = crate::Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
        let pop: Arc<[_]> = site.last_snapshot().credential.chain.clone().into();
        let user = Principal::parse("alice@kek").unwrap();
        let word = PopWord { pop, user, scope: None };
        assert!(Evidence::Word(word.clone()).chain().is_empty());
        assert_eq!(site.authenticate(Evidence::Word(word)).map(drop).unwrap_err().code, Code::NotAllowed);
    }
}
