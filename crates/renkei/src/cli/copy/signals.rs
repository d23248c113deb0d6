//! Signals that stop a copy.

use renkei_core::error::{Code, Error};
use renkei_mover::Stop;
use std::sync::Mutex;

/// The transfer that Ctrl-C stops, and its destination site.
static STOPPED_BY_SIGNAL: Mutex<Option<(Stop, String)>> = Mutex::new(None);

/// Ctrl-C and SIGTERM stop the transfer to a site in order; the second one ends the process.
pub(super) fn stop_on_signal(stop: Stop, to: String) -> Result<(), Error> {
    let signalled =
        || STOPPED_BY_SIGNAL.lock().expect("no thread panics while it holds the lock: a panic aborts");
    if signalled().replace((stop, to)).is_some() {
        return Ok(());
    }
    let handler = move || {
        let Some((stop, to)) = signalled().clone() else { return };
        if stop.stopped().is_some() {
            super::progress::show_keys();
            std::process::exit(130);
        }
        let error = Error::new(Code::Cancelled, "copy", &to, "interrupted").at("client");
        std::thread::spawn(move || stop.stop(error));
    };
    ctrlc::set_handler(handler).map_err(|error| Error::new(Code::SystemCall, "handle signals", "", error))
}
