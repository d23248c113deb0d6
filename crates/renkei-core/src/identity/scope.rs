//! The scope of a delegated credential: the places of one transfer, each to be read or to be written, and no others.
//!
//! Paths are compared by whole components: `run7` covers `run7` and `run7/a`, not `run70`. The comparison is purely
//! textual; following links from one place to another is up to the store (docs/design/0012).

use crate::error::{Code, Error};
use crate::former_names;
use crate::path::{Place, RelPath, SiteName};
use crate::wire::message::{OpenFound, OpenSend, TransferId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest encoded scope. A client that resumes a TLS session sends its certificate within its first message, of
/// which a PoP accepts 16 KiB.
pub const MAX_SCOPE_BYTES: usize = 8 << 10;

/// First byte of an encoded scope.
const VERSION: u8 = 1;

/// A right to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Right {
    /// Its metadata may be read: of this place alone, of none below it.
    Look,
    /// Its content may be read.
    Read,
    /// It may be created and changed.
    Write,
}

/// The access that a request needs to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Read its metadata; any right suffices.
    Look,
    /// List it, or read its size and digest; the right to read or to write it suffices.
    Examine,
    /// Read content.
    Read,
    /// Create or change it.
    Write,
}

/// One right to one place and, except for [`Right::Look`], to all below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Permit {
    /// The site.
    pub site: SiteName,
    /// The place there.
    pub place: Place,
    /// The right.
    pub right: Right,
}

/// The rights of a delegated credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    transfer: TransferId,
    permits: Vec<Permit>,
}

impl Scope {
    /// The scope of a transfer. The order of the permits is irrelevant; permits that others imply are dropped.
    ///
    /// # Errors
    /// `TooManyEntries` if it does not fit a certificate, `UsageInvalid` without any permit.
    pub fn new(transfer: TransferId, permits: Vec<Permit>) -> Result<Self, Error> {
        let mut kept: Vec<Permit> = Vec::new();
        for permit in permits {
            if kept.iter().all(|other| !other.implies(&permit)) {
                kept.retain(|other| !permit.implies(other));
                kept.push(permit);
            }
        }
        let scope = Scope { transfer, permits: kept };
        let bytes = scope.encode().len();
        if bytes > MAX_SCOPE_BYTES {
            let cause = format!(
                "the names of its places take {bytes} bytes, {MAX_SCOPE_BYTES} at most: name a directory that holds \
                 the sources, or make several transfers of it"
            );
            return Err(Error::new(Code::TooManyEntries, "delegate", "transfer", cause));
        }
        match scope.permits.is_empty() {
            false => Ok(scope),
            true => Err(Error::new(Code::UsageInvalid, "delegate", "transfer", "it names no place")),
        }
    }

    /// The transfer it is for.
    pub fn transfer(&self) -> &TransferId {
        &self.transfer
    }

    /// Its permits.
    pub fn permits(&self) -> &[Permit] {
        &self.permits
    }

    /// The scope that a transfer needs: its sources readable, and its targets writable, for every kind of the
    /// destination.
    pub fn of_transfer(
        from: &SiteName,
        send: &OpenSend,
        to: &SiteName,
        open: &OpenFound,
    ) -> Result<Self, Error> {
        let there = |path: RelPath| Place { storage: open.to.storage.clone(), path };
        let permit = |site: &SiteName, place, right| Permit { site: site.clone(), place, right };
        let mut permits = vec![permit(to, open.to.clone(), Right::Look)];
        permits.extend(send.sources.iter().map(|source| permit(from, source.from.clone(), Right::Read)));
        for (_, choice) in &open.choices {
            // A storage's root exists and is never created.
            if choice.make && !open.to.path.is_root() {
                permits.push(permit(to, open.to.clone(), Right::Write));
            }
            if choice.targets.is_empty() {
                permits.push(permit(to, there(choice.base.clone()), Right::Write));
            }
            for target in &choice.targets {
                permits.push(permit(to, there(choice.base.join(target)?), Right::Write));
            }
        }
        Scope::new(send.transfer, permits)
    }

    /// The same with further permits.
    ///
    /// # Errors
    /// As [`Scope::new`].
    pub fn with(&self, more: Vec<Permit>) -> Result<Self, Error> {
        Scope::new(self.transfer, [self.permits.clone(), more].concat())
    }

    /// Whether it allows this access to a place.
    pub fn covers(&self, site: &SiteName, place: &Place, need: Need) -> bool {
        self.permits.iter().any(|permit| {
            let below = permit.right != Right::Look && place.path.starts_with(&permit.place.path);
            let here = permit.site == *site && permit.place.storage == place.storage;
            here && need.is_met_by(permit.right) && (below || permit.place.path == place.path)
        })
    }

    /// Whether it has this right to any place of a site.
    pub fn names(&self, site: &SiteName, right: Right) -> bool {
        self.permits.iter().any(|permit| permit.site == *site && permit.right == right)
    }

    /// The paths in a storage to which it allows this access.
    pub fn paths(&self, site: &SiteName, storage: &str, need: Need) -> impl Iterator<Item = &RelPath> {
        let here = move |permit: &&Permit| permit.site == *site && permit.place.storage == storage;
        let suffices = move |permit: &&Permit| need.is_met_by(permit.right);
        self.permits.iter().filter(here).filter(suffices).map(|permit| &permit.place.path)
    }

    /// The paths that a transfer into `base` may write, relative to it: the root for all, a single name for a place
    /// directly in `base`. None further down: their parent directories would have to be created.
    pub fn writable_in(&self, site: &SiteName, base: &Place) -> Vec<RelPath> {
        if self.covers(site, base, Need::Write) {
            return vec![RelPath::root()];
        }
        let in_base = |path: &&RelPath| path.parent().as_ref() == Some(&base.path);
        let paths = self.paths(site, &base.storage, Need::Write).filter(in_base);
        paths.filter_map(|path| RelPath::parse(path.name()?).ok()).collect()
    }

    /// The encoding in a certificate.
    pub fn encode(&self) -> Vec<u8> {
        [vec![VERSION], crate::wire::encode(self)].concat()
    }

    /// Decodes the result of [`Scope::encode`].
    ///
    /// # Errors
    /// `BadScope` for anything else, also for a scope that [`Scope::new`] would refuse.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bad = |cause: String| Error::new(Code::BadScope, "read scope", "certificate", cause);
        if bytes.len() > MAX_SCOPE_BYTES {
            return Err(bad(format!("{} bytes, at most {MAX_SCOPE_BYTES}", bytes.len())));
        }
        match bytes.split_first() {
            Some((&VERSION, rest)) => {
                let read = || -> Result<Scope, Error> {
                    let raw: Scope = crate::wire::decode("scope", rest).map_err(|error| bad(error.cause))?;
                    Scope::new(raw.transfer, raw.permits).map_err(|error| bad(error.cause))
                };
                match former_names::verbatim(read)?.encode() == bytes {
                    true => read(),
                    false => Err(bad("it is not in its one form".into())),
                }
            }
            Some((version, _)) => Err(bad(format!("version {version}, this side knows {VERSION}"))),
            None => Err(bad("it is empty".into())),
        }
    }
}

impl Permit {
    /// Whether it allows everything that `other` allows.
    fn implies(&self, other: &Permit) -> bool {
        let (path, inner) = (&self.place.path, &other.place.path);
        let covers = match (self.right, other.right) {
            (Right::Look, right) => right == Right::Look && path == inner,
            (mine, right) => (right == Right::Look || right == mine) && inner.starts_with(path),
        };
        covers && (&self.site, &self.place.storage) == (&other.site, &other.place.storage)
    }
}

impl Need {
    fn is_met_by(self, right: Right) -> bool {
        match self {
            Need::Look => true,
            Need::Examine => right != Right::Look,
            Need::Read => right == Right::Read,
            Need::Write => right == Right::Write,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::Look => "look at",
            Need::Examine => "examine",
            Need::Read => "read",
            Need::Write => "write",
        })
    }
}

impl fmt::Display for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = match self.right {
            Right::Look => "look at",
            Right::Read => "read",
            Right::Write => "write",
        };
        write!(f, "{right} {}:{}", self.site, self.place)
    }
}

/// Displays the first permits.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        for (index, permit) in self.permits.iter().take(SHOWN).enumerate() {
            write!(f, "{}{permit}", if index == 0 { "" } else { ", " })?;
        }
        match self.permits.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{Choice, Class, Existing, Found, ReceiveOptions, Source};
    use proptest::prelude::*;

    fn site(name: &str) -> SiteName {
        SiteName::parse(name).unwrap()
    }

    fn place(text: &str) -> Place {
        Place::parse(text.as_bytes()).unwrap().unwrap()
    }

    fn permit(at: &str, text: &str, right: Right) -> Permit {
        Permit { site: site(at), place: place(text), right }
    }

    fn scope() -> Scope {
        let permits =
            vec![permit("kek", "/raw/run7", Right::Read), permit("titech", "/data/in/run7", Right::Write)];
        Scope::new([7; 16], permits).unwrap()
    }

    fn may(at: &str, text: &str, need: Need) -> bool {
        scope().covers(&site(at), &place(text), need)
    }

    #[test]
    fn a_place_covers_paths_below_it_by_whole_components() {
        for good in ["/raw/run7", "/raw/run7/a", "/raw/run7/a/b"] {
            assert!(may("kek", good, Need::Read) && may("kek", good, Need::Look), "{good}");
        }
        for bad in ["/raw", "/raw/run70", "/raw/run", "/raw/other", "/raw/x/run7", "/data/run7"] {
            assert!(!may("kek", bad, Need::Read) && !may("kek", bad, Need::Look), "{bad}");
        }
    }

    #[test]
    fn rights_and_sites_are_independent() {
        assert!(!may("kek", "/raw/run7", Need::Write));
        assert!(!may("titech", "/raw/run7", Need::Look));
        assert!(may("titech", "/data/in/run7/f", Need::Write));
        assert!(!may("titech", "/data/in/run7/f", Need::Read));
        assert!(may("titech", "/data/in/run7/f", Need::Look));
        assert!(scope().names(&site("kek"), Right::Read) && !scope().names(&site("kek"), Right::Write));
        assert!(!scope().names(&site("osaka"), Right::Read));
    }

    #[test]
    fn the_root_of_a_storage_covers_it_and_no_other() {
        let all = Scope::new([0; 16], vec![permit("kek", "/raw", Right::Write)]).unwrap();
        let covers = |text: &str| all.covers(&site("kek"), &place(text), Need::Write);
        assert!(covers("/raw") && covers("/raw/a/b") && !covers("/rawx") && !covers("/data/raw"));
    }

    #[test]
    fn dot_components_are_refused() {
        for text in ["/raw/run7/../x", "/raw/run7/..", "/raw/.."] {
            assert!(Place::parse(text.as_bytes()).is_err(), "{text}");
        }
        let bytes = scope().encode();
        let at = bytes.windows(4).position(|part| part == b"run7").unwrap();
        for name in [b"../x", b"a//b", b"\0abc", b"run/"] {
            let mut forged = bytes.clone();
            forged[at..at + 4].copy_from_slice(name);
            assert_eq!(Scope::decode(&forged).unwrap_err().code, Code::BadScope, "{name:?}");
        }
    }

    #[test]
    fn a_base_shows_its_writable_parts() {
        let within = |text: &str| scope().writable_in(&site("titech"), &place(text));
        assert_eq!(within("/data/in/run7"), [RelPath::root()]);
        assert_eq!(within("/data/in/run7/sub"), [RelPath::root()]);
        assert_eq!(within("/data/in"), [RelPath::parse(b"run7").unwrap()]);
        assert!(within("/data").is_empty() && within("/raw").is_empty() && within("/data/in/run").is_empty());
        assert!(scope().writable_in(&site("kek"), &place("/raw")).is_empty());
    }

    #[test]
    fn places_covered_twice_are_stored_once() {
        let permits = ["/raw/a/b", "/raw/a", "/raw/a/c", "/raw/ab"];
        let scope = Scope::new([1; 16], permits.map(|text| permit("kek", text, Right::Read)).into()).unwrap();
        assert_eq!(scope.to_string(), "read kek:/raw/a, read kek:/raw/ab");
        let twice = Scope { permits: vec![scope.permits[0].clone(); 2], ..scope };
        assert_eq!(Scope::decode(&twice.encode()).unwrap_err().code, Code::BadScope);
    }

    #[test]
    fn oversized_and_malformed_scopes_are_refused() {
        let name = |n: usize| permit("kek", &format!("/raw/{n:0>200}"), Right::Read);
        let refused = |permits| Scope::new([0; 16], permits).unwrap_err().code;
        assert_eq!(refused((0..100).map(name).collect()), Code::TooManyEntries);
        assert_eq!(refused(Vec::new()), Code::UsageInvalid);
        let large = Scope { transfer: [0; 16], permits: (0..100).map(name).collect() };
        assert_eq!(Scope::decode(&large.encode()).unwrap_err().code, Code::BadScope);
        for bad in [&b""[..], b"\x02", b"\x01", &[1; 17]] {
            assert_eq!(Scope::decode(bad).unwrap_err().code, Code::BadScope, "{bad:?}");
        }
        let surplus = [scope().encode(), vec![0]].concat();
        assert_eq!(Scope::decode(&surplus).unwrap_err().code, Code::BadScope);
    }

    #[test]
    fn stat_of_a_place_shows_nothing_below_it() {
        let permits = vec![permit("kek", "/raw/d", Right::Look), permit("kek", "/raw/d/x", Right::Write)];
        let scope = Scope::new([0; 16], permits).unwrap();
        let may = |text: &str, need| scope.covers(&site("kek"), &place(text), need);
        assert!(may("/raw/d", Need::Look) && !may("/raw/d", Need::Examine) && !may("/raw/d", Need::Write));
        assert!(
            !may("/raw/d/y", Need::Look) && may("/raw/d/x/y", Need::Look) && may("/raw/d/x", Need::Examine)
        );
        assert_eq!(scope.writable_in(&site("kek"), &place("/raw/d")), [RelPath::parse(b"x").unwrap()]);
    }

    fn asked(to: &str, choices: Vec<(Found, bool, &str, &[&str])>) -> String {
        let rel = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let options = ReceiveOptions::plain(Existing::Replace);
        let choice = |(found, make, base, targets): (Found, bool, &str, &[&str])| {
            let targets = targets.iter().map(|text| rel(text)).collect();
            (found, Choice { base: rel(base), make, options: options.clone(), targets })
        };
        let sources =
            ["/raw/a", "/raw/b"].map(|text| Source { from: place(text), to: RelPath::root(), alone: false });
        let send = OpenSend { recursive: true, ..OpenSend::plain([5; 16], sources.into()) };
        let open = OpenFound {
            transfer: [5; 16],
            job: 0,
            to: place(to),
            class: Class::Normal,
            choices: choices.into_iter().map(choice).collect(),
            max_streams: 1,
            rules: Vec::new(),
        };
        let scope = Scope::of_transfer(&site("kek"), &send, &site("titech"), &open).unwrap();
        assert_eq!(scope.transfer(), &[5; 16]);
        let there = scope.permits().iter().filter(|permit| permit.site == site("titech"));
        assert!(scope.permits().iter().filter(|permit| permit.right == Right::Read).count() == 2);
        there.map(Permit::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_transfer_writes_only_the_destinations_of_its_sources() {
        let two: &[&str] = &["a", "b"];
        let into_root = asked("/data", Found::ALL.map(|found| (found, true, "", two)).into());
        assert_eq!(into_root, "look at titech:/data, write titech:/data/a, write titech:/data/b");
        let into_dir = asked("/data/in", vec![(Found::Dir, false, "in", two)]);
        assert_eq!(into_dir, "look at titech:/data/in, write titech:/data/in/a, write titech:/data/in/b");
        let made = asked("/data/in", vec![(Found::Dir, false, "in", two), (Found::Nothing, true, "in", two)]);
        assert_eq!(made, "write titech:/data/in");
        let becomes: &[&str] = &["in"];
        assert_eq!(asked("/data/in", vec![(Found::Nothing, false, "", becomes)]), "write titech:/data/in");
        assert_eq!(asked("/data/in", vec![(Found::Dir, false, "in", &[])]), "write titech:/data/in");
    }

    fn permits() -> impl Strategy<Value = Vec<Permit>> {
        let path = "[ab]{1,2}(/[ab]{1,2}){0,3}";
        let one = (0..2_usize, 0..2_usize, path, any::<bool>()).prop_map(|(at, storage, path, write)| {
            let text = format!("/{}/{path}", ["raw", "data"][storage]);
            permit(["kek", "titech"][at], &text, if write { Right::Write } else { Right::Read })
        });
        proptest::collection::vec(one, 1..8)
    }

    proptest! {
        #[test]
        fn dropping_covered_places_changes_nothing(all in permits(), asked in permits()) {
            let scope = Scope::new([3; 16], all.clone()).unwrap();
            prop_assert_eq!(&Scope::decode(&scope.encode()).unwrap(), &scope);
            for Permit { site, place, right } in &asked {
                let need = if *right == Right::Read { Need::Read } else { Need::Write };
                let by_one = all.iter().any(|permit| {
                    let text = format!("{}/", permit.place);
                    (&permit.site, permit.right) == (site, *right) && format!("{place}/").starts_with(&text)
                });
                prop_assert_eq!(scope.covers(site, place, need), by_one);
            }
        }

        #[test]
        fn a_base_allows_no_more_than_the_scope(all in permits(), base in permits(), name in "[ab]{1,2}(/[ab]{1,2})?") {
            let scope = Scope::new([3; 16], all).unwrap();
            let (at, base) = (&base[0].site, &base[0].place);
            let path = RelPath::parse(name.as_bytes()).unwrap();
            let whole = Place { path: base.path.join(&path).unwrap(), ..base.clone() };
            if scope.writable_in(at, base).iter().any(|below| path.starts_with(below)) {
                prop_assert!(scope.covers(at, &whole, Need::Write));
            }
        }

        #[test]
        fn any_bytes_are_a_scope_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(scope) = Scope::decode(&bytes) {
                prop_assert_eq!(scope.encode(), bytes);
            }
        }
    }
}
