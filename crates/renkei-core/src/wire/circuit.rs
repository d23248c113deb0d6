//! The preface of a circuit: the bytes before TLS on a connection that was called for, or is to be relayed.
//!
//! A line that no TLS record begins with, and a one-time ticket. It goes in plain text and only tells which call or
//! relay the connection belongs to; the peers authenticate with TLS afterwards.

use super::data::Ticket;
use super::violation;
use crate::error::Error;

/// The line a preface begins with.
pub const MAGIC: &[u8] = b"RENKEI-CIRCUIT/1\n";
/// Bytes of a whole preface.
pub const PREFACE_BYTES: usize = MAGIC.len() + size_of::<Ticket>();
/// Most circuits of one request: twice the streams of the longest path, and the control stream.
pub const MAX_CIRCUITS: u16 = 256;
/// Most PoPs a circuit may pass through (hop limit), so that none loops.
pub const MAX_FURTHER: u8 = 2;

/// The preface with a ticket.
pub fn preface(ticket: &Ticket) -> Vec<u8> {
    [MAGIC, ticket].concat()
}

/// Whether a connection that begins with this byte may begin with a preface.
pub fn is_preface(first: u8) -> bool {
    first == MAGIC[0]
}

/// Parses the ticket from the received bytes; `None` as long as more must come.
///
/// # Errors
/// `ProtocolViolation` at the first byte that cannot belong to a preface.
pub fn parse(received: &[u8]) -> Result<Option<Ticket>, Error> {
    let known = received.len().min(MAGIC.len());
    if received[..known] != MAGIC[..known] {
        return Err(violation("circuit", "another line than a preface begins with"));
    }
    Ok(received.get(MAGIC.len()..).and_then(|rest| rest.first_chunk()).copied())
}

/// Derives the ticket of circuit number `index` from the `seed` of the request.
pub fn ticket(seed: &Ticket, index: u16) -> Ticket {
    *blake3::keyed_hash(seed, &index.to_be_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn a_preface_is_read_in_any_parts() {
        let whole = preface(&[7; 32]);
        assert_eq!(whole.len(), PREFACE_BYTES);
        for end in 0..PREFACE_BYTES {
            assert_eq!(parse(&whole[..end]), Ok(None), "{end}");
        }
        let more = [&whole[..], b"TLS"].concat();
        assert_eq!((parse(&whole), parse(&more)), (Ok(Some([7; 32])), Ok(Some([7; 32]))));
    }

    #[test]
    fn other_bytes_are_refused_at_the_first_wrong_byte() {
        for bad in [&b"GET / HTTP/1.1"[..], b"RENKEI-CIRCUIT/2\n", b"RENKEX", b"\x16\x03\x01"] {
            assert_eq!(parse(bad).unwrap_err().code, Code::ProtocolViolation);
        }
        assert!(is_preface(b'R') && !is_preface(22));
    }

    #[test]
    fn tickets_of_one_seed_differ() {
        let tickets: std::collections::HashSet<_> = (0..300).map(|n| ticket(&[1; 32], n)).collect();
        assert_eq!(tickets.len(), 300);
        assert!(!tickets.contains(&ticket(&[2; 32], 0)));
    }
}
