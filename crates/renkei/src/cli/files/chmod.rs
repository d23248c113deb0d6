//! `renkei chmod`: changes the permissions of files and directories at sites.

use super::done::done;
use super::single::FileSessions;
use crate::cli::Context;
use crate::cli::glob;
use crate::cli::many::Many;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Alteration, Item};
use renkei_mover::files::workspace::{Follow, ListFrom, Workspace};
use std::ffi::OsString;

/// Change the permissions of files and directories at a site
///
/// Symbolic links are passed over.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei chmod 640 kek:/data/alice/a.dat\n  renkei chmod -R u+rwX,go-w kek:/data/alice/run7"
)]
pub struct Args {
    /// Octal (640) or symbolic (u+rwX,go-w)
    #[arg(value_name = "MODE", value_parser = Mode::parse, allow_hyphen_values = true)]
    mode: Mode,
    /// SITE:/STORAGE/PATH or /VOLUME/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directories with all in them
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// A mode argument.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// An octal mode.
    Octal(u32),
    /// Symbolic clauses, applied in order.
    Symbolic(Vec<Clause>),
}

/// One clause of a symbolic mode, as `go-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    /// The bits of the concerned users: 0o700 of the owner, 0o070 of the group, 0o007 of others, and their special
    /// bits.
    whom: u32,
    /// `+`, `-` or `=`.
    action: char,
    /// The permission bits, for all users.
    bits: u32,
    /// `X`: execution too, for directories and files that are executable for any user.
    conditional: bool,
}

const SYNTAX: &str = "write a mode as 640 or u+rwX,go-w";

impl Mode {
    fn parse(text: &str) -> Result<Self, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
            return mode.map(Mode::Octal).ok_or_else(|| SYNTAX.into());
        }
        let clauses = text.split(',').map(Clause::parse).collect::<Option<Vec<_>>>();
        clauses.map(Mode::Symbolic).ok_or_else(|| SYNTAX.into())
    }

    /// The new mode of an entry with this mode.
    fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        match self {
            Mode::Octal(mode) => *mode,
            Mode::Symbolic(clauses) => {
                clauses.iter().fold(mode & 0o7777, |mode, clause| clause.apply(mode, is_dir))
            }
        }
    }
}

impl Clause {
    fn parse(text: &str) -> Option<Self> {
        let at = text.find(['+', '-', '='])?;
        let (whom, rest) = text.split_at(at);
        let mut clause = Clause { whom: 0, action: rest.chars().next()?, bits: 0, conditional: false };
        for letter in whom.chars() {
            clause.whom |= match letter {
                'u' => 0o4700,
                'g' => 0o2070,
                'o' => 0o1007,
                'a' => 0o7777,
                _ => return None,
            };
        }
        if whom.is_empty() {
            clause.whom = 0o7777;
        }
        for letter in rest[1..].chars() {
            clause.bits |= match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                's' => 0o6000,
                't' => 0o1000,
                'X' => {
                    clause.conditional = true;
                    0
                }
                _ => return None,
            };
        }
        Some(clause)
    }

    fn apply(&self, mode: u32, is_dir: bool) -> u32 {
        let executes = self.conditional && (is_dir || mode & 0o111 != 0);
        let bits = (self.bits | if executes { 0o111 } else { 0 }) & self.whom;
        match self.action {
            '+' => mode | bits,
            '-' => mode & !bits,
            _ => mode & !(self.whom & 0o777) | bits,
        }
    }
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (mut many, mut sessions) = (Many::new(context), FileSessions::new(context));
    let mut changed = Vec::new();
    many.each(&glob::expanded(&args.paths, context)?, |many, path| {
        let (files, name) = sessions.parent_of(path)?;
        let top = files.stat(&name, Follow::No)?;
        let mut todo = vec![(name, top)];
        while let Some((name, item)) = todo.pop() {
            match change(args, files, &name, &item) {
                Ok(below) => todo.extend(below),
                Err(error) if args.recursive => many.fail(format!("{path}: {name}"), &error),
                Err(error) => return Err(error),
            }
        }
        changed.push(path.to_string());
        Ok(())
    })?;
    done("changed", changed, &many, context)
}

/// Changes one entry; returns its children, if they are to be changed too.
fn change(
    args: &Args,
    files: &Workspace,
    name: &RelPath,
    item: &Item,
) -> Result<Vec<(RelPath, Item)>, Error> {
    let is_dir = match &item.entry.kind {
        EntryKind::Dir => true,
        EntryKind::Symlink { .. } if args.recursive => return Ok(Vec::new()),
        EntryKind::Symlink { .. } => {
            return Err(Error::new(
                Code::UsageInvalid,
                "chmod",
                name,
                "a symbolic link has no permissions of its own",
            ));
        }
        _ => false,
    };
    let mut below = Vec::new();
    if is_dir && args.recursive {
        for item in files.list(name, Follow::No, ListFrom::default())?.items {
            below.push((name.child(item.entry.path.as_bytes())?, item));
        }
    }
    let mode = args.mode.apply(item.entry.meta.mode, is_dir);
    let change = Alteration { mode: Some(mode), mtime: None, owner: None, group: None };
    files.set_attr(name, Follow::No, change)?;
    Ok(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_parsed_as_by_chmod() {
        let becomes = |text: &str, mode, is_dir| Mode::parse(text).unwrap().apply(mode, is_dir);
        assert_eq!(becomes("640", 0o777, false), 0o640);
        assert_eq!(becomes("u+rwX,go-w", 0o466, false), 0o644);
        assert_eq!(becomes("u+rwX,go-w", 0o466, true), 0o744);
        assert_eq!(becomes("a=r", 0o751, false), 0o444);
        assert_eq!(becomes("+x", 0o644, false), 0o755);
        assert_eq!(becomes("g=rx,o=", 0o777, false), 0o750);
        assert_eq!(becomes("g+s,+t", 0o755, true), 0o3755);
        assert_eq!(becomes("a+X", 0o644, false), 0o644);
        for bad in ["", "9", "77777", "u", "u+q", "z+r", "u+r,", "-"] {
            assert!(Mode::parse(bad).is_err() || bad == "-", "{bad}");
        }
    }
}
