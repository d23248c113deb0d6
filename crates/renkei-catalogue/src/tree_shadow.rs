//! The shadow tree of a follower that is bootstrapped: a copy beside the visible tree.
//!
//! Nodes and names of the shadow have a volume number of their own in the same tables, so that pages and records are
//! stored there while the old copy is read. When the shadow is complete, one small transaction makes it the visible
//! tree. What this site keeps beside the tree, such as replica rows, stays: nodes have the same numbers in both.

use super::database::query;
use super::transfers::moment;
use super::tree::{Position, Tail, VolumeTree, position_at};
use super::tree_rows::{Scope, Script};
use super::trees::{beside, number};
use renkei_core::error::Error;
use renkei_core::namespace::Origin;
use renkei_core::wire::violation;
use std::sync::atomic::{AtomicI64, Ordering};

/// Rows removed in one transaction.
const REMOVED_AT_ONCE: i64 = 10_000;

impl VolumeTree {
    /// The shadow tree, created if there is none.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn late_copy(&self) -> Result<VolumeTree, Error> {
        let id = beside(self.id);
        let (volume, shown) = self.run("open", || number(&self.writers, id))?;
        let late = VolumeTree {
            database: self.database.clone(),
            id,
            scope: Scope { volume, ..self.scope },
            shown: AtomicI64::new(shown),
            writers: self.writers.clone(),
            readers: self.readers.clone(),
            tail: Tail::default(),
        };
        late.with_root()
    }

    /// Whether a shadow tree exists.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn has_late_copy(&self) -> Result<bool, Error> {
        let sql = "SELECT number FROM tree_volumes WHERE id = $1";
        self.read("read", |connection| {
            let query = query(sql).bind(beside(self.id).to_vec());
            Ok(query.first(connection)?.is_some())
        })
    }

    /// Makes the shadow tree the visible one, and continues from its position.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` if the copy is not whole.
    pub fn show_late(&self, origin: Origin, late: &VolumeTree) -> Result<(), Error> {
        let begun = self.run("show", || {
            let (mut work, before) = self.begin()?;
            let new = position_at(&late.lock().fetch(&mut work)?)?;
            Ok((work, before, new))
        });
        let (mut work, before, new) = begun?;
        if !new.is_whole() {
            return Err(violation("volume", "a copy that is not whole"));
        }
        let (position, shown) = (joined(before, new), late.shown().volume);
        self.run("show", || {
            let sql = "UPDATE tree_volumes SET shown = $2, whole = $3, coming = NULL WHERE number = $1";
            self.ask(sql).bind(shown).bind(moment(position.whole)).execute(&mut work)?;
            let mut script = Script::default();
            self.forget_pending(&mut script, position.taken.get(&origin).copied().unwrap_or(0));
            self.store_position(&mut script, &position);
            script.execute(&mut work)?;
            late.ask("UPDATE tree_volumes SET id = NULL WHERE number = $1").execute(&mut work)?;
            late.ask("DELETE FROM tree_origins WHERE volume = $1").execute(&mut work)?;
            work.commit()
        })?;
        self.shown.store(shown, Ordering::Release);
        self.count_again(0, position.seq)
    }

    /// Removes the nodes and names of trees that were visible before.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn remove_old_copies(&self) -> Result<(), Error> {
        for number in self.old_copies()? {
            for (table, key) in [("names", "dir, name"), ("nodes", "id")] {
                while self.remove_some(number, table, key)? > 0 {}
            }
        }
        Ok(())
    }

    /// Volume numbers of nodes and names that belong to no tree.
    fn old_copies(&self) -> Result<Vec<i64>, Error> {
        let sql = "SELECT number FROM tree_volumes \
            WHERE (id IS NULL OR (shown IS NOT NULL AND shown <> number)) \
            AND number NOT IN (SELECT COALESCE(shown, number) FROM tree_volumes WHERE id IS NOT NULL)";
        self.read("read", |connection| {
            let rows = query(sql).rows(connection)?;
            rows.iter().map(|row| row.get(0)).collect()
        })
    }

    /// Removes the first rows of a table for a volume number; returns how many, or 0 when all are removed.
    fn remove_some(&self, number: i64, table: &str, key: &str) -> Result<u64, Error> {
        // Up to the last row of a batch; all rows, if there are fewer.
        let some = format!(
            "DELETE FROM tree_{table} WHERE volume = $1 AND ({key}) <= \
             (SELECT {key} FROM tree_{table} WHERE volume = $1 ORDER BY {key} LIMIT 1 OFFSET {REMOVED_AT_ONCE})"
        );
        let rest = format!("DELETE FROM tree_{table} WHERE volume = $1");
        self.write("remove", |connection| {
            let some = query(some).bind(number).execute(connection)?;
            if some > 0 {
                return Ok(some);
            }
            query(rest).bind(number).execute(connection)?;
            Ok(0)
        })
    }
}

/// The position of a tree that is replaced by another copy: the numbers that this site has used stay.
fn joined(before: Position, new: Position) -> Position {
    let mut given = new.given;
    for (origin, count) in before.given {
        let known = given.entry(origin).or_default();
        *known = count.max(*known);
    }
    Position { given, number: before.number.max(new.number), ..new }
}
