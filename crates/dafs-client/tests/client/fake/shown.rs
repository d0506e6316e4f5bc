//! The optimistic channel of the fake server, and memory that it grants there.

use super::*;
use dafs_dat::{Completion, EndpointId, RequestId};

/// The server's state of the channel.
#[derive(Default)]
pub struct ShownSide {
    pub endpoint: Option<EndpointId>,
    /// Channels that were asked for.
    pub binds: u32,
    /// The status that CONNECT_BIND is answered with.
    pub refusal: Option<Status>,
}

impl FakeServer {
    /// Accepts a further channel of the session; false if it is none.
    pub(super) fn accept_further(&mut self, request: RequestId, private_data: &[u8]) -> bool {
        let (is_back, is_optimistic) =
            (self.is_back_request(private_data), self.is_optimistic_request(private_data));
        if is_back {
            self.accept_back(request);
        } else if is_optimistic {
            self.accept_optimistic(request);
        }
        is_back || is_optimistic
    }

    /// Handles a completion of a further channel; false if it is none of them.
    pub(super) fn on_further_completion(&mut self, done: &Completion) -> bool {
        if self.back.endpoint == Some(done.endpoint) {
            self.on_back_completion(done);
        } else if self.shown.endpoint == Some(done.endpoint) {
            self.on_optimistic_completion(done);
        } else {
            return false;
        }
        true
    }

    /// Handles the end of a connection, which may be that of a further channel.
    pub(super) fn lost_further(&mut self, endpoint: EndpointId) {
        if self.back.endpoint == Some(endpoint) {
            self.leave_back();
        }
        if self.shown.endpoint == Some(endpoint) {
            self.leave_optimistic();
        }
    }

    fn is_optimistic_request(&self, private_data: &[u8]) -> bool {
        let channel = <[u8; 4]>::try_from(&private_data[12..]).unwrap();
        self.order.is_some_and(|order| match order {
            ByteOrder::Big => u32::from_be_bytes(channel) == 8,
            ByteOrder::Little => u32::from_le_bytes(channel) == 8,
        })
    }

    fn accept_optimistic(&mut self, request: RequestId) {
        self.leave_optimistic();
        self.shown.binds += 1;
        let Ok(endpoint) = self.adapter.accept(request, self.domain, &[]) else { return };
        self.shown.endpoint = Some(endpoint);
        let slot = self.free.pop().unwrap();
        let segment = self.memory.1.local(slot * SLOT_BYTES, SLOT_BYTES);
        self.adapter.post_receive(endpoint, slot as u64, segment).unwrap();
    }

    /// Ends the channel.
    pub fn leave_optimistic(&mut self) {
        if let Some(endpoint) = self.shown.endpoint.take() {
            self.adapter.abort(endpoint);
        }
    }

    /// Grants memory to the client. The channel must be there.
    pub fn grant_memory(&mut self, buffer: &Arc<Buffer>) -> MemoryRegion {
        self.adapter.grant(self.shown.endpoint.unwrap(), buffer).unwrap()
    }

    pub fn revoke_memory(&mut self, region: MemoryRegion) {
        self.adapter.revoke(self.shown.endpoint.unwrap(), region.id);
    }

    fn on_optimistic_completion(&mut self, done: &Completion) {
        let slot = done.work as usize;
        self.free.push(slot);
        let (Operation::Receive, WorkStatus::Ok(bytes)) = (done.operation, done.status) else {
            return;
        };
        let view = self.memory.0.slice(slot * SLOT_BYTES, bytes as usize).unwrap();
        let message = view.to_vec(Site::Inspect);
        let order = self.order.unwrap();
        let (header, request) = decode_request(&message, order, 0).unwrap();
        let Request::ConnectBind(args) = request else { panic!("{request:?}") };
        assert_eq!(args.channel_use, ChannelUse::Optimistic);
        let answer = ResponseHeader::answering(&header, 1);
        let mut out = vec![0; SLOT_BYTES];
        let len = match self.shown.refusal {
            Some(status) => {
                let answer = answer.with_status(status);
                let procedure = Procedure::ConnectBind;
                encode_error(&mut out, order, &answer, procedure, &ErrorBody::None).unwrap()
            }
            None => {
                let reply = Reply::ConnectBind(ConnectBindReply {
                    max_request_size: args.max_request_size,
                    max_response_size: args.max_response_size,
                    max_requests: args.max_requests,
                    auth: AuthResult::None,
                    trusted: true,
                });
                encode_response(&mut out, order, &answer, &reply).unwrap()
            }
        };
        self.say_on_optimistic(&out[..len]);
    }

    /// Sends bytes over the channel.
    pub fn say_on_optimistic(&mut self, message: &[u8]) {
        let Some(endpoint) = self.shown.endpoint else { return };
        let slot = self.free.pop().unwrap();
        let view = self.memory.0.slice(slot * SLOT_BYTES, message.len()).unwrap();
        view.copy_from(message, Site::Inspect);
        let segment = self.memory.1.local(slot * SLOT_BYTES, message.len());
        if self.adapter.post_send(endpoint, slot as u64, &[segment]).is_err() {
            self.free.push(slot);
        }
        self.adapter.flush();
    }
}
