//! Reservation of disk space for large files in flight: checked before any space is allocated, allocated a little
//! ahead of the extents that arrive, released for those that did not arrive.
//!
//! So a file that does not fit fails before it has filled the disk, and an interrupted one occupies no more than the
//! part that has arrived.

use renkei_core::error::{Code, Error};
use renkei_core::units::human;
use renkei_store::WriteFile;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Limit of the space allocated ahead of extents that have not begun to arrive, of all files of a session.
const AHEAD_BYTES: u64 = 128 << 20;
/// Most space allocated before an extent that arrives out of order: streams are no further apart.
const BEFORE_BYTES: u64 = 32 << 20;

/// The disk space that the files of one session have reserved.
#[derive(Default)]
pub(super) struct ReservedSpace {
    /// Bytes allocated whose extents have not begun to arrive.
    ahead: AtomicU64,
    /// Bytes of begun files that are not allocated yet.
    promised: AtomicU64,
}

/// The reservation of one file.
pub(super) struct SpaceReservation {
    room: Arc<ReservedSpace>,
    size: u64,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// All before this offset is allocated or was skipped.
    upto: u64,
    ahead: u64,
}

impl ReservedSpace {
    /// Grants up to `most` bytes, and at most half of the remaining budget, so that the next file finds some too.
    fn take_ahead(&self, most: u64) -> u64 {
        let mut granted = 0;
        let _ = self.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |ahead| {
            granted = (AHEAD_BYTES.saturating_sub(ahead) / 2).min(most);
            Some(ahead + granted)
        });
        granted
    }
}

impl SpaceReservation {
    /// Begins the reservation of a file of `size` bytes, of which `here` are on the disk already.
    ///
    /// # Errors
    /// `NoSpace` if the file and the bytes promised to others exceed the free space of the file system.
    pub(super) fn begin(
        room: &Arc<ReservedSpace>,
        file: &dyn WriteFile,
        size: u64,
        here: u64,
    ) -> Result<Self, Error> {
        let promised = room.promised.fetch_add(size, Ordering::Relaxed);
        let own = SpaceReservation { room: room.clone(), size, taken: Mutex::default() };
        let needed = size.saturating_sub(here);
        match file.room() {
            Some(free) if needed.saturating_add(promised) > free => {
                let others = match promised {
                    0 => String::new(),
                    promised => format!(" beside {} for other files of this copy", human(promised)),
                };
                let cause = format!("it needs {}{others}, {} are free", human(needed), human(free));
                Err(Error::new(Code::NoSpace, "make room", "", cause))
            }
            _ => Ok(own),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Called when an extent begins to arrive: allocates space for it and for some of the extents that follow.
    pub(super) fn reserve(&self, file: &dyn WriteFile, extent: Range<u64>) -> Result<(), Error> {
        let mut taken = self.lock();
        if extent.end <= taken.upto {
            let begun = taken.ahead.min(extent.end - extent.start);
            taken.ahead -= begun;
            self.room.ahead.fetch_sub(begun, Ordering::Relaxed);
            return Ok(());
        }
        let from = taken.upto.max(extent.start.saturating_sub(BEFORE_BYTES));
        let more = self.room.take_ahead(self.size - extent.end);
        let before = extent.start.saturating_sub(from);
        self.room.ahead.fetch_add(before, Ordering::Relaxed);
        taken.ahead += more + before;
        let to = extent.end + more;
        self.room.promised.fetch_sub(to - taken.upto, Ordering::Relaxed);
        taken.upto = to;
        file.allocate(from..to)
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        let taken = self.lock();
        self.room.ahead.fetch_sub(taken.ahead, Ordering::Relaxed);
        self.room.promised.fetch_sub(self.size - taken.upto, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::os::unix::fs::MetadataExt;

    const SLOT: u64 = 16 << 20;

    struct Case {
        dir: tempfile::TempDir,
        room: Arc<ReservedSpace>,
    }

    impl Case {
        fn new() -> Self {
            Case { dir: tempfile::tempdir().unwrap(), room: Arc::default() }
        }

        fn file(&self, name: &str, size: u64) -> Box<dyn WriteFile> {
            let store = LocalStore::open(self.dir.path(), AccessMode::ReadWrite).unwrap();
            let file = store.root().unwrap().create_temp(name.as_bytes(), false).unwrap();
            file.set_len(size).unwrap();
            file
        }

        fn on_disk(&self, name: &str) -> u64 {
            self.dir.path().join(name).metadata().unwrap().blocks() * 512
        }

        fn counts(&self) -> [u64; 2] {
            [&self.room.ahead, &self.room.promised].map(|count| count.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn little_is_preallocated_and_released() {
        let case = Case::new();
        let size = 1000 * SLOT;
        let file = case.file("a", size);
        if file.room().is_none_or(|free| free < size) {
            return eprintln!("skipped: needs a file system that reserves, with 16 GB of room");
        }
        let own = SpaceReservation::begin(&case.room, &*file, size, 0).unwrap();
        assert_eq!(case.counts(), [0, size]);
        own.reserve(&*file, 0..SLOT).unwrap();
        assert_eq!(case.counts(), [4 * SLOT, size - 5 * SLOT]);
        assert!((5 * SLOT..=6 * SLOT).contains(&case.on_disk("a")), "{}", case.on_disk("a"));
        own.reserve(&*file, SLOT..2 * SLOT).unwrap();
        assert_eq!(case.counts(), [3 * SLOT, size - 5 * SLOT]);
        // An extent at a distant offset allocates nothing of the gap.
        own.reserve(&*file, 900 * SLOT..901 * SLOT).unwrap();
        assert!(case.on_disk("a") < 16 * SLOT, "{}", case.on_disk("a"));
        // Another file gets a share of the remaining budget, which is that of the session.
        let other = case.file("b", size);
        let second = SpaceReservation::begin(&case.room, &*other, size, 0).unwrap();
        second.reserve(&*other, 0..SLOT).unwrap();
        assert!(case.on_disk("b") <= 4 * SLOT, "{}", case.on_disk("b"));
        assert!(case.counts()[0] <= AHEAD_BYTES);
        drop((own, second));
        assert_eq!(case.counts(), [0, 0]);
    }

    #[test]
    fn files_that_do_not_fit_are_refused_before_any_space_is_reserved() {
        let case = Case::new();
        let file = case.file("a", SLOT);
        let Some(free) = file.room() else { return eprintln!("skipped: needs a file system that reserves") };
        let refused = SpaceReservation::begin(&case.room, &*file, free + (1 << 40), 0).err().unwrap();
        assert_eq!(refused.code, Code::NoSpace);
        assert!(refused.cause.contains("are free"), "{refused}");
        let begun = SpaceReservation::begin(&case.room, &*file, free - free / 4, 0).unwrap();
        let refused = SpaceReservation::begin(&case.room, &*file, free / 2, 0).err().unwrap();
        assert!(refused.cause.contains("other files of this copy"), "{refused}");
        drop(begun);
        assert_eq!(case.counts(), [0, 0]);
        assert!(case.on_disk("a") <= 64 << 10, "{}", case.on_disk("a"));
    }
}
