//! Quotas of a volume: its use by owner, and the limits on it.
//!
//! The use is that of the catalogue: each file, directory and symbolic link counts once, however many names it has,
//! with the bytes of files, for its owner. [`differences`] computes how changes affect it. A writer reserves room in
//! a [`Ledger`] before its change becomes visible, so that two concurrent writers do not both get the last of the
//! room; the reservation is settled when the catalogue includes it. A change that only shrinks the use is never
//! refused.

use super::quota_share::{GrantedShares, QuotaShare, ShareRequest};
use super::{Kind, Node, NodeId, Origin, ROOT};
use crate::units::{counted, human};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Use: number of entries and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Files, directories and symbolic links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// Limit on the use; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Files, directories and symbolic links.
    pub files: Option<u64>,
    /// Bytes of files.
    pub bytes: Option<u64>,
}

/// Signed difference of two uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Files, directories and symbolic links.
    pub files: i64,
    /// Bytes of files.
    pub bytes: i64,
}

impl Difference {
    /// The sum of both.
    pub fn plus(self, other: Difference) -> Difference {
        Difference {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The negation.
    pub fn opposite(self) -> Difference {
        Difference { files: -self.files, bytes: -self.bytes }
    }

    fn minus(self, other: Difference) -> Difference {
        self.plus(other.opposite())
    }
}

impl From<Use> for Difference {
    fn from(of: Use) -> Self {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        Difference { files: signed(of.files), bytes: signed(of.bytes) }
    }
}

impl Use {
    /// The sum of both.
    #[must_use]
    pub fn with(self, other: Use) -> Use {
        Use { files: self.files.saturating_add(other.files), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// The use after a difference; saturates at zero.
    #[must_use]
    pub fn changed(self, by: Difference) -> Use {
        Use {
            files: self.files.saturating_add_signed(by.files),
            bytes: self.bytes.saturating_add_signed(by.bytes),
        }
    }
}

/// The use of a volume, by owner name.
pub type ByOwner = BTreeMap<String, Use>;

/// The use that a node is charged with, and its owner; the top directory is not charged.
pub fn weight(id: NodeId, node: &Node) -> Option<(&str, Use)> {
    let bytes = match &node.kind {
        Kind::File(content) => content.size,
        Kind::Dir { .. } | Kind::Symlink { .. } => 0,
        Kind::Merged { .. } | Kind::Xattrs(_) => return None,
    };
    (id != ROOT).then_some((node.attributes.owner.as_str(), Use { files: 1, bytes }))
}

/// The differences in use, by owner, of changed nodes, each given before and after.
pub fn differences<'n>(
    changes: impl Iterator<Item = (NodeId, Option<&'n Node>, Option<&'n Node>)>,
) -> BTreeMap<String, Difference> {
    let mut by_owner: BTreeMap<String, Difference> = BTreeMap::new();
    for (id, before, after) in changes {
        let weight_of = |node: Option<&'n Node>| node.and_then(|node| weight(id, node));
        let (before, after) = (weight_of(before), weight_of(after));
        if before == after {
            continue;
        }
        if let Some((owner, gone)) = before {
            let sum = by_owner.entry(owner.to_owned()).or_default();
            *sum = sum.minus(gone.into());
        }
        if let Some((owner, come)) = after {
            let sum = by_owner.entry(owner.to_owned()).or_default();
            *sum = sum.plus(come.into());
        }
    }
    by_owner.retain(|_, difference| *difference != Difference::default());
    by_owner
}

/// A limit of one owner, or of all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The owner's name in the volume; `None` for all together.
    pub owner: Option<String>,
    /// The limit.
    pub limit: Limit,
}

/// A quota violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The owner whose limit it is; `None` for that of the volume.
    pub owner: Option<String>,
    /// The limit.
    pub limit: Limit,
    /// The present use, including reservations.
    pub used: Use,
    /// Granted shares: the use that followers which write may still add.
    pub handed: Use,
    /// The additional use requested.
    pub more: Difference,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, has) = match &self.owner {
            Some(owner) => (owner.as_str(), "has"),
            None => ("all together", "have"),
        };
        let all = self.used.with(self.handed);
        let over = |most: Option<u64>, used: u64, more: i64| {
            most.filter(|most| more > 0 && used.saturating_add_signed(more) > *most)
        };
        if let Some(most) = over(self.limit.bytes, all.bytes, self.more.bytes) {
            let (most, used) = (human(most), human(self.used.bytes));
            let more = human(self.more.bytes.unsigned_abs());
            write!(f, "{who} may have {most} in the volume and {has} {used}; this would be {more} more")?;
            return match self.handed.bytes {
                0 => Ok(()),
                handed => write!(f, ", and sites that write it may still add {}", human(handed)),
            };
        }
        let (most, used) = (self.limit.files.unwrap_or(u64::MAX), self.used.files);
        let most = counted(most, "file or directory", "files and directories");
        write!(f, "{who} may have {most} in the volume and {has} {used}")?;
        match self.handed.files {
            0 => Ok(()),
            handed => write!(f, ", and sites that write to it may still add {handed}"),
        }
    }
}

/// Id of a reservation.
pub type Reservation = u64;

/// Use, reservations and quotas of a volume.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    quotas: Vec<Quota>,
    used: ByOwner,
    /// Reservations that are not in `used` yet.
    reserved: BTreeMap<Reservation, Vec<(String, Difference)>>,
    next: Reservation,
    /// Granted quota shares, which count as used.
    handed: GrantedShares,
}

impl Ledger {
    /// Sets the quotas.
    pub fn set_quotas(&mut self, quotas: Vec<Quota>) {
        self.quotas = quotas;
    }

    /// Whether there are quotas at all.
    pub fn is_limited(&self) -> bool {
        !self.quotas.is_empty()
    }

    /// Takes over the use from the catalogue, which includes these reservations.
    pub fn settle(&mut self, settled: &[Reservation], used: ByOwner) {
        self.used = used;
        self.cancel(settled);
    }

    /// The granted quota shares.
    pub fn handed(&self) -> &GrantedShares {
        &self.handed
    }

    /// Restores the granted shares after a restart.
    pub fn resume_handed(&mut self, handed: GrantedShares) {
        self.handed = handed;
    }

    /// Grants a site its share; see [`GrantedShares::hand`]. Only `writers` keep theirs.
    pub fn hand(
        &mut self,
        origin: Origin,
        taken: u64,
        claim: &ShareRequest,
        writers: &[Origin],
    ) -> (QuotaShare, bool) {
        self.handed.keep_only(writers);
        let used = |quota: &Quota| (quota.clone(), self.used_of(quota.owner.as_deref()));
        let limits: Vec<(Quota, Use)> = self.quotas.iter().map(used).collect();
        self.handed.hand((origin, taken, writers.len()), claim, &limits)
    }

    /// Cancels reservations: nothing was made under them.
    pub fn cancel(&mut self, reservations: &[Reservation]) {
        reservations.iter().for_each(|number| drop(self.reserved.remove(number)));
    }

    /// Reserves the use that is about to be added and freed, by owner.
    ///
    /// # Errors
    /// The first quota that would be exceeded.
    pub fn reserve(&mut self, parts: Vec<(String, Difference)>) -> Result<Reservation, Excess> {
        for quota in &self.quotas {
            let of = |owner: &str| quota.owner.as_deref().is_none_or(|limited| limited == owner);
            let more = sum(parts.iter().filter(|(owner, _)| of(owner)));
            let used = self.used_of(quota.owner.as_deref());
            let handed = self.handed.out(quota.owner.as_deref());
            let all = used.with(handed);
            let exceeds = |most: Option<u64>, used: u64, more: i64| {
                most.is_some_and(|most| more > 0 && used.saturating_add_signed(more) > most)
            };
            let Limit { files, bytes } = quota.limit;
            if exceeds(files, all.files, more.files) || exceeds(bytes, all.bytes, more.bytes) {
                let owner = quota.owner.clone();
                return Err(Excess { owner, limit: quota.limit, used, handed, more });
            }
        }
        self.next += 1;
        self.reserved.insert(self.next, parts);
        Ok(self.next)
    }

    /// The use of an owner, or of all together, including reservations.
    pub fn used_of(&self, owner: Option<&str>) -> Use {
        let of = |name: &str| owner.is_none_or(|owner| owner == name);
        let used = self.used.iter().filter(|(name, _)| of(name));
        let used = used.fold(Use::default(), |all, (_, one)| all.changed((*one).into()));
        used.changed(sum(self.reserved.values().flatten().filter(|(name, _)| of(name))))
    }

    /// The limit that applies to an owner, and the remaining room under it: the tighter one of the owner's quota and
    /// the volume's.
    pub fn room(&self, owner: &str) -> (Limit, Limit) {
        let (mut most, mut left) = (Limit::default(), Limit::default());
        let ours = |quota: &&Quota| quota.owner.as_deref().is_none_or(|limited| limited == owner);
        for quota in self.quotas.iter().filter(ours) {
            let used = self.used_of(quota.owner.as_deref()).with(self.handed.out(quota.owner.as_deref()));
            tighten(&mut most.bytes, &mut left.bytes, quota.limit.bytes, used.bytes);
            tighten(&mut most.files, &mut left.files, quota.limit.files, used.files);
        }
        (most, left)
    }
}

fn sum<'d>(parts: impl Iterator<Item = &'d (String, Difference)>) -> Difference {
    parts.fold(Difference::default(), |all, (_, one)| all.plus(*one))
}

fn tighten(most: &mut Option<u64>, left: &mut Option<u64>, limit: Option<u64>, used: u64) {
    let Some(limit) = limit else { return };
    let rest = limit.saturating_sub(used);
    if left.is_none_or(|left| rest < left) {
        (*most, *left) = (Some(limit), Some(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::FileTime;
    use crate::namespace::{Attributes, Content, Origin};
    use proptest::prelude::*;

    fn file(owner: &str, size: u64) -> Node {
        let content = Content { version: 1, by: (Origin(0), 1), size, digest: None };
        let mtime = FileTime { secs: 0, nanos: 0 };
        let attributes = Attributes { mode: 0o644, owner: owner.into(), group: "g".into(), mtime };
        Node { kind: Kind::File(content), attributes, links: 1, changed: 1 }
    }

    fn quota(owner: Option<&str>, files: Option<u64>, bytes: Option<u64>) -> Quota {
        Quota { owner: owner.map(str::to_owned), limit: Limit { files, bytes } }
    }

    fn one(owner: &str, files: i64, bytes: i64) -> Vec<(String, Difference)> {
        vec![(owner.into(), Difference { files, bytes })]
    }

    #[test]
    fn transferred_files_count_for_the_new_owner() {
        let (before, after) = (file("alice", 10), file("bob", 7));
        let told = differences([(NodeId(5), Some(&before), Some(&after))].into_iter());
        assert_eq!(told["alice"], Difference { files: -1, bytes: -10 });
        assert_eq!(told["bob"], Difference { files: 1, bytes: 7 });
        let same = differences([(NodeId(5), Some(&before), Some(&before.clone()))].into_iter());
        assert!(same.is_empty());
        assert!(differences([(ROOT, None, Some(&after))].into_iter()).is_empty());
    }

    #[test]
    fn the_last_bytes_are_granted_once() {
        let mut ledger = Ledger::default();
        ledger.set_quotas(vec![quota(None, None, Some(100)), quota(Some("bob"), Some(1), None)]);
        ledger.settle(&[], ByOwner::from([("alice".into(), Use { files: 3, bytes: 60 })]));
        let first = ledger.reserve(one("alice", 1, 40)).unwrap();
        let told = ledger.reserve(one("bob", 1, 1)).unwrap_err();
        assert_eq!((told.owner.clone(), told.used), (None, Use { files: 4, bytes: 100 }));
        assert!(
            told.to_string()
                .contains("all together may have 100B in the volume and have 100B; this would be 1B more"),
            "{told}"
        );
        ledger.cancel(&[first]);
        assert_eq!(ledger.room("bob").1, Limit { files: Some(1), bytes: Some(40) });
        ledger.reserve(one("bob", 1, 1)).unwrap();
        let told = ledger.reserve(one("bob", 1, 0)).unwrap_err();
        assert!(told.to_string().starts_with("bob may have 1 file or directory in the volume"), "{told}");
    }

    #[test]
    fn shrinking_is_allowed_over_the_limit() {
        let mut ledger = Ledger::default();
        ledger.set_quotas(vec![quota(None, Some(2), Some(10))]);
        ledger.settle(&[], ByOwner::from([("alice".into(), Use { files: 9, bytes: 90 })]));
        assert!(ledger.reserve(one("alice", 0, -50)).is_ok());
        assert!(ledger.reserve(one("alice", 0, 0)).is_ok());
        assert!(ledger.reserve(one("alice", 0, 1)).is_err());
        assert_eq!(
            ledger.room("alice"),
            (Limit { files: Some(2), bytes: Some(10) }, Limit { files: Some(0), bytes: Some(0) })
        );
    }

    proptest! {
        /// Under any sequence of reserving, settling and cancelling, no quota is exceeded.
        #[test]
        fn no_limit_is_exceeded(steps in proptest::collection::vec((0..3u8, 0..3usize, 0..30i64), 1..60)) {
            let names = ["alice", "bob", "carol"];
            let mut ledger = Ledger::default();
            ledger.set_quotas(vec![quota(None, Some(12), Some(100)), quota(Some("bob"), Some(4), Some(50))]);
            let (mut used, mut open) = (ByOwner::new(), Vec::new());
            for (what, who, bytes) in steps {
                match what {
                    0 => if let Ok(number) = ledger.reserve(one(names[who], 1, bytes)) {
                        open.push((number, names[who], bytes));
                    },
                    1 => if let Some((number, name, bytes)) = open.pop() {
                        let sum = used.entry(name.to_owned()).or_default();
                        *sum = sum.changed(Difference { files: 1, bytes });
                        ledger.settle(&[number], used.clone());
                    },
                    _ => if let Some((number, ..)) = open.pop() {
                        ledger.cancel(&[number]);
                    },
                }
                let all = ledger.used_of(None);
                prop_assert!(all.files <= 12 && all.bytes <= 100);
                let bob = ledger.used_of(Some("bob"));
                prop_assert!(bob.files <= 4 && bob.bytes <= 50);
            }
        }
    }
}
