//! Application of the home's log to the tree of a follower, and the outbox: own changes are stored until the log has
//! them.

use super::database::Value;
use super::stored::pack;
use super::tree::{HeldReplica, Position, VolumeTree};
use super::tree_commit::stored;
use super::tree_note::TreeNote;
use super::tree_rows::{BulkStatement, Script, store};
use renkei_core::error::Error;
use renkei_core::namespace::{Delta, NodeId, Origin, Record, SequencedChange};
use renkei_core::wire::{decode, encode, violation};
use std::collections::BTreeMap;

/// Key of the note in a copy with the number and the digest of its last record.
pub const MARK: TreeNote<(u64, [u8; 32])> = TreeNote::of("mark", &[decode]);

/// The digest of a record, the same at all sites: also at those that were not told of extended attributes.
pub fn record_digest(record: &Record) -> [u8; 32] {
    *blake3::hash(&encode(&record.clone().without_xattrs())).as_bytes()
}

impl VolumeTree {
    /// Applies records, and deletes pending changes of `origin`, this site, that they settle. Records that the tree
    /// contains already are skipped.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` for a gap in the records.
    pub fn follow(&self, origin: Origin, records: &[Record]) -> Result<(), Error> {
        self.follow_with(origin, records, &[])
    }

    /// The same, together with replica rows of this site.
    ///
    /// # Errors
    /// As [`VolumeTree::follow`].
    pub fn follow_with(
        &self,
        origin: Origin,
        records: &[Record],
        held: &[(NodeId, Option<HeldReplica>)],
    ) -> Result<(), Error> {
        let (work, mut position) = self.run("follow", || self.begin())?;
        if position.is_coming() {
            return Err(violation("volume", "a record before the last page"));
        }
        let (new, before) = (news(&position, records)?, position.seq);
        let effects = all_effects(new);
        position.note(new);
        let own = position.taken.get(&origin).copied().unwrap_or(0);
        // A site without pending changes continues after the last of its changes in the log.
        position.number = position.number.max(own);
        let mut script = Script::default();
        store(&mut script, self.shown(), effects);
        self.forget_pending(&mut script, own);
        self.put_held(&mut script, held);
        if let Some(last) = new.last() {
            let (key, value) = MARK.row(&(last.seq, record_digest(last)));
            self.put_note(&mut script, &key, value);
        }
        self.store_position(&mut script, &position);
        self.run("follow", || script.commit(work))?;
        self.count_again(before, position.seq)
    }

    /// Deletes pending changes up to `number`: the log has them.
    pub(super) fn forget_pending(&self, script: &mut Script, number: u64) {
        script.add(&FORGET_PENDING, self.scope, vec![[stored(number)]]);
    }

    /// Stores own changes until the log has them; changes that are stored already are not replaced.
    pub fn keep(&self, changes: &[SequencedChange]) -> Result<(), Error> {
        self.keep_with(changes, &[])
    }

    /// The same, together with replica rows.
    pub fn keep_with(
        &self,
        changes: &[SequencedChange],
        held: &[(NodeId, Option<HeldReplica>)],
    ) -> Result<(), Error> {
        let last = changes.iter().map(|made| made.number).max().unwrap_or(0);
        let rows = changes.iter().map(|made| [stored(made.number), Value::Bytes(pack(made))]).collect();
        self.run("keep", || {
            let (work, mut position) = self.begin()?;
            position.number = position.number.max(last);
            let mut script = Script::default();
            script.add(&KEEP, self.scope, rows);
            self.put_held(&mut script, held);
            self.store_position(&mut script, &position);
            script.commit(work)
        })
    }
}

const FORGET_PENDING: BulkStatement = BulkStatement {
    before: "DELETE FROM tree_pending WHERE ",
    row: "(volume = $1 AND number <= ?)",
    between: " OR ",
    after: "",
};
pub(super) const KEEP: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_pending (volume, number, change) VALUES ",
    row: "($1, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, number) DO NOTHING",
};

/// The records after the position of the tree.
fn news<'r>(position: &Position, records: &'r [Record]) -> Result<&'r [Record], Error> {
    let begin = records.iter().position(|record| record.seq > position.seq).unwrap_or(records.len());
    let new = &records[begin..];
    for (record, seq) in new.iter().zip(position.seq + 1..) {
        if record.seq != seq {
            return Err(violation("volume", format_args!("record {} in place of {seq}", record.seq)));
        }
    }
    Ok(new)
}

/// The combined effects of records.
fn all_effects(records: &[Record]) -> Delta {
    let (mut nodes, mut names) = (BTreeMap::new(), BTreeMap::new());
    for effects in records.iter().filter_map(|record| record.outcome.as_ref().ok()) {
        nodes.extend(effects.nodes.iter().cloned());
        names.extend(effects.names.iter().cloned());
    }
    Delta { nodes: nodes.into_iter().collect(), names: names.into_iter().collect() }
}
