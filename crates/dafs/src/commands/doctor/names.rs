//! The abstract socket names of servers over shared memory, which every user of a host may bind.

use super::finding::Finding;
use super::host::Host;
use super::ports;
use dafs_dat::PeerProcess;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// `SS_UNCONNECTED` in /proc/net/unix: a socket that listens, or does nothing.
const UNCONNECTED: &str = "01";

/// Checks that these names belong to the users who run the servers there. `holder` returns the
/// process behind a name.
pub(super) fn check(host: &Host, holder: impl Fn(&str) -> Option<PeerProcess>) -> Vec<Finding> {
    let text = host.read("proc/net/unix").unwrap_or_default();
    let names: BTreeSet<&str> = text.lines().filter_map(name).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let servers = ports::owners(host);
    names.into_iter().filter_map(|name| check_name(name, holder(name), &servers)).collect()
}

/// The name in a line of /proc/net/unix, if it could be a server's.
fn name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let state = words.nth(5)?;
    let name = words.nth(1)?.strip_prefix('@')?;
    port(name)?;
    (state == UNCONNECTED).then_some(name)
}

/// The port in a name: `dafs-ADDRESS:PORT`.
fn port(name: &str) -> Option<u16> {
    let (address, port) = name.strip_prefix("dafs-")?.rsplit_once(':')?;
    (address == "*" || address.parse::<IpAddr>().is_ok()).then(|| port.parse().ok())?
}

/// `servers` are the ports with a listener, and the user of each.
fn check_name(name: &str, holder: Option<PeerProcess>, servers: &[(u16, u32)]) -> Option<Finding> {
    let is_server =
        |user: u32| servers.iter().any(|&(at, by)| Some(at) == port(name) && by == user);
    let who = match holder {
        Some(process) if process.uid == 0 || is_server(process.uid) => return None,
        Some(process) => format!("process {} of user {}", process.pid, process.uid),
        None => "a process that does not answer".to_owned(),
    };
    Some(Finding::problem(
        "shared memory",
        format!("{who} listens at {name}, where clients look for a server, but is none"),
        "clients and servers do without shared memory there; end that process (ss -xp shows it), \
         then start the server again",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::super::host::fake::Fake;
    use super::*;

    #[test]
    fn a_name_that_is_not_the_servers_is_a_problem() {
        let fake = Fake::new();
        fake.file(
            "proc/net/unix",
            "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0: 00000002 00000000 00010000 0005 01 11 @dafs-*:20490\n\
             0: 00000003 00000000 00000000 0005 03 12 @dafs-10.0.0.1:20490\n\
             0: 00000002 00000000 00010000 0005 01 13 @dafs-doctor-77\n\
             0: 00000002 00000000 00010000 0001 01 14 @/tmp/other\n\
             0: 00000002 00000000 00010000 0001 01 15\n",
        );
        fake.file(
            "proc/net/tcp",
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 00000000:500A 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 \
             777 1 0000000000000000 100 0 0 10 0\n",
        );
        let found = |uid: Option<u32>| {
            let holder = |name: &str| {
                assert_eq!(name, "dafs-*:20490");
                uid.map(|uid| PeerProcess { pid: 7, uid, gid: 0 })
            };
            check(&fake.host(), holder)
        };
        assert_eq!(found(Some(0)), []);
        assert_eq!(found(Some(33)), [], "the user of the server");
        for uid in [Some(1234), None] {
            let [finding] = &found(uid)[..] else { panic!("no finding") };
            assert_eq!(finding.level, Level::Problem);
            assert!(finding.text.contains("dafs-*:20490"), "{finding}");
        }
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        for line in ["", "0: 1 2 3 4", "0: 1 2 3 4 01 9 @dafs-", "0: 1 2 3 4 01 9 @dafs-*:99999"] {
            assert_eq!(name(line), None, "{line}");
        }
    }
}
