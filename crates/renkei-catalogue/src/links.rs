//! Links in the catalogue: who made which, for which place, and how often each was used.

use super::Catalogue;
use super::database::{DatabaseError, Row, query};
use renkei_core::error::Error;
use renkei_core::path::Place;
use renkei_core::units::hex;
use renkei_core::wire::links::LinkStatus;

const COLUMNS: &str = "id, owner, serial, place, created, ends, most, opens, downloads, bytes, used";

/// A stored link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLink {
    /// The principal in whose name it is used.
    pub owner: String,
    /// The serial of the certificate by which it was asked for; empty for none.
    pub serial: String,
    /// The link as its owner sees it.
    pub status: LinkStatus,
}

impl Catalogue {
    /// Stores a new link; its secret has this digest.
    pub fn add_link(&self, link: &StoredLink, digest: &[u8; 32]) -> Result<(), Error> {
        let sql = "INSERT INTO link (id, digest, owner, serial, place, created, ends, most, opens, downloads, bytes, used) \
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, 0, 0, 0)";
        let StoredLink { owner, serial, status } = link;
        self.lend("write", |connection| {
            let place = status.place.to_string();
            let query = query(sql).bind(&status.id).bind(hex(digest)).bind(owner).bind(serial).bind(place);
            let query = query.bind(number(status.created)).bind(number(status.until));
            query.bind(status.limit.map_or(-1, i64::from)).execute(connection).map(drop)
        })
    }

    /// The link whose secret has this digest.
    pub fn link(&self, digest: &[u8; 32]) -> Result<Option<StoredLink>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM link WHERE digest = $1");
        self.lend("read", |connection| {
            query(sql).bind(hex(digest)).first(connection)?.as_ref().map(read).transpose()
        })
    }

    /// The links of an owner, newest first.
    pub fn links(&self, owner: &str, most: usize) -> Result<Vec<StoredLink>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM link WHERE owner = $1 ORDER BY created DESC, id LIMIT $2");
        self.lend("read", |connection| {
            let rows = query(sql).bind(owner).bind(number(most as u64)).rows(connection)?;
            rows.iter().map(read).collect()
        })
    }

    /// Removes a link of an owner; whether there was one.
    pub fn remove_link(&self, owner: &str, id: &str) -> Result<bool, Error> {
        let sql = "DELETE FROM link WHERE owner = $1 AND id = $2";
        self.lend("write", |connection| Ok(query(sql).bind(owner).bind(id).execute(connection)? > 0))
    }

    /// Removes the links that ended before a time.
    pub fn forget_links(&self, before: u64) -> Result<(), Error> {
        let sql = "DELETE FROM link WHERE ends < $1";
        self.lend("write", |connection| query(sql).bind(number(before)).execute(connection).map(drop))
    }

    /// Counts a page that is shown.
    pub fn count_link_open(&self, id: &str, now: u64) -> Result<(), Error> {
        let sql = "UPDATE link SET opens = opens + 1, used = $2 WHERE id = $1";
        self.lend("write", |connection| query(sql).bind(id).bind(number(now)).execute(connection).map(drop))
    }

    /// Counts a download that begins, if the link has one left; whether it has.
    pub fn count_link_download(&self, id: &str, now: u64) -> Result<bool, Error> {
        let sql = "UPDATE link SET downloads = downloads + 1, used = $2 WHERE id = $1 AND (most < 0 OR downloads < most)";
        self.lend("write", |connection| Ok(query(sql).bind(id).bind(number(now)).execute(connection)? > 0))
    }

    /// Counts bytes that were sent.
    pub fn count_link_bytes(&self, id: &str, bytes: u64) -> Result<(), Error> {
        let sql = "UPDATE link SET bytes = bytes + $2 WHERE id = $1";
        self.lend("write", |connection| query(sql).bind(id).bind(number(bytes)).execute(connection).map(drop))
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn read(row: &Row) -> Result<StoredLink, DatabaseError> {
    let count = |column| Ok::<u64, DatabaseError>(row.get::<i64>(column)?.unsigned_abs());
    let invalid = || DatabaseError::Invalid("the place of a link cannot be read".into());
    let place = Place::parse(row.get::<String>(3)?.as_bytes()).ok().flatten().ok_or_else(invalid)?;
    Ok(StoredLink {
        owner: row.get(1)?,
        serial: row.get(2)?,
        status: LinkStatus {
            id: row.get(0)?,
            place,
            created: count(4)?,
            until: count(5)?,
            limit: u32::try_from(row.get::<i64>(6)?).ok(),
            opens: count(7)?,
            downloads: count(8)?,
            bytes: count(9)?,
            used: Some(count(10)?).filter(|used| *used > 0),
        },
    })
}
