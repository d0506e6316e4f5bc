//! Opening a session (DAFS 4.3): connect with authentication, credential, root, limits.
//!
//! Invariants
//! * One request is outstanding until the session is ready.
//! * The server's parameters are checked against those proposed (DAFS 4.4).

use super::auth::{Challenge, Proof};
use super::call::{Purpose, ReplyMessage};
use super::failure::Failure;
use super::session::{SessionCore, Stage};
use crate::limits::{
    AUTH_STEPS_MAX, GROUPS_MAX, LEASE_ASSUMED, MESSAGE_BYTES_MIN, TRANSFER_BYTES_MAX,
};
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{
    AuthRequest, AuthResult, ClientAuth, ClientConnectAuth, ClientConnectAuthReply, CredHandle,
    Credential, ErrorBody, FsAttrMask, GetFsAttr, GssProcedure, GssService, Outcome, Procedure,
    RegisterCred, Reply, Request, Seq, SessionOptions, Status, is_valid_inline_write_header_size,
};
use std::time::Duration;

impl SessionCore {
    /// The credential that requests of a procedure run under.
    pub(crate) fn credential_for(&self, procedure: Procedure) -> CredHandle {
        use dafs_wire::dafs::Class;
        match procedure {
            // These need none (DAFS 12), and a restarted server no longer knows the client's
            // credential.
            Procedure::CheckResponse | Procedure::FetchResponse => CredHandle::SESSION,
            _ if procedure.class() == Class::Special => CredHandle::SESSION,
            _ => self.cred_handle,
        }
    }

    pub(crate) fn send_connect(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        let proof = match self.config.authenticator.begin() {
            Ok(proof) => proof,
            Err(reason) => return self.end(adapter, Failure::refused(reason)),
        };
        let auth = match auth_request(&proof) {
            Ok(auth) => auth,
            Err(failure) => return self.end(adapter, failure),
        };
        let config = self.config.clone();
        let request = Request::ClientConnectAuth(ClientConnectAuth {
            options: self.proposal(),
            fence_id: config.fence_id.as_deref().unwrap_or_default(),
            client_id_string: &config.client_id_string,
            client_verifier: config.client_verifier,
            auth,
        });
        self.send_own(adapter, now, Purpose::Connect, &request);
    }

    fn proposal(&self) -> SessionOptions {
        SessionOptions {
            use_checksums: self.config.checksums,
            use_response_cache: self.config.recovery.is_some(),
            max_credentials: 0,
            max_request_size: self.conn.sends.message_bytes() as u32,
            max_response_size: self.conn.receives.message_bytes() as u32,
            max_requests: self.config.requests.into(),
            inline_write_header_size: self.config.inline_write_header_bytes,
            // The channel is made only when it is needed.
            use_back_control_channel: !self.config.is_data_server,
            use_rdma_read_channel: false,
        }
    }

    /// Processes the answer to one step and goes on to the next.
    pub(crate) fn on_opening_reply(
        &mut self,
        adapter: &mut dyn Adapter,
        purpose: Purpose,
        reply: &ReplyMessage,
        now: Instant,
    ) -> Result<(), Failure> {
        if reply.status == Status::IllegalProt {
            return Err(Failure::refused("the server does not speak DAFS version 1"));
        }
        let outcome = reply.decode().map_err(Failure::protocol)?;
        match (purpose, outcome) {
            (Purpose::Connect, Outcome::Ok(Reply::ClientConnectAuth(answer))) => {
                self.accept_options(&answer)?;
                self.info.trusted = answer.trusted;
                self.authenticated(adapter, now);
            }
            (
                Purpose::Connect,
                Outcome::Error { body: ErrorBody::ClientConnectAuth(answer), .. },
            ) => {
                self.accept_options(&answer)?;
                self.next_proof(adapter, &answer.auth, now)?;
            }
            (Purpose::Authenticate, Outcome::Ok(Reply::ClientAuth(answer))) => {
                self.info.trusted = answer.trusted;
                self.authenticated(adapter, now);
            }
            (Purpose::Authenticate, Outcome::Error { body: ErrorBody::ClientAuth(answer), .. }) => {
                self.next_proof(adapter, &answer.auth, now)?;
            }
            (Purpose::RegisterCredential, Outcome::Ok(Reply::RegisterCred(answer))) => {
                self.cred_handle = answer.cred_handle;
                self.send_own(adapter, now, Purpose::FindRoot, &Request::GetRootHandle);
            }
            (Purpose::FindRoot, Outcome::Ok(Reply::GetRootHandle(answer))) => {
                self.info.root = answer.fh;
                let attributes =
                    FsAttrMask::LEASE_TIME | FsAttrMask::MAX_READ | FsAttrMask::MAX_WRITE;
                let request = Request::GetFsAttr(GetFsAttr { fh: answer.fh, attributes });
                self.send_own(adapter, now, Purpose::AskLimits, &request);
            }
            (Purpose::AskLimits, Outcome::Ok(Reply::GetFsAttr(answer))) => {
                let found = &answer.attributes;
                let limit = |stated: Option<u64>| match stated {
                    Some(0) | None => TRANSFER_BYTES_MAX,
                    Some(bytes) => bytes.min(TRANSFER_BYTES_MAX),
                };
                self.info.read_bytes_max = limit(found.max_read);
                self.info.write_bytes_max = limit(found.max_write);
                self.info.lease = match found.lease_time {
                    Some(0) | None => LEASE_ASSUMED,
                    Some(seconds) => Duration::from_secs(seconds.into()),
                };
                if self.recovery.is_some() {
                    self.on_server_known(adapter, now);
                } else {
                    self.stage = Stage::Ready;
                }
            }
            (_, Outcome::Error { status, .. }) => {
                let refusal = refusal(purpose, reply.procedure, status);
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

    /// Checks the parameters in the server's answer.
    fn accept_options(&mut self, answer: &ClientConnectAuthReply<'_>) -> Result<(), Failure> {
        let options = &answer.options;
        let size = |what: &str, stated: u32, ours: usize| {
            if (MESSAGE_BYTES_MIN as usize..=ours).contains(&(stated as usize)) {
                return Ok(stated);
            }
            Err(Failure::refused(format_args!(
                "the server wants {what} of {stated} bytes where {MESSAGE_BYTES_MIN} to {ours} \
                 were offered"
            )))
        };
        if self.config.checksums && !options.use_checksums {
            return Err(Failure::refused(
                "the server does not do the checksums that were asked for",
            ));
        }
        let padding = options.inline_write_header_size;
        if !is_valid_inline_write_header_size(padding) {
            return Err(Failure::protocol(format_args!("inline_write_header_size is {padding}")));
        }
        let requests = u16::try_from(options.max_requests).unwrap_or(u16::MAX);
        if requests == 0 {
            return Err(Failure::protocol("the server grants no credit"));
        }
        self.info.request_bytes =
            size("requests", options.max_request_size, self.conn.sends.message_bytes())?;
        self.info.response_bytes =
            size("responses", options.max_response_size, self.conn.receives.message_bytes())?;
        self.info.session_id = answer.session_id;
        self.info.client_id = answer.client_id;
        self.info.checksums = options.use_checksums;
        self.back.agreed(options.use_back_control_channel);
        // Only the credits in headers count: a server may agree to many requests and grant one
        // until the client has authenticated.
        self.info.requests = requests;
        self.info.inline_write_header_bytes = padding;
        self.scratch.resize(self.info.request_bytes as usize, 0);
        Ok(())
    }

    fn next_proof(
        &mut self,
        adapter: &mut dyn Adapter,
        answer: &AuthResult<'_>,
        now: Instant,
    ) -> Result<(), Failure> {
        self.conn.auth_steps += 1;
        if self.conn.auth_steps > AUTH_STEPS_MAX {
            return Err(Failure::refused("authentication does not come to an end"));
        }
        let challenge = match answer {
            AuthResult::Gss { major, minor, token } => {
                Challenge { major: *major, minor: *minor, token: token.to_vec() }
            }
            _ => Challenge::default(),
        };
        let proof = self.config.authenticator.next(&challenge).map_err(Failure::refused)?;
        let auth = auth_request(&proof)?;
        self.send_own(
            adapter,
            now,
            Purpose::Authenticate,
            &Request::ClientAuth(ClientAuth { auth }),
        );
        Ok(())
    }

    fn authenticated(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if self.recovery.is_some() {
            self.on_known_again(adapter, now);
        } else if self.config.is_data_server {
            self.cred_handle = CredHandle::SESSION;
            self.stage = Stage::Ready;
        } else {
            self.meet_server(adapter, now);
        }
    }

    /// Registers the credential, if there is one and the server trusts the client, and goes on.
    pub(crate) fn meet_server(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.cred_handle = CredHandle::SESSION;
        match self.config.credential.clone() {
            Some(ids) if self.info.trusted => {
                let groups = &ids.groups[..ids.groups.len().min(GROUPS_MAX)];
                let credential =
                    Credential::Id { uid: ids.uid, gid: ids.gid, groups: Seq::new(groups) };
                let request = Request::RegisterCred(RegisterCred { credential });
                self.send_own(adapter, now, Purpose::RegisterCredential, &request);
            }
            _ => self.send_own(adapter, now, Purpose::FindRoot, &Request::GetRootHandle),
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

/// The reason why the session could not be opened, with the remedy.
fn refusal(purpose: Purpose, procedure: Procedure, status: Status) -> Failure {
    let remedy = match (purpose, status) {
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
