//! One page of a directory, sorted and searched: the directory is read once, and only entries up to that page are kept.

use super::query::{Query, Sort};
use renkei_core::entry::{EntryKind, FileTime};
use renkei_core::error::Error;
use renkei_core::path::{RelPath, printable};
use renkei_core::wire::file::Item;
use renkei_mover::files::workspace::{Follow, Workspace};
use std::cmp::Ordering;

/// Entries on a page.
pub(super) const PAGE: usize = 200;

/// The kind of an entry as shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder,
    File,
    /// A symbolic link that leads to nothing that can be shown.
    Link,
    Other,
}

/// An entry of the directory.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) mtime: FileTime,
    /// The name by which it is sorted and searched.
    folded: String,
}

/// A page of a directory.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) rows: Vec<Row>,
    /// The number of entries before those of the page.
    pub(super) before: usize,
    /// Entries that match the search.
    pub(super) matching: usize,
    /// All entries.
    pub(super) total: usize,
    pub(super) folders: usize,
    /// Bytes of the files that match.
    pub(super) bytes: u64,
}

/// Reads the page that a query asks for.
///
/// # Errors
/// Those of the directory.
pub(super) fn read(files: &Workspace, dir: &RelPath, query: &Query) -> Result<Listed, Error> {
    let (wanted, keep) = (query.search.to_lowercase(), (query.page + 1) * PAGE);
    let mut listed = Listed { before: query.page * PAGE, ..Listed::default() };
    let mut listing = files.read_dir(dir)?;
    let mut rows = Vec::new();
    while let Some(items) = listing.next_batch()? {
        listed.total += items.len();
        for row in items.into_iter().map(Row::of).filter(|row| row.folded.contains(&wanted)) {
            listed.matching += 1;
            listed.folders += usize::from(row.kind == Kind::Folder);
            listed.bytes = listed.bytes.saturating_add(row.size);
            rows.push(row);
        }
        if rows.len() > 2 * keep {
            keep_first(&mut rows, query, keep);
        }
    }
    keep_first(&mut rows, query, keep);
    listed.rows = rows.split_off(rows.len().min(listed.before));
    for row in &mut listed.rows {
        row.follow(files, dir)?;
    }
    Ok(listed)
}

fn keep_first(rows: &mut Vec<Row>, query: &Query, keep: usize) {
    rows.sort_unstable_by(|a, b| order(a, b, query));
    rows.truncate(keep);
}

/// Folders come first; equal entries are in the order of their names.
fn order(a: &Row, b: &Row, query: &Query) -> Ordering {
    let time = |row: &Row| (row.mtime.secs, row.mtime.nanos);
    let by_name = || a.folded.cmp(&b.folded).then_with(|| a.name.cmp(&b.name));
    let wanted = match query.sort {
        Sort::Name => by_name(),
        Sort::Size => a.size.cmp(&b.size),
        Sort::Time => time(a).cmp(&time(b)),
    };
    let wanted = if query.descending { wanted.reverse() } else { wanted };
    let is_file = |row: &Row| row.kind != Kind::Folder;
    is_file(a).cmp(&is_file(b)).then(wanted).then_with(by_name)
}

impl Row {
    fn of(item: Item) -> Self {
        let name = item.entry.path.as_bytes().to_vec();
        let folded = printable(&name).to_lowercase();
        let (kind, size) = kind_of(&item);
        Row { name, kind, size, mtime: item.entry.meta.mtime, folded }
    }

    /// Shows a symbolic link as what it leads to.
    fn follow(&mut self, files: &Workspace, dir: &RelPath) -> Result<(), Error> {
        if self.kind == Kind::Link
            && let Ok(item) = files.stat(&dir.child(&self.name)?, Follow::Yes)
        {
            (self.kind, self.size) = kind_of(&item);
            self.mtime = item.entry.meta.mtime;
        }
        Ok(())
    }
}

fn kind_of(item: &Item) -> (Kind, u64) {
    match item.entry.kind {
        EntryKind::Dir => (Kind::Folder, 0),
        EntryKind::File { .. } => (Kind::File, item.entry.size()),
        EntryKind::Symlink { .. } => (Kind::Link, 0),
        _ => (Kind::Other, 0),
    }
}
