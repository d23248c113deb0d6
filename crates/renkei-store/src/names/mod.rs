//! Tables of the names in directories: read in one pass, without a look at the entries, and remembered for wide directories.
//!
//! A directory is read whole for each table. A table that may be remembered has all names, as far as 32 MiB go, so that the
//! next pages of a list read nothing; of other directories only the next names are taken, 256 KiB of them. `cache` says which
//! are remembered. Reading takes up to twice these bounds; two wide directories are read at a time (`gate`).

mod cache;
mod gate;

use super::{Detail, Dir, DirVersion, Listing, TypeHint};
use cache::Cache;
use gate::Gate;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::name_table::{NameKind, NameTable, NameTableBuilder, NamesFrom};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Most bytes of a table that may be remembered: a million names of 24 bytes.
const TABLE_BYTES: usize = 32 << 20;
/// Most bytes of another.
const PART_BYTES: usize = 256 << 10;
/// A directory of fewer names is read again at once.
const LEAST_NAMES: usize = 4096;
/// Most bytes of all tables that are remembered.
const CACHE_BYTES: usize = 96 << 20;
/// A table that was not used for so long is forgotten.
const CACHE_AGE: Duration = Duration::from_secs(60);

/// The tables of the process.
static CACHE: LazyLock<Cache> = LazyLock::new(|| Cache::new(CACHE_BYTES, LEAST_NAMES, CACHE_AGE));

/// The names in a directory from a place on, but for those that are hidden.
///
/// # Errors
/// Those of [`Dir::list`] and [`Dir::entry`].
pub fn names(dir: &dyn Dir, from: &NamesFrom, is_hidden: fn(&[u8]) -> bool) -> Result<Arc<NameTable>, Error> {
    let version = || dir.version();
    let reading =
        Reading { dir, version: &version, is_hidden, table_bytes: TABLE_BYTES, part_bytes: PART_BYTES };
    reading.names(&CACHE, from)
}

/// Forgets tables that were not used for a while.
pub fn expire() {
    CACHE.expire();
}

/// The turns of threads that read a wide directory whole.
static GATE: Gate = Gate::new(2);

/// How a directory is read.
struct Reading<'a> {
    dir: &'a dyn Dir,
    version: &'a dyn Fn() -> Option<DirVersion>,
    is_hidden: fn(&[u8]) -> bool,
    table_bytes: usize,
    part_bytes: usize,
}

impl Reading<'_> {
    fn names(&self, cache: &Cache, from: &NamesFrom) -> Result<Arc<NameTable>, Error> {
        // The version is read before the names, so that these are not older than it says.
        let version = (self.version)();
        // Opened for what is remembered, too: the account must be allowed to list it.
        let mut listing = self.dir.list()?;
        let Some(version) = version else {
            return self.read(listing, from.clone(), self.part_bytes).map(Arc::new);
        };
        if let Some(table) = cache.find(&version, from) {
            return Ok(table);
        }
        let begin = match cache.has_other_part(&version) {
            // All names do not fit a table: the next one begins with what is wanted.
            true => NamesFrom { at_least: from.begin().to_vec(), prefix: Vec::new() },
            false => NamesFrom::default(),
        };
        let mut builder = NameTableBuilder::new(begin, self.table_bytes);
        let mut turn = None;
        if !self.take(&mut listing, &mut builder, LEAST_NAMES)? {
            turn = Some(GATE.enter());
            // Another thread may have read it meanwhile.
            if let Some(table) = cache.find(&version, from) {
                return Ok(table);
            }
            self.take(&mut listing, &mut builder, usize::MAX)?;
        }
        let table = Arc::new(builder.finish());
        if (self.version)() == Some(version) {
            cache.keep(version, table.clone());
        }
        drop(turn);
        match table.covers(from) {
            true => Ok(table),
            false => self.read(self.dir.list()?, from.clone(), self.part_bytes).map(Arc::new),
        }
    }

    fn read(&self, mut listing: Listing, from: NamesFrom, most_bytes: usize) -> Result<NameTable, Error> {
        let mut builder = NameTableBuilder::new(from, most_bytes);
        self.take(&mut listing, &mut builder, usize::MAX)?;
        Ok(builder.finish())
    }

    /// Takes so many names of a listing at most; tells whether it is at its end.
    fn take(
        &self,
        listing: &mut Listing,
        builder: &mut NameTableBuilder,
        most: usize,
    ) -> Result<bool, Error> {
        for _ in 0..most {
            let Some(listed) = listing.next() else { return Ok(true) };
            let listed = listed?;
            if (self.is_hidden)(&listed.name) {
                continue;
            }
            let kind = match listed.hint {
                TypeHint::File => NameKind::File,
                TypeHint::Dir => NameKind::Dir,
                TypeHint::Symlink => NameKind::Symlink,
                TypeHint::Special => NameKind::Special,
                TypeHint::Unknown => match self.kind(&listed.name)? {
                    Some(kind) => kind,
                    None => continue,
                },
            };
            builder.push(&listed.name, kind);
        }
        Ok(false)
    }

    /// The type of a name that the listing does not have; none if the name is gone since.
    fn kind(&self, name: &[u8]) -> Result<Option<NameKind>, Error> {
        Ok(match self.dir.entry(name, Detail::Basic) {
            Ok((entry, _)) => Some(match entry.kind {
                EntryKind::Dir => NameKind::Dir,
                EntryKind::Symlink { .. } => NameKind::Symlink,
                EntryKind::Special => NameKind::Special,
                _ => NameKind::File,
            }),
            Err(error) if error.code == Code::PathNotFound => None,
            Err(error) => return Err(error),
        })
    }
}

#[cfg(test)]
mod tests;
