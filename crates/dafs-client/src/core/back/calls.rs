//! What the server calls for, and the answers.
//!
//! Invariants
//! * Each call has one answer. All but questions about attributes are answered at once; those hold a
//!   credit until the application has answered.
//! * An unknown call is refused; a message that is none ends the session.

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
    /// Not yet.
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
                // The client has nothing to offer but these.
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
        // What was called for may have ended the channel.
        let Some(channel) = self.back.bound() else { return Ok(()) };
        let answer = ResponseHeader::answering(header, channel.credits());
        let mut message = vec![0; super::MESSAGE_BYTES];
        let encoded = match said {
            Ok(reply) => encode_response(&mut message, order, &answer, reply),
            Err(status) => {
                let answer = answer.with_status(status);
                // The body of a refusal is empty whatever was asked.
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

    /// The server has called for it `since` then at the earliest.
    fn on_recall(&mut self, args: &BcRecall, since: Instant) -> Said<'static> {
        let held = &mut self.back.delegations;
        let Some(delegation) = held.find(args.state_id, self.info.client_id) else {
            // It may have overtaken the reply that grants it; then it comes again.
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

    /// Answers a question of the server's with what is asked of `answer`; `None` makes it recall the
    /// delegation. A question that the channel has not survived is no longer of interest.
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

    /// True when batches can be handed to the server.
    pub(super) fn back_takes_batches(&self) -> bool {
        matches!(&self.back.state, super::State::Open(channel) if channel.phase == Phase::Bound)
    }
}
