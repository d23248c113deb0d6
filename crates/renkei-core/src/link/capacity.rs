//! Estimates the capacity of a path, and paces all streams of a session together to it.
//!
//! Streams that each probe for their own share overshoot together: the queue before the bottleneck stays full,
//! overflows, and every stream then has to recover from loss. So their sum is sampled a few times per RTT, and paced
//! as soon as it fills the path:
//!
//! 1. **Opening**: the streams are unpaced, and each doubles its rate every RTT (slow start). A growing RTT is the
//!    first sign of a queue: from then on the sum may exceed the delivery rate only by the factor `WARY`.
//! 2. **Full**: the delivery rate no longer grows while there is a queue, or much is retransmitted. From now on the
//!    sum is the largest recent delivery rate, times a gain: slightly above one without a queue, one at the target
//!    queue, less above it. If the first rounds show that the path was not full, or the sum stays far below the
//!    former rate without loss, the streams open again.
//! 3. **Probing**: where that finds more capacity, the probes become larger. Every few rounds there is a larger probe
//!    anyway, larger for small sums than for large ones, so that sessions sharing a path converge to equal rates.
//! 4. **Less**: where for some rounds the delivery rate is much lower while the queue grows or overflows, the
//!    capacity fell, and only the present rate counts. During this state the larger probes are those of opening and
//!    the streams are restarted with them, so that returning capacity is found within a cycle and the rate grows by
//!    half per round. If the former rate is back at once, a host was stalled.
//!
//! Delay is also caused by busy hosts and by radio links. So the minimum delay of a round counts, less the delay
//! measured while nothing could be queued, and less its variation from sample to sample.
//!
//! This is what BBR does for one connection (Cardwell et al., "BBR: congestion-based congestion control", ACM Queue
//! 14/5), done for the sum and with the delay as a second signal: the inter-packet gap of Data Reservoir, derived
//! from measurements.

use super::bursts::{Bursts, Change};
use super::controller::is_far;
use super::sample::{Sample, Span, round};
use super::worth::{self, Worth};
use std::collections::VecDeque;
use std::time::Duration;

/// Samples per RTT, and the minimum and maximum sampling interval.
const LOOKS: u32 = 8;
/// See [`LOOKS`].
const INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));
/// In slow start, this fraction of an RTT gives the present delivery rate, and whether there is a queue.
const OPENING_PARTS: u32 = 4;
/// See [`OPENING_PARTS`]; shorter times measure bursts.
const SHORTEST_PART: Duration = Duration::from_millis(30);
/// Growth below this factor from one round to the next counts as none, as in BBR.
const STALLED: f64 = 1.25;
/// Rounds for which a measured rate is valid.
const MEMORY: u32 = 10;
/// Rounds per cycle of larger probes, as in BBR.
const CYCLE: u32 = worth::ROUNDS;
/// Ratio of retransmitted to delivered bytes that indicates an overflowing path; random loss on research networks is
/// far below it.
const OVERFLOW: f64 = 0.02;
/// Bytes delivered before loss indicates a full path; of few packets, one is already many percent.
const TELLING_BYTES: u64 = 1 << 20;
/// Fewer bytes than this make no queue.
const QUIET_BYTES: u64 = TELLING_BYTES / 4;
/// Differences of RTTs below this are noise of the hosts.
const NOISE: Duration = Duration::from_millis(3);
/// Target queueing delay, as a fraction of the minimum RTT, but at least [`NOISE`].
const AIM_PARTS: u32 = 16;
/// Bounds of the factor by which the target depends on the rate.
const AIMS: (f64, f64) = (0.5, 4.0);
/// Maximum sum in slow start while there is a queue, relative to the delivery rate.
const WARY: f64 = 1.5;
/// The same if a path was found full before, or the queue persists: enough for BBR to stay in slow start.
const WARY_AGAIN: f64 = 1.35;
/// Gain without a queue: relative excess over the delivery rate. The streams' own congestion control leaves a little
/// of it unused.
const REACH: f64 = 0.05;
/// The initial gain: that of the streams' own control, until it is found to bring nothing.
const FIRST_REACH: f64 = 0.25;
/// Its maximum, after probes that found more capacity.
const LONGEST_REACH: f64 = 0.5;
/// Consecutive rounds without a find after which the gain is reset.
const MISSES: u32 = 2;
/// A round found more capacity if its rate exceeds all before by this factor.
const MORE: f64 = 1.01;
/// A find of this factor is worth restarting the streams, where the rate was much reduced before.
const SURGE: f64 = 1.2;
/// Gain of each cycle's larger probe, for a sum of [`EVEN_RATE`]; smaller sums get larger probes, by the square root.
const STEP: f64 = 0.1;
/// Bytes per second; see [`STEP`].
const EVEN_RATE: f64 = 250e6;
/// Bounds of that gain.
const STEPS: (f64, f64) = (0.03, 0.25);
/// Samples over which delays are averaged, and multiple of their deviation that counts as noise.
const WEIGHT: u32 = 16;
const SPREADS: u32 = 1;
/// Decay of the best rate per round; a rate below this share of it for a whole cycle ends the pacing.
const FADING: f64 = 0.98;
const LOW: f64 = 0.7;
/// Decay of the largest rate ever, per probe that did not reach it.
const LASTING: f64 = 0.93;
/// A larger probe shows free capacity if this share of it was delivered.
const ROOM: f64 = 0.5;
/// Rounds after which the outcome of a probe is known.
const PUSH_ROUNDS: u32 = 2;
/// A rate below this share of the previous one, for this many consecutive rounds in which the queue grows or
/// overflows: the capacity fell.
const COLLAPSE: f64 = 0.6;
/// See [`COLLAPSE`].
const FALLING_ROUNDS: u32 = 3;
/// Gain where the path overflowed recently without a queue that would have shown it.
const BELOW: f64 = 0.99;
/// Gain of the larger probe there.
const CAREFUL_STEP: f64 = 0.03;
/// Rounds after an overflow in which another is expected.
const CAREFUL_ROUNDS: u32 = 3 * CYCLE;
/// Minimum gain, to drain a queue.
const DRAIN: f64 = 0.88;
/// A queue shrank if it is below this share of its former length.
const SHORTER: f64 = 0.9;
/// Rounds in which a queue must have shrunk, otherwise it is not ours to drain.
const DRAIN_ROUNDS: u32 = 2 * MEMORY;
/// Longer than any queue.
const LONGEST_QUEUE: Duration = Duration::from_secs(1000);
/// A round with less than this share of the allowed rate, and no queue, was application-limited and tells nothing.
const IDLE: f64 = 0.5;
/// Minimum sum, in bytes per second, and as a share of the best rate: below it the single connections' own control
/// suffices.
const FLOOR: f64 = 4e6;
/// See [`FLOOR`].
const FLOOR_SHARE: f64 = 1.0 / 8.0;

/// Capacity estimator of a path.
#[derive(Debug, Default)]
pub struct Capacity {
    /// Samples of the last two rounds, with their times.
    past: VecDeque<(Duration, Sample)>,
    /// Since when there is a queue, in slow start.
    queued_since: Option<Duration>,
    /// Since when the rate does not grow, in slow start.
    stalled_since: Option<Duration>,
    /// Delay while so little is in flight that it is the hosts' own.
    noise: Duration,
    /// The largest rate of a round in slow start.
    best: f64,
    /// Whether the path was found full before.
    opens_again: bool,
    /// How often the streams had to be restarted.
    restarts: u32,
    /// The largest rate ever, which decays with each probe that does not reach it.
    largest: f64,
    full: Option<Full>,
    /// Only if the streams' own congestion control is not loss-based: otherwise unpaced streams overflow the path.
    worth: Option<Worth>,
    /// Used as `worth` is.
    bursts: Bursts,
}

/// State while the path is full.
#[derive(Debug)]
struct Full {
    /// The largest rates of the last rounds, with their round numbers.
    rates: VecDeque<(u32, f64)>,
    /// The rate at which the path was found full by its delay alone.
    taken: Option<f64>,
    /// The best recent rate, and consecutive rounds far below it without loss.
    lately: f64,
    low: u32,
    /// The largest rate since the capacity was last found reduced.
    best: f64,
    /// The largest rate ever, which decays with each probe that does not reach it.
    largest: f64,
    rounds: u32,
    round_start: Duration,
    /// The present rate of all streams together.
    total: f64,
    reach: f64,
    /// Consecutive rounds that found no more capacity.
    misses: u32,
    /// The round of the last overflow.
    overflowed: Option<u32>,
    /// Rounds since the minimum of a queue, and that minimum.
    draining: (u32, Duration),
    /// Delay that does not depend on our rate: of busy hosts, of cross traffic, of a longer path.
    noise: Duration,
    /// The same before any queue was possible.
    quiet: Duration,
    /// The mean delay of recent samples, and its mean deviation.
    mean: Duration,
    spread: Duration,
    /// The longest recent delay.
    longest: Duration,
    /// The last larger probe, until its outcome is known.
    push: Option<Push>,
    /// Whether the streams have to be restarted, so that they follow a larger probe.
    restarts: bool,
    /// The queue of the last round, and consecutive rounds in which it grew while the rate was much lower.
    before: Duration,
    falling: u32,
    /// The rate before a collapse, until it is known whether a host was stalled.
    former: Option<f64>,
    /// The rate and the last overflow before a trial of bounded writes.
    before_trial: (f64, Option<u32>),
}

/// A larger probe.
#[derive(Debug)]
struct Push {
    /// The rate that would show free capacity.
    room: f64,
    /// The delay before it.
    queue: Duration,
    /// Rounds completed since.
    rounds: u32,
}

impl Span {
    fn overflows(&self) -> bool {
        self.resent > OVERFLOW && self.bytes >= TELLING_BYTES
    }
}

/// The target queueing delay of a session: longer for a small rate, so that sessions sharing a path, which see the
/// same queue, converge to equal rates.
fn aim(sum: &Sample, rate: f64) -> Duration {
    let part = (sum.min_rtt / AIM_PARTS).max(NOISE);
    part.mul_f64((EVEN_RATE / rate.max(1.0)).sqrt().clamp(AIMS.0, AIMS.1))
}

/// The sampling interval on a path with this RTT.
pub fn interval(min_rtt: Duration) -> Duration {
    (min_rtt / LOOKS).clamp(INTERVALS.0, INTERVALS.1)
}

impl Capacity {
    /// An estimator; `bears_loss` says whether the streams' congestion control is not loss-based.
    pub fn new(bears_loss: bool) -> Self {
        Capacity { worth: bears_loss.then(Worth::default), ..Capacity::default() }
    }

    /// Whether the streams' congestion control is not loss-based.
    pub fn bears_loss(&self) -> bool {
        self.worth.is_some()
    }

    /// Whether the path was found full, so that the streams are paced.
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// How often the streams have to be restarted: when the path was wrongly found full, or its capacity rose again.
    /// Pacing ended the slow start of BBR streams, which afterwards gain only a quarter per eight RTTs.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Resumes after a pause, on a clock that starts at zero; `sum` are the counters until then.
    pub fn resume(self, sum: Sample) -> Self {
        let full = self.full.map(|full| Full { round_start: Duration::ZERO, ..full });
        let worth = self.worth.map(Worth::resume);
        let (past, largest) = (VecDeque::from([(Duration::ZERO, sum)]), self.largest);
        Capacity { past, largest, full, worth, bursts: self.bursts.resume(), ..Capacity::default() }
    }

    /// Takes the sum of all streams' counters at `now`; returns the rate to pace them to, or `None` to leave them
    /// unpaced.
    pub fn on_sum(&mut self, now: Duration, sum: &Sample) -> Option<f64> {
        self.past.push_back((now, *sum));
        if let Some(full) = &mut self.full {
            full.note_delay(sum.queue());
        }
        let keep = 2 * round(sum.min_rtt);
        while self.past.get(1).is_some_and(|(at, _)| *at + keep <= now) {
            self.past.pop_front();
        }
        let is_paced = self.full.is_some();
        if let Some(total) = self.note_bursts(now, sum) {
            return Some(total);
        }
        let is_tried = self.bursts.is_trying();
        let worth = self.worth.as_mut().filter(|_| !is_tried);
        if worth.is_some_and(|worth| worth.on_sum(now, sum, is_paced)) {
            self.free_again();
        }
        match &mut self.full {
            Some(full) => {
                let queue = shortest_queue(&self.past, now.saturating_sub(round(sum.min_rtt)), sum);
                let whole = now >= full.round_start + round(sum.min_rtt);
                // A stalled host may have no samples from the beginning of the round.
                let known = self.past.front().map_or(now, |(at, _)| *at).max(full.round_start);
                let last = whole.then(|| span(&self.past, known, now)).flatten();
                let total = full.on_sum(now, sum, queue, last);
                self.restarts += u32::from(std::mem::take(&mut full.restarts));
                self.largest = full.largest;
                if total.is_none() {
                    self.restarts += 1;
                    self.free_again();
                }
                total
            }
            None if self.worth.as_ref().is_some_and(|worth| worth.spares(now)) => None,
            None => self.open(now, sum),
        }
    }

    /// Whether the streams should bound their writes, so that the kernel hands over few packets at once.
    pub fn bounds_writes(&self) -> bool {
        self.bursts.is_bounded() && self.is_full()
    }

    /// Decides about bounded writes; returns the pace to hold while a trial needs that.
    fn note_bursts(&mut self, now: Duration, sum: &Sample) -> Option<f64> {
        // On a local path the hosts are the bottleneck; loss-based congestion control was not measured.
        if !self.bears_loss() || !is_far(sum.min_rtt) {
            return None;
        }
        let Some(full) = &mut self.full else {
            self.bursts.on_unpaced(now, sum);
            return None;
        };
        let queue = shortest_queue(&self.past, now.saturating_sub(round(sum.min_rtt)), sum);
        match self.bursts.on_sum(now, sum, full.is_shallow(sum, queue)) {
            Some(Change::Begins) => {
                self.restarts += 1;
                full.begin_trial();
            }
            Some(Change::Failed) => full.end_trial(),
            None => {}
        }
        if !self.bursts.holds(now) {
            return None;
        }
        full.round_start = now;
        Some(full.total)
    }

    fn free_again(&mut self) {
        (self.full, self.stalled_since, self.queued_since) = (None, None, None);
        self.opens_again = true;
    }

    /// The step in slow start.
    fn open(&mut self, now: Duration, sum: &Sample) -> Option<f64> {
        let round = round(sum.min_rtt);
        let part = (sum.min_rtt / OPENING_PARTS).max(SHORTEST_PART);
        let last = span(&self.past, now.checked_sub(part)?, now)?;
        let whole = span(&self.past, now.checked_sub(round)?, now)?;
        let before = span(&self.past, now.saturating_sub(2 * round), now - round);
        let queue = shortest_queue(&self.past, now.saturating_sub(part), sum);
        let has_queue = self.queue_tells(now, queue, sum, last.bytes);
        let most = last.rate.max(whole.rate);
        self.best = self.best.max(whole.rate);
        let stalls = has_queue && before.is_some_and(|before| whole.rate < STALLED * before.rate);
        let since = stalls.then(|| self.stalled_since.unwrap_or(now));
        self.stalled_since = since;
        // A host that stalled for a moment looks the same.
        let stalled = since.is_some_and(|since| now >= since + round / 2);
        let overflows = last.overflows() || whole.overflows();
        if stalled || overflows {
            let full = Full { largest: most.max(self.largest), ..Full::new(now, most, self.noise) };
            let full = if overflows { full } else { full.by_delay() };
            return Some(self.full.insert(full).total_for(sum, queue));
        }
        let lasts = now.saturating_sub(self.queued_since.unwrap_or(now)).as_secs_f64() / round.as_secs_f64();
        let wary = if self.opens_again || lasts > 1.0 { WARY_AGAIN } else { WARY };
        has_queue.then(|| (wary * most.max(self.best)).max(FLOOR))
    }

    /// Whether there is a queue that indicates a full path: not for sums so small that they are only a part of the
    /// load, unless it persists.
    fn queue_tells(&mut self, now: Duration, queue: Duration, sum: &Sample, bytes: u64) -> bool {
        if bytes < QUIET_BYTES {
            self.noise = self.noise.max(queue.min(sum.min_rtt));
        }
        // On a local path the hosts are the bottleneck.
        if queue <= NOISE + self.noise || !is_far(sum.min_rtt) {
            self.queued_since = None;
            return false;
        }
        let since = *self.queued_since.get_or_insert(now);
        let stays = now >= since + MEMORY * round(sum.min_rtt);
        bytes >= if stays { TELLING_BYTES / 4 } else { TELLING_BYTES }
    }
}

/// The minimum queue since `from`: occasional late acknowledgements are no queue.
fn shortest_queue(past: &VecDeque<(Duration, Sample)>, from: Duration, sum: &Sample) -> Duration {
    let of_late = past.iter().rev().take_while(|(at, _)| *at >= from);
    let shortest = of_late.map(|(_, past)| past.rtt).min().unwrap_or(sum.rtt);
    shortest.saturating_sub(sum.min_rtt)
}

/// The delivery from the last sample at or before `from` to that at or before `until`.
fn span(past: &VecDeque<(Duration, Sample)>, from: Duration, until: Duration) -> Option<Span> {
    let at = |time: Duration| past.iter().rev().find(|(at, _)| *at <= time);
    let ((start, before), (end, after)) = (at(from)?, at(until)?);
    let elapsed = end.saturating_sub(*start);
    (!elapsed.is_zero()).then(|| Span::between(before, after, elapsed))
}

impl Full {
    fn new(now: Duration, rate: f64, quiet: Duration) -> Self {
        Full {
            rates: VecDeque::from([(0, rate)]),
            taken: None,
            lately: rate,
            low: 0,
            best: rate,
            largest: rate,
            rounds: 0,
            round_start: now,
            total: rate,
            reach: REACH,
            misses: 0,
            overflowed: None,
            draining: (0, LONGEST_QUEUE),
            noise: quiet,
            quiet,
            mean: Duration::ZERO,
            spread: Duration::ZERO,
            longest: Duration::ZERO,
            push: None,
            restarts: false,
            before: Duration::ZERO,
            falling: 0,
            former: None,
            before_trial: (rate, None),
        }
    }

    /// The same where nothing was lost: the path may not be full.
    fn by_delay(self) -> Self {
        Full { reach: FIRST_REACH, taken: Some(self.best), ..self }
    }

    fn most(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// The rate of the streams; `None` if the path is not full after all.
    fn on_sum(&mut self, now: Duration, sum: &Sample, queue: Duration, last: Option<Span>) -> Option<f64> {
        if let Some(last) = last {
            self.learn_noise(queue, &last);
            if self.is_mistaken(sum, queue, &last) {
                return None;
            }
            self.round_start = now;
            self.on_round(sum, queue, &last);
        }
        Some(self.total_for(sum, queue))
    }

    /// Whether a round shows that the path is not full: one of the first has a higher rate than before, or no queue
    /// any more; or the sum stays far below the former rate without loss.
    fn is_mistaken(&mut self, sum: &Sample, queue: Duration, last: &Span) -> bool {
        let (aim, own) = (aim(sum, self.most()), self.own_queue(queue));
        let more = |taken| self.rounds < 3 && last.rate > STALLED * taken;
        let gone = self.rounds < 2 && own < aim / 4;
        let fooled = self.overflowed.is_none() && self.taken.is_some_and(|taken| gone || more(taken));
        self.lately = last.rate.max(self.lately * FADING);
        let is_sent = own > aim || last.rate >= IDLE * self.total;
        let is_low =
            is_sent && own <= aim && !self.is_careful() && !last.overflows() && last.rate < LOW * self.lately;
        self.low = if is_low { self.low + 1 } else { 0 };
        !last.overflows() && (fooled || self.low >= CYCLE)
    }

    /// Averages the delay and its deviation: our own rate changes it slowly, hosts and radio links quickly.
    fn note_delay(&mut self, delay: Duration) {
        let off = delay.abs_diff(self.mean);
        self.mean = (self.mean * (WEIGHT - 1) + delay) / WEIGHT;
        self.spread = (self.spread * (WEIGHT - 1) + off) / WEIGHT;
    }

    fn on_round(&mut self, sum: &Sample, queue: Duration, last: &Span) {
        let (aim, own) = (aim(sum, self.most()), self.own_queue(queue));
        self.rounds += 1;
        let collapses = self.collapses(queue, own > aim, last);
        if last.overflows() && self.rounds > 2 && !collapses {
            self.overflowed = Some(self.rounds);
        }
        let found = last.rate > MORE * self.most() && own < aim && !last.overflows();
        // The first round after a probe has data sent before it; one with a queue tells nothing of the probe.
        if found {
            (self.misses, self.reach) = (0, (2.0 * self.reach).min(LONGEST_REACH));
            self.restarts = self.is_reduced() && last.rate > SURGE * self.most();
        } else if last.overflows() {
            self.reach = REACH;
        } else if own < aim {
            self.misses += 1;
            self.reach = if self.misses < MISSES { self.reach } else { REACH };
        }
        self.draining = match self.draining {
            (_, shortest) if queue > 2 * aim && queue < shortest.mul_f64(SHORTER) => (0, queue),
            (rounds, shortest) if queue > 2 * aim => (rounds + 1, shortest),
            _ => (0, LONGEST_QUEUE),
        };
        if last.overflows() || own > aim || last.rate >= IDLE * self.total {
            self.note(last.sure);
        }
        if collapses {
            self.former = Some(self.most());
            self.begin_anew(last.sure);
        } else if let Some(former) = self.former.filter(|former| last.rate > LOW * former) {
            self.former = None;
            self.begin_anew(former);
        } else if last.overflows() {
            self.forget_peaks();
        }
        if self.pushes() {
            let most = self.most();
            if self.is_reduced() && !self.is_careful() {
                (self.restarts, self.misses, self.reach) = (true, 0, self.reach.max(FIRST_REACH));
            }
            let room = most * (1.0 + ROOM * self.step(most));
            self.push = Some(Push { room, queue, rounds: 0 });
        }
    }

    /// Whether this round and the previous ones show that the capacity fell.
    fn collapses(&mut self, queue: Duration, has_queue: bool, last: &Span) -> bool {
        let fills = last.overflows() || has_queue && queue > self.before;
        let is_less = last.rate < COLLAPSE * self.most();
        self.falling = if fills && is_less { self.falling + 1 } else { 0 };
        self.before = queue;
        self.falling >= FALLING_ROUNDS
    }

    /// Evaluates the last larger probe. If it increased the rate, the present delay is noise; if it only increased
    /// the delay, the delay is a queue.
    fn learn_noise(&mut self, queue: Duration, last: &Span) {
        // Delays that no longer occur are forgotten.
        self.longest = queue.max(self.longest - self.longest / (2 * MEMORY));
        self.noise = self.noise.min(self.longest).max(self.quiet);
        let Some(push) = &mut self.push else { return };
        push.rounds += 1;
        if last.rate >= push.room && !last.overflows() {
            self.noise = self.longest.max(queue);
            self.push = None;
        } else if push.rounds == PUSH_ROUNDS {
            if queue > push.queue {
                self.noise = (self.noise / 2).max(self.quiet);
            }
            self.push = None;
            self.largest *= LASTING;
        }
    }

    /// Whether the path overflowed lately, and delays that would tell a queue do not show it.
    fn is_shallow(&self, sum: &Sample, queue: Duration) -> bool {
        self.is_careful() && self.spread <= NOISE && self.own_queue(queue) <= aim(sum, self.most())
    }

    /// Looks for more, as if nothing had been lost.
    fn begin_trial(&mut self) {
        self.before_trial = (self.most(), self.overflowed);
        (self.overflowed, self.misses, self.reach) = (None, 0, REACH);
    }

    /// Returns to the state before the trial.
    fn end_trial(&mut self) {
        let (rate, overflowed) = self.before_trial;
        (self.overflowed, self.reach) = (overflowed, REACH);
        self.note(rate);
    }

    /// Discards the rates measured before.
    fn begin_anew(&mut self, rate: f64) {
        (self.rates, self.best) = (VecDeque::from([(self.rounds, rate)]), rate);
    }

    /// Discards peaks that were measured too high, after more than the capacity was sent.
    fn forget_peaks(&mut self) {
        let mean = self.rates.iter().map(|(_, rate)| *rate).sum::<f64>() / self.rates.len().max(1) as f64;
        self.rates = VecDeque::from([(self.rounds, mean.midpoint(self.most()))]);
    }

    /// Whether the beginning round has the larger probe.
    fn pushes(&self) -> bool {
        self.rounds % CYCLE == CYCLE - 1
    }

    fn note(&mut self, rate: f64) {
        self.best = self.best.max(rate);
        self.largest = self.largest.max(rate);
        self.rates.retain(|(round, _)| round + MEMORY > self.rounds);
        self.rates.push_back((self.rounds, rate));
    }

    fn is_careful(&self) -> bool {
        self.overflowed.is_some_and(|round| self.rounds < round + CAREFUL_ROUNDS)
    }

    /// The rate of the streams with the present queue.
    fn total_for(&mut self, sum: &Sample, queue: Duration) -> f64 {
        let most = self.most();
        self.total = (self.gain(sum, queue, most) * most).max(FLOOR).max(FLOOR_SHARE * self.best);
        self.total
    }

    fn gain(&self, sum: &Sample, queue: Duration, most: f64) -> f64 {
        let fill = self.own_queue(queue).as_secs_f64() / aim(sum, most).as_secs_f64();
        if self.pushes() {
            return 1.0 + self.step(most);
        }
        if fill > 1.0 {
            return (1.0 - REACH * (fill - 1.0)).max(DRAIN);
        }
        if self.is_careful() { BELOW } else { 1.0 + self.reach * (1.0 - fill) }
    }

    /// The queue without the part that cannot be drained: that of cross traffic, or of a longer path.
    fn own_queue(&self, queue: Duration) -> Duration {
        let others = match self.draining {
            (rounds, shortest) if rounds > DRAIN_ROUNDS => shortest,
            _ => Duration::ZERO,
        };
        queue.saturating_sub(self.noise.max(others).max(self.spread * SPREADS))
    }

    /// Whether the rate is much lower than it once was.
    fn is_reduced(&self) -> bool {
        self.most() < LOW * self.largest
    }

    /// Gain of a cycle's larger probe.
    fn step(&self, most: f64) -> f64 {
        if self.is_careful() {
            return CAREFUL_STEP;
        }
        (STEP * (EVEN_RATE / most.max(1.0)).sqrt()).clamp(STEPS.0, STEPS.1).max(self.reach)
    }
}
