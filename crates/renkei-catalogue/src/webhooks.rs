//! Webhook notifications in the catalogue: ends of transfers that are to be delivered.
//!
//! A row is inserted in the transaction that stores the end, so that no end is lost (outbox).

use super::database::{DatabaseError, Row, query};
use super::transfers::{count, id_at, moment};
use super::{Catalogue, hex_id};
use renkei_core::error::Error;
use renkei_core::wire::message::TransferId;

/// A pending notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The transfer.
    pub id: TransferId,
    /// The URL.
    pub address: String,
    /// End of the transfer, in milliseconds since 1970.
    pub since_ms: u64,
    /// Failed attempts.
    pub failures: u32,
}

impl Catalogue {
    /// The notifications that are due.
    pub fn notices(&self, now_ms: u64, limit: usize) -> Result<Vec<Webhook>, Error> {
        let sql = "SELECT n.transfer, t.notify, n.since, n.failures FROM notice n \
            JOIN transfer t ON t.id = n.transfer WHERE n.due <= $1 ORDER BY n.due LIMIT $2";
        self.lend("read", |connection| {
            let rows = query(sql).bind(moment(now_ms)).bind(count(limit)).rows(connection)?;
            rows.iter().map(read).collect()
        })
    }

    /// Reschedules a notification after a failed attempt; without a time, deletes it. A notification of a later end
    /// of the same transfer is not changed.
    pub fn put_off(&self, notice: &Webhook, next_ms: Option<u64>) -> Result<(), Error> {
        let (id, since) = (hex_id(&notice.id), moment(notice.since_ms));
        self.lend("write", |connection| {
            let query = match next_ms {
                Some(next) => {
                    let sql = "UPDATE notice SET failures = failures + 1, due = $1 WHERE transfer = $2 AND since = $3";
                    query(sql).bind(moment(next))
                }
                None => query("DELETE FROM notice WHERE transfer = $1 AND since = $2"),
            };
            query.bind(id).bind(since).execute(connection).map(drop)
        })
    }
}

fn read(row: &Row) -> Result<Webhook, DatabaseError> {
    Ok(Webhook {
        id: id_at(row, 0)?,
        address: row.get(1)?,
        since_ms: row.get::<i64>(2)?.unsigned_abs(),
        failures: u32::try_from(row.get::<i64>(3)?).unwrap_or(u32::MAX),
    })
}
