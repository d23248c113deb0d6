//! From the arguments of `cp` and `sync` to the form of the copy, which its destination resolves (see
//! [`renkei_core::mover::layout`]). A trailing slash on a source means its contents; on the destination, that it is a
//! directory, created if it is missing.

use renkei_core::error::{Code, Error};
use renkei_core::mover::layout::{CopyForm, first_twin};
use renkei_core::path::{EndpointPath, Place, RelPath, SiteName, printable};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spec {
    /// A path of this machine.
    Local {
        /// The path as typed.
        path: PathBuf,
        /// Whether it ends in `/` or `/.`, or is `.`.
        slash: bool,
    },
    /// A place at a site.
    Remote(EndpointPath),
}

impl Spec {
    /// Parses an argument; `endpoint` recognises places at sites.
    pub(crate) fn parse_as(
        argument: &OsStr,
        endpoint: impl FnOnce(&OsStr) -> Result<Option<EndpointPath>, Error>,
    ) -> Result<Self, Error> {
        let bytes = argument.as_bytes();
        if bytes.is_empty() {
            return Err(Error::new(Code::BadPath, "parse path", "''", "an empty path"));
        }
        if let Some(remote) = endpoint(argument)? {
            return Ok(Spec::Remote(remote));
        }
        let slash =
            bytes.ends_with(b"/") || bytes.ends_with(b"/.") || bytes == b"." || bytes.ends_with(b"..");
        Ok(Spec::Local { path: argument.into(), slash })
    }

    /// Whether it means the contents of the directory, or must be one.
    pub(crate) fn has_slash(&self) -> bool {
        match self {
            Spec::Local { slash, .. } => *slash,
            Spec::Remote(path) => path.trailing_slash || path.place.as_ref().is_none_or(|p| p.path.is_root()),
        }
    }

    /// Its place at a site.
    pub(crate) fn place(&self) -> Result<Place, Error> {
        let Spec::Remote(path) = self else {
            return Err(Error::new(Code::UsageInvalid, "copy", self.shown(), "not a place at a site"));
        };
        let cause = "name a storage: SITE:/STORAGE/PATH";
        path.place.clone().ok_or_else(|| Error::new(Code::BadPath, "copy", path, cause))
    }

    /// Its path on this machine.
    pub(crate) fn local(&self) -> Result<&Path, Error> {
        match self {
            Spec::Local { path, .. } => Ok(path),
            Spec::Remote(_) => Err(Error::new(Code::UsageInvalid, "copy", self.shown(), "not a local path")),
        }
    }

    /// The name of a source in a destination directory.
    pub(crate) fn name(&self) -> Option<Vec<u8>> {
        match self {
            Spec::Local { path, .. } => path.file_name().map(|name| name.as_bytes().to_vec()),
            Spec::Remote(path) => path.place.as_ref()?.path.name().map(<[u8]>::to_vec),
        }
    }

    /// The form for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Spec::Local { path, .. } => printable(path.as_os_str().as_bytes()),
            Spec::Remote(path) => path.to_string(),
        }
    }

    /// The form that enters the job's key.
    pub(crate) fn identity(&self) -> String {
        match self {
            Spec::Local { path, slash } => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("{}{}", printable(path.as_os_str().as_bytes()), if *slash { "/" } else { "" })
            }
            Spec::Remote(path) => format!("{path}{}", if path.trailing_slash { "/" } else { "" }),
        }
    }
}

/// The direction of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From here to a site.
    Up(SiteName),
    /// From a site to here.
    Down(SiteName),
    /// From a site to a site, or within one.
    Between(SiteName, SiteName),
}

impl Direction {
    /// The sites that take part.
    pub(crate) fn sites(&self) -> Vec<&SiteName> {
        match self {
            Direction::Up(site) | Direction::Down(site) => vec![site],
            Direction::Between(from, to) => vec![from, to],
        }
    }

    /// The site of the destination, if it is not this machine.
    pub(crate) fn to(&self) -> Option<&SiteName> {
        match self {
            Direction::Up(site) | Direction::Between(_, site) => Some(site),
            Direction::Down(_) => None,
        }
    }
}

/// Determines the direction.
pub(crate) fn direction(sources: &[Spec], destination: &Spec) -> Result<Direction, Error> {
    let mut sites = sources.iter().map(|source| match source {
        Spec::Local { .. } => None,
        Spec::Remote(path) => Some(path.site.clone()),
    });
    let invalid = |cause: &str| Error::new(Code::UsageInvalid, "copy", destination.shown(), cause);
    let first = sites.next().ok_or_else(|| invalid("no source"))?;
    if sites.any(|site| site != first) {
        return Err(invalid("all sources must be on this machine or at one site"));
    }
    match (first, destination) {
        (None, Spec::Remote(to)) => Ok(Direction::Up(to.site.clone())),
        (Some(from), Spec::Local { .. }) => Ok(Direction::Down(from)),
        (Some(from), Spec::Remote(to)) => Ok(Direction::Between(from, to.site.clone())),
        (None, Spec::Local { .. }) => {
            // One of them may have been meant for a place at a site.
            let like_place = sources.iter().chain([destination]).map(Spec::shown);
            let like_place = like_place.into_iter().find(|shown| shown.contains(":/"));
            let cause = "both are on this machine: use cp or rsync; a place at a site is SITE:/STORAGE/PATH";
            Err(match like_place {
                Some(shown) => Error::new(Code::UsageInvalid, "copy", shown, cause),
                None => invalid(cause),
            })
        }
    }
}

/// The form of a copy, as its arguments tell it.
pub(crate) fn form_of(sources: &[Spec], destination: &Spec) -> CopyForm {
    let directory = destination.has_slash() || sources.len() > 1;
    CopyForm { directory, contents: sources.iter().any(Spec::has_slash), resumed: false }
}

/// The name of each source in a destination directory.
///
/// # Errors
/// `UsageInvalid` if two have the same.
pub(crate) fn source_names(sources: &[Spec]) -> Result<Vec<RelPath>, Error> {
    let names = sources.iter().map(source_name).collect::<Result<Vec<_>, _>>()?;
    match first_twin(&names) {
        Some(twin) => {
            let cause = format!("two sources would both be copied to {}", names[twin]);
            Err(Error::new(Code::UsageInvalid, "copy", sources[twin].shown(), cause))
        }
        None => Ok(names),
    }
}

fn source_name(source: &Spec) -> Result<RelPath, Error> {
    if source.has_slash() {
        return Ok(RelPath::root());
    }
    let name = source.name();
    name.map_or_else(|| Ok(RelPath::root()), |name| RelPath::parse(&name))
}

/// Splits a local path into the directory it lies in and its name; `None` for a root or `..`.
pub(crate) fn split_local(path: &Path) -> (PathBuf, Option<Vec<u8>>) {
    let name = path.file_name().map(|name| name.as_bytes().to_vec());
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    (if name.is_some() { parent } else { path.to_path_buf() }, name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::mover::layout::CopyLayout;
    use renkei_core::wire::message::DestinationKind;

    fn spec(text: &str) -> Spec {
        Spec::parse_as(OsStr::new(text), |text| EndpointPath::parse(text.as_bytes())).unwrap()
    }

    fn layout(sources: &[&str], destination: &str, found: DestinationKind) -> Result<Vec<String>, Error> {
        let sources: Vec<Spec> = sources.iter().map(|text| spec(text)).collect();
        let destination = spec(destination);
        let name = destination.name();
        let resolved = form_of(&sources, &destination).resolve(found, name.is_none(), false)?;
        let targets = resolved.layout.targets(&source_names(&sources)?, name.as_deref())?;
        let into = if resolved.layout == CopyLayout::Into { "/" } else { "" };
        Ok(targets.iter().map(|target| format!("{into}{target}")).collect())
    }

    #[test]
    fn a_source_goes_into_a_directory_and_becomes_a_new_name() {
        assert_eq!(layout(&["run7"], "kek:/data/alice", DestinationKind::Dir).unwrap(), ["/run7"]);
        assert_eq!(layout(&["run7"], "kek:/data/alice", DestinationKind::Nothing).unwrap(), ["alice"]);
        assert_eq!(layout(&["run7"], "kek:/data/alice/", DestinationKind::Nothing).unwrap(), ["/run7"]);
        assert_eq!(layout(&["f"], "kek:/data/g", DestinationKind::Other).unwrap(), ["g"]);
        assert_eq!(layout(&["a", "b"], "kek:/data/x", DestinationKind::Nothing).unwrap(), ["/a", "/b"]);
    }

    #[test]
    fn a_trailing_slash_means_the_contents() {
        assert_eq!(layout(&["run7/"], "kek:/data/alice", DestinationKind::Dir).unwrap(), ["/"]);
        assert_eq!(layout(&["."], "kek:/data/alice", DestinationKind::Dir).unwrap(), ["/"]);
        assert_eq!(layout(&["run7/"], "kek:/data/alice", DestinationKind::Nothing).unwrap(), ["alice"]);
        assert_eq!(layout(&["kek:/data"], "here", DestinationKind::Dir).unwrap(), ["/"]);
    }

    #[test]
    fn impossible_copies_are_refused() {
        assert_eq!(
            layout(&["a", "b"], "kek:/data/f", DestinationKind::Other).unwrap_err().code,
            Code::NotADirectory
        );
        assert_eq!(
            layout(&["x/a", "y/a"], "kek:/data/d", DestinationKind::Dir).unwrap_err().code,
            Code::UsageInvalid
        );
        let mixed = direction(&[spec("a"), spec("kek:/data/b")], &spec("kek:/data/c"));
        assert_eq!(mixed.unwrap_err().code, Code::UsageInvalid);
        assert_eq!(direction(&[spec("a")], &spec("b")).unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn directions() {
        let kek = SiteName::parse("kek").unwrap();
        assert_eq!(direction(&[spec("a")], &spec("kek:/data/b")).unwrap(), Direction::Up(kek.clone()));
        assert_eq!(direction(&[spec("kek:/data/b")], &spec(".")).unwrap(), Direction::Down(kek));
    }
}
