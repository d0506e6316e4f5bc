//! The transports alone: round trips and streams against a raw TCP socket and against memcpy.

mod pages;

use crate::child::{Process, announce, exit_with_parent};
use crate::report::{Case, Report, Sample};
use crate::{Plan, cpu, tcp};
use anyhow::{Context, Result, anyhow, bail};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, LocalSegment, MemoryRegion, Operation,
    ProtectionDomain, RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use pages::{FETCH_DEPTH, READS_MAX};
use rustix::event::{PollFd, PollFlags, poll};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

const SMALL: usize = 64;
const PAGE: usize = 4096;
const LARGE: usize = 1 << 20;
const STREAM_DEPTH: usize = 8;
/// The longest message by send.
const MESSAGE: usize = 8192;

/// The work of the other side before it answers a request.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    /// Answer with a message of this length.
    Reply(usize),
    /// RDMA-write this much into the buffer named, then answer.
    Write(usize),
    /// RDMA-read this much from the buffer named, then answer.
    Read(usize),
}

impl Ask {
    fn encode(self, remote: RemoteBuffer) -> [u8; SMALL] {
        let (kind, len) = match self {
            Ask::Reply(len) => (0, len),
            Ask::Write(len) => (1, len),
            Ask::Read(len) => (2, len),
        };
        let mut message = [0; SMALL];
        message[0] = kind;
        message[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
        message[8..12].copy_from_slice(&remote.key.to_ne_bytes());
        message[16..24].copy_from_slice(&remote.address.to_ne_bytes());
        message
    }

    fn decode(message: &[u8]) -> Option<(Self, RemoteBuffer)> {
        let len = u32::from_ne_bytes(message.get(4..8)?.try_into().ok()?);
        let key = u32::from_ne_bytes(message.get(8..12)?.try_into().ok()?);
        let address = u64::from_ne_bytes(message.get(16..24)?.try_into().ok()?);
        let ask = match message[0] {
            0 => Ask::Reply(len as usize),
            1 => Ask::Write(len as usize),
            _ => Ask::Read(len as usize),
        };
        Some((ask, RemoteBuffer { key, address, len }))
    }
}

/// An adapter with one connection and one registered buffer.
struct Side {
    adapter: Box<dyn Adapter>,
    domain: ProtectionDomain,
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    poll: bool,
    events: Vec<Event>,
}

impl Side {
    fn new(kind: &str, poll: bool) -> Result<Self> {
        let mut adapter: Box<dyn Adapter> = match kind {
            "iwarp" => Box::new(IwarpAdapter::new(IwarpConfig {
                inbound_reads_max: READS_MAX,
                outbound_reads_max: READS_MAX,
                ..IwarpConfig::default()
            })?),
            "shm" => Box::new(ShmAdapter::new(ShmConfig::default())?),
            _ => bail!("unknown transport {kind}"),
        };
        let domain = adapter.protection_domain();
        let buffer = adapter.allocate(STREAM_DEPTH * (LARGE + MESSAGE + SMALL))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(domain, buffer.clone(), access)?;
        Ok(Self { adapter, domain, buffer, region, poll, events: Vec::new() })
    }

    /// The bulk memory of a slot, its receive and its send.
    fn bulk(&self, slot: usize, len: usize) -> LocalSegment {
        self.region.local(slot * LARGE, len)
    }

    fn receive(&self, slot: usize) -> LocalSegment {
        self.region.local(STREAM_DEPTH * LARGE + slot * MESSAGE, MESSAGE)
    }

    fn send(&self, slot: usize) -> LocalSegment {
        self.region.local(STREAM_DEPTH * (LARGE + MESSAGE) + slot * SMALL, SMALL)
    }

    /// Waits for events, spinning or sleeping. Passes each to `handle` until that returns true.
    fn wait(&mut self, mut handle: impl FnMut(&mut Self, Event) -> Result<bool>) -> Result<()> {
        loop {
            let mut events = std::mem::take(&mut self.events);
            self.adapter.poll(Instant::now(), &mut events);
            let mut enough = false;
            let idle = events.is_empty();
            for event in events.drain(..) {
                enough |= handle(self, event)?;
            }
            self.events = events;
            if enough {
                return Ok(());
            }
            if idle && !self.poll && self.adapter.arm()? {
                let fd = self.adapter.descriptor().context("no descriptor to sleep on")?;
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
            }
        }
    }
}

/// The other side: does the requested work until its parent is gone.
pub(crate) fn serve(kind: &str, host: Ipv4Addr, poll: bool) -> Result<()> {
    exit_with_parent();
    let mut side = Side::new(kind, poll)?;
    let address = match kind {
        "shm" => Address::Shm(format!("dafs-bench-{}", std::process::id())),
        _ => Address::Tcp((host, 0).into()),
    };
    let listener = side.adapter.listen(&address)?;
    match side.adapter.listener_address(listener).context("no address")? {
        Address::Shm(name) => announce(&name)?,
        other => announce(&other.to_string())?,
    }
    side.wait(|side, event| {
        match event {
            Event::ConnectRequest { request, .. } => {
                let told = pages::encode(side.region.remote(0, LARGE as u32).context("outside")?);
                let endpoint = side.adapter.accept(request, side.domain, &told)?;
                for slot in 0..STREAM_DEPTH {
                    side.adapter.post_receive(endpoint, slot as u64, side.receive(slot))?;
                }
            }
            Event::Completion(done) => {
                let slot = (done.work & 0xff) as usize;
                match (done.operation, done.status) {
                    (_, WorkStatus::Flushed) => {}
                    (Operation::Receive, _) => answer(side, done.endpoint, slot)?,
                    (Operation::RdmaRead, _) => {
                        side.adapter.post_send(done.endpoint, slot as u64, &[side.send(slot)])?;
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        Ok(false)
    })
}

fn answer(side: &mut Side, endpoint: EndpointId, slot: usize) -> Result<()> {
    let mut message = [0; SMALL];
    let place = side.receive(slot);
    let view = side.buffer.slice(place.offset, SMALL).context("a slot outside the buffer")?;
    view.copy_to(&mut message, Site::Inspect);
    let (ask, remote) = Ask::decode(&message).context("a request that is none")?;
    let work = slot as u64;
    side.adapter.post_receive(endpoint, work, place)?;
    match ask {
        Ask::Reply(len) => side.adapter.post_send(endpoint, work, &[side.bulk(slot, len)])?,
        Ask::Write(len) => {
            side.adapter.rdma_write(endpoint, work, &[side.bulk(slot, len)], remote)?;
            side.adapter.post_send(endpoint, work, &[side.send(slot)])?;
        }
        Ask::Read(len) => side.adapter.rdma_read(endpoint, work, side.bulk(slot, len), remote)?,
    }
    Ok(())
}

fn run(
    side: &mut Side,
    endpoint: EndpointId,
    ask: Ask,
    depth: usize,
    time: Duration,
) -> Result<u64> {
    let start = std::time::Instant::now();
    let (mut operations, mut in_flight, mut more) = (0u64, 0, true);
    let expected = if let Ask::Write(len) = ask { len as u64 } else { 0 };
    let submit = move |side: &mut Side, slot: usize| -> Result<()> {
        let bulk = side.bulk(slot, LARGE);
        let remote = side.region.remote(bulk.offset, LARGE as u32).context("outside")?;
        let place = side.send(slot);
        let view = side.buffer.slice(place.offset, SMALL).context("outside")?;
        view.copy_from(&ask.encode(remote), Site::Inspect);
        side.adapter.post_receive(endpoint, slot as u64, side.receive(slot))?;
        side.adapter.expect_remote_writes(endpoint, expected * depth as u64);
        side.adapter.post_send(endpoint, 0x100 | slot as u64, &[place])?;
        Ok(())
    };
    for slot in 0..depth {
        submit(side, slot)?;
        in_flight += 1;
    }
    side.adapter.flush();
    // Replies come in order, so the slots of receives do too.
    side.wait(|side, event| {
        if let Event::Completion(done) = event
            && done.operation == Operation::Receive
        {
            if done.status == WorkStatus::Flushed {
                bail!("the connection broke");
            }
            operations += 1;
            in_flight -= 1;
            if more && operations & 15 == 0 {
                more = start.elapsed() < time;
            }
            if more {
                submit(side, done.work as usize)?;
                side.adapter.flush();
                in_flight += 1;
            }
        }
        Ok(in_flight == 0)
    })?;
    Ok(operations)
}

/// Starts the other side and connects to it. Returns its memory as well.
fn connect(
    kind: &str,
    cpu: usize,
    poll: bool,
) -> Result<(Process, Side, EndpointId, RemoteBuffer)> {
    let process = Process::start(&["transport", kind, &cpu.to_string(), &poll.to_string()])?;
    let Connected { side, endpoint, memory } = Connected::to(kind, poll, &process.address)?;
    Ok((process, side, endpoint, memory))
}

/// A connection to the other side.
pub(crate) struct Connected {
    side: Side,
    endpoint: EndpointId,
    /// The other side's memory.
    memory: RemoteBuffer,
}

impl Connected {
    pub(crate) fn to(kind: &str, poll: bool, address: &str) -> Result<Self> {
        let mut side = Side::new(kind, poll)?;
        let address = match kind {
            "shm" => Address::Shm(address.to_owned()),
            _ => Address::Tcp(address.parse()?),
        };
        let endpoint = side.adapter.connect(side.domain, &address, &[])?;
        let mut memory = None;
        side.wait(|_, event| match event {
            Event::Established { private_data, .. } => {
                memory = pages::decode(&private_data);
                Ok(true)
            }
            Event::ConnectFailed { error, .. } => Err(anyhow!("{error}")),
            _ => Ok(false),
        })?;
        Ok(Self { side, endpoint, memory: memory.context("no memory to read")? })
    }

    /// Lets the other side send a message of one byte, one at a time, or make RDMA writes of more
    /// bytes, as many at a time as there is memory for.
    pub(crate) fn receive(&mut self, bytes: usize, depth: usize, time: Duration) -> Result<u64> {
        let (ask, depth) = match bytes {
            1 => (Ask::Reply(1), 1),
            _ => (Ask::Write(bytes), depth.min(STREAM_DEPTH)),
        };
        run(&mut self.side, self.endpoint, ask, depth, time)
    }
}

fn remote(plan: &Plan, kind: &str, cpu: usize, poll: bool, ask: Ask) -> Result<Sample> {
    let (process, mut side, endpoint, _) = connect(kind, cpu, poll)?;
    let (depth, bytes) = match ask {
        Ask::Reply(len) => (1, len),
        Ask::Write(len) | Ask::Read(len) => (STREAM_DEPTH, len),
    };
    warmed(plan, &process, bytes, |time| run(&mut side, endpoint, ask, depth, time))
}

/// Measures operations of so many bytes against the other side, after a few of them. `work` does
/// them for a time, and returns their number.
fn warmed(
    plan: &Plan,
    other: &Process,
    bytes: usize,
    mut work: impl FnMut(Duration) -> Result<u64>,
) -> Result<Sample> {
    work(Duration::from_millis(20))?;
    Sample::of(
        || cpu::times(Some(other.id())),
        || {
            let operations = work(Duration::from_millis(plan.milliseconds))?;
            Ok((operations, operations * bytes as u64))
        },
    )
}

/// Copies 1 MiB over and over between two places that stay in the cache.
fn memcpy(plan: &Plan) -> Result<Sample> {
    let (source, target) = (Buffer::zeroed(LARGE)?, Buffer::zeroed(LARGE)?);
    let work = || {
        let start = std::time::Instant::now();
        let mut operations = 0;
        while operations & 15 != 0 || start.elapsed() < Duration::from_millis(plan.milliseconds) {
            target.view().copy_from_volatile(source.view(), Site::Inspect);
            operations += 1;
        }
        Ok((operations, operations * LARGE as u64))
    };
    Sample::of(|| cpu::times(None), work)
}

#[derive(Clone, Copy)]
enum Way {
    Memcpy,
    Pread,
    CopyChecked,
    Tcp {
        reply: usize,
        request: usize,
        depth: usize,
    },
    Dat(&'static str, Ask),
    /// RDMA reads of pages by the client: their number at once, and whether an entry follows each.
    Fetch(&'static str, (usize, bool)),
}

/// Name, floor, way.
const LIST: [(&str, Option<&str>, Way); 24] = {
    use Way::{CopyChecked, Dat, Fetch, Memcpy, Pread};
    let tcp = Some("tcp 4 KiB");
    let many = Some("tcp 4 KiB depth 32");
    let copy = Some("memcpy 1 MiB");
    [
        ("tcp 64 B", None, tcp_way(SMALL, SMALL, 1)),
        ("iwarp send 64 B", Some("tcp 64 B"), Dat("iwarp", Ask::Reply(SMALL))),
        ("shm send 64 B", Some("tcp 64 B"), Dat("shm", Ask::Reply(SMALL))),
        ("tcp 4 KiB", None, tcp_way(SMALL, PAGE, 1)),
        ("iwarp send 4 KiB", tcp, Dat("iwarp", Ask::Reply(PAGE))),
        ("shm send 4 KiB", tcp, Dat("shm", Ask::Reply(PAGE))),
        ("tcp 4 KiB depth 32", None, tcp_way(SMALL, PAGE, FETCH_DEPTH)),
        ("iwarp client reads 4 KiB", tcp, Fetch("iwarp", (1, false))),
        ("iwarp client reads 4 KiB and entry", tcp, Fetch("iwarp", (1, true))),
        ("iwarp client reads 4 KiB depth 32", many, Fetch("iwarp", (FETCH_DEPTH, false))),
        ("iwarp client reads 4 KiB and entry depth 32", many, Fetch("iwarp", (FETCH_DEPTH, true))),
        ("shm client reads 4 KiB", tcp, Fetch("shm", (1, false))),
        ("shm client reads 4 KiB and entry", tcp, Fetch("shm", (1, true))),
        ("shm client reads 4 KiB depth 32", many, Fetch("shm", (FETCH_DEPTH, false))),
        ("shm client reads 4 KiB and entry depth 32", many, Fetch("shm", (FETCH_DEPTH, true))),
        ("pread 4 KiB", None, Pread),
        ("copy 4 KiB, check entry", Some("pread 4 KiB"), CopyChecked),
        ("memcpy 1 MiB", None, Memcpy),
        ("tcp stream in 1 MiB", None, tcp_way(SMALL, LARGE, STREAM_DEPTH)),
        ("tcp stream out 1 MiB", None, tcp_way(LARGE, SMALL, 2)),
        ("iwarp RDMA write 1 MiB", Some("tcp stream in 1 MiB"), Dat("iwarp", Ask::Write(LARGE))),
        ("iwarp RDMA read 1 MiB", Some("tcp stream out 1 MiB"), Dat("iwarp", Ask::Read(LARGE))),
        ("shm RDMA write 1 MiB", copy, Dat("shm", Ask::Write(LARGE))),
        ("shm RDMA read 1 MiB", copy, Dat("shm", Ask::Read(LARGE))),
    ]
};

const fn tcp_way(request: usize, reply: usize, depth: usize) -> Way {
    Way::Tcp { reply, request, depth }
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let cpu = usize::from(cpu::cpu_count() > 1);
    cpu::pin(0)?;
    let groups = [("poll", true), ("sleep", false)];
    for (wake, poll) in groups.into_iter().filter(|(wake, _)| wake.contains(&plan.wake)) {
        let mut list: Vec<(Case, Way)> =
            LIST.iter().map(|(name, floor, way)| (Case::new(*name, *floor, None), *way)).collect();
        list.retain(|(case, _)| case.name.contains(&plan.only));
        for _ in 0..plan.rounds {
            for (case, way) in &mut list {
                let sample = match *way {
                    Way::Memcpy => memcpy(plan)?,
                    Way::Pread => pages::pread(plan)?,
                    Way::CopyChecked => pages::copy_checked(plan)?,
                    Way::Tcp { request, reply, depth } => {
                        tcp::measure(plan, cpu, poll, request, reply, depth)?
                    }
                    Way::Dat(kind, ask) => {
                        remote(plan, kind, cpu, poll, ask).with_context(|| case.name.clone())?
                    }
                    Way::Fetch(kind, shape) => pages::fetched(plan, kind, cpu, poll, shape)
                        .with_context(|| case.name.clone())?,
                };
                case.samples.push(sample);
            }
        }
        let cases: Vec<Case> = list.into_iter().map(|(case, _)| case).collect();
        report.add(&format!("transports: {wake}, own CPUs"), &cases);
    }
    cpu::unpin()
}
