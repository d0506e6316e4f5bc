//! A call whose data lies outside of its arguments.

use super::Procedure;
use super::error::CallError;
use super::memory::MemorySlice;
use crate::limits::BULK_IN_HEAD_BYTES_MAX;
use crate::memory::source;
use crate::output::Parts;
use dafs_mem::VolatileSlice;
use dafs_wire::xdr::{UNIT_BYTES, padded};

/// A call whose large arguments and results may lie in separate memory.
///
/// Over RDMA the server reads and writes them itself (direct data placement, RFC 8166). Over TCP
/// the client moves them between this memory and the socket. The upper-layer binding of the program
/// says which data is eligible (for NFS RFC 8267), and both sides must agree on it.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The procedure to call.
    pub procedure: Procedure,
    /// The arguments in XDR, in several pieces, without [`Request::data`] and its padding. They
    /// are sent, or copied if they are short, before `submit_request` returns.
    pub args: &'a [&'a [u8]],
    /// The data of one opaque argument.
    pub data: Option<SendData>,
    /// Sinks for the data of opaque results, in the order of the results. The server decides
    /// whether it uses them; [`Results::decoder`](super::Results::decoder) shows the outcome. In a
    /// security context, data in a sink is verified when the caller waits for the call.
    pub sinks: &'a [MemorySlice],
    /// Locates the data for the sinks in results that come over TCP, so that the client reads it
    /// from the socket straight into the sink. Without it the data arrives inside the results.
    pub locate: Option<Locate>,
    /// The most bytes of the results, without the data in the sinks. A server on RDMA cannot send
    /// longer results.
    pub results_bytes_max: usize,
    /// The XID of a call that was sent over an earlier connection. A server with a duplicate
    /// request cache then does not execute the retry twice. If another outstanding call uses the
    /// XID, the client takes a new one.
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

    /// True when a copy of it costs little.
    pub(crate) fn is_short(&self) -> bool {
        self.args_bytes() <= BULK_IN_HEAD_BYTES_MAX
    }

    /// Refuses requests that no transport can send.
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
    /// Position of the data in the arguments: the bytes of [`Request::args`] before it. The last of
    /// them are its count.
    pub position: usize,
    /// The data. The count in the arguments must be its length.
    pub memory: MemorySlice,
}

/// Locates the data of the first sink in the first bytes of the results, if they show that the call
/// succeeded. Returns none if there is no such data, or if it would need more bytes. The results
/// come from a server and are not checked; the client checks the returned location.
pub type Locate = fn(&[u8]) -> Option<Located>;

/// The location of the data of an opaque result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Bytes of the results before the data. The last of them are its count.
    pub position: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// Gathers the parts of a call's arguments in order, the data at its position; returns their
/// length.
pub(crate) fn gather<'a>(
    request: &'a Request<'_>,
    parts: &mut Parts<'a>,
) -> Result<usize, CallError> {
    const PADDING: [u8; UNIT_BYTES] = [0; UNIT_BYTES];
    request.check()?;
    let mut data = request.data.as_ref();
    let mut at = 0;
    for &piece in request.args {
        let mut rest = piece;
        if let Some(sent) = data
            && let Some((before, behind)) = piece.split_at_checked(sent.position - at)
        {
            push(parts, source(before));
            push(parts, sent.memory.view());
            push(parts, source(&PADDING[..padded(sent.memory.len()) - sent.memory.len()]));
            rest = behind;
            data = None;
        }
        push(parts, source(rest));
        at += piece.len();
    }
    Ok(at + request.data.as_ref().map_or(0, |sent| padded(sent.memory.len())))
}

fn push<'a>(parts: &mut Parts<'a>, part: VolatileSlice<'a>) {
    if !part.is_empty() {
        parts.push(part);
    }
}
