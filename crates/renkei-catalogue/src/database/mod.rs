//! Connections to SQLite and PostgreSQL, and statements that run on both.
//!
//! SQLite works in the calling thread; a call to PostgreSQL waits there for the driver's runtime. A [`Pool`] lends
//! connections, a [`Query`] is a statement with its values, a [`Row`] owns what was found. Guarantee: a connection on
//! which something failed is not used again unless its transaction was rolled back. Non-goal: the tables.

mod pool;
mod postgres;
mod query;
mod sqlite;
mod value;

pub(crate) use pool::{Pool, Source, Work};
pub(crate) use postgres::Server;
pub(crate) use query::{Connection, Query, query};
pub(crate) use sqlite::{File, Opener, copy, create_private};
pub(crate) use value::{DatabaseError, Row, Value};
