//! Pacing of a background transfer: applies the rate that [`Background`] computes from the kernel's counters.

use super::throttle::Throttle;
use renkei_core::link::background::{Background, Round};
use renkei_core::link::busy::Busy;
use renkei_core::link::controller::Sample;
use renkei_net::socket::{pace, rtt, sample};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Streams of a background transfer: at a low rate each still sends enough packets to measure the round trip.
pub const BACKGROUND_STREAMS: u16 = 4;

/// Sum of the streams' paces, as a multiple of the rate: a slower stream must not hold back the sum.
const ROOM: f64 = 1.1;

/// The streams of a background transfer and the state of its rate control.
pub(crate) struct Pace {
    sockets: Vec<Arc<TcpStream>>,
    control: Background,
    limit: u64,
    throttle: Arc<Throttle>,
    busy: Busy,
    /// The streams' samples at the start of the round.
    before: Vec<Sample>,
    since: Instant,
    rtt: Duration,
}

impl Pace {
    /// Begins slowly, and never exceeds `limit`.
    pub(crate) fn new(sockets: Vec<Arc<TcpStream>>, limit: Option<u64>) -> Self {
        let rtt = sockets.iter().map(|socket| rtt(socket)).min().unwrap_or_default();
        let (control, limit) = (Background::new(rtt), limit.unwrap_or(u64::MAX));
        let rate = (control.rate() as u64).min(limit);
        let before: Vec<Sample> = sockets.iter().map(|socket| sample(socket)).collect();
        let (throttle, busy) = (Arc::new(Throttle::new(rate)), Busy::new(&before));
        let begun = Pace { sockets, control, limit, throttle, busy, before, since: Instant::now(), rtt };
        begun.apply(rate);
        begun
    }

    /// Sets the streams' shares of a rate as their pacing rates.
    fn apply(&self, rate: u64) {
        let share = self.busy.share(rate as f64 * ROOM);
        self.sockets.iter().for_each(|socket| pace(socket, Some(share)));
    }

    /// The token bucket that the streams take from.
    pub(crate) fn throttle(&self) -> Arc<Throttle> {
        self.throttle.clone()
    }

    /// Paces the streams round by round; `ends_within` waits for a round, or for the end of the session.
    pub(crate) fn run(mut self, ends_within: impl Fn(Duration) -> bool) {
        while !ends_within(Background::round(self.rtt)) {
            self.tick();
        }
    }

    /// Ends a round, if enough data arrived to judge the path.
    fn tick(&mut self) {
        let samples: Vec<Sample> = self.sockets.iter().map(|socket| sample(socket)).collect();
        let round = self.round(&samples);
        if !Background::is_telling(&round) {
            return;
        }
        self.rtt = round.rtt;
        self.busy.on_samples(Duration::ZERO, Duration::ZERO, &samples);
        (self.before, self.since) = (samples, Instant::now());
        let rate = (self.control.on_round(&round) as u64).min(self.limit);
        tracing::trace!(?round, rate, "background");
        self.throttle.set_rate(rate);
        self.apply(rate);
    }

    /// The measurements since the round began. The RTT of a stream that sent nothing is stale, and ignored.
    fn round(&self, samples: &[Sample]) -> Round {
        let both = || samples.iter().zip(&self.before);
        let busy = || both().filter(|(now, before)| now.delivered_bytes > before.delivered_bytes);
        let min_rtt = samples.iter().map(|sample| sample.min_rtt).min().unwrap_or_default();
        let rtt = busy().map(|(now, _)| now.rtt).min().unwrap_or_default();
        let sum =
            |of: fn(&Sample) -> u64| both().map(|(now, before)| of(now).saturating_sub(of(before))).sum();
        Round {
            elapsed: self.since.elapsed(),
            delivered_bytes: sum(|sample| sample.delivered_bytes),
            lost_bytes: sum(|sample| sample.lost_bytes),
            rtt: rtt.max(min_rtt),
            min_rtt,
            busy: busy().count(),
        }
    }
}
