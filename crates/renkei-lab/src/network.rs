//! The addresses of a lab and the lines that configure them in its namespaces.
//!
//! Path k is the network 10.75.k.0/24 and the device `eth<k>` at each site on it; the n-th site of the file has host
//! number n. A site has static neighbour entries, so no packet waits for ARP, and has a route to each site it has a
//! link to and to no other: where the topology has no link, the network is unreachable. Pure text;
//! [`super::namespace`] carries it out.

use super::topology::{Gate, Link, Topology};
use std::fmt::Write;
use std::net::Ipv4Addr;

/// The network behind a NAT box.
const INSIDE: [u8; 3] = [192, 168, 75];

/// The address of a site on a path, as other sites see it.
pub fn address(path: usize, site: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 75, octet(path), octet(site + 1))
}

/// The hardware address of a site's device on a path.
pub fn mac(path: usize, site: usize) -> [u8; 6] {
    [0x02, 0x52, 0x4b, octet(path), 0, octet(site + 1)]
}

fn octet(number: usize) -> u8 {
    u8::try_from(number).expect("a topology has at most 250 sites and 16 paths")
}

/// The hardware address as text.
pub fn mac_text(path: usize, site: usize) -> String {
    mac(path, site).map(|byte| format!("{byte:02x}")).join(":")
}

/// The hosts file of a site: every site by name, with `-k` for its address on path k.
pub fn hosts(topology: &Topology, own: usize) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    for (site, known) in topology.sites.iter().enumerate() {
        for path in topology.paths_of(site) {
            let inside = site == own && known.gate == Gate::Nat;
            let address = if inside { inside_address(2) } else { address(path, site) };
            let names = host_names(topology, site, path).join(" ");
            writeln!(text, "{address} {names}").expect("writing to a string cannot fail");
        }
    }
    text
}

/// The names of a site on a path: its own on the first one it has, and with the number of the path.
pub fn host_names(topology: &Topology, site: usize, path: usize) -> Vec<String> {
    let name = &topology.sites[site].name;
    let bare = (topology.paths_of(site).first() == Some(&path)).then(|| name.to_string());
    bare.into_iter().chain([format!("{name}-{path}")]).collect()
}

fn inside_address(host: u8) -> Ipv4Addr {
    let [a, b, c] = INSIDE;
    Ipv4Addr::new(a, b, c, host)
}

/// The lines that configure the devices of a site, in the namespace that has them.
pub fn device_lines(topology: &Topology, site: usize) -> String {
    topology.paths_of(site).into_iter().map(|path| one_device(topology, site, path)).collect()
}

fn one_device(topology: &Topology, site: usize, path: usize) -> String {
    let own = address(path, site);
    let mut lines = format!(
        "link set eth{path} addrgenmode none\nlink set eth{path} up\n\
         addr add {own}/24 dev eth{path} noprefixroute\n"
    );
    for link in topology.links.iter().filter(|link| (link.from, link.path) == (site, path)) {
        lines.push_str(&neighbour_line(link));
        lines.push_str(&route_line(link));
    }
    lines
}

/// The device's MTU is the largest of its links; smaller ones are set in their routes.
pub fn device_mtu(topology: &Topology, site: usize, path: usize) -> u32 {
    let touching =
        topology.links.iter().filter(|link| link.path == path && [link.from, link.to].contains(&site));
    touching.map(|link| link.shape.mtu()).max().unwrap_or(1500)
}

fn neighbour_line(link: &Link) -> String {
    let (to, mac) = (address(link.path, link.to), mac_text(link.path, link.to));
    format!("neigh replace {to} lladdr {mac} dev eth{} nud permanent\n", link.path)
}

/// The route of a link; also changes its MTU.
pub fn route_line(link: &Link) -> String {
    let (own, to) = (address(link.path, link.from), address(link.path, link.to));
    format!("route replace {to}/32 dev eth{} src {own} mtu {}\n", link.path, link.shape.mtu())
}

/// The lines that connect a site to its NAT box: for the box, and for the site. `device` are options of the site's
/// device.
pub fn translation_lines(
    topology: &Topology,
    site: usize,
    site_namespace: &str,
    device: &str,
) -> (String, String) {
    let paths = topology.paths_of(site);
    let mtu = paths.iter().map(|path| device_mtu(topology, site, *path)).max().unwrap_or(1500);
    let outer = format!(
        "link add inside type veth peer name eth0 {device} netns {site_namespace}\n\
         link set inside mtu {mtu} addrgenmode none\nlink set inside up\naddr add {}/24 dev inside\n",
        inside_address(1)
    );
    let inner = format!(
        "link set eth0 mtu {mtu} addrgenmode none\nlink set eth0 up\naddr add {}/24 dev eth0\nroute add default via {}\n",
        inside_address(2),
        inside_address(1)
    );
    (outer, inner)
}

/// nftables rules that let in answers only.
pub const OUTBOUND_RULES: &str = "table ip lab {
    chain input { type filter hook input priority 0; policy accept; iifname \"eth*\" ct state new,invalid drop; }
}
";

/// nftables rules of the NAT box: answers only, and all under its own address.
pub const NAT_RULES: &str = "table ip lab {
    chain input { type filter hook input priority 0; policy accept; iifname \"eth*\" ct state new,invalid drop; }
    chain forward { type filter hook forward priority 0; policy accept; iifname \"eth*\" ct state new,invalid drop; }
    chain outgoing { type nat hook postrouting priority 100; policy accept; oifname \"eth*\" masquerade; }
}
";

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn topology() -> Topology {
        let text = "name = 't'\n[[site]]\nname = 'kek'\n[[site]]\nname = 'titech'\n[[site]]\nname = 'lab'\n\
                    private = 'nat'\n[[link]]\nbetween = ['kek', 'titech']\nmtu = 9000\n\
                    [[link]]\nbetween = ['kek', 'titech']\npath = 1\n[[link]]\nbetween = ['kek', 'lab']\n";
        Topology::parse(text, Path::new("t.toml"), None).unwrap()
    }

    #[test]
    fn every_site_knows_every_name() {
        let text = hosts(&topology(), 0);
        for line in ["10.75.0.1 kek kek-0", "10.75.1.2 titech-1", "10.75.0.3 lab lab-0"] {
            assert!(text.lines().any(|known| known == line), "{line} in {text}");
        }
        assert!(hosts(&topology(), 2).contains("192.168.75.2 lab lab-0"));
    }

    #[test]
    fn a_device_has_routes_along_its_links_only() {
        let lines = device_lines(&topology(), 1);
        assert!(lines.starts_with("link set eth0 addrgenmode none\nlink set eth0 up\n"), "{lines}");
        assert_eq!(device_mtu(&topology(), 1, 0), 9000);
        assert!(lines.contains("neigh replace 10.75.1.1 lladdr 02:52:4b:01:00:01 dev eth1 nud permanent\n"));
        assert!(lines.contains("route replace 10.75.0.1/32 dev eth0 src 10.75.0.2 mtu 9000\n"));
        assert!(!lines.contains("10.75.0.3"), "{lines}");
    }

    #[test]
    fn a_small_link_of_a_large_device_says_so() {
        let lines = device_lines(&topology(), 0);
        assert!(lines.contains("route replace 10.75.0.3/32 dev eth0 src 10.75.0.1 mtu 1500\n"), "{lines}");
    }
}
