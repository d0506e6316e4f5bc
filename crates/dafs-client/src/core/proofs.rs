//! The proofs of a session: the one that opens it, and those that follow before it ends (DAFS 4.3, 4.5).
//!
//! Invariants
//! * One exchange is under way at a time, besides those of further channels.
//! * A server that does not prove its own identity, where the mechanism has that, gets no request.
//! * A proof that is bound to a connection is sent on that one alone.
//! * No password leaves this host in clear text, unless the configuration allows it.
//! * No proof whose making may wait for other machines is made here, where the session is locked.
//! * A renewal that fails is repeated until one succeeds. The session goes on meanwhile, for as long as the server
//!   accepts the last proof.

use super::auth::{Authenticator, Challenge, Exchange, Proof, Proven};
use super::call::{Purpose, ReplyMessage};
use super::config::SessionConfig;
use super::failure::Failure;
use super::opening::auth_request;
use super::session::{SessionCore, Stage};
use crate::limits::{AUTH_STEPS_MAX, RENEWAL_MARGIN_MAX, RENEWAL_PAUSE};
use dafs_dat::{Adapter, EndpointId, Instant};
use dafs_wire::dafs::{AuthResult, ClientAuth, ErrorBody, Outcome, Reply, Request, Status};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A run of a mechanism.
pub(crate) struct Run(pub(crate) Box<dyn Exchange>);

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Run")
    }
}

/// The state of the proofs of a session.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    /// The exchange under way.
    run: Option<Run>,
    /// The first proof, which was too long for the first message.
    pub(super) held: Option<Proof>,
    /// The time of the next renewal, if the last proof ends.
    renew_at: Option<Instant>,
    /// A renewal is being prepared, or has been sent.
    renewing: bool,
    opening: Awaited,
}

/// The wait of a connection for its first proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Awaited {
    /// It has one, or there is no connection.
    #[default]
    Over,
    /// The driver has to be asked for one.
    Wanted,
    /// The driver has one made.
    UnderWay,
}

/// The protection of a connection, as far as proofs depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProofChannel {
    /// The channel binding (RFC 9266): a proof with it is of no use on another connection.
    binding: Option<Box<[u8]>>,
    /// No other host reads what the connection carries.
    is_protected: bool,
}

impl ProofChannel {
    /// The protection of a connection of `adapter`.
    pub(crate) fn of(adapter: &dyn Adapter, endpoint: Option<EndpointId>) -> Self {
        let peer = endpoint.and_then(|endpoint| adapter.peer(endpoint)).unwrap_or_default();
        Self { binding: peer.binding().map(Box::from), is_protected: peer.is_protected() }
    }

    /// Refuses a password that other hosts could read.
    pub(super) fn check(&self, proof: &Proof, config: &SessionConfig) -> Result<(), String> {
        let is_allowed = self.is_protected || config.clear_passwords;
        match proof {
            Proof::Text { .. } if !is_allowed => {
                Err("this client sends no password in clear text \
                 over the network; use dafss:// or sec=gss, or allow it by \
                 danger-clear-passwords=yes in the URL"
                    .to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// A proof that is due, on a connection.
pub struct ProofOrder {
    authenticator: Arc<dyn Authenticator>,
    channel: ProofChannel,
}

/// The first proof of an exchange that was begun elsewhere, or the reason why there is none.
pub struct Prepared {
    made: Result<(Box<dyn Exchange>, Proof), String>,
    channel: ProofChannel,
}

impl ProofOrder {
    pub(super) fn new(authenticator: &Arc<dyn Authenticator>, channel: &ProofChannel) -> Self {
        Self { authenticator: authenticator.clone(), channel: channel.clone() }
    }

    /// Begins an exchange and makes its first proof. That may wait for other machines.
    pub fn prepare(&self) -> Prepared {
        let made = self.authenticator.start(self.channel.binding.as_deref());
        let made = made.and_then(|mut exchange| {
            let proof = exchange.prove(None)?;
            Ok((exchange, proof))
        });
        Prepared { made, channel: self.channel.clone() }
    }

    /// There is no proof, for this reason.
    pub fn refuse(&self, reason: String) -> Prepared {
        Prepared { made: Err(reason), channel: self.channel.clone() }
    }
}

impl Prepared {
    /// The proof, if it may be sent on this connection.
    pub(super) fn checked(
        self,
        channel: &ProofChannel,
        config: &SessionConfig,
    ) -> Result<(Box<dyn Exchange>, Proof), String> {
        let (exchange, proof) = self.made?;
        channel.check(&proof, config)?;
        Ok((exchange, proof))
    }
}

/// The server's answer, for the mechanism.
pub(super) fn challenge_of(answer: &AuthResult<'_>) -> Challenge {
    match answer {
        AuthResult::Gss { major, minor, token } => {
            Challenge { major: *major, minor: *minor, token: token.to_vec() }
        }
        _ => Challenge::default(),
    }
}

/// The time of a renewal, from the time that is left.
fn renewal_after(left: Duration) -> Duration {
    let margin = (left / 4).min(RENEWAL_MARGIN_MAX);
    (left - margin).max(RENEWAL_PAUSE)
}

impl SessionCore {
    /// Opens the session on a connection, at once or when the driver has had a proof made.
    pub(super) fn open(&mut self, adapter: &mut dyn Adapter) {
        self.proofs = Proofs::default();
        self.link.conn.channel = ProofChannel::of(adapter, self.link.conn.endpoint);
        if self.link.config.authenticator.may_wait() {
            self.proofs.opening = Awaited::Wanted;
        } else {
            self.open_with(adapter, self.order().prepare());
        }
    }

    /// A proof for the operation channel.
    fn order(&self) -> ProofOrder {
        ProofOrder::new(&self.link.config.authenticator, &self.link.conn.channel)
    }

    fn open_with(&mut self, adapter: &mut dyn Adapter, prepared: Prepared) {
        self.proofs.opening = Awaited::Over;
        match prepared.checked(&self.link.conn.channel, &self.link.config) {
            Ok((exchange, proof)) => {
                self.proofs.run = Some(Run(exchange));
                self.send_connect(adapter, proof);
            }
            // Where proofs come from may be out of reach for a while, too.
            Err(reason) if self.recovery.is_some() => self.fail(adapter, Failure::lost(reason)),
            Err(reason) => self.end(adapter, Failure::refused(reason)),
        }
    }

    /// The next proof of the exchange under way.
    pub(super) fn further_proof(&mut self, answer: &AuthResult<'_>) -> Result<Proof, Failure> {
        self.link.conn.auth_steps += 1;
        if self.link.conn.auth_steps > AUTH_STEPS_MAX {
            return Err(Failure::refused("authentication does not come to an end"));
        }
        let run = self.proofs.run.as_mut();
        let run = run.ok_or_else(|| Failure::protocol("the server asks for more than nothing"))?;
        let proof = run.0.prove(Some(&challenge_of(answer))).map_err(Failure::refused)?;
        let checked = self.link.conn.channel.check(&proof, &self.link.config);
        checked.map(|()| proof).map_err(Failure::refused)
    }

    /// The server has accepted the proof.
    pub(super) fn proved(&mut self, answer: &AuthResult<'_>) -> Result<(), Failure> {
        self.link.conn.auth_steps = 0;
        let Some(mut run) = self.proofs.run.take() else { return Ok(()) };
        let proven = run.0.accepted(&challenge_of(answer)).map_err(Failure::refused)?;
        self.proofs.renewing = false;
        self.proofs.renew_at = proven.left.map(|left| self.link.now + renewal_after(left));
        self.link.info.proven = Proven { left: None, ..proven };
        Ok(())
    }

    /// The time at which a proof is due, for a connection that waits for one, or for a renewal: then
    /// [`begin_proof`](Self::begin_proof) has work.
    pub fn proof_due_at(&self) -> Option<Instant> {
        match (self.stage, self.proofs.opening) {
            (Stage::Opening | Stage::Recovering, Awaited::Wanted) => Some(self.link.now),
            (Stage::Ready | Stage::Closing, _)
                if [self.back.proof, self.optimistic.proof].contains(&Awaited::Wanted) =>
            {
                Some(self.link.now)
            }
            (Stage::Ready, _) => self.proofs.renew_at.filter(|_| !self.proofs.renewing),
            _ => None,
        }
    }

    /// Begins a proof that is due. The caller makes it where that may wait, and hands it to
    /// [`give_proof`](Self::give_proof).
    pub fn begin_proof(&mut self, now: Instant) -> Option<ProofOrder> {
        self.proof_due_at().filter(|at| *at <= now)?;
        match (self.proofs.opening, self.back.proof, self.optimistic.proof) {
            (Awaited::Wanted, ..) => self.proofs.opening = Awaited::UnderWay,
            (_, Awaited::Wanted, _) => {
                self.back.proof = Awaited::UnderWay;
                let channel = self.back.proof_channel();
                return Some(ProofOrder::new(&self.link.config.authenticator, &channel));
            }
            (.., Awaited::Wanted) => {
                self.optimistic.proof = Awaited::UnderWay;
                let channel = self.optimistic.proof_channel();
                return Some(ProofOrder::new(&self.link.config.authenticator, &channel));
            }
            _ => self.proofs.renewing = true,
        }
        Some(self.order())
    }

    /// Sends a prepared proof on the connection for which it was made. Several may be under way, and
    /// one without a channel binding serves for any of them. A proof for a connection that is gone is
    /// dropped; a session that opens then has another one made.
    pub fn give_proof(&mut self, adapter: &mut dyn Adapter, prepared: Prepared, now: Instant) {
        self.link.now = now;
        let is_for = |channel: &ProofChannel| prepared.channel == *channel;
        let is_due =
            |proof: Awaited, channel: &ProofChannel| proof == Awaited::UnderWay && is_for(channel);
        let (is_for_own, is_for_back, is_for_optimistic) = (
            is_for(&self.link.conn.channel),
            is_due(self.back.proof, &self.back.proof_channel()),
            is_due(self.optimistic.proof, &self.optimistic.proof_channel()),
        );
        let is_renewing = self.proofs.renewing && self.proofs.run.is_none();
        match self.stage {
            Stage::Opening | Stage::Recovering
                if self.proofs.opening != Awaited::Over && self.link.conn.established =>
            {
                match is_for_own {
                    true => self.open_with(adapter, prepared),
                    false => self.proofs.opening = Awaited::Wanted,
                }
            }
            Stage::Ready | Stage::Closing if is_for_back => self.bind_back(adapter, prepared),
            Stage::Ready | Stage::Closing if is_for_optimistic => {
                self.bind_optimistic(adapter, prepared);
            }
            Stage::Ready if is_renewing && is_for_own => self.renew(adapter, prepared),
            _ => {}
        }
    }

    /// Binds the channel with a proof that was prepared.
    pub(super) fn bind_back(&mut self, adapter: &mut dyn Adapter, prepared: Prepared) {
        let bound = self.back.bind(&self.link, adapter, prepared);
        if matches!(bound, Ok(false)) && self.back.batches.has_lent() {
            // The server may still write to the memory of a batch, and only a new session stops it.
            let why = "the proof of identity is too long to bind the back-control channel again";
            return self.fail(adapter, Failure::lost(why));
        }
        let result = bound.map(|fits| {
            if !fits {
                self.refuse_back(adapter, Status::TooSmall);
            }
        });
        self.go_on_with_back(adapter, result);
    }

    fn renew(&mut self, adapter: &mut dyn Adapter, prepared: Prepared) {
        let (exchange, proof) = match prepared.checked(&self.link.conn.channel, &self.link.config) {
            Ok(prepared) => prepared,
            Err(reason) => return self.renew_later(&reason),
        };
        if !self.link.conn.has_room() {
            return self.renew_later(&"the session is busy");
        }
        self.proofs.run = Some(Run(exchange));
        self.send_renewal(adapter, &proof);
    }

    fn send_renewal(&mut self, adapter: &mut dyn Adapter, proof: &Proof) {
        match auth_request(proof) {
            Ok(auth) => {
                let request = Request::ClientAuth(ClientAuth { auth });
                self.send_own(adapter, Purpose::Renew, &request);
            }
            Err(failure) => self.renew_later(&failure),
        }
    }

    fn renew_later(&mut self, reason: &dyn fmt::Display) {
        tracing::warn!(%reason, "the proof of identity was not renewed");
        self.link.conn.auth_steps = 0;
        self.proofs.run = None;
        self.proofs.renewing = false;
        self.proofs.renew_at = Some(self.link.now + RENEWAL_PAUSE);
    }

    /// Processes the answer to a renewal.
    pub(super) fn on_renewal_reply(
        &mut self,
        adapter: &mut dyn Adapter,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        match reply.decode().map_err(Failure::protocol)? {
            Outcome::Ok(Reply::ClientAuth(answer)) => {
                self.link.info.trusted = answer.trusted;
                self.proved(&answer.auth)
            }
            Outcome::Error {
                status: Status::GssContinueInit,
                body: ErrorBody::ClientAuth(answer),
            } => {
                match self.further_proof(&answer.auth) {
                    Ok(proof) => self.send_renewal(adapter, &proof),
                    Err(failure) => self.renew_later(&failure),
                }
                Ok(())
            }
            Outcome::Error { status, .. } => {
                self.renew_later(&status);
                Ok(())
            }
            Outcome::Ok(_) => Err(Failure::protocol("an answer of another procedure")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_renewed_before_its_end_and_not_all_the_time() {
        let seconds = |left| renewal_after(Duration::from_secs(left)).as_secs();
        assert_eq!(seconds(36_000), 36_000 - 600);
        assert_eq!(seconds(600), 450);
        assert_eq!(seconds(60), 45);
        assert_eq!([seconds(7), seconds(0)], [30; 2]);
    }
}
