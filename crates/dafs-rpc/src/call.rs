//! A call as a handler sees it, deferred answers, and callbacks.

use crate::answer::{self, AnswerTo, Protection};
use crate::call_chunks::CallChunks;
use crate::gss::{Context, InitAnswer};
use crate::inbox::{CallbackRequest, Command, Inbox};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use crate::tls::TransportSecurity;
use dafs_dat::connections::{Admitted, Origin};
use dafs_dat::{PeerInfo, PeerProcess};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::AuthSys;
use dafs_wire::rpc::gss::Service;
use dafs_wire::xdr::{Decoder, MovedData, padded};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

/// Names one connection of one server. It is never reused for a later connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    const SLOT_BITS: u32 = 20;
    const REACTOR_BITS: u32 = 8;

    /// Names the `serial`-th connection in `slot` of a reactor.
    pub(crate) fn new(reactor: u8, slot: u32, serial: u64) -> Self {
        debug_assert!(slot < Self::slots_max());
        let low = u64::from(reactor) << Self::SLOT_BITS | u64::from(slot);
        Self(serial << (Self::SLOT_BITS + Self::REACTOR_BITS) | low)
    }

    pub(crate) const fn slots_max() -> u32 {
        1 << Self::SLOT_BITS
    }

    pub(crate) fn slot(self) -> usize {
        (self.0 & u64::from(Self::slots_max() - 1)) as usize
    }

    /// The number, for logs.
    pub fn to_u64(self) -> u64 {
        self.0
    }
}

impl std::fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionId({:#x})", self.0)
    }
}

/// The caller's identity, as far as the transport and the credential state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential<'a> {
    /// The caller states no identity (AUTH_NONE).
    None,
    /// The caller's own claim, without proof (AUTH_SYS).
    Sys(AuthSys<'a>),
    /// The caller has proven its name (RPCSEC_GSS).
    Gss {
        /// Its context.
        context: &'a Arc<Context>,
        /// The protection of this call.
        service: Service,
    },
}

/// The parts of a call that change while a handler has it.
#[derive(Default)]
pub(crate) struct CallState {
    deferred: Cell<bool>,
    protection: Cell<Protection>,
}

impl std::fmt::Debug for CallState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallState").field("deferred", &self.deferred).finish_non_exhaustive()
    }
}

impl CallState {
    pub(crate) fn new(protection: Protection) -> Self {
        Self { deferred: Cell::new(false), protection: Cell::new(protection) }
    }

    /// True when the handler has deferred the answer.
    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred.get()
    }

    pub(crate) fn take_protection(&self) -> Protection {
        self.protection.take()
    }
}

/// The calling process, as far as the kernel of this host knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallerProcess {
    /// The process runs on another host.
    #[default]
    Elsewhere,
    /// This process of this host.
    Known(PeerProcess),
    /// A process of this host whose user is unknown.
    Unknown,
}

impl CallerProcess {
    /// The origin that resource limits are counted for: the host of a remote caller, or the user of
    /// a caller on this host.
    pub(crate) fn host(self, address: IpAddr) -> Origin {
        match self {
            Self::Known(process) => Origin::User(process.uid),
            Self::Unknown => Origin::of_address(Ipv4Addr::LOCALHOST.into()),
            Self::Elsewhere => Origin::of_address(address),
        }
    }
}

impl From<&PeerInfo> for CallerProcess {
    fn from(peer: &PeerInfo) -> Self {
        match (peer.process, peer.is_local) {
            (Some(process), _) => Self::Known(process),
            (None, true) => Self::Unknown,
            (None, false) => Self::Elsewhere,
        }
    }
}

/// A call from a peer.
#[derive(Debug)]
pub struct Call<'a> {
    /// The XID that the caller chose.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential<'a>,
    /// The arguments, in XDR, without the data that the transport moved outside of the message.
    pub args: &'a [u8],
    /// The address of the peer. A process on this host that connects over shared memory appears as
    /// a port of the loopback address. The port is privileged if the kernel reports that the
    /// process runs as the superuser or as the user of this server.
    pub peer: SocketAddr,
    /// The calling process.
    pub process: CallerProcess,
    /// True when the connection is over RDMA or a transport that behaves like RDMA.
    pub is_rdma: bool,
    /// The protection of the connection. Shared memory counts as `Mtls`: the bytes leave this host
    /// nowhere, and its kernel vouches for the process.
    pub security: TransportSecurity,
    /// The user that the client's certificate names, as `user@domain`, where this server has rules
    /// for such names. It is proven, and the same for all calls of the connection.
    pub user: Option<&'a Arc<str>>,
    /// The connection.
    pub connection_id: ConnectionId,
    /// Monotonic time at which the reactor took the call, in nanoseconds (`CLOCK_MONOTONIC`).
    pub now_ns: u64,
    pub(crate) admitted: Option<&'a Arc<Admitted>>,
    pub(crate) inbox: &'a Arc<Inbox>,
    /// The block that holds the record, if it has one of its own.
    pub(crate) block: Option<&'a Arc<Block>>,
    /// The chunks of a call over RDMA.
    pub(crate) call_chunks: Option<&'a Arc<CallChunks>>,
    /// False if arguments and results are protected as a whole, so that no data of theirs may have
    /// a chunk of its own.
    pub(crate) is_reducible: bool,
    /// Bytes of the message.
    pub(crate) message_bytes: usize,
    /// Bytes of a successful reply beside its results.
    pub(crate) reply_bytes_beside_results: usize,
    /// Memory that the record takes while the handler keeps it.
    pub(crate) held_bytes: usize,
    pub(crate) state: &'a CallState,
}

impl<'a> Call<'a> {
    /// The chunks of DDP-eligible data. Under RPCSEC_GSS with integrity or privacy there are none,
    /// whatever the caller has sent (RFC 8166 section 8.2.2).
    fn data_chunks(&self) -> Option<&'a Arc<CallChunks>> {
        self.call_chunks.filter(|_| self.is_reducible)
    }

    /// A decoder of the arguments that knows where the transport moved data out of them.
    pub fn decoder(&self) -> Decoder<'a> {
        decoder(self.args, self.data_chunks())
    }

    /// The data of an argument that the transport moved outside of the message.
    pub fn data(&self, moved: &MovedData) -> Option<VolatileSlice<'a>> {
        self.data_chunks()?.data(moved)
    }

    /// Empty results. Their bulk data goes into the caller's memory if the transport can place it
    /// there, and the protection of the results allows it.
    pub fn reply(&self) -> Reply {
        Reply::for_call_chunks(self.data_chunks())
    }

    /// Bytes of the call: the header with credential and verifier, and the arguments with their
    /// protection (RFC 5531 section 9), wherever the transport has moved them. Record marks and the
    /// headers of RPC-over-RDMA do not count.
    pub fn call_bytes(&self) -> usize {
        let moved = self.decoder().moved().iter();
        moved.fold(self.message_bytes, |sum, item| sum.saturating_add(padded(item.len)))
    }

    /// Bytes of a successful reply beside its results: the header with its verifier (RFC 5531
    /// section 9), and the protection of the results (RFC 2203 section 5.3.2). Record marks and the
    /// headers of RPC-over-RDMA do not count.
    pub fn reply_bytes_beside_results(&self) -> usize {
        self.reply_bytes_beside_results
    }

    /// Defers the answer: returns the arguments and a responder, which another thread may use.
    /// Return [`crate::Handled::Later`] then. Large arguments are not copied.
    pub fn later(self) -> (OwnedArgs, Responder) {
        let args = match self.block {
            Some(block) => {
                let start = self.args.as_ptr() as usize - block.bytes().as_ptr() as usize;
                Arguments::Block { block: block.clone(), start, len: self.args.len() }
            }
            None => Arguments::Copied(private_copy(self.args)),
        };
        self.state.deferred.set(true);
        let call_chunks = self.data_chunks().cloned();
        // The answer uses the reply chunk, whatever the protection is.
        let chunks = self.call_chunks.cloned();
        let mut responder = Responder::new(self.connection(), self.xid, self.held_bytes, chunks);
        responder.protection = self.state.take_protection();
        (OwnedArgs { args, call_chunks }, responder)
    }

    /// A handle to the connection, for callbacks.
    pub fn connection(&self) -> ConnectionRef {
        let admitted = self.admitted.cloned();
        ConnectionRef { id: self.connection_id, inbox: self.inbox.clone(), admitted }
    }
}

/// A private copy of arguments; the copy counts as one in the statistics of copies.
fn private_copy(args: &[u8]) -> Box<[u8]> {
    let mut copy = vec![0; args.len()];
    VolatileSlice::from_mut(&mut copy).copy_from(args, Site::RpcDeferred);
    copy.into()
}

/// The arguments of a call whose answer was deferred.
#[derive(Debug)]
pub struct OwnedArgs {
    args: Arguments,
    call_chunks: Option<Arc<CallChunks>>,
}

#[derive(Debug)]
enum Arguments {
    Copied(Box<[u8]>),
    Block { block: Arc<Block>, start: usize, len: usize },
}

impl OwnedArgs {
    /// Reads the arguments; see [`Call::decoder`].
    pub fn decoder(&self) -> Decoder<'_> {
        decoder(self, self.call_chunks.as_ref())
    }

    /// The data of an argument that the transport moved outside of the message; see [`Call::data`].
    pub fn data(&self, moved: &MovedData) -> Option<VolatileSlice<'_>> {
        self.call_chunks.as_ref()?.data(moved)
    }

    /// Empty results for the same call; see [`Call::reply`].
    pub fn reply(&self) -> Reply {
        Reply::for_call_chunks(self.call_chunks.as_ref())
    }
}

fn decoder<'a>(args: &'a [u8], call_chunks: Option<&'a Arc<CallChunks>>) -> Decoder<'a> {
    match call_chunks {
        Some(call_chunks) => Decoder::with_moved(args, &call_chunks.items),
        None => Decoder::new(args),
    }
}

impl Deref for OwnedArgs {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.args {
            Arguments::Copied(bytes) => bytes,
            // INVARIANT: the range was that of arguments inside this block, and a shared block
            // never changes.
            Arguments::Block { block, start, len } => &block.bytes()[*start..*start + *len],
        }
    }
}

/// Answers one deferred call, once, from any thread. If it is dropped without an answer, the server
/// frees the call's slot and the caller gets no reply.
#[derive(Debug)]
pub struct Responder {
    connection: ConnectionRef,
    xid: u32,
    protection: Protection,
    held_bytes: usize,
    call_chunks: Option<Arc<CallChunks>>,
    answered: bool,
}

impl Responder {
    pub(crate) fn new(
        connection: ConnectionRef,
        xid: u32,
        held_bytes: usize,
        call_chunks: Option<Arc<CallChunks>>,
    ) -> Self {
        let protection = Protection::None;
        Self { connection, xid, protection, held_bytes, call_chunks, answered: false }
    }

    /// Answers a request for a context.
    pub(crate) fn respond_init(mut self, answer: &InitAnswer) {
        self.protection = Protection::Applied;
        let reply = answer::of_init(self.xid, answer);
        self.answer(Ok(reply));
    }

    /// Sends the results.
    pub fn respond(self, reply: Reply) {
        self.answer(Ok(reply));
    }

    /// Rejects the call; it has no results.
    pub fn reject(self, rejection: Rejection) {
        self.answer(Err(rejection));
    }

    fn answer(mut self, answer: Result<Reply, Rejection>) {
        self.answered = true;
        let ConnectionRef { id: connection, inbox, .. } = &self.connection;
        let (connection, xid, held_bytes) = (*connection, self.xid, self.held_bytes);
        let call_chunks = self.call_chunks.take();
        let mut to = AnswerTo { xid, protection: std::mem::take(&mut self.protection) };
        let answer = match to.protection {
            // This thread has the results, and reactors have others to serve.
            Protection::Gss(_) => {
                let reply = to.complete(answer);
                to = AnswerTo { xid, protection: Protection::Applied };
                Ok(reply)
            }
            Protection::None | Protection::Applied => answer,
        };
        inbox.push(Command::Answer { connection, to, answer, held_bytes, call_chunks });
    }

    /// The connection on which the call arrived.
    pub fn connection(&self) -> &ConnectionRef {
        &self.connection
    }

    /// The XID that the caller chose.
    pub fn xid(&self) -> u32 {
        self.xid
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let (connection, held_bytes) = (self.connection.id, self.held_bytes);
            self.connection.inbox.push(Command::Forget { connection, held_bytes });
        }
    }
}

/// A handle to one connection, for callbacks and for closing it. The handle does not keep the
/// connection open.
#[derive(Clone)]
pub struct ConnectionRef {
    id: ConnectionId,
    inbox: Arc<Inbox>,
    admitted: Option<Arc<Admitted>>,
}

impl ConnectionRef {
    pub(crate) fn new(id: ConnectionId, inbox: Arc<Inbox>) -> Self {
        Self::of(id, inbox, None)
    }

    pub(crate) fn of(id: ConnectionId, inbox: Arc<Inbox>, admitted: Option<Arc<Admitted>>) -> Self {
        Self { id, inbox, admitted }
    }

    /// The identifier of the connection.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Marks the connection as established: the server does not close it to make room for another.
    pub fn establish(&self) {
        if let Some(admitted) = &self.admitted {
            admitted.establish();
        }
    }

    /// Sends a callback to the peer. The `back_reply` of the handler that owns the connection gets
    /// the result, or the error, with `call.token`.
    pub fn send_callback(&self, call: CallbackRequest) {
        self.inbox.push(Command::CallBack { connection: self.id, call });
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.inbox.push(Command::Close { connection: self.id });
    }
}

impl std::fmt::Debug for ConnectionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionRef({:#x})", self.id.0)
    }
}
