//! Quota shares (escrow): the use that followers may add by changes the home has not ordered yet, where a volume has
//! quotas.
//!
//! The home grants each of them a share of the remaining room and counts it as used ([`GrantedShares`]) until it is
//! used up or given back, so that a disconnected site continues within its share and no quota is exceeded. A
//! statement of the home is relative to a change of the site: later changes that the home has not counted yet are
//! subtracted here ([`Allowed`]). Messages may be lost or late: the home raises a share before it says so, and lowers
//! it only after the site has committed to less, and has heard of all raises. Non-goals: the quotas themselves
//! ([`super::quota`]), and conflict copies: the losing version stays, and may exceed the share.

use super::quota::{Difference, Limit, Quota, Use};
use super::{Change, NewKind, NodeId, Origin};
use crate::units::{counted, human};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Room under one quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The quota's owner; `None` for that of all together.
    pub owner: Option<String>,
    /// The room; `None` where there is no limit.
    pub most: Limit,
}

/// A site's share, relative to one of its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaShare {
    /// Counter of the home's raises of the share.
    pub raised: u64,
    /// The last change of the site that the home has counted.
    pub after: u64,
    /// The room under each quota.
    pub rooms: Vec<Room>,
}

/// A site's request to its home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRequest {
    /// The share it commits to from now on, if it has one.
    pub keeps: Option<QuotaShare>,
    /// The use it has added since that change and would like to add, by owner.
    pub wants: Vec<(String, Use)>,
}

impl Limit {
    /// The minimum in each dimension that is limited.
    fn least(self, other: Limit) -> Limit {
        let less = |one: Option<u64>, other: Option<u64>| one.map(|one| one.min(other.unwrap_or(one)));
        Limit { files: less(self.files, other.files), bytes: less(self.bytes, other.bytes) }
    }
}

/// The use that a change adds, and its owner.
pub type Charge = (String, Use);

fn of(owner: &Option<String>, name: &str) -> bool {
    owner.as_deref().is_none_or(|owner| owner == name)
}

fn sum<'c>(charges: impl Iterator<Item = &'c Charge>, owner: &Option<String>) -> Use {
    charges.filter(|(name, _)| of(owner, name)).fold(Use::default(), |all, (_, one)| all.with(*one))
}

/// Applies `change` to each dimension of a limit and a use.
fn each(limit: Limit, by: Use, change: impl Fn(u64, u64) -> u64) -> Limit {
    Limit { files: limit.files.map(|n| change(n, by.files)), bytes: limit.bytes.map(|n| change(n, by.bytes)) }
}

/// Upper bound of the use that a change adds: removals are not subtracted. `size` returns the present length of a
/// file.
pub fn charge(change: &Change, size: impl FnOnce(NodeId) -> u64) -> Option<Charge> {
    match change {
        Change::Make { kind, attributes, .. } => {
            let bytes = if let NewKind::Content { size, .. } = kind { *size } else { 0 };
            Some((attributes.owner.clone(), Use { files: 1, bytes }))
        }
        Change::SetContent { id, size: new, beside: Some(beside), .. } => {
            let bytes = new.saturating_sub(size(*id));
            (bytes > 0).then(|| (beside.attributes.owner.clone(), Use { files: 0, bytes }))
        }
        _ => None,
    }
}

/// A site's own account of its share.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    told: Option<QuotaShare>,
    /// Charges of own changes after the one the share is relative to, in order.
    charged: VecDeque<(u64, Charge)>,
    /// Their sum, by owner.
    spent: BTreeMap<String, Use>,
}

impl Allowed {
    /// Restores the persisted share and the charges of pending changes, by their numbers.
    pub fn resume(kept: Option<QuotaShare>, charges: impl Iterator<Item = (u64, Charge)>) -> Self {
        let after = kept.as_ref().map_or(0, |told| told.after);
        let mut allowed = Allowed { told: kept, ..Allowed::default() };
        charges.filter(|(number, _)| *number > after).for_each(|(number, one)| allowed.add(number, one));
        allowed
    }

    fn add(&mut self, number: u64, (owner, one): Charge) {
        let all = self.spent.entry(owner.clone()).or_default();
        *all = all.with(one);
        self.charged.push_back((number, (owner, one)));
    }

    fn take_off(&mut self, (owner, one): &Charge) {
        if let Some(all) = self.spent.get_mut(owner) {
            *all = all.changed(Difference::from(*one).opposite());
        }
    }

    /// Drops the charges of changes up to `number`.
    fn forget(&mut self, number: u64) {
        while let Some((_, one)) = self.charged.pop_front_if(|(of, _)| *of <= number) {
            self.take_off(&one);
        }
    }

    /// Whether there are quotas, as far as is known.
    pub fn is_limited(&self) -> bool {
        self.told.as_ref().is_some_and(|told| !told.rooms.is_empty())
    }

    /// The share, to be persisted.
    pub fn told(&self) -> Option<&QuotaShare> {
        self.told.as_ref()
    }

    fn spent(&self, owner: &Option<String>) -> Use {
        let ours = self.spent.iter().filter(|(name, _)| of(owner, name));
        ours.fold(Use::default(), |all, (_, one)| all.with(*one))
    }

    /// The remaining room under each quota.
    pub fn left(&self) -> Vec<Room> {
        let rooms = self.told.iter().flat_map(|told| &told.rooms);
        let left = rooms.map(|Room { owner, most }| Room {
            owner: owner.clone(),
            most: each(*most, self.spent(owner), u64::saturating_sub),
        });
        left.collect()
    }

    /// Charges changes from `number` on, each with the use it adds, if any.
    ///
    /// # Errors
    /// A text that says which room is lacking; nothing is charged then.
    pub fn take(&mut self, number: u64, charges: &[Option<Charge>]) -> Result<(), String> {
        for Room { owner, most } in self.left() {
            let more = sum(charges.iter().flatten(), &owner);
            let lacks = |most: Option<u64>, more: u64| most.is_some_and(|most| more > 0 && more > most);
            if lacks(most.bytes, more.bytes) || lacks(most.files, more.files) {
                return Err(lacking(&owner, most, more));
            }
        }
        for (one, number) in charges.iter().zip(number..) {
            one.iter().for_each(|one| self.add(number, one.clone()));
        }
        Ok(())
    }

    /// Refunds the charges of changes from `number` on: they were not made.
    pub fn give_back(&mut self, number: u64) {
        while let Some((_, one)) = self.charged.pop_back_if(|(of, _)| *of >= number) {
            self.take_off(&one);
        }
    }

    /// The log has own changes up to `number`: the home has counted them.
    pub fn settle(&mut self, number: u64) {
        let Some(told) = self.told.as_mut().filter(|told| told.after < number) else { return };
        let counted = self.charged.iter().take_while(|(of, _)| *of <= number).map(|(_, charge)| charge);
        let counted: Vec<&Charge> = counted.collect();
        for Room { owner, most } in &mut told.rooms {
            *most = each(*most, sum(counted.iter().copied(), owner), u64::saturating_sub);
        }
        told.after = number;
        self.forget(number);
    }

    /// Receives a share from the home. A share relative to an earlier change than the known one is stale and ignored,
    /// except for its raise counter. Until the home raises the share, the site keeps the minimum of those received:
    /// it may have committed to that, and the answer to an earlier request may arrive after it.
    pub fn hear(&mut self, mut told: QuotaShare) {
        if let Some(known) =
            self.told.as_mut().filter(|known| (told.after, told.raised) < (known.after, known.raised))
        {
            known.raised = known.raised.max(told.raised);
            return;
        }
        self.settle(told.after);
        self.forget(told.after);
        for Room { owner, most } in &mut told.rooms {
            let known = self.told.iter().filter(|known| known.raised == told.raised);
            if let Some(kept) = known.flat_map(|known| &known.rooms).find(|room| room.owner == *owner) {
                *most = most.least(kept.most);
            }
        }
        self.told = Some(told);
    }

    /// The next request to the home, the only source of its knowledge; it must be persisted before it is sent.
    pub fn claim(&self, more: &[Charge]) -> ShareRequest {
        let Some(told) = &self.told else { return ShareRequest { keeps: None, wants: more.to_vec() } };
        let keeps = |Room { owner, most }: &Room| Room {
            owner: owner.clone(),
            most: each(*most, self.spent(owner), u64::max),
        };
        let keeps = QuotaShare { rooms: told.rooms.iter().map(keeps).collect(), ..told.clone() };
        let mut wants = self.spent.clone();
        for (owner, one) in more {
            let all = wants.entry(owner.clone()).or_default();
            *all = all.with(*one);
        }
        wants.retain(|_, all| *all != Use::default());
        ShareRequest { keeps: Some(keeps), wants: wants.into_iter().collect() }
    }
}

fn lacking(owner: &Option<String>, most: Limit, more: Use) -> String {
    let who = owner.as_deref().map_or_else(String::new, |owner| format!(" for {owner}"));
    let (left, more) = match most.bytes.filter(|most| more.bytes > *most) {
        Some(left) => (human(left), human(more.bytes)),
        None => (counted(most.files.unwrap_or_default(), "file", "files"), format!("{} more", more.files)),
    };
    format!("this site may add {left}{who} until the home of the volume allows more; this would be {more}")
}

/// The share of one site at the home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Share {
    raised: u64,
    /// The last change that is counted.
    taken: u64,
    /// The use it may still add beyond the counted changes.
    rooms: Vec<Room>,
}

/// The shares granted by the home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedShares {
    sites: BTreeMap<Origin, Share>,
}

impl GrantedShares {
    /// Total outstanding room of all sites under a quota.
    pub fn out(&self, owner: Option<&str>) -> Use {
        self.out_of(self.sites.values(), owner)
    }

    fn out_of<'s>(&self, shares: impl Iterator<Item = &'s Share>, owner: Option<&str>) -> Use {
        let rooms = shares.flat_map(|share| &share.rooms).filter(|room| room.owner.as_deref() == owner);
        rooms.fold(Use::default(), |all, room| Use {
            files: all.files.saturating_add(room.most.files.unwrap_or_default()),
            bytes: all.bytes.saturating_add(room.most.bytes.unwrap_or_default()),
        })
    }

    /// Counts the changes of a site up to `taken`, with their differences in use by owner. To be stored in the same
    /// transaction.
    pub fn count(&mut self, origin: Origin, taken: u64, by: &BTreeMap<String, Difference>) {
        let Some(share) = self.sites.get_mut(&origin) else { return };
        share.taken = share.taken.max(taken);
        for Room { owner, most } in &mut share.rooms {
            let grown = by.iter().filter(|(name, _)| of(owner, name)).map(|(_, by)| *by);
            let grown = Use::default().changed(grown.fold(Difference::default(), Difference::plus));
            *most = each(*most, grown, u64::saturating_sub);
        }
    }

    /// Revokes the shares of sites that may no longer write.
    pub fn keep_only(&mut self, writers: &[Origin]) {
        self.sites.retain(|origin, _| writers.contains(origin));
    }

    /// Grants a site its share, by its request and the use under each quota: an equal part, among all `writers`, of
    /// half of the remaining room, or as much as it wants. A site without a share is counted from change `taken` on.
    /// Returns the share, and whether it is larger than before: then it must be stored before it is sent.
    pub fn hand(
        &mut self,
        (origin, taken, writers): (Origin, u64, usize),
        claim: &ShareRequest,
        limits: &[(Quota, Use)],
    ) -> (QuotaShare, bool) {
        let mut share = self.sites.remove(&origin).unwrap_or(Share { taken, ..Share::default() });
        share.keep_to(claim.keeps.as_ref());
        let (mut told, mut rooms, mut is_more) = (Vec::new(), Vec::new(), false);
        for (quota, used) in limits {
            let owner = &quota.owner;
            let known = share.rooms.iter().find(|room| room.owner == *owner);
            let has = known.map_or_else(Limit::default, |room| room.most);
            let others = self.out(owner.as_deref());
            let wants = sum(claim.wants.iter(), owner);
            let part = |most: Option<u64>, has: Option<u64>, used: u64, others: u64, wants: u64| {
                let (left, has) = (most?.saturating_sub(used), has.unwrap_or_default());
                let goal = (left / (2 * writers.max(1) as u64)).max(wants);
                let free = left.saturating_sub(others).saturating_sub(has);
                Some((goal.min(has + free), has.max(goal.min(has + free)), goal > has && free > 0))
            };
            let files = part(quota.limit.files, has.files, used.files, others.files, wants.files);
            let bytes = part(quota.limit.bytes, has.bytes, used.bytes, others.bytes, wants.bytes);
            is_more |= files.is_some_and(|part| part.2) || bytes.is_some_and(|part| part.2);
            let room = |files: Option<u64>, bytes: Option<u64>| Room {
                owner: owner.clone(),
                most: Limit { files, bytes },
            };
            told.push(room(files.map(|part| part.0), bytes.map(|part| part.0)));
            rooms.push(room(files.map(|part| part.1), bytes.map(|part| part.1)));
        }
        let (raised, taken) = (share.raised + u64::from(is_more), share.taken);
        if !limits.is_empty() {
            self.sites.insert(origin, Share { raised, taken, rooms });
        }
        (QuotaShare { raised, after: taken, rooms: told }, is_more)
    }
}

impl Share {
    /// Lowers the share to the site's commitment, if the site has heard of all raises.
    fn keep_to(&mut self, keeps: Option<&QuotaShare>) {
        let Some(keeps) = keeps.filter(|keeps| keeps.raised == self.raised) else { return };
        for Room { owner, most } in &mut self.rooms {
            let Some(kept) = keeps.rooms.iter().find(|room| room.owner == *owner) else { continue };
            *most = most.least(kept.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: u64 = 1000;

    fn quota() -> Quota {
        Quota { owner: None, limit: Limit { files: None, bytes: Some(MOST) } }
    }

    fn charge_of(bytes: u64) -> Charge {
        ("alice".into(), Use { files: 1, bytes })
    }

    #[test]
    fn a_site_gets_half_and_all_on_request() {
        let mut handed = GrantedShares::default();
        let limits = |used| [(quota(), Use { files: 0, bytes: used })];
        let (told, is_more) = handed.hand((Origin(1), 0, 1), &ShareRequest::default(), &limits(200));
        assert_eq!((told.rooms[0].most.bytes, is_more), (Some(400), true));
        let mut site = Allowed::default();
        site.hear(told);
        site.take(1, &[Some(charge_of(300)), None]).unwrap();
        let refused = site.take(3, &[Some(charge_of(101))]).unwrap_err();
        assert!(refused.contains("this site may add 100B until"), "{refused}");
        // The site requests it, and the home has it.
        let claim = site.claim(&[charge_of(101)]);
        let (told, _) = handed.hand((Origin(1), 0, 1), &claim, &limits(200));
        site.hear(told);
        site.take(3, &[Some(charge_of(101))]).unwrap();
        // Counted changes are no longer outstanding, and unneeded room is given back.
        handed.count(Origin(1), 3, &BTreeMap::from([("alice".into(), Difference { files: 2, bytes: 401 })]));
        site.settle(3);
        assert_eq!(handed.out(None).bytes, 0);
        let (told, _) = handed.hand((Origin(1), 3, 1), &site.claim(&[]), &limits(601));
        site.hear(told);
        assert_eq!(site.left()[0].most.bytes, Some(199));
        let (told, is_more) = handed.hand((Origin(1), 3, 1), &site.claim(&[]), &limits(901));
        site.hear(told);
        handed.hand((Origin(1), 3, 1), &site.claim(&[]), &limits(901));
        assert_eq!((is_more, handed.out(None).bytes, site.left()[0].most.bytes), (false, 49, Some(49)));
        handed.keep_only(&[]);
        assert_eq!(handed.out(None), Use::default());
    }

    #[test]
    fn an_answer_to_an_earlier_claim_restores_no_released_space() {
        let limits = [(quota(), Use { files: 0, bytes: 600 })];
        let (mut handed, mut site) = (GrantedShares::default(), Allowed::default());
        let mut hand = |claim: &ShareRequest| handed.hand((Origin(1), 0, 2), claim, &limits).0;
        let [large, middle, small] = [220, 190, 0].map(|more| site.claim(&[charge_of(more)]));
        // The first answer is lost.
        hand(&large);
        site.hear(hand(&small));
        let given_up = site.claim(&[]);
        site.hear(hand(&middle));
        assert_eq!(site.left()[0].most.bytes, Some(100));
        hand(&given_up);
        site.hear(hand(&site.claim(&[charge_of(150)])));
        assert_eq!((site.left()[0].most.bytes, handed.out(None).bytes), (Some(150), 150));
    }

    #[test]
    fn shrinking_changes_are_never_refused() {
        let mut site = Allowed::default();
        let none = Room { owner: None, most: Limit { files: Some(0), bytes: Some(0) } };
        site.hear(QuotaShare { raised: 1, after: 0, rooms: vec![none] });
        assert!(site.take(1, &[None]).is_ok());
        assert!(site.take(2, &[Some(charge_of(0))]).unwrap_err().contains("0 files"));
    }

    /// A site with its persistent state.
    struct Site {
        allowed: Allowed,
        kept: Option<QuotaShare>,
        made: u64,
        /// Changes with their charges; those up to `taken` are counted at home, those up to `seen` are known to be.
        pending: VecDeque<(u64, Charge)>,
        taken: u64,
        seen: u64,
    }

    impl Site {
        fn new() -> Self {
            let (allowed, pending) = (Allowed::default(), VecDeque::new());
            Site { allowed, kept: None, made: 0, pending, taken: 0, seen: 0 }
        }

        fn write(&mut self, bytes: u64) {
            // Before it heard of quotas it knows none.
            if self.allowed.is_limited()
                && self.allowed.take(self.made + 1, &[Some(charge_of(bytes))]).is_ok()
            {
                self.made += 1;
                self.pending.push_back((self.made, charge_of(bytes)));
            }
        }

        fn claim(&self, more: u64) -> ShareRequest {
            self.allowed.claim(&[charge_of(more)])
        }

        fn hear(&mut self, told: QuotaShare) {
            self.allowed.hear(told);
            self.kept = self.allowed.told().cloned();
        }

        fn see(&mut self) {
            self.allowed.settle(self.taken);
            self.kept = self.allowed.told().cloned();
            self.seen = self.taken;
            let seen = self.seen;
            self.pending.retain(|(number, _)| *number > seen);
        }

        fn restart(&mut self) {
            self.allowed = Allowed::resume(self.kept.clone(), self.pending.iter().cloned());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// With messages lost or late and either side killed, the quota is never exceeded.
        #[test]
        fn no_limit_is_exceeded(
            steps in prop::collection::vec((0..9_u8, 0..2_usize, 0..300_u64), 1..150)
        ) {
            let (mut handed, mut stored) = (GrantedShares::default(), GrantedShares::default());
            let mut sites = [Site::new(), Site::new()];
            let mut used = 0;
            let mut asked: [VecDeque<ShareRequest>; 2] = Default::default();
            let mut told: [VecDeque<QuotaShare>; 2] = Default::default();
            for (what, which, bytes) in steps {
                let (site, origin) = (&mut sites[which], Origin(which as u16));
                match what {
                    0 | 1 => site.write(bytes),
                    2 => asked[which].push_back(site.claim(bytes)),
                    // A request arrives, sometimes an old one after a newer one.
                    3 => if let Some(claim) = if bytes % 5 == 0 { asked[which].pop_back() } else { asked[which].pop_front() } {
                        let limits = [(quota(), Use { files: 0, bytes: used })];
                        let (answer, is_more) = handed.hand((origin, site.taken, 2), &claim, &limits);
                        if is_more {
                            stored = handed.clone();
                        }
                        told[which].push_back(answer);
                    },
                    4 => if let Some(answer) = told[which].pop_front() {
                        site.hear(answer);
                    },
                    // A change is submitted.
                    5 => if let Some((number, (owner, one))) = site.pending.iter().find(|(number, _)| *number > site.taken).cloned() {
                        site.taken = number;
                        used += one.bytes;
                        handed.count(origin, number, &BTreeMap::from([(owner, one.into())]));
                        // Stored with the change.
                        stored = handed.clone();
                    },
                    6 => site.see(),
                    7 => {
                        // Messages in flight to it are lost.
                        told[which].clear();
                        if bytes % 2 == 0 { site.restart() } else { handed = stored.clone() }
                    }
                    // The home itself writes.
                    _ => if used + handed.out(None).bytes + bytes <= MOST {
                        used += bytes;
                    },
                }
                let open: u64 = sites.iter().map(|site| {
                    let waits = site.pending.iter().filter(|(number, _)| *number > site.taken);
                    waits.map(|(_, (_, one))| one.bytes).sum::<u64>()
                }).sum();
                prop_assert!(used + open <= MOST, "{used} and {open}");
            }
        }
    }
}
