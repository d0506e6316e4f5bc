//! What a client may choose.

use super::Procedure;
use crate::limits::SPIN_POLLS;
use dafs_wire::rpc::{AuthFlavor, AuthSys, CallHeader, Groups, OpaqueAuth};
use dafs_wire::xdr::{Encode, Encoder};
use std::time::Duration;

/// Bounds and habits of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long an answer may take.
    pub call_timeout: Duration,
    /// The longest record that is accepted, in bytes.
    pub record_bytes_max: usize,
    /// Calls that are unanswered at a time.
    pub calls_max: usize,
    /// Who calls.
    pub identity: Identity,
    /// On RDMA: the longest message that is sent or received, in bytes. It is told to the server
    /// (RFC 8797); the shorter one counts.
    pub inline_bytes: usize,
    /// On RDMA: calls that the server is asked to take at a time. The rest wait here.
    pub credits: u32,
    /// On RDMA: the most bytes that the results of a call can have that does not say it itself.
    pub results_bytes_max: usize,
}

impl Options {
    /// The header of a call.
    pub(crate) fn call_header(&self, xid: u32, procedure: Procedure) -> CallHeader<'_> {
        CallHeader {
            xid,
            program: procedure.program,
            version: procedure.version,
            procedure: procedure.procedure,
            credential: match &self.identity {
                Identity::None => OpaqueAuth::NONE,
                Identity::Sys(body) => OpaqueAuth { flavor: AuthFlavor::SYS, body },
            },
            verifier: OpaqueAuth::NONE,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            record_bytes_max: (4 << 20) + (16 << 10),
            calls_max: 4096,
            identity: Identity::None,
            inline_bytes: 4 << 10,
            credits: 64,
            results_bytes_max: 32 << 10,
        }
    }
}

/// How a thread waits on RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// It polls until the answer is there. Lowest latency, burns the CPU.
    Poll,
    /// It sleeps at once. Least CPU.
    Sleep,
    /// It polls so often without finding anything, then sleeps.
    Adaptive {
        /// Polls before sleeping.
        spin: u32,
    },
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self::Adaptive { spin: SPIN_POLLS }
    }
}

/// Who a client says it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Identity {
    /// It does not say (AUTH_NONE).
    #[default]
    None,
    /// AUTH_SYS: the body of the credential, in XDR; see [`Identity::sys`].
    Sys(Vec<u8>),
}

impl Identity {
    /// A user with its groups (AUTH_SYS). Groups beyond the sixteenth and bytes of the machine's
    /// name beyond the 255th are left out.
    pub fn sys(machine: &str, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let groups = Groups::new(&groups[..groups.len().min(16)]).unwrap_or_default();
        let machine = &machine.as_bytes()[..machine.len().min(255)];
        let mut body = Vec::new();
        let sys = AuthSys { stamp: 0, machine, uid, gid, groups };
        sys.encode(&mut Encoder::new(&mut body));
        Self::Sys(body)
    }
}
