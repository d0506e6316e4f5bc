//! The session without I/O: the part that the simulator runs as it is shipped.
//!
//! A [`SessionCore`] is one session of the application with a server, over as many connections as it
//! takes. With [`SessionConfig::recovery`] set it replaces a lost connection by itself (the module
//! `recovery` has the steps): its stage is [`Stage::Recovering`] meanwhile, calls are taken and sent
//! later, and each still ends once. Without, it is [`Stage::Over`] with its first connection.
//!
//! # Driving it
//!
//! Whoever drives hands it every event of the adapter ([`SessionCore::handle`]), calls
//! [`SessionCore::on_time`] when [`SessionCore::next_timeout`] is due, flushes the adapter, and takes
//! what has completed ([`SessionCore::take_completed`]). Nothing more is needed for recovery: it dials
//! through the same adapter, to the same address, and its pauses are timeouts like all others.
//! The state machine draws no random numbers and reads no clock, so the same events at the same times
//! give the same session. Memory that the application registered goes on working; so do the
//! state-ids of its opens.
//!
//! # Submitting requests
//!
//! Everything that is sent through [`SessionCore::submit`], `submit_read` and `submit_write` is
//! covered, whatever the procedure. How a request is treated when its connection is lost follows from
//! the request itself (module `repeat`):
//!
//! | class | examples | what happens |
//! |---|---|---|
//! | free | reads, batches with reads, LOOKUP, GETATTR, LOCKT, fencing lists | it is sent again |
//! | same | writes, COMMIT, CLOSE, LOCK, LOCKU, SETATTR without size, OPEN without GUARDED, batches of writes | the server is asked whether it was done, and its reply fetched; if it does not know, it is sent again |
//! | once | CREATE, REMOVE, RENAME, LINK, APPEND, SETATTR of a size, GUARDED OPEN | as above, but if the server does not know, the call ends with [`Done::InDoubt`] |
//!
//! Two rules for who adds requests:
//! * Memory is named by [`Piece::direct_buffer`], and every piece that a request names is handed to
//!   `submit` with it. Keys change with the connection; they are put in when the request is sent.
//! * A new procedure that changes something is put in its class in `repeat`; without that it counts as
//!   once. A new one that names a state-id or memory is added to `rewrite`.
//!
//! # The back-control channel
//!
//! [`SessionCore::want_back`] asks for it, for as long as the session lives; it is bound again by itself
//! after each loss. What the server wants of the application comes out of
//! [`SessionCore::take_back_event`]. Asynchronous batches need it and bring it with them
//! ([`SessionCore::submit_batch`]); it names their transfers 1, 2 and so on, and whoever submits a
//! synchronous batch beside them takes names far beyond those (DAFS O55).

mod auth;
mod back;
mod call;
mod cancel;
mod chain;
mod config;
mod connection;
mod failure;
mod grace;
mod held;
mod hello;
mod memory;
mod messages;
mod notes;
mod opening;
mod orphans;
mod receive;
mod recovery;
mod repeat;
mod rewrite;
mod session;
mod streams;
mod submit;
mod timers;

pub(crate) use auth::Fixed;
pub use auth::{Authenticator, Challenge, Proof};
pub use back::{BackEvent, BackStage, BatchCall, BatchHints};
pub use call::{Completed, Done, ReadCall, Refused, ReplyMessage, WriteCall};
pub use chain::ChainMember;
pub use config::{CredentialIds, SessionConfig, SessionInfo};
pub use failure::Failure;
pub(crate) use memory::Pieces;
pub use memory::{Piece, RegisteredMemory};
pub use session::{SessionCore, SessionStats, Stage};
