//! NFSv3 calls, retried over new connections until they are answered.
//!
//! Invariants
//! * A retry of a call that is not idempotent keeps its XID, so that a server with a replay cache
//!   (RFC 1813 4.5) does not carry it out twice. Other calls get a new XID, because a server may
//!   drop a duplicate while it works on the first one. A call that was answered with JUKEBOX gets a
//!   new XID, too, because that answer is in the replay cache.

use crate::mount::error::{MountError, Result};
use crate::mount::limits::SMALL_RESULT_BYTES;
use crate::mount::link::{Connected, Link, is_loss};
use crate::mount::retry_timer::RetryTimer;
use dafs_rpc::client::{
    CallError, Locate, MemorySlice, Pending, Procedure as RpcProcedure, Request, Results, SendData,
};
use dafs_wire::nfs3::{PROGRAM, Procedure, Status, VERSION, read_results};
use dafs_wire::nfs4;
use dafs_wire::xdr::{Decode, Encode, Encoder};

/// A call that is ready to be sent, with its memory.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) procedure: RpcProcedure,
    pub(super) args: Vec<u8>,
    /// The data at the end of the arguments.
    pub(super) data: Option<MemorySlice>,
    /// The memory for the data of the results, and the function that finds the data over TCP.
    pub(super) sink: Option<(MemorySlice, Locate)>,
    pub(super) results_bytes_max: usize,
    /// True when it is not idempotent.
    pub(super) once: bool,
}

impl Message {
    pub(super) fn new(procedure: Procedure, args: &impl Encode) -> Self {
        let rpc =
            RpcProcedure { program: PROGRAM, version: VERSION, procedure: procedure.number() };
        let once = is_change(procedure);
        let mut bytes = Vec::with_capacity(128);
        args.encode(&mut Encoder::new(&mut bytes));
        let results_bytes_max = SMALL_RESULT_BYTES;
        Self { procedure: rpc, args: bytes, data: None, sink: None, results_bytes_max, once }
    }

    fn send(&self, connected: &Connected, xid: Option<u32>) -> Result<Pending, CallError> {
        let args = [&self.args[..]];
        let mut request = Request::new(self.procedure, &args, self.results_bytes_max);
        request.xid = xid;
        request.data = self
            .data
            .as_ref()
            .map(|memory| SendData { position: self.args.len(), memory: memory.clone() });
        if let Some((memory, locate)) = &self.sink {
            request.sinks = std::slice::from_ref(memory);
            request.locate = Some(*locate);
        }
        connected.rpc.submit_request(&request)
    }
}

/// True for a procedure that is not idempotent.
fn is_change(procedure: Procedure) -> bool {
    matches!(
        procedure,
        Procedure::Setattr
            | Procedure::Create
            | Procedure::Mkdir
            | Procedure::Symlink
            | Procedure::Mknod
            | Procedure::Remove
            | Procedure::Rmdir
            | Procedure::Rename
            | Procedure::Link
    )
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Exchange {
    message: Message,
    connected: Connected,
    pending: Result<Pending, CallError>,
}

impl Exchange {
    pub(super) fn begin(link: &Link, message: Message) -> Self {
        if message.sink.is_some() {
            link.route().look();
        }
        let connected = link.connected();
        let pending = message.send(&connected, None);
        Self { message, connected, pending }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.pending.as_ref().map_or(true, Pending::is_answered)
    }

    /// Waits for the answer. Returns the call too, for another attempt.
    pub(super) fn finish(
        self,
        link: &Link,
        retry_timer: &mut RetryTimer,
    ) -> Result<(Results, Message)> {
        let Self { message, mut connected, mut pending } = self;
        let mut xid = None;
        loop {
            if message.once {
                xid = xid.or(pending.as_ref().ok().map(Pending::xid));
            }
            match pending.and_then(|pending| link.wait(pending)) {
                Ok(results) => {
                    link.note_answer();
                    return Ok((results, message));
                }
                Err(error) if is_loss(&error) => {
                    connected = link.reconnect(&connected, &error, retry_timer)?;
                }
                Err(error) => return Err(link.rejected(error)),
            }
            let spoiled = message.sink.as_ref().is_some_and(|(sink, _)| sink.memory().is_spoiled());
            if spoiled {
                return Err(MountError::spoiled());
            }
            pending = message.send(&connected, xid);
        }
    }
}

/// Calls, and retries while the server answers JUKEBOX.
pub(super) fn call(
    link: &Link,
    procedure: Procedure,
    args: &impl Encode,
    results_bytes_max: usize,
) -> Result<Results> {
    let mut retry_timer = link.retry_timer();
    let mut message = Message::new(procedure, args);
    message.results_bytes_max = results_bytes_max;
    loop {
        let exchange = Exchange::begin(link, message);
        let (results, again) = exchange.finish(link, &mut retry_timer)?;
        if !is_put_off(&results) || !retry_timer.pause() {
            return Ok(results);
        }
        message = again;
    }
}

/// True when the server answers JUKEBOX.
pub(super) fn is_put_off(results: &[u8]) -> bool {
    results.starts_with(&(Status::Jukebox as u32).to_be_bytes())
}

/// The results of a procedure, or its refusal.
pub(super) fn decoded<'a, T: Decode<'a>, F: Decode<'a>>(
    procedure: Procedure,
    results: &'a Results,
) -> Result<T> {
    read_results::<T, F>(results.decoder())?.map_err(|failure| MountError::Refused {
        operation: procedure.name(),
        status: status4(failure.status),
    })
}

/// The status of NFSv4 with the same meaning: the numbers are the same.
fn status4(status: Status) -> nfs4::Status {
    nfs4::Status::from_u32(status as u32)
}
