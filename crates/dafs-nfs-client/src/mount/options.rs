//! How to mount, and how to open.

use super::layout::LayoutReader;
use dafs_rpc::client::Identity;
use std::sync::Arc;
use std::time::Duration;

/// How to mount. What the URL says goes before what is said here.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Who calls; by default this process, with its user, group and further groups (AUTH_SYS).
    pub identity: Identity,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long one answer may take before the connection counts as dead.
    pub answer_timeout: Duration,
    /// For how long an operation is tried again while the server is away or asks for more time.
    pub retry_timeout: Duration,
    /// Whether to use a port below 1024 where this process may, which many servers insist on.
    pub reserved_port: bool,
    /// Whether files are read and written at the data servers themselves where a server of NFSv4
    /// names some (pNFS, RFC 8881 12). Otherwise everything goes through the server.
    pub data_servers: bool,
    /// Readers of layouts that are asked before those that there are already, in this order.
    pub layout_readers: Vec<Arc<dyn LayoutReader>>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            identity: own_identity(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(60),
            retry_timeout: Duration::from_secs(120),
            reserved_port: true,
            data_servers: true,
            layout_readers: Vec::new(),
        }
    }
}

/// The user, group and groups of this process.
fn own_identity() -> Identity {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Identity::sys(&host_name(), uid.as_raw(), gid.as_raw(), &groups)
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// To read it.
    pub read: bool,
    /// To write it.
    pub write: bool,
    /// Whether to make it.
    pub create: Create,
    /// Whether to cut it to length 0.
    pub truncate: bool,
    /// Permission bits of a file that is made.
    pub mode: u32,
}

/// Whether a file is made when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// It has to exist.
    No,
    /// It is made if it does not exist.
    IfMissing,
    /// It must not exist (O_EXCL).
    New,
}

impl OpenOptions {
    /// To read.
    pub fn read() -> Self {
        Self { read: true, write: false, create: Create::No, truncate: false, mode: 0o644 }
    }

    /// To write.
    pub fn write() -> Self {
        Self { read: false, write: true, ..Self::read() }
    }

    /// To read and write.
    pub fn read_write() -> Self {
        Self { write: true, ..Self::read() }
    }

    /// Whether to make it.
    #[must_use]
    pub fn create(self, create: Create) -> Self {
        Self { create, ..self }
    }

    /// Whether to cut it to length 0.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Permission bits of a file that is made.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }
}
