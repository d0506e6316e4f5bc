//! The calls of a session, and their ends.

use super::failure::Failure;
use super::memory::{Piece, Pieces};
use super::streams::Transaction;
use super::users::User;
use dafs_dat::Instant;
use dafs_wire::dafs::{
    ByteOrder, CredHandle, DecodeError, EncodeError, FileHandle, HintWord, Outcome, Procedure,
    SessionId, Stability, StateId, Status, Verifier, decode_response,
};
use std::time::Duration;
use thiserror::Error;

/// The deadline of a call, and the timeout that it came from.
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
    /// The target of the data; its length is the most that is read.
    pub into: Piece,
    /// The prediction for the bytes.
    pub hint: HintWord,
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
    /// The data that must be on stable storage before the reply.
    pub stability: Stability,
    /// The data.
    pub from: Piece,
    /// The delegation under which the data was cached, if any. Once it is gone, others may have
    /// written the file, so the data must not be written: the call ends with
    /// [`Failure::DelegationLost`].
    pub delegation: Option<StateId>,
    /// The prediction for the bytes.
    pub hint: HintWord,
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
    /// The procedure that it answers.
    pub fn procedure(&self) -> Procedure {
        self.procedure
    }

    /// The outcome.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// The error in the body.
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
        /// The stability that the server reports.
        committed: Stability,
        /// Differs after a loss of uncommitted data.
        verifier: Verifier,
    },
    /// Any other request was answered, with success or not.
    Answered(ReplyMessage),
    /// A read or write was refused.
    Refused {
        /// The procedure.
        procedure: Procedure,
        /// The server's status.
        status: Status,
    },
    /// The connection was lost, and the server no longer knows whether it has done this request,
    /// which is not idempotent. The session goes on.
    InDoubt(Procedure),
    /// The session ended before the answer came, or the caller gave up. The server may or may not
    /// have done it.
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

/// The reason why a call was refused. No request was sent and none will complete.
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
    /// The server does not let this client act for other users.
    #[error("the server does not let this client act for other users")]
    NotTrusted,
}

/// A caller's request, in a form that can be sent again on another connection.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// A read.
    Read(ReadCall),
    /// A write.
    Write(WriteCall),
    /// An encoded request, which gets its header when it is sent. Its memory and opens are named as
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

/// A call that was accepted and is not over.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tag: u64,
    pub(crate) due: Due,
    pub(crate) task: Task,
    /// It has been sent before, and the server may have carried it out.
    pub(crate) maybe_done: bool,
    /// The user that it runs as; `None` for the session's own.
    pub(crate) user: Option<User>,
    /// It has been refused once because the server did not know the credential.
    pub(crate) renewed: bool,
}

/// The identity of a request that was sent, for CHECK_RESPONSE and FETCH_RESPONSE (DAFS 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) session: SessionId,
    pub(crate) transaction: Transaction,
    pub(crate) procedure: Procedure,
}

/// The purpose of an outstanding request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Caller(u64),
    Connect,
    Authenticate,
    /// CLIENT_AUTH in a session in use.
    Renew,
    RegisterCredential,
    /// REGISTER_CRED for a user of queued calls.
    RegisterUser,
    /// RELEASE_CRED, to make room for another user.
    ReleaseUser,
    FindRoot,
    AskLimits,
    /// A NULL that keeps leases alive or uses up a receive.
    Null,
    Disconnect,
    /// CHECK_RESPONSE for the request in doubt with this index.
    Check(usize),
    /// FETCH_RESPONSE for the request in doubt with this index.
    Fetch(usize),
    /// An old session is no longer needed.
    Discard,
    /// An open or a lock of a server that has restarted.
    Reclaim(usize),
    /// X_RECLAIM_COMPLETE.
    Complete,
    /// An asynchronous batch.
    Batch(u64),
    /// HURRY_UP for a transfer of an asynchronous batch.
    Hurry,
    /// X_CANCEL.
    Cancel,
    /// X_EXPOSE_GET, the question with this number.
    Expose(u64),
    /// The return of a delegation without a holder.
    Return,
    /// The release of an open or a lock without an owner in the application.
    Stray(u64),
}

/// The effect of the reply on the application's memory.
#[derive(Debug)]
pub(crate) enum Work {
    /// The reply goes to the caller as it is. The memory, if any, is kept registered until then.
    /// There are no bytes when the request will not be sent again.
    Message { bytes: Vec<u8>, memory: Pieces },
    /// The data comes in the reply.
    ReadInline(ReadCall),
    /// The data is in place when the reply comes.
    ReadDirect(ReadCall),
    /// Only the count is of interest.
    Write(WriteCall),
}

impl Work {
    /// A request of the session's own.
    pub(crate) fn own() -> Self {
        Self::Message { bytes: Vec::new(), memory: Pieces::new() }
    }

    /// Bytes that the server may write into the client's memory for it.
    pub(crate) fn expected_bytes(&self) -> u64 {
        match self {
            Self::ReadDirect(call) => call.into.len().into(),
            Self::Message { memory, .. } => memory.iter().map(|piece| u64::from(piece.len())).sum(),
            _ => 0,
        }
    }

    /// True when memory that it sends is unmapped.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Message { memory, .. } => memory.iter().any(Piece::is_gone),
            Self::Write(call) => call.from.is_gone(),
            Self::ReadInline(_) | Self::ReadDirect(_) => false,
        }
    }

    /// The caller's request.
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
    /// An earlier sending of the request may have been carried out.
    pub(crate) maybe_done: bool,
    /// As in [`Call`].
    pub(crate) user: Option<User>,
    /// As in [`Call`].
    pub(crate) renewed: bool,
    /// The credential that it names.
    pub(crate) credential: CredHandle,
}

impl Flight {
    /// True when the application waits for it.
    pub(crate) fn is_callers(&self) -> bool {
        matches!(self.purpose, Purpose::Caller(_))
    }

    /// True when the answer waits for stable storage, which may take any time on a healthy server.
    pub(crate) fn is_slow(&self) -> bool {
        match &self.work {
            Work::Write(call) => call.stability != Stability::Unstable,
            _ => self.procedure == Procedure::Commit,
        }
    }
}
