//! What a client may choose.

use dafs_wire::rpc::{AuthSys, Groups};
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
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            record_bytes_max: (4 << 20) + (16 << 10),
            calls_max: 4096,
            identity: Identity::None,
        }
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
