//! Requests about volumes between PoPs.

use crate::Context;
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, VolumeReply};
use renkei_mover::connect::dial::Session;
use renkei_volume::VolumeConfig;
use renkei_volume::grant::folders;
use std::time::Duration;

/// Duration of a long poll for records, which also serves as a keep-alive.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Poll interval of the log: a daemon that shares the database sends no notifications of its writes.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Sends a request about a volume to a PoP.
pub(crate) fn ask(session: &mut Session, about: AboutVolume) -> Result<VolumeReply, Error> {
    self::about(session.ask(Request::Volume(about))?)
}

pub(crate) fn about(reply: Reply) -> Result<VolumeReply, Error> {
    match reply {
        Reply::Volume(reply) => Ok(reply),
        other => Err(violation("volume", format_args!("{other:?}"))),
    }
}

/// The error for a home whose log ends before the last record of the copy.
pub(crate) fn shorter(name: &str, home: &SiteName, seq: u64, last: u64) -> Error {
    let cause = format!("record {seq} was followed, and the log of {home} ends at {last}");
    Error::new(Code::HistoryDiffers, "follow", name, cause)
}

/// The volumes of other homes that this site follows.
pub(crate) fn followed(snapshot: &Snapshot) -> impl Iterator<Item = (&String, &VolumeConfig)> {
    snapshot.volumes.iter().filter(|(_, facts)| snapshot.follows(facts))
}

/// Whether a volume is still followed.
pub(crate) fn is_followed(context: &Context, facts: &VolumeConfig) -> bool {
    followed(&context.last_snapshot()).any(|(_, now)| now.id == facts.id && now.home == facts.home)
}

/// Whether a PoP may read or write a volume as a follower.
pub(crate) fn may(facts: &VolumeConfig, principal: &Principal, need: Need) -> bool {
    matches!(principal, Principal::Host(_))
        && folders(&facts.grant, principal, need).iter().any(RelPath::is_root)
}
