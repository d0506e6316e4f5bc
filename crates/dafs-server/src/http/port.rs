//! A port whose peers send one request each.

use crate::peers::serve_each;
use dafs_dat::connections::{Admitted, ConnectionLimits, Connections, Origin};
use dafs_store::vital;
use rustix::net::Shutdown;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The thread that accepts peers. It ends when this is dropped.
pub(crate) struct Port {
    listener: TcpListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Serves each peer in a thread of its own, within `limits`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        name: &'static str,
        listener: TcpListener,
        limits: ConnectionLimits,
        serve: impl Fn(&TcpStream, &Admitted, Origin) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let own = listener.try_clone()?;
        let run = move || {
            let next = || {
                let (stream, peer) = listener.accept()?;
                Ok((stream, Origin::of_address(peer.ip())))
            };
            let serve = |stream: &TcpStream, admitted: &Admitted| {
                let peer = stream.peer_addr()?;
                serve(stream, admitted, Origin::of_address(peer.ip()))
            };
            serve_each(name, &Connections::new(limits), &stopped, next, serve);
        };
        let thread = vital::spawn(name, run)?;
        Ok(Self { listener: own, stop, thread: Some(thread) })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread sleeps in accept, and the end of listening wakes it. A connection would, too,
        // but a sandbox allows none.
        let woken = rustix::net::shutdown(&self.listener, Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}
