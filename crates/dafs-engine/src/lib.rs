//! The DAFS front end: sessions over direct access transports, and who may begin one.
//!
//! Invariants
//! * The [`Engine`] is free of clocks, threads and sockets; only [`Reactor`], [`Clock`] and
//!   [`ThreadPool`] have them.
//! * Semantics live in `dafs-service`; nothing here decides what a file operation means.
//! * Nothing here knows the configuration or another front end.

mod auth;
mod clock;
mod engine;
mod guesses;
mod limits;
mod pool;
mod reactor;

pub use auth::{
    Admission, AuthConfig, Authenticator, OwnIdentity, PasswordFileError, Proof, password_line,
    password_text,
};
pub use clock::Clock;
pub use engine::{
    Engine, EngineCounts, JobDone, JobResult, Registry, SessionFacts, Shared, Ticker,
};
pub use limits::{FENCE_DRAIN_TIME, SessionLimits};
pub use pool::{Inbox, ThreadPool};
pub use reactor::{Gauge, Reactor};
