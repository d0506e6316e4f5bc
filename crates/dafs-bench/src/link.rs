//! Networks of nodes: network namespaces, joined by links of a limited rate, delay and frame size.
//!
//! Invariants
//! * A namespace lives as long as its holder, a child process: it is removed even if this process
//!   is killed.
//! * Both directions of a link have the same rate, delay and frames. Traffic of a node to itself
//!   does not cross it.

use crate::child::Process;
use crate::peer::{find, run};
use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Burst size of a link.
const BURST: &str = "128kb";

/// Time that a packet waits for a link before it is dropped: long enough that none is.
const LATENCY: &str = "2s";

/// Packets that are delayed at a time: more than the time of [`LATENCY`] lets wait.
const DELAYED_PACKETS: usize = 10_000;

const SWITCH: &str = "switch";

/// A node's end of its link.
const DEVICE: &str = "eth0";

/// Tests whether the kernel supports links with a rate.
const PROBE: &str = "ip link add name one type veth peer name two && \
    tc qdisc add dev one root tbf rate 1mbit burst 128kb latency 1s";

/// The missing requirement of links, in words, if any.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("networks of their own are made by root".to_owned());
    }
    let absent = ["ip", "tc", "unshare"].into_iter().find(|program| find(program).is_none());
    if let Some(absent) = absent {
        return Some(format!("there is no {absent}; run: scripts/setup.sh bench"));
    }
    let mut probe = Command::new("unshare");
    let probe = probe.args(["-n", "sh", "-c", PROBE]).stderr(Stdio::null()).status();
    let refused = "no links with a rate can be made here (ip, tc with tbf, unshare)";
    (!probe.is_ok_and(|status| status.success())).then(|| refused.to_owned())
}

/// The properties of a link, the same in both directions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// The rate in Mbit/s; none: no limit.
    pub(crate) megabits: Option<u32>,
    /// The time that each packet takes longer.
    pub(crate) delay: Duration,
    /// The longest packet (MTU).
    pub(crate) frame_bytes: u16,
    /// The kernel hands over single frames. Otherwise it hands over segments of up to 64 KiB, and
    /// the frame size means nothing (segmentation offload).
    pub(crate) is_by_frame: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self { megabits: None, delay: Duration::ZERO, frame_bytes: 9000, is_by_frame: false }
    }
}

impl Link {
    /// The commands that give one end of a link its properties.
    fn commands(&self, device: &str) -> Vec<String> {
        let mut commands = Vec::new();
        let mut place = "root";
        if let Some(megabits) = self.megabits {
            commands.push(format!(
                "tc qdisc add dev {device} root handle 1: tbf rate {megabits}mbit burst {BURST} \
                 latency {LATENCY}"
            ));
            place = "parent 1:1";
        }
        if !self.delay.is_zero() {
            let delay_us = self.delay.as_micros();
            commands.push(format!(
                "tc qdisc add dev {device} {place} handle 2: netem delay {delay_us}us \
                 limit {DELAYED_PACKETS}"
            ));
        }
        if self.is_by_frame {
            commands.push(format!("ethtool -K {device} tso off gso off gro off"));
        }
        commands
    }

    fn limit(&self, device: &str) -> Result<()> {
        self.commands(device).iter().try_for_each(|line| command(line))
    }
}

/// Runs a command without blanks in its arguments.
fn command(line: &str) -> Result<()> {
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty command")?;
    let done = run(program, words).with_context(|| line.to_owned());
    // The probe has shown that all else is there.
    if line.contains(" netem ") { done.context(NO_DELAY) } else { done }
}

const NO_DELAY: &str = "this kernel seems to have no netem, which delays packets";

/// Makes the switch, in the namespace of the calling thread.
pub(crate) fn make_switch() -> Result<()> {
    command(&format!("ip link add name {SWITCH} mtu 9000 type bridge"))?;
    command(&format!("ip link set {SWITCH} up"))
}

/// A machine, as far as its network goes.
pub(crate) struct Node {
    holder: Process,
    number: u8,
    /// The device that carries its traffic.
    device: &'static str,
}

/// Bytes that have crossed a node's link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Crossed {
    pub(crate) to_node: u64,
    pub(crate) from_node: u64,
}

impl Crossed {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            to_node: self.to_node - before.to_node,
            from_node: self.from_node - before.from_node,
        }
    }
}

impl Node {
    fn hold(number: u8, device: &'static str) -> Result<Self> {
        let holder = Process::start(&["hold-network"])?;
        ensure!(holder.address == HELD, "this process may not make a network of its own");
        Ok(Self { holder, number, device })
    }

    /// A node without a link. Its traffic is what it sends to itself.
    pub(crate) fn alone() -> Result<Self> {
        let node = Self::hold(1, "lo")?;
        node.inside(|| command("ip link set lo up"))??;
        Ok(node)
    }

    /// Two nodes with a link between them.
    pub(crate) fn pair(link: &Link) -> Result<[Self; 2]> {
        let nodes = [Self::hold(1, DEVICE)?, Self::hold(2, DEVICE)?];
        let (mtu, other) = (link.frame_bytes, nodes[1].holder.id());
        // In a new namespace, where no device has the name yet.
        nodes[0].inside(|| {
            command(&format!(
                "ip link add name {DEVICE} mtu {mtu} type veth \
                 peer name {DEVICE} mtu {mtu} netns {other}"
            ))
        })??;
        nodes.iter().try_for_each(|node| node.attach(link))?;
        Ok(nodes)
    }

    /// Adds a node to the switch in the namespace of the calling thread.
    pub(crate) fn add(number: u8, link: &Link) -> Result<Self> {
        let node = Self::hold(number, DEVICE)?;
        let (port, mtu, holder) = (format!("node{number}"), link.frame_bytes, node.holder.id());
        command(&format!(
            "ip link add name {port} mtu {mtu} type veth \
             peer name {DEVICE} mtu {mtu} netns {holder}"
        ))?;
        command(&format!("ip link set {port} master {SWITCH} up"))?;
        link.limit(&port)?;
        node.attach(link)?;
        Ok(node)
    }

    /// Sets up the node's end of its link.
    fn attach(&self, link: &Link) -> Result<()> {
        let address = self.address();
        self.inside(|| {
            command("ip link set lo up")?;
            command(&format!("ip addr add {address}/24 dev {DEVICE}"))?;
            command(&format!("ip link set {DEVICE} up"))?;
            link.limit(DEVICE)
        })?
    }

    /// Its address on its link.
    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number)
    }

    /// The path of the namespace, for other processes.
    pub(crate) fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    /// Runs `work` in this node's network; processes that it starts stay there.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = File::open(self.namespace()).context("a node is gone")?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            thread.join().unwrap_or_else(|_| bail!("work at a node failed"))
        })
    }

    /// Bytes that its device has carried so far.
    pub(crate) fn crossed(&self) -> Result<Crossed> {
        let table = std::fs::read_to_string(format!("/proc/{}/net/dev", self.holder.id()))?;
        crossed(&table, self.device)
    }
}

/// The bytes that a device has received and sent, from the kernel's table of devices.
fn crossed(table: &str, device: &str) -> Result<Crossed> {
    let name = format!("{device}:");
    let line = table.lines().find_map(|line| line.trim().strip_prefix(&name));
    let line = line.context("a link is gone")?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    match numbers[..] {
        [to_node, _, _, _, _, _, _, _, from_node, ..] if numbers.len() == 16 => {
            Ok(Crossed { to_node, from_node })
        }
        _ => bail!("the system counts {line:?} for a link"),
    }
}

/// The word of a holder that is ready.
const HELD: &str = "held";

/// Holds a network namespace in a child until its parent is gone.
pub(crate) fn hold() -> Result<()> {
    // SAFETY: a new network namespace changes nothing about this process's memory or files.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET)? };
    crate::child::announce(HELD)?;
    crate::child::wait_for_parent();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_limits_needs_no_command() {
        assert!(Link::default().commands("eth0").is_empty());
    }

    #[test]
    fn the_delay_is_below_the_rate() {
        let link = Link {
            megabits: Some(1000),
            delay: Duration::from_micros(51),
            frame_bytes: 1500,
            is_by_frame: true,
        };
        let want = [
            "tc qdisc add dev eth0 root handle 1: tbf rate 1000mbit burst 128kb latency 2s",
            "tc qdisc add dev eth0 parent 1:1 handle 2: netem delay 51us limit 10000",
            "ethtool -K eth0 tso off gso off gro off",
        ];
        assert_eq!(link.commands("eth0"), want);
        let link = Link { megabits: None, is_by_frame: false, ..link };
        let want = ["tc qdisc add dev eth0 root handle 2: netem delay 51us limit 10000"];
        assert_eq!(link.commands("eth0"), want);
    }

    #[test]
    fn counters_are_those_of_the_device() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets\n\
            \x20   lo:      11 1 0 0 0 0 0 0       12 1 0 0 0 0 0 0\n\
            \x20 eth0: 1000000 7 0 0 0 0 0 0     2000 5 0 0 0 0 0 0\n";
        let want = Crossed { to_node: 1_000_000, from_node: 2000 };
        assert_eq!(crossed(table, "eth0").expect("a link"), want);
        assert!(crossed(table, "eth1").is_err());
        assert!(crossed("eth0: 1 2 3", "eth0").is_err());
    }
}
