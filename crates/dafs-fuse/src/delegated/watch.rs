//! Looks after the promises of the server: nobody else can tell the kernel in time when they may be over.

use super::{Delegated, dropping};
use crate::limits::PROMISE_LOOK;
use crate::serve::Server;
use dafs_client::FileHandle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// The thread that looks; it begins with the first file that is kept.
#[derive(Debug, Default)]
pub(crate) struct Watch(AtomicBool);

impl Watch {
    /// Begins, if nobody does it yet. False when there is no thread: nothing may be kept then.
    pub(crate) fn begin(&self, server: &Arc<Server>) -> bool {
        if self.0.swap(true, Ordering::SeqCst) {
            return true;
        }
        let restarts = server.tree.client.stats().restarts;
        let server = Arc::downgrade(server);
        let thread = std::thread::Builder::new().name("dafs-promises".into());
        let begun = thread.spawn(move || look(&server, restarts));
        if let Err(error) = &begun {
            tracing::warn!(%error, "nothing is kept because nobody would look after it");
            self.0.store(false, Ordering::SeqCst);
        }
        begun.is_ok()
    }
}

fn look(server: &Weak<Server>, mut restarts: u64) {
    while let Some(server) = server.upgrade() {
        let client = &server.tree.client;
        let (promised, seen) = (client.promised(), client.stats().restarts);
        let is_over = promised.is_zero() || seen != restarts;
        if !is_over || server.delegated.is_empty() || begin_to_drop(&server) {
            restarts = seen;
        }
        drop(server);
        let pause = promised.min(PROMISE_LOOK);
        std::thread::sleep(if pause.is_zero() { PROMISE_LOOK } else { pause });
    }
}

/// Begins to let the kernel drop all; false when there is no thread, and it is to be tried again.
fn begin_to_drop(server: &Arc<Server>) -> bool {
    tracing::info!("the server may have let others change files: the kernel drops them");
    // It may take as long as the server is away, and more may happen meanwhile.
    let server = server.clone();
    let thread = std::thread::Builder::new().name("dafs-dropping".into());
    let begun = thread.spawn(move || drop_all(&server));
    if let Err(error) = &begun {
        tracing::error!(%error, "no thread to let the kernel drop what it keeps");
    }
    begun.is_ok()
}

/// Lets the kernel drop all that is kept, and gives the delegations back.
fn drop_all(server: &Server) {
    let delegated: &Delegated = &server.delegated;
    let all = delegated.all();
    let left: Vec<FileHandle> =
        all.iter().copied().filter(|handle| delegated.leave(handle)).collect();
    let drop_each = |files: &[FileHandle]| {
        dropping::drop_all(files.iter().copied(), |handle, range| server.drop_part(&handle, range));
    };
    // Also those that others are giving up: they may wait at a page that is being read, before all that is
    // behind it.
    drop_each(&all);
    for handle in &left {
        server.redeem_all(handle);
        drop(delegated.remove(handle));
    }
    // What was read since then may be old, and nobody would say so.
    drop_each(&left);
}
