//! Sizes, rates, durations and bytes as people read them.

use std::time::Duration;

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes as `ls -h` and `df -h` write them: `999`, `1.5K`, `12M`; rounded up.
pub fn human(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return bytes.to_string();
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
        _ => format!("{days} days {} h", hours % 24),
    }
}

/// A round trip: `0.05 ms`, `120 ms`.
pub fn milliseconds(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_in_ls() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
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
        assert_eq!(milliseconds(Duration::from_micros(50)), "0.05 ms");
    }
}
