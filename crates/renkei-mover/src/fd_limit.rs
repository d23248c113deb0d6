//! The limit of open file descriptors: how many this process may have, and how many large files a session may open with
//! them.

use renkei_core::mover::receiver::MAX_OPEN_FILES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors per large file that is received: its directory, the file, and the file opened for direct I/O.
const OF_A_FILE: u64 = 3;
/// Reciprocal of the share of all descriptors that the large files of one session may use.
const SHARE: u64 = 4;

/// Raises the soft limit of open files to the hard limit; most systems set the soft limit far lower.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Number of large files that a session with `streams` streams may have open.
pub(super) fn open_files(streams: usize) -> usize {
    files_within(getrlimit(Resource::Nofile).current, streams)
}

/// At least as many as a correct sender has in flight, one a stream and the one handed out in part, even if
/// descriptors are scarce.
fn files_within(limit: Option<u64>, streams: usize) -> usize {
    let files = limit.map_or(u64::MAX, |limit| limit / SHARE / OF_A_FILE);
    usize::try_from(files).unwrap_or(usize::MAX).min(MAX_OPEN_FILES).max(streams + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_mean_few_open_files() {
        assert_eq!(files_within(Some(1024), 8), 85);
        assert_eq!(files_within(Some(64), 8), 9);
        assert_eq!(files_within(Some(1 << 20), 8), MAX_OPEN_FILES);
        assert_eq!(files_within(None, 8), MAX_OPEN_FILES);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let low = before.current.map_or(512, |current| current.min(512));
        setrlimit(Resource::Nofile, Rlimit { current: Some(low), ..before }).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: before.maximum, ..before });
    }
}
