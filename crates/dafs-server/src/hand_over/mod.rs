//! Handing a server over to another process, such as one of a newer version, while clients use it.
//!
//! The next server asks at the administrators' socket of the state directory. It gets copies of the
//! listening sockets, checks its configuration, and says `go`. Then the present server ends its
//! connections, gives up the state directory, and says `released`. The next one starts on the same
//! sockets with the same state, and says `serving`. Clients recover as after a restart.
//!
//! Invariants
//! * Until `go` the present server serves as if nothing happened.
//! * After `released` it waits. When the next server fails or ends without `serving`, it starts
//!   again. So at each time at most one of them uses the state, and one of them serves in the end.
//! * No connection is refused in its queue: the sockets of clients listen all the time. One that was accepted is
//!   ended, and a DAFS client that had no session yet connects again by itself. The ports for administrators and metrics, those of data servers in this process, the
//!   datagrams of status monitors, and RDMA devices are the exception: they are opened anew.
//! * The write verifier stays when the present server has ended in order and all unstable data is in the
//!   system's cache, which has lost nothing of an open file. After a failure of either server there is a
//!   new one.
//! * Both processes are of one user, and only one takes over at a time.

mod give;
mod message;
mod take;

pub use dafs_wire::hand_over::Released;
pub(crate) use give::Giving;
pub use give::Successor;
pub(crate) use message::HAND_OVER;
pub use take::{TakeOver, TakeOverError, Taken};
