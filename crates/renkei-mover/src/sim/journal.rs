//! The journal's file, on a simulated disk of its own: the receiver's home is rarely on the destination's file
//! system.

use super::disk::{Crash, Disk, Fuse, Ino, ROOT};
use crate::journal::RecordFile;
use renkei_core::error::Error;
use renkei_core::mover::journal::{Header, Record, State};
use renkei_core::sim::chance::Chance;
use std::sync::{Arc, Mutex};

const NAME: &[u8] = b"journal";

/// The journal of one job; clones share the same file.
#[derive(Clone)]
pub struct Journal(Arc<Mutex<Disk>>);

impl Journal {
    /// A disk without a journal.
    pub fn new(fuse: Fuse) -> Self {
        Journal(Arc::new(Mutex::new(Disk::new(fuse, true, 0))))
    }

    fn ino(&self) -> Result<Ino, Error> {
        Ok(self.0.lock().unwrap().entry(ROOT, NAME)?.ino)
    }

    /// The journal's bytes; empty if there is no file.
    pub fn bytes(&self) -> Vec<u8> {
        let disk = self.0.lock().unwrap();
        let content = disk.entry(ROOT, NAME).and_then(|found| disk.content(found.ino));
        content.map(|content| content.read(0..u64::MAX)).unwrap_or_default()
    }

    /// Opens it, truncates a torn tail, and returns its state.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn open(&self, header: Header) -> Result<State, Error> {
        let (state, good) = State::read(&self.bytes());
        let ino = self.0.lock().unwrap().create_temp(ROOT, NAME, true)?;
        self.cut(good as u64)?;
        if good == 0 {
            let mut bytes = Vec::new();
            Record::Header(header).write(&mut bytes);
            self.append(&bytes)?;
        }
        // The header must be durable before a job leaves temporary files, so that they are recognised. The run before
        // may have ended between writing the header and this sync.
        self.0.lock().unwrap().sync(ino)?;
        self.0.lock().unwrap().sync(ROOT)?;
        Ok(state)
    }

    /// Appends whole records.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn append(&self, records: &[u8]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let ino = self.ino()?;
        let mut disk = self.0.lock().unwrap();
        let end = disk.content(ino)?.size();
        disk.write_at(ino, end, records)
    }

    /// Truncates it to `len` bytes.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn cut(&self, len: u64) -> Result<(), Error> {
        let ino = self.ino()?;
        self.0.lock().unwrap().set_len(ino, len)
    }

    /// Removes it; a failure only costs the next run a useless read.
    pub fn remove(&self) {
        let _ = self.0.lock().unwrap().remove_file(ROOT, NAME);
    }

    /// Makes all of it durable.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn sync(&self) -> Result<(), Error> {
        self.0.lock().unwrap().sync_all()
    }

    /// The process or the machine crashes.
    pub fn crash(&self, crash: Crash, chance: &mut Chance) {
        self.0.lock().unwrap().crash(crash, chance);
    }
}

impl RecordFile for Journal {
    fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        Journal::append(self, records)
    }

    fn remove(self: Box<Self>) {
        Journal::remove(&self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::mover::journal::VERSION;

    fn header() -> Header {
        Header { version: VERSION, job: 1, boot: [1; 16], to: None, local: Vec::new(), account: "a".into() }
    }

    #[test]
    fn the_header_outlives_a_power_cut_and_records_do_not() {
        let journal = Journal::new(Fuse::default());
        assert_eq!(journal.open(header()).unwrap().header, None);
        let mut record = Vec::new();
        Record::Dropped { key: [1; 16] }.write(&mut record);
        let length = journal.bytes().len();
        journal.append(&record).unwrap();
        journal.crash(Crash::PowerLosesAll, &mut Chance::new(1));
        assert_eq!(journal.bytes().len(), length);
        assert_eq!(journal.open(header()).unwrap().header, Some(header()));
    }
}
