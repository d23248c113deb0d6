//! The report of `mkdir`, `rm` and `mv`: the paths that were processed, silent as text unless `-v` is given.

use crate::cli::Context;
use crate::cli::many::Many;
use crate::cli::output::Report;
use renkei_core::error::Error;
use serde::Serialize;
use std::io::{self, Write};

/// The paths that did not fail.
#[derive(Serialize)]
struct Done {
    done: Vec<String>,
    failures: Vec<serde_json::Value>,
    #[serde(skip)]
    word: &'static str,
    #[serde(skip)]
    shown: bool,
}

/// Prints the report and returns the exit status; `word` is the action, as `removed`.
pub(crate) fn done(
    word: &'static str,
    done: Vec<String>,
    many: &Many<'_>,
    context: &Context,
) -> Result<u8, Error> {
    let failures = many.failures().to_vec();
    context.output.done(&Done { done, failures, word, shown: context.verbose > 0 })?;
    Ok(many.status())
}

impl Report for Done {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.done.iter().filter(|_| self.shown).try_for_each(|path| writeln!(out, "{} {path}", self.word))
    }
}
