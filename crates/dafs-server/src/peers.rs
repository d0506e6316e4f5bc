//! Small servers for few peers: each peer has a thread of its own.
//!
//! Invariants
//! * The limits bound the number of peers at a time. A peer that has not sent its request yet makes
//!   room for another, so silent ones block no other.
//! * A panic while a peer is served ends only its connection.

use crate::limits::ACCEPT_REST;
use dafs_dat::connections::{Admitted, Connections, Origin};
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Serves each peer that `accept` returns, until `stopped`, and then waits for those that are being
/// served. `serve` establishes a peer when it has sent a request.
pub(crate) fn serve_each<S: AsFd + Send + Sync + 'static>(
    name: &str,
    connections: &Arc<Connections>,
    stopped: &AtomicBool,
    accept: impl Fn() -> io::Result<(S, Origin)>,
    serve: impl Fn(&S, &Admitted) -> io::Result<()> + Sync,
) {
    let serve = &serve;
    std::thread::scope(|scope| {
        loop {
            let accepted = accept();
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            let (stream, origin) = match accepted {
                Ok((stream, origin)) => (Arc::new(stream), origin),
                Err(error) => {
                    // For instance, when there are no descriptors.
                    tracing::warn!(%error, "{name} cannot accept a connection; trying again soon");
                    connections.make_room();
                    std::thread::sleep(ACCEPT_REST);
                    continue;
                }
            };
            let admitted = match connections.admit(origin, Arc::downgrade(&stream) as _) {
                Ok(admitted) => admitted,
                Err(_) => {
                    tracing::warn!(peer = ?origin, "{name} has too many peers and refused one");
                    continue;
                }
            };
            let run = move || {
                let served = catch_unwind(AssertUnwindSafe(|| serve(&stream, &admitted)));
                match served {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "a peer of {name} hung up")
                    }
                    // The panic has been reported where it happened.
                    Err(_) => tracing::error!("a request to {name} has failed by a panic"),
                }
            };
            let thread = std::thread::Builder::new().name(format!("{name}-peer"));
            if let Err(error) = thread.spawn_scoped(scope, run) {
                tracing::warn!(%error, "a connection to {name} was refused");
            }
        }
    });
}
