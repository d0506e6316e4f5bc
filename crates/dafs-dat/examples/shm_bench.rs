//! Measures the shared-memory provider between two threads on two processors: round trips of a
//! small message, polling and sleeping, alone and with 4 KiB of RDMA before the reply, and the
//! bandwidth of 1 MiB writes. Prints the best and the median of many short rounds, so that other
//! load on the machine does little harm.

use dafs_dat::shm::{ShmAdapter, ShmConfig};
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, MemoryRegion, Operation, RemoteBuffer,
};
use dafs_mem::{Buffer, Site, VolatileSlice};
use std::error::Error;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

const ROUNDS: usize = 60;
const SMALL: usize = 64;
const BLOCK: usize = 4096;
const LARGE: usize = 1 << 20;
const POLLS_PER_CLOCK: u32 = 32;

/// What the server does before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Nothing.
    Answer,
    /// An RDMA write.
    Write,
    /// A copy into the client's memory itself.
    Mapped,
    /// An RDMA read.
    Read,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    task: Task,
    bytes: usize,
    /// The client's memory can be shown to the server.
    shared: bool,
    sleeping: bool,
    round_trips: usize,
}

const fn case(name: &'static str, task: Task, bytes: usize) -> Case {
    Case { name, task, bytes, shared: true, sleeping: false, round_trips: 2000 }
}

const CASES: &[Case] = &[
    case("64 B message, polling", Task::Answer, 0),
    Case { sleeping: true, round_trips: 200, ..case("64 B message, sleeping", Task::Answer, 0) },
    case("+ 4 KiB RDMA write", Task::Write, BLOCK),
    case("+ 4 KiB copy through a window", Task::Mapped, BLOCK),
    case("+ 4 KiB RDMA read", Task::Read, BLOCK),
    Case { shared: false, ..case("+ 4 KiB staged write", Task::Write, BLOCK) },
    Case { shared: false, ..case("+ 4 KiB staged read", Task::Read, BLOCK) },
    Case { round_trips: 40, ..case("+ 1 MiB RDMA write", Task::Write, LARGE) },
    Case { round_trips: 40, ..case("+ 1 MiB copy through a window", Task::Mapped, LARGE) },
    Case { shared: false, round_trips: 40, ..case("+ 1 MiB staged write", Task::Write, LARGE) },
    Case { shared: false, round_trips: 40, ..case("+ 1 MiB staged read", Task::Read, LARGE) },
];

/// One end of the connection with its memory.
struct Side {
    adapter: ShmAdapter,
    endpoint: EndpointId,
    messages: MemoryRegion,
    data: MemoryRegion,
    buffer: Arc<Buffer>,
    events: Vec<Event>,
    sleeping: bool,
    now: Instant,
}

type Failure = Box<dyn Error + Send + Sync>;

fn pin(cpu: usize) {
    // SAFETY: an all-zero set is valid, and the call reads the set it is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

impl Side {
    fn new(config: ShmConfig, shared: bool, sleeping: bool) -> Result<Self, Failure> {
        let mut adapter = ShmAdapter::new(config)?;
        let domain = adapter.protection_domain();
        let messages = adapter.allocate(2 * BLOCK)?;
        let messages = adapter.register(domain, messages, Access::LOCAL_WRITE)?;
        let buffer =
            if shared { adapter.allocate(LARGE)? } else { Arc::new(Buffer::zeroed(LARGE)?) };
        buffer.view().fill(1);
        let data = adapter.register(domain, buffer.clone(), Access::all())?;
        let (endpoint, events) = (EndpointId(0), Vec::new());
        let now = Instant::now();
        Ok(Self { adapter, endpoint, messages, data, buffer, events, sleeping, now })
    }

    /// Polls, and sleeps if that is the policy, until something has happened.
    fn turn(&mut self) -> io::Result<()> {
        self.events.clear();
        // The time only drives timeouts, so it need not be read for every poll.
        let mut polls = 0u32;
        while self.adapter.poll(self.now, &mut self.events) == 0 {
            polls += 1;
            if self.sleeping || polls.is_multiple_of(POLLS_PER_CLOCK) {
                self.now = Instant::now();
            }
            if !self.sleeping {
                std::hint::spin_loop();
            } else if self.adapter.arm()? {
                let Some(descriptor) = self.adapter.descriptor() else { continue };
                let mut wait =
                    libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid entry, as the count says.
                unsafe { libc::poll(&mut wait, 1, 1000) };
            }
        }
        Ok(())
    }

    fn post_receive(&mut self) -> Result<(), Failure> {
        let place = self.messages.local(BLOCK, SMALL);
        Ok(self.adapter.post_receive(self.endpoint, 0, place)?)
    }

    fn send(&mut self) -> Result<(), Failure> {
        Ok(self.adapter.post_send(self.endpoint, 0, &[self.messages.local(0, SMALL)])?)
    }

    fn wait(&mut self, operation: Operation) -> Result<(), Failure> {
        loop {
            self.turn()?;
            for event in &self.events {
                match event {
                    Event::Completion(done) if done.operation == operation => return Ok(()),
                    Event::Disconnected { reason, .. } => return Err(reason.to_string().into()),
                    _ => {}
                }
            }
        }
    }
}

fn serve(
    case: Case,
    config: ShmConfig,
    address: &Sender<Address>,
    remote: &Receiver<RemoteBuffer>,
) -> Result<(), Failure> {
    pin(1);
    let mut side = Side::new(config, true, case.sleeping)?;
    let listener = side.adapter.listen(&Address::Shm(String::new()))?;
    address.send(side.adapter.listener_address(listener).ok_or("no address")?)?;
    let domain = dafs_dat::ProtectionDomain(1);
    loop {
        side.turn()?;
        if let Some(Event::ConnectRequest { request, .. }) = side.events.first() {
            side.endpoint = side.adapter.accept(*request, domain, &[])?;
            break;
        }
    }
    side.post_receive()?;
    let remote = remote.recv()?;
    for _ in 0..ROUNDS * case.round_trips {
        side.wait(Operation::Receive)?;
        side.post_receive()?;
        let local = side.data.local(0, case.bytes);
        match case.task {
            Task::Answer => {}
            Task::Write => side.adapter.rdma_write(side.endpoint, 1, &[local], remote)?,
            Task::Read => {
                side.adapter.rdma_read(side.endpoint, 1, local, remote)?;
                side.wait(Operation::RdmaRead)?;
            }
            Task::Mapped => {
                let window = side
                    .adapter
                    .map_remote(side.endpoint, remote, Access::REMOTE_WRITE)
                    .ok_or("the client's memory is not shared")?;
                let view: VolatileSlice<'_> = window.view();
                let source = side.buffer.slice(0, case.bytes).ok_or("too large")?;
                view.copy_from_volatile(source, Site::Inspect);
            }
        }
        side.send()?;
    }
    // The client ends the connection.
    side.wait(Operation::Receive).err().map_or(Ok(()), |_| Ok(()))
}

fn run(case: Case, config: ShmConfig) -> Result<(f64, f64), Failure> {
    let (address_sender, address) = channel();
    let (remote_sender, remote) = channel();
    let server_config = config.clone();
    let server = std::thread::spawn(move || serve(case, server_config, &address_sender, &remote));
    pin(0);
    let mut side = Side::new(config, case.shared, case.sleeping)?;
    let domain = dafs_dat::ProtectionDomain(1);
    side.endpoint = side.adapter.connect(domain, &address.recv()?, &[])?;
    side.turn()?;
    remote_sender.send(side.data.remote(0, case.bytes as u32).ok_or("too large")?)?;
    side.post_receive()?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..case.round_trips {
            side.send()?;
            side.wait(Operation::Receive)?;
            side.post_receive()?;
        }
        let time = Instant::now().since(start).as_nanos() as f64;
        rounds.push(time / case.round_trips as f64 / 1000.0);
    }
    side.adapter.disconnect(side.endpoint);
    side.adapter.poll(Instant::now(), &mut side.events);
    server.join().map_err(|_| "the server thread has failed")??;
    rounds.sort_by(f64::total_cmp);
    Ok((rounds[0], rounds[ROUNDS / 2]))
}

fn main() -> Result<(), Failure> {
    let ring_bytes = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => ShmConfig::default().ring_bytes,
    };
    let config = ShmConfig { ring_bytes, ..ShmConfig::default() };
    println!("rings of {ring_bytes} bytes; microseconds per round trip");
    println!("{:32} {:>9} {:>9}", "", "best", "median");
    for &case in CASES {
        let (best, median) = run(case, config.clone())?;
        print!("{:32} {best:9.3} {median:9.3}", case.name);
        match case.bytes {
            LARGE => println!("   {:6.1} GB/s at best", LARGE as f64 / best / 1000.0),
            _ => println!(),
        }
    }
    let (source, target) = (Buffer::zeroed(LARGE)?, Buffer::zeroed(LARGE)?);
    source.view().fill(1);
    for bytes in [BLOCK, LARGE] {
        let (Some(from), Some(to)) = (source.slice(0, bytes), target.slice(0, bytes)) else {
            continue;
        };
        let mut best = f64::MAX;
        for _ in 0..2000 {
            let start = Instant::now();
            to.copy_from_volatile(from, Site::Inspect);
            best = best.min(Instant::now().since(start).as_nanos() as f64 / 1000.0);
        }
        println!("memcpy of {bytes} bytes: {best:.3} at best");
    }
    Ok(())
}
