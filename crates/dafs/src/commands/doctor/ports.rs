//! The ports of file servers, and their owners.

use super::finding::Finding;
use super::host::Host;

/// The ports and their purposes.
const PORTS: [(u16, &str); 3] =
    [(2049, "NFS over TCP"), (20_049, "NFS over RDMA"), (20_490, "DAFS")];

/// Most processes examined to find the owner of a port.
const PROCESS_COUNT_MAX: usize = 100_000;

pub(super) fn check(host: &Host) -> Vec<Finding> {
    let listeners = listeners(host);
    PORTS.into_iter().map(|(port, purpose)| check_port(host, &listeners, port, purpose)).collect()
}

/// The ports with a TCP listener, and its user.
pub(super) fn owners(host: &Host) -> Vec<(u16, u32)> {
    listeners(host).into_iter().map(|listener| (listener.port, listener.user)).collect()
}

/// A TCP socket that listens.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    port: u16,
    user: u32,
    inode: u64,
}

fn listeners(host: &Host) -> Vec<Listener> {
    ["proc/net/tcp", "proc/net/tcp6"]
        .iter()
        .filter_map(|file| host.read(file))
        .flat_map(|text| text.lines().filter_map(listener).collect::<Vec<_>>())
        .collect()
}

/// The listener in a line of /proc/net/tcp, if it is about one.
fn listener(line: &str) -> Option<Listener> {
    let mut words = line.split_whitespace().skip(1);
    let (_, port) = words.next()?.rsplit_once(':')?;
    let state = words.nth(1)?;
    let user = words.nth(3)?;
    let inode = words.nth(1)?;
    // TCP_LISTEN.
    if state != "0A" {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Listener { port, user: user.parse().ok()?, inode: inode.parse().ok()? })
}

fn check_port(host: &Host, listeners: &[Listener], port: u16, purpose: &str) -> Finding {
    const TOPIC: &str = "port";
    let inodes: Vec<u64> = listeners
        .iter()
        .filter(|listener| listener.port == port)
        .map(|listener| listener.inode)
        .collect();
    if inodes.is_empty() {
        return Finding::ok(TOPIC, format!("{port} ({purpose}) is free"));
    }
    match owner(host, &inodes) {
        Some((_, name)) if name == "dafs" => {
            Finding::ok(TOPIC, format!("{port} ({purpose}) is served by dafs"))
        }
        Some((pid, name)) => Finding::note(
            TOPIC,
            format!("{port} ({purpose}) is taken by {name}, process {pid}"),
            "a server of dafs needs another port or address, or that process ended",
        ),
        None => Finding::note(
            TOPIC,
            format!("{port} ({purpose}) is taken by the kernel or a process that is not visible"),
            "as root this tells whose it is; the kernel's NFS server is stopped by: systemctl stop \
             nfs-server",
        ),
    }
}

/// The first process with one of the sockets.
fn owner(host: &Host, inodes: &[u64]) -> Option<(u32, String)> {
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let pids = host.list("proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    for pid in pids.take(PROCESS_COUNT_MAX) {
        let directory = format!("proc/{pid}/fd");
        let has = |file: &String| {
            host.link(&format!("{directory}/{file}")).is_some_and(|link| wanted.contains(&link))
        };
        if host.list(&directory).iter().any(has) {
            let name = host.read(&format!("proc/{pid}/comm")).unwrap_or_default();
            return Some((pid, name));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode\n   \
        0: 00000000:0801 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 \
        777 1 0000000000000000 100 0 0 10 0\n   \
        1: 0100007F:4E51 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 \
        778 1 0000000000000000 100 0 0 10 0\n";

    #[test]
    fn a_finding_names_the_owner_of_a_port() {
        let fake = Fake::new();
        fake.file("proc/net/tcp", TABLE);
        let found = |fake: &Fake| {
            let finding = check(&fake.host()).remove(0);
            (finding.level, finding.text)
        };
        let (level, text) = found(&fake);
        assert_eq!(level, Level::Note);
        assert!(text.contains("2049") && text.contains("not visible"), "{text}");
        fake.link("proc/31/fd/3", "socket:[776]");
        fake.link("proc/32/fd/3", "socket:[777]");
        fake.file("proc/32/comm", "ganesha.nfsd\n");
        let (level, text) = found(&fake);
        assert_eq!(level, Level::Note);
        assert!(text.ends_with("taken by ganesha.nfsd, process 32"), "{text}");
        fake.file("proc/32/comm", "dafs\n");
        assert_eq!(found(&fake).0, Level::Ok);
        // A connection from this port is no listener.
        assert!(check(&fake.host())[1].text.contains("is free"));
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for line in ["", "sl", "0: x", "0: 00:0801 00:0 0A", "0: 00:zz 0 0A 0 0 0 0 0 1"] {
            assert_eq!(listener(line), None, "{line}");
        }
    }
}
