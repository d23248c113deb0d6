//! The events of a simulated session: walk, free streams, arrivals, commits, cuts.

use super::net::{CONTROL, Streams, Way};
use super::receiving::{Next, ReceiveEnd};
use super::sending::{Frame, SendEnd, SentSlots, Step, control};
use super::transfer::World;
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::frame::HEAD_BYTES;
use renkei_core::wire::message::{Control, Summary};
use std::collections::BTreeMap;
use std::time::Duration;

/// Duration of a step of the walk.
const WALK_STEP: Duration = Duration::from_micros(200);

/// Events of a session.
pub(super) enum Event {
    Walk,
    /// A data stream is free or was woken; only the last such event of a stream counts.
    Free(usize, u64),
    Arrive(Way, Frame),
    Poll,
    Synced,
    Cut(Option<usize>),
    Noticed,
}

/// Extents that a resumed session must not send again.
pub(super) type Kept = BTreeMap<(RelPath, u32), Stamp>;

/// The state of a running session.
pub(super) struct Session {
    pub(super) streams: Streams,
    /// Number of the last `Free` event of each data stream.
    pub(super) turns: Vec<u64>,
    pub(super) send: Option<SendEnd>,
    pub(super) receive: ReceiveEnd,
    pub(super) kept: Kept,
    pub(super) sent_slots: SentSlots,
    pub(super) stalled_at: Duration,
    pub(super) next_tick: Duration,
    pub(super) walking: bool,
    pub(super) syncing: bool,
    pub(super) all_done: bool,
    pub(super) noticed: bool,
    pub(super) checked: u64,
    pub(super) summary: Option<Summary>,
    pub(super) over: Option<Result<(), Error>>,
}

impl World {
    /// Processes an event.
    pub(super) fn handle(&mut self, session: &mut Session, event: Event) -> Result<(), Error> {
        match event {
            Event::Walk => self.on_walk(session),
            Event::Free(stream, turn) if session.turns[stream - 1] != turn => Ok(()),
            Event::Free(stream, _) => self.on_free(session, stream),
            Event::Arrive(_, (stream, ..)) if session.streams.is_cut(stream) => Ok(()),
            Event::Arrive(Way::Up, (_, bytes)) => self.on_reply(session, &bytes[HEAD_BYTES..]),
            Event::Arrive(Way::Down, frame) => self.on_arrival(session, frame),
            Event::Poll => self.on_poll(session),
            Event::Synced => {
                session.syncing = false;
                session.receive.on_synced(self.queue.now(), &mut self.destination)?;
                self.after_receiving(session);
                Ok(())
            }
            Event::Cut(stream) => {
                session.streams.cut(stream);
                self.notice_cut(session);
                Ok(())
            }
            Event::Noticed => Err(Error::new(Code::ConnectionLost, "receive", "stream", "simulated")),
        }
    }

    fn notice_cut(&mut self, session: &mut Session) {
        if session.streams.any_cut() && !session.noticed {
            session.noticed = true;
            self.queue.at(self.now() + session.streams.latency(), Event::Noticed);
        }
    }

    /// Sends frames on their streams; returns when the last of them has left.
    fn send(&mut self, session: &mut Session, way: Way, frames: Vec<Frame>) -> Duration {
        let mut departs = self.now();
        for (stream, bytes) in frames {
            let sent = session.streams.send(self.now(), stream, way, bytes.len() as u64);
            departs = departs.max(sent.departs);
            if let Some(arrives) = sent.arrives {
                self.queue.at(arrives, Event::Arrive(way, (stream, bytes)));
            }
        }
        self.notice_cut(session);
        departs
    }

    // ---- the sending side --------------------------------------------------------------------------------------

    fn on_walk(&mut self, session: &mut Session) -> Result<(), Error> {
        session.walking = false;
        let Some(send) = &mut session.send else { return Ok(()) };
        let frames = send.walk(&mut self.source)?;
        self.send(session, Way::Down, frames);
        self.after_sending(session);
        Ok(())
    }

    fn on_free(&mut self, session: &mut Session, stream: usize) -> Result<(), Error> {
        let Some(send) = &mut session.send else { return Ok(()) };
        match send.next_step(self.queue.now(), stream, &mut self.source)? {
            Step::Wait(until) => {
                self.free(session, stream, until);
                return Ok(());
            }
            Step::Send(frames) => {
                let departs = self.send(session, Way::Down, frames);
                self.free(session, stream, departs);
            }
            Step::End(frames) => drop(self.send(session, Way::Down, frames)),
        }
        self.after_sending(session);
        Ok(())
    }

    fn on_reply(&mut self, session: &mut Session, payload: &[u8]) -> Result<(), Error> {
        let Some(send) = &mut session.send else { return Ok(()) };
        let (frames, done) = send.on_control(payload)?;
        self.send(session, Way::Down, frames);
        self.after_sending(session);
        if let Some(deleted) = done
            && let Some(send) = session.send.take()
        {
            session.sent_slots = send.sent_slots().clone();
            let (summary, frames) = send.finish(deleted)?;
            self.send(session, Way::Down, frames);
            session.summary = Some(summary);
        }
        Ok(())
    }

    /// Wakes idle streams and the walk, which may have work now.
    fn after_sending(&mut self, session: &mut Session) {
        let Some(send) = &mut session.send else { return };
        if send.walks() && !session.walking {
            session.walking = true;
            self.queue.at(self.queue.now() + WALK_STEP, Event::Walk);
        }
        for stream in send.idle_streams() {
            self.free(session, stream, self.now());
        }
    }

    /// Lets a data stream ask for work at `time`, and no longer at a time set before.
    pub(super) fn free(&mut self, session: &mut Session, stream: usize, time: Duration) {
        session.turns[stream - 1] += 1;
        self.queue.at(time, Event::Free(stream, session.turns[stream - 1]));
    }

    // ---- the receiving side ------------------------------------------------------------------------------------

    fn on_arrival(&mut self, session: &mut Session, frame: Frame) -> Result<(), Error> {
        let (stream, bytes) = frame;
        let (now, disk) = (self.queue.now(), &mut self.destination);
        if stream != CONTROL {
            session.receive.on_frame(now, disk, stream, bytes)?;
        } else if session.receive.on_control(now, disk, &bytes[HEAD_BYTES..])? {
            session.over = Some(Ok(()));
        }
        self.after_receiving(session);
        Ok(())
    }

    fn after_receiving(&mut self, session: &mut Session) {
        self.reply(session);
        if !session.syncing {
            self.queue.at(self.now(), Event::Poll);
        }
    }

    fn reply(&mut self, session: &mut Session) {
        let messages = self.take_messages(session);
        self.send(session, Way::Up, messages.iter().map(control).collect());
    }

    pub(super) fn take_messages(&mut self, session: &mut Session) -> Vec<Control> {
        let messages = session.receive.take_messages();
        for message in &messages {
            if let Control::Removed(paths) = message {
                paths.iter().for_each(|path| self.acknowledged.forget(path));
            }
        }
        messages
    }

    fn on_poll(&mut self, session: &mut Session) -> Result<(), Error> {
        if session.syncing || session.all_done {
            return Ok(());
        }
        loop {
            match session.receive.poll(self.queue.now(), &mut self.destination)? {
                Next::Again => {}
                Next::Wait(until) => {
                    if let Some(wait) = until {
                        self.queue.at(self.now() + wait, Event::Poll);
                    }
                    break;
                }
                Next::Sync => {
                    session.syncing = true;
                    self.queue.at(self.now() + self.setup.sync_time, Event::Synced);
                    break;
                }
                Next::Done => {
                    session.all_done = true;
                    break;
                }
            }
        }
        self.reply(session);
        Ok(())
    }
}
