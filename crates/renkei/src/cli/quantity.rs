//! Sizes, rates and durations for people, and rates from them.

pub(super) use renkei_core::units::{bit_rate, human, milliseconds, span};

/// How sizes are shown. As in ls, du and df `-h` is taken, so help is `--help` alone.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Sizes {
    /// Print sizes as 1.5K, 12M, 3.1G
    #[arg(short, long)]
    human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Sizes {
    /// Bytes as asked for.
    pub(super) fn text(self, bytes: u64) -> String {
        if self.human_readable { human(bytes) } else { bytes.to_string() }
    }
}

/// What a rate may look like, for who wrote another.
const RATES: &str = "write a rate as 500K, 10MB, 1.5MiB or 80Mbit, per second";

/// Bytes per second from `1.5M`, `10MB`, `10MiB/s` or `80Mbit`.
///
/// As in rsync, `K` and `KiB` are 1024 and `KB` is 1000, in either case of letters; bits are counted in thousands.
pub(super) fn parse_rate(text: &str) -> Result<u64, String> {
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

/// The bytes in a unit of rate, written small.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
