//! The server: DAFS sessions over direct access transports, reactors, configuration, authentication.
//!
//! Invariants
//! * The [`Engine`] is free of clocks, threads and sockets; only [`Server`] has them.
//! * Semantics live in `dafs-service`; nothing here decides what a file operation means.

mod admin;
mod auth;
mod config;
mod engine;
mod guesses;
mod limits;
mod metrics;
mod peers;
mod pool;
mod reactor;
mod server;

pub use admin::{
    AdminError, AdminReply, AdminRequest, ClientReport, FenceOrder, FenceReport, LayoutReport,
    LockReport, NodeReport, SessionReport, ask as ask_server,
};
pub use auth::{
    Admission, AuthConfig, Authenticator, OwnIdentity, PasswordFileError, Proof, password_line,
    password_text,
};
pub use config::{
    BrickConfig, CephDataServer, CephFsConfig, Config, ConfigError, DANGER_SENTENCE, DEFAULT_PORT,
    DataRdma, DataServerPlace, EngineConfig, EngineError, ExportConfig, ExportSource,
    GlusterConfig, GlusterDataServer, NFS_PORT, NFS_RDMA_PORT, NfsConfig, NodeConfig, NodePlace,
    OsdConfig, parse_listen, parse_listen_nfs, parse_listen_nfs_rdma,
};
pub use dafs_cluster::ClusterSecret;
pub use engine::{Engine, EngineCounts, JobDone, JobResult, Registry, Shared, Ticker};
pub use limits::SessionLimits;
pub use pool::{Inbox, Job, Pool, ThreadPool};
pub use server::{
    DataProcess, DataServerConfig, ReadConfig, Server, StartError, StateError, accept_loss,
    default_state_directory,
};
