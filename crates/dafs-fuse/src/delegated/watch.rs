//! The watch of the lease: only this thread can make the kernel drop its pages in time when
//! delegations may be lost.
//!
//! Invariants
//! * A file whose pages are being dropped is not dropped a second time. While the server is
//!   unreachable each check finds the lease over, and a page that is being read blocks the drop for
//!   that long.

use super::{Delegated, dropping};
use crate::limits::PROMISE_LOOK;
use crate::serve::Server;
use dafs_client::FileHandle;
use dafs_mem::Mutex;
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

/// The thread that checks the lease; the first delegated file starts it.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_begun: AtomicBool,
    under_way: UnderWay,
}

impl Watch {
    /// Starts the thread, if it does not run yet. False when it cannot be started: then no file may
    /// be delegated.
    pub(crate) fn begin(&self, server: &Arc<Server>) -> bool {
        if self.is_begun.swap(true, Ordering::SeqCst) {
            return true;
        }
        let restarts = server.tree.client.stats().restarts;
        let server = Arc::downgrade(server);
        let thread = std::thread::Builder::new().name("dafs-promises".into());
        let begun = thread.spawn(move || look(&server, restarts));
        if let Err(error) = &begun {
            tracing::warn!(%error, "nothing is kept because nobody would look after it");
            self.is_begun.store(false, Ordering::SeqCst);
        }
        begun.is_ok()
    }
}

fn look(server: &Weak<Server>, mut restarts: u64) {
    while let Some(server) = server.upgrade() {
        let client = &server.tree.client;
        let (promised, seen) = (client.promised(), client.stats().restarts);
        let is_over = promised.is_zero() || seen != restarts;
        // Files that were being dropped already are tried again: they may have been read since.
        if !is_over || server.delegated.is_empty() || begin_to_drop(&server) {
            restarts = seen;
        }
        drop(server);
        let pause = promised.min(PROMISE_LOOK);
        std::thread::sleep(if pause.is_zero() { PROMISE_LOOK } else { pause });
    }
}

/// Starts to drop the pages of all files; false when some are being dropped already.
fn begin_to_drop(server: &Arc<Server>) -> bool {
    let all = server.delegated.all();
    let count = all.len();
    let files = server.delegated.watch.under_way.begin(all);
    let begins_all = files.len() == count;
    if files.is_empty() {
        return begins_all;
    }
    tracing::info!("the server may have let others change files: the kernel drops them");
    // It may take as long as the server is unreachable, and the watch must go on meanwhile.
    let (of, dropped) = (server.clone(), files.clone());
    let thread = std::thread::Builder::new().name("dafs-dropping".into());
    let begun = thread.spawn(move || drop_files(&of, &dropped));
    if let Err(error) = &begun {
        tracing::error!(%error, "no thread to let the kernel drop what it keeps");
        server.delegated.watch.under_way.end(&files);
    }
    begun.is_ok() && begins_all
}

/// Drops the pages of delegated files, and returns their delegations.
fn drop_files(server: &Server, files: &[FileHandle]) {
    let delegated: &Delegated = &server.delegated;
    let under_way = &delegated.watch.under_way;
    let (left, others): (Vec<FileHandle>, Vec<FileHandle>) =
        files.iter().copied().partition(|handle| delegated.leave(handle));
    let drop_each = |files: &[FileHandle]| {
        dropping::drop_all(files.iter().copied(), |handle, range| server.drop_part(&handle, range));
    };
    // This includes files that other threads are giving up: those may wait at a page that is being
    // read, before the pages behind it.
    drop_each(files);
    under_way.end(&others);
    for handle in &left {
        server.redeem_all(handle);
        // Before it can be delegated again.
        under_way.end(std::slice::from_ref(handle));
        drop(delegated.remove(handle));
    }
    // Pages read since then may be stale, and no recall would say so.
    drop_each(&left);
}

/// The files whose pages are being dropped.
#[derive(Debug, Default)]
struct UnderWay(Mutex<FxHashSet<FileHandle>>);

impl UnderWay {
    fn files(&self) -> MutexGuard<'_, FxHashSet<FileHandle>> {
        self.0.lock()
    }

    /// The files of `all` that no thread is dropping: the caller does from now on.
    fn begin(&self, all: Vec<FileHandle>) -> Vec<FileHandle> {
        let mut files = self.files();
        all.into_iter().filter(|handle| files.insert(*handle)).collect()
    }

    fn end(&self, dropped: &[FileHandle]) {
        let mut files = self.files();
        for handle in dropped {
            files.remove(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn handle(number: u8) -> FileHandle {
        FileHandle { fs: [1; 16], file: [number; 48] }
    }

    #[test]
    fn a_hanging_drop_is_not_repeated() {
        let under_way = UnderWay::default();
        let all = vec![handle(1), handle(2)];
        assert_eq!(under_way.begin(all.clone()), all);
        for _ in 0..5 {
            assert_eq!(under_way.begin(all.clone()), []);
        }
        // New files do not wait for blocked ones.
        assert_eq!(under_way.begin(vec![handle(1), handle(2), handle(3)]), [handle(3)]);
        under_way.end(&[handle(2), handle(3)]);
        assert_eq!(under_way.begin(all), [handle(2)]);
    }
}
