//! The machine's disk for the journal: the receiver's home is rarely on the destination's file system. The journal
//! itself is the shipped one; its lock is not simulated.

use super::disk::{Crash, Disk, Fuse, Ino, ROOT};
use crate::journal::{Journal, LogFile};
use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::{Header, State};
use renkei_core::sim::chance::Chance;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

const NAME: &str = "journal";

/// The disk with the journal of one job; clones share it.
#[derive(Clone)]
pub struct JournalDisk(Arc<Mutex<Disk>>);

impl JournalDisk {
    /// A disk without a journal.
    pub fn new(fuse: Fuse) -> Self {
        JournalDisk(Arc::new(Mutex::new(Disk::new(fuse, true, 0))))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// The journal's bytes; empty if there is no file.
    pub fn bytes(&self) -> Vec<u8> {
        let disk = self.disk();
        let content = disk.entry(ROOT, NAME.as_bytes()).and_then(|found| disk.content(found.ino));
        content.map(|content| content.read(0..u64::MAX)).unwrap_or_default()
    }

    /// Opens the journal, and returns its state.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn open(&self, header: &Header) -> Result<(Journal<SimFile>, State), Error> {
        let ino = self.disk().create_temp(ROOT, NAME.as_bytes(), true)?;
        Journal::open_on(SimFile { disk: self.clone(), ino }, header, &|_| Ok(()))
    }

    /// Truncates the journal to `len` bytes.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn cut(&self, len: u64) -> Result<(), Error> {
        let mut disk = self.disk();
        let ino = disk.entry(ROOT, NAME.as_bytes())?.ino;
        disk.set_len(ino, len)
    }

    /// Writes fail after this many more bytes.
    pub fn full_after(&self, bytes: u64) {
        self.disk().full_after(bytes);
    }

    /// Makes all of it durable.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn sync(&self) -> Result<(), Error> {
        self.disk().sync_all()
    }

    /// The process or the machine crashes.
    pub fn crash(&self, crash: Crash, chance: &mut Chance) {
        self.disk().crash(crash, chance);
    }
}

/// The file of an open journal.
pub struct SimFile {
    disk: JournalDisk,
    ino: Ino,
}

fn failed(error: Error) -> io::Error {
    let kind = if error.code == Code::NoSpace { io::ErrorKind::StorageFull } else { io::ErrorKind::Other };
    io::Error::new(kind, error.to_string())
}

impl LogFile for SimFile {
    fn path(&self) -> &Path {
        Path::new(NAME)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.disk().content(self.ino).map_err(failed)?.size())
    }

    fn read_at(&self, target: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.disk.disk();
        let content = disk.content(self.ino).map_err(failed)?;
        let bytes = content.read(offset..offset + target.len() as u64);
        target[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn append(&self, bytes: &[u8], end: u64) -> io::Result<u64> {
        self.disk.disk().write_at(self.ino, end, bytes).map_err(failed)?;
        Ok(end + bytes.len() as u64)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.disk.disk().set_len(self.ino, length).map_err(failed)
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.sync(self.ino).and_then(|()| disk.sync(ROOT)).map_err(failed)
    }

    fn set_aside(&self) {}

    fn remove(&self) -> io::Result<()> {
        self.disk.disk().remove_file(ROOT, NAME.as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::mover::journal::{Record, VERSION};

    fn header() -> Header {
        Header { version: VERSION, job: 1, boot: [1; 16], to: None, local: Vec::new(), account: "a".into() }
    }

    #[test]
    fn the_header_outlives_a_power_cut_and_records_do_not() {
        let disk = JournalDisk::new(Fuse::default());
        let (mut journal, state) = disk.open(&header()).unwrap();
        assert_eq!(state.header, None);
        let mut record = Vec::new();
        Record::Dropped { key: [1; 16] }.write(&mut record);
        let length = disk.bytes().len();
        journal.append(&record).unwrap();
        disk.crash(Crash::PowerLosesAll, &mut Chance::new(1));
        assert_eq!(disk.bytes().len(), length);
        assert_eq!(disk.open(&header()).unwrap().1.header, Some(header()));
    }
}
