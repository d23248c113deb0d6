//! The layout of a copy: what becomes what at its destination.
//!
//! Rules, with examples in docs/semantics.md: a source goes *into* a destination that is a directory and *becomes* a
//! destination that does not exist. The destination decides, since it alone knows what is there: it is told the form of
//! the copy ([`CopyForm`]) and answers with a [`CopyLayout`], from which the sending side derives the target names. So the
//! names of the sources need not travel.

use crate::error::{Code, Error};
use crate::path::{Place, RelPath};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Kind of a copy's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DestinationKind {
    /// A directory.
    Dir,
    /// Anything but a directory.
    Other,
    /// It does not exist.
    Nothing,
}

impl DestinationKind {
    /// All the kinds.
    pub const ALL: [DestinationKind; 3] =
        [DestinationKind::Dir, DestinationKind::Other, DestinationKind::Nothing];
}

/// The form of a copy, as far as it decides what becomes of its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyForm {
    /// The destination is a directory, created if it is missing: it has a trailing slash, there are several sources, or
    /// the copy is a sync.
    pub directory: bool,
    /// The contents of a source are meant, which cannot replace a file.
    pub contents: bool,
    /// An earlier attempt of the copy may have made the destination: a directory there is the copy's own.
    pub resumed: bool,
}

/// What becomes of the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyLayout {
    /// They go into the destination, a directory.
    Into,
    /// The only one becomes the destination.
    As,
    /// Dry run: they would go into the destination, a directory that does not exist.
    WouldGoInto,
}

/// A layout, and whether the destination is created first, as a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedLayout {
    /// The layout.
    pub layout: CopyLayout,
    /// Whether the destination is created first.
    pub make: bool,
}

impl CopyForm {
    /// Resolves the layout for a destination of this kind; a root is never replaced.
    ///
    /// # Errors
    /// `NotADirectory` if the destination is a file and a directory is needed; its subject is the caller's to set.
    pub fn resolve(
        self,
        found: DestinationKind,
        is_root: bool,
        dry_run: bool,
    ) -> Result<ResolvedLayout, Error> {
        let found =
            if self.resumed && found == DestinationKind::Dir { DestinationKind::Nothing } else { found };
        if found == DestinationKind::Other && (self.directory || self.contents) {
            return Err(Error::new(Code::NotADirectory, "copy", "destination", "it is a file"));
        }
        let into =
            found == DestinationKind::Dir || (found == DestinationKind::Nothing && self.directory) || is_root;
        let make = into && found == DestinationKind::Nothing;
        let layout = match into {
            true if make && dry_run && !is_root => CopyLayout::WouldGoInto,
            true => CopyLayout::Into,
            false => CopyLayout::As,
        };
        Ok(ResolvedLayout { layout, make: make && layout == CopyLayout::Into })
    }
}

impl CopyLayout {
    /// The directory that the target names are relative to, for a destination.
    pub fn base(self, destination: &RelPath) -> RelPath {
        match self {
            CopyLayout::Into => destination.clone(),
            CopyLayout::As | CopyLayout::WouldGoInto => destination.parent().unwrap_or_default(),
        }
    }

    /// The target names of the sources below the base; `names` are those in a destination directory, `last` is the
    /// destination's last component.
    ///
    /// # Errors
    /// `UsageInvalid` for several sources that would become one destination.
    pub fn targets(self, names: &[RelPath], last: Option<&[u8]>) -> Result<Vec<RelPath>, Error> {
        let last = || RelPath::parse(last.unwrap_or_default());
        match self {
            CopyLayout::Into => Ok(names.to_vec()),
            CopyLayout::WouldGoInto => {
                let last = last()?;
                names.iter().map(|name| last.join(name)).collect()
            }
            CopyLayout::As if names.len() == 1 => Ok(vec![last()?]),
            CopyLayout::As => {
                let cause = "several sources cannot become one destination";
                Err(Error::new(Code::UsageInvalid, "copy", "destination", cause))
            }
        }
    }

    /// The kind of destination that this is the layout for.
    pub fn found(self) -> DestinationKind {
        if self == CopyLayout::Into { DestinationKind::Dir } else { DestinationKind::Nothing }
    }

    /// Whether entries that the source lacks may be removed: not those beside a copy that does not go into its
    /// destination.
    pub fn removes(self) -> bool {
        self == CopyLayout::Into
    }
}

/// The first name that another source has too; the contents of several may be copied to one place.
pub fn first_twin(names: &[RelPath]) -> Option<usize> {
    let mut seen = HashSet::new();
    names.iter().position(|name| !name.is_root() && !seen.insert(name))
}

/// Refuses a copy of an entry onto itself, of a directory into itself, and one that would remove its own source.
///
/// `sources` are at the site of `base`, each with its target below it.
///
/// # Errors
/// `SameFile`, `IntoItself`.
pub fn refuse_overlap<'a>(
    sources: impl IntoIterator<Item = (&'a Place, &'a RelPath)>,
    base: &Place,
    removes_others: bool,
) -> Result<(), Error> {
    for (from, target) in sources {
        let to = base.path.join(target)?;
        let refuse = |code, cause| Err(Error::new(code, "copy", from, cause));
        if from.storage != base.storage {
            continue;
        } else if from.path == to {
            return refuse(Code::SameFile, "");
        } else if to.starts_with(&from.path) {
            return refuse(Code::IntoItself, "the destination is inside the source");
        } else if removes_others && from.path.starts_with(&to) {
            return refuse(
                Code::IntoItself,
                "the source is inside the destination, --delete would remove it",
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: CopyForm = CopyForm { directory: false, contents: false, resumed: false };
    const DIRECTORY: CopyForm = CopyForm { directory: true, ..ONE };

    fn resolved(form: CopyForm, found: DestinationKind) -> ResolvedLayout {
        form.resolve(found, false, false).unwrap()
    }

    fn paths(texts: &[&str]) -> Vec<RelPath> {
        texts.iter().map(|text| RelPath::parse(text.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn a_source_goes_into_a_directory_and_becomes_a_new_name() {
        let into = |make| ResolvedLayout { layout: CopyLayout::Into, make };
        let becomes = ResolvedLayout { layout: CopyLayout::As, make: false };
        assert_eq!(
            [resolved(ONE, DestinationKind::Dir), resolved(DIRECTORY, DestinationKind::Dir)],
            [into(false); 2]
        );
        assert_eq!(
            [resolved(ONE, DestinationKind::Nothing), resolved(ONE, DestinationKind::Other)],
            [becomes; 2]
        );
        assert_eq!(resolved(DIRECTORY, DestinationKind::Nothing), into(true));
        assert_eq!(ONE.resolve(DestinationKind::Nothing, true, false).unwrap(), into(true));
        let contents = CopyForm { contents: true, ..ONE };
        assert_eq!(resolved(contents, DestinationKind::Nothing), becomes);
        for refused in [DIRECTORY, contents] {
            assert_eq!(
                refused.resolve(DestinationKind::Other, false, false).unwrap_err().code,
                Code::NotADirectory
            );
        }
    }

    #[test]
    fn a_directory_of_an_earlier_attempt_counts_as_missing() {
        let resumed = CopyForm { resumed: true, ..ONE };
        assert_eq!(resolved(resumed, DestinationKind::Dir), resolved(ONE, DestinationKind::Nothing));
        assert_eq!(resolved(resumed, DestinationKind::Other), resolved(ONE, DestinationKind::Other));
    }

    #[test]
    fn a_dry_run_into_a_missing_destination_uses_its_parent_and_removes_nothing() {
        let seen = DIRECTORY.resolve(DestinationKind::Nothing, false, true).unwrap();
        assert_eq!(seen, ResolvedLayout { layout: CopyLayout::WouldGoInto, make: false });
        let [destination, base] = [&paths(&["a/new"])[0], &paths(&["a"])[0]];
        assert_eq!(seen.layout.base(destination), *base);
        assert_eq!(CopyLayout::Into.base(destination), *destination);
        let targets = seen.layout.targets(&paths(&["x", "y"]), Some(b"new")).unwrap();
        assert_eq!(targets, paths(&["new/x", "new/y"]));
        assert!(!seen.layout.removes() && CopyLayout::Into.removes());
    }

    #[test]
    fn one_source_becomes_the_destination_and_names_are_distinct() {
        let targets = |layout: CopyLayout, names: &[&str]| layout.targets(&paths(names), Some(b"new"));
        assert_eq!(targets(CopyLayout::As, &["run7"]).unwrap(), paths(&["new"]));
        assert_eq!(targets(CopyLayout::Into, &["", ""]).unwrap(), paths(&["", ""]));
        assert_eq!(first_twin(&paths(&["a", "", "", "b", "a"])), Some(4));
        assert_eq!(first_twin(&paths(&["a", "", "", "b"])), None);
        assert_eq!(targets(CopyLayout::As, &["a", "b"]).unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn nothing_is_copied_to_itself_or_into_itself() {
        let place = |text: &str| Place::parse(text.as_bytes()).unwrap().unwrap();
        let refused = |source: &str, base: &str, target: &str, removes| {
            let (source, target) = (place(source), &paths(&[target])[0]);
            let checked = refuse_overlap([(&source, target)], &place(base), removes);
            checked.err().map(|error| error.code)
        };
        assert_eq!(refused("/data/a/f", "/data/a", "f", false), Some(Code::SameFile));
        assert_eq!(refused("/data/a", "/data/a/b", "a", false), Some(Code::IntoItself));
        assert_eq!(refused("/data", "/data/a", "b", false), Some(Code::IntoItself));
        assert_eq!(refused("/data/a", "/data", "ab", false), None);
        assert_eq!(refused("/data/a", "/other/a", "b", false), None);
        assert_eq!(refused("/data/a/b", "/data", "a", false), None);
        assert_eq!(refused("/data/a/b", "/data", "a", true), Some(Code::IntoItself));
    }
}
