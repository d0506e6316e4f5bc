//! A session per prefix and process, opened when it is first needed.

use crate::config::{self, Mount};
use crate::failure::{Errno, Result};
use crate::table::locked;
use dafs_client::{Client, File, FileHandle};
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

/// What this process has at the servers. A fork makes its own and leaves this one as it is.
#[derive(Debug, Default)]
pub(crate) struct Process {
    clients: Mutex<HashMap<usize, Client>>,
    /// Files opened once more to hold the locks that belong to the process.
    pub(crate) owners: Mutex<HashMap<FileHandle, Arc<File>>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// That of this process.
pub(crate) fn process() -> &'static Process {
    let mut current = PROCESS.load(Ordering::Acquire);
    if current.is_null() {
        let new = Box::into_raw(Box::default());
        let null = std::ptr::null_mut();
        current = match PROCESS.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(known) => {
                // SAFETY: nobody has seen the new one.
                drop(unsafe { Box::from_raw(new) });
                known
            }
        };
    }
    // SAFETY: what is in there was leaked from a box and is never freed.
    unsafe { &*current }
}

/// A fork starts without any session. What its parent had is left alone, locks and all.
pub(crate) fn after_fork_in_child() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
}

/// The session for a prefix, by its place in the configuration.
pub(crate) fn client(mount: usize) -> Result<Client> {
    let config = config::get().ok_or(Errno(libc::EIO))?;
    let url = &config.mounts.get(mount).ok_or(Errno(libc::EIO))?.url;
    let mut clients = locked(&process().clients);
    if let Some(client) = clients.get(&mount) {
        return Ok(client.clone());
    }
    let client = without_signals(|| Client::connect(url, &config.options))?;
    clients.insert(mount, client.clone());
    Ok(client)
}

/// Threads that are started meanwhile take no signals: those are for the program's own.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are filled before they are used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let done = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        done
    }
}

/// The place of a prefix in the configuration.
pub(crate) fn number(mount: &'static Mount) -> usize {
    let known = config::get()
        .and_then(|config| config.mounts.iter().position(|known| std::ptr::eq(known, mount)));
    // INVARIANT: a mount comes from the configuration.
    known.unwrap_or(usize::MAX)
}

/// Takes the sessions out, to end them.
pub(crate) fn take_all() -> Vec<Client> {
    locked(&process().owners).clear();
    locked(&process().clients).drain().map(|(_, client)| client).collect()
}
