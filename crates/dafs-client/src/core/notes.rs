//! The effect of answers on the state that the application holds.

use super::call::ReplyMessage;
use super::calls::Calls;
use super::link::Link;
use super::users::User;
use dafs_wire::dafs::{
    ClientId, HEADER_BYTES, Outcome, Procedure, Reply, Request, StateId, Status, decode_request,
};

/// The offset of the state-id in a reply to OPEN (DAFS 6).
const OPEN_STATE_ID_AT: usize = HEADER_BYTES + 64;

/// The offset of the state-id of its delegation, if there is one.
const DELEGATION_STATE_ID_AT: usize = HEADER_BYTES + 112;

impl Calls {
    /// Records the effect of `server`'s answer to the request in `asked`, which ran as `user`, and
    /// puts the state-id for the application into the answer to an OPEN.
    pub(crate) fn take_note(
        &mut self,
        link: &Link,
        asked: &[u8],
        reply: &mut ReplyMessage,
        server: ClientId,
        user: Option<&User>,
    ) {
        use Procedure as P;
        let noted = matches!(
            reply.procedure,
            P::Open | P::Close | P::OpenDowngrade | P::Lock | P::LockU | P::DelegReturn
        );
        if !noted {
            return;
        }
        // Without recovery the request has not been kept.
        let Ok((_, request)) = decode_request(asked, link.order, 0) else { return };
        self.take_note_of(link, &request, reply, server, user);
    }

    /// As [`take_note`](Self::take_note), for a request that has been decoded.
    pub(crate) fn take_note_of(
        &mut self,
        link: &Link,
        request: &Request<'_>,
        reply: &mut ReplyMessage,
        server: ClientId,
        user: Option<&User>,
    ) {
        if !reply.status.is_ok() {
            match request {
                Request::Close(close) if is_dead(reply.status) => self.opens.closed(close.state_id),
                Request::DelegReturn(args) if is_dead(reply.status) => {
                    self.delegations.returned(args.state_id);
                }
                _ => {}
            }
            return;
        }
        match request {
            Request::Open(open) => {
                let Ok(Outcome::Ok(Reply::Open(opened))) = reply.decode() else { return };
                let name = self.opens.opened(open, &opened, server, user);
                let current = opened.state_id;
                let delegation = &opened.delegation;
                let granted = self.delegations.granted(opened.fh, delegation, server, link.now);
                if name != current {
                    rename(&mut reply.bytes, OPEN_STATE_ID_AT, name);
                }
                if let Some(name) = granted {
                    rename(&mut reply.bytes, DELEGATION_STATE_ID_AT, name);
                }
            }
            Request::DelegReturn(args) => self.delegations.returned(args.state_id),
            Request::Close(close) => self.opens.closed(close.state_id),
            Request::OpenDowngrade(downgrade) => self.opens.downgraded(downgrade),
            Request::Lock(lock) => self.opens.locked(lock, server),
            Request::LockU(unlock) => self.opens.unlocked(unlock),
            _ => {}
        }
    }
}

/// Puts another state-id into a reply to OPEN. State-ids are the same in both byte orders.
fn rename(reply: &mut [u8], at: usize, name: StateId) {
    if let Some(place) = reply.get_mut(at..at + name.0.len()) {
        place.copy_from_slice(&name.0);
    }
}

/// True when the server reports that there is nothing to close.
fn is_dead(status: Status) -> bool {
    matches!(
        status,
        Status::StaleStateId | Status::BadStateId | Status::Expired | Status::StaleClientId
    )
}
