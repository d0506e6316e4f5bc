//! Handles, and the tables of the objects behind them.
//!
//! Invariants
//! * A number is used only once: its generation differs from all earlier ones in the same place.
//! * A number contains the kind of its object, and the process that made it. A fork begins with
//!   empty tables, and never touches those of its parent.

use crate::batch::Batch;
use crate::buffer::Buffer;
use crate::chain::Chain;
use crate::directory::Directory;
use crate::error::{DAP_E_BAD_HANDLE, DAP_E_BUSY, DAP_E_FORKED, DAP_E_TOO_MANY, Failure};
use crate::file::File;
use crate::group::Group;
use crate::limits::HANDLES_MAX;
use crate::mount::{Mounted, MountedDirectory, MountedFile};
use crate::session::Session;
use dafs_mem::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;
const PROCESS_BITS: u32 = 8;

const _: () = assert!(HANDLES_MAX <= 1 << INDEX_BITS);

/// A session with a server. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_session_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// An open file. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_file_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// A directory that is being listed. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_dir_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// A completion group. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_group_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// Memory that a server can access. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_buffer_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// Transfers that are sent together. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_batch_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// Requests that are sent together. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_chain_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// A mount of an NFS server. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_mount_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// An open file of a mount. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_mount_file_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// A directory of a mount that is being listed. 0 is none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_mount_dir_t {
    /// A number that only the library interprets.
    pub id: u64,
}

/// The tables of one process.
pub(crate) struct Tables {
    process: u32,
    pub(crate) sessions: Table<Session>,
    pub(crate) files: Table<File>,
    pub(crate) directories: Table<Directory>,
    pub(crate) groups: Table<Group>,
    pub(crate) buffers: Table<Buffer>,
    pub(crate) batches: Table<Batch>,
    pub(crate) chains: Table<Chain>,
    pub(crate) mounts: Table<Mounted>,
    pub(crate) mount_files: Table<MountedFile>,
    pub(crate) mount_directories: Table<MountedDirectory>,
}

static TABLES: AtomicPtr<Tables> = AtomicPtr::new(std::ptr::null_mut());

/// The tables of this process.
pub(crate) fn tables() -> &'static Tables {
    let process = dafs_client::process_number();
    let mut known = TABLES.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or tables that are never freed.
        if let Some(tables) = unsafe { known.as_ref() }
            && tables.process == process
        {
            return tables;
        }
        let new = Box::into_raw(Box::new(Tables {
            process,
            sessions: Table::new(1, process, "session"),
            files: Table::new(2, process, "file"),
            directories: Table::new(3, process, "directory"),
            groups: Table::new(4, process, "completion group"),
            buffers: Table::new(5, process, "buffer"),
            batches: Table::new(6, process, "batch"),
            chains: Table::new(7, process, "chain"),
            mounts: Table::new(8, process, "mount"),
            mount_files: Table::new(9, process, "file of a mount"),
            mount_directories: Table::new(10, process, "directory of a mount"),
        }));
        // Those of the parent are not touched: a thread of the parent may have held a lock of them.
        match TABLES.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above, and never freed from now on.
            Ok(_) => return unsafe { &*new },
            Err(now) => {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(new) });
                known = now;
            }
        }
    }
}

/// The objects of handles of one kind.
pub(crate) struct Table<T> {
    kind: u64,
    process: u64,
    name: &'static str,
    places: RwLock<Places<T>>,
}

struct Places<T> {
    places: Vec<Place<T>>,
    /// Free places, the one that has been free for longest first.
    free: VecDeque<u32>,
}

struct Place<T> {
    generation: u64,
    thing: Option<Arc<T>>,
}

impl<T> Table<T> {
    fn new(kind: u64, process: u32, name: &'static str) -> Self {
        let places = RwLock::new(Places { places: Vec::new(), free: VecDeque::new() });
        Self { kind, process: u64::from(process) & ((1 << PROCESS_BITS) - 1), name, places }
    }

    fn number(&self, generation: u64, index: u32) -> u64 {
        (self.kind << PROCESS_BITS | self.process) << (GENERATION_BITS + INDEX_BITS)
            | generation << INDEX_BITS
            | u64::from(index)
    }

    /// A new handle.
    pub(crate) fn add(&self, thing: T) -> Result<u64, Failure> {
        let mut places = self.places.write();
        let places = &mut *places;
        let index = match places.free.pop_front() {
            Some(index) => index,
            None if places.places.len() < HANDLES_MAX => {
                places.places.push(Place { generation: 1, thing: None });
                (places.places.len() - 1) as u32
            }
            None => {
                return Err(self.failure(
                    DAP_E_TOO_MANY,
                    "this process has too many handles: no room for another",
                ));
            }
        };
        let place = &mut places.places[index as usize];
        place.thing = Some(Arc::new(thing));
        Ok(self.number(place.generation, index))
    }

    /// The object of a handle.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>, Failure> {
        let index = self.place(number)?;
        let places = self.places.read();
        let place = places.places.get(index).filter(|place| self.is_of(place, number, index));
        place.and_then(|place| place.thing.clone()).ok_or_else(|| self.bad())
    }

    /// Closes a handle if no thread uses it now and `may_go` allows it.
    pub(crate) fn remove(
        &self,
        number: u64,
        may_go: impl FnOnce(&T) -> Result<(), Failure>,
    ) -> Result<T, Failure> {
        let index = self.place(number)?;
        let mut places = self.places.write();
        let places = &mut *places;
        let place = places.places.get_mut(index).filter(|place| self.is_of(place, number, index));
        let place = place.ok_or_else(|| self.bad())?;
        may_go(place.thing.as_deref().ok_or_else(|| self.bad())?)?;
        let thing = place.thing.take().ok_or_else(|| self.bad())?;
        match Arc::try_unwrap(thing) {
            Ok(thing) => {
                place.generation += 1;
                // A place that has used all its generations is never used again.
                if place.generation < 1 << GENERATION_BITS {
                    places.free.push_back(index as u32);
                }
                Ok(thing)
            }
            Err(used) => {
                place.thing = Some(used);
                Err(self.failure(DAP_E_BUSY, "another call is using the"))
            }
        }
    }

    fn is_of(&self, place: &Place<T>, number: u64, index: usize) -> bool {
        self.number(place.generation, index as u32) == number
    }

    fn place(&self, number: u64) -> Result<usize, Failure> {
        let of = number >> (GENERATION_BITS + INDEX_BITS);
        if of >> PROCESS_BITS != self.kind {
            return Err(self.bad());
        }
        if of & ((1 << PROCESS_BITS) - 1) != self.process {
            return Err(self.failure(DAP_E_FORKED, "this process was forked; its parent has the"));
        }
        Ok((number & ((1 << INDEX_BITS) - 1)) as usize)
    }

    fn bad(&self) -> Failure {
        self.failure(DAP_E_BAD_HANDLE, "this is not the handle of an open")
    }

    fn failure(&self, code: i32, what: &str) -> Failure {
        Failure::new(code, format!("{what} {}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DAP_E_INVALID, invalid};

    #[test]
    fn a_number_means_one_thing_only() {
        let table = Table::new(2, 7, "file");
        let first = table.add("a").unwrap();
        assert_eq!(*table.get(first).unwrap(), "a");
        assert_eq!(table.remove(first, |_| Ok(())).unwrap(), "a");
        let second = table.add("b").unwrap();
        assert_ne!(first, second);
        for bad in [first, 0, u64::MAX, second + 1, second ^ 1 << 40] {
            assert_eq!(table.get(bad).unwrap_err().code(), DAP_E_BAD_HANDLE, "{bad:x}");
        }
        let other = Table::new(3, 7, "directory");
        assert_eq!(other.get(second).copied_code(), DAP_E_BAD_HANDLE);
        let _: Arc<&str> = table.get(second).unwrap();
        let child: Table<&str> = Table::new(2, 8, "file");
        assert_eq!(child.get(second).unwrap_err().code(), DAP_E_FORKED);
    }

    trait Code {
        fn copied_code(self) -> i32;
    }

    impl Code for Result<Arc<u8>, Failure> {
        fn copied_code(self) -> i32 {
            self.unwrap_err().code()
        }
    }

    #[test]
    fn a_handle_in_use_stays() {
        let table = Table::new(2, 7, "file");
        let number = table.add(1).unwrap();
        let used = table.get(number).unwrap();
        assert_eq!(table.remove(number, |_| Ok(())).unwrap_err().code(), DAP_E_BUSY);
        drop(used);
        let no = |_: &i32| Err(invalid("no"));
        assert_eq!(table.remove(number, no).unwrap_err().code(), DAP_E_INVALID);
        assert_eq!(*table.get(number).unwrap(), 1);
    }
}
