//! What can be asked of a session, and how it ends.

use super::failure::Failure;
use super::memory::Piece;
use dafs_dat::Instant;
use dafs_wire::dafs::{
    ByteOrder, DecodeError, EncodeError, FileHandle, Outcome, Procedure, Stability, StateId,
    Status, Verifier, decode_response,
};
use thiserror::Error;

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
    /// The session ended before the answer came. The server may or may not have done it.
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
    /// The memory was registered in another session.
    #[error("the memory was registered in another session")]
    ForeignMemory,
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
}

/// What the reply to an outstanding request means for the application's memory.
#[derive(Debug)]
pub(crate) enum Work {
    /// The reply goes to the caller as it is. The memory, if any, is kept registered until then.
    Message { _keep: Option<Piece> },
    /// The data comes in the reply.
    ReadInline(Piece),
    /// The data is in place when the reply comes.
    ReadDirect(Piece),
    /// Nothing but the count is of interest.
    Write { from: Piece, stability: Stability },
}

impl Work {
    /// Bytes that the server may write into our memory for it.
    pub(crate) fn expected_bytes(&self) -> u64 {
        match self {
            Self::ReadDirect(piece) => piece.len().into(),
            Self::Message { _keep: Some(piece) } => piece.len().into(),
            _ => 0,
        }
    }
}

impl Flight {
    /// True when the answer waits for stable storage, which may take any time on a server that is
    /// well.
    pub(crate) fn is_slow(&self) -> bool {
        match &self.work {
            Work::Write { stability, .. } => *stability != Stability::Unstable,
            _ => self.procedure == Procedure::Commit,
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
    pub(crate) deadline: Option<(Instant, std::time::Duration)>,
    pub(crate) work: Work,
}
