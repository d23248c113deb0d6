//! Bootstrap of a tree in pages (`renkei_core::namespace::page`): read at the home, loaded at a site that does not
//! have the log from its beginning.
//!
//! A page is one transaction at either end, so a killed site resumes after the last page that it has. A page replaces
//! what the copy had between its ends; so an old copy becomes the new one without being emptied before.

use super::database::{Connection, DatabaseError};
use super::stored::{Stored, pack, unpack};
use super::transfers::{count, moment};
use super::tree::{Position, VolumeTree};
use super::tree_rows::{Script, id_at, name_at, node_at, signed, store};
use renkei_core::error::Error;
use renkei_core::format::Format;
use renkei_core::namespace::page::{Extent, Page, Reached};
use renkei_core::namespace::{Delta, Dentry, Name, Node, NodeId, Origin};
use renkei_core::wire::decode;
use renkei_core::wire::violation;
use serde::{Deserialize, Serialize};

/// Records deleted in one transaction.
const FORGOTTEN_AT_ONCE: i64 = 10_000;
/// Sentinel of [`Position::whole`] while pages are loaded.
const NEVER: u64 = i64::MAX as u64;

/// Progress of loading pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Coming {
    /// The extent of the home's tree when the first page was read.
    pub(super) extent: Extent,
    /// The last record that a page may contain.
    pub(super) until: u64,
    /// The cursor for the next page.
    pub(super) next: Reached,
}

impl Stored for Coming {
    const FORMAT: Format<Self> = Format::numbered("pages of a volume", &[decode]);
}

/// The range of keys that a page covers, in the order of the database: the key before the first row, and the last
/// key.
#[derive(Clone, Debug)]
enum Keys {
    Nodes(i64, i64),
    Names((i64, Vec<u8>), (i64, Vec<u8>)),
}

impl Position {
    /// Whether pages are being loaded.
    pub(super) fn is_coming(&self) -> bool {
        self.whole == NEVER
    }
}

impl VolumeTree {
    /// A page of up to `most` nodes or names after a cursor.
    pub fn page(&self, after: Option<&Reached>, most: usize) -> Result<Page, Error> {
        let Position { seq, taken, given, .. } = self.position()?;
        let extent = Extent { seq, taken, given };
        let (mut nodes, mut names) = (Vec::new(), Vec::new());
        let next = match begin(after) {
            Begin::Nodes(id) => {
                nodes = self.nodes_after(id, most)?;
                let last = nodes.last().filter(|_| nodes.len() == most);
                Some(last.map_or(Reached::Nodes, |(id, _)| Reached::Node(*id)))
            }
            Begin::Names(dir, name) => {
                names = self.names_after(dir, name, most)?;
                let last = names.last().filter(|_| names.len() == most);
                last.map(|(dir, name, _)| Reached::Name(Dentry { dir: *dir, name: name.clone() }))
            }
        };
        // The rows may be more recent than the position that was read before them.
        let until = self.position()?.seq;
        Ok(Page { after: after.cloned(), extent, until, nodes, names, next })
    }

    fn nodes_after(&self, id: i64, most: usize) -> Result<Vec<(NodeId, Node)>, Error> {
        let sql = "SELECT id, node FROM tree_nodes WHERE volume = $1 AND id > $2 ORDER BY id LIMIT $3";
        self.read("read", |connection| {
            let query = self.ask_shown(sql).bind(id).bind(count(most));
            let rows = query.rows(connection)?;
            let node = |row| {
                let id = id_at(row, 0)?;
                Ok(node_at(row, 1)?.map(|node| (id, node)))
            };
            rows.iter().map(node).filter_map(Result::transpose).collect()
        })
    }

    fn names_after(
        &self,
        dir: i64,
        name: Vec<u8>,
        most: usize,
    ) -> Result<Vec<(NodeId, Name, NodeId)>, Error> {
        let sql = "SELECT dir, name, node FROM tree_names WHERE volume = $1 AND (dir, name) > ($2, $3) \
            ORDER BY dir, name LIMIT $4";
        self.read("read", |connection| {
            let query = self.ask_shown(sql).bind(dir).bind(name).bind(count(most));
            let rows = query.rows(connection)?;
            rows.iter().map(|row| Ok((id_at(row, 0)?, name_at(row, 1)?, id_at(row, 2)?))).collect()
        })
    }

    /// Loads a page of the home into this copy. After the last one [`VolumeTree::follow`] continues with the record
    /// after the first page's position; the copy may be shown when its position is whole.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` for a page that does not follow.
    pub fn load(&self, origin: Origin, page: &Page) -> Result<(), Error> {
        let begun = self.run("load", || {
            let (mut work, position) = self.begin()?;
            let coming = self.coming(&mut work)?;
            Ok((work, position, coming))
        });
        let (mut work, position, coming) = begun?;
        let coming = follows(page, coming)?;
        self.run("load", || {
            self.take_place(&mut work, page)?;
            self.note_page(&mut work, origin, position, page, coming)?;
            work.commit()
        })?;
        // Its rows have no table statistics; they are collected after the last page.
        self.count_again(0, if page.next.is_none() { page.until } else { 0 })
    }

    /// The cursor for the next page; none if no pages are being loaded.
    pub fn loading(&self) -> Result<Option<Reached>, Error> {
        let coming = self.read("read", |connection| self.coming(connection))?;
        Ok(coming.map(|coming| coming.next))
    }

    fn coming(&self, work: &mut Connection) -> Result<Option<Coming>, DatabaseError> {
        let sql = "SELECT coming FROM tree_volumes WHERE number = $1";
        let row = self.ask(sql).only(work)?;
        row.get::<Option<&[u8]>>(0)?.map(unpack).transpose()
    }

    /// Replaces the rows in the range of a page.
    fn take_place(&self, work: &mut Connection, page: &Page) -> Result<(), DatabaseError> {
        match keys(page) {
            Keys::Nodes(before, last) => {
                let sql = "DELETE FROM tree_nodes WHERE volume = $1 AND id > $2 AND id <= $3";
                let query = self.ask_shown(sql).bind(before).bind(last);
                query.execute(work)?;
            }
            Keys::Names(before, last) => {
                let sql = "DELETE FROM tree_names \
                    WHERE volume = $1 AND (dir, name) > ($2, $3) AND (dir, name) <= ($4, $5)";
                let query = self.ask_shown(sql).bind(before.0).bind(before.1);
                query.bind(last.0).bind(last.1).execute(work)?;
            }
        }
        let nodes = page.nodes.iter().map(|(id, node)| (*id, Some(node.clone()))).collect();
        let spot = |dir: &NodeId, name: &Name| Dentry { dir: *dir, name: name.clone() };
        let names = page.names.iter().map(|(dir, name, id)| (spot(dir, name), Some(*id))).collect();
        let mut script = Script::default();
        store(&mut script, self.shown(), Delta { nodes, names });
        script.execute(work)
    }

    /// Stores the cursor; after the last page, the position of the tree.
    fn note_page(
        &self,
        work: &mut Connection,
        origin: Origin,
        position: Position,
        page: &Page,
        coming: Coming,
    ) -> Result<(), DatabaseError> {
        let mut script = Script::default();
        let (position, noted) = match &page.next {
            Some(next) => {
                let noted = pack(&Coming { next: next.clone(), ..coming });
                (Position { seq: 0, whole: NEVER, ..position }, Some(noted))
            }
            None => {
                let position = arrived(position, origin, coming);
                self.forget_pending(&mut script, position.taken.get(&origin).copied().unwrap_or(0));
                (position, None)
            }
        };
        self.store_position(&mut script, &position);
        script.execute(work)?;
        let sql = "UPDATE tree_volumes SET whole = $2, coming = $3 WHERE number = $1";
        let query = self.ask(sql).bind(moment(position.whole)).bind(noted);
        query.execute(work).map(drop)
    }

    /// Trims the log up to `upto`; a follower without these records needs pages. Returns how many were deleted.
    pub fn trim(&self, upto: u64) -> Result<u64, Error> {
        let sql = "DELETE FROM tree_log WHERE volume = $1 AND seq <= $2 \
            AND seq < (SELECT MIN(seq) FROM tree_log WHERE volume = $1) + $3";
        let mut forgotten = 0;
        loop {
            // In batches, so that changes can come in between.
            let part = self.write("trim", |connection| {
                let query = self.ask(sql).bind(moment(upto)).bind(FORGOTTEN_AT_ONCE);
                query.execute(connection)
            })?;
            forgotten += part;
            if part == 0 {
                return Ok(forgotten);
            }
        }
    }
}

/// The key before the first row of a page.
enum Begin {
    Nodes(i64),
    Names(i64, Vec<u8>),
}

fn begin(after: Option<&Reached>) -> Begin {
    match after {
        None => Begin::Nodes(i64::MIN),
        Some(Reached::Node(id)) => Begin::Nodes(signed(*id)),
        Some(Reached::Nodes) => Begin::Names(i64::MIN, Vec::new()),
        Some(Reached::Name(at)) => Begin::Names(signed(at.dir), at.name.0.clone()),
    }
}

/// The range of keys of a page.
fn keys(page: &Page) -> Keys {
    match (begin(page.after.as_ref()), &page.next) {
        (Begin::Nodes(before), Some(Reached::Node(last))) => Keys::Nodes(before, signed(*last)),
        (Begin::Nodes(before), _) => Keys::Nodes(before, i64::MAX),
        (Begin::Names(dir, name), Some(Reached::Name(last))) => {
            Keys::Names((dir, name), (signed(last.dir), last.name.0.clone()))
        }
        // Longer than any name.
        (Begin::Names(dir, name), _) => Keys::Names((dir, name), (i64::MAX, vec![0xff; 256])),
    }
}

/// The order of cursors.
fn order(reached: &Reached) -> (u8, i64, &[u8]) {
    match reached {
        Reached::Node(id) => (0, signed(*id), &[]),
        Reached::Nodes => (1, i64::MIN, &[]),
        Reached::Name(at) => (2, signed(at.dir), &at.name.0),
    }
}

/// Checks that a page follows the ones before it; returns the new progress.
fn follows(page: &Page, coming: Option<Coming>) -> Result<Coming, Error> {
    if let (Some(after), Some(next)) = (&page.after, &page.next)
        && order(next) <= order(after)
    {
        // It would be requested for ever.
        return Err(violation("volume", format_args!("a page that ends at {next:?}")));
    }
    let next = Reached::Nodes;
    match (&page.after, coming) {
        (None, _) => Ok(Coming { extent: page.extent.clone(), until: page.until, next }),
        (Some(after), Some(coming)) if coming.next == *after => {
            Ok(Coming { until: coming.until.max(page.until), ..coming })
        }
        (after, _) => Err(violation("volume", format_args!("a page after {after:?}"))),
    }
}

/// The position of a copy that has all pages.
fn arrived(position: Position, origin: Origin, coming: Coming) -> Position {
    let Extent { seq, taken, mut given } = coming.extent;
    for (origin, count) in position.given {
        let known = given.entry(origin).or_default();
        *known = count.max(*known);
    }
    let own = taken.get(&origin).copied().unwrap_or(0);
    Position { seq, taken, given, number: position.number.max(own), whole: coming.until }
}
