//! Webhook notifications in the catalogue: ends of transfers that are to be delivered.
//!
//! A row is inserted in the transaction that stores the end, so that no end is forgotten.

use super::transfers::{count, id_at, moment};
use super::{Catalogue, hex_id};
use renkei_core::error::Error;
use renkei_core::wire::message::TransferId;
use sqlx::Row as _;
use sqlx::any::AnyRow;

/// An end that is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Of which transfer.
    pub id: TransferId,
    /// Where.
    pub address: String,
    /// When it ended, milliseconds since 1970.
    pub since_ms: u64,
    /// Tries in vain.
    pub failures: u32,
}

impl Catalogue {
    /// Ends that are to be told now.
    pub fn notices(&self, now_ms: u64, limit: usize) -> Result<Vec<Webhook>, Error> {
        let sql = "SELECT n.transfer, t.notify, n.since, n.failures FROM notice n \
            JOIN transfer t ON t.id = n.transfer WHERE n.due <= $1 ORDER BY n.due LIMIT $2";
        self.run("read", async {
            let rows = sqlx::query(sql).bind(moment(now_ms)).bind(count(limit)).fetch_all(&self.pool).await?;
            rows.iter().map(read).collect()
        })
    }

    /// Puts a notice off until then, after one more try in vain; without a moment, forgets it. One of a later end of the
    /// transfer stays as it is.
    pub fn put_off(&self, notice: &Webhook, next_ms: Option<u64>) -> Result<(), Error> {
        let (id, since) = (hex_id(&notice.id), moment(notice.since_ms));
        self.run("write", async {
            let query = match next_ms {
                Some(next) => {
                    let sql = "UPDATE notice SET failures = failures + 1, due = $1 WHERE transfer = $2 AND since = $3";
                    sqlx::query(sql).bind(moment(next))
                }
                None => sqlx::query("DELETE FROM notice WHERE transfer = $1 AND since = $2"),
            };
            query.bind(id).bind(since).execute(&self.pool).await.map(drop)
        })
    }
}

fn read(row: &AnyRow) -> Result<Webhook, sqlx::Error> {
    Ok(Webhook {
        id: id_at(row, 0)?,
        address: row.try_get(1)?,
        since_ms: row.try_get::<i64, _>(2)?.unsigned_abs(),
        failures: u32::try_from(row.try_get::<i64, _>(3)?).unwrap_or(u32::MAX),
    })
}
