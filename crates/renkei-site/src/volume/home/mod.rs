//! The work of a volume's home: content is fetched from followers, replicas are placed, the log is truncated.
//!
//! `log_serving` answers followers, `backfill` fetches content that followers wrote (`backfill_state`), `placement`
//! assigns replicas to sites, `log_truncation` bounds the log, `repair` replaces corrupt files from replicas.

pub(crate) mod backfill;
pub(crate) mod backfill_state;
mod log_serving;
pub(crate) mod log_truncation;
pub(crate) mod placement;
pub(crate) mod repair;
