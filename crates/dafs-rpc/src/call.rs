//! A call as a handler sees it, and the ways to answer later or to call back.

use crate::inbox::{BackCall, Command, Inbox};
use crate::memory::Block;
use crate::reply::{Rejection, Reply};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::AuthSys;
use std::cell::Cell;
use std::net::SocketAddr;
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
    /// The arguments, in XDR.
    pub args: &'a [u8],
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// The connection.
    pub connection_id: ConnectionId,
    /// Monotonic time when the call was taken up, in nanoseconds (`CLOCK_MONOTONIC`).
    pub now_ns: u64,
    pub(crate) inbox: &'a Arc<Inbox>,
    /// The block that holds the record, if it has one of its own.
    pub(crate) block: Option<&'a Arc<Block>>,
    /// Memory that the record takes while it is kept.
    pub(crate) held_bytes: usize,
    /// Set when somebody will answer later.
    pub(crate) put_off: &'a Cell<bool>,
}

impl Call<'_> {
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
        let (xid, held_bytes) = (self.xid, self.held_bytes);
        let responder =
            Responder { connection: self.connection(), xid, held_bytes, answered: false };
        (OwnedArgs(args), responder)
    }

    /// The connection, to keep and to call back on.
    pub fn connection(&self) -> ConnectionRef {
        ConnectionRef::new(self.connection_id, self.inbox.clone())
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
pub struct OwnedArgs(Arguments);

#[derive(Debug)]
enum Arguments {
    Copied(Box<[u8]>),
    Block { block: Arc<Block>, start: usize, len: usize },
}

impl Deref for OwnedArgs {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
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
        let ConnectionRef { id: connection, inbox } = &self.connection;
        let (connection, xid, held_bytes) = (*connection, self.xid, self.held_bytes);
        inbox.push(Command::Answer { connection, xid, answer, held_bytes });
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
}

impl ConnectionRef {
    pub(crate) fn new(id: ConnectionId, inbox: Arc<Inbox>) -> Self {
        Self { id, inbox }
    }

    /// Which connection.
    pub fn id(&self) -> ConnectionId {
        self.id
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
