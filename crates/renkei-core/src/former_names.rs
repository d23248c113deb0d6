//! Former names of sites that were renamed.
//!
//! A former name remains an alias of the site: in stored data (maps, grants, queued transfers, journals, trees), in
//! certificates of its previous authority, and in messages of peers that do not know of the change. All of these
//! become a [`SiteName`](crate::path::SiteName) in one place, [`SiteName::parse`](crate::path::SiteName::parse),
//! which translates with the table of the process. The process installs the table from its directory when it starts.
//! Guarantee: without a renamed site there is no lookup. Non-goal: reuse of a former name for another site.

use crate::error::{Code, Error};
use crate::path::is_label;
use crate::principal::Principal;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// The table of this process.
static INSTALLED: RwLock<FormerNames> = RwLock::new(FormerNames(BTreeMap::new()));
/// Whether that table has any name.
static ANY: AtomicBool = AtomicBool::new(false);

/// Former names, with the current ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerNames(BTreeMap<String, String>);

impl FormerNames {
    /// Reads lines of `FORMER CURRENT`; `#` begins a comment.
    ///
    /// # Errors
    /// `ConfigInvalid` for any other line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut names = FormerNames::default();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                [] => {}
                [former, current] => names.add(former, current)?,
                _ => return Err(invalid(line, "a line is `FORMER CURRENT`")),
            }
        }
        Ok(names)
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|(former, current)| format!("{former} {current}\n")).collect()
    }

    /// Adds that the site `former` is now called `current`, also for all sites that were renamed to `former`.
    ///
    /// # Errors
    /// `ConfigInvalid` if a name is illegal, or `current` is a former name itself.
    pub fn add(&mut self, former: &str, current: &str) -> Result<(), Error> {
        if let Some(bad) = [former, current].into_iter().find(|name| !is_label(name)) {
            return Err(invalid(bad, "not the name of a site"));
        }
        if former == current || self.0.contains_key(current) {
            return Err(invalid(current, "a former name is not used again"));
        }
        for name in self.0.values_mut().filter(|name| *name == former) {
            *name = current.into();
        }
        self.0.insert(former.into(), current.into());
        Ok(())
    }

    /// The current name of a renamed site.
    pub fn current(&self, former: &str) -> Option<&str> {
        self.0.get(former).map(String::as_str)
    }

    /// All former names, with the current ones.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(former, current)| (former.as_str(), current.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds these names to the table of the process.
    pub fn install(self) {
        if self.is_empty() {
            return;
        }
        let mut installed = INSTALLED.write().unwrap_or_else(PoisonError::into_inner);
        installed.0.extend(self.0);
        ANY.store(true, Ordering::Release);
    }

    /// The table of this process.
    pub fn installed() -> FormerNames {
        INSTALLED.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

thread_local! {
    /// Whether this thread parses names without translation.
    static VERBATIM: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read` without translation of former names: for values that are compared with their encoding.
pub(crate) fn verbatim<T>(read: impl FnOnce() -> T) -> T {
    let before = VERBATIM.replace(true);
    let done = read();
    VERBATIM.set(before);
    done
}

/// The current name, if `name` is an installed former one.
pub(crate) fn renamed(name: &str) -> Option<String> {
    if !ANY.load(Ordering::Acquire) || VERBATIM.get() {
        return None;
    }
    let installed = INSTALLED.read().unwrap_or_else(PoisonError::into_inner);
    installed.current(name).map(str::to_owned)
}

/// A principal in stored text, with its site's current name.
pub fn current_principal(text: String) -> String {
    if !ANY.load(Ordering::Acquire) {
        return text;
    }
    Principal::parse(&text).map_or(text, |principal| principal.to_string())
}

fn invalid(subject: &str, cause: &str) -> Error {
    Error::new(Code::ConfigInvalid, "read former names", subject, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{EndpointPath, SiteName};
    use crate::wire::{decode, encode};

    #[test]
    fn names_follow_a_site_through_all_renames() {
        let mut names = FormerNames::parse("# renamed sites\ntitech science # 2024\n\n").unwrap();
        names.add("science", "tokyo").unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), [("science", "tokyo"), ("titech", "tokyo")]);
        assert_eq!(FormerNames::parse(&names.to_text()).unwrap(), names);
        assert_eq!(names.current("tokyo"), None);
        for (former, current) in
            [("tokyo", "titech"), ("kek", "science"), ("kek", "kek"), ("Kek", "a"), ("a", "b c")]
        {
            assert_eq!(
                names.add(former, current).unwrap_err().code,
                Code::ConfigInvalid,
                "{former} {current}"
            );
        }
        assert_eq!(FormerNames::parse("titech").unwrap_err().code, Code::ConfigInvalid);
    }

    #[test]
    fn a_former_name_means_the_site_wherever_it_is_read() {
        let stored = encode(&SiteName::parse("former-name-of-test").unwrap());
        FormerNames::parse("former-name-of-test name-of-test").unwrap().install();
        let current = SiteName::parse("name-of-test").unwrap();
        assert_eq!(SiteName::parse("former-name-of-test").unwrap(), current);
        assert_eq!(decode::<SiteName>("site", &stored).unwrap(), current);
        assert_eq!(Principal::parse("alice@former-name-of-test").unwrap().site(), &current);
        let place = EndpointPath::parse(b"former-name-of-test:/data/a").unwrap().unwrap();
        assert_eq!(place.site, current);
    }
}
