//! `--exclude`, `--include` and their files: rules in the order in which they are given.

use clap::builder::OsStringValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use renkei_config::home::file_error;
use renkei_core::error::Error;
use renkei_core::mover::filter::{Filter, Rule};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name, whether matches are included, whether the value is a file of patterns, help.
const OPTIONS: [(&str, bool, bool, &str); 4] = [
    (
        "exclude",
        false,
        false,
        "Leave out what fits a pattern, as in rsync: '*.tmp' a name, '/run7/tmp/' a directory from the top, '**/x' a path",
    ),
    (
        "include",
        true,
        false,
        "Take what fits a pattern, whatever later rules say; the first rule that fits decides",
    ),
    (
        "exclude-from",
        false,
        true,
        "Patterns of a file, one a line; lines that begin with # or ; are comments",
    ),
    ("include-from", true, true, "The same for --include"),
];

/// The rules of a command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct FilterArgs {
    given: Vec<(usize, Given)>,
}

#[derive(Clone, Debug)]
struct Given {
    includes: bool,
    is_file: bool,
    value: OsString,
}

impl FilterArgs {
    /// Whether no rule was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// The rules in order.
    ///
    /// # Errors
    /// A file that cannot be read; rules that are too long.
    pub(crate) fn filter(&self, contents: Vec<bool>) -> Result<Filter, Error> {
        let mut filter = Filter { rules: Vec::new(), contents };
        for (_, given) in &self.given {
            let rule = |pattern: &[u8]| Rule { includes: given.includes, pattern: pattern.into() };
            if !given.is_file {
                filter.rules.push(rule(given.value.as_bytes()));
                continue;
            }
            let path = Path::new(&given.value);
            let text = std::fs::read(path).map_err(|error| file_error("read", path, &error).at("client"))?;
            let lines =
                text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
            let patterns = lines.filter(|line| !matches!(line.first(), None | Some(b'#' | b';')));
            filter.rules.extend(patterns.map(rule));
        }
        if filter.rules.is_empty() {
            return Ok(Filter::default());
        }
        filter.check().map_err(|error| error.at("client"))?;
        Ok(filter)
    }
}

impl clap::Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, (name, _, is_file, help)| {
            let argument = Arg::new(*name)
                .long(*name)
                .value_name(if *is_file { "FILE" } else { "PATTERN" })
                .help(*help)
                .action(ArgAction::Append)
                .allow_hyphen_values(true)
                .value_parser(OsStringValueParser::new());
            command.arg(argument)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut filter = FilterArgs::default();
        filter.update_from_arg_matches(matches)?;
        Ok(filter)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (name, includes, is_file, _) in OPTIONS {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            let given = |value: &OsString| Given { includes, is_file, value: value.clone() };
            self.given.extend(places.zip(values.map(given)));
        }
        self.given.sort_by_key(|(place, _)| *place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    #[test]
    fn rules_keep_their_order_over_options_and_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# what is made\n*.o\n\n; and kept\n-x\r\n").unwrap();
        let command = FilterArgs::augment_args(Command::new("x"));
        let path = file.path().to_str().unwrap();
        let words = ["x", "--include", "a", "--exclude-from", path, "--include=b", "--exclude", "*"];
        let given = FilterArgs::from_arg_matches(&command.get_matches_from(words)).unwrap();
        let filter = given.filter(Vec::new()).unwrap();
        let rules: Vec<_> = filter.rules.iter().map(|rule| (rule.includes, &rule.pattern[..])).collect();
        let expected: [(bool, &[u8]); 5] =
            [(true, b"a"), (false, b"*.o"), (false, b"-x"), (true, b"b"), (false, b"*")];
        assert_eq!(rules, expected);
    }
}
