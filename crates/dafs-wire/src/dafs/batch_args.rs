//! BATCH_SUBMIT, BC_BATCH_COMPLETION, HURRY_UP (DAFS 6, 13.2), and X_CANCEL, an extension.
//!
//! Invariants
//! * Lists inside a request of a batch count their offsets from the array of requests (DAFS 5.1).

use super::checksum::Checksum;
use super::codec::{layout, word_enum};
use super::ids::{DirectBuffer, FileChunk, FileHandle, StateId};
use super::limits::UNLIMITED;
use super::seq::Seq;
use super::status::Status;

word_enum! {
    /// The direction of a request in a batch (DAFS 5.4).
    pub enum ReadWrite {
        /// From the file to the buffers.
        Read = 1,
        /// From the buffers to the file.
        Write = 2,
    }
}

word_enum! {
    /// The kind of work that X_CANCEL names.
    pub enum CancelKind {
        /// A transfer of an asynchronous batch, by its request-id.
        Transfer = 1,
        /// A request of this session, by its stream and sequence number.
        Request = 2,
    }
}

word_enum! {
    /// The outcome of X_CANCEL for one item.
    pub enum CancelOutcome {
        /// It was carried out, or refused, before.
        Done = 1,
        /// It was taken out before it began: nothing of it has happened or will happen.
        Canceled = 2,
        /// It has begun, and ends as if it had not been named.
        TooLate = 3,
        /// This session has no such work, or it ended too long ago.
        Unknown = 4,
    }
}

layout! {
    /// One transfer of a batch (DAFS 5.4, read_write_request).
    pub struct ReadWriteRequest<'a> [96, array 8 max UNLIMITED] {
        /// The file.
        fh: FileHandle = 0,
        /// The client's identifier, unique among outstanding transfers (DAFS O55).
        request_id: u64 = 64,
        /// The open, or `ZERO`.
        state_id: StateId = 72,
        /// The direction.
        rw_flag: ReadWrite = 80,
        /// The ranges of the file.
        chunks: Seq<'a, FileChunk> = 84,
        /// The memory, with as many bytes as the chunks (DAFS O52).
        buffers: Seq<'a, DirectBuffer> = 88,
        /// Checksum of the data of a write, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 92,
    }

    /// The outcome of one transfer of a batch (DAFS 5.4).
    pub struct CompletionNotification [24, array 8 max UNLIMITED] {
        /// The identifier of the transfer.
        request_id: u64 = 0,
        /// The status of the transfer.
        status: Status = 8,
        /// Bytes transferred.
        bytes_transferred: u32 = 12,
        /// Checksum of the data of a read, when checksums are on (DAFS O20).
        direct_checksum: Checksum = 16,
    }

    /// Arguments of BATCH_SUBMIT.
    pub struct BatchSubmit<'a> [16] {
        /// The transfers.
        requests: Seq<'a, ReadWriteRequest<'a>> = 0,
        /// Hint: microseconds in which the transfers should complete.
        usec_window: u32 = 4,
        /// The number of completions to report together from now on; 0 leaves it unchanged.
        num_completions: u32 = 8,
        /// True: the reply carries all completions.
        synchronous: bool = 12,
    }

    /// Result of BATCH_SUBMIT, and arguments of BC_BATCH_COMPLETION.
    pub struct BatchCompletions<'a> [8] {
        /// The outcomes.
        completions: Seq<'a, CompletionNotification> = 0,
    }

    /// Arguments of HURRY_UP.
    pub struct HurryUp [8] {
        /// The transfer to complete soon.
        request_id: u64 = 0,
    }

    /// One item of X_CANCEL, an extension.
    pub struct CancelItem [16, array 8 max UNLIMITED] {
        /// The kind of work, which says what names it.
        kind: CancelKind = 0,
        /// The stream of a request.
        stream: u16 = 4,
        /// The sequence number of a request.
        sequence: u16 = 6,
        /// The request-id of a transfer.
        request_id: u64 = 8,
    }

    /// The outcome for one item of X_CANCEL.
    pub struct CancelResult [8, array 8 max UNLIMITED] {
        /// The outcome.
        outcome: CancelOutcome = 0,
    }

    /// Arguments of X_CANCEL.
    pub struct XCancel<'a> [8] {
        /// The work to take out.
        items: Seq<'a, CancelItem> = 0,
    }

    /// Result of X_CANCEL.
    pub struct XCancelReply<'a> [8] {
        /// The outcomes, in the order of the items.
        outcomes: Seq<'a, CancelResult> = 0,
    }
}
