//! `renkei docs`: prints generated documentation: pages, man pages, completions.

use super::completion::{self, Shell};
use super::output::print;
use super::{Context, command, man};
use clap::Subcommand;
use renkei_config as config;
use renkei_config::home::file_error;
use renkei_core::error::{Code, Error, Kind, Retry};
use renkei_core::remedy::WORDS;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Print generated documentation
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    page: Page,
}

#[derive(Debug, Subcommand)]
enum Page {
    /// Print docs/config.md
    Config,
    /// Print docs/errors.md
    Errors,
    /// Print docs/cli.md
    Cli,
    /// Write man pages into a directory
    Man {
        /// The directory
        dir: PathBuf,
    },
    /// Write completions for bash, zsh and fish into a directory
    Completions {
        /// The directory
        dir: PathBuf,
    },
}

pub(super) fn run(args: &Args, _: &Context) -> Result<u8, Error> {
    match &args.page {
        Page::Config => print(config::markdown().as_bytes())?,
        Page::Errors => print(errors().as_bytes())?,
        Page::Cli => print(cli().as_bytes())?,
        Page::Man { dir } => {
            man::write_pages(dir).map_err(|error| file_error("write man pages", dir, &error))?;
        }
        Page::Completions { dir } => {
            completions(dir).map_err(|error| file_error("write completions", dir, &error))?;
        }
    }
    Ok(0)
}

fn completions(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for (shell, name) in [(Shell::Bash, "renkei.bash"), (Shell::Zsh, "_renkei"), (Shell::Fish, "renkei.fish")]
    {
        fs::write(dir.join(name), completion::script(shell)?)?;
    }
    Ok(())
}

/// The text of docs/errors.md.
fn errors() -> String {
    let mut out = String::from(
        "# Errors\n\n\
         Every failure has a stable code, the side it happened at, the first cause and what to do. With `--json` it\n\
         is one object: `{\"error\":{code,side,op,subject,cause,title,remedy,exit}}`. \"Again\" says whether the same\n\
         request may work later by itself. This page is printed by `renkei docs errors`.\n\n\
         renkei tells what to do by the case, with the names that it knows in place of words in capital letters:\n\n\
         | word | stands for |\n|---|---|\n",
    );
    for (word, what) in WORDS {
        writeln!(out, "| `{word}` | {what} |").expect("writing to a string cannot fail");
    }
    out.push_str(
        "\n\
         | code | what happened | exit | again | what to do |\n|---|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let row = code.row();
        let again = if row.retry == Retry::Later { "yes" } else { "no" };
        writeln!(
            out,
            "| {} | {} | {} | {again} | {} |",
            row.id,
            row.title,
            row.kind.exit_status(),
            row.remedy
        )
        .expect("writing to a string cannot fail");
    }
    out
}

/// The head of docs/cli.md, before the verbs.
const CLI_HEAD: &str = "\
This page is printed by `renkei docs cli`. Global options go before or after the verb. `--json` prints one object
instead of text (docs/json.md). Answers go to standard output, notices, progress and errors to standard error.

## Paths
`SITE:/STORAGE/PATH` is a place at a site, `SITE:/` the list of its storages; everything else is a path of this
machine. A local file whose name looks like a place is written `./kek:/x`. `..` is refused in places.

## Trailing slashes
| command | what happens |
|---|---|
| `cp a.dat kek:/data/dir`, `dir` exists | `a.dat` goes into it: `dir/a.dat` |
| `cp a.dat kek:/data/new`, `new` does not exist | `a.dat` becomes it: `new` is the file |
| `cp a.dat kek:/data/new/` | `new` is a directory, made if missing: `new/a.dat` |
| `cp -r run7 kek:/data/dir`, `dir` exists | `run7` goes into it: `dir/run7/...` |
| `cp -r run7 kek:/data/new`, `new` does not exist | `run7` becomes it: `new/...` |
| `cp -r run7/ kek:/data/dir` | what is in `run7` goes into `dir`, made if missing: `dir/...` |
| `cp -r a b kek:/data/dir` | both go into `dir`, made if missing |
| `cp a.dat kek:/data/file/`, `file` is a file | refused: RK-STORE-3 |
| `sync run7 kek:/data/run7` | the two directories become equal; slashes make no difference |
| `ls -l kek:/data/link`, `stat kek:/data/link` | the symbolic link itself |
| `ls -l kek:/data/link/`, `stat kek:/data/link/` | the directory it leads to |
| `mv kek:/data/a kek:/data/dir/` | `dir` must be a directory; `a` goes into it |

## Several paths
A verb that takes several paths goes on after a failure. The exit status is that of the failures if they all have the
same, else 23. With one path the verb fails as that path fails.

## Exit statuses
";

/// Examples; a test parses each line.
const CLI_EXAMPLES: &str = "\
## Examples
```
renkei cp -r ./run7 kek:/data/alice/          # up, as kek:/data/alice/run7
renkei cp kek:/data/alice/run7/a.dat .        # down
renkei cp -r titech:/data/a kek:/data/b       # from site to site, past this machine
renkei cp --detach titech:/data/a kek:/data/b # the same, by your PoP, when you have left; prints an id
renkei transfers                              # what was submitted and has not ended
renkei why 3f2a9c                             # what it waits for, and what was tried
renkei sync --delete --dry-run ./run7 kek:/data/run7
renkei ls -lh kek:/data                       # as ls -lh
renkei ls -U kek:/data/million                # entries as they arrive
renkei du -h kek:/data/alice
renkei df -h kek
renkei checksum -r kek:/data/run7 > manifest  # then: cd run7; b3sum -c ../manifest
renkei checksum -r -a sha256 ./run7           # as sha256sum prints it
renkei status
renkei whoami kek
renkei doctor kek
```
";

/// The meaning of each exit status other than 0.
pub(super) const EXIT_STATUSES: [(Kind, &str); 13] = [
    (Kind::Internal, "an I/O error or a defect"),
    (Kind::Invalid, "the command or the request makes no sense"),
    (Kind::NotFound, "something named does not exist"),
    (Kind::Exists, "something exists and must not, or has another type"),
    (Kind::Permission, "not permitted, or the user is not mapped"),
    (Kind::Identity, "a certificate, login or trust relation is not valid"),
    (Kind::NoSpace, "no space or quota at the target"),
    (Kind::Unavailable, "the other side does not answer; try again later"),
    (Kind::Integrity, "bytes are not what they should be"),
    (Kind::Changed, "the source changed while it was read"),
    (Kind::Limit, "a limit was met; try again later"),
    (Kind::Partial, "some of several things failed, for different reasons or in a transfer"),
    (Kind::Interrupted, "stopped by Ctrl-C or a signal"),
];

/// The table of exit statuses.
fn exit_statuses() -> String {
    let mut out = String::from("| status | meaning |\n|---|---|\n| 0 | all is done |\n");
    for (kind, meaning) in EXIT_STATUSES {
        writeln!(out, "| {} | {meaning} |", kind.exit_status()).expect("writing to a string cannot fail");
    }
    out
}

/// The text of docs/cli.md: paths, exit statuses, examples and the help of every verb.
fn cli() -> String {
    let mut out = format!("# Command line\n\n{CLI_HEAD}\n{}\n{CLI_EXAMPLES}", exit_statuses());
    let mut whole = command().term_width(100);
    whole.build();
    describe(&mut whole, "", &mut out);
    out
}

fn describe(command: &mut clap::Command, parents: &str, out: &mut String) {
    let path = format!("{parents}{}", command.get_name());
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    write!(out, "\n## {path}\n\n```text\n{}\n```\n", help.join("\n").trim_end())
        .expect("writing to a string cannot fail");
    let visible = |name: &str| name != "help" && name != "docs";
    for below in command.get_subcommands_mut().filter(|below| visible(below.get_name())) {
        describe(below, &format!("{path} "), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_errors_has_every_code() {
        let page = errors();
        assert!(Code::ALL.iter().all(|code| page.contains(&format!("| {} |", code.row().id))));
    }

    #[test]
    fn the_page_of_the_command_line_has_every_verb() {
        let page = cli();
        for verb in ["init", "storage add", "trust export", "map test", "login", "whoami", "revoke", "renew"]
        {
            assert!(page.contains(&format!("\n## renkei {verb}\n")), "{verb}");
        }
        assert!(!page.contains("## renkei docs"));
    }

    #[test]
    fn the_examples_are_parsed() {
        let examples = CLI_EXAMPLES.lines().filter(|line| line.starts_with("renkei "));
        for line in examples {
            let words = line.split(['#', '>']).next().unwrap_or(line).split_whitespace();
            command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn every_exit_status_is_explained() {
        let table = exit_statuses();
        let explained = |code: &Code| table.contains(&format!("\n| {} | ", code.row().kind.exit_status()));
        assert!(Code::ALL.iter().all(explained), "{table}");
    }

    #[test]
    fn completions_are_written() {
        let keep = tempfile::tempdir().unwrap();
        completions(keep.path()).unwrap();
        for name in ["renkei.bash", "_renkei", "renkei.fish"] {
            assert!(keep.path().join(name).exists(), "{name}");
        }
    }
}
