//! An NFSv4.1 session: compounds behind SEQUENCE, several at a time, over one or more connections.
//!
//! Invariants
//! * A request has a slot from before it is sent until its answer was read. A request whose answer
//!   is not waited for keeps its slot for ever, because it may still be running.
//! * No lock is held while a thread waits for the server.

use crate::back::BackChannel;
use crate::compound::{Compound, Results};
use crate::connection::{Connection, PendingCall};
use crate::error::NfsError;
use crate::limits::PATIENCE;
use crate::slots::Slots;
use dafs_mem::{Condvar, Mutex, RwLock};
use dafs_wire::nfs4::{
    CreateSessionResult, DestroySessionArgs, Op, ReclaimCompleteArgs, SequenceArgs, SequenceResult,
    SequenceStatus, SessionId, Status,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// A session; clones share it.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    granted: CreateSessionResult,
    back: Arc<BackChannel>,
    client_id: u64,
    minor_version: u32,
    connections: RwLock<Vec<Connection>>,
    turn: AtomicUsize,
    slots: Mutex<Slots>,
    freed: Condvar,
    status: AtomicU32,
}

impl Shared {
    /// Ends the request of a slot.
    fn release(&self, args: &SequenceArgs, result: Option<&SequenceResult>) {
        match result {
            Some(result) => self.slots.lock().done(result),
            None => self.slots.lock().not_counted(args.slot_id),
        }
        self.freed.notify_one();
    }
}

/// A compound that was sent.
#[derive(Debug)]
#[must_use = "the slot is used up until the answer is read"]
pub struct PendingCompound {
    shared: Arc<Shared>,
    call: PendingCall,
    sequence: SequenceArgs,
}

impl Session {
    /// The session that CREATE_SESSION made on this connection.
    pub fn new(
        connection: Connection,
        client_id: u64,
        minor_version: u32,
        granted: CreateSessionResult,
        back: Arc<BackChannel>,
    ) -> Self {
        let slots = Slots::new(granted.session_id, granted.fore.requests_max);
        let shared = Shared {
            granted,
            back,
            client_id,
            minor_version,
            connections: RwLock::new(vec![connection]),
            turn: AtomicUsize::new(0),
            slots: Mutex::new(slots),
            freed: Condvar::new(),
            status: AtomicU32::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The session id.
    pub fn id(&self) -> SessionId {
        self.shared.granted.session_id
    }

    /// The parameters that CREATE_SESSION granted.
    pub fn granted(&self) -> &CreateSessionResult {
        &self.shared.granted
    }

    /// The back channel, for further connections.
    pub fn back_channel(&self) -> &Arc<BackChannel> {
        &self.shared.back
    }

    /// The client whose session it is.
    pub fn client_id(&self) -> u64 {
        self.shared.client_id
    }

    /// The minor version of the session's compounds.
    pub fn minor_version(&self) -> u32 {
        self.shared.minor_version
    }

    /// The flags about the client's state in the last SEQUENCE.
    pub fn status(&self) -> SequenceStatus {
        SequenceStatus::from_bits_retain(self.shared.status.load(Ordering::Relaxed))
    }

    /// Uses one more connection, which is bound to the session already or gets bound by its first
    /// SEQUENCE (RFC 8881 2.10.3.1).
    pub fn add_connection(&self, connection: Connection) {
        let mut connections = self.shared.connections.write();
        connections.push(connection);
    }

    /// Uses only this connection from now on.
    pub fn replace_connections(&self, connection: Connection) {
        let mut connections = self.shared.connections.write();
        *connections = vec![connection];
    }

    /// The next connection, in turn.
    pub fn connection(&self) -> Connection {
        let connections = self.shared.connections.read();
        let turn = self.shared.turn.fetch_add(1, Ordering::Relaxed);
        connections[turn % connections.len()].clone()
    }

    /// Sends a compound: SEQUENCE and the operations that `build` appends. Waits for a free slot if
    /// there is none, so a thread that sends several has to take answers before the slots are used
    /// up.
    ///
    /// # Errors
    /// [`NfsError::Call`] when it cannot be sent.
    pub fn submit(
        &self,
        cache_this: bool,
        build: impl FnOnce(&mut Compound),
    ) -> Result<PendingCompound, NfsError> {
        let (compound, sequence) = self.begin(cache_this, build);
        let call = self.connection().submit_compound(&compound);
        self.pending(call, sequence)
    }

    /// As [`Session::submit`], but the compound is sent with the next one, or when a thread waits
    /// for an answer. For many small requests at a time.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn queue(
        &self,
        cache_this: bool,
        build: impl FnOnce(&mut Compound),
    ) -> Result<PendingCompound, NfsError> {
        let (compound, sequence) = self.begin(cache_this, build);
        let call = self.connection().queue_compound(&compound);
        self.pending(call, sequence)
    }

    /// As [`Session::submit`], with bytes behind the operations that `build` appends, which are
    /// not copied: the last operation's opaque data. They are padded here.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn submit_with_data(
        &self,
        data: &[u8],
        build: impl FnOnce(&mut Compound),
    ) -> Result<PendingCompound, NfsError> {
        let (mut compound, sequence) = self.begin(false, build);
        let padding = compound.append_length(data.len());
        let call = self.connection().submit_pieces(&[compound.bytes(), data, padding]);
        self.pending(call, sequence)
    }

    /// A compound that begins with SEQUENCE for a slot that was free.
    fn begin(
        &self,
        cache_this: bool,
        build: impl FnOnce(&mut Compound),
    ) -> (Compound, SequenceArgs) {
        let sequence = self.take_slot(cache_this);
        let mut compound = Compound::new(self.shared.minor_version);
        compound.op(&Op::Sequence(sequence));
        build(&mut compound);
        (compound, sequence)
    }

    fn pending(
        &self,
        call: Result<PendingCall, NfsError>,
        sequence: SequenceArgs,
    ) -> Result<PendingCompound, NfsError> {
        match call {
            Ok(call) => Ok(PendingCompound { shared: self.shared.clone(), call, sequence }),
            Err(error) => {
                self.shared.release(&sequence, None);
                Err(error)
            }
        }
    }

    /// Sends a compound whose answer the server need not keep, and waits for the answer.
    ///
    /// # Errors
    /// Those of [`Session::submit`] and [`PendingCompound::wait`].
    pub fn call(&self, build: impl FnOnce(&mut Compound)) -> Result<Results, NfsError> {
        self.submit(false, build)?.wait()
    }

    /// Sends a compound whose answer the server has to keep, and waits for the answer.
    ///
    /// # Errors
    /// Those of [`Session::submit`] and [`PendingCompound::wait`].
    pub fn call_cached(&self, build: impl FnOnce(&mut Compound)) -> Result<Results, NfsError> {
        self.submit(true, build)?.wait()
    }

    /// Takes a slot without sending a request, for callers that make their own SEQUENCE.
    pub fn take_slot(&self, cache_this: bool) -> SequenceArgs {
        let mut slots = self.shared.slots.lock();
        loop {
            if let Some(sequence) = slots.take(cache_this) {
                return sequence;
            }
            slots = self.shared.freed.wait(slots);
        }
    }

    /// Frees a slot of [`Session::take_slot`]. Without a result it counts as never used.
    pub fn give_slot(&self, sequence: &SequenceArgs, result: Option<&SequenceResult>) {
        self.shared.release(sequence, result);
    }

    /// Renews the lease.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn renew(&self) -> Result<SequenceStatus, NfsError> {
        self.call(|_| {})?.finish()?;
        Ok(self.status())
    }

    /// Sends RECLAIM_COMPLETE (RFC 8881 18.51), and retries while the server answers DELAY. A
    /// server whose grace period ends in this moment removes the records of clients that did not
    /// come back, and accepts none meanwhile.
    ///
    /// # Errors
    /// Those of [`Session::call`]; COMPLETE_ALREADY the second time.
    pub fn reclaim_complete(&self) -> Result<(), NfsError> {
        patiently(|| {
            self.call_cached(|compound| {
                compound.op(&Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false }));
            })?
            .finish()
        })
    }

    /// Ends the session.
    ///
    /// # Errors
    /// [`NfsError::Status`], [`NfsError::Call`].
    pub fn destroy(&self) -> Result<(), NfsError> {
        let mut compound = Compound::new(self.shared.minor_version);
        compound.op(&Op::DestroySession(DestroySessionArgs { session_id: self.id() }));
        self.connection().compound(&compound)?.finish()
    }
}

impl PendingCompound {
    /// Waits for the answer and takes the result of SEQUENCE off it.
    ///
    /// # Errors
    /// [`NfsError::Call`] when the call failed, [`NfsError::Status`] when SEQUENCE did,
    /// [`NfsError::Malformed`].
    pub fn wait(self) -> Result<Results, NfsError> {
        let mut results = self.call.wait()?;
        match results.take_sequence() {
            Ok(result) => {
                self.shared.status.store(result.status.bits(), Ordering::Relaxed);
                self.shared.release(&self.sequence, Some(&result));
                Ok(results)
            }
            Err(error) => {
                self.shared.release(&self.sequence, None);
                Err(error)
            }
        }
    }

    /// True when [`PendingCompound::wait`] would not block.
    pub fn is_answered(&self) -> bool {
        self.call.is_answered()
    }

    /// The slot and sequence number of the request.
    pub fn sequence(&self) -> &SequenceArgs {
        &self.sequence
    }
}

/// Retries an operation while the server answers DELAY or GRACE.
///
/// # Errors
/// Those of the operation; DELAY and GRACE when the server still answers so after [`PATIENCE`].
pub fn patiently<T>(mut operation: impl FnMut() -> Result<T, NfsError>) -> Result<T, NfsError> {
    let mut waited = Duration::ZERO;
    let mut pause = Duration::from_millis(1);
    loop {
        match operation() {
            Err(error)
                if matches!(error.status(), Some(Status::Delay | Status::Grace))
                    && waited < PATIENCE =>
            {
                std::thread::sleep(pause);
                waited += pause;
                pause = (pause * 2).min(Duration::from_millis(100));
            }
            other => return other,
        }
    }
}
