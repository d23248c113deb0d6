//! The lineage of a volume's log: its incarnations at the home, and how a follower detects that it has followed
//! another log.
//!
//! A home that was restored from a backup, or lost its tree, continues with a log whose records differ from those
//! that were followed. Each log has an incarnation: a random number, drawn when the log begins and when it continues
//! after a restore, with the last record that it has in common with the one before. A follower reports the
//! incarnation that it followed, its last record and the digest of that record; the digest also reveals a restore
//! that was not noted.

use renkei_catalogue::{MARK, TreeNote, VolumeTree, record_digest};
use renkei_core::error::{Code, Error};
use renkei_core::wire::decode;
use renkei_core::wire::volume::{Descent, Incarnation};
use serde::{Deserialize, Serialize};

/// The note in the home's tree with the lineage.
pub(crate) const LINEAGE: TreeNote<Lineage> = TreeNote::of("lineage", &[decode]);
/// The note in a follower's copy with the incarnation that it follows.
pub(crate) const FOLLOWED: TreeNote<Incarnation> = TreeNote::of("incarnation", &[decode]);
/// The note with the incarnations that it followed before.
pub(crate) const FORMER: TreeNote<Vec<(Incarnation, u64)>> = TreeNote::of("former incarnations", &[decode]);
/// Former incarnations that are kept.
const MOST_FORMER: usize = 16;

/// The incarnations of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The current incarnation.
    pub now: Incarnation,
    /// Former incarnations, each with the last record that the next one shares with it.
    before: Vec<(Incarnation, u64)>,
}

/// A follower's description of its copy of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The incarnation that it followed; none if it never heard of one.
    pub incarnation: Option<Incarnation>,
    /// Its last record.
    pub after: u64,
    /// The digest of that record, if it is known.
    pub mark: Option<[u8; 32]>,
}

impl Lineage {
    #[cfg(test)]
    pub(crate) fn of(now: Incarnation, before: Vec<(Incarnation, u64)>) -> Self {
        Lineage { now, before }
    }

    /// The lineage of a volume's log at its home; a log without one gets the incarnation `fresh`.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn of_home(tree: &VolumeTree, fresh: Incarnation) -> Result<Self, Error> {
        if let Some(lineage) = LINEAGE.read(tree)? {
            return Ok(lineage);
        }
        let lineage = Lineage { now: fresh, before: Vec::new() };
        LINEAGE.write(tree, &lineage)?;
        Ok(lineage)
    }

    /// Notes that the tree was restored: its log continues as a new incarnation.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn restored(tree: &VolumeTree, fresh: Incarnation) -> Result<(), Error> {
        let mut lineage = Lineage::of_home(tree, fresh)?;
        if lineage.now != fresh {
            lineage.before.push((lineage.now, tree.position()?.seq));
            lineage.now = fresh;
            LINEAGE.write(tree, &lineage)?;
        }
        Ok(())
    }

    /// The last record that this log shares with an incarnation; none if the incarnation is not in its lineage.
    fn common(&self, incarnation: &Incarnation) -> Option<u64> {
        if self.now == *incarnation {
            return Some(u64::MAX);
        }
        let from = self.before.iter().position(|(known, _)| known == incarnation)?;
        self.before[from..].iter().map(|(_, seq)| *seq).min()
    }

    /// Compares a follower's copy with this log, which ends at `last`; `mark_here` is the digest of the follower's
    /// last record in this log, if it is still here.
    pub fn judge(&self, claim: &Claim, last: u64, mark_here: Option<[u8; 32]>) -> Descent {
        let common = claim.incarnation.map_or(Some(u64::MAX), |known| self.common(&known));
        let Some(common) = common else { return Descent::Until(0) };
        if claim.after > common {
            return Descent::Until(common);
        }
        let differs = claim.mark.zip(mark_here).is_some_and(|(theirs, ours)| theirs != ours);
        // The first different record is not known.
        if claim.after > last || differs { Descent::Until(0) } else { Descent::Same }
    }
}

/// The digest of a record, if the log goes back so far.
///
/// # Errors
/// `CatalogueFailed`.
pub fn mark_at(tree: &VolumeTree, seq: u64) -> Result<Option<[u8; 32]>, Error> {
    let Some(before) = seq.checked_sub(1) else { return Ok(None) };
    match tree.log(before, 1) {
        Ok(records) => Ok(records.first().map(record_digest)),
        Err(error) if error.code == Code::RecordsForgotten => Ok(None),
        Err(error) => Err(error),
    }
}

/// The description of a follower's copy.
///
/// # Errors
/// `CatalogueFailed`.
pub fn claim(tree: &VolumeTree) -> Result<Claim, Error> {
    let after = tree.position()?.seq;
    let incarnation = FOLLOWED.read(tree)?;
    let mark = MARK.read(tree)?.filter(|(seq, _)| *seq == after).map(|(_, mark)| mark);
    Ok(Claim { incarnation, after, mark })
}

/// Descriptions by the logs that a follower followed before the present one, the last first: the incarnation, and the
/// last record that all logs since share. They help where the home does not know the present log, since the same
/// backup was restored twice.
///
/// # Errors
/// `CatalogueFailed`.
pub fn former_claims(tree: &VolumeTree) -> Result<Vec<Claim>, Error> {
    let claim = |(known, after)| Claim { incarnation: Some(known), after, mark: None };
    Ok(former(tree)?.into_iter().rev().map(claim).collect())
}

fn former(tree: &VolumeTree) -> Result<Vec<(Incarnation, u64)>, Error> {
    Ok(FORMER.read(tree)?.unwrap_or_default())
}

/// Notes that a follower's copy is of this incarnation from now on, with all its records.
///
/// # Errors
/// `CatalogueFailed`.
pub fn note_followed(tree: &VolumeTree, incarnation: Incarnation) -> Result<(), Error> {
    if claim(tree)?.incarnation == Some(incarnation) {
        return Ok(());
    }
    let notes = followed_notes(tree, incarnation, tree.position()?.seq)?;
    notes.iter().rev().try_for_each(|(key, value)| tree.set_note(key, value))
}

/// The notes for that; the records up to `until` are shared with the former log.
pub(super) fn followed_notes(
    tree: &VolumeTree,
    incarnation: Incarnation,
    until: u64,
) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut former = former(tree)?;
    former.extend(claim(tree)?.incarnation.map(|known| (known, until)));
    former.iter_mut().for_each(|(_, after)| *after = (*after).min(until));
    former.retain(|(known, after)| *after > 0 && *known != incarnation);
    former.drain(..former.len().saturating_sub(MOST_FORMER));
    // The digest of the last record is that of the former log, even if the new one has as many records.
    let mark = if until < tree.position()?.seq { Some((0u64, [0u8; 32])) } else { None };
    let mut notes = vec![FOLLOWED.row(&incarnation), FORMER.row(&former)];
    notes.extend(mark.map(|mark| MARK.row(&mark)));
    Ok(notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage() -> Lineage {
        Lineage { now: [3; 16], before: vec![([1; 16], 100), ([2; 16], 80)] }
    }

    fn judged(incarnation: u8, after: u64, marks: Option<(u8, u8)>) -> Descent {
        let incarnation = (incarnation > 0).then_some([incarnation; 16]);
        let claim = Claim { incarnation, after, mark: marks.map(|(theirs, _)| [theirs; 32]) };
        lineage().judge(&claim, 90, marks.map(|(_, ours)| [ours; 32]))
    }

    #[test]
    fn records_belong_to_this_log_up_to_its_restore() {
        assert_eq!(judged(3, 90, Some((7, 7))), Descent::Same);
        assert_eq!(judged(2, 80, None), Descent::Same);
        assert_eq!(judged(2, 81, None), Descent::Until(80));
        // Restored twice: the second backup is older than the first.
        assert_eq!(judged(1, 90, None), Descent::Until(80));
        assert_eq!(judged(9, 5, None), Descent::Until(0));
    }

    #[test]
    fn the_last_record_of_the_old_log_is_not_part_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let tree = renkei_catalogue::Trees::open("", &renkei_config::home::Home::at(folder.path())).unwrap();
        let tree = tree.tree([7; 16]).unwrap();
        let seq = tree.decide(&crate::deep_tree::deep()[..2]).unwrap().len() as u64;
        MARK.write(&tree, &(seq, [5u8; 32])).unwrap();
        note_followed(&tree, [1; 16]).unwrap();
        assert_eq!(
            claim(&tree).unwrap(),
            Claim { incarnation: Some([1; 16]), after: seq, mark: Some([5; 32]) }
        );
        // The home was restored, and its log has grown to as many records.
        for (key, value) in followed_notes(&tree, [2; 16], seq - 1).unwrap() {
            tree.set_note(&key, &value).unwrap();
        }
        assert_eq!(claim(&tree).unwrap(), Claim { incarnation: Some([2; 16]), after: seq, mark: None });
        let former = Claim { incarnation: Some([1; 16]), after: seq - 1, mark: None };
        assert_eq!(former_claims(&tree).unwrap(), [former]);
    }

    #[test]
    fn a_silent_restore_is_detected_from_the_records() {
        assert_eq!(judged(3, 91, None), Descent::Until(0));
        assert_eq!(judged(3, 90, Some((7, 8))), Descent::Until(0));
        // A follower from before there were incarnations.
        assert_eq!(judged(0, 90, None), Descent::Same);
        assert_eq!(judged(0, 91, None), Descent::Until(0));
    }
}
