//! Opening a session (DAFS 4.3): connect with authentication, credential, root, limits.
//!
//! Invariants
//! * One request is outstanding until the session is ready.
//! * The server's parameters are checked against those proposed (DAFS 4.4).

use super::auth::{Challenge, Proof};
use super::call::{Purpose, ReplyMessage};
use super::failure::Failure;
use super::recovery::Step;
use super::session::{SessionCore, Stage};
use crate::limits::{AUTH_STEPS_MAX, GROUPS_MAX, LEASE_ASSUMED, TRANSFER_BYTES_MAX};
use dafs_dat::Adapter;
use dafs_wire::dafs::{
    AuthRequest, AuthResult, ClientAuth, ClientConnectAuth, CredHandle, Credential, ErrorBody,
    FsAttrMask, GetFsAttr, GssProcedure, GssService, Outcome, Procedure, RegisterCred, Reply,
    Request, Seq, Status,
};
use std::time::Duration;

impl SessionCore {
    pub(crate) fn send_connect(&mut self, adapter: &mut dyn Adapter) {
        let proof = match self.link.config.authenticator.begin() {
            Ok(proof) => proof,
            Err(reason) => return self.end(adapter, Failure::refused(reason)),
        };
        let auth = match auth_request(&proof) {
            Ok(auth) => auth,
            Err(failure) => return self.end(adapter, failure),
        };
        let config = self.link.config.clone();
        let request = Request::ClientConnectAuth(ClientConnectAuth {
            options: self.link.proposal(),
            fence_id: config.fence_id.as_deref().unwrap_or_default(),
            client_id_string: &config.client_id_string,
            client_verifier: config.client_verifier,
            auth,
        });
        self.send_own(adapter, Purpose::Connect, &request);
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
                self.link.accept_options(&answer)?;
                self.back.agreed = answer.options.use_back_control_channel;
                self.link.info.trusted = answer.trusted;
                self.authenticated(adapter);
            }
            (
                Purpose::Connect,
                Outcome::Error { body: ErrorBody::ClientConnectAuth(answer), .. },
            ) => {
                self.link.accept_options(&answer)?;
                self.back.agreed = answer.options.use_back_control_channel;
                self.next_proof(adapter, &answer.auth)?;
            }
            (Purpose::Authenticate, Outcome::Ok(Reply::ClientAuth(answer))) => {
                self.link.info.trusted = answer.trusted;
                self.authenticated(adapter);
            }
            (Purpose::Authenticate, Outcome::Error { body: ErrorBody::ClientAuth(answer), .. }) => {
                self.next_proof(adapter, &answer.auth)?;
            }
            (Purpose::RegisterCredential, Outcome::Ok(Reply::RegisterCred(answer))) => {
                self.link.cred_handle = answer.cred_handle;
                self.send_own(adapter, Purpose::FindRoot, &Request::GetRootHandle);
            }
            (Purpose::FindRoot, Outcome::Ok(Reply::GetRootHandle(answer))) => {
                self.link.info.root = answer.fh;
                let attributes =
                    FsAttrMask::LEASE_TIME | FsAttrMask::MAX_READ | FsAttrMask::MAX_WRITE;
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

    fn next_proof(
        &mut self,
        adapter: &mut dyn Adapter,
        answer: &AuthResult<'_>,
    ) -> Result<(), Failure> {
        self.link.conn.auth_steps += 1;
        if self.link.conn.auth_steps > AUTH_STEPS_MAX {
            return Err(Failure::refused("authentication does not come to an end"));
        }
        let challenge = match answer {
            AuthResult::Gss { major, minor, token } => {
                Challenge { major: *major, minor: *minor, token: token.to_vec() }
            }
            _ => Challenge::default(),
        };
        let proof = self.link.config.authenticator.next(&challenge).map_err(Failure::refused)?;
        let auth = auth_request(&proof)?;
        self.send_own(adapter, Purpose::Authenticate, &Request::ClientAuth(ClientAuth { auth }));
        Ok(())
    }

    fn authenticated(&mut self, adapter: &mut dyn Adapter) {
        if self.recovery.is_some() {
            self.enter_step(adapter, Step::Check);
        } else if self.link.config.is_data_server {
            self.link.cred_handle = CredHandle::SESSION;
            self.stage = Stage::Ready;
        } else {
            self.meet_server(adapter);
        }
    }

    /// Registers the credential, if there is one and the server trusts the client, and goes on.
    pub(crate) fn meet_server(&mut self, adapter: &mut dyn Adapter) {
        self.link.cred_handle = CredHandle::SESSION;
        match self.link.config.credential.clone() {
            Some(ids) if self.link.info.trusted => {
                let groups = &ids.groups[..ids.groups.len().min(GROUPS_MAX)];
                let credential =
                    Credential::Id { uid: ids.uid, gid: ids.gid, groups: Seq::new(groups) };
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
