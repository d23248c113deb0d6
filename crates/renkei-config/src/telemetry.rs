//! Logs: structured events to standard error, for a terminal or the system's collector. Events that cannot be written, as on a
//! full disk, are lost, and nothing else is.

use crate::{Log, LogFormat};
use renkei_core::error::{Code, Error};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::Subscriber;

/// Starts logging for a PoP as its configuration says.
pub fn start(log: &Log) -> Result<(), Error> {
    let invalid =
        |error: &dyn std::fmt::Display| Error::new(Code::ConfigInvalid, "start log", &log.filter, error);
    let filter = EnvFilter::try_new(&log.filter).map_err(|error| invalid(&error))?;
    let builder = Subscriber::builder().with_env_filter(filter).with_writer(std::io::stderr);
    // A full disk would be told of on the same disk, by a macro that panics.
    let builder = builder.log_internal_errors(false);
    let started = match log.format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| invalid(&error))
}

/// Starts logging for a command: warnings, and more for each `-v`; with the time of each if the command lives on.
pub fn start_for_command(verbose: u8, lives_on: bool) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::new(format!("renkei={level},audit={level}"));
    let builder = Subscriber::builder().with_env_filter(filter).with_writer(std::io::stderr);
    let builder = builder.with_ansi(std::io::stderr().is_terminal()).log_internal_errors(false);
    // Fails only if logging was started before, and then nothing needs doing.
    let _ = if lives_on { builder.try_init() } else { builder.without_time().try_init() };
}

/// Ends the process at a panic of any thread, also where a build unwinds: others would wait for that thread, or find its locks
/// poisoned. Restart is a tested path.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}
