//! The session without I/O: the part that the simulator runs as it is shipped.
//!
//! A [`SessionCore`] is one session of the application with a server, over as many connections as
//! it takes. With [`SessionConfig::recovery`] set it replaces a lost connection by itself (the
//! module `recovery` has the steps): its stage is [`Stage::Recovering`] meanwhile, calls are taken
//! and sent later, and each still ends once. Without, it is [`Stage::Over`] with its first
//! connection.
//!
//! # Driving it
//!
//! The driver passes each event of the adapter to [`SessionCore::handle`], calls
//! [`SessionCore::on_time`] when [`SessionCore::next_timeout`] is due, flushes the adapter, and
//! takes completed calls ([`SessionCore::take_completed`]). Recovery needs no more than that: it
//! dials through the same adapter, to the same address, and its pauses are timeouts like all
//! others. The state machine draws no random numbers and reads no clock, so the same events at the
//! same times give the same session. Memory that the application registered and the state-ids of
//! its opens stay valid.
//!
//! # Submitting requests
//!
//! Recovery covers every request that is sent through [`SessionCore::submit`], `submit_read` and
//! `submit_write`, whatever the procedure. The request alone determines its class (module
//! `repeat`), and the class determines its treatment after the loss of its connection:
//!
//! * Free (reads, batches with reads, LOOKUP, GETATTR, LOCKT, fencing lists): the client sends it
//!   again.
//! * Same, idempotent (writes, COMMIT, CLOSE, LOCK, LOCKU, SETATTR without size, OPEN that creates
//!   nothing, EXCLUSIVE, or UNCHECKED without size, batches of writes): the client asks the server
//!   whether it was done (CHECK_RESPONSE), and fetches its reply (FETCH_RESPONSE). If the server
//!   does not know, the client sends it again.
//! * Once, not idempotent (CREATE, REMOVE, RENAME, LINK, APPEND, SETATTR of a size, OPEN that is
//!   GUARDED, sets a size or makes a file without a name): as above, but if the server does not
//!   know, the call ends with [`Done::InDoubt`].
//!
//! Two rules for new requests:
//! * Memory is named by [`Piece::direct_buffer`], and every piece that a request names is handed to
//!   `submit` with it. Keys change with the connection; the session fills them in when it sends the
//!   request.
//! * A new procedure that changes state is put in its class in `repeat`; without that it counts as
//!   once. A new one that names a state-id or memory is added to `rewrite`.
//!
//! # Optimistic reads
//!
//! With [`SessionConfig::optimistic`] a read that is submitted may end without a request: the session
//! reads blocks by RDMA from memory that the server shows (module `optimistic`). Every doubt ends in the
//! ordinary request, and so does the loss of the channel.
//!
//! # The back-control channel
//!
//! [`SessionCore::want_back`] asks for it, for as long as the session lives; the session binds it
//! again after each loss. [`SessionCore::take_back_event`] returns the server's calls to the
//! application. Asynchronous batches need the channel and create it
//! ([`SessionCore::submit_batch`]). The channel numbers their transfers 1, 2 and so on; synchronous
//! batches take ids far beyond those (DAFS O55).

mod auth;
mod back;
mod blocks;
mod call;
mod calls;
mod cancel;
mod chain;
mod config;
mod connection;
mod failure;
mod grace;
mod hello;
mod link;
mod memory;
mod messages;
mod notes;
mod open_states;
mod opening;
mod optimistic;
mod orphans;
mod proofs;
mod receive;
mod recovery;
mod repeat;
mod rewrite;
mod session;
mod streams;
mod submit;
mod timers;
mod users;

pub use auth::{Authenticator, Challenge, Exchange, Fixed, Proof, ProofMethod, Proven};
pub use back::{BackEvent, BackStage, BatchCall, BatchHints};
pub(crate) use blocks::{AskWidth, BLOCK_BYTES, SMALL_FILE_BYTES, WINDOW_BLOCKS};
pub use blocks::{BlockDirectory, BlockRead, ExposeAnswer, ExposeQuestion};
pub use call::{Completed, Done, ReadCall, Refused, ReplyMessage, WriteCall};
pub use chain::ChainMember;
pub(crate) use chain::is_short_write;
pub use config::{CredentialIds, SessionConfig, SessionInfo};
pub use failure::Failure;
pub(crate) use memory::Pieces;
pub use memory::{Piece, RegisteredMemory};
pub use optimistic::{RemoteBlocks, RemoteRead, RemoteReadStats};
pub use proofs::{Prepared, ProofChannel, ProofOrder};
pub use session::{SessionCore, SessionStats, Stage};
pub use users::User;
