//! The DAFS front end: sessions over direct access transports, and their authentication.
//!
//! Invariants
//! * The [`Engine`] has no clocks, threads or sockets. Only [`Reactor`], [`Clock`] and
//!   [`ThreadPool`] have them. It reads from disks itself only where it is given a [`ReadRing`].
//! * `dafs-service` holds the semantics: no code here decides the meaning of a file operation.
//! * No code here knows the configuration or another front end.

mod auth;
mod auth_failures;
mod clock;
mod engine;
mod exposed;
mod gss;
mod inbox;
mod limits;
mod ops;
mod password_file;
mod passwords;
mod pool;
mod reactor;
mod start_gate;

pub use auth::{Admission, AuthConfig, Authenticator, BY_PASSWORD, OwnIdentity, Proof};
pub use clock::Clock;
pub use engine::{
    DiskReads, Engine, EngineCounts, JobDone, JobResult, PageRing, ReadRing, Registry,
    SessionFacts, Shared, Ticker,
};
pub use exposed::ExposedMemory;
pub use gss::{GssAuth, GssProof, GssStep, PartialContext};
pub use inbox::Inbox;
pub use limits::{FENCE_DRAIN_TIME, SessionLimits};
pub use password_file::{
    NewUsers, PasswordFileError, PasswordLine, UserChanges, check_user_name, hash_password,
    password_line, password_lines, replace_password_line,
};
pub use pool::ThreadPool;
pub use reactor::{Gauge, Reactor};
pub use start_gate::StartGate;
