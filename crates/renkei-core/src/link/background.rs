//! The rate of a background (scavenger) transfer: the capacity that other traffic leaves unused, up to all of it.
//!
//! The sum of the session's streams is paced to one rate. It rises while the RTT stays near the minimum, more slowly
//! than a single connection's; when a queue grows or packets are lost it falls, slightly the first time, by half if
//! the queue does not shrink or comes back at once, because then others fill it. So it converges to the unused
//! capacity within some round trips: to a small floor beside greedy flows. After a long time without a queue it rises
//! exponentially. Periodically it drops for a moment, to measure the minimum RTT again.
//!
//! After LEDBAT (RFC 6817) and LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus), with a rate in place of a window.

use std::time::Duration;

/// Minimum length of a round: a shorter one has too few packets for its RTT to be meaningful.
const SHORTEST_ROUND: Duration = Duration::from_millis(20);
/// Bytes delivered before a round is judged, unless it takes [`LONGEST_ROUND`].
const TELLING_BYTES: u64 = 16 * 1448;
/// Maximum length of a round, or one RTT.
const LONGEST_ROUND: Duration = Duration::from_millis(500);
/// Target queueing delay, above the noise of hosts, plus a share of the minimum RTT.
const TARGET: Duration = Duration::from_millis(2);
/// See [`TARGET`].
const TARGET_SHARE: f64 = 0.05;
/// Delayed acknowledgements: a receiver acknowledges every second packet, or one after at most this time, which a
/// stream that sends few packets sees as a longer RTT.
const LONGEST_ACK_WAIT: f64 = 0.04;
/// See [`LONGEST_ACK_WAIT`].
const ACKNOWLEDGED_BYTES: f64 = 2.0 * 1448.0;
/// Ratio of retransmitted to delivered bytes in a round, and minimum of retransmitted bytes, that indicate a full
/// queue; random loss on research networks is below it.
const LOSS: f64 = 0.005;
/// See [`LOSS`].
const LOST_BYTES: u64 = 8 * 1448;
/// Growth per round while the path is opened for the first time (slow start).
const OPENING: f64 = 1.5;
/// Growth per round afterwards.
const GROWTH: f64 = 0.0025;
/// Rounds without a queue after which growth accelerates: two cycles of BBR's bandwidth probing.
const CALM_ROUNDS: u32 = 16;
/// Acceleration of growth then, and its maximum.
const SPEEDING: f64 = 1.25;
/// See [`SPEEDING`].
const FASTEST: f64 = 0.1;
/// Above this share of the best rate seen, growth is at most [`NEAR_GROWTH`], so that a queue begins small.
const NEAR: f64 = 0.9;
/// See [`NEAR`].
const NEAR_GROWTH: f64 = 0.01;
/// Factor of the rate after the first queue in a long time. Until that queue is drained, the rate is lower, by as
/// much as drains it in a round, down to [`FALL`].
const LEAST_FALL: f64 = 0.95;
/// Factor of the rate when others fill the queue.
const FALL: f64 = 0.5;
/// A queue that shrank to this share in a round is being drained.
const SHORTER: f64 = 0.95;
/// A source that delivers less than this share of the rate has no more to send (application-limited): that tells
/// nothing of the path.
const BUSY: f64 = 0.5;
/// Bytes taken from a source at once: this many may be missing from a round and be delivered in the next.
const PIECE: f64 = 262_144.0;
/// Minimum rate, however full the path is, in bytes per second, and as a share of the best rate seen.
const FLOOR: f64 = 64e3;
/// See [`FLOOR`].
const FLOOR_SHARE: f64 = 1.0 / 256.0;
/// After this time without an empty queue, the rate drops for two rounds.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Counters of all streams of a session over one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Its length.
    pub elapsed: Duration,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Bytes retransmitted.
    pub lost_bytes: u64,
    /// Minimum RTT of all busy streams at its end.
    pub rtt: Duration,
    /// Minimum RTT known.
    pub min_rtt: Duration,
    /// Number of streams that delivered something.
    pub busy: usize,
}

impl Round {
    fn rate(&self) -> f64 {
        self.delivered_bytes as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }

    fn queue(&self) -> Duration {
        self.rtt.saturating_sub(self.min_rtt)
    }

    fn target(&self) -> Duration {
        let acks = ACKNOWLEDGED_BYTES * self.busy as f64 / self.rate().max(1.0);
        TARGET.max(self.min_rtt.mul_f64(TARGET_SHARE)) + Duration::from_secs_f64(acks.min(LONGEST_ACK_WAIT))
    }

    fn loses(&self) -> bool {
        self.lost_bytes >= LOST_BYTES && self.lost_bytes as f64 > LOSS * self.delivered_bytes as f64
    }
}

/// Rate controller of one session.
#[derive(Clone, Debug)]
pub struct Background {
    rate: f64,
    best: f64,
    /// Delivery rate of the previous round.
    before: f64,
    opening: bool,
    /// Rounds since the last reduction.
    calm: u32,
    growth: f64,
    /// Whether the last round showed a queue: in a single round it may be a late host.
    suspected: bool,
    /// The longest queue since the last reduction, until there is none.
    queued: Option<Duration>,
    /// The rate to set after a queue that seems our own is drained.
    drained: Option<f64>,
    /// Whether the rate was just reduced: the effect is seen a round later.
    fell: bool,
    /// Time since the queue was last empty.
    unseen: Duration,
    /// Remaining rounds of the probe for the minimum RTT, and the rate after it.
    looking: Option<(u32, f64)>,
}

impl Background {
    /// Begins with a harmless rate: that of four connections' initial windows.
    pub fn new(rtt: Duration) -> Self {
        let first = 40.0 * 1448.0 / rtt.max(SHORTEST_ROUND).as_secs_f64();
        Background {
            rate: first.max(FLOOR),
            best: 0.0,
            before: 0.0,
            opening: true,
            calm: 0,
            growth: GROWTH,
            suspected: false,
            queued: None,
            drained: None,
            fell: false,
            unseen: Duration::ZERO,
            looking: None,
        }
    }

    /// Length of the next round on a path with this RTT: changes are not seen sooner.
    pub fn round(rtt: Duration) -> Duration {
        rtt.max(SHORTEST_ROUND)
    }

    /// Whether a round can be judged, or should be extended by some packets.
    pub fn is_telling(round: &Round) -> bool {
        round.delivered_bytes >= TELLING_BYTES || round.elapsed >= LONGEST_ROUND.max(round.rtt)
    }

    /// Rate of all streams together, in bytes per second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes the counters of a round; returns the rate of the next.
    pub fn on_round(&mut self, round: &Round) -> f64 {
        let next = self.judge(round);
        (self.before, self.best) = (round.rate(), self.best.max(round.rate()));
        self.rate = next.max(FLOOR).max(FLOOR_SHARE * self.best);
        self.rate
    }

    fn judge(&mut self, round: &Round) -> f64 {
        let (queue, target) = (round.queue(), round.target());
        self.unseen = if queue < target / 4 { Duration::ZERO } else { self.unseen + round.elapsed };
        if std::mem::take(&mut self.fell) {
            self.queued = self.queued.map(|before| before.max(queue));
        } else if round.loses() || queue > if self.opening { target / 2 } else { target } {
            self.on_queue(round);
        } else {
            self.on_calm(round);
        }
        self.rate
    }

    /// A queue, or loss: acted upon at once if something was lost, otherwise if it persists for another round.
    fn on_queue(&mut self, round: &Round) {
        if std::mem::replace(&mut self.suspected, true) || round.loses() {
            self.yield_to(round);
        } else if self.opening {
            // The last step was too large, if it was the cause.
            self.rate = self.rate.min(round.rate().max(self.before));
            self.fell = true;
        }
    }

    fn on_calm(&mut self, round: &Round) {
        self.suspected = false;
        if let Some(rate) = self.drained.take() {
            self.rate = rate;
        }
        if !self.look(round) {
            self.grow(round);
        }
    }

    /// Reduces the rate: until the queue is drained, if it may be our own, or by half if that did not help or it came
    /// back at once.
    fn yield_to(&mut self, round: &Round) {
        let queue = round.queue();
        let before = self.queued.replace(queue);
        if before.is_some_and(|before| queue < before.mul_f64(SHORTER)) && !round.loses() {
            return;
        }
        let again = before.is_some() || (!self.opening && self.calm < CALM_ROUNDS);
        let came = self.rate.min(round.rate().max(self.before));
        let drains = 1.0 - queue.as_secs_f64() / round.elapsed.as_secs_f64().max(1e-6);
        let is_own = !again && (self.opening || !round.loses());
        self.drained = is_own.then_some(LEAST_FALL * came);
        self.rate = came * if is_own { drains.clamp(FALL, LEAST_FALL) } else { FALL };
        self.fell = true;
        (self.opening, self.calm, self.growth, self.looking) = (false, 0, GROWTH, None);
    }

    /// Drops the rate for two rounds if the queue was not empty for long; true during the probe.
    fn look(&mut self, round: &Round) -> bool {
        self.looking = match self.looking {
            Some((1, after)) => {
                self.rate = after;
                None
            }
            Some((left, after)) => Some((left - 1, after)),
            None if self.unseen >= LOOK_EVERY && round.delivered_bytes > 0 => {
                let after = self.rate;
                (self.rate, self.unseen) = (FALL * after, Duration::ZERO);
                Some((2, after))
            }
            None => None,
        };
        self.looking.is_some()
    }

    fn grow(&mut self, round: &Round) {
        self.queued = None;
        self.calm += 1;
        let allowed = self.rate * round.elapsed.as_secs_f64();
        if round.delivered_bytes as f64 + PIECE < BUSY * allowed {
            return;
        }
        if self.opening {
            self.rate *= OPENING;
            return;
        }
        if self.calm > CALM_ROUNDS {
            self.growth = (self.growth * SPEEDING).min(FASTEST);
        }
        let near_best = self.rate > NEAR * self.best;
        self.rate *= 1.0 + if near_best { self.growth.min(NEAR_GROWTH) } else { self.growth };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const STEP: f64 = 0.001;

    /// Cross traffic beside the background transfer.
    trait Other {
        /// Its present rate in bytes per second; it gets the RTT, its own delivery rate and whether packets were lost.
        fn send(&mut self, at: f64, rtt: f64, through: f64, lost: bool) -> f64;
    }

    /// Loss-based: a window that grows on CUBIC's curve.
    struct Cubic {
        window: f64,
        most: f64,
        since: f64,
        min_rtt: f64,
    }

    impl Other for Cubic {
        fn send(&mut self, at: f64, rtt: f64, _: f64, lost: bool) -> f64 {
            if lost && at - self.since > rtt {
                (self.most, self.since) = (self.window, at);
            }
            let packets = self.most / 1448.0;
            let curve = 0.4 * (at - self.since - (packets * 0.75).cbrt()).powi(3) + packets;
            self.window = (curve * 1448.0).max(2.0 * 1448.0);
            self.window / rtt.max(self.min_rtt)
        }
    }

    /// The maximum rate over ten RTTs, with a gain of 1.25 in one of eight.
    struct Bbr {
        rates: VecDeque<f64>,
        min_rtt: f64,
        round: u32,
        next: f64,
        through: f64,
    }

    impl Other for Bbr {
        fn send(&mut self, at: f64, rtt: f64, through: f64, _: bool) -> f64 {
            self.through += through * STEP;
            if at >= self.next {
                self.rates.push_back(self.through / self.min_rtt);
                if self.rates.len() > 10 {
                    self.rates.pop_front();
                }
                (self.through, self.next, self.round) = (0.0, at + self.min_rtt, self.round + 1);
            }
            let most = self.rates.iter().copied().fold(1e5, f64::max);
            let gain = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0][self.round as usize % 8];
            (gain * most).min(2.0 * most * self.min_rtt / rtt)
        }
    }

    /// A bottleneck with its queue, in bytes per second and bytes.
    struct Path {
        capacity: f64,
        queue: f64,
        min_rtt: f64,
        /// Share of packets lost randomly.
        loss: f64,
        /// Interval of late acknowledgements of a host, in seconds: the RTT then seems longer.
        late_every: f64,
    }

    /// By how much the RTT is longer, and for how long: one round sees it.
    const LATE: (f64, f64) = (0.008, 0.025);

    /// Mean rates of the cross traffic and of the background transfer between `from` and `to` seconds.
    fn drive(path: &Path, other: Option<&mut dyn Other>, with_us: bool, from: f64, to: f64) -> (f64, f64) {
        let mut us = Background::new(Duration::from_secs_f64(path.min_rtt));
        let mut nobody = Cubic { window: 0.0, most: 0.0, since: 0.0, min_rtt: 1.0 };
        let alone = other.is_none();
        let other = other.unwrap_or(&mut nobody);
        let (mut queued, mut sums, mut seen) = (0.0f64, (0.0, 0.0), VecDeque::new());
        let (mut round, mut lost, mut theirs) = (Round::default(), false, 0.0);
        for step in 0..(to / STEP) as u32 {
            let at = f64::from(step) * STEP;
            // Measurements are delayed by the way back.
            seen.push_back(path.min_rtt + queued / path.capacity);
            let rtt = if seen.len() as f64 * STEP > path.min_rtt { seen.pop_front() } else { None };
            let late = if at % path.late_every > path.late_every - LATE.1 { LATE.0 } else { 0.0 };
            let rtt = rtt.unwrap_or(path.min_rtt) + late;
            let sends = if alone { 0.0 } else { other.send(at, rtt, theirs, lost) };
            let ours = if with_us { us.rate() } else { 0.0 };
            queued += (sends + ours - path.capacity) * STEP;
            let over = (queued - path.queue).max(0.0);
            queued = queued.clamp(0.0, path.queue);
            lost = over > 0.0;
            let total = (sends + ours).max(1.0);
            let busy = if queued > 0.0 { path.capacity } else { total.min(path.capacity) };
            let share = ours / total;
            theirs = busy * (1.0 - share);
            if at > from {
                sums.0 += theirs * STEP;
                sums.1 += busy * share * STEP;
            }
            round.elapsed += Duration::from_secs_f64(STEP);
            round.delivered_bytes += (busy * share * STEP) as u64;
            round.lost_bytes += ((over + path.loss * busy * STEP) * share) as u64;
            round.rtt = Duration::from_secs_f64(rtt);
            round.min_rtt = Duration::from_secs_f64(path.min_rtt);
            if round.elapsed >= Background::round(round.rtt) && Background::is_telling(&round) {
                us.on_round(&std::mem::take(&mut round));
            }
        }
        (sums.0 / (to - from), sums.1 / (to - from))
    }

    fn paths() -> impl Iterator<Item = Path> {
        let path = |(bits, min_rtt, share): (f64, f64, f64)| {
            let capacity = bits / 8.0;
            Path {
                capacity,
                queue: capacity * min_rtt * share,
                min_rtt,
                loss: 0.0,
                late_every: f64::INFINITY,
            }
        };
        let all = [(1e9, 0.02, 1.0), (2e9, 0.1, 1.0), (1e8, 0.01, 4.0), (1e9, 0.35, 0.5), (1e9, 0.05, 0.25)];
        all.into_iter().map(path)
    }

    fn far() -> Path {
        paths().nth(1).expect("there are five")
    }

    fn cubic(path: &Path) -> Cubic {
        let window = (path.capacity * path.min_rtt + path.queue) * 0.9;
        Cubic { window, most: window, since: 0.0, min_rtt: path.min_rtt }
    }

    fn bbr(path: &Path) -> Bbr {
        let rates = VecDeque::from([path.capacity]);
        Bbr { rates, min_rtt: path.min_rtt, round: 0, next: 0.0, through: 0.0 }
    }

    #[test]
    fn alone_it_fills_the_path() {
        for path in paths() {
            let (_, ours) = drive(&path, None, true, 30.0 * path.min_rtt.max(0.1), 60.0);
            assert!(ours > 0.9 * path.capacity, "{} of {} at {}", ours, path.capacity, path.min_rtt);
        }
    }

    #[test]
    fn alone_it_opens_as_soon_as_a_connection_does() {
        for path in paths() {
            // A factor of 1.5 per round from the initial rate on, and some rounds for the queue it makes in the end.
            let first = Background::new(Duration::from_secs_f64(path.min_rtt)).rate();
            let rounds = (path.capacity / first).ln() / OPENING.ln() + 8.0;
            let open = rounds * path.min_rtt.max(0.02);
            let (_, ours) = drive(&path, None, true, open, open + 4.0);
            assert!(ours > 0.9 * path.capacity, "{} of {} at {}", ours, path.capacity, path.min_rtt);
        }
    }

    #[test]
    fn late_wakeups_of_a_host_do_not_slow_it() {
        for path in paths().map(|path| Path { late_every: 0.3, ..path }) {
            let (_, ours) = drive(&path, None, true, 10.0, 60.0);
            assert!(ours > 0.9 * path.capacity, "{} of {} at {}", ours, path.capacity, path.min_rtt);
        }
    }

    #[test]
    fn random_loss_does_not_slow_it() {
        let path = Path { loss: 1e-3, ..far() };
        let (_, ours) = drive(&path, None, true, 10.0, 60.0);
        assert!(ours > 0.92 * path.capacity, "{ours}");
    }

    #[test]
    fn a_cubic_flow_beside_it_keeps_its_rate() {
        for path in paths() {
            let (alone, _) = drive(&path, Some(&mut cubic(&path)), false, 0.0, 60.0);
            let (beside, ours) = drive(&path, Some(&mut cubic(&path)), true, 0.0, 60.0);
            assert!(beside > 0.9 * alone, "{beside} of {alone}, we {ours} at {}", path.min_rtt);
        }
    }

    #[test]
    fn a_bbr_flow_beside_it_keeps_its_rate() {
        for path in paths() {
            let (alone, _) = drive(&path, Some(&mut bbr(&path)), false, 0.0, 60.0);
            let (beside, ours) = drive(&path, Some(&mut bbr(&path)), true, 0.0, 60.0);
            assert!(beside > 0.9 * alone, "{beside} of {alone}, we {ours} at {}", path.min_rtt);
        }
    }
}
