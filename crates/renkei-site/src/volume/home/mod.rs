//! The work of a volume's home: content is fetched from followers, replicas are placed, the log is truncated.

pub(crate) mod backfill;
pub(crate) mod log_truncation;
pub(crate) mod placement;
pub(crate) mod repair;
