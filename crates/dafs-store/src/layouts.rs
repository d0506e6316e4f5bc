//! Layouts: the placement of file content, for stores that spread it over data servers. These are
//! the terms in which a store describes it to the metadata server.
//!
//! Invariants
//! * A placement is correct for its epoch. When it changes, the epoch changes, and
//!   [`Layouts::take_moved`] reports the file. Until clients have returned their layouts, requests
//!   by the old placement still succeed, if slowly.
//! * Data that a client wrote at the data servers belongs to the file only when
//!   [`commit`](Layouts::commit) or [`recover_size`](Layouts::recover_size) has extended the
//!   size over it.
//!   Neither ever makes a file shorter.

use crate::Result;
use crate::types::FileId;
use std::hash::Hasher;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// The most places of a pattern before it repeats, as stock clients accept it.
pub const PATTERN_PLACES_MAX: usize = 4096;

/// The most data servers of one device, as stock clients accept it.
pub const DEVICE_SERVERS_MAX: usize = 256;

/// The most copies of one file.
pub const COPIES_MAX: usize = 8;

/// Identifies a device: the data servers of files of one kind, and their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKey(pub [u8; 16]);

/// The addresses of a data server for NFS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NfsAddresses {
    /// For TCP, which all clients can use; empty if they cannot reach it.
    pub tcp: Vec<SocketAddr>,
    /// Over RDMA; empty if it is not served.
    pub rdma: Vec<SocketAddr>,
}

impl NfsAddresses {
    /// Makes the addresses of a data server that clients reach over TCP alone.
    pub fn over_tcp(tcp: Vec<SocketAddr>) -> Self {
        Self { tcp, rdma: Vec::new() }
    }

    /// Hashes the addresses for the key of a device: other addresses make another device.
    pub fn write_to(&self, hasher: &mut impl Hasher) {
        for addresses in [&self.tcp, &self.rdma] {
            hasher.write_usize(addresses.len());
            for address in addresses {
                hasher.write(address.to_string().as_bytes());
                hasher.write_u8(0);
            }
        }
    }
}

/// The cause of a client's failure to write at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceTrouble {
    /// The device cannot be reached, or has failed.
    Failed,
    /// The device has no space left.
    Full,
}

/// A set of data servers and their round-robin pattern. A device never changes: another set or
/// pattern is another device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// For each place of the pattern the number of its server in `servers`; from 1 to
    /// [`PATTERN_PLACES_MAX`] places.
    pub pattern: Vec<u32>,
    /// The data servers, each with the addresses that lead to it; from 1 to [`DEVICE_SERVERS_MAX`].
    pub servers: Vec<NfsAddresses>,
}

/// The form of all layouts of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayoutForm {
    /// Stripes in turn on several data servers.
    Stripes,
    /// The whole file on one data server, or the same on several.
    Copies,
}

/// The mapping of a stripe to an offset in its component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// The offset in the component is that in the file.
    Sparse,
    /// Components have no holes: each holds its stripes one after the other.
    Dense,
}

/// The placement of a whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The epoch of the placement: it differs between two placements of the file.
    pub epoch: u64,
    /// The data servers of the file.
    pub spread: Spread,
}

/// The spread of a file over data servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// In [`LayoutForm::Stripes`].
    Stripes(Stripes),
    /// In [`LayoutForm::Copies`]: at least one copy, at most [`COPIES_MAX`]. Clients read any of
    /// them and write all.
    Copies(Vec<FileCopy>),
}

/// The whole file on one data server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCopy {
    /// A device of one server.
    pub device: DeviceKey,
    /// The handle of the file there, at most 128 bytes.
    pub handle: Box<[u8]>,
}

/// One of the copies of a file, as administrators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyState {
    /// The number of its node.
    pub node: u32,
    /// The addresses of the node for clients.
    pub addresses: Vec<SocketAddr>,
    /// True if it has all data of the file.
    pub fresh: bool,
}

/// The placement of the stripes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripes {
    /// The data servers and their pattern.
    pub device: DeviceKey,
    /// The place in the pattern that holds the first stripe.
    pub first_place: u32,
    /// Bytes of a stripe; a multiple of 64.
    pub unit_bytes: NonZeroU32,
    /// The packing of components.
    pub packing: Packing,
    /// The handles of the file at the data servers: one for all, or one for each (in the order of
    /// the device's servers when sparse, of its pattern when dense). At most 128 bytes each.
    pub handles: Vec<Box<[u8]>>,
}

impl Placement {
    /// Returns the form of the placement.
    pub fn form(&self) -> LayoutForm {
        match &self.spread {
            Spread::Stripes(_) => LayoutForm::Stripes,
            Spread::Copies(_) => LayoutForm::Copies,
        }
    }

    /// Iterates over the devices that the placement names.
    pub fn devices(&self) -> impl Iterator<Item = DeviceKey> {
        let (stripes, copies) = match &self.spread {
            Spread::Stripes(stripes) => (Some(stripes.device), &[][..]),
            Spread::Copies(copies) => (None, &copies[..]),
        };
        stripes.into_iter().chain(copies.iter().map(|copy| copy.device))
    }

    /// Iterates over all handles of the file at data servers.
    pub fn handles(&self) -> impl Iterator<Item = &[u8]> {
        let (stripes, copies) = match &self.spread {
            Spread::Stripes(stripes) => (&stripes.handles[..], &[][..]),
            Spread::Copies(copies) => (&[][..], &copies[..]),
        };
        stripes.iter().map(|handle| &**handle).chain(copies.iter().map(|copy| &*copy.handle))
    }
}

/// The metadata server's interface to a store that spreads files. Calls may wait for data servers
/// and disks, and end in bounded time.
pub trait Layouts: Send + Sync {
    /// Returns the placement of an open file. `None` for a file that clients must access through
    /// the metadata server. With `write`, a file without content is placed first.
    ///
    /// # Errors
    /// * [`StoreError::Busy`](crate::StoreError::Busy) when the placement is unknown now.
    /// * [`StoreError::BadType`](crate::StoreError::BadType), or `None`, for an object that is not
    ///   a regular file.
    fn placement(&self, file: &FileId, write: bool) -> Result<Option<Placement>>;

    /// True if the epoch of the file's placement is still this one.
    /// [`take_moved`](Self::take_moved) reports later changes.
    fn is_current(&self, file: &FileId, epoch: u64) -> bool {
        matches!(self.placement(file, false), Ok(Some(now)) if now.epoch == epoch)
    }

    /// Returns the device with this key, if it exists.
    fn device(&self, key: &DeviceKey) -> Option<Device>;

    /// Returns the DAFS addresses of the servers of a device, in their order. `None` if a server
    /// does not serve DAFS.
    fn dafs_servers(&self, _key: &DeviceKey) -> Option<Vec<Vec<SocketAddr>>> {
        None
    }

    /// Returns the MAC by which data servers verify that bytes come from this store. `None` where
    /// data servers do not verify MACs, as those that do not serve DAFS.
    fn mac(&self, _bytes: &[u8]) -> Option<[u8; 16]> {
        None
    }

    /// Returns all devices that placements may name now.
    fn devices(&self) -> Vec<DeviceKey>;

    /// Commits the writes of a client that holds a layout for writing and has made its data stable
    /// at the data servers. The file extends to `end` at least (`None`: the size is not concerned),
    /// and its mtime becomes now. The change is stable when the call returns. Returns the size of
    /// the file.
    ///
    /// # Errors
    /// [`StoreError::Invalid`](crate::StoreError::Invalid) for an end beyond the written data.
    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64>;

    /// Recovers the size after a layout for writing has gone without a commit, as when a client has
    /// died. The file then extends to the end of its data at the data servers.
    fn recover_size(&self, file: &FileId) -> Result<()>;

    /// True if the store always knows the size of each file, whatever clients write at data
    /// servers. Constant for a store.
    fn knows_ends(&self) -> bool {
        false
    }

    /// Refreshes the size for a client that holds a layout for writing and is about to release a
    /// lock. The file then extends to the end of its data at the data servers.
    fn refresh_size(&self, file: &FileId) -> Result<()> {
        self.recover_size(file)
    }

    /// Makes all data servers drop their cached authorisations for the file. After it has returned,
    /// each of them asks the metadata server again before it executes a request on the file.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) while that is not certain.
    fn drop_grants(&self, file: &FileId) -> Result<()>;

    /// Returns the lifetime of cached authorisations at data servers; zero if they ask each time.
    /// Constant for a store, and returned without waiting.
    fn grant_ttl(&self) -> Duration {
        Duration::ZERO
    }

    /// Checks that no data server honours an authorisation of an earlier run of the metadata
    /// server.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) while that is not certain.
    fn old_grants_expired(&self) -> Result<()> {
        Ok(())
    }

    /// Passes each file whose placement has changed since the last call to `sink`.
    fn take_moved(&self, sink: &mut dyn FnMut(FileId));

    /// Passes each device that no placement names any more since the last call to `sink`. Perhaps
    /// no client knows it.
    fn take_gone(&self, _sink: &mut dyn FnMut(DeviceKey)) {}

    /// Passes the files to `sink` for which the store needs to know that no client writes at the
    /// data servers, and true if layouts for writing are to be recalled. `sink` returns true if
    /// there is no such layout. It must count layouts under way whose placement was asked for
    /// before this call, and layouts of lost clients whose [sizes](Self::recover_size) are not
    /// recovered yet.
    fn take_write_recalls(&self, _sink: &mut dyn FnMut(FileId, bool) -> bool) {}

    /// Handles the report of a client that could not write at a device of its layout. When the call
    /// has returned, the file does not need the device any more, if possible. A device that is only
    /// full stays in use.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) while the file still needs it.
    fn report(&self, _file: &FileId, _device: &DeviceKey, _trouble: DeviceTrouble) -> Result<()> {
        Ok(())
    }

    /// Returns the copies of a file, for administrators; none for a file in another form.
    ///
    /// # Errors
    /// The store's.
    fn copies(&self, _file: &FileId) -> Result<Vec<CopyState>> {
        Ok(Vec::new())
    }

    /// Returns the numbers of the nodes that have content of a file, for administrators, also while
    /// clients get no placement. Empty for a file at the server itself, and where the file system
    /// does not say it.
    ///
    /// # Errors
    /// The store's.
    fn nodes(&self, _file: &FileId) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siphasher::sip::SipHasher24;

    #[test]
    fn data_servers_that_are_reached_otherwise_make_other_devices() {
        let [one, two] = [1, 2].map(|port| SocketAddr::from(([192, 0, 2, 1], port)));
        let key = |tcp: &[SocketAddr], rdma: &[SocketAddr]| {
            let mut hasher = SipHasher24::new();
            NfsAddresses { tcp: tcp.to_vec(), rdma: rdma.to_vec() }.write_to(&mut hasher);
            hasher.finish()
        };
        let keys = [
            key(&[one], &[]),
            key(&[two], &[]),
            key(&[one, two], &[]),
            key(&[one], &[two]),
            key(&[two], &[one]),
            key(&[], &[one, two]),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{at}");
        }
        assert_eq!(key(&[one], &[two]), key(&[one], &[two]));
    }
}
