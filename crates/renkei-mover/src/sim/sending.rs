//! The sending end of a simulated session: the shipped session, whose walk and streams are driven step by step.

use super::disk::{Disk, Fuse};
use super::memory_store::{MemoryStore, SharedDisk, lend};
use super::net::CONTROL;
use super::receiving::Outbox;
use crate::outgoing::{ByteSink, Outgoing};
use crate::progress::Watch;
use crate::send::{IdleWait, Next, SendJob, Session};
use crate::walk::{Root, Walk};
use renkei_core::error::Error;
use renkei_core::mover::filter::Filter;
use renkei_core::mover::plan::Unit;
use renkei_core::path::RelPath;
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_core::wire::message::{Class, Control, OnError, Summary};
use renkei_core::wire::{decode, encode};
use renkei_net::identity::account::Account;
use renkei_store::Store;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Entries found by the walk per event.
const WALK_STEP: usize = 64;

/// A frame in flight: its stream, and its bytes with the head.
pub type Frame = (usize, Vec<u8>);

/// The extents of large files that a session sent, with their paths.
pub type SentSlots = Vec<(RelPath, u32)>;

/// The next step of a data stream.
pub enum Step {
    /// Send these frames and ask again.
    Send(Vec<Frame>),
    /// Send these frames, the last ones.
    End(Vec<Frame>),
    /// Ask again when woken, and no later than at this time.
    Wait(Duration),
}

/// The bytes written to a stream and not yet sent.
#[derive(Default)]
struct Written(Vec<u8>);

impl ByteSink for Written {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.queue(bytes)
    }

    fn queue(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// The sending end.
pub struct SendEnd {
    session: Arc<Session>,
    walk: Option<Walk>,
    streams: Vec<Outgoing<Written>>,
    /// The wait of each stream that is idle.
    idle: Vec<Option<IdleWait>>,
    disk: SharedDisk,
    outbox: Arc<Outbox>,
    started: Instant,
    sent_slots: SentSlots,
}

impl SendEnd {
    /// A sender of everything below the root of its disk, including the root.
    pub fn new(offers: bool, digests: bool, streams: usize) -> Self {
        let disk: SharedDisk = Arc::new(Mutex::new(Disk::new(Fuse::default(), true, 0)));
        let outbox = Arc::<Outbox>::default();
        let dir = MemoryStore::new(disk.clone()).root().unwrap();
        let (from, to, shown) = (RelPath::root(), RelPath::root(), String::new());
        let job = SendJob {
            roots: vec![Root { dir, from, to, alone: false, shown }],
            recursive: true,
            offers,
            digests,
            dry_run: false,
            limit: None,
            class: Class::Normal,
            on_error: OnError::Skip,
            onto: None,
            filter: Filter::default(),
            account: Account::own().unwrap(),
            side: "here".into(),
            keep: None,
            compare: None,
        };
        let session = Session::new(job, outbox.clone(), Vec::new(), None, streams, &Watch::default());
        let session = Arc::new(session);
        SendEnd {
            walk: Some(session.walk()),
            streams: (0..streams).map(|_| Outgoing::new(Written::default(), session.clone())).collect(),
            idle: (0..streams).map(|_| None).collect(),
            session,
            disk,
            outbox,
            started: Instant::now(),
            sent_slots: SentSlots::new(),
        }
    }

    /// The extents sent so far.
    pub fn sent_slots(&self) -> &SentSlots {
        &self.sent_slots
    }

    /// Whether the walk should continue now.
    pub fn walks(&self) -> bool {
        self.walk.is_some() && self.session.wants_entries()
    }

    /// The streams that wait, for which there may be work now.
    pub fn idle_streams(&self) -> Vec<usize> {
        (1..=self.idle.len()).filter(|stream| self.idle[stream - 1].is_some()).collect()
    }

    /// Continues the walk.
    ///
    /// # Errors
    /// None on a simulated network.
    pub fn walk(&mut self, disk: &mut Disk) -> Result<Vec<Frame>, Error> {
        let shared = self.disk.clone();
        lend(&shared, disk, || (0..WALK_STEP).try_for_each(|_| self.walk_on()))?;
        Ok(self.take_messages())
    }

    fn walk_on(&mut self) -> Result<(), Error> {
        if !self.walks() {
            return Ok(());
        }
        if let Some(finding) = self.walk.as_mut().and_then(Iterator::next) {
            self.session.on_found(finding);
            return Ok(());
        }
        self.walk = None;
        self.session.on_walk_done()
    }

    /// The next step of a data stream (numbered from 1) at the time `now`.
    ///
    /// # Errors
    /// None on a simulated network.
    pub fn next_step(&mut self, now: Duration, stream: usize, disk: &mut Disk) -> Result<Step, Error> {
        let instant = self.started + now;
        let idle = self.idle[stream - 1].get_or_insert_with(|| IdleWait::new(instant));
        let next = match self.session.poll_idle(idle, instant) {
            ControlFlow::Continue(wake) => return Ok(Step::Wait(wake - self.started)),
            ControlFlow::Break(next) => next,
        };
        self.idle[stream - 1] = None;
        if let Next::Send(Unit::Extent { item, slot }) = &next {
            self.sent_slots.push((item.entry.path.clone(), *slot));
        }
        let (shared, outgoing) = (self.disk.clone(), &mut self.streams[stream - 1]);
        let goes_on = lend(&shared, disk, || outgoing.perform(next))?;
        let mut frames = split(stream, &std::mem::take(&mut outgoing.stream().0));
        if !goes_on {
            self.session.on_stream_ended()?;
        }
        frames.extend(self.take_messages());
        Ok(if goes_on { Step::Send(frames) } else { Step::End(frames) })
    }

    /// Handles a message; returns the frames to send and, at the end, the receiver's count of removed entries.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_control(&mut self, payload: &[u8]) -> Result<(Vec<Frame>, Option<u64>), Error> {
        let deleted = self.session.on_message(decode("control", payload)?, &Watch::default())?;
        Ok((self.take_messages(), deleted))
    }

    fn take_messages(&self) -> Vec<Frame> {
        self.outbox.take_messages().iter().map(control).collect()
    }

    /// Returns the result, and the frames that tell it to the receiver.
    ///
    /// # Errors
    /// None on a simulated network.
    pub fn finish(&self, deleted: u64) -> Result<(Summary, Vec<Frame>), Error> {
        let summary = self.session.conclude(Ok(deleted), &Watch::default())?;
        Ok((summary, self.take_messages()))
    }
}

/// A control message as a frame.
pub fn control(message: &Control) -> Frame {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, FrameKind::Control, &encode(message));
    (CONTROL, bytes)
}

/// The frames in the bytes of a stream.
fn split(stream: usize, mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(head) = bytes.first_chunk() {
        let head = frame::parse_head(*head).expect("the shipped code wrote it");
        let (frame, rest) = bytes.split_at(HEAD_BYTES + head.payload_bytes);
        frames.push((stream, frame.to_vec()));
        bytes = rest;
    }
    frames
}
