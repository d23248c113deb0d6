//! Data streams that pushes dial before the other site has accepted them, within shares for each principal.

use renkei_core::identity::Principal;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Maximum data streams dialled before the other site has accepted the grant, by one push, by pushes of one
/// principal, and by all: no client can have this PoP dial without limit by presenting invalid grants.
const AHEAD_OF_PUSH: usize = 16;
const AHEAD_OF_ONE: usize = 32;
const AHEAD_OF_ALL: usize = 64;

/// Data streams dialled by pushes whose grant is not accepted yet, by principal.
#[derive(Default)]
pub(crate) struct Dialled(Mutex<HashMap<Principal, usize>>);

/// The streams that one push may dial ahead; returned on drop.
pub(super) struct Share<'a> {
    all: &'a Dialled,
    principal: Principal,
    pub(super) count: u16,
}

impl Dialled {
    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, usize>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// As many as wanted and available, possibly none.
    pub(super) fn take(&self, principal: &Principal, wanted: u16) -> Share<'_> {
        let mut dialled = self.lock();
        let left = AHEAD_OF_ALL.saturating_sub(dialled.values().sum());
        let own = dialled.entry(principal.clone()).or_default();
        let most = AHEAD_OF_PUSH.min(left).min(AHEAD_OF_ONE.saturating_sub(*own));
        let count = wanted.min(u16::try_from(most).unwrap_or(u16::MAX));
        *own += usize::from(count);
        Share { all: self, principal: principal.clone(), count }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut dialled = self.all.lock();
        if let Some(own) = dialled.get_mut(&self.principal) {
            *own -= usize::from(self.count);
        }
        dialled.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_dialled_ahead_are_limited() {
        let dialled = Dialled::default();
        let [alice, bob, carol] =
            ["alice@kek", "bob@kek", "carol@kek"].map(|name| Principal::parse(name).unwrap());
        let of = |principal, wanted| dialled.take(principal, wanted);
        let mut own = vec![of(&alice, 64), of(&alice, 10), of(&alice, 64), of(&alice, 64)];
        assert_eq!(own.iter().map(|share| share.count).collect::<Vec<_>>(), [16, 10, 6, 0]);
        let others = [of(&bob, 64), of(&bob, 64)];
        assert_eq!((others[1].count, of(&carol, 64).count), (16, 0));
        own.remove(1);
        assert_eq!(of(&carol, 64).count, 10);
        drop((own, others));
        assert!(dialled.lock().is_empty());
    }
}
