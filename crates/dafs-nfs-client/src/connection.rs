//! One connection to a server: compounds without a session, NFSv3 calls, and the callbacks of the
//! server.
//!
//! Invariants
//! * Callbacks are answered on the thread that reads the connection, so their handlers must not
//!   wait for the server.

use crate::back::{BackChannel, BackChannels};
use crate::client::CALLBACK_PROGRAM;
use crate::compound::{Compound, Results};
use crate::error::NfsError;
use dafs_dat::Address;
use dafs_rpc::client::{
    BackHandler as RpcBackHandler, BackRequest, Identity, Options, Pending, Port, Procedure,
    RpcClient,
};
use dafs_rpc::{AcceptStatus, Rejection, Reply, VersionRange};
use dafs_wire::nfs4::limits::{
    CALLBACK_VERSION, PROCEDURE_CB_COMPOUND, PROCEDURE_CB_NULL, PROCEDURE_COMPOUND, PROCEDURE_NULL,
    PROGRAM, VERSION,
};
use std::net::SocketAddr;
use std::sync::Arc;

/// COMPOUND.
pub(crate) const COMPOUND: Procedure =
    Procedure { program: PROGRAM, version: VERSION, procedure: PROCEDURE_COMPOUND };

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub struct Connection {
    rpc: RpcClient,
    back: Arc<BackChannels>,
}

impl Connection {
    /// Connects to a server as this caller.
    ///
    /// # Errors
    /// [`NfsError::Io`].
    pub fn open(server: SocketAddr, identity: Identity) -> Result<Self, NfsError> {
        Self::open_with(server, Options { identity, ..Options::default() })
    }

    /// Connects to a server with other bounds than the usual ones.
    ///
    /// # Errors
    /// [`NfsError::Io`].
    pub fn open_with(server: SocketAddr, options: Options) -> Result<Self, NfsError> {
        let back = Arc::new(BackChannels::default());
        let rpc = RpcClient::connect(server, options, Some(answers(&back)))?;
        Ok(Self { rpc, back })
    }

    /// Connects to a server over RDMA.
    ///
    /// # Errors
    /// [`NfsError::Io`].
    pub fn open_rdma(port: &Port, server: &Address, options: Options) -> Result<Self, NfsError> {
        let back = Arc::new(BackChannels::default());
        let rpc = RpcClient::connect_rdma(port, server, options, Some(answers(&back)))?;
        Ok(Self { rpc, back })
    }

    /// Connects without a back channel: callbacks are refused, and no thread waits for them.
    ///
    /// # Errors
    /// [`NfsError::Io`].
    pub fn open_one_way(server: SocketAddr, options: Options) -> Result<Self, NfsError> {
        let rpc = RpcClient::connect(server, options, None)?;
        Ok(Self { rpc, back: Arc::new(BackChannels::default()) })
    }

    /// The RPC connection.
    pub fn rpc(&self) -> &RpcClient {
        &self.rpc
    }

    /// Answers callbacks of this session from now on.
    pub fn answer_callbacks(&self, channel: Arc<BackChannel>) {
        self.back.add(channel);
    }

    /// Calls NULL of NFSv4.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn null(&self) -> Result<(), NfsError> {
        self.rpc.call(Procedure { procedure: PROCEDURE_NULL, ..COMPOUND }, &[])?;
        Ok(())
    }

    /// Sends a compound as it is and waits for the answer.
    ///
    /// # Errors
    /// [`NfsError::Call`], [`NfsError::Malformed`].
    pub fn compound(&self, compound: &Compound) -> Result<Results, NfsError> {
        self.submit_compound(compound)?.wait()
    }

    /// Sends a compound as it is.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn submit_compound(&self, compound: &Compound) -> Result<PendingCall, NfsError> {
        self.submit_pieces(&[compound.bytes()])
    }

    /// Sends a compound that lies in several pieces, which are not copied.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn submit_pieces(&self, pieces: &[&[u8]]) -> Result<PendingCall, NfsError> {
        Ok(PendingCall { pending: self.rpc.submit(COMPOUND, pieces)? })
    }

    /// As [`Connection::submit_compound`], but the compound is sent with the next one, or when a
    /// thread waits.
    ///
    /// # Errors
    /// [`NfsError::Call`].
    pub fn queue_compound(&self, compound: &Compound) -> Result<PendingCall, NfsError> {
        Ok(PendingCall { pending: self.rpc.queue(COMPOUND, compound.bytes())? })
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.rpc.close();
    }
}

/// A compound under way.
#[derive(Debug)]
pub struct PendingCall {
    pending: Pending,
}

impl PendingCall {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`NfsError::Call`], [`NfsError::Malformed`].
    pub fn wait(self) -> Result<Results, NfsError> {
        Results::new(self.pending.wait()?)
    }

    /// True when [`PendingCall::wait`] would not block.
    pub fn is_answered(&self) -> bool {
        self.pending.is_answered()
    }
}

/// The handler of the server's calls.
pub(crate) fn answers(back: &Arc<BackChannels>) -> RpcBackHandler {
    let channels = back.clone();
    Box::new(move |request: BackRequest| {
        let answer = call_back(&channels, &request);
        request.answer(answer);
    })
}

/// The answer to a callback.
fn call_back(channels: &BackChannels, request: &BackRequest) -> Result<Reply, Rejection> {
    let called = request.procedure;
    if called.program != CALLBACK_PROGRAM {
        return Err(Rejection::Accept(AcceptStatus::ProgramUnavailable));
    }
    if called.version != CALLBACK_VERSION {
        let range = VersionRange { low: CALLBACK_VERSION, high: CALLBACK_VERSION };
        return Err(Rejection::Accept(AcceptStatus::ProgramMismatch(range)));
    }
    let mut reply = Reply::new();
    match called.procedure {
        PROCEDURE_CB_NULL => {}
        PROCEDURE_CB_COMPOUND => {
            let results = channels
                .answer(&request.args)
                .ok_or(Rejection::Accept(AcceptStatus::GarbageArgs))?;
            reply.encoder().raw(&results);
        }
        _ => return Err(Rejection::Accept(AcceptStatus::ProcedureUnavailable)),
    }
    Ok(reply)
}
