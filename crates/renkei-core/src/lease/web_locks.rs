//! Write locks of HTTP clients (RFC 4918, sections 6 and 7): the table, and the locks that stand in the way of a change.
//!
//! A lock covers one name or a tree. Whoever holds a lock shows its token with each change below it; a token counts for the
//! principal that it was given to. Locks end by themselves, and bind HTTP clients alone: other ways to the files do not
//! ask for them. The table is bounded; the caller gives the time and makes the tokens.

use super::Moment;
use crate::identity::Principal;
use crate::path::Place;
use std::time::Duration;

/// Most locks in the table.
pub const MAX_LOCKS: usize = 10_000;
/// Most locks of one principal.
pub const MAX_LOCKS_OF_ONE: usize = 1_000;
/// Longest time until a lock ends that is not refreshed.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Identifies a lock.
pub type LockToken = [u8; 16];

/// A write lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebLock {
    /// Its token.
    pub token: LockToken,
    /// What was locked.
    pub root: Place,
    /// Whether all below is locked, too.
    pub is_tree: bool,
    /// Whether others may hold shared locks at the same time.
    pub is_shared: bool,
    /// Who holds it.
    pub holder: Principal,
    /// What the client says of its user, as XML.
    pub owner: String,
    /// When it ends.
    pub until: Moment,
}

impl WebLock {
    /// Whether it covers a place.
    pub fn covers(&self, place: &Place) -> bool {
        self.root == *place || (self.is_tree && is_below(place, &self.root))
    }

    fn overlaps(&self, other: &WebLock) -> bool {
        self.covers(&other.root) || other.covers(&self.root)
    }
}

fn is_below(place: &Place, root: &Place) -> bool {
    place.storage == root.storage && place.path.starts_with(&root.path)
}

/// What a request is about to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The place.
    pub place: Place,
    /// Whether all below it changes, too.
    pub is_tree: bool,
    /// Whether the name comes or goes, which changes its directory.
    pub is_name: bool,
}

impl Claim {
    fn concerns(&self, lock: &WebLock) -> bool {
        let is_parent = || self.is_name && Some(&lock.root.path) == self.place.path.parent().as_ref();
        lock.covers(&self.place)
            || (self.is_tree && is_below(&lock.root, &self.place))
            || (is_parent() && lock.root.storage == self.place.storage)
    }
}

/// The locks of a site.
#[derive(Default)]
pub struct WebLocks(Vec<WebLock>);

/// Why there is no lock.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// This place is locked.
    Conflict(Place),
    /// The table is full, or the principal's share of it.
    Full,
}

impl WebLocks {
    /// The locks that have not ended.
    fn valid(&mut self, now: Moment) -> &mut Vec<WebLock> {
        self.0.retain(|lock| lock.until > now);
        &mut self.0
    }

    /// Adds a lock.
    ///
    /// # Errors
    /// The reason if it is refused.
    pub fn lock(&mut self, lock: WebLock, now: Moment) -> Result<(), Refused> {
        let locks = self.valid(now);
        let is_conflict = |held: &&WebLock| held.overlaps(&lock) && !(held.is_shared && lock.is_shared);
        if let Some(held) = locks.iter().find(is_conflict) {
            return Err(Refused::Conflict(held.root.clone()));
        }
        let own = locks.iter().filter(|held| held.holder == lock.holder).count();
        if locks.len() >= MAX_LOCKS || own >= MAX_LOCKS_OF_ONE {
            return Err(Refused::Full);
        }
        locks.push(lock);
        Ok(())
    }

    /// A lock of a principal that covers a place.
    fn own(
        &mut self,
        token: &LockToken,
        place: &Place,
        holder: &Principal,
        now: Moment,
    ) -> Option<&mut WebLock> {
        let is_own =
            |lock: &&mut WebLock| lock.token == *token && lock.holder == *holder && lock.covers(place);
        self.valid(now).iter_mut().find(is_own)
    }

    /// Sets the end of a lock.
    pub fn refresh(
        &mut self,
        token: &LockToken,
        place: &Place,
        holder: &Principal,
        timeout: Duration,
        now: Moment,
    ) -> Option<WebLock> {
        let lock = self.own(token, place, holder, now)?;
        lock.until = now + timeout;
        Some(lock.clone())
    }

    /// Removes a lock, if it is there.
    pub fn unlock(&mut self, token: &LockToken, place: &Place, holder: &Principal, now: Moment) -> bool {
        let is_there = self.own(token, place, holder, now).is_some();
        self.0.retain(|lock| !is_there || lock.token != *token);
        is_there
    }

    /// Removes the locks of what is no longer there.
    pub fn forget_below(&mut self, place: &Place) {
        self.0.retain(|lock| !is_below(&lock.root, place));
    }

    /// The locks that cover a place.
    pub fn covering(&mut self, place: &Place, now: Moment) -> Vec<WebLock> {
        self.valid(now).iter().filter(|lock| lock.covers(place)).cloned().collect()
    }

    /// What is locked of a claim by locks whose token is not among those that the principal shows. Of shared locks one
    /// token is enough.
    pub fn refusing(
        &mut self,
        claim: &Claim,
        shown: &[LockToken],
        by: &Principal,
        now: Moment,
    ) -> Option<Place> {
        let locks = self.valid(now);
        let is_shown = |lock: &WebLock| lock.holder == *by && shown.contains(&lock.token);
        let is_allowed = |lock: &WebLock| {
            is_shown(lock)
                || (lock.is_shared && locks.iter().any(|other| is_shown(other) && other.overlaps(lock)))
        };
        locks.iter().find(|lock| claim.concerns(lock) && !is_allowed(lock)).map(|lock| lock.root.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::SiteName;

    fn place(path: &str) -> Place {
        Place::parse(path.as_bytes()).unwrap().unwrap()
    }

    fn principal(name: &str) -> Principal {
        Principal::user(&SiteName::parse("kek").unwrap(), name).unwrap()
    }

    fn lock(token: u8, root: &str, is_tree: bool, is_shared: bool, now: Moment) -> WebLock {
        let (root, holder) = (place(root), principal("alice"));
        let until = now + Duration::from_secs(60);
        WebLock { token: [token; 16], root, is_tree, is_shared, holder, owner: String::new(), until }
    }

    fn claim(path: &str) -> Claim {
        Claim { place: place(path), is_tree: false, is_name: false }
    }

    #[test]
    fn exclusive_locks_conflict_above_and_below_and_shared_ones_do_not() {
        let (mut locks, now) = (WebLocks::default(), Moment::from_secs(1_000));
        locks.lock(lock(1, "/data/a", true, false, now), now).unwrap();
        for conflict in ["/data/a", "/data/a/b", "/data"] {
            let refused = locks.lock(lock(2, conflict, true, true, now), now);
            assert_eq!(refused, Err(Refused::Conflict(place("/data/a"))), "{conflict}");
        }
        // The directory alone is another resource than its members.
        locks.lock(lock(3, "/data", false, false, now), now).unwrap();
        locks.lock(lock(4, "/data/ab", true, true, now), now).unwrap();
        locks.lock(lock(5, "/data/ab", true, true, now), now).unwrap();
        assert_eq!(locks.covering(&place("/data/ab/x"), now).len(), 2);
        assert!(locks.lock(lock(6, "/data/ab/x", false, false, now), now).is_err());
    }

    #[test]
    fn changes_need_the_tokens_of_what_they_touch() {
        let (mut locks, now) = (WebLocks::default(), Moment::from_secs(1_000));
        locks.lock(lock(1, "/data/a/b", false, false, now), now).unwrap();
        locks.lock(lock(2, "/data/a", false, false, now), now).unwrap();
        let mut refused = |claim: &Claim, shown: &[LockToken], by: &str| {
            locks.refusing(claim, shown, &principal(by), now).map(|place| place.to_string())
        };
        assert_eq!(refused(&claim("/data/a/b"), &[], "alice").as_deref(), Some("/data/a/b"));
        assert_eq!(refused(&claim("/data/a/b"), &[[1; 16]], "alice"), None);
        assert_eq!(refused(&claim("/data/a/b"), &[[1; 16]], "bob").as_deref(), Some("/data/a/b"));
        assert_eq!(refused(&claim("/data/a/c"), &[], "alice"), None);
        let name = Claim { is_name: true, ..claim("/data/a/c") };
        assert_eq!(refused(&name, &[], "alice").as_deref(), Some("/data/a"));
        assert_eq!(refused(&name, &[[2; 16]], "alice"), None);
        let tree = Claim { is_tree: true, ..claim("/data") };
        assert_eq!(refused(&tree, &[[2; 16]], "alice").as_deref(), Some("/data/a/b"));
        assert_eq!(refused(&tree, &[[2; 16], [1; 16]], "alice"), None);
    }

    #[test]
    fn one_token_of_shared_locks_is_enough() {
        let (mut locks, now) = (WebLocks::default(), Moment::from_secs(1_000));
        locks.lock(lock(1, "/data/a", true, true, now), now).unwrap();
        locks
            .lock(WebLock { holder: principal("bob"), ..lock(2, "/data/a/b", true, true, now) }, now)
            .unwrap();
        assert_eq!(locks.refusing(&claim("/data/a/b"), &[[2; 16]], &principal("bob"), now), None);
        assert_eq!(locks.refusing(&claim("/data/a/b"), &[[1; 16]], &principal("alice"), now), None);
        assert!(locks.refusing(&claim("/data/a/b"), &[[1; 16]], &principal("bob"), now).is_some());
    }

    #[test]
    fn locks_end_and_are_refreshed_by_their_holder() {
        let (mut locks, start) = (WebLocks::default(), Moment::from_secs(1_000));
        let (a, alice) = (place("/data/a"), principal("alice"));
        let minute = Duration::from_secs(60);
        locks.lock(lock(1, "/data/a", false, false, start), start).unwrap();
        assert!(locks.refresh(&[1; 16], &a, &principal("bob"), minute, start).is_none());
        let half = start + minute / 2;
        assert!(locks.refresh(&[1; 16], &a, &alice, minute, half).is_some());
        assert_eq!(locks.covering(&a, start + minute).len(), 1);
        assert!(locks.covering(&a, half + minute).is_empty());
        locks.lock(lock(2, "/data/a", false, false, half + minute), half + minute).unwrap();
        assert!(!locks.unlock(&[2; 16], &a, &principal("bob"), half + minute));
        assert!(locks.unlock(&[2; 16], &a, &alice, half + minute));
        locks.lock(lock(3, "/data/a/b", false, false, half + minute), half + minute).unwrap();
        locks.forget_below(&a);
        assert!(locks.covering(&place("/data/a/b"), half + minute).is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let (mut locks, now) = (WebLocks::default(), Moment::from_secs(1_000));
        for number in 0..MAX_LOCKS_OF_ONE {
            locks.lock(lock(1, &format!("/data/{number}"), false, false, now), now).unwrap();
        }
        assert_eq!(locks.lock(lock(1, "/data/more", false, false, now), now), Err(Refused::Full));
    }
}
