//! One job between two simulated machines, session by session, with faults.
//!
//! A [`World`] outlives its sessions: disks, journal and the list of acknowledgements persist. A session runs until
//! it ends by itself, by a cut or by a crash; the next one resumes it. The world checks after every event that no
//! file under a final name is partial, after every crash that nothing acknowledged is lost, and after every session
//! that no extent vouched for by the journal was sent again.

use super::check::{Acknowledged, Surplus, Versions, check_copy};
use super::content::{Content, SlotDigests};
use super::disk::{Crash, Disk, Fuse, Ino};
use super::journal::JournalDisk;
use super::net::{Path, Queue, Streams};
use super::receiving::{JOB, ReceiveEnd};
use super::sending::{SendEnd, SentSlots};
use super::session::{Event, Kept, Session};
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::slot_count;
use renkei_core::mover::journal::{Header, State, VERSION, path_key};
use renkei_core::mover::plan::SMALL_FILE_BYTES;
use renkei_core::mover::receiver::MAX_OPEN_FILES;
use renkei_core::path::RelPath;
use renkei_core::sim::chance::Chance;
use renkei_core::wire::message::{Existing, ReceiveOptions, Summary};
use renkei_store::temp::temp_name;
use std::time::Duration;

/// Interval at which the journal is written.
const BEHIND: Duration = Duration::from_millis(100);
/// Idle streams are kept alive, so a session that does not end is recognised by its time.
const STALLED: Duration = Duration::from_secs(3_600);
/// Sessions without a fault within which a job must succeed.
const MAX_CLEAN_SESSIONS: usize = 4;

/// Description of a violated invariant.
pub type Broken = String;

/// Parameters that are constant over all sessions.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The seed of all random decisions.
    pub seed: u64,
    /// Data streams.
    pub streams: usize,
    /// The network.
    pub path: Path,
    /// How names that exist are handled.
    pub existing: Existing,
    /// Remove entries that the source does not have.
    pub delete: bool,
    /// Whether the receiving account bypasses mode bits.
    pub privileged: bool,
    /// Duration of a sync.
    pub sync_time: Duration,
    /// Check all final names after every event; otherwise only after crashes and at the end, for large trees.
    pub check_always: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            streams: 3,
            path: Path { latency: Duration::from_millis(5), rate: 100_000_000 },
            existing: Existing::Replace,
            delete: false,
            privileged: true,
            sync_time: Duration::from_millis(3),
            check_always: true,
        }
    }
}

/// The fault injected into a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// A stream, or all, is cut after this time.
    Cut(Option<usize>, Duration),
    /// A stream is cut after this many bytes.
    CutAfter(usize, u64),
    /// The receiving machine stops after this many changes to its disks.
    Crash(Crash, u64),
}

/// How a session ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The sender was notified of completion.
    Done(Summary),
    /// An error ended it.
    Lost(Error),
    /// The receiver crashed.
    Crashed,
}

/// The disks of both sides and the history recorded about them.
pub struct World {
    /// The source disk.
    pub source: Disk,
    /// The destination disk.
    pub destination: Disk,
    pub(super) setup: Setup,
    journal: JournalDisk,
    fuse: Fuse,
    chance: Chance,
    boot: u64,
    pub(super) queue: Queue<Event>,
    versions: Versions,
    pub(super) acknowledged: Acknowledged,
    memo: SlotDigests,
}

impl World {
    /// Two empty disks.
    pub fn new(setup: Setup, memo: SlotDigests) -> Self {
        let fuse = Fuse::default();
        World {
            source: Disk::new(Fuse::default(), true, 0),
            // Another epoch, so that files that differ never have the same time by chance.
            destination: Disk::new(fuse.clone(), setup.privileged, 1 << 40),
            journal: JournalDisk::new(fuse.clone()),
            fuse,
            chance: Chance::new(setup.seed),
            setup,
            boot: 1,
            queue: Queue::default(),
            versions: Versions::default(),
            acknowledged: Acknowledged::default(),
            memo,
        }
    }

    /// Accepts the present content of the destination as complete and durable; it was not put there by the job.
    ///
    /// # Errors
    /// Only if the machine has stopped.
    pub fn adopt_destination(&mut self) -> Result<(), Error> {
        self.versions.note(&self.destination);
        self.destination.sync_all()
    }

    /// Virtual time since the beginning.
    pub fn now(&self) -> Duration {
        self.queue.now()
    }

    /// Number of changes to the receiver's disks so far, each a possible crash point.
    pub fn changes(&self) -> u64 {
        self.fuse.changes()
    }

    /// The disk of the receiver's journal.
    pub fn journal(&self) -> &JournalDisk {
        &self.journal
    }

    /// Runs a session.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn session(&mut self, fault: Fault) -> Result<Outcome, Broken> {
        self.versions.note(&self.source);
        if let Fault::Crash(_, changes) = fault {
            self.fuse.arm(changes);
        }
        let outcome = match self.open_session(fault) {
            Ok(mut session) => self.run(&mut session)?,
            Err(error) => Outcome::Lost(error),
        };
        self.queue.clear();
        if self.fuse.is_blown() {
            let Fault::Crash(crash, _) = fault else { return Err("a fuse blew by itself".into()) };
            self.crash(crash)?;
            return Ok(Outcome::Crashed);
        }
        self.fuse.reset();
        self.destination.recycle();
        Ok(outcome)
    }

    /// Crashes the receiving machine or process; checks the surviving state.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn crash(&mut self, crash: Crash) -> Result<(), Broken> {
        self.fuse.reset();
        self.destination.crash(crash, &mut self.chance);
        self.journal.crash(crash, &mut self.chance);
        self.boot += u64::from(crash != Crash::Kill);
        self.versions.check_final_names(&self.destination)?;
        self.acknowledged.check(&self.destination, &self.versions)
    }

    /// Runs sessions without a fault until one succeeds in full, and checks the copy; then cuts the power and checks
    /// that everything reported as done is still there.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn settle(&mut self) -> Result<Summary, Broken> {
        let mut last = None;
        for _ in 0..MAX_CLEAN_SESSIONS {
            let before = self.source.version();
            match self.session(Fault::None)? {
                Outcome::Done(summary) if summary.failed == 0 && self.source.version() == before => {
                    let surplus = if self.setup.delete { Surplus::Nothing } else { Surplus::Others };
                    check_copy(&self.source, &self.destination, surplus)?;
                    self.crash(Crash::PowerLosesAll)?;
                    check_copy(&self.source, &self.destination, Surplus::Anything)
                        .map_err(|broken| format!("not durable: {broken}"))?;
                    return Ok(summary);
                }
                other => last = Some(other),
            }
        }
        Err(format!("no success without faults: {last:?}"))
    }

    /// The receiving machine loses power just after the journal, and not the data, was synced.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn lose_power_but_journal(&mut self) -> Result<(), Broken> {
        self.journal.sync().map_err(|error| error.to_string())?;
        self.crash(Crash::Power)
    }

    fn header(&self) -> Header {
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&self.boot.to_le_bytes());
        Header { version: VERSION, job: JOB, boot, to: None, local: b"/sim".to_vec(), account: "sim".into() }
    }

    // ---- a session ---------------------------------------------------------------------------------------------

    fn open_session(&mut self, fault: Fault) -> Result<Session, Error> {
        let (journal, state) = self.journal.open(&self.header())?;
        let Setup { streams, existing, delete, path, .. } = self.setup;
        let offers = !state.is_empty() || existing != Existing::Replace;
        let kept = self.kept(&state);
        let options = ReceiveOptions { delete, ..ReceiveOptions::plain(existing) };
        let boot = self.header().boot;
        let mut session = Session {
            streams: Streams::new(path, streams),
            send: Some(SendEnd::new(offers, existing == Existing::SameContent, streams)),
            turns: vec![0; streams],
            receive: ReceiveEnd::new(options, journal, state, boot, streams),
            kept,
            sent_slots: SentSlots::new(),
            stalled_at: self.now() + STALLED,
            next_tick: self.now() + BEHIND,
            walking: true,
            syncing: false,
            all_done: false,
            noticed: false,
            checked: 0,
            summary: None,
            over: None,
        };
        match fault {
            Fault::Cut(stream, after) => self.queue.at(self.now() + after, Event::Cut(stream)),
            Fault::CutAfter(stream, bytes) => session.streams.cut_after(stream, bytes),
            Fault::Crash(..) | Fault::None => {}
        }
        self.queue.at(self.now(), Event::Walk);
        (1..=streams).for_each(|stream| self.free(&mut session, stream, self.now()));
        Ok(session)
    }

    /// Extents that are on the disk as recorded in the journal.
    fn kept(&self, state: &State) -> Kept {
        let (mut kept, mut partial) = (Kept::new(), Kept::new());
        let mut partial_files = 0;
        for (path, ino) in self.source.walk() {
            let Ok(stamp) = self.source.stamp(ino) else { continue };
            let slots = self.kept_slots(state, &path, stamp);
            let slots_of = slots.iter().map(|slot| ((path.clone(), *slot), stamp));
            if slots.len() as u32 == slot_count(stamp.size) {
                kept.extend(slots_of);
            } else if !slots.is_empty() {
                partial.extend(slots_of);
                partial_files += 1;
            }
        }
        // Partly written files are resumed as far as they may be open at a time.
        if partial_files <= MAX_OPEN_FILES {
            kept.append(&mut partial);
        }
        kept
    }

    fn kept_slots(&self, state: &State, path: &RelPath, stamp: Stamp) -> Vec<u32> {
        let (key, slots, name) = (path_key(path), slot_count(stamp.size), path.name().unwrap_or_default());
        if let Some((source, ino)) = state.finished.get(&key)
            && *source == stamp
            && self.holds(path, name, *ino)
        {
            return (0..slots).collect();
        }
        let Some(partial) = state.partial.get(&key).filter(|partial| partial.source == stamp) else {
            return Vec::new();
        };
        let ino = partial.temp_ino;
        let content = self.destination.content(ino).ok().filter(|content| content.size() == stamp.size);
        let right = |(slot, digest): &(&u32, &[u8; 32])| {
            content.is_some_and(|content| self.memo.of(content, **slot, stamp.size) == **digest)
        };
        let kept: Vec<u32> = partial.slots.iter().filter(right).map(|(slot, _)| *slot).collect();
        // A temporary file with a further hard link is not written to, so that the content under that name does not
        // change.
        let is_temp = self.holds(path, &temp_name(JOB, path), ino) && self.destination.names_of(ino) == 1;
        // A file under its final name is not written to: it is kept whole or not at all.
        let is_final = self.holds(path, name, ino) && kept.len() as u32 == slots;
        if is_temp || is_final { kept } else { Vec::new() }
    }

    fn holds(&self, path: &RelPath, name: &[u8], ino: Ino) -> bool {
        let found = self.destination.place(path).and_then(|(dir, _)| self.destination.entry(dir, name));
        found.is_ok_and(|found| found.ino == ino && matches!(found.entry.kind, EntryKind::File { .. }))
    }

    fn run(&mut self, session: &mut Session) -> Result<Outcome, Broken> {
        while session.over.is_none() {
            let Some(event) = self.queue.advance().filter(|_| self.now() < session.stalled_at) else {
                return Err(format!("stalled at {:?}", self.now()));
            };
            self.tick(session);
            if !self.fuse.is_blown()
                && let Err(error) = self.handle(session, event)
            {
                session.over = Some(Err(error));
            }
            self.after_event(session)?;
        }
        let failed = !matches!(session.over, Some(Ok(())));
        let flushed = self.fuse.is_blown() || session.receive.conclude(&mut self.destination, failed).is_ok();
        self.check_sent(session)?;
        match (session.over.take(), session.summary.take()) {
            (Some(Ok(())), Some(summary)) if summary.failed == 0 && flushed => {
                session.receive.remove_journal();
                Ok(Outcome::Done(summary))
            }
            (_, Some(summary)) => Ok(Outcome::Done(summary)),
            (Some(Err(error)), None) => Ok(Outcome::Lost(error)),
            (_, None) => Err("the receiver ended before the sender".into()),
        }
    }

    fn tick(&mut self, session: &mut Session) {
        while session.next_tick <= self.now() && !self.fuse.is_blown() {
            session.next_tick += BEHIND;
            if let Err(error) = session.receive.write_journal() {
                session.over = Some(Err(error));
            }
        }
    }

    fn after_event(&mut self, session: &mut Session) -> Result<(), Broken> {
        for (path, content) in self.source.take_history() {
            self.versions.note_one(path, &content);
        }
        self.check_journal()?;
        for path in session.receive.take_acknowledged() {
            self.acknowledged.note(path, &self.destination, &self.versions)?;
        }
        if self.setup.check_always && self.destination.version() != session.checked {
            session.checked = self.destination.version();
            self.versions.check_final_names(&self.destination)?;
        }
        if self.fuse.is_blown() {
            self.take_messages(session);
            session.over = Some(Err(Error::new(Code::Cancelled, "crash", "receiver", "simulated")));
        }
        Ok(())
    }

    /// A file that has left its temporary name can only be resumed if the journal has all its extents.
    fn check_journal(&mut self) -> Result<(), Broken> {
        let published = self.destination.take_published();
        if published.is_empty() || !self.setup.check_always || self.source.lists_again() {
            return Ok(());
        }
        let (state, _) = State::read(&self.journal.bytes());
        let names = self.destination.walk().into_iter().filter(|(_, ino)| published.contains(ino));
        let missing = names.into_iter().find(|(path, ino)| {
            let size = self.destination.content(*ino).map_or(0, Content::size);
            let partial = state.partial.get(&path_key(path));
            let slots = partial.map_or(0, |partial| partial.slots.len());
            // The other names of a hard-linked file are no files of their own.
            let is_link = self.destination.names_of(*ino) > 1;
            size > SMALL_FILE_BYTES && !is_link && slots < slot_count(size) as usize
        });
        missing
            .map_or(Ok(()), |(path, _)| Err(format!("{path} was renamed before the journal had its extents")))
    }

    fn check_sent(&self, session: &Session) -> Result<(), Broken> {
        // A name that is listed again is offered again; what was kept of it is given out once.
        if self.source.lists_again() {
            return Ok(());
        }
        let sent = session.send.as_ref().map_or(&session.sent_slots, SendEnd::sent_slots);
        let again = sent.iter().find(|sent| {
            let unchanged = |stamp: &Stamp| self.source.stamp(stamp.ino).is_ok_and(|now| now == *stamp);
            session.kept.get(*sent).is_some_and(unchanged)
        });
        again.map_or(Ok(()), |(path, slot)| Err(format!("extent {slot} of {path} was sent again")))
    }
}
