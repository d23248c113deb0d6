//! The `renkei` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    renkei::cli::run()
}
