//! Calls to programs over TCP or RDMA: from several threads, many calls at a time, replies in any
//! order.
//!
//! A client has no I/O thread: of the threads that wait for replies, one reads for all. Only a
//! client that accepts callbacks has a helper thread, which reads while no other thread waits.
//!
//! Invariants
//! * At most one thread reads at a time. A thread that stops reading wakes another waiting thread.
//! * The client sends a record completely, or the connection ends.
//! * A thread that cannot send reads what arrives, so the two sides cannot deadlock with full
//!   buffers.
//! * When a call ends, its memory belongs to the caller again, or is marked as spoiled.

mod core;
mod error;
pub mod gss;
mod memory;
mod options;
mod placed;
mod rdma;
mod request;
mod tcp;
mod tls;

pub use self::core::Results;
pub(crate) use self::placed::PlacedData;
pub use error::CallError;
pub use memory::{Memory, MemorySlice};
pub use options::{Identity, Options, WaitPolicy};
pub use rdma::Port;
pub use request::{Locate, Located, Request, SendData};
pub use tls::{ClientTls, TlsError};

use self::core::ServerCall;
use self::gss::{Kept, Outgoing};
use crate::answer::AnswerTo;
use crate::reply::{Rejection, Reply};
use dafs_dat::{Address, EndpointId};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tcp::{Shared, Shutdown};

/// The procedure to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Procedure {
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
}

/// One connection to a server, over TCP or on a direct access transport. Clones share the
/// connection; it ends when the last clone and the last call are dropped.
#[derive(Debug, Clone)]
pub struct RpcClient {
    link: Link,
}

#[derive(Debug, Clone)]
enum Link {
    Tcp {
        shared: Arc<Shared>,
        /// Ends the connection when dropped, also for the helper thread.
        shutdown: Arc<Shutdown>,
    },
    Rdma(Arc<rdma::Link>),
}

/// A callback from the server, over the connection that this client made.
#[derive(Debug)]
pub struct BackRequest {
    /// The procedure that the server calls.
    pub procedure: Procedure,
    /// The arguments, in XDR.
    pub args: Vec<u8>,
    xid: u32,
    server: Server,
}

/// The connection that carries the answer to a callback.
#[derive(Debug)]
enum Server {
    Tcp(Weak<Shared>),
    Rdma(Weak<rdma::Shared>, EndpointId),
}

impl BackRequest {
    /// Answers the callback; from any thread. An answer after the connection has ended is
    /// discarded.
    pub fn answer(self, answer: Result<Reply, Rejection>) {
        let record = AnswerTo::plain(self.xid).complete(answer);
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

/// Takes callbacks from the server. It runs on the thread that reads for all calls. It must neither
/// block nor call the server; it can hand the request to another thread.
pub type BackHandler = Box<dyn Fn(BackRequest) + Send + Sync>;

impl RpcClient {
    /// Connects to a server. `back` takes callbacks; without it they are refused.
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

    /// Uses an existing connection, on which nothing has been sent. Begins TLS if the options
    /// demand it, within the timeout for connecting.
    ///
    /// # Errors
    /// [`TlsError`] inside an `io::Error`. When the connection cannot be set up, or there is no
    /// memory or thread.
    pub fn from_stream(
        stream: TcpStream,
        options: Options,
        back: Option<BackHandler>,
    ) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let begin = |tls| tcp::begin_tls(&stream, tls, options.connect_timeout);
        let tls = options.tls.as_ref().map(begin).transpose()?;
        stream.set_nonblocking(true)?;
        let shared = Shared::new(stream.into(), options, back, tls)?;
        let shutdown = Arc::new(Shutdown::new(shared.clone()));
        Ok(Self { link: Link::Tcp { shared, shutdown } })
    }

    /// Connects to a server over RDMA (RFC 8166). `back` takes callbacks (RFC 8167); without it
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
        refuse_tls(&options)?;
        let link = rdma::Link::begin(port, address, options, back, first_xid())?;
        link.established()?;
        Ok(Self { link: Link::Rdma(Arc::new(link)) })
    }

    /// Starts to connect over RDMA and returns at once. No call is accepted before the connection
    /// is established ([`RpcClient::is_connected`]). The first call has XID `first_xid`. For
    /// programs that drive the port themselves ([`Port::poll`]).
    ///
    /// # Errors
    /// Errors that are known at once.
    pub fn begin_rdma(
        port: &Port,
        address: &Address,
        options: Options,
        back: Option<BackHandler>,
        first_xid: u32,
    ) -> io::Result<Self> {
        refuse_tls(&options)?;
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

    /// Sends a call whose arguments, in XDR, lie in several pieces. Long pieces are not copied. The
    /// [`Options`] limit the length of the results.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn submit(&self, procedure: Procedure, args: &[&[u8]]) -> Result<Pending, CallError> {
        self.submit_request(&Request::new(procedure, args, self.options().results_bytes_max))
    }

    /// Sends a call whose data may lie outside of the arguments. If many calls are outstanding, the
    /// client may send this one together with a later call, or when a thread waits.
    ///
    /// While a server over RDMA can reach the memory of the request, a timeout or a drop of the
    /// call ends the connection. Only that returns the memory to the caller.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn submit_request(&self, request: &Request<'_>) -> Result<Pending, CallError> {
        self.begin(request, true)
    }

    /// As [`RpcClient::submit`], but the client sends the call with the next submitted one, or when
    /// a thread waits for a reply that has not arrived. For batches of small calls.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn queue(&self, procedure: Procedure, args: &[u8]) -> Result<Pending, CallError> {
        let args = &[args];
        self.queue_request(&Request::new(procedure, args, self.options().results_bytes_max))
    }

    /// As [`RpcClient::submit_request`], with the delay of [`RpcClient::queue`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn queue_request(&self, request: &Request<'_>) -> Result<Pending, CallError> {
        self.begin(request, false)
    }

    fn begin(&self, request: &Request<'_>, is_hurried: bool) -> Result<Pending, CallError> {
        match &self.options().identity {
            Identity::Gss(initiator) => {
                request.check()?;
                let kept = Box::new(Kept::new(initiator.clone(), request));
                self.transmit(kept, request.xid, is_hurried)
            }
            Identity::None | Identity::Sys(_) => {
                self.dispatch(&Outgoing::plain(request), is_hurried)
            }
        }
    }

    /// Sends a call in a security context. Makes a context if there is none, and waits while half
    /// as many calls are unanswered as the server takes out of order.
    fn transmit(
        &self,
        mut kept: Box<Kept>,
        xid: Option<u32>,
        is_hurried: bool,
    ) -> Result<Pending, CallError> {
        let (procedure, refused) = (kept.procedure(), kept.refused());
        let deadline = Instant::now() + self.options().call_timeout;
        let initiator = kept.initiator();
        let protection =
            initiator.protection(self, procedure, refused, deadline, |room| match &self.link {
                Link::Tcp { shared, .. } => shared.await_room(room),
                Link::Rdma(link) => link.await_room(room),
            })?;
        let send = |outgoing: &Outgoing<'_>| self.dispatch(outgoing, is_hurried);
        let mut pending = kept.transmit(xid, protection, send)?;
        pending.kept = Some(kept);
        Ok(pending)
    }

    /// Passes a call to the transport.
    fn dispatch(&self, outgoing: &Outgoing<'_>, is_hurried: bool) -> Result<Pending, CallError> {
        match &self.link {
            Link::Tcp { shared, .. } => {
                shared.check_trust()?;
                // Queueing would have to copy the data, so it is sent at once.
                let may_queue = !is_hurried || outgoing.request.is_short() && shared.may_queue();
                if may_queue && !outgoing.has_data {
                    return self.queue_tcp(shared, outgoing);
                }
                self.begin_tcp(shared, outgoing, |xid| shared.send(xid, outgoing))
            }
            Link::Rdma(link) => Ok(self.pending(link.submit(outgoing, is_hurried)?)),
        }
    }

    fn queue_tcp(&self, shared: &Shared, outgoing: &Outgoing<'_>) -> Result<Pending, CallError> {
        let Outgoing { request, head, .. } = outgoing;
        self.begin_tcp(shared, outgoing, |xid| {
            let mut header = Vec::with_capacity(256);
            head.encode(&shared.options, xid, request.procedure, &mut header);
            let record = Reply::record(|encoder| {
                encoder.raw(&header);
                match request.args {
                    [args] => encoder.raw(args),
                    pieces => encoder.raw(&pieces.concat()),
                }
            });
            shared.queue(record, head)
        })
    }

    fn begin_tcp(
        &self,
        shared: &Shared,
        outgoing: &Outgoing<'_>,
        send: impl FnOnce(u32) -> Result<(), CallError>,
    ) -> Result<Pending, CallError> {
        let xid = shared.core().begin(outgoing)?;
        // From here on a failed send frees the XID.
        let pending = self.pending(xid);
        send(xid)?;
        Ok(pending)
    }

    fn pending(&self, xid: u32) -> Pending {
        let deadline = Instant::now() + self.options().call_timeout;
        Pending { client: self.clone(), xid, deadline, over: false, kept: None }
    }

    /// Makes sure that there is a security context, if the identity needs one, by calls to this
    /// program. It blocks. Otherwise the first call does so.
    ///
    /// # Errors
    /// [`CallError::Context`] and those of a call.
    pub fn establish(&self, procedure: Procedure) -> Result<(), CallError> {
        match &self.options().identity {
            Identity::Gss(initiator) => initiator.ready(self, procedure),
            Identity::None | Identity::Sys(_) => Ok(()),
        }
    }

    /// Tells the server that the security context, if there is one, is not needed any more. Calls
    /// under way in it may fail. A failure does not matter: the context ends with its ticket.
    pub fn end_context(&self, procedure: Procedure) {
        if let Identity::Gss(initiator) = &self.options().identity {
            initiator.end(self, procedure);
        }
    }

    /// Zeroed memory for the data of this client's calls.
    ///
    /// # Errors
    /// `ENOMEM` and similar errors.
    pub fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        match &self.link {
            Link::Tcp { .. } => Memory::plain(bytes),
            Link::Rdma(link) => link.allocate(bytes),
        }
    }

    /// The limits and settings of this client.
    pub fn options(&self) -> &Options {
        match &self.link {
            Link::Tcp { shared, .. } => &shared.options,
            Link::Rdma(link) => &link.options,
        }
    }

    /// True when the server places data by RDMA, so that [`Request::sinks`] pay off even for little
    /// data.
    pub fn is_rdma(&self) -> bool {
        matches!(self.link, Link::Rdma(_))
    }

    /// True when the client takes calls: the connection is established and has not ended.
    pub fn is_connected(&self) -> bool {
        match &self.link {
            Link::Tcp { .. } => !self.is_broken(),
            Link::Rdma(link) => link.is_established(),
        }
    }

    /// True when the connection has ended; every further call fails.
    pub fn is_broken(&self) -> bool {
        self.broken().is_some()
    }

    /// The reason why the connection ended, if it has.
    pub fn broken(&self) -> Option<&str> {
        match &self.link {
            Link::Tcp { shared, .. } => shared.broken(),
            Link::Rdma(link) => link.broken(),
        }
    }

    /// Ends the connection; outstanding calls fail.
    pub fn close(&self) {
        match &self.link {
            Link::Tcp { shutdown, .. } => shutdown.now(),
            Link::Rdma(link) => link.close(),
        }
    }
}

/// A demand of TLS is never ignored.
fn refuse_tls(options: &Options) -> io::Result<()> {
    if options.tls.is_some() { Err(TlsError::Rdma.into()) } else { Ok(()) }
}

/// A first XID from the clock keeps replies to calls of an earlier connection from matching calls
/// of this one.
fn first_xid() -> u32 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    (time.tv_nsec as u32).rotate_left(8) ^ time.tv_sec as u32
}

/// An outstanding call. Dropping it cancels the call: the server may still execute it, and the
/// result is lost. See [`RpcClient::submit_request`] for the consequence on RDMA.
#[derive(Debug)]
pub struct Pending {
    client: RpcClient,
    xid: u32,
    deadline: Instant,
    over: bool,
    /// The call, if it was made in a security context.
    kept: Option<Box<Kept>>,
}

impl Pending {
    /// Limits the wait to `time` from now.
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
        loop {
            let raw = self.wait_for_reply()?;
            let Some(mut kept) = self.kept.take() else { return Ok(raw) };
            match kept.results(raw) {
                Err(error) if kept.is_to_repeat(&error) => {
                    let (client, deadline) = (self.client.clone(), self.deadline);
                    self = client.transmit(kept, Some(self.xid), true)?;
                    self.deadline = self.deadline.min(deadline);
                }
                results => return results,
            }
        }
    }

    fn wait_for_reply(&mut self) -> Result<Results, CallError> {
        self.over = true;
        match &self.client.link {
            Link::Tcp { shared, .. } => shared.wait(self.xid, self.deadline),
            Link::Rdma(link) => link.wait(self.xid, self.deadline),
        }
    }

    /// The XID of the call, for a retry over another connection ([`Request::xid`]).
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// True when [`Pending::wait`] would return at once. Over TCP this makes no progress itself: a
    /// thread must wait for another call, or the client must accept callbacks. On RDMA it polls the
    /// transport.
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
