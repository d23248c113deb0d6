//! `renkei site`: what belongs to a site as a whole: its name and its authority.

use super::{Context, rotate_authority};
use crate::config::Config;
use clap::Subcommand;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;

/// Change what a site is known by: its authority, its name
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Say how a site gets another name; nothing is changed
    ///
    /// The name stands in every certificate, card, rule and grant, here and at all partners, and cannot be exchanged in place.
    Rename {
        /// The new name
        name: String,
    },
    /// Replace the site's authority; partners take over the new one by themselves
    ///
    /// The old authority signs a hand-over to the new one, and both are valid during an overlap. Run again, the command shows the
    /// progress, or completes a rotation that was interrupted.
    #[command(
        after_long_help = "Examples:\n  renkei site rotate-authority                 overlap of 30 days\n  renkei site \
                           rotate-authority --finish        end the overlap\n  renkei site \
                           rotate-authority --now           the key is compromised"
    )]
    RotateAuthority(rotate_authority::Args),
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Rename { name } => Err(rename(name, context)?),
        Action::RotateAuthority(args) => rotate_authority::run(args, context),
    }
}

/// Why a site is not renamed, and what to type instead.
fn rename(name: &str, context: &Context) -> Result<Error, Error> {
    let (home, new) = (context.home()?, SiteName::parse(name)?);
    let config = Config::load(&home)?;
    let old = config.site(&home)?;
    let (dir, listen) = (home.config_dir().display(), &config.listen);
    let at = format!("{}-{new}", dir.to_string().trim_end_matches('/'));
    let listen: String = listen.iter().map(|address| format!(" --listen {address}")).collect();
    let endpoints: String =
        config.endpoints.iter().map(|endpoint| format!(" --endpoint {endpoint}")).collect();
    let storages: String = config
        .storage
        .iter()
        .map(|(name, storage)| match &storage.agent {
            Some(account) => format!(" && renkei --dir {at} storage add {name} --agent {account}"),
            None => format!(" && renkei --dir {at} storage add {name} {}", storage.path.display()),
        })
        .collect();
    let steps = [
        "the name is in every certificate, card, rule and grant, here and at all partners; make a site of the new name beside this one".to_owned(),
        format!("(1) renkei --dir {at} init --site {new}{listen}{endpoints}{storages}"),
        format!("(2) copy the rules of {} to {at}/map", home.map_file().display()),
        format!("(3) volumes: `renkei volume list` shows those of {old}; once it is stopped, create them at {new} on the same directories"),
        format!("(4) stop the PoP of {old} and start `renkei --dir {at} serve`"),
        format!("(5) for each partner: there `renkei invite` and `renkei map add 'USER@{new}' ACCOUNT`, here `renkei --dir {at} join LINE`"),
        "(6) users: `renkei login`".to_owned(),
        format!("(7) at each partner `renkei trust remove {old}`"),
    ];
    Ok(Error::new(Code::UsageInvalid, "rename site", old, steps.join("; ")))
}
