//! Offloaded frames that stand for many packets: their number, their length on the wire, and cutting out some of
//! them.
//!
//! A buffer is as read from a TAP device with `IFF_VNET_HDR`: the ten bytes of `virtio_net_hdr` (native byte order),
//! then the Ethernet frame. With TCP or UDP segmentation offload the frame has one set of headers and the payload of
//! many packets, `gso_size` bytes in each but the last; its checksum field holds only the pseudo header's sum. A part
//! cut out is a valid frame of the same kind. Source: virtio 1.2, 5.1.6.2; RFC 9293; RFC 791; RFC 3168 (CWR).

use std::ops::Range;

/// Bytes of `virtio_net_hdr` before each frame.
pub const VNET_HEADER: usize = 10;
/// Largest buffer: 64 KB of IP behind the two headers, and a VLAN tag.
pub const MAX_BUFFER: usize = VNET_HEADER + ETHERNET + 4 + 65_536;

const ETHERNET: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is still to be completed.
const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
/// Set beside the type when the first packet has CWR.
const GSO_ECN: u8 = 0x80;
const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_AND_PUSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The packets on the wire that a frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of packets, at least one.
    pub segments: u32,
    /// Headers of each packet, from Ethernet on.
    headers: u32,
    /// Payload of each packet but the last.
    size: u32,
    /// Total payload.
    payload: u32,
}

impl Shape {
    /// A single packet of `bytes` bytes from Ethernet on.
    pub fn single(bytes: u32) -> Shape {
        Shape { segments: 1, headers: 0, size: bytes, payload: bytes }
    }

    /// Packets with `headers` bytes of headers each, that share `payload` in parts of `size`, which must not be 0.
    pub fn many(headers: u32, size: u32, payload: u32) -> Shape {
        Shape { segments: payload.div_ceil(size).max(1), headers, size, payload }
    }

    /// Parses the shape of a buffer; `None` if it is not a frame this module understands.
    pub fn parse(buffer: &[u8]) -> Option<Shape> {
        let frame = buffer.get(VNET_HEADER..).filter(|frame| frame.len() >= ETHERNET)?;
        if buffer[1] & !GSO_ECN == 0 {
            return Some(Shape::single(frame.len() as u32));
        }
        let (size, headers) = (u32::from(native(buffer, 4)), headers_end(buffer)?);
        let payload = frame.len().checked_sub(headers)?;
        (size > 0 && payload > 0).then(|| Shape::many(headers as u32, size, payload as u32))
    }

    /// The payload bytes of these packets.
    fn payload_of(&self, packets: &Range<u32>) -> Range<usize> {
        let at = |index: u32| u64::from(index) * u64::from(self.size);
        let end = u64::from(self.payload);
        at(packets.start).min(end) as usize..at(packets.end).min(end) as usize
    }

    /// Bytes of these packets on the wire, from Ethernet on.
    pub fn bytes(&self, packets: &Range<u32>) -> u64 {
        u64::from(packets.end - packets.start) * u64::from(self.headers)
            + self.payload_of(packets).len() as u64
    }

    /// Bytes of all packets on the wire.
    pub fn total_bytes(&self) -> u64 {
        self.bytes(&(0..self.segments))
    }

    /// Length of the buffer [`cut`] makes of these packets.
    pub fn cut_length(&self, packets: &Range<u32>) -> usize {
        VNET_HEADER + self.headers as usize + self.payload_of(packets).len()
    }
}

/// End of the headers of an offloaded frame, from Ethernet on.
fn headers_end(buffer: &[u8]) -> Option<usize> {
    let transport = usize::from(native(buffer, 6));
    let known = [(GSO_TCP4, IPV4), (GSO_TCP6, IPV6), (GSO_UDP, IPV4), (GSO_UDP, IPV6)];
    let kind = big(buffer, VNET_HEADER + 12);
    let is_known = known.contains(&(buffer[1] & !GSO_ECN, kind));
    // Minimum header lengths: IPv4 20 bytes, IPv6 40, TCP 20 and UDP 8.
    let least = ETHERNET + if kind == IPV6 { 40 } else { 20 };
    if !is_known || buffer[0] & NEEDS_CHECKSUM == 0 || transport < least {
        return None;
    }
    let length = match buffer[1] & !GSO_ECN {
        GSO_UDP => 8,
        _ => usize::from(*buffer.get(VNET_HEADER + transport + 12)? >> 4) * 4,
    };
    let end = transport + length;
    (buffer.len() > VNET_HEADER + end && length >= 8).then_some(end)
}

/// Writes to `out` a buffer with only these packets of `buffer`, whose shape is `shape`.
pub fn cut(buffer: &[u8], shape: &Shape, packets: Range<u32>, out: &mut Vec<u8>) {
    let headers = VNET_HEADER + shape.headers as usize;
    let payload = shape.payload_of(&packets);
    out.clear();
    out.extend_from_slice(&buffer[..headers]);
    out.extend_from_slice(&buffer[headers + payload.start..headers + payload.end]);
    if shape.segments > 1 {
        mend(out, shape, &packets);
    }
}

/// Adjusts the copied headers to these packets.
fn mend(out: &mut [u8], shape: &Shape, packets: &Range<u32>) {
    let gso = out[1] & !GSO_ECN;
    let transport = VNET_HEADER + usize::from(native(out, 6));
    mend_vnet(out, packets);
    mend_ip(out, packets.start as u16);
    match gso {
        GSO_UDP => set_big(out, transport + 4, (out.len() - transport) as u16),
        _ => mend_tcp(&mut out[transport..], shape, packets),
    }
    let (protocol, at) = if gso == GSO_UDP { (UDP, transport + 6) } else { (TCP, transport + 16) };
    set_big(out, at, pseudo_sum(out, transport, protocol));
}

fn mend_vnet(out: &mut [u8], packets: &Range<u32>) {
    if packets.len() == 1 {
        // Clear the type, the size and the header length, which is only a hint for offloading.
        out[1..6].fill(0);
    } else if packets.start > 0 {
        out[1] &= !GSO_ECN;
    }
}

fn mend_ip(out: &mut [u8], index: u16) {
    let ip = VNET_HEADER + ETHERNET;
    let length = out.len() - ip;
    if big(out, ip - 2) == IPV6 {
        set_big(out, ip + 4, (length - 40) as u16);
        return;
    }
    set_big(out, ip + 2, length as u16);
    set_big(out, ip + 4, big(out, ip + 4).wrapping_add(index));
    set_big(out, ip + 10, 0);
    let end = (ip + usize::from(out[ip] & 15) * 4).min(out.len());
    set_big(out, ip + 10, !fold(sum(&out[ip..end])));
}

fn mend_tcp(tcp: &mut [u8], shape: &Shape, packets: &Range<u32>) {
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let sequence = sequence.wrapping_add(packets.start * shape.size);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if packets.end < shape.segments {
        tcp[13] &= !FIN_AND_PUSH;
    }
    if packets.start > 0 {
        tcp[13] &= !CWR;
    }
}

/// The sum over the pseudo header, as the kernel leaves it in the checksum field for a device to complete.
fn pseudo_sum(out: &[u8], transport: usize, protocol: u8) -> u16 {
    let ip = VNET_HEADER + ETHERNET;
    let addresses = if big(out, ip - 2) == IPV6 { ip + 8..ip + 40 } else { ip + 12..ip + 20 };
    let length = (out.len() - transport) as u64;
    fold(sum(&out[addresses]) + length + u64::from(protocol))
}

/// The sum of 16-bit words of the Internet checksum; an odd length is padded.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|word| u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn native(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn big(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set_big(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 1448;

    /// The parts of an offloaded TCP frame.
    struct Sent {
        ipv6: bool,
        options: usize,
        payload: Vec<u8>,
    }

    impl Sent {
        fn new(ipv6: bool, payload: usize) -> Sent {
            Sent { ipv6, options: 12, payload: (0..payload).map(|at| (at % 251) as u8).collect() }
        }

        fn transport(&self) -> usize {
            VNET_HEADER + ETHERNET + if self.ipv6 { 40 } else { 20 }
        }

        /// The buffer as the kernel would produce it, with FIN, PSH, ACK and CWR.
        fn buffer(&self) -> Vec<u8> {
            let (transport, headers) = (self.transport(), self.transport() + 20 + self.options);
            let mut out = vec![0; headers];
            out[0] = NEEDS_CHECKSUM;
            out[1] = GSO_ECN | if self.ipv6 { GSO_TCP6 } else { GSO_TCP4 };
            let fields = [(2, headers - VNET_HEADER), (4, SIZE), (6, transport - VNET_HEADER), (8, 16)];
            for (at, value) in fields {
                out[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
            }
            self.fill_ip(&mut out);
            out[transport..transport + 14]
                .copy_from_slice(&[9, 9, 8, 8, 0xff, 0xff, 0xff, 0, 1, 2, 3, 4, 0, 0x99]);
            out[transport + 12] = ((20 + self.options) / 4 * 16) as u8;
            out.extend_from_slice(&self.payload);
            let sum = pseudo_sum(&out, transport, TCP);
            set_big(&mut out, transport + 16, sum);
            out
        }

        fn fill_ip(&self, out: &mut [u8]) {
            let (ip, length) = (VNET_HEADER + ETHERNET, 20 + self.options + self.payload.len());
            let addresses: Vec<u8> = (1..33).collect();
            if self.ipv6 {
                set_big(out, ip - 2, IPV6);
                out[ip..ip + 8].copy_from_slice(&[0x60, 0, 0, 0, (length >> 8) as u8, length as u8, TCP, 64]);
                out[ip + 8..ip + 40].copy_from_slice(&addresses);
                return;
            }
            set_big(out, ip - 2, IPV4);
            out[ip..ip + 10].copy_from_slice(&[0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, TCP]);
            set_big(out, ip + 2, (20 + length) as u16);
            out[ip + 12..ip + 20].copy_from_slice(&addresses[..8]);
            let check = !fold(sum(&out[ip..ip + 20]));
            set_big(out, ip + 10, check);
        }
    }

    fn part(buffer: &[u8], packets: Range<u32>) -> Vec<u8> {
        let shape = Shape::parse(buffer).unwrap();
        let mut out = Vec::new();
        cut(buffer, &shape, packets.clone(), &mut out);
        assert_eq!(out.len(), shape.cut_length(&packets));
        out
    }

    /// Whether the IPv4 header's checksum is correct.
    fn ip_is_right(buffer: &[u8]) -> bool {
        fold(sum(&buffer[VNET_HEADER + ETHERNET..VNET_HEADER + ETHERNET + 20])) == 0xffff
    }

    #[test]
    fn a_shape_tells_packets_and_wire_bytes() {
        let shape = Shape::parse(&Sent::new(false, 10 * SIZE + 1).buffer()).unwrap();
        assert_eq!(shape, Shape::many(66, 1448, 14_481));
        assert_eq!((shape.segments, shape.total_bytes()), (11, 10 * 1514 + 67));
        assert_eq!((shape.bytes(&(0..1)), shape.bytes(&(10..11))), (1514, 67));
        assert_eq!(Shape::parse(&[0; VNET_HEADER + 60]), Some(Shape::single(60)));
    }

    #[test]
    fn one_packet_cut_out_is_a_plain_packet() {
        let sent = Sent::new(false, 5 * SIZE);
        let out = part(&sent.buffer(), 2..3);
        let (ip, tcp) = (VNET_HEADER + ETHERNET, sent.transport());
        assert_eq!((out[0], &out[1..6]), (NEEDS_CHECKSUM, &[0; 5][..]));
        assert_eq!((big(&out, ip + 2), big(&out, ip + 4)), (1500, 1));
        assert_eq!(out[tcp + 4..tcp + 8], (0xffff_ff00u32.wrapping_add(2 * 1448)).to_be_bytes());
        assert_eq!(out[tcp + 13], 0x10, "only ACK is left in the middle");
        assert_eq!(out[tcp + 32..], sent.payload[2 * SIZE..3 * SIZE]);
        assert!(ip_is_right(&out));
    }

    #[test]
    fn flags_stay_with_the_packet_they_belong_to() {
        let sent = Sent::new(true, 5 * SIZE);
        let flags = |packets| part(&sent.buffer(), packets)[sent.transport() + 13];
        assert_eq!((flags(0..2), flags(2..4), flags(3..5), flags(0..5)), (0x90, 0x10, 0x19, 0x99));
        let gso = |packets| part(&sent.buffer(), packets)[1];
        assert_eq!((gso(0..2), gso(2..4), gso(4..5)), (GSO_ECN | GSO_TCP6, GSO_TCP6, 0));
    }

    #[test]
    fn segments_have_the_checksums_of_a_kernel() {
        for ipv6 in [false, true] {
            let (whole, small) = (Sent::new(ipv6, 6 * SIZE), Sent::new(ipv6, 2 * SIZE));
            let at = whole.transport() + 16;
            assert_eq!(big(&part(&whole.buffer(), 1..3), at), big(&small.buffer(), at));
        }
    }

    #[test]
    fn datagrams_get_their_own_lengths() {
        let mut buffer = Sent::new(false, 0).buffer();
        let udp = VNET_HEADER + ETHERNET + 20;
        buffer.truncate(udp + 8);
        buffer.extend_from_slice(&[7; 2500]);
        buffer[1] = GSO_UDP;
        buffer[8..10].copy_from_slice(&6u16.to_ne_bytes());
        buffer[4..6].copy_from_slice(&1000u16.to_ne_bytes());
        assert_eq!(Shape::parse(&buffer), Some(Shape::many(42, 1000, 2500)));
        let out = part(&buffer, 2..3);
        assert_eq!((out.len(), big(&out, udp + 4)), (udp + 508, 508));
        assert_eq!(big(&out, udp + 6), pseudo_sum(&out, udp, UDP));
    }

    #[test]
    fn broken_headers_are_refused() {
        let good = Sent::new(false, 3 * SIZE).buffer();
        let broken = |at: usize, value: u8| {
            let mut buffer = good.clone();
            buffer[at] = value;
            Shape::parse(&buffer)
        };
        assert_eq!(Shape::parse(&good[..20]), None);
        assert_eq!(broken(0, 0), None, "offloading needs the checksum offloaded");
        assert_eq!(broken(1, 77), None, "an unknown type");
        assert_eq!(broken(VNET_HEADER + 12, 0x88), None, "not IP");
        assert_eq!(Shape::parse(&good[..VNET_HEADER + 14 + 20 + 32]), None, "no payload");
        let mut short = Sent::new(true, 3 * SIZE).buffer();
        short[6..8].copy_from_slice(&53u16.to_ne_bytes());
        assert_eq!(Shape::parse(&short), None, "no room for a header of IPv6");
    }

    proptest! {
        /// However a frame is cut, the parts contain its payload exactly once.
        #[test]
        fn segments_add_up_to_the_frame(payload in 1usize..60_000, ipv6: bool, at in 0u32..45) {
            let sent = Sent::new(ipv6, payload);
            let buffer = sent.buffer();
            let shape = Shape::parse(&buffer).unwrap();
            let at = at.min(shape.segments);
            let mut joined = Vec::new();
            for packets in [0..at, at..shape.segments] {
                if !packets.is_empty() {
                    joined.extend_from_slice(&part(&buffer, packets)[sent.transport() + 32..]);
                }
            }
            prop_assert_eq!(joined, sent.payload);
            prop_assert_eq!(shape.bytes(&(0..at)) + shape.bytes(&(at..shape.segments)), shape.total_bytes());
        }

        #[test]
        fn any_bytes_are_a_shape_or_refused(buffer in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(shape) = Shape::parse(&buffer) {
                let mut out = Vec::new();
                cut(&buffer, &shape, 0..1, &mut out);
                cut(&buffer, &shape, shape.segments - 1..shape.segments, &mut out);
                prop_assert!(out.len() <= buffer.len());
            }
        }
    }
}
