//! The end of connections.
//!
//! Invariants
//! * All posted work has completed, flushed if need be, before the last event; work that a panic
//!   has lost is the exception.
//! * The shared state of the adapter holds no trace of an ended connection.
//! * The last record of TLS, or a Terminate, waits for room in the socket, up to the timeout of
//!   lingering. There is none behind a record that has left in part. A caller that drops the adapter
//!   asks before whether anything lingers. The end of the stream comes behind it.
//! * A connection that this side closes gracefully is drained until the peer has closed too, or the
//!   timeout expires. A close with unread bytes would reset it and lose the last message. A peer that has
//!   closed its side still gets the last bytes, but no posted work that had not left.

use super::adapter::{Entry, IwarpAdapter, Stream};
use super::connection::{Connection, Stage};
use super::core::Core;
use super::receive::Inbound;
use super::records::{Records, is_passing};
use super::sys;
use super::violation::Violation;
use crate::confine::FAULT;
use crate::connections::Admitted;
use crate::{ConnectError, DisconnectReason, EndpointId, Event, Operation, WorkStatus};
use dafs_mem::unacknowledged_bytes;
use dafs_tls::{Alert, Distrust, OpenError};
use dafs_wire::iwarp::rdmap::Terminate;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use thiserror::Error;

/// The reason why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// `disconnect`, after all work was sent.
    Local,
    /// `abort`.
    Aborted,
    /// The peer closed gracefully.
    Peer,
    /// The connection to the peer was lost.
    Lost(String),
    /// The peer broke a rule.
    Violation(Violation),
    /// The peer sent a Terminate.
    Terminated(Terminate),
    /// TLS ended it.
    Tls(TlsEnd),
    /// The set-up failed.
    Setup(ConnectError),
    /// This program met a bug of its own.
    Fault,
}

/// The reason why TLS ends a connection.
#[derive(Debug, Error)]
pub(super) enum TlsEnd {
    #[error("the peer ended it without close_notify, so data may be missing")]
    Cut,
    #[error("the peer ended it inside a record of TLS")]
    CutInRecord,
    #[error("the certificate of the client is not trusted any more: {0}")]
    Distrusted(Distrust),
    #[error("the server's certificate is not trusted any more: {0}")]
    DistrustedServer(Distrust),
    #[error("{0}")]
    Open(OpenError),
    #[error("its keys have protected as many records as they may; a new connection has new ones")]
    Spent,
}

impl TlsEnd {
    /// The alert for the peer.
    fn alert(&self) -> Option<Alert> {
        match self {
            Self::Open(error) => error.alert(),
            Self::Distrusted(_) | Self::DistrustedServer(_) | Self::Spent => {
                Some(Alert::CLOSE_NOTIFY)
            }
            Self::Cut | Self::CutInRecord => None,
        }
    }
}

impl From<TlsEnd> for End {
    fn from(end: TlsEnd) -> Self {
        End::Tls(end)
    }
}

impl End {
    fn reason(&self) -> DisconnectReason {
        match self {
            End::Local | End::Aborted => DisconnectReason::Local,
            End::Peer => DisconnectReason::Peer,
            End::Lost(text) => DisconnectReason::Lost(text.clone()),
            End::Violation(violation) => DisconnectReason::Protocol(violation.to_string()),
            End::Terminated(codes) => DisconnectReason::Terminated(codes.to_string()),
            End::Tls(TlsEnd::Open(error)) => DisconnectReason::Protocol(error.to_string()),
            End::Tls(end) => DisconnectReason::Lost(end.to_string()),
            End::Setup(error) => DisconnectReason::Lost(error.to_string()),
            End::Fault => DisconnectReason::Lost(FAULT.to_owned()),
        }
    }

    /// The same for a connection of this side that was never established.
    fn connect_error(self) -> ConnectError {
        match self {
            End::Setup(error) => error,
            End::Lost(text) => ConnectError::Io(io::Error::other(text)),
            End::Tls(end) => ConnectError::Tls(end.to_string()),
            End::Fault => ConnectError::Io(io::Error::other(FAULT)),
            _ => ConnectError::Gone,
        }
    }
}

/// The socket of a connection that has ended.
#[derive(Debug)]
pub(super) struct Lingering {
    stream: Stream,
    /// The last bytes, until the socket has room for them.
    last: Vec<u8>,
    /// True if the peer has sent more than this side had read at the end.
    has_sent_on: bool,
    _admitted: Option<Arc<Admitted>>,
}

impl Lingering {
    /// True if the peer could lose something if the socket were closed now.
    pub(super) fn is_needed(&self) -> bool {
        self.has_sent_on || !self.last.is_empty() || unacknowledged_bytes(self.stream.as_fd()) > 0
    }
}

impl IwarpAdapter {
    /// Ends a connection: flushes its work, reports the end, and releases the socket.
    pub(super) fn end(&mut self, id: u64, end: End) {
        let Some(Entry::Connection(mut connection)) = self.slots.remove(id) else {
            debug_assert!(false, "only connections end");
            return;
        };
        if connection.blocked {
            self.core.blocked_count -= 1;
        }
        self.active.retain(|active| *active != id);
        let last = close_wire(&mut connection, &end);
        flush(&mut connection, &mut self.core);
        let never_up = !matches!(connection.stage, Stage::Open) && connection.initiator;
        tracing::debug!(peer = %connection.peer, ?end, "connection ends");
        let endpoint = EndpointId(id);
        let event = if never_up && !matches!(end, End::Local | End::Aborted) {
            Event::ConnectFailed { endpoint, error: Box::new(end.connect_error()) }
        } else {
            match &end {
                End::Violation(violation) => {
                    tracing::warn!(peer = %connection.peer, "protocol error: {violation}");
                }
                End::Tls(end) => tracing::info!(peer = %connection.peer, "connection ended: {end}"),
                _ => {}
            }
            Event::Disconnected { endpoint, reason: Box::new(end.reason()) }
        };
        self.core.events.push(event);
        if let Some(last) = last {
            self.linger(connection.stream, last, connection.admitted);
        }
    }

    /// Keeps a socket until the peer closes or the timeout expires. Its sending side is shut, or
    /// will be behind the last bytes.
    fn linger(&mut self, stream: Stream, last: Vec<u8>, admitted: Option<Arc<Admitted>>) {
        // It leaves the epoll set under its old identifier and joins again under a new one.
        if self.core.epoll.remove(&*stream).is_err() {
            return;
        }
        let events = if last.is_empty() { sys::READABLE } else { sys::READABLE | sys::WRITABLE };
        let has_sent_on = rustix::io::ioctl_fionread(&*stream).unwrap_or(0) > 0;
        let lingering = Lingering { stream, last, has_sent_on, _admitted: admitted };
        let Some(id) = self.slots.insert(|_| Entry::Lingering(lingering)) else { return };
        let Some(Entry::Lingering(Lingering { stream, .. })) = self.slots.get(id) else { return };
        if self.core.epoll.add(&**stream, events, id).is_err() {
            self.slots.remove(id);
            return;
        }
        self.start_timer(id, self.core.config.linger_timeout);
    }

    /// Sends the last bytes to a lingering peer, and discards its input.
    pub(super) fn drain_lingering(&mut self, id: u64) {
        let Some(Entry::Lingering(lingering)) = self.slots.get_mut(id) else { return };
        let Lingering { stream, last, has_sent_on, .. } = lingering;
        let Core { epoll, staging, .. } = &mut self.core;
        let goes_on = stream.is_ours()
            && (last.is_empty()
                || send_last(stream, last)
                    && (!last.is_empty() || epoll.change(&**stream, sys::READABLE, id).is_ok()))
            && match (&***stream).read(staging) {
                // The peer has closed its side, and still reads.
                Ok(0) => !last.is_empty() && epoll.change(&**stream, sys::WRITABLE, id).is_ok(),
                Ok(_) => {
                    *has_sent_on = true;
                    true
                }
                Err(error) => is_passing(&error),
            };
        if !goes_on {
            self.slots.remove(id);
        }
    }
}

/// Closes the connection on the wire as the reason requires. If the socket waits for the peer to
/// close, returns the last bytes that it has no room for yet.
fn close_wire(connection: &mut Connection, end: &End) -> Option<Vec<u8>> {
    let open = matches!(connection.stage, Stage::Open);
    if !connection.stream.is_ours() {
        return None;
    }
    let last = match end {
        End::Local if open => Some(goodbye(&mut connection.tls, Alert::CLOSE_NOTIFY)),
        End::Tls(end) => Some(goodbye(&mut connection.tls, end.alert()?)),
        End::Violation(violation) => last_words(connection, violation),
        End::Aborted | End::Local | End::Fault => None,
        End::Peer | End::Lost(_) | End::Terminated(_) | End::Setup(_) => return None,
    };
    let Some(mut last) = last else {
        sys::reset_on_close(&connection.stream);
        return None;
    };
    send_last(&connection.stream, &mut last).then_some(last)
}

/// Sends the last bytes, as far as the socket takes them, and behind them shuts the sending side.
/// Returns false if the socket has failed.
fn send_last(stream: &Stream, last: &mut Vec<u8>) -> bool {
    if !last.is_empty() {
        match (&***stream).write(last) {
            Ok(sent) => drop(last.drain(..sent)),
            Err(error) if is_passing(&error) => {}
            Err(_) => return false,
        }
    }
    !last.is_empty() || stream.shutdown(Shutdown::Write).is_ok()
}

/// The Terminate for a violation, sealed if the connection is inside TLS. `None` if the stream is in
/// the middle of something else.
fn last_words(connection: &mut Connection, violation: &Violation) -> Option<Vec<u8>> {
    let Some(tls) = &mut connection.tls else {
        return connection.tx.terminate(violation.terminate());
    };
    if tls.is_pending() {
        return None;
    }
    let terminate = connection.tx.terminate(violation.terminate())?;
    let mut sealed = tls.seal_short(&terminate).ok()?;
    sealed.extend(tls.close(Alert::CLOSE_NOTIFY)?);
    Some(sealed)
}

/// The last record of TLS. There is none in the clear, or if another record has left in part.
fn goodbye(tls: &mut Option<Box<Records>>, alert: Alert) -> Vec<u8> {
    let record = tls.as_mut().and_then(|tls| tls.close(alert));
    record.map_or_else(Vec::new, Vec::from)
}

/// Completes all unfinished posted work as flushed.
fn flush(connection: &mut Connection, core: &mut Core) {
    let id = connection.id;
    // The list has items only after a panic. They must not be reported for another connection.
    let mut inbound = std::mem::take(&mut core.inbound);
    for item in inbound.drain(..) {
        let (work, operation) = match item {
            Inbound::Received { work, .. } => (work, Operation::Receive),
            Inbound::ReadDone { work, .. } => (work, Operation::RdmaRead),
            Inbound::ReadRequested(_) | Inbound::Terminated(_) => continue,
        };
        core.complete(id, work, operation, WorkStatus::Flushed);
    }
    core.inbound = inbound;
    while let Some(read) = connection.rx.take_read() {
        core.complete(id, read.work, Operation::RdmaRead, WorkStatus::Flushed);
    }
    let mut finished = std::mem::take(&mut core.finished);
    if let Some(tls) = &mut connection.tls {
        tls.flush(&mut finished);
    }
    connection.tx.flush(&mut finished);
    for work in finished.drain(..).filter(|work| work.is_reported()) {
        core.complete(id, work.work, work.operation, WorkStatus::Flushed);
    }
    core.finished = finished;
    while let Some(receive) = connection.rx.take_receive() {
        core.complete(id, receive.work, Operation::Receive, WorkStatus::Flushed);
    }
}
