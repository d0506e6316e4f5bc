//! The establishment of contexts (RFC 2203 section 5.2).
//!
//! The mechanism reads files and may block, so its steps run on a thread of a pool. The reactor
//! hands it an [`Establishing`], which counts against the limits until it is dropped.
//!
//! Invariants
//! * A context is in the table before its client learns its handle.
//! * A thread has the state of the mechanism alone: a second request for the same context finds
//!   nothing.

use super::context::{Context, Established, Handle};
use super::contexts::{Ticket, count};
use super::keys::Mic;
use crate::limits::GSS_WINDOW;
use dafs_dat::connections::Origin;
use dafs_wire::rpc::gss::InitResults;
use dafs_wire::rpc::{AuthFlavor, OpaqueAuth};
use dafs_wire::xdr::Encoder;
use std::sync::Arc;

/// A context that is not fully established: the acceptor's state between two tokens of the
/// initiator (`GSS_Accept_sec_context`, RFC 2743 section 2.2.2).
pub trait PartialContext: Send {
    /// Takes a token of the initiator, of at most 64 KiB. It may block.
    fn accept(&mut self, token: &[u8]) -> Step;
}

/// The outcome of a step of the mechanism.
#[derive(Debug)]
pub enum Step {
    /// The acceptor needs another token.
    Continue {
        /// The token for the initiator, at most 64 KiB.
        token: Vec<u8>,
    },
    /// The context is established.
    Complete {
        /// The last token for the initiator; empty if it needs none.
        token: Vec<u8>,
        /// The context.
        established: Established,
    },
    /// The mechanism refuses.
    Failed(Failure),
}

/// The reason why a mechanism refuses, as the client learns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The major status (RFC 2744 section 3.9.1).
    pub major: u32,
    /// The minor status.
    pub minor: u32,
    /// Both in words, for the log.
    pub text: String,
}

/// `GSS_S_FAILURE`, for a mechanism that fails without an error.
const GSS_S_FAILURE: u32 = 13 << 16;

/// A context that is being established, on its way through the mechanism. Dropped without a step,
/// it ends.
pub struct Establishing {
    ticket: Ticket,
    handle: Handle,
    begun_ns: u64,
    /// None before the first token.
    partial: Option<Box<dyn PartialContext>>,
}

impl Establishing {
    pub(super) fn new(
        ticket: Ticket,
        handle: Handle,
        begun_ns: u64,
        partial: Option<Box<dyn PartialContext>>,
    ) -> Self {
        Self { ticket, handle, begun_ns, partial }
    }

    /// The host of the client.
    pub fn origin(&self) -> Origin {
        self.ticket.origin
    }

    /// Passes a token to the mechanism. The first one gets a new state from `begin`. Blocks as long
    /// as the mechanism does, so it is for a thread of a pool. `now_ns` is the monotonic time in
    /// nanoseconds.
    pub fn step(
        self,
        token: &[u8],
        now_ns: u64,
        begin: impl FnOnce() -> Box<dyn PartialContext>,
    ) -> InitAnswer {
        let Self { ticket, handle, begun_ns, partial } = self;
        let (contexts, origin) = (&ticket.contexts, ticket.origin);
        let mut partial = partial.unwrap_or_else(begin);
        match partial.accept(token) {
            Step::Continue { token } => {
                contexts.suspend(handle, origin, begun_ns, partial);
                InitAnswer::Continue { handle, token }
            }
            Step::Complete { token, established } => {
                let context = contexts.enter(handle, origin, established, now_ns);
                let window = Mic::of(context.keys(), &[&GSS_WINDOW.to_be_bytes()]);
                InitAnswer::Complete { context, window: Verifier(window), token }
            }
            Step::Failed(mut failure) => {
                count(&contexts.counters.failed, 1);
                // Such a failure would be read as a success.
                if failure.major <= 1 {
                    failure.major = GSS_S_FAILURE;
                }
                InitAnswer::Failed(failure)
            }
        }
    }
}

impl std::fmt::Debug for Establishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Establishing").field(&self.handle).finish()
    }
}

/// The verifier of a reply (RFC 2203 section 5.2.3.1, 5.3.3.2).
#[derive(Clone, Copy)]
pub struct Verifier(pub(super) Mic);

impl Verifier {
    /// The verifier as it is encoded in the header of a reply.
    pub fn auth(&self) -> OpaqueAuth<'_> {
        OpaqueAuth { flavor: AuthFlavor::RPCSEC_GSS, body: self.0.bytes() }
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Verifier({} bytes)", self.0.bytes().len())
    }
}

/// The answer to a request for a context: an accepted reply with SUCCESS, whatever the outcome.
#[derive(Debug)]
pub enum InitAnswer {
    /// The context is in the table.
    Complete {
        /// The context.
        context: Arc<Context>,
        /// The MIC of the window.
        window: Verifier,
        /// The last token for the initiator.
        token: Vec<u8>,
    },
    /// The client sends another token.
    Continue {
        /// The name of the context.
        handle: Handle,
        /// The token for the initiator.
        token: Vec<u8>,
    },
    /// There is no context.
    Failed(Failure),
}

impl InitAnswer {
    /// The verifier of the reply.
    pub fn verifier(&self) -> OpaqueAuth<'_> {
        match self {
            Self::Complete { window, .. } => window.auth(),
            Self::Continue { .. } | Self::Failed(_) => OpaqueAuth::NONE,
        }
    }

    /// Writes the results of the reply.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        match self {
            Self::Complete { context, token, .. } => {
                let handle = &context.handle().to_bytes();
                encoder.value(&InitResults::Complete {
                    handle,
                    minor: 0,
                    window: GSS_WINDOW,
                    token,
                });
            }
            Self::Continue { handle, token } => {
                encoder.value(&InitResults::Continue {
                    handle: &handle.to_bytes(),
                    minor: 0,
                    token,
                });
            }
            Self::Failed(Failure { major, minor, .. }) => {
                encoder.value(&InitResults::Failed { major: *major, minor: *minor });
            }
        }
    }
}
