//! Scheduling: the transfer that runs next.
//!
//! Users share the PoP fairly: the one with the fewest running transfers comes next, of equals the one served longest
//! ago. Within a user the highest priority goes first, then the oldest. Concurrency is limited in total, per user and
//! per link. A link whose peer was unreachable is in backoff, so that a thousand transfers to a site that is down
//! cost one attempt per interval.

use super::job::pause_ms;
use crate::path::SiteName;
use std::collections::HashMap;

/// A link: the direction of data between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// The sending site.
    pub from: SiteName,
    /// The receiving site.
    pub to: SiteName,
}

/// Limits of concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In total.
    pub all: usize,
    /// Per user.
    pub user: usize,
    /// Per link.
    pub link: usize,
}

/// The first transfer of a lane, that is of one user over one link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its owner's principal.
    pub owner: String,
    /// Its link.
    pub link: Link,
    /// Higher runs earlier.
    pub priority: i64,
    /// When it was submitted.
    pub submitted_ms: u64,
}

/// Running transfers, and the order in which users were served.
#[derive(Clone, Debug, Default)]
pub struct Load {
    running: usize,
    users: HashMap<String, usize>,
    links: HashMap<Link, usize>,
    served: HashMap<String, u64>,
    /// Links in backoff: end of the backoff, and number of consecutive failures.
    rests: HashMap<Link, (u64, u32)>,
    turn: u64,
}

impl Load {
    /// Number of running transfers.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Whether a transfer of this lane may start.
    pub fn has_room(&self, owner: &str, link: &Link, limits: Limits, now_ms: u64) -> bool {
        self.running < limits.all
            && self.users.get(owner).is_none_or(|count| *count < limits.user)
            && self.links.get(link).is_none_or(|count| *count < limits.link)
            && self.rests_until(link, now_ms).is_none()
    }

    /// End of a link's backoff, if it is in one.
    pub fn rests_until(&self, link: &Link, now_ms: u64) -> Option<u64> {
        self.rests.get(link).map(|(until, _)| *until).filter(|until| *until > now_ms)
    }

    /// The index in `heads` of the transfer to start now.
    pub fn pick(&self, heads: &[Head], limits: Limits, now_ms: u64) -> Option<usize> {
        let order = |head: &Head| {
            let running = self.users.get(&head.owner).copied().unwrap_or(0);
            let served = self.served.get(&head.owner).copied().unwrap_or(0);
            (running, served, std::cmp::Reverse(head.priority), head.submitted_ms)
        };
        let may = heads.iter().enumerate();
        let may = may.filter(|(_, head)| self.has_room(&head.owner, &head.link, limits, now_ms));
        may.min_by_key(|(_, head)| order(head)).map(|(at, _)| at)
    }

    /// A transfer started.
    pub fn start(&mut self, owner: &str, link: &Link) {
        self.turn += 1;
        self.running += 1;
        *self.users.entry(owner.into()).or_default() += 1;
        *self.links.entry(link.clone()).or_default() += 1;
        self.served.insert(owner.into(), self.turn);
    }

    /// A transfer ended.
    pub fn end(&mut self, owner: &str, link: &Link) {
        self.running = self.running.saturating_sub(1);
        take_one(&mut self.users, owner);
        take_one(&mut self.links, link);
    }

    /// The peer of this link was unreachable: starts a backoff, longer each time.
    pub fn rest(&mut self, link: &Link, now_ms: u64) {
        let (until, failures) = self.rests.entry(link.clone()).or_default();
        // Concurrent attempts count once.
        if *until <= now_ms {
            *until = now_ms + pause_ms(*failures);
            *failures += 1;
        }
    }

    /// The link works: ends its backoff.
    pub fn wake(&mut self, link: &Link) {
        self.rests.remove(link);
    }
}

fn take_one<K, Q>(counts: &mut HashMap<K, usize>, key: &Q)
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ?Sized,
{
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { all: 4, user: 3, link: 2 };

    fn link(from: &str, to: &str) -> Link {
        Link { from: SiteName::parse(from).unwrap(), to: SiteName::parse(to).unwrap() }
    }

    fn head(owner: &str, to: &str, priority: i64, submitted_ms: u64) -> Head {
        Head { owner: owner.into(), link: link("kek", to), priority, submitted_ms }
    }

    /// Picks and starts repeatedly.
    fn starts(load: &mut Load, heads: &[Head], limits: Limits) -> Vec<usize> {
        let mut picked = Vec::new();
        while let Some(at) = load.pick(heads, limits, 0) {
            load.start(&heads[at].owner, &heads[at].link);
            picked.push(at);
        }
        picked
    }

    #[test]
    fn jobs_are_ordered_by_priority_then_age() {
        let load = Load::default();
        let heads = [head("a", "x", 0, 1), head("a", "y", 0, 0), head("a", "z", 9, 5)];
        assert_eq!(load.pick(&heads, LIMITS, 0), Some(2));
        assert_eq!(load.pick(&heads[..2], LIMITS, 0), Some(1));
        assert_eq!(load.pick(&[], LIMITS, 0), None);
    }

    #[test]
    fn users_take_turns_whatever_their_priorities() {
        let heads = [head("a", "x", 100, 0), head("b", "y", 0, 9)];
        let mut load = Load::default();
        assert_eq!(starts(&mut load, &heads, LIMITS), [0, 1, 0, 1]);
        load.end("a", &heads[0].link);
        load.end("b", &heads[1].link);
        assert_eq!(load.pick(&heads, LIMITS, 0), Some(0), "b was served last");
    }

    #[test]
    fn limits_hold_for_users_links_and_all() {
        let one_link = [head("a", "x", 0, 0), head("b", "x", 0, 0)];
        assert_eq!(starts(&mut Load::default(), &one_link, LIMITS).len(), 2);
        let one_user = [head("a", "x", 0, 0), head("a", "y", 0, 0)];
        assert_eq!(starts(&mut Load::default(), &one_user, LIMITS).len(), 3);
        let many: Vec<Head> = (0..9).map(|n| head(&format!("u{n}"), &format!("s{n}"), 0, 0)).collect();
        let mut load = Load::default();
        assert_eq!(starts(&mut load, &many, LIMITS).len(), 4);
        assert_eq!(load.running(), 4);
    }

    #[test]
    fn an_unreachable_link_is_paused() {
        let heads = [head("a", "x", 0, 0)];
        let mut load = Load::default();
        load.rest(&heads[0].link, 0);
        load.rest(&heads[0].link, 0);
        assert_eq!(load.pick(&heads, LIMITS, 999), None);
        assert_eq!(load.pick(&heads, LIMITS, 1000), Some(0));
        load.rest(&heads[0].link, 1000);
        assert_eq!(load.rests_until(&heads[0].link, 1000), Some(3000));
        load.wake(&heads[0].link);
        assert_eq!(load.pick(&heads, LIMITS, 1000), Some(0));
    }
}
