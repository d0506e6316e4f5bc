//! Nodes as network namespaces, each with one link of a limited rate to a switch.
//!
//! Invariants
//! * A namespace lives as long as its holder, a child process: it is removed even if this process
//!   is killed.
//! * Both directions of a link have the same rate. Traffic of a node to itself does not cross it.

use crate::child::Process;
use crate::peer::run;
use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Burst size of a link.
const BURST: &str = "128kb";

/// Time that a packet waits for a link before it is dropped: long enough that none is.
const LATENCY: &str = "2s";

/// A machine, as far as its network goes.
pub(crate) struct Node {
    holder: Process,
    number: u8,
}

/// Bytes that have crossed a node's link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Crossed {
    pub(crate) to_node: u64,
    pub(crate) from_node: u64,
}

impl Node {
    /// Adds a node to the switch in the namespace of the calling thread.
    pub(crate) fn add(number: u8, megabits: u32) -> Result<Self> {
        let node = Self { holder: Process::start(&["hold-network"])?, number };
        let (device, holder) = (node.device(), node.holder.id().to_string());
        run(
            "ip",
            ["link", "add", "name", &device, "mtu", "9000", "type", "veth"]
                .into_iter()
                .chain(["peer", "name", "eth0", "mtu", "9000", "netns", &holder]),
        )?;
        run("ip", ["link", "set", &device, "master", SWITCH, "up"])?;
        limit(&device, megabits)?;
        let address = format!("{}/24", node.address());
        node.inside(|| {
            run("ip", ["link", "set", "lo", "up"])?;
            run("ip", ["addr", "add", &address, "dev", "eth0"])?;
            run("ip", ["link", "set", "eth0", "up"])?;
            limit("eth0", megabits)
        })??;
        Ok(node)
    }

    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number)
    }

    /// The path of the namespace, for other processes.
    pub(crate) fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.id()).into()
    }

    fn device(&self) -> String {
        format!("node{}", self.number)
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

    /// Bytes that have crossed its link so far. Call it in the namespace of the switch.
    pub(crate) fn crossed(&self) -> Result<Crossed> {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let device = format!("{}:", self.device());
        let line = table.lines().find_map(|line| line.trim().strip_prefix(&device));
        let line = line.context("a link is gone")?;
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        // The switch receives what the node sends.
        match numbers[..] {
            [from_node, .., to_node, _, _, _, _, _, _, _] if numbers.len() == 16 => {
                Ok(Crossed { to_node, from_node })
            }
            _ => bail!("the system counts {line:?} for a link"),
        }
    }
}

const SWITCH: &str = "switch";

/// Makes the switch, in the namespace of the calling thread.
pub(crate) fn make_switch() -> Result<()> {
    run("ip", ["link", "add", "name", SWITCH, "mtu", "9000", "type", "bridge"])?;
    run("ip", ["link", "set", SWITCH, "up"])
}

fn limit(device: &str, megabits: u32) -> Result<()> {
    let rate = format!("{megabits}mbit");
    run(
        "tc",
        ["qdisc", "add", "dev", device, "root", "tbf", "rate", &rate, "burst", BURST]
            .into_iter()
            .chain(["latency", LATENCY]),
    )
}

/// Holds a network namespace in a child until its parent is gone.
pub(crate) fn hold() -> Result<()> {
    // SAFETY: a new network namespace changes nothing about this process's memory or files.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET)? };
    crate::child::announce("held")?;
    crate::child::wait_for_parent();
    Ok(())
}
