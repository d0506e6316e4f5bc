//! Going on in another process with what a client holds at the server.
//!
//! To the server, a client is a name and the number of one run of it (DAFS 4.1), and an open belongs to
//! an owner of that client. A process that connects as the same run and opens the same files for the
//! same owners has the same opens, and with them the locks: nobody gets in between. The process before
//! it must be done with them by then, and end its session without closing anything.
//!
//! Invariants
//! * Owners that one process has given to its opens are given by no later one for others.

use crate::attributes::FileHandle;
use crate::client::Client;
use crate::directory::{DirEntry, ReadDir};
use crate::error::Result;
use crate::file::{File, OPENS};
use crate::lock::LockRange;
use crate::open::OpenOptions;
use dafs_wire::dafs::{OpenClaim, Path};
use std::sync::atomic::Ordering;

/// Which client of the server this is, for a process that takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The name that it gave itself.
    pub name: Vec<u8>,
    /// Which run of it.
    pub verifier: [u8; 8],
    /// Opens from here on have owners that it has not used.
    pub next_owner: u64,
}

impl Client {
    /// Which client this is. What it opens later is not counted.
    ///
    /// # Errors
    /// The process is a fork of the one that connected.
    pub fn identity(&self) -> Result<ClientIdentity> {
        self.shared().identity()
    }

    /// Opens what another process of the same client has open, for the same owner. `options` must ask
    /// for what that had.
    ///
    /// # Errors
    /// As [`Client::open_handle`].
    pub fn open_as(&self, handle: &FileHandle, options: &OpenOptions, owner: u64) -> Result<File> {
        let claim = OpenClaim::Null { dir: *handle, path: Path::new(&[]) };
        self.open_owned(claim, None, options, owner)
    }

    /// Goes on with a listing behind what [`ReadDir::pause`] has told.
    pub fn resume_dir(&self, dir: &FileHandle, place: ListingPlace) -> ReadDir {
        ReadDir::at(self, dir, place)
    }
}

/// The first owner that no open of this process has had.
pub(crate) fn next_owner() -> u64 {
    OPENS.load(Ordering::Relaxed)
}

/// Where a listing goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListingPlace {
    /// The server's, of the last entry that it has told.
    pub cookie: u64,
    /// The server's, of the listing.
    pub verifier: [u8; 8],
    /// There is nothing behind it.
    pub end: bool,
}

impl ReadDir {
    /// The entries that the server has told and that were not taken, with their cookies, and where it goes
    /// on behind them.
    pub fn pause(&self) -> (Vec<(u64, DirEntry)>, ListingPlace) {
        self.rest_and_place()
    }
}

impl File {
    /// Who has it open, to the server.
    pub fn open_owner(&self) -> u64 {
        self.owner()
    }

    /// What it has locked.
    ///
    /// # Errors
    /// The open or one of its locks was lost, because the server restarted or could not be reached for
    /// longer than the lease.
    pub fn locks(&self) -> Result<Vec<LockRange>> {
        let driver = self.client().shared().lock()?;
        let held = driver.core().held.locks_held(self.state_id());
        drop(driver);
        held.map_err(|status| crate::error::Error::Status {
            procedure: dafs_wire::dafs::Procedure::Lock,
            status,
        })
    }
}
