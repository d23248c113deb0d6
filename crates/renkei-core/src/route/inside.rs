//! Addresses inside a site's network: a PoP must not connect to them on behalf of others (against SSRF).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is not a public one: loopback, link-local, private networks, and addresses that embed one of
/// these (RFC 1918, 3927, 4193, 4291, 6052, 6598).
pub fn is_inside(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_inside_v4(address),
        IpAddr::V6(address) => is_inside_v6(address),
    }
}

fn is_inside_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_multicast()
        || first == 0
        || (first == 100 && (64..128).contains(&second))
}

fn is_inside_v6(address: Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    let [.., a, b, c, d] = address.octets();
    let embedded = || is_inside_v4(Ipv4Addr::new(a, b, c, d));
    let is_translated = (first, second) == (0x64, 0xff9b);
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_inside_v4(inner);
    }
    let six_to_four = || {
        let ([a, b], [c, d]) = (second.to_be_bytes(), third.to_be_bytes());
        is_inside_v4(Ipv4Addr::new(a, b, c, d))
    };
    // No address in ::/96 belongs to a host.
    address.segments()[..6] == [0; 6]
        || address.is_multicast()
        || first & 0xfe00 == 0xfc00
        || first & 0xffc0 == 0xfe80
        || first & 0xffc0 == 0xfec0
        || (is_translated && (third != 0 || embedded()))
        || (first == 0x2002 && six_to_four())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_addresses_are_recognised() {
        let is = |text: &str| is_inside(text.parse().unwrap());
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.0.1",
            "255.255.255.255",
            "224.0.0.1",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a00:1",
            "2002:7f00:1::",
        ] {
            assert!(is(text), "{text}");
        }
        for text in [
            "8.8.8.8",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.169.0.1",
            "2001:db8::1",
            "2a00::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::",
        ] {
            assert!(!is(text), "{text}");
        }
    }
}
