//! Kerberos and TLS against AUTH_SYS in the clear: the same reads and writes of one file through our
//! own client, from one server.
//!
//! Each sample is a client process of its own, because the libraries of Kerberos take their
//! configuration from the environment of the process.

use crate::child::{Process, announce, wait_for_parent};
use crate::report::{Case, Measure, Report, Sample};
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use dafs_nfs_client::mount::{
    File, Memory, MemorySlice, Mount, MountOptions, NfsUrl, OpenOptions, PendingRead, PendingWrite,
    StableHow,
};
use dafs_server::{Config, Server};
use dafs_testkit::realm::Realm;
use dafs_tls::pki::Folder;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Size of the file; it fits the page cache of any machine.
const FILE_BYTES: u64 = 256 << 20;

const LARGE: usize = 1 << 20;

/// The operation that a client repeats.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reads anywhere.
    Read,
    /// Writes anywhere.
    Write,
    /// Connects, which establishes a context or makes a handshake.
    Connect,
}

/// A client.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Load {
    url: String,
    action: Action,
    /// Bytes of one operation.
    block: usize,
    /// Operations under way.
    depth: usize,
    milliseconds: u64,
    /// The process id of the server.
    server: u32,
}

/// Name, action, bytes, depth.
const LOADS: [(&str, Action, usize, usize); 4] = [
    ("read 4 KiB depth 32", Action::Read, 4096, 32),
    ("read 1 MiB depth 8", Action::Read, LARGE, 8),
    ("write 1 MiB depth 8", Action::Write, LARGE, 8),
    ("connect", Action::Connect, 0, 1),
];

/// A way of protection: its name, the options of its URL, and the targets of the loads.
struct Way {
    name: &'static str,
    options: &'static str,
    targets: [Option<&'static str>; LOADS.len()],
}

const FLOOR: &str = "sys";

/// Over TCP.
const TCP: [Way; 6] = [
    Way { name: FLOOR, options: "", targets: [None; 4] },
    Way {
        name: "krb5",
        options: "&sec=krb5",
        targets: [Some("server CPU at most 1.35"), None, None, Some("server at most 300 us more")],
    },
    Way {
        name: "krb5i",
        options: "&sec=krb5i",
        targets: [None, Some("at least 0.8 GB/s of one CPU"), None, None],
    },
    Way {
        name: "krb5p",
        options: "&sec=krb5p",
        targets: [None, Some("at least 0.41 GB/s of one CPU"), None, None],
    },
    Way {
        name: "tls",
        options: "&xprtsec=tls",
        targets: [None, Some("at most 1.6"), None, Some("server at most 300 us more")],
    },
    Way { name: "krb5 over tls", options: "&sec=krb5&xprtsec=tls", targets: [None; 4] },
];

/// Over RDMA there is no TLS for NFS (RFC 9289).
const RDMA: [Way; 4] = [
    Way { name: FLOOR, options: "", targets: [None; 4] },
    Way { name: "krb5", options: "&sec=krb5", targets: [None; 4] },
    Way { name: "krb5i", options: "&sec=krb5i", targets: [None; 4] },
    Way { name: "krb5p", options: "&sec=krb5p", targets: [None; 4] },
];

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let Some(realm) = Realm::start() else {
        println!("\nsecurity: SKIPPED, there is no KDC; run: scripts/setup.sh test");
        return Ok(());
    };
    let cache = realm.cache("anna.cache");
    realm.kinit("anna", &cache, &[]);
    let folder = tempfile::Builder::new().prefix("dafs-bench").tempdir_in("/dev/shm")?;
    let world = World { krb5_conf: realm.path("kdc-krb5.conf"), cache, folder: folder.path() };
    world.prepare(&realm)?;
    for (place, together) in [("both ends on one CPU", true), ("own CPUs", false)] {
        let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
        let server = world.serve(server_cpu)?;
        cpu::pin(0)?;
        let mut addresses = server.address.split(' ');
        let mut next = || addresses.next().context("an address is missing");
        for (transport, scheme, port, ways) in
            [("TCP", "nfs", next()?, &TCP[..]), ("iWARP", "nfs+rdma", next()?, &RDMA[..])]
        {
            let base = format!("{scheme}://localhost:{port}/data?vers=4.1");
            let cases = world.rounds(plan, &base, ways, server.id())?;
            report.add(&format!("security, NFSv4.1 over {transport}, {place}"), &cases);
        }
        cpu::unpin()?;
    }
    Ok(())
}

/// The files of the measurement.
struct World<'a> {
    krb5_conf: PathBuf,
    cache: String,
    folder: &'a Path,
}

impl World<'_> {
    fn prepare(&self, realm: &Realm) -> Result<()> {
        let export = self.folder.join("export");
        std::fs::create_dir(&export)?;
        let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
        std::fs::write(export.join("data"), &content)?;
        let now_seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let pki = Folder::create(&self.folder.join("pki"), "dafs-bench", now_seconds)?;
        pki.add_server(&["localhost".to_owned()], now_seconds)?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let text = format!(
            "listen = []\nthreads = 1\nstate_directory = \"state\"\n\
             [nfs]\nlisten = [\"127.0.0.1:0\"]\nrdma_listen = [\"127.0.0.1:0\"]\n\
             [kerberos]\nkeytab = \"{keytab}\"\nhost = \"localhost\"\n\
             [[identity]]\nmatch = \"anna@TEST.DAFS\"\nuser = {uid}\ngid = {gid}\n\
             [tls]\ncertificate = \"pki/server.pem\"\nkey = \"pki/server-key.pem\"\n\
             [[export]]\nname = \"data\"\npath = \"export\"\nsquash = \"none\"\n\
             unprivileged_ports = true\nsec = [\"sys\", \"krb5\", \"krb5i\", \"krb5p\"]\n",
            keytab = realm.path("server.keytab").display(),
            uid = uid.as_raw(),
            gid = gid.as_raw(),
        );
        Ok(std::fs::write(self.folder.join("dafs.toml"), text)?)
    }

    fn serve(&self, cpu: usize) -> Result<Process> {
        let config = self.folder.join("dafs.toml");
        let config = config.to_str().context("the directory's name is not UTF-8")?;
        Process::start_in(&["serve-secure", config, &cpu.to_string()], &self.environment())
    }

    fn environment(&self) -> [(&'static str, String); 2] {
        [("KRB5_CONFIG", self.krb5_conf.display().to_string()), ("KRB5CCNAME", self.cache.clone())]
    }

    fn rounds(&self, plan: &Plan, base: &str, ways: &[Way], server: u32) -> Result<Vec<Case>> {
        let wanted: Vec<_> =
            LOADS.iter().enumerate().filter(|(_, load)| load.0.contains(&plan.only)).collect();
        let mut cases = Vec::new();
        for &(number, (load, ..)) in &wanted {
            for way in ways {
                let mut case = Case::new(format!("{} {load}", way.name), None, way.targets[number]);
                if way.name != FLOOR {
                    case.floor = Some(format!("{FLOOR} {load}").into());
                    // The target of small reads is about the server alone.
                    let is_small = number == 0;
                    case.measure = if is_small { Measure::ServerCpu } else { Measure::Elapsed };
                }
                cases.push(case);
            }
        }
        for _ in 0..plan.rounds {
            let mut place = cases.iter_mut();
            for (_, (_, action, block, depth)) in &wanted {
                for way in ways {
                    let mut url = format!("{base}{}", way.options);
                    if way.options.contains("xprtsec") {
                        url += &format!("&ca={}/pki/ca.pem", self.folder.display());
                    }
                    let sample = self.sample(plan, &url, *action, (*block, *depth), server);
                    let sample = sample.with_context(|| format!("{} {action:?}", way.name))?;
                    place.next().context("a case without a place")?.samples.push(sample);
                }
            }
        }
        Ok(cases)
    }

    /// Runs one client.
    fn sample(
        &self,
        plan: &Plan,
        url: &str,
        action: Action,
        (block, depth): (usize, usize),
        server: u32,
    ) -> Result<Sample> {
        let action = format!("{action:?}").to_lowercase();
        let output = Command::new(std::env::current_exe()?)
            .args(["secure-load", url, &action, &block.to_string(), &depth.to_string()])
            .args([plan.milliseconds.to_string(), server.to_string()])
            .envs(self.environment())
            .output()?;
        let (text, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "the client has failed: {errors}");
        let numbers = String::from_utf8(text)?;
        let numbers: Result<Vec<u64>, _> = numbers.split_whitespace().map(str::parse).collect();
        let &[operations, bytes, elapsed, client, server] = &numbers?[..] else {
            anyhow::bail!("the client has not said what it did");
        };
        let time = Duration::from_nanos;
        let (client_cpu, server_cpu) = (time(client), time(server));
        Ok(Sample { operations, bytes, elapsed: time(elapsed), client_cpu, server_cpu })
    }
}

/// Serves a configuration. Announces the ports for TCP and for iWARP.
pub(crate) fn serve(config: &Path, cpu: usize) -> Result<()> {
    cpu::pin(cpu)?;
    let server = Server::start(&Config::load(config)?)?;
    let tcp = server.nfs_addresses().first().context("no address for NFS")?.port();
    let rdma = server.nfs_rdma_addresses();
    let rdma = rdma.first().context("no address for NFS over RDMA")?.port();
    announce(&format!("{tcp} {rdma}"))?;
    wait_for_parent();
    server.stop();
    Ok(())
}

impl Load {
    /// Runs, and prints its operations, their bytes, and the nanoseconds of the clock, of this process
    /// and of the server.
    pub(crate) fn run(&self) -> Result<()> {
        let url = NfsUrl::parse(&self.url)?;
        let sample = if self.action == Action::Connect {
            self.timed(|end| {
                let mut count = 0;
                while Instant::now() < end {
                    drop(Mount::connect(&url, &MountOptions::default())?);
                    count += 1;
                }
                Ok((count, 0))
            })?
        } else {
            let mount = Mount::connect(&url, &MountOptions::default())?;
            let options = match self.action {
                Action::Write => OpenOptions::write(),
                _ => OpenOptions::read(),
            };
            let file = mount.open(b"/data", &options)?;
            let memory = mount.allocate(self.block * self.depth)?;
            memory.view().fill(7);
            let sample = self.timed(|end| self.transfer(&file, &memory, end))?;
            file.close()?;
            sample
        };
        let nanoseconds = |time: Duration| time.as_nanos();
        println!(
            "{} {} {} {} {}",
            sample.operations,
            sample.bytes,
            nanoseconds(sample.elapsed),
            nanoseconds(sample.client_cpu),
            nanoseconds(sample.server_cpu)
        );
        Ok(())
    }

    fn timed(&self, work: impl FnOnce(Instant) -> Result<(u64, u64)>) -> Result<Sample> {
        let end = Instant::now() + Duration::from_millis(self.milliseconds);
        Sample::of(|| cpu::times(Some(self.server)), || work(end))
    }

    fn transfer(&self, file: &File, memory: &Memory, end: Instant) -> Result<(u64, u64)> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut waiting = VecDeque::new();
        let (mut operations, mut bytes) = (0, 0);
        let slots: Vec<MemorySlice> = (0..self.depth)
            .map(|slot| memory.slice(slot * self.block..(slot + 1) * self.block))
            .collect::<Option<_>>()
            .context("the memory is too short")?;
        for slot in (0..self.depth).cycle() {
            if waiting.len() == self.depth || Instant::now() >= end {
                let Some(call) = waiting.pop_front() else { break };
                bytes += wait(call)? as u64;
                operations += 1;
            }
            if Instant::now() < end {
                let offset = random.random_range(0..FILE_BYTES / self.block as u64);
                let (offset, slot) = (offset * self.block as u64, slots[slot].clone());
                waiting.push_back(match self.action {
                    Action::Write => {
                        Call::Write(file.submit_write(slot, offset, StableHow::Unstable)?)
                    }
                    _ => Call::Read(file.submit_read(slot, offset)?),
                });
            }
        }
        Ok((operations, bytes))
    }
}

/// An operation under way.
enum Call {
    Read(PendingRead),
    Write(PendingWrite),
}

fn wait(call: Call) -> Result<usize> {
    Ok(match call {
        Call::Read(read) => read.wait()?,
        Call::Write(write) => write.wait()?.bytes,
    })
}
