//! Sizes, rates, durations and bytes in human-readable form.

use std::fmt;
use std::time::Duration;

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes in units of 1024, as `ls -h` and `df -h` write them: `999B`, `1.5K`, `12M`; rounded up.
pub fn human(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return if bytes == 0 { "0".into() } else { format!("{bytes}B") };
    }
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    while size.ceil() >= 1024.0 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    let tenths = (size * 10.0).ceil() / 10.0;
    match tenths < 10.0 {
        true => format!("{tenths:.1}{}", UNITS[unit]),
        false => format!("{:.0}{}", size.ceil(), UNITS[unit]),
    }
}

/// A number with its noun: `1 file`, `2 files`.
pub fn counted(number: impl fmt::Display, one: &str, more: &str) -> String {
    let number = number.to_string();
    let noun = if number == "1" { one } else { more };
    format!("{number} {noun}")
}

/// Bits per second: `251 Mbit/s`.
pub fn bit_rate(bits_per_second: f64) -> String {
    let (scaled, unit) = match bits_per_second {
        rate if rate < 1e6 => (rate / 1e3, "kbit/s"),
        rate if rate < 1e9 => (rate / 1e6, "Mbit/s"),
        rate => (rate / 1e9, "Gbit/s"),
    };
    if scaled < 10.0 { format!("{scaled:.1} {unit}") } else { format!("{scaled:.0} {unit}") }
}

/// A duration in the two largest units that fit: `3 days 2 h`, `12 min`.
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min"),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} {} h", counted(days, "day", "days"), hours % 24),
    }
}

/// A round-trip time: `0.05 ms`, `120 ms`.
pub fn milliseconds(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

/// The format of a rate, for the error message.
const RATES: &str = "write a rate as 500K, 10MB, 1.5MiB or 80Mbit, per second";

/// Bytes per second from `1.5M`, `10MB`, `10MiB/s` or `80Mbit`.
///
/// As in rsync, `K` and `KiB` are 1024 and `KB` is 1000, in either case of letters; bits are counted in thousands.
///
/// # Errors
/// A text with the expected format.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| RATES)?;
    let unit = text[end..].trim_start();
    if unit.ends_with('b') && unit.starts_with(|c: char| c.is_ascii_uppercase()) {
        return Err(format!("{unit} may be bytes or bits: write {}B or {0}bit", &unit[..unit.len() - 1]));
    }
    let rate = number * unit_bytes(&unit.to_ascii_lowercase()).ok_or(RATES)?;
    match rate {
        0.0..1.0 => Err("write at least 1 byte; without --limit there is none".into()),
        _ if rate < u64::MAX as f64 => Ok(rate as u64),
        _ => Err("that is more than any path carries".into()),
    }
}

/// The bytes in a unit of rate, given in lower case.
fn unit_bytes(unit: &str) -> Option<f64> {
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let exponent = "kmgt".find(|letter| unit.starts_with(letter)).map_or(0, |at| at as i32 + 1);
    let (kibi, kilo) = (1024f64.powi(exponent), 1000f64.powi(exponent));
    match &unit[usize::from(exponent > 0)..] {
        "" | "ib" if exponent > 0 => Some(kibi),
        "" => Some(1.0),
        "b" => Some(kilo),
        "bit" => Some(kilo / 8.0),
        _ => None,
    }
}

/// Bytes from `10TB`, `1.5G` or `4096`, in the units of [`parse_rate`].
///
/// # Errors
/// A text with the expected format.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "write a size as 4096, 500G, 10TB or 1.5TiB".to_owned();
    let small = text.to_ascii_lowercase();
    match small.ends_with("/s") || small.ends_with("bit") {
        true => Err(wrong()),
        false => parse_rate(text).map_err(|_| wrong()),
    }
}

/// A time as `90s`, `30m`, `12h` or `7d`.
///
/// # Errors
/// A text with the expected format.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || "write a number and s, m, h or d, as 12h".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // A limit of a century, which fits every clock.
    match number.checked_mul(seconds).filter(|seconds| (1..=36_525 * 86_400).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("write a time of 1s to 36525d".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_in_ls() {
        let cases = [
            (0, "0"),
            (1023, "1023B"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024, "10K"),
            (10 * 1024 + 1, "11K"),
            (1024 * 1024 - 1, "1.0M"),
            (u64::MAX, "16E"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn rates_and_spans_are_short() {
        assert_eq!(bit_rate(251.6e6), "252 Mbit/s");
        assert_eq!(bit_rate(1.5e9), "1.5 Gbit/s");
        assert_eq!(span(Duration::from_secs(3725)), "1 h 2 min");
        assert_eq!(span(Duration::from_secs(200_000)), "2 days 7 h");
        assert_eq!(span(Duration::from_secs(100_000)), "1 day 3 h");
        assert_eq!(milliseconds(Duration::from_micros(50)), "0.05 ms");
    }

    #[test]
    fn rates_are_read_as_rsync_reads_them() {
        let cases = [
            ("1", 1),
            ("1000", 1000),
            ("500B", 500),
            ("1K", 1024),
            ("1kb", 1000),
            ("1KiB", 1024),
            ("10M", 10 << 20),
            ("10m", 10 << 20),
            ("10MB", 10_000_000),
            ("10MB/s", 10_000_000),
            ("10 MiB/s", 10 << 20),
            ("1.5M", 3 << 19),
            ("0.5k", 512),
            ("80Mbit", 10_000_000),
            ("80mbit/s", 10_000_000),
            ("10Gbit", 1_250_000_000),
            ("2T", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_rate(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "M",
            "0",
            "0.4",
            "1bit",
            "-1",
            "+1",
            "1e3",
            "nan",
            "inf",
            "1.2.3",
            "10X",
            "10MBB",
            "99999999T",
        ] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        assert!(parse_rate("80Mb").unwrap_err().contains("MB or Mbit"));
        assert!(parse_rate("10%").unwrap_err().contains("80Mbit"));
    }

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(parse_bytes("10TB"), Ok(10_000_000_000_000));
        assert_eq!(parse_bytes("4K"), Ok(4096));
        assert!(parse_bytes("1Mbit").is_err() && parse_bytes("1M/s").is_err() && parse_bytes("x").is_err());
        assert_eq!(parse_span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_span("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for bad in ["", "90", "h", "1w", "-1h", "0s", "99999999999999999999d", "1.5h"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }
}
