//! Visitors of the console: one-time links, and browser sessions.
//!
//! A link is requested over an authenticated session, or by the administrator over the local socket. The first
//! visitor that presents its secret gets a session, identified by a secret of its own in the browser's cookie. Both
//! are kept in memory only, as digests, so neither a restart nor a memory dump reveals one. A user's session is
//! authorised again for each page, against the current configuration, as every other session is.

use crate::Context;
use crate::access::{Access, Caller};
use crate::evidence::Evidence;
use renkei_config::random::random_bytes;
use renkei_core::error::Error;
use renkei_mover::hex;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Lifetime of an unused link.
const LINK_LIFE: Duration = Duration::from_secs(300);
/// Lifetime of a session.
const SESSION_LIFE: Duration = Duration::from_secs(12 * 3600);
/// Maximum open links and maximum sessions of one visitor; the oldest is dropped.
const MAX_OF_ONE: usize = 16;
/// Key derivation context of the form token.
const FORM_CONTEXT: &str = "renkei console 2026-11-22 form token";

/// The identity behind a link or session.
#[derive(Clone)]
enum Holder {
    Administrator,
    User(Box<Access>),
}

impl Holder {
    fn name(&self) -> String {
        match self {
            Holder::Administrator => "administrator".into(),
            Holder::User(access) => access.principal.to_string(),
        }
    }
}

struct ConsoleSession {
    holder: Holder,
    until: Instant,
}

/// Secrets by digest, with their holders.
#[derive(Default)]
struct Secrets(HashMap<[u8; 32], ConsoleSession>);

impl Secrets {
    fn issue(&mut self, holder: Holder, life: Duration, now: Instant) -> Result<String, Error> {
        let secret = hex(&random_bytes::<32>()?);
        self.0.retain(|_, held| held.until > now);
        let name = holder.name();
        let own = self.0.iter().filter(|(_, held)| held.holder.name() == name);
        let mut own: Vec<_> = own.map(|(key, held)| (held.until, *key)).collect();
        own.sort_unstable();
        for (_, key) in own.iter().take((own.len() + 1).saturating_sub(MAX_OF_ONE)) {
            self.0.remove(key);
        }
        self.0.insert(digest(&secret), ConsoleSession { holder, until: now + life });
        Ok(secret)
    }

    fn take(&mut self, secret: &str, now: Instant) -> Option<Holder> {
        let held = self.0.remove(&digest(secret))?;
        (held.until > now).then_some(held.holder)
    }

    fn find(&self, secret: &str, now: Instant) -> Option<Holder> {
        let held = self.0.get(&digest(secret))?;
        (held.until > now).then(|| held.holder.clone())
    }
}

fn digest(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}

/// Open links and browser sessions.
pub struct Console {
    context: Arc<Context>,
    links: Mutex<Secrets>,
    sessions: Mutex<Secrets>,
}

fn lock(secrets: &Mutex<Secrets>) -> MutexGuard<'_, Secrets> {
    secrets.lock().expect("no thread panics while it holds the lock: a panic aborts")
}

/// A visitor, authorised for one page.
#[derive(Clone)]
pub struct Visitor {
    access: Option<Box<Access>>,
    secret: String,
}

impl Visitor {
    /// The visitor as a caller.
    pub fn caller(&self) -> Caller<'_> {
        self.access.as_deref().map_or(Caller::Administrator, Caller::User)
    }

    /// What proves the visitor to be a user; none for the administrator, and for those for whom another PoP spoke.
    pub fn evidence(&self) -> Option<Evidence> {
        self.access.as_ref()?.session_evidence()
    }

    /// The visitor's name.
    pub fn name(&self) -> String {
        self.caller().user().map_or("administrator".into(), |access| access.principal.to_string())
    }

    /// The token in forms that prevents cross-site request forgery.
    pub fn form_token(&self) -> String {
        hex(&blake3::derive_key(FORM_CONTEXT, self.secret.as_bytes()))
    }

    /// Whether a form was sent by this visitor's own page.
    pub fn sent(&self, token: &str) -> bool {
        // The comparison of BLAKE3 hashes takes constant time.
        blake3::hash(token.as_bytes()) == blake3::hash(self.form_token().as_bytes())
    }
}

impl Console {
    /// A console without links and sessions.
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Console { context: context.clone(), links: Mutex::default(), sessions: Mutex::default() }
    }

    /// Issues a link to the console for a caller; returns its secret.
    pub fn issue_link(&self, caller: Caller<'_>) -> Result<String, Error> {
        let holder = match caller {
            Caller::Administrator => Holder::Administrator,
            Caller::User(access) => Holder::User(Box::new(access.clone())),
        };
        tracing::info!(target: "audit", principal = holder.name(), "console link issued");
        lock(&self.links).issue(holder, LINK_LIFE, Instant::now())
    }

    /// Exchanges a link for a session, once; returns the session's secret. `None` if the link is wrong, used or
    /// expired.
    pub fn login(&self, link: &str) -> Result<Option<String>, Error> {
        let now = Instant::now();
        let Some(holder) = lock(&self.links).take(link, now) else {
            tracing::warn!(target: "audit", "console link refused");
            return Ok(None);
        };
        tracing::info!(target: "audit", principal = holder.name(), "console session opened");
        lock(&self.sessions).issue(holder, SESSION_LIFE, now).map(Some)
    }

    /// The visitor of a session. The session ends if its principal is no longer authorised.
    pub fn visitor(&self, secret: &str) -> Option<Visitor> {
        let holder = lock(&self.sessions).find(secret, Instant::now())?;
        let access = match holder {
            Holder::Administrator => None,
            Holder::User(access) => match self.judge_visitor(&access) {
                Ok(access) => Some(Box::new(access)),
                Err(error) => {
                    tracing::warn!(target: "audit", principal = %access.principal, %error, "console session ended");
                    self.logout(secret);
                    return None;
                }
            },
        };
        Some(Visitor { access, secret: secret.into() })
    }

    fn judge_visitor(&self, access: &Access) -> Result<Access, Error> {
        let now = self.context.last_snapshot();
        access.judge_again(&now)?;
        Ok(Access { snapshot: now, ..access.clone() })
    }

    /// Ends a session.
    pub fn logout(&self, secret: &str) {
        lock(&self.sessions).take(secret, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_works_once_within_its_lifetime() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let mut issue = || secrets.issue(Holder::Administrator, LINK_LIFE, now).unwrap();
        let (early, late) = (issue(), issue());
        assert_ne!(early, late);
        assert!(secrets.take("", now).is_none() && secrets.take(&early[1..], now).is_none());
        assert!(secrets.take(&early, now).is_some());
        assert!(secrets.take(&early, now).is_none(), "a second use");
        assert!(secrets.find(&late, now + LINK_LIFE - Duration::from_secs(1)).is_some());
        assert!(secrets.find(&late, now + LINK_LIFE).is_none());
        assert!(secrets.take(&late, now + LINK_LIFE).is_none(), "expired");
    }

    #[test]
    fn sessions_of_a_user_are_limited_and_the_oldest_ends() {
        let (mut secrets, now) = (Secrets::default(), Instant::now());
        let at = |second| now + Duration::from_secs(second);
        let mut issue = |second| secrets.issue(Holder::Administrator, LINK_LIFE, at(second)).unwrap();
        let all: Vec<_> = (0..MAX_OF_ONE as u64 + 2).map(&mut issue).collect();
        let left = |secret: &&String| secrets.find(secret, at(20)).is_some();
        assert_eq!(all.iter().filter(left).count(), MAX_OF_ONE);
        assert!(!left(&&all[0]) && !left(&&all[1]) && left(&&all[2]));
        assert_eq!(secrets.0.len(), MAX_OF_ONE);
    }

    #[test]
    fn a_form_token_belongs_to_one_session() {
        let visitor = |secret: &str| Visitor { access: None, secret: secret.into() };
        let token = visitor("a").form_token();
        assert!(visitor("a").sent(&token) && !visitor("b").sent(&token) && !visitor("a").sent(""));
        assert!(!token.contains("a-secret") && token.len() == 64);
    }
}
