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
//!    is aimed at, less above it. If the first rounds show that the path was not full, or the sum stays far below what came
//!    before and nothing is lost, the streams open again.
//! 3. Where that finds more, the steps become larger. Every few rounds comes a larger step anyway, larger for small
//!    sums than for large ones, so that sessions on one path come to equal shares.
//! 4. **Less**: where for some rounds much less comes through while the queue grows or overflows, the path carries less than it did,
//!    and only what comes through now counts. As long as that is so, the larger steps are those of opening and the streams are
//!    started anew with them, so that what comes back is found within a cycle and grows by half from round to round. If the former
//!    rate is back at once, a host stood still.
//!
//! Delays also come from hosts that are busy and from radio links. So the shortest delay of a round counts, less what the
//! delay is while nothing could wait in a queue, and less what it changes by from look to look.
//!
//! This is what BBR does for one connection (Cardwell et al., "BBR: congestion-based congestion control", ACM Queue
//! 14/5), done for the sum and with the delay as a second signal: the inter-packet gap of Data Reservoir, set from what
//! was measured.

use super::controller::{Sample, is_far};
use std::collections::VecDeque;
use std::time::Duration;

/// A rate is measured over a round trip, and at least so long: less measures bursts.
const SHORTEST_ROUND: Duration = Duration::from_millis(100);
/// Looks at the streams in a round trip, and the shortest and longest time between two.
const LOOKS: u32 = 8;
/// See [`LOOKS`].
const INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));
/// While the streams open, this part of a round trip tells what arrives now, and whether there is a queue.
const OPENING_PARTS: u32 = 4;
/// See [`OPENING_PARTS`]; shorter times measure bursts.
const SHORTEST_PART: Duration = Duration::from_millis(30);
/// Less growth than this from one round to the next is none, as BBR judges it.
const STALLED: f64 = 1.25;
/// Rounds a measured rate is believed.
const MEMORY: u32 = 10;
/// Rounds from one larger step to the next, as BBR has.
const CYCLE: u32 = 8;
/// Bytes sent again, of all that arrived, from which on the path is taken to overflow; random loss on research
/// networks is far below it.
const OVERFLOW: f64 = 0.02;
/// Bytes that must have arrived before a loss tells that the path is full; of few packets, one is already many percent.
const TELLING_BYTES: u64 = 1 << 20;
/// So few bytes make no queue.
const QUIET_BYTES: u64 = TELLING_BYTES / 4;
/// Differences of round trips below this are noise of the hosts.
const NOISE: Duration = Duration::from_millis(3);
/// The queue that is aimed at, as a part of the shortest round trip, but at least [`NOISE`].
const AIM_PARTS: u32 = 16;
/// Least and most of the factor by which that depends on the rate.
const AIMS: (f64, f64) = (0.5, 4.0);
/// What the streams may have while they open and there is a queue: this much of what arrives.
const WARY: f64 = 1.5;
/// The same where that was taken for a full path before: enough for BBR to go on opening.
const WARY_AGAIN: f64 = 1.35;
/// Gain without a queue: so much more than what came through. The streams' own control leaves a little of it unused.
const REACH: f64 = 0.05;
/// The first one: what the streams' own control tries, until it is seen that it brings nothing.
const FIRST_REACH: f64 = 0.25;
/// Most of it, after steps that found more.
const LONGEST_REACH: f64 = 0.5;
/// So many rounds in a row that found nothing end the longer steps.
const MISSES: u32 = 2;
/// A round found more if it brought so much more than all before.
const MORE: f64 = 1.01;
/// It found so much more that the streams may be started anew to follow, where much less came than once did.
const SURGE: f64 = 1.2;
/// The larger step of every cycle, for a sum of [`EVEN_RATE`]; smaller sums take larger ones by the square root.
const STEP: f64 = 0.1;
/// Bytes per second; see [`STEP`].
const EVEN_RATE: f64 = 250e6;
/// Least and most of that step.
const STEPS: (f64, f64) = (0.03, 0.25);
/// Looks whose delays are remembered, and how many times their spread is noise.
const WEIGHT: u32 = 16;
const SPREADS: u32 = 1;
/// What remains of the best rate from round to round, and less of it than this for a whole cycle lets the streams free.
const FADING: f64 = 0.98;
const LOW: f64 = 0.7;
/// What remains of the largest rate there ever was after a step that did not find it.
const LASTING: f64 = 0.93;
/// A larger step shows that there was room if so much of it arrived.
const ROOM: f64 = 0.5;
/// Ends of rounds after which it is known what came of it.
const PUSH_ROUNDS: u32 = 2;
/// Less than this share of what came before, for so many rounds in a row in which the queue grows or overflows: the path carries less.
const COLLAPSE: f64 = 0.6;
/// See [`COLLAPSE`].
const FALLING_ROUNDS: u32 = 3;
/// Less than this share of what came without pace, over a cycle, is a doubt whether pacing pays; and what must come
/// without it, of what came with it, to show that it does not.
const DOUBT: (f64, f64) = (0.9, 1.05);
/// The share that is lost with pace from which on there is such a doubt at all.
const LOSSY: f64 = 0.01;
/// So many cycles in a row that leave one.
const DOUBTS: u32 = 3;
/// Cycles without pace where it does not pay.
const SPARED_CYCLES: u32 = 8;
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
    /// Since when the rate does not grow, while the streams open.
    stalled_since: Option<Duration>,
    /// Delays while so little is under way that they are the hosts' own.
    noise: Duration,
    /// The largest rate of a round while the streams open.
    best: f64,
    /// Whether the path was taken for full before.
    opens_again: bool,
    /// How often the streams had to be started anew.
    restarts: u32,
    /// The largest rate there ever was, which fades with each step that does not find it.
    largest: f64,
    full: Option<Full>,
    /// Only where the streams' own control bears loss: else to end the pace is to overflow.
    worth: Option<Worth>,
}

/// Whether pacing pays: what comes through with it, beside what came without it.
#[derive(Debug, Default)]
struct Worth {
    /// When the present cycle began, what had been done then, and whether nobody paced in it.
    since: Option<(Duration, Sample)>,
    is_free: bool,
    /// Bytes per second of the last cycle with pace, and the best without it.
    paced: f64,
    free: f64,
    /// Whether it was tried.
    was_tried: bool,
    /// Cycles in a row with pace that leave a doubt.
    doubts: u32,
    /// Until when nobody paces, to see whether more comes.
    spared_until: Option<Duration>,
}

impl Worth {
    /// Takes what was done until `now`, and whether somebody paces; true if that should end for a while.
    fn on_sum(&mut self, now: Duration, sum: &Sample, is_paced: bool) -> bool {
        let (since, before) = *self.since.get_or_insert((now, *sum));
        let round = round(sum.min_rtt);
        if self.is_free == is_paced {
            (self.is_free, self.since) = (!is_paced, Some((now, *sum)));
            return false;
        }
        if now < since + CYCLE * round {
            return false;
        }
        self.since = Some((now, *sum));
        let bytes = sum.delivered_bytes.saturating_sub(before.delivered_bytes) as f64;
        let resent = sum.lost_bytes.saturating_sub(before.lost_bytes) as f64;
        let rate = bytes / now.saturating_sub(since).as_secs_f64();
        if is_paced {
            self.paced = rate;
            let doubts = resent > LOSSY * bytes && (!self.was_tried || rate < DOUBT.0 * self.free);
            self.doubts = if doubts { self.doubts + 1 } else { 0 };
            let ends = self.doubts >= DOUBTS;
            self.spared_until = ends.then(|| now + (CYCLE + 1) * round);
            return ends;
        }
        let in_trial = self.spared_until.is_some_and(|until| until <= now + 2 * round);
        if in_trial && rate > DOUBT.1 * self.paced {
            self.spared_until = Some(now + SPARED_CYCLES * CYCLE * round);
        }
        (self.free, self.doubts) = (rate, 0);
        self.was_tried |= in_trial;
        false
    }

    /// Whether nobody should pace now.
    fn spares(&self, now: Duration) -> bool {
        self.spared_until.is_some_and(|until| now < until)
    }
}

/// What is kept once the path is full.
#[derive(Debug)]
struct Full {
    /// The largest rates of the last rounds, and in which round each was.
    rates: VecDeque<(u32, f64)>,
    /// The rate at which the path was taken for full by its delay alone.
    taken: Option<f64>,
    /// The best rate of late, and rounds in a row far below it in which nothing was lost.
    lately: f64,
    low: u32,
    /// The largest rate since the path was seen to carry less.
    best: f64,
    /// The largest rate ever, which fades with each step that does not find it.
    largest: f64,
    rounds: u32,
    round_start: Duration,
    /// What all streams may send now.
    total: f64,
    reach: f64,
    /// Rounds in a row that found nothing.
    misses: u32,
    /// The round of the last overflow.
    overflowed: Option<u32>,
    /// Rounds since a queue was shortest, and that shortest one.
    draining: (u32, Duration),
    /// The delay that does not answer to what is sent: of hosts that are busy, of others, of a longer way.
    noise: Duration,
    /// The same before anything could be a queue.
    quiet: Duration,
    /// The mean delay of the last looks, and how far from it they are.
    mean: Duration,
    spread: Duration,
    /// The longest delay of late.
    longest: Duration,
    /// The last larger step, until it is known what came of it.
    push: Option<Push>,
    /// Whether the streams have to be started anew, so that they follow a larger step.
    restarts: bool,
    /// The queue of the last round, and rounds in a row in which it grew while much less came through.
    before: Duration,
    falling: u32,
    /// What came through before that, until it is known whether a host stood still.
    former: Option<f64>,
}

/// A larger step.
#[derive(Debug)]
struct Push {
    /// The rate that would show that there was room.
    room: f64,
    /// The delay before.
    queue: Duration,
    /// Ends of rounds seen since.
    rounds: u32,
}

/// What arrived in some time.
struct Span {
    bytes: u64,
    /// Bytes per second.
    rate: f64,
    /// The same without what only became known late.
    sure: f64,
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
    /// Of streams whose own control bears loss, or does not.
    pub fn new(bears_loss: bool) -> Self {
        Capacity { worth: bears_loss.then(Worth::default), ..Capacity::default() }
    }

    /// Whether the streams' own control bears loss.
    pub fn bears_loss(&self) -> bool {
        self.worth.is_some()
    }

    /// Whether the path was found full, and the streams are paced since.
    pub fn is_full(&self) -> bool {
        self.full.is_some()
    }

    /// How often the streams have to be started anew: where the path was taken for full and was not, or carries more again. The pace has
    /// ended the start of streams that are BBR, which gain a quarter in eight round trips from then on.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Goes on after a pause, on a clock that begins anew; `sum` is what was done before.
    pub fn resume(self, sum: Sample) -> Self {
        let full = self.full.map(|full| Full { round_start: Duration::ZERO, ..full });
        let worth = self.worth.map(|worth| Worth { since: None, spared_until: None, ..worth });
        let (past, largest) = (VecDeque::from([(Duration::ZERO, sum)]), self.largest);
        Capacity { past, largest, full, worth, ..Capacity::default() }
    }

    /// Takes what all streams together did until `now`; gives the rate they may have from now on, or `None` to leave
    /// them free.
    pub fn on_sum(&mut self, now: Duration, sum: &Sample) -> Option<f64> {
        self.past.push_back((now, *sum));
        if let Some(full) = &mut self.full {
            full.note_delay(queue(sum));
        }
        let keep = 2 * round(sum.min_rtt);
        while self.past.get(1).is_some_and(|(at, _)| *at + keep <= now) {
            self.past.pop_front();
        }
        let is_paced = self.full.is_some();
        if self.worth.as_mut().is_some_and(|worth| worth.on_sum(now, sum, is_paced)) {
            self.free_again();
        }
        match &mut self.full {
            Some(full) => {
                let queue = shortest_queue(&self.past, now.saturating_sub(round(sum.min_rtt)), sum);
                let whole = now >= full.round_start + round(sum.min_rtt);
                // A host that stood still for a while has forgotten how the round began.
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

    fn free_again(&mut self) {
        (self.full, self.stalled_since, self.queued_since) = (None, None, None);
        self.opens_again = true;
    }

    /// While the streams open.
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
        // A host that stood still for a moment looks like it, too.
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

    /// Whether there is a queue that says something about the path: not for sums so small that they are a part of it
    /// only, unless it stays.
    fn queue_tells(&mut self, now: Duration, queue: Duration, sum: &Sample, bytes: u64) -> bool {
        if bytes < QUIET_BYTES {
            self.noise = self.noise.max(queue.min(sum.min_rtt));
        }
        // On a local path it is the hosts that are full.
        if queue <= NOISE + self.noise || !is_far(sum.min_rtt) {
            self.queued_since = None;
            return false;
        }
        let since = *self.queued_since.get_or_insert(now);
        let stays = now >= since + MEMORY * round(sum.min_rtt);
        bytes >= if stays { TELLING_BYTES / 4 } else { TELLING_BYTES }
    }
}

/// The shortest queue seen since `from`: what comes late now and then is no queue.
fn shortest_queue(past: &VecDeque<(Duration, Sample)>, from: Duration, sum: &Sample) -> Duration {
    let of_late = past.iter().rev().take_while(|(at, _)| *at >= from);
    let shortest = of_late.map(|(_, past)| past.rtt).min().unwrap_or(sum.rtt);
    shortest.saturating_sub(sum.min_rtt)
}

/// What arrived from the last sample at or before `from` to that at or before `until`.
fn span(past: &VecDeque<(Duration, Sample)>, from: Duration, until: Duration) -> Option<Span> {
    let at = |time: Duration| past.iter().rev().find(|(at, _)| *at <= time);
    let ((start, before), (end, after)) = (at(from)?, at(until)?);
    let elapsed = end.saturating_sub(*start).as_secs_f64();
    let bytes = after.delivered_bytes.saturating_sub(before.delivered_bytes);
    let resent = after.lost_bytes.saturating_sub(before.lost_bytes) as f64 / (bytes as f64).max(1.0);
    // Where the delay became shorter, more was heard of than arrived in that time.
    let caught_up = before.rtt.saturating_sub(after.rtt).as_secs_f64();
    let sure = bytes as f64 / (elapsed + caught_up / 2.0);
    (elapsed > 0.0).then(|| Span { bytes, rate: bytes as f64 / elapsed, sure, resent })
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
        }
    }

    /// The same where nothing was lost: it may be a mistake.
    fn by_delay(self) -> Self {
        Full { reach: FIRST_REACH, taken: Some(self.best), ..self }
    }

    fn most(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// What the streams may have; nothing if the path is not full after all.
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

    /// Whether a round shows that the path is not full: one of the first brings more than there was, or no queue any more;
    /// or the sum stays far below what came before, and nothing is lost.
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

    /// Notes how much the delay changes from look to look: what we send moves it slowly, hosts and radio links do not.
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
        // What the first round after a step brings was sent before it; one with a queue tells nothing of the step.
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

    /// Whether this round and those before show that the path carries less than it did.
    fn collapses(&mut self, queue: Duration, has_queue: bool, last: &Span) -> bool {
        let fills = last.overflows() || has_queue && queue > self.before;
        let is_less = last.rate < COLLAPSE * self.most();
        self.falling = if fills && is_less { self.falling + 1 } else { 0 };
        self.before = queue;
        self.falling >= FALLING_ROUNDS
    }

    /// Judges the last larger step. If it brought more, what delay there is was no queue; if nothing came of it but a longer
    /// delay, it is one.
    fn learn_noise(&mut self, queue: Duration, last: &Span) {
        // Delays that are not there any more are forgotten.
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

    /// What came through before tells nothing any more.
    fn begin_anew(&mut self, rate: f64) {
        (self.rates, self.best) = (VecDeque::from([(self.rounds, rate)]), rate);
    }

    /// Single rates that were measured too high do not count where more than the path carries was sent.
    fn forget_peaks(&mut self) {
        let mean = self.rates.iter().map(|(_, rate)| *rate).sum::<f64>() / self.rates.len().max(1) as f64;
        self.rates = VecDeque::from([(self.rounds, mean.midpoint(self.most()))]);
    }

    /// Whether the round that begins has the larger step.
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

    /// What the streams may have together with the queue there is now.
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

    /// The queue without what could not be drained: that of others, or a path that became longer.
    fn own_queue(&self, queue: Duration) -> Duration {
        let others = match self.draining {
            (rounds, shortest) if rounds > DRAIN_ROUNDS => shortest,
            _ => Duration::ZERO,
        };
        queue.saturating_sub(self.noise.max(others).max(self.spread * SPREADS))
    }

    /// Whether much less comes through than once did.
    fn is_reduced(&self) -> bool {
        self.most() < LOW * self.largest
    }

    /// The larger step of a cycle.
    fn step(&self, most: f64) -> f64 {
        if self.is_careful() {
            return CAREFUL_STEP;
        }
        (STEP * (EVEN_RATE / most.max(1.0)).sqrt()).clamp(STEPS.0, STEPS.1).max(self.reach)
    }
}
