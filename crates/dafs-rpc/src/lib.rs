//! ONC RPC for any program: server and client over TCP record marking (RFC 5531) and over direct
//! access transports (RPC-over-RDMA version 1, RFC 8166).
//!
//! A server consists of reactors, each with a [`Handler`] of its own. A handler gets a [`Call`] and
//! returns a [`Reply`] at once, or later through a [`Responder`]. It can send callbacks to its
//! peers over their own connections. This crate knows no program.
//!
//! # A server
//!
//! A [`server::Group`] is a server: reactors for TCP, which share its listeners, and reactors for
//! adapters of direct access transports. The handler is the same for all of them.
//!
//! ```
//! use dafs_dat::{Adapter, Address, iwarp::{IwarpAdapter, IwarpConfig}};
//! use dafs_rpc::server::{Config, Group};
//! use dafs_rpc::{AcceptStatus, Call, Handled, Handler};
//! use dafs_wire::xdr::Payload;
//!
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Message = ();
//!
//!     fn call(&mut self, call: Call<'_>) -> Handled {
//!         if (call.program, call.version, call.procedure) != (0x2000_0001, 1, 1) {
//!             return AcceptStatus::ProgramUnavailable.into();
//!         }
//!         // Data that this handler does not take apart (`Handler::takes_moved_data`) is among the
//!         // arguments, however it came.
//!         let Ok(Payload::Here(data)) = call.decoder().payload(1 << 20) else {
//!             return AcceptStatus::GarbageArgs.into();
//!         };
//!         let mut reply = call.reply();
//!         reply.encoder().count(data.len());
//!         // Bulk data goes to the memory that the caller offers, if the transport can do that.
//!         let Ok(mut place) = reply.bulk(data.len()) else {
//!             return AcceptStatus::SystemError.into();
//!         };
//!         place.view().copy_from(data, dafs_mem::Site::Inspect);
//!         place.finish(data.len());
//!         reply.into()
//!     }
//! }
//!
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let tcp_address = listener.local_addr()?;
//! let mut adapter = IwarpAdapter::new(IwarpConfig::default())?;
//! let bound = adapter.listen(&Address::Tcp("127.0.0.1:0".parse()?))?;
//! let rdma_address = adapter.listener_address(bound).ok_or("it does not listen")?;
//!
//! let group = Group::new(vec![listener], 2, Config::default())?;
//! let over_tcp = group.reactor(|_| Echo)?;
//! let over_rdma = group.rdma_reactor(vec![Box::new(adapter)], |_| Echo)?;
//! let threads = [std::thread::spawn(|| over_tcp.run()), std::thread::spawn(|| over_rdma.run())];
//! # use dafs_rpc::client::{Located, Options, Port, Procedure, Request, RpcClient, SendData};
//! # let port = Port::new(Box::new(IwarpAdapter::new(IwarpConfig::default())?))?;
//! # let clients = [
//! #     RpcClient::connect(tcp_address, Options::default(), None)?,
//! #     RpcClient::connect_rdma(&port, &rdma_address, Options::default(), None)?,
//! # ];
//! # for client in clients {
//! #     let memory = client.allocate(200_000)?;
//! #     let data = memory.slice(0..100_000).ok_or("too short")?;
//! #     let sinks = [memory.slice(100_000..200_000).ok_or("too short")?];
//! #     data.view().fill(7);
//! #     let args = [&100_000u32.to_be_bytes()[..]];
//! #     let echo = Procedure { program: 0x2000_0001, version: 1, procedure: 1 };
//! #     let request = Request {
//! #         data: Some(SendData { position: 4, memory: data }),
//! #         sinks: &sinks,
//! #         locate: Some(|_| Some(Located { position: 4, len: 100_000 })),
//! #         ..Request::new(echo, &args, 4)
//! #     };
//! #     let results = client.submit_request(&request)?.wait()?;
//! #     assert_eq!(sinks[0].take(results.decoder().payload(100_000)?), 100_000);
//! #     assert!(sinks[0].view().to_vec(dafs_mem::Site::Inspect) == [7; 100_000]);
//! # }
//! group.stop();
//! for thread in threads {
//!     thread.join().map_err(|_| "a reactor failed")?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A client
//!
//! A [`client::RpcClient`] is a connection, the same type on every transport. Small calls are bytes
//! of XDR ([`client::RpcClient::call`]). Large data stays outside of them: a [`client::Request`]
//! names [memory](client::Memory) for the data of an argument and of results. The client registers
//! it once and uses it for many calls. The protocol says which data is DDP-eligible (RFC 8166
//! section 6), and both sides must agree: the caller by the content of the request, the server by
//! the results that it writes with [`Reply::bulk`].
//!
//! ```no_run
//! use dafs_dat::{Address, iwarp::{IwarpAdapter, IwarpConfig}};
//! use dafs_rpc::client::{Options, Port, Procedure, Request, RpcClient};
//!
//! let port = Port::new(Box::new(IwarpAdapter::new(IwarpConfig::default())?))?;
//! let address = Address::Tcp("192.0.2.1:20049".parse()?);
//! let client = RpcClient::connect_rdma(&port, &address, Options::default(), None)?;
//! // Or: RpcClient::connect("192.0.2.1:2049".parse()?, Options::default(), None)?;
//!
//! let memory = client.allocate(1 << 20)?;
//! let read = Procedure { program: 0x2000_0001, version: 1, procedure: 2 };
//! let (args, sinks) = ([&7u32.to_be_bytes()[..]], [memory.whole()]);
//! // The results without the data have 100 bytes at most.
//! let request = Request { sinks: &sinks, ..Request::new(read, &args, 100) };
//! let results = client.submit_request(&request)?.wait()?;
//! let mut decoder = results.decoder();
//! let data = decoder.payload(1 << 20)?;
//! // Over RDMA it is there already; otherwise this copies it, but see `Request::locate`.
//! let len = sinks[0].take(data);
//! println!("{} bytes: {:?}", len, memory.view());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The example `values` is a complete program of this kind.
//!
//! Invariants
//! * This crate handles all input of a peer without a panic and in bounded memory. Input that is
//!   not RPC ends the peer's connection and no other.
//! * Bulk data is not copied in user space, except for the copies that [`dafs_mem::Site`] counts.
//! * Steady traffic allocates nothing.

mod answer;
mod auth;
mod back;
mod call;
mod call_chunks;
pub mod client;
mod connection;
mod dispatch;
pub mod gss;
mod handler;
mod inbox;
mod limits;
mod local;
mod local_connection;
mod memory;
mod news;
mod output;
mod record;
mod reply;
pub mod server;
pub mod tls;

pub use call::{
    Call, CallerProcess, ConnectionId, ConnectionRef, Credential, OwnedArgs, Responder,
};
pub use dafs_dat::PeerProcess;
pub use dafs_wire::rpc::gss::Service as GssService;
pub use dafs_wire::rpc::{AcceptStatus, AuthStatus, AuthSys, Groups, RejectStatus, VersionRange};
pub use handler::{CallbackError, Handled, Handler};
pub use inbox::{CallbackRequest, Injector};
pub use local::{LocalCall, LocalEvent, LocalReactor};
pub use local_connection::{LocalConnection, LocalEnding};
pub use news::News;
pub use reply::{BulkSpace, Mark, Rejection, Reply};
