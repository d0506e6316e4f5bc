//! Calls of the server over the back-control channel, and their answers.
//!
//! Invariants
//! * Each call has one answer. BC_GETATTR holds a credit until the application has answered; all
//!   others are answered at once.
//! * An unknown call is refused; an invalid message ends the session.

use super::{BackEvent, Phase};
use crate::core::failure::Failure;
use crate::core::session::SessionCore;
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{
    Attributes, BcRecall, ErrorBody, GetAttrInline, GetAttrInlineReply, PROTOCOL_VERSION,
    Procedure, Reply, Request, RequestHeader, ResponseHeader, Status, encode_error,
    encode_response, seal, verify,
};

/// An answer.
enum Said<'a> {
    Yes(Reply<'a>),
    No(Status),
    /// The application answers later.
    Later,
}

impl SessionCore {
    pub(super) fn on_call(
        &mut self,
        adapter: &mut dyn Adapter,
        message: &[u8],
        now: Instant,
    ) -> Result<(), Failure> {
        let header = RequestHeader::decode(message, self.order).map_err(Failure::protocol)?;
        if self.info.checksums && !verify(message) {
            return Err(Failure::corrupt("the checksum of a call does not match its content"));
        }
        if let Some(channel) = self.back.bound() {
            channel.begin(&header)?;
        }
        let since = self.back.recalled_since(self.info.lease, now);
        self.back.heard_at = now;
        let said = match header.known_procedure() {
            _ if header.protocol_version != PROTOCOL_VERSION => Said::No(Status::IllegalProt),
            None => Said::No(Status::NotSupp),
            Some(procedure) => match Request::decode(procedure, message, self.order, 0) {
                Err(error) => Said::No(error.status()),
                Ok(Request::BcNull) => Said::Yes(Reply::BcNull),
                Ok(Request::BcRecall(args)) => self.on_recall(&args, since),
                Ok(Request::BcGetAttr(args)) => self.on_question(&header, &args),
                Ok(Request::BcBatchCompletion(args)) => {
                    self.on_completions(adapter, args.completions, &[], now)?;
                    Said::Yes(Reply::BcBatchCompletion)
                }
                Ok(Request::XBcLayoutRecall(args)) => match &self.back.recalls {
                    Some(recalls) => match recalls.recalled(&args) {
                        Status::Ok => Said::Yes(Reply::XBcLayoutRecall),
                        status => Said::No(status),
                    },
                    None => Said::No(Status::NotFound),
                },
                // The client serves no other procedures.
                Ok(_) => Said::No(Status::NotSupp),
            },
        };
        match said {
            Said::Yes(reply) => self.answer_call(adapter, &header, Ok(&reply)),
            Said::No(status) => self.answer_call(adapter, &header, Err(status)),
            Said::Later => Ok(()),
        }
    }

    /// Posts the receive for the next call, then answers this one.
    fn answer_call(
        &mut self,
        adapter: &mut dyn Adapter,
        header: &RequestHeader,
        said: Result<&Reply<'_>, Status>,
    ) -> Result<(), Failure> {
        let (order, checksums) = (self.order, self.info.checksums);
        // The processing of the call may have ended the channel.
        let Some(channel) = self.back.bound() else { return Ok(()) };
        let answer = ResponseHeader::answering(header, channel.credits());
        let mut message = vec![0; super::MESSAGE_BYTES];
        let encoded = match said {
            Ok(reply) => encode_response(&mut message, order, &answer, reply),
            Err(status) => {
                let answer = answer.with_status(status);
                // The body of a refusal is empty for every procedure.
                encode_error(&mut message, order, &answer, Procedure::BcNull, &ErrorBody::None)
            }
        };
        message.truncate(encoded.map_err(Failure::protocol)?);
        if checksums {
            seal(&mut message);
        }
        channel.end(header);
        channel.post_receive(adapter)?;
        channel.send(adapter, &message)
    }

    /// Processes a recall, which the server may have sent as early as `since`.
    fn on_recall(&mut self, args: &BcRecall, since: Instant) -> Said<'static> {
        let held = &mut self.back.delegations;
        let Some(delegation) = held.find(args.state_id, self.info.client_id) else {
            // The recall may have overtaken the reply that grants the delegation; then the server
            // sends it again.
            return Said::No(Status::BadStateId);
        };
        if held.recall(delegation, since) {
            let truncate = args.truncate;
            self.back.events.push_back(BackEvent::Recall { delegation, truncate });
        }
        Said::Yes(Reply::BcRecall)
    }

    fn on_question(&mut self, header: &RequestHeader, args: &GetAttrInline) -> Said<'static> {
        let held = &self.back.delegations;
        let Some(delegation) = held.of_file(&args.fh, self.info.client_id) else {
            return Said::No(Status::BadHandle);
        };
        self.back.last_question += 1;
        let question = self.back.last_question;
        self.back.questions.push((question, *header, args.attributes));
        self.back.events.push_back(BackEvent::Question { question, delegation });
        Said::Later
    }

    /// Answers a BC_GETATTR with attributes; `None` makes the server recall the delegation. A
    /// question whose channel is gone is dropped.
    pub fn answer_question(
        &mut self,
        adapter: &mut dyn Adapter,
        question: u64,
        answer: Option<&Attributes<'_>>,
    ) {
        let place = self.back.questions.iter().position(|(number, ..)| *number == question);
        let Some(place) = place else { return };
        let (_, header, asked) = self.back.questions.swap_remove(place);
        let result = match answer {
            Some(attributes) => {
                let attributes = attributes.only(asked);
                let reply = Reply::BcGetAttr(GetAttrInlineReply { attributes });
                self.answer_call(adapter, &header, Ok(&reply))
            }
            None => self.answer_call(adapter, &header, Err(Status::BadHandle)),
        };
        if let Err(failure) = result {
            self.back_lost(adapter, failure);
        }
    }

    /// True when batches can be submitted to the server.
    pub(super) fn back_takes_batches(&self) -> bool {
        matches!(&self.back.state, super::State::Open(channel) if channel.phase == Phase::Bound)
    }
}
