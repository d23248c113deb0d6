//! The options of the verbs that copy.

use super::filter::FilterArgs;
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::quantity::parse_rate;
use renkei_catalogue::parse_id;
use renkei_core::error::Error;
use renkei_core::units::parse_span;
use renkei_core::wire::message::{Class, OnError, TransferId};
use renkei_core::wire::queue::{Terms, Verify};
use renkei_mover::BACKGROUND_STREAMS;
use renkei_net::unix_ms;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes per second that one stream carries on any path: with the kernel's common window of 4 MiB, at an RTT of half
/// a second.
const STREAM_CARRIES: u64 = 8 << 20;

/// The classes, as `--class` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ClassName {
    /// A share like that of others
    Normal,
    /// Only unused capacity: it gives way as soon as a queue grows
    Background,
}

/// What becomes of the rest, as `--on-error` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnErrorName {
    /// Copy it, and list the failures
    Skip,
    /// Leave it: the copy ends with the first failure
    Stop,
}

/// Options of all verbs that transfer.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// How long to try again after the connection was lost, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    retry_for: u64,
    /// Send at most so many bytes per second: 500K, 1.5M, 10MB, 80Mbit
    ///
    /// As in rsync, K, M, G and T (or KiB, MiB ...) are powers of 1024 and KB, MB ... powers of 1000; kbit, Mbit ...
    /// are thousands of bits. A plain number is bytes, as in curl and wget.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) limit: Option<u64>,
    /// How much of the path to take
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = ClassName::Normal)]
    class: ClassName,
    /// The rest of the copy when a file fails
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnErrorName::Skip)]
    on_error: OnErrorName,
    /// Data streams at most; by default the PoP decides
    #[arg(long, value_name = "N", hide = true, default_value_t = 64)]
    streams: u16,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Copy the names that a file lists, one a line, below the only SOURCE; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) detach: Detach,
}

impl Default for Common {
    fn default() -> Self {
        Common {
            retry_for: 60,
            limit: None,
            class: ClassName::Normal,
            on_error: OnErrorName::Skip,
            streams: 64,
            filter: FilterArgs::default(),
            files_from: None,
            detach: Detach::default(),
        }
    }
}

impl Common {
    /// The number of streams: under a rate limit few suffice, so that the extents of a file are sent one after the
    /// other and a copy that is interrupted has some to keep.
    pub(crate) fn max_streams(&self) -> u16 {
        let enough = self.limit.map_or(u64::MAX, |limit| limit.div_ceil(STREAM_CARRIES));
        let enough = self.streams.min(u16::try_from(enough).unwrap_or(u16::MAX));
        if self.class == ClassName::Background { enough.min(BACKGROUND_STREAMS) } else { enough }
    }

    /// How long to retry after the connection was lost.
    pub(crate) fn retry_for(&self) -> Duration {
        Duration::from_secs(self.retry_for)
    }

    pub(crate) fn on_error(&self) -> OnError {
        match self.on_error {
            OnErrorName::Skip => OnError::Skip,
            OnErrorName::Stop => OnError::Stop,
        }
    }

    pub(crate) fn class(&self) -> Class {
        match self.class {
            ClassName::Normal => Class::Normal,
            ClassName::Background => Class::Background,
        }
    }
}

/// The verb that was given; names the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `cp`.
    Cp,
    /// `sync`.
    Sync,
}

/// The comparison of `--verify`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Compared {
    /// The bytes read with the bytes written, while copying
    #[default]
    Source,
    /// Also both as they are afterwards, read once more
    Both,
}

/// Options of a copy that is handed over.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Detach {
    /// Hand the copy over to your site's PoP, print its id and leave; files of this machine go to its buffer first
    #[arg(long)]
    detach: bool,
    /// End at once where the buffer has no room for files of this machine
    #[arg(long, requires = "detach")]
    pub(crate) no_wait: bool,
    /// Give up after this time: 90s, 30m, 12h, 7d [default: the PoP's, 30 days]
    #[arg(long, requires = "detach", value_name = "TIME", value_parser = parse_span)]
    deadline: Option<Duration>,
    /// Among your own transfers, higher numbers go first
    #[arg(long, requires = "detach", value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Wait until this transfer is done; may be given several times
    #[arg(long, requires = "detach", value_name = "ID")]
    pub(crate) after: Vec<String>,
    /// Words of your own, shown in lists
    #[arg(long, requires = "detach", value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,
    /// The comparison to make
    #[arg(long, requires = "detach", value_name = "WHAT", value_enum, default_value_t = Compared::Source)]
    verify: Compared,
    /// A webhook: the URL that gets the result by an HTTP POST of JSON; the PoP's administrator says where that is allowed
    #[arg(long, requires = "detach", value_name = "URL", default_value = "", hide_default_value = true)]
    notify: String,
    /// The transfer's id, 32 hexadecimal digits; the same id again is the same transfer
    #[arg(long, requires = "detach", value_name = "ID", value_parser = parse_whole_id)]
    pub(crate) id: Option<TransferId>,
}

impl Detach {
    /// Whether the copy is to be submitted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.detach
    }

    pub(crate) fn terms(&self, asker: &mut Asker<'_>, context: &Context) -> Result<Terms, Error> {
        let mut after = Vec::new();
        for id in &self.after {
            after.push(match parse_id(id) {
                Some(id) => id,
                None => asker.story(id)?.transfer.id,
            });
        }
        Ok(Terms {
            deadline_ms: self.deadline.map(|time| unix_ms(context.now() + time)),
            priority: self.priority,
            after,
            label: self.label.clone(),
            verify: match self.verify {
                Compared::Source => Verify::Source,
                Compared::Both => Verify::Both,
            },
            notify: self.notify.clone(),
            origin: String::new(),
        })
    }
}

fn parse_whole_id(text: &str) -> Result<TransferId, String> {
    parse_id(text).ok_or_else(|| "write 32 hexadecimal digits".into())
}
