//! What encryption and digests cost by themselves: seconds of one core per GB, with the buffers of a data stream and
//! nothing else: no file, no socket, no other thread. Prints one line of JSON.
//!
//! `seal_s_per_gb` and `open_s_per_gb` are AES-128-GCM in records of 16 KiB, `hash_s_per_gb` is BLAKE3 once; a copy that
//! is checked at both ends costs seal + open + twice the hash, which is `both_ends_s_per_gb`. Each is the best of some
//! rounds, in thread CPU time. The number of bytes a round can be given as an argument.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::time::Duration;

/// Bytes that are read, hashed and sealed with one call, and opened and hashed at the other end.
const CHUNK_BYTES: usize = 256 << 10;
const CONTENT_BYTES: usize = 16 << 10;
const HEAD_BYTES: usize = 5;
/// The type's byte and the tag.
const TAIL_BYTES: usize = 1 + 16;
const RECORD_BYTES: usize = HEAD_BYTES + CONTENT_BYTES + TAIL_BYTES;
const RECORDS: usize = CHUNK_BYTES / CONTENT_BYTES;
const ROUNDS: usize = 5;

struct Buffers {
    key: LessSafeKey,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    /// The file as the receiver gathers it, and room for the last record's type.
    block: Vec<u8>,
}

fn nonce(record: usize) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&(record as u64).to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Buffers {
    fn seal(&mut self) {
        let records = self.plain.chunks(CONTENT_BYTES).zip(self.sealed.chunks_mut(RECORD_BYTES));
        for (index, (content, record)) in records.enumerate() {
            let (head, sealed) = record.split_at_mut(HEAD_BYTES);
            let (body, tail) = sealed.split_at_mut(content.len());
            self.key
                .seal_out_of_place_scatter(nonce(index), Aad::from(&*head), content, body, &[23], tail)
                .expect("lengths fit");
        }
    }

    fn open(&mut self) {
        for (index, record) in self.sealed.chunks(RECORD_BYTES).enumerate() {
            let (head, sealed) = record.split_at(HEAD_BYTES);
            let (body, tag) = sealed.split_at(CONTENT_BYTES + 1);
            let target = &mut self.block[index * CONTENT_BYTES..][..body.len()];
            self.key
                .open_separate_gather(nonce(index), Aad::from(head), body, tag, target)
                .expect("it was sealed with this key");
        }
    }
}

/// The CPU time this thread has used.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to `time`, which lives through the call.
    let refused = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(refused, 0, "the clock of a thread always runs");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Seconds per GB of `work` on one chunk, at best.
fn s_per_gb(chunks: usize, mut work: impl FnMut()) -> f64 {
    let round = |_| {
        let start = cpu_time();
        (0..chunks).for_each(|_| work());
        (cpu_time() - start).as_secs_f64() * 1e9 / (chunks * CHUNK_BYTES) as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn main() {
    let bytes = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000_000usize);
    let chunks = (bytes / CHUNK_BYTES).max(1);
    let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).expect("a key of 16 bytes");
    let mut buffers = Buffers {
        key: LessSafeKey::new(key),
        plain: (0..CHUNK_BYTES).map(|index| (index * 31 % 251) as u8).collect(),
        sealed: vec![0; RECORDS * RECORD_BYTES],
        block: vec![0; CHUNK_BYTES + TAIL_BYTES],
    };
    let seal = s_per_gb(chunks, || buffers.seal());
    let open = s_per_gb(chunks, || buffers.open());
    assert!(buffers.block[..CHUNK_BYTES] == buffers.plain[..]);
    let mut hasher = blake3::Hasher::new();
    let hash = s_per_gb(chunks, || {
        hasher.update(&buffers.plain);
    });
    assert_ne!(hasher.finalize(), blake3::hash(b""));
    let both = seal + open + 2.0 * hash;
    println!(
        "{{\"seal_s_per_gb\":{seal:.4},\"open_s_per_gb\":{open:.4},\"hash_s_per_gb\":{hash:.4},\
         \"both_ends_s_per_gb\":{both:.4}}}"
    );
}
