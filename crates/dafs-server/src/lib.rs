//! The server: its configuration, and the assembly of its parts.
//!
//! Invariants
//! * Front ends are crates of their own (`dafs-engine`, `dafs-nfs`); only [`Server`] knows both.
//! * `dafs-service` holds the semantics: no code here decides the meaning of a file operation.

mod admin;
mod config;
mod hand_over;
mod http;
mod limits;
mod metrics;
mod peers;
mod request_log;
mod rings;
mod sandbox;
mod server;
mod version;

pub use admin::{
    AdminError, AdminReply, AdminRequest, ClientReport, ExportReport, ExposedReport, FaultReport,
    FenceOrder, FenceReport, LatencyReport, LayoutReport, LockReport, NodeReport, RefusedKey,
    ReloadReport, ScrubOrder, ScrubReport, SessionReport, StatusReport, UserOrder, UserReport,
    ask as ask_server,
};
pub use config::{
    AccessLogConfig, BrickConfig, CLEAR_SENTENCE, CephDataServer, CephFsConfig, Config,
    ConfigError, DANGER_SENTENCE, DEFAULT_PORT, DataRdma, DataServerPlace, EngineConfig,
    EngineError, ExportConfig, ExportSource, Form, GlusterConfig, GlusterDataServer,
    KerberosConfig, Key, NFS_PORT, NFS_RDMA_PORT, NfsConfig, NodeConfig, NodePlace, OsdConfig,
    config_keys, engine_keys, parse_listen, parse_listen_nfs, parse_listen_nfs_rdma,
    parse_listen_verbs,
};
pub use dafs_cluster::ClusterSecret;
pub use hand_over::{Released, Successor, TakeOver, TakeOverError, Taken};
pub use http::{AdminServer, ask as ask_admin_server};
pub use sandbox::{confine_data_server, confine_server, explain_start};
pub use server::{
    DataProcess, DataServerConfig, ReadConfig, Server, Sockets, StartError, StateError,
    accept_loss, check_config, default_state_directory,
};
pub use version::version;
