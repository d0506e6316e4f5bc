//! A call as a transport sends it, and what is kept of it for another transmission.
//!
//! Invariants
//! * A transport gets protected messages; it adds the header, for which it knows the XID.
//! * Under a service that protects the bodies all data lies in the message (RFC 8166 section 8.1).

use super::initiator::Initiator;
use super::protection::Protection;
use crate::client::Procedure;
use crate::client::core::Results;
use crate::client::error::CallError;
use crate::client::memory::MemorySlice;
use crate::client::options::Options;
use crate::client::request::{Locate, Request, SendData};
use crate::limits::GSS_CONTEXTS_PER_CALL_MAX;
use dafs_wire::rpc::gss::Service;
use dafs_wire::rpc::{AuthFlavor, AuthStatus, CallHeader, OpaqueAuth, RejectStatus};
use dafs_wire::xdr::{Encode, Encoder};
use smallvec::SmallVec;
use std::sync::Arc;

/// A call for a transport.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) head: Head<'a>,
    /// True if it carries data of the caller, perhaps sealed in the arguments. Only a call without
    /// is queued, which copies it.
    pub(crate) has_data: bool,
}

/// The source of a call's credential and verifier.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Head<'a> {
    /// The identity of the options, which is no context.
    Plain,
    /// A context.
    Protected(&'a Protection),
    /// A request for a context, with the body of its credential.
    Control(&'a [u8]),
}

impl<'a> Outgoing<'a> {
    /// A call with the identity of the options.
    pub(crate) fn plain(request: &'a Request<'a>) -> Self {
        Self { request, head: Head::Plain, has_data: request.data.is_some() }
    }
}

impl Head<'_> {
    /// Appends the header of a call.
    pub(crate) fn encode(
        &self,
        options: &Options,
        xid: u32,
        procedure: Procedure,
        bytes: &mut Vec<u8>,
    ) {
        match self {
            Self::Plain => options.call_header(xid, procedure).encode(&mut Encoder::new(bytes)),
            Self::Protected(protection) => protection.encode_header(xid, procedure, bytes),
            Self::Control(body) => {
                let credential = OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body };
                header(xid, procedure, credential).encode(&mut Encoder::new(bytes));
            }
        }
    }

    /// To be called directly before the call is sent, by the one thread that may send.
    pub(crate) fn leaves(&self) {
        if let Self::Protected(protection) = self {
            protection.leaves();
        }
    }

    /// True if the reply is handed over with its header, for the caller to verify.
    pub(crate) fn has_raw_reply(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// Bytes before the results in the body of a successful reply.
    pub(crate) fn results_offset(&self) -> usize {
        match self {
            Self::Protected(protection) => protection.results_offset(),
            Self::Plain | Self::Control(_) => 0,
        }
    }

    /// True if no data may travel outside of the message.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Self::Protected(protection) if protection.service() != Service::None)
    }
}

/// A header with an empty verifier.
pub(super) fn header(xid: u32, procedure: Procedure, credential: OpaqueAuth<'_>) -> CallHeader<'_> {
    let Procedure { program, version, procedure } = procedure;
    CallHeader { xid, program, version, procedure, credential, verifier: OpaqueAuth::NONE }
}

/// A protected call under way: the parts of its request, and its last transmission.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(super) initiator: Arc<Initiator>,
    procedure: Procedure,
    args: Vec<u8>,
    data: Option<SendData>,
    sinks: SmallVec<[MemorySlice; 1]>,
    locate: Option<Locate>,
    results_bytes_max: usize,
    sent: Option<Protection>,
    /// The number of the last context that the server did not know.
    refused: Option<u64>,
    /// Contexts that the server did not know.
    refusals: u32,
}

impl Kept {
    pub(crate) fn new(initiator: Arc<Initiator>, request: &Request<'_>) -> Self {
        Self {
            initiator,
            procedure: request.procedure,
            args: request.args.concat(),
            data: request.data.clone(),
            sinks: request.sinks.iter().cloned().collect(),
            locate: request.locate,
            results_bytes_max: request.results_bytes_max,
            sent: None,
            refused: None,
            refusals: 0,
        }
    }

    pub(crate) fn initiator(&self) -> &Arc<Initiator> {
        &self.initiator
    }

    pub(crate) fn procedure(&self) -> Procedure {
        self.procedure
    }

    /// The context that must not be used again for this call.
    pub(crate) fn refused(&self) -> Option<u64> {
        self.refused
    }

    /// Passes the call, protected anew, to a transport.
    pub(crate) fn transmit<T>(
        &mut self,
        xid: Option<u32>,
        protection: Protection,
        send: impl FnOnce(&Outgoing<'_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let args = [&self.args[..]];
        let request = Request {
            procedure: self.procedure,
            args: &args,
            data: self.data.clone(),
            sinks: &self.sinks,
            locate: self.locate,
            results_bytes_max: self.results_bytes_max,
            xid,
        };
        let sent = protection.protect(&request, send);
        self.sent = Some(protection);
        sent
    }

    /// Verifies a reply, and finds its results.
    pub(crate) fn results(&self, raw: Results) -> Result<Results, CallError> {
        match &self.sent {
            Some(protection) => protection.results(raw, &self.sinks, self.locate),
            None => Err(CallError::Malformed),
        }
    }

    /// True if the call may be sent again in another context, since the server does not know that
    /// of this transmission.
    pub(crate) fn is_to_repeat(&mut self, error: &CallError) -> bool {
        let is_refused = matches!(
            error,
            CallError::Denied(RejectStatus::Auth(
                AuthStatus::GssCredentialProblem
                    | AuthStatus::GssContextProblem
                    | AuthStatus::RejectedCredential
                    | AuthStatus::RejectedVerifier
            ))
        );
        if !is_refused || self.refusals >= GSS_CONTEXTS_PER_CALL_MAX {
            return false;
        }
        self.refusals += 1;
        self.refused = self.sent.as_ref().map(Protection::context_number);
        true
    }
}
