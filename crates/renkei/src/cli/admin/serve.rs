//! `renkei serve`: runs the PoP.

use crate::cli::Context;
use crate::daemon;
use crate::daemon::Ended;
use renkei_config::Config;
use renkei_config::telemetry;
use renkei_core::error::{Code, Error};
use renkei_net::identity::authority::rotation;
use renkei_net::identity::trust::former_names;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Run the PoP of this directory until it is told to stop
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Listen here instead of where the configuration says; may be given several times
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<std::net::SocketAddr>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let flags: Vec<(&str, String)> = match args.listen.is_empty() {
        true => Vec::new(),
        false => vec![("listen", list(&args.listen))],
    };
    if rotation::complete_rename(&home)? {
        former_names::install(&home)?;
    }
    let config = Config::load_with_flags(&home, &flags)?;
    telemetry::start(&config.log)?;
    let ended = daemon::run(home, config, |site, addresses| {
        tracing::info!(site = %site.name(), listening = list(addresses), "ready");
    })?;
    begin_again_if_renamed(ended)
}

/// Restarts the process after a site was renamed (exec of the same program with the same arguments), so that no part
/// of it continues with the former name.
pub(crate) fn begin_again_if_renamed(ended: Ended) -> Result<u8, Error> {
    if ended == Ended::Stopped {
        return Ok(0);
    }
    let mut words = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(words.next().unwrap_or_default()).args(words);
    Err(Error::new(Code::SystemCall, "start again", "renkei", command.exec()))
}

fn list(addresses: &[std::net::SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
