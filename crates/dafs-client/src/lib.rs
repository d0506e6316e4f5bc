//! The DAFS client library: sessions, direct transfers into the application's own buffers, many in
//! flight, and a blocking layer on top. The calls follow the published description of the DAFS API,
//! not its specification (DAFS 18).
//!
//! ```no_run
//! use dafs_client::{Client, ConnectOptions, DafsUrl, OpenOptions};
//!
//! let url = DafsUrl::parse("dafs://server/tree/file")?;
//! let client = Client::connect(&url, &ConnectOptions::default())?;
//! let file = client.open(url.path(), &OpenOptions::read())?;
//! let buffer = client.buffer(1 << 20)?;
//! let first = file.submit_read(&buffer, 0..4096, 0)?;
//! let second = file.submit_read(&buffer, 4096..8192, 4096)?;
//! println!("{} and {} bytes", first.wait()?, second.wait()?);
//! # Ok::<(), dafs_client::Error>(())
//! ```
//!
//! | layer | what it does |
//! |---|---|
//! | [`core`] | the session as a state machine: credits, streams, replies. No I/O, clock, thread |
//! | `driver` | one session and its adapter, driven by the threads that wait (leader, followers) |
//! | the rest | files, names, paths, buffers |
//!
//! Offsets, lengths and sizes are in bytes.
//!
//! # Errors of all calls
//!
//! A method that names "the server's answer" as its error returns [`Error::Status`]. Any call that
//! asks the server may also end with one of these:
//!
//! * [`Error::Deadline`]: no answer within [`ConnectOptions::deadline`], or within the time of
//!   [`within`];
//! * [`Error::NotSent`]: the request was not sent within that time;
//! * [`Error::Lost`]: the session is over; with [`ConnectOptions::recovery`] only when that time is
//!   over, too;
//! * [`Error::Protocol`], [`Error::TooMany`], [`Error::Unsendable`] or [`Error::Forked`];
//! * [`Error::InDoubt`]: only for requests that are not idempotent, such as CREATE, REMOVE and
//!   RENAME.
//!
//! # Timeouts
//!
//! The application sees a lost connection as latency. A caller that cannot wait sets a timeout with
//! [`within`], or uses [`Pending::wait_deadline`] and [`Pending::cancel`]; the session goes on
//! recovering for the others. No call waits for ever for one request: a slow procedure such as
//! COMMIT times out after ten times [`ConnectOptions::deadline`], even if the server answers
//! others.
//!
//! Invariants
//! * Every operation completes exactly once, also when the server or the connection is lost.
//! * The server moves the data: a direct read or write costs this process no copy. Every copy that
//!   is made is counted (the sites `Client...` of `dafs_mem::Site`).
//! * Registered memory outlives every operation on it.
//! * Every field that the server sends is validated before it is used.

mod acting;
mod append;
mod attributes;
mod backoff;
mod batch;
mod buffer;
mod cache;
mod chain;
mod client;
mod connect;
mod convert;
pub mod core;
mod delegated;
mod delegation;
mod devices;
mod directory;
mod driver;
mod error;
mod fence;
mod file;
mod follow;
mod fork;
mod group;
mod gss;
mod helper;
mod hint;
mod layouts;
mod lend;
mod limit;
pub mod limits;
mod lock;
mod mover;
mod names;
mod open;
mod opened;
mod operations;
mod optimistic;
mod options;
mod outcome;
mod parts;
mod path;
mod pending;
pub mod posix;
pub mod program;
mod resolve;
mod seek;
mod span;
mod steps;
mod submit;
mod successor;
mod transfer;
mod uncommitted;
mod unlinked;
mod url;
mod wakeup;
pub mod watch;
mod whole;
mod write_state;
mod xattrs;

// The fixture of the integration tests serves the unit tests, too.
#[cfg(test)]
extern crate self as dafs_client;
#[cfg(test)]
#[path = "../tests/served/mod.rs"]
mod served;

pub use crate::acting::acting_as;
pub use crate::attributes::{
    AccessMask, Attributes, FileHandle, FsStatus, ObjectType, Owner, SetAttributes, SetTime,
    SpecialFile, Stability, Time,
};
pub use crate::batch::{Batch, PendingBatch};
pub use crate::buffer::IoBuffer;
pub use crate::cache::CacheOptions;
pub use crate::chain::{Chain, FileStart, Takes};
pub use crate::client::Client;
pub use crate::core::{ProofMethod, Proven, SessionInfo, SessionStats, User};
pub use crate::delegated::{Keeper, ReadDelegation};
pub use crate::directory::{DirEntry, ReadDir};
pub use crate::error::{Error, Result};
pub use crate::fence::{FenceChange, FenceObject};
pub use crate::file::File;
pub use crate::follow::ReadPart;
pub use crate::group::{Completion, CompletionGroup, OperationId};
pub use crate::gss::{GssAuthenticator, GssCredentials};
pub use crate::lend::{Lent, is_readable, is_writable};
pub use crate::limit::{interruptible, within};
pub use crate::lock::{LockError, LockHolder, LockRange};
pub use crate::open::{
    AccessPattern, Create, HintWord, Likelihood, OpenOptions, ShareAccess, ShareDeny,
};
pub use crate::optimistic::OptimisticStats;
pub use crate::options::{
    Authentication, ByteOrder, ConnectOptions, Credential, GssSource, RdmaDevices, TlsOptions,
    Transport, TransportChoice, TransportKind, TransportSecurity, WaitPolicy,
};
pub use crate::parts::{FilePart, PartContent};
pub use crate::path::{Follow, Found, Place};
pub use crate::pending::Pending;
pub use crate::steps::{Step, StepIn, StepOn, Stepped};
pub use crate::successor::{ClientIdentity, ListingPlace};
pub use crate::url::{DafsUrl, UrlError};
pub use crate::whole::{NewFile, PendingFile, PendingRemoval, PendingStart};
pub use crate::write_state::WriteState;
pub use crate::xattrs::SetXattr;
pub use dafs_dat::descriptors;
pub use dafs_dat::tls::TlsPeer;
pub use dafs_mem::{Site, VolatileSlice};
pub use dafs_wire::dafs::{Procedure, Status, Verifier};
pub use dafs_wire::path::SplitPath;

/// A number of this process that its forks do not share: an object made under another number
/// belongs to a process before the fork. Costs no system call.
pub fn process_number() -> u32 {
    fork::count()
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        // The bytes make identities, never keys, so time and process id are different enough.
        let time = dafs_dat::Instant::now().0 ^ u64::from(std::process::id()) << 40;
        for (byte, fill) in bytes.iter_mut().zip(time.to_ne_bytes().iter().cycle()) {
            *byte = *fill;
        }
    }
    bytes
}
