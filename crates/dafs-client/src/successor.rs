//! Handover: another process takes over the state that a client holds at the server.
//!
//! To the server, a client is a name and a verifier of its run (DAFS 4.1), and an open belongs to
//! an owner of that client. A process that connects as the same run and opens the same files for
//! the same owners has the same opens, and with them the locks, without a gap in which others could
//! take them. By then the former process must have stopped using them, and it must end its session
//! without closing anything.
//!
//! Invariants
//! * A process never reuses an owner of its predecessors for another open.
//! * While two processes may have sessions of one client, neither tells a restarted server that the
//!   client has reclaimed all: the other one may be late.

use crate::attributes::FileHandle;
use crate::client::Client;
use crate::directory::{DirEntry, ReadDir};
use crate::error::Result;
use crate::file::{File, OPENS};
use crate::lock::LockRange;
use crate::open::OpenOptions;
use dafs_wire::dafs::{OpenClaim, Path};
use std::sync::atomic::Ordering;

/// The identity of a client at the server, for a process that takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The name that it gave itself.
    pub name: Vec<u8>,
    /// The verifier of its run.
    pub verifier: [u8; 8],
    /// The first owner that it has not used.
    pub next_owner: u64,
}

impl Client {
    /// The identity of this client. Opens that it makes later are not counted. From now on another
    /// process may have a session of the client.
    ///
    /// # Errors
    /// The process is a fork of the one that connected.
    pub fn identity(&self) -> Result<ClientIdentity> {
        self.shared().lock()?.share_identity(true);
        self.shared().identity()
    }

    /// Notes that no other process can have a session of the client any more: the one from which this one has
    /// its identity has ended, or those that got it here have. So a restarted server need not wait for more
    /// than this process.
    ///
    /// # Errors
    /// The process is a fork of the one that connected.
    pub fn others_have_ended(&self) -> Result<()> {
        self.shared().lock()?.share_identity(false);
        Ok(())
    }

    /// Opens a file that another process of the same client has open, for the same owner. `options`
    /// must ask for the same accesses as that open.
    ///
    /// # Errors
    /// As [`Client::open_handle`].
    pub fn open_as(&self, handle: &FileHandle, options: &OpenOptions, owner: u64) -> Result<File> {
        let claim = OpenClaim::Null { dir: *handle, path: Path::new(&[]) };
        self.open_owned(claim, None, options, owner)
    }

    /// Goes on with a listing at the place that [`ReadDir::pause`] has returned.
    pub fn resume_dir(&self, dir: &FileHandle, place: ListingPlace) -> ReadDir {
        ReadDir::at(self, dir, place)
    }
}

/// The first owner that no open of this process has had.
pub(crate) fn next_owner() -> u64 {
    OPENS.load(Ordering::Relaxed)
}

/// The place at which a listing goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListingPlace {
    /// The server's cookie of the last entry that it has sent.
    pub cookie: u64,
    /// The server's verifier of the listing.
    pub verifier: [u8; 8],
    /// True at the end of the listing.
    pub end: bool,
}

impl ReadDir {
    /// The entries that the server has sent and that were not taken, with their cookies, and the
    /// place behind them.
    pub fn pause(&self) -> (Vec<(u64, DirEntry)>, ListingPlace) {
        self.rest_and_place()
    }
}

impl File {
    /// The open's owner at the server.
    pub fn open_owner(&self) -> u64 {
        self.owner()
    }

    /// The locks of this file.
    ///
    /// # Errors
    /// The open or one of its locks was lost, because the server restarted or could not be reached
    /// for longer than the lease.
    pub fn locks(&self) -> Result<Vec<LockRange>> {
        let driver = self.client().shared().lock()?;
        let held = driver.core().calls.opens.locks_held(self.state_id());
        drop(driver);
        held.map_err(|status| crate::error::Error::Status {
            procedure: dafs_wire::dafs::Procedure::Lock,
            status,
        })
    }
}
