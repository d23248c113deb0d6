//! Networks in CIDR notation.

use std::net::IpAddr;

/// All addresses that share the first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    /// Parses `192.0.2.0/24`, `2001:db8::/32`, or one address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.trim().split_once('/').map_or((text.trim(), None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
        (bits <= most).then_some(Network { address, bits })
    }

    /// Whether an address is in it; an IPv4 address in the form of IPv6 is one of IPv4.
    pub(super) fn contains(self, address: IpAddr) -> bool {
        let cut = |address: u128, width: u32| address.checked_shr(width - self.bits).unwrap_or(0);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                cut(u32::from(own).into(), 32) == cut(u32::from(other).into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => cut(own.into(), 128) == cut(other.into(), 128),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        let contains = |network: &str, address: &str| {
            Network::parse(network).unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("192.0.2.0/24", "192.0.2.255") && !contains("192.0.2.0/24", "192.0.3.0"));
        assert!(contains("0.0.0.0/0", "203.0.113.1") && !contains("0.0.0.0/0", "::1"));
        assert!(contains("::/0", "2001:db8::1") && !contains("::/0", "::ffff:192.0.2.1"));
        assert!(
            contains("2001:db8::/33", "2001:db8:7fff::") && !contains("2001:db8::/33", "2001:db8:8000::")
        );
        for bad in ["", "192.0.2.0/33", "::/129", "192.0.2/24", "192.0.2.0/x", "kek"] {
            assert_eq!(Network::parse(bad), None, "{bad}");
        }
    }
}
