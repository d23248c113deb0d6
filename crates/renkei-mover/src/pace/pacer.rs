//! Pacing of connections that share a path: applies the rates that [`Controller`] computes from the kernel's
//! counters.

use renkei_core::link::busy::Busy;
use renkei_core::link::controller::{Controller, is_long};
use renkei_net::socket::{WriteBound, has_bbr, leave_bbr, pace, restart_bbr, rtt, sample};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which BBR is restarted on each stream of a full path, to avoid PROBE_RTT: below BBR's 10 s.
const SPARE_REST_EVERY: Duration = Duration::from_secs(8);

/// After a pause this long BBR is restarted on the streams of a long path, to avoid a PROBE_RTT in the middle of the
/// next burst.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// Sum of the streams' pacing rates under a limit, as a multiple of it: the pace only smooths the output of the
/// throttle.
const LIMIT_ROOM: f64 = 1.04;

/// Interval at which the shares of a limit are recomputed.
const SHARE_EVERY: Duration = Duration::from_millis(200);

/// The connections of a session and the controller of their pace.
pub struct Pacer {
    sockets: Vec<Arc<TcpStream>>,
    /// Of each socket; none if they cannot be bounded.
    bounds: Vec<WriteBound>,
    controller: Controller,
    started: Instant,
    /// When BBR is next restarted on each stream; staggered.
    rests: Vec<Duration>,
    /// The limit in bytes per second, and how it is divided among the streams.
    limit: Option<(u64, Busy)>,
    /// Retransmitted bytes at the time when BBR was found to starve the streams.
    starved_at: Option<u64>,
    /// Since when most streams have been idle, if they were at the last tick.
    paused_since: Option<Instant>,
}

impl Pacer {
    /// Continues with the controller `known` from an earlier session on the same streams.
    pub fn new(sockets: Vec<Arc<TcpStream>>, limit: Option<u64>, known: Option<Controller>) -> Self {
        let samples: Vec<_> = sockets.iter().map(|socket| sample(socket)).collect();
        let bears_loss = sockets.iter().all(|socket| has_bbr(socket));
        let controller = known.unwrap_or_else(|| Controller::new(sockets.len(), bears_loss)).resume(&samples);
        let streams = sockets.len().max(1) as u32;
        let rests = (1..=streams).map(|place| SPARE_REST_EVERY * place / streams).collect();
        let limit = limit.map(|limit| (limit, Busy::new(&samples)));
        let started = Instant::now();
        let pacer = Pacer {
            sockets,
            bounds: Vec::new(),
            controller,
            started,
            rests,
            limit,
            starved_at: None,
            paused_since: None,
        };
        // Reused streams still have the pacing rates of the previous job.
        pacer.apply();
        pacer
    }

    /// The same for streams whose writes can be bounded.
    pub fn with_bounds(self, bounds: Vec<WriteBound>) -> Self {
        let pacer = Pacer { bounds, ..self };
        pacer.apply();
        pacer
    }

    fn apply(&self) {
        let is_bounded = self.controller.pacing().bounds_writes;
        self.sockets.iter().zip(&self.bounds).for_each(|(socket, bound)| bound.set(socket, is_bounded));
        let rates = &self.controller.pacing().rates;
        let share = self.limit.as_ref().map(|(limit, busy)| busy.share(*limit as f64 * LIMIT_ROOM));
        let least = |rate: Option<u64>| rate.into_iter().chain(share).min();
        self.sockets.iter().zip(rates).for_each(|(socket, rate)| pace(socket, least(*rate)));
    }

    /// Samples the connections and updates the controller.
    pub fn tick(&mut self) {
        let now = self.started.elapsed();
        let samples: Vec<_> = self.sockets.iter().map(|socket| sample(socket)).collect();
        let share_limit = |(_, busy): &mut (u64, Busy)| busy.on_samples(now, SHARE_EVERY, &samples);
        let shared = self.limit.as_mut().is_some_and(share_limit);
        let restarts = self.controller.restarts();
        if self.controller.on_samples(now, &samples) || shared {
            self.apply();
        }
        if self.controller.restarts() > restarts {
            self.sockets.iter().for_each(|socket| restart_bbr(socket));
        }
        tracing::trace!(?now, pacing = ?self.controller.pacing(), ?samples, "looked at the streams");
        if self.controller.is_starved() {
            let resent = samples.iter().map(|sample| sample.lost_bytes).sum();
            let before = *self.starved_at.get_or_insert(resent);
            self.sockets.iter().for_each(|socket| leave_bbr(socket, resent > before));
        }
        // PROBE_RTT of all streams would reduce the throughput under a limit, and that is not made up for.
        if self.controller.is_full() || self.limit.is_some() {
            self.spare_rests(now);
        }
    }

    /// Like `tick`, if the streams are busy. Samples taken while they are idle say nothing about the path; they are
    /// discarded when the streams are busy again.
    pub fn tick_if(self, is_busy: bool) -> Self {
        let mut pacer = match self {
            Pacer { paused_since: Some(since), sockets, bounds, controller, .. } if is_busy => {
                if since.elapsed() >= LONG_PAUSE {
                    sockets
                        .iter()
                        .filter(|socket| is_long(rtt(socket)))
                        .for_each(|socket| restart_bbr(socket));
                }
                Pacer::new(sockets, None, Some(controller)).with_bounds(bounds)
            }
            pacer => pacer,
        };
        if is_busy {
            pacer.tick();
        } else {
            pacer.paused_since.get_or_insert_with(Instant::now);
        }
        pacer
    }

    fn spare_rests(&mut self, now: Duration) {
        for (socket, due) in self.sockets.iter().zip(&mut self.rests) {
            let is_due = *due <= now;
            while *due <= now {
                *due += SPARE_REST_EVERY;
            }
            if is_due {
                restart_bbr(socket);
            }
        }
    }

    /// Time until the next tick.
    pub fn interval(&self) -> Duration {
        self.controller.interval()
    }

    /// The controller's knowledge of the path; none if a limit held the streams back, for then it says little.
    pub(crate) fn into_known(self) -> Option<Controller> {
        self.limit.is_none().then_some(self.controller)
    }
}
