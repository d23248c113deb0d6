//! Sizes, rates and durations for people, and rates from them.

pub(super) use renkei_core::units::{bit_rate, counted, human, milliseconds, parse_rate, span};

/// How sizes are shown. As in ls, du and df `-h` is taken, so help is `--help` alone.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Sizes {
    /// Print sizes as 1.5K, 12M, 3.1G
    #[arg(short, long)]
    human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Sizes {
    /// Bytes in the requested form.
    pub(super) fn text(self, bytes: u64) -> String {
        if self.human_readable { human(bytes) } else { bytes.to_string() }
    }
}
