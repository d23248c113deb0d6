//! The push of a follower's outbox to the home: in order, in batches, as soon as changes are stored here and the home
//! is reachable.
//!
//! The home skips changes that its log has, so a push is idempotent and is repeated after a lost connection. The
//! outcome of a change is in the log, and arrives with it; nothing is settled here.

use crate::volume::VolumeService;
use crate::volume::request::{about, is_followed};
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::SequencedChange;
use renkei_core::wire::message::Request;
use renkei_core::wire::volume::{AboutVolume, Descent, MOST_CHANGES, VolumeReply};
use renkei_core::wire::{parts, violation};
use renkei_volume::VolumeConfig;
use renkei_volume::follower::outbox::Outbox;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pipelined messages, so that a long RTT is not paid for each.
const AHEAD: usize = 16;
/// Minimum interval between two messages that are not full: successive changes are batched, and are not one
/// transaction each, neither at the home nor here.
const GATHER: Duration = Duration::from_millis(50);
/// Backoff while the home is unreachable, unless it is heard from before: initial and maximum.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Idle timeout of the connection.
const IDLE: Duration = Duration::from_secs(60);
/// Poll interval for the end of the subscription.
const TICK: Duration = Duration::from_secs(5);

/// Pushes changes until the volume is no longer followed.
pub(crate) fn hand_in(site: &Weak<VolumeService>, name: &str, facts: &VolumeConfig) {
    let Some(pending) = site.upgrade().and_then(|site| site.context.snapshot().pending(name, facts).ok())
    else {
        return;
    };
    let (mut calls, mut pauses) = (0, BACKOFF.begin());
    while let Some(here) = site.upgrade().filter(|site| is_followed(&site.context, facts)) {
        if !may_hand_in(&pending) || (pending.next_after(0).is_none() && !pending.wants_room()) {
            drop(here);
            calls = pending.wait_for_call(calls, TICK);
            continue;
        }
        match converse(&here, name, &pending, facts) {
            Ok(()) => pauses.reset(),
            Err(error) => {
                pending.on_unheard();
                let refused = error.code == Code::NotAllowed;
                tracing::info!(volume = name, home = %facts.home, %error, "changes are not submitted");
                drop(here);
                let pause = pauses.next(random_number());
                let wait = if refused { BACKOFF.limit(u32::MAX) } else { pause };
                if refused && let Some(enlisted) = pending.enlisted() {
                    // Pending changes stay, and are pushed when the grant is given again.
                    let noted = pending.enlist(enlisted.origin, false);
                    noted.unwrap_or_else(|error| tracing::warn!(volume = name, %error, "not noted"));
                }
                calls = pending.wait_for_call(pending.wait_for_call(calls, Duration::ZERO), wait);
            }
        }
    }
}

fn may_hand_in(pending: &Outbox) -> bool {
    pending.enlisted().is_some_and(|enlisted| enlisted.writes)
}

/// One connection: pushes pending and new changes until it is idle.
fn converse(
    volumes: &Arc<VolumeService>,
    name: &str,
    pending: &Outbox,
    facts: &VolumeConfig,
) -> Result<(), Error> {
    let connections = pending.connections();
    let (mut session, found) = volumes.home_of_log(facts, pending.tree())?;
    if let Some((_, Descent::Until(until))) = found {
        // The changes refer to another tree; the log follower compares the two first.
        let cause = format!("the logs are one up to record {until} alone");
        return Err(Error::new(Code::HistoryDiffers, "hand in", name, cause));
    }
    let (mut sent, mut calls, mut quiet) =
        (0, pending.wait_for_call(u64::MAX, Duration::ZERO), Duration::ZERO);
    while is_followed(&volumes.context, facts) && may_hand_in(pending) {
        if pending.connections() != connections {
            return Ok(());
        }
        if pending.wants_room() {
            volumes.ask_duties(&mut session, name, facts, true)?;
        }
        let changes = pending.next_kept(sent, MOST_CHANGES * AHEAD)?;
        if changes.is_empty() {
            if quiet >= IDLE {
                return Ok(());
            }
            calls = pending.wait_for_call(calls, TICK);
            quiet += TICK;
            continue;
        }
        (sent, quiet) = (changes.last().map_or(sent, |last| last.number), Duration::ZERO);
        let (begun, is_full) = (Instant::now(), changes.len() >= MOST_CHANGES);
        let version = session.version();
        let changes = changes.into_iter().map(|change| change.for_version(version)).collect();
        let messages = parts(changes, MOST_CHANGES).into_iter();
        session.ask_each(messages.map(|changes| submit(facts, changes)), |reply| match about(reply?)? {
            VolumeReply::Taken => Ok(()),
            other => Err(violation("submit", format_args!("{other:?}"))),
        })?;
        if !is_full {
            std::thread::sleep(GATHER.saturating_sub(begun.elapsed()));
        }
    }
    Ok(())
}

fn submit(facts: &VolumeConfig, changes: Vec<SequencedChange>) -> Request {
    Request::Volume(AboutVolume::Submit { volume: facts.id, changes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::namespace::{Change, Dentry, Name, Origin, ROOT};
    use renkei_core::path::SiteName;
    use renkei_core::wire::{decode, encode};

    #[test]
    fn many_changes_go_in_messages_that_the_home_reads() {
        let at = Dentry { dir: ROOT, name: Name(b"x".to_vec()) };
        let change = Change::Remove { at, seen: None, time: Default::default() };
        let made = |number| SequencedChange { origin: Origin(1), number, change: change.clone() };
        let kek = SiteName::parse("kek").unwrap();
        let facts = VolumeConfig::new([7; 16], kek, "pool", String::new(), "alice".into());
        let messages = parts((1..=2000).map(made).collect(), MOST_CHANGES);
        assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), 2000);
        for changes in messages {
            let wanted = submit(&facts, changes);
            assert_eq!(decode::<Request>("request", &encode(&wanted)).unwrap(), wanted);
        }
    }
}
