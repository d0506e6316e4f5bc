//! The settings of a client.

use super::Procedure;
use super::gss::Initiator;
use super::tls::ClientTls;
pub use dafs_dat::WaitPolicy;
use dafs_wire::rpc::{AuthFlavor, AuthSys, CallHeader, Groups, OpaqueAuth};
use dafs_wire::xdr::{Encode, Encoder};
use std::sync::Arc;
use std::time::Duration;

/// Limits and settings of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Timeout for connecting.
    pub connect_timeout: Duration,
    /// Timeout for a reply.
    pub call_timeout: Duration,
    /// The longest record that the client accepts, in bytes.
    pub record_bytes_max: usize,
    /// The most outstanding calls.
    pub calls_max: usize,
    /// The identity of the caller.
    pub identity: Identity,
    /// On TCP: TLS on each connection, and nothing else.
    pub tls: Option<ClientTls>,
    /// On RDMA: the longest message to send or receive, in bytes. The client announces it to the
    /// server (RFC 8797); the smaller of the two limits holds.
    pub inline_bytes: usize,
    /// On RDMA: credits that the client requests. Calls beyond the granted credits wait in the
    /// client.
    pub credits: u32,
    /// On RDMA: the result limit in bytes of a call that states none itself.
    pub results_bytes_max: usize,
}

impl Options {
    pub(crate) fn call_header(&self, xid: u32, procedure: Procedure) -> CallHeader<'_> {
        CallHeader {
            xid,
            program: procedure.program,
            version: procedure.version,
            procedure: procedure.procedure,
            credential: match &self.identity {
                // The header of a call in a context comes from the context.
                Identity::None | Identity::Gss(_) => OpaqueAuth::NONE,
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
            tls: None,
            inline_bytes: 4 << 10,
            credits: 64,
            results_bytes_max: 32 << 10,
        }
    }
}

/// The identity that a client claims or proves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Identity {
    /// A user who is proven by a security context (RPCSEC_GSS). Connections with clones of it share
    /// its contexts.
    Gss(Arc<Initiator>),
    /// No identity (AUTH_NONE).
    #[default]
    None,
    /// AUTH_SYS: the body of the credential, in XDR; see [`Identity::sys`].
    Sys(Vec<u8>),
}

impl Identity {
    /// A user with groups (AUTH_SYS). Groups beyond the sixteenth and bytes of the machine name
    /// beyond the 255th are dropped.
    pub fn sys(machine: &str, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let groups = Groups::new(&groups[..groups.len().min(16)]).unwrap_or_default();
        let machine = &machine.as_bytes()[..machine.len().min(255)];
        let mut body = Vec::new();
        let sys = AuthSys { stamp: 0, machine, uid, gid, groups };
        sys.encode(&mut Encoder::new(&mut body));
        Self::Sys(body)
    }
}
