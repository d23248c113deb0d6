//! Formats times for people and for programs, by the C library, which knows the machine's time zone.

use renkei_core::entry::FileTime;
use std::ffi::CString;

/// Local time in a format of strftime; `?` for a year out of range.
pub(super) fn local(time: FileTime, format: &str) -> String {
    // SAFETY: both arguments are valid for the call.
    broken_down(time, |secs, parts| unsafe { !libc::localtime_r(secs, parts).is_null() }, format)
}

/// Universal time in RFC 3339 format, with nanoseconds.
pub(super) fn utc(time: FileTime) -> String {
    // SAFETY: both arguments are valid for the call.
    let seconds = broken_down(
        time,
        |secs, parts| unsafe { !libc::gmtime_r(secs, parts).is_null() },
        "%Y-%m-%dT%H:%M:%S",
    );
    format!("{seconds}.{:09}Z", time.nanos)
}

fn broken_down(
    time: FileTime,
    split: impl FnOnce(*const libc::time_t, *mut libc::tm) -> bool,
    format: &str,
) -> String {
    // SAFETY: a tm is numbers and a pointer that may be null, for which all zeros is a value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    let secs: libc::time_t = time.secs;
    if !split(&raw const secs, &raw mut parts) {
        return "?".into();
    }
    let format = CString::new(format).expect("formats are literals without NUL");
    let mut text = [0u8; 128];
    // SAFETY: the buffer's length is given, the format ends with NUL and the parts are initialised.
    let length =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &raw const parts) };
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_time_has_one_form() {
        assert_eq!(utc(FileTime { secs: 1_795_292_760, nanos: 5 }), "2026-11-21T20:26:00.000000005Z");
        assert_eq!(utc(FileTime { secs: -1, nanos: 0 }), "1969-12-31T23:59:59.000000000Z");
        assert_eq!(utc(FileTime { secs: i64::MAX, nanos: 0 }), "?.000000000Z");
    }

    #[test]
    fn local_time_follows_the_format() {
        let year = local(FileTime { secs: 1_795_292_760, nanos: 0 }, "%Y");
        assert_eq!(year, "2026");
    }
}
