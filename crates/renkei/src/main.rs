//! The `renkei` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    renkei::telemetry::abort_on_panic();
    renkei::cli::run()
}
