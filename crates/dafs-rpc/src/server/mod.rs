//! Serving programs to peers that connect over TCP or direct access transports.
//!
//! ```no_run
//! # use dafs_rpc::{AcceptStatus, Call, Handled, Handler, Injector, Reply};
//! # use dafs_rpc::server::{Config, Group};
//! struct Nothing;
//! impl Handler for Nothing {
//!     type Message = ();
//!     fn call(&mut self, call: Call<'_>) -> Handled {
//!         match (call.program, call.procedure) {
//!             (0x2000_0001, 0) => Reply::new().into(),
//!             _ => AcceptStatus::ProgramUnavailable.into(),
//!         }
//!     }
//! }
//! let listener = std::net::TcpListener::bind("[::]:0")?;
//! let group = Group::new(vec![listener], 1, Config::default())?;
//! let reactor = group.reactor(|_: Injector<()>| Nothing)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| reactor.run());
//!     group.stop();
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

mod config;
mod group;
mod peer;
mod rdma;
mod reactor;
mod spin;
mod worker;

pub use config::{Config, Wake};
pub use group::{Group, Statistics};
pub use rdma::RdmaReactor;
pub use reactor::Reactor;
pub use spin::Spin;
