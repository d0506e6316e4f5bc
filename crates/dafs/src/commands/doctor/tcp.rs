//! Settings of TCP that limit fast networks.

use super::finding::Finding;
use super::host::Host;

/// The largest buffer that TCP should allow for one connection, in bytes: about 10 Gbit/s times 3
/// ms.
const BUFFER_BYTES_WANTED: u64 = 4 << 20;

pub(super) fn check(host: &Host) -> Vec<Finding> {
    const TOPIC: &str = "tcp buffers";
    let setting = |name: &str| {
        // "4096 131072 6291456": the least, the first and the most.
        let text = host.read(&format!("proc/sys/net/ipv4/{name}"))?;
        let most: u64 = text.split_whitespace().nth(2)?.parse().ok()?;
        Some(if most >= BUFFER_BYTES_WANTED {
            Finding::ok(TOPIC, format!("{name} lets a connection keep {} KiB", most >> 10))
        } else {
            Finding::note(
                TOPIC,
                format!("{name} lets a connection keep only {} KiB", most >> 10),
                format!(
                    "on networks of 10 Gbit/s and more: sysctl -w net.ipv4.{name}='4096 131072 \
                     16777216'"
                ),
            )
        })
    };
    ["tcp_rmem", "tcp_wmem"].into_iter().filter_map(setting).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    #[test]
    fn small_buffers_are_noted() {
        let fake = Fake::new();
        fake.file("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        fake.file("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t1048576\n");
        let findings = check(&fake.host());
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[0].level, Level::Ok);
        assert_eq!(findings[1].level, Level::Note);
        assert!(findings[1].text.contains("1024 KiB"));
        fake.file("proc/sys/net/ipv4/tcp_wmem", "nonsense");
        assert_eq!(check(&fake.host()).len(), 1);
    }
}
