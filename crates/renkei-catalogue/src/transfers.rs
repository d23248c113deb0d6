//! Queued transfers in the catalogue.
//!
//! A row has the submission and its job; the other columns repeat values for the indexes. An update succeeds only
//! if the row was not changed since it was read (optimistic locking by `revision`), so several PoPs may share one
//! database.

use super::Catalogue;
use super::database::{self, Connection, DatabaseError, Value, query};
use super::stored::{Stored, pack, unpack};
use renkei_core::error::Error;
use renkei_core::queue::{Job, State};
use renkei_core::units::hex;
use renkei_core::wire::message::{EntryFailure, Progress, TransferId};
use renkei_core::wire::queue::{Attempt, Listed};

/// The sentinel for no time.
const NEVER: i64 = i64::MAX;
/// Attempts kept for each transfer.
const KEPT_ATTEMPTS: i64 = 100;

const COLUMNS: &str = "id, owner, lane, submitted, runner, revision, spec, course, reached";

/// The transfers of one user over one link, in the order in which they run.
pub type Lane = String;

/// A new transfer.
#[derive(Clone, Debug)]
pub struct New {
    /// Its id.
    pub id: TransferId,
    /// The owner's principal.
    pub owner: String,
    /// The lane.
    pub lane: Lane,
    /// The owner's label.
    pub label: String,
    /// Priority; higher runs first.
    pub priority: i32,
    /// Time of submission, in milliseconds since 1970.
    pub submitted_ms: u64,
    /// Digest of the submission.
    pub digest: [u8; 32],
    /// The submission, encoded.
    pub spec: Vec<u8>,
    /// The deadline.
    pub deadline_ms: u64,
    /// Transfers on which it depends.
    pub after: Vec<TransferId>,
    /// The delegated credential: secret.
    pub credential: Vec<u8>,
    /// URL of the webhook; empty for none.
    pub notify: String,
}

/// Result of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is in the queue, now or since an earlier submission (idempotent).
    There,
    /// Another submission has its id.
    Conflict,
    /// A dependency does not exist.
    Unknown(TransferId),
    /// A dependency was given up.
    Abandoned(TransferId),
}

/// A transfer in the catalogue.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its id.
    pub id: TransferId,
    /// The owner's principal.
    pub owner: String,
    /// The lane.
    pub lane: Lane,
    /// Time of submission.
    pub submitted_ms: u64,
    /// The PoP that runs it; empty for none.
    pub runner: String,
    /// The submission, encoded.
    pub spec: Vec<u8>,
    /// The job.
    pub job: Job,
    /// Progress of the last attempt.
    pub reached: Option<Progress>,
    revision: i64,
}

/// An update of a row.
pub struct Update<'a> {
    /// The row with its new job.
    pub row: &'a Row,
    /// An attempt that began or ended.
    pub attempt: Option<&'a Attempt>,
    /// Whether to delete the failed files of earlier attempts.
    pub forgets_failures: bool,
    /// A dependency that has ended and is deleted.
    pub met: Option<TransferId>,
    /// A fresh credential.
    pub credential: Option<&'a [u8]>,
}

impl<'a> Update<'a> {
    /// An update of the job only.
    pub fn of(row: &'a Row) -> Self {
        Update { row, attempt: None, forgets_failures: false, met: None, credential: None }
    }
}

/// Query of a list of transfers.
pub struct Listing<'a> {
    /// The owner; `None` for all owners.
    pub owner: Option<&'a str>,
    /// The filter and cursor.
    pub listed: &'a Listed,
    /// Filter by state.
    pub state: Option<State>,
    /// Rows at most.
    pub limit: usize,
}

/// A candidate at the front of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its id.
    pub id: TransferId,
    /// Priority; higher runs first.
    pub priority: i64,
    /// Time of submission.
    pub submitted_ms: u64,
}

/// An id as it is stored and shown.
pub fn hex_id(id: &TransferId) -> String {
    hex(id)
}

/// Parses an id of 32 hexadecimal digits.
pub fn parse_id(text: &str) -> Option<TransferId> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut id = TransferId::default();
    for (at, byte) in id.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    is_hex.then_some(id)
}

/// Fewest digits that name a transfer, so that a typing error does not name one.
pub const FEWEST_DIGITS: usize = 4;

/// A prefix of an id in stored form; none if it is too short or not hexadecimal.
pub fn first_digits(text: &str) -> Option<String> {
    let is_one =
        (FEWEST_DIGITS..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| text.to_ascii_lowercase())
}

/// The reason why a text names no transfer, for errors.
pub fn no_digits(text: &str) -> String {
    match first_digits(text) {
        Some(_) => String::new(),
        None => format!("write at least {FEWEST_DIGITS} of an id's hexadecimal digits"),
    }
}

impl Catalogue {
    /// Inserts transfers in one transaction; returns a result for each, in order.
    pub fn submit(&self, all: &[New]) -> Result<Vec<Put>, Error> {
        self.transaction("submit", |work| {
            let mut put = Vec::with_capacity(all.len());
            for new in all {
                put.push(put_one(work, new)?);
            }
            Ok(put)
        })
    }

    /// Reads one transfer.
    pub fn load(&self, id: &TransferId) -> Result<Option<Row>, Error> {
        self.lend("read", |connection| load(connection, &hex_id(id)))
    }

    /// Transfers whose ids begin with these digits, a few at most; of `owner`, or of all.
    pub fn find(&self, digits: &str, owner: Option<&str>) -> Result<Vec<Row>, Error> {
        let after = format!("{digits}g");
        let rows = self.rows(
            "WHERE id >= $1 AND id < $2 AND ($3 = '' OR owner = $3) ORDER BY id LIMIT 5",
            [digits.into(), after.into(), owner.unwrap_or_default().into()],
        )?;
        Ok(rows)
    }

    /// Writes an update; returns false if the row was changed since it was read.
    pub fn update(&self, update: &Update<'_>) -> Result<bool, Error> {
        self.run("write", |pool| {
            let mut work = pool.begin()?;
            let written = write(&mut work, update)?;
            if written {
                work.commit()?;
            }
            Ok(written)
        })
    }

    /// Replaces a former name of a site by the current one in the indexed columns.
    pub fn rename_site(&self, former: &str, current: &str) -> Result<(), Error> {
        self.lend("rename site", |connection| {
            let (old, new) = (format!("@{former}"), format!("@{current}"));
            for table in ["transfer", "link"] {
                let owners = format!(
                    "UPDATE {table} SET owner = SUBSTR(owner, 1, LENGTH(owner) - LENGTH($1)) || $2 \
                    WHERE SUBSTR(owner, LENGTH(owner) - LENGTH($1) + 1) = $1"
                );
                query(owners).bind(&old).bind(&new).execute(connection)?;
            }
            // A lane has lines for the owner, the site of the source and that of the destination.
            for (old, new) in [
                (format!("{old}\n"), format!("{new}\n")),
                (format!("\n{former}\n"), format!("\n{current}\n")),
            ] {
                let lanes = "UPDATE transfer SET lane = RTRIM(REPLACE(lane || $3, $1, $2), $3) \
                    WHERE REPLACE(lane || $3, $1, $2) <> lane || $3";
                // A second time for transfers from the site to itself, since both lines share a line end.
                for _ in 0..2 {
                    query(lanes).bind(&old).bind(&new).bind("\n").execute(connection)?;
                }
            }
            Ok(())
        })
    }

    /// The lanes with queued transfers.
    pub fn lanes(&self) -> Result<Vec<Lane>, Error> {
        // A loose index scan: one lookup for each lane, however many transfers it has.
        let sql = "WITH RECURSIVE lanes (lane) AS ( \
            SELECT MIN(lane) FROM transfer WHERE state = 'queued' UNION ALL \
            SELECT (SELECT MIN(t.lane) FROM transfer t WHERE t.state = 'queued' AND t.lane > lanes.lane) \
            FROM lanes WHERE lanes.lane IS NOT NULL) SELECT lane FROM lanes WHERE lane IS NOT NULL";
        self.lend("read", |connection| {
            let rows = query(sql).rows(connection)?;
            rows.iter().map(|row| row.get(0)).collect()
        })
    }

    /// The first transfers of a lane.
    pub fn first_in(&self, lane: &str, limit: usize) -> Result<Vec<Waiting>, Error> {
        let sql = "SELECT id, priority, submitted FROM transfer WHERE state = 'queued' AND lane = $1 \
            ORDER BY priority DESC, submitted, id LIMIT $2";
        self.lend("read", |connection| {
            let rows = query(sql).bind(lane).bind(count(limit)).rows(connection)?;
            rows.iter().map(waiting).collect()
        })
    }

    /// Waiting transfers whose retry time has come.
    pub fn due(&self, now_ms: u64, limit: usize) -> Result<Vec<Row>, Error> {
        let sql = "WHERE state = 'waiting' AND next_at <= $1 ORDER BY next_at LIMIT $2";
        self.rows(sql, [moment(now_ms).into(), count(limit).into()])
    }

    /// Open transfers whose deadline has passed.
    pub fn overdue(&self, now_ms: u64, limit: usize) -> Result<Vec<Row>, Error> {
        let sql = "WHERE ended = 0 AND deadline <= $1 ORDER BY deadline LIMIT $2";
        self.rows(sql, [moment(now_ms).into(), count(limit).into()])
    }

    /// Transfers that `runner` runs, according to the catalogue.
    pub fn running_at(&self, runner: &str) -> Result<Vec<Row>, Error> {
        self.rows("WHERE state = 'running' AND runner = $1", [runner.into()])
    }

    /// Dependencies that have ended: the transfer, the one that it waits for, and the final state of that.
    pub fn met(&self, limit: usize) -> Result<Vec<(TransferId, TransferId, State)>, Error> {
        let sql = "SELECT d.transfer, d.needs, t.state FROM dependency d JOIN transfer t ON t.id = d.needs \
            WHERE t.ended > 0 LIMIT $1";
        self.lend("read", |connection| {
            let rows = query(sql).bind(count(limit)).rows(connection)?;
            rows.iter().map(|row| Ok((id_at(row, 0)?, id_at(row, 1)?, state_at(row, 2)?))).collect()
        })
    }

    /// The states of those transfers that exist.
    pub fn states(&self, ids: &[TransferId]) -> Result<Vec<(TransferId, State)>, Error> {
        self.lend("read", |connection| {
            let mut states = Vec::with_capacity(ids.len());
            for id in ids {
                states.extend(state_of(connection, id)?.map(|state| (*id, state)));
            }
            Ok(states)
        })
    }

    /// The kept attempts of a transfer, oldest first.
    pub fn attempts(&self, id: &TransferId) -> Result<Vec<Attempt>, Error> {
        self.details("SELECT detail FROM attempt WHERE transfer = $1 ORDER BY number", id)
    }

    /// A page of the failed files, by ascending number: those after `after`, `limit` at most.
    pub fn failures(
        &self,
        id: &TransferId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, EntryFailure)>, Error> {
        let sql =
            "SELECT number, detail FROM failure WHERE transfer = $1 AND number > $2 ORDER BY number LIMIT $3";
        self.lend("read", |connection| {
            let rows = query(sql).bind(hex_id(id)).bind(moment(after)).bind(count(limit)).rows(connection)?;
            let failure =
                |row: &database::Row| Ok((row.get::<i64>(0)?.unsigned_abs(), unpack(row.get::<&[u8]>(1)?)?));
            rows.iter().map(failure).collect()
        })
    }

    /// Adds failed files with consecutive numbers from `after + 1` on.
    pub fn add_failures(&self, id: &TransferId, after: u64, failures: &[EntryFailure]) -> Result<(), Error> {
        self.transaction("write", |work| {
            for (failure, number) in failures.iter().zip(after + 1..) {
                let sql = "INSERT INTO failure (transfer, number, detail) VALUES ($1, $2, $3)";
                query(sql).bind(hex_id(id)).bind(moment(number)).bind(pack(failure)).execute(work)?;
            }
            Ok(())
        })
    }

    /// The credential of a transfer, if it has one.
    pub fn credential(&self, id: &TransferId) -> Result<Option<Vec<u8>>, Error> {
        self.lend("read", |connection| {
            let query = query("SELECT detail FROM credential WHERE transfer = $1").bind(hex_id(id));
            query.first(connection)?.map(|row| row.get(0)).transpose()
        })
    }

    /// Number of transfers of a user that have not ended.
    pub fn open_of(&self, owner: &str) -> Result<u64, Error> {
        self.lend("count", |connection| {
            let sql = "SELECT COUNT(*) FROM transfer WHERE owner = $1 AND ended = 0";
            let row = query(sql).bind(owner).only(connection)?;
            Ok(row.get::<i64>(0)?.unsigned_abs())
        })
    }

    /// A page of transfers, newest first.
    pub fn list(&self, listing: &Listing<'_>) -> Result<Vec<Row>, Error> {
        let Listing { owner, listed, state, limit } = listing;
        let owned = if owner.is_some() { "owner = $1" } else { "$1 = ''" };
        let open = if listed.ended { "" } else { "AND ended = 0" };
        let sql = format!(
            "WHERE {owned} {open} AND ($2 = '' OR label = $2) AND (submitted, id) < ($3, $4) \
             AND ($6 = '' OR state = $6) ORDER BY submitted DESC, id DESC LIMIT $5"
        );
        let (before, id) = listed.before.map_or((NEVER, "g".into()), |(at, id)| (moment(at), hex_id(&id)));
        let values = [
            owner.unwrap_or_default().into(),
            listed.label.as_deref().unwrap_or_default().into(),
            before.into(),
            id.into(),
            count(*limit).into(),
            state.map_or("", State::name).into(),
        ];
        self.rows(&sql, values)
    }

    /// Deletes transfers that ended before a time, `limit` at most; returns how many.
    pub fn forget(&self, before_ms: u64, limit: usize) -> Result<usize, Error> {
        self.transaction("forget", |work| {
            let sql = "SELECT id FROM transfer WHERE ended > 0 AND ended < $1 LIMIT $2";
            let old = query(sql).bind(moment(before_ms)).bind(count(limit)).rows(work)?;
            for row in &old {
                let id: String = row.get(0)?;
                for sql in FORGET {
                    query(sql).bind(&id).execute(work)?;
                }
            }
            Ok(old.len())
        })
    }

    fn rows(&self, condition: &str, values: impl IntoIterator<Item = Value>) -> Result<Vec<Row>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM transfer {condition}");
        let query = query(sql).bind_all(values);
        self.lend("read", |connection| query.rows(connection)?.iter().map(read_row).collect())
    }

    fn details<T: Stored>(&self, sql: &'static str, id: &TransferId) -> Result<Vec<T>, Error> {
        self.lend("read", |connection| {
            let rows = query(sql).bind(hex_id(id)).rows(connection)?;
            rows.iter().map(|row| unpack(row.get::<&[u8]>(0)?)).collect()
        })
    }
}

/// Deletes a transfer with all its rows.
const FORGET: [&str; 6] = [
    "DELETE FROM notice WHERE transfer = $1",
    "DELETE FROM credential WHERE transfer = $1",
    "DELETE FROM attempt WHERE transfer = $1",
    "DELETE FROM failure WHERE transfer = $1",
    "DELETE FROM dependency WHERE transfer = $1",
    "DELETE FROM transfer WHERE id = $1",
];

fn put_one(work: &mut Connection, new: &New) -> Result<Put, DatabaseError> {
    let id = hex_id(&new.id);
    let known = query("SELECT digest FROM transfer WHERE id = $1").bind(&id);
    if let Some(row) = known.first(work)? {
        let same = row.get::<&[u8]>(0)? == new.digest;
        return Ok(if same { Put::There } else { Put::Conflict });
    }
    let mut needs = Vec::new();
    for other in &new.after {
        match state_of(work, other)? {
            None => return Ok(Put::Unknown(*other)),
            Some(State::Done) => {}
            Some(state) if state.is_end() => return Ok(Put::Abandoned(*other)),
            Some(_) => needs.push(other),
        }
    }
    let job = Job::submitted(u32::try_from(needs.len()).unwrap_or(u32::MAX), new.deadline_ms);
    let inserted = insert(work, &id, new, &job)?;
    if inserted {
        write_credential(work, &id, &new.credential)?;
    }
    for other in needs.into_iter().filter(|_| inserted) {
        let sql = "INSERT INTO dependency (transfer, needs) VALUES ($1, $2)";
        query(sql).bind(&id).bind(hex_id(other)).execute(work)?;
    }
    // Another PoP inserted it at this moment: the next submission gets the right answer.
    Ok(if inserted { Put::There } else { Put::Conflict })
}

fn insert(work: &mut Connection, id: &str, new: &New, job: &Job) -> Result<bool, DatabaseError> {
    let sql = "INSERT INTO transfer (id, owner, lane, state, label, priority, submitted, next_at, deadline, ended, \
        runner, revision, digest, spec, course, notify) \
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 0, '', 0, $10, $11, $12, $13) \
        ON CONFLICT (id) DO NOTHING";
    let inserted = query(sql)
        .bind(id)
        .bind(&new.owner)
        .bind(&new.lane)
        .bind(job.state.name())
        .bind(&new.label)
        .bind(i64::from(new.priority))
        .bind(moment(new.submitted_ms))
        .bind(NEVER)
        .bind(moment(new.deadline_ms))
        .bind(new.digest.to_vec())
        .bind(new.spec.clone())
        .bind(pack(job))
        .bind(&new.notify);
    Ok(inserted.execute(work)? == 1)
}

fn write(work: &mut Connection, update: &Update<'_>) -> Result<bool, DatabaseError> {
    let Update { row, attempt, forgets_failures, met, credential } = update;
    let (id, job) = (hex_id(&row.id), &row.job);
    if let Some(ended) = job.ended_ms {
        // Once for each end: the former `ended` of the row is compared.
        let sql = "INSERT INTO notice (transfer, since, due, failures) SELECT id, CAST($1 AS BIGINT), CAST($1 AS BIGINT), 0 FROM transfer \
            WHERE id = $2 AND notify <> '' AND ended <> $1 ON CONFLICT (transfer) \
            DO UPDATE SET since = excluded.since, due = excluded.due, failures = 0";
        query(sql).bind(moment(ended)).bind(&id).execute(work)?;
    }
    let sql = "UPDATE transfer SET state = $1, next_at = $2, deadline = $3, ended = $4, runner = $5, course = $6, \
        revision = $7, reached = $8 WHERE id = $9 AND revision = $10";
    let changed = query(sql)
        .bind(job.state.name())
        .bind(job.next_ms.map_or(NEVER, moment))
        .bind(moment(job.deadline_ms))
        .bind(job.ended_ms.map_or(0, moment))
        .bind(&row.runner)
        .bind(pack(job))
        .bind(row.revision + 1)
        .bind(row.reached.as_ref().map(pack))
        .bind(&id)
        .bind(row.revision);
    if changed.execute(work)? != 1 {
        return Ok(false);
    }
    if let Some(attempt) = attempt {
        write_attempt(work, &id, attempt)?;
    }
    if *forgets_failures {
        query("DELETE FROM failure WHERE transfer = $1").bind(&id).execute(work)?;
    }
    if matches!(job.state, State::Done | State::Cancelled) {
        // The credential is not needed any more; a retry brings a new one.
        query("DELETE FROM credential WHERE transfer = $1").bind(&id).execute(work)?;
    }
    if let Some(secret) = credential {
        write_credential(work, &id, secret)?;
    }
    if let Some(met) = met {
        let sql = "DELETE FROM dependency WHERE transfer = $1 AND needs = $2";
        query(sql).bind(&id).bind(hex_id(met)).execute(work)?;
    }
    Ok(true)
}

fn write_credential(work: &mut Connection, id: &str, secret: &[u8]) -> Result<(), DatabaseError> {
    let sql = "INSERT INTO credential (transfer, detail) VALUES ($1, $2) \
        ON CONFLICT (transfer) DO UPDATE SET detail = excluded.detail";
    query(sql).bind(id).bind(secret.to_vec()).execute(work)?;
    Ok(())
}

fn write_attempt(work: &mut Connection, id: &str, attempt: &Attempt) -> Result<(), DatabaseError> {
    let number = i64::from(attempt.number);
    let sql = "INSERT INTO attempt (transfer, number, detail) VALUES ($1, $2, $3) \
        ON CONFLICT (transfer, number) DO UPDATE SET detail = excluded.detail";
    query(sql).bind(id).bind(number).bind(pack(attempt)).execute(work)?;
    let sql = "DELETE FROM attempt WHERE transfer = $1 AND number <= $2";
    query(sql).bind(id).bind(number - KEPT_ATTEMPTS).execute(work)?;
    Ok(())
}

fn load(connection: &mut Connection, id: &str) -> Result<Option<Row>, DatabaseError> {
    let sql = format!("SELECT {COLUMNS} FROM transfer WHERE id = $1");
    let row = query(sql).bind(id.to_owned()).first(connection)?;
    row.as_ref().map(read_row).transpose()
}

fn state_of(connection: &mut Connection, id: &TransferId) -> Result<Option<State>, DatabaseError> {
    let query = query("SELECT state FROM transfer WHERE id = $1").bind(hex_id(id));
    query.first(connection)?.map(|row| state_at(&row, 0)).transpose()
}

fn read_row(row: &database::Row) -> Result<Row, DatabaseError> {
    Ok(Row {
        id: id_at(row, 0)?,
        owner: row.get(1)?,
        lane: row.get(2)?,
        submitted_ms: row.get::<i64>(3)?.unsigned_abs(),
        runner: row.get(4)?,
        revision: row.get(5)?,
        spec: row.get(6)?,
        job: unpack(row.get::<&[u8]>(7)?)?,
        reached: row.get::<Option<&[u8]>>(8)?.map(unpack).transpose()?,
    })
}

fn waiting(row: &database::Row) -> Result<Waiting, DatabaseError> {
    let submitted_ms = row.get::<i64>(2)?.unsigned_abs();
    Ok(Waiting { id: id_at(row, 0)?, priority: row.get(1)?, submitted_ms })
}

pub(super) fn id_at(row: &database::Row, column: usize) -> Result<TransferId, DatabaseError> {
    let text: String = row.get(column)?;
    parse_id(&text).ok_or_else(|| DatabaseError::Invalid(format!("`{text}` is no id")))
}

fn state_at(row: &database::Row, column: usize) -> Result<State, DatabaseError> {
    let text: String = row.get(column)?;
    State::parse(&text).ok_or_else(|| DatabaseError::Invalid(format!("`{text}` is no state")))
}

pub(super) fn moment(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(NEVER)
}

pub(super) fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(NEVER)
}
