//! Caveats of macaroons, in the words of dCache and XRootD: `activity:LIST,DOWNLOAD`, `path:/data/run7`,
//! `before:2026-12-01T00:00:00Z`, `ip:192.0.2.0/24`; `root:/data/run7` is a `path` that the holder sees as `/`.
//!
//! All caveats of a token hold together: rights are those that each gives, paths the inner one, the earliest time
//! counts, an address must be in each list. A caveat that this version does not know is refused, because it restricts.

use super::net::Network;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Rights;
use renkei_core::identity::rights::prefix;
use renkei_core::path::Place;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The activities, and their rights.
const ACTIVITIES: [(&str, Rights); 8] = [
    ("LIST", Rights::LIST),
    ("DOWNLOAD", Rights::READ),
    ("UPLOAD", Rights::CREATE),
    // Removing and replacing are two words; a program that may manage renames and replaces.
    ("MANAGE", Rights::CREATE.and(Rights::MODIFY)),
    ("DELETE", Rights::DELETE),
    ("READ_METADATA", Rights::NONE),
    ("UPDATE_METADATA", Rights::MODIFY),
    ("STAGE", Rights::STAGE),
];

/// What all caveats of a token allow together.
#[derive(Debug, PartialEq, Eq)]
pub struct Restrictions {
    /// The rights.
    pub rights: Rights,
    /// The place, with all below it; none for all.
    pub place: Option<Place>,
    /// The place that the holder sees as the root of all paths, if it is another.
    pub root: Option<Place>,
    /// The end of the validity.
    pub before: Option<SystemTime>,
    /// Lists of networks; the client's address is in each.
    networks: Vec<Vec<Network>>,
}

impl Restrictions {
    /// Combines the caveats of a token.
    ///
    /// # Errors
    /// `TokenInvalid` for a caveat that is unknown or malformed, `OutOfScope` for paths that have nothing in common.
    pub fn of<'a>(caveats: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let none =
            Restrictions { rights: Rights::ALL, place: None, root: None, before: None, networks: Vec::new() };
        caveats.into_iter().try_fold(none, Restrictions::and)
    }

    fn and(mut self, caveat: &str) -> Result<Self, Error> {
        let bad = |cause: &str| Error::new(Code::TokenInvalid, "read caveat", caveat, cause);
        let (kind, value) = caveat.split_once(':').ok_or_else(|| bad("it has no colon"))?;
        let value = value.trim();
        match kind.trim() {
            "activity" => self.rights = self.rights.common(activities(value).map_err(|word| bad(&word))?),
            "path" => self.place = inner(self.place, prefix(value)?).ok_or_else(|| outside(caveat))?,
            "root" => {
                let root = prefix(value)?;
                self.place = inner(self.place, root.clone()).ok_or_else(|| outside(caveat))?;
                self.root = inner(self.root, root).ok_or_else(|| outside(caveat))?;
            }
            // A hint for programs that begin there; it restricts nothing, and no door needs it.
            "home" => drop(prefix(value)?),
            "before" => {
                let time = parse_time(value).ok_or_else(|| bad("write a time as 2026-12-01T00:00:00Z"))?;
                self.before = Some(self.before.map_or(time, |before| before.min(time)));
            }
            "ip" => {
                let networks = value.split(',').map(Network::parse).collect::<Option<_>>();
                self.networks
                    .push(networks.ok_or_else(|| bad("write addresses as 192.0.2.0/24,2001:db8::1"))?);
            }
            _ => return Err(bad("known are activity, path, root, home, before and ip")),
        }
        Ok(self)
    }

    /// Whether it is good for clients of some addresses alone.
    pub fn names_addresses(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Checks the time and the client's address.
    ///
    /// # Errors
    /// `TokenExpired`, `TokenElsewhere`.
    pub fn check(&self, now: SystemTime, from: IpAddr) -> Result<(), Error> {
        if let Some(before) = self.before.filter(|before| *before <= now) {
            let (end, now) = (time_text(before), time_text(now));
            let cause = format!("it was good until {end}; here it is {now}");
            return Err(Error::new(Code::TokenExpired, "verify token", "macaroon", cause));
        }
        match self.networks.iter().all(|list| list.iter().any(|network| network.contains(from))) {
            true => Ok(()),
            false => {
                let cause = format!("it is shown from {from}");
                Err(Error::new(Code::TokenElsewhere, "verify token", "macaroon", cause))
            }
        }
    }
}

/// The rights of a list of activities; an unknown word as error.
fn activities(list: &str) -> Result<Rights, String> {
    list.split(',').map(str::trim).try_fold(Rights::NONE, |all, word| {
        let known = ACTIVITIES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
        let known = known.ok_or_else(|| format!("{word} is no activity; known are {}", names()))?;
        Ok(all | known.1)
    })
}

fn names() -> String {
    ACTIVITIES.map(|(name, _)| name).join(", ")
}

/// The fewest activities that give these rights.
pub fn activities_for(rights: Rights) -> String {
    let is_single = |given: Rights| given != Rights::CREATE.and(Rights::MODIFY);
    let needed = |(name, given): &(&'static str, Rights)| {
        (rights.contains(*given) && is_single(*given)).then_some(*name)
    };
    ACTIVITIES.iter().filter_map(needed).collect::<Vec<_>>().join(",")
}

/// The caveat for a place and all below it.
///
/// # Errors
/// `BadPath` for a name that is not UTF-8: a caveat is text.
pub fn below(place: &Place) -> Result<String, Error> {
    match std::str::from_utf8(place.path.as_bytes()) {
        Ok("") => Ok(format!("path:/{}", place.storage)),
        Ok(path) => Ok(format!("path:/{}/{path}", place.storage)),
        Err(_) => Err(Error::new(Code::BadPath, "issue token", place, "the path in a token is UTF-8")),
    }
}

/// The inner one of two places; an outer none if they have nothing in common.
#[expect(clippy::option_option, reason = "no place is all places")]
fn inner(one: Option<Place>, other: Option<Place>) -> Option<Option<Place>> {
    match (one, other) {
        (None, place) | (place, None) => Some(place),
        (Some(one), Some(other)) if one.storage == other.storage => {
            if one.path.starts_with(&other.path) {
                Some(Some(one))
            } else {
                other.path.starts_with(&one.path).then_some(Some(other))
            }
        }
        _ => None,
    }
}

fn outside(caveat: &str) -> Error {
    Error::new(Code::OutOfScope, "read caveat", caveat, "the caveat before it allows nothing there")
}

/// A time as RFC 3339 writes it.
fn parse_time(text: &str) -> Option<SystemTime> {
    let seconds = text.parse::<jiff::Timestamp>().ok()?.as_second();
    Some(UNIX_EPOCH + Duration::from_secs(seconds.try_into().ok()?))
}

/// The caveat that ends the validity at a time, in whole seconds.
pub fn before(time: SystemTime) -> String {
    format!("before:{}", time_text(time))
}

/// A time as RFC 3339 writes it, in whole seconds.
pub fn time_text(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    jiff::Timestamp::from_second(seconds.cast_signed()).unwrap_or_default().to_string()
}

/// A duration as ISO 8601 writes it, such as `PT60M`.
pub fn parse_validity(text: &str) -> Option<Duration> {
    let parsed: jiff::SignedDuration = text.parse().ok()?;
    Duration::try_from(parsed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(caveats: &[&str]) -> Code {
        Restrictions::of(caveats.iter().copied()).unwrap_err().code
    }

    #[test]
    fn all_caveats_hold_together() {
        let both =
            ["activity:LIST,DOWNLOAD,UPLOAD", "path:/data/a", "activity:download, manage", "path:/data"];
        let all = Restrictions::of(both).unwrap();
        assert_eq!(all.rights, Rights::READ | Rights::CREATE);
        assert_eq!(all.place.unwrap().to_string(), "/data/a");
        let inner = Restrictions::of(["path:/data", "path:/data/a/b", "path:/data/a"]).unwrap();
        assert_eq!(inner.place.unwrap().to_string(), "/data/a/b");
        assert_eq!(Restrictions::of(["path:/"]).unwrap().place, None);
        assert_eq!(code(&["path:/data/a", "path:/data/b"]), Code::OutOfScope);
        assert_eq!(code(&["path:/data", "path:/other"]), Code::OutOfScope);
    }

    #[test]
    fn a_root_is_a_path_and_a_home_is_none() {
        let all = Restrictions::of(["path:/data", "root:/data/a", "home:/data/a/b"]).unwrap();
        assert_eq!(all.place.as_ref().unwrap().to_string(), "/data/a");
        assert_eq!(all.root, all.place);
        let inner = Restrictions::of(["root:/data/a", "path:/data/a/b", "root:/"]).unwrap();
        assert_eq!(inner.place.unwrap().to_string(), "/data/a/b");
        assert_eq!(inner.root.unwrap().to_string(), "/data/a");
        assert_eq!(code(&["path:/data/a", "root:/other"]), Code::OutOfScope);
        assert_eq!(code(&["home:data"]), Code::BadPath);
    }

    #[test]
    fn a_place_is_named_by_its_bytes_or_not_at_all() {
        let place = |bytes: &[u8]| Place::parse(bytes).unwrap().unwrap();
        for text in ["/data", "/data/run 7/ä%41"] {
            let caveat = below(&place(text.as_bytes())).unwrap();
            assert_eq!(caveat, format!("path:{text}"));
            assert_eq!(Restrictions::of([caveat.as_str()]).unwrap().place, Some(place(text.as_bytes())));
        }
        assert_eq!(below(&place(b"/data/\xff")).unwrap_err().code, Code::BadPath);
    }

    #[test]
    fn unknown_caveats_are_refused() {
        for bad in ["door:/data", "activity:FLY", "nothing", "before:tomorrow", "ip:here", "activity:", ""] {
            assert_eq!(code(&[bad]), Code::TokenInvalid, "{bad}");
        }
        assert_eq!(code(&["path:data"]), Code::BadPath);
        assert_eq!(code(&["path:/data/../etc"]), Code::BadPath);
    }

    #[test]
    fn the_earliest_time_counts() {
        let noon = parse_time("2026-11-28T12:00:00Z").unwrap();
        let limits = ["before:2026-11-28T13:00:00Z", "before:2026-11-28T12:00:00Z"];
        let limited = Restrictions::of(limits).unwrap();
        let here = IpAddr::from([192, 0, 2, 1]);
        limited.check(noon - Duration::from_secs(1), here).unwrap();
        let error = limited.check(noon, here).unwrap_err();
        assert_eq!(error.code, Code::TokenExpired);
        assert!(error.cause.contains("2026-11-28T12:00:00Z"), "{error}");
        assert_eq!(before(noon + Duration::from_millis(900)), "before:2026-11-28T12:00:00Z");
        assert!(before(UNIX_EPOCH).ends_with("1970-01-01T00:00:00Z"));
    }

    #[test]
    fn addresses_are_in_each_list() {
        let limited =
            Restrictions::of(["ip:192.0.2.0/24,2001:db8::/32", "ip:192.0.2.1,2001:db8::1"]).unwrap();
        let check =
            |address: &str| limited.check(UNIX_EPOCH, address.parse().unwrap()).map_err(|error| error.code);
        for good in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["192.0.2.2", "192.0.3.1", "2001:db8::2", "::1"] {
            assert_eq!(check(bad), Err(Code::TokenElsewhere), "{bad}");
        }
    }

    #[test]
    fn activities_give_exactly_the_rights() {
        for bits in 0..64 {
            let rights = Rights::try_from(bits).unwrap();
            assert_eq!(activities(&activities_for(rights)), Ok(rights), "{rights}");
        }
    }

    #[test]
    fn validities_are_durations_of_iso_8601() {
        assert_eq!(parse_validity("PT60M"), Some(Duration::from_secs(3600)));
        assert_eq!(parse_validity("PT1H30M5S"), Some(Duration::from_secs(5405)));
        for bad in ["60", "-PT1H", "P1M", ""] {
            assert_eq!(parse_validity(bad), None, "{bad}");
        }
    }
}
