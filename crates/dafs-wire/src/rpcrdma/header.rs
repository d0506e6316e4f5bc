//! The header before each message (RFC 8166 section 4.1).
//!
//! Invariants
//! * For another version only the fields that all versions share are decoded.
//! * An RDMA_ERROR is never answered with an RDMA_ERROR.

use super::chunk::Chunks;
use super::limits::VERSION;
use crate::xdr::{Decoder, Encode, Encoder, XdrError};
use thiserror::Error;

const RDMA_MSG: u32 = 0;
const RDMA_NOMSG: u32 = 1;
const RDMA_DONE: u32 = 3;
const RDMA_ERROR: u32 = 4;

const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

/// The words before the body: XID, version, credits, procedure.
const FIXED_BYTES: usize = 4 * 4;

/// A header of version 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The XID; the same as in the RPC message after the header.
    pub xid: u32,
    /// From a requester: the credits that it requests. From a responder: the credits that it grants
    /// (RFC 8166 section 3.3.1).
    pub credits: u32,
    /// The body.
    pub body: Body,
}

/// The body of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// RDMA_MSG: the RPC message follows, without the data in its chunks.
    Message(Chunks),
    /// RDMA_NOMSG: the whole RPC message is in a chunk, and no bytes follow.
    NoMessage(Chunks),
    /// RDMA_DONE: the sender has finished its reads. It is obsolete and has no effect.
    Done,
    /// RDMA_ERROR: the message with the same XID could not be handled.
    Error(HeaderFault),
}

/// The reason of an RDMA_ERROR (RFC 8166 section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderFault {
    /// ERR_CHUNK: the header or its chunks are invalid, or a reply chunk is too small.
    #[error("the chunks of the message cannot be used (ERR_CHUNK)")]
    Chunk,
    /// ERR_VERS: the version is not supported, but these are.
    #[error("only versions {low} to {high} of RPC-over-RDMA are spoken (ERR_VERS)")]
    Version {
        /// The lowest version.
        low: u32,
        /// The highest version.
        high: u32,
    },
}

/// The fault in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// RDMA_ERROR with an undefined reason.
    #[error("RDMA_ERROR with the unknown reason {0}")]
    ErrorCode(u32),
    /// RDMA_MSGP (2), which is obsolete, or an undefined procedure.
    #[error("procedure {0} of RPC-over-RDMA is not supported")]
    Procedure(u32),
    /// More segments than [`SEGMENTS_MAX`](super::limits::SEGMENTS_MAX).
    #[error("the header names too many segments")]
    TooManySegments,
    /// An unsupported version.
    #[error("version {0} of RPC-over-RDMA is not supported; version 1 is")]
    Version(u32),
    /// The header is truncated, or a word has an invalid value.
    #[error("the header is broken: {0}")]
    Xdr(#[from] XdrError),
}

/// A message without a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct HeaderError {
    /// The XID, if the message is long enough.
    pub xid: Option<u32>,
    /// The RDMA_ERROR to answer. `None` when there must be no answer: the peer could not match it,
    /// or the message is an RDMA_ERROR itself.
    pub fault: Option<HeaderFault>,
    /// The fault.
    pub problem: HeaderProblem,
}

impl Header {
    /// Decodes the header at the start of a message. Returns the header and its length; the RPC
    /// message follows.
    ///
    /// # Errors
    /// The error has all that is needed for the answer.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), HeaderError> {
        let decoder = &mut Decoder::new(bytes);
        let xid = decoder.u32().map_err(|error| HeaderError {
            xid: None,
            fault: None,
            problem: HeaderProblem::Xdr(error),
        })?;
        let broken =
            |fault: Option<HeaderFault>, problem| HeaderError { xid: Some(xid), fault, problem };
        let refused = |problem: HeaderProblem| broken(Some(HeaderFault::Chunk), problem);
        let version = decoder.u32().map_err(|error| refused(error.into()))?;
        if version != VERSION {
            let fault = HeaderFault::Version { low: VERSION, high: VERSION };
            return Err(broken(Some(fault), HeaderProblem::Version(version)));
        }
        let credits = decoder.u32().map_err(|error| refused(error.into()))?;
        let procedure = decoder.u32().map_err(|error| refused(error.into()))?;
        let body = match procedure {
            RDMA_MSG => Body::Message(Chunks::decode(decoder).map_err(refused)?),
            RDMA_NOMSG => Body::NoMessage(Chunks::decode(decoder).map_err(refused)?),
            RDMA_DONE => Body::Done,
            RDMA_ERROR => {
                Body::Error(HeaderFault::decode(decoder).map_err(|problem| broken(None, problem))?)
            }
            // This includes RDMA_MSGP.
            _ => return Err(refused(HeaderProblem::Procedure(procedure))),
        };
        Ok((Self { xid, credits, body }, decoder.position()))
    }

    /// The length of the header, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        FIXED_BYTES
            + match &self.body {
                Body::Message(chunks) | Body::NoMessage(chunks) => chunks.encoded_bytes(),
                Body::Done => 0,
                Body::Error(HeaderFault::Chunk) => 4,
                Body::Error(HeaderFault::Version { .. }) => 12,
            }
    }
}

impl HeaderFault {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, HeaderProblem> {
        match decoder.u32()? {
            ERR_VERS => Ok(Self::Version { low: decoder.u32()?, high: decoder.u32()? }),
            ERR_CHUNK => Ok(Self::Chunk),
            other => Err(HeaderProblem::ErrorCode(other)),
        }
    }
}

impl Encode for Header {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        let start = encoder.position();
        encoder.u32(self.xid);
        encoder.u32(VERSION);
        encoder.u32(self.credits);
        match &self.body {
            Body::Message(chunks) => {
                encoder.u32(RDMA_MSG);
                encoder.value(chunks);
            }
            Body::NoMessage(chunks) => {
                encoder.u32(RDMA_NOMSG);
                encoder.value(chunks);
            }
            Body::Done => encoder.u32(RDMA_DONE),
            Body::Error(fault) => {
                encoder.u32(RDMA_ERROR);
                encoder.value(fault);
            }
        }
        debug_assert_eq!(encoder.position() - start, self.encoded_bytes());
    }
}

impl Encode for HeaderFault {
    fn encode(&self, encoder: &mut Encoder<'_>) {
        match *self {
            Self::Version { low, high } => {
                encoder.u32(ERR_VERS);
                encoder.u32(low);
                encoder.u32(high);
            }
            Self::Chunk => encoder.u32(ERR_CHUNK),
        }
    }
}
