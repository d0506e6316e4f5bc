//! The reasons why a server cannot start.

use super::StateError;
use crate::config::ConfigError;
use dafs_cluster::{DataNodeError, JoinError, SecretError};
use dafs_dat::verbs::VerbsError;
use dafs_engine::PasswordFileError;
use dafs_service::durable::JournalError;
use dafs_service::{NamespaceError, RecordsError, TransportSecurity, UndoError};
use dafs_store::StoreError;
use dafs_store::own::OwnError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// The reason why a server could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// An error of the configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An error of the password file.
    #[error(transparent)]
    Passwords(#[from] PasswordFileError),
    /// An error of the names of the exports.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Kerberos cannot be used.
    #[error(transparent)]
    Kerberos(#[from] dafs_gss::library::LibraryError),
    /// TLS cannot be used.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] dafs_tls::ConfigError),
    /// An error of the undo logs.
    #[error(transparent)]
    Undo(#[from] UndoError),
    /// The directory of an export cannot be opened.
    #[error("cannot export {path}: {error}", path = .path.display())]
    Export {
        /// The path of the directory.
        path: PathBuf,
        /// The store's error.
        error: StoreError,
    },
    /// A CephFS cannot be opened.
    #[error("cannot export {root:?} of CephFS as {name:?}: {error}")]
    CephFs {
        /// The export.
        name: String,
        /// The directory of the file system.
        root: String,
        /// The error, and its possible causes.
        error: dafs_cephfs::OpenError,
    },
    /// A volume of GlusterFS cannot be opened.
    #[error("cannot export {root:?} of the GlusterFS volume {volume:?} as {name:?}: {error}")]
    Gluster {
        /// The export.
        name: String,
        /// The volume.
        volume: String,
        /// The directory of the volume.
        root: String,
        /// The error, and its possible causes.
        error: dafs_gluster::OpenError,
    },
    /// Storage daemons of CephFS cannot be used.
    #[error("cannot serve the OSDs {osds:?}: {error}")]
    Osds {
        /// The numbers of the daemons.
        osds: Vec<u32>,
        /// The error, and its possible causes.
        error: dafs_cephfs::OpenError,
    },
    /// A brick of GlusterFS cannot be used.
    #[error("cannot serve the brick {brick:?}: {error}")]
    Brick {
        /// The name of the brick.
        brick: String,
        /// The error, and its possible causes.
        error: dafs_gluster::OpenError,
    },
    /// The sockets of a data server are used up by a failed attempt to start its front end.
    #[error(
        "the data server could not admit clients before, for the reason given then: restart it"
    )]
    ListenersTaken,
    /// An error of the files of the state directory.
    #[error("cannot use the state of the last run: {0}")]
    StateFiles(#[from] StateError),
    /// The key of file handles cannot be kept.
    #[error(
        "cannot keep the key that signs file handles in {path}: {error}; name a writable directory \
         with state_directory or --state-directory",
        path = .path.display()
    )]
    State {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The state directory, or a file in it, does not belong to the server's user.
    #[error("cannot trust the state directory: {0}")]
    Own(#[from] OwnError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// An address for RDMA in software cannot be listened on.
    #[error("cannot listen on {address} for NFS over RDMA: {error}")]
    ListenRdma {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// An address for RDMA by a device cannot be listened on.
    #[error("cannot listen on the RDMA device of {address} for {protocol}: {error}")]
    ListenVerbs {
        /// The address.
        address: SocketAddr,
        /// DAFS or NFS.
        protocol: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A device for RDMA cannot be used.
    #[error("cannot use an RDMA device for {protocol} at {address}: {error}")]
    Verbs {
        /// The address.
        address: SocketAddr,
        /// DAFS or NFS.
        protocol: &'static str,
        /// The error, and its solution.
        error: VerbsError,
    },
    /// A device that shows all registered memory to its peers, and may send wrong bytes.
    #[error(
        "{address} is on {device}, a siw device, and siw lets peers read any registered memory; \
         listen there in software instead: {instead}"
    )]
    Siw {
        /// The address.
        address: SocketAddr,
        /// The name of the device.
        device: String,
        /// The settings for RDMA in software.
        instead: &'static str,
    },
    /// An error of the records of clients and locks.
    #[error("cannot keep the records of clients: {0}")]
    Records(#[from] RecordsError),
    /// An error of the fences of the last run.
    #[error("cannot serve without the fences that were set: {0}")]
    Fences(RecordsError),
    /// The directory of the journal cannot be used.
    #[error("cannot keep durable replies in {path}: {error}", path = .path.display())]
    JournalDirectory {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// An error of the last run's journal.
    #[error("cannot serve exports with durable_replies: {0}")]
    Journal(#[from] JournalError),
    /// The access log cannot be written.
    #[error(
        "cannot write the access log {path}: {error}; name a file in a directory that exists, where \
         the server's user may write",
        path = .path.display()
    )]
    AccessLog {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The port for administration cannot be listened on.
    #[error("cannot listen on {address} for administration: {error}")]
    AdminPort {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The port of metrics cannot be listened on.
    #[error("cannot listen on {address} for metrics: {error}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The metrics demand TLS, and there is no certificate.
    #[error(
        "metrics_transport_security = \"{least}\" needs a certificate: write [tls], or give a data server \
         --certificate and --key"
    )]
    MetricsWithoutTls {
        /// The demand.
        least: TransportSecurity,
    },
    /// The metrics demand certificates of scrapers, and nobody vouches for any.
    #[error(
        "metrics_transport_security = \"mtls\" needs those who vouch for scrapers: write [tls] authorities = \
         \"FILE\", or give a data server --authorities"
    )]
    MetricsWithoutAuthorities,
    /// A directory for stripes of files cannot be used.
    #[error("cannot spread files: {0}")]
    Node(#[from] JoinError),
    /// An error of the secret of the cluster.
    #[error("cannot work in a cluster: {0}")]
    Secret(#[from] SecretError),
    /// An error of the directory of a data server.
    #[error(transparent)]
    DataNode(#[from] DataNodeError),
    /// The process cannot be confined as the configuration requires.
    #[error(transparent)]
    Sandbox(#[from] dafs_sandbox::Refused),
    /// The system has no threads, descriptors or randomness left.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}
