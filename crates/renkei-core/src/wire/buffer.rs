//! What is asked and told about a PoP's buffer.

use super::message::{TransferId, batch};
use crate::buffer::Shortage;
use crate::path::SiteName;
use crate::units::human;
use serde::{Deserialize, Serialize};

/// What becomes of a transfer that asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It has it, and may send its files there.
    Granted,
    /// It was handed in already.
    HandedIn,
    /// It waits; who does not ask again for half a minute waits no longer.
    Waits(Shortage),
}

/// The room there is for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// What becomes of it.
    pub standing: Standing,
    /// Bytes it asked for.
    pub wanted: u64,
    /// Bytes of the whole buffer.
    pub size: u64,
    /// Of these, bytes charged to anybody.
    pub charged: u64,
    /// Of these, bytes charged to whoever asks.
    pub own: u64,
    /// Bytes that one owner may have.
    pub quota: u64,
}

impl Room {
    /// For what a transfer waits, with figures.
    pub fn waits(&self, site: &SiteName) -> Option<String> {
        let Standing::Waits(shortage) = self.standing else { return None };
        let Room { wanted, size, charged, own, quota, .. } = *self;
        let (free, others) = (human(size.saturating_sub(charged)), human(charged.saturating_sub(own)));
        let (size, own, quota) = (human(size), human(own), human(quota));
        let why = match shortage {
            Shortage::Space(_) => format!("{free} free of {size}, {others} held by others"),
            Shortage::Quota(_) => {
                format!("your other transfers hold {own} of the {quota} that one user may have")
            }
            Shortage::Turn => format!("others asked before; {free} free of {size}"),
        };
        Some(format!("waiting for {} of buffer at {site}: {why}", human(wanted)))
    }
}

/// What of a queued transfer is in the buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffered {
    /// The site whose PoP has it.
    pub site: SiteName,
    /// Bytes on the disk there.
    pub bytes: u64,
    /// Whether that is all of it, so that the source is needed no more.
    pub whole: bool,
    /// How long it is kept, milliseconds since 1970.
    pub until_ms: u64,
}

/// A buffer as it is told to somebody: own pieces, or all to the administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferStatus {
    /// The site.
    pub site: SiteName,
    /// Bytes in all.
    pub size: u64,
    /// Bytes that one owner may have.
    pub quota: u64,
    /// Bytes charged, to anybody.
    pub charged: u64,
    /// Bytes on the disk.
    pub written: u64,
    /// Bytes charged to each owner that may be seen; what is nobody's under no name.
    #[serde(deserialize_with = "batch")]
    pub owners: Vec<(String, u64)>,
    /// What is held.
    #[serde(deserialize_with = "batch")]
    pub pieces: Vec<Piece>,
    /// Who waits for room, in their order.
    #[serde(deserialize_with = "batch")]
    pub waiting: Vec<Waiter>,
}

/// The room of one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The transfer.
    pub id: TransferId,
    /// Who is charged; empty for nobody.
    pub owner: String,
    /// Bytes charged.
    pub charged: u64,
    /// Bytes on the disk.
    pub written: u64,
    /// Since when it has room, milliseconds since 1970.
    pub since_ms: u64,
    /// When it is removed if it is there still.
    pub until_ms: u64,
    /// What becomes of it.
    pub stage: Stage,
}

/// What becomes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It is coming.
    Filling,
    /// All of it is there, to be forwarded.
    Whole,
    /// It is being removed.
    Leaving,
}

/// A transfer that waits for room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The transfer.
    pub id: TransferId,
    /// Who asks.
    pub owner: String,
    /// Bytes wanted.
    pub bytes: u64,
    /// What it waits for.
    pub shortage: Shortage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_is_told_with_figures() {
        let site = SiteName::parse("titech").unwrap();
        let gib = 1 << 30;
        let room = Room {
            standing: Standing::Waits(Shortage::Space(9 * gib)),
            wanted: 12 * gib,
            size: 50 * gib,
            charged: 47 * gib,
            own: 6 * gib,
            quota: 25 * gib,
        };
        let told = |standing| Room { standing, ..room }.waits(&site);
        let text = told(room.standing).unwrap();
        assert_eq!(text, "waiting for 12G of buffer at titech: 3.0G free of 50G, 41G held by others");
        let text = told(Standing::Waits(Shortage::Quota(1))).unwrap();
        assert!(text.ends_with("your other transfers hold 6.0G of the 25G that one user may have"), "{text}");
        assert!(told(Standing::Waits(Shortage::Turn)).unwrap().contains("others asked before"));
        assert_eq!((told(Standing::Granted), told(Standing::HandedIn)), (None, None));
    }
}
