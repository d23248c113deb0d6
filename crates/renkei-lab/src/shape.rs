//! The effects of a link on packets, in the notation of people: `40M`, `5 ms`, `0.1% burst 8`, `0.5 BDP`.
//!
//! A [`Shape`] is partial: a `None` leaves the setting as it was. The file's defaults, a link's own fields and
//! `renkei lab set` are all shapes, overlaid on one another. Pure text and numbers; the engines convert a complete
//! shape to their parameters.

use renkei_core::lab::policer;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Settings of one direction of a link; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shape {
    /// Capacity.
    pub rate: Option<Rate>,
    /// One-way delay.
    pub delay: Option<Delay>,
    /// Maximum deviation of a packet's delay.
    pub jitter: Option<Delay>,
    /// Packet loss.
    pub loss: Option<Loss>,
    /// Policer before the queue.
    pub policer: Option<Policer>,
    /// Limit of the queue before the link.
    pub queue: Option<Queue>,
    /// Share of packets that are reordered.
    pub reorder: Option<Share>,
    /// Largest IP packet.
    pub mtu: Option<Mtu>,
    /// Whether the link is up.
    pub up: Option<bool>,
}

impl Shape {
    /// Overlays `other` on this one.
    pub fn overlay(&mut self, other: &Shape) {
        fn take<T: Clone>(to: &mut Option<T>, from: &Option<T>) {
            if from.is_some() {
                to.clone_from(from);
            }
        }
        take(&mut self.rate, &other.rate);
        take(&mut self.delay, &other.delay);
        take(&mut self.jitter, &other.jitter);
        take(&mut self.loss, &other.loss);
        take(&mut self.policer, &other.policer);
        take(&mut self.queue, &other.queue);
        take(&mut self.reorder, &other.reorder);
        take(&mut self.mtu, &other.mtu);
        take(&mut self.up, &other.up);
    }

    /// The one-way delay; zero if unset.
    pub fn delay(&self) -> Duration {
        self.delay.unwrap_or_default().0
    }

    /// The rate in bit/s; `None` is unlimited.
    pub fn rate(&self) -> Option<u64> {
        self.rate.and_then(|rate| rate.0)
    }

    /// The largest IP packet.
    pub fn mtu(&self) -> u32 {
        self.mtu.unwrap_or_default().0
    }
}

/// Bits per second on the wire, Ethernet headers counted; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub Option<u64>);

/// A span of time, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay(pub Duration);

/// A part of the whole, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share(pub f64);

/// Random packet loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Long-term share of packets lost.
    pub share: f64,
    /// Mean number of packets lost in a row; 1 means independent losses.
    pub burst: f64,
}

/// Policer: drops what exceeds a rate and a burst; `None` is no policer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policer(pub Option<policer::Policer>);

/// Limit of a drop-tail queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Queue {
    /// In bytes.
    Bytes(u64),
    /// In packets.
    Packets(u32),
    /// As a fraction of the bandwidth-delay product, rate x round trip.
    Bdp(f64),
}

/// Size of the largest IP packet in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu(pub u32);

impl Default for Mtu {
    fn default() -> Self {
        Mtu(1500)
    }
}

/// Splits `1.5 Gbit` into the number, the longest prefix that is one, and the unit.
fn split_number(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let ends = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end));
    let split = ends.map(|end| text.split_at(end)).find_map(|(number, unit)| {
        let positive = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        number.parse::<f64>().ok().filter(|_| positive).map(|number| (number, unit.trim()))
    });
    split.ok_or_else(|| format!("`{text}` does not start with a number"))
}

fn scaled(text: &str, units: &[(&str, f64)], form: &str) -> Result<f64, String> {
    let (number, unit) = split_number(text).map_err(|error| format!("{error}; write {form}"))?;
    let known = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    match known {
        Some((_, factor)) => Ok(number * factor),
        None => Err(format!("`{unit}` is no unit here; write {form}")),
    }
}

const RATE_UNITS: &[(&str, f64)] = &[
    ("", 1.0),
    ("k", 1e3),
    ("kbit", 1e3),
    ("kbit/s", 1e3),
    ("M", 1e6),
    ("Mbit", 1e6),
    ("Mbit/s", 1e6),
    ("Mbps", 1e6),
    ("G", 1e9),
    ("Gbit", 1e9),
    ("Gbit/s", 1e9),
    ("Gbps", 1e9),
    ("bit/s", 1.0),
];

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "unlimited" {
            return Ok(Rate(None));
        }
        let bits = scaled(text, RATE_UNITS, "a rate as 40M, 1.5G or unlimited")?;
        match bits {
            1000.0..=1e12 => Ok(Rate(Some(bits.round() as u64))),
            _ => Err(format!("`{text}` is not between 1k and 1000G")),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bits) = self.0 else { return f.write_str("unlimited") };
        let (scaled, unit) = match bits as f64 {
            bits @ 1e9.. => (bits / 1e9, "G"),
            bits @ 1e6.. => (bits / 1e6, "M"),
            bits => (bits / 1e3, "k"),
        };
        write!(f, "{}{unit}", (scaled * 1e4).round() / 1e4)
    }
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6)];
        let seconds = scaled(text, &units, "a time as 350ms, 0.2ms or 50us")?;
        match seconds {
            0.0..=10.0 => Ok(Delay(Duration::from_nanos((seconds * 1e9).round() as u64))),
            _ => Err(format!("`{text}` is more than 10 s")),
        }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", (self.0.as_secs_f64() * 1e7).round() / 1e4)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = scaled(text, &[("", 1.0), ("%", 0.01)], "a share as 0.1% or 0.001")?;
        match share {
            0.0..=1.0 => Ok(Share(share)),
            _ => Err(format!("`{text}` is more than the whole")),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", (self.0 * 1e8).round() / 1e6)
    }
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (share, burst) = match text.split_once("burst") {
            None => (text, 1.0),
            Some((share, burst)) => {
                (share, scaled(burst, &[("", 1.0)], "a loss in bursts as `0.1% burst 8`")?)
            }
        };
        let share = share.parse::<Share>()?.0;
        match burst {
            1.0..=1e6 => Ok(Loss { share, burst }),
            _ => Err(format!("`{text}`: a burst is at least one packet")),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Share(self.share))?;
        if self.burst > 1.0 { write!(f, " burst {}", self.burst) } else { Ok(()) }
    }
}

impl FromStr for Policer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "none" {
            return Ok(Policer(None));
        }
        let form = "a policer as `500M burst 64KB`, or none";
        let (rate, burst) = text.split_once("burst").ok_or(format!("`{text}` has no burst; write {form}"))?;
        let Rate(Some(rate)) = rate.trim().parse()? else {
            return Err(format!("`{text}` has no limit; write {form}"));
        };
        match burst.parse()? {
            Queue::Bytes(burst) => Ok(Policer(Some(policer::Policer { rate, burst }))),
            Queue::Packets(_) | Queue::Bdp(_) => Err(format!("`{text}`: a burst is in bytes; write {form}")),
        }
    }
}

impl fmt::Display for Policer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(policer::Policer { rate, burst }) = self.0 else { return f.write_str("none") };
        write!(f, "{} burst {}", Rate(Some(rate)), Queue::Bytes(burst))
    }
}

impl FromStr for Queue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "a queue as 256KB, 1MB, 1000p or `0.5 BDP`";
        let (number, unit) = split_number(text).map_err(|error| format!("{error}; write {form}"))?;
        let bytes = |factor: f64| Ok(Queue::Bytes((number * factor).round() as u64));
        let queue = match unit.to_ascii_lowercase().replace(' ', "").as_str() {
            "b" | "bytes" => bytes(1.0),
            "k" | "kb" => bytes(1e3),
            "m" | "mb" => bytes(1e6),
            "g" | "gb" => bytes(1e9),
            "kib" => bytes(1024.0),
            "mib" => bytes(1024.0 * 1024.0),
            "p" | "packets" => Ok(Queue::Packets(number.min(1e9) as u32)),
            "bdp" => Ok(Queue::Bdp(number)),
            "%bdp" => Ok(Queue::Bdp(number / 100.0)),
            _ => Err(format!("`{unit}` is no unit here; write {form}")),
        }?;
        match queue {
            Queue::Packets(0) => Err("a queue has room for at least one packet".into()),
            Queue::Bytes(0..=1499) => Err(format!("`{text}` has no room for one packet")),
            Queue::Bdp(part) if part > 100.0 => Err(format!("`{text}` is more than 100 BDP")),
            queue => Ok(queue),
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::Bytes(bytes) => write!(f, "{}KB", (*bytes as f64 / 1e3)),
            Queue::Packets(packets) => write!(f, "{packets}p"),
            Queue::Bdp(part) => write!(f, "{part} BDP"),
        }
    }
}

impl FromStr for Mtu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().parse() {
            Ok(bytes @ 576..=65_000) => Ok(Mtu(bytes)),
            _ => Err(format!("`{text}` is not an MTU between 576 and 65000")),
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A value that is serialised as text; a file may have a bare number too.
macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(TextOrNumber)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text!(Rate, Delay, Share, Loss, Policer, Queue, Mtu);

struct TextOrNumber;

impl serde::de::Visitor<'_> for TextOrNumber {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a number")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(text: &str) -> u128 {
        text.parse::<Delay>().unwrap().0.as_micros()
    }

    #[test]
    fn rates_are_bits_and_decimal() {
        for (text, bits) in [
            ("40M", 40_000_000),
            ("1.5 G", 1_500_000_000),
            ("800kbit/s", 800_000),
            ("-1M", 0),
            ("9600", 9600),
        ] {
            let parsed = text.parse::<Rate>().ok().and_then(|rate| rate.0);
            assert_eq!(parsed.unwrap_or(0), bits, "{text}");
        }
        assert_eq!("unlimited".parse::<Rate>().unwrap(), Rate(None));
        assert!("40X".parse::<Rate>().unwrap_err().contains("write a rate as"));
        assert_eq!("9395M".parse::<Rate>().unwrap().to_string(), "9.395G");
    }

    #[test]
    fn delays_shares_and_losses() {
        assert_eq!((us("350ms"), us("0.12 ms"), us("50us"), us("1s")), (350_000, 120, 50, 1_000_000));
        assert!("5".parse::<Delay>().unwrap_err().contains("no unit"));
        assert_eq!("0.1%".parse::<Share>().unwrap().0, 0.001);
        assert!("101%".parse::<Share>().is_err() && "-1".parse::<Share>().is_err());
        assert_eq!("0.5% burst 8".parse::<Loss>().unwrap(), Loss { share: 0.005, burst: 8.0 });
        assert_eq!("1e-3".parse::<Loss>().unwrap(), Loss { share: 0.001, burst: 1.0 });
        assert!("1% burst 0".parse::<Loss>().is_err());
    }

    #[test]
    fn queues_have_three_units() {
        assert_eq!("256KB".parse::<Queue>().unwrap(), Queue::Bytes(256_000));
        assert_eq!("1MiB".parse::<Queue>().unwrap(), Queue::Bytes(1 << 20));
        assert_eq!("1000 packets".parse::<Queue>().unwrap(), Queue::Packets(1000));
        assert_eq!("1% BDP".parse::<Queue>().unwrap(), Queue::Bdp(0.01));
        assert!("1".parse::<Queue>().is_err() && "0p".parse::<Queue>().is_err());
    }

    #[test]
    fn a_policer_has_a_rate_and_a_burst() {
        let policer = |text: &str| text.parse::<Policer>();
        let given = policer::Policer { rate: 500_000_000, burst: 64_000 };
        assert_eq!(policer("500M burst 64KB"), Ok(Policer(Some(given))));
        assert_eq!(policer("none"), Ok(Policer(None)));
        assert!(policer("500M").unwrap_err().contains("burst"));
        assert!(policer("500M burst 10p").unwrap_err().contains("bytes"));
        assert!(policer("500M burst 1KB").is_err() && policer("unlimited burst 64KB").is_err());
    }

    #[test]
    fn shown_shapes_parse_to_the_same() {
        for text in ["0.1% burst 8", "12.5%", "0%"] {
            assert_eq!(text.parse::<Loss>().unwrap().to_string(), text);
        }
        for text in ["500M burst 64KB", "none"] {
            assert_eq!(text.parse::<Policer>().unwrap().to_string(), text);
        }
        for text in ["256KB", "10p", "0.25 BDP"] {
            assert_eq!(text.parse::<Queue>().unwrap().to_string(), text);
        }
        assert_eq!("0.0815ms".parse::<Delay>().unwrap().to_string(), "0.0815ms");
    }

    #[test]
    fn an_overlaid_shape_changes_only_its_fields() {
        let mut shape = Shape { rate: Some(Rate(Some(1000))), up: Some(true), ..Shape::default() };
        shape.overlay(&Shape { up: Some(false), ..Shape::default() });
        assert_eq!((shape.rate(), shape.up), (Some(1000), Some(false)));
    }
}
