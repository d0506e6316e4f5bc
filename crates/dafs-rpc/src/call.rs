//! A call as a handler sees it, and the ways to answer later or to call back.

use crate::exchange::Exchange;
use crate::inbox::{BackCall, Command, Inbox};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use dafs_dat::connections::{Admitted, Origin};
use dafs_dat::{PeerInfo, PeerProcess};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::AuthSys;
use dafs_wire::xdr::{Apart, Decoder};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

/// Names one connection of one server for ever: no later connection has the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    const SLOT_BITS: u32 = 20;
    const REACTOR_BITS: u32 = 8;

    /// The name of a connection in `slot` of a reactor, the `serial`-th there.
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

/// Who calls, as far as the transport and the credential say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential<'a> {
    /// Nobody says.
    None,
    /// The caller says so itself (AUTH_SYS).
    Sys(AuthSys<'a>),
}

/// The process that calls, as far as the kernel of this host knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallerProcess {
    /// It is on another host.
    #[default]
    Elsewhere,
    /// It is this one of this host.
    Known(PeerProcess),
    /// It is one of this host, and may be any user's.
    Unknown,
}

impl CallerProcess {
    /// With whom it shares what all have in common: the others of its host, or on this host of its user.
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

/// A call that has arrived.
#[derive(Debug)]
pub struct Call<'a> {
    /// The caller's number for it.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential<'a>,
    /// The arguments, in XDR, without the data that the transport has moved by itself.
    pub args: &'a [u8],
    /// The other end of the connection. That of a process on this host which came over shared
    /// memory is a port of the loopback address: a privileged one if the system says that it runs
    /// as the superuser or as this process's own user.
    pub peer: SocketAddr,
    /// Which process calls.
    pub process: CallerProcess,
    /// Whether the connection is one over RDMA, or something that behaves like it.
    pub is_rdma: bool,
    /// The connection.
    pub connection_id: ConnectionId,
    /// Monotonic time when the call was taken up, in nanoseconds (`CLOCK_MONOTONIC`).
    pub now_ns: u64,
    pub(crate) admitted: Option<&'a Arc<Admitted>>,
    pub(crate) inbox: &'a Arc<Inbox>,
    /// The block that holds the record, if it has one of its own.
    pub(crate) block: Option<&'a Arc<Block>>,
    /// What came besides the record over RDMA.
    pub(crate) exchange: Option<&'a Arc<Exchange>>,
    /// Memory that the record takes while it is kept.
    pub(crate) held_bytes: usize,
    /// Set when somebody will answer later.
    pub(crate) put_off: &'a Cell<bool>,
}

impl<'a> Call<'a> {
    /// Reads the arguments; knows where data is missing that the transport has moved by itself.
    pub fn decoder(&self) -> Decoder<'a> {
        decoder(self.args, self.exchange)
    }

    /// Such data.
    pub fn data(&self, apart: &Apart) -> Option<VolatileSlice<'a>> {
        self.exchange?.data(apart)
    }

    /// Empty results, whose bulk data goes where the caller wants it: into its memory, if the
    /// transport can do that.
    pub fn reply(&self) -> Reply {
        Reply::for_exchange(self.exchange)
    }

    /// Puts the answer off: what is needed to go on elsewhere and to answer from there. Return
    /// [`crate::Handled::Later`] then. Large arguments are not copied.
    pub fn later(self) -> (OwnedArgs, Responder) {
        let args = match self.block {
            Some(block) => {
                let start = self.args.as_ptr() as usize - block.bytes().as_ptr() as usize;
                Arguments::Block { block: block.clone(), start, len: self.args.len() }
            }
            None => Arguments::Copied(private_copy(self.args)),
        };
        self.put_off.set(true);
        let exchange = self.exchange.cloned();
        let responder = Responder {
            connection: self.connection(),
            xid: self.xid,
            held_bytes: self.held_bytes,
            exchange: exchange.clone(),
            answered: false,
        };
        (OwnedArgs { args, exchange }, responder)
    }

    /// The connection, to keep and to call back on.
    pub fn connection(&self) -> ConnectionRef {
        let admitted = self.admitted.cloned();
        ConnectionRef { id: self.connection_id, inbox: self.inbox.clone(), admitted }
    }
}

/// A private copy of arguments, counted as such.
fn private_copy(args: &[u8]) -> Box<[u8]> {
    let mut copy = vec![0; args.len()];
    VolatileSlice::from_mut(&mut copy).copy_from(args, Site::RpcDeferred);
    copy.into()
}

/// Arguments of a call whose answer was put off.
#[derive(Debug)]
pub struct OwnedArgs {
    args: Arguments,
    exchange: Option<Arc<Exchange>>,
}

#[derive(Debug)]
enum Arguments {
    Copied(Box<[u8]>),
    Block { block: Arc<Block>, start: usize, len: usize },
}

impl OwnedArgs {
    /// Reads the arguments; see [`Call::decoder`].
    pub fn decoder(&self) -> Decoder<'_> {
        decoder(self, self.exchange.as_ref())
    }

    /// Data that the transport has moved by itself; see [`Call::data`].
    pub fn data(&self, apart: &Apart) -> Option<VolatileSlice<'_>> {
        self.exchange.as_ref()?.data(apart)
    }

    /// Empty results for the same call; see [`Call::reply`].
    pub fn reply(&self) -> Reply {
        Reply::for_exchange(self.exchange.as_ref())
    }
}

fn decoder<'a>(args: &'a [u8], exchange: Option<&'a Arc<Exchange>>) -> Decoder<'a> {
    match exchange {
        Some(exchange) => Decoder::with_apart(args, &exchange.items),
        None => Decoder::new(args),
    }
}

impl Deref for OwnedArgs {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.args {
            Arguments::Copied(bytes) => bytes,
            // INVARIANT: the range was that of arguments inside this block, which is never
            // changed while it is shared.
            Arguments::Block { block, start, len } => &block.bytes()[*start..*start + *len],
        }
    }
}

/// Answers one call, once, from any thread. Dropped without an answer, it frees the call's place
/// and the caller gets none.
#[derive(Debug)]
pub struct Responder {
    connection: ConnectionRef,
    xid: u32,
    held_bytes: usize,
    exchange: Option<Arc<Exchange>>,
    answered: bool,
}

impl Responder {
    /// Sends the results.
    pub fn respond(self, reply: Reply) {
        self.answer(Ok(reply));
    }

    /// Says that there are no results.
    pub fn reject(self, rejection: Rejection) {
        self.answer(Err(rejection));
    }

    fn answer(mut self, answer: Result<Reply, Rejection>) {
        self.answered = true;
        let ConnectionRef { id: connection, inbox, .. } = &self.connection;
        let (connection, xid, held_bytes) = (*connection, self.xid, self.held_bytes);
        let exchange = self.exchange.take();
        inbox.push(Command::Answer { connection, xid, answer, held_bytes, exchange });
    }

    /// The connection that the call came over.
    pub fn connection(&self) -> &ConnectionRef {
        &self.connection
    }

    /// The caller's number for the call.
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

/// One connection, to be kept by whoever wants to call back or to end it. Holding it does not
/// keep the connection open.
#[derive(Clone)]
pub struct ConnectionRef {
    id: ConnectionId,
    inbox: Arc<Inbox>,
    admitted: Option<Arc<Admitted>>,
}

impl ConnectionRef {
    pub(crate) fn new(id: ConnectionId, inbox: Arc<Inbox>) -> Self {
        Self { id, inbox, admitted: None }
    }

    /// Which connection.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The connection is of use: it will not be closed to make room for others.
    pub fn establish(&self) {
        if let Some(admitted) = &self.admitted {
            admitted.establish();
        }
    }

    /// Sends a call to the peer. The answer, or why there is none, comes to the `back_reply` of
    /// the handler that owns the connection, with `call.token`.
    pub fn call_back(&self, call: BackCall) {
        self.inbox.push(Command::CallBack { connection: self.id, call });
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.inbox.push(Command::Close { connection: self.id });
    }
}

impl std::fmt::Debug for ConnectionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConnectionRef({:#x})", self.id.0)
    }
}
