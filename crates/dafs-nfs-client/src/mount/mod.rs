//! Files of NFS servers for programs: mounts by version 3, 4.1 and 4.2, over TCP and over direct
//! access transports, all behind one interface.
//!
//! ```no_run
//! use dafs_nfs_client::mount::{Mount, MountOptions, NfsUrl, OpenOptions};
//!
//! let url = NfsUrl::parse("nfs+rdma://server/tree/file?vers=4.2")?;
//! let mount = Mount::connect(&url, &MountOptions::default())?;
//! let file = mount.open(url.path(), &OpenOptions::read())?;
//! let memory = mount.allocate(8192)?;
//! let first = file.submit_read(memory.slice(0..4096).unwrap(), 0)?;
//! let second = file.submit_read(memory.slice(4096..8192).unwrap(), 4096)?;
//! println!("{} and {} bytes", first.wait()?, second.wait()?);
//! # Ok::<(), dafs_nfs_client::mount::MountError>(())
//! ```
//!
//! Calls block; one call starts a transfer and another waits for it, so one thread can have many
//! under way, and several threads can share a mount. Over direct access transports the server moves
//! data to and from [`Memory`] itself; over TCP the data is copied to and from the socket.
//!
//! A server of NFSv4 may grant layouts (pNFS): then the data of a file goes to and from its data
//! servers, all of them at a time. Everything else works as without.
//!
//! Invariants
//! * The mount recovers lost state without the caller: connections, sessions, opens. While the
//!   server is unreachable or answers DELAY, operations wait, for [`MountOptions::retry_timeout`].
//! * A change is carried out exactly once, as far as the protocol can promise it: always within a
//!   session of NFSv4, and in NFSv3 if the server has a replay cache. If an NFSv4 server restarts
//!   before it answers, a change may be made twice, or be refused because it has been made.
//! * There is no cache: every call asks the server.
//! * Every list that a server sends is bounded, and every field is validated before it is used.

mod attributes;
mod directory;
mod error;
mod file;
mod kerberos;
pub mod layout;
mod limits;
mod link;
mod names;
mod open;
mod options;
mod path;
mod pending;
mod protocol;
mod reader;
mod reserved;
mod retry_timer;
mod route;
mod security;
mod small;
mod url;
mod v3;
mod v4;
mod xprtsec;

pub use crate::files::Handle;
pub use attributes::{
    Attributes, DirEntry, FileType, FsStatus, Fsid, Owner, SetAttributes, SetTime, SpecialFile,
    StableHow, Time,
};
pub use dafs_rpc::client::{Identity, Memory, MemorySlice};
pub use directory::ReadDir;
pub use error::{MountError, Result};
pub use file::File;
pub use options::{Create, MountOptions, OpenOptions};
pub use path::{Follow, Found, Place};
pub use pending::{PendingRead, PendingWrite, Written};
pub use reader::{Piece, Reader};
pub use security::{SecurityFlavour, UrlSecurity};
pub use small::{FileStart, NewFile, PendingFile, PendingRemoval, PendingStart};
pub use url::{NfsUrl, NfsUrlError, NfsVersion, RDMA_PORT, RdmaTransport, TCP_PORT, UrlOptions};
pub use xprtsec::UrlTls;

use dafs_rpc::AcceptStatus;
use dafs_rpc::client::CallError;
use dafs_wire::nfs4::Status;
use kerberos::Login;
use limits::{READ_AHEAD_DEFAULT, TRANSFER_BYTES_DEFAULT};
use link::Link;
use protocol::{Protocol, Sizes};
use route::Route;
use std::sync::Arc;
use v3::V3;
use v4::V4;

/// A mount. Clones share it; it ends with the last of them and of its files.
#[derive(Debug, Clone)]
pub struct Mount {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    protocol: Box<dyn Protocol>,
    read_ahead: u32,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.protocol.unmount();
        self.protocol.link().farewell(self.protocol.version());
        self.protocol.link().close();
    }
}

impl Mount {
    /// Mounts from the server that `url` names: connects, and with NFSv4 makes a session. The path
    /// of the URL only matters to NFSv3, where it selects the export.
    ///
    /// Without a version in the URL it uses the best one that the server supports. With `nfs+rdma`
    /// and no transport it uses shared memory if the server runs on this host and offers it, else
    /// iWARP.
    ///
    /// # Errors
    /// [`MountError::Connect`] when there is no server; else the server's answer.
    pub fn connect(url: &NfsUrl, options: &MountOptions) -> Result<Self> {
        let asked = url.options();
        let wanted = Sizes {
            read: asked.read_bytes_max.unwrap_or(TRANSFER_BYTES_DEFAULT),
            write: asked.write_bytes_max.unwrap_or(TRANSFER_BYTES_DEFAULT),
        };
        let route = Route::new(url, wanted.read.max(wanted.write) as usize);
        let route = route.with_tls(xprtsec::demand(url)?);
        let data_servers = asked.pnfs.unwrap_or(true) && options.data_servers;
        let options = MountOptions { data_servers, ..options.clone() };
        let login = Login::new(&asked.security, &options.identity)?;
        let link = Arc::new(Link::new(route, &options, login)?);
        link.establish(asked.version.unwrap_or(NfsVersion::V42))?;
        let protocol = choose(&link, url, wanted)?;
        let read_ahead = asked.read_ahead.unwrap_or(READ_AHEAD_DEFAULT);
        Ok(Self { inner: Arc::new(Inner { protocol, read_ahead }) })
    }

    pub(crate) fn protocol(&self) -> &dyn Protocol {
        &*self.inner.protocol
    }

    /// The version of the protocol.
    pub fn version(&self) -> NfsVersion {
        self.protocol().version()
    }

    /// The transport of data: `tcp`, `iwarp`, `shm` or `verbs`.
    pub fn transport(&self) -> &'static str {
        self.protocol().link().route().transport()
    }

    /// The server as the URL names it.
    pub fn server(&self) -> &str {
        self.protocol().link().server()
    }

    /// The security flavour of the mount's calls.
    pub fn security(&self) -> SecurityFlavour {
        self.protocol().link().flavour()
    }

    /// The user who is proven to the server, such as `anna@EXAMPLE.ORG`; `None` with AUTH_SYS.
    pub fn principal(&self) -> Option<String> {
        self.protocol().link().principal()
    }

    /// The longest READ, in bytes. Longer reads are divided.
    pub fn read_bytes_max(&self) -> usize {
        self.protocol().sizes().read as usize
    }

    /// The longest WRITE, in bytes. Longer writes are divided.
    pub fn write_bytes_max(&self) -> usize {
        self.protocol().sizes().write as usize
    }

    /// READs under way ahead of a sequential reader, by default.
    pub fn read_ahead(&self) -> u32 {
        self.inner.read_ahead
    }

    /// Memory for transfers, registered with the transport. It can be used for any number of them.
    ///
    /// # Errors
    /// [`MountError::Memory`].
    pub fn allocate(&self, bytes: usize) -> Result<Memory> {
        self.protocol().link().allocate(bytes)
    }
}

/// Mounts by the version that the URL asks for, or by the best one that the server supports.
fn choose(link: &Arc<Link>, url: &NfsUrl, wanted: Sizes) -> Result<Box<dyn Protocol>> {
    let versions = match url.options().version {
        Some(version) => vec![version],
        None => vec![NfsVersion::V42, NfsVersion::V41, NfsVersion::V3],
    };
    let mut last = None;
    for version in versions {
        let made: Result<Box<dyn Protocol>> = match version {
            NfsVersion::V3 => {
                let path = url.path().split(|&byte| byte == b'/');
                let path: Vec<&[u8]> = path.filter(|name| !matches!(*name, b"" | b".")).collect();
                V3::connect(link.clone(), &path, wanted).map(|made| Box::new(made) as _)
            }
            _ => V4::connect(link.clone(), version, wanted).map(|made| Box::new(made) as _),
        };
        match made {
            Err(error) if is_version_missing(&error) => last = Some(error),
            other => return other,
        }
    }
    let reason = match last {
        Some(error) if url.options().version.is_none() => {
            format!("it speaks none of NFS 4.2, 4.1 and 3 ({error})")
        }
        _ => {
            let version = url.options().version.map_or("this", NfsVersion::name);
            format!("it does not speak NFS {version}; leave vers out to use what it has")
        }
    };
    Err(MountError::Connect { server: link.server().clone(), reason: reason.into() })
}

/// True when the server does not know a version.
fn is_version_missing(error: &MountError) -> bool {
    match error {
        MountError::Refused { status, .. } => *status == Status::MinorVersMismatch,
        MountError::Rejected(CallError::NotDone(status)) => {
            matches!(status, AcceptStatus::ProgramUnavailable | AcceptStatus::ProgramMismatch(_))
        }
        _ => false,
    }
}
