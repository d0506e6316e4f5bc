//! Data through a transport, from this process to itself: connect, ping-pong messages, RDMA write
//! and read, all compared.
//!
//! Invariants
//! * One thread drives both ends, so neither can wait for the other for ever. A step that takes too
//!   long is given up.

use super::finding::Measured;
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, MemoryRegion, ProtectionDomain,
    RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The size of a transfer, in bytes.
const TRANSFER_BYTES: usize = 1 << 20;
const MESSAGE_BYTES: usize = 64;
const ROUND_TRIPS: usize = 1000;
const TRANSFERS: usize = 64;

/// Time limit of one measurement.
const ENOUGH: Duration = Duration::from_secs(1);

/// Timeout of any one step.
const PATIENCE: Duration = Duration::from_secs(5);

/// The private data of both sides at connection setup.
const GREETING: &[u8] = b"dafs doctor";

/// One end of the connection.
struct End {
    adapter: Box<dyn Adapter>,
    domain: ProtectionDomain,
    events: VecDeque<Event>,
    buffer: Arc<Buffer>,
    region: MemoryRegion,
}

impl End {
    fn new(mut adapter: Box<dyn Adapter>) -> Result<Self, String> {
        let domain = adapter.protection_domain();
        let buffer = adapter
            .allocate(TRANSFER_BYTES)
            .map_err(|error| format!("memory cannot be had: {error}"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter
            .register(domain, buffer.clone(), access)
            .map_err(|error| format!("memory cannot be registered: {error}"))?;
        Ok(Self { adapter, domain, events: VecDeque::new(), buffer, region })
    }

    fn fill(&self, seed: u8) {
        self.buffer.view().copy_from(&pattern(seed), Site::Inspect);
    }

    fn holds(&self, seed: u8) -> bool {
        self.buffer.view().to_vec(Site::Inspect) == pattern(seed)
    }

    /// Returns true if there was an event.
    fn poll(&mut self) -> bool {
        let mut events = Vec::new();
        let count = self.adapter.poll(Instant::now(), &mut events);
        self.events.extend(events);
        count > 0
    }

    fn all(&self) -> RemoteBuffer {
        let (key, address) = (self.region.key, self.region.address);
        RemoteBuffer { key, address, len: TRANSFER_BYTES as u32 }
    }
}

fn pattern(seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed;
    (0..TRANSFER_BYTES).map(byte).collect()
}

/// Both ends of a connection.
struct Pair {
    client: End,
    server: End,
}

/// The end that acts.
#[derive(Clone, Copy)]
enum Who {
    Client,
    Server,
}

impl Pair {
    fn end(&mut self, who: Who) -> &mut End {
        match who {
            Who::Client => &mut self.client,
            Who::Server => &mut self.server,
        }
    }

    fn poll(&mut self) {
        let here = self.client.poll();
        let there = self.server.poll();
        if !here && !there {
            // With one processor, the kernel's part needs it.
            std::thread::yield_now();
        }
    }

    /// Polls both ends until `pick` takes an event of one of them.
    fn wait<T>(
        &mut self,
        who: Who,
        what: &str,
        mut pick: impl FnMut(&Event) -> Option<T>,
    ) -> Result<T, String> {
        let start = std::time::Instant::now();
        loop {
            let events = &mut self.end(who).events;
            while let Some(event) = events.pop_front() {
                match &event {
                    Event::ConnectFailed { error, .. } => return Err(error.to_string()),
                    Event::Disconnected { reason, .. } => {
                        return Err(format!("the connection ended before {what}: {reason}"));
                    }
                    event => {
                        if let Some(value) = pick(event) {
                            return Ok(value);
                        }
                    }
                }
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{what} took longer than {PATIENCE:?}"));
            }
            self.poll();
        }
    }

    fn done(&mut self, who: Who, work: u64, what: &str) -> Result<(), String> {
        let status = self.wait(who, what, |event| match event {
            Event::Completion(done) if done.work == work => Some(done.status),
            _ => None,
        })?;
        match status {
            WorkStatus::Ok(_) => Ok(()),
            WorkStatus::Flushed => Err(format!("the connection ended before {what}")),
        }
    }

    fn connect(&mut self, listen: &Address) -> Result<(EndpointId, EndpointId), String> {
        let refused = |error: &dyn std::fmt::Display| format!("cannot listen on {listen}: {error}");
        let listener = self.server.adapter.listen(listen).map_err(|error| refused(&error))?;
        let address = self.server.adapter.listener_address(listener);
        let address = address.ok_or_else(|| format!("{listen} has no address"))?;
        let domain = self.client.domain;
        let client = self
            .client
            .adapter
            .connect(domain, &address, GREETING)
            .map_err(|error| error.to_string())?;
        let (request, said) = self.wait_request()?;
        let domain = self.server.domain;
        let server = self
            .server
            .adapter
            .accept(request, domain, GREETING)
            .map_err(|error| error.to_string())?;
        let established = |event: &Event| match event {
            Event::Established { private_data, .. } => Some(private_data.to_vec()),
            _ => None,
        };
        let answered = self.wait(Who::Client, "the connection was made", established)?;
        if !said.starts_with(GREETING) || !answered.starts_with(GREETING) {
            return Err("the private data of the connection arrived damaged".to_owned());
        }
        Ok((client, server))
    }

    fn wait_request(&mut self) -> Result<(dafs_dat::RequestId, Vec<u8>), String> {
        // The client may learn of a failure while the server gets no event at all.
        let start = std::time::Instant::now();
        loop {
            if let Some(Event::ConnectFailed { error, .. }) = self.client.events.pop_front() {
                return Err(error.to_string());
            }
            if let Some(event) = self.server.events.pop_front()
                && let Event::ConnectRequest { request, private_data, .. } = event
            {
                return Ok((request, private_data.to_vec()));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("the connection was not made within {PATIENCE:?}"));
            }
            self.poll();
        }
    }

    /// Sends one message from an end to the other, with tag `work` on both.
    fn message(
        &mut self,
        from: (Who, EndpointId),
        to: (Who, EndpointId),
        work: u64,
    ) -> Result<(), String> {
        let refused = |error| format!("work cannot be posted: {error}");
        let end = self.end(to.0);
        let place = end.region.local(0, MESSAGE_BYTES);
        end.adapter.post_receive(to.1, work, place).map_err(refused)?;
        let end = self.end(from.0);
        let message = end.region.local(MESSAGE_BYTES, MESSAGE_BYTES);
        end.adapter.post_send(from.1, work + 1, &[message]).map_err(refused)?;
        self.done(to.0, work, "a message arrived")?;
        self.done(from.0, work + 1, "a message was sent")
    }
}

/// Moves data from `client` to `server`, which listens at `listen`, and back. The error text is the
/// end of a sentence.
pub(super) fn measure(
    client: Box<dyn Adapter>,
    server: Box<dyn Adapter>,
    listen: &Address,
) -> Result<Measured, String> {
    let mut pair = Pair { client: End::new(client)?, server: End::new(server)? };
    let (client, server) = pair.connect(listen)?;
    let (here, there) = ((Who::Client, client), (Who::Server, server));

    let mut times = Vec::with_capacity(ROUND_TRIPS);
    let began = std::time::Instant::now();
    while times.len() < ROUND_TRIPS && began.elapsed() < ENOUGH {
        let start = std::time::Instant::now();
        pair.message(here, there, 10)?;
        pair.message(there, here, 20)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();

    let refused = |error| format!("work cannot be posted: {error}");
    let whole = pair.client.region.local(0, TRANSFER_BYTES);
    // First use of fresh pages would count with the first transfer.
    pair.server.fill(0);
    pair.client.fill(1);
    let start = std::time::Instant::now();
    let mut written = 0;
    while written < TRANSFERS && start.elapsed() < ENOUGH {
        written += 1;
        let target = pair.server.all();
        pair.client.adapter.rdma_write(client, 1, &[whole], target).map_err(refused)?;
        pair.done(Who::Client, 1, "an RDMA write was done")?;
    }
    // Only a later read or message shows that writes have been placed.
    pair.client.fill(0);
    let source = pair.server.all();
    pair.client.adapter.rdma_read(client, 2, whole, source).map_err(refused)?;
    pair.done(Who::Client, 2, "an RDMA read was done")?;
    let write_time = start.elapsed();
    if !pair.server.holds(1) || !pair.client.holds(1) {
        return Err("the data of an RDMA write arrived damaged".to_owned());
    }

    pair.server.fill(2);
    let start = std::time::Instant::now();
    let mut read = 0;
    while read < TRANSFERS && start.elapsed() < ENOUGH {
        read += 1;
        let source = pair.server.all();
        pair.client.adapter.rdma_read(client, 3, whole, source).map_err(refused)?;
        pair.done(Who::Client, 3, "an RDMA read was done")?;
    }
    let read_time = start.elapsed();
    if !pair.client.holds(2) {
        return Err("the data of an RDMA read arrived damaged".to_owned());
    }
    pair.client.adapter.disconnect(client);
    let mebibytes = |count: usize| (count * TRANSFER_BYTES) as f64 / f64::from(1 << 20);
    Ok(Measured {
        round_trip_microseconds: times[times.len() / 2].as_nanos() as f64 / 1000.0,
        write_mebibytes_per_second: mebibytes(written) / write_time.as_secs_f64(),
        read_mebibytes_per_second: mebibytes(read) / read_time.as_secs_f64(),
    })
}
