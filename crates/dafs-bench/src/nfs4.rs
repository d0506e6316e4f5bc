//! NFSv4.1 through our own client, and the memory of a server with many idle clients.

use crate::cpu;
use crate::report::Sample;
use anyhow::{Context, Result};
use dafs_dat::Address;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_nfs_client::{
    Connection, Handle, OpenOptions, Options, PendingCompound, Port, RpcOptions, Session, connect,
    connect_over, patiently, read_result,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest read.
const LARGE: u32 = 1 << 20;

/// The limit of results over RDMA. With all headers they fit a message of 4096 bytes, so that no reply
/// is placed by RDMA.
const INLINE_RESULTS_BYTES: usize = 3000;

/// The operation that is repeated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    /// Reads of so many bytes of "data": anywhere, or from front to back.
    Read { bytes: u32, random: bool },
    /// Attributes of "data".
    Getattr,
}

pub(crate) const READ_4K: Load = Load::Read { bytes: 4096, random: true };
pub(crate) const READ_1M: Load = Load::Read { bytes: LARGE, random: false };

/// A client with a file open.
pub(crate) struct Client {
    session: Session,
    file: Handle,
    stateid: dafs_wire::nfs4::Stateid,
    file_bytes: u64,
}

/// A client with a name of its own for each number.
pub(crate) fn options(number: usize) -> Options {
    let owner = format!("dafs-bench {number}");
    Options { minor_version: 1, back_slots: 0, ..Options::new(owner.as_bytes()) }
}

impl Client {
    /// Connects and opens `path`, from the server's root.
    pub(crate) fn open(server: SocketAddr, path: &str) -> Result<Self> {
        Self::with(patiently(|| connect(server, &options(0)))?, path)
    }

    /// The same over RDMA, with all results inside messages. Reads are of 2 KiB at most.
    pub(crate) fn open_inline(server: SocketAddr, path: &str) -> Result<Self> {
        let port = Port::new(Box::new(IwarpAdapter::new(IwarpConfig::default())?))?;
        // Another client than that of TCP, because both may use one server.
        let options = options(1);
        let rpc = RpcOptions {
            identity: options.identity.clone(),
            results_bytes_max: INLINE_RESULTS_BYTES,
            ..RpcOptions::default()
        };
        let address = Address::Tcp(server);
        let connection = || Connection::open_rdma(&port, &address, rpc.clone());
        Self::with(patiently(|| connect_over(connection()?, &options))?, path)
    }

    fn with(session: Session, path: &str) -> Result<Self> {
        let directory = session.lookup_path(path)?;
        let open = || session.open(&directory, b"data", &OpenOptions::default());
        let opened = patiently(open)?;
        let file_bytes = session.stat(&opened.handle)?.size;
        Ok(Self { file: opened.handle, stateid: opened.stateid, file_bytes, session })
    }

    /// Runs a load with `depth` calls outstanding.
    pub(crate) fn run(
        &self,
        load: Load,
        depth: usize,
        milliseconds: u64,
        server: u32,
    ) -> Result<Sample> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut buffer = vec![0; LARGE as usize];
        let mut waiting: VecDeque<PendingCompound> = VecDeque::new();
        let (mut operations, mut bytes, mut next) = (0, 0, 0u64);
        let server_before = cpu::process_time(Some(server))?;
        let client_before = cpu::process_time(None)?;
        let began = Instant::now();
        let end = began + Duration::from_millis(milliseconds);
        loop {
            // At least one call, however late this thread runs.
            let is_first = operations == 0 && waiting.is_empty();
            while waiting.len() < depth && (is_first || Instant::now() < end) {
                let call = match load {
                    Load::Read { bytes, random: is_random } => {
                        let blocks = self.file_bytes / u64::from(bytes);
                        let block =
                            if is_random { random.random_range(0..blocks) } else { next % blocks };
                        next += 1;
                        let offset = block * u64::from(bytes);
                        self.session.queue_read(&self.file, self.stateid, offset, bytes)
                    }
                    Load::Getattr => self.session.queue(false, |compound| {
                        use dafs_wire::nfs4::{GetattrArgs, Op, PutfhArgs};
                        let request = dafs_nfs_client::STAT;
                        compound
                            .op(&Op::Putfh(PutfhArgs { handle: &self.file.0 }))
                            .op(&Op::Getattr(GetattrArgs { request }));
                    }),
                };
                waiting.push_back(call?);
            }
            let Some(call) = waiting.pop_front() else { break };
            let mut results = call.wait()?;
            if !matches!(load, Load::Getattr) {
                bytes += read_result(&mut results, &mut buffer)?.0 as u64;
            }
            operations += 1;
        }
        Ok(Sample {
            operations,
            bytes,
            elapsed: began.elapsed(),
            client_cpu: cpu::process_time(None)?.saturating_sub(client_before),
            server_cpu: cpu::process_time(Some(server))?.saturating_sub(server_before),
        })
    }
}

pub(crate) fn idle_clients_bytes(server: SocketAddr, pid: u32, count: usize) -> Result<usize> {
    let before = crate::memory::resident_bytes(pid)?;
    let sessions = (1..=count).map(|number| patiently(|| connect(server, &options(number))));
    let sessions = sessions.collect::<Result<Vec<_>, _>>().context("not all clients got in")?;
    let after = crate::memory::resident_bytes(pid)?;
    drop(sessions);
    Ok(after.saturating_sub(before))
}
