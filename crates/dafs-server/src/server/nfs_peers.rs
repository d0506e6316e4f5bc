//! The hosts of NFSv3 clients: calls to their lock managers and status monitors, and the datagrams
//! by which their status monitors say that they have restarted.
//!
//! Invariants
//! * A datagram changes something only if it comes from another host, from a port that root there
//!   alone uses.
//! * A reply to a datagram is shorter than the datagram may be, so it amplifies nothing.

use super::rpcbind;
use crate::limits::MONITOR_DATAGRAM_BYTES_MAX;
use dafs_nfs::{NfsShared, Peers};
use dafs_rpc::client::{Procedure as Remote, RpcClient};
use dafs_store::vital;
use dafs_wire::nsm1::{self, NotifyArgs, Procedure};
use dafs_wire::rpc::{AcceptStatus, CallError, CallHeader, ReplyHeader, VersionRange};
use dafs_wire::xdr::{Decoder, Encode};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Every user of a host can use ports from here on.
const UNPRIVILEGED_PORT_MIN: u16 = 1024;

/// How soon the thread for datagrams notices that the server ends.
const WAKE_EVERY: Duration = Duration::from_millis(200);

/// Calls to hosts of clients.
pub(super) struct ClientHosts {
    name: Vec<u8>,
}

impl ClientHosts {
    /// Calls in the name of this host.
    pub(super) fn new() -> Self {
        Self { name: rustix::system::uname().nodename().to_bytes().to_vec() }
    }
}

impl Peers for ClientHosts {
    fn host_name(&self) -> &[u8] {
        &self.name
    }

    fn call(&self, host: IpAddr, procedure: Remote, args: &[u8]) -> io::Result<Vec<u8>> {
        let port = rpcbind::port_at(host, procedure.program, procedure.version)?;
        let client = RpcClient::connect(SocketAddr::new(host, port), rpcbind::options(), None)?;
        let results = client.call(procedure, args).map_err(io::Error::other)?;
        Ok(results.to_vec())
    }
}

/// The thread that takes datagrams. It ends when this is dropped.
pub(super) struct Monitor {
    pub(super) port: u16,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Takes datagrams at an address.
    ///
    /// # Errors
    /// When the address is in use, or there is no thread.
    pub(super) fn start(address: SocketAddr, nfs: Arc<NfsShared>) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(WAKE_EVERY))?;
        let port = socket.local_addr()?.port();
        let ends = Arc::<AtomicBool>::default();
        let is_over = ends.clone();
        let thread = vital::spawn("dafs-nsm", move || {
            let mut datagram = [0; MONITOR_DATAGRAM_BYTES_MAX];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((len, from)) = socket.recv_from(&mut datagram) {
                    take(&socket, &nfs, &datagram[..len], from);
                }
            }
        })?;
        Ok(Self { port, ends, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for notifications of NFSv3 clients had failed");
        }
    }
}

fn take(socket: &UdpSocket, nfs: &Arc<NfsShared>, datagram: &[u8], from: SocketAddr) {
    let Some((reply, notified)) = answer(datagram) else { return };
    if let Some(args) = notified
        && from.port() < UNPRIVILEGED_PORT_MIN
        && !from.ip().to_canonical().is_loopback()
    {
        nfs.host_restarted(from.ip(), &args);
    }
    if let Err(error) = socket.send_to(&reply, from) {
        tracing::debug!(%from, %error, "a status monitor gets no answer");
    }
}

/// Returns the reply to a datagram, and the notification in it. `None` if it is no call.
fn answer(datagram: &[u8]) -> Option<(Vec<u8>, Option<NotifyArgs<'_>>)> {
    let mut decoder = Decoder::new(datagram);
    let call = match CallHeader::decode(&mut decoder) {
        Ok(call) => call,
        Err(CallError::Rejected { xid, status }) => {
            return Some((ReplyHeader::denied(xid, status).encoded(), None));
        }
        Err(_) => return None,
    };
    let (status, args) = match (call.program, call.version) {
        (nsm1::PROGRAM, nsm1::VERSION) => match Procedure::from_number(call.procedure) {
            Some(Procedure::Null) => (AcceptStatus::Success, None),
            Some(Procedure::Notify) => match decoder.value::<NotifyArgs<'_>>() {
                Ok(args) => (AcceptStatus::Success, Some(args)),
                Err(_) => (AcceptStatus::GarbageArgs, None),
            },
            None => (AcceptStatus::ProcedureUnavailable, None),
        },
        (nsm1::PROGRAM, _) => {
            let (low, high) = (nsm1::VERSION, nsm1::VERSION);
            (AcceptStatus::ProgramMismatch(VersionRange { low, high }), None)
        }
        _ => (AcceptStatus::ProgramUnavailable, None),
    };
    Some((ReplyHeader::accepted(call.xid, status).encoded(), args))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::nlm4::HostName;
    use dafs_wire::rpc::OpaqueAuth;

    fn call(program: u32, version: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let header = CallHeader { xid: 7, program, version, procedure, credential, verifier };
        [header.encoded().as_slice(), args].concat()
    }

    #[test]
    fn datagrams_are_answered_by_their_kind() {
        let notify = NotifyArgs { name: HostName(b"guest"), state: 5 };
        let args = notify.encoded();
        let accepted = |status| ReplyHeader::accepted(7, status).encoded();
        let ok = accepted(AcceptStatus::Success);
        let datagram = call(nsm1::PROGRAM, 1, 6, &args);
        assert_eq!(answer(&datagram), Some((ok.clone(), Some(notify))));
        assert_eq!(answer(&call(nsm1::PROGRAM, 1, 0, &[])), Some((ok, None)));
        let garbage = accepted(AcceptStatus::GarbageArgs);
        assert_eq!(answer(&call(nsm1::PROGRAM, 1, 6, &args[..8])), Some((garbage, None)));
        let none = accepted(AcceptStatus::ProcedureUnavailable);
        assert_eq!(answer(&call(nsm1::PROGRAM, 1, 2, &args)), Some((none, None)));
        let range = VersionRange { low: 1, high: 1 };
        let mismatch = accepted(AcceptStatus::ProgramMismatch(range));
        assert_eq!(answer(&call(nsm1::PROGRAM, 2, 6, &args)), Some((mismatch, None)));
        let program = accepted(AcceptStatus::ProgramUnavailable);
        assert_eq!(answer(&call(100_003, 3, 6, &args)), Some((program, None)));
        for len in 0..40 {
            assert_eq!(answer(&datagram[..len]), None, "{len}");
        }
    }
}
