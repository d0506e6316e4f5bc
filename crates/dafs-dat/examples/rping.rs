//! Speaks the protocol of rdma-core's `rping`, as either side, over the iWARP provider or an RDMA
//! device. Both sides check the data. For runs against other implementations and against itself.
//!
//! One round, all messages 16 bytes (address, key and size of a buffer, big-endian): the client
//! announces a source buffer; the server reads it by RDMA and sends "go ahead"; the client
//! announces a sink buffer; the server writes the data back by RDMA and sends "go ahead". The
//! client ignores the content of the server's messages. The client ends the connection after the
//! last round.

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::verbs::{VerbsAdapter, VerbsConfig};
use dafs_dat::{
    Access, Adapter, Address, DisconnectReason, EndpointId, Event, Instant, LocalSegment,
    MemoryRegion, RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::sync::Arc;

const USAGE: &str = "\
usage: rping -s|-c [-a ADDRESS] [-p PORT] [-S BYTES] [-C ROUNDS] [-v] [--verbs]
                   [--crc] [--fpdu BYTES]
  -s            be the server: serve one client, then end
  -c            be the client
  -a ADDRESS    address to listen on or connect to (default 127.0.0.1)
  -p PORT       TCP port (default 7174)
  -S BYTES      size of the data (default 64; at the server the largest it takes, default 16 MiB)
  -C ROUNDS     rounds the client makes (default 10); a server given this checks it
  -v            show the start of the data of each round
  --verbs       use the RDMA device that has the address or leads to it
  --crc         ask for CRC
  --fpdu BYTES  send FPDUs of this size, even to peers that are not our own";

const MESSAGE_BYTES: usize = 16;
const SERVER_BYTES_MAX: usize = 16 << 20;

/// Work tags.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const READ: u64 = 3;
const WRITE: u64 = 4;

type Failure = Box<dyn std::error::Error>;

#[derive(Debug, Clone)]
struct Options {
    server: bool,
    address: SocketAddr,
    bytes: Option<usize>,
    rounds: Option<u64>,
    verbose: bool,
    verbs: bool,
    config: IwarpConfig,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut server, mut ip, mut port) = (None, IpAddr::from([127, 0, 0, 1]), 7174);
        let (mut bytes, mut rounds, mut verbose, mut verbs) = (None, None, false, false);
        let mut config = IwarpConfig::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let bad = |error: &dyn std::fmt::Display| format!("{word}: {error}");
            match word.as_str() {
                "-s" => server = Some(true),
                "-c" => server = Some(false),
                "-a" => ip = value()?.parse().map_err(|e| bad(&e))?,
                "-p" => port = value()?.parse().map_err(|e| bad(&e))?,
                "-S" => bytes = Some(value()?.parse().map_err(|e| bad(&e))?),
                "-C" => rounds = Some(value()?.parse().map_err(|e| bad(&e))?),
                "-v" => verbose = true,
                "--verbs" => verbs = true,
                "--crc" => config.crc = true,
                "--fpdu" => {
                    let fpdu_bytes: usize = value()?.parse().map_err(|e| bad(&e))?;
                    config.fpdu_bytes_max = fpdu_bytes;
                    config.foreign_fpdu_bytes_max = Some(fpdu_bytes);
                }
                _ => return Err(format!("unknown option {word}")),
            }
        }
        let server = server.ok_or("one of -s and -c is needed")?;
        let address = SocketAddr::new(ip, port);
        Ok(Self { server, address, bytes, rounds, verbose, verbs, config })
    }
}

/// The bytes that `rping` of rdma-core puts into its buffer in the given round.
fn pattern(round: u64, bytes: usize) -> Vec<u8> {
    let mut data = format!("rdma-ping-{round}: ").into_bytes();
    data.truncate(bytes);
    let letters = b'A'..=b'z';
    let skip = (round % letters.len() as u64) as usize;
    data.extend(letters.cycle().skip(skip).take(bytes - data.len()));
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    data
}

fn encode(remote: RemoteBuffer) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&remote.address.to_be_bytes());
    message[8..12].copy_from_slice(&remote.key.to_be_bytes());
    message[12..].copy_from_slice(&remote.len.to_be_bytes());
    message
}

fn decode(message: &[u8]) -> Option<RemoteBuffer> {
    let word = |at: usize| Some(u32::from_be_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let address = u64::from(word(0)?) << 32 | u64::from(word(4)?);
    Some(RemoteBuffer { key: word(8)?, address, len: word(12)? })
}

/// Registered memory.
struct Memory {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
}

impl Memory {
    fn all(&self) -> LocalSegment {
        self.region.local(0, self.region.len)
    }

    fn read(&self, bytes: usize) -> Vec<u8> {
        self.buffer.slice(0, bytes).map(|view| view.to_vec(Site::Inspect)).unwrap_or_default()
    }

    fn write(&self, bytes: &[u8]) {
        self.buffer.view().copy_from(bytes, Site::Inspect);
    }
}

/// One side of the conversation.
struct Rping {
    adapter: Box<dyn Adapter>,
    options: Options,
    endpoint: EndpointId,
    inbox: Memory,
    outbox: Memory,
    events: std::collections::VecDeque<Event>,
}

impl Rping {
    fn open(options: Options) -> Result<Self, Failure> {
        let mut adapter: Box<dyn Adapter> = match (options.verbs, options.server) {
            (false, _) => Box::new(IwarpAdapter::new(options.config.clone())?),
            (true, true) => Box::new(VerbsAdapter::open(VerbsConfig::at(options.address.ip()))?),
            (true, false) => Box::new(VerbsAdapter::open(VerbsConfig::towards(options.address))?),
        };
        let domain = adapter.protection_domain();
        let mut memory = |access| -> Result<Memory, Failure> {
            let buffer = adapter.allocate(MESSAGE_BYTES)?;
            let region = adapter.register(domain, buffer.clone(), access)?;
            Ok(Memory { buffer, region })
        };
        let (inbox, outbox) = (memory(Access::LOCAL_WRITE)?, memory(Access::empty())?);
        let events = std::collections::VecDeque::new();
        let mut rping = Self { adapter, options, endpoint: EndpointId(0), inbox, outbox, events };
        let make = if rping.options.verbs { Address::Verbs } else { Address::Tcp };
        let address = make(rping.options.address);
        if rping.options.server {
            rping.adapter.listen(&address)?;
            let request = loop {
                if let Event::ConnectRequest { request, .. } = rping.next_event()? {
                    break request;
                }
            };
            rping.endpoint = rping.adapter.accept(request, domain, &[])?;
        } else {
            rping.endpoint = rping.adapter.connect(domain, &address, &[])?;
        }
        rping.adapter.post_receive(rping.endpoint, RECEIVE, rping.inbox.all())?;
        loop {
            match rping.next_event()? {
                Event::Established { .. } => return Ok(rping),
                Event::ConnectFailed { error, .. } => return Err(error),
                Event::Disconnected { reason, .. } => return Err(reason),
                _ => {}
            }
        }
    }

    fn memory(&mut self, bytes: usize, access: Access) -> Result<Memory, Failure> {
        let domain = dafs_dat::ProtectionDomain(1);
        let buffer = self.adapter.allocate(bytes)?;
        let region = self.adapter.register(domain, buffer.clone(), access)?;
        Ok(Memory { buffer, region })
    }

    /// The next event; sleeps until one arrives.
    fn next_event(&mut self) -> Result<Event, Failure> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let mut events = Vec::new();
            if self.adapter.poll(Instant::now(), &mut events) == 0 && self.adapter.arm()? {
                self.sleep();
            }
            self.events.extend(events);
        }
    }

    fn sleep(&self) {
        let wait = match self.adapter.next_timeout() {
            Some(when) => i32::try_from((when - Instant::now()).as_millis() + 1).unwrap_or(-1),
            None => -1,
        };
        if let Some(descriptor) = self.adapter.descriptor() {
            let fd = descriptor.as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, which lives through the call.
            unsafe { libc::poll(&mut poll, 1, wait) };
        }
    }

    /// Waits until the work with this tag completes; `None` when the peer ended the connection.
    /// Other completions may come before and are ignored.
    fn done(&mut self, wanted: u64) -> Result<Option<u32>, Failure> {
        loop {
            match self.next_event()? {
                Event::Completion(completion) => match completion.status {
                    WorkStatus::Ok(bytes) if completion.work == wanted => return Ok(Some(bytes)),
                    // The event with the reason follows flushed work.
                    _ => {}
                },
                Event::Disconnected { reason, .. } => match *reason {
                    DisconnectReason::Peer | DisconnectReason::Local => return Ok(None),
                    // A kernel that closes the socket while our last message is in flight sends a
                    // reset.
                    DisconnectReason::Lost(_) if wanted == RECEIVE => return Ok(None),
                    _ => return Err(reason),
                },
                _ => {}
            }
        }
    }

    fn send(&mut self, message: [u8; MESSAGE_BYTES]) -> Result<(), Failure> {
        self.outbox.write(&message);
        Ok(self.adapter.post_send(self.endpoint, SEND, &[self.outbox.all()])?)
    }

    /// The next message; its receive is posted again at once.
    fn receive(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(bytes) = self.done(RECEIVE)? else { return Ok(None) };
        if bytes as usize != MESSAGE_BYTES {
            return Err(format!("a message of {bytes} bytes instead of {MESSAGE_BYTES}").into());
        }
        let message = self.inbox.read(MESSAGE_BYTES);
        self.adapter.post_receive(self.endpoint, RECEIVE, self.inbox.all())?;
        Ok(Some(message))
    }

    fn check(&self, round: u64, data: &[u8]) -> Result<(), Failure> {
        if self.options.verbose {
            let shown = &data[..data.len().min(64)];
            println!("round {round}: {}", String::from_utf8_lossy(shown).trim_end_matches('\0'));
        }
        let want = pattern(round, data.len());
        match data.iter().zip(&want).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(format!("data mismatch in round {round} at byte {at}").into()),
        }
    }

    fn run_client(&mut self) -> Result<u64, Failure> {
        let bytes = self.options.bytes.unwrap_or(64);
        let len = u32::try_from(bytes)?;
        let rounds = self.options.rounds.unwrap_or(10);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let source = self.memory(bytes, access)?;
        let sink = self.memory(bytes, access)?;
        let remote = |memory: &Memory| memory.region.remote(0, len).ok_or("no such piece");
        for round in 0..rounds {
            source.write(&pattern(round, bytes));
            sink.buffer.view().fill(0xee);
            self.send(encode(remote(&source)?))?;
            self.receive()?.ok_or("the server left before it had read")?;
            self.adapter.expect_remote_writes(self.endpoint, u64::from(len));
            self.send(encode(remote(&sink)?))?;
            self.receive()?.ok_or("the server left before it had written")?;
            self.adapter.expect_remote_writes(self.endpoint, 0);
            self.check(round, &sink.read(bytes))?;
        }
        self.adapter.disconnect(self.endpoint);
        while self.done(u64::MAX)?.is_some() {}
        Ok(rounds)
    }

    fn run_server(&mut self) -> Result<u64, Failure> {
        let bytes_max = self.options.bytes.unwrap_or(SERVER_BYTES_MAX);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = self.memory(bytes_max, access)?;
        for round in 0.. {
            let Some(message) = self.receive()? else { return Ok(round) };
            let source = decode(&message).ok_or("a short message")?;
            let bytes = source.len as usize;
            if bytes > bytes_max {
                return Err(format!("the client has {bytes} bytes; -S allows {bytes_max}").into());
            }
            let segment = memory.region.local(0, bytes);
            self.adapter.rdma_read(self.endpoint, READ, segment, source)?;
            self.done(READ)?.ok_or("the client left during the read")?;
            self.check(round, &memory.read(bytes))?;
            self.send([0; MESSAGE_BYTES])?;
            let message = self.receive()?.ok_or("the client left in the middle of a round")?;
            let sink = decode(&message).ok_or("a short message")?;
            let segment = memory.region.local(0, bytes);
            self.adapter.rdma_write(self.endpoint, WRITE, &[segment], sink)?;
            self.send([0; MESSAGE_BYTES])?;
        }
        Ok(0)
    }
}

fn run(options: Options) -> Result<(), Failure> {
    let (server, wanted) = (options.server, options.rounds);
    let mut rping = Rping::open(options)?;
    let rounds = if server { rping.run_server()? } else { rping.run_client()? };
    match wanted {
        Some(wanted) if wanted != rounds => {
            Err(format!("{rounds} rounds instead of {wanted}").into())
        }
        _ => {
            println!("{rounds} rounds, data right");
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("rping: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}
