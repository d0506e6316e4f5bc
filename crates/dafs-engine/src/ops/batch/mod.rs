//! BATCH_SUBMIT and HURRY_UP (DAFS 13.2).
//!
//! A batch is split into transfers on arrival: opens, rights and lists are checked there. Transfers
//! are gathered into *loads* of about one staging chunk, each sorted by file and offset. So one
//! call reads or writes adjacent parts of a file, of any requests.
//!
//! Loads of a synchronous batch run on the operation channel at once. Those of an asynchronous one
//! run on the back-control channel (DAFS O54), when their window ends or enough transfers have
//! gathered.
//!
//! Invariants
//! * Each request of a batch has exactly one completion, unless its connection ends.
//! * The channel that moves the data has what the export demands, and so has the operation channel.
//! * A client's outstanding requests are bounded ([`Batches`]). The resources of a load are bounded
//!   by the longest transfer.
//! * A request-id counts as outstanding until the message with its completion has been posted.
//! * A request that was cancelled in time (X_CANCEL) has the completion X_CANCELED, and no thread
//!   uses its file, nor does RDMA its memory.

mod batches;
mod io;
mod load;
mod plan;
mod queue;
mod submit;

pub(crate) use batches::{Batches, Gate};
pub(crate) use io::LoadIo;
pub(crate) use load::{Load, SyncBatch, cancel_sync, fetched, job_done, start};
pub(crate) use queue::{Queue, drop_canceled, start_now, submitted, turn};
pub(crate) use submit::{batch_submit, completions_max, hurry_up};

use crate::engine::allowed::LateWrites;
use crate::engine::measure::Account;
use dafs_dat::Instant;
use dafs_service::{Handle, OpenState, SessionProof};
use dafs_store::OpenFile;
use dafs_wire::dafs::{Checksum, CompletionNotification, DirectBuffer, FileChunk, Status};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One request of a batch that may be executed.
pub(crate) struct Transfer {
    pub(super) id: u64,
    /// Its index in a synchronous batch.
    pub(super) index: usize,
    pub(super) handle: Handle,
    /// The parties that it counts for.
    pub(super) account: Option<Account>,
    pub(super) file: Arc<dyn OpenFile>,
    /// The open that allows it, which may be revoked meanwhile.
    pub(super) open: Option<Arc<OpenState>>,
    pub(super) write: bool,
    /// The late writes that it must be ordered after, if it writes and there may be any.
    pub(super) late_writes: Option<LateWrites>,
    pub(super) chunks: SmallVec<[FileChunk; 1]>,
    pub(super) buffers: SmallVec<[DirectBuffer; 1]>,
    pub(super) bytes: usize,
    /// With checksums: the checksum of the data to write.
    pub(super) expected: Option<Checksum>,
    /// With checksums: the checksum of the read data is to be reported.
    pub(super) sum: bool,
}

/// An asynchronous batch on its way to the back-control channel of its session.
pub(crate) struct Submission {
    pub(super) transfers: Vec<Transfer>,
    /// Requests that fail at once.
    pub(super) refused: Vec<Finished>,
    pub(super) submitted: Instant,
    pub(super) window: Duration,
    /// The proof of the session on its operation channel.
    pub(super) proof: SessionProof,
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Submission({} transfers)", self.transfers.len())
    }
}

/// A completion that has not been reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) completion: CompletionNotification,
    /// Its id was entered for it, and is free again when it is reported.
    pub(super) entered: bool,
}

fn completion(
    request_id: u64,
    status: Status,
    bytes: usize,
    sum: Checksum,
) -> CompletionNotification {
    CompletionNotification {
        request_id,
        status,
        bytes_transferred: bytes as u32,
        direct_checksum: sum,
    }
}
