//! The version of the wire that two sides agree on.
//!
//! Each build speaks two neighbouring versions, so that the sites of a federation are updated one after the other. The
//! dialling side names its range in `Hello`; the dialled side answers with the newest version that both speak, which
//! holds for the whole session, its data streams included. A message or variant that is younger than the oldest spoken
//! version is sent only in a session that agreed on its version.

use crate::error::{Code, Error};
use std::fmt;
use std::ops::RangeInclusive;

/// The protocol versions that this build speaks, oldest and newest.
pub const VERSIONS: RangeInclusive<u16> = WireVersion::OLDEST.0..=WireVersion::NEWEST.0;

/// A version of the wire that this build speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireVersion(u16);

impl WireVersion {
    /// The version before: every message and variant that is not noted as younger.
    pub const V3: WireVersion = WireVersion(3);
    /// Messages and variants that are noted as of wire 4.
    pub const V4: WireVersion = WireVersion(4);
    /// The oldest version spoken.
    pub const OLDEST: WireVersion = WireVersion::V3;
    /// The newest version spoken.
    pub const NEWEST: WireVersion = WireVersion::V4;

    /// The number, as in `Welcome`.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The newest version that this side, `own`, and `peer`, which speaks `theirs` (oldest and newest), have in
    /// common.
    ///
    /// # Errors
    /// `VersionMismatch`, whose cause has both ranges and the side to be updated.
    pub fn agree(own: &str, peer: &str, theirs: (u16, u16)) -> Result<WireVersion, Error> {
        let (oldest, newest) = (theirs.0.max(*VERSIONS.start()), theirs.1.min(*VERSIONS.end()));
        if oldest <= newest {
            return Ok(WireVersion(newest));
        }
        let advice = match theirs {
            (oldest, newest) if oldest > newest => format!("{peer} named no range"),
            (oldest, _) if oldest > *VERSIONS.end() => format!("update renkei at {own}"),
            _ => format!("update renkei at {peer}"),
        };
        let ours = shown((*VERSIONS.start(), *VERSIONS.end()));
        let cause = format!("{own} speaks wire {ours}, {peer} wire {}: {advice}", shown(theirs));
        Err(Error::new(Code::VersionMismatch, "greet", peer, cause))
    }
}

impl fmt::Display for WireVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn shown((oldest, newest): (u16, u16)) -> String {
    if oldest == newest { oldest.to_string() } else { format!("{oldest} to {newest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_versions_are_spoken_and_the_newest_common_one_is_agreed_on() {
        assert_eq!(VERSIONS.count(), 2);
        let agreed = |theirs| WireVersion::agree("kek", "titech", theirs).unwrap();
        assert_eq!([agreed((2, 3)), agreed((3, 3))], [WireVersion::V3; 2]);
        assert_eq!([agreed((3, 4)), agreed((4, 4)), agreed((4, 5)), agreed((1, 9))], [WireVersion::V4; 4]);
    }

    #[test]
    fn the_error_names_both_ranges_and_the_side_to_be_updated() {
        let cause = |theirs| {
            let error = WireVersion::agree("kek", "titech", theirs).unwrap_err();
            assert_eq!(error.code, Code::VersionMismatch);
            error.cause
        };
        assert_eq!(cause((2, 2)), "kek speaks wire 3 to 4, titech wire 2: update renkei at titech");
        assert_eq!(cause((5, 9)), "kek speaks wire 3 to 4, titech wire 5 to 9: update renkei at kek");
        assert_eq!(cause((4, 3)), "kek speaks wire 3 to 4, titech wire 4 to 3: titech named no range");
    }
}
