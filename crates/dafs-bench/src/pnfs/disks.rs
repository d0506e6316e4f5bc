//! Writes that disks bound, and not links: Direct-pNFS and DAFS with layouts of its own on the same data
//! servers of dafs, whose disks are slow.
//!
//! A disk is a file system in an image in memory, and the kernel limits the rate of writes to its loop
//! device (blkio of control groups).
//!
//! Invariants
//! * All data is on the disks when the time of a case ends, and all disks together are no faster than
//!   their limits, which is checked.
//! * Counters of links must show that bytes went past the head.
//! * A disk has a holder, a child process. The holder takes the limit away and unmounts the disk when its
//!   parent is gone, also if that is killed.

use super::check::{self, Seen};
use super::client::Client;
use super::engine::{Counters, Server};
use super::{Architecture, Rate, own, rates::MEGABITS, table};
use crate::child::{Process, announce, leave_interrupts_to_parent, wait_for_parent};
use crate::folder::Folder;
use crate::fronts::{self, MEMORY};
use crate::link::{self, Link, Node};
use crate::peer;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The file of the kernel with the rates of devices, of the root group.
const LIMITS: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";

/// The size of a disk. Its image has no space for what is not written.
const IMAGE_BYTES: u64 = 1 << 30;

/// The most files of a disk.
const INODES: &str = "4096";

/// The block of the application.
const BLOCK: usize = 2 << 20;

/// Bytes that a client writes before the measurements; attempts until the data servers are known; and
/// the pause between them.
const WARM_BYTES: u64 = 1 << 20;
const WARM_RUNS: usize = 40;
const WARM_PAUSE: Duration = Duration::from_millis(250);

/// A disk may be faster at the beginning of its limit.
const TOLERANCE: f64 = 1.25;

/// The word of a holder that is ready.
const HELD: &str = "held";

/// The clients, with the words before their rates.
const CLIENTS: [(&str, Way); 2] =
    [("Direct-pNFS on slow disks", Way::Nfs), ("DAFS layouts on slow disks", Way::Dafs)];

#[derive(Debug, Clone, Copy)]
enum Way {
    /// `dafs-nfs-client` with pNFS.
    Nfs,
    /// The DAFS client with layouts.
    Dafs,
}

/// The missing requirement, in words, if any.
pub(crate) fn disks_missing() -> Option<String> {
    if let Some(reason) = link::missing() {
        return Some(reason);
    }
    if peer::find("mkfs.ext4").is_none() {
        return Some("there is no mkfs.ext4; run: scripts/setup.sh bench".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no loop device here".to_owned());
    }
    // A process in another group would sync past the limit.
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let has_limit =
        Path::new(LIMITS).exists() && groups.lines().any(|line| line.ends_with(":blkio:/"));
    let reason = "there is no limit for the rate of a disk here (blkio of cgroup version 1)";
    (!has_limit).then(|| reason.to_owned())
}

/// Measures writes of separate files and of one file by each client. `check` fails when the run shall end.
pub(crate) fn disk_rates(
    clients: usize,
    storage_nodes: usize,
    megabytes: u64,
    check: impl Fn() -> Result<()> + Sync,
) -> Result<Vec<Rate>> {
    // Its holder is outside of the mounts.
    let made = Folder::make(Path::new(MEMORY))?;
    let (folder, mut rates) = (made.path().to_owned(), Vec::new());
    let inside = || -> Result<()> {
        link::make_switch()?;
        let nodes = Nodes::start(clients, storage_nodes)?;
        for (words, way) in CLIENTS {
            let stage = Stage::start(&nodes, way, &folder.join(words))?;
            stage.warm()?;
            for one_file in [false, true] {
                check()?;
                let value = stage.write(one_file, megabytes << 20)?;
                let case = format!("{words}: {}", table::title(true, one_file, BLOCK));
                rates.push(Rate { case, unit: "MB/s", value });
            }
        }
        Ok(())
    };
    fronts::in_own_mounts(|| peer::in_own_network(inside))?;
    Ok(rates)
}

/// The bytes that a disk writes in a second: few enough that disks are the limit and not the links, whose
/// rate that is.
fn disk_rate(clients: usize, disks: usize, link_bytes: u64) -> u64 {
    let of_clients = link_bytes * clients as u64 / disks as u64 / 2;
    of_clients.min(link_bytes / 3)
}

struct Nodes {
    head: Node,
    storage: Vec<Node>,
    clients: Vec<Node>,
}

impl Nodes {
    fn start(clients: usize, storage_nodes: usize) -> Result<Self> {
        let link = Link { megabits: Some(MEGABITS), ..Link::default() };
        let node = |number: usize| Node::add(u8::try_from(number)?, &link);
        Ok(Self {
            head: node(99)?,
            storage: (1..=storage_nodes).map(node).collect::<Result<_>>()?,
            clients: (101..=100 + clients).map(node).collect::<Result<_>>()?,
        })
    }

    fn see(&self) -> Result<Seen> {
        let crossed = |nodes: &[Node]| nodes.iter().map(Node::crossed).collect::<Result<Vec<_>>>();
        Ok(Seen {
            head: self.head.crossed()?,
            storage: crossed(&self.storage)?,
            clients: crossed(&self.clients)?,
            counters: Counters::default(),
        })
    }
}

/// Servers on new disks, and the way of their clients.
struct Stage<'a> {
    nodes: &'a Nodes,
    way: Way,
    bytes_per_second: u64,
    /// Ended before the disks.
    _server: Server,
    _disks: Vec<Disk>,
}

impl<'a> Stage<'a> {
    fn start(nodes: &'a Nodes, way: Way, folder: &Path) -> Result<Self> {
        std::fs::create_dir(folder)?;
        let link_bytes = u64::from(MEGABITS) * 1_000_000 / 8;
        let bytes_per_second = disk_rate(nodes.clients.len(), nodes.storage.len(), link_bytes);
        let disk = |number| Disk::make(&folder.join(format!("disk{number}")), bytes_per_second);
        let disks = (0..nodes.storage.len()).map(disk).collect::<Result<Vec<_>>>()?;
        let directories: Vec<PathBuf> = disks.iter().map(|disk| disk.data.clone()).collect();
        let server = own::serve_on(&nodes.head, &nodes.storage, &directories)?;
        Ok(Self { nodes, way, bytes_per_second, _server: server, _disks: disks })
    }

    /// Lets a client write until its bytes go to the data servers.
    fn warm(&self) -> Result<()> {
        for number in 0..WARM_RUNS {
            let before = self.nodes.see()?;
            self.run(&format!("warm{number}-"), &[0], WARM_BYTES)?;
            let seen = self.nodes.see()?.since(&before);
            if check::way(Architecture::Own, WARM_BYTES, &seen).is_ok() {
                break;
            }
            std::thread::sleep(WARM_PAUSE);
        }
        Ok(())
    }

    /// Lets all clients write at once, each `bytes`. Returns the MB/s of all together.
    fn write(&self, one_file: bool, bytes: u64) -> Result<f64> {
        let count = self.nodes.clients.len() as u64;
        let begins: Vec<u64> =
            (0..count).map(|number| if one_file { number * bytes } else { 0 }).collect();
        let before = self.nodes.see()?;
        let seconds = self.run(if one_file { "one" } else { "part" }, &begins, bytes)?;
        let seen = self.nodes.see()?.since(&before);
        // To the data servers, as the layouts of DAFS's own have it.
        check::way(Architecture::Own, bytes * count, &seen)?;
        let (rate, disks) = ((bytes * count) as f64 / seconds, self.nodes.storage.len());
        let most = (self.bytes_per_second * disks as u64) as f64;
        ensure!(
            rate <= most * TOLERANCE,
            "{:.1} MB/s were written to disks of {:.1} MB/s together",
            rate / 1e6,
            most / 1e6
        );
        Ok(rate / 1e6)
    }

    /// Runs a client for each of `begins`, where its part of the file begins. With the name "one" all have
    /// one file. Returns the seconds.
    fn run(&self, name: &str, begins: &[u64], bytes: u64) -> Result<f64> {
        let start = |(number, begin): (usize, &u64)| {
            let name = if name == "one" { name.to_owned() } else { format!("{name}{number}") };
            self.client(number, &name, [*begin, bytes, BLOCK as u64, begins.len() as u64])
        };
        let clients = begins.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
        Client::run_together(clients)
    }

    fn client(&self, number: usize, name: &str, numbers: [u64; 4]) -> Result<Client> {
        let head = self.nodes.head.address();
        let url = match self.way {
            Way::Nfs => format!("nfs://{head}:{}/?vers=4.1", own::NFS_PORT),
            Way::Dafs => format!("dafs://{head}:{}/?pnfs=yes", own::PORT),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["pnfs-load", &url, name, "write"]);
        // No pattern here builds a tree.
        command.args(numbers.map(|number| number.to_string())).arg(".");
        self.nodes.clients[number].inside(|| Client::start(&mut command))?
    }
}

/// A slow disk.
struct Disk {
    /// An empty directory on it.
    data: PathBuf,
    _holder: Process,
}

impl Disk {
    /// Mounts a new disk at `point`, in the mount namespace of the calling thread.
    fn make(point: &Path, bytes_per_second: u64) -> Result<Self> {
        std::fs::create_dir(point)?;
        let text = point.to_str().context("the directory's name is not UTF-8")?;
        let holder = Process::start(&["hold-disk", text, &bytes_per_second.to_string()])?;
        ensure!(holder.address == HELD, "there can be no slow disk at {text}");
        let data = point.join("data");
        std::fs::create_dir(&data)?;
        Ok(Self { data, _holder: holder })
    }
}

/// Holds a disk in a child until its parent is gone.
pub(crate) fn hold_disk(point: &Path, bytes_per_second: u64) -> Result<()> {
    leave_interrupts_to_parent()?;
    let image = point.with_extension("image");
    File::create(&image)?.set_len(IMAGE_BYTES)?;
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a name is not UTF-8");
    let (file, place) = (text(&image)?, text(point)?);
    // All of it is made now: no thread of the kernel writes to the disk later.
    let made = ["-q", "-F", "-O", "^has_journal", "-N", INODES, "-E", "lazy_itable_init=0", &file];
    peer::run("mkfs.ext4", made)?;
    peer::run("mount", ["-o", "loop", &file, &place])?;
    let _mounted = Mounted(place);
    // The mount has the content until its end.
    std::fs::remove_file(image)?;
    let _limited = Limited::set(std::fs::metadata(point)?.dev(), bytes_per_second)?;
    announce(HELD)?;
    wait_for_parent();
    Ok(())
}

/// A mount, which ends when this is dropped.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = peer::run("umount", ["-l", &self.0]);
    }
}

/// A device with a limit, which is taken away when this is dropped.
struct Limited {
    device: String,
}

impl Limited {
    fn set(device: u64, bytes_per_second: u64) -> Result<Self> {
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let limited = Self { device };
        limited.write(bytes_per_second)?;
        Ok(limited)
    }

    /// Writes a limit; 0 is none.
    fn write(&self, bytes_per_second: u64) -> Result<()> {
        let line = format!("{} {bytes_per_second}", self.device);
        std::fs::write(LIMITS, line).with_context(|| LIMITS.to_owned())
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_slower_than_links_with_any_number_of_clients() {
        const LINK: u64 = 12_500_000;
        for clients in 1..=8_usize {
            for disks in 2..=8_usize {
                let rate = disk_rate(clients, disks, LINK);
                assert!(rate > 0 && rate <= LINK / 3, "{clients} {disks}");
                assert!(rate * disks as u64 <= LINK * clients as u64 / 2, "{clients} {disks}");
            }
        }
        assert_eq!(disk_rate(8, 6, LINK), LINK / 3);
    }

    #[test]
    fn each_case_of_a_disk_has_a_name_of_its_own() {
        let [first, second] = CLIENTS.map(|(words, _)| words);
        assert_ne!(first, second);
        assert!(CLIENTS.iter().all(|(words, _)| words.ends_with(" on slow disks")));
    }
}
