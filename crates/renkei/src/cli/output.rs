//! Output of verbs: text for people or one JSON object, both from the same value.
//!
//! Answers go to standard output, notices and errors to standard error; with `--json` an error is an object on
//! standard output too. A closed pipe is no failure.

use super::remedy::remedy;
use renkei_config::home::file_error;
use renkei_core::error::{Code, Error};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// The result of a verb.
pub trait Report: Serialize {
    /// Writes it as text.
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()>;
}

/// The output mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output {
    json: bool,
    quiet: bool,
}

impl Output {
    /// By `--json` and `--quiet`.
    pub fn new(json: bool, quiet: bool) -> Self {
        Output { json, quiet }
    }

    /// Whether `--json` is given.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether `--quiet` is given.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints a result.
    pub fn answer(&self, report: &impl Report) -> Result<(), Error> {
        let mut text = Vec::new();
        let written = match self.json {
            true => {
                serde_json::to_writer(&mut text, report).map_err(io::Error::from).map(|()| text.push(b'\n'))
            }
            false => report.write_text(&mut text),
        };
        written.map_err(|error| not_printed(&error))?;
        print(&text)
    }

    /// Prints the report of an action; silent with `--quiet`, unless with `--json`.
    pub fn done(&self, report: &impl Report) -> Result<(), Error> {
        if self.quiet && !self.json { Ok(()) } else { self.answer(report) }
    }

    /// Prints a notice to standard error; silent with `--quiet` and `--json`.
    pub fn notice(&self, text: &str) {
        if !self.quiet && !self.json {
            tell(text);
        }
    }

    /// Prints an error as JSON to standard error, beside an answer that is no JSON, and returns the exit status.
    pub fn error_beside(&self, error: &Error) -> u8 {
        let error = &error.clone().at("client");
        tell(&error_json(error).to_string());
        error.kind().exit_status()
    }

    /// Prints an error and returns the exit status; an error without a side happened at this client.
    pub fn error(&self, error: &Error) -> u8 {
        let error = &error.clone().at("client");
        if self.json {
            let _ = print(format!("{}\n", error_json(error)).as_bytes());
        } else {
            tell(&format!("renkei: {error}\n  what to do: {}{}", remedy(error), wildcard_note(error)));
        }
        error.kind().exit_status()
    }
}

/// Prints to standard error, which may be a file on a full disk: errors are ignored.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The JSON form of an error.
pub fn error_json(error: &Error) -> serde_json::Value {
    serde_json::json!({"error": {
        "code": error.code,
        "side": error.side,
        "op": error.op,
        "subject": error.subject,
        "cause": error.cause,
        "title": error.code.row().title,
        "remedy": remedy(error),
        "exit": error.kind().exit_status(),
    }})
}

/// Prints bytes as they are.
pub fn print(bytes: &[u8]) -> Result<(), Error> {
    match write_out(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.map_err(|error| not_printed(&error)),
    }
}

/// Prints a part of a long answer.
///
/// # Errors
/// A closed pipe gives one that [`is_reader_gone`] recognises.
pub(super) fn print_part(bytes: &[u8]) -> Result<(), Error> {
    write_out(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::new(Code::Cancelled, READER_GONE, "", error),
        _ => not_printed(&error),
    })
}

fn not_printed(error: &io::Error) -> Error {
    file_error("print", Path::new("standard output"), error)
}

/// A pattern that matches no name at the site is reported as a name that does not exist.
pub(super) fn wildcard_note(error: &Error) -> &'static str {
    let wild = error.code == Code::PathNotFound && error.subject.contains(['*', '?', '[']);
    if wild { "\n  note: no name matches the pattern" } else { "" }
}

/// The operation in errors of a closed pipe.
const READER_GONE: &str = "print to reader";

/// Whether the reader closed the pipe: the producer may end, and nothing has failed.
pub(super) fn is_reader_gone(error: &Error) -> bool {
    error.code == Code::Cancelled && error.op == READER_GONE
}

fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_a_match_gets_a_hint() {
        let missing = |path| wildcard_note(&Error::new(Code::PathNotFound, "open", path, ""));
        assert!(missing("/data/a/*").contains("no name matches"));
        assert_eq!(missing("/data/a/b"), "");
        assert_eq!(wildcard_note(&Error::new(Code::NotADirectory, "open", "/data/*", "")), "");
    }

    #[test]
    fn an_error_has_all_its_parts() {
        let error = Error::new(Code::NoSpace, "write", "a", "ENOSPC").at("kek");
        let json = error_json(&error);
        assert_eq!(json["error"]["code"], "RK-STORE-6");
        assert_eq!(json["error"]["exit"], 7);
        for part in ["side", "op", "subject", "cause", "remedy"] {
            assert!(json["error"][part].as_str().is_some_and(|text| !text.is_empty()), "{part}");
        }
    }
}
