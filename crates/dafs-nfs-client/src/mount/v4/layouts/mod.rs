//! Parallel NFS (RFC 8881 12, 13; RFC 8435): files whose layout a server tells are read and written at
//! the data servers themselves, all of them at a time.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | what a layout says, by a reader for each type (`files`, `flexible`, those of the program), checked |
//! | `file` | what the parts of `dafs-parallel` are made of here |
//! | `grant` | asking for layouts and devices |
//! | `nodes` | connections to data servers |
//! | `io` | reads and writes in parts, and what is done for those that fail |
//! | `give_back` | the requests by which `dafs-parallel` commits, tells what was written, and gives layouts back |
//! | `recall` | what the server asks for over the back channel |
//!
//! Invariants
//! * A layout only says of a shorter way. Whatever cannot be done by one, because the server gives none,
//!   it makes no sense, or a data server fails, is done through the server, and errors are the server's.
//! * A write whose fate at a data server is unknown is sent through the server only when the layout has
//!   been given back.

#[cfg(test)]
mod ended;
mod file;
mod files;
mod flexible;
mod give_back;
mod grant;
mod io;
mod nodes;
mod plan;
mod recall;

pub(crate) use file::{FileLayout, Grant};

use super::client::Client;
use crate::back::BackHandler;
use crate::files::Handle;
use crate::mount::error::Result;
use crate::mount::layout::LayoutReader;
use crate::mount::open::Open;
use dafs_parallel::{LayoutState, Nodes, Protocol, Returns};
use recall::Recalls;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The addresses of devices, by layout type and device.
type Devices = FxHashMap<(u32, [u8; 16]), Arc<[u8]>>;

/// What a mount knows of where files lie.
#[derive(Debug)]
pub(crate) struct Layouts {
    /// The open files that were read or written.
    files: Mutex<FxHashMap<Handle, Arc<FileLayout>>>,
    devices: Mutex<Devices>,
    /// How often the server has told of changes of devices.
    device_news: AtomicU64,
    nodes: Nodes<Self>,
    readers: Vec<Arc<dyn LayoutReader>>,
    /// The place of the reader whose layouts are asked for first.
    reader: AtomicUsize,
    /// What the server has recalled.
    returns: Returns<Self>,
    /// Recalls of more than a file that are not done yet.
    wide: AtomicU32,
}

impl Layouts {
    /// Nothing is known yet; layouts are read by the program's own readers before those of this crate.
    pub(crate) fn new(own: &[Arc<dyn LayoutReader>]) -> Self {
        Self {
            files: Mutex::default(),
            devices: Mutex::default(),
            device_news: AtomicU64::default(),
            nodes: Nodes::default(),
            readers: plan::readers(own),
            reader: AtomicUsize::default(),
            returns: Returns::default(),
            wide: AtomicU32::default(),
        }
    }

    fn files(&self) -> MutexGuard<'_, FxHashMap<Handle, Arc<FileLayout>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a file, if anything.
    pub(crate) fn known(&self, handle: &Handle) -> Option<Arc<FileLayout>> {
        self.files().get(handle).cloned()
    }

    /// What is known of a file that is read or written.
    fn file(&self, handle: &Handle) -> Arc<FileLayout> {
        let mut files = self.files();
        if let Some(file) = files.get(handle) {
            return file.clone();
        }
        let file = Arc::new(FileLayout::new(handle.clone()));
        files.insert(handle.clone(), file.clone());
        file
    }

    fn all(&self) -> Vec<Arc<FileLayout>> {
        self.files().values().cloned().collect()
    }

    /// The server has restarted, and knows of no layouts. Nor will it tell of changes of devices that
    /// its last run has named.
    pub(crate) fn void(&self) {
        self.devices().clear();
        self.all().iter().for_each(|file| file.change(LayoutState::void));
    }

    /// Answers the calls of the server.
    pub(crate) fn back_handler(self: &Arc<Self>) -> Arc<dyn BackHandler> {
        Arc::new(Recalls::new(self))
    }

    /// Begins to give back what is recalled.
    pub(crate) fn start(self: &Arc<Self>, client: &Arc<Client>) -> std::io::Result<()> {
        recall::start(self, client)
    }

    /// An open is about to be closed: what was written is told, and with the last open of a file its
    /// layout ends.
    pub(crate) fn closing(&self, client: &Client, open: &Open) -> Result<()> {
        let Some(file) = self.known(&open.handle) else { return Ok(()) };
        if client.is_last_open(open) {
            match file.held() {
                Some((grant, _)) if !grant.terms.return_on_close => {
                    self.at(client, &file).give_back(&grant, &[]);
                }
                _ => self.at(client, &file).settle_all(),
            }
        }
        self.at(client, &file).tell()
    }

    /// An open of this file was closed.
    pub(crate) fn closed(&self, client: &Client, handle: &Handle) {
        let mut files = self.files();
        let Some(file) = files.get(handle) else { return };
        if client.open_of(handle, false).is_some() {
            return;
        }
        file.change(LayoutState::void);
        // Whoever has opened it again meanwhile goes on with it.
        if Arc::strong_count(file) == 1 && file.written().is_none() {
            files.remove(handle);
        }
    }

    /// The server is to know the size and the times of a file before it is asked for them.
    pub(crate) fn tell_of(&self, client: &Client, handle: &Handle) -> Result<bool> {
        match self.known(handle) {
            Some(file) if file.written().is_some() => self.tell_first(client, &file).map(|()| true),
            _ => Ok(false),
        }
    }

    /// This client has given a file another size.
    pub(crate) fn resized(&self, handle: &Handle, size: u64) {
        if let Some(file) = self.known(handle) {
            file.with(|state| state.resized(size));
        }
    }

    /// Keeps the sessions at data servers that nothing was asked of for so long.
    pub(crate) fn renew(&self, idle_max: Duration) {
        nodes::renew(&self.nodes, idle_max);
    }

    /// The mount ends.
    pub(crate) fn end(&self) {
        self.returns.stop();
        nodes::end(&self.nodes);
    }
}
