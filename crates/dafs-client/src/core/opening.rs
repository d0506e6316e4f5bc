//! Opening a session (DAFS 4.3): connect with authentication, credential, root, limits.
//!
//! Invariants
//! * One request is outstanding until the session is ready.
//! * The server's parameters are checked against those proposed (DAFS 4.4).

use super::auth::Proof;
use super::call::{Purpose, ReplyMessage};
use super::failure::Failure;
use super::recovery::Step;
use super::session::{SessionCore, Stage};
use crate::limits::{FIRST_MESSAGE_BYTES, LEASE_ASSUMED, TRANSFER_BYTES_MAX};
use dafs_dat::Adapter;
use dafs_wire::dafs::{
    AuthRequest, AuthResult, ClientAuth, ClientAuthReply, ClientConnect, ClientConnectAuth,
    ClientConnectAuthReply, ClientId, Credential, ErrorBody, FsAttrMask, GetFsAttr, GssProcedure,
    GssService, HEADER_BYTES, Outcome, Procedure, RegisterCred, Reply, Request, Seq, SessionId,
    SessionOptions, Status,
};
use std::time::Duration;

/// Bytes of CLIENT_CONNECT_AUTH besides its names and token: the header, the fixed section, a count of 8 bytes
/// before each of the three, and up to 7 bytes of padding behind it.
const CONNECT_MESSAGE_BYTES: usize = HEADER_BYTES + 72 + 3 * 16;

/// The same of CLIENT_AUTH.
const AUTH_MESSAGE_BYTES: usize = HEADER_BYTES + 16 + 16;

impl SessionCore {
    /// Begins the session with the first proof.
    pub(super) fn send_connect(&mut self, adapter: &mut dyn Adapter, proof: Proof) {
        let auth = match auth_request(&proof) {
            Ok(auth) => auth,
            Err(failure) => return self.end(adapter, failure),
        };
        let config = self.link.config.clone();
        let (fence_id, options) = (config.fence_id.as_deref(), self.link.proposal());
        let (fence_id, client_id_string) =
            (fence_id.unwrap_or_default(), &*config.client_id_string);
        let client_verifier = config.client_verifier;
        if is_long(&proof, fence_id, client_id_string) {
            // The answer says how long the message with the proof may be.
            let request = ClientConnect { options, fence_id, client_id_string, client_verifier };
            self.send_own(adapter, Purpose::Connect, &Request::ClientConnect(request));
            self.proofs.held = Some(proof);
            return;
        }
        let request =
            ClientConnectAuth { options, fence_id, client_id_string, client_verifier, auth };
        self.send_own(adapter, Purpose::Connect, &Request::ClientConnectAuth(request));
    }

    /// Processes the answer to one step and goes on to the next.
    pub(crate) fn on_opening_reply(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        if reply.status == Status::IllegalProt {
            return Err(Failure::refused("the server does not speak DAFS version 1"));
        }
        let outcome = reply.decode().map_err(Failure::protocol)?;
        match (purpose, outcome) {
            (Purpose::Connect, Outcome::Ok(Reply::ClientConnectAuth(answer))) => {
                self.begin_session(&answer.options, (answer.session_id, answer.client_id))?;
                self.authenticated(adapter, &answer.auth, answer.trusted)?;
            }
            (Purpose::Connect, Outcome::Ok(Reply::ClientConnect(answer))) => {
                self.begin_session(&answer.options, (answer.session_id, answer.client_id))?;
                let proof = self.proofs.held.take();
                let proof = proof.ok_or_else(|| Failure::protocol("no proof is held back"))?;
                self.send_proof(adapter, &proof)?;
            }
            (
                Purpose::Connect,
                Outcome::Error {
                    status: Status::GssContinueInit,
                    body: ErrorBody::ClientConnectAuth(answer),
                },
            ) => {
                self.begin_session(&answer.options, (answer.session_id, answer.client_id))?;
                self.next_proof(adapter, &answer.auth)?;
            }
            (Purpose::Authenticate, Outcome::Ok(Reply::ClientAuth(answer))) => {
                self.authenticated(adapter, &answer.auth, answer.trusted)?;
            }
            (
                Purpose::Authenticate,
                Outcome::Error {
                    status: Status::GssContinueInit,
                    body: ErrorBody::ClientAuth(answer),
                },
            ) => {
                self.next_proof(adapter, &answer.auth)?;
            }
            (Purpose::RegisterCredential, Outcome::Ok(Reply::RegisterCred(answer))) => {
                if let Some(own) = self.link.users.own().cloned() {
                    self.link.users.registered(own, answer.cred_handle);
                }
                self.send_own(adapter, Purpose::FindRoot, &Request::GetRootHandle);
            }
            (Purpose::FindRoot, Outcome::Ok(Reply::GetRootHandle(answer))) => {
                self.link.info.root = answer.fh;
                // The attributes that it supports say which extensions it has.
                let attributes = FsAttrMask::LEASE_TIME
                    | FsAttrMask::SUPPORTED_FSATTR
                    | FsAttrMask::MAX_READ
                    | FsAttrMask::MAX_WRITE;
                let request = Request::GetFsAttr(GetFsAttr { fh: answer.fh, attributes });
                self.send_own(adapter, Purpose::AskLimits, &request);
            }
            (Purpose::AskLimits, Outcome::Ok(Reply::GetFsAttr(answer))) => {
                let found = &answer.attributes;
                let limit = |stated: Option<u64>| match stated {
                    Some(0) | None => TRANSFER_BYTES_MAX,
                    Some(bytes) => bytes.min(TRANSFER_BYTES_MAX),
                };
                self.link.info.read_bytes_max = limit(found.max_read);
                self.link.info.write_bytes_max = limit(found.max_write);
                let supported = FsAttrMask(found.supported_fsattr.unwrap_or(0));
                self.link.info.cancels = supported.contains(FsAttrMask::X_CANCEL);
                self.link.info.completes = supported.contains(FsAttrMask::X_RECLAIM_COMPLETE);
                self.link.info.lease = match found.lease_time {
                    Some(0) | None => LEASE_ASSUMED,
                    Some(seconds) => Duration::from_secs(seconds.into()),
                };
                if self.recovery.is_some() {
                    self.enter_step(adapter, Step::Opens);
                } else {
                    self.stage = Stage::Ready;
                }
            }
            (_, Outcome::Error { status, body }) => {
                let refusal = refusal(purpose, reply.procedure, status, &body);
                let passing = matches!(status, Status::Delay | Status::Grace | Status::Resource);
                return Err(match refusal {
                    // A server that has just restarted may not be ready yet.
                    Failure::Refused(reason) if passing && self.recovery.is_some() => {
                        Failure::Lost(reason)
                    }
                    refusal => refusal,
                });
            }
            (_, Outcome::Ok(_)) => {
                return Err(Failure::protocol("an answer of another procedure"));
            }
        }
        Ok(())
    }

    fn next_proof(
        &mut self,
        adapter: &mut dyn Adapter,
        answer: &AuthResult<'_>,
    ) -> Result<(), Failure> {
        let proof = self.further_proof(answer)?;
        self.send_proof(adapter, &proof)
    }

    fn send_proof(&mut self, adapter: &mut dyn Adapter, proof: &Proof) -> Result<(), Failure> {
        let auth = auth_request(proof)?;
        if let AuthRequest::Gss { token, .. } = auth
            && token.len() + AUTH_MESSAGE_BYTES > self.link.info.request_bytes as usize
        {
            return Err(Failure::refused(format_args!(
                "a ticket of {} bytes is too long for this server; ask its operator for longer messages, or the \
                 operator of the realm for tickets without authorisation data",
                token.len()
            )));
        }
        self.send_own(adapter, Purpose::Authenticate, &Request::ClientAuth(ClientAuth { auth }));
        Ok(())
    }

    fn begin_session(
        &mut self,
        options: &SessionOptions,
        ids: (SessionId, ClientId),
    ) -> Result<(), Failure> {
        self.link.accept_options(options, ids)?;
        self.back.agreed = options.use_back_control_channel;
        Ok(())
    }

    fn authenticated(
        &mut self,
        adapter: &mut dyn Adapter,
        answer: &AuthResult<'_>,
        trusted: bool,
    ) -> Result<(), Failure> {
        self.proved(answer)?;
        self.link.info.trusted = trusted;
        // Data servers judge no users.
        self.link.users.trust(trusted && !self.link.config.is_data_server);
        if self.recovery.is_some() {
            self.enter_step(adapter, Step::Check);
        } else if self.link.config.is_data_server {
            self.stage = Stage::Ready;
        } else {
            self.meet_server(adapter);
        }
        Ok(())
    }

    /// Registers the credential, if there is one and the server trusts the client, and goes on.
    pub(crate) fn meet_server(&mut self, adapter: &mut dyn Adapter) {
        match self.link.users.own().cloned() {
            Some(own) if self.link.info.trusted => {
                let ids = own.ids();
                let groups = Seq::new(&ids.groups[..]);
                let credential = Credential::Id { uid: ids.uid, gid: ids.gid, groups };
                let request = Request::RegisterCred(RegisterCred { credential });
                self.send_own(adapter, Purpose::RegisterCredential, &request);
            }
            _ => self.send_own(adapter, Purpose::FindRoot, &Request::GetRootHandle),
        }
    }
}

pub(super) fn auth_request(proof: &Proof) -> Result<AuthRequest<'_>, Failure> {
    Ok(match proof {
        Proof::None => AuthRequest::None,
        Proof::Text { id, password } => AuthRequest::Text { id, password },
        Proof::Gss { procedure, service, token } => AuthRequest::Gss {
            procedure: GssProcedure::from_u32(*procedure)
                .ok_or_else(|| Failure::refused("the mechanism names an unknown GSS step"))?,
            service: GssService::from_u32(*service)
                .ok_or_else(|| Failure::refused("the mechanism names an unknown GSS service"))?,
            token,
        },
    })
}

/// True if a proof by GSS does not fit the first message.
fn is_long(proof: &Proof, fence_id: &[u8], client_id: &[u8]) -> bool {
    let Proof::Gss { token, .. } = proof else { return false };
    token.len() + fence_id.len() + client_id.len() + CONNECT_MESSAGE_BYTES > FIRST_MESSAGE_BYTES
}

/// The numbers of GSS in a refusal.
fn gss_status(body: &ErrorBody<'_>) -> Option<(u32, u32)> {
    let (ErrorBody::ClientAuth(ClientAuthReply { auth, .. })
    | ErrorBody::ClientConnectAuth(ClientConnectAuthReply { auth, .. })) = body
    else {
        return None;
    };
    match auth {
        AuthResult::Gss { major, minor, .. } => Some((*major, *minor)),
        _ => None,
    }
}

/// The reason why the session could not be opened, with the remedy.
fn refusal(
    purpose: Purpose,
    procedure: Procedure,
    status: Status,
    body: &ErrorBody<'_>,
) -> Failure {
    if let (Status::NotAuthorized, Some((major, minor))) = (status, gss_status(body)) {
        return Failure::refused(format_args!(
            "{} failed: {status}: the server refuses the ticket (major {major:#x}, minor {}); the log of the \
             server has the reason",
            procedure.name(),
            minor.cast_signed()
        ));
    }
    let remedy = match (purpose, status) {
        (_, Status::WrongSec) => {
            "; the export demands Kerberos: add ?sec=gss to the URL. Flavours that protect the data (krb5i, krb5p) \
             are for shared memory alone"
        }
        (Purpose::Connect | Purpose::Authenticate, Status::NotSupp) => {
            "; the server does not accept this kind of proof on this channel"
        }
        (Purpose::Connect | Purpose::Authenticate, Status::NotAuthorized | Status::Acces) => {
            "; check user name and password, or ask the server's operator to trust this host"
        }
        (Purpose::Connect | Purpose::Authenticate, Status::Resource | Status::Delay) => {
            "; try again later"
        }
        (Purpose::Connect, Status::ClIdInUse) => {
            "; another user has connected under the same client id, choose another"
        }
        (_, Status::Fenced) => {
            "; somebody has fenced this node off: have it put on the list with dafs fence add"
        }
        (Purpose::RegisterCredential, _) => "; the server refuses these user and group numbers",
        _ => "",
    };
    Failure::refused(format_args!("{} failed: {status}{remedy}", procedure.name()))
}
