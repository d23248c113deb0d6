//! Finds how much a path carries, and keeps all streams of a session together at just that.
//!
//! Streams that each seek their own share overshoot together: the queue before the bottleneck stays full, overflows,
//! and every stream then repairs what was lost. So their sum is watched a few times a round trip, and paced as soon as
//! it fills the path:
//!
//! 1. **Opening**: the streams are free, for each doubles its rate every round trip. A round trip that becomes longer is
//!    the first sign of a queue: from then on the sum may only grow slowly, so much above what arrives as `WARY` says.
//! 2. **Full**: what arrives no longer grows while there is a queue, or much is sent again. From now on the sum is the
//!    largest rate that came through lately, times a gain: a little above one without a queue, one at the queue that
//!    is aimed at, less above it.
//! 3. Where that finds more, the steps become larger. Every few rounds comes a larger step anyway, larger for small
//!    sums than for large ones, so that sessions on one path come to equal shares.
//!
//! This is what BBR does for one connection (Cardwell et al., "BBR: congestion-based congestion control", ACM Queue
//! 14/5), done for the sum and with the delay as a second signal: the inter-packet gap of Data Reservoir, set from what
//! was measured.

use super::controller::Sample;
use std::collections::VecDeque;
use std::time::Duration;

/// A rate is measured over a round trip, and at least so long: less measures bursts.
const SHORTEST_ROUND: Duration = Duration::from_millis(100);
/// Looks at the streams in a round trip, and the shortest and longest time between two.
const LOOKS: u32 = 8;
/// See [`LOOKS`].
const INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));
/// While the streams open, this part of a round trip tells whether the rate still grows.
const OPENING_PARTS: u32 = 4;
/// See [`OPENING_PARTS`]; shorter times measure bursts.
const SHORTEST_PART: Duration = Duration::from_millis(30);
/// Less growth than this in such a part is none: doubling in a round trip would give 1.19.
const STALLED: f64 = 1.12;
/// Rounds a measured rate is believed.
const MEMORY: u32 = 10;
/// Rounds from one larger step to the next, as BBR has.
const CYCLE: u32 = 8;
/// Bytes sent again, of all that arrived, from which on the path is taken to overflow; random loss on research
/// networks is far below it.
const OVERFLOW: f64 = 0.02;
/// Bytes that must have arrived before a loss tells that the path is full; of few packets, one is already many percent.
const TELLING_BYTES: u64 = 1 << 20;
/// Differences of round trips below this are noise of the hosts.
const NOISE: Duration = Duration::from_millis(3);
/// The queue that is aimed at, as a part of the shortest round trip, but at least [`NOISE`].
const AIM_PARTS: u32 = 16;
/// Least and most of the factor by which that depends on the rate.
const AIMS: (f64, f64) = (0.5, 4.0);
/// What the streams may have while they open and there is a queue: this much of what arrives.
const WARY: f64 = 1.7;
/// Gain without a queue: so much more than what came through. The streams' own control leaves a little of it unused.
const REACH: f64 = 0.05;
/// Most of it, after steps that found more.
const LONGEST_REACH: f64 = 1.0;
/// A round found more if it brought so much more than all before.
const MORE: f64 = 1.01;
/// The larger step of every cycle, for a sum of [`EVEN_RATE`]; smaller sums take larger ones by the square root.
const STEP: f64 = 0.1;
/// Bytes per second; see [`STEP`].
const EVEN_RATE: f64 = 250e6;
/// Least and most of that step.
const STEPS: (f64, f64) = (0.03, 0.25);
/// Gain where the path overflowed lately without a queue that would have told.
const BELOW: f64 = 0.99;
/// The larger step there.
const CAREFUL_STEP: f64 = 0.03;
/// Rounds after an overflow in which its like is expected.
const CAREFUL_ROUNDS: u32 = 3 * CYCLE;
/// Least gain: to empty a queue that is there.
const DRAIN: f64 = 0.88;
/// A queue that became shorter than this share of what it was.
const SHORTER: f64 = 0.9;
/// Rounds in which a queue must have become shorter, or it is not ours to drain.
const DRAIN_ROUNDS: u32 = 2 * MEMORY;
/// Longer than any queue.
const LONGEST_QUEUE: Duration = Duration::from_secs(1000);
/// Less than this share of what was allowed, and no queue: there was not more to send. Such a round tells nothing.
const IDLE: f64 = 0.5;
/// However bad the path seems, the streams together may have so much, in bytes per second, and this share of the best
/// rate there was: below it the single connection's own control is enough.
const FLOOR: f64 = 4e6;
/// See [`FLOOR`].
const FLOOR_SHARE: f64 = 1.0 / 8.0;

/// The capacity of a path as far as it is known.
#[derive(Debug, Default)]
pub struct Capacity {
    /// What had arrived and been sent again, and when, of the last two rounds.
    past: VecDeque<(Duration, Sample)>,
    /// Since when there is a queue, while the streams open.
    queued_since: Option<Duration>,
    full: Option<Full>,
}

/// What is kept once the path is full.
#[derive(Debug)]
struct Full {
    /// The largest rates of the last rounds, and in which round each was.
    rates: VecDeque<(u32, f64)>,
    /// The largest rate ever.
    best: f64,
    rounds: u32,
    round_start: Duration,
    /// What all streams may send now.
    total: f64,
    reach: f64,
    /// The round of the last overflow.
    overflowed: Option<u32>,
    /// Rounds since a queue was shortest, and that shortest one.
    draining: (u32, Duration),
}

/// What arrived in some time.
struct Span {
    bytes: u64,
    /// Bytes per second.
    rate: f64,
    /// Bytes sent again, of those that arrived.
    resent: f64,
}

impl Span {
    fn overflows(&self) -> bool {
        self.resent > OVERFLOW && self.bytes >= TELLING_BYTES
    }
}

/// The time a rate is measured over on a path with this round trip.
pub fn round(min_rtt: Duration) -> Duration {
    min_rtt.max(SHORTEST_ROUND)
}

fn queue(sum: &Sample) -> Duration {
    sum.rtt.saturating_sub(sum.min_rtt)
}

/// The queue that a session aims at: longer for one with a small rate, so that those on one path come to equal rates,
/// for there each sees the same queue.
fn aim(sum: &Sample, rate: f64) -> Duration {
    let part = (sum.min_rtt / AIM_PARTS).max(NOISE);
    part.mul_f64((EVEN_RATE / rate.max(1.0)).sqrt().clamp(AIMS.0, AIMS.1))
}

/// How often the streams must be looked at on a path with this round trip.
pub fn interval(min_rtt: Duration) -> Duration {
    (min_rtt / LOOKS).clamp(INTERVALS.0, INTERVALS.1)
}

impl Capacity {
    /// Whether the path was found full, and the streams are paced since.
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// Goes on after a pause, on a clock that begins anew; `sum` is what was done before.
    pub fn resume(self, sum: Sample) -> Self {
        let full = self.full.map(|full| Full { round_start: Duration::ZERO, ..full });
        Capacity { past: VecDeque::from([(Duration::ZERO, sum)]), full, queued_since: None }
    }

    /// Takes what all streams together did until `now`; gives the rate they may have from now on, or `None` to leave
    /// them free.
    pub fn on_sum(&mut self, now: Duration, sum: &Sample) -> Option<f64> {
        self.past.push_back((now, *sum));
        let keep = 2 * round(sum.min_rtt);
        while self.past.get(1).is_some_and(|(at, _)| *at + keep <= now) {
            self.past.pop_front();
        }
        match &mut self.full {
            Some(full) => {
                let whole = now >= full.round_start + round(sum.min_rtt);
                let last = whole.then(|| span(&self.past, full.round_start, now)).flatten();
                Some(full.on_sum(now, sum, last))
            }
            None => self.open(now, sum),
        }
    }

    /// While the streams open.
    fn open(&mut self, now: Duration, sum: &Sample) -> Option<f64> {
        let part = (sum.min_rtt / OPENING_PARTS).max(SHORTEST_PART);
        let last = span(&self.past, now.checked_sub(part)?, now)?;
        let before = span(&self.past, now.checked_sub(2 * part)?, now - part)?;
        let whole = span(&self.past, now.checked_sub(round(sum.min_rtt))?, now)?;
        let has_queue = self.queue_tells(now, sum, last.bytes);
        let stalled = has_queue && before.rate > 0.0 && last.rate < STALLED * before.rate;
        if stalled || last.overflows() || whole.overflows() {
            return Some(self.full.insert(Full::new(now, last.rate)).total_for(sum));
        }
        has_queue.then(|| (WARY * last.rate).max(FLOOR))
    }

    /// Whether there is a queue that says something about the path: not for sums so small that they are a part of it
    /// only, unless it stays.
    fn queue_tells(&mut self, now: Duration, sum: &Sample, bytes: u64) -> bool {
        if queue(sum) <= NOISE {
            self.queued_since = None;
            return false;
        }
        let since = *self.queued_since.get_or_insert(now);
        let stays = now >= since + MEMORY * round(sum.min_rtt);
        bytes >= if stays { TELLING_BYTES / 4 } else { TELLING_BYTES }
    }
}

/// What arrived from the last sample at or before `from` to that at or before `until`.
fn span(past: &VecDeque<(Duration, Sample)>, from: Duration, until: Duration) -> Option<Span> {
    let at = |time: Duration| past.iter().rev().find(|(at, _)| *at <= time);
    let ((start, before), (end, after)) = (at(from)?, at(until)?);
    let elapsed = end.saturating_sub(*start).as_secs_f64();
    let bytes = after.delivered_bytes.saturating_sub(before.delivered_bytes);
    let resent = after.resent_bytes.saturating_sub(before.resent_bytes) as f64 / (bytes as f64).max(1.0);
    (elapsed > 0.0).then(|| Span { bytes, rate: bytes as f64 / elapsed, resent })
}

impl Full {
    fn new(now: Duration, rate: f64) -> Self {
        Full {
            rates: VecDeque::from([(0, rate)]),
            best: rate,
            rounds: 0,
            round_start: now,
            total: rate,
            reach: REACH,
            overflowed: None,
            draining: (0, LONGEST_QUEUE),
        }
    }

    fn most(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    fn on_sum(&mut self, now: Duration, sum: &Sample, last: Option<Span>) -> f64 {
        if let Some(last) = last {
            self.round_start = now;
            self.on_round(sum, &last);
        }
        self.total_for(sum)
    }

    fn on_round(&mut self, sum: &Sample, last: &Span) {
        let (aim, queue) = (aim(sum, self.most()), queue(sum));
        let own = self.own_queue(sum);
        self.rounds += 1;
        if last.overflows() && self.rounds > 2 {
            self.overflowed = Some(self.rounds);
        }
        let found = last.rate > MORE * self.most() && own < aim && !last.overflows();
        self.reach = if found { (2.0 * self.reach).min(LONGEST_REACH) } else { REACH };
        self.draining = match self.draining {
            (_, shortest) if queue > 2 * aim && queue < shortest.mul_f64(SHORTER) => (0, queue),
            (rounds, shortest) if queue > 2 * aim => (rounds + 1, shortest),
            _ => (0, LONGEST_QUEUE),
        };
        if last.overflows() || own > aim || last.rate >= IDLE * self.total {
            self.note(last.rate);
        }
    }

    fn note(&mut self, rate: f64) {
        self.best = self.best.max(rate);
        self.rates.retain(|(round, _)| round + MEMORY > self.rounds);
        self.rates.push_back((self.rounds, rate));
    }

    fn is_careful(&self) -> bool {
        self.overflowed.is_some_and(|round| self.rounds < round + CAREFUL_ROUNDS)
    }

    /// What the streams may have together with the queue there is now.
    fn total_for(&mut self, sum: &Sample) -> f64 {
        let most = self.most();
        self.total = (self.gain(sum, most) * most).max(FLOOR).max(FLOOR_SHARE * self.best);
        self.total
    }

    fn gain(&self, sum: &Sample, most: f64) -> f64 {
        let fill = self.own_queue(sum).as_secs_f64() / aim(sum, most).as_secs_f64();
        if self.rounds % CYCLE == CYCLE - 1 && fill <= 2.0 {
            return 1.0 + self.step(most);
        }
        if fill > 1.0 {
            return (1.0 - REACH * (fill - 1.0)).max(DRAIN);
        }
        if self.is_careful() { BELOW } else { 1.0 + self.reach * (1.0 - fill) }
    }

    /// The queue without what could not be drained: that of others, or a path that became longer.
    fn own_queue(&self, sum: &Sample) -> Duration {
        match self.draining {
            (rounds, shortest) if rounds > DRAIN_ROUNDS => queue(sum).saturating_sub(shortest),
            _ => queue(sum),
        }
    }

    /// The larger step of a cycle.
    fn step(&self, most: f64) -> f64 {
        if self.is_careful() {
            return CAREFUL_STEP;
        }
        (STEP * (EVEN_RATE / most.max(1.0)).sqrt()).clamp(STEPS.0, STEPS.1).max(self.reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// What a stream's own control sends at most, of what arrives: doubling in a round trip stays below.
    const OWN_LIMIT: f64 = 5.0;

    /// One session: what it may send, and what is on its way.
    #[derive(Default)]
    struct Flow {
        capacity: Capacity,
        begins: Duration,
        rate: f64,
        allowed: Option<f64>,
        sum: Sample,
        /// When what was sent is known to have arrived: time, bytes, bytes lost, round trip.
        under_way: VecDeque<(Duration, f64, f64, Duration)>,
        delivered: f64,
        /// Bytes per second that arrived in about the last round trip.
        arriving: f64,
        lost: f64,
        in_flight: f64,
        peak_in_flight: f64,
        next_tick: Duration,
    }

    /// A bottleneck before which `queue` bytes fit, and those who send through it.
    struct Path {
        rtt: Duration,
        shortest: Duration,
        capacity: f64,
        queue: f64,
        queued: f64,
        random_loss: f64,
        now: Duration,
        flows: Vec<Flow>,
    }

    impl Path {
        fn new(rtt: u32, capacity: f64, queue: f64, begins: &[u32]) -> Self {
            let flow = |begins: &u32| Flow { begins: *begins * MS, rate: 2e6, ..Flow::default() };
            let flows = begins.iter().map(flow).collect();
            let (rtt, now) = (rtt * MS, Duration::ZERO);
            Path { rtt, shortest: rtt, capacity, queue, queued: 0.0, random_loss: 0.0, now, flows }
        }

        /// Lets a millisecond pass: all send, the queue forwards, what arrived is known a round trip later.
        fn step(&mut self) {
            let (dt, now) = (MS.as_secs_f64(), self.now);
            let growth = 2f64.powf(dt / self.rtt.as_secs_f64());
            let mut sent = Vec::new();
            for flow in &mut self.flows {
                if now >= flow.begins {
                    let allowed = flow.allowed.map_or(f64::MAX, |rate| 0.98 * rate);
                    let own = OWN_LIMIT * flow.arriving.max(FLOOR);
                    flow.rate = (flow.rate * growth).min(allowed).min(own);
                }
                sent.push(if now >= flow.begins { flow.rate * dt } else { 0.0 });
            }
            let arrived: f64 = sent.iter().sum();
            self.queued = (self.queued + arrived - self.capacity * dt).max(0.0);
            let over = (self.queued - self.queue).max(0.0);
            self.queued -= over;
            let rtt = self.rtt + Duration::from_secs_f64(self.queued / self.capacity);
            for (flow, sent) in self.flows.iter_mut().zip(sent) {
                let lost = sent * (over / arrived.max(1.0) + self.random_loss);
                flow.under_way.push_back((now + rtt, sent - lost, lost, rtt));
                flow.in_flight += sent - lost;
                flow.peak_in_flight = flow.peak_in_flight.max(flow.in_flight);
                flow.hear(now, self.shortest);
            }
            self.now += MS;
        }

        fn run(&mut self, ms: u32) {
            (0..ms).for_each(|_| self.step());
        }

        /// Runs so long; gives what each flow got of the capacity, and lost of what it got.
        fn shares(&mut self, ms: u32) -> Vec<(f64, f64)> {
            let before: Vec<_> = self.flows.iter().map(|flow| (flow.delivered, flow.lost)).collect();
            self.run(ms);
            let all = self.capacity * f64::from(ms) / 1e3;
            let share = |(flow, (delivered, lost)): (&Flow, (f64, f64))| {
                let got = flow.delivered - delivered;
                (got / all, (flow.lost - lost) / got)
            };
            self.flows.iter().zip(before).map(share).collect()
        }
    }

    impl Flow {
        /// Takes what is known by now, and asks the controller when it is time.
        fn hear(&mut self, now: Duration, min_rtt: Duration) {
            let before = self.delivered;
            while let Some((_, bytes, lost, rtt)) = self.under_way.pop_front_if(|(at, ..)| *at <= now) {
                self.delivered += bytes;
                self.lost += lost;
                self.in_flight -= bytes;
                self.sum.rtt = (self.sum.rtt * 7 + rtt) / 8;
            }
            let rate = (self.delivered - before) / MS.as_secs_f64();
            self.arriving += (rate - self.arriving) * MS.as_secs_f64() / min_rtt.as_secs_f64();
            self.sum.min_rtt = min_rtt;
            self.sum.rtt = self.sum.rtt.max(min_rtt);
            self.sum.delivered_bytes = self.delivered as u64;
            self.sum.resent_bytes = self.lost as u64;
            if now >= self.next_tick && now >= self.begins {
                self.next_tick = now + interval(min_rtt);
                self.allowed = self.capacity.on_sum(now, &self.sum);
            }
        }
    }

    fn assert_filled(shares: &[(f64, f64)]) {
        let total: f64 = shares.iter().map(|share| share.0).sum();
        assert!(total > 0.96 && shares.iter().all(|share| share.1 < 0.01), "{shares:?}");
    }

    #[test]
    fn a_long_path_is_filled_and_does_not_overflow() {
        let mut path = Path::new(350, 250e6, 87e6, &[0]);
        path.run(8000);
        assert!(path.flows[0].peak_in_flight < 1.8 * 87.5e6, "{}", path.flows[0].peak_in_flight);
        assert_filled(&path.shares(20_000));
        assert!(path.flows[0].peak_in_flight < 1.8 * 87.5e6, "{}", path.flows[0].peak_in_flight);
        assert_eq!(path.flows[0].lost, 0.0);
    }

    #[test]
    fn a_short_path_is_filled_and_does_not_overflow() {
        let mut path = Path::new(10, 625e6, 6.25e6, &[0]);
        path.run(1000);
        assert_filled(&path.shares(5000));
    }

    #[test]
    fn a_shallow_queue_costs_little() {
        for rtt in [10, 100, 350] {
            let mut path = Path::new(rtt, 250e6, 250e3 * f64::from(rtt) / 100.0, &[0]);
            path.run(5000);
            assert_filled(&path.shares(20_000));
        }
    }

    #[test]
    fn two_sessions_share() {
        for rtt in [10, 100] {
            let mut path = Path::new(rtt, 250e6, 250e3 * f64::from(rtt), &[0, 3000]);
            path.run(4000);
            let shares = path.shares(20_000);
            assert_filled(&shares);
            let (sum, squares): (f64, f64) = shares
                .iter()
                .fold((0.0, 0.0), |(sum, squares), (share, _)| (sum + share, squares + share * share));
            assert!(sum * sum / (2.0 * squares) > 0.9, "{rtt} ms: {shares:?}");
        }
    }

    #[test]
    fn many_small_sessions_do_not_overflow_for_long() {
        let mut path = Path::new(10, 125e6, 1.25e6, &[0, 0, 500, 1000]);
        path.run(6000);
        assert_filled(&path.shares(5000));
    }

    #[test]
    fn more_is_found_when_there_is_more() {
        for rtt in [10, 100, 350] {
            let mut path = Path::new(rtt, 100e6, 5e6, &[0]);
            path.run(8000);
            path.capacity = 250e6;
            path.run(50 * rtt.max(100));
            assert!(path.shares(20 * rtt.max(100))[0].0 > 0.9);
        }
    }

    #[test]
    fn a_path_that_became_longer_is_filled_again() {
        let mut path = Path::new(100, 250e6, 25e6, &[0]);
        path.run(5000);
        path.rtt = 160 * MS;
        path.run(10_000);
        assert!(path.shares(5000)[0].0 > 0.9);
    }

    #[test]
    fn less_is_accepted_when_there_is_less() {
        let mut path = Path::new(100, 250e6, 5e6, &[0]);
        path.run(5000);
        path.capacity = 50e6;
        path.run(4000);
        assert_filled(&path.shares(5000));
    }

    #[test]
    fn random_loss_does_not_slow_the_streams() {
        for loss in [0.001, 0.01] {
            let mut path = Path::new(100, 250e6, 25e6, &[0]);
            path.random_loss = loss;
            path.run(5000);
            let share = path.shares(20_000)[0].0;
            assert!(share > 0.94, "{share}");
        }
    }

    #[test]
    fn a_pause_does_not_make_the_path_smaller() {
        let mut path = Path::new(100, 250e6, 25e6, &[0]);
        path.run(5000);
        let Flow { capacity, sum, .. } = &mut path.flows[0];
        let pause = Sample { rtt: sum.min_rtt, ..*sum };
        let rates = (0..200).map(|step| capacity.on_sum(path.now + step * 50 * MS, &pause).unwrap());
        assert!(rates.skip(20).all(|rate| rate > 0.9 * 250e6));
    }

    #[test]
    fn a_loss_among_few_packets_tells_nothing() {
        let mut capacity = Capacity::default();
        let at = |step: u32| {
            let rtt = 100 * MS;
            let (delivered_bytes, resent_bytes) = (u64::from(step) * 14_480, u64::from(step) * 1448);
            (step * 100 * MS, Sample { delivered_bytes, resent_bytes, rtt, min_rtt: rtt })
        };
        assert!((0..20).map(at).all(|(now, sum)| capacity.on_sum(now, &sum).is_none()));
    }

    #[test]
    fn a_queue_of_others_does_not_starve_the_streams() {
        let mut path = Path::new(100, 100e6, 5e6, &[0]);
        path.run(5000);
        let Flow { capacity, sum, .. } = &mut path.flows[0];
        let (mut rate, mut sum) = (100e6_f64, Sample { rtt: 2 * sum.min_rtt, ..*sum });
        for step in 0..1000 {
            // All that is sent arrives, as far as the path carries it, and the queue stays.
            sum.delivered_bytes += (rate.min(100e6) * 0.05) as u64;
            rate = capacity.on_sum(path.now + step * 50 * MS, &sum).unwrap();
        }
        assert!(rate > 100e6 / 2.0, "{rate}");
    }
}
