//! Agents: storages that this PoP cannot mount, served by processes that dial in from their own machines.
//!
//! The configuration says which account's agent may serve a storage. A user who is mapped to that account gets the
//! agent's certificate, and later the agent itself a renewed one; with it the agent keeps a line, and clients that
//! ask this PoP about the storage are redirected to the agent, over circuits relayed here. The agent's
//! configuration (the account it serves, the map, the cards of trusted sites) comes from here. Guarantees: a user
//! who is no longer mapped to the account, or whose certificate was revoked, has no line, no circuit and no new
//! certificate within seconds.

use super::Relay;
use super::circuits::{CircuitRequest, Passing};
use crate::access::{Access, Proof, account_name, own_users};
use crate::snapshot::{Snapshot, Texts};
use renkei_config::home::read_text;
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::wire::circuit::MAX_CIRCUITS;
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{AgentStatus, Request, Terms};
use renkei_core::wire::violation;
use renkei_net::control::ControlSender;
use renkei_net::identity::agency;
use renkei_net::identity::agency::Sponsor;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::certificate::Facts;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::identity::verify::verify_holder;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::SystemTime;

/// Bytes of a text in one reply.
const PART_BYTES: usize = 1 << 20;

/// The suffix of a ticket by which a PoP recognises grants that an agent of its site gave, which it has not itself.
pub type Mark = [u8; 8];
/// Offset of the mark; the bytes before it are secret, and enough of them.
const MARK_AT: usize = size_of::<Ticket>() - size_of::<Mark>();

/// The mark of the grants of a storage's agent; it is no secret.
pub fn mark_of(storage: &str) -> Mark {
    let hash = blake3::derive_key("renkei 2026 grants of an agent", storage.as_bytes());
    *hash.first_chunk().expect("32 bytes")
}

/// Whether a ticket ends with a mark.
pub fn has_mark(ticket: &Ticket, mark: &Mark) -> bool {
    ticket[MARK_AT..] == *mark
}

/// Ends a ticket with a mark.
pub fn put_mark(ticket: &mut Ticket, mark: &Mark) {
    ticket[MARK_AT..].copy_from_slice(mark);
}

/// The sponsor of a storage's agent: the user of the proof, or the user who requested the agent's certificate.
fn sponsor(proof: &Proof, storage: &str, now: &Snapshot) -> Result<Sponsor, Error> {
    let refused = || {
        let cause = format!("a user of {} runs it, by a certificate of the user's own", now.site);
        Err(Error::new(Code::AgentRefused, "enlist", storage, cause))
    };
    match &proof.principal {
        user @ Principal::User { site, .. } if proof.scope.is_none() && *site == now.site => {
            Ok(Sponsor { user: user.clone(), parent: proof.serial()? })
        }
        agent if *agent == now.agent(storage) => {
            let facts = proof.chain().first().map(Facts::read).transpose()?;
            match facts.and_then(|facts| Some(Sponsor { user: facts.sponsor?, parent: facts.parent? })) {
                Some(sponsor) => Ok(sponsor),
                None => refused(),
            }
        }
        _ => refused(),
    }
}

/// Refuses evidence that is good for hours alone: the agent would outlive it.
fn refuse_borrowed(proof: &Proof, storage: &str) -> Result<(), Error> {
    match proof.evidence.facts()?.bound {
        None => Ok(()),
        Some(_) => {
            let cause = "an agent would outlive a token, a grid certificate, or a certificate given for one";
            Err(Error::new(Code::NotAllowed, "enlist", storage, cause))
        }
    }
}

/// Checks whether an agent of this user may serve a storage; returns the account that is served.
fn allowed<'a>(storage: &str, user: &Principal, now: &'a Snapshot) -> Result<&'a str, Error> {
    let refused = |cause: String| Err(Error::new(Code::AgentRefused, "enlist", storage, cause));
    let Some(account) = now.agent_of(storage) else {
        return refused(match now.storages.contains_key(storage) {
            true => "the PoP serves this storage itself".into(),
            false => "no storage of that name is meant for an agent".into(),
        });
    };
    match account_name(user, now)?.0 {
        name if name == account => Ok(account),
        name => refused(format!("it is meant for an agent of {account}; {user} is {name} here")),
    }
}

/// Checks whether the holder of a proof may still act as the agent that it names.
pub(crate) fn check_agent(proof: &Proof, now: &Snapshot) -> Result<(), Error> {
    let storage = match &proof.principal {
        Principal::Agent { site, storage } if *site == now.site => storage,
        // Agents of other sites are ended by their own sites, by revocation.
        _ => return Ok(()),
    };
    let sponsor = sponsor(proof, storage, now)?;
    allowed(storage, &sponsor.user, now).map(drop)
}

/// Checks whether the session of a line or of circuits may continue.
pub(crate) fn may_stay(proof: &Proof, now: &Snapshot) -> Result<(), Error> {
    verify_holder(proof.chain(), &now.trust, SystemTime::now())?;
    check_agent(proof, now)
}

impl Relay {
    /// Issues a certificate for the agent of a storage.
    ///
    /// # Errors
    /// `AgentRefused` with the reason, `NotMapped`; `NotAllowed` for evidence that is good for hours alone.
    pub fn enlist(&self, proof: &Proof, storage: &str, request: &str) -> Result<String, Error> {
        let now = self.context.snapshot();
        let issued = refuse_borrowed(proof, storage).and_then(|()| sponsor(proof, storage, &now)).and_then(
            |sponsor| {
                allowed(storage, &sponsor.user, &now)?;
                let authority = Authority::load(self.context.home())?;
                agency::issue(self.context.home(), &authority, storage, &sponsor, request, SystemTime::now())
            },
        );
        let principal = &proof.principal;
        match &issued {
            Ok(issued) => {
                tracing::info!(target: "audit", %principal, storage, serial = issued.serial, "agent enlisted");
            }
            Err(error) => tracing::warn!(target: "audit", %principal, storage, %error, "agent refused"),
        }
        issued.map(|issued| issued.pem)
    }

    /// The terms of the agent of a storage.
    ///
    /// # Errors
    /// As [`Relay::enlist`].
    pub fn terms(&self, proof: &Proof, storage: &str) -> Result<Terms, Error> {
        let now = self.context.snapshot();
        let account = allowed(storage, &sponsor(proof, storage, &now)?.user, &now)?;
        let texts = self.texts(&now, account)?;
        Ok(Terms {
            account: account.into(),
            read_only: now.storage(storage)?.storage.read_only,
            map_own_users: now.config.map_own_users,
            texts: texts.iter().map(|(name, _, digest)| (name.clone(), *digest)).collect(),
        })
    }

    /// A part of a text named in the terms, and whether more follows.
    ///
    /// # Errors
    /// As [`Relay::enlist`]; `PathNotFound` for a text that no longer exists.
    pub fn term(
        &self,
        proof: &Proof,
        storage: &str,
        name: &str,
        offset: u64,
    ) -> Result<(Vec<u8>, bool), Error> {
        let now = self.context.snapshot();
        let account = allowed(storage, &sponsor(proof, storage, &now)?.user, &now)?;
        let texts = self.texts(&now, account)?;
        let found = texts.iter().find(|(known, ..)| known == name);
        let (_, text, _) =
            found.ok_or_else(|| Error::new(Code::PathNotFound, "give terms", name, "no such text"))?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let end = text.len().min(start + PART_BYTES);
        Ok((text[start..end].to_vec(), end < text.len()))
    }

    /// The texts for agents of an account, with only those rules of the map that lead to that account; cached.
    fn texts(&self, now: &Snapshot, account: &str) -> Result<Arc<Texts>, Error> {
        let mut all = now.texts.lock().expect("no thread panics while it holds the lock: a panic aborts");
        if let Some(texts) = all.get(account) {
            return Ok(texts.clone());
        }
        let texts = Arc::new(self.make_texts(now, account)?);
        all.insert(account.into(), texts.clone());
        Ok(texts)
    }

    fn make_texts(&self, now: &Snapshot, account: &str) -> Result<Texts, Error> {
        let map = now.mapping.of_account(account, own_users(now));
        let bare = |card: &SiteCard| SiteCard { revocation_list: None, ..card.clone() };
        let cards =
            now.trust.list().map(|card| (format!("site/{}", card.site), bare(card).to_text().into_bytes()));
        let lists = now.trust.list().filter_map(|card| {
            let (_, der) = now.trust.revocation_list(&card.site)?;
            Some((format!("list/{}", card.site), der.to_vec()))
        });
        let former = read_text(&self.context.home().former_names_file(), crate::snapshot::MAX_MAP_BYTES)?;
        let former = former.map(|names| ("former-names".to_owned(), names.into_bytes()));
        let map = ("map".to_owned(), map.into_bytes());
        let all = std::iter::once(map).chain(former).chain(cards).chain(lists);
        let texts = all.map(|(name, text)| {
            let digest = *blake3::hash(&text).as_bytes();
            (name, text, digest)
        });
        Ok(texts.collect())
    }

    /// The status of agents, for the storages that `is_told` accepts.
    pub(crate) fn agent_status(&self, is_told: impl Fn(&str) -> bool) -> Vec<AgentStatus> {
        let (now, lines) = (self.context.last_snapshot(), self.reverse_registry.lines());
        let status = |storage: &String| {
            let (account, agent) = (now.agent_of(storage)?, now.agent(storage));
            let line = lines.iter().rev().find(|line| line.keeper == agent);
            let up_s = line.map(|line| line.since.elapsed().as_secs());
            Some(AgentStatus { storage: storage.clone(), account: account.into(), up_s })
        };
        now.storages.keys().filter(|storage| is_told(storage)).filter_map(status).collect()
    }

    /// Refuses a request for a storage that an agent serves.
    ///
    /// # Errors
    /// `WithAgent` redirects to the agent; `AgentAbsent`, `NotAgentsAccount`.
    pub fn expect_here(&self, access: &Access, request: &Request) -> Result<(), Error> {
        access.expect_here(&request.storages(), |agent| self.reverse_registry.has_line(agent))
    }

    /// Refuses a storage that an agent serves.
    ///
    /// # Errors
    /// As [`Relay::expect_here`].
    pub(crate) fn expect_storage_here(&self, access: &Access, storage: &str) -> Result<(), Error> {
        access.expect_here(&[storage], |agent| self.reverse_registry.has_line(agent))
    }

    /// The error for a grant that an agent of this site gave; `None` for other grants.
    pub(crate) fn of_agent(&self, grant: &Ticket) -> Option<Error> {
        let now = self.context.snapshot();
        let storage = now
            .storages
            .keys()
            .find(|storage| now.agent_of(storage).is_some() && has_mark(grant, &mark_of(storage)))?;
        let code = match self.reverse_registry.has_line(&now.agent(storage)) {
            true => Code::WithAgent,
            false => Code::AgentAbsent,
        };
        Some(Error::new(code, "redeem", storage, ""))
    }

    /// The mark of the grants given by this process; only an agent's have one.
    pub(crate) fn grant_mark(&self) -> Option<Mark> {
        match &self.context.last_snapshot().principal {
            Principal::Agent { storage, .. } => Some(mark_of(storage)),
            _ => None,
        }
    }

    /// Relays circuits to the agent of a storage for a session, as long as the returned value lives.
    ///
    /// # Errors
    /// `StorageUnknown`, `AgentAbsent`, `ProtocolViolation`.
    pub fn pass_to_agent(
        self: &Arc<Self>,
        proof: &Proof,
        storage: &str,
        asked: CircuitRequest,
        link: Arc<ControlSender>,
    ) -> Result<Passing<'_>, Error> {
        let now = self.context.snapshot();
        if asked.count > MAX_CIRCUITS {
            return Err(violation("circuits", format_args!("{} of them", asked.count)));
        }
        let account = now.agent_of(storage).ok_or_else(|| {
            Error::new(Code::StorageUnknown, "pass on", storage, "no agent serves a storage of that name")
        })?;
        if !self.reverse_registry.has_line(&asked.to) {
            return Err(Error::new(Code::AgentAbsent, "pass on", storage, format!("that of {account}")));
        }
        Ok(self.grant_circuits(proof, asked, link))
    }

    /// A connection to an agent, which dials when it is called over its line.
    pub(crate) fn call_agent(&self, agent: &Principal) -> Result<TcpStream, Error> {
        self.reverse_registry.call(agent, random_bytes()?).map_err(|error| match error.code {
            Code::NoLine => Error { code: Code::AgentAbsent, ..error },
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_of_an_agent_are_known_by_their_end() {
        let (ours, others) = (mark_of("scratch"), mark_of("home"));
        let mut ticket = [7; 32];
        ticket[24..].copy_from_slice(&ours);
        assert!(has_mark(&ticket, &ours) && !has_mark(&ticket, &others));
    }
}
