//! The receiving end of a simulated session: the shipped session, fed with frames and messages one by one.

use super::disk::{Disk, Fuse};
use super::journal::SimFile;
use super::memory_store::{MemoryStore, SharedDisk, lend};
use crate::commit;
use crate::dest_dirs::DestDirs;
use crate::failure::Peer;
use crate::incoming::{ByteStream, Incoming};
use crate::journal::Journal;
use crate::progress::Watch;
use crate::receive::{Machine, ReceiveJob, Session, judge_batch, unlimited};
use renkei_core::error::Error;
use renkei_core::ids::EntryId;
use renkei_core::mover::journal::State;
use renkei_core::mover::receiver::{Action, Done};
use renkei_core::path::RelPath;
use renkei_core::wire::data::{EntryHead, ExtentHead};
use renkei_core::wire::frame::{self, FrameKind};
use renkei_core::wire::message::{Control, ReceiveOptions};
use renkei_core::wire::{decode, violation};
use renkei_net::identity::account::Account;
use renkei_store::Store;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The key of the only job.
pub const JOB: u64 = 1;

/// The committer's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Poll again when something was written, or after this time.
    Wait(Option<Duration>),
    /// A sync is in progress; call [`ReceiveEnd::on_synced`] when it has finished.
    Sync,
    /// Poll again at once.
    Again,
    /// The sender was notified of completion.
    Done,
}

/// The messages for the other end.
#[derive(Default)]
pub(super) struct Outbox {
    messages: Mutex<Vec<Control>>,
    acknowledged: Mutex<Vec<EntryId>>,
}

impl Outbox {
    /// Takes the messages since the last call.
    pub(super) fn take_messages(&self) -> Vec<Control> {
        std::mem::take(&mut self.messages.lock().unwrap())
    }
}

impl Peer for Outbox {
    fn send(&self, message: &Control) -> Result<(), Error> {
        if let Control::Acked(ranges) = message {
            let ids = ranges.iter().flat_map(|range| (0..range.count).map(|n| range.first + n));
            self.acknowledged.lock().unwrap().extend(ids);
        }
        self.messages.lock().unwrap().push(message.clone());
        Ok(())
    }

    fn stop_reading(&self) {}
}

/// The bytes of the frame that has arrived on a stream.
#[derive(Default)]
struct FrameBytes {
    bytes: Vec<u8>,
    used: usize,
}

impl ByteStream for FrameBytes {
    fn read_exact(&mut self, target: &mut [u8]) -> Result<(), Error> {
        let rest = self.bytes.get(self.used..self.used + target.len());
        let rest = rest.ok_or_else(|| violation("data stream", "a frame shorter than it says"))?;
        target.copy_from_slice(rest);
        self.used += target.len();
        Ok(())
    }

    fn read_exact_before_last(&mut self, target: &mut [u8]) -> Result<(), Error> {
        let wanted = target.len() - 1;
        self.read_exact(&mut target[..wanted])
    }
}

/// The receiving end.
pub struct ReceiveEnd {
    session: Arc<Session>,
    streams: Vec<Incoming<FrameBytes>>,
    ended: Vec<bool>,
    committer: DestDirs,
    judge: DestDirs,
    disk: SharedDisk,
    clock: Arc<AtomicU64>,
    outbox: Arc<Outbox>,
    paths: HashMap<EntryId, RelPath>,
    syncing: Option<(Vec<Done>, Vec<Done>)>,
}

impl ReceiveEnd {
    /// A receiver into the root of its disk, on a machine of this boot; `kept` is the journal's content.
    pub fn new(
        options: ReceiveOptions,
        journal: Journal<SimFile>,
        kept: State,
        boot: [u8; 16],
        streams: usize,
    ) -> Self {
        let disk: SharedDisk = Arc::new(Mutex::new(Disk::new(Fuse::default(), true, 0)));
        let (clock, outbox) = (Arc::new(AtomicU64::new(0)), Arc::<Outbox>::default());
        let job = ReceiveJob {
            base: MemoryStore::new(disk.clone()).root().unwrap(),
            job: JOB,
            options,
            journal: None,
            max_deferred: 1_000_000,
            memory: unlimited(),
            account: Account::own().unwrap(),
            side: "there".into(),
            root: String::new(),
            keep: None,
            within: vec![RelPath::root()],
            receive_hooks: None,
            on_digest: None,
        };
        let machine = Machine {
            control: outbox.clone(),
            sockets: Vec::new(),
            journal: Some(Box::new(journal)),
            kept,
            boot,
            clock: Box::new({
                let clock = clock.clone();
                move || Duration::from_nanos(clock.load(Ordering::Relaxed))
            }),
        };
        let session = Arc::new(Session::new(job, machine, streams, &Watch::default()));
        ReceiveEnd {
            streams: (0..streams).map(|_| Incoming::new(FrameBytes::default(), session.clone())).collect(),
            ended: vec![false; streams],
            committer: session.places(),
            judge: session.places(),
            session,
            disk,
            clock,
            outbox,
            paths: HashMap::new(),
            syncing: None,
        }
    }

    /// Lets the session work on `disk` at the time `now`.
    fn on_disk<T>(&mut self, now: Duration, disk: &mut Disk, work: impl FnOnce(&mut Self) -> T) -> T {
        self.clock.store(now.as_nanos() as u64, Ordering::Relaxed);
        let shared = self.disk.clone();
        lend(&shared, disk, || work(self))
    }

    /// Takes the messages for the sender.
    pub fn take_messages(&mut self) -> Vec<Control> {
        self.outbox.take_messages()
    }

    /// Takes the paths acknowledged since the last call.
    pub fn take_acknowledged(&mut self) -> Vec<RelPath> {
        let ids = std::mem::take(&mut *self.outbox.acknowledged.lock().unwrap());
        ids.iter().map(|id| self.paths[id].clone()).collect()
    }

    /// Writes the journal records produced since the last call.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn write_journal(&mut self) -> Result<(), Error> {
        self.session.write_journal()
    }

    /// Removes the journal.
    pub fn remove_journal(&self) {
        self.session.remove_journal();
    }

    /// Ends the session, which `failed` or not.
    ///
    /// # Errors
    /// The errors of the journal's disk.
    pub fn conclude(&mut self, disk: &mut Disk, failed: bool) -> Result<(), Error> {
        self.write_journal()?;
        if failed {
            let now = self.session.now();
            self.on_disk(now, disk, |end| end.session.free_unwritten());
        }
        self.write_journal()
    }

    /// Handles a frame of a data stream (numbered from 1); frames after a stream's end are ignored.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_frame(
        &mut self,
        now: Duration,
        disk: &mut Disk,
        stream: usize,
        bytes: Vec<u8>,
    ) -> Result<(), Error> {
        if self.ended[stream - 1] {
            return Ok(());
        }
        let (head, payload) = bytes.split_first_chunk().expect("longer than a head");
        match frame::parse_head(*head)?.kind {
            Some(FrameKind::Entry) => {
                self.note_path(EntryHead::read(payload).map(|(head, _)| (head.id, head.entry.path)))
            }
            Some(FrameKind::Extent) => {
                self.note_path(ExtentHead::read(payload).map(|head| (head.id, head.entry.path)))
            }
            _ => {}
        }
        let incoming = &mut self.streams[stream - 1];
        *incoming.stream() = FrameBytes { bytes, used: 0 };
        let received = self.on_disk(now, disk, |end| end.streams[stream - 1].receive_frame());
        match received {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.ended[stream - 1] = true;
                self.session.on_stream_ended();
                Ok(())
            }
            Err(error) => {
                // A stream is read no further after an error.
                self.streams[stream - 1] = Incoming::new(FrameBytes::default(), self.session.clone());
                Err(error)
            }
        }
    }

    fn note_path(&mut self, entry: Result<(EntryId, RelPath), Error>) {
        self.paths.extend(entry);
    }

    /// Handles a message of the sender; true at the end of the session.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_control(&mut self, now: Duration, disk: &mut Disk, payload: &[u8]) -> Result<bool, Error> {
        let message = decode("control", payload)?;
        if let Control::Offer(items) = &message {
            self.paths.extend(items.iter().map(|item| (item.id, item.entry.path.clone())));
        }
        let ended = self.on_disk(now, disk, |end| {
            let (session, judge) = (end.session.clone(), &mut end.judge);
            session.on_message(message, |items| judge_batch(&session, judge, &items))
        });
        ended.map(|summary| summary.is_some())
    }

    /// Carries out the committer's next action.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn poll(&mut self, now: Duration, disk: &mut Disk) -> Result<Next, Error> {
        self.on_disk(now, disk, |end| match end.session.poll_action() {
            Action::Wait(until) => Ok(Next::Wait(until)),
            Action::Sync { mut written, renamed } => {
                commit::sync(&end.session, &mut end.committer, &mut written, &renamed)?;
                end.syncing = Some((written, renamed));
                Ok(Next::Sync)
            }
            action => match commit::perform(&end.session, &mut end.committer, action)? {
                true => Ok(Next::Done),
                false => Ok(Next::Again),
            },
        })
    }

    /// The last sync has finished.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_synced(&mut self, now: Duration, disk: &mut Disk) -> Result<(), Error> {
        let (written, renamed) = self.syncing.take().expect("a sync is under way");
        self.on_disk(now, disk, |end| commit::on_synced(&end.session, &mut end.committer, written, renamed))
    }
}
