//! Folders that rules of drop folders forward into: a file must not pass the same rule twice.

use crate::access::Access;
use renkei_config::is_within;
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, SiteName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// Maximum rules one file may pass through.
const MOST_RULES: usize = 16;
/// Maximum folders remembered as destinations of other sites' rules.
const MOST_ARRIVALS: usize = 1024;

/// Folders here that rules forward into, each with the rules its files passed through (`site/rule`), since the PoP
/// started.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<BTreeMap<Place, BTreeSet<String>>>);

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, BTreeSet<String>>> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    fn note(&self, to: &Place, rules: &[String]) {
        let mut all = self.lock();
        if all.len() < MOST_ARRIVALS || all.contains_key(to) {
            all.entry(to.clone()).or_default().extend(rules.iter().cloned());
        }
    }

    /// The rules through which files arrived in a folder.
    pub(crate) fn come_into(&self, folder: &Place) -> BTreeSet<String> {
        let all = self.lock();
        all.iter().filter(|(to, _)| is_within(to, folder)).flat_map(|(_, rules)| rules.clone()).collect()
    }

    /// Records that files arrive in a folder through rules.
    ///
    /// # Errors
    /// `RuleCycle` if one of them is a rule of this site that would forward them again, or if there are too many.
    pub(crate) fn admit(&self, access: &Access, to: &Place, rules: &[String]) -> Result<(), Error> {
        if rules.is_empty() {
            return Ok(());
        }
        let own = &access.snapshot.config.rule;
        let again = own.iter().find(|(name, rule)| {
            let from = rule.from.place.as_ref();
            rules.contains(&full_name(&access.snapshot.site, name))
                && from.is_some_and(|from| is_within(to, from))
        });
        if again.is_some() || rules.len() > MOST_RULES {
            let cause = format!("these files came through the rules {}", rules.join(", "));
            return Err(Error::new(Code::RuleCycle, "receive", to, cause));
        }
        self.note(to, rules);
        Ok(())
    }
}

/// The name of a rule for other sites.
pub(crate) fn full_name(site: &SiteName, rule: &str) -> String {
    format!("{site}/{rule}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::path::RelPath;

    fn place(path: &str) -> Place {
        Place { storage: "data".into(), path: RelPath::parse(path.as_bytes()).unwrap() }
    }

    #[test]
    fn the_rules_of_files_are_known_in_the_folders_above() {
        let arrivals = Arrivals::default();
        arrivals.note(&place("raw/run7"), &["kek/a".to_owned()]);
        arrivals.note(&place("raw/run7"), &["kek/b".to_owned()]);
        assert_eq!(arrivals.come_into(&place("raw")), ["kek/a", "kek/b"].map(str::to_owned).into());
        assert!(arrivals.come_into(&place("other")).is_empty());
    }
}
