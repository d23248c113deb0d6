//! Checksums of content: BLAKE3 and the algorithms that grids and clouds ask for; and how they are remembered.
//!
//! Remembered checksums are an extended attribute of the file with size, mtime, ctime and inode number at the time when
//! it was set. They hold as long as the file has these: a write changes mtime, and a program that sets mtime back
//! changes ctime, which none can set. Setting the attribute changes ctime, too, so a ctime that is later by no more
//! than `SETTING_NANOS` is accepted. An mtime as late as the noted ctime is not: the kernel's clock has ticks, and a
//! write in the same tick would leave no trace. What is not seen is a program that writes and sets mtime back within
//! that time of the setting. A rename, a new link or a chmod forgets the checksums, at worst.

use crate::ReadFile;
use crate::metadata::stamp_of;
use renkei_core::entry::{FileTime, Stamp};
use renkei_core::error::Error;
use renkei_core::wire::message::Algorithm;
use rustix::fd::BorrowedFd;
use rustix::fs::XattrFlags;
use rustix::io;
use sha2::Digest as _;
use std::fmt::Write as _;
use std::time::Duration;

/// The extended attribute that remembers them. It does not travel with copies of the file.
pub(super) const ATTRIBUTE: &str = "user.renkei.checksums";
/// First word of its value.
const VERSION: &str = "1";
/// Room for its value: five checksums and five numbers.
const ATTRIBUTE_BYTES: usize = 1024;
/// Longest time between the noted ctime and the one that setting the attribute leaves: two ticks of a slow clock.
const SETTING_NANOS: i128 = 20_000_000;
/// Most attempts to set it, [`TICK`] apart, until the clock has left the tick of the last write.
const ATTEMPTS: usize = 24;
/// The shortest tick of a kernel's clock.
const TICK: Duration = Duration::from_millis(1);
/// Longest content that is read once more for its checksums when it is published. That of longer files is known if it
/// was written in order.
pub const READ_BACK_BYTES: u64 = 256 << 20;

/// Checksums of one content.
pub type Checksums = Vec<(Algorithm, Vec<u8>)>;

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// A checksum that is computed while content passes, from its first byte to its last.
pub struct Checksum(State);

enum State {
    Blake3(Box<blake3::Hasher>),
    Sha256(sha2::Sha256),
    Md5(md5::Md5),
    Adler32(simd_adler32::Adler32),
    Crc32c(crc_fast::Digest),
}

impl Checksum {
    /// The checksum of no content yet.
    pub fn new(algorithm: Algorithm) -> Self {
        Checksum(match algorithm {
            Algorithm::Blake3 => State::Blake3(Box::default()),
            Algorithm::Sha256 => State::Sha256(sha2::Sha256::new()),
            Algorithm::Md5 => State::Md5(md5::Md5::new()),
            Algorithm::Adler32 => State::Adler32(simd_adler32::Adler32::new()),
            Algorithm::Crc32c => State::Crc32c(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi)),
        })
    }

    /// Adds the bytes that follow.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Blake3(state) => drop(state.update(bytes)),
            State::Sha256(state) => state.update(bytes),
            State::Md5(state) => state.update(bytes),
            State::Adler32(state) => state.write(bytes),
            State::Crc32c(state) => state.update(bytes),
        }
    }

    /// The checksum of content that is read in order, up to the read that gives nothing.
    ///
    /// # Errors
    /// Those of `read`, which fills a buffer from an offset.
    pub fn of(
        algorithm: Algorithm,
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Error>,
    ) -> Result<Vec<u8>, Error> {
        let (mut sum, mut buf, mut at) = (Checksum::new(algorithm), vec![0; READ_BYTES], 0);
        loop {
            match read(&mut buf, at)? {
                0 => return Ok(sum.finish()),
                count => {
                    sum.update(&buf[..count]);
                    at += count as u64;
                }
            }
        }
    }

    /// The checksum, in the byte order in which it is printed.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            State::Blake3(state) => state.finalize().as_bytes().to_vec(),
            State::Sha256(state) => state.finalize().to_vec(),
            State::Md5(state) => state.finalize().to_vec(),
            State::Adler32(state) => state.finish().to_be_bytes().to_vec(),
            State::Crc32c(state) => (state.finalize() as u32).to_be_bytes().to_vec(),
        }
    }
}

/// Several checksums of content that comes in order.
pub struct InOrder {
    sums: Vec<(Algorithm, Checksum)>,
    end: u64,
}

impl InOrder {
    /// The checksums of no content yet.
    pub fn new(algorithms: &[Algorithm]) -> Self {
        InOrder { sums: algorithms.iter().map(|one| (*one, Checksum::new(*one))).collect(), end: 0 }
    }

    /// Adds bytes; false if they do not follow the ones before.
    #[must_use]
    pub fn update(&mut self, bytes: &[u8], offset: u64) -> bool {
        let follows = self.end == offset;
        if follows {
            self.sums.iter_mut().for_each(|(_, sum)| sum.update(bytes));
            self.end += bytes.len() as u64;
        }
        follows
    }

    /// Number of bytes that were added.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The checksums.
    pub fn finish(self) -> Checksums {
        self.sums.into_iter().map(|(algorithm, sum)| (algorithm, sum.finish())).collect()
    }

    /// The checksums of content that is read in order, up to the read that gives nothing.
    ///
    /// # Errors
    /// Those of `read`, which fills a buffer from an offset.
    pub fn of(
        algorithms: &[Algorithm],
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Error>,
    ) -> Result<Checksums, Error> {
        let (mut sums, mut buf) = (InOrder::new(algorithms), vec![0; READ_BYTES]);
        loop {
            let (at, count) = (sums.end, read(&mut buf, sums.end)?);
            if count == 0 || !sums.update(&buf[..count], at) {
                return Ok(sums.finish());
            }
        }
    }
}

/// Reads a file that was just published and remembers its checksums, if it is not too long.
///
/// # Errors
/// Those of the file.
pub fn read_back(file: &dyn ReadFile, algorithms: &[Algorithm]) -> Result<(), Error> {
    let stamp = file.stamp()?;
    // Else a write while it is read could leave no trace.
    if algorithms.is_empty() || stamp.size > READ_BACK_BYTES || stamp.mtime >= stamp.ctime {
        return Ok(());
    }
    let sums = InOrder::of(algorithms, |buf, at| file.read_at(buf, at))?;
    file.remember_checksums(&stamp, &sums);
    Ok(())
}

/// Remembers checksums of the content that a file had with this size and mtime; tells whether it did.
pub(super) fn remember(fd: BorrowedFd<'_>, content: &Stamp, sums: &Checksums) -> io::Result<bool> {
    for _ in 0..ATTEMPTS {
        let noted = stamp_of(&rustix::fs::fstat(fd)?);
        rustix::fs::fsetxattr(fd, ATTRIBUTE, noted_text(&noted, sums).as_bytes(), XattrFlags::empty())?;
        let now = stamp_of(&rustix::fs::fstat(fd)?);
        let is_changed = (now.size, now.mtime) != (content.size, content.mtime);
        // An mtime in the future, which no waiting brings nearer.
        if is_changed || nanos(now.mtime) - nanos(now.ctime) > SETTING_NANOS {
            break;
        }
        if is_same(&noted, &now) {
            return Ok(true);
        }
        std::thread::sleep(TICK);
    }
    rustix::fs::fremovexattr(fd, ATTRIBUTE).map(|()| false)
}

/// The remembered checksums of a file, if they are those of its present content.
pub(super) fn known(fd: BorrowedFd<'_>) -> Option<Checksums> {
    let mut room = [0; ATTRIBUTE_BYTES];
    let count = rustix::fs::fgetxattr(fd, ATTRIBUTE, &mut room).ok()?;
    let (noted, sums) = parse_noted(std::str::from_utf8(&room[..count]).ok()?)?;
    let now = stamp_of(&rustix::fs::fstat(fd).ok()?);
    is_same(&noted, &now).then_some(sums)
}

fn nanos(time: FileTime) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

fn is_same(noted: &Stamp, now: &Stamp) -> bool {
    let since = nanos(now.ctime) - nanos(noted.ctime);
    (noted.size, noted.mtime, noted.ino) == (now.size, now.mtime, now.ino)
        && noted.mtime < noted.ctime
        && (0..=SETTING_NANOS).contains(&since)
}

/// Checksums of the content with a stamp, as one line without its end.
pub fn noted_text(noted: &Stamp, sums: &Checksums) -> String {
    let Stamp { size, mtime, ctime, ino } = noted;
    let mut text =
        format!("{VERSION} {size} {} {} {} {} {ino}", mtime.secs, mtime.nanos, ctime.secs, ctime.nanos);
    for (algorithm, sum) in sums {
        let hex = sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        write!(text, " {}={hex}", algorithm.name()).expect("a string takes all text");
    }
    text
}

/// Reads a line of [`noted_text`].
pub fn parse_noted(text: &str) -> Option<(Stamp, Checksums)> {
    let mut words = text.strip_prefix(VERSION)?.strip_prefix(' ')?.split(' ');
    let size = words.next()?.parse().ok()?;
    let mut time =
        || Some(FileTime { secs: words.next()?.parse().ok()?, nanos: words.next()?.parse().ok()? });
    let (mtime, ctime) = (time()?, time()?);
    let ino = words.next()?.parse().ok()?;
    let sums = words.map(|word| {
        let (name, hex) = word.split_once('=')?;
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let sum = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        Some((Algorithm::of_name(name)?, sum))
    });
    Some((Stamp { size, mtime, ctime, ino }, sums.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::local::{AccessMode, LocalStore};
    use rustix::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// Checksums of a file that a program changes behind the store's back, with all that programs can restore.
    #[test]
    fn remembered_checksums_are_those_of_the_present_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let store = LocalStore::open(folder.path(), AccessMode::ReadWrite).unwrap();
        let dir = store.root().unwrap();
        let content_of = |sums: &Checksums| sums.iter().map(|(_, sum)| sum.clone()).collect::<Vec<_>>();
        let all = Algorithm::NAMES.map(|(algorithm, _)| algorithm);
        for round in 0..5_u8 {
            std::fs::write(&path, [round; 10]).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            let stamp = stamp_of(&rustix::fs::fstat(&file).unwrap());
            let sums = InOrder::of(&all, |buf, at| Ok(file.read_at(buf, at).unwrap())).unwrap();
            match remember(file.as_fd(), &stamp, &sums) {
                Ok(true) => {}
                // Not every file system has extended attributes.
                Err(_) if round == 0 => return,
                other => panic!("{other:?}"),
            }
            let read = dir.open_read(b"f").unwrap();
            assert_eq!(content_of(&read.known_checksums()), content_of(&sums));
            let entry = dir.entry(b"f", crate::Detail::Full).unwrap().0;
            assert!(entry.meta.xattrs.is_empty(), "it does not travel");
            // At once: in the same tick of the clock, if that is possible at all.
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_at(b"x", 3).unwrap();
            assert!(read.known_checksums().is_empty());
            // And with its mtime set back, later than the window and some late ticks of the clock.
            std::thread::sleep(Duration::from_millis(200));
            let mtime =
                std::time::UNIX_EPOCH + Duration::new(stamp.mtime.secs.unsigned_abs(), stamp.mtime.nanos);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(mtime).unwrap();
            assert!(read.known_checksums().is_empty());
        }
    }

    #[test]
    fn stored_checksums_are_read_back() {
        let time = |secs, nanos| FileTime { secs, nanos };
        let stamp = Stamp { size: 5, mtime: time(-3, 7), ctime: time(4, 0), ino: 9 };
        let sums = vec![(Algorithm::Md5, vec![0, 255]), (Algorithm::Adler32, vec![1, 2, 3, 4])];
        assert_eq!(parse_noted(&noted_text(&stamp, &sums)), Some((stamp, sums)));
        for bad in
            ["", "1", "2 5 -3 7 4 0 9", "1 5 -3 7 4 0 9 md5", "1 5 -3 7 4 0 9 md5=0", "1 5 -3 7 4 0 9 é=é"]
        {
            assert_eq!(parse_noted(bad), None, "{bad}");
        }
    }

    fn hex(algorithm: Algorithm, parts: &[&[u8]]) -> String {
        let mut sum = Checksum::new(algorithm);
        parts.iter().for_each(|part| sum.update(part));
        sum.finish().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The check values of the algorithms' specifications, for "123456789" and for "abc".
    #[test]
    fn checksums_match_the_specifications() {
        let nine: &[&[u8]] = &[b"1234", b"", b"56789"];
        assert_eq!(hex(Algorithm::Crc32c, nine), "e3069283");
        assert_eq!(hex(Algorithm::Adler32, nine), "091e01de");
        assert_eq!(hex(Algorithm::Md5, &[b"abc"]), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            hex(Algorithm::Sha256, &[b"a", b"bc"]),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(Algorithm::Blake3, &[b"abc"]),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        );
    }
}
