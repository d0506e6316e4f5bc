//! An NFSv4.1 or 4.2 client: EXCHANGE_ID, CREATE_SESSION and related operations.

use crate::back::{BackChannel, BackHandler, IgnoreCallbacks};
use crate::compound::Compound;
use crate::connection::Connection;
use crate::error::NfsError;
use crate::session::Session;
use dafs_rpc::client::Identity;
use dafs_wire::nfs4::{
    BindConnToSessionArgs, BindConnToSessionResult, CallbackSecurity, ChannelAttributes,
    ChannelFromClient, ClientOwner, CreateSessionArgs, CreateSessionFlags, CreateSessionResult,
    DestroyClientidArgs, ExchangeFlags, ExchangeIdArgs, Op, SessionId, StateProtectArgs, Verifier,
};
use std::net::SocketAddr;
use std::sync::Arc;

/// The identity of a client, and the resources that it asks for.
#[derive(Clone)]
pub struct Options {
    /// The minor version.
    pub minor_version: u32,
    /// The client owner's name, which never changes.
    pub owner: Vec<u8>,
    /// The client owner's verifier, which changes when the client restarts.
    pub verifier: [u8; 8],
    /// The caller's RPC identity.
    pub identity: Identity,
    /// Slots of the fore channel.
    pub slots: u32,
    /// The longest request and reply, in bytes.
    pub message_bytes_max: u32,
    /// Slots of the back channel; 0: no back channel, and no thread that reads callbacks.
    pub back_slots: u32,
    /// The handler of the server's callbacks.
    pub back_handler: Arc<dyn BackHandler>,
    /// Sends RECLAIM_COMPLETE at once, because there is nothing to reclaim.
    pub reclaim_complete: bool,
}

impl Options {
    /// A client of minor version 2 with this name, for the user and group 0, with a back channel.
    pub fn new(owner: &[u8]) -> Self {
        Self {
            minor_version: 2,
            owner: owner.to_vec(),
            verifier: *b"verifier",
            identity: Identity::sys("client", 0, 0, &[]),
            slots: 64,
            message_bytes_max: 1024 * 1024 + 4096,
            back_slots: 4,
            back_handler: Arc::new(IgnoreCallbacks),
            reclaim_complete: true,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("minor_version", &self.minor_version)
            .field("owner", &String::from_utf8_lossy(&self.owner))
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// The result of EXCHANGE_ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchanged {
    /// The client id.
    pub client_id: u64,
    /// The sequence number for its next CREATE_SESSION.
    pub sequence_id: u32,
    /// The capabilities of the server.
    pub flags: ExchangeFlags,
    /// The server's major owner, for trunking.
    pub server_owner: Vec<u8>,
    /// The server's minor owner, for trunking.
    pub server_minor: u64,
    /// The scope within which file handles are unique.
    pub server_scope: Vec<u8>,
}

/// Sends EXCHANGE_ID alone.
///
/// # Errors
/// [`NfsError::Status`], [`NfsError::Call`], [`NfsError::Malformed`].
pub fn exchange_id(
    connection: &Connection,
    options: &Options,
    flags: ExchangeFlags,
) -> Result<Exchanged, NfsError> {
    let mut compound = Compound::new(options.minor_version);
    compound.op(&Op::ExchangeId(ExchangeIdArgs {
        owner: ClientOwner { verifier: Verifier(options.verifier), owner_id: &options.owner },
        flags,
        state_protect: StateProtectArgs::None,
        implementation: None,
    }));
    let mut results = connection.compound(&compound)?;
    let result = results.take_exchange_id()?;
    Ok(Exchanged {
        client_id: result.client_id,
        sequence_id: result.sequence_id,
        flags: result.flags,
        server_owner: result.server_owner.major_id.to_vec(),
        server_minor: result.server_owner.minor_id,
        server_scope: result.server_scope.to_vec(),
    })
}

/// The arguments of CREATE_SESSION that these options ask for.
pub fn create_session_args(
    options: &Options,
    client_id: u64,
    sequence: u32,
) -> CreateSessionArgs<'static> {
    let fore = ChannelAttributes {
        header_pad_bytes: 0,
        request_bytes_max: options.message_bytes_max,
        response_bytes_max: options.message_bytes_max,
        response_bytes_max_cached: 8192,
        operations_max: 64,
        requests_max: options.slots,
        rdma_ird: None,
    };
    let back = ChannelAttributes {
        request_bytes_max: 4096,
        response_bytes_max: 4096,
        response_bytes_max_cached: 4096,
        operations_max: 8,
        requests_max: options.back_slots.max(1),
        ..fore
    };
    // The client retries requests with their original sequence number, so a server whose replay
    // cache survives its restart can answer.
    let mut flags = CreateSessionFlags::PERSIST;
    flags.set(CreateSessionFlags::CONN_BACK_CHAN, options.back_slots > 0);
    CreateSessionArgs {
        client_id,
        sequence,
        flags,
        fore,
        back,
        callback_program: CALLBACK_PROGRAM,
        security: vec![CallbackSecurity::None],
    }
}

/// The program number of this client's callbacks.
pub const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// Sends CREATE_SESSION alone, and answers callbacks of the session on this connection.
///
/// # Errors
/// [`NfsError::Status`], [`NfsError::Call`], [`NfsError::Malformed`].
pub fn create_session(
    connection: &Connection,
    minor_version: u32,
    args: CreateSessionArgs<'_>,
    back_handler: &Arc<dyn BackHandler>,
) -> Result<(CreateSessionResult, Arc<BackChannel>), NfsError> {
    let mut compound = Compound::new(minor_version);
    compound.op(&Op::CreateSession(args));
    let mut results = connection.compound(&compound)?;
    let result = results.take_create_session()?;
    let slots = result.back.requests_max;
    let back = BackChannel::new(result.session_id, slots, back_handler.clone());
    let back = Arc::new(back);
    connection.answer_callbacks(back.clone());
    Ok((result, back))
}

/// Sends BIND_CONN_TO_SESSION alone.
///
/// # Errors
/// [`NfsError::Status`], [`NfsError::Call`], [`NfsError::Malformed`].
pub fn bind_connection(
    connection: &Connection,
    minor_version: u32,
    session_id: SessionId,
    direction: ChannelFromClient,
) -> Result<BindConnToSessionResult, NfsError> {
    let mut compound = Compound::new(minor_version);
    let args = BindConnToSessionArgs { session_id, direction, use_rdma: false };
    compound.op(&Op::BindConnToSession(args));
    let mut results = connection.compound(&compound)?;
    results.take_bind_conn_to_session()
}

/// Sends DESTROY_CLIENTID alone.
///
/// # Errors
/// [`NfsError::Status`], [`NfsError::Call`], [`NfsError::Malformed`].
pub fn destroy_client_id(
    connection: &Connection,
    minor_version: u32,
    client_id: u64,
) -> Result<(), NfsError> {
    let mut compound = Compound::new(minor_version);
    compound.op(&Op::DestroyClientid(DestroyClientidArgs { client_id }));
    connection.compound(&compound)?.finish()
}

/// Connects, sends EXCHANGE_ID and creates a session.
///
/// # Errors
/// [`NfsError::Io`], [`NfsError::Status`], [`NfsError::Call`], [`NfsError::Malformed`].
pub fn connect(server: SocketAddr, options: &Options) -> Result<Session, NfsError> {
    let connection = match options.back_slots {
        0 => {
            let identity = options.identity.clone();
            let rpc =
                dafs_rpc::client::Options { identity, ..dafs_rpc::client::Options::default() };
            Connection::open_one_way(server, rpc)?
        }
        _ => Connection::open(server, options.identity.clone())?,
    };
    connect_over(connection, options)
}

/// As [`connect`], over a connection that exists.
///
/// # Errors
/// Those of [`exchange_id`] and [`create_session`].
pub fn connect_over(connection: Connection, options: &Options) -> Result<Session, NfsError> {
    let exchanged = exchange_id(&connection, options, ExchangeFlags::empty())?;
    let args = create_session_args(options, exchanged.client_id, exchanged.sequence_id);
    let (granted, back) =
        create_session(&connection, options.minor_version, args, &options.back_handler)?;
    let session =
        Session::new(connection, exchanged.client_id, options.minor_version, granted, back);
    if options.reclaim_complete {
        match session.reclaim_complete() {
            Err(error) if error.status() == Some(dafs_wire::nfs4::Status::CompleteAlready) => {}
            other => other?,
        }
    }
    Ok(session)
}

/// Opens one more connection to the server and binds it to the session in both directions.
///
/// # Errors
/// Those of [`Connection::open`] and [`bind_connection`].
pub fn add_connection(
    session: &Session,
    server: SocketAddr,
    identity: Identity,
) -> Result<Connection, NfsError> {
    let connection = Connection::open(server, identity)?;
    bind_connection(
        &connection,
        session.minor_version(),
        session.id(),
        ChannelFromClient::ForeOrBoth,
    )?;
    connection.answer_callbacks(session.back_channel().clone());
    session.add_connection(connection.clone());
    Ok(connection)
}
