//! The socket of a client, and its threads that read, send and wait.
//!
//! Invariants
//! * No thread holds the lock of `core` during a system call. The reading thread holds `inbound`
//!   while it reads, and so does a thread that cancels a call whose data arrives. A sender holds
//!   `outbound` for the whole record.
//! * Once `broken` is set, every waiting thread has been woken.
//! * After the connection has ended, no byte of a cancelled call follows on the wire.

mod send;
mod tls;

pub(in crate::client) use tls::begin as begin_tls;

use crate::client::core::{Core, Event, Results};
use crate::client::error::CallError;
use crate::client::options::Options;
use crate::client::{BackHandler, Rejection, Server};
use crate::limits::{CLIENT_RECEIVE_BYTES, LARGE_RECORD_BYTES, RECEIVE_BYTES_BEFORE_LARGE};
use crate::memory::Block;
use crate::output::Output;
use crate::record::{Budget, RecordReader};
use crate::reply::Reply;
use crate::tls::{Receiving, Sending};
use dafs_dat::connections::Origin;
use dafs_dat::tls::Trusted;
use dafs_mem::{Mutex, readv};
use dafs_tls::Channel;
use dafs_wire::rpc::AcceptStatus;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Pause of the helper after it has seen another thread read.
const HELPER_PAUSE: Duration = Duration::from_millis(10);

/// Time that the helper waits for input before it checks whether it is still needed.
const HELPER_WAIT: Duration = Duration::from_millis(100);

/// Time for which a thread that cannot send relies on another thread to keep reading.
const READER_WATCH: Duration = Duration::from_millis(10);

/// The state that the threads of one client share.
pub(in crate::client) struct Shared {
    pub(in crate::client) options: Options,
    socket: OwnedFd,
    core: Mutex<Core>,
    /// True while one thread reads for all.
    reading: AtomicBool,
    /// Counts how often a thread began to read.
    readings: AtomicU64,
    inbound: Mutex<Inbound>,
    /// Records that have not been sent completely.
    outbound: Mutex<Output>,
    /// True when `outbound` may hold records.
    unsent: AtomicBool,
    /// The records of TLS that leave. Locked after `outbound`.
    sending: Option<Mutex<Sending>>,
    /// The server, if it must stay trusted.
    trusted: Option<Trusted>,
    broken: OnceLock<String>,
    back: Option<BackHandler>,
    /// For callbacks, which must not keep the client alive.
    this: Weak<Shared>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("socket", &self.socket).finish_non_exhaustive()
    }
}

struct Inbound {
    reader: RecordReader,
    budget: Budget,
    receive: Block,
    /// The records of TLS that come.
    receiving: Option<Receiving>,
}

/// The right to read; when dropped, it passes to a waiting thread.
struct Reading<'s>(&'s Shared);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reading.store(false, Ordering::SeqCst);
        let mut core = self.0.core();
        core.wake_for_room();
        if let Some(waiter) = core.some_waiter() {
            waiter.unpark();
        }
    }
}

impl Shared {
    pub(in crate::client) fn new(
        socket: OwnedFd,
        options: Options,
        back: Option<BackHandler>,
        tls: Option<(Channel, Option<Trusted>)>,
    ) -> io::Result<Arc<Self>> {
        let (channel, trusted) = tls.unzip();
        let (sending, receiving) =
            channel.map(|Channel { sealer, opener }| (sealer, Receiving::new(opener))).unzip();
        let sending = sending.map(|sealer| Mutex::new(Sending::new(sealer)));
        let inbound = Inbound {
            reader: RecordReader::new(options.record_bytes_max, Origin::Unknown),
            budget: Budget::new(usize::MAX),
            receive: Block::new(CLIENT_RECEIVE_BYTES)?,
            receiving,
        };
        let called_back = back.is_some();
        let shared = Arc::new_cyclic(|this| Self {
            core: Mutex::new(Core::new(crate::client::first_xid(), options.calls_max)),
            options,
            socket,
            reading: AtomicBool::new(false),
            readings: AtomicU64::new(0),
            inbound: Mutex::new(inbound),
            outbound: Mutex::default(),
            unsent: AtomicBool::new(false),
            sending,
            trusted: trusted.flatten(),
            broken: OnceLock::new(),
            back,
            this: this.clone(),
        });
        if called_back {
            let helped = shared.this.clone();
            let thread = std::thread::Builder::new().name("dafs-rpc-helper".to_owned());
            thread.spawn(move || help(&helped))?;
        }
        Ok(shared)
    }

    pub(in crate::client) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// The reason why the connection ended, if it has.
    pub(in crate::client) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }

    fn check(&self) -> Result<(), CallError> {
        match self.broken() {
            Some(reason) => Err(CallError::Disconnected(reason.to_owned())),
            None => Ok(()),
        }
    }

    /// Ends the connection, if it has not ended yet.
    fn break_off(&self, reason: String) {
        if self.broken.set(reason).is_ok() {
            self.end();
        }
        let mut core = self.core();
        core.wake_for_room();
        core.waiters().for_each(std::thread::Thread::unpark);
    }

    /// Ends the connection on the wire. Otherwise the kernel would go on for minutes to send unsent
    /// calls, long after their callers have given up.
    fn end(&self) {
        let is_doubtful = self.core().is_doubtful();
        if is_doubtful && rustix::net::connect_unspec(&self.socket).is_ok() {
            return;
        }
        self.say_goodbye();
        // The socket may have been shut down already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Waits for the reply and ends the call.
    pub(in crate::client) fn wait(
        &self,
        xid: u32,
        deadline: Instant,
    ) -> Result<Results, CallError> {
        // A caller whose reply has arrived already goes on to queue calls, so that many leave
        // together.
        if let Some(answer) = self.core().fetch(xid) {
            return answer;
        }
        loop {
            if self.unsent.load(Ordering::Relaxed) {
                self.flush(&mut self.outbound.lock(), deadline);
            }
            {
                let mut core = self.core();
                if let Some(answer) = core.fetch(xid) {
                    return answer;
                }
                let late = Instant::now() >= deadline;
                if late || self.broken().is_some() {
                    drop(core);
                    self.forget(xid);
                    self.check()?;
                    return Err(CallError::TimedOut);
                }
                core.wait(xid, std::thread::current());
            }
            // A thread that stops reading looks for waiters afterwards. So it finds this thread, or
            // this thread finds that no thread reads: no wake-up is lost.
            match self.begin_reading() {
                Some(_reading) => self.read_until(deadline, |core| core.is_over(xid)),
                None => {
                    std::thread::park_timeout(deadline.saturating_duration_since(Instant::now()))
                }
            }
        }
    }

    /// Waits until fewer than `max` calls are unanswered.
    pub(in crate::client) fn await_room(&self, max: usize) -> Result<(), CallError> {
        let deadline = Instant::now() + self.options.call_timeout;
        loop {
            {
                let mut core = self.core();
                if core.unanswered() < max {
                    return Ok(());
                }
                core.wait_for_room(std::thread::current());
            }
            self.check()?;
            let now = Instant::now();
            if now >= deadline {
                return Err(CallError::TimedOut);
            }
            if self.unsent.load(Ordering::Relaxed) {
                self.flush(&mut self.outbound.lock(), deadline);
            }
            match self.begin_reading() {
                Some(_reading) => self.read_until(deadline, |core| core.unanswered() < max),
                // The reading thread may stop at any time; then this thread must read.
                None => std::thread::park_timeout(READER_WATCH),
            }
        }
    }

    /// Cancels a call; its memory belongs to the caller again.
    pub(in crate::client) fn forget(&self, xid: u32) {
        if self.core().forget(xid) {
            self.inbound.lock().reader.forsake(xid);
        }
    }

    fn begin_reading(&self) -> Option<Reading<'_>> {
        if self.reading.swap(true, Ordering::SeqCst) {
            return None;
        }
        self.readings.fetch_add(1, Ordering::Relaxed);
        Some(Reading(self))
    }

    /// Reads for all threads until `enough` holds, the deadline passes or the connection ends.
    fn read_until(&self, deadline: Instant, enough: impl Fn(&Core) -> bool) {
        while self.broken().is_none() {
            match self.poll(PollFlags::IN, deadline) {
                Ok(events) if events.is_empty() => return,
                Ok(_) => self.read(),
                Err(error) => return self.break_off(error.to_string()),
            }
            if enough(&self.core()) {
                return;
            }
        }
    }

    /// Waits until the socket is ready or the deadline passes.
    fn poll(&self, events: PollFlags, deadline: Instant) -> io::Result<PollFlags> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut set = [PollFd::new(&self.socket, events)];
        match poll(&mut set, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(set[0].revents()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads available input and handles its records. Only the reading thread calls this.
    fn read(&self) {
        let mut inbound = self.inbound.lock();
        let mut calls = Vec::new();
        let read = self.read_into(&mut inbound, &mut calls);
        if read.is_err() {
            inbound.reader = RecordReader::new(0, Origin::Unknown);
        }
        drop(inbound);
        calls.into_iter().for_each(|event| self.take_call(event));
        if let Err(reason) = read {
            self.break_off(reason);
        }
    }

    /// Reads available input; puts callbacks into `calls`.
    fn read_into(&self, inbound: &mut Inbound, calls: &mut Vec<Event>) -> Result<(), String> {
        if inbound.receiving.is_some() {
            return self.read_records(inbound, calls);
        }
        let Inbound { reader, budget, receive, .. } = inbound;
        reader.make_room(budget).map_err(|error| error.to_string())?;
        let space = reader.space();
        let careful = self.core().expects_large() || space.len() >= LARGE_RECORD_BYTES;
        let len = if careful { RECEIVE_BYTES_BEFORE_LARGE } else { CLIENT_RECEIVE_BYTES };
        let views = [space, receive.space(len)];
        let views = if space.is_empty() { &views[1..] } else { &views[..] };
        let read = match readv(self.socket.as_fd(), views) {
            Ok(0) => return Err("the server closed it".to_owned()),
            Ok(read) => read,
            Err(error) if is_passing(&error) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let direct = read.min(space.len());
        reader.filled(direct);
        receive.fill(read - direct);
        let taken = self.take(reader, budget, receive.bytes(), calls);
        receive.truncate(0);
        taken
    }

    fn take(
        &self,
        reader: &mut RecordReader,
        budget: &mut Budget,
        mut input: &[u8],
        calls: &mut Vec<Event>,
    ) -> Result<(), String> {
        let mut core = self.core();
        while let Some(record) =
            reader.next(&mut input, budget).map_err(|error| error.to_string())?
        {
            let event = core.take(record, reader.take_placed());
            match event.map_err(|error| error.to_string())? {
                Event::Answered(waiter) => {
                    waiter.iter().for_each(std::thread::Thread::unpark);
                    core.wake_for_room();
                }
                Event::Ignored => {}
                event => calls.push(event),
            }
        }
        if let Some(placing) = reader.head().and_then(|head| core.locate(head)) {
            let xid = placing.xid;
            if reader.place_data(placing) {
                core.placing(xid);
            }
        }
        Ok(())
    }

    /// Runs the handler of a callback.
    fn take_call(&self, event: Event) {
        match event {
            Event::Refuse(header) => self.send_record(Reply::refusal(&header)),
            Event::Call(call) => {
                let request = call.request(Server::Tcp(self.this.clone()));
                match &self.back {
                    Some(back) => back(request),
                    None => {
                        request.answer(Err(Rejection::Accept(AcceptStatus::ProgramUnavailable)))
                    }
                }
            }
            Event::Answered(_) | Event::Ignored => {}
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads for a client that accepts callbacks while none of its threads does.
fn help(client: &Weak<Shared>) {
    let mut seen = 0;
    while let Some(shared) = client.upgrade() {
        if shared.broken().is_some() {
            return;
        }
        let readings = shared.readings.load(Ordering::Relaxed);
        if readings != std::mem::replace(&mut seen, readings)
            || shared.reading.load(Ordering::Relaxed)
        {
            drop(shared);
            std::thread::sleep(HELPER_PAUSE);
            continue;
        }
        // The helper waits without the right to read, so that no thread has to wake it to get that
        // right.
        let ready = shared.poll(PollFlags::IN, Instant::now() + HELPER_WAIT);
        let readable = ready.is_ok_and(|events| !events.is_empty());
        if readable && let Some(reading) = shared.begin_reading() {
            shared.read();
            drop(reading);
            seen = shared.readings.load(Ordering::Relaxed);
        }
        if shared.unsent.load(Ordering::Relaxed)
            && let Some(mut outbound) = shared.outbound.try_lock()
        {
            shared.flush(&mut outbound, Instant::now());
        }
    }
}

/// Ends the connection when the last handle of a client is dropped.
pub(in crate::client) struct Shutdown(Arc<Shared>);

impl Shutdown {
    pub(in crate::client) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Ends the connection.
    pub(in crate::client) fn now(&self) {
        self.0.break_off("it was closed on this side".to_owned());
    }
}

impl Drop for Shutdown {
    fn drop(&mut self) {
        self.now();
    }
}

impl std::fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shutdown")
    }
}
