//! Calls without a transport, for tests and simulations of handlers.
//!
//! Invariants
//! * A handler cannot distinguish such calls from others, except that the reactor never wakes.

use crate::answer::Protection;
use crate::call::{Call, CallState, CallerProcess, ConnectionId, ConnectionRef, Credential};
use crate::gss::Verified;
use crate::handler::{Handled, Handler};
use crate::inbox::{CallbackRequest, Command, Inbox, Injector};
use crate::reply::{Rejection, Reply};
use crate::tls::TransportSecurity;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// An effect of a handler, or of a thread with its responder, after the call has returned.
#[derive(Debug)]
pub enum LocalEvent {
    /// A deferred call was answered.
    Answer {
        /// The connection.
        connection: ConnectionId,
        /// The XID of the call.
        xid: u32,
        /// The results, or a rejection.
        answer: Result<Reply, Rejection>,
        /// True if the reply has its header and its protection already (RPCSEC_GSS).
        is_complete: bool,
        /// Memory that the call held, in bytes.
        held_bytes: usize,
    },
    /// A deferred call was dropped and will never be answered; the number is the bytes it held.
    Forgotten(ConnectionId, usize),
    /// A callback to send to a peer.
    CallBack(ConnectionId, CallbackRequest),
    /// A connection to close.
    Close(ConnectionId),
}

/// A substitute for a reactor: passes calls to a handler and collects the later effects.
#[derive(Debug)]
pub struct LocalReactor {
    inbox: Arc<Inbox>,
    /// The peer address of all calls.
    pub peer: SocketAddr,
    /// The calling process; by default one of another host.
    pub process: CallerProcess,
    /// The protection of all connections; by default none.
    pub security: TransportSecurity,
    /// The user that certificates name; by default none.
    pub user: Option<Arc<str>>,
}

impl LocalReactor {
    /// A reactor without a handler.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            inbox: Arc::new(Inbox::new()?),
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            process: CallerProcess::Elsewhere,
            security: TransportSecurity::None,
            user: None,
        })
    }

    /// An injector whose messages arrive with [`LocalReactor::deliver`].
    pub fn injector<M>(&self) -> Injector<M> {
        Injector::new(self.inbox.clone())
    }

    /// A handle to the connection with this number.
    pub fn connection(&self, number: u32) -> ConnectionRef {
        ConnectionRef::new(id(number), self.inbox.clone())
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Calls the handler over the connection with this number (anything below a million).
    pub fn call<H: Handler>(
        &self,
        handler: &mut H,
        connection: u32,
        request: LocalCall<'_>,
    ) -> Handled {
        let protection = match request.credential {
            Credential::Gss { context, service } => {
                Protection::Gss(Verified::new(context.clone(), 0, service))
            }
            Credential::None | Credential::Sys(_) => Protection::None,
        };
        handler.call(Call {
            xid: request.xid,
            program: request.program,
            version: request.version,
            procedure: request.procedure,
            credential: request.credential,
            args: request.args,
            peer: self.peer,
            process: self.process,
            is_rdma: false,
            security: self.security,
            user: self.user.as_ref(),
            admitted: None,
            connection_id: id(connection),
            now_ns: request.now_ns,
            inbox: &self.inbox,
            block: None,
            call_chunks: None,
            is_reducible: protection.is_reducible(),
            // It has no header.
            message_bytes: request.args.len(),
            reply_bytes_beside_results: protection.reply_bytes_beside_results(),
            held_bytes: request.args.len(),
            state: &CallState::default(),
        })
    }

    /// Delivers all messages that were sent with `injector`.
    pub fn deliver<H: Handler>(&self, handler: &mut H, injector: &Injector<H::Message>) {
        let mut messages = Vec::new();
        injector.take(&mut messages);
        messages.into_iter().for_each(|message| handler.message(message));
    }

    /// The effects since the last call, in order.
    pub fn take_events(&self) -> Vec<LocalEvent> {
        let mut commands = Vec::new();
        self.inbox.take(&mut commands);
        let event = |command| match command {
            Command::Answer { connection, to, answer, held_bytes, .. } => {
                let is_complete = matches!(to.protection, Protection::Applied);
                Some(LocalEvent::Answer {
                    connection,
                    xid: to.xid,
                    answer,
                    is_complete,
                    held_bytes,
                })
            }
            Command::Forget { connection, held_bytes } => {
                Some(LocalEvent::Forgotten(connection, held_bytes))
            }
            Command::CallBack { connection, call } => Some(LocalEvent::CallBack(connection, call)),
            Command::Close { connection } => Some(LocalEvent::Close(connection)),
            Command::Adopt { .. } | Command::Shaken { .. } => None,
        };
        commands.into_iter().filter_map(event).collect()
    }
}

fn id(number: u32) -> ConnectionId {
    ConnectionId::new(0, number % ConnectionId::slots_max(), 1)
}

/// A call for [`LocalReactor::call`].
#[derive(Debug, Clone, Copy)]
pub struct LocalCall<'a> {
    /// The XID that the caller chose.
    pub xid: u32,
    /// The program.
    pub program: u32,
    /// The version of the program.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential<'a>,
    /// The arguments, in XDR.
    pub args: &'a [u8],
    /// Monotonic time, in nanoseconds.
    pub now_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AcceptStatus, Responder};

    /// Answers procedure 0 at once and defers others until a message arrives.
    #[derive(Default)]
    struct Keeper {
        kept: Vec<(Vec<u8>, Responder)>,
    }

    impl Handler for Keeper {
        type Message = u32;

        fn call(&mut self, call: Call<'_>) -> Handled {
            if call.procedure == 0 {
                return AcceptStatus::ProcedureUnavailable.into();
            }
            let (args, responder) = call.later();
            self.kept.push((args.to_vec(), responder));
            Handled::Later
        }

        fn message(&mut self, message: u32) {
            for (args, responder) in self.kept.drain(..message as usize) {
                responder.respond(Reply::from_bytes(&args));
            }
            self.kept.clear();
        }
    }

    #[test]
    fn answers_come_later_or_never() {
        let reactor = LocalReactor::new().unwrap();
        let injector = reactor.injector();
        let mut keeper = Keeper::default();
        let credential = Credential::None;
        let mut request = LocalCall {
            xid: 1,
            program: 7,
            version: 1,
            procedure: 0,
            credential,
            args: b"args",
            now_ns: 0,
        };
        let handled = reactor.call(&mut keeper, 3, request);
        let Handled::Reject(Rejection::Accept(AcceptStatus::ProcedureUnavailable)) = handled else {
            panic!("{handled:?}");
        };
        request.procedure = 1;
        for xid in [2, 3] {
            let request = LocalCall { xid, ..request };
            assert!(matches!(reactor.call(&mut keeper, 3, request), Handled::Later));
        }
        assert!(reactor.take_events().is_empty());
        injector.send(1);
        reactor.deliver(&mut keeper, &injector);
        let events = reactor.take_events();
        let [LocalEvent::Answer { connection, xid: 2, answer: Ok(reply), .. }, forgotten] =
            &events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!(*connection, reactor.connection(3).id());
        assert_eq!(reply.to_bytes(), b"args");
        assert!(matches!(forgotten, LocalEvent::Forgotten(id, _) if id == connection));
    }
}
