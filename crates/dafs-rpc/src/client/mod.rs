//! Calling programs over TCP: from several threads, many calls at a time, answers in any order.
//!
//! A client has no thread of its own for progress: of the threads that wait for answers one reads
//! for all. Only a client that can be called back has a helper, which reads while nobody waits.
//!
//! Invariants
//! * At most one thread reads at a time, and one that stops reading wakes another that waits.
//! * A record leaves whole or the connection is over.
//! * Whoever cannot send takes in what comes, so two sides never wait for each other to read.

mod core;
mod error;
#[allow(dead_code, reason = "what RDMA needs")]
mod memory;
mod options;
mod rdma;
mod request;
mod tcp;

pub use self::core::Results;
pub use error::CallError;
pub use memory::{Memory, MemorySlice};
pub use options::{Identity, Options};
pub use rdma::Port;
pub use request::{Locate, Located, Request, SendData};

use self::core::ServerCall;
use crate::reply::{Rejection, Reply};
use dafs_wire::rpc::{AuthFlavor, CallHeader, OpaqueAuth};
use dafs_wire::xdr::Encode;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tcp::{Shared, Shutdown};

/// What to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Procedure {
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
}

/// One connection to a server. Clones share it; it ends with the last of them and of the calls.
#[derive(Debug, Clone)]
pub struct RpcClient {
    shared: Arc<Shared>,
    /// Ends the connection for the helper too.
    shutdown: Arc<Shutdown>,
}

/// A call that the server makes over a connection of this client's.
#[derive(Debug)]
pub struct BackRequest {
    /// What it calls.
    pub procedure: Procedure,
    /// The arguments, in XDR.
    pub args: Vec<u8>,
    xid: u32,
    server: Server,
}

/// Where the answer to a server's call goes.
#[derive(Debug)]
enum Server {
    Tcp(Weak<Shared>),
}

impl BackRequest {
    /// Answers it; from any thread. An answer after the connection's end is lost.
    pub fn answer(self, answer: Result<Reply, Rejection>) {
        let record = match answer {
            Ok(mut reply) => {
                reply.seal(self.xid);
                reply
            }
            Err(rejection) => Reply::refusal(&rejection.header(self.xid)),
        };
        match self.server {
            Server::Tcp(client) => {
                if let Some(shared) = client.upgrade() {
                    shared.send_record(record);
                }
            }
        }
    }
}

/// Takes calls of the server. It runs on a thread that reads for all calls, so it must neither
/// wait nor call the server itself; it can hand the request to another thread.
pub type BackHandler = Box<dyn Fn(BackRequest) + Send + Sync>;

impl RpcClient {
    /// Connects to a server. `back` takes its calls; without it they are refused.
    ///
    /// # Errors
    /// When the connection cannot be made.
    pub fn connect(
        server: SocketAddr,
        options: Options,
        back: Option<BackHandler>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, options.connect_timeout)?;
        Self::from_stream(stream, options, back)
    }

    /// Uses a connection that has been made.
    ///
    /// # Errors
    /// When it cannot be set up, or there is no memory or thread.
    pub fn from_stream(
        stream: TcpStream,
        options: Options,
        back: Option<BackHandler>,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let shared = Shared::new(stream.into(), options, back)?;
        let shutdown = Arc::new(Shutdown::new(shared.clone()));
        Ok(Self { shared, shutdown })
    }

    /// Calls and waits for the results.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&self, procedure: Procedure, args: &[u8]) -> Result<Results, CallError> {
        self.submit(procedure, &[args])?.wait()
    }

    /// Sends a call whose arguments, in XDR, lie in several pieces, which are not copied.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn submit(&self, procedure: Procedure, args: &[&[u8]]) -> Result<Pending, CallError> {
        self.submit_request(&Request::new(procedure, args, self.shared.options.record_bytes_max))
    }

    /// Sends a call whose data may lie apart.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn submit_request(&self, request: &Request<'_>) -> Result<Pending, CallError> {
        self.begin(|shared, xid| shared.send(&header(shared, xid, request.procedure), request))
    }

    /// As [`RpcClient::submit`], but the call leaves with the next one that is submitted, or when
    /// anybody waits for an answer that is not there yet. For many small calls at a time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn queue(&self, procedure: Procedure, args: &[u8]) -> Result<Pending, CallError> {
        self.begin(|shared, xid| {
            shared.queue(Reply::record(|encoder| {
                header(shared, xid, procedure).encode(encoder);
                encoder.raw(args);
            }))
        })
    }

    /// Zeroed memory for the data of this client's calls.
    ///
    /// # Errors
    /// `ENOMEM` and its kind.
    pub fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        Memory::plain(bytes)
    }

    fn begin(
        &self,
        send: impl FnOnce(&Shared, u32) -> Result<(), CallError>,
    ) -> Result<Pending, CallError> {
        let xid = self.shared.core().begin()?;
        let deadline = Instant::now() + self.shared.options.call_timeout;
        // From here on a failure to send frees the number.
        let pending = Pending { client: self.clone(), xid, deadline, over: false };
        send(&self.shared, xid)?;
        Ok(pending)
    }

    /// True when the connection has ended, and every further call will fail.
    pub fn is_broken(&self) -> bool {
        self.shared.broken().is_some()
    }

    /// Ends the connection; calls that are unanswered fail.
    pub fn close(&self) {
        self.shutdown.now();
    }
}

fn header(shared: &Shared, xid: u32, procedure: Procedure) -> CallHeader<'_> {
    CallHeader {
        xid,
        program: procedure.program,
        version: procedure.version,
        procedure: procedure.procedure,
        credential: match &shared.options.identity {
            Identity::None => OpaqueAuth::NONE,
            Identity::Sys(body) => OpaqueAuth { flavor: AuthFlavor::SYS, body },
        },
        verifier: OpaqueAuth::NONE,
    }
}

/// A call on its way. Dropped, it is given up: it may be carried out, and nobody will know.
#[derive(Debug)]
pub struct Pending {
    client: RpcClient,
    xid: u32,
    deadline: Instant,
    over: bool,
}

impl Pending {
    /// Waits for the results.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(mut self) -> Result<Results, CallError> {
        self.over = true;
        self.client.shared.wait(self.xid, self.deadline)
    }

    /// True when [`Pending::wait`] would not wait. Somebody must be waiting for another call, or
    /// the client be one that can be called back, for anything to change.
    pub fn is_answered(&self) -> bool {
        self.client.shared.core().is_over(self.xid) || self.client.is_broken()
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.over {
            self.client.shared.core().forget(self.xid);
        }
    }
}

impl ServerCall {
    fn request(self, server: Server) -> BackRequest {
        let Self { xid, program, version, procedure, args } = self;
        BackRequest { procedure: Procedure { program, version, procedure }, args, xid, server }
    }
}
