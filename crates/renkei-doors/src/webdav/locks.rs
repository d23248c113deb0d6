//! LOCK and UNLOCK, and the locks that refuse a change (RFC 4918, sections 6, 7, 9.10 and 9.11).
//!
//! The locks are in the memory of the site ([`renkei_core::lease::web_locks`]): a restart forgets them, and only HTTP
//! clients ask for them.

use super::conditions::IfHeader;
use super::error::{invalid, missing_parent};
use super::multistatus::{document, empty, href, unmet};
use super::request::{Depth, Target};
use super::session::Session;
use super::xml::Element;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::lease::Moment;
use renkei_core::lease::web_locks::{Claim, LockToken, MAX_TIMEOUT, Refused, WebLock, WebLocks};
use renkei_core::units::hex;
use renkei_core::wire::file::Precondition;
use renkei_mover::files::workspace::{Create, Follow};
use std::sync::MutexGuard;
use std::time::Duration;

/// The header with a token.
const LOCK_TOKEN: HeaderName = HeaderName::from_static("lock-token");
/// Begins the URI of a token (RFC 9562).
const SCHEME: &str = "urn:uuid:";
/// Longest description of a lock's user.
const MAX_OWNER_BYTES: usize = 4096;

fn table(session: &Session) -> MutexGuard<'_, WebLocks> {
    session.site.file_service().web_locks()
}

fn now(session: &Session) -> Moment {
    session.site.file_service().web_time()
}

/// The response to a request that changes what others locked, or whose client did not show its tokens; none if all is well.
///
/// # Errors
/// `VersionReplaced` if the header `If` does not hold; `UsageInvalid` if it cannot be read.
pub(crate) fn refusal(
    session: &Session,
    target: &Target,
    claims: &[Claim],
) -> Result<Option<Response>, Error> {
    let header = IfHeader::of(target)?;
    header.check(session, target)?;
    let (tokens, now) = (header.tokens(), now(session));
    let refusing = |claim| table(session).refusing(claim, &tokens, &session.access.principal, now);
    let place = claims.iter().find_map(refusing);
    Ok(place.map(|place| unmet(StatusCode::LOCKED, "lock-token-submitted", Some(&place))))
}

/// Answers LOCK: a new lock, or without a body the refreshment of one.
pub(super) fn lock(session: &Session, target: &Target, body: &[u8]) -> Result<Response, Error> {
    if body.is_empty() {
        return refresh(session, target);
    }
    let now = now(session);
    let lock = WebLock { until: now + timeout(target), ..read(session, target, body)? };
    let (files, path) = session.files(&target.place, Need::Write)?;
    let is_new = match files.stat(&path, Follow::Yes) {
        Ok(_) => false,
        Err(error) if error.code == Code::PathNotFound => true,
        Err(error) => return Err(error),
    };
    // The holder of a lock on a directory may make files in it; others' locks on the file are told by the table.
    let claim = Claim { place: target.place.clone(), is_tree: false, is_name: true };
    if let Some(refused) = refusal(session, target, is_new.then_some(claim).as_slice())? {
        return Ok(refused);
    }
    match table(session).lock(lock.clone(), now) {
        Ok(()) => {}
        Err(Refused::Conflict(place)) => {
            return Ok(unmet(StatusCode::LOCKED, "no-conflicting-lock", Some(&place)));
        }
        Err(Refused::Full) => {
            return Err(Error::new(Code::OutOfMemory, "LOCK", &target.place, "the table of locks is full"));
        }
    }
    if is_new {
        let create = Create { condition: Precondition::Absent, ..Create::default() };
        let made = files.create(&path, create).and_then(|writer| writer.publish(None, None));
        if let Err(error) = made {
            table(session).unlock(&lock.token, &target.place, &lock.holder, now);
            return missing_parent(error);
        }
    }
    Ok(granted(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &lock, now))
}

/// The lock that a document asks for.
fn read(session: &Session, target: &Target, body: &[u8]) -> Result<WebLock, Error> {
    let root = Element::parse(body)?;
    let is_shared = match root.child("lockscope") {
        Some(scope) if scope.child("exclusive").is_some() => false,
        Some(scope) if scope.child("shared").is_some() => true,
        _ => return Err(invalid("a lock is exclusive or shared")),
    };
    if root.child("locktype").and_then(|kind| kind.child("write")).is_none() {
        return Err(invalid("there are write locks alone"));
    }
    let is_tree = match target.depth()?.unwrap_or(Depth::Infinity) {
        Depth::Zero => false,
        Depth::Infinity => true,
        Depth::One => return Err(invalid("the depth of a lock is 0 or infinity")),
    };
    let owner = root.child("owner").map(Element::inner).unwrap_or_default();
    if owner.len() > MAX_OWNER_BYTES {
        return Err(invalid(format!("an owner has at most {MAX_OWNER_BYTES} bytes")));
    }
    let (root, holder) = (target.place.clone(), session.access.principal.clone());
    Ok(WebLock { token: new_token()?, root, is_tree, is_shared, holder, owner, until: Moment::ZERO })
}

fn refresh(session: &Session, target: &Target) -> Result<Response, Error> {
    let header = IfHeader::of(target)?;
    let (tokens, now) = (header.tokens(), now(session));
    let (holder, timeout) = (&session.access.principal, timeout(target));
    let refresh = |token| table(session).refresh(token, &target.place, holder, timeout, now);
    match tokens.iter().find_map(refresh) {
        Some(lock) => Ok(document(StatusCode::OK, &discovery(&lock, now))),
        None => Ok(unmet(StatusCode::PRECONDITION_FAILED, "lock-token-matches-request-uri", None)),
    }
}

/// Answers UNLOCK.
pub(super) fn unlock(session: &Session, target: &Target) -> Result<Response, Error> {
    let text = target.text(&LOCK_TOKEN).ok_or_else(|| invalid("no Lock-Token"))?;
    let token = parse_token(text.trim_start_matches('<').trim_end_matches('>'));
    let holder = &session.access.principal;
    let unlock = |token| table(session).unlock(&token, &target.place, holder, now(session));
    match token.is_some_and(unlock) {
        true => Ok(empty(StatusCode::NO_CONTENT)),
        false => Ok(unmet(StatusCode::CONFLICT, "lock-token-matches-request-uri", None)),
    }
}

fn granted(status: StatusCode, lock: &WebLock, now: Moment) -> Response {
    let mut response = document(status, &discovery(lock, now));
    let token =
        HeaderValue::from_str(&format!("<{}>", uri(&lock.token))).expect("digits are legal in a header");
    response.headers_mut().insert(LOCK_TOKEN, token);
    response
}

fn discovery(lock: &WebLock, now: Moment) -> String {
    let lock = described(lock, now);
    format!("<D:prop xmlns:D=\"DAV:\"><D:lockdiscovery>{lock}</D:lockdiscovery></D:prop>")
}

/// The description of a lock.
pub(super) fn described(lock: &WebLock, now: Moment) -> String {
    let scope = if lock.is_shared { "shared" } else { "exclusive" };
    let depth = if lock.is_tree { "infinity" } else { "0" };
    let left = lock.until.saturating_sub(now).as_secs();
    let (owner, token, root) = (&lock.owner, uri(&lock.token), href(&lock.root, false));
    format!(
        "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/></D:lockscope><D:depth>{depth}</D:depth>\
         <D:owner>{owner}</D:owner><D:timeout>Second-{left}</D:timeout><D:locktoken><D:href>{token}</D:href></D:locktoken>\
         <D:lockroot>{root}</D:lockroot></D:activelock>"
    )
}

/// The time that a client wants, within the limit.
fn timeout(target: &Target) -> Duration {
    let wanted = target.text(&HeaderName::from_static("timeout")).unwrap_or_default();
    let seconds = |one: &str| one.trim().strip_prefix("Second-")?.parse().ok();
    let seconds = wanted.split(',').find_map(seconds).unwrap_or(u64::MAX);
    Duration::from_secs(seconds).min(MAX_TIMEOUT)
}

/// A random token, a UUID of version 4.
fn new_token() -> Result<LockToken, Error> {
    let mut token: LockToken = random_bytes()?;
    token[6] = token[6] & 0x0f | 0x40;
    token[8] = token[8] & 0x3f | 0x80;
    Ok(token)
}

fn uri(token: &LockToken) -> String {
    let parts = [&token[..4], &token[4..6], &token[6..8], &token[8..10], &token[10..]];
    format!("{SCHEME}{}", parts.map(hex).join("-"))
}

/// The token of a URI, if it is of this form.
pub(super) fn parse_token(uri: &str) -> Option<LockToken> {
    let digits = uri.strip_prefix(SCHEME)?.replace('-', "");
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_uuids() {
        let token = new_token().unwrap();
        assert_eq!(parse_token(&uri(&token)), Some(token));
        assert_eq!(uri(&[0xab; 16]), "urn:uuid:abababab-abab-abab-abab-abababababab");
        for other in
            ["urn:uuid:1234", "opaquelocktoken:abababab-abab-abab-abab-abababababab", "DAV:no-lock", ""]
        {
            assert_eq!(parse_token(other), None);
        }
    }
}
