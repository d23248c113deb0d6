//! The context of each verb: the directories, the identity, and how to print.

use super::output::Output;
use renkei_config::home::Home;
use renkei_core::error::Error;
use std::path::PathBuf;
use std::time::SystemTime;

/// The context of every verb.
#[derive(Clone, Debug, Default)]
pub struct Context {
    pub(super) dir: Option<PathBuf>,
    pub(super) identity: Option<String>,
    /// How to print.
    pub output: Output,
    /// How often `-v` was given.
    pub verbose: u8,
}

impl Context {
    /// The directories chosen by `--dir`, the environment or the account.
    pub fn home(&self) -> Result<Home, Error> {
        Home::select(self.dir.as_deref())?.with_identity(self.identity.as_deref())
    }

    /// The options that select the directory and identity again; empty for the default ones.
    pub(super) fn option(&self) -> String {
        let dir = self.dir.as_ref().map(|dir| format!("--dir {}", dir.display()));
        let identity = self.identity.as_ref().map(|name| format!("--identity {name}"));
        [dir, identity].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Whether the names of copied files are printed.
    pub(super) fn lists_names(&self) -> bool {
        self.verbose > 0 && !self.output.is_quiet() && !self.output.is_json()
    }

    /// The current time, for certificates.
    pub fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}
