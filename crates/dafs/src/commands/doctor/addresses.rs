//! The addresses of network devices.

use super::host::Host;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of the network device by which this host can reach its RDMA device.
pub(super) fn of(host: &Host, network: &str) -> Option<IpAddr> {
    version_4(host, network).map(IpAddr::V4).or_else(|| version_6(host, network).map(IpAddr::V6))
}

/// The first address of this host that lies in a network of the device.
fn version_4(host: &Host, network: &str) -> Option<Ipv4Addr> {
    // Iface Destination Gateway Flags RefCnt Use Metric Mask ...
    let routes = host.read("proc/net/route")?;
    let networks: Vec<(u32, u32)> = routes
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first() != Some(&network) {
                return None;
            }
            // In the byte order of this machine.
            let word = |at: usize| {
                let word = u32::from_str_radix(words.get(at)?, 16).ok()?;
                Some(u32::from_be_bytes(word.to_ne_bytes()))
            };
            Some((word(1)?, word(7)?))
        })
        .filter(|(_, mask)| *mask != 0)
        .collect();
    let local = |address: &Ipv4Addr| {
        let address = u32::from(*address);
        networks.iter().any(|(network, mask)| address & mask == *network)
    };
    let trie = host.read("proc/net/fib_trie")?;
    let mut last = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last.filter(local)
        {
            return Some(address);
        }
    }
    None
}

/// The first address of the device with more than link scope.
fn version_6(host: &Host, network: &str) -> Option<Ipv6Addr> {
    // Address, index, length of the prefix, scope, flags, device.
    let table = host.read("proc/net/if_inet6")?;
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, _, _, "00", _, device] = words[..] else { return None };
        let address = u128::from_str_radix(address, 16).ok()?;
        (device == network).then(|| Ipv6Addr::from(address))
    })
}

#[cfg(test)]
mod tests {
    use super::super::host::fake::Fake;
    use super::*;

    const ROUTE: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
        eth0\t00000000\t0202000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
        Local:\n     |-- 192.168.7.9\n        /32 host LOCAL\n     |-- 10.0.2.0\n        \
        /24 link UNICAST\n     |-- 10.0.2.15\n        /32 host LOCAL\n     |-- 10.0.2.255\n        \
        /32 link BROADCAST\n";

    #[test]
    fn the_address_of_a_device_is_the_local_one_in_its_network() {
        let fake = Fake::new();
        fake.file("proc/net/route", ROUTE);
        fake.file("proc/net/fib_trie", TRIE);
        assert_eq!(of(&fake.host(), "eth0"), Some("10.0.2.15".parse().unwrap()));
        assert_eq!(of(&fake.host(), "eth1"), Some("192.168.7.9".parse().unwrap()));
        assert_eq!(of(&fake.host(), "eth2"), None);
    }

    #[test]
    fn an_address_of_version_6_will_do_if_it_is_no_link_local_one() {
        let fake = Fake::new();
        let text = "fe800000000000000000000000000001 02 40 20 80     eth0\n\
            20010db8000000000000000000000007 02 40 00 80     eth0\n";
        fake.file("proc/net/if_inet6", text);
        assert_eq!(of(&fake.host(), "eth0"), Some("2001:db8::7".parse().unwrap()));
        assert_eq!(of(&fake.host(), "eth1"), None);
    }
}
