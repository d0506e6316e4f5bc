//! Parallel NFS (RFC 8881 12, 13; RFC 8435). The server grants the layout of a file, and the client
//! reads and writes at all of the file's data servers in parallel.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | checked plans of layouts, by a reader for each type (`files`, `flexible`, own ones) |
//! | `file` | the types of `dafs-parallel` for NFS |
//! | `grant` | requests for layouts and devices |
//! | `nodes` | clients at data servers |
//! | `io` | reads and writes in parts, and the handling of failed parts |
//! | `give_back` | requests for `dafs-parallel`: COMMIT, LAYOUTCOMMIT, LAYOUTERROR, LAYOUTRETURN |
//! | `recall` | the server's calls over the back channel |
//! | `at_server` | the files of which the server has unstable data |
//!
//! Invariants
//! * A layout is only an optimisation. Where the server grants none, it makes no sense, or a data
//!   server fails, the client goes through the server, and reports the server's errors.
//! * A write whose outcome at a data server is unknown goes through the server only after the
//!   layout was given back.

mod at_server;
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
pub(crate) use give_back::LastReport;

use super::client::Client;
use crate::back::BackHandler;
use crate::files::Handle;
use crate::mount::error::Result;
use crate::mount::layout::LayoutReader;
use crate::mount::open::Open;
use at_server::AtServer;
use dafs_mem::Mutex;
use dafs_parallel::{LayoutState, Nodes, Protocol, Returns};
use recall::Recalls;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

/// The addresses of devices, by layout type and device.
type Devices = FxHashMap<(u32, [u8; 16]), Arc<[u8]>>;

/// The layouts of a mount, their devices and data servers.
#[derive(Debug)]
pub(crate) struct Layouts {
    /// The layouts of the open files that were read or written.
    files: Mutex<FxHashMap<Handle, Arc<FileLayout>>>,
    devices: Mutex<Devices>,
    /// The number of device notifications from the server.
    device_news: AtomicU64,
    nodes: Nodes<Self>,
    readers: Vec<Arc<dyn LayoutReader>>,
    /// The index of the reader whose layouts are requested first.
    reader: AtomicUsize,
    /// The queue of the recall thread.
    returns: Returns<Self>,
    /// Recalls of more than one file that are not done yet.
    wide: AtomicU32,
    /// Held for moments.
    at_server: Mutex<AtServer>,
}

impl Layouts {
    /// Makes the layouts of a mount. The program's own readers come before those of this crate.
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
            at_server: Mutex::default(),
        }
    }

    /// Returns the layout state of a file, if there is any.
    pub(crate) fn known(&self, handle: &Handle) -> Option<Arc<FileLayout>> {
        self.files.lock().get(handle).cloned()
    }

    /// Returns the layout state of a file that is read or written, and makes it at the first use.
    fn file(&self, handle: &Handle) -> Arc<FileLayout> {
        let mut files = self.files.lock();
        if let Some(file) = files.get(handle) {
            return file.clone();
        }
        let file = Arc::new(FileLayout::new(handle.clone()));
        files.insert(handle.clone(), file.clone());
        file
    }

    fn all(&self) -> Vec<Arc<FileLayout>> {
        self.files.lock().values().cloned().collect()
    }

    /// Voids all layouts, because the server has restarted and does not know them. It will not
    /// report changes of the devices that its last run has named either.
    pub(crate) fn void(&self) {
        self.devices.lock().clear();
        self.all().iter().for_each(|file| file.change(LayoutState::void));
    }

    /// Returns the handler of the server's calls.
    pub(crate) fn back_handler(self: &Arc<Self>) -> Arc<dyn BackHandler> {
        Arc::new(Recalls::new(self))
    }

    /// Starts the recall thread.
    pub(crate) fn start(self: &Arc<Self>, client: &Arc<Client>) -> std::io::Result<()> {
        recall::start(self, client)
    }

    /// Prepares the close of an open: sends LAYOUTCOMMIT, or returns the one that can go with the
    /// CLOSE. With the last open of a file its layout is given back, or ends by itself.
    pub(crate) fn closing(&self, client: &Client, open: &Open) -> Result<Option<LastReport>> {
        let Some(file) = self.known(&open.handle) else { return Ok(None) };
        if client.is_last_open(open) {
            match file.held() {
                Some((grant, _)) if !grant.terms.return_on_close => {
                    self.at(client, &file).give_back(&grant, &[]);
                }
                _ => {
                    self.at(client, &file).settle_all();
                    if let Some(report) = Self::last_report(&file) {
                        return Ok(Some(report));
                    }
                }
            }
        }
        self.at(client, &file).tell().map(|()| None)
    }

    /// Voids the layout of a file if the last open was closed.
    pub(crate) fn closed(&self, client: &Client, handle: &Handle) {
        let mut files = self.files.lock();
        let Some(file) = files.get(handle) else { return };
        if client.open_of(handle, false).is_some() {
            return;
        }
        file.change(LayoutState::void);
        // Another thread may have opened the file again, and goes on with this state.
        if Arc::strong_count(file) == 1 && file.written().is_none() {
            if file.has_lost() {
                // The server may reach this data, and the next open of the file knows of no loss.
                self.mark_at_server(handle);
            }
            files.remove(handle);
        }
    }

    /// Sends LAYOUTCOMMIT before a request for the size and the times of a file. True if there was
    /// anything to report.
    pub(crate) fn tell_of(&self, client: &Client, handle: &Handle) -> Result<bool> {
        match self.known(handle) {
            Some(file) if file.written().is_some() => self.tell_first(client, &file).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Notes that this client has given a file another size.
    pub(crate) fn resized(&self, handle: &Handle, size: u64) {
        if let Some(file) = self.known(handle) {
            file.with(|state| state.resized(size));
        }
    }

    /// Renews the sessions at data servers that were idle for so long.
    pub(crate) fn renew(&self, idle_max: Duration) {
        nodes::renew(&self.nodes, idle_max);
    }

    /// Ends all layouts with the mount.
    pub(crate) fn end(&self) {
        self.returns.stop();
        nodes::end(&self.nodes);
    }
}
