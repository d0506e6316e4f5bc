//! Calling programs over TCP or RDMA: from several threads, many calls at a time, answers in any
//! order.
//!
//! A client has no thread of its own for progress: of the threads that wait for answers one reads
//! for all. Only a client that can be called back has a helper, which reads while nobody waits.
//!
//! Invariants
//! * At most one thread reads at a time, and one that stops reading wakes another that waits.
//! * A record leaves whole or the connection is over.
//! * Whoever cannot send takes in what comes, so two sides never wait for each other to read.
//! * When a call is over, its memory is the caller's again; or it says that it is spoiled.

mod aside;
mod core;
mod error;
mod memory;
mod options;
mod rdma;
mod request;
mod tcp;

pub(crate) use self::aside::Aside;
pub use self::core::Results;
pub use error::CallError;
pub use memory::{Memory, MemorySlice};
pub use options::{Identity, Options, WaitPolicy};
pub use rdma::Port;
pub use request::{Locate, Located, Request, SendData};

use self::core::ServerCall;
use crate::reply::{Rejection, Reply};
use dafs_dat::{Address, EndpointId};
use dafs_wire::xdr::Encode;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
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

/// One connection to a server, over TCP or on a direct access transport. Clones share it; it ends
/// with the last of them and of the calls.
#[derive(Debug, Clone)]
pub struct RpcClient {
    link: Link,
}

#[derive(Debug, Clone)]
enum Link {
    Tcp {
        shared: Arc<Shared>,
        /// Ends the connection for the helper too.
        shutdown: Arc<Shutdown>,
    },
    Rdma(Arc<rdma::Link>),
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
    Rdma(Weak<rdma::Shared>, EndpointId),
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
            Server::Rdma(port, endpoint) => {
                if let Some(port) = port.upgrade() {
                    port.answer(endpoint, self.xid, &record);
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
        Ok(Self { link: Link::Tcp { shared, shutdown } })
    }

    /// Connects to a server over RDMA (RFC 8166). `back` takes its calls (RFC 8167); without it
    /// they are refused.
    ///
    /// # Errors
    /// When the connection cannot be made.
    pub fn connect_rdma(
        port: &Port,
        address: &Address,
        options: Options,
        back: Option<BackHandler>,
    ) -> io::Result<Self> {
        let link = rdma::Link::begin(port, address, options, back, first_xid())?;
        link.established()?;
        Ok(Self { link: Link::Rdma(Arc::new(link)) })
    }

    /// Starts to connect over RDMA and does not wait; no call is taken before the connection is
    /// made ([`RpcClient::is_connected`]). Calls are numbered from `first_xid` on. For programs
    /// that drive the port themselves ([`Port::poll`]).
    ///
    /// # Errors
    /// What can be told at once.
    pub fn begin_rdma(
        port: &Port,
        address: &Address,
        options: Options,
        back: Option<BackHandler>,
        first_xid: u32,
    ) -> io::Result<Self> {
        let link = rdma::Link::begin(port, address, options, back, first_xid)?;
        Ok(Self { link: Link::Rdma(Arc::new(link)) })
    }

    /// Calls and waits for the results.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&self, procedure: Procedure, args: &[u8]) -> Result<Results, CallError> {
        self.submit(procedure, &[args])?.wait()
    }

    /// Sends a call whose arguments, in XDR, lie in several pieces, which are not copied unless
    /// they are short. Its results are bounded by the [`Options`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn submit(&self, procedure: Procedure, args: &[&[u8]]) -> Result<Pending, CallError> {
        self.submit_request(&Request::new(procedure, args, self.options().results_bytes_max))
    }

    /// Sends a call whose data may lie apart. If many calls are unanswered already, it may leave
    /// with one of the next, or when anybody waits.
    ///
    /// Whoever drops the call, or does not wait for its answer in time, while a server on RDMA can
    /// reach the memory of the request, ends the connection: only so the memory is the caller's
    /// again.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn submit_request(&self, request: &Request<'_>) -> Result<Pending, CallError> {
        match &self.link {
            Link::Tcp { shared, .. } if request.is_short() && shared.may_queue() => {
                self.queue_tcp(shared, request)
            }
            Link::Tcp { shared, .. } => self.begin_tcp(shared, request, |xid| {
                shared.send(&shared.options.call_header(xid, request.procedure), request)
            }),
            Link::Rdma(link) => Ok(self.pending(link.submit(request, true)?)),
        }
    }

    /// As [`RpcClient::submit`], but the call leaves with the next one that is submitted, or when
    /// anybody waits for an answer that is not there yet. For many small calls at a time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn queue(&self, procedure: Procedure, args: &[u8]) -> Result<Pending, CallError> {
        let args = &[args];
        self.queue_request(&Request::new(procedure, args, self.options().results_bytes_max))
    }

    /// As [`RpcClient::submit_request`], but the call may leave as late as with
    /// [`RpcClient::queue`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn queue_request(&self, request: &Request<'_>) -> Result<Pending, CallError> {
        match &self.link {
            // The data is not copied to wait.
            Link::Tcp { .. } if request.data.is_some() => self.submit_request(request),
            Link::Tcp { shared, .. } => self.queue_tcp(shared, request),
            Link::Rdma(link) => Ok(self.pending(link.submit(request, false)?)),
        }
    }

    fn queue_tcp(&self, shared: &Shared, request: &Request<'_>) -> Result<Pending, CallError> {
        self.begin_tcp(shared, request, |xid| {
            shared.queue(Reply::record(|encoder| {
                shared.options.call_header(xid, request.procedure).encode(encoder);
                match request.args {
                    [args] => encoder.raw(args),
                    pieces => encoder.raw(&pieces.concat()),
                }
            }))
        })
    }

    fn begin_tcp(
        &self,
        shared: &Shared,
        request: &Request<'_>,
        send: impl FnOnce(u32) -> Result<(), CallError>,
    ) -> Result<Pending, CallError> {
        let xid = shared.core().begin(request)?;
        // From here on a failure to send frees the number.
        let pending = self.pending(xid);
        send(xid)?;
        Ok(pending)
    }

    fn pending(&self, xid: u32) -> Pending {
        let deadline = Instant::now() + self.options().call_timeout;
        Pending { client: self.clone(), xid, deadline, over: false }
    }

    /// Zeroed memory for the data of this client's calls.
    ///
    /// # Errors
    /// `ENOMEM` and its kind.
    pub fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        match &self.link {
            Link::Tcp { .. } => Memory::plain(bytes),
            Link::Rdma(link) => link.allocate(bytes),
        }
    }

    /// The bounds and habits of this client.
    pub fn options(&self) -> &Options {
        match &self.link {
            Link::Tcp { shared, .. } => &shared.options,
            Link::Rdma(link) => &link.options,
        }
    }

    /// True when the server places data itself, so that [`Request::sinks`] are worth while even
    /// for little data.
    pub fn is_rdma(&self) -> bool {
        matches!(self.link, Link::Rdma(_))
    }

    /// True when calls can be made: the connection has been made and has not ended.
    pub fn is_connected(&self) -> bool {
        match &self.link {
            Link::Tcp { .. } => !self.is_broken(),
            Link::Rdma(link) => link.is_established(),
        }
    }

    /// True when the connection has ended, and every further call will fail.
    pub fn is_broken(&self) -> bool {
        self.broken().is_some()
    }

    /// Why the connection has ended, if it has.
    pub fn broken(&self) -> Option<&str> {
        match &self.link {
            Link::Tcp { shared, .. } => shared.broken(),
            Link::Rdma(link) => link.broken(),
        }
    }

    /// Ends the connection; calls that are unanswered fail.
    pub fn close(&self) {
        match &self.link {
            Link::Tcp { shutdown, .. } => shutdown.now(),
            Link::Rdma(link) => link.close(),
        }
    }
}

/// Answers to calls of an earlier connection must not be taken for those of this one's.
fn first_xid() -> u32 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (time.tv_nsec as u32).rotate_left(8) ^ time.tv_sec as u32
}

/// A call on its way. Dropped, it is given up: it may be carried out, and nobody will know. See
/// [`RpcClient::submit_request`] for what that means on RDMA.
#[derive(Debug)]
pub struct Pending {
    client: RpcClient,
    xid: u32,
    deadline: Instant,
    over: bool,
}

impl Pending {
    /// Waits for no longer than `time` from now.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.deadline = self.deadline.min(Instant::now() + time);
        self
    }

    /// Waits for the results.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(mut self) -> Result<Results, CallError> {
        self.over = true;
        match &self.client.link {
            Link::Tcp { shared, .. } => shared.wait(self.xid, self.deadline),
            Link::Rdma(link) => link.wait(self.xid, self.deadline),
        }
    }

    /// The number of the call, under which it can be sent again over another connection
    /// ([`Request::xid`]).
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// True when [`Pending::wait`] would not wait. Over TCP somebody must be waiting for another
    /// call, or the client be one that can be called back, for anything to change; on RDMA this
    /// looks itself.
    pub fn is_answered(&self) -> bool {
        match &self.client.link {
            Link::Tcp { shared, .. } => shared.core().is_over(self.xid) || self.client.is_broken(),
            Link::Rdma(link) => link.is_over(self.xid),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        match &self.client.link {
            Link::Tcp { shared, .. } => shared.forget(self.xid),
            Link::Rdma(link) => link.give_up(self.xid),
        }
    }
}

impl ServerCall {
    fn request(self, server: Server) -> BackRequest {
        let Self { xid, program, version, procedure, args } = self;
        BackRequest { procedure: Procedure { program, version, procedure }, args, xid, server }
    }
}
