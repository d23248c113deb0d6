//! The limit of certificates that a PoP gives within a minute: each costs a signature and a line on the disk.

use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Most certificates within a minute for one principal, and for all.
const PER_USER: u32 = 30;
const IN_ALL: u32 = 600;
const WINDOW: Duration = Duration::from_secs(60);

/// How many certificates were given within the last minute.
#[derive(Default)]
pub struct LoginLimit(Mutex<Recent>);

#[derive(Default)]
struct Recent {
    since: Option<Instant>,
    all: u32,
    of_user: HashMap<Principal, u32>,
}

impl LoginLimit {
    /// Counts one for a user.
    ///
    /// # Errors
    /// `TooManyLogins`.
    pub fn enter(&self, user: &Principal, now: Instant) -> Result<(), Error> {
        let mut recent = self.0.lock().expect("no thread panics while it holds the lock: a panic aborts");
        if recent.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            *recent = Recent { since: Some(now), ..Recent::default() };
        }
        let own = recent.of_user.get(user).copied().unwrap_or_default();
        if own >= PER_USER || recent.all >= IN_ALL {
            let cause = format!("at most {PER_USER} a minute for one user, {IN_ALL} for all");
            return Err(Error::new(Code::TooManyLogins, "give certificate", user, cause));
        }
        recent.all += 1;
        recent.of_user.insert(user.clone(), own + 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_stopped() {
        let (limit, start) = (LoginLimit::default(), Instant::now());
        let user = |name: &str| Principal::parse(&format!("{name}@kek")).unwrap();
        for _ in 0..PER_USER {
            limit.enter(&user("alice"), start).unwrap();
        }
        assert_eq!(limit.enter(&user("alice"), start).unwrap_err().code, Code::TooManyLogins);
        for number in PER_USER..IN_ALL {
            limit.enter(&user(&format!("u{number}")), start).unwrap();
        }
        assert_eq!(limit.enter(&user("bob"), start).unwrap_err().code, Code::TooManyLogins);
        limit.enter(&user("alice"), start + WINDOW).unwrap();
    }
}
