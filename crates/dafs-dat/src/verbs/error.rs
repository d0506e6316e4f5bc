//! The reasons why a verbs adapter could not be opened, with their remedies.

use std::io;
use std::net::IpAddr;
use thiserror::Error;

/// The reason why RDMA devices cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The connection manager's device cannot be opened.
    #[error(
        "cannot open /dev/infiniband/rdma_cm: {0}; it needs the kernel module rdma_ucm (try: \
         modprobe rdma_ucm) and the right to open that file"
    )]
    ConnectionManager(io::Error),
    /// This process was forked from one that used the devices.
    #[error(
        "this process was forked from one that had opened RDMA devices, which it cannot share; \
         open them after the fork, or start a new program in the child"
    )]
    Forked,
    /// A call of the library failed.
    #[error("cannot {what}: {error}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// There is no device of this name.
    #[error("there is no RDMA device of the name {name}; there is: {known}")]
    Name {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// No device has the address.
    #[error(
        "no RDMA device has the address {address} ({detail}); `rdma link` lists the devices, and \
         `rdma link add rxe0 type rxe netdev IFACE` or `rdma link add siw0 type siw netdev IFACE` \
         makes one in software on the interface that has the address"
    )]
    NoDeviceAt {
        /// The address.
        address: IpAddr,
        /// The system's error.
        detail: String,
    },
    /// There is no device.
    #[error(
        "this machine has no RDMA device; where there is no adapter, `modprobe rdma_rxe && rdma \
         link add rxe0 type rxe netdev IFACE` makes one in software for RoCE, `modprobe siw && \
         rdma link add siw0 type siw netdev IFACE` one for iWARP (`rdma` is in the package \
         iproute2), and the package ibverbs-providers has what drives them"
    )]
    NoDevice,
    /// A library is not installed.
    #[error(
        "RDMA devices need {library}, which cannot be loaded ({detail}); try: apt install {package} ibverbs-providers"
    )]
    NoLibrary {
        /// Its file name.
        library: &'static str,
        /// Debian's package.
        package: &'static str,
        /// The loader's error.
        detail: String,
    },
    /// A library lacks a function.
    #[error("{library} has no function {symbol}; it is too old, or not rdma-core's")]
    NoSymbol {
        /// The library.
        library: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// A setting is outside its limits.
    #[error("{0}")]
    Setting(String),
}

impl From<VerbsError> for io::Error {
    fn from(error: VerbsError) -> Self {
        let kind = match &error {
            VerbsError::Io { error, .. } | VerbsError::ConnectionManager(error) => error.kind(),
            _ => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}
