//! A session per prefix and process, opened when it is first needed.

use crate::config::{self, Mount};
use crate::failure::{Errno, Result};
use crate::report;
use crate::table::locked;
use dafs_client::{Client, File, FileHandle};
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What this process has at the servers. A fork makes its own and leaves this one as it is.
#[derive(Debug, Default)]
pub(crate) struct Process {
    clients: Mutex<HashMap<usize, Arc<Mutex<Option<Client>>>>>,
    /// Sessions that are being opened.
    connecting: AtomicUsize,
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

/// Whether this process has had anything to do with a server.
pub(crate) fn is_any() -> bool {
    !PROCESS.load(Ordering::Acquire).is_null()
}

/// A fork starts without any session. What its parent had is left alone, locks and all.
pub(crate) fn after_fork_in_child() {
    PROCESS.store(std::ptr::null_mut(), Ordering::Release);
}

/// The session for a prefix, by its place in the configuration.
pub(crate) fn client(mount: usize) -> Result<Client> {
    let config = config::get().ok_or(Errno(libc::EIO))?;
    let url = &config.mounts.get(mount).ok_or(Errno(libc::EIO))?.url;
    // One place for each, so that nobody waits for a server that somebody else needs.
    let place = locked(&process().clients).entry(mount).or_default().clone();
    let mut place = locked(&place);
    if let Some(client) = &*place {
        return Ok(client.clone());
    }
    let connecting = &process().connecting;
    connecting.fetch_add(1, Ordering::Relaxed);
    let client = Client::connect(url, &config.options);
    connecting.fetch_sub(1, Ordering::Relaxed);
    let client = client.inspect_err(|error| report::unreachable(mount, url, error))?;
    *place = Some(client.clone());
    Ok(client)
}

/// The session for a prefix if there is one that is connected. Waits for none.
pub(crate) fn connected(mount: usize) -> Option<Client> {
    let place = locked(&process().clients).get(&mount)?.clone();
    place.try_lock().ok()?.clone().filter(Client::is_connected)
}

/// Whether a server that this process needs is not there. Waits for none.
pub(crate) fn is_any_away() -> bool {
    let process = process();
    let places: Vec<_> = locked(&process.clients).values().cloned().collect();
    let is_away = |client: &Client| !client.is_connected();
    process.connecting.load(Ordering::Relaxed) != 0
        || places.iter().any(|place| {
            // One that is held is looked at right now by somebody who needs it, or being connected.
            place.try_lock().is_ok_and(|client| client.as_ref().is_some_and(is_away))
        })
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
    let places: Vec<_> = locked(&process().clients).drain().map(|(_, place)| place).collect();
    // One that is held is being connected.
    places.iter().filter_map(|place| place.try_lock().ok()?.take()).collect()
}
