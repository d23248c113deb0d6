//! Verdicts on offered files: a file that is here already need not be sent again.

use super::dest_dirs::DestDirs;
use super::incoming::finish_file;
use super::outgoing::digest_file;
use super::receive::{OpenFile, Session, ends_session};
use renkei_core::entry::{Entry, EntryKind, FileTime, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::{SlotHasher, slot_count, slot_range};
use renkei_core::mover::receiver::{Done, PriorState, slot_ranges};
use renkei_core::wire::message::{Existing, OfferItem, Verdict};
use renkei_store::{Detail, WriteFile};
use std::collections::BTreeMap;

/// Bytes read at once when written extents are checked.
const CHECK_BYTES: usize = 1 << 20;

/// The verdict on one offered file.
///
/// # Errors
/// Errors that would meet every further file too: on a full disk the written part of this file is kept for the next
/// attempt.
pub(super) fn judge(session: &Session, places: &mut DestDirs, item: &OfferItem) -> Result<Verdict, Error> {
    let verdict = match try_judge(session, places, item) {
        Ok(verdict) => verdict,
        Err(error) if error.code == Code::PathNotFound => Verdict::Want,
        Err(error) if ends_session(error.code) => return Err(session.name_side(error)),
        Err(error) => {
            session.receiver(|receiver| receiver.on_failed(&item.entry.path));
            Verdict::Refuse(session.name_side(error))
        }
    };
    if matches!(verdict, Verdict::Want | Verdict::Partial(_)) {
        session.note_wanted(&item.entry.path);
    }
    Ok(verdict)
}

fn try_judge(session: &Session, places: &mut DestDirs, item: &OfferItem) -> Result<Verdict, Error> {
    let EntryKind::File { stamp, .. } = item.entry.kind else {
        return Err(renkei_core::wire::violation("offer", "only files are offered"));
    };
    session.note_name(&item.entry.path);
    match session.left(item) {
        PriorState::Finished { ino } if is_copy(places, &item.entry, stamp, Some(ino))? => {
            return Ok(Verdict::Have);
        }
        PriorState::Partial { temp_ino, slots, at_rest } => {
            return resume(session, places, item, temp_ino, slots, at_rest);
        }
        _ => {}
    }
    let same = match session.existing() {
        Existing::Replace => false,
        Existing::SameStamp => is_copy(places, &item.entry, stamp, None)?,
        Existing::SameContent => has_content(places, item)?,
    };
    if !same {
        return Ok(Verdict::Want);
    }
    if !session.dry_run() {
        refresh_meta(session, places, item)?;
    }
    Ok(Verdict::Have)
}

/// Whether the final name holds a file of this size and time, and this inode if one is given.
fn is_copy(places: &mut DestDirs, entry: &Entry, source: Stamp, ino: Option<u64>) -> Result<bool, Error> {
    let place = places.find(&entry.path)?;
    let (found, raw) = place.dir.entry(place.name, Detail::Basic)?;
    let same = match found.kind {
        EntryKind::File { stamp, .. } => (stamp.size, stamp.mtime) == (source.size, source.mtime),
        _ => false,
    };
    Ok(same && ino.is_none_or(|ino| ino == raw.ino))
}

fn has_content(places: &mut DestDirs, item: &OfferItem) -> Result<bool, Error> {
    let Some(digest) = item.digest else { return Ok(false) };
    let place = places.find(&item.entry.path)?;
    let (found, _) = place.dir.entry(place.name, Detail::Basic)?;
    if found.size() != item.entry.size() || !matches!(found.kind, EntryKind::File { .. }) {
        return Ok(false);
    }
    let file = place.dir.open_read(place.name)?;
    Ok(digest_file(&*file)? == digest)
}

fn refresh_meta(session: &Session, places: &mut DestDirs, item: &OfferItem) -> Result<(), Error> {
    let place = places.find(&item.entry.path)?;
    let (found, _) = place.dir.entry(place.name, Detail::Full)?;
    if found.meta == item.entry.meta {
        return Ok(());
    }
    let lost = place.dir.set_meta(place.name, &item.entry.meta)?;
    session.report_lost(item.id, &item.entry.path, lost)
}

/// Resumes a partly written file, if its temporary file is still the one that the journal names.
fn resume(
    session: &Session,
    places: &mut DestDirs,
    item: &OfferItem,
    temp_ino: u64,
    mut slots: BTreeMap<u32, [u8; 32]>,
    at_rest: Option<FileTime>,
) -> Result<Verdict, Error> {
    let temp = places.temp(&item.entry.path);
    let place = places.find(&item.entry.path)?;
    let (found, raw) = match place.dir.entry(&temp, Detail::Basic) {
        Err(error) if error.code == Code::PathNotFound => {
            return renamed(session, places, item, temp_ino, slots);
        }
        found => found?,
    };
    if raw.ino != temp_ino || found.size() != item.entry.size() || session.dry_run() {
        return Ok(Verdict::Want);
    }
    let has_room = |slots: &BTreeMap<u32, [u8; 32]>| {
        // A whole file does not stay open.
        slots.len() as u32 == slot_count(item.entry.size())
            || session.receiver(|receiver| receiver.may_resume())
    };
    if !has_room(&slots) {
        return Ok(Verdict::Want);
    }
    let file = place.dir.create_temp(&temp, true)?;
    if file.stamp()?.ino != temp_ino {
        return Ok(Verdict::Want);
    }
    // The earlier run may have been killed during a write, or the file may have been changed since.
    if session.checks_written() || at_rest != Some(raw.ctime) {
        let size = item.entry.size();
        slots.retain(|slot, digest| reads_back(&*file, *slot, size).is_ok_and(|found| found == *digest));
    }
    if slots.is_empty() || !has_room(&slots) {
        return Ok(Verdict::Want);
    }
    if !session.receiver(|receiver| receiver.on_resumed(item.id, &item.entry, slots.clone())) {
        return Ok(Verdict::Want);
    }
    let reservation = session.reservation(&item.entry, &*file, 512 * raw.blocks)?;
    let opened = OpenFile::new(place.dir, temp, file, item.entry.size(), reservation)?;
    if session.receiver(|receiver| receiver.is_whole(item.id)) {
        finish_file(session, item.id, &item.entry, &*opened.file)?;
        session.note_at_rest(item.id, &*opened.file);
        let EntryKind::File { stamp, .. } = item.entry.kind else { return Ok(Verdict::Want) };
        let done = Done { id: item.id, path: item.entry.path.clone(), copy_of: Some((stamp, temp_ino)) };
        session.on_written(done);
    } else {
        session.keep_open(item.id, opened);
    }
    Ok(Verdict::Partial(slot_ranges(slots.into_keys())))
}

/// Resumes a file that got its final name, but was not acknowledged, before the earlier run ended.
fn renamed(
    session: &Session,
    places: &mut DestDirs,
    item: &OfferItem,
    ino: u64,
    slots: BTreeMap<u32, [u8; 32]>,
) -> Result<Verdict, Error> {
    let EntryKind::File { stamp, .. } = item.entry.kind else { return Ok(Verdict::Want) };
    let whole = slots.len() as u32 == slot_count(stamp.size);
    if !whole || !is_copy(places, &item.entry, stamp, Some(ino))? {
        return Ok(Verdict::Want);
    }
    session.on_placed(Done { id: item.id, path: item.entry.path.clone(), copy_of: Some((stamp, ino)) });
    Ok(Verdict::Partial(slot_ranges(slots.into_keys())))
}

/// Digest of an extent as read back from the file.
fn reads_back(file: &dyn WriteFile, slot: u32, size: u64) -> Result<[u8; 32], Error> {
    let range = slot_range(slot, size);
    let mut hasher = SlotHasher::new(slot, size);
    let mut buf = vec![0; CHECK_BYTES];
    let mut at = range.start;
    while at < range.end {
        let want = (range.end - at).min(CHECK_BYTES as u64) as usize;
        let count = file.read_at(&mut buf[..want], at)?;
        if count == 0 {
            return Err(Error::new(Code::ReadBackMismatch, "read back", slot, "shorter than written"));
        }
        assert!(hasher.update(at, &buf[..count]), "reads ascend within the slot");
        at += count as u64;
    }
    Ok(hasher.finish())
}
