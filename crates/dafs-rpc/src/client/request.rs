//! A call with its data apart.

use super::Procedure;
use super::error::CallError;
use super::memory::MemorySlice;
use crate::limits::BULK_IN_HEAD_BYTES_MAX;
use dafs_wire::xdr::UNIT_BYTES;

/// A call whose large arguments and results may lie in memory of their own.
///
/// Over RDMA the server fetches and places them there itself (RFC 8166 calls that direct data
/// placement); over TCP they go to and from the socket. Which argument and which results may be
/// treated so is up to the binding of the program to RDMA (for NFS RFC 8267), which both sides
/// must agree on.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// What to call.
    pub procedure: Procedure,
    /// The arguments in XDR, in several pieces, without [`Request::data`] and its padding. They
    /// are sent, or copied if they are short, before `submit_request` returns.
    pub args: &'a [&'a [u8]],
    /// The data of one opaque argument.
    pub data: Option<SendData>,
    /// Where the data of opaque results goes, in the order of the results. The server decides
    /// whether it uses them; [`Results::decoder`](super::Results::decoder) tells.
    pub sinks: &'a [MemorySlice],
    /// Finds the data for the sinks in results that come over TCP, so that it can be read from the
    /// socket to its place; without it, it comes inside the results there.
    pub locate: Option<Locate>,
    /// The most bytes that the results can have, without what goes into the sinks. A server on
    /// RDMA cannot send longer results.
    pub results_bytes_max: usize,
    /// The number of a call that was sent before over a connection that has ended, so that a
    /// server which remembers its replies does not carry it out twice. Where another call of this
    /// connection has the number, a new one is taken.
    pub xid: Option<u32>,
}

impl<'a> Request<'a> {
    /// A call with plain arguments.
    pub fn new(procedure: Procedure, args: &'a [&'a [u8]], results_bytes_max: usize) -> Self {
        Self { procedure, args, data: None, sinks: &[], locate: None, results_bytes_max, xid: None }
    }

    /// Bytes of the arguments without the data.
    pub(crate) fn args_bytes(&self) -> usize {
        self.args.iter().map(|piece| piece.len()).sum()
    }

    /// True when it costs little to copy it.
    pub(crate) fn is_short(&self) -> bool {
        self.data.is_none() && self.args_bytes() <= BULK_IN_HEAD_BYTES_MAX
    }

    /// Refuses what could not be sent on any transport.
    pub(crate) fn check(&self) -> Result<(), CallError> {
        let Some(data) = &self.data else { return Ok(()) };
        if data.position == 0 || data.position > self.args_bytes() {
            return Err(CallError::Request("the data's position does not lie in the arguments"));
        }
        if !data.position.is_multiple_of(UNIT_BYTES) {
            return Err(CallError::Request("the data's position is not that of an XDR item"));
        }
        Ok(())
    }
}

/// The data of an opaque argument of variable length.
#[derive(Debug, Clone)]
pub struct SendData {
    /// Where in the arguments it belongs: the bytes of [`Request::args`] before it, its own count
    /// the last of them.
    pub position: usize,
    /// The data. The count in the arguments must be its length.
    pub memory: MemorySlice,
}

/// Finds the data for the sinks in the results of a call: given their first bytes, where they show
/// that the call succeeded, it tells where the data of the first sink lies. None if there is none,
/// or if more bytes would be needed to tell. The results are a server's and not checked; what is
/// told here is.
pub type Locate = fn(&[u8]) -> Option<Located>;

/// Where the data of an opaque result lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The bytes of the results before it, its own count the last of them.
    pub position: usize,
    /// Its length in bytes.
    pub len: usize,
}
