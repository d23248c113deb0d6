//! The account as which a volume works for the users of its grants, by default.
//!
//! Guarantee: never root, unless explicitly configured: `--account root`, or `volumes.account` in config.toml.

use renkei_config::{Config, Storage};
use renkei_core::error::{Code, Error};
use renkei_net::identity::account::Account;
use renkei_store::passwd::user_name;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The named account, else the storage's, else the owner of the directory or of its nearest existing ancestor that
/// root does not own, else the configured one, else the caller's.
pub(crate) fn chosen(
    op: &'static str,
    volume: &str,
    named: Option<&str>,
    storage: Option<&Storage>,
    folder: Option<&Path>,
    config: &Config,
) -> Result<Account, Error> {
    if let Some(name) = named.or(storage.and_then(|storage| storage.account.as_deref())) {
        return Account::lookup(name).inspect(|account| warn_of_root(volume, account));
    }
    if !rustix::process::geteuid().is_root() {
        return match folder.filter(|folder| folder.exists()) {
            Some(folder) => owner(op, folder),
            None => Account::own(),
        };
    }
    if let (Some(folder), Some(storage)) = (folder, storage)
        && let Some(owner) = owner_above(op, folder, &storage.path)?
    {
        return Ok(owner);
    }
    if config.volumes.account.is_empty() {
        let cause = "its directory is root's, and root works for others only where that is said";
        return Err(Error::new(Code::RootAccount, op, volume, cause));
    }
    Account::lookup(&config.volumes.account).inspect(|account| warn_of_root(volume, account))
}

/// The owner of a directory, or of its nearest ancestor up to the storage's root that root does not own.
fn owner_above(op: &'static str, folder: &Path, root: &Path) -> Result<Option<Account>, Error> {
    let inside = folder.ancestors().take_while(|dir| dir.starts_with(root));
    let owned = |dir: &&Path| dir.metadata().is_ok_and(|dir| dir.uid() != 0);
    inside.filter(|dir| dir.exists()).find(owned).map(|dir| owner(op, dir)).transpose()
}

fn owner(op: &'static str, folder: &Path) -> Result<Account, Error> {
    let number =
        folder.metadata().map_err(|error| renkei_config::home::file_error(op, folder, &error))?.uid();
    let unknown = format!("no account has its owner's number {number}; give --account");
    let unknown = || Error::new(Code::UsageInvalid, op, folder.display(), unknown);
    Account::lookup(&user_name(number).ok_or_else(unknown)?)
}

/// Warns the administrator of a volume that works as root.
pub(crate) fn warn_of_root(volume: &str, account: &Account) {
    if account.uid == 0 {
        eprintln!(
            "renkei: warning: the account of /{volume} is root: whom its grants let in reads and replaces every file below its \
             directory, whoever owns it; an account without privileges does the same for the volume alone: \
             `renkei volume set {volume} account=NAME`"
        );
    }
}
