//! Calls of the server over the back-control channel, and their answers.
//!
//! Invariants
//! * Each call has one answer. BC_GETATTR holds a credit until the application has answered; all
//!   others are answered at once.
//! * An unknown call is refused; an invalid message ends the session.

use super::{Back, BackEvent, Delegations};
use crate::core::calls::Calls;
use crate::core::failure::Failure;
use crate::core::link::Link;
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{
    Attributes, BcRecall, ClientId, ErrorBody, GetAttrInline, GetAttrInlineReply, PROTOCOL_VERSION,
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

impl Back {
    pub(super) fn on_call(
        &mut self,
        link: &mut Link,
        calls: &mut Calls,
        adapter: &mut dyn Adapter,
        message: &[u8],
    ) -> Result<(), Failure> {
        let header = RequestHeader::decode(message, link.order).map_err(Failure::protocol)?;
        if link.info.checksums && !verify(message) {
            return Err(Failure::corrupt("the checksum of a call does not match its content"));
        }
        if let Some(channel) = self.bound() {
            channel.begin(&header)?;
        }
        let since = self.recalled_since(&calls.delegations, link.info.lease, link.now);
        self.heard_at = link.now;
        let (server, held) = (link.info.client_id, &mut calls.delegations);
        let said = match header.known_procedure() {
            _ if header.protocol_version != PROTOCOL_VERSION => Said::No(Status::IllegalProt),
            None => Said::No(Status::NotSupp),
            Some(procedure) => match Request::decode(procedure, message, link.order, 0) {
                Err(error) => Said::No(error.status()),
                Ok(Request::BcNull) => Said::Yes(Reply::BcNull),
                Ok(Request::BcRecall(args)) => held.on_recall(&args, server, since),
                Ok(Request::BcGetAttr(args)) => self.on_question(held, server, &header, &args),
                Ok(Request::BcBatchCompletion(args)) => {
                    self.on_completions(link, calls, adapter, args.completions, &[])?;
                    Said::Yes(Reply::BcBatchCompletion)
                }
                Ok(Request::XBcLayoutRecall(args)) => match &self.recalls {
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
            Said::Yes(reply) => self.answer_call(link, adapter, &header, Ok(&reply)),
            Said::No(status) => self.answer_call(link, adapter, &header, Err(status)),
            Said::Later => Ok(()),
        }
    }

    /// Posts the receive for the next call, then answers this one.
    fn answer_call(
        &mut self,
        link: &Link,
        adapter: &mut dyn Adapter,
        header: &RequestHeader,
        said: Result<&Reply<'_>, Status>,
    ) -> Result<(), Failure> {
        let (order, checksums) = (link.order, link.info.checksums);
        // The processing of the call may have ended the channel.
        let Some(channel) = self.bound() else { return Ok(()) };
        let answer = ResponseHeader::answering(header, channel.credits());
        let mut message = vec![0; super::channel::MESSAGE_BYTES];
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

    fn on_question(
        &mut self,
        held: &mut Delegations,
        server: ClientId,
        header: &RequestHeader,
        args: &GetAttrInline,
    ) -> Said<'static> {
        let Some(delegation) = held.of_file(&args.fh, server) else {
            return Said::No(Status::BadHandle);
        };
        self.last_question += 1;
        let question = self.last_question;
        self.questions.push((question, *header, args.attributes));
        held.events.push_back(BackEvent::Question { question, delegation });
        Said::Later
    }

    pub(super) fn answer_question(
        &mut self,
        link: &Link,
        adapter: &mut dyn Adapter,
        question: u64,
        answer: Option<&Attributes<'_>>,
    ) -> Result<(), Failure> {
        let place = self.questions.iter().position(|(number, ..)| *number == question);
        let Some(place) = place else { return Ok(()) };
        let (_, header, asked) = self.questions.swap_remove(place);
        match answer {
            Some(attributes) => {
                let attributes = attributes.only(asked);
                let reply = Reply::BcGetAttr(GetAttrInlineReply { attributes });
                self.answer_call(link, adapter, &header, Ok(&reply))
            }
            None => self.answer_call(link, adapter, &header, Err(Status::BadHandle)),
        }
    }
}

impl Delegations {
    /// Processes a recall, which the server may have sent as early as `since`.
    fn on_recall(&mut self, args: &BcRecall, server: ClientId, since: Instant) -> Said<'static> {
        let Some(delegation) = self.find(args.state_id, server) else {
            // The recall may have overtaken the reply that grants the delegation; then the server
            // sends it again.
            return Said::No(Status::BadStateId);
        };
        if self.recall(delegation, since) {
            let truncate = args.truncate;
            self.events.push_back(BackEvent::Recall { delegation, truncate });
        }
        Said::Yes(Reply::BcRecall)
    }
}
