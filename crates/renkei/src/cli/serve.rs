//! `renkei serve`: runs the PoP.

use super::Context;
use crate::config::Config;
use crate::{daemon, telemetry};
use renkei_core::error::Error;

/// Run the PoP of this directory until it is told to stop
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Listen here instead of where the configuration says; may be given several times
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<std::net::SocketAddr>,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let flags: Vec<(&str, String)> = match args.listen.is_empty() {
        true => Vec::new(),
        false => vec![("listen", list(&args.listen))],
    };
    let config = Config::load_with_flags(&home, &flags)?;
    telemetry::start(&config.log)?;
    daemon::run(home, config, |site, addresses| {
        tracing::info!(site = %site.name(), listening = list(addresses), "ready");
    })?;
    Ok(0)
}

fn list(addresses: &[std::net::SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
