//! The `renkei` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    renkei_config::telemetry::abort_on_panic();
    renkei::cli::run()
}
