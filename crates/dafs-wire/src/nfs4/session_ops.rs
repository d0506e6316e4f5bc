//! Clients, sessions and connections: EXCHANGE_ID, CREATE_SESSION, BIND_CONN_TO_SESSION,
//! BACKCHANNEL_CTL, DESTROY_*, SEQUENCE, RECLAIM_COMPLETE, SET_SSV (RFC 8881 18.33 - 18.51).

use super::bitmap::Bitmap;
use super::codec::{xdr_enum, xdr_flags, xdr_struct};
use super::limits::*;
use super::types::{ImplementationId, SessionId, Verifier};
use crate::xdr::{Decode, Decoder, Encode, Encoder, XdrError, no_such};

xdr_struct! {
    /// The identity of a client and of its incarnation (`client_owner4`).
    #[derive(Copy)]
    pub struct ClientOwner<'a> {
        /// Changes when the client restarts.
        pub verifier: Verifier,
        /// Stays the same forever.
        pub owner_id: &'a [u8] [max OPAQUE_BYTES_MAX],
    }

    /// The identity of a server, for trunking (`server_owner4`).
    #[derive(Copy)]
    pub struct ServerOwner<'a> {
        /// Equal minor and major parts: sessions can be shared.
        pub minor_id: u64,
        /// Equal major parts: client ids can be shared.
        pub major_id: &'a [u8] [max OPAQUE_BYTES_MAX],
    }
}

xdr_flags! {
    /// Flags of EXCHANGE_ID in both directions (RFC 8881 18.35.3, RFC 7862 14.1).
    pub struct ExchangeFlags {
        /// The client supports referrals.
        const SUPP_MOVED_REFER = 0x0000_0001;
        /// The client supports migration.
        const SUPP_MOVED_MIGR = 0x0000_0002;
        /// The client supports fencing of copies (RFC 7862).
        const SUPP_FENCE_OPS = 0x0000_0004;
        /// State-ids are bound to the principal.
        const BIND_PRINC_STATEID = 0x0000_0100;
        /// A server without pNFS.
        const USE_NON_PNFS = 0x0001_0000;
        /// A pNFS metadata server.
        const USE_PNFS_MDS = 0x0002_0000;
        /// A pNFS data server.
        const USE_PNFS_DS = 0x0004_0000;
        /// The client requests only an update of a confirmed record (argument).
        const UPD_CONFIRMED_REC_A = 0x4000_0000;
        /// The record is confirmed (result).
        const CONFIRMED_R = 0x8000_0000;
    }
}

xdr_struct! {
    /// The operations that state protection covers (`state_protect_ops4`).
    #[derive(Copy)]
    pub struct ProtectedOps {
        /// Operations that need the machine credential or the SSV.
        pub must_enforce: Bitmap,
        /// Operations that may use it instead of the state owner's credential.
        pub must_allow: Bitmap,
    }

    /// The client's proposal for protection by SSV (`ssv_sp_parms4`).
    pub struct SsvParameters<'a> {
        /// The protected operations.
        pub ops: ProtectedOps,
        /// Hash algorithms, as ASN.1 object identifiers.
        pub hash_algorithms: Vec<&'a [u8]> [max ALGORITHMS_MAX],
        /// Encryption algorithms, as ASN.1 object identifiers.
        pub encryption_algorithms: Vec<&'a [u8]> [max ALGORITHMS_MAX],
        /// The number of SSV versions that are kept.
        pub window: u32,
        /// The number of GSS handles that the client requests.
        pub gss_handles: u32,
    }
}

/// The requested state protection (`state_protect4_a`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateProtectArgs<'a> {
    /// None.
    None,
    /// By the machine credential.
    MachineCredential(ProtectedOps),
    /// By a secret shared with the server (SSV).
    Ssv(SsvParameters<'a>),
}

impl<'a> Decode<'a> for StateProtectArgs<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::None),
            1 => Ok(Self::MachineCredential(ProtectedOps::decode(d)?)),
            2 => Ok(Self::Ssv(SsvParameters::decode(d)?)),
            how => Err(no_such("state_protect_how4", how)),
        }
    }
}

impl Encode for StateProtectArgs<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::None => e.u32(0),
            Self::MachineCredential(ops) => {
                e.u32(1);
                ops.encode(e);
            }
            Self::Ssv(parameters) => {
                e.u32(2);
                parameters.encode(e);
            }
        }
    }
}

xdr_struct! {
    /// The server's answer for protection by SSV (`ssv_prot_info4`).
    pub struct SsvInfo<'a> {
        /// The protected operations.
        pub ops: ProtectedOps,
        /// The index of the hash algorithm in the client's list.
        pub hash_algorithm: u32,
        /// The index of the encryption algorithm in the client's list.
        pub encryption_algorithm: u32,
        /// Length of the SSV.
        pub ssv_bytes: u32,
        /// The number of SSV versions that are kept.
        pub window: u32,
        /// GSS handles.
        pub handles: Vec<&'a [u8]> [max LIST_ITEMS_MAX],
    }
}

/// The state protection in effect (`state_protect4_r`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateProtectResult<'a> {
    /// None.
    None,
    /// By the machine credential.
    MachineCredential(ProtectedOps),
    /// By a secret shared with the server (SSV).
    Ssv(SsvInfo<'a>),
}

impl<'a> Decode<'a> for StateProtectResult<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::None),
            1 => Ok(Self::MachineCredential(ProtectedOps::decode(d)?)),
            2 => Ok(Self::Ssv(SsvInfo::decode(d)?)),
            how => Err(no_such("state_protect_how4", how)),
        }
    }
}

impl Encode for StateProtectResult<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::None => e.u32(0),
            Self::MachineCredential(ops) => {
                e.u32(1);
                ops.encode(e);
            }
            Self::Ssv(info) => {
                e.u32(2);
                info.encode(e);
            }
        }
    }
}

xdr_struct! {
    /// Arguments of EXCHANGE_ID (RFC 8881 18.35).
    pub struct ExchangeIdArgs<'a> {
        /// The identity of the client.
        pub owner: ClientOwner<'a>,
        /// The client's capabilities and requests.
        pub flags: ExchangeFlags,
        /// The requested state protection.
        pub state_protect: StateProtectArgs<'a>,
        /// The client's software.
        pub implementation: Option<ImplementationId<'a>>,
    }

    /// Results of EXCHANGE_ID (RFC 8881 18.35).
    pub struct ExchangeIdResult<'a> {
        /// The server's short identifier of the client.
        pub client_id: u64,
        /// The sequence number for its first CREATE_SESSION.
        pub sequence_id: u32,
        /// The server's capabilities.
        pub flags: ExchangeFlags,
        /// The state protection in effect.
        pub state_protect: StateProtectResult<'a>,
        /// The identity of the server.
        pub server_owner: ServerOwner<'a>,
        /// The scope in which file handles and similar identifiers have one meaning.
        pub server_scope: &'a [u8] [max OPAQUE_BYTES_MAX],
        /// The server's software.
        pub implementation: Option<ImplementationId<'a>>,
    }

    /// The limits of one channel of a session (`channel_attrs4`), in bytes unless the name says
    /// otherwise.
    #[derive(Copy, Default)]
    pub struct ChannelAttributes {
        /// Pad bytes before WRITE data.
        pub header_pad_bytes: u32,
        /// The longest request.
        pub request_bytes_max: u32,
        /// The longest reply.
        pub response_bytes_max: u32,
        /// The longest reply that the server caches.
        pub response_bytes_max_cached: u32,
        /// The most operations of a request.
        pub operations_max: u32,
        /// The number of slots.
        pub requests_max: u32,
        /// RDMA reads in flight; only on RDMA.
        pub rdma_ird: Option<u32>,
    }
}

xdr_flags! {
    /// Flags of CREATE_SESSION in both directions (RFC 8881 18.36.3).
    pub struct CreateSessionFlags {
        /// The reply cache outlives a restart.
        const PERSIST = 0x0000_0001;
        /// This connection is the back channel too.
        const CONN_BACK_CHAN = 0x0000_0002;
        /// This connection changes to RDMA.
        const CONN_RDMA = 0x0000_0004;
    }
}

xdr_struct! {
    /// Credentials of AUTH_SYS in callback parameters (`authsys_parms`, RFC 5531 appendix A).
    pub struct AuthSysParameters<'a> {
        /// An arbitrary number.
        pub stamp: u32,
        /// The caller's machine.
        pub machine: &'a [u8] [max MACHINE_NAME_BYTES_MAX],
        /// The user.
        pub uid: u32,
        /// The primary group.
        pub gid: u32,
        /// Supplementary groups.
        pub groups: Vec<u32> [max GROUPS_MAX],
    }

    /// GSS handles for callbacks (`gss_cb_handles4`).
    #[derive(Copy)]
    pub struct GssCallbackHandles<'a> {
        /// The service (RFC 2203).
        pub service: u32,
        /// The handle that the server made.
        pub from_server: &'a [u8],
        /// The handle that the client made.
        pub from_client: &'a [u8],
    }
}

/// One way for the server to authenticate itself in callbacks (`callback_sec_parms4`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackSecurity<'a> {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS with these credentials.
    Sys(AuthSysParameters<'a>),
    /// RPCSEC_GSS with these handles.
    Gss(GssCallbackHandles<'a>),
}

/// RPC security flavors (RFC 5531, RFC 2203).
pub(super) const FLAVOR_NONE: u32 = 0;
/// AUTH_SYS.
pub(super) const FLAVOR_SYS: u32 = 1;
/// RPCSEC_GSS.
pub(super) const FLAVOR_GSS: u32 = 6;

impl<'a> Decode<'a> for CallbackSecurity<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            FLAVOR_NONE => Ok(Self::None),
            FLAVOR_SYS => Ok(Self::Sys(AuthSysParameters::decode(d)?)),
            FLAVOR_GSS => Ok(Self::Gss(GssCallbackHandles::decode(d)?)),
            flavor => Err(no_such("auth_flavor", flavor)),
        }
    }
}

impl Encode for CallbackSecurity<'_> {
    fn encode(&self, e: &mut Encoder<'_>) {
        match self {
            Self::None => e.u32(FLAVOR_NONE),
            Self::Sys(parameters) => {
                e.u32(FLAVOR_SYS);
                parameters.encode(e);
            }
            Self::Gss(handles) => {
                e.u32(FLAVOR_GSS);
                handles.encode(e);
            }
        }
    }
}

xdr_struct! {
    /// Arguments of CREATE_SESSION (RFC 8881 18.36).
    pub struct CreateSessionArgs<'a> {
        /// The client.
        pub client_id: u64,
        /// The client's sequence number for this operation.
        pub sequence: u32,
        /// The requested features.
        pub flags: CreateSessionFlags,
        /// Requested limits of the fore channel.
        pub fore: ChannelAttributes,
        /// Requested limits of the back channel.
        pub back: ChannelAttributes,
        /// The program number for callbacks.
        pub callback_program: u32,
        /// The security flavors for callbacks.
        pub security: Vec<CallbackSecurity<'a>> [max CALLBACK_SECURITY_MAX],
    }

    /// Results of CREATE_SESSION (RFC 8881 18.36).
    #[derive(Copy)]
    pub struct CreateSessionResult {
        /// The session.
        pub session_id: SessionId,
        /// The sequence number of the request.
        pub sequence: u32,
        /// The granted features.
        pub flags: CreateSessionFlags,
        /// Limits of the fore channel.
        pub fore: ChannelAttributes,
        /// Limits of the back channel.
        pub back: ChannelAttributes,
    }

    /// Arguments of BACKCHANNEL_CTL (RFC 8881 18.33).
    pub struct BackchannelCtlArgs<'a> {
        /// The program number for callbacks.
        pub callback_program: u32,
        /// The security flavors for callbacks.
        pub security: Vec<CallbackSecurity<'a>> [max CALLBACK_SECURITY_MAX],
    }
}

xdr_enum! {
    open
    /// The requested use of a connection (`channel_dir_from_client4`).
    pub enum ChannelFromClient {
        /// The fore channel.
        Fore = 0x1,
        /// The back channel.
        Back = 0x2,
        /// The fore channel, or both.
        ForeOrBoth = 0x3,
        /// The back channel, or both.
        BackOrBoth = 0x7,
    }
}

xdr_enum! {
    closed
    /// The use of a connection (`channel_dir_from_server4`).
    pub enum ChannelFromServer {
        /// The fore channel.
        Fore = 0x1,
        /// The back channel.
        Back = 0x2,
        /// Both channels.
        Both = 0x3,
    }
}

xdr_struct! {
    /// Arguments of BIND_CONN_TO_SESSION (RFC 8881 18.34).
    #[derive(Copy)]
    pub struct BindConnToSessionArgs {
        /// The session.
        pub session_id: SessionId,
        /// The requested use of the connection; an undefined value is INVAL.
        pub direction: ChannelFromClient,
        /// True if the connection shall change to RDMA.
        pub use_rdma: bool,
    }

    /// Results of BIND_CONN_TO_SESSION (RFC 8881 18.34).
    #[derive(Copy)]
    pub struct BindConnToSessionResult {
        /// The session.
        pub session_id: SessionId,
        /// The use of the connection.
        pub direction: ChannelFromServer,
        /// True if the connection changes to RDMA.
        pub use_rdma: bool,
    }

    /// Arguments of DESTROY_SESSION (RFC 8881 18.37).
    #[derive(Copy)]
    pub struct DestroySessionArgs {
        /// The session.
        pub session_id: SessionId,
    }

    /// Arguments of DESTROY_CLIENTID (RFC 8881 18.50).
    #[derive(Copy)]
    pub struct DestroyClientidArgs {
        /// The client.
        pub client_id: u64,
    }

    /// Arguments of RECLAIM_COMPLETE (RFC 8881 18.51).
    #[derive(Copy)]
    pub struct ReclaimCompleteArgs {
        /// Only the file system of the current file handle (after a migration).
        pub one_fs: bool,
    }

    /// Arguments of SEQUENCE (RFC 8881 18.46).
    #[derive(Copy)]
    pub struct SequenceArgs {
        /// The session.
        pub session_id: SessionId,
        /// The sequence number of the slot.
        pub sequence_id: u32,
        /// The slot.
        pub slot_id: u32,
        /// The highest slot in use.
        pub highest_slot_id: u32,
        /// True if the server must cache the reply.
        pub cache_this: bool,
    }
}

xdr_flags! {
    /// Conditions of the client's state that the server reports (RFC 8881 18.46.3).
    pub struct SequenceStatus {
        /// The client has no back channel.
        const CB_PATH_DOWN = 0x0001;
        /// GSS contexts for callbacks expire soon.
        const CB_GSS_CONTEXTS_EXPIRING = 0x0002;
        /// GSS contexts for callbacks have expired.
        const CB_GSS_CONTEXTS_EXPIRED = 0x0004;
        /// The lease expired, and all state was revoked.
        const EXPIRED_ALL_STATE_REVOKED = 0x0008;
        /// The lease expired, and some state was revoked.
        const EXPIRED_SOME_STATE_REVOKED = 0x0010;
        /// An administrator revoked state.
        const ADMIN_STATE_REVOKED = 0x0020;
        /// Delegations or layouts were revoked.
        const RECALLABLE_STATE_REVOKED = 0x0040;
        /// A file system moved to another server.
        const LEASE_MOVED = 0x0080;
        /// The server restarted: the client must reclaim its state.
        const RESTART_RECLAIM_NEEDED = 0x0100;
        /// This session has no back channel.
        const CB_PATH_DOWN_SESSION = 0x0200;
        /// The back channel gives wrong answers.
        const BACKCHANNEL_FAULT = 0x0400;
        /// A pNFS device changed.
        const DEVID_CHANGED = 0x0800;
        /// A pNFS device was deleted.
        const DEVID_DELETED = 0x1000;
    }
}

xdr_struct! {
    /// Results of SEQUENCE (RFC 8881 18.46).
    #[derive(Copy)]
    pub struct SequenceResult {
        /// The session.
        pub session_id: SessionId,
        /// The sequence number of the slot.
        pub sequence_id: u32,
        /// The slot.
        pub slot_id: u32,
        /// The highest slot that the server accepts now.
        pub highest_slot_id: u32,
        /// The highest slot that the server wants the client to use.
        pub target_highest_slot_id: u32,
        /// Conditions of the client's state.
        pub status: SequenceStatus,
    }

    /// Arguments of SET_SSV (RFC 8881 18.47).
    #[derive(Copy)]
    pub struct SetSsvArgs<'a> {
        /// The change of the secret.
        pub ssv: &'a [u8],
        /// The digest of the SEQUENCE arguments.
        pub digest: &'a [u8],
    }

    /// Results of SET_SSV (RFC 8881 18.47).
    #[derive(Copy)]
    pub struct SetSsvResult<'a> {
        /// The digest of the SEQUENCE results.
        pub digest: &'a [u8],
    }
}
