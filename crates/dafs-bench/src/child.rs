//! The processes at the other end of a measurement.

use crate::{
    Child, cpu, folder, fronts, limit, link, papers, peer, pnfs, security, tcp, transport,
};
use anyhow::{Context, Result, anyhow, ensure};
use dafs_client::DafsUrl;
use dafs_server::{Config, Server};
use dafs_service::{AddressRange, OptimisticReads, Squash};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Runs as a child until its standard input ends, which it does with the parent.
pub(crate) fn run(child: Child) -> Result<()> {
    match child {
        Child::ServeConfig { config } => pnfs::serve(&config),
        Child::ServeData { directory, secret, host } => pnfs::serve_data(&directory, &secret, host),
        Child::ServeStriped { names, secret, host, controls } => {
            pnfs::serve_names(&names, &secret, host, &controls)
        }
        Child::ServeSecure { config, cpu } => security::serve(&config, cpu),
        Child::SecureLoad(load) => load.run(),
        Child::HoldDisk { point, bytes_per_second } => pnfs::hold_disk(&point, bytes_per_second),
        Child::HoldFolder { folder } => folder::hold(&folder),
        Child::HoldLimit { resource, amount } => limit::hold(resource, amount),
        Child::HoldMount { point, command } => fronts::hold_mount(&point, &command),
        Child::HoldNetwork => link::hold(),
        Child::PnfsLoad(load) => load.run(),
        Child::PnfsHere(here) => here.measure(),
        Child::Pnfs(options) => options.measure(),
        Child::PapersLoad(load) => load.run(),
        Child::PapersPages(reads) => reads.run(),
        Child::Papers(options) => options.measure(),
        Child::ServeGanesha { export, folder, cpu } => peer::serve(&export, &folder, cpu),
        Child::ServeSlowDisk { cpu } => papers::serve_slow_disk(cpu),
        Child::ServeAll { directory, host, cpu } => serve_all(&directory, host, cpu),
        Child::Tcp { cpu, poll, host } => {
            cpu::pin(cpu)?;
            tcp::serve(host, poll)
        }
        Child::Transport { kind, cpu, poll, host } => {
            cpu::pin(cpu)?;
            transport::serve(&kind, host, poll)
        }
        Child::ServeNfs { directory, cpu, pool } => serve_nfs(&directory, cpu, pool),
        Child::Serve { directory, cpu, wake, optimistic, pool } => {
            cpu::pin(cpu)?;
            serve(&directory, &wake, optimistic, pool)
        }
        Child::ServeSharing { directory, durable_replies, port, cpu } => {
            let mut config = Config::for_directory(directory.clone());
            if let Some(cpu) = cpu {
                cpu::pin(cpu)?;
                config.threads = 1;
            }
            config.listen = vec![([127, 0, 0, 1], port).into()];
            config.nfs.listen = vec![([127, 0, 0, 1], 0).into()];
            let export = &mut config.exports[0].options;
            export.squash = Squash::None;
            export.admits.unprivileged_ports = true;
            let durable_replies = durable_replies.parse();
            export.durable_replies = durable_replies.map_err(|text: String| anyhow!(text))?;
            config.state_directory = Some(directory.with_extension("state"));
            let server = Server::start(&config)?;
            let nfs = server.nfs_addresses().first().context("no address for NFS")?;
            announce(&format!("{} {nfs}", server.url()))?;
            wait_for_parent();
            server.stop();
            Ok(())
        }
    }
}

/// Serves a folder until the parent ends, in one thread. With `optimistic` it shows files to clients in so
/// many bytes of memory, and announces its metrics as well.
fn serve(directory: &Path, wake: &str, optimistic: Option<usize>, pool: bool) -> Result<()> {
    let mut config = Config::for_directory(directory.to_owned());
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config.exports[0].options.squash = Squash::None;
    if let Some(bytes) = optimistic {
        config.exports[0].options.optimistic = OptimisticReads::Remote;
        config.optimistic_memory_bytes = bytes;
        config.metrics_listen = Some(([127, 0, 0, 1], 0).into());
    }
    config.read_rings = !pool;
    config.state_directory = Some(directory.with_extension("state"));
    config.threads = 1;
    config.wake = wake.parse().map_err(|text: String| anyhow!(text))?;
    let server = Server::start(&config)?;
    let metrics = server.metrics_address().map(|address| format!(" {address}"));
    announce(&format!("{}{}", server.url(), metrics.unwrap_or_default()))?;
    wait_for_parent();
    server.stop();
    Ok(())
}

/// Serves a directory by NFS and NFS over RDMA. Announces both addresses.
fn serve_nfs(directory: &Path, cpu: usize, pool: bool) -> Result<()> {
    cpu::pin(cpu)?;
    let mut config = Config::for_directory(directory.to_owned());
    config.listen.clear();
    config.nfs.listen = vec![([127, 0, 0, 1], 0).into()];
    config.nfs.rdma_listen = Some(vec![([127, 0, 0, 1], 0).into()]);
    config.exports[0].options.squash = Squash::None;
    config.exports[0].options.admits.unprivileged_ports = true;
    config.read_rings = !pool;
    config.state_directory = Some(directory.with_extension("state"));
    config.threads = 1;
    let server = Server::start(&config)?;
    let address = server.nfs_addresses().first().context("no address for NFS")?;
    let rdma = server.nfs_rdma_addresses();
    let rdma = rdma.first().context("no address for NFS over RDMA")?;
    announce(&format!("{address} {rdma}"))?;
    wait_for_parent();
    server.stop();
    Ok(())
}

/// Serves a directory at `host` by DAFS, NFS and NFS over RDMA. Announces the three ports.
fn serve_all(directory: &Path, host: Ipv4Addr, cpu: usize) -> Result<()> {
    cpu::pin(cpu)?;
    let mut config = Config::for_directory(directory.to_owned());
    config.listen = vec![(host, 0).into()];
    config.nfs.listen = vec![(host, 0).into()];
    config.nfs.rdma_listen = Some(vec![(host, 0).into()]);
    // The addresses of nodes (`link`), which no other host has.
    let nodes: AddressRange = "10.77.0.0/24".parse().map_err(|text: String| anyhow!(text))?;
    config.auth.trusted.push(nodes);
    config.auth.allow_unauthenticated_remote_clients = true;
    let export = &mut config.exports[0].options;
    export.squash = Squash::None;
    export.admits.networks.push(nodes);
    export.admits.unprivileged_ports = true;
    config.state_directory = Some(directory.with_extension("state"));
    config.threads = 1;
    // NFS clients of a long run renew no lease between their samples.
    config.lease_time = Duration::from_secs(3600);
    let server = Server::start(&config)?;
    let dafs = server.addresses().first().context("no address for DAFS")?.port();
    let nfs = server.nfs_addresses().first().context("no address for NFS")?.port();
    let rdma = server.nfs_rdma_addresses();
    let rdma = rdma.first().context("no address for NFS over RDMA")?.port();
    announce(&format!("{dafs} {nfs} {rdma}"))?;
    wait_for_parent();
    server.stop();
    Ok(())
}

/// The number of DAFS requests for an operation in the metrics, which list only operations that were requested.
fn count_of(metrics: &str, operation: &str) -> Result<u64> {
    let name = "dafs_operation_duration_seconds_count";
    let prefix = format!("{name}{{front_end=\"dafs\",operation=\"{operation}\"}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
    Ok(value.map(str::parse::<u64>).transpose()?.unwrap_or_default())
}

/// Prints the address to connect to, for the parent.
pub(crate) fn announce(address: &str) -> Result<()> {
    println!("{address}");
    std::io::stdout().flush()?;
    Ok(())
}

/// Returns when the parent has closed its end.
pub(crate) fn wait_for_parent() {
    let _ = std::io::stdin().read(&mut [0]);
}

/// Lets this process survive a terminal's interrupt, which reaches the parent as well: it has to tidy
/// up when the parent is gone.
pub(crate) fn leave_interrupts_to_parent() -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// Waits until a child has said something or has ended. A child that does neither in so many seconds hangs.
pub(crate) fn await_word(output: &BufReader<ChildStdout>, seconds: i64) -> Result<()> {
    if !output.buffer().is_empty() {
        return Ok(());
    }
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let words = poll(&mut [PollFd::new(output.get_ref(), PollFlags::IN)], Some(&timeout))?;
    ensure!(words > 0, "a child has said nothing for {seconds} seconds");
    Ok(())
}

/// Ends this process when the parent is gone.
pub(crate) fn exit_with_parent() {
    std::thread::spawn(|| {
        wait_for_parent();
        std::process::exit(0);
    });
}

/// Time for a child to end by itself: a mount's holder waits for the process that serves it.
const END_TIME: Duration = Duration::from_secs(60);

/// A child process. On drop its input ends, and it with that, or it is killed.
pub(crate) struct Process {
    child: std::process::Child,
    /// The line that it has printed.
    pub(crate) address: String,
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_in(arguments, &[])
    }

    /// Starts it with further variables of the environment.
    pub(crate) fn start_in(arguments: &[&str], variables: &[(&str, String)]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other side of the benchmark")?;
        let output = child.stdout.take().context("the child has no output")?;
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }

    pub(crate) fn serve(directory: &Path, cpu: usize, wake: &str) -> Result<Self> {
        let directory = directory.to_str().context("the directory's name is not UTF-8")?;
        Self::start(&["serve", directory, &cpu.to_string(), wake])
    }

    /// A dafs server whose pool reads from the disk, also where the kernel has io_uring.
    pub(crate) fn serve_by_pool(directory: &Path, cpu: usize, wake: &str) -> Result<Self> {
        let directory = directory.to_str().context("the directory's name is not UTF-8")?;
        Self::start(&["serve", directory, &cpu.to_string(), wake, "--pool"])
    }

    /// A dafs server that shows files to clients, in so many bytes of memory. Its second address is that of
    /// its metrics.
    pub(crate) fn serve_optimistic(
        directory: &Path,
        cpu: usize,
        wake: &str,
        bytes: u64,
    ) -> Result<Self> {
        let directory = directory.to_str().context("the directory's name is not UTF-8")?;
        let (cpu, bytes) = (cpu.to_string(), format!("--optimistic={bytes}"));
        Self::start(&["serve", directory, &cpu, wake, &bytes])
    }

    /// A dafs server for NFS alone.
    pub(crate) fn serve_nfs(directory: &Path, cpu: usize) -> Result<Self> {
        let directory = directory.to_str().context("the directory's name is not UTF-8")?;
        Self::start(&["serve-nfs", directory, &cpu.to_string()])
    }

    /// The same, with a pool that reads from the disk, also where the kernel has io_uring.
    pub(crate) fn serve_nfs_by_pool(directory: &Path, cpu: usize) -> Result<Self> {
        let directory = directory.to_str().context("the directory's name is not UTF-8")?;
        Self::start(&["serve-nfs", directory, &cpu.to_string(), "--pool"])
    }

    /// A dafs server for DAFS and NFS; port 0 picks a free one.
    pub(crate) fn serve_sharing(
        directory: &Path,
        durable_replies: &str,
        port: u16,
        cpu: Option<usize>,
    ) -> Result<Self> {
        let directory = directory.to_str().context("the directory's name is not UTF-8")?;
        let (port, cpu) = (port.to_string(), cpu.map(|cpu| cpu.to_string()));
        let mut arguments = vec!["serve-sharing", directory, durable_replies, &port];
        arguments.extend(cpu.as_deref());
        Self::start(&arguments)
    }

    /// The DAFS address of a server that has announced several.
    pub(crate) fn url(&self) -> Result<DafsUrl> {
        self.file_url("")
    }

    /// The same with the name of a file.
    pub(crate) fn file_url(&self, name: &str) -> Result<DafsUrl> {
        let url = self.address.split(' ').next().context("no address")?;
        Ok(DafsUrl::parse(&format!("{url}{name}"))?)
    }

    /// The number of requests that have read files of a server with metrics. Hits are no requests.
    pub(crate) fn read_requests(&self) -> Result<u64> {
        let address = self.address.split(' ').nth(1).context("no address of metrics")?;
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        ensure!(text.contains("# EOF"), "the metrics are not whole: {text}");
        Ok(count_of(&text, "READ_INLINE")? + count_of(&text, "READ_DIRECT")?)
    }

    pub(crate) fn dafs_address(&self) -> Result<SocketAddr> {
        let url = self.url()?;
        Ok((Ipv4Addr::LOCALHOST, url.port()).into())
    }

    /// The NFS address of a server for DAFS and NFS.
    pub(crate) fn nfs_address(&self) -> Result<SocketAddr> {
        Ok(self.address.split(' ').nth(1).context("no address for NFS")?.parse()?)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Kills it, without any cleanup.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The port of the first announced address.
    pub(crate) fn port(&self) -> Result<u16> {
        let first = self.address.split(' ').next().context("no address")?;
        Ok(first.parse::<SocketAddr>()?.port())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let end = Instant::now() + END_TIME;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                eprintln!("a child of the benchmark does not end, and is killed");
                let _ = self.child.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_hangs_is_found_and_one_that_ends_is_none() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().expect("it starts")
        };
        let mut child = start("read -r line; echo one; echo two");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let error = await_word(&output, 0).expect_err("it waits for its input").to_string();
        assert_eq!(error, "a child has said nothing for 0 seconds");
        drop(child.stdin.take());
        for word in ["one\n", "two\n", ""] {
            await_word(&output, 60).expect("a word, or its end");
            let mut line = String::new();
            output.read_line(&mut line).expect("a line");
            assert_eq!(line, word);
        }
        child.wait().expect("it ends");
    }

    #[test]
    fn requests_are_counted_by_operation() {
        let metrics = "\
            # TYPE dafs_operation_duration_seconds histogram\n\
            dafs_operation_duration_seconds_count{front_end=\"nfs4\",operation=\"READ\"} 5\n\
            dafs_operation_duration_seconds_count{front_end=\"dafs\",operation=\"READ_DIRECT\"} 7\n\
            dafs_operation_duration_seconds_bucket{le=\"1\",front_end=\"dafs\",operation=\"READ_DIRECT\"} 8\n\
            # EOF\n";
        assert_eq!(count_of(metrics, "READ_DIRECT").expect("a number"), 7);
        assert_eq!(count_of(metrics, "READ_INLINE").expect("none is listed"), 0);
    }
}
