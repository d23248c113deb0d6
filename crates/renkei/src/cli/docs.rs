//! `renkei docs`: prints what is generated from the code: pages, man pages, completions.

use super::output::print;
use super::{Context, command};
use crate::config;
use crate::home::file_error;
use clap::Subcommand;
use clap_complete::Shell;
use renkei_core::error::{Code, Error, Retry};
use std::fmt::Write;
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
        Page::Config => page(&config::markdown())?,
        Page::Errors => page(&errors())?,
        Page::Cli => page(&cli())?,
        Page::Man { dir } => {
            clap_mangen::generate_to(command(), dir)
                .map_err(|error| file_error("write man pages", dir, &error))?;
        }
        Page::Completions { dir } => {
            completions(dir).map_err(|error| file_error("write completions", dir, &error))?;
        }
    }
    Ok(0)
}

fn page(text: &str) -> Result<(), Error> {
    print(text.as_bytes()).map_err(|error| Error::new(Code::IoFailed, "print", "", error))
}

fn completions(dir: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command(), "renkei", dir)?;
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

/// The text of docs/cli.md: the help of every verb.
fn cli() -> String {
    let mut out = String::from(
        "# Command line\n\nGlobal options go before or after the verb. This page is printed by `renkei docs cli`.\n",
    );
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
    fn man_pages_and_completions_are_written() {
        let dir = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(command(), dir.path()).unwrap();
        completions(dir.path()).unwrap();
        for name in ["renkei.1", "renkei-storage-add.1", "renkei.bash", "_renkei", "renkei.fish"] {
            assert!(dir.path().join(name).exists(), "{name}");
        }
    }
}
