//! The switch of a copy to the tree of another log, after the home was restored from a backup.

use super::database::Value;
use super::stored::pack;
use super::transfers::moment;
use super::tree::{HeldReplica, Position, VolumeTree, position_at};
use super::tree_apply::KEEP;
use super::tree_commit::stored;
use super::tree_rows::Script;
use renkei_core::error::Error;
use renkei_core::namespace::{NodeId, Origin, SequencedChange};
use renkei_core::wire::violation;
use std::sync::atomic::Ordering;

/// The new state of a copy, in place of all that it had.
#[derive(Default)]
pub struct LogSwitch {
    /// Own changes for the home, to be pending.
    pub changes: Vec<SequencedChange>,
    /// Replica rows.
    pub held: Vec<(NodeId, HeldReplica)>,
    /// The last node number of this site that was drawn.
    pub given: u64,
    /// Notes by key.
    pub notes: Vec<(String, Vec<u8>)>,
}

impl VolumeTree {
    /// Makes the shadow tree, which is of another log, the visible one, and deletes all state of the old log, in one
    /// transaction.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` if the copy is not whole.
    pub fn begin_again(&self, origin: Origin, late: &VolumeTree, anew: &LogSwitch) -> Result<(), Error> {
        let begun = self.run("show", || {
            let (mut work, _) = self.begin()?;
            let new = position_at(&late.lock().fetch(&mut work)?)?;
            Ok((work, new))
        });
        let (mut work, new) = begun?;
        if !new.is_whole() {
            return Err(violation("volume", "a copy that is not whole"));
        }
        let (position, shown) = (after(new, origin, anew), late.shown().volume);
        self.run("show", || {
            let sql = "UPDATE tree_volumes SET shown = $2, whole = $3, coming = NULL WHERE number = $1";
            self.ask(sql).bind(shown).bind(moment(position.whole)).execute(&mut work)?;
            for sql in [
                "DELETE FROM tree_pending WHERE volume = $1",
                "DELETE FROM tree_held WHERE volume = $1",
                "DELETE FROM tree_origins WHERE volume = $1",
            ] {
                self.ask(sql).execute(&mut work)?;
            }
            let mut script = Script::default();
            let row = |made: &SequencedChange| [stored(made.number), Value::Bytes(pack(made))];
            script.add(&KEEP, self.scope, anew.changes.iter().map(row).collect());
            let held: Vec<_> = anew.held.iter().map(|(id, held)| (*id, Some(held.clone()))).collect();
            self.put_held(&mut script, &held);
            anew.notes.iter().for_each(|(key, value)| self.put_note(&mut script, key, value.clone()));
            self.store_position(&mut script, &position);
            script.execute(&mut work)?;
            late.ask("UPDATE tree_volumes SET id = NULL WHERE number = $1").execute(&mut work)?;
            late.ask("DELETE FROM tree_origins WHERE volume = $1").execute(&mut work)?;
            work.commit()
        })?;
        self.shown.store(shown, Ordering::Release);
        self.count_again(0, position.seq)
    }

    /// Raises the node numbers that this site draws from now on, as `origin`, to at least `least`: a site that
    /// remembers nodes of a log that was lost must not take new ones for them.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn give_from(&self, origin: Origin, least: u64) -> Result<(), Error> {
        let sql = "INSERT INTO tree_origins (volume, origin, taken, given) VALUES ($1, $2, 0, $3) \
            ON CONFLICT (volume, origin) DO UPDATE SET given = excluded.given \
            WHERE tree_origins.given < excluded.given";
        self.write("write", |connection| {
            let query = self.ask(sql).bind(i64::from(origin.0)).bind(moment(least));
            query.execute(connection).map(drop)
        })
    }
}

/// The position of the copy after the switch.
fn after(new: Position, origin: Origin, anew: &LogSwitch) -> Position {
    let taken = new.taken.get(&origin).copied().unwrap_or(0);
    let number = anew.changes.last().map_or(taken, |last| last.number);
    let mut given = new.given;
    let own = given.entry(origin).or_default();
    *own = anew.given.max(*own);
    Position { given, number, ..new }
}
