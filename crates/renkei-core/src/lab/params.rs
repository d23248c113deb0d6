//! The parameters of a directed link, with their limits.

use super::policer::Policer;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Minimum default queue: a second of 8 Mbit/s.
const MIN_QUEUE_BYTES: u64 = 1_000_000;

/// Maximum delay and jitter of a link.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The properties of one direction of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkParams {
    /// Bits per second, counted as Ethernet frames without preamble and checksum (14 bytes + IP); `None` is no limit.
    pub rate: Option<u64>,
    /// One-way delay.
    pub delay: Duration,
    /// Jitter: the delay varies by up to this much either way, without reordering.
    pub jitter: Duration,
    /// Packet loss.
    pub loss: Loss,
    /// Policer before the queue.
    #[serde(default)]
    pub policer: Option<Policer>,
    /// Queue limit; `None` is rate x 2 x delay, at least 1 MB. Without a rate there is no queue.
    pub queue: Option<Queue>,
    /// Share of packets that are delayed so that later ones overtake them, 0 to 1.
    pub reorder: f64,
    /// Whether the link is up; when it goes down it loses everything, also packets in flight.
    pub up: bool,
}

/// Loss model of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Loss {
    /// None.
    None,
    /// Each packet independently with this probability.
    Random(f64),
    /// Bursts of packets (Gilbert's model; as netem's `gemodel p r` with share p / (p + r) and burst 1 / r).
    Bursty {
        /// Share of packets lost, 0 to 1.
        share: f64,
        /// Mean length of a run of lost packets, at least 1.
        burst: f64,
    },
}

/// Limit of the drop-tail queue; packets beyond it are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Queue {
    /// Limit in bytes.
    Bytes(u64),
    /// Limit in packets.
    Packets(u32),
}

impl Default for LinkParams {
    fn default() -> Self {
        let zero = Duration::ZERO;
        LinkParams {
            rate: None,
            delay: zero,
            jitter: zero,
            loss: Loss::None,
            policer: None,
            queue: None,
            reorder: 0.0,
            up: true,
        }
    }
}

impl LinkParams {
    /// The effective queue limit: the configured or the default one.
    pub fn queue_limit(&self) -> Queue {
        self.queue.unwrap_or_else(|| {
            let bits = u128::from(self.rate.unwrap_or(0)) * 2 * self.delay.as_nanos() / 1_000_000_000;
            let bytes = u64::try_from(bits / 8).unwrap_or(u64::MAX);
            Queue::Bytes(bytes.max(MIN_QUEUE_BYTES))
        })
    }

    /// Validates the parameters.
    ///
    /// # Errors
    /// A sentence that names the field and its limits.
    pub fn check(&self) -> Result<(), String> {
        let share = |name: &str, value: f64| match value {
            0.0..=1.0 => Ok(()),
            _ => Err(format!("{name} is a share from 0 to 100 %, not {}", value * 100.0)),
        };
        share("reorder", self.reorder)?;
        match self.loss {
            Loss::None => {}
            Loss::Random(value) => share("loss", value)?,
            Loss::Bursty { share: value, burst } => {
                share("loss", value)?;
                if !(1.0..=1e9).contains(&burst) {
                    return Err(format!("a burst of losses is 1 packet or more, not {burst}"));
                }
            }
        }
        if let Some(policer) = self.policer
            && (policer.rate < 1_000 || policer.burst == 0)
        {
            return Err(
                "a policer has a rate of at least 1000 bit/s and a burst of at least one packet".into()
            );
        }
        match (self.rate, self.queue) {
            (Some(0..1_000), _) => Err("rate is at least 1000 bit/s; use down to cut a link".into()),
            (_, Some(Queue::Bytes(0) | Queue::Packets(0))) => {
                Err("the queue holds at least one packet".into())
            }
            _ if self.delay > MAX_DELAY || self.jitter > MAX_DELAY => {
                Err("delay and jitter are at most 60 s".into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_queue_holds_twice_the_delay() {
        let ms = Duration::from_millis;
        let limit = |rate, delay| LinkParams { rate, delay, ..LinkParams::default() }.queue_limit();
        assert_eq!(limit(Some(2_000_000_000), ms(175)), Queue::Bytes(87_500_000));
        assert_eq!(limit(Some(1_000_000), ms(5)), Queue::Bytes(1_000_000));
        assert_eq!(limit(None, ms(5)), Queue::Bytes(1_000_000));
    }

    #[test]
    fn invalid_values_are_named() {
        let said = |params: LinkParams| params.check().unwrap_err();
        let sane = LinkParams::default;
        assert_eq!(sane().check(), Ok(()));
        assert!(said(LinkParams { reorder: f64::NAN, ..sane() }).starts_with("reorder"));
        assert!(said(LinkParams { loss: Loss::Random(1.5), ..sane() }).contains("150"));
        assert!(
            said(LinkParams { loss: Loss::Bursty { share: 0.1, burst: 0.5 }, ..sane() }).contains("burst")
        );
        let policer = |rate, burst| LinkParams { policer: Some(Policer { rate, burst }), ..sane() };
        assert_eq!(policer(1_000_000, 3000).check(), Ok(()));
        assert!(
            said(policer(1, 3000)).contains("policer") && said(policer(1_000_000, 0)).contains("policer")
        );
        assert!(said(LinkParams { rate: Some(0), ..sane() }).starts_with("rate"));
        assert!(said(LinkParams { queue: Some(Queue::Packets(0)), ..sane() }).contains("queue"));
        assert!(said(LinkParams { delay: Duration::from_secs(61), ..sane() }).contains("delay"));
    }
}
