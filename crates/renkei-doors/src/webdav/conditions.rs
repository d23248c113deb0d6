//! The header `If`: lists of conditions on locks and versions (RFC 4918, section 10.4).

use super::error::invalid;
use super::locks::parse_token;
use super::request::{Target, tag};
use super::session::Session;
use axum::http::HeaderName;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::lease::web_locks::LockToken;
use renkei_core::path::Place;
use renkei_mover::files::workspace::Follow;

/// What a header says: it holds if one of its lists does.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IfHeader(Vec<List>);

/// Conditions that must all hold.
#[derive(Debug, PartialEq, Eq)]
struct List {
    /// Whose state is meant; none for that of the request.
    place: Option<Place>,
    conditions: Vec<Condition>,
}

#[derive(Debug, PartialEq, Eq)]
struct Condition {
    is_not: bool,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// A lock with this token; none for a token that is none of this site.
    Lock(Option<LockToken>),
    /// A version with this tag.
    Version(String),
}

impl IfHeader {
    /// The header of a request; one without conditions if there is none.
    ///
    /// # Errors
    /// `UsageInvalid` if it cannot be read.
    pub(super) fn of(target: &Target) -> Result<Self, Error> {
        let Some(text) = target.text(&HeaderName::from_static("if")) else { return Ok(IfHeader::default()) };
        let (mut lists, mut rest, mut place) = (Vec::new(), text, None);
        while !rest.is_empty() {
            if rest.starts_with('<') {
                let (uri, after) = enclosed(rest, '>')?;
                (place, rest) = (Some(target.place_of(uri)?), after);
            }
            let (conditions, after) = list(rest)?;
            lists.push(List { place: place.clone(), conditions });
            rest = after;
        }
        Ok(IfHeader(lists))
    }

    /// The tokens that it shows.
    pub(super) fn tokens(&self) -> Vec<LockToken> {
        let conditions = self.0.iter().flat_map(|list| &list.conditions);
        let token = |condition: &Condition| match condition.state {
            State::Lock(token) if !condition.is_not => token,
            _ => None,
        };
        conditions.filter_map(token).collect()
    }

    /// Checks that it holds.
    ///
    /// # Errors
    /// `VersionReplaced` if not.
    pub(super) fn check(&self, session: &Session, target: &Target) -> Result<(), Error> {
        let holds = |list: &List| {
            let place = list.place.as_ref().unwrap_or(&target.place);
            list.conditions.iter().all(|one| one.state.is(session, place) != one.is_not)
        };
        match self.0.is_empty() || self.0.iter().any(holds) {
            true => Ok(()),
            false => Err(Error::new(
                Code::VersionReplaced,
                "read request",
                &target.place,
                "no list of the header If holds",
            )),
        }
    }
}

impl State {
    fn is(&self, session: &Session, place: &Place) -> bool {
        match self {
            State::Lock(token) => {
                let service = session.site.file_service();
                let locks = service.web_locks().covering(place, service.web_time());
                locks.iter().any(|lock| Some(lock.token) == *token)
            }
            State::Version(wanted) => {
                let files = session.files(place, Need::Look);
                let item = files.and_then(|(files, path)| files.stat(&path, Follow::Yes));
                item.is_ok_and(|item| match item.entry.kind {
                    EntryKind::File { stamp, .. } => tag(&stamp) == *wanted,
                    _ => false,
                })
            }
        }
    }
}

/// The text up to a closing character, and what follows it.
fn enclosed(text: &str, end: char) -> Result<(&str, &str), Error> {
    let (inside, rest) = text[1..].split_once(end).ok_or_else(|| invalid("the header If has no end"))?;
    Ok((inside, rest.trim_start()))
}

fn list(text: &str) -> Result<(Vec<Condition>, &str), Error> {
    let mut rest =
        text.strip_prefix('(').ok_or_else(|| invalid("a list of the header If begins with ("))?.trim_start();
    let mut conditions = Vec::new();
    while !rest.starts_with(')') {
        let (is_not, after) = match rest.get(..3) {
            Some(not) if not.eq_ignore_ascii_case("not") => (true, rest[3..].trim_start()),
            _ => (false, rest),
        };
        let (state, after) = match after.chars().next() {
            Some('<') => enclosed(after, '>').map(|(uri, after)| (State::Lock(parse_token(uri)), after))?,
            Some('[') => {
                enclosed(after, ']').map(|(tag, after)| (State::Version(tag.trim().into()), after))?
            }
            _ => return Err(invalid("a condition of the header If is a token or a tag")),
        };
        conditions.push(Condition { is_not, state });
        rest = after;
    }
    match conditions.is_empty() {
        true => Err(invalid("an empty list in the header If")),
        false => Ok((conditions, rest[1..].trim_start())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<IfHeader, Error> {
        let request = axum::http::Request::get("/data/a").header("host", "kek").header("if", text);
        IfHeader::of(&Target::parse(&request.body(()).unwrap().into_parts().0).unwrap())
    }

    #[test]
    fn lists_have_tokens_and_tags_and_may_be_tagged() {
        let token = "urn:uuid:abababab-abab-abab-abab-abababababab";
        let header = read(&format!("(<{token}> [\"t\"]) (Not <DAV:no-lock>[\"u\"])")).unwrap();
        assert_eq!(header.tokens(), [[0xab; 16]]);
        let state = |list: usize, at: usize| &header.0[list].conditions[at];
        assert_eq!(state(0, 1).state, State::Version("\"t\"".into()));
        assert_eq!(state(1, 0), &Condition { is_not: true, state: State::Lock(None) });
        let tagged =
            read(&format!("<https://kek/data/b> (<{token}>) (Not <{token}>) </data/c>([\"v\"])")).unwrap();
        let places = tagged.0.iter().map(|list| list.place.as_ref().unwrap().to_string());
        assert_eq!(places.collect::<Vec<_>>(), ["/data/b", "/data/b", "/data/c"]);
        assert_eq!(tagged.tokens(), [[0xab; 16]]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bad in
            ["x", "()", "(<a>", "(<a", "([a]", "(a)", "<https://kek/data/b>", "<https://osaka/data/b> (<a>)"]
        {
            assert_eq!(read(bad).unwrap_err().code, Code::UsageInvalid, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_headers_are_read_or_refused(text in "[()<>\\[\\] \"a-cNot/:é]{0,40}") {
            let _ = read(&text);
        }
    }
}
