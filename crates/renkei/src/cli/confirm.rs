//! Confirmation of actions that are easily typed and hard to undo. Without a terminal, `--yes` confirms.

use renkei_core::error::{Code, Error};
use std::io::{self, BufRead, IsTerminal};

/// Shows the warnings, and continues only if the user confirms.
///
/// # Errors
/// `NotConfirmed` with all warnings; nothing was changed then.
pub(super) fn confirm(yes: bool, op: &str, subject: &str, warnings: &[String]) -> Result<(), Error> {
    if warnings.is_empty() {
        return Ok(());
    }
    let refuse = |why: &str| {
        Err(Error::new(Code::NotConfirmed, op, subject, format!("{}; {why}", warnings.join("; "))))
    };
    let is_asked = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !yes && !is_asked {
        return refuse("nothing was changed");
    }
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    if yes {
        return Ok(());
    }
    eprint!("{op} {subject}: is this meant? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" if read.is_ok() => Ok(()),
        _ => refuse("not confirmed; nothing was changed"),
    }
}
