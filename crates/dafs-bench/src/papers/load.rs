//! The client of a way: a process of its own, so that its processor time and its copies are its own.
//! It measures cells that its input names, one in a line, and answers each with a line.

use super::cells::{Cell, Order, UNDER_WAY_MAX, Way};
use super::join::{self, DafsTable, NfsTable};
use super::results::Sample;
use crate::child::{announce, await_word};
use crate::{cpu, files, nfs4, rdma, report, tcp, transport};
use anyhow::{Context, Result, bail, ensure};
use dafs_client::{Client, ConnectOptions, DafsUrl, File, IoBuffer, OpenOptions, TransportChoice};
use dafs_mem::{Site, copied_bytes};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Bytes of a request of the TCP floor.
const REQUEST_BYTES: usize = 64;

/// The longest wait for a client's answer, which is far more than a sample takes.
const ANSWER_SECONDS: i64 = 60;

/// The word of a client that is connected.
const READY: &str = "ready";

/// A client.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Load {
    way: Way,
    /// The address of the server, as its way names it.
    address: String,
    /// The process id of the server.
    server: u32,
}

/// A connection of a way, with memory for the most that is under way.
enum Connection {
    Dafs { client: Client, file: File, buffer: IoBuffer },
    Session(nfs4::Client),
    Mount(rdma::Target),
    Tcp(String),
    Rdma(transport::Connected),
}

impl Load {
    pub(crate) fn run(&self) -> Result<()> {
        let mut connection = Connection::open(self.way, &self.address)?;
        announce(READY)?;
        for line in std::io::stdin().lines() {
            let (milliseconds, cell): (u64, Cell) = serde_json::from_str(&line?)?;
            let before = copied();
            let sample = connection.measure(&cell, milliseconds, self.server)?;
            let copied_bytes = Some(copied() - before);
            let sample = Sample { copied_bytes, ..sample.into() };
            announce(&serde_json::to_string(&sample)?)?;
        }
        Ok(())
    }
}

/// Bytes that this process has copied outside of the transports, which stand for an adapter.
fn copied() -> u64 {
    let of_transport = |site: &&Site| {
        ["iwarp_", "shm_", "inspect"].iter().any(|name| site.label().starts_with(name))
    };
    Site::ALL.iter().filter(|site| !of_transport(site)).map(|site| copied_bytes(*site)).sum()
}

impl Connection {
    fn open(way: Way, address: &str) -> Result<Self> {
        let dafs = |transport: TransportChoice| -> Result<Self> {
            let url = DafsUrl::parse(address)?;
            let mut options = ConnectOptions { transport, ..ConnectOptions::default() };
            if way == Way::DafsDirect {
                options.inline_bytes = 0;
            }
            let client = Client::connect(&url, &options)?;
            let file = client.open(url.path(), &OpenOptions::read())?;
            let buffer = client.buffer(UNDER_WAY_MAX)?;
            // The first touch of a page costs more than a read.
            buffer.view().fill(7);
            Ok(Self::Dafs { client, file, buffer })
        };
        let mount = || -> Result<Self> {
            let target = rdma::Target::connect(address, files::FILE_BYTES, UNDER_WAY_MAX)?;
            target.memory().view().fill(7);
            Ok(Self::Mount(target))
        };
        match way {
            Way::Tcp => Ok(Self::Tcp(address.to_owned())),
            Way::Rdma => Ok(Self::Rdma(transport::Connected::to("iwarp", false, address)?)),
            Way::DafsIwarp | Way::DafsDirect => dafs(TransportChoice::Iwarp),
            Way::DafsShm => dafs(TransportChoice::Shm),
            Way::NfsTcp => Ok(Self::Session(nfs4::Client::open(address.parse()?, "")?)),
            Way::NfsInline => Ok(Self::Session(nfs4::Client::open_inline(address.parse()?, "")?)),
            Way::NfsDirect | Way::NocopyIwarp | Way::NocopyShm | Way::Prepost => mount(),
            Way::Libnfs => bail!("this way has a program of its own"),
        }
    }

    fn measure(&mut self, cell: &Cell, milliseconds: u64, server: u32) -> Result<report::Sample> {
        let Cell { block, depth, order, .. } = *cell;
        ensure!(block * depth <= UNDER_WAY_MAX, "too many bytes under way");
        let time = Duration::from_millis(milliseconds);
        let random = order == Order::Random;
        let is_copied = order == Order::CopiedJoin;
        let of = |work: &mut dyn FnMut() -> Result<u64>| {
            report::Sample::of(
                || cpu::times(Some(server)),
                || work().map(|operations| (operations, operations * block as u64)),
            )
        };
        match self {
            Self::Dafs { file, buffer, .. } if order.is_join() => {
                let table = DafsTable { file, buffer, block };
                of(&mut || join::run(&table, block, depth, is_copied, time))
            }
            Self::Mount(target) if order.is_join() => {
                let table = NfsTable { target, block };
                of(&mut || join::run(&table, block, depth, is_copied, time))
            }
            _ if order.is_join() => bail!("this way has no join"),
            Self::Dafs { client, file, buffer } => {
                let load = files::Load::Read { bytes: block, depth, random };
                of(&mut || files::run(client, file, buffer, load, time))
            }
            Self::Session(client) => {
                let load = nfs4::Load::Read { bytes: u32::try_from(block)?, random };
                client.run(load, depth, milliseconds, server)
            }
            Self::Mount(target) => {
                let load = rdma::Load { write: false, random };
                rdma::run(target, load, block, depth, time, server)
            }
            Self::Tcp(address) => {
                let mut exchange =
                    tcp::Exchange::connect(address, false, REQUEST_BYTES, block, depth)?;
                // The connections of the other ways are old. The bytes of this count as those of the
                // sample, which has about three times as many at least.
                exchange.warm()?;
                of(&mut || exchange.run(time))
            }
            Self::Rdma(connected) => of(&mut || connected.receive(block, depth, time)),
        }
    }
}

/// A client that has been started. It ends with this.
pub(super) struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a client in the network of the calling thread and waits until it is connected.
    pub(super) fn start(way: Way, address: &str, server: u32) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["papers-load", way.name(), address, &server.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut running = Self { child, output };
        ensure!(running.line()? == READY, "a client cannot connect: {} {address}", way.name());
        Ok(running)
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> Result<String> {
        await_word(&self.output, ANSWER_SECONDS)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    pub(super) fn sample(&mut self, cell: &Cell, milliseconds: u64) -> Result<Sample> {
        let input = self.child.stdin.as_mut().context("no input")?;
        writeln!(input, "{}", serde_json::to_string(&(milliseconds, cell))?)?;
        serde_json::from_str(&self.line()?).context("a client has failed")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
