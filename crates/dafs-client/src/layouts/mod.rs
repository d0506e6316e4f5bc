//! Reading and writing at data servers, an extension of DAFS. The server grants the layout of a
//! file, and the client reads and writes at all of the file's data servers in parallel.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | the content of a layout and its devices |
//! | `file` | the types of `dafs-parallel` for DAFS |
//! | `ask` | requests for layouts and devices |
//! | `nodes` | sessions with data servers |
//! | `io` | reads and writes in parts, and the handling of failed parts |
//! | `sent` | requests under way at data servers |
//! | `flight` | transfers that tasks and later calls wait for |
//! | `give_back` | the requests of `dafs-parallel`: COMMIT, LAYOUTCOMMIT, LAYOUTRETURN |
//! | `recall` | recalls by the server |
//!
//! Invariants
//! * A layout is only an optimisation. The client does through the server whatever cannot be done
//!   by a layout, and reports the server's errors.
//! * A write whose outcome at a data server is unknown goes through the server only after the
//!   layout was given back.
//! * A thread that holds the driver's lock may take the locks of `recall` and of a file's state: no
//!   thread holds either during a request.
//! * Where a server grants no layouts, an open file costs one atomic load for each transfer.

mod ask;
mod file;
mod flight;
mod give_back;
mod io;
mod nodes;
mod plan;
mod recall;
mod sent;

pub(crate) use flight::Flight;
pub(crate) use io::{DataServerTransfer, begin_read, begin_retained, begin_write};
pub(crate) use recall::Recalls;

use crate::attributes::FileHandle;
use crate::cache::Effect;
use crate::driver::Shared;
use crate::error::Result;
use crate::file::File;
use crate::fork::ForkMutex;
use crate::opened::Opened;
use crate::options::ConnectOptions;
use crate::uncommitted::Uncommitted;
use crate::write_state::WriteState;
use dafs_parallel::limits::LAYOUT_THRESHOLD_BYTES;
use dafs_parallel::{LayoutState, Nodes, Protocol};
use dafs_wire::dafs::Verifier;
use file::FileLayout;
use flight::{Finisher, Transfers};
use recall::Known;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The layouts of a client, their devices and data servers.
#[derive(Debug)]
pub(crate) struct Layouts {
    known: Arc<Known>,
    devices: ForkMutex<FxHashMap<plan::DeviceId, Arc<plan::Device>>>,
    /// True for each file system that has layouts, by its id.
    systems: ForkMutex<FxHashMap<[u8; 16], bool>>,
    /// The options of the session with the metadata server.
    options: Arc<ConnectOptions>,
    nodes: Nodes<Self>,
    finisher: Finisher,
    /// The server's verifier at the last write or commit.
    verifier: ForkMutex<Option<Verifier>>,
    /// True once a request for a layout has allowed for a server that does not know the
    /// back-control channel yet.
    is_channel_known: AtomicBool,
    /// The time of the first refusal of a layout.
    asked_first: OnceLock<Instant>,
}

/// The layout of an open file, and what was done by it.
#[derive(Debug, Default)]
pub(crate) struct LayoutUse {
    /// The bytes that were read and written through the server.
    moved_bytes: AtomicU64,
    /// `None` inside if the file has no layout.
    layout: OnceLock<Option<Arc<FileLayout>>>,
    /// Unstable writes at data servers. All data servers count as one, which loses data when any of
    /// them does.
    writes: Uncommitted,
    /// Transfers at data servers that may not be over.
    transfers: Transfers,
}

impl LayoutUse {
    /// Notes unstable data at data servers.
    fn written(&self, verifier: Verifier) {
        self.writes.written(verifier);
    }

    fn layout(&self) -> Option<&Arc<FileLayout>> {
        self.layout.get()?.as_ref()
    }
}

impl Layouts {
    /// Makes the layouts of a client that connects with these options.
    pub(crate) fn new(options: ConnectOptions) -> Self {
        Self {
            known: Arc::default(),
            devices: ForkMutex::default(),
            systems: ForkMutex::default(),
            options: Arc::new(options),
            nodes: Nodes::default(),
            finisher: Finisher::default(),
            verifier: ForkMutex::default(),
            is_channel_known: AtomicBool::new(false),
            asked_first: OnceLock::new(),
        }
    }

    /// Returns the layout of an open file, if it may have one and has transferred enough. `bytes`
    /// is the size of the next transfer.
    fn of<'a>(&self, file: &'a Opened, bytes: usize) -> Option<&'a Arc<FileLayout>> {
        let used = &file.layout;
        if let Some(known) = used.layout.get() {
            return known.as_ref();
        }
        let before = used.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if before.saturating_add(bytes as u64) < LAYOUT_THRESHOLD_BYTES {
            return None;
        }
        let shared = file.client.shared();
        shared.check_process().ok()?;
        // The back-control channel comes first, so that the server can recall what it grants.
        let has = self.has_layouts(shared, &file.handle)? && shared.is_listening().is_some();
        let layout = has.then(|| self.known.attach(&file.handle));
        if let Err(Some(unused)) = used.layout.set(layout) {
            // Another thread was first, with the same layout or with none.
            if self.known.detach(&unused) {
                self.known.forget(&unused.handle);
            }
        }
        used.layout.get()?.as_ref()
    }

    /// Prepares a use of a file that bypasses its layout: the server must know first what was
    /// written.
    pub(crate) fn before(&self, shared: &Arc<Shared>, what: &Effect) {
        match what {
            Effect::None => {}
            Effect::Read(handle) => self.tell_of(shared, handle),
            Effect::Change(handle, _) => {
                self.tell_of(shared, handle);
                // The use may move the end of the file. A write that was not reported, or came
                // since, remains.
                if let Some(layout) = self.known.find(handle) {
                    layout.with(LayoutState::forget_size);
                }
            }
            Effect::ReadAny | Effect::ChangeAny => {
                for layout in self.known.all() {
                    self.tell_first(shared, &layout);
                    if *what == Effect::ChangeAny {
                        layout.with(LayoutState::forget_size);
                    }
                }
            }
        }
    }

    /// Commits a file at its data servers and sends LAYOUTCOMMIT. Returns the verifier of all of
    /// them, which is zero until data is lost.
    ///
    /// # Errors
    /// The server's.
    pub(crate) fn commit_of(&self, shared: &Arc<Shared>, handle: &FileHandle) -> Result<Verifier> {
        if !self.are_used() {
            return Ok(Verifier([0; 8]));
        }
        shared.check_process()?;
        let Some(layout) = self.known.find(handle) else { return Ok(Verifier([0; 8])) };
        match self.at(shared, &layout).commit() {
            // The verifier shows the loss.
            Err(crate::Error::WritesLost) => Ok(Verifier(layout.verifier())),
            told => told.map(Verifier),
        }
    }

    /// Returns the verifier of the data servers of a file.
    pub(crate) fn verifier_of(&self, handle: &FileHandle) -> Verifier {
        self.known.find(handle).map_or(Verifier([0; 8]), |layout| Verifier(layout.verifier()))
    }

    /// Returns the server's verifier that was seen last.
    pub(crate) fn server_verifier(&self) -> Option<Verifier> {
        *self.verifier.lock_here()
    }

    /// Notes the server's verifier.
    pub(crate) fn server_told(&self, verifier: Verifier) {
        *self.verifier.lock_here() = Some(verifier);
    }

    /// True if any file has a layout, so that [`before`](Self::before) is worth calling.
    pub(crate) fn are_used(&self) -> bool {
        self.known.are_used()
    }

    fn tell_of(&self, shared: &Arc<Shared>, handle: &FileHandle) {
        if let Some(layout) = self.known.find(handle) {
            self.tell_first(shared, &layout);
        }
    }
}

impl File {
    /// Commits the file at its data servers and sends LAYOUTCOMMIT.
    pub(crate) fn commit_at_data_servers(&self) -> Result<()> {
        let used = &self.opened().layout;
        let (Some(layout), Some(layouts)) = (used.layout(), self.client().layouts()) else {
            return Ok(());
        };
        let mark = used.writes.mark();
        let verifier = match layouts.at(self.client().shared(), layout).commit() {
            Err(crate::Error::WritesLost) => {
                used.writes.committed(mark, Verifier(layout.verifier()), true);
                return Err(crate::Error::WritesLost);
            }
            told => Verifier(told?),
        };
        match used.writes.committed(mark, verifier, true) {
            true => Ok(()),
            false => Err(crate::Error::WritesLost),
        }
    }

    /// Prepares the close of the file: sends LAYOUTCOMMIT. The last open file that uses the layout
    /// also gives it back.
    pub(crate) fn leave_layout(&self) -> Result<()> {
        let used = &self.opened().layout;
        let (Some(layout), Some(layouts)) = (used.layout(), self.client().layouts()) else {
            return Ok(());
        };
        let shared = self.client().shared();
        shared.check_process()?;
        // The rest of each transfer goes through the server, which needs the open until then.
        used.transfers.await_all();
        let is_last = layouts.known.detach(layout);
        if is_last && let Some((grant, _)) = layout.held() {
            layouts.at(shared, layout).give_back(&grant, &[]);
        }
        let told = layouts.at(shared, layout).tell();
        if is_last {
            layouts.known.forget(&layout.handle);
        }
        told?;
        match used.writes.write_state() {
            WriteState::Lost => Err(crate::Error::WritesLost),
            WriteState::Unstable(first) if first.0 != layout.verifier() => {
                Err(crate::Error::WritesLost)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Layouts {
    fn drop(&mut self) {
        self.known.stop();
    }
}
