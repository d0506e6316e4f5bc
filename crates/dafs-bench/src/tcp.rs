//! The floor of everything over TCP: the same bytes through a plain socket.

use crate::child::{Process, announce, exit_with_parent};
use crate::report::Sample;
use crate::{Plan, cpu};
use anyhow::Result;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The request of a ping-pong: 4 bytes with the length of the answer, and padding.
const REQUEST_BYTES_MIN: usize = 4;

/// Answers every request of 4 + n bytes (the first 8 contain both lengths) until the connection
/// ends.
pub(crate) fn serve(host: Ipv4Addr, poll: bool) -> Result<()> {
    exit_with_parent();
    let listener = TcpListener::bind((host, 0))?;
    announce(&listener.local_addr()?.to_string())?;
    loop {
        let (stream, _) = listener.accept()?;
        // One connection at a time is measured; an error ends it.
        let _ = answer(stream, poll);
    }
}

fn answer(mut stream: TcpStream, poll: bool) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut lengths = [0; 8];
    stream.read_exact(&mut lengths)?;
    let word = |at: usize| {
        u32::from_be_bytes([lengths[at], lengths[at + 1], lengths[at + 2], lengths[at + 3]])
            as usize
    };
    let (request, reply) = (word(0), word(4));
    stream.set_nonblocking(poll)?;
    let mut input = vec![0; request.max(REQUEST_BYTES_MIN)];
    let output = vec![7; reply];
    loop {
        read_exact(&mut stream, &mut input)?;
        write_all(&mut stream, &output)?;
    }
}

fn read_exact(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match stream.read(&mut buffer[done..]) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_all(stream: &mut TcpStream, buffer: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match stream.write(&buffer[done..]) {
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Measures requests of `request` bytes answered by `reply` bytes, `depth` at a time.
pub(crate) fn measure(
    plan: &Plan,
    server_cpu: usize,
    poll: bool,
    request: usize,
    reply: usize,
    depth: usize,
) -> Result<Sample> {
    let process = Process::start(&["tcp", &server_cpu.to_string(), &poll.to_string()])?;
    let mut exchange = Exchange::connect(&process.address, poll, request, reply, depth)?;
    exchange.run(Duration::from_millis(20))?;
    Sample::of(
        || cpu::times(Some(process.id())),
        || {
            let operations = exchange.run(Duration::from_millis(plan.milliseconds))?;
            Ok((operations, operations * reply.max(request) as u64))
        },
    )
}

/// A connection for requests of one length and answers of another.
pub(crate) struct Exchange {
    stream: TcpStream,
    request: usize,
    reply: usize,
    depth: usize,
    output: Vec<u8>,
    input: Vec<u8>,
}

impl Exchange {
    /// Connects to a [`serve`]; a request has at least 4 bytes.
    pub(crate) fn connect(
        address: &str,
        poll: bool,
        request: usize,
        reply: usize,
        depth: usize,
    ) -> Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let lengths = [(request as u32).to_be_bytes(), (reply as u32).to_be_bytes()].concat();
        stream.write_all(&lengths)?;
        stream.set_nonblocking(poll)?;
        // As many buffers as a client with this depth has, so that both touch as much memory.
        let (output, input) = (vec![1; request * depth], vec![0; reply * depth]);
        Ok(Self { stream, request, reply, depth, output, input })
    }

    /// Sends as many requests as are under way at a time. A new connection is slow at first.
    pub(crate) fn warm(&mut self) -> Result<()> {
        let (request, reply, depth) = (self.request, self.reply, self.depth);
        let Self { stream, output, input, .. } = self;
        for slot in 0..depth {
            write_all(stream, &output[slot * request..][..request])?;
        }
        for slot in 0..depth {
            read_exact(stream, &mut input[slot * reply..][..reply])?;
        }
        Ok(())
    }

    /// Sends requests for `until`, `depth` at a time; returns their number.
    pub(crate) fn run(&mut self, until: Duration) -> Result<u64> {
        let (request, reply, depth) = (self.request, self.reply, self.depth);
        let Self { stream, output, input, .. } = self;
        let start = Instant::now();
        let (mut operations, mut slot) = (0, 0);
        for slot in 0..depth {
            write_all(stream, &output[slot * request..][..request])?;
        }
        loop {
            slot = (slot + 1) % depth;
            read_exact(stream, &mut input[slot * reply..][..reply])?;
            operations += 1;
            if operations & 15 == 0 && start.elapsed() >= until {
                break;
            }
            write_all(stream, &output[slot * request..][..request])?;
        }
        for slot in 1..depth {
            read_exact(stream, &mut input[slot * reply..][..reply])?;
            operations += 1;
        }
        Ok(operations)
    }
}
