//! The scope of a restricted credential: rights to places, each with all below it, and nothing else.
//!
//! Paths are compared by whole components: `run7` covers `run7` and `run7/a`, not `run70`. The comparison is purely
//! textual; following links from one place to another is up to the store (docs/design/0012, docs/design/0037).

use super::rights::Rights;
use crate::error::{Code, Error};
use crate::former_names;
use crate::ids::TransferId;
use crate::path::{Place, RelPath, SiteName};
use crate::wire::queue::Submission;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Largest encoded scope. A client that resumes a TLS session sends its certificate within its first message, of
/// which a PoP accepts 16 KiB.
pub const MAX_SCOPE_BYTES: usize = 8 << 10;

/// First byte of the encoding for the scopes of transfers, which says look at, read or write.
const OF_TRANSFER: u8 = 1;
/// First byte of the encoding for all other scopes.
const OF_RIGHTS: u8 = 2;

/// The right to read of the first encoding.
const READ: Rights = Rights::READ.and(Rights::LIST);
/// The right to write of the first encoding.
const WRITE: Rights = Rights::CREATE.and(Rights::MODIFY).and(Rights::DELETE).and(Rights::LIST);

/// The access that a request needs to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Read its metadata.
    Look,
    /// List it, or read its size and digest.
    Examine,
    /// Read content.
    Read,
    /// Create or change it.
    Write,
}

/// Rights to one place and, unless they are [`Rights::NONE`], to all below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Permit {
    /// The site.
    pub site: SiteName,
    /// The place there.
    pub place: Place,
    /// The rights.
    pub rights: Rights,
}

/// The first encoding of a right.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum OldRight {
    Look,
    Read,
    Write,
}

/// A permit in the first encoding.
#[derive(Serialize, Deserialize)]
struct OldPermit {
    site: SiteName,
    place: Place,
    right: OldRight,
}

/// The rights of a restricted credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    transfer: Option<TransferId>,
    permits: Vec<Permit>,
}

impl Scope {
    /// The scope of a transfer, which also limits the kinds of requests to those that transfers need. The order of the
    /// permits is irrelevant; permits that others imply are dropped.
    ///
    /// # Errors
    /// `TooManyEntries` if it does not fit a certificate, `UsageInvalid` without any permit.
    pub fn new(transfer: TransferId, permits: Vec<Permit>) -> Result<Self, Error> {
        Scope::of(Some(transfer), permits)
    }

    /// A scope of any requests to which its rights suffice.
    ///
    /// # Errors
    /// As [`Scope::new`].
    pub fn of_rights(permits: Vec<Permit>) -> Result<Self, Error> {
        Scope::of(None, permits)
    }

    fn of(transfer: Option<TransferId>, permits: Vec<Permit>) -> Result<Self, Error> {
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

    /// The transfer it is for, if it is for one.
    pub fn transfer(&self) -> Option<&TransferId> {
        self.transfer.as_ref()
    }

    /// Its permits.
    pub fn permits(&self) -> &[Permit] {
        &self.permits
    }

    /// The scope that a transfer needs: its sources readable, and its targets writable, for every kind of the
    /// destination.
    pub fn of_transfer(submission: &Submission) -> Result<Self, Error> {
        let Submission { from, send, to, copy, .. } = submission;
        let permit = |site: &SiteName, place, rights| Permit { site: site.clone(), place, rights };
        let mut permits = vec![permit(to, copy.to.clone(), Rights::NONE)];
        permits.extend(send.sources.iter().map(|source| permit(from, source.from.clone(), READ)));
        let names = send.targets();
        for (_, resolved) in copy.outcomes()? {
            // A storage's root exists and is never created.
            if resolved.make && !copy.to.path.is_root() {
                permits.push(permit(to, copy.to.clone(), WRITE));
            }
            let places = copy.places(resolved.layout, &names)?;
            permits.extend(places.into_iter().map(|place| permit(to, place, WRITE)));
        }
        Scope::new(send.transfer, permits)
    }

    /// The same with a place of a site that may be read and written.
    ///
    /// # Errors
    /// As [`Scope::new`].
    pub fn with_own(&self, site: &SiteName, place: Place) -> Result<Self, Error> {
        let permit = |rights| Permit { site: site.clone(), place: place.clone(), rights };
        Scope::of(self.transfer, [self.permits.clone(), vec![permit(WRITE), permit(READ)]].concat())
    }

    /// Whether it gives all these rights to a place; without any, whether the place may be looked at.
    pub fn allows(&self, site: &SiteName, place: &Place, rights: Rights) -> bool {
        let mut given = self.permits.iter().filter(|permit| permit.reaches(site, place)).peekable();
        given.peek().is_some() && given.fold(Rights::NONE, |all, permit| all | permit.rights).contains(rights)
    }

    /// Whether it is about a place, or one below it.
    pub fn meets(&self, site: &SiteName, place: &Place) -> bool {
        let is_below = |permit: &Permit| {
            let Permit { site: of, place: inner, .. } = permit;
            of == site && inner.storage == place.storage && inner.path.starts_with(&place.path)
        };
        self.permits.iter().any(|permit| permit.reaches(site, place) || is_below(permit))
    }

    /// Whether it gives all these rights to any place of a site.
    pub fn names(&self, site: &SiteName, rights: Rights) -> bool {
        self.permits.iter().any(|permit| permit.site == *site && permit.rights.contains(rights))
    }

    /// The paths in a storage on which an access of this kind may work.
    pub fn paths(&self, site: &SiteName, storage: &str, need: Need) -> impl Iterator<Item = &RelPath> {
        let here = move |permit: &&Permit| permit.site == *site && permit.place.storage == storage;
        let suffices = move |permit: &&Permit| need.may_work_with(permit.rights);
        self.permits.iter().filter(here).filter(suffices).map(|permit| &permit.place.path)
    }

    /// The paths that a transfer into `base` with these rights may write, relative to it: the root for all, a single
    /// name for a place directly in `base`. None further down: their parent directories would have to be created.
    pub fn writable_in(&self, site: &SiteName, base: &Place, rights: Rights) -> Vec<RelPath> {
        if self.allows(site, base, rights) {
            return vec![RelPath::root()];
        }
        let here = |permit: &&Permit| permit.site == *site && permit.place.storage == base.storage;
        let in_base = |path: &&RelPath| path.parent().as_ref() == Some(&base.path);
        let given = self.permits.iter().filter(here).filter(|permit| permit.rights.contains(rights));
        let paths = given.map(|permit| &permit.place.path).filter(in_base);
        paths.filter_map(|path| RelPath::parse(path.name()?).ok()).collect()
    }

    /// Whether a transfer into `base` may write anything there with these rights.
    pub fn writes_in(&self, site: &SiteName, base: &Place, rights: Rights) -> bool {
        !self.writable_in(site, base, rights).is_empty()
    }

    /// The rights that both give, never more than either: each permit of the one with each of the other, where one
    /// of their places lies in the other. It is for a transfer if one of them is.
    ///
    /// # Errors
    /// As [`Scope::new`]; `OutOfScope` if they are for different transfers.
    pub fn narrowed(&self, by: &Scope) -> Result<Self, Error> {
        let transfer = match (self.transfer, by.transfer) {
            (Some(one), Some(other)) if one != other => {
                return Err(Error::new(
                    Code::OutOfScope,
                    "delegate",
                    "transfer",
                    "it is for another transfer",
                ));
            }
            (one, other) => one.or(other),
        };
        let pairs = self.permits.iter().flat_map(|one| by.permits.iter().map(move |other| (one, other)));
        Scope::of(transfer, pairs.filter_map(|(one, other)| one.common(other)).collect())
    }

    /// The encoding in a certificate: that of the oldest version that can say it.
    pub fn encode(&self) -> Vec<u8> {
        let old = self.transfer.zip(self.permits.iter().map(Permit::old).collect::<Option<Vec<_>>>());
        match old {
            Some(old) => [vec![OF_TRANSFER], crate::wire::encode(&old)].concat(),
            None => [vec![OF_RIGHTS], crate::wire::encode(self)].concat(),
        }
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
        let read = || {
            let raw = Scope::raw(bytes).map_err(|error| bad(error.cause))?;
            Scope::of(raw.transfer, raw.permits).map_err(|error| bad(error.cause))
        };
        match former_names::verbatim(read)?.encode() == bytes {
            true => read(),
            false => Err(bad("it is not in its one form".into())),
        }
    }

    /// What an encoding says, unchecked.
    fn raw(bytes: &[u8]) -> Result<Scope, Error> {
        let bad = |cause: String| Err(Error::new(Code::BadScope, "read scope", "certificate", cause));
        match bytes.split_first() {
            Some((&OF_TRANSFER, rest)) => {
                let (transfer, old): (TransferId, Vec<OldPermit>) = crate::wire::decode("scope", rest)?;
                Ok(Scope { transfer: Some(transfer), permits: old.into_iter().map(Permit::from).collect() })
            }
            Some((&OF_RIGHTS, rest)) => crate::wire::decode("scope", rest),
            Some((version, _)) => bad(format!("version {version}, this side knows {OF_RIGHTS}")),
            None => bad("it is empty".into()),
        }
    }
}

impl From<OldPermit> for Permit {
    fn from(old: OldPermit) -> Permit {
        let rights = match old.right {
            OldRight::Look => Rights::NONE,
            OldRight::Read => READ,
            OldRight::Write => WRITE,
        };
        Permit { site: old.site, place: old.place, rights }
    }
}

impl Permit {
    /// Whether it allows everything that `other` allows.
    fn implies(&self, other: &Permit) -> bool {
        self.reaches(&other.site, &other.place)
            && self.rights.contains(other.rights)
            && (!self.rights.is_empty() || self.place.path == other.place.path)
    }

    /// Whether a place is its own, or lies below it.
    fn reaches(&self, site: &SiteName, place: &Place) -> bool {
        let (path, inner) = (&self.place.path, &place.path);
        let below = !self.rights.is_empty() && inner.starts_with(path);
        self.site == *site && self.place.storage == place.storage && (below || path == inner)
    }

    /// What both allow, at the inner one of their places.
    fn common(&self, other: &Permit) -> Option<Permit> {
        let inner = if other.reaches(&self.site, &self.place) {
            self
        } else if self.reaches(&other.site, &other.place) {
            other
        } else {
            return None;
        };
        Some(Permit { rights: self.rights.common(other.rights), ..inner.clone() })
    }

    /// The first encoding, if that can say it.
    fn old(&self) -> Option<OldPermit> {
        let right = match self.rights {
            Rights::NONE => OldRight::Look,
            READ => OldRight::Read,
            WRITE => OldRight::Write,
            _ => return None,
        };
        Some(OldPermit { site: self.site.clone(), place: self.place.clone(), right })
    }
}

impl Need {
    /// The rights for an access that is not told more exactly.
    pub fn rights(self) -> Rights {
        match self {
            Need::Look => Rights::NONE,
            Need::Examine => Rights::LIST,
            Need::Read => Rights::READ,
            Need::Write => Rights::CREATE | Rights::MODIFY,
        }
    }

    fn may_work_with(self, rights: Rights) -> bool {
        match self {
            Need::Look => true,
            Need::Examine => !rights.is_empty(),
            Need::Read => rights.contains(Rights::READ),
            Need::Write => !rights.common(Rights::CREATE | Rights::MODIFY | Rights::DELETE).is_empty(),
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
        let rights = match self.rights {
            READ => "read".to_owned(),
            WRITE => "write".to_owned(),
            rights => rights.to_string(),
        };
        write!(f, "{rights} {}:{}", self.site, self.place)
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
    use crate::mover::layout::CopyForm;
    use crate::wire::copy::OpenCopy;
    use crate::wire::message::{Class, Existing, OpenSend, ReceiveOptions, Source};
    use crate::wire::queue::Terms;
    use proptest::prelude::*;

    fn site(name: &str) -> SiteName {
        SiteName::parse(name).unwrap()
    }

    fn place(text: &str) -> Place {
        Place::parse(text.as_bytes()).unwrap().unwrap()
    }

    fn permit(at: &str, text: &str, rights: Rights) -> Permit {
        Permit { site: site(at), place: place(text), rights }
    }

    fn scope() -> Scope {
        let permits = vec![permit("kek", "/raw/run7", READ), permit("titech", "/data/in/run7", WRITE)];
        Scope::new([7; 16], permits).unwrap()
    }

    fn may(at: &str, text: &str, need: Need) -> bool {
        scope().allows(&site(at), &place(text), need.rights())
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
        assert!(scope().names(&site("kek"), READ) && !scope().names(&site("kek"), WRITE));
        assert!(!scope().names(&site("osaka"), READ));
    }

    #[test]
    fn the_root_of_a_storage_covers_it_and_no_other() {
        let all = Scope::new([0; 16], vec![permit("kek", "/raw", WRITE)]).unwrap();
        let covers = |text: &str| all.allows(&site("kek"), &place(text), Need::Write.rights());
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
        let within = |text: &str| scope().writable_in(&site("titech"), &place(text), WRITE);
        assert_eq!(within("/data/in/run7"), [RelPath::root()]);
        assert_eq!(within("/data/in/run7/sub"), [RelPath::root()]);
        assert_eq!(within("/data/in"), [RelPath::parse(b"run7").unwrap()]);
        assert!(within("/data").is_empty() && within("/raw").is_empty() && within("/data/in/run").is_empty());
        assert!(scope().writable_in(&site("kek"), &place("/raw"), WRITE).is_empty());
    }

    #[test]
    fn places_covered_twice_are_stored_once() {
        let permits = ["/raw/a/b", "/raw/a", "/raw/a/c", "/raw/ab"];
        let scope = Scope::new([1; 16], permits.map(|text| permit("kek", text, READ)).into()).unwrap();
        assert_eq!(scope.to_string(), "read kek:/raw/a, read kek:/raw/ab");
        let twice = Scope { permits: vec![scope.permits[0].clone(); 2], ..scope };
        assert_eq!(Scope::decode(&twice.encode()).unwrap_err().code, Code::BadScope);
    }

    #[test]
    fn oversized_and_malformed_scopes_are_refused() {
        let name = |n: usize| permit("kek", &format!("/raw/{n:0>200}"), READ);
        let refused = |permits| Scope::new([0; 16], permits).unwrap_err().code;
        assert_eq!(refused((0..100).map(name).collect()), Code::TooManyEntries);
        assert_eq!(refused(Vec::new()), Code::UsageInvalid);
        let large = Scope { transfer: Some([0; 16]), permits: (0..100).map(name).collect() };
        assert_eq!(Scope::decode(&large.encode()).unwrap_err().code, Code::BadScope);
        for bad in [&b""[..], b"\x03", b"\x02", b"\x01", &[1; 17]] {
            assert_eq!(Scope::decode(bad).unwrap_err().code, Code::BadScope, "{bad:?}");
        }
        let surplus = [scope().encode(), vec![0]].concat();
        assert_eq!(Scope::decode(&surplus).unwrap_err().code, Code::BadScope);
    }

    #[test]
    fn stat_of_a_place_shows_nothing_below_it() {
        let permits = vec![permit("kek", "/raw/d", Rights::NONE), permit("kek", "/raw/d/x", WRITE)];
        let scope = Scope::new([0; 16], permits).unwrap();
        let may = |text: &str, need| scope.allows(&site("kek"), &place(text), Need::rights(need));
        assert!(may("/raw/d", Need::Look) && !may("/raw/d", Need::Examine) && !may("/raw/d", Need::Write));
        assert!(
            !may("/raw/d/y", Need::Look) && may("/raw/d/x/y", Need::Look) && may("/raw/d/x", Need::Examine)
        );
        assert_eq!(scope.writable_in(&site("kek"), &place("/raw/d"), WRITE), [RelPath::parse(b"x").unwrap()]);
    }

    fn asked(to: &str, names: &[&str], directory: bool) -> String {
        let source = |name: &&str| Source {
            from: place(&format!("/raw/{name}")),
            to: RelPath::parse(name.as_bytes()).unwrap(),
            alone: false,
        };
        let send = OpenSend::plain([5; 16], names.iter().map(source).collect());
        let copy = OpenCopy {
            transfer: [5; 16],
            job: 0,
            to: place(to),
            form: CopyForm { directory, contents: false, resumed: false },
            beside: Vec::new(),
            options: ReceiveOptions::plain(Existing::Replace),
            class: Class::Normal,
            max_streams: 1,
            rules: Vec::new(),
        };
        let (from, to, terms) = (site("kek"), site("titech"), Terms::default());
        let scope = Scope::of_transfer(&Submission { from, send, to, copy, terms }).unwrap();
        assert_eq!(scope.transfer(), Some(&[5; 16]));
        let there = scope.permits().iter().filter(|permit| permit.site == site("titech"));
        assert_eq!(scope.permits().iter().filter(|permit| permit.rights == READ).count(), names.len());
        there.map(Permit::to_string).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_transfer_writes_only_the_destinations_of_its_sources() {
        let into_root = asked("/data", &["a", "b"], true);
        assert_eq!(into_root, "look at titech:/data, write titech:/data/a, write titech:/data/b");
        // The destination may have to be made, or be made of the source.
        for (names, directory) in [(&["a", "b"][..], true), (&["a"], false)] {
            assert_eq!(asked("/data/in", names, directory), "write titech:/data/in");
        }
    }

    fn permits() -> impl Strategy<Value = Vec<Permit>> {
        let path = "[ab]{1,2}(/[ab]{1,2}){0,3}";
        let one = (0..2_usize, 0..2_usize, path, any::<bool>()).prop_map(|(at, storage, path, write)| {
            let text = format!("/{}/{path}", ["raw", "data"][storage]);
            permit(["kek", "titech"][at], &text, if write { WRITE } else { READ })
        });
        proptest::collection::vec(one, 1..8)
    }

    fn fine() -> impl Strategy<Value = Vec<Permit>> {
        (permits(), proptest::collection::vec(0..64_u8, 8)).prop_map(|(all, bits)| {
            let with = |(permit, bits)| Permit { rights: Rights::try_from(bits).unwrap(), ..permit };
            all.into_iter().zip(bits).map(with).collect()
        })
    }

    #[test]
    fn the_first_encoding_is_read_and_still_written_for_transfers() {
        let bytes =
            [&b"\x01"[..], &[7; 16], b"\x02\x03kek\x03raw\x04run7\x01", b"\x06titech\x04data\x07in/run7\x02"];
        let old = bytes.concat();
        assert_eq!(Scope::decode(&old).unwrap(), scope());
        assert_eq!(scope().encode(), old);
        let general = Scope::of_rights(scope().permits().to_vec()).unwrap();
        assert_eq!(general.encode()[0], OF_RIGHTS);
        assert_eq!(Scope::decode(&general.encode()).unwrap(), general);
    }

    #[test]
    fn a_scope_of_rights_gives_each_right_by_itself() {
        let both = Rights::CREATE | Rights::MODIFY;
        let scope = Scope::of_rights(vec![
            permit("kek", "/data", Rights::READ),
            permit("kek", "/data/in", Rights::CREATE),
            permit("kek", "/data/in/mine", Rights::MODIFY),
        ]);
        let scope = scope.unwrap();
        let may = |text: &str, rights| scope.allows(&site("kek"), &place(text), rights);
        assert!(
            may("/data/x", Rights::READ) && !may("/database", Rights::READ) && !may("/data", Rights::LIST)
        );
        assert!(
            may("/data/in/x", Rights::CREATE) && !may("/data/in/x", both) && may("/data/in/mine/x", both)
        );
        assert!(!may("/data/x", Rights::CREATE) && !may("/data/in/x", Rights::DELETE));
        let other = Scope::new([1; 16], scope.permits().to_vec()).unwrap();
        assert_eq!(other.narrowed(&scope).unwrap(), other);
        let third = Scope::new([2; 16], scope.permits().to_vec()).unwrap();
        assert_eq!(other.narrowed(&third).unwrap_err().code, Code::OutOfScope);
    }

    proptest! {
        #[test]
        fn dropping_covered_places_changes_nothing(all in permits(), asked in permits()) {
            let scope = Scope::new([3; 16], all.clone()).unwrap();
            prop_assert_eq!(&Scope::decode(&scope.encode()).unwrap(), &scope);
            for Permit { site, place, rights } in &asked {
                let by_one = all.iter().any(|permit| {
                    let text = format!("{}/", permit.place);
                    (&permit.site, permit.rights) == (site, *rights) && format!("{place}/").starts_with(&text)
                });
                // To look at or to list, either right suffices.
                let decisive = rights.common(Rights::READ | Rights::MODIFY);
                prop_assert_eq!(scope.allows(site, place, decisive), by_one);
            }
        }

        #[test]
        fn a_base_allows_no_more_than_the_scope(all in permits(), base in permits(), name in "[ab]{1,2}(/[ab]{1,2})?") {
            let scope = Scope::new([3; 16], all).unwrap();
            let (at, base) = (&base[0].site, &base[0].place);
            let path = RelPath::parse(name.as_bytes()).unwrap();
            let whole = Place { path: base.path.join(&path).unwrap(), ..base.clone() };
            if scope.writable_in(at, base, WRITE).iter().any(|below| path.starts_with(below)) {
                prop_assert!(scope.allows(at, &whole, WRITE));
            }
        }

        #[test]
        fn a_narrowed_scope_allows_what_both_allow_and_no_more(
            one in fine(), other in fine(), asked in fine(), right in 0..6_u8,
        ) {
            let (one, other) = (Scope::of_rights(one).unwrap(), Scope::of_rights(other).unwrap());
            let both = match one.narrowed(&other) {
                Ok(both) => both,
                Err(_) => Scope { transfer: None, permits: Vec::new() },
            };
            let right = Rights::try_from(1 << right).unwrap();
            for Permit { site, place, .. } in &asked {
                let expected = one.allows(site, place, right) && other.allows(site, place, right);
                prop_assert_eq!(both.allows(site, place, right), expected);
                let seen = one.allows(site, place, Rights::NONE) && other.allows(site, place, Rights::NONE);
                prop_assert!(seen || !both.allows(site, place, Rights::NONE));
            }
            if !both.permits.is_empty() {
                prop_assert_eq!(&Scope::decode(&both.encode()).unwrap(), &both);
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
