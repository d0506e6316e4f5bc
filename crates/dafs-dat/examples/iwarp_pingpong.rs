//! Round trips of the iWARP provider against a raw TCP socket with the same payloads, both busy
//! polling, two threads, runs interleaved; prints the median of each.
//!
//! * 64 bytes there, 64 bytes back.
//! * 64 bytes there, 4 KiB and 64 bytes back: the 4 KiB by RDMA write, the rest by a send.
//! * 64 bytes there, 1 MiB and 64 bytes back, in the same way.

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{
    Access, Adapter, Address, Event, Instant, LocalSegment, Operation, RemoteBuffer, WorkStatus,
};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const MESSAGE_BYTES: usize = 64;
const RUNS: usize = 9;
/// A run ends after this time even if rounds are left: a busy machine must not hold it up.
const RUN_MS: u64 = 400;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Reads exactly, spinning.
fn read_exact(stream: &mut TcpStream, mut bytes: &mut [u8]) -> io::Result<bool> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Nanoseconds of each round trip over raw TCP.
fn raw(rounds: usize, extra: usize) -> Result<Vec<u64>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut question = [0; MESSAGE_BYTES];
        let answer = vec![1; MESSAGE_BYTES + extra];
        while read_exact(&mut stream, &mut question)? {
            write_all(&mut stream, &answer)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut answer = vec![0; MESSAGE_BYTES + extra];
    let mut times = Vec::with_capacity(rounds);
    let end = Instant::now() + Duration::from_millis(RUN_MS);
    while times.len() < rounds && Instant::now() < end {
        let start = Instant::now();
        write_all(&mut stream, &[2; MESSAGE_BYTES])?;
        read_exact(&mut stream, &mut answer)?;
        times.push(Instant::now().0 - start.0);
    }
    drop(stream);
    server.join().map_err(|_| "the raw server panicked")??;
    Ok(times)
}

/// An adapter with one buffer for messages and one for data.
struct Node {
    adapter: IwarpAdapter,
    events: Vec<Event>,
    inbox: LocalSegment,
    outbox: LocalSegment,
    data: LocalSegment,
    remote: RemoteBuffer,
    domain: dafs_dat::ProtectionDomain,
}

impl Node {
    fn new(config: &IwarpConfig, extra: usize) -> Result<Self, Failure> {
        let mut adapter = IwarpAdapter::new(config.clone())?;
        let domain = adapter.protection_domain();
        let mut memory = |bytes: usize| -> Result<_, Failure> {
            let buffer = adapter.allocate(bytes)?;
            buffer.view().fill(7);
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            Ok(adapter.register(domain, buffer, access)?)
        };
        let (inbox, outbox) = (memory(MESSAGE_BYTES)?, memory(MESSAGE_BYTES)?);
        let data = memory(extra.max(1))?;
        let remote = data.remote(0, extra as u32).ok_or("no such piece")?;
        Ok(Self {
            adapter,
            events: Vec::new(),
            inbox: inbox.local(0, MESSAGE_BYTES),
            outbox: outbox.local(0, MESSAGE_BYTES),
            data: data.local(0, extra),
            remote,
            domain,
        })
    }

    /// Spins until `pick` takes something from an event.
    fn until<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        loop {
            // The clock matters only to timeouts, so it need not be read each time.
            self.adapter.poll(Instant::default(), &mut self.events);
            let found = self.events.iter().find_map(&mut pick);
            self.events.clear();
            if let Some(found) = found {
                return found;
            }
        }
    }
}

/// Whether a message has come (`Some(true)`) or the connection is over.
fn message(event: &Event) -> Option<bool> {
    match event {
        Event::Completion(done) if done.operation == Operation::Receive => {
            Some(done.status != WorkStatus::Flushed)
        }
        Event::Disconnected { .. } => Some(false),
        _ => None,
    }
}

fn iwarp(config: &IwarpConfig, rounds: usize, extra: usize) -> Result<Vec<u64>, Failure> {
    let mut client = Node::new(config, extra)?;
    let (tell, told) = mpsc::channel();
    let (remote, server_config) = (client.remote, config.clone());
    let server = thread::spawn(move || -> Result<(), Failure> {
        let mut node = Node::new(&server_config, extra)?;
        let listener = node.adapter.listen(&Address::Tcp(([127, 0, 0, 1], 0).into()))?;
        tell.send(node.adapter.listener_address(listener))?;
        let request = node.until(|event| match event {
            Event::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        });
        let endpoint = node.adapter.accept(request, node.domain, &[])?;
        node.adapter.post_receive(endpoint, 1, node.inbox)?;
        while node.until(message) {
            node.adapter.post_receive(endpoint, 1, node.inbox)?;
            if extra > 0 {
                node.adapter.rdma_write(endpoint, 2, &[node.data], remote)?;
            }
            node.adapter.post_send(endpoint, 3, &[node.outbox])?;
        }
        Ok(())
    });
    let address = told.recv()?.ok_or("no address")?;
    let endpoint = client.adapter.connect(client.domain, &address, &[])?;
    client.adapter.post_receive(endpoint, 1, client.inbox)?;
    client.until(|event| matches!(event, Event::Established { .. }).then_some(()));
    let mut times = Vec::with_capacity(rounds);
    let end = Instant::now() + Duration::from_millis(RUN_MS);
    while times.len() < rounds && Instant::now() < end {
        let start = Instant::now();
        client.adapter.expect_remote_writes(endpoint, extra as u64);
        client.adapter.post_send(endpoint, 2, &[client.outbox])?;
        if !client.until(message) {
            return Err("the server has left".into());
        }
        client.adapter.expect_remote_writes(endpoint, 0);
        client.adapter.post_receive(endpoint, 1, client.inbox)?;
        times.push(Instant::now().0 - start.0);
    }
    client.adapter.disconnect(endpoint);
    client.until(|event| matches!(event, Event::Disconnected { .. }).then_some(()));
    drop(client);
    server.join().map_err(|_| "the iwarp server panicked")??;
    Ok(times)
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn main() -> Result<(), Failure> {
    let plain = IwarpConfig::default();
    let crc = IwarpConfig { crc: true, ..plain.clone() };
    println!("round trips in us: median of the runs' medians, and the best run's");
    println!("{:>10} {:>15} {:>15} {:>15}", "bytes", "raw", "iwarp", "iwarp crc");
    for (extra, rounds) in [(0, 20_000), (4096, 20_000), (1 << 20, 1000)] {
        let mut medians = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            medians[0].push(median(&mut raw(rounds, extra)?));
            medians[1].push(median(&mut iwarp(&plain, rounds, extra)?));
            medians[2].push(median(&mut iwarp(&crc, rounds, extra)?));
            thread::sleep(Duration::from_millis(10));
        }
        let us = |ns: u64| ns as f64 / 1000.0;
        let [raw, own, crc] = medians.map(|mut runs| {
            let middle = median(&mut runs);
            (us(middle), us(runs.first().copied().unwrap_or(0)))
        });
        print!("{extra:>10}");
        for (middle, best) in [raw, own, crc] {
            print!(" {middle:>8.2} {best:>6.2}");
        }
        println!("   iwarp/raw {:.2}, best {:.2}", own.0 / raw.0, own.1 / raw.1);
    }
    Ok(())
}
