//! Sessions, authentication, credentials, response cache (DAFS 4, 6, 12).
//!
//! Invariants
//! * The word that selects an arm precedes its union (DAFS O10).

use super::codec::{Element, Field, Scope, WordBool, Writer, layout, word_enum};
use super::error::{DecodeError, EncodeError};
use super::ids::{ClientId, CredHandle, SessionId, Verifier};
use super::limits::UNLIMITED;
use super::procedure::Procedure;
use super::seq::Seq;

word_enum! {
    /// The client's authentication (DAFS 4.5).
    pub enum AuthType {
        /// None.
        None = 0,
        /// By id and clear password.
        Text = 1,
        /// By GSS-API.
        Gss = 2,
        /// The server's default.
        Default = 3,
    }

    /// The step of a GSS exchange (DAFS 4.5).
    pub enum GssProcedure {
        /// The first step.
        Init = 1,
        /// A later step.
        ContinueInit = 2,
    }

    /// The GSS service of a session (DAFS 4.5).
    pub enum GssService {
        /// Authentication.
        Auth = 1,
        /// Integrity.
        Integrity = 2,
        /// Privacy.
        Privacy = 3,
    }
}

/// A proof of identity (DAFS 5.4, auth_req).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthRequest<'a> {
    /// No authentication.
    None,
    /// An id and a password.
    Text {
        /// The id.
        id: &'a [u8],
        /// The password in clear.
        password: &'a [u8],
    },
    /// A GSS token.
    Gss {
        /// The step.
        procedure: GssProcedure,
        /// The GSS service.
        service: GssService,
        /// The token.
        token: &'a [u8],
    },
    /// The server's default.
    Default,
}

impl AuthRequest<'_> {
    /// The authentication type.
    pub fn auth_type(&self) -> AuthType {
        match self {
            Self::None => AuthType::None,
            Self::Text { .. } => AuthType::Text,
            Self::Gss { .. } => AuthType::Gss,
            Self::Default => AuthType::Default,
        }
    }
}

impl<'a> Field<'a> for AuthRequest<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(match AuthType::read(scope, at)? {
            AuthType::None => Self::None,
            AuthType::Text => Self::Text {
                id: Field::read(scope, at + 4)?,
                password: Field::read(scope, at + 8)?,
            },
            AuthType::Gss => Self::Gss {
                procedure: Field::read(scope, at + 4)?,
                service: Field::read(scope, at + 8)?,
                token: Field::read(scope, at + 12)?,
            },
            AuthType::Default => Self::Default,
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        self.auth_type().write(writer, at)?;
        match self {
            Self::None | Self::Default => Ok(()),
            Self::Text { id, password } => {
                id.write(writer, at + 4)?;
                password.write(writer, at + 8)
            }
            Self::Gss { procedure, service, token } => {
                procedure.write(writer, at + 4)?;
                service.write(writer, at + 8)?;
                token.write(writer, at + 12)
            }
        }
    }
}

/// The server's result of an authentication (DAFS 5.4, auth_res).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthResult<'a> {
    /// No authentication was needed.
    None,
    /// The password was accepted.
    Text,
    /// The outcome of a GSS step.
    Gss {
        /// GSS major status.
        major: u32,
        /// GSS minor status.
        minor: u32,
        /// The token.
        token: &'a [u8],
    },
    /// The server's default.
    Default,
}

impl AuthResult<'_> {
    /// The authentication type.
    pub fn auth_type(&self) -> AuthType {
        match self {
            Self::None => AuthType::None,
            Self::Text => AuthType::Text,
            Self::Gss { .. } => AuthType::Gss,
            Self::Default => AuthType::Default,
        }
    }
}

impl<'a> Field<'a> for AuthResult<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(match AuthType::read(scope, at)? {
            AuthType::None => Self::None,
            AuthType::Text => Self::Text,
            AuthType::Gss => Self::Gss {
                major: scope.u32(at + 4)?,
                minor: scope.u32(at + 8)?,
                token: Field::read(scope, at + 12)?,
            },
            AuthType::Default => Self::Default,
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        self.auth_type().write(writer, at)?;
        if let Self::Gss { major, minor, token } = self {
            writer.put_u32(at + 4, *major)?;
            writer.put_u32(at + 8, *minor)?;
            token.write(writer, at + 12)?;
        }
        Ok(())
    }
}

layout! {
    /// The options of a session; the client proposes, and the server's answer is final (DAFS 4.4).
    /// A size or number of 0 leaves the choice to the server.
    #[derive(Default)]
    pub struct SessionOptions [36] {
        /// True if messages and data carry checksums.
        use_checksums: bool as WordBool = 0,
        /// True if replies are kept for recovery.
        use_response_cache: bool as WordBool = 4,
        /// Credentials that can be registered; the client's first session determines the number.
        max_credentials: u32 = 8,
        /// Largest request in bytes.
        max_request_size: u32 = 12,
        /// Largest response in bytes.
        max_response_size: u32 = 16,
        /// Initial credits.
        max_requests: u32 = 20,
        /// Start of padded inline data, in bytes from the start of the message (DAFS O23).
        inline_write_header_size: u32 = 24,
        /// True if the client is going to bind a back-control channel.
        use_back_control_channel: bool as WordBool = 28,
        /// True if the client is going to bind an RDMA-read channel; never (DAFS O22).
        use_rdma_read_channel: bool as WordBool = 32,
    }

    /// Arguments of CLIENT_CONNECT.
    pub struct ClientConnect<'a> [56] {
        /// The proposed options.
        options: SessionOptions = 0,
        /// The client's identity for fencing; empty if it has none.
        fence_id: &'a [u8] = 36,
        /// Identifies the client across restarts.
        client_id_string: &'a [u8] = 40,
        /// Identifies one incarnation of the client.
        client_verifier: Verifier = 48,
    }

    /// Result of CLIENT_CONNECT.
    pub struct ClientConnectReply [56] {
        /// Identifies the session.
        session_id: SessionId = 0,
        /// The server's short identifier of the client.
        client_id: ClientId = 8,
        /// The options in effect.
        options: SessionOptions = 16,
    }

    /// Arguments of CLIENT_CONNECT_AUTH.
    pub struct ClientConnectAuth<'a> [72] {
        /// The proposed options.
        options: SessionOptions = 0,
        /// The client's identity for fencing; empty if it has none.
        fence_id: &'a [u8] = 36,
        /// Identifies the client across restarts.
        client_id_string: &'a [u8] = 40,
        /// Identifies one incarnation of the client.
        client_verifier: Verifier = 48,
        /// The proof of identity.
        auth: AuthRequest<'a> = 56,
    }

    /// Result of CLIENT_CONNECT_AUTH, also sent with GSS_CONTINUE_INIT (DAFS O13).
    pub struct ClientConnectAuthReply<'a> [72] {
        /// Identifies the session.
        session_id: SessionId = 0,
        /// The server's short identifier of the client.
        client_id: ClientId = 8,
        /// The options in effect.
        options: SessionOptions = 16,
        /// The server's result of the authentication.
        auth: AuthResult<'a> = 52,
        /// True if the client may register credentials (DAFS 4.5).
        trusted: bool = 68,
    }

    /// Arguments of CLIENT_AUTH.
    pub struct ClientAuth<'a> [16] {
        /// The proof of identity.
        auth: AuthRequest<'a> = 0,
    }

    /// Result of CLIENT_AUTH, also sent with GSS_CONTINUE_INIT (DAFS O13).
    pub struct ClientAuthReply<'a> [24] {
        /// The server's result of the authentication.
        auth: AuthResult<'a> = 0,
        /// True if the client may register credentials (DAFS 4.5).
        trusted: bool = 16,
    }
}

/// The use of a further channel of a session (DAFS 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ChannelUse {
    /// Requests of the server (callbacks).
    BackControl = 1,
    /// RDMA reads of the server; never offered (DAFS O22).
    RdmaRead = 2,
    /// RDMA reads of the client, from memory in which the server shows files: an extension.
    Optimistic = 3,
}

impl<'a> Field<'a> for ChannelUse {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u16(at)? {
            1 => Ok(Self::BackControl),
            2 => Ok(Self::RdmaRead),
            3 => Ok(Self::Optimistic),
            value => Err(DecodeError::BadValue { field: "channel_use", value: value.into() }),
        }
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        writer.put_u16(at, *self as u16)
    }
}

layout! {
    /// Arguments of CONNECT_BIND.
    pub struct ConnectBind<'a> [40] {
        /// The session that gets the channel.
        session_id: SessionId = 0,
        /// The use of the channel.
        channel_use: ChannelUse = 8,
        /// Largest request in bytes.
        max_request_size: u32 = 12,
        /// Largest response in bytes.
        max_response_size: u32 = 16,
        /// Credits (DAFS O27).
        max_requests: u32 = 20,
        /// The proof of identity.
        auth: AuthRequest<'a> = 24,
    }

    /// Result of CONNECT_BIND.
    pub struct ConnectBindReply<'a> [32] {
        /// Largest request in bytes.
        max_request_size: u32 = 0,
        /// Largest response in bytes.
        max_response_size: u32 = 4,
        /// Credits (DAFS O27).
        max_requests: u32 = 8,
        /// The server's result of the authentication.
        auth: AuthResult<'a> = 12,
        /// True if the client may register credentials (DAFS 4.5).
        trusted: bool = 28,
    }
}

/// The identity under which requests run (DAFS 4.5, 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential<'a> {
    /// By name.
    Name(&'a [u8]),
    /// By numbers.
    Id {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups.
        groups: Seq<'a, u32>,
    },
    /// By a GSS token.
    Gss(&'a [u8]),
    /// The session's own credential.
    Default,
}

impl<'a> Field<'a> for Credential<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(match scope.u32(at)? {
            0 => Self::Name(Field::read(scope, at + 4)?),
            1 => Self::Id {
                uid: scope.u32(at + 4)?,
                gid: scope.u32(at + 8)?,
                groups: Field::read(scope, at + 12)?,
            },
            2 => Self::Gss(Field::read(scope, at + 4)?),
            3 => Self::Default,
            value => return Err(DecodeError::BadValue { field: "cred_type", value: value.into() }),
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        match self {
            Self::Name(name) => name.write(writer, at + 4),
            Self::Id { uid, gid, groups } => {
                writer.put_u32(at, 1)?;
                writer.put_u32(at + 4, *uid)?;
                writer.put_u32(at + 8, *gid)?;
                groups.write(writer, at + 12)
            }
            Self::Gss(token) => {
                writer.put_u32(at, 2)?;
                token.write(writer, at + 4)
            }
            Self::Default => writer.put_u32(at, 3),
        }
    }
}

layout! {
    /// Arguments of REGISTER_CRED.
    pub struct RegisterCred<'a> [16] {
        /// The credential.
        credential: Credential<'a> = 0,
    }

    /// Result of REGISTER_CRED, and arguments of RELEASE_CRED.
    pub struct CredHandleBody [8] {
        /// Identifies the credential on every session of the client.
        cred_handle: CredHandle = 0,
    }
}

/// An authentication type that a server accepts (DAFS 5.4, secinfo entry).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecInfoEntry<'a> {
    /// NONE.
    None,
    /// TEXT.
    Text,
    /// GSS.
    Gss {
        /// The mechanism, as an encoded object identifier.
        oid: &'a [u8],
        /// Quality of protection.
        qop: u32,
        /// The GSS service.
        service: GssService,
    },
    /// DEFAULT.
    Default,
}

impl<'a> Field<'a> for SecInfoEntry<'a> {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        Ok(match AuthType::read(scope, at)? {
            AuthType::None => Self::None,
            AuthType::Text => Self::Text,
            AuthType::Gss => Self::Gss {
                oid: Field::read(scope, at + 4)?,
                qop: scope.u32(at + 8)?,
                service: Field::read(scope, at + 12)?,
            },
            AuthType::Default => Self::Default,
        })
    }

    fn write(&self, writer: &mut Writer<'_>, at: usize) -> Result<(), EncodeError> {
        match self {
            Self::None => AuthType::None.write(writer, at),
            Self::Text => AuthType::Text.write(writer, at),
            Self::Gss { oid, qop, service } => {
                AuthType::Gss.write(writer, at)?;
                oid.write(writer, at + 4)?;
                writer.put_u32(at + 8, *qop)?;
                service.write(writer, at + 12)
            }
            Self::Default => AuthType::Default.write(writer, at),
        }
    }
}

impl<'a> Element<'a> for SecInfoEntry<'a> {
    const BYTES: usize = 16;
    const ALIGN: usize = 4;
    const COUNT_MAX: usize = UNLIMITED;
}

layout! {
    /// Result of SECINFO.
    pub struct SecInfoReply<'a> [8] {
        /// The accepted authentication types, best first.
        entries: Seq<'a, SecInfoEntry<'a>> = 0,
    }

    /// Arguments of SERVER_AUTH.
    pub struct ServerAuth [8] {
        /// The type in which the server shall authenticate itself.
        auth_type: AuthType = 0,
    }

    /// Result of SERVER_AUTH; empty unless the type is TEXT.
    pub struct ServerAuthReply<'a> [8] {
        /// The server's id.
        id: &'a [u8] = 0,
        /// The server's password in clear.
        password: &'a [u8] = 4,
    }

    /// Arguments of CHECK_RESPONSE and of FETCH_RESPONSE: identify a request (DAFS 12).
    pub struct CheckResponse [16] {
        /// The session of the request.
        session_id: SessionId = 0,
        /// The stream of the request.
        stream_id: u16 = 8,
        /// The sequence number of the request.
        seq_number: u16 = 10,
        /// The procedure of the request.
        procedure: Procedure = 12,
    }

    /// Arguments of DISCARD_RESPONSES.
    pub struct DiscardResponses [8] {
        /// The session whose replies are no longer needed.
        session_id: SessionId = 0,
    }
}
