//! The configuration of Kerberos.

use super::absolute_or_empty;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The keytab of the machine.
const USUAL: &str = "/etc/krb5.keytab";

/// The configuration of Kerberos.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kerberos {
    /// The file with the keys of the service HTTP; empty for none.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub keytab: PathBuf,
}

impl Default for Kerberos {
    fn default() -> Self {
        Kerberos { keytab: USUAL.into() }
    }
}

impl Kerberos {
    /// Whether the administrator chose a keytab: that of the machine may be for other services.
    pub fn is_chosen(&self) -> bool {
        !self.keytab.as_os_str().is_empty() && self.keytab != Path::new(USUAL)
    }
}
