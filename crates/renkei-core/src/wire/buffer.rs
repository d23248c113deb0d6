//! Messages about a PoP's buffer.

use crate::batch::batch;
use crate::buffer::Shortage;
use crate::ids::TransferId;
use crate::path::SiteName;
use crate::units::human;
use serde::{Deserialize, Serialize};

/// State of a transfer's request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RoomState {
    /// The room is reserved; the transfer may upload its files.
    Granted,
    /// The transfer was submitted already.
    HandedIn,
    /// It waits; a waiter that does not repeat its request for half a minute is dropped.
    Waits(Shortage),
}

/// Answer to a request for room, with the figures of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The state of the request.
    pub standing: RoomState,
    /// Bytes it asked for.
    pub wanted: u64,
    /// Bytes of the whole buffer.
    pub size: u64,
    /// Of these, bytes charged to all owners.
    pub charged: u64,
    /// Of these, bytes charged to the asker.
    pub own: u64,
    /// Quota of one owner in bytes.
    pub quota: u64,
}

impl Room {
    /// The reason why a transfer waits, with figures.
    pub fn waits(&self, site: &SiteName) -> Option<String> {
        let RoomState::Waits(shortage) = self.standing else { return None };
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

/// The part of a queued transfer that is in the buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffered {
    /// The site whose PoP has it.
    pub site: SiteName,
    /// Bytes on the disk there.
    pub bytes: u64,
    /// Whether the buffer has all of it, so that the source is no longer needed.
    pub whole: bool,
    /// Expiry, milliseconds since 1970.
    pub until_ms: u64,
}

/// Contents of a buffer: the asker's own pieces, or all of them for the administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferStatus {
    /// The site.
    pub site: SiteName,
    /// Bytes in all.
    pub size: u64,
    /// Quota of one owner in bytes.
    pub quota: u64,
    /// Bytes charged to all owners.
    pub charged: u64,
    /// Bytes on the disk.
    pub written: u64,
    /// Bytes charged to each owner the asker may see; an empty name stands for pieces without an owner.
    #[serde(deserialize_with = "batch")]
    pub owners: Vec<(String, u64)>,
    /// The reserved pieces.
    #[serde(deserialize_with = "batch")]
    pub pieces: Vec<Piece>,
    /// The transfers that wait for room, in queue order.
    #[serde(deserialize_with = "batch")]
    pub waiting: Vec<Waiter>,
}

/// The room reserved for one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The transfer.
    pub id: TransferId,
    /// The owner that is charged; empty for none.
    pub owner: String,
    /// Bytes charged.
    pub charged: u64,
    /// Bytes on the disk.
    pub written: u64,
    /// When the room was granted, milliseconds since 1970.
    pub since_ms: u64,
    /// Expiry: when it is removed, milliseconds since 1970.
    pub until_ms: u64,
    /// Its stage.
    pub stage: Stage,
}

/// Stages of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The upload is in progress.
    Filling,
    /// The upload is complete; the piece is to be forwarded.
    Whole,
    /// It is being removed.
    Leaving,
}

/// A transfer that waits for room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// The transfer.
    pub id: TransferId,
    /// The owner that asks.
    pub owner: String,
    /// Bytes wanted.
    pub bytes: u64,
    /// The shortage it waits for.
    pub shortage: Shortage,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_requests_are_shown_with_figures() {
        let site = SiteName::parse("titech").unwrap();
        let gib = 1 << 30;
        let room = Room {
            standing: RoomState::Waits(Shortage::Space(9 * gib)),
            wanted: 12 * gib,
            size: 50 * gib,
            charged: 47 * gib,
            own: 6 * gib,
            quota: 25 * gib,
        };
        let told = |standing| Room { standing, ..room }.waits(&site);
        let text = told(room.standing).unwrap();
        assert_eq!(text, "waiting for 12G of buffer at titech: 3.0G free of 50G, 41G held by others");
        let text = told(RoomState::Waits(Shortage::Quota(1))).unwrap();
        assert!(text.ends_with("your other transfers hold 6.0G of the 25G that one user may have"), "{text}");
        assert!(told(RoomState::Waits(Shortage::Turn)).unwrap().contains("others asked before"));
        assert_eq!((told(RoomState::Granted), told(RoomState::HandedIn)), (None, None));
    }
}
