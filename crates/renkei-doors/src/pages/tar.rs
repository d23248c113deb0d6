//! Headers of GNU tar: names of any bytes and any length, sizes beyond 8 GiB.
//!
//! Written here because archives are made in blocks that a client pulls; the libraries push into a writer, or read
//! files by their path.

use renkei_core::entry::FileTime;

/// Bytes of a header, and the multiple that content is filled up to.
pub(super) const BLOCK: usize = 512;
/// The name of an entry whose content is a long name of the next one.
const LONG: &[u8] = b"././@LongLink";

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member<'a> {
    File(u64),
    Dir,
    Symlink(&'a [u8]),
}

/// Adds the header of an entry, with those of its long names.
pub(super) fn add(out: &mut Vec<u8>, name: &[u8], member: Member<'_>, mode: u32, mtime: FileTime) {
    let (kind, size, target) = match member {
        Member::File(size) => (b'0', size, &b""[..]),
        Member::Dir => (b'5', 0, &b""[..]),
        Member::Symlink(target) => (b'2', 0, target),
    };
    for (kind, long) in [(b'K', target), (b'L', name)] {
        if long.len() > 100 {
            out.extend_from_slice(&header(LONG, kind, long.len() as u64 + 1, b"", 0, 0));
            out.extend_from_slice(long);
            out.push(0);
            fill(out, long.len() as u64 + 1);
        }
    }
    out.extend_from_slice(&header(name, kind, size, target, mode, mtime.secs));
}

/// Fills up content of so many bytes to whole blocks.
pub(super) fn fill(out: &mut Vec<u8>, bytes: u64) {
    let rest = (bytes % BLOCK as u64) as usize;
    out.resize(out.len() + (BLOCK - rest) % BLOCK, 0);
}

/// The end of an archive.
pub(super) fn end(out: &mut Vec<u8>) {
    out.resize(out.len() + 2 * BLOCK, 0);
}

fn header(name: &[u8], kind: u8, size: u64, target: &[u8], mode: u32, seconds: i64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    put(&mut block[..100], name);
    number(&mut block[100..108], u64::from(mode & 0o7777));
    number(&mut block[108..116], 0);
    number(&mut block[116..124], 0);
    number(&mut block[124..136], size);
    number(&mut block[136..148], u64::try_from(seconds).unwrap_or(0));
    block[148..156].fill(b' ');
    block[156] = kind;
    put(&mut block[157..257], target);
    block[257..265].copy_from_slice(b"ustar  \0");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    let digits = format!("{sum:06o}\0 ");
    block[148..156].copy_from_slice(digits.as_bytes());
    block
}

fn put(field: &mut [u8], bytes: &[u8]) {
    let count = bytes.len().min(field.len());
    field[..count].copy_from_slice(&bytes[..count]);
}

/// A number in octal digits, or where it does not fit, in binary with the first bit set.
fn number(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}");
    if text.len() <= digits {
        field[..digits].copy_from_slice(text.as_bytes());
        return;
    }
    let start = field.len() - 8;
    field[start..].copy_from_slice(&value.to_be_bytes());
    field[0] |= 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// The list of an archive by tar itself.
    fn listed(archive: &[u8]) -> String {
        let mut command = Command::new("tar");
        command.args(["--list", "--verbose", "--utc", "--quoting-style=c", "--file=-"]);
        let mut tar = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(archive).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn tar_reads_names_of_any_bytes_and_length() {
        let (mut archive, at) = (Vec::new(), FileTime { secs: 86_400, nanos: 0 });
        let long = [&b"d/"[..], &[0xff; 150]].concat();
        add(&mut archive, b"d/", Member::Dir, 0o755, at);
        add(&mut archive, &long, Member::File(3), 0o640, at);
        archive.extend_from_slice(b"abc");
        fill(&mut archive, 3);
        let target = [b'x'; 120];
        add(&mut archive, b"d/link", Member::Symlink(&target), 0o777, FileTime { secs: -1, nanos: 0 });
        end(&mut archive);
        assert_eq!(archive.len() % BLOCK, 0);
        let list = listed(&archive);
        let lines: Vec<&str> = list.lines().collect();
        assert!(
            lines[0].starts_with("drwxr-xr-x 0/0") && lines[0].ends_with("1970-01-02 00:00 \"d/\""),
            "{list}"
        );
        assert!(
            lines[1].starts_with("-rw-r-----")
                && lines[1].ends_with(&format!("\"d/{}\"", "\\377".repeat(150))),
            "{list}"
        );
        assert!(lines[2].contains(&format!("\"d/link\" -> \"{}\"", "x".repeat(120))), "{list}");
    }

    #[test]
    fn large_sizes_are_written_in_binary() {
        let mut field = [0; 12];
        number(&mut field, 0o777_7777_7777);
        assert_eq!(&field, b"77777777777\0");
        let mut field = [0; 12];
        number(&mut field, 9 << 30);
        assert_eq!((field[0], &field[4..]), (0x80, &(9_u64 << 30).to_be_bytes()[..]));
    }
}
