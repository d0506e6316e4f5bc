//! What can be asked of a session, and how it ends.

use super::failure::Failure;
use super::memory::{Piece, Pieces};
use super::streams::Transaction;
use dafs_dat::Instant;
use dafs_wire::dafs::{
    ByteOrder, DecodeError, EncodeError, FileHandle, Outcome, Procedure, SessionId, Stability,
    StateId, Status, Verifier, decode_response,
};
use std::time::Duration;
use thiserror::Error;

/// When a call must have been answered, and after which time that is.
pub(crate) type Due = Option<(Instant, Duration)>;

/// Reads part of a file into registered memory.
#[derive(Debug, Clone)]
pub struct ReadCall {
    /// The file.
    pub handle: FileHandle,
    /// The open, or zero.
    pub state_id: StateId,
    /// First byte of the file to read.
    pub offset: u64,
    /// Where the data goes; its length is how much is read at most.
    pub into: Piece,
}

/// Writes registered memory to a file.
#[derive(Debug, Clone)]
pub struct WriteCall {
    /// The file.
    pub handle: FileHandle,
    /// The open, or zero.
    pub state_id: StateId,
    /// First byte of the file to write.
    pub offset: u64,
    /// What must be on stable storage before the reply.
    pub stability: Stability,
    /// The data.
    pub from: Piece,
    /// The delegation by whose right the data was kept, if any: once that is gone, others may have
    /// written the file, and the data must not follow. Ends with [`Failure::DelegationLost`] then.
    pub delegation: Option<StateId>,
}

/// A reply as it was received, in memory of its own.
#[derive(Debug, Clone)]
pub struct ReplyMessage {
    pub(crate) procedure: Procedure,
    pub(crate) order: ByteOrder,
    pub(crate) status: Status,
    pub(crate) bytes: Vec<u8>,
}

impl ReplyMessage {
    /// What it answers.
    pub fn procedure(&self) -> Procedure {
        self.procedure
    }

    /// The outcome.
    pub fn status(&self) -> Status {
        self.status
    }

    /// What it says.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub fn decode(&self) -> Result<Outcome<'_>, DecodeError> {
        decode_response(&self.bytes, self.order, self.procedure).map(|(_, outcome)| outcome)
    }
}

/// How a call ended. Each call ends exactly once.
#[derive(Debug, Clone)]
pub enum Done {
    /// A read succeeded.
    Read {
        /// Bytes in the caller's memory.
        bytes: u32,
        /// True when the end of the file was reached.
        end_of_file: bool,
    },
    /// A write succeeded.
    Written {
        /// Bytes written.
        bytes: u32,
        /// What is stable.
        committed: Stability,
        /// Differs after a loss of uncommitted data.
        verifier: Verifier,
    },
    /// Any other request was answered, with success or not.
    Answered(ReplyMessage),
    /// A read or write was refused.
    Refused {
        /// Which.
        procedure: Procedure,
        /// Why.
        status: Status,
    },
    /// The connection was lost, and the server no longer knows whether it has done this, which
    /// must not be done twice. The session goes on.
    InDoubt(Procedure),
    /// The session ended before the answer came, or the call was given up. The server may or may
    /// not have done it.
    Lost(Failure),
}

/// A call that is over.
#[derive(Debug, Clone)]
pub struct Completed {
    /// The caller's tag.
    pub tag: u64,
    /// How it ended.
    pub done: Done,
}

/// Why a call was not taken. Nothing was sent and nothing will complete.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The session is over.
    #[error(transparent)]
    Over(Failure),
    /// Too many calls wait for credits.
    #[error("too many requests are waiting for the server")]
    Full,
    /// The session is still being opened.
    #[error("the session is not open yet")]
    NotReady,
    /// The arguments do not fit a message.
    #[error("the request does not fit a message: {0}")]
    Encode(#[from] EncodeError),
    /// The chain breaks the rules of DAFS 8, or a member names memory.
    #[error("the requests do not form a chain: {0}")]
    ChainForm(&'static str),
    /// A chain is sent in one piece, so it needs a credit for each member.
    #[error("the chain has {members} requests, and the server takes only {credits} at a time")]
    ChainTooLong {
        /// Requests in the chain.
        members: usize,
        /// Requests that may be outstanding.
        credits: usize,
    },
    /// The memory was registered in another session.
    #[error("the memory was registered in another session")]
    ForeignMemory,
}

/// What a caller has asked for, in a form that can be sent again on another connection.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// A read.
    Read(ReadCall),
    /// A write.
    Write(WriteCall),
    /// An encoded request, to be given its header when it is sent. It names memory and opens as
    /// the application knows them.
    Message { bytes: Vec<u8>, memory: Pieces },
}

impl Task {
    /// As [`Work::is_gone`].
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Message { memory, .. } => memory.iter().any(Piece::is_gone),
            Self::Write(call) => call.from.is_gone(),
            Self::Read(_) => false,
        }
    }
}

/// A call that has been taken and is not over.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tag: u64,
    pub(crate) due: Due,
    pub(crate) task: Task,
    /// It has been sent before, and the server may have carried it out.
    pub(crate) maybe_done: bool,
}

/// A name of a request that was sent, for asking what became of it (DAFS 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) session: SessionId,
    pub(crate) transaction: Transaction,
    pub(crate) procedure: Procedure,
}

/// What an outstanding request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Caller(u64),
    Connect,
    Authenticate,
    RegisterCredential,
    FindRoot,
    AskLimits,
    /// A NULL that keeps leases alive or burns a receive.
    Null,
    Disconnect,
    /// What became of the request in doubt with this index.
    Check(usize),
    /// The reply to the request in doubt with this index.
    Fetch(usize),
    /// An old session is no longer needed.
    Discard,
    /// An open or a lock of a server that has restarted.
    Reclaim(usize),
    /// An asynchronous batch.
    Batch(u64),
    /// A transfer of one is not to wait any longer.
    Hurry,
    /// A delegation that is given back because nobody has it any more.
    Return,
    /// An open or a lock that is given back because nobody waits for it any more.
    Stray(u64),
}

/// What the reply to an outstanding request means for the application's memory.
#[derive(Debug)]
pub(crate) enum Work {
    /// The reply goes to the caller as it is. The memory, if any, is kept registered until then.
    /// There are no bytes when nothing will be sent again.
    Message { bytes: Vec<u8>, memory: Pieces },
    /// The data comes in the reply.
    ReadInline(ReadCall),
    /// The data is in place when the reply comes.
    ReadDirect(ReadCall),
    /// Nothing but the count is of interest.
    Write(WriteCall),
}

impl Work {
    /// A request of the session's own.
    pub(crate) fn own() -> Self {
        Self::Message { bytes: Vec::new(), memory: Pieces::new() }
    }

    /// Bytes that the server may write into our memory for it.
    pub(crate) fn expected_bytes(&self) -> u64 {
        match self {
            Self::ReadDirect(call) => call.into.len().into(),
            Self::Message { memory, .. } => memory.iter().map(|piece| u64::from(piece.len())).sum(),
            _ => 0,
        }
    }

    /// Whether memory that it sends is gone.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Message { memory, .. } => memory.iter().any(Piece::is_gone),
            Self::Write(call) => call.from.is_gone(),
            Self::ReadInline(_) | Self::ReadDirect(_) => false,
        }
    }

    /// What was asked.
    pub(crate) fn into_task(self) -> Task {
        match self {
            Self::Message { bytes, memory } => Task::Message { bytes, memory },
            Self::ReadInline(call) | Self::ReadDirect(call) => Task::Read(call),
            Self::Write(call) => Task::Write(call),
        }
    }
}

/// A request that has been sent and not answered.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) purpose: Purpose,
    pub(crate) procedure: Procedure,
    pub(crate) sequence: u16,
    pub(crate) analyzer: u64,
    pub(crate) sent_at: Instant,
    pub(crate) deadline: Due,
    pub(crate) work: Work,
}

impl Flight {
    /// True when the application waits for it.
    pub(crate) fn is_callers(&self) -> bool {
        matches!(self.purpose, Purpose::Caller(_))
    }

    /// True when the answer waits for stable storage, which may take any time on a server that is
    /// well.
    pub(crate) fn is_slow(&self) -> bool {
        match &self.work {
            Work::Write(call) => call.stability != Stability::Unstable,
            _ => self.procedure == Procedure::Commit,
        }
    }
}
