//! `--files-from`: the names below one source that are copied, one a line, as in rsync.
//!
//! Empty lines and those that begin with # or ; are skipped, and patterns are not expanded. The parent directories of
//! a name are copied, without their other entries. A listed directory is copied with all its content if `-r` is
//! given.

use renkei_config::home::file_error;
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// A name below the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The path below the source.
    pub(crate) path: RelPath,
    /// A directory without its content.
    pub(crate) alone: bool,
}

/// Reads a list; `-` is standard input.
pub(crate) fn read(file: &Path, recursive: bool) -> Result<Vec<Listed>, Error> {
    let mut text = Vec::new();
    let outcome = match file == Path::new("-") {
        true => std::io::stdin().lock().read_to_end(&mut text).map(drop),
        false => std::fs::read(file).map(|bytes| text = bytes),
    };
    outcome.map_err(|error| file_error("read", file, &error))?;
    parse(&text, recursive)
}

fn parse(text: &[u8], recursive: bool) -> Result<Vec<Listed>, Error> {
    let mut listed: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
    let lines = text.split(|byte| *byte == b'\n');
    for line in lines.filter(|line| !matches!(line.first(), Some(b'#' | b';'))) {
        let path = RelPath::parse_lenient(line.strip_suffix(b"\r").unwrap_or(line))
            .map_err(|error| Error { op: "read --files-from".into(), subject: printable(line), ..error })?;
        if path.is_root() {
            continue;
        }
        let mut above = path.parent();
        while let Some(dir) = above.filter(|dir| !dir.is_root()) {
            listed.entry(dir.as_bytes().to_vec()).or_insert(true);
            above = dir.parent();
        }
        let alone = listed.entry(path.as_bytes().to_vec()).or_insert(true);
        *alone = *alone && !recursive;
    }
    if listed.is_empty() {
        return Err(Error::new(Code::UsageInvalid, "copy", "--files-from", "no name is listed"));
    }
    without_what_comes_anyway(&listed)
}

/// Drops names below a directory that is copied completely.
fn without_what_comes_anyway(listed: &BTreeMap<Vec<u8>, bool>) -> Result<Vec<Listed>, Error> {
    let comes_anyway = |path: &[u8]| {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes.map(|(at, _)| &path[..at]).any(|dir| listed.get(dir) == Some(&false))
    };
    let kept = listed.iter().filter(|(path, _)| !comes_anyway(path));
    kept.map(|(path, alone)| Ok(Listed { path: RelPath::parse(path)?, alone: *alone })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, recursive: bool) -> Vec<String> {
        let listed = parse(text.as_bytes(), recursive).unwrap();
        listed.iter().map(|one| format!("{}{}", one.path, if one.alone { "" } else { "/*" })).collect()
    }

    #[test]
    fn parent_directories_are_sent_without_their_contents() {
        assert_eq!(shown("a/b/f\r\n\nc\n", false), ["a", "a/b", "a/b/f", "c"]);
        assert_eq!(shown("a/b/f\na/b\n", true), ["a", "a/b/*"]);
        assert_eq!(shown("a/b/\n", true), ["a", "a/b/*"]);
        assert_eq!(shown("# a comment\n;b\n./#c\n*.h5\n", true), ["#c/*", "*.h5/*"]);
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        assert!(
            parse(b"../x\n", false).is_err()
                && parse(b"a/../../x", false).is_err()
                && parse(b"\n", false).is_err()
        );
    }
}
