//! Options of mounts and of opens.

use super::layout::LayoutReader;
use dafs_rpc::client::Identity;
use std::sync::Arc;
use std::time::Duration;

/// Options of a mount. The URL overrides them.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The caller's RPC identity; by default this process, with its user, group and further groups
    /// (AUTH_SYS). With `sec=krb5`, `krb5i` or `krb5p` in the URL Kerberos takes its place.
    pub identity: Identity,
    /// The timeout of one attempt to connect.
    pub connect_timeout: Duration,
    /// The timeout of one answer, after which the connection counts as dead.
    pub answer_timeout: Duration,
    /// The timeout of retries while the server is unreachable or answers DELAY.
    pub retry_timeout: Duration,
    /// Uses a port below 1024 where this process may; many servers insist on it.
    pub reserved_port: bool,
    /// Reads and writes files at data servers if an NFSv4 server grants layouts (pNFS, RFC 8881
    /// 12). Otherwise all data goes through the server.
    pub data_servers: bool,
    /// Layout readers that are tried before the built-in ones, in this order.
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
pub(crate) fn own_identity() -> Identity {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let groups: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Identity::sys(&host_name(), uid.as_raw(), gid.as_raw(), &groups)
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Options of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Opens it for reading.
    pub read: bool,
    /// Opens it for writing.
    pub write: bool,
    /// The rule for a missing or existing file.
    pub create: Create,
    /// Truncates it to length 0.
    pub truncate: bool,
    /// Permission bits of a file that is created.
    pub mode: u32,
}

/// The rule for a file that is missing or exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// It has to exist.
    No,
    /// It is created if it does not exist.
    IfMissing,
    /// It must not exist (O_EXCL).
    New,
}

impl OpenOptions {
    /// For reading.
    pub fn read() -> Self {
        Self { read: true, write: false, create: Create::No, truncate: false, mode: 0o644 }
    }

    /// For writing.
    pub fn write() -> Self {
        Self { read: false, write: true, ..Self::read() }
    }

    /// For reading and writing.
    pub fn read_write() -> Self {
        Self { write: true, ..Self::read() }
    }

    /// Sets the rule for a missing or existing file.
    #[must_use]
    pub fn create(self, create: Create) -> Self {
        Self { create, ..self }
    }

    /// Truncates it to length 0.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Permission bits of a file that is created.
    #[must_use]
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }
}
