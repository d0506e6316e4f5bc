//! Reading and writing at data servers (an extension of ours): files whose layout the server tells are
//! read and written where they lie, on all data servers at a time.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | what a layout and its devices say |
//! | `file` | what the parts of `dafs-parallel` are made of here |
//! | `ask` | asking for layouts and devices |
//! | `nodes` | sessions with data servers |
//! | `io` | reads and writes in parts, and what is done for those that fail |
//! | `sent` | what is under way at data servers |
//! | `flight` | transfers that tasks and later calls wait for |
//! | `give_back` | the requests by which `dafs-parallel` commits, tells what was written, and gives layouts back |
//! | `recall` | what the server asks back |
//!
//! Invariants
//! * A layout only says of a shorter way. Whatever cannot be done by one is done through the server, and
//!   errors are the server's.
//! * A write whose fate at a data server is unknown is sent through the server only when the layout has
//!   been given back.
//! * Whoever has the driver's lock may take the locks of `recall` and the state of a file: neither is held
//!   over a request.
//! * Where a server gives no layouts an open file costs one look at a number for each transfer.

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
pub(crate) use io::{Beside, begin_kept, begin_read, begin_write};
pub(crate) use recall::Recalls;

use crate::attributes::FileHandle;
use crate::cache::Use;
use crate::driver::Shared;
use crate::error::Result;
use crate::file::File;
use crate::fork::ForkMutex;
use crate::opened::Opened;
use crate::options::ConnectOptions;
use crate::standing::Standing;
use crate::uncommitted::Uncommitted;
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

/// What a client knows of where files lie.
#[derive(Debug)]
pub(crate) struct Layouts {
    known: Arc<Known>,
    devices: ForkMutex<FxHashMap<plan::DeviceId, Arc<plan::Device>>>,
    /// Whether file systems have layouts.
    systems: ForkMutex<FxHashMap<[u8; 16], bool>>,
    /// How the client is connected to the metadata server.
    options: Arc<ConnectOptions>,
    nodes: Nodes<Self>,
    finisher: Finisher,
    /// That of the server under which something was written or committed last.
    verifier: ForkMutex<Option<Verifier>>,
    /// The server has told by an answer whether it knows that it can call.
    is_channel_known: AtomicBool,
    /// When the server gave no layout for the first time.
    asked_first: OnceLock<Instant>,
}

/// What an open file has of its layout.
#[derive(Debug, Default)]
pub(crate) struct LayoutUse {
    /// What was read and written through the server.
    moved_bytes: AtomicU64,
    /// `None` when there is none to be had.
    layout: OnceLock<Option<Arc<FileLayout>>>,
    /// What was written at data servers and is not stable; they count as one, which loses data when
    /// any of them does.
    writes: Uncommitted,
    /// What was begun at data servers and may not be over.
    transfers: Transfers,
}

impl LayoutUse {
    /// Data servers have taken data that is not stable.
    fn written(&self, verifier: Verifier) {
        self.writes.written(verifier);
    }

    fn layout(&self) -> Option<&Arc<FileLayout>> {
        self.layout.get()?.as_ref()
    }
}

impl Layouts {
    /// For a client that connects with these options.
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

    /// The layout of an open file that has moved so much, if there may be one.
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
        // First, so that the server can call when it is asked.
        let has = self.has_layouts(shared, &file.handle)? && shared.is_listening().is_some();
        let layout = has.then(|| self.known.attach(&file.handle));
        if let Err(Some(unused)) = used.layout.set(layout) {
            // Another thread was first, and uses the same, or none.
            if self.known.detach(&unused) {
                self.known.forget(&unused.handle);
            }
        }
        used.layout.get()?.as_ref()
    }

    /// To be called before a file is used beside its layout: the server is to know what was written.
    pub(crate) fn before(&self, shared: &Arc<Shared>, what: &Use) {
        match what {
            Use::None => {}
            Use::Look(handle) => self.tell_of(shared, handle),
            Use::Change(handle, _) => {
                self.tell_of(shared, handle);
                // It may end elsewhere afterwards. What could not be told, or was written since, remains.
                if let Some(layout) = self.known.find(handle) {
                    layout.with(LayoutState::forget_size);
                }
            }
            Use::LookAtAny | Use::ChangeAny => {
                for layout in self.known.all() {
                    self.tell_first(shared, &layout);
                    if *what == Use::ChangeAny {
                        layout.with(LayoutState::forget_size);
                    }
                }
            }
        }
    }

    /// Has data servers make stable what was written to a file there, and the server know of it. Tells the
    /// verifier of all of them, which is nothing as long as nothing was lost.
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
            // The verifier says so.
            Err(crate::Error::WritesLost) => Ok(Verifier(layout.verifier())),
            told => told.map(Verifier),
        }
    }

    /// The verifier of the data servers of a file.
    pub(crate) fn verifier_of(&self, handle: &FileHandle) -> Verifier {
        self.known.find(handle).map_or(Verifier([0; 8]), |layout| Verifier(layout.verifier()))
    }

    /// That of the server which was seen last.
    pub(crate) fn server_verifier(&self) -> Option<Verifier> {
        *self.verifier.lock_here()
    }

    /// The server has told its verifier.
    pub(crate) fn server_told(&self, verifier: Verifier) {
        *self.verifier.lock_here() = Some(verifier);
    }

    /// Whether any file has a layout, so that [`before`](Self::before) is worth calling.
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
    /// Has data servers make stable what was written there, and the server know of it.
    pub(crate) fn commit_beside(&self) -> Result<()> {
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

    /// The file is about to be closed: what was written is told, and with the last open of a file by which
    /// its layout is used that is given back.
    pub(crate) fn leave_layout(&self) -> Result<()> {
        let used = &self.opened().layout;
        let (Some(layout), Some(layouts)) = (used.layout(), self.client().layouts()) else {
            return Ok(());
        };
        let shared = self.client().shared();
        shared.check_process()?;
        // What data servers have not done goes through the server, which knows the open for that long.
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
        match used.writes.standing() {
            Standing::Lost => Err(crate::Error::WritesLost),
            Standing::Unstable(first) if first.0 != layout.verifier() => {
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
