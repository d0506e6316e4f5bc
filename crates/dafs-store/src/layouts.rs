//! Where the content of files lies, for stores that spread it over data servers: what a metadata
//! server tells clients, in the store's own terms.
//!
//! Invariants
//! * A placement tells the truth about its epoch. When it becomes another one, the epoch does, and
//!   the file is told by [`Layouts::take_moved`]; until layouts are given back, what comes by the
//!   old one is carried out all the same, however slowly.
//! * What a client wrote at the data servers belongs to the file only when
//!   [`commit`](Layouts::commit) or [`settle`](Layouts::settle) has made the size cover it.
//!   Neither ever makes a file shorter.

use crate::Result;
use crate::types::FileId;
use std::hash::Hasher;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

/// The most places that a pattern has before it repeats (what stock clients accept).
pub const PATTERN_PLACES_MAX: usize = 4096;

/// The most data servers of one device (what stock clients accept).
pub const DEVICE_SERVERS_MAX: usize = 256;

/// The most copies of one file.
pub const COPIES_MAX: usize = 8;

/// Which data servers hold the stripes of files of one kind, and where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKey(pub [u8; 16]);

/// Where clients reach a data server by NFS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NfsAddresses {
    /// Over TCP, as all clients can; empty if they do not reach it.
    pub tcp: Vec<SocketAddr>,
    /// Over RDMA; empty if it is not served.
    pub rdma: Vec<SocketAddr>,
}

impl NfsAddresses {
    /// Those of a data server that clients reach over TCP alone.
    pub fn over_tcp(tcp: Vec<SocketAddr>) -> Self {
        Self { tcp, rdma: Vec::new() }
    }

    /// Writes them to what makes the key of a device: other addresses are another device.
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

/// Why a client could not write at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceTrouble {
    /// It cannot be reached, or has failed.
    Failed,
    /// There is no room for more.
    Full,
}

/// A set of data servers and the pattern in which they take turns. It never changes: another set or
/// another pattern is another device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// For each place of the pattern the number of its server in `servers`; from 1 to
    /// [`PATTERN_PLACES_MAX`] places.
    pub pattern: Vec<u32>,
    /// The data servers, each with the addresses that lead to it; from 1 to [`DEVICE_SERVERS_MAX`].
    pub servers: Vec<NfsAddresses>,
}

/// In what form a store tells where its files lie: one for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayoutForm {
    /// Stripes that lie in turn on several data servers.
    Stripes,
    /// The whole file on one data server, or the same on several.
    Copies,
}

/// How a stripe's place in its component is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// The offset in the component is that in the file.
    Sparse,
    /// Components have no holes: each holds its stripes one after the other.
    Dense,
}

/// Where the content of one file lies, as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Differs between two placements of the file.
    pub epoch: u64,
    /// Where.
    pub spread: Spread,
}

/// How a file is spread over data servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// In [`LayoutForm::Stripes`].
    Stripes(Stripes),
    /// In [`LayoutForm::Copies`]: at least one, at most [`COPIES_MAX`]. Clients read any of them
    /// and write all.
    Copies(Vec<FileCopy>),
}

/// The whole file on one data server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCopy {
    /// A device of one server.
    pub device: DeviceKey,
    /// What the file is called there; at most 128 bytes.
    pub handle: Box<[u8]>,
}

/// One of the copies of a file, as administrators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyState {
    /// The number of its node.
    pub node: u32,
    /// Where clients reach it.
    pub addresses: Vec<SocketAddr>,
    /// Whether it has all that the file has.
    pub fresh: bool,
}

/// Where the stripes of a file lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripes {
    /// The data servers and their turns.
    pub device: DeviceKey,
    /// The place in the pattern that holds the first stripe.
    pub first_place: u32,
    /// Bytes of a stripe; a multiple of 64.
    pub unit_bytes: NonZeroU32,
    /// How components are packed.
    pub packing: Packing,
    /// What the file is called at the data servers: one name for all, or one for each (in the order
    /// of the device's servers when sparse, of its pattern when dense). At most 128 bytes each.
    pub handles: Vec<Box<[u8]>>,
}

impl Placement {
    /// In what form it is.
    pub fn form(&self) -> LayoutForm {
        match &self.spread {
            Spread::Stripes(_) => LayoutForm::Stripes,
            Spread::Copies(_) => LayoutForm::Copies,
        }
    }

    /// The devices that it names.
    pub fn devices(&self) -> impl Iterator<Item = DeviceKey> {
        let (stripes, copies) = match &self.spread {
            Spread::Stripes(stripes) => (Some(stripes.device), &[][..]),
            Spread::Copies(copies) => (None, &copies[..]),
        };
        stripes.into_iter().chain(copies.iter().map(|copy| copy.device))
    }

    /// All names that the file has at data servers.
    pub fn handles(&self) -> impl Iterator<Item = &[u8]> {
        let (stripes, copies) = match &self.spread {
            Spread::Stripes(stripes) => (&stripes.handles[..], &[][..]),
            Spread::Copies(copies) => (&[][..], &copies[..]),
        };
        stripes.iter().map(|handle| &**handle).chain(copies.iter().map(|copy| &*copy.handle))
    }
}

/// What the metadata server asks of a store that spreads files. Calls may wait for data servers and
/// for disks, and end in bounded time.
pub trait Layouts: Send + Sync {
    /// Where the content of a file lies that is open. `None` for one that clients have to reach through the
    /// metadata server. For a file without content yet, `write` has it placed.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) when it cannot be told now; where it is no regular file,
    /// [`StoreError::BadType`](crate::StoreError::BadType) or `None`.
    fn placement(&self, file: &FileId, write: bool) -> Result<Option<Placement>>;

    /// Whether a file that was placed with this epoch lies there still. What moves later is in the
    /// stream of [`take_moved`](Self::take_moved).
    fn is_current(&self, file: &FileId, epoch: u64) -> bool {
        matches!(self.placement(file, false), Ok(Some(now)) if now.epoch == epoch)
    }

    /// The device of that key, if there is such a one.
    fn device(&self, key: &DeviceKey) -> Option<Device>;

    /// Where the servers of a device serve DAFS, in their order; `None` where one does not.
    fn dafs_servers(&self, _key: &DeviceKey) -> Option<Vec<Vec<SocketAddr>>> {
        None
    }

    /// What shows to the data servers that this store stands behind some bytes; `None` where they take no
    /// such word, which only those do that serve DAFS.
    fn word(&self, _bytes: &[u8]) -> Option<[u8; 16]> {
        None
    }

    /// All devices that placements may name now.
    fn devices(&self) -> Vec<DeviceKey>;

    /// A client that holds a layout for writing has made its data stable at the data servers and
    /// says so: the file reaches to `end` at least (`None`: nothing is said about the size), and
    /// was changed now. What it wrote and how far that reaches is stable when the call returns, which tells
    /// how far the file reaches.
    ///
    /// # Errors
    /// [`StoreError::Invalid`](crate::StoreError::Invalid) for an end beyond what was written.
    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64>;

    /// A layout for writing has gone without a commit, as with a client that died: from now on the
    /// file reaches as far as the data servers have something of it.
    fn settle(&self, file: &FileId) -> Result<()>;

    /// Whether how far each file reaches is always known to it, whatever clients write by themselves. A constant of
    /// the store.
    fn knows_ends(&self) -> bool {
        false
    }

    /// A client that holds a layout for writing, and has not gone, is about to let others go on: the file
    /// reaches as far as the data servers have something of it.
    fn reach(&self, file: &FileId) -> Result<()> {
        self.settle(file)
    }

    /// When this has returned, no data server carries out anything on the file by right of what it
    /// was told before: each asks the metadata server again.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) when that is not sure yet.
    fn forget(&self, file: &FileId) -> Result<()>;

    /// How long data servers may go by what they were told before; zero if they ask each time. A
    /// constant of the store, told without waiting.
    fn belief(&self) -> Duration {
        Duration::ZERO
    }

    /// No data server goes by anything that an earlier run of the metadata server has said.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) while that is not sure.
    fn settled(&self) -> Result<()> {
        Ok(())
    }

    /// Hands every file whose placement has become another one since the last call to `sink`.
    fn take_moved(&self, sink: &mut dyn FnMut(FileId));

    /// Hands every device that no placement names any more since the last call to `sink`; perhaps one that
    /// nobody was told of.
    fn take_gone(&self, _sink: &mut dyn FnMut(DeviceKey)) {}

    /// Hands every file of which the store wants to know that no client writes to it at the data servers
    /// to `sink`, and whether layouts for writing are to be recalled for that. `sink` says whether there
    /// is none, nor one under way whose placement was asked for before this call, nor one that has gone
    /// and waits to be [settled](Self::settle).
    fn take_lent(&self, _sink: &mut dyn FnMut(FileId, bool) -> bool) {}

    /// A client that holds a layout for writing could not write at a device of it. From the return of
    /// this call on, the file does without what lies there, if it can; but not where only room is wanting.
    ///
    /// # Errors
    /// [`StoreError::Busy`](crate::StoreError::Busy) when it does not yet.
    fn report(&self, _file: &FileId, _device: &DeviceKey, _trouble: DeviceTrouble) -> Result<()> {
        Ok(())
    }

    /// What is known of the copies of a file, for administrators; none of a file in another form.
    ///
    /// # Errors
    /// The store's.
    fn copies(&self, _file: &FileId) -> Result<Vec<CopyState>> {
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
