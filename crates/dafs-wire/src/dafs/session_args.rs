//! Sessions, authentication, credentials, response cache (DAFS 4, 6, 12).
//!
//! Invariants
//! * The word that chooses an arm stands before its union (DAFS O10).

use super::codec::{Element, Field, Scope, WordBool, Writer, layout, word_enum};
use super::error::{DecodeError, EncodeError};
use super::ids::{ClientId, CredHandle, SessionId, Verifier};
use super::limits::UNLIMITED;
use super::procedure::Procedure;
use super::seq::Seq;

word_enum! {
    /// How a client proves who it is (DAFS 4.5).
    pub enum AuthType {
        /// Not at all.
        None = 0,
        /// By id and clear password.
        Text = 1,
        /// By GSS-API.
        Gss = 2,
        /// By whatever the server takes as its default.
        Default = 3,
    }
}

word_enum! {
    /// The step of a GSS exchange (DAFS 4.5).
    pub enum GssProcedure {
        /// The first.
        Init = 1,
        /// A later one.
        ContinueInit = 2,
    }
}

word_enum! {
    /// What GSS is to do for a session (DAFS 4.5).
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
    /// None.
    None,
    /// Id and password.
    Text {
        /// Who.
        id: &'a [u8],
        /// The password in clear.
        password: &'a [u8],
    },
    /// A GSS token.
    Gss {
        /// The step.
        procedure: GssProcedure,
        /// What GSS is to do.
        service: GssService,
        /// The token.
        token: &'a [u8],
    },
    /// The server's default.
    Default,
}

impl AuthRequest<'_> {
    /// Which kind it is.
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

/// The server's side of an authentication (DAFS 5.4, auth_res).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthResult<'a> {
    /// None was needed.
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
    /// Which kind it is.
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
    /// What a session offers; the client proposes, the server's answer is final (DAFS 4.4). A size
    /// or number of 0 leaves the choice to the server.
    #[derive(Default)]
    pub struct SessionOptions [36] {
        /// Whether messages and data carry checksums.
        use_checksums: bool as WordBool = 0,
        /// Whether replies are kept for recovery.
        use_response_cache: bool as WordBool = 4,
        /// Credentials that can be registered; fixed by the client's first session.
        max_credentials: u32 = 8,
        /// Largest request in bytes.
        max_request_size: u32 = 12,
        /// Largest response in bytes.
        max_response_size: u32 = 16,
        /// Initial credits.
        max_requests: u32 = 20,
        /// Where padded inline data begins, in bytes from the start of the message (DAFS O23).
        inline_write_header_size: u32 = 24,
        /// Whether a back-control channel is going to be bound.
        use_back_control_channel: bool as WordBool = 28,
        /// Whether an RDMA-read channel is going to be bound; never (DAFS O22).
        use_rdma_read_channel: bool as WordBool = 32,
    }
}

layout! {
    /// Arguments of CLIENT_CONNECT.
    pub struct ClientConnect<'a> [56] {
        /// What is proposed.
        options: SessionOptions = 0,
        /// The identity for fencing; empty when there is none.
        fence_id: &'a [u8] = 36,
        /// Names the client across restarts.
        client_id_string: &'a [u8] = 40,
        /// One run of that client.
        client_verifier: Verifier = 48,
    }
}

layout! {
    /// Result of CLIENT_CONNECT.
    pub struct ClientConnectReply [56] {
        /// Names the session.
        session_id: SessionId = 0,
        /// The server's short name of the client.
        client_id: ClientId = 8,
        /// What holds.
        options: SessionOptions = 16,
    }
}

layout! {
    /// Arguments of CLIENT_CONNECT_AUTH.
    pub struct ClientConnectAuth<'a> [72] {
        /// What is proposed.
        options: SessionOptions = 0,
        /// The identity for fencing; empty when there is none.
        fence_id: &'a [u8] = 36,
        /// Names the client across restarts.
        client_id_string: &'a [u8] = 40,
        /// One run of that client.
        client_verifier: Verifier = 48,
        /// The proof of identity.
        auth: AuthRequest<'a> = 56,
    }
}

layout! {
    /// Result of CLIENT_CONNECT_AUTH, also sent with GSS_CONTINUE_INIT (DAFS O13).
    pub struct ClientConnectAuthReply<'a> [72] {
        /// Names the session.
        session_id: SessionId = 0,
        /// The server's short name of the client.
        client_id: ClientId = 8,
        /// What holds.
        options: SessionOptions = 16,
        /// The server's side of the authentication.
        auth: AuthResult<'a> = 52,
        /// Whether the client may register credentials (DAFS 4.5).
        trusted: bool = 68,
    }
}

layout! {
    /// Arguments of CLIENT_AUTH.
    pub struct ClientAuth<'a> [16] {
        /// The proof of identity.
        auth: AuthRequest<'a> = 0,
    }
}

layout! {
    /// Result of CLIENT_AUTH, also sent with GSS_CONTINUE_INIT (DAFS O13).
    pub struct ClientAuthReply<'a> [24] {
        /// The server's side of the authentication.
        auth: AuthResult<'a> = 0,
        /// Whether the client may register credentials (DAFS 4.5).
        trusted: bool = 16,
    }
}

/// What a further channel of a session is for (DAFS 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ChannelUse {
    /// Requests of the server.
    BackControl = 1,
    /// RDMA reads of the server; never offered (DAFS O22).
    RdmaRead = 2,
}

impl<'a> Field<'a> for ChannelUse {
    const TRIVIAL: bool = false;

    fn read(scope: Scope<'a>, at: usize) -> Result<Self, DecodeError> {
        match scope.u16(at)? {
            1 => Ok(Self::BackControl),
            2 => Ok(Self::RdmaRead),
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
        /// What the channel is for.
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
}

layout! {
    /// Result of CONNECT_BIND.
    pub struct ConnectBindReply<'a> [32] {
        /// Largest request in bytes.
        max_request_size: u32 = 0,
        /// Largest response in bytes.
        max_response_size: u32 = 4,
        /// Credits (DAFS O27).
        max_requests: u32 = 8,
        /// The server's side of the authentication.
        auth: AuthResult<'a> = 12,
        /// Whether the client may register credentials (DAFS 4.5).
        trusted: bool = 28,
    }
}

/// On whose behalf requests run (DAFS 4.5, 5.4).
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
    /// The session's own.
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
}

layout! {
    /// Result of REGISTER_CRED, and arguments of RELEASE_CRED.
    pub struct CredHandleBody [8] {
        /// Names the credential on every session of the client.
        cred_handle: CredHandle = 0,
    }
}

/// One way of authentication that a server takes (DAFS 5.4, secinfo entry).
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
        /// What GSS is to do.
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
        /// What the server takes, best first.
        entries: Seq<'a, SecInfoEntry<'a>> = 0,
    }
}

layout! {
    /// Arguments of SERVER_AUTH.
    pub struct ServerAuth [8] {
        /// How the server shall prove who it is.
        auth_type: AuthType = 0,
    }
}

layout! {
    /// Result of SERVER_AUTH; empty unless the type is TEXT.
    pub struct ServerAuthReply<'a> [8] {
        /// Who the server is.
        id: &'a [u8] = 0,
        /// Its password in clear.
        password: &'a [u8] = 4,
    }
}

layout! {
    /// Arguments of CHECK_RESPONSE and of FETCH_RESPONSE: which request is meant (DAFS 12).
    pub struct CheckResponse [16] {
        /// The session it was sent on.
        session_id: SessionId = 0,
        /// Its stream.
        stream_id: u16 = 8,
        /// Its sequence number.
        seq_number: u16 = 10,
        /// Its procedure.
        procedure: Procedure = 12,
    }
}

layout! {
    /// Arguments of DISCARD_RESPONSES.
    pub struct DiscardResponses [8] {
        /// The session whose replies are no longer needed.
        session_id: SessionId = 0,
    }
}
